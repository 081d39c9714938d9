//! The rates of the engine beside foyer's block engine.
//!
//!   cargo run --release --example rates -- DIR [RUNS]
//!
//! The engines run in turns on fresh files in DIR, all with direct I/O. Prints the medians:
//! loads of 4 KiB a second by 16 tasks, and the CPU time of a load and of an idle second.

use dioxide_foyer::DioxideEngineConfig;
use foyer::{
    BlockEngineConfig, DeviceBuilder, EngineConfig, FsDeviceBuilder, HybridCache,
    HybridCacheBuilder, HybridCacheProperties, IoEngineConfig, Load, PsyncIoEngineConfig,
    UringIoEngineConfig,
};
use std::error::Error;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;
type Config = Box<dyn EngineConfig<u64, Vec<u8>, HybridCacheProperties>>;

const DISK_BYTES: usize = 256 << 20;
const KEYS: u64 = 30_000;
const TASKS: u64 = 16;
const LOADS: u64 = 4000;

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let dir = args.next().ok_or("usage: rates DIR [RUNS]")?;
    let runs: usize = args.next().map_or(Ok(3), |runs| runs.parse())?;
    let names = ["block, psync", "block, uring", "dioxide"];
    let mut results = names.map(|_| [const { Vec::<f64>::new() }; 3]);
    for turn in 0..runs * names.len() {
        let dir = tempfile::tempdir_in(&dir)?;
        let name = names[turn % names.len()];
        // A runtime and its threads for each: foyer's io_uring thread ends with the engine.
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let measured = runtime.block_on(measure(name, dir.path()))?;
        let sides = results[turn % names.len()].iter_mut().zip(measured);
        sides.for_each(|(list, value)| list.push(value));
    }
    println!("{:14} {:>10} {:>18} {:>22}", "", "loads/s", "CPU us a load", "CPU ms an idle s");
    for (name, mut lists) in names.iter().zip(results) {
        lists.iter_mut().for_each(|list| list.sort_by(f64::total_cmp));
        let [rates, load, idle] = lists.map(|list| list[list.len() / 2]);
        println!("{name:14} {rates:>10.0} {load:>18.1} {idle:>22.1}");
    }
    Ok(())
}

async fn measure(name: &str, dir: &Path) -> Result<[f64; 3]> {
    let block = || -> Result<Config> {
        let device = FsDeviceBuilder::new(dir).with_capacity(DISK_BYTES).with_direct(true);
        Ok(BlockEngineConfig::new(device.build()?).with_block_size(4 << 20).into())
    };
    let (config, io): (Config, Box<dyn IoEngineConfig>) = match name {
        "dioxide" => {
            let config = DioxideEngineConfig::new(dir.join("cache"), DISK_BYTES as u64);
            (config.into(), Box::new(PsyncIoEngineConfig::new()))
        }
        "block, uring" => (block()?, Box::new(UringIoEngineConfig::new())),
        _ => (block()?, Box::new(PsyncIoEngineConfig::new())),
    };
    let cache: HybridCache<u64, Vec<u8>> = HybridCacheBuilder::new()
        .memory(1 << 20)
        .with_weighter(|_, value: &Vec<u8>| value.len())
        .storage()
        .with_io_engine_config(io)
        .with_engine_config(config)
        .build()
        .await?;
    for key in 0..KEYS {
        drop(cache.insert(key, vec![key as u8; 4000]));
        if key % 500 == 0 {
            cache.storage().wait().await;
        }
    }
    cache.storage().wait().await;

    let (begun, cpu) = (Instant::now(), cpu_seconds()?);
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let cache = cache.clone();
            tokio::spawn(async move {
                let mut random = fastrand::Rng::with_seed(task);
                let mut hits = 0;
                for _ in 0..LOADS {
                    let load = cache.storage().load(&random.u64(..KEYS)).await?;
                    hits += u64::from(matches!(load, Load::Entry { .. }));
                }
                Ok::<_, foyer::Error>(hits)
            })
        })
        .collect();
    let mut hits = 0;
    for task in tasks {
        hits += task.await??;
    }
    let (elapsed, used) = (begun.elapsed().as_secs_f64(), cpu_seconds()? - cpu);
    let loads = (TASKS * LOADS) as f64;
    println!("{name}: {:.0} % hits", 100.0 * hits as f64 / loads);

    let idle = cpu_seconds()?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let idle = cpu_seconds()? - idle;
    cache.close().await?;
    Ok([loads / elapsed, used / loads * 1e6, idle * 1e3])
}

/// CPU time of the process.
fn cpu_seconds() -> Result<f64> {
    let mut nanoseconds = 0;
    for task in fs::read_dir("/proc/self/task")? {
        // A thread may have ended meanwhile.
        let times = fs::read_to_string(task?.path().join("schedstat")).unwrap_or_default();
        nanoseconds += times.split(' ').next().and_then(|time| time.parse().ok()).unwrap_or(0_u64);
    }
    Ok(nanoseconds as f64 / 1e9)
}
