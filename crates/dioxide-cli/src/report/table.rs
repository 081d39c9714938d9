//! The results as tables: one for each scenario, block size and durability.

use super::grid::Grid;
use super::{Report, rival, rivals};
use crate::bench::figures::Row;
use crate::bench::ratio::Ratio;
use crate::bench::work::{
    Backend, Point, Scenario, durability_name, growth_name, space_name, tail_name,
};
use crate::meter::vmstat::Shares;
use dioxide::Durability;
use dioxide_diagnose::words::{counted, nanoseconds, rate, short};

/// Growth may occur anywhere in a run: with fewer growths, their number is chance.
const GROWTHS_MIN: u64 = 10;

/// The title of the table of these rows.
pub fn title(report: &Report, rows: &[Row]) -> String {
    let point = rows[0].point;
    let (scenario, bs) = (scenario(point.scenario), point.sizes);
    format!("{scenario}: bs={bs} {}", conditions(report, rows))
}

pub fn scenario(scenario: Scenario) -> &'static str {
    match scenario {
        Scenario::Append => "Appends",
        Scenario::Sync => "Sync writers",
        Scenario::Mixed => "Mixed reads and writes",
        Scenario::Indirect => "Writes through indirect blocks",
        Scenario::Files => "Durable writes to files",
        Scenario::Checkpoint => "Checkpoints",
        Scenario::Log => "Durable log records",
        Scenario::Copy => "Streams",
    }
}

/// The common settings of these rows besides the block size, and remarks.
pub fn conditions(report: &Report, rows: &[Row]) -> String {
    let point = rows[0].point;
    let growth = point.growth.map(|growth| format!(", growth {}", growth_name(growth)));
    let tail = rows
        .iter()
        .find_map(|row| row.point.tail)
        .map(|tail| format!(", tail {}", tail_name(tail)));
    let reads = point.rwmixread.map(|percent| match (point.scenario, percent) {
        (Scenario::Copy, 0) => ", written".into(),
        (Scenario::Copy, 100) => ", read".into(),
        (Scenario::Copy, _) => ", copied".into(),
        _ => format!(", {percent} % reads"),
    });
    let files = point.files.map(|files| format!(", {}", counted(files as u64, "file")));
    let space = point.space.map(|space| format!(", {} space", space_name(space)));
    let rate = point
        .rate_iops
        .map(|iops| format!(", {} offered (lat counts from when each was due)", rate(iops as f64)));
    let length = match point.scenario {
        Scenario::Indirect => counted(rows[0].median(|run| run.ops as f64) as u64, "write"),
        // Only a part of the time is timed.
        Scenario::Checkpoint => seconds(rows[0].asked.runtime_ms.unwrap_or(0) as f64 / 1e3),
        _ => seconds(rows[0].median(|run| run.elapsed.as_secs_f64())),
    };
    format!(
        "{}{}, {}; {} of {length}{}",
        durability_name(point.durability),
        [growth, tail, reads, files, space, rate].into_iter().flatten().collect::<String>(),
        place(report, point),
        rounds(rows[0].runs.len()),
        remarks(rows),
    )
}

/// One round has no median.
fn rounds(count: usize) -> String {
    let rounds = counted(count as u64, "round");
    if count == 1 { rounds } else { format!("medians of {rounds}") }
}

/// `ext4 on loop0`, `btrfs`, `/dev/loop5`, `an image on ext4 on loop0`.
pub fn place(report: &Report, point: Point) -> String {
    let Some(fs) = &report.fs else { return report.machine.target.clone() };
    let device = report.machine.device.as_ref().map(|device| format!(" on {device}"));
    let remark = fs.remark.map(|remark| format!(" ({remark})"));
    let image = if point.scenario == Scenario::Indirect { "an image on " } else { "" };
    format!("{image}{}{}{}", fs.name, device.unwrap_or_default(), remark.unwrap_or_default())
}

fn remarks(rows: &[Row]) -> String {
    let mut runs = rows.iter().flat_map(|row| &row.runs);
    let is_cut_short = runs.clone().any(|run| run.is_cut_short);
    let grows_little =
        runs.any(|run| run.growing.is_some_and(|growing| growing.growths < GROWTHS_MIN));
    let mut text = String::new();
    if is_cut_short {
        let point = rows[0].point;
        let file = if point.files.is_some() { "files" } else { "file" };
        text += &format!(
            "; some runs filled their {file} and ended early (see bench {} --size)",
            point.scenario.name()
        );
    }
    if grows_little {
        text += "; dioxide grew less than ten times in some runs, so `max growing` is partly \
            chance (see bench append --runtime, --growth-cap)";
    }
    text
}

/// The header of a column, and its text for a row.
type Column = (&'static str, fn(&Row) -> String);

const NAMES: [Column; 3] = [
    (NUMJOBS, |row| row.point.threads(row.route).to_string()),
    (PATH, |row| row.route.name().to_owned()),
    (IODEPTH, |row| row.route.iodepth().to_string()),
];
const NUMJOBS: &str = "numjobs";
const PATH: &str = "path";
const IODEPTH: &str = "iodepth";
const IOPS: Column = ("iops", |row| short(row.iops()));
/// For mixed operations.
const DIRECTIONS: [Column; 2] = [
    ("read iops", |row| short(row.median(|run| run.read_iops))),
    ("write iops", |row| short(row.median(|run| run.write_iops))),
];
const BANDWIDTH: Column = ("MiB/s", |row| format!("{:.1}", row.bw_bytes() / MIB));
const MIB: f64 = 1_048_576.0;
/// The load of the device.
const IN_FLIGHT: Column = ("in flight", |row| known(row.median_known(|run| run.inflight), 1));
/// As in vmstat.
const MACHINE: [Column; 6] = [
    ("blocked", |row| known(row.median_known(|run| run.blocked), 1)),
    ("us", |row| share(row, |cpu| cpu.usr)),
    ("sy", |row| share(row, |cpu| cpu.sys)),
    ("id", |row| share(row, |cpu| cpu.idle)),
    ("wa", |row| share(row, |cpu| cpu.wait)),
    ("st", |row| share(row, |cpu| cpu.steal)),
];
const LATENCIES: [Column; 4] = [
    (CLAT, |row| percentile(row, 50.0)),
    ("p99", |row| percentile(row, 99.0)),
    ("p99.9", |row| percentile(row, 99.9)),
    ("max", |row| percentile(row, 100.0)),
];
const GROWTH: [Column; 2] = [
    ("max growing", |row| known_time(row.growing_clat_max_ns())),
    ("growths", |row| known(row.growths(), 0)),
];
/// Of this process; other columns have those of the machine.
const CPU: [Column; 2] = [
    ("usr %", |row| format!("{:.0}", row.median(|run| run.usr_cpu))),
    ("sys %", |row| format!("{:.0}", row.median(|run| run.sys_cpu))),
];
const CPU_PER_OP: Column =
    ("cpu us/op", |row| format!("{:.1}", row.median(|run| run.cpu_us_per_op)));
/// For storage that takes no time, which leaves only this cost.
const CPU_NS_PER_OP: Column =
    ("cpu ns/op", |row| format!("{:.0}", row.median(|run| run.cpu_us_per_op) * 1e3));
/// All columns of a scenario with one thread per path.
const INDIRECT: [Column; 11] = [
    (PATH, |row| row.route.name().to_owned()),
    ("I/O s", |row| format!("{:.3}", row.median(|run| run.elapsed.as_secs_f64()))),
    BANDWIDTH,
    CPU[0],
    CPU[1],
    MACHINE[1],
    MACHINE[2],
    ("mem %", |row| known(row.median_known(|run| Some(run.memory?.used_percent)), 1)),
    ("rss MiB", |row| known(row.median_known(|run| Some(run.memory?.rss_bytes as f64 / MIB)), 1)),
    ("cpu us/MiB", |row| format!("{:.1}", row.median(|run| run.cpu_us_per_mib))),
    ("machine us/MiB", |row| known(row.median_known(|run| run.machine_cpu_us_per_mib), 0)),
];
/// Of streams.
const COPY: [Column; 2] = [INDIRECT[9], REQUESTS_PER_MIB];
const REQUESTS_PER_MIB: Column =
    ("requests/MiB", |row| known(row.median_per_op(|run| run.requests), 2));
const REQUESTS_PER_WRITE: Column =
    ("requests/write", |row| known(row.median_per_op(|run| run.requests), 2));
/// Of writes.
const COSTS: [Column; 2] = [
    ("requests/op", |row| known(row.median_per_op(|run| run.requests), 3)),
    ("flushes/op", |row| known(row.median_per_op(|run| run.flushes), 3)),
];
const EXTENTS: [Column; 1] = [("extents", |row| known(row.median_known(|run| run.extents), 0))];
/// With an offered load, latencies are not of calls alone.
const CLAT: &str = "clat p50";
const LAT: &str = "lat p50";

fn columns(point: Point) -> Vec<Column> {
    match (point.backend, point.scenario) {
        (Backend::Sim, _) => [&NAMES[..], &[IOPS], &LATENCIES, &CPU, &[CPU_NS_PER_OP]].concat(),
        (_, Scenario::Append) => {
            let rates: &[Column] = if point.tail.is_some() { &[IOPS, BANDWIDTH] } else { &[IOPS] };
            [&NAMES[..], rates, &LATENCIES, &GROWTH, &CPU, &[CPU_PER_OP], &COSTS, &EXTENTS].concat()
        }
        (_, Scenario::Sync) => {
            [&NAMES[..], &[BANDWIDTH, IN_FLIGHT], &MACHINE, &LATENCIES, &[CPU_PER_OP], &COSTS]
                .concat()
        }
        (_, Scenario::Mixed) => {
            let costs: &[Column] =
                if point.durability == Durability::EveryWrite { &COSTS } else { &[] };
            [&NAMES[..], &[IOPS], &DIRECTIONS, &LATENCIES, &[IN_FLIGHT], &CPU, &[CPU_PER_OP], costs]
                .concat()
        }
        (_, Scenario::Indirect) => [&INDIRECT[..], &[REQUESTS_PER_WRITE]].concat(),
        (_, Scenario::Files) => [&NAMES[..], &[IOPS], &LATENCIES, &[CPU_PER_OP], &COSTS].concat(),
        (_, Scenario::Log) => {
            [&NAMES[..], &[IOPS, BANDWIDTH], &LATENCIES, &CPU, &[CPU_PER_OP], &COSTS].concat()
        }
        (_, Scenario::Checkpoint) => [&NAMES[..2], &[IOPS], &LATENCIES, &COSTS].concat(),
        (_, Scenario::Copy) => [&NAMES[1..2], &[BANDWIDTH], &LATENCIES, &CPU, &COPY[..]].concat(),
    }
}

/// The columns that a narrow terminal shows, the most important first. Later come the others.
const IMPORTANT: [&str; 23] = [
    "x kernel",
    "x syncfs",
    "p99",
    CLAT,
    LAT,
    "x preallocated",
    "x buffered-group",
    "x buffered-batch",
    "x gathered-tasks",
    "x mutex",
    "x buffered",
    "x serialised",
    "x dioxide",
    "x kernel-uring",
    "x one-thread",
    "read iops",
    "write iops",
    "requests/write",
    "cpu us/op",
    "cpu us/MiB",
    "p99.9",
    "flushes/op",
    "in flight",
];

/// The table of these rows.
pub fn of(rows: &[Row]) -> Grid {
    let point = rows[0].point;
    let (columns, rivals) = (columns(point), rivals(rows));
    let name = |name| if name == CLAT && point.rate_iops.is_some() { LAT } else { name };
    let names = columns.iter().map(|&(column, _)| name(column).to_owned());
    let ratios = rivals.iter().map(|rival| format!("x {}", rival.name()));
    let cells = |row: &Row| {
        let cells = columns.iter().map(|(_, cell)| cell(row));
        cells.chain(rivals.iter().map(|route| ratio(rival(rows, row, *route)))).collect()
    };
    let path = columns.iter().position(|(name, _)| *name == PATH);
    let names: Vec<String> = names.chain(ratios).collect();
    let optional = optional(rows, &names);
    Grid::new(names, rows.iter().map(cells).collect(), |column| Some(column) != path)
        .with_optional(optional)
}

/// All but the names of the row and its rate. A depth that is always 1 is no name.
fn optional(rows: &[Row], names: &[String]) -> Vec<usize> {
    let has_queue = rows.iter().any(|row| row.route.iodepth() > 1);
    let is_necessary = |name: &str| {
        [PATH, NUMJOBS, IOPS.0, BANDWIDTH.0, INDIRECT[1].0].contains(&name)
            || (name == IODEPTH && has_queue)
    };
    let rank = |column: &usize| {
        IMPORTANT.iter().position(|name| *name == names[*column]).unwrap_or(IMPORTANT.len())
    };
    let mut optional: Vec<usize> =
        (0..names.len()).filter(|column| !is_necessary(&names[*column])).collect();
    optional.sort_by_key(rank);
    optional
}

/// Unknown if no operation lies above it.
fn percentile(row: &Row, percent: f64) -> String {
    let seen = row.timings.seen();
    let above = seen.len() as f64 * (100.0 - percent) / 100.0;
    let is_known = percent == 100.0 || above > 0.999;
    known_time(is_known.then(|| seen.value_at_percentile(percent) as f64))
}

fn known_time(ns: Option<f64>) -> String {
    ns.map_or("-".into(), nanoseconds)
}

fn share(row: &Row, of: fn(&Shares) -> f64) -> String {
    known(row.machine().as_ref().map(of), 0)
}

fn known(count: Option<f64>, digits: usize) -> String {
    count.map_or("-".into(), |count| format!("{count:.digits$}"))
}

/// A ratio, if there is one.
pub fn ratio(ratio: Option<Ratio>) -> String {
    ratio.map_or("-".into(), |ratio| ratio.to_string())
}

/// To a tenth, or in milliseconds.
fn seconds(seconds: f64) -> String {
    if seconds < 0.1 { format!("{:.0} ms", seconds * 1e3) } else { format!("{seconds:.1} s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_rounds_are_in_milliseconds() {
        assert_eq!([0.02, 0.1, 2.04].map(seconds), ["20 ms", "0.1 s", "2.0 s"]);
    }
    use crate::bench::figures::examples::{
        append_point, checkpoint_point, files_point, indirect_point, mixed_point, row, sync_point,
    };
    use crate::bench::growing::Growing;
    use crate::bench::work::{Route, Space};
    use crate::meter::filesystem::FileSystem;
    use crate::meter::machine::Machine;
    use std::time::Duration;

    fn title_of(rows: Vec<Row>) -> String {
        let machine = Machine::describe("/somewhere".into(), None);
        let report = Report {
            label: None,
            machine,
            fs: Some(FileSystem { name: "ext4".into(), remark: None }),
            rows,
        };
        title(&report, &report.rows)
    }

    #[test]
    fn a_table_shows_rates_and_ratios() {
        let rows = vec![
            row(append_point(64), Route::Kernel, &[100]),
            row(append_point(64), Route::Preallocated, &[200]),
            row(append_point(64), Route::Dioxide, &[300]),
        ];
        let text = of(&rows).to_string();
        let dioxide = text.lines().last().unwrap();
        assert!(dioxide.contains("dioxide") && dioxide.contains("3.00 (3.00..3.00)"), "{text}");
        assert!(dioxide.contains("1.50 (1.50..1.50)"), "{text}");
    }

    #[test]
    fn a_title_tells_the_conditions() {
        assert_eq!(
            title_of(vec![row(append_point(64), Route::Kernel, &[100])]),
            "Appends: bs=4 KiB on-sync, growth unwritten, ext4; 1 round of 1.0 s"
        );
        let fast = row(append_point(64), Route::Kernel, &[200_000]);
        assert!(
            title_of(vec![fast])
                .ends_with("some runs filled their file and ended early (see bench append --size)")
        );
    }

    #[test]
    fn a_title_tells_a_remarkable_file_system_and_a_given_load() {
        let machine = Machine::describe("/somewhere".into(), None);
        let fs = Some(FileSystem { name: "ext3".into(), remark: Some("without extents") });
        let point = Point { rate_iops: Some(5000), ..append_point(1) };
        let report =
            Report { label: None, machine, fs, rows: vec![row(point, Route::Kernel, &[100])] };
        assert_eq!(
            title(&report, &report.rows),
            "Appends: bs=4 KiB on-sync, growth unwritten, 5000/s offered (lat counts from when \
             each was due), ext3 (without extents); 1 round of 1.0 s"
        );
        let text = of(&report.rows).to_string();
        assert!(text.contains("lat p50") && !text.contains("clat"));
    }

    #[test]
    fn too_little_growth_is_said() {
        let grown = |growths| {
            let mut row = row(append_point(1), Route::Dioxide, &[100]);
            row.runs[0].growing = Some(Growing { growths, clat_max: Duration::from_millis(4) });
            row
        };
        assert!(title_of(vec![grown(9)]).contains("grew less than ten times in some runs"));
        assert!(!title_of(vec![grown(10)]).contains("grew"));
        assert!(of(&[grown(10)]).to_string().contains("4.00 ms"));
    }

    #[test]
    fn one_queue_is_one_thread() {
        let queue = Route::Queue { iodepth: 64 };
        let text = of(&[
            row(append_point(64), Route::Kernel, &[100]),
            row(append_point(64), queue, &[300]),
        ])
        .to_string();
        let words: Vec<&str> = text.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(words[..4], ["1", "dioxide-queue", "64", "300"], "{text}");
        assert_eq!(words[words.len() - 3..], ["-", "3.00", "(3.00..3.00)"], "{text}");
    }

    #[test]
    fn what_the_engine_costs_is_in_nanoseconds() {
        let point = Point { backend: Backend::Sim, ..append_point(1) };
        let rows = [
            row(point, Route::Dioxide, &[2_000_000]),
            row(point, Route::Queue { iodepth: 1 }, &[4_000_000]),
        ];
        let text = of(&rows).to_string();
        let words =
            |line: usize| text.lines().nth(line).unwrap().split_whitespace().collect::<Vec<_>>();
        assert!(text.contains("cpu ns/op") && !text.contains("requests"), "{text}");
        assert!(words(1).contains(&"300") && words(2).contains(&"150"), "{text}");
        assert!(text.contains("x dioxide") && text.contains("2.00 (2.00..2.00)"), "{text}");
    }

    #[test]
    fn a_mix_shows_both_directions() {
        let rows = vec![
            row(mixed_point(2), Route::Serialised, &[100]),
            row(mixed_point(2), Route::Kernel, &[200]),
        ];
        let text = of(&rows).to_string();
        let words: Vec<&str> = text.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(words[..6], ["2", "kernel", "1", "200", "140", "60"], "{text}");
        assert_eq!(words[words.len() - 2..], ["2.00", "(2.00..2.00)"], "{text}");
        assert!(
            title_of(rows)
                .starts_with("Mixed reads and writes: bs=4 KiB on-sync, 70 % reads, ext4;")
        );
    }

    #[test]
    fn indirect_blocks_have_the_columns_of_the_seed() {
        let rows = vec![
            row(indirect_point(), Route::Serialised, &[100]),
            row(indirect_point(), Route::Dioxide, &[300]),
        ];
        let text = of(&rows).to_string();
        let words = text.lines().last().unwrap().split_whitespace().collect::<Vec<_>>();
        let figures = [
            "dioxide", "1.000", "1200.0", "10", "50", "5", "25", "21.5", "9.0", "500000.0",
            "1000000",
        ];
        assert_eq!(words[..11], figures, "{text}");
        assert_eq!(words[11..], ["2.00", "3.00", "(3.00..3.00)"], "{text}");
        assert_eq!(
            title_of(rows),
            "Writes through indirect blocks: bs=4 MiB on-sync, an image on ext4; 1 round of 100 \
             writes"
        );
    }

    #[test]
    fn many_files_show_all_rivals() {
        let point = files_point(1024, 64);
        let rows = vec![
            row(point, Route::OneThread, &[100]),
            row(point, Route::Kernel, &[200]),
            row(point, Route::Uring { iodepth: 64 }, &[300]),
            row(point, Route::Syncfs { iodepth: 64 }, &[600]),
            row(point, Route::Dioxide, &[1200]),
        ];
        let text = of(&rows).to_string();
        let words =
            |line: usize| text.lines().nth(line).unwrap().split_whitespace().collect::<Vec<_>>();
        assert!(words(0).ends_with(&[
            "x",
            "one-thread",
            "x",
            "kernel",
            "x",
            "kernel-uring",
            "x",
            "syncfs"
        ]));
        assert_eq!(words(4)[..4], ["1", "syncfs", "64", "600"], "{text}");
        let ratios = "12.00 (12.00..12.00) 6.00 (6.00..6.00) 4.00 (4.00..4.00) 2.00 (2.00..2.00)";
        assert!(words(5).join(" ").ends_with(ratios), "{text}");
        assert_eq!(
            title_of(rows),
            "Durable writes to files: bs=4 KiB every-write, 1024 files, written space, ext4; 1 \
             round of 1.0 s"
        );
    }

    #[test]
    fn checkpoints_show_no_cpu_time() {
        let point = Point { space: Some(Space::Unwritten), ..checkpoint_point(1) };
        let mut rows =
            vec![row(point, Route::Kernel, &[200_000]), row(point, Route::Dioxide, &[400_000])];
        let text = of(&rows).to_string();
        assert!(!text.contains("cpu") && !text.contains("iodepth"), "{text}");
        assert!(text.contains("flushes/op") && text.contains("2.00 (2.00..2.00)"), "{text}");
        rows[0].asked.runtime_ms = Some(2000);
        assert_eq!(
            title_of(rows),
            "Checkpoints: bs=4 KiB on-sync, 1 file, unwritten space, ext4; 1 round of 2.0 s; some \
             runs filled their files and ended early (see bench checkpoint --size)"
        );
    }

    #[test]
    fn sync_writers_show_the_machine() {
        let text = of(&[row(sync_point(), Route::Kernel, &[100])]).to_string();
        let words =
            |line: usize| text.lines().nth(line).unwrap().split_whitespace().collect::<Vec<_>>();
        assert_eq!(words(0)[4..12], ["in", "flight", "blocked", "us", "sy", "id", "wa", "st"]);
        assert_eq!(words(1)[4..11], ["1.5", "-", "5", "25", "50", "20", "0"]);
    }
}
