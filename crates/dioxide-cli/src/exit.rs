//! What the process says last, and the code it ends with: 0 done, 1 failed, 2 usage (clap's), 3 slower than allowed,
//! 128 + signal interrupted.

use crate::interrupt::Interrupted;
use dioxide::text::shown;
use std::io::{self, Write};
use std::process::ExitCode;

/// An outcome that was already explained to the user: nothing more to say, only the code is left.
#[derive(Debug)]
pub struct Failed;

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("failed")
    }
}

impl std::error::Error for Failed {}

/// What was measured is slower than it may be.
#[derive(Debug)]
pub struct Regression(pub String);

impl std::fmt::Display for Regression {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Regression {}

/// The code that tells it apart from an error.
const REGRESSION: u8 = 3;

/// Prints what went wrong, if anything did, as one line, and picks the exit code.
pub fn code(outcome: anyhow::Result<()>) -> ExitCode {
    let Err(error) = outcome else { return ExitCode::SUCCESS };
    if let Some(interrupted) = error.downcast_ref::<Interrupted>() {
        say("interrupted");
        return ExitCode::from(128 + interrupted.signal);
    }
    let quiet = error.is::<Failed>() || reader_went_away(&error);
    if !quiet {
        say(&format!("{error:#}"));
    }
    if error.is::<Regression>() { ExitCode::from(REGRESSION) } else { ExitCode::FAILURE }
}

/// `dioxide bench | head -1` is no mistake that needs a message.
fn reader_went_away(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
}

/// One line on stderr, whatever names are in it. A closed stderr must not turn into a panic.
pub fn say(sentence: &str) {
    let _ = writeln!(io::stderr(), "dioxide: {}", shown(sentence));
}
