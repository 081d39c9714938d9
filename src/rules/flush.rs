//! Flush tickets: which flush makes which writes stable. Values only; the engine owns them under
//! its lock.
//!
//! A flush covers only the writes that finished before it was submitted. A flush in flight may have
//! passed the device by the time a later write finishes. So the ticket of a finished write is the
//! number of the next flush to *begin*. The write is stable when that flush has succeeded. The core
//! has one flush of its file in flight; writes that finish meanwhile share the next.

use smallvec::SmallVec;
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
    /// Other files of the file system share flushes now.
    pub has_company: bool,
}

/// Chooses the method of a durable write. A lone writer saves a call by RWF_DSYNC, and on a device
/// with FUA the flush. Concurrent writers share one flush after plain requests. N requests with
/// RWF_DSYNC would be N flushes and, into unwritten space, N journal commits.
pub fn sync_method(context: FlushContext) -> SyncMethod {
    let shares = context.is_device
        || context.others_in_flight
        || context.unstable_below
        || context.allocates
        || context.has_company;
    if shares && !context.writes_through { SyncMethod::SharedFlush } else { SyncMethod::Dsync }
}

/// What a successful flush makes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// The finished writes of its file.
    File,
    /// The finished writes into committed extents, of all files of the file system: it flushes the
    /// device.
    Device,
    /// The finished writes of all files of the file system: it commits the journal as well.
    FileSystem,
}

/// The flushes in flight on one file system or device, of all files of the process.
///
/// After a failed flush, the device may have dropped writes of *other* files as well, and the
/// kernel may report success to those. So a success counts only when no concurrent flush is still
/// in flight: that one might have failed first.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    begun: u64,
    running: BTreeSet<u64>,
    /// Successful shared flushes: the number and reach of each, and the last flush that ran beside
    /// it.
    ended: Vec<(u64, Reach, u64)>,
    /// The last shared flush that counts.
    flushed_to: u64,
    /// The last one that counts and has committed the journal.
    committed_to: u64,
}

impl Ledger {
    /// Returns the number of the next flush to begin. If that one is shared, it covers everything
    /// within its reach that is finished by now.
    pub fn ticket(&self) -> u64 {
        self.begun + 1
    }

    /// Returns the number of the last flush that began.
    pub fn begun(&self) -> u64 {
        self.begun
    }

    /// Records the submission of a flush, and returns its number.
    pub fn begin(&mut self) -> u64 {
        self.begun += 1;
        self.running.insert(self.begun);
        self.begun
    }

    /// Records the end of a flush. `reached` is what it made durable, if it succeeded. Returns the
    /// number up to which flushes ran beside it.
    pub fn end(&mut self, flush: u64, reached: Option<Reach>) -> u64 {
        self.running.remove(&flush);
        if let Some(reach @ (Reach::Device | Reach::FileSystem)) = reached {
            self.ended.push((flush, reach, self.begun));
        }
        let oldest = self.running.first().copied().unwrap_or(u64::MAX);
        for (flush, reach, _) in self.ended.extract_if(.., |(.., beside)| *beside < oldest) {
            self.flushed_to = self.flushed_to.max(flush);
            if reach == Reach::FileSystem {
                self.committed_to = self.committed_to.max(flush);
            }
        }
        self.begun
    }

    /// Returns whether a flush up to `last` is still in flight.
    pub fn any_out_up_to(&self, last: u64) -> bool {
        self.running.first().is_some_and(|&oldest| oldest <= last)
    }

    /// Returns the last flush that counts and has committed the journal.
    pub fn committed_to(&self) -> u64 {
        self.committed_to
    }

    /// Returns the last shared flush that counts.
    pub fn flushed_to(&self) -> u64 {
        self.flushed_to
    }

    /// Returns whether a shared flush with at least this reach has covered the ticket.
    pub fn covers(&self, ticket: u64, reach: Reach) -> bool {
        ticket <= if reach == Reach::FileSystem { self.committed_to } else { self.flushed_to }
    }
}

/// From this many flushes at once on, files share one. Below it each file flushes itself: the
/// kernel and the device merge a few concurrent flushes, and a lone writer needs one call.
///
/// The models of loom have a few threads only.
pub const SHARERS_MIN: usize = if cfg!(loom) { 1 } else { 4 };

/// One in this many shared flushes commits. ext4 compares the numbers of its commits in 31 bits:
/// fsync of a file whose last commit is further back flushes nothing.
const WITHOUT_COMMIT_MAX: u32 = 4096;

/// The next step of a flush that may be shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It flushes its own file.
    Alone,
    /// It flushes for all files of the file system, unless another one has taken the lead.
    Leads(Election),
    /// A flush of another file, or of another thread, has covered it.
    Covered,
    /// The file system is wedged, so it fails.
    Refused,
}

/// The number of an election of a leader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Election(u64);

/// The files of one file system that share flushes. `T` is a flush of a queue.
///
/// One shared flush is in flight at a time. Files that need a flush meanwhile wait for the next.
/// Threads wait by themselves, and each asks again when it is woken. A queue gets its flush back.
#[derive(Clone, Debug)]
pub struct Domain<T> {
    ledger: Ledger,
    waiting: Vec<WaitingFlush<T>>,
    /// Threads that wait, until they are covered or have a turn. Ascending by ticket.
    threads: Vec<WaitingThreads>,
    /// The number of the last shared flush that began.
    last: u64,
    phase: Phase,
    /// The last election.
    election: Election,
    /// Number of flushes that the last shared ones were for. Their threads soon need another.
    cohort: usize,
    /// Number of shared flushes since one committed the journal.
    without_commit: u32,
    /// Flushes are not shared any more.
    has_ended_sharing: bool,
    sharers_min: usize,
}

/// A flush that waits.
#[derive(Clone, Debug)]
struct WaitingFlush<T> {
    ticket: u64,
    needs: Reach,
    flush: T,
}

/// Threads that wait for the same.
#[derive(Clone, Copy, Debug)]
struct WaitingThreads {
    flush: ThreadFlush,
    count: usize,
}

/// The flush that a thread needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadFlush {
    ticket: u64,
    needs: Reach,
    /// Others are about to need one, so it is shared in any case.
    is_among_many: bool,
}

impl ThreadFlush {
    /// The number of the first flush that may cover it.
    pub fn ticket(&self) -> u64 {
        self.ticket
    }
}

/// Who goes on after a flush has ended.
#[derive(Debug)]
pub struct Released<T> {
    /// The flushes of queues, each with its turn.
    pub flushes: Vec<(Turn, T)>,
    /// All threads with these tickets ask again.
    pub tickets: SmallVec<[u64; 2]>,
    /// One thread with this ticket asks again, since a leader is wanted.
    pub leader: Option<u64>,
}

/// The state of the shared flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Idle,
    /// Its leader is called and has not begun it. One that is not prompt may be busy elsewhere.
    Called {
        needs: Reach,
        is_prompt: bool,
    },
    Running,
}

impl<T> Default for Domain<T> {
    fn default() -> Self {
        let (ledger, waiting, threads) = (Ledger::default(), Vec::new(), Vec::new());
        let (phase, election) = (Phase::Idle, Election::default());
        let (cohort, without_commit, has_ended_sharing) = (0, 0, false);
        Self {
            ledger,
            waiting,
            threads,
            last: 0,
            phase,
            election,
            cohort,
            without_commit,
            has_ended_sharing,
            sharers_min: SHARERS_MIN,
        }
    }
}

impl<T> Domain<T> {
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Number of flushes in flight or waiting, or expected soon.
    pub fn flushes(&self) -> usize {
        self.cohort.max(self.out())
    }

    /// Number of flushes in flight or waiting.
    fn out(&self) -> usize {
        self.ledger.running.len() + self.waiting()
    }

    fn waiting(&self) -> usize {
        self.waiting.len() + self.threads.iter().map(|threads| threads.count).sum::<usize>()
    }

    /// Whether so few flushes at once are not shared.
    fn is_few(&self, flushes: usize) -> bool {
        self.cohort.max(flushes) < self.sharers_min
    }

    /// Decides about a flush of a queue that `needs` that reach, beside `others` that are about to
    /// ask as well. Without a turn it waits: [`release`](Self::release) returns it. It takes the
    /// lead over from a leader that is not prompt.
    pub fn share(&mut self, flush: T, needs: Reach, others: usize) -> Option<(Turn, T)> {
        let ticket = self.ledger.ticket();
        let few = self.is_few(self.out() + others + 1);
        match self.turn(needs, few) {
            Some(turn) => Some((turn, flush)),
            None => {
                self.waiting.push(WaitingFlush { ticket, needs, flush });
                None
            }
        }
    }

    /// The flush of a thread whose writes have finished. It is shared in any case if
    /// `is_among_many`: others are about to need one.
    pub fn flush_of_thread(&self, needs: Reach, is_among_many: bool) -> ThreadFlush {
        ThreadFlush { ticket: self.ledger.ticket(), needs, is_among_many }
    }

    /// Decides about the flush of a thread, as [`share`](Self::share). Without a turn the thread
    /// waits until a [`release`](Self::release) names its ticket, and asks again.
    pub fn ask(&mut self, flush: ThreadFlush, waits: bool) -> Option<Turn> {
        let turn = self.turn_of_thread(flush, waits);
        match (waits, turn.is_none()) {
            (false, true) => self.count_in(flush),
            (true, false) => self.count_out(flush),
            _ => {}
        }
        turn
    }

    fn turn_of_thread(&mut self, flush: ThreadFlush, waits: bool) -> Option<Turn> {
        if self.ledger.covers(flush.ticket, flush.needs) {
            return Some(Turn::Covered);
        }
        // Those up to the last shared flush wait until it counts, unless a leader is wanted.
        if self.phase == Phase::Idle
            && flush.ticket <= self.last
            && !self.has_ended_sharing
            && self.threads.iter().all(|others| others.flush.ticket <= self.last)
        {
            return None;
        }
        let few = !self.is_among_many(flush) && self.is_few(self.out() + usize::from(!waits));
        self.turn(flush.needs, few)
    }

    /// Whether this flush or one that waits for the next shared one is shared in any case.
    fn is_among_many(&self, flush: ThreadFlush) -> bool {
        let next = self.threads.partition_point(|it| it.flush.ticket <= self.last);
        flush.is_among_many || self.threads[next..].iter().any(|it| it.flush.is_among_many)
    }

    fn count_in(&mut self, flush: ThreadFlush) {
        match self.threads.iter_mut().find(|threads| threads.flush == flush) {
            Some(threads) => threads.count += 1,
            None => self.threads.push(WaitingThreads { flush, count: 1 }),
        }
    }

    /// One that is covered is not counted any more.
    fn count_out(&mut self, flush: ThreadFlush) {
        if let Some(like) = self.threads.iter().position(|threads| threads.flush == flush) {
            self.threads[like].count -= 1;
            if self.threads[like].count == 0 {
                self.threads.remove(like);
            }
        }
    }

    /// The turn of a flush, which is one of few or not. None: it waits.
    fn turn(&mut self, needs: Reach, few: bool) -> Option<Turn> {
        match self.phase {
            _ if self.has_ended_sharing => Some(Turn::Alone),
            Phase::Idle if few => Some(Turn::Alone),
            Phase::Idle | Phase::Called { is_prompt: false, .. } => Some(self.elect(needs, true)),
            Phase::Called { is_prompt: true, .. } | Phase::Running => None,
        }
    }

    fn elect(&mut self, needs: Reach, is_prompt: bool) -> Turn {
        self.phase = Phase::Called { needs, is_prompt };
        self.election.0 += 1;
        Turn::Leads(self.election)
    }

    /// Records the submission of a flush of one file, and returns its number.
    pub fn begin(&mut self) -> u64 {
        self.ledger.begin()
    }

    /// Records the submission of a shared flush. Returns its number, and the reach that the waiting
    /// flushes need. None if another flush has taken the lead: then the elected one asks again.
    pub fn lead(&mut self, election: Election) -> Option<(u64, Reach)> {
        let Phase::Called { needs, .. } = self.phase else { return None };
        if self.election != election {
            return None;
        }
        let queues = self.waiting.iter().map(|waiting| waiting.needs);
        let threads = self.threads.iter().map(|threads| threads.flush.needs);
        let needs = queues.chain(threads).fold(needs, Reach::max);
        self.without_commit += 1;
        let is_due = self.without_commit >= WITHOUT_COMMIT_MAX;
        let needs = if is_due { Reach::FileSystem } else { needs };
        if needs == Reach::FileSystem {
            self.without_commit = 0;
        }
        self.phase = Phase::Running;
        // The first to come back leads at once, alone. Half of the others are expected after it.
        self.cohort = (1 + self.waiting()).max(self.cohort / 2);
        self.last = self.ledger.begin();
        Some((self.last, needs))
    }

    /// Records the end of a flush, as [`Ledger::end`]. [`release`](Self::release) follows.
    pub fn end(&mut self, flush: u64, reached: Option<Reach>) -> u64 {
        if flush == self.last && self.phase == Phase::Running {
            self.phase = Phase::Idle;
            // If it reached no other file, those that waited for it need another.
            let is_shared = reached.is_some_and(|reach| reach > Reach::File);
            self.last = if is_shared { flush } else { 0 };
        }
        self.ledger.end(flush, reached)
    }

    /// Whether sharing has ended.
    pub fn has_ended_sharing(&self) -> bool {
        self.has_ended_sharing
    }

    /// Ends sharing: a flush of one file covers no other file here.
    pub fn end_sharing(&mut self) {
        self.has_ended_sharing = true;
        self.cohort = 0;
    }

    /// Takes what goes on now: all that is covered, and the leader of the next shared flush.
    /// Prefers a thread, which begins as soon as it is woken.
    pub fn release(&mut self) -> Released<T> {
        let is_covered = |it: &mut WaitingFlush<T>| self.ledger.covers(it.ticket, it.needs);
        let covered = self.waiting.extract_if(.., is_covered);
        let flushes = covered.map(|it| (Turn::Covered, it.flush)).collect();
        let is_covered =
            |it: &mut WaitingThreads| self.ledger.covers(it.flush.ticket, it.flush.needs);
        let covered = self.threads.extract_if(.., is_covered);
        let tickets = covered.map(|it| it.flush.ticket).collect();
        let mut released = Released { flushes, tickets, leader: None };
        if self.has_ended_sharing {
            released.flushes.extend(self.waiting.drain(..).map(|it| (Turn::Alone, it.flush)));
            released.tickets.extend(self.threads.iter().map(|it| it.flush.ticket));
        } else if self.phase == Phase::Idle {
            self.release_next(&mut released);
        }
        released
    }

    /// Takes the leader of the next shared flush, or all if they are few.
    fn release_next(&mut self, released: &mut Released<T>) {
        // Those up to the last shared flush wait until it counts.
        let wait = self.waiting.partition_point(|it| it.ticket <= self.last);
        let next = self.threads.partition_point(|it| it.flush.ticket <= self.last);
        let early = wait + self.threads[..next].iter().map(|it| it.count).sum::<usize>();
        let next = &self.threads[next..];
        let (first, out) = (next.first().map(|it| it.flush.ticket), self.out() - early);
        // Those that are expected are worth a leader only if that one begins at once.
        let is_few = match first {
            Some(_) => self.is_few(out) && !next.iter().any(|it| it.flush.is_among_many),
            None => out < self.sharers_min,
        };
        if is_few {
            released.tickets.extend(next.iter().map(|it| it.flush.ticket));
            let alone = self.waiting.drain(wait..);
            released.flushes.extend(alone.map(|it| (Turn::Alone, it.flush)));
        } else if first.is_some() {
            released.leader = first;
        } else if wait < self.waiting.len() {
            let leader = self.waiting.remove(wait);
            released.flushes.push((self.elect(leader.needs, false), leader.flush));
        }
    }

    /// Takes all waiting flushes: the file system is wedged.
    pub fn release_all(&mut self) -> Vec<T> {
        self.threads.clear();
        self.waiting.drain(..).map(|it| it.flush).collect()
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
        let beside = ledger.end(quick, Some(Reach::File));
        assert!(ledger.any_out_up_to(beside));
        let later = ledger.begin();
        ledger.end(slow, Some(Reach::File));
        assert!(!ledger.any_out_up_to(beside), "a flush begun afterwards is no concern");
        ledger.end(later, Some(Reach::File));
    }

    #[test]
    fn only_a_lone_writer_on_a_file_uses_dsync() {
        let alone = FlushContext {
            writes_through: false,
            is_device: false,
            others_in_flight: false,
            unstable_below: false,
            allocates: false,
            has_company: false,
        };
        assert_eq!(sync_method(alone), SyncMethod::Dsync);
        assert_eq!(
            sync_method(FlushContext { has_company: true, ..alone }),
            SyncMethod::SharedFlush
        );
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
            has_company: true,
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

    /// Every third flush needs a commit.
    fn needs(asked: u32) -> Reach {
        if asked.is_multiple_of(3) { Reach::FileSystem } else { Reach::Device }
    }

    /// The flushes of some queues and threads, and the events that can happen next.
    #[derive(Clone)]
    struct Sharing {
        domain: Domain<u32>,
        now: u32,
        /// The flushes that were elected: the last one is to lead.
        called: Vec<(Asker, Election)>,
        /// The number, reach and time of each flush in flight.
        running: Vec<(u64, Reach, u32)>,
        /// Successful shared flushes: the time and reach of each, and those that ran beside it.
        ended: Vec<(u32, Reach, Vec<u64>)>,
        /// Queues that wait.
        waiting: Vec<u32>,
        /// Threads that sleep, and those that are to ask again.
        asleep: Vec<(u32, ThreadFlush)>,
        woken: Vec<(u32, ThreadFlush)>,
        covered: usize,
        has_threads: bool,
    }

    #[derive(Clone, Copy)]
    enum Asker {
        Queue(u32),
        Thread(u32),
    }

    impl Sharing {
        fn new(sharers_min: usize, has_threads: bool) -> Self {
            let (domain, now) = (Domain { sharers_min, ..Domain::default() }, 0);
            let (running, ended, waiting) = (vec![], vec![], vec![]);
            let (called, asleep, woken) = (vec![], vec![], vec![]);
            let covered = 0;
            Self {
                domain,
                now,
                called,
                running,
                ended,
                waiting,
                asleep,
                woken,
                covered,
                has_threads,
            }
        }

        fn asks(&mut self, is_thread: bool) {
            self.now += 1;
            let asker = if is_thread { Asker::Thread } else { Asker::Queue };
            self.asks_as(asker(self.now));
        }

        fn asks_as(&mut self, asker: Asker) {
            match asker {
                Asker::Thread(asked) => {
                    let flush = self.domain.flush_of_thread(needs(asked), asked % 4 < 2);
                    self.thread_asks(asked, flush, false);
                }
                Asker::Queue(asked) => match self.domain.share(asked, needs(asked), 0) {
                    None => self.waiting.push(asked),
                    Some((turn, asked)) => self.goes_on(turn, Asker::Queue(asked)),
                },
            }
        }

        fn thread_asks(&mut self, asked: u32, flush: ThreadFlush, waits: bool) {
            match self.domain.ask(flush, waits) {
                None => self.asleep.push((asked, flush)),
                Some(turn) => self.goes_on(turn, Asker::Thread(asked)),
            }
        }

        fn goes_on(&mut self, turn: Turn, asker: Asker) {
            let (Asker::Queue(asked) | Asker::Thread(asked)) = asker;
            match turn {
                Turn::Alone => self.running.push((self.domain.begin(), Reach::File, self.now)),
                Turn::Leads(election) => self.called.push((asker, election)),
                Turn::Refused => unreachable!("nothing fails"),
                Turn::Covered => {
                    let out = |beside: &Vec<u64>| {
                        self.running.iter().any(|(number, ..)| beside.contains(number))
                    };
                    let mut covers = self.ended.iter().filter(|(begun, reach, beside)| {
                        *begun > asked && *reach >= needs(asked) && !out(beside)
                    });
                    assert!(covers.next().is_some(), "{asked}");
                    self.covered += 1;
                }
            }
        }

        /// A flush ends, with its reach or less.
        fn ends(&mut self, index: usize, is_fast: bool) {
            self.now += 1;
            let (number, reach, begun) = self.running.remove(index);
            let reach = if is_fast { Reach::File } else { reach };
            if reach > Reach::File {
                let beside = self.running.iter().map(|(number, ..)| *number).collect();
                self.ended.push((begun, reach, beside));
            }
            self.domain.end(number, Some(reach));
            if is_fast {
                self.domain.end_sharing();
            }
            let Released { flushes, tickets, leader } = self.domain.release();
            for (turn, asked) in flushes {
                assert!(self.waiting.contains(&asked));
                self.waiting.retain(|it| *it != asked);
                self.goes_on(turn, Asker::Queue(asked));
            }
            // Tickets share bits of a mask.
            let is_like = |it: &(u32, ThreadFlush), ticket: u64| it.1.ticket() % 2 == ticket % 2;
            let leads = |it: &(u32, ThreadFlush)| leader.is_some_and(|ticket| is_like(it, ticket));
            if let Some(at) = self.asleep.iter().position(leads) {
                self.woken.push(self.asleep.remove(at));
            }
            let is_woken =
                |it: &mut (u32, ThreadFlush)| tickets.iter().any(|ticket| is_like(it, *ticket));
            self.woken.extend(self.asleep.extract_if(.., is_woken));
        }

        /// A thread that was woken asks again, or sees that it is covered.
        fn asks_again(&mut self, index: usize, looks: bool) {
            self.now += 1;
            let (asked, flush) = self.woken.remove(index);
            if looks && self.domain.ledger.covers(flush.ticket, flush.needs) {
                self.goes_on(Turn::Covered, Asker::Thread(asked));
            } else {
                self.thread_asks(asked, flush, true);
            }
        }

        /// An elected flush begins, or asks again because another one has the lead.
        fn leads(&mut self, index: usize) {
            self.now += 1;
            let is_last = index + 1 == self.called.len();
            let (asker, election) = self.called.remove(index);
            let (Asker::Queue(asked) | Asker::Thread(asked)) = asker;
            match self.domain.lead(election) {
                Some((number, reach)) => {
                    assert!(is_last, "the last election is valid");
                    assert!(reach >= needs(asked), "{asked}");
                    self.running.push((number, reach, self.now));
                }
                None => self.asks_as(asker),
            }
        }

        /// What can happen next.
        fn nexts(&self) -> Vec<Self> {
            let mut nexts = Vec::new();
            let mut then = |what: &dyn Fn(&mut Self)| {
                let mut next = self.clone();
                what(&mut next);
                nexts.push(next);
            };
            then(&|next| next.asks(false));
            if self.has_threads {
                then(&|next| next.asks(true));
            }
            for index in 0..self.called.len() {
                then(&|next| next.leads(index));
            }
            for index in 0..self.woken.len() {
                then(&|next| next.asks_again(index, false));
                then(&|next| next.asks_again(index, true));
            }
            for index in 0..self.running.len() {
                then(&|next| next.ends(index, false));
                if self.running[index].1 > Reach::File {
                    then(&|next| next.ends(index, true));
                }
            }
            nexts
        }

        /// Whether what waits will be woken.
        fn is_live(&self) -> bool {
            (self.waiting.is_empty() && self.asleep.is_empty())
                || !(self.called.is_empty() && self.running.is_empty() && self.woken.is_empty())
        }
    }

    /// The most flushes that are covered in a history of so many events.
    fn covered_in(events_max: usize, has_threads: bool) -> usize {
        let mut covered = 0;
        for sharers_min in 1..4 {
            let mut histories = vec![(0, Sharing::new(sharers_min, has_threads))];
            while let Some((events, sharing)) = histories.pop() {
                assert!(sharing.is_live(), "{:?}", sharing.domain);
                covered = covered.max(sharing.covered);
                if events < events_max {
                    histories.extend(sharing.nexts().into_iter().map(|next| (events + 1, next)));
                }
            }
        }
        covered
    }

    /// Every history of nine events of queues, and of eight with threads among them. A flush is
    /// covered only by a shared one that began later and counts, and none waits for nothing.
    #[test]
    fn a_shared_flush_covers_those_that_asked_before_it_began() {
        let covered = [covered_in(9, false), covered_in(8, true)];
        assert!(covered[0] >= 4 && covered[1] >= 3, "{covered:?}");
    }

    /// A domain with a shared flush in flight, which `1` leads.
    fn led() -> (Domain<u32>, u64) {
        let mut domain = Domain { sharers_min: 1, ..Domain::default() };
        let Some((Turn::Leads(election), 1)) = domain.share(1, Reach::Device, 0) else {
            panic!("it leads")
        };
        let (flush, _) = domain.lead(election).expect("none took the lead over");
        (domain, flush)
    }

    #[test]
    fn a_wedge_releases_all_that_wait() {
        let (mut domain, flush) = led();
        assert_eq!(domain.share(2, Reach::Device, 0), None);
        domain.end(flush, None);
        assert_eq!(domain.release_all(), [2]);
    }

    /// The defect: all files waited for a queue whose thread did something else.
    #[test]
    fn a_leader_that_is_late_loses_the_lead() {
        let (mut domain, flush) = led();
        assert_eq!(domain.share(2, Reach::Device, 0), None);
        domain.end(flush, Some(Reach::FileSystem));
        let late = match domain.release().flushes[..] {
            [(Turn::Leads(late), 2)] => late,
            ref other => panic!("{other:?}"),
        };
        let Some((Turn::Leads(prompt), 3)) = domain.share(3, Reach::Device, 0) else {
            panic!("it leads")
        };
        assert_eq!(domain.share(4, Reach::Device, 0), None, "a prompt leader keeps the lead");
        assert_eq!(domain.lead(late), None);
        assert!(domain.lead(prompt).is_some());
        assert_eq!(domain.lead(late), None);
    }

    /// One thread is woken to lead. The others sleep until its flush has ended.
    #[test]
    fn one_of_the_threads_that_wait_leads_the_next_flush() {
        let (mut domain, flush) = led();
        let waiting = domain.flush_of_thread(Reach::Device, true);
        (0..5).for_each(|_| assert_eq!(domain.ask(waiting, false), None));
        domain.end(flush, Some(Reach::Device));
        let released = domain.release();
        assert_eq!((released.tickets.len(), released.leader), (0, Some(waiting.ticket())));
        let Some(Turn::Leads(election)) = domain.ask(waiting, true) else { panic!("it leads") };
        assert_eq!(domain.ask(waiting, true), None);
        let (flush, needs) = domain.lead(election).expect("none took the lead over");
        assert_eq!(needs, Reach::Device);
        domain.end(flush, Some(Reach::Device));
        let released = domain.release();
        assert_eq!((&released.tickets[..], released.leader), (&[waiting.ticket()][..], None));
        (0..4).for_each(|_| assert_eq!(domain.ask(waiting, true), Some(Turn::Covered)));
        assert_eq!(domain.waiting(), 0);
    }

    /// The defect: a thread that was woken to lead flushed alone, and those among many waited.
    #[test]
    fn a_thread_leads_for_those_that_wait_among_many() {
        let mut domain = Domain::<u32> { sharers_min: 4, ..Domain::default() };
        let asks = |domain: &mut Domain<u32>, is_among_many| {
            let flush = domain.flush_of_thread(Reach::Device, is_among_many);
            (flush, domain.ask(flush, false))
        };
        let (_, Some(Turn::Leads(election))) = asks(&mut domain, true) else { panic!("it leads") };
        let (number, _) = domain.lead(election).expect("none took the lead over");
        let (alone, None) = asks(&mut domain, false) else { panic!("it waits") };
        let (_, None) = asks(&mut domain, true) else { panic!("it waits") };
        domain.end(number, Some(Reach::Device));
        assert_eq!(domain.release().leader, Some(alone.ticket()));
        assert!(matches!(domain.ask(alone, true), Some(Turn::Leads(_))));
    }

    /// The defect: three threads that waited beside one that led were all woken, and two of them
    /// slept again.
    #[test]
    fn one_of_a_few_threads_among_many_is_woken() {
        let mut domain = Domain::<u32>::default();
        let flush = |domain: &Domain<u32>| domain.flush_of_thread(Reach::Device, true);
        let first = flush(&domain);
        let Some(Turn::Leads(election)) = domain.ask(first, false) else { panic!("it leads") };
        let (number, _) = domain.lead(election).expect("none took the lead over");
        let next = flush(&domain);
        (0..3).for_each(|_| assert_eq!(domain.ask(next, false), None));
        domain.end(number, Some(Reach::Device));
        let released = domain.release();
        assert_eq!((released.tickets.len(), released.leader), (0, Some(next.ticket())));
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
                        ended.push((ledger.end(flush, None), running.clone()));
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
