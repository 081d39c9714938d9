//! A log of dioxide-log whose segments were damaged, moved, or forged with valid checksums. It is
//! refused, or has only records that were once appended under their LSNs. Without damage it has
//! each record that was acknowledged and not removed since.
#![no_main]

use damage::{Damage, SEGMENT_BYTES, apply, restore, shared};
use dioxide_log::storage::memory::Memory;
use dioxide_log::{Error, LogOptions, LogReader, LogView, Lsn};
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use std::collections::{BTreeMap, BTreeSet};

mod damage;

const STEPS_MAX: usize = 12;

#[derive(Debug, Arbitrary)]
struct Program {
    steps: Vec<Step>,
    closes: bool,
    damages: Vec<Damage>,
}

#[derive(Debug, Arbitrary)]
enum Step {
    Append(u16),
    Batch(u8, u16),
    Front(u8),
    Back(u8),
}

/// The records that were ever appended under each LSN.
type Seen = BTreeMap<u64, BTreeSet<Vec<u8>>>;
/// The records that are acknowledged and not removed.
type Live = BTreeMap<u64, Vec<u8>>;

fuzz_target!(|program: Program| check(&program));

fn check(program: &Program) {
    let disk = Memory::default();
    let mut seen = Seen::new();
    let live = write(&disk, program, &mut seen);
    let mut forged = false;
    for damage in &program.damages {
        forged |= !apply(damage, &disk);
    }
    let found = read(&disk);
    if program.damages.is_empty() {
        let live: Vec<_> = live.into_iter().collect();
        assert!(found.as_ref() == Some(&live), "records are lost without damage");
    }
    if let (Some(found), false) = (&found, forged) {
        for (lsn, record) in found {
            let known = seen.get(lsn).is_some_and(|records| records.contains(record));
            assert!(known, "record {lsn} was never appended");
        }
    }
    // A reader has the first ones: those that are stable.
    match (follow(&disk), &found) {
        (Some(followed), Some(found)) => assert!(found.starts_with(&followed), "a reader differs"),
        (None, None) => {}
        (followed, _) => panic!("a reader refuses the log or not: {}", followed.is_none()),
    }
    // The writer agrees with the view, and so does the next one.
    for _ in 0..2 {
        match LogOptions::new().segment_bytes(SEGMENT_BYTES as u64).open_storage(shared(&disk)) {
            Ok(log) => {
                let records = log.iter_from(log.first_lsn());
                let records: Vec<_> = records.map(|record| record.expect("it is read")).collect();
                let records = records.into_iter().map(|(lsn, record)| (lsn.0, record));
                let found = found.as_ref().expect("the view refuses what the writer opens");
                assert!(records.eq(found.iter().cloned()), "the writer and the view differ");
                log.close().expect("it is closed");
            }
            Err(Error::Corrupt { .. } | Error::Version { .. }) => assert!(found.is_none()),
            Err(error) => panic!("{error}"),
        }
    }
}

fn write(disk: &Memory, program: &Program, seen: &mut Seen) -> Live {
    let options = LogOptions::new().segment_bytes(SEGMENT_BYTES as u64).spare_segments(1);
    let log = options.open_storage(shared(disk)).expect("a new log");
    let mut live = Live::new();
    let mut marker = 0u8;
    let mut record = |bytes: u16| {
        marker = marker.wrapping_add(1);
        vec![marker; usize::from(bytes % 20_000)]
    };
    for step in program.steps.iter().take(STEPS_MAX) {
        let next = log.next_lsn().0;
        let mut put = |lsn: u64, record: &[u8]| {
            seen.entry(lsn).or_default().insert(record.to_vec());
            live.insert(lsn, record.to_vec());
        };
        match step {
            Step::Append(bytes) => {
                let record = record(*bytes);
                log.append(&record).expect("memory");
                put(next, &record);
            }
            Step::Batch(count, bytes) => {
                let records: Vec<_> =
                    (0..count % 5).map(|nth| record(bytes % 4000 + u16::from(nth))).collect();
                let slices: Vec<&[u8]> = records.iter().map(Vec::as_slice).collect();
                log.append_all(&slices).expect("memory");
                for (lsn, record) in (next..).zip(&records) {
                    put(lsn, record);
                }
            }
            Step::Front(lsn) => {
                let front = u64::from(*lsn);
                log.truncate_front(Lsn(front)).expect("memory");
                live.retain(|lsn, _| *lsn >= front);
            }
            Step::Back(lsn) => {
                let (first, lsn) = (log.first_lsn().0, u64::from(*lsn));
                let lsn = first + lsn % (next + 1 - first);
                log.truncate_back(Lsn(lsn)).expect("memory");
                live.retain(|at, _| *at < lsn);
            }
        }
    }
    if program.closes {
        log.close().expect("memory");
    } else {
        let killed = disk.copy();
        log.close().expect("memory");
        restore(disk, &killed);
    }
    live
}

/// The records that a view finds. None if the log is refused, or there is none.
fn read(disk: &Memory) -> Option<Vec<(u64, Vec<u8>)>> {
    match LogView::of(shared(disk)) {
        Ok(view) => {
            let records = view.iter_from(view.first_lsn());
            let record = |record: dioxide_log::Result<(Lsn, Vec<u8>)>| {
                let (lsn, bytes) = record.expect("it is read");
                (lsn.0, bytes)
            };
            Some(records.map(record).collect())
        }
        Err(Error::Missing { .. }) => Some(Vec::new()),
        Err(Error::Corrupt { .. } | Error::Version { .. }) => None,
        Err(error) => panic!("{error}"),
    }
}

/// The records that a reader finds, as `read`.
fn follow(disk: &Memory) -> Option<Vec<(u64, Vec<u8>)>> {
    let mut reader = match LogReader::of(shared(disk)) {
        Ok(reader) => reader,
        Err(Error::Missing { .. }) => return Some(Vec::new()),
        Err(Error::Corrupt { .. } | Error::Version { .. }) => return None,
        Err(error) => panic!("{error}"),
    };
    let mut records = Vec::new();
    while let Some(record) = reader.next().expect("it is read") {
        records.push((record.lsn.0, record.payload.to_vec()));
    }
    Some(records)
}
