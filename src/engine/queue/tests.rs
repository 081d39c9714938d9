//! Queues beside threads that close, truncate and fail their files, in simulated time.

use crate::api::sim::{self, Call, Disk, Settings};
use crate::engine::handle::FileHandle;
use crate::error::Operation;
use crate::{Buffer, File, Growth, OpenOptions, Queue};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

const BLOCK: usize = 4096;

fn log() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create(true).growth_cap(16 * BLOCK as u64);
    options
}

fn reap_all(queue: &Queue) -> usize {
    let mut fine = 0;
    while queue.outstanding() > 0 {
        fine += queue.reap(1).filter(|done| done.result.is_ok()).count();
    }
    fine
}

/// A wedge answers the operations that wait for a flush, also the one whose flush is in flight.
#[test]
fn a_flush_came_back_to_a_file_that_was_let_go() {
    for seed in sim::seeds(100) {
        sim::run(seed, || {
            let disk = Disk::new(seed);
            let (file, other) =
                (disk.open(&log(), "log").unwrap(), disk.open(&log(), "other").unwrap());
            let queue = Queue::new(8);
            queue.append(&file, Buffer::zeroed(BLOCK), 0).unwrap();
            assert_eq!(reap_all(&queue), 1);
            disk.fail(Call::Flush, seed % 3, libc::EIO);
            queue.sync_data(&file, 1).unwrap();
            queue.submit();
            queue.append(&file, Buffer::zeroed(BLOCK), 2).unwrap();
            queue.submit();
            let closing = sim::spawn(move || {
                let _ = other.sync_data();
                let _ = file.close();
            });
            for _ in 0..200 {
                queue.submit();
                queue.reap(0).for_each(drop);
                sim::sleep(Duration::from_micros(5 * (1 + seed % 7)));
            }
            reap_all(&queue);
            drop(queue);
            closing.join().unwrap();
        });
    }
}

/// A blocking call has entered the gate while it settles its thread's queues. An exclusive
/// operation that waits for the call may shut out their operations.
#[test]
fn a_blocking_call_waited_for_what_was_shut_out_by_who_waits_for_it() {
    sim::run(1, || {
        let file = Disk::new(1).open(&log(), "log").unwrap();
        let FileHandle::Writer { engine, .. } = file.inner() else {
            unreachable!("it was opened for writing")
        };
        let queue = Queue::new(1);
        let alone = engine.gate.shut();
        queue.append(&file, Buffer::zeroed(BLOCK), 0).unwrap();
        queue.submit();
        drop(alone);
        let counted_in = engine.begin(Operation::Append).unwrap();
        let another = engine.clone();
        let cutter = sim::spawn(move || drop(another.gate.shut()));
        sim::sleep(Duration::from_micros(1));
        super::settle_own();
        drop(counted_in);
        assert_eq!(reap_all(&queue), 1);
        cutter.join().unwrap();
    });
}

/// The defect: a thread that only submits saw no completion, and an append behind its own waited
/// for ever.
#[test]
fn a_queue_that_was_only_submitted_held_up_another_thread() {
    for seed in sim::seeds(20) {
        sim::run(seed, || {
            let file = Disk::new(seed).open(&log(), "log").unwrap();
            let queue = Queue::new(1);
            queue.append(&file, Buffer::zeroed(BLOCK), 0).unwrap();
            queue.submit();
            let (other, is_over) = (file.try_clone().unwrap(), Arc::new(AtomicBool::new(false)));
            let ends = is_over.clone();
            let behind = sim::spawn(move || {
                assert_eq!(other.append(&[1; BLOCK]), Ok(BLOCK as u64));
                ends.store(true, SeqCst);
            });
            for _ in 0..10_000 {
                if is_over.load(SeqCst) {
                    break;
                }
                queue.submit();
                sim::sleep(Duration::from_micros(10));
            }
            assert!(is_over.load(SeqCst), "seed {seed}: the other append waits");
            behind.join().unwrap();
            assert_eq!(reap_all(&queue), 1);
        });
    }
}

/// Each ring of its bell while it waited was an attempt, so it failed with EAGAIN.
#[test]
fn a_read_that_was_shut_out_failed_after_many_rings() {
    sim::run(1, || {
        let disk = Disk::new(1);
        let file = disk.open(&log(), "log").unwrap();
        file.append(&blocks(1, 1)).unwrap();
        let FileHandle::Writer { engine, .. } = file.inner() else {
            unreachable!("it was opened for writing")
        };
        let reader = disk.open(&OpenOptions::new(), "log").unwrap();
        let queue = Queue::new(1);
        let mut alone = engine.gate.shut();
        queue.read_at(&reader, Buffer::zeroed(BLOCK), 0, 0).unwrap();
        queue.submit();
        for _ in 0..200 {
            drop(alone);
            alone = engine.gate.shut();
            assert_eq!(queue.reap(0).count(), 0, "it waits");
        }
        drop(alone);
        assert_eq!(reap_all(&queue), 1);
    });
}

/// The offsets of one queue's appends follow the order in which they were queued.
#[test]
fn appends_overtook_those_that_were_shut_out() {
    for seed in sim::seeds(40) {
        sim::run(seed, || {
            let file = Arc::new(Disk::new(seed).open(&log(), "log").unwrap());
            let cutter = {
                let file = file.clone();
                sim::spawn(move || {
                    sim::sleep(Duration::from_micros(100 * seed));
                    file.set_len(0).unwrap();
                })
            };
            let queue = Queue::new(64);
            let mut offsets = [0; 32];
            let mut reap = |min| {
                queue.reap(min).for_each(|done| offsets[done.tag as usize] = done.result.unwrap());
            };
            for tag in 0..32 {
                queue.append(&file, Buffer::zeroed(BLOCK), tag).unwrap();
                reap(0);
                sim::sleep(Duration::from_micros(10 * (seed + tag)));
            }
            reap(32);
            let falls = offsets.windows(2).filter(|pair| pair[0] > pair[1]).count();
            assert!(falls <= 1, "seed {seed}, more than the cut: {offsets:?}");
            cutter.join().unwrap();
        });
    }
}

/// A disk on which no thread starts and growth syncs, with a file that does not grow, and one that
/// is about to.
fn without_threads() -> (Disk, [File; 2]) {
    let disk = Disk::with(1, Settings { commits_fast: true, ..Settings::default() });
    let file = disk.open(log().growth(Growth::None), "log").unwrap();
    file.append(&blocks(1, 1)).unwrap();
    let grows = disk.open(&log(), "grows").unwrap();
    disk.refuse_threads();
    // The next calls are in flight for long.
    disk.stall(Duration::from_millis(100));
    (disk, [file, grows])
}

/// Two queues of a thread: while one slept until it could grow a file, the other was busy. Each
/// gave the first a turn, in which it slept again.
#[test]
fn a_queue_that_waited_to_grow_a_file_used_up_the_stack() {
    sim::run(1, || {
        let (_disk, [file, grows]) = without_threads();
        let [queue, other] = [2, 1].map(Queue::new);
        queue.sync_data(&file, 0).unwrap();
        queue.submit();
        other.read_at(&file, Buffer::zeroed(BLOCK), 0, 0).unwrap();
        other.submit();
        queue.append(&grows, Buffer::zeroed(BLOCK), 1).unwrap();
        assert_eq!(reap_all(&queue), 2);
        assert_eq!(reap_all(&other), 1);
    });
}

/// The growth synced, and waited for the end of a flush that only its own thread could handle.
#[test]
fn growth_by_a_queue_waited_for_a_flush_of_another_queue_of_its_thread() {
    sim::run(1, || {
        let (_disk, [file, grows]) = without_threads();
        let [queue, other] = [1, 1].map(Queue::new);
        other.sync_data(&file, 0).unwrap();
        other.submit();
        queue.append(&grows, Buffer::zeroed(BLOCK), 0).unwrap();
        assert_eq!(reap_all(&queue), 1);
        assert_eq!(reap_all(&other), 1);
    });
}

/// The growth is then due in the work of the other queue: the thread need not use this one again.
#[test]
fn growth_that_waits_for_a_flush_of_another_queue_follows_its_end() {
    sim::run(1, || {
        let (_disk, [file, grows]) = without_threads();
        let beside = grows.try_clone().unwrap();
        let [queue, other] = [1, 1].map(Queue::new);
        other.sync_data(&file, 0).unwrap();
        other.submit();
        queue.append(&grows, Buffer::zeroed(BLOCK), 0).unwrap();
        queue.submit();
        let waits = sim::spawn(move || beside.append(&blocks(1, 1)).unwrap());
        while other.outstanding() > 0 {
            other.reap(0).for_each(drop);
            sim::sleep(Duration::from_micros(50));
        }
        assert_eq!(grows.stats().growths, 1);
        assert_eq!(reap_all(&queue), 1);
        waits.join().unwrap();
    });
}

fn blocks(first: u8, count: usize) -> Buffer {
    let mut blocks = Buffer::zeroed(count * BLOCK);
    for (block, byte) in blocks.chunks_mut(BLOCK).zip(first..) {
        block.fill(byte);
    }
    blocks
}

/// A file that this process does not write was read while the operation was queued, so reads of a
/// queue came one after the other.
#[test]
fn reads_without_a_writer_were_made_one_at_a_time() {
    sim::run(1, || {
        let disk = Disk::new(1);
        let file = disk.open(&log(), "log").unwrap();
        file.append(&blocks(1, 8)).unwrap();
        file.close().unwrap();
        let reader = disk.open(&OpenOptions::new(), "log").unwrap();
        let queue = Queue::new(9);
        for block in 0..9 {
            let offset = (block as usize * BLOCK) as u64;
            queue.read_at(&reader, Buffer::zeroed(BLOCK), offset, block).unwrap();
        }
        queue.submit();
        // No time has passed. Only the read at the end of the file needs no transfer.
        assert_eq!(queue.reap(0).map(|done| done.tag).collect::<Vec<_>>(), [8]);
        let mut read: Vec<_> = queue.reap(8).map(|done| (done.tag, done.buffer)).collect();
        read.sort_by_key(|(tag, _)| *tag);
        for (tag, buffer) in read {
            assert_eq!(buffer.unwrap()[..], blocks(1 + tag as u8, 1)[..]);
        }
    });
}

/// Reads of a thread while another one opens, appends to and closes the same file. During the
/// close, the file has whole blocks, or less than was acknowledged.
#[test]
fn a_read_beside_the_writers_of_its_process_ended_elsewhere_than_the_file() {
    const LIVES: u64 = 4;
    const APPENDS: u64 = 3;
    for seed in sim::seeds(200) {
        let growth = [Growth::None, Growth::Unwritten, Growth::Zeroed][seed as usize % 3];
        sim::run(seed, || {
            let disk = Disk::new(seed);
            disk.open(&log(), "log").unwrap().close().unwrap();
            let reader = disk.open(&OpenOptions::new(), "log").unwrap();
            let queue = Queue::new(1);
            let (begun, acked) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
            let writes = {
                let (begun, acked) = (begun.clone(), acked.clone());
                sim::spawn(move || {
                    for _ in 0..LIVES {
                        let file = disk.open(log().growth(growth), "log").unwrap();
                        for _ in 0..APPENDS {
                            begun.fetch_add(100, SeqCst);
                            file.append(&[1; 100]).unwrap();
                            acked.fetch_add(100, SeqCst);
                        }
                        file.close().unwrap();
                    }
                })
            };
            let mut into = Buffer::zeroed(2 * BLOCK);
            let mut number = 0;
            while acked.load(SeqCst) < LIVES * APPENDS * 100 || number % 3 > 0 {
                let before = acked.load(SeqCst);
                into.fill(0);
                let len = match number % 3 {
                    0 => reader.len().unwrap(),
                    1 => reader.read_at(&mut into, 0).unwrap() as u64,
                    _ => {
                        queue.read_at(&reader, into, 0, 0).unwrap();
                        let done = queue.reap(1).next().unwrap();
                        into = done.buffer.unwrap();
                        done.result.unwrap()
                    }
                };
                let is_whole = number % 3 == 0 || into[..len as usize].iter().all(|it| *it == 1);
                let may_be = before..=begun.load(SeqCst);
                assert!(
                    may_be.contains(&len) && len % 100 == 0 && is_whole,
                    "seed {seed}, {growth:?}, read {number}: {len} of {may_be:?}"
                );
                number += 1;
                sim::sleep(Duration::from_micros(1 + seed % 7));
            }
            writes.join().unwrap();
        });
    }
}

/// The engine of a writer that came later does not know of such a read.
#[test]
fn a_read_without_a_writer_is_repeated_after_a_truncate() {
    for seed in sim::seeds(40) {
        let new = blocks(11, 2 + seed as usize % 8);
        sim::run(seed, || {
            let disk = Disk::new(seed);
            let file = disk.open(&log(), "log").unwrap();
            file.append(&blocks(1, 8)).unwrap();
            file.close().unwrap();
            let reader = disk.open(&OpenOptions::new(), "log").unwrap();
            let queue = Queue::new(1);
            queue.read_at(&reader, Buffer::zeroed(10 * BLOCK), 0, 0).unwrap();
            queue.submit();
            let appended = new.clone();
            // A blocking call of this thread would end the read first.
            let rewrites = sim::spawn(move || {
                let writer = disk.open(&log(), "log").unwrap();
                writer.set_len(0).unwrap();
                writer.append(&appended).unwrap();
                writer
            });
            let _writer = rewrites.join().unwrap();
            let done = queue.reap(1).next().unwrap();
            let (read, buffer) = (done.result.unwrap() as usize, done.buffer.unwrap());
            assert!(buffer[..read] == new[..], "seed {seed}");
        });
    }
}
