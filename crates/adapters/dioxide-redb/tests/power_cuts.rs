//! Power cuts of a simulated disk at each kind of moment of redb's commits. A disk whose flushes do
//! nothing must lose commits.

use dioxide::OpenOptions;
use dioxide::sim::{Disk, Settings};
use dioxide_redb::DioxideBackend;
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition, TableError};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

const VALUES: TableDefinition<u64, &[u8]> = TableDefinition::new("values");
const KEYS: u64 = 50;
const COMMITS: u64 = 25;

fn disk(seed: u64, lies: bool) -> Disk {
    let mut settings = Settings::default();
    settings.lies_about_flushes = lies;
    Disk::with(seed, settings)
}

fn open(disk: &Disk) -> Result<Database, redb::DatabaseError> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).growth(dioxide::Growth::None);
    let backend = DioxideBackend::try_from(disk.open(&options, "data.redb").unwrap()).unwrap();
    let mut builder = Database::builder();
    builder.set_cache_size(128 << 10);
    builder.create_with_backend(backend)
}

fn value(number: u64, key: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(number << 32 | key);
    let len = 8 + random.usize(..3000);
    number
        .to_le_bytes()
        .into_iter()
        .chain(std::iter::repeat_with(|| random.u8(..)))
        .take(len)
        .collect()
}

/// The keys that commit `number` writes.
fn keys(number: u64) -> impl Iterator<Item = u64> {
    let mut random = fastrand::Rng::with_seed(number);
    std::iter::repeat_with(move || random.u64(..KEYS)).take(8)
}

/// Whether the database is whole, and holds exactly the first commits: those that were
/// acknowledged, and perhaps the next. redb may panic where a page is missing.
fn holds(disk: &Disk, acknowledged: u64) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(|| look(disk, acknowledged)))
        .unwrap_or_else(|_| Err("redb panics".into()))
}

fn look(disk: &Disk, acknowledged: u64) -> Result<(), String> {
    let mut database = open(disk).map_err(|error| error.to_string())?;
    {
        let read = database.begin_read().map_err(|error| error.to_string())?;
        let mut found = Vec::new();
        match read.open_table(VALUES) {
            Ok(values) => {
                for entry in values.iter().map_err(|error| error.to_string())? {
                    let (key, value) = entry.map_err(|error| error.to_string())?;
                    found.push((key.value(), value.value().to_vec()));
                }
            }
            Err(TableError::TableDoesNotExist(_)) => {}
            Err(error) => return Err(error.to_string()),
        }
        let after = |last: u64| {
            let mut newest: Vec<(u64, Vec<u8>)> = Vec::new();
            for key in 0..KEYS {
                let number = (1..=last).rev().find(|number| keys(*number).any(|k| k == key));
                newest.extend(number.map(|number| (key, value(number, key))));
            }
            newest
        };
        if found != after(acknowledged) && found != after(acknowledged + 1) {
            return Err(format!("not the content after commit {acknowledged}"));
        }
    }
    match database.check_integrity() {
        Ok(true) => Ok(()),
        other => Err(format!("{other:?}")),
    }
}

/// Commits, with power cuts at random calls of the disk. Returns how many power cuts lost a commit
/// or broke the database, the first loss, and the number of all.
fn cuts_that_lose(seed: u64, lies: bool) -> (usize, Option<String>, usize) {
    let disk = disk(seed, lies);
    let database = open(&disk).unwrap();
    let acknowledged = Arc::new(AtomicU64::new(0));
    let after_cuts: Arc<Mutex<Vec<(Disk, u64)>>> = Arc::default();
    disk.watch(Some(Box::new({
        let (disk, acknowledged, after_cuts) =
            (disk.clone(), acknowledged.clone(), after_cuts.clone());
        let mut random = fastrand::Rng::with_seed(seed);
        move || {
            if random.u32(..24) == 0 {
                let last = acknowledged.load(Ordering::SeqCst);
                after_cuts.lock().unwrap().push((disk.crash(), last));
            }
        }
    })));
    for number in 1..=COMMITS {
        let mut write = database.begin_write().unwrap();
        write.set_two_phase_commit(number % 3 == 0);
        write.set_quick_repair(number % 5 == 0);
        {
            let mut values = write.open_table(VALUES).unwrap();
            for key in keys(number) {
                values.insert(key, value(number, key).as_slice()).unwrap();
            }
        }
        write.commit().unwrap();
        acknowledged.store(number, Ordering::SeqCst);
        after_cuts.lock().unwrap().push((disk.crash(), number));
    }
    disk.watch(None);
    let after_cuts = std::mem::take(&mut *after_cuts.lock().unwrap());
    let mut losses =
        after_cuts.iter().filter_map(|(disk, acknowledged)| holds(disk, *acknowledged).err());
    let first = losses.next();
    (usize::from(first.is_some()) + losses.count(), first, after_cuts.len())
}

#[test]
fn a_power_cut_loses_no_acknowledged_commit() {
    let mut cuts = 0;
    for seed in 0..12 {
        let (lost, why, tried) = cuts_that_lose(seed, false);
        assert_eq!((lost, why), (0, None), "of {tried} power cuts, seed {seed}");
        cuts += tried;
    }
    assert!(cuts > 500, "only {cuts} power cuts");
}

/// The control.
#[test]
fn a_disk_that_lies_about_flushes_loses_commits() {
    let (lost, _, cuts) = cuts_that_lose(1, true);
    assert!(lost > cuts / 4, "only {lost} of {cuts} power cuts lost something");
}
