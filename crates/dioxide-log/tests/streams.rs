//! Streams: many logs in one. On the file system of the tests, and on a simulated disk.

use dioxide_log::storage::memory::{Faults, Memory};
use dioxide_log::{
    Durability, Error, Log, LogOptions, Lsn, Stream, StreamFollow, StreamIter, StreamLog,
};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

fn small() -> LogOptions {
    LogOptions::new().segment_bytes(64 << 10)
}

fn records(stream: &Stream) -> Vec<(u64, Vec<u8>)> {
    let records = stream.iter_from(stream.first_lsn());
    records.map(|record| record.expect("it is read")).map(|(lsn, bytes)| (lsn.0, bytes)).collect()
}

/// Waits for what must happen, with a generous limit.
fn await_event(happened: impl Fn() -> bool) {
    for _ in 0..60_000 {
        if happened() {
            return;
        }
        thread::sleep(Duration::from_millis(1));
    }
    panic!("it did not happen");
}

fn record(stream: u64, lsn: u64) -> Vec<u8> {
    let len = [0, 1, 100, 4000, 20_000][(stream + lsn) as usize % 5];
    let mut bytes = vec![lsn as u8; len];
    bytes.extend([stream, lsn].map(u64::to_le_bytes).concat());
    bytes
}

#[test]
fn each_stream_has_its_numbers_across_segments_and_opens() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let ids = [7, 0, u64::MAX, 8];
    for round in 0..3u64 {
        let log = small().open_streams(dir.path()).unwrap();
        let expected = if round == 0 { vec![] } else { vec![0, 7, 8, u64::MAX] };
        assert_eq!(log.ids(), expected);
        for lsn in round * 30 + 1..=round * 30 + 30 {
            for id in ids {
                let stream = log.stream(id);
                assert_eq!(stream.append(&record(id % 10, lsn)).unwrap(), Lsn(lsn));
                assert_eq!((stream.next_lsn(), stream.stable_lsn()), (Lsn(lsn + 1), Lsn(lsn + 1)));
            }
        }
        for id in ids {
            let expected = (1..=round * 30 + 30).map(|lsn| (lsn, record(id % 10, lsn)));
            let stream = log.stream(id);
            assert_eq!(records(&stream), expected.collect::<Vec<_>>());
            assert_eq!(stream.read(Lsn(3)).unwrap(), Some(record(id % 10, 3)));
            assert_eq!(stream.read(stream.next_lsn()).unwrap(), None);
        }
        match round {
            1 => drop(log),
            _ => log.close().unwrap(),
        }
    }
}

#[test]
fn both_ends_of_a_stream_are_truncated() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let log = small().open_streams(dir.path()).unwrap();
    let (stream, other) = (log.stream(1), log.stream(2));
    for lsn in 1..=20 {
        stream.append(&record(1, lsn)).unwrap();
        other.append(&record(2, lsn)).unwrap();
    }
    stream.truncate_front(Lsn(10)).unwrap();
    stream.truncate_front(Lsn(5)).unwrap();
    assert_eq!((stream.first_lsn(), stream.last_lsn()), (Lsn(10), Some(Lsn(20))));
    assert!(matches!(stream.read(Lsn(9)), Err(Error::OutOfRange { .. })));
    let mut reader = stream.iter_from(Lsn(15));
    assert_eq!(StreamIter::next(&mut reader).unwrap().unwrap().payload, record(1, 15));
    stream.truncate_back(Lsn(16)).unwrap();
    assert!(StreamIter::next(&mut reader).unwrap().is_none());
    assert_eq!(stream.append(b"another").unwrap(), Lsn(16));
    assert_eq!(StreamIter::next(&mut reader).unwrap().unwrap().payload, b"another");
    assert!(matches!(stream.truncate_back(Lsn(9)), Err(Error::OutOfRange { .. })));
    assert!(matches!(stream.truncate_back(Lsn(18)), Err(Error::OutOfRange { .. })));
    // As after a snapshot: the stream continues far above.
    other.truncate_front(Lsn(1000)).unwrap();
    assert_eq!((other.first_lsn(), other.last_lsn()), (Lsn(1000), None));
    let removed = log.stream(3);
    removed.append(b"for a while").unwrap();
    removed.remove().unwrap();
    assert_eq!((log.ids(), removed.next_lsn()), (vec![1, 2], Lsn(1)));
    let expected = records(&stream);
    assert_eq!(expected.len(), 7);
    log.close().unwrap();
    assert!(matches!(stream.append(b"late"), Err(Error::Closed)));

    let log = small().open_streams(dir.path()).unwrap();
    assert_eq!(records(&log.stream(1)), expected);
    assert_eq!((log.ids(), log.stream(2).append(b"later").unwrap()), (vec![1, 2], Lsn(1000)));
    assert_eq!(log.stream(3).append(b"again").unwrap(), Lsn(1));
}

#[test]
fn a_batch_of_several_streams_is_appended_as_a_whole() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let log = small().open_streams(dir.path()).unwrap();
    let (a, b) = (log.stream(1), log.stream(2));
    assert_eq!(log.append_all(&[]).unwrap(), []);
    assert_eq!(a.append_all(&[]).unwrap(), Lsn(1));
    let batch: [(&Stream, &[u8]); 4] = [(&b, b"b1"), (&a, b"a1"), (&b, b"b2"), (&a, b"a2")];
    assert_eq!(log.append_all(&batch).unwrap(), [Lsn(1), Lsn(1), Lsn(2), Lsn(2)]);
    assert_eq!(a.append_all(&[b"a3", b"a4"]).unwrap(), Lsn(3));
    let long = vec![1; 40_000];
    let batch: [(&Stream, &[u8]); 2] = [(&a, &long), (&b, &long)];
    assert!(matches!(log.append_all(&batch), Err(Error::TooLong { .. })));
    assert_eq!((a.next_lsn(), b.next_lsn()), (Lsn(5), Lsn(3)));
    assert_eq!(records(&b), [(1, b"b1".to_vec()), (2, b"b2".to_vec())]);
    let other_dir = tempfile::tempdir_in(".").unwrap();
    let other = small().open_streams(other_dir.path()).unwrap();
    assert!(matches!(log.append_all(&[(&other.stream(1), b"x")]), Err(Error::Options(_))));
}

#[test]
fn a_log_of_streams_is_not_taken_for_one_of_records() {
    let dir = tempfile::tempdir_in(".").unwrap();
    small().open_streams(dir.path()).unwrap().close().unwrap();
    let error = Log::open(dir.path()).unwrap_err();
    assert!(error.to_string().contains("open it with StreamLog"), "{error}");
    let dir = tempfile::tempdir_in(".").unwrap();
    Log::open(dir.path()).unwrap().close().unwrap();
    let error = StreamLog::open(dir.path()).unwrap_err();
    assert!(error.to_string().contains("open it with Log"), "{error}");
    let error = LogOptions::new().retain_bytes(1 << 20).open_streams(dir.path()).unwrap_err();
    assert!(matches!(error, Error::Options(_)));
}

/// The stream that rests had kept all segments since its records.
#[test]
fn a_stream_that_rests_does_not_keep_old_segments() {
    let disk = Memory::default();
    let log = small().open_streams_storage(Arc::new(disk.clone())).unwrap();
    let (resting, empty, busy) = (log.stream(1), log.stream(2), log.stream(3));
    for lsn in 1..=10 {
        resting.append(&record(1, lsn)).unwrap();
    }
    empty.append(b"gone").unwrap();
    empty.truncate_front(Lsn(700)).unwrap();
    let expected = records(&resting);
    let payload = vec![5; 1000];
    for lsn in 1..=5000 {
        busy.append(&payload).unwrap();
        if lsn % 10 == 0 {
            busy.truncate_front(Lsn(lsn)).unwrap();
        }
    }
    // 5 MB went through segments of 64 KiB. The collector may still work.
    await_event(|| disk.names().len() < 10);
    assert!(log.stats().copied_bytes > 0);
    assert_eq!(records(&resting), expected);
    assert_eq!(empty.next_lsn(), Lsn(700));
    let again = small().open_streams_storage(Arc::new(disk.after_kill())).unwrap();
    assert_eq!(records(&again.stream(1)), expected);
    assert_eq!(again.stream(2).next_lsn(), Lsn(700));
    assert_eq!(again.stream(3).first_lsn(), Lsn(5000));
}

/// A truncation needs space for its frame. In a full log it had none, so the log stayed full.
#[test]
fn a_full_log_takes_records_again_after_a_truncation() {
    let faults = Faults { segments_max: Some(8), ..Faults::default() };
    let disk = Memory::new(faults);
    let log = small().open_streams_storage(Arc::new(disk.clone())).unwrap();
    let streams: Vec<_> = (0..4).map(|id| log.stream(id)).collect();
    let payload = vec![9; 3000];
    // They stay in the oldest segment, or are copied.
    streams[0].append_all(&[&payload[..]; 5]).unwrap();
    let len = |stream: &Stream| stream.next_lsn().0 - stream.first_lsn().0;
    for round in 0..20 {
        let mut full = 0;
        while full < 3 {
            full = 0;
            for stream in &streams[1..] {
                match stream.append(&payload) {
                    Ok(_) => {}
                    Err(error) if error.is_no_space() => full += 1,
                    Err(error) => panic!("{error}"),
                }
            }
        }
        let used: u64 = streams.iter().map(len).sum();
        assert!(used * 3000 > 4 * (64 << 10), "round {round}: only {used} records fit");
        let longest = streams[1..].iter().max_by_key(|stream| len(stream)).expect("three");
        longest.truncate_front(longest.next_lsn()).unwrap();
        longest.append(&payload).unwrap();
    }
    assert_eq!(streams[0].first_lsn(), Lsn(1));
    let again = small().open_streams_storage(Arc::new(disk.after_kill())).unwrap();
    for stream in &streams {
        assert_eq!(records(&again.stream(stream.id())), records(stream));
    }
}

#[test]
fn threads_and_followers_of_many_streams() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let log = small().open_streams(dir.path()).unwrap();
    let follow = |mut follower: StreamFollow, id: u64| {
        let mut next = 1;
        while next <= 200 {
            let record_ = follower.next().unwrap().expect("the log is open");
            assert_eq!((record_.lsn, record_.payload), (Lsn(next), &record(id % 3, next)[..]));
            next += 1;
        }
    };
    thread::scope(|scope| {
        for id in 0..8 {
            let stream = log.stream(id);
            let follower = stream.follow(Lsn(1));
            scope.spawn(move || follow(follower, id));
            scope.spawn(move || {
                for lsn in 1..=200 {
                    assert_eq!(stream.append(&record(id % 3, lsn)).unwrap(), Lsn(lsn));
                }
            });
        }
    });
    let stats = log.stats();
    assert_eq!((stats.streams, stats.log.records), (8, 8 * 200 + 8), "with bounds of each");
    let mut follower = log.stream(0).follow(Lsn(201));
    let waiting = thread::spawn(move || follower.next().unwrap().is_none());
    log.close().unwrap();
    assert!(waiting.join().unwrap(), "a follower ends with the log");
}

struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

#[test]
fn tasks_append_and_follow() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let log = small().open_streams(dir.path()).unwrap();
    let (a, b) = (log.stream(1), log.stream(2));
    let mut follower = a.follow(Lsn(1));
    let following = thread::spawn(move || {
        block_on(async {
            for lsn in 1..=100 {
                let found = follower.next_async().await.unwrap().expect("the log is open");
                assert_eq!((found.lsn, found.payload), (Lsn(lsn), &record(1, lsn)[..]));
            }
        });
    });
    let appends: Vec<_> = (1..=100)
        .map(|lsn| (a.append_async(&record(1, lsn)), b.append_async(&record(2, lsn))))
        .collect();
    for (lsn, (in_a, in_b)) in (1..).zip(appends) {
        assert_eq!(block_on(in_a).unwrap(), Lsn(lsn));
        assert_eq!(block_on(in_b).unwrap(), Lsn(lsn));
    }
    following.join().unwrap();
}

/// The collector copied records that readers were just reading, and recycled their segment.
#[test]
fn readers_find_records_that_are_moved_under_them() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let log = small().open_streams(dir.path()).unwrap();
    let (resting, busy) = (log.stream(1), log.stream(2));
    for lsn in 1..=30 {
        resting.append(&record(1, lsn)).unwrap();
    }
    let expected = records(&resting);
    let write = || {
        let payload = vec![5; 3000];
        for lsn in 1..=1500 {
            busy.append(&payload).unwrap();
            busy.truncate_front(Lsn(lsn)).unwrap();
        }
    };
    thread::scope(|scope| {
        let writer = scope.spawn(write);
        while !writer.is_finished() {
            assert_eq!(records(&resting), expected);
        }
    });
    assert!(log.stats().copied_bytes > 100_000);
}

#[test]
fn records_of_on_sync_are_shown_once_they_are_stable() {
    let disk = Memory::default();
    let options = small().durability(Durability::OnSync);
    let log = options.open_streams_storage(Arc::new(disk.clone())).unwrap();
    let stream = log.stream(1);
    stream.append(b"a record").unwrap();
    assert_eq!((stream.stable_lsn(), stream.read(Lsn(1)).unwrap()), (Lsn(1), None));
    log.sync().unwrap();
    assert_eq!(stream.read(Lsn(1)).unwrap(), Some(b"a record".to_vec()));
    let after = options.open_streams_storage(Arc::new(disk.after_power_cut(1))).unwrap();
    assert_eq!(after.stream(1).next_lsn(), Lsn(2));
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
