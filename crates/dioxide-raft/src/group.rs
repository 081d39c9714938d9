//! The log of one group, as openraft uses it.
//!
//! An entry of index n is record n + 1 of the stream of entries. An empty record is a gap. The
//! other stream has the vote, the last committed id and the last purged id: its last record counts.

use crate::error::{Error, Result};
use crate::recent::Recent;
use crate::snapshots::{Awaited, DurableSnapshots};
use dioxide_log::{Lsn, Stream, StreamAppend, StreamChange};
use openraft::storage::{LogFlushed, LogState, RaftLogStorage};
use openraft::{
    AnyError, AsyncRuntime, ErrorSubject, ErrorVerb, LogId, OptionalSend, RaftLogId, RaftLogReader,
    RaftTypeConfig, StorageError, StorageIOError, Vote,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt::{self, Debug};
use std::ops::{Bound, Range, RangeBounds};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The memory for entries that are stable already, in bytes.
const RECENT_BYTES: usize = 1 << 20;

/// The bytes of entries that are one atomic batch, unless one entry is longer. A batch must fit
/// into a segment, and those of the call of raft need not be atomic.
const BATCH_BYTES: usize = 32 << 10;
/// More than what an entry needs besides its bytes.
const FRAME_BYTES: usize = 64;

/// The log of one raft group: a `RaftLogStorage` and a `RaftLogReader`.
///
/// [`append`](RaftLogStorage::append) calls back when the entries are stable. It returns before
/// that, at once, unless the next write is full, no free segment is ready, or the log is full. An
/// entry must be 8.25 KiB smaller than a segment; raft stops at a longer one.
///
/// Reads of entries that are not in memory block the thread for a read of the disk.
pub struct GroupLog<C: RaftTypeConfig> {
    shared: Arc<Shared<C>>,
}

/// What all handles of a group share.
pub(crate) struct Shared<C: RaftTypeConfig> {
    entries: Stream,
    facts: Stream,
    state: Mutex<State<C>>,
}

struct State<C: RaftTypeConfig> {
    facts: Facts<C>,
    last: Option<LogId<C::NodeId>>,
    recent: Recent,
    /// A purge beyond the log waits for these.
    snapshots: Option<Awaited>,
    /// How often entries were removed. A reader of the disk sees by it that they were meanwhile.
    truncations: u64,
}

impl<C: RaftTypeConfig> Shared<C> {
    fn state(&self) -> MutexGuard<'_, State<C>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets the oldest entries in memory that are stable.
    fn shrink(&self, state: &mut State<C>) {
        state.recent.shrink(RECENT_BYTES, self.entries.stable_lsn().0 - 1);
    }
}

/// What a group saves beside its entries.
#[derive(Clone, Serialize, Deserialize)]
#[serde(bound = "")]
struct Facts<C: RaftTypeConfig> {
    vote: Option<Vote<C::NodeId>>,
    committed: Option<LogId<C::NodeId>>,
    purged: Option<LogId<C::NodeId>>,
}

impl<C: RaftTypeConfig> Default for Facts<C> {
    fn default() -> Self {
        Self { vote: None, committed: None, purged: None }
    }
}

impl<C: RaftTypeConfig> Facts<C> {
    /// The index of the first entry that is not purged.
    fn kept(&self) -> u64 {
        self.purged.as_ref().map_or(0, |purged| purged.index + 1)
    }
}

fn lsn_of(index: u64) -> Lsn {
    Lsn(index + 1)
}

fn encode(value: &impl Serialize) -> Result<Vec<u8>> {
    Ok(rmp_serde::to_vec_named(value)?)
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    Ok(rmp_serde::from_slice(bytes)?)
}

/// The id of the first entry of a stream. None if it has none.
fn first_of<C: RaftTypeConfig>(entries: &Stream) -> Result<Option<LogId<C::NodeId>>> {
    let mut iter = entries.iter_from(entries.first_lsn());
    while let Some(record) = dioxide_log::StreamIter::next(&mut iter)? {
        if !record.payload.is_empty() {
            return Ok(Some(decode::<C::Entry>(record.payload)?.get_log_id().clone()));
        }
    }
    Ok(None)
}

fn failed<C: RaftTypeConfig>(
    subject: ErrorSubject<C::NodeId>,
    verb: ErrorVerb,
    error: impl Into<Error>,
) -> StorageError<C::NodeId> {
    let error: Error = error.into();
    StorageIOError::new(subject, verb, AnyError::new(&error)).into()
}

impl<C: RaftTypeConfig> GroupLog<C> {
    /// All that the streams have is stable.
    pub(crate) fn open(entries: Stream, facts: Stream) -> Result<Self> {
        let mut facts_found: Facts<C> = match facts.last_lsn() {
            Some(last) => {
                let lost = || Error::Corrupt("the vote is not there".into());
                decode(&facts.read(last)?.ok_or_else(lost)?)?
            }
            None => Facts::default(),
        };
        // A crash may have come between the record of the purge and the truncation.
        if let Some(purged) = &facts_found.purged {
            entries.truncate_front(lsn_of(purged.index + 1))?;
        }
        // Or before the record, as in a full log. Then the first entry is the last purged one. It
        // stays until the facts have its id.
        if entries.first_lsn() > lsn_of(facts_found.kept()) {
            facts_found.purged = first_of::<C>(&entries)?.or(facts_found.purged);
        }
        let end = entries.next_lsn().0 - 1;
        let state = State {
            facts: facts_found,
            last: None,
            recent: Recent::default(),
            snapshots: None,
            truncations: 0,
        };
        let group = Self { shared: Arc::new(Shared { entries, facts, state: Mutex::new(state) }) };
        let last = group.last_below(end)?;
        group.state().last = last;
        Ok(Self::again(group.shared))
    }

    /// A handle for a raft that begins.
    pub(crate) fn again(shared: Arc<Shared<C>>) -> Self {
        let group = Self { shared };
        let mut state = group.state();
        // openraft would let a leader go on in its term, with a committed id that may be old, so
        // that its reads could be stale. Without the mark, an election comes first.
        if let Some(vote) = &mut state.facts.vote {
            vote.committed = false;
        }
        // This raft may have a state machine that adds none.
        state.snapshots = state.snapshots.take().filter(Awaited::can_come);
        drop(state);
        group
    }

    /// Lets purges beyond the log wait for the snapshot that replaces the entries. The state
    /// machine gets the result, and drops it when it ends. Call this before `Raft::new`.
    pub fn wait_for_snapshots(&self) -> DurableSnapshots {
        let (snapshots, awaited) = DurableSnapshots::new();
        self.state().snapshots = Some(awaited);
        snapshots
    }

    /// The snapshots for which a purge waits.
    fn awaited(&self, log_id: &LogId<C::NodeId>) -> Option<Awaited> {
        let state = self.state();
        let is_beyond = state.last.as_ref().is_none_or(|last| last.index < log_id.index);
        state.snapshots.clone().filter(|_| is_beyond)
    }

    pub(crate) fn shared(&self) -> &Arc<Shared<C>> {
        &self.shared
    }

    fn state(&self) -> MutexGuard<'_, State<C>> {
        self.shared.state()
    }

    /// The id of the last entry below an index, or of the last purged one.
    fn last_below(&self, index: u64) -> Result<Option<LogId<C::NodeId>>> {
        let first = self.shared.entries.first_lsn().0 - 1;
        for index in (first..index).rev() {
            // It may be a gap.
            if let Some(entry) = self.read_range(index..=index)?.pop() {
                return Ok(Some(entry.get_log_id().clone()));
            }
        }
        Ok(self.state().facts.purged.clone())
    }

    /// Saves the facts after a change.
    fn save(&self, change: impl FnOnce(&mut Facts<C>)) -> Result<Saved> {
        self.save_under(&mut self.state(), change)
    }

    /// As [`save`](Self::save). A full log refuses the facts. They are as before then.
    fn save_under(
        &self,
        state: &mut State<C>,
        change: impl FnOnce(&mut Facts<C>),
    ) -> Result<Saved> {
        let (stream, mut facts) = (&self.shared.facts, state.facts.clone());
        change(&mut facts);
        let encoded = encode(&facts)?;
        let next = stream.next_lsn();
        let append = stream.append_async(&encoded);
        let is_taken = stream.next_lsn() > next;
        if is_taken {
            state.facts = facts;
        }
        // The older ones go with a later write. It is soon enough when there are some.
        let older = is_taken && next.0 - stream.first_lsn().0 >= FACTS_MAX;
        let truncate = older.then(|| stream.truncate_front_async(next));
        Ok(Saved { append, truncate, is_taken })
    }

    /// Removes the entries up to this one. The last of them goes once the facts have its id: until
    /// then it is the record of the purge. So a full log is purged, too, which refuses facts.
    fn begin_purge(&self, log_id: &LogId<C::NodeId>) -> Result<Option<Purge>> {
        let entries = &self.shared.entries;
        let mut state = self.state();
        if state.facts.purged.as_ref().is_some_and(|purged| purged.index > log_id.index) {
            return Ok(None);
        }
        state.truncations += 1;
        // A snapshot may reach further than the log.
        let is_beyond = state.last.as_ref().is_none_or(|last| last.index < log_id.index);
        let last = if is_beyond { state.last.clone() } else { Some(log_id.clone()) };
        let mut front = None;
        if let Some(last) = last {
            front = Some(entries.truncate_front_async(lsn_of(last.index)));
            // As the next open finds it.
            if entries.first_lsn() > lsn_of(state.facts.kept()) {
                state.facts.purged = Some(last);
            }
        }
        let saved = self.save_under(&mut state, |facts| facts.purged = Some(log_id.clone()))?;
        let mut rest = None;
        if saved.is_taken {
            if is_beyond {
                state.last = Some(log_id.clone());
            }
            rest = Some(entries.truncate_front_async(lsn_of(log_id.index + 1)));
        }
        let kept = state.facts.kept();
        state.recent.forget_below(kept);
        Ok(Some(Purge { front, saved, rest }))
    }

    /// Adds entries to the log. They are readable then, and stable once all batches are.
    fn begin_append(&self, entries: &[C::Entry]) -> Result<Vec<StreamAppend>> {
        let stream = &self.shared.entries;
        let mut state = self.state();
        // A snapshot has those that were purged.
        let kept = state.facts.kept();
        let purged = entries.partition_point(|entry| entry.get_log_id().index < kept);
        let entries = &entries[purged..];
        let Some(first) = entries.first().map(|entry| entry.get_log_id().index) else {
            return Ok(Vec::new());
        };
        let end = stream.next_lsn().0 - 1;
        let is_empty = stream.last_lsn().is_none();
        let begin = if first < end || is_empty { first } else { end };
        let mut records = Vec::with_capacity(entries.len());
        for entry in entries {
            let (index, next) = (entry.get_log_id().index, begin + records.len() as u64);
            if !(next..=next + GAP_MAX).contains(&index) {
                return Err(Error::Corrupt(format!("entry {index} where {next} comes next")));
            }
            // Raft leaves no gaps, but its conformance suite does.
            records.extend((next..index).map(|_| Vec::new()));
            records.push(encode(entry)?);
        }
        // Raft has done both before.
        if begin != end {
            state.truncations += 1;
        }
        if begin < end {
            stream.truncate_back(lsn_of(begin))?;
            state.recent.truncate(begin);
        } else if begin > end {
            stream.truncate_front(lsn_of(begin))?;
        }
        let (mut appends, mut end) = (Vec::new(), begin);
        for batch in batches(&records) {
            let slices: Vec<&[u8]> = batch.iter().map(Vec::as_slice).collect();
            appends.push(stream.append_all_async(&slices));
            if stream.next_lsn() != lsn_of(end + batch.len() as u64) {
                // It was refused, as the append reports. No other batch may take its place.
                break;
            }
            end += batch.len() as u64;
        }
        if let Some(last) = entries.iter().rev().find(|entry| entry.get_log_id().index < end) {
            state.last = Some(last.get_log_id().clone());
        }
        for (index, record) in (begin..end).zip(records) {
            state.recent.push(index, record);
        }
        self.shared.shrink(&mut state);
        Ok(appends)
    }

    fn read_range(&self, range: impl RangeBounds<u64>) -> Result<Vec<C::Entry>> {
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(start) => start.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(end) => end.saturating_add(1),
            Bound::Excluded(end) => *end,
            Bound::Unbounded => u64::MAX,
        };
        let entries = &self.shared.entries;
        loop {
            let state = self.state();
            let truncations = state.truncations;
            let first = (entries.first_lsn().0 - 1).max(state.facts.kept());
            let (start, end) = (start.max(first), end.min(entries.next_lsn().0 - 1));
            if start >= end {
                return Ok(Vec::new());
            }
            // All that are not stable are in memory. The oldest are on disk only.
            let split = state.recent.first().clamp(start, end);
            let mut newer = Vec::new();
            for index in split..end {
                let entry = state.recent.get(index).expect("memory has all behind its first");
                if !entry.is_empty() {
                    newer.push(decode(entry)?);
                }
            }
            // Appends and votes do not wait for the disk.
            drop(state);
            if start == split {
                return Ok(newer);
            }
            let older = self.read_disk(start..split);
            if self.state().truncations == truncations {
                let mut found = older?;
                found.append(&mut newer);
                return Ok(found);
            }
        }
    }

    /// Reads entries that are stable.
    fn read_disk(&self, range: Range<u64>) -> Result<Vec<C::Entry>> {
        let mut found = Vec::new();
        let mut iter = self.shared.entries.iter_from(lsn_of(range.start));
        for index in range {
            match dioxide_log::StreamIter::next(&mut iter)? {
                Some(record) if record.payload.is_empty() => {}
                Some(record) => found.push(decode(record.payload)?),
                None => return Err(Error::Corrupt(format!("entry {index} is not there"))),
            }
        }
        Ok(found)
    }
}

/// The parts of these records that are appended together.
fn batches(records: &[Vec<u8>]) -> impl Iterator<Item = &[Vec<u8>]> {
    let mut rest = records;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |record: &&Vec<u8>| {
            bytes += record.len() + FRAME_BYTES;
            bytes <= BATCH_BYTES
        };
        let count = rest.iter().take_while(fits).count().max(1).min(rest.len());
        let (batch, behind) = rest.split_at(count);
        rest = behind;
        (!batch.is_empty()).then_some(batch)
    })
}

/// Waits until all are stable.
async fn all(appends: Vec<StreamAppend>) -> dioxide_log::Result<()> {
    for append in appends {
        append.await?;
    }
    Ok(())
}

/// Facts that are being saved.
#[must_use]
struct Saved {
    append: StreamAppend,
    truncate: Option<StreamChange>,
    /// Whether they are in the log. If not, the append has the error.
    is_taken: bool,
}

impl Saved {
    /// Waits until they are stable.
    async fn wait(self) -> dioxide_log::Result<()> {
        self.append.await?;
        match self.truncate {
            Some(truncate) => truncate.await,
            None => Ok(()),
        }
    }
}

/// A purge on its way. Its parts lie in the log in this order.
struct Purge {
    front: Option<StreamChange>,
    saved: Saved,
    rest: Option<StreamChange>,
}

impl Purge {
    /// Waits until it is stable.
    async fn wait(self) -> dioxide_log::Result<()> {
        if let Some(front) = self.front {
            front.await?;
        }
        self.saved.wait().await?;
        match self.rest {
            Some(rest) => rest.await,
            None => Ok(()),
        }
    }
}

/// The longest gap between two entries.
const GAP_MAX: u64 = 1 << 10;

/// How many records of facts a group has at most, about.
const FACTS_MAX: u64 = 16;

impl<C: RaftTypeConfig> Clone for GroupLog<C> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

impl<C: RaftTypeConfig> Debug for GroupLog<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupLog").field("entries", &self.shared.entries).finish_non_exhaustive()
    }
}

impl<C: RaftTypeConfig> RaftLogReader<C> for GroupLog<C> {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<C::Entry>, StorageError<C::NodeId>> {
        self.read_range(range)
            .map_err(|error| failed::<C>(ErrorSubject::Logs, ErrorVerb::Read, error))
    }
}

impl<C: RaftTypeConfig> RaftLogStorage<C> for GroupLog<C> {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<C>, StorageError<C::NodeId>> {
        let state = self.state();
        let last_purged_log_id = state.facts.purged.clone();
        Ok(LogState { last_purged_log_id, last_log_id: state.last.clone() })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote<C::NodeId>) -> Result<(), StorageError<C::NodeId>> {
        let error = |error| failed::<C>(ErrorSubject::Vote, ErrorVerb::Write, error);
        let saved = self.save(|facts| facts.vote = Some(vote.clone())).map_err(error)?;
        saved.wait().await.map_err(|failure| error(failure.into()))
    }

    async fn read_vote(&mut self) -> Result<Option<Vote<C::NodeId>>, StorageError<C::NodeId>> {
        Ok(self.state().facts.vote.clone())
    }

    /// Saves the id without waiting. After a crash it may be an older one; a new leader finds the
    /// newest.
    async fn save_committed(
        &mut self,
        committed: Option<LogId<C::NodeId>>,
    ) -> Result<(), StorageError<C::NodeId>> {
        let saved = self.save(|facts| facts.committed = committed);
        saved.map(drop).map_err(|error| failed::<C>(ErrorSubject::Store, ErrorVerb::Write, error))
    }

    async fn read_committed(
        &mut self,
    ) -> Result<Option<LogId<C::NodeId>>, StorageError<C::NodeId>> {
        Ok(self.state().facts.committed.clone())
    }

    async fn append<I>(
        &mut self,
        entries: I,
        callback: LogFlushed<C>,
    ) -> Result<(), StorageError<C::NodeId>>
    where
        I: IntoIterator<Item = C::Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Vec<C::Entry> = entries.into_iter().collect();
        let appends = self.begin_append(&entries);
        let appends =
            appends.map_err(|error| failed::<C>(ErrorSubject::Logs, ErrorVerb::Write, error))?;
        // A group that is dropped meanwhile needs no memory.
        let shared = Arc::downgrade(&self.shared);
        drop(C::AsyncRuntime::spawn(async move {
            let appended = all(appends).await;
            if let Some(shared) = shared.upgrade() {
                shared.shrink(&mut shared.state());
            }
            callback.log_io_completed(appended.map_err(Into::into));
        }));
        Ok(())
    }

    async fn truncate(&mut self, log_id: LogId<C::NodeId>) -> Result<(), StorageError<C::NodeId>> {
        let error = |error| failed::<C>(ErrorSubject::Logs, ErrorVerb::Delete, error);
        let before = self.last_below(log_id.index).map_err(error)?;
        let truncated = {
            let (stream, next) = (&self.shared.entries, lsn_of(log_id.index));
            let mut state = self.state();
            state.truncations += 1;
            let truncated = stream.truncate_back_async(next);
            // Unless it was refused.
            if stream.next_lsn() <= next {
                state.recent.truncate(log_id.index);
                state.last = before;
            }
            truncated
        };
        truncated.await.map_err(|failure| error(failure.into()))
    }

    async fn purge(&mut self, log_id: LogId<C::NodeId>) -> Result<(), StorageError<C::NodeId>> {
        let error = |error| failed::<C>(ErrorSubject::Logs, ErrorVerb::Delete, error);
        // No lock is held, so entries may still be read.
        if let Some(snapshots) = self.awaited(&log_id) {
            snapshots.wait_for(log_id.index).await.map_err(error)?;
        }
        let Some(purge) = self.begin_purge(&log_id).map_err(error)? else { return Ok(()) };
        purge.wait().await.map_err(|failure| error(failure.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dioxide_log::LogOptions;
    use dioxide_log::storage::memory::{Faults, Memory};
    use futures::poll;
    use openraft::storage::RaftLogStorageExt;
    use openraft::{CommittedLeaderId, Entry, EntryPayload};
    use std::io::Cursor;

    openraft::declare_raft_types!(
        Types: D = String, R = String
    );

    fn id(index: u64) -> LogId<u64> {
        LogId::new(CommittedLeaderId::new(1, 1), index)
    }

    /// A purge left a MiB of entries in memory. So did thousands of groups. And entries that were
    /// appended by one call stayed until the next call.
    #[tokio::test(flavor = "multi_thread")]
    async fn memory_has_a_mib_of_stable_entries_and_none_that_are_purged() {
        let options = LogOptions::new().segment_bytes(1 << 20);
        let logs = crate::RaftLogs::open_storage_with(&options, Arc::new(Memory::default()));
        let mut log = logs.unwrap().group::<Types>(1).unwrap();
        let large = |index| Entry::<Types> {
            log_id: id(index),
            payload: EntryPayload::Normal("x".repeat(64 << 10)),
        };
        log.blocking_append((0..300).map(large)).await.unwrap();
        let bytes = log.state().recent.bytes();
        assert!((RECENT_BYTES / 2..=RECENT_BYTES).contains(&bytes), "{bytes}");
        log.purge(id(298)).await.unwrap();
        let bytes = log.state().recent.bytes();
        assert!((64 << 10..65 << 10).contains(&bytes), "{bytes}");
        assert_eq!(log.try_get_log_entries(..).await.unwrap(), [large(299)]);
        log.purge(id(299)).await.unwrap();
        assert_eq!(log.state().recent.bytes(), 0);
        log.blocking_append([large(300)]).await.unwrap();
        assert_eq!(log.try_get_log_entries(..).await.unwrap(), [large(300)]);
    }

    /// The bug: a crash after the purge and before the snapshot left a node that could not start.
    #[tokio::test]
    async fn a_purge_beyond_the_log_waits_for_the_snapshot() {
        let logs = crate::RaftLogs::open_storage_with(&LogOptions::new(), Arc::<Memory>::default());
        let mut log = logs.unwrap().group::<Types>(1).unwrap();
        let snapshots = log.wait_for_snapshots();
        let entry = |index| Entry::<Types> { log_id: id(index), payload: EntryPayload::Blank };
        log.blocking_append((0..10).map(entry)).await.unwrap();
        log.purge(id(5)).await.expect("the log has entries behind it");
        snapshots.add(50);
        let mut purge = Box::pin(log.purge(id(100)));
        assert!(poll!(&mut purge).is_pending());
        snapshots.add(99);
        snapshots.add(20);
        assert!(poll!(&mut purge).is_pending());
        drop(purge);
        assert_eq!(
            log.try_get_log_entries(..).await.unwrap(),
            (6..10).map(entry).collect::<Vec<_>>()
        );
        snapshots.add(100);
        log.purge(id(100)).await.unwrap();
        assert_eq!(log.get_log_state().await.unwrap().last_purged_log_id, Some(id(100)));
        snapshots.fail();
        log.purge(id(200)).await.expect_err("no snapshot can come");
        drop(log.wait_for_snapshots());
        log.purge(id(200)).await.expect_err("no state machine is left");
    }

    /// The bug: another handle of the group, for a look at it, ended the wait for snapshots.
    #[tokio::test]
    async fn another_handle_leaves_the_wait_for_snapshots() {
        let logs = crate::RaftLogs::open_storage_with(&LogOptions::new(), Arc::<Memory>::default());
        let logs = logs.unwrap();
        let mut log = logs.group::<Types>(1).unwrap();
        let snapshots = log.wait_for_snapshots();
        drop(logs.group::<Types>(1).unwrap());
        assert!(poll!(Box::pin(log.purge(id(100)))).is_pending());
        drop(snapshots);
        drop(logs.group::<Types>(1).unwrap());
        log.purge(id(100)).await.expect("the next state machine adds none");
    }

    /// The defect: a raft that was restarted in the process got the vote whose save had failed.
    #[tokio::test]
    async fn a_vote_that_is_not_stable_is_given_to_no_raft() {
        let disk = Memory::default();
        let logs = crate::RaftLogs::open_storage_with(&LogOptions::new(), Arc::new(disk.clone()));
        let logs = logs.unwrap();
        let mut log = logs.group::<Types>(1).unwrap();
        log.save_vote(&Vote::new(1, 1)).await.unwrap();
        disk.set_faults(Faults { failed_call: Some(disk.calls() + 1), ..Faults::default() });
        log.save_vote(&Vote::new(2, 1)).await.expect_err("the disk fails");
        logs.group::<Types>(1).expect_err("its vote is not stable");
        drop(log);
        logs.group::<Types>(1).expect_err("nor is it without a handle");
        drop(logs);
        let logs = crate::RaftLogs::open_storage_with(&LogOptions::new(), Arc::new(disk));
        let mut log = logs.unwrap().group::<Types>(1).unwrap();
        let vote = log.read_vote().await.unwrap().unwrap();
        assert!([Vote::new(1, 1), Vote::new(2, 1)].contains(&vote), "{vote}");
    }
}
