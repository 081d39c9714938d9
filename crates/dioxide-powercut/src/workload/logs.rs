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
use std::time::Duration;

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

/// Streams of a log. Nothing truncates the first two, so the collector copies their records.
pub(super) const STREAMS: u64 = 6;
const SLOW: usize = 2;

/// More bytes than the collector copies of the bounds of the streams.
const COPIED_BYTES: u64 = 4096;

/// How often a workload appends its records in a life at least. Where its space is to be used
/// again, it goes on until that has come.
const PARTS: u64 = 3;
const PARTS_MAX: u64 = 60;

/// The writers of a part of a life have numbers from this multiple on.
const PART: u64 = 10;

/// The writers of a life have numbers from this multiple on.
const LIFE: u64 = PART * PARTS_MAX;

/// When a workload takes a record for acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Acknowledged {
    /// When the append returns, which is durable.
    OnReturn,
    /// When a flush returns.
    OnSync,
    /// When the append returns, which is not durable: a control.
    Unsynced,
    /// Never, and nothing is flushed before the close: for the control of followers.
    Never,
}

impl Acknowledged {
    fn options(self) -> LogOptions {
        options().durability(match self {
            Self::OnReturn => Durability::EveryWrite,
            Self::OnSync | Self::Unsynced | Self::Never => Durability::OnSync,
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
                truncate_front(player, lsn, KEPT, |front| log.truncate_front(front));
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
        match acknowledged {
            Acknowledged::Never => continue,
            Acknowledged::OnSync if random.below(3) > 0 => continue,
            _ => {}
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

    /// Returns the LSN of the first record. It is not promised yet.
    fn append(
        &self,
        player: &Player<'_>,
        append: impl FnOnce(&[&[u8]]) -> Result<Lsn, Error>,
    ) -> Lsn {
        let slices: Vec<&[u8]> = self.records.iter().map(Vec::as_slice).collect();
        let (count, bytes) = (slices.len() as u64, slices[0].len() as u64);
        player.mark(Act::LogAppend { first: self.first, count, bytes });
        append(&slices).expect("there is space")
    }
}

/// Truncates the front so that this many records stay below `lsn`.
fn truncate_front(
    player: &Player<'_>,
    lsn: Lsn,
    kept: u64,
    truncate: impl FnOnce(Lsn) -> Result<(), Error>,
) {
    let front = lsn.0.saturating_sub(kept).max(1);
    player.mark(Act::Front(front));
    truncate(Lsn(front)).expect("it is truncated");
    player.mark(Act::WasFront(front));
}

/// Calls `append` for each part of a life, until there were enough and space was used again.
fn in_parts(is_enough: impl Fn() -> bool, mut append: impl FnMut(u64)) {
    let mut part = 0;
    while part < PARTS || !is_enough() {
        assert!(part < PARTS_MAX, "no space is used again");
        append(part);
        part += 1;
    }
}

/// The log frees its oldest segments itself.
pub(super) fn retain(player: &Player<'_>) {
    let path = path_of(player.dir, player.file);
    let mut first = Lsn::FIRST;
    for life in 0..LIVES {
        let log = options().retain_bytes(RETAINED * SEGMENT_BYTES).open(&path).expect("it opens");
        let append = |part| {
            player.together(|thread| {
                let writer = life * LIFE + part * PART + thread;
                append_some(player, &log, writer, Acknowledged::OnReturn, |_, _| {
                    if thread == 0 {
                        player.mark(Act::Retained(log.first_lsn().0));
                    }
                });
            });
        };
        in_parts(|| log.first_lsn() > first, append);
        log.close().expect("it closes");
        let view = LogView::open(&path).expect("it was closed");
        assert!(view.segments() as u64 >= RETAINED, "too much was freed");
        first = view.first_lsn();
        player.mark(Act::Retained(first.0));
        player.mark(Act::WasFront(first.0));
    }
}

/// Two followers show the records of the log: one in the process of the writer, and one as in
/// another process. With `unsynced`, the first one shows those that are not stable: a control.
pub(super) fn follow(player: &Player<'_>, unsynced: bool) {
    let path = path_of(player.dir, player.file);
    let acknowledged = if unsynced { Acknowledged::Never } else { Acknowledged::OnSync };
    let options = acknowledged.options().read_unsynced(unsynced);
    for life in 0..LIVES {
        let log = options.open(&path).expect("it opens");
        // A truncation of the front may overtake both.
        let (followed, mut follow) = (log.clone(), log.follow(log.first_lsn()));
        let next = move |_| loop {
            match follow.next() {
                Err(Error::OutOfRange { .. }) => follow = followed.follow(followed.first_lsn()),
                next => return Ok(next?.map(shown)),
            }
        };
        let mut reader = open_reader(|| LogReader::open(&path));
        let next_of_reader = move |patience| loop {
            match reader.next_within(patience) {
                Err(Error::OutOfRange { first, .. }) => reader.seek(first),
                next => return Ok(next?.map(shown)),
            }
        };
        let is_closed = AtomicBool::new(false);
        thread::scope(|scope| {
            let counts = [
                scope.spawn(|| show_until_closed(player, &is_closed, next)),
                scope.spawn(|| show_until_closed(player, &is_closed, next_of_reader)),
            ];
            append_all(player, &log, life, acknowledged);
            log.close().expect("it closes");
            is_closed.store(true, Release);
            for count in counts {
                assert!(count.join().expect("no panic") > KEPT / 2, "too few records were shown");
            }
        });
    }
}

/// Opens a reader, while the log may free segments faster than they are read.
fn open_reader<T>(open: impl Fn() -> Result<T, Error>) -> T {
    loop {
        match open() {
            Err(Error::Changing { .. }) => {}
            opened => return opened.expect("it opens"),
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
    for life in 0..LIVES {
        let set = options().open_set(&path).expect("it opens");
        let append = |part| {
            thread::scope(|scope| {
                for player in &*players {
                    let set = &set;
                    scope.spawn(move || append_to_log(player, set, life * LIFE + part * PART));
                }
            });
        };
        let is_shared = || set.stats().segments_given > 0 && set.stats().segments_taken > 0;
        in_parts(is_shared, append);
        set.close().expect("it closes");
    }
}

fn append_to_log(player: &Player<'_>, set: &LogSet, writer: u64) {
    let log = set.log(&player.file.to_string()).expect("it opens");
    append_some(player, &log, writer, Acknowledged::OnReturn, |random, lsn| {
        if random.below(3) == 0 {
            truncate_front(player, lsn, KEPT, |front| log.truncate_front(front));
        }
    });
}

/// One thread appends to the first two streams at once. Each other stream has a thread, which
/// truncates both ends.
pub(super) fn append_to_streams(players: &mut [Player<'_>], _: Option<&Path>) {
    let path = streams_path(players[0].dir);
    for life in 0..LIVES {
        let log = options().open_streams(&path).expect("it opens");
        let mut reader = open_reader(|| StreamReader::open(&path, 0));
        let next = move |patience| Ok(reader.next_within(patience)?.map(shown));
        let is_closed = AtomicBool::new(false);
        let (slow, fast) = players.split_at(SLOW);
        thread::scope(|scope| {
            let log = &log;
            let count = scope.spawn(|| show_until_closed(&slow[0], &is_closed, next));
            in_parts(
                || log.stats().copied_bytes > COPIED_BYTES,
                |part| {
                    let writer = life * LIFE + part * PART;
                    thread::scope(|scope| {
                        scope.spawn(move || append_to_both(slow, log, JOINT + writer));
                        for player in fast {
                            let stream = log.stream(player.file);
                            scope.spawn(move || append_to_stream(player, &stream, writer));
                        }
                    });
                },
            );
            log.clone().close().expect("it closes");
            is_closed.store(true, Release);
            assert!(count.join().expect("no panic") > 0, "no record was shown");
        });
    }
}

fn append_to_both(players: &[Player<'_>], log: &StreamLog, writer: u64) {
    let streams = [log.stream(players[0].file), log.stream(players[1].file)];
    let mut random = players[0].random(writer - JOINT);
    for number in 0..players[0].records / LIVES {
        // Short, so that the copies stay few.
        let bytes = HEADER_BYTES + random.below(600);
        let first = Name { writer, number };
        let record = record(first, bytes);
        players.iter().for_each(|player| player.mark(Act::LogAppend { first, count: 1, bytes }));
        let records = [(&streams[0], &record[..]), (&streams[1], &record[..])];
        let lsns = log.append_all(&records).expect("there is space");
        for (player, lsn) in players.iter().zip(lsns) {
            player.mark(Act::Logged { first, lsn: lsn.0 });
        }
    }
}

fn append_to_stream(player: &Player<'_>, stream: &Stream, writer: u64) {
    let mut random = player.random(writer);
    // Where a truncation of the back may begin.
    let mut batches = Vec::new();
    let mut number = 0;
    while number < player.records / LIVES {
        let batch = Batch::new(Name { writer, number }, &mut random);
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
            1..4 => truncate_front(player, lsn, KEPT / 4, |front| stream.truncate_front(front)),
            _ => {}
        }
    }
}
