//! Reads the saved results of `bench --json`. An error names the kind of any other document.

use crate::bench::work::Asked;
use crate::meter::machine::Machine;
use crate::sizes::Sizes;
use anyhow::{Context, Result, bail, ensure};
use dioxide_diagnose::words::counted;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt;
use std::io::{self, Read};
use std::path::Path;

/// The newest supported version.
const SCHEMA_VERSION_MAX: u64 = 1;

#[derive(Clone, Debug, Deserialize)]
pub struct SavedDocument {
    #[serde(flatten)]
    pub machine: Machine,
    /// The name that `--label` gave it.
    #[serde(default)]
    pub label: Option<String>,
    pub results: Vec<SavedRow>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct SavedRow {
    #[serde(flatten)]
    pub key: Key,
    pub fs: Option<String>,
    pub fs_remark: Option<String>,
    pub asked: Asked,
    pub rounds_iops: Vec<f64>,
    pub rounds_p99_ns: Vec<f64>,
    pub rounds_cpu_us_per_op: Vec<f64>,
    pub rounds_ratio_to_kernel: Option<Vec<f64>>,
}

/// The identity of a row, equal in both runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Key {
    #[serde(flatten)]
    pub work: SavedWork,
    pub path: String,
    pub numjobs: usize,
    pub iodepth: usize,
}

/// The common settings of the rows of one table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SavedWork {
    pub scenario: String,
    pub backend: String,
    pub bs_min_bytes: u64,
    pub bs_max_bytes: u64,
    pub durability: String,
    pub growth: Option<String>,
    pub tail: Option<String>,
    pub rwmixread: Option<u32>,
    pub rate_iops: Option<u64>,
    /// Not in results of versions without such scenarios.
    #[serde(default)]
    pub files: Option<usize>,
    #[serde(default)]
    pub space: Option<String>,
}

impl fmt::Display for SavedWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bs = Sizes { min_bytes: self.bs_min_bytes, max_bytes: self.bs_max_bytes };
        write!(f, "{} bs={bs} {}", self.scenario, self.durability)?;
        let named =
            |name: &str, value: Option<&String>| value.map(|value| format!(", {name} {value}"));
        let parts = [
            named("growth", self.growth.as_ref()),
            named("tail", self.tail.as_ref()),
            self.rwmixread.map(|percent| format!(", {percent} % reads")),
            self.files.map(|files| format!(", {}", counted(files as u64, "file"))),
            self.space.as_ref().map(|space| format!(", {space} space")),
            self.rate_iops.map(|rate| format!(", {rate} iops offered")),
            (self.backend != "system").then(|| format!(", backend {}", self.backend)),
        ];
        parts.iter().flatten().try_for_each(|part| f.write_str(part))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { work, path, numjobs, iodepth } = self;
        write!(f, "{work}: {path} numjobs={numjobs} iodepth={iodepth}")
    }
}

/// Reads the document from a file, or from stdin (`-`).
pub fn read(path: &Path) -> Result<SavedDocument> {
    let name = || path.display().to_string();
    let mut text = Vec::new();
    match path {
        path if path == Path::new("-") => {
            io::stdin().read_to_end(&mut text).context("stdin")?;
        }
        path => text = std::fs::read(path).with_context(name)?,
    }
    parse(&text).with_context(name)
}

/// The document in a text.
pub fn parse(text: &[u8]) -> Result<SavedDocument> {
    let value: Value =
        serde_json::from_slice(text).context("is no JSON; needed is what `bench --json` writes")?;
    if let Some(why_not) = why_not(&value) {
        bail!("{why_not}; needed is what `bench --json` writes");
    }
    let document =
        serde_json::from_value(value).context("is not quite what `bench --json` writes")?;
    check(&document)?;
    Ok(document)
}

/// Checks the document as a whole.
fn check(document: &SavedDocument) -> Result<()> {
    for (nth, row) in document.results.iter().enumerate() {
        let rounds = row.rounds_iops.len();
        let is_whole = |figures: &[f64]| figures.len() == rounds;
        ensure!(
            is_whole(&row.rounds_p99_ns)
                && is_whole(&row.rounds_cpu_us_per_op)
                && row.rounds_ratio_to_kernel.as_deref().is_none_or(is_whole),
            "figures of different numbers of rounds stand in one row: {:?}",
            row.key.to_string()
        );
        let is_twin = |other: &SavedRow| other.key == row.key;
        ensure!(
            !document.results[..nth].iter().any(is_twin),
            "a row is there twice: {:?}",
            row.key.to_string()
        );
    }
    // Names are printed on a terminal.
    let is_plain = |text: &str| !text.chars().any(char::is_control);
    let Machine { dioxide_version, build, kernel_release, cpu_model, target, device, date, .. } =
        &document.machine;
    let texts = [dioxide_version, build, kernel_release, target, date]
        .into_iter()
        .chain(cpu_model)
        .chain(device)
        .chain(&document.label);
    let of_rows = document.results.iter().flat_map(|row| {
        [Some(row.key.to_string()), row.fs.clone(), row.fs_remark.clone()].into_iter().flatten()
    });
    let are_plain =
        texts.map(String::as_str).all(is_plain) && of_rows.into_iter().all(|text| is_plain(&text));
    ensure!(are_plain, "has control characters in its texts");
    Ok(())
}

/// The kind of another document.
fn why_not(value: &Value) -> Option<&'static str> {
    let kind = value.get("kind").and_then(Value::as_str).unwrap_or_default();
    let version = value.get("schema_version").and_then(Value::as_u64).unwrap_or_default();
    let results = value.get("results").and_then(Value::as_array);
    match results.map(Vec::as_slice) {
        _ if value.get("fio version").is_some() => {
            Some("is in fio's shape, which has no figures of rounds")
        }
        _ if kind == "compare" => Some("is a comparison itself"),
        _ if kind == "diagnose" => Some("is a diagnosis"),
        _ if kind == "history" => Some("is a history itself"),
        _ if kind == "probe" => Some("is what `dioxide probe` found"),
        _ if !["", "bench"].contains(&kind) => Some("is of another kind"),
        _ if version > SCHEMA_VERSION_MAX => {
            Some("is of a later dioxide, which this one does not understand")
        }
        None => Some("is JSON, but of something else: it has no `results`"),
        Some([]) => Some("has no results"),
        Some(rows) if rows.iter().any(|row| row.get("rounds_iops").is_none()) => {
            Some("has medians only, and no figures of the rounds: this dioxide did not write it")
        }
        Some(_) => None,
    }
}

#[cfg(test)]
pub mod examples {
    use super::*;

    pub fn row(
        path: &str,
        numjobs: usize,
        rounds_iops: &[f64],
        kernel_iops: Option<&[f64]>,
    ) -> SavedRow {
        let ratios = |kernel: &[f64]| {
            rounds_iops.iter().zip(kernel).map(|(own, kernel)| own / kernel).collect()
        };
        SavedRow {
            key: Key {
                work: SavedWork {
                    scenario: "append".into(),
                    backend: "system".into(),
                    bs_min_bytes: 4096,
                    bs_max_bytes: 4096,
                    durability: "on-sync".into(),
                    growth: Some("unwritten".into()),
                    tail: None,
                    rwmixread: None,
                    rate_iops: None,
                    files: None,
                    space: None,
                },
                path: path.into(),
                numjobs,
                iodepth: 1,
            },
            fs: Some("ext4".into()),
            fs_remark: None,
            asked: Asked { runtime_ms: Some(2000), size_bytes: 4 << 30, ..Asked::default() },
            rounds_iops: rounds_iops.to_vec(),
            rounds_p99_ns: rounds_iops.iter().map(|iops| 1e9 / iops).collect(),
            rounds_cpu_us_per_op: rounds_iops.iter().map(|_| 5.0).collect(),
            rounds_ratio_to_kernel: kernel_iops.map(ratios),
        }
    }

    pub fn document(results: Vec<SavedRow>) -> SavedDocument {
        SavedDocument {
            machine: Machine {
                kernel_release: "6.18.0".into(),
                device: Some("nvme0n1".into()),
                ..Machine::describe("/data".into(), None)
            },
            label: None,
            results,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::figures::Row;
    use crate::bench::figures::examples::{append_point, files_point, row};
    use crate::bench::work::Route;
    use crate::report::{self, Report};

    fn refusal(text: &str) -> String {
        format!("{:#}", parse(text.as_bytes()).unwrap_err())
    }

    fn written(rows: Vec<Row>) -> Value {
        let machine = Machine::describe("/somewhere".into(), None);
        let report = Report { label: None, machine, fs: None, rows };
        serde_json::to_value(report::json::document(&report)).unwrap()
    }

    fn read_back(document: &Value) -> SavedDocument {
        parse(document.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn what_the_bench_writes_is_read() {
        let document = read_back(&written(vec![
            row(append_point(64), Route::Kernel, &[100, 200]),
            row(append_point(64), Route::Queue { iodepth: 64 }, &[1000, 1600]),
        ]));
        assert_eq!((document.machine.target.as_str(), document.results.len()), ("/somewhere", 2));
        let queue = &document.results[1];
        assert_eq!(
            queue.key.to_string(),
            "append bs=4 KiB on-sync, growth unwritten: dioxide-queue numjobs=1 iodepth=64"
        );
        assert_eq!(queue.rounds_iops, [1000.0, 1600.0]);
        assert_eq!(queue.rounds_ratio_to_kernel, Some(vec![10.0, 8.0]));
        assert_eq!(document.results[0].rounds_ratio_to_kernel, None);
    }

    #[test]
    fn many_files_are_part_of_the_work() {
        let document = read_back(&written(vec![
            row(files_point(1024, 64), Route::OneThread, &[100]),
            row(files_point(16, 64), Route::OneThread, &[100]),
        ]));
        assert_eq!(
            document.results[0].key.to_string(),
            "files bs=4 KiB every-write, 1024 files, written space: one-thread numjobs=1 iodepth=1"
        );
    }

    /// Of a version without the keys `files` and `space`.
    #[test]
    fn an_old_result_is_of_the_same_work() {
        let new = written(vec![row(append_point(64), Route::Kernel, &[100, 200])]);
        let mut old = new.clone();
        let row = old["results"][0].as_object_mut().unwrap();
        assert!(row.remove("files").is_some() && row.remove("space").is_some());
        assert_eq!(read_back(&old).results[0].key, read_back(&new).results[0].key);
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        let whole = examples::document(vec![examples::row("kernel", 1, &[1.0, 2.0], None)]);
        assert!(check(&whole).is_ok());
        let refusal = |change: fn(&mut SavedDocument)| {
            let mut document = whole.clone();
            change(&mut document);
            check(&document).unwrap_err().to_string()
        };
        assert!(refusal(|it| it.results.push(it.results[0].clone())).contains("there twice"));
        assert!(
            refusal(|it| it.results[0].rounds_p99_ns.truncate(1))
                .contains("different numbers of rounds")
        );
        assert!(
            refusal(|it| it.results[0].rounds_ratio_to_kernel = Some(vec![]))
                .contains("different numbers")
        );
        assert!(
            refusal(|it| it.results[0].fs = Some("\x1b[2J".into())).contains("control characters")
        );
        assert!(refusal(|it| it.machine.target.push('\n')).contains("control characters"));
        assert!(refusal(|it| it.label = Some("\x1b".into())).contains("control characters"));
    }

    #[test]
    fn what_it_is_instead_is_said() {
        for (text, words) in [
            ("", "is no JSON"),
            ("{\"results\": [", "is no JSON"),
            ("[1, 2]", "has no `results`"),
            ("{\"fio version\": \"fio-3.33\", \"jobs\": []}", "is in fio's shape"),
            ("{\"kind\": \"diagnose\"}", "is a diagnosis"),
            ("{\"kind\": \"probe\"}", "is what `dioxide probe` found"),
            ("{\"kind\": \"compare\"}", "is a comparison itself"),
            ("{\"kind\": \"weather\"}", "is of another kind"),
            ("{\"kind\": \"bench\", \"schema_version\": 2}", "is of a later dioxide"),
            ("{\"results\": []}", "has no results"),
            ("{\"results\": [{\"iops\": 5}]}", "has medians only"),
        ] {
            let said = refusal(text);
            assert!(
                said.contains(words) && said.contains("needed is what `bench --json` writes"),
                "{said}"
            );
        }
        assert!(refusal("{\"results\": [{\"rounds_iops\": []}]}").contains("missing field"));
    }
}
