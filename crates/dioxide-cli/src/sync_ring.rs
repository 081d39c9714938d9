//! An io_uring that makes one write durable at a time.

use io_uring::{IoUring, opcode, squeue, types};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// A ring with one batch in flight.
pub struct Ring(IoUring);

/// How a write is made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sync {
    /// Each write by itself.
    RwfDsync,
    /// By an fdatasync linked to the last write.
    LinkedFdatasync,
}

/// Writes submitted together, and an fdatasync.
const ENTRIES: u32 = 8;

impl Ring {
    pub fn new() -> io::Result<Self> {
        Ok(Self(IoUring::new(ENTRIES)?))
    }

    /// Writes `bytes` at each of the offsets. All of them are durable on return.
    pub fn write_durably(
        &mut self,
        file: &File,
        bytes: &[u8],
        offsets: &[u64],
        sync: Sync,
    ) -> io::Result<()> {
        assert!(offsets.len() < ENTRIES as usize, "there is room for these and a sync");
        let fd = types::Fd(file.as_raw_fd());
        let write = |offset: &u64| {
            let write = opcode::Write::new(fd, bytes.as_ptr(), bytes.len() as u32).offset(*offset);
            match sync {
                Sync::RwfDsync => write.rw_flags(libc::RWF_DSYNC).build(),
                Sync::LinkedFdatasync => write.build().flags(squeue::Flags::IO_LINK),
            }
        };
        let mut entries: Vec<_> = offsets.iter().map(write).collect();
        if sync == Sync::LinkedFdatasync {
            entries.push(opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build());
        }
        // SAFETY: `bytes` and the file outlive the entries: `reap` returns only when all of them
        // are complete.
        unsafe { self.0.submission().push_multiple(&entries) }
            .expect("the ring is empty between calls");
        self.reap(entries.len(), bytes.len())
    }

    /// Waits for all submitted entries. Returns the first failure.
    fn reap(&mut self, count: usize, bytes: usize) -> io::Result<()> {
        let mut results = Vec::new();
        while results.len() < count {
            match self.0.submit_and_wait(count - results.len()) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The kernel may still use the memory, and there is no way to get it back.
                Err(error) => panic!("io_uring_enter: {error}"),
            }
            results.extend(self.0.completion().map(|completion| completion.result()));
        }
        results.into_iter().try_for_each(|result| match result {
            failed if failed < 0 => Err(io::Error::from_raw_os_error(-failed)),
            short if short > 0 && (short as usize) < bytes => Err(io::ErrorKind::WriteZero.into()),
            _ => Ok(()),
        })
    }
}
