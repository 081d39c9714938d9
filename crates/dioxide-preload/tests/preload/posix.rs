//! The same random program with and without the library. Every call must return the same, and all
//! files must be the same in the end.
//!
//! `DIOXIDE_POSIX_SEEDS=1-500` selects other programs than the few of every test run.

use super::rig::*;
use dioxide_testkit::lab::TestDir;
use dioxide_testkit::trials::{Failed, Trial, TrialResult, lab_trials};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use std::{fs, io};

/// The limit of the search for a shorter sequence that fails.
const SHRINKING: Duration = Duration::from_secs(60);
const OPERATIONS: u32 = 150;

/// The numbers of the operations to run.
type Operations = BTreeSet<u32>;

struct Program {
    path: PathBuf,
    seed: u64,
}

impl Program {
    fn of(seed: u64) -> Self {
        Self { path: c_program("posix", COMPILED[(seed % 3) as usize]), seed }
    }

    fn command(&self, operations: &Operations) -> Command {
        let mut command = Command::new(&self.path);
        command.arg(self.seed.to_string()).arg(in_ranges(operations));
        command
    }

    /// Returns its output and its files, as lines.
    fn lines(
        &self,
        dir: &Path,
        operations: &Operations,
        with: With,
    ) -> Result<Vec<String>, Failed> {
        let dir = empty(dir, &format!("{with:?}"))?;
        let mut command = self.command(operations);
        with.set(&mut command);
        let finished = run(command.current_dir(&dir))?;
        let mut lines: Vec<String> = finished.stdout.lines().map(str::to_owned).collect();
        lines.extend(finished.stderr.lines().map(|line| format!("on standard error: {line}")));
        lines.push(ending(finished.status));
        lines.extend(files_in(&dir)?);
        Ok(lines)
    }

    /// Returns a line for each difference, with its position. None if there is no difference.
    fn differs(
        &self,
        dir: &Path,
        operations: &Operations,
        with: With,
    ) -> Result<Option<Difference>, Failed> {
        let (plain, other) =
            (self.lines(dir, operations, With::Nothing)?, self.lines(dir, operations, with)?);
        Ok(Difference::between(plain, other))
    }

    /// Searches for fewer operations that still differ, within [`SHRINKING`].
    fn shrink(&self, dir: &Path, all: Operations, with: With) -> Operations {
        let deadline = Instant::now() + SHRINKING;
        let still = |fewer: &Operations| !matches!(self.differs(dir, fewer, with), Ok(None));
        let mut left = all;
        let mut piece = left.len() / 2;
        while piece > 0 {
            for chunk in left.iter().copied().collect::<Vec<_>>().chunks(piece) {
                let fewer: Operations =
                    left.iter().copied().filter(|number| !chunk.contains(number)).collect();
                if Instant::now() > deadline {
                    return left;
                }
                if still(&fewer) {
                    left = fewer;
                }
            }
            piece /= 2;
        }
        left
    }
}

/// Returns the argument of `c/posix.c`, such as `1-3,7`.
fn in_ranges(operations: &Operations) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for &number in operations {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    let words = ranges.iter().map(|(first, last)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    });
    words.collect::<Vec<_>>().join(",")
}

fn files_in(dir: &Path) -> io::Result<Vec<String>> {
    let mut lines = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let (name, kind) = (entry.file_name(), entry.file_type()?);
        let what = match fs::read(entry.path()) {
            Ok(bytes) => format!("{} bytes, {:08x}", bytes.len(), crc32fast::hash(&bytes)),
            Err(error) => format!("{error}"),
        };
        let link = if kind.is_symlink() { " (a link)" } else { "" };
        let marker = if marker_of(&entry.path()) { ", with a marker" } else { "" };
        lines.push(format!("{}{link}: {what}{marker}", name.display()));
    }
    lines.sort();
    Ok(lines)
}

/// False for a link without a target.
fn marker_of(path: &Path) -> bool {
    matches!(dioxide_testkit::files::marker(path), Ok(Some(_)))
}

struct Difference {
    plain: Vec<String>,
    other: Vec<String>,
    at: usize,
}

impl Difference {
    fn between(plain: Vec<String>, other: Vec<String>) -> Option<Self> {
        let at = (0..plain.len().max(other.len())).find(|&i| plain.get(i) != other.get(i))?;
        Some(Self { plain, other, at })
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for line in &self.plain[self.at.saturating_sub(12)..self.at] {
            let _ = writeln!(text, "    {line}");
        }
        for (name, lines) in [("without", &self.plain), ("with   ", &self.other)] {
            for line in lines.iter().skip(self.at).take(2) {
                let _ = writeln!(text, "  {name}: {line}");
            }
        }
        text
    }
}

fn seeds() -> Vec<u64> {
    let Ok(range) = std::env::var("DIOXIDE_POSIX_SEEDS") else { return (1..=6).collect() };
    let number =
        |text: &str| text.parse().expect("DIOXIDE_POSIX_SEEDS is a number or a range as in 1-500");
    match range.split_once('-') {
        Some((first, last)) => (number(first)..=number(last)).collect(),
        None => vec![number(&range)],
    }
}

fn every_call_answers_as_without_the_library(dir: TestDir) -> TrialResult {
    for seed in seeds() {
        let program = Program::of(seed);
        let all: Operations = (1..=OPERATIONS).collect();
        let plain = program.lines(&dir, &all, With::Nothing)?;
        for with in With::LIBRARY {
            if let Some(difference) =
                Difference::between(plain.clone(), program.lines(&dir, &all, with)?)
            {
                return Err(explain(&program, &dir, all, with, difference)?);
            }
        }
    }
    Ok(())
}

/// Returns the text that reproduces the failure.
fn explain(
    program: &Program,
    dir: &TestDir,
    all: Operations,
    with: With,
    difference: Difference,
) -> Result<Failed, Failed> {
    if let Some(unsteady) =
        Difference::between(difference.plain.clone(), program.lines(dir, &all, With::Nothing)?)
    {
        let text = unsteady.text();
        return Ok(failed(format!(
            "seed {}: two runs without the library differ:\n{text}",
            program.seed
        )));
    }
    let fewer = program.shrink(dir, all, with);
    let shrunk = program.differs(dir, &fewer, with)?.unwrap_or(difference);
    Ok(failed(format!(
        "seed {} on {}, {with:?}:\n{}\nagain, in two empty directories of {}:\n  {} {} {} {}\nthe \
         whole: DIOXIDE_POSIX_SEEDS={} cargo test -p dioxide-preload --test preload {}::every_call",
        program.seed,
        dir.fs(),
        shrunk.text(),
        dir.fs(),
        with.words(),
        program.path.display(),
        program.seed,
        in_ranges(&fewer),
        program.seed,
        dir.fs(),
    )))
}

pub fn trials() -> Vec<Trial> {
    lab_trials(
        "every_call_answers_as_without_the_library",
        every_call_answers_as_without_the_library,
    )
}
