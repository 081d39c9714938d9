//! The whole library on the simulated disk, against a model. Several writers use calls and queues,
//! beside truncates and closes. There are faults, power cuts at any event, and recoveries. A seed
//! determines a run.
//!
//! `DIOXIDE_SEED=n` repeats one run, and `DIOXIDE_SEEDS=n` makes n runs. `DIOXIDE_SHARE=n` makes an
//! n-th of the usual number, and `DIOXIDE_HOURS=h` runs for h hours.

mod bytes;
mod files;
mod layout;
mod life;
mod oracle;
mod queues;
mod records;
mod writer;

use dioxide::sim;
use life::{Crashes, Life, Outcome};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Enough for each kind of run to occur often.
const SEEDS: u64 = 20_000;
const EXHAUSTIVE_SEEDS: u64 = 60;
const REPEATED_SEEDS: u64 = 100;

/// A test that runs one seed on request.
const RANDOM_CRASHES: &str = "nothing_acknowledged_is_lost_whatever_the_order_and_the_faults";

fn number(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|value| value.parse().unwrap_or_else(|_| panic!("{name}: not a number")))
}

fn run(seed: u64, crashes: Crashes) -> (Outcome, sim::Run) {
    let outcome = Mutex::default();
    let live = || match seed % 4 {
        2 => bytes::Life::new(seed, crashes).live(),
        3 if crashes != Crashes::Every => files::Life::new(seed, crashes).live(),
        _ => Life::new(seed, crashes).live(),
    };
    let ((), run) = sim::run(seed, || *outcome.lock().unwrap() = live());
    (outcome.into_inner().unwrap(), run)
}

/// The part of `seeds` that DIOXIDE_SHARE asks for.
fn share_of(seeds: u64) -> u64 {
    (seeds / number("DIOXIDE_SHARE").unwrap_or(1)).max(1)
}

/// Runs all seeds on all processors, and prints the sum of the outcomes.
fn run_all(name: &str, seeds: u64, crashes: Crashes) -> Outcome {
    if let Some(seed) = number("DIOXIDE_SEED") {
        let (outcome, run) = run(seed, crashes);
        println!("{name}, seed {seed}: {outcome:?}, {run:?}");
        return outcome;
    }
    let seeds = number("DIOXIDE_SEEDS").unwrap_or(seeds);
    let end =
        number("DIOXIDE_HOURS").map(|hours| Instant::now() + Duration::from_secs(hours * 3600));
    let is_over = |seed| end.map_or(seed >= seeds, |end| Instant::now() >= end);
    let (next, sum) = (AtomicU64::new(0), Mutex::new(Outcome::default()));
    let failed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let work = || {
            loop {
                let seed = next.fetch_add(1, Relaxed);
                if is_over(seed) || failed.load(Relaxed) {
                    return;
                }
                let done = std::panic::catch_unwind(|| run(seed, crashes));
                match done {
                    Ok((outcome, _)) => sum.lock().unwrap().add(&outcome),
                    Err(panic) => {
                        eprintln!("{name}: repeat with DIOXIDE_SEED={seed}");
                        failed.store(true, Relaxed);
                        std::panic::resume_unwind(panic);
                    }
                }
                if seed > 0 && seed.is_multiple_of(100_000) {
                    println!("{name}: {seed} seeds");
                }
            }
        };
        let workers = std::thread::available_parallelism().map_or(1, |count| count.get());
        (0..workers).for_each(|_| drop(scope.spawn(work)));
    });
    let sum = sum.into_inner().unwrap();
    println!("{name}: {sum:?}");
    sum
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes unless built with --release, as by make test")]
fn nothing_acknowledged_is_lost_whatever_the_order_and_the_faults() {
    let seeds = share_of(SEEDS);
    let sum = run_all("random crashes", seeds, Crashes::OneIn(24));
    if number("DIOXIDE_SEED").is_none() && number("DIOXIDE_SEEDS").is_none() {
        // The runs met each possible event.
        assert!(sum.operations > 20 * seeds && sum.crashes > 5 * seeds, "{sum:?}");
        assert!(
            sum.failed > seeds / 4 && sum.wedged > seeds / 50 && sum.full > seeds / 50,
            "{sum:?}"
        );
        assert!(
            sum.queued > 10 * seeds && sum.dropped > seeds / 2 && sum.closed_before > seeds / 500,
            "{sum:?}"
        );
        assert!(sum.truncate_beside > seeds / 5 && sum.died > seeds / 200, "{sum:?}");
        assert!(sum.striped > seeds / 6, "{sum:?}");
        assert!(sum.shared > seeds / 2, "{sum:?}");
        assert!(
            sum.undecided > seeds / 2 && sum.recycled > seeds / 20 && sum.cut > seeds / 10,
            "{sum:?}"
        );
    }
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes unless built with --release, as by make test")]
fn a_crash_at_every_event_and_in_every_recovery_from_it_loses_nothing() {
    let sum = run_all("every event", share_of(EXHAUSTIVE_SEEDS), Crashes::Every);
    assert!(sum.crashes > 0);
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes unless built with --release, as by make test")]
fn the_same_seed_gives_the_same_run() {
    for seed in 0..REPEATED_SEEDS {
        let crashes = Crashes::OneIn(24);
        assert_eq!(run(seed, crashes), run(seed, crashes), "seed {seed}");
    }
    let digests: std::collections::HashSet<_> =
        (0..REPEATED_SEEDS).map(|seed| run(seed, Crashes::Never).1.digest).collect();
    assert_eq!(digests.len() as u64, REPEATED_SEEDS);
}

/// The first run of a process took a lock more, so that `DIOXIDE_SEED` repeated another run.
#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes unless built with --release, as by make test")]
fn a_seed_alone_gives_the_run_that_it_has_among_others() {
    for seed in 0..8 {
        let alone = Command::new(std::env::current_exe().unwrap())
            .args(["--nocapture", "--exact", RANDOM_CRASHES])
            .env("DIOXIDE_SEED", seed.to_string())
            .output()
            .unwrap();
        let (outcome, run) = run(seed, Crashes::OneIn(24));
        let shown = String::from_utf8_lossy(&alone.stdout);
        assert!(shown.contains(&format!("{outcome:?}, {run:?}")), "seed {seed}: {shown}");
    }
}

/// Control: the model must fail on a disk that loses flushed data.
#[test]
#[should_panic(expected = "was durable")]
fn a_disk_that_lies_about_flushes_is_found() {
    for seed in 0..200 {
        sim::run(seed, || Life::new(seed, Crashes::OneIn(4)).on_a_lying_disk().live());
    }
}

/// Control: the model must fail for a program that acknowledges unflushed data.
#[test]
#[should_panic(expected = "was durable")]
fn a_program_that_acknowledges_without_flush_is_found() {
    for seed in 0..200 {
        sim::run(seed, || Life::new(seed, Crashes::OneIn(4)).acknowledging_too_early().live());
    }
}

/// The same control for many files.
#[test]
#[should_panic(expected = "was durable")]
fn a_disk_that_lies_about_flushes_is_found_by_many_files() {
    for seed in 0..200 {
        sim::run(seed, || files::Life::on_a_lying_disk(seed, Crashes::OneIn(4)).live());
    }
}

/// The same control for records of any length.
#[test]
#[should_panic(expected = "was durable")]
fn a_disk_that_lies_about_flushes_is_found_by_records_of_any_length() {
    for seed in 0..200 {
        sim::run(seed, || bytes::Life::new(seed, Crashes::OneIn(4)).on_a_lying_disk().live());
    }
}
