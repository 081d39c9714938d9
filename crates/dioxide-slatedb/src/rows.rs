//! The records of a log: the rows of write batches, and the epochs of writers. Values.
//!
//! | record | type | meaning |
//! |---|---|---|
//! | 0 | u8 | kind, below |
//! | 1.. | bytes | the epoch (u64), or rows, one behind the other |
//!
//! | kind | meaning |
//! |---|---|
//! | 0 | a writer begins with this epoch |
//! | 1 | a whole batch |
//! | 2, 3, 4 | the first, a middle and the last part of a batch |
//! | 5 | as 0, and the loss of the records before it was accepted |
//!
//! | row | type | meaning |
//! |---|---|---|
//! | 0 | u8 | flags: 0 to 2 for value, merge, tombstone; plus 4 if created, plus 8 if it expires |
//! | 1..9 | u64 | sequence number |
//! | .. | i64 | time of creation, if that flag is set |
//! | .. | i64 | time of expiry, if that flag is set |
//! | .. | u32 and bytes | key |
//! | .. | u32 and bytes | value, unless it is a tombstone |
//!
//! Numbers are little-endian. A batch that does not fit into a record is divided into parts. A
//! batch without its last part was never acknowledged, so it is ignored.

use slatedb::bytes::Bytes;
use slatedb::{RowEntry, ValueDeletable};

/// The bytes of a part of a batch. The smallest segment of a log has room for it.
const PART_BYTES: usize = 48 << 10;

const EPOCH: u8 = 0;
const WHOLE: u8 = 1;
const FIRST: u8 = 2;
const MIDDLE: u8 = 3;
const LAST: u8 = 4;
const ANEW: u8 = 5;

const VALUE: u8 = 0;
const MERGE: u8 = 1;
const TOMBSTONE: u8 = 2;
const CREATED: u8 = 4;
const EXPIRES: u8 = 8;

/// The record of a writer that begins, and whether the log begins anew with it.
pub fn epoch(epoch: u64, anew: bool) -> Vec<u8> {
    let kind = if anew { ANEW } else { EPOCH };
    [&[kind][..], &epoch.to_le_bytes()].concat()
}

/// Whether the log begins anew with this record.
pub fn is_anew(record: &[u8]) -> bool {
    record.first() == Some(&ANEW)
}

/// The records of a batch, in their order.
pub fn records(batch: &[RowEntry]) -> Vec<Vec<u8>> {
    let mut rows = Vec::new();
    for row in batch {
        put_row(&mut rows, row);
    }
    let count = rows.len().div_ceil(PART_BYTES).max(1);
    let part = |number: usize| {
        let kind = match (number, number + 1 == count) {
            (0, true) => WHOLE,
            (0, false) => FIRST,
            (_, false) => MIDDLE,
            (_, true) => LAST,
        };
        let bytes = &rows[number * PART_BYTES..rows.len().min((number + 1) * PART_BYTES)];
        [&[kind][..], bytes].concat()
    };
    (0..count).map(part).collect()
}

fn put_row(rows: &mut Vec<u8>, row: &RowEntry) {
    let (kind, value) = match &row.value {
        ValueDeletable::Value(value) => (VALUE, Some(value)),
        ValueDeletable::Merge(value) => (MERGE, Some(value)),
        ValueDeletable::Tombstone => (TOMBSTONE, None),
    };
    let flag = |time: Option<i64>, flag| if time.is_some() { flag } else { 0 };
    rows.push(kind | flag(row.create_ts, CREATED) | flag(row.expire_ts, EXPIRES));
    rows.extend(row.seq.to_le_bytes());
    for time in [row.create_ts, row.expire_ts].into_iter().flatten() {
        rows.extend(time.to_le_bytes());
    }
    for bytes in [Some(&row.key), value].into_iter().flatten() {
        let length = u32::try_from(bytes.len()).expect("SlateDB limits keys and values to 4 GiB");
        rows.extend(length.to_le_bytes());
        rows.extend_from_slice(bytes);
    }
}

/// Puts the records of a log together to batches.
#[derive(Debug, Default)]
pub struct Batches {
    /// The parts of a batch so far.
    parts: Option<Vec<u8>>,
}

impl Batches {
    /// Takes the next record. Returns the rows of a batch that is complete with it. They are empty
    /// for an epoch.
    ///
    /// # Errors
    ///
    /// None if the record has another form.
    pub fn take(&mut self, record: &[u8]) -> Option<Option<Vec<RowEntry>>> {
        let (kind, bytes) = record.split_first()?;
        match (*kind, &mut self.parts) {
            (EPOCH | ANEW, parts) if bytes.len() == 8 => {
                *parts = None;
                Some(Some(Vec::new()))
            }
            (WHOLE, parts) => {
                *parts = None;
                Some(Some(rows(Bytes::copy_from_slice(bytes))?))
            }
            (FIRST, parts) => {
                *parts = Some(bytes.into());
                Some(None)
            }
            (MIDDLE, Some(parts)) => {
                parts.extend(bytes);
                Some(None)
            }
            (LAST, parts) => {
                let mut all = parts.take()?;
                all.extend(bytes);
                Some(Some(rows(all.into())?))
            }
            _ => None,
        }
    }
}

fn rows(mut bytes: Bytes) -> Option<Vec<RowEntry>> {
    let mut rows = Vec::new();
    while !bytes.is_empty() {
        rows.push(take_row(&mut bytes)?);
    }
    Some(rows)
}

fn take_row(bytes: &mut Bytes) -> Option<RowEntry> {
    let [flags] = take_array(bytes)?;
    if flags & !(TOMBSTONE | MERGE | CREATED | EXPIRES) != 0 {
        return None;
    }
    let seq = u64::from_le_bytes(take_array(bytes)?);
    let mut time = |flag| match flags & flag {
        0 => Some(None),
        _ => Some(Some(i64::from_le_bytes(take_array(bytes)?))),
    };
    let (create_ts, expire_ts) = (time(CREATED)?, time(EXPIRES)?);
    let key = take_bytes(bytes)?;
    let value = match flags & (TOMBSTONE | MERGE) {
        VALUE => ValueDeletable::Value(take_bytes(bytes)?),
        MERGE => ValueDeletable::Merge(take_bytes(bytes)?),
        TOMBSTONE => ValueDeletable::Tombstone,
        _ => return None,
    };
    Some(RowEntry { key, value, seq, create_ts, expire_ts })
}

fn take(bytes: &mut Bytes, count: usize) -> Option<Bytes> {
    (count <= bytes.len()).then(|| bytes.split_to(count))
}

fn take_array<const N: usize>(bytes: &mut Bytes) -> Option<[u8; N]> {
    take(bytes, N)?.as_ref().try_into().ok()
}

fn take_bytes(bytes: &mut Bytes) -> Option<Bytes> {
    let length = u32::from_le_bytes(take_array(bytes)?);
    take(bytes, length as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(seq: u64, value: ValueDeletable, times: (Option<i64>, Option<i64>)) -> RowEntry {
        let key = Bytes::from(format!("key {seq}"));
        RowEntry { key, value, seq, create_ts: times.0, expire_ts: times.1 }
    }

    /// Batches of one record, of an empty one, and of several parts.
    fn batches() -> Vec<Vec<RowEntry>> {
        let long = Bytes::from(vec![7; 3 * PART_BYTES]);
        let merge = ValueDeletable::Merge("operand".into());
        let empty = ValueDeletable::Value(Bytes::new());
        vec![
            vec![row(1, empty, (None, None)), row(1, merge, (Some(-5), None))],
            vec![],
            vec![
                row(2, ValueDeletable::Value(long), (Some(i64::MAX), Some(9))),
                row(2, ValueDeletable::Tombstone, (None, Some(i64::MIN))),
            ],
        ]
    }

    #[test]
    fn batches_come_back_from_their_records() {
        let mut found = Batches::default();
        for batch in batches() {
            let mut records = records(&batch);
            assert!(records.iter().all(|record| record.len() <= PART_BYTES + 1));
            let last = records.pop().unwrap();
            for record in &records {
                assert_eq!(found.take(record), Some(None));
            }
            assert_eq!(found.take(&last), Some(Some(batch)));
        }
        assert_eq!(found.take(&epoch(3, false)), Some(Some(vec![])));
    }

    #[test]
    fn a_batch_without_its_last_part_is_ignored() {
        for next in [records(&batches()[0]), vec![epoch(1, true)]] {
            let mut found = Batches::default();
            let parts = records(&batches()[2]);
            for part in &parts[..parts.len() - 1] {
                assert_eq!(found.take(part), Some(None));
            }
            assert!(found.take(&next[0]).unwrap().is_some());
            assert_eq!(found.take(parts.last().unwrap()), None, "its begin is gone");
        }
    }

    #[test]
    fn other_records_are_refused() {
        for batch in batches() {
            let record = [&[WHOLE][..], &records(&batch)[0][1..]].concat();
            for end in 2..record.len().min(200) {
                let cut = Batches::default().take(&record[..end]);
                // The end of a row is the end of a shorter batch.
                assert!(cut.is_none_or(|batch| batch.unwrap().len() == 1));
            }
        }
        for record in [&[][..], &[6], &[EPOCH, 1], &[MIDDLE, 1], &[WHOLE, 3], &[WHOLE, 16]] {
            assert_eq!(Batches::default().take(record), None, "{record:?}");
        }
    }
}
