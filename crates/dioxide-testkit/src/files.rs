//! Kernel interfaces that tests use on files: extents, the marker attribute, caches, the shutdown
//! ioctl. And copies of programs that tests run.

use std::ffi::{c_int, c_ulong};
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::Path;

use rustix::fs::{SeekFrom, XattrFlags};
use rustix::io::Errno;

use crate::command;

/// The attribute in which dioxide keeps its marker.
pub const MARKER: &str = "user.dioxide";

/// A mapped range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Offset in the file, in bytes.
    pub start: u64,
    /// Its length in bytes.
    pub len: u64,
    /// Allocated, but reads as zeros.
    pub unwritten: bool,
}

/// The file's extents in order, from FIEMAP. Adjacent extents of one kind are joined, because the
/// file system's own splits (ext4: every 128 MiB) mean nothing to a test.
///
/// Without FIEMAP (tmpfs) they come from SEEK_DATA and SEEK_HOLE: up to the file size, without
/// unwritten extents.
pub fn extents(path: impl AsRef<Path>) -> io::Result<Vec<Extent>> {
    let file = File::open(path)?;
    match mapped(&file) {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(sought(&file)?),
        result => result,
    }
}

/// Copies a program, by a process of its own. A copy by this process could be "Text file busy": a
/// child that another test just forked inherits the descriptor that writes the copy.
pub fn install_program(from: impl AsRef<Path>, to: &Path) -> io::Result<()> {
    let args = ["-m".as_ref(), "755".as_ref(), from.as_ref().as_os_str(), to.as_os_str()];
    command::run(command::TOOL_LIMIT, "install", args).map(drop)
}

/// Writes a program with the content `text`, as [`install_program`] copies one.
pub fn install_script(text: &str, to: &Path) -> io::Result<()> {
    let draft = to.with_extension("draft");
    fs::write(&draft, text)?;
    install_program(&draft, to)?;
    fs::remove_file(draft)
}

/// The device address range, in bytes, of the longest extent of a file. Not for btrfs, which
/// reports logical addresses.
pub fn longest_piece(path: impl AsRef<Path>) -> io::Result<Range<u64>> {
    let map = Fiemap::read(&File::open(path)?, 0)?;
    let longest = map.found().iter().max_by_key(|found| found.length);
    let longest = longest.ok_or_else(|| io::Error::other("the file has no extents"))?;
    Ok(longest.physical..longest.physical + longest.length)
}

fn sought(file: &File) -> rustix::io::Result<Vec<Extent>> {
    let mut extents = Vec::new();
    let mut end = 0;
    loop {
        let start = match rustix::fs::seek(file, SeekFrom::Data(end)) {
            Err(Errno::NXIO) => return Ok(extents),
            start => start?,
        };
        end = rustix::fs::seek(file, SeekFrom::Hole(start))?;
        extents.push(Extent { start, len: end - start, unwritten: false });
    }
}

fn mapped(file: &File) -> io::Result<Vec<Extent>> {
    let mut joined = Vec::new();
    let mut start = 0;
    loop {
        let map = Fiemap::read(file, start)?;
        for found in map.found() {
            start = found.logical + found.length;
            join(&mut joined, found.to_extent());
        }
        if map.is_last() {
            return Ok(joined);
        }
    }
}

fn join(extents: &mut Vec<Extent>, next: Extent) {
    match extents.last_mut() {
        Some(last) if last.start + last.len == next.start && last.unwritten == next.unwritten => {
            last.len += next.len;
        }
        _ => extents.push(next),
    }
}

const FS_IOC_FIEMAP: c_ulong = 0xC020_660B;
/// btrfs marks an extent as written some time after the write returned, unless FIEMAP syncs.
const FIEMAP_FLAG_SYNC: u32 = 1;
const FIEMAP_EXTENT_LAST: u32 = 0x1;
const FIEMAP_EXTENT_UNWRITTEN: u32 = 0x800;
const BATCH: usize = 128;

#[repr(C)]
struct Fiemap {
    start: u64,
    length: u64,
    flags: u32,
    mapped_extents: u32,
    extent_count: u32,
    reserved: u32,
    extents: [FiemapExtent; BATCH],
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct FiemapExtent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

impl FiemapExtent {
    fn to_extent(self) -> Extent {
        let unwritten = self.flags & FIEMAP_EXTENT_UNWRITTEN != 0;
        Extent { start: self.logical, len: self.length, unwritten }
    }
}

impl Fiemap {
    fn read(file: &File, start: u64) -> io::Result<Fiemap> {
        let mut map = Fiemap {
            start,
            length: u64::MAX - start,
            flags: FIEMAP_FLAG_SYNC,
            mapped_extents: 0,
            extent_count: BATCH as u32,
            reserved: 0,
            extents: [FiemapExtent::default(); BATCH],
        };
        // SAFETY: the kernel writes at most `extent_count` extents, and there is room for them.
        let result = unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FIEMAP, &mut map) };
        if result == 0 { Ok(map) } else { Err(io::Error::last_os_error()) }
    }

    fn found(&self) -> &[FiemapExtent] {
        &self.extents[..self.mapped_extents as usize]
    }

    fn is_last(&self) -> bool {
        self.found().last().is_none_or(|extent| extent.flags & FIEMAP_EXTENT_LAST != 0)
    }
}

/// Sets the marker attribute.
pub fn set_marker(path: impl AsRef<Path>, value: &[u8]) -> io::Result<()> {
    Ok(rustix::fs::setxattr(path.as_ref(), MARKER, value, XattrFlags::empty())?)
}

/// The marker attribute, if the file has one.
pub fn marker(path: impl AsRef<Path>) -> io::Result<Option<Vec<u8>>> {
    let mut value = vec![0; 64 << 10];
    match rustix::fs::getxattr(path.as_ref(), MARKER, &mut value) {
        Ok(len) => Ok(Some(value[..len].to_vec())),
        Err(Errno::NODATA) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// Removes the marker attribute.
pub fn remove_marker(path: impl AsRef<Path>) -> io::Result<()> {
    Ok(rustix::fs::removexattr(path.as_ref(), MARKER)?)
}

/// Writes everything that the file system of `path` has in memory. A sync of all file systems would
/// meet the faults of other trials, and wait for their disks.
pub fn sync_file_system(path: impl AsRef<Path>) -> io::Result<()> {
    Ok(rustix::fs::syncfs(File::open(path)?)?)
}

/// Lets the kernel write and forget the blocks of `device` that it has in memory, for example
/// because the disk below has changed. The kernel does so by itself when the last program closes
/// the device, but a program beside this one may have it open.
pub fn forget_cached(device: &Path) -> io::Result<()> {
    let args = ["--flushbufs".as_ref(), device];
    command::run(command::TOOL_LIMIT, "blockdev", args).map(drop)
}

/// Shuts down the file system of `path` at once without flushing its log, as a crash would.
///
/// Only for a file system of the test's own ([`crate::volume::Volume`]): nothing works on it until
/// it is mounted again.
pub fn shutdown(path: impl AsRef<Path>) -> io::Result<()> {
    // EXT4_IOC_SHUTDOWN and XFS_IOC_GOINGDOWN have the same number and the same flag.
    const SHUTDOWN: c_ulong = 0x8004_587D;
    const NO_LOG_FLUSH: u32 = 2;
    let dir = File::open(path)?;
    // SAFETY: the ioctl only reads a u32.
    let result: c_int = unsafe { libc::ioctl(dir.as_raw_fd(), SHUTDOWN, &NO_LOG_FLUSH) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
