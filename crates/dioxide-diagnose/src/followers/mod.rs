//! The queues of a program: whether threads that wait for a futex or a semaphore follow the thread
//! that writes or syncs.

use crate::evidence::{Evidence, Function, Pairs, Queue, Stack};
use crate::waits::{WAITERS_MIN, part, per_look};
use std::collections::{BTreeMap, BTreeSet};

/// The queues whose waiters wait for the thread that writes or syncs.
///
/// - There are waiters, and for most of the time a thread is in the call beside them.
/// - It is the only one. Threads that work on their own are seldom alone for most of the time.
/// - The waiters sleep while it does, and run when it goes on. Other threads run at any time.
/// - If the calls are too short to show that, the waiters must be in such a call themselves, in
///   turn. Nearly all of them must run at its end. Threads of a pool with little work also take
///   turns, but only one of them runs.
/// - If the calls end too seldom to show it within a pass, it is enough that they run before the
///   next pass. But then a function must have led both to the call and to the wait ([`shared`]).
pub(crate) fn queues(evidence: &Evidence) -> Vec<&Queue> {
    evidence.queues.iter().filter(|queue| is_queue(queue, evidence)).collect()
}

/// Whether a queue is one of [`queues`].
pub(crate) fn is_queue(queue: &Queue, evidence: &Evidence) -> bool {
    per_look(queue.waits, evidence) >= WAITERS_MIN
        && per_look(queue.looks, evidence) >= LED_MIN
        && part(queue.looks_of_several, queue.looks) <= SEVERAL_MAX
        && follow(queue, &evidence.functions)
}

/// Whether a thread is a waiter of a queue: it sleeps through the call, and runs at its end. One
/// thread has few readings. Whether the waiters together are a queue is for [`queues`] to judge.
pub(crate) fn thread_follows(short: Pairs, long: Pairs, woken_min: f64) -> bool {
    let sleeps_through = |pairs: Pairs| {
        let woken = part(pairs.ended_woken, pairs.ended);
        // As if it had run once more: few readings show little.
        let stray = part(pairs.held_woken + 1, pairs.held + 1);
        pairs.ended_woken >= WAKES_MIN && woken >= woken_min && stray <= STRAY_MAX * woken
    };
    let wakes = short.ended_woken >= WAKES_MIN
        && part(short.ended_woken, short.ended) >= WOKEN_SHORT_MIN
        && short.held < THREAD_HELD_MIN;
    wakes || sleeps_through(short) || sleeps_through(long)
}

/// Whether the waiters of a queue run when the call ends, and not before.
pub(crate) fn follow(queue: &Queue, functions: &[Function]) -> bool {
    wake_alone(queue)
        || shared(queue, functions).is_some() && wake(over_passes(queue), WOKEN_LONG_MIN)
}

/// The same, without stacks.
fn wake_alone(queue: &Queue) -> bool {
    let woken_min = if is_long(queue) { WOKEN_LONG_MIN } else { WOKEN_MIN };
    wake(best(queue), woken_min.max(woken_of_a_pool(queue))) || takes_turns(queue)
}

/// The share of waiters above which they are no pool. A pool wakes one of its threads at the end of
/// a call, so its waiters are in such a call in turn.
fn woken_of_a_pool(queue: &Queue) -> f64 {
    let lead_in_turn = queue.leading_waiters.saturating_mul(2) >= queue.threads;
    let one = part(queue.looks, queue.waits);
    if lead_in_turn { (WOKEN_MORE * one).min(WOKEN_LONG_MIN) } else { 0.0 }
}

/// The minimum share of samples with a thread in the call.
const LED_MIN: f64 = 0.5;

/// The maximum share of these samples with several threads in the call.
const SEVERAL_MAX: f64 = 0.2;

/// With fewer waiters in readings, rates are chance.
const PAIRS_MIN: u64 = 20;

/// The minimum share of waiters that run when the call ends. About half wait for the next one.
pub(crate) const WOKEN_MIN: f64 = 0.2;

/// More than one waiter, on average.
const WOKEN_MORE: f64 = 1.5;

/// The same for one thread among others that run at any time.
pub(crate) const CANDIDATE_MIN: f64 = 0.05;

/// With fewer wake-ups of one thread, they are chance.
const WAKES_MIN: u64 = 4;

/// With fewer readings of one thread beside a call that goes on, calls are too short to see it
/// sleep.
const THREAD_HELD_MIN: u64 = 3;

/// The same between two passes: few of a pool run in that time, and all waiters of a queue.
const WOKEN_LONG_MIN: f64 = 0.5;

/// The same where calls are short.
const WOKEN_SHORT_MIN: f64 = 0.4;

/// The rate of waiters that run during the call, as a part of those that run at its end.
const STRAY_MAX: f64 = 0.25;

/// The minimum share of waiters' stacks with a shared function.
const SHARED_MIN: f64 = 0.5;

/// The pairs of readings that show a queue.
pub(crate) fn pairs(queue: &Queue) -> Pairs {
    if wake_alone(queue) { best(queue) } else { over_passes(queue) }
}

/// The pairs of readings that show most: those of two passes if the call is often longer.
fn best(queue: &Queue) -> Pairs {
    if is_long(queue) { queue.long } else { queue.short }
}

/// Sleepers within a pass and over two, and wake-ups over two.
fn over_passes(queue: &Queue) -> Pairs {
    Pairs {
        held: queue.short.held.saturating_add(queue.long.held),
        held_woken: queue.short.held_woken.saturating_add(queue.long.held_woken),
        ..queue.long
    }
}

fn is_long(queue: &Queue) -> bool {
    queue.long.held.saturating_mul(2) > queue.long.ended
}

/// Whether waiters sleep through the call, and at least this share of them runs at its end.
fn wake(pairs: Pairs, woken_min: f64) -> bool {
    let woken = part(pairs.ended_woken, pairs.ended);
    pairs.held >= PAIRS_MIN
        && pairs.ended >= PAIRS_MIN
        && woken >= woken_min
        && part(pairs.held_woken, pairs.held) <= STRAY_MAX * woken
}

/// Whether waiters take turns in calls that are too short to see them wait.
fn takes_turns(queue: &Queue) -> bool {
    queue.short.held < PAIRS_MIN
        && queue.short.ended >= PAIRS_MIN
        && part(queue.short.ended_woken, queue.short.ended) >= WOKEN_SHORT_MIN
        && queue.leading_waiters >= 2
        && queue.leading_waiters.saturating_mul(4) >= queue.threads
}

/// A function on the stacks of waiters and of the thread in the call, which called both the wait
/// and the write or sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shared<'a> {
    pub function: &'a Function,
    /// What it called in the waiters.
    pub waits_in: &'a Function,
    /// Number of waiters' stacks with both.
    pub count: u64,
    /// Number of waiters' stacks.
    pub of: u64,
}

/// The shared function of most waiters: the innermost that a waiter has in common with a thread in
/// the call.
///
/// The threads of a pool have functions in common that mean nothing: those that start a thread, and
/// the loop that waits for work. So a shared function must be called by another one of the program.
/// No idle thread may have it: a thread without work sleeps in it for longer than a flush takes.
pub(crate) fn shared<'a>(queue: &Queue, functions: &'a [Function]) -> Option<Shared<'a>> {
    let all = |stacks: &[Stack]| -> BTreeSet<usize> {
        stacks.iter().flat_map(|stack| inner(&stack.functions, functions).to_vec()).collect()
    };
    let (leading, idle) = (all(&queue.leading), all(&queue.idle));
    let mut counts: BTreeMap<(usize, usize), u64> = BTreeMap::new();
    for stack in &queue.waiting {
        let inner = inner(&stack.functions, functions);
        let is_shared = |(_, function): &(usize, &usize)| {
            leading.contains(function)
                && !idle.contains(function)
                && functions.get(**function).is_some_and(|function| !is_of_runtime(function))
        };
        // Not the innermost of all, which waits itself.
        if let Some((at, function)) = inner.iter().enumerate().skip(1).find(is_shared) {
            let count = counts.entry((*function, inner[at - 1])).or_default();
            *count = count.saturating_add(stack.count);
        }
    }
    let ((function, waits_in), count) = counts.into_iter().max_by_key(|(_, count)| *count)?;
    let of = queue.waiting.iter().fold(0, |sum: u64, stack| sum.saturating_add(stack.count));
    let (function, waits_in) = (functions.get(function)?, functions.get(waits_in)?);
    (part(count, of) >= SHARED_MIN).then_some(Shared { function, waits_in, count, of })
}

/// A stack without the functions that start its thread, and without the first one of the program.
fn inner<'a>(stack: &'a [usize], functions: &[Function]) -> &'a [usize] {
    let is_of_runtime = |index: &usize| functions.get(*index).is_none_or(is_of_runtime);
    // The program's entry, which may have no name, is outside of libc.
    let is_entry = stack.len() >= 2 && is_of_runtime(&stack[stack.len() - 2]);
    let stack = &stack[..stack.len() - usize::from(is_entry)];
    let body = stack.iter().rposition(|index| !is_of_runtime(index)).unwrap_or(0);
    &stack[..body]
}

/// The functions on a stack that are the program's own, innermost first.
pub(crate) fn own<'a>(
    stack: &'a Stack,
    functions: &'a [Function],
) -> impl Iterator<Item = usize> + 'a {
    let is_own = |index: &usize| functions.get(*index).is_some_and(|it| !is_of_runtime(it));
    stack.functions.iter().copied().filter(is_own)
}

/// Whether a function belongs to the C library, or to the standard library of C++ or Rust.
fn is_of_runtime(function: &Function) -> bool {
    const FILES: [&str; 5] = ["libc.", "libc-", "libpthread", "ld-", "libstdc++"];
    const CRATES: [&str; 3] = ["std::", "core::", "alloc::"];
    const STARTS: [&str; 5] = ["main", "_start", "start_thread", "clone", "clone3"];
    let file = function.file.rsplit('/').next().unwrap_or_default();
    let name = function.name.as_deref().unwrap_or_default().trim_start_matches(['<', '&']);
    FILES.iter().any(|start| file.starts_with(start))
        || CRATES.iter().any(|start| name.starts_with(start))
        || STARTS.contains(&name)
}

#[cfg(test)]
mod tests;
