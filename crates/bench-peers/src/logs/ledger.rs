//! The records of a run: their content, and whether a log has all of them.

use crate::bench::stamp::{Stamp, fill_as_job, salt};
use anyhow::{Context, Result, ensure};

/// The lane and the number of a record are in its first bytes.
pub const RECORD_BYTES_MIN: u64 = 24;

/// What the lanes of a run append. Each numbers its records from 1.
pub struct Ledger {
    salt: u64,
    record_bytes: usize,
}

/// Compares the records of a log with those that it acknowledged, in the order of each lane.
pub struct Check<'a> {
    ledger: &'a Ledger,
    /// Of each lane: a record with its noise, and how many were found.
    lanes: Vec<(Vec<u8>, u64)>,
}

impl Ledger {
    pub fn new(record_bytes: u64) -> Self {
        Self { salt: salt(), record_bytes: record_bytes as usize }
    }

    /// A record of a lane, without its number.
    pub fn record(&self, lane: usize) -> Vec<u8> {
        let mut record = vec![0; self.record_bytes];
        fill_as_job(lane as u32, &mut record);
        record
    }

    /// Numbers a record.
    pub fn stamp(&self, lane: usize, sequence: u64, record: &mut [u8]) {
        Stamp { job: lane as u32, sequence }.put(self.salt, record);
    }

    pub fn check(&self, lanes: usize) -> Check<'_> {
        Check { ledger: self, lanes: (0..lanes).map(|lane| (self.record(lane), 0)).collect() }
    }
}

impl Check<'_> {
    /// The next record of the log.
    pub fn see(&mut self, record: &[u8]) -> Result<()> {
        let lane = record.get(8..12).map(|bytes| u32::from_le_bytes(bytes.try_into().unwrap()));
        let lane = lane.context("a short record")? as usize;
        let (expected, seen) = self.lanes.get_mut(lane).context("a record of no lane")?;
        *seen += 1;
        self.ledger.stamp(lane, *seen, expected);
        ensure!(record == expected, "record {seen} of lane {lane} is another one");
        Ok(())
    }

    /// Whether the log has all records that it acknowledged.
    pub fn finish(self, acknowledged: &[u64]) -> Result<()> {
        for (lane, ((_, seen), acknowledged)) in self.lanes.iter().zip(acknowledged).enumerate() {
            ensure!(
                seen == acknowledged,
                "lane {lane} has {seen} of {acknowledged} acknowledged records"
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_doubled_and_changed_records_are_found() {
        let ledger = Ledger::new(RECORD_BYTES_MIN + 6);
        let record = |lane, sequence| {
            let mut record = ledger.record(lane);
            ledger.stamp(lane, sequence, &mut record);
            record
        };
        let checked = |records: &[Vec<u8>]| {
            let mut check = ledger.check(2);
            records.iter().try_for_each(|record| check.see(record))?;
            check.finish(&[2, 1])
        };
        let all = [record(0, 1), record(1, 1), record(0, 2)];
        checked(&all).unwrap();
        assert!(checked(&all[..2]).is_err() && checked(&all[1..]).is_err());
        assert!(checked(&[&all[..], &all[..1]].concat()).is_err());
        assert!(checked(&[record(2, 1)]).is_err() && checked(&[vec![0; 5]]).is_err());
        let mut changed = all.clone();
        *changed[1].last_mut().unwrap() ^= 1;
        assert!(checked(&changed).is_err());
    }
}
