//! A diagnosis for people: the verdicts first, then the evidence.

use super::activity;
use super::change::{self, ObservationChange};
use super::document::{DiagnoseDocument, Diagnosis};
use crate::bench::ratio::median;
use crate::output::{self, Tint};
use crate::report::grid::Grid;
use crate::report::noise;
use crate::units;
use anyhow::Result;
use dioxide::text;
use dioxide_diagnose::evidence::{Rw, Step, Subject, Workload};
use dioxide_diagnose::finding::{Finding, Wall};
use dioxide_diagnose::usl::Fit;
use dioxide_diagnose::waits::{Wait, over_files};
use dioxide_diagnose::words::{counted, percent, rate, short, threads};
use std::collections::BTreeSet;
use std::io::{self, Write};

/// The width of prose without a terminal, and on wide ones: longer lines are hard to read.
const WIDTH_MAX: usize = 100;
/// Waits with less of the I/O time are left out.
const SHARE_MIN: f64 = 0.005;
/// Characters of a path.
const FILE_MAX: usize = 30;
/// Characters of a command line.
const COMMAND_MAX: usize = 80;
/// Maximum rows of waits outside I/O, of which there are many kinds.
const IDLE_MAX: usize = 3;

/// Prints all of it. With several workloads the curves are lines, unless `verbose`.
pub fn print(document: &DiagnoseDocument, verbose: bool, out: &mut output::Page) -> Result<()> {
    let page = LineWidths::new(out.width());
    let diagnoses = &document.diagnoses;
    let is_brief = diagnoses.len() > 1 && !verbose;
    if diagnoses.len() > 1 {
        writeln!(out, "{:1$}\n", summary(document), page.table_width)?;
    }
    for diagnosis in diagnoses {
        page.verdicts(document, diagnosis, out)?;
        if is_brief {
            writeln!(out, "{}", page.paragraph(&curve_in_a_line(diagnosis)))?;
        } else if !diagnosis.evidence.curve.is_empty() {
            let width = page.table_width;
            writeln!(out, "{:width$}\n\n{}", curve(diagnosis), page.law(diagnosis))?;
        }
    }
    if let Some(change) = &document.change {
        write!(out, "{}", page.change(change))?;
    }
    if is_brief {
        write!(
            out,
            "{}",
            page.paragraph("With --verbose: the curves as tables, and the law that they follow.")
        )?;
    }
    Ok(write!(
        out,
        "{}",
        unseen(diagnoses).iter().map(|text| page.paragraph(text)).collect::<String>()
    )?)
}

/// The widths of lines.
struct LineWidths {
    /// Of prose.
    width: usize,
    /// 0 without a limit.
    table_width: usize,
}

impl LineWidths {
    fn new(table_width: usize) -> Self {
        let width = if table_width == 0 { WIDTH_MAX } else { table_width.min(WIDTH_MAX) };
        Self { width, table_width }
    }

    /// The verdicts and the wait table.
    fn verdicts(
        &self,
        document: &DiagnoseDocument,
        diagnosis: &Diagnosis,
        out: &mut output::Page,
    ) -> io::Result<()> {
        let (subject, conditions) = title(document, diagnosis);
        writeln!(out, "{}", self.paragraph(&format!("{subject}: {conditions}")))?;
        for finding in &diagnosis.findings {
            out.tinted(tint(finding.wall), self.paragraph(&finding.verdict).trim_end())?;
            writeln!(out, "{}", self.reasons(finding))?;
        }
        for warning in &diagnosis.warnings {
            out.tinted(Some(Tint::Warning), self.paragraph(warning))?;
        }
        write!(out, "{}", waits(diagnosis, self.table_width))?;
        let tables = activity::tables(&diagnosis.evidence, self.table_width);
        let remarks = activity::remarks(&diagnosis.evidence);
        let remarks: String = remarks.iter().map(|remark| self.paragraph(remark)).collect();
        for part in [tables, remarks].iter().filter(|part| !part.is_empty()) {
            write!(out, "\n{part}")?;
        }
        writeln!(out)
    }

    /// What changed since an earlier observation.
    fn change(&self, change: &ObservationChange) -> String {
        let mut text = format!("\n{}", self.paragraph(&change::text::title(change)));
        for (title, grid) in change::text::tables(change) {
            text += &format!("\n{title}\n{grid:width$}\n", width = self.table_width);
        }
        let limits = change::text::limits(change);
        text + "\n" + &limits.iter().map(|limit| self.paragraph(limit)).collect::<String>()
    }

    fn law(&self, diagnosis: &Diagnosis) -> String {
        law(diagnosis).iter().map(|sentence| self.paragraph(sentence)).collect()
    }

    /// The evidence and advice of a verdict, indented.
    fn reasons(&self, finding: &Finding) -> String {
        let lines = |name: &str, lines: &[String]| -> String {
            lines.iter().map(|line| self.hanging(&format!("  {name}: "), line)).collect()
        };
        lines("seen", &finding.evidence) + &lines("advice", &finding.advice)
    }

    fn paragraph(&self, text: &str) -> String {
        textwrap::fill(&text::shown(text).to_string(), output::wrapping(self.width)) + "\n"
    }

    fn hanging(&self, name: &str, text: &str) -> String {
        let indent = " ".repeat(name.len());
        let options = output::wrapping(self.width).initial_indent(name).subsequent_indent(&indent);
        textwrap::fill(&text::shown(text).to_string(), options) + "\n"
    }
}

/// A wall that the program can avoid is a warning.
fn tint(wall: Wall) -> Option<Tint> {
    match wall {
        Wall::Nothing => Some(Tint::Good),
        Wall::Device | Wall::PageCache | Wall::Processor | Wall::Unknown => None,
        _ => Some(Tint::Warning),
    }
}

/// The wait table.
fn waits(diagnosis: &Diagnosis, width: usize) -> String {
    if diagnosis.waits.is_empty() {
        return String::new();
    }
    let is_of_program = matches!(diagnosis.evidence.subject, Subject::Program { .. });
    // The file of a workload is the scratch file.
    let columns = &COLUMNS[..if is_of_program { COLUMNS.len() } else { COLUMNS.len() - 1 }];
    let merged = over_files(&diagnosis.waits);
    let (shown, hidden) = shown(&merged);
    let header = columns.iter().map(|(name, _)| (*name).to_owned()).collect();
    let rows =
        shown.iter().map(|wait| columns.iter().map(|(_, cell)| cell(wait)).collect()).collect();
    let optional = OPTIONAL.into_iter().filter(|column| *column < columns.len()).collect();
    let table = Grid::new(header, rows, |column| column < 2).with_optional(optional);
    let rest = if hidden.is_empty() {
        String::new()
    } else {
        format!("({} more with --json)\n", hidden.len())
    };
    format!("{table:width$}\n{rest}")
}

/// The scalability law, and the cost of the observation.
pub fn law(diagnosis: &Diagnosis) -> Vec<String> {
    let law = diagnosis.usl.iter().map(|law| law.sentences.join(" "));
    let refusal = diagnosis
        .usl_refusal
        .iter()
        .map(|why| format!("No fit of the Universal Scalability Law: {why}."));
    law.chain(refusal).chain(cost(diagnosis)).chain(noise(diagnosis)).collect()
}

/// A reservation about the rates.
fn noise(diagnosis: &Diagnosis) -> Option<String> {
    let rounds =
        |step: &Step| noise::Rounds { name: threads(step.numjobs), iops: step.iops.clone() };
    noise::of(&diagnosis.evidence.curve.iter().map(rounds).collect::<Vec<_>>())
}

/// The header of a column, and its text for a wait.
pub type Column = (&'static str, fn(&Wait) -> String);

pub const COLUMNS: [Column; 7] = [
    ("share", |wait| wait.share.map_or("-".into(), percent)),
    ("threads", |wait| format!("{:.1}", wait.threads)),
    ("waits for", |wait| wait.object().into()),
    ("in", |wait| known(&wait.function)),
    ("call", |wait| known(&wait.call)),
    ("task", |wait| wait.task.clone()),
    ("file", |wait| wait.file.as_deref().map_or("-".into(), end_of)),
];

/// The columns that a narrow terminal may leave out, the most important first.
const OPTIONAL: [usize; 4] = [6, 3, 4, 5];

/// The relevant waits, and the others.
fn shown(waits: &[Wait]) -> (Vec<&Wait>, Vec<&Wait>) {
    let mut idle = 0;
    waits.iter().partition(|wait| match wait.share {
        Some(share) => share >= SHARE_MIN,
        None => {
            idle += 1;
            idle <= IDLE_MAX
        }
    })
}

fn known(name: &Option<String>) -> String {
    name.clone().unwrap_or("-".into())
}

/// The end of a path, which distinguishes files best.
pub fn end_of(path: &str) -> String {
    let left_out = path.chars().count().saturating_sub(FILE_MAX);
    let dots = if left_out > 0 { "..." } else { "" };
    format!("{dots}{}", path.chars().skip(left_out).collect::<String>())
}

/// The subject, and the conditions of its observation.
pub fn title(document: &DiagnoseDocument, diagnosis: &Diagnosis) -> (String, String) {
    let evidence = &diagnosis.evidence;
    match &evidence.subject {
        Subject::Workload(workload) => {
            let steps: Vec<_> =
                evidence.curve.iter().map(|step| step.numjobs.to_string()).collect();
            let rounds = evidence.curve.first().map_or(0, |step| step.iops.len());
            let runtime = diagnosis.asked.and_then(|asked| asked.runtime_ms).unwrap_or(0);
            let conditions = format!(
                "{}, {}; {} {}, {} of {runtime} ms each",
                if workload.is_durable { "every write durable" } else { "synced once at the end" },
                place(document, workload),
                steps.join(", "),
                if steps == ["1"] { "thread" } else { "threads" },
                counted(rounds as u64, "round"),
            );
            (heading(workload), conditions)
        }
        Subject::Program { pid, command, processes, selected } => {
            let selected = selected.as_ref().map(|how| format!(", of {how}")).unwrap_or_default();
            let more = match processes {
                0 | 1 => String::new(),
                more => format!(" and {} more", more - 1),
            };
            let conditions = match processes {
                0 => "it ended before it was sampled".into(),
                _ => format!(
                    "{}, watched for {:.1} s{}",
                    counted(evidence.threads, "thread"),
                    evidence.watched_ns as f64 / 1e9,
                    if evidence.has_ended { ", until it ended" } else { "" }
                ),
            };
            (format!("Process {pid}{more} ({}){selected}", start_of(command)), conditions)
        }
    }
}

/// The start of a command line, which may have thousands of arguments.
fn start_of(command: &str) -> String {
    match command.char_indices().nth(COMMAND_MAX) {
        Some((end, _)) => format!("{}...", &command[..end]),
        None => command.to_owned(),
    }
}

fn heading(workload: &Workload) -> String {
    let bs = units::size(workload.bs_bytes);
    match workload.rw {
        Rw::Append => format!("Appends of {bs}"),
        Rw::Overwrite => format!("Overwrites of {bs}"),
        Rw::Hole => format!("Writes of {bs} into a hole"),
        Rw::Sync => format!("Sync writes of {bs}"),
        Rw::Mixed => format!("Mixed reads and writes of {bs}"),
    }
}

/// `ext4 on loop0`, `btrfs`, `/dev/loop5`.
fn place(document: &DiagnoseDocument, workload: &Workload) -> String {
    let Some(fs) = &document.fs else { return workload.place.clone() };
    let device = document.machine.device.as_ref().map(|device| format!(" on {device}"));
    let remark = document.fs_remark.as_ref().map(|remark| format!(" ({remark})"));
    format!("{fs}{}{}", device.unwrap_or_default(), remark.unwrap_or_default())
}

/// Throughput by number of threads; at the last step also on other paths.
pub fn curve(diagnosis: &Diagnosis) -> Grid {
    let evidence = &diagnosis.evidence;
    let base = base(diagnosis);
    // The figures of a poor fit mean nothing.
    let law = diagnosis.usl.as_ref().filter(|law| !law.is_poor);
    let ratio = format!("x {}", threads(evidence.curve[0].numjobs));
    let header = ["path", "threads", "ops/s", "range", &ratio].map(String::from);
    let header = header.into_iter().chain(law.map(|_| "by the law".into()));
    let steps = evidence.curve.iter().map(|step| (KERNEL, step.numjobs, &step.iops));
    let others = evidence.others.iter().map(|other| (&*other.path, other.numjobs, &other.iops));
    let row = |(path, numjobs, iops): (&str, usize, &Vec<f64>)| {
        let middle = median(iops.clone());
        let by_law = |law: &Fit| {
            if path == KERNEL { short(law.at(numjobs as f64)) } else { "-".into() }
        };
        let cells = [
            path.into(),
            numjobs.to_string(),
            middle.map_or("-".into(), short),
            if iops.len() > 1 { range(iops) } else { "-".into() },
            middle.zip(base).map_or("-".into(), |(rate, base)| format!("{:.2}", rate / base)),
        ];
        cells.into_iter().chain(law.map(by_law)).collect()
    };
    Grid::new(header.collect(), steps.chain(others).map(row).collect(), |column| column > 0)
}

/// The same in a sentence.
fn curve_in_a_line(diagnosis: &Diagnosis) -> String {
    let evidence = &diagnosis.evidence;
    let rate = |iops: &[f64]| median(iops.to_vec()).map_or("-".into(), rate);
    let steps =
        evidence.curve.iter().map(|step| format!("{} with {}", rate(&step.iops), step.numjobs));
    let others = evidence
        .others
        .iter()
        .map(|other| format!("; {} {} with {}", other.path, rate(&other.iops), other.numjobs));
    format!(
        "By threads: {}{}. {}",
        steps.collect::<Vec<_>>().join(", "),
        others.collect::<String>(),
        cost(diagnosis).unwrap_or_default()
    )
}

/// The name in `bench`.
const KERNEL: &str = "kernel";

/// The throughput of the smallest number of threads.
fn base(diagnosis: &Diagnosis) -> Option<f64> {
    median(diagnosis.evidence.curve.first()?.iops.clone())
}

fn range(rates: &[f64]) -> String {
    let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
    let most = rates.iter().copied().fold(0.0, f64::max);
    format!("{}..{}", short(least), short(most))
}

/// The possible cost of the observation itself.
fn cost(diagnosis: &Diagnosis) -> Option<String> {
    let last = diagnosis.evidence.curve.last()?;
    Some(format!(
        "These rates are unobserved; the observed run, with {}, did {} ({} unobserved).",
        threads(last.numjobs),
        rate(diagnosis.watched_iops?),
        range(&last.iops)
    ))
}

/// Each reason once.
pub fn unseen(diagnoses: &[Diagnosis]) -> Option<String> {
    let unseen: BTreeSet<_> =
        diagnoses.iter().flat_map(|diagnosis| &diagnosis.evidence.unseen).cloned().collect();
    let unseen: Vec<_> = unseen.into_iter().collect();
    (!unseen.is_empty()).then(|| format!("Not seen: {}.", unseen.join("; ")))
}

/// A summary of all workloads.
pub fn summary(document: &DiagnoseDocument) -> Grid {
    let header = ["work", "from", "", "to", "", "ratio", "wall"].map(String::from).into();
    let row = |diagnosis: &Diagnosis| {
        let Subject::Workload(workload) = &diagnosis.evidence.subject else { return None };
        let (first, last) = (diagnosis.evidence.curve.first()?, diagnosis.evidence.curve.last()?);
        let (from, to) = (median(first.iops.clone()), median(last.iops.clone()));
        let cell = |middle: Option<f64>| middle.map_or("-".into(), rate);
        Some(vec![
            heading(workload),
            threads(first.numjobs),
            cell(from),
            threads(last.numjobs),
            cell(to),
            to.zip(from).map_or("-".into(), |(to, from)| format!("{:.2}", to / from)),
            wall(diagnosis),
        ])
    };
    let rows = document.diagnoses.iter().filter_map(row).collect();
    Grid::new(header, rows, |column| !matches!(column, 0 | 6))
}

/// The most important finding, in a word or two.
fn wall(diagnosis: &Diagnosis) -> String {
    diagnosis.findings.first().map_or("-".into(), |finding| finding.wall.name().into())
}

#[cfg(test)]
mod tests {
    use super::super::document::examples::{appends, document};
    use super::*;
    use crate::terminal::Terminal;
    use dioxide_diagnose::evidence::SeenFile;

    fn printed(diagnoses: Vec<Diagnosis>, verbose: bool) -> String {
        let mut page = output::Page::new(Terminal::default());
        print(&document(diagnoses), verbose, &mut page).unwrap();
        page.finished()
    }

    fn expect_in_order(text: &str, parts: &[&str]) {
        let mut rest = text;
        for part in parts {
            let Some((_, after)) = rest.split_once(part) else { panic!("{part} in {text}") };
            rest = after;
        }
    }

    #[test]
    fn the_verdict_comes_first() {
        let text = printed(vec![appends(7)], false);
        expect_in_order(
            &text,
            &[
                "Appends of 4 KiB: synced once at the end, ext4; 1, 2, 4, 8, 16, 32, 64 threads, 3 \
                 rounds of 200 ms\neach",
                "lock of the inode",
                "\n  seen: ",
                "\n  advice: ",
                "share  threads  waits for",
                "the lock of the inode",
                "ext4_file_write_iter",
                "x 1 thread\n",
                "preallocated",
                "11.33",
                "the observed run, with 64 threads, did 3500/s",
                "Not seen: stacks: for root only.",
            ],
        );
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH_MAX), "{text}");
    }

    #[test]
    fn verdicts_had_no_colour() {
        let coloured = |diagnosis: Diagnosis| {
            let mut page = output::Page::new(Terminal { width: None, has_colours: true });
            print(&document(vec![diagnosis]), false, &mut page).unwrap();
            page.finished()
        };
        let of = |wall| {
            let verdict = "96 % of I/O time.".into();
            let finding = Finding { wall, verdict, ..appends(7).findings.remove(0) };
            coloured(Diagnosis { findings: vec![finding], ..appends(7) })
        };
        let [holes, nothing, device] = [Wall::Holes, Wall::Nothing, Wall::Device].map(of);
        assert!(holes.contains("\n\u{1b}[33m96 % of I/O time.\u{1b}[0m\n"), "{holes}");
        assert!(nothing.contains("\n\u{1b}[32m96 % of I/O time.\u{1b}[0m\n"), "{nothing}");
        assert!(device.contains("\n96 % of I/O time.\n"), "{device}");
    }

    #[test]
    fn several_kinds_of_work_are_brief() {
        let text = printed(vec![appends(2), appends(7)], false);
        let two = text.lines().nth(1).unwrap();
        let wall = appends(2).findings[0].wall.name();
        expect_in_order(
            two,
            &["Appends of 4 KiB", "1 thread", "7500/s", "2 threads", "0.93", wall],
        );
        assert_eq!(text.matches("By threads: 7500/s with 1, 7000/s with 2").count(), 2, "{text}");
        assert!(!text.contains("range  x 1"), "{text}");
        assert_eq!(text.matches("Not seen: ").count(), 1, "{text}");

        let text = printed(vec![appends(2), appends(7)], true);
        assert_eq!(text.matches("range  x 1").count(), 2, "{text}");
        assert!(
            text.contains("No fit of the Universal Scalability Law: 2 different numbers"),
            "{text}"
        );
    }

    /// The defect D13: a fit that explains 0 % printed its figures.
    #[test]
    fn a_poor_fit_has_no_figures() {
        let mut diagnosis = appends(7);
        assert!(diagnosis.usl.as_ref().is_some_and(|law| law.is_poor));
        let text = printed(vec![appends(7)], false);
        assert!(text.contains("Its figures are left out.") && !text.contains("sigma"), "{text}");
        assert!(!text.contains("by the law"), "{text}");
        diagnosis.usl.iter_mut().for_each(|law| law.is_poor = false);
        assert!(printed(vec![diagnosis], false).contains("x 1 thread  by the law"), "else it has");
    }

    /// Names chosen by the watched program must not control the terminal.
    #[test]
    fn escape_sequences_of_the_program_reach_no_terminal() {
        let evil = "\x1b[2Jevil";
        let mut evidence = appends(2).evidence;
        evidence.subject = Subject::Program {
            pid: 1,
            command: evil.into(),
            processes: 1,
            selected: Some(evil.into()),
        };
        evidence.curve.clear();
        evidence.unseen = vec![evil.into()];
        evidence.files = vec![SeenFile {
            path: format!("/{evil}"),
            fs: Some("ext4".into()),
            device: (7, 0),
            inode: 12,
            is_direct: true,
            is_buffered: false,
            is_durable: false,
            is_sync: false,
            size_bytes: None,
            allocated_bytes: None,
        }];
        for sighting in &mut evidence.sightings {
            sighting.task = evil.into();
            sighting.channel = sighting.channel.take().map(|_| evil.into());
            sighting.call.iter_mut().for_each(|call| call.file = Some(0));
        }
        let text = printed(vec![Diagnosis::of_program(evidence)], true);
        assert!(!text.contains('\x1b'), "{text}");
        // The title, the finding, the wait table's function, task and file, and the last line.
        assert!(text.matches("evil").count() >= 6, "{text}");
    }

    /// The number of further processes was computed from 0.
    #[test]
    fn a_program_that_ends_before_the_first_sample_has_a_title() {
        let mut evidence = appends(2).evidence;
        let (command, selected) = ("sleep 0.15".into(), None);
        evidence.subject = Subject::Program { pid: 7, command, processes: 0, selected };
        (evidence.threads, evidence.looks) = (0, 0);
        evidence.sightings.clear();
        evidence.curve.clear();
        let text = printed(vec![Diagnosis::of_program(evidence)], false);
        assert!(
            text.starts_with("Process 7 (sleep 0.15): it ended before it was sampled"),
            "{text}"
        );
    }

    #[test]
    fn a_command_is_not_wrapped_inside_a_word() {
        let directory = format!("/sys/fs/cgroup/a-{}", "long-name".repeat(20));
        for path in ["/sys/fs/cgroup/rev-helper/io.max", directory.as_str()] {
            let command =
                format!("Raise the limit in {path}; to remove it: echo '7:0 0' > {path}.");
            for page in (40..=WIDTH_MAX).map(LineWidths::new) {
                for text in [page.hanging("  advice: ", &command), page.paragraph(&command)] {
                    assert_eq!(text.matches(path).count(), 2, "{text}");
                }
            }
        }
    }

    /// The whole command line, of megabytes for some programs, was in the title.
    #[test]
    fn a_long_command_is_shortened() {
        assert_eq!(start_of("postgres: walwriter"), "postgres: walwriter");
        let long = "é".repeat(COMMAND_MAX);
        assert_eq!(start_of(&long), long);
        assert_eq!(start_of(&(long.clone() + "e")), long + "...");
    }

    #[test]
    fn long_paths_keep_their_ends() {
        assert_eq!(end_of("/data/log"), "/data/log");
        let long = format!("/a/very/long{}/log", "x".repeat(FILE_MAX));
        assert!(end_of(&long).starts_with("...xx") && end_of(&long).ends_with("xx/log"));
    }

    #[test]
    fn idle_threads_of_many_kinds_are_left_out() {
        let wait = |share, threads| Wait { share, threads, ..appends(2).waits[0].clone() };
        let waits = [
            wait(Some(0.9), 3.0),
            wait(Some(0.001), 0.1),
            wait(None, 5.0),
            wait(None, 4.0),
            wait(None, 3.0),
        ];
        let waits = [&waits[..], &[wait(None, 2.0)]].concat();
        let (shown, hidden) = shown(&waits);
        assert_eq!((shown.len(), hidden.len()), (4, 2));
        assert_eq!(hidden[0].share, Some(0.001));
    }
}
