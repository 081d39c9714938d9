//! Writes of parts of blocks: who waits for whom, and the end of the file.

use super::*;
use crate::engine::core::{Dio, Outcome, Request};
use crate::rules::recovery::Verdict;
use std::collections::BTreeMap;

const SECTOR: u64 = 512;

/// A core, its outbox, and the requests in flight by their owners.
struct Bench {
    core: Core<u32>,
    out: Outbox<u32>,
    data: Buffer,
    in_flight: BTreeMap<u32, Request<u32>>,
}

impl Bench {
    fn of(len: u64, prepared: Option<Prepared>) -> Self {
        let core = Core::new(len, props(prepared), Planner::new(GROWTH_CONFIG), None);
        let (out, in_flight) = (Outbox::default(), BTreeMap::new());
        Self { core, out, data: record(1, 4), in_flight }
    }

    fn write(&mut self, token: u32, offset: u64, len: usize) {
        self.core.write(token, Segment::of(&self.data[..len]), offset, false, &mut self.out);
        self.settle();
    }

    fn append(&mut self, token: u32, len: usize) {
        self.core.append(token, Segment::of(&self.data[..len]), false, &mut self.out);
        self.settle();
    }

    /// Wakes the leaders, runs the grower, and begins the requests.
    fn settle(&mut self) {
        loop {
            for (_, call) in std::mem::take(&mut self.out.calls) {
                self.core.on_called(call, &mut self.out);
            }
            if std::mem::take(&mut self.out.start_grower) {
                run_grower(&mut self.core, &mut self.out);
            }
            if self.out.calls.is_empty() && !self.out.start_grower {
                break;
            }
        }
        for request in std::mem::take(&mut self.out.requests) {
            self.in_flight.insert(request.owner, request);
        }
    }

    /// Completes the request of an operation, and returns the outcomes.
    fn complete(&mut self, token: u32) -> Vec<(u32, Outcome)> {
        self.end(token, Ok(()))
    }

    fn fail(&mut self, token: u32) -> Vec<(u32, Outcome)> {
        let kind = ErrorKind::NoSpace(libc::ENOSPC);
        let cause = Error::new(Operation::Write, &Path::new("log").into(), None, kind.clone());
        self.end(token, Err(Failure { kind, cause: Arc::new(cause), wedges: false }))
    }

    fn end(&mut self, token: u32, result: std::result::Result<(), Failure>) -> Vec<(u32, Outcome)> {
        let request = self.in_flight.remove(&token).expect("it is in flight");
        self.core.on_completed(request.id, result, &mut self.out);
        self.settle();
        std::mem::take(&mut self.out.outcomes).into_vec()
    }

    fn in_flight(&self) -> Vec<u32> {
        self.in_flight.keys().copied().collect()
    }
}

/// Two threads write the first bytes of a unit again and again. The core let the lowest offset go
/// first, so the third thread waited for ever.
#[test]
fn writers_of_one_unit_take_turns() {
    let mut bench = Bench::of(4 * BLOCK_BYTES, None);
    bench.write(1, 0, 10);
    bench.write(2, 0, 10);
    bench.write(3, 20, 10);
    for turn in 0.. {
        let owner = bench.in_flight()[0];
        assert_eq!(bench.in_flight().len(), 1, "one write of the unit at a time");
        bench.complete(owner);
        if owner == 3 {
            break;
        }
        assert!(turn < 4, "it waits for ever");
        bench.write(owner, 0, 10);
    }
}

/// A wide write waits for two of its units. Another one must not take the unit between meanwhile.
#[test]
fn no_write_overtakes_an_older_one_of_its_unit() {
    let mut bench = Bench::of(4 * BLOCK_BYTES, None);
    bench.write(1, 0, 10);
    bench.write(2, 2 * SECTOR, 10);
    bench.write(3, 100, 2 * SECTOR as usize);
    bench.write(4, SECTOR + 100, 10);
    assert_eq!(bench.in_flight(), [1, 2]);
    bench.complete(1);
    assert_eq!(bench.in_flight(), [2]);
    bench.complete(2);
    assert_eq!(bench.in_flight(), [3]);
    bench.complete(3);
    assert_eq!(bench.in_flight(), [4]);
}

/// Two threads write a block below the last one again and again. A third thread extends the file
/// from there. It waited for ever, and all appends behind it.
#[test]
fn a_write_past_the_end_that_begins_below_the_last_block_gets_its_turn() {
    for prepared in [None, Some(Prepared::Unwritten)] {
        let mut bench = Bench::of(2 * BLOCK_BYTES, prepared);
        bench.write(1, BLOCK_BYTES + 1500, 10);
        bench.write(2, BLOCK_BYTES + 1500, 10);
        bench.write(3, BLOCK_BYTES + 1000, BLOCK_BYTES as usize);
        bench.append(4, 10);
        let mut answered = Vec::new();
        for turn in 0..12 {
            let owner = bench.in_flight()[turn % bench.in_flight().len()];
            for (token, outcome) in bench.complete(owner) {
                outcome.unwrap();
                answered.push(token);
                if token < 3 {
                    bench.write(token, BLOCK_BYTES + 1500, 10);
                }
            }
        }
        assert!(answered.contains(&3) && answered.contains(&4), "{prepared:?}: {answered:?}");
        assert!(answered.iter().filter(|token| **token < 3).count() > 4, "{answered:?}");
    }
}

/// The failed write truncates the file to its end. A write of the last unit beside it extended the
/// file again, and zeros stayed behind the end after a close.
#[test]
fn the_last_unit_is_not_written_beside_a_write_that_moves_the_size() {
    let mut bench = Bench::of(1000, None);
    bench.write(1, 900, 50);
    bench.write(2, 8192, 100);
    assert_eq!(bench.in_flight(), [1], "it may have to be undone");
    bench.complete(1);
    assert_eq!(bench.in_flight(), [2]);
    bench.write(3, 900, 50);
    assert_eq!(bench.in_flight(), [2]);
    assert!(bench.fail(2)[0].1.is_err());
    assert_eq!(bench.in_flight(), [3]);
    bench.complete(3);
    assert_eq!(bench.core.sizes().physical, 2 * SECTOR);
}

/// The leader of overwrites of the last unit awakes while a write past the end is in flight.
#[test]
fn a_cohort_waits_for_a_write_that_moves_the_size() {
    let mut bench = Bench::of(1000, None);
    let data = record(1, 1);
    let write = |offset, len: usize| Dio::Write(Segment::of(&data[..len]), offset);
    bench.core.submit([(1, write(0, 512), false), (2, write(512, 88), false)], &mut bench.out);
    bench.settle();
    assert_eq!(bench.complete(1).len(), 2, "answered together");
    bench.core.take(3, write(900, 50), true, &mut bench.out);
    let calls = std::mem::take(&mut bench.out.calls);
    assert_eq!(calls.len(), 1, "it waits for its cohort");
    bench.write(4, 8192, 100);
    assert_eq!(bench.in_flight(), [4]);
    for (_, call) in calls {
        bench.core.on_called(call, &mut bench.out);
    }
    bench.settle();
    assert_eq!(bench.in_flight(), [4]);
    assert!(bench.fail(4)[0].1.is_err());
    assert_eq!(bench.in_flight(), [3]);
}

/// An overwrite waited behind a write past the end, which then failed for good.
#[test]
fn an_overwrite_behind_a_failed_write_is_written() {
    let mut bench = Bench::of(2 * BLOCK_BYTES, Some(Prepared::Unwritten));
    bench.append(1, 10);
    bench.write(2, BLOCK_BYTES, 10);
    bench.write(3, BLOCK_BYTES + 5, BLOCK_BYTES as usize + 100);
    bench.write(4, BLOCK_BYTES, 10);
    assert_eq!(bench.in_flight(), [1, 2]);
    let kind = ErrorKind::Os(libc::EIO);
    let cause = Error::new(Operation::Write, &Path::new("log").into(), None, kind.clone());
    let failure = Failure { kind, cause: Arc::new(cause), wedges: false };
    let outcomes = bench.end(1, Err(failure));
    assert!(outcomes.iter().all(|(token, outcome)| *token != 4 && outcome.is_err()));
    bench.complete(2);
    assert_eq!(bench.in_flight(), [4]);
    assert_eq!(bench.complete(4), [(4, Ok(BLOCK_BYTES))]);
}

/// A file of 1000 bytes.
fn short_file(prepared: Option<Prepared>) -> SimFile {
    let disk = Disk::new(DISK_BYTES);
    disk.0.write(&[Segment::of(&[1; 1000])], 0, true).unwrap();
    open_on(disk, prepared, FileSystems::default()).unwrap()
}

fn bytes_of(disk: &Disk) -> Vec<u8> {
    let mut bytes = vec![7; disk.0.physical_size().unwrap() as usize];
    disk.0.device.peek(disk.0.inode, &mut bytes, 0);
    bytes
}

/// The write padded the file without a marker. After a crash the file was clean, with zeros behind
/// its end.
#[test]
fn a_write_of_the_last_bytes_of_a_file_that_grows_is_announced() {
    for prepared in [Prepared::Unwritten, Prepared::Zeroed] {
        let file = short_file(Some(prepared));
        file.write_at(&[2; 10], 985, true).unwrap();
        assert!(file.backend.is_marked());
        let disk = file.backend.crash(|_| true);
        let (found, _) = recover_by(&disk.0, SELF, Recover::Inspect).unwrap();
        assert_ne!(found.verdict, Verdict::Clean, "{prepared:?}: {found:?}");
        file.finish().unwrap();
        let expected = [&[1; 985][..], &[2; 10], &[1; 5]].concat();
        assert_eq!(bytes_of(&file.backend), expected, "{prepared:?}");
    }
}

/// The zeros behind the end replaced what another program had appended.
#[test]
fn a_write_of_the_last_bytes_leaves_what_another_program_appended() {
    for fails in [false, true] {
        let file = short_file(None);
        file.backend.0.write(&[Segment::of(&[9; 100])], 1000, true).unwrap();
        if fails {
            file.backend.fail(Call::Write, 0, libc::EIO);
        }
        let error = file.write_at(&[2; 10], 990, true).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::ModifiedExternally(_)), "{error}");
        assert_eq!(bytes_of(&file.backend), [&[1; 1000][..], &[9; 100]].concat());
    }
}

#[test]
fn a_failed_write_of_the_last_bytes_leaves_the_size() {
    let file = short_file(None);
    file.backend.fail(Call::Write, 0, libc::EIO);
    file.write_at(&[2; 10], 985, false).unwrap_err();
    assert_eq!(file.backend.0.physical_size().unwrap(), 1000);
    file.write_at(&[3; 10], 985, false).unwrap();
    file.finish().unwrap();
    assert_eq!(bytes_of(&file.backend), [&[1; 985][..], &[3; 10], &[1; 5]].concat());
}

/// They waited for all operations, and from then on every write took the lock of the file.
#[test]
fn a_refused_write_of_a_part_prepares_nothing() {
    let file = short_file(None);
    file.write_at(&[], 5, true).unwrap();
    file.write_at(&[1; 5], u64::MAX - 3, true).unwrap_err();
    file.write_at(&[1; 5], i64::MAX as u64 - 3, true).unwrap_err();
    assert!(file.must_prepare(1, 0));
    file.write_at(&[1; 5], 3, true).unwrap();
    assert!(!file.must_prepare(1, 0));
}
