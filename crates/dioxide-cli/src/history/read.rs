//! Finds and reads saved results.

use super::series::Run;
use crate::interrupt;
use crate::saved;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};

/// Results in order of time, and the files that are none.
pub struct Found {
    pub runs: Vec<Run>,
    /// Files of directories that are no result, each with the reason.
    pub skipped: Vec<String>,
    /// Files with the content of another.
    pub copies: usize,
    /// Older results than the newest ones.
    pub older: usize,
}

/// The `newest` results of these files, and of the `*.json` files in these directories. A file of a
/// directory may be no result, a named one may not.
pub fn read(paths: &[PathBuf], newest: usize) -> Result<Found> {
    let (mut runs, mut skipped, mut texts, mut copies) =
        (Vec::new(), Vec::new(), Vec::<Vec<u8>>::new(), 0);
    for path in paths {
        let is_dir = path.is_dir();
        let files = if is_dir { in_dir(path)? } else { vec![path.clone()] };
        for file in files {
            interrupt::check()?;
            let name = file.display().to_string();
            let text = fs::read(&file).with_context(|| name.clone())?;
            if texts.contains(&text) {
                copies += 1;
                continue;
            }
            let run = saved::parse(&text).and_then(|document| {
                let date = &document.machine.date;
                let is_date = humantime::parse_rfc3339(date).is_ok();
                ensure!(is_date, "its date is not in the form of RFC 3339, in UTC: {date:?}");
                Ok(Run { file: name.clone(), document })
            });
            texts.push(text);
            match run {
                Ok(run) => runs.push(run),
                Err(why) if is_dir => skipped.push(format!("{name} {why:#}")),
                Err(why) => return Err(why.context(name)),
            }
        }
    }
    ensure!(!runs.is_empty(), "no result of `bench --json` was found{}", reasons(&skipped));
    runs.sort_by(|one, other| when(one).cmp(&when(other)));
    let older = runs.len().saturating_sub(newest);
    runs.drain(..older);
    Ok(Found { runs, skipped, copies, older })
}

fn reasons(skipped: &[String]) -> String {
    if skipped.is_empty() { String::new() } else { format!(": {}", skipped.join("; ")) }
}

/// Dates in UTC are ordered as texts are.
fn when(run: &Run) -> (&str, &str) {
    (&run.document.machine.date, &run.file)
}

/// In order of their names.
fn in_dir(dir: &Path) -> Result<Vec<PathBuf>> {
    let name = || dir.display().to_string();
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).with_context(name)? {
        let path = entry.with_context(name)?.path();
        if path.is_file() && path.extension().is_some_and(|extension| extension == "json") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}
