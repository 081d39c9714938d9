//! The directory of a set of logs. A log is a directory in it. Names that begin with a dot are
//! those of the set: its lock, the [pool](super::pool_dir), and a log that is being removed.
//!
//! Removing a log:
//!
//! 1. The directory of the log becomes that of the log that is being removed.
//! 2. The directory of the set is synced. The log is gone.
//! 3. The pool takes segments of the log, as far as it has room.
//! 4. The directory is removed.
//!
//! [`SetDir::open`], and the next removal, repeat the last three.

use super::dir::{Dir, Lock, create_dirs, is, segment_names};
use super::pool_dir::PoolDir;
use super::steps::{Steps, StorageStep};
use crate::error::{Error, Result};
use crate::locked::locked;
use dioxide::text::shown;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// The free segments.
pub const POOL: &str = ".pool";
const LOCK: &str = ".lock";
/// A log that is being removed.
const REMOVED: &str = ".removed";
/// The file system makes it.
const LOST_AND_FOUND: &str = "lost+found";
const NAME_BYTES_MAX: usize = 255;

/// The directory of a set.
#[derive(Debug)]
pub struct SetDir {
    path: PathBuf,
    lock: Lock,
    pool: Arc<PoolDir>,
    steps: Arc<dyn Steps>,
    removing: Mutex<()>,
}

impl SetDir {
    /// Opens a directory for the one process that writes the logs, and creates it if `create` is
    /// set. The pool has this many segments at most.
    pub fn open(
        path: &Path,
        create: bool,
        segments_max: usize,
        steps: Arc<dyn Steps>,
    ) -> Result<Self> {
        let missing = !path.exists();
        if missing && !create {
            return Err(Error::Missing { path: path.into() });
        }
        // A set with a pool was opened before.
        if missing || !path.join(POOL).exists() {
            create_dirs(path, steps.as_ref())?;
        }
        if !segment_names(path)?.is_empty() {
            let reason = "a log, not a set of logs; a set needs a directory of its own";
            return Err(Error::Options(format!("{}: {reason}", shown(path))));
        }
        let lock = Lock::take(path, LOCK)?;
        let pool = Arc::new(PoolDir::open(&path.join(POOL), segments_max, steps.clone())?);
        // A process that was killed may not have synced its last names.
        steps.take(StorageStep::Sync(path))?;
        let set = Self { path: path.into(), lock, pool, steps, removing: Mutex::default() };
        set.finish_removal()?;
        Ok(set)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn pool(&self) -> &PoolDir {
        &self.pool
    }

    /// The names of the logs, in order.
    pub fn names(&self) -> Result<Vec<String>> {
        let failed = |error| Error::system("list", &self.path, error);
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            let path = entry.path();
            if check_name(&name).is_err() || !path.is_dir() {
                continue;
            }
            match segment_names(&path) {
                Ok(segments) if segments.is_empty() => {}
                Ok(_) => names.push(name),
                // Removed since.
                Err(error) if is(&error, io::ErrorKind::NotFound) => {}
                Err(error) => return Err(error),
            }
        }
        names.sort();
        Ok(names)
    }

    /// Opens the directory of a log for its writer.
    pub fn log(&self, name: &str, create: bool) -> Result<Dir> {
        Dir::open_in(&self.path.join(name), create, Some(self.pool.clone()))
    }

    /// Removes a log that is not open.
    pub fn remove(&self, name: &str) -> Result<()> {
        let _alone = locked(&self.removing);
        // Of a removal that failed.
        self.finish_removal()?;
        let (from, to) = (self.path.join(name), self.path.join(REMOVED));
        if !from.is_dir() || segment_names(&from)?.is_empty() {
            return Err(Error::Missing { path: from });
        }
        let lock = self.log(name, false)?;
        self.steps.take(StorageStep::Rename { from: &from, to: &to })?;
        drop(lock);
        self.finish_removal()
    }

    fn finish_removal(&self) -> Result<()> {
        let removed = self.path.join(REMOVED);
        if !removed.exists() {
            return Ok(());
        }
        // The log must not come back without its segments.
        self.steps.take(StorageStep::Sync(&self.path))?;
        self.pool.dissolve(&removed)
    }

    /// Lets another process open the set.
    pub fn release(&self) {
        self.lock.release();
    }
}

/// Checks a name of a log.
pub fn check_name(name: &str) -> Result<()> {
    let allowed = (1..=NAME_BYTES_MAX).contains(&name.len())
        && !name.starts_with('.')
        && !name.contains(['/', '\0'])
        && name != LOST_AND_FOUND;
    match allowed {
        true => Ok(()),
        false => Err(Error::Options(format!(
            "{name:?} is no name of a log; use 1 to {NAME_BYTES_MAX} bytes without '/' and zero \
             bytes, not a dot at the start, and not {LOST_AND_FOUND:?}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_a_set_or_the_file_system_uses_are_refused() {
        for name in ["a", "a.b", "-", "a b", "ä", &"n".repeat(255)] {
            check_name(name).expect(name);
        }
        let own = [POOL, LOCK, REMOVED, LOST_AND_FOUND];
        for name in own.into_iter().chain(["", ".", "..", "a/b", "/", "a\0", &"n".repeat(256)]) {
            let error = check_name(name).expect_err(name).to_string();
            assert!(error.contains("use 1 to 255 bytes without '/'"), "{error}");
        }
    }
}
