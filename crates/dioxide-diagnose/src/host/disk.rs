//! The block device below a file, and its counters of completed requests, from sysfs.

use rustix::fs::{AtFlags, CWD, StatxFlags, major, makedev, minor, statx};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A block device or partition, or several, treated as one.
#[derive(Clone, Debug)]
pub struct Disk {
    /// Each once.
    sysfs: Vec<PathBuf>,
}

/// Requests completed by a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reads.
    pub reads: u64,
    /// Each flush requested by a caller also counts here, as an empty write. One flush may serve
    /// many callers.
    pub writes: u64,
    /// Flushes that the device did.
    pub flushes: u64,
    /// The time with at least one request in flight, in milliseconds.
    pub busy_ms: u64,
    /// The total time of completed requests in flight, in milliseconds.
    pub in_flight_ms: u64,
}

impl Counts {
    /// The requests completed since `earlier`.
    pub fn since(self, earlier: Self) -> Self {
        // The kernel keeps 32 bits of a time: 49.7 days.
        let millis =
            |later: u64, earlier: u64| u64::from((later as u32).wrapping_sub(earlier as u32));
        Self {
            reads: self.reads.wrapping_sub(earlier.reads),
            writes: self.writes.wrapping_sub(earlier.writes),
            flushes: self.flushes.wrapping_sub(earlier.flushes),
            busy_ms: millis(self.busy_ms, earlier.busy_ms),
            in_flight_ms: millis(self.in_flight_ms, earlier.in_flight_ms),
        }
    }

    /// The sum of both.
    fn and(self, other: Self) -> Self {
        Self {
            reads: self.reads + other.reads,
            writes: self.writes + other.writes,
            flushes: self.flushes + other.flushes,
            busy_ms: self.busy_ms + other.busy_ms,
            in_flight_ms: self.in_flight_ms + other.in_flight_ms,
        }
    }
}

impl Disk {
    /// The device with this number: `st_dev` of a file on it, or `st_rdev` of the device itself.
    /// None if no single block device has it (btrfs, tmpfs, network), or if sysfs is unreadable.
    pub fn find(device: u64) -> Option<Self> {
        let link = format!("/sys/dev/block/{}:{}", major(device), minor(device));
        let sysfs = fs::canonicalize(link).ok()?;
        Some(Self { sysfs: vec![sysfs] })
    }

    /// Several as one. None without any.
    pub fn together(disks: impl IntoIterator<Item = Self>) -> Option<Self> {
        let mut sysfs: Vec<_> = disks.into_iter().flat_map(|disk| disk.sysfs).collect();
        sysfs.sort();
        sysfs.dedup();
        (!sysfs.is_empty()).then_some(Self { sysfs })
    }

    /// The kernel's name: `sda1`, `loop0`, `dm-3`; `sda+sdb` for two.
    pub fn name(&self) -> String {
        let name =
            |sysfs: &PathBuf| sysfs.file_name().unwrap_or_default().to_string_lossy().into_owned();
        self.sysfs.iter().map(name).collect::<Vec<_>>().join("+")
    }

    /// `write back` or `write through`. None if they differ.
    pub fn write_cache(&self) -> Option<String> {
        let cache =
            |sysfs: &PathBuf| fs::read_to_string(whole(sysfs).join("queue/write_cache")).ok();
        let first = cache(&self.sysfs[0])?;
        let are_alike = self.sysfs.iter().all(|sysfs| cache(sysfs).as_ref() == Some(&first));
        are_alike.then(|| first.trim().to_owned())
    }

    /// Whether it supports FUA; of several, whether all do. None if the kernel does not report it.
    pub fn has_fua(&self) -> Option<bool> {
        let fua = |sysfs: &PathBuf| {
            Some(fs::read_to_string(whole(sysfs).join("queue/fua")).ok()?.trim() == "1")
        };
        self.sysfs.iter().map(fua).try_fold(true, |all, one| Some(all & one?))
    }

    /// The requests that its queue holds. None for several, or if the kernel does not report it.
    pub fn queue_max(&self) -> Option<u64> {
        let [sysfs] = &self.sysfs[..] else { return None };
        fs::read_to_string(whole(sysfs).join("queue/nr_requests")).ok()?.trim().parse().ok()
    }

    /// Its counters now.
    pub fn read(&self) -> Option<Counts> {
        let counts = self.sysfs.iter().map(|sysfs| counts(sysfs));
        counts.reduce(|one, other| Some(one?.and(other?))).flatten()
    }
}

/// The whole device of a number, and the devices below it. These are the members of a dm or md
/// device, and the device of a loop device's file.
pub fn below(number: u64) -> BTreeSet<u64> {
    let mut found = BTreeSet::new();
    let mut left = vec![number];
    while let Some(number) = left.pop() {
        let Some(disk) = Disk::find(number).filter(|_| found.insert(number)) else { continue };
        for sysfs in &disk.sysfs {
            left.extend(number_of(whole(sysfs)));
            let members = fs::read_dir(sysfs.join("slaves")).into_iter().flatten().flatten();
            left.extend(members.filter_map(|member| number_of(&member.path())));
            let file = fs::read_to_string(sysfs.join("loop/backing_file"));
            left.extend(file.ok().and_then(|file| device_of(file.trim_end())));
        }
    }
    found
}

/// The device of a file, without a request to its file system, which may not answer.
fn device_of(file: &str) -> Option<u64> {
    let found = statx(CWD, file, AtFlags::STATX_DONT_SYNC, StatxFlags::empty()).ok()?;
    Some(makedev(found.stx_dev_major, found.stx_dev_minor))
}

fn number_of(sysfs: &Path) -> Option<u64> {
    let text = fs::read_to_string(sysfs.join("dev")).ok()?;
    let (major, minor) = text.trim().split_once(':')?;
    Some(makedev(major.parse().ok()?, minor.parse().ok()?))
}

fn counts(sysfs: &Path) -> Option<Counts> {
    let stat = |sysfs: &Path| parse_stat(&fs::read_to_string(sysfs.join("stat")).ok()?);
    // A flush is of the whole device, and is only counted there.
    Some(Counts { flushes: stat(whole(sysfs))?.flushes, ..stat(sysfs)? })
}

/// The directory of the whole device if this is a partition.
fn whole(sysfs: &Path) -> &Path {
    match sysfs.parent() {
        Some(parent) if sysfs.join("partition").exists() => parent,
        _ => sysfs,
    }
}

/// Fields as in the kernel's Documentation/block/stat.rst, counted from 1:
/// - 1 and 5: completed reads and writes
/// - 10 and 11: time with requests in flight, and the total time of requests
/// - 16: completed flushes (since 5.5)
pub fn parse_stat(text: &str) -> Option<Counts> {
    let fields: Vec<u64> = text.split_whitespace().map_while(|field| field.parse().ok()).collect();
    let field = |number: usize| fields.get(number - 1).copied();
    Some(Counts {
        reads: field(1)?,
        writes: field(5)?,
        flushes: field(16)?,
        busy_ms: field(10)?,
        in_flight_ms: field(11)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_fields() {
        let text = "  57 1 2162 4 11 0 8 0 0 4 5 0 0 0 0 7 9\n";
        assert_eq!(
            parse_stat(text),
            Some(Counts { reads: 57, writes: 11, flushes: 7, busy_ms: 4, in_flight_ms: 5 })
        );
        assert_eq!(parse_stat("1 2 3 4 5 6 7 8 9 10 11"), None, "older kernels count no flushes");
        assert_eq!(parse_stat(""), None);
    }

    #[test]
    fn differences() {
        let earlier = Counts { reads: 3, writes: 5, flushes: 1, busy_ms: 6, in_flight_ms: 10 };
        let later = Counts { reads: 4, writes: 9, flushes: 4, busy_ms: 8, in_flight_ms: 30 };
        assert_eq!(
            later.since(earlier),
            Counts { reads: 1, writes: 4, flushes: 3, busy_ms: 2, in_flight_ms: 20 }
        );
        assert_eq!(
            later.and(earlier),
            Counts { reads: 7, writes: 14, flushes: 5, busy_ms: 14, in_flight_ms: 40 }
        );
    }

    /// After 49.7 busy days an interval of 30 ms took half a billion years.
    #[test]
    fn times_wrapped_at_32_bits() {
        let at = |busy_ms, in_flight_ms| Counts { busy_ms, in_flight_ms, ..Counts::default() };
        let (earlier, later) = (at(u32::MAX.into(), 0xffff_fff6), at(4, 20));
        assert_eq!(later.since(earlier), at(5, 30));
        let (earlier, later) = (earlier.and(at(7, 7)), later.and(at(8, 9)));
        assert_eq!(later.since(earlier), at(6, 32), "the sum of two devices");
    }

    #[test]
    fn no_such_device() {
        assert!(Disk::find(0).is_none());
        assert!(Disk::together([]).is_none());
    }

    #[test]
    fn several_as_one() {
        let disk = |name: &str| Disk { sysfs: vec![format!("/no/{name}").into()] };
        let disks = ["loop2", "loop1", "loop2"].map(disk);
        assert_eq!(Disk::together(disks).unwrap().name(), "loop1+loop2");
    }
}
