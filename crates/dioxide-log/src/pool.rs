//! The thread that works off the path of appends, for one log or for all logs of a set. It makes
//! the next segment of a log ahead, removes surplus segments, and truncates a log as the options
//! say.
//!
//! A log rings when it may have work. The thread goes from log to log in the order in which they
//! rang, and does one job for each. So a log waits for no more than one job of each other.

use crate::batch::Purpose;
use crate::error::{Error, Result};
use crate::locked::locked;
use crate::lsn::Lsn;
use crate::storage::Segment;
use crate::threads;
use crate::writer::{Writer, WriterState, now};
use dioxide::Owner;
use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::AcqRel, Ordering::Release};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often the age of segments is checked at least, as a part of the age to retain.
const AGE_CHECKS: u32 = 10;
const AGE_CHECK_MIN: Duration = Duration::from_millis(100);

/// The thread, as the logs that share it see it. Dropping the last reference ends the thread.
#[derive(Debug)]
pub struct PoolThread {
    queue: Arc<Queue>,
    /// None once it is joined.
    thread: Option<JoinHandle<()>>,
    /// The process of the thread.
    owner: Owner,
}

/// What the thread and the logs share.
#[derive(Debug, Default)]
struct Queue {
    state: Mutex<QueueState>,
    /// A log rang, or the thread ends.
    work: Condvar,
    /// The thread has done a job.
    done: Condvar,
}

#[derive(Debug, Default)]
struct QueueState {
    logs: BTreeMap<u64, Arc<Writer>>,
    /// The number of the next log.
    next: u64,
    /// The logs that rang, each once.
    rung: VecDeque<u64>,
    /// The log that the thread works for.
    working: Option<u64>,
    ends: bool,
}

/// Where a log rings.
#[derive(Debug)]
pub struct Bell {
    queue: Arc<Queue>,
    number: u64,
    /// It rang, and the thread did not yet look.
    rung: AtomicBool,
}

impl Bell {
    /// Lets the thread look for work of the log.
    pub fn ring(&self) {
        if !self.rung.swap(true, AcqRel) {
            self.queue.lock().rung.push_back(self.number);
            self.queue.work.notify_one();
        }
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        locked(&self.state)
    }
}

impl PoolThread {
    /// Starts the thread. `path` is that of the log or set, for messages. Segments are checked for
    /// this age.
    pub fn start(path: &Path, retain_age: Option<Duration>) -> Result<Self> {
        let queue = Arc::<Queue>::default();
        let run = {
            let queue = queue.clone();
            move || run(&queue, retain_age)
        };
        let thread = Some(threads::spawn("dioxide-log-pool", path, run)?);
        Ok(Self { queue, thread, owner: Owner::current() })
    }

    /// A bell for a log that [joins](Self::join) next.
    pub fn bell(&self) -> Bell {
        let mut state = self.queue.lock();
        let number = state.next;
        state.next += 1;
        Bell { queue: self.queue.clone(), number, rung: AtomicBool::new(false) }
    }

    /// Works for a log from now on.
    pub fn join(&self, writer: &Arc<Writer>) {
        self.queue.lock().logs.insert(writer.bell.number, writer.clone());
        writer.bell.ring();
    }

    /// Works no more for a log. No job of it is running on return.
    pub fn leave(&self, writer: &Writer) {
        let number = writer.bell.number;
        let mut state = self.queue.lock();
        state.logs.remove(&number);
        while state.working == Some(number) {
            state = self.queue.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for PoolThread {
    fn drop(&mut self) {
        if !self.owner.is_current() {
            // The thread is that of the parent. A thread of this process may have got its number.
            mem::forget(self.thread.take());
            return;
        }
        self.queue.lock().ends = true;
        self.queue.work.notify_one();
        if let Some(thread) = self.thread.take() {
            // It has no result.
            let _ = thread.join();
        }
    }
}

fn run(queue: &Queue, retain_age: Option<Duration>) {
    let pause = retain_age.map(|age| (age / AGE_CHECKS).max(AGE_CHECK_MIN));
    let mut checked = Instant::now();
    let mut state = queue.lock();
    while !state.ends {
        if let Some(pause) = pause
            && checked.elapsed() >= pause
        {
            checked = Instant::now();
            let logs: Vec<_> = state.logs.values().cloned().collect();
            drop(state);
            logs.iter().for_each(|writer| writer.bell.ring());
            state = queue.lock();
            continue;
        }
        let Some(number) = state.rung.pop_front() else {
            state = match pause {
                Some(pause) => {
                    let left = pause.saturating_sub(checked.elapsed());
                    let waited = queue.work.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => queue.work.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
            continue;
        };
        let Some(writer) = state.logs.get(&number).cloned() else { continue };
        state.working = Some(number);
        drop(state);
        // Before the look: what comes later rings again.
        writer.bell.rung.store(false, Release);
        if work_once(&writer) {
            writer.bell.ring();
        }
        drop(writer);
        state = queue.lock();
        state.working = None;
        queue.done.notify_all();
    }
}

/// One step of the thread for a log.
#[derive(Debug)]
enum Job {
    /// Makes a segment: one that a thread waits for, or one ahead.
    Create {
        wanted: bool,
    },
    Rest(Arc<dyn Segment>),
    Remove(Arc<dyn Segment>),
}

/// Does one job. False if there is none.
fn work_once(writer: &Arc<Writer>) -> bool {
    let mut state = writer.lock();
    if let Some(lsn) = not_retained(writer, &state) {
        match writer.truncate_front_now(state, lsn) {
            // It may have freed the segment that a thread waits for.
            Ok(true) => return true,
            Ok(false) => {}
            Err(error) => log::warn!("{error}"),
        }
        state = writer.lock();
    }
    let Some(job) = next_job(writer, &mut state) else { return false };
    drop(state);
    work(writer, job);
    true
}

fn next_job(writer: &Writer, state: &mut WriterState) -> Option<Job> {
    let number = state.chain().back().expect("a log has a segment").header.number;
    let wanted = std::mem::take(&mut state.pool.wanted);
    let left = writer.options.left_by(Purpose::Records);
    let is_fixed = writer.storage.fixed_count().is_some();
    if state.pool.free.len() <= left {
        let is_new = state.pool.made_during != number;
        let ahead = state.is_half_full() && is_new && !is_fixed;
        if wanted || ahead {
            state.pool.made_during = number;
            return Some(Job::Create { wanted });
        }
    }
    if let Some(segment) = state.pool.resting.pop() {
        state.pool.rests = Some(segment.clone());
        return Some(Job::Rest(segment));
    }
    // A thread that waits may not have come to the segment that was made for it. A flush may not
    // have come to the one that it is to flush, which others have freed.
    let is_unused =
        |segment: &Arc<dyn Segment>| state.pool.waiting == 0 && !state.is_flushing(segment);
    let has_surplus = state.has_surplus(&writer.options) && !is_fixed;
    if has_surplus && state.pool.free.back().is_some_and(is_unused) {
        return state.pool.free.pop_back().map(Job::Remove);
    }
    None
}

/// The LSN below which the options retain nothing, if that frees a segment.
fn not_retained(writer: &Writer, state: &WriterState) -> Option<Lsn> {
    if state.has_ended() {
        return None;
    }
    let chain = state.chain();
    let mut first_kept = 0;
    if let Some(bytes) = writer.options.retain_bytes {
        let count = (bytes / writer.segment_bytes).max(1) as usize;
        first_kept = chain.len().saturating_sub(count);
    }
    if let Some(age) = writer.options.retain_age {
        // Both times are whole seconds.
        let age_of = |begun| Duration::from_secs(now().saturating_sub(begun).saturating_sub(1));
        let old = chain.iter().take_while(|member| age_of(member.header.begun) >= age).count();
        // The records of a segment are older than the start of the next one.
        first_kept = first_kept.max(old.saturating_sub(1));
    }
    // Not the first LSN of its header: a truncation of the back may have gone below.
    let lsn = state.index().first_from(chain[first_kept].header.number);
    // The index has records that such a truncation is removing. The next record has this number.
    let lsn = lsn.min(state.back());
    (first_kept > 0 && lsn > state.index().front()).then_some(lsn)
}

fn work(writer: &Arc<Writer>, job: Job) {
    let result = match job {
        Job::Create { wanted } => {
            let begun = Instant::now();
            let made = match writer.storage.fixed_count() {
                Some(_) => Err(Error::DeviceFull(writer.lock().chain().len())),
                None => writer.storage.create(writer.segment_bytes),
            };
            let mut state = writer.lock();
            state.pool.attempts += u64::from(wanted);
            match made {
                Ok(segment) => {
                    state.pool.free.push_back(segment);
                    state.pool.error = None;
                    writer.counters().on_created(begun.elapsed());
                }
                Err(error) => state.pool.error = Some(error),
            }
            drop(state);
            writer.on_segment();
            Ok(())
        }
        Job::Rest(segment) => {
            let rested = segment.rest();
            writer.lock().pool.rests = None;
            writer.on_segment();
            rested
        }
        Job::Remove(segment) => writer.storage.remove(segment.as_ref()),
    };
    if let Err(error) = result {
        log::warn!("{error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::LogOptions;
    use crate::recover::recover;
    use crate::storage::Storage;
    use crate::storage::memory::Memory;

    /// Retention computed a front from records that were being removed. The next record got its
    /// number, and not that of the first one that was removed.
    #[test]
    fn retention_amid_a_truncation_of_the_back_goes_no_further() {
        const SEGMENT_BYTES: u64 = 64 << 10;
        let disk = Memory::default();
        let options = LogOptions::new().segment_bytes(SEGMENT_BYTES).retain_bytes(SEGMENT_BYTES);
        options.open_storage(Arc::new(disk.clone())).unwrap().close().unwrap();
        for _ in 0..4 {
            disk.create(SEGMENT_BYTES).unwrap();
        }
        // The thread does not work for this log.
        let pool = PoolThread::start(disk.path(), None).unwrap();
        let recovered = recover(&disk).unwrap().expect("a log");
        let writer = Writer::new(Arc::new(disk.clone()), options, recovered, pool.bell()).unwrap();
        let writer = Arc::new(writer);
        for _ in 0..9 {
            let (state, pushed) = writer.push(&[&[1; 20_000]], Purpose::Records).unwrap();
            writer.finish(state, &pushed.ticket).unwrap();
        }
        let front_after_all_jobs = || {
            while work_once(&writer) {}
            writer.lock().index().front()
        };
        assert!(writer.lock().chain().len() > 2);
        writer.lock().set_back(Lsn(2));
        assert_eq!(front_after_all_jobs(), Lsn(2));
        writer.lock().set_back(Lsn(u64::MAX));
        assert!(front_after_all_jobs() > Lsn(2));
    }
}
