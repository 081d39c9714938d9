//! The rules of storages and segments.

use super::Medium;
use crate::format::header::Header;
use crate::format::{Content, LogId};
use crate::lsn::Lsn;
use crate::storage::{Mark, Segment, Storage};
use dioxide::Buffer;
use fastrand::Rng;
use std::sync::Arc;
use std::thread;

const BLOCK_BYTES: usize = 4096;
const THREADS: usize = 4;

/// The outcome of a check. The error says how a rule is broken.
type Checked = Result<(), String>;

type Check = fn(&dyn Medium, u64) -> Checked;

/// Each rule, and its check on an empty medium.
pub const RULES: &[(&str, Check)] = &[
    ("an empty medium has no log", empty),
    ("a new segment is zeros, and listed", created),
    ("bytes are read as they were written", written),
    ("segments and their bytes stay when the medium is opened again", kept),
    ("a removed segment is gone", removed),
    ("a mark is read as it was published, or not at all", marked),
    ("stable bytes survive a power cut", stable),
];

fn said(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn same(what: &str, found: &[u8], expected: &[u8]) -> Checked {
    match found.iter().zip(expected).position(|(found, expected)| found != expected) {
        None => Ok(()),
        Some(at) => {
            let (found, expected) = (found[at], expected[at]);
            Err(format!("{what}: byte {at} is {found:#04x}, not {expected:#04x}"))
        }
    }
}

fn content(segment: &dyn Segment) -> Result<Vec<u8>, String> {
    let mut into = Buffer::zeroed(segment.bytes() as usize);
    segment.read(&mut into, 0).map_err(said)?;
    Ok(into.to_vec())
}

/// The segment of a path in a new list.
fn find(storage: &dyn Storage, segment: &dyn Segment) -> Result<Option<Arc<dyn Segment>>, String> {
    let segments = storage.segments().map_err(said)?;
    let mut same = segments.into_iter().filter(|listed| listed.path() == segment.path());
    let found = same.next();
    match same.next() {
        None => Ok(found),
        Some(twin) => Err(format!("{} is listed twice", twin.path().display())),
    }
}

/// A storage, and its first segment.
type Created = (Arc<dyn Storage>, Arc<dyn Segment>);

fn created_in(medium: &dyn Medium, bytes: u64) -> Result<Created, String> {
    let storage = medium.open().map_err(said)?;
    let segment = storage.create(bytes).map_err(said)?;
    Ok((storage, segment))
}

/// Writes a header, by which a device knows a log, and blocks with content of their own. Returns
/// the bytes of the whole segment.
fn fill(segment: &dyn Segment, durable: bool) -> Result<Vec<u8>, String> {
    let mut rng = Rng::with_seed(segment.bytes());
    let mut bytes = Buffer::zeroed(segment.bytes() as usize);
    rng.fill(&mut bytes);
    let header = Header {
        content: Content::Records,
        log: LogId(rng.u128(..).to_le_bytes()),
        number: 1,
        segment_bytes: segment.bytes(),
        first: Lsn::FIRST,
        front: Lsn::FIRST,
        begun: 0,
    };
    header.encode(&mut bytes[..BLOCK_BYTES]);
    segment.write(&bytes, 0, durable).map_err(said)?;
    Ok(bytes.to_vec())
}

fn empty(medium: &dyn Medium, _bytes: u64) -> Checked {
    let segments = medium.open().and_then(|storage| storage.segments()).map_err(said)?;
    match segments
        .iter()
        .all(|segment| content(segment.as_ref()).is_ok_and(|bytes| is_zero(&bytes)))
    {
        true => Ok(()),
        false => Err("a segment has bytes".into()),
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

fn created(medium: &dyn Medium, bytes: u64) -> Checked {
    let (storage, segment) = created_in(medium, bytes)?;
    if segment.bytes() != bytes {
        return Err(format!("it has {} bytes, not {bytes}", segment.bytes()));
    }
    let listed = find(storage.as_ref(), segment.as_ref())?.ok_or("it is not listed")?;
    same("a new segment", &content(listed.as_ref())?, &vec![0; bytes as usize])?;
    if storage.fixed_count().is_some() {
        return Ok(());
    }
    let second = storage.create(bytes).map_err(said)?;
    match find(storage.as_ref(), second.as_ref())? {
        Some(_) if second.path() != segment.path() => Ok(()),
        _ => Err("a second segment is not listed under another name".into()),
    }
}

fn written(medium: &dyn Medium, bytes: u64) -> Checked {
    let (_storage, segment) = created_in(medium, bytes)?;
    let segment = segment.as_ref();
    let mut expected = fill(segment, true)?;
    same("after a write of all blocks", &content(segment)?, &expected)?;
    // Threads write their own blocks, of any number, durable or not, and read them back.
    let part_bytes = bytes as usize / THREADS;
    let write = |number: usize, part: &mut [u8]| {
        let mut rng = Rng::with_seed(number as u64);
        for _ in 0..20 {
            let first = rng.usize(0..part.len() / BLOCK_BYTES);
            let count = rng.usize(1..=part.len() / BLOCK_BYTES - first);
            let at = first * BLOCK_BYTES..(first + count) * BLOCK_BYTES;
            let mut blocks = Buffer::zeroed(at.len());
            rng.fill(&mut blocks);
            let offset = (number * part_bytes + at.start) as u64;
            segment.write(&blocks, offset, rng.bool()).map_err(said)?;
            part[at.clone()].copy_from_slice(&blocks);
            let mut read = Buffer::zeroed(at.len());
            segment.read(&mut read, offset).map_err(said)?;
            same("read back by a thread beside others", &read, &blocks)?;
        }
        Checked::Ok(())
    };
    thread::scope(|scope| {
        let parts = expected.chunks_mut(part_bytes).enumerate();
        let threads: Vec<_> =
            parts.map(|(number, part)| scope.spawn(move || write(number, part))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no thread panics"))
    })?;
    segment.sync().map_err(said)?;
    same("after writes by threads", &content(segment)?, &expected)?;
    segment.was_read();
    segment.rest().map_err(said)?;
    same("after a rest", &content(segment)?, &expected)
}

fn kept(medium: &dyn Medium, bytes: u64) -> Checked {
    let (storage, segment) = created_in(medium, bytes)?;
    let expected = fill(segment.as_ref(), true)?;
    segment.rest().map_err(said)?;
    storage.release();
    drop(storage);
    let storage = medium.open().map_err(said)?;
    let again = find(storage.as_ref(), segment.as_ref())?.ok_or("it is not listed")?;
    same("opened again", &content(again.as_ref())?, &expected)
}

fn removed(medium: &dyn Medium, bytes: u64) -> Checked {
    let (storage, segment) = created_in(medium, bytes)?;
    if storage.fixed_count().is_some() {
        return Ok(());
    }
    let other = storage.create(bytes).map_err(said)?;
    let expected = fill(other.as_ref(), true)?;
    storage.remove(segment.as_ref()).map_err(said)?;
    if find(storage.as_ref(), segment.as_ref())?.is_some() {
        return Err("it is still listed".into());
    }
    let left = find(storage.as_ref(), other.as_ref())?.ok_or("another one is gone as well")?;
    same("another segment", &content(left.as_ref())?, &expected)
}

fn marked(medium: &dyn Medium, bytes: u64) -> Checked {
    let (storage, _segment) = created_in(medium, bytes)?;
    for next in 1..10 {
        let mark = Mark { epoch: 7, frames: 2 * next, truncations: next / 3, next: next.into() };
        storage.publish(mark);
        if let Some(found) = storage.mark().map_err(said)?
            && found != mark
        {
            return Err(format!("{mark:?} was published, and {found:?} is read"));
        }
    }
    Ok(())
}

fn stable(medium: &dyn Medium, bytes: u64) -> Checked {
    let (storage, segment) = created_in(medium, bytes)?;
    let mut expected = fill(segment.as_ref(), true)?;
    let half = expected.len() / 2;
    let flushed = Buffer::zeroed(half);
    segment.write(&flushed, half as u64, false).map_err(said)?;
    segment.sync().map_err(said)?;
    expected[half..].copy_from_slice(&flushed);
    drop((segment, storage));
    for seed in 0..4 {
        if !medium.cut_power(seed) {
            return Ok(());
        }
        let storage = medium.open().map_err(said)?;
        let segments = storage.segments().map_err(said)?;
        let [segment] = &segments[..] else {
            // A fixed storage has made them all. The first one was written.
            let found = segments.iter().filter_map(|segment| content(segment.as_ref()).ok());
            match found.into_iter().any(|found| found == expected) {
                true => continue,
                false => return Err("the segment, or its bytes, are lost".into()),
            }
        };
        same("after the cut", &content(segment.as_ref())?, &expected)?;
    }
    Ok(())
}
