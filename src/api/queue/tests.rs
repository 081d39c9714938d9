//! Queues on the simulated disk: results of failed operations, and the same file by calls and by
//! queues.

use crate::api::sim::{self, Call, Disk, Settings};
use crate::{
    Buffer, Completion, Durability, ErrorKind, File, OpenOptions, Operation, Queue, QueueOptions,
};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const BLOCK: usize = 4096;

fn log(durability: Durability) -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create(true).durability(durability);
    options
}

/// A block whose bytes are its number.
fn block(number: u8) -> Buffer {
    Buffer::from(&[number; BLOCK][..])
}

/// Reaps all outstanding operations, sorted by tag.
fn all(queue: &Queue) -> Vec<Completion> {
    let mut all: Vec<_> = queue.reap(usize::MAX).collect();
    all.sort_by_key(|done| done.tag);
    all
}

/// Runs `test` with a log of one durable block and a queue, with and without a ring.
fn with_a_queue(test: impl Fn(&Disk, &File, &Queue)) {
    for (seed, io_uring) in (0..20).flat_map(|seed| [(seed, false), (seed, true)]) {
        sim::run(seed, || {
            let disk = Disk::new(seed);
            let file = disk.open(&log(Durability::EveryWrite), "log").unwrap();
            file.append(&block(1)).unwrap();
            let queue = QueueOptions::new().depth(8).io_uring(io_uring).open();
            test(&disk, &file, &queue);
        });
    }
}

#[test]
fn a_failed_write_gives_its_buffer_back_and_fails_alone() {
    with_a_queue(|disk, file, queue| {
        let plain = disk.open(&log(Durability::OnSync), "log").unwrap();
        disk.fail(Call::Write, 0, 5);
        queue.write_at(&plain, block(2), 0, 1).unwrap();
        queue.submit();
        queue.read_at(file, block(0), 0, 2).unwrap();
        let [written, read] = &all(queue)[..] else { panic!("two") };
        let error = written.result.as_ref().unwrap_err();
        assert_eq!((error.kind(), error.operation()), (&ErrorKind::Os(5), Operation::Write));
        assert_eq!(written.buffer.as_deref(), Some(&block(2)[..]));
        assert_eq!(read.result.as_ref().ok(), Some(&(BLOCK as u64)));
        file.append(&block(3)).unwrap();
    });
}

#[test]
fn a_failed_append_ends_appending_for_those_behind_it() {
    with_a_queue(|disk, file, queue| {
        let plain = disk.open(&log(Durability::OnSync), "log").unwrap();
        disk.fail(Call::Write, 0, 5);
        queue.append(&plain, block(2), 1).unwrap();
        queue.submit();
        queue.append(&plain, block(3), 2).unwrap();
        let [first, behind] = &all(queue)[..] else { panic!("two") };
        assert_eq!(*first.result.as_ref().unwrap_err().kind(), ErrorKind::Os(5));
        let kind = behind.result.as_ref().unwrap_err().kind();
        assert!(matches!(kind, ErrorKind::AppendEnded(_)), "{kind:?}");
        assert_eq!(first.buffer.as_deref(), Some(&block(2)[..]));
        assert_eq!(behind.buffer.as_deref(), Some(&block(3)[..]));
        file.set_len(BLOCK as u64).unwrap();
        queue.append(&plain, block(4), 3).unwrap();
        assert_eq!(all(queue)[0].result.as_ref().ok(), Some(&(BLOCK as u64)));
    });
}

#[test]
fn a_failed_flush_fails_all_that_wait_for_it_and_all_that_follow() {
    with_a_queue(|disk, file, queue| {
        disk.fail(Call::Flush, 0, 5);
        queue.sync_data(file, 1).unwrap();
        queue.submit();
        let first = all(queue).pop().unwrap();
        assert_eq!(first.operation, Operation::Flush);
        let error = first.result.unwrap_err();
        let ErrorKind::Wedged(cause) = error.kind() else { panic!("{error}") };
        assert_eq!((cause.kind(), cause.operation()), (&ErrorKind::Os(5), Operation::Flush));
        queue.append(file, block(2), 2).unwrap();
        queue.write_at(file, block(3), 0, 3).unwrap();
        queue.sync_data(file, 4).unwrap();
        queue.read_at(file, block(0), 0, 5).unwrap();
        let after = all(queue);
        for (done, number) in after[..2].iter().zip([2, 3]) {
            assert_eq!(done.buffer.as_deref(), Some(&block(number)[..]));
        }
        for done in &after[..3] {
            let kind = done.result.as_ref().unwrap_err().kind();
            assert!(matches!(kind, ErrorKind::Wedged(_)), "{kind:?}");
        }
        assert_eq!(after[3].result.as_ref().ok(), Some(&(BLOCK as u64)));
        assert_eq!(after[3].buffer.as_deref(), Some(&block(1)[..]));
    });
}

#[test]
fn a_durable_operation_comes_back_when_it_is_stable() {
    with_a_queue(|disk, file, queue| {
        for tag in 2..6 {
            queue.append(file, block(tag), tag.into()).unwrap();
        }
        queue.write_at(file, block(9), 0, 6).unwrap();
        while queue.outstanding() > 0 {
            let done: Vec<_> = queue.reap(1).collect();
            let after = disk.crash().open(&log(Durability::OnSync), "log").unwrap();
            let mut found = vec![Buffer::zeroed(BLOCK); 5];
            let read =
                |(n, into): (usize, &mut Buffer)| after.read_at(into, (n * BLOCK) as u64).unwrap();
            let there =
                found.iter_mut().enumerate().map(read).filter(|read| *read == BLOCK).count();
            for done in done {
                let place = if done.tag == 6 { 0 } else { done.result.unwrap() as usize / BLOCK };
                let expected = if done.tag == 6 { 9 } else { done.tag as u8 };
                assert!(
                    place < there && found[place][..] == block(expected)[..],
                    "{} is not there",
                    done.tag
                );
            }
        }
    });
}

#[test]
fn a_queue_that_is_dropped_waits_for_what_it_submitted_and_forgets_the_rest() {
    with_a_queue(|disk, file, queue| {
        let dropped = QueueOptions::new().depth(8).io_uring(queue.uses_io_uring()).open();
        dropped.append(file, block(2), 1).unwrap();
        dropped.submit();
        dropped.append(file, block(3), 2).unwrap();
        drop(dropped);
        assert_eq!(file.len().unwrap(), 2 * BLOCK as u64);
        assert_eq!(disk.content("log").unwrap()[BLOCK..2 * BLOCK], block(2)[..]);
    });
}

#[test]
fn a_truncate_waits_for_the_operations_of_a_queue_in_flight() {
    with_a_queue(|disk, file, queue| {
        // `set_len` would wait for durable appends as it waits for flushes.
        let plain = disk.open(&log(Durability::OnSync), "log").unwrap();
        for tag in 0..4 {
            queue.append(&plain, block(2), tag).unwrap();
        }
        queue.submit();
        let other = file.try_clone().unwrap();
        let is_cut = Arc::new(AtomicBool::new(false));
        let told = is_cut.clone();
        let cutting = sim::spawn(move || {
            other.set_len(0).unwrap();
            told.store(true, Ordering::SeqCst);
        });
        sim::sleep(Duration::from_millis(10));
        // Without a ring they have finished by now.
        assert_eq!(is_cut.load(Ordering::SeqCst), !queue.uses_io_uring());
        assert!(all(queue).iter().all(|done| done.result.is_ok()));
        cutting.join().unwrap();
        assert_eq!(file.len().unwrap(), 0);
    });
}

/// The results of some operations, one at a time, and the content of the file.
fn outcomes(seed: u64, by_queue: Option<bool>) -> (Vec<String>, Option<Vec<u8>>) {
    let live = || {
        let mut random = fastrand::Rng::with_seed(seed);
        let settings = Settings {
            capacity_bytes: if random.bool() { 40 << 12 } else { 1 << 30 },
            short_one_in: 3,
            interrupted_one_in: 5,
            ..Settings::default()
        };
        let disk = Disk::with(seed, settings);
        let handles = [Durability::OnSync, Durability::EveryWrite]
            .map(|durability| disk.open(&log(durability), "log").unwrap());
        let queue = by_queue.map(|io_uring| QueueOptions::new().depth(1).io_uring(io_uring).open());
        let mut operation = |n: u8| {
            let file = &handles[random.usize(..2)];
            let data = Buffer::from(&vec![n + 1; random.usize(1..4) * BLOCK][..]);
            let offset = random.u64(..30) * BLOCK as u64;
            let kind = random.u8(..4);
            let result = match &queue {
                None => match kind {
                    0 => file.append(&data),
                    1 => file.write_at(&data, offset).map(|()| data.len() as u64),
                    2 => file.read_at(&mut data.clone(), offset).map(|read| read as u64),
                    _ => file.sync_data().map(|()| 0),
                },
                Some(queue) => {
                    match kind {
                        0 => queue.append(file, data, 0),
                        1 => queue.write_at(file, data, offset, 0),
                        2 => queue.read_at(file, data, offset, 0),
                        _ => queue.sync_data(file, 0),
                    }
                    .unwrap();
                    queue.reap(1).next().unwrap().result
                }
            };
            format!("{:?}", result.map_err(|error| error.to_string()))
        };
        let outcomes = (0..40).map(&mut operation).collect();
        drop((queue, handles));
        (outcomes, disk.content("log"))
    };
    sim::run(seed, live).0
}

#[test]
fn queues_and_calls_come_to_the_same() {
    for seed in sim::seeds(100) {
        let by_calls = outcomes(seed, None);
        assert_eq!(outcomes(seed, Some(false)), by_calls, "seed {seed}, a queue without a ring");
        assert_eq!(outcomes(seed, Some(true)), by_calls, "seed {seed}, a queue");
    }
}

/// On the simulated disk, which completes calls in any order.
#[test]
fn two_queues_of_one_thread_deadlocked() {
    for seed in sim::seeds(50) {
        sim::run(seed, || {
            let mut log = OpenOptions::new();
            log.write(true).create(true).durability(Durability::EveryWrite);
            let file = Disk::new(seed).open(&log, "log").unwrap();
            let queues =
                [Queue::new(4), QueueOptions::new().depth(4).io_uring(seed % 2 == 0).open()];
            for tag in 0..8 {
                queues[tag % 2].append(&file, Buffer::zeroed(4096), tag as u64).unwrap();
            }
            // The first queue waits for operations of the second.
            queues[1].submit();
            assert_eq!(queues[0].reap(4).filter(|done| done.result.is_ok()).count(), 4);
            file.append(&Buffer::zeroed(4096)).unwrap();
            assert_eq!(queues[1].reap(4).filter(|done| done.result.is_ok()).count(), 4);
            drop(queues);
            assert_eq!(file.len().unwrap(), 9 * 4096);
            file.close().unwrap();
        });
    }
}

#[test]
fn a_file_closed_meanwhile_has_an_append_or_refused_it() {
    let mut counts = [0, 0];
    for seed in 0..300 {
        let ((appended, content), _) = sim::run(seed, || {
            let disk = Disk::new(seed);
            let file = disk.open(OpenOptions::new().write(true).create(true), "log").unwrap();
            let queue = Queue::new(1);
            queue.append(&file, Buffer::zeroed(4096), 0).unwrap();
            let closing = sim::spawn(move || file.close().unwrap());
            if seed % 3 > 0 {
                sim::sleep(Duration::from_micros(seed % 40));
            }
            let done = queue.reap(1).next().unwrap();
            closing.join().unwrap();
            drop(queue);
            (done.result, disk.content("log").unwrap())
        });
        counts[usize::from(appended.is_ok())] += 1;
        match appended {
            Ok(offset) => assert_eq!((offset, content.len()), (0, 4096), "seed {seed}"),
            Err(error) => {
                assert_eq!(
                    (error.kind(), content.len()),
                    (&ErrorKind::Os(libc::EBADF), 0),
                    "seed {seed}"
                )
            }
        }
    }
    assert!(counts.iter().all(|count| *count > 10), "{counts:?}");
}

/// The defect: an iterator yielded completions of a later reap, once others had taken its own.
#[test]
fn an_iterator_yielded_completions_of_a_later_reap() {
    with_a_queue(|_, file, queue| {
        (1..=2).for_each(|tag| queue.read_at(file, block(0), 0, tag).unwrap());
        let mut first = queue.reap(2);
        assert_eq!(queue.reap(0).count(), 2);
        queue.read_at(file, block(0), 0, 3).unwrap();
        let mut later = queue.reap(1);
        assert_eq!((first.next().map(|done| done.tag), first.size_hint()), (None, (0, Some(0))));
        assert_eq!((later.size_hint(), later.next().map(|done| done.tag)), ((0, Some(1)), Some(3)));
    });
}

/// The defect: without space for the marker of a positional write, appends beside it failed too.
#[test]
fn a_refused_write_past_the_end_failed_appends_beside_it() {
    let refused = Cell::new(0);
    with_a_queue(|disk, file, queue| {
        disk.fail(Call::Marker, 0, 28);
        queue.write_at(file, block(9), 10 * BLOCK as u64, 1).unwrap();
        queue.append(file, block(2), 2).unwrap();
        let [written, appended] = &all(queue)[..] else { panic!("two") };
        if let Err(error) = &written.result {
            assert_eq!(*error.kind(), ErrorKind::NoSpace(28));
            refused.set(refused.get() + 1);
            assert_eq!(appended.result.as_ref().ok(), Some(&(BLOCK as u64)));
        }
        assert!(appended.result.is_ok());
    });
    assert!(refused.get() > 0);
}
