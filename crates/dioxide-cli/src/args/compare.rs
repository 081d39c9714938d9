//! `dioxide compare`: two results of `dioxide bench --json`.

use crate::units::parse_percent;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

#[derive(Args)]
pub struct Compare {
    /// What `dioxide bench --json` wrote before. `-` is stdin.
    #[arg(value_name = "OLD.json")]
    pub old: PathBuf,
    /// What it wrote afterwards. `-` is stdin.
    #[arg(value_name = "NEW.json")]
    pub new: PathBuf,
    /// End with 3 if a row is slower by more than this, beyond what chance explains; with 1 if a row cannot be judged.
    #[arg(long, value_name = "PERCENT", value_parser = parse_loss)]
    pub fail_on_regression: Option<f64>,
    /// By which figure rows are judged.
    #[arg(long, value_enum, default_value_t)]
    pub by: By,
    /// Compare runs of different machines, kernels, devices, sizes or lengths all the same.
    #[arg(long)]
    pub allow_unlike: bool,
    /// Write the comparison as JSON to FILE, or to stdout in place of the report for people (`-`).
    #[arg(long, value_name = "FILE|-")]
    pub json: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, ValueEnum)]
pub enum By {
    /// Paths of dioxide's, by how many times as fast as the kernel path they are in the same round; by operations per second
    /// where there is no kernel path.
    #[default]
    Ratio,
    /// Every path, by operations per second: for machines that nobody else uses.
    Ops,
}

/// Nothing can lose all of its rate, or more.
fn parse_loss(text: &str) -> Result<f64, String> {
    match parse_percent(text)? {
        percent if percent < 100.0 => Ok(percent),
        _ => Err("a loss is less than 100%".into()),
    }
}
