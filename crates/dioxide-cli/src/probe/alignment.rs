//! Alignments of direct I/O: as the kernel states them, and as it accepts them in practice.

use super::facts::{Facts, Topic};
use crate::bench::place::RunFile;
use anyhow::{Context, Result};
use dioxide::Buffer;
use rustix::fs::{AtFlags, OFlags, Statx, StatxFlags, statx};
use rustix::io::{Errno, ReadWriteFlags, pwritev2};
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;

/// No file system in use requires more.
const TRIED_MAX_BYTES: usize = 64 << 10;
/// Another task may hold a resource that a non-waiting write needs.
const NOWAIT_TRIES: usize = 10;

// From linux/stat.h; rustix has no names for these yet.
const STATX_DIOALIGN: u32 = 0x2000;
const STATX_WRITE_ATOMIC: u32 = 0x1_0000;
const STATX_DIO_READ_ALIGN: u32 = 0x2_0000;

/// Sizes to try, the smallest first.
fn sizes() -> impl Iterator<Item = usize> {
    (0..=TRIED_MAX_BYTES.ilog2()).map(|bit| 1 << bit)
}

fn ask(file: &File) -> rustix::io::Result<Statx> {
    let more =
        StatxFlags::from_bits_retain(STATX_DIOALIGN | STATX_WRITE_ATOMIC | STATX_DIO_READ_ALIGN);
    statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS | more)
}

/// The statements of the kernel about a file or a device.
pub fn as_stated(file: &File, facts: &mut Facts) {
    let stat = ask(file);
    let told = |mask: u32, of: fn(&Statx) -> u32| match &stat {
        Ok(stat) if stat.stx_mask & mask == 0 => Err("the kernel does not say".to_owned()),
        Ok(stat) => Ok(u64::from(of(stat))),
        Err(errno) => Err(errno.to_string()),
    };
    let mut tell = |topic, key, name, mask, of: fn(&Statx) -> u32, how| {
        facts.tell(topic, key, name, told(mask, of), how);
    };
    let (alignment, dioalign) = (Topic::Alignment, "statx, STATX_DIOALIGN");
    tell(alignment, "memory_bytes", "memory", STATX_DIOALIGN, |it| it.stx_dio_mem_align, dioalign);
    tell(
        alignment,
        "offset_bytes",
        "offset and length",
        STATX_DIOALIGN,
        |it| it.stx_dio_offset_align,
        dioalign,
    );
    tell(
        alignment,
        "read_offset_bytes",
        "offset and length of reads",
        STATX_DIO_READ_ALIGN,
        // 0 means the same as for writes.
        |it| {
            if it.stx_dio_read_offset_align == 0 {
                it.stx_dio_offset_align
            } else {
                it.stx_dio_read_offset_align
            }
        },
        "statx, STATX_DIO_READ_ALIGN",
    );
    let (durability, atomic) = (Topic::Durability, "statx, STATX_WRITE_ATOMIC; 0: none");
    tell(
        durability,
        "atomic_write_unit_min_bytes",
        "atomic writes, from",
        STATX_WRITE_ATOMIC,
        |it| it.stx_atomic_write_unit_min,
        atomic,
    );
    tell(
        durability,
        "atomic_write_unit_max_bytes",
        "atomic writes, up to",
        STATX_WRITE_ATOMIC,
        |it| it.stx_atomic_write_unit_max,
        atomic,
    );
}

/// The direct writes that are accepted over written blocks.
pub fn of_writes(ground: &RunFile, facts: &mut Facts) -> Result<()> {
    ground.fill(2 * TRIED_MAX_BYTES as u64)?;
    let file = ground.open(OFlags::empty())?;
    let memory = Buffer::zeroed(2 * TRIED_MAX_BYTES);
    let topic = Topic::Alignment;

    let offset = smallest(|bytes| is_taken(file.write_at(&memory[..bytes], bytes as u64), bytes));
    facts.tell(
        topic,
        "write_taken_offset_bytes",
        "a write is taken from",
        offset,
        "direct writes of 1, 2, 4, ... bytes at such an offset",
    );
    let address = smallest(|bytes| {
        is_taken(file.write_at(&memory[bytes..][..TRIED_MAX_BYTES], 0), TRIED_MAX_BYTES)
    });
    facts.tell(
        topic,
        "write_taken_memory_bytes",
        "memory is taken from",
        address,
        "direct writes from memory at 1, 2, 4, ... bytes behind a page",
    );
    let shared = smallest(|bytes| {
        is_done_at_once(&file, &memory[..bytes], bytes as u64, &memory[..TRIED_MAX_BYTES])
    });
    facts.tell(
        topic,
        "overwrite_bytes",
        "smallest non-blocking overwrite",
        shared,
        "RWF_NOWAIT over written blocks, 1, 2, 4, ... bytes",
    );
    Ok(())
}

/// The direct reads that are accepted. Writes nothing.
pub fn of_reads(file: &File, facts: &mut Facts) {
    let mut memory = Buffer::zeroed(2 * TRIED_MAX_BYTES);
    let topic = Topic::Alignment;
    let offset =
        smallest(|bytes| is_taken(file.read_at(&mut memory[..bytes], bytes as u64), bytes));
    facts.tell(
        topic,
        "read_taken_offset_bytes",
        "a read is taken from",
        offset,
        "direct reads of 1, 2, 4, ... bytes at such an offset",
    );
    let address = smallest(|bytes| {
        is_taken(file.read_at(&mut memory[bytes..][..TRIED_MAX_BYTES], 0), TRIED_MAX_BYTES)
    });
    facts.tell(
        topic,
        "read_taken_memory_bytes",
        "memory is taken from",
        address,
        "direct reads into memory at 1, 2, 4, ... bytes behind a page",
    );
}

/// The first accepted size.
fn smallest(mut try_one: impl FnMut(usize) -> io::Result<bool>) -> Result<u64, String> {
    for bytes in sizes() {
        if try_one(bytes).map_err(|error| error.to_string())? {
            return Ok(bytes as u64);
        }
    }
    Err(format!("none up to {TRIED_MAX_BYTES} bytes is taken"))
}

/// A short transfer, at the end of a device, was accepted as well.
fn is_taken(outcome: io::Result<usize>, bytes: usize) -> io::Result<bool> {
    match outcome {
        Ok(moved) => Ok(moved > 0 && moved <= bytes),
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(false),
        Err(error) => Err(error),
    }
}

/// XFS makes a write wait if timestamps are due. `first`, the first block of the file, is therefore
/// rewritten before each try: that updates them, and changes nothing else.
fn is_done_at_once(file: &File, bytes: &[u8], offset: u64, first: &[u8]) -> io::Result<bool> {
    for _ in 0..NOWAIT_TRIES {
        file.write_all_at(first, 0)?;
        match pwritev2(file, &[IoSlice::new(bytes)], offset, ReadWriteFlags::NOWAIT) {
            Ok(_) => return Ok(true),
            Err(Errno::INVAL) => return Ok(false),
            Err(Errno::AGAIN) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(false)
}

/// The direct writes that complete without waiting for a lock or an allocation.
pub fn without_waiting(ground: &RunFile, facts: &mut Facts) -> Result<()> {
    let block = Buffer::zeroed(TRIED_MAX_BYTES);
    let len = block.len() as u64;
    let file = ground.open(OFlags::empty())?;
    file.set_len(0)?;
    file.write_all_at(&block, 0).context("write to the scratch file")?;
    let how = "RWF_NOWAIT, 64 KiB";
    let mut tell = |key, name, offset| {
        let outcome = is_done_at_once(&file, &block, offset, &block);
        facts.tell(Topic::Nowait, key, name, outcome, how);
    };
    tell("nowait_overwrite", "an overwrite is done at once", 0);
    tell("nowait_append", "an append is done at once", len);
    file.set_len(8 * len)?;
    tell("nowait_hole", "a write into a hole is done at once", 4 * len);
    if ground.preallocate(8 * len).is_ok() {
        tell("nowait_unwritten", "a write into unwritten space is done at once", 6 * len);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_that_is_taken() {
        assert_eq!(smallest(|bytes| Ok(bytes >= 512)), Ok(512));
        assert!(smallest(|_| Ok(false)).unwrap_err().contains("none up to 65536"));
        assert!(smallest(|_| Err(io::Error::other("gone"))).unwrap_err().contains("gone"));
        assert!(!is_taken(Err(io::ErrorKind::InvalidInput.into()), 8).unwrap());
        assert!(is_taken(Ok(8), 8).unwrap() && !is_taken(Ok(0), 8).unwrap());
    }
}
