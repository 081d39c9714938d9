//! `dioxide compare` from outside: real results compared with themselves and with edited ones, exit
//! codes, and refusals.

mod common;

use common::*;
use serde_json::Value;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use tempfile::TempDir;

/// A directory with `old.json`: a real result, with round figures that do not depend on other load
/// of the machine.
fn measured() -> (TempDir, Value) {
    let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = dir.path().join("old.json");
    let line = format!(
        "bench append --dir {} --numjobs 2 --iodepth 2 --runtime 20ms --rounds 6 --size 16m --json \
         {}",
        dir.path().display(),
        file.display()
    );
    expect_code(&run(&line), 0);
    let mut document: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    for row in document["results"].as_array_mut().unwrap() {
        assert_eq!(row["rounds_iops"].as_array().unwrap().len(), 6);
        let figures =
            |scale: f64| (0..6).map(|nth| scale * (1.0 + f64::from(nth) / 1e3)).collect::<Vec<_>>();
        row["rounds_iops"] = figures(1000.0).into();
        if row["path"] != "kernel" {
            row["rounds_ratio_to_kernel"] = figures(5.0).into();
        }
    }
    fs::write(file, document.to_string()).unwrap();
    (dir, document)
}

fn save(dir: &Path, document: &Value) -> PathBuf {
    let file = dir.join("new.json");
    fs::write(&file, document.to_string()).unwrap();
    file
}

fn compare(dir: &Path, options: &str) -> Output {
    let [old, new] = ["old.json", "new.json"].map(|name| dir.join(name).display().to_string());
    run(&format!("compare {old} {new} {options}"))
}

/// Scales the time of the rounds of dioxide's paths.
fn scale(document: &mut Value, factor: f64) {
    for row in document["results"].as_array_mut().unwrap() {
        if row["path"].as_str().unwrap().starts_with("dioxide") {
            for key in ["rounds_iops", "rounds_ratio_to_kernel"] {
                let rounds = row[key].as_array_mut().unwrap();
                rounds
                    .iter_mut()
                    .for_each(|round| *round = (round.as_f64().unwrap() * factor).into());
            }
        }
    }
}

#[test]
fn a_result_beside_itself_has_no_regression() {
    let (dir, document) = measured();
    save(dir.path(), &document);
    let output = compare(dir.path(), "--fail-on-regression 0%");
    expect_code(&output, 0);
    assert!(
        stdout(&output).contains("Rows judged: 2, of which 0 slower by more than 0 %"),
        "{}",
        stdout(&output)
    );
    let output = compare(dir.path(), "--by ops --json -");
    expect_code(&output, 0);
    let comparison: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = comparison["comparison"].as_array().unwrap();
    assert_eq!((rows.len(), &comparison["by"]), (4, &"ops".into()));
    for row in rows {
        assert_eq!(
            (&row["verdict"], &row["basis"]),
            (&"no-difference".into(), &"iops".into()),
            "{row}"
        );
        assert_eq!(
            (&row["iops"]["ratio"], &row["p_adjusted"]),
            (&1.0.into(), &1.0.into()),
            "{row}"
        );
    }
}

#[test]
fn a_regression_ends_with_3() {
    let (dir, mut document) = measured();
    scale(&mut document, 0.7);
    save(dir.path(), &document);
    let output = compare(dir.path(), "--fail-on-regression 10%");
    expect_code(&output, 3);
    assert_eq!(stderr(&output), "dioxide: 2 of 2 rows are slower by more than 10 %\n");
    assert_eq!(stdout(&output).matches("REGRESSION").count(), 2, "{}", stdout(&output));
    expect_code(&compare(dir.path(), "--fail-on-regression 40%"), 0);
    let output = compare(dir.path(), "");
    expect_code(&output, 0);
    assert!(stdout(&output).contains("30.0 % slower"), "{}", stdout(&output));
    let file = dir.path().join("out.json");
    let output = compare(dir.path(), &format!("--fail-on-regression 10 --json {}", file.display()));
    expect_code(&output, 3);
    let comparison: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    assert_eq!(comparison["comparison"][2]["verdict"], "regression");
    assert!(stdout(&output).contains("REGRESSION"), "the file is written beside the table");
}

#[test]
fn too_few_rounds_do_not_pass_for_none() {
    let (dir, mut document) = measured();
    for row in document["results"].as_array_mut().unwrap() {
        for key in
            ["rounds_iops", "rounds_p99_ns", "rounds_cpu_us_per_op", "rounds_ratio_to_kernel"]
        {
            row[key].as_array_mut().into_iter().for_each(|rounds| rounds.truncate(3));
        }
    }
    save(dir.path(), &document);
    let output = compare(dir.path(), "");
    expect_code(&output, 0);
    assert!(stdout(&output).contains("fewer than 4 rounds"), "{}", stdout(&output));
    let output = compare(dir.path(), "--fail-on-regression 10%");
    expect_code(&output, 1);
    assert!(stderr(&output).contains("2 of the rows cannot be judged"), "{}", stderr(&output));
}

#[test]
fn a_row_that_is_gone_does_not_pass() {
    let (dir, mut document) = measured();
    document["results"].as_array_mut().unwrap().retain(|row| row["path"] != "dioxide-queue");
    save(dir.path(), &document);
    expect_code(&compare(dir.path(), ""), 0);
    let output = compare(dir.path(), "--fail-on-regression 10%");
    expect_code(&output, 1);
    assert!(
        stderr(&output).contains("The new run lacks 1 of the rows to judge"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn what_would_be_overlooked_does_not_pass() {
    let (dir, mut document) = measured();
    for row in document["results"].as_array_mut().unwrap() {
        for key in
            ["rounds_iops", "rounds_p99_ns", "rounds_cpu_us_per_op", "rounds_ratio_to_kernel"]
        {
            row[key].as_array_mut().into_iter().for_each(|rounds| rounds.truncate(4));
        }
    }
    for name in ["old.json", "new.json"] {
        fs::write(dir.path().join(name), document.to_string()).unwrap();
    }
    let output = compare(dir.path(), "--fail-on-regression 10%");
    expect_code(&output, 1);
    assert!(stderr(&output).contains("would count as chance"), "{}", stderr(&output));
}

#[test]
fn unlike_runs_are_refused_until_allowed() {
    let (dir, mut document) = measured();
    document["kernel_release"] = "5.4.0".into();
    document["results"][0]["asked"]["runtime_ms"] = 2000.into();
    save(dir.path(), &document);
    let output = compare(dir.path(), "");
    expect_refusal(&output, "not alike");
    let said = stderr(&output);
    assert!(
        said.contains(" and 5.4.0; ms in a round: 20 and 2000. Measure both in the same way"),
        "{said}"
    );
    let output = compare(dir.path(), "--allow-unlike");
    expect_code(&output, 0);
    assert!(stdout(&output).contains("The runs are not alike: kernel: "), "{}", stdout(&output));
}

#[test]
fn other_work_is_refused() {
    let (dir, mut document) = measured();
    for row in document["results"].as_array_mut().unwrap() {
        row["numjobs"] = 77.into();
    }
    save(dir.path(), &document);
    expect_refusal(&compare(dir.path(), ""), "no row is in both");
}

#[test]
fn what_is_no_result_is_refused() {
    let (dir, document) = measured();
    save(dir.path(), &document);
    for (text, words) in [
        ("not JSON", "is no JSON"),
        ("{\"fio version\": \"fio-3.33\"}", "is in fio's shape"),
        ("{\"results\": [{\"iops\": 1}]}", "has medians only"),
    ] {
        fs::write(dir.path().join("old.json"), text).unwrap();
        let output = compare(dir.path(), "");
        expect_refusal(&output, words);
        assert!(stderr(&output).contains("old.json: "), "{}", stderr(&output));
    }
    expect_refusal(&run("compare /no/such/file /no/such/file"), "/no/such/file: No such file");
    expect_refusal(&compare(dir.path(), "--json /no/such/directory/x"), "no such directory");
    let new = dir.path().join("new.json");
    expect_refusal(
        &compare(dir.path(), &format!("--json {}", new.display())),
        "is one of the files that are read",
    );
}

#[test]
fn the_new_run_in_bencher_metric_format() {
    let (dir, document) = measured();
    save(dir.path(), &document);
    let output = compare(dir.path(), "--bmf -");
    expect_code(&output, 0);
    let metrics: Value = serde_json::from_slice(&output.stdout).unwrap();
    let metrics = metrics.as_object().unwrap();
    assert_eq!(metrics.len(), document["results"].as_array().unwrap().len());
    for metric in metrics.values() {
        assert_eq!(metric["throughput"]["lower_value"], 1000.0, "{metric}");
        assert!(metric["latency"]["value"].as_f64().unwrap() > 0.0, "{metric}");
    }
    let new = dir.path().join("new.json");
    expect_refusal(
        &compare(dir.path(), &format!("--bmf {}", new.display())),
        "is one of the files that are read",
    );
}

#[test]
fn stdin_is_one_of_them() {
    let (dir, document) = measured();
    let file = save(dir.path(), &document);
    let mut command = dioxide(&format!("compare - {}", file.display()));
    command.stdin(Stdio::from(File::open(dir.path().join("old.json")).unwrap()));
    expect_code(&command.output().unwrap(), 0);
    expect_code(&run("compare - -"), 2);
}

/// The line of a bench like that of `old.json`.
fn with_baseline(dir: &Path, more: &str) -> String {
    let dir = dir.display();
    format!("bench append --dir {dir} --numjobs 2 --iodepth 2 --baseline {dir}/old.json {more}")
}

/// The defect: the table had all columns, and was wrapped again as prose.
#[test]
fn a_baseline_was_garbled_on_a_narrow_terminal() {
    let (dir, _) = measured();
    let [old, new] = ["old.json", "new.json"].map(|name| dir.path().join(name));
    let narrow = |line: String| dioxide(&line).env("COLUMNS", "80").output().unwrap();
    let output = narrow(with_baseline(dir.path(), &format!("--json {}", new.display())));
    expect_code(&output, 0);
    let alone = narrow(format!("compare {} {}", old.display(), new.display()));
    assert!(stdout(&output).ends_with(stdout(&alone)), "{}", stdout(&output));
}

#[test]
fn a_baseline_is_compared_at_the_end() {
    let (dir, _) = measured();
    let new = dir.path().join("new.json");
    let bench = |more: &str| run(&with_baseline(dir.path(), more));
    let output = bench(&format!("--json {}", new.display()));
    expect_code(&output, 0);
    let shown = stdout(&output);
    assert!(shown.contains("Appends") && shown.contains("verdict"), "{shown}");
    assert!(shown.find("Appends") < shown.find("verdict"), "{shown}");
    // The same comparison as that of the command.
    let last = |text: &str| text.lines().rfind(|line| !line.is_empty()).unwrap().to_owned();
    assert_eq!(last(shown), last(stdout(&compare(dir.path(), ""))));
    let document: Value = serde_json::from_slice(&fs::read(&new).unwrap()).unwrap();
    let row = &document["results"][0];
    assert_eq!((&row["asked"]["runtime_ms"], &row["rounds"]), (&20.into(), &6.into()));
    assert_eq!(row["asked"]["size_bytes"], 16 << 20);

    let output = bench("--json -");
    expect_code(&output, 0);
    serde_json::from_str::<Value>(stdout(&output)).expect("stdout is JSON and nothing else");
    assert!(stderr(&output).contains("verdict"), "{}", stderr(&output));

    let output = bench("--runtime 200ms --rounds 1");
    expect_code(&output, 1);
    assert!(stdout(&output).contains("Appends"), "the report is printed all the same");
    assert!(stderr(&output).contains("not alike"), "{}", stderr(&output));
    let line = format!("bench append --dir {} --baseline /no/such/file", dir.path().display());
    expect_refusal(&run(&line), "/no/such/file: No such file");
}
