//! A group commit for logs that take one writer: the records that wait are appended together. The
//! first thread that waits appends for all.

use anyhow::{Result, anyhow, ensure};
use std::sync::{Condvar, Mutex, PoisonError};

/// A log with one writer.
pub trait Exclusive: Send {
    /// Appends records; they are durable on return.
    fn append(&mut self, records: &[Vec<u8>]) -> Result<()>;
}

/// Such a log, shared by threads.
pub struct Gather<L> {
    log: Mutex<L>,
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    waiting: Vec<Vec<u8>>,
    /// The number of the group that gathers now, and of the groups that are durable.
    gathering: u64,
    durable: u64,
    is_appending: bool,
    has_failed: bool,
}

impl<L: Exclusive> Gather<L> {
    pub fn new(log: L) -> Self {
        Self { log: Mutex::new(log), state: Mutex::default(), ended: Condvar::new() }
    }

    pub fn append(&self, record: &[u8]) -> Result<()> {
        let record = record.to_vec();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.waiting.push(record);
        let own = state.gathering;
        while state.durable <= own {
            ensure!(!state.has_failed, "an earlier append failed");
            if state.is_appending {
                state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let group = std::mem::take(&mut state.waiting);
            state.gathering += 1;
            state.is_appending = true;
            drop(state);
            let outcome = self.append_all(&group);
            state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.is_appending = false;
            match outcome {
                Ok(()) => state.durable += 1,
                Err(_) => state.has_failed = true,
            }
            self.ended.notify_all();
            outcome?;
        }
        Ok(())
    }

    pub fn append_all(&self, records: &[Vec<u8>]) -> Result<()> {
        self.log.lock().map_err(|_| anyhow!("a writer panicked"))?.append(records)
    }

    pub fn into_inner(self) -> L {
        self.log.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    /// Takes this many records.
    struct Memory {
        records: Vec<Vec<u8>>,
        capacity: usize,
    }

    impl Exclusive for Memory {
        fn append(&mut self, records: &[Vec<u8>]) -> Result<()> {
            ensure!(self.records.len() + records.len() <= self.capacity, "full");
            self.records.extend_from_slice(records);
            Ok(())
        }
    }

    fn four_threads_append(capacity: usize) -> (usize, Memory) {
        let log = Gather::new(Memory { records: Vec::new(), capacity });
        let append = |lane: u8| (0..100).filter(|&nth| log.append(&[lane, nth]).is_ok()).count();
        let append = &append;
        let appended = thread::scope(|scope| {
            let lanes: Vec<_> = (0..4).map(|lane| scope.spawn(move || append(lane))).collect();
            lanes.into_iter().map(|lane| lane.join().unwrap()).sum()
        });
        (appended, log.into_inner())
    }

    #[test]
    fn each_record_is_appended_once_in_the_order_of_its_thread() {
        let (appended, log) = four_threads_append(400);
        assert_eq!((appended, log.records.len()), (400, 400));
        for lane in 0..4 {
            let own = log.records.iter().filter(|record| record[0] == lane);
            assert!(own.map(|record| record[1]).eq(0..100), "lane {lane}");
        }
    }

    #[test]
    fn after_a_failure_no_record_is_acknowledged() {
        let (appended, log) = four_threads_append(10);
        assert_eq!(appended, log.records.len());
        assert!(log.records.len() <= 10);
    }
}
