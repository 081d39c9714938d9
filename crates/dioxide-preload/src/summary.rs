//! Events and totals, which `DIOXIDE_STATS` prints at exit.

use dioxide::Stats;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// An event of a file.
pub enum Event {
    /// An open O_DIRECT for writing that the patterns match.
    Seen,
    /// Such an open that they do not match.
    Unmatched,
    /// The engine serves the file.
    TakenOver,
    /// The kernel keeps the file, for this reason.
    LeftAlone(String),
    /// The kernel serves the file again, for this reason.
    HandedBack(String),
}

/// The events and totals of this process.
#[derive(Debug, Default)]
pub struct Summary {
    seen: u64,
    unmatched: u64,
    taken_over: u64,
    reasons: BTreeMap<String, u64>,
    totals: Totals,
}

#[derive(Debug, Default)]
struct Totals {
    requests: u64,
    request_bytes: u64,
    merged: u64,
    flushes: u64,
    growths: u64,
    grown_bytes: u64,
    growth_waits: u64,
}

static SUMMARY: Mutex<Option<Summary>> = Mutex::new(None);

fn summary() -> MutexGuard<'static, Option<Summary>> {
    SUMMARY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Records an event.
pub fn note(event: Event) {
    let mut summary = summary();
    let summary = summary.get_or_insert_default();
    match event {
        Event::Seen => summary.seen += 1,
        Event::Unmatched => summary.unmatched += 1,
        Event::TakenOver => summary.taken_over += 1,
        Event::LeftAlone(why) => {
            *summary.reasons.entry(format!("not taken over: {why}")).or_default() += 1
        }
        Event::HandedBack(why) => {
            *summary.reasons.entry(format!("handed back to the kernel: {why}")).or_default() += 1;
        }
    }
}

/// Adds the totals of a file.
pub fn add(stats: &Stats) {
    let mut summary = summary();
    let totals = &mut summary.get_or_insert_default().totals;
    totals.requests += stats.requests;
    totals.request_bytes += stats.request_bytes;
    totals.merged += stats.merged;
    totals.flushes += stats.flushes + stats.dsync_requests;
    totals.growths += stats.growths;
    totals.grown_bytes += stats.grown_bytes;
    totals.growth_waits += stats.growth_waits;
}

/// A guard that prevents changes.
pub struct HeldSummary(MutexGuard<'static, Option<Summary>>);

/// Locks the summary during a fork.
pub fn hold() -> HeldSummary {
    HeldSummary(summary())
}

impl HeldSummary {
    /// In the child, whose parent reports the events before the fork. Leaks the memory: after a
    /// fork unseen by libc, the allocator may stay locked for ever.
    pub fn forget(&mut self) {
        std::mem::forget(self.0.take());
    }
}

/// Returns the number of unmatched opens, if there are any and no open matched.
pub fn nothing_matched() -> Option<u64> {
    summary()
        .as_ref()
        .filter(|summary| summary.seen == 0)
        .map(|summary| summary.unmatched)
        .filter(|n| *n > 0)
}

fn counted(count: u64, what: &str) -> String {
    let plural = if what.ends_with("sh") { "es" } else { "s" };
    format!("{count} {what}{}", if count == 1 { "" } else { plural })
}

/// Returns the text of the summary. None if the process had no event.
pub fn text() -> Option<String> {
    summary().as_ref().map(text_of)
}

fn text_of(summary: &Summary) -> String {
    let Summary { seen, unmatched, taken_over, reasons, totals } = summary;
    let files = counted(*seen, "file");
    let mut text = format!("{files} opened O_DIRECT for writing, {taken_over} of them taken over");
    if *unmatched > 0 {
        let _ = write!(text, "; {unmatched} not matched by DIOXIDE_MATCH");
    }
    for (reason, count) in reasons {
        let _ = write!(text, "\ndioxide: {count} {reason}");
    }
    if *taken_over > 0 {
        let Totals { requests, merged, flushes, growths, growth_waits, .. } = totals;
        let mib = |bytes: u64| bytes >> 20;
        let _ = write!(
            text,
            "\ndioxide: {} ({} MiB); {} shared one with others; {}\n\
             dioxide: grown ahead {} ({} MiB); {} waited for that",
            counted(*requests, "write request"),
            mib(totals.request_bytes),
            counted(*merged, "write"),
            counted(*flushes, "flush"),
            counted(*growths, "time"),
            mib(totals.grown_bytes),
            counted(*growth_waits, "write"),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The defect: "1 files opened", "1 write requests".
    #[test]
    fn one_had_the_plural() {
        let of = |count| {
            let totals = Totals {
                requests: count,
                merged: count,
                flushes: count,
                growths: count,
                growth_waits: count,
                ..Totals::default()
            };
            text_of(&Summary { seen: count, taken_over: count, totals, ..Summary::default() })
        };
        assert_eq!(
            of(1),
            "1 file opened O_DIRECT for writing, 1 of them taken over\ndioxide: 1 write request (0 \
             MiB); 1 write shared one with others; 1 flush\ndioxide: grown ahead 1 time (0 MiB); 1 \
             write waited for that"
        );
        assert!(of(2).contains("2 files opened") && of(2).contains("; 2 flushes\n"), "{}", of(2));
    }
}
