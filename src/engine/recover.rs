//! Bringing a file into order after a crash, before anybody may use it.
//!
//! Order, so that a crash during recovery is recovered from in the same way:
//! 1. sync, so that nothing is judged by what another crash could take back;
//! 2. the verdict, from the marker, the size and the extents;
//! 3. the marker with the end found as its base, durable; 4. the cut, durable; 5. the marker away, durable.

use super::io::uninterrupted;
use crate::backend::Backend;
use crate::marker::{Identity, Marker};
use crate::recovery::{Recovery, Verdict, judge};
use std::io;

/// What may be done to a file that a crash left grown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recover {
    /// Only look. Nothing is changed, nothing is locked.
    Inspect,
    /// Cut where the end is certain.
    Cut,
    /// Cut even if the file was changed since: at the end of what is written. For the owner, who
    /// knows by whom. Where the marker itself cannot be read it is only removed.
    Force,
}

/// Looks at a file that is `identity`, in blocks of `block` bytes, and does what `how` allows. Returns what was found, and the marker that stays
/// because only the caller can tell where the file ends.
pub(crate) fn bring_into_order<B: Backend>(
    backend: &B,
    identity: Identity,
    block: u64,
    how: Recover,
) -> io::Result<(Recovery, Option<Marker>)> {
    if how != Recover::Inspect {
        uninterrupted(|| backend.sync_all())?;
    }
    let size = backend.physical_size()?;
    let Some(bytes) = backend.read_marker()? else {
        return Ok((Recovery::clean(size), None));
    };
    let marker = match Marker::decode(&bytes) {
        Ok(marker) => marker,
        Err(why) => {
            if how == Recover::Force {
                backend.remove_marker()?;
                uninterrupted(|| backend.sync_all())?;
            }
            return Ok((Recovery { verdict: Verdict::Doubtful(why), ..Recovery::clean(size) }, None));
        }
    };
    let found = judge(&marker, identity, size, block, &backend.extents()?);
    match (&found.verdict, how) {
        (Verdict::Cut, Recover::Cut | Recover::Force) | (Verdict::Doubtful(_), Recover::Force) => {
            cut(backend, marker, &found)?;
            Ok((found, None))
        }
        (Verdict::Undecided, _) => Ok((found, Some(marker))),
        _ => Ok((found, None)),
    }
}

fn cut<B: Backend>(backend: &B, marker: Marker, found: &Recovery) -> io::Result<()> {
    let end = found.ceiling;
    if end < found.physical_size {
        let grown_to = marker.grown_to.max(found.physical_size);
        let last = Marker { base: end, grown_from: grown_to, grown_to, ..marker };
        backend.write_marker(&last.encode())?;
        uninterrupted(|| backend.sync_all())?;
        uninterrupted(|| backend.truncate(end))?;
        uninterrupted(|| backend.sync_all())?;
    }
    backend.remove_marker()?;
    uninterrupted(|| backend.sync_all())
}
