//! Traces lock waits, direct I/O, operations handed to io_uring workers, and calls on files, of the
//! watched threads only. Needs root.
//!
//! The kernel records into buffers of a private tracefs instance, which a thread reads. The cost is
//! bounded: in each quarter of a second it records a slice of about two thousand events. The counts
//! of a slice stand for the whole quarter. A program with fewer events is traced all the time.
//!
//! While calls are traced, the kernel takes the slow path into each system call of the machine.
//! On Linux 6.18 that cost a call of an unobserved program less than 20 ns.

mod account;
mod instance;
pub(super) mod pairs;
pub(super) mod text;

use super::files::Files;
use crate::evidence::{DirectIo, LockWait, Punt};
use account::{Account, Last};
use instance::{CALLS, Instance};
use pairs::{Batch, OpenCalls};
use rustix::time::{ClockId, clock_gettime};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use text::{Event, Parsed};

const PERIOD: Duration = Duration::from_millis(250);
const SLICE_MIN: Duration = Duration::from_millis(2);
const SLICE_FIRST: Duration = Duration::from_millis(10);
/// Target number of events per slice.
const SLICE_EVENTS: usize = 2000;
/// Limits the growth of slices, because the program may have been quiet in the last one.
const SLICE_GROWTH_MAX: f64 = 4.0;
/// Tracing that begins after this part of the time is late.
const LATE_PART: u32 = 10;

/// Traces until it is stopped or dropped.
#[derive(Debug)]
pub struct Tracer {
    /// Takes the threads to trace. Closed to stop.
    threads: Option<Sender<Vec<u32>>>,
    last: Arc<Mutex<HashMap<u32, Last>>>,
    worker: Option<JoinHandle<io::Result<Tracing>>>,
    /// The calls of each slice.
    batches: Receiver<Batch>,
    missing: Vec<&'static str>,
    has_calls: bool,
}

/// The counts, and the time of tracing. None without a thread to trace.
type Tracing = Option<(Account, Duration)>;

/// The traced evidence. All of it is absent if the kernel lacks its events.
#[derive(Debug, Default)]
pub struct Traced {
    /// Whether calls were traced.
    pub has_calls: bool,
    pub direct: Option<Vec<DirectIo>>,
    pub locks: Option<Vec<LockWait>>,
    pub punts: Option<Vec<Punt>>,
    /// The reasons for unavailable evidence.
    pub unseen: Vec<String>,
}

impl Tracer {
    /// Calls are traced if they are wanted.
    pub fn start(wants_calls: bool) -> io::Result<Self> {
        let filter = wants_calls.then(pairs::filter);
        let (sender, batches) = mpsc::channel();
        let mut slices = Slices {
            instance: Instance::new(filter.as_deref())?,
            account: Account::default(),
            pairs: OpenCalls::default(),
            batches: sender,
            is_on: false,
            last: Arc::default(),
            length: SLICE_FIRST,
            ended_ns: now_ns(),
            armed: None,
        };
        let (missing, last) = (slices.instance.missing.clone(), slices.last.clone());
        let (threads, to_trace) = mpsc::channel();
        let work = move || {
            slices.run(&to_trace)?;
            let Slices { account, armed, .. } = slices;
            Ok(armed.map(|armed| (account, armed.elapsed())))
        };
        let worker = thread::Builder::new().name("dioxide-trace".into()).spawn(work)?;
        let has_calls = wants_calls && !missing.iter().any(|event| CALLS.contains(event));
        Ok(Self { threads: Some(threads), last, worker: Some(worker), batches, missing, has_calls })
    }

    /// Traces these threads too.
    pub fn add(&self, tids: Vec<u32>) {
        // The error of a failed tracing thread is reported at the end.
        let _ = self.threads.as_ref().map(|threads| threads.send(tids));
    }

    /// The calls of the slices since the last time.
    pub fn batches(&self) -> Vec<Batch> {
        self.batches.try_iter().collect()
    }

    /// The file of a thread's last direct operation, and whether that was an extending write.
    pub fn last_direct(&self, tid: u32, files: &Files) -> Option<(usize, bool)> {
        let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner).get(&tid)?;
        Some((files.traced(last.file)?, last.extends))
    }

    /// Stops, and returns the evidence, scaled to the time of the observation, and the calls of the
    /// last slices.
    pub fn stop(mut self, files: &Files, watched: Duration) -> (Traced, Vec<Batch>) {
        let traced = self.evidence(files, watched);
        (traced, self.batches())
    }

    fn evidence(&mut self, files: &Files, watched: Duration) -> Traced {
        match self.join() {
            // No thread could be traced, as of a program of 32 bits.
            Ok(None) => Traced::default(),
            Ok(Some((account, covered))) => {
                let mut traced = self.traced(account, files);
                traced.unseen.extend(late(covered, watched));
                traced
            }
            Err(error) => Traced { unseen: vec![format!("tracing: {error}")], ..Traced::default() },
        }
    }

    fn join(&mut self) -> io::Result<Tracing> {
        self.threads = None;
        let worker = self.worker.take().expect("joined once");
        worker.join().expect("the tracing thread does not panic")
    }

    fn traced(&self, account: Account, files: &Files) -> Traced {
        let has = |event: &str| !self.missing.iter().any(|missing| missing.starts_with(event));
        let unseen =
            self.missing.iter().map(|event| format!("{event}: this kernel does not trace it"));
        Traced {
            unseen: unseen.collect(),
            has_calls: self.has_calls,
            direct: has("iomap/").then(|| direct(&account, files)),
            locks: has("lock/").then(|| locks(&account)),
            punts: has("io_uring/").then(|| punts(&account)),
        }
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        if self.worker.is_some() {
            // Discards its events, and removes its tracefs instance.
            let _ = self.join();
        }
    }
}

/// The state of the tracing thread.
struct Slices {
    instance: Instance,
    account: Account,
    pairs: OpenCalls,
    batches: Sender<Batch>,
    /// Whether it records now.
    is_on: bool,
    last: Arc<Mutex<HashMap<u32, Last>>>,
    length: Duration,
    /// The end of the last slice, by the clock of the trace.
    ended_ns: u64,
    /// The start of tracing threads.
    armed: Option<Instant>,
}

impl Slices {
    fn run(&mut self, threads: &Receiver<Vec<u32>>) -> io::Result<()> {
        // Without a list of threads, the kernel would trace the whole machine.
        let Ok(tids) = threads.recv() else { return Ok(()) };
        self.ended_ns = now_ns();
        self.add(&tids)?;
        let mut begun_ns = now_ns();
        let mut goes_on = true;
        while goes_on {
            if !self.is_on {
                goes_on = self.wait(PERIOD.saturating_sub(self.length), threads)?;
                self.instance.switch(true)?;
                begun_ns = now_ns();
            }
            if goes_on {
                goes_on = self.wait(self.length, threads)?;
            } else {
                // A last slice without length would show no calls since the one before.
                thread::sleep(self.length);
            }
            // A slice that fills its period is followed by the next one without a gap.
            self.is_on = goes_on && self.length == PERIOD;
            // Reading the events takes time, in which nothing or the next slice is recorded.
            let ended_ns = now_ns();
            if !self.is_on {
                self.instance.switch(false)?;
            }
            begun_ns = self.take(begun_ns, ended_ns)?;
        }
        Ok(())
    }

    /// Adds new threads, for this time. Returns whether to continue.
    fn wait(&mut self, time: Duration, threads: &Receiver<Vec<u32>>) -> io::Result<bool> {
        let end = Instant::now() + time;
        loop {
            match threads.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(tids) => self.add(&tids)?,
                Err(RecvTimeoutError::Timeout) => return Ok(true),
                Err(RecvTimeoutError::Disconnected) => return Ok(false),
            }
        }
    }

    fn add(&mut self, tids: &[u32]) -> io::Result<()> {
        self.instance.add_threads(tids)?;
        self.armed.get_or_insert_with(Instant::now);
        Ok(())
    }

    /// Adds the slice from `begun_ns` to about `ended_ns`, and returns the begin of the next one:
    /// later events may be in it.
    fn take(&mut self, begun_ns: u64, ended_ns: u64) -> io::Result<u64> {
        let mut text = Vec::new();
        let is_truncated = self.instance.drain(&mut text)?;
        let next_ns = if is_truncated { now_ns() } else { 0 };
        let Recorded { events, lost, from_ns, to_ns } =
            recorded(&text, is_truncated, (begun_ns, ended_ns));
        let ended_ns = ended_ns.max(to_ns);
        let number = events.len();
        let mut calls = Vec::new();
        if from_ns > begun_ns {
            calls = self.pairs.interrupt(begun_ns);
        }
        let length_ns = to_ns.saturating_sub(from_ns).max(1);
        let weight = ((ended_ns - self.ended_ns) as f64 / length_ns as f64).max(1.0);
        self.account.add(&events, (from_ns, to_ns), weight);
        calls.extend(self.pairs.add(&events, weight));
        if is_truncated || !self.is_on {
            calls.extend(self.pairs.interrupt(to_ns));
        }
        // Its receiver is there as long as this thread.
        let _ = self.batches.send(Batch {
            from_ns: self.ended_ns,
            to_ns: ended_ns,
            traced_ns: length_ns.min(ended_ns - self.ended_ns),
            lost_events: lost,
            calls,
        });
        self.ended_ns = ended_ns;
        self.last.lock().unwrap_or_else(PoisonError::into_inner).extend(self.account.last.drain());
        self.length = next_length(self.length, number);
        Ok(ended_ns.max(next_ns))
    }
}

/// The events of a slice, none of which is missing between `from_ns` and `to_ns`.
struct Recorded {
    events: Vec<Event>,
    lost: u64,
    from_ns: u64,
    to_ns: u64,
}

/// The events in the text of a slice. Full buffers lost the first ones, and a truncated text lacks
/// the last ones. The next text may begin with up to a page of the rest.
fn recorded(text: &[u8], is_truncated: bool, (begun_ns, ended_ns): (u64, u64)) -> Recorded {
    let whole_lines = text.iter().rposition(|byte| *byte == b'\n').unwrap_or_default();
    let Parsed { mut events, lost, whole_from_ns } = text::parse(&text[..whole_lines]);
    let from_ns = if lost > 0 { begun_ns.max(whole_from_ns) } else { begun_ns };
    events.retain(|event| event.at_ns >= from_ns);
    let last_ns = events.iter().map(|event| event.at_ns).max().unwrap_or(from_ns);
    let to_ns = if is_truncated { last_ns } else { last_ns.max(ended_ns) };
    // The number of the last ones is not known.
    Recorded { events, lost: lost.saturating_add(is_truncated.into()), from_ns, to_ns }
}

/// The remark on tracing that began late: counts lack the time before.
fn late(covered: Duration, watched: Duration) -> Option<String> {
    let is_late = covered < watched - watched / LATE_PART;
    is_late.then(|| format!("tracing: it took until {covered:.1?} before the end to begin"))
}

fn next_length(length: Duration, events: usize) -> Duration {
    let factor = SLICE_EVENTS as f64 / events.max(1) as f64;
    length.mul_f64(factor.min(SLICE_GROWTH_MAX)).clamp(SLICE_MIN, PERIOD)
}

/// The clock of the trace.
pub(super) fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn direct(account: &Account, files: &Files) -> Vec<DirectIo> {
    let mut direct: Vec<DirectIo> = Vec::new();
    for (key, counted) in &account.direct {
        let file = files.traced(key.file);
        let block = file.map_or(4096, |file| files.block_bytes(file));
        let one = DirectIo {
            file,
            count: counted.count.round() as u64,
            bytes: counted.bytes.round() as u64,
            is_write: key.is_write,
            extends: key.extends,
            begins_beyond: key.begins_beyond,
            is_durable: key.is_durable,
            is_aligned: key.alignment >= block,
        };
        let kind = |one: &DirectIo| DirectIo { count: 0, bytes: 0, ..one.clone() };
        match direct.iter_mut().find(|other| kind(other) == kind(&one)) {
            Some(other) => {
                other.count += one.count;
                other.bytes += one.bytes;
            }
            None => direct.push(one),
        }
    }
    direct.sort_by_key(|one| Reverse(one.count));
    direct
}

fn locks(account: &Account) -> Vec<LockWait> {
    let wait = |(key, waits): (&account::LockKey, &account::LockWaits)| LockWait {
        count: waits.count.round() as u64,
        wait_ns: waits.wait_ns.round() as u64,
        wait_max_ns: waits.wait_max_ns,
        kind: key.kind.clone(),
        locks: waits.locks.len() as u64,
        stack: key.stack.clone(),
    };
    let mut locks: Vec<_> = account.locks.iter().map(wait).collect();
    locks.sort_by_key(|one| Reverse(one.wait_ns));
    locks
}

fn punts(account: &Account) -> Vec<Punt> {
    let punt = |(key, count): (&account::PuntKey, &f64)| Punt {
        opcode: key.opcode.clone(),
        is_hashed: key.is_hashed,
        count: count.round() as u64,
    };
    let mut punts: Vec<_> = account.punts.iter().map(punt).collect();
    punts.sort_by_key(|one| Reverse(one.count));
    punts
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The defect: for a program of 32 bits only, the whole machine was traced.
    #[test]
    fn without_threads_nothing_is_traced() {
        let dir = tempfile::tempdir().unwrap();
        let mut slices = Slices {
            // It cannot be switched on.
            instance: Instance::in_dir(dir.path().to_owned()),
            account: Account::default(),
            pairs: OpenCalls::default(),
            batches: mpsc::channel().0,
            is_on: false,
            last: Arc::default(),
            length: SLICE_MIN,
            ended_ns: 0,
            armed: None,
        };
        let (none, threads) = mpsc::channel();
        drop(none);
        slices.run(&threads).unwrap();
        assert!(slices.armed.is_none());
    }

    /// The rest of the text counted as events of the next slice.
    #[test]
    fn a_truncated_slice_ends_at_its_last_event() {
        let line = |micros: u64| {
            format!("             fio-7       [000]     1.{micros:06}: sys_exit: NR 1 = 4096\n")
        };
        let of = |text: &str, is_truncated| {
            let Recorded { events, lost, from_ns, to_ns } =
                recorded(text.as_bytes(), is_truncated, (1_000_010_000, 1_000_090_000));
            let at: Vec<u64> = events.iter().map(|event| event.at_ns % 1_000_000 / 1000).collect();
            (at, lost, from_ns % 1_000_000 / 1000, to_ns % 1_000_000 / 1000)
        };
        let text = [5, 20, 40].map(line).concat();
        assert_eq!(of(&text, false), (vec![20, 40], 0, 10, 90));
        assert_eq!(of(&(text + &line(50)[..60]), true), (vec![20, 40], 1, 10, 40));
        let text = line(20) + "CPU:0 [LOST 12 EVENTS]\n" + &line(40);
        assert_eq!(of(&text, false), (vec![40], 12, 40, 90));
    }

    #[test]
    fn late_tracing_is_told_from_a_tenth_on() {
        let after =
            |millis: u64| late(Duration::from_millis(5000 - millis), Duration::from_secs(5));
        assert_eq!(after(499), None);
        let text = "tracing: it took until 4.4s before the end to begin";
        assert_eq!(after(600).as_deref(), Some(text));
    }
}
