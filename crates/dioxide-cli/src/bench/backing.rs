//! The file of dioxide's rivals: real, or in tests one that records calls.

use rustix::fs::{FallocateFlags, fallocate, fdatasync, ftruncate};
use std::fs::File;
use std::io::Result;
use std::os::unix::fs::FileExt;

/// The system calls of a program that appends.
pub trait Backing: Sync {
    /// Writes all of it.
    fn pwrite(&self, bytes: &[u8], offset: u64) -> Result<()>;
    fn fdatasync(&self) -> Result<()>;
    /// Allocates up to `end`, which becomes the file's size.
    fn allocate(&self, from: u64, end: u64) -> Result<()>;
    fn truncate(&self, end: u64) -> Result<()>;
}

impl Backing for File {
    fn pwrite(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn fdatasync(&self) -> Result<()> {
        Ok(fdatasync(self)?)
    }

    fn allocate(&self, from: u64, end: u64) -> Result<()> {
        Ok(fallocate(self, FallocateFlags::empty(), from, end - from)?)
    }

    fn truncate(&self, end: u64) -> Result<()> {
        Ok(ftruncate(self, end)?)
    }
}

/// Step of preallocation.
const STEP_BYTES: u64 = 64 << 20;

/// The space of a file ahead of its writer.
#[derive(Clone, Copy)]
pub struct Ahead {
    allocated: u64,
    size_bytes: u64,
}

impl Ahead {
    /// Of a file whose first `allocated` bytes have their space, and whose run writes `size_bytes`
    /// bytes at most. No more is allocated, because the plan found room for that.
    pub const fn within(size_bytes: u64, allocated: u64) -> Self {
        Self { allocated, size_bytes }
    }

    /// Allocates a step if a write up to `end` needs it. Without fallocate the writes themselves
    /// extend the file from here on.
    pub fn make_room(&mut self, file: &impl Backing, end: u64) {
        if end > self.allocated {
            let allocated = (end + STEP_BYTES).min(self.size_bytes).max(end);
            let outcome = file.allocate(self.allocated, allocated);
            self.allocated = if outcome.is_ok() { allocated } else { u64::MAX };
        }
    }
}

#[cfg(test)]
pub mod notes {
    use super::Backing;
    use std::io::{Error, ErrorKind, Result};
    use std::sync::Mutex;
    use std::time::Duration;

    /// A file in memory that records its calls, and the minimum that survives a power cut now.
    #[derive(Default)]
    pub struct Notes {
        state: Mutex<State>,
        flush_takes: Duration,
        fails_at: Option<usize>,
    }

    #[derive(Default, Clone)]
    pub struct State {
        pub bytes: Vec<u8>,
        /// The content when the last completed flush began.
        pub stable: Vec<u8>,
        /// Offsets and lengths.
        pub writes: Vec<(u64, usize)>,
        pub flushes: usize,
        /// The file's size. Allocated space beyond the bytes is not stored.
        pub size: u64,
    }

    impl Notes {
        /// A file with slow flushes, one of which may fail, counted from 1.
        pub fn slow(flush_takes: Duration, fails_at: Option<usize>) -> Self {
            Self { flush_takes, fails_at, ..Self::default() }
        }

        pub fn state(&self) -> State {
            self.state.lock().unwrap().clone()
        }

        /// Whether these bytes are stable at this offset.
        pub fn has(&self, bytes: &[u8], offset: u64) -> bool {
            let state = self.state.lock().unwrap();
            state.stable.get(offset as usize..).is_some_and(|stable| stable.starts_with(bytes))
        }
    }

    impl Backing for &Notes {
        fn pwrite(&self, bytes: &[u8], offset: u64) -> Result<()> {
            let mut state = self.state.lock().unwrap();
            let end = offset as usize + bytes.len();
            let len = state.bytes.len().max(end);
            state.bytes.resize(len, 0);
            state.size = state.size.max(len as u64);
            state.bytes[offset as usize..end].copy_from_slice(bytes);
            state.writes.push((offset, bytes.len()));
            Ok(())
        }

        fn fdatasync(&self) -> Result<()> {
            let mut state = self.state.lock().unwrap();
            let covered = state.bytes.clone();
            state.flushes += 1;
            if self.fails_at == Some(state.flushes) {
                return Err(Error::from(ErrorKind::StorageFull));
            }
            drop(state);
            std::thread::sleep(self.flush_takes);
            self.state.lock().unwrap().stable = covered;
            Ok(())
        }

        fn allocate(&self, _: u64, end: u64) -> Result<()> {
            self.state.lock().unwrap().size = end;
            Ok(())
        }

        fn truncate(&self, end: u64) -> Result<()> {
            let mut state = self.state.lock().unwrap();
            state.bytes.truncate(end as usize);
            state.size = end;
            Ok(())
        }
    }
}
