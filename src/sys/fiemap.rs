//! The extents of a file, by FIEMAP. SEEK_HOLE is unsuitable: it reports cached pages as data.

use crate::rules::committed::MappedExtent;
use crate::rules::recovery::Extent;
use smallvec::SmallVec;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};

const BATCH: usize = 256;
const FIEMAP_FLAG_SYNC: u32 = 1;
const EXTENT_LAST: u32 = 0x1;
const EXTENT_UNWRITTEN: u32 = 0x800;
const EXTENT_MERGED: u32 = 0x1000;

/// `struct fiemap_extent` of linux/fiemap.h.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct RawExtent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

/// `struct fiemap` with room for `N` extents.
#[repr(C)]
struct FiemapRequest<const N: usize> {
    start: u64,
    length: u64,
    flags: u32,
    mapped_extents: u32,
    extent_count: u32,
    reserved: u32,
    extents: [RawExtent; N],
}

/// Returns the allocated extents that end above `from`, in order.
pub(crate) fn extents(fd: BorrowedFd<'_>, from: u64) -> io::Result<Vec<Extent>> {
    let mut found: Vec<Extent> = Vec::new();
    loop {
        let start = found.last().map_or(from, |extent| extent.end);
        let request = map(fd, start)?;
        let batch = &request.extents[..request.mapped_extents as usize];
        found.extend(batch.iter().map(|raw| Extent {
            start: raw.logical,
            end: raw.logical + raw.length,
            written: raw.flags & EXTENT_UNWRITTEN == 0,
        }));
        if batch.last().is_none_or(|raw| raw.flags & EXTENT_LAST != 0) {
            return Ok(found);
        }
    }
}

/// Looks at the first `N` extents of the range. Returns where that ended, and the places where the
/// file has written blocks of its own. Writes cached pages back before: that may move blocks, and
/// direct writes may leave some.
pub(crate) fn places<const N: usize>(
    fd: BorrowedFd<'_>,
    range: Range<u64>,
) -> io::Result<(u64, SmallVec<[MappedExtent; 1]>)> {
    let mut request = FiemapRequest::<N> {
        start: range.start,
        length: range.end - range.start,
        flags: FIEMAP_FLAG_SYNC,
        mapped_extents: 0,
        extent_count: N as u32,
        reserved: 0,
        extents: [RawExtent::default(); N],
    };
    fill(fd, &mut request)?;
    let found = &request.extents[..request.mapped_extents as usize];
    let last = found.last().filter(|_| found.len() == N);
    let end = last.map_or(range.end, |last| range.end.min(last.logical + last.length));
    Ok((end, found.iter().filter_map(|raw| raw.place_in(&range)).collect()))
}

impl RawExtent {
    /// The part in the range, if it is written and belongs to this file alone.
    fn place_in(&self, range: &Range<u64>) -> Option<MappedExtent> {
        let Self { logical: start, physical, .. } = *self;
        let is_plain = self.flags & !(EXTENT_LAST | EXTENT_MERGED) == 0;
        let place = MappedExtent { start, end: start + self.length, physical };
        if is_plain { place.part_in(range) } else { None }
    }
}

fn map(fd: BorrowedFd<'_>, start: u64) -> io::Result<Box<FiemapRequest<BATCH>>> {
    // 14 KiB, too large for a small stack: it is built on the heap.
    let mut request: Box<FiemapRequest<BATCH>> = zeroed();
    request.start = start;
    request.length = u64::MAX - start;
    request.flags = FIEMAP_FLAG_SYNC;
    request.extent_count = BATCH as u32;
    fill(fd, &mut request)?;
    Ok(request)
}

fn fill<const N: usize>(fd: BorrowedFd<'_>, request: &mut FiemapRequest<N>) -> io::Result<()> {
    // _IOWR('f', 11, struct fiemap), with the size of the 32 bytes before the extents.
    const FS_IOC_FIEMAP: libc::Ioctl = 0xC020_660B_u32 as libc::Ioctl;
    // SAFETY: the request has the kernel's layout, and contains the capacity of its extent array.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), FS_IOC_FIEMAP, request) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn zeroed() -> Box<FiemapRequest<BATCH>> {
    let layout = std::alloc::Layout::new::<FiemapRequest<BATCH>>();
    // SAFETY: the layout is not empty. The memory comes from the global allocator with that layout.
    // Zeros are a valid request: it has only numbers.
    unsafe {
        let memory = std::alloc::alloc_zeroed(layout).cast::<FiemapRequest<BATCH>>();
        if memory.is_null() {
            std::alloc::handle_alloc_error(layout);
        }
        Box::from_raw(memory)
    }
}
