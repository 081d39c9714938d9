//! Two writers of one database.

use crate::support::*;
use slatedb::object_store::local::LocalFileSystem;
use slatedb::object_store::memory::InMemory;
use slatedb::{CloseReason, Db, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

const FENCED: ErrorKind = ErrorKind::Closed(CloseReason::Fenced);

/// Writes until the database refuses. Returns the keys that were acknowledged, and the error.
async fn write(db: Db, acked: impl Fn(&str) + Send) -> ErrorKind {
    for number in 0.. {
        let key = format!("key {number}");
        match put(&db, &key, &[7; 100]).await {
            Ok(()) => acked(&key),
            Err(error) => return error.kind(),
        }
    }
    unreachable!("a database takes fewer rows")
}

/// A database that polls its manifest too seldom to notice by that.
#[tokio::test(flavor = "multi_thread")]
async fn an_old_writer_ends_before_the_new_one_begins() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let store: Store = Arc::new(InMemory::new());
    let mut old = open(&store, wal(&dir)).await.unwrap();
    for round in 0..5 {
        let (sender, mut acks) = tokio::sync::mpsc::unbounded_channel();
        let ack = move |key: &str| sender.send(key.to_owned()).unwrap();
        let writer = tokio::spawn(write(old.clone(), ack));
        let mut keys = Vec::new();
        for _ in 0..10 {
            keys.push(acks.recv().await.unwrap());
        }
        let new = open(&store, wal(&dir)).await.unwrap();
        assert_eq!(writer.await.unwrap(), FENCED);
        let error = put(&old, "late", b"").await.expect_err("it was fenced");
        assert_eq!(error.kind(), FENCED);
        while let Some(key) = acks.recv().await {
            keys.push(key);
        }
        for key in keys {
            assert!(has(&new, &key).await, "{key} was acknowledged in round {round}");
        }
        assert!(!has(&new, "late").await);
        old = new;
    }
    close(old).await;
}

/// An idle writer is fenced too.
#[tokio::test(flavor = "multi_thread")]
async fn an_old_writer_that_rests_lets_go() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let store: Store = Arc::new(InMemory::new());
    let old = open(&store, wal(&dir)).await.unwrap();
    put(&old, "old", b"").await.unwrap();
    let new = open(&store, wal(&dir)).await.unwrap();
    assert!(has(&new, "old").await);
    assert_eq!(put(&old, "late", b"").await.expect_err("it was fenced").kind(), FENCED);
    close(new).await;
}

/// A writer that does not react keeps the new one out. The log has one writer at any time.
#[tokio::test(flavor = "multi_thread")]
async fn a_writer_that_holds_the_lock_keeps_the_log() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let store: Store = Arc::new(InMemory::new());
    let held = small().open(dir.path()).unwrap();
    let waiting = open(&store, wal(&dir).patience(Duration::from_millis(50))).await;
    assert_eq!(waiting.err().expect("it is locked").kind(), ErrorKind::Unavailable);
    held.close().unwrap();
    let db = open(&store, wal(&dir)).await.unwrap();
    put(&db, "key", b"").await.unwrap();
    close(db).await;
}

fn local(dir: &std::path::Path) -> Store {
    std::fs::create_dir_all(dir.join("store")).unwrap();
    Arc::new(LocalFileSystem::new_with_prefix(dir.join("store")).unwrap())
}

#[test]
#[ignore = "the child of the next test"]
fn child() {
    let dir = dir_of_child();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let db = open(&local(&dir), wal(dir.join("wal"))).await.unwrap();
        let error = write(db, |key| println!("acked {key}")).await;
        println!("acked error {error:?}");
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_writer_of_another_process_ends_before_the_new_one_begins() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let mut child = spawn("fence::child", dir.path());
    let mut keys = vec![child.next("acked").expect("it acknowledges")];
    // The child must not wait for the pipe, or it would not see the request.
    let reading = std::thread::spawn(move || {
        while let Some(key) = child.next("acked") {
            keys.push(key);
        }
        keys
    });
    let new = open(&local(dir.path()), wal(dir.path().join("wal"))).await.unwrap();
    let mut keys = reading.join().unwrap();
    assert_eq!(keys.pop().unwrap(), format!("error {FENCED:?}"));
    for key in keys {
        assert!(has(&new, &key).await, "{key} was acknowledged");
    }
    close(new).await;
}

/// The control, and the limit: another host has another log. Only the manifest fences the old
/// writer. The new one lacks the rows that it acknowledges until it sees the manifest.
#[tokio::test(flavor = "multi_thread")]
async fn the_manifest_fences_an_old_writer_of_another_host() {
    let (here, there) = (tempfile::tempdir_in(".").unwrap(), tempfile::tempdir_in(".").unwrap());
    let store: Store = Arc::new(InMemory::new());
    let old = open(&store, wal(&here)).await.unwrap();
    put(&old, "flushed", b"").await.unwrap();
    flush_memtable(&old).await.unwrap();
    put(&old, "before", b"").await.unwrap();
    let new = open(&store, wal(&there).accept_loss(true)).await.unwrap();
    put(&old, "after", b"").await.expect("it has not seen the manifest");
    assert!(has(&new, "flushed").await);
    assert!(!has(&new, "before").await && !has(&new, "after").await);
    let refreshed = old.refresh_manifest().await.expect_err("it was fenced");
    assert_eq!(refreshed.kind(), FENCED);
    assert_eq!(put(&old, "late", b"").await.expect_err("it was fenced").kind(), FENCED);
    put(&new, "key", b"").await.unwrap();
    close(new).await;
}
