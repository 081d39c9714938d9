//! Disks that stop and fail under load. No data is falsely acknowledged, and every call returns.
//! Files elsewhere go on. No buffer is accessed after its owner has it back.

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
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

const APPENDERS: u64 = 16;
const OVERWRITERS: u64 = 4;

/// The number of blocks that each overwriter owns.
const PLACES: u64 = 16;

/// The number of buffers that the reader keeps for a second check.
const KEPT_MAX: usize = 256;

/// The number of the reader, which is the last of the callers, after appenders and overwriters.
const READER: u64 = APPENDERS + OVERWRITERS;
const CALLERS: u64 = READER + 1;

/// The calls of each caller that return before the disk stops or fails.
const ANSWERS: u64 = 10;

/// The number of attempts at a power cut that the file system survives.
const ROUNDS_MAX: u32 = 4;

fn disk(volume: &Volume) -> &FuseDisk {
    volume.disk().expect("on a FUSE disk")
}

fn durable(path: &Path) -> File {
    let mut options = writable();
    options.durability(Durability::EveryWrite).growth_cap(MIB);
    options.open(path).expect("it opens")
}

/// The callers, and their results.
struct Load {
    log: File,
    /// The file for short records, and for records of any length.
    frames: File,
    table: File,
    /// Ends the callers that no error ends.
    over: AtomicBool,
    /// How many calls of each caller have returned.
    answers: [AtomicU64; CALLERS as usize],
    appended: Mutex<Vec<Placed>>,
    laid: Mutex<Vec<Laid>>,
    places: Mutex<HashMap<u64, Place>>,
}

/// Ends the callers on drop.
struct End(Arc<Load>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Relaxed);
    }
}

/// The records of one block: the last acknowledged one, and one in flight.
type Place = (u64, Option<u64>);

/// The acknowledged results of the callers.
struct Told {
    appended: Vec<Placed>,
    laid: Vec<Laid>,
    places: HashMap<u64, Place>,
}

impl Load {
    fn start(volume: &Volume) -> Self {
        let [log, frames, table] =
            ["log", "frames", "table"].map(|name| durable(&volume.path().join(name)));
        // Existing blocks are overwritten in place.
        for place in 0..OVERWRITERS * PLACES {
            table.append(&record(APPENDERS + place / PLACES, 0, 1)).expect("there is space");
        }
        let places = (0..OVERWRITERS * PLACES).map(|place| (place, (0, None))).collect();
        Self {
            log,
            frames,
            table,
            over: AtomicBool::new(false),
            answers: [const { AtomicU64::new(0) }; CALLERS as usize],
            appended: Mutex::default(),
            laid: Mutex::default(),
            places: Mutex::new(places),
        }
    }

    fn goes_on(&self, caller: u64) -> bool {
        self.answers[caller as usize].fetch_add(1, Ordering::Relaxed);
        !self.over.load(Ordering::Relaxed)
    }

    /// Runs the callers, and beside them `meanwhile`, which ends with a dead disk. Then each caller
    /// must end with an error, in bounded time.
    fn run(self, meanwhile: impl FnOnce(&Load) -> TrialResult) -> Result<Told, Failed> {
        let load = Arc::new(self);
        let caller = |number| {
            let load = load.clone();
            thread::spawn(move || load.call(number))
        };
        let callers: Vec<_> = (0..CALLERS).map(caller).collect();
        // Ends the callers even after a panic.
        let end = End(load.clone());
        meanwhile(&load)?;
        let left = || callers.iter().filter(|caller| !caller.is_finished()).count();
        if !soon(|| left() == 0) {
            return Err(
                format!("{} callers have had no error from a disk that is gone", left()).into()
            );
        }
        drop(end);
        for caller in callers {
            caller.join().expect("no caller panics").expect_err("nothing else has ended it");
        }
        let load = Arc::into_inner(load).expect("the callers have ended");
        Ok(Told {
            appended: load.appended.into_inner()?,
            laid: load.laid.into_inner()?,
            places: load.places.into_inner()?,
        })
    }

    fn call(&self, caller: u64) -> dioxide::Result<()> {
        match caller {
            0..APPENDERS if caller.is_multiple_of(2) => self.append(caller),
            0..APPENDERS => self.append_frames(caller),
            READER => self.read(),
            _ => self.overwrite(caller),
        }
    }

    fn append(&self, writer: u64) -> dioxide::Result<()> {
        for number in 0.. {
            let blocks = 1 + number % 3;
            let mut buffer = record(writer, number, blocks);
            let result = self.log.append(&buffer);
            buffer.fill(POISON);
            let placed = Placed { offset: result?, writer, number, blocks };
            self.appended.lock().expect("nobody panics").push(placed);
            if !self.goes_on(writer) {
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
            if !self.goes_on(writer) {
                break;
            }
        }
        Ok(())
    }

    fn overwrite(&self, writer: u64) -> dioxide::Result<()> {
        let first = (writer - APPENDERS) * PLACES;
        let mut random = Random::new(writer);
        for number in 1.. {
            let place = first + random.below(PLACES);
            let mut buffer = record(writer, number, 1);
            let result = self.table.write_at(&buffer, place * BLOCK_BYTES);
            buffer.fill(POISON);
            let mut places = self.places.lock().expect("nobody panics");
            let (acknowledged, open) = places.get_mut(&place).expect("one of its own");
            match result {
                Ok(()) => *acknowledged = number,
                Err(_) => *open = Some(number),
            }
            drop(places);
            result?;
            if !self.goes_on(writer) {
                break;
            }
        }
        Ok(())
    }

    /// Reads acknowledged data, and checks its buffers again in the end.
    fn read(&self) -> dioxide::Result<()> {
        let mut random = Random::new(99);
        let mut kept: Vec<(Placed, Buffer)> = Vec::new();
        let result = loop {
            let Some(placed) = self.any_appended(&mut random) else {
                if self.over.load(Ordering::Relaxed) {
                    break Ok(());
                }
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
            if result.is_err() || !self.goes_on(READER) {
                break result.map(drop);
            }
        };
        // A late write by the device would land here.
        thread::sleep(Duration::from_millis(300));
        let failed = result.is_err().then(|| kept.pop().expect("the one that failed").1);
        assert!(
            failed.is_none_or(|buffer| buffer.iter().all(|byte| *byte == POISON)),
            "written to after an error"
        );
        for (placed, buffer) in &kept {
            let same = record(placed.writer, placed.number, placed.blocks);
            assert!(
                buffer[..] == same[..],
                "read, or changed since, as something else: {placed:?}"
            );
        }
        result
    }

    fn any_appended(&self, random: &mut Random) -> Option<Placed> {
        let appended = self.appended.lock().expect("nobody panics");
        let count = appended.len() as u64;
        (count > 0).then(|| appended[random.below(count) as usize])
    }

    fn answers(&self) -> [u64; CALLERS as usize] {
        self.answers.each_ref().map(|answers| answers.load(Ordering::Relaxed))
    }

    /// Waits until this many more calls of every caller have returned. All calls together would be
    /// faster, but could leave some callers out.
    fn wait_for(&self, answers: u64) {
        let before = self.answers();
        let served = soon(|| {
            self.answers().into_iter().zip(before).all(|(now, before)| now - before >= answers)
        });
        assert!(
            served,
            "the disk does not serve all callers: {before:?}, and then {:?}",
            self.answers()
        );
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
    result.recv_timeout(PATIENCE).map_err(|_| "a file on another file system waited")?;
    beside.join().expect("no panic beside the outage");
    Ok(())
}

/// Checks that all acknowledged data is there after a remount.
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
        let writer = APPENDERS + place / PLACES;
        let stamp =
            Stamp::of(block).filter(|stamp| stamp.writer == writer).map(|stamp| stamp.number);
        assert!(
            stamp.is_some() && [Some(acknowledged), open].contains(&stamp),
            "{place} of {writer}: {stamp:?}, not {acknowledged} or {open:?}"
        );
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

/// Returns whether the file system can be mounted after the power cut. btrfs sometimes cannot
/// replay its own log (Linux 6.18: "write time tree block corruption detected", about overlapping
/// extents). No code of ours runs before that.
fn comes_back_from_a_stop(fs: Fs, keep: Keep) -> Result<bool, Failed> {
    let mut volume = Volume::on_fuse_disk(fs, SIZE_MIN)?;
    disk(&volume).delay(Duration::from_micros(500), 1)?;
    let told = Load::start(&volume).run(|load| {
        load.wait_for(ANSWERS);
        disk(&volume).stop()?;
        // Completions under way arrive.
        let is_quiet = || {
            let before = load.answers();
            thread::sleep(Duration::from_millis(300));
            load.answers() == before
        };
        let gets_quiet = soon(is_quiet);
        let before = load.answers();
        let went_on = assert_others_go_on(fs);
        thread::sleep(Duration::from_millis(300));
        let after = load.answers();
        disk(&volume).go_on()?;
        went_on?;
        assert!(gets_quiet, "answers without end while the disk stands still");
        // A caller without a turn since then may have one left. None has a second without the disk.
        let answers = after.into_iter().zip(before).map(|(after, before)| after - before);
        assert!(
            answers.max() <= Some(1),
            "answers while the disk stood still: {before:?}, then {after:?}"
        );
        load.wait_for(ANSWERS);
        disk(&volume).power_cut(keep)?;
        Ok(())
    })?;
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

/// Restores the power, looks for poison and remounts the volume.
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
    Load::start(&volume).run(|load| {
        load.wait_for(ANSWERS);
        disk(&volume).die()?;
        assert_others_go_on(fs)
    })?;
    Ok(())
}

/// Control: a buffer that is overwritten while the disk is stopped is found on the disk. The kernel
/// may have read all of the buffer by then, so not in every round.
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
    let writer =
        thread::spawn(move || file.write_all_at(&buffer, 0).and_then(|()| file.sync_all()));
    thread::sleep(Duration::from_millis(100));
    // SAFETY: the writer keeps the buffer and only passes it to the kernel, which reads any bytes.
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
    trials.extend(
        cuts.flat_map(|&(name, test)| fuse_trials_where(name, Fs::survives_power_cuts, test)),
    );
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
