//! The thread of a log that works off the path of appends. It makes the next segment ahead, removes
//! surplus segments, and truncates the log as the options say.

use crate::batch::Purpose;
use crate::error::Error;
use crate::lsn::Lsn;
use crate::storage::Segment;
use crate::writer::{State, Writer, now};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// How often the age of segments is checked at least, as a part of the age to retain.
const AGE_CHECKS: u32 = 10;
const AGE_CHECK_MIN: Duration = Duration::from_millis(100);

/// One step of the thread.
#[derive(Debug)]
enum Job {
    /// Makes a segment: one that a thread waits for, or one ahead.
    Create {
        wanted: bool,
    },
    Rest(Vec<Arc<dyn Segment>>),
    Remove(Arc<dyn Segment>),
}

/// Works until the log is closed.
pub fn run(writer: &Arc<Writer>) {
    // The segment during which the last one was made ahead.
    let mut made_during = 0;
    let mut state = writer.lock();
    while !state.pool.ends {
        if let Some(lsn) = not_retained(writer, &state) {
            let done = writer.truncate_front_now(state, lsn);
            state = writer.lock();
            match done {
                // It may have freed the segment that a thread waits for.
                Ok(true) => continue,
                Ok(false) => {}
                Err(error) => log::warn!("{error}"),
            }
        }
        match next_job(writer, &mut state, &mut made_during) {
            Some(job) => {
                drop(state);
                work(writer, job);
                state = writer.lock();
            }
            None => {
                let pool = &writer.pool;
                state = match writer.options.retain_age {
                    Some(age) => {
                        let pause = (age / AGE_CHECKS).max(AGE_CHECK_MIN);
                        let waited = pool.wait_timeout(state, pause);
                        waited.unwrap_or_else(PoisonError::into_inner).0
                    }
                    None => pool.wait(state).unwrap_or_else(PoisonError::into_inner),
                };
            }
        }
    }
}

fn next_job(writer: &Writer, state: &mut State, made_during: &mut u64) -> Option<Job> {
    let number = state.chain().back().expect("a log has a segment").header.number;
    let wanted = std::mem::take(&mut state.pool.wanted);
    let left = writer.options.left_by(Purpose::Records);
    if state.pool.free.len() <= left {
        let ahead = state.is_half_full() && *made_during != number && !writer.storage.is_fixed();
        if wanted || ahead {
            *made_during = number;
            return Some(Job::Create { wanted });
        }
    }
    if !state.pool.resting.is_empty() {
        return Some(Job::Rest(std::mem::take(&mut state.pool.resting)));
    }
    let surplus = state.pool.free.len() > writer.options.spare_segments.max(left + 1);
    if surplus && !wanted && !writer.storage.is_fixed() {
        return state.pool.free.pop_back().map(Job::Remove);
    }
    None
}

/// The LSN below which the options retain nothing, if that frees a segment.
fn not_retained(writer: &Writer, state: &State) -> Option<Lsn> {
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
        let oldest = now().saturating_sub(age.as_secs());
        let old = chain.iter().take_while(|member| member.header.begun <= oldest).count();
        // The records of a segment are older than the start of the next one.
        first_kept = first_kept.max(old.saturating_sub(1));
    }
    // Not the first LSN of its header: a truncation of the back may have gone below.
    let lsn = state.index().first_from(chain[first_kept].header.number);
    (first_kept > 0 && lsn > state.index().front()).then_some(lsn)
}

fn work(writer: &Arc<Writer>, job: Job) {
    let result = match job {
        Job::Create { wanted } => {
            let begun = Instant::now();
            let made = match writer.storage.is_fixed() {
                true => Err(Error::DeviceFull(writer.lock().chain().len())),
                false => writer.storage.create(writer.segment_bytes),
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
        Job::Rest(segments) => segments.iter().try_for_each(|segment| segment.rest()),
        Job::Remove(segment) => writer.storage.remove(segment.as_ref()),
    };
    if let Err(error) = result {
        log::warn!("{error}");
    }
}
