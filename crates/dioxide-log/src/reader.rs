//! Readers of a log in the process of its writer.

use crate::cursor::Cursor;
use crate::error::{Error, Result};
use crate::index::Location;
use crate::lsn::Lsn;
use crate::window::Window;
use crate::writer::Writer;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Context;

/// A record that lies in the memory of its reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// The number of the record.
    pub lsn: Lsn,
    /// Its bytes.
    pub payload: &'a [u8],
}

/// A position in a log that moves from record to record.
///
/// [`next`](Self::next) lends each record until the next call. As an iterator it copies them.
///
/// A position with much to return reads 1 MiB at a time, and a thread of its own reads ahead. This
/// thread ends when there is no next record. Dropping the position waits for a read of the thread.
#[derive(Debug)]
pub struct Iter {
    writer: Arc<Writer>,
    /// The next record to return.
    next: Lsn,
    window: Window,
    /// Where the frame of that record is expected. None if it must be looked up.
    at: Option<Cursor>,
    /// The truncations of the back that the position knows.
    truncations: u64,
    /// As an iterator, it has returned an error.
    has_failed: bool,
}

impl Iter {
    pub(crate) fn new(writer: Arc<Writer>, next: Lsn) -> Self {
        let (window, at) = (Window::growing(), None);
        Self { writer, next, window, at, truncations: 0, has_failed: false }
    }

    /// The LSN of the record that [`next`](Self::next) returns.
    pub fn lsn(&self) -> Lsn {
        self.next
    }

    /// Returns the next record, or None if there is none yet. Later calls may return one.
    ///
    /// # Errors
    ///
    /// - [`Error::OutOfRange`]: the record was removed by
    ///   [`truncate_front`](crate::Log::truncate_front).
    /// - [`Error::Corrupt`]: the record was damaged since it was written.
    ///
    /// Or the error of a read.
    #[allow(clippy::should_implement_trait)] // It lends.
    pub fn next(&mut self) -> Result<Option<Record<'_>>> {
        Ok(self.next_located()?.map(|(_, record)| record))
    }

    /// As [`next`](Self::next), with the location of the frame.
    pub(crate) fn next_located(&mut self) -> Result<Option<(Location, Record<'_>)>> {
        Ok(self.advance()?.map(|size| self.lend_located(size)))
    }

    /// Returns the record at the frame that [`advance`](Self::advance) found.
    fn lend(&mut self, size: u64) -> Record<'_> {
        self.lend_located(size).1
    }

    /// As [`lend`](Self::lend), with the location of the frame.
    fn lend_located(&mut self, size: u64) -> (Location, Record<'_>) {
        let at = self.at.as_mut().expect("the record was found there");
        let lsn = self.next;
        self.next = lsn.next();
        let location = Location::new(at.member.header.number, at.offset, size);
        (location, Record { lsn, payload: at.take(&self.window, size) })
    }

    /// Moves to the frame of the next record, and returns its size. None if there is none yet.
    fn advance(&mut self) -> Result<Option<u64>> {
        if self.next >= self.writer.visible() {
            self.window.rest();
            return Ok(None);
        }
        let truncations = self.writer.truncations();
        if truncations != self.truncations {
            self.at = None;
            self.window.clear();
            self.truncations = truncations;
        }
        // The place from memory may be old. The second time it is looked up, and read again.
        for fresh in [false, true] {
            let known = self.at.as_ref().is_some_and(|at| self.next < at.run.1);
            if fresh || !known {
                let Some((place, member)) = self.writer.find(self.next) else {
                    return self.not_found();
                };
                let grown = self.at.as_mut().filter(|at| {
                    at.member.header.number == place.segment && at.run.0 == place.run.0
                });
                match grown {
                    // It waited for this record.
                    Some(at) if !fresh => {
                        at.run = place.run;
                        self.window.shrink();
                    }
                    _ => {
                        let segment = place.segment;
                        self.window.clear();
                        if let Some(old) = self.at.replace(Cursor::new(place, member)) {
                            old.leave_for(segment);
                        }
                    }
                }
            }
            let at = self.at.as_mut().expect("it was looked up");
            match at.seek(&mut self.window, self.next) {
                Ok(Some(size)) => return Ok(Some(size)),
                Ok(None) => {}
                // The segment of a record that was truncated may be gone.
                Err(_) if self.writer.truncations() != self.truncations => return self.advance(),
                Err(_) if self.next < self.writer.range().0 => return self.not_found(),
                Err(error) => return Err(error),
            }
        }
        // It was found by now, or the log has changed meanwhile.
        if self.writer.truncations() != self.truncations {
            return self.advance();
        }
        if self.writer.find(self.next).is_none() {
            return self.not_found();
        }
        if self.writer.lock().is_closed() {
            // Another process may write the log by now.
            return Err(Error::Closed);
        }
        let at = self.at.as_ref().expect("it was looked up");
        let reason = format!("record {} is not there any more", self.next);
        Err(Error::corrupt(at.member.segment.path(), at.offset, reason))
    }

    fn not_found(&mut self) -> Result<Option<u64>> {
        self.window.clear();
        self.at = None;
        let ((first, next), lsn) = (self.writer.range(), self.next);
        match lsn < first {
            true => Err(Error::OutOfRange { lsn, first, next }),
            false => Ok(None),
        }
    }
}

impl Iterator for Iter {
    type Item = Result<(Lsn, Vec<u8>)>;

    /// Returns the next record as a copy. Ends where there is none yet, and behind an error. Later
    /// calls look again.
    fn next(&mut self) -> Option<Self::Item> {
        if std::mem::take(&mut self.has_failed) {
            return None;
        }
        match Iter::next(self) {
            Ok(record) => record.map(|record| Ok((record.lsn, record.payload.to_vec()))),
            Err(error) => {
                self.has_failed = true;
                Some(Err(error))
            }
        }
    }
}

/// A reader that waits for records that are not there yet.
#[derive(Debug)]
pub struct Follow {
    iter: Iter,
    /// Its number among those that wait.
    number: u64,
}

impl Follow {
    pub(crate) fn new(iter: Iter) -> Self {
        let number = iter.writer.next_follower();
        Self { iter, number }
    }

    /// The LSN of the record that [`next`](Self::next) returns.
    pub fn lsn(&self) -> Lsn {
        self.iter.lsn()
    }

    /// Returns the next record, and waits for it. None after the log was closed.
    ///
    /// # Errors
    ///
    /// As [`Iter::next`]. [`Error::Failed`] if a write or flush failed, so that none comes.
    #[allow(clippy::should_implement_trait)] // It lends.
    pub fn next(&mut self) -> Result<Option<Record<'_>>> {
        loop {
            // A record may be truncated again between the wait and the read, or during the read.
            if let Some(size) = self.iter.advance()? {
                return Ok(Some(self.iter.lend(size)));
            }
            if !self.iter.writer.wait_for(self.iter.next)? {
                return Ok(None);
            }
        }
    }

    /// As [`next`](Self::next), for a task. The read itself blocks.
    ///
    /// # Errors
    ///
    /// As [`next`](Self::next).
    pub async fn next_async(&mut self) -> Result<Option<Record<'_>>> {
        loop {
            if let Some(size) = self.iter.advance()? {
                return Ok(Some(self.iter.lend(size)));
            }
            let (writer, lsn) = (&self.iter.writer, self.iter.next);
            let number = self.number;
            let wait = |context: &mut Context<'_>| writer.poll_for(lsn, number, context.waker());
            if !poll_fn(wait).await? {
                return Ok(None);
            }
        }
    }
}

impl Drop for Follow {
    fn drop(&mut self) {
        self.iter.writer.forget(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::Context;
    use crate::storage::memory::Memory;
    use crate::{Log, LogOptions, LogReader, Lsn};
    use std::pin::pin;
    use std::sync::Arc;
    use std::task::Waker;

    const RECORDS: usize = 700;
    const RECORD_BYTES: usize = 10_000;

    fn log(disk: &Memory) -> Log {
        let options = LogOptions::new().segment_bytes(4 << 20);
        let log = options.open_storage(Arc::new(disk.clone())).expect("a new log");
        for number in 0..RECORDS {
            log.append(&[number as u8; RECORD_BYTES]).expect("it is appended");
        }
        log
    }

    /// It kept the thread and its memory for as long as no record came.
    #[test]
    fn a_position_that_waited_kept_its_thread() {
        let disk = Memory::default();
        let log = log(&disk);
        let (mut iter, mut follow) = (log.iter_from(Lsn::FIRST), log.follow(Lsn::FIRST));
        let mut reader = LogReader::of(Arc::new(disk)).expect("a log");
        for _ in 0..RECORDS {
            iter.next().expect("it reads").expect("a record");
            follow.next().expect("it reads").expect("a record");
            reader.next().expect("it reads").expect("a record");
        }
        assert!(iter.window.reads_ahead() && follow.iter.window.reads_ahead());
        assert!(reader.reads_ahead());
        assert_eq!(iter.next().expect("it reads"), None);
        assert_eq!(reader.next().expect("it reads"), None);
        let mut context = Context::from_waker(Waker::noop());
        assert!(pin!(follow.next_async()).poll(&mut context).is_pending());
        assert!(!iter.window.reads_ahead() && !follow.iter.window.reads_ahead());
        assert!(!reader.reads_ahead());
        log.append(b"last").expect("it is appended");
        for record in [iter.next(), follow.next(), reader.next()] {
            assert_eq!(record.expect("it reads").expect("a record").payload, b"last");
        }
    }
}
