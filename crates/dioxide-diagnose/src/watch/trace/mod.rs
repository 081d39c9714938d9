//! Traces lock waits, direct I/O and operations handed to io_uring workers, of the watched threads
//! only. Needs root.
//!
//! The kernel records into buffers of a private tracefs instance, which a thread reads. The cost is
//! bounded: in each quarter of a second it records a slice of about a thousand events. The counts
//! of a slice stand for the whole quarter. A program with fewer events is traced all the time.

mod account;
mod instance;
pub(super) mod text;

use super::files::Files;
use crate::evidence::{DirectIo, LockWait, Punt};
use account::{Account, Last};
use instance::Instance;
use rustix::time::{ClockId, clock_gettime};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const PERIOD: Duration = Duration::from_millis(250);
const SLICE_MIN: Duration = Duration::from_millis(2);
const SLICE_FIRST: Duration = Duration::from_millis(10);
/// Target number of events per slice.
const SLICE_EVENTS: usize = 1000;
/// Limits the growth of slices, because the program may have been quiet in the last one.
const SLICE_GROWTH_MAX: f64 = 4.0;

/// Traces until it is stopped or dropped.
#[derive(Debug)]
pub struct Tracer {
    /// Takes the threads to trace. Closed to stop.
    threads: Option<Sender<Vec<u32>>>,
    last: Arc<Mutex<HashMap<u32, Last>>>,
    worker: Option<JoinHandle<io::Result<(Account, Duration)>>>,
    missing: Vec<&'static str>,
}

/// The traced evidence. All of it is absent if the kernel lacks its events.
#[derive(Debug, Default)]
pub struct Traced {
    pub direct: Option<Vec<DirectIo>>,
    pub locks: Option<Vec<LockWait>>,
    pub punts: Option<Vec<Punt>>,
    /// The reasons for unavailable evidence.
    pub unseen: Vec<String>,
}

impl Tracer {
    pub fn start() -> io::Result<Self> {
        let mut slices = Slices {
            instance: Instance::new()?,
            account: Account::default(),
            last: Arc::default(),
            length: SLICE_FIRST,
            ended_ns: now_ns(),
            armed: None,
        };
        let (missing, last) = (slices.instance.missing.clone(), slices.last.clone());
        let (threads, to_trace) = mpsc::channel();
        let work = move || {
            slices.run(&to_trace)?;
            let covered = slices.armed.map_or(Duration::ZERO, |armed| armed.elapsed());
            Ok((slices.account, covered))
        };
        let worker = thread::Builder::new().name("dioxide-trace".into()).spawn(work)?;
        Ok(Self { threads: Some(threads), last, worker: Some(worker), missing })
    }

    /// Traces these threads too.
    pub fn add(&self, tids: Vec<u32>) {
        // The error of a failed tracing thread is reported at the end.
        let _ = self.threads.as_ref().map(|threads| threads.send(tids));
    }

    /// The file of a thread's last direct operation, and whether that was an extending write.
    pub fn last_direct(&self, tid: u32, files: &Files) -> Option<(usize, bool)> {
        let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner).get(&tid)?;
        Some((files.traced(last.file)?, last.extends))
    }

    /// Stops, and returns the evidence, scaled to the time of the observation.
    pub fn stop(mut self, files: &Files, watched: Duration) -> Traced {
        match self.join() {
            Ok((account, covered)) => {
                let mut traced = self.traced(account, files);
                if covered < watched / 2 {
                    traced.unseen.push(format!(
                        "tracing: it took until {covered:.1?} before the end to begin"
                    ));
                }
                traced
            }
            Err(error) => Traced { unseen: vec![format!("tracing: {error}")], ..Traced::default() },
        }
    }

    /// The counts, and the time of tracing.
    fn join(&mut self) -> io::Result<(Account, Duration)> {
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
    last: Arc<Mutex<HashMap<u32, Last>>>,
    length: Duration,
    /// The end of the last slice, by the clock of the trace.
    ended_ns: u64,
    /// The start of tracing threads.
    armed: Option<Instant>,
}

impl Slices {
    fn run(&mut self, threads: &Receiver<Vec<u32>>) -> io::Result<()> {
        let mut goes_on = true;
        while goes_on {
            goes_on = self.wait(PERIOD.saturating_sub(self.length), threads)?;
            self.instance.switch(true)?;
            let begun_ns = now_ns();
            goes_on &= self.wait(self.length, threads)?;
            self.instance.switch(false)?;
            self.take(begun_ns)?;
        }
        Ok(())
    }

    /// Adds new threads, for this time. Returns whether to continue.
    fn wait(&mut self, time: Duration, threads: &Receiver<Vec<u32>>) -> io::Result<bool> {
        let end = Instant::now() + time;
        loop {
            match threads.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(tids) => {
                    self.instance.add_threads(&tids)?;
                    self.armed.get_or_insert_with(Instant::now);
                }
                Err(RecvTimeoutError::Timeout) => return Ok(true),
                Err(RecvTimeoutError::Disconnected) => return Ok(false),
            }
        }
    }

    /// Adds the slice from `begun_ns` until now.
    fn take(&mut self, mut begun_ns: u64) -> io::Result<()> {
        let ended_ns = now_ns();
        let mut text = Vec::new();
        self.instance.drain(&mut text)?;
        let events = text::parse(&text);
        // The buffer was too small and lost its oldest events, so the slice was shorter.
        let is_cut = text.windows(6).any(|window| window == b"[LOST ");
        if let (true, Some(first)) = (is_cut, events.first()) {
            begun_ns = begun_ns.max(first.at_ns);
        }
        let length_ns = ended_ns.saturating_sub(begun_ns).max(1);
        let weight = (ended_ns - self.ended_ns) as f64 / length_ns as f64;
        self.account.add(&events, (begun_ns, ended_ns), weight.max(1.0));
        self.ended_ns = ended_ns;
        self.last.lock().unwrap_or_else(PoisonError::into_inner).extend(self.account.last.drain());
        self.length = next_length(self.length, events.len());
        Ok(())
    }
}

fn next_length(length: Duration, events: usize) -> Duration {
    let factor = SLICE_EVENTS as f64 / events.max(1) as f64;
    length.mul_f64(factor.min(SLICE_GROWTH_MAX)).clamp(SLICE_MIN, PERIOD)
}

fn now_ns() -> u64 {
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
    let wait = |(key, waits): (&account::LockKey, &account::Waits)| LockWait {
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
