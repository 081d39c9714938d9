//! A reader of a log that another process writes.

use crate::cursor::Cursor;
use crate::error::{Error, Result};
use crate::format::header::{Found, Header};
use crate::format::scan::{Ending, Scan};
use crate::format::{BLOCK_BYTES, Content, LogId};
use crate::index::Location;
use crate::lsn::Lsn;
use crate::reader::Record;
use crate::recover::{Member, follow, member_of};
use crate::storage::device::is_device;
use crate::storage::dir::Dir;
use crate::storage::{Mark, Storage};
use crate::timer;
use crate::view::{self, LOOKS_MAX};
use crate::window::Window;
use dioxide::Buffer;
use dioxide::text::shown;
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Most often a few frames have come.
const FRAMES_BYTES: usize = 16 << 10;
/// The pauses between two looks while nothing new is there.
const PAUSE_MIN: Duration = Duration::from_micros(100);
const PAUSE_MAX: Duration = Duration::from_millis(5);

/// A position in a log, which follows its writer in another process, or in this one.
///
/// It shows the records that the writer has shown to be stable, and never others: those that the
/// log keeps after any crash. It changes nothing, and needs no lock. It looks for changes when it
/// has returned all records that it knows, and after [`seek`](Self::seek). Until then it may return
/// a record that [`truncate_back`](crate::Log::truncate_back) removed meanwhile.
///
/// [`LogView`](crate::LogView) shows a log as it lies on its medium instead.
///
/// With much to return, a thread reads ahead, as that of an [`Iter`](crate::Iter).
#[derive(Debug)]
pub struct LogReader {
    storage: Arc<dyn Storage>,
    /// The next record to return.
    next: Lsn,
    is_moved: bool,
    mark: Mark,
    followed: Followed,
    /// How often the log was found again.
    finds: u64,
    /// Of the frames that are followed.
    frames: Window,
    /// Of the records that are returned.
    window: Window,
    /// Where the frame of the next record is expected, as far as its run goes.
    at: Option<Cursor>,
}

/// The log as far as its frames were followed.
#[derive(Debug)]
struct Followed {
    id: LogId,
    chain: VecDeque<Member>,
    scan: Scan,
    /// The last frame ended its segment.
    ended: bool,
}

impl LogReader {
    /// Opens the log in a directory. The position is the first record. Reads and checks the whole
    /// log.
    ///
    /// # Errors
    ///
    /// - [`Error::Missing`]: there is no log.
    /// - [`Error::Corrupt`], [`Error::Version`]: the log is damaged, or of a later version.
    /// - [`Error::Changing`]: the writer frees segments faster than they are read.
    /// - [`Error::Options`]: it is a block device, which has no mark.
    ///
    /// Or the error of a system call.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        if is_device(path) {
            let reason = "a log on a device has no mark for readers of other processes; `dioxide \
                          log dump` prints it";
            return Err(Error::Options(format!("{}: {reason}", shown(path))));
        }
        Self::of(Arc::new(Dir::open_read_only(path)?))
    }

    /// Opens the log on any medium with a [mark](Storage::mark).
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn of(storage: Arc<dyn Storage>) -> Result<Self> {
        let (followed, mark) = Followed::find(storage.as_ref())?;
        let next = followed.scan.index().front();
        let (frames, window) = (Window::new(FRAMES_BYTES), Window::growing());
        let (is_moved, finds, at) = (false, 0, None);
        Ok(Self { storage, next, is_moved, mark, followed, finds, frames, window, at })
    }

    /// The random name of the log.
    pub fn id(&self) -> LogId {
        self.followed.id
    }

    /// The LSN of the record that [`next`](Self::next) returns.
    pub fn lsn(&self) -> Lsn {
        self.next
    }

    /// Moves the position. The next read looks what the writer has changed.
    pub fn seek(&mut self, lsn: Lsn) {
        self.next = lsn;
        self.is_moved = true;
        self.forget_place();
    }

    /// The lowest LSN that the log has, as far as it was followed.
    pub fn first_lsn(&self) -> Lsn {
        self.followed.scan.index().front()
    }

    /// The LSN behind the last stable record, as far as it was followed.
    pub fn stable_lsn(&self) -> Lsn {
        self.mark.next.min(self.followed.scan.index().next())
    }

    /// Whether the writer has shown which records are stable. If it begins or truncates the log
    /// during a look, only a later look finds out, and the log looks empty until then.
    pub fn knows_stable(&self) -> bool {
        self.first_lsn() <= self.stable_lsn()
    }

    /// Returns the next record, or None if there is none yet. Later calls may return one.
    ///
    /// # Errors
    ///
    /// - [`Error::OutOfRange`]: the record was removed by a truncation of the front.
    ///   [`seek`](Self::seek) to [`first_lsn`](Self::first_lsn) goes on.
    /// - [`Error::Corrupt`]: the log is damaged.
    /// - [`Error::Changing`]: the writer frees segments faster than they are read. A later call may
    ///   succeed.
    /// - [`Error::Missing`]: the log was removed. Another one may have its place.
    ///
    /// Or the error of a read.
    #[allow(clippy::should_implement_trait)] // It lends.
    pub fn next(&mut self) -> Result<Option<Record<'_>>> {
        Ok(self.next_located()?.map(|(_, record)| record))
    }

    /// As [`next`](Self::next), with the location of the frame.
    pub(crate) fn next_located(&mut self) -> Result<Option<(Location, Record<'_>)>> {
        Ok(self.advance()?.map(|size| self.lend(size)))
    }

    /// Returns the record at the frame that [`advance`](Self::advance) found.
    fn lend(&mut self, size: u64) -> (Location, Record<'_>) {
        let at = self.at.as_mut().expect("the record was found there");
        let lsn = self.next;
        self.next = lsn.next();
        let location = Location::new(at.member.header.number, at.offset, size);
        (location, Record { lsn, payload: at.take(&self.window, size) })
    }

    /// As [`next`](Self::next), and waits for a record. None after this time.
    ///
    /// # Errors
    ///
    /// As [`next`](Self::next).
    pub fn next_within(&mut self, limit: Duration) -> Result<Option<Record<'_>>> {
        let size = wait_within(limit, || self.advance())?;
        Ok(size.map(|size| self.lend(size).1))
    }

    /// As [`next`](Self::next), but the task waits for a record. It looks every few milliseconds,
    /// and the looks and reads block. Dropping the future loses no record.
    ///
    /// # Errors
    ///
    /// As [`next`](Self::next).
    pub async fn next_async(&mut self) -> Result<Record<'_>> {
        let storage = self.storage.clone();
        let size = wait_async(storage.path(), || self.advance()).await?;
        Ok(self.lend(size).1)
    }

    /// Whether it is a log of streams.
    pub(crate) fn has_streams(&self) -> bool {
        let last = self.followed.chain.back().expect("the last segment");
        last.header.content == Content::Streams
    }

    #[cfg(test)]
    pub(crate) fn reads_ahead(&self) -> bool {
        self.window.reads_ahead()
    }

    /// How often the log was found again. What was read before may be of other frames.
    pub(crate) fn finds(&self) -> u64 {
        self.finds
    }

    pub(crate) fn storage(&self) -> &Arc<dyn Storage> {
        &self.storage
    }

    /// The segment with a number. None if the log does not need it, as far as it was followed.
    pub(crate) fn member(&self, number: u64) -> Option<&Member> {
        member_of(&self.followed.chain, number)
    }

    /// Moves to the frame of the next record, and returns its size. None if there is none yet.
    fn advance(&mut self) -> Result<Option<u64>> {
        if self.is_moved || self.next >= self.stable_lsn() {
            self.is_moved = !self.refresh()?;
        }
        for look in 1..=LOOKS_MAX {
            if self.next >= self.stable_lsn() {
                self.window.rest();
                return Ok(None);
            }
            self.look_up()?;
            let at = self.at.as_mut().expect("it was looked up");
            let failure = match at.seek(&mut self.window, self.next) {
                Ok(Some(size)) => return Ok(Some(size)),
                Ok(None) => {
                    let reason = format!("record {} is not there any more", self.next);
                    Error::corrupt(at.member.segment.path(), at.offset, reason)
                }
                Err(error) => error,
            };
            let failure = at.member.failure(failure, self.storage.path());
            // The log may be another one than this reader knows, but not at once again.
            if look > 1 && !matches!(failure, Error::Changing { .. }) {
                return Err(failure);
            }
            self.find_again()?;
        }
        Err(Error::Changing { path: self.storage.path().into() })
    }

    /// The place of the next record is to be looked up.
    fn forget_place(&mut self) {
        if let Some(at) = &mut self.at {
            at.forget_run();
        }
    }

    /// Makes the cursor lead to the next record.
    fn look_up(&mut self) -> Result<()> {
        let (index, lsn) = (self.followed.scan.index(), self.next);
        let (first, next) = (index.front(), self.stable_lsn());
        if self.at.as_ref().is_some_and(|at| (first..at.run.1).contains(&lsn)) {
            return Ok(());
        }
        let place = index.find(lsn).ok_or(Error::OutOfRange { lsn, first, next })?;
        let is_same =
            |at: &Cursor| (at.member.header.number, at.run.0) == (place.segment, place.run.0);
        match &mut self.at {
            // It has only grown.
            Some(at) if is_same(at) => {
                at.run = place.run;
                self.window.shrink();
            }
            at => {
                self.window.clear();
                let member = member_of(&self.followed.chain, place.segment);
                let member = member.expect("the index names segments in use").clone();
                if let Some(old) = at.replace(Cursor::new(place, member)) {
                    old.leave_for(place.segment);
                }
            }
        }
        Ok(())
    }

    /// Takes the mark of the writer, and follows its frames up to there. False without a mark.
    fn refresh(&mut self) -> Result<bool> {
        let Some(mark) = self.storage.mark()? else { return Ok(false) };
        if mark == self.mark {
            return Ok(true);
        }
        let truncations = self.followed.scan.truncations();
        let follows = mark.epoch == self.mark.epoch
            && self.followed.go_on(&mut self.frames, self.storage.as_ref())
            && self.followed.scan.index().next() >= mark.next;
        if !follows {
            // Another writer may have removed frames. Or this reader was so slow that a segment was
            // removed, or used again.
            self.find_again()?;
            return Ok(true);
        }
        if self.followed.scan.truncations() != truncations {
            // Other records may have its LSNs.
            self.forget_place();
        }
        self.mark = between(mark, self.storage.mark()?);
        Ok(true)
    }

    /// Reads the whole log again.
    pub(crate) fn find_again(&mut self) -> Result<()> {
        self.at = None;
        self.window.clear();
        self.frames.clear();
        self.finds += 1;
        let (followed, mark) = Followed::find(self.storage.as_ref())?;
        if followed.id != self.followed.id {
            // Its records have other numbers.
            return Err(Error::Missing { path: self.storage.path().into() });
        }
        (self.followed, self.mark) = (followed, mark);
        Ok(())
    }
}

/// Looks for a record until it is there, at most for this time.
pub(crate) fn wait_within<T>(
    limit: Duration,
    mut find: impl FnMut() -> Result<Option<T>>,
) -> Result<Option<T>> {
    let end = Instant::now().checked_add(limit);
    let mut pause = PAUSE_MIN;
    loop {
        if let Some(found) = find()? {
            return Ok(Some(found));
        }
        let left = end.map_or(PAUSE_MAX, |end| end.saturating_duration_since(Instant::now()));
        if left.is_zero() {
            return Ok(None);
        }
        thread::sleep(pause.min(left));
        pause = (2 * pause).min(PAUSE_MAX);
    }
}

/// Looks for a record until it is there. `path` is that of the log, for messages.
pub(crate) async fn wait_async<T>(
    path: &Path,
    mut find: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let mut time = PAUSE_MIN;
    loop {
        if let Some(found) = find()? {
            return Ok(found);
        }
        timer::pause(path, time).await?;
        time = (2 * time).min(PAUSE_MAX);
    }
}

/// Without a mark nothing is known to be stable.
const UNKNOWN: Mark = Mark { epoch: 0, frames: 0, truncations: 0, next: Lsn(0) };

/// The mark that holds for frames that were read between these two. After a truncation of the back,
/// unstable records may have the LSNs of stable ones.
fn between(before: Mark, after: Option<Mark>) -> Mark {
    let key = |mark: &Mark| (mark.epoch, mark.truncations);
    match after {
        Some(after) if key(&after) == key(&before) => before,
        _ => UNKNOWN,
    }
}

impl Followed {
    /// Reads the log from its medium, and the mark that holds for it.
    fn find(storage: &dyn Storage) -> Result<(Self, Mark)> {
        let mark = storage.mark()?.unwrap_or(UNKNOWN);
        let found = view::find(storage)?;
        let last = &found.chain.back().expect("the last segment").header;
        let scan = Scan::resume(last, found.end, found.index);
        let followed = Self { id: found.id, chain: found.chain, scan, ended: found.ended };
        Ok((followed, between(mark, storage.mark()?)))
    }

    /// Follows the frames behind those that are known. False if that fails. The log is then to be
    /// found again, which distinguishes damage from a writer that has overtaken.
    fn go_on(&mut self, window: &mut Window, storage: &dyn Storage) -> bool {
        loop {
            if self.ended {
                match next_of(storage, self.id, self.scan.number()) {
                    Ok(Next::Begun(next)) if self.scan.enter(&next.header) => {
                        self.chain.push_back(next);
                        self.ended = false;
                    }
                    Ok(Next::NotBegun) => return true,
                    _ => return false,
                }
            }
            let last = self.chain.back().expect("the last segment").clone();
            let segment = &last.segment;
            let Ok(ending) = follow(&mut self.scan, segment, window) else { return false };
            self.forget_old();
            match ending {
                Ending::End if segment.rest().is_ok() => self.ended = true,
                Ending::End => return false,
                // No frame follows, unless the segment is used again by now.
                Ending::Open => {
                    let mut block = Buffer::zeroed(BLOCK_BYTES as usize);
                    return segment.read(&mut block, 0).is_ok()
                        && Header::parse(&block) == Found::Header(last.header);
                }
                Ending::Contradiction(_) | Ending::Unknown(_) => return false,
            }
        }
    }

    /// Drops the segments below the front.
    fn forget_old(&mut self) {
        let first = self.scan.index().first_segment().unwrap_or(self.scan.number());
        while self.chain.len() > 1 && self.chain[0].header.number < first {
            self.chain.pop_front();
        }
    }
}

/// The segment behind one of this number.
enum Next {
    Begun(Member),
    NotBegun,
    /// It was used again.
    Gone,
}

fn next_of(storage: &dyn Storage, log: LogId, number: u64) -> Result<Next> {
    let mut block = Buffer::zeroed(BLOCK_BYTES as usize);
    let mut next = Next::NotBegun;
    for segment in storage.segments()? {
        let read = segment.read(&mut block, 0);
        segment.rest()?;
        if read.is_err() {
            // Removed since.
            continue;
        }
        match Header::parse(&block) {
            Found::Header(header) if header.log != log => return Ok(Next::Gone),
            Found::Header(header) if header.segment_bytes != segment.bytes() => {
                return Ok(Next::Gone);
            }
            Found::Header(header) if header.number == number + 1 => {
                return Ok(Next::Begun(Member { header, segment }));
            }
            Found::Header(header) if header.number > number => next = Next::Gone,
            _ => {}
        }
    }
    Ok(next)
}
