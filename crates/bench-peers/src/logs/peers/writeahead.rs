//! writeahead: its writer thread flushes the records that wait together, in written windows.

use super::{Peer, Site, Visit};
use anyhow::Result;
use futures::executor::{block_on, block_on_stream};
use writeahead::{SimpleFile, WriteAhead, WriteAheadOptions, WriteHandle};

/// More threads than the bench has.
const QUEUED_MAX: usize = 1024;
const BATCH_BYTES_MAX: usize = 64 << 20;
/// A window has few stalls, and not long ones.
const WINDOW_BYTES: u64 = 4 << 20;

pub struct Writeahead {
    log: WriteAhead<SimpleFile>,
    writer: WriteHandle,
    options: WriteAheadOptions,
}

fn open(options: &WriteAheadOptions) -> Result<WriteAhead<SimpleFile>> {
    let mut log = WriteAhead::with_options(options.clone());
    log.start()?;
    Ok(log)
}

impl Writeahead {
    pub fn open(site: &Site) -> Result<Self> {
        let options = WriteAheadOptions {
            log_dir: site.dir.clone(),
            preallocation_chunk_size: Some(WINDOW_BYTES),
            queue_capacity: QUEUED_MAX,
            max_batch_bytes: BATCH_BYTES_MAX,
            ..WriteAheadOptions::default()
        };
        let log = open(&options)?;
        Ok(Self { writer: log.writer()?, log, options })
    }
}

impl Peer for Writeahead {
    fn append(&self, _: usize, record: &[u8]) -> Result<()> {
        block_on(self.writer.write(record.to_vec())).map(drop)
    }

    fn append_batch(&self, records: &[&[u8]]) -> Result<()> {
        let records = records.iter().map(|record| record.to_vec()).collect();
        block_on(self.writer.write_batch(records)).map(drop)
    }

    fn read_back(self: Box<Self>, visit: Visit<'_>) -> Result<()> {
        let Self { log, writer, options } = *self;
        drop((log, writer));
        let stream = open(&options)?.create_stream()?;
        block_on_stream(stream).try_for_each(|record| visit(&record?.1))
    }
}
