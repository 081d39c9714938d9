//! Owned memory aligned for direct I/O, and segments: raw views of a caller's bytes.

use crate::sync::Mutex;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::Arc;

/// Enough for every file system and device: direct I/O never requires more than a page.
const ALIGN: usize = 4096;

/// Zero-filled memory of fixed length, aligned to 4096 bytes, which every device and file system
/// accepts for direct I/O. Dereferences to `[u8]`.
///
/// A buffer from the pool of a [`Queue`](crate::Queue) returns to it on drop.
pub struct Buffer {
    start: NonNull<u8>,
    len: usize,
    /// The pool that owns the memory, if the buffer does not.
    pool: Option<Arc<Pool>>,
}

// SAFETY: the buffer owns its memory, and exposes it only as `&[u8]` and `&mut [u8]`.
unsafe impl Send for Buffer {}
// SAFETY: as above; shared access is read-only.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// `len` bytes of zeros.
    ///
    /// # Panics
    ///
    /// If `len` overflows `isize` when rounded up to 4096. Out of memory aborts, as in `Vec`.
    pub fn zeroed(len: usize) -> Self {
        Self::try_zeroed(len).unwrap_or_else(|| handle_alloc_error(Self::layout(len)))
    }

    /// As [`zeroed`](Self::zeroed), or None if there is no memory.
    ///
    /// # Panics
    ///
    /// If `len` overflows `isize` when rounded up to 4096.
    pub fn try_zeroed(len: usize) -> Option<Self> {
        // SAFETY: the layout has a size above zero.
        let start = NonNull::new(unsafe { alloc_zeroed(Self::layout(len)) })?;
        Some(Self { start, len, pool: None })
    }

    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len.max(1), ALIGN).expect("buffer length overflows isize")
    }
}

impl From<&[u8]> for Buffer {
    /// An aligned copy.
    fn from(bytes: &[u8]) -> Self {
        let mut buffer = Self::zeroed(bytes.len());
        buffer.copy_from_slice(bytes);
        buffer
    }
}

impl Clone for Buffer {
    fn clone(&self) -> Self {
        Self::from(&**self)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(pool) = &self.pool {
            return pool.take_back(self.start);
        }
        // SAFETY: allocated in `zeroed` with this layout, and freed once.
        unsafe { dealloc(self.start.as_ptr(), Self::layout(self.len)) }
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `start` is valid for `len` initialised bytes as long as `self` lives.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes it the only access.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for Buffer {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Buffer").field("len", &self.len).finish_non_exhaustive()
    }
}

/// Buffers of one length in one allocation, so that the kernel can register it once.
pub(crate) struct Pool {
    memory: Buffer,
    buffer_bytes: usize,
    /// The distance in bytes from the start of one buffer to the next.
    stride: usize,
    /// The numbers of the free buffers.
    free: Mutex<Vec<usize>>,
}

impl Pool {
    /// Zeroed memory for `count` buffers of `len` bytes.
    pub fn new(count: usize, len: usize) -> Arc<Self> {
        let stride = len.max(1).next_multiple_of(ALIGN);
        let bytes = count.checked_mul(stride).expect("pool length overflows");
        // The first one first, so that consecutive buffers are adjacent.
        let free = Mutex::new((0..count).rev().collect());
        Arc::new(Self { memory: Buffer::zeroed(bytes), buffer_bytes: len, stride, free })
    }

    /// Takes a free buffer, with the content of its last use.
    pub fn take(self: &Arc<Self>) -> Option<Buffer> {
        let number = self.free.lock().pop()?;
        // SAFETY: below `count`, so the sum stays within the memory.
        let start = unsafe { self.memory.start.add(number * self.stride) };
        Some(Buffer { start, len: self.buffer_bytes, pool: Some(self.clone()) })
    }

    fn take_back(&self, start: NonNull<u8>) {
        let number = (start.addr().get() - self.memory.start.addr().get()) / self.stride;
        self.free.lock().push(number);
    }

    /// The address and length of the whole memory, including taken buffers. Those are mutably
    /// borrowed, so a reference to the whole must never exist.
    pub fn memory(&self) -> Segment {
        Segment::lent(std::ptr::slice_from_raw_parts(self.memory.start.as_ptr(), self.memory.len))
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("buffer_bytes", &self.buffer_bytes).finish_non_exhaustive()
    }
}

/// The memory of an operation in a queue.
#[derive(Debug)]
pub(crate) enum Memory {
    /// It came with the operation, and returns with its completion.
    Own(Buffer),
    /// Its owner keeps it in place until the operation completes.
    Lent(Segment),
}

impl Memory {
    /// Returns the buffer that came with the operation.
    pub fn into_buffer(self) -> Option<Buffer> {
        match self {
            Self::Own(buffer) => Some(buffer),
            Self::Lent(_) => None,
        }
    }
}

impl From<Buffer> for Memory {
    fn from(buffer: Buffer) -> Self {
        Self::Own(buffer)
    }
}

impl Deref for Memory {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Self::Own(buffer) => buffer,
            // SAFETY: the bytes stay in place until the operation completes, and the operation has
            // this value until then.
            Self::Lent(segment) => unsafe {
                std::slice::from_raw_parts(segment.start(), segment.0.iov_len)
            },
        }
    }
}

/// Only for operations that read into their memory: lent memory is writable for them.
impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Own(buffer) => buffer,
            // SAFETY: as in `deref`; the owner of the bytes gives the operation exclusive access.
            Self::Lent(segment) => unsafe {
                std::slice::from_raw_parts_mut(segment.start(), segment.0.iov_len)
            },
        }
    }
}

/// A value that stays in place while its bytes are lent.
pub(crate) struct Kept<M>(UnsafeCell<Option<M>>);

// SAFETY: a shared `Kept` gives access to its value only by `take`, whose caller then has it alone.
unsafe impl<M: Send> Sync for Kept<M> {}

impl<M> Kept<M> {
    /// Stores a value.
    pub fn new(value: M) -> Self {
        Self(UnsafeCell::new(Some(value)))
    }

    /// Lends bytes of the value at its final address: until `take`, nothing else accesses it. None
    /// if it was taken.
    pub fn lend(&mut self, bytes: fn(&mut M) -> Segment) -> Option<Segment> {
        self.0.get_mut().as_mut().map(bytes)
    }

    /// Takes the value out.
    ///
    /// # Safety
    ///
    /// The lent bytes are no longer in use, and no other thread calls `take` at the same time.
    pub unsafe fn take(&self) -> Option<M> {
        // SAFETY: as the caller promises.
        unsafe { (*self.0.get()).take() }
    }
}

/// The bytes of one operation as a request carries them: a view without a lifetime. Its maker keeps
/// the bytes in place and unchanged until the operation completes. A blocking caller does so by not
/// returning.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Segment(libc::iovec);

// SAFETY: a segment is an address without affinity to a thread. Only a backend dereferences it,
// while the owner of the bytes is blocked or has given them away.
unsafe impl Send for Segment {}
// SAFETY: as above; only the backend that performs the operation writes through one.
unsafe impl Sync for Segment {}

impl Segment {
    /// A read-only view of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self::lent(bytes)
    }

    /// A writable view of `bytes`.
    pub fn of_mut(bytes: &mut [u8]) -> Self {
        Self(libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() })
    }

    /// A view of bytes given by address; writable if the owner may write.
    pub(crate) fn lent(bytes: *const [u8]) -> Self {
        Self(libc::iovec { iov_base: bytes.cast_mut().cast(), iov_len: bytes.len() })
    }

    /// The address range of the bytes.
    pub(crate) fn addresses(&self) -> Range<usize> {
        let start = self.0.iov_base.addr();
        start..start + self.0.iov_len
    }

    /// The first byte, for the kernel.
    pub(crate) fn start(&self) -> *mut u8 {
        self.0.iov_base.cast()
    }

    /// Joins both views, if `next` follows in memory.
    pub(crate) fn joined(&self, next: &Segment) -> Option<Self> {
        let follows = self.addresses().end == next.addresses().start;
        follows.then_some(Self(libc::iovec { iov_len: self.0.iov_len + next.0.iov_len, ..self.0 }))
    }

    /// Length in bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.0.iov_len as u64
    }

    /// A view of a range of the bytes.
    pub fn part(&self, part: Range<u64>) -> Self {
        assert!(part.start <= part.end && part.end <= self.len());
        Self(libc::iovec {
            iov_base: self.0.iov_base.cast::<u8>().wrapping_add(part.start as usize).cast(),
            iov_len: (part.end - part.start) as usize,
        })
    }

    /// The segments as iovecs for the kernel.
    pub(crate) fn as_iovecs(segments: &[Segment]) -> &[libc::iovec] {
        // SAFETY: `Segment` is a transparent wrapper of `iovec`.
        unsafe { std::slice::from_raw_parts(segments.as_ptr().cast(), segments.len()) }
    }

    /// Passes the bytes to `look`, which copies them, while the operation is being performed.
    pub(crate) fn show<R>(&self, look: impl FnOnce(&[u8]) -> R) -> R {
        // SAFETY: the maker of the segment keeps the bytes in place and unchanged until the
        // operation completes. They are read only while it is being performed.
        let bytes =
            unsafe { std::slice::from_raw_parts(self.0.iov_base.cast::<u8>(), self.0.iov_len) };
        look(bytes)
    }

    /// Copies bytes into segments made by [`of_mut`](Self::of_mut), in order. The segments have
    /// room for them.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn scatter(into: &[Segment], mut from: &[u8]) {
        for segment in into {
            let (here, rest) = from.split_at(from.len().min(segment.0.iov_len));
            segment.fill(|bytes| bytes[..here.len()].copy_from_slice(here));
            from = rest;
        }
        assert!(from.is_empty(), "there is no room for it");
    }

    /// Passes the bytes to `fill`, which writes them. For backends that copy, and only for a view
    /// made by [`of_mut`](Self::of_mut). Its owner reads the bytes only after the operation
    /// completes.
    pub(crate) fn fill<R>(&self, fill: impl FnOnce(&mut [u8]) -> R) -> R {
        // SAFETY: as in `show`. The view was made of an exclusive borrow, and its maker gave the
        // bytes away until the operation completes, so this is the only access.
        let bytes =
            unsafe { std::slice::from_raw_parts_mut(self.0.iov_base.cast::<u8>(), self.0.iov_len) };
        fill(bytes)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Fails under Miri if a reference to the whole memory is made meanwhile: it would end the
    /// borrows of the buffers.
    #[test]
    fn the_memory_of_a_pool_is_told_while_its_buffers_are_borrowed() {
        let pool = Pool::new(2, 5000);
        let (mut one, mut two) =
            (pool.take().expect("there are two"), pool.take().expect("there are two"));
        let (first, second): (&mut [u8], &mut [u8]) = (&mut one, &mut two);
        let all = pool.memory();
        first[0] = 1;
        second[4999] = 2;
        assert_eq!(all.len(), 4 * ALIGN as u64);
        assert_eq!(all.addresses().start, first.as_ptr().addr());
        assert!(all.addresses().contains(&second.as_ptr_range().end.addr()));
        assert_eq!((one[0], two[4999], one[4999]), (1, 2, 0));
    }
}
