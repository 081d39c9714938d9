//! The ledger of records of any length: where each was acknowledged, verified at the end. Shared by
//! all threads.
//!
//! One word for each record, by its number, from which its length follows. Verification requires
//! that the records form a sequence from the beginning of the file, in any order. Only padding may
//! separate them, where it is allowed. Every byte must be right.

use super::ledger::{
    BLOCK_BYTES, CHUNK_BYTES, End, Expected, Written, is_not_there, read_up_to, wrong,
};
use super::stamp::Stamp;
use crate::interrupt;
use crate::sizes::Sizes;
use anyhow::{Context, Result, bail, ensure};
use dioxide::Buffer;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bits of a slot for the offset, counted from 1; the job has the rest.
const PLACE_BITS: u32 = 44;

/// The space between two records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gaps {
    None,
    /// Zeros, to the next multiple of this number of bytes.
    Padding {
        unit_bytes: u64,
    },
}

/// Acknowledged records by number.
pub struct Records {
    salt: u64,
    sizes: Sizes,
    gaps: Gaps,
    /// By number, from 1: 0, or the writer and the offset.
    slots: Vec<AtomicU64>,
    /// Above all acknowledged records; only maintained with gaps.
    end: AtomicU64,
}

/// An acknowledged record.
#[derive(Clone, Copy)]
struct Record {
    offset: u64,
    bytes: u64,
    stamp: Stamp,
}

impl Record {
    fn end(&self) -> u64 {
        self.offset + self.bytes
    }
}

impl Records {
    /// For at most `count` records.
    pub fn new(salt: u64, sizes: Sizes, count: u64, gaps: Gaps) -> Self {
        let slots = (0..count).map(|_| AtomicU64::new(0)).collect();
        Self { salt, sizes, gaps, slots, end: AtomicU64::new(0) }
    }

    /// Stamps a record. The sequence number of its stamp is unique over all jobs.
    pub fn stamp(&self, stamp: Stamp, record: &mut [u8]) {
        stamp.put(self.salt, record);
    }

    /// Records that the record with this stamp was acknowledged at `offset`.
    pub fn acknowledge(&self, stamp: Stamp, offset: u64) -> Result<()> {
        let slot = self
            .slots
            .get(stamp.sequence as usize - 1)
            .context("more records than there is room for")?;
        ensure!(
            offset < (1 << PLACE_BITS) - 1,
            wrong(&format!("offset {offset} is invalid for a record"))
        );
        slot.store(u64::from(stamp.job) << PLACE_BITS | (offset + 1), Relaxed);
        if self.gaps != Gaps::None {
            self.end.fetch_max(offset + self.sizes.of(stamp.sequence), Relaxed);
        }
        Ok(())
    }

    /// Bytes of all records with their padding. 0 without gaps, where it is not needed.
    pub fn padded_bytes(&self) -> u64 {
        self.end.load(Relaxed)
    }

    /// Reads everything back and compares.
    pub fn verify(&self, file: &dyn Written, end: End) -> Result<()> {
        let order = self.by_place();
        let last = order.last().map_or(0, |&number| self.record(number).end());
        if end == End::AtLast {
            let found = file.len()?;
            ensure!(
                found == last,
                wrong(&format!("the file ends at {found}, its last record at {last}"))
            );
        }
        let mut window = Window::new(file, self.sizes.max_bytes);
        let mut expected = Expected::new(self.salt, self.sizes.max_bytes);
        let mut below = 0;
        for number in order {
            let record = self.record(number);
            self.check_gap(below, record, &mut window)?;
            if window.bytes(record.offset, record.bytes)?
                != expected.bytes(record.stamp, record.bytes as usize)
            {
                bail!(is_not_there(record.stamp, record.offset));
            }
            below = record.end();
        }
        Ok(())
    }

    /// The numbers of the acknowledged records, in file order.
    fn by_place(&self) -> Vec<u64> {
        let numbers = (1..).zip(&self.slots).filter(|(_, slot)| slot.load(Relaxed) != 0);
        let mut numbers: Vec<u64> = numbers.map(|(number, _)| number).collect();
        numbers.sort_unstable_by_key(|&number| self.record(number).offset);
        numbers
    }

    fn record(&self, number: u64) -> Record {
        let slot = self.slots[number as usize - 1].load(Relaxed);
        let (job, place) = ((slot >> PLACE_BITS) as u32, slot & ((1 << PLACE_BITS) - 1));
        let stamp = Stamp { job, sequence: number };
        Record { offset: place - 1, bytes: self.sizes.of(number), stamp }
    }

    /// Checks the bytes between the end of a record and the next one.
    fn check_gap(&self, end: u64, next: Record, window: &mut Window<'_>) -> Result<()> {
        let found = next.offset;
        ensure!(
            found >= end,
            wrong(&format!("offset {found} was given to an append, within another one's"))
        );
        match self.gaps {
            _ if found == end => Ok(()),
            Gaps::Padding { unit_bytes } if found == end.next_multiple_of(unit_bytes) => {
                let is_zero = window.bytes(end, found - end)?.iter().all(|byte| *byte == 0);
                ensure!(is_zero, wrong(&format!("padding at {end} is not zero")));
                Ok(())
            }
            _ => bail!(wrong(&format!("nothing was appended at {end}, below others"))),
        }
    }
}

/// A part of the file in memory, which moves upwards.
struct Window<'a> {
    file: &'a dyn Written,
    buffer: Buffer,
    start: u64,
    filled: usize,
}

impl<'a> Window<'a> {
    /// Large enough for `max_bytes` at any offset.
    fn new(file: &'a dyn Written, max_bytes: u64) -> Self {
        let buffer =
            Buffer::zeroed((CHUNK_BYTES + max_bytes.next_multiple_of(BLOCK_BYTES)) as usize);
        Self { file, buffer, start: 0, filled: 0 }
    }

    fn bytes(&mut self, offset: u64, count: u64) -> Result<&[u8]> {
        if offset < self.start || offset + count > self.start + self.filled as u64 {
            interrupt::check()?;
            self.start = offset - offset % BLOCK_BYTES;
            self.filled = read_up_to(self.file, &mut self.buffer, self.start)
                .context("read the records back")?;
        }
        let from = (offset - self.start) as usize;
        let end = wrong(&format!("the file ends within what was acknowledged at {offset}"));
        self.buffer[..self.filled].get(from..from + count as usize).context(end)
    }
}

#[cfg(test)]
mod tests {
    use super::super::stamp::fill_as_job;
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    const SIZES: Sizes = Sizes { min_bytes: 1, max_bytes: 9000 };
    const PADDED: Gaps = Gaps::Padding { unit_bytes: 512 };

    /// This number of records, the last one first, each by a job of its own.
    fn written(gaps: Gaps, count: u64) -> (Records, File, Vec<u64>) {
        let ledger = Records::new(77, SIZES, count + 1, gaps);
        let file = tempfile::tempfile().unwrap();
        let mut places = Vec::new();
        let mut end: u64 = 0;
        for number in (1..=count).rev() {
            let offset =
                if gaps == PADDED && number % 3 == 0 { end.next_multiple_of(512) } else { end };
            write(&ledger, &file, number, offset);
            end = offset + SIZES.of(number);
            places.push(offset);
        }
        (ledger, file, places)
    }

    fn write(ledger: &Records, file: &File, number: u64, offset: u64) {
        let stamp = Stamp { job: number as u32, sequence: number };
        let mut record = vec![0; SIZES.of(number) as usize];
        fill_as_job(stamp.job, &mut record);
        ledger.stamp(stamp, &mut record);
        file.write_all_at(&record, offset).unwrap();
        ledger.acknowledge(stamp, offset).unwrap();
    }

    fn complaint(outcome: Result<()>) -> String {
        outcome.unwrap_err().to_string()
    }

    #[test]
    fn all_there_in_any_order() {
        for gaps in [Gaps::None, PADDED] {
            // More than a window has room for.
            let (ledger, file, _) = written(gaps, 1500);
            ledger.verify(&file, End::AtLast).unwrap();
        }
    }

    #[test]
    fn every_byte_counts() {
        let (ledger, file, places) = written(Gaps::None, 3);
        for offset in [0, places[1] - 1, places[1], places[2] + SIZES.of(1) - 1] {
            let mut byte = [0];
            file.read_exact_at(&mut byte, offset).unwrap();
            file.write_all_at(&[!byte[0]], offset).unwrap();
            let text = complaint(ledger.verify(&file, End::AtLast));
            assert!(
                text.contains("was acknowledged at") && text.contains("is not there"),
                "{offset}: {text}"
            );
            file.write_all_at(&byte, offset).unwrap();
        }
        ledger.verify(&file, End::AtLast).unwrap();
    }

    #[test]
    fn gaps_and_overlaps() {
        let (ledger, file, places) = written(Gaps::None, 3);
        let end = places[2] + SIZES.of(1);
        write(&ledger, &file, 4, end + 1);
        let text = complaint(ledger.verify(&file, End::Anywhere));
        assert!(text.contains(&format!("nothing was appended at {end}, below others")), "{text}");
        write(&ledger, &file, 4, end - 1);
        let text = complaint(ledger.verify(&file, End::Anywhere));
        assert!(text.contains("is not there") || text.contains("within another one's"), "{text}");
    }

    #[test]
    fn padding_is_zero_and_ends_at_the_next_block() {
        let (ledger, file, places) = written(PADDED, 3);
        let (end, next) = (0, places[0]);
        assert_eq!(next, end);
        let end = places[0] + SIZES.of(3);
        write(&ledger, &file, 4, (places[2] + SIZES.of(1)).next_multiple_of(512));
        ledger.verify(&file, End::AtLast).unwrap();
        file.write_all_at(&[1], places[2] + SIZES.of(1)).unwrap();
        let text = complaint(ledger.verify(&file, End::AtLast));
        assert!(text.contains("padding at") && text.contains("is not zero"), "{text} {end}");
        write(&ledger, &file, 4, (places[2] + SIZES.of(1)).next_multiple_of(512) + 512);
        assert!(complaint(ledger.verify(&file, End::AtLast)).contains("nothing was appended at"));
    }

    #[test]
    fn wrong_end() {
        let (ledger, file, places) = written(Gaps::None, 3);
        let end = places[2] + SIZES.of(1);
        file.set_len(end + 1).unwrap();
        assert!(complaint(ledger.verify(&file, End::AtLast)).contains("its last record at"));
        ledger.verify(&file, End::Anywhere).unwrap();
        file.set_len(end - 1).unwrap();
        assert!(
            complaint(ledger.verify(&file, End::Anywhere))
                .contains("ends within what was acknowledged")
        );
    }

    #[test]
    fn impossible_places() {
        let (ledger, ..) = written(Gaps::None, 1);
        assert!(ledger.acknowledge(Stamp { job: 0, sequence: 3 }, 0).is_err());
        assert!(ledger.acknowledge(Stamp { job: 0, sequence: 2 }, 1 << 45).is_err());
    }
}
