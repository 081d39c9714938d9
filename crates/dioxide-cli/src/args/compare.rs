//! `dioxide compare`: two results of `dioxide bench --json`.

use super::output::Shape;
use crate::units::parse_percent;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

#[derive(Args)]
pub struct Compare {
    /// Output of an earlier `dioxide bench --json`. `-` is stdin.
    #[arg(value_name = "OLD.json")]
    pub old: PathBuf,
    /// Output of a later one. `-` is stdin.
    #[arg(value_name = "NEW.json")]
    pub new: PathBuf,
    /// Exit with 3 if a row is slower by more than this, beyond chance. Exit with 1 if a row cannot
    /// be judged, or its change could be overlooked.
    #[arg(long, value_name = "PERCENT", value_parser = parse_loss)]
    pub fail_on_regression: Option<f64>,
    /// The figure by which rows are judged.
    #[arg(long, value_enum, default_value_t)]
    pub by: By,
    /// Also compare runs of different machines, kernels, devices, sizes or lengths.
    #[arg(long)]
    pub allow_unlike: bool,
    /// Write the comparison as JSON to FILE, or to stdout instead of the report (`-`).
    #[arg(long, value_name = "FILE|-")]
    pub json: Option<PathBuf>,
    /// Write the comparison as an HTML page to FILE, or to stdout instead of the report (`-`). The
    /// page needs no other file and no network.
    #[arg(long, value_name = "FILE|-")]
    pub html: Option<PathBuf>,
    /// Write the new run in Bencher Metric Format to FILE, or to stdout instead of the report
    /// (`-`).
    ///
    /// Each row has its throughput, and its p99 as latency, with the range of the rounds.
    #[arg(long, value_name = "FILE|-")]
    pub bmf: Option<PathBuf>,
    #[command(flatten)]
    pub shape: Shape,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, ValueEnum)]
pub enum By {
    /// dioxide's paths, by their ratio to the kernel path in the same round. By operations per
    /// second where there is no kernel path.
    #[default]
    Ratio,
    /// Every path, by operations per second: for machines without other users.
    Ops,
}

/// A loss of 100 % or more is impossible.
pub(super) fn parse_loss(text: &str) -> Result<f64, String> {
    match parse_percent(text)? {
        percent if percent < 100.0 => Ok(percent),
        _ => Err("a loss is less than 100%".into()),
    }
}
