//! The file `epoch`: which writers of the database have asked for this log.
//!
//! | bytes | type | meaning |
//! |---|---|---|
//! | 0..8 | u64 | the highest epoch that has asked |
//! | 8..16 | u64 | the known epoch: this one and all below have asked, or their loss was accepted |
//! | 16.. | u64 each | epochs above it that have asked |
//!
//! The first number is a request, not a lock: the lock of the log admits one writer at a time. The
//! writer that has it looks at the file, and closes the log for a higher epoch.
//!
//! SlateDB gives each writer the next epoch. A writer whose epoch is not here used another log, and
//! may have acknowledged rows there.

use rustix::fs::{FlockOperation, flock};
use rustix::io::retry_on_intr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The file. Numbers are little-endian.
#[derive(Debug)]
pub struct EpochFile(File);

impl EpochFile {
    /// Opens the file in this directory, and creates it if it is missing.
    pub fn open(dir: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let file = options.open(dir.join("epoch"))?;
        File::open(dir)?.sync_all()?;
        Ok(Self(file))
    }

    /// The highest epoch that has asked. 0 in a new file.
    pub fn highest(&self) -> io::Result<u64> {
        // The kernel copies eight bytes at once.
        let mut bytes = [0; 8];
        match self.0.read_exact_at(&mut bytes, 0) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(0),
            read => read.map(|()| u64::from_le_bytes(bytes)),
        }
    }

    /// Forgets which epochs have asked. So the loss of all is to be accepted.
    pub fn forget(&self) -> io::Result<()> {
        retry_on_intr(|| flock(&self.0, FlockOperation::LockExclusive))?;
        let forgotten = self.highest().and_then(|highest| self.write(&[highest, 0]));
        flock(&self.0, FlockOperation::Unlock)?;
        forgotten
    }

    fn write(&self, numbers: &[u64]) -> io::Result<()> {
        let content: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        self.0.write_all_at(&content, 0)?;
        self.0.set_len(content.len() as u64)?;
        self.0.sync_all()
    }

    /// Asks for the log. Returns the highest epoch that has, and whether all below this one have.
    pub fn ask(&self, epoch: u64) -> io::Result<(u64, bool)> {
        self.change(epoch, false)
    }

    /// The loss of the epochs below is accepted: they count as known from now on.
    pub fn accept(&self, epoch: u64) -> io::Result<()> {
        self.change(epoch, true).map(drop)
    }

    fn change(&self, epoch: u64, accept_loss: bool) -> io::Result<(u64, bool)> {
        retry_on_intr(|| flock(&self.0, FlockOperation::LockExclusive))?;
        let changed = self.change_locked(epoch, accept_loss);
        flock(&self.0, FlockOperation::Unlock)?;
        changed
    }

    fn change_locked(&self, epoch: u64, accept_loss: bool) -> io::Result<(u64, bool)> {
        let mut bytes = vec![0; self.0.metadata()?.len() as usize];
        self.0.read_exact_at(&mut bytes, 0)?;
        let before: Vec<u64> = bytes
            .chunks_exact(8)
            .map(|number| u64::from_le_bytes(number.try_into().expect("eight bytes")))
            .collect();
        let mut numbers = before.iter().copied();
        let highest = numbers.next().unwrap_or(0).max(epoch);
        let mut known = numbers.next().unwrap_or(0);
        let mut above: Vec<u64> = numbers.chain([epoch]).collect();
        above.sort_unstable();
        above.dedup();
        let is_known = above.iter().filter(|asked| (known + 1..epoch).contains(asked)).count()
            as u64
            == epoch.saturating_sub(known + 1);
        if accept_loss {
            known = known.max(epoch);
        }
        for asked in &above {
            known += u64::from(*asked == known + 1);
        }
        above.retain(|asked| *asked > known);
        let numbers: Vec<u64> = [highest, known].into_iter().chain(above).collect();
        if numbers != before {
            self.write(&numbers)?;
        }
        Ok((highest, is_known))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new() -> (tempfile::TempDir, EpochFile) {
        let dir = tempfile::tempdir_in(".").unwrap();
        let file = EpochFile::open(dir.path()).unwrap();
        (dir, file)
    }

    #[test]
    fn the_highest_epoch_only_rises() {
        let (dir, file) = new();
        let other = EpochFile::open(dir.path()).unwrap();
        assert_eq!(file.highest().unwrap(), 0);
        assert_eq!(file.ask(7).unwrap().0, 7);
        assert_eq!(other.ask(5).unwrap().0, 7);
        assert_eq!(other.ask(1 << 40).unwrap().0, 1 << 40);
        other.accept(5).unwrap();
        assert_eq!(file.highest().unwrap(), 1 << 40);
    }

    #[test]
    fn a_gap_stays_until_its_loss_is_accepted() {
        let (_dir, file) = new();
        // In any order, and more than once.
        for (epoch, is_known) in
            [(1, true), (1, true), (3, false), (2, true), (4, true), (6, false)]
        {
            assert_eq!(file.ask(epoch).unwrap(), (epoch.max(file.highest().unwrap()), is_known));
        }
        assert_eq!(file.ask(7).unwrap(), (7, false));
        assert_eq!(file.ask(8).unwrap(), (8, false));
        assert_eq!(file.ask(8).unwrap(), (8, false));
        file.accept(8).unwrap();
        assert_eq!(file.ask(9).unwrap(), (9, true));
        file.forget().unwrap();
        assert_eq!(file.ask(10).unwrap(), (10, false));
        assert_eq!(file.ask(11).unwrap(), (11, false));
        file.accept(11).unwrap();
        assert_eq!(file.ask(12).unwrap(), (12, true));
    }
}
