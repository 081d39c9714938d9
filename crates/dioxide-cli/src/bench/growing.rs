//! Which appends met a growth of their file, and how long the longest of them took. Shared by all threads.
//!
//! On a file that began empty, the space that the library has handed out is what it counts as grown. The kernel's size
//! is above that from the end of the allocation until the library, having made it stable, hands it out.
//! So an append met a growth if the size, when it ends, is above what was handed out when it began. An append that the
//! allocation itself holds up ends after it, and is found like the others.
//!
//! To ask at every append would slow down what is measured. So what was handed out is noted every
//! [`NOTED_EVERY`] appends; an append that begins between a growth and the next note may be taken for one that met it.

use super::place::Ground;
use anyhow::Result;
use dioxide::{File, Growth};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const NOTED_EVERY: u64 = 64;

/// See the module.
pub struct GrowthWatch<'a> {
    file: &'a File,
    ground: &'a Ground,
    handed_out: AtomicU64,
    longest_ns: AtomicU64,
}

/// What a run saw of growth.
#[derive(Clone, Copy, Debug)]
pub struct Growing {
    /// Steps that were completed.
    pub growths: u64,
    /// The longest append that met one.
    pub clat_max: Duration,
}

impl<'a> GrowthWatch<'a> {
    /// Of an empty file, and the ground that it was opened on.
    pub fn new(file: &'a File, ground: &'a Ground) -> Self {
        Self { file, ground, handed_out: AtomicU64::new(0), longest_ns: AtomicU64::new(0) }
    }

    /// Appends. Only what is longer than anything before costs another look at the size.
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

    /// None where the file does not grow ahead. To be asked for before the close.
    pub fn result(&self) -> Option<Growing> {
        let grows = self.file.growth() != Growth::None;
        let clat_max = Duration::from_nanos(self.longest_ns.load(Relaxed));
        grows.then(|| Growing { growths: self.file.stats().growths, clat_max })
    }
}
