//! Streams: many logs in one. On the file system of the tests, and on a simulated disk.

#[path = "common/hooked.rs"]
mod hooked;

use dioxide_log::storage::memory::{Faults, Memory};
use dioxide_log::{
    Durability, Error, Log, LogOptions, Lsn, Stream, StreamChange, StreamFollow, StreamIter,
    StreamLog,
};
use futures::executor::block_on;
use hooked::{Call, Hooked};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

fn small() -> LogOptions {
    LogOptions::new().segment_bytes(64 << 10)
}

fn records(stream: &Stream) -> Vec<(u64, Vec<u8>)> {
    let records = stream.iter_from(stream.first_lsn());
    records.map(|record| record.expect("it is read")).map(|(lsn, bytes)| (lsn.0, bytes)).collect()
}

/// Waits for what must happen, with a generous limit.
fn await_event(happened: impl Fn() -> bool) {
    for _ in 0..60_000 {
        if happened() {
            return;
        }
        thread::sleep(Duration::from_millis(1));
    }
    panic!("it did not happen");
}

fn record(stream: u64, lsn: u64) -> Vec<u8> {
    let len = [0, 1, 100, 4000, 20_000][(stream + lsn) as usize % 5];
    let mut bytes = vec![lsn as u8; len];
    bytes.extend([stream, lsn].map(u64::to_le_bytes).concat());
    bytes
}

#[test]
fn each_stream_has_its_numbers_across_segments_and_opens() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let ids = [7, 0, u64::MAX, 8];
    for round in 0..3u64 {
        let log = small().open_streams(dir.path()).unwrap();
        let expected = if round == 0 { vec![] } else { vec![0, 7, 8, u64::MAX] };
        assert_eq!(log.ids(), expected);
        for lsn in round * 30 + 1..=round * 30 + 30 {
            for id in ids {
                let stream = log.stream(id);
                assert_eq!(stream.append(&record(id % 10, lsn)).unwrap(), Lsn(lsn));
                assert_eq!((stream.next_lsn(), stream.stable_lsn()), (Lsn(lsn + 1), Lsn(lsn + 1)));
            }
        }
        for id in ids {
            let expected = (1..=round * 30 + 30).map(|lsn| (lsn, record(id % 10, lsn)));
            let stream = log.stream(id);
            assert_eq!(records(&stream), expected.collect::<Vec<_>>());
            assert_eq!(stream.read(Lsn(3)).unwrap(), Some(record(id % 10, 3)));
            assert_eq!(stream.read(stream.next_lsn()).unwrap(), None);
        }
        match round {
            1 => drop(log),
            _ => log.close().unwrap(),
        }
    }
}

#[test]
fn both_ends_of_a_stream_are_truncated() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let log = small().open_streams(dir.path()).unwrap();
    let (stream, other) = (log.stream(1), log.stream(2));
    for lsn in 1..=20 {
        stream.append(&record(1, lsn)).unwrap();
        other.append(&record(2, lsn)).unwrap();
    }
    stream.truncate_front(Lsn(10)).unwrap();
    stream.truncate_front(Lsn(5)).unwrap();
    assert_eq!((stream.first_lsn(), stream.last_lsn()), (Lsn(10), Some(Lsn(20))));
    assert!(matches!(stream.read(Lsn(9)), Err(Error::OutOfRange { .. })));
    let mut reader = stream.iter_from(Lsn(15));
    assert_eq!(StreamIter::next(&mut reader).unwrap().unwrap().payload, record(1, 15));
    stream.truncate_back(Lsn(16)).unwrap();
    assert!(StreamIter::next(&mut reader).unwrap().is_none());
    assert_eq!(stream.append(b"another").unwrap(), Lsn(16));
    assert_eq!(StreamIter::next(&mut reader).unwrap().unwrap().payload, b"another");
    assert!(matches!(stream.truncate_back(Lsn(9)), Err(Error::OutOfRange { .. })));
    assert!(matches!(stream.truncate_back(Lsn(18)), Err(Error::OutOfRange { .. })));
    // As after a snapshot: the stream continues far above.
    other.truncate_front(Lsn(1000)).unwrap();
    assert_eq!((other.first_lsn(), other.last_lsn()), (Lsn(1000), None));
    let removed = log.stream(3);
    removed.append(b"for a while").unwrap();
    removed.remove().unwrap();
    assert_eq!((log.ids(), removed.next_lsn()), (vec![1, 2], Lsn(1)));
    let expected = records(&stream);
    assert_eq!(expected.len(), 7);
    log.close().unwrap();
    assert!(matches!(stream.append(b"late"), Err(Error::Closed)));

    let log = small().open_streams(dir.path()).unwrap();
    assert_eq!(records(&log.stream(1)), expected);
    assert_eq!((log.ids(), log.stream(2).append(b"later").unwrap()), (vec![1, 2], Lsn(1000)));
    assert_eq!(log.stream(3).append(b"again").unwrap(), Lsn(1));
}

#[test]
fn a_batch_of_several_streams_is_appended_as_a_whole() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let log = small().open_streams(dir.path()).unwrap();
    let (a, b) = (log.stream(1), log.stream(2));
    assert_eq!(log.append_all(&[]).unwrap(), []);
    assert_eq!(a.append_all(&[]).unwrap(), Lsn(1));
    let batch: [(&Stream, &[u8]); 4] = [(&b, b"b1"), (&a, b"a1"), (&b, b"b2"), (&a, b"a2")];
    assert_eq!(log.append_all(&batch).unwrap(), [Lsn(1), Lsn(1), Lsn(2), Lsn(2)]);
    assert_eq!(a.append_all(&[b"a3", b"a4"]).unwrap(), Lsn(3));
    let long = vec![1; 40_000];
    let batch: [(&Stream, &[u8]); 2] = [(&a, &long), (&b, &long)];
    assert!(matches!(log.append_all(&batch), Err(Error::TooLong { .. })));
    assert_eq!((a.next_lsn(), b.next_lsn()), (Lsn(5), Lsn(3)));
    assert_eq!(records(&b), [(1, b"b1".to_vec()), (2, b"b2".to_vec())]);
    let other_dir = tempfile::tempdir_in(".").unwrap();
    let other = small().open_streams(other_dir.path()).unwrap();
    assert!(matches!(log.append_all(&[(&other.stream(1), b"x")]), Err(Error::Options(_))));
}

#[test]
fn a_log_of_streams_is_not_taken_for_one_of_records() {
    let dir = tempfile::tempdir_in(".").unwrap();
    small().open_streams(dir.path()).unwrap().close().unwrap();
    let error = Log::open(dir.path()).unwrap_err();
    assert!(error.to_string().contains("open it with StreamLog"), "{error}");
    let dir = tempfile::tempdir_in(".").unwrap();
    Log::open(dir.path()).unwrap().close().unwrap();
    let error = StreamLog::open(dir.path()).unwrap_err();
    assert!(error.to_string().contains("open it with Log"), "{error}");
    let error = LogOptions::new().retain_bytes(1 << 20).open_streams(dir.path()).unwrap_err();
    assert!(matches!(error, Error::Options(_)));
}

/// The stream that rests had kept all segments since its records.
#[test]
fn a_stream_that_rests_does_not_keep_old_segments() {
    let disk = Memory::default();
    let log = small().open_streams_storage(Arc::new(disk.clone())).unwrap();
    let (resting, empty, busy) = (log.stream(1), log.stream(2), log.stream(3));
    for lsn in 1..=10 {
        resting.append(&record(1, lsn)).unwrap();
    }
    empty.append(b"gone").unwrap();
    empty.truncate_front(Lsn(700)).unwrap();
    let expected = records(&resting);
    let payload = vec![5; 1000];
    for lsn in 1..=5000 {
        busy.append(&payload).unwrap();
        if lsn % 10 == 0 {
            busy.truncate_front(Lsn(lsn)).unwrap();
        }
    }
    // 5 MB went through segments of 64 KiB. The collector may still work.
    await_event(|| disk.names().len() < 10);
    assert!(log.stats().copied_bytes > 0);
    assert_eq!(records(&resting), expected);
    assert_eq!(empty.next_lsn(), Lsn(700));
    let again = small().open_streams_storage(Arc::new(disk.after_kill())).unwrap();
    assert_eq!(records(&again.stream(1)), expected);
    assert_eq!(again.stream(2).next_lsn(), Lsn(700));
    assert_eq!(again.stream(3).first_lsn(), Lsn(5000));
}

/// A truncation needs space for its frame. In a full log it had none, so the log stayed full.
#[test]
fn a_full_log_takes_records_again_after_a_truncation() {
    let faults = Faults { segments_max: Some(8), ..Faults::default() };
    let disk = Memory::new(faults);
    let log = small().open_streams_storage(Arc::new(disk.clone())).unwrap();
    let streams: Vec<_> = (0..4).map(|id| log.stream(id)).collect();
    let payload = vec![9; 3000];
    // They stay in the oldest segment, or are copied.
    streams[0].append_all(&[&payload[..]; 5]).unwrap();
    let len = |stream: &Stream| stream.next_lsn().0 - stream.first_lsn().0;
    for round in 0..20 {
        let mut full = 0;
        while full < 3 {
            full = 0;
            for stream in &streams[1..] {
                match stream.append(&payload) {
                    Ok(_) => {}
                    Err(error) if error.is_no_space() => full += 1,
                    Err(error) => panic!("{error}"),
                }
            }
        }
        let used: u64 = streams.iter().map(len).sum();
        assert!(used * 3000 > 4 * (64 << 10), "round {round}: only {used} records fit");
        let longest = streams[1..].iter().max_by_key(|stream| len(stream)).expect("three");
        longest.truncate_front(longest.next_lsn()).unwrap();
        longest.append(&payload).unwrap();
    }
    assert_eq!(streams[0].first_lsn(), Lsn(1));
    let again = small().open_streams_storage(Arc::new(disk.after_kill())).unwrap();
    for stream in &streams {
        assert_eq!(records(&again.stream(stream.id())), records(stream));
    }
}

#[test]
fn threads_and_followers_of_many_streams() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let log = small().open_streams(dir.path()).unwrap();
    let follow = |mut follower: StreamFollow, id: u64| {
        let mut next = 1;
        while next <= 200 {
            let record_ = follower.next().unwrap().expect("the log is open");
            assert_eq!((record_.lsn, record_.payload), (Lsn(next), &record(id % 3, next)[..]));
            next += 1;
        }
    };
    thread::scope(|scope| {
        for id in 0..8 {
            let stream = log.stream(id);
            let follower = stream.follow(Lsn(1));
            scope.spawn(move || follow(follower, id));
            scope.spawn(move || {
                for lsn in 1..=200 {
                    assert_eq!(stream.append(&record(id % 3, lsn)).unwrap(), Lsn(lsn));
                }
            });
        }
    });
    let stats = log.stats();
    assert_eq!((stats.streams, stats.log.records), (8, 8 * 200 + 8), "with bounds of each");
    let mut follower = log.stream(0).follow(Lsn(201));
    let waiting = thread::spawn(move || follower.next().unwrap().is_none());
    log.close().unwrap();
    assert!(waiting.join().unwrap(), "a follower ends with the log");
}

/// The second truncation changed nothing, and was ready while the first one was in flight.
#[test]
fn a_truncation_that_another_task_makes_is_stable_when_it_is_ready() {
    let log = small().open_streams_storage(Arc::new(Memory::default())).unwrap();
    let stream = log.stream(1);
    let now = &mut Context::from_waker(Waker::noop());
    for _ in 0..200 {
        let first = stream.append_all(&[b"a", b"b", b"c"]).unwrap();
        let (front, back) = (Lsn(first.0 + 1), Lsn(first.0 + 2));
        for (change, lsn) in [
            (Stream::truncate_front_async as fn(&Stream, Lsn) -> StreamChange, front),
            (Stream::truncate_back_async, back),
        ] {
            let mut makes = pin!(change(&stream, lsn));
            block_on(change(&stream, lsn)).unwrap();
            assert!(makes.as_mut().poll(now).is_ready(), "it is still in flight");
        }
    }
    log.close().unwrap();
}

#[test]
fn tasks_append_and_follow() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let log = small().open_streams(dir.path()).unwrap();
    let (a, b) = (log.stream(1), log.stream(2));
    let mut follower = a.follow(Lsn(1));
    let following = thread::spawn(move || {
        block_on(async {
            for lsn in 1..=100 {
                let found = follower.next_async().await.unwrap().expect("the log is open");
                assert_eq!((found.lsn, found.payload), (Lsn(lsn), &record(1, lsn)[..]));
            }
        });
    });
    let appends: Vec<_> = (1..=100)
        .map(|lsn| (a.append_async(&record(1, lsn)), b.append_async(&record(2, lsn))))
        .collect();
    for (lsn, (in_a, in_b)) in (1..).zip(appends) {
        assert_eq!(block_on(in_a).unwrap(), Lsn(lsn));
        assert_eq!(block_on(in_b).unwrap(), Lsn(lsn));
    }
    following.join().unwrap();
    let batch = [&b"x"[..], b"y", b"z"];
    assert_eq!(block_on(a.append_all_async(&batch)).unwrap(), Lsn(101));
    assert_eq!(block_on(a.append_all_async(&[])).unwrap(), Lsn(104));
    let back = a.truncate_back_async(Lsn(103));
    assert_eq!((a.next_lsn(), block_on(back).unwrap()), (Lsn(103), ()));
    let front = a.truncate_front_async(Lsn(101));
    assert_eq!((a.first_lsn(), block_on(front).unwrap()), (Lsn(101), ()));
    block_on(a.truncate_front_async(Lsn(1))).unwrap();
    let error = block_on(a.truncate_back_async(Lsn(100))).unwrap_err();
    assert!(matches!(error, Error::OutOfRange { .. }));
    drop((a, b));
    log.close().unwrap();
    let log = small().open_streams(dir.path()).unwrap();
    assert_eq!(records(&log.stream(1)), [(101, b"x".to_vec()), (102, b"y".to_vec())]);
}

/// The collector copied records that readers were just reading, and recycled their segment.
#[test]
fn readers_find_records_that_are_moved_under_them() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let log = small().open_streams(dir.path()).unwrap();
    let (resting, busy) = (log.stream(1), log.stream(2));
    for lsn in 1..=30 {
        resting.append(&record(1, lsn)).unwrap();
    }
    let expected = records(&resting);
    let write = || {
        let payload = vec![5; 3000];
        for lsn in 1..=1500 {
            busy.append(&payload).unwrap();
            busy.truncate_front(Lsn(lsn)).unwrap();
        }
    };
    thread::scope(|scope| {
        let writer = scope.spawn(write);
        while !writer.is_finished() {
            assert_eq!(records(&resting), expected);
        }
    });
    assert!(log.stats().copied_bytes > 100_000);
}

#[test]
fn records_of_on_sync_are_shown_once_they_are_stable() {
    let disk = Memory::default();
    let options = small().durability(Durability::OnSync);
    let log = options.open_streams_storage(Arc::new(disk.clone())).unwrap();
    let stream = log.stream(1);
    stream.append(b"a record").unwrap();
    assert_eq!((stream.stable_lsn(), stream.read(Lsn(1)).unwrap()), (Lsn(1), None));
    log.sync().unwrap();
    assert_eq!(stream.read(Lsn(1)).unwrap(), Some(b"a record".to_vec()));
    let after = options.open_streams_storage(Arc::new(disk.after_power_cut(1))).unwrap();
    assert_eq!(after.stream(1).next_lsn(), Lsn(2));
}

/// Copies count as garbage what no copy wins back: headers, and the unused ends of segments. So a
/// log was copied for ever.
#[test]
fn a_log_without_garbage_is_not_collected() {
    let log = small().open_streams_storage(Arc::new(Memory::default())).unwrap();
    let stream = log.stream(1);
    // One fits into a segment.
    for _ in 0..20 {
        stream.append(&[1; 28_660]).unwrap();
    }
    // The collector looks at the log again.
    (0..100).for_each(|_| log.stream(2).truncate_front(Lsn(2)).unwrap());
    // Longer than it takes for a segment.
    for _ in 0..100 {
        thread::sleep(Duration::from_millis(1));
        assert_eq!(log.stats().copied_bytes, 0);
    }

    let faults = Faults { segments_max: Some(40), ..Faults::default() };
    let full = small().open_streams_storage(Arc::new(Memory::new(faults))).unwrap();
    let stream = full.stream(1);
    let error = loop {
        if let Err(error) = stream.append(&[1; 9_000]) {
            break error;
        }
    };
    assert!(error.is_no_space(), "{error}");
    assert_eq!(full.stats().copied_bytes, 0);
}

/// The collector waited for a sync before it freed a segment, and no call made one.
#[test]
fn a_full_log_that_is_never_synced_stayed_full() {
    let disk = Memory::new(Faults { segments_max: Some(8), ..Faults::default() });
    let options = small().durability(Durability::OnSync);
    let log = options.open_streams_storage(Arc::new(disk)).unwrap();
    let (resting, busy) = (log.stream(1), log.stream(2));
    resting.append(b"a record").unwrap();
    for _ in 0..3 {
        while busy.append(&[1; 3000]).is_ok() {}
        block_on(busy.truncate_front_async(busy.next_lsn())).unwrap();
        busy.append(&[2; 3000]).unwrap();
    }
    log.sync().unwrap();
    assert_eq!(records(&resting), [(1, b"a record".to_vec())]);
}

/// Bounds filled the segment that copies needed, so a full log stayed full for ever.
#[test]
fn a_full_log_takes_any_number_of_truncations() {
    for segments in [5, 6, 8, 12] {
        let faults = Faults { segments_max: Some(segments), ..Faults::default() };
        let disk = Memory::new(faults);
        let log = small().open_streams_storage(Arc::new(disk.clone())).unwrap();
        // A stream that rests, and a queue whose consumer acknowledges each record.
        let (resting, queue) = (log.stream(1), log.stream(2));
        for _ in 0..18 * (segments - 4) {
            resting.append(&[1; 3000]).unwrap();
        }
        for round in 0..4 {
            let mut count = 0;
            while queue.append(&[2; 20]).is_ok() {
                count += 1;
            }
            assert!(count > 100, "{segments} segments, round {round}: only {count} records fit");
            let (first, next) = (queue.first_lsn(), queue.next_lsn());
            for lsn in first.0 + 1..=next.0 {
                queue.truncate_front(Lsn(lsn)).unwrap();
            }
        }
        assert_eq!(records(&resting).len(), 18 * (segments - 4));
        let killed = disk.after_kill();
        let again = small().open_streams_storage(Arc::new(killed)).unwrap();
        assert_eq!(records(&again.stream(1)), records(&resting));
        assert_eq!(again.stream(2).next_lsn(), queue.next_lsn());
    }
}

/// The segments that a log of streams and a plain one make for 100 records. Their lengths take
/// turns.
fn segments_created(spare: usize, lengths: &[usize]) -> [u64; 2] {
    let options = small().spare_segments(spare);
    let log = options.open_streams_storage(Arc::new(Memory::default())).unwrap();
    let stream = log.stream(1);
    let plain = options.open_storage(Arc::new(Memory::default())).unwrap();
    for length in lengths.iter().cycle().take(100) {
        let record = vec![1; *length];
        stream.append(&record).unwrap();
        plain.append(&record).unwrap();
    }
    [log.stats().log.segments_created, plain.stats().segments_created]
}

/// The pool removed the segment that it had just made for a waiting thread.
#[test]
fn few_spare_segments_do_not_keep_the_pool_busy() {
    for spare in [0, 1, 2] {
        for created in segments_created(spare, &[3000]) {
            assert!(created < 20, "{created} segments were made with {spare} spare ones");
        }
    }
}

/// It did so as well for a record that did not fit into a segment that was nearly empty.
#[test]
fn long_records_do_not_keep_the_pool_busy() {
    for spare in [0, 1, 2] {
        // Each record needs a segment of its own.
        for created in segments_created(spare, &[20_000, 45_000]) {
            assert!(created < 110, "{created} segments were made with {spare} spare ones");
        }
    }
}

/// It returned the same error again and again, so a loop over it did not end.
#[test]
fn an_iterator_did_not_end_at_an_error() {
    let log = small().open_streams_storage(Arc::new(Memory::default())).unwrap();
    let stream = log.stream(1);
    for lsn in 1..=3 {
        stream.append(&record(1, lsn)).unwrap();
    }
    stream.truncate_front(Lsn(3)).unwrap();
    assert_eq!(stream.iter_from(Lsn(1)).take(5).count(), 1);
}

struct Inline(Box<dyn Fn() + Send + Sync>);

impl Wake for Inline {
    fn wake(self: Arc<Self>) {
        (self.0)();
    }
}

/// A batch was written under the lock of a stream, and its followers were woken there.
#[test]
fn a_waker_may_look_at_its_stream() {
    let log = small().open_streams_storage(Arc::new(Memory::default())).unwrap();
    let stream = log.stream(1);
    for lsn in 1..=100 {
        let mut follower = stream.follow(Lsn(lsn));
        let woken = stream.clone();
        let waker = Waker::from(Arc::new(Inline(Box::new(move || {
            woken.next_lsn();
        }))));
        let mut next = pin!(follower.next_async());
        assert!(next.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        stream.append(&[1; 3000]).unwrap();
    }
}

/// The follower kept the log open.
#[test]
fn followers_end_when_the_log_is_dropped() {
    let log = small().open_streams_storage(Arc::new(Memory::default())).unwrap();
    let stream = log.stream(1);
    stream.append(b"a record").unwrap();
    let mut follower = stream.follow(Lsn(1));
    assert!(follower.next().unwrap().is_some());
    let waiting = thread::spawn(move || follower.next().unwrap().is_none());
    drop((log, stream));
    assert!(waiting.join().unwrap());
}

/// They returned none, as after a close.
#[test]
fn followers_took_a_failure_for_a_close() {
    let disk = Memory::default();
    let log = small().open_streams_storage(Arc::new(disk.clone())).unwrap();
    let stream = log.stream(1);
    let (mut follower, mut task) = (stream.follow(Lsn(1)), stream.follow(Lsn(1)));
    let waiting = thread::spawn(move || follower.next().map(drop));
    let context = &mut Context::from_waker(Waker::noop());
    let mut next = pin!(task.next_async());
    assert!(next.as_mut().poll(context).is_pending());
    // Once it is a write that fails, not the creation of a segment.
    while !matches!(log.stream(2).append(b"a record"), Err(Error::Failed(_))) {
        disk.set_faults(Faults { failed_call: Some(disk.calls() + 1), ..Faults::default() });
    }
    assert!(matches!(waiting.join().unwrap(), Err(Error::Failed(_))));
    assert!(matches!(next.as_mut().poll(context), Poll::Ready(Err(Error::Failed(_)))));
}

/// The first record of a stream had less room than later ones, and a closed log took truncations.
#[test]
fn errors_are_those_of_a_log() {
    let log = small().open_streams_storage(Arc::new(Memory::default())).unwrap();
    let stream = log.stream(1);
    let max = (64 << 10) - (8 << 10) - 24 - 17 - 56;
    for (len, fits) in [(max + 1, false), (max, true), (max + 1, false), (max, true)] {
        let outcome = stream.append(&vec![1; len]);
        assert_eq!(outcome.is_ok(), fits, "{len}: {outcome:?}");
    }
    log.close().unwrap();
    assert!(matches!(stream.truncate_front(Lsn(1)), Err(Error::Closed)));
    assert!(matches!(stream.truncate_back(stream.next_lsn()), Err(Error::Closed)));
    let options = small().read_unsynced(true);
    let refused = options.open_streams_storage(Arc::new(Memory::default()));
    assert!(matches!(refused, Err(Error::Options(_))));
}

/// The disk, with the length of each read.
fn noted(disk: &Memory) -> (Arc<Hooked>, Arc<Mutex<Vec<usize>>>) {
    let lengths = Arc::<Mutex<Vec<usize>>>::default();
    let noted = lengths.clone();
    let hooked = Hooked::new(disk, move |call| {
        if let Call::Read(length) = call {
            noted.lock().unwrap().push(length);
        }
    });
    (hooked, lengths)
}

/// It read up to 256 KiB, as an iterator does.
#[test]
fn a_read_of_one_record_read_those_behind_it() {
    let (disk, lengths) = noted(&Memory::default());
    let log = LogOptions::new().open_streams_storage(disk).unwrap();
    let stream = log.stream(1);
    for _ in 0..200 {
        stream.append(&[7; 1000]).unwrap();
    }
    lengths.lock().unwrap().clear();
    assert_eq!(stream.read(Lsn(3)).unwrap(), Some(vec![7; 1000]));
    let of_one = lengths.lock().unwrap().clone();
    assert!(of_one.len() == 1 && of_one[0] <= 8192, "{of_one:?}");
    assert_eq!(stream.iter_from(Lsn(1)).count(), 200);
    assert!(lengths.lock().unwrap().len() < 10);
}

/// The collector read each segment, also those that no stream needed.
#[test]
fn segments_of_garbage_were_read_before_they_were_freed() {
    let disk = Memory::default();
    let (hooked, lengths) = noted(&disk);
    let log = small().open_streams_storage(hooked).unwrap();
    let (stream, other) = (log.stream(1), log.stream(2));
    lengths.lock().unwrap().clear();
    for _ in 0..300 {
        stream.append(&[7; 3000]).unwrap();
        other.append(b"a record").unwrap();
    }
    assert!(log.stats().log.segments > 10);
    other.remove().unwrap();
    stream.truncate_front(stream.next_lsn()).unwrap();
    await_event(|| log.stats().log.segments < 3);
    assert_eq!(lengths.lock().unwrap().clone(), []);
    assert_eq!((stream.next_lsn(), log.stats().copied_bytes), (Lsn(301), 0));
    let again = small().open_streams_storage(Arc::new(disk.after_kill())).unwrap();
    assert_eq!((again.stream(1).first_lsn(), again.ids()), (Lsn(301), vec![1]));
}

/// Bounds of a stream with many records lie in a segment that the collector frees meanwhile, unless
/// it knows that they are needed.
#[test]
fn bounds_are_needed_before_their_segment_is_complete() {
    let disk = Memory::default();
    let log = small().open_streams_storage(Arc::new(disk.clone())).unwrap();
    let (long, busy) = (log.stream(1), log.stream(2));
    let batch = vec![&b""[..]; 1000];
    for _ in 0..30 {
        long.append_all(&batch).unwrap();
    }
    for _ in 0..10 {
        thread::scope(|scope| {
            scope.spawn(|| long.truncate_front(Lsn(long.first_lsn().0 + 3000)).unwrap());
            for _ in 0..100 {
                let lsn = busy.append(&[1; 9000]).unwrap();
                busy.truncate_front(lsn.next()).unwrap();
            }
        });
    }
    assert_eq!((long.first_lsn(), long.next_lsn()), (Lsn(30_001), Lsn(30_001)));
    let again = small().open_streams_storage(Arc::new(disk.after_kill())).unwrap();
    assert_eq!(again.stream(1).next_lsn(), Lsn(30_001));
}
