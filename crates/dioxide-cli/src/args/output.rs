//! Where results go besides the report for people: options that several commands share.

use clap::Args;
use std::path::{Path, PathBuf};

#[derive(Args)]
pub struct Output {
    /// Write the results as JSON to FILE, or to stdout in place of the report for people (`-`).
    #[arg(long, value_name = "FILE|-")]
    pub json: Option<PathBuf>,
    /// Write the results as a page for browsers to FILE, with plots; it needs no other file and no network. `-` is stdout.
    #[arg(long, value_name = "FILE|-")]
    pub html: Option<PathBuf>,
}

/// A file that was asked for.
#[derive(Clone, Copy)]
pub struct Wanted<'a> {
    /// The option that names it.
    pub option: &'static str,
    /// `-` is stdout.
    pub path: &'a Path,
}

impl Output {
    /// All that was asked for.
    pub fn wanted(&self) -> Vec<Wanted<'_>> {
        let files = [("--json", &self.json), ("--html", &self.html)];
        files
            .into_iter()
            .filter_map(|(option, path)| Some(Wanted { option, path: path.as_deref()? }))
            .collect()
    }
}

impl Wanted<'_> {
    pub fn is_stdout(&self) -> bool {
        self.path == Path::new("-")
    }
}
