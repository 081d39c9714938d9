//! A log of streams whose segments were damaged, moved, or forged with valid checksums. It is
//! refused, or its streams have only records that were once appended under their LSNs. Without
//! damage they have each record that was acknowledged and not removed since.
#![no_main]

use damage::{Damage, SEGMENT_BYTES, apply, restore, shared};
use dioxide_log::storage::memory::Memory;
use dioxide_log::{Error, LogOptions, Lsn, StreamLog, StreamReader, StreamView};
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use std::collections::{BTreeMap, BTreeSet};

mod damage;

const STEPS_MAX: usize = 16;
const STREAMS: u8 = 3;

#[derive(Debug, Arbitrary)]
struct Program {
    steps: Vec<Step>,
    damages: Vec<Damage>,
}

/// With the number of a stream.
#[derive(Debug, Arbitrary)]
enum Step {
    Append(u8, u16),
    Batch(u8, u8, u16),
    Front(u8, u8),
    Back(u8, u8),
    Remove(u8),
}

/// The records of a stream under each LSN.
type Seen = BTreeMap<(u64, u64), BTreeSet<Vec<u8>>>;
type Streams = BTreeMap<u64, Vec<(u64, Vec<u8>)>>;
/// The records that are acknowledged and not removed.
type Live = BTreeMap<(u64, u64), Vec<u8>>;

fuzz_target!(|program: Program| check(&program));

fn check(program: &Program) {
    let disk = Memory::default();
    let mut seen = Seen::new();
    let live = write(&disk, program, &mut seen);
    let mut forged = false;
    for damage in &program.damages {
        forged |= !apply(damage, &disk);
    }
    let found = view(&disk);
    if program.damages.is_empty() {
        let found = found.as_ref().expect("it is refused without damage");
        let records = found.iter().flat_map(|(id, records)| {
            records.iter().map(move |(lsn, record)| ((*id, *lsn), record.clone()))
        });
        assert!(records.eq(live), "records are lost without damage");
    }
    if let (Some(found), false) = (&found, forged) {
        for (id, records) in found {
            for (lsn, record) in records {
                let known = seen.get(&(*id, *lsn)).is_some_and(|seen| seen.contains(record));
                assert!(known, "record {lsn} of stream {id} was never appended");
            }
        }
    }
    for (id, records) in found.iter().flatten() {
        assert!(records.starts_with(&follow(&disk, *id)), "a reader of stream {id} differs");
    }
    // The writer agrees with the view, and so does the next one.
    for _ in 0..2 {
        match options().open_streams_storage(shared(&disk)) {
            Ok(log) => {
                let found = found.as_ref().expect("the view refuses what the writer opens");
                assert_eq!(streams(&log), *found);
                log.close().expect("it is closed");
            }
            Err(error) => assert!(is_refusal(&error) && found.is_none(), "{error}"),
        }
    }
}

fn options() -> LogOptions {
    LogOptions::new().segment_bytes(SEGMENT_BYTES as u64).spare_segments(1)
}

/// Forged records may be those of a log without streams.
fn is_refusal(error: &Error) -> bool {
    matches!(error, Error::Corrupt { .. } | Error::Version { .. } | Error::Options(_))
}

fn write(disk: &Memory, program: &Program, seen: &mut Seen) -> Live {
    let log = options().open_streams_storage(shared(disk)).expect("a new log");
    let mut live = Live::new();
    let mut marker = 0u8;
    let mut record = |bytes: u16| {
        marker = marker.wrapping_add(1);
        vec![marker; usize::from(bytes % 20_000)]
    };
    for step in program.steps.iter().take(STEPS_MAX) {
        let (Step::Append(id, _)
        | Step::Batch(id, ..)
        | Step::Front(id, _)
        | Step::Back(id, _)
        | Step::Remove(id)) = step;
        let stream = log.stream(u64::from(id % STREAMS));
        let (id, first, next) = (stream.id(), stream.first_lsn().0, stream.next_lsn().0);
        let mut put = |lsn: u64, record: &[u8]| {
            seen.entry((id, lsn)).or_default().insert(record.to_vec());
            live.insert((id, lsn), record.to_vec());
        };
        match step {
            Step::Append(_, bytes) => {
                let record = record(*bytes);
                put(stream.append(&record).expect("memory").0, &record);
            }
            Step::Batch(_, count, bytes) => {
                let records: Vec<_> =
                    (0..count % 5).map(|nth| record(bytes % 4000 + u16::from(nth))).collect();
                let slices: Vec<&[u8]> = records.iter().map(Vec::as_slice).collect();
                stream.append_all(&slices).expect("memory");
                for (lsn, record) in (next..).zip(&records) {
                    put(lsn, record);
                }
            }
            Step::Front(_, lsn) => {
                let front = u64::from(*lsn);
                stream.truncate_front(Lsn(front)).expect("memory");
                live.retain(|(of, lsn), _| *of != id || *lsn >= front);
            }
            Step::Back(_, lsn) => {
                let lsn = first + u64::from(*lsn) % (next + 1 - first);
                stream.truncate_back(Lsn(lsn)).expect("memory");
                live.retain(|(of, at), _| *of != id || *at < lsn);
            }
            Step::Remove(_) => {
                stream.remove().expect("memory");
                live.retain(|(of, _), _| *of != id);
            }
        }
    }
    // As a kill leaves it.
    let killed = disk.copy();
    log.close().expect("memory");
    restore(disk, &killed);
    live
}

fn streams(log: &StreamLog) -> Streams {
    let records = |id: u64| {
        let stream = log.stream(id);
        let records = stream.iter_from(stream.first_lsn());
        let records = records.map(|record| record.expect("it is read"));
        (id, records.map(|(lsn, record)| (lsn.0, record)).collect())
    };
    log.ids().into_iter().map(records).collect()
}

/// The streams that a view finds. None if the log is refused.
fn view(disk: &Memory) -> Option<Streams> {
    let view = match StreamView::of(shared(disk)) {
        Ok(view) => view,
        Err(Error::Missing { .. }) => return Some(Streams::new()),
        Err(error) => {
            assert!(is_refusal(&error), "{error}");
            return None;
        }
    };
    let records = |id: u64| {
        let records = view.iter_from(id, view.first_lsn(id));
        let records = records.map(|record| record.expect("it is read"));
        (id, records.map(|(lsn, record)| (lsn.0, record)).collect())
    };
    Some(view.ids().into_iter().map(records).collect())
}

/// The stable records that a reader of a stream finds.
fn follow(disk: &Memory, id: u64) -> Vec<(u64, Vec<u8>)> {
    let mut reader = StreamReader::of(shared(disk), id).expect("the view has it");
    let mut records = Vec::new();
    while let Some(record) = reader.next().expect("it is read") {
        records.push((record.lsn.0, record.payload.to_vec()));
    }
    records
}
