//! The extents of a file, by FIEMAP. SEEK_HOLE is unsuitable: it reports cached pages as data.

use crate::rules::recovery::Extent;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

const BATCH: usize = 256;
const FIEMAP_FLAG_SYNC: u32 = 1;
const EXTENT_LAST: u32 = 0x1;
const EXTENT_UNWRITTEN: u32 = 0x800;

/// `struct fiemap_extent` of linux/fiemap.h.
#[derive(Clone, Copy)]
#[repr(C)]
struct RawExtent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

/// `struct fiemap` with room for a batch.
#[repr(C)]
struct Request {
    start: u64,
    length: u64,
    flags: u32,
    mapped_extents: u32,
    extent_count: u32,
    reserved: u32,
    extents: [RawExtent; BATCH],
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

fn map(fd: BorrowedFd<'_>, start: u64) -> io::Result<Box<Request>> {
    // _IOWR('f', 11, struct fiemap), with the size of the 32 bytes before the extents.
    const FS_IOC_FIEMAP: libc::Ioctl = 0xC020_660B_u32 as libc::Ioctl;
    // 14 KiB, too large for a small stack: it is built on the heap.
    let mut request: Box<Request> = zeroed();
    request.start = start;
    request.length = u64::MAX - start;
    request.flags = FIEMAP_FLAG_SYNC;
    request.extent_count = BATCH as u32;
    // SAFETY: the request has the kernel's layout, and contains the capacity of its extent array.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), FS_IOC_FIEMAP, &mut *request) };
    if result == 0 { Ok(request) } else { Err(io::Error::last_os_error()) }
}

fn zeroed() -> Box<Request> {
    let layout = std::alloc::Layout::new::<Request>();
    // SAFETY: the layout is not empty. The memory comes from the global allocator with that layout.
    // Zeros are a valid request: it has only numbers.
    unsafe {
        let memory = std::alloc::alloc_zeroed(layout).cast::<Request>();
        if memory.is_null() {
            std::alloc::handle_alloc_error(layout);
        }
        Box::from_raw(memory)
    }
}
