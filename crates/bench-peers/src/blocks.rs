//! The written blocks: aligned, one for each writer, with unique content.

use crate::bench::stamp::fill_as_job;
use dioxide::Buffer;
use std::ops::Deref;

/// A block as libraries take it: moved into a write and returned.
pub struct Block(Buffer);

impl Block {
    pub fn of_job(job: usize, bs_bytes: u64) -> Self {
        let mut buffer = Buffer::zeroed(bs_bytes as usize);
        fill_as_job(job as u32, &mut buffer);
        Self(buffer)
    }
}

impl Deref for Block {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl compio::buf::IoBuf for Block {
    fn as_init(&self) -> &[u8] {
        self
    }
}

// SAFETY: the memory is on the heap, so it stays in place while the block moves. All of it is
// initialised.
unsafe impl monoio::buf::IoBuf for Block {
    fn read_ptr(&self) -> *const u8 {
        self.as_ptr()
    }

    fn bytes_init(&self) -> usize {
        self.len()
    }
}

// SAFETY: as above.
unsafe impl tokio_uring::buf::IoBuf for Block {
    fn stable_ptr(&self) -> *const u8 {
        self.as_ptr()
    }

    fn bytes_init(&self) -> usize {
        self.len()
    }

    fn bytes_total(&self) -> usize {
        self.len()
    }
}

// SAFETY: as above; the block is the only owner of its memory. Registered blocks must be mutable.
unsafe impl tokio_uring::buf::IoBufMut for Block {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.0.as_mut_ptr()
    }

    // All of it is initialised.
    unsafe fn set_init(&mut self, _: usize) {}
}
