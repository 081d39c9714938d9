//! Whether a path is fit for a system: its latencies against the limits. Pure.

use super::system::System;
use anyhow::{Result, bail};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The 99.9th percentile of fewer writes is their maximum.
const COUNT_MIN: u64 = 1000;
/// So is the 99th percentile of fewer writes than these.
const P99_COUNT_MIN: u64 = 100;

/// Whether a path is fit for the log of a system.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Fitness {
    /// `etcd`, ...
    pub system: String,
    /// The measured writes, in a sentence.
    pub pattern: String,
    pub verdict: Outcome,
    /// Each condition. One that fails makes the verdict `fail`.
    pub checks: Vec<Check>,
    pub latencies: Latencies,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Pass,
    Fail,
}

/// Of durable writes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Latencies {
    /// Number of writes.
    pub count: u64,
    pub runtime_ms: u64,
    /// Of all writers together.
    pub writes_per_s: f64,
    /// Median, in nanoseconds.
    pub write_ns_p50: u64,
    /// 99th percentile, in nanoseconds.
    pub write_ns_p99: u64,
    /// 99.9th percentile, in nanoseconds.
    pub write_ns_p99_9: u64,
    /// The longest, in nanoseconds.
    pub write_ns_max: u64,
}

/// One condition.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Check {
    /// `p99`, `p99.9`, `max`, or `durable`.
    pub name: String,
    pub outcome: Outcome,
    /// In nanoseconds. Null for `durable`.
    pub found_ns: Option<u64>,
    /// In nanoseconds. Null for `durable`.
    pub limit_ns: Option<u64>,
    /// The origin of the limit; for `durable` the reason of a failure.
    pub source: String,
}

/// The verdict. An error if there are too few writes for one.
pub fn judge(system: &System, latencies: Latencies, not_durable: Option<&str>) -> Result<Fitness> {
    let found = [latencies.write_ns_p99, latencies.write_ns_p99_9, latencies.write_ns_max];
    let checks = ["p99", "p99.9", "max"].into_iter().zip(found).zip(system.limits);
    let checks = checks.map(|((name, found_ns), limit)| {
        let limit_ns = limit.max.as_nanos() as u64;
        Check {
            name: name.into(),
            outcome: outcome(found_ns <= limit_ns),
            found_ns: Some(found_ns),
            limit_ns: Some(limit_ns),
            source: limit.source.into(),
        }
    });
    let durable = Check {
        name: "durable".into(),
        outcome: outcome(not_durable.is_none()),
        found_ns: None,
        limit_ns: None,
        source: not_durable.unwrap_or("nothing is known against it").into(),
    };
    let checks: Vec<_> = checks.chain([durable]).collect();
    let verdict = outcome(checks.iter().all(|check| check.outcome == Outcome::Pass));
    let is_known = latencies.count >= COUNT_MIN || is_slow(system, &latencies);
    if !is_known && not_durable.is_none() {
        bail!(
            "{} durable writes in {} are too few for p99.9, which needs {COUNT_MIN}: give a \
             longer --runtime",
            latencies.count,
            humantime::format_duration(Duration::from_millis(latencies.runtime_ms)),
        );
    }
    let (system, pattern) = (system.name.into(), system.pattern());
    Ok(Fitness { system, pattern, verdict, checks, latencies })
}

/// A slow device does few writes, which suffice for a failure: by their median if they are very
/// few.
fn is_slow(system: &System, latencies: &Latencies) -> bool {
    let slowest_ns = match latencies.count {
        0 => return false,
        count if count < P99_COUNT_MIN => latencies.write_ns_p50,
        _ => latencies.write_ns_p99,
    };
    u128::from(slowest_ns) > system.limits[0].max.as_nanos()
}

fn outcome(is_passed: bool) -> Outcome {
    if is_passed { Outcome::Pass } else { Outcome::Fail }
}

impl Outcome {
    pub fn word(self) -> &'static str {
        match self {
            Self::Pass => "PASS",
            Self::Fail => "FAIL",
        }
    }
}

impl Fitness {
    /// The names of the conditions that failed.
    pub fn failed(&self) -> Vec<&str> {
        let failed = self.checks.iter().filter(|check| check.outcome == Outcome::Fail);
        failed.map(|check| check.name.as_str()).collect()
    }
}

#[cfg(test)]
pub mod tests {
    use super::super::system::SYSTEMS;
    use super::*;

    const MS: u64 = 1_000_000;

    fn latencies(count: u64, [p50, p99, p99_9, max]: [u64; 4]) -> Latencies {
        Latencies {
            count,
            runtime_ms: 60_000,
            writes_per_s: count as f64 / 60.0,
            write_ns_p50: p50 * MS,
            write_ns_p99: p99 * MS,
            write_ns_p99_9: p99_9 * MS,
            write_ns_max: max * MS,
        }
    }

    fn of_etcd(latencies: Latencies, not_durable: Option<&str>) -> Result<Fitness> {
        judge(&SYSTEMS[0], latencies, not_durable)
    }

    /// One of the conditions fails.
    pub fn etcd() -> Fitness {
        of_etcd(latencies(50_000, [1, 11, 100, 1000]), None).unwrap()
    }

    #[test]
    fn every_limit_must_hold() {
        let failed = |figures| {
            let fitness = of_etcd(latencies(50_000, figures), None).unwrap();
            assert_eq!(fitness.verdict == Outcome::Pass, fitness.failed().is_empty());
            fitness.failed().join(" ")
        };
        assert_eq!(failed([1, 10, 100, 1000]), "", "a limit itself is within");
        assert_eq!(failed([1, 11, 100, 1000]), "p99");
        assert_eq!(failed([1, 2, 101, 1000]), "p99.9");
        assert_eq!(failed([1, 2, 3, 1001]), "max");
        assert_eq!(failed([20, 40, 200, 2000]), "p99 p99.9 max");
    }

    #[test]
    fn a_fast_place_that_stores_nothing_fails() {
        let fast = latencies(50_000, [0, 0, 0, 1]);
        let fitness = of_etcd(fast, Some("tmpfs keeps files in memory")).unwrap();
        assert_eq!(fitness.failed(), ["durable"]);
        assert_eq!(fitness.checks[3].source, "tmpfs keeps files in memory");
    }

    /// The defect: 100 writes were enough, and p99.9 was their maximum.
    #[test]
    fn p99_9_was_judged_from_a_hundred_writes() {
        let refusal = of_etcd(latencies(999, [1, 2, 3, 4]), None).unwrap_err().to_string();
        assert!(refusal.starts_with("999 durable writes in 1m are too few"), "{refusal}");
        assert!(of_etcd(latencies(0, [0; 4]), None).is_err());
        assert!(of_etcd(latencies(1000, [1, 2, 3, 4]), None).is_ok());
    }

    #[test]
    fn few_writes_suffice_for_a_failure() {
        let verdict = |count, figures| {
            of_etcd(latencies(count, figures), None).ok().map(|fitness| fitness.verdict)
        };
        assert_eq!(verdict(40, [1500, 1600, 1600, 1600]), Some(Outcome::Fail), "by the median");
        assert_eq!(verdict(99, [1, 1600, 1600, 1600]), None, "p99 is the maximum");
        assert_eq!(verdict(100, [1, 1600, 1600, 1600]), Some(Outcome::Fail));
    }
}
