//! A log as it is written first: one lock around a write and a flush, through the page cache.
//! Shared by all threads.

use super::backing::{Ahead, Backing};
use std::io::Result;
use std::sync::{Mutex, PoisonError};

/// A log of one file.
pub struct Locked<F> {
    file: F,
    state: Mutex<LockedState>,
}

struct LockedState {
    end: u64,
    space: Ahead,
}

impl<F: Backing> Locked<F> {
    /// For a file with this space, and no record.
    pub fn new(file: F, space: Ahead) -> Self {
        Self { file, state: Mutex::new(LockedState { end: 0, space }) }
    }

    /// Returns the offset of the record, or of a batch of them, when it is stable. A failure
    /// changes nothing.
    pub fn append(&self, record: &[u8]) -> Result<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (offset, end) = (state.end, state.end + record.len() as u64);
        state.space.make_room(&self.file, end);
        self.file.pwrite(record, offset)?;
        self.file.fdatasync()?;
        state.end = end;
        Ok(offset)
    }

    /// Truncates the space ahead, and makes everything stable.
    pub fn finish(self) -> Result<()> {
        let state = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        self.file.truncate(state.end)?;
        self.file.fdatasync()
    }
}

#[cfg(test)]
mod tests {
    use super::super::backing::notes::Notes;
    use super::*;
    use std::time::Duration;

    #[test]
    fn each_record_is_stable_when_it_is_acknowledged() {
        let file = Notes::default();
        let log = Locked::new(&file, Ahead::within(u64::MAX, 0));
        let append = |byte| {
            let offset = log.append(&[byte; 100]).unwrap();
            assert!(file.has(&[byte; 100], offset));
            offset
        };
        assert_eq!([append(1), append(2), append(3)], [0, 100, 200]);
        assert_eq!((file.state().flushes, file.state().writes.len()), (3, 3));
        log.finish().unwrap();
        assert_eq!(file.state().size, 300);
    }

    #[test]
    fn space_that_is_there_is_not_allocated() {
        let file = Notes::default();
        let log = Locked::new(&file, Ahead::within(u64::MAX, 200));
        log.append(&[1; 200]).unwrap();
        assert_eq!(file.state().size, 200);
        log.append(&[1]).unwrap();
        assert!(file.state().size > 201, "space is allocated ahead");
    }

    /// 256 logs of 1 MiB each took 16 GiB.
    #[test]
    fn a_small_log_allocated_64_mib() {
        let file = Notes::default();
        let log = Locked::new(&file, Ahead::within(1000, 0));
        log.append(&[1; 100]).unwrap();
        assert_eq!(file.state().size, 1000);
        log.append(&[1; 900]).unwrap();
        assert_eq!(file.state().size, 1000);
    }

    #[test]
    fn a_record_that_was_not_flushed_is_written_over() {
        let file = Notes::slow(Duration::ZERO, Some(2));
        let log = Locked::new(&file, Ahead::within(u64::MAX, 0));
        log.append(&[1; 10]).unwrap();
        log.append(&[2; 10]).unwrap_err();
        assert_eq!(log.append(&[3; 10]).unwrap(), 10);
        assert!(file.has(&[3; 10], 10));
    }
}
