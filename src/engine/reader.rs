//! A read-only handle, with a descriptor of its own. The writer of the file may be this process,
//! another one or none, and that may change at any time. Each call finds out.

use crate::backend::{Backend, Stamps};
use crate::engine::process::Process;
use crate::engine::registry::Key;
use crate::engine::{self, Engine, recover};
use crate::error::{Error, Operation, Result};
use crate::os_error;
use crate::rules::marker::Marker;
use crate::rules::recovery::Verdict;
use crate::sync::Mutex;
use crate::sys::probe::{Alignment, Facts};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;

/// How often a read is repeated because the file may have been truncated, before it fails.
const READS_MAX: u32 = 100;

/// How often a read is repeated because a file without a marker changed meanwhile.
const UNMARKED_READS_MAX: u32 = 3;

/// The state of the file when a read began.
#[derive(Debug)]
struct View {
    marker: Option<Vec<u8>>,
    /// Everything below was written.
    len: u64,
    /// The stamps at that time. Used only without a marker of the file's own.
    stamps: Stamps,
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

/// The attempts of a read of a file that this process does not write.
///
/// Another process may write the file, and even truncate it. A read during a truncate may return
/// zeros of space that was grown again, so it is repeated. Growth is harmless, and frequent beside
/// a fast writer: the count in the marker distinguishes it from a truncate. If each attempt meets a
/// truncate, the read fails with EAGAIN.
///
/// A file without a marker was not grown. During one read another process may grow it, and remove
/// growth and marker again. That takes several syncs, so several consecutive reads cannot miss it.
/// A change in each of them, and never a marker, comes from a program that writes without growth.
/// (Before Linux 6.13, a change within one clock tick is not seen.)
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    /// The state of the file when the last one began.
    view: Option<View>,
    begun: u32,
    unmarked: u32,
}

impl Attempts {
    /// Begins an attempt to read up to `wanted_end`. Returns a length below which everything was
    /// written.
    pub fn begin(&mut self, reader: &Reader, wanted_end: u64) -> io::Result<u64> {
        self.begun += 1;
        Ok(self.view.insert(reader.find(wanted_end)?).len)
    }

    /// Takes the result of the attempt that was begun. Returns the result of the read, or `None` if
    /// another attempt is needed.
    pub fn on_result(&mut self, reader: &Reader, read: io::Result<u64>) -> Option<io::Result<u64>> {
        let view = self.view.as_ref().expect("an attempt was begun");
        let since = match reader.since(view) {
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
        let is_last = self.begun == READS_MAX;
        is_last.then(|| Err(io::Error::from_raw_os_error(libc::EAGAIN)))
    }
}

/// A read-only handle, which its copies share.
#[derive(Debug)]
pub(crate) struct Reader {
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

impl Reader {
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
        if let Some(engine) = self.engine() {
            return Ok(engine.len());
        }
        self.find(u64::MAX).map(|view| view.len).map_err(|error| self.error(Operation::Len, &error))
    }

    pub fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        if let Some(engine) = self.engine() {
            let result = engine.read_at(into, offset);
            // If it was closed meanwhile, another process may have truncated the range that was
            // read.
            if self.is_beside(&engine) {
                return result;
            }
        }
        self.read_beside_others(into, offset)
    }

    /// Whether this process still writes the file with this engine.
    pub fn is_beside(&self, engine: &Arc<Engine>) -> bool {
        self.engine().is_some_and(|now| Arc::ptr_eq(&now, engine))
    }

    /// Reads a file that this process does not write.
    fn read_beside_others(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        let fail = |kind| Error::new(Operation::Read, &self.path, Some(offset), kind);
        let read = self.attempt(into, offset);
        read.map(|read| read as usize).map_err(|error| fail(os_error::kind(&error)))
    }

    fn attempt(&self, into: &mut [u8], offset: u64) -> io::Result<u64> {
        let mut attempts = Attempts::default();
        loop {
            let len = attempts.begin(self, offset.saturating_add(into.len() as u64))?;
            let read = engine::read_up_to(&*self.backend, into, offset, len, self.facts.alignment);
            if let Some(result) = attempts.on_result(self, read) {
                return result;
            }
        }
    }

    /// The engine of the file, if this process writes it now. It knows the exact length, and keeps
    /// reads and truncates apart.
    pub fn engine(&self) -> Option<Arc<Engine>> {
        let writable_here = self.process.is_current() && !self.facts.is_device;
        writable_here.then(|| self.process.registry.find(self.key)).flatten()
    }

    /// The engine that reads a device: its length is fixed, so no other process matters.
    pub fn engine_of_device(&self) -> Option<Arc<Engine>> {
        self.of_device.clone().filter(|_| self.process.is_current())
    }

    fn since(&self, view: &View) -> io::Result<Since> {
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
    fn find(&self, enough: u64) -> io::Result<View> {
        if self.facts.is_device {
            return Ok(View { marker: None, len: self.facts.len, stamps: Stamps::new() });
        }
        if let Some((known, len)) = self.known().filter(|(_, len)| *len >= enough)
            && self.read_marker()?.as_ref() == Some(&known)
        {
            return Ok(View { marker: Some(known), len, stamps: Stamps::new() });
        }
        // Before the look: a change during it counts as a change since.
        let stamps = self.backend.stamps()?;
        let (marker, found) = recover::look(&*self.backend, self.facts.identity)?;
        let len = match found.verdict {
            Verdict::EndKnown => found.ceiling,
            Verdict::EndUnknown => found.floor,
            Verdict::ModifiedExternally(_) if found.floor < found.ceiling => found.floor,
            Verdict::Clean | Verdict::Foreign | Verdict::ModifiedExternally(_) => {
                found.physical_size
            }
        };
        self.learn(marker.clone().filter(|marker| self.is_own(marker)).map(|marker| (marker, len)));
        Ok(View { marker, len, stamps })
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

    fn error(&self, operation: Operation, error: &io::Error) -> Error {
        Error::new(operation, &self.path, None, os_error::kind(error))
    }
}

/// Whether two markers of a file prove that it only grew between them.
fn only_grew(before: &[u8], now: &[u8]) -> bool {
    let marker = |bytes| Marker::decode(bytes).ok();
    marker(before).zip(marker(now)).is_some_and(|(before, now)| before.only_grew_until(&now))
}

impl Drop for Reader {
    fn drop(&mut self) {
        // In the child of a fork, a thread that it does not have may hold the locks.
        if let Some(engine) = self.engine_of_device() {
            engine.close();
        }
    }
}

impl AsFd for Reader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.backend.descriptor()
    }
}
