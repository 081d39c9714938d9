//! `dioxide-log`: one log of streams, with a stream for each lane.

use super::dioxide_log::segments;
use super::{Peer, Site, Visit};
use crate::interrupt;
use anyhow::Result;
use dioxide_log::{Stream, StreamLog};
use std::path::PathBuf;
use std::thread::sleep;
use std::time::Duration;

/// The stream that fills the segments beforehand.
const FILLER: u64 = u64::MAX;
/// Between two looks at the thread that frees segments.
const PAUSE: Duration = Duration::from_millis(1);

pub struct Streams {
    log: StreamLog,
    streams: Vec<Stream>,
    dir: PathBuf,
}

impl Streams {
    /// A log that has used all of its segments once, and is empty.
    pub fn open(site: &Site) -> Result<Self> {
        let segments = segments(site.size_bytes);
        let log = segments.options().open_streams(&site.dir)?;
        let (stream, filler) = (log.stream(FILLER), segments.filler());
        while log.stats().log.segments < segments.count {
            stream.append(&filler)?;
        }
        stream.remove()?;
        // The last one is in use.
        while log.stats().log.segments > 1 {
            interrupt::check()?;
            sleep(PAUSE);
        }
        let streams = (0..site.lanes as u64).map(|lane| log.stream(lane)).collect();
        Ok(Self { log, streams, dir: site.dir.clone() })
    }
}

impl Peer for Streams {
    fn append(&self, lane: usize, record: &[u8]) -> Result<()> {
        Ok(self.streams[lane].append(record).map(drop)?)
    }

    fn append_batch(&self, records: &[&[u8]]) -> Result<()> {
        Ok(self.streams[0].append_all(records).map(drop)?)
    }

    fn read_back(self: Box<Self>, visit: Visit<'_>) -> Result<()> {
        self.log.close()?;
        let log = StreamLog::open(&self.dir)?;
        for id in log.ids() {
            let stream = log.stream(id);
            stream.iter_from(stream.first_lsn()).try_for_each(|record| visit(&record?.1))?;
        }
        Ok(log.close()?)
    }
}
