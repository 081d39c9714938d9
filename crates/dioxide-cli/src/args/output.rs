//! Options for output files, shared by several commands.

use clap::Args;
use std::path::{Path, PathBuf};

#[derive(Args)]
pub struct Output {
    /// Write the results as JSON to FILE, or to stdout instead of the report (`-`).
    #[arg(long, value_name = "FILE|-")]
    pub json: Option<PathBuf>,
    /// Write the results as an HTML page with plots to FILE. The page needs no other file and no
    /// network. `-` is stdout.
    #[arg(long, value_name = "FILE|-")]
    pub html: Option<PathBuf>,
    #[command(flatten)]
    pub shape: Shape,
}

/// The tables for people.
#[derive(Args, Clone, Copy)]
pub struct Shape {
    /// Show whole tables, wider than the terminal.
    ///
    /// Without it, columns that do not fit are left out, and each row is a block where too little
    /// fits. The width is that of the terminal, or COLUMNS if that is set. Pipes and files get
    /// whole tables unless COLUMNS is set.
    #[arg(long)]
    pub wide: bool,
}

/// A requested output file.
#[derive(Clone, Copy)]
pub struct Wanted<'a> {
    /// Its option.
    pub option: &'static str,
    /// `-` is stdout.
    pub path: &'a Path,
}

impl Output {
    /// All requested outputs.
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
        let names = ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"];
        names.iter().any(|name| self.path == Path::new(name))
    }
}
