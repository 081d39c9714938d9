//! The memory in use, of the machine and of this process, from /proc.

use std::fs;

/// A reading.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Memory {
    /// Memory that is not available to other programs, in percent of the total.
    pub used_percent: f64,
    /// Resident memory of this process.
    pub rss_bytes: u64,
}

/// The memory in use now. None without /proc.
pub fn read() -> Option<Memory> {
    let used_percent = used_percent(&fs::read_to_string("/proc/meminfo").ok()?)?;
    let rss_kib = kib(&fs::read_to_string("/proc/self/status").ok()?, "VmRSS:")?;
    Some(Memory { used_percent, rss_bytes: rss_kib << 10 })
}

fn used_percent(meminfo: &str) -> Option<f64> {
    let (total, available) = (kib(meminfo, "MemTotal:")?, kib(meminfo, "MemAvailable:")?);
    (total > 0).then(|| 100.0 * total.saturating_sub(available) as f64 / total as f64)
}

/// `MemTotal:       16316412 kB`, among others.
fn kib(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.trim().strip_suffix("kB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields() {
        let text = "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    750 kB\n";
        assert_eq!(used_percent(text), Some(25.0));
        assert_eq!(used_percent("MemTotal:  1000 kB\n"), None);
        assert_eq!(kib("VmRSS:\t   12 kB\n", "VmRSS:"), Some(12));
        assert_eq!(kib("VmRSS:\t   12 pages\n", "VmRSS:"), None);
    }

    #[test]
    fn this_process() {
        let memory = read().unwrap();
        assert!((0.0..=100.0).contains(&memory.used_percent) && memory.rss_bytes > 0, "{memory:?}");
    }
}
