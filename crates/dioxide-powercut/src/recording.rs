//! One recorded run of a workload, and the results of its power cuts.

use crate::blocks::Blocks;
use crate::check::{self, Loss};
use crate::history::History;
use crate::mark::{Act, Mark};
use crate::parts::Parts;
use crate::shared::Cgroups;
use crate::workload::{SCENARIO, Workload};
use crate::write_ahead::WriteAhead;
use dioxide_testkit::child;
use dioxide_testkit::fuse_disk::{FuseDisk, Keep};
use dioxide_testkit::lab::Fs;
use dioxide_testkit::records::Random;
use dioxide_testkit::volume::{SIZE_MIN, Volume};
use std::fmt;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Time limit of a workload.
const LIMIT: Duration = Duration::from_secs(180);

/// How a disk treats its flushes while a workload is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flushes {
    /// It flushes.
    Kept,
    /// It acknowledges flushes and does nothing: the control.
    Ignored,
}

/// The parameters of a recording.
#[derive(Clone, Copy)]
pub struct Plan {
    /// The file system.
    pub fs: Fs,
    /// The workload.
    pub workload: &'static Workload,
    /// How the disk treats flushes.
    pub flushes: Flushes,
    /// Seed of all random choices; the order in which threads run stays random.
    pub seed: u64,
    /// Records that each thread writes.
    pub records: u64,
    /// Maximum delay of each request by the disk, before it takes effect and again after.
    pub delay_max: Duration,
}

/// A power cut, and the part of its cache that the disk keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The number of log entries before it.
    pub after: u64,
    /// The unflushed data that the disk keeps.
    pub keep: Keep,
    /// A second power cut during the recovery and checks that follow. Everything is then checked
    /// again.
    pub again: Option<Again>,
}

/// A second power cut. It tears no writes.
///
/// File systems that recover write their superblock (ext4) and metadata (XFS) in place, in several
/// sectors. They cannot be mounted if one of these is torn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Again {
    /// The share of the later log entries before it, in 1024ths.
    pub part: u64,
    /// As in [`Cut`].
    pub keep: Keep,
}

impl fmt::Display for Again {
    /// In the format of [`Again::from_str`].
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.part, self.keep)
    }
}

impl FromStr for Again {
    type Err = String;

    fn from_str(text: &str) -> Result<Again, String> {
        let (part, keep) = text.split_once(':').ok_or("not PART:KEEP")?;
        let part = part.parse().map_err(|_| format!("not a number: {part}"))?;
        Ok(Again { part, keep: keep.parse()? })
    }
}

/// The result of one power cut.
#[derive(Debug, Default)]
pub struct Seen {
    /// The number of records that had to survive.
    pub records: u64,
    /// The losses found.
    pub losses: Vec<Loss>,
}

impl Seen {
    /// Whether something that was acknowledged is missing. Other losses are contents that must not
    /// be there, files that cannot be opened, and a file system that cannot be mounted.
    pub fn is_missing_some(&self) -> bool {
        self.losses.iter().any(|loss| loss.contains("lost"))
    }
}

/// A recorded run.
pub struct Recording {
    volume: Volume,
    marks: Vec<(u64, Mark)>,
    /// The log entries of the workload.
    span: Range<u64>,
    flushes: u64,
}

impl Recording {
    /// Runs the workload to its end.
    ///
    /// # Errors
    ///
    /// An error of the rig, a workload that fails, or a run in which no flush reached the disk.
    pub fn new(plan: &Plan) -> io::Result<Recording> {
        let Workload { mkfs, has_large_sectors, .. } = plan.workload;
        let volume = match has_large_sectors {
            true => Volume::recorded_with_large_sectors(plan.fs, SIZE_MIN, mkfs)?,
            false => Volume::recorded(plan.fs, SIZE_MIN, mkfs)?,
        };
        let disk = disk(&volume);
        if plan.flushes == Flushes::Ignored {
            disk.lie()?;
        }
        let begin = disk.delay(plan.delay_max, plan.seed)?;
        play(plan, volume.path(), &disk.marks_path())?;
        let end = disk.stats()?;
        let marks = read_marks(disk)?;
        let flushes = end.flushes - begin.flushes;
        if plan.workload.is_honest && flushes == 0 {
            return Err(io::Error::other("no flush reached the disk: nothing can be tested"));
        }
        Ok(Recording { volume, marks, span: begin.logged..end.logged, flushes })
    }

    /// Loads a saved recording.
    ///
    /// # Errors
    ///
    /// An error of the rig.
    pub fn load(fs: Fs, log: &Path) -> io::Result<Recording> {
        let volume = Volume::recorded(fs, SIZE_MIN, &[])?;
        let disk = disk(&volume);
        let logged = disk.load(log)?.logged;
        let marks = read_marks(disk)?;
        Ok(Recording { volume, marks, span: 0..logged, flushes: 0 })
    }

    /// Saves it for [`Recording::load`]. The path is absolute and has no spaces.
    ///
    /// # Errors
    ///
    /// An error of the rig.
    pub fn save(&self, log: &Path) -> io::Result<()> {
        disk(&self.volume).save(log).map(drop)
    }

    /// The number of flushes that the disk received during the workload.
    pub fn flushes(&self) -> u64 {
        self.flushes
    }

    /// The number of records that were acknowledged as durable.
    pub fn durable(&self) -> usize {
        let is_durable = |mark: &Mark| {
            matches!(
                mark.act,
                Act::Durable(..) | Act::Stable { .. } | Act::StablePart { .. } | Act::Logged { .. }
            )
        };
        self.marks.iter().filter(|(_, mark)| is_durable(mark)).count()
    }

    /// `count` power cuts in log order: half of them at random positions, half right after a
    /// promise.
    pub fn cuts(&self, count: usize, seed: u64) -> Vec<Cut> {
        let mut random = Random::new(seed);
        let mut cuts: Vec<_> = (0..count).map(|_| self.cut(&mut random)).collect();
        cuts.sort_unstable_by_key(|cut| cut.after);
        cuts
    }

    fn cut(&self, random: &mut Random) -> Cut {
        let anywhere = self.span.start + random.below(self.span.end - self.span.start + 1);
        let marked = self.marks.get(random.below(2 * self.marks.len() as u64) as usize);
        let after = marked.map_or(anywhere, |(place, _)| place + 1);
        let tears = if self.rewrites_blocks() { 2 } else { 6 };
        let keep = match (random.below(tears), random.below(1 << 32)) {
            (0, seed) => Keep::Random { seed },
            _ => whole_writes(random),
        };
        let goes_again = random.below(4) == 0;
        let again =
            goes_again.then(|| Again { part: random.below(1025), keep: whole_writes(random) });
        Cut { after, keep, again }
    }

    /// Replays the power cut and checks the result. A file system that cannot be mounted is a loss
    /// as well.
    ///
    /// # Errors
    ///
    /// An error of the rig.
    pub fn replay(&mut self, cut: Cut) -> io::Result<Seen> {
        let expected = self.expected(cut.after);
        self.volume.replay_unmounted(cut.after, cut.keep)?;
        let mut seen = self.mount_and_look(&expected)?;
        if let Some(again) = cut.again
            && seen.losses.is_empty()
        {
            let since = disk(&self.volume).stats()?.logged_since;
            self.volume.replay_again_unmounted(since * again.part / 1024, again.keep)?;
            let after = self.mount_and_look(&expected)?;
            seen.records += after.records;
            seen.losses.extend(
                after.losses.iter().map(|loss| format!("after one more power cut: {loss}")),
            );
        }
        Ok(seen)
    }

    fn mount_and_look(&mut self, expected: &Expected) -> io::Result<Seen> {
        let losses = match self.volume.mount() {
            Ok(()) => expected.check(self.volume.path())?,
            Err(e) => vec![format!("it cannot be mounted: {e}")],
        };
        Ok(Seen { records: expected.kept() as u64, losses })
    }

    /// Checks the file system as the last replay and its checks left it.
    ///
    /// # Errors
    ///
    /// The findings of its checker.
    pub fn fsck(&mut self) -> io::Result<()> {
        self.volume.fsck()
    }

    fn expected(&self, cut: u64) -> Expected {
        let marked = self.marks.partition_point(|(place, _)| *place < cut);
        let (before, after) = self.marks.split_at(marked);
        let files = 0..=self.marks.iter().map(|(_, mark)| mark.file).max().unwrap_or(0);
        let acts = |marks: &[(u64, Mark)], file| -> Vec<Act> {
            let of_file = marks.iter().filter(|(_, mark)| mark.file == file);
            of_file.map(|(_, mark)| mark.act).collect()
        };
        match self.marks.first().map(|(_, mark)| mark.act) {
            Some(Act::Begin { .. }) => {
                Expected::Blocks(Blocks::of(before.iter().map(|(_, mark)| mark)))
            }
            Some(Act::LogAppend { .. }) => {
                let of = |file| WriteAhead::foreseeing(acts(before, file), acts(after, file));
                Expected::WriteAhead(files.map(of).collect())
            }
            Some(Act::BeginPart { .. }) => {
                let of = |file| Parts::of(acts(before, file).into_iter());
                Expected::Parts(files.map(of).collect())
            }
            _ => {
                let of = |file| History::foreseeing(acts(before, file), acts(after, file));
                Expected::Logs(files.map(of).collect())
            }
        }
    }

    /// Whether it rewrites blocks that have acknowledged bytes, so that torn writes matter.
    fn rewrites_blocks(&self) -> bool {
        let rewrites = |act| matches!(act, Act::AppendFrame(..) | Act::BeginPart { .. });
        self.marks.iter().any(|(_, mark)| rewrites(mark.act))
    }
}

/// What must be found after a power cut.
enum Expected {
    Logs(Vec<History>),
    Blocks(Blocks),
    WriteAhead(Vec<WriteAhead>),
    Parts(Vec<Parts>),
}

impl Expected {
    /// The number of records, blocks or parts that must survive.
    fn kept(&self) -> usize {
        match self {
            Self::Logs(histories) => histories.iter().map(History::kept).sum(),
            Self::Blocks(blocks) => blocks.kept(),
            Self::WriteAhead(logs) => logs.iter().map(WriteAhead::kept).sum(),
            Self::Parts(files) => files.iter().map(Parts::kept).sum(),
        }
    }

    fn check(&self, dir: &Path) -> io::Result<Vec<Loss>> {
        match self {
            Self::Logs(histories) => {
                let files = (0..).zip(histories);
                let losses: io::Result<Vec<_>> =
                    files.map(|(number, history)| check::check(dir, number, history)).collect();
                Ok(losses?.concat())
            }
            Self::Blocks(blocks) => blocks.check(dir),
            Self::WriteAhead(logs) => Ok(WriteAhead::check(logs, dir)),
            Self::Parts(files) => {
                let losses = (0..).zip(files).map(|(file, parts)| parts.check(dir, file));
                Ok(losses.collect::<io::Result<Vec<_>>>()?.concat())
            }
        }
    }
}

fn whole_writes(random: &mut Random) -> Keep {
    match random.below(5) {
        0 | 1 => Keep::Nothing,
        2 => Keep::All,
        _ => Keep::Writes { seed: random.below(1 << 32) },
    }
}

fn disk(volume: &Volume) -> &FuseDisk {
    volume.disk().expect("made on a FUSE disk")
}

fn read_marks(disk: &FuseDisk) -> io::Result<Vec<(u64, Mark)>> {
    Ok(disk.marks()?.into_iter().map(|(place, mark)| (place, Mark::decode(mark))).collect())
}

fn play(plan: &Plan, dir: &Path, marks: &Path) -> io::Result<()> {
    static PLAYS: AtomicU64 = AtomicU64::new(0);
    let play = PLAYS.fetch_add(1, Ordering::Relaxed);
    let cgroups = Cgroups::new(&format!("dioxide-powercut-{}-{play}", std::process::id()))?;
    let cgroups_dir = cgroups.as_ref().map_or(Path::new(""), Cgroups::dir).to_string_lossy();
    let (dir, marks) = (dir.to_string_lossy(), marks.to_string_lossy());
    let (seed, records) = (plan.seed.to_string(), plan.records.to_string());
    let args = [plan.workload.name, &dir, &marks, &seed, &records, &cgroups_dir];
    let (status, _) = child::spawn(SCENARIO, &args)?.wait(LIMIT)?;
    if status.success() {
        Ok(())
    } else {
        Err(io::Error::other(format!("{}: {status}", plan.workload.name)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_cut_survives_its_text() {
        let again = Again { part: 512, keep: Keep::Writes { seed: 7 } };
        assert_eq!(again.to_string().parse(), Ok(again));
        assert!("512".parse::<Again>().is_err());
    }
}
