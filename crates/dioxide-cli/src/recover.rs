//! `dioxide recover`: says what a crash left of each file, then brings it into order.

use crate::args;
use crate::exit::{Failed, say};
use crate::interrupt;
use anyhow::Result;
use dioxide::{Recover, Recovery, Verdict};
use std::fs;
use std::io::{self, Write};
use std::path::Path;

/// Reports and recovers every file. One that fails does not keep the others from being recovered.
pub fn run(args: args::Recover) -> Result<()> {
    let mut all_well = true;
    for file in &args.files {
        interrupt::check()?;
        all_well &= one(file, &args)?;
    }
    if all_well { Ok(()) } else { Err(Failed.into()) }
}

/// Whether the file is in order now, as far as anyone but its owner can tell.
fn one(file: &Path, args: &args::Recover) -> Result<bool> {
    let found = match dioxide::recover(file, Recover::Inspect) {
        Ok(found) => found,
        Err(error) => return Ok(failed(&error)),
    };
    report(file, &found.to_string())?;
    let how = if args.force { Recover::Force } else { Recover::Cut };
    match plan(&found, how) {
        Step::Nothing => Ok(true),
        Step::Act if args.dry_run => Ok(true),
        Step::Act => act(file, how),
        Step::Leave(advice) => {
            say(&format!("{}: {advice}", file.display()));
            Ok(false)
        }
    }
}

/// What is to be done with a file.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Nothing,
    Act,
    /// Not in order, and not for us to touch.
    Leave(String),
}

fn plan(found: &Recovery, how: Recover) -> Step {
    match found.verdict {
        // Only the owner of the records can cut an undecided one; it stays usable as it is.
        Verdict::Clean | Verdict::Foreign | Verdict::Undecided => Step::Nothing,
        Verdict::Cut => Step::Act,
        Verdict::Doubtful(_) if how == Recover::Force => Step::Act,
        _ if found.floor < found.ceiling => Step::Leave(
            "left as it is; if you know who changed it, `--force` leaves it to its program to say where its records end"
                .into(),
        ),
        _ => Step::Leave(format!(
            "left as it is, since cutting could destroy data; if you know who changed it, `--force` cuts it \
             to {} bytes",
            found.ceiling
        )),
    }
}

fn act(file: &Path, how: Recover) -> Result<bool> {
    match dioxide::recover(file, how) {
        // Whoever changed it in between finds a verdict of its own here.
        Ok(found) if plan(&found, how) != Step::Act && found.verdict != Verdict::Clean => {
            say(&format!("{}: changed meanwhile: {found}", file.display()));
            Ok(false)
        }
        Ok(_) => {
            report(file, &format!("done, {} bytes", fs::metadata(file)?.len()))?;
            Ok(true)
        }
        Err(error) => Ok(failed(&error)),
    }
}

fn failed(error: &dioxide::Error) -> bool {
    say(&error.to_string());
    false
}

fn report(file: &Path, sentence: &str) -> io::Result<()> {
    writeln!(io::stdout(), "{}: {sentence}", file.display())
}
