//! Recovers a file after a crash, before it is used.
//!
//! Order, so that a crash during recovery is recovered from in the same way:
//! 1. sync, so that the verdict uses no data that another crash could take back;
//! 2. the verdict, from the marker, the size and the extents;
//! 3. the lower floor of a striped volume, and the marker with the end found as its base, both
//!    durable;
//! 4. the truncate ([`truncate`](super::truncate)), durable;
//! 5. the removal of the marker, durable.
//!
//! Only a sync can be a failed flush, so only its errors say so (`flushed`). A getxattr or FIEMAP
//! that fails with EIO is an error of this file. Each sync has a number of its own in the ledger:
//! no look delays the flushes of other files.
//!
//! While another process has the file open for writing nothing is truncated. Recovery keeps data
//! that another program wrote without the lock since the crash, with one exception. In a file of
//! appends, data above the first gap and below the grown end looks like an append in flight at the
//! crash. It is truncated.

use super::truncate::{
    Attempt, LOOKS_MAX as TRUNCATES_MAX, Takes, refuse_other_writers, truncate, written_by,
};
use crate::backend::Backend;
use crate::os_error::{flushed, is_no_space};
use crate::rules::marker::{Identity, Marker};
use crate::rules::recovery::{Extent, Recovery, Verdict, judge, written_ranges};
use std::io;
use std::ops::Range;

/// Permission to change a file that a crash left grown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recover {
    /// Only look: change nothing, lock nothing.
    Inspect,
    /// Truncate where the end is certain.
    Truncate,
    /// Truncate at the end of the written data even if the file was changed since. For the owner,
    /// who knows which program changed it. Where zeros or old content hide that end, it stays
    /// unknown, as [`EndUnknown`](crate::Verdict::EndUnknown). A marker that cannot be read is only
    /// removed.
    Force,
}

/// How often a look that a writer disturbed is repeated before it fails.
const LOOKS_MAX: u32 = 100;

/// Performs a flush that the ledger counts, and returns its final result.
pub(crate) type CountedFlush<'a> = &'a dyn Fn(&dyn Fn() -> io::Result<()>) -> io::Result<()>;

/// A file in recovery.
#[derive(Clone, Copy)]
pub(crate) struct Recovering<'a> {
    pub backend: &'a dyn Backend,
    pub identity: Identity,
    pub counted: CountedFlush<'a>,
}

impl Recovering<'_> {
    /// Makes data, size and attributes durable.
    fn make_stable(self) -> io::Result<()> {
        (self.counted)(&|| flushed(|| self.backend.sync_all()))
    }

    /// Lowers the floor of a striped volume before a truncate, if needed.
    fn lower_floor(self, len: u64) -> io::Result<()> {
        if !self.backend.needs_lower_floor(len) {
            return Ok(());
        }
        (self.counted)(&|| self.backend.lower_floor(len))
    }
}

/// A consistent view of a file.
struct RecoveryView {
    size: u64,
    marker: Option<Vec<u8>>,
    /// Only if the marker belongs to the file.
    extents: Vec<Extent>,
}

/// Recovers a file as far as `how` allows. Returns the verdict, and the marker that stays if only
/// the caller can find the end.
pub(crate) fn recover_by(
    file: Recovering<'_>,
    how: Recover,
) -> io::Result<(Recovery, Option<Marker>)> {
    if how != Recover::Inspect {
        file.make_stable()?;
    }
    for _ in 0..TRUNCATES_MAX {
        if let Some(done) = try_to_recover_by(file, how)? {
            return Ok(done);
        }
    }
    Err(written_by("another program"))
}

/// One attempt. `None` if another program wrote between the look and the truncate.
fn try_to_recover_by(
    file: Recovering<'_>,
    how: Recover,
) -> io::Result<Option<(Recovery, Option<Marker>)>> {
    let Recovering { backend, identity, .. } = file;
    let view = view(backend, identity)?;
    let found = verdict(&view, identity);
    let marker = match view.marker.as_deref().map(Marker::decode) {
        None => return Ok(Some((found, None))),
        Some(Ok(marker)) => marker,
        Some(Err(_)) => {
            if how == Recover::Force {
                backend.remove_marker()?;
                file.make_stable()?;
            }
            return Ok(Some((found, None)));
        }
    };
    let kept = match (&found.verdict, how) {
        (Verdict::ModifiedExternally(_), Recover::Force) if found.floor < found.ceiling => {
            adopt(file, marker, &found)?;
            None
        }
        (Verdict::EndKnown, Recover::Truncate | Recover::Force)
        | (Verdict::ModifiedExternally(_), Recover::Force) => {
            if let Attempt::Changed(_) = truncate_to_end(file, marker, &found, &view.extents)? {
                return Ok(None);
            }
            None
        }
        (Verdict::EndUnknown, _) => Some(marker),
        _ => None,
    };
    Ok(Some((found, kept)))
}

/// Looks at a file that another process may be writing. Returns its marker and the verdict.
pub(crate) fn look(
    backend: &dyn Backend,
    identity: Identity,
) -> io::Result<(Option<Vec<u8>>, Recovery)> {
    let view = view(backend, identity)?;
    let found = verdict(&view, identity);
    Ok((view.marker, found))
}

/// Looks until nothing changes meanwhile. A marker is written twice only if nothing was truncated
/// in between (`put_back`). Without a marker, a size falls only in a file that was grown ahead, or
/// that its writer truncates.
fn view(backend: &dyn Backend, identity: Identity) -> io::Result<RecoveryView> {
    for _ in 0..LOOKS_MAX {
        let marker = backend.read_marker()?;
        let size = backend.physical_size()?;
        let own = marker.as_deref().is_some_and(|bytes| is_of(bytes, identity));
        // A copied file may lie where FIEMAP does not work.
        let extents = if own { backend.extents(0)? } else { Vec::new() };
        let same_marker = backend.read_marker()? == marker;
        let size_now = backend.physical_size()?;
        if same_marker && (size_now == size || marker.is_none() && size_now > size) {
            return Ok(RecoveryView { size, marker, extents });
        }
    }
    Err(io::Error::from_raw_os_error(libc::EAGAIN))
}

/// Whether a marker can be read, and belongs to this file.
pub(crate) fn is_of(marker: &[u8], identity: Identity) -> bool {
    Marker::decode(marker).is_ok_and(|marker| marker.identity == identity)
}

fn verdict(view: &RecoveryView, identity: Identity) -> Recovery {
    let clean = Recovery::clean(view.size);
    match view.marker.as_deref().map(Marker::decode) {
        None => clean,
        Some(Ok(marker)) => judge(&marker, identity, view.size, &view.extents),
        Some(Err(why)) => Recovery { verdict: Verdict::ModifiedExternally(why), ..clean },
    }
}

/// Accepts the changes of other programs. The end of the file's records remains unknown.
fn adopt(file: Recovering<'_>, marker: Marker, found: &Recovery) -> io::Result<()> {
    let grown_to = found.physical_size;
    let grown =
        Marker { grown_from: grown_to, grown_to, epoch: marker.epoch.wrapping_add(1), ..marker };
    file.backend.write_marker(&grown.encode())?;
    file.make_stable()
}

fn truncate_to_end(
    file: Recovering<'_>,
    marker: Marker,
    found: &Recovery,
    extents: &[Extent],
) -> io::Result<Attempt<(u64, Vec<Range<u64>>)>> {
    let (backend, end) = (file.backend, found.ceiling);
    if end < found.physical_size {
        refuse_other_writers(backend)?;
        file.lower_floor(end)?;
        let grown_to = marker.grown_to.max(found.physical_size);
        let last =
            Marker { base: end, grown_from: grown_to, grown_to, ..marker.before_truncation() };
        match backend.write_marker(&last.encode()) {
            // The disk is full. The existing marker leads to this end again.
            Err(error) if found.verdict == Verdict::EndKnown && is_no_space(&error) => {}
            result => result?,
        }
        file.make_stable()?;
        let seen = (found.physical_size, written_ranges(end, extents));
        let look = || Ok((backend.physical_size()?, written_ranges(end, &backend.extents(end)?)));
        let attempt = truncate(backend, end, &seen, Takes::Short, look)
            .inspect_err(|_| put_back(file, marker))?;
        if let changed @ Attempt::Changed(_) = attempt {
            put_back(file, marker);
            return Ok(changed);
        }
        file.make_stable()?;
    }
    backend.remove_marker()?;
    file.make_stable()?;
    Ok(Attempt::Done)
}

/// Restores the marker of a file that was not truncated.
fn put_back(file: Recovering<'_>, marker: Marker) {
    let written = file.backend.write_marker(&marker.encode());
    if let Err(error) = written.and_then(|()| file.make_stable()) {
        log::warn!("dioxide: restoring a marker: {error}");
    }
}
