//! `dioxide history`: many results of `dioxide bench --json`.

use super::compare::{By, parse_loss};
use super::output::Output;
use clap::Args;
use std::path::PathBuf;

/// More results say little about the newest, and take long.
const NEWEST_DEFAULT: &str = "200";
const NEWEST_MAX: i64 = 2000;

#[derive(Args)]
pub struct History {
    /// Directories with results of `dioxide bench --json` (`*.json`), or such files.
    #[arg(required = true, value_name = "DIR|RESULT.json")]
    pub paths: Vec<PathBuf>,
    /// Exit with 3 if a row of the newest result lost more than this, and still does.
    ///
    /// Exit with 1 if there is none, but such a row cannot be judged.
    #[arg(long, value_name = "PERCENT", value_parser = parse_loss)]
    pub fail_on_regression: Option<f64>,
    /// The figure by which rows are judged.
    #[arg(long, value_enum, default_value_t)]
    pub by: By,
    /// Use only so many of the newest results.
    #[arg(long, value_name = "N", default_value = NEWEST_DEFAULT)]
    #[arg(value_parser = newest())]
    pub newest: u16,
    #[command(flatten)]
    pub output: Output,
}

fn newest() -> clap::builder::RangedI64ValueParser<u16> {
    clap::value_parser!(u16).range(1..=NEWEST_MAX)
}
