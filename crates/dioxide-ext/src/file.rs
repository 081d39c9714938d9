//! The [`VolumeFile`] of dioxide over a [`Node`]: converts bytes to blocks.

use crate::node::Node;
use dioxide::image::{Data, VolumeFile};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

#[derive(Debug)]
pub(crate) struct ExtFile(pub Arc<Node>);

impl ExtFile {
    fn block_bytes(&self) -> u64 {
        self.0.volume.geometry.block_bytes
    }
}

impl VolumeFile for ExtFile {
    fn number(&self) -> u32 {
        self.0.number
    }

    fn size(&self) -> u64 {
        self.0.size()
    }

    fn read(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read(into, offset / self.block_bytes())
    }

    fn write(&self, data: &Data<'_>, offset: u64, requests: &AtomicU64) -> io::Result<()> {
        self.0.volume.check_usable()?;
        let end = offset + data.len();
        let blocks = offset / self.block_bytes()..end / self.block_bytes();
        self.0.write(data, blocks, requests)
    }

    fn sync(&self, times: bool, requests: &AtomicU64) -> io::Result<()> {
        self.0.sync(times, requests)
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.0.volume.check_usable()?;
        self.0.truncate(len)
    }

    fn allocated(&self) -> io::Result<Vec<Range<u64>>> {
        let mut start = 0;
        let mut allocated = Vec::new();
        for run in self.0.runs(0..self.size().div_ceil(self.block_bytes()))? {
            let end = start + run.blocks * self.block_bytes();
            if run.at.is_some() {
                allocated.push(start..end);
            }
            start = end;
        }
        Ok(allocated)
    }
}
