//! The cgroups of the watched processes: their limits for I/O and processors, and what was done
//! under these. cgroup v2, and the blkio controller of v1.

use crate::evidence::{CpuLimit, IoLimit, SeenCgroup};
use crate::host::disk;
use crate::host::mount::{Mount, mounts};
use rustix::fs::{major, makedev, minor};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Below the mount of the hierarchy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Version {
    V1,
    V2,
}

#[derive(Debug, Default)]
pub struct Cgroups {
    /// The mounts of cgroup v2 and of blkio, once they are needed.
    hierarchies: Option<Vec<(Version, String)>>,
    /// By directory, with the first and the last counters.
    found: BTreeMap<PathBuf, (Version, CgroupReading, CgroupReading)>,
    /// Whether a process has a cgroup that this process does not see.
    pub has_hidden: bool,
}

/// The state of one cgroup.
#[derive(Clone, Debug, Default, PartialEq)]
struct CgroupReading {
    limits: BTreeMap<Key, u64>,
    done: BTreeMap<Key, u64>,
    pressure_ns: Option<u64>,
    cpu: Option<Cpu>,
}

/// A device, and the limited quantity by its name in io.max: `riops`, `wiops`, `rbps`, `wbps`.
type Key = (u64, &'static str);

#[derive(Clone, Copy, Debug, PartialEq)]
struct Cpu {
    cpus: f64,
    periods: u64,
    throttled: u64,
}

/// The names in io.stat of the quantities in io.max.
const QUANTITIES: [(&str, &str); 4] =
    [("riops", "rios"), ("wiops", "wios"), ("rbps", "rbytes"), ("wbps", "wbytes")];

/// The files of cgroup v1, with a quantity, its counter, and the counter's direction.
const FILES_OF_V1: [(&str, &str, &str, &str); 4] = [
    ("riops", "blkio.throttle.read_iops_device", "blkio.throttle.io_serviced", "Read"),
    ("wiops", "blkio.throttle.write_iops_device", "blkio.throttle.io_serviced", "Write"),
    ("rbps", "blkio.throttle.read_bps_device", "blkio.throttle.io_service_bytes", "Read"),
    ("wbps", "blkio.throttle.write_bps_device", "blkio.throttle.io_service_bytes", "Write"),
];

impl Cgroups {
    /// Adds the cgroups of a process, by its `/proc/PID/cgroup`, and those above.
    pub fn find(&mut self, memberships: &str) {
        let hierarchies =
            self.hierarchies.get_or_insert_with(|| of_mounts(&mounts().unwrap_or_default()));
        for (version, mount) in hierarchies.iter() {
            let Some(path) = path_of(memberships, *version) else { continue };
            // Outside of this process's namespace of cgroups.
            if Path::new(path).starts_with("/..") {
                self.has_hidden = true;
                continue;
            }
            for path in Path::new(path).ancestors() {
                let directory = Path::new(mount).join(path.strip_prefix("/").unwrap_or(path));
                self.found.entry(directory).or_insert_with_key(|directory| {
                    let reading = CgroupReading::of(directory, *version);
                    (*version, reading.clone(), reading)
                });
            }
        }
    }

    /// The observation begins now.
    pub fn begin(&mut self) {
        for (directory, (version, first, _)) in &mut self.found {
            *first = CgroupReading::of(directory, *version);
        }
    }

    /// The observation ends now.
    pub fn end(&mut self) {
        for (directory, (version, _, last)) in &mut self.found {
            *last = CgroupReading::of(directory, *version);
        }
    }

    /// Those with a limit for one of these devices or a device below, or for processors, or with
    /// waits for I/O.
    pub fn finish(self, devices: &BTreeSet<u64>) -> Vec<SeenCgroup> {
        let below: BTreeSet<u64> = devices.iter().flat_map(|device| disk::below(*device)).collect();
        let seen = |(directory, (version, first, last)): (
            PathBuf,
            (Version, CgroupReading, CgroupReading),
        )| {
            let seen = last.since(&first, &directory, version, &below);
            let has_waited = seen.io_pressure_ns.is_some_and(|ns| ns > 0);
            (!seen.io.is_empty() || seen.cpu.is_some() || has_waited).then_some(seen)
        };
        self.found.into_iter().filter_map(seen).collect()
    }
}

impl CgroupReading {
    fn of(directory: &Path, version: Version) -> Self {
        let read = |name: &str| fs::read_to_string(directory.join(name)).unwrap_or_default();
        match version {
            Version::V2 => Self {
                limits: parse_max(&read("io.max")),
                done: parse_stat(&read("io.stat")),
                pressure_ns: parse_pressure(&read("io.pressure")),
                cpu: parse_cpu(&read("cpu.max"), &read("cpu.stat")),
            },
            Version::V1 => {
                let mut reading = Self::default();
                for (quantity, limit, counter, direction) in FILES_OF_V1 {
                    let counters = read(&format!("{counter}_recursive"));
                    reading.limits.extend(parse_of_v1(&read(limit), quantity, None));
                    reading.done.extend(parse_of_v1(&counters, quantity, Some(direction)));
                }
                reading
            }
        }
    }

    fn since(
        &self,
        first: &Self,
        directory: &Path,
        version: Version,
        devices: &BTreeSet<u64>,
    ) -> SeenCgroup {
        let count = |reading: &Self, key| reading.done.get(key).copied().unwrap_or(0);
        let its = |((device, _), _): &(&Key, &u64)| devices.contains(device);
        let io = self.limits.iter().filter(its).map(|(key, per_second)| IoLimit {
            device: (major(key.0), minor(key.0)),
            device_name: disk::Disk::find(key.0).map(|disk| disk.name()),
            file: file_of(key.1, version).to_owned(),
            quantity: key.1.to_owned(),
            per_second: *per_second,
            done: count(self, key).saturating_sub(count(first, key)),
        });
        let cpu = self.cpu.zip(first.cpu).map(|(now, first)| CpuLimit {
            cpus: now.cpus,
            periods: now.periods.saturating_sub(first.periods),
            throttled_periods: now.throttled.saturating_sub(first.throttled),
        });
        let pressure = self.pressure_ns.zip(first.pressure_ns);
        SeenCgroup {
            path: directory.to_string_lossy().into_owned(),
            io: io.collect(),
            io_pressure_ns: pressure.map(|(now, first)| now.saturating_sub(first)),
            cpu,
        }
    }
}

fn of_mounts(mounts: &[Mount]) -> Vec<(Version, String)> {
    let of = |mount: &Mount| match mount.fs.as_str() {
        "cgroup2" => Some((Version::V2, mount.point.clone())),
        "cgroup" if mount.options.split(',').any(|option| option == "blkio") => {
            Some((Version::V1, mount.point.clone()))
        }
        _ => None,
    };
    mounts.iter().filter_map(of).collect()
}

/// The process's path in a hierarchy: lines like `0::/system.slice` and `7:blkio:/a`.
fn path_of(memberships: &str, version: Version) -> Option<&str> {
    memberships.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let is_it = match version {
            Version::V2 => number == "0" && controllers.is_empty(),
            Version::V1 => controllers.split(',').any(|controller| controller == "blkio"),
        };
        is_it.then_some(path)
    })
}

fn file_of(quantity: &str, version: Version) -> &'static str {
    let of_v1 = || FILES_OF_V1.iter().find(|file| file.0 == quantity).map(|file| file.1);
    match version {
        Version::V2 => "io.max",
        Version::V1 => of_v1().unwrap_or_default(),
    }
}

/// `7:0 rbps=max wbps=1048576 riops=max wiops=150`: without a limit there is no number.
fn parse_max(text: &str) -> BTreeMap<Key, u64> {
    parse_pairs(text, |name, (limit, _)| name == limit)
}

/// `7:0 rbytes=0 wbytes=4096 rios=0 wios=1 dbytes=0 dios=0`.
fn parse_stat(text: &str) -> BTreeMap<Key, u64> {
    parse_pairs(text, |name, (_, counter)| name == counter)
}

fn parse_pairs(text: &str, is_it: fn(&str, (&str, &str)) -> bool) -> BTreeMap<Key, u64> {
    let mut values = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let Some(device) = words.next().and_then(parse_device) else { continue };
        for (name, value) in words.filter_map(|word| word.split_once('=')) {
            let quantity = QUANTITIES.iter().find(|quantity| is_it(name, **quantity));
            if let (Some((quantity, _)), Ok(value)) = (quantity, value.parse()) {
                values.insert((device, *quantity), value);
            }
        }
    }
    values
}

/// `7:0 150`, and `7:0 Write 12` where a direction is wanted.
fn parse_of_v1(text: &str, quantity: &'static str, direction: Option<&str>) -> BTreeMap<Key, u64> {
    let value = |line: &str| {
        let mut words = line.split_whitespace();
        let device = parse_device(words.next()?)?;
        if let Some(direction) = direction
            && words.next()? != direction
        {
            return None;
        }
        Some(((device, quantity), words.next()?.parse().ok()?))
    };
    text.lines().filter_map(value).collect()
}

fn parse_device(word: &str) -> Option<u64> {
    let (major, minor) = word.split_once(':')?;
    Some(makedev(major.parse().ok()?, minor.parse().ok()?))
}

/// `some avg10=0.00 avg60=0.00 avg300=0.00 total=1234`, in microseconds.
fn parse_pressure(text: &str) -> Option<u64> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let total = some.split_whitespace().find_map(|word| word.strip_prefix("total="))?;
    Some(total.parse::<u64>().ok()?.saturating_mul(1000))
}

/// `50000 100000`; `max 100000` is no limit.
fn parse_cpu(max: &str, stat: &str) -> Option<Cpu> {
    let mut words = max.split_whitespace().map(str::parse::<u64>);
    let (quota, period) = (words.next()?.ok()?, words.next()?.ok()?);
    let field = |name: &str| {
        let mut values =
            stat.lines().filter_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        values.next()
    };
    Some(Cpu {
        cpus: quota as f64 / period.max(1) as f64,
        periods: field("nr_periods ")?,
        throttled: field("nr_throttled ")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOP0: u64 = makedev_of(7, 0);

    const fn makedev_of(major: u32, minor: u32) -> u64 {
        ((major as u64) << 8) | minor as u64
    }

    #[test]
    fn limits_and_counters_of_v2() {
        let limits = parse_max("7:0 rbps=max wbps=1048576 riops=max wiops=150\nnonsense\n");
        assert_eq!(limits, BTreeMap::from([((LOOP0, "wbps"), 1 << 20), ((LOOP0, "wiops"), 150)]));
        let done = parse_stat("7:0 rbytes=1 wbytes=4096 rios=2 wios=3 dbytes=0 dios=0\n7:1 \n");
        let expected = [("rbps", 1), ("wbps", 4096), ("riops", 2), ("wiops", 3)];
        assert_eq!(done, expected.map(|(name, value)| ((LOOP0, name), value)).into());
        assert_eq!(parse_pressure("some avg10=1.5 avg60=0 avg300=0 total=7\nfull"), Some(7000));
        let stat = "usage_usec 1\nnr_periods 10\nnr_throttled 4\nthrottled_usec 9\n";
        let cpu = parse_cpu("50000 100000\n", stat);
        assert_eq!(cpu, Some(Cpu { cpus: 0.5, periods: 10, throttled: 4 }));
        assert_eq!(parse_cpu("max 100000\n", stat), None);
    }

    #[test]
    fn limits_and_counters_of_v1() {
        let limits = parse_of_v1("7:0 150\n", "wiops", None);
        assert_eq!(limits, BTreeMap::from([((LOOP0, "wiops"), 150)]));
        let done = parse_of_v1("7:0 Read 5\n7:0 Write 12\nTotal 17\n", "wiops", Some("Write"));
        assert_eq!(done, BTreeMap::from([((LOOP0, "wiops"), 12)]));
    }

    #[test]
    fn memberships() {
        let lines = "7:blkio:/a\n1:cpu,cpuacct:/b\n0::/c:d\n";
        assert_eq!(path_of(lines, Version::V1), Some("/a"));
        assert_eq!(path_of(lines, Version::V2), Some("/c:d"));
        assert_eq!(path_of("", Version::V2), None);
    }

    /// The defect: `/../..` led out of the mounted hierarchy.
    #[test]
    fn a_cgroup_outside_of_the_namespace_was_another_directory() {
        let root = tempfile::tempdir().unwrap();
        let mount = root.path().join("mount").to_string_lossy().into_owned();
        let mut cgroups =
            Cgroups { hierarchies: Some(vec![(Version::V2, mount)]), ..Cgroups::default() };
        cgroups.find("0::/..a\n");
        assert_eq!((cgroups.found.len(), cgroups.has_hidden), (2, false));
        cgroups.find("0::/../../other\n");
        assert_eq!((cgroups.found.len(), cgroups.has_hidden), (2, true));
    }

    /// The defect: without a limit, a cgroup with waits for I/O was dropped.
    #[test]
    fn waits_without_a_limit_were_dropped() {
        let root = tempfile::tempdir().unwrap();
        let hierarchies = Some(vec![(Version::V2, root.path().to_string_lossy().into_owned())]);
        let mut cgroups = Cgroups { hierarchies, ..Cgroups::default() };
        let wait = |total: u64| {
            let text = format!("some avg10=0 avg60=0 avg300=0 total={total}\n");
            fs::write(root.path().join("io.pressure"), text).unwrap();
        };
        wait(1);
        cgroups.find("0::/\n");
        wait(5);
        cgroups.end();
        assert_eq!(cgroups.finish(&BTreeSet::new())[0].io_pressure_ns, Some(4000));
    }

    /// The counts covered a longer time than the rates were divided by.
    #[test]
    fn only_what_is_done_between_begin_and_end_counts() {
        let root = tempfile::tempdir().unwrap();
        let write = |wios: u64| {
            fs::write(root.path().join("io.max"), "7:0 wiops=150\n").unwrap();
            fs::write(root.path().join("io.stat"), format!("7:0 wios={wios}\n")).unwrap();
        };
        let hierarchies = Some(vec![(Version::V2, root.path().to_string_lossy().into_owned())]);
        let mut cgroups = Cgroups { hierarchies, ..Cgroups::default() };
        write(100);
        cgroups.find("0::/\n");
        write(200);
        cgroups.begin();
        write(325);
        cgroups.end();
        write(400);
        assert_eq!(cgroups.finish(&[LOOP0].into())[0].io[0].done, 125);
    }

    #[test]
    fn only_limits_of_devices_below_the_files_count() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
        write("io.max", "7:0 wiops=150\n8:0 wiops=9\n");
        write("io.stat", "7:0 wios=100\n");
        let first = CgroupReading::of(directory.path(), Version::V2);
        write("io.stat", "7:0 wios=250\n");
        let now = CgroupReading::of(directory.path(), Version::V2);
        let seen = now.since(&first, directory.path(), Version::V2, &[LOOP0].into());
        assert_eq!(seen.io.len(), 1, "{seen:?}");
        let limit = &seen.io[0];
        assert_eq!((limit.device, limit.per_second, limit.done), ((7, 0), 150, 150));
        assert_eq!((limit.file.as_str(), limit.quantity.as_str()), ("io.max", "wiops"));
    }
}
