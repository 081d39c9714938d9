//! The life of a file with records of any length. Several writers use calls, queues, and positional
//! writes around the last block. The power fails at any event, and the model checks each byte after
//! recovery.

use crate::layout::{Interrupted, Layout};
use crate::life::{Crashes, Outcome, drawn, join, lock};
use crate::records::{BLOCK_BYTES, Number, SECTOR_BYTES};
use dioxide::sim::{self, Call, Disk, Settings};
use dioxide::{
    Buffer, Durability, Error, ErrorKind, File, Growth, OpenOptions, Queue, Tail, Verdict,
};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

const SECTOR: u64 = SECTOR_BYTES as u64;

/// A write, as its caller knows it.
#[derive(Clone, Debug)]
struct Write {
    len: u64,
    /// Its offset. Appends get it with their result.
    place: Option<u64>,
    appended: bool,
    begun: u64,
    /// When it ended, with any result.
    ended: Option<u64>,
    acknowledged: bool,
    durable: bool,
}

impl Write {
    fn range(&self) -> Option<Range<u64>> {
        self.place.map(|place| place..place + self.len)
    }
}

/// The model of the file's content.
#[derive(Clone, Debug, Default)]
struct Bytes {
    writes: BTreeMap<Number, Write>,
    next: Number,
    clock: u64,
    /// The durable content when the file last had no writer.
    base: Vec<u8>,
    /// The target length of a truncate or extension in progress.
    becoming: Option<u64>,
    pads: bool,
}

/// The data of a write: no zeros, and almost unique.
fn record(number: Number, range: Range<u64>) -> Vec<u8> {
    let byte = |n: u64| {
        let mixed = (number << 24 ^ n).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (mixed ^ mixed >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9).to_be_bytes()[0] | 1
    };
    range.map(byte).collect()
}

impl Bytes {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn settle(&mut self, content: Vec<u8>) {
        self.base = content;
        self.writes.clear();
        self.becoming = None;
    }

    fn begin(&mut self, len: u64, place: Option<u64>) -> Number {
        let begun = self.tick();
        self.next += 1;
        let appended = place.is_none();
        let write =
            Write { len, place, appended, begun, ended: None, acknowledged: false, durable: false };
        self.writes.insert(self.next, write);
        self.next
    }

    fn end(&mut self, number: Number, result: Result<u64, ()>, durable: bool) {
        let ended = self.tick();
        let write = self.writes.get_mut(&number).expect("it was begun");
        write.ended = Some(ended);
        if let Ok(offset) = result {
            write.place = write.place.or(Some(offset));
            (write.acknowledged, write.durable) = (true, durable);
        }
    }

    fn acknowledged(&self) -> Vec<Number> {
        self.writes
            .iter()
            .filter(|(_, write)| write.acknowledged)
            .map(|(number, _)| *number)
            .collect()
    }

    fn promise(&mut self, numbers: &[Number]) {
        numbers
            .iter()
            .for_each(|number| self.writes.get_mut(number).expect("known").durable = true);
    }

    /// A durable append makes all appends below its end durable.
    fn promised_to(&self) -> u64 {
        let durable = self.writes.values().filter(|write| write.appended && write.durable);
        durable.filter_map(Write::range).map(|range| range.end).max().unwrap_or(0)
    }

    fn is_durable(&self, write: &Write, promised_to: u64) -> bool {
        write.durable
            || write.appended && write.range().is_some_and(|range| range.end <= promised_to)
    }

    // --- checks ----------------------------------------------------------------------------------

    /// Acknowledged appends never overlap.
    fn check_appends(&self, at: &str) {
        let appended = self.writes.values().filter(|write| write.appended && write.acknowledged);
        let mut taken: Vec<_> =
            appended.filter_map(Write::range).map(|range| (range.start, range.end)).collect();
        taken.sort_unstable();
        for pair in taken.windows(2) {
            assert!(pair[0].1 <= pair[1].0, "{at}: appends overlap: {pair:?}");
        }
    }

    fn least(&self) -> u64 {
        let promised_to = self.promised_to();
        let durable = self.writes.values().filter(|write| self.is_durable(write, promised_to));
        let end = durable.filter_map(Write::range).map(|range| range.end).max().unwrap_or(0);
        end.max(self.base.len() as u64).min(self.becoming.unwrap_or(u64::MAX))
    }

    /// The largest possible length after a crash, in whole blocks.
    fn most(&self) -> u64 {
        let placed =
            self.writes.values().filter_map(Write::range).map(|range| range.end).max().unwrap_or(0);
        let pad = if self.pads { BLOCK_BYTES } else { 0 };
        let unplaced = self.writes.values().filter(|write| write.place.is_none());
        let unplaced: u64 = unplaced.map(|write| write.len + pad).sum();
        let start = placed.max(self.base.len() as u64).max(self.becoming.unwrap_or(0));
        (start + pad + unplaced).next_multiple_of(BLOCK_BYTES)
    }

    /// Splits a range of the file at the edges of writes and at each sector.
    fn pieces(&self, from: u64, end: u64) -> Vec<Range<u64>> {
        let edges = self
            .writes
            .values()
            .filter_map(Write::range)
            .flat_map(|range| [range.start, range.end]);
        let sectors = (from / SECTOR + 1..=end / SECTOR).map(|n| n * SECTOR);
        let mut edges: Vec<_> = edges
            .chain(sectors)
            .chain([from, self.base.len() as u64, end])
            .chain(self.becoming)
            .collect();
        edges.retain(|edge| (from..=end).contains(edge));
        edges.sort_unstable();
        edges.dedup();
        edges.windows(2).map(|pair| pair[0]..pair[1]).collect()
    }

    /// Returns whether a piece holds data of a write there. That write must not have ended before
    /// the latest write that `counts` began.
    fn explains(&self, piece: &Range<u64>, bytes: &[u8], counts: &dyn Fn(&Write) -> bool) -> bool {
        let covers = |write: &Write| {
            write.range().is_some_and(|it| it.start <= piece.start && piece.end <= it.end)
        };
        let last = self
            .writes
            .values()
            .filter(|write| covers(write) && counts(write))
            .map(|write| write.begun);
        let last = last.max().unwrap_or(0);
        let of_base = self.base.get(piece.start as usize..piece.end as usize);
        if last == 0
            && (of_base == Some(bytes) || of_base.is_none() && bytes.iter().all(|byte| *byte == 0))
        {
            return true;
        }
        // A truncate that a crash undid may have left zeros.
        let given = self.becoming.is_some_and(|to| piece.start >= to.min(self.base.len() as u64));
        if given && bytes.iter().all(|byte| *byte == 0) {
            return true;
        }
        let is_of = |(number, write): (&Number, &Write)| {
            if !covers(write) || write.ended.is_some_and(|ended| ended < last) {
                return false;
            }
            let first = piece.start - write.place.unwrap_or(0);
            let whole = record(*number, first..first + bytes.len() as u64);
            let same = whole.iter().zip(bytes).take_while(|(one, other)| one == other).count();
            // A failed write was truncated away, and later appends overwrote its range.
            let ends = same.saturating_sub(2).max(1)..=same;
            same == bytes.len()
                || last == 0 && ends.rev().any(|end| self.is_of_unplaced(&bytes[end..], false))
        };
        self.writes.iter().any(is_of) || last == 0 && self.is_of_unplaced(bytes, true)
    }

    /// Returns whether these are consecutive records of unknown offset, followed by zeros. If
    /// `may_have_begun`, the first record may begin before the piece.
    fn is_of_unplaced(&self, bytes: &[u8], may_have_begun: bool) -> bool {
        if bytes.iter().all(|byte| *byte == 0) {
            return true;
        }
        let unplaced = || self.writes.iter().filter(|(_, write)| write.place.is_none());
        for (number, write) in unplaced() {
            let whole = record(*number, 0..write.len);
            for first in 0..if may_have_begun { whole.len() } else { 1 } {
                let len = (whole.len() - first).min(bytes.len());
                if whole[first..first + len] == bytes[..len]
                    && self.is_of_unplaced(&bytes[len..], false)
                {
                    return true;
                }
            }
        }
        false
    }

    fn check(&self, content: &[u8], counts: &dyn Fn(&Write) -> bool, because: &str, at: &str) {
        self.check_part(content, 0, counts, because, at);
    }

    /// As [`check`](Self::check), of the content from this offset on.
    fn check_part(
        &self,
        content: &[u8],
        from: u64,
        counts: &dyn Fn(&Write) -> bool,
        because: &str,
        at: &str,
    ) {
        for piece in self.pieces(from, from + content.len() as u64) {
            let bytes = &content[(piece.start - from) as usize..(piece.end - from) as usize];
            let explained = self.explains(&piece, bytes, counts);
            let around: Vec<_> = self.around(&piece).collect();
            assert!(
                explained,
                "{at}: {piece:?} of {} holds {:?}, where something {because}: {around:?}",
                from + content.len() as u64,
                self.of_whom(bytes),
            );
        }
    }

    /// For diagnosis: the writes there, and those without a known offset.
    fn around(&self, piece: &Range<u64>) -> impl Iterator<Item = (&Number, &Write)> {
        let (start, end) = (piece.start, piece.end);
        self.writes.iter().filter(move |(_, write)| {
            write.range().is_none_or(|it| it.start < end && start < it.end)
        })
    }

    /// For diagnosis: the writes that contain these bytes, with the positions.
    fn of_whom(&self, bytes: &[u8]) -> Vec<(Number, u64)> {
        let some = &bytes[..bytes.len().min(8)];
        let writes = self.writes.iter().flat_map(|(number, write)| {
            (0..write.len.saturating_sub(7)).map(|first| (*number, first))
        });
        writes
            .filter(|(number, first)| record(*number, *first..first + some.len() as u64) == some)
            .collect()
    }

    fn check_after_crash(&self, content: &[u8], at: &str) {
        let (len, least, most) = (content.len() as u64, self.least(), self.most());
        assert!(len >= least, "{at}: {len} bytes, but {least} was durable");
        assert!(len <= most, "{at}: {len} bytes, but only {most} were written");
        let promised_to = self.promised_to();
        self.check(content, &|write| self.is_durable(write, promised_to), "was durable", at);
    }

    /// The end of the records above `floor`, as a program finds it.
    fn end_of_records(&self, content: &[u8], floor: u64) -> u64 {
        let mut end = floor;
        for piece in self.pieces(floor, content.len() as u64) {
            let bytes = &content[piece.start as usize..piece.end as usize];
            if !self.explains(&piece, bytes, &|_| false) {
                break;
            }
            if bytes.iter().any(|byte| *byte != 0) {
                end = piece.end;
            }
        }
        end
    }
}

/// The state that writers share.
#[derive(Default)]
struct Shared {
    bytes: Mutex<Bytes>,
    outcome: Mutex<Outcome>,
    /// Calls may fail, by a fault or for lack of space.
    may_fail: Mutex<bool>,
}

/// The life of one file.
pub struct Life {
    seed: u64,
    random: fastrand::Rng,
    crashes: Crashes,
    settings: Settings,
    options: OpenOptions,
    layout: Layout,
    disk: Disk,
    shared: Arc<Shared>,
}

impl Life {
    pub fn new(seed: u64, crashes: Crashes) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let (settings, growth) = drawn(&mut random);
        let tail = [Tail::Rewrite, Tail::Rewrite, Tail::Pad][random.usize(..3)];
        let mut options = OpenOptions::new();
        options
            .write(true)
            .create(true)
            .growth(growth)
            .growth_cap(BLOCK_BYTES << random.u64(..6))
            .tail(tail);
        if random.u8(..3) == 0 {
            options.capacity(random.u64(..40 * BLOCK_BYTES));
        }
        let shared = Shared::default();
        lock(&shared.bytes).pads = tail == Tail::Pad;
        let layout = Layout::of(seed);
        *lock(&shared.outcome) =
            Outcome { lives: 1, striped: layout.is_striped(), ..Outcome::default() };
        let disk = Disk::with(seed, settings.clone());
        Self { seed, random, crashes, settings, options, layout, disk, shared: Arc::new(shared) }
    }

    fn at(&self) -> String {
        format!("seed {}, {:?}, {:?}, {:?}", self.seed, self.layout, self.options, self.settings)
    }

    /// Control: flushes do nothing.
    pub fn on_a_lying_disk(mut self) -> Self {
        self.settings.lies_about_flushes = true;
        self.disk = Disk::with(self.seed, self.settings.clone());
        self
    }

    pub fn live(mut self) -> Outcome {
        let mut kept = None;
        for _ in 0..1 + self.random.u64(..4) {
            let file = kept.take().map_or_else(|| self.layout.open(&self.disk, &self.options), Ok);
            let file = file.unwrap_or_else(|error| panic!("{}: {error}", self.at()));
            self.phase(&file);
            kept = self.between(file);
        }
        lock(&self.shared.outcome).clone()
    }

    fn phase(&mut self, file: &File) {
        let faulty = self.random.u8(..4) == 0;
        *lock(&self.shared.may_fail) = faulty || self.settings.capacity_bytes < 1 << 20;
        if faulty {
            for _ in 0..1 + self.random.u64(..2) {
                let calls = [
                    Call::Write,
                    Call::Write,
                    Call::Flush,
                    Call::Allocate,
                    Call::Marker,
                    Call::Read,
                ];
                let call = calls[self.random.usize(..calls.len())];
                let errno = if call == Call::Flush || self.random.bool() { 5 } else { 28 };
                self.disk.fail(call, self.random.u64(..12), errno);
            }
        }
        self.watch();
        let positional = self.random.u8(..3) == 0;
        let threads: Vec<_> = (0..1 + self.random.u64(..5))
            .map(|_| {
                let durable = self.options.clone().durability(Durability::EveryWrite).clone();
                let mut writer = Writer {
                    random: self.random.fork(),
                    handles: [
                        file.try_clone().expect("one more handle"),
                        self.layout.open(&self.disk, &durable).expect("one more handle"),
                    ],
                    shared: self.shared.clone(),
                    positional,
                    at: self.at(),
                };
                sim::spawn(move || writer.work())
            })
            .collect();
        join(threads);
        self.disk.heal();
        self.disk.watch(None);
        lock(&self.shared.bytes).check_appends(&self.at());
    }

    fn watch(&mut self) {
        let one_in = match self.crashes {
            Crashes::Never => return,
            Crashes::OneIn(count) => count,
            Crashes::Every => 1,
        };
        let mut random = self.random.fork();
        let checker = self.checker();
        let disk = self.disk.clone();
        self.disk.watch(Some(Box::new(move || {
            lock(&checker.shared.outcome).events += 1;
            if random.u64(..one_in) == 0 {
                checker.check(&disk.crash(), &mut random);
            }
        })));
    }

    fn checker(&self) -> Checker {
        Checker {
            shared: self.shared.clone(),
            options: self.options.clone(),
            layout: self.layout,
            every_recovery: self.crashes == Crashes::Every,
            at: self.at(),
        }
    }

    /// Crashes for good, or runs an exclusive operation. Returns the file if it stays open.
    fn between(&mut self, file: File) -> Option<File> {
        let at = self.at();
        let works = file.sync_data().is_ok();
        if !works || self.random.bool() {
            let crashed = self.disk.crash();
            let content = self.checker().check(&crashed, &mut self.random.fork());
            drop(file.close());
            self.disk = crashed;
            lock(&self.shared.bytes).settle(content);
            return None;
        }
        let len = file.len().expect("no reader");
        let acknowledged = |write: &Write| write.acknowledged;
        let content = read(&file);
        if !*lock(&self.shared.may_fail) {
            lock(&self.shared.bytes).check(&content, &acknowledged, "was acknowledged", &at);
        }
        let becomes = |to: u64| lock(&self.shared.bytes).becoming = Some(to);
        let what = self.random.u8(..4);
        let to = if what == 0 { self.random.u64(..=len + 4 * BLOCK_BYTES) } else { len };
        let recycles = what == 1 && file.growth() != Growth::None;
        becomes(if recycles { 0 } else { to });
        self.watch();
        let result = match recycles {
            true => {
                lock(&self.shared.outcome).recycled += 1;
                file.recycle()
            }
            // This also ends the state of a failed append.
            false => {
                lock(&self.shared.outcome).cut += 1;
                file.set_len(to)
            }
        };
        self.disk.watch(None);
        result.unwrap_or_else(|error| panic!("{at}: {error}"));
        let after = read(&file);
        let kept = after.len().min(content.len());
        assert!(after[..kept] == content[..kept], "{at}: what is left is not what there was");
        assert!(
            after[kept..].iter().all(|byte| *byte == 0),
            "{at}: lengthened by something else than zeros"
        );
        lock(&self.shared.bytes).settle(after.clone());
        if self.random.bool() {
            return Some(file);
        }
        self.watch();
        file.close().unwrap_or_else(|error| panic!("{at}: {error}"));
        self.disk.watch(None);
        assert!(
            self.layout.content(&self.disk) == Some(after),
            "{at}: closed, it is as any other file"
        );
        None
    }
}

fn read(file: &File) -> Vec<u8> {
    let mut content = Buffer::zeroed(file.len().expect("no reader") as usize);
    let read = file.read_at(&mut content, 0).expect("it can be read");
    assert_eq!(read, content.len());
    content.to_vec()
}

/// Checks the file after a crash.
struct Checker {
    shared: Arc<Shared>,
    options: OpenOptions,
    layout: Layout,
    every_recovery: bool,
    at: String,
}

impl Checker {
    /// Opens the file as a program does after a crash, at times after crashes during recovery.
    /// Returns its content.
    fn check(&self, crashed: &Disk, random: &mut fastrand::Rng) -> Vec<u8> {
        lock(&self.shared.outcome).crashes += 1;
        let interrupted = match self.every_recovery {
            true => Interrupted::Each,
            false if random.u8(..3) == 0 => Interrupted::After(random.u64(..8)),
            false => Interrupted::None,
        };
        let recover = |disk: &Disk, when: &str| drop(self.recover(disk, when));
        let cut_short =
            self.layout.interrupt_recoveries(crashed, &self.options, interrupted, recover);
        lock(&self.shared.outcome).recoveries_cut_short += cut_short;
        self.recover(crashed, "after a crash")
    }

    fn recover(&self, disk: &Disk, when: &str) -> Vec<u8> {
        let at = format!("{}, {when}", self.at);
        let bytes = lock(&self.shared.bytes);
        let file =
            self.layout.open(disk, &self.options).unwrap_or_else(|error| panic!("{at}: {error}"));
        if let Some(found) = file.recovery().filter(|found| found.verdict == Verdict::EndUnknown) {
            lock(&self.shared.outcome).undecided += 1;
            assert!(found.floor <= bytes.most(), "{at}: {found}");
            let end = bytes.end_of_records(&read(&file), found.floor);
            file.set_len(end).unwrap_or_else(|error| panic!("{at}: {error}"));
        }
        let content = read(&file);
        bytes.check_after_crash(&content, &at);
        file.close().unwrap_or_else(|error| panic!("{at}: {error}"));
        assert!(
            self.layout.content(disk).as_ref() == Some(&content),
            "{at}: closed, it is as any other file"
        );
        content
    }
}

struct Writer {
    random: fastrand::Rng,
    /// Plain and durable.
    handles: [File; 2],
    shared: Arc<Shared>,
    positional: bool,
    at: String,
}

/// An operation in flight.
enum What {
    Write { number: Number, durable: bool },
    Sync(Vec<Number>),
}

impl Writer {
    fn work(&mut self) {
        let queue =
            (self.random.u8(..3) == 0).then(|| Queue::new([2, 8, 32][self.random.usize(..3)]));
        for _ in 0..1 + self.random.u64(..12) {
            match &queue {
                Some(queue) => self.queue(queue),
                None => self.call(),
            }
        }
    }

    fn len(&mut self) -> u64 {
        let block = BLOCK_BYTES;
        match self.random.u8(..16) {
            0 => self.random.u64(1..8),
            1 => block - 1,
            2 => block,
            3 => block + 1,
            4 => self.random.u64(1..10 * block),
            5 => self.random.u64(1..4) * block,
            6 => SECTOR - 1 + self.random.u64(..3),
            _ => self.random.u64(1..700),
        }
    }

    /// The range of a positional write: around the last block, in bytes or in whole sectors.
    fn place(&mut self) -> (u64, u64) {
        let len = self.handles[0].len().expect("no reader");
        let beyond = if self.positional { self.random.u64(..12 * SECTOR) } else { 0 };
        let place = (len + beyond).saturating_sub(self.random.u64(1..20 * SECTOR));
        let most = 20 * SECTOR;
        let most = if self.positional { most } else { len.saturating_sub(place).min(most) };
        let bytes = if most == 0 { 0 } else { self.random.u64(1..=most) };
        let unit = if self.random.bool() { SECTOR } else { 1 };
        (place / unit * unit, bytes / unit * unit)
    }

    fn call(&mut self) {
        lock(&self.shared.outcome).operations += 1;
        let durable = self.random.bool();
        match self.random.u8(..10) {
            0..=5 => {
                let len = self.len();
                let number = lock(&self.shared.bytes).begin(len, None);
                let skip = [0, 0, self.random.usize(..SECTOR_BYTES)][self.random.usize(..3)];
                let mut memory = Buffer::zeroed(skip + len as usize);
                let data = &mut memory[skip..];
                data.copy_from_slice(&record(number, 0..len));
                let result = self.handles[usize::from(durable)].append(data);
                self.answered(number, durable, result.as_ref().copied());
                if let (Ok(offset), false) = (&result, self.positional) {
                    self.read_back(*offset, data);
                }
            }
            6 | 7 => {
                let (place, len) = self.place();
                if len == 0 {
                    return;
                }
                let number = lock(&self.shared.bytes).begin(len, Some(place));
                let skip = [0, self.random.usize(..SECTOR_BYTES)][self.random.usize(..2)];
                let mut memory = Buffer::zeroed(skip + len as usize);
                memory[skip..].copy_from_slice(&record(number, 0..len));
                let result = self.handles[usize::from(durable)].write_at(&memory[skip..], place);
                self.answered(number, durable, result.as_ref().map(|()| place));
            }
            8 => {
                let promised = lock(&self.shared.bytes).acknowledged();
                match self.handles[0].sync_data() {
                    Ok(()) => lock(&self.shared.bytes).promise(&promised),
                    Err(error) => self.judge(&error),
                }
            }
            _ => {
                let end = self.handles[0].len().expect("no reader");
                let room = self.random.usize(1..3000).min(end as usize);
                let mut memory = Buffer::zeroed(SECTOR_BYTES + room);
                let into = &mut memory[self.random.usize(..=SECTOR_BYTES)..][..room];
                let from = end - into.len() as u64;
                let noted = lock(&self.shared.bytes).tick();
                match self.handles[0].read_at(into, from) {
                    Ok(read) => {
                        assert_eq!(read, into.len(), "{}", self.at);
                        self.check_read(into, from, noted);
                    }
                    Err(error) => self.judge(&error),
                }
            }
        }
    }

    /// Each write that was acknowledged before the read, at `noted`, is there, or a later one. A
    /// failure of the disk may have taken it.
    fn check_read(&self, bytes: &[u8], from: u64, noted: u64) {
        let counts = |write: &Write| write.acknowledged && write.ended <= Some(noted);
        if !*lock(&self.shared.may_fail) {
            let at = format!("{}, a read from {from}", self.at);
            let because = "was acknowledged before the read";
            lock(&self.shared.bytes).check_part(bytes, from, &counts, because, &at);
        }
    }

    /// Reads an append back. Only a positional write may have overwritten it.
    fn read_back(&self, offset: u64, data: &[u8]) {
        let mut into = Buffer::zeroed(data.len());
        match self.handles[0].read_at(&mut into, offset) {
            Ok(read) => {
                assert_eq!(read, data.len(), "{}", self.at);
                let overwritten = lock(&self.shared.bytes).writes.values().any(|write| {
                    let range = write.range().filter(|_| !write.appended);
                    range.is_some_and(|it| it.start < offset + data.len() as u64 && offset < it.end)
                });
                assert!(
                    overwritten || *into == *data,
                    "{}: not what was appended at {offset}",
                    self.at
                );
            }
            Err(error) => self.judge(&error),
        }
    }

    fn queue(&mut self, queue: &Queue) {
        let mut pending = BTreeMap::new();
        for tag in 0..1 + self.random.u64(..queue.depth() as u64) {
            let durable = self.random.bool();
            let file = &self.handles[usize::from(durable)].try_clone().expect("one more handle");
            let what = match self.random.u8(..8) {
                0 => {
                    queue.sync_data(file, tag).expect("there is room");
                    What::Sync(lock(&self.shared.bytes).acknowledged())
                }
                1 | 2 => {
                    let (place, len) = self.place();
                    if len == 0 {
                        continue;
                    }
                    let number = lock(&self.shared.bytes).begin(len, Some(place));
                    let data = Buffer::from(&record(number, 0..len)[..]);
                    queue.write_at(file, data, place, tag).expect("there is room");
                    What::Write { number, durable }
                }
                _ => {
                    let len = self.len();
                    let number = lock(&self.shared.bytes).begin(len, None);
                    let data = Buffer::from(&record(number, 0..len)[..]);
                    queue.append(file, data, tag).expect("there is room");
                    What::Write { number, durable }
                }
            };
            lock(&self.shared.outcome).operations += 1;
            lock(&self.shared.outcome).queued += 1;
            pending.insert(tag, what);
        }
        while !pending.is_empty() {
            let done: Vec<_> = queue.reap(1).collect();
            for done in done {
                match pending.remove(&done.tag).expect("each comes back once") {
                    What::Write { number, durable } => {
                        let result = done.result.as_ref().copied();
                        let known = lock(&self.shared.bytes).writes[&number].place;
                        self.answered(
                            number,
                            durable,
                            result.map(|offset| known.unwrap_or(offset)),
                        );
                    }
                    What::Sync(promised) => match done.result {
                        Ok(_) => lock(&self.shared.bytes).promise(&promised),
                        Err(error) => self.judge(&error),
                    },
                }
            }
        }
    }

    fn answered(&self, number: Number, durable: bool, result: Result<u64, &Error>) {
        lock(&self.shared.bytes).end(number, result.map_err(drop), durable);
        if let Err(error) = result {
            self.judge(error);
        }
    }

    fn judge(&self, error: &Error) {
        let mut outcome = lock(&self.shared.outcome);
        outcome.failed += 1;
        outcome.full += u64::from(matches!(error.kind(), ErrorKind::NoSpace(_)));
        outcome.wedged += u64::from(matches!(error.kind(), ErrorKind::Wedged(_)));
        let over_old = self.positional && matches!(error.kind(), ErrorKind::Unsupported(_));
        assert!(*lock(&self.shared.may_fail) || over_old, "{}: {error}", self.at);
    }
}
