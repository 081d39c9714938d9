//! Futures in simulated time, dropped at any moment; and helpers of the models.

use crate::api::sim::{self, Call, Disk};
use crate::sync::{Condvar, Mutex};
use crate::{
    AsyncFile, Buffer, Durability, ErrorKind, LocalReactor, OpenOptions, QueueOptions, Reactor,
};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

const BLOCK: usize = 4096;

/// A byte that no record holds.
pub(in crate::engine) const POISON: u8 = 0xFF;

/// The bytes of all dropped [`Counted`], never freed: a late reader finds the poison.
static DROPPED: std::sync::Mutex<Vec<Box<[u8]>>> = std::sync::Mutex::new(Vec::new());

/// Memory that is counted, and poisoned when it is dropped.
pub(in crate::engine) struct Counted {
    pub bytes: Box<[u8]>,
    _count: Arc<()>,
}

impl Counted {
    pub fn of(count: &Arc<()>, number: u8, len: usize) -> Self {
        Self { bytes: vec![number; len].into_boxed_slice(), _count: count.clone() }
    }
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsMut<[u8]> for Counted {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.bytes.fill(POISON);
        let bytes = std::mem::take(&mut self.bytes);
        DROPPED.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(bytes);
    }
}

/// Wakes a thread.
#[derive(Default)]
struct Signal {
    is_given: Mutex<bool>,
    changed: Condvar,
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        *self.is_given.lock() = true;
        self.changed.notify_all();
    }
}

pub(in crate::engine) fn block_on<F: Future + Unpin>(mut future: F) -> F::Output {
    let signal = Arc::<Signal>::default();
    let waker = Waker::from(signal.clone());
    loop {
        if let Poll::Ready(output) = Pin::new(&mut future).poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        let mut is_given = signal.is_given.lock();
        while !std::mem::take(&mut *is_given) {
            is_given = signal.changed.wait(is_given);
        }
    }
}

/// Whether the future is ready.
pub(in crate::engine) fn poll_once<F: Future + Unpin>(future: &mut F) -> bool {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

fn log(durability: Durability) -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create(true).durability(durability).growth_cap(16 * BLOCK as u64);
    options
}

/// The fate of a record, as far as its writer knows.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Known {
    Never,
    Maybe,
    At(u64),
}

/// Appends records of a writer, some of which it drops at any moment. Adds each acknowledged record
/// to `told`.
fn append_and_drop(
    file: &AsyncFile,
    first: u8,
    seed: u64,
    count: &Arc<()>,
    told: &Mutex<Vec<(u8, u64)>>,
) -> Vec<(u8, Known)> {
    let mut random = fastrand::Rng::with_seed(seed);
    let append = |number: u8| {
        let mut append = file.append(Counted::of(count, number, random.usize(1..3) * BLOCK));
        let moments = random.u64(..6);
        if moments == 0 {
            return Known::Never;
        }
        for _ in 0..moments {
            if moments < 5 && poll_once(&mut append) {
                // It was ready, and the result was dropped.
                return Known::Maybe;
            }
            sim::sleep(Duration::from_micros(random.u64(..60)));
        }
        if moments < 4 {
            return Known::Maybe;
        }
        let (appended, memory) = block_on(append);
        assert!(memory.bytes.iter().all(|byte| *byte == number), "its memory was touched");
        let offset = appended.expect("there is space");
        told.lock().push((number, offset));
        Known::At(offset)
    };
    (first..first + 6).zip((first..first + 6).map(append)).collect()
}

/// The records of a file with offsets and lengths. Each must be there once, in one piece.
fn records_in(content: &[u8]) -> Vec<(u8, u64, u64)> {
    let mut records: Vec<(u8, u64, u64)> = Vec::new();
    for (block, offset) in content.chunks(BLOCK).zip((0..).step_by(BLOCK)) {
        assert!(block.iter().all(|byte| *byte == block[0]), "torn at {offset}");
        match records.last_mut() {
            Some((number, _, len)) if *number == block[0] => *len += BLOCK as u64,
            _ => records.push((block[0], offset, BLOCK as u64)),
        }
    }
    let mut numbers: Vec<_> = records.iter().map(|record| record.0).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), records.len(), "one is there twice");
    records
}

#[test]
fn dropped_appends_are_wholly_there_or_not_at_all() {
    let mut counts = [0; 3];
    for seed in 0..150 {
        let durability = if seed % 3 == 0 { Durability::OnSync } else { Durability::EveryWrite };
        let options =
            QueueOptions::new().depth(1 + seed as usize % 9).io_uring(seed % 4 > 0).clone();
        let (known, content, told, after) = sim::run(seed, || {
            let disk = Disk::new(seed);
            let reactor = Reactor::start(&options).expect("a thread");
            let file =
                Arc::new(reactor.attach(disk.open(&log(durability), "log").expect("it opens")));
            drop(reactor);
            let (count, told) = (Arc::new(()), Arc::<Mutex<Vec<(u8, u64)>>>::default());
            let writers: Vec<_> = (0..4u8)
                .map(|writer| {
                    let (file, count, told) = (file.clone(), count.clone(), told.clone());
                    sim::spawn(move || {
                        append_and_drop(
                            &file,
                            1 + 6 * writer,
                            seed ^ u64::from(writer) << 32,
                            &count,
                            &told,
                        )
                    })
                })
                .collect();
            sim::sleep(Duration::from_micros(20 * (seed % 40)));
            let cut = (told.lock().clone(), disk.crash());
            let known: Vec<_> =
                writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect();
            let file = Arc::into_inner(file).expect("the writers have ended");
            match seed % 2 {
                0 => block_on(file.close()).expect("it closes"),
                _ => drop(file),
            }
            assert_eq!(Arc::strong_count(&count), 1, "memory was lost");
            (known, disk.content("log").expect("it is there"), cut.0, cut.1)
        })
        .0;
        let found = records_in(&content);
        for (number, known) in known {
            let there = found.iter().find(|record| record.0 == number);
            match known {
                Known::Never => assert_eq!(there, None, "seed {seed}, {number}: it never began"),
                Known::Maybe => counts[usize::from(there.is_some())] += 1,
                Known::At(offset) => {
                    assert_eq!(there.map(|record| record.1), Some(offset), "seed {seed}");
                    counts[2] += 1;
                }
            }
        }
        if durability == Durability::EveryWrite {
            let file = after.open(&log(durability), "log").expect("it recovers");
            for (number, offset) in told {
                let mut block = Buffer::zeroed(BLOCK);
                assert_eq!(
                    file.read_at(&mut block, offset).expect("it is there"),
                    BLOCK,
                    "seed {seed}"
                );
                assert!(block.iter().all(|byte| *byte == number), "seed {seed}: {number} was told");
            }
        }
    }
    assert!(counts.iter().all(|count| *count > 100), "drops at all moments: {counts:?}");
}

#[test]
fn memory_comes_back_from_a_disk_that_fails() {
    for seed in sim::seeds(60) {
        sim::run(seed, || {
            let disk = Disk::new(seed);
            let file =
                Reactor::shared().attach(disk.open(&log(Durability::EveryWrite), "log").unwrap());
            let count = Arc::new(());
            disk.fail(if seed % 2 == 0 { Call::Write } else { Call::Flush }, seed % 3, libc::EIO);
            let mut appends: Vec<_> =
                (1..9).map(|n| file.append(Counted::of(&count, n, BLOCK))).collect();
            appends.iter_mut().for_each(|append| assert!(!poll_once(append)));
            if seed % 5 == 0 {
                appends.truncate(4);
            }
            for (append, number) in appends.into_iter().zip(1..) {
                let (_, memory) = block_on(append);
                assert!(memory.bytes.iter().all(|byte| *byte == number));
            }
            let _ = block_on(file.close());
            assert_eq!(Arc::strong_count(&count), 1);
        });
    }
}

#[test]
fn a_thread_drives_its_own_futures_beside_blocking_calls() {
    for seed in sim::seeds(60) {
        sim::run(seed, || {
            let file = Disk::new(seed).open(&log(Durability::EveryWrite), "log").unwrap();
            let other = file.try_clone().unwrap();
            let writer =
                sim::spawn(move || (0..8).for_each(|_| assert!(other.append(&[7; BLOCK]).is_ok())));
            let local = LocalReactor::new(QueueOptions::new().depth(3).io_uring(seed % 2 == 0));
            let file = local.attach(file);
            for round in 0..4 {
                let mut appends: Vec<_> = (0..5).map(|_| file.append(vec![round; BLOCK])).collect();
                assert!(appends.iter_mut().all(|append| !poll_once(append)));
                local.try_turn();
                // The append that it waits for may be in flight here.
                file.file().append(&[8; BLOCK]).unwrap();
                for append in appends {
                    local.block_on(append).0.unwrap();
                }
            }
            writer.join().unwrap();
            assert_eq!(file.len().unwrap(), 32 * BLOCK as u64);
            file.into_inner().close().unwrap();
        });
    }
}

#[test]
fn what_a_local_reactor_does_not_come_to_is_refused() {
    sim::run(3, || {
        let local = LocalReactor::new(QueueOptions::new().depth(1));
        let file = local.attach(Disk::new(3).open(&log(Durability::EveryWrite), "log").unwrap());
        let mut appends = [1, 2].map(|number| file.append(vec![number; BLOCK]));
        assert!(appends.iter_mut().all(|append| !poll_once(append)));
        local.try_turn();
        drop(local);
        let [begun, listed] = appends.map(|append| block_on(append).0);
        assert_eq!(begun, Ok(0));
        assert_eq!(listed.unwrap_err().kind(), &ErrorKind::Os(libc::ECANCELED));
    });
}
