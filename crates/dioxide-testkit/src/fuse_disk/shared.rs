//! The disk as its two users share it: requests, which wait while it stalls, and commands, which
//! do not.

use std::sync::{Condvar, Mutex, MutexGuard};

use super::disk::Disk;
use super::protocol::{Command, Stats};

pub(super) struct SharedDisk {
    disk: Mutex<Disk>,
    obeyed: Condvar,
}

impl SharedDisk {
    pub(super) fn new(disk: Disk) -> SharedDisk {
        SharedDisk { disk: Mutex::new(disk), obeyed: Condvar::new() }
    }

    pub(super) fn obey(&self, command: Command) -> Stats {
        let stats = self.lock().obey(command);
        self.obeyed.notify_all();
        stats
    }

    /// For a request.
    pub(super) fn wait(&self) -> MutexGuard<'_, Disk> {
        let mut disk = self.lock();
        while let Some(rest) = disk.stalls_for() {
            (disk, _) = self.obeyed.wait_timeout(disk, rest).expect("no holder of the disk panics");
        }
        disk
    }

    fn lock(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().expect("no holder of the disk panics")
    }
}
