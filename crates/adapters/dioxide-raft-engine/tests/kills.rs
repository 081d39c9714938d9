//! kill -9 of a process whose threads write batches: each batch that it acknowledged is there.
//! Files are small, so that raft-engine rotates, purges and reuses them meanwhile.

use dioxide_raft_engine::DioxideFileSystem;
use dioxide_testkit::child::{self, Acks};
use libtest_mimic::{Failed, Trial};
use protobuf::well_known_types::BytesValue;
use raft_engine::{Config, Engine, LogBatch, MessageExt, ReadableSize};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

const REGIONS: u64 = 4;
const KEY: &[u8] = b"newest";
/// The entries that a region keeps.
const KEPT: u64 = 20;

struct Entries;

impl MessageExt for Entries {
    type Entry = BytesValue;

    fn index(entry: &BytesValue) -> u64 {
        u64::from_le_bytes(entry.value[8..16].try_into().expect("an entry has its index"))
    }
}

fn entry(region: u64, index: u64) -> BytesValue {
    let mut random = fastrand::Rng::with_seed(region << 40 | index);
    let mut value = [region.to_le_bytes(), index.to_le_bytes()].concat();
    value.extend(std::iter::repeat_with(|| random.u8(..)).take((index * 37 % 3000) as usize));
    BytesValue { value, ..BytesValue::default() }
}

type DioxideEngine = Engine<DioxideFileSystem>;

fn config(dir: &Path) -> Config {
    Config {
        dir: dir.to_str().expect("a path of text").into(),
        target_file_size: ReadableSize::kb(128),
        purge_threshold: ReadableSize::kb(512),
        batch_compression_threshold: ReadableSize(0),
        ..Config::default()
    }
}

fn open(dir: &Path) -> DioxideEngine {
    Engine::open_with_file_system(config(dir), Arc::new(DioxideFileSystem::default())).unwrap()
}

/// Writes until it is killed. Sends region and index.
fn writes(acks: &Acks, args: &[String]) {
    let engine = open(Path::new(&args[0]));
    thread::scope(|scope| {
        for region in 1..=REGIONS {
            let engine = &engine;
            scope.spawn(move || {
                for index in engine.last_index(region).unwrap_or(0) + 1.. {
                    let mut batch = LogBatch::default();
                    batch.add_entries::<Entries>(region, &[entry(region, index)]).unwrap();
                    batch.put(region, KEY.to_vec(), index.to_le_bytes().to_vec()).unwrap();
                    engine.write(&mut batch, true).unwrap();
                    acks.send([region, index, 0]);
                    engine.compact_to(region, index.saturating_sub(KEPT));
                    if region == 1 && index % 50 == 0 {
                        engine.purge_expired_files().unwrap();
                    }
                }
            });
        }
    });
}

/// Checks that each region has its acknowledged entries, and no wrong one.
fn check(engine: &DioxideEngine, acknowledged: &BTreeMap<u64, u64>) -> Result<(), Failed> {
    for (region, newest) in acknowledged {
        let (first, last) = engine
            .first_index(*region)
            .zip(engine.last_index(*region))
            .ok_or_else(|| format!("region {region} is empty"))?;
        if last < *newest || first > newest.saturating_sub(KEPT).max(1) {
            return Err(format!("region {region}: {first} to {last}, {newest} known").into());
        }
        let mut found = Vec::new();
        engine.fetch_entries_to::<Entries>(*region, first, last + 1, None, &mut found)?;
        let expected = (first..=last).map(|index| entry(*region, index));
        assert!(found.into_iter().eq(expected), "region {region}");
        assert_eq!(engine.get(*region, KEY), Some(last.to_le_bytes().to_vec()));
    }
    Ok(())
}

fn acknowledged_batches_are_there_after_kill_9() -> Result<(), Failed> {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    let mut acknowledged = BTreeMap::new();
    for round in 0..8 {
        let args = [dir.path().to_str().ok_or("a path of text")?];
        let mut child = child::spawn("writes", &args)?;
        child.wait_for_acks(400, Duration::from_secs(240))?;
        // At any moment of later writes.
        let acks = child.kill_after(Duration::from_micros(fastrand::u64(..20_000)))?;
        acknowledged.extend(acks.into_iter().map(|[region, index, _]| (region, index)));
        check(&open(dir.path()), &acknowledged).map_err(|error| {
            Failed::from(format!("round {round}: {}", error.message().unwrap_or("failed")))
        })?;
    }
    // The control: the check notices a batch that is missing.
    let beyond = acknowledged.iter().map(|(region, index)| (*region, index + 10_000)).collect();
    assert!(check(&open(dir.path()), &beyond).is_err());
    // After a close, raft-engine's own files are the same.
    let engine = Engine::open(config(dir.path()))?;
    for (region, newest) in acknowledged {
        assert!(engine.last_index(region) >= Some(newest));
    }
    Ok(())
}

fn main() -> ExitCode {
    dioxide_testkit::run(&[("writes", writes)], || {
        vec![Trial::test(
            "acknowledged_batches_are_there_after_kill_9",
            acknowledged_batches_are_there_after_kill_9,
        )]
    })
}
