//! The latency of durable puts: a local log, beside SlateDB's own WAL in the object store.
//!
//! `cargo run --release --example bench [DIRECTORY [SECONDS]]`. Both write below the directory. The
//! object store is a local file system with fsync, so a PUT costs no network here.

use dioxide_slatedb::LocalWal;
use slatedb::config::Settings;
use slatedb::object_store::ObjectStore;
use slatedb::object_store::local::LocalFileSystem;
use slatedb::{Db, Error};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const VALUE: [u8; 100] = [7; 100];

enum Wal {
    Local,
    Store { flush_interval: Duration },
}

async fn open(dir: &Path, wal: &Wal) -> Result<Db, Error> {
    std::fs::create_dir_all(dir.join("store")).expect("the directory is writable");
    let store = LocalFileSystem::new_with_prefix(dir.join("store")).expect("it is a directory");
    let store: Arc<dyn ObjectStore> = Arc::new(store.with_fsync(true));
    let mut settings = Settings { compactor_options: None, ..Settings::default() };
    settings.l0_max_ssts = 1000;
    settings.l0_max_ssts_per_key = 1000;
    if let Wal::Store { flush_interval } = wal {
        settings.flush_interval = Some(*flush_interval);
    }
    let builder = Db::builder("db", store).with_settings(settings);
    match wal {
        Wal::Local => builder.with_wal_writer(Box::new(LocalWal::new(dir.join("wal")))),
        Wal::Store { .. } => builder,
    }
    .build()
    .await
}

/// The latencies of the puts of one task until the end, in order of time.
async fn put_until(db: Db, task: u32, end: Instant) -> Result<Vec<Duration>, Error> {
    let mut latencies = Vec::new();
    while Instant::now() < end {
        let key = format!("{task} {}", latencies.len());
        let begun = Instant::now();
        db.put(key, VALUE).await?.await_durable().await?;
        latencies.push(begun.elapsed());
    }
    Ok(latencies)
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let mut args = std::env::args().skip(1);
    let dir = args.next().unwrap_or_else(|| ".".into());
    let seconds = args.next().map_or(5, |seconds| seconds.parse().expect("a number of seconds"));
    let seconds = Duration::from_secs(seconds);
    let store = |millis| Wal::Store { flush_interval: Duration::from_millis(millis) };
    let wals = [
        ("dioxide-slatedb", Wal::Local),
        ("SlateDB, 100 ms (default)", store(100)),
        ("SlateDB, 1 ms", store(1)),
    ];
    println!("{:<26} {:>5} {:>9} {:>9} {:>9}", "WAL", "tasks", "p50 ms", "p99 ms", "puts/s");
    for tasks in [1, 16] {
        for (name, wal) in &wals {
            let scratch = tempfile::tempdir_in(&dir).expect("the directory is writable");
            let db = open(scratch.path(), wal).await?;
            let (begun, end) = (Instant::now(), Instant::now() + seconds);
            let running: Vec<_> =
                (0..tasks).map(|task| tokio::spawn(put_until(db.clone(), task, end))).collect();
            let mut latencies = Vec::new();
            for task in running {
                latencies.extend(task.await.expect("no task panics")?);
            }
            let rate = latencies.len() as f64 / begun.elapsed().as_secs_f64();
            latencies.sort_unstable();
            let at =
                |share: usize| latencies[(latencies.len() - 1) * share / 100].as_secs_f64() * 1e3;
            println!("{name:<26} {tasks:>5} {:>9.3} {:>9.3} {rate:>9.0}", at(50), at(99));
            db.close().await?;
        }
    }
    Ok(())
}
