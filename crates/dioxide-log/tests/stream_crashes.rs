//! Streams on a simulated disk whose power fails during any call. Each recovered stream must have
//! every acknowledged record, and nothing else than changes that were in flight.

use dioxide_log::storage::memory::{Faults, Memory};
use dioxide_log::{Durability, Error, LogOptions, Lsn, Stream, StreamLog};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;

fn small() -> LogOptions {
    LogOptions::new().segment_bytes(64 << 10)
}

fn records(stream: &Stream) -> Vec<(u64, Vec<u8>)> {
    let records = stream.iter_from(stream.first_lsn());
    records.map(|record| record.expect("it is read")).map(|(lsn, bytes)| (lsn.0, bytes)).collect()
}

/// The state of all streams in use: the first LSN and the records of each.
type Streams = BTreeMap<u64, (u64, Vec<Vec<u8>>)>;

fn streams_of(log: &StreamLog) -> Streams {
    let found = log.ids().into_iter().map(|id| {
        let stream = log.stream(id);
        let first = stream.first_lsn().0;
        let records: Vec<_> = records(&stream).into_iter().map(|(_, bytes)| bytes).collect();
        assert_eq!(stream.next_lsn().0, first + records.len() as u64);
        (id, (first, records))
    });
    found.collect()
}

#[derive(Clone, Debug)]
enum Change {
    Append(Vec<(u64, Vec<u8>)>),
    Front(u64, u64),
    Back(u64, u64),
    Remove(u64),
}

impl Change {
    fn draw(rng: &mut fastrand::Rng, streams: &Streams, marker: &mut u64) -> Self {
        let id = rng.u64(0..5);
        let (first, next) = match streams.get(&id) {
            Some((first, records)) => (*first, first + records.len() as u64),
            None => (1, 1),
        };
        match rng.u32(0..20) {
            0..4 => Self::Front(id, rng.u64(first..next + 1) + u64::from(rng.u32(0..8) == 0) * 50),
            4 => Self::Back(id, rng.u64(first..next + 1)),
            5 if rng.u32(0..4) == 0 => Self::Remove(id),
            _ => {
                let count = if rng.bool() { 1 } else { rng.usize(1..6) };
                let mut draw = |rng: &mut fastrand::Rng| {
                    *marker += 1;
                    let len = [rng.usize(0..200), rng.usize(0..9000)][usize::from(rng.bool())];
                    let mut bytes = marker.to_le_bytes().to_vec();
                    bytes.resize(8 + len, *marker as u8);
                    // The first streams have less, so their records stay longer.
                    let streams = rng.u64(1..6);
                    (rng.u64(0..streams), bytes)
                };
                Self::Append((0..count).map(|_| draw(rng)).collect())
            }
        }
    }

    fn perform(&self, log: &StreamLog) -> Result<(), Error> {
        match self {
            Self::Append(records) => {
                let streams: Vec<_> = records.iter().map(|(id, _)| log.stream(*id)).collect();
                let records = records.iter().map(|(_, bytes)| &bytes[..]);
                let batch: Vec<_> = streams.iter().zip(records).collect();
                log.append_all(&batch).map(drop)
            }
            Self::Front(id, lsn) => log.stream(*id).truncate_front(Lsn(*lsn)),
            Self::Back(id, lsn) => log.stream(*id).truncate_back(Lsn(*lsn)),
            Self::Remove(id) => log.stream(*id).remove(),
        }
    }

    fn apply(&self, streams: &mut Streams) {
        match self {
            Self::Append(records) => {
                for (id, bytes) in records {
                    streams.entry(*id).or_insert((1, Vec::new())).1.push(bytes.clone());
                }
            }
            Self::Front(id, lsn) => {
                let (first, records) = streams.entry(*id).or_insert((1, Vec::new()));
                let gone = (lsn - *first).min(records.len() as u64);
                records.drain(..gone as usize);
                *first = *lsn;
            }
            Self::Back(id, lsn) => {
                if let Some((first, records)) = streams.get_mut(id) {
                    records.truncate((lsn - *first) as usize);
                }
            }
            Self::Remove(id) => drop(streams.remove(id)),
        }
        // As if it had never been used.
        streams.retain(|_, (first, records)| *first > 1 || !records.is_empty());
    }
}

fn crash(disk: &Memory, rng: &mut fastrand::Rng) -> Memory {
    match rng.u32(0..4) {
        0 => disk.after_kill(),
        _ => disk.after_power_cut(rng.u64(..)),
    }
}

/// Plays lives of a log on a simulated disk. The error says what a crash lost.
fn play(seed: u64, lies: bool) -> Result<u64, String> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut disk = Memory::default();
    let mut states = vec![Streams::new()];
    let (mut marker, mut copied) = (0, 0);
    for life in 0..5 {
        let cut = (rng.u32(0..4) > 0).then(|| disk.calls() + rng.u64(1..150));
        let segments_max = (rng.u32(0..3) == 0).then_some(8);
        disk.set_faults(Faults { power_cut: cut, lies, segments_max, ..Faults::default() });
        let opened = small().spare_segments(rng.usize(0..3));
        if let Ok(log) = opened.open_streams_storage(Arc::new(disk.clone())) {
            let mut streams = streams_of(&log);
            if !states.contains(&streams) {
                return Err(format!("life {life}: another state at the open"));
            }
            states = vec![streams.clone()];
            for _ in 0..rng.usize(1..150) {
                let change = Change::draw(&mut rng, &streams, &mut marker);
                let outcome = change.perform(&log);
                if let Err(error) = &outcome
                    && (error.is_no_space() || matches!(error, Error::TooLong { .. }))
                {
                    // Nothing was done.
                    continue;
                }
                change.apply(&mut streams);
                match outcome {
                    Ok(()) => states = vec![streams.clone()],
                    Err(Error::Corrupt { .. }) => return Err(format!("{outcome:?}")),
                    Err(_) => {
                        states.push(streams.clone());
                        break;
                    }
                }
            }
            copied += log.stats().copied_bytes;
            if rng.u32(0..4) == 0 {
                drop(log.clone().close());
            }
            // Before the log is dropped, which closes it.
            disk = crash(&disk, &mut rng);
        } else {
            disk = crash(&disk, &mut rng);
        }
        let again = small().open_streams_storage(Arc::new(disk.copy()));
        let found = streams_of(&again.map_err(|error| format!("life {life}: {error}"))?);
        if !states.contains(&found) {
            return Err(format!("life {life}: found {found:?}, none of {}", states.len()));
        }
    }
    Ok(copied)
}

#[test]
fn a_power_cut_at_any_call_loses_nothing_of_a_stream() {
    let mut copied = 0;
    for seed in 0..150 {
        match play(seed, false) {
            Ok(bytes) => copied += bytes,
            Err(reason) => panic!("seed {seed}: {}", &reason[..reason.len().min(500)]),
        }
    }
    assert!(copied > 1_000_000, "the collector worked: {copied} bytes");
}

/// The control: a disk that lies about flushes must lose records.
#[test]
fn a_disk_that_lies_about_flushes_loses_records_of_streams() {
    let lost = (0..60).filter(|seed| play(*seed, true).is_err()).count();
    assert!(lost > 10, "only {lost} of 60 programs lost records");
}

/// A stream of which one thread knows everything: the first LSN, and the marker of each record.
type Known = (u64, Vec<u64>);

const THREADS: u64 = 6;

/// One change of one thread. Returns its outcome, and the state afterwards.
fn change(
    log: &StreamLog,
    id: u64,
    (first, markers): &Known,
    rng: &mut fastrand::Rng,
    marker: &mut u64,
) -> (Result<(), Error>, Known) {
    let stream = log.stream(id);
    let next = first + markers.len() as u64;
    let (mut first, mut markers) = (*first, markers.clone());
    let outcome = match rng.u32(0..40) {
        0..5 => {
            let lsn = rng.u64(first..=next) + u64::from(rng.u32(0..8) == 0) * 50;
            markers.drain(..((lsn - first) as usize).min(markers.len()));
            first = lsn;
            stream.truncate_front(Lsn(lsn))
        }
        5..7 => {
            let lsn = rng.u64(first..=next);
            markers.truncate((lsn - first) as usize);
            stream.truncate_back(Lsn(lsn))
        }
        7 => {
            (first, markers) = (1, Vec::new());
            stream.remove()
        }
        8..10 => {
            // Without a sync, a reader sees a part.
            let (from, seen) = known(&stream);
            assert!(from == first && markers.starts_with(&seen), "a reader beside others");
            Ok(())
        }
        _ => {
            let long = if id == 0 { 9000 } else { 1500 };
            let mut record = || {
                *marker += 1;
                markers.push(*marker);
                let len = [rng.usize(0..200), rng.usize(0..long)][usize::from(rng.bool())];
                let mut bytes = marker.to_le_bytes().to_vec();
                bytes.resize(8 + len, 7);
                bytes
            };
            let records = [record(), record(), record()];
            let count = 1 + *marker as usize % 3;
            markers.truncate(markers.len() - 3 + count);
            let records: Vec<&[u8]> = records[..count].iter().map(|bytes| &bytes[..]).collect();
            stream.append_all(&records).map(drop)
        }
    };
    (outcome, (first, markers))
}

fn known(stream: &Stream) -> Known {
    let marker = |bytes: Vec<u8>| u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
    let first = stream.first_lsn().0;
    (first, records(stream).into_iter().map(|(_, bytes)| marker(bytes)).collect())
}

/// Plays lives of a log whose threads have a stream each. Returns the bytes that were copied.
fn play_threads(seed: u64, durability: Durability) -> u64 {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut disk = Memory::default();
    let mut states: Vec<Vec<Known>> = (0..THREADS).map(|_| vec![(1, Vec::new())]).collect();
    let mut copied = 0;
    for life in 0..4 {
        let power_cut = (rng.u32(0..4) > 0).then(|| disk.calls() + rng.u64(1..600));
        let segments_max = (rng.u32(0..3) == 0).then_some(10);
        disk.set_faults(Faults { power_cut, segments_max, ..Faults::default() });
        let options = small().spare_segments(rng.usize(0..4)).durability(durability);
        if let Ok(log) = options.open_streams_storage(Arc::new(disk.clone())) {
            let live = |id: u64, seed: u64| {
                let mut rng = fastrand::Rng::with_seed(seed);
                let mut marker = (life * THREADS + id + 1) << 32;
                let mut state = known(&log.stream(id));
                let mut states = vec![state.clone()];
                for _ in 0..rng.usize(1..150) {
                    let (outcome, new) = change(&log, id, &state, &mut rng, &mut marker);
                    match outcome {
                        Ok(()) if durability == Durability::EveryWrite => {
                            states = vec![new.clone()]
                        }
                        Ok(()) => states.push(new.clone()),
                        Err(error) if error.is_no_space() => continue,
                        Err(error @ Error::Corrupt { .. }) => panic!("seed {seed}: {error}"),
                        Err(_) => {
                            states.push(new);
                            break;
                        }
                    }
                    state = new;
                }
                states
            };
            thread::scope(|scope| {
                let live = &live;
                let seeds: Vec<u64> = (0..THREADS).map(|_| rng.u64(..)).collect();
                let threads: Vec<_> = (0..)
                    .zip(seeds)
                    .map(|(id, seed)| scope.spawn(move || live(id, seed)))
                    .collect();
                states = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
            });
            copied += log.stats().copied_bytes;
            // Before the log is dropped, which closes it.
            disk = disk.after_power_cut(rng.u64(..));
        } else {
            disk = disk.after_power_cut(rng.u64(..));
        }
        let log = small().open_streams_storage(Arc::new(disk.copy())).unwrap();
        for (id, states) in (0..).zip(&mut states) {
            let found = known(&log.stream(id));
            assert!(states.contains(&found), "seed {seed}, life {life}, stream {id}: lost records");
            *states = vec![found];
        }
    }
    copied
}

#[test]
fn threads_of_many_streams_lose_nothing() {
    let play = |seed| {
        let durability = [Durability::EveryWrite, Durability::OnSync][seed as usize % 2];
        play_threads(seed, durability)
    };
    let copied: u64 = (0..30).map(play).sum();
    assert!(copied > 1_000_000, "the collector worked: {copied} bytes");
}
