//! The cost of single writes and flushes for one thread, and the number of device requests for
//! each.

use super::document::{Cost, Flush, WriteTarget};
use super::site::Site;
use super::turns::{ROUNDS, in_turn};
use crate::bench::latency::Timings;
use crate::bench::place::{BenchTarget, O_DSYNC};
use crate::bench::progress::Progress;
use crate::bench::ratio::median;
use crate::meter::disk::{Counts, Disk};
use anyhow::Result;
use rustix::fs::{OFlags, fdatasync};
use std::time::{Duration, Instant};

const SLICE: Duration = Duration::from_millis(60);
const FLUSH_SLICE: Duration = Duration::from_millis(400);
/// The minimum number of samples for a percentile; slow devices get more time.
const COUNT_MIN: u64 = 20;
const SLICE_MAX: Duration = Duration::from_millis(200);

/// The timed kinds of writes.
const TARGETS: [WriteTarget; 4] =
    [WriteTarget::Overwrite, WriteTarget::Unwritten, WriteTarget::Hole, WriteTarget::Append];

/// The results for one kind of write so far.
struct Seen<'a> {
    site: &'a Site,
    is_dsync: bool,
    timings: Timings,
    /// The medians of the rounds, in nanoseconds.
    medians_ns: Vec<u64>,
    /// The device's counters for each. Empty if unavailable.
    counts: Vec<Counts>,
}

/// Times each kind in turn, durable and not.
pub fn of_writes(place: &BenchTarget, sites: &[Site], progress: &Progress) -> Result<Vec<Cost>> {
    let sites = sites.iter().filter(|site| TARGETS.contains(&site.target));
    let new = |site, is_dsync| Seen {
        site,
        is_dsync,
        timings: Timings::new(false),
        medians_ns: Vec::new(),
        counts: Vec::new(),
    };
    let mut all: Vec<_> = sites.flat_map(|site| [new(site, false), new(site, true)]).collect();
    in_turn(&mut all, ROUNDS, |seen| {
        progress.tell("cost of a write");
        let outcome = seen.slice(place.disk.as_ref());
        progress.advance();
        outcome
    })?;
    Ok(all.iter().map(Seen::cost).collect())
}

impl Seen<'_> {
    fn slice(&mut self, disk: Option<&Disk>) -> Result<()> {
        self.site.lay_out()?;
        let flags = if self.is_dsync { O_DSYNC } else { OFlags::empty() };
        let mut opened = self.site.open(flags, 0)?;
        let begun = Instant::now();
        let (mut count, mut own) = (0, Timings::new(false));
        while begun.elapsed() < SLICE || (count < COUNT_MIN && begun.elapsed() < SLICE_MAX) {
            // Per operation, so that the file system's own activity in between does not count.
            let before = disk.and_then(Disk::read);
            let submitted = Instant::now();
            if !opened.step()? {
                break;
            }
            own.record(submitted, submitted);
            let counts = disk.and_then(Disk::read).zip(before).map(|(end, start)| end.since(start));
            self.counts.extend(counts);
            count += 1;
        }
        self.medians_ns.push(own.clat.value_at_quantile(0.5));
        self.timings.add(&own);
        // Dirty data must not disturb the next kind.
        Ok(fdatasync(opened.file())?)
    }

    fn cost(&self) -> Cost {
        let clat = &self.timings.clat;
        let per_op = |of: fn(&Counts) -> Option<u64>| {
            median(self.counts.iter().filter_map(|counts| Some(of(counts)? as f64)).collect())
        };
        Cost {
            target: self.site.target,
            is_dsync: self.is_dsync,
            is_durable: self.is_dsync,
            count: clat.len(),
            write_ns_p50: clat.value_at_quantile(0.5),
            write_ns_p50_min: self.medians_ns.iter().copied().min().unwrap_or(0),
            write_ns_p50_max: self.medians_ns.iter().copied().max().unwrap_or(0),
            write_ns_p99: clat.value_at_quantile(0.99),
            requests_per_op: per_op(|counts| Some(counts.writes)),
            flushes_per_op: per_op(|counts| counts.counted_flushes()),
        }
    }
}

/// Repeatedly writes a block and flushes, then flushes again.
pub fn of_flushes(site: &Site, progress: &Progress) -> Result<Flush> {
    progress.tell("cost of a flush");
    site.lay_out()?;
    let mut opened = site.open(OFlags::empty(), 0)?;
    let (mut dirty, mut clean) = (Timings::new(false), Timings::new(false));
    let begun = Instant::now();
    while begun.elapsed() < FLUSH_SLICE
        || (dirty.clat.len() < COUNT_MIN && begun.elapsed() < 3 * SLICE_MAX)
    {
        opened.step()?;
        for timings in [&mut dirty, &mut clean] {
            let submitted = Instant::now();
            fdatasync(opened.file())?;
            timings.record(submitted, submitted);
        }
    }
    progress.advance();
    Ok(Flush {
        count: dirty.clat.len(),
        flush_ns_p50: dirty.clat.value_at_quantile(0.5),
        flush_ns_p99: dirty.clat.value_at_quantile(0.99),
        flush_clean_ns_p50: clean.clat.value_at_quantile(0.5),
        flush_clean_ns_p99: clean.clat.value_at_quantile(0.99),
    })
}

/// The total number of turns.
pub fn turns(sites: &[Site]) -> u64 {
    let timed = sites.iter().filter(|site| TARGETS.contains(&site.target)).count() as u64;
    1 + 2 * u64::from(ROUNDS) * timed
}
