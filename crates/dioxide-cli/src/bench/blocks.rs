//! The ledger of whole blocks: the last acknowledged write of each block, verified at the end.
//! Shared by all threads.
//!
//! One word for each block of the file, so its size follows the size of the file, not the length of
//! the run.
//!
//! Verification compares every byte. The noise in a block depends on the job only, so the content
//! is generated again and compared as a whole.

use super::ledger::{
    BLOCK_BYTES, CHUNK_BYTES, End, Expected, Written, is_not_there, read_up_to, wrong,
};
use super::stamp::Stamp;
use crate::interrupt;
use anyhow::{Context, Result, bail, ensure};
use dioxide::Buffer;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bits of a slot for the sequence number; the job has the rest.
const SEQUENCE_BITS: u32 = 44;

/// How often a block may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Places {
    /// Appends: once each, without a gap.
    OnceEach,
    /// Overwrites: the last one counts.
    Rewritten,
}

/// The last writes by block.
pub struct Blocks {
    salt: u64,
    bs_bytes: u64,
    places: Places,
    /// By block number: 0, or the last writer.
    slots: Vec<AtomicU64>,
}

impl Blocks {
    pub fn new(salt: u64, bs_bytes: u64, blocks: u64, places: Places) -> Self {
        let slots = (0..blocks).map(|_| AtomicU64::new(0)).collect();
        Self { salt, bs_bytes, places, slots }
    }

    /// Marks `block` as the next write of a job.
    pub fn stamp(&self, stamp: Stamp, block: &mut [u8]) {
        stamp.put(self.salt, block);
    }

    /// Records that the block with this stamp was acknowledged at `offset`.
    pub fn acknowledge(&self, stamp: Stamp, offset: u64) -> Result<()> {
        let slot = self.slots.get((offset / self.bs_bytes) as usize);
        let slot = slot.filter(|_| offset.is_multiple_of(self.bs_bytes));
        let slot =
            slot.with_context(|| wrong(&format!("offset {offset} is invalid for a block")))?;
        let earlier = slot.swap(pack(stamp), Relaxed);
        if earlier != 0 && self.places == Places::OnceEach {
            bail!(wrong(&format!("offset {offset} was given to two appends")));
        }
        Ok(())
    }

    /// Whether `block`, read at `offset`, carries in every sector the stamp of the last write
    /// acknowledged there. Ignores the noise, because the clock is running;
    /// [`verify`](Self::verify) checks it.
    ///
    /// Only for the owner of the block, without writes in flight.
    pub fn check(&self, block: &[u8], offset: u64) -> Result<()> {
        let slot = self.slots.get((offset / self.bs_bytes) as usize);
        match slot.and_then(|slot| unpack(slot.load(Relaxed))) {
            Some(stamp) if !stamp.is_on(self.salt, block) => bail!(is_not_there(stamp, offset)),
            _ => Ok(()),
        }
    }

    /// Reads everything back and compares. `file` is open with O_DIRECT, to bypass the page cache.
    pub fn verify(&self, file: &dyn Written, end: End) -> Result<()> {
        let blocks = self.acknowledged_blocks()?;
        if end == End::AtLast {
            let (wanted, found) = (blocks * self.bs_bytes, file.len()?);
            ensure!(
                found == wanted,
                wrong(&format!("the file ends at {found}, its last block at {wanted}"))
            );
        }
        let per_chunk = (CHUNK_BYTES / self.bs_bytes).max(1);
        let mut chunk = Buffer::zeroed((per_chunk * self.bs_bytes + BLOCK_BYTES) as usize);
        let mut expected = Expected::new(self.salt, self.bs_bytes);
        for first in (0..blocks).step_by(per_chunk as usize) {
            interrupt::check()?;
            let count = per_chunk.min(blocks - first);
            let read = if file.are_blocks_apart() {
                self.read_acknowledged(file, first, &mut chunk[..(count * self.bs_bytes) as usize])
            } else {
                self.read_blocks(file, first, count, &mut chunk)
            };
            read.context("read the blocks back")?;
            self.compare(first, &chunk[..(count * self.bs_bytes) as usize], &mut expected)?;
        }
        Ok(())
    }

    /// Reads up to the next multiple of 4 KiB, as far as the file goes. A block may be a part of
    /// those that direct reads take.
    fn read_blocks(
        &self,
        file: &dyn Written,
        first: u64,
        count: u64,
        chunk: &mut [u8],
    ) -> io::Result<()> {
        let (offset, bytes) = (first * self.bs_bytes, count * self.bs_bytes);
        let whole = (offset + bytes).next_multiple_of(BLOCK_BYTES) - offset;
        match read_up_to(file, &mut chunk[..whole as usize], offset)? {
            read if read as u64 >= bytes => Ok(()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Reads only the blocks to compare, each by itself.
    fn read_acknowledged(
        &self,
        file: &dyn Written,
        first: u64,
        bytes: &mut [u8],
    ) -> io::Result<()> {
        let blocks = bytes.chunks_mut(self.bs_bytes as usize);
        for (number, block) in (first..).zip(blocks) {
            if self.slots[number as usize].load(Relaxed) != 0 {
                file.read_exact_at(block, number * self.bs_bytes)?;
            }
        }
        Ok(())
    }

    /// The number of blocks to check. Appends must have no gaps.
    fn acknowledged_blocks(&self) -> Result<u64> {
        let filled = |slot: &AtomicU64| slot.load(Relaxed) != 0;
        let end = self.slots.iter().rposition(filled).map_or(0, |last| last + 1);
        if self.places == Places::OnceEach
            && let Some(gap) = self.slots[..end].iter().position(|slot| !filled(slot))
        {
            bail!(wrong(&format!(
                "nothing was appended at {}, below others",
                gap as u64 * self.bs_bytes
            )));
        }
        Ok(end as u64)
    }

    fn compare(&self, first: u64, bytes: &[u8], expected: &mut Expected) -> Result<()> {
        let blocks = bytes.chunks(self.bs_bytes as usize);
        for (number, block) in (first..).zip(blocks) {
            let Some(stamp) = unpack(self.slots[number as usize].load(Relaxed)) else { continue };
            if block != expected.bytes(stamp, block.len()) {
                bail!(is_not_there(stamp, number * self.bs_bytes));
            }
        }
        Ok(())
    }
}

fn pack(stamp: Stamp) -> u64 {
    u64::from(stamp.job) << SEQUENCE_BITS | stamp.sequence
}

fn unpack(word: u64) -> Option<Stamp> {
    let sequence = word & ((1 << SEQUENCE_BITS) - 1);
    (word != 0).then_some(Stamp { job: (word >> SEQUENCE_BITS) as u32, sequence })
}

#[cfg(test)]
mod tests {
    use super::super::members::Members;
    use super::super::stamp::fill_as_job;
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    const BS: u64 = 4096;

    fn stamp(job: u32, sequence: u64) -> Stamp {
        Stamp { job, sequence }
    }

    /// A ledger and a file in which job `n` wrote block `n`.
    fn written(places: Places, blocks: u32) -> (Blocks, File) {
        let ledger = Blocks::new(3, BS, 8, places);
        let file = tempfile::tempfile().unwrap();
        for job in 0..blocks {
            write(&ledger, &file, stamp(job, 1), job.into());
        }
        (ledger, file)
    }

    fn write(ledger: &Blocks, file: &impl FileExt, stamp: Stamp, number: u64) {
        let mut block = vec![0; BS as usize];
        fill_as_job(stamp.job, &mut block);
        ledger.stamp(stamp, &mut block);
        file.write_all_at(&block, number * BS).unwrap();
        ledger.acknowledge(stamp, number * BS).unwrap();
    }

    fn complaint(outcome: Result<()>) -> String {
        outcome.unwrap_err().to_string()
    }

    #[test]
    fn packing() {
        for stamp in [stamp(0, 1), stamp(1023, 1 << 40)] {
            assert_eq!(unpack(pack(stamp)), Some(stamp));
        }
        assert_eq!(unpack(0), None);
    }

    #[test]
    fn all_there() {
        let (ledger, file) = written(Places::OnceEach, 5);
        ledger.verify(&file, End::AtLast).unwrap();
    }

    #[test]
    fn lost_write() {
        let (ledger, file) = written(Places::OnceEach, 5);
        file.write_all_at(&[0; BS as usize], 2 * BS).unwrap();
        let complaint = complaint(ledger.verify(&file, End::AtLast));
        assert!(complaint.contains("write 1 of thread 2 was acknowledged at 8192"), "{complaint}");
    }

    #[test]
    fn every_sector_counts() {
        for sector in 0..BS / 512 {
            let (ledger, file) = written(Places::OnceEach, 5);
            file.write_all_at(&[0; 512], 2 * BS + sector * 512).unwrap();
            let complaint = complaint(ledger.verify(&file, End::AtLast));
            assert!(complaint.contains("write 1 of thread 2"), "sector {sector}: {complaint}");
        }
    }

    #[test]
    fn every_byte_counts() {
        let (ledger, file) = written(Places::OnceEach, 5);
        let mut last = [0];
        file.read_exact_at(&mut last, 3 * BS - 1).unwrap();
        file.write_all_at(&[!last[0]], 3 * BS - 1).unwrap();
        assert!(complaint(ledger.verify(&file, End::AtLast)).contains("write 1 of thread 2"));
    }

    /// A file that refuses reads of parts of blocks of 4 KiB.
    struct Direct(File);

    impl FileExt for Direct {
        fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
            assert!(offset.is_multiple_of(4096) && into.len().is_multiple_of(4096));
            self.0.read_at(into, offset)
        }

        fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
            self.0.write_at(bytes, offset)
        }
    }

    impl Written for Direct {
        fn len(&self) -> io::Result<u64> {
            Written::len(&self.0)
        }
    }

    #[test]
    fn blocks_may_be_parts_of_those_that_direct_reads_take() {
        let file = Direct(tempfile::tempfile().unwrap());
        file.0.set_len(8192).unwrap();
        let ledger = Blocks::new(3, 512, 16, Places::Rewritten);
        for number in [1, 9] {
            let mut block = vec![0; 512];
            fill_as_job(7, &mut block);
            ledger.stamp(stamp(7, number), &mut block);
            file.write_all_at(&block, number * 512).unwrap();
            ledger.acknowledge(stamp(7, number), number * 512).unwrap();
        }
        ledger.verify(&file, End::Anywhere).unwrap();
        file.write_all_at(&[0], 9 * 512).unwrap();
        assert!(complaint(ledger.verify(&file, End::Anywhere)).contains("write 9 of thread 7"));
        file.0.set_len(9 * 512).unwrap();
        assert!(complaint(ledger.verify(&file, End::Anywhere)).contains("read the blocks back"));
    }

    #[test]
    fn rewrites_that_were_torn() {
        let (ledger, file) = written(Places::Rewritten, 3);
        let mut earlier = [0; 512];
        file.read_exact_at(&mut earlier, BS + 1024).unwrap();
        write(&ledger, &file, stamp(1, 2), 1);
        file.write_all_at(&earlier, BS + 1024).unwrap();
        assert!(complaint(ledger.verify(&file, End::Anywhere)).contains("write 2 of thread 1"));
    }

    #[test]
    fn reads_show_the_last_write() {
        let (ledger, file) = written(Places::Rewritten, 3);
        let mut block = vec![0; BS as usize];
        file.read_exact_at(&mut block, BS).unwrap();
        ledger.check(&block, BS).unwrap();
        ledger.check(&block, 5 * BS).unwrap();
        block[1024] ^= 1;
        assert!(
            complaint(ledger.check(&block, BS)).contains("write 1 of thread 1"),
            "another sector"
        );
        block[1024] ^= 1;
        ledger.acknowledge(stamp(1, 2), BS).unwrap();
        assert!(
            complaint(ledger.check(&block, BS)).contains("write 2 of thread 1"),
            "an earlier write"
        );
    }

    /// A ledger and three files with blocks in turn, of which two blocks were written.
    fn written_in_turn() -> (Blocks, Members) {
        let files = (0..3).map(|_| tempfile::tempfile().unwrap()).collect();
        let (ledger, members) =
            (Blocks::new(3, BS, 8, Places::Rewritten), Members::in_turn(files, BS));
        for number in [1, 5] {
            write(&ledger, &members, stamp(number as u32, 1), number);
        }
        (ledger, members)
    }

    #[test]
    fn blocks_in_turn_are_verified_one_by_one() {
        let (ledger, members) = written_in_turn();
        // The others are not read: the first and the second file end before.
        ledger.verify(&members, End::Anywhere).unwrap();
        assert_eq!(members.files()[0].metadata().unwrap().len(), 0);
        members.files()[2].write_all_at(&[0; 512], BS + 512).unwrap();
        let complaint = complaint(ledger.verify(&members, End::Anywhere));
        assert!(complaint.contains("write 1 of thread 5 was acknowledged at 20480"), "{complaint}");
    }

    #[test]
    fn a_block_on_another_file_is_missing() {
        let (ledger, members) = written_in_turn();
        let mut block = vec![0; BS as usize];
        members.read_exact_at(&mut block, 5 * BS).unwrap();
        members.write_all_at(&vec![0; BS as usize], 5 * BS).unwrap();
        members.write_all_at(&block, 4 * BS).unwrap();
        assert!(complaint(ledger.verify(&members, End::Anywhere)).contains("write 1 of thread 5"));
    }

    #[test]
    fn same_offset_twice() {
        let (ledger, _file) = written(Places::OnceEach, 2);
        let complaint = complaint(ledger.acknowledge(stamp(9, 1), BS));
        assert!(complaint.contains("given to two appends"), "{complaint}");
    }

    #[test]
    fn impossible_offsets() {
        let (ledger, _file) = written(Places::OnceEach, 0);
        assert!(ledger.acknowledge(stamp(0, 1), 100).is_err());
        assert!(ledger.acknowledge(stamp(0, 1), 8 * BS).is_err());
    }

    #[test]
    fn gap() {
        let (ledger, file) = written(Places::OnceEach, 2);
        write(&ledger, &file, stamp(5, 1), 4);
        assert!(
            complaint(ledger.verify(&file, End::AtLast)).contains("nothing was appended at 8192")
        );
    }

    #[test]
    fn wrong_end() {
        let (ledger, file) = written(Places::OnceEach, 2);
        file.set_len(3 * BS).unwrap();
        assert!(complaint(ledger.verify(&file, End::AtLast)).contains("ends at 12288"));
        ledger.verify(&file, End::Anywhere).unwrap();
    }

    #[test]
    fn rewritten_places_show_the_last_write() {
        let (ledger, file) = written(Places::Rewritten, 3);
        write(&ledger, &file, stamp(1, 2), 1);
        ledger.verify(&file, End::Anywhere).unwrap();
        ledger.acknowledge(stamp(1, 3), BS).unwrap();
        assert!(complaint(ledger.verify(&file, End::Anywhere)).contains("write 3 of thread 1"));
    }
}
