//! Logs of `dioxide-log`: with flushes, retention and followers, in a set, and as streams.
//! [`write_ahead`](crate::write_ahead) has what must be there after a power cut.

use super::Player;
use crate::mark::{Act, Name};
use crate::write_ahead::{
    JOINT, SEGMENT_BYTES, behind, name_of, options, path_of, record, set_path, streams_path,
};
use dioxide::Durability;
use dioxide_log::{Error, Log, LogOptions, LogReader, LogSet, LogView, Lsn, Record, Stream};
use dioxide_log::{StreamLog, StreamReader};
use dioxide_testkit::records::Random;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Release};
use std::thread;
use std::time::{Duration, Instant};

/// A log is closed and opened again this often.
const LIVES: u64 = 2;
const RECORD_BYTES_MAX: u64 = 6000;
const HEADER_BYTES: u64 = 16;
/// Records that the truncations of the front leave.
const KEPT: u64 = 20;

/// The segments that retention leaves.
const RETAINED: u64 = 2;

/// Logs of a set.
pub(super) const LOGS: u64 = 6;

/// Streams of a log. Nothing truncates the first two, so a thread copies their records.
pub(super) const STREAMS: u64 = 6;
const SLOW: usize = 2;

/// One thread writes a log of a set, or a stream, where the threads of [`Player::together`] write
/// a log of its own.
const RECORDS: u64 = 3;

/// The limit of a wait. What it waits for comes in milliseconds.
const LIMIT: Duration = Duration::from_secs(60);

/// The writers of a life begin at a multiple of this.
const LIFE: u64 = 100;

/// When a workload takes a record for acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Acknowledged {
    /// When the append returns, which is durable.
    OnReturn,
    /// When a flush returns.
    OnSync,
    /// When the append returns, which is not durable: a control.
    Unsynced,
}

impl Acknowledged {
    fn options(self) -> LogOptions {
        options().durability(match self {
            Self::OnReturn => Durability::EveryWrite,
            Self::OnSync | Self::Unsynced => Durability::OnSync,
        })
    }
}

/// Threads append, also atomic batches, and truncate the front.
pub(super) fn append(player: &Player<'_>, acknowledged: Acknowledged) {
    let options = acknowledged.options();
    for life in 0..LIVES {
        let log = options.open(path_of(player.dir, player.file)).expect("it opens");
        append_all(player, &log, life, acknowledged);
        log.close().expect("it closes");
    }
}

fn append_all(player: &Player<'_>, log: &Log, life: u64, acknowledged: Acknowledged) {
    player.together(|thread| {
        let writer = life * LIFE + thread;
        append_some(player, log, writer, acknowledged, |random, lsn| {
            if thread == 0 && random.below(4) == 0 {
                truncate_front(player, log, lsn);
            }
        });
    });
}

/// Calls `then` with the LSN of each batch that is acknowledged.
fn append_some(
    player: &Player<'_>,
    log: &Log,
    writer: u64,
    acknowledged: Acknowledged,
    mut then: impl FnMut(&mut Random, Lsn),
) {
    let mut random = player.random(writer);
    let mut written = Vec::new();
    let mut number = 0;
    while number < player.records / LIVES {
        let batch = Batch::new(Name { writer, number }, &mut random);
        let lsn = batch.append(player, |records| log.append_all(records));
        written.push((batch.first, lsn));
        number += batch.records.len() as u64;
        if acknowledged == Acknowledged::OnSync && random.below(3) > 0 {
            continue;
        }
        if acknowledged == Acknowledged::OnSync {
            log.sync().expect("it syncs");
        }
        for (first, lsn) in written.drain(..) {
            player.mark(Act::Logged { first, lsn: lsn.0 });
        }
        then(&mut random, lsn);
    }
}

/// Records that are appended together.
struct Batch {
    first: Name,
    records: Vec<Vec<u8>>,
}

impl Batch {
    fn new(first: Name, random: &mut Random) -> Self {
        let count = if random.below(3) == 0 { 1 + random.below(4) } else { 1 };
        let bytes = HEADER_BYTES + random.below(RECORD_BYTES_MAX - HEADER_BYTES);
        let records = (0..count).map(|nth| record(behind(first, nth), bytes)).collect();
        Self { first, records }
    }

    fn begin(&self, player: &Player<'_>) {
        let (count, bytes) = (self.records.len() as u64, self.records[0].len() as u64);
        player.mark(Act::LogAppend { first: self.first, count, bytes });
    }

    /// Returns the LSN of the first record. It is not promised yet.
    fn append(
        &self,
        player: &Player<'_>,
        append: impl FnOnce(&[&[u8]]) -> Result<Lsn, Error>,
    ) -> Lsn {
        let slices: Vec<&[u8]> = self.records.iter().map(Vec::as_slice).collect();
        self.begin(player);
        append(&slices).expect("there is space")
    }
}

fn truncate_front(player: &Player<'_>, log: &Log, lsn: Lsn) {
    let front = lsn.0.saturating_sub(KEPT).max(1);
    player.mark(Act::Front(front));
    log.truncate_front(Lsn(front)).expect("it is truncated");
    player.mark(Act::WasFront(front));
}

/// The log frees its oldest segments itself.
pub(super) fn retain(player: &Player<'_>) {
    let path = path_of(player.dir, player.file);
    for life in 0..LIVES {
        let log = options().retain_bytes(RETAINED * SEGMENT_BYTES).open(&path).expect("it opens");
        let first = log.first_lsn();
        player.together(|thread| {
            for part in 0..RECORDS {
                let writer = life * LIFE + part * 10 + thread;
                append_some(player, &log, writer, Acknowledged::OnReturn, |_, _| {
                    if thread == 0 {
                        player.mark(Act::Retained(log.first_lsn().0));
                    }
                });
            }
        });
        wait_until("the front moves", || log.first_lsn() > first);
        log.close().expect("it closes");
        let view = LogView::open(&path).expect("it was closed");
        player.mark(Act::Retained(view.first_lsn().0));
    }
}

/// Two followers show the records of the log: one in the process of the writer, and one as in
/// another process. With `unsynced`, the first one shows those that are not stable: a control.
pub(super) fn follow(player: &Player<'_>, unsynced: bool) {
    let path = path_of(player.dir, player.file);
    let options = Acknowledged::OnSync.options().read_unsynced(unsynced);
    for life in 0..LIVES {
        let log = options.open(&path).expect("it opens");
        let mut reader = LogReader::open(&path).expect("it opens");
        // A truncation of the front overtakes it.
        let next = move |patience| loop {
            match reader.next_within(patience) {
                Err(Error::OutOfRange { first, .. }) => reader.seek(first),
                next => return Ok(next?.map(shown)),
            }
        };
        let (followed, is_closed) = (log.clone(), AtomicBool::new(false));
        thread::scope(|scope| {
            let counts = [
                scope.spawn(|| show(player, &followed)),
                scope.spawn(|| show_until_closed(player, &is_closed, next)),
            ];
            append_all(player, &log, life, Acknowledged::OnSync);
            log.close().expect("it closes");
            is_closed.store(true, Release);
            for count in counts {
                assert!(count.join().expect("no panic") > KEPT / 2, "too few records were shown");
            }
        });
    }
}

/// Shows records until the log is closed. Returns their number.
fn show(player: &Player<'_>, log: &Log) -> u64 {
    let mut follow = log.follow(log.first_lsn());
    let mut count = 0;
    loop {
        match follow.next() {
            Ok(Some(record)) => {
                player.mark(shown(record));
                count += 1;
            }
            Ok(None) => return count,
            Err(Error::OutOfRange { .. }) => follow = log.follow(log.first_lsn()),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Shows the records that `next` returns, until there is none behind the close of the log. Returns
/// their number.
fn show_until_closed(
    player: &Player<'_>,
    is_closed: &AtomicBool,
    mut next: impl FnMut(Duration) -> Result<Option<Act>, Error>,
) -> u64 {
    const PATIENCE: Duration = Duration::from_millis(20);
    let mut shown = 0;
    loop {
        let was_closed = is_closed.load(Acquire);
        match next(PATIENCE) {
            Ok(Some(act)) => {
                player.mark(act);
                shown += 1;
            }
            Ok(None) if was_closed => return shown,
            Ok(None) | Err(Error::Changing { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

fn shown(record: Record<'_>) -> Act {
    Act::Shown(name_of(record.payload).expect("a record of this workload"), record.lsn.0)
}

/// Each log of a set has a thread. They share the free segments.
pub(super) fn append_to_set(players: &mut [Player<'_>], _: Option<&Path>) {
    let path = set_path(players[0].dir);
    let (mut given, mut taken) = (0, 0);
    for life in 0..LIVES {
        let set = options().open_set(&path).expect("it opens");
        thread::scope(|scope| {
            for player in &*players {
                let set = &set;
                scope.spawn(move || append_to_log(player, set, life));
            }
        });
        given += set.stats().segments_given;
        taken += set.stats().segments_taken;
        set.close().expect("it closes");
    }
    assert!(given > 0 && taken > 0, "the logs shared no segment");
}

fn append_to_log(player: &Player<'_>, set: &LogSet, life: u64) {
    let log = set.log(&player.file.to_string()).expect("it opens");
    for part in 0..RECORDS {
        let writer = life * LIFE + part;
        append_some(player, &log, writer, Acknowledged::OnReturn, |random, lsn| {
            if random.below(3) == 0 {
                truncate_front(player, &log, lsn);
            }
        });
    }
}

/// Each stream has a thread. Some truncate both ends. One appends to two streams at once.
pub(super) fn append_to_streams(players: &mut [Player<'_>], _: Option<&Path>) {
    let path = streams_path(players[0].dir);
    for life in 0..LIVES {
        let log = options().open_streams(&path).expect("it opens");
        let mut reader = StreamReader::open(&path, 0).expect("it opens");
        let next = move |patience| Ok(reader.next_within(patience)?.map(shown));
        let is_closed = AtomicBool::new(false);
        let (slow, fast) = players.split_at(SLOW);
        thread::scope(|scope| {
            let log = &log;
            let count = scope.spawn(|| show_until_closed(&slow[0], &is_closed, next));
            thread::scope(|scope| {
                scope.spawn(|| append_to_both(slow, log, life));
                for player in fast {
                    scope.spawn(move || append_to_stream(player, &log.stream(player.file), life));
                }
            });
            wait_until("records are copied", || log.stats().copied_bytes > 0);
            log.clone().close().expect("it closes");
            is_closed.store(true, Release);
            assert!(count.join().expect("no panic") > 0, "no record was shown");
        });
    }
}

fn append_to_both(players: &[Player<'_>], log: &StreamLog, life: u64) {
    let streams = [log.stream(players[0].file), log.stream(players[1].file)];
    let mut random = players[0].random(life);
    for number in 0..players[0].records / LIVES {
        // Short, so that the copies stay few.
        let bytes = HEADER_BYTES + random.below(600);
        let first = Name { writer: JOINT + life, number };
        let record = record(first, bytes);
        players.iter().for_each(|player| player.mark(Act::LogAppend { first, count: 1, bytes }));
        let records = [(&streams[0], &record[..]), (&streams[1], &record[..])];
        let lsns = log.append_all(&records).expect("there is space");
        for (player, lsn) in players.iter().zip(lsns) {
            player.mark(Act::Logged { first, lsn: lsn.0 });
        }
    }
}

fn append_to_stream(player: &Player<'_>, stream: &Stream, life: u64) {
    let mut random = player.random(life);
    // Where a truncation of the back may begin.
    let mut batches = Vec::new();
    let mut number = 0;
    while number < player.records * RECORDS {
        let batch = Batch::new(Name { writer: life, number }, &mut random);
        let lsn = batch.append(player, |records| stream.append_all(records));
        player.mark(Act::Logged { first: batch.first, lsn: lsn.0 });
        batches.push(lsn);
        number += batch.records.len() as u64;
        match random.below(8) {
            0 => {
                let last = batches.len() as u64 - 1;
                let back = batches[(last - random.below(last.min(3) + 1)) as usize];
                if back < stream.first_lsn() {
                    continue;
                }
                player.mark(Act::Back(back.0));
                stream.truncate_back(back).expect("it is truncated");
                player.mark(Act::WasBack(back.0));
                batches.retain(|lsn| *lsn < back);
            }
            1..4 => {
                let front = lsn.0.saturating_sub(KEPT / 4).max(1);
                player.mark(Act::Front(front));
                stream.truncate_front(Lsn(front)).expect("it is truncated");
                player.mark(Act::WasFront(front));
            }
            _ => {}
        }
    }
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !holds() {
        assert!(Instant::now() < end, "in vain: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}
