//! A scratch file prepared for one kind of write, and the offset of the next one. Shared by the
//! threads of a crew.

use super::document::WriteTarget;
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
    pub target: WriteTarget,
    file: SiteFile,
    /// The size of a partial write, and its offset in its block.
    part_bytes: u64,
    /// Writes since the file was prepared.
    count: AtomicU64,
}

enum SiteFile {
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
    pub fn new(
        place: &BenchTarget,
        target: WriteTarget,
        offset_bytes: u64,
    ) -> Result<Option<Self>> {
        let ground = place.prepare()?;
        match target {
            WriteTarget::Overwrite => ground.fill(SITE_BYTES)?,
            WriteTarget::PartialOverwrite if offset_bytes >= BLOCK_BYTES => return Ok(None),
            WriteTarget::PartialOverwrite => ground.fill(SITE_BYTES)?,
            WriteTarget::Unwritten if ground.preallocate(BLOCK_BYTES).is_err() => return Ok(None),
            WriteTarget::Unwritten
            | WriteTarget::Hole
            | WriteTarget::Append
            | WriteTarget::Read => {}
        }
        let file = SiteFile::Scratch(ground);
        Ok(Some(Self { target, file, part_bytes: offset_bytes, count: AtomicU64::new(0) }))
    }

    /// Reads of a device.
    pub fn of_device(device: File, size_bytes: u64) -> Self {
        let file = SiteFile::Device(device, size_bytes);
        Self { target: WriteTarget::Read, file, part_bytes: BLOCK_BYTES, count: AtomicU64::new(0) }
    }

    /// Restores the initial state before each slice of time.
    pub fn lay_out(&self) -> Result<()> {
        self.count.store(0, Relaxed);
        let SiteFile::Scratch(ground) = &self.file else { return Ok(()) };
        match self.target {
            WriteTarget::Overwrite | WriteTarget::PartialOverwrite | WriteTarget::Read => {
                return Ok(());
            }
            WriteTarget::Append => ground.open_cached()?.set_len(0)?,
            WriteTarget::Hole => {
                let file = ground.open_cached()?;
                file.set_len(0)?;
                file.set_len(SITE_BYTES)?;
            }
            WriteTarget::Unwritten => {
                ground.open_cached()?.set_len(0)?;
                ground.preallocate(SITE_BYTES).context("fallocate")?;
            }
        }
        Ok(ground.open_cached()?.sync_all()?)
    }

    fn size_bytes(&self) -> u64 {
        match self.file {
            SiteFile::Scratch(_) => SITE_BYTES,
            SiteFile::Device(_, bytes) => bytes,
        }
    }

    /// For one thread, with a unique number.
    pub fn open(&self, flags: OFlags, thread: u64) -> Result<Opened<'_>> {
        let file = match &self.file {
            SiteFile::Scratch(ground) => ground.open(flags)?,
            SiteFile::Device(device, _) => device.try_clone()?,
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
            WriteTarget::Overwrite | WriteTarget::Read => (self.any_block(), BLOCK_BYTES),
            WriteTarget::PartialOverwrite => (self.any_block() + site.part_bytes, site.part_bytes),
            WriteTarget::Unwritten | WriteTarget::Hole | WriteTarget::Append => {
                (site.count.fetch_add(1, Relaxed) * BLOCK_BYTES, BLOCK_BYTES)
            }
        };
        if offset + bytes > site.size_bytes() {
            return Ok(false);
        }
        let memory = &mut self.memory[..bytes as usize];
        match site.target {
            WriteTarget::Read => self.file.read_exact_at(memory, offset),
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
