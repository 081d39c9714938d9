//! A scratch file prepared for one kind of write, and the offset of the next one. Shared by the
//! threads of a crew.

use super::document::Target;
use crate::bench::place::{BenchTarget, RunFile};
use anyhow::{Context, Result};
use dioxide::Buffer;
use fastrand::Rng;
use rustix::fs::OFlags;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The size of every write: no file system in use has larger blocks by default.
pub const BLOCK_BYTES: u64 = 4096;
/// More than one slice of time writes.
const SITE_BYTES: u64 = 64 << 20;
/// The free space that all sites together need.
pub const ROOM_BYTES: u64 = 6 * SITE_BYTES;

/// A prepared file.
pub struct Site {
    pub target: Target,
    file: Below,
    /// The size of a partial write, and its offset in its block.
    part_bytes: u64,
    /// Writes since the file was prepared.
    count: AtomicU64,
}

enum Below {
    Scratch(RunFile),
    /// Read only, this number of bytes.
    Device(File, u64),
}

/// An open file of a site.
pub struct Opened<'a> {
    site: &'a Site,
    file: File,
    memory: Buffer,
    rng: Rng,
}

impl Site {
    /// Prepares a file for this kind of write. None if the file system cannot.
    pub fn new(place: &BenchTarget, target: Target, offset_bytes: u64) -> Result<Option<Self>> {
        let ground = place.prepare()?;
        match target {
            Target::Overwrite => ground.fill(SITE_BYTES)?,
            Target::PartialOverwrite if offset_bytes >= BLOCK_BYTES => return Ok(None),
            Target::PartialOverwrite => ground.fill(SITE_BYTES)?,
            Target::Unwritten if ground.preallocate(BLOCK_BYTES).is_err() => return Ok(None),
            Target::Unwritten | Target::Hole | Target::Append | Target::Read => {}
        }
        let file = Below::Scratch(ground);
        Ok(Some(Self { target, file, part_bytes: offset_bytes, count: AtomicU64::new(0) }))
    }

    /// Reads of a device.
    pub fn of_device(device: File, size_bytes: u64) -> Self {
        let file = Below::Device(device, size_bytes);
        Self { target: Target::Read, file, part_bytes: BLOCK_BYTES, count: AtomicU64::new(0) }
    }

    /// Restores the initial state before each slice of time.
    pub fn lay_out(&self) -> Result<()> {
        self.count.store(0, Relaxed);
        let Below::Scratch(ground) = &self.file else { return Ok(()) };
        match self.target {
            Target::Overwrite | Target::PartialOverwrite | Target::Read => return Ok(()),
            Target::Append => ground.open_cached()?.set_len(0)?,
            Target::Hole => {
                let file = ground.open_cached()?;
                file.set_len(0)?;
                file.set_len(SITE_BYTES)?;
            }
            Target::Unwritten => {
                ground.open_cached()?.set_len(0)?;
                ground.preallocate(SITE_BYTES).context("fallocate")?;
            }
        }
        Ok(ground.open_cached()?.sync_all()?)
    }

    fn size_bytes(&self) -> u64 {
        match self.file {
            Below::Scratch(_) => SITE_BYTES,
            Below::Device(_, bytes) => bytes,
        }
    }

    /// For one thread, with a unique number.
    pub fn open(&self, flags: OFlags, thread: u64) -> Result<Opened<'_>> {
        let file = match &self.file {
            Below::Scratch(ground) => ground.open(flags)?,
            Below::Device(device, _) => device.try_clone()?,
        };
        let memory = Buffer::zeroed(BLOCK_BYTES as usize);
        Ok(Opened { site: self, file, memory, rng: Rng::with_seed(thread) })
    }
}

impl Opened<'_> {
    /// Performs the next operation. False without space for it.
    pub fn step(&mut self) -> Result<bool> {
        let site = self.site;
        let (offset, bytes) = match site.target {
            Target::Overwrite | Target::Read => (self.any_block(), BLOCK_BYTES),
            Target::PartialOverwrite => (self.any_block() + site.part_bytes, site.part_bytes),
            Target::Unwritten | Target::Hole | Target::Append => {
                (site.count.fetch_add(1, Relaxed) * BLOCK_BYTES, BLOCK_BYTES)
            }
        };
        if offset + bytes > site.size_bytes() {
            return Ok(false);
        }
        let memory = &mut self.memory[..bytes as usize];
        match site.target {
            Target::Read => self.file.read_exact_at(memory, offset),
            _ => self.file.write_all_at(memory, offset),
        }
        .with_context(|| format!("{bytes} bytes at {offset}"))?;
        Ok(true)
    }

    /// A random offset.
    fn any_block(&mut self) -> u64 {
        self.rng.u64(..(self.site.size_bytes() / BLOCK_BYTES).max(1)) * BLOCK_BYTES
    }

    pub fn file(&self) -> &File {
        &self.file
    }
}
