//! foyer's hybrid cache on the engine, under load.

use dioxide_foyer::DioxideEngineConfig;
use foyer::{Code, Error, HybridCache, HybridCacheBuilder, HybridCachePolicy, Load};
use std::fs;
use std::future::Future;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Waker};

type Cache = HybridCache<u64, Vec<u8>>;

fn dir() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

async fn open(path: &Path, memory_bytes: usize, disk_bytes: u64) -> Cache {
    HybridCacheBuilder::new()
        .memory(memory_bytes)
        .with_weighter(|_, value: &Vec<u8>| value.len())
        .storage()
        .with_engine_config(DioxideEngineConfig::new(path, disk_bytes))
        .build()
        .await
        .unwrap()
}

/// A value that proves its key and version.
fn value(key: u64, version: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(key << 32 | version);
    let len = random.usize(..20_000);
    let mut value = [key.to_le_bytes(), version.to_le_bytes()].concat();
    value.extend(std::iter::repeat_with(|| random.u8(..)).take(len));
    value
}

fn version_of(value: &[u8]) -> u64 {
    u64::from_le_bytes(value[8..16].try_into().expect("eight bytes"))
}

/// Polls a future a few times, then drops it.
fn poll_and_drop(future: impl Future, polls: u32) {
    let mut future = pin!(future);
    for _ in 0..polls {
        if future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_hit_is_a_whole_value_while_futures_are_dropped() {
    const TASKS: u64 = 8;
    let dir = dir();
    // The disk has room for a fraction of the values, so the ring goes round.
    let cache = open(&dir.path().join("cache"), 256 << 10, 4 << 20).await;
    let hits = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let (cache, hits) = (cache.clone(), hits.clone());
            tokio::spawn(async move {
                let mut random = fastrand::Rng::with_seed(task);
                for version in 1..=1500_u64 {
                    // Each task has its own keys, so it knows their newest version.
                    let key = random.u64(..150) * TASKS + task;
                    match random.u32(..10) {
                        0..4 => drop(cache.insert(key, value(key, version))),
                        4..6 => {
                            poll_and_drop(cache.storage().load(&key), random.u32(1..4));
                            poll_and_drop(cache.get(&key), random.u32(1..4));
                        }
                        6 => cache.remove(&key),
                        _ => {
                            let found = match random.bool() {
                                true => cache.get(&key).await.unwrap().map(|e| e.value().clone()),
                                false => match cache.storage().load(&key).await.unwrap() {
                                    Load::Entry { key: found, value, .. } => {
                                        assert_eq!(found, key);
                                        hits.fetch_add(1, Ordering::Relaxed);
                                        Some(value)
                                    }
                                    _ => None,
                                },
                            };
                            if let Some(found) = found {
                                let its = version_of(&found);
                                assert!(its < version, "key {key}: {its} before it was inserted");
                                assert!(found == value(key, its), "key {key}, version {its}");
                            }
                        }
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let hits = hits.load(Ordering::Relaxed);
    assert!(hits > 50, "only {hits} reads of the disk");
    cache.close().await.unwrap();
}

/// One after the other: the newest version or none, never an older or a removed one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_miss_or_the_newest_version() {
    let dir = dir();
    let cache = open(&dir.path().join("cache"), 1 << 10, 2 << 20).await;
    let mut random = fastrand::Rng::with_seed(1);
    let mut newest = std::collections::HashMap::new();
    let mut hits = 0;
    for version in 1..1500_u64 {
        let key = random.u64(..100);
        match random.u32(..8) {
            0..4 => {
                drop(cache.insert(key, value(key, version)));
                newest.insert(key, version);
            }
            4 => {
                cache.storage().wait().await;
                cache.remove(&key);
                newest.remove(&key);
            }
            _ => {
                cache.storage().wait().await;
                let in_memory = cache.memory().contains(&key);
                if let Some(found) = cache.get(&key).await.unwrap() {
                    let its = version_of(found.value());
                    assert_eq!(Some(&its), newest.get(&key), "key {key}");
                    assert!(*found.value() == value(key, its));
                    hits += u32::from(!in_memory);
                }
            }
        }
    }
    assert!(hits > 100, "only {hits} hits of the disk");
    // The memory may still evict an entry to the disk.
    cache.memory().clear();
    loop {
        cache.storage().destroy().await.unwrap();
        if (0..100).all(|key| !cache.storage().may_contains(&key)) {
            break;
        }
    }
}

/// An entry that was overwritten in the file, or is of an earlier process, is a miss.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_changed_has_no_wrong_entries() {
    let dir = dir();
    let path = dir.path().join("cache");
    let cache = open(&path, 1 << 10, 1 << 20).await;
    for key in 0..40 {
        drop(cache.insert(key, value(key, 1)));
    }
    cache.storage().wait().await;
    let mut before = 0;
    for key in 0..40 {
        before += u32::from(matches!(cache.storage().load(&key).await, Ok(Load::Entry { .. })));
    }
    let mut content = fs::read(&path).unwrap();
    content.chunks_mut(100).for_each(|chunk| chunk[0] ^= 1);
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.write_all_at(&content, 0).unwrap();
    // Direct reads see it once it is stable.
    file.sync_all().unwrap();
    let mut after = 0;
    for key in 0..40 {
        if let Load::Entry { value: found, .. } = cache.storage().load(&key).await.unwrap() {
            assert!(found == value(key, 1), "key {key}");
            after += 1;
        }
    }
    assert!(before > 10 && after < before / 2, "{before} entries, then {after}");
    cache.close().await.unwrap();
    drop(cache);
    let cache = open(&path, 1 << 10, 1 << 20).await;
    assert!((0..40).all(|key| !cache.storage().may_contains(&key)));
}

/// A cache whose memory keeps next to nothing.
async fn small(path: &Path, disk_bytes: u64) -> Cache {
    open(path, 1 << 10, disk_bytes).await
}

fn written_bytes(cache: &Cache) -> usize {
    cache.statistics().disk_write_bytes()
}

/// Each read wrote its entry again when memory evicted it. So reads alone went round the ring.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_write_nothing() {
    const KEYS: u64 = 600;
    let dir = dir();
    let cache = small(&dir.path().join("cache"), 4 << 20).await;
    for key in 0..KEYS {
        drop(cache.insert(key, vec![key as u8; 4000]));
    }
    let get_all = async || {
        for key in 0..KEYS {
            let found = cache.get(&key).await.unwrap();
            assert!(found.is_some_and(|entry| entry.value()[..] == vec![key as u8; 4000]));
        }
        cache.storage().wait().await;
    };
    // The last ones that were inserted are written when they are evicted.
    cache.storage().wait().await;
    get_all().await;
    let before = written_bytes(&cache);
    assert!((2 << 20..3 << 20).contains(&before), "{before}");
    get_all().await;
    get_all().await;
    assert_eq!(written_bytes(&cache), before);
    cache.close().await.unwrap();
}

/// An entry that is read now and then stays, while the ring goes round.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_in_use_outlives_turns_of_the_ring() {
    let dir = dir();
    let cache = small(&dir.path().join("cache"), 1 << 20).await;
    drop(cache.insert(0, vec![7; 4000]));
    let mut key = 1;
    while written_bytes(&cache) < 3 << 20 {
        drop(cache.insert(key, vec![0; 4000]));
        if key % 10 == 0 {
            cache.storage().wait().await;
            let found = cache.get(&0).await.unwrap();
            assert!(found.is_some_and(|entry| entry.value()[..] == [7; 4000]), "{key}");
        }
        key += 1;
    }
    assert!(cache.get(&1).await.unwrap().is_none(), "the control: it was not in use");
    cache.close().await.unwrap();
}

/// A value whose encoder may panic.
struct Risky(bool);

impl Code for Risky {
    fn encode(&self, writer: &mut impl Write) -> foyer::Result<()> {
        assert!(!self.0, "a planted panic");
        writer.write_all(&[7]).map_err(Error::io_error)
    }

    fn decode(reader: &mut impl Read) -> foyer::Result<Self> {
        let mut byte = [0];
        reader.read_exact(&mut byte).map_err(Error::io_error)?;
        assert_eq!(byte, [7]);
        Ok(Self(false))
    }

    fn estimated_size(&self) -> usize {
        1
    }
}

/// The task that writes ended without a word.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_encoder_that_panics_ends_nothing() {
    let dir = dir();
    let cache: HybridCache<u64, Risky> = HybridCacheBuilder::new()
        .with_policy(HybridCachePolicy::WriteOnInsertion)
        .memory(1 << 10)
        .storage()
        .with_engine_config(DioxideEngineConfig::new(dir.path().join("cache"), 1 << 20))
        .build()
        .await
        .unwrap();
    for key in 0..10 {
        drop(cache.insert(key, Risky(key % 3 == 0)));
    }
    cache.storage().wait().await;
    for key in 0..10 {
        let load = cache.storage().load(&key).await.unwrap();
        assert_eq!(matches!(load, Load::Entry { .. }), key % 3 != 0, "{key}");
    }
    cache.close().await.unwrap();
}
