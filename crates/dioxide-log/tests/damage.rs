//! A damaged log is an error, or has all its records: never fewer, and never a wrong one.

#[path = "common/hooked.rs"]
mod hooked;

use dioxide_log::storage::memory::{Faults, Memory};
use dioxide_log::{
    Durability, Error, Log, LogOptions, LogReader, LogView, Lsn, Result, StreamReader,
};
use hooked::{Call, Hooked};
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

const SEGMENT_BYTES: usize = 64 << 10;

fn open(disk: &Memory) -> Result<Log> {
    let options = LogOptions::new().segment_bytes(SEGMENT_BYTES as u64);
    options.open_storage(Arc::new(disk.clone()))
}

fn records(log: &Log) -> Vec<(Lsn, Vec<u8>)> {
    log.iter_from(log.first_lsn()).map(|record| record.expect("it is read")).collect()
}

/// A closed log of some segments, the first of which is free again.
fn log(count: u64) -> (Memory, Vec<(Lsn, Vec<u8>)>) {
    let disk = Memory::default();
    let log = open(&disk).unwrap();
    for lsn in 1..=count {
        log.append(&[lsn as u8; 900]).unwrap();
    }
    log.append_all(&[b"a", b"b", b"c"]).unwrap();
    log.truncate_front(Lsn(70)).unwrap();
    log.append(b"the last").unwrap();
    let expected = records(&log);
    log.close().unwrap();
    (disk, expected)
}

/// Opens a damaged log, which may be refused.
fn is_refused(disk: &Memory, expected: &[(Lsn, Vec<u8>)], damage: &str) -> bool {
    match open(disk) {
        Ok(log) => {
            assert_eq!(records(&log), expected, "{damage}");
            false
        }
        Err(Error::Corrupt { .. } | Error::Version { .. }) => true,
        Err(error) => panic!("{damage}: {error}"),
    }
}

/// Coprime to the sizes of frames and headers.
const STEP: usize = 37;

#[test]
fn a_changed_bit_anywhere_is_found_or_does_no_harm() {
    let (disk, expected) = log(80);
    let mut refused = 0;
    for name in disk.names() {
        let content = disk.edit(name, |bytes| bytes.clone());
        let used = content.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        // Bytes that are used, and a few behind.
        for at in (0..SEGMENT_BYTES.min(used + 64)).step_by(STEP) {
            let damaged = disk.copy();
            damaged.edit(name, |bytes| bytes[at] ^= 1 << (at % 8));
            refused += u64::from(is_refused(&damaged, &expected, &format!("{name} at {at}")));
        }
    }
    // The records take about 12,000 bytes.
    assert!(refused > 10_000 / STEP as u64, "only {refused} changed bits were found");
}

/// Each byte of a small log, from its header to the frame that closes it.
#[test]
fn a_changed_bit_in_any_byte_of_a_small_log_is_found() {
    let disk = Memory::default();
    let log = open(&disk).unwrap();
    for lsn in 1..=10u64 {
        log.append(&vec![lsn as u8; 7 * lsn as usize]).unwrap();
    }
    log.append_all(&[b"a", b"b", b""]).unwrap();
    log.truncate_front(Lsn(3)).unwrap();
    log.truncate_back(Lsn(13)).unwrap();
    log.append(b"the last").unwrap();
    let expected = records(&log);
    log.close().unwrap();
    let [name] = disk.names()[..] else { panic!("one segment") };
    let content = disk.edit(name, |bytes| bytes.clone());
    // The frame that closes the log ends with its kind, a zero and its flags. The life is above 0.
    let used = 3 + content.iter().rposition(|byte| *byte != 0).expect("frames");
    let closed = used / 8 * 8 - 24;
    assert_eq!(content[closed + 20], 5, "the frame that closes the log");
    for at in 0..closed + 64 {
        let damaged = disk.copy();
        damaged.edit(name, |bytes| bytes[at] ^= 1 << (at % 8));
        let is_found = is_refused(&damaged, &expected, &format!("at {at}"));
        assert_eq!(is_found, at < closed, "at {at}");
    }
}

#[test]
fn damage_of_a_log_that_was_killed_costs_at_most_its_last_write() {
    let disk = Memory::default();
    let log = open(&disk).unwrap();
    for lsn in 1..=20u64 {
        log.append(&[lsn as u8; 50]).unwrap();
    }
    let killed = disk.copy();
    let expected = records(&log);
    let name = killed.names()[0];
    for at in 4096..4096 + 20 * 80 {
        let damaged = killed.copy();
        damaged.edit(name, |bytes| bytes[at] ^= 0x10);
        match open(&damaged) {
            Ok(log) => {
                let found = records(&log);
                assert!(found.len() >= 19, "at {at} {} records are left", found.len());
                assert_eq!(found, expected[..found.len()], "at {at}");
            }
            Err(Error::Corrupt { .. }) => {}
            Err(error) => panic!("at {at}: {error}"),
        }
    }
}

#[test]
fn segments_that_were_moved_outside_are_told_apart() {
    let (disk, expected) = log(300);
    let names = disk.names();
    assert!(names.len() > 3);
    let newest = |disk: &Memory| {
        let number = |name: &u64| disk.edit(*name, |bytes| bytes[32]);
        disk.names().into_iter().max_by_key(number).expect("segments")
    };

    // Under another name a segment is the same.
    let renamed = disk.copy();
    let content = renamed.take(newest(&renamed)).unwrap();
    renamed.put(content);
    assert!(!is_refused(&renamed, &expected, "renamed"));

    // So it is if two have exchanged their names, but not parts of their content.
    let [one, other] = [names[1], names[2]];
    let content = |name| disk.edit(name, |bytes| bytes.clone());
    for (part, refused) in [(0..SEGMENT_BYTES, false), (0..4096, true), (4096..SEGMENT_BYTES, true)]
    {
        let swapped = disk.copy();
        for (name, from) in [(one, content(other)), (other, content(one))] {
            swapped.edit(name, |bytes| bytes[part.clone()].copy_from_slice(&from[part.clone()]));
        }
        assert_eq!(is_refused(&swapped, &expected, "swapped"), refused, "{part:?}");
    }

    let duplicated = disk.copy();
    let content = duplicated.edit(newest(&duplicated), |bytes| bytes.clone());
    duplicated.put(content);
    assert!(is_refused(&duplicated, &expected, "duplicated"));

    // Each segment in use but the last is missed. The second has record 70.
    for name in &names {
        let missing = disk.copy();
        if *name != newest(&missing) {
            let number = missing.take(*name).unwrap()[32];
            assert_eq!(is_refused(&missing, &expected, "missing"), number >= 2, "{number}");
        }
    }

    let foreign = disk.copy();
    let (other, _) = log(10);
    foreign.put(other.take(other.names()[0]).unwrap());
    assert!(is_refused(&foreign, &expected, "foreign"));

    // A segment as it was in an earlier life.
    let older = disk.copy();
    let (name, old) = (names[1], older.edit(names[1], |bytes| bytes.clone()));
    let log = open(&older).unwrap();
    log.truncate_front(log.next_lsn()).unwrap();
    for _ in 0..300 {
        log.append(&[7; 900]).unwrap();
    }
    let expected = records(&log);
    log.close().unwrap();
    assert!(!is_refused(&older, &expected, "untouched"));
    older.edit(name, |bytes| *bytes = old);
    assert!(is_refused(&older, &expected, "older"));

    let shorter = disk.copy();
    shorter.edit(names[1], |bytes| bytes.truncate(5000));
    assert!(is_refused(&shorter, &expected, "shorter"));
}

#[test]
fn a_failed_write_ends_the_log() {
    let disk = Memory::default();
    let log = open(&disk).unwrap();
    log.append(b"one").unwrap();
    disk.set_faults(Faults { failed_call: Some(disk.calls() + 1), ..Faults::default() });
    assert!(matches!(log.append(b"two"), Err(Error::System { .. })));
    disk.set_faults(Faults::default());
    for error in [
        log.append(b"three").unwrap_err(),
        log.truncate_front(Lsn(2)).unwrap_err(),
        log.truncate_back(Lsn(1)).unwrap_err(),
        log.wait(Lsn(2)).unwrap_err(),
    ] {
        assert!(matches!(error, Error::Failed(_)), "{error}");
    }
    assert_eq!(records(&log), [(Lsn(1), b"one".to_vec())]);
    assert!(matches!(log.close(), Err(Error::Failed(_))));
    let log = open(&disk).unwrap();
    assert_eq!(log.read(Lsn(1)).unwrap(), Some(b"one".to_vec()));
    assert_eq!(log.append(b"again").unwrap(), log.last_lsn().unwrap());
}

/// Segments whose first block is zeros counted as never used.
#[test]
fn zeros_in_place_of_a_header_are_found() {
    let erase = |disk: &Memory, name| {
        let damaged = disk.copy();
        damaged.edit(name, |bytes| bytes[..4096].fill(0));
        damaged
    };
    let (disk, expected) = log(300);
    let refused = |name: &u64| is_refused(&erase(&disk, *name), &expected, "erased");
    let in_use = LogView::of(Arc::new(disk.clone())).unwrap().segments();
    assert_eq!(disk.names().iter().filter(|name| refused(name)).count(), in_use);

    // The only segment, of a log that was closed or killed.
    for closed in [false, true] {
        let disk = Memory::default();
        let log = open(&disk).unwrap();
        log.append(b"one").unwrap();
        if closed {
            log.close().unwrap();
        }
        assert!(is_refused(&erase(&disk, disk.names()[0]), &[], "the only one"));
    }
}

/// A segment of 4096 bytes made recovery panic.
#[test]
fn a_free_segment_of_another_size_is_refused() {
    let (disk, expected) = log(80);
    for bytes in [0, 100, 4096, 5000, 128 << 10] {
        let odd = disk.copy();
        odd.put(vec![0; bytes]);
        assert!(is_refused(&odd, &expected, &format!("{bytes} bytes")));
        let alone = Memory::default();
        alone.put(vec![0; bytes]);
        assert_eq!(is_refused(&alone, &[], "alone"), bytes != 128 << 10);
    }
}

/// The number of the next record overflowed.
#[test]
fn a_front_beyond_the_largest_number_is_refused() {
    let disk = Memory::default();
    let log = open(&disk).unwrap();
    for lsn in [u64::MAX, Lsn::MAX.0 + 1].map(Lsn) {
        assert!(matches!(log.truncate_front(lsn), Err(Error::OutOfRange { .. })));
    }
    log.truncate_front(Lsn::MAX).unwrap();
    assert_eq!(log.append(b"behind it").unwrap(), Lsn::MAX);
    log.close().unwrap();
    assert_eq!(records(&open(&disk).unwrap()), [(Lsn::MAX, b"behind it".to_vec())]);
}

/// The name of the segment with a number.
fn segment(disk: &Memory, number: u8) -> u64 {
    let is_it = |name: &u64| disk.edit(*name, |bytes| bytes[32] == number);
    disk.names().into_iter().find(is_it).expect("a segment")
}

/// Reads on until an error. `next` returns whether there was a record.
fn assert_ends_in_damage(mut next: impl FnMut() -> Result<bool>) {
    let failure = loop {
        match next() {
            Ok(is_there) => assert!(is_there, "the log is longer"),
            Err(failure) => break failure,
        }
    };
    assert!(matches!(failure, Error::Corrupt { .. }), "{failure}");
}

#[test]
fn a_lost_segment_of_a_stream_was_a_change_for_ever() {
    for is_lost in [true, false] {
        let disk = Memory::default();
        let options = LogOptions::new().segment_bytes(SEGMENT_BYTES as u64);
        let log = options.open_streams_storage(Arc::new(disk.clone())).unwrap();
        for _ in 0..300 {
            log.stream(1).append(&[1; 900]).unwrap();
        }
        let mut reader = StreamReader::of(Arc::new(disk.clone()), 1).unwrap();
        reader.next().unwrap().expect("a record");
        let lost = segment(&disk, 2);
        match is_lost {
            true => drop(disk.take(lost)),
            false => disk.edit(lost, |bytes| bytes.fill(0)),
        }
        for _ in 0..2 {
            assert_ends_in_damage(|| Ok(reader.next()?.is_some()));
        }
    }
}

/// The reader read the end of the file for ever.
#[test]
fn a_segment_that_was_shortened_is_damage_for_a_reader() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let log = LogOptions::new().segment_bytes(SEGMENT_BYTES as u64).open(dir.path()).unwrap();
    log.append(&[1; 900]).unwrap();
    let mut reader = LogReader::open(dir.path()).unwrap();
    for _ in 0..120 {
        log.append(&[1; 900]).unwrap();
    }
    let is_second = |path: &PathBuf| fs::read(path).is_ok_and(|bytes| bytes.get(32) == Some(&2));
    let files = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
    let second = files.into_iter().find(is_second).expect("a second segment");
    fs::File::options().write(true).open(second).unwrap().set_len(8 << 10).unwrap();
    assert_ends_in_damage(|| Ok(reader.next()?.is_some()));
}

/// The reader kept the mark of the first log, and showed what the second one had not synced.
#[test]
fn a_reader_of_a_removed_log_took_its_mark_for_that_of_another() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let options = LogOptions::new().segment_bytes(SEGMENT_BYTES as u64);
    let set = options.durability(Durability::OnSync).open_set(dir.path()).unwrap();
    let log = set.log("a").unwrap();
    for _ in 0..100 {
        log.append(b"of the first").unwrap();
    }
    log.close().unwrap();
    let mut reader = LogReader::open(dir.path().join("a")).unwrap();
    reader.next().unwrap().expect("a record");
    set.remove("a").unwrap();
    let log = set.log("a").unwrap();
    for _ in 0..5 {
        log.append(b"of the second, not synced").unwrap();
    }
    reader.seek(Lsn(1));
    assert!(matches!(reader.next(), Err(Error::Missing { .. })));
}

const LONG_BYTES: usize = 1 << 20;

fn long() -> LogOptions {
    LogOptions::new().segment_bytes(LONG_BYTES as u64)
}

/// Content in which a frame of this life and length seems to begin at each word. The length is a
/// multiple of 64 KiB, and one more.
fn like_frames(life: u64, length: u64, bytes: usize) -> Vec<u8> {
    let word = life | 1 << 32 | (length >> 16) << 48;
    word.to_le_bytes().repeat(bytes / 8)
}

/// The disk, with a count of the bytes that are read.
fn counted(disk: &Memory, read: &Arc<AtomicUsize>) -> Arc<Hooked> {
    let read = read.clone();
    Hooked::new(disk, move |call| {
        if let Call::Read(bytes) = call {
            read.fetch_add(bytes, Relaxed);
        }
    })
}

/// The sums are counted by `content_like_frames_was_summed_once_for_each_word`.
#[test]
fn content_like_frames_is_read_a_few_times() {
    let disk = Memory::default();
    let log = long().open_storage(Arc::new(disk.clone())).unwrap();
    log.append(b"a record").unwrap();
    let killed = disk.copy();
    // Behind the last record, and where a header may be lost.
    killed.edit(killed.names()[0], |bytes| {
        bytes[8192..].copy_from_slice(&like_frames(1, 0x8_0000, LONG_BYTES - 8192));
    });
    let mut blank = vec![0; LONG_BYTES];
    blank[4096..].copy_from_slice(&like_frames(2, 0xF_0000, LONG_BYTES - 4096));
    killed.put(blank);
    let read = Arc::new(AtomicUsize::new(0));
    let log = long().open_storage(counted(&killed, &read)).unwrap();
    assert_eq!(records(&log), [(Lsn(1), b"a record".to_vec())]);
    let segments = read.load(Relaxed) / LONG_BYTES;
    assert!(segments <= 10, "{segments} times the size of a segment was read");
}

/// What a search passes over may be frames of a torn write.
#[test]
fn a_bounded_search_leaves_no_frame_of_a_torn_write() {
    let disk = Memory::default();
    let log = long().open_storage(Arc::new(disk.clone())).unwrap();
    log.append(b"one").unwrap();
    let second = like_frames(1, 0x4_0000, 100 << 10);
    log.append_all(&[&second, b"three"]).unwrap();
    let torn = disk.copy();
    torn.edit(torn.names()[0], |bytes| bytes[4096 + 32 + 10] ^= 1);
    let longest = Arc::new(AtomicUsize::new(0));
    let written = longest.clone();
    let hooked = Hooked::new(&torn, move |call| {
        if let Call::Write(bytes) = call {
            written.fetch_max(bytes, Relaxed);
        }
    });
    let log = long().open_storage(hooked).unwrap();
    assert!(log.last_lsn() == Some(Lsn(1)) && log.report().unsearched > 0, "{:?}", log.report());
    // It was the whole range.
    assert!(longest.load(Relaxed) <= 256 << 10);
    let second = vec![2; second.len()];
    log.append(&second).unwrap();
    let log = long().open_storage(Arc::new(torn.after_kill())).unwrap();
    assert_eq!(records(&log), [(Lsn(1), b"one".to_vec()), (Lsn(2), second)]);
    assert_eq!(log.report().unsearched, 0);
}

/// Headers of many frames of life 1, down to the smallest record. A search passes over all records
/// behind them.
fn headers() -> Vec<u8> {
    let header = |length: u32| {
        let mut bytes = [0; 24];
        bytes[4..8].copy_from_slice(&length.to_le_bytes());
        (bytes[16], bytes[20]) = (1, 1);
        bytes
    };
    let lengths = [(0x8000, 100), (0x800, 50), (0x80, 50), (8, 50)];
    lengths.iter().flat_map(|(length, count)| header(*length).repeat(*count)).collect()
}

/// The search for later frames began in the damaged record, and ended there.
#[test]
fn damage_of_content_like_frames_was_a_shorter_log() {
    const SECOND: usize = 4096 + 32;
    for closes in [true, false] {
        let disk = Memory::default();
        let log = long().open_storage(Arc::new(disk.clone())).unwrap();
        log.append(b"one").unwrap();
        log.append(&headers()).unwrap();
        for _ in 0..50 {
            log.append(b"more").unwrap();
        }
        if closes {
            log.close().unwrap();
        }
        // In its payload, or in its length: then only the frame of the close shows it.
        for at in [1000, 4, 5, 6, 7].into_iter().take(if closes { 5 } else { 1 }) {
            let damaged = disk.copy();
            damaged.edit(damaged.names()[0], |bytes| bytes[SECOND + at] ^= 1);
            let opened = long().open_storage(Arc::new(damaged));
            assert!(matches!(opened, Err(Error::Corrupt { .. })), "{closes}, {at}: {opened:?}");
        }
    }
}

/// Each of them was overwritten by a durable write of its own.
#[test]
fn remnants_of_a_lost_header_cost_a_write_each() {
    let disk = Memory::default();
    let log = open(&disk).unwrap();
    log.append(&[1; 40 << 10]).unwrap();
    // They do not fit behind it. The torn write of the next segment has lost its header.
    let small = [&b"record"[..]; 1000];
    log.append_all(&small).unwrap();
    let killed = disk.copy();
    killed.edit(killed.names()[1], |bytes| bytes[..4096].fill(0));
    let writes = Arc::new(AtomicUsize::new(0));
    let written = writes.clone();
    let hooked = Hooked::new(&killed, move |call| {
        written.fetch_add(usize::from(matches!(call, Call::Write(_))), Relaxed);
    });
    let options = LogOptions::new().segment_bytes(SEGMENT_BYTES as u64);
    let log = options.open_storage(hooked).unwrap();
    assert_eq!((log.last_lsn(), writes.load(Relaxed)), (Some(Lsn(1)), 1));
    assert_eq!(log.append(b"new").unwrap(), Lsn(2));
    let log = open(&killed.after_kill()).unwrap();
    assert_eq!(log.read(Lsn(2)).unwrap(), Some(b"new".to_vec()));
    assert_eq!(log.last_lsn(), Some(Lsn(2)));
}

/// A record came during each flush, so no later frame said that those before were stable.
#[test]
fn damage_of_synced_records_was_a_shorter_log() {
    let disk = Memory::default();
    let shared = Arc::new(Mutex::new(None::<Log>));
    let hook = {
        let shared = shared.clone();
        move |call| {
            let log = shared.lock().unwrap().clone();
            if let (Call::Synced, Some(log)) = (call, log) {
                log.append(&[2; 100]).unwrap();
            }
        }
    };
    let options = LogOptions::new().segment_bytes(SEGMENT_BYTES as u64);
    let options = options.durability(Durability::OnSync).read_unsynced(true);
    let log = options.open_storage(Hooked::new(&disk, hook)).unwrap();
    *shared.lock().unwrap() = Some(log.clone());
    for _ in 0..5 {
        log.append(&[1; 100]).unwrap();
        log.sync().unwrap();
    }
    *shared.lock().unwrap() = None;
    let killed = disk.copy();
    let expected = records(&log);
    assert_eq!((expected.len(), records(&open(&killed.copy()).unwrap())), (10, expected.clone()));
    // The fourth flush covers the seventh record, and the ninth follows it.
    let (name, mut refused) = (killed.names()[0], 0);
    for at in 4096..4096 + 10 * 128 {
        let damaged = killed.copy();
        damaged.edit(name, |bytes| bytes[at] ^= 1);
        match open(&damaged) {
            Ok(log) => {
                let found = records(&log);
                assert!(found.len() >= 7, "at {at} {} records are left", found.len());
                assert_eq!(found, expected[..found.len()], "at {at}");
            }
            Err(Error::Corrupt { .. }) => refused += 1,
            Err(error) => panic!("at {at}: {error}"),
        }
    }
    assert!(refused >= 7 * 124, "only {refused} changed bits were found");
}

/// An open after a kill searched the whole next segment, also before it could have been written.
#[test]
fn an_open_searched_a_segment_that_was_never_written() {
    let disk = Memory::default();
    let log = long().open_storage(Arc::new(disk.clone())).unwrap();
    for _ in 0..60 {
        log.append(&[1; 10_000]).unwrap();
    }
    while disk.names().len() < 2 {
        std::thread::yield_now();
    }
    let read = Arc::new(AtomicUsize::new(0));
    let log = long().open_storage(counted(&disk.copy(), &read)).unwrap();
    assert_eq!(log.last_lsn(), Some(Lsn(60)));
    let read = read.load(Relaxed);
    assert!(read < LONG_BYTES / 4 * 7, "{read} bytes were read");
}
