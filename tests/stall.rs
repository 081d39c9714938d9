//! Disks that stop and die under load: nothing is acknowledged that is not so, every caller gets an answer, files
//! elsewhere go on, and no buffer is touched after its owner has it back.

mod common;

use common::*;
use dioxide::{Buffer, Durability, File, OpenOptions};
use dioxide_testkit::fuse_disk::{FuseDisk, Keep};
use dioxide_testkit::lab::{self, Fs};
use dioxide_testkit::trials::{Failed, Trial, TrialResult, fuse_trials, fuse_trials_where};
use dioxide_testkit::volume::{SIZE_MIN, Volume};
use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

const APPENDERS: u64 = 16;
const OVERWRITERS: u64 = 4;

/// Each overwriter has as many places of its own.
const PLACES: u64 = 16;

/// How many buffers the reader keeps, to look at them again.
const KEPT_MAX: usize = 256;

/// How long a caller may wait for a disk that is gone.
const BOUND: Duration = Duration::from_secs(10);

/// How often a file system may fail to come back from a power cut for reasons of its own.
const ROUNDS_MAX: u32 = 4;

fn disk(volume: &Volume) -> &FuseDisk {
    volume.disk().expect("on a FUSE disk")
}

fn durable(path: &Path) -> File {
    let mut options = writable();
    options.durability(Durability::EveryWrite).growth_cap(MIB);
    options.open(path).expect("it opens")
}

/// What the callers do, and what they were told.
struct Load {
    log: File,
    /// Of records that are short, and of any length.
    frames: File,
    table: File,
    /// Ends the callers that no error ends.
    over: AtomicBool,
    /// How many calls have returned.
    answers: AtomicU64,
    appended: Mutex<Vec<Placed>>,
    laid: Mutex<Vec<Laid>>,
}

/// Ends the callers.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The numbers of the records that a place has been given: the last acknowledged, and one that is not.
type Place = (Option<u64>, Option<u64>);

/// What the callers have left when they end.
struct Told {
    appended: Vec<Placed>,
    laid: Vec<Laid>,
    places: HashMap<u64, Place>,
    /// How many callers ended with an error.
    errors: usize,
}

impl Load {
    fn start(volume: &Volume) -> Self {
        let [log, frames, table] = ["log", "frames", "table"].map(|name| durable(&volume.path().join(name)));
        // Places that exist are written over where they are.
        for place in 0..OVERWRITERS * PLACES {
            table.append(&record(APPENDERS + place / PLACES, 0, 1)).expect("there is space");
        }
        let (over, answers) = (AtomicBool::new(false), AtomicU64::new(0));
        Self { log, frames, table, over, answers, appended: Mutex::default(), laid: Mutex::default() }
    }

    fn goes_on(&self) -> bool {
        self.answers.fetch_add(1, Ordering::Relaxed);
        !self.over.load(Ordering::Relaxed)
    }

    /// Runs `meanwhile` beside the callers, which end when it has.
    fn run(
        self,
        meanwhile: impl FnOnce(&Load) -> TrialResult,
    ) -> Result<Told, dioxide_testkit::trials::Failed> {
        let (mut errors, mut places) = (0, HashMap::new());
        thread::scope(|scope| {
            let load = &self;
            let appenders: Vec<_> = (0..APPENDERS)
                .map(|n| scope.spawn(move || if n % 2 == 0 { load.append(n) } else { load.append_frames(n) }))
                .collect();
            let overwriters: Vec<_> =
                (0..OVERWRITERS).map(|n| scope.spawn(move || load.overwrite(n))).collect();
            let reader = scope.spawn(|| load.read());
            let done = {
                // Also when it panics.
                let _end = End(&load.over);
                meanwhile(load)
            };
            let results = appenders.into_iter().map(|thread| thread.join().expect("an appender panicked"));
            errors += results.filter(Result::is_err).count();
            for (written, result) in
                overwriters.into_iter().map(|t| t.join().expect("an overwriter panicked"))
            {
                places.extend(written);
                errors += usize::from(result.is_err());
            }
            errors += usize::from(reader.join().expect("the reader panicked").is_err());
            done
        })?;
        Ok(Told { appended: self.appended.into_inner()?, laid: self.laid.into_inner()?, places, errors })
    }

    fn append(&self, writer: u64) -> dioxide::Result<()> {
        for number in 0.. {
            let blocks = 1 + number % 3;
            let mut buffer = record(writer, number, blocks);
            let result = self.log.append(&buffer);
            buffer.fill(POISON);
            let placed = Placed { offset: result?, writer, number, blocks };
            self.appended.lock().expect("nobody panics").push(placed);
            if !self.goes_on() {
                break;
            }
        }
        Ok(())
    }

    fn append_frames(&self, writer: u64) -> dioxide::Result<()> {
        for number in 0.. {
            let len = 20 + number * 37 % 900;
            let laid = append_frame(&self.frames, Frame { writer, number, len })?;
            self.laid.lock().expect("nobody panics").push(laid);
            if !self.goes_on() {
                break;
            }
        }
        Ok(())
    }

    fn overwrite(&self, n: u64) -> (HashMap<u64, Place>, dioxide::Result<()>) {
        let mut places: HashMap<_, _> =
            (n * PLACES..(n + 1) * PLACES).map(|place| (place, (Some(0), None))).collect();
        let mut random = Random::new(n);
        for number in 1.. {
            let place = n * PLACES + random.below(PLACES);
            let mut buffer = record(APPENDERS + n, number, 1);
            let result = self.table.write_at(&buffer, place * BLOCK_BYTES);
            buffer.fill(POISON);
            let (acknowledged, open) = places.get_mut(&place).expect("one of its own");
            if let Err(error) = result {
                *open = Some(number);
                return (places, Err(error));
            }
            *acknowledged = Some(number);
            if !self.goes_on() {
                break;
            }
        }
        (places, Ok(()))
    }

    /// Reads what is acknowledged, and looks at what it has read again when all is over.
    fn read(&self) -> dioxide::Result<()> {
        let mut random = Random::new(99);
        let mut kept: Vec<(Placed, Buffer)> = Vec::new();
        let result = loop {
            let Some(placed) = self.any_appended(&mut random) else {
                thread::sleep(Duration::from_millis(1));
                continue;
            };
            let mut buffer = Buffer::zeroed((placed.blocks * BLOCK_BYTES) as usize);
            let result = self.log.read_at(&mut buffer, placed.offset);
            if result.is_err() {
                buffer.fill(POISON);
            }
            kept.push((placed, buffer));
            let excess = kept.len().saturating_sub(KEPT_MAX);
            kept.drain(..excess);
            if result.is_err() || !self.goes_on() {
                break result.map(drop);
            }
        };
        // A late answer of the disk would land here.
        thread::sleep(Duration::from_millis(300));
        let failed = result.is_err().then(|| kept.pop().expect("the one that failed").1);
        assert!(
            failed.is_none_or(|buffer| buffer.iter().all(|byte| *byte == POISON)),
            "written to after an error"
        );
        for (placed, buffer) in &kept {
            let same = record(placed.writer, placed.number, placed.blocks);
            assert!(buffer[..] == same[..], "read, or changed since, as something else: {placed:?}");
        }
        result
    }

    fn any_appended(&self, random: &mut Random) -> Option<Placed> {
        let appended = self.appended.lock().expect("nobody panics");
        let count = appended.len() as u64;
        (count > 0).then(|| appended[random.below(count) as usize])
    }

    /// Waits until the callers have had as many more answers.
    fn wait_for(&self, answers: u64) {
        let wanted = self.answers.load(Ordering::Relaxed) + answers;
        let deadline = Instant::now() + Duration::from_secs(30);
        while self.answers.load(Ordering::Relaxed) < wanted {
            assert!(Instant::now() < deadline, "the disk serves nobody");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Checks that files on another file system go on, in bounded time.
fn assert_others_go_on(fs: Fs) -> TrialResult {
    let dir = lab::fresh_dir(fs, "beside_an_outage")?;
    let (done, result) = mpsc::channel();
    let path = dir.join("log");
    let beside = thread::spawn(move || {
        let file = durable(&path);
        append_many(&file, 1, 20);
        file.close().expect("it closes");
        let _ = done.send(());
    });
    result.recv_timeout(BOUND).map_err(|_| "a file on another file system waited")?;
    beside.join().expect("no panic beside the outage");
    Ok(())
}

/// Checks that everything acknowledged is there, after the volume was mounted anew.
fn assert_kept(volume: &Volume, told: &Told) -> TrialResult {
    let [log, frames, table] = ["log", "frames", "table"].map(|name| volume.path().join(name));
    for path in [&log, &frames, &table] {
        OpenOptions::new().write(true).open(path)?.close()?;
    }
    assert_all_there(&fs::read(&log)?, &told.appended);
    assert_all_laid(&fs::read(&frames)?, &told.laid);
    let content = fs::read(&table)?;
    for (place, &(acknowledged, open)) in &told.places {
        let block = &content[(place * BLOCK_BYTES) as usize..][..BLOCK];
        let stamp = Stamp::of(block).map(|stamp| (stamp.writer, Some(stamp.number)));
        let writer = APPENDERS + place / PLACES;
        let expected = [(writer, acknowledged), (writer, open)];
        assert!(stamp.is_some_and(|stamp| expected.contains(&stamp)), "{place}: {stamp:?}, not {expected:?}");
    }
    Ok(())
}

fn a_stopped_disk_acknowledges_nothing_and_keeps_what_it_acknowledged(fs: Fs) -> TrialResult {
    for keep in [Keep::Nothing, Keep::All] {
        let mut rounds = (0..ROUNDS_MAX).map(|_| comes_back_from_a_stop(fs, keep));
        let came_back = rounds.find(|round| !matches!(round, Ok(false)));
        came_back.ok_or("the file system never came back from a power cut")??;
    }
    Ok(())
}

/// Whether the file system can be mounted after the power cut. btrfs sometimes cannot replay what it logged itself (Linux
/// 6.18: "write time tree block corruption detected", about overlapping extents), and nothing of ours runs before that.
fn comes_back_from_a_stop(fs: Fs, keep: Keep) -> Result<bool, Failed> {
    let mut volume = Volume::on_fuse_disk(fs, SIZE_MIN)?;
    disk(&volume).delay(Duration::from_micros(500), 1)?;
    let told = Load::start(&volume).run(|load| {
        load.wait_for(300);
        disk(&volume).stop()?;
        // Answers that were under way arrive.
        thread::sleep(Duration::from_millis(200));
        let before = load.answers.load(Ordering::Relaxed);
        let went_on = assert_others_go_on(fs);
        thread::sleep(Duration::from_millis(300));
        let answers = load.answers.load(Ordering::Relaxed) - before;
        disk(&volume).go_on()?;
        went_on?;
        assert_eq!(answers, 0, "answers while the disk stood still");
        load.wait_for(300);
        disk(&volume).power_cut(keep)?;
        Ok(())
    })?;
    assert!(told.errors > 0, "the power went, and nobody noticed");
    match finds_poison_after(&mut volume, keep) {
        Err(refused)
            if matches!(fs, Fs::Btrfs | Fs::BtrfsNocow)
                && refused.to_string().contains("can't read superblock") =>
        {
            return Ok(false);
        }
        found => assert!(!found?, "a buffer was written after its call had returned"),
    }
    assert_kept(&volume, &told)?;
    Ok(true)
}

/// Brings the power back, looks for poison and mounts the volume anew.
fn finds_poison_after(volume: &mut Volume, keep: Keep) -> std::io::Result<bool> {
    volume.unmount()?;
    disk(volume).heal()?;
    let found = finds_poison(disk(volume))?;
    volume.power_cut(keep)?;
    Ok(found)
}

fn a_killed_disk_fails_every_caller_in_bounded_time(fs: Fs) -> TrialResult {
    let volume = Volume::on_fuse_disk(fs, SIZE_MIN)?;
    disk(&volume).delay(Duration::from_micros(500), 2)?;
    let mut died = None;
    let told = Load::start(&volume).run(|load| {
        load.wait_for(300);
        disk(&volume).die()?;
        died = Some(Instant::now());
        assert_others_go_on(fs)
    })?;
    let took = died.expect("it died").elapsed();
    assert!(took < BOUND, "the callers waited {took:?}");
    assert_eq!(told.errors as u64, APPENDERS + OVERWRITERS + 1, "callers of a dead disk without an error");
    assert!(!told.appended.is_empty() && !told.laid.is_empty());
    Ok(())
}

/// The control: a buffer that is overwritten while the disk is stopped is found on the disk.
/// The kernel may have read the buffer by then, all of it: so not each time.
fn a_buffer_that_is_overwritten_too_early_is_found(fs: Fs) -> TrialResult {
    for _ in 0..ROUNDS_MAX {
        if finds_what_was_overwritten_too_early(fs)? {
            return Ok(());
        }
    }
    Err("poison that is there was not found".into())
}

fn finds_what_was_overwritten_too_early(fs: Fs) -> Result<bool, Failed> {
    use std::os::unix::fs::{FileExt, OpenOptionsExt};
    let mut volume = Volume::on_fuse_disk(fs, SIZE_MIN)?;
    let path = volume.path().join("file");
    let mut options = fs::OpenOptions::new();
    let file = options.write(true).create(true).custom_flags(libc::O_DIRECT).open(&path)?;
    disk(&volume).stop()?;
    let mut buffer = record(1, 1, 64);
    let (address, len) = (buffer.as_mut_ptr() as usize, buffer.len());
    let writer = thread::spawn(move || file.write_all_at(&buffer, 0).and_then(|()| file.sync_all()));
    thread::sleep(Duration::from_millis(100));
    // SAFETY: the writer keeps the buffer and only hands it to the kernel, which reads whatever stands there.
    unsafe { std::ptr::write_bytes(address as *mut u8, POISON, len) };
    disk(&volume).go_on()?;
    writer.join().expect("the writer does not panic")?;
    Ok(finds_poison_after(&mut volume, Keep::All)?)
}

fn trials() -> Vec<Trial> {
    let after_cuts: &[VolumeTest] =
        named![a_stopped_disk_acknowledges_nothing_and_keeps_what_it_acknowledged];
    let mut trials = fuse_trials(
        "a_killed_disk_fails_every_caller_in_bounded_time",
        a_killed_disk_fails_every_caller_in_bounded_time,
    );
    let cuts = after_cuts.iter();
    trials.extend(cuts.flat_map(|&(name, test)| fuse_trials_where(name, Fs::survives_power_cuts, test)));
    trials.extend(fuse_trials_where(
        "a_buffer_that_is_overwritten_too_early_is_found",
        Fs::writes_directly,
        a_buffer_that_is_overwritten_too_early_is_found,
    ));
    trials
}

fn main() -> ExitCode {
    dioxide_testkit::run(&[], trials)
}
