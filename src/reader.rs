//! A read-only handle of a file that this process does not write; another one may.

use crate::backend::Backend;
use crate::backend::syscall::Syscall;
use crate::engine::{self, recover};
use crate::error::{Error, Operation, Result};
use crate::recovery::Verdict;
use crate::sys::probe::{Alignment, Facts};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// See the module.
#[derive(Debug)]
pub(crate) struct Reader {
    backend: Syscall,
    path: Arc<Path>,
    facts: Facts,
    /// The length last found, and the marker it was found with: as long as that one stands, the file only grows.
    known: Mutex<Option<(Vec<u8>, u64)>>,
}

impl Reader {
    pub fn new(backend: Syscall, path: Arc<Path>, facts: Facts) -> Self {
        Self { backend, path, facts, known: Mutex::default() }
    }

    pub fn try_clone(&self) -> Result<Self> {
        let fd =
            self.backend.as_fd().try_clone_to_owned().map_err(|error| self.error(Operation::Open, &error))?;
        Ok(Self::new(Syscall::new(fd), self.path.clone(), self.facts.clone()))
    }

    pub fn alignment(&self) -> Alignment {
        self.facts.alignment
    }

    pub fn path(&self) -> &Arc<Path> {
        &self.path
    }

    pub fn len(&self) -> Result<u64> {
        self.find_len(u64::MAX).map_err(|error| self.error(Operation::Len, &error))
    }

    pub fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        engine::check_transfer(into, offset, self.facts.alignment)
            .map_err(|kind| Error::new(Operation::Read, &self.path, Some(offset), kind))?;
        let wanted_end = offset.saturating_add(into.len() as u64);
        self.find_len(wanted_end)
            .and_then(|len| engine::read_up_to(&self.backend, into, offset, len, self.facts.alignment.offset))
            .map(|read| read as usize)
            .map_err(|error| self.error(Operation::Read, &error))
    }

    /// The length; or, to spare the look at the extents, any length known to be written that is `enough`.
    fn find_len(&self, enough: u64) -> std::io::Result<u64> {
        if self.facts.is_device {
            return Ok(self.facts.len);
        }
        let Some(marker) = self.backend.read_marker()? else { return self.backend.physical_size() };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((with, len)) = &*known
            && *with == marker
            && *len >= enough
        {
            return Ok(*len);
        }
        let (found, _) = recover::bring_into_order(
            &self.backend,
            self.facts.identity,
            self.facts.alignment.append,
            recover::Recover::Inspect,
        )?;
        let len = match found.verdict {
            Verdict::Cut => found.ceiling,
            Verdict::Undecided => found.floor,
            Verdict::Clean | Verdict::Foreign | Verdict::Doubtful(_) => found.physical_size,
        };
        *known = Some((marker, len));
        Ok(len)
    }

    fn error(&self, operation: Operation, error: &std::io::Error) -> Error {
        Error::new(operation, &self.path, None, engine::os_kind(error))
    }
}

impl AsFd for Reader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.backend.as_fd()
    }
}
