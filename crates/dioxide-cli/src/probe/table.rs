//! The results of a probe for people: tables, and sentences below.

use super::document::{
    Concurrency, ConcurrencyVerdict, Cost, Flush, ProbeDocument, SyncMethod, WriteTarget,
};
use super::facts::{Fact, Facts, Topic, Value};
use super::fitness::judge::{Check, Fitness, Latencies, Outcome};
use super::layer::Layer;
use crate::meter::machine::{Machine, when};
use crate::output::{Page, Tint};
use crate::report::grid::Grid;
use crate::units::about_bytes as size;
use anyhow::Result;
use dioxide::text::shown;
use dioxide_diagnose::words::{nanoseconds, rate, short};
use std::io::Write;

pub const TOPICS: [Topic; 7] = [
    Topic::FileSystem,
    Topic::File,
    Topic::Alignment,
    Topic::Durability,
    Topic::Abilities,
    Topic::Nowait,
    Topic::IoUring,
];

/// Everything.
pub fn print(document: &ProbeDocument, out: &mut Page) -> Result<()> {
    let width = out.width();
    if let Some(fitness) = &document.fitness {
        let [verdict, figures @ ..] = of_fitness(fitness);
        out.tinted(Some(tint(fitness.verdict)), verdict)?;
        for line in figures.iter().chain(&measured_on(&document.machine)) {
            writeln!(out, "{}", shown(line))?;
        }
        writeln!(out, "\n{:width$}\n", of_checks(fitness))?;
    }
    for topic in TOPICS {
        if document.facts.about(topic).next().is_some() {
            writeln!(out, "{}\n{:width$}\n", title(topic), of_facts(&document.facts, topic))?;
        }
    }
    if !document.devices.is_empty() {
        writeln!(out, "Device stack, top to bottom\n{:width$}", of_devices(&document.devices))?;
        for line in descriptions(&document.devices) {
            writeln!(out, "{}", shown(&line))?;
        }
        writeln!(out)?;
    }
    if let Some(flush) = &document.flush {
        writeln!(out, "A flush (fdatasync), on this machine now\n{:width$}\n", of_flush(flush))?;
    }
    if !document.costs.is_empty() {
        writeln!(
            out,
            "One write of 4 KiB by one thread, on this machine now\n{:width$}\n",
            of_costs(&document.costs)
        )?;
    }
    if !document.concurrency.is_empty() {
        writeln!(
            out,
            "Operations of 4 KiB by 1, 2 and 8 threads, on this machine now\n{:width$}\n",
            of_concurrency(&document.concurrency)
        )?;
    }
    if !document.sync_methods.is_empty() {
        writeln!(
            out,
            "{}, on this machine now\n{:width$}\n",
            title_of_sync_methods(document),
            of_sync_methods(&document.sync_methods)
        )?;
    }
    for sentence in document.meaning.iter().chain(&document.unmeasured) {
        writeln!(out, "{}", shown(sentence))?;
    }
    Ok(())
}

fn tint(verdict: Outcome) -> Tint {
    match verdict {
        Outcome::Pass => Tint::Good,
        Outcome::Fail => Tint::Bad,
    }
}

pub fn title(topic: Topic) -> &'static str {
    match topic {
        Topic::FileSystem => "File system",
        Topic::File => "The file",
        Topic::Alignment => "Alignment",
        Topic::Durability => "Durability",
        Topic::Abilities => "What files can do",
        Topic::Nowait => "Direct writes that wait for nothing",
        Topic::IoUring => "io_uring, and flags of single writes",
    }
}

/// The verdict, the pattern and the numbers.
pub fn of_fitness(fitness: &Fitness) -> [String; 3] {
    let Fitness { system, pattern, verdict, latencies, .. } = fitness;
    let Latencies { count, runtime_ms, writes_per_s, write_ns_p50, .. } = latencies;
    [
        format!("{system}: {}", verdict.word()),
        pattern.clone(),
        format!(
            "{count} durable writes in {:.1} s, {}, p50 {}",
            *runtime_ms as f64 / 1e3,
            rate(*writes_per_s),
            time(*write_ns_p50)
        ),
    ]
}

/// The machine, in a line or two.
fn measured_on(machine: &Machine) -> Vec<String> {
    let Machine { target, kernel_release, cpus, cpu_model, dioxide_version, .. } = machine;
    let cpu = cpu_model.as_deref().map(|model| format!(" ({model})")).unwrap_or_default();
    vec![
        format!("{target}, {} UTC, dioxide {dioxide_version}", when(&machine.date)),
        format!("Linux {kernel_release}, {cpus} CPUs{cpu}"),
    ]
}

pub fn of_checks(fitness: &Fitness) -> Grid {
    let known = |ns: Option<u64>| ns.map_or("-".into(), time);
    let row = |check: &Check| {
        let verdict = check.outcome.word().to_owned();
        let (found, limit) = (known(check.found_ns), known(check.limit_ns));
        vec![check.name.clone(), verdict, found, limit, check.source.clone()]
    };
    let rows = fitness.checks.iter().map(row).collect();
    table(&["", "", "found", "limit", "source"], rows, |column| (2..=3).contains(&column))
}

/// The value for people, sizes with units.
pub fn value(fact: &Fact) -> String {
    match &fact.value {
        Ok(Value::YesNo(true)) => "yes".into(),
        Ok(Value::YesNo(false)) => "no".into(),
        Ok(Value::Number(bytes)) if fact.key.ends_with("_bytes") => size(*bytes),
        Ok(Value::Number(number)) => number.to_string(),
        Ok(Value::Text(text)) => text.clone(),
        Err(why) => format!("unknown: {why}"),
    }
}

fn table(header: &[&str], rows: Vec<Vec<String>>, is_number: impl Fn(usize) -> bool) -> Grid {
    Grid::new(header.iter().map(|name| (*name).to_owned()).collect(), rows, is_number)
}

fn of_facts(facts: &Facts, topic: Topic) -> Grid {
    let row = |fact: &Fact| vec![fact.name.clone(), value(fact), format!("({})", fact.how)];
    table(&[""; 3], facts.about(topic).map(row).collect(), |_| false)
}

/// An attribute's name, its display, and its source.
type Attribute = (&'static str, fn(&Layer) -> Option<String>, &'static str);

const ATTRIBUTES: [Attribute; 17] = [
    ("kind", |it| Some(it.kind.clone()), "/sys/block"),
    ("rotational", |it| it.is_rotational.map(yes_no), "queue/rotational"),
    ("scheduler", |it| it.scheduler.clone(), "queue/scheduler"),
    ("requests", |it| it.nr_requests.map(|it| it.to_string()), "queue/nr_requests"),
    ("hardware queues", |it| it.hw_queues.map(|it| it.to_string()), "mq"),
    ("largest request", |it| it.request_max_bytes.map(size), "queue/max_sectors_kb"),
    ("largest possible", |it| it.request_hw_max_bytes.map(size), "queue/max_hw_sectors_kb"),
    ("logical block", |it| it.logical_block_bytes.map(size), "queue/logical_block_size"),
    ("physical block", |it| it.physical_block_bytes.map(size), "queue/physical_block_size"),
    ("write cache", |it| it.write_cache.clone(), "queue/write_cache"),
    ("FUA", |it| it.has_fua.map(yes_no), "queue/fua"),
    ("poll queues", |it| it.has_poll_queues.map(yes_no), "queue/io_poll"),
    (
        "atomic writes from",
        |it| it.atomic_write_unit_min_bytes.map(size),
        "queue/atomic_write_unit_min_bytes",
    ),
    (
        "atomic writes up to",
        |it| it.atomic_write_unit_max_bytes.map(size),
        "queue/atomic_write_unit_max_bytes",
    ),
    ("discards up to", |it| it.discard_max_bytes.map(size), "queue/discard_max_bytes"),
    (
        "writes zeroes up to",
        |it| it.write_zeroes_max_bytes.map(size),
        "queue/write_zeroes_max_bytes",
    ),
    (
        "and unmaps up to",
        |it| it.write_zeroes_unmap_max_hw_bytes.map(size),
        "queue/write_zeroes_unmap_max_hw_bytes",
    ),
];

fn yes_no(yes: bool) -> String {
    if yes { "yes".into() } else { "no".into() }
}

/// A column for each device.
pub fn of_devices(devices: &[Layer]) -> Grid {
    let queued: Vec<_> = devices.iter().filter(|layer| !layer.is_path()).collect();
    let names = queued.iter().map(|layer| layer.name.as_str());
    let header: Vec<_> = [""].into_iter().chain(names).chain([""]).collect();
    let row = |(name, of, from): &Attribute| {
        let cells = queued.iter().map(|layer| of(layer).unwrap_or("-".into()));
        [(*name).to_owned()].into_iter().chain(cells).chain([format!("({from})")]).collect()
    };
    table(&header, ATTRIBUTES.iter().map(row).collect(), |_| false)
}

/// The descriptions, one line each.
pub fn descriptions(devices: &[Layer]) -> Vec<String> {
    let line = |layer: &Layer| Some(format!("{}: {}", layer.name, layer.description.as_ref()?));
    devices.iter().filter_map(line).collect()
}

fn time(ns: u64) -> String {
    nanoseconds(ns as f64)
}

pub fn of_flush(flush: &Flush) -> Grid {
    let row =
        |name: &str, p50, p99| vec![name.to_owned(), time(p50), time(p99), flush.count.to_string()];
    let rows = vec![
        row("after a write", flush.flush_ns_p50, flush.flush_ns_p99),
        row("with nothing written", flush.flush_clean_ns_p50, flush.flush_clean_ns_p99),
    ];
    table(&["", "p50", "p99", "samples"], rows, |column| column > 0)
}

/// The operation, in words.
pub fn target(target: WriteTarget) -> &'static str {
    match target {
        WriteTarget::Overwrite => "overwrite",
        WriteTarget::PartialOverwrite => "overwrite part of a block",
        WriteTarget::Unwritten => "write into unwritten space",
        WriteTarget::Hole => "write into a hole",
        WriteTarget::Append => "append",
        WriteTarget::Read => "read",
    }
}

/// Requests or flushes for each operation.
pub fn per_op(count: f64) -> String {
    format!("{count:.2}")
}

/// Repetitions per second: the median, and the range over the rounds.
pub fn rates(one: &SyncMethod) -> String {
    let [middle, least, most] = [one.ops_per_s, one.ops_per_s_min, one.ops_per_s_max].map(short);
    format!("{middle} ({least}..{most})")
}

pub fn of_costs(costs: &[Cost]) -> Grid {
    let known = |count: Option<f64>| count.map_or("-".into(), per_op);
    let row = |cost: &Cost| {
        vec![
            target(cost.target).to_owned(),
            yes_no(cost.is_dsync),
            time(cost.write_ns_p50),
            format!("{}..{}", time(cost.write_ns_p50_min), time(cost.write_ns_p50_max)),
            time(cost.write_ns_p99),
            known(cost.requests_per_op),
            known(cost.flushes_per_op),
            cost.count.to_string(),
        ]
    };
    let header =
        ["", "O_DSYNC", "p50", "of the rounds", "p99", "requests/op", "flushes/op", "samples"];
    table(&header, costs.iter().map(row).collect(), |column| column > 1)
        .with_optional(vec![3, 5, 4, 6])
}

/// In words.
pub fn verdict(verdict: ConcurrencyVerdict) -> &'static str {
    match verdict {
        ConcurrencyVerdict::RunsConcurrently => "runs concurrently",
        ConcurrencyVerdict::OneAtATime => "one at a time",
        ConcurrencyVerdict::Undecided => "undecided",
    }
}

pub fn of_concurrency(all: &[Concurrency]) -> Grid {
    let waiters =
        |threads: Option<f64>| threads.map_or("-".into(), |threads| format!("{threads:.1} of 8"));
    let row = |one: &Concurrency| {
        vec![
            target(one.target).to_owned(),
            short(one.iops_1),
            short(one.iops_2),
            short(one.iops_8),
            one.ratio_2.to_string(),
            one.ratio_8.to_string(),
            waiters(one.lock_waiters_8),
            waiters(one.device_waiters_8),
            one.overlap_share_8.map_or("-".into(), |share| format!("{:.0} %", share * 100.0)),
            verdict(one.verdict).to_owned(),
            one.wait_channel.clone().unwrap_or_default(),
        ]
    };
    let rates = ["", "1: iops", "2: iops", "8: iops", "2 x 1", "8 x 1"];
    let header = [
        &rates[..],
        &["wait for a lock", "for the device", "two or more", "verdict", "most wait in"],
    ]
    .concat();
    table(&header, all.iter().map(row).collect(), |column| (1..=8).contains(&column))
        .with_optional(vec![5, 3, 1, 6, 7, 8, 10, 2, 4])
}

pub fn title_of_sync_methods(document: &ProbeDocument) -> &'static str {
    match document.not_durable {
        None => "Ways to make 8 KiB durable",
        Some(_) => "Ways to sync 8 KiB",
    }
}

pub fn of_sync_methods(methods: &[SyncMethod]) -> Grid {
    let row = |one: &SyncMethod| {
        let figures = match &one.unavailable {
            Some(why) => ["-".into(), "-".into(), why.clone()],
            None => [rates(one), format!("{:.1}", one.us_per_op), String::new()],
        };
        let first = [one.method.clone(), format!("{} x 8 KiB", one.writes)];
        let remark = if one.is_durable { figures[2].clone() } else { "NOT durable".into() };
        first.into_iter().chain(figures[..2].iter().cloned()).chain([remark]).collect()
    };
    table(&["", "", "ops/s", "us/op", ""], methods.iter().map(row).collect(), |column| {
        (2..=3).contains(&column)
    })
}

#[cfg(test)]
mod tests {
    use super::super::document::examples;
    use super::*;
    use crate::terminal::Terminal;

    #[test]
    fn everything_that_was_found_is_shown() {
        let mut document = examples::document();
        document.unmeasured.push("Reads were not measured.".into());
        let mut page = Page::new(Terminal::default());
        print(&document, &mut page).unwrap();
        let text = page.finished();
        for words in [
            "offset and length  512 B  (statx)",
            "volatile cache  yes",
            "after a write",
            "one at a time",
            "6.5 of 8",
            "NOT durable",
            "sda",
            "Reads were not measured.",
        ] {
            assert!(text.contains(words), "{words} is not in\n{text}");
        }
        assert!(!text.contains("The file\n"), "no file was named");
    }

    #[test]
    fn pass_and_fail_had_no_colour() {
        for (verdict, line) in [
            (Outcome::Pass, "\u{1b}[32metcd: PASS\u{1b}[0m"),
            (Outcome::Fail, "\u{1b}[31metcd: FAIL\u{1b}[0m"),
        ] {
            let mut document = examples::fit();
            document.fitness.iter_mut().for_each(|fitness| fitness.verdict = verdict);
            let mut page = Page::new(Terminal { width: None, has_colours: true });
            print(&document, &mut page).unwrap();
            assert!(page.finished().starts_with(line), "{}", page.finished());
        }
    }

    /// The defect: raw numbers, where other tables have 12.4k.
    #[test]
    fn rates_had_all_digits() {
        let mut method = examples::document().sync_methods[0].clone();
        (method.ops_per_s, method.ops_per_s_min) = (12_432.1, 950.0);
        method.ops_per_s_max = 163_000.0;
        assert_eq!(rates(&method), "12.4k (950..163k)");
        let mut fitness = examples::fit().fitness.unwrap();
        fitness.latencies.writes_per_s = 12_432.1;
        assert!(of_fitness(&fitness)[2].contains(", 12.4k/s, p50 "), "{:?}", of_fitness(&fitness));
    }

    #[test]
    fn numbers_have_the_unit_of_their_key() {
        let shown = |key: &str, told: Result<Value, String>| {
            value(&Fact {
                topic: Topic::Alignment,
                key: key.into(),
                name: "".into(),
                value: told,
                how: "".into(),
            })
        };
        assert_eq!(shown("offset_bytes", Ok(512u64.into())), "512 B");
        assert_eq!(shown("free_bytes", Ok(6_012_954_214u64.into())), "5.6 GiB");
        assert_eq!(shown("file_extents", Ok(7u64.into())), "7");
        assert_eq!(shown("reflink", Ok(false.into())), "no");
        assert_eq!(shown("journal", Err("for root only".into())), "unknown: for root only");
    }
}
