//! Records of any length through O_DIRECT, the textbook way: a mutex around a buffer with the
//! partial last block. Shared by all threads.
//!
//! An append writes from the beginning of that block to the end of the record, padded with zeros to
//! a whole block. A durable append also flushes before it releases the mutex: one flush per record.

use super::backing::Backing;
use dioxide::{Buffer, Durability};
use std::io::Result;
use std::sync::{Mutex, PoisonError};

/// The tail of one file.
pub struct TailBlock<F> {
    file: F,
    durability: Durability,
    block_bytes: usize,
    tail: Mutex<TailBuffer>,
}

struct TailBuffer {
    /// The last block so far, and space for a record.
    buffer: Buffer,
    /// The offset of the buffer in the file.
    start: u64,
    /// Bytes of records in it.
    filled: usize,
}

impl<F: Backing> TailBlock<F> {
    /// For an empty file with direct writes in units of `block_bytes`.
    pub fn new(file: F, durability: Durability, block_bytes: u64, record_max_bytes: u64) -> Self {
        let room = block_bytes + record_max_bytes.next_multiple_of(block_bytes);
        let tail = TailBuffer { buffer: Buffer::zeroed(room as usize), start: 0, filled: 0 };
        Self { file, durability, block_bytes: block_bytes as usize, tail: Mutex::new(tail) }
    }

    /// Writes a record, and returns its offset. A failure changes nothing.
    pub fn append(&self, record: &[u8]) -> Result<u64> {
        let mut tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        let TailBuffer { buffer, start, filled } = &mut *tail;
        let (offset, end) = (*start + *filled as u64, *filled + record.len());
        let padded = end.next_multiple_of(self.block_bytes);
        buffer[*filled..end].copy_from_slice(record);
        buffer[end..padded].fill(0);
        self.file.pwrite(&buffer[..padded], *start)?;
        if self.durability == Durability::EveryWrite {
            self.file.fdatasync()?;
        }
        let full = end - end % self.block_bytes;
        buffer.copy_within(full..end, 0);
        (*start, *filled) = (*start + full as u64, end - full);
        Ok(offset)
    }

    /// Truncates the padding, and makes everything stable.
    pub fn finish(self) -> Result<()> {
        let tail = self.tail.into_inner().unwrap_or_else(PoisonError::into_inner);
        self.file.truncate(tail.start + tail.filled as u64)?;
        self.file.fdatasync()
    }
}

#[cfg(test)]
mod tests {
    use super::super::backing::notes::Notes;
    use super::*;
    use std::time::Duration;

    const BLOCK: u64 = 512;

    fn log(file: &Notes, durability: Durability) -> TailBlock<&Notes> {
        TailBlock::new(file, durability, BLOCK, 1300)
    }

    #[test]
    fn records_stand_byte_to_byte_in_whole_blocks() {
        let file = Notes::default();
        let log = log(&file, Durability::OnSync);
        let append = |value: u8, len| log.append(&vec![value; len]).unwrap();
        let offsets =
            [append(1, 100), append(2, 412), append(3, 700), append(4, 1300), append(5, 1)];
        assert_eq!(offsets, [0, 100, 512, 1212, 2512]);
        let state = file.state();
        // The tail block is rewritten each time, unless it is full.
        assert_eq!(state.writes, [(0, 512), (0, 512), (512, 1024), (1024, 1536), (2048, 512)]);
        assert_eq!(state.flushes, 0);
        for (range, value) in
            [(0..100, 1), (100..512, 2), (512..1212, 3), (1212..2512, 4), (2512..2513, 5)]
        {
            assert!(state.bytes[range].iter().all(|byte| *byte == value), "record {value}");
        }
        assert!(state.bytes[2513..].iter().all(|byte| *byte == 0), "padding is zero");
    }

    #[test]
    fn each_record_is_flushed_before_it_is_answered() {
        let file = Notes::default();
        let log = log(&file, Durability::EveryWrite);
        for nth in 1..=20 {
            let record = [nth as u8; 90];
            let offset = log.append(&record).unwrap();
            assert!(file.has(&record, offset));
            assert_eq!(file.state().flushes, nth);
        }
    }

    #[test]
    fn the_end_is_exact() {
        let file = Notes::default();
        let log = log(&file, Durability::OnSync);
        log.append(&[1; 100]).unwrap();
        log.append(&[2; 500]).unwrap();
        assert_eq!(file.state().bytes.len(), 1024);
        log.finish().unwrap();
        assert_eq!((file.state().size, file.state().stable.len()), (600, 600));
    }

    #[test]
    fn a_failure_changes_nothing() {
        let file = Notes::slow(Duration::ZERO, Some(2));
        let log = log(&file, Durability::EveryWrite);
        assert_eq!(log.append(&[1; 100]).unwrap(), 0);
        assert!(log.append(&[2; 1000]).is_err());
        assert_eq!(log.append(&[3; 100]).unwrap(), 100);
        assert!(file.has(&[3; 100], 100));
    }
}
