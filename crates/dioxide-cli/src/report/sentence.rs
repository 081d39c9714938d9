//! The closing sentence of a scenario: the result of its table in words.

mod files;

use super::{largest, rival, rivals};
use crate::bench::figures::Row;
use crate::bench::ratio::{Ratio, is_certain};
use crate::bench::work::{Backend, Point, Route, Scenario};
use dioxide::Durability;
use dioxide_diagnose::words::{counted, nanoseconds, rate};

/// The result of these rows, all of one scenario, block size and durability.
pub fn of(rows: &[Row]) -> String {
    let point = rows[0].point;
    match (point.rate_iops, point.backend, point.scenario) {
        (Some(rate), _, _) => given_load(rows, rate),
        (None, Backend::Sim, _) => own_cost(rows),
        (None, _, Scenario::Append | Scenario::Mixed | Scenario::Log | Scenario::Copy) => {
            by_threads(rows)
        }
        (None, _, Scenario::Sync) => sync_writers(rows),
        (None, _, Scenario::Indirect) => indirect(rows),
        (None, _, Scenario::Files) => files::writes(rows),
        (None, _, Scenario::Checkpoint) => files::checkpoints(rows),
    }
}

/// With an offered load latencies differ, unless a path does not keep up.
fn given_load(rows: &[Row], rate_iops: u64) -> String {
    let subject = subject(rows[0].point);
    let offered = rate(rate_iops as f64);
    let mut text = format!("{subject}, {offered} offered: p99 and p99.9");
    let rows = largest(rows);
    let crews = rows.chunk_by(|one, next| crew(one) == crew(next)).map(|rows| {
        let paths: Vec<String> = rows.iter().map(|row| tail(row, rate_iops)).collect();
        format!(" with {} are {}", crew(rows[0]), paths.join(", "))
    });
    text += &crews.collect::<Vec<_>>().join(";");
    text + "."
}

/// The highest percentiles of a path, and whether it keeps up.
fn tail(row: &Row, rate_iops: u64) -> String {
    let at = |percent| nanoseconds(row.timings.seen().value_at_percentile(percent) as f64);
    let behind = (row.iops() < KEPT_UP * rate_iops as f64)
        .then(|| format!(" (does not keep up: {})", rate(row.iops())));
    format!("{} {} and {}{}", row.route.name(), at(99.0), at(99.9), behind.unwrap_or_default())
}

fn subject(point: Point) -> String {
    let bs = point.sizes;
    match (point.scenario, point.durability) {
        (Scenario::Append, Durability::OnSync) => format!("Appends of {bs}"),
        (Scenario::Append, Durability::EveryWrite) => {
            format!("Appends of {bs}, durable when acknowledged")
        }
        (Scenario::Sync, _) => format!("Sync writes of {bs}"),
        (Scenario::Indirect, _) => format!("Writes of {bs} through indirect blocks"),
        (Scenario::Files, _) => format!("Durable writes of {bs} to {}", files::of(point)),
        (Scenario::Checkpoint, _) => format!("Checkpoints of {}, {bs} in each", files::of(point)),
        (Scenario::Log, _) => format!("Log records of {bs}{}", files::logs(point)),
        (Scenario::Copy, _) => match point.rwmixread {
            Some(0) => "A long file, written".into(),
            Some(100) => "A long file, read".into(),
            _ => "A long file, copied".into(),
        },
        (Scenario::Mixed, durability) => {
            let durable = match durability {
                Durability::OnSync => "",
                Durability::EveryWrite => ", durable when acknowledged",
            };
            format!(
                "Mixed reads and writes of {bs}, {} % reads{durable}",
                point.rwmixread.unwrap_or_default()
            )
        }
    }
}

/// The rates of many threads and of few.
fn by_threads(rows: &[Row]) -> String {
    let mut text = format!("{}:", subject(rows[0].point));
    let dioxide: Vec<&Row> = rows.iter().filter(|row| row.route == Route::Dioxide).collect();
    let (Some(fewest), Some(most)) = (
        dioxide.iter().min_by_key(|row| row.point.numjobs),
        dioxide.iter().max_by_key(|row| row.point.numjobs),
    ) else {
        return text + " nothing was measured.";
    };
    if fewest.point.numjobs < most.point.numjobs {
        text += &scaling(rows, fewest, most);
    }
    text += &comparison(rows, most);
    if fewest.point.numjobs < most.point.numjobs {
        text += &comparison(rows, fewest);
    }
    let has_queue = |row: &&Row| matches!(row.route, Route::Queue { .. } | Route::Tasks { .. });
    let ahead = rows.iter().filter(|row| row.route.is_write_ahead());
    for row in rows.iter().filter(has_queue).chain(ahead) {
        text += &comparison(rows, row);
    }
    text + &growth_stall(rows, most)
}

/// How long growth delayed an append, compared with the slowest append without growth.
fn growth_stall(rows: &[Row], dioxide: &Row) -> String {
    let preallocated =
        rows.iter().find(|row| row.route == Route::Preallocated && row.point == dioxide.point);
    // Packing without dioxide is slow even without growth.
    let preallocated = preallocated.filter(|row| row.point.tail.is_none());
    let Some((stall_ns, other)) = dioxide.growing_clat_max_ns().zip(preallocated) else {
        return String::new();
    };
    let slow_ns = other.timings.seen().value_at_percentile(99.9) as f64;
    let (stall, times) = (nanoseconds(stall_ns), stall_ns / slow_ns);
    format!(
        " The longest append during growth took {stall}, {times:.1}x the p99.9 of a preallocated \
         file."
    )
}

/// How the kernel and dioxide scale with threads.
fn scaling(rows: &[Row], fewest: &Row, most: &Row) -> String {
    let kernel = |row: &Row| {
        rows.iter().find(|other| other.route == Route::Kernel && other.point == row.point)
    };
    let Some((one, many)) = kernel(fewest).zip(kernel(most)) else { return String::new() };
    let Some(ratio) = many.ratio_to(one) else { return String::new() };
    let (few, many) = (threads(fewest.point.numjobs), threads(most.point.numjobs));
    format!(" {many} through the kernel reach {} the rate of {few}.", times(ratio))
}

/// dioxide against its rivals at one number of threads.
fn comparison(rows: &[Row], dioxide: &Row) -> String {
    let phrases = verdicts(rows, dioxide);
    match phrases.is_empty() {
        true => String::new(),
        false => {
            format!(" With {}, {} is {}.", crew(dioxide), dioxide.route.name(), joined(&phrases))
        }
    }
}

/// `one, and two`; `one, two, and three`.
fn joined(phrases: &[String]) -> String {
    match phrases {
        [earlier @ .., last] if !earlier.is_empty() => {
            format!("{}, and {last}", earlier.join(", "))
        }
        _ => phrases.concat(),
    }
}

/// `64 threads`, `one thread with 64 outstanding`, `2 threads with 64 outstanding each`.
pub fn crew(row: &Row) -> String {
    let (count, iodepth) = (row.point.threads(row.route), row.route.iodepth());
    let outstanding = match (row.route, count) {
        (Route::Queue { .. }, 1) => format!(" with {iodepth} outstanding"),
        (Route::Queue { .. }, _) => format!(" with {iodepth} outstanding each"),
        (Route::Uring { .. }, _) => format!(" with {iodepth} outstanding"),
        (Route::Tasks { .. } | Route::GatheredTasks { .. } | Route::WriteAheadTasks { .. }, _) => {
            format!(" with {}", counted(iodepth as u64, "task"))
        }
        (Route::Syncfs { .. } | Route::BufferedBatch { .. } | Route::WriteAheadBatch { .. }, _)
            if iodepth > 1 =>
        {
            format!(" in batches of {iodepth}")
        }
        _ => String::new(),
    };
    threads(count) + &outstanding
}

/// The cost of dioxide itself, on storage that takes no time.
fn own_cost(rows: &[Row]) -> String {
    let cost = |row: &Row| {
        let ns = row.median(|run| run.cpu_us_per_op) * 1e3;
        format!(" {ns:.0} ns through {} with {}", row.route.name(), crew(row))
    };
    let costs: Vec<String> = rows.iter().map(cost).collect();
    format!(
        "{} that keep nothing: CPU time for each is{}.",
        subject(rows[0].point),
        costs.join(",")
    )
}

/// dioxide against each of its rivals.
fn verdicts(rows: &[Row], dioxide: &Row) -> Vec<String> {
    let scenario = dioxide.point.scenario;
    let against = |route| Some(verdict(rival(rows, dioxide, route)?, rival_name(scenario, route)));
    rivals(rows).into_iter().filter_map(against).collect()
}

fn rival_name(scenario: Scenario, route: Route) -> &'static str {
    match (route, scenario) {
        (Route::Kernel, Scenario::Indirect) => "the loop mount",
        (Route::Kernel, Scenario::Log) => "an fdatasync for each record",
        (Route::Kernel, Scenario::Checkpoint) => "the kernel's threads",
        (Route::Kernel, Scenario::Copy) => "the page cache",
        (Route::Kernel, _) => "the kernel",
        (Route::OneThread, Scenario::Copy) => "one direct request at a time",
        (Route::Unsynced, _) => "the page cache without a flush",
        (Route::Buffered, _) => "the page cache with a flush for each write",
        (Route::OneThread, Scenario::Checkpoint) => "one fdatasync after the other",
        (Route::OneThread, _) => "one thread",
        (Route::Uring { .. }, _) => "the kernel's io_uring",
        (Route::Preallocated, _) => "a preallocated file",
        (Route::BufferedGroup, _) => "a buffered group commit",
        (Route::BufferedBatch { .. }, _) => "buffered batches",
        (Route::GatheredTasks { .. }, _) => "a gathering thread",
        (Route::Mutex, _) => "a flush for each record",
        (Route::Serialised, Scenario::Indirect) => "one request for each block",
        (Route::Serialised, Scenario::Mixed) => "the kernel with a shared count",
        (Route::Serialised, _) => "flushing under a lock",
        (other, _) => other.name(),
    }
}

fn sync_writers(rows: &[Row]) -> String {
    let last = rows.iter().rfind(|row| row.route == Route::Dioxide);
    let Some(dioxide) = last else { return "Sync writers: nothing was measured.".into() };
    let (numjobs, bs) = (dioxide.point.numjobs, dioxide.point.sizes);
    let rates: Vec<String> =
        rows.iter().filter(|row| row.point == dioxide.point).map(rate_of_sync_writers).collect();
    let mut text =
        format!("Sync writers, {} of {bs} each: {}.", threads(numjobs), rates.join(", "));
    for row in rows.iter().filter(|row| row.point == dioxide.point && row.route.is_dioxide()) {
        text += &format!(" {} is {}.", row.route.name(), verdicts(rows, row).join(", and "));
    }
    text
}

fn rate_of_sync_writers(row: &Row) -> String {
    let name = match row.route {
        Route::Kernel => "the kernel",
        other => rival_name(row.point.scenario, other),
    };
    format!("{name} {:.0} MiB/s", row.bw_bytes() / 1_048_576.0)
}

/// The cost of a write on each path, and the savings of dioxide.
fn indirect(rows: &[Row]) -> String {
    let needs = rows.iter().map(|row| {
        let requests = row.median_per_op(|run| run.requests).unwrap_or_default();
        let (name, seconds) = (
            rival_name(row.point.scenario, row.route),
            row.median(|run| run.elapsed.as_secs_f64()),
        );
        format!("{name} {seconds:.2} s with {requests:.1} requests each")
    });
    let mut text = format!("{}: {}.", subject(rows[0].point), needs.collect::<Vec<_>>().join(", "));
    let Some(dioxide) = rows.iter().find(|row| row.route == Route::Dioxide) else { return text };
    let verdicts = verdicts(rows, dioxide);
    if !verdicts.is_empty() {
        text += &format!(" dioxide is {}.", verdicts.join(", and "));
    }
    let serialised = rows.iter().find(|row| row.route == Route::Serialised);
    if let Some(ratio) =
        serialised.and_then(|row| dioxide.ratio_of(row, |run| Some(run.cpu_us_per_mib)))
    {
        text += &format!(
            " Its CPU time for each MiB is {} that of one request for each block.",
            times(ratio)
        );
    }
    text
}

/// A path that reaches this part of the offered load keeps up: the clock includes the final flush
/// or close.
const KEPT_UP: f64 = 0.95;
/// Closer rates count as equal. All rounds of equal paths often agree by chance: one in 16 times
/// with 5 rounds.
const LEVEL: std::ops::RangeInclusive<f64> = 0.9..=1.1;

/// `22x (20..24) as fast as the kernel`; states losses and uncertainty as such.
fn verdict(ratio: Ratio, rival: &str) -> String {
    let times = times(ratio);
    if !is_certain(ratio.rounds) {
        format!("at {times} the rate of {rival}")
    } else if LEVEL.contains(&ratio.median) {
        format!("level with {rival} at {times} its rate")
    } else if ratio.min > 1.0 {
        format!("{times} as fast as {rival}")
    } else if ratio.max < 1.0 {
        format!("slower than {rival} at {times} its rate")
    } else {
        let trend = if ratio.median > 1.0 { "faster" } else { "slower" };
        format!("perhaps {trend} than {rival} at {times} its rate (the rounds disagree)")
    }
}

/// `1.70x (1.52..1.81)`, or `22x (20..24)` where further digits are meaningless;
/// `about 1.70x (3 rounds)` with too few rounds for a range.
pub fn times(ratio: Ratio) -> String {
    let Ratio { min, median, max, rounds } = ratio;
    let digits = if min < 10.0 { 2 } else { 0 };
    if !is_certain(rounds) {
        format!("about {median:.digits$}x ({})", counted(rounds as u64, "round"))
    } else if min == max {
        format!("{median:.digits$}x")
    } else {
        format!("{median:.digits$}x ({min:.digits$}..{max:.digits$})")
    }
}

fn threads(count: usize) -> String {
    if count == 1 { "one thread".into() } else { format!("{count} threads") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::figures::examples::{
        append_point, indirect_point, mixed_point, row, sync_point,
    };
    use crate::bench::growing::Growing;
    use std::time::Duration;

    /// Five rounds. `slowest` and `fastest` are dioxide's with 64 threads; the others are between
    /// them.
    fn appends_with(slowest: u64, fastest: u64) -> Vec<Row> {
        let middle = (slowest + fastest) / 2;
        vec![
            row(append_point(1), Route::Kernel, &[100; 5]),
            row(append_point(1), Route::Preallocated, &[100; 5]),
            row(append_point(1), Route::Dioxide, &[95, 100, 100, 100, 105]),
            row(append_point(64), Route::Kernel, &[50; 5]),
            row(append_point(64), Route::Preallocated, &[600; 5]),
            row(append_point(64), Route::Dioxide, &[slowest, middle, middle, middle, fastest]),
        ]
    }

    #[test]
    fn faster() {
        assert_eq!(
            of(&appends_with(1000, 1200)),
            "Appends of 4 KiB: 64 threads through the kernel reach 0.50x the rate of one thread. \
             With 64 threads, dioxide is 22x (20..24) as fast as the kernel, and 1.83x \
             (1.67..2.00) as fast as a preallocated file. With one thread, dioxide is level with \
             the kernel at 1.00x (0.95..1.05) its rate, and level with a preallocated file at \
             1.00x (0.95..1.05) its rate."
        );
    }

    #[test]
    fn slower_is_said_too() {
        let text = of(&appends_with(400, 500));
        assert!(
            text.contains("slower than a preallocated file at 0.75x (0.67..0.83) its rate"),
            "{text}"
        );
    }

    #[test]
    fn doubt_is_said_too() {
        let text = of(&appends_with(300, 660));
        assert!(
            text.contains("perhaps slower than a preallocated file at 0.80x (0.50..1.10)"),
            "{text}"
        );
    }

    #[test]
    fn few_rounds_are_no_certainty() {
        let mut rows = appends_with(1000, 1200);
        rows.iter_mut().for_each(|row| row.runs.truncate(3));
        assert_eq!(
            of(&rows),
            "Appends of 4 KiB: 64 threads through the kernel reach about 0.50x (3 rounds) the rate \
             of one thread. With 64 threads, dioxide is at about 22x (3 rounds) the rate of the \
             kernel, and at about 1.83x (3 rounds) the rate of a preallocated file. With one \
             thread, dioxide is at about 1.00x (3 rounds) the rate of the kernel, and at about \
             1.00x (3 rounds) the rate of a preallocated file."
        );
    }

    #[test]
    fn digits_follow_the_smallest() {
        let ratio = |min, median, max| times(Ratio { min, median, max, rounds: 9 });
        assert_eq!(ratio(8.5, 12.25, 15.0), "12.25x (8.50..15.00)");
        assert_eq!(ratio(10.4, 12.25, 15.0), "12x (10..15)");
        assert_eq!(
            times(Ratio { min: 1.0, median: 1.0, max: 1.0, rounds: 1 }),
            "about 1.00x (1 round)"
        );
    }

    #[test]
    fn the_longest_append_during_growth() {
        let mut rows = appends_with(1000, 1000);
        let clat_max = Duration::from_millis(5);
        rows[5].runs[1].growing = Some(Growing { growths: 12, clat_max });
        let text = of(&rows);
        let expected =
            "The longest append during growth took 5.00 ms, 5.0x the p99.9 of a preallocated file.";
        assert!(text.ends_with(expected), "{text}");
    }

    #[test]
    fn a_given_load_is_about_latency() {
        let point = Point { rate_iops: Some(100), ..append_point(8) };
        let rows = [row(point, Route::Kernel, &[60]), row(point, Route::Dioxide, &[99])];
        assert_eq!(
            of(&rows),
            "Appends of 4 KiB, 100/s offered: p99 and p99.9 with 8 threads are kernel 990.2 us and \
             1.00 ms (does not keep up: 60/s), dioxide 990.2 us and 1.00 ms."
        );
    }

    /// The defect D8: beside a queue of 64, the sentence was about 64 threads.
    #[test]
    fn a_given_load_is_only_about_what_ran() {
        let point = |numjobs| Point { rate_iops: Some(20_000), ..append_point(numjobs) };
        let rows = [
            row(point(16), Route::Kernel, &[20_000]),
            row(point(16), Route::Dioxide, &[20_000]),
            row(point(64), Route::Queue { iodepth: 64 }, &[20_000]),
        ];
        assert_eq!(
            of(&rows),
            "Appends of 4 KiB, 20.0k/s offered: p99 and p99.9 with 16 threads are kernel 990.2 us \
             and 1.00 ms, dioxide 990.2 us and 1.00 ms; with one thread with 64 outstanding are \
             dioxide-queue 990.2 us and 1.00 ms."
        );
        assert_eq!(largest(&rows).len(), 3, "the plot of latencies has all paths");
    }

    #[test]
    fn one_number_of_threads_has_no_scaling() {
        let rows = appends_with(1000, 1000).split_off(3);
        assert_eq!(
            of(&rows),
            "Appends of 4 KiB: With 64 threads, dioxide is 20x as fast as the kernel, and 1.67x as \
             fast as a preallocated file."
        );
    }

    #[test]
    fn mixed() {
        let rows = vec![
            row(mixed_point(1), Route::Kernel, &[100; 5]),
            row(mixed_point(2), Route::Serialised, &[100; 5]),
            row(mixed_point(2), Route::Kernel, &[200; 5]),
            row(mixed_point(1), Route::Dioxide, &[120; 5]),
            row(mixed_point(2), Route::Dioxide, &[200; 5]),
        ];
        assert_eq!(
            of(&rows),
            "Mixed reads and writes of 4 KiB, 70 % reads: 2 threads through the kernel reach 2.00x \
             the rate of one thread. With 2 threads, dioxide is level with the kernel at 1.00x its \
             rate, and 2.00x as fast as the kernel with a shared count. With one thread, dioxide \
             is 1.20x as fast as the kernel."
        );
    }

    #[test]
    fn durable_writes_of_parts_of_blocks() {
        let durability = Durability::EveryWrite;
        let point = Point { durability, rwmixread: Some(0), ..mixed_point(16) };
        let rows = [
            row(point, Route::Buffered, &[100; 5]),
            row(point, Route::Kernel, &[200; 5]),
            row(point, Route::Dioxide, &[300; 5]),
        ];
        assert_eq!(
            of(&rows),
            "Mixed reads and writes of 4 KiB, 0 % reads, durable when acknowledged: With 16 \
             threads, dioxide is 1.50x as fast as the kernel, and 3.00x as fast as the page cache \
             with a flush for each write."
        );
    }

    #[test]
    fn through_indirect_blocks() {
        let mut rows = [
            row(indirect_point(), Route::Serialised, &[100; 5]),
            row(indirect_point(), Route::Kernel, &[400; 5]),
            row(indirect_point(), Route::Dioxide, &[400; 5]),
        ];
        rows[0].runs.iter_mut().for_each(|run| run.requests = Some(1024.0 * run.ops as f64));
        rows[2].runs.iter_mut().for_each(|run| run.requests = Some(run.ops as f64));
        assert_eq!(
            of(&rows),
            "Writes of 4 MiB through indirect blocks: one request for each block 1.00 s with \
             1024.0 requests each, the loop mount 1.00 s with 2.0 requests each, dioxide 1.00 s \
             with 1.0 requests each. dioxide is level with the loop mount at 1.00x its rate, and \
             4.00x as fast as one request for each block. Its CPU time for each MiB is 0.25x that \
             of one request for each block."
        );
        let alone = [row(indirect_point(), Route::Dioxide, &[400; 5])];
        assert!(of(&alone).ends_with("1.00 s with 2.0 requests each."), "{}", of(&alone));
    }

    #[test]
    fn queues() {
        let mut rows = appends_with(1000, 1000).split_off(3);
        rows.push(row(append_point(64), Route::Queue { iodepth: 64 }, &[1500; 5]));
        assert!(
            of(&rows).ends_with(
                "a preallocated file. With one thread with 64 outstanding, dioxide-queue is 30x as \
                 fast as the kernel, and 2.50x as fast as a preallocated file."
            ),
            "{}",
            of(&rows)
        );
    }

    /// A queue with 64 operations outstanding was compared with a thread that had one.
    #[test]
    fn mixed_queues_were_compared_with_fewer_operations() {
        let mut rows = vec![
            row(mixed_point(2), Route::Kernel, &[200; 5]),
            row(mixed_point(2), Route::Dioxide, &[200; 5]),
            row(mixed_point(2), Route::Queue { iodepth: 8 }, &[300; 5]),
        ];
        assert!(!of(&rows).contains("dioxide-queue"), "{}", of(&rows));
        rows.insert(0, row(mixed_point(16), Route::Kernel, &[250; 5]));
        assert!(
            of(&rows).ends_with(
                " With 2 threads with 8 outstanding each, dioxide-queue is 1.20x as fast as the \
                 kernel."
            ),
            "{}",
            of(&rows)
        );
    }

    #[test]
    fn own_costs() {
        let point = Point { backend: Backend::Sim, ..append_point(64) };
        let rows = [
            row(point, Route::Dioxide, &[2_000_000]),
            row(point, Route::Queue { iodepth: 64 }, &[4_000_000]),
        ];
        assert_eq!(
            of(&rows),
            "Appends of 4 KiB that keep nothing: CPU time for each is 300 ns through dioxide with \
             64 threads, 150 ns through dioxide-queue with one thread with 64 outstanding."
        );
    }

    #[test]
    fn sync() {
        let rows = vec![
            row(sync_point(), Route::Serialised, &[1000; 5]),
            row(sync_point(), Route::Kernel, &[5000; 5]),
            row(sync_point(), Route::Dioxide, &[6000; 5]),
        ];
        assert_eq!(
            of(&rows),
            "Sync writers, 64 threads of 64 KiB each: flushing under a lock 62 MiB/s, the kernel \
             312 MiB/s, dioxide 375 MiB/s. dioxide is 1.20x as fast as the kernel, and \
             6.00x as fast as flushing under a lock."
        );
    }
}
