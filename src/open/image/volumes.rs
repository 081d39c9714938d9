//! The volumes that this process has open. All open files of a volume share it.

use super::Volume;
use crate::engine::process::Process;
use crate::engine::registry::Key;
use crate::error::ErrorKind;
use crate::sync::Mutex;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// The open volumes of a process. The lock is held while a volume is opened or put away, so that no
/// thread finds one half open.
#[derive(Debug, Default)]
pub(crate) struct Volumes(Mutex<HashMap<Key, VolumeEntry>>);

#[derive(Debug)]
struct VolumeEntry {
    volume: Arc<dyn Volume>,
    /// Open files.
    users: usize,
    /// Open files that are open for writing.
    writers: usize,
    /// Whether the image is open for writing.
    write: bool,
}

/// The use of a volume by one open file.
#[derive(Debug)]
pub(crate) struct HeldVolume {
    pub volume: Arc<dyn Volume>,
    pub process: &'static Process,
    key: Key,
    write: bool,
    is_put_away: bool,
}

impl Volumes {
    /// The volumes of a process.
    pub fn of(process: &Process) -> &Self {
        process.attached()
    }

    /// Adds a user of a volume. Opens it by `open`, or, if it is open, checks by `admit` that the
    /// caller may use it.
    pub fn hold<E: From<ErrorKind>>(
        &self,
        process: &'static Process,
        key: Key,
        write: bool,
        admit: impl FnOnce() -> Result<(), E>,
        open: impl FnOnce() -> Result<Arc<dyn Volume>, E>,
    ) -> Result<HeldVolume, E> {
        let mut volumes = self.0.lock();
        let volume = match volumes.get_mut(&key) {
            Some(open) if write && !open.write => {
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
                let writers = usize::from(write);
                volumes
                    .insert(key, VolumeEntry { volume: volume.clone(), users: 1, writers, write });
                volume
            }
        };
        Ok(HeldVolume { volume, process, key, write, is_put_away: false })
    }

    /// Removes a user. Puts the volume away with the last writer, and unlocks it with the last
    /// user.
    fn let_go(&self, held: &HeldVolume, requests: &AtomicU64) -> io::Result<()> {
        let mut volumes = self.0.lock();
        let open = volumes.get_mut(&held.key).expect("this user holds it");
        let last_writer = held.write && open.writers == 1;
        let result = if last_writer { held.volume.put_away(requests) } else { Ok(()) };
        open.users -= 1;
        open.writers -= usize::from(held.write);
        if open.users == 0 {
            volumes.remove(&held.key);
            held.volume.image().backend().unlock();
        }
        result
    }
}

impl HeldVolume {
    /// Ends the use. Counts the requests.
    pub fn put_away(mut self, requests: &AtomicU64) -> io::Result<()> {
        self.is_put_away = true;
        Volumes::of(self.process).let_go(&self, requests)
    }
}

impl Drop for HeldVolume {
    fn drop(&mut self) {
        // The child of a fork does not hold it, and must not unlock it for its parent.
        if self.is_put_away || !self.process.is_current() {
            return;
        }
        if let Err(error) = Volumes::of(self.process).let_go(self, &AtomicU64::new(0)) {
            log::error!("dioxide: a volume could not be put away: {error}");
        }
    }
}
