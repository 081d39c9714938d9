//! Rings (io_uring) that make writes durable: one batch at a time, or many writes at the same time.

use dioxide::Buffer;
use io_uring::{IoUring, opcode, squeue, types};
use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::os::fd::AsRawFd;

/// A ring with one batch in flight.
pub struct Ring(IoUring);

/// How a write is made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingSync {
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
        sync: RingSync,
    ) -> io::Result<()> {
        assert!(offsets.len() < ENTRIES as usize, "there is room for these and a sync");
        let fd = types::Fd(file.as_raw_fd());
        let write = |offset: &u64| {
            let write = opcode::Write::new(fd, bytes.as_ptr(), bytes.len() as u32).offset(*offset);
            match sync {
                RingSync::RwfDsync => write.rw_flags(libc::RWF_DSYNC).build(),
                RingSync::LinkedFdatasync => write.build().flags(squeue::Flags::IO_LINK),
            }
        };
        let mut entries: Vec<_> = offsets.iter().map(write).collect();
        if sync == RingSync::LinkedFdatasync {
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

/// A ring with many writes in flight, each of its own block. An fdatasync of the file may be linked
/// to each write. The files stay open as long as the ring, because a linked entry looks its
/// descriptor up only when it begins.
pub struct RingWrites<'a> {
    ring: IoUring,
    files: PhantomData<&'a File>,
    /// By slot. None if nothing is in flight there.
    slots: Vec<Option<InFlight>>,
    in_flight: usize,
    /// Whether each write has an fdatasync.
    syncs: bool,
    /// The completions of each write with its fdatasync.
    completions_each: u32,
}

/// A write with its fdatasync.
struct InFlight {
    /// The kernel reads it until the last completion.
    block: Buffer,
    completions_left: u32,
    outcome: io::Result<()>,
}

/// A write that is durable, or failed.
pub struct FinishedWrite {
    pub slot: usize,
    pub block: Buffer,
    pub outcome: io::Result<()>,
}

impl<'a> RingWrites<'a> {
    /// For one write in each of `slots` slots. With `syncs`, each has an fdatasync.
    pub fn new(slots: usize, syncs: bool) -> io::Result<Self> {
        let ring = IoUring::new(2 * slots as u32)?;
        // From 5.17 on, a write that succeeds needs no completion of its own. If the write fails,
        // its completion is the only one.
        let is_one = !syncs || ring.params().is_feature_skip_cqe_on_success();
        let completions_each = if is_one { 1 } else { 2 };
        let slots = (0..slots).map(|_| None).collect();
        Ok(Self { ring, files: PhantomData, slots, in_flight: 0, syncs, completions_each })
    }

    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Queues a write, and its fdatasync if it has one, in a slot with nothing in flight.
    pub fn queue(&mut self, slot: usize, file: &'a File, offset: u64, block: Buffer) {
        assert!(self.slots[slot].is_none(), "one write at a time in each slot");
        let fd = types::Fd(file.as_raw_fd());
        let tag = 2 * slot as u64;
        let write = opcode::Write::new(fd, block.as_ptr(), block.len() as u32).offset(offset);
        let write = write.build().user_data(tag);
        let sync = opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC);
        let sync = sync.build().user_data(tag | 1);
        let linked = match self.completions_each {
            1 => squeue::Flags::IO_LINK | squeue::Flags::SKIP_SUCCESS,
            _ => squeue::Flags::IO_LINK,
        };
        let entries = [if self.syncs { write.flags(linked) } else { write }, sync];
        let entries = if self.syncs { &entries[..] } else { &entries[..1] };
        let completions_left = self.completions_each;
        self.slots[slot] = Some(InFlight { block, completions_left, outcome: Ok(()) });
        self.in_flight += 1;
        // SAFETY: the block stays at its address in its slot until both entries are complete, and
        // drop waits for that. If that fails, the block is leaked. The file outlives the ring.
        unsafe { self.ring.submission().push_multiple(entries) }
            .expect("there is room for both entries of each slot");
    }

    /// Submits all queued entries, waits for at least `min` writes or for all in flight, and
    /// returns the finished ones.
    pub fn reap(&mut self, min: usize) -> io::Result<Vec<FinishedWrite>> {
        let min = min.min(self.in_flight);
        let mut finished = Vec::new();
        loop {
            let is_waiting = finished.len() < min;
            match self.ring.submit_and_wait(usize::from(is_waiting)) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            self.take_completions(&mut finished);
            if finished.len() >= min {
                return Ok(finished);
            }
        }
    }

    fn take_completions(&mut self, finished: &mut Vec<FinishedWrite>) {
        for completion in self.ring.completion() {
            let (slot, is_write) =
                ((completion.user_data() / 2) as usize, completion.user_data() % 2 == 0);
            let place = &mut self.slots[slot];
            let it = place.as_mut().expect("a completion is of an entry in flight");
            if it.outcome.is_ok() {
                it.outcome =
                    outcome(completion.result(), if is_write { it.block.len() } else { 0 });
            }
            it.completions_left -= 1;
            if it.completions_left == 0
                && let Some(InFlight { block, outcome, .. }) = place.take()
            {
                self.in_flight -= 1;
                finished.push(FinishedWrite { slot, block, outcome });
            }
        }
    }
}

/// Waits for everything in flight, because the kernel reads the blocks until then.
impl Drop for RingWrites<'_> {
    fn drop(&mut self) {
        while self.in_flight > 0 {
            if self.reap(self.in_flight).is_err() {
                // The kernel may still read the blocks, and there is no way to get them back.
                std::mem::forget(std::mem::take(&mut self.slots));
                return;
            }
        }
    }
}

/// The outcome of an entry that transfers `bytes` bytes.
fn outcome(result: i32, bytes: usize) -> io::Result<()> {
    match result {
        failed if failed < 0 => Err(io::Error::from_raw_os_error(-failed)),
        short if (short as usize) < bytes => Err(io::ErrorKind::WriteZero.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    const SLOTS: usize = 8;
    const BLOCK: usize = 4096;

    /// None where the kernel has no io_uring for this process.
    fn ring<'a>() -> Option<RingWrites<'a>> {
        RingWrites::new(SLOTS, true).ok()
    }

    #[test]
    fn writes_without_an_fdatasync_are_written() {
        let file = tempfile::tempfile().unwrap();
        let Ok(mut ring) = RingWrites::new(SLOTS, false) else { return };
        (0..SLOTS).for_each(|slot| ring.queue(slot, &file, (slot * BLOCK) as u64, block(7)));
        let finished = ring.reap(SLOTS).unwrap();
        assert!(finished.len() == SLOTS && finished.iter().all(|write| write.outcome.is_ok()));
        let mut found = vec![0; SLOTS * BLOCK];
        file.read_exact_at(&mut found, 0).unwrap();
        assert!(found.iter().all(|byte| *byte == 7));
    }

    fn block(byte: u8) -> Buffer {
        Buffer::from(&[byte; BLOCK][..])
    }

    #[test]
    fn all_slots_are_written_and_used_again() {
        let file = tempfile::tempfile().unwrap();
        let Some(mut ring) = ring() else { return };
        for round in 0..3 {
            for slot in 0..SLOTS {
                ring.queue(slot, &file, (slot * BLOCK) as u64, block((10 * round + slot) as u8));
            }
            let mut slots = Vec::new();
            while ring.in_flight() > 0 {
                for written in ring.reap(1).unwrap() {
                    written.outcome.unwrap();
                    assert_eq!(written.block[0] as usize, 10 * round + written.slot);
                    slots.push(written.slot);
                }
            }
            slots.sort_unstable();
            assert_eq!(slots, (0..SLOTS).collect::<Vec<_>>());
            let mut found = [0; 1];
            file.read_exact_at(&mut found, (7 * BLOCK) as u64).unwrap();
            assert_eq!(found[0] as usize, 10 * round + 7);
        }
        assert!(ring.reap(1).unwrap().is_empty());
    }

    /// With both counts of completions.
    #[test]
    fn a_failed_write_is_no_durable_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, "").unwrap();
        let (reader, file) = (File::open(path).unwrap(), tempfile::tempfile().unwrap());
        for completions_each in [1, 2] {
            let Some(mut ring) = ring() else { return };
            if completions_each < ring.completions_each {
                continue;
            }
            ring.completions_each = completions_each;
            ring.queue(0, &reader, 0, block(1));
            ring.queue(1, &file, 0, block(2));
            let mut outcomes: Vec<_> = ring.reap(2).unwrap();
            outcomes.sort_by_key(|written| written.slot);
            let failure = outcomes[0].outcome.as_ref().unwrap_err();
            assert_eq!(failure.raw_os_error(), Some(libc::EBADF));
            assert!(outcomes[1].outcome.is_ok());
        }
    }

    #[test]
    fn what_is_in_flight_is_finished_before_the_ring_is_gone() {
        let file = tempfile::tempfile().unwrap();
        let Some(mut ring) = ring() else { return };
        for slot in 0..SLOTS {
            ring.queue(slot, &file, (slot * BLOCK) as u64, block(5));
        }
        drop(ring);
        assert_eq!(file.metadata().unwrap().len(), (SLOTS * BLOCK) as u64);
    }

    #[test]
    fn short_writes_are_failures() {
        assert!(outcome(4096, 4096).is_ok() && outcome(0, 0).is_ok());
        assert_eq!(outcome(512, 4096).unwrap_err().kind(), io::ErrorKind::WriteZero);
        assert_eq!(outcome(-libc::ENOSPC, 4096).unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    }
}
