//! `dioxide probe --for SYSTEM`: whether a path is fit for the log of a system. `system` has the
//! patterns and limits, `load` writes, `judge` decides.

pub mod judge;
mod load;
mod system;

use crate::args::SystemArg;
use crate::bench::place::BenchTarget;
use crate::bench::progress::Progress;
use crate::exit::say;
use anyhow::Result;
use judge::{Fitness, Latencies};
use std::time::Duration;
use system::{SYSTEMS, System};

/// Measures for `runtime`, and judges. `not_durable` is the reason why nothing is stored here.
pub fn of(
    place: &BenchTarget,
    named: SystemArg,
    runtime: Duration,
    not_durable: Option<&str>,
) -> Result<Fitness> {
    let system = named.system();
    say(&format!("{}: {} of load", system.name, humantime::format_duration(runtime)));
    let progress = Progress::of_time(runtime);
    progress.tell(system.name);
    let run = load::run(place, system, runtime, &progress)?;
    drop(progress);
    let clat = &run.writes.clat;
    let latencies = Latencies {
        count: clat.len(),
        runtime_ms: run.figures.elapsed.as_millis() as u64,
        writes_per_s: run.figures.iops,
        write_ns_p50: clat.value_at_percentile(50.0),
        write_ns_p99: clat.value_at_percentile(99.0),
        write_ns_p99_9: clat.value_at_percentile(99.9),
        write_ns_max: clat.max(),
    };
    judge::judge(system, latencies, not_durable)
}

impl SystemArg {
    fn system(self) -> &'static System {
        let [etcd, kafka, jetstream, postgres, raft, rocksdb] = &SYSTEMS;
        match self {
            Self::Etcd => etcd,
            Self::Kafka => kafka,
            Self::Jetstream => jetstream,
            Self::Postgres => postgres,
            Self::Raft => raft,
            Self::Rocksdb => rocksdb,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    #[test]
    fn names_are_those_of_the_command_line() {
        for named in SystemArg::value_variants() {
            assert_eq!(named.to_possible_value().unwrap().get_name(), named.system().name);
        }
        assert_eq!(SystemArg::value_variants().len(), SYSTEMS.len());
    }
}
