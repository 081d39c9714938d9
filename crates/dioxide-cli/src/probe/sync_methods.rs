//! Compares the ways to make a write durable, as pg_test_fsync does: one or two writes of 8 KiB
//! over written space, O_DIRECT.

use super::document::SyncMethod;
use super::turns::{ROUNDS, in_turn};
use crate::bench::place::{BenchTarget, O_DSYNC, RunFile};
use crate::bench::progress::Progress;
use crate::bench::ratio::Ratio;
use crate::sync_ring::{Ring, RingSync};
use crate::sys::sync_file_range;
use anyhow::Result;
use dioxide::Buffer;
use rustix::fs::{OFlags, fdatasync, fsync};
use rustix::io::{Errno, IoSlice, ReadWriteFlags, pwritev2};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

const SLICE: Duration = Duration::from_millis(30);
const WRITE_BYTES: usize = 8 << 10;
/// The size of a segment of PostgreSQL's log.
const FILE_BYTES: u64 = 16 << 20;

/// The operation, and the flags of its file.
#[derive(Clone, Copy)]
struct Method {
    name: &'static str,
    flags: OFlags,
    is_durable: bool,
    make: Make,
}

#[derive(Clone, Copy)]
enum Make {
    /// Plain writes, followed by this, if any.
    Then(fn(&File) -> rustix::io::Result<()>),
    Dsync,
    Ring(RingSync),
}

const METHODS: [Method; 9] = [
    method("open_datasync", O_DSYNC, Make::Then(|_| Ok(()))),
    method("fdatasync", OFlags::empty(), Make::Then(|file| fdatasync(file))),
    method("fsync", OFlags::empty(), Make::Then(|file| fsync(file))),
    method("open_sync", OFlags::SYNC, Make::Then(|_| Ok(()))),
    method("RWF_DSYNC", OFlags::empty(), Make::Dsync),
    method("io_uring, linked fdatasync", OFlags::empty(), Make::Ring(RingSync::LinkedFdatasync)),
    method("io_uring, RWF_DSYNC", OFlags::empty(), Make::Ring(RingSync::RwfDsync)),
    Method {
        is_durable: false,
        ..method("sync_file_range", OFlags::empty(), Make::Then(sync_file_range))
    },
    Method { is_durable: false, ..method("no sync", OFlags::empty(), Make::Then(|_| Ok(()))) },
];

const fn method(name: &'static str, flags: OFlags, make: Make) -> Method {
    Method { name, flags, is_durable: true, make }
}

/// The number of turns.
pub const TURNS: u64 = ROUNDS as u64 * 2 * METHODS.len() as u64;

struct Contender {
    method: Method,
    writes: u32,
    ops_per_s: Vec<f64>,
    unavailable: Option<String>,
}

/// Compares them all on one file.
pub fn compare(place: &BenchTarget, progress: &Progress) -> Result<Vec<SyncMethod>> {
    let ground = place.prepare()?;
    ground.fill(FILE_BYTES)?;
    let contender =
        |writes, method| Contender { method, writes, ops_per_s: Vec::new(), unavailable: None };
    let mut all: Vec<_> =
        [1, 2].into_iter().flat_map(|writes| METHODS.map(|it| contender(writes, it))).collect();
    in_turn(&mut all, ROUNDS, |contender| {
        progress.tell("ways to sync");
        if contender.unavailable.is_none() {
            contender.slice(&ground)?;
        }
        progress.advance();
        Ok(())
    })?;
    Ok(all.into_iter().map(Contender::result).collect())
}

impl Contender {
    fn slice(&mut self, ground: &RunFile) -> Result<()> {
        let file = ground.open(self.method.flags)?;
        let block = Buffer::zeroed(WRITE_BYTES);
        let offsets: Vec<u64> =
            (0..self.writes).map(|nth| u64::from(nth) * WRITE_BYTES as u64).collect();
        let outcome = match self.method.make {
            Make::Then(sync) => self.timed(|| {
                offsets.iter().try_for_each(|offset| file.write_all_at(&block, *offset))?;
                Ok(sync(&file)?)
            }),
            Make::Dsync => self.timed(|| {
                offsets.iter().try_for_each(|offset| {
                    let written =
                        pwritev2(&file, &[IoSlice::new(&block)], *offset, ReadWriteFlags::DSYNC)?;
                    if written == block.len() {
                        Ok(())
                    } else {
                        Err(io::ErrorKind::WriteZero.into())
                    }
                })
            }),
            Make::Ring(sync) => Ring::new().and_then(|mut ring| {
                self.timed(|| ring.write_durably(&file, &block, &offsets, sync))
            }),
        };
        match outcome {
            Err(error) if is_unavailable(&error) => self.unavailable = Some(error.to_string()),
            outcome => self.ops_per_s.push(outcome?),
        }
        // Dirty data must not disturb the next method.
        Ok(fdatasync(&file)?)
    }

    /// Repetitions per second.
    fn timed(&self, mut act: impl FnMut() -> io::Result<()>) -> io::Result<f64> {
        let (begun, mut count) = (Instant::now(), 0u64);
        while count == 0 || begun.elapsed() < SLICE {
            act()?;
            count += 1;
        }
        Ok(count as f64 / begun.elapsed().as_secs_f64())
    }

    fn result(self) -> SyncMethod {
        let rates = Ratio::of(self.ops_per_s);
        let [ops_per_s_min, ops_per_s, ops_per_s_max] =
            rates.map_or([0.0; 3], |it| [it.min, it.median, it.max]);
        SyncMethod {
            method: self.method.name.into(),
            is_durable: self.method.is_durable,
            writes: self.writes,
            ops_per_s,
            ops_per_s_min,
            ops_per_s_max,
            us_per_op: if ops_per_s > 0.0 { 1e6 / ops_per_s } else { 0.0 },
            unavailable: self.unavailable,
        }
    }
}

/// Unsupported here, not a failure.
fn is_unavailable(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    errno.is_some_and(|errno| {
        [Errno::OPNOTSUPP, Errno::INVAL, Errno::NOSYS, Errno::PERM, Errno::NOMEM].contains(&errno)
    })
}
