//! Power cuts and full disks, on a simulated disk. The object store keeps all that it has.

use crate::support::*;
use dioxide_log::storage::memory::{Faults, Memory};
use dioxide_log::{Durability, LogOptions};
use dioxide_slatedb::LocalWal;
use slatedb::object_store::memory::InMemory;
use slatedb::{Error, WriteBatch};
use std::sync::Arc;
use std::time::Duration;

const KEYS: u32 = 60;

fn on(disk: &Memory, options: LogOptions) -> LocalWal {
    LocalWal::on_storage(Arc::new(disk.clone())).log_options(options)
}

fn value(key: u32) -> Vec<u8> {
    vec![key as u8; key as usize % 7 * 1000]
}

/// Writes until the disk fails. Returns how many keys were acknowledged.
async fn write(disk: &Memory, store: &Store, options: LogOptions) -> (u32, Result<(), Error>) {
    let mut acked = 0;
    let result = write_all(store, on(disk, options), &mut acked).await;
    (acked, result)
}

async fn write_all(store: &Store, wal: LocalWal, acked: &mut u32) -> Result<(), Error> {
    let db = open(store, wal.clone()).await?;
    for key in 0..KEYS {
        // A batch of two rows: both or none.
        let mut batch = WriteBatch::new();
        batch.put(format!("a {key}"), value(key));
        batch.put(format!("b {key}"), value(key));
        db.write(batch).await?.await_durable().await?;
        *acked = key + 1;
        if key % 25 == 24 {
            flush_memtable(&db).await?;
            collect(store, &wal, Duration::ZERO).await;
        }
    }
    close(db).await;
    Ok(())
}

/// Whether a key that was acknowledged is missing. No batch may be there by half.
async fn loses(disk: &Memory, store: &Store, acked: u32) -> bool {
    let Ok(db) = open(store, on(disk, small())).await else { return true };
    let mut lost = false;
    for key in 0..KEYS {
        let a = db.get(format!("a {key}")).await.unwrap();
        assert_eq!(a, db.get(format!("b {key}")).await.unwrap(), "a part of batch {key}");
        assert!(a.as_ref().is_none_or(|found| found[..] == value(key)));
        lost |= a.is_none() && key < acked;
    }
    put(&db, "it takes more", b"").await.unwrap();
    close(db).await;
    lost
}

fn store() -> Store {
    Arc::new(InMemory::new())
}

#[tokio::test(flavor = "multi_thread")]
async fn no_power_cut_loses_an_acknowledged_key() {
    let disk = Memory::default();
    let (acked, result) = write(&disk, &store(), small()).await;
    result.unwrap();
    assert_eq!(acked, KEYS);
    let calls = disk.calls();
    assert!(calls > u64::from(KEYS), "each key needs a write");
    let mut after_some = 0;
    for call in 1..=calls {
        let disk = Memory::new(Faults { power_cut: Some(call), ..Faults::default() });
        let store = store();
        let (acked, _) = write(&disk, &store, small()).await;
        after_some += u32::from(acked > 0);
        let disk = disk.after_power_cut(call);
        assert!(!loses(&disk, &store, acked).await, "power cut in call {call} after {acked} keys");
    }
    assert!(after_some > KEYS / 2, "only {after_some} power cuts came after a key");
}

/// How many of 30 power cuts lose keys.
async fn losses(faults: Faults, options: LogOptions) -> u32 {
    let mut losses = 0;
    for seed in 0..30 {
        let (disk, store) = (Memory::new(faults.clone()), store());
        let db = open(&store, on(&disk, options.clone())).await.unwrap();
        for key in 0..20 {
            put(&db, &format!("a {key}"), &value(key)).await.unwrap();
            put(&db, &format!("b {key}"), &value(key)).await.unwrap();
        }
        let after = disk.after_power_cut(seed);
        drop(db);
        // The rows are no batch here, so a half of them may be there.
        let lost = match open(&store, on(&after, small())).await {
            Err(_) => true,
            Ok(db) => {
                let mut lost = false;
                for key in 0..20 {
                    lost |= !has(&db, &format!("a {key}")).await;
                    lost |= !has(&db, &format!("b {key}")).await;
                }
                lost
            }
        };
        losses += u32::from(lost);
    }
    losses
}

/// The controls: a disk that lies about flushes, and keys that are acknowledged before the flush.
#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_lies_loses_keys() {
    let lies = losses(Faults { lies: true, ..Faults::default() }, small()).await;
    assert!(lies > 5, "only {lies} of 30 power cuts lost keys");
    let early = losses(Faults::default(), small().durability(Durability::OnSync)).await;
    assert!(early > 5, "only {early} of 30 power cuts lost keys");
    assert_eq!(losses(Faults::default(), small()).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_loses_no_acknowledged_key() {
    let disk = Memory::new(Faults { segments_max: Some(2), ..Faults::default() });
    let store = store();
    let (acked, result) = write(&disk, &store, small()).await;
    result.expect_err("two segments are too few");
    assert!(acked > 0 && acked < 25, "{acked}");
    assert!(!loses(&disk.after_kill(), &store, acked).await);
}
