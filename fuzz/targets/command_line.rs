//! The command line with any input: sizes, durations, lists.
#![no_main]

#[path = "../../crates/dioxide-cli/src/args/mod.rs"]
#[allow(dead_code, unused_imports)]
mod args;
#[path = "../../crates/dioxide-cli/src/sizes.rs"]
#[allow(dead_code)]
mod sizes;
#[path = "../../crates/dioxide-cli/src/units.rs"]
#[allow(dead_code, unused_imports)]
mod units;

use args::{Cli, Command, ScenarioArgs};
use clap::Parser;
use libfuzzer_sys::fuzz_target;
use sizes::Sizes;

fuzz_target!(|line: &str| {
    if let Ok(count) = units::parse_bytes(line) {
        assert_eq!(units::parse_bytes(&units::bytes(count)), Ok(count), "a size prints as another");
    }
    let _ = units::parse_duration(line);
    let words = ["dioxide"].into_iter().chain(line.split_whitespace());
    let Ok(cli) = Cli::try_parse_from(words) else { return };
    let Command::Bench(bench) = cli.command else { return };
    let (bs, numjobs) = match bench.scenario {
        None => return,
        Some(ScenarioArgs::Append(append)) => (append.bs, append.numjobs),
        Some(ScenarioArgs::Sync(sync)) => (sync.bs, sync.numjobs),
        Some(ScenarioArgs::Mixed(mixed)) => (mixed.bs, mixed.numjobs),
        Some(ScenarioArgs::Files(files)) => (vec![files.bs], files.numjobs),
        Some(ScenarioArgs::Log(log)) => (log.bs, log.numjobs),
        Some(ScenarioArgs::Checkpoint(checkpoint)) => {
            (vec![checkpoint.bs], vec![checkpoint.numjobs])
        }
        Some(ScenarioArgs::Copy(copy)) => return assert!(!copy.rw.is_empty()),
        Some(ScenarioArgs::Indirect(indirect)) => {
            assert!(indirect.count != Some(0) && indirect.rounds != Some(0));
            return;
        }
    };
    let are_in_order =
        |bs: &Sizes| 0 < bs.min_bytes && bs.min_bytes <= bs.max_bytes && bs.max_bytes <= 16 << 20;
    assert!(!bs.is_empty() && bs.iter().all(are_in_order));
    assert!(!numjobs.is_empty() && numjobs.iter().all(|jobs| (1..=1024).contains(jobs)));
});
