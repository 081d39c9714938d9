//! The only way to truncate a file that other programs may write: never below their data without an
//! error.
//!
//! Order, with the marker that announces the new end already durable:
//! 1. a write lease, if possible: without another opener no other program can write until step 4;
//! 2. the look for other programs' data above the end. A long look comes before the lease, which
//!    would delay other opens. It is repeated under the lease only if the file has changed since;
//! 3. without a lease: size, mtime and ctime are as before the look;
//! 4. the truncate; then the lease ends.
//!
//! Another process that has the file open for writing makes the truncate fail. Without a lease, or
//! beside readers, a window of microseconds remains between steps 3 and 4. A direct write of
//! another program sets mtime before its I/O. Before Linux 6.13, timestamps tick with the
//! scheduler: a write in the same tick as the look is not seen.

use crate::backend::{Backend, Exclusion};
use crate::error::ErrorKind;
use crate::os_error::uninterrupted;
use std::io;

/// How often the look is repeated beside a program that changes the file.
pub(super) const LOOKS_MAX: u32 = 8;

/// The result of an attempt to truncate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(super) enum Attempt<T> {
    Done,
    /// Nothing was truncated. Holds what the look shows now.
    Changed(T),
}

/// Duration of a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Takes {
    /// A few system calls.
    Short,
    /// It reads the space ahead.
    Long,
}

/// Truncates to `len` if `look` still shows `seen`.
pub(super) fn truncate<T: PartialEq>(
    backend: &dyn Backend,
    len: u64,
    seen: &T,
    takes: Takes,
    look: impl Fn() -> io::Result<T>,
) -> io::Result<Attempt<T>> {
    for _ in 0..LOOKS_MAX {
        let before = backend.stamps()?;
        let early = if takes == Takes::Long { Some(look()?) } else { None };
        let others = backend.exclude_others()?;
        if let Exclusion::Refused(who) = &others {
            return Err(written_by(who));
        }
        let now = match early {
            Some(early) if backend.stamps()? == before => early,
            _ => look()?,
        };
        if now != *seen {
            return Ok(Attempt::Changed(now));
        }
        if others.is_whole() || backend.stamps()? == before {
            uninterrupted(|| backend.truncate(len))?;
            return Ok(Attempt::Done);
        }
    }
    Err(unsettled())
}

/// The error of a truncate of a file that changed during each look: other threads write it, or
/// another program does.
fn unsettled() -> io::Error {
    let why = "it changed during each look, and a truncate could destroy what was written";
    io::Error::new(io::ErrorKind::ResourceBusy, ErrorKind::Busy(why.into()))
}

/// Whether a truncate failed because the file changed, and not for another writer that was found.
pub(super) fn is_unsettled(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ResourceBusy
}

/// Fails while another process has the file open for writing. Called before a marker announces a
/// truncate.
pub(super) fn refuse_other_writers(backend: &dyn Backend) -> io::Result<()> {
    match backend.exclude_others()? {
        Exclusion::Refused(who) => Err(written_by(&who)),
        Exclusion::Held(_) | Exclusion::Unknown => Ok(()),
    }
}

/// The error of a refused truncate: `who` may be writing the file.
pub(super) fn written_by(who: &str) -> io::Error {
    let why = format!("{who} has it open for writing, and a truncate could destroy what it wrote");
    io::Error::other(ErrorKind::Busy(why))
}

/// The error for a size that this process did not set.
pub(super) fn changed_by_another(physical: u64, found: u64) -> ErrorKind {
    ErrorKind::ModifiedExternally(format!("it was grown to {physical} bytes and has {found}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::syscall::Syscall;
    use std::cell::Cell;
    use std::fs::File;
    use std::io::Write;

    /// A file with another descriptor in this process, so that there is no lease.
    fn beside_another() -> (tempfile::TempDir, File, Syscall) {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("file");
        let mut other = File::options().append(true).create_new(true).open(&path).expect("a file");
        other.write_all(&[1; 8192]).expect("it writes");
        let ours = File::options().read(true).write(true).open(&path).expect("it opens");
        (dir, other, Syscall::new(ours.into()))
    }

    /// Another program appends during the first `count` looks, which all show the same.
    fn disturbed(count: u32) -> (io::Result<Attempt<()>>, u64) {
        let (_dir, other, backend) = beside_another();
        let looks = Cell::new(0);
        let look = || {
            if looks.replace(looks.get() + 1) < count {
                (&other).write_all(&[2; 4096])?;
            }
            Ok(())
        };
        let attempt = truncate(&backend, 4096, &(), Takes::Short, look);
        (attempt, backend.physical_size().expect("it has a size"))
    }

    #[test]
    fn without_a_lease_a_change_during_the_look_repeats_it() {
        for count in [0, 1, LOOKS_MAX - 1] {
            let (attempt, size) = disturbed(count);
            assert_eq!((attempt.expect("it becomes quiet"), size), (Attempt::Done, 4096));
        }
    }

    #[test]
    fn beside_a_program_that_goes_on_nothing_is_truncated() {
        let (attempt, size) = disturbed(LOOKS_MAX);
        let error = attempt.expect_err("it never becomes quiet");
        assert!(matches!(crate::os_error::kind(&error), ErrorKind::Busy(_)), "{error}");
        assert_eq!(size, 8192 + u64::from(LOOKS_MAX) * 4096);
    }

    #[test]
    fn what_changed_since_is_reported_and_kept() {
        let (_dir, _other, backend) = beside_another();
        assert_eq!(
            truncate(&backend, 0, &1, Takes::Short, || Ok(2)).expect("no error"),
            Attempt::Changed(2)
        );
        assert_eq!(backend.physical_size().expect("it has a size"), 8192);
    }
}
