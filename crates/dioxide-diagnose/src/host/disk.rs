//! The block device below a file, and its counters of completed requests, from sysfs.

use super::cached;
use rustix::fs::{major, makedev, minor};
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
    /// Flushes that the device did. 0 if it does not count them.
    pub flushes: u64,
    /// Whether it counts flushes. A device without queues of requests (dm, md, zram) does not.
    pub has_flushes: bool,
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
            has_flushes: self.has_flushes && earlier.has_flushes,
            busy_ms: millis(self.busy_ms, earlier.busy_ms),
            in_flight_ms: millis(self.in_flight_ms, earlier.in_flight_ms),
        }
    }

    /// The flushes, if the device counts them.
    pub fn counted_flushes(self) -> Option<u64> {
        self.has_flushes.then_some(self.flushes)
    }

    /// The sum of both.
    pub fn and(self, other: Self) -> Self {
        Self {
            reads: self.reads + other.reads,
            writes: self.writes + other.writes,
            flushes: self.flushes + other.flushes,
            has_flushes: self.has_flushes && other.has_flushes,
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

    /// Its counters now. None if they are switched off (queue/iostats).
    pub fn read(&self) -> Option<Counts> {
        let counts = self.sysfs.iter().map(|sysfs| counts(sysfs));
        let counts = counts.reduce(|one, other| Some(one?.and(other?))).flatten()?;
        // A flush is of the whole device, and is only counted there.
        let wholes: BTreeSet<&Path> = self.sysfs.iter().map(|sysfs| whole(sysfs)).collect();
        let flushes = wholes.iter().map(|sysfs| stat(sysfs).map(|counts| counts.flushes));
        let flushes = flushes.sum::<Option<u64>>()?;
        let has_flushes = wholes.iter().all(|sysfs| sysfs.join("mq").is_dir());
        Some(Counts { flushes, has_flushes, ..counts })
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

/// The device of a file. None if its file system may have to be asked.
fn device_of(file: &str) -> Option<u64> {
    let found = cached::status(file.as_ref())?;
    Some(makedev(found.stx_dev_major, found.stx_dev_minor))
}

fn number_of(sysfs: &Path) -> Option<u64> {
    let text = fs::read_to_string(sysfs.join("dev")).ok()?;
    let (major, minor) = text.trim().split_once(':')?;
    Some(makedev(major.parse().ok()?, minor.parse().ok()?))
}

fn counts(sysfs: &Path) -> Option<Counts> {
    let whole = whole(sysfs);
    let iostats = fs::read_to_string(whole.join("queue/iostats"));
    let is_off = iostats.is_ok_and(|text| text.trim() == "0");
    // Without queues of requests, some count all the same (zram; dm before Linux 6.5).
    let has_counted = || stat(whole).is_some_and(|counts| counts.reads + counts.writes > 0);
    let counts = !is_off || !whole.join("mq").is_dir() && has_counted();
    if counts { stat(sysfs) } else { None }
}

fn stat(sysfs: &Path) -> Option<Counts> {
    parse_stat(&fs::read_to_string(sysfs.join("stat")).ok()?)
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
        has_flushes: true,
        busy_ms: field(10)?,
        in_flight_ms: field(11)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a device that counts flushes.
    fn of(reads: u64, writes: u64, flushes: u64, busy_ms: u64, in_flight_ms: u64) -> Counts {
        Counts { reads, writes, flushes, has_flushes: true, busy_ms, in_flight_ms }
    }

    #[test]
    fn stat_fields() {
        let text = "  57 1 2162 4 11 0 8 0 0 4 5 0 0 0 0 7 9\n";
        assert_eq!(parse_stat(text), Some(of(57, 11, 7, 4, 5)));
        assert_eq!(parse_stat("1 2 3 4 5 6 7 8 9 10 11"), None, "older kernels count no flushes");
        assert_eq!(parse_stat(""), None);
    }

    #[test]
    fn differences() {
        let (earlier, later) = (of(3, 5, 1, 6, 10), of(4, 9, 4, 8, 30));
        assert_eq!(later.since(earlier), of(1, 4, 3, 2, 20));
        assert_eq!(later.and(earlier), of(7, 14, 5, 14, 40));
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

    /// A whole device with 100 flushes, and partitions of it with none.
    fn device(sysfs: &Path, partitions: &[&str]) {
        fs::create_dir_all(sysfs.join("mq")).unwrap();
        fs::create_dir_all(sysfs.join("queue")).unwrap();
        fs::write(sysfs.join("queue/iostats"), "1\n").unwrap();
        fs::write(sysfs.join("stat"), "3 0 0 0 5 0 0 0 0 6 10 0 0 0 0 100 0\n").unwrap();
        for partition in partitions {
            let sysfs = sysfs.join(partition);
            fs::create_dir(&sysfs).unwrap();
            fs::write(sysfs.join("partition"), "1\n").unwrap();
            fs::write(sysfs.join("stat"), "1 0 0 0 2 0 0 0 0 3 4 0 0 0 0 0 0\n").unwrap();
        }
    }

    /// The defect: reports said that a device of dm, md or zram had done no flush.
    #[test]
    fn flushes_that_are_not_counted_were_none() {
        let dir = tempfile::tempdir().unwrap();
        device(dir.path(), &[]);
        let disk = Disk { sysfs: vec![dir.path().to_owned()] };
        let counted = disk.read().unwrap();
        assert_eq!(counted.counted_flushes(), Some(100));
        fs::remove_dir(dir.path().join("mq")).unwrap();
        let uncounted = disk.read().unwrap();
        assert_eq!((uncounted.writes, uncounted.counted_flushes()), (5, None));
        assert_eq!(counted.and(uncounted).counted_flushes(), None);
        assert_eq!(counted.since(uncounted).counted_flushes(), None);
    }

    /// The defect: reports said that a device without iostats had done no request.
    #[test]
    fn requests_that_are_not_counted_were_none() {
        let dir = tempfile::tempdir().unwrap();
        device(dir.path(), &["p1"]);
        let disks =
            [dir.path().to_owned(), dir.path().join("p1")].map(|it| Disk { sysfs: vec![it] });
        assert!(disks.iter().all(|disk| disk.read().is_some()));
        fs::write(dir.path().join("queue/iostats"), "0\n").unwrap();
        assert!(disks.iter().all(|disk| disk.read().is_none()));
        fs::remove_dir(dir.path().join("mq")).unwrap();
        assert!(disks.iter().all(|disk| disk.read().is_some()), "as of zram");
        fs::write(dir.path().join("stat"), "0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n").unwrap();
        assert!(disks.iter().all(|disk| disk.read().is_none()), "as of dm");
    }

    /// The defect: two partitions of one disk added all flushes of the disk twice.
    #[test]
    fn flushes_of_two_partitions_counted_twice() {
        let dir = tempfile::tempdir().unwrap();
        let [one, other] = ["one", "other"].map(|name| dir.path().join(name));
        device(&one, &["p1", "p2"]);
        device(&other, &[]);
        let read = |sysfs: &[&Path]| {
            let disks = sysfs.iter().map(|sysfs| Disk { sysfs: vec![sysfs.to_path_buf()] });
            Disk::together(disks).unwrap().read()
        };
        let (p1, p2) = (one.join("p1"), one.join("p2"));
        assert_eq!(read(&[&p1, &p2]), Some(of(2, 4, 100, 6, 8)));
        assert_eq!(read(&[&p1, &other]), Some(of(4, 7, 200, 9, 14)));
    }
}
