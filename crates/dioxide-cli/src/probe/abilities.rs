//! Tries the abilities of a file system beyond reading and writing, on scratch files.

use super::facts::{Facts, Topic};
use crate::bench::place::{BenchTarget, RunFile};
use crate::sys::{EXTENT_UNWRITTEN, extent_flags};
use anyhow::Result;
use dioxide::Buffer;
use rustix::fs::{
    AtFlags, FallocateFlags, Mode, OFlags, SeekFrom, StatxFlags, XattrFlags, fallocate, fsetxattr,
    ioctl_ficlone, open, seek, statx,
};
use rustix::io::{Errno, IoSlice, ReadWriteFlags, pwritev2};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// A multiple of every file system's block.
const UNIT: u64 = 64 << 10;
/// As long as the library's marker.
const MARKER_BYTES: usize = 64;

/// Modes of fallocate(2), each with an offset in the file. In an order that gives each mode the
/// state that it needs.
const MODES: &[(&str, &str, FallocateFlags, u64)] = &[
    ("fallocate", "allocate", FallocateFlags::empty(), 0),
    ("fallocate_keep_size", "allocate beyond the end", FallocateFlags::KEEP_SIZE, 32),
    (
        "fallocate_punch_hole",
        "punch a hole",
        FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE),
        1,
    ),
    ("fallocate_zero_range", "zero a range", FallocateFlags::ZERO_RANGE, 2),
    // FALLOC_FL_WRITE_ZEROES, Linux 6.17.
    ("fallocate_write_zeroes", "write zeroes", FallocateFlags::from_bits_retain(0x80), 3),
    ("fallocate_unshare", "unshare", FallocateFlags::UNSHARE_RANGE, 4),
    ("fallocate_collapse", "collapse a range", FallocateFlags::COLLAPSE_RANGE, 5),
    ("fallocate_insert", "insert a range", FallocateFlags::INSERT_RANGE, 6),
];

/// Flags of pwritev2(2).
const WRITE_FLAGS: &[(&str, &str, ReadWriteFlags)] = &[
    ("rwf_dsync", "RWF_DSYNC", ReadWriteFlags::DSYNC),
    ("rwf_nowait", "RWF_NOWAIT", ReadWriteFlags::NOWAIT),
    // Linux 6.11.
    ("rwf_atomic", "RWF_ATOMIC", ReadWriteFlags::from_bits_retain(0x40)),
    // Linux 6.14; only for writes through the cache.
    ("rwf_dontcache", "RWF_DONTCACHE", ReadWriteFlags::from_bits_retain(0x80)),
];

/// Tries everything.
pub fn look(place: &BenchTarget, directory: &Path, facts: &mut Facts) -> Result<()> {
    allocate(&place.prepare()?, facts)?;
    map(&place.prepare()?, facts)?;
    keep(place, directory, facts)
}

/// Yes; no; or another failure.
fn worked<T>(outcome: Result<T, Errno>) -> Result<bool, Errno> {
    match outcome {
        Ok(_) => Ok(true),
        Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS | Errno::NOTTY | Errno::XDEV) => {
            Ok(false)
        }
        Err(errno) => Err(errno),
    }
}

fn allocate(ground: &RunFile, facts: &mut Facts) -> Result<()> {
    let file = ground.open_cached()?;
    file.set_len(16 * UNIT)?;
    file.write_all_at(&vec![1; 16 * UNIT as usize], 0)?;
    for &(key, name, mode, at) in MODES {
        let outcome = worked(fallocate(&file, mode, at * UNIT, UNIT));
        facts.tell(
            Topic::Abilities,
            key,
            name,
            outcome,
            format!("fallocate, mode {:#x}", mode.bits()),
        );
    }
    Ok(())
}

/// The block mapping of a file, as the file system reports it.
fn map(ground: &RunFile, facts: &mut Facts) -> Result<()> {
    let topic = Topic::Abilities;
    let file = ground.open_cached()?;
    file.set_len(8 * UNIT)?;
    file.write_all_at(&vec![1; UNIT as usize], 4 * UNIT)?;
    let found = seek(&file, SeekFrom::Data(0)).map(|offset| offset == 4 * UNIT);
    facts.tell(
        topic,
        "seek_hole",
        "reports holes",
        found,
        "lseek, SEEK_DATA in a file with a hole",
    );
    file.set_len(0)?;
    let has_space = fallocate(&file, FallocateFlags::empty(), 0, UNIT).is_ok();
    let flags = extent_flags(&file);
    facts.tell(
        topic,
        "fiemap",
        "maps extents",
        worked(flags.as_ref().map_err(|errno| *errno)),
        "FS_IOC_FIEMAP",
    );
    let unwritten = match flags {
        Ok(_) if !has_space => Err("nothing can be allocated".to_owned()),
        Ok(flags) => {
            Ok(!flags.is_empty() && flags.iter().all(|flags| flags & EXTENT_UNWRITTEN != 0))
        }
        Err(_) => Err("extents are not mapped".to_owned()),
    };
    facts.tell(
        topic,
        "fiemap_unwritten",
        "reports unwritten extents",
        unwritten,
        "FS_IOC_FIEMAP of space from fallocate",
    );
    Ok(())
}

/// Attributes, names, clones.
fn keep(place: &BenchTarget, directory: &Path, facts: &mut Facts) -> Result<()> {
    let topic = Topic::Abilities;
    let (one, other) = (place.scratch()?, place.scratch()?);
    let marked = fsetxattr(&one, dioxide::MARKER_NAME, &[0; MARKER_BYTES], XattrFlags::CREATE);
    facts.tell(
        topic,
        "user_xattr",
        "keeps user attributes",
        worked(marked),
        format!("fsetxattr of user.dioxide, {MARKER_BYTES} bytes"),
    );
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let nameless = match open(directory, flags, Mode::RUSR | Mode::WUSR) {
        Err(Errno::ISDIR) => Ok(false),
        outcome => worked(outcome),
    };
    facts.tell(topic, "tmpfile", "files without a name", nameless, "open, O_TMPFILE");
    one.write_all_at(&vec![1; UNIT as usize], 0)?;
    facts.tell(topic, "reflink", "shares blocks", worked(ioctl_ficlone(&other, &one)), "FICLONE");
    let born = statx(&one, c"", AtFlags::EMPTY_PATH, StatxFlags::BTIME)
        .map(|stat| stat.stx_mask & StatxFlags::BTIME.bits() != 0);
    facts.tell(topic, "birth_time", "keeps the time of birth", born, "statx, STATX_BTIME");
    Ok(())
}

/// Flags of single writes.
pub fn write_flags(ground: &RunFile, facts: &mut Facts) -> Result<()> {
    let block = Buffer::zeroed(UNIT as usize);
    let (direct, cached) = (ground.open(OFlags::empty())?, ground.open_cached()?);
    direct.set_len(0)?;
    direct.write_all_at(&block, 0)?;
    let atomic_bytes =
        facts.number("atomic_write_unit_min_bytes").filter(|bytes| *bytes > 0).unwrap_or(4096);
    for &(key, name, flag) in WRITE_FLAGS {
        let (file, bytes) = match key {
            "rwf_atomic" => (&direct, &block[..atomic_bytes as usize]),
            "rwf_dontcache" => (&cached, &block[..]),
            _ => (&direct, &block[..]),
        };
        let outcome = match pwritev2(file, &[IoSlice::new(bytes)], 0, flag) {
            // It is supported, and would wait.
            Err(Errno::AGAIN) => Ok(true),
            outcome => worked(outcome),
        };
        let how = format!(
            "pwritev2 of {} bytes over written blocks, flag {:#x}",
            bytes.len(),
            flag.bits()
        );
        facts.tell(Topic::IoUring, key, name, outcome, how);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_is_no_and_failed_is_unknown() {
        assert_eq!(worked(Ok(())), Ok(true));
        assert_eq!(worked::<()>(Err(Errno::OPNOTSUPP)), Ok(false));
        assert_eq!(worked::<()>(Err(Errno::NOSPC)), Err(Errno::NOSPC));
    }
}
