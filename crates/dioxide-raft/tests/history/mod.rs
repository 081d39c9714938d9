//! The operations of clients on registers, and a search for an order that explains them (Wing and
//! Gong). Each operation happens at one moment between its call and its return.

#![allow(dead_code, reason = "each test uses a part")]

use std::collections::{BTreeMap, HashSet};
use std::fmt::{self, Debug, Write as _};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};

/// A register is empty at first.
pub type Value = Option<u64>;

/// What an operation did, if it happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    Put(u64),
    Got(Value),
    /// Changed the first value to the second.
    Swapped(Value, u64),
    /// Found the second value instead of the first, and changed nothing.
    Kept(Value, Value),
}

/// An operation on a register.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    pub called: u64,
    /// None if it is unknown whether the operation happened.
    pub returned: Option<u64>,
    pub effect: Effect,
}

impl Effect {
    /// The value after the effect; None if the effect is not possible.
    fn after(self, value: Value) -> Option<Value> {
        let possible = |possible: bool, after| possible.then_some(after);
        match self {
            Self::Put(put) => Some(Some(put)),
            Self::Got(got) => possible(got == value, value),
            Self::Swapped(from, to) => possible(from == value, Some(to)),
            Self::Kept(from, found) => possible(found == value && from != value, value),
        }
    }

    fn written(self) -> Option<u64> {
        match self {
            Self::Put(value) | Self::Swapped(_, value) => Some(value),
            Self::Got(_) | Self::Kept(..) => None,
        }
    }

    /// The value that the operation found.
    fn found(self) -> Value {
        match self {
            Self::Got(found) | Self::Swapped(found, _) | Self::Kept(_, found) => found,
            Self::Put(_) => None,
        }
    }
}

/// No order explains the operations.
#[derive(Debug)]
pub struct NotLinearizable(String);

impl fmt::Display for NotLinearizable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A point of the search. Known operations are numbered in the order of their calls.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Point {
    /// The known operations below have happened, and not those from here on.
    next: usize,
    /// Those below that have not happened, in order: as many as clients at most.
    missing: Vec<usize>,
    /// The unknown operations that have happened, in order.
    unknown: Vec<usize>,
    value: Value,
}

impl Point {
    /// Adds a known operation.
    fn add(&mut self, known: usize) {
        if let Ok(at) = self.missing.binary_search(&known) {
            self.missing.remove(at);
        } else {
            self.missing.extend(self.next..known);
            self.next = known + 1;
        }
    }

    /// The number of known operations that have happened.
    fn count(&self) -> usize {
        self.next - self.missing.len()
    }
}

/// Whether an order explains the operations of one register. No two of them may write the same
/// value.
///
/// # Errors
///
/// The longest order that was found, and the operations that do not fit behind it.
pub fn check(operations: &[Operation]) -> Result<(), NotLinearizable> {
    let (mut known, unknown): (Vec<_>, Vec<_>) =
        operations.iter().copied().partition(|operation| operation.returned.is_some());
    known.sort_unstable_by_key(|operation| operation.called);
    search(&known, &unknown)
}

fn search(known: &[Operation], unknown: &[Operation]) -> Result<(), NotLinearizable> {
    let start = Point { next: 0, missing: Vec::new(), unknown: Vec::new(), value: None };
    let mut furthest = start.clone();
    let mut seen = HashSet::from([start.clone()]);
    let mut waiting = vec![start];
    while let Some(point) = waiting.pop() {
        if point.count() == known.len() {
            return Ok(());
        }
        if point.count() > furthest.count() {
            furthest = point.clone();
        }
        let (next, until) = candidates(known, &point);
        // A write that may not have happened explains something only to the operation behind it,
        // which finds its value.
        let maybe = (0..unknown.len())
            .filter(|at| unknown[*at].called < until && !point.unknown.contains(at));
        let finders = next.iter().map(|at| &known[*at]).chain(maybe.clone().map(|at| &unknown[at]));
        let found: HashSet<u64> = finders.filter_map(|finder| finder.effect.found()).collect();
        for at in maybe {
            let effect = unknown[at].effect;
            if !effect.written().is_some_and(|written| found.contains(&written)) {
                continue;
            }
            let Some(value) = effect.after(point.value) else { continue };
            let mut after = Point { value, ..point.clone() };
            after.unknown.push(at);
            after.unknown.sort_unstable();
            if seen.insert(after.clone()) {
                waiting.push(after);
            }
        }
        // Pushed last, so that known operations are tried first, in the order of their calls.
        for at in next.into_iter().rev() {
            let Some(value) = known[at].effect.after(point.value) else { continue };
            let mut after = Point { value, ..point.clone() };
            after.add(at);
            if seen.insert(after.clone()) {
                waiting.push(after);
            }
        }
    }
    Err(NotLinearizable(describe(known, unknown, &furthest)))
}

/// The known operations that may be next: those called before any other one returned. And the
/// moment of that return.
fn candidates(known: &[Operation], point: &Point) -> (Vec<usize>, u64) {
    let mut next = Vec::new();
    let mut until = u64::MAX;
    for at in point.missing.iter().copied().chain(point.next..known.len()) {
        if known[at].called > until {
            break;
        }
        next.push(at);
        until = until.min(known[at].returned.unwrap_or(u64::MAX));
    }
    (next, until)
}

fn describe(known: &[Operation], unknown: &[Operation], furthest: &Point) -> String {
    const BEFORE: usize = 10;
    let (next, until) = candidates(known, furthest);
    let mut text = format!("no order explains these; the value is {:?}\n", furthest.value);
    let before = known.iter().enumerate().take(furthest.next);
    for (at, operation) in before.skip(furthest.next.saturating_sub(BEFORE)) {
        if !furthest.missing.contains(&at) {
            let _ = writeln!(text, "  before  {operation:?}");
        }
    }
    for at in next {
        let _ = writeln!(text, "  next    {:?}", known[at]);
    }
    for operation in unknown.iter().filter(|operation| operation.called < until) {
        let _ = writeln!(text, "  perhaps {operation:?}");
    }
    text
}

/// Records the operations of many clients, by key.
#[derive(Default)]
pub struct History {
    clock: AtomicU64,
    operations: Mutex<BTreeMap<String, Vec<Operation>>>,
}

impl History {
    /// A moment: greater than all that were returned before.
    pub fn now(&self) -> u64 {
        self.clock.fetch_add(1, SeqCst)
    }

    /// Adds an operation that returns now.
    pub fn add(&self, key: &str, called: u64, effect: Effect) {
        self.push(key, Operation { called, returned: Some(self.now()), effect });
    }

    /// Adds one that may have happened, or may happen later.
    pub fn add_unknown(&self, key: &str, called: u64, effect: Effect) {
        self.push(key, Operation { called, returned: None, effect });
    }

    fn push(&self, key: &str, operation: Operation) {
        let mut operations = self.operations.lock().unwrap_or_else(PoisonError::into_inner);
        operations.entry(key.into()).or_default().push(operation);
    }

    /// The operations of each key.
    pub fn keys(&self) -> BTreeMap<String, Vec<Operation>> {
        self.operations.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
