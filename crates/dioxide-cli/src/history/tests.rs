//! Histories from made-up results.

use super::*;
use crate::args::By;
use crate::output::Page;
use crate::saved::SavedDocument;
use crate::saved::examples::{document, row};
use fastrand::Rng;

/// The level of each path relative to others, for one run.
struct Levels {
    kernel: f64,
    preallocated: f64,
    dioxide: f64,
}

const USUAL: Levels = Levels { kernel: 100.0, preallocated: 4000.0, dioxide: 5000.0 };

fn found(levels: impl Fn(usize) -> Levels, runs: usize) -> Found {
    let mut rng = Rng::with_seed(5);
    let runs = (0..runs).map(|nth| {
        let Levels { kernel, preallocated, dioxide } = levels(nth);
        let mut around = |level: f64| [(); 5].map(|()| level * (0.95 + 0.1 * rng.f64()));
        let (kernel, preallocated, dioxide) =
            (around(kernel), around(preallocated), around(dioxide));
        let mut document = document(vec![
            row("kernel", 64, &kernel, None),
            row("preallocated", 64, &preallocated, Some(&kernel)),
            row("dioxide", 64, &dioxide, Some(&kernel)),
        ]);
        document.machine.date = format!("2026-11-{:02}T10:00:00Z", nth + 1);
        document.machine.command_line = "dioxide bench append".into();
        SavedRun { file: format!("{nth}.json"), document }
    });
    Found { runs: runs.collect(), ..Found::default() }
}

fn history(found: &Found) -> JudgedHistory<'_> {
    JudgedHistory::new(found, Rules { by: By::Ratio, limit_percent: Some(10.0) }).unwrap()
}

fn of_dioxide<'a, 'b>(history: &'b JudgedHistory<'a>) -> &'b Judged<'a> {
    history.series.iter().find(|it| it.series.key().path == "dioxide").unwrap()
}

fn exit(history: &JudgedHistory<'_>) -> String {
    conclude(history).map_or_else(|error| error.to_string(), |()| "0".into())
}

fn on(history: &JudgedHistory<'_>, mut page: Page) -> String {
    text::print(history, &mut page).unwrap();
    page.finished()
}

fn printed(history: &JudgedHistory<'_>) -> String {
    on(history, Page::new(Terminal::default()))
}

/// Two paths that changed, and one that did not.
pub fn printed_example(page: Page) -> String {
    let is_old = |nth| nth < 12;
    let mut found = found(
        |nth| Levels {
            kernel: if is_old(nth) { 100.0 } else { 110.0 },
            preallocated: 4000.0,
            dioxide: if is_old(nth) { 5000.0 } else { 3500.0 },
        },
        20,
    );
    found.runs[12].document.label = Some("v1.2".into());
    on(&history(&found), page)
}

#[test]
fn a_regression_is_dioxides() {
    let found =
        found(|nth| Levels { dioxide: if nth < 12 { 5000.0 } else { 3500.0 }, ..USUAL }, 20);
    let history = history(&found);
    let dioxide = of_dioxide(&history);
    assert_eq!((dioxide.verdict, dioxide.steps.len()), (HistoryVerdict::Regression, 1));
    assert_eq!(dioxide.steps[0].at, 12);
    assert!((dioxide.steps[0].change.ratio - 0.7).abs() < 0.02);
    assert_eq!(exit(&history), "1 of 1 rows are slower by more than 10 % since a change");
    let text = printed(&history);
    let words = "slower, a regression (";
    assert!(text.contains(words) && text.contains("since 2026-11-13 10:00:00; relative"), "{text}");
    assert!(text.starts_with("20 results: 2026-11-01 to 2026-11-20"), "{text}");
}

#[test]
fn a_change_that_was_taken_back_is_no_regression() {
    let level = |nth| if (8..14).contains(&nth) { 3500.0 } else { 5000.0 };
    let found = found(|nth| Levels { dioxide: level(nth), ..USUAL }, 26);
    let history = history(&found);
    let dioxide = of_dioxide(&history);
    let at: Vec<_> = dioxide.steps.iter().map(|step| (step.at, step.verdict)).collect();
    assert_eq!(at, [(8, HistoryVerdict::Regression), (14, HistoryVerdict::Faster)]);
    assert_eq!(exit(&history), "0");
}

/// A small change must not hide it.
#[test]
fn a_regression_stands_until_it_is_taken_back() {
    let level = |nth| [5000.0, 3500.0, 4100.0][nth / 10];
    let slow = found(|nth| Levels { dioxide: level(nth), ..USUAL }, 30);
    let history = history(&slow);
    let at: Vec<_> = of_dioxide(&history).steps.iter().map(|it| (it.at, it.verdict)).collect();
    assert_eq!(at, [(10, HistoryVerdict::Regression), (20, HistoryVerdict::Faster)]);
    assert_eq!(exit(&history), "1 of 1 rows are slower by more than 10 % since a change");
}

#[test]
fn rows_without_a_figure_or_missing_are_not_judged() {
    let mut stalled = found(|_| USUAL, 14);
    let newest = |found: &mut Found| found.runs.len() - 1;
    let last = newest(&mut stalled);
    stalled.runs[last].document.results[2].rounds_iops = vec![0.0; 5];
    assert!(exit(&history(&stalled)).contains("the newest result does not have them"));
    // The second time, no run before has the row.
    stalled.runs[last - 1].document.results[2].rounds_iops = vec![0.0; 5];
    assert!(exit(&history(&stalled)).contains("did nothing in most rounds"));
    let mut missing = found(|_| USUAL, 14);
    missing.runs[13].document.results.truncate(2);
    assert_eq!(
        exit(&history(&missing)),
        "1 of the rows cannot be judged: the newest result does not have them"
    );
}

/// Each has its own newest result.
#[test]
fn every_work_is_judged_by_its_newest_result() {
    let mut found =
        found(|nth| Levels { dioxide: if nth < 12 { 5000.0 } else { 3500.0 }, ..USUAL }, 21);
    found.runs[20].document.results.iter_mut().for_each(|row| {
        row.key.work.scenario = "random".into();
    });
    let history = history(&found);
    assert_eq!(history.count(|it| it.verdict == HistoryVerdict::Regression), 1);
    assert_eq!(exit(&history), "1 of 1 rows are slower by more than 10 % since a change");
}

/// Values of two kinds: most ranks fall, but the medians may be of either kind.
#[test]
fn a_change_without_a_direction_is_none() {
    let level = |nth: usize| match (nth < 40, (nth + nth / 10).is_multiple_of(2)) {
        (true, true) => 5000.0,
        (true, false) => 4000.0,
        (false, true) => 4700.0,
        (false, false) => 3700.0,
    };
    let found = found(|nth| Levels { dioxide: level(nth), ..USUAL }, 80);
    let history = history(&found);
    let dioxide = of_dioxide(&history);
    let points = change_points::find(&[dioxide.series.values()], || Ok(())).unwrap();
    assert!(!points[0].is_empty(), "by ranks alone");
    assert_eq!((dioxide.steps.len(), dioxide.verdict), (0, HistoryVerdict::NoChange));
}

/// A slower device hides behind the lock of the kernel path.
#[test]
fn the_machine_is_not_blamed_on_dioxide() {
    let slower = |nth| if nth < 12 { 1.0 } else { 0.3 };
    let found = found(
        |nth| Levels { preallocated: 4000.0 * slower(nth), dioxide: 5000.0 * slower(nth), ..USUAL },
        20,
    );
    let history = history(&found);
    let dioxide = of_dioxide(&history);
    assert_eq!(dioxide.verdict, HistoryVerdict::Machine);
    assert_eq!(dioxide.steps[0].witness.unwrap().path, "preallocated");
    assert_eq!(exit(&history), "1 of the rows cannot be judged: the machine became slower");
    assert!(printed(&history).contains("the machine changed at 2026-11-13"));
}

/// The kernel path became four times as fast, preallocated and dioxide twice.
#[test]
fn a_faster_machine_hid_a_regression_of_the_ratio() {
    let faster = Levels { kernel: 400.0, preallocated: 8000.0, dioxide: 10000.0 };
    let found = found(|nth| if nth < 12 { USUAL } else { Levels { ..faster } }, 20);
    assert_eq!(of_dioxide(&history(&found)).verdict, HistoryVerdict::Regression);
}

#[test]
fn one_run_on_each_side_is_no_witness() {
    let slower = |nth| if nth < 12 { 1.0 } else { 0.6 };
    let mut found = found(
        |nth| Levels { preallocated: 4000.0 * slower(nth), dioxide: 5000.0 * slower(nth), ..USUAL },
        24,
    );
    for (nth, run) in found.runs.iter_mut().enumerate() {
        run.document.results.retain(|row| row.key.path != "preallocated" || [3, 20].contains(&nth));
    }
    assert_eq!(of_dioxide(&history(&found)).verdict, HistoryVerdict::Regression);
}

/// With eight rows, ten results do not suffice.
#[test]
fn the_missing_results_are_counted_for_all_rows() {
    let mut found = found(|_| USUAL, 7);
    for run in &mut found.runs {
        let own = run.document.results.pop().unwrap();
        for numjobs in 1..=8 {
            let mut row = own.clone();
            row.key.numjobs = numjobs;
            run.document.results.push(row);
        }
    }
    assert!(exit(&history(&found)).ends_with("Measure 5 more"), "{}", exit(&history(&found)));
}

#[test]
fn a_slower_machine_beside_its_kernel_path_is_no_change() {
    let slower = |nth| if nth < 12 { 1.0 } else { 0.5 };
    let levels = |nth| Levels {
        kernel: 100.0 * slower(nth),
        preallocated: 4000.0 * slower(nth),
        dioxide: 5000.0 * slower(nth),
    };
    let found = found(levels, 20);
    let history = history(&found);
    assert_eq!(
        (of_dioxide(&history).verdict, exit(&history)),
        (HistoryVerdict::NoChange, "0".into())
    );
    let kernel = &history.series[0];
    assert_eq!((kernel.verdict, kernel.is_current()), (HistoryVerdict::Machine, false));
}

#[test]
fn noise_and_an_outlier_are_no_change() {
    let level = |nth| if nth == 19 { 500.0 } else { 5000.0 };
    let found = found(|nth| Levels { dioxide: level(nth), ..USUAL }, 20);
    let history = history(&found);
    assert_eq!(
        (of_dioxide(&history).verdict, exit(&history)),
        (HistoryVerdict::NoChange, "0".into())
    );
}

#[test]
fn the_missing_results_are_counted() {
    let found = found(|_| USUAL, 7);
    let history = history(&found);
    assert_eq!(of_dioxide(&history).verdict, HistoryVerdict::TooFewRuns);
    assert_eq!(
        exit(&history),
        "1 of the rows cannot be judged: with fewer than 10 like results any change may be chance. \
         Measure 3 more"
    );
    // The defect: the rows that cannot be judged were among the judged ones.
    let text = printed(&history);
    assert!(text.contains("Rows judged: 0, by their last change"), "{text}");
    let two = JudgedHistory::new(&found, Rules { by: By::Ratio, limit_percent: None }).unwrap();
    assert_eq!(exit(&two), "0", "without a limit");
}

#[test]
fn another_machine_begins_again() {
    let mut found = found(|_| USUAL, 24);
    let later = |document: &mut SavedDocument| document.machine.kernel_release = "6.19".into();
    found.runs[12..].iter_mut().for_each(|run| later(&mut run.document));
    let history = history(&found);
    assert_eq!((history.places.len(), history.series.len()), (2, 6));
    let text = printed(&history);
    assert!(text.contains("Unlike machines are separate series: nvme0n1, kernel 6.18.0"), "{text}");
    assert_eq!(history.count(|_| true), 1);
    assert!(text.contains("or of other machines: 1 of the rows."), "{text}");
}

#[test]
fn the_newest_runs_are_what_counts() {
    let found =
        found(|nth| Levels { dioxide: if nth < 12 { 5000.0 } else { 3500.0 }, ..USUAL }, 24);
    let runs = found.runs.into_iter().skip(12).collect();
    let skipped = vec!["x.json is no JSON".into()];
    let newest = Found { runs, skipped, copies: 2, older: 12, ..Found::default() };
    let history = history(&newest);
    assert_eq!(exit(&history), "0");
    let text = printed(&history);
    for words in ["Skipped: x.json is no JSON.", "counted once: 2.", "left out by --newest: 12."] {
        assert!(text.contains(words), "{words} in {text}");
    }
}
