//! Finds and reads saved results.

use super::series::SavedRun;
use crate::interrupt;
use crate::saved;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Results in order of time, and the files that are none.
#[derive(Default)]
pub struct Found {
    pub runs: Vec<SavedRun>,
    /// Every file that was read, used or not.
    pub files: Vec<PathBuf>,
    /// Files of directories that are no result, each with the reason.
    pub skipped: Vec<String>,
    /// The skipped files that may be results nevertheless: broken, or of a later dioxide.
    pub broken: usize,
    /// Files with the content of another.
    pub copies: usize,
    /// Older results than the newest ones.
    pub older: usize,
}

/// The `newest` results of these files, and of the `*.json` files in these directories. A file of a
/// directory may be no result, a named one may not.
pub fn read(paths: &[PathBuf], newest: usize) -> Result<Found> {
    let (mut found, mut runs, mut texts) = (Found::default(), Vec::new(), Vec::<Vec<u8>>::new());
    for path in paths {
        let is_dir = path.is_dir();
        let files = if is_dir { in_dir(path)? } else { vec![path.clone()] };
        for file in files {
            interrupt::check()?;
            let name = file.display().to_string();
            let text = fs::read(&file).with_context(|| name.clone())?;
            // Its own output of an earlier run may be replaced.
            if !(is_dir && is_history(&text)) {
                found.files.push(file);
            }
            if texts.contains(&text) {
                found.copies += 1;
                continue;
            }
            match parse(name.clone(), &text) {
                Ok(run) => runs.push(run),
                Err(why) if is_dir => {
                    found.skipped.push(format!("{name} {why:#}"));
                    found.broken += usize::from(!is_other(&text));
                }
                Err(why) => return Err(why.context(name)),
            }
            texts.push(text);
        }
    }
    ensure!(!runs.is_empty(), "no result of `bench --json` was found{}", reasons(&found.skipped));
    runs.sort_by(|(when, one), (then, other)| (when, &one.file).cmp(&(then, &other.file)));
    found.older = runs.len().saturating_sub(newest);
    found.runs = runs.into_iter().skip(found.older).map(|(_, run)| run).collect();
    Ok(found)
}

impl Found {
    /// Whether a path names one of the files that were read, by any name.
    pub fn has_read(&self, path: &Path) -> bool {
        let identity = |path: &Path| fs::metadata(path).ok().map(|it| (it.dev(), it.ino()));
        let own = identity(path);
        own.is_some() && self.files.iter().any(|file| identity(file) == own)
    }
}

/// A run, with its time.
fn parse(file: String, text: &[u8]) -> Result<(SystemTime, SavedRun)> {
    let document = saved::parse(text)?;
    let date = &document.machine.date;
    let when = humantime::parse_rfc3339(date)
        .with_context(|| format!("its date is not in the form of RFC 3339, in UTC: {date:?}"))?;
    Ok((when, SavedRun { file, document }))
}

/// Whether a text is a document of another kind, so certainly no result of a bench.
fn is_other(text: &[u8]) -> bool {
    let Ok(value) = serde_json::from_slice::<Value>(text) else { return false };
    match value.get("kind") {
        Some(kind) => kind != "bench",
        None => value.get("fio version").is_some() || value.get("results").is_none(),
    }
}

/// Whether a text is what `dioxide history --json` writes.
fn is_history(text: &[u8]) -> bool {
    serde_json::from_slice::<Value>(text).is_ok_and(|value| value["kind"] == "history")
}

fn reasons(skipped: &[String]) -> String {
    if skipped.is_empty() { String::new() } else { format!(": {}", skipped.join("; ")) }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_or_later_document_may_be_a_result() {
        for text in ["{\"results\": [", "", "{\"kind\": \"bench\", \"schema_version\": 9}"] {
            assert!(!is_other(text.as_bytes()), "{text}");
        }
        for text in ["{\"kind\": \"probe\", \"results\": []}", "{}", "{\"fio version\": \"fio-3\"}"]
        {
            assert!(is_other(text.as_bytes()), "{text}");
        }
    }
}
