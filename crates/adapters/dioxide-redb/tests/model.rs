//! Random transactions on redb against a map in memory.

use dioxide_redb::DioxideBackend;
use redb::{
    Database, Durability, MultimapTableDefinition, ReadableDatabase, ReadableMultimapTable,
    ReadableTable, TableDefinition, WriteTransaction,
};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

const VALUES: TableDefinition<u64, &[u8]> = TableDefinition::new("values");
const SETS: MultimapTableDefinition<u64, u64> = MultimapTableDefinition::new("sets");

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Model {
    values: BTreeMap<u64, Vec<u8>>,
    sets: BTreeMap<u64, BTreeSet<u64>>,
}

fn dir() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// The cache is small, so pages are evicted and read again.
fn open(path: &Path, on_dioxide: bool) -> Database {
    let mut builder = Database::builder();
    builder.set_cache_size(256 << 10);
    match on_dioxide {
        true => builder.create_with_backend(DioxideBackend::open(path).unwrap()).unwrap(),
        false => builder.open(path).unwrap(),
    }
}

fn content(database: &Database) -> Model {
    let read = database.begin_read().unwrap();
    let values = read.open_table(VALUES).unwrap();
    let sets = read.open_multimap_table(SETS).unwrap();
    let values = values.iter().unwrap().map(|entry| {
        let (key, value) = entry.unwrap();
        (key.value(), value.value().to_vec())
    });
    let sets = sets.iter().unwrap().map(|entry| {
        let (key, members) = entry.unwrap();
        (key.value(), members.map(|member| member.unwrap().value()).collect())
    });
    Model { values: values.collect(), sets: sets.collect() }
}

/// Some changes in both.
fn change(write: &WriteTransaction, model: &mut Model, random: &mut fastrand::Rng) {
    let mut values = write.open_table(VALUES).unwrap();
    let mut sets = write.open_multimap_table(SETS).unwrap();
    for _ in 0..random.u32(..60) {
        let key = random.u64(..400);
        match random.u32(..10) {
            0..4 => {
                // From an empty value to one of several pages.
                let bits = random.u32(1..16);
                let len = random.usize(..1 << bits);
                let value = vec![random.u8(..); len];
                values.insert(key, value.as_slice()).unwrap();
                model.values.insert(key, value);
            }
            4..6 => {
                let removed = values.remove(key).unwrap().map(|value| value.value().to_vec());
                assert_eq!(removed, model.values.remove(&key));
            }
            6 => {
                let keys = key..key + random.u64(..30);
                values.retain_in(keys.clone(), |key, _| key % 2 == 0).unwrap();
                model.values.retain(|key, _| key % 2 == 0 || !keys.contains(key));
            }
            7..9 => {
                let member = random.u64(..1000);
                sets.insert(key % 40, member).unwrap();
                model.sets.entry(key % 40).or_default().insert(member);
            }
            _ => {
                drop(sets.remove_all(key % 40).unwrap());
                model.sets.remove(&(key % 40));
            }
        }
        let key = random.u64(..400);
        let found = values.get(key).unwrap().map(|value| value.value().to_vec());
        assert_eq!(found.as_ref(), model.values.get(&key));
    }
}

fn begin(database: &Database, random: &mut fastrand::Rng) -> WriteTransaction {
    let mut write = database.begin_write().unwrap();
    write.set_two_phase_commit(random.bool());
    write.set_quick_repair(random.bool());
    write
}

/// Makes commits without durability stable.
fn settle(database: &Database) {
    database.begin_write().unwrap().commit().unwrap();
}

#[test]
fn random_transactions_agree_with_a_map() {
    let dir = dir();
    for seed in 0..6 {
        let path = dir.path().join(format!("{seed}.redb"));
        let mut random = fastrand::Rng::with_seed(seed);
        let mut database = open(&path, true);
        let mut model = Model::default();
        let mut saved: BTreeMap<u64, Model> = BTreeMap::new();
        for step in 0..120 {
            let at = format!("seed {seed}, step {step}");
            match random.u32(..100) {
                0..45 => {
                    let write = begin(&database, &mut random);
                    change(&write, &mut model, &mut random);
                    write.commit().unwrap();
                }
                45..55 => {
                    let mut write = database.begin_write().unwrap();
                    write.set_durability(Durability::None).unwrap();
                    change(&write, &mut model, &mut random);
                    write.commit().unwrap();
                }
                55..65 => {
                    let write = begin(&database, &mut random);
                    change(&write, &mut model.clone(), &mut random);
                    write.abort().unwrap();
                }
                65..72 => {
                    let write = begin(&database, &mut random);
                    saved.insert(write.persistent_savepoint().unwrap(), model.clone());
                    write.commit().unwrap();
                }
                72..77 => {
                    let Some(at) = random.choice(saved.keys().copied().collect::<Vec<_>>()) else {
                        continue;
                    };
                    let mut write = begin(&database, &mut random);
                    let savepoint = write.get_persistent_savepoint(at).unwrap();
                    write.restore_savepoint(&savepoint).unwrap();
                    write.commit().unwrap();
                    // Later savepoints are gone.
                    saved.retain(|id, _| *id <= at);
                    model = saved[&at].clone();
                }
                77..80 => {
                    let mut write = begin(&database, &mut random);
                    let savepoint = write.ephemeral_savepoint().unwrap();
                    change(&write, &mut model.clone(), &mut random);
                    write.restore_savepoint(&savepoint).unwrap();
                    write.commit().unwrap();
                }
                80..84 => {
                    let write = begin(&database, &mut random);
                    for id in std::mem::take(&mut saved).into_keys() {
                        assert!(write.delete_persistent_savepoint(id).unwrap(), "{at}");
                    }
                    write.commit().unwrap();
                    database.compact().unwrap();
                }
                84..90 => {
                    settle(&database);
                    assert!(database.check_integrity().unwrap(), "{at}");
                }
                90..96 => {
                    settle(&database);
                    drop(database);
                    // redb's own backend, and back.
                    let on_dioxide = random.bool();
                    database = open(&path, on_dioxide);
                }
                _ if step > 0 && model != Model::default() => {
                    assert_eq!(content(&database), model, "{at}");
                }
                _ => {}
            }
        }
        if model != Model::default() {
            assert_eq!(content(&database), model, "seed {seed}");
        }
        settle(&database);
        assert!(database.check_integrity().unwrap(), "seed {seed}");
        drop(database);
        assert!(open(&path, false).check_integrity().unwrap(), "redb's own backend, seed {seed}");
    }
}

/// Each commit writes the same number to all keys.
#[test]
fn readers_see_whole_commits_while_a_writer_commits() {
    const KEYS: u64 = 300;
    let dir = dir();
    let database = Arc::new(open(&dir.path().join("data.redb"), true));
    let commit = |number: u64| {
        let write = database.begin_write().unwrap();
        {
            let mut values = write.open_table(VALUES).unwrap();
            let value = number.to_le_bytes().repeat(100);
            (0..KEYS).for_each(|key| drop(values.insert(key, value.as_slice()).unwrap()));
        }
        write.commit().unwrap();
    };
    commit(0);
    let ended = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> =
        (0..3)
            .map(|_| {
                let (database, ended) = (database.clone(), ended.clone());
                thread::spawn(move || {
                    let mut last = 0;
                    while !ended.load(Ordering::Relaxed) {
                        let read = database.begin_read().unwrap();
                        let values = read.open_table(VALUES).unwrap();
                        let mut seen = BTreeSet::new();
                        for entry in values.iter().unwrap() {
                            let (_, value) = entry.unwrap();
                            let words = value.value().chunks_exact(8);
                            seen.extend(words.map(|word| {
                                u64::from_le_bytes(word.try_into().expect("eight bytes"))
                            }));
                        }
                        assert_eq!(seen.len(), 1, "{seen:?}");
                        let number = *seen.first().unwrap();
                        assert!(number >= last, "{number} after {last}");
                        last = number;
                    }
                })
            })
            .collect();
    (1..60).for_each(commit);
    ended.store(true, Ordering::Relaxed);
    readers.into_iter().for_each(|reader| reader.join().unwrap());
}
