//! Samples the threads of an unmodified program, and gathers evidence of their waits.
//!
//! A thread of this process samples the state of all threads of the watched processes at irregular
//! intervals. It takes at most 200 samples per second, and fewer if that would cost more than 3 %
//! of a processor.
//!
//! | evidence | source | readable by |
//! |---|---|---|
//! | name, state | `/proc/PID/task/TID/stat` | all users |
//! | wait channel | `wchan` | the owner of the process, and root |
//! | call, file, offset | `syscall`, `/proc/PID/fd`, `mem` | the same, if `ptrace_scope` allows |
//! | kernel stack | `stack` | root |
//! | calls on files with their latencies | tracepoints | root |
//! | counters of reads and writes | `/proc/PID/io` | the owner, if `ptrace_scope` allows |
//! | runs, of waiters on futexes | `schedstat` | all users |
//! | functions of the program | `syscall`, `mem`, `maps`, its files | as calls; x86-64 |
//! | limits | `/proc/PID/cgroup`, and the cgroup's directory | all users |
//!
//! [`Evidence::unseen`] names unavailable evidence, with the reason.

mod bins;
mod calls;
mod cgroups;
mod counters;
mod devices;
mod files;
mod latencies;
mod look;
mod pace;
mod process;
mod queues;
mod rates;
mod recorder;
mod rivals;
mod stacks;
mod tally;
mod trace;
mod wakes;
mod watched;

use crate::activity::Activity;
use crate::channels::{self, Does};
use crate::evidence::{Call, DirectIo, Evidence, SeenFile, Sighting, Subject};
use crate::select::Selection;
use calls::{About, RawCall, Transfer};
use cgroups::Cgroups;
use devices::Devices;
use files::Files;
use look::normalised;
use pace::{Errand, Pace, cpu_time};
use process::Process;
use queues::{NAP, Part, Queues, ThreadReading, WaitingThread};
use recorder::Recorder;
use rivals::{Rivals, waits_for_inode};
use rustix::fs::makedev;
use rustix::thread::CpuSet;
use stacks::Stacks;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tally::{SampledPlace, Tally};
use trace::Tracer;
use watched::Watched;

/// New processes and threads are found within this time.
const SCAN_INTERVAL: Duration = Duration::from_millis(50);
/// The minimum interval of reading open files on which no thread was sampled.
const FILES_INTERVAL: Duration = Duration::from_secs(1);

/// Prefix of the kernel's names for the worker threads of io_uring rings.
const RING_WORKER: &str = "iou-wrk-";

/// The evidence that needs tracing, in [`Evidence::unseen`].
const TRACED: &str = "lock waits, direct I/O, what rings hand to workers, latency of calls";

/// All parsers of text from the kernel.
#[cfg(fuzzing)]
pub(crate) fn parse(text: &[u8]) {
    look::parse_stat(text);
    look::parse_syscall(text);
    look::parse_schedstat(text);
    look::parse_stack(text);
    look::parse_registers(text);
    stacks::parse(&String::from_utf8_lossy(text));
    look::parse_wchan(text);
    trace::text::parse(text);
}

/// The processes and threads to watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whom {
    /// A process with its threads and children, including later ones.
    Program {
        /// The process ID.
        pid: u32,
    },
    /// Threads of this process, and the workers of its rings.
    OwnThreads {
        /// Prefix of the names of the threads.
        name_prefix: &'static str,
    },
}

impl Whom {
    fn is_program(self) -> bool {
        matches!(self, Self::Program { .. })
    }

    /// Whether to sample a thread of this name in a watched process.
    fn includes(self, name: &str) -> bool {
        match self {
            Self::Program { .. } => true,
            Self::OwnThreads { name_prefix } => {
                name.starts_with(name_prefix) || name.starts_with(RING_WORKER)
            }
        }
    }
}

/// Options of the observation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Whether to trace lock waits and direct I/O where that is allowed (root).
    pub may_trace: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { may_trace: true }
    }
}

/// Why a program cannot be watched.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No process has this ID, or it has ended.
    #[error("there is no process {pid}")]
    NoSuchProcess {
        /// The process ID.
        pid: u32,
    },
    /// It has ended, and its parent has not waited for it.
    #[error(
        "process {pid} is a zombie: it has ended, and its parent, process {parent}, has not waited \
         for it; there is nothing to observe"
    )]
    Zombie {
        /// The process ID.
        pid: u32,
        /// The parent's process ID.
        parent: u32,
    },
    /// A thread of the kernel.
    #[error("process {pid} is a thread of the kernel")]
    KernelThread {
        /// The process ID.
        pid: u32,
    },
    /// Not permitted.
    #[error(
        "process {pid} of user {uid} may not be watched by this user: do it as root, or as that \
         user"
    )]
    NotAllowed {
        /// The process ID.
        pid: u32,
        /// The owner of the process.
        uid: u32,
    },
    /// /proc cannot be read.
    #[error("cannot look at /proc/{pid}: {errno}")]
    Proc {
        /// The process ID.
        pid: u32,
        /// The error.
        errno: io::Error,
    },
    /// The watching thread could not be created.
    #[error("cannot make a thread: {0}")]
    Thread(io::Error),
}

/// Samples until it is stopped. Dropping it discards its evidence.
#[derive(Debug)]
pub struct Watcher {
    /// Closed to stop the thread.
    stop: Option<Sender<()>>,
    is_over: Arc<AtomicBool>,
    looks: Arc<AtomicU64>,
    /// None once it is joined.
    thread: Option<JoinHandle<Gathering>>,
}

impl Watcher {
    /// Starts watching. On return all existing processes, threads and files are known.
    pub fn start(whom: Whom, options: Options) -> Result<Self, Error> {
        Self::of(Watched::find(whom)?, options)
    }

    /// The same, for selected processes with their children, and later processes of their cgroups.
    pub fn start_selected(selection: &Selection, options: Options) -> Result<Self, Error> {
        Self::of(Watched::find_all(selection)?, options)
    }

    fn of(watched: Watched, options: Options) -> Result<Self, Error> {
        let (stop, stopped) = mpsc::channel();
        let mut gathering = Gathering::new(watched, options);
        let (is_over, looks) = (gathering.is_over.clone(), gathering.looks.clone());
        let work = move || {
            gathering.watch(&stopped);
            gathering
        };
        let thread = thread::Builder::new()
            .name("dioxide-watch".into())
            .spawn(work)
            .map_err(Error::Thread)?;
        Ok(Self { stop: Some(stop), is_over, looks, thread: Some(thread) })
    }

    /// Whether all watched processes have ended.
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// The number of sampling passes so far.
    pub fn looks(&self) -> u64 {
        self.looks.load(Ordering::Relaxed)
    }

    /// Stops, and returns the evidence. For a program, replaces ID, command line and number of
    /// processes in `subject` by the observed ones. The curve and the other paths are empty.
    pub fn stop(mut self, subject: Subject) -> Evidence {
        self.join().expect("joined once").finish(subject)
    }

    fn join(&mut self) -> Option<Gathering> {
        self.stop = None;
        let gathering = self.thread.take()?.join();
        Some(gathering.expect("the watching thread does not panic"))
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // After tracing has ended: a program that ends earlier would leave it switched on.
        self.join();
    }
}

/// The state of the watching thread.
#[derive(Debug)]
struct Gathering {
    watched: Watched,
    files: Files,
    file_scans: Errand,
    devices: Devices,
    cgroups: Cgroups,
    /// The processors on which the threads of a program may run.
    cpus: CpuSet,
    queues: Queues,
    stacks: Stacks,
    calls: Calls,
    tally: Tally,
    recorder: Recorder,
    rivals: Rivals,
    tracer: Option<Tracer>,
    traced: HashSet<u32>,
    looks: Arc<AtomicU64>,
    begun: Instant,
    ended: Instant,
    is_over: Arc<AtomicBool>,
}

impl Gathering {
    fn new(mut watched: Watched, options: Options) -> Self {
        let now = Instant::now();
        let tracer = match options.may_trace {
            true => Tracer::start(watched.whom.is_program()),
            false => Err(io::Error::other("not wanted")),
        };
        let no_tracer = tracer.as_ref().err().map(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => "for root only".to_owned(),
            _ => error.to_string(),
        });
        watched.unseen.extend(no_tracer.map(|reason| format!("{TRACED}: {reason}")));
        let mut gathering = Self {
            watched,
            files: Files::default(),
            file_scans: Errand::new(FILES_INTERVAL),
            devices: Devices::default(),
            cgroups: Cgroups::default(),
            cpus: CpuSet::new(),
            queues: Queues::default(),
            stacks: Stacks::default(),
            calls: Calls::default(),
            tally: Tally::default(),
            recorder: Recorder::default(),
            rivals: Rivals::default(),
            tracer: tracer.ok(),
            traced: HashSet::new(),
            looks: Arc::default(),
            begun: now,
            ended: now,
            is_over: Arc::default(),
        };
        gathering.scan();
        gathering.scan_files();
        gathering.devices.begin();
        gathering.cgroups.begin();
        gathering.recorder.begin(&gathering.watched.processes);
        gathering.begun = Instant::now();
        gathering.ended = gathering.begun;
        gathering
    }

    /// Samples until `stopped` is closed, or all processes have ended.
    fn watch(&mut self, stopped: &Receiver<()>) {
        self.sample(stopped);
        // At once, because the program continues: the counts are for the time until now.
        self.cgroups.end();
        self.devices.end();
        self.recorder.end(&self.watched.processes);
        self.ended = Instant::now();
    }

    fn sample(&mut self, stopped: &Receiver<()>) {
        let mut pace = Pace::default();
        let mut scanned = self.begun;
        // That of the run before the begin.
        self.file_scans.take_cost();
        loop {
            let cpu = cpu_time();
            if scanned.elapsed() >= SCAN_INTERVAL {
                self.scan();
                scanned = Instant::now();
            }
            if self.file_scans.is_due() {
                self.scan_files();
            }
            self.look();
            self.looks.fetch_add(1, Ordering::Relaxed);
            if self.watched.is_over() {
                self.is_over.store(true, Ordering::Relaxed);
                return;
            }
            let beside = self.file_scans.take_cost() + self.rivals.searches.take_cost();
            let pause = pace.next(cpu_time().saturating_sub(cpu + beside));
            if stopped.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    }

    fn scan(&mut self) {
        self.watched.scan();
        self.recorder.find_owners(&self.watched.processes);
        let Some(tracer) = &self.tracer else { return };
        let tids: Vec<u32> = self.watched.tids().filter(|tid| self.traced.insert(*tid)).collect();
        if !tids.is_empty() {
            tracer.add(tids);
        }
    }

    fn scan_files(&mut self) {
        let begun = cpu_time();
        self.files.next_look();
        self.watched.scan_files(&mut self.files);
        self.devices.find(self.files.disks());
        for process in self.watched.processes.values() {
            self.cgroups.find(&process.read("cgroup").unwrap_or_default());
            if self.watched.whom.is_program() {
                process.add_cpus(&mut self.cpus);
            }
        }
        self.file_scans.ran(cpu_time().saturating_sub(begun));
    }

    fn look(&mut self) {
        self.files.next_look();
        self.calls.next_look();
        let at_ns = self.recorder.now_ns();
        let (mut readings, mut idle) = (Vec::new(), Vec::new());
        for process in self.watched.processes.values_mut() {
            for (tid, name, look) in process.look(|name| self.watched.whom.includes(name)) {
                let mut call = look.call.map(|call| {
                    self.calls.describe(tid, call, || describe(&mut self.files, process, call))
                });
                if let (Some(call), Some(tracer)) = (&mut call, &self.tracer) {
                    name_file_of_ring(call, tid, tracer, &self.files);
                }
                let part = call.as_ref().and_then(|call| part(call, &self.files));
                if let Some(file) = call.as_ref().and_then(|call| call.file)
                    && waits_for_inode(&look, call.as_ref(), Some(self.files.file(file)))
                {
                    self.rivals.wait(file);
                }
                let runs = part.as_ref().and_then(|_| process.threads[&tid].runs(&process.dir));
                let mut waiter = None;
                if let (Some(part), Some(runs)) = (part, runs) {
                    let thread = (process.pid, tid);
                    let waits = self.queues.waits(thread, runs, Instant::now());
                    let is_waiter = part == Part::Waits;
                    waiter = (is_waiter && waits == WaitingThread::RanLately).then_some(thread);
                    let futex = call.as_ref().and_then(|call| call.futex);
                    let reading =
                        ThreadReading { thread, task: normalised(&name), part, futex, runs };
                    match waits {
                        _ if waiter.is_some() || !is_waiter => readings.push(reading),
                        WaitingThread::Idle => idle.push(reading),
                        WaitingThread::RanLately | WaitingThread::Unknown => {}
                    }
                }
                let place = SampledPlace {
                    process: process.pid,
                    task: name,
                    state: look.state,
                    call,
                    channel: look.channel,
                    stack: look.stack,
                    waiter,
                };
                self.tally.add((process.pid, tid), place, at_ns);
            }
        }
        if self.queues.look(readings, idle) {
            if self.stacks.begin_if_due(Instant::now()) {
                let (stacks, processes) = (&mut self.stacks, &self.watched.processes);
                self.queues.take_stacks(|reading| {
                    let (pid, tid) = reading.thread;
                    let is_such = |call: &str| reading.part.is_in(call);
                    stacks.stack(processes.get(&pid)?, tid, reading.runs, is_such)
                });
            }
            let read = |(pid, tid): (u32, u32)| {
                let process = self.watched.processes.get(&pid)?;
                process.threads.get(&tid)?.runs(&process.dir)
            };
            self.queues.nap(read, || thread::sleep(NAP));
        }
        if self.watched.whom.is_program() {
            self.rivals.look(&self.watched.processes, &self.files);
        }
        self.recorder.look(self.tracer.as_ref(), &self.watched.processes, &mut self.files);
    }

    fn finish(mut self, mut subject: Subject) -> Evidence {
        self.scan_files();
        self.files.take_sizes();
        let watched = self.ended - self.begun;
        let mut devices = self.devices.finish(watched);
        let mut unseen = std::mem::take(&mut self.watched.unseen);
        if let Subject::Program { pid, command, processes, .. } = &mut subject {
            *pid = self.watched.pid;
            *command = std::mem::take(&mut self.watched.command);
            *processes = self.tally.processes();
        }
        let threads = self.tally.threads();
        let (traced, batches) = self
            .tracer
            .map(|tracer| tracer.stop(&self.files, self.begun.elapsed()))
            .unwrap_or_default();
        self.recorder.take(batches, &self.watched.processes, &mut self.files);
        unseen.extend(traced.unseen);
        if self.files.is_full() {
            unseen.insert(format!("files: there are more than {}", files::FILES_MAX));
        }
        if self.cgroups.has_hidden {
            unseen.insert("limits of cgroups: a process is outside of this namespace".to_owned());
        }
        let fast_commits = self.files.fast_commits();
        let futexes = self.queues.futexes();
        let (queues, waiters) = self.queues.finish();
        let ((sightings, sampled), files) = (self.tally.finish(&waiters), self.files.finish());
        let worked_on =
            devices_of_work(&sightings, &files, traced.direct.as_deref().unwrap_or_default());
        devices.retain(|device| worked_on.contains(&device.number));
        let numbers = worked_on.into_iter().map(|(major, minor)| makedev(major, minor)).collect();
        let cpus = match self.cpus.count() {
            0 => thread::available_parallelism().map_or(1, usize::from),
            of_program => of_program as usize,
        };
        let mut evidence = Evidence {
            subject,
            has_ended: self.watched.is_over(),
            kernel_release: rustix::system::uname().release().to_string_lossy().into_owned(),
            cpus,
            watched_ns: watched.as_nanos() as u64,
            looks: self.looks.load(Ordering::Relaxed),
            threads,
            sightings,
            files,
            direct: traced.direct,
            locks: traced.locks,
            punts: traced.punts,
            cgroups: self.cgroups.finish(&numbers),
            devices,
            queues,
            futexes,
            functions: self.stacks.finish(),
            curve: Vec::new(),
            others: Vec::new(),
            contenders: self.rivals.finish(),
            fast_commits,
            activity: Activity::default(),
            unseen: unseen.into_iter().collect(),
        };
        if self.watched.whom.is_program() {
            evidence.activity = self.recorder.finish(&evidence, traced.has_calls, &sampled);
        }
        evidence
    }
}

/// The devices of files with I/O or with O_DIRECT, by number. Others, like the device of the
/// program's log, do not matter.
fn devices_of_work(
    sightings: &[Sighting],
    files: &[SeenFile],
    direct: &[DirectIo],
) -> BTreeSet<(u32, u32)> {
    let in_calls = sightings.iter().filter_map(|sighting| sighting.call.as_ref()?.file);
    let traced = direct.iter().filter_map(|direct| direct.file);
    let worked_on: HashSet<usize> = in_calls.chain(traced).collect();
    let files = files.iter().enumerate();
    let its = files.filter(|(index, file)| file.is_direct || worked_on.contains(index));
    its.map(|(_, file)| file.device).collect()
}

/// The calls of threads in this pass and in the one before. A thread that is still in the same call
/// keeps its first description. The first pass knows best whether the call moves the end of its
/// file.
#[derive(Debug, Default)]
struct Calls {
    now: HashMap<u32, (RawCall, Call)>,
    before: HashMap<u32, (RawCall, Call)>,
}

impl Calls {
    fn next_look(&mut self) {
        self.before = std::mem::take(&mut self.now);
    }

    fn describe(&mut self, tid: u32, call: RawCall, describe: impl FnOnce() -> Call) -> Call {
        let before =
            self.before.remove(&tid).filter(|(before, _)| *before == call && call.has_offset());
        let described = before.map_or_else(describe, |(_, described)| described);
        self.now.insert(tid, (call, described.clone()));
        described
    }
}

/// A call on a ring is on the file of the thread's last direct I/O, as far as that is known. The
/// visible call of a ring's worker is the one that made the ring.
fn name_file_of_ring(call: &mut Call, tid: u32, tracer: &Tracer, files: &Files) {
    if call.name == "io_uring_enter"
        && let Some((file, extends)) = tracer.last_direct(tid, files)
    {
        call.file = Some(file);
        call.extends = Some(extends);
    }
}

/// The part of a blocked call in a queue of the program.
fn part(call: &Call, files: &Files) -> Option<Part> {
    if Part::Waits.is_in(&call.name) {
        return Some(Part::Waits);
    }
    let file = call.file?;
    let leads = match channels::does(&call.name)? {
        Does::Syncs => true,
        // Others seldom block.
        Does::Writes => files.is_direct_or_durable(file),
        Does::Reads | Does::Shapes | Does::Submits => false,
    };
    leads.then(|| Part::Leads { file, call: call.name.clone() })
}

/// Describes a call and its file.
fn describe(files: &mut Files, process: &Process, call: RawCall) -> Call {
    let mut described = Call::named(&call.name());
    match call.about(&|address, bytes| process.read_memory(address, bytes)) {
        About::Nothing => {}
        About::Descriptor(descriptor) => {
            described.file = files.open(process, descriptor).map(|open| open.file);
        }
        About::Copy { to, from } => {
            let mut file = |descriptor| files.open(process, descriptor).map(|open| open.file);
            described.file = file(to).or_else(|| file(from));
        }
        About::Futex { address, is_lock, is_shared } => {
            described.futex = Some(address);
            described.is_lock = Some(is_lock);
            described.is_shared = is_shared;
        }
        About::Transfer(transfer) => place(&mut described, transfer, files, process),
    }
    described
}

/// Whether a write extends its file, by the end of the file in the pass before. While a thread
/// waits for the file's lock others move the end. Its own write may be below the end by now.
fn place(call: &mut Call, transfer: Transfer, files: &mut Files, process: &Process) {
    let Some(open) = files.open(process, transfer.descriptor) else { return };
    call.file = Some(open.file);
    let block_bytes = files.block_bytes(open.file);
    if transfer.is_write && open.appends {
        call.extends = Some(true);
        call.is_aligned = transfer.length.map(|length| length.is_multiple_of(block_bytes));
        return;
    }
    let offset = transfer.offset.or_else(|| Files::position(process, transfer.descriptor));
    let (Some(offset), Some(length)) = (offset, transfer.length) else { return };
    call.extends = transfer.is_write.then(|| offset.saturating_add(length) > open.size_before);
    call.is_aligned =
        Some(offset.is_multiple_of(block_bytes) && length.is_multiple_of(block_bytes));
}
