//! The disk behind the FUSE file: a memory image with a volatile cache, and its faults.
//!
//! Reads see the newest data. What a flush has not covered since can be lost: for each block
//! written since the last flush the disk keeps its stable content and goes back to it, whole or by
//! sectors, when it loses power or a flush fails.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use super::protocol::{Command, Keep, Stats};

pub(super) const BLOCK: usize = 4096;
const SECTOR: usize = 512;

/// What an unwritten place of the disk holds, so that stale data shows.
const OLD_CONTENT: u8 = 0xA5;

/// A stall ends by itself, because nothing else would end it if its test were killed: the test's
/// threads that wait for the disk then cannot die, and so its end of the control socket stays open.
pub(super) const STALL_MAX: Duration = Duration::from_secs(60);

pub(super) type Errno = i32;

pub(super) struct Disk {
    image: Vec<u8>,
    /// The stable content of the blocks written since the last flush, by their number.
    stable: BTreeMap<usize, [u8; BLOCK]>,
    faults: Faults,
    stats: Stats,
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

impl Disk {
    pub(super) fn new(size: usize) -> Disk {
        let image = vec![OLD_CONTENT; size.next_multiple_of(BLOCK)];
        Disk { image, stable: BTreeMap::new(), faults: Faults::default(), stats: Stats::default() }
    }

    pub(super) fn size(&self) -> u64 {
        self.image.len() as u64
    }

    pub(super) fn read(&mut self, offset: u64, len: u64) -> Result<&[u8], Errno> {
        self.check_power()?;
        self.stats.reads += 1;
        let range = self.clamp(offset, len);
        Ok(&self.image[range])
    }

    pub(super) fn write(&mut self, offset: u64, data: &[u8]) -> Result<usize, Errno> {
        let range = self.begin_write(offset, data.len() as u64)?;
        self.stats.writes += 1;
        self.stats.written_bytes += range.len() as u64;
        let len = range.len();
        self.image[range].copy_from_slice(&data[..len]);
        Ok(len)
    }

    pub(super) fn zero(&mut self, offset: u64, len: u64) -> Result<(), Errno> {
        let range = self.begin_write(offset, len)?;
        self.stats.zeroings += 1;
        self.image[range].fill(0);
        Ok(())
    }

    /// Makes stable what is in the cache. When it fails, the cache is lost: a dying disk answers the
    /// next flush with success, having nothing left to write.
    pub(super) fn flush(&mut self) -> Result<(), Errno> {
        self.check_power()?;
        self.stats.flushes += 1;
        if let Err(errno) = self.faults.flush.as_mut().map_or(Ok(()), Failing::check) {
            self.stats.failed_flushes += 1;
            self.lose(Keep::Nothing);
            return Err(errno);
        }
        if !self.faults.lying {
            self.stable.clear();
        }
        Ok(())
    }

    /// How long requests have to wait for it yet, if it stalls.
    pub(super) fn stalls_for(&self) -> Option<Duration> {
        let rest = self.faults.stalled_until?.saturating_duration_since(Instant::now());
        (!rest.is_zero()).then_some(rest)
    }

    pub(super) fn obey(&mut self, command: Command) -> Stats {
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
            Command::Stats => {}
        }
        self.stats
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
        let range = self.clamp(offset, len);
        self.remember_stable(&range);
        Ok(range)
    }

    fn remember_stable(&mut self, range: &Range<usize>) {
        for block in range.start / BLOCK..range.end.div_ceil(BLOCK) {
            let content = &self.image[block * BLOCK..][..BLOCK];
            self.stable.entry(block).or_insert_with(|| content.try_into().expect("one block"));
        }
    }

    /// Empties the cache: each sector of it gets stable or goes back to what it was.
    fn lose(&mut self, keep: Keep) {
        let mut is_kept = keep.chooser();
        for (block, content) in std::mem::take(&mut self.stable) {
            let place = &mut self.image[block * BLOCK..][..BLOCK];
            for (sector, old) in place.chunks_exact_mut(SECTOR).zip(content.chunks_exact(SECTOR)) {
                if sector != old && !is_kept() {
                    sector.copy_from_slice(old);
                    self.stats.lost_sectors += 1;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLUSHED: [u8; BLOCK] = [1; BLOCK];
    const CACHED: [u8; BLOCK] = [2; BLOCK];

    fn disk_with_cached_block() -> Disk {
        let mut disk = Disk::new(16 * BLOCK);
        disk.write(0, &FLUSHED).unwrap();
        disk.flush().unwrap();
        disk.write(0, &CACHED).unwrap();
        disk
    }

    fn block(disk: &mut Disk) -> Vec<u8> {
        disk.read(0, BLOCK as u64).unwrap().to_vec()
    }

    #[test]
    fn a_failed_flush_loses_the_cache_and_the_next_one_succeeds() {
        let mut disk = disk_with_cached_block();
        disk.obey(Command::FailFlush { times: 1, errno: libc::EIO });
        assert_eq!(block(&mut disk), CACHED);
        assert_eq!(disk.flush(), Err(libc::EIO));
        assert_eq!(block(&mut disk), FLUSHED);
        assert_eq!(disk.flush(), Ok(()));
    }

    #[test]
    fn a_power_cut_loses_the_cache_and_stops_the_disk_until_it_heals() {
        let mut disk = disk_with_cached_block();
        disk.obey(Command::PowerCut(Keep::Nothing));
        assert_eq!(disk.write(0, &CACHED), Err(libc::EIO));
        assert_eq!(disk.flush(), Err(libc::EIO));
        disk.obey(Command::Heal);
        assert_eq!(block(&mut disk), FLUSHED);
    }

    #[test]
    fn a_power_cut_with_a_seed_keeps_the_same_sectors_each_time() {
        let cut = |seed| {
            let mut disk = disk_with_cached_block();
            disk.obey(Command::PowerCut(Keep::Random { seed }));
            disk.obey(Command::Heal);
            block(&mut disk)
        };
        assert_eq!(cut(7), cut(7));
        assert!((0..8).any(|seed| cut(seed) != FLUSHED && cut(seed) != CACHED), "never torn");
    }

    #[test]
    fn a_lying_disk_loses_what_it_said_was_flushed() {
        let mut disk = disk_with_cached_block();
        disk.obey(Command::Lie);
        assert_eq!(disk.flush(), Ok(()));
        disk.obey(Command::PowerCut(Keep::Nothing));
        disk.obey(Command::Heal);
        assert_eq!(block(&mut disk), FLUSHED);
    }

    #[test]
    fn writes_fail_only_in_the_broken_range_and_as_often_as_asked() {
        let mut disk = Disk::new(16 * BLOCK);
        disk.obey(Command::FailWriteRange { range: 100..200, times: 1, errno: libc::ENOSPC });
        assert_eq!(disk.write(200, &[0; 10]), Ok(10));
        assert_eq!(disk.write(90, &[0; 11]), Err(libc::ENOSPC));
        assert_eq!(disk.write(90, &[0; 11]), Ok(11));
    }
}
