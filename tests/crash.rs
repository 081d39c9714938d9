//! Killed processes, power cuts and changes by other programs. No acknowledged data is lost, and no
//! data of others is truncated.

mod common;

use common::*;
use dioxide::{Durability, ErrorKind, File, Growth, OpenOptions, Recover, Recovery, Verdict};
use dioxide_testkit::child::{self, Acks, Child};
use dioxide_testkit::files;
use dioxide_testkit::fuse_disk::Keep;
use dioxide_testkit::lab::{Fs, TestDir};
use dioxide_testkit::trials::{
    Failed, Trial, TrialResult, fuse_trials, fuse_trials_where, lab_trials, lab_trials_where,
    volume_trials_where,
};
use dioxide_testkit::volume::{SIZE_MIN, Volume};
use rustix::fs::FallocateFlags;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

// --- children ------------------------------------------------------------------------------------

fn open_durable(path: &str, growth: &str) -> File {
    let mut options = writable();
    options.durability(Durability::EveryWrite).growth(growth_named(growth)).growth_cap(MIB);
    options.open(path).expect("it opens")
}

/// A child. The args are path, growth, threads, a number that identifies its records, and the ways
/// of its threads in turn. Without a way they use calls.
fn append_durably(acks: &Acks, args: &[String]) {
    let first = args[3].parse::<u64>().expect("a number") << 16;
    let ways: Vec<_> = args[4..].iter().map(|arg| Way::of_arg(arg)).collect();
    let file = open_durable(&args[0], &args[1]);
    together(args[2].parse().expect("a number"), |thread| {
        let way = ways.iter().cycle().nth(thread as usize).copied().unwrap_or(Way::Calls);
        let file = way.to(file.try_clone().expect("one more handle"));
        append_while(
            &file,
            first + thread,
            |number| Some(1 + number % 4),
            |result| result.map(|placed| acks.send(placed.to_ack())).is_ok(),
        );
    });
}

/// A child that appends records of any length. The args are path, growth, tail, and a number that
/// identifies its records. Its threads use calls and queues of both kinds.
fn append_frames_durably(acks: &Acks, args: &[String]) {
    let first = args[3].parse::<u64>().expect("a number") << 16;
    let mut options = writable();
    options.durability(Durability::EveryWrite).growth(growth_named(&args[1])).growth_cap(MIB);
    let file = options.tail(tail_named(&args[2])).open(&args[0]).expect("it opens");
    let ways = [Way::Calls, Way::Queue, Way::Calls, Way::QueueOfCalls];
    together(16, |thread| {
        let file = ways[thread as usize % 4].to(file.try_clone().expect("one more handle"));
        let len =
            |number| Some(any_len(&mut Random::new(number << 8 | thread), Frame::HEADER as u64));
        append_frames_while(&file, first + thread, len, |result| {
            result.map(|laid| acks.send(laid.to_ack())).is_ok()
        });
    });
}

/// A child: each thread appends some records, then flushes, then acknowledges them all.
fn append_then_sync(acks: &Acks, args: &[String]) {
    let mut options = writable();
    let file =
        options.growth(growth_named(&args[1])).growth_cap(MIB).open(&args[0]).expect("it opens");
    let first = args[3].parse::<u64>().expect("a number") << 16;
    together(args[2].parse().expect("a number"), |thread| {
        for number in (0..).step_by(4) {
            let batch = (number..number + 4).map(|n| append(&file, first + thread, n, 1 + n % 3));
            let Ok(batch) = batch.collect::<Result<Vec<_>, _>>() else { return };
            if file.sync_data().is_err() {
                return;
            }
            batch.into_iter().for_each(|placed| acks.send(placed.to_ack()));
        }
    });
}

/// A child: durable writes, at offsets of each thread's own, most of them beyond EOF.
fn write_durably_with_holes(acks: &Acks, args: &[String]) {
    let file = open_durable(&args[0], &args[1]);
    let threads = args[2].parse().expect("a number");
    let seed = args[3].parse::<u64>().expect("a number");
    together(threads, |thread| {
        let mut random = Random::new(seed << 16 | thread);
        let mut slot = random.below(8);
        for number in 0.. {
            let placed = Placed {
                offset: (slot * threads + thread) * 2 * BLOCK_BYTES,
                writer: thread,
                number,
                blocks: 1,
            };
            if file.write_at(&record(thread, number, 1), placed.offset).is_err() {
                break;
            }
            acks.send(placed.to_ack());
            slot += 1 + random.below(3);
        }
    });
}

/// A child: opens, appends and closes forever.
fn open_append_close(acks: &Acks, args: &[String]) {
    for number in 0.. {
        let file = open_durable(&args[0], &args[1]);
        let placed = append(&file, 1, number << 16 | args[2].parse::<u64>().expect("a number"), 2);
        let placed = placed.expect("there is space");
        acks.send(placed.to_ack());
        file.close().expect("it closes");
    }
}

fn start(
    scenario: &str,
    path: &Path,
    growth: &str,
    threads: u64,
    round: u64,
) -> std::io::Result<Child> {
    let args = [
        path.to_string_lossy().into_owned(),
        growth.into(),
        threads.to_string(),
        round.to_string(),
    ];
    child::spawn(scenario, &args)
}

/// Starts a child whose threads append in these ways.
fn start_in(
    ways: &[Way],
    path: &Path,
    growth: &str,
    threads: u64,
    round: u64,
) -> std::io::Result<Child> {
    let mut args = vec![
        path.to_string_lossy().into_owned(),
        growth.into(),
        threads.to_string(),
        round.to_string(),
    ];
    args.extend(ways.iter().map(|way| way.arg()));
    child::spawn("append_durably", &args)
}

fn placed(acks: Vec<[u64; 3]>) -> Vec<Placed> {
    acks.into_iter().map(Placed::from_ack).collect()
}

fn end_of(placed: &[Placed]) -> u64 {
    placed.iter().map(Placed::end).max().unwrap_or(0)
}

// --- kills ---------------------------------------------------------------------------------------

/// Lets a child acknowledge a random number of records, sometimes none, and run on for a random
/// time.
fn kill_at_random(mut child: Child, random: &mut Random) -> std::io::Result<Vec<Placed>> {
    if random.below(5) > 0 {
        child.wait_for_acks(1 + random.below(150) as usize, PATIENCE)?;
    }
    Ok(placed(child.kill_after(Duration::from_micros(random.below(30_000)))?))
}

/// A file whose writers are killed, one after the other.
struct Killed {
    path: PathBuf,
    acknowledged: Vec<Placed>,
    /// Its end after the last recovery.
    len: u64,
    /// Requests in the rings of a killed process land until the lock of the file is released. So
    /// `Inspect` may see another end.
    has_rings: bool,
}

impl Killed {
    fn new(path: PathBuf) -> Self {
        Self { path, acknowledged: Vec::new(), len: 0, has_rings: false }
    }

    /// Checks recovery after one more child was killed that acknowledged `new`.
    fn check(&mut self, new: Vec<Placed>, zeroed: bool) -> TrialResult {
        assert!(
            new.iter().all(|record| record.offset >= self.len),
            "a new record lies below the old end"
        );
        self.acknowledged.extend(new);
        let inspected = self
            .path
            .exists()
            .then(|| dioxide::recover(&self.path, Recover::Inspect))
            .transpose()?;
        let file = reopen_with(&writable(), &self.path)?;
        self.len =
            if zeroed { self.settle(&file)? } else { self.recovered(&file, inspected.as_ref())? };
        file.close()?;
        assert_tidy(&self.path, self.len)?;
        let content = fs::read(&self.path)?;
        assert_all_there(&content, &self.acknowledged);
        assert_eq!(end_of_records(&content, 0), self.len, "the file is not the written prefix");
        Ok(())
    }

    fn recovered(&self, file: &File, inspected: Option<&Recovery>) -> dioxide::Result<u64> {
        let len = file.len()?;
        assert!(
            len >= end_of(&self.acknowledged),
            "cut to {len}, below {}",
            end_of(&self.acknowledged)
        );
        let Some(found) = file.recovery() else { return Ok(len) };
        assert_eq!(found.verdict, Verdict::EndKnown);
        assert!(
            self.has_rings || Some(found) == inspected,
            "looking finds {inspected:?}, recovering {found:?}"
        );
        assert_eq!((found.floor, found.ceiling), (len, len));
        Ok(len)
    }

    /// Finishes the recovery over zeros, as the owner of the records does.
    fn settle(&self, file: &File) -> Result<u64, Failed> {
        let Some(found) = file.recovery() else { return Ok(file.len()?) };
        let acknowledged = end_of(&self.acknowledged);
        assert!(found.floor <= found.ceiling && found.ceiling == file.len()?, "{found:?}");
        assert!(acknowledged <= found.ceiling, "{acknowledged} was acknowledged: {found:?}");
        assert!(found.floor >= self.len, "the floor fell below {}: {found:?}", self.len);
        let content = fs::read(&self.path)?;
        let end = end_of_records(&content, 0);
        assert!(found.floor <= end, "a floor above what was written: {found:?}, {end}");
        if found.verdict == Verdict::EndKnown {
            assert_eq!(end, found.ceiling);
        } else {
            assert_eq!(found.verdict, Verdict::EndUnknown);
            file.set_len(end)?;
        }
        Ok(end)
    }
}

const KILLS: u64 = 13;

fn kill_appenders(dir: &Path, growth: &str, ways: &[Way]) -> TrialResult {
    let mut random = Random::new(dir.as_os_str().len() as u64 + growth.len() as u64);
    let mut file = Killed::new(dir.join("log"));
    let mut acknowledged = 0;
    for round in 0..KILLS {
        if round % 4 == 0 {
            file = Killed::new(dir.join(format!("log-{round}")));
            file.has_rings = ways.contains(&Way::Queue);
        }
        let before = file.acknowledged.len();
        let child = start_in(ways, &file.path, growth, 64 / ways.len() as u64, round)?;
        file.check(kill_at_random(child, &mut random)?, growth == "zeroed")?;
        acknowledged += file.acknowledged.len() - before;
    }
    assert!(acknowledged > 200, "too little was acknowledged to test anything: {acknowledged}");
    Ok(())
}

fn a_killed_process_loses_no_acknowledged_record(dir: TestDir) -> TrialResult {
    kill_appenders(&dir, "unwritten", &[Way::Calls])
}

/// Several queues, of both kinds, beside threads that make calls.
fn a_killed_process_with_queues_loses_no_acknowledged_record(dir: TestDir) -> TrialResult {
    kill_appenders(&dir, "unwritten", &[Way::Queue, Way::Calls, Way::Queue, Way::QueueOfCalls])
}

fn a_killed_process_over_zeros_loses_no_acknowledged_record(dir: TestDir) -> TrialResult {
    kill_appenders(&dir, "zeroed", &[Way::Calls])
}

fn a_killed_process_with_queues_over_zeros_loses_no_acknowledged_record(
    dir: TestDir,
) -> TrialResult {
    kill_appenders(&dir, "zeroed", &[Way::Queue])
}

fn a_killed_process_without_growth_loses_no_acknowledged_record(dir: TestDir) -> TrialResult {
    let path = dir.join("log");
    let mut acknowledged = Vec::new();
    for round in 0..4 {
        let mut child = start("append_durably", &path, "none", 16, round)?;
        child.wait_for_acks(40, PATIENCE)?;
        acknowledged.extend(placed(child.kill_9()?));
        assert_eq!(files::marker(&path)?, None);
        let file = reopen(&path)?;
        assert!(file.len()? >= end_of(&acknowledged));
        file.close()?;
        assert_all_there(&fs::read(&path)?, &acknowledged);
    }
    Ok(())
}

fn a_killed_process_loses_no_acknowledged_record_of_any_length(dir: TestDir) -> TrialResult {
    let mut random = Random::new(dir.as_os_str().len() as u64);
    let mut acknowledged = 0;
    for (growth, tail) in
        [("unwritten", "rewrite"), ("unwritten", "pad"), ("zeroed", "rewrite"), ("none", "pad")]
    {
        let path = dir.join(format!("{growth}-{tail}"));
        let mut laid: Vec<Laid> = Vec::new();
        for round in 0..3 {
            let args = [&path.to_string_lossy(), growth, tail, &round.to_string()];
            let mut child = child::spawn("append_frames_durably", &args)?;
            child.wait_for_acks(1 + random.below(100) as usize, PATIENCE)?;
            let acks = child.kill_after(Duration::from_micros(random.below(20_000)))?;
            laid.extend(acks.into_iter().map(Laid::from_ack));
            let end = go_on_behind_the_last_whole_record(&path, &laid, tail == "pad")?;
            assert_tidy(&path, end)?;
        }
        acknowledged += laid.len();
    }
    assert!(acknowledged > 200, "too little was acknowledged to test anything: {acknowledged}");
    Ok(())
}

/// Finishes the recovery as the owner of a log does. Returns the exact end.
fn go_on_behind_the_last_whole_record(
    path: &Path,
    laid: &[Laid],
    gaps: bool,
) -> Result<u64, Failed> {
    let file = reopen(path)?;
    let (len, block) = (file.len()?, file.alignment().append);
    assert!(len.is_multiple_of(block), "recovered ends are those of blocks: {len}");
    let content = fs::read(path)?;
    let found = Frame::find_all(&content[..len as usize], block);
    for laid in laid {
        assert!(found.binary_search(&(laid.offset, laid.frame)).is_ok(), "not found: {laid:?}");
    }
    let ends = found.iter().map(|(offset, frame)| offset + frame.len);
    let begins = found.iter().skip(1).map(|(offset, _)| *offset);
    assert!(
        gaps || ends.clone().zip(begins).all(|(end, begin)| end == begin),
        "a gap between records"
    );
    let end = ends.max().unwrap_or(0);
    if let Some(recovery) = file.recovery() {
        assert!(
            (recovery.floor..=recovery.ceiling).contains(&end)
                || recovery.verdict == Verdict::EndKnown,
            "{recovery:?}"
        );
    }
    file.set_len(end)?;
    assert_eq!(file.len()?, end);
    file.close()?;
    Ok(end)
}

fn a_killed_process_loses_no_positional_write(dir: TestDir) -> TrialResult {
    let mut random = Random::new(77);
    let mut acknowledged = 0;
    for round in 0..10 {
        let path = dir.join(format!("log-{round}"));
        let child = start("write_durably_with_holes", &path, "unwritten", 32, round)?;
        let records = kill_at_random(child, &mut random)?;
        acknowledged += records.len();
        let file = reopen_with(&writable(), &path)?;
        let len = file.len()?;
        assert!(len >= end_of(&records), "cut to {len}, below {}", end_of(&records));
        assert!(
            file.recovery().is_none_or(|found| found.verdict == Verdict::EndKnown),
            "{:?}",
            file.recovery()
        );
        file.close()?;
        assert_tidy(&path, len)?;
        let content = fs::read(&path)?;
        assert_all_there(&content, &records);
        assert_own_places_or_zeros(&content, 32);
    }
    assert!(acknowledged > 200, "too little was acknowledged to test anything: {acknowledged}");
    Ok(())
}

/// Checks that every block is a hole, or a record of the thread that owns this offset.
fn assert_own_places_or_zeros(content: &[u8], threads: u64) {
    for (block, n) in content.chunks(BLOCK).zip(0u64..) {
        match Stamp::of(block) {
            Some(stamp) => {
                assert_eq!((n % 2, n / 2 % threads), (0, stamp.writer), "misplaced: {stamp:?}")
            }
            None => assert!(
                block.iter().all(|byte| *byte == 0),
                "neither a record nor zeros in block {n}"
            ),
        }
    }
}

/// Most of these kills hit the open (with the recovery from the last kill) or the close.
fn a_process_killed_while_opening_or_closing_loses_nothing(dir: TestDir) -> TrialResult {
    let mut random = Random::new(5);
    let mut file = Killed::new(dir.join("log"));
    for round in 0..25 {
        let args =
            [file.path.to_string_lossy().into_owned(), "unwritten".into(), round.to_string()];
        let mut child = child::spawn("open_append_close", &args)?;
        child.wait_for_acks(1 + random.below(4) as usize, PATIENCE)?;
        let new = placed(child.kill_after(Duration::from_micros(random.below(4_000)))?);
        file.acknowledged.extend(new);
        // The next child recovers two of three.
        if round % 3 == 2 {
            file.check(Vec::new(), false)?;
        }
    }
    Ok(())
}

fn without_an_answer_the_question_comes_again(dir: TestDir) -> TrialResult {
    let path = dir.join("log");
    let records = leave_grown(&path, "zeroed")?;
    let mut asked = Vec::new();
    for _ in 0..3 {
        let file = reopen(&path)?;
        asked.push(file.recovery().map(|found| (found.floor, found.ceiling)).expect("it must ask"));
        file.close()?;
    }
    assert!(asked[0].0 <= end_of(&records) && end_of(&records) <= asked[0].1);
    assert!(asked.iter().all(|range| range.0 == asked[0].0), "the floor moved: {asked:?}");
    let file = reopen(&path)?;
    file.set_len(end_of(&records))?;
    file.close()?;
    assert_tidy(&path, end_of(&records))?;
    assert_eq!(reopen(&path)?.recovery(), None);
    assert_all_there(&fs::read(&path)?, &records);
    Ok(())
}

/// The marker stays until the owner sets the end. With any growth option it must still show how far
/// the file may have grown.
fn a_file_with_an_open_question_grows_as_its_marker_says(dir: TestDir) -> TrialResult {
    let path = dir.join("log");
    let records = leave_grown(&path, "zeroed")?;
    for growth in [Growth::None, Growth::Unwritten] {
        let file = OpenOptions::new().write(true).growth(growth).growth_cap(MIB).open(&path)?;
        assert_eq!(file.growth(), Growth::Zeroed);
        let placed = append(&file, 5, 0, 8 * MIB / BLOCK_BYTES)?;
        assert_eq!(placed.end(), file.len()?);
        let found = dioxide::recover(&path, Recover::Inspect)?;
        assert_eq!(found.verdict, Verdict::EndUnknown, "what a crash now would leave: {found:?}");
        assert!(found.ceiling >= placed.end());
        file.close()?;
        assert_eq!(
            reopen(&path)?.recovery().map(|found| &found.verdict),
            Some(&Verdict::EndUnknown)
        );
        assert_all_there(&fs::read(&path)?, &records);
        assert_all_there(&fs::read(&path)?, &[placed]);
    }
    Ok(())
}

// --- power ---------------------------------------------------------------------------------------

/// Checks the file of a child that appended durably, after a crash.
fn check_after_crash(fs: Fs, path: &Path, records: &[Placed], growth: &str) -> TrialResult {
    let file = reopen(path)?;
    let len = file.len()?;
    assert!(len >= end_of(records), "cut to {len}, below {}", end_of(records));
    let content = fs::read(path)?;
    assert_all_there(&content, records);
    let end = end_of_records(&content, 0);
    if growth == "zeroed" {
        assert!(file.recovery().is_none_or(|found| (found.floor..=found.ceiling).contains(&end)));
        file.set_len(end)?;
    } else if fs.recovers_itself() {
        assert_records_or_lost(&content[end as usize..]);
    }
    let next = append(&file, 1 << 30, 0, 3)?;
    assert_eq!(next.offset, file.len()? - 3 * BLOCK_BYTES);
    file.close()?;
    assert_tidy(path, next.end())?;
    assert_all_there(&fs::read(path)?, records);
    Ok(())
}

/// Unacknowledged records may be torn, but must not show the old content of other files.
fn assert_records_or_lost(unacknowledged: &[u8]) {
    for block in unacknowledged.chunks(BLOCK) {
        let sectors = block.chunks(512);
        let stale = sectors.filter(|sector| sector.iter().all(|byte| *byte == 0xA5)).count();
        assert_eq!(stale, 0, "old disk content shows");
    }
}

fn cut_power(fs: Fs, scenario: &str, growth: &str, cuts: &[Keep]) -> TrialResult {
    let mut volume = Volume::on_fuse_disk(fs, SIZE_MIN)?;
    for (round, keep) in (0..).zip(cuts) {
        let path = volume.path().join(format!("log-{round}"));
        let mut child = start(scenario, &path, growth, 16, round)?;
        child.wait_for_acks(150 + 60 * round as usize, PATIENCE)?;
        volume.disk().expect("on a FUSE disk").power_cut(*keep)?;
        let (_, acks) = child.wait(PATIENCE)?;
        volume.power_cut(*keep)?;
        check_after_crash(fs, &path, &placed(acks), growth)?;
    }
    volume.fsck()?;
    Ok(())
}

fn acknowledged_records_survive_power_cuts(fs: Fs) -> TrialResult {
    let cuts = [Keep::Nothing, Keep::Random { seed: 1 }, Keep::Random { seed: 2 }, Keep::All];
    cut_power(fs, "append_durably", "unwritten", &cuts)
}

fn acknowledged_records_over_zeros_survive_power_cuts(fs: Fs) -> TrialResult {
    cut_power(fs, "append_durably", "zeroed", &[Keep::Nothing, Keep::Random { seed: 3 }])
}

fn flushed_records_survive_power_cuts(fs: Fs) -> TrialResult {
    cut_power(
        fs,
        "append_then_sync",
        "unwritten",
        &[Keep::Nothing, Keep::Random { seed: 4 }, Keep::Nothing],
    )
}

/// Control: the tests above would prove nothing if this disk could not lose data.
fn a_disk_that_lies_about_flushes_loses_records(fs: Fs) -> TrialResult {
    let mut volume = Volume::on_fuse_disk(fs, SIZE_MIN)?;
    let path = volume.path().join("log");
    let mut child = start("append_durably", &path, "unwritten", 16, 0)?;
    child.wait_for_acks(50, PATIENCE)?;
    let disk = volume.disk().expect("on a FUSE disk");
    disk.lie()?;
    child.wait_for_acks(400, PATIENCE)?;
    disk.power_cut(Keep::Nothing)?;
    let (_, acks) = child.wait(PATIENCE)?;
    volume.power_cut_unmounted(Keep::Nothing)?;
    // A volume that cannot be mounted has lost its records.
    if volume.mount().is_err() {
        return Ok(());
    }
    let content = fs::read(&path)?;
    assert!(placed(acks).iter().any(|record| !record.is_in(&content)), "nothing was lost");
    Ok(())
}

/// The content of a file that is replaced: its number in each place, and a length of its own.
fn version(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(1000 + number as usize % 3000)
}

/// A child: replaces a file again and again, by the library or as most programs do.
fn replace_for_ever(acks: &Acks, args: &[String]) {
    for number in 1.. {
        let content = version(number);
        let result = match &*args[1] {
            "whole" => dioxide::replace(&args[0], |writer| writer.write_all(&content)),
            _ => fs::write(&args[0], &content),
        };
        match result {
            Ok(()) => acks.send([number, 0, 0]),
            Err(_) => return,
        }
    }
}

/// The number of the version that a file has after a power cut, and the last acknowledged one.
/// None for the first if it has no whole version.
fn replaced_version(
    volume: &mut Volume,
    how: &str,
    keep: Keep,
) -> Result<(Option<u64>, u64), Failed> {
    let path = volume.path().join("file");
    let mut child = child::spawn("replace_for_ever", &[&path.to_string_lossy(), how])?;
    child.wait_for_acks(20, PATIENCE)?;
    volume.disk().expect("on a FUSE disk").power_cut(keep)?;
    let (_, acks) = child.wait(PATIENCE)?;
    volume.power_cut(keep)?;
    let last = acks.last().expect("at least 20")[0];
    let content = fs::read(&path).unwrap_or_default();
    let number = content.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    Ok(((content == version(number)).then_some(number), last))
}

fn a_replaced_file_is_whole_after_power_cuts(fs: Fs) -> TrialResult {
    let mut volume = Volume::on_fuse_disk(fs, SIZE_MIN)?;
    for keep in [Keep::Nothing, Keep::Random { seed: 5 }, Keep::Random { seed: 6 }, Keep::All] {
        let (found, last) = replaced_version(&mut volume, "whole", keep)?;
        let is_kept = found.is_some_and(|found| (last..=last + 1).contains(&found));
        assert!(is_kept, "{keep:?}: {found:?} is there, and {last} was acknowledged");
    }
    volume.fsck()?;
    Ok(())
}

/// Control: a file that is written in place, without a flush.
fn a_file_that_is_not_replaced_is_lost(fs: Fs) -> TrialResult {
    let mut volume = Volume::on_fuse_disk(fs, SIZE_MIN)?;
    let (found, last) = replaced_version(&mut volume, "in place", Keep::Nothing)?;
    assert!(found.is_none_or(|found| found < last), "{found:?} is there");
    Ok(())
}

fn acknowledged_records_survive_a_shutdown_of_the_file_system(fs: Fs) -> TrialResult {
    let mut volume = Volume::new(fs, SIZE_MIN)?;
    for (round, growth) in (0..).zip(["unwritten", "zeroed", "none", "unwritten"]) {
        let path = volume.path().join(format!("log-{round}"));
        let mut child = start("append_durably", &path, growth, 16, round)?;
        // While XFS shuts down, an fdatasync may have nothing to wait for and succeed. Only
        // acknowledgements before that count.
        let acks = child.wait_for_acks(100 + 100 * round as usize, PATIENCE)?.to_vec();
        volume.shutdown()?;
        child.wait(PATIENCE)?;
        volume.remount()?;
        check_after_crash(fs, &path, &placed(acks), growth)?;
    }
    volume.fsck()?;
    Ok(())
}

// --- snapshots -----------------------------------------------------------------------------------

/// Files in a snapshot of btrfs have the same inode numbers, birth times and markers.
fn a_snapshot_of_a_file_in_use_is_recovered_as_after_a_crash(dir: TestDir) -> TrialResult {
    let (used, snapshot) = (dir.join("used"), dir.join("snapshot"));
    btrfs(&["subvolume", "create"], &used)?;
    let path = used.join("log");
    let mut child = start("append_durably", &path, "unwritten", 4, 1)?;
    let before = placed(child.wait_for_acks(60, PATIENCE)?.to_vec());
    btrfs(&["subvolume", "snapshot", &used.to_string_lossy()], &snapshot)?;
    let at_once = end_of(&placed(child.wait_for_acks(before.len() + 1, PATIENCE)?.to_vec()));
    let all = placed(child.kill_9()?);
    let copy = snapshot.join("log");
    assert!(
        (end_of(&before)..=at_once + MIB).contains(&File::open(&copy)?.len()?),
        "as a reader sees it"
    );
    for (path, records) in [(copy, before), (path, all)] {
        let file = reopen(&path)?;
        assert_eq!(file.recovery().map(|found| &found.verdict), Some(&Verdict::EndKnown));
        assert!(file.len()? >= end_of(&records));
        let next = append(&file, 9, 0, 2)?;
        file.close()?;
        assert_tidy(&path, next.end())?;
        let content = fs::read(&path)?;
        assert_all_there(&content, &records);
        assert_eq!(end_of_records(&content, 0), next.end());
    }
    Ok(())
}

// --- files of others -----------------------------------------------------------------------------

/// Leaves a file as a killed appender does: grown, with a marker. Returns its expected records.
fn leave_grown(path: &Path, growth: &str) -> std::io::Result<Vec<Placed>> {
    let mut child = start("append_durably", path, growth, 1, 1)?;
    child.wait_for_acks(20, PATIENCE)?;
    let records = placed(child.kill_9()?);
    assert!(files::marker(path)?.is_some(), "it has no marker");
    Ok(records)
}

/// Makes another program's file with its own space, and returns its content.
type Own = fn(&Path) -> std::io::Result<Vec<u8>>;

fn preallocated_inside(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut file = fs::File::create(path)?;
    file.write_all(&record(7, 7, 1))?;
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 3 * MIB)?;
    file.sync_all()?;
    fs::read(path)
}

fn preallocated_beyond(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut file = fs::File::create(path)?;
    file.write_all(&record(7, 7, 2))?;
    rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 3 * MIB)?;
    file.sync_all()?;
    fs::read(path)
}

fn sparse(path: &Path) -> std::io::Result<Vec<u8>> {
    use std::os::unix::fs::FileExt;
    let file = fs::File::create(path)?;
    file.write_all_at(&record(7, 7, 1), 2 * MIB)?;
    file.set_len(5 * MIB)?;
    file.sync_all()?;
    fs::read(path)
}

const OWN: [(&str, Own); 3] =
    [("sparse", sparse), ("inside", preallocated_inside), ("beyond", preallocated_beyond)];

/// The kinds of files that `fs` supports.
fn own_on(fs: Fs) -> &'static [(&'static str, Own)] {
    // Indirect blocks cannot be preallocated.
    if fs == Fs::Ext3 { &OWN[..1] } else { &OWN }
}

fn a_file_of_someone_else_is_never_truncated(dir: TestDir) -> TrialResult {
    for (name, make) in own_on(dir.fs()) {
        let path = dir.join(name);
        let content = make(&path)?;
        let file = reopen(&path)?;
        assert_eq!(file.recovery(), None, "{name}");
        file.close()?;
        assert!(fs::read(&path)? == content, "{name}: opening and closing changed it");
        let file = reopen(&path)?;
        assert_eq!(append(&file, 1, 1, 1)?.offset, content.len() as u64, "{name}");
        file.close()?;
        let size = fs::metadata(&path)?.len();
        assert_eq!(
            (size, files::marker(&path)?),
            (content.len() as u64 + BLOCK_BYTES, None),
            "{name}"
        );
        assert!(fs::read(&path)?[..content.len()] == content, "{name}: an append changed it");
    }
    Ok(())
}

fn a_kill_does_not_truncate_what_was_there_before(dir: TestDir) -> TrialResult {
    for scenario in ["append_durably", "write_durably_beyond"] {
        for (name, make) in own_on(dir.fs()) {
            let path = dir.join(format!("{name}-{scenario}"));
            let content = make(&path)?;
            let mut child = start(scenario, &path, "unwritten", 4, 1)?;
            child.wait_for_acks(30, PATIENCE)?;
            let records = placed(child.kill_9()?);
            let file = reopen(&path)?;
            assert!(file.recovery().is_some(), "{name}: the kill left no trace");
            assert!(file.len()? >= end_of(&records), "{name}");
            file.close()?;
            let after = fs::read(&path)?;
            assert!(after[..content.len()] == content, "{name}: what was there changed");
            assert_all_there(&after, &records);
        }
    }
    Ok(())
}

/// A child: durable positional writes, each a little further out.
fn write_durably_beyond(acks: &Acks, args: &[String]) {
    let file = open_durable(&args[0], &args[1]);
    let start = file.len().expect("a writer knows");
    for number in 0.. {
        let placed =
            Placed { offset: start + number * 5 * BLOCK_BYTES, writer: 3, number, blocks: 1 };
        file.write_at(&record(3, number, 1), placed.offset).expect("there is space");
        acks.send(placed.to_ack());
    }
}

fn a_copy_with_the_marker_is_left_alone(dir: TestDir) -> TrialResult {
    let (path, copy) = (dir.join("log"), dir.join("copy"));
    let records = leave_grown(&path, "unwritten")?;
    let marker = files::marker(&path)?.expect("just left");
    fs::copy(&path, &copy)?;
    files::set_marker(&copy, &marker)?;
    let size = fs::metadata(&copy)?.len();
    assert_eq!(dioxide::recover(&copy, Recover::Inspect)?.verdict, Verdict::Foreign);
    assert_eq!(dioxide::recover(&copy, Recover::Truncate)?.verdict, Verdict::Foreign);
    let reader = File::open(&copy)?;
    assert_eq!(reader.len()?, size);
    let file = reopen(&copy)?;
    assert_eq!(file.recovery().map(|found| &found.verdict), Some(&Verdict::Foreign));
    assert_eq!(file.len()?, size);
    file.close()?;
    assert_eq!(fs::metadata(&copy)?.len(), size, "opening and closing cut it");
    let file = reopen(&copy)?;
    assert_eq!(append(&file, 1, 1, 1)?.offset, size);
    file.close()?;
    assert_eq!(fs::metadata(&copy)?.len(), size + BLOCK_BYTES);
    assert_all_there(&fs::read(&copy)?, &records);
    assert_eq!(
        dioxide::recover(&path, Recover::Truncate)?.verdict,
        Verdict::EndKnown,
        "the original is no copy"
    );
    assert_tidy(&path, end_of_records(&fs::read(&path)?, 0))?;
    Ok(())
}

/// A grown file from a crash, to which another program appended afterwards.
fn grown_by_another_since(path: &Path) -> Result<(Vec<Placed>, Vec<u8>), Failed> {
    let records = leave_grown(path, "unwritten")?;
    let mut other = fs::OpenOptions::new().append(true).open(path)?;
    other.write_all(b"a line of another program\n")?;
    other.sync_all()?;
    Ok((records, fs::read(path)?))
}

fn a_file_that_another_program_appended_to_is_doubtful(dir: TestDir) -> TrialResult {
    let path = dir.join("log");
    let (records, content) = grown_by_another_since(&path)?;
    assert!(matches!(refusal(reopen(&path)), ErrorKind::ModifiedExternally(_)));
    assert!(matches!(refusal(File::create(&path)), ErrorKind::ModifiedExternally(_)));
    for how in [Recover::Inspect, Recover::Truncate] {
        let found = dioxide::recover(&path, how)?;
        assert!(matches!(found.verdict, Verdict::ModifiedExternally(_)), "{found:?}");
        assert_eq!(found.physical_size, content.len() as u64);
    }
    let reader = File::open(&path)?;
    assert_eq!(reader.len()?, content.len() as u64, "all of it can be looked at");
    let mut into = dioxide::Buffer::zeroed(content.len().next_multiple_of(BLOCK));
    assert_eq!(reader.read_at(&mut into, 0)?, content.len());
    assert!(into[..content.len()] == content[..]);
    assert!(fs::read(&path)? == content, "it was changed");
    let forced = dioxide::recover(&path, Recover::Force)?;
    assert!(matches!(forced.verdict, Verdict::ModifiedExternally(_)), "{forced:?}");
    assert_eq!(forced.ceiling, content.len() as u64, "the end of what is written, by whomever");
    // The space that XFS preallocated beyond EOF for the other program stays.
    assert_eq!((fs::metadata(&path)?.len(), files::marker(&path)?), (forced.ceiling, None));
    let file = reopen(&path)?;
    assert_eq!(file.recovery(), None);
    file.close()?;
    assert!(fs::read(&path)? == content, "even force cuts nothing that was written");
    assert_all_there(&content, &records);
    Ok(())
}

/// The marker announces the next step of growth; another program may end exactly there.
fn a_file_that_another_program_filled_up_to_the_announced_size_is_doubtful(
    dir: TestDir,
) -> TrialResult {
    let path = dir.join("log");
    leave_grown(&path, "unwritten")?;
    let marker = files::marker(&path)?.expect("just left");
    let announced = u64::from_le_bytes(marker[48..56].try_into()?);
    let size = fs::metadata(&path)?.len();
    let mut other = fs::OpenOptions::new().append(true).open(&path)?;
    let step = if announced > size { announced - size } else { BLOCK_BYTES };
    other.write_all(&vec![b'x'; step as usize])?;
    other.sync_all()?;
    let content = fs::read(&path)?;
    let opened = reopen(&path).map(drop);
    assert!(
        fs::read(&path)? == content,
        "{step} bytes of another program were cut off: {opened:?}"
    );
    assert!(matches!(refusal(opened), ErrorKind::ModifiedExternally(_)));
    Ok(())
}

fn a_zeroed_file_that_another_program_appended_to_is_not_truncated(dir: TestDir) -> TrialResult {
    let path = dir.join("log");
    let records = leave_grown(&path, "zeroed")?;
    fs::OpenOptions::new().append(true).open(&path)?.write_all(b"a line of another program\n")?;
    let content = fs::read(&path)?;
    match reopen(&path) {
        Err(error) => assert!(matches!(error.kind(), ErrorKind::ModifiedExternally(_)), "{error}"),
        Ok(file) => {
            let found = file.recovery().cloned().expect("it must ask");
            assert_eq!((found.verdict, found.ceiling), (Verdict::EndUnknown, content.len() as u64));
            file.close()?;
        }
    }
    assert!(fs::read(&path)? == content, "it was changed");
    assert_all_there(&content, &records);
    Ok(())
}

fn a_file_that_another_program_made_shorter_is_left_as_it_is(dir: TestDir) -> TrialResult {
    let path = dir.join("log");
    leave_grown(&path, "unwritten")?;
    let len = 3 * BLOCK_BYTES;
    fs::OpenOptions::new().write(true).open(&path)?.set_len(len)?;
    match reopen(&path) {
        Ok(file) => {
            assert_eq!(file.len()?, len);
            file.close()?;
        }
        Err(error) => assert!(matches!(error.kind(), ErrorKind::ModifiedExternally(_)), "{error}"),
    }
    assert_eq!(File::open(&path)?.len()?, len);
    let content = fs::read(&path)?;
    assert_eq!((content.len() as u64, end_of_records(&content, 0)), (len, len));
    Ok(())
}

/// Another program wrote behind the gap from the crash.
fn a_write_of_another_program_inside_the_grown_space_costs_no_acknowledged_record(
    dir: TestDir,
) -> TrialResult {
    use std::os::unix::fs::FileExt;
    let path = dir.join("log");
    let records = leave_grown(&path, "unwritten")?;
    let size = fs::metadata(&path)?.len();
    let other = fs::OpenOptions::new().write(true).open(&path)?;
    other.write_all_at(&record(9, 9, 1), size - BLOCK_BYTES)?;
    other.sync_all()?;
    // Recovery cannot distinguish it from an unacknowledged record behind a gap. Acknowledged data
    // stays.
    let file = reopen(&path);
    if let Ok(file) = file {
        file.close()?;
    }
    assert_all_there(&fs::read(&path)?, &records);
    Ok(())
}

/// Damages a marker.
type Damage = fn(Vec<u8>) -> Vec<u8>;

const DAMAGES: [(&str, Damage); 5] = [
    ("a flipped bit", |mut marker| {
        marker[33] ^= 4;
        marker
    }),
    ("cut short", |marker| marker[..40].to_vec()),
    ("empty", |_| Vec::new()),
    ("too long", |marker| marker.repeat(100)),
    ("another program's", |_| {
        b"not a marker of ours, but 64 bytes long as one of ours would be!".to_vec()
    }),
];

fn a_damaged_marker_is_doubtful_and_nothing_is_cut(dir: TestDir) -> TrialResult {
    for (name, damage) in DAMAGES {
        let path = dir.join(name.replace(' ', "-"));
        let records = leave_grown(&path, "unwritten")?;
        let marker = files::marker(&path)?.expect("just left");
        // ext4 has one block for attributes. A value that does not fit cannot occur there either.
        if files::set_marker(&path, &damage(marker)).is_err() {
            continue;
        }
        let size = fs::metadata(&path)?.len();
        assert!(matches!(refusal(reopen(&path)), ErrorKind::ModifiedExternally(_)), "{name}");
        let found = dioxide::recover(&path, Recover::Inspect)?;
        assert!(matches!(found.verdict, Verdict::ModifiedExternally(_)), "{name}: {found:?}");
        assert_eq!(File::open(&path)?.len()?, size, "{name}");
        assert_eq!(fs::metadata(&path)?.len(), size, "{name}: cut");
        dioxide::recover(&path, Recover::Force)?;
        assert_eq!(
            fs::metadata(&path)?.len(),
            size,
            "{name}: cut by force, though nobody knows where"
        );
        let file = reopen(&path)?;
        assert_eq!(file.recovery(), None, "{name}: force removes the marker");
        file.close()?;
        assert_all_there(&fs::read(&path)?, &records);
    }
    Ok(())
}

/// Rewrites a marker as in src/rules/marker.rs: three ends at 32, 40 and 48, then a checksum of the
/// first 60 bytes.
fn remark(path: &Path, base: u64, from: u64, to: u64) -> std::io::Result<()> {
    let mut marker = files::marker(path)?.expect("there is one");
    for (at, value) in [(32, base), (40, from), (48, to)] {
        marker[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
    let sum = crc32fast::hash(&marker[..60]);
    marker[60..].copy_from_slice(&sum.to_le_bytes());
    files::set_marker(path, &marker)
}

/// Brings a grown file of this end and size into the state of a crash between two steps.
type Window = fn(&Path, u64, u64) -> std::io::Result<()>;

const WINDOWS: [(&str, Window); 4] = [
    ("announced, not grown", |path, end, size| remark(path, end, size, size + 8 * MIB)),
    ("grown in part", |path, end, size| {
        remark(path, end, size, size + 8 * MIB)?;
        let file = fs::OpenOptions::new().write(true).open(path)?;
        Ok(rustix::fs::fallocate(&file, FallocateFlags::empty(), size, MIB)?)
    }),
    ("announced as cut, not cut", |path, end, size| remark(path, end, size, size)),
    ("cut, not unmarked", |path, end, size| {
        remark(path, end, size, size)?;
        fs::OpenOptions::new().write(true).open(path)?.set_len(end)
    }),
];

fn a_crash_in_each_window_of_the_markers_life_is_recovered_from(dir: TestDir) -> TrialResult {
    for (name, act) in WINDOWS {
        let path = dir.join(name.replace(' ', "-"));
        leave_grown(&path, "unwritten")?;
        let end = end_of_records(&fs::read(&path)?, 0);
        let size = fs::metadata(&path)?.len();
        act(&path, end, size)?;
        let file = reopen(&path)?;
        assert_eq!(file.len()?, end, "{name}: {:?}", file.recovery());
        assert_eq!(append(&file, 1, 0, 1)?.offset, end, "{name}");
        file.close()?;
        assert_tidy(&path, end + BLOCK_BYTES)?;
    }
    Ok(())
}

/// As after a crash between the growth and the first append: for the file system, the partial last
/// block may hold records.
fn a_file_of_odd_length_that_was_only_grown_gets_zeros_to_the_end_of_its_block(
    dir: TestDir,
) -> TrialResult {
    let path = dir.join("log");
    leave_grown(&path, "unwritten")?;
    let file = fs::OpenOptions::new().write(true).open(&path)?;
    file.set_len(5000)?;
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 5000, MIB - 5000)?;
    // The partial last block belongs to the file already.
    remark(&path, 5000, 2 * BLOCK_BYTES, MIB)?;
    let content = fs::read(&path)?;
    let reader = File::open(&path)?;
    let end = 5000u64.next_multiple_of(reader.alignment().append);
    assert_eq!(reader.len()?, end);
    let file = reopen(&path)?;
    assert_eq!(file.len()?, end, "{:?}", file.recovery());
    file.close()?;
    assert_tidy(&path, end)?;
    let found = fs::read(&path)?;
    assert!(found[..5000] == content[..5000] && found[5000..].iter().all(|byte| *byte == 0));
    Ok(())
}

fn a_file_in_use_is_recovered_by_no_other_process(dir: TestDir) -> TrialResult {
    let path = dir.join("log");
    let mut child = start("append_durably", &path, "unwritten", 1, 1)?;
    child.wait_for_acks(5, PATIENCE)?;
    assert_eq!(refusal(dioxide::recover(&path, Recover::Truncate)), ErrorKind::Locked);
    assert_eq!(refusal(dioxide::recover(&path, Recover::Force)), ErrorKind::Locked);
    let records = placed(child.kill_9()?);
    assert_eq!(dioxide::recover(&path, Recover::Truncate)?.verdict, Verdict::EndKnown);
    assert_all_there(&fs::read(&path)?, &records);
    let own = writable().growth(Growth::Unwritten).open(&path)?;
    let last = append(&own, 1, 1, 1)?;
    assert!(dioxide::recover(&path, Recover::Truncate).is_err(), "this process writes it");
    assert!(fs::metadata(&path)?.len() > last.end(), "it was cut below its writer");
    own.close()?;
    assert_tidy(&path, last.end())?;
    Ok(())
}

// --- the list ------------------------------------------------------------------------------------

fn trials() -> Vec<Trial> {
    let in_the_lab: &[LabTest] = named![
        a_killed_process_loses_no_acknowledged_record,
        a_killed_process_over_zeros_loses_no_acknowledged_record,
        a_killed_process_with_queues_loses_no_acknowledged_record,
        a_killed_process_with_queues_over_zeros_loses_no_acknowledged_record,
        a_killed_process_without_growth_loses_no_acknowledged_record,
        a_killed_process_loses_no_acknowledged_record_of_any_length,
        a_killed_process_loses_no_positional_write,
        a_process_killed_while_opening_or_closing_loses_nothing,
        a_file_of_someone_else_is_never_truncated,
    ];
    let where_zeros_grow: &[LabTest] = named![
        without_an_answer_the_question_comes_again,
        a_file_with_an_open_question_grows_as_its_marker_says,
        a_zeroed_file_that_another_program_appended_to_is_not_truncated,
    ];
    let where_unwritten_space_grows: &[LabTest] = named![
        a_file_of_odd_length_that_was_only_grown_gets_zeros_to_the_end_of_its_block,
        a_kill_does_not_truncate_what_was_there_before,
        a_copy_with_the_marker_is_left_alone,
        a_file_that_another_program_appended_to_is_doubtful,
        a_file_that_another_program_filled_up_to_the_announced_size_is_doubtful,
        a_file_that_another_program_made_shorter_is_left_as_it_is,
        a_write_of_another_program_inside_the_grown_space_costs_no_acknowledged_record,
        a_damaged_marker_is_doubtful_and_nothing_is_cut,
        a_crash_in_each_window_of_the_markers_life_is_recovered_from,
        a_file_in_use_is_recovered_by_no_other_process,
    ];
    let mut all: Vec<_> =
        in_the_lab.iter().flat_map(|&(name, test)| lab_trials(name, test)).collect();
    let zeros = where_zeros_grow.iter();
    all.extend(zeros.flat_map(|&(name, test)| lab_trials_where(name, Fs::grows_zeroed, test)));
    let unwritten = where_unwritten_space_grows.iter();
    all.extend(
        unwritten.flat_map(|&(name, test)| lab_trials_where(name, Fs::grows_unwritten, test)),
    );
    all.extend(lab_trials_where(
        "a_snapshot_of_a_file_in_use_is_recovered_as_after_a_crash",
        |fs| match fs {
            Fs::Btrfs | Fs::BtrfsNocow => Ok(()),
            _ => Err("it has no snapshots"),
        },
        a_snapshot_of_a_file_in_use_is_recovered_as_after_a_crash,
    ));
    all.extend(volume_trials_where(
        "acknowledged_records_survive_a_shutdown_of_the_file_system",
        Fs::shuts_down,
        acknowledged_records_survive_a_shutdown_of_the_file_system,
    ));
    let on_fuse: &[VolumeTest] = named![
        flushed_records_survive_power_cuts,
        acknowledged_records_survive_power_cuts,
        acknowledged_records_over_zeros_survive_power_cuts,
        a_replaced_file_is_whole_after_power_cuts,
        a_file_that_is_not_replaced_is_lost,
    ];
    let cuts = on_fuse.iter();
    all.extend(
        cuts.flat_map(|&(name, test)| fuse_trials_where(name, Fs::survives_power_cuts, test)),
    );
    all.extend(fuse_trials(
        "a_disk_that_lies_about_flushes_loses_records",
        a_disk_that_lies_about_flushes_loses_records,
    ));
    all
}

fn main() -> ExitCode {
    let scenarios: &[child::Scenario] = &[
        ("append_durably", append_durably),
        ("append_frames_durably", append_frames_durably),
        ("append_then_sync", append_then_sync),
        ("write_durably_with_holes", write_durably_with_holes),
        ("write_durably_beyond", write_durably_beyond),
        ("open_append_close", open_append_close),
        ("replace_for_ever", replace_for_ever),
    ];
    dioxide_testkit::run(scenarios, trials)
}
