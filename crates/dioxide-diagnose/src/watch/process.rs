//! Processes and their threads in /proc, by directories and files that stay open. Reading an open
//! file costs a third of opening it. An open file cannot become that of another process with the
//! same ID.

use super::look::{
    InCall, Look, parse_registers, parse_schedstat, parse_stack, parse_stat, parse_syscall,
    parse_wchan,
};
use rustix::fd::OwnedFd;
use rustix::fs::{Dir, Mode, OFlags, openat};
use rustix::io::{Errno, pread, read};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;

/// Longer texts are truncated. A kernel stack has at most 64 functions.
const TEXT_MAX: usize = 8192;

#[derive(Debug)]
pub struct Process {
    pub pid: u32,
    /// `/proc/PID`.
    pub dir: OwnedFd,
    pub rights: Rights,
    /// Whether its program is of 32 bits, whose calls have other numbers on a kernel of 64 bits.
    pub is_32_bit: bool,
    pub threads: BTreeMap<u32, Thread>,
    /// A thread that had not ended when the process was found: the first one, if it is that.
    pub living: u32,
}

/// The readable files of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights {
    /// Its descriptors, and with them the wait channels of its threads.
    pub descriptors: bool,
    /// The system calls of its threads.
    pub calls: bool,
    pub stacks: bool,
}

#[derive(Debug)]
pub struct Thread {
    pub tid: u32,
    /// As last read.
    pub name: String,
    stat: Source,
    syscall: Source,
    /// The stack if readable, whose first function is the wait channel; otherwise the wait channel.
    place: Source,
    schedstat: Source,
}

/// A file of /proc.
#[derive(Debug)]
enum Source {
    Open(OwnedFd),
    /// Relative to the process's directory.
    Path(String),
}

impl Source {
    fn new(dir: &OwnedFd, path: String, stays_open: bool) -> Self {
        let open = stays_open.then(|| open_read(dir, &path).ok()).flatten();
        open.map_or(Self::Path(path), Self::Open)
    }

    fn read<'a>(&self, dir: &OwnedFd, text: &'a mut [u8]) -> Result<&'a [u8], Errno> {
        let length = match self {
            Self::Open(file) => pread(file, &mut *text, 0)?,
            Self::Path(path) => read(open_read(dir, path)?, &mut *text)?,
        };
        Ok(&text[..length])
    }
}

fn open_read(dir: &OwnedFd, path: &str) -> Result<OwnedFd, Errno> {
    openat(dir, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// The numeric names in a directory of /proc.
fn numbers(dir: &OwnedFd, path: &str) -> Result<Vec<u32>, Errno> {
    let entries = Dir::new(openat(
        dir,
        path,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?)?;
    let name = |entry: rustix::fs::DirEntry| entry.file_name().to_str().ok()?.parse().ok();
    Ok(entries.filter_map(Result::ok).filter_map(name).collect())
}

impl Process {
    /// The process with this ID. ENOENT if there is none.
    pub fn find(pid: u32) -> Result<Self, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(format!("/proc/{pid}"), flags, Mode::empty())?;
        let mut process = Self {
            pid,
            dir,
            rights: Rights { descriptors: false, calls: false, stacks: false },
            is_32_bit: false,
            threads: BTreeMap::new(),
            living: pid,
        };
        // After the end of the first thread, its files are those of a zombie.
        if process.unreaped_by().is_some() {
            let tids = numbers(&process.dir, "task").unwrap_or_default();
            process.living = tids.into_iter().find(|tid| *tid != pid).unwrap_or(pid);
        }
        process.find_rights();
        Ok(process)
    }

    fn find_rights(&mut self) {
        let can_read = |name: &str| {
            let source = Source::Path(format!("task/{}/{name}", self.living));
            source.read(&self.dir, &mut [0; TEXT_MAX]).is_ok()
        };
        let descriptors = numbers(&self.dir, &self.path_of("fd")).is_ok();
        // Not its file, which may be on a file system that does not answer.
        let mut start = [0; 8];
        let auxv = self.open(&self.path_of("auxv"));
        let has_start = auxv.is_some_and(|mut auxv| auxv.read_exact(&mut start).is_ok());
        self.is_32_bit = has_start && is_of_32_bits(start);
        let calls = can_read("syscall") && !self.is_32_bit;
        self.rights = Rights { descriptors, calls, stacks: can_read("stack") };
    }

    /// Finds new threads, and forgets those that have ended. Keeps the files of at most `open_max`
    /// threads open. Returns whether there are any threads. On an error, such as too many open
    /// files, the process may still run.
    pub fn find_threads(&mut self, open_max: usize) -> Result<bool, Errno> {
        let there = match numbers(&self.dir, "task") {
            Err(Errno::NOENT | Errno::SRCH) => Vec::new(),
            there => there?,
        };
        self.threads.retain(|tid, _| there.contains(tid));
        for tid in there {
            if self.threads.contains_key(&tid) {
                continue;
            }
            let stays_open = self.threads.len() < open_max;
            if let Some(thread) = Thread::new(&self.dir, tid, self.rights, stays_open) {
                self.threads.insert(tid, thread);
            }
        }
        Ok(!self.threads.is_empty())
    }

    /// Samples the threads selected by name, and returns their IDs, names and states. Forgets those
    /// that have ended: a zombie is still listed in /proc.
    pub fn look(&mut self, includes: impl Fn(&str) -> bool) -> Vec<(u32, String, Look)> {
        let mut looks = Vec::new();
        self.threads.retain(|_, thread| {
            if !includes(&thread.name) {
                return true;
            }
            let look = thread.look(&self.dir, self.rights);
            let is_there = look.is_some();
            looks.extend(look.map(|look| (thread.tid, thread.name.clone(), look)));
            is_there
        });
        looks
    }

    /// The child processes of its threads.
    pub fn children(&self) -> Vec<u32> {
        let of_thread = |tid| self.read(&format!("task/{tid}/children")).unwrap_or_default();
        let pids = |text: String| {
            text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>()
        };
        self.threads.keys().flat_map(|tid| pids(of_thread(tid))).collect()
    }

    /// Adds the processors on which its threads may run.
    pub fn add_cpus(&self, cpus: &mut CpuSet) {
        let of_thread = |tid: &u32| sched_getaffinity(Pid::from_raw(*tid as i32)).ok();
        let mut last = CpuSet::new();
        for its in self.threads.keys().filter_map(of_thread) {
            // Most threads have the same ones.
            if its != last {
                (0..CpuSet::MAX_CPU).filter(|cpu| its.is_set(*cpu)).for_each(|cpu| cpus.set(cpu));
            }
            last = its;
        }
    }

    /// Whether it is a kernel thread.
    pub fn is_kernels(&self) -> bool {
        const PF_KTHREAD: u64 = 0x0020_0000;
        let stat = self.read("stat").unwrap_or_default();
        // The ninth field; two precede the end of the name.
        let flags = stat
            .rsplit_once(") ")
            .and_then(|(_, fields)| fields.split(' ').nth(6)?.parse::<u64>().ok());
        flags.is_some_and(|flags| flags & PF_KTHREAD != 0)
    }

    /// Its command line. None for a zombie, and during exec.
    pub fn command(&self) -> Option<String> {
        let arguments = self.read(&self.path_of("cmdline")).unwrap_or_default().replace('\0', " ");
        let arguments = arguments.trim();
        (!arguments.is_empty()).then(|| arguments.to_owned())
    }

    /// Its parent, if it has ended and the parent has not waited for it: a zombie. Also if only its
    /// first thread has ended.
    pub fn unreaped_by(&self) -> Option<u32> {
        let stat = self.read("stat")?;
        let mut fields = stat.rsplit_once(") ")?.1.split(' ');
        (fields.next()? == "Z").then(|| fields.next()?.parse().ok()).flatten()
    }

    /// The name of its first thread, in brackets.
    pub fn name(&self) -> String {
        format!("[{}]", self.read("comm").unwrap_or_default().trim())
    }

    pub fn descriptors(&self) -> Vec<i32> {
        let there = numbers(&self.dir, &self.path_of("fd")).unwrap_or_default();
        there.into_iter().map(|fd| fd as i32).collect()
    }

    /// The path in its directory of a file that a zombie does not have (`fd`, `mem`). It is that of
    /// its first thread, or of another one if that has ended.
    pub fn path_of(&self, name: &str) -> String {
        let tid = match self.threads.keys().next() {
            Some(first) if !self.threads.contains_key(&self.pid) => *first,
            Some(_) => self.pid,
            None => self.living,
        };
        if tid == self.pid { name.to_owned() } else { format!("task/{tid}/{name}") }
    }

    /// Reads its memory at `address` into `bytes`; false if that is not possible. Opens the memory
    /// each time, because exec replaces it.
    pub fn read_memory(&self, address: u64, bytes: &mut [u8]) -> bool {
        self.open(&self.path_of("mem"))
            .is_some_and(|memory| memory.read_exact_at(bytes, address).is_ok())
    }

    /// A file in its directory.
    pub fn open(&self, path: &str) -> Option<File> {
        open_read(&self.dir, path).ok().map(File::from)
    }

    /// The content of a file in its directory.
    pub fn read(&self, path: &str) -> Option<String> {
        let mut text = Vec::new();
        self.open(path)?.read_to_end(&mut text).ok()?;
        Some(String::from_utf8_lossy(&text).into_owned())
    }
}

/// Whether an auxiliary vector begins with a key and a value of 32 bits, on a kernel of 64 bits.
/// Keys are small numbers, and no value in front is 0.
fn is_of_32_bits(auxv: [u8; 8]) -> bool {
    cfg!(target_pointer_width = "64") && u64::from_ne_bytes(auxv) > u64::from(u32::MAX)
}

impl Thread {
    fn new(dir: &OwnedFd, tid: u32, rights: Rights, stays_open: bool) -> Option<Self> {
        let source = |name: &str| Source::new(dir, format!("task/{tid}/{name}"), stays_open);
        let place = if rights.stacks { "stack" } else { "wchan" };
        let mut thread = Self {
            tid,
            name: String::new(),
            stat: source("stat"),
            syscall: source("syscall"),
            place: source(place),
            schedstat: source("schedstat"),
        };
        thread.state(dir)?;
        Some(thread)
    }

    /// Its state; stores its name in `name`. None if it has ended.
    pub fn state(&mut self, dir: &OwnedFd) -> Option<char> {
        let mut text = [0; TEXT_MAX];
        let (name, state) = parse_stat(self.stat.read(dir, &mut text).ok()?)?;
        self.name = name;
        // Zombie or dead.
        (state != 'Z' && state != 'X').then_some(state)
    }

    /// Whether its files stay open.
    #[cfg(test)]
    pub fn stays_open(&self) -> bool {
        let mut sources = [&self.stat, &self.syscall, &self.place, &self.schedstat].into_iter();
        sources.all(|source| matches!(source, Source::Open(_)))
    }

    /// How often it has run. None if it has ended, or the kernel does not count that.
    pub fn runs(&self, dir: &OwnedFd) -> Option<u64> {
        parse_schedstat(self.schedstat.read(dir, &mut [0; TEXT_MAX]).ok()?)
    }

    /// The name of its call, its stack pointer and its instruction pointer. None if it runs, or if
    /// they cannot be read.
    pub fn registers(&self, dir: &OwnedFd) -> Option<(String, u64, u64)> {
        let mut text = [0; TEXT_MAX];
        let text = self.syscall.read(dir, &mut text).ok()?;
        let InCall::Call(call) = parse_syscall(text)? else { return None };
        let (sp, pc) = parse_registers(text)?;
        Some((call.name(), sp, pc))
    }

    /// Samples its state. None if it has ended.
    ///
    /// The files are read one after the other, and the thread may move between them. If its system
    /// call is readable, that is read first and believed. The kernel shows it only for threads that
    /// do not run: the thread waited at that moment.
    ///
    /// The thread may have woken up since, so its function may be unknown. Without this rule short
    /// waits would be seen less often than they occur.
    pub fn look(&mut self, dir: &OwnedFd, rights: Rights) -> Option<Look> {
        let mut text = [0; TEXT_MAX];
        let mut call = None;
        if rights.calls {
            match parse_syscall(self.syscall.read(dir, &mut text).ok()?)? {
                // Also shown for a thread that has ended.
                InCall::Running => return self.state(dir).map(|_| Look::running()),
                InCall::None => {}
                InCall::Call(raw) => call = Some(raw),
            }
        }
        let place = self.place.read(dir, &mut text).ok()?;
        let (channel, stack) = if rights.stacks {
            let stack = parse_stack(place);
            (stack.first().cloned(), stack)
        } else {
            (parse_wchan(place), Vec::new())
        };
        let state = match (self.state(dir)?, &call) {
            ('R', Some(_)) => 'S',
            (state, _) => state,
        };
        let is_stopped = matches!(state, 'T' | 't');
        let waits = call.is_some() || is_stopped || (state != 'R' && channel.is_some());
        Some(if waits { Look { state, call, channel, stack } } else { Look::running() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::{gettid, sched_setaffinity};
    use std::process::Command;
    use std::thread;

    /// The defect: a program had as many processors as this process may use.
    #[test]
    fn a_program_has_the_processors_of_its_threads() {
        let mut sleep = Command::new("sleep").arg("1000").spawn().unwrap();
        let own = sched_getaffinity(None).unwrap();
        let mut wanted = CpuSet::new();
        wanted.set((0..CpuSet::MAX_CPU).rfind(|cpu| own.is_set(*cpu)).unwrap());
        let is_set = sched_setaffinity(Some(Pid::from_child(&sleep)), &wanted);
        let mut found = CpuSet::new();
        let mut process = Process::find(sleep.id()).unwrap();
        let has_threads = process.find_threads(0);
        process.add_cpus(&mut found);
        sleep.kill().and_then(|()| sleep.wait()).unwrap();
        assert_eq!((is_set, has_threads, found), (Ok(()), Ok(true), wanted));
    }

    /// The defect: a program whose first thread has ended had no files.
    #[test]
    fn descriptors_are_those_of_a_living_thread() {
        let seen = thread::spawn(|| {
            let mut process = Process::find(std::process::id()).unwrap();
            process.find_threads(0).unwrap();
            let own = gettid().as_raw_nonzero().get() as u32;
            process.threads.retain(|tid, _| *tid == own);
            let is_of_thread = process.path_of("fd") == format!("task/{own}/fd");
            is_of_thread && !process.descriptors().is_empty()
        });
        assert!(seen.join().unwrap());
        let first = Process::find(std::process::id()).unwrap();
        assert_eq!(first.path_of("fdinfo/1"), "fdinfo/1");
    }

    /// Their calls were decoded by the numbers of 64 bits.
    #[test]
    fn programs_of_32_bits_are_told_by_their_vectors() {
        const AT_SYSINFO_EHDR: u32 = 33;
        let mut of_32 = [0; 8];
        of_32[..4].copy_from_slice(&AT_SYSINFO_EHDR.to_ne_bytes());
        of_32[4..].copy_from_slice(&0xf7f0_0000_u32.to_ne_bytes());
        assert_eq!(is_of_32_bits(of_32), cfg!(target_pointer_width = "64"));
        assert!(!is_of_32_bits(u64::from(AT_SYSINFO_EHDR).to_ne_bytes()));
        assert!(!Process::find(std::process::id()).unwrap().is_32_bit);
    }
}
