//! The watched processes and threads, which come and go.

use super::files::Files;
use super::process::Process;
use super::{Error, Whom};
use crate::select::{Selection, processes_of};
use rustix::fs::{AtFlags, statat};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The divisor of this process's descriptor limit that open thread files may use.
const DESCRIPTORS_PART: u64 = 4;
/// Open files per thread.
const DESCRIPTORS_OF_THREAD: u64 = 4;

/// The number of threads whose files may stay open in that part.
pub(super) fn open_threads_max() -> usize {
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    (descriptors / DESCRIPTORS_PART / DESCRIPTORS_OF_THREAD) as usize
}

#[derive(Debug)]
pub struct Watched {
    pub whom: Whom,
    /// The given process, or the first selected one.
    pub pid: u32,
    /// Its command line.
    pub command: String,
    pub processes: BTreeMap<u32, Process>,
    /// Their later processes are watched too.
    cgroups: Vec<PathBuf>,
    /// Other processes that may not be watched.
    refused: BTreeSet<u32>,
    open_threads_max: usize,
    /// Unavailable evidence, with the reason.
    pub unseen: BTreeSet<String>,
}

impl Watched {
    pub fn find(whom: Whom) -> Result<Self, Error> {
        let pid = match whom {
            Whom::Program { pid } => pid,
            Whom::OwnThreads { .. } => std::process::id(),
        };
        let mut process = find(pid, 0)?;
        process.threads.clear();
        let mut unseen = BTreeSet::new();
        if !Path::new("/proc/thread-self/schedstat").exists() {
            unseen.insert(
                "queues of the program: this kernel does not count how often threads run \
                 (CONFIG_SCHED_INFO)"
                    .to_owned(),
            );
        }
        let mut watched = Self {
            whom,
            pid,
            command: process.command().unwrap_or_else(|| process.name()),
            processes: BTreeMap::new(),
            cgroups: Vec::new(),
            refused: BTreeSet::new(),
            open_threads_max: open_threads_max(),
            unseen,
        };
        watched.add(process);
        Ok(watched)
    }

    /// Finds all of a selection that may be watched. Fails as the first one does if none may.
    pub fn find_all(selection: &Selection) -> Result<Self, Error> {
        let mut errors = Vec::new();
        let mut pids = selection.pids.iter().copied();
        let found = pids.by_ref().find_map(|pid| {
            Self::find(Whom::Program { pid }).map_err(|error| errors.push(error)).ok()
        });
        let Some(mut watched) = found else {
            return Err(errors.into_iter().next().unwrap_or(Error::NoSuchProcess { pid: 0 }));
        };
        watched.cgroups.clone_from(&selection.cgroups);
        for pid in pids {
            errors.extend(watched.add_child(pid).err());
        }
        // Processes of a cgroup may end, and threads of the kernel are not wanted there.
        let is_told =
            |error: &Error| watched.cgroups.is_empty() || matches!(error, Error::NotAllowed { .. });
        watched.unseen.extend(errors.iter().filter(|error| is_told(error)).map(Error::to_string));
        Ok(watched)
    }

    fn add(&mut self, process: Process) {
        if !process.rights.stacks {
            self.unseen.insert("stacks: for root only".into());
        }
        if process.is_32_bit {
            self.unseen.insert("system calls and traces of programs of 32 bits".into());
        } else if !process.rights.calls {
            self.unseen.insert(
                "system calls, and which files they are on: the right to trace the program is \
                 missing. Root has it, and its owner where /proc/sys/kernel/yama/ptrace_scope is 0"
                    .into(),
            );
        }
        self.processes.insert(process.pid, process);
    }

    /// Finds new processes and threads, and forgets ended ones. Ignores this process, unless it is
    /// the subject.
    pub fn scan(&mut self) {
        let mut open_left = self.open_threads_max;
        self.processes.retain(|_, process| {
            let is_there = process.find_threads(open_left) != Ok(false);
            open_left = open_left.saturating_sub(process.threads.len());
            is_there
        });
        match self.whom {
            Whom::Program { .. } => {
                self.find_members();
                self.find_children();
            }
            // Threads may set their names only after they start.
            Whom::OwnThreads { .. } => self.refresh_names(),
        }
    }

    fn refresh_names(&mut self) {
        for process in self.processes.values_mut() {
            for thread in process.threads.values_mut() {
                thread.state(&process.dir);
            }
        }
    }

    /// New processes of the cgroups.
    fn find_members(&mut self) {
        let members = self.cgroups.iter().flat_map(|directory| processes_of(directory));
        for pid in members.collect::<Vec<_>>() {
            let is_known = self.processes.contains_key(&pid) || pid == std::process::id();
            if !is_known && !self.refused.contains(&pid) {
                // It may have ended.
                let _ = self.add_child(pid);
            }
        }
    }

    fn find_children(&mut self) {
        if !Path::new("/proc/thread-self/children").exists() {
            self.unseen.insert(
                "child processes: this kernel does not name them (CONFIG_PROC_CHILDREN)".into(),
            );
            return;
        }
        let mut parents: Vec<u32> = self.processes.keys().copied().collect();
        while let Some(parent) = parents.pop() {
            for pid in self.processes[&parent].children() {
                let is_known = self.processes.contains_key(&pid) || pid == std::process::id();
                if !is_known && !self.refused.contains(&pid) && self.add_child(pid).is_ok() {
                    parents.push(pid);
                }
            }
        }
    }

    /// Adds a process that exists and may be watched.
    fn add_child(&mut self, pid: u32) -> Result<(), Error> {
        let open: usize = self.processes.values().map(|process| process.threads.len()).sum();
        let child = find(pid, self.open_threads_max.saturating_sub(open));
        match &child {
            Err(error @ Error::NotAllowed { .. }) => {
                self.unseen.insert(error.to_string());
                self.refused.insert(pid);
            }
            Err(Error::KernelThread { .. }) => {
                self.refused.insert(pid);
            }
            Err(Error::Proc { errno, .. })
                if errno.raw_os_error() == Some(Errno::MFILE.raw_os_error()) =>
            {
                self.unseen
                    .insert("some processes: more than may be kept open here (ulimit -n)".into());
            }
            _ => {}
        }
        self.add(child?);
        Ok(())
    }

    /// The IDs of the threads to trace: all sampled ones whose calls can be decoded.
    pub fn tids(&self) -> impl Iterator<Item = u32> {
        let processes = self.processes.values().filter(|process| !process.is_32_bit);
        let threads = processes.flat_map(|process| process.threads.values());
        threads.filter(|thread| self.whom.includes(&thread.name)).map(|thread| thread.tid)
    }

    pub fn is_over(&self) -> bool {
        self.processes.is_empty()
    }

    /// Finds the open files and the program's name, which exec changes.
    pub fn scan_files(&mut self, files: &mut Files) {
        if let Some(command) = self.processes.get(&self.pid).and_then(Process::command) {
            self.command = command;
        }
        files.scan(&self.processes);
    }
}

/// The process, if it exists and may be watched. Keeps files of at most `open_max` threads open.
fn find(pid: u32, open_max: usize) -> Result<Process, Error> {
    let mut process = Process::find(pid).map_err(|errno| match errno {
        Errno::NOENT => Error::NoSuchProcess { pid },
        errno => Error::Proc { pid, errno: errno.into() },
    })?;
    if process.is_kernels() {
        return Err(Error::KernelThread { pid });
    }
    let has_threads =
        process.find_threads(open_max).map_err(|errno| Error::Proc { pid, errno: errno.into() })?;
    if !has_threads {
        return Err(match process.unreaped_by() {
            Some(parent) => Error::Zombie { pid, parent },
            None => Error::NoSuchProcess { pid },
        });
    }
    if !process.rights.descriptors {
        return Err(refusal(&process));
    }
    Ok(process)
}

fn refusal(process: &Process) -> Error {
    let uid = statat(&process.dir, "", AtFlags::EMPTY_PATH).map_or(0, |stat| stat.st_uid);
    Error::NotAllowed { pid: process.pid, uid }
}

#[cfg(test)]
mod tests {
    use super::super::process::Thread;
    use super::*;
    use rustix::fs::{Mode, OFlags, open};
    use rustix::process::{Pid, Signal, kill_process};
    use std::fs;
    use std::process::{Child, Command};

    #[test]
    fn a_program_that_has_ended_keeps_its_command_line() {
        let mut sleep = Command::new("sleep").arg("1000").spawn().unwrap();
        let mut watched = Watched::find(Whom::Program { pid: sleep.id() }).unwrap();
        let has_command = || Process::find(sleep.id()).unwrap().command().is_some();
        let wait_until = |wanted| while has_command() != wanted {};
        wait_until(true);
        watched.scan_files(&mut Files::default());
        kill_process(Pid::from_child(&sleep), Signal::KILL).unwrap();
        wait_until(false);
        watched.scan_files(&mut Files::default());
        sleep.wait().unwrap();
        assert_eq!(watched.command, "sleep 1000");
    }

    /// Both end with the test.
    struct Sleepers([Child; 2]);

    impl Sleepers {
        fn start() -> Self {
            Self(
                [1000, 1001]
                    .map(|time| Command::new("sleep").arg(time.to_string()).spawn().unwrap()),
            )
        }

        fn pids(&self) -> Vec<u32> {
            self.0.iter().map(Child::id).collect()
        }
    }

    impl Drop for Sleepers {
        fn drop(&mut self) {
            self.0.iter_mut().for_each(|sleep| drop(sleep.kill().and_then(|()| sleep.wait())));
        }
    }

    fn of(pids: Vec<u32>) -> Watched {
        Watched::find_all(&Selection { pids, ..Selection::default() }).unwrap()
    }

    /// The files of all processes but the first were opened for each sample.
    #[test]
    fn threads_of_later_processes_stay_open() {
        let sleepers = Sleepers::start();
        let mut watched = of(sleepers.pids());
        watched.scan();
        let mut threads = watched.processes.values().flat_map(|process| process.threads.values());
        assert!(watched.processes.len() == 2 && threads.all(Thread::stays_open));
    }

    /// The defect: with too many open files, a process had no threads, and the observation ended.
    #[test]
    fn a_process_whose_threads_cannot_be_listed_has_not_ended() {
        let proc = tempfile::tempdir().unwrap();
        let mut watched = of(vec![std::process::id()]);
        let process = watched.processes.get_mut(&std::process::id()).unwrap();
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        process.dir = open(proc.path(), flags, Mode::empty()).unwrap();
        // Not a directory, which is an error as well.
        fs::write(proc.path().join("task"), []).unwrap();
        watched.scan();
        assert!(!watched.is_over());
        fs::remove_file(proc.path().join("task")).unwrap();
        watched.scan();
        assert!(watched.is_over());
    }

    /// A wanted process that did not exist was left out without a word.
    #[test]
    fn a_missing_process_is_named() {
        let sleepers = Sleepers::start();
        let missing = format!("there is no process {}", u32::MAX);
        for at in [0, 1, 2] {
            let mut pids = sleepers.pids();
            pids.insert(at, u32::MAX);
            let watched = of(pids);
            assert!(watched.unseen.contains(&missing), "{:?}", watched.unseen);
            assert_eq!(watched.processes.len(), 2);
        }
    }

    /// Those in a cgroup were sampled.
    #[test]
    fn threads_of_the_kernel_are_left_out() {
        const KTHREADD: u32 = 2;
        if !Process::find(KTHREADD).is_ok_and(|process| process.is_kernels()) {
            return;
        }
        let sleepers = Sleepers::start();
        let watched = of([sleepers.pids(), vec![KTHREADD]].concat());
        assert!(watched.processes.keys().copied().eq(BTreeSet::from_iter(sleepers.pids())));
        assert!(watched.refused.contains(&KTHREADD));
        assert!(watched.unseen.contains("process 2 is a thread of the kernel"));
    }
}
