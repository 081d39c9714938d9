//! The activity of the whole machine, as in vmstat, from /proc/stat.

use rustix::param::clock_ticks_per_second;
use schemars::JsonSchema;
use serde::Serialize;
use std::fs;
use std::time::Duration;

/// A reading of /proc/stat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    cpu: Ticks,
    /// Tasks that wait for I/O right now.
    pub blocked: u64,
}

/// CPU time of all CPUs since boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ticks {
    user: u64,
    system: u64,
    idle: u64,
    wait: u64,
    steal: u64,
}

impl Ticks {
    fn busy(&self) -> u64 {
        self.user + self.system
    }
}

/// The shares of CPU time, in percent of all CPUs together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Shares {
    pub usr: f64,
    pub sys: f64,
    pub idle: f64,
    pub wait: f64,
    pub steal: f64,
}

/// The state of the machine now. None without /proc.
pub fn read() -> Option<Reading> {
    parse(&fs::read_to_string("/proc/stat").ok()?)
}

impl Reading {
    /// CPU time used by all CPUs together, in steps of the kernel's ticks.
    pub fn busy_since(&self, earlier: &Self) -> Duration {
        let ticks = self.cpu.busy().saturating_sub(earlier.cpu.busy());
        Duration::from_secs_f64(ticks as f64 / clock_ticks_per_second() as f64)
    }

    /// With the ticks between two readings.
    pub fn plus(self, before: &Self, after: &Self) -> Self {
        let with = |field: fn(&Ticks) -> u64| {
            field(&self.cpu) + field(&after.cpu).saturating_sub(field(&before.cpu))
        };
        let cpu = Ticks {
            user: with(|cpu| cpu.user),
            system: with(|cpu| cpu.system),
            idle: with(|cpu| cpu.idle),
            wait: with(|cpu| cpu.wait),
            steal: with(|cpu| cpu.steal),
        };
        Self { cpu, blocked: after.blocked }
    }

    /// None if no tick has passed.
    pub fn shares_since(&self, earlier: &Self) -> Option<Shares> {
        // Idle and waiting time may decrease slightly.
        let since =
            |field: fn(&Ticks) -> u64| field(&self.cpu).saturating_sub(field(&earlier.cpu)) as f64;
        let fields: [fn(&Ticks) -> u64; 5] =
            [|cpu| cpu.user, |cpu| cpu.system, |cpu| cpu.idle, |cpu| cpu.wait, |cpu| cpu.steal];
        let spent = fields.map(since);
        let all: f64 = spent.iter().sum();
        let [usr, sys, idle, wait, steal] = spent.map(|ticks| 100.0 * ticks / all);
        (all > 0.0).then_some(Shares { usr, sys, idle, wait, steal })
    }
}

/// `cpu user nice system idle iowait irq softirq steal ...` and `procs_blocked N`, among others.
pub fn parse(text: &str) -> Option<Reading> {
    let rest =
        |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let cpu: Vec<u64> =
        rest("cpu")?.split_whitespace().map_while(|field| field.parse().ok()).collect();
    let [user, nice, system, idle, wait, irq, softirq, steal, ..] = cpu[..] else { return None };
    let user = user.checked_add(nice)?;
    let system = system.checked_add(irq)?.checked_add(softirq)?;
    let cpu = Ticks { user, system, idle, wait, steal };
    Some(Reading { cpu, blocked: rest("procs_blocked")?.trim().parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    const EARLIER: &str =
        "cpu  10 1 20 300 40 2 3 5 0 0\ncpu0 1 1 1 1 1 1 1 1\nprocs_running 9\nprocs_blocked 7\n";

    #[test]
    fn fields() {
        let cpu = Ticks { user: 11, system: 25, idle: 300, wait: 40, steal: 5 };
        assert_eq!(parse(EARLIER), Some(Reading { cpu, blocked: 7 }));
        assert_eq!(parse("cpu  1 2 3\nprocs_blocked 7\n"), None);
        assert_eq!(parse(""), None);
        // A sum that overflows ended the program.
        let max = u64::MAX;
        assert_eq!(parse(&format!("cpu  1 {max} 3 4 5 6 7 8\nprocs_blocked 7\n")), None);
        assert_eq!(parse(&format!("cpu  1 2 {max} 4 5 6 7 8\nprocs_blocked 7\n")), None);
    }

    #[test]
    fn shares() {
        let earlier = parse(EARLIER).unwrap();
        let later = parse("cpu  30 1 60 310 70 2 3 5 0 0\nprocs_blocked 0\n").unwrap();
        let expected = Shares { usr: 20.0, sys: 40.0, idle: 10.0, wait: 30.0, steal: 0.0 };
        assert_eq!(later.shares_since(&earlier), Some(expected));
        assert_eq!(earlier.shares_since(&earlier), None);
        assert_eq!(
            later.busy_since(&earlier).as_secs_f64(),
            60.0 / clock_ticks_per_second() as f64
        );
        assert_eq!(earlier.busy_since(&later), Duration::ZERO);
    }

    #[test]
    fn this_machine() {
        assert!(read().is_some());
    }
}
