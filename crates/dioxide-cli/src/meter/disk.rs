//! The block device below a file, and how many requests it has completed, from sysfs.

use rustix::fs::{major, minor};
use std::fs;
use std::path::{Path, PathBuf};

/// A block device, or a partition of one.
#[derive(Clone, Debug)]
pub struct Disk {
    sysfs: PathBuf,
}

/// Requests completed by a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// A caller's wish for a flush counts here as an empty write, even if one flush served many wishes.
    pub writes: u64,
    /// Flushes that the device did.
    pub flushes: u64,
    /// How long completed requests were in flight, all of them together, in milliseconds.
    pub in_flight_ms: u64,
}

impl Counts {
    pub fn since(self, earlier: Self) -> Self {
        Self {
            writes: self.writes.wrapping_sub(earlier.writes),
            flushes: self.flushes.wrapping_sub(earlier.flushes),
            in_flight_ms: self.in_flight_ms.wrapping_sub(earlier.in_flight_ms),
        }
    }
}

impl Disk {
    /// The device with this number (`st_dev` of a file on it, or `st_rdev` of the device itself). None if
    /// no single block device has it (btrfs, tmpfs, network), or sysfs cannot be read.
    pub fn find(device: u64) -> Option<Self> {
        let link = format!("/sys/dev/block/{}:{}", major(device), minor(device));
        let sysfs = fs::canonicalize(link).ok()?;
        Some(Self { sysfs })
    }

    /// The kernel's name: `sda1`, `loop0`, `dm-3`.
    pub fn name(&self) -> String {
        self.sysfs.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// `write back` or `write through`.
    pub fn write_cache(&self) -> Option<String> {
        let text = fs::read_to_string(self.whole().join("queue/write_cache")).ok()?;
        Some(text.trim().to_owned())
    }

    /// What the device has completed so far.
    pub fn read(&self) -> Option<Counts> {
        let counts = parse_stat(&self.stat(&self.sysfs)?)?;
        // A flush concerns the whole device, and only there is it counted.
        let flushes = parse_stat(&self.stat(self.whole())?)?.flushes;
        Some(Counts { flushes, ..counts })
    }

    fn stat(&self, sysfs: &Path) -> Option<String> {
        fs::read_to_string(sysfs.join("stat")).ok()
    }

    /// The directory of the device that this one is a partition of, if it is one.
    fn whole(&self) -> &Path {
        match self.sysfs.parent() {
            Some(parent) if self.sysfs.join("partition").exists() => parent,
            _ => &self.sysfs,
        }
    }
}

/// Fields as in the kernel's Documentation/block/stat.rst: the 5th is writes completed, the 11th the time of
/// requests in flight, the 16th flushes completed (since 5.5).
pub fn parse_stat(text: &str) -> Option<Counts> {
    let fields: Vec<u64> = text.split_whitespace().map_while(|field| field.parse().ok()).collect();
    let field = |number: usize| fields.get(number - 1).copied();
    Some(Counts { writes: field(5)?, in_flight_ms: field(11)?, flushes: field(16)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_fields() {
        let text = "  57 1 2162 4 11 0 8 0 0 4 5 0 0 0 0 7 9\n";
        assert_eq!(parse_stat(text), Some(Counts { writes: 11, flushes: 7, in_flight_ms: 5 }));
        assert_eq!(parse_stat("1 2 3 4 5 6 7 8 9 10 11"), None, "older kernels count no flushes");
        assert_eq!(parse_stat(""), None);
    }

    #[test]
    fn differences() {
        let earlier = Counts { writes: 5, flushes: 1, in_flight_ms: 10 };
        let later = Counts { writes: 9, flushes: 4, in_flight_ms: 30 };
        assert_eq!(later.since(earlier), Counts { writes: 4, flushes: 3, in_flight_ms: 20 });
    }

    #[test]
    fn no_such_device() {
        assert!(Disk::find(0).is_none());
    }
}
