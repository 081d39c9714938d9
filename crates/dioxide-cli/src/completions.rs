//! `dioxide completions`: shell completion scripts, generated from the command line definitions.

use crate::args::{Cli, Completions};
use anyhow::Result;
use clap::CommandFactory;
use std::io::{self, Write};

pub fn run(args: &Completions) -> Result<()> {
    // In memory first: the generator panics on write errors.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "dioxide", &mut script);
    Ok(io::stdout().write_all(&script)?)
}
