//! A log as it lies on its medium, for programs that only read it.

use crate::cursor::Cursor;
use crate::error::{Error, Result};
use crate::format::{Content, LogId};
use crate::index::Location;
use crate::lsn::Lsn;
use crate::options::LogOptions;
use crate::recover::{Member, Recovered, Report, member_of, recover};
use crate::storage::Storage;
use crate::storage::device::{Device, is_device};
use crate::storage::dir::Dir;
use crate::window::Window;
use dioxide::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How often a log is looked at while a writer changes it.
pub(crate) const LOOKS_MAX: usize = 8;

/// A log as it was found, without the lock of its writer. Nothing is changed.
///
/// Opening reads and checks the whole log. A view does not follow a writer: a record that is
/// appended later is not there. A record whose segment was used again is an error.
#[derive(Debug)]
pub struct LogView {
    /// It is never [cleared](Recovered::clear).
    found: Recovered,
    path: PathBuf,
}

impl LogView {
    /// Looks at the log in a directory, or on a block device.
    ///
    /// # Errors
    ///
    /// - [`Error::Missing`]: there is no log.
    /// - [`Error::Corrupt`], [`Error::Version`]: the log is damaged, or of a later version.
    /// - [`Error::Changing`]: a writer frees segments faster than they are read.
    ///
    /// Or the error of a system call.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let storage: Arc<dyn Storage> = match is_device(path) {
            // A log on the device has its own size of segments.
            true => {
                let segment_bytes = LogOptions::new().segment_bytes;
                Arc::new(Device::new(File::open(path)?, path, segment_bytes)?)
            }
            false => Arc::new(Dir::open_read_only(path)?),
        };
        Self::of(storage)
    }

    /// Looks at the log on any medium.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn of(storage: Arc<dyn Storage>) -> Result<Self> {
        Ok(Self { found: find(storage.as_ref())?, path: storage.path().to_owned() })
    }

    /// The random name of the log.
    pub fn id(&self) -> LogId {
        self.found.id
    }

    /// What was found. Its records are also those that were truncated.
    pub fn report(&self) -> &Report {
        &self.found.report
    }

    /// Whether it is a log of streams. [`StreamView`](crate::StreamView) shows them.
    pub fn has_streams(&self) -> bool {
        let last = self.found.chain.back().expect("a log has a segment");
        last.header.content == Content::Streams
    }

    /// The name of the medium, for messages.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The segment with a number. None if the log does not need it.
    pub(crate) fn member(&self, number: u64) -> Option<&Member> {
        member_of(&self.found.chain, number)
    }

    /// The lowest number that the log has. It is that of the next record if the log is empty.
    pub fn first_lsn(&self) -> Lsn {
        self.found.index.front()
    }

    /// The number of the next record.
    pub fn next_lsn(&self) -> Lsn {
        self.found.index.next()
    }

    /// The number of segments that hold the log, without the free ones.
    pub fn segments(&self) -> usize {
        self.found.chain.len()
    }

    /// Returns the records from `lsn` on, as copies. To begin with the first, pass
    /// [`first_lsn`](Self::first_lsn). An error is the last item: [`Error::OutOfRange`] below the
    /// first record, [`Error::Changing`] if a writer uses the segment again, or that of a read.
    pub fn iter_from(&self, lsn: Lsn) -> Records<'_> {
        Records { view: self, next: lsn, window: Window::growing(), at: None }
    }
}

/// Reads a log that a writer may change meanwhile.
///
/// An error counts if the next look finds it again, and the writer has shown no change between the
/// two. If the writer always shows one, the error counts if each look finds it.
pub(crate) fn find(storage: &dyn Storage) -> Result<Recovered> {
    let mut last = None;
    let mut is_always = true;
    for _ in 0..LOOKS_MAX {
        // Without a mark, no change is shown.
        let mark = storage.mark().ok().flatten();
        let error = match recover(storage) {
            Ok(found) => {
                return found.ok_or_else(|| Error::Missing { path: storage.path().into() });
            }
            Err(error) => error,
        };
        if let Some((before, found)) = last {
            let is_same = is_same(&found, &error);
            if is_same && before == mark {
                return Err(error);
            }
            is_always &= is_same;
        }
        last = Some((mark, error));
    }
    match last {
        Some((_, error)) if is_always => Err(error),
        _ => Err(Error::Changing { path: storage.path().into() }),
    }
}

/// Whether two looks found the same. The reason may name what changes.
fn is_same(one: &Error, other: &Error) -> bool {
    match (one, other) {
        (Error::Corrupt { path, offset, .. }, Error::Corrupt { path: other, offset: at, .. }) => {
            path == other && offset == at
        }
        _ => one.to_string() == other.to_string(),
    }
}

/// The records of a [`LogView`], see [`LogView::iter_from`].
#[derive(Debug)]
pub struct Records<'a> {
    view: &'a LogView,
    /// The next record to return.
    next: Lsn,
    window: Window,
    /// Where its frame is expected. None if it must be looked up.
    at: Option<Cursor>,
}

impl Records<'_> {
    fn look_up(&self) -> Result<Cursor> {
        let (first, next, lsn) = (self.view.first_lsn(), self.view.next_lsn(), self.next);
        let place = self.view.found.index.find(lsn);
        let place = place.ok_or(Error::OutOfRange { lsn, first, next })?;
        let member = self.view.member(place.segment);
        Ok(Cursor::new(place, member.expect("the index names segments in use").clone()))
    }

    /// Moves to the frame of the next record, which the index has. Returns its location.
    fn advance(&mut self) -> Result<Location> {
        let mut at = match self.at.take() {
            Some(at) if self.next < at.run.1 => at,
            old => {
                self.window.clear();
                let at = self.look_up()?;
                if let Some(old) = old {
                    old.leave_for(at.member.header.number);
                }
                at
            }
        };
        let found = at.seek(&mut self.window, self.next).and_then(|size| {
            size.ok_or_else(|| {
                let reason = format!("record {} is not there any more", self.next);
                Error::corrupt(at.member.segment.path(), at.offset, reason)
            })
        });
        let size = found.map_err(|error| at.member.failure(error, self.view.path()))?;
        let location = Location::new(at.member.header.number, at.offset, size);
        self.at = Some(at);
        Ok(location)
    }

    /// Lends the next record, with the location of its frame. None behind the last one, and after
    /// an error.
    pub(crate) fn next_located(&mut self) -> Result<Option<(Location, &[u8])>> {
        if self.next >= self.view.next_lsn() {
            return Ok(None);
        }
        let location = self.advance().inspect_err(|_| {
            self.next = self.view.next_lsn();
            self.window.clear();
        })?;
        self.next = self.next.next();
        let at = self.at.as_mut().expect("the record was found there");
        Ok(Some((location, at.take(&self.window, location.bytes.into()))))
    }
}

impl Iterator for Records<'_> {
    type Item = Result<(Lsn, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        let lsn = self.next;
        let found = self.next_located();
        found.map(|found| found.map(|(_, payload)| (lsn, payload.to_vec()))).transpose()
    }
}
