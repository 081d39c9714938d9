//! Clones of databases, and their deletion. After the test of a clone in SlateDB.

use crate::support::*;
use dioxide_slatedb::{LocalWal, LocalWalAdmin};
use slatedb::admin::{Admin, CloneSourceSpec};
use slatedb::object_store::memory::InMemory;
use slatedb::object_store::path::Path as DbPath;
use slatedb::wal::WalAdmin;
use slatedb::{Db, Error};
use std::path::Path;
use std::sync::Arc;

fn wal_of(dir: &Path, db: &str) -> LocalWal {
    wal(dir.join(db))
}

fn wals(dir: &Path) -> Arc<LocalWalAdmin> {
    let dir = dir.to_owned();
    Arc::new(LocalWalAdmin::new(move |db| wal_of(&dir, db.as_ref())))
}

async fn open_db(store: &Store, dir: &Path, db: &str) -> Result<Db, Error> {
    Db::builder(db, store.clone())
        .with_settings(quiet())
        .with_wal_writer(Box::new(wal_of(dir, db)))
        .build()
        .await
}

async fn clone(store: &Store, dir: &Path) -> Result<(), String> {
    Admin::builder("clone", store.clone())
        .with_wal_admin(wals(dir))
        .build()
        .create_clone_builder_from_source(CloneSourceSpec::new("db"))
        .build()
        .await
        .map_err(|error| error.to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clone_has_the_rows_of_its_database() {
    for is_flushed in [false, true] {
        let (dir, store) = (tempfile::tempdir_in(".").unwrap(), Arc::new(InMemory::new()) as Store);
        let db = open_db(&store, dir.path(), "db").await.unwrap();
        for number in 0..100 {
            put(&db, &format!("key {number}"), &[7; 3000]).await.unwrap();
        }
        if is_flushed {
            flush_memtable(&db).await.unwrap();
        }
        put(&db, "last", b"value").await.unwrap();
        close(db).await;
        let db_path = DbPath::from("db");
        assert!(!wals(dir.path()).is_empty(&db_path, 0, 100).await.unwrap());
        assert!(wals(dir.path()).is_empty(&db_path, 0, 1).await.unwrap(), "only an epoch");
        assert!(wals(dir.path()).is_empty(&db_path, 50, 50).await.unwrap());

        // A crash has left a part of a copy.
        let other = Arc::new(InMemory::new()) as Store;
        close(open_db(&other, dir.path(), "clone").await.unwrap()).await;
        let refused = clone(&store, dir.path()).await.unwrap_err();
        assert!(refused.contains("another log"), "{refused}");
        std::fs::write(dir.path().join("clone/clone"), "").unwrap();
        clone(&store, dir.path()).await.unwrap();

        for db in ["clone", "db"] {
            let db = open_db(&store, dir.path(), db).await.unwrap();
            for number in 0..100 {
                assert!(has(&db, &format!("key {number}")).await);
            }
            assert!(has(&db, "last").await);
            put(&db, "it takes more", b"").await.unwrap();
            close(db).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_without_a_writer_is_deleted() {
    let (dir, store) = (tempfile::tempdir_in(".").unwrap(), Arc::new(InMemory::new()) as Store);
    let (wals, db_path) = (wals(dir.path()), DbPath::from("db"));
    assert_eq!(wals.delete_wal(&db_path, false).await.unwrap(), [""; 0]);
    let db = open_db(&store, dir.path(), "db").await.unwrap();
    put(&db, "key", b"value").await.unwrap();
    wals.delete_wal(&db_path, false).await.expect_err("it has a writer");
    close(db).await;
    let would = wals.delete_wal(&db_path, true).await.unwrap();
    assert!(dir.path().join("db").exists() && would.len() > 2, "{would:?}");
    assert!(!wals.delete_wal(&db_path, false).await.unwrap().is_empty());
    assert!(!dir.path().join("db").exists());
}

/// The bug: files of others were deleted, and a directory ended the deletion half-way.
#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_refuses_what_is_not_of_the_log() {
    let (dir, store) = (tempfile::tempdir_in(".").unwrap(), Arc::new(InMemory::new()) as Store);
    let (wals, db_path) = (wals(dir.path()), DbPath::from("db"));
    for name in ["db", "db/child"] {
        let db = open_db(&store, dir.path(), name).await.unwrap();
        put(&db, "key", b"value").await.unwrap();
        close(db).await;
    }
    let error = wals.delete_wal(&db_path, false).await.unwrap_err().to_string();
    assert!(error.contains("db/child"), "{error}");
    assert!(has(&open_db(&store, dir.path(), "db").await.unwrap(), "key").await);
    wals.delete_wal(&DbPath::from("db/child"), false).await.unwrap();
    std::fs::write(dir.path().join("db/notes"), "").unwrap();
    let error = wals.delete_wal(&db_path, true).await.unwrap_err().to_string();
    assert!(error.contains("db/notes"), "{error}");
}

/// The bug: a deletion that a crash had interrupted failed from then on.
#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_deletion_is_repeated() {
    let (dir, store) = (tempfile::tempdir_in(".").unwrap(), Arc::new(InMemory::new()) as Store);
    let (wals, db_path) = (wals(dir.path()), DbPath::from("db"));
    let db = open_db(&store, dir.path(), "db").await.unwrap();
    for number in 0..100 {
        put(&db, &format!("key {number}"), &[7; 3000]).await.unwrap();
    }
    close(db).await;
    let mut segments = wals.delete_wal(&db_path, true).await.unwrap();
    segments.retain(|path| path.contains("/segment-"));
    segments.sort();
    assert!(segments.len() > 2, "{segments:?}");
    std::fs::remove_file(&segments[1]).unwrap();
    wals.delete_wal(&db_path, false).await.unwrap();
    assert!(!dir.path().join("db").exists());
}
