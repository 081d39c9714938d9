//! The final message of the process and its exit code.
//!
//! 0 success, 1 failure, 2 usage (clap's) or no measurement, 3 slower than allowed, 4 the observed
//! program was stopped. After an interrupt the signal ends the process. 126 and 127 are of a
//! program that `run` cannot start.

use crate::interrupt::Interrupted;
use dioxide::text::shown;
use dioxide_diagnose::words::list;
use signal_hook::low_level::emulate_default_handler;
use std::io::{self, Write};
use std::process::ExitCode;

/// An outcome with a message already printed: only the exit code is left.
#[derive(Debug)]
pub struct Failed;

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("failed")
    }
}

impl std::error::Error for Failed {}

/// A result is slower than allowed.
#[derive(Debug)]
pub struct Regression(pub String);

impl std::fmt::Display for Regression {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Regression {}

/// A program that cannot be started, with the exit codes of shells.
#[derive(Debug)]
pub enum NotStarted {
    /// There is none of this name.
    Missing(String),
    /// It is there, and cannot be executed.
    NotExecutable(String),
}

impl std::fmt::Display for NotStarted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Self::Missing(why) | Self::NotExecutable(why)) = self;
        f.write_str(why)
    }
}

impl std::error::Error for NotStarted {}

/// The observed program was stopped, so there is no verdict on it.
#[derive(Debug)]
pub struct Stopped(pub Vec<u32>);

impl std::fmt::Display for Stopped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let pids: Vec<String> = self.0.iter().map(u32::to_string).collect();
        match &pids[..] {
            [pid] => write!(f, "process {pid} was stopped: continue it, and repeat"),
            pids => write!(f, "processes {} were stopped: continue them, and repeat", list(pids)),
        }
    }
}

impl std::error::Error for Stopped {}

/// The codes that distinguish these from an error.
const REGRESSION: u8 = 3;
const STOPPED: u8 = 4;

/// The context of an error that leaves no verdict, or no report of it.
#[derive(Debug)]
pub struct Unmeasured;

impl std::fmt::Display for Unmeasured {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("no result")
    }
}

impl std::error::Error for Unmeasured {}

/// The code that distinguishes it from a verdict.
const UNMEASURED: u8 = 2;

/// Prints an error as one line, and returns the exit code.
pub fn code(outcome: anyhow::Result<()>) -> ExitCode {
    let Err(error) = outcome else { return ExitCode::SUCCESS };
    if let Some(interrupted) = error.downcast_ref::<Interrupted>() {
        say("interrupted");
        // A shell ends its loop only if the signal ended the program. The first process of a
        // container does not get its own signals.
        if std::process::id() != 1 {
            let _ = emulate_default_handler(interrupted.signal.into());
        }
        return ExitCode::from(128 + interrupted.signal);
    }
    let quiet = error.is::<Failed>() || reader_went_away(&error);
    if !quiet {
        say(&format!("{error:#}"));
    }
    match error.downcast_ref() {
        Some(NotStarted::Missing(_)) => return ExitCode::from(127),
        Some(NotStarted::NotExecutable(_)) => return ExitCode::from(126),
        None => {}
    }
    if error.is::<Regression>() {
        ExitCode::from(REGRESSION)
    } else if error.is::<Unmeasured>() {
        ExitCode::from(UNMEASURED)
    } else if error.is::<Stopped>() {
        ExitCode::from(STOPPED)
    } else {
        ExitCode::FAILURE
    }
}

/// `dioxide bench | head -1` needs no message. An error of a file has the name of the file.
fn reader_went_away(error: &anyhow::Error) -> bool {
    error.chain().count() == 1 + usize::from(error.is::<Unmeasured>())
        && error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
}

/// Prints one line on stderr, with names escaped. A closed stderr must not panic.
pub fn say(sentence: &str) {
    let _ = writeln!(io::stderr(), "dioxide: {}", shown(sentence));
}
