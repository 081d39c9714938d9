//! What logs of `dioxide-log` must have after a power cut, by the marks of their workloads
//! ([`workload`](crate::workload)).

use crate::check::Loss;
use crate::mark::{Act, Name};
use dioxide_log::{Error, Log, LogOptions, LogView, Lsn, StreamView};
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

/// Small, so that it goes on to the next segment often.
pub(crate) const SEGMENT_BYTES: u64 = 64 << 10;

/// The writers from this number on append to two streams at once. Their records have the same names
/// in both.
pub(crate) const JOINT: u64 = 1 << 20;

const LOSSES_MAX: usize = 5;

pub(crate) fn options() -> LogOptions {
    LogOptions::new().segment_bytes(SEGMENT_BYTES).spare_segments(1)
}

/// The path of a log of its own.
pub(crate) fn path_of(dir: &Path, file: u64) -> PathBuf {
    dir.join(format!("write-ahead-{file}"))
}

/// The path of a set of logs.
pub(crate) fn set_path(dir: &Path) -> PathBuf {
    dir.join("write-ahead-set")
}

/// The path of a log of streams.
pub(crate) fn streams_path(dir: &Path) -> PathBuf {
    dir.join("write-ahead-streams")
}

pub(crate) fn behind(first: Name, nth: u64) -> Name {
    Name { number: first.number + nth, ..first }
}

pub(crate) fn record(name: Name, bytes: u64) -> Vec<u8> {
    let byte = name.writer.wrapping_mul(31).wrapping_add(name.number.wrapping_mul(7)) as u8 | 1;
    let mut record = vec![byte; bytes as usize];
    record[..8].copy_from_slice(&name.writer.to_le_bytes());
    record[8..16].copy_from_slice(&name.number.to_le_bytes());
    record
}

/// The name of a record whose bytes are all right.
pub(crate) fn name_of(bytes: &[u8]) -> Option<Name> {
    let number = |at: usize| bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
    let name = Name { writer: number(0)?, number: number(8)? };
    (record(name, bytes.len() as u64) == bytes).then_some(name)
}

/// The appends of a log, or of a stream, before a power cut.
#[derive(Debug, Default)]
pub struct WriteAhead {
    /// The number of records of a batch, and their length, by the name of the first.
    begun: HashMap<Name, (u64, u64)>,
    /// The first record of each batch, and its LSN.
    acknowledged: Vec<(Name, u64)>,
    /// The records that followers were shown.
    shown: Vec<(Name, u64)>,
    /// The first records of batches that are being truncated away, and of those that are gone.
    leaving: Vec<Name>,
    gone: HashSet<Name>,
    /// The front that was acknowledged.
    front: u64,
    /// The highest front that was begun, or that retention may have reached.
    front_max: u64,
}

impl WriteAhead {
    /// The log with the acts before a power cut. The later ones show how far retention may have
    /// moved its front by then.
    pub fn foreseeing(
        before: impl IntoIterator<Item = Act>,
        after: impl IntoIterator<Item = Act>,
    ) -> Self {
        let mut log = Self { front: 1, front_max: 1, ..Self::default() };
        before.into_iter().for_each(|act| log.add(act));
        let retained = after.into_iter().filter_map(|act| match act {
            Act::Retained(lsn) => Some(lsn),
            _ => None,
        });
        // One thread sees them in order. So it saw the second one after the power cut, and the last
        // of all after the close.
        log.front_max = retained.take(2).fold(log.front_max, u64::max);
        log
    }

    fn add(&mut self, act: Act) {
        match act {
            Act::LogAppend { first, count, bytes } => {
                self.begun.insert(first, (count, bytes));
            }
            Act::Logged { first, lsn } => self.acknowledged.push((first, lsn)),
            Act::Shown(name, lsn) => self.shown.push((name, lsn)),
            Act::Front(lsn) | Act::Retained(lsn) => self.front_max = self.front_max.max(lsn),
            Act::WasFront(lsn) => self.front = self.front.max(lsn),
            Act::Back(back) => {
                let leaving = self.acknowledged.extract_if(.., |(_, lsn)| *lsn >= back);
                self.leaving.extend(leaving.map(|(first, _)| first));
            }
            Act::WasBack(_) => self.gone.extend(self.leaving.drain(..)),
            _ => unreachable!("of another workload: {act:?}"),
        }
    }

    /// The number of batches that must survive.
    pub fn kept(&self) -> usize {
        let is_kept = |(_, lsn): &&(Name, u64)| *lsn >= self.front_max;
        self.acknowledged.iter().filter(is_kept).count()
    }

    /// Opens, checks and closes the logs of a workload. A log that cannot be opened is a loss.
    pub fn check(logs: &[Self], dir: &Path) -> Vec<Loss> {
        let found = match find(dir, logs.len() as u64) {
            Ok(found) => found,
            Err(error) => return vec![error.to_string()],
        };
        let mut losses = Vec::new();
        for ((log, found), file) in logs.iter().zip(&found).zip(0..) {
            let of_log = match found {
                Some(found) => log.compare(found),
                None if log.acknowledged.is_empty() => Vec::new(),
                None => vec!["lost: it is gone".to_owned()],
            };
            losses.extend(of_log.into_iter().map(|loss| format!("log {file}: {loss}")));
        }
        losses.extend(halves(&found));
        losses.truncate(LOSSES_MAX);
        losses
    }

    fn compare(&self, Found { front, records, is_viewed }: &Found) -> Vec<Loss> {
        let (front, mut losses) = (*front, Vec::new());
        if !is_viewed {
            losses.push("a view sees other records".to_owned());
        }
        if !(self.front..=self.front_max).contains(&front) {
            losses.push(format!("the front is {front}, not {} to {}", self.front, self.front_max));
        }
        let mut found = HashMap::new();
        for (lsn, bytes) in records {
            match name_of(bytes) {
                Some(name) if found.insert(name, lsn.0).is_none() => {}
                name => losses.push(format!("record {lsn} is {name:?}, torn or there twice")),
            }
        }
        let mut expected = 0;
        for (first, (count, bytes)) in &self.begun {
            let names = (0..*count).map(|nth| behind(*first, nth));
            let lsns: Vec<_> = names.map(|name| found.get(&name).copied()).collect();
            expected += lsns.iter().flatten().count();
            // Those below the front are gone.
            let Some(start) = lsns.iter().zip(0..).find_map(|(lsn, nth)| lsn.map(|lsn| lsn - nth))
            else {
                continue;
            };
            if self.gone.contains(first) {
                losses.push(format!("{first:?} was truncated, and is there at {start}"));
            }
            let whole = lsns.iter().zip(start..).all(|(lsn, at)| at < front || *lsn == Some(at));
            let index = |lsn: &u64| &records[(lsn - front) as usize].1;
            let length = lsns.iter().flatten().all(|lsn| index(lsn).len() as u64 == *bytes);
            if !(whole && length) {
                losses.push(format!("of the batch of {first:?} only {lsns:?} is there"));
            }
        }
        let (there, missing): (Vec<Name>, Vec<Name>) =
            self.leaving.iter().copied().partition(|first| found.contains_key(first));
        if !(there.is_empty() || missing.is_empty()) {
            losses.push(format!("truncated by half: {there:?} are there, {missing:?} are not"));
        }
        if expected != found.len() {
            losses.push(format!("{} records were never appended", found.len() - expected));
        }
        for (first, lsn) in &self.acknowledged {
            let (count, _) = self.begun[first];
            let last = (behind(*first, count - 1), lsn + count - 1);
            if last.1 >= front && found.get(&last.0) != Some(&last.1) {
                losses.push(format!("lost: {first:?}, which was acknowledged at {lsn}"));
            }
        }
        for (name, lsn) in &self.shown {
            if *lsn >= front && found.get(name) != Some(lsn) {
                losses.push(format!("lost: {name:?}, which a follower was shown at {lsn}"));
            }
        }
        losses
    }
}

/// A log as it is after a power cut.
#[derive(Debug)]
struct Found {
    front: u64,
    records: Vec<(Lsn, Vec<u8>)>,
    /// Whether a view sees the same records.
    is_viewed: bool,
}

impl Found {
    fn new(
        front: Lsn,
        records: impl Iterator<Item = Result<(Lsn, Vec<u8>), Error>>,
    ) -> Result<Self, Error> {
        let records = records.collect::<Result<_, _>>()?;
        Ok(Self { front: front.0, records, is_viewed: false })
    }

    fn of(log: &Log) -> Result<Self, Error> {
        let front = log.first_lsn();
        Self::new(front, log.iter_from(front))
    }

    fn view(&mut self, path: &Path) -> Result<(), Error> {
        let view = LogView::open(path)?;
        let front = view.first_lsn();
        self.compare_view(Self::new(front, view.iter_from(front))?);
        Ok(())
    }

    fn compare_view(&mut self, seen: Self) {
        self.is_viewed = (seen.front, &seen.records) == (self.front, &self.records);
    }
}

/// Opens and closes all logs that are there. None is a missing one.
fn find(dir: &Path, count: u64) -> Result<Vec<Option<Found>>, Error> {
    if set_path(dir).exists() {
        return find_in_set(&set_path(dir), count);
    }
    if streams_path(dir).exists() {
        return find_streams(&streams_path(dir), count);
    }
    let find = |file| {
        let path = path_of(dir, file);
        if !path.exists() {
            return Ok(None);
        }
        let log = options().open(&path)?;
        let mut found = Found::of(&log)?;
        log.close()?;
        found.view(&path)?;
        Ok(Some(found))
    };
    (0..count).map(find).collect()
}

fn find_in_set(path: &Path, count: u64) -> Result<Vec<Option<Found>>, Error> {
    let set = options().open_set(path)?;
    let names = set.names()?;
    let find = |file: u64| {
        let name = file.to_string();
        if !names.contains(&name) {
            return Ok(None);
        }
        Found::of(&set.log(&name)?).map(Some)
    };
    let mut found = (0..count).map(find).collect::<Result<Vec<_>, _>>()?;
    set.close()?;
    for (found, file) in found.iter_mut().zip(0u64..) {
        if let Some(found) = found {
            found.view(&path.join(file.to_string()))?;
        }
    }
    Ok(found)
}

fn find_streams(path: &Path, count: u64) -> Result<Vec<Option<Found>>, Error> {
    let log = options().open_streams(path)?;
    let find = |id| {
        let stream = log.stream(id);
        let front = stream.first_lsn();
        Found::new(front, stream.iter_from(front))
    };
    let mut found = (0..count).map(find).collect::<Result<Vec<_>, _>>()?;
    log.close()?;
    let view = StreamView::open(path)?;
    for (found, id) in found.iter_mut().zip(0..) {
        let front = view.first_lsn(id);
        found.compare_view(Found::new(front, view.iter_from(id, front))?);
    }
    Ok(found.into_iter().map(Some).collect())
}

/// Returns a loss for each joint batch that only one of the first two streams has. Nothing
/// truncates them.
fn halves(found: &[Option<Found>]) -> Vec<Loss> {
    let joint = |found: &Option<Found>| -> HashSet<Name> {
        let records = found.iter().flat_map(|found| &found.records);
        let names = records.filter_map(|(_, bytes)| name_of(bytes));
        names.filter(|name| name.writer >= JOINT).collect()
    };
    let [one, other, ..] = found else { return Vec::new() };
    let halves: Vec<_> = joint(one).symmetric_difference(&joint(other)).copied().collect();
    halves.into_iter().map(|name| format!("only one stream has {name:?}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: u64) -> Name {
        Name { writer: 3, number }
    }

    /// A log from this front on, with records of these numbers and lengths.
    fn found(front: u64, numbers: &[(u64, u64)]) -> Found {
        let records = numbers.iter().map(|(number, bytes)| record(name(*number), *bytes));
        let records = (front..).map(Lsn).zip(records).collect();
        Found { front, records, is_viewed: true }
    }

    fn said(log: &WriteAhead, found: &Found) -> String {
        log.compare(found).join("; ")
    }

    #[test]
    fn losses_are_found() {
        let acts = [
            Act::LogAppend { first: name(0), count: 1, bytes: 20 },
            Act::Logged { first: name(0), lsn: 1 },
            Act::LogAppend { first: name(1), count: 2, bytes: 30 },
            Act::Logged { first: name(1), lsn: 2 },
            Act::LogAppend { first: name(3), count: 2, bytes: 16 },
        ];
        let log = WriteAhead::foreseeing(acts, []);
        let whole = [(0, 20), (1, 30), (2, 30), (3, 16), (4, 16)];
        assert_eq!(said(&log, &found(1, &whole)), "");
        assert_eq!(said(&log, &found(1, &whole[..3])), "");
        for wrong in [
            &[(0, 20), (1, 30), (2, 30), (3, 16)][..],
            &[(0, 20), (1, 30)],
            &[(0, 20), (2, 30), (1, 30)],
            &[(0, 20), (1, 30), (2, 30), (9, 16)],
            &[(0, 20), (1, 31), (2, 31)],
            &[(0, 20), (1, 30), (2, 30), (0, 20)],
        ] {
            assert_ne!(said(&log, &found(1, wrong)), "", "{wrong:?}");
        }
        let mut torn = found(1, &whole);
        torn.records[4].1[15] ^= 1;
        assert_ne!(said(&log, &torn), "");
        assert_ne!(said(&log, &found(2, &[])), "", "the front was never moved");
        let unseen = Found { is_viewed: false, ..found(1, &whole) };
        assert!(said(&log, &unseen).contains("a view"));
    }

    #[test]
    fn what_a_follower_was_shown_is_not_lost() {
        let append = Act::LogAppend { first: name(0), count: 1, bytes: 20 };
        let log = WriteAhead::foreseeing([append, Act::Shown(name(0), 1)], []);
        assert_eq!(said(&log, &found(1, &[(0, 20)])), "");
        assert!(said(&log, &found(1, &[])).contains("a follower was shown"));
        let log = WriteAhead::foreseeing([append], []);
        assert_eq!(said(&log, &found(1, &[])), "");
    }

    #[test]
    fn what_was_truncated_away_does_not_come_back() {
        let mut acts = vec![
            Act::LogAppend { first: name(0), count: 1, bytes: 20 },
            Act::Logged { first: name(0), lsn: 1 },
            Act::LogAppend { first: name(1), count: 1, bytes: 20 },
            Act::Logged { first: name(1), lsn: 2 },
            Act::LogAppend { first: name(2), count: 1, bytes: 20 },
            Act::Logged { first: name(2), lsn: 3 },
            Act::Back(2),
        ];
        let (long, short) = (found(1, &[(0, 20), (1, 20), (2, 20)]), found(1, &[(0, 20)]));
        let half = found(1, &[(0, 20), (1, 20)]);
        let log = WriteAhead::foreseeing(acts.clone(), []);
        assert_eq!((said(&log, &long), said(&log, &short)), (String::new(), String::new()));
        assert!(said(&log, &half).contains("by half"));
        acts.push(Act::WasBack(2));
        let log = WriteAhead::foreseeing(acts, []);
        assert_eq!((said(&log, &short), log.kept()), (String::new(), 1));
        assert!(said(&log, &long).contains("was truncated"));
        assert!(said(&log, &found(1, &[])).contains("lost"));
    }

    /// The front moves at any moment before it is seen.
    #[test]
    fn retention_moves_the_front_as_far_as_it_was_seen_next() {
        let append = [
            Act::LogAppend { first: name(0), count: 3, bytes: 20 },
            Act::Logged { first: name(0), lsn: 1 },
        ];
        let seen = [Act::Retained(1), Act::Retained(2), Act::Retained(3)];
        let log = WriteAhead::foreseeing(append, seen);
        assert_eq!(said(&log, &found(2, &[(1, 20), (2, 20)])), "");
        assert!(said(&log, &found(3, &[(2, 20)])).contains("the front is 3"));
        let log = WriteAhead::foreseeing(append.into_iter().chain(seen), []);
        assert_eq!(said(&log, &found(3, &[(2, 20)])), "");
        assert!(said(&log, &found(4, &[])).contains("the front is 4"));
    }

    #[test]
    fn a_batch_in_one_of_two_streams_is_a_loss() {
        let with = |writer| {
            let records = vec![(Lsn(1), record(Name { writer, number: 0 }, 20))];
            Some(Found { front: 1, records, is_viewed: true })
        };
        assert_eq!(halves(&[with(JOINT), with(JOINT), None]), [""; 0]);
        assert_eq!(halves(&[with(3), None, with(JOINT)]), [""; 0]);
        assert_eq!(halves(&[with(JOINT), with(3)]).len(), 1);
        assert_eq!(halves(&[None, with(JOINT)]).len(), 1);
    }
}
