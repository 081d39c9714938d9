//! Verdicts without a serialising lock: the device, the processors, unrecognised waits, or nothing
//! to do.

use super::case::Case;
use super::curve::{self, Shape};
use crate::channels::Kind;
use crate::evidence::SeenDevice;
use crate::finding::{Finding, Wall};
use crate::waits::{self, Seen};
use crate::words::{counted, list, mean, nanoseconds, percent, rate};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// With fewer threads in I/O than this on average, the program does next to none.
const IN_IO_MIN: f64 = 0.05;

/// More direct reads and writes per second than this count as I/O, however short they are.
const TRACED_MIN: f64 = 100.0;

/// A device with requests in flight for this share of the time is busy.
const BUSY_MIN: f64 = 0.9;

/// Threads that use this share of the processors leave none for others.
const PROCESSORS_MIN: f64 = 0.8;

/// Whether the program does next to no I/O.
pub fn is_idle(case: &Case<'_>) -> bool {
    let waiting = case.threads_in(Kind::Completions).min(in_flight(case));
    if traced(case) >= TRACED_MIN {
        return false;
    }
    case.threads(|seen| seen.is_io && seen.kind != Kind::Completions) + waiting < IN_IO_MIN
}

/// The verdict that nothing serialises, with the states of the threads.
pub fn nothing(case: &Case<'_>, walls: f64) -> Finding {
    let does = what_threads_do(case);
    let traced = traced(case);
    let why = if case.in_io == 0 && traced >= TRACED_MIN {
        format!(
            "no thread was seen to wait in I/O: {} direct reads and writes were traced, each too \
             short to be seen",
            rate(traced)
        )
    } else if case.in_io == 0 {
        "no thread was seen to wait in I/O".to_owned()
    } else if is_idle(case) {
        format!(
            "the program does next to no I/O ({} in it, on average)",
            mean(case.threads(|seen| seen.is_io), "thread")
        )
    } else {
        match (curve::shape(case), curve::ends(case)) {
            (Some(Shape::Grows), Some(ends)) => format!("more threads get more done, {ends}"),
            (_, Some(ends)) => {
                format!(
                    "no lock, flush or commit takes much of the time. Measured: {ends}; {}",
                    limit(case)
                )
            }
            (_, None) => "no lock, flush or commit takes much of the time".to_owned(),
        }
    };
    let mut evidence = kinds(case);
    if case.in_io > 0 || traced > 0.0 {
        evidence.extend(case.evidence.devices.iter().map(|device| device_line(case, device)));
    }
    let share = if case.in_io == 0 { 0.0 } else { (1.0 - walls).clamp(0.0, 1.0) };
    let unknown = strangers(case);
    evidence.extend(
        unknown.iter().map(|function| format!("Unrecognised, and not in known I/O: {function}.")),
    );
    let in_io = waits::per_look(case.in_io, case.evidence);
    let is_most_unknown = case.threads(is_stranger) > in_io.max(1.0);
    let nothing =
        if is_most_unknown { "No recognised wait serialises" } else { "Nothing serialises" };
    let verdict = format!("{nothing}: {why}. {does}");
    Finding { wall: Wall::Nothing, share, file: None, verdict, evidence, advice: Vec::new() }
}

/// The limit of a curve that no lock explains.
fn limit(case: &Case<'_>) -> &'static str {
    match (device(case).is_some(), processor(case).is_some()) {
        (true, true) => "the device and the processors are busy",
        (true, false) => "the device is busy",
        (false, true) => "the processors are busy",
        (false, false) => "the limit was not observed",
    }
}

/// "Of the threads, on average, 14.20 wait for the device, 1.80 are running or runnable."
fn what_threads_do(case: &Case<'_>) -> String {
    let mut does = Vec::new();
    let mut add = |count: f64, what: &str| {
        if count >= 0.01 {
            does.push(format!("{count:.2} {what}"));
        }
    };
    add(case.threads_in(Kind::Device), "wait for the device");
    add(case.threads_in(Kind::PageCache), "wait for the page cache");
    add(case.threads_in(Kind::Completions), "wait for completions");
    add(case.threads(is_locked), "wait for locks, flushes or commits");
    add(case.threads_in(Kind::Processor), "are running or runnable");
    add(case.threads_in(Kind::Idle), "wait outside I/O");
    add(case.threads_in(Kind::Stopped), "are stopped");
    add(case.threads_in(Kind::Unknown), "wait in unrecognised functions");
    if does.is_empty() {
        return "No thread was seen at all.".into();
    }
    format!("Of the threads, on average, {}.", does.join(", "))
}

/// Whether threads waited in an unrecognised function, outside calls that do I/O.
fn is_stranger(seen: &Seen<'_>) -> bool {
    seen.kind == Kind::Unknown && !seen.is_io && seen.function.is_some()
}

/// These functions, the most frequent first: "zfs_rangelock_enter, 7.00 threads".
fn strangers(case: &Case<'_>) -> Vec<String> {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for seen in case.seen.iter().filter(|seen| is_stranger(seen)) {
        let count = counts.entry(seen.function.unwrap_or_default()).or_default();
        *count = count.saturating_add(seen.sighting.count);
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| Reverse(*count));
    let threads = |count| mean(waits::per_look(count, case.evidence), "thread");
    counts
        .into_iter()
        .take(5)
        .map(|(function, count)| format!("{function}, {}", threads(count)))
        .collect()
}

fn is_locked(seen: &Seen<'_>) -> bool {
    use Kind::*;
    matches!(
        seen.kind,
        InodeLock
            | PositionLock
            | FileSystemLock
            | JournalCommit
            | Flush
            | ProgramLock
            | ProgramQueue
    )
}

fn kinds(case: &Case<'_>) -> Vec<String> {
    let kinds: BTreeSet<Kind> = case.seen.iter().map(|seen| seen.kind).collect();
    let mut shares: Vec<(Kind, f64)> =
        kinds.into_iter().map(|kind| (kind, case.share_of(kind))).collect();
    shares.retain(|(_, share)| *share > 0.0);
    shares.sort_by(|one, other| other.1.total_cmp(&one.1));
    let shares: Vec<String> = shares
        .into_iter()
        .map(|(kind, share)| format!("{} {}", percent(share), kind.name()))
        .collect();
    if shares.is_empty() {
        Vec::new()
    } else {
        vec![format!("Of I/O time: {}.", shares.join(", "))]
    }
}

/// The device, where it is busy.
pub fn device(case: &Case<'_>) -> Option<Finding> {
    let device = case.busiest()?;
    let busy = busy(case, device);
    let share = case.share(|seen| {
        matches!(seen.kind, Kind::Device | Kind::PageCache | Kind::Completions)
            && seen.file.is_none_or(|file| file.device == device.number)
    });
    (busy >= BUSY_MIN && device.inflight >= 1.0 && share > 0.0).then(|| Finding {
        wall: Wall::Device,
        share,
        file: None,
        verdict: format!(
            "The device is busy: {} has {} in flight on average, and is busy for {} of the time. \
             Device-bound: more threads help only if the device has spare parallelism.",
            device.name,
            mean(device.inflight, "request"),
            percent(busy)
        ),
        evidence: vec![device_line(case, device)],
        advice: Vec::new(),
    })
}

/// The processors, where the threads use nearly all of them.
pub fn processor(case: &Case<'_>) -> Option<Finding> {
    let running = case.threads_in(Kind::Processor);
    let cpus = case.evidence.cpus;
    (cpus > 0 && running >= PROCESSORS_MIN * cpus as f64).then(|| Finding {
        wall: Wall::Processor,
        share: case.share_of(Kind::Processor),
        file: None,
        verdict: format!(
            "The processors are busy: {} of the program are running or runnable, on average, on \
             {}.",
            mean(running, "thread"),
            counted(cpus as u64, "processor")
        ),
        evidence: Vec::new(),
        advice: if case.in_io > 0 && !is_idle(case) {
            vec!["Larger or merged operations cost less processor time for each byte.".into()]
        } else {
            Vec::new()
        },
    })
}

/// Waits in unrecognised functions.
pub fn unknown(case: &Case<'_>) -> Finding {
    let is_unknown = |seen: &Seen<'_>| seen.kind == Kind::Unknown && seen.function.is_some();
    let functions: Vec<String> = case
        .functions(is_unknown)
        .into_iter()
        .map(|(function, share)| format!("{function} ({})", percent(share)))
        .collect();
    let share = case.share(is_unknown);
    Finding {
        wall: Wall::Unknown,
        share,
        file: None,
        verdict: format!(
            "{} of I/O time is spent waiting in unrecognised functions: {}.",
            percent(share),
            list(&functions)
        ),
        evidence: functions.iter().map(|function| format!("Seen in {function}.")).collect(),
        advice: vec!["Run as root to see also stacks, in the wait table.".into()],
    }
}

/// The activity of a device: how saturated it is.
pub fn device_line(case: &Case<'_>, device: &SeenDevice) -> String {
    let flushes =
        device.flushes.map(|flushes| format!(", {} flushes", rate(case.per_second(flushes))));
    format!(
        "{}: {} reads, {} writes{}; {} in flight on average{}, busy for {} of the time{}.",
        device.name,
        rate(case.per_second(device.reads)),
        rate(case.per_second(device.writes)),
        flushes.unwrap_or_default(),
        mean(device.inflight, "request"),
        device.queue_max.map(|most| format!(" (queue of {most})")).unwrap_or_default(),
        percent(busy(case, device)),
        latency(case, device).map(|ns| format!(", {ns} each")).unwrap_or_default()
    )
}

/// The mean time of a request, in the queue and on the device.
fn latency(case: &Case<'_>, device: &SeenDevice) -> Option<String> {
    let requests = device.reads.saturating_add(device.writes);
    let total_ns = device.inflight * case.evidence.watched_ns as f64;
    (requests > 0 && total_ns > 0.0).then(|| nanoseconds(total_ns / requests as f64))
}

fn busy(case: &Case<'_>, device: &SeenDevice) -> f64 {
    waits::part(device.busy_ns, case.evidence.watched_ns)
}

/// Traced direct reads and writes per second.
fn traced(case: &Case<'_>) -> f64 {
    let direct = case.evidence.direct.iter().flatten();
    case.per_second(direct.fold(0, |sum, direct| sum.saturating_add(direct.count)))
}

fn in_flight(case: &Case<'_>) -> f64 {
    case.busiest().map_or(0.0, |device| device.inflight.max(0.0))
}
