//! A queue of the program: threads that wait for another of its threads, which is in a flush or a
//! write.

use super::case::{Case, doing};
use super::curve;
use crate::channels::{Does, Kind};
use crate::evidence::{Function, Queue};
use crate::finding::{Finding, Wall};
use crate::followers::{follow, pairs, queues, shared};
use crate::waits;
use crate::words::{list, mean, percent};

/// A flush that lets at least this number of waiters go serves several writes.
const BATCH_MIN: f64 = 1.5;

/// Whether the program flushes once for several writes.
pub fn is_batching(case: &Case<'_>) -> bool {
    let (queues, functions) = (&case.evidence.queues, &case.evidence.functions);
    queues.iter().any(|queue| follow(queue, functions) && served(queue) >= BATCH_MIN)
}

/// The waiters that run when one flush ends, on average.
fn served(queue: &Queue) -> f64 {
    let pairs = pairs(queue);
    if pairs.ends == 0 { 0.0 } else { pairs.ended_woken as f64 / pairs.ends as f64 }
}

pub fn waiting(case: &Case<'_>) -> Finding {
    let share = case.share_of(Kind::ProgramQueue);
    let queues = queues(case.evidence);
    let calls: Vec<String> = unique(queues.iter().map(|queue| queue.call.clone()));
    let files: Vec<String> = unique(
        queues
            .iter()
            .filter_map(|queue| case.evidence.files.get(queue.file).map(|file| file.path.clone())),
    );
    let leads = |seen: &waits::Seen<'_>| {
        seen.kind != Kind::ProgramQueue && matches!(doing(seen), Some(Does::Writes | Does::Syncs))
    };
    Finding {
        wall: Wall::ProgramQueue,
        share,
        file: if let [file] = &files[..] { Some(file.clone()) } else { None },
        verdict: format!(
            "{} of I/O time is spent waiting for another thread of the program, in {}: {} sleep \
             until then, while {} write or sync.{}",
            percent(share),
            list(&calls),
            mean(case.threads_in(Kind::ProgramQueue), "thread"),
            mean(case.threads(leads), "thread"),
            curve::ends(case).map(|ends| format!(" Measured: {ends}.")).unwrap_or_default(),
        ),
        evidence: queues.iter().flat_map(|queue| evidence(case, queue)).collect(),
        advice: advice(case),
    }
}

fn unique(names: impl Iterator<Item = String>) -> Vec<String> {
    names.collect::<std::collections::BTreeSet<_>>().into_iter().collect()
}

fn evidence(case: &Case<'_>, queue: &Queue) -> Vec<String> {
    let mut lines = vec![format!(
        "A thread was in {} in {} of the samples; in {} of these it was the only one.",
        queue.call,
        percent(waits::part(queue.looks, case.evidence.looks)),
        percent(1.0 - waits::part(queue.looks_of_several, queue.looks)),
    )];
    let pairs = pairs(queue);
    if pairs.held > 0 && pairs.ended > 0 {
        lines.push(format!(
            "{} of the waiters ran while it slept there, and {} when it went on.",
            percent(waits::part(pairs.held_woken, pairs.held)),
            percent(waits::part(pairs.ended_woken, pairs.ended)),
        ));
    }
    if let Some(shared) = shared(queue, &case.evidence.functions) {
        lines.push(format!(
            "{} of {} sampled waiters wait in {}, called by {}, which the thread in {} also runs.",
            shared.count,
            shared.of,
            name(shared.waits_in),
            name(shared.function),
            queue.call
        ));
    }
    if queue.leading_waiters > 0 {
        lines.push(format!(
            "{} of {} waiters were in {} themselves, in turn.",
            queue.leading_waiters, queue.threads, queue.call
        ));
    }
    if served(queue) >= BATCH_MIN {
        lines.push(format!(
            "The program shares flushes: {} went on after each, on average.",
            mean(served(queue), "waiter")
        ));
    }
    lines
}

/// The name of a function, or its address in its file.
fn name(function: &Function) -> String {
    let file = function.file.rsplit('/').next().unwrap_or_default();
    function.name.clone().unwrap_or_else(|| format!("{file}+{:#x}", function.address))
}

fn advice(case: &Case<'_>) -> Vec<String> {
    if !is_batching(case) {
        let mut lines = vec![
            "With dioxide: let all threads write and sync without waiting for each other; \
             Durability::EveryWrite and File::sync_data share flushes."
                .to_owned(),
        ];
        // A thread for the log already does so.
        if queues(case.evidence).iter().any(|queue| queue.leading_waiters > 0) {
            lines.push(
                "Without dioxide: let one thread sync for all that have written by then.".into(),
            );
        }
        return lines;
    }
    let is_of_journal = case.share(|seen| seen.kind == Kind::JournalCommit) > 0.0;
    let mut lines = vec![
        "Each flush already serves several writes, so a shorter flush helps: a \
         power-loss-protected drive, or O_DSYNC writes where the device has FUA."
            .to_owned(),
    ];
    if is_of_journal {
        lines.insert(
            0,
            "The flush waits for the journal: write over space that was written before (zeros, or \
             an old file), so that the sync commits no metadata."
                .to_owned(),
        );
    }
    lines.push("Write the next batch during a flush, not after it.".to_owned());
    lines
}
