//! The log on a simulated disk whose power fails during any call. The recovered log must have every
//! acknowledged record, nothing else than whole records that were being appended, and no record of
//! an earlier life.

use dioxide_log::storage::memory::{Faults, Memory};
use dioxide_log::{Durability, Error, Log, LogOptions, Lsn};
use fastrand::Rng;
use std::sync::Arc;

const SEEDS: u64 = 500;
const LIVES: u64 = 6;

/// The records of a log, and the number of the first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct List {
    first: u64,
    records: Vec<Vec<u8>>,
}

impl List {
    fn next(&self) -> u64 {
        self.first + self.records.len() as u64
    }

    fn of(log: &Log) -> Self {
        let first = log.first_lsn();
        let records = log.iter_from(first).map(|record| record.expect("it is read"));
        let (lsns, records): (Vec<_>, Vec<_>) = records.unzip();
        assert!(lsns.iter().map(|lsn: &Lsn| lsn.0).eq(first.0..first.0 + lsns.len() as u64));
        assert_eq!(log.next_lsn().0, first.0 + lsns.len() as u64);
        Self { first: first.0, records }
    }
}

#[derive(Clone, Debug)]
enum Change {
    Append(Vec<Vec<u8>>),
    /// Records that are in flight at once.
    Submit(Vec<Vec<u8>>),
    Front(u64),
    Back(u64),
    Sync,
}

impl Change {
    fn draw(rng: &mut Rng, list: &List, marker: &mut u64) -> Self {
        let record = |rng: &mut Rng, marker: &mut u64| {
            *marker += 1;
            let len = match rng.u32(0..10) {
                0 => rng.usize(0..30_000),
                1..3 => rng.usize(0..3000),
                // Often the same lengths, so that frames of torn writes fit behind later ones. A
                // frame of the second length fills a block, and the one behind it is not rewritten.
                3..6 => 4096 - 24 - 8,
                _ => 100,
            };
            let mut record = vec![*marker as u8; len];
            record.extend(marker.to_le_bytes());
            record
        };
        match rng.u32(0..30) {
            0 => Self::Front(rng.u64(list.first..list.next() + 1)),
            1 => Self::Front(list.next() + rng.u64(0..5)),
            2 => Self::Back(rng.u64(list.first..list.next() + 1)),
            3..5 => Self::Sync,
            5..10 => Self::Submit((0..rng.usize(2..30)).map(|_| record(rng, marker)).collect()),
            10..14 => Self::Append((0..rng.usize(2..6)).map(|_| record(rng, marker)).collect()),
            _ => Self::Append(vec![record(rng, marker)]),
        }
    }

    fn apply(&self, list: &mut List) {
        match self {
            Self::Append(records) | Self::Submit(records) => {
                list.records.extend(records.iter().cloned());
            }
            Self::Front(lsn) => {
                let removed = (lsn - list.first).min(list.records.len() as u64);
                list.records.drain(..removed as usize);
                list.first = *lsn;
            }
            Self::Back(lsn) => list.records.truncate((lsn - list.first) as usize),
            Self::Sync => {}
        }
    }

    fn perform(&self, log: &Log) -> dioxide_log::Result<()> {
        match self {
            Self::Append(records) => {
                let records: Vec<&[u8]> = records.iter().map(Vec::as_slice).collect();
                log.append_all(&records).map(drop)
            }
            Self::Submit(records) => {
                for record in records {
                    log.submit(record)?;
                }
                log.wait(Lsn(log.next_lsn().0 - 1))
            }
            Self::Front(lsn) => log.truncate_front(Lsn(*lsn)),
            Self::Back(lsn) => log.truncate_back(Lsn(*lsn)),
            Self::Sync => log.sync(),
        }
    }

    /// Whether everything before is stable when the change of `list` is acknowledged. A truncation
    /// that removes nothing flushes nothing.
    fn stabilizes(&self, list: &List) -> bool {
        match self {
            Self::Append(_) | Self::Submit(_) => false,
            Self::Front(lsn) => *lsn > list.first,
            Self::Back(lsn) => *lsn < list.next(),
            Self::Sync => true,
        }
    }
}

fn options(durability: Durability) -> LogOptions {
    LogOptions::new().segment_bytes(64 << 10).spare_segments(1).durability(durability)
}

/// One program over several lives, each of which ends with a power cut, a kill or a close. Fails
/// with a description.
fn play(seed: u64, lies: bool) -> Result<(), String> {
    let mut rng = Rng::with_seed(seed);
    let durability = if rng.bool() { Durability::EveryWrite } else { Durability::OnSync };
    let mut disk = Memory::default();
    let mut base = List { first: 1, records: Vec::new() };
    // What a crash may leave before the next open makes `base` stable.
    let mut states = vec![base.clone()];
    let mut marker = 0;
    for life in 0..LIVES {
        // Often soon, while the frames of a torn write may still lie behind the end.
        let soon = rng.bool();
        let cut = disk.calls() + if soon { rng.u64(1..6) } else { rng.u64(1..80) };
        disk.set_faults(Faults { power_cut: Some(cut), lies, ..Faults::default() });
        let mut list = base.clone();
        let steps = rng.u64(0..100);
        if let Ok(log) = options(durability).open_storage(Arc::new(disk.clone())) {
            let opened = List::of(&log);
            if opened != base {
                return Err(format!("life {life} opened {opened:?} instead of {base:?}"));
            }
            states = vec![base.clone()];
            let mut failed = false;
            for _ in 0..steps {
                let change = Change::draw(&mut rng, &list, &mut marker);
                let outcome = change.perform(&log);
                // These append nothing.
                if let (Change::Append(_), Err(Error::TooLong { .. } | Error::Full(_))) =
                    (&change, &outcome)
                {
                    continue;
                }
                // A part of the records may be there.
                if let Change::Submit(records) = &change {
                    let mut part = list.clone();
                    for record in records {
                        states.push(part.clone());
                        part.records.push(record.clone());
                    }
                }
                let stabilizes = change.stabilizes(&list);
                change.apply(&mut list);
                match outcome {
                    Ok(()) if durability == Durability::EveryWrite || stabilizes => {
                        states = vec![list.clone()];
                    }
                    Ok(()) => states.push(list.clone()),
                    Err(Error::Corrupt { .. }) => return Err(format!("{outcome:?}")),
                    Err(_) => {
                        states.push(list.clone());
                        failed = true;
                        break;
                    }
                }
            }
            if rng.u32(0..4) == 0 && !failed && log.close().is_ok() {
                states = vec![list.clone()];
            }
        }
        let killed = rng.u32(0..4) == 0;
        disk = match killed {
            true => disk.after_kill(),
            false => disk.after_power_cut(rng.u64(..)),
        };
        // Recovering twice gives the same, also if the first one is interrupted.
        let open = |disk: &Memory| {
            let log = options(durability).open_storage(Arc::new(disk.clone()));
            log.map(|log| List::of(&log)).map_err(|error| format!("life {life}: {error}"))
        };
        let mut found = open(&disk.copy())?;
        if !states.contains(&found) {
            let lengths: Vec<_> =
                states.iter().map(|state| (state.first, state.records.len())).collect();
            return Err(format!(
                "life {life}: {} records from {} are none of the {lengths:?}",
                found.records.len(),
                found.first
            ));
        }
        let interrupted = disk.after_kill();
        let cut = interrupted.calls() + rng.u64(1..4);
        interrupted.set_faults(Faults { power_cut: Some(cut), ..Faults::default() });
        let _ = options(durability).open_storage(Arc::new(interrupted.clone()));
        if rng.bool() {
            disk = interrupted.after_power_cut(rng.u64(..));
            let again = open(&disk.copy())?;
            if killed && states.contains(&again) {
                // Records without an acknowledgement were not yet stable.
                found = again;
            } else if again != found {
                return Err(format!("life {life}: an interrupted recovery changed the log"));
            }
        }
        if !killed {
            states = vec![found.clone()];
        }
        base = found;
    }
    Ok(())
}

#[test]
fn a_power_cut_at_any_call_loses_nothing_acknowledged() {
    for seed in 0..SEEDS {
        if let Err(reason) = play(seed, false) {
            panic!("seed {seed}: {reason}");
        }
    }
}

/// The control: a disk that lies about flushes must lose records.
#[test]
fn a_disk_that_lies_about_flushes_loses_records() {
    let lost = (0..200).filter(|seed| play(*seed, true).is_err()).count();
    assert!(lost > 50, "only {lost} of 200 programs lost records");
}

/// Frames of a torn write lay behind its end, and a record of the next life ended before them.
#[test]
fn frames_of_a_torn_write_do_not_follow_later_records() {
    let disk = Memory::default();
    let options = options(Durability::EveryWrite);
    let open = |disk: &Memory| options.open_storage(Arc::new(disk.clone())).expect("it opens");
    let block = |byte| vec![byte; 4096 - 24];
    let log = open(&disk);
    log.append(&block(1)).unwrap();
    log.append_all(&[&block(2), &block(3), &block(4)]).unwrap();
    let torn = disk.copy();
    torn.edit(torn.names()[0], |bytes| bytes[2 * 4096 + 100] ^= 1);
    let log = open(&torn);
    assert_eq!((List::of(&log).records, log.report().remnants), (vec![block(1)], 2));
    log.append_all(&[&block(5)]).unwrap();
    let killed = torn.copy();
    assert_eq!(List::of(&open(&killed)).records, [block(1), block(5)]);
}

#[test]
fn threads_lose_nothing_acknowledged() {
    for seed in 0..300 {
        let mut rng = Rng::with_seed(seed);
        let disk = Memory::default();
        let log = options(Durability::EveryWrite).open_storage(Arc::new(disk.clone())).unwrap();
        let cut = disk.calls() + rng.u64(1..60);
        disk.set_faults(Faults { power_cut: Some(cut), ..Faults::default() });
        let write = |thread: u64| {
            let log = log.clone();
            move || {
                let mut acknowledged = Vec::new();
                for number in 0u64.. {
                    let bytes = [thread, number].map(u64::to_le_bytes).concat();
                    match log.append(&bytes) {
                        Ok(lsn) => acknowledged.push((lsn, bytes)),
                        Err(_) => break,
                    }
                }
                acknowledged
            }
        };
        let acknowledged: Vec<_> = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..8).map(|thread| scope.spawn(write(thread))).collect();
            writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect()
        });
        let after = disk.after_power_cut(seed);
        let log = options(Durability::EveryWrite).open_storage(Arc::new(after)).unwrap();
        let list = List::of(&log);
        for (lsn, bytes) in &acknowledged {
            let found = list.records.get(lsn.0 as usize - 1);
            assert_eq!(found, Some(bytes), "seed {seed}: record {lsn}");
        }
        let unacknowledged = list.records.len() - acknowledged.len();
        assert!(unacknowledged <= 8, "seed {seed}: each thread has one append in flight");
    }
}
