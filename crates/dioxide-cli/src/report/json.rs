//! The results as JSON. Keys are those of fio if it has them. Figures are medians over the rounds,
//! latencies are of all rounds together, ratios are taken round by round. Keys that begin with
//! `rounds_` have one value per round, in order.

use super::percentiles::PERCENTILES;
use super::{Report, SYNCFS, URING, beside, rival};
use crate::bench::figures::{Figures, Row};
use crate::bench::latency::{Latencies, Timings};
use crate::bench::ratio::Ratio;
use crate::bench::work::{
    Asked, Route, backend_name, durability_name, growth_name, space_name, tail_name,
};
use crate::meter::machine::Machine;
use crate::meter::vmstat::Shares;
use dioxide::Stats;
use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;

/// The whole document.
#[derive(Serialize, JsonSchema)]
pub struct BenchDocument<'a> {
    /// The version of this format.
    schema_version: u32,
    /// `bench`.
    kind: &'static str,
    #[serde(flatten)]
    machine: &'a Machine,
    /// The name that `--label` gave the result, such as a commit.
    label: Option<&'a str>,
    results: Vec<ResultRow<'a>>,
}

const SCHEMA_VERSION: u32 = 1;
const KIND: &str = "bench";

/// One row. Values that do not apply, or are unknown, are null.
#[derive(Serialize, JsonSchema)]
struct ResultRow<'a> {
    scenario: &'static str,
    path: &'static str,
    backend: &'static str,
    fs: Option<&'a str>,
    fs_remark: Option<&'static str>,
    /// Of each operation; null for a range.
    bs_bytes: Option<u64>,
    bs_min_bytes: u64,
    bs_max_bytes: u64,
    numjobs: usize,
    /// Of each thread.
    iodepth: usize,
    /// The offered load of all threads together.
    rate_iops: Option<u64>,
    /// Percent of the operations that are reads. Only for scenarios with reads, as `read` and
    /// `write`.
    rwmixread: Option<u32>,
    durability: &'static str,
    growth: Option<&'static str>,
    /// How dioxide packs partial blocks. Only if there are any.
    tail: Option<&'static str>,
    /// The number of files. Only for scenarios with several.
    files: Option<usize>,
    /// Whether their blocks were written before. Only for scenarios with several files.
    space: Option<&'static str>,
    asked: Asked,
    rounds: usize,
    rounds_iops: Vec<f64>,
    /// Of `lat_ns` with an offered load, of `clat_ns` otherwise.
    rounds_p99_ns: Vec<u64>,
    rounds_cpu_us_per_op: Vec<f64>,
    /// The ratio to the kernel path in the same round.
    rounds_ratio_to_kernel: Option<Vec<f64>>,
    /// Less than requested if the file was full before. For checkpoints, the time of their flushes
    /// alone.
    runtime_ms: u64,
    iops: f64,
    bw_bytes: f64,
    clat_ns: Latency,
    /// From the time when each operation was due. Only with an offered load.
    lat_ns: Option<Latency>,
    read: Option<OneWay>,
    write: Option<OneWay>,
    growths: Option<u64>,
    /// The longest append that met a growth of its file.
    growing_clat_max_ns: Option<u64>,
    cpu_us_per_op: f64,
    cpu_us_per_mib: f64,
    /// CPU time of the whole machine per MiB, all processes, in microseconds.
    machine_cpu_us_per_mib: Option<f64>,
    /// Percent of one CPU, all threads together.
    usr_cpu: f64,
    sys_cpu: f64,
    /// Writes that the device completed during a run, by all processes, including calls for a
    /// flush. For an indirect-mapped file, writes to its volume.
    requests: Option<u64>,
    flushes: Option<u64>,
    extents: Option<u64>,
    /// From the library's counters (`Stats`).
    refused_gap: Option<u64>,
    refused_bytes: Option<u64>,
    refused_segments: Option<u64>,
    refused_member: Option<u64>,
    refused_order: Option<u64>,
    /// The mean number of requests in flight on the device.
    inflight: Option<f64>,
    /// The mean number of tasks of the whole machine that waited for I/O.
    blocked: Option<f64>,
    /// Percent of all CPUs of the machine.
    machine_cpu: Option<Shares>,
    /// Percent of the machine's memory in use.
    machine_memory: Option<f64>,
    /// Peak resident memory of this process.
    rss_bytes: Option<u64>,
    ratio_to_kernel: Option<Ratio>,
    ratio_to_preallocated: Option<Ratio>,
    ratio_to_buffered_group: Option<Ratio>,
    ratio_to_serialised: Option<Ratio>,
    ratio_to_one_thread: Option<Ratio>,
    ratio_to_kernel_uring: Option<Ratio>,
    ratio_to_syncfs: Option<Ratio>,
}

/// The reads of a row, or its writes.
#[derive(Serialize, JsonSchema)]
struct OneWay {
    iops: f64,
    bw_bytes: f64,
    clat_ns: Latency,
    lat_ns: Option<Latency>,
}

#[derive(Serialize, JsonSchema)]
struct Latency {
    min: u64,
    max: u64,
    mean: f64,
    stddev: f64,
    /// Number of operations.
    #[serde(rename = "N")]
    count: u64,
    /// In nanoseconds, by percentile in fio's format: `99.000000`.
    #[serde(serialize_with = "as_map")]
    #[schemars(with = "BTreeMap<String, u64>")]
    percentile: Vec<(String, u64)>,
}

/// The report in JSON.
pub fn document(report: &Report) -> BenchDocument<'_> {
    let results = report.rows.iter().map(|row| outcome(report, row)).collect();
    BenchDocument {
        schema_version: SCHEMA_VERSION,
        kind: KIND,
        machine: &report.machine,
        label: report.label.as_deref(),
        results,
    }
}

fn outcome<'a>(report: &'a Report, row: &Row) -> ResultRow<'a> {
    let ratio_to = |route| rival(&report.rows, row, route);
    let one_way = |of, timings| row.point.rwmixread.map(|_| one_way(row, of, timings));
    let rounded = |count: Option<f64>| count.map(|count| count.round() as u64);
    let counted = |of: fn(&Stats) -> u64| {
        rounded(row.median_known(|run| run.stats.as_ref().map(|stats| of(stats) as f64)))
    };
    ResultRow {
        scenario: row.point.scenario.name(),
        path: row.route.name(),
        backend: backend_name(row.point.backend),
        fs: report.fs.as_ref().map(|fs| fs.name.as_str()),
        fs_remark: report.fs.as_ref().and_then(|fs| fs.remark),
        bs_bytes: row.point.sizes.fixed(),
        bs_min_bytes: row.point.sizes.min_bytes,
        bs_max_bytes: row.point.sizes.max_bytes,
        numjobs: row.point.threads(row.route),
        iodepth: row.route.iodepth(),
        rate_iops: row.point.rate_iops,
        rwmixread: row.point.rwmixread,
        durability: durability_name(row.point.durability),
        growth: row.point.growth.map(growth_name),
        tail: row.point.tail.map(tail_name),
        files: row.point.files,
        space: row.point.space.map(space_name),
        asked: row.asked,
        rounds: row.runs.len(),
        rounds_iops: row.runs.iter().map(|run| run.iops).collect(),
        rounds_p99_ns: row.runs.iter().map(|run| run.p99_ns).collect(),
        rounds_cpu_us_per_op: row.runs.iter().map(|run| run.cpu_us_per_op).collect(),
        rounds_ratio_to_kernel: beside(&report.rows, row, Route::Kernel)
            .and_then(|kernel| row.ratios_to(kernel))
            .filter(|ratios| ratios.iter().all(|ratio| ratio.is_finite())),
        runtime_ms: row.median(|run| run.elapsed.as_secs_f64() * 1e3).round() as u64,
        iops: row.iops(),
        bw_bytes: row.bw_bytes(),
        clat_ns: latency(&row.timings.clat),
        lat_ns: row.timings.lat.as_ref().map(latency),
        read: one_way(|run| run.read_iops, &row.reads),
        write: one_way(|run| run.write_iops, &row.writes),
        growths: rounded(row.growths()),
        growing_clat_max_ns: rounded(row.growing_clat_max_ns()),
        cpu_us_per_op: row.median(|run| run.cpu_us_per_op),
        cpu_us_per_mib: row.median(|run| run.cpu_us_per_mib),
        machine_cpu_us_per_mib: row.median_known(|run| run.machine_cpu_us_per_mib),
        usr_cpu: row.median(|run| run.usr_cpu),
        sys_cpu: row.median(|run| run.sys_cpu),
        requests: rounded(row.median_known(|run| run.requests)),
        flushes: rounded(row.median_known(|run| run.flushes)),
        extents: rounded(row.median_known(|run| run.extents)),
        refused_gap: counted(|stats| stats.refused_gap),
        refused_bytes: counted(|stats| stats.refused_bytes),
        refused_segments: counted(|stats| stats.refused_segments),
        refused_member: counted(|stats| stats.refused_member),
        refused_order: counted(|stats| stats.refused_order),
        inflight: row.median_known(|run| run.inflight),
        blocked: row.median_known(|run| run.blocked),
        machine_cpu: row.machine(),
        machine_memory: row.median_known(|run| Some(run.memory?.used_percent)),
        rss_bytes: rounded(row.median_known(|run| Some(run.memory?.rss_bytes as f64))),
        ratio_to_kernel: ratio_to(Route::Kernel),
        ratio_to_preallocated: ratio_to(Route::Preallocated),
        ratio_to_buffered_group: ratio_to(Route::BufferedGroup),
        ratio_to_serialised: ratio_to(Route::Serialised),
        ratio_to_one_thread: ratio_to(Route::OneThread),
        ratio_to_kernel_uring: ratio_to(URING),
        ratio_to_syncfs: ratio_to(SYNCFS),
    }
}

fn one_way(row: &Row, iops: fn(&Figures) -> f64, timings: &Timings) -> OneWay {
    let iops = row.median(iops);
    OneWay {
        iops,
        bw_bytes: iops * row.point.sizes.max_bytes as f64,
        clat_ns: latency(&timings.clat),
        lat_ns: timings.lat.as_ref().map(latency),
    }
}

fn latency(all: &Latencies) -> Latency {
    let at = |percentile: f64| (format!("{percentile:.6}"), all.value_at_percentile(percentile));
    Latency {
        min: all.min(),
        max: all.max(),
        mean: all.mean(),
        stddev: all.stdev(),
        count: all.len(),
        percentile: PERCENTILES.map(at).into(),
    }
}

/// As an object with ordered keys.
fn as_map<S: Serializer>(pairs: &[(String, u64)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(pairs.iter().map(|(key, value)| (key, value)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::figures::examples::{
        append_point, checkpoint_point, files_point, mixed_point, row, sync_point,
    };
    use crate::bench::work::{Point, Space};
    use crate::meter::filesystem::FileSystem;
    use serde_json::{Value, json};

    fn report() -> Report {
        let append = append_point(64);
        Report {
            label: None,
            machine: Machine::describe("/somewhere".into(), None),
            fs: Some(FileSystem { name: "ext4".into(), remark: None }),
            rows: vec![
                row(append, Route::Kernel, &[100, 200]),
                row(append, Route::Preallocated, &[400, 400]),
                row(append, Route::Dioxide, &[1000, 1600]),
                row(sync_point(), Route::Kernel, &[50]),
                row(mixed_point(2), Route::Dioxide, &[1000]),
                row(append, Route::Queue { iodepth: 64 }, &[2000, 3000]),
                row(files_point(16, 4), Route::OneThread, &[50, 100]),
                row(files_point(16, 8), Route::Uring { iodepth: 8 }, &[200, 200]),
                row(files_point(16, 8), Route::Dioxide, &[400, 400]),
                row(files_point(99, 8), Route::Dioxide, &[400, 400]),
                row(checkpoint_point(7), Route::Syncfs { iodepth: 1 }, &[10, 10]),
                row(checkpoint_point(7), Route::Dioxide, &[10, 20]),
            ],
        }
    }

    fn parsed() -> Value {
        let text = serde_json::to_string(&document(&report())).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn machine_facts_are_at_the_top() {
        let document = parsed();
        for key in [
            "dioxide_version",
            "kernel_release",
            "cpus",
            "command_line",
            "date",
            "target",
            "device",
        ] {
            assert!(document.get(key).is_some(), "{key}");
        }
        assert_eq!(document["target"], "/somewhere");
    }

    #[test]
    fn figures_of_a_row() {
        let dioxide = &parsed()["results"][2];
        assert_eq!(dioxide["scenario"], "append");
        assert_eq!(dioxide["path"], "dioxide");
        assert_eq!(dioxide["fs"], "ext4");
        assert_eq!(dioxide["durability"], "on-sync");
        assert_eq!(dioxide["growth"], "unwritten");
        assert_eq!(dioxide["iops"], 1300.0);
        assert_eq!(dioxide["bw_bytes"], 1300.0 * 4096.0);
        assert_eq!(dioxide["requests"], 2600);
        assert_eq!(dioxide["ratio_to_kernel"], json!({"min": 8.0, "median": 9.0, "max": 10.0}));
        assert_eq!(
            dioxide["ratio_to_preallocated"],
            json!({"min": 2.5, "median": 3.25, "max": 4.0})
        );
    }

    #[test]
    fn figures_of_each_round() {
        let results = &parsed()["results"];
        assert_eq!(results[2]["rounds_iops"], json!([1000.0, 1600.0]));
        assert_eq!(results[2]["rounds_ratio_to_kernel"], json!([10.0, 8.0]));
        assert_eq!(results[2]["rounds_p99_ns"], json!([990_000, 990_000]));
        assert_eq!(results[2]["rounds_cpu_us_per_op"], json!([600.0, 375.0]));
        assert!(
            results[0]["rounds_ratio_to_kernel"].is_null()
                && results[4]["rounds_ratio_to_kernel"].is_null()
        );
    }

    #[test]
    fn latencies_as_in_fio() {
        let clat = &parsed()["results"][0]["clat_ns"];
        let median = clat["percentile"]["50.000000"].as_u64().unwrap();
        assert!((499_000..=501_000).contains(&median), "{median}");
        assert!(clat["percentile"]["99.000000"].as_u64().unwrap() > median);
        assert!(clat["max"].as_u64().unwrap() >= 1_000_000);
        // 1 us to 1 ms in each of two rounds, evenly distributed.
        assert!((999..=1001).contains(&clat["min"].as_u64().unwrap()), "{clat}");
        assert!((499e3..502e3).contains(&clat["mean"].as_f64().unwrap()), "{clat}");
        assert!((288e3..290e3).contains(&clat["stddev"].as_f64().unwrap()), "{clat}");
        assert_eq!(clat["N"], 2000);
    }

    #[test]
    fn one_queue_is_one_thread() {
        let queue = &parsed()["results"][5];
        assert_eq!(
            (&queue["path"], &queue["backend"]),
            (&json!("dioxide-queue"), &json!("system"))
        );
        assert_eq!((&queue["numjobs"], &queue["iodepth"]), (&json!(1), &json!(64)));
        assert_eq!(queue["ratio_to_preallocated"]["median"], 6.25);
    }

    #[test]
    fn many_files_are_compared_on_as_many() {
        let results = &parsed()["results"];
        let (uring, dioxide, more_files) = (&results[7], &results[8], &results[9]);
        assert_eq!(
            (&dioxide["files"], &dioxide["space"]),
            (&json!(16), &json!("written")),
            "{dioxide}"
        );
        assert_eq!(dioxide["ratio_to_one_thread"]["median"], 6.0, "beside any number of threads");
        assert_eq!(dioxide["ratio_to_kernel_uring"]["median"], 2.0);
        assert_eq!(uring["ratio_to_one_thread"]["max"], 4.0);
        assert!(uring["ratio_to_kernel_uring"].is_null() && uring["numjobs"] == 1);
        assert!(more_files["ratio_to_one_thread"].is_null(), "{more_files}");
        assert_eq!(results[11]["ratio_to_syncfs"]["max"], 2.0);
        assert!(results[0]["files"].is_null() && results[0]["space"].is_null());
    }

    #[test]
    fn space_has_a_name() {
        let point = Point { space: Some(Space::Unwritten), ..files_point(1, 1) };
        let rows = vec![row(point, Route::Kernel, &[1])];
        let text = serde_json::to_value(document(&Report { rows, ..report() })).unwrap();
        assert_eq!(text["results"][0]["space"], "unwritten");
    }

    #[test]
    fn a_mix_has_both_directions() {
        let document = parsed();
        let (mixed, append) = (&document["results"][4], &document["results"][0]);
        assert_eq!((&mixed["rwmixread"], &mixed["iops"]), (&json!(70), &json!(1000.0)));
        let (read, write) = (&mixed["read"], &mixed["write"]);
        assert_eq!((&read["iops"], &write["iops"]), (&json!(700.0), &json!(300.0)));
        assert_eq!(read["bw_bytes"], 700.0 * 4096.0);
        let median = |way: &Value| way["clat_ns"]["percentile"]["50.000000"].as_u64().unwrap();
        assert!(median(read) < 251_000 && median(write) > 499_000, "{mixed}");
        assert!(
            read["lat_ns"].is_null() && append["read"].is_null() && append["rwmixread"].is_null()
        );
    }

    #[test]
    fn what_does_not_apply_is_null() {
        let document = parsed();
        let results = document["results"].as_array().unwrap();
        assert!(results[0]["ratio_to_kernel"].is_null(), "kernel is not compared with itself");
        assert!(results[0]["extents"].is_null() && results[0]["refused_gap"].is_null());
        assert!(results[3]["growth"].is_null());
        assert!(results[3]["ratio_to_preallocated"].is_null());
    }
}
