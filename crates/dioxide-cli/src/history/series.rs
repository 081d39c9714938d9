//! Series: the runs of one row that may be compared with each other, the oldest first. Pure.

use crate::args::By;
use crate::bench::ratio::median;
use crate::bench::work::is_dioxide;
use crate::compare::judge::Basis;
use crate::compare::unlike;
use crate::meter::machine::{Machine, when};
use crate::saved::{Key, SavedDocument, SavedRow, SavedWork};

/// A saved result.
pub struct SavedRun {
    /// The name of its file.
    pub file: String,
    pub document: SavedDocument,
}

impl SavedRun {
    /// `2026-11-22 21:15:03, label`: the time in UTC.
    pub fn title(&self) -> String {
        let date = when(&self.document.machine.date);
        match &self.document.label {
            Some(label) => format!("{date}, {label}"),
            None => date,
        }
    }
}

/// The row of one run.
#[derive(Clone, Copy)]
pub struct SeriesEntry<'a> {
    /// The index of its run.
    pub run: usize,
    pub row: &'a SavedRow,
    /// The median over its rounds of the figure by which the series is judged.
    pub value: f64,
    pub iops: f64,
}

pub struct Series<'a> {
    /// The index of its place.
    pub place: usize,
    pub basis: Basis,
    /// At least one.
    pub entries: Vec<SeriesEntry<'a>>,
}

impl<'a> Series<'a> {
    pub fn key(&self) -> &'a Key {
        &self.entries[0].row.key
    }

    pub fn values(&self) -> Vec<f64> {
        self.entries.iter().map(|entry| entry.value).collect()
    }

    pub fn is_judged(&self, by: By) -> bool {
        is_judged(self.key(), by)
    }

    /// The index of its newest run.
    pub fn newest(&self) -> usize {
        self.entries[self.entries.len() - 1].run
    }
}

/// How a series stands to the newest run of its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It has that run.
    Current,
    /// It has the run before, on the same place.
    Missing,
    /// It ended earlier, or on another place.
    Ended,
}

/// All runs in series.
pub struct Sorted<'a> {
    /// The machine and device of each place, from its oldest run.
    pub places: Vec<&'a Machine>,
    /// By place, then by work, in the order of their first runs.
    pub series: Vec<Series<'a>>,
    /// Why rows of one place and key are in several series, in words, each once.
    pub unlike: Vec<String>,
    /// Rows that are in no series, as one of their figures is zero, each with its run.
    pub stuck: Vec<(usize, &'a SavedRow)>,
    /// In order of time.
    sessions: Vec<Session<'a>>,
}

/// The rows of one work in one run.
#[derive(PartialEq)]
struct Session<'a> {
    run: usize,
    place: usize,
    work: &'a SavedWork,
}

/// Whether a regression may be dioxide's.
pub fn is_judged(key: &Key, by: By) -> bool {
    by == By::Ops || is_dioxide(&key.path)
}

/// `runs` are in order of time.
pub fn sort(runs: &[SavedRun], by: By) -> Sorted<'_> {
    let mut sorted = Sorted {
        places: Vec::new(),
        series: Vec::new(),
        unlike: Vec::new(),
        stuck: Vec::new(),
        sessions: Vec::new(),
    };
    for (run, SavedRun { document, .. }) in runs.iter().enumerate() {
        let place = sorted.place(&document.machine);
        for row in &document.results {
            let session = Session { run, place, work: &row.key.work };
            if !sorted.sessions.contains(&session) {
                sorted.sessions.push(session);
            }
            sorted.add(place, run, row, by);
        }
    }
    let sessions = &sorted.sessions;
    let first = |series: &Series<'_>| {
        let is_its = |it: &Session<'_>| it.place == series.place && *it.work == series.key().work;
        sessions.iter().position(is_its)
    };
    sorted.series.sort_by_key(|series| (series.place, first(series)));
    sorted
}

impl<'a> Sorted<'a> {
    /// The newest run of this work, and its place.
    fn newest(&self, work: &SavedWork) -> Option<&Session<'a>> {
        self.sessions.iter().rev().find(|it| it.work == work)
    }

    /// Whether a row belongs to the newest run of its work.
    pub fn is_newest(&self, run: usize, row: &SavedRow) -> bool {
        self.newest(&row.key.work).is_some_and(|newest| newest.run == run)
    }

    pub fn standing(&self, series: &Series<'_>) -> Standing {
        let work = &series.key().work;
        if self.newest(work).is_none_or(|newest| newest.place != series.place) {
            return Standing::Ended;
        }
        let is_its = |it: &&Session<'_>| it.work == work && it.place == series.place;
        let mut newest_first = self.sessions.iter().rev().filter(is_its);
        match newest_first.position(|it| it.run == series.newest()) {
            Some(0) => Standing::Current,
            Some(1) => Standing::Missing,
            _ => Standing::Ended,
        }
    }

    /// The place like this one, or a new one.
    fn place(&mut self, machine: &'a Machine) -> usize {
        let is_like = |place: &&Machine| unlike::of_places(place, machine).is_empty();
        self.places.iter().position(is_like).unwrap_or_else(|| {
            self.places.push(machine);
            self.places.len() - 1
        })
    }

    /// Adds a row to the series whose rows are all like it, or to a new one. Sizes that differ a
    /// little more each time would make a chain otherwise.
    fn add(&mut self, place: usize, run: usize, row: &'a SavedRow, by: By) {
        let basis = match (by, &row.rounds_ratio_to_kernel) {
            (By::Ratio, Some(_)) if is_dioxide(&row.key.path) => Basis::RatioToKernel,
            _ => Basis::Iops,
        };
        let Some(entry) = entry(run, row, basis) else {
            self.stuck.push((run, row));
            return;
        };
        let mut nearest: Option<Vec<String>> = None;
        for series in &mut self.series {
            if series.place != place || series.key() != &row.key {
                continue;
            }
            let serious = series.entries.iter().map(|it| unlike::of_terms(it.row, row).serious);
            let mut serious = serious.max_by_key(Vec::len).unwrap_or_default();
            if series.basis != basis {
                serious.push("a kernel path beside it: in some only".into());
            }
            if serious.is_empty() {
                series.entries.push(entry);
                return;
            }
            let is_nearer = nearest.as_ref().is_none_or(|all| serious.len() < all.len());
            nearest = if is_nearer { Some(serious) } else { nearest };
        }
        self.series.push(Series { place, basis, entries: vec![entry] });
        for difference in nearest.unwrap_or_default() {
            if !self.unlike.contains(&difference) {
                self.unlike.push(difference);
            }
        }
    }
}

/// None if a figure is missing or zero: it has no ratio to others.
fn entry<'a>(run: usize, row: &'a SavedRow, basis: Basis) -> Option<SeriesEntry<'a>> {
    let positive =
        |rounds: &[f64]| median(rounds.to_vec()).filter(|it| *it > 0.0 && it.is_finite());
    let iops = positive(&row.rounds_iops)?;
    let value = match (basis, &row.rounds_ratio_to_kernel) {
        (Basis::RatioToKernel, Some(ratios)) => positive(ratios)?,
        _ => iops,
    };
    Some(SeriesEntry { run, row, value, iops })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::saved::examples::{document, row};

    fn run(change: impl Fn(&mut SavedDocument)) -> SavedRun {
        let kernel = [100.0, 110.0, 120.0];
        let mut document = document(vec![
            row("kernel", 64, &kernel, None),
            row("dioxide", 64, &[500.0, 550.0, 630.0], Some(&kernel)),
        ]);
        change(&mut document);
        SavedRun { file: "x.json".into(), document }
    }

    fn lengths(sorted: &Sorted<'_>) -> Vec<usize> {
        sorted.series.iter().map(|series| series.entries.len()).collect()
    }

    #[test]
    fn like_rows_are_one_series() {
        let runs: Vec<_> = (0..3).map(|_| run(|_| ())).collect();
        let sorted = sort(&runs, By::Ratio);
        assert_eq!((lengths(&sorted), sorted.places.len()), (vec![3, 3], 1));
        let [kernel, dioxide] = &sorted.series[..] else { panic!("two") };
        assert_eq!((kernel.basis, kernel.entries[0].value), (Basis::Iops, 110.0));
        assert_eq!((dioxide.basis, dioxide.entries[0].value), (Basis::RatioToKernel, 5.0));
        assert_eq!((dioxide.entries[0].iops, dioxide.newest()), (550.0, 2));
        assert!(dioxide.is_judged(By::Ratio) && !kernel.is_judged(By::Ratio));
        assert_eq!(sort(&runs, By::Ops).series[1].values(), [550.0; 3]);
    }

    #[test]
    fn unlike_machines_and_settings_are_apart() {
        let runs = [
            run(|_| ()),
            run(|it| it.machine.kernel_release = "6.19".into()),
            run(|it| it.results[1].fs = Some("xfs".into())),
            run(|it| it.results[1].asked.runtime_ms = Some(1000)),
            run(|it| it.results[1].rounds_ratio_to_kernel = None),
        ];
        let sorted = sort(&runs, By::Ratio);
        assert_eq!((lengths(&sorted), sorted.places.len()), (vec![4, 2, 1, 1, 1, 1], 2));
        assert_eq!(
            sorted.unlike,
            ["file system: ext4 and xfs", "a kernel path beside it: in some only"]
        );
    }

    #[test]
    fn a_rate_of_zero_is_in_no_series() {
        let sorted = [run(|it| it.results[0].rounds_iops = vec![0.0, 0.0, 9.0])];
        let sorted = sort(&sorted, By::Ratio);
        assert_eq!((lengths(&sorted), sorted.stuck.len()), (vec![1], 1));
        assert!(sorted.is_newest(0, sorted.stuck[0].1));
    }

    /// Each size is like the one before, and the last is not like the first.
    #[test]
    fn settings_that_creep_are_no_chain() {
        let sizes = [1.0, 1.08, 1.16, 1.24].map(|factor| (f64::from(16 << 20) * factor) as u64);
        let runs = sizes.map(|size| run(|it| it.results[1].asked.size_bytes = size));
        let sorted = sort(&runs, By::Ratio);
        let dioxide = sorted.series.iter().filter(|it| it.key().path == "dioxide");
        assert_eq!(dioxide.map(|it| it.entries.len()).collect::<Vec<_>>(), [2, 2]);
    }

    #[test]
    fn a_row_is_current_missing_or_ended() {
        let without = |it: &mut SavedDocument| it.results.truncate(1);
        let other_work = |it: &mut SavedDocument| {
            it.results.iter_mut().for_each(|row| row.key.work.scenario = "random".into());
        };
        let other_place = |it: &mut SavedDocument| it.machine.kernel_release = "6.19".into();
        let standing = |runs: &[SavedRun]| {
            let sorted = sort(runs, By::Ratio);
            let first = sorted.series.iter().find(|it| it.key().path == "dioxide").unwrap();
            sorted.standing(first)
        };
        assert_eq!(standing(&[run(|_| ())]), Standing::Current);
        assert_eq!(standing(&[run(|_| ()), run(other_work)]), Standing::Current);
        assert_eq!(standing(&[run(|_| ()), run(without)]), Standing::Missing);
        assert_eq!(standing(&[run(|_| ()), run(without), run(without)]), Standing::Ended);
        assert_eq!(standing(&[run(|_| ()), run(other_place)]), Standing::Ended);
    }

    #[test]
    fn a_run_is_named_by_its_time_and_label() {
        let named = run(|it| {
            (it.machine.date, it.label) = ("2026-11-22T21:15:03Z".into(), Some("ab12".into()));
        });
        assert_eq!(named.title(), "2026-11-22 21:15:03, ab12");
    }
}
