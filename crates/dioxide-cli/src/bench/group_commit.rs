//! A group commit on a file in the page cache, as good logs have it: the rival of `dioxide` for
//! records of any length. Shared by all threads.
//!
//! Records are copied, under a mutex, into the buffer of the group that gathers. The first record
//! of a group leads it. When the previous group is done, the leader takes the buffer and leaves the
//! other one to the next group. It makes one write and one flush for all, while the next group
//! gathers. The followers sleep on one futex and are woken by one call, with no lock to take
//! afterwards. Records need no allocation.
//!
//! Threads that were answered together return together. A leader that flushed before they return
//! would split them into two alternating halves. It therefore yields to them a few times first.
//! Without a flush that would take longer than writing twice.

use super::backing::{Ahead, Backing};
use dioxide::Durability;
use rustix::thread::futex;
use std::io::{Error, Result};
use std::mem::{swap, take};
use std::sync::atomic::{AtomicU32, Ordering::*};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::yield_now;

/// How often a leader that is going to flush yields to the threads of the last group.
const GIVE_WAY_MAX: u32 = 16;

/// A group commit on one file.
pub struct GroupCommit<F> {
    file: F,
    durability: Durability,
    gathering: Mutex<Group>,
    /// Held by the leader that writes. The next leader waits for it.
    writing: Mutex<Writing>,
    /// The last answered groups with even and with odd numbers. The followers of a group sleep on
    /// one of them, those of the next group on the other.
    answered: [Answered; 2],
    /// The first group that failed; all later ones fail too.
    failed: AtomicU32,
}

/// The group that gathers.
struct Group {
    /// Counted from 1.
    number: u32,
    /// Its offset in the file.
    start: u64,
    bytes: Vec<u8>,
    members: u32,
}

/// The state of the writing leader.
struct Writing {
    bytes: Vec<u8>,
    space: Ahead,
    /// The expected size of a group: the threads answered now, and those that wait already.
    expected: u32,
}

/// On its own cache line.
#[derive(Default)]
#[repr(align(128))]
struct Answered(AtomicU32);

const NEVER: u32 = u32::MAX;

impl<F: Backing> GroupCommit<F> {
    /// For a file with this space, and no record.
    pub fn new(file: F, durability: Durability, space: Ahead) -> Self {
        Self {
            file,
            durability,
            gathering: Mutex::new(Group { number: 1, start: 0, bytes: Vec::new(), members: 0 }),
            writing: Mutex::new(Writing { bytes: Vec::new(), space, expected: 0 }),
            answered: Default::default(),
            failed: AtomicU32::new(NEVER),
        }
    }

    /// Returns the offset of the record when it is written, and stable if it is to be durable.
    /// After a failure all appends fail.
    pub fn append(&self, record: &[u8]) -> Result<u64> {
        let mut group = self.gathering();
        let (number, offset) = (group.number, group.start + group.bytes.len() as u64);
        group.bytes.extend_from_slice(record);
        group.members += 1;
        let leads = group.members == 1;
        drop(group);
        if leads {
            self.lead()?;
        } else {
            self.follow(number);
        }
        if number >= self.failed.load(Relaxed) {
            return Err(Error::other("a group was not written, or not flushed"));
        }
        Ok(offset)
    }

    fn gathering(&self) -> MutexGuard<'_, Group> {
        self.gathering.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lead(&self) -> Result<()> {
        let mut writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        if self.durability == Durability::EveryWrite {
            self.give_way_to(writing.expected);
        }
        let mut group = self.gathering();
        let (number, start, members) = (group.number, group.start, take(&mut group.members));
        swap(&mut group.bytes, &mut writing.bytes);
        group.number += 1;
        group.start += writing.bytes.len() as u64;
        drop(group);
        let outcome = self.write(&mut writing, start);
        if outcome.is_err() {
            self.failed.fetch_min(number, Relaxed);
        }
        writing.bytes.clear();
        writing.expected = members + self.gathering().members;
        let answered = &self.answered[number as usize % 2].0;
        answered.store(number, Release);
        drop(writing);
        if members > 1 {
            // Fails only for unmapped memory.
            let _ = futex::wake(answered, futex::Flags::PRIVATE, i32::MAX as u32);
        }
        outcome
    }

    fn give_way_to(&self, expected: u32) {
        for _ in 0..GIVE_WAY_MAX {
            if self.gathering().members >= expected {
                return;
            }
            yield_now();
        }
    }

    fn write(&self, writing: &mut Writing, start: u64) -> Result<()> {
        if self.failed.load(Relaxed) != NEVER {
            return Err(Error::other("an earlier group was not written, or not flushed"));
        }
        writing.space.make_room(&self.file, start + writing.bytes.len() as u64);
        self.file.pwrite(&writing.bytes, start)?;
        match self.durability {
            Durability::EveryWrite => self.file.fdatasync(),
            Durability::OnSync => Ok(()),
        }
    }

    fn follow(&self, number: u32) {
        let answered = &self.answered[number as usize % 2].0;
        loop {
            let last = answered.load(Acquire);
            if last >= number {
                return;
            }
            // Returns at once if another group was answered since. May wake up spuriously.
            let _ = futex::wait(answered, futex::Flags::PRIVATE, last, None);
        }
    }

    /// Truncates the preallocated space, and makes everything stable.
    pub fn finish(self) -> Result<()> {
        let end = self.gathering().start;
        self.file.truncate(end)?;
        self.file.fdatasync()
    }
}

#[cfg(test)]
mod tests {
    use super::super::backing::notes::Notes;
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::sync::{Arc, Weak};
    use std::thread::scope;
    use std::time::{Duration, Instant};

    const THREADS: usize = 16;
    const RECORDS: usize = 50;
    /// None yet, and more than any test writes.
    const SPACE: Ahead = Ahead::within(u64::MAX, 0);

    /// Appends records of many lengths in many threads. `check` gets each one when it is answered.
    fn crowd(log: &GroupCommit<&Notes>, check: impl Fn(&[u8], u64) + Sync) -> u64 {
        let work = |thread: usize| {
            let records = (0..RECORDS)
                .map(move |nth| vec![(thread * RECORDS + nth) as u8; 1 + (thread * 7 + nth) % 90]);
            let append = |record: Vec<u8>| {
                check(&record, log.append(&record).unwrap());
                record.len() as u64
            };
            records.map(append).sum::<u64>()
        };
        scope(|scope| {
            let threads: Vec<_> =
                (0..THREADS).map(|thread| scope.spawn(move || work(thread))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        })
    }

    #[test]
    fn no_write_is_answered_before_the_flush_that_covers_it() {
        let file = Notes::slow(Duration::from_millis(1), None);
        let log = GroupCommit::new(&file, Durability::EveryWrite, SPACE);
        let bytes = crowd(&log, |record, offset| assert!(file.has(record, offset)));
        let state = file.state();
        assert_eq!(state.flushes, state.writes.len(), "one write and one flush for each group");
        let ends = state.writes.iter().map(|(offset, len)| offset + *len as u64);
        let starts = state.writes.iter().skip(1).map(|(offset, _)| *offset).chain([bytes]);
        assert!(ends.eq(starts), "without a gap");
        assert!(state.size > bytes, "space is allocated ahead");
        log.finish().unwrap();
        assert_eq!((file.state().stable.len() as u64, file.state().size), (bytes, bytes));
    }

    /// A file whose flush waits until all other threads that still append are in the next group.
    struct Crowded {
        notes: Notes,
        log: Weak<GroupCommit<Crowded>>,
        appending: AtomicUsize,
        /// Members of the group that is written.
        members: AtomicUsize,
    }

    const LEN: usize = 10;

    impl Backing for Crowded {
        fn pwrite(&self, bytes: &[u8], offset: u64) -> Result<()> {
            self.members.store(bytes.len() / LEN, Relaxed);
            (&self.notes).pwrite(bytes, offset)
        }

        fn fdatasync(&self) -> Result<()> {
            let log = self.log.upgrade().expect("its thread has it");
            let (members, begun) = (self.members.load(Relaxed), Instant::now());
            while members + log.gathering().bytes.len() / LEN < self.appending.load(Relaxed) {
                if begun.elapsed() > Duration::from_secs(60) {
                    return Err(Error::other("the other threads are in no group"));
                }
                yield_now();
            }
            (&self.notes).fdatasync()
        }

        fn allocate(&self, from: u64, end: u64) -> Result<()> {
            (&self.notes).allocate(from, end)
        }

        fn truncate(&self, end: u64) -> Result<()> {
            (&self.notes).truncate(end)
        }
    }

    /// Each thread is in one of two consecutive groups.
    #[test]
    fn threads_that_wait_for_a_flush_share_the_next_one() {
        let log = Arc::new_cyclic(|log| {
            let appending = AtomicUsize::new(THREADS);
            let (notes, log) = (Notes::default(), log.clone());
            let file = Crowded { notes, log, appending, members: AtomicUsize::new(0) };
            GroupCommit::new(file, Durability::EveryWrite, SPACE)
        });
        let work = || {
            for _ in 0..RECORDS {
                log.append(&[7; LEN]).unwrap();
            }
            log.file.appending.fetch_sub(1, Relaxed);
        };
        scope(|scope| (0..THREADS).for_each(|_| _ = scope.spawn(work)));
        let state = log.file.notes.state();
        assert_eq!(state.stable.len(), THREADS * RECORDS * LEN);
        assert!(state.flushes <= 2 * RECORDS + 1, "{} groups", state.flushes);
    }

    #[test]
    fn without_durability_there_is_no_flush() {
        let file = Notes::default();
        let log = GroupCommit::new(&file, Durability::OnSync, SPACE);
        crowd(&log, |record, offset| {
            assert!(file.state().bytes[offset as usize..].starts_with(record));
        });
        assert_eq!(file.state().flushes, 0);
        log.finish().unwrap();
        assert_eq!(file.state().flushes, 1);
    }

    #[test]
    fn a_flush_that_fails_is_no_success_of_any_waiter() {
        let file = Notes::slow(Duration::from_millis(1), Some(3));
        let log = GroupCommit::new(&file, Durability::EveryWrite, SPACE);
        let work = || {
            let answers: Vec<_> = (0..RECORDS).map(|_| log.append(&[7; 10])).collect();
            let good = answers.iter().take_while(|answer| answer.is_ok()).count();
            assert!(answers[good..].iter().all(Result::is_err), "all after it fail");
            for offset in answers.into_iter().flatten() {
                assert!(file.has(&[7; 10], offset));
            }
            good
        };
        let good: usize = scope(|scope| {
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        let state = file.state();
        assert_eq!(
            (state.flushes, good * 10),
            (3, state.stable.iter().filter(|byte| **byte == 7).count())
        );
    }
}
