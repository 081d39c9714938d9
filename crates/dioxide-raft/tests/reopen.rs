//! Groups whose log is opened again, with or without a close.

use dioxide_log::storage::memory::{Faults, Memory};
use dioxide_log::storage::{Segment, Storage};
use dioxide_log::{Durability, LogOptions};
use dioxide_raft::{Error, GROUP_MAX, GroupLog, RaftLogs};
use openraft::storage::{RaftLogStorage, RaftLogStorageExt};
use openraft::{CommittedLeaderId, Entry, EntryPayload, LogId, RaftLogReader, Vote};
use serde::{Deserialize, Serialize, Serializer};
use std::io::Cursor;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use tokio::time::timeout;

openraft::declare_raft_types!(
    /// The types of the tests.
    pub Types: D = String, R = String
);

fn id(term: u64, index: u64) -> LogId<u64> {
    LogId::new(CommittedLeaderId::new(term, 1), index)
}

fn entry(term: u64, index: u64) -> Entry<Types> {
    Entry { log_id: id(term, index), payload: EntryPayload::Normal(format!("{term}.{index}")) }
}

/// An entry of term 1 with this many bytes of data.
fn large(index: u64, bytes: usize) -> Entry<Types> {
    Entry { log_id: id(1, index), payload: EntryPayload::Normal("x".repeat(bytes)) }
}

fn open(disk: &Memory) -> RaftLogs {
    let options = LogOptions::new().segment_bytes(64 << 10);
    RaftLogs::open_storage_with(&options, Arc::new(disk.clone())).expect("it opens")
}

async fn entries(log: &mut GroupLog<Types>) -> Vec<LogId<u64>> {
    let entries = log.try_get_log_entries(..).await.expect("they are read");
    for entry in &entries {
        let (term, index) = (entry.log_id.leader_id.term, entry.log_id.index);
        assert_eq!(*entry, self::entry(term, index));
    }
    entries.into_iter().map(|entry| entry.log_id).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_acknowledged_is_there_after_a_power_cut() {
    let disk = Memory::default();
    let logs = open(&disk);
    let mut log = logs.group::<Types>(3).unwrap();
    log.save_vote(&Vote::new(2, 1)).await.unwrap();
    log.blocking_append((0..20).map(|index| entry(1, index))).await.unwrap();
    log.truncate(id(1, 15)).await.unwrap();
    log.blocking_append((15..40).map(|index| entry(2, index))).await.unwrap();
    log.purge(id(1, 9)).await.unwrap();
    log.save_vote(&Vote::new_committed(3, 1)).await.unwrap();
    let mut expected: Vec<_> = (10..15).map(|index| id(1, index)).collect();
    expected.extend((15..40).map(|index| id(2, index)));
    assert_eq!(entries(&mut log).await, expected);

    for seed in 0..20 {
        let logs = open(&disk.after_power_cut(seed));
        let mut log = logs.group::<Types>(3).unwrap();
        assert_eq!(log.read_vote().await.unwrap(), Some(Vote::new(3, 1)));
        let state = log.get_log_state().await.unwrap();
        assert_eq!(
            (state.last_purged_log_id, state.last_log_id),
            (Some(id(1, 9)), Some(id(2, 39)))
        );
        assert_eq!(entries(&mut log).await, expected);
        assert_eq!(logs.groups(), [3]);
        // A snapshot beyond the end.
        log.purge(id(4, 99)).await.unwrap();
        assert_eq!(log.get_log_state().await.unwrap().last_log_id, Some(id(4, 99)));
        log.blocking_append([entry(4, 100)]).await.unwrap();
        assert_eq!(entries(&mut log).await, [id(4, 100)]);
    }
}

/// openraft would restore the leader at once. Its reads could be stale, because the committed id is
/// saved without waiting.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_restarted_does_not_lead_before_an_election() {
    let disk = Memory::default();
    let logs = open(&disk);
    let mut log = logs.group::<Types>(1).unwrap();
    log.save_vote(&Vote::new_committed(3, 1)).await.unwrap();
    assert_eq!(log.read_vote().await.unwrap(), Some(Vote::new_committed(3, 1)));
    drop((log, logs));
    let logs = open(&disk.after_kill());
    let mut log = logs.group::<Types>(1).unwrap();
    assert_eq!(log.read_vote().await.unwrap(), Some(Vote::new(3, 1)));
    log.save_vote(&Vote::new_committed(3, 1)).await.unwrap();
    assert_eq!(log.read_vote().await.unwrap(), Some(Vote::new_committed(3, 1)));
}

/// The control: a disk that lies about flushes loses votes or entries.
#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_lies_loses_votes() {
    let faults = Faults { lies: true, ..Faults::default() };
    let disk = Memory::new(faults);
    let logs = open(&disk);
    let mut log = logs.group::<Types>(1).unwrap();
    log.save_vote(&Vote::new(2, 1)).await.unwrap();
    log.blocking_append((0..20).map(|index| entry(1, index))).await.unwrap();
    let mut lost = 0;
    for seed in 0..50 {
        let options = LogOptions::new().segment_bytes(64 << 10);
        let disk = Arc::new(disk.after_power_cut(seed));
        let Ok(logs) = RaftLogs::open_storage_with(&options, disk) else {
            lost += 1;
            continue;
        };
        let mut log = logs.group::<Types>(1).unwrap();
        let vote = log.read_vote().await.unwrap();
        lost += u64::from(vote.is_none() || entries(&mut log).await.len() < 20);
    }
    assert!(lost > 10, "only {lost} of 50 power cuts lost something");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_groups_share_a_log_and_its_space() {
    let disk = Memory::default();
    let logs = open(&disk);
    let mut groups: Vec<_> = (0..50).map(|group| logs.group::<Types>(group).unwrap()).collect();
    for index in 0..100 {
        for log in &mut groups {
            log.blocking_append([entry(1, index)]).await.unwrap();
            log.save_vote(&Vote::new(index, 1)).await.unwrap();
            if index % 20 == 19 {
                log.purge(id(1, index - 5)).await.unwrap();
            }
        }
    }
    let needed = logs.stats().needed_bytes;
    assert!(needed < 500_000, "old votes and purged entries are not needed: {needed} bytes");
    drop((groups, logs));
    let logs = open(&disk.after_kill());
    assert_eq!(logs.groups(), (0..50).collect::<Vec<_>>());
    for group in 0..50 {
        let mut log = logs.group::<Types>(group).unwrap();
        assert_eq!(log.read_vote().await.unwrap(), Some(Vote::new(99, 1)));
        assert_eq!(
            entries(&mut log).await,
            (95..100).map(|index| id(1, index)).collect::<Vec<_>>()
        );
    }
    logs.remove(7).unwrap();
    // It removed group 0.
    assert!(logs.remove(GROUP_MAX + 1).is_err());
    assert_eq!(logs.groups().len(), 49);
    assert!(matches!(logs.group::<Types>(u64::MAX), Err(Error::Group(_))));
}

/// Entries that are not yet stable are read from memory.
#[tokio::test(flavor = "multi_thread")]
async fn entries_are_read_as_soon_as_they_are_appended() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let logs = RaftLogs::open(dir.path()).unwrap();
    let log = logs.group::<Types>(1).unwrap();
    for index in 0..200 {
        let (mut reader, mut writer) = (log.clone(), log.clone());
        let (next, appended) = tokio::join!(
            async {
                // At once, or a moment later.
                loop {
                    let read = reader.try_get_log_entries(index..=index).await.unwrap();
                    if !read.is_empty() {
                        return read;
                    }
                    tokio::task::yield_now().await;
                }
            },
            writer.blocking_append([entry(1, index)]),
        );
        appended.unwrap();
        assert_eq!(next, [entry(1, index)]);
    }
}

/// A save of the committed id is not awaited. While it was in flight, a group that was opened again
/// had no vote.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_is_opened_again_keeps_what_is_in_flight() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let logs = RaftLogs::open(dir.path()).unwrap();
    let mut log = logs.group::<Types>(1).unwrap();
    log.save_vote(&Vote::new(2, 1)).await.unwrap();
    for index in 0..50 {
        log.blocking_append([entry(1, index)]).await.unwrap();
        log.save_committed(Some(id(1, index))).await.unwrap();
        log = logs.group(1).unwrap();
        assert_eq!(log.read_vote().await.unwrap(), Some(Vote::new(2, 1)), "{index}");
        assert_eq!(log.read_committed().await.unwrap(), Some(id(1, index)));
        assert_eq!(log.get_log_state().await.unwrap().last_log_id, Some(id(1, index)));
    }
}

/// Raft replicates hundreds of entries by one call. They were one batch, which did not fit.
#[tokio::test(flavor = "multi_thread")]
async fn entries_that_need_more_than_a_segment_are_appended() {
    let disk = Memory::default();
    let mut log = open(&disk).group::<Types>(1).unwrap();
    let large = |index| large(index, 40_000);
    let many = (0..5000).map(|index| entry(1, index)).chain((5000..5010).map(large));
    log.blocking_append(many).await.unwrap();
    let mut log = open(&disk.after_power_cut(1)).group::<Types>(1).unwrap();
    assert_eq!(log.get_log_state().await.unwrap().last_log_id, Some(id(1, 5009)));
    let read = log.try_get_log_entries(0..5010).await.unwrap();
    assert!(read.iter().map(|entry| entry.log_id.index).eq(0..5010));
    assert_eq!((&read[4999], &read[5009]), (&entry(1, 4999), &large(5009)));
}

/// Options without durability let votes and entries be acknowledged before they were stable.
#[tokio::test(flavor = "multi_thread")]
async fn votes_and_entries_are_stable_whatever_the_options_say() {
    let disk = Memory::default();
    let options = LogOptions::new().segment_bytes(64 << 10).durability(Durability::OnSync);
    let logs = RaftLogs::open_storage_with(&options, Arc::new(disk.clone())).unwrap();
    let mut log = logs.group::<Types>(1).unwrap();
    log.save_vote(&Vote::new(2, 1)).await.unwrap();
    log.blocking_append((0..20).map(|index| entry(1, index))).await.unwrap();
    for seed in 0..20 {
        let mut log = open(&disk.after_power_cut(seed)).group::<Types>(1).unwrap();
        assert_eq!(log.read_vote().await.unwrap(), Some(Vote::new(2, 1)));
        assert_eq!(entries(&mut log).await.len(), 20);
    }
}

/// A truncation may leave a gap as the last record. It was taken for an entry.
#[tokio::test(flavor = "multi_thread")]
async fn a_gap_at_the_end_is_no_entry() {
    let disk = Memory::default();
    let logs = open(&disk);
    let mut log = logs.group::<Types>(1).unwrap();
    log.blocking_append([entry(1, 0)]).await.unwrap();
    log.blocking_append([entry(1, 5), entry(1, 9)]).await.unwrap();
    assert_eq!(entries(&mut log).await, [id(1, 0), id(1, 5), id(1, 9)]);
    log.truncate(id(1, 5)).await.unwrap();
    assert_eq!(log.get_log_state().await.unwrap().last_log_id, Some(id(1, 0)));
    let mut log = open(&disk.after_kill()).group::<Types>(1).unwrap();
    assert_eq!(log.get_log_state().await.unwrap().last_log_id, Some(id(1, 0)));
    assert_eq!(entries(&mut log).await, [id(1, 0)]);
}

/// It was appended behind the purged entries, with the index of another one.
#[tokio::test(flavor = "multi_thread")]
async fn an_entry_that_was_purged_is_not_appended_again() {
    let mut log = open(&Memory::default()).group::<Types>(1).unwrap();
    log.blocking_append((0..10).map(|index| entry(1, index))).await.unwrap();
    log.purge(id(1, 7)).await.unwrap();
    log.blocking_append([entry(1, 5)]).await.unwrap();
    assert_eq!(entries(&mut log).await, [id(1, 8), id(1, 9)]);
    assert_eq!(log.get_log_state().await.unwrap().last_log_id, Some(id(1, 9)));
}

/// The bounds of a range overflowed.
#[tokio::test(flavor = "multi_thread")]
async fn a_range_ends_at_any_index() {
    let mut log = open(&Memory::default()).group::<Types>(1).unwrap();
    log.blocking_append([entry(1, 0), entry(1, 1)]).await.unwrap();
    assert_eq!(log.try_get_log_entries(1..=u64::MAX).await.unwrap(), [entry(1, 1)]);
    assert!(log.try_get_log_entries(u64::MAX..).await.unwrap().is_empty());
}

/// Memory forgot entries whose truncation had failed, and a read panicked.
#[tokio::test(flavor = "multi_thread")]
async fn entries_stay_readable_after_a_truncation_that_failed() {
    let disk = Memory::default();
    let mut log = open(&disk).group::<Types>(1).unwrap();
    log.blocking_append((0..10).map(|index| entry(1, index))).await.unwrap();
    disk.set_faults(Faults { failed_call: Some(disk.calls() + 1), ..Faults::default() });
    log.save_vote(&Vote::new(2, 1)).await.unwrap_err();
    log.truncate(id(1, 5)).await.unwrap_err();
    assert_eq!(log.get_log_state().await.unwrap().last_log_id, Some(id(1, 9)));
    assert_eq!(entries(&mut log).await.len(), 10);
    log.blocking_append([entry(1, 10)]).await.unwrap_err();
    assert_eq!(log.get_log_state().await.unwrap().last_log_id, Some(id(1, 9)));
    assert_eq!(entries(&mut log).await.len(), 10);
}

/// The entries of a group begin behind the last purged one. Raft does not start otherwise.
async fn begins_behind_the_purged(log: &mut GroupLog<Types>) -> Option<LogId<u64>> {
    let purged = log.get_log_state().await.unwrap().last_purged_log_id;
    if let Some(first) = entries(log).await.first() {
        assert_eq!(first.index, purged.map_or(0, |purged| purged.index + 1));
    }
    purged
}

/// A full log took the truncation, but not its record. Raft could not start again.
#[tokio::test(flavor = "multi_thread")]
async fn a_purge_of_a_full_log_is_recorded() {
    for (group, last) in [(10, 30), (11, 0), (12, 49), (13, 99)] {
        let disk = Memory::new(Faults { segments_max: Some(6), ..Faults::default() });
        let logs = open(&disk);
        let mut log = logs.group::<Types>(group).unwrap();
        log.blocking_append((0..50).map(|index| entry(1, index))).await.unwrap();
        let mut other = logs.group::<Types>(1).unwrap();
        let mut end = 0;
        while other.blocking_append([large(end, 5_000)]).await.is_ok() {
            end += 1;
        }
        for index in 0..2000 {
            log.save_committed(Some(id(1, index % 50))).await.unwrap();
        }
        let result = log.purge(id(1, last)).await;
        let purged = begins_behind_the_purged(&mut log).await;
        assert!(purged == Some(id(1, last)) || result.is_err(), "{result:?}, {purged:?}");
        let disks = (0..20).map(|seed| disk.after_power_cut(seed)).chain([disk.after_kill()]);
        for disk in disks {
            let mut log = open(&disk).group::<Types>(group).unwrap();
            assert_eq!(begins_behind_the_purged(&mut log).await, purged, "{result:?}");
            // There is space now.
            log.purge(id(1, last)).await.unwrap();
            assert_eq!(begins_behind_the_purged(&mut log).await, Some(id(1, last)));
            let mut log = open(&disk.after_power_cut(1)).group::<Types>(group).unwrap();
            assert_eq!(begins_behind_the_purged(&mut log).await, Some(id(1, last)));
        }
        // A purge that frees segments makes space.
        other.purge(id(1, end - 2)).await.unwrap();
        log.purge(id(1, last)).await.unwrap();
        assert_eq!(begins_behind_the_purged(&mut log).await, Some(id(1, last)));
    }
}

/// The power fails between the parts of a purge.
#[tokio::test(flavor = "multi_thread")]
async fn a_power_cut_in_a_purge_leaves_its_record() {
    let begin = async |disk: &Memory| {
        let mut log = open(disk).group::<Types>(1).unwrap();
        log.blocking_append((0..50).map(|index| entry(1, index))).await.unwrap();
        log
    };
    for last in [30, 99] {
        let disk = Memory::default();
        let mut log = begin(&disk).await;
        let before = disk.calls();
        log.purge(id(1, last)).await.unwrap();
        for call in 0..=disk.calls() - before {
            let disk = Memory::default();
            let mut log = begin(&disk).await;
            let power_cut = Some(disk.calls() + call);
            disk.set_faults(Faults { power_cut, ..Faults::default() });
            let result = log.purge(id(1, last)).await;
            for seed in 0..20 {
                let mut log = open(&disk.after_power_cut(seed)).group::<Types>(1).unwrap();
                let purged = begins_behind_the_purged(&mut log).await;
                assert!(purged == Some(id(1, last)) || result.is_err(), "{result:?}, {purged:?}");
            }
        }
    }
}

/// Each handle had facts of its own. An older one saved its own vote with the next committed id.
#[tokio::test(flavor = "multi_thread")]
async fn two_handles_of_a_group_keep_the_newer_vote() {
    let disk = Memory::default();
    let logs = open(&disk);
    let mut one = logs.group::<Types>(1).unwrap();
    one.save_vote(&Vote::new_committed(4, 1)).await.unwrap();
    let mut two = logs.group::<Types>(1).unwrap();
    assert_eq!(two.read_vote().await.unwrap(), Some(Vote::new(4, 1)), "it elects first");
    two.save_vote(&Vote::new(5, 2)).await.unwrap();
    one.save_committed(Some(id(1, 0))).await.unwrap();
    one.blocking_append([entry(1, 0)]).await.unwrap();
    let mut log = open(&disk.after_kill()).group::<Types>(1).unwrap();
    assert_eq!(log.read_vote().await.unwrap(), Some(Vote::new(5, 2)));
    assert_eq!(entries(&mut two).await, [id(1, 0)]);
}

/// Its handles went on with streams that another group could begin again.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_in_use_is_neither_removed_nor_opened_with_other_types() {
    let logs = open(&Memory::default());
    let mut log = logs.group::<Types>(1).unwrap();
    log.blocking_append([entry(1, 0)]).await.unwrap();
    let reader = log.get_log_reader().await;
    drop(log);
    assert!(matches!(logs.group::<PickyTypes>(1), Err(Error::InUse(1))));
    assert!(matches!(logs.remove(1), Err(Error::InUse(1))));
    drop(reader);
    logs.remove(1).unwrap();
    assert!(entries(&mut logs.group(1).unwrap()).await.is_empty());
}

/// Readers wait while it is closed.
#[derive(Debug, Default)]
struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    is_closed: bool,
    readers: u32,
}

impl Gate {
    fn set(&self, is_closed: bool) {
        self.state.lock().unwrap().is_closed = is_closed;
        self.changed.notify_all();
    }

    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.readers += 1;
        self.changed.notify_all();
        self.changed.wait_while(state, |state| state.is_closed).unwrap().readers -= 1;
    }

    fn wait_for_reader(&self) {
        let state = self.state.lock().unwrap();
        drop(self.changed.wait_while(state, |state| state.readers == 0).unwrap());
    }
}

/// A disk, or a segment of it, with a gate in front of its reads.
#[derive(Debug)]
struct Gated<T>(T, Arc<Gate>);

impl<T> Gated<T> {
    fn segment(&self, segment: Arc<dyn Segment>) -> Arc<dyn Segment> {
        Arc::new(Gated(segment, self.1.clone()))
    }
}

impl Storage for Gated<Memory> {
    fn path(&self) -> &Path {
        self.0.path()
    }

    fn segments(&self) -> dioxide_log::Result<Vec<Arc<dyn Segment>>> {
        let segments = self.0.segments()?.into_iter();
        Ok(segments.map(|segment| self.segment(segment)).collect())
    }

    fn create(&self, bytes: u64) -> dioxide_log::Result<Arc<dyn Segment>> {
        Ok(self.segment(self.0.create(bytes)?))
    }

    fn remove(&self, segment: &dyn Segment) -> dioxide_log::Result<()> {
        self.0.remove(segment)
    }
}

impl Segment for Gated<Arc<dyn Segment>> {
    fn path(&self) -> &Path {
        self.0.path()
    }

    fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    fn write(&self, data: &[u8], offset: u64, durable: bool) -> dioxide_log::Result<()> {
        self.0.write(data, offset, durable)
    }

    fn sync(&self) -> dioxide_log::Result<()> {
        self.0.sync()
    }

    fn read(&self, into: &mut [u8], offset: u64) -> dioxide_log::Result<()> {
        self.1.pass();
        self.0.read(into, offset)
    }
}

/// A reader held the lock of the group while it read the disk. Votes waited on the task of raft.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_vote_does_not_wait_for_a_reader_of_the_disk() {
    let gate = Arc::new(Gate::default());
    let disk = Arc::new(Gated(Memory::default(), gate.clone()));
    let options = LogOptions::new().segment_bytes(1 << 20);
    let mut log = RaftLogs::open_storage_with(&options, disk).unwrap().group::<Types>(1).unwrap();
    // More than memory keeps.
    for index in 0..60 {
        log.blocking_append([large(index, 50_000)]).await.unwrap();
    }
    let gate = &gate;
    let read = |mut log: GroupLog<Types>| {
        gate.set(true);
        let read = tokio::spawn(async move { log.try_get_log_entries(..).await });
        gate.wait_for_reader();
        async move {
            gate.set(false);
            let entries = read.await.unwrap().unwrap();
            entries.iter().map(|entry| entry.log_id.index).collect::<Vec<_>>()
        }
    };
    let reading = read(log.clone());
    let mut voter = log.clone();
    let voting = tokio::spawn(async move { voter.save_vote(&Vote::new(2, 1)).await });
    let voted = timeout(Duration::from_secs(10), voting).await;
    assert!(reading.await.into_iter().eq(0..60));
    voted.expect("it does not wait").unwrap().unwrap();

    let reading = read(log.clone());
    log.purge(id(1, 9)).await.unwrap();
    log.truncate(id(1, 55)).await.unwrap();
    assert!(reading.await.into_iter().eq(10..55), "entries that were removed meanwhile");
}

/// The data of a program that cannot always be encoded.
#[derive(Clone, Debug, Deserialize)]
pub struct Picky(bool);

impl Serialize for Picky {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            true => serializer.serialize_newtype_struct("Picky", &true),
            false => Err(serde::ser::Error::custom("no form")),
        }
    }
}

openraft::declare_raft_types!(
    /// With such data.
    pub PickyTypes: D = Picky, R = String
);

/// It panicked.
#[tokio::test(flavor = "multi_thread")]
async fn an_entry_that_cannot_be_encoded_is_an_error() {
    let mut log = open(&Memory::default()).group::<PickyTypes>(1).unwrap();
    let entry = |index, can| Entry::<PickyTypes> {
        log_id: id(1, index),
        payload: EntryPayload::Normal(Picky(can)),
    };
    let error = log.blocking_append([entry(0, true), entry(1, false)]).await.unwrap_err();
    assert!(error.to_string().contains("no form"), "{error}");
    log.blocking_append([entry(0, true)]).await.unwrap();
    assert_eq!(log.try_get_log_entries(..).await.unwrap().len(), 1);
}

/// The number of a node that cannot always be encoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
pub struct PickyId(u64);

impl std::fmt::Display for PickyId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for PickyId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            0 => Err(serde::ser::Error::custom("no form")),
            id => serializer.serialize_newtype_struct("PickyId", &id),
        }
    }
}

openraft::declare_raft_types!(
    /// With such numbers.
    pub PickyIdTypes: D = String, R = String, NodeId = PickyId
);

/// It panicked in the task of raft.
#[tokio::test(flavor = "multi_thread")]
async fn a_vote_that_cannot_be_encoded_is_an_error() {
    let mut log = open(&Memory::default()).group::<PickyIdTypes>(1).unwrap();
    log.save_vote(&Vote::new(1, PickyId(1))).await.unwrap();
    let error = log.save_vote(&Vote::new(2, PickyId(0))).await.unwrap_err();
    assert!(error.to_string().contains("no form"), "{error}");
    assert_eq!(log.read_vote().await.unwrap(), Some(Vote::new(1, PickyId(1))));
    log.save_committed(None).await.unwrap();
}
