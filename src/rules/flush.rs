//! Flush tickets: which flush makes which writes stable. Values only; the engine owns them under
//! its lock.
//!
//! A flush covers only the writes that finished before it was submitted. A flush in flight may have
//! passed the device by the time a later write finishes. So the ticket of a finished write is the
//! number of the next flush to *begin*. The write is stable when that flush has succeeded. One
//! flush per file is in flight; writes that finish meanwhile share the next.

use std::collections::BTreeSet;

/// The number of a flush of one file, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Generation(u64);

/// The flushes of one file.
#[derive(Debug, Default)]
pub struct Flushes {
    begun: u64,
    succeeded: u64,
    running: bool,
    failed: bool,
}

impl Flushes {
    /// Returns the number of the flush that will cover everything finished by now.
    pub fn ticket(&self) -> Generation {
        Generation(self.begun + 1)
    }

    /// Returns whether everything with this ticket is stable.
    pub fn covers(&self, ticket: Generation) -> bool {
        ticket.0 <= self.succeeded
    }

    /// Returns whether a flush is in flight.
    pub fn running(&self) -> bool {
        self.running
    }

    /// Records the submission of a flush.
    pub fn begin(&mut self) -> Generation {
        assert!(!self.running, "one flush at a time");
        self.running = true;
        self.begun += 1;
        Generation(self.begun)
    }

    /// Records the end of the flush in flight. After a failed one nothing more is covered: its data
    /// may be lost, whatever the kernel returns for later ones.
    pub fn end(&mut self, generation: Generation, succeeded: bool) {
        assert!(self.running && generation.0 == self.begun);
        self.running = false;
        self.failed |= !succeeded;
        if !self.failed {
            self.succeeded = generation.0;
        }
    }
}

/// How a durable write becomes stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncMethod {
    /// RWF_DSYNC on its own request.
    Dsync,
    /// A plain request, then a flush that others may share.
    SharedFlush,
}

/// The inputs of the choice between the two.
#[derive(Clone, Copy, Debug)]
pub struct FlushContext {
    /// Each write is durable when it returns, whatever its flags, and so is the data below. A flush
    /// would be superfluous.
    pub writes_through: bool,
    /// RWF_DSYNC costs a block device two flushes, since the write path syncs twice. A write and
    /// one flush is cheaper even for a lone writer.
    pub is_device: bool,
    /// Other requests, or a flush, of this file are in flight.
    pub others_in_flight: bool,
    /// Data below is written but not stable, so that this write alone would not suffice.
    pub unstable_below: bool,
    /// The write allocates space. A plain write without space fails and can be retried. With
    /// RWF_DSYNC the kernel does not report whether the flush failed.
    pub allocates: bool,
}

/// Chooses the method of a durable write. A lone writer saves a call by RWF_DSYNC, and on a device
/// with FUA the flush. Concurrent writers share one flush after plain requests. N requests with
/// RWF_DSYNC would be N flushes and, into unwritten space, N journal commits.
pub fn sync_method(company: FlushContext) -> SyncMethod {
    let FlushContext { writes_through, is_device, others_in_flight, unstable_below, allocates } =
        company;
    let shares = is_device || others_in_flight || unstable_below || allocates;
    if shares && !writes_through { SyncMethod::SharedFlush } else { SyncMethod::Dsync }
}

/// The flushes in flight on one file system or device, of all files of the process.
///
/// After a failed flush, the device may have dropped writes of *other* files as well, and the
/// kernel may report success to those. So a success counts only when no concurrent flush is still
/// in flight: that one might have failed first.
#[derive(Debug, Default)]
pub struct Ledger {
    next: u64,
    running: BTreeSet<u64>,
}

impl Ledger {
    /// Records the submission of a flush, and returns its number.
    pub fn begin(&mut self) -> u64 {
        self.next += 1;
        self.running.insert(self.next);
        self.next
    }

    /// Records the end of a flush, with any result. Returns the number up to which flushes ran
    /// beside it.
    pub fn end(&mut self, flush: u64) -> u64 {
        self.running.remove(&flush);
        self.next
    }

    /// Returns whether a flush up to `last` is still in flight.
    pub fn any_out_up_to(&self, last: u64) -> bool {
        self.running.first().is_some_and(|&oldest| oldest <= last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_running_flush_does_not_cover_a_later_write() {
        let mut flushes = Flushes::default();
        let early = flushes.ticket();
        let first = flushes.begin();
        let late = flushes.ticket();
        flushes.end(first, true);
        assert!(flushes.covers(early));
        assert!(!flushes.covers(late));
        let second = flushes.begin();
        flushes.end(second, true);
        assert!(flushes.covers(late));
    }

    #[test]
    fn a_failed_flush_covers_nothing() {
        let mut flushes = Flushes::default();
        let ticket = flushes.ticket();
        let first = flushes.begin();
        flushes.end(first, false);
        assert!(!flushes.covers(ticket));
    }

    #[test]
    fn a_success_after_a_failed_flush_covers_nothing() {
        let mut flushes = Flushes::default();
        let ticket = flushes.ticket();
        for succeeded in [false, true] {
            let flush = flushes.begin();
            flushes.end(flush, succeeded);
        }
        assert!(!flushes.covers(ticket));
    }

    #[test]
    fn a_success_waits_for_the_flushes_beside_it() {
        let mut ledger = Ledger::default();
        let slow = ledger.begin();
        let quick = ledger.begin();
        let beside = ledger.end(quick);
        assert!(ledger.any_out_up_to(beside));
        let later = ledger.begin();
        ledger.end(slow);
        assert!(!ledger.any_out_up_to(beside), "a flush begun afterwards is no concern");
        ledger.end(later);
    }

    #[test]
    fn only_a_lone_writer_on_a_file_uses_dsync() {
        let alone = FlushContext {
            writes_through: false,
            is_device: false,
            others_in_flight: false,
            unstable_below: false,
            allocates: false,
        };
        assert_eq!(sync_method(alone), SyncMethod::Dsync);
        assert_eq!(sync_method(FlushContext { is_device: true, ..alone }), SyncMethod::SharedFlush);
        assert_eq!(
            sync_method(FlushContext { others_in_flight: true, ..alone }),
            SyncMethod::SharedFlush
        );
        assert_eq!(
            sync_method(FlushContext { unstable_below: true, ..alone }),
            SyncMethod::SharedFlush
        );
        assert_eq!(sync_method(FlushContext { allocates: true, ..alone }), SyncMethod::SharedFlush);
    }

    #[test]
    fn where_each_write_is_durable_by_itself_none_waits_for_a_flush() {
        let beside = FlushContext {
            writes_through: true,
            is_device: false,
            others_in_flight: true,
            unstable_below: true,
            allocates: true,
        };
        assert_eq!(sync_method(beside), SyncMethod::Dsync);
    }

    /// The history of one file's flushes: for each write its ticket, when it finished, and whether
    /// it is stable.
    #[derive(Default)]
    struct History {
        flushes: Flushes,
        now: u64,
        writes: Vec<(Generation, u64, bool)>,
        running: Option<(Generation, u64)>,
        failed: bool,
    }

    impl History {
        /// Applies the next event: a write finishes, or a flush begins, or succeeds, or fails.
        /// Returns false if it cannot happen.
        fn happens(&mut self, what: u32) -> bool {
            self.now += 1;
            match (what, self.running) {
                (0, _) => self.writes.push((self.flushes.ticket(), self.now, false)),
                (1, None) => self.running = Some((self.flushes.begin(), self.now)),
                (2 | 3, Some((generation, begun))) => {
                    self.flushes.end(generation, what == 2);
                    self.running = None;
                    self.failed |= what == 3;
                    let covered =
                        self.writes.iter_mut().filter(|(_, finished, _)| *finished < begun);
                    covered.for_each(|(_, _, stable)| *stable |= !self.failed);
                }
                _ => return false,
            }
            true
        }
    }

    /// Every history of up to nine events. A write is stable once a flush that began after it has
    /// succeeded, unless one failed before that.
    #[test]
    fn a_ticket_is_covered_when_its_write_is_stable() {
        for number in 0..4u32.pow(9) {
            let mut history = History::default();
            for n in 0..9 {
                if !history.happens(number >> (2 * n) & 3) {
                    break;
                }
                for &(ticket, _, stable) in &history.writes {
                    assert_eq!(
                        history.flushes.covers(ticket),
                        stable,
                        "{number:#x}, {n}: {ticket:?}"
                    );
                }
            }
        }
    }

    /// Every history of seven flushes that begin or end. An ended one waits for those that began
    /// before its end.
    #[test]
    fn a_flush_is_believed_when_none_that_ran_beside_it_is_out() {
        let mut histories: Vec<Vec<Option<usize>>> = vec![vec![]];
        while let Some(history) = histories.pop() {
            let mut ledger = Ledger::default();
            let (mut running, mut ended) = (Vec::new(), Vec::new());
            for event in &history {
                match event {
                    None => running.push(ledger.begin()),
                    Some(which) => {
                        let flush = running.remove(*which);
                        ended.push((ledger.end(flush), running.clone()));
                    }
                }
                for (beside, others) in &ended {
                    let out = others.iter().any(|other| running.contains(other));
                    assert_eq!(ledger.any_out_up_to(*beside), out, "{history:?}");
                }
            }
            if history.len() < 7 {
                let next = [None].into_iter().chain((0..running.len()).map(Some));
                histories.extend(next.map(|event| [&history[..], &[event]].concat()));
            }
        }
    }
}
