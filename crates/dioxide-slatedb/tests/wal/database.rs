//! What a database expects of its log. After the model of the tests of a custom WAL in SlateDB.

use crate::support::*;
use dioxide_log::{LogReader, Lsn};
use dioxide_slatedb::LocalWal;
use slatedb::config::{DbReaderOptions, PutOptions, Ttl, WriteOptions};
use slatedb::object_store::memory::InMemory;
use slatedb::wal::{WalError, WalFileRange, WalReader};
use slatedb::{Db, DbReader, DbReaderMode, ErrorKind, IsolationLevel, WriteBatch};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

fn store() -> Store {
    Arc::new(InMemory::new())
}

fn first_lsn(dir: &Path) -> Lsn {
    LogReader::open(dir).unwrap().first_lsn()
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_come_back_after_a_close_and_after_a_drop() {
    let (dir, store) = (tempfile::tempdir_in(".").unwrap(), store());
    let db = open(&store, wal(&dir)).await.unwrap();
    put(&db, "a", b"1").await.unwrap();
    put(&db, "b", b"2").await.unwrap();
    db.delete("a").await.unwrap().await_durable().await.unwrap();
    let expires = PutOptions { ttl: Ttl::ExpireAfterMillis(3_600_000) };
    let written = db.put_with_options("c", "3", &expires, &WriteOptions::default()).await.unwrap();
    written.await_durable().await.unwrap();
    let before = db.get_key_value("c").await.unwrap().unwrap();
    close(db).await;

    let db = open(&store, wal(&dir)).await.unwrap();
    assert!(!has(&db, "a").await);
    assert_eq!(db.get("b").await.unwrap().unwrap(), "2");
    assert_eq!(db.get_key_value("c").await.unwrap().unwrap(), before);
    put(&db, "d", b"4").await.unwrap();
    drop(db);

    let db = open(&store, wal(&dir)).await.unwrap();
    assert!(has(&db, "b").await && has(&db, "d").await);
    close(db).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_may_be_larger_than_a_segment() {
    let (dir, store) = (tempfile::tempdir_in(".").unwrap(), store());
    let db = open(&store, wal(&dir)).await.unwrap();
    let mut batch = WriteBatch::new();
    for row in 0..1000u64 {
        batch.put(row.to_be_bytes(), vec![row as u8; 2000]);
    }
    batch.put("long", vec![7u8; 3 << 20]);
    db.write(batch).await.unwrap().await_durable().await.unwrap();
    close(db).await;
    let db = open(&store, wal(&dir)).await.unwrap();
    for row in 0..1000u64 {
        assert_eq!(db.get(row.to_be_bytes()).await.unwrap().unwrap(), vec![row as u8; 2000]);
    }
    assert_eq!(db.get("long").await.unwrap().unwrap().len(), 3 << 20);
    close(db).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_conflicts_leaves_nothing_in_the_log() {
    let (dir, store) = (tempfile::tempdir_in(".").unwrap(), store());
    let db = open(&store, wal(&dir)).await.unwrap();
    let one = db.begin(IsolationLevel::Snapshot).unwrap();
    let two = db.begin(IsolationLevel::Snapshot).unwrap();
    one.put("key", "one").unwrap();
    two.put("key", "two").unwrap();
    let committed = one.commit().await.unwrap().expect("it has writes");
    committed.await_durable().await.unwrap();
    let error = two.commit().await.expect_err("it conflicts");
    assert_eq!(error.kind(), ErrorKind::Transaction);
    close(db).await;
    let db = open(&store, wal(&dir)).await.unwrap();
    assert_eq!(db.get("key").await.unwrap().unwrap(), "one");
    close(db).await;
}

/// Random operations and reopens, beside a map.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_equals_a_map() {
    for seed in 0..8 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (dir, store) = (tempfile::tempdir_in(".").unwrap(), store());
        let mut model = BTreeMap::new();
        let wal = wal(&dir);
        let mut db = open(&store, wal.clone()).await.unwrap();
        for step in 0..300 {
            let key = format!("{:02}", random.u32(..40));
            match random.u32(..100) {
                0..60 => {
                    let value = vec![step as u8; random.usize(..4000)];
                    db.put(&key, &value).await.unwrap();
                    model.insert(key, value);
                }
                60..80 => {
                    db.delete(&key).await.unwrap();
                    model.remove(&key);
                }
                80..90 => {
                    let mut batch = WriteBatch::new();
                    for _ in 0..random.u32(1..20) {
                        let key = format!("{:02}", random.u32(..40));
                        let value = vec![step as u8; random.usize(..9000)];
                        batch.put(&key, &value);
                        model.insert(key, value);
                    }
                    db.write(batch).await.unwrap();
                }
                90..94 => flush_memtable(&db).await.unwrap(),
                94..97 => collect(&store, &wal, Duration::ZERO).await,
                _ => {
                    // A close without a flush of the memtable writes all that was appended.
                    close(db).await;
                    collect(&store, &wal, Duration::ZERO).await;
                    db = open(&store, wal.clone()).await.unwrap();
                }
            }
        }
        let mut rows = db.scan(..).await.unwrap();
        for (key, value) in &model {
            let row = rows.next().await.unwrap().unwrap();
            assert_eq!((&row.key[..], &row.value[..]), (key.as_bytes(), &value[..]), "{seed}");
        }
        assert!(rows.next().await.unwrap().is_none());
        close(db).await;
    }
}

async fn reader(store: &Store, wal: LocalWal) -> DbReader {
    let options = DbReaderOptions {
        manifest_poll_interval: Duration::from_millis(20),
        ..DbReaderOptions::default()
    };
    DbReader::builder("db", store.clone())
        .with_reader_mode(DbReaderMode::FollowLatest)
        .with_options(options)
        .with_wal_reader(Arc::new(wal))
        .build()
        .await
        .expect("the reader opens")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_follows_the_log() {
    let (dir, store) = (tempfile::tempdir_in(".").unwrap(), store());
    let written = wal(&dir);
    let db = open(&store, written.clone()).await.unwrap();
    put(&db, "key 0", b"value").await.unwrap();
    let reader = reader(&store, wal(&dir)).await;
    assert!(reader.get("key 0").await.unwrap().is_some());
    for number in 1..20 {
        let key = format!("key {number}");
        put(&db, &key, &[number; 9000]).await.unwrap();
        if number % 8 == 0 {
            flush_memtable(&db).await.unwrap();
            collect(&store, &written, Duration::ZERO).await;
        }
        let seen = async {
            while reader.get(&key).await.unwrap().is_none() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), seen).await.expect("the reader sees it");
    }
    reader.close().await.unwrap();
    close(db).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_iterator_without_end_waits_for_the_next_rows() {
    let (dir, store) = (tempfile::tempdir_in(".").unwrap(), store());
    let db = open(&store, wal(&dir)).await.unwrap();
    let from = |first| WalFileRange(Bound::Excluded(first), Bound::Unbounded);
    let mut rows = wal(&dir).iterator(from(1)).await.unwrap();
    for number in 0..20 {
        let key = format!("key {number}");
        let next = tokio::spawn(async move { (rows.next().await, rows) });
        put(&db, &key, b"value").await.unwrap();
        let (next, again) = next.await.unwrap();
        let next = next.unwrap().expect("it never ends");
        assert_eq!((next.rows.len(), &next.rows[0].key[..]), (1, key.as_bytes()));
        assert_eq!(next.last_consumed_wal_file_id, number + 2);
        rows = again;
    }
    assert_eq!(wal(&dir).last_wal_file_id(0).await.unwrap(), 21);
    assert_eq!(wal(&dir).last_wal_file_id(50).await.unwrap(), 50);
    close(db).await;
}

/// It ended then, as at the end of the log.
#[tokio::test(flavor = "multi_thread")]
async fn an_iterator_goes_on_after_a_call_that_was_dropped() {
    let (dir, store) = (tempfile::tempdir_in(".").unwrap(), store());
    let db = open(&store, wal(&dir)).await.unwrap();
    for number in 0..100 {
        put(&db, &format!("key {number}"), &[7; 3000]).await.unwrap();
    }
    let last = wal(&dir).last_wal_file_id(0).await.unwrap();
    let range = WalFileRange(Bound::Included(1), Bound::Included(last));
    let mut rows = wal(&dir).iterator(range).await.unwrap();
    let polled = rows.next().as_mut().poll(&mut Context::from_waker(Waker::noop()));
    let mut found = match polled {
        Poll::Ready(next) => next.unwrap().unwrap().rows.len(),
        Poll::Pending => 0,
    };
    while let Some(next) = rows.next().await.unwrap() {
        found += next.rows.len();
    }
    assert_eq!(found, 100);
    close(db).await;
}

/// The second call returned the end of the log.
#[tokio::test(flavor = "multi_thread")]
async fn an_iterator_that_failed_fails_again() {
    let (dir, store) = (tempfile::tempdir_in(".").unwrap(), store());
    let db = open(&store, wal(&dir)).await.unwrap();
    for number in 0..100 {
        put(&db, &format!("key {number}"), &[7; 3000]).await.unwrap();
    }
    close(db).await;
    let range = WalFileRange(Bound::Included(1), Bound::Included(101));
    let mut rows = wal(&dir).iterator(range).await.unwrap();
    for file in std::fs::read_dir(&dir).unwrap() {
        let path = file.unwrap().path();
        let mut content = std::fs::read(&path).unwrap();
        for at in 0..content.len().saturating_sub(6) {
            if content[at..].starts_with(b"key 50") {
                content[at] ^= 1;
            }
        }
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.write_all_at(&content, 0).unwrap();
        // Direct reads see it once it is stable.
        file.sync_all().unwrap();
    }
    for _ in 0..2 {
        let error = rows.next().await.err().expect("record 52 is damaged");
        assert!(matches!(error, WalError::DataError(_)), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_collector_frees_what_the_manifest_does_not_need() {
    let (dir, store) = (tempfile::tempdir_in(".").unwrap(), store());
    let wal = wal(&dir);
    let db = open(&store, wal.clone()).await.unwrap();
    // Record 1 is the epoch of the writer.
    for number in 2..=4 {
        put(&db, &format!("key {number}"), b"value").await.unwrap();
    }
    collect(&store, &wal, Duration::ZERO).await;
    assert_eq!(first_lsn(dir.path()), Lsn(1), "no memtable was flushed");
    flush_memtable(&db).await.unwrap();
    put(&db, "key 5", b"value").await.unwrap();
    collect(&store, &wal, Duration::from_secs(3600)).await;
    assert_eq!(first_lsn(dir.path()), Lsn(1), "they are not old enough");
    collect(&store, &wal, Duration::ZERO).await;
    assert_eq!(first_lsn(dir.path()), Lsn(4), "the last record that was flushed stays");
    flush_memtable(&db).await.unwrap();
    // Another process cannot. It leaves the log alone.
    collect(&store, &LocalWal::new(dir.path()), Duration::ZERO).await;
    assert_eq!(first_lsn(dir.path()), Lsn(4));
    close(db).await;
    collect(&store, &LocalWal::new(dir.path()), Duration::ZERO).await;
    assert_eq!(first_lsn(dir.path()), Lsn(5), "no writer has it open");
    let db = open(&store, wal).await.unwrap();
    for number in 2..=5 {
        assert!(has(&db, &format!("key {number}")).await);
    }
    close(db).await;
}

async fn refused(store: &Store, wal: LocalWal) -> String {
    let error = open(store, wal).await.err().expect("the log lacks rows");
    assert_eq!(error.kind(), ErrorKind::Data, "{error}");
    error.to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_log_is_noticed() {
    for flushed in [false, true] {
        let (dir, other) = (tempfile::tempdir_in(".").unwrap(), tempfile::tempdir_in(".").unwrap());
        let store = store();
        let db = open(&store, wal(&dir)).await.unwrap();
        for number in 0..50 {
            put(&db, &format!("key {number}"), b"value").await.unwrap();
        }
        if flushed {
            flush_memtable(&db).await.unwrap();
        }
        put(&db, "only in the log", b"value").await.unwrap();
        close(db).await;

        let reason = refused(&store, wal(&other)).await;
        assert!(reason.contains("accept_loss"), "{reason}");
        refused(&store, wal(&other)).await;
        // The log is still whole. But the other writer could have acknowledged rows.
        refused(&store, wal(&dir)).await;
        let db = open(&store, wal(&dir).accept_loss(true)).await.unwrap();
        assert!(has(&db, "only in the log").await && has(&db, "key 7").await);
        close(db).await;
        // This writer ends without a close. So the manifest does not show where its log ends.
        let db = open(&store, wal(&dir)).await.unwrap();
        for number in 0..100 {
            put(&db, &format!("branch {number}"), b"value").await.unwrap();
        }
        drop(db);

        let db = open(&store, wal(&other).accept_loss(true)).await.unwrap();
        assert!(!has(&db, "only in the log").await);
        assert_eq!(has(&db, "key 7").await, flushed);
        put(&db, "new", b"value").await.unwrap();
        close(db).await;
        let db = open(&store, wal(&other)).await.unwrap();
        assert!(has(&db, "new").await);
        flush_memtable(&db).await.unwrap();
        close(db).await;

        // The first log has rows that are not part of the database any more.
        refused(&store, wal(&dir)).await;
        let db = open(&store, wal(&dir).accept_loss(true)).await.unwrap();
        assert!(has(&db, "new").await && !has(&db, "only in the log").await);
        for number in 0..100 {
            assert!(!has(&db, &format!("branch {number}")).await);
        }
        close(db).await;
    }
}

/// The bug: the next writer took its epoch for that of a writer with another log.
#[tokio::test(flavor = "multi_thread")]
async fn an_open_that_failed_is_known_to_the_next() {
    let (dir, store) = (tempfile::tempdir_in(".").unwrap(), store());
    let db = open(&store, wal(&dir)).await.unwrap();
    for number in 0..100 {
        put(&db, &format!("key {number}"), &[7; 3000]).await.unwrap();
    }
    close(db).await;
    let mut segments: Vec<_> = std::fs::read_dir(&dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_str().unwrap().contains("/segment-"))
        .collect();
    segments.sort();
    let aside = dir.path().join("aside");
    std::fs::rename(&segments[1], &aside).unwrap();
    let error = open(&store, wal(&dir)).await.err().expect("a segment is missing");
    assert!(error.to_string().contains("missing"), "{error}");
    std::fs::rename(&aside, &segments[1]).unwrap();
    let db = open(&store, wal(&dir)).await.unwrap();
    assert!(has(&db, "key 50").await);
    close(db).await;
}

/// The bug: an open that failed had accepted the loss for the next one.
#[tokio::test(flavor = "multi_thread")]
async fn a_loss_is_accepted_for_an_open_that_succeeds() {
    let (dir, other) = (tempfile::tempdir_in(".").unwrap(), tempfile::tempdir_in(".").unwrap());
    let store = store();
    for dir in [&dir, &other] {
        let db = open(&store, wal(dir).accept_loss(true)).await.unwrap();
        put(&db, "key", b"value").await.unwrap();
        close(db).await;
    }
    let held = small().open(dir.path()).unwrap();
    let accepting = wal(&dir).accept_loss(true).patience(Duration::from_millis(50));
    open(&store, accepting).await.err().expect("it is locked");
    held.close().unwrap();
    let reason = refused(&store, wal(&dir)).await;
    assert!(reason.contains("accept_loss"), "{reason}");
    close(open(&store, wal(&dir).accept_loss(true)).await.unwrap()).await;
    close(open(&store, wal(&dir)).await.unwrap()).await;
}

/// Rows of the old database came into the new one, for example when a bucket was emptied.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_database_does_not_take_the_log_of_another() {
    let (dir, old, new) = (tempfile::tempdir_in(".").unwrap(), store(), store());
    let db = open(&old, wal(&dir)).await.unwrap();
    put(&db, "old", b"value").await.unwrap();
    close(db).await;
    for accept in [false, true] {
        let reason = refused(&store(), wal(&dir).accept_loss(accept)).await;
        assert!(reason.contains("new"), "{reason}");
    }
    refused(&new, wal(&dir)).await;
    // A second writer of the new database has the epoch that the old one has next.
    refused(&new, wal(&dir)).await;
    refused(&old, wal(&dir)).await;
    let db = open(&old, wal(&dir).accept_loss(true)).await.unwrap();
    assert!(has(&db, "old").await, "its log is whole");
    close(db).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_copy_of_the_log_is_noticed() {
    let (dir, copy) = (tempfile::tempdir_in(".").unwrap(), tempfile::tempdir_in(".").unwrap());
    let store = store();
    let db = open(&store, wal(&dir)).await.unwrap();
    put(&db, "key 1", b"value").await.unwrap();
    close(db).await;
    for file in std::fs::read_dir(&dir).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), copy.path().join(file.file_name())).unwrap();
    }
    let db = open(&store, wal(&dir)).await.unwrap();
    put(&db, "key 2", b"value").await.unwrap();
    flush_memtable(&db).await.unwrap();
    put(&db, "key 3", b"value").await.unwrap();
    flush_memtable(&db).await.unwrap();
    close(db).await;
    let reason = refused(&store, wal(&copy)).await;
    assert!(reason.contains("ends before"), "{reason}");
    let db = open(&store, wal(&copy).accept_loss(true)).await.unwrap();
    assert!(has(&db, "key 1").await && has(&db, "key 3").await);
    close(db).await;
}

/// An object store that was restored from an old copy needs records that were freed.
#[tokio::test(flavor = "multi_thread")]
async fn an_older_copy_of_the_store_is_noticed() {
    let (dir, log, copy) = (
        tempfile::tempdir_in(".").unwrap(),
        tempfile::tempdir_in(".").unwrap(),
        tempfile::tempdir_in(".").unwrap(),
    );
    let local = |path: &Path| -> Store {
        use slatedb::object_store::local::LocalFileSystem;
        Arc::new(LocalFileSystem::new_with_prefix(path).unwrap())
    };
    let store = local(dir.path());
    let db = open(&store, wal(&log)).await.unwrap();
    put(&db, "key 1", b"value").await.unwrap();
    close(db).await;
    let copied = std::process::Command::new("cp")
        .arg("-r")
        .arg(dir.path().join("db"))
        .arg(copy.path())
        .status()
        .unwrap();
    assert!(copied.success());
    let db = open(&store, wal(&log)).await.unwrap();
    flush_memtable(&db).await.unwrap();
    close(db).await;
    collect(&store, &wal(&log), Duration::ZERO).await;
    let reason = refused(&local(copy.path()), wal(&log)).await;
    assert!(reason.contains("needs"), "{reason}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_comes_from_its_own_wal_and_goes_back() {
    let (dir, store) = (tempfile::tempdir_in(".").unwrap(), store());
    let own = async || Db::open("db", store.clone()).await.unwrap();
    let db = own().await;
    put(&db, "key 1", b"value").await.unwrap();
    // It flushes the memtable.
    db.close().await.unwrap();
    refused(&store, wal(&dir)).await;
    let db = open(&store, wal(&dir).accept_loss(true)).await.unwrap();
    assert!(has(&db, "key 1").await);
    put(&db, "key 2", b"value").await.unwrap();
    db.close().await.unwrap();
    let db = own().await;
    put(&db, "key 3", b"value").await.unwrap();
    for number in 1..=3 {
        assert!(has(&db, &format!("key {number}")).await);
    }
    db.close().await.unwrap();
    let db = own().await;
    assert!(has(&db, "key 3").await);
    db.close().await.unwrap();
    let reason = refused(&store, wal(&dir)).await;
    assert!(reason.contains("accept_loss"), "{reason}");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_tasks_write_at_once() {
    let (dir, store) = (tempfile::tempdir_in(".").unwrap(), store());
    let db = open(&store, wal(&dir)).await.unwrap();
    let write = |task: u32, db: Db| async move {
        for number in 0..100 {
            put(&db, &format!("{task} {number}"), &[7; 500]).await.unwrap();
        }
    };
    let tasks: Vec<_> = (0..16).map(|task| tokio::spawn(write(task, db.clone()))).collect();
    for task in tasks {
        task.await.unwrap();
    }
    close(db).await;
    let db = open(&store, wal(&dir)).await.unwrap();
    for task in 0..16 {
        for number in 0..100 {
            assert!(has(&db, &format!("{task} {number}")).await);
        }
    }
    close(db).await;
}
