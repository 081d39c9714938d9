//! The core against a model: random operations, completions in any order, failures, and growth that
//! stalls or finds no space. Each step checks the rules at the top of `core` on a disk of 16-byte
//! blocks, byte by byte.

use super::core::{
    Core, Dio, Failure, FileProps, Fill, GrowthJob, LeaderTask, Outbox, Outcome, Request, Work,
};
use crate::buffer::Segment;
use crate::error::{Error, ErrorKind, Operation};
use crate::rules::flush::SyncMethod;
use crate::rules::growth::{GrowthConfig, Plan, Planner, SpaceLimits};
use crate::rules::marker::{Identity, Mode, Prepared};
use crate::rules::merge::{Limits, Span};
use crate::rules::policy::Tail;
use std::path::Path;
use std::sync::Arc;

const BLOCK: u64 = 16;
/// Alignment of positional writes in bytes.
const SECTOR: u64 = 4;
const IDENTITY: Identity = Identity { inode: 1, birth_time: (1, 1) };
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

/// One operation. The addresses in a request identify the operations that it carries.
#[derive(Debug)]
struct Op {
    kind: Kind,
    durable: bool,
    bytes: Vec<u8>,
    /// The offset that the core gave it.
    offset: Option<u64>,
    /// When it was written, by the clock of the disk.
    written: Option<u32>,
    answered: Option<Outcome>,
    /// For a sync: the operations that were acknowledged before it.
    covers: Vec<usize>,
}

/// When the disk wrote a byte, and by which write, as the clock value of that write. The later one
/// is the greater.
type Byte = u64;

/// Of no write of this life: old, of a failed write, or never written. No reader may see it.
const NO_OWNER: u32 = 0;
const ZERO: u32 = 1;

fn byte(when: u32, of: u32) -> Byte {
    u64::from(when) << 32 | u64::from(of)
}

fn of(byte: Byte) -> u32 {
    byte as u32
}

/// Each byte as a reader sees it, and as a crash would leave it. Bytes beyond were never written,
/// and read as zeros.
#[derive(Default)]
struct Disk {
    clock: u32,
    live: Vec<Byte>,
    stable: Vec<Byte>,
}

enum Grower {
    Idle,
    Asking,
    Working(GrowthJob),
}

struct InFlight {
    request: Request<usize>,
    ops: Vec<usize>,
    /// The byte range of the operations.
    range: Span,
    /// The range that it writes: whole blocks with records, otherwise whole sectors.
    blocks: Span,
    /// The end of the file before, if it moves the end.
    extends: Option<u64>,
    /// The content of its blocks when it was sent, without the bytes that become zeros.
    around: Vec<Byte>,
    /// For a flush: the disk when it began.
    seen: Vec<Byte>,
}

struct Model {
    seed: u64,
    random: Random,
    core: Core<usize>,
    grows: bool,
    tail: Tail,
    harsh: bool,
    ops: Vec<Op>,
    in_flight: Vec<InFlight>,
    /// A flush that the core did not begin: what it covers, and the disk when it began.
    beside: Option<(u64, Vec<Byte>)>,
    /// Their leaders are not awake yet.
    calls: Vec<(usize, LeaderTask)>,
    grower: Grower,
    disk: Disk,
    /// The end of all extending operations that were submitted.
    end: u64,
    /// The ends up to which the file was checked to be written, and to be durable.
    checked: (u64, u64),
    wedged: bool,
    /// The end of the space for extending operations, if the file grows ahead.
    space_to: u64,
    capacity: u64,
    size_max: u64,
    /// The end of the content from before the recycle.
    old_to: u64,
    /// Its blocks up to here are written.
    written_to: u64,
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
        let tail = if random.one_in(3) { Tail::Pad } else { Tail::Rewrite };
        let props = FileProps {
            tail,
            identity: IDENTITY,
            limits: LIMITS,
            append_unit: BLOCK,
            offset_unit: SECTOR,
            is_device: false,
            writes_through: false,
            without_journal: false,
            overwrites_in_place: true,
            prepared,
            epoch: 0,
        };
        let growth_config = GrowthConfig {
            cap_bytes: BLOCK << random.below(6),
            capacity_bytes: random.one_in(3).then(|| random.below(40 * BLOCK)),
            unit_bytes: BLOCK,
            low_water_quarters: 2 + random.below(2),
        };
        let start =
            if random.one_in(3) { random.below(4 * BLOCK) } else { random.below(4) * BLOCK };
        let mut disk = Disk::default();
        disk.begin_anew(start);
        Self {
            seed,
            core: Core::new(start, props, Planner::new(growth_config), None),
            grows,
            tail,
            harsh: random.one_in(3),
            ops: Vec::new(),
            in_flight: Vec::new(),
            beside: None,
            calls: Vec::new(),
            grower: Grower::Idle,
            disk,
            end: start,
            checked: (start, start),
            wedged: false,
            space_to: start,
            capacity: if random.one_in(3) { (20 + random.below(60)) * BLOCK } else { 1 << 40 },
            size_max: if random.one_in(6) {
                20 * BLOCK + random.below(60 * BLOCK)
            } else {
                u64::MAX
            },
            old_to: 0,
            written_to: 0,
            last_append: 0,
            random,
        }
    }

    fn run(&mut self) {
        for _ in 0..1 + self.random.below(3) {
            for _ in 0..self.random.below(60) {
                match self.random.below(7) {
                    0 | 1 => self.submit(),
                    2 => self.growth_step(),
                    3 => self.wake_one(),
                    4 => self.flush_beside(),
                    _ => self.complete_one(),
                }
            }
            while !self.in_flight.is_empty()
                || self.beside.is_some()
                || !self.calls.is_empty()
                || !matches!(self.grower, Grower::Idle)
            {
                match self.random.below(3) {
                    0 => self.growth_step(),
                    1 => self.wake_one(),
                    _ if self.beside.is_some() && self.random.one_in(4) => self.flush_beside(),
                    _ => self.complete_one(),
                }
            }
            let stuck = self.ops.iter().position(|op| op.answered.is_none());
            assert_eq!(
                stuck, None,
                "seed {}: never answered: {:?}\n{:#?}",
                self.seed, stuck, self.core
            );
            assert!(self.core.pause_growth());
            if !self.wedged {
                if self.grows && self.random.one_in(2) { self.recycle() } else { self.truncate() }
            }
            self.core.resume_growth();
        }
    }

    // --- what happens ----------------------------------------------------------------------------

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
            let pads = self.in_flight.iter().any(InFlight::pads);
            assert!(!pads, "seed {}: grows beside a write that moves the size", self.seed);
            self.grower = Grower::Asking;
        }
        let sizes = self.core.sizes();
        assert!(sizes.durable <= sizes.written && sizes.written <= sizes.reserved);
        assert!(sizes.reserved <= sizes.physical);
        let (seed, disk) = (self.seed, &self.disk);
        if self.checked != (sizes.written, sizes.durable) {
            assert_eq!(
                gap(&disk.live, sizes.written),
                None,
                "seed {seed}: shown below {}",
                sizes.written
            );
            assert_eq!(
                gap(&disk.stable, sizes.durable),
                None,
                "seed {seed}: stable below {}",
                sizes.durable
            );
            self.checked = (sizes.written, sizes.durable);
        }
    }

    /// One operation of a thread, or several that a queue submits together.
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
        let near = (self.end / SECTOR).saturating_sub(4 * BLOCK / SECTOR);
        let kind = match self.random.below(10) {
            0 => Kind::Sync,
            1..=2 => Kind::WriteAt((near + self.random.below(8 * BLOCK / SECTOR)) * SECTOR),
            3..=4 => Kind::WriteAt(near * SECTOR + self.random.below(8 * BLOCK)),
            _ => Kind::Append,
        };
        let blocks_max = if self.random.one_in(8) { 9 } else { 3 };
        let blocks = 1 + self.random.below(blocks_max);
        let len = match (kind, self.random.below(4)) {
            (Kind::Sync, _) => 0,
            (_, 0) => blocks * BLOCK,
            (Kind::WriteAt(_), 1) => (1 + self.random.below(blocks * BLOCK / SECTOR)) * SECTOR,
            (_, 1) => blocks * BLOCK - 1 + 2 * self.random.below(2),
            (..) => 1 + self.random.below(blocks * BLOCK),
        };
        let bytes = vec![0; len as usize];
        let durable = self.random.one_in(2);
        let segment = Segment::of(&bytes);
        let covers =
            self.ops.iter().enumerate().filter(|(_, op)| matches!(op.answered, Some(Ok(_))));
        let covers = covers.map(|(n, _)| n).collect();
        self.ops.push(Op {
            kind,
            durable,
            bytes,
            offset: None,
            written: None,
            answered: None,
            covers,
        });
        let dio = match kind {
            Kind::Append => Dio::Append(segment),
            Kind::WriteAt(offset) => Dio::Write(segment, offset),
            Kind::Sync => Dio::Sync,
        };
        (number, dio, durable)
    }

    /// Takes a request of the core, to be performed.
    fn send(&mut self, request: Request<usize>) {
        let seed = self.seed;
        assert!(
            self.ops[request.owner].answered.is_none(),
            "seed {seed}: given to one who left: {request:?}"
        );
        assert!(!self.wedged, "seed {seed}: after a failed flush: {request:?}");
        let none = Span { start: 0, end: 0 };
        let (mut ops, mut range, mut blocks) = (Vec::new(), none, none);
        let (mut extends, mut around, mut seen) = (None, Vec::new(), Vec::new());
        if let Work::Write {
            segments, offset, head, sync_method, fill, extends: moves_size, ..
        } = &request.work
        {
            let records = *fill == Fill::Appended;
            range = Span { start: *offset, end: *offset };
            for segment in segments {
                let number = self.whose(segment);
                assert_eq!(
                    records,
                    self.ops[number].kind == Kind::Append,
                    "seed {seed}: {request:?}"
                );
                self.place(number, range);
                range.end += segment.len();
                ops.push(number);
            }
            let (unit, kept_to) = match *fill {
                Fill::Appended => (BLOCK, range.start),
                Fill::Kept(kept_to) => (SECTOR, kept_to),
            };
            blocks = range.whole(unit);
            extends = (range.end > self.end).then_some(self.end);
            self.leave_hole(range.start);
            if records {
                self.check_records(range, *head, *sync_method);
            }
            let kept = Span { end: blocks.end.min(kept_to).max(blocks.start), ..blocks };
            around = self.disk.show(kept);
            self.check_beside(range, blocks, records);
            if extends.is_none() && moves_size.is_some() {
                // A write of the last bytes pads the file.
                assert!(!self.grows, "seed {seed}: moves the size of a file that grows ahead");
                self.space_to = self.space_to.max(self.end.next_multiple_of(SECTOR));
            }
            let has_space = !self.grows || blocks.end <= self.space_to;
            assert!(has_space, "seed {seed}: {blocks:?} is above the space there is");
            self.end = self.end.max(range.end);
        } else {
            seen.clone_from(&self.disk.live);
        }
        assert!(ops.is_empty() || ops.contains(&request.owner), "seed {seed}: {request:?}");
        self.in_flight.push(InFlight { request, ops, range, blocks, extends, around, seen });
    }

    /// The operation that owns this memory.
    fn whose(&self, segment: &Segment) -> usize {
        let is_it = |op: &Op| op.bytes.as_ptr().addr() == segment.addresses().start;
        let number = self.ops.iter().rposition(is_it).expect("of some operation");
        assert_eq!(
            segment.len(),
            self.ops[number].bytes.len() as u64,
            "seed {}: a part of {number}",
            self.seed
        );
        number
    }

    /// Checks a request of records.
    fn check_records(&self, range: Span, head: u64, sync_method: Option<SyncMethod>) {
        let seed = self.seed;
        let at_a_block = self.end.next_multiple_of(BLOCK);
        let may_begin = match self.tail {
            Tail::Rewrite => range.start == self.end,
            // No gap may skip old content.
            Tail::Pad => {
                range.start == at_a_block || range.start == self.end && self.end < self.old_to
            }
        };
        assert!(may_begin, "seed {seed}: records at {range:?}, not at {}", self.end);
        let begun = !range.start.is_multiple_of(BLOCK);
        assert!(
            !begun || self.in_flight.iter().all(|other| other.extends.is_none()),
            "seed {seed}: {range:?} begins in a block beside others that extend the file"
        );
        let crosses = begun && range.end > at_a_block && range.end > self.written_to;
        assert_eq!(
            head,
            if crosses { BLOCK } else { 0 },
            "seed {seed}: {range:?} crosses from written space"
        );
        assert!(
            head == 0 || sync_method != Some(SyncMethod::Dsync),
            "seed {seed}: {range:?} goes out in two, and each with a flush"
        );
    }

    /// Two requests in flight never write the same block. Positional ones never write the same
    /// bytes below `written`.
    fn check_beside(&self, range: Span, blocks: Span, records: bool) {
        let written = self.core.sizes().written;
        for other in self.in_flight.iter().filter(|other| !other.ops.is_empty()) {
            let both_positional = !records && !other.is_of_records();
            let both_whole = range == blocks && other.range == other.blocks;
            let matters = !both_positional
                || !both_whole
                || range.end <= written && other.range.end <= written;
            assert!(
                !matters || !blocks.overlaps(&other.blocks),
                "seed {}: {range:?} and {:?} written at the same time",
                self.seed,
                other.range
            );
        }
    }

    /// Leaves the bytes before a write as a hole, which reads as zeros.
    fn leave_hole(&mut self, to: u64) {
        let from = self.end.max(self.old_to);
        self.disk.leave_hole(Span { start: from.min(to), end: to });
    }

    /// Places an operation at the end of `before`, which is submitted with it.
    fn place(&mut self, number: usize, before: Span) {
        let (seed, end, offset) = (self.seed, self.end, before.end);
        let op = &mut self.ops[number];
        match op.kind {
            Kind::Append => {
                assert!(number >= self.last_append, "seed {seed}: {number} overtaken");
                self.last_append = number;
                assert!(op.offset.is_none(), "seed {seed}: {number} goes out twice");
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

    /// Wakes a leader.
    fn wake_one(&mut self) {
        if self.calls.is_empty() {
            return;
        }
        let (_, call) = self.calls.swap_remove(self.random.below(self.calls.len() as u64) as usize);
        self.step(|core, out| core.on_called(call, out));
    }

    fn complete_one(&mut self) {
        if self.in_flight.is_empty() {
            return;
        }
        let done =
            self.in_flight.swap_remove(self.random.below(self.in_flight.len() as u64) as usize);
        let fails = self.harsh && self.random.one_in(12);
        let result = match &done.request.work {
            Work::Flush if fails => Err(failure(ErrorKind::Os(libc::EIO), true)),
            Work::Write { .. } if fails => {
                let wedges = self.random.one_in(4);
                let no_space = self.random.one_in(2);
                let kind = if no_space {
                    ErrorKind::NoSpace(libc::ENOSPC)
                } else {
                    ErrorKind::Os(libc::EIO)
                };
                Err(failure(kind, wedges))
            }
            // The engine turns any success after a failed flush into this.
            _ if self.wedged => Err(failure(ErrorKind::Os(libc::EIO), true)),
            Work::Flush => {
                self.disk.flush(&done.seen);
                Ok(())
            }
            Work::Write { sync_method, .. } => {
                self.disk.clock += 1;
                let when = self.disk.clock;
                self.disk.write(
                    &done.content(when),
                    done.blocks.start,
                    *sync_method == Some(SyncMethod::Dsync),
                );
                done.ops.iter().for_each(|op| self.ops[*op].written = Some(when));
                Ok(())
            }
        };
        self.wedged |= matches!(&result, Err(failure) if failure.wedges);
        if result.is_err() {
            self.failed(&done);
        }
        self.step(|core, out| core.on_completed(done.request.id, result, out));
    }

    /// Begins a flush of a thread beside the core, or ends it.
    fn flush_beside(&mut self) {
        let Some((covers, seen)) = self.beside.take() else {
            let begun = (self.core.sizes().written, self.disk.live.clone());
            self.beside = Some(begun).filter(|_| !self.wedged);
            return;
        };
        self.wedged |= self.harsh && self.random.one_in(12);
        if self.wedged {
            let cause = failure(ErrorKind::Os(libc::EIO), true).cause;
            self.step(|core, out| core.wedge(cause, out));
        } else {
            self.disk.flush(&seen);
            self.step(|core, out| core.on_flushed(covers, out));
        }
    }

    /// A failed request may have left any part of its data, but the content from before is intact.
    fn failed(&mut self, done: &InFlight) {
        let (Some(end), Work::Write { extends, .. }) = (done.extends, &done.request.work) else {
            return;
        };
        if self.random.one_in(2) {
            self.disk.spoil(Span { start: done.range.start.max(end), end: done.blocks.end });
        }
        if !self.grows {
            self.end = end;
        }
        if let Some(size) = extends {
            // It was to move the size itself: the engine takes that back.
            self.disk.truncate(*size);
        }
    }

    fn growth_step(&mut self) {
        match std::mem::replace(&mut self.grower, Grower::Idle) {
            Grower::Idle => {}
            Grower::Asking => {
                let room = self.room();
                let mut job = None;
                // Before its outbox is handled, since that may start the next grower.
                self.step(|core, out| job = core.next_growth(room, out));
                if let Some(job) = job.filter(|job| job.truncate_to.is_some()) {
                    // Its marker is the one that is written.
                    self.grower = Grower::Working(job);
                } else if let Some(job) = job {
                    let seed = self.seed;
                    let (base, durable) = (job.marker.base, self.core.sizes().durable);
                    // Padding reads as zeros, whichever request wrote it.
                    let padded = if self.tail == Tail::Pad {
                        durable.next_multiple_of(BLOCK)
                    } else {
                        durable
                    };
                    assert!(base <= padded, "seed {seed}: the base is {base}, above {durable}");
                    let told = job.marker.recycled || job.marker.base >= self.old_to;
                    assert!(told, "seed {seed}: no word of old content: {job:?}");
                    let told = job.plan.is_none_or(|plan| plan.to <= job.marker.grown_to);
                    assert!(told, "seed {seed}: grows beyond what its marker says: {job:?}");
                    self.grower = Grower::Working(job);
                }
            }
            Grower::Working(job) => {
                let is_refused = self.harsh && job.truncate_to.is_none() && self.random.one_in(12);
                match job.announced {
                    true => assert_eq!(self.core.marker(), Some(job.marker), "seed {}", self.seed),
                    // Either the marker or the space is refused.
                    false if is_refused && self.random.one_in(2) => {}
                    false => self.core.on_marked(job.marker),
                }
                self.grower = Grower::Asking;
                if is_refused {
                    return self.refuse_growth();
                }
                let fails = self.harsh && self.random.one_in(12);
                let result = match job.plan {
                    None => Ok(job.marker.grown_to),
                    Some(plan) => self.allocate(plan),
                };
                if let (Ok(physical), Some(plan)) = (&result, job.plan) {
                    self.space_to = if fails { self.space_to } else { *physical };
                    let room = self.room();
                    let next = self.core.announce(plan, *physical, room);
                    if !fails {
                        self.core.on_marked(next);
                    }
                }
                if let Some(end) = job.truncate_to.filter(|_| !fails) {
                    self.end_growth(end);
                } else if fails {
                    let wedges = self.random.one_in(3);
                    self.wedged |= wedges;
                    self.step(|core, out| {
                        core.on_growth_failed(failure(ErrorKind::Os(libc::EIO), wedges), out)
                    });
                } else {
                    self.step(|core, out| core.on_grown(result, out));
                }
            }
        }
    }

    /// The kernel has no such call. Without a marker growth ends.
    fn refuse_growth(&mut self) {
        let failed = |model: &Self| {
            model.ops.iter().filter(|op| matches!(op.answered, Some(Err(_)))).count()
        };
        let before = failed(self);
        self.grows = self.core.marker().is_some();
        self.step(|core, out| {
            core.on_growth_failed(failure(ErrorKind::Os(libc::EOPNOTSUPP), false), out)
        });
        assert_eq!(self.core.prepared().is_some(), self.grows, "seed {}", self.seed);
        assert!(failed(self) == before, "seed {}: a refusal is no error", self.seed);
    }

    /// Truncates the space ahead, with no extending request in flight.
    fn end_growth(&mut self, end: u64) {
        let extends = |other: &InFlight| other.extends.is_some();
        assert!(!self.in_flight.iter().any(extends), "seed {}: truncated beside writes", self.seed);
        assert!(self.end == end, "seed {}: truncated to {end}, not to {}", self.seed, self.end);
        self.disk.truncate(end);
        (self.grows, self.old_to, self.written_to) = (false, 0, 0);
        self.step(|core, out| core.on_growth_ended(out));
        assert!(self.core.prepared().is_none() && self.core.marker().is_none());
    }

    fn room(&mut self) -> SpaceLimits {
        let free_bytes = self.capacity.saturating_sub(self.core.sizes().physical);
        SpaceLimits {
            free_bytes,
            size_max: self.size_max,
            granted_bytes: self.random.below(1 << 10),
        }
    }

    fn allocate(&self, mut plan: Plan) -> Result<u64, ErrorKind> {
        while plan.to > self.capacity {
            plan = plan.smaller().ok_or(ErrorKind::NoSpace(libc::ENOSPC))?;
        }
        Ok(plan.to)
    }

    /// `set_len`, alone.
    fn truncate(&mut self) {
        let end = self.random.below(self.core.sizes().written + 3 * BLOCK);
        self.core.truncate(end);
        self.disk.begin_anew(end);
        self.begin_anew(end, 0);
    }

    /// `recycle`, alone: the old content stays in place, and counts for nothing.
    fn recycle(&mut self) {
        let marker = self.core.recycling_marker();
        self.core.on_marked(marker);
        let physical = self.core.sizes().physical;
        let written_to = self.random.below(physical / BLOCK + 1) * BLOCK;
        self.core.recycle(written_to);
        self.disk.begin_anew(physical);
        self.disk.spoil(Span { start: 0, end: physical });
        self.begin_anew(0, physical);
        self.written_to = written_to;
    }

    fn begin_anew(&mut self, end: u64, old_to: u64) {
        (self.end, self.old_to, self.written_to) = (end, old_to, 0);
        self.space_to = end.max(old_to);
        self.checked = (end, end);
        // No later sync covers data that was given up.
        self.ops.iter_mut().for_each(|op| op.written = op.written.map(|_| 0));
    }

    // --- what must hold --------------------------------------------------------------------------

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
        let written = op.written.unwrap_or_else(|| panic!("{at}: not written"));
        assert_eq!(
            Some(offset),
            op.offset.filter(|_| op.kind == Kind::Append).or(Some(offset)),
            "{at}"
        );
        let place = op.offset.expect("written");
        let end = place + op.bytes.len() as u64;
        assert_eq!(gap(&self.disk.live, end), None, "{at} at {place}: above a gap");
        let lost =
            self.disk.live[place as usize..end as usize].iter().any(|byte| of(*byte) < written);
        assert!(!lost, "{at} at {place}: overwritten by what was there before");
        if op.durable {
            assert_eq!(
                gap(&self.disk.stable, end),
                None,
                "{at} at {place}: above what is not stable"
            );
            self.check_stable(number, at);
        }
    }

    fn check_stable(&self, number: usize, at: &str) {
        let op = &self.ops[number];
        let (Some(offset), Some(written)) = (op.offset, op.written) else { return };
        for n in offset..offset + op.bytes.len() as u64 {
            let stable = self.disk.stable.get(n as usize).is_some_and(|byte| of(*byte) >= written);
            assert!(stable || written == 0, "{at}: byte {n} of {number} is not stable");
        }
    }
}

/// The first byte below `end` that no reader may see.
fn gap(bytes: &[Byte], end: u64) -> Option<u64> {
    let there = &bytes[..bytes.len().min(end as usize)];
    let gap = there.iter().position(|byte| of(*byte) == NO_OWNER).unwrap_or(there.len()) as u64;
    (gap < end).then_some(gap)
}

impl InFlight {
    fn is_of_records(&self) -> bool {
        matches!(self.request.work, Work::Write { fill: Fill::Appended, .. })
    }

    /// Whether it writes below the end, and moves the size to the end of its last sector.
    fn pads(&self) -> bool {
        let moves_size = matches!(self.request.work, Work::Write { extends: Some(_), .. });
        moves_size && self.extends.is_none()
    }

    /// The bytes that it writes, from the first block on.
    fn content(&self, when: u32) -> Vec<Byte> {
        let mut content: Vec<_> = self.around.iter().map(|kept| byte(when, of(*kept))).collect();
        content.resize(self.blocks.len() as usize, byte(when, ZERO));
        let start = (self.range.start - self.blocks.start) as usize;
        content[start..start + self.range.len() as usize].fill(byte(when, when));
        content
    }
}

impl Disk {
    fn both(&mut self) -> [&mut Vec<Byte>; 2] {
        [&mut self.live, &mut self.stable]
    }

    /// Leaves nothing but `len` zeros, durable.
    fn begin_anew(&mut self, len: u64) {
        self.clock += 1;
        let zeros = vec![byte(self.clock.max(ZERO), ZERO); len as usize];
        (self.live, self.stable) = (zeros.clone(), zeros);
    }

    fn show(&self, range: Span) -> Vec<Byte> {
        self.live.iter().skip(range.start as usize).take(range.len() as usize).copied().collect()
    }

    fn write(&mut self, content: &[Byte], offset: u64, stable: bool) {
        let range = offset as usize..offset as usize + content.len();
        for bytes in
            [Some(&mut self.live), stable.then_some(&mut self.stable)].into_iter().flatten()
        {
            bytes.resize(bytes.len().max(range.end), byte(0, NO_OWNER));
            bytes[range.clone()].copy_from_slice(content);
        }
    }

    /// Leaves bytes there that belong to no write.
    fn spoil(&mut self, range: Span) {
        self.clock += 1;
        let content = vec![byte(self.clock, NO_OWNER); range.len() as usize];
        self.write(&content, range.start, true);
    }

    /// Leaves a hole: bytes that no operation wrote read as zeros.
    fn leave_hole(&mut self, range: Span) {
        for bytes in self.both() {
            let known = bytes.len().max(range.start as usize).min(range.end as usize);
            bytes.resize(bytes.len().max(range.end as usize), byte(0, NO_OWNER));
            bytes[known..range.end as usize].fill(byte(0, ZERO));
        }
    }

    fn truncate(&mut self, len: u64) {
        self.both().into_iter().for_each(|bytes| bytes.truncate(len as usize));
    }

    fn flush(&mut self, seen: &[Byte]) {
        // The file may have been truncated since.
        let seen = &seen[..seen.len().min(self.live.len())];
        self.stable.resize(self.stable.len().max(seen.len()), byte(0, NO_OWNER));
        self.stable.iter_mut().zip(seen).for_each(|(stable, seen)| *stable = (*stable).max(*seen));
    }
}

fn failure(kind: ErrorKind, wedges: bool) -> Failure {
    let cause =
        Arc::new(Error::new(Operation::Write, &Path::new("model").into(), None, kind.clone()));
    let kind = if wedges { ErrorKind::Wedged(cause.clone()) } else { kind };
    Failure { kind, cause, wedges }
}
