//! Old files as new logs, and many files together. Recycled space shows no old data, a crash mixes
//! no lives, and growth stays within its budget.

mod common;

use common::*;
use dioxide::{Durability, ErrorKind, File, Growth, OpenOptions, Tail, Verdict};
use dioxide_testkit::child::{self, Acks};
use dioxide_testkit::files;
use dioxide_testkit::fuse_disk::Keep;
use dioxide_testkit::lab::{Applies, Disk, Fs, TestDir};
use dioxide_testkit::trials::{
    Trial, TrialResult, disk_trial, fuse_trials_where, lab_trials, lab_trials_where,
};
use dioxide_testkit::volume::{SIZE_MIN, Volume};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The size of a filled segment.
const SEGMENT_BYTES: u64 = 4 * MIB;

/// The bits of a writer's number below that of the life.
const LIFE_SHIFT: u64 = 16;

/// The number of a writer in one life of a segment. It identifies the records of that life.
fn writer_of(life: u64, thread: u64) -> u64 {
    life << LIFE_SHIFT | thread
}

/// The end of the records of a life: the first block that is not one.
fn end_of_life(content: &[u8], life: u64) -> u64 {
    let of_this =
        |block: &[u8]| Stamp::of(block).is_some_and(|stamp| stamp.writer >> LIFE_SHIFT == life);
    content.chunks_exact(BLOCK).take_while(|block| of_this(block)).count() as u64 * BLOCK_BYTES
}

fn reopen(path: &Path) -> dioxide::Result<File> {
    OpenOptions::new().write(true).open(path)
}

/// Fills a segment with records of this life, and closes it.
fn fill(path: &Path, life: u64) -> dioxide::Result<()> {
    let file = writable().open(path)?;
    for number in 1 << 20.. {
        let left = SEGMENT_BYTES.saturating_sub(file.len()?) / BLOCK_BYTES;
        if left == 0 {
            break;
        }
        append(&file, writer_of(life, 99), number, left.min(16))?;
    }
    file.close()
}

/// A recycled segment, full of records of life 0.
fn recycled(path: &Path) -> dioxide::Result<File> {
    fill(path, 0)?;
    let file = reopen(path)?;
    file.recycle()?;
    Ok(file)
}

// --- visible content -----------------------------------------------------------------------------

fn a_recycled_file_is_empty_over_written_space(dir: TestDir) -> TrialResult {
    let (old, path) = (dir.join("old"), dir.join("new"));
    fill(&old, 0)?;
    fs::rename(&old, &path)?;
    let file = reopen(&path)?;
    file.recycle()?;
    assert_eq!((file.len()?, fs::metadata(&path)?.len()), (0, SEGMENT_BYTES));
    let placed = together(8, |thread| append_many(&file, writer_of(1, thread), 30)).concat();
    let end = assert_gapless(&placed, 0);
    assert!(end < SEGMENT_BYTES);
    let written = files::extents(&path)?;
    assert!(
        written.iter().all(|extent| !extent.unwritten),
        "not all of it is written: {written:?}"
    );
    assert_eq!(
        written.iter().map(|extent| extent.len).sum::<u64>(),
        SEGMENT_BYTES,
        "it grew or shrank"
    );
    assert_eq!(file.stats().growths, 0);
    let mut into = dioxide::Buffer::zeroed(4 * BLOCK);
    assert_eq!(
        file.read_at(&mut into, end - BLOCK_BYTES)?,
        BLOCK,
        "reads end where this life does"
    );
    assert_eq!(File::open(&path)?.read_at(&mut into, end)?, 0);
    file.close()?;
    assert_tidy(&path, end)?;
    let content = fs::read(&path)?;
    assert_all_there(&content, &placed);
    assert_eq!(end_of_life(&content, 1), end);
    Ok(())
}

fn a_recycled_file_grows_when_its_space_is_used_up(dir: TestDir) -> TrialResult {
    for growth in [Growth::Unwritten, Growth::Zeroed] {
        let path = dir.join(format!("{growth:?}"));
        fill(&path, 0)?;
        let file = writable().growth(growth).growth_cap(MIB).open(&path)?;
        file.recycle()?;
        let placed = together(4, |thread| append_many(&file, writer_of(1, thread), 300)).concat();
        let end = assert_gapless(&placed, 0);
        assert!(end > SEGMENT_BYTES && fs::metadata(&path)?.len() > SEGMENT_BYTES);
        file.close()?;
        assert_tidy(&path, end)?;
        assert_all_there(&fs::read(&path)?, &placed);
    }
    Ok(())
}

/// The engine truncates its last block, and extends the file over it again.
fn a_file_of_odd_length_is_recycled(dir: TestDir) -> TrialResult {
    for growth in [Growth::Unwritten, Growth::Zeroed] {
        let path = dir.join(format!("{growth:?}"));
        fs::write(&path, vec![0xA5; 10 * BLOCK + 1000])?;
        let file = writable().growth(growth).growth_cap(MIB).open(&path)?;
        file.recycle()?;
        let placed: Vec<_> = (0..8)
            .map(|number| append(&file, writer_of(1, 0), number, 3))
            .collect::<Result<_, _>>()?;
        file.write_at(&record(writer_of(1, 0), 9, 1), 30 * BLOCK_BYTES)?;
        let content = fs::read(&path)?;
        assert_all_there(&content, &placed);
        assert!(content[24 * BLOCK..30 * BLOCK].iter().all(|byte| *byte == 0), "old content shows");
        file.close()?;
        assert_tidy(&path, 31 * BLOCK_BYTES)?;
    }
    Ok(())
}

/// Old content follows the last block, and is in it until a write.
fn records_of_any_length_show_nothing_of_the_life_before(dir: TestDir) -> TrialResult {
    for (growth, tail) in
        [Growth::Unwritten, Growth::Zeroed].into_iter().flat_map(|g| TAILS.map(|t| (g, t)))
    {
        let path = dir.join(format!("{growth:?}-{tail:?}"));
        fill(&path, 0)?;
        let file = writable().growth(growth).tail(tail).growth_cap(MIB).open(&path)?;
        file.recycle()?;
        let laid = together(4, |thread| append_frames(&file, thread, 15)).concat();
        let end = laid.iter().map(Laid::end).max().unwrap_or(0);
        assert_eq!(read_bytes(&File::open(&path)?, end, 5000)?, [], "above the end");
        let content = fs::read(&path)?;
        let rest = end as usize..end.next_multiple_of(BLOCK_BYTES) as usize;
        assert!(content[rest].iter().all(|byte| *byte == 0), "old content behind the last record");
        file.set_len(end + 5000)?;
        assert_eq!(read_bytes(&file, end, 9000)?, [0; 5000], "old content shows");
        file.set_len(end)?;
        file.close()?;
        assert_laid_out(&fs::read(&path)?, 0, &laid, tail == Tail::Pad);
    }
    Ok(())
}

/// A child: reports the view of a reader in another process.
fn look(acks: &Acks, args: &[String]) {
    let reader = File::open(&args[0]).expect("it opens");
    let len = reader.len().expect("it can be told");
    let read = reader.read_at(&mut dioxide::Buffer::zeroed(BLOCK), len).expect("it can be read");
    acks.send([len, read as u64, 0]);
}

fn another_process_reads_nothing_old(dir: TestDir) -> TrialResult {
    let path = dir.join("log");
    let file = recycled(&path)?;
    let looks = || child::spawn("look", &[path.to_string_lossy()])?.wait(PATIENCE);
    let (status, seen) = looks()?;
    assert!(status.success());
    assert_eq!(seen, [[0, 0, 0]]);
    let placed = append(&file, writer_of(1, 0), 0, 3)?;
    let (_, seen) = looks()?;
    assert!(seen[0][0] <= placed.end() && seen[0][1] == 0, "{seen:?}");
    Ok(())
}

fn a_gap_over_recycled_space_is_refused(dir: TestDir) -> TrialResult {
    let path = dir.join("log");
    let file = recycled(&path)?;
    for offset in [BLOCK_BYTES, SEGMENT_BYTES - BLOCK_BYTES, SEGMENT_BYTES + MIB] {
        let refused = refusal(file.write_at(&record(1, 1, 1), offset));
        assert!(matches!(refused, ErrorKind::Unsupported(_)), "{refused:?}");
    }
    file.write_at(&record(writer_of(1, 0), 0, 2), 0)?;
    append(&file, writer_of(1, 0), 1, 1)?;
    file.close()?;
    assert_tidy(&path, 3 * BLOCK_BYTES)?;
    assert_eq!(end_of_life(&fs::read(&path)?, 1), 3 * BLOCK_BYTES);
    Ok(())
}

fn set_len_beyond_the_end_of_a_recycled_file_shows_zeros(dir: TestDir) -> TrialResult {
    let path = dir.join("log");
    let file = recycled(&path)?;
    append(&file, writer_of(1, 0), 0, 1)?;
    file.set_len(MIB)?;
    let content = fs::read(&path)?;
    assert_eq!((content.len() as u64, end_of_life(&content, 1)), (MIB, BLOCK_BYTES));
    assert!(content[BLOCK..].iter().all(|byte| *byte == 0), "old content shows");
    Ok(())
}

fn what_does_not_grow_ahead_is_not_recycled(dir: TestDir) -> TrialResult {
    let path = dir.join("log");
    fill(&path, 0)?;
    let content = fs::read(&path)?;
    let file = OpenOptions::new().write(true).growth(Growth::None).open(&path)?;
    assert!(matches!(refusal(file.recycle()), ErrorKind::Unsupported(_)));
    assert_eq!(refusal(File::open(&path)?.recycle()), ErrorKind::ReadOnly);
    file.close()?;
    assert!(fs::read(&path)? == content);
    Ok(())
}

fn a_device_is_not_recycled(disk: Disk) -> TrialResult {
    let device = reopen(&disk)?;
    assert!(matches!(refusal(device.recycle()), ErrorKind::Unsupported(_)));
    device.close()?;
    Ok(())
}

// --- crashes -------------------------------------------------------------------------------------

/// Reports that a child has recycled its file.
const BEGUN: [u64; 3] = [u64::MAX; 3];

/// A child: recycles args[0], with the growth args[1]. Then it appends durably in 16 threads, as
/// life args[2].
fn live_again(acks: &Acks, args: &[String]) {
    let mut options = OpenOptions::new();
    options
        .write(true)
        .durability(Durability::EveryWrite)
        .growth(growth_named(&args[1]))
        .growth_cap(MIB);
    let file = options.open(&args[0]).expect("it opens");
    if file.recycle().is_err() {
        return;
    }
    acks.send(BEGUN);
    let life = args[2].parse().expect("a number");
    together(16, |thread| {
        let writer = writer_of(life, thread);
        let placed = (0..).map_while(|number| append(&file, writer, number, 1 + number % 4).ok());
        placed.for_each(|placed| acks.send(placed.to_ack()));
    });
}

fn start(path: &Path, growth: &str, life: u64) -> io::Result<child::Child> {
    child::spawn("live_again", &[&*path.to_string_lossy(), growth, &life.to_string()])
}

/// Checks a segment of this life after a crash, sets its end, and fills it for the next life.
/// Returns the number of required records.
fn check_life(
    path: &Path,
    life: u64,
    acks: Vec<[u64; 3]>,
) -> Result<usize, dioxide_testkit::trials::Failed> {
    let begun = acks.contains(&BEGUN);
    let records: Vec<_> =
        acks.into_iter().filter(|ack| *ack != BEGUN).map(Placed::from_ack).collect();
    let content = fs::read(path)?;
    let end = end_of_life(&content, life);
    let file = reopen(path)?;
    match file.recovery() {
        None => {
            assert!(!begun, "a file that was recycled carries its marker");
            assert_eq!(end_of_life(&content, life - 1), SEGMENT_BYTES, "it is not as it was");
        }
        Some(found) => {
            assert!((found.floor..=found.ceiling).contains(&end), "{end}: {found:?}");
            assert_all_there(&content, &records);
            assert!(
                records.iter().all(|record| record.end() <= end),
                "a gap below an acknowledged record"
            );
            match found.verdict {
                Verdict::EndUnknown => file.set_len(end)?,
                _ => assert_eq!((&found.verdict, found.ceiling), (&Verdict::EndKnown, end)),
            }
            assert_eq!((file.len()?, File::open(path)?.len()?), (end, end));
            file.close()?;
            assert_tidy(path, end)?;
            assert!(fs::read(path)? == content[..end as usize]);
            if end > SEGMENT_BYTES {
                reopen(path)?.set_len(SEGMENT_BYTES)?;
            }
            fill(path, life)?;
        }
    }
    Ok(records.len())
}

fn kill_lives(path: &Path, growth: &str) -> TrialResult {
    let mut random = Random::new(growth.len() as u64);
    let mut acknowledged = 0;
    fill(path, 0)?;
    let mut life = 1;
    for round in 0..10 {
        let mut child = start(path, growth, life)?;
        // The first few die during the open or the recycle.
        if round > 2 {
            child.wait_for_acks(1 + random.below(900) as usize, PATIENCE)?;
        }
        let acks = child.kill_after(Duration::from_micros(random.below(20_000)))?;
        acknowledged += check_life(path, life, acks)?;
        // Before the recycle the file still has the previous life.
        let content = fs::read(path)?;
        life += u64::from(end_of_life(&content, life) == SEGMENT_BYTES);
    }
    assert!(acknowledged > 200, "too little was acknowledged to test anything: {acknowledged}");
    Ok(())
}

fn a_killed_process_mixes_no_lives(dir: TestDir) -> TrialResult {
    kill_lives(&dir.join("log"), "unwritten")
}

fn a_killed_process_over_zeros_mixes_no_lives(dir: TestDir) -> TrialResult {
    kill_lives(&dir.join("log"), "zeroed")
}

fn power_cuts_mix_no_lives(fs: Fs) -> TrialResult {
    let mut volume = Volume::on_fuse_disk(fs, SIZE_MIN)?;
    let path = volume.path().join("log");
    fill(&path, 0)?;
    let cuts = [
        Keep::Nothing,
        Keep::Random { seed: 1 },
        Keep::Random { seed: 2 },
        Keep::All,
        Keep::Nothing,
    ];
    for (life, keep) in (1..).zip(cuts) {
        // The last lives grow beyond the space of the segment.
        let wanted = if life < 4 { 100 } else { 700 };
        let mut child = start(&path, "unwritten", life)?;
        child.wait_for_acks(wanted, PATIENCE)?;
        volume.disk().expect("on a FUSE disk").power_cut(keep)?;
        let (_, acks) = child.wait(PATIENCE)?;
        volume.power_cut(keep)?;
        assert!(check_life(&path, life, acks)? + 1 >= wanted);
    }
    volume.fsck()?;
    Ok(())
}

// --- many files ----------------------------------------------------------------------------------

const FILES: u64 = 200;

/// The longest record in these files.
const RECORD_BYTES: u64 = 4 * BLOCK_BYTES;

fn path_of(dir: &Path, n: u64) -> PathBuf {
    dir.join(format!("log-{n}"))
}

/// The grown space of all files, in bytes.
fn grown_ahead(dir: &Path, files: &[File]) -> u64 {
    let ahead = |(file, n): (&File, u64)| {
        // In this order: a size older than the length cannot be too large.
        let size = fs::metadata(path_of(dir, n)).expect("it is there").len();
        size.saturating_sub(file.len().expect("a writer knows"))
    };
    files.iter().zip(0..).map(ahead).sum()
}

/// A child: appends to many files in the directory args[0], with a budget of args[1] bytes.
fn share_a_budget(acks: &Acks, args: &[String]) {
    let dir = Path::new(&args[0]);
    let budget: u64 = args[1].parse().expect("a number");
    dioxide::set_growth_budget(budget);
    let open = |n| writable().open(path_of(dir, n)).expect("it opens");
    let mut files: Vec<_> = (0..FILES).map(open).collect();
    let done = AtomicBool::new(false);
    // Writes without budget are below the end once they are acknowledged.
    let most = budget + FILES * RECORD_BYTES;
    let placed = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let ahead = grown_ahead(dir, &files);
                assert!(ahead <= most, "{ahead} bytes ahead, of {budget}");
            }
        });
        let _over = Over(&done);
        together(8, |thread| {
            let mut placed = vec![Vec::new(); FILES as usize];
            for number in 0..4 {
                for n in (thread % 4..FILES).step_by(4) {
                    let record = append(&files[n as usize], thread, number, 1 + n % 4);
                    placed[n as usize].push(record.expect("there is space"));
                }
            }
            placed
        })
    });
    let last = files.pop().expect("one of many");
    for (n, file) in files.into_iter().enumerate() {
        let records: Vec<_> = placed.iter().flat_map(|thread| &thread[n]).copied().collect();
        let end = assert_gapless(&records, 0);
        file.close().expect("it closes");
        assert_tidy(&path_of(dir, n as u64), end).expect("it is tidy");
        assert_all_there(&fs::read(path_of(dir, n as u64)).expect("it reads"), &records);
    }
    // The last file gets the budget of the others at its next growth.
    let path = path_of(dir, FILES - 1);
    let grown = (0..100).map(|number| {
        append(&last, 90, number, 4).expect("there is space");
        let size = fs::metadata(&path).expect("it is there").len();
        size - last.len().expect("a writer knows")
    });
    acks.send([grown.max().expect("it appended"), 0, 0]);
    last.close().expect("it closes");
}

fn many_files_within(dir: &Path, budget: u64) -> Result<u64, dioxide_testkit::trials::Failed> {
    let (status, acks) =
        child::spawn("share_a_budget", &[&*dir.to_string_lossy(), &budget.to_string()])?
            .wait(PATIENCE)?;
    assert!(status.success(), "{status}");
    Ok(acks[0][0])
}

fn many_files_share_the_budget_and_give_it_back(dir: TestDir) -> TrialResult {
    let grown = many_files_within(&dir, 16 * MIB)?;
    // A quarter of the rest, as for a single file.
    assert!((3 * MIB..=4 * MIB).contains(&grown), "{grown}");
    Ok(())
}

fn many_files_without_a_budget_get_what_they_need(dir: TestDir) -> TrialResult {
    assert_eq!(many_files_within(&dir, 0)?, 0);
    Ok(())
}

/// Whether a file grows ahead, but its overwrites are not in place.
fn grows_but_elsewhere(fs: Fs) -> Applies {
    if fs == Fs::Btrfs {
        Ok(())
    } else {
        Err("it writes over blocks where they lie, or does not grow")
    }
}

fn a_file_that_is_not_written_over_in_place_is_not_recycled(dir: TestDir) -> TrialResult {
    let path = dir.join("log");
    fill(&path, 0)?;
    let file = reopen(&path)?;
    let refusal = file.recycle().expect_err("the space would not be its own");
    assert!(matches!(refusal.kind(), ErrorKind::Unsupported(_)), "{refusal}");
    assert_eq!(file.len()?, SEGMENT_BYTES);
    Ok(file.close()?)
}

// --- the list ------------------------------------------------------------------------------------

fn trials() -> Vec<Trial> {
    let where_unwritten_space_grows: &[LabTest] = named![
        many_files_share_the_budget_and_give_it_back,
        many_files_without_a_budget_get_what_they_need,
    ];
    let where_both_grow: &[LabTest] = named![
        a_recycled_file_is_empty_over_written_space,
        another_process_reads_nothing_old,
        a_gap_over_recycled_space_is_refused,
        set_len_beyond_the_end_of_a_recycled_file_shows_zeros,
        a_killed_process_mixes_no_lives,
        a_recycled_file_grows_when_its_space_is_used_up,
        a_file_of_odd_length_is_recycled,
        records_of_any_length_show_nothing_of_the_life_before,
    ];
    let both = |fs: Fs| fs.grows_unwritten().and(fs.grows_zeroed());
    let mut all = Vec::new();
    let unwritten = where_unwritten_space_grows.iter();
    all.extend(
        unwritten.flat_map(|&(name, test)| lab_trials_where(name, Fs::grows_unwritten, test)),
    );
    all.extend(where_both_grow.iter().flat_map(|&(name, test)| lab_trials_where(name, both, test)));
    all.extend(lab_trials_where(
        "a_killed_process_over_zeros_mixes_no_lives",
        Fs::grows_zeroed,
        a_killed_process_over_zeros_mixes_no_lives,
    ));
    all.extend(lab_trials(
        "what_does_not_grow_ahead_is_not_recycled",
        what_does_not_grow_ahead_is_not_recycled,
    ));
    all.extend(fuse_trials_where("power_cuts_mix_no_lives", both, power_cuts_mix_no_lives));
    all.extend(lab_trials_where(
        "a_file_that_is_not_written_over_in_place_is_not_recycled",
        grows_but_elsewhere,
        a_file_that_is_not_written_over_in_place_is_not_recycled,
    ));
    all.push(disk_trial("a_device_is_not_recycled", a_device_is_not_recycled));
    all
}

fn main() -> ExitCode {
    let scenarios: &[child::Scenario] =
        &[("look", look), ("live_again", live_again), ("share_a_budget", share_a_budget)];
    dioxide_testkit::run(scenarios, trials)
}
