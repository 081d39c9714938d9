//! The core against a model: random operations, completions in any order, failures, growth that stalls or finds
//! no space; after every step the rules at the top of `core` are checked on a disk of 16-byte blocks.

use super::core::{Call, Core, Dio, Failure, Ground, GrowthJob, Outbox, Outcome, Request, Work};
use crate::buffer::Segment;
use crate::error::{Error, ErrorKind, Operation};
use crate::flush::Means;
use crate::growth::{Plan, Planner, Room, Wishes};
use crate::marker::{Identity, Mode, Prepared};
use crate::merge::Limits;
use crate::options::Tail;
use std::collections::HashSet;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

const BLOCK: u64 = 16;
const IDENTITY: Identity = Identity { inode: 1, born: (1, 1) };
const LIMITS: Limits = Limits { bytes_max: 6 * BLOCK, segments_max: 4 };

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Append,
    WriteAt(u64),
    Sync,
}

/// One operation. Its bytes carry its number, so that a request tells whose memory it holds.
#[derive(Debug)]
struct Op {
    kind: Kind,
    durable: bool,
    bytes: Vec<u8>,
    /// Where the core placed it.
    offset: Option<u64>,
    /// When it was written, by the clock of the disk.
    written: Option<u64>,
    answered: Option<Outcome>,
    /// For a sync: what was acknowledged before it.
    covers: Vec<usize>,
}

/// When each block was last written, 0 for never: as a reader sees it, and as a crash would leave it.
#[derive(Default)]
struct Disk {
    clock: u64,
    live: Vec<u64>,
    stable: Vec<u64>,
}

enum Grower {
    Idle,
    Asking,
    Working(GrowthJob),
}

struct InFlight {
    request: Request<usize>,
    ops: Vec<usize>,
    /// The bytes that it writes.
    range: Range<u64>,
    /// For a flush: the blocks as they were when it began.
    seen: Vec<u64>,
}

struct Model {
    seed: u64,
    random: Random,
    core: Core<usize>,
    grows: bool,
    harsh: bool,
    ops: Vec<Op>,
    in_flight: Vec<InFlight>,
    /// Whose owners are not awake yet.
    calls: Vec<(usize, Call)>,
    grower: Grower,
    disk: Disk,
    /// The end of all that was sent out to extend the file; blocks below it that nobody was to write.
    end: u64,
    holes: HashSet<u64>,
    wedged: bool,
    capacity: u64,
    /// The end of what the file held before it was recycled.
    old_to: u64,
    last_append: usize,
}

#[test]
fn the_core_keeps_its_rules_whatever_the_order() {
    let seeds = std::env::var("DIOXIDE_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(3000);
    let only = std::env::var("DIOXIDE_SEED").ok().and_then(|n| n.parse().ok());
    for seed in only.map_or(0..seeds, |seed| seed..seed + 1) {
        Model::new(seed).run();
    }
}

impl Model {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let grows = !random.one_in(4);
        let prepared = grows.then_some(Prepared::Unwritten);
        let ground = Ground {
            tail: Tail::Rewrite,
            identity: IDENTITY,
            limits: LIMITS,
            append_unit: BLOCK,
            is_device: false,
            writes_through: false,
            overwrites_in_place: true,
            prepared,
            epoch: 0,
        };
        let wishes = Wishes {
            cap_bytes: BLOCK << random.below(6),
            capacity_bytes: random.one_in(3).then(|| random.below(40) * BLOCK),
            unit_bytes: BLOCK,
            low_water_quarters: 2 + random.below(2),
        };
        let start = random.below(4) * BLOCK;
        let mut disk = Disk::default();
        disk.write(0, start, 1, true);
        disk.clock = 1;
        Self {
            seed,
            core: Core::new(start, ground, Planner::new(wishes), None),
            grows,
            harsh: random.one_in(3),
            ops: Vec::new(),
            in_flight: Vec::new(),
            calls: Vec::new(),
            grower: Grower::Idle,
            disk,
            end: start,
            holes: HashSet::new(),
            wedged: false,
            capacity: if random.one_in(3) { (20 + random.below(60)) * BLOCK } else { 1 << 40 },
            old_to: 0,
            last_append: 0,
            random,
        }
    }

    fn run(&mut self) {
        for _ in 0..1 + self.random.below(3) {
            for _ in 0..self.random.below(60) {
                match self.random.below(6) {
                    0 | 1 => self.submit(),
                    2 => self.growth_step(),
                    3 => self.wake_one(),
                    _ => self.complete_one(),
                }
            }
            while !self.in_flight.is_empty() || !self.calls.is_empty() || !matches!(self.grower, Grower::Idle)
            {
                match self.random.below(3) {
                    0 => self.growth_step(),
                    1 => self.wake_one(),
                    _ => self.complete_one(),
                }
            }
            let stuck = self.ops.iter().position(|op| op.answered.is_none());
            assert_eq!(stuck, None, "seed {}: never answered: {:?}\n{:#?}", self.seed, stuck, self.core);
            assert!(self.core.pause_growth());
            if !self.wedged {
                if self.grows && self.random.one_in(2) { self.recycle() } else { self.cut() }
            }
            self.core.resume_growth();
        }
    }

    // --- what happens ---------------------------------------------------------------------------------

    fn step(&mut self, change: impl FnOnce(&mut Core<usize>, &mut Outbox<usize>)) {
        let mut out = Outbox::default();
        change(&mut self.core, &mut out);
        for request in out.requests {
            self.send(request);
        }
        for (op, call) in out.calls {
            let seed = self.seed;
            assert!(self.ops[op].answered.is_none(), "seed {seed}: {op} left before it was called");
            let again = self.calls.iter().any(|(_, other)| *other == call);
            assert!(!again, "seed {seed}: called twice: {call:?}");
            self.calls.push((op, call));
        }
        for (op, outcome) in out.outcomes {
            let called = self.calls.iter().any(|(owner, _)| *owner == op);
            assert!(!called, "seed {}: {op} is answered while it is called", self.seed);
            self.answer(op, outcome);
        }
        if out.start_grower {
            assert!(matches!(self.grower, Grower::Idle), "seed {}: a second grower", self.seed);
            self.grower = Grower::Asking;
        }
        let sizes = self.core.sizes();
        assert!(sizes.durable <= sizes.written && sizes.written <= sizes.reserved);
        assert!(sizes.reserved <= sizes.physical);
    }

    /// One operation of a thread, or some that a queue submits together.
    fn submit(&mut self) {
        if self.random.one_in(2) {
            let (number, dio, durable) = self.begin();
            self.step(|core, out| core.take(number, dio, durable, out));
        } else {
            let batch: Vec<_> = (0..1 + self.random.below(6)).map(|_| self.begin()).collect();
            self.step(|core, out| core.submit(batch, out));
        }
    }

    fn begin(&mut self) -> (usize, Dio, bool) {
        let number = self.ops.len();
        let blocks = 1 + self.random.below(if self.random.0 & 64 == 0 { 9 } else { 3 });
        let near = (self.end / BLOCK).saturating_sub(4);
        let kind = match self.random.below(10) {
            0 => Kind::Sync,
            1..=4 => Kind::WriteAt((near + self.random.below(8)) * BLOCK),
            _ => Kind::Append,
        };
        let len = if kind == Kind::Sync { 0 } else { blocks * BLOCK };
        let bytes: Vec<u8> = (number as u64).to_le_bytes().into_iter().cycle().take(len as usize).collect();
        let mut durable = self.random.one_in(2);
        if let Kind::WriteAt(offset) = kind {
            // The engine keeps the others to itself.
            durable |= offset + len <= self.core.sizes().written;
        }
        let segment = Segment::of(&bytes);
        let covers = self.ops.iter().enumerate().filter(|(_, op)| matches!(op.answered, Some(Ok(_))));
        let covers = covers.map(|(n, _)| n).collect();
        self.ops.push(Op { kind, durable, bytes, offset: None, written: None, answered: None, covers });
        let dio = match kind {
            Kind::Append => Dio::Append(segment),
            Kind::WriteAt(offset) => Dio::Write(segment, offset),
            Kind::Sync => Dio::Sync,
        };
        (number, dio, durable)
    }

    /// The core wants a request performed.
    fn send(&mut self, request: Request<usize>) {
        let seed = self.seed;
        assert!(
            self.ops[request.owner].answered.is_none(),
            "seed {seed}: given to one who left: {request:?}"
        );
        assert!(!self.wedged, "seed {seed}: after a failed flush: {request:?}");
        let (mut ops, mut range) = (Vec::new(), 0..0);
        if let Work::Write { segments, offset, extends, .. } = &request.work {
            let mut place = *offset;
            for segment in segments {
                let mut bytes = Vec::new();
                segment.show(|part| bytes.extend_from_slice(part));
                let number = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
                self.place(number, place);
                place += segment.len();
                ops.push(number);
            }
            assert_eq!(extends.is_some(), !self.grows && place > self.end, "seed {seed}");
            let this = *offset..place;
            let inside = |range: &Range<u64>| range.end <= self.core.sizes().written;
            let mut others = self.in_flight.iter().map(|other| &other.range).filter(|range| inside(range));
            let crossed = others.any(|other| other.start < this.end && this.start < other.end);
            assert!(!inside(&this) || !crossed, "seed {seed}: {this:?} overwritten twice at a time");
            let gap_over_old = self.end < self.old_to && *offset > self.end;
            assert!(!gap_over_old, "seed {seed}: {this:?} jumps over old content");
            self.holes.extend((self.end..*offset).step_by(BLOCK as usize));
            self.end = self.end.max(place);
            range = this;
            assert!(place <= self.core.sizes().physical, "seed {seed}: above the space there is");
        }
        assert!(ops.is_empty() || ops.contains(&request.owner), "seed {seed}: {request:?}");
        self.in_flight.push(InFlight { request, ops, range, seen: self.disk.live.clone() });
    }

    /// An operation goes out at `offset`.
    fn place(&mut self, number: usize, offset: u64) {
        let (seed, end) = (self.seed, self.end);
        let op = &mut self.ops[number];
        match op.kind {
            Kind::Append => {
                assert!(number >= self.last_append, "seed {seed}: {number} overtaken");
                self.last_append = number;
                // Those before it in the same request end where it begins.
                assert!(offset >= end && op.offset.is_none(), "seed {seed}: {number} at {offset}, not {end}");
            }
            Kind::WriteAt(wanted) => {
                assert_eq!(offset, wanted, "seed {seed}");
                let marker = self.core.marker();
                let told = marker.is_none_or(|marker| marker.mode == Mode::Positional);
                let beyond = offset + op.bytes.len() as u64 > end;
                assert!(told || !beyond, "seed {seed}: {number} before the marker says so");
            }
            Kind::Sync => unreachable!("a sync writes nothing"),
        }
        op.offset = Some(offset);
    }

    /// Somebody who was called is awake.
    fn wake_one(&mut self) {
        if self.calls.is_empty() {
            return;
        }
        let (_, call) = self.calls.swap_remove(self.random.below(self.calls.len() as u64) as usize);
        self.step(|core, out| core.called(call, out));
    }

    fn complete_one(&mut self) {
        if self.in_flight.is_empty() {
            return;
        }
        let InFlight { request, ops, seen, .. } =
            self.in_flight.swap_remove(self.random.below(self.in_flight.len() as u64) as usize);
        let fails = self.harsh && self.random.one_in(12);
        let result = match &request.work {
            Work::Flush if fails => Err(failure(ErrorKind::Os(libc::EIO), true)),
            Work::Write { .. } if fails => {
                let wedges = self.random.one_in(4);
                let no_space = self.random.one_in(2);
                let kind = if no_space { ErrorKind::NoSpace(libc::ENOSPC) } else { ErrorKind::Os(libc::EIO) };
                Err(failure(kind, wedges))
            }
            // What the engine makes of any success after a failed flush.
            _ if self.wedged => Err(failure(ErrorKind::Os(libc::EIO), true)),
            Work::Flush => {
                self.disk.flush(&seen);
                Ok(())
            }
            Work::Write { offset, means, .. } => {
                let len = ops.iter().map(|op| self.ops[*op].bytes.len() as u64).sum();
                self.disk.clock += 1;
                self.disk.write(*offset, len, self.disk.clock, *means == Some(Means::Dsync));
                ops.iter().for_each(|op| self.ops[*op].written = Some(self.disk.clock));
                Ok(())
            }
        };
        self.wedged |= matches!(&result, Err(failure) if failure.wedges);
        if let (Err(_), Work::Write { extends: Some(end), .. }) = (&result, &request.work) {
            // It was to move the end itself: the engine takes back what it did.
            self.end = *end;
            self.holes.retain(|hole| hole < end);
        }
        self.step(|core, out| core.completed(request.id, result, out));
    }

    fn growth_step(&mut self) {
        match std::mem::replace(&mut self.grower, Grower::Idle) {
            Grower::Idle => {}
            Grower::Asking => {
                let room = self.room();
                let mut job = None;
                // Before its outbox is dealt with, since that may start the next grower.
                self.step(|core, out| job = core.next_growth(room, out));
                if let Some(job) = job {
                    let seed = self.seed;
                    let base = (job.marker.base / BLOCK) as usize;
                    let stable =
                        |n: usize| self.disk.is_stable(n) || self.holes.contains(&(n as u64 * BLOCK));
                    assert!((0..base).all(stable), "seed {seed}: the base {base} is above what is stable");
                    let told = job.marker.recycled || job.marker.base >= self.old_to;
                    assert!(told, "seed {seed}: no word of old content: {job:?}");
                    let told = job.plan.is_none_or(|plan| plan.to <= job.marker.grown_to);
                    assert!(told, "seed {seed}: grows beyond what its marker says: {job:?}");
                    self.grower = Grower::Working(job);
                }
            }
            Grower::Working(job) => {
                match job.announced {
                    true => assert_eq!(self.core.marker(), Some(job.marker), "seed {}", self.seed),
                    false => self.core.marked(job.marker),
                }
                self.grower = Grower::Asking;
                let fails = self.harsh && self.random.one_in(12);
                let result = match job.plan {
                    None => Ok(job.marker.grown_to),
                    Some(plan) => self.allocate(plan),
                };
                if let (Ok(physical), Some(plan)) = (&result, job.plan) {
                    let room = self.room();
                    let next = self.core.announce(plan, *physical, room);
                    if !fails {
                        self.core.marked(next);
                    }
                }
                if fails {
                    let wedges = self.random.one_in(3);
                    self.wedged |= wedges;
                    self.step(|core, out| core.growth_failed(failure(ErrorKind::Os(libc::EIO), wedges), out));
                } else {
                    self.step(|core, out| core.grown(result, out));
                }
            }
        }
    }

    fn room(&mut self) -> Room {
        let free_bytes = self.capacity.saturating_sub(self.core.sizes().physical);
        Room { free_bytes, size_max: u64::MAX, granted_bytes: self.random.below(1 << 10) }
    }

    fn allocate(&self, mut plan: Plan) -> Result<u64, ErrorKind> {
        while plan.to > self.capacity {
            plan = plan.smaller().ok_or(ErrorKind::NoSpace(libc::ENOSPC))?;
        }
        Ok(plan.to)
    }

    /// `set_len`, alone.
    fn cut(&mut self) {
        let end = self.random.below(self.core.sizes().written / BLOCK + 3) * BLOCK;
        self.core.cut(end);
        self.disk.live.truncate((end / BLOCK) as usize);
        self.disk.stable = self.disk.live.clone();
        self.begin_anew(end, 0);
    }

    /// `recycle`, alone: the old content stands where it stood, and counts for nothing.
    fn recycle(&mut self) {
        let marker = self.core.recycling_marker();
        self.core.marked(marker);
        self.core.recycle();
        self.disk.live.fill(0);
        self.disk.stable.fill(0);
        self.begin_anew(0, self.core.sizes().physical);
    }

    fn begin_anew(&mut self, end: u64, old_to: u64) {
        (self.end, self.old_to) = (end, old_to);
        self.holes = (0..end).step_by(BLOCK as usize).collect();
        // What was given up is no longer a matter of any sync to come.
        self.ops.iter_mut().for_each(|op| op.written = op.written.map(|_| 0));
    }

    // --- what must hold -------------------------------------------------------------------------------

    fn answer(&mut self, number: usize, outcome: Outcome) {
        let at = format!("seed {}, operation {number} {:?}", self.seed, self.ops[number].kind);
        let op = &self.ops[number];
        assert!(op.answered.is_none(), "{at}: answered twice");
        let held = self.in_flight.iter().any(|other| other.ops.contains(&number));
        assert!(!held, "{at}: answered {outcome:?} with its memory in flight");
        if let Ok(offset) = outcome {
            assert!(!self.wedged, "{at}: acknowledged after a failed flush");
            match op.kind {
                Kind::Sync => op.covers.iter().for_each(|covered| self.check_stable(*covered, &at)),
                _ => self.check_written(number, offset, &at),
            }
        }
        self.ops[number].answered = Some(outcome);
    }

    fn check_written(&self, number: usize, offset: u64, at: &str) {
        let op = &self.ops[number];
        assert!(op.written.is_some(), "{at}: not written");
        assert_eq!(Some(offset), op.offset.filter(|_| op.kind == Kind::Append).or(Some(offset)), "{at}");
        let place = op.offset.expect("written");
        for n in 0..((place + op.bytes.len() as u64) / BLOCK) as usize {
            let hole = self.holes.contains(&(n as u64 * BLOCK));
            assert!(hole || self.disk.is_live(n), "{at} at {place}: above a gap at block {n}");
            assert!(
                !op.durable || hole || self.disk.is_stable(n),
                "{at} at {place}: above block {n}, not stable"
            );
        }
        if op.durable {
            self.check_stable(number, at);
        }
    }

    fn check_stable(&self, number: usize, at: &str) {
        let op = &self.ops[number];
        let (Some(offset), Some(written)) = (op.offset, op.written) else { return };
        for n in offset / BLOCK..(offset + op.bytes.len() as u64) / BLOCK {
            let stable = self.disk.stable.get(n as usize).is_some_and(|when| *when >= written);
            assert!(stable || written == 0, "{at}: block {n} of {number} is not stable");
        }
    }
}

impl Disk {
    fn write(&mut self, offset: u64, len: u64, when: u64, stable: bool) {
        let range = (offset / BLOCK) as usize..((offset + len) / BLOCK) as usize;
        for blocks in [Some(&mut self.live), stable.then_some(&mut self.stable)].into_iter().flatten() {
            blocks.resize(blocks.len().max(range.end), 0);
            blocks[range.clone()].fill(when);
        }
    }

    fn flush(&mut self, seen: &[u64]) {
        self.stable.resize(self.stable.len().max(seen.len()), 0);
        self.stable.iter_mut().zip(seen).for_each(|(stable, seen)| *stable = (*stable).max(*seen));
    }

    fn is_live(&self, block: usize) -> bool {
        self.live.get(block).is_some_and(|when| *when > 0)
    }

    fn is_stable(&self, block: usize) -> bool {
        self.stable.get(block).is_some_and(|when| *when > 0)
    }
}

fn failure(kind: ErrorKind, wedges: bool) -> Failure {
    let cause = Arc::new(Error::new(Operation::Write, &Path::new("model").into(), None, kind.clone()));
    let kind = if wedges { ErrorKind::Wedged(cause.clone()) } else { kind };
    Failure { kind, cause, wedges }
}
