//! `dioxide history` from outside: real results, copied with other dates and figures; exit codes,
//! refusals, and what is read from a directory.

mod common;

use common::*;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::Output;
use tempfile::TempDir;

/// A directory with so many results: a real one with other dates, and ratios of dioxide's paths
/// around these levels.
fn results(levels: &[(f64, usize)]) -> TempDir {
    let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let output = run(&format!(
        "bench append --dir {} --numjobs 2 --iodepth 2 --runtime 20ms --rounds 4 --size 16m \
         --label first --json -",
        dir.path().display(),
    ));
    expect_code(&output, 0);
    let real: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(real["label"], "first");
    let levels = levels.iter().flat_map(|(level, runs)| vec![*level; *runs]);
    for (nth, level) in levels.enumerate() {
        let mut document = real.clone();
        document["date"] = format!("2026-01-{:02}T12:00:00Z", nth + 1).into();
        document["label"] = format!("build {nth}").into();
        for row in document["results"].as_array_mut().unwrap() {
            // A few percent of noise, without chance.
            let noise = |round: usize| 1.0 + ((nth * 37 + round * 11) % 13) as f64 / 300.0;
            let figures = |level: f64| (0..4).map(|it| level * noise(it)).collect::<Vec<_>>();
            row["rounds_iops"] = figures(100.0).into();
            if row["path"].as_str().unwrap().starts_with("dioxide") {
                row["rounds_iops"] = figures(100.0 * level).into();
                row["rounds_ratio_to_kernel"] = figures(level).into();
            }
        }
        fs::write(dir.path().join(format!("{:02}.json", 99 - nth)), document.to_string()).unwrap();
    }
    dir
}

fn history(dir: &Path, options: &str) -> Output {
    run(&format!("history {} {options}", dir.display()))
}

#[test]
fn a_regression_ends_with_3() {
    let dir = results(&[(5.0, 12), (3.5, 8)]);
    let output = history(dir.path(), "--fail-on-regression 10%");
    expect_code(&output, 3);
    assert_eq!(
        stderr(&output),
        "dioxide: 2 of 2 rows are slower by more than 10 % since a change\n"
    );
    let text = stdout(&output);
    assert_eq!(text.matches("REGRESSION").count(), 2, "{text}");
    assert!(text.contains("since 2026-01-13 12:00:00, build 12; relative to the kernel"), "{text}");
    expect_code(&history(dir.path(), "--fail-on-regression 40%"), 0);
    expect_code(&history(dir.path(), ""), 0);
    expect_code(&history(dir.path(), "--fail-on-regression 10% --newest 8"), 1);
    let output = history(dir.path(), "--by ops --json -");
    let document: Value = serde_json::from_str(stdout(&output)).unwrap();
    let series = document["series"].as_array().unwrap();
    assert_eq!((series.len(), &document["by"]), (4, &json!("ops")));
    for one in series {
        let is_dioxide = one["path"].as_str().unwrap().starts_with("dioxide");
        let points = one["change_points"].as_array().unwrap();
        assert_eq!(points.len(), usize::from(is_dioxide), "{one}");
        assert!(points.iter().all(|point| point["run"] == 12), "{one}");
    }
}

#[test]
fn nothing_changed() {
    let dir = results(&[(5.0, 14)]);
    let output = history(dir.path(), "--fail-on-regression 10%");
    expect_code(&output, 0);
    assert_eq!(stdout(&output).matches("no change").count(), 4, "{}", stdout(&output));
}

#[test]
fn too_few_results_do_not_pass_for_none() {
    let dir = results(&[(5.0, 4)]);
    let output = history(dir.path(), "");
    expect_code(&output, 0);
    assert!(stdout(&output).contains("Measure 6 more."), "{}", stdout(&output));
    let output = history(dir.path(), "--fail-on-regression 10%");
    expect_code(&output, 1);
    assert!(stderr(&output).contains("2 of the rows cannot be judged"), "{}", stderr(&output));
}

#[test]
fn a_directory_may_have_other_files() {
    let dir = results(&[(5.0, 3)]);
    let path = dir.path();
    fs::write(path.join("notes.txt"), "text").unwrap();
    fs::write(path.join("compare.json"), "{\"kind\": \"compare\"}").unwrap();
    fs::copy(path.join("99.json"), path.join("copy.json")).unwrap();
    let output = history(path, "");
    expect_code(&output, 0);
    let text = stdout(&output);
    assert!(text.starts_with("3 results: "), "{text}");
    assert!(text.contains("compare.json is a comparison itself"), "{text}");
    assert!(text.contains("Copies, counted once: 1."), "{text}");
    assert!(!text.contains("notes.txt"), "{text}");
    let named = path.join("compare.json");
    expect_refusal(&run(&format!("history {}", named.display())), "is a comparison itself");
}

/// Older results, copies, skipped files, and files under other names are inputs, too.
#[test]
fn no_output_goes_over_a_file_that_was_read() {
    let dir = results(&[(5.0, 4)]);
    let path = dir.path();
    fs::copy(path.join("97.json"), path.join("99copy.json")).unwrap();
    fs::write(path.join("broken.json"), "{").unwrap();
    fs::hard_link(path.join("97.json"), path.join("other.name")).unwrap();
    std::os::unix::fs::symlink("97.json", path.join("link")).unwrap();
    for name in ["99.json", "97.json", "99copy.json", "broken.json", "other.name", "link"] {
        let before = fs::read(path.join(name)).unwrap();
        for option in ["json", "html"] {
            let options = format!("--newest 2 --{option} {}", path.join(name).display());
            expect_refusal(&history(path, &options), "is one of the results");
        }
        assert_eq!(fs::read(path.join(name)).unwrap(), before, "{name}");
    }
    expect_code(&history(path, &format!("--json {}", path.join("new.json").display())), 0);
}

#[test]
fn refusals() {
    let dir = results(&[(5.0, 1)]);
    let empty = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    expect_refusal(&history(empty.path(), ""), "no result of `bench --json` was found");
    expect_refusal(&run("history /no/such/file"), "/no/such/file: No such file");
    let file = dir.path().join("99.json");
    expect_refusal(
        &history(dir.path(), &format!("--html {}", file.display())),
        "is one of the results",
    );
    let text = fs::read_to_string(&file).unwrap().replace("2026-01-01T12:00:00Z", "yesterday");
    fs::write(&file, text).unwrap();
    expect_refusal(&run(&format!("history {}", file.display())), "its date is not in the form");
    expect_code(&run("bench append --label "), 2);
}
