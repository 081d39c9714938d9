//! kill -9 of a process whose threads append and sync: each record that it acknowledged is there.

use dioxide_testkit::child::{self, Acks};
use dioxide_wal_db::DioxideStore;
use libtest_mimic::{Failed, Trial};
use std::collections::HashSet;
use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;
use wal_db::{Lsn, Wal};

const THREADS: u64 = 4;

fn record(thread: u64, number: u64) -> Vec<u8> {
    let word = thread << 56 | number;
    word.to_le_bytes().repeat(1 + (number * 31 % 200) as usize)
}

fn open(path: &Path) -> Wal<DioxideStore> {
    Wal::with_store(DioxideStore::open(path).unwrap()).unwrap()
}

/// The records, by their offset.
fn records(wal: &Wal<DioxideStore>) -> Vec<(Lsn, Vec<u8>)> {
    let records = wal.iter().unwrap().map(|record| {
        let record = record.unwrap();
        (record.lsn(), record.into_data())
    });
    records.collect()
}

/// Appends until it is killed. Sends thread, number and offset.
fn appends(acks: &Acks, args: &[String]) {
    let wal = open(Path::new(&args[0]));
    let first: u64 = args[1].parse().unwrap();
    let syncs = args[2] == "sync";
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let wal = &wal;
            scope.spawn(move || {
                for number in first.. {
                    let record = record(thread, number);
                    let lsn =
                        if syncs { wal.append_and_sync(&record) } else { wal.append(&record) };
                    let lsn = lsn.unwrap();
                    acks.send([thread, number, lsn.get()]);
                }
            });
        }
    });
}

/// Kills a child in each round. Returns the number of acknowledged records, and of those lost.
fn rounds(rounds: u64, syncs: &str) -> Result<(usize, usize), Failed> {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    let path = dir.path().join("records.wal");
    let mut acknowledged = Vec::new();
    let mut lost = 0;
    for round in 0..rounds {
        let first = (round * 1_000_000).to_string();
        let args = [path.to_str().ok_or("a path of text")?, &first, syncs];
        let mut child = child::spawn("appends", &args)?;
        child.wait_for_acks(50, Duration::from_secs(120))?;
        // At any moment of later appends.
        acknowledged.extend(child.kill_after(Duration::from_micros(fastrand::u64(..20_000)))?);

        let found: HashSet<(u64, Vec<u8>)> =
            records(&open(&path)).into_iter().map(|(lsn, data)| (lsn.get(), data)).collect();
        let is_lost = |[thread, number, offset]: &&[u64; 3]| {
            !found.contains(&(*offset, record(*thread, *number)))
        };
        lost += acknowledged.iter().filter(is_lost).count();
    }
    Ok((acknowledged.len(), lost))
}

fn acknowledged_records_are_there_after_kill_9() -> Result<(), Failed> {
    let (acknowledged, lost) = rounds(10, "sync")?;
    if lost > 0 { Err(format!("{lost} of {acknowledged} are lost").into()) } else { Ok(()) }
}

/// The control.
fn kill_9_loses_records_that_were_not_synced() -> Result<(), Failed> {
    let (acknowledged, lost) = rounds(1, "none")?;
    if lost == 0 { Err(format!("all {acknowledged} are there").into()) } else { Ok(()) }
}

fn main() -> ExitCode {
    dioxide_testkit::run(&[("appends", appends)], || {
        vec![
            Trial::test(
                "acknowledged_records_are_there_after_kill_9",
                acknowledged_records_are_there_after_kill_9,
            ),
            Trial::test(
                "kill_9_loses_records_that_were_not_synced",
                kill_9_loses_records_that_were_not_synced,
            ),
        ]
    })
}
