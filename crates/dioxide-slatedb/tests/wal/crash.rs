//! kill -9 of a process that writes, at random events, many times.

use crate::support::*;
use slatedb::config::{GarbageCollectorDirectoryOptions, GarbageCollectorOptions, Settings};
use slatedb::object_store::local::LocalFileSystem;
use slatedb::{Db, Error, GarbageCollectorBuilder};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const TASKS: u32 = 4;
/// Files: the number of the round, and whether keys are acknowledged too early.
const ROUND: &str = "round";
const EARLY: &str = "early";

fn local(dir: &Path) -> Store {
    std::fs::create_dir_all(dir.join("store")).unwrap();
    Arc::new(LocalFileSystem::new_with_prefix(dir.join("store")).unwrap())
}

/// A database that flushes and collects all the time.
async fn open_busy(dir: &Path, accept_loss: bool) -> Result<Db, Error> {
    let (store, wal) = (local(dir), wal(dir.join("wal")).accept_loss(accept_loss));
    let often = GarbageCollectorDirectoryOptions {
        interval: Some(Duration::from_millis(20)),
        min_age: Duration::ZERO,
        dry_run: false,
    };
    let options = GarbageCollectorOptions {
        wal_options: Some(often),
        wal_fence_options: None,
        ..GarbageCollectorOptions::default()
    };
    let collector = GarbageCollectorBuilder::new("db", store.clone()).with_options(options);
    Db::builder("db", store)
        .with_settings(Settings { l0_sst_size_bytes: 32 << 10, ..quiet() })
        .with_wal_writer(Box::new(wal.clone()))
        .with_gc_builder(collector.with_wal_gc(Arc::new(wal)))
        .build()
        .await
}

/// Opens it after any kill. SlateDB gives a writer its epoch before that asks for the log. A kill
/// between the two looks like a writer with another log.
async fn open_after_kill(dir: &Path, was_opening: bool) -> Db {
    match open_busy(dir, false).await {
        Err(error) if was_opening && error.to_string().contains("another writer opened") => {
            open_busy(dir, true).await.expect("the loss is accepted")
        }
        db => db.expect("it opens"),
    }
}

#[test]
#[ignore = "the child of the next tests"]
fn child() {
    let dir = dir_of_child();
    let round = std::fs::read_to_string(dir.join(ROUND)).unwrap();
    let is_early = dir.join(EARLY).exists();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        println!("event opens");
        let db = open_after_kill(&dir, true).await;
        println!("event is open");
        let write = |task: u32, db: Db, round: String| async move {
            for number in 0.. {
                let key = format!("{round} {task} {number}");
                let written = db.put(&key, [7u8; 400]).await.unwrap();
                if !is_early {
                    written.await_durable().await.unwrap();
                }
                println!("event acked {key}");
            }
        };
        let tasks: Vec<_> =
            (0..TASKS).map(|task| tokio::spawn(write(task, db.clone(), round.clone()))).collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
}

/// Kills one child at a random event. Returns the keys that it acknowledged, and whether it had not
/// opened the database.
fn kill_one(dir: &Path, round: u32, random: &mut fastrand::Rng) -> (Vec<String>, bool) {
    std::fs::write(dir.join(ROUND), round.to_string()).unwrap();
    let mut child = spawn("crash::child", dir);
    let events = [0, 1, 2, 3, 30, 100, 300][random.usize(..7)];
    let events = random.u32(events / 2..=events);
    let mut seen = Vec::new();
    for _ in 0..=events {
        seen.push(child.next("event").expect("it runs until it is killed"));
    }
    seen.extend(child.kill("event"));
    let acked = seen.iter().filter_map(|event| event.strip_prefix("acked "));
    (acked.map(String::from).collect(), !seen.iter().any(|event| event == "is open"))
}

async fn lost(dir: &Path, keys: &[String], was_opening: bool) -> Vec<String> {
    let db = open_after_kill(dir, was_opening).await;
    let mut lost = Vec::new();
    for key in keys {
        match db.get(key).await.unwrap() {
            Some(value) => assert_eq!(value, vec![7u8; 400]),
            None => lost.push(key.clone()),
        }
    }
    close(db).await;
    lost
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_process_loses_no_key_that_it_acknowledged() {
    let rounds = if std::env::var_os("DIOXIDE_TEST_ALL").is_some() { 100 } else { 25 };
    let dir = tempfile::tempdir_in(".").unwrap();
    let mut random = fastrand::Rng::new();
    let mut keys = Vec::new();
    println!("seed {}", random.get_seed());
    for round in 0..rounds {
        let (acked, was_opening) = kill_one(dir.path(), round, &mut random);
        keys.extend(acked);
        // Otherwise the next child recovers what two of them have left.
        if random.bool() || round + 1 == rounds {
            assert_eq!(lost(dir.path(), &keys, was_opening).await, [""; 0], "in round {round}");
        }
    }
    assert!(keys.len() > 100, "only {} keys were acknowledged", keys.len());
    println!("{} keys", keys.len());
}

/// The control: a process that acknowledges what is not durable loses keys.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_process_loses_keys_that_it_acknowledged_too_early() {
    let dir = tempfile::tempdir_in(".").unwrap();
    std::fs::write(dir.path().join(EARLY), "").unwrap();
    let mut random = fastrand::Rng::new();
    let mut keys = Vec::new();
    for round in 0..200 {
        let (acked, was_opening) = kill_one(dir.path(), round, &mut random);
        keys.extend(acked);
        if !lost(dir.path(), &keys, was_opening).await.is_empty() {
            return;
        }
    }
    panic!("200 kills lost nothing");
}
