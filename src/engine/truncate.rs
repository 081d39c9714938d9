//! The one way to truncate a file that other programs may write: never below what they wrote without an error.
//!
//! Order, with the marker that announces the new end durable already:
//! 1. a write lease, where one can be had: without another opener no other program can write until step 4;
//! 2. the look at what other programs wrote above the end;
//! 3. without a lease: size, mtime and ctime are as before the look;
//! 4. the truncate; then the lease ends.
//!
//! Another process that has the file open for writing refuses the truncate. Where no lease can be had, or readers have the
//! file open, a window of microseconds remains between steps 3 and 4. A direct write of another program sets mtime before
//! its I/O, and before Linux 6.13 timestamps tick with the scheduler: a write of the same tick as the look is not seen.

use super::io::uninterrupted;
use crate::backend::{Backend, Exclusion};
use crate::error::ErrorKind;
use std::io;

/// How often the look is repeated beside a program that changes the file.
pub(super) const LOOKS_MAX: u32 = 8;

/// The result of an attempt to truncate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(super) enum Attempt<T> {
    Done,
    /// Nothing was truncated: the look shows this now.
    Changed(T),
}

/// Truncates to `len` if `look` still shows `seen`.
pub(super) fn truncate<T: PartialEq>(
    backend: &dyn Backend,
    len: u64,
    seen: &T,
    look: impl Fn() -> io::Result<T>,
) -> io::Result<Attempt<T>> {
    let others = backend.exclude_others()?;
    if let Exclusion::Refused(who) = &others {
        return Err(written_by(who));
    }
    for _ in 0..LOOKS_MAX {
        let before = backend.stamps()?;
        let now = look()?;
        if now != *seen {
            return Ok(Attempt::Changed(now));
        }
        if others.is_whole() || backend.stamps()? == before {
            uninterrupted(|| backend.truncate(len))?;
            return Ok(Attempt::Done);
        }
    }
    Err(written_by("another program"))
}

/// The file keeps its size, because `who` may be writing it.
pub(super) fn written_by(who: &str) -> io::Error {
    let why = format!("{who} has it open for writing, and a truncate could destroy what it wrote");
    io::Error::other(ErrorKind::Busy(why))
}
