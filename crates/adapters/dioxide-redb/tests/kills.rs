//! kill -9 of a process that commits: each commit that it acknowledged is there.

use dioxide_redb::DioxideBackend;
use dioxide_testkit::child::{self, Acks};
use libtest_mimic::Trial;
use redb::{
    Database, DatabaseError, Durability, ReadableDatabase, ReadableTable, TableDefinition,
    TableError,
};
use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

const VALUES: TableDefinition<u64, &[u8]> = TableDefinition::new("values");

/// The key of the last commit.
const COUNTER: u64 = u64::MAX;

/// For events that take milliseconds on an idle machine.
const LIMIT: Duration = Duration::from_secs(120);

fn value(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(1 + (number * 37 % 700) as usize)
}

fn open(path: &Path) -> Database {
    let mut builder = Database::builder();
    builder.set_cache_size(256 << 10);
    builder.create_with_backend(DioxideBackend::open(path).unwrap()).unwrap()
}

/// Opens with redb's own backend. The kernel ends the ring of a killed process, and so the lock of
/// its file, a moment after the process. dioxide waits for this itself.
fn open_own(path: &Path) -> Result<Database, DatabaseError> {
    let begun = Instant::now();
    loop {
        match Database::create(path) {
            Err(DatabaseError::DatabaseAlreadyOpen) if begun.elapsed() < LIMIT => {
                thread::sleep(Duration::from_millis(5));
            }
            result => return result,
        }
    }
}

/// Commits until it is killed. Commit n writes n to key n, and to the key of the counter.
fn commits(acks: &Acks, args: &[String]) {
    let database = open(Path::new(&args[0]));
    let mut number: u64 = args[1].parse().unwrap();
    let durability = if args[2] == "none" { Durability::None } else { Durability::Immediate };
    loop {
        number += 1;
        let mut write = database.begin_write().unwrap();
        write.set_durability(durability).unwrap();
        {
            let mut values = write.open_table(VALUES).unwrap();
            values.insert(number, value(number).as_slice()).unwrap();
            values.insert(COUNTER, value(number).as_slice()).unwrap();
        }
        write.commit().unwrap();
        acks.send([number, 0, 0]);
    }
}

fn acknowledged_commits_are_there_after_kill_9() -> Result<(), libtest_mimic::Failed> {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    let path = dir.path().join("data.redb");
    let mut last = 0;
    for round in 0..10 {
        let args = [path.to_str().ok_or("a path of text")?, &last.to_string(), "immediate"];
        let mut child = child::spawn("commits", &args)?;
        child.wait_for_acks(20, LIMIT)?;
        // At any moment of a later commit.
        let acks = child.kill_after(Duration::from_micros(fastrand::u64(..20_000)))?;
        let acknowledged = acks.last().ok_or("no acknowledgement")?[0];

        let mut database = if round % 2 == 0 { open(&path) } else { open_own(&path)? };
        {
            let read = database.begin_read()?;
            let values = read.open_table(VALUES)?;
            let counter = values.get(COUNTER)?.ok_or("no counter")?.value().to_vec();
            last = u64::from_le_bytes(counter[..8].try_into()?);
            if !(acknowledged..=acknowledged + 1).contains(&last) {
                return Err(format!("{acknowledged} acknowledged, {last} found").into());
            }
            let expected = (1..=last).chain([COUNTER]);
            let mut found = values.iter()?;
            for key in expected {
                let (found_key, found_value) = found.next().ok_or("a key is missing")??;
                assert_eq!(found_key.value(), key);
                let number = if key == COUNTER { last } else { key };
                assert!(found_value.value() == value(number), "the value of {key}");
            }
            assert!(found.next().is_none());
        }
        assert!(database.check_integrity()?);
    }
    Ok(())
}

/// The control.
fn kill_9_loses_commits_without_durability() -> Result<(), libtest_mimic::Failed> {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    let path = dir.path().join("data.redb");
    let mut child =
        child::spawn("commits", &[path.to_str().ok_or("a path of text")?, "0", "none"])?;
    child.wait_for_acks(20, LIMIT)?;
    child.kill_9()?;
    match open(&path).begin_read()?.open_table(VALUES) {
        Err(TableError::TableDoesNotExist(_)) => Ok(()),
        other => Err(format!("{:?}", other.map(drop)).into()),
    }
}

fn main() -> ExitCode {
    dioxide_testkit::run(&[("commits", commits)], || {
        vec![
            Trial::test(
                "acknowledged_commits_are_there_after_kill_9",
                acknowledged_commits_are_there_after_kill_9,
            ),
            Trial::test(
                "kill_9_loses_commits_without_durability",
                kill_9_loses_commits_without_durability,
            ),
        ]
    })
}
