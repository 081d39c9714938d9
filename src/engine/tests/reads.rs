//! Reads of any range into any memory, by every kind of handle.

use crate::api::sim::{self, Call, Disk, Settings};
use crate::{Buffer, ErrorKind, File, OpenOptions, Queue, QueueOptions};
use proptest::prelude::*;

/// Fills memory before a read, and is in no file.
const UNTOUCHED: u8 = 0xEE;

/// Bytes that identify their offsets, and are never zero.
fn content(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 199 + at / 4096 % 7) as u8 + 1).collect()
}

/// Reads by a queue, or by a call.
fn read(queue: Option<&Queue>, file: &File, into: &mut [u8], offset: u64) -> crate::Result<usize> {
    let Some(queue) = queue else { return file.read_at(into, offset) };
    queue.read_at(file, Buffer::from(&*into), offset, 1).expect("there is room");
    let done = queue.reap(1).next().expect("it was waited for");
    into.copy_from_slice(&done.buffer.expect("it comes back"));
    done.result.map(|read| read as usize)
}

/// Checks the result of a read: all of the range below the end, and no byte above it.
fn check(queue: Option<&Queue>, file: &File, content: &[u8], into: &mut [u8], offset: usize) {
    into.fill(UNTOUCHED);
    let there = &content[offset.min(content.len())..];
    let there = &there[..there.len().min(into.len())];
    let read = read(queue, file, into, offset as u64).expect("nothing fails");
    let at = || format!("{} bytes at {offset} of {}", into.len(), content.len());
    assert!(read == there.len() && into[..read] == *there, "{}: {read}", at());
    assert!(
        into[read..].iter().all(|byte| [0, UNTOUCHED].contains(byte)),
        "{}: above the end",
        at()
    );
}

/// Two files of this content. One has a writing handle, and more data on disk, as during a rewrite
/// of the last block. The other has a handle beside other processes.
fn with_files(seed: u64, content: &[u8], test: impl FnOnce(&Disk, [&File; 2])) {
    sim::run(seed, || {
        let settings = Settings { short_one_in: 3, interrupted_one_in: 7, ..Settings::default() };
        let disk = Disk::with(seed, settings);
        disk.put("log", content);
        disk.put("other", content);
        let file = disk.open(OpenOptions::new().write(true), "log").unwrap();
        disk.put("log", &[content, &[0x77; 9000]].concat());
        let reader = disk.open(&OpenOptions::new(), "other").unwrap();
        test(&disk, [&file, &reader]);
    });
}

fn queues() -> [Option<Queue>; 3] {
    let queue = |io_uring| Some(QueueOptions::new().depth(1).io_uring(io_uring).open());
    [None, queue(false), queue(true)]
}

#[test]
fn every_border_of_a_block_and_the_end() {
    for len in [0, 1, 511, 512, 4096, 5000, 8191, 8192] {
        let content = content(len);
        with_files(len as u64, &content, |_, files| {
            let mut memory = Buffer::zeroed(3 * 4096);
            let near = [0, 1, 511, 512, 513, 4095, 4096, 4097, 8192, 9000];
            for (queue, offset) in
                queues().iter().flat_map(|queue| near.map(|offset| (queue, offset)))
            {
                for (room, skip) in
                    near.iter().flat_map(|room| [(*room, 0), (*room, 1), (*room, 512)])
                {
                    let into = &mut memory[skip..][..room];
                    files
                        .iter()
                        .for_each(|file| check(queue.as_ref(), file, &content, into, offset));
                }
            }
        });
    }
}

#[test]
fn an_offset_that_no_file_has_is_above_the_end() {
    with_files(1, &content(100), |_, files| {
        for (queue, offset) in
            queues().iter().flat_map(|queue| [i64::MAX as u64, u64::MAX].map(|at| (queue, at)))
        {
            for file in files {
                assert_eq!(read(queue.as_ref(), file, &mut [UNTOUCHED; 1000], offset), Ok(0));
            }
        }
    });
}

/// Each of its pieces fails in turn.
#[test]
fn a_read_that_fails_in_part_is_an_error() {
    let content = content((5 << 20) + 77);
    for way in 0..3 {
        sim::run(1, || {
            let disk = Disk::new(1);
            disk.put("log", &content);
            let file = disk.open(OpenOptions::new().write(true), "log").unwrap();
            let queue = &queues()[way];
            let mut memory = Buffer::zeroed(content.len() + 1);
            // Direct except for the ends, or by bounces alone, as into the buffer of a queue, which
            // is aligned at its start.
            let straight = if queue.is_some() { 6 } else { 3 };
            for (skip, pieces) in [(100, straight), (1, 6)] {
                let into = &mut memory[skip..][..content.len() - 100];
                for nth in 0..pieces {
                    disk.fail(Call::Read, nth, libc::EIO);
                    let failed = read(queue.as_ref(), &file, into, 100).unwrap_err();
                    assert_eq!(
                        (failed.kind(), failed.offset()),
                        (&ErrorKind::Os(libc::EIO), Some(100))
                    );
                }
                disk.fail(Call::Read, pieces, libc::EIO);
                check(queue.as_ref(), &file, &content, into, 100);
                disk.heal();
            }
        });
    }
}

/// Another program truncates it. No promise covers that, but no read invents bytes.
#[test]
fn a_file_that_is_truncated_behind_our_back_has_no_bytes_there() {
    let content = content(9000);
    with_files(2, &content, |disk, [file, _]| {
        disk.put("log", &content[..5000]);
        for queue in &queues() {
            let mut memory = Buffer::zeroed(4 * 4096);
            for (skip, room, offset) in
                [(0, 8192, 0), (0, 100, 4950), (1, 8000, 1000), (0, 90, 6000), (0, 512, 8192)]
            {
                let result = read(queue.as_ref(), file, &mut memory[skip..][..room], offset);
                assert_eq!(
                    result.map_err(|error| error.errno()),
                    Err(libc::EIO),
                    "{room} bytes at {offset}"
                );
            }
            check(queue.as_ref(), file, &content[..5000], &mut memory[..4000], 1000);
        }
    });
}

/// Our memory stays allocated until the kernel has filled it.
#[test]
fn a_queue_that_is_dropped_has_read_what_it_began() {
    let content = content(3 << 20);
    with_files(3, &content, |_, [file, _]| {
        for pieces in 0..4 {
            let queue = Queue::new(4);
            queue.read_at(file, Buffer::zeroed(content.len() - 5000), 4000, 1).unwrap();
            queue.read_at(file, Buffer::zeroed(90), 4090, 2).unwrap();
            queue.submit();
            (0..pieces).for_each(|_| queue.reap(0).for_each(drop));
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_range_into_any_memory(
        seed in any::<u64>(),
        len in prop_oneof![0usize..20_000, 0usize..3 << 20],
        ranges in proptest::collection::vec(
            (
                0usize..3 << 20,
                prop_oneof![0usize..10_000, 0usize..2 << 20],
                0usize..1024,
                0usize..3,
            ),
            1..8,
        ),
    ) {
        let content = content(len);
        with_files(seed, &content, |_, files| {
            let queues = queues();
            let mut memory = Buffer::zeroed((2 << 20) + 1024);
            for (at, room, skip, way) in ranges {
                // Mostly below the end.
                let offset = at % (len + 5000);
                let into = &mut memory[skip..][..room];
                files
                    .iter()
                    .for_each(|file| check(queues[way].as_ref(), file, &content, into, offset));
            }
        });
    }
}
