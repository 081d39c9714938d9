//! The disk behind the FUSE file: an image in memory with a volatile cache, its faults, and its
//! log.
//!
//! Reads see the newest data. The disk logs every request since the last flush. On power loss it
//! returns to the stable image and applies some of that log.
//!
//! A recording disk keeps its whole log. It can then be replayed, any number of times, to the state
//! after a power cut at any point of the log.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write};
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use super::image::Image;
use super::log::{self, Chooser, LogEntry, Mark, SplitMix};
use super::protocol::{Command, Keep, Stats};

/// A stall ends by itself, because nothing else may end it if its test is killed. The test's
/// threads that wait for the disk cannot die then, so the control socket stays open.
pub const STALL_MAX: Duration = Duration::from_secs(120);

pub(super) type Errno = i32;

pub(super) struct DiskState {
    image: Image,
    /// Entries since the last flush; all entries if the disk records.
    log: Vec<LogEntry>,
    /// Entries since the last replay.
    since: Vec<LogEntry>,
    state: State,
    faults: Faults,
    delays: Option<Delays>,
    stats: Stats,
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    InUse,
    Recording,
    /// The log is complete. Its first `settled` entries are stable. Above them, to be undone: the
    /// entries up to `cut` that `keep` keeps, and later writes.
    Replaying {
        settled: usize,
        cut: usize,
        keep: Keep,
    },
}

#[derive(Default)]
struct Faults {
    no_power: bool,
    lying: bool,
    stalled_until: Option<Instant>,
    flush: Option<Failing>,
    write: Option<(Range<u64>, Failing)>,
}

/// Fails the next `left` times.
struct Failing {
    left: u64,
    errno: Errno,
}

impl Failing {
    fn check(&mut self) -> Result<(), Errno> {
        if self.left == 0 {
            return Ok(());
        }
        self.left -= 1;
        Err(self.errno)
    }
}

/// How long requests wait, before they take effect and after.
struct Delays {
    max: Duration,
    random: SplitMix,
}

impl Delays {
    /// Most are short: a few long delays reorder nothing if all are long.
    fn draw(&mut self) -> Duration {
        let part = (self.random.next() >> 40) as f64 / (1 << 24) as f64;
        self.max.mul_f64(part.powi(3))
    }
}

impl DiskState {
    pub(super) fn new(size: usize) -> DiskState {
        DiskState {
            image: Image::new(size),
            log: Vec::new(),
            since: Vec::new(),
            state: State::InUse,
            faults: Faults::default(),
            delays: None,
            stats: Stats::default(),
        }
    }

    pub(super) fn size(&self) -> u64 {
        self.image.size()
    }

    pub(super) fn read(&mut self, offset: u64, len: u64) -> Result<&[u8], Errno> {
        self.check_power()?;
        self.stats.reads += 1;
        let range = self.clamp(offset, len);
        Ok(self.image.bytes(range))
    }

    pub(super) fn write(&mut self, offset: u64, data: &[u8]) -> Result<usize, Errno> {
        let range = self.begin_write(offset, data.len() as u64)?;
        let data = &data[..range.len()];
        self.stats.writes += 1;
        self.stats.written_bytes += range.len() as u64;
        self.image.cached_mut(range.clone()).copy_from_slice(data);
        self.log(|| LogEntry::Write { offset: range.start, data: data.to_vec() });
        Ok(data.len())
    }

    pub(super) fn zero(&mut self, offset: u64, len: u64) -> Result<(), Errno> {
        let range = self.begin_write(offset, len)?;
        self.stats.zeroings += 1;
        self.image.cached_mut(range.clone()).fill(0);
        self.log(|| LogEntry::Zeros(range));
        Ok(())
    }

    /// Makes the cache stable. A failure loses the cache, and the next flush succeeds because
    /// nothing is left to write. A dying disk does the same.
    pub(super) fn flush(&mut self) -> Result<(), Errno> {
        self.check_power()?;
        self.stats.flushes += 1;
        if let Err(errno) = self.faults.flush.as_mut().map_or(Ok(()), Failing::check) {
            self.stats.failed_flushes += 1;
            self.lose(Keep::Nothing);
            return Err(errno);
        }
        if self.faults.lying {
            return Ok(());
        }
        match self.state {
            State::InUse => self.log.clear(),
            State::Recording => self.log.push(LogEntry::Flush),
            State::Replaying { .. } => {
                self.since.push(LogEntry::Flush);
                return Ok(());
            }
        }
        self.image.settle();
        Ok(())
    }

    pub(super) fn mark(&mut self, mark: Mark) {
        self.log(|| LogEntry::Mark(mark));
    }

    /// All marks so far, as [`log::marks`] encodes them.
    pub(super) fn marks(&self) -> Vec<u8> {
        log::marks(&self.log)
    }

    /// How long requests still have to wait, if the disk stalls.
    pub(super) fn stalls_for(&self) -> Option<Duration> {
        let rest = self.faults.stalled_until?.saturating_duration_since(Instant::now());
        (!rest.is_zero()).then_some(rest)
    }

    /// How long the next request waits before it takes effect, and after.
    pub(super) fn draw_delays(&mut self) -> [Duration; 2] {
        self.delays.as_mut().map_or([Duration::ZERO; 2], |delays| [delays.draw(), delays.draw()])
    }

    pub(super) fn obey(&mut self, command: Command) -> io::Result<Stats> {
        match command {
            Command::FailFlush { times, errno } => {
                self.faults.flush = Some(Failing { left: times, errno });
            }
            Command::FailWriteRange { range, times, errno } => {
                self.faults.write = Some((range, Failing { left: times, errno }));
            }
            Command::Lie => self.faults.lying = true,
            Command::PowerCut(keep) => {
                self.lose(keep);
                self.faults.no_power = true;
            }
            Command::Stall => self.faults.stalled_until = Some(Instant::now() + STALL_MAX),
            Command::GoOn => self.faults.stalled_until = None,
            Command::Heal => self.faults = Faults::default(),
            Command::Delay { max_us, seed } => {
                self.delays =
                    Some(Delays { max: Duration::from_micros(max_us), random: SplitMix(seed) });
            }
            Command::Record => self.record()?,
            Command::Replay { cut, keep } => self.replay(cut as usize, keep)?,
            Command::ReplayAgain { cut, keep } => self.replay_again(cut as usize, keep)?,
            Command::Save(path) => self.save(&path)?,
            Command::Load(path) => self.load(&path)?,
            Command::Stats => {}
        }
        self.stats.logged = self.log.len() as u64;
        self.stats.logged_since = self.since.len() as u64;
        Ok(self.stats)
    }

    fn check_power(&self) -> Result<(), Errno> {
        if self.faults.no_power { Err(libc::EIO) } else { Ok(()) }
    }

    fn clamp(&self, offset: u64, len: u64) -> Range<usize> {
        let end = self.size();
        offset.min(end) as usize..offset.saturating_add(len).min(end) as usize
    }

    fn begin_write(&mut self, offset: u64, len: u64) -> Result<Range<usize>, Errno> {
        self.check_power()?;
        if let Some((broken, failing)) = &mut self.faults.write
            && offset < broken.end
            && broken.start < offset + len
            && let Err(errno) = failing.check()
        {
            self.stats.failed_writes += 1;
            return Err(errno);
        }
        Ok(self.clamp(offset, len))
    }

    fn log(&mut self, entry: impl FnOnce() -> LogEntry) {
        match self.state {
            State::Replaying { .. } => self.since.push(entry()),
            State::InUse | State::Recording => self.log.push(entry()),
        }
    }

    /// Empties the cache, and makes stable what `keep` keeps of it. Ends a recording, which could
    /// not represent this.
    fn lose(&mut self, keep: Keep) {
        self.image.go_back();
        let flushed = flushed_before(&self.log, self.log.len());
        keep_some(&self.log[flushed..], &mut self.image, keep);
        self.image.settle();
        self.log.clear();
        self.state = State::InUse;
    }

    fn record(&mut self) -> io::Result<()> {
        if self.stats.writes + self.stats.zeroings > 0 {
            return Err(io::Error::other("a recording begins with an unwritten disk"));
        }
        self.state = State::Recording;
        Ok(())
    }

    fn replay(&mut self, cut: usize, keep: Keep) -> io::Result<()> {
        if cut > self.log.len() {
            return Err(io::Error::other(format!("the log ends at {}", self.log.len())));
        }
        let flushed = flushed_before(&self.log, cut);
        let settled = match self.state {
            State::InUse => return Err(io::Error::other("nothing was recorded")),
            State::Replaying { settled, .. } if settled <= flushed => {
                self.image.go_back();
                settled
            }
            State::Recording | State::Replaying { .. } => {
                self.image.erase();
                0
            }
        };
        self.log[settled..flushed].iter().for_each(|entry| entry.settle(&mut self.image));
        keep_some(&self.log[flushed..cut], &mut self.image, keep);
        self.state = State::Replaying { settled: flushed, cut, keep };
        self.since.clear();
        self.delays = None;
        Ok(())
    }

    /// One more power cut, after `again` entries since the last replay.
    fn replay_again(&mut self, again: usize, keep_again: Keep) -> io::Result<()> {
        let State::Replaying { settled, cut, keep } = self.state else {
            return Err(io::Error::other("nothing was replayed"));
        };
        let mut since = std::mem::take(&mut self.since);
        since.truncate(again);
        let flushed = flushed_before(&since, since.len());
        self.image.go_back();
        keep_some(&self.log[settled..cut], &mut self.image, keep);
        keep_some(&since[..flushed], &mut self.image, Keep::All);
        keep_some(&since[flushed..], &mut self.image, keep_again);
        Ok(())
    }

    fn save(&self, path: &Path) -> io::Result<()> {
        let mut file = BufWriter::new(File::create(path)?);
        log::save(&self.log, &mut file)?;
        file.flush()
    }

    fn load(&mut self, path: &Path) -> io::Result<()> {
        self.log = log::load(&mut BufReader::new(File::open(path)?))?;
        self.state = State::Recording;
        Ok(())
    }
}

/// The number of entries that are stable in every case at a power cut after `cut` entries.
fn flushed_before(log: &[LogEntry], cut: usize) -> usize {
    log[..cut]
        .iter()
        .rposition(|entry| matches!(entry, LogEntry::Flush))
        .map_or(0, |flush| flush + 1)
}

fn keep_some(log: &[LogEntry], image: &mut Image, keep: Keep) {
    let mut chooser = Chooser::new(keep);
    log.iter().for_each(|entry| entry.keep_some(image, &mut chooser));
}

#[cfg(test)]
mod tests {
    use super::super::image::BLOCK;
    use super::*;

    const FLUSHED: [u8; BLOCK] = [1; BLOCK];
    const CACHED: [u8; BLOCK] = [2; BLOCK];

    fn disk_with_cached_block() -> DiskState {
        let mut disk = DiskState::new(16 * BLOCK);
        disk.write(0, &FLUSHED).unwrap();
        disk.flush().unwrap();
        disk.write(0, &CACHED).unwrap();
        disk
    }

    fn block(disk: &mut DiskState) -> Vec<u8> {
        disk.read(0, BLOCK as u64).unwrap().to_vec()
    }

    fn order(disk: &mut DiskState, command: Command) {
        disk.obey(command).unwrap();
    }

    #[test]
    fn a_failed_flush_loses_the_cache_and_the_next_one_succeeds() {
        let mut disk = disk_with_cached_block();
        order(&mut disk, Command::FailFlush { times: 1, errno: libc::EIO });
        assert_eq!(block(&mut disk), CACHED);
        assert_eq!(disk.flush(), Err(libc::EIO));
        assert_eq!(block(&mut disk), FLUSHED);
        assert_eq!(disk.flush(), Ok(()));
    }

    #[test]
    fn a_power_cut_loses_the_cache_and_stops_the_disk_until_it_heals() {
        let mut disk = disk_with_cached_block();
        order(&mut disk, Command::PowerCut(Keep::Nothing));
        assert_eq!(disk.write(0, &CACHED), Err(libc::EIO));
        assert_eq!(disk.flush(), Err(libc::EIO));
        order(&mut disk, Command::Heal);
        assert_eq!(block(&mut disk), FLUSHED);
    }

    #[test]
    fn a_power_cut_with_a_seed_keeps_the_same_sectors_each_time() {
        let cut = |keep| {
            let mut disk = disk_with_cached_block();
            order(&mut disk, Command::PowerCut(keep));
            order(&mut disk, Command::Heal);
            block(&mut disk)
        };
        let torn = |seed| cut(Keep::Random { seed });
        assert_eq!(torn(7), torn(7));
        assert!((0..8).any(|seed| torn(seed) != FLUSHED && torn(seed) != CACHED), "never torn");
        let whole = |seed| cut(Keep::Writes { seed });
        assert!((0..8).all(|seed| whole(seed) == FLUSHED || whole(seed) == CACHED), "torn");
        assert!(
            (0..8).any(|seed| whole(seed) == FLUSHED) && (0..8).any(|seed| whole(seed) == CACHED)
        );
    }

    #[test]
    fn a_lying_disk_loses_what_it_said_was_flushed() {
        let mut disk = disk_with_cached_block();
        order(&mut disk, Command::Lie);
        assert_eq!(disk.flush(), Ok(()));
        order(&mut disk, Command::PowerCut(Keep::Nothing));
        order(&mut disk, Command::Heal);
        assert_eq!(block(&mut disk), FLUSHED);
    }

    #[test]
    fn writes_fail_only_in_the_broken_range_and_as_often_as_asked() {
        let mut disk = DiskState::new(16 * BLOCK);
        order(
            &mut disk,
            Command::FailWriteRange { range: 100..200, times: 1, errno: libc::ENOSPC },
        );
        assert_eq!(disk.write(200, &[0; 10]), Ok(10));
        assert_eq!(disk.write(90, &[0; 11]), Err(libc::ENOSPC));
        assert_eq!(disk.write(90, &[0; 11]), Ok(11));
    }

    /// One block with writes of 1 and 2, a flush, 3, zeros, a flush and 4.
    fn recorded() -> DiskState {
        let mut disk = DiskState::new(16 * BLOCK);
        order(&mut disk, Command::Record);
        disk.write(0, &[1; BLOCK]).unwrap();
        disk.write(0, &[2; BLOCK]).unwrap();
        disk.flush().unwrap();
        disk.mark([7, 8, 9, 10]);
        disk.write(0, &[3; BLOCK]).unwrap();
        disk.zero(0, BLOCK as u64).unwrap();
        disk.flush().unwrap();
        disk.write(0, &[4; BLOCK]).unwrap();
        disk
    }

    fn replayed(disk: &mut DiskState, cut: u64, keep: Keep) -> u8 {
        order(disk, Command::Replay { cut, keep });
        let block = block(disk);
        assert!(block.iter().all(|byte| *byte == block[0]));
        // The next replay undoes writes to a replayed disk, flushed or not.
        disk.write(0, &[9; BLOCK]).unwrap();
        disk.flush().unwrap();
        block[0]
    }

    #[test]
    fn a_recording_is_replayed_to_any_cut_and_in_any_order() {
        let mut disk = recorded();
        let with = |disk: &mut DiskState, keep| -> Vec<u8> {
            (0..=8).map(|cut| replayed(disk, cut, keep)).collect()
        };
        for _ in 0..2 {
            assert_eq!(with(&mut disk, Keep::Nothing), [0xA5, 0xA5, 0xA5, 2, 2, 2, 2, 0, 0]);
            assert_eq!(with(&mut disk, Keep::All), [0xA5, 1, 2, 2, 2, 3, 0, 0, 4]);
        }
        let mut seen: Vec<_> =
            (0..20).map(|seed| replayed(&mut disk, 6, Keep::Writes { seed })).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen, [0, 2, 3], "of two writes, either, both or none");
        assert!(disk.obey(Command::Replay { cut: 9, keep: Keep::All }).is_err());
    }

    #[test]
    fn the_power_goes_again_after_a_replay() {
        let mut disk = recorded();
        let mut again = |cut, keep| {
            order(&mut disk, Command::Replay { cut: 5, keep: Keep::All });
            assert_eq!(block(&mut disk)[0], 3);
            disk.write(0, &[5; BLOCK]).unwrap();
            disk.flush().unwrap();
            disk.write(0, &[6; BLOCK]).unwrap();
            order(&mut disk, Command::ReplayAgain { cut, keep });
            block(&mut disk)[0]
        };
        let mut with = |keep| [0, 1, 2, 3].map(|cut| again(cut, keep));
        assert_eq!(with(Keep::Nothing), [3, 3, 5, 5]);
        assert_eq!(with(Keep::All), [3, 5, 5, 6]);
        assert_eq!(replayed(&mut disk, 3, Keep::All), 2, "nothing of it stays");
    }

    #[test]
    fn marks_have_their_place_among_the_writes() {
        let words = [3, 7, 8, 9, 10].map(u64::to_le_bytes).concat();
        assert_eq!(recorded().marks(), words);
    }

    #[test]
    fn a_recording_disk_that_lies_has_no_flushes_to_replay() {
        let mut disk = DiskState::new(16 * BLOCK);
        order(&mut disk, Command::Record);
        order(&mut disk, Command::Lie);
        disk.write(0, &[1; BLOCK]).unwrap();
        disk.flush().unwrap();
        assert_eq!(replayed(&mut disk, 1, Keep::Nothing), 0xA5);
    }

    #[test]
    fn only_an_unwritten_disk_records_and_only_a_recorded_one_replays() {
        let mut disk = disk_with_cached_block();
        assert!(disk.obey(Command::Record).is_err());
        assert!(disk.obey(Command::Replay { cut: 0, keep: Keep::All }).is_err());
        assert!(disk.obey(Command::ReplayAgain { cut: 0, keep: Keep::All }).is_err());
    }
}
