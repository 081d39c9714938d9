//! Many files of one disk, which share flushes. Threads and queues write them, beside faults. After
//! a power cut each file has what was acknowledged as durable.

use crate::life::{Crashes, Outcome, drawn, join, lock};
use crate::records::{BLOCK_BYTES, Number, SECTORS, Sector, record, sectors};
use dioxide::sim::{self, Call, Disk};
use dioxide::{Buffer, Durability, ErrorKind, File, OpenOptions, Queue};
use std::sync::{Arc, Mutex};

/// The place of a record, which is rewritten at times.
#[derive(Debug)]
struct Place {
    offset: u64,
    blocks: u64,
    /// Its writes that were begun, in order. None begins before the one before has ended.
    begun: Vec<Number>,
    /// The last one that is durable; 0 if none is.
    durable: Number,
}

/// The expected content of a file.
#[derive(Debug, Default)]
struct Log {
    places: Vec<Place>,
    /// The last number of a write.
    last: Number,
}

type Logs = Arc<Mutex<Vec<Log>>>;

/// A life of several files.
pub struct Life {
    seed: u64,
    random: fastrand::Rng,
    crashes: Crashes,
    disk: Disk,
    options: OpenOptions,
    /// A flush fails.
    is_faulty: bool,
    logs: Logs,
    outcome: Arc<Mutex<Outcome>>,
}

impl Life {
    pub fn new(seed: u64, crashes: Crashes) -> Self {
        Self::with(seed, crashes, false)
    }

    /// Control: no flush does anything.
    pub fn on_a_lying_disk(seed: u64, crashes: Crashes) -> Self {
        Self::with(seed, crashes, true)
    }

    fn with(seed: u64, crashes: Crashes, lies: bool) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let (mut settings, growth) = drawn(&mut random);
        settings.capacity_bytes = 1 << 30;
        settings.lies_about_flushes = lies;
        settings.commits_fast = random.u8(..8) == 0;
        let mut options = OpenOptions::new();
        options.write(true).create(true).growth(growth).growth_cap(BLOCK_BYTES << random.u64(2..6));
        Self {
            seed,
            is_faulty: random.u8(..6) == 0,
            crashes,
            disk: Disk::with(seed, settings),
            options,
            logs: Logs::default(),
            outcome: Arc::default(),
            random,
        }
    }

    pub fn live(mut self) -> Outcome {
        let (alone, queued) = (self.random.usize(2..8), self.random.usize(..12));
        let count = alone + queued;
        lock(&self.logs).resize_with(count, Log::default);
        let files: Vec<_> = (0..count).map(|nth| Arc::new(self.open(nth))).collect();
        self.watch();
        if self.is_faulty {
            self.disk.fail(Call::Flush, self.random.u64(..20), libc::EIO);
        }
        if self.random.u8(..6) == 0 {
            self.disk.fail(Call::Join, self.random.u64(..20), libc::ENOSPC);
        }
        let writer = |random: &mut fastrand::Rng| Writer {
            random: random.fork(),
            logs: self.logs.clone(),
            outcome: self.outcome.clone(),
            is_faulty: self.is_faulty,
        };
        let mut threads = Vec::new();
        for (nth, file) in files.iter().enumerate().take(alone) {
            let (mut writer, file) = (writer(&mut self.random), file.clone());
            threads.push(sim::spawn(move || writer.write(nth, &file)));
        }
        let (mut queuer, queued) = (writer(&mut self.random), files[alone..].to_vec());
        threads.push(sim::spawn(move || queuer.write_by_queue(alone, &queued)));
        join(threads);
        self.disk.watch(None);
        let mut outcome = lock(&self.outcome).clone();
        outcome.lives += 1;
        outcome.shared += files.iter().map(|file| file.stats().flushes_shared).sum::<u64>();
        check(&self.disk.crash(), &self.options, &self.logs, self.seed);
        outcome
    }

    fn open(&self, nth: usize) -> File {
        let options = self.options.clone().durability(Durability::EveryWrite).clone();
        self.disk.open(&options, &name(nth)).expect("it opens")
    }

    fn watch(&mut self) {
        let Crashes::OneIn(count) = self.crashes else { return };
        let (disk, options, logs) = (self.disk.clone(), self.options.clone(), self.logs.clone());
        let (outcome, seed, mut random) = (self.outcome.clone(), self.seed, self.random.fork());
        self.disk.watch(Some(Box::new(move || {
            lock(&outcome).events += 1;
            if random.u64(..count) == 0 {
                lock(&outcome).crashes += 1;
                check(&disk.crash(), &options, &logs, seed);
            }
        })));
    }
}

fn name(nth: usize) -> String {
    format!("log-{nth}")
}

/// Opens each file after a power cut, and looks for what must be there.
fn check(crashed: &Disk, options: &OpenOptions, logs: &Logs, seed: u64) {
    for (nth, log) in lock(logs).iter().enumerate() {
        let file = crashed.open(options, &name(nth)).expect("it opens after a crash");
        let mut content = Buffer::zeroed(file.len().expect("no reader") as usize);
        file.read_at(&mut content, 0).expect("it is read");
        let found: Vec<_> = sectors(&content).map(|(_, sector)| sector).collect();
        for place in log.places.iter().filter(|place| place.durable > 0) {
            for at in 0..place.blocks {
                let first = (place.offset / BLOCK_BYTES + at) as usize * SECTORS;
                let is_kept = |sector: &Sector| match sector {
                    Sector::Of { write, block } => {
                        *block == at && *write >= place.durable && place.begun.contains(write)
                    }
                    Sector::Zero | Sector::Garbage => false,
                };
                let kept = found.get(first..first + SECTORS);
                assert!(
                    kept.is_some_and(|sectors| sectors.iter().all(is_kept)),
                    "seed {seed}, file {nth}: block {at} of {place:?} was durable; {kept:?}"
                );
            }
        }
        drop(file);
    }
}

/// A thread that writes files.
struct Writer {
    random: fastrand::Rng,
    logs: Logs,
    outcome: Arc<Mutex<Outcome>>,
    is_faulty: bool,
}

impl Writer {
    /// Begins the write of a new record, or of one that exists. Returns its place and its number.
    fn begin(&mut self, nth: usize) -> (usize, Number, u64, Option<u64>) {
        let mut logs = lock(&self.logs);
        let log = &mut logs[nth];
        log.last += 1;
        let number = log.last;
        let known = log.places.iter().filter(|place| place.durable > 0).count();
        if known > 0 && self.random.u8(..3) == 0 {
            let index = self.random.usize(..known);
            let place = &mut log.places[index];
            if place.durable > 0 {
                place.begun.push(number);
                return (index, number, place.blocks, Some(place.offset));
            }
        }
        let blocks = self.random.u64(1..4);
        log.places.push(Place { offset: 0, blocks, begun: vec![number], durable: 0 });
        (log.places.len() - 1, number, blocks, None)
    }

    fn end(&self, nth: usize, (index, number): (usize, Number), offset: u64) {
        let place = &mut lock(&self.logs)[nth].places[index];
        (place.offset, place.durable) = (offset, number);
        lock(&self.outcome).operations += 1;
    }

    /// Whether the writer goes on after an error.
    fn judge(&self, error: &dioxide::Error) {
        assert!(self.is_faulty, "{error}");
        let mut outcome = lock(&self.outcome);
        outcome.failed += 1;
        outcome.wedged += u64::from(matches!(error.kind(), ErrorKind::Wedged(_)));
    }

    fn write(&mut self, nth: usize, file: &File) {
        for _ in 0..self.random.u64(4..20) {
            let (index, number, blocks, offset) = self.begin(nth);
            let data = record(number, blocks);
            let result = match offset {
                Some(offset) => file.write_at(&data, offset).map(|()| offset),
                None => file.append(&data),
            };
            match result {
                Ok(offset) => self.end(nth, (index, number), offset),
                Err(error) => return self.judge(&error),
            }
            if self.random.u8(..8) == 0
                && let Err(error) = file.sync_data()
            {
                return self.judge(&error);
            }
        }
    }

    /// Each file has one write in flight.
    fn write_by_queue(&mut self, first: usize, files: &[Arc<File>]) {
        let queue = Queue::new(files.len().max(1));
        let mut begun: Vec<_> = files.iter().map(|_| (0, 0, None)).collect();
        let mut left: Vec<_> = files.iter().map(|_| self.random.u64(4..20)).collect();
        let mut next: Vec<_> = (0..files.len()).collect();
        loop {
            for nth in std::mem::take(&mut next) {
                let (index, number, blocks, offset) = self.begin(first + nth);
                begun[nth] = (index, number, offset);
                let (data, tag) = (record(number, blocks), nth as u64);
                let queued = match offset {
                    Some(offset) => queue.write_at(&files[nth], data, offset, tag),
                    None => queue.append(&files[nth], data, tag),
                };
                queued.expect("there is room");
            }
            if queue.outstanding() == 0 {
                return;
            }
            for done in queue.reap(1) {
                let nth = done.tag as usize;
                let (index, number, offset) = begun[nth];
                match done.result {
                    Ok(result) => self.end(first + nth, (index, number), offset.unwrap_or(result)),
                    Err(error) => {
                        self.judge(&error);
                        left[nth] = 1;
                    }
                }
                left[nth] -= 1;
                if left[nth] > 0 {
                    next.push(nth);
                }
            }
        }
    }
}
