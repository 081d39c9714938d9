//! Positional writes past the end that arrive out of order, as from many threads that share one
//! counter.

use super::*;
use crate::engine::core::{Dio, Outcome, Request, Work};
use crate::rules::merge::Refusals;

const BLOCKS: u64 = 16;

/// A core, and its outbox.
struct Bench {
    core: Core<u32>,
    out: Outbox<u32>,
    data: Buffer,
}

impl Bench {
    /// An empty file with a write of its first block in flight. It has space for more if it grows
    /// ahead.
    fn new(prepared: Option<Prepared>) -> Self {
        let core = Core::new(0, props(prepared), Planner::new(GROWTH_CONFIG), None);
        let mut bench = Self { core, out: Outbox::default(), data: record(1, BLOCKS) };
        bench.write(0, 0, 1);
        run_grower(&mut bench.core, &mut bench.out);
        bench.wake();
        bench
    }

    /// Writes this many blocks.
    fn write(&mut self, token: u32, block: u64, blocks: u64) {
        let segment = Segment::of(&self.data[..(blocks * BLOCK_BYTES) as usize]);
        self.core.write(token, segment, block * BLOCK_BYTES, false, &mut self.out);
    }

    /// Wakes all leaders.
    fn wake(&mut self) {
        for (_, call) in std::mem::take(&mut self.out.calls) {
            self.core.on_called(call, &mut self.out);
        }
    }

    fn complete(&mut self, request: Request<u32>, result: std::result::Result<(), ErrorKind>) {
        let result = result.map_err(|kind| {
            let cause = Error::new(Operation::Write, &Path::new("log").into(), None, kind.clone());
            Failure { kind, cause: Arc::new(cause), wedges: false }
        });
        self.core.on_completed(request.id, result, &mut self.out);
        self.wake();
    }

    /// The requests to perform, each with its first block and its length in blocks.
    fn requests(&mut self) -> Vec<(Request<u32>, (u64, u64))> {
        let with_place = |request: Request<u32>| match request.work {
            Work::Write { offset, .. } => {
                let place = (offset / BLOCK_BYTES, request.work.len() / BLOCK_BYTES);
                (request, place)
            }
            Work::Flush => panic!("nobody asked for a flush"),
        };
        std::mem::take(&mut self.out.requests).into_iter().map(with_place).collect()
    }

    /// The only request to perform.
    fn request(&mut self, place: (u64, u64)) -> Request<u32> {
        let mut requests = self.requests();
        assert_eq!(requests.len(), 1, "{requests:?}");
        let (request, at) = requests.remove(0);
        assert_eq!(at, place);
        request
    }

    fn outcomes(&mut self) -> Vec<(u32, Outcome)> {
        std::mem::take(&mut self.out.outcomes).into_vec()
    }

    fn acknowledged(&mut self) -> Vec<u32> {
        let each =
            |(token, outcome): (u32, Outcome)| outcome.map(|_| token).expect("nothing fails");
        self.outcomes().into_iter().map(each).collect()
    }
}

#[test]
fn those_that_wait_go_out_by_their_offsets() {
    let mut bench = Bench::new(None);
    let first = bench.request((0, 1));
    for (token, block) in [(3, 3), (1, 1), (4, 4), (2, 2)] {
        bench.write(token, block, 1);
    }
    bench.complete(first, Ok(()));
    let all = bench.request((1, 4));
    assert_eq!(bench.core.refusals(), Refusals::default());
    bench.complete(all, Ok(()));
    assert_eq!(bench.acknowledged(), [0, 1, 2, 3, 4]);
}

#[test]
fn what_lies_beyond_a_gap_goes_along() {
    let mut bench = Bench::new(Some(Prepared::Unwritten));
    let first = bench.request((0, 1));
    let segment = Segment::of(&bench.data[..BLOCK_BYTES as usize]);
    let cohort = (1..6).map(|n| (n, Dio::Write(segment, u64::from(n) * BLOCK_BYTES), false));
    bench.core.submit(cohort, &mut bench.out);
    bench.complete(first, Ok(()));
    let cohort = bench.request((1, 5));
    bench.complete(cohort, Ok(()));
    for (token, block) in [(6, 10), (7, 6), (8, 7), (9, 13), (10, 11)] {
        bench.write(token, block, 1);
    }
    assert!(bench.requests().is_empty(), "they wait for each other");
    bench.wake();
    let together: Vec<_> = bench.requests().into_iter().map(|(_, at)| at).collect();
    assert_eq!(together, [(6, 2), (10, 2), (13, 1)]);
    assert_eq!(bench.core.refusals(), Refusals { gap: 2, ..Refusals::default() });
}

#[test]
fn a_late_operation_holds_up_no_other() {
    let mut bench = Bench::new(Some(Prepared::Unwritten));
    bench.write(2, 2, 1);
    let [(first, _), (beyond, at)] = bench.requests().try_into().expect("a few go side by side");
    assert_eq!(at, (2, 1));
    bench.write(1, 1, 1);
    bench.write(3, 3, 1);
    let last = bench.request((3, 1));
    bench.complete(first, Ok(()));
    assert_eq!(bench.acknowledged(), [0]);
    bench.complete(beyond, Ok(()));
    assert_eq!(bench.acknowledged(), [2], "the hole is meant until it is filled");
    let late = bench.request((1, 1));
    bench.complete(last, Ok(()));
    bench.complete(late, Ok(()));
    assert_eq!(bench.acknowledged(), [3, 1]);
    assert_eq!(bench.core.refusals(), Refusals { order: 1, ..Refusals::default() });
}

#[test]
fn who_comes_too_late_fails_with_what_is_below() {
    let mut bench = Bench::new(Some(Prepared::Unwritten));
    bench.write(2, 2, 1);
    let [(first, _), (beyond, _)] = bench.requests().try_into().expect("a few go side by side");
    bench.write(1, 1, 1);
    assert!(bench.requests().is_empty());
    bench.complete(first, Err(ErrorKind::Os(libc::EIO)));
    let failed: Vec<_> =
        bench.outcomes().into_iter().map(|(token, outcome)| (token, outcome.is_err())).collect();
    assert_eq!(failed, [(0, true), (1, true)]);
    bench.complete(beyond, Ok(()));
    assert!(bench.outcomes()[0].1.is_err() && bench.requests().is_empty());
}

#[test]
fn who_comes_too_late_extends_the_file_if_that_was_taken_back() {
    let mut bench = Bench::new(None);
    let first = bench.request((0, 1));
    bench.write(2, 4, 4);
    bench.complete(first, Ok(()));
    let beyond = bench.request((4, 4));
    bench.write(1, 2, 1);
    bench.complete(beyond, Err(ErrorKind::NoSpace(libc::ENOSPC)));
    let late = bench.request((2, 1));
    bench.complete(late, Ok(()));
    assert_eq!(bench.core.sizes().written, 3 * BLOCK_BYTES);
    let outcomes: Vec<_> =
        bench.outcomes().into_iter().map(|(token, outcome)| (token, outcome.is_ok())).collect();
    assert_eq!(outcomes, [(0, true), (2, false), (1, true)]);
}
