//! The command line from outside, on the file system of the build: misuse, exit codes, output, and
//! clean-up when it is stopped.

mod common;

use common::*;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use tempfile::TempDir;

fn fresh_dir() -> TempDir {
    TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn is_empty(dir: &Path) -> bool {
    fs::read_dir(dir).unwrap().next().is_none()
}

fn results(output: &Output) -> Vec<Value> {
    let document: Value =
        serde_json::from_slice(&output.stdout).expect("stdout is JSON and nothing else");
    document["results"].as_array().unwrap().clone()
}

#[test]
fn usage_errors_end_with_2() {
    for line in [
        "",
        "bench nothing",
        "bench append --bs 0",
        "bench sync --bs 512-4k",
        "bench append --numjobs none",
        "bench append --runtime 2h",
        "bench sync --device /dev/null",
        "bench sync --stripe .,. --chunk 5000",
        "bench mixed --stripe .,.",
        "bench indirect --count none",
        "bench mixed --rwmixread 101",
        "bench files --files 16385",
        "bench files --bs 4k,8k",
        "bench checkpoint --rate 5",
        "diagnose",
        "diagnose . --pid 1",
        "diagnose . --seconds 3",
        "diagnose --pid 1 --bs 4k",
        "log",
        "log stat",
        "recover",
        "copy one",
        "--nonsense",
    ] {
        let output = run(line);
        expect_code(&output, 2);
        assert_eq!(stdout(&output), "", "{line}");
    }
}

/// Sets the title of a terminal, forges a line, and reverses the rest of the line.
const ACTS: &str = "\u{1b}]0;title\u{7}\ndioxide: fine\u{202e}";
const SHOWN: &str = r"\u{1b}]0;title\u{7}\ndioxide: fine\u{202e}";

fn expect_shown(text: &str, lines: usize) {
    assert!(!text.chars().any(|c| c != '\n' && (c.is_control() || c == '\u{202e}')), "{text:?}");
    assert!(text.contains(SHOWN) && text.lines().count() == lines, "{text:?}");
}

/// The defect: file names reached the terminal unescaped.
#[test]
fn names_of_files_do_not_act_on_the_terminal() {
    let dir = fresh_dir();
    let file = dir.path().join(ACTS);
    let recover = |more: &[&str]| dioxide("recover").args(more).arg(&file).output().unwrap();
    let missing = recover(&[]);
    expect_code(&missing, 1);
    expect_shown(stderr(&missing), 1);
    fs::write(&file, "something").unwrap();
    let clean = recover(&["--dry-run"]);
    expect_code(&clean, 0);
    expect_shown(stdout(&clean), 1);
    let compared = dioxide("compare").args([&file, &file]).output().unwrap();
    expect_code(&compared, 1);
    expect_shown(stderr(&compared), 1);
}

/// The defect: so did the names of watched threads and programs. For programs they are exact.
#[test]
fn names_of_programs_do_not_act_on_the_terminal() {
    use std::os::unix::process::CommandExt;
    let mut watched = Command::new("sleep").arg0(ACTS).arg("1000").spawn().unwrap();
    let diagnose = |more: &str| run(&format!("diagnose --pid {} --seconds 1 {more}", watched.id()));
    let (text, json) = (diagnose(""), diagnose("--json -"));
    watched.kill().and_then(|()| watched.wait()).unwrap();
    let title: String = stdout(&text).lines().take_while(|line| !line.is_empty()).collect();
    assert!(!stdout(&text).contains(['\u{1b}', '\u{7}', '\u{202e}']), "{:?}", stdout(&text));
    assert!(
        title.starts_with("Process ") && title.contains(r"\u{1b}]0;title\u{7}\ndioxide:"),
        "{title:?}"
    );
    let document: Value = serde_json::from_slice(&json.stdout).unwrap();
    let command = &document["diagnoses"][0]["evidence"]["subject"]["program"]["command"];
    assert!(command.as_str().is_some_and(|command| command.contains(ACTS)), "{}", stdout(&json));
}

#[test]
fn misuse_is_one_sentence() {
    let dir = fresh_dir();
    let file = dir.path().join("file");
    fs::write(&file, "something").unwrap();
    let (dir, file) = (dir.path().display(), file.display());
    for (line, words) in [
        ("bench append --dir /no/such/directory".into(), "/no/such/directory: No such file"),
        (format!("bench append --dir {file}"), "is not a directory"),
        (format!("bench append --dir {dir} --size 900t"), "free"),
        (
            format!("bench append --dir {dir} --size 4k --numjobs 64"),
            "no room for one block of each thread",
        ),
        (format!("bench append --dir {dir} --json /no/such/directory/x"), "no such directory"),
        (format!("bench sync --device {file} --overwrite-device {file}"), "is not a block device"),
        (
            "bench sync --device /dev/null --overwrite-device /dev/null".into(),
            "is not a block device",
        ),
        ("bench sync --device /dev/a --overwrite-device /dev/b".into(), "nothing was touched"),
        (format!("bench sync --stripe {dir}"), "two members at least"),
        (format!("bench sync --stripe {dir},{file}"), "is not a block device"),
        (format!("bench sync --stripe {dir},/no/such/place"), "/no/such/place"),
        (
            format!("bench sync --stripe {dir},{dir} --overwrite-device {dir}"),
            "--stripe directories",
        ),
        (format!("bench sync --stripe {dir},{dir} --chunk 900t"), "and this needs"),
        (format!("bench indirect --dir {file}"), "is not a directory"),
        (
            format!("bench mixed --dir {dir} --size 4k --numjobs 64"),
            "no room for one block of each thread",
        ),
        (format!("bench append --dir {dir} --recycle --backend sim"), "--backend sim has none"),
        ("bench files --dir /no/such/directory".into(), "/no/such/directory: No such file"),
        (
            format!("bench files --dir {dir} --files 100 --size 399k"),
            "no room for one block of each file, thread or queued operation (400 KiB)",
        ),
        (format!("bench checkpoint --dir {dir} --files 2 --bs 512 --size 512"), "(1 KiB)"),
        (format!("bench checkpoint --dir {dir} --files 2 --size 900t"), "free"),
        (format!("bench mixed --device {file} --overwrite-device {file}"), "is not a block device"),
        ("bench mixed --device /dev/a --overwrite-device /dev/b".into(), "nothing was touched"),
        ("diagnose /no/such/directory".into(), "/no/such/directory: No such file"),
        (format!("diagnose {file}"), "is not a directory"),
        (format!("diagnose {dir} --overwrite-device {dir}"), "is not a block device"),
        (format!("diagnose {dir} --overwrite-device /dev/a"), "nothing was touched"),
        (format!("diagnose {dir} --rw append --size 900t"), "free"),
        (format!("diagnose {dir} --json /no/such/directory/x"), "no such directory"),
        ("diagnose --pid 4194304".into(), "there is no process 4194304"),
        ("log verify /no/such/directory".into(), "/no/such/directory: no log"),
        (format!("log stat {dir}"), "no log"),
        (format!("log dump {file}"), "no log"),
        ("recover /no/such/file".into(), "/no/such/file"),
        (format!("copy /no/such/file {dir}"), "/no/such/file"),
        (format!("copy {file} /no/such/directory/x"), "/no/such/directory"),
        (format!("copy {dir} /no/such/x"), "not a regular file"),
    ] {
        expect_refusal(&run(&line), words);
    }
    assert_eq!(fs::read_to_string(file.to_string()).unwrap(), "something");
}

#[test]
fn json_has_stdout_to_itself() {
    let dir = fresh_dir();
    let output = short_append(dir.path(), "--json -");
    expect_code(&output, 0);
    let results = results(&output);
    assert_eq!(results.len(), 2 * 3 + 1, "two numbers of threads by three paths, and a queue");
    for result in &results {
        let mut keys: Vec<&str> = result.as_object().unwrap().keys().map(String::as_str).collect();
        keys.sort_by_key(|key| KEYS.iter().position(|known| known == key));
        assert_eq!(keys, KEYS);
        assert!(result["iops"].as_f64().unwrap() > 0.0);
        assert!(result["clat_ns"]["percentile"]["99.000000"].as_u64().unwrap() > 0);
    }
    let paths: Vec<&str> = results.iter().map(|result| result["path"].as_str().unwrap()).collect();
    assert_eq!(paths[..3], ["kernel", "preallocated", "dioxide"]);
    let queue = &results[6];
    assert_eq!(
        (&queue["path"], &queue["numjobs"], &queue["iodepth"]),
        (&"dioxide-queue".into(), &1.into(), &4.into())
    );
    assert!(queue["ratio_to_kernel"]["median"].as_f64().unwrap() > 0.0, "beside 4 threads");
    assert!(results[2]["ratio_to_kernel"]["median"].as_f64().unwrap() > 0.0);
    assert!(results[2]["ratio_to_preallocated"]["max"].as_f64().unwrap() > 0.0);
    assert!(!stderr(&output).contains('\r'), "no progress bar without a terminal");
    assert!(is_empty(dir.path()));
}

#[test]
fn records_of_any_length() {
    let dir = fresh_dir();
    let output = short_append(dir.path(), "--bs 100,1-300 --durability every-write --json -");
    expect_code(&output, 0);
    let results = results(&output);
    let paths: Vec<&str> = results.iter().map(|result| result["path"].as_str().unwrap()).collect();
    let threads = ["kernel", "preallocated", "buffered-group", "dioxide"];
    assert_eq!(paths, [&threads[..], &threads, &["dioxide-queue"]].concat().repeat(2));
    let (hundred, range) = results.split_at(9);
    for result in hundred {
        let [iops, bw] = ["iops", "bw_bytes"].map(|key| result[key].as_f64().unwrap());
        assert!((bw / iops - 100.0).abs() < 0.01, "{result}");
        assert_eq!((&result["bs_bytes"], &result["tail"]), (&100.into(), &"rewrite".into()));
    }
    for result in range {
        assert!(result["bs_bytes"].is_null(), "{result}");
        assert_eq!((&result["bs_min_bytes"], &result["bs_max_bytes"]), (&1.into(), &300.into()));
        let [iops, bw] = ["iops", "bw_bytes"].map(|key| result[key].as_f64().unwrap());
        // A slow machine writes few records in a run.
        assert!((1.0..300.0).contains(&(bw / iops)), "{result}");
    }
    for row in [&results[3], &results[8]] {
        assert!(
            row["ratio_to_kernel"].is_object() && row["ratio_to_buffered_group"].is_object(),
            "{row}"
        );
    }
}

#[test]
fn sizes_are_shown_with_units() {
    let dir = fresh_dir();
    let output = short_append(dir.path(), "--bs 512-4k --tail pad");
    expect_code(&output, 0);
    for words in [
        "Appends: bs=512 B-4 KiB on-sync",
        ", tail pad,",
        "Appends of 512 B-4 KiB: ",
        "x buffered-group",
        "the rate of a buffered group commit",
    ] {
        assert!(stdout(&output).contains(words), "{words} in {}", stdout(&output));
    }
}

#[test]
fn a_given_load_is_not_exceeded() {
    let dir = fresh_dir();
    let output = short_append(dir.path(), "--rate 400 --json -");
    expect_code(&output, 0);
    for result in results(&output) {
        // Runs of 50 ms: the first operation of each thread is due at once.
        assert!(result["iops"].as_f64().unwrap() <= 440.0, "{result}");
        assert_eq!(result["rate_iops"], 400);
        assert!(result["lat_ns"]["max"].as_u64() >= result["clat_ns"]["max"].as_u64(), "{result}");
    }
}

#[test]
fn several_block_sizes_make_matrices() {
    let dir = fresh_dir();
    let output = short_append(dir.path(), "--bs 16k,64k");
    expect_code(&output, 0);
    let lines = || stdout(&output).lines().map(str::trim_start);
    for title in ["kernel iops", "dioxide iops", "dioxide / kernel", "dioxide:"] {
        assert_eq!(
            lines().filter(|line| line.starts_with(title)).count(),
            1,
            "{title} in {}",
            stdout(&output)
        );
    }
    assert!(!stdout(&output).contains("p99.9"), "{}", stdout(&output));
    let output = short_append(dir.path(), "--bs 16k,64k --verbose");
    assert_eq!(stdout(&output).matches("p99.9 ").count(), 2, "{}", stdout(&output));
}

/// As in a terminal of this width. Pipes without COLUMNS, and `--wide`, have all columns.
#[test]
fn tables_keep_to_the_width_of_columns() {
    let dir = fresh_dir();
    let line = format!(
        "bench append --dir {} --numjobs 2 --iodepth 2 --runtime 20ms --rounds 1 --size 16m",
        dir.path().display()
    );
    let bench = |columns: Option<&str>, more: &str| {
        let mut command = dioxide(&format!("{line} {more}"));
        command.env_remove("COLUMNS").envs(columns.map(|columns| ("COLUMNS", columns)));
        let output = command.output().unwrap();
        expect_code(&output, 0);
        stdout(&output).to_owned()
    };
    let widest = |text: &str| text.lines().map(|line| line.chars().count()).max().unwrap();
    let narrow = bench(Some("80"), "");
    assert!(widest(&narrow) <= 80 && narrow.contains("(--wide also shows: "), "{narrow}");
    for text in [bench(None, ""), bench(Some("80"), "--wide")] {
        assert!(widest(&text) > 200 && !text.contains("--wide"), "{text}");
        assert!(text.contains("extents") && text.contains("Only one round: "), "{text}");
        assert!(!text.contains('\u{1b}'), "colours are for terminals");
    }
}

#[test]
fn json_goes_to_a_file_beside_the_tables() {
    let dir = fresh_dir();
    let file = dir.path().join("out.json");
    let output =
        short_append(dir.path(), &format!("--durability every-write --json {}", file.display()));
    expect_code(&output, 0);
    assert!(
        stdout(&output).contains("x preallocated") && stdout(&output).contains("dioxide is"),
        "{output:?}"
    );
    let document: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert_eq!(document["results"][0]["durability"], "every-write");
}

#[test]
fn json_that_cannot_be_written_takes_no_tables_away() {
    let dir = fresh_dir();
    let output = short_append(dir.path(), "--json /dev/full");
    expect_code(&output, 1);
    assert!(stdout(&output).contains("dioxide is"), "{output:?}");
    assert!(stderr(&output).contains("write /dev/full"), "{output:?}");
}

#[test]
fn sync_writers_on_a_file() {
    let dir = fresh_dir();
    let line = format!(
        "bench sync --dir {} --numjobs 4 --iodepth 4 --runtime 50ms --rounds 1 --json -",
        dir.path().display()
    );
    let output = run(&line);
    expect_code(&output, 0);
    let results = results(&output);
    let paths: Vec<&str> = results.iter().map(|result| result["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["serialised", "kernel", "dioxide", "dioxide-queue"]);
    assert!(
        results.iter().all(|result| result["scenario"] == "sync" && result["growth"].is_null())
    );
    assert!(is_empty(dir.path()));
}

#[test]
fn sync_writers_on_a_striped_volume() {
    let dirs = [fresh_dir(), fresh_dir()];
    let [one, two] = dirs.each_ref().map(|dir| dir.path().display());
    let line = format!(
        "bench sync --stripe {one},{two},{one} --chunk 8k --bs 20k --numjobs 4 --iodepth 4 \
         --runtime 50ms --rounds 2"
    );
    let output = run(&format!("{line} --json -"));
    expect_code(&output, 0);
    let results = results(&output);
    let paths: Vec<&str> = results.iter().map(|result| result["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["serialised", "kernel", "dioxide", "dioxide-queue"]);
    for result in &results {
        let refused = result["refused_member"].as_u64();
        let is_ours = result["path"].as_str().unwrap().starts_with("dioxide");
        assert_eq!(
            refused.is_some_and(|times| times > 0),
            is_ours,
            "a write lies on several members: {result}"
        );
    }
    assert!(dirs.iter().all(|dir| is_empty(dir.path())));

    let output = run(&line);
    let text = stdout(&output);
    for words in [
        format!("{one},{two},{one} in chunks of 8 KiB"),
        "not merged/op, dioxide with 4 threads: ".into(),
    ] {
        assert!(text.contains(&words), "{words} in {text}");
    }
}

/// Keys of all results, in their order.
fn keys_of<'a>(results: &'a [Value], keys: [&str; 3]) -> Vec<[&'a Value; 3]> {
    results.iter().map(|result| keys.map(|key| &result[key])).collect()
}

#[test]
fn durable_writes_to_many_files() {
    let dir = fresh_dir();
    let threads = [("one-thread", 1), ("kernel", 4), ("kernel-uring", 1), ("syncfs", 1)];
    let paths = threads.into_iter().chain([("dioxide", 4), ("dioxide-queue", 1)]);
    for space in ["written", "unwritten"] {
        let line = format!(
            "bench files --dir {} --files 1,5 --numjobs 4 --iodepth 4 --runtime 50ms --rounds 2 \
             --size 256k --space {space} --json -",
            dir.path().display()
        );
        let output = run(&line);
        expect_code(&output, 0);
        let results = results(&output);
        assert_has_rows(&results, [1, 5], paths.clone());
        for result in &results {
            assert_eq!(
                (&result["scenario"], &result["durability"], &result["space"]),
                (&"files".into(), &"every-write".into(), &space.into())
            );
            assert!(result["growth"].is_null() && result["extents"].is_null(), "{result}");
            let written = result["clat_ns"]["N"].as_u64().unwrap();
            // Each block once, in each of two rounds.
            assert!(written > 0 && (space == "written" || written <= 2 * 64), "{result}");
        }
        let keys = ["one_thread", "kernel", "kernel_uring", "syncfs"];
        for result in results.iter().filter(|result| result["path"] == "dioxide-queue") {
            for key in keys {
                assert!(result[format!("ratio_to_{key}")].is_object(), "{key} in {result}");
            }
        }
        assert!(is_empty(dir.path()));
    }
}

/// Each path, with its number of threads, for each number of files.
fn assert_has_rows(
    results: &[Value],
    files: [i32; 2],
    paths: impl Iterator<Item = (&'static str, i32)> + Clone,
) {
    let expected = files.into_iter().flat_map(|files| {
        paths.clone().map(move |(path, numjobs)| [files.into(), path.into(), numjobs.into()])
    });
    let expected: Vec<[Value; 3]> = expected.collect();
    let found = keys_of(results, ["files", "path", "numjobs"]);
    assert_eq!(found, expected.iter().map(|it| it.each_ref()).collect::<Vec<_>>());
}

#[test]
fn checkpoints_of_many_files() {
    let dir = fresh_dir();
    for space in ["written", "unwritten"] {
        let line = format!(
            "bench checkpoint --dir {} --files 3,20 --numjobs 4 --runtime 50ms --rounds 2 \
             --size 512k --space {space}",
            dir.path().display()
        );
        let output = run(&format!("{line} --json -"));
        expect_code(&output, 0);
        let results = results(&output);
        let paths = [("one-thread", 1), ("kernel", 4), ("syncfs", 1), ("dioxide", 1)];
        assert_has_rows(&results, [3, 20], paths.into_iter());
        for result in &results {
            assert_eq!(
                (&result["scenario"], &result["durability"], &result["space"]),
                (&"checkpoint".into(), &"on-sync".into(), &space.into())
            );
            let [made, files] =
                [&result["clat_ns"]["N"], &result["files"]].map(|count| count.as_u64().unwrap());
            // 128 blocks in each of two rounds.
            assert!(made >= 2 && (space == "written" || made <= 2 * (128 / files)), "{result}");
            let bytes = result["bw_bytes"].as_f64().unwrap() / result["iops"].as_f64().unwrap();
            assert!((bytes / (files * 4096) as f64 - 1.0).abs() < 0.5, "{result}");
        }
        assert!(results.iter().any(|result| result["ratio_to_syncfs"].is_object()));
        let text = run(&line);
        let title = format!("Checkpoints: bs=4 KiB on-sync, 20 files, {space} space, ");
        assert!(stdout(&text).contains(&title), "{}", stdout(&text));
        assert!(is_empty(dir.path()));
    }
}

/// Results of these scenarios are read again, and compared by file counts.
#[test]
fn many_files_are_compared() {
    let dir = fresh_dir();
    let result = dir.path().join("result.json");
    let line = format!(
        "bench files --dir {} --files 1,5 --numjobs 2,4 --iodepth 4 --runtime 20ms --rounds 1 \
         --size 256k --json {}",
        dir.path().display(),
        result.display()
    );
    expect_code(&run(&line), 0);
    let compared = dioxide("compare").args([&result, &result]).output().unwrap();
    for files in ["1 file,", "5 files,"] {
        let title = format!("files bs=4 KiB every-write, {files} written space");
        assert_eq!(stdout(&compared).matches(&title).count(), 1, "{compared:?}");
    }
}

#[test]
fn too_few_descriptors_are_said_before_any_work() {
    let dir = fresh_dir();
    let line = format!(
        "ulimit -n 1000; exec {} bench files --dir {} --files 600",
        env!("CARGO_BIN_EXE_dioxide"),
        dir.path().display()
    );
    let output = Command::new("sh").args(["-c", &line]).output().unwrap();
    expect_refusal(&output, "600 files need 1264 descriptors, and this process may have 1000");
}

fn short_mixed(dir: &Path, more: &str) -> Output {
    let dir = dir.display();
    run(&format!(
        "bench mixed --dir {dir} --numjobs 1,3 --iodepth 8 --runtime 50ms --rounds 2 --size 4m \
         {more}"
    ))
}

#[test]
fn mixed_reads_and_writes_on_a_file() {
    let dir = fresh_dir();
    let output = short_mixed(dir.path(), "--rwmixread 90 --json -");
    expect_code(&output, 0);
    let results = results(&output);
    let paths: Vec<&str> = results.iter().map(|result| result["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["serialised", "kernel", "dioxide", "dioxide-queue"].repeat(2));
    assert_eq!((&results[7]["numjobs"], &results[7]["iodepth"]), (&3.into(), &8.into()));
    // On a busy machine single runs may have few operations.
    let (mut all, mut reads) = (0, 0);
    for result in &results {
        let [both, read, write] = [result, &result["read"], &result["write"]]
            .map(|way| way["clat_ns"]["N"].as_u64().unwrap());
        assert_eq!(read + write, both);
        (all, reads) = (all + both, reads + read);
        assert_eq!((&result["scenario"], &result["rwmixread"]), (&"mixed".into(), &90.into()));
    }
    assert!((0.75..0.99).contains(&(reads as f64 / all as f64)), "{reads} of {all}");
    assert!(is_empty(dir.path()));
}

#[test]
fn only_reads_or_only_writes() {
    let dir = fresh_dir();
    for (percent, none, all) in [(0, "read", "write"), (100, "write", "read")] {
        for result in results(&short_mixed(dir.path(), &format!("--rwmixread {percent} --json -")))
        {
            assert_eq!(result[none]["clat_ns"]["N"], 0);
            assert_eq!(result[all]["clat_ns"]["N"], result["clat_ns"]["N"]);
        }
    }
}

#[test]
fn percentiles_as_in_fio() {
    let dir = fresh_dir();
    let output = short_mixed(dir.path(), "");
    expect_code(&output, 0);
    let text = stdout(&output);
    assert_eq!(
        text.matches("    clat percentiles (").count(),
        8,
        "one block for each path: {text}"
    );
    assert_eq!(text.matches("\n     |  1.00th=[").count(), 8, "{text}");
    assert_eq!(text.matches(" 99.99th=[").count(), 8, "{text}");
    assert!(
        text.contains("Mixed reads and writes of 4 KiB, 50 % reads: 3 threads through the kernel"),
        "{text}"
    );
}

#[test]
fn queues_of_several_depths() {
    let dir = fresh_dir();
    let depths = |output: Output| {
        let results = results(&output);
        let queues = results.iter().filter(|result| result["path"] == "dioxide-queue");
        queues.map(|queue| (queue["numjobs"].clone(), queue["iodepth"].clone())).collect::<Vec<_>>()
    };
    let pairs = |pairs: &[(u64, u64)]| {
        pairs.iter().map(|&(one, other)| (one.into(), other.into())).collect::<Vec<_>>()
    };
    let append = short_append(dir.path(), "--durability every-write --iodepth 16 --json -");
    assert_eq!(depths(append), pairs(&[(1, 4), (1, 16)]));
    assert_eq!(
        depths(short_mixed(dir.path(), "--iodepth 16 --json -")),
        pairs(&[(1, 8), (1, 16), (3, 8), (3, 16)])
    );
}

#[test]
fn queues_keep_to_a_given_load() {
    let dir = fresh_dir();
    for result in results(&short_mixed(dir.path(), "--rate 400 --json -")) {
        assert!(result["iops"].as_f64().unwrap() <= 500.0, "{result}");
        assert!(result["lat_ns"]["max"].as_u64() >= result["clat_ns"]["max"].as_u64(), "{result}");
    }
}

#[test]
fn own_costs_need_no_file() {
    for scenario in ["append", "append --bs 100", "append --bs 1-300", "mixed"] {
        let line = format!(
            "bench {scenario} --backend sim --numjobs 2 --iodepth 2 --runtime 50ms --rounds 2"
        );
        let results = results(&run(&format!("{line} --json -")));
        let paths: Vec<&str> =
            results.iter().map(|result| result["path"].as_str().unwrap()).collect();
        assert_eq!(paths, ["dioxide", "dioxide-queue"]);
        for result in &results {
            assert_eq!(result["backend"], "sim");
            assert!(
                result["iops"].as_f64().unwrap() > 0.0 && result["requests"].is_null(),
                "{result}"
            );
        }
        let output = run(&line);
        assert!(
            stdout(&output).contains("cpu ns/op")
                && stdout(&output).contains("ns through dioxide-queue")
        );
    }
}

#[test]
fn size_caps_a_run() {
    let dir = fresh_dir();
    let line = format!(
        "bench append --dir {} --bs 64k --numjobs 2 --runtime 1m --rounds 1 --size 4m --json -",
        dir.path().display()
    );
    let output = run(&line);
    expect_code(&output, 0);
    assert!(results(&output).iter().all(|result| result["runtime_ms"].as_u64().unwrap() < 50_000));
}

#[test]
fn a_diagnosis_of_several_kinds_of_work() {
    let dir = fresh_dir();
    let line = format!(
        "diagnose {} --rw append,hole,append --numjobs 2,1 --runtime 50ms --rounds 2 --size 16m",
        dir.path().display()
    );
    let output = run(&line);
    expect_code(&output, 0);
    let text = stdout(&output);
    let summary: Vec<&str> = text.lines().take_while(|line| !line.is_empty()).collect();
    assert_eq!(summary.len(), 1 + 2, "a header, and a line for each kind: {text}");
    assert!(
        summary[1].contains("Appends of 4 KiB") && summary[2].contains("into a hole"),
        "{text}"
    );
    assert_eq!(text.matches("By threads: ").count(), 2, "{text}");

    let text = run(&format!("{line} --verbose"));
    expect_code(&text, 0);
    assert_eq!(
        stdout(&text).matches("No fit of the Universal Scalability Law: ").count(),
        2,
        "{text:?}"
    );
    assert!(is_empty(dir.path()));
}

#[test]
fn a_running_program_is_diagnosed() {
    let dir = fresh_dir();
    let mut bench = long_append(dir.path());
    let output = run(&format!("diagnose --pid {} --seconds 1 --json -", bench.id()));
    kill_process(Pid::from_child(&bench), Signal::KILL).unwrap();
    bench.wait().unwrap();
    expect_code(&output, 0);
    let document: Value =
        serde_json::from_slice(&output.stdout).expect("stdout is JSON and nothing else");
    let diagnosis = &document["diagnoses"][0];
    let program = &diagnosis["evidence"]["subject"]["program"];
    assert_eq!(program["pid"], bench.id());
    assert!(program["command"].as_str().unwrap().contains("bench append"), "{program}");
    assert!(diagnosis["evidence"]["threads"].as_u64().unwrap() > 8, "{}", diagnosis["evidence"]);
    assert!(!diagnosis["findings"].as_array().unwrap().is_empty());
    assert!(
        diagnosis["usl"].is_null()
            && diagnosis["usl_refusal"].is_null()
            && diagnosis["asked"].is_null()
    );
}

/// Watches a process that only sleeps.
fn watch_a_sleeper(seconds: &str, and_then: impl FnOnce(&Child)) -> Output {
    let mut sleeper = Command::new("sleep").arg(seconds).spawn().unwrap();
    let line = format!("diagnose --pid {} --seconds 1h", sleeper.id());
    let watching = dioxide(&line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    and_then(&watching);
    let output = watching.wait_with_output().unwrap();
    // It may be over already.
    let _ = sleeper.kill();
    sleeper.wait().unwrap();
    output
}

fn wait_until_it_watches(watching: &Child) {
    wait_until("it watches", || threads(watching) > 1);
}

#[test]
fn ctrl_c_ends_watching_with_a_verdict() {
    let output = watch_a_sleeper("1h", |watching| {
        wait_until_it_watches(watching);
        kill_process(Pid::from_child(watching), Signal::INT).unwrap();
    });
    expect_code(&output, 0);
    assert!(stdout(&output).contains("(sleep 1h)"), "{output:?}");
}

#[test]
fn termination_ends_watching_without() {
    let output = watch_a_sleeper("1h", |watching| {
        wait_until_it_watches(watching);
        kill_process(Pid::from_child(watching), Signal::TERM).unwrap();
    });
    expect_signal(&output, Signal::TERM);
    assert_eq!(stdout(&output), "");
}

#[test]
fn watching_ends_with_the_program() {
    let output = watch_a_sleeper("2", |_| {});
    expect_code(&output, 0);
    assert!(stdout(&output).contains("(sleep 2)"), "{output:?}");
}

/// Sends `signal` to a bench at work, and checks that its scratch file vanishes.
fn stopped_by(signal: Signal) -> Output {
    let dir = fresh_dir();
    let bench = long_append(dir.path());
    kill_process(Pid::from_child(&bench), signal).unwrap();
    let output = bench.wait_with_output().unwrap();
    assert!(is_empty(dir.path()));
    output
}

#[test]
fn ctrl_c_ends_cleanly() {
    let output = stopped_by(Signal::INT);
    expect_signal(&output, Signal::INT);
    assert_eq!(stderr(&output).lines().last(), Some("dioxide: interrupted"));
    assert_eq!(stdout(&output), "");
}

#[test]
fn ctrl_c_ends_many_files_cleanly() {
    let dir = fresh_dir();
    for scenario in ["files --iodepth 8", "checkpoint"] {
        let line = format!(
            "bench {scenario} --dir {} --files 20 --numjobs 8 --runtime 1h --rounds 1 --size 1m",
            dir.path().display()
        );
        let bench = dioxide(&line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let descriptors = format!("/proc/{}/fd", bench.id());
        let has_files = || fs::read_dir(&descriptors).map_or(0, Iterator::count) > 20;
        wait_until("the bench has its files", has_files);
        kill_process(Pid::from_child(&bench), Signal::INT).unwrap();
        let output = bench.wait_with_output().unwrap();
        expect_signal(&output, Signal::INT);
        assert_eq!(stderr(&output).lines().last(), Some("dioxide: interrupted"));
        assert!(is_empty(dir.path()));
    }
}

#[test]
fn ctrl_c_ends_probes_and_diagnoses_cleanly() {
    let dir = fresh_dir();
    let place = dir.path().display();
    for line in [
        format!("probe {place} --for jetstream --runtime 1h"),
        format!("diagnose {place} --rw sync --numjobs 8 --runtime 1h --rounds 1"),
    ] {
        let work = dioxide(&line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        wait_until("its threads are at work", || threads(&work) > 4);
        kill_process(Pid::from_child(&work), Signal::INT).unwrap();
        let output = work.wait_with_output().unwrap();
        expect_signal(&output, Signal::INT);
        assert_eq!(stderr(&output).lines().last(), Some("dioxide: interrupted"));
        assert!(stdout(&output).is_empty() && is_empty(dir.path()));
    }
}

#[test]
fn termination_ends_cleanly() {
    expect_signal(&stopped_by(Signal::TERM), Signal::TERM);
}

#[test]
fn kill_9_leaves_nothing() {
    let output = stopped_by(Signal::KILL);
    assert_eq!(output.status.code(), None);
}

#[test]
fn a_reader_that_goes_away_is_no_panic() {
    let dir = fresh_dir();
    let json = dir.path().join("out.json");
    let line =
        format!("bench sync --dir {} --numjobs 1 --runtime 20ms --rounds 1", dir.path().display());
    let line = format!("{line} --json {}", json.display());
    let mut bench: Child =
        dioxide(&line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(bench.stdout.take());
    let output = bench.wait_with_output().unwrap();
    expect_code(&output, 1);
    assert!(!stderr(&output).contains("panic"), "{}", stderr(&output));
    let document: Value = serde_json::from_slice(&fs::read(json).unwrap()).unwrap();
    assert_eq!(document["results"][0]["scenario"], "sync", "what was measured is not lost");
}

#[test]
fn copy_replaces_a_file_or_goes_into_a_directory() {
    let dir = fresh_dir();
    let path = |name: &str| dir.path().join(name);
    let content: Vec<u8> = (0..3_000_001).map(|n: u32| (n % 251) as u8).collect();
    fs::write(path("from"), &content).unwrap();
    fs::write(path("to"), "old").unwrap();
    fs::create_dir(path("into")).unwrap();
    for (to, copy) in [("to", "to"), ("new", "new"), ("into", "into/from")] {
        let line = format!("copy {} {}", path("from").display(), path(to).display());
        let output = run(&line);
        expect_code(&output, 0);
        assert_eq!((stdout(&output), stderr(&output)), ("", ""));
        assert!(fs::read(path(copy)).unwrap() == content, "{line}");
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 4, "no temporary file is left");
}

#[test]
fn recover_reports_every_file_and_fails_if_one_does() {
    let dir = fresh_dir();
    let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    fs::write(&one, "12345").unwrap();
    fs::write(&two, "").unwrap();
    let (one, two) = (one.display(), two.display());

    let output = run(&format!("recover {one} {two}"));
    expect_code(&output, 0);
    assert_eq!(stdout(&output), format!("{one}: clean, 5 bytes\n{two}: clean, 0 bytes\n"));

    let output = run(&format!("recover {one} /no/such/file {two}"));
    expect_code(&output, 1);
    assert_eq!(stdout(&output).lines().count(), 2, "the others are still looked at");
    assert!(stderr(&output).contains("/no/such/file"));
}

#[test]
fn the_streams_of_a_log_are_printed() {
    let dir = fresh_dir();
    let log = dioxide_log::StreamLog::open(dir.path()).unwrap();
    let (three, seven) = (log.stream(3), log.stream(7));
    for number in 0..20u8 {
        seven.append(&[number; 2]).unwrap();
    }
    three.append(b"a").unwrap();
    seven.truncate_front(dioxide_log::Lsn(19)).unwrap();
    log.close().unwrap();
    let command = |words: &str| run(&words.replace("PATH", dir.path().to_str().unwrap()));

    let verified = command("log verify PATH");
    expect_code(&verified, 0);
    assert!(stdout(&verified).ends_with("remnants  0\nstreams   2\n"), "{}", stdout(&verified));
    let facts: Value = serde_json::from_slice(&command("log stat PATH --json").stdout).unwrap();
    assert_eq!(facts["streams"], 2);
    let listed = command("log streams PATH");
    expect_code(&listed, 0);
    let lines = [
        r#"{"stream":3,"first_lsn":1,"next_lsn":2,"records":1}"#,
        r#"{"stream":7,"first_lsn":19,"next_lsn":21,"records":2}"#,
    ];
    assert_eq!(stdout(&listed), lines.map(|line| format!("{line}\n")).concat());
    let dumped = command("log dump PATH --stream 7");
    expect_code(&dumped, 0);
    let last = r#"{"lsn":20,"bytes":2,"hex":"1313"}"#;
    let both = format!("{}\n{last}\n", r#"{"lsn":19,"bytes":2,"hex":"1212"}"#);
    assert_eq!(stdout(&dumped), both);
    let from = command("log dump PATH --stream 7 --from 20 --count 5");
    assert_eq!(stdout(&from), format!("{last}\n"));
    expect_refusal(
        &command("log dump PATH --stream 7 --from 18"),
        "LSN 18 is out of range: there are records 19 to 20",
    );
    assert_eq!(stdout(&command("log dump PATH --stream 5")), "", "it has no record");
}

/// Waits until a command of a log has begun to read it, and sleeps.
fn wait_until_it_sleeps(work: &Child, log: &Path) {
    let log = log.canonicalize().unwrap();
    let of_log = |fd: fs::DirEntry| fs::read_link(fd.path()).is_ok_and(|it| it.starts_with(&log));
    let sleeps = || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", work.id()));
        let mut fds = fs::read_dir(format!("/proc/{}/fd", work.id())).into_iter().flatten();
        stat.is_ok_and(|stat| stat.contains(" S ")) && fds.any(|fd| fd.is_ok_and(of_log))
    };
    let mut times = 0;
    wait_until("it reads the log, and sleeps", || {
        times = if sleeps() { times + 1 } else { 0 };
        times == 2
    });
}

/// It waited until the log was read and the pipe was empty.
#[test]
fn a_signal_did_not_end_a_command_of_a_log() {
    let dir = fresh_dir();
    let log = dioxide_log::StreamLog::open(dir.path()).unwrap();
    let stream = log.stream(7);
    for _ in 0..20 {
        stream.append(&[1; 20_000]).unwrap();
    }
    for words in [
        "dump PATH",
        "dump PATH --stream 7",
        "tail PATH --from 1",
        "tail PATH --stream 7",
        "tail PATH --stream 5",
    ] {
        let line = format!("log {}", words.replace("PATH", dir.path().to_str().unwrap()));
        // The test does not read, so the pipe is full.
        let mut work = dioxide(&line).stdout(Stdio::piped()).spawn().unwrap();
        wait_until_it_sleeps(&work, dir.path());
        // The others may be ignored here, and so there.
        kill_process(Pid::from_child(&work), Signal::TERM).unwrap();
        let mut ended = None;
        wait_until("it ends", || {
            ended = work.try_wait().unwrap();
            ended.is_some()
        });
        assert_eq!(ended.and_then(|it| it.signal()), Some(Signal::TERM.as_raw()), "{words}");
    }
}

/// A handler took the place of `nohup`.
#[test]
fn an_ignored_signal_ended_a_command_of_a_log() {
    let dir = fresh_dir();
    let log = dioxide_log::Log::open(dir.path()).unwrap();
    log.append(b"one").unwrap();
    let line = format!("log tail {} --count 2", dir.path().display());
    let tail = dioxide(&line);
    let mut nohup = Command::new("nohup");
    nohup.arg(tail.get_program()).args(tail.get_args()).stdin(Stdio::null());
    let work = nohup.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until_it_sleeps(&work, dir.path());
    kill_process(Pid::from_child(&work), Signal::HUP).unwrap();
    log.append(b"two").unwrap();
    let output = work.wait_with_output().unwrap();
    expect_code(&output, 0);
    assert_eq!(stdout(&output).lines().count(), 2);
}

/// Whether the program sleeps as `sleep`, or has a handler of SIGTERM.
fn is_begun(work: &Child) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", work.id())).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:\t"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask, 16).ok()).unwrap_or(0);
    status.starts_with("Name:\tsleep\n") || caught & 1 << (Signal::TERM.as_raw() - 1) != 0
}

/// A handler took the place of `nohup`, and `run` gave the default action to its program.
#[test]
fn an_ignored_signal_ended_a_bench_and_a_program() {
    let bench = "bench mixed --backend sim --numjobs 1 --runtime 1h --rounds 1".to_owned();
    // Any library will do: that of dioxide may not be built.
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let libc = maps.split_whitespace().find(|word| word.contains("/libc.so")).unwrap();
    for line in [bench, format!("run --library {libc} -- sleep 1h")] {
        let own = dioxide(&line);
        let mut nohup = Command::new("nohup");
        nohup.arg(own.get_program()).args(own.get_args()).stdin(Stdio::null());
        let work = nohup.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        wait_until("it works", || is_begun(&work));
        // The kernel delivers SIGHUP first.
        kill_process(Pid::from_child(&work), Signal::HUP).unwrap();
        kill_process(Pid::from_child(&work), Signal::TERM).unwrap();
        let status = work.wait_with_output().unwrap().status;
        assert_eq!(status.signal(), Some(libc::SIGTERM), "{status}");
    }
}

/// The program had the default action. systemd ignores it for services.
#[test]
fn an_ignored_broken_pipe_ended_a_program() {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let libc = maps.split_whitespace().find(|word| word.contains("/libc.so")).unwrap();
    let own = dioxide(&format!("run --library {libc} -- grep SigIgn /proc/self/status"));
    for (before, is_ignored) in [("", false), ("trap '' PIPE;", true)] {
        let script = format!("{before} exec \"$@\"");
        let mut shell = Command::new("sh");
        shell.args(["-c", &script, "sh"]).arg(own.get_program()).args(own.get_args());
        let output = shell.output().unwrap();
        let mask = stdout(&output).trim_start_matches("SigIgn:").trim().to_owned();
        let mask = u64::from_str_radix(&mask, 16).unwrap_or_else(|_| panic!("{output:?}"));
        assert_eq!(mask & 1 << (Signal::PIPE.as_raw() - 1) != 0, is_ignored, "{mask:x}");
    }
}

/// The full disk had a part of the new result, and nothing of the old one.
#[test]
fn a_result_that_is_not_written_leaves_the_old_one() {
    let dir = fresh_dir();
    let (saved, svg) = (dir.path().join("saved.json"), dir.path().join("new.svg"));
    let bench = format!(
        "bench mixed --backend sim --numjobs 1 --runtime 50ms --rounds 1 --json {}",
        saved.display()
    );
    expect_code(&run(&bench), 0);
    let old = fs::read(&saved).unwrap();
    for line in [
        format!("plot {0} --svg {0}", saved.display()),
        format!("{bench} --baseline {}", saved.display()),
    ] {
        expect_refusal(&run(&line), "is one of the files that are read");
    }
    assert_eq!(fs::read(&saved).unwrap(), old);
    // The limit ends the command amid the write.
    fs::write(&svg, "old").unwrap();
    let plot = dioxide(&format!("plot {} --svg {}", saved.display(), svg.display()));
    let mut limited = Command::new("prlimit");
    limited.args(["--fsize=1", "--"]).arg(plot.get_program()).args(plot.get_args());
    let output = limited.output().unwrap();
    assert!(!output.status.success());
    assert_eq!(fs::read(&svg).unwrap(), b"old");
}

#[test]
fn a_stream_is_followed() {
    let dir = fresh_dir();
    let log = dioxide_log::StreamLog::open(dir.path()).unwrap();
    let (other, stream) = (log.stream(3), log.stream(7));
    for number in 0..20u8 {
        stream.append(&[number; 2]).unwrap();
        other.append(b"of another stream").unwrap();
    }
    stream.truncate_front(dioxide_log::Lsn(5)).unwrap();
    let path = dir.path().to_str().unwrap();
    let dump =
        |words: &str| stdout(&run(&format!("log dump {path} --stream 7 {words}"))).to_owned();
    let last = run(&format!("log tail {path} --stream 7 --count 10"));
    assert_eq!(stdout(&last), dump("--from 11"));
    let removed = run(&format!("log tail {path} --stream 7 --from 2 --count 16"));
    assert_eq!(stdout(&removed), dump(""));
    assert!(stderr(&removed).contains("the records 2..4 were removed"), "{}", stderr(&removed));

    let line = format!("log tail {path} --stream 7 --from 20 --count 3");
    let tail = dioxide(&line).stdout(Stdio::piped()).spawn().unwrap();
    stream.append(b"new").unwrap();
    other.append(b"of another stream").unwrap();
    stream.append(b"newer").unwrap();
    let output = tail.wait_with_output().unwrap();
    expect_code(&output, 0);
    assert_eq!(stdout(&output), dump("--from 20"));
}

#[test]
fn a_log_is_checked_and_its_records_are_printed() {
    let dir = fresh_dir();
    let options = dioxide_log::LogOptions::new().segment_bytes(64 << 10);
    let log = options.open(dir.path()).unwrap();
    for number in 0..20u8 {
        log.append(&[number; 8]).unwrap();
    }
    log.truncate_front(dioxide_log::Lsn(11)).unwrap();
    log.append(b"").unwrap();
    let id = log.id().to_string();
    log.close().unwrap();
    let command = |words: &str| run(&words.replace("PATH", dir.path().to_str().unwrap()));

    let verified = command("log verify PATH");
    expect_code(&verified, 0);
    let lines: Vec<_> = stdout(&verified).lines().collect();
    assert_eq!(lines[..3], [&format!("id        {id}"), "records   11..21 (11)", "segments  1"]);
    assert_eq!(lines[4..], ["closed    yes", "remnants  0"]);
    assert_eq!(stdout(&command("log stat PATH")), stdout(&verified));

    let stat = command("log stat PATH --json");
    expect_code(&stat, 0);
    let facts: Value = serde_json::from_slice(&stat.stdout).unwrap();
    let expected = serde_json::json!({
        "id": id, "first_lsn": 11, "next_lsn": 22, "records": 11, "segments": 1,
        "bytes": facts["bytes"], "closed": true, "remnants": 0, "unsearched": 0, "streams": null,
    });
    assert_eq!(facts, expected);
    expect_refusal(&command("log streams PATH"), "a log without streams");

    let dumped = command("log dump PATH --from 20");
    expect_code(&dumped, 0);
    let twentieth = r#"{"lsn":20,"bytes":8,"hex":"1313131313131313"}"#;
    assert_eq!(stdout(&dumped), format!("{twentieth}\n{}\n", r#"{"lsn":21,"bytes":0,"hex":""}"#));
    assert_eq!(stdout(&command("log dump PATH")).lines().count(), 11);
    assert_eq!(stdout(&command("log dump PATH --from 20 --count 1")).trim_end(), twentieth);
    expect_refusal(
        &command("log dump PATH --from 10"),
        "LSN 10 is out of range: there are records 11 to 21",
    );

    let tail = command("log tail PATH --from 3 --count 11");
    assert_eq!(stdout(&tail), stdout(&command("log dump PATH")));
    assert!(stderr(&tail).contains("the records 3..10 were removed"), "{}", stderr(&tail));
    // There is no record 0.
    let all = command("log tail PATH --from 0 --count 11");
    assert_eq!((stdout(&all), stderr(&all)), (stdout(&command("log dump PATH")), ""));
    let last = command("log tail PATH --count 10");
    assert_eq!(stdout(&last), stdout(&command("log dump PATH --from 12")));

    let segments = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
    let first = segments.filter(|path| path.to_str().unwrap().contains("segment-")).min().unwrap();
    let mut content = fs::read(&first).unwrap();
    content[4096 + 24] ^= 1;
    fs::write(&first, &content).unwrap();
    let damaged = command("log verify PATH");
    expect_refusal(&damaged, "at 4096: ");
    assert!(stderr(&damaged).contains("restore the log from a copy"), "{}", stderr(&damaged));
    assert!(fs::read(&first).unwrap() == content);
}
