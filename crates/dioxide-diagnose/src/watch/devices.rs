//! The devices below the files, and their activity during the observation.

use crate::evidence::SeenDevice;
use crate::host::disk::{Counts, Disk};
use rustix::fs::{major, minor};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

#[derive(Debug, Default)]
pub struct Devices {
    /// By number, with the first and the last counters. None for numbers without a block device
    /// (tmpfs, network).
    found: BTreeMap<u64, Option<(Disk, Counts, Counts)>>,
}

impl Devices {
    /// Adds the devices that are not known yet.
    pub fn find(&mut self, numbers: BTreeSet<u64>) {
        let find = |number| {
            let disk = Disk::find(number)?;
            let counts = disk.read()?;
            Some((disk, counts, counts))
        };
        for number in numbers {
            self.found.entry(number).or_insert_with(|| find(number));
        }
    }

    /// The observation begins now.
    pub fn begin(&mut self) {
        for (disk, first, _) in self.found.values_mut().flatten() {
            *first = disk.read().unwrap_or(*first);
        }
    }

    /// The observation ends now.
    pub fn end(&mut self) {
        for (disk, _, last) in self.found.values_mut().flatten() {
            *last = disk.read().unwrap_or(*last);
        }
    }

    /// Their activity between begin and end, which are this far apart.
    pub fn finish(self, watched: Duration) -> Vec<SeenDevice> {
        let seen = |(number, found): (u64, Option<(Disk, Counts, Counts)>)| {
            let (disk, first, last) = found?;
            Some(seen(number, &disk, last.since(first), watched))
        };
        self.found.into_iter().filter_map(seen).collect()
    }
}

fn seen(number: u64, disk: &Disk, done: Counts, watched: Duration) -> SeenDevice {
    SeenDevice {
        name: disk.name(),
        number: (major(number), minor(number)),
        has_volatile_cache: disk.write_cache().map(|cache| cache == "write back"),
        has_fua: disk.has_fua(),
        reads: done.reads,
        writes: done.writes,
        flushes: done.counted_flushes(),
        busy_ns: Duration::from_millis(done.busy_ms).as_nanos() as u64,
        queue_max: disk.queue_max(),
        inflight: done.in_flight_ms as f64 / 1e3 / watched.as_secs_f64().max(1e-3),
    }
}
