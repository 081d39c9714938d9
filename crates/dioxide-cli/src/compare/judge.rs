//! Matches and judges the rows of two runs. Pure, so that tests can measure its error rates.

use super::change::Change;
use super::mann_whitney::p_value_min;
use crate::args::By;
use crate::bench::work::is_dioxide;
use crate::saved::{Key, SavedDocument, SavedRow};
use schemars::JsonSchema;
use serde::Serialize;

/// The false discovery rate of all rows together. More likely differences are not reported.
pub const CHANCE_MAX: f64 = 0.03;
/// With fewer rounds in both runs no result is significant.
pub const ROUNDS_MIN: usize = 4;

/// A path without dioxide that changed by this part of a row's change, in the logarithm, explains
/// it: that was the machine.
const EXPLAINED_MIN: f64 = 0.9;

/// The criteria of a judgement.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    pub by: By,
    /// A loss of more percent than this is a regression.
    pub limit_percent: Option<f64>,
}

/// The figure by which a row is judged.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Basis {
    RatioToKernel,
    Iops,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Slower by more than the limit.
    Regression,
    /// Slower, within the limit or without one.
    Slower,
    Faster,
    /// It changed as a path without dioxide beside it did.
    Machine,
    /// No significant difference.
    NoDifference,
    TooFewRounds,
    /// A run has a round with a rate of zero.
    NoProgress,
    /// Only one run has a kernel path for it.
    NoCommonFigure,
    /// Shown only: a path without dioxide, which reflects the machine.
    NotJudged,
}

/// A row of both runs.
#[derive(Debug)]
pub struct Compared<'a> {
    pub old: &'a SavedRow,
    pub new: &'a SavedRow,
    pub iops: Option<Change>,
    pub ratio_to_kernel: Option<Change>,
    pub basis: Basis,
    /// The expected share of chance results among differences as large (Benjamini and Hochberg).
    pub p_adjusted: Option<f64>,
    pub verdict: Verdict,
    /// The path that explains the change. Only for the verdict on the machine.
    pub witness: Option<Witness<'a>>,
}

/// A path without dioxide, beside a row.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Witness<'a> {
    pub path: &'a str,
    pub iops: Change,
}

impl Verdict {
    pub fn is_judged(self) -> bool {
        self != Self::NotJudged
    }

    /// Whether the row was to be judged, and could be.
    pub fn is_known(self) -> bool {
        let is_open = matches!(self, Self::TooFewRounds | Self::NoProgress | Self::NoCommonFigure);
        self.is_judged() && !is_open
    }

    fn is_change(self) -> bool {
        matches!(self, Self::Regression | Self::Slower | Self::Faster)
    }
}

impl Compared<'_> {
    /// Of the judged figure.
    pub fn change(&self) -> Option<&Change> {
        match self.basis {
            Basis::RatioToKernel => self.ratio_to_kernel.as_ref(),
            Basis::Iops => self.iops.as_ref(),
        }
    }

    /// The rounds of the judged figure, old and new.
    fn rounds(&self) -> [&[f64]; 2] {
        [self.old, self.new].map(|row| match (self.basis, &row.rounds_ratio_to_kernel) {
            (Basis::RatioToKernel, Some(ratios)) => &ratios[..],
            _ => &row.rounds_iops,
        })
    }

    /// The smallest possible p for this number of rounds.
    pub fn p_min(&self) -> f64 {
        let [old, new] = self.rounds();
        p_value_min(old.len(), new.len())
    }
}

/// The rows of both runs, in the order of the old one.
pub fn pairs<'a>(
    old: &'a SavedDocument,
    new: &'a SavedDocument,
) -> Vec<(&'a SavedRow, &'a SavedRow)> {
    let twin = |row: &SavedRow| new.results.iter().find(|other| other.key == row.key);
    old.results.iter().filter_map(|row| Some((row, twin(row)?))).collect()
}

/// The rows of `one` that `other` lacks.
pub fn missing<'a>(one: &'a SavedDocument, other: &SavedDocument) -> Vec<&'a SavedRow> {
    let is_there = |row: &SavedRow| other.results.iter().any(|twin| twin.key == row.key);
    one.results.iter().filter(|row| !is_there(row)).collect()
}

pub fn judge<'a>(pairs: &[(&'a SavedRow, &'a SavedRow)], rules: Rules) -> Vec<Compared<'a>> {
    let mut rows: Vec<_> = pairs.iter().map(|&(old, new)| compared(old, new, rules.by)).collect();
    let mut open: Vec<&mut Compared<'_>> =
        rows.iter_mut().filter(|row| row.verdict == Verdict::NoDifference).collect();
    let p: Vec<f64> = open.iter().map(|row| row.change().map_or(1.0, |change| change.p)).collect();
    for (row, p) in open.iter_mut().zip(adjusted(&p)) {
        row.p_adjusted = Some(p);
        row.verdict = verdict(row.change(), p, rules.limit_percent);
    }
    if rules.by == By::Ratio {
        let witnesses: Vec<_> = rows.iter().map(|row| witness(row, &rows)).collect();
        for (row, witness) in rows.iter_mut().zip(witnesses).filter(|(_, it)| it.is_some()) {
            (row.witness, row.verdict) = (witness, Verdict::Machine);
        }
    }
    rows
}

/// The path that explains a change best, if one does. A ratio to the kernel path already takes that
/// path into account. Where that ratio fell while the row gained, no machine explains the loss.
fn witness<'a>(row: &Compared<'a>, rows: &[Compared<'a>]) -> Option<Witness<'a>> {
    let own = row.iops.filter(|own| row.change().is_some_and(|change| change.agrees_with(own)));
    let own = own.filter(|_| row.verdict.is_change())?;
    let is_new = |path: &str| path != KERNEL || row.basis != Basis::RatioToKernel;
    let beside = rows.iter().filter(|other| {
        let path = other.old.key.path.as_str();
        !is_dioxide(path) && is_new(path) && is_beside(&row.old.key, &other.old.key)
    });
    let explained = |other: &Compared<'a>| {
        let iops = other.iops.filter(|iops| iops.p < CHANCE_MAX)?;
        Some((explained_share(&own, &iops)?, Witness { path: &other.old.key.path, iops }))
    };
    let nearest = |one: &(f64, _), other: &(f64, _)| one.0.total_cmp(&other.0);
    beside.filter_map(explained).min_by(nearest).map(|(_, witness)| witness)
}

/// The part of a change that the change of another path explains, in the logarithm. None if that is
/// too little.
pub fn explained_share(own: &Change, other: &Change) -> Option<f64> {
    let share = other.ratio.ln() / own.ratio.ln();
    ((other.is_loss() || other.is_gain()) && share >= EXPLAINED_MIN).then_some(share)
}

pub const KERNEL: &str = "kernel";

/// Whether a path without dioxide does the same work with as many threads, or as many operations in
/// flight.
pub fn is_beside(own: &Key, other: &Key) -> bool {
    let in_flight = |key: &Key| key.numjobs * key.iodepth;
    own.work == other.work && [own.numjobs, in_flight(own)].contains(&in_flight(other))
}

/// Paths without dioxide are judged only on request.
pub fn is_judged(row: &SavedRow, by: By) -> bool {
    by == By::Ops || is_dioxide(&row.key.path)
}

/// Judged on its own, before the correction for several rows.
fn compared<'a>(old: &'a SavedRow, new: &'a SavedRow, by: By) -> Compared<'a> {
    let iops = Change::of(&old.rounds_iops, &new.rounds_iops);
    let ratios = old.rounds_ratio_to_kernel.as_ref().zip(new.rounds_ratio_to_kernel.as_ref());
    let ratio_to_kernel = ratios.and_then(|(old, new)| Change::of(old, new));
    let basis = match (by, ratios) {
        (By::Ratio, Some(_)) => Basis::RatioToKernel,
        _ => Basis::Iops,
    };
    let mut row = Compared {
        old,
        new,
        iops,
        ratio_to_kernel,
        basis,
        p_adjusted: None,
        verdict: Verdict::NoDifference,
        witness: None,
    };
    let is_one_sided = old.rounds_ratio_to_kernel.is_some() != new.rounds_ratio_to_kernel.is_some();
    let [old_rounds, new_rounds] = row.rounds().map(<[f64]>::len);
    row.verdict = match row.change() {
        _ if !is_judged(old, by) => Verdict::NotJudged,
        _ if by == By::Ratio && is_one_sided => Verdict::NoCommonFigure,
        _ if old_rounds.min(new_rounds) < ROUNDS_MIN => Verdict::TooFewRounds,
        None => Verdict::NoProgress,
        Some(_) => Verdict::NoDifference,
    };
    row
}

fn verdict(change: Option<&Change>, p_adjusted: f64, limit_percent: Option<f64>) -> Verdict {
    let Some(change) = change.filter(|_| p_adjusted < CHANCE_MAX) else {
        return Verdict::NoDifference;
    };
    let is_regression = limit_percent.is_some_and(|percent| change.loses_more_than(percent));
    match () {
        () if is_regression => Verdict::Regression,
        () if change.is_loss() => Verdict::Slower,
        () if change.is_gain() => Verdict::Faster,
        () => Verdict::NoDifference,
    }
}

/// Among many tests some are significant by chance alone. Suppose all tests with an adjusted p
/// below `q` are believed. Then at most the share `q` of them is expected to be wrong. Without any
/// real difference, `q` is the probability of any finding.
pub fn adjusted(p: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|one, next| p[*one].total_cmp(&p[*next]));
    let mut adjusted = vec![1.0; p.len()];
    let mut smallest: f64 = 1.0;
    for (rank, index) in order.into_iter().enumerate().rev() {
        smallest = smallest.min(p[index] * p.len() as f64 / (rank + 1) as f64);
        adjusted[index] = smallest;
    }
    adjusted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::saved::examples::{document, row};
    use fastrand::Rng;

    const TEN_PERCENT: Rules = Rules { by: By::Ratio, limit_percent: Some(10.0) };

    /// Noise with a long tail on one side, as on a shared machine. Its mean is 0 in the logarithm.
    fn noise(rng: &mut Rng, size: f64) -> f64 {
        (size * (rng.f64() + rng.f64() + rng.f64() - 1.5)).exp()
            * if rng.u32(..50) == 0 { 0.7 } else { 1.0 }
    }

    /// Six numbers of threads on two paths. The speed of the whole machine varies from round to
    /// round, and from run to run.
    fn run(rng: &mut Rng, rounds: usize, dioxide: impl Fn(usize) -> f64) -> SavedDocument {
        let speed = noise(rng, 0.5);
        let rows = [1, 2, 4, 8, 16, 64].into_iter().flat_map(|numjobs| {
            let of_round: Vec<f64> = (0..rounds).map(|_| speed * noise(rng, 0.2)).collect();
            let mut iops = |factor: f64| -> Vec<f64> {
                of_round.iter().map(|speed| factor * 10_000.0 * speed * noise(rng, 0.1)).collect()
            };
            let (kernel, own) = (iops(1.0), iops(dioxide(numjobs)));
            [row("kernel", numjobs, &kernel, None), row("dioxide", numjobs, &own, Some(&kernel))]
        });
        document(rows.collect())
    }

    fn verdicts(old: &SavedDocument, new: &SavedDocument, rules: Rules) -> Vec<Verdict> {
        let judged = judge(&pairs(old, new), rules);
        judged.iter().map(|row| row.verdict).filter(|verdict| verdict.is_judged()).collect()
    }

    #[test]
    fn a_run_beside_itself_never_regresses() {
        let mut rng = Rng::with_seed(1);
        for rounds in [4, 5, 10, 23] {
            let document = run(&mut rng, rounds, |_| 5.0);
            for by in [By::Ratio, By::Ops] {
                let verdicts =
                    verdicts(&document, &document, Rules { by, limit_percent: Some(0.0) });
                assert!(
                    verdicts.iter().all(|verdict| *verdict == Verdict::NoDifference),
                    "{verdicts:?}"
                );
            }
        }
    }

    #[test]
    fn to_exchange_old_and_new_inverts() {
        let mut rng = Rng::with_seed(2);
        for _ in 0..5 {
            let (old, new) = (
                run(&mut rng, 9, |_| 5.0),
                run(&mut rng, 7, |numjobs| 5.0 - 0.04 * numjobs as f64),
            );
            let rules = Rules { limit_percent: None, ..TEN_PERCENT };
            let inverted = verdicts(&new, &old, rules).into_iter().map(|verdict| match verdict {
                Verdict::Slower => Verdict::Faster,
                Verdict::Faster => Verdict::Slower,
                other => other,
            });
            assert_eq!(verdicts(&old, &new, rules), inverted.collect::<Vec<_>>());
        }
    }

    #[test]
    fn noise_is_rarely_called_a_difference() {
        let mut rng = Rng::with_seed(3);
        let (mut differences, mut regressions) = (0, 0);
        const RUNS: usize = 200;
        for _ in 0..RUNS {
            let (old, new) = (run(&mut rng, 9, |_| 5.0), run(&mut rng, 9, |_| 5.0));
            let verdicts = verdicts(&old, &new, TEN_PERCENT);
            differences +=
                usize::from(verdicts.iter().any(|verdict| *verdict != Verdict::NoDifference));
            regressions += usize::from(verdicts.contains(&Verdict::Regression));
        }
        assert!(differences * 20 < RUNS, "{differences} of {RUNS} comparisons of six rows each");
        assert!(regressions * 100 < RUNS, "{regressions} of {RUNS}");
    }

    #[test]
    fn a_loss_of_30_percent_is_found_on_a_machine_that_is_not_the_same_from_run_to_run() {
        let mut rng = Rng::with_seed(4);
        const RUNS: usize = 100;
        let found = (0..RUNS).filter(|_| {
            let loses = |numjobs| if numjobs == 64 { 3.5 } else { 5.0 };
            let (old, new) = (run(&mut rng, 9, |_| 5.0), run(&mut rng, 9, loses));
            verdicts(&old, &new, TEN_PERCENT)[5] == Verdict::Regression
        });
        let found = found.count();
        assert!(found * 100 >= RUNS * 95, "{found} of {RUNS}");
    }

    #[test]
    fn a_slower_machine_is_no_regression_of_dioxide() {
        let kernel = [100.0, 104.0, 98.0, 101.0, 97.0];
        let at = |speed: f64, factor: f64| {
            let kernel = kernel.map(|iops| iops * speed);
            let own = kernel.map(|iops| iops * factor);
            document(vec![row("kernel", 4, &kernel, None), row("dioxide", 4, &own, Some(&kernel))])
        };
        let (old, new) = (at(1.0, 5.0), at(0.5, 5.0));
        assert_eq!(verdicts(&old, &new, TEN_PERCENT), [Verdict::NoDifference]);
        let by_ops = Rules { by: By::Ops, ..TEN_PERCENT };
        assert_eq!(
            verdicts(&old, &new, by_ops),
            [Verdict::Regression; 2],
            "every path, if asked for"
        );
    }

    /// The defect D11: on a slower device preallocated fell by 91.5 %, dioxide by 92.4 %, and the
    /// lock of the kernel path hid that.
    #[test]
    fn a_slower_device_is_no_regression_of_dioxide() {
        const KERNEL: [f64; 6] = [100.0, 104.0, 98.0, 101.0, 97.0, 99.0];
        let run = |preallocated: f64, dioxide: f64| {
            let rows = |factor: f64| KERNEL.map(|iops| iops * factor);
            let own = |path, numjobs, factor| row(path, numjobs, &rows(factor), Some(&KERNEL));
            let mut queue = own("dioxide-queue", 1, dioxide);
            queue.key.iodepth = 64;
            document(vec![
                row("kernel", 64, &KERNEL, None),
                own("preallocated", 64, preallocated),
                own("dioxide", 64, dioxide),
                queue,
            ])
        };
        let old = run(30.0, 33.0);
        let verdicts = |preallocated: f64, dioxide: f64| {
            verdicts(&old, &run(30.0 * preallocated, 33.0 * dioxide), TEN_PERCENT)
        };
        assert_eq!(verdicts(0.085, 0.076), [Verdict::Machine; 2]);
        assert_eq!(verdicts(1.0, 0.076), [Verdict::Regression; 2], "preallocated did not fall");
        assert_eq!(verdicts(0.6, 0.076), [Verdict::Regression; 2], "it fell less");
        assert_eq!(verdicts(1.5, 0.5), [Verdict::Regression; 2], "it gained");
        assert_eq!(verdicts(1.9, 2.0), [Verdict::Machine; 2], "a faster device is no merit");
        let new = run(30.0 * 0.085, 33.0 * 0.076);
        let judged = judge(&pairs(&old, &new), TEN_PERCENT);
        let witness = judged[2].witness.unwrap();
        assert_eq!(witness.path, "preallocated");
        assert!((witness.iops.ratio - 0.085).abs() < 1e-9 && judged[1].witness.is_none());
    }

    /// The kernel path doubled, preallocated and dioxide gained a fifth: the ratio fell to 3.
    #[test]
    fn a_faster_machine_hid_a_regression_of_the_ratio() {
        const AROUND: [f64; 6] = [1.0, 1.04, 0.98, 1.01, 0.97, 0.99];
        let run = |kernel: f64, preallocated: f64, dioxide: f64| {
            let [kernel, preallocated, dioxide] =
                [kernel, preallocated, dioxide].map(|level| AROUND.map(|around| level * around));
            document(vec![
                row("kernel", 64, &kernel, None),
                row("preallocated", 64, &preallocated, Some(&kernel)),
                row("dioxide", 64, &dioxide, Some(&kernel)),
            ])
        };
        let (old, new) = (run(100.0, 400.0, 500.0), run(200.0, 480.0, 600.0));
        assert_eq!(verdicts(&old, &new, TEN_PERCENT), [Verdict::Regression]);
        assert_eq!(verdicts(&new, &old, TEN_PERCENT), [Verdict::Faster]);
    }

    #[test]
    fn a_loss_within_the_limit_is_slower() {
        let old = document(vec![row("dioxide", 1, &[100.0, 101.0, 102.0, 99.0, 98.0], None)]);
        let new = document(vec![row("dioxide", 1, &[95.0, 94.0, 93.0, 96.0, 97.0], None)]);
        assert_eq!(verdicts(&old, &new, TEN_PERCENT), [Verdict::Slower]);
        assert_eq!(
            verdicts(&old, &new, Rules { limit_percent: Some(0.0), ..TEN_PERCENT }),
            [Verdict::Regression]
        );
        assert_eq!(verdicts(&new, &old, TEN_PERCENT), [Verdict::Faster]);
    }

    #[test]
    fn what_cannot_be_judged_is_called_so() {
        let few = document(vec![row("dioxide", 1, &[100.0, 101.0, 102.0], None)]);
        let half = document(vec![row("dioxide", 1, &[50.0, 51.0, 52.0], None)]);
        assert_eq!(verdicts(&few, &half, TEN_PERCENT), [Verdict::TooFewRounds]);
        let stuck = document(vec![row("dioxide", 1, &[50.0, 0.0, 52.0, 51.0], None)]);
        assert_eq!(verdicts(&stuck, &stuck, TEN_PERCENT), [Verdict::NoProgress]);
        let rounds = [100.0, 101.0, 102.0, 99.0, 98.0];
        let with_kernel = document(vec![row("dioxide", 1, &rounds, Some(&rounds))]);
        let without = document(vec![row("dioxide", 1, &rounds, None)]);
        assert_eq!(verdicts(&with_kernel, &without, TEN_PERCENT), [Verdict::NoCommonFigure]);
        assert_eq!(verdicts(&without, &without, TEN_PERCENT), [Verdict::NoDifference]);
    }

    #[test]
    fn the_fewest_rounds_can_show_something() {
        assert!(p_value_min(ROUNDS_MIN, ROUNDS_MIN) < CHANCE_MAX);
        assert!(p_value_min(ROUNDS_MIN - 1, ROUNDS_MIN - 1) > CHANCE_MAX);
    }

    #[test]
    fn rows_meet_by_what_they_are() {
        let old = document(vec![row("kernel", 1, &[1.0], None), row("dioxide", 1, &[1.0], None)]);
        let new = document(vec![row("dioxide", 2, &[1.0], None), row("dioxide", 1, &[1.0], None)]);
        let numjobs =
            |rows: Vec<&SavedRow>| rows.iter().map(|row| row.key.to_string()).collect::<Vec<_>>();
        assert_eq!(pairs(&old, &new).len(), 1);
        assert!(numjobs(missing(&old, &new))[0].contains("kernel numjobs=1"));
        assert!(numjobs(missing(&new, &old))[0].contains("dioxide numjobs=2"));
    }

    /// Values from `scipy.stats.false_discovery_control` of SciPy 1.17.
    #[test]
    fn many_tests_as_scipy() {
        let expected = [0.005, 0.2 / 3.0, 0.2 / 3.0, 0.25, 0.8];
        for (p, expected) in adjusted(&[0.001, 0.04, 0.03, 0.2, 0.8]).iter().zip(expected) {
            assert!((p - expected).abs() < 1e-12, "{p} instead of {expected}");
        }
        assert_eq!(adjusted(&[]), [0.0; 0]);
    }
}
