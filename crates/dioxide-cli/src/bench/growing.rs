//! Detects appends that met a growth of their file, and the longest of them. Shared by all threads.
//!
//! For a file that began empty, the library's count of growth is the space that it has released to
//! appends. The kernel's size exceeds that from the end of the allocation until the space is stable
//! and released. So an append met a growth if the size at its end exceeds the space released at its
//! begin. An append that waits for the allocation ends after it, and is detected as well.
//!
//! A check at every append would slow down the measurement. The released space is therefore read
//! every [`NOTED_EVERY`] appends. An append that begins between a growth and the next reading may
//! be counted as one that met it.

use super::place::RunFile;
use anyhow::Result;
use dioxide::{File, Growth};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const NOTED_EVERY: u64 = 64;

/// Watches the growth of one file.
pub struct GrowthWatch<'a> {
    file: &'a File,
    ground: &'a RunFile,
    handed_out: AtomicU64,
    longest_ns: AtomicU64,
}

/// The growth in a run.
#[derive(Clone, Copy, Debug)]
pub struct Growing {
    /// Completed steps.
    pub growths: u64,
    /// The longest append that met one.
    pub clat_max: Duration,
}

impl<'a> GrowthWatch<'a> {
    /// For an empty file.
    pub fn new(file: &'a File, ground: &'a RunFile) -> Self {
        Self { file, ground, handed_out: AtomicU64::new(0), longest_ns: AtomicU64::new(0) }
    }

    /// Appends. Reads the size only after a new maximum of latency.
    pub fn append(&self, block: &[u8]) -> Result<u64> {
        let handed_out = self.handed_out.load(Relaxed);
        let submitted = Instant::now();
        let offset = self.file.append(block)?;
        let took_ns = submitted.elapsed().as_nanos() as u64;
        if took_ns > self.longest_ns.load(Relaxed) && self.ground.size_bytes()? > handed_out {
            self.longest_ns.fetch_max(took_ns, Relaxed);
        }
        let len = block.len() as u64;
        if offset % (NOTED_EVERY * len) < len {
            self.handed_out.fetch_max(self.file.stats().grown_bytes, Relaxed);
        }
        Ok(offset)
    }

    /// None if the file is not preallocated. Must be called before the close.
    pub fn result(&self) -> Option<Growing> {
        let grows = self.file.growth() != Growth::None;
        let clat_max = Duration::from_nanos(self.longest_ns.load(Relaxed));
        grows.then(|| Growing { growths: self.file.stats().growths, clat_max })
    }
}
