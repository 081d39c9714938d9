//! `dioxide plot`: saved results as a picture.

use clap::Args;
use std::path::PathBuf;

#[derive(Args)]
pub struct Plot {
    /// Results that `dioxide bench --json` saved. `-` is stdin.
    #[arg(value_name = "RESULT.json", required = true)]
    pub results: Vec<PathBuf>,
    /// Write the picture to FILE, or to stdout (`-`).
    #[arg(long, value_name = "FILE|-", default_value = "-")]
    pub svg: PathBuf,
}
