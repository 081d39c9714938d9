//! A reader of one stream of a log that another process writes.
//!
//! 1. It follows the frames of the log, as far as they are stable, and applies those of its stream.
//! 2. It reads a record from the place that the last of these frames has for it.
//!
//! The collector frees a segment only once the copies of its records are stable. So a record that
//! is not at its place any more has another one by then, or was removed. If the front of the log
//! has overtaken a reader, it begins with the new front: the log still has all that streams need.

use super::entry::Entry;
use super::reader::{Shown, corrupt};
use super::table::{NO_ENTRY, Replay};
use super::view::{StreamView, without_streams};
use crate::error::{Error, Result};
use crate::format::LogId;
use crate::index::Location;
use crate::log_reader::{LogReader, wait_async, wait_within};
use crate::lsn::Lsn;
use crate::reader::Record;
use crate::storage::Storage;
use crate::view::LOOKS_MAX;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// The pause before another look, so that a writer can show what it has done.
const PAUSE: Duration = Duration::from_millis(1);

/// A position in a stream, which follows its writer in another process, or in this one.
///
/// As a [`LogReader`], it shows only records that the writer has shown to be stable, changes
/// nothing, and needs no lock. It looks for changes when it has returned all records that it knows,
/// when a record is not at its place, and after [`seek`](Self::seek). Until then it may return a
/// record that [`truncate_back`](crate::Stream::truncate_back) removed meanwhile. After a power cut
/// the mark may be older than the log. Then it may show no record until a writer opens the log.
///
/// It reads the frames of all streams, as a [`LogReader`] does. In memory, a record of the stream
/// needs about 30 bytes. [`StreamView`] shows streams as they lie on their medium instead.
#[derive(Debug)]
pub struct StreamReader {
    log: LogReader,
    id: u64,
    /// The stream, as far as the log was followed.
    replay: Replay,
    /// Whether all of its records were found once. A stream without frames is not whole.
    is_whole: bool,
    /// The next record to return.
    next: Lsn,
    is_moved: bool,
    shown: Shown,
    /// How often the log was found again before the last look.
    finds: u64,
}

impl StreamReader {
    /// Opens a stream of the log in a directory. The position is the first record. The stream may
    /// begin later. Reads and checks the whole log.
    ///
    /// # Errors
    ///
    /// As [`LogReader::open`], and [`Error::Options`] for a log without streams.
    pub fn open(path: impl AsRef<Path>, id: u64) -> Result<Self> {
        Self::new(LogReader::open(path)?, id)
    }

    /// Opens a stream of the log on any medium with a [mark](Storage::mark).
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn of(storage: Arc<dyn Storage>, id: u64) -> Result<Self> {
        Self::new(LogReader::of(storage)?, id)
    }

    fn new(log: LogReader, id: u64) -> Result<Self> {
        if !log.has_streams() {
            return Err(without_streams(log.storage().path()));
        }
        let (replay, shown) = (Replay::default(), Shown::new());
        let (is_whole, is_moved, next, finds) = (false, false, Lsn::FIRST, 0);
        let mut reader = Self { log, id, replay, is_whole, next, is_moved, shown, finds };
        reader.look()?;
        reader.next = reader.first_lsn();
        Ok(reader)
    }

    /// The number of the stream.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The random name of the log.
    pub fn log_id(&self) -> LogId {
        self.log.id()
    }

    /// The LSN of the record that [`next`](Self::next) returns.
    pub fn lsn(&self) -> Lsn {
        self.next
    }

    /// Moves the position. The next read looks what the writer has changed.
    pub fn seek(&mut self, lsn: Lsn) {
        self.next = lsn;
        self.is_moved = true;
    }

    /// The lowest LSN that the stream has, as far as it was followed.
    pub fn first_lsn(&self) -> Lsn {
        self.replay.range().0
    }

    /// The LSN behind the last stable record of the stream, as far as it was followed.
    pub fn stable_lsn(&self) -> Lsn {
        self.replay.range().1
    }

    /// As [`LogReader::knows_stable`].
    pub fn knows_stable(&self) -> bool {
        self.log.knows_stable()
    }

    /// Returns the next record, or None if there is none yet. Later calls may return one.
    ///
    /// # Errors
    ///
    /// As [`LogReader::next`].
    #[allow(clippy::should_implement_trait)] // It lends.
    pub fn next(&mut self) -> Result<Option<Record<'_>>> {
        Ok(self.advance()?.map(|location| self.lend(location)))
    }

    /// Returns the record at the location where [`advance`](Self::advance) found it.
    fn lend(&mut self, location: Location) -> Record<'_> {
        let lsn = self.next;
        self.next = lsn.next();
        Record { lsn, payload: self.shown.record(location) }
    }

    /// As [`next`](Self::next), and waits for a record. None after this time.
    ///
    /// # Errors
    ///
    /// As [`next`](Self::next).
    pub fn next_within(&mut self, limit: Duration) -> Result<Option<Record<'_>>> {
        let location = wait_within(limit, || self.advance())?;
        Ok(location.map(|location| self.lend(location)))
    }

    /// As [`LogReader::next_async`]. Where a look reads the whole log, it blocks for longer.
    ///
    /// # Errors
    ///
    /// As [`next`](Self::next).
    pub async fn next_async(&mut self) -> Result<Record<'_>> {
        let storage = self.log.storage().clone();
        let location = wait_async(storage.path(), || self.advance()).await?;
        Ok(self.lend(location))
    }

    /// Reads the next record, and returns its location. None if there is none yet.
    fn advance(&mut self) -> Result<Option<Location>> {
        if self.is_moved || !self.is_whole || self.next >= self.stable_lsn() {
            self.look()?;
            self.is_moved = false;
        }
        let path = self.log.storage().path().to_owned();
        for look in 1..=LOOKS_MAX {
            let (lsn, (first, next)) = (self.next, self.replay.range());
            if lsn < first {
                return Err(Error::OutOfRange { lsn, first, next });
            }
            if lsn >= next {
                return Ok(None);
            }
            let location = self.replay.from(lsn).next().expect("the stream is whole");
            let wanted = (self.id, lsn);
            if self.shown.has(location, wanted) {
                return Ok(Some(location));
            }
            let failure = match self.log.member(location.segment) {
                Some(member) => {
                    let locations = self.replay.from(lsn);
                    match self.shown.load_without_writer(member, locations, wanted, &path) {
                        Ok(()) => return Ok(Some(location)),
                        Err(error) => error,
                    }
                }
                None => Error::Changing { path: path.clone() },
            };
            // The place may be old. If the next look does not find another one, the log is found
            // again, with any damage.
            if look > 1 {
                if look > 2 && !matches!(failure, Error::Changing { .. }) {
                    return Err(failure);
                }
                thread::sleep(PAUSE);
                self.log.find_again()?;
            }
            self.look()?;
        }
        Err(Error::Changing { path })
    }

    /// Follows the log to the end of what is stable.
    fn look(&mut self) -> Result<()> {
        for _ in 0..LOOKS_MAX {
            let followed = self.follow();
            if self.finds != self.log.finds() {
                // Other frames may lie where the last record was read.
                self.finds = self.log.finds();
                self.shown.clear();
            }
            match followed {
                Ok(()) if self.is_whole || self.replay.is_empty() => return Ok(()),
                Ok(()) if self.replay.check().is_ok() => {
                    self.is_whole = true;
                    return Ok(());
                }
                // The writer has moved the front, and has not yet shown how far it is stable.
                Ok(()) => thread::sleep(PAUSE),
                Err(Error::OutOfRange { .. }) => {}
                Err(error) => return Err(error),
            }
            self.begin_again();
        }
        // Without regard to what is stable, a sound log has all of its records. After a power cut
        // the mark may be older than the log, until there is a writer.
        StreamView::of(self.log.storage().clone()).map(drop)
    }

    /// Forgets the stream, and follows the log from its first record.
    fn begin_again(&mut self) {
        (self.replay, self.is_whole) = (Replay::default(), false);
        self.log.seek(self.log.first_lsn());
    }

    /// Applies the frames that have come.
    fn follow(&mut self) -> Result<()> {
        while let Some((location, record)) = self.log.next_located()? {
            let applied = match Entry::parse(record.payload) {
                Some(entry) if entry.stream() == self.id => self.replay.apply(entry, location),
                Some(_) => Ok(()),
                None => Err(NO_ENTRY.into()),
            };
            if let Err(reason) = applied {
                let member = self.log.member(location.segment);
                let error = corrupt(member, self.log.storage().path(), location, reason);
                // So that the next call finds it again.
                self.begin_again();
                return Err(error);
            }
        }
        Ok(())
    }
}
