//! An idle cache uses no CPU. Alone in its process, because the thread of dioxide is shared.

use dioxide_foyer::DioxideEngineConfig;
use foyer::{
    BlockEngineConfig, DeviceBuilder, FsDeviceBuilder, HybridCache, HybridCacheBuilder,
    IoEngineConfig, UringIoEngineConfig,
};
use std::fs;
use std::thread;
use std::time::Duration;

type Cache = HybridCache<u64, Vec<u8>>;

/// CPU time of the thread with this name, in nanoseconds.
fn cpu_time(thread: &str) -> Option<u64> {
    fs::read_dir("/proc/self/task").unwrap().find_map(|task| {
        let task = task.ok()?.path();
        let name = fs::read_to_string(task.join("comm")).ok()?;
        let times = fs::read_to_string(task.join("schedstat")).ok()?;
        (name.trim() == thread).then(|| times.split(' ').next()?.parse().ok())?
    })
}

/// While foyer's own io_uring thread, the control, polls for a second of CPU time, the thread of
/// dioxide uses none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_cache_uses_no_cpu() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let cache: Cache = HybridCacheBuilder::new()
        .memory(1 << 10)
        .storage()
        .with_engine_config(DioxideEngineConfig::new(dir.path().join("cache"), 1 << 20))
        .build()
        .await
        .unwrap();
    for key in 0..2000 {
        drop(cache.insert(key, vec![key as u8; 2000]));
        cache.storage().load(&key).await.unwrap();
    }
    cache.storage().wait().await;
    let device = FsDeviceBuilder::new(dir.path().join("own")).with_capacity(16 << 20).build();
    let own: Cache = HybridCacheBuilder::new()
        .memory(1 << 10)
        .storage()
        .with_io_engine_config(Box::new(UringIoEngineConfig::new()) as Box<dyn IoEngineConfig>)
        .with_engine_config(BlockEngineConfig::new(device.unwrap()).with_block_size(1 << 20))
        .build()
        .await
        .unwrap();
    let reactor = || cpu_time("dioxide-reactor").expect("it runs");
    let control = || cpu_time("foyer-uring-0").expect("it runs");
    let (idle, busy) = (reactor(), control());
    while control() - busy < 1_000_000_000 {
        thread::sleep(Duration::from_millis(10));
    }
    let used = reactor() - idle;
    assert!(used < 10_000_000, "{used} ns of CPU time without work");
    drop(own);
}
