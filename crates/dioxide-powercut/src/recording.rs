//! One run of a workload, recorded, and what its cuts show.

use crate::check::{self, Loss};
use crate::history::History;
use crate::mark::{Act, Mark};
use crate::workload::{FILES, SCENARIO, Workload};
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
use std::time::Duration;

/// How long a workload may take.
const LIMIT: Duration = Duration::from_secs(180);

/// How a disk treats its flushes while a workload is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flushes {
    /// As it should.
    Kept,
    /// It says that they are done and does nothing: the control.
    Ignored,
}

/// What is recorded.
#[derive(Clone, Copy)]
pub struct Plan {
    /// On which file system.
    pub fs: Fs,
    /// Doing what.
    pub workload: &'static Workload,
    /// On a disk that does what.
    pub flushes: Flushes,
    /// Decides everything but the order in which threads run.
    pub seed: u64,
    /// How many records each thread writes.
    pub records: u64,
    /// How long the disk delays each request at most, before it takes effect and again after.
    pub delay_max: Duration,
}

/// A moment at which the power goes, and what the disk keeps of its cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// How many entries of the log come before it.
    pub after: u64,
    /// Of what was not flushed.
    pub keep: Keep,
    /// The power goes again during the recovery and checks that follow, and everything is checked once more.
    pub again: Option<Again>,
}

/// A second moment at which the power goes. No writes are torn then: file systems that recover write their superblock
/// (ext4) and metadata (XFS) in place, in several sectors, and cannot be mounted if one of them is torn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Again {
    /// After how much of what the disk is given then, in 1024ths.
    pub part: u64,
    /// As in [`Cut`].
    pub keep: Keep,
}

impl fmt::Display for Again {
    /// As [`Again::from_str`] reads it.
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

/// What one cut showed.
#[derive(Debug, Default)]
pub struct Seen {
    /// How many records had to be there.
    pub records: u64,
    /// What was wrong.
    pub losses: Vec<Loss>,
}

/// A recorded run.
pub struct Recording {
    volume: Volume,
    marks: Vec<(u64, Mark)>,
    /// The entries of the log between which the workload ran.
    span: Range<u64>,
    flushes: u64,
}

impl Recording {
    /// Runs the workload to its end.
    ///
    /// # Errors
    ///
    /// What failed in the rig, a workload that does not end well included; and a run in which no flush reached the disk.
    pub fn new(plan: &Plan) -> io::Result<Recording> {
        let volume = Volume::recorded(plan.fs, SIZE_MIN)?;
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

    /// Takes up a run that was saved.
    ///
    /// # Errors
    ///
    /// What failed in the rig.
    pub fn load(fs: Fs, log: &Path) -> io::Result<Recording> {
        let volume = Volume::recorded(fs, SIZE_MIN)?;
        let disk = disk(&volume);
        let logged = disk.load(log)?.logged;
        let marks = read_marks(disk)?;
        Ok(Recording { volume, marks, span: 0..logged, flushes: 0 })
    }

    /// Writes it down, to be taken up with [`Recording::load`]. The path is absolute, and has no spaces in it.
    ///
    /// # Errors
    ///
    /// What failed in the rig.
    pub fn save(&self, log: &Path) -> io::Result<()> {
        disk(&self.volume).save(log).map(drop)
    }

    /// How many flushes the disk was asked for during the workload.
    pub fn flushes(&self) -> u64 {
        self.flushes
    }

    /// How many records the workload was told to be durable.
    pub fn durable(&self) -> usize {
        self.marks.iter().filter(|(_, mark)| matches!(mark.act, Act::Durable(..))).count()
    }

    /// As many cuts, in their order: half of them anywhere, half right after something was promised.
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
        let tears = if self.has_frames() { 2 } else { 6 };
        let keep = match (random.below(tears), random.below(1 << 32)) {
            (0, seed) => Keep::Random { seed },
            _ => whole_writes(random),
        };
        let goes_again = random.below(4) == 0;
        let again = goes_again.then(|| Again { part: random.below(1025), keep: whole_writes(random) });
        Cut { after, keep, again }
    }

    /// Cuts the power there and looks. A file system that does not come up again is a loss as well.
    ///
    /// # Errors
    ///
    /// What failed in the rig.
    pub fn replay(&mut self, cut: Cut) -> io::Result<Seen> {
        let histories = self.histories(cut.after);
        let mounted = self.volume.replay(cut.after, cut.keep);
        let mut seen = self.look(mounted, &histories)?;
        if let Some(again) = cut.again
            && seen.losses.is_empty()
        {
            let since = disk(&self.volume).stats()?.logged_since;
            let mounted = self.volume.replay_again(since * again.part / 1024, again.keep);
            let after = self.look(mounted, &histories)?;
            seen.records += after.records;
            seen.losses.extend(after.losses.iter().map(|loss| format!("after one more cut: {loss}")));
        }
        Ok(seen)
    }

    fn look(&self, mounted: io::Result<()>, histories: &[History]) -> io::Result<Seen> {
        let records = histories.iter().map(History::kept).sum::<usize>() as u64;
        let mut seen = Seen { records, losses: Vec::new() };
        match mounted {
            Ok(()) => {
                for (number, history) in (0..).zip(histories) {
                    seen.losses.extend(check::check(self.volume.path(), number, history)?);
                }
            }
            Err(e) => seen.losses.push(format!("it cannot be mounted: {e}")),
        }
        Ok(seen)
    }

    /// Whether the file system, as the last replay and the checks after it left it, is in order.
    ///
    /// # Errors
    ///
    /// What its checker found.
    pub fn fsck(&mut self) -> io::Result<()> {
        self.volume.fsck()
    }

    fn histories(&self, cut: u64) -> [History; FILES as usize] {
        let marked = self.marks.partition_point(|(place, _)| *place < cut);
        let (before, after) = self.marks.split_at(marked);
        std::array::from_fn(|file| {
            let of_file = |mark: &&(u64, Mark)| mark.1.file == file as u64;
            let acts = |marks: &'_ [(u64, Mark)]| -> Vec<Act> {
                marks.iter().filter(of_file).map(|(_, mark)| mark.act).collect()
            };
            History::foreseeing(acts(before), acts(after))
        })
    }

    /// Whether its last blocks are written again and again: then it matters how a write is torn.
    fn has_frames(&self) -> bool {
        self.marks.iter().any(|(_, mark)| matches!(mark.act, Act::AppendFrame(..)))
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
    let (dir, marks) = (dir.to_string_lossy(), marks.to_string_lossy());
    let args = [plan.workload.name, &dir, &marks, &plan.seed.to_string(), &plan.records.to_string()];
    let (status, _) = child::spawn(SCENARIO, &args)?.wait(LIMIT)?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("{}: {status}", plan.workload.name))) }
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
