//! A log of dioxide-log whose segments were damaged, moved, or forged with valid checksums. It is
//! refused, or has only records that were once appended under their LSNs.
#![no_main]

use dioxide_log::fuzzing::{Flags, Frame, Header, Home, Kind, checksum_of, frame_bytes};
use dioxide_log::storage::Storage;
use dioxide_log::storage::memory::Memory;
use dioxide_log::{Error, LogOptions, LogView, Lsn};
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const SEGMENT_BYTES: usize = 64 << 10;
const BLOCK: usize = 4096;
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

/// A segment, and a block or byte of it.
#[derive(Debug, Arbitrary)]
struct At {
    segment: u8,
    /// A byte behind a block, near which the frames are.
    block: u8,
    byte: u16,
}

#[derive(Debug, Arbitrary)]
enum Damage {
    Flip(At, u8),
    Zeros(At, u16),
    Copy(At, At, u16),
    Twin(u8),
    Lost(u8),
    Shorter(u8, u32),
    /// A frame that is valid there.
    Frame(At, u8, bool, bool, u16, u8),
    /// A header that is valid.
    Header(u8, u16, u16, u16),
}

/// A small number, or one near those that have no next one.
fn number(draw: u16) -> u64 {
    let base = [0, 0, i64::MAX as u64 - 128, u64::MAX - 255];
    base[usize::from(draw >> 8) % base.len()] + u64::from(draw % 256)
}

type Seen = BTreeMap<u64, BTreeSet<Vec<u8>>>;

fuzz_target!(|program: Program| check(&program));

fn check(program: &Program) {
    let disk = Memory::default();
    let mut seen = Seen::new();
    write(&disk, program, &mut seen);
    let mut forged = false;
    for damage in &program.damages {
        forged |= !apply(damage, &disk);
    }
    let found = read(&disk);
    if let (Some(found), false) = (&found, forged) {
        for (lsn, record) in found {
            let known = seen.get(lsn).is_some_and(|records| records.contains(record));
            assert!(known, "record {lsn} was never appended");
        }
    }
    // The writer agrees with the view, and so does the next one.
    for _ in 0..2 {
        match LogOptions::new().segment_bytes(SEGMENT_BYTES as u64).open_storage(shared(&disk)) {
            Ok(log) => {
                let records = log.iter_from(log.first_lsn());
                let records: Vec<_> = records.map(|record| record.expect("it is read")).collect();
                let records = records.into_iter().map(|(lsn, record)| (lsn.0, record));
                let found = found.clone().unwrap_or_default();
                assert!(records.eq(found), "the writer and the view differ");
                log.close().expect("it is closed");
            }
            Err(Error::Corrupt { .. } | Error::Version { .. }) => assert!(found.is_none()),
            Err(error) => panic!("{error}"),
        }
    }
}

fn shared(disk: &Memory) -> Arc<dyn Storage> {
    Arc::new(disk.clone())
}

fn write(disk: &Memory, program: &Program, seen: &mut Seen) {
    let options = LogOptions::new().segment_bytes(SEGMENT_BYTES as u64).spare_segments(1);
    let log = options.open_storage(shared(disk)).expect("a new log");
    let mut marker = 0u8;
    let mut record = |bytes: u16| {
        marker = marker.wrapping_add(1);
        vec![marker; usize::from(bytes % 20_000)]
    };
    for step in program.steps.iter().take(STEPS_MAX) {
        let next = log.next_lsn().0;
        let mut put = |lsn: u64, record: &[u8]| {
            seen.entry(lsn).or_default().insert(record.to_vec());
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
            Step::Front(lsn) => log.truncate_front(Lsn(u64::from(*lsn))).expect("memory"),
            Step::Back(lsn) => {
                let (first, lsn) = (log.first_lsn().0, u64::from(*lsn));
                let lsn = first + lsn % (next + 1 - first);
                log.truncate_back(Lsn(lsn)).expect("memory");
            }
        }
    }
    if program.closes {
        log.close().expect("memory");
    } else {
        let killed = disk.copy();
        log.close().expect("memory");
        for name in disk.names() {
            disk.take(name);
        }
        for name in killed.names() {
            disk.put(killed.edit(name, |bytes| bytes.clone()));
        }
    }
}

impl At {
    fn byte(&self) -> usize {
        let block = usize::from(self.block) % (SEGMENT_BYTES / BLOCK);
        (block * BLOCK + usize::from(self.byte)) % SEGMENT_BYTES
    }
}

/// False if it can make records that were never appended.
fn apply(damage: &Damage, disk: &Memory) -> bool {
    let names = disk.names();
    if names.is_empty() {
        return true;
    }
    let name = |segment: u8| names[usize::from(segment) % names.len()];
    let part =
        |at: usize, len: usize, bytes: &[u8]| at.min(bytes.len())..(at + len).min(bytes.len());
    match damage {
        Damage::Flip(at, bits) => disk.edit(name(at.segment), |bytes| {
            if let Some(byte) = bytes.get_mut(at.byte()) {
                *byte ^= bits;
            }
        }),
        Damage::Zeros(at, len) => disk.edit(name(at.segment), |bytes| {
            let range = part(at.byte(), usize::from(*len), bytes);
            bytes[range].fill(0);
        }),
        Damage::Copy(from, to, len) => {
            let copied = disk.edit(name(from.segment), |bytes| {
                bytes[part(from.byte(), usize::from(*len), bytes)].to_vec()
            });
            disk.edit(name(to.segment), |bytes| {
                let range = part(to.byte(), copied.len(), bytes);
                let len = range.len();
                bytes[range].copy_from_slice(&copied[..len]);
            });
        }
        Damage::Twin(segment) => {
            let bytes = disk.edit(name(*segment), |bytes| bytes.clone());
            disk.put(bytes);
        }
        Damage::Lost(segment) => drop(disk.take(name(*segment))),
        Damage::Shorter(segment, bytes) => {
            let len = *bytes as usize % SEGMENT_BYTES;
            disk.edit(name(*segment), |content| content.truncate(len));
        }
        Damage::Frame(at, kind, stable, more, lsn, payload) => {
            disk.edit(name(at.segment), |bytes| {
                let Some(header) = header(bytes) else { return };
                let home = Home { log: header.log, life: header.life() };
                let payload = vec![7; usize::from(*payload)];
                let kind = Kind::ALL[usize::from(*kind) % Kind::ALL.len()];
                let flags = Flags { stable: *stable, more: *more };
                let frame = Frame { kind, flags, lsn: Lsn(number(*lsn)), payload: &payload };
                let (at, size) = (at.byte() / 8 * 8, frame_bytes(payload.len()) as usize);
                if let Some(into) = bytes.get_mut(at..at + size) {
                    frame.encode(into, checksum_of(&payload), home, at as u64);
                }
            });
            return false;
        }
        Damage::Header(segment, at, first, front) => {
            disk.edit(name(*segment), |bytes| {
                let Some(header) = header(bytes) else { return };
                let (first, front) = (Lsn(number(*first)), Lsn(number(*front)));
                let header = Header { number: number(*at), first, front, ..header };
                header.encode(&mut bytes[..BLOCK]);
            });
            return false;
        }
    }
    true
}

fn header(bytes: &[u8]) -> Option<Header> {
    match Header::parse(bytes.get(..BLOCK)?) {
        dioxide_log::fuzzing::Found::Header(header) => Some(header),
        _ => None,
    }
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
