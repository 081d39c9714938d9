//! The activity of an observed program for people: its calls with their latencies, and a timeline.

use super::people::end_of;
use crate::report::grid::Grid;
use dioxide_diagnose::activity::{CallStats, CallsFrom, Interval, Latency, Timeline};
use dioxide_diagnose::evidence::Evidence;
use dioxide_diagnose::words::{bytes_rate, counted, nanoseconds, percent, rate};

/// Maximum rows of the table of calls on a terminal.
const CALLS_MAX: usize = 10;
/// With fewer intervals, a timeline shows nothing.
const INTERVALS_MIN: usize = 4;
/// A smaller traced part of the time is remarked.
const COVERAGE_FULL: f64 = 0.95;
/// A larger share of calls of processes that ended too soon is remarked.
const ENDED_MIN: f64 = 0.01;

/// The traced calls, at most `rows_max`, and the number of rows left out. None without any.
pub fn calls(evidence: &Evidence, rows_max: usize) -> Option<(Grid, usize)> {
    let calls = evidence.activity.calls.as_ref().filter(|calls| !calls.is_empty())?;
    let header = ["call", "calls/s", "bytes/s", "p50", "p99", "max", "failed", "file"];
    let header = header.map(String::from).into();
    let per_second = |count: u64| count as f64 * 1e9 / evidence.watched_ns.max(1) as f64;
    let row = |call: &CallStats| {
        let file = call.file.and_then(|file| evidence.files.get(file));
        vec![
            call.name.clone(),
            rate(per_second(call.count)),
            if call.bytes == 0 { "-".into() } else { bytes_rate(per_second(call.bytes)) },
            latency(call.p50),
            latency(call.p99),
            latency(call.max),
            if call.errors == 0 { "-".into() } else { call.errors.to_string() },
            file.map_or("-".into(), |file| end_of(&file.path)),
        ]
    };
    let rows = calls.iter().take(rows_max).map(row).collect();
    let grid = Grid::new(header, rows, |column| matches!(column, 1..=6));
    Some((grid.with_optional(vec![7, 3, 6]), calls.len().saturating_sub(rows_max)))
}

/// The tables for a terminal of this width.
pub fn tables(evidence: &Evidence, width: usize) -> String {
    let mut text = String::new();
    if let Some((grid, hidden)) = calls(evidence, CALLS_MAX) {
        text += &format!("{grid:width$}\n");
        if hidden > 0 {
            text += &format!("({hidden} more with --json)\n");
        }
    }
    if let Some(timeline) = shown(evidence) {
        text += &format!("\n{:width$}\n", over_time(timeline));
    }
    text
}

/// The sources and the limits of these figures.
pub fn remarks(evidence: &Evidence) -> Vec<String> {
    let activity = &evidence.activity;
    let mut remarks = Vec::new();
    if activity.calls.as_ref().is_some_and(Vec::is_empty) {
        remarks.push("No call on a file was traced.".into());
    }
    if let Some(coverage) = activity.coverage.filter(|_| calls(evidence, 0).is_some()) {
        let mut remark =
            "Latency is the time of a call, from its begin to its return. The trace saw "
                .to_owned();
        remark += &match coverage.share {
            share if share >= COVERAGE_FULL => "each call.".into(),
            share => format!("{} of the time; rates are scaled.", percent(share)),
        };
        if coverage.lost_events > 0 {
            let lost = counted(coverage.lost_events, "event");
            remark += &format!(" Its buffers lost {lost}; that time counts as not traced.");
        }
        if asynchronous(evidence) {
            remark += " The operations of a ring outlive its calls: their latency is not in it.";
        }
        remarks.push(remark);
    }
    remarks.extend(ended(evidence));
    if let (None, Some(counters)) = (&activity.calls, activity.counters) {
        let seconds = evidence.watched_ns.max(1) as f64 / 1e9;
        remarks.push(format!(
            "By /proc/PID/io: {} read calls, {} write calls, pipes and sockets included; {} from \
             and to storage. Latencies and syncs need the trace.",
            rate(counters.read_calls as f64 / seconds),
            rate(counters.write_calls as f64 / seconds),
            bytes_rate(counters.bytes() as f64 / seconds),
        ));
    }
    remarks
}

/// The calls that are missing because their processes ended too soon.
fn ended(evidence: &Evidence) -> Option<String> {
    let ended = evidence.activity.coverage?.ended_calls;
    let counted = evidence.activity.calls.iter().flatten().map(|call| call.count);
    let share = ended as f64 / counted.fold(ended, u64::saturating_add).max(1) as f64;
    (share >= ENDED_MIN).then(|| {
        format!(
            "{} of traced calls were of processes that ended before they were looked at. These \
             calls are not in the rates.",
            percent(share)
        )
    })
}

fn asynchronous(evidence: &Evidence) -> bool {
    let calls = evidence.activity.calls.iter().flatten();
    calls.into_iter().any(|call| call.name.starts_with("io_"))
}

/// `> 5.00 ms` is the length of a call that the trace did not see end.
pub fn latency(latency: Latency) -> String {
    // The trace has microseconds.
    if latency.ns == 0 && !latency.is_at_least {
        return "< 1 us".into();
    }
    let at_least = if latency.is_at_least { "> " } else { "" };
    format!("{at_least}{}", nanoseconds(latency.ns as f64))
}

/// The timeline, if it shows anything.
pub fn shown(evidence: &Evidence) -> Option<&Timeline> {
    evidence.activity.timeline.as_ref().filter(|timeline| {
        let did = |interval: &Interval| {
            interval.calls > 0.0 || interval.bytes > Some(0.0) || interval.in_io > 0
        };
        timeline.intervals.len() >= INTERVALS_MIN && timeline.intervals.iter().any(did)
    })
}

/// A quantity over time. None where it is not known.
pub struct Quantity {
    pub name: &'static str,
    pub values: Vec<Option<f64>>,
    pub text: fn(f64) -> String,
    /// The value at the top. None for the largest one.
    pub full: Option<f64>,
}

/// The quantities with known values.
pub fn quantities(timeline: &Timeline) -> Vec<Quantity> {
    let of =
        |value: &dyn Fn(&Interval) -> Option<f64>| timeline.intervals.iter().map(value).collect();
    let calls = Quantity {
        name: match timeline.calls_from {
            CallsFrom::Trace => "calls",
            CallsFrom::Counters | CallsFrom::Nothing => "reads and writes",
        },
        values: of(&|one| {
            (timeline.calls_from != CallsFrom::Nothing).then(|| one.per_second(one.calls))
        }),
        text: rate,
        full: None,
    };
    let syncs = Quantity {
        name: "syncs",
        values: of(&|one| Some(one.per_second(one.syncs?))),
        text: rate,
        full: None,
    };
    let bytes = Quantity {
        name: "storage",
        values: of(&|one| Some(one.per_second(one.bytes?))),
        text: bytes_rate,
        full: None,
    };
    let waiting = Quantity {
        name: "waiting",
        values: of(&Interval::waiting_share),
        text: percent,
        full: Some(1.0),
    };
    let mut all = vec![calls, syncs, bytes, waiting];
    all.retain(|quantity| quantity.values.iter().flatten().any(|value| *value > 0.0));
    all
}

fn over_time(timeline: &Timeline) -> Grid {
    let title = format!(
        "{} of {} ms",
        counted(timeline.intervals.len() as u64, "interval"),
        timeline.interval_ns / 1_000_000
    );
    let header = ["over time".into(), "least".into(), "most".into(), title].into();
    let row = |quantity: Quantity| {
        let known = || quantity.values.iter().copied().flatten();
        vec![
            quantity.name.into(),
            (quantity.text)(known().fold(f64::INFINITY, f64::min)),
            (quantity.text)(known().fold(0.0, f64::max)),
            sparkline(&quantity.values, quantity.full),
        ]
    };
    let rows = quantities(timeline).into_iter().map(row).collect();
    Grid::new(header, rows, |column| matches!(column, 1 | 2))
}

/// One character for each value, from zero to `full` or the largest one.
fn sparkline(values: &[Option<f64>], full: Option<f64>) -> String {
    const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let most = full.unwrap_or_else(|| values.iter().copied().flatten().fold(0.0, f64::max));
    let level = |value: f64| {
        let share = if most > 0.0 { (value / most).clamp(0.0, 1.0) } else { 0.0 };
        LEVELS[(share * (LEVELS.len() - 1) as f64).round() as usize]
    };
    values.iter().map(|value| value.map_or('·', level)).collect()
}

#[cfg(test)]
pub mod examples {
    use super::*;
    use dioxide_diagnose::activity::{Activity, Coverage, IoCounters};

    /// Appends with a checkpoint in the second half, observed for ten seconds.
    pub fn activity() -> Activity {
        let took = |ns| Latency { ns, is_at_least: false };
        let call = |name: &str, count: u64, bytes, p50, max: Latency| CallStats {
            name: name.into(),
            file: Some(0),
            count,
            bytes,
            errors: 0,
            p50: took(p50),
            p99: took(p50 * 9),
            max,
            traced: count / 4,
        };
        let interval = |nth: u64| {
            let is_checkpoint = (24..32).contains(&nth);
            Interval {
                length_ns: 250_000_000,
                calls: if is_checkpoint { 40.0 } else { 600.0 + (nth % 5) as f64 * 80.0 },
                syncs: Some(if is_checkpoint { 8.0 } else { 1.0 }),
                bytes: Some(if is_checkpoint { 32e6 } else { 3e6 }),
                looks: 40,
                in_io: 100,
                waiting: if is_checkpoint { 97 } else { 30 },
            }
        };
        Activity {
            calls: Some(vec![
                call("pwrite64", 28_000, 28_000 * 4096, 38_000, took(5_400_000)),
                CallStats { errors: 2, ..call("pread64", 900, 900 * 4096, 9_000, took(81_000)) },
                call("fdatasync", 96, 0, 4_050_000, Latency { ns: 41_000_000, is_at_least: true }),
            ]),
            coverage: Some(Coverage { share: 0.25, lost_events: 12, ended_calls: 0 }),
            counters: Some(IoCounters {
                read_calls: 900,
                write_calls: 28_000,
                read_bytes: 900 * 4096,
                write_bytes: 28_000 * 4096,
            }),
            timeline: Some(Timeline {
                interval_ns: 250_000_000,
                calls_from: CallsFrom::Trace,
                intervals: (0..40).map(interval).collect(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::document::examples::program;
    use super::*;

    #[test]
    fn a_sparkline_has_a_character_for_each_value() {
        let line = sparkline(&[Some(0.0), Some(4.0), None, Some(8.0)], None);
        assert_eq!(line, "▁▅·█");
        assert_eq!(sparkline(&[Some(0.5)], Some(1.0)), "▅");
        assert_eq!(sparkline(&[Some(0.0), None], None), "▁·");
    }

    #[test]
    fn latencies_that_the_trace_did_not_see_end_are_bounds() {
        let of = |is_at_least| latency(Latency { ns: 5_000_000, is_at_least });
        assert_eq!((of(false), of(true)), ("5.00 ms".into(), "> 5.00 ms".into()));
        assert_eq!(latency(Latency { ns: 0, is_at_least: false }), "< 1 us");
    }

    #[test]
    fn the_source_of_the_figures_is_named() {
        let mut evidence = program().evidence;
        let text = remarks(&evidence).join("\n");
        assert!(text.contains("25 % of the time") && text.contains("lost 12 events"), "{text}");
        assert!(!text.contains("/proc/PID/io") && !text.contains("ring"), "{text}");

        assert!(!text.contains("ended"), "{text}");

        evidence.activity.coverage.as_mut().unwrap().ended_calls = 3 * (28_000 + 900 + 96);
        let text = remarks(&evidence).join("\n");
        assert!(text.contains("75 % of traced calls were of processes that ended"), "{text}");

        evidence.activity.calls = None;
        evidence.activity.coverage = None;
        let text = remarks(&evidence).join("\n");
        assert!(text.contains("/proc/PID/io") && text.contains("need the trace"), "{text}");
        assert!(calls(&evidence, 9).is_none());
    }

    #[test]
    fn a_quiet_program_has_no_timeline() {
        let mut evidence = program().evidence;
        assert!(shown(&evidence).is_some());
        let timeline = evidence.activity.timeline.as_mut().unwrap();
        for interval in &mut timeline.intervals {
            *interval = Interval { length_ns: 1, looks: 4, ..Interval::default() };
        }
        assert!(shown(&evidence).is_none());
    }
}
