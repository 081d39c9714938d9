//! `dioxide recover`: reports the state of each file after a crash, then recovers it.

use crate::args;
use crate::exit::{Failed, say};
use crate::interrupt;
use anyhow::Result;
use dioxide::text::shown;
use dioxide::{OpenOptions, Recover, Recovery, Verdict};
use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Reports and recovers every file, also after one that fails.
pub fn run(args: args::Recover) -> Result<()> {
    let mut all_well = true;
    for target in targets(&args) {
        interrupt::check()?;
        all_well &= one(&target, &args)?;
    }
    if all_well { Ok(()) } else { Err(Failed.into()) }
}

/// A file, or the members of a volume.
enum RecoveryTarget<'a> {
    File(&'a Path),
    Striped(&'a [PathBuf], u64),
}

fn targets(args: &args::Recover) -> Vec<RecoveryTarget<'_>> {
    match args.stripe {
        Some(chunk_bytes) => vec![RecoveryTarget::Striped(&args.files, chunk_bytes)],
        None => args.files.iter().map(|file| RecoveryTarget::File(file)).collect(),
    }
}

impl RecoveryTarget<'_> {
    fn recover(&self, how: Recover) -> dioxide::Result<Recovery> {
        match self {
            Self::File(file) => dioxide::recover(file, how),
            Self::Striped(members, chunk_bytes) => {
                dioxide::recover_striped(members, *chunk_bytes, how)
            }
        }
    }

    fn len(&self) -> Result<u64> {
        Ok(match self {
            Self::File(file) => fs::metadata(file)?.len(),
            Self::Striped(members, chunk_bytes) => {
                OpenOptions::new().open_striped(members, *chunk_bytes)?.len()?
            }
        })
    }
}

impl fmt::Display for RecoveryTarget<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(file) => write!(f, "{}", file.display()),
            Self::Striped(members, _) => {
                let names: Vec<_> =
                    members.iter().map(|member| member.display().to_string()).collect();
                f.write_str(&names.join(","))
            }
        }
    }
}

/// Whether the file is recovered now, as far as the library can know.
fn one(target: &RecoveryTarget<'_>, args: &args::Recover) -> Result<bool> {
    let found = match target.recover(Recover::Inspect) {
        Ok(found) => found,
        Err(error) => return Ok(failed(&error)),
    };
    let is_reported = report(target, &found.to_string());
    let how = if args.force { Recover::Force } else { Recover::Truncate };
    match plan(&found, how) {
        RecoveryStep::Nothing => Ok(is_reported),
        RecoveryStep::Act if args.dry_run => Ok(is_reported),
        RecoveryStep::Act => Ok(act(target, how)? && is_reported),
        RecoveryStep::Leave(advice) => {
            say(&format!("{target}: {advice}"));
            Ok(false)
        }
    }
}

/// The action for a file.
#[derive(Debug, PartialEq, Eq)]
enum RecoveryStep {
    Nothing,
    Act,
    /// Not recovered, and not ours to change.
    Leave(String),
}

fn plan(found: &Recovery, how: Recover) -> RecoveryStep {
    match found.verdict {
        // Only the owner of the records can truncate an undecided file; it stays usable as it is.
        Verdict::Clean | Verdict::Foreign | Verdict::EndUnknown => RecoveryStep::Nothing,
        Verdict::EndKnown => RecoveryStep::Act,
        Verdict::ModifiedExternally(_) if how == Recover::Force => RecoveryStep::Act,
        _ if found.floor < found.ceiling => RecoveryStep::Leave(
            "left as it is; if you know who changed it, `--force` leaves it to its program to say \
             where its records end"
                .into(),
        ),
        _ => RecoveryStep::Leave(format!(
            "left as it is, since a truncate could destroy data; if you know who changed it, \
             `--force` truncates it to {} bytes",
            found.ceiling
        )),
    }
}

fn act(target: &RecoveryTarget<'_>, how: Recover) -> Result<bool> {
    match target.recover(how) {
        // A change in between leads to a new verdict here.
        Ok(found) if plan(&found, how) != RecoveryStep::Act && found.verdict != Verdict::Clean => {
            say(&format!("{target}: changed meanwhile: {found}"));
            Ok(false)
        }
        Ok(_) => Ok(report(target, &format!("done, {} bytes", target.len()?))),
        Err(error) => Ok(failed(&error)),
    }
}

fn failed(error: &dioxide::Error) -> bool {
    say(&error.to_string());
    false
}

/// Prints a line. Returns whether stdout took it: a closed one leaves no file unrecovered.
fn report(target: &RecoveryTarget<'_>, sentence: &str) -> bool {
    let line = format!("{target}: {sentence}");
    let written = writeln!(io::stdout(), "{}", shown(&line));
    if let Err(error) = &written
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        say(&error.to_string());
    }
    written.is_ok()
}
