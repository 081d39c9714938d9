//! The rates of the adapters beside the storage that each project has.
//!
//!   cargo run --release --package rates -- DIR [RUNS]
//!
//! Both sides of a row run in turns on fresh files in DIR. Prints the median and the range of each
//! side, in operations a second.

use dioxide_object_store::DioxideStore as DioxideObjects;
use dioxide_raft_engine::DioxideFileSystem;
use dioxide_redb::DioxideBackend;
use dioxide_wal_db::DioxideStore;
use object_store::local::LocalFileSystem;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use raft_engine::env::{DefaultFileSystem, FileSystem};
use raft_engine::{Config, Engine, LogBatch, ReadableSize};
use redb::{Database, ReadableDatabase, TableDefinition};
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Instant;
use wal_db::{Wal, WalStore};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Returns operations a second.
type Run = fn(&Path, on_dioxide: bool) -> Result<f64>;

const VALUES: TableDefinition<u64, &[u8]> = TableDefinition::new("values");

const ROWS: &[(&str, Run)] = &[
    ("redb: commits of 1 insert", |dir, ours| commits(dir, ours, 1)),
    ("redb: commits of 100 inserts", |dir, ours| commits(dir, ours, 100)),
    ("redb: inserts, one commit of 200,000", load),
    ("redb: gets without a cache", gets),
    ("wal-db: append and sync, 1 thread", |dir, ours| wal(dir, ours, 1)),
    ("wal-db: append and sync, 16 threads", |dir, ours| wal(dir, ours, 16)),
    ("raft-engine: synced batches, 1 region", |dir, ours| raft(dir, ours, 1)),
    ("raft-engine: synced batches, 16 regions", |dir, ours| raft(dir, ours, 16)),
    ("object_store: puts of 4 KiB, 1 task", |dir, ours| puts(dir, ours, 1, 4 << 10)),
    ("object_store: puts of 4 KiB, 64 tasks", |dir, ours| puts(dir, ours, 64, 4 << 10)),
    ("object_store: puts of 16 MiB, 1 task", |dir, ours| puts(dir, ours, 1, 16 << 20)),
    ("object_store: puts of 16 MiB, 4 tasks", |dir, ours| puts(dir, ours, 4, 16 << 20)),
];

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let dir = args.next().ok_or("usage: rates DIR [RUNS]")?;
    let runs: usize = args.next().map_or(Ok(5), |runs| runs.parse())?;
    println!("{:42} {:>22} {:>22} {:>6}", "operations a second", "own", "dioxide", "ratio");
    for (name, run) in ROWS {
        let mut sides = [Vec::new(), Vec::new()];
        for turn in 0..2 * runs {
            let dir = tempfile::tempdir_in(&dir)?;
            sides[turn % 2].push(run(dir.path(), turn % 2 == 1)?);
        }
        sides.iter_mut().for_each(|side| side.sort_by(f64::total_cmp));
        let shown =
            |side: &[f64]| format!("{:.0} ({:.0}-{:.0})", side[runs / 2], side[0], side[runs - 1]);
        let ratio = sides[1][runs / 2] / sides[0][runs / 2];
        println!("{name:42} {:>22} {:>22} {ratio:>6.2}", shown(&sides[0]), shown(&sides[1]));
    }
    Ok(())
}

fn per_second(operations: u64, begun: Instant) -> f64 {
    operations as f64 / begun.elapsed().as_secs_f64()
}

fn database(dir: &Path, on_dioxide: bool, cache_bytes: usize) -> Result<Database> {
    let path = dir.join("data.redb");
    let mut builder = Database::builder();
    builder.set_cache_size(cache_bytes);
    Ok(match on_dioxide {
        true => builder.create_with_backend(DioxideBackend::open(path)?)?,
        false => builder.create(path)?,
    })
}

fn insert(database: &Database, random: &mut fastrand::Rng, count: u64) -> Result<()> {
    let write = database.begin_write()?;
    {
        let mut values = write.open_table(VALUES)?;
        for _ in 0..count {
            values.insert(random.u64(..1_000_000), [7; 150].as_slice())?;
        }
    }
    Ok(write.commit()?)
}

fn commits(dir: &Path, on_dioxide: bool, inserts: u64) -> Result<f64> {
    const COMMITS: u64 = 300;
    let database = database(dir, on_dioxide, 256 << 20)?;
    let mut random = fastrand::Rng::with_seed(1);
    insert(&database, &mut random, 20_000)?;
    let begun = Instant::now();
    for _ in 0..COMMITS {
        insert(&database, &mut random, inserts)?;
    }
    Ok(per_second(COMMITS, begun))
}

fn load(dir: &Path, on_dioxide: bool) -> Result<f64> {
    const INSERTS: u64 = 200_000;
    let database = database(dir, on_dioxide, 256 << 20)?;
    let begun = Instant::now();
    insert(&database, &mut fastrand::Rng::with_seed(2), INSERTS)?;
    Ok(per_second(INSERTS, begun))
}

fn gets(dir: &Path, on_dioxide: bool) -> Result<f64> {
    const GETS: u64 = 20_000;
    insert(&database(dir, on_dioxide, 256 << 20)?, &mut fastrand::Rng::with_seed(3), 100_000)?;
    let database = database(dir, on_dioxide, 0)?;
    let read = database.begin_read()?;
    let values = read.open_table(VALUES)?;
    let begun = Instant::now();
    let mut found = 0;
    for _ in 0..GETS {
        found += u64::from(values.get(fastrand::u64(..1_000_000))?.is_some());
    }
    assert!(found > 0);
    Ok(per_second(GETS, begun))
}

fn wal(dir: &Path, on_dioxide: bool, threads: u64) -> Result<f64> {
    let path = dir.join("records.wal");
    match on_dioxide {
        true => appends(&Wal::with_store(DioxideStore::open(path)?)?, threads),
        false => appends(&Wal::open(path)?, threads),
    }
}

fn appends<S: WalStore>(wal: &Wal<S>, threads: u64) -> Result<f64> {
    let records = 200 * threads.min(4);
    let begun = Instant::now();
    in_threads(threads, |_| {
        for _ in 0..records {
            let _lsn = wal.append_and_sync(&[7; 200])?;
        }
        Ok(())
    })?;
    Ok(per_second(records * threads, begun))
}

fn raft(dir: &Path, on_dioxide: bool, regions: u64) -> Result<f64> {
    let config = Config {
        dir: dir.to_str().ok_or("a path of text")?.into(),
        target_file_size: ReadableSize::mb(32),
        batch_compression_threshold: ReadableSize(0),
        ..Config::default()
    };
    match on_dioxide {
        true => batches(config, DioxideFileSystem::default(), regions),
        false => batches(config, DefaultFileSystem, regions),
    }
}

fn batches<F: FileSystem + 'static>(config: Config, system: F, regions: u64) -> Result<f64> {
    let engine = Engine::open_with_file_system(config, Arc::new(system))?;
    let count = 200 * regions.min(4);
    let begun = Instant::now();
    in_threads(regions, |region| {
        for number in 0..count {
            let mut batch = LogBatch::default();
            batch.put(region + 1, number.to_le_bytes().to_vec(), vec![7; 1000])?;
            engine.write(&mut batch, true)?;
        }
        Ok(())
    })?;
    Ok(per_second(count * regions, begun))
}

fn puts(dir: &Path, on_dioxide: bool, tasks: u64, bytes: usize) -> Result<f64> {
    let store: Arc<dyn ObjectStore> = match on_dioxide {
        true => Arc::new(DioxideObjects::new(dir)?),
        false => Arc::new(LocalFileSystem::new_with_prefix(dir)?.with_fsync(true)),
    };
    let count = if bytes > 1 << 20 { 8 } else { 200 / tasks.min(8) };
    let content = PutPayload::from(vec![7; bytes]);
    let runtime = tokio::runtime::Runtime::new()?;
    let begun = Instant::now();
    runtime.block_on(async {
        let put_all = |task: u64| {
            let (store, content) = (store.clone(), content.clone());
            tokio::spawn(async move {
                for number in 0..count {
                    // Two of a name replace each other.
                    let path = format!("{task}-{}", number % 4).into();
                    store.put(&path, content.clone()).await?;
                }
                Ok::<_, object_store::Error>(())
            })
        };
        for task in (0..tasks).map(put_all).collect::<Vec<_>>() {
            task.await??;
        }
        Ok::<_, Box<dyn Error + Send + Sync>>(())
    })?;
    Ok(per_second(count * tasks, begun))
}

fn in_threads(count: u64, work: impl Fn(u64) -> Result<()> + Sync) -> Result<()> {
    thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..count).map(|n| scope.spawn(move || work(n))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })
}
