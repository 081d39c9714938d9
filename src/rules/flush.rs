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
    /// The flush of another file has covered it.
    Covered,
    /// The file system is wedged, so it fails.
    Refused,
}

/// The number of an election of a leader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Election(u64);

/// The files of one file system that share flushes. `T` is a flush that waits.
///
/// One shared flush is in flight at a time. Files that need a flush meanwhile wait for the next.
#[derive(Clone, Debug)]
pub struct Domain<T> {
    ledger: Ledger,
    waiting: Vec<WaitingFlush<T>>,
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
        let (ledger, waiting) = (Ledger::default(), Vec::new());
        let (phase, election) = (Phase::Idle, Election::default());
        let (cohort, without_commit, has_ended_sharing) = (0, 0, false);
        Self {
            ledger,
            waiting,
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
        self.ledger.running.len() + self.waiting.len()
    }

    /// Whether so few flushes at once are not shared.
    fn is_few(&self, flushes: usize) -> bool {
        self.cohort.max(flushes) < self.sharers_min
    }

    /// Decides about a flush that `needs` that reach, beside `others` that are about to ask as
    /// well. Without a turn it waits: [`release`](Self::release) returns it. It takes the lead over
    /// from a leader that is not prompt.
    pub fn share(&mut self, flush: T, needs: Reach, others: usize) -> Option<(Turn, T)> {
        let few = self.is_few(self.out() + others + 1);
        match self.phase {
            _ if self.has_ended_sharing => Some((Turn::Alone, flush)),
            Phase::Idle if few => Some((Turn::Alone, flush)),
            Phase::Idle | Phase::Called { is_prompt: false, .. } => {
                Some((self.elect(needs, true), flush))
            }
            Phase::Called { is_prompt: true, .. } | Phase::Running => {
                self.waiting.push(WaitingFlush { ticket: self.ledger.ticket(), needs, flush });
                None
            }
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
        let needs = self.waiting.iter().map(|waiting| waiting.needs).fold(needs, Reach::max);
        self.without_commit += 1;
        let is_due = self.without_commit >= WITHOUT_COMMIT_MAX;
        let needs = if is_due { Reach::FileSystem } else { needs };
        if needs == Reach::FileSystem {
            self.without_commit = 0;
        }
        self.phase = Phase::Running;
        // The first to come back leads at once, alone. Half of the others are expected after it.
        self.cohort = (1 + self.waiting.len()).max(self.cohort / 2);
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

    /// Takes the waiting flushes that go on now, each with its turn: those that are covered, and
    /// the leader of the next shared flush. Prefers a leader that begins as soon as it is called.
    pub fn release(&mut self, is_prompt: impl Fn(&T) -> bool) -> Vec<(Turn, T)> {
        let is_covered = |it: &mut WaitingFlush<T>| self.ledger.covers(it.ticket, it.needs);
        let covered = self.waiting.extract_if(.., is_covered);
        let mut released: Vec<_> = covered.map(|it| (Turn::Covered, it.flush)).collect();
        if self.phase != Phase::Idle {
            return released;
        }
        // Those up to the last shared flush wait until it counts.
        let wait = self.waiting.partition_point(|it| it.ticket <= self.last);
        let soonest = self.waiting[wait..].iter().position(|it| is_prompt(&it.flush));
        // Those that are expected are worth a leader only if that one begins at once.
        let out = self.out() - wait;
        let is_few = if soonest.is_some() { self.is_few(out) } else { out < self.sharers_min };
        if self.has_ended_sharing || is_few {
            let from = if self.has_ended_sharing { 0 } else { wait };
            let alone = self.waiting.drain(from..);
            released.extend(alone.map(|it| (Turn::Alone, it.flush)));
        } else if wait < self.waiting.len() {
            let leader = self.waiting.remove(wait + soonest.unwrap_or(0));
            released.push((self.elect(leader.needs, soonest.is_some()), leader.flush));
        }
        released
    }

    /// Takes all waiting flushes: the file system is wedged.
    pub fn release_all(&mut self) -> Vec<T> {
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

    /// Some files, their flushes, and the events that can happen next.
    #[derive(Clone)]
    struct Sharing {
        domain: Domain<u32>,
        now: u32,
        /// The flushes that were elected: the last one is to lead.
        called: Vec<(u32, Election)>,
        /// The number, reach and time of each flush in flight.
        running: Vec<(u64, Reach, u32)>,
        /// Successful shared flushes: the time and reach of each, and those that ran beside it.
        ended: Vec<(u32, Reach, Vec<u64>)>,
        waiting: Vec<u32>,
        covered: usize,
    }

    impl Sharing {
        fn new(sharers_min: usize) -> Self {
            let (domain, now) = (Domain { sharers_min, ..Domain::default() }, 0);
            let (running, ended, waiting) = (vec![], vec![], vec![]);
            Self { domain, now, called: vec![], running, ended, waiting, covered: 0 }
        }

        fn asks(&mut self) {
            self.now += 1;
            let turn = self.domain.share(self.now, needs(self.now), 0);
            self.goes_on(turn, true);
        }

        fn goes_on(&mut self, turn: Option<(Turn, u32)>, is_new: bool) {
            match turn {
                None => self.waiting.push(self.now),
                Some((turn, asked)) => {
                    assert!(is_new || self.waiting.contains(&asked));
                    self.waiting.retain(|it| *it != asked);
                    match turn {
                        Turn::Alone => {
                            self.running.push((self.domain.begin(), Reach::File, self.now));
                        }
                        Turn::Leads(election) => self.called.push((asked, election)),
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
            let released = self.domain.release(|asked| asked % 2 == 0);
            released.into_iter().for_each(|turn| self.goes_on(Some(turn), false));
        }

        /// An elected flush begins, or asks again because another one has the lead.
        fn leads(&mut self, index: usize) {
            self.now += 1;
            let is_last = index + 1 == self.called.len();
            let (asked, election) = self.called.remove(index);
            match self.domain.lead(election) {
                Some((number, reach)) => {
                    assert!(is_last, "the last election is valid");
                    assert!(reach >= needs(asked), "{asked}");
                    self.running.push((number, reach, self.now));
                }
                None => {
                    let turn = self.domain.share(asked, needs(asked), 0);
                    match turn {
                        None => self.waiting.push(asked),
                        turn => self.goes_on(turn, true),
                    }
                }
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
            then(&Self::asks);
            for index in 0..self.called.len() {
                then(&|next| next.leads(index));
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
            self.waiting.is_empty() || !self.called.is_empty() || !self.running.is_empty()
        }
    }

    /// Every history of nine events. A flush is covered only by a shared one that began later and
    /// counts, and none waits for nothing.
    #[test]
    fn a_shared_flush_covers_those_that_asked_before_it_began() {
        let mut covered = 0;
        for sharers_min in 1..4 {
            let mut histories = vec![(0, Sharing::new(sharers_min))];
            while let Some((events, sharing)) = histories.pop() {
                assert!(sharing.is_live(), "{:?}", sharing.domain);
                covered = covered.max(sharing.covered);
                if events < 9 {
                    histories.extend(sharing.nexts().into_iter().map(|next| (events + 1, next)));
                }
            }
        }
        assert!(covered >= 4, "{covered}");
    }

    #[test]
    fn a_wedge_releases_all_that_wait() {
        let mut domain = Domain { sharers_min: 1, ..Domain::default() };
        let Some((Turn::Leads(election), 1)) = domain.share(1, Reach::Device, 0) else {
            panic!("it leads")
        };
        let (flush, _) = domain.lead(election).expect("none took the lead over");
        assert_eq!(domain.share(2, Reach::Device, 0), None);
        domain.end(flush, None);
        assert_eq!(domain.release_all(), [2]);
    }

    /// The defect: all files waited for a queue whose thread did something else.
    #[test]
    fn a_leader_that_is_late_loses_the_lead() {
        let mut domain = Domain { sharers_min: 1, ..Domain::default() };
        let Some((Turn::Leads(first), 1)) = domain.share(1, Reach::Device, 0) else {
            panic!("it leads")
        };
        let (flush, _) = domain.lead(first).expect("none took the lead over");
        assert_eq!(domain.share(2, Reach::Device, 0), None);
        domain.end(flush, Some(Reach::FileSystem));
        let late = match domain.release(|_| false)[..] {
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
