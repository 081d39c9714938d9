//! The shared state of the disk. Requests wait while it stalls and as long as it delays them;
//! commands do not.

use std::io;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::thread;

use super::disk::DiskState;
use super::protocol::{Command, Stats};

pub(super) struct SharedDisk {
    disk: Mutex<DiskState>,
    obeyed: Condvar,
}

impl SharedDisk {
    pub(super) fn new(disk: DiskState) -> SharedDisk {
        SharedDisk { disk: Mutex::new(disk), obeyed: Condvar::new() }
    }

    pub(super) fn obey(&self, command: Command) -> io::Result<Stats> {
        let stats = self.lock().obey(command);
        self.obeyed.notify_all();
        stats
    }

    /// For a request that is answered at once.
    pub(super) fn wait(&self) -> MutexGuard<'_, DiskState> {
        let mut disk = self.lock();
        while let Some(rest) = disk.stalls_for() {
            (disk, _) = self.obeyed.wait_timeout(disk, rest).expect("no holder of the disk panics");
        }
        disk
    }

    /// For a request that takes effect at some moment between its arrival and its answer, so that
    /// others overtake it.
    pub(super) fn some_time<T>(&self, act: impl FnOnce(&mut DiskState) -> T) -> T {
        let [before, after] = self.wait().draw_delays();
        thread::sleep(before);
        let answer = act(&mut self.wait());
        thread::sleep(after);
        answer
    }

    fn lock(&self) -> MutexGuard<'_, DiskState> {
        self.disk.lock().expect("no holder of the disk panics")
    }
}
