//! Sums up traced events.

use super::text::{Direct, Event, EventKind};
use std::collections::{HashMap, HashSet, VecDeque};

/// Known ends of files are kept up to this number, for writes that waited while the end moved.
const SIZES_MAX: usize = 1024;

/// Counts, each weighted by the time that its slice stands for.
#[derive(Debug, Default)]
pub struct Account {
    pub locks: HashMap<LockKey, LockWaits>,
    pub direct: HashMap<DirectKey, Counted>,
    pub punts: HashMap<PuntKey, f64>,
    /// The last direct operation of each thread, for workers of rings.
    pub last: HashMap<u32, Last>,
    /// The last stack and kind of waits for each lock, for waits whose begin was not traced.
    known_locks: HashMap<u64, LockKey>,
    files: HashMap<(u64, u64), Sizes>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LockKey {
    pub kind: String,
    pub stack: Vec<String>,
}

#[derive(Debug, Default)]
pub struct LockWaits {
    pub count: f64,
    pub wait_ns: f64,
    pub wait_max_ns: u64,
    pub locks: HashSet<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DirectKey {
    /// Device of the file system, and inode.
    pub file: (u64, u64),
    pub is_write: bool,
    pub extends: bool,
    pub begins_beyond: bool,
    pub is_durable: bool,
    /// The largest power of two that divides offset and length.
    pub alignment: u64,
}

#[derive(Debug, Default)]
pub struct Counted {
    pub count: f64,
    pub bytes: f64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PuntKey {
    pub opcode: String,
    pub is_hashed: bool,
}

/// A direct operation of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Last {
    pub file: (u64, u64),
    pub is_write: bool,
    pub extends: bool,
}

/// A wait that has begun.
struct Waiting {
    since_ns: u64,
    key: LockKey,
}

/// The observed ends of a file with their times, in order.
#[derive(Debug, Default)]
struct Sizes(VecDeque<(u64, u64)>);

impl Sizes {
    fn push(&mut self, at_ns: u64, size: u64) {
        if self.0.back().is_some_and(|(_, last)| *last == size) {
            return;
        }
        if self.0.len() == SIZES_MAX {
            self.0.pop_front();
        }
        self.0.push_back((at_ns, size));
    }

    /// The end at this moment, or the first known one.
    fn at(&self, at_ns: u64) -> Option<u64> {
        let later = self.0.partition_point(|(time, _)| *time <= at_ns);
        self.0.get(later.saturating_sub(1)).map(|(_, size)| *size)
    }
}

impl Account {
    /// Adds a slice from `begun_ns` to `ended_ns`, which stands for `weight` times its length.
    pub fn add(&mut self, events: &[Event], (begun_ns, ended_ns): (u64, u64), weight: f64) {
        let mut waiting: HashMap<(u32, u64), Waiting> = HashMap::new();
        let mut last_begun: HashMap<u32, u64> = HashMap::new();
        // The begin of a thread's first wait since its last direct operation.
        let mut waited_since: HashMap<u32, u64> = HashMap::new();
        let mut unmapped: HashMap<u32, (Direct, u64)> = HashMap::new();
        for Event { tid, at_ns, what } in events {
            match what {
                EventKind::LockBegin { lock, kind } => {
                    last_begun.insert(*tid, *lock);
                    waited_since.entry(*tid).or_insert(*at_ns);
                    let key = LockKey { kind: kind.clone(), stack: Vec::new() };
                    waiting.insert((*tid, *lock), Waiting { since_ns: *at_ns, key });
                }
                EventKind::Stack(stack) => {
                    let begun =
                        last_begun.remove(tid).and_then(|lock| waiting.get_mut(&(*tid, lock)));
                    if let Some(begun) = begun {
                        begun.key.stack.clone_from(stack);
                    }
                }
                EventKind::LockEnd { lock } => match waiting.remove(&(*tid, *lock)) {
                    Some(begun) => self.waited(
                        *lock,
                        begun.key,
                        at_ns.saturating_sub(begun.since_ns),
                        1.0,
                        weight,
                    ),
                    // It began before this slice, which counted it already if it was traced.
                    None => {
                        if let Some(key) = self.known_locks.get(lock).cloned() {
                            self.waited(*lock, key, at_ns.saturating_sub(begun_ns), 0.0, weight);
                        }
                    }
                },
                EventKind::Direct(direct) => {
                    let since = waited_since.remove(tid).unwrap_or(*at_ns);
                    if let Some((direct, since)) = unmapped.insert(*tid, (*direct, since)) {
                        self.direct(*tid, direct, since, false, weight);
                    }
                    self.files
                        .entry((direct.device, direct.inode))
                        .or_default()
                        .push(*at_ns, direct.size);
                }
                EventKind::Mapping { is_write } => {
                    if let Some((direct, since)) = unmapped.remove(tid) {
                        self.direct(*tid, direct, since, *is_write, weight);
                    }
                }
                EventKind::Punt { opcode, is_hashed } => {
                    let key = PuntKey { opcode: opcode.clone(), is_hashed: *is_hashed };
                    *self.punts.entry(key).or_default() += weight;
                }
                EventKind::CallBegin { .. } | EventKind::CallEnd { .. } => {}
            }
        }
        for ((_, lock), begun) in waiting {
            self.waited(lock, begun.key, ended_ns.saturating_sub(begun.since_ns), 1.0, weight);
        }
    }

    fn waited(&mut self, lock: u64, key: LockKey, wait_ns: u64, count: f64, weight: f64) {
        // Tracing of selected threads takes a lock of its own, for which they would not wait
        // otherwise.
        if key.stack.iter().any(|function| function == "trace_ignore_this_task") {
            return;
        }
        self.known_locks.insert(lock, key.clone());
        let waits = self.locks.entry(key).or_default();
        waits.count += count * weight;
        waits.wait_ns += wait_ns as f64 * weight;
        waits.wait_max_ns = waits.wait_max_ns.max(wait_ns);
        waits.locks.insert(lock);
    }

    fn direct(&mut self, tid: u32, direct: Direct, since_ns: u64, is_write: bool, weight: f64) {
        let file = (direct.device, direct.inode);
        // The end may have moved while the operation waited for the file's lock.
        let size =
            self.files.get(&file).and_then(|sizes| sizes.at(since_ns)).unwrap_or(direct.size);
        let extends = is_write && direct.offset + direct.length > size;
        let key = DirectKey {
            file,
            is_write,
            extends,
            begins_beyond: direct.offset > size,
            is_durable: direct.is_durable,
            alignment: 1 << (direct.offset | direct.length).trailing_zeros().min(20),
        };
        let counted = self.direct.entry(key).or_default();
        counted.count += weight;
        counted.bytes += direct.length as f64 * weight;
        self.last.insert(tid, Last { file, is_write, extends });
    }
}
