//! The copy scenario: one thread writes, copies or reads a long file from front to back.
//!
//! The workload of backups, exports and compactions. The operation is 1 MiB of the stream.

use super::figures::RouteRun;
use super::latency::Timings;
use super::place::RunFile;
use super::task::Task;
use super::work::Route;
use crate::interrupt;
use crate::meter::parts::Parts;
use anyhow::{Context, Result, ensure};
use dioxide::{Buffer, OpenOptions, Reader, Writer};
use rustix::fs::{Advice, OFlags, fadvise};
use std::fs::File;
use std::io::{BufRead, Read, Write};
use std::time::Instant;

/// The bytes of one operation.
pub const CHUNK_BYTES: u64 = 1 << 20;

/// Percent of reads: what a run does.
const READS: u32 = 100;
pub const COPIES: u32 = 50;

/// One run: whole files, one after the other, until the time is over.
pub fn run(task: &Task<'_>) -> Result<RouteRun> {
    let source = task.place.prepare()?;
    if reads(task) {
        fill(&source, task.size_bytes)?;
    }
    repeat(task, &source, verify)
}

/// Makes passes until their time is over, and at least one. `check` gets each copy and its size.
fn repeat(
    task: &Task<'_>,
    source: &RunFile,
    check: impl Fn(&RunFile, u64) -> Result<()>,
) -> Result<RouteRun> {
    let [reads, writes] = [(); 2].map(|()| Timings::new(false));
    let parts = Parts::start(task.place.disk.as_ref());
    let mut passes = Passes { parts, reads, writes };
    while passes.parts.elapsed().is_zero() || passes.parts.elapsed() < task.runtime {
        interrupt::check()?;
        passes.add(task, source, &check)?;
    }
    let Passes { parts, reads, writes } = passes;
    let bytes = (reads.clat.len() + writes.clat.len()) * CHUNK_BYTES;
    Ok(RouteRun::new(parts.elapsed(), reads, writes, bytes, parts.stop()))
}

/// The passes of a run. Opening, and the check of the copy, are not timed.
struct Passes<'a> {
    parts: Parts<'a>,
    reads: Timings,
    writes: Timings,
}

impl Passes<'_> {
    fn add(
        &mut self,
        task: &Task<'_>,
        source: &RunFile,
        check: impl Fn(&RunFile, u64) -> Result<()>,
    ) -> Result<()> {
        let is_read = task.point.rwmixread == Some(READS);
        let from = reads(task).then(|| ReadEnd::open(task, source)).transpose()?;
        let copy = (!is_read).then(|| task.place.prepare()).transpose()?;
        let to = copy.as_ref().map(|copy| WriteEnd::open(task, copy)).transpose()?;
        let timings = if is_read { &mut self.reads } else { &mut self.writes };
        self.parts.time(|| stream(task.size_bytes, from, to, timings))?;
        copy.map_or(Ok(()), |copy| check(&copy, task.size_bytes))
    }
}

fn reads(task: &Task<'_>) -> bool {
    task.point.rwmixread.is_some_and(|percent| percent > 0)
}

/// Where the bytes come from.
enum ReadEnd {
    Kernel(File),
    Dioxide(Reader),
}

impl ReadEnd {
    fn open(task: &Task<'_>, source: &RunFile) -> Result<Self> {
        match task.route {
            Route::Dioxide => {
                Ok(Self::Dioxide(Reader::new(source.open_with(&OpenOptions::new())?)))
            }
            Route::OneThread => Ok(Self::Kernel(source.open(OFlags::empty())?)),
            _ => {
                let file = source.open_cached()?;
                // The device has the bytes, not the memory.
                fadvise(&file, 0, None, Advice::DontNeed).context("posix_fadvise")?;
                Ok(Self::Kernel(file))
            }
        }
    }
}

/// Where the bytes go, and whether they become stable.
enum WriteEnd {
    Kernel(File),
    Unsynced(File),
    Dioxide(Writer),
}

impl WriteEnd {
    fn open(task: &Task<'_>, copy: &RunFile) -> Result<Self> {
        Ok(match task.route {
            Route::Dioxide => {
                Self::Dioxide(Writer::new(copy.open_with(OpenOptions::new().write(true))?))
            }
            Route::OneThread => Self::Kernel(copy.open(OFlags::empty())?),
            Route::Unsynced => Self::Unsynced(copy.open_cached()?),
            _ => Self::Kernel(copy.open_cached()?),
        })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        match self {
            Self::Kernel(file) | Self::Unsynced(file) => file.write_all(bytes).context("write"),
            Self::Dioxide(writer) => Ok(writer.write_all(bytes)?),
        }
    }

    fn finish(self) -> Result<()> {
        match self {
            Self::Kernel(file) => file.sync_data().context("fdatasync"),
            Self::Unsynced(_) => Ok(()),
            Self::Dioxide(writer) => Ok(writer.finish()?.close()?),
        }
    }
}

/// Moves `bytes` bytes, each chunk timed. Without a source, the content is made.
fn stream(
    bytes: u64,
    mut from: Option<ReadEnd>,
    mut to: Option<WriteEnd>,
    timings: &mut Timings,
) -> Result<()> {
    let mut chunk = Buffer::zeroed(CHUNK_BYTES as usize);
    fill_chunk(0, &mut chunk);
    for number in 0..bytes / CHUNK_BYTES {
        interrupt::check()?;
        let begun = Instant::now();
        let bytes = match &mut from {
            // A reader lends its memory.
            Some(ReadEnd::Dioxide(reader)) => reader.fill_buf()?,
            Some(ReadEnd::Kernel(file)) => {
                file.read_exact(&mut chunk).context("read")?;
                &chunk
            }
            None => {
                stamp(number, &mut chunk);
                &chunk
            }
        };
        let is_right = bytes.len() == CHUNK_BYTES as usize && stamp_of(bytes) == number;
        ensure!(is_right, "the wrong MiB was read at {number} MiB");
        if let Some(to) = &mut to {
            to.write(bytes)?;
        }
        if let Some(ReadEnd::Dioxide(reader)) = &mut from {
            reader.consume(CHUNK_BYTES as usize);
        }
        timings.record(begun, begun);
    }
    to.map_or(Ok(()), WriteEnd::finish)
}

/// Each chunk of a file has its number in its first bytes.
fn stamp(number: u64, chunk: &mut [u8]) {
    chunk[..8].copy_from_slice(&number.to_le_bytes());
}

fn stamp_of(chunk: &[u8]) -> u64 {
    u64::from_le_bytes(chunk[..8].try_into().expect("8 bytes"))
}

fn fill_chunk(number: u64, chunk: &mut [u8]) {
    fastrand::Rng::with_seed(1).fill(chunk);
    stamp(number, chunk);
}

fn fill(source: &RunFile, bytes: u64) -> Result<()> {
    let file = source.open(OFlags::empty())?;
    let mut chunk = Buffer::zeroed(CHUNK_BYTES as usize);
    fill_chunk(0, &mut chunk);
    for number in 0..bytes / CHUNK_BYTES {
        interrupt::check()?;
        stamp(number, &mut chunk);
        (&file).write_all(&chunk).context("fill the source")?;
    }
    Ok(file.sync_all()?)
}

/// Reads the copy from the device, and compares it.
fn verify(copy: &RunFile, bytes: u64) -> Result<()> {
    let mut file = copy.open(OFlags::empty())?;
    let [mut found, mut expected] = [(); 2].map(|()| Buffer::zeroed(CHUNK_BYTES as usize));
    fill_chunk(0, &mut expected);
    for number in 0..bytes / CHUNK_BYTES {
        interrupt::check()?;
        stamp(number, &mut expected);
        file.read_exact(&mut found).context("read the copy")?;
        ensure!(*found == *expected, "the copy differs at {number} MiB");
    }
    ensure!(file.read(&mut found)? == 0, "the copy is too long");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::figures::examples::append_point;
    use super::super::place::{BenchTarget, write_in_parts};
    use super::super::set::examples::task;
    use super::super::work::{Point, Scenario};
    use super::*;
    use crate::sizes::Sizes;
    use crate::sys::cpu_time;
    use std::time::Duration;

    const ROUTES: [Route; 4] = [Route::OneThread, Route::Kernel, Route::Unsynced, Route::Dioxide];

    fn point(rwmixread: u32) -> Point {
        Point {
            scenario: Scenario::Copy,
            sizes: Sizes::one(CHUNK_BYTES),
            rwmixread: Some(rwmixread),
            growth: None,
            ..append_point(1)
        }
    }

    #[test]
    fn every_path_moves_every_mebibyte() {
        let place = BenchTarget::directory(&std::env::temp_dir()).unwrap();
        for reads in [0, COPIES, READS] {
            for route in ROUTES {
                let task = Task {
                    runtime: Duration::ZERO,
                    size_bytes: 3 * CHUNK_BYTES,
                    ..task(&place, point(reads), route)
                };
                let run = run(&task).unwrap_or_else(|error| panic!("{route:?}: {error:#}"));
                assert_eq!(run.figures.ops, 3, "{route:?}");
                assert_eq!(run.reads.clat.len(), if reads == READS { 3 } else { 0 });
            }
        }
    }

    /// The CPU time of the check was part of that of each path.
    #[test]
    fn the_cpu_time_of_the_check_was_counted() {
        const CHECK: Duration = Duration::from_millis(100);
        let place = BenchTarget::directory(&std::env::temp_dir()).unwrap();
        let source = place.prepare().unwrap();
        let task = Task {
            runtime: Duration::ZERO,
            size_bytes: CHUNK_BYTES,
            ..task(&place, point(0), Route::Unsynced)
        };
        let cpu_time = || {
            let spent = cpu_time();
            spent.user + spent.system
        };
        let check = |_: &RunFile, _| {
            let before = cpu_time();
            while cpu_time() - before < CHECK {}
            Ok(())
        };
        // Other tests use the CPU as well: a run in which they use little is enough.
        let is_free = |_| {
            let figures = repeat(&task, &source, check).unwrap().figures;
            let percent = figures.usr_cpu + figures.sys_cpu;
            figures.elapsed.mul_f64(percent / 100.0) < CHECK
        };
        assert!((0..20).any(is_free));
    }

    #[test]
    fn a_wrong_copy_is_found() {
        let place = BenchTarget::directory(&std::env::temp_dir()).unwrap();
        let copy = place.prepare().unwrap();
        fill(&copy, 3 * CHUNK_BYTES).unwrap();
        verify(&copy, 3 * CHUNK_BYTES).unwrap();
        assert!(verify(&copy, 2 * CHUNK_BYTES).is_err(), "it is too long");
        write_in_parts(&copy.open_cached().unwrap(), &[1; 5], 5).unwrap();
        assert!(verify(&copy, 3 * CHUNK_BYTES).is_err());
    }
}
