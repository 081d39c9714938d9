//! A read-only handle, with a descriptor of its own. The writer of the file may be this process,
//! another one or none, and that may change at any time. Each call finds out.

use crate::backend::{Backend, Stamps};
use crate::engine::process::Process;
use crate::engine::registry::{Key, Registry};
use crate::engine::{self, Engine, recover};
use crate::error::{Error, Operation, Result};
use crate::os_error;
use crate::rules::marker::Marker;
use crate::rules::recovery::Verdict;
use crate::sync::Mutex;
use crate::sys::probe::{Alignment, Facts};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;

/// How often a read without an engine is begun before it fails.
const READS_MAX: u32 = 100;

/// How often a read is repeated because a file without a marker changed meanwhile.
const UNMARKED_READS_MAX: u32 = 3;

/// The state of the file when a read began.
#[derive(Debug)]
struct ReadView {
    marker: Option<Vec<u8>>,
    /// Everything below was written.
    len: u64,
    /// The stamps at that time. Used only without a marker of the file's own.
    stamps: Stamps,
}

/// How an attempt reads the file.
#[derive(Debug)]
pub(crate) enum Way {
    /// By the engine of this process that writes it.
    Engine(Arc<Engine>),
    /// Without one. Everything below this length was written.
    UpTo(u64),
}

/// The change of a file during a read.
#[derive(Debug, PartialEq)]
enum Since {
    /// Nothing below the end was truncated.
    OnlyGrowth,
    /// It has no marker of its own, as before, and something changed.
    UnmarkedChange,
    /// It may have been truncated, and grown again.
    PerhapsTruncation,
}

/// The attempts of a read through a read-only handle.
///
/// While this process has the file open for writing, its engine reads: only the engine knows the
/// exact length. The file shows whole blocks until the close has truncated it. So an attempt
/// without the engine does not count if this process opened the file meanwhile. A read during the
/// close waits for its end.
///
/// Another writer may even truncate the file. A read during a truncate may return zeros of space
/// that was grown again, so it is repeated. Growth is harmless, and frequent beside a fast writer:
/// the count in the marker distinguishes it from a truncate. If each attempt meets a truncate, or
/// an open by this process, the read fails with EAGAIN.
///
/// A file without a marker was not grown. During one read a writer may grow it, and remove growth
/// and marker again. That takes several syncs, so several consecutive reads cannot miss it. A
/// change in each of them, and never a marker, comes from a program that writes without growth.
/// (Before Linux 6.13, a change within one clock tick is not seen, if another process makes it.)
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    /// The count of opens by this process before the last one began.
    opens: u64,
    /// The state of the file when the last one began.
    view: Option<ReadView>,
    begun: u32,
    unmarked: u32,
}

impl Attempts {
    /// Begins an attempt to read up to `wanted_end`.
    pub fn begin(&mut self, reader: &ReadHandle, wanted_end: u64) -> io::Result<Way> {
        loop {
            self.opens = reader.opens();
            if let Some(engine) = reader.writer() {
                return Ok(Way::Engine(engine));
            }
            if self.begun == READS_MAX {
                return Err(io::Error::from_raw_os_error(libc::EAGAIN));
            }
            self.begun += 1;
            let view = reader.find(wanted_end);
            if reader.opens() == self.opens {
                return Ok(Way::UpTo(self.view.insert(view?).len));
            }
            reader.forget();
        }
    }

    /// Takes the result of an attempt without an engine. Returns the result of the read, or `None`
    /// if another attempt is needed.
    pub fn on_result(
        &mut self,
        reader: &ReadHandle,
        read: io::Result<u64>,
    ) -> Option<io::Result<u64>> {
        let view = self.view.as_ref().expect("an attempt was begun");
        let since = match reader.since(view) {
            // An own writer may have truncated it, and closed it again.
            Ok(_) if reader.opens() != self.opens => Since::PerhapsTruncation,
            Ok(since) => since,
            Err(error) => return Some(Err(error)),
        };
        match (since, read) {
            // It was truncated, perhaps under the marker that announces it, or by another program.
            (_, Err(error))
                if error.kind() == io::ErrorKind::UnexpectedEof && !reader.facts.is_device =>
            {
                reader.forget();
                self.unmarked = 0;
            }
            (Since::OnlyGrowth, read) => return Some(read),
            (Since::UnmarkedChange, Ok(read)) if self.unmarked == UNMARKED_READS_MAX => {
                return Some(Ok(read));
            }
            (Since::UnmarkedChange, Ok(_)) => self.unmarked += 1,
            (_, Err(error)) => return Some(Err(error)),
            (Since::PerhapsTruncation, Ok(_)) => self.unmarked = 0,
        }
        None
    }
}

/// A read-only handle, which its copies share.
#[derive(Debug)]
pub(crate) struct ReadHandle {
    backend: Arc<dyn Backend>,
    path: Arc<Path>,
    facts: Facts,
    /// Finds an engine of this process.
    key: Key,
    process: &'static Process,
    /// The last marker, and the length found with it. As long as that marker stands, the file only
    /// grows.
    known: Mutex<Option<(Vec<u8>, u64)>>,
    /// Reads a device for queues. Closes with the reader.
    of_device: Option<Arc<Engine>>,
}

impl ReadHandle {
    /// `of_device` is an engine for the queues that read a device; a file has none.
    pub fn new(
        backend: Arc<dyn Backend>,
        path: Arc<Path>,
        facts: Facts,
        key: Key,
        of_device: Option<Arc<Engine>>,
        process: &'static Process,
    ) -> Self {
        Self { backend, path, facts, key, process, known: Mutex::default(), of_device }
    }

    pub fn alignment(&self) -> Alignment {
        self.facts.alignment
    }

    pub fn path(&self) -> &Arc<Path> {
        &self.path
    }

    pub fn backend(&self) -> &dyn Backend {
        &*self.backend
    }

    pub fn len(&self) -> Result<u64> {
        let fail = |error| self.error(Operation::Len, None, &error);
        let mut attempts = Attempts::default();
        loop {
            let len = match attempts.begin(self, u64::MAX).map_err(fail)? {
                Way::Engine(engine) => return Ok(engine.len()),
                Way::UpTo(len) => len,
            };
            if let Some(len) = attempts.on_result(self, Ok(len)) {
                return len.map_err(fail);
            }
        }
    }

    pub fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        let fail = |error| self.error(Operation::Read, Some(offset), &error);
        let wanted_end = offset.saturating_add(into.len() as u64);
        let mut attempts = Attempts::default();
        loop {
            let len = match attempts.begin(self, wanted_end).map_err(fail)? {
                Way::Engine(engine) => match engine.read_unless_closed(into, offset)? {
                    Some(read) => return Ok(read),
                    None => continue,
                },
                Way::UpTo(len) => len,
            };
            let read = engine::read_up_to(&*self.backend, into, offset, len, self.facts.alignment);
            if let Some(read) = attempts.on_result(self, read) {
                return read.map(|read| read as usize).map_err(fail);
            }
        }
    }

    /// The engine of this process that writes the file. It knows the exact length, and keeps reads
    /// and truncates apart.
    fn writer(&self) -> Option<Arc<Engine>> {
        (!self.facts.is_device).then(|| self.registry().writer(self.key)).flatten()
    }

    /// See [`Registry::opens`]. The length of a device is fixed.
    fn opens(&self) -> u64 {
        if self.facts.is_device { 0 } else { self.registry().opens(self.key) }
    }

    /// The child of a fork has writers of its own.
    fn registry(&self) -> &'static Registry {
        let process = if self.process.is_current() { self.process } else { Process::current() };
        &process.registry
    }

    /// The engine that reads a device: its length is fixed, so no other process matters.
    pub fn engine_of_device(&self) -> Option<Arc<Engine>> {
        self.of_device.clone().filter(|_| self.process.is_current())
    }

    fn since(&self, view: &ReadView) -> io::Result<Since> {
        Ok(match (&view.marker, self.read_marker()?) {
            _ if self.facts.is_device => Since::OnlyGrowth,
            (Some(before), Some(now))
                if self.is_own(before) && (*before == now || only_grew(before, &now)) =>
            {
                Since::OnlyGrowth
            }
            // A foreign marker never changes, however the file changes.
            (before, now)
                if *before == now && !before.as_ref().is_some_and(|marker| self.is_own(marker)) =>
            {
                match self.backend.stamps()? == view.stamps {
                    true => Since::OnlyGrowth,
                    false => Since::UnmarkedChange,
                }
            }
            _ => Since::PerhapsTruncation,
        })
    }

    /// Finds the length. To avoid a look at the extents, returns any written length that is at
    /// least `enough`.
    fn find(&self, enough: u64) -> io::Result<ReadView> {
        if self.facts.is_device {
            return Ok(ReadView { marker: None, len: self.facts.len, stamps: Stamps::new() });
        }
        if let Some((known, len)) = self.known().filter(|(_, len)| *len >= enough)
            && self.read_marker()?.as_ref() == Some(&known)
        {
            return Ok(ReadView { marker: Some(known), len, stamps: Stamps::new() });
        }
        // Before the look: a change during it counts as a change since.
        let stamps = self.backend.stamps()?;
        let (marker, found) = recover::look(&*self.backend, self.facts.identity)?;
        let len = match (found.unknown_end(), &found.verdict) {
            (Some(range), _) => range.start,
            (None, Verdict::EndKnown) => found.ceiling,
            (None, _) => found.physical_size,
        };
        self.learn(marker.clone().filter(|marker| self.is_own(marker)).map(|marker| (marker, len)));
        Ok(ReadView { marker, len, stamps })
    }

    /// See [`Recovery::unknown_end`](crate::rules::recovery::Recovery::unknown_end).
    pub fn unknown_end(&self) -> io::Result<Option<Range<u64>>> {
        if self.facts.is_device || self.writer().is_some() {
            return Ok(None);
        }
        let (_, found) = recover::look(&*self.backend, self.facts.identity)?;
        Ok(found.unknown_end())
    }

    /// Whether a marker belongs to this file. It may be unreadable, or come from a copied file.
    fn is_own(&self, marker: &[u8]) -> bool {
        recover::is_of(marker, self.facts.identity)
    }

    fn read_marker(&self) -> io::Result<Option<Vec<u8>>> {
        if self.facts.is_device { Ok(None) } else { self.backend.read_marker() }
    }

    /// In the child of a fork, a thread of the parent may hold the lock forever.
    fn known(&self) -> Option<(Vec<u8>, u64)> {
        self.process.is_current().then(|| self.known.lock().clone()).flatten()
    }

    fn learn(&self, known: Option<(Vec<u8>, u64)>) {
        if self.process.is_current() {
            *self.known.lock() = known;
        }
    }

    fn forget(&self) {
        self.learn(None);
    }

    fn error(&self, operation: Operation, offset: Option<u64>, error: &io::Error) -> Error {
        Error::new(operation, &self.path, offset, os_error::kind(error))
    }
}

/// Whether two markers of a file prove that it only grew between them.
fn only_grew(before: &[u8], now: &[u8]) -> bool {
    let marker = |bytes| Marker::decode(bytes).ok();
    marker(before).zip(marker(now)).is_some_and(|(before, now)| before.only_grew_until(&now))
}

impl Drop for ReadHandle {
    fn drop(&mut self) {
        if let Some(engine) = self.engine_of_device() {
            engine.release();
        }
    }
}

impl AsFd for ReadHandle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.backend.descriptor()
    }
}
