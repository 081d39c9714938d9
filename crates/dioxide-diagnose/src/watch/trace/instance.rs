//! A tracing instance of our own: buffers and switches that nobody else uses, in a directory that is removed.

use crate::host::mount::mounts;
use rustix::fs::{Mode, OFlags};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Of each processor. A slice makes less; what comes when it is full takes the place of the oldest.
const BUFFER_KIB: u32 = 1024;

/// The kernel takes a page of numbers in a write, each of at most seven digits and a space.
const THREADS_AT_ONCE: usize = 400;

const LOCK_BEGIN: &str = "lock/contention_begin";

/// What is traced: events, and the filter of each.
const EVENTS: [(&str, &str); 5] = [
    (LOCK_BEGIN, ""),
    ("lock/contention_end", ""),
    ("iomap/iomap_dio_rw_begin", ""),
    // The last of an operation has no length, and says nothing.
    ("iomap/iomap_iter", "length > 0"),
    ("io_uring/io_uring_queue_async_work", ""),
];

/// Removed when it is dropped. That of a process that was killed is removed by the next that makes one.
#[derive(Debug)]
pub struct Instance {
    dir: PathBuf,
    /// None only while it is dropped: the directory of a pipe that is open cannot be removed.
    pipe: Option<File>,
    /// Events that this kernel does not have.
    pub missing: Vec<&'static str>,
}

impl Instance {
    /// Made, and switched off.
    pub fn new() -> io::Result<Self> {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let instances = find_tracefs()?.join("instances");
        remove_stale(&instances);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let dir = instances.join(format!("dioxide-{}-{number}", std::process::id()));
        match fs::create_dir(&dir) {
            // Left by one that was killed and had this number, as in a container each first process has.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                fs::remove_dir(&dir)?;
                fs::create_dir(&dir)?;
            }
            made => made?,
        }
        let mut instance = Self { dir, pipe: None, missing: Vec::new() };
        instance.set_up()?;
        Ok(instance)
    }

    fn set_up(&mut self) -> io::Result<()> {
        self.switch(false)?;
        self.write("buffer_size_kb", &BUFFER_KIB.to_string())?;
        self.write("trace_clock", "mono")?;
        self.write("options/event-fork", "1")?;
        self.write("options/irq-info", "0")?;
        for (event, filter) in EVENTS {
            if let Err(error) = self.enable(event, filter) {
                match error.kind() {
                    io::ErrorKind::NotFound => self.missing.push(event),
                    _ => return Err(error),
                }
            }
        }
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        self.pipe = Some(rustix::fs::open(self.dir.join("trace_pipe"), flags, Mode::empty())?.into());
        Ok(())
    }

    fn enable(&self, event: &str, filter: &str) -> io::Result<()> {
        if event == LOCK_BEGIN {
            self.write(&format!("events/{event}/trigger"), "stacktrace")?;
        }
        if !filter.is_empty() {
            self.write(&format!("events/{event}/filter"), filter)?;
        }
        self.write(&format!("events/{event}/enable"), "1")
    }

    /// Traces these threads too, and those that they make from now on. Numbers of threads that have ended do no harm.
    pub fn add_threads(&self, tids: &[u32]) -> io::Result<()> {
        let mut list = File::options().append(true).open(self.dir.join("set_event_pid"))?;
        // Each write costs tens of milliseconds, in which the kernel waits for all its processors.
        for tids in tids.chunks(THREADS_AT_ONCE) {
            let words: Vec<String> = tids.iter().map(u32::to_string).collect();
            list.write_all(words.join(" ").as_bytes())?;
        }
        Ok(())
    }

    /// Records from now on, or no longer.
    pub fn switch(&self, on: bool) -> io::Result<()> {
        self.write("tracing_on", if on { "1" } else { "0" })
    }

    /// Takes out what was recorded.
    pub fn drain(&mut self, text: &mut Vec<u8>) -> io::Result<()> {
        let pipe = self.pipe.as_mut().expect("open until it is dropped");
        match pipe.read_to_end(text) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            result => result.map(drop),
        }
    }

    fn write(&self, name: &str, value: &str) -> io::Result<()> {
        File::options().write(true).open(self.dir.join(name))?.write_all(value.as_bytes())
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.pipe = None;
        // Whoever looks into it keeps it there; then the next one removes it.
        let _ = self.switch(false).and_then(|()| fs::remove_dir(&self.dir));
    }
}

/// Where tracefs is mounted. It is not mounted here where nobody wants it.
fn find_tracefs() -> io::Result<PathBuf> {
    let mount = mounts()?.into_iter().find(|mount| mount.fs == "tracefs");
    let not_there =
        || io::Error::other("tracefs is not mounted (mount -t tracefs tracefs /sys/kernel/tracing)");
    mount.map(|mount| PathBuf::from(mount.point)).ok_or_else(not_there)
}

/// Removes what killed processes left.
fn remove_stale(instances: &Path) {
    let Ok(entries) = fs::read_dir(instances) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix("dioxide-")?.split('-').next());
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}
