//! Self test of the kill tests' machinery: what a killed child acknowledged arrives, and no more.

use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use dioxide_testkit::child::{self, Ack, Acks};
use dioxide_testkit::trials::{Trial, TrialResult};

const LIMIT: Duration = Duration::from_secs(120);

/// Counts from 0 in each of as many threads as the argument says,
/// practically for ever.
fn count(acks: &Acks, args: &[String]) {
    let threads: u64 = args[0].parse().unwrap();
    thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || (0..u64::MAX).for_each(|n| acks.send([thread, n, thread ^ n])));
        }
    });
}

fn print_and_end(acks: &Acks, args: &[String]) {
    println!("a scenario's output goes to standard error");
    acks.send([args.len() as u64, 2, 3]);
}

fn fail(_acks: &Acks, _args: &[String]) {
    std::process::exit(3);
}

fn killed_child_has_whole_records_without_gaps() -> TrialResult {
    let mut child = child::spawn("count", &["8"])?;
    child.wait_for_acks(1000, LIMIT)?;
    let acks = child.kill_after(Duration::from_millis(50))?;
    assert!(acks.len() >= 1000);
    for thread in 0..8 {
        let of_thread: Vec<Ack> = acks.iter().copied().filter(|ack| ack[0] == thread).collect();
        let expected: Vec<Ack> =
            (0..of_thread.len() as u64).map(|n| [thread, n, thread ^ n]).collect();
        assert_eq!(of_thread, expected);
    }
    Ok(())
}

fn child_that_ends_is_reported() -> TrialResult {
    let (status, acks) = child::spawn("print-and-end", &["x", "y"])?.wait(LIMIT)?;
    assert!(status.success());
    assert_eq!(acks, [[2, 2, 3]]);
    Ok(())
}

fn child_that_fails_is_reported() -> TrialResult {
    let (status, acks) = child::spawn::<&str>("fail", &[])?.wait(LIMIT)?;
    assert_eq!((status.code(), acks.len()), (Some(3), 0));
    Ok(())
}

fn unknown_scenario_is_refused() -> TrialResult {
    let (status, _) = child::spawn::<&str>("nobody", &[])?.wait(LIMIT)?;
    assert_eq!(status.code(), Some(2));
    Ok(())
}

fn waiting_for_acks_of_an_ended_child_is_an_error() -> TrialResult {
    let error = child::spawn("print-and-end", &["x"])?.wait_for_acks(2, LIMIT).unwrap_err();
    assert!(error.to_string().starts_with("1 of 2 acknowledgements"), "{error}");
    Ok(())
}

fn trials() -> Vec<Trial> {
    vec![
        Trial::test(
            "killed_child_has_whole_records_without_gaps",
            killed_child_has_whole_records_without_gaps,
        ),
        Trial::test("child_that_ends_is_reported", child_that_ends_is_reported),
        Trial::test("child_that_fails_is_reported", child_that_fails_is_reported),
        Trial::test("unknown_scenario_is_refused", unknown_scenario_is_refused),
        Trial::test(
            "waiting_for_acks_of_an_ended_child_is_an_error",
            waiting_for_acks_of_an_ended_child_is_an_error,
        ),
    ]
}

fn main() -> ExitCode {
    dioxide_testkit::run(
        &[("count", count), ("print-and-end", print_and_end), ("fail", fail)],
        trials,
    )
}
