//! Damage of the segments of a log: bits, blocks, whole segments. And forged frames and headers,
//! with valid checksums.

use dioxide_log::Lsn;
use dioxide_log::fuzzing::{Flags, Frame, Header, Home, Kind, checksum_of, frame_bytes};
use dioxide_log::storage::Storage;
use dioxide_log::storage::memory::Memory;
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use std::sync::Arc;

pub const SEGMENT_BYTES: usize = 64 << 10;
const BLOCK: usize = 4096;

/// The disk, for a log.
pub fn shared(disk: &Memory) -> Arc<dyn Storage> {
    Arc::new(disk.clone())
}

/// Puts the segments of a copy in the place of those that the disk has.
pub fn restore(disk: &Memory, copy: &Memory) {
    for name in disk.names() {
        disk.take(name);
    }
    for name in copy.names() {
        disk.put(copy.edit(name, |bytes| bytes.clone()));
    }
}

/// A segment, and a block or byte of it.
#[derive(Debug, Arbitrary)]
pub struct At {
    segment: u8,
    /// A byte behind a block, near which the frames are.
    block: u8,
    byte: u16,
}

#[derive(Debug, Arbitrary)]
pub enum Damage {
    Flip(At, u8),
    Zeros(At, u16),
    Copy(At, At, u16),
    Twin(u8),
    Lost(u8),
    Shorter(u8, u32),
    /// A frame that is valid there, with a payload of so many bytes, or with this one.
    Frame(At, u8, bool, bool, u16, u8),
    Content(At, u8, bool, bool, u16, Vec<u8>),
    /// A header that is valid.
    Header(u8, u16, u16, u16),
}

/// A small number, or one near those that have no next one.
fn number(draw: u16) -> u64 {
    let base = [0, 0, i64::MAX as u64 - 128, u64::MAX - 255];
    base[usize::from(draw >> 8) % base.len()] + u64::from(draw % 256)
}

impl At {
    fn byte(&self) -> usize {
        let block = usize::from(self.block) % (SEGMENT_BYTES / BLOCK);
        (block * BLOCK + usize::from(self.byte)) % SEGMENT_BYTES
    }
}

/// False if it can make records that were never appended.
pub fn apply(damage: &Damage, disk: &Memory) -> bool {
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
        Damage::Frame(at, kind, stable, more, lsn, len) => {
            let payload = vec![7; usize::from(*len)];
            forge(disk, name(at.segment), at.byte(), *kind, (*stable, *more), *lsn, &payload);
            return false;
        }
        Damage::Content(at, kind, stable, more, lsn, payload) => {
            forge(disk, name(at.segment), at.byte(), *kind, (*stable, *more), *lsn, payload);
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

/// Writes a valid frame.
fn forge(
    disk: &Memory,
    name: u64,
    at: usize,
    kind: u8,
    (stable, more): (bool, bool),
    lsn: u16,
    payload: &[u8],
) {
    disk.edit(name, |bytes| {
        let Some(header) = header(bytes) else { return };
        let home = Home { log: header.log, life: header.life() };
        let kind = Kind::ALL[usize::from(kind) % Kind::ALL.len()];
        let frame = Frame { kind, flags: Flags { stable, more }, lsn: Lsn(number(lsn)), payload };
        let (at, size) = (at / 8 * 8, frame_bytes(payload.len()) as usize);
        if let Some(into) = bytes.get_mut(at..at + size) {
            frame.encode(into, checksum_of(payload), home, at as u64);
        }
    });
}
