//! A comparison for people: a table for each scenario, and its summary in sentences. Judges
//! nothing.

use super::Comparison;
use super::change::Change;
use super::judge::{Basis, CHANCE_MAX, Compared, ROUNDS_MIN, Verdict, is_judged};
use crate::args::By;
use crate::bench::ratio::median;
use crate::meter::machine::{Machine, when};
use crate::output::{Page, Tint};
use crate::report::grid::Grid;
use crate::saved::SavedRow;
use dioxide_diagnose::words::{nanoseconds, rate as ops, short};
use std::io::Write;

/// The header of a column, and its text for a row.
type Column = (&'static str, fn(&Compared<'_>) -> String);

const PATH: &str = "path";
const VERDICT: &str = "verdict";
const COLUMNS: [Column; 15] = [
    ("numjobs", |row| row.old.key.numjobs.to_string()),
    (PATH, |row| row.old.key.path.clone()),
    ("iodepth", |row| row.old.key.iodepth.to_string()),
    ("iops old", |row| rate(&row.old.rounds_iops)),
    ("iops new", |row| rate(&row.new.rounds_iops)),
    ("iops change", |row| change(row.iops)),
    ("x kernel old", |row| known(row.ratio_to_kernel, |change| format!("{:.2}", change.old))),
    ("x kernel new", |row| known(row.ratio_to_kernel, |change| format!("{:.2}", change.new))),
    ("x kernel change", |row| change(row.ratio_to_kernel)),
    ("p", |row| known(row.p_adjusted, probability)),
    ("p99 old", |row| latency(row.old)),
    ("p99 new", |row| latency(row.new)),
    ("cpu us/op old", |row| cpu(row.old)),
    ("cpu us/op new", |row| cpu(row.new)),
    (VERDICT, |row| word(row.verdict).into()),
];

/// The columns that a narrow terminal may leave out, the most important first: the changes, the
/// depth, then the figures that are not judged.
const OPTIONAL: [usize; 12] = [8, 5, 2, 9, 6, 7, 3, 4, 10, 11, 12, 13];

/// The name of a verdict in the table.
fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Regression => "REGRESSION",
        Verdict::Slower => "slower",
        Verdict::Faster => "faster",
        Verdict::Machine => "the machine",
        Verdict::NoDifference => "not significant",
        Verdict::TooFewRounds => "too few rounds",
        Verdict::NoProgress => "a round did nothing",
        Verdict::NoCommonFigure => "no ratio in one run",
        Verdict::NotJudged => "-",
    }
}

pub fn print(comparison: &Comparison<'_>, out: &mut Page) -> anyhow::Result<()> {
    let width = out.width();
    for (name, machine) in [("old", &comparison.old.machine), ("new", &comparison.new.machine)] {
        writeln!(out, "{name}: {}", origin(machine))?;
    }
    writeln!(out)?;
    for rows in groups(comparison) {
        writeln!(out, "{}\n{:width$}\n", rows[0].old.key.work, table(rows))?;
    }
    for row in &comparison.rows {
        if let Some(sentence) = finding(row, comparison.rules.by) {
            out.tinted(tint(row.verdict), sentence)?;
        }
    }
    for sentence in summaries(comparison) {
        writeln!(out, "{sentence}")?;
    }
    Ok(())
}

/// The rows of each kind of work.
pub fn groups<'a, 'b>(comparison: &'b Comparison<'a>) -> impl Iterator<Item = &'b [Compared<'a>]> {
    comparison.rows.chunk_by(|one, next| one.old.key.work == next.old.key.work)
}

fn tint(verdict: Verdict) -> Option<Tint> {
    match verdict {
        Verdict::Regression => Some(Tint::Bad),
        Verdict::Slower | Verdict::Machine => Some(Tint::Warning),
        Verdict::Faster => Some(Tint::Good),
        _ => None,
    }
}

/// One run: when, with what, and where.
pub fn origin(machine: &Machine) -> String {
    let Machine { dioxide_version, kernel_release, cpus, target, device, .. } = machine;
    let device = device.as_ref().map(|device| format!(" on {device}")).unwrap_or_default();
    format!(
        "{} UTC, dioxide {dioxide_version}, {target}{device}, kernel {kernel_release}, {cpus} CPUs",
        when(&machine.date)
    )
}

pub fn table(rows: &[Compared<'_>]) -> Grid {
    let header = COLUMNS.map(|(name, _)| name.to_owned()).into();
    let rows = rows.iter().map(|row| COLUMNS.map(|(_, cell)| cell(row)).into()).collect();
    Grid::new(header, rows, |column| ![PATH, VERDICT].contains(&COLUMNS[column].0))
        .with_optional(OPTIONAL.into())
}

fn rate(rounds: &[f64]) -> String {
    known(median(rounds.to_vec()), short)
}

/// To four digits.
pub fn probability(p: f64) -> String {
    if p < 1e-4 { "<0.0001".into() } else { format!("{p:.4}") }
}

fn latency(row: &SavedRow) -> String {
    known(median(row.rounds_p99_ns.clone()), nanoseconds)
}

fn cpu(row: &SavedRow) -> String {
    known(median(row.rounds_cpu_us_per_op.clone()), |microseconds| format!("{microseconds:.1}"))
}

/// `-31.0 % (-35.2..-28.1)`
pub fn change(change: Option<Change>) -> String {
    known(change, |change| {
        let [ratio, low, high] = [change.ratio, change.low, change.high].map(percent);
        format!("{ratio:+.1} % ({low:+.1}..{high:+.1})")
    })
}

pub fn percent(ratio: f64) -> f64 {
    (ratio - 1.0) * 100.0
}

pub fn known<T>(value: Option<T>, show: impl Fn(T) -> String) -> String {
    value.map_or("-".into(), show)
}

/// What was found, then the summary and its limitations.
pub fn sentences(comparison: &Comparison<'_>) -> Vec<String> {
    let found = comparison.rows.iter().filter_map(|row| finding(row, comparison.rules.by));
    found.chain(summaries(comparison)).collect()
}

/// The summary and its limitations.
fn summaries(comparison: &Comparison<'_>) -> Vec<String> {
    let all = [
        Some(summary(comparison)),
        open(comparison),
        blind(comparison),
        resolution(comparison),
        machine(comparison),
        unlike(comparison),
        missing("old", &comparison.only_in_old),
        missing("new", &comparison.only_in_new),
    ];
    all.into_iter().flatten().collect()
}

/// The sentence for a row that differs.
fn finding(row: &Compared<'_>, by: By) -> Option<String> {
    let word = match row.verdict {
        Verdict::Regression => "slower, a regression",
        Verdict::Slower => "slower",
        Verdict::Faster => "faster",
        Verdict::Machine => return machine_changed(row),
        _ => return None,
    };
    let change = row.change()?;
    let [size, one, other] =
        [change.ratio, change.low, change.high].map(|ratio| percent(ratio).abs());
    let (least, most) = (one.min(other), one.max(other));
    let (old, new) = (change.old, change.new);
    let figures = match (row.basis, row.iops) {
        (Basis::RatioToKernel, iops) => {
            let iops = known(iops, |iops| format!("{:+.1} %", percent(iops.ratio)));
            format!(
                "relative to the kernel path: {old:.2}x as fast before, {new:.2}x now (ops/s: \
                 {iops})"
            )
        }
        _ if by == By::Ratio => {
            format!(
                "{} before, {} now; without a kernel path beside it the \
                 machine may be why",
                ops(old),
                ops(new)
            )
        }
        _ => format!("{} before, {} now", ops(old), ops(new)),
    };
    Some(format!("{}: {size:.1} % {word} ({least:.1} to {most:.1} %), {figures}.", row.old.key))
}

/// The sentence for a row that changed with the machine.
fn machine_changed(row: &Compared<'_>) -> Option<String> {
    let [own, other] = [row.iops?, row.witness?.iops].map(|iops| percent(iops.ratio));
    Some(format!(
        "{}: the machine changed: {own:+.1} % in ops/s, and {other:+.1} % on the path {} without \
         dioxide.",
        row.old.key, row.witness?.path
    ))
}

fn summary(comparison: &Comparison<'_>) -> String {
    let count = |verdict| comparison.count(|row| row.verdict == verdict);
    if comparison.count(|row| row.verdict.is_judged()) == 0 {
        return "None of the rows that both have is dioxide's, so none is judged; see --by ops."
            .into();
    }
    let judged = comparison.count(|row| row.verdict.is_known());
    let regressions = comparison
        .rules
        .limit_percent
        .map(|limit| format!("{} slower by more than {limit} %, ", count(Verdict::Regression)));
    let otherwise = if regressions.is_some() { "otherwise slower" } else { "slower" };
    format!(
        "Rows judged: {judged}, of which {}{} {otherwise}, {} faster, {} with the machine, {} \
         without a significant difference.",
        regressions.unwrap_or_default(),
        count(Verdict::Slower),
        count(Verdict::Faster),
        count(Verdict::Machine),
        count(Verdict::NoDifference),
    )
}

/// Rows without a verdict.
pub fn open(comparison: &Comparison<'_>) -> Option<String> {
    let few = comparison.count(|row| row.verdict == Verdict::TooFewRounds);
    let stuck = comparison.count(|row| row.verdict == Verdict::NoProgress);
    let few = (few > 0).then(|| {
        format!(
            "{few} of the rows cannot be judged: with fewer than {ROUNDS_MIN} rounds everything \
             may be chance. Measure with more of them (bench --rounds)."
        )
    });
    let stuck = (stuck > 0).then(|| {
        format!(
            "{stuck} of the rows cannot be judged: nothing was done in one of the rounds. Measure \
             longer ones (bench \
             --runtime)."
        )
    });
    let one_sided = comparison.count(|row| row.verdict == Verdict::NoCommonFigure);
    let one_sided = (one_sided > 0).then(|| {
        format!(
            "{one_sided} of the rows cannot be judged: one run only has a kernel path beside them \
             that worked in each round. Measure both with the same --numjobs, or longer rounds \
             (bench --runtime), or compare --by ops."
        )
    });
    let gone =
        comparison.only_in_old.iter().filter(|row| is_judged(row, comparison.rules.by)).count();
    let gone = (gone > 0).then(|| format!("The new run lacks {gone} of the rows to judge."));
    let machine = comparison
        .count(|row| row.verdict == Verdict::Machine && row.change().is_some_and(Change::is_loss));
    let machine = (machine > 0).then(|| {
        format!(
            "{machine} of the rows cannot be judged: the machine was slower. Measure both runs on \
             an equal one."
        )
    });
    let all = [few, stuck, one_sided, machine, gone];
    let all: Vec<_> = all.into_iter().flatten().collect();
    (!all.is_empty()).then(|| all.join(" "))
}

/// Whether a single row that differs would be missed, however large the difference.
pub fn blind(comparison: &Comparison<'_>) -> Option<String> {
    let tested = || comparison.rows.iter().filter(|row| row.p_adjusted.is_some());
    let count = tested().count() as f64;
    let blind = tested().filter(|row| row.p_min() * count >= CHANCE_MAX).count();
    (blind > 0).then(|| {
        format!(
            "With so few rounds, a change in any of {blind} rows alone among {count} would count \
             as chance. Measure more rounds (bench --rounds), or fewer rows."
        )
    })
}

/// The smallest change that would be noticed.
fn resolution(comparison: &Comparison<'_>) -> Option<String> {
    let tested = comparison.rows.iter().filter(|row| row.p_adjusted.is_some());
    let widths =
        tested.filter_map(|row| row.change().map(|change| (change.high / change.low).sqrt()));
    let width = percent(median(widths.collect())?);
    let loss = 100.0 - 100.0 / (1.0 + width / 100.0);
    let unnoticed = format!(
        "Typical uncertainty: ±{width:.1} %. Losses of up to {loss:.1} % could go unnoticed"
    );
    Some(match comparison.rules.limit_percent {
        Some(limit) if limit < loss => {
            format!("{unnoticed}, above the limit of {limit} %: measure more or longer rounds.")
        }
        _ => unnoticed + ".",
    })
}

/// The change of the machine.
fn machine(comparison: &Comparison<'_>) -> Option<String> {
    let kernel = comparison.rows.iter().filter(|row| row.old.key.path == "kernel");
    let changed = percent(median(kernel.filter_map(|row| Some(row.iops?.ratio)).collect())?);
    Some(format!(
        "The kernel's own path changed by {changed:+.1} % (median of its rows): as much of what \
         ops/s changed is the \
         machine's."
    ))
}

fn unlike(comparison: &Comparison<'_>) -> Option<String> {
    let [serious, harmless] =
        [&comparison.unlike.serious, &comparison.unlike.harmless].map(|all| all.join("; "));
    let serious = (!serious.is_empty())
        .then(|| format!("The runs are not alike: {serious}. What differs may be due to that."));
    let harmless = (!harmless.is_empty()).then(|| {
        format!(
            "The runs differ as default settings may: {harmless}. Ratios compare nevertheless; for \
             equal settings see bench --baseline."
        )
    });
    let all: Vec<_> = [serious, harmless].into_iter().flatten().collect();
    (!all.is_empty()).then(|| all.join(" "))
}

fn missing(run: &str, rows: &[&SavedRow]) -> Option<String> {
    let names: Vec<_> = rows.iter().map(|row| row.key.to_string()).collect();
    (!names.is_empty()).then(|| format!("Only in the {run} run: {}.", names.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::super::judge::Rules;
    use super::*;
    use crate::saved::SavedDocument;
    use crate::saved::examples::{document, row};
    use crate::terminal::Terminal;

    const KERNEL: [f64; 9] = [100.0, 101.0, 99.0, 102.0, 98.0, 103.0, 97.0, 104.0, 96.0];

    fn run(factor: f64, rounds: usize) -> SavedDocument {
        let kernel = &KERNEL[..rounds];
        let own: Vec<f64> = kernel
            .iter()
            .enumerate()
            .map(|(nth, iops)| iops * (factor + nth as f64 / 1e3))
            .collect();
        document(vec![row("kernel", 64, kernel, None), row("dioxide", 64, &own, Some(kernel))])
    }

    fn texts(
        old: &SavedDocument,
        new: &SavedDocument,
        limit_percent: Option<f64>,
    ) -> (String, Vec<String>) {
        let rules = Rules { by: By::Ratio, limit_percent };
        let comparison = Comparison::new(old, new, rules);
        let mut page = Page::new(Terminal::default());
        print(&comparison, &mut page).unwrap();
        (page.finished(), sentences(&comparison))
    }

    #[test]
    fn a_regression_is_a_row_and_a_sentence() {
        let (text, sentences) = texts(&run(5.0, 9), &run(3.5, 9), Some(10.0));
        let line = text.lines().find(|line| line.contains("REGRESSION")).expect(&text);
        assert!(line.contains("-30.0 % (-30.0..-29.9)") && line.contains("3.50"), "{text}");
        assert_eq!(
            sentences[0],
            "append bs=4 KiB on-sync, growth unwritten: dioxide numjobs=64 iodepth=1: 30.0 % \
             slower, a regression (29.9 to 30.0 %), relative to the kernel path: 5.00x as fast \
             before, 3.50x now (ops/s: -30.0 %)."
        );
        assert_eq!(
            sentences[1],
            "Rows judged: 1, of which 1 slower by more than 10 %, 0 otherwise slower, 0 faster, 0 \
             with the machine, 0 without a significant difference."
        );
        assert!(
            sentences.iter().any(|sentence| sentence.contains("changed by +0.0 %")),
            "{sentences:?}"
        );
    }

    #[test]
    fn the_machine_is_a_row_and_a_sentence() {
        let with = |preallocated: f64, dioxide: f64| {
            let own =
                |path, factor: f64| row(path, 64, &KERNEL.map(|iops| iops * factor), Some(&KERNEL));
            document(vec![
                row("kernel", 64, &KERNEL, None),
                own("preallocated", preallocated),
                own("dioxide", dioxide),
            ])
        };
        let (text, sentences) = texts(&with(40.0, 50.0), &with(3.4, 3.8), Some(10.0));
        assert!(text.contains("  the machine\n") && !text.contains("REGRESSION"), "{text}");
        assert_eq!(
            sentences[0],
            "append bs=4 KiB on-sync, growth unwritten: dioxide numjobs=64 iodepth=1: the machine \
             changed: -92.4 % in ops/s, and -91.5 % on the path preallocated without dioxide."
        );
        let open = "1 of the rows cannot be judged: the machine was slower.";
        assert!(sentences[2].starts_with(open), "{sentences:?}");
    }

    #[test]
    fn too_few_rounds_are_said() {
        let (text, sentences) = texts(&run(5.0, 3), &run(3.5, 3), None);
        assert!(text.contains("too few rounds") && !text.contains("REGRESSION"), "{text}");
        let is_said = |words: &str| sentences.iter().any(|sentence| sentence.contains(words));
        assert!(is_said("with fewer than 4 rounds everything may be chance"), "{sentences:?}");
        // The defect: the rows that cannot be judged were among the judged ones.
        assert!(is_said("Rows judged: 0, of which"), "{sentences:?}");
    }

    /// The defect: a kernel path that stood still in one round was said to be missing.
    #[test]
    fn a_kernel_path_without_progress_was_missing() {
        let mut stuck = run(5.0, 9);
        stuck.results[0].rounds_iops[4] = 0.0;
        stuck.results[1].rounds_ratio_to_kernel = None;
        let (_, sentences) = texts(&run(5.0, 9), &stuck, None);
        let open = "1 of the rows cannot be judged: one run only has a kernel path beside them \
                    that worked in each round.";
        assert!(sentences.iter().any(|sentence| sentence.starts_with(open)), "{sentences:?}");
    }

    #[test]
    fn a_row_that_would_be_overlooked_is_said() {
        let many = |factor: f64| {
            let rows = (1..=8).map(|numjobs| {
                row("dioxide", numjobs, &KERNEL.map(|iops| factor * iops)[..4], None)
            });
            document(rows.collect())
        };
        let is_said = |sentences: &[String]| {
            sentences.iter().any(|sentence| sentence.contains("would count as chance"))
        };
        let (_, sentences) = texts(&many(1.0), &many(1.0), None);
        assert!(is_said(&sentences), "{sentences:?}");
        let (_, sentences) = texts(&run(5.0, 9), &run(5.0, 9), None);
        assert!(!is_said(&sentences), "{sentences:?}");
    }

    #[test]
    fn rows_of_one_run_and_differences_are_listed() {
        let (old, mut new) = (run(5.0, 9), run(5.0, 9));
        new.results.pop();
        new.machine.kernel_release = "6.19".into();
        let (text, _) = texts(&old, &new, None);
        for words in [
            "Only in the old run: append bs=4 KiB",
            "not alike: kernel: 6.18.0 and 6.19.",
            "none is judged",
        ] {
            assert!(text.contains(words), "{words} in {text}");
        }
    }
}
