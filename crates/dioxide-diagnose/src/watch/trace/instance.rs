//! A private tracing instance: its own buffers and switches, in a directory that is removed
//! afterwards.

use crate::host::mount::mounts;
use crate::watch::counters::parse_stat;
use rustix::fs::{Mode, OFlags};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Per processor. A slice needs less. A full buffer overwrites its oldest events.
const BUFFER_KIB: u32 = 1024;

/// Bytes of text that are read at once: more than the buffers of eight processors hold.
const DRAINED_MAX: u64 = 32 << 20;

/// The kernel accepts one page of numbers per write, each of at most seven digits and a space.
const THREADS_AT_ONCE: usize = 400;

/// The kernel gives this number to the initial PID namespace.
const INITIAL_PID_NAMESPACE: &str = "pid:[4026531836]";

const LOCK_BEGIN: &str = "lock/contention_begin";

/// The begin and the end of system calls. While they are on, each system call of the machine costs
/// more (see [`super`]), so they are on only for a program.
pub const CALLS: [&str; 2] = ["raw_syscalls/sys_enter", "raw_syscalls/sys_exit"];

/// The other traced events, and the filter of each.
const EVENTS: [(&str, &str); 5] = [
    (LOCK_BEGIN, ""),
    ("lock/contention_end", ""),
    ("iomap/iomap_dio_rw_begin", ""),
    // The last event of an operation has no length and no information. From Linux 6.15 on, the
    // first one has no length at offset 0.
    ("iomap/iomap_iter", "length > 0 || pos == 0"),
    ("io_uring/io_uring_queue_async_work", ""),
];

/// Removed on drop. The instance of a killed process is removed by the next process that makes one.
#[derive(Debug)]
pub struct Instance {
    dir: PathBuf,
    /// None only during drop: the directory cannot be removed while its pipe is open.
    pipe: Option<File>,
    /// Events that this kernel lacks.
    pub missing: Vec<&'static str>,
}

impl Instance {
    /// Creates one, switched off. System calls are traced if `calls` has their filter.
    pub fn new(calls: Option<&str>) -> io::Result<Self> {
        static MADE: AtomicU64 = AtomicU64::new(0);
        check_pid_namespace()?;
        let instances = find_tracefs()?.join("instances");
        remove_stale(&instances);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let own = std::process::id();
        let dir = instances.join(format!("dioxide-{}-{number}", maker(own)?));
        fs::create_dir(&dir)?;
        let mut instance = Self { dir, pipe: None, missing: Vec::new() };
        instance.set_up(calls)?;
        Ok(instance)
    }

    fn set_up(&mut self, calls: Option<&str>) -> io::Result<()> {
        self.switch(false)?;
        self.write("buffer_size_kb", &BUFFER_KIB.to_string())?;
        self.write("trace_clock", "mono")?;
        self.write("options/event-fork", "1")?;
        self.write("options/irq-info", "0")?;
        let calls = calls.into_iter().flat_map(|filter| CALLS.map(|event| (event, filter)));
        for (event, filter) in EVENTS.into_iter().chain(calls) {
            if let Err(error) = self.enable(event, filter) {
                match error.kind() {
                    io::ErrorKind::NotFound => self.missing.push(event),
                    _ => return Err(error),
                }
            }
        }
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        self.pipe =
            Some(rustix::fs::open(self.dir.join("trace_pipe"), flags, Mode::empty())?.into());
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

    /// Also traces these threads and their later children. IDs of ended threads are harmless.
    pub fn add_threads(&self, tids: &[u32]) -> io::Result<()> {
        let mut list = File::options().append(true).open(self.dir.join("set_event_pid"))?;
        // Each write takes tens of milliseconds, in which the kernel synchronises all processors.
        for tids in tids.chunks(THREADS_AT_ONCE) {
            let words: Vec<String> = tids.iter().map(u32::to_string).collect();
            list.write_all(words.join(" ").as_bytes())?;
        }
        Ok(())
    }

    /// Starts or stops recording.
    pub fn switch(&self, on: bool) -> io::Result<()> {
        self.write("tracing_on", if on { "1" } else { "0" })
    }

    /// Reads the recorded events. Returns whether it discarded some: a program may record faster
    /// than this thread reads.
    pub fn drain(&mut self, text: &mut Vec<u8>) -> io::Result<bool> {
        let pipe = self.pipe.as_mut().expect("open until it is dropped");
        match pipe.take(DRAINED_MAX).read_to_end(text) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            result => result?,
        };
        let is_truncated = text.len() as u64 >= DRAINED_MAX;
        if is_truncated {
            File::options().write(true).truncate(true).open(self.dir.join("trace"))?;
        }
        Ok(is_truncated)
    }

    fn write(&self, name: &str, value: &str) -> io::Result<()> {
        File::options().write(true).open(self.dir.join(name))?.write_all(value.as_bytes())
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.pipe = None;
        let _ = self.switch(false);
        // An open file in the directory prevents its removal; then the next process removes it.
        let _ = fs::remove_dir(&self.dir);
    }
}

/// Traces name threads by their IDs in the initial PID namespace. In another one, /proc has other
/// IDs, which there belong to other threads.
fn check_pid_namespace() -> io::Result<()> {
    let own = fs::read_link("/proc/self/ns/pid");
    if own.is_ok_and(|own| own == Path::new(INITIAL_PID_NAMESPACE)) {
        return Ok(());
    }
    Err(io::Error::other("not in a PID namespace (for a container: --pid=host)"))
}

/// The mount point of tracefs. Does not mount it.
fn find_tracefs() -> io::Result<PathBuf> {
    let mount = mounts()?.into_iter().find(|mount| mount.fs == "tracefs");
    let not_there = || {
        io::Error::other("tracefs is not mounted (mount -t tracefs tracefs /sys/kernel/tracing)")
    };
    mount.map(|mount| PathBuf::from(mount.point)).ok_or_else(not_there)
}

/// Removes the instances of killed processes.
fn remove_stale(instances: &Path) {
    let Ok(entries) = fs::read_dir(instances) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str().and_then(|name| name.strip_prefix("dioxide-")) else {
            continue;
        };
        let is_its_makers = |pid| maker(pid).is_ok_and(|it| name.starts_with(&format!("{it}-")));
        let pid = name.split('-').next().and_then(|pid| pid.parse().ok());
        if !pid.is_some_and(is_its_makers) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// The ID of a process and the time of its start: `4711-81573`. A later process or thread may have
/// the same ID.
fn maker(pid: u32) -> io::Result<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, start) = parse_stat(&stat).ok_or(io::ErrorKind::InvalidData)?;
    Ok(format!("{pid}-{start}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Instance {
        /// In a directory that is not of tracefs.
        pub fn in_dir(dir: PathBuf) -> Self {
            Self { dir, pipe: None, missing: Vec::new() }
        }
    }

    /// The defect: without a free descriptor, an instance could not be switched off and remained.
    #[test]
    fn an_instance_that_cannot_be_switched_off_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let of_instance = dir.path().join("dioxide-1-1-0");
        fs::create_dir(&of_instance).unwrap();
        let instance = Instance::in_dir(of_instance.clone());
        assert!(instance.switch(false).is_err());
        drop(instance);
        assert!(!of_instance.exists());
    }

    /// While a thread or process had the ID of a killed one, its instance remained.
    #[test]
    fn an_instance_of_the_former_owner_of_an_id_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let own = maker(std::process::id()).unwrap();
        let (pid, start) = own.split_once('-').unwrap();
        let later = start.parse::<u64>().unwrap() + 1;
        let names =
            [format!("dioxide-{own}-0"), format!("dioxide-{pid}-{later}-0"), "other".into()];
        names.iter().for_each(|name| fs::create_dir(dir.path().join(name)).unwrap());
        remove_stale(dir.path());
        let is_there = names.map(|name| dir.path().join(name).exists());
        assert_eq!(is_there, [true, false, true]);
    }
}
