//! Limits of cgroups, compared with the measured rates.

use super::case::{Case, doing};
use super::limits;
use crate::channels::{Does, Kind};
use crate::evidence::{IoLimit, SeenCgroup};
use crate::finding::{Finding, Wall};
use crate::waits::{self, Seen};
use crate::words::{bytes_rate, percent, rate};

/// A rate of this part of its limit has reached it: the first and the last moment count in part.
const REACHED_MIN: f64 = 0.9;

/// A smaller share of the time with a thread that waits for I/O is not worth a line.
const PRESSURE_MIN: f64 = 0.5;

/// Bursts may reach a limit that is used for this part on average.
const BURSTS_MIN: f64 = 0.25;

/// Throttling in fewer periods than this is no bottleneck.
const THROTTLED_MIN: f64 = 0.1;

/// With fewer periods the share is chance.
const PERIODS_MIN: u64 = 5;

/// The reached I/O limit that prolongs most of the I/O time. Waits for I/O are then longer,
/// whatever they are for, also those for a thread that waits for the device.
pub fn of_io(case: &Case<'_>) -> Option<Finding> {
    let reached = limits(case).filter(|(_, io)| used(case, io) >= REACHED_MIN);
    let prolonged =
        reached.map(|(group, io)| (case.share(|seen| is_prolonged(case, io, seen)), group, io));
    let (share, group, io) = prolonged.max_by(|one, other| {
        one.0.total_cmp(&other.0).then(used(case, one.2).total_cmp(&used(case, other.2)))
    })?;
    let done = case.per_second(io.done);
    let device = io.device_name.clone().unwrap_or(format!("{}:{}", io.device.0, io.device.1));
    let file = format!("{}/{}", group.path, io.file);
    let what = if io.quantity.starts_with('r') { "reads" } else { "writes" };
    let of = if io.quantity.ends_with("iops") { rate } else { bytes_rate };
    Some(Finding {
        wall: Wall::CgroupLimit,
        share,
        file: None,
        verdict: format!(
            "The cgroup limits I/O: {} allows {what} on {device} at {}, and {} were done.",
            group.path,
            of(io.per_second as f64),
            of(done)
        ),
        evidence: evidence(case, group, io, &file),
        advice: advice(io, &file),
    })
}

/// Whether a limit prolongs a wait. It does not on files of other devices, nor if the wait needs
/// I/O in the other direction.
fn is_prolonged(case: &Case<'_>, io: &IoLimit, seen: &Seen<'_>) -> bool {
    // The files may be on a partition of the device, or above it.
    let has_files = case.evidence.files.iter().any(|file| file.device == io.device);
    let is_elsewhere = has_files && seen.file.is_some_and(|file| file.device != io.device);
    !matches!(seen.kind, Kind::Processor | Kind::Unknown)
        && !is_elsewhere
        && reads(seen).is_none_or(|reads| reads == io.quantity.starts_with('r'))
}

/// Whether a wait needs reads of the device, not writes. None if that is not known, or if it is
/// for another thread.
fn reads(seen: &Seen<'_>) -> Option<bool> {
    match (seen.kind, doing(seen)) {
        (Kind::Flush | Kind::JournalCommit, _) => Some(false),
        (Kind::Device, Some(Does::Reads)) => Some(true),
        (Kind::Device, Some(Does::Writes | Does::Syncs)) => Some(false),
        _ => None,
    }
}

/// The limits on I/O, each with its cgroup.
fn limits<'a>(case: &Case<'a>) -> impl Iterator<Item = (&'a SeenCgroup, &'a IoLimit)> {
    case.evidence.cgroups.iter().flat_map(|group| group.io.iter().map(move |io| (group, io)))
}

/// The limit that is used most.
fn most_used<'a>(case: &Case<'a>) -> Option<(&'a SeenCgroup, &'a IoLimit)> {
    limits(case).max_by(|one, other| used(case, one.1).total_cmp(&used(case, other.1)))
}

/// The pressure on the innermost cgroup under much of it, for a verdict without a limit that is
/// reached. Bursts reach a limit that is not used up on average.
pub fn pressure(case: &Case<'_>) -> Vec<String> {
    let is_much = |group: &&SeenCgroup| pressed(case, group).is_some_and(|it| it >= PRESSURE_MIN);
    let pressed = case.evidence.cgroups.iter().filter(is_much);
    let Some(innermost) = pressed.max_by_key(|group| group.path.matches('/').count()) else {
        return Vec::new();
    };
    let limit = most_used(case).filter(|(_, io)| used(case, io) >= BURSTS_MIN);
    let bursts = limit.map(|(group, io)| {
        let used = percent(used(case, io));
        let (path, file, quantity) = (&group.path, &io.file, &io.quantity);
        format!("{path}/{file}: {quantity} is used to {used} on average; bursts may reach it.")
    });
    pressure_line(case, innermost).into_iter().chain(bursts).collect()
}

/// The share of the time in which a thread of a cgroup waited for I/O.
fn pressed(case: &Case<'_>, group: &SeenCgroup) -> Option<f64> {
    Some(waits::part(group.io_pressure_ns?, case.evidence.watched_ns))
}

fn pressure_line(case: &Case<'_>, group: &SeenCgroup) -> Option<String> {
    let share = percent(pressed(case, group)?);
    let path = &group.path;
    Some(format!(
        "{path}/io.pressure: a thread of the cgroup waited for I/O in {share} of the time."
    ))
}

fn evidence(case: &Case<'_>, group: &SeenCgroup, io: &IoLimit, file: &str) -> Vec<String> {
    let mut lines =
        vec![format!("{file}: {} is used to {}.", io.quantity, percent(used(case, io)))];
    lines.extend(pressure_line(case, group));
    lines.extend(case.busiest().map(|device| limits::device_line(case, device)));
    lines
}

fn advice(io: &IoLimit, file: &str) -> Vec<String> {
    let (major, minor) = io.device;
    let value = match io.file.as_str() {
        "io.max" => format!("{major}:{minor} {}=max", io.quantity),
        _ => format!("{major}:{minor} 0"),
    };
    let mut lines =
        vec![format!("Raise the limit in {file}; to remove it: echo '{value}' > {file}.")];
    if io.quantity.ends_with("iops") {
        lines.push("Under the limit, only larger or merged operations get more done.".to_owned());
    }
    lines
}

/// The part of a limit that is used.
fn used(case: &Case<'_>, io: &IoLimit) -> f64 {
    if io.per_second == 0 { 0.0 } else { case.per_second(io.done) / io.per_second as f64 }
}

/// The limit on processors that throttled most.
pub fn of_processors(case: &Case<'_>) -> Option<Finding> {
    let limited = case.evidence.cgroups.iter().filter_map(|group| {
        let cpu = group.cpu.as_ref().filter(|cpu| cpu.periods >= PERIODS_MIN)?;
        let share = waits::part(cpu.throttled_periods, cpu.periods);
        (share >= THROTTLED_MIN).then_some((group, cpu, share))
    });
    let (group, cpu, share) = limited.max_by(|one, other| one.2.total_cmp(&other.2))?;
    let file = format!("{}/cpu.max", group.path);
    Some(Finding {
        wall: Wall::CgroupLimit,
        share: case.share_of(Kind::Processor),
        file: None,
        verdict: format!(
            "The cgroup limits processors: {file} allows {:.1}, and threads were throttled in {} \
             of its periods.",
            cpu.cpus,
            percent(share)
        ),
        evidence: vec![format!(
            "cpu.stat: {} of {} periods were throttled.",
            cpu.throttled_periods, cpu.periods
        )],
        advice: vec![format!("Raise the limit in {file}; to remove it: echo max > {file}.")],
    })
}
