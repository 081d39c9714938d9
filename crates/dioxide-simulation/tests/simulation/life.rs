//! The life of one file: phases in which several writers use it in parallel, and the steps between
//! them.

use crate::layout::{Interrupted, Layout};
use crate::oracle::Oracle;
use crate::queues::Queuer;
use crate::records::{BLOCK_BYTES, SECTORS, Sector, sectors};
use crate::writer::Writer;
use dioxide::sim::{self, Call, Disk, Settings};
use dioxide::{Buffer, Durability, ErrorKind, File, Growth, OpenOptions, Verdict};
use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const ORDINARY: &str = "ordinary";

/// When the power fails while writers work, each time on a copy of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crashes {
    Never,
    /// At one event in this many.
    OneIn(u64),
    /// At each event, and then at each event of the recovery.
    Every,
}

/// The counts of some lives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    pub lives: u64,
    pub operations: u64,
    pub events: u64,
    pub crashes: u64,
    pub killed: u64,
    pub recoveries_cut_short: u64,
    pub undecided: u64,
    pub failed: u64,
    pub full: u64,
    pub wedged: u64,
    pub recycled: u64,
    pub cut: u64,
    /// Operations put into queues; those in dropped queues; those whose file was closed before.
    pub queued: u64,
    pub dropped: u64,
    pub closed_before: u64,
    pub truncate_beside: u64,
    pub died: u64,
    pub striped: u64,
    /// Flushes that another file made.
    pub shared: u64,
}

impl Outcome {
    pub fn add(&mut self, other: &Self) {
        self.lives += other.lives;
        self.operations += other.operations;
        self.events += other.events;
        self.crashes += other.crashes;
        self.killed += other.killed;
        self.recoveries_cut_short += other.recoveries_cut_short;
        self.undecided += other.undecided;
        self.failed += other.failed;
        self.full += other.full;
        self.wedged += other.wedged;
        self.recycled += other.recycled;
        self.cut += other.cut;
        self.queued += other.queued;
        self.dropped += other.dropped;
        self.closed_before += other.closed_before;
        self.truncate_beside += other.truncate_beside;
        self.died += other.died;
        self.striped += other.striped;
        self.shared += other.shared;
    }
}

/// The life of one file.
pub struct Life {
    seed: u64,
    random: fastrand::Rng,
    crashes: Crashes,
    settings: Settings,
    options: OpenOptions,
    layout: Layout,
    /// Control: acknowledged writes count as durable.
    too_early: bool,
    disk: Disk,
    /// The file, if it stays open between two phases.
    open: Option<File>,
    shared: Arc<Shared>,
    ordinary: Vec<u8>,
}

/// The state that the writers of a phase share.
pub struct Shared {
    pub oracle: Mutex<Oracle>,
    pub outcome: Mutex<Outcome>,
    pub phase: Mutex<Phase>,
}

#[derive(Clone, Debug, Default)]
pub struct Phase {
    /// A fault was planned.
    pub faulty: bool,
    /// The disk dies.
    pub dies: bool,
    /// There is little space.
    pub narrow: bool,
    pub positional: bool,
    /// A thread changes the length meanwhile.
    pub truncate_beside: bool,
    /// The file may be closed while queues still have operations on it.
    pub closed_beside: bool,
    pub too_early: bool,
    pub broken: bool,
    pub wedged: bool,
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Draws the settings of a disk, and the growth.
pub fn drawn(random: &mut fastrand::Rng) -> (Settings, Growth) {
    let mut settings = Settings::default();
    if random.u8(..4) == 0 {
        settings.capacity_bytes = random.u64(12..60) * BLOCK_BYTES;
    }
    settings.allocates = random.u8(..5) > 0;
    settings.short_one_in = [0, 0, 2, 5][random.usize(..4)];
    settings.interrupted_one_in = [0, 0, 3, 20][random.usize(..4)];
    let growth =
        [Growth::Unwritten, Growth::Unwritten, Growth::Zeroed, Growth::None][random.usize(..4)];
    settings.writes_zeroes = random.bool();
    (settings, growth)
}

impl Life {
    pub fn new(seed: u64, crashes: Crashes) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let (settings, growth) = drawn(&mut random);
        let mut options = OpenOptions::new();
        options.write(true).create(true).growth(growth).growth_cap(BLOCK_BYTES << random.u64(..6));
        if random.u8(..3) == 0 {
            options.capacity(random.u64(..40) * BLOCK_BYTES);
        }
        let layout = Layout::of(seed);
        let ordinary = (0..random.usize(..9000)).map(|_| random.u8(..)).collect();
        Self {
            disk: Disk::with(seed, settings.clone()),
            seed,
            random,
            crashes,
            settings,
            options,
            layout,
            too_early: false,
            open: None,
            shared: Arc::new(Shared {
                oracle: Mutex::default(),
                outcome: Mutex::new(Outcome {
                    lives: 1,
                    striped: layout.is_striped(),
                    ..Outcome::default()
                }),
                phase: Mutex::default(),
            }),
            ordinary,
        }
    }

    /// Control: flushes do nothing.
    pub fn on_a_lying_disk(mut self) -> Self {
        self.settings.lies_about_flushes = true;
        self.disk = Disk::with(self.seed, self.settings.clone());
        self
    }

    /// Control: plain appends count as durable.
    pub fn acknowledging_too_early(mut self) -> Self {
        self.too_early = true;
        self
    }

    pub fn live(mut self) -> Outcome {
        self.disk.put(ORDINARY, &self.ordinary);
        let mut recycled = false;
        for _ in 0..1 + self.random.u64(..3) {
            let file =
                self.open.take().map_or_else(|| self.layout.open(&self.disk, &self.options), Ok);
            let file = file.unwrap_or_else(|error| panic!("{}: {error}", self.at()));
            assert!(file.recovery().is_none(), "{}: {:?}", self.at(), file.recovery());
            let file = self.phase(file, recycled);
            recycled = self.between(file);
        }
        self.check_ordinary(&self.disk.clone());
        lock(&self.shared.outcome).clone()
    }

    fn at(&self) -> String {
        format!("seed {}, {:?}, {:?}, {:?}", self.seed, self.layout, self.options, self.settings)
    }

    // --- a phase ---------------------------------------------------------------------------------

    /// Runs a phase. Returns the file, which may have been closed and reopened.
    fn phase(&mut self, mut file: File, recycled: bool) -> File {
        let growth = file.growth();
        let mut phase = Phase {
            narrow: self.settings.capacity_bytes < 1 << 20,
            positional: !recycled && self.random.u8(..3) == 0,
            truncate_beside: !recycled && self.random.u8(..8) == 0,
            too_early: self.too_early,
            ..Phase::default()
        };
        let faulty = self.random.u8(..3) == 0;
        phase.closed_beside = !faulty && !phase.truncate_beside && self.random.u8(..6) == 0;
        *lock(&self.shared.phase) = phase.clone();
        if faulty {
            self.plan_faults();
        }
        if self.random.u8(..8) == 0 {
            self.disk.stall(Duration::from_millis(self.random.u64(..100)));
        }
        self.watch(growth);
        let (mut threads, mut lingering) = (Vec::new(), Vec::new());
        for _ in 0..1 + self.random.u64(..5) {
            let mut writer = self.writer(&file);
            match self.random.u8(..3) {
                0 => {
                    let lingers = phase.closed_beside;
                    let thread = sim::spawn(move || Queuer::new(writer, lingers).work());
                    if lingers { &mut lingering } else { &mut threads }.push(thread);
                }
                _ => threads.push(sim::spawn(move || writer.work())),
            }
        }
        if phase.truncate_beside {
            let writer = self.writer(&file);
            threads.push(sim::spawn(move || truncate_beside(writer)));
        }
        join(threads);
        if phase.closed_beside {
            file.close().unwrap_or_else(|error| panic!("{}: {error}", self.at()));
            let again = self.layout.open(&self.disk, &self.options);
            file = again.unwrap_or_else(|error| panic!("{}: {error}", self.at()));
        }
        join(lingering);
        self.disk.heal();
        self.disk.watch(None);
        lock(&self.shared.oracle).check_appends(&self.at());
        file
    }

    fn writer(&mut self, file: &File) -> Writer {
        let plain = file.try_clone().expect("one more handle");
        Writer {
            random: self.random.fork(),
            handles: vec![plain, durable_handle(self.layout, &self.disk, &self.options)],
            shared: self.shared.clone(),
            own: BTreeMap::new(),
            at: self.at(),
        }
    }

    fn plan_faults(&mut self) {
        if self.random.u8(..12) == 0 {
            self.disk.die_after(self.random.u64(..40));
            lock(&self.shared.phase).dies = true;
            lock(&self.shared.outcome).died += 1;
        }
        for _ in 0..1 + self.random.u64(..2) {
            let call = [Call::Write, Call::Write, Call::Flush, Call::Allocate, Call::Marker]
                [self.random.usize(..5)];
            let errno = [5, 5, 28][self.random.usize(..3)];
            // The library does not define ENOSPC of a flush.
            let errno = if call == Call::Flush { 5 } else { errno };
            self.disk.fail(call, self.random.u64(..12), errno);
        }
        lock(&self.shared.phase).faulty = true;
    }

    /// Checks a power cut at events of the phase, on copies of the disk.
    fn watch(&mut self, growth: Growth) {
        let one_in = match self.crashes {
            Crashes::Never => return,
            Crashes::OneIn(count) => count,
            Crashes::Every => 1,
        };
        let mut random = self.random.fork();
        let checker = self.checker(growth);
        let disk = self.disk.clone();
        self.disk.watch(Some(Box::new(move || {
            lock(&checker.shared.outcome).events += 1;
            if random.u64(..one_in) > 0 {
                return;
            }
            match random.u8(..4) {
                // After a failed flush only a new mount shows the stable content. A program that
                // was killed does not know of the failure.
                0 if !lock(&checker.shared.phase).faulty => checker.check_killed(&disk.kill()),
                _ => drop(checker.check(&disk.crash(), &mut random)),
            }
        })));
    }

    fn checker(&self, growth: Growth) -> Checker {
        Checker {
            shared: self.shared.clone(),
            options: self.options.clone(),
            layout: self.layout,
            growth,
            short_writes: self.settings.short_one_in > 0,
            every_recovery: self.crashes == Crashes::Every,
            at: self.at(),
        }
    }

    // --- between phases --------------------------------------------------------------------------

    /// Crashes for good, or runs an exclusive operation. Returns whether the next phase runs over
    /// old content.
    fn between(&mut self, file: File) -> bool {
        let mut phase = lock(&self.shared.phase).clone();
        let growth = file.growth();
        if phase.faulty && !phase.dies {
            // A failed durable write reports only its own error, and the next call reports the
            // wedge. A failed last flush of background growth is not reported yet.
            let wedged =
                file.sync_data().is_err_and(|error| matches!(error.kind(), ErrorKind::Wedged(_)));
            assert!(wedged || !phase.wedged, "{}: wedged no more", self.at());
            phase.wedged = wedged;
        }
        if phase.dies {
            // The disk may have died before the first use.
            drop(file.close());
        } else if phase.wedged {
            assert!(file.close().is_err(), "{}: closed on a wedged file system", self.at());
            let again = self
                .layout
                .open(&self.disk, &self.options)
                .expect_err("refused until it is mounted anew");
            assert!(matches!(again.kind(), ErrorKind::Wedged(_)), "{}: {again}", self.at());
        } else if self.random.bool() {
            return self.alone(file, &phase);
        }
        let mut random = self.random.fork();
        let crashed = self.disk.crash();
        let content = self.checker(growth).check(&crashed, &mut random);
        self.check_ordinary(&crashed);
        self.disk = crashed;
        lock(&self.shared.oracle).settle(content);
        false
    }

    fn alone(&mut self, file: File, phase: &Phase) -> bool {
        let at = self.at();
        let len = file.len().expect("no reader");
        if phase.broken {
            // Acknowledged data stays; the truncate ends the failed appends.
            self.watched(&file, |file| file.set_len(len));
        } else {
            let growth_none = file.growth() == Growth::None;
            let full = lock(&self.shared.outcome).full > 0;
            lock(&self.shared.oracle).check_live(
                &read(&file),
                growth_none && (phase.faulty || full),
                &at,
            );
        }
        let mut recycled = false;
        match self.random.u8(..4) {
            0 => {
                let to = self.random.u64(..=len / BLOCK_BYTES + 4) * BLOCK_BYTES;
                lock(&self.shared.outcome).cut += 1;
                lock(&self.shared.oracle).becoming = Some(to);
                self.watched(&file, |file| file.set_len(to));
                assert_eq!(file.len().ok(), Some(to), "{at}");
            }
            1 if file.growth() != Growth::None => {
                lock(&self.shared.outcome).recycled += 1;
                lock(&self.shared.oracle).becoming = Some(0);
                self.watched(&file, File::recycle);
                recycled = true;
            }
            _ => self.watched(&file, File::sync_data),
        }
        let content = read(&file);
        lock(&self.shared.oracle).settle(content.clone());
        if recycled {
            // The next phase finds the old content above EOF.
            self.open = Some(file);
            return true;
        }
        self.watch(file.growth());
        file.close().unwrap_or_else(|error| panic!("{at}: {error}"));
        self.disk.watch(None);
        assert_eq!(
            self.layout.content(&self.disk),
            Some(content),
            "{at}: closed, it is as any other file"
        );
        false
    }

    /// Runs an exclusive operation, and checks power cuts at its events.
    fn watched(&mut self, file: &File, change: impl FnOnce(&File) -> dioxide::Result<()>) {
        self.watch(file.growth());
        change(file).unwrap_or_else(|error| panic!("{}: {error}", self.at()));
        self.disk.watch(None);
    }

    /// Checks that recovery never changes another program's file.
    fn check_ordinary(&self, disk: &Disk) {
        let file = disk.open(OpenOptions::new().write(true), ORDINARY).expect("it is in order");
        assert!(file.recovery().is_none());
        file.close().expect("it closes");
        assert_eq!(disk.content(ORDINARY).as_ref(), Some(&self.ordinary), "{}", self.at());
    }
}

pub fn join(threads: Vec<sim::JoinHandle<()>>) {
    for thread in threads {
        if let Err(panic) = thread.join() {
            resume_unwind(panic);
        }
    }
}

/// Changes the length while others use the file.
fn truncate_beside(mut writer: Writer) {
    for _ in 0..1 + writer.random.u64(..3) {
        sim::sleep(Duration::from_micros(writer.random.u64(..500)));
        let len = writer.handle(false).len().expect("no reader") / BLOCK_BYTES;
        let to = (len + 4).saturating_sub(writer.random.u64(..16));
        writer.oracle().begin_truncate(to, to > len);
        let result = writer.handle(false).set_len(to * BLOCK_BYTES);
        writer.oracle().end_truncate(result.is_ok());
        lock(&writer.shared.outcome).truncate_beside += u64::from(result.is_ok());
        result.unwrap_or_else(|error| writer.judge(&error));
    }
}

fn durable_handle(layout: Layout, disk: &Disk, options: &OpenOptions) -> File {
    layout.open(disk, options.clone().durability(Durability::EveryWrite)).expect("one more handle")
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
    growth: Growth,
    short_writes: bool,
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
            false if random.u8(..4) == 0 => Interrupted::After(random.u64(..8)),
            false => Interrupted::None,
        };
        let recover = |disk: &Disk, when: &str| drop(self.recover(disk, when));
        let cut_short =
            self.layout.interrupt_recoveries(crashed, &self.options, interrupted, recover);
        lock(&self.shared.outcome).recoveries_cut_short += cut_short;
        self.recover(crashed, "after a crash")
    }

    /// A power cut keeps all content that `open` found after a kill.
    fn check_killed(&self, killed: &Disk) {
        lock(&self.shared.outcome).killed += 1;
        let file = self
            .layout
            .open(killed, &self.options)
            .unwrap_or_else(|error| panic!("{}: {error}", self.at));
        let found = read(&file);
        let crashed = killed.crash();
        let again = self
            .layout
            .open(&crashed, &self.options)
            .unwrap_or_else(|error| panic!("{}: {error}", self.at));
        assert!(
            read(&again) == found,
            "{}: what was found after a kill was durable, and is gone",
            self.at
        );
        again.close().unwrap_or_else(|error| panic!("{}: {error}", self.at));
        file.close().unwrap_or_else(|error| panic!("{}: {error}", self.at));
        self.recover(killed, "after a kill");
    }

    fn recover(&self, disk: &Disk, when: &str) -> Vec<u8> {
        let at = format!("{}, {when}", self.at);
        let oracle = lock(&self.shared.oracle);
        let file =
            self.layout.open(disk, &self.options).unwrap_or_else(|error| panic!("{at}: {error}"));
        if file.recovery().is_some_and(|found| found.verdict == Verdict::EndUnknown) {
            lock(&self.shared.outcome).undecided += 1;
            let found = file.recovery().expect("just seen");
            assert!(found.floor <= oracle.most(), "{at}: {found}");
            let end = end_of_records(&oracle, &read(&file), found.floor);
            file.set_len(end).unwrap_or_else(|error| panic!("{at}: {error}"));
        }
        let len = file.len().expect("no reader");
        // Where growth was refused for good, the kernel moves EOF as well, and there is no marker.
        let kernel_extends = self.growth == Growth::None || file.recovery().is_none();
        if !len.is_multiple_of(BLOCK_BYTES) {
            // Only a short write that moves EOF can leave this length, and appends to it fail.
            assert!(
                self.short_writes && kernel_extends,
                "{at}: {len} bytes, {:?}",
                file.recovery()
            );
            file.set_len(len / BLOCK_BYTES * BLOCK_BYTES)
                .unwrap_or_else(|error| panic!("{at}: {error}"));
        }
        let content = read(&file);
        // A file that the kernel extends may be longer than its data. The rest of a block after a
        // short write is zero until the write is resumed.
        let may_have_zeros = kernel_extends || self.short_writes;
        oracle.check_after_crash(&content, may_have_zeros, &at);
        file.close().unwrap_or_else(|error| panic!("{at}: {error}"));
        assert_eq!(
            self.layout.content(disk).as_ref(),
            Some(&content),
            "{at}: closed, it is as any other file"
        );
        content
    }
}

/// The end of the records since the last `settle`, in whole blocks.
fn end_of_records(oracle: &Oracle, content: &[u8], floor: u64) -> u64 {
    let floor = floor.max(oracle.base_len());
    let blocks: Vec<_> = sectors(content).collect();
    let is_whole = |block: &[(u64, Sector)]| {
        block.iter().all(
            |(_, sector)| matches!(sector, Sector::Of { write, .. } if oracle.is_recent(*write)),
        )
    };
    let above = blocks.chunks(SECTORS).enumerate().skip((floor / BLOCK_BYTES) as usize);
    let end = match oracle.holes {
        true => above.filter(|(_, block)| is_whole(block)).map(|(n, _)| n as u64 + 1).max(),
        false => above.take_while(|(_, block)| is_whole(block)).last().map(|(n, _)| n as u64 + 1),
    };
    end.map_or(floor, |end| end * BLOCK_BYTES)
}
