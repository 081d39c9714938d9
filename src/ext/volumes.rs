//! The volumes that this process has open: one for all files of it, however many.

use super::volume::Volume;
use crate::engine::process::Process;
use crate::engine::registry::Key;
use crate::error::ErrorKind;
use crate::sync::Mutex;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// See the module. The lock is held while one is opened or put away, so that nobody finds it half
/// so.
#[derive(Debug, Default)]
pub(crate) struct Volumes(Mutex<HashMap<Key, Open>>);

#[derive(Debug)]
struct Open {
    volume: Arc<Volume>,
    users: usize,
    /// Those of them that write.
    writers: usize,
}

/// A volume that somebody uses.
#[derive(Debug)]
pub(crate) struct Held {
    pub volume: Arc<Volume>,
    key: Key,
    write: bool,
    is_put_away: bool,
}

impl Volumes {
    /// Those of the process.
    pub fn of(process: &Process) -> &Self {
        process.attached()
    }

    /// One more user of a volume, which is opened by `open` unless it is by now: then `admit` says
    /// whether the caller may use it, which the kernel was not asked for.
    pub fn hold<E: From<ErrorKind>>(
        &self,
        key: Key,
        write: bool,
        admit: impl FnOnce() -> Result<(), E>,
        open: impl FnOnce() -> Result<Arc<Volume>, E>,
    ) -> Result<Held, E> {
        let mut volumes = self.0.lock();
        let volume = match volumes.get_mut(&key) {
            Some(open) if write && !open.volume.write => {
                admit()?;
                let why = "this process has files of the volume open read-only; close those first";
                return Err(ErrorKind::Busy(why.into()).into());
            }
            Some(open) => {
                admit()?;
                open.users += 1;
                open.writers += usize::from(write);
                open.volume.clone()
            }
            None => {
                let volume = open()?;
                let open = Open { volume: volume.clone(), users: 1, writers: usize::from(write) };
                volumes.insert(key, open);
                volume
            }
        };
        Ok(Held { volume, key, write, is_put_away: false })
    }

    /// One user less. With the last one that writes, the volume is brought into order; with the
    /// last one, it is given back.
    fn let_go(&self, held: &Held, requests: &AtomicU64) -> io::Result<()> {
        let mut volumes = self.0.lock();
        let open = volumes.get_mut(&held.key).expect("held by this one");
        let last_writer = held.write && open.writers == 1;
        let result = if last_writer { held.volume.put_away(requests) } else { Ok(()) };
        open.users -= 1;
        open.writers -= usize::from(held.write);
        if open.users == 0 {
            volumes.remove(&held.key);
            held.volume.image().unlock();
        }
        result
    }
}

impl Held {
    /// It is not used any more. Counts the requests.
    pub fn put_away(mut self, requests: &AtomicU64) -> io::Result<()> {
        self.is_put_away = true;
        Volumes::of(self.volume.process).let_go(&self, requests)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // The child of a fork has none of it, and must not unlock what its parent has.
        if self.is_put_away || !self.volume.process.is_current() {
            return;
        }
        let process: &'static Process = self.volume.process;
        if let Err(error) = Volumes::of(process).let_go(self, &AtomicU64::new(0)) {
            log::error!("dioxide: a volume could not be put away: {error}");
        }
    }
}
