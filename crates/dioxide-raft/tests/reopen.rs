//! Groups whose log is opened again, with or without a close.

use dioxide_log::LogOptions;
use dioxide_log::storage::memory::Memory;
use dioxide_raft::{Error, GroupLog, RaftLogs};
use openraft::storage::{RaftLogStorage, RaftLogStorageExt};
use openraft::{CommittedLeaderId, Entry, EntryPayload, LogId, RaftLogReader, Vote};
use std::io::Cursor;
use std::sync::Arc;

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
        assert_eq!(log.read_vote().await.unwrap(), Some(Vote::new_committed(3, 1)));
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

/// The control: a disk that lies about flushes loses votes or entries.
#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_lies_loses_votes() {
    let faults = dioxide_log::storage::memory::Faults { lies: true, ..Default::default() };
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
