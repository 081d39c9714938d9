//! Power cuts of a simulated disk. A disk that lies about flushes must lose records.

use dioxide::OpenOptions;
use dioxide::sim::{Disk, Settings};
use dioxide_wal_db::DioxideStore;
use wal_db::{Lsn, Wal};

fn disk(seed: u64, lies: bool) -> Disk {
    let mut settings = Settings::default();
    settings.lies_about_flushes = lies;
    Disk::with(seed, settings)
}

fn open(disk: &Disk) -> Wal<DioxideStore> {
    let mut options = OpenOptions::new();
    options.write(true).create(true);
    let file = disk.open(&options, "records.wal").unwrap();
    Wal::with_store(DioxideStore::try_from(file).unwrap()).unwrap()
}

fn records(wal: &Wal<DioxideStore>) -> Vec<(Lsn, Vec<u8>)> {
    let records = wal.iter().unwrap().map(|record| {
        let record = record.unwrap();
        (record.lsn(), record.into_data())
    });
    records.collect()
}

/// Appends, syncs and truncates. Returns the number of times that a power cut after a sync lost a
/// record, and the number of all.
fn cuts_that_lose(seed: u64, lies: bool) -> (u32, u32) {
    let disk = disk(seed, lies);
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut lost, mut cuts) = (0, 0);
    let mut wal = open(&disk);
    let mut expected: Vec<(Lsn, Vec<u8>)> = Vec::new();
    for step in 0..80 {
        for _ in 0..random.usize(..10) {
            let data = vec![step | 1; random.usize(1..5000)];
            expected.push((wal.append(&data).unwrap(), data));
        }
        if random.u32(..10) == 0 && !expected.is_empty() {
            expected.truncate(random.usize(1..=expected.len()));
            wal.truncate_after(expected[expected.len() - 1].0).unwrap();
        }
        wal.sync().unwrap();
        assert!(records(&wal) == expected, "seed {seed}, step {step}");
        cuts += 1;
        lost += u32::from(records(&open(&disk.crash())) != expected);
        if random.u32(..20) == 0 {
            drop(wal);
            wal = open(&disk);
        }
    }
    (lost, cuts)
}

#[test]
fn a_power_cut_loses_no_synced_record() {
    for seed in 0..12 {
        assert_eq!(cuts_that_lose(seed, false).0, 0, "seed {seed}");
    }
}

/// The control.
#[test]
fn a_disk_that_lies_about_flushes_loses_records() {
    let (lost, cuts) = cuts_that_lose(1, true);
    assert!(lost > cuts / 4, "only {lost} of {cuts} power cuts lost something");
}

/// The log is an ordinary file of wal-db after close.
#[test]
fn wal_dbs_own_store_reads_the_log_and_the_other_way_round() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("records.wal");
    let mut expected = Vec::new();
    for round in 0..6_u8 {
        let data = vec![round; 3000];
        if round % 2 == 0 {
            let wal = Wal::with_store(DioxideStore::open(&path).unwrap()).unwrap();
            let _lsn = wal.append(&data).unwrap();
        } else {
            let _lsn = Wal::open(&path).unwrap().append_and_sync(&data).unwrap();
        }
        expected.push(data);
        let wal = Wal::open(&path).unwrap();
        let found: Vec<_> = wal.iter().unwrap().map(|r| r.unwrap().into_data()).collect();
        assert!(found == expected, "round {round}");
        assert_eq!(wal.truncated_on_open(), 0);
    }
}
