//! Other processes in calls on files whose locks the watched threads wait for. They are searched
//! only while there are such files, and by their descriptors.

use super::calls::About;
use super::files::Files;
use super::look::Look;
use super::pace::{Errand, cpu_time};
use super::process::Process;
use super::watched::open_threads_max;
use crate::channels::{self, Kind, Surroundings};
use crate::contenders::{Contender, Contenders};
use crate::evidence::{Call, SeenFile};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::time::Duration;

/// The minimum interval of searching for processes.
const SEARCH_INTERVAL: Duration = Duration::from_millis(500);
/// Descriptors to look up in one search. The next search continues behind them.
const DESCRIPTORS_MAX: usize = 10_000;
/// Processes to sample.
const RIVALS_MAX: usize = 16;
/// After this many passes without a call, a process makes room for another one.
const IDLE_PASSES: u64 = 10;
/// Threads of each whose files stay open, at most.
const OPEN_THREADS_MAX: usize = 32;
/// Threads to report.
const REPORTED_MAX: usize = 128;

/// The call of a thread that runs: the kernel shows it for waiting threads only.
pub const RUNNING: &str = "running";

#[derive(Debug)]
pub struct Rivals {
    /// Files whose lock a watched thread waited for: ever, and in this pass.
    contended: BTreeSet<usize>,
    contended_now: BTreeSet<usize>,
    processes: BTreeMap<u32, Rival>,
    refused: BTreeSet<u32>,
    /// Processes with such a file that found no room among the sampled ones.
    left_out: BTreeSet<u32>,
    /// Threads of each process whose files stay open.
    open_threads_max: usize,
    seen: BTreeMap<Key, (u64, u64)>,
    passes: u64,
    pub searches: Errand,
    /// The first process of the next search, and whether one search reached the end.
    next: u32,
    is_complete: bool,
}

#[derive(Debug)]
struct Rival {
    process: Process,
    name: String,
    /// By descriptor: the file, and whether it is open with O_DIRECT.
    files: HashMap<i32, (usize, Option<bool>)>,
    /// The passes since it was last in a call on one.
    idle: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    pid: u32,
    process: String,
    tid: u32,
    thread: String,
    file: usize,
    call: String,
    is_direct: Option<bool>,
}

/// A call on a contended file.
#[derive(Debug, PartialEq, Eq)]
struct RivalCall {
    descriptor: i32,
    file: usize,
    name: String,
    is_direct: Option<bool>,
}

/// Whether a thread waits for the lock of an inode.
pub fn waits_for_inode(look: &Look, call: Option<&Call>, file: Option<&SeenFile>) -> bool {
    let place = channels::place_of(look.state, look.channel.as_deref(), &look.stack);
    place.is_some_and(|(function, outer)| {
        let entry = channels::entry(function, Surroundings { outer, call, file });
        entry.is_some_and(|entry| entry.kind == Kind::InodeLock)
    })
}

impl Default for Rivals {
    fn default() -> Self {
        Self {
            contended: BTreeSet::new(),
            contended_now: BTreeSet::new(),
            processes: BTreeMap::new(),
            refused: BTreeSet::new(),
            left_out: BTreeSet::new(),
            // Together as many as those of the watched processes.
            open_threads_max: OPEN_THREADS_MAX.min(open_threads_max() / RIVALS_MAX),
            seen: BTreeMap::new(),
            passes: 0,
            searches: Errand::new(SEARCH_INTERVAL),
            next: 0,
            is_complete: false,
        }
    }
}

impl Rivals {
    /// A watched thread waits for the lock of this file in this pass.
    pub fn wait(&mut self, file: usize) {
        self.contended_now.insert(file);
    }

    /// Ends a pass: searches if that is due, and samples the others.
    pub fn look(&mut self, watched: &BTreeMap<u32, Process>, files: &Files) {
        let now = std::mem::take(&mut self.contended_now);
        if now.is_empty() {
            return;
        }
        self.contended.extend(&now);
        if self.searches.is_due() {
            let begun = cpu_time();
            self.search(watched, files);
            self.searches.ran(cpu_time().saturating_sub(begun));
            // The first sweep over all processes is worth more than its cost.
            if !self.is_complete {
                self.searches.continue_soon();
            }
        }
        self.passes += 1;
        for rival in self.processes.values_mut() {
            rival.idle += 1;
            for (tid, thread, look) in rival.process.look(|_| true) {
                let Some(call) = rival_call(&look, &rival.files, &now) else { continue };
                let RivalCall { descriptor, file, name: call, is_direct } = call;
                // The descriptor may refer to another file by now.
                if files.identified(&rival.process, descriptor) != Some(file) {
                    continue;
                }
                rival.idle = 0;
                let named = Call::named(&call);
                let waits = waits_for_inode(&look, Some(&named), Some(files.file(file)));
                let process = rival.name.clone();
                let pid = rival.process.pid;
                let key = Key { pid, process, tid, thread, file, call, is_direct };
                let (working, waiting) = self.seen.entry(key).or_default();
                *(if waits { waiting } else { working }) += 1;
            }
        }
    }

    fn search(&mut self, watched: &BTreeMap<u32, Process>, files: &Files) {
        let mut left = DESCRIPTORS_MAX;
        let first = self.next;
        self.next = 0;
        for pid in all_processes().into_iter().filter(|pid| *pid >= first) {
            if watched.contains_key(&pid) || pid == std::process::id() {
                continue;
            }
            if left == 0 {
                self.next = pid;
                break;
            }
            let Ok(process) = Process::find(pid) else { continue };
            if !process.rights.descriptors {
                self.refused.insert(pid);
                continue;
            }
            let descriptors = process.descriptors();
            left = left.saturating_sub(descriptors.len().max(1));
            let of = |descriptor: i32| {
                let file = files.identified(&process, descriptor)?;
                let is_contended = self.contended.contains(&file);
                is_contended.then(|| (descriptor, (file, Files::is_direct(&process, descriptor))))
            };
            let its: HashMap<_, _> = descriptors.into_iter().filter_map(of).collect();
            self.keep(process, its);
        }
        self.is_complete |= self.next == 0;
        let names = all_processes();
        self.processes.retain(|pid, _| names.binary_search(pid).is_ok());
    }

    fn keep(&mut self, mut process: Process, files: HashMap<i32, (usize, Option<bool>)>) {
        let pid = process.pid;
        if files.is_empty() {
            self.processes.remove(&pid);
            return;
        }
        if let Some(known) = self.processes.get_mut(&pid)
            // Also without a free descriptor, the known threads are sampled.
            && known.process.find_threads(self.open_threads_max) != Ok(false)
        {
            known.files = files;
            return;
        }
        // The known one has ended, and another one has its ID.
        self.processes.remove(&pid);
        if !self.make_room() {
            self.left_out.insert(pid);
        } else if process.find_threads(self.open_threads_max) == Ok(true) {
            let name = process.read("comm").unwrap_or_default().trim().to_owned();
            self.processes.insert(pid, Rival { process, name, files, idle: 0 });
            self.left_out.remove(&pid);
        }
    }

    /// Removes an idle process if needed. Returns whether one more may be sampled.
    fn make_room(&mut self) -> bool {
        if self.processes.len() < RIVALS_MAX {
            return true;
        }
        let idle = self.processes.iter().filter(|(_, rival)| rival.idle >= IDLE_PASSES);
        let most = idle.max_by_key(|(_, rival)| rival.idle).map(|(pid, _)| *pid);
        most.and_then(|pid| self.processes.remove(&pid)).is_some()
    }

    /// None if no thread waited for the lock of a file.
    pub fn finish(self) -> Option<Contenders> {
        let thread = |(key, (working, waiting)): (Key, (u64, u64))| {
            let Key { pid, process, tid, thread, file, call, is_direct } = key;
            Contender { pid, process, tid, thread, file, call, is_direct, working, waiting }
        };
        let mut threads: Vec<_> = self.seen.into_iter().map(thread).collect();
        threads.sort_by_key(|one| std::cmp::Reverse((one.working, one.waiting)));
        threads.truncate(REPORTED_MAX);
        let refused = self.refused.len() as u64;
        let is_complete = self.is_complete && self.left_out.is_empty();
        (self.passes > 0).then_some(Contenders {
            passes: self.passes,
            refused,
            is_complete,
            threads,
        })
    }
}

/// The call of a thread, if it is on a contended file. A running thread is in an unknown call,
/// which may be on the only such file of its process.
fn rival_call(
    look: &Look,
    files: &HashMap<i32, (usize, Option<bool>)>,
    contended: &BTreeSet<usize>,
) -> Option<RivalCall> {
    let call = match look.call {
        Some(call) => {
            let descriptor = match call.about(&|_, _| false) {
                About::Descriptor(descriptor) | About::Copy { to: descriptor, .. } => descriptor,
                About::Transfer(transfer) => transfer.descriptor,
                About::Nothing | About::Futex { .. } => return None,
            };
            let (file, is_direct) = *files.get(&descriptor)?;
            RivalCall { descriptor, file, name: call.name(), is_direct }
        }
        None if look.state == 'R' => {
            let mut its = files.iter();
            let (descriptor, (file, _)) = its.next()?;
            if its.any(|(_, (other, _))| other != file) {
                return None;
            }
            let name = RUNNING.to_owned();
            RivalCall { descriptor: *descriptor, file: *file, name, is_direct: None }
        }
        None => return None,
    };
    contended.contains(&call.file).then_some(call)
}

/// In ascending order.
fn all_processes() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut pids: Vec<u32> =
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    pids
}

#[cfg(test)]
mod tests {
    use super::super::calls::RawCall;
    use super::*;
    use rustix::fs::{FlockOperation, flock};
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::process::Command;
    use std::thread;
    use syscalls::Sysno;
    use tempfile::{NamedTempFile, tempfile};

    fn look(call: Option<Sysno>, state: char) -> Look {
        let call = call.map(|call| RawCall { number: call.id() as usize, arguments: [3; 6] });
        Look { state, call, channel: None, stack: Vec::new() }
    }

    #[test]
    fn only_calls_on_contended_files_count() {
        let files = HashMap::from([(3, (7, Some(true))), (4, (8, None))]);
        let of = |look: &Look, contended: &[usize]| {
            rival_call(look, &files, &contended.iter().copied().collect())
        };
        let sync = look(Some(Sysno::fsync), 'D');
        let (descriptor, file, name, is_direct) = (3, 7, "fsync".into(), Some(true));
        let expected = RivalCall { descriptor, file, name, is_direct };
        assert_eq!(of(&sync, &[7]), Some(expected));
        assert_eq!(of(&sync, &[8]), None, "the other file");
        assert_eq!(of(&look(Some(Sysno::nanosleep), 'S'), &[7]), None);
        assert_eq!(of(&look(None, 'R'), &[7]), None, "it may be in a call on either file");
        assert_eq!(of(&look(None, 'S'), &[7]), None);
        let one = HashMap::from([(3, (7, Some(true))), (5, (7, Some(false)))]);
        let running = rival_call(&look(None, 'R'), &one, &[7].into()).unwrap();
        assert_eq!((running.file, &*running.name, running.is_direct), (7, RUNNING, None));
    }

    #[test]
    fn a_process_that_finds_no_room_is_not_overlooked() {
        let own = |pid| Process { pid, ..Process::find(std::process::id()).unwrap() };
        let keep = |rivals: &mut Rivals, pid| rivals.keep(own(pid), [(3, (7, None))].into());
        let full = || {
            let mut rivals = Rivals { is_complete: true, passes: 1, ..Rivals::default() };
            (0..=RIVALS_MAX as u32).for_each(|pid| keep(&mut rivals, pid));
            rivals
        };
        assert_eq!(full().processes.len(), RIVALS_MAX);
        assert!(!full().finish().unwrap().is_complete);
        let mut rivals = full();
        rivals.processes.get_mut(&5).unwrap().idle = IDLE_PASSES;
        keep(&mut rivals, RIVALS_MAX as u32);
        assert!(!rivals.processes.contains_key(&5), "it made room");
        assert!(rivals.finish().unwrap().is_complete);
    }

    /// The defect: the rival remained the ended process, of which nothing can be read.
    #[test]
    fn a_later_process_with_the_id_of_a_rival_replaces_it() {
        let mut sleep = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = sleep.id();
        let mut rivals = Rivals::default();
        rivals.keep(Process::find(pid).unwrap(), [(3, (7, None))].into());
        let is_kept = rivals.processes.contains_key(&pid);
        sleep.kill().and_then(|()| sleep.wait()).unwrap();
        let later = Process { pid, ..Process::find(std::process::id()).unwrap() };
        rivals.keep(later, [(3, (7, None))].into());
        assert!(is_kept && !rivals.processes[&pid].process.threads.is_empty());
    }

    /// The defect: their files could exhaust the descriptors of this process.
    #[test]
    fn open_files_of_rivals_leave_descriptors_for_others() {
        let of_each = Rivals::default().open_threads_max;
        assert!(of_each * RIVALS_MAX <= open_threads_max());
    }

    /// The last search found another file behind the descriptor.
    #[test]
    fn a_stale_descriptor_accuses_no_process() {
        let mut own = Process::find(std::process::id()).unwrap();
        if !own.rights.calls {
            return;
        }
        let [held, other, waiting] = {
            let (held, other) = (NamedTempFile::new().unwrap(), tempfile().unwrap());
            let waiting = File::open(held.path()).unwrap();
            [held.into_file(), other, waiting]
        };
        let mut files = Files::default();
        let mut index = |file: &File| files.open(&own, file.as_raw_fd()).unwrap().file;
        let (now, before) = (index(&held), index(&other));
        flock(&held, FlockOperation::LockExclusive).unwrap();
        let descriptor = waiting.as_raw_fd();
        let waiter = thread::spawn(move || flock(&waiting, FlockOperation::LockExclusive));
        let is_in_call = |look: &Look| {
            let call = look.call.filter(|call| call.name() == "flock");
            call.is_some_and(|call| call.arguments[0] == descriptor as u64)
        };
        while own.find_threads(0) == Ok(true)
            && !own.look(|_| true).iter().any(|look| is_in_call(&look.2))
        {}
        let seen = |file: usize| {
            let mut process = Process::find(own.pid).unwrap();
            process.find_threads(0).unwrap();
            let files_of = HashMap::from([(descriptor, (file, None))]);
            let rival = Rival { process, name: String::new(), files: files_of, idle: 0 };
            let processes = [(own.pid, rival)].into();
            let mut rivals = Rivals { processes, ..Rivals::default() };
            // No search is due.
            rivals.searches.ran(Duration::from_secs(60));
            rivals.wait(file);
            rivals.look(&BTreeMap::new(), &files);
            let threads = rivals.finish().unwrap().threads;
            threads.iter().filter(|one| one.call == "flock").count()
        };
        assert_eq!((seen(before), seen(now)), (0, 1));
        flock(&held, FlockOperation::Unlock).unwrap();
        waiter.join().unwrap().unwrap();
    }

    #[test]
    fn waits_are_told_from_work() {
        let waits = |channel: &str| {
            let look = Look { channel: Some(channel.into()), ..look(Some(Sysno::pwrite64), 'D') };
            waits_for_inode(&look, Some(&Call::named("pwrite64")), None)
        };
        assert!(waits("xfs_file_dio_write_aligned") || waits("ext4_file_write_iter"));
        assert!(!waits("futex_wait_queue"));
        assert!(!waits_for_inode(&look(None, 'R'), None, None));
    }

    #[test]
    fn without_waits_there_is_nothing_to_report() {
        let mut rivals = Rivals::default();
        rivals.look(&BTreeMap::new(), &Files::default());
        assert_eq!(rivals.finish(), None);
    }
}
