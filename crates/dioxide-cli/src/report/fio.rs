//! The results in fio's format (`--output-format=json+`), for tools that read it. A row is a job,
//! as with fio's `group_reporting`: all threads and rounds together, with the rounds as samples.
//! Figures that a bench does not count (context switches, faults, merges) are left out.

use super::percentiles::PERCENTILES;
use super::{Report, matrix};
use crate::args::{Outputs, Wanted};
use crate::bench::figures::{Figures, Row};
use crate::bench::latency::{Latencies, Timings};
use crate::bench::work::{Route, Scenario, Space, durability_name, space_name};
use crate::meter::machine::Machine;
use crate::output::{self, Text};
use crate::units;
use anyhow::{Result, bail, ensure};
use dioxide::Durability;
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

/// A file in fio's format, with the rows of one path.
pub struct File {
    name: PathBuf,
    path: &'static str,
}

impl File {
    pub fn wanted(&self) -> Wanted<'_> {
        Wanted { option: "--fio-json", path: &self.name }
    }

    pub fn text(&self, report: &Report) -> Result<Text<'_>> {
        Ok(Text { wanted: self.wanted(), text: output::json(&document(report, self.path))? })
    }
}

/// The requested files of a bench with these routes.
pub fn files(routes: impl Iterator<Item = Route>, outputs: &Outputs) -> Result<Vec<File>> {
    let Some(name) = &outputs.fio_json else { return Ok(Vec::new()) };
    let mut paths: Vec<&'static str> = Vec::new();
    for path in routes.map(Route::name) {
        if !paths.contains(&path) {
            paths.push(path);
        }
    }
    let Some(chosen) = &outputs.fio_path else {
        ensure!(
            !takes_one_path(name),
            "--fio-json {}: takes one path, of --fio-path",
            name.display()
        );
        // Similar names have no slash at their end.
        let names_directory = name.as_os_str().as_encoded_bytes().ends_with(b"/");
        ensure!(!names_directory, "--fio-json {}: no such directory", name.display());
        return Ok(paths.into_iter().map(|path| File { name: named(name, path), path }).collect());
    };
    match paths.iter().find(|path| *path == chosen) {
        Some(path) => Ok(vec![File { name: name.clone(), path }]),
        None => bail!("--fio-path {chosen}: the paths of this bench are {}", paths.join(", ")),
    }
}

/// Whether files with similar names are no substitute: a device, a pipe, a directory or an open
/// file.
fn takes_one_path(name: &Path) -> bool {
    let is_open = Wanted { option: "--fio-json", path: name }.is_stdout()
        || output::own_descriptor(name).is_some();
    is_open || std::fs::metadata(name).is_ok_and(|it| !it.is_file())
}

/// `out.kernel.json` for `out.json`.
fn named(file: &Path, path: &str) -> PathBuf {
    let mut name = file.file_stem().unwrap_or_default().to_owned();
    name.push(format!(".{path}"));
    if let Some(extension) = file.extension() {
        name.push(".");
        name.push(extension);
    }
    file.with_file_name(name)
}

/// The whole document.
#[derive(Serialize)]
struct FioDocument {
    #[serde(rename = "fio version")]
    version: String,
    timestamp: u64,
    timestamp_ms: u64,
    time: String,
    #[serde(rename = "global options")]
    options: Pairs<String>,
    jobs: Vec<FioJob>,
    disk_util: [(); 0],
}

/// In insertion order.
#[derive(Clone)]
struct Pairs<T>(Vec<(String, T)>);

impl<T: Serialize> Serialize for Pairs<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, value)| (key, value)))
    }
}

/// A row of the results.
#[derive(Serialize)]
struct FioJob {
    jobname: String,
    groupid: usize,
    error: u32,
    eta: u32,
    /// In seconds.
    elapsed: u64,
    #[serde(rename = "job options")]
    options: Pairs<String>,
    read: FioDirection,
    write: FioDirection,
    trim: FioDirection,
    sync: Syncs,
    /// In milliseconds, all threads together.
    job_runtime: u64,
    /// Percent of `job_runtime`.
    usr_cpu: f64,
    sys_cpu: f64,
    /// Percent of the operations.
    iodepth_level: Pairs<f64>,
    latency_ns: Pairs<f64>,
    latency_us: Pairs<f64>,
    latency_ms: Pairs<f64>,
    latency_depth: usize,
    latency_target: u32,
    latency_percentile: f64,
    latency_window: u32,
}

/// Reads, writes or trims. Rates are of all rounds together; bandwidth is in KiB per second unless
/// its name says bytes.
#[derive(Default, Serialize)]
struct FioDirection {
    io_bytes: u64,
    io_kbytes: u64,
    bw_bytes: u64,
    bw: u64,
    iops: f64,
    /// In milliseconds.
    runtime: u64,
    total_ios: u64,
    short_ios: u64,
    drop_ios: u64,
    slat_ns: FioLatency,
    clat_ns: FioLatency,
    lat_ns: FioLatency,
    bw_min: u64,
    bw_max: u64,
    /// Percent of the group's bandwidth; the group is this job alone.
    bw_agg: f64,
    bw_mean: f64,
    bw_dev: f64,
    bw_samples: usize,
    iops_min: u64,
    iops_max: u64,
    iops_mean: f64,
    iops_stddev: f64,
    iops_samples: usize,
}

#[derive(Default, Serialize)]
struct FioLatency {
    min: u64,
    max: u64,
    mean: f64,
    stddev: f64,
    #[serde(rename = "N")]
    count: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    percentile: Option<Pairs<u64>>,
    /// Operations by latency. Left out if there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    bins: Option<Pairs<u64>>,
}

/// Flushes, which a bench does not time separately.
#[derive(Default, Serialize)]
struct Syncs {
    total_ios: u64,
    lat_ns: FioLatency,
}

/// The rows of a path in fio's format.
fn document(report: &Report, path: &str) -> FioDocument {
    let rows = report.rows.iter().filter(|row| row.route.name() == path);
    let began = humantime::parse_rfc3339(&report.machine.date).ok();
    let since = began.and_then(|began| began.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
    FioDocument {
        version: format!("dioxide-{}", report.machine.dioxide_version),
        timestamp: since.as_secs(),
        timestamp_ms: since.as_millis() as u64,
        time: report.machine.date.clone(),
        options: global_options(&report.machine),
        jobs: rows.enumerate().map(|(nth, row)| job(nth, row)).collect(),
        disk_util: [],
    }
}

fn global_options(machine: &Machine) -> Pairs<String> {
    pairs([("directory", machine.target.clone()), ("group_reporting", "1".into())])
}

fn pairs<T, const N: usize>(pairs: [(&str, T); N]) -> Pairs<T> {
    Pairs(pairs.map(|(key, value)| (key.to_owned(), value)).into())
}

fn job(nth: usize, row: &Row) -> FioJob {
    let time: Duration = row.runs.iter().map(|run| run.elapsed).sum();
    let threads = row.point.threads(row.route);
    let of_a_thread = |percent: fn(&Figures) -> f64| row.median(percent) / threads as f64;
    let shares = |unit_ns, bounds: &[u64]| shares(&row.timings.clat, unit_ns, bounds);
    FioJob {
        jobname: name(row),
        groupid: nth,
        error: 0,
        eta: 0,
        elapsed: time.as_secs_f64().ceil() as u64,
        options: options(row),
        read: direction(row, &row.reads, |run| run.read_iops, time),
        write: direction(row, &row.writes, |run| run.write_iops, time),
        trim: FioDirection::default(),
        sync: Syncs::default(),
        job_runtime: time.as_millis() as u64 * threads as u64,
        usr_cpu: of_a_thread(|run| run.usr_cpu),
        sys_cpu: of_a_thread(|run| run.sys_cpu),
        iodepth_level: iodepth_level(row.route.iodepth()),
        latency_ns: shares(1, &BELOW),
        latency_us: shares(1_000, &BELOW),
        latency_ms: shares(1_000_000, &[&BELOW[..], &[2000, u64::MAX]].concat()),
        latency_depth: row.route.iodepth(),
        latency_target: 0,
        latency_percentile: 100.0,
        latency_window: 0,
    }
}

/// `append-dioxide-4k-64`, or `log-dioxide-100-64-recycled-16-files`; other differences between
/// rows are in the options.
fn name(row: &Row) -> String {
    let (scenario, path) = (row.point.scenario.name(), matrix::path_of(row).replace(' ', "-"));
    let space = row.point.space.map(|space| format!("-{}", space_name(space)));
    let files = row.point.files.map(|files| format!("-{files}-files"));
    let apart: String = [space, files].into_iter().flatten().collect();
    format!("{scenario}-{path}-{}-{}{apart}", bs(row), row.point.numjobs)
}

/// In fio's syntax.
fn bs(row: &Row) -> String {
    let sizes = row.point.sizes;
    let min = units::bytes(sizes.min_bytes);
    if sizes.fixed().is_some() { min } else { format!("{min}-{}", units::bytes(sizes.max_bytes)) }
}

/// The closest options of fio.
fn options(row: &Row) -> Pairs<String> {
    let point = row.point;
    let rw = match (point.scenario, point.space) {
        (Scenario::Mixed, _) => "randrw",
        (Scenario::Files, Some(Space::Written)) => "randwrite",
        (Scenario::Copy, _) if point.rwmixread == Some(100) => "read",
        (Scenario::Copy, _) if point.rwmixread == Some(50) => "rw",
        _ => "write",
    };
    let ioengine = match row.route {
        Route::Uring { .. } => "io_uring",
        route if route.is_dioxide() => "dioxide",
        _ => "psync",
    };
    let always = [
        ("name", name(row)),
        ("ioengine", ioengine.into()),
        ("rw", rw.into()),
        (if point.sizes.fixed().is_some() { "bs" } else { "bsrange" }, bs(row)),
        ("numjobs", point.threads(row.route).to_string()),
        ("iodepth", row.route.iodepth().to_string()),
        ("direct", u8::from(row.route.is_direct(point)).to_string()),
        ("loops", row.runs.len().to_string()),
        ("description", format!("{} {}", row.route.name(), durability_name(point.durability))),
    ];
    let sync = (point.durability == Durability::EveryWrite).then(|| ("sync", "dsync".to_owned()));
    let files = point.files.map(|files| ("nrfiles", files.to_string()));
    let mix = point.rwmixread.map(|percent| ("rwmixread", percent.to_string()));
    // Of each job: rounded up, because 0 is no limit.
    let jobs = point.threads(row.route) as u64;
    let rate = point.rate_iops.map(|rate| ("rate_iops", rate.div_ceil(jobs).to_string()));
    let mut options = pairs(always);
    let given = [sync, files, mix, rate].into_iter().flatten();
    options.0.extend(given.map(|(key, value)| (key.to_owned(), value)));
    options
}

/// The operations of `row` in one direction, over the time of all rounds.
fn direction(
    row: &Row,
    timings: &Timings,
    iops: fn(&Figures) -> f64,
    time: Duration,
) -> FioDirection {
    let (count, seconds) = (timings.clat.len(), time.as_secs_f64());
    if count == 0 {
        return FioDirection::default();
    }
    let bytes: f64 = row.runs.iter().map(|run| run.bw_bytes * run.elapsed.as_secs_f64()).sum();
    let ops: u64 = row.runs.iter().map(|run| run.ops).sum();
    let bytes_per_op = bytes / ops as f64;
    let io_bytes = (bytes_per_op * count as f64).round() as u64;
    let bw_bytes = io_bytes as f64 / seconds;
    let rates = Samples::of(row.runs.iter().map(iops));
    let bandwidths = Samples::of(row.runs.iter().map(|run| iops(run) * bytes_per_op / 1024.0));
    let lat = timings.lat.as_ref().unwrap_or(&timings.clat);
    FioDirection {
        io_bytes,
        io_kbytes: io_bytes >> 10,
        bw_bytes: bw_bytes.round() as u64,
        bw: (bw_bytes / 1024.0) as u64,
        iops: count as f64 / seconds,
        runtime: time.as_millis() as u64,
        total_ios: count,
        short_ios: 0,
        drop_ios: 0,
        slat_ns: FioLatency::default(),
        clat_ns: FioLatency {
            percentile: Some(percentiles(&timings.clat)),
            bins: Some(bins(&timings.clat)),
            ..latency(&timings.clat)
        },
        lat_ns: latency(lat),
        bw_min: bandwidths.min as u64,
        bw_max: bandwidths.max as u64,
        bw_agg: 100.0,
        bw_mean: bandwidths.mean,
        bw_dev: bandwidths.stddev,
        bw_samples: bandwidths.count,
        iops_min: rates.min as u64,
        iops_max: rates.max as u64,
        iops_mean: rates.mean,
        iops_stddev: rates.stddev,
        iops_samples: rates.count,
    }
}

/// Statistics over the rounds.
struct Samples {
    min: f64,
    max: f64,
    mean: f64,
    stddev: f64,
    count: usize,
}

impl Samples {
    /// Of at least one round.
    fn of(values: impl Iterator<Item = f64> + Clone) -> Self {
        let count = values.clone().count();
        let mean = values.clone().sum::<f64>() / count as f64;
        let squares: f64 = values.clone().map(|value| (value - mean).powi(2)).sum();
        // As in fio: of a sample, and 0 for a single one.
        let stddev = (squares / count.saturating_sub(1).max(1) as f64).sqrt();
        let (min, max) = (values.clone().fold(f64::INFINITY, f64::min), values.fold(0.0, f64::max));
        Self { min, max, mean, stddev, count }
    }
}

fn latency(all: &Latencies) -> FioLatency {
    let (mean, stddev) = (all.mean(), all.stdev());
    FioLatency {
        min: all.min(),
        max: all.max(),
        mean,
        stddev,
        count: all.len(),
        percentile: None,
        bins: None,
    }
}

fn percentiles(all: &Latencies) -> Pairs<u64> {
    Pairs(PERCENTILES.map(|at| (format!("{at:.6}"), all.value_at_percentile(at))).into())
}

/// fio has 2^6 bins for each power of two.
const BIN_BITS: u32 = 6;
/// fio's last bin, for this latency and all higher ones: 17 s.
const BIN_LAST_NS: u64 = 17_112_760_320;

fn bins(all: &Latencies) -> Pairs<u64> {
    let mut bins = BTreeMap::<u64, u64>::new();
    for value in all.iter_recorded() {
        *bins.entry(bin_ns(value.value_iterated_to())).or_default() +=
            value.count_since_last_iteration();
    }
    Pairs(bins.into_iter().map(|(ns, count)| (ns.to_string(), count)).collect())
}

/// The middle of the bin of a latency.
fn bin_ns(ns: u64) -> u64 {
    let error_bits = (ns.max(1).ilog2()).saturating_sub(BIN_BITS);
    let low = ns >> error_bits << error_bits;
    (low + (1 << error_bits >> 1)).min(BIN_LAST_NS)
}

/// fio's bounds of latencies, in each unit.
const BELOW: [u64; 10] = [2, 4, 10, 20, 50, 100, 250, 500, 750, 1000];

/// Percent of the operations below each bound, and not below the previous one. Lower latencies
/// belong to the smaller unit. The last of all bounds has no limit.
fn shares(all: &Latencies, unit_ns: u64, bounds: &[u64]) -> Pairs<f64> {
    // The bound of the smaller unit.
    let mut low = if unit_ns == 1 { 0 } else { unit_ns };
    let share = |bound: &u64| {
        let high = bound.saturating_mul(unit_ns);
        let within =
            all.iter_recorded().filter(|value| (low..high).contains(&value.value_iterated_to()));
        let count: u64 = within.map(|value| value.count_since_last_iteration()).sum();
        low = high;
        let name = if *bound == u64::MAX { ">=2000".into() } else { bound.to_string() };
        (name, 100.0 * count as f64 / all.len().max(1) as f64)
    };
    Pairs(bounds.iter().map(share).collect())
}

/// Outstanding operations at the begin of an operation: always the maximum, because each completion
/// makes room for one.
fn iodepth_level(iodepth: usize) -> Pairs<f64> {
    let levels = [1, 2, 4, 8, 16, 32, 64];
    let own = levels.into_iter().rfind(|level| *level <= iodepth);
    let name = |level: usize| if level == 64 { ">=64".into() } else { level.to_string() };
    Pairs(levels.map(|level| (name(level), if Some(level) == own { 100.0 } else { 0.0 })).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use crate::bench::figures::examples::{append_point, files_point, mixed_point, row};
    use crate::bench::work::Point;
    use clap::Parser;
    use serde_json::{Value, json};

    /// Of all paths.
    fn jobs(rows: Vec<Row>) -> Value {
        let report =
            Report { label: None, machine: Machine::describe("/x".into(), None), fs: None, rows };
        let jobs = |path: &str| match serde_json::to_value(document(&report, path)).unwrap()["jobs"]
            .take()
        {
            Value::Array(jobs) => jobs,
            other => panic!("{other}"),
        };
        matrix::paths(&report.rows).iter().flat_map(|path| jobs(path)).collect()
    }

    fn names(options: &str) -> Result<Vec<(String, &'static str)>> {
        let line = format!("dioxide bench {options}");
        let Command::Bench(bench) = Cli::parse_from(line.split_whitespace()).command else {
            panic!("a bench")
        };
        let routes = [Route::Kernel, Route::Dioxide, Route::Kernel, Route::Queue { iodepth: 4 }];
        let files = files(routes.into_iter(), bench.output())?;
        Ok(files.into_iter().map(|file| (file.name.display().to_string(), file.path)).collect())
    }

    /// The defect D12: a reader of fio adds the paths, as jobs of one run.
    #[test]
    fn each_path_has_a_file() {
        let expected = |files: [(&str, &'static str); 3]| {
            files.map(|(name, path)| (name.to_owned(), path)).to_vec()
        };
        assert_eq!(
            names("--fio-json /data/out.v1.json").unwrap(),
            expected([
                ("/data/out.v1.kernel.json", "kernel"),
                ("/data/out.v1.dioxide.json", "dioxide"),
                ("/data/out.v1.dioxide-queue.json", "dioxide-queue")
            ])
        );
        assert_eq!(names("--fio-json out").unwrap()[0].0, "out.kernel");
        assert_eq!(
            names("--fio-json out.json --fio-path dioxide").unwrap(),
            [("out.json".to_owned(), "dioxide")]
        );
        assert_eq!(names("").unwrap(), []);
        let refusal = |options| names(options).unwrap_err().to_string();
        assert!(refusal("--fio-json -").contains("takes one path"));
        assert_eq!(refusal("--fio-json missing/"), "--fio-json missing/: no such directory");
        assert_eq!(
            refusal("--fio-json - --fio-path sparse"),
            "--fio-path sparse: the paths of this bench are kernel, dioxide, dioxide-queue"
        );
    }

    /// The defect: a bench made files like /dev/null.kernel in devtmpfs.
    #[test]
    fn files_beside_a_device() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().to_str().unwrap();
        for name in ["/dev/null", "/dev/stdout", "/dev/stderr", "/proc/self/fd/2", dir] {
            let refusal = names(&format!("--fio-json {name}")).unwrap_err().to_string();
            assert_eq!(refusal, format!("--fio-json {name}: takes one path, of --fio-path"));
            let chosen = names(&format!("--fio-json {name} --fio-path dioxide")).unwrap();
            assert_eq!(chosen, [(name.to_owned(), "dioxide")]);
        }
    }

    #[test]
    fn a_file_has_the_rows_of_its_path_only() {
        let rows = vec![
            row(append_point(1), Route::Kernel, &[100]),
            row(append_point(1), Route::Dioxide, &[100]),
            row(append_point(64), Route::Dioxide, &[100]),
        ];
        let report =
            Report { label: None, machine: Machine::describe("/x".into(), None), fs: None, rows };
        let document = document(&report, "dioxide");
        let names: Vec<_> = document.jobs.iter().map(|job| &job.jobname[..]).collect();
        assert_eq!(names, ["append-dioxide-4k-1", "append-dioxide-4k-64"]);
    }

    #[test]
    fn a_row_is_a_job() {
        let jobs = jobs(vec![
            row(append_point(64), Route::Kernel, &[100, 300]),
            row(append_point(64), Route::Queue { iodepth: 64 }, &[100]),
        ]);
        let (kernel, queue) = (&jobs[0], &jobs[1]);
        assert_eq!(
            (&kernel["jobname"], &queue["jobname"]),
            (&json!("append-kernel-4k-64"), &json!("append-dioxide-queue-4k-64"))
        );
        let write = &kernel["write"];
        assert_eq!(
            (&write["total_ios"], &write["runtime"], &write["iops"]),
            (&json!(2000), &json!(2000), &json!(1000.0))
        );
        assert_eq!(
            (&write["iops_min"], &write["iops_max"], &write["iops_samples"]),
            (&json!(100), &json!(300), &json!(2))
        );
        assert_eq!(
            (&write["bw_mean"], &write["bw_min"], &write["io_bytes"]),
            (&json!(800.0), &json!(400), &json!(2000 * 4096))
        );
        assert_eq!(kernel["job_runtime"], 128_000);
        assert_eq!(
            (&kernel["job options"]["iodepth"], &queue["job options"]["iodepth"]),
            (&json!("1"), &json!("64"))
        );
        assert_eq!(
            (&kernel["iodepth_level"]["1"], &queue["iodepth_level"][">=64"]),
            (&json!(100.0), &json!(100.0))
        );
    }

    #[test]
    fn both_ways_of_a_mix() {
        let job = &jobs(vec![row(mixed_point(2), Route::Dioxide, &[1000])])[0];
        assert_eq!(
            (&job["job options"]["rw"], &job["job options"]["rwmixread"]),
            (&json!("randrw"), &json!("70"))
        );
        assert_eq!(
            (&job["read"]["total_ios"], &job["write"]["total_ios"]),
            (&json!(500), &json!(1000))
        );
        assert_eq!(
            (&job["read"]["iops_mean"], &job["write"]["iops_mean"]),
            (&json!(700.0), &json!(300.0))
        );
    }

    #[test]
    fn many_files_are_an_option() {
        let option = |route, key: &str| {
            let job = &jobs(vec![row(files_point(16, 8), route, &[1000])])[0];
            job["job options"][key].clone()
        };
        assert_eq!(option(Route::Kernel, "nrfiles"), "16");
        assert_eq!(option(Route::Kernel, "rw"), "randwrite");
        let engines = [Route::OneThread, Route::Uring { iodepth: 8 }, Route::Dioxide];
        assert_eq!(
            engines.map(|route| option(route, "ioengine")),
            ["psync", "io_uring", "dioxide"]
        );
    }

    #[test]
    fn a_given_load_is_for_each_job() {
        let point = Point { rate_iops: Some(640), ..append_point(64) };
        let job = &jobs(vec![row(point, Route::Kernel, &[100])])[0];
        assert_eq!(job["job options"]["rate_iops"], "10");
    }

    /// The one job of a queue had the rate of one of as many threads, and a low rate was 0.
    #[test]
    fn the_rate_of_a_queue_was_divided_by_threads() {
        let rate = |rate_iops, route| {
            let point = Point { rate_iops: Some(rate_iops), ..append_point(64) };
            let job = &jobs(vec![row(point, route, &[100])])[0];
            job["job options"]["rate_iops"].clone()
        };
        assert_eq!(rate(640, Route::Queue { iodepth: 64 }), "640");
        assert_eq!(rate(50, Route::Kernel), "1");
    }

    #[test]
    fn every_operation_is_in_one_bin_and_one_share() {
        let job = &jobs(vec![row(append_point(1), Route::Kernel, &[10])])[0];
        let clat = &job["write"]["clat_ns"];
        let bins: u64 =
            clat["bins"].as_object().unwrap().values().map(|count| count.as_u64().unwrap()).sum();
        assert_eq!(bins, clat["N"].as_u64().unwrap());
        let shares: f64 = ["latency_ns", "latency_us", "latency_ms"]
            .iter()
            .flat_map(|unit| job[*unit].as_object().unwrap().values())
            .map(|share| share.as_f64().unwrap())
            .sum();
        assert!((shares - 100.0).abs() < 1e-6, "{shares}");
        // 1 us to 1 ms, evenly distributed.
        let half = job["latency_us"]["500"].as_f64().unwrap();
        assert!((24.5..25.5).contains(&half), "{half}");
    }

    #[test]
    fn bins_are_those_of_fio() {
        for (ns, bin) in
            [(0, 0), (127, 127), (128, 129), (129, 129), (1000, 1004), (u64::MAX >> 8, BIN_LAST_NS)]
        {
            assert_eq!(bin_ns(ns), bin, "{ns}");
        }
    }
}
