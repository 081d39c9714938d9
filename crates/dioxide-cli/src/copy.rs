//! `dioxide copy`: copies a file durably, past the page cache.

use crate::args;
use crate::interrupt;
use anyhow::{Context, Result, ensure};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{self, IsTerminal, stderr};
use std::ops::ControlFlow;
use std::path::PathBuf;

/// Copies the file. On a terminal it shows the progress.
pub fn run(args: args::Copy) -> Result<()> {
    let to = destination(&args)?;
    let bar = progress_bar();
    let copied = dioxide::copy_with_progress(&args.from, &to, |done, len| {
        bar.set_length(len);
        bar.set_position(done);
        interrupt::check().map_or_else(|_| ControlFlow::Break(()), ControlFlow::Continue)
    });
    bar.finish_and_clear();
    match copied {
        Ok(_) => Ok(()),
        Err(error) => {
            if error.kind() == io::ErrorKind::Interrupted {
                // It has left the destination as it was.
                interrupt::check()?;
            }
            Err(error.into())
        }
    }
}

/// In a directory, the copy has the name of the file.
fn destination(args: &args::Copy) -> Result<PathBuf> {
    if !args.to.is_dir() {
        let is_directory = args.to.as_os_str().as_encoded_bytes().ends_with(b"/");
        ensure!(!is_directory, "{}: no such directory; make it first", args.to.display());
        return Ok(args.to.clone());
    }
    let name = args.from.file_name().context("the file has no name; name the copy")?;
    Ok(args.to.join(name))
}

fn progress_bar() -> ProgressBar {
    let target = match stderr().is_terminal() {
        true => ProgressDrawTarget::stderr(),
        false => ProgressDrawTarget::hidden(),
    };
    let style = ProgressStyle::with_template(
        "{bar:30} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}",
    );
    ProgressBar::with_draw_target(None, target).with_style(style.expect("the template is valid"))
}
