//! `dioxide probe`.

use super::Output;
use clap::Args;
use std::path::PathBuf;

#[derive(Args)]
pub struct Probe {
    /// A directory; a file, for its directory; or a block device.
    #[arg(value_name = "PATH", default_value = ".")]
    pub path: PathBuf,
    /// Facts only: measure nothing.
    #[arg(long)]
    pub quick: bool,
    #[command(flatten)]
    pub output: Output,
}
