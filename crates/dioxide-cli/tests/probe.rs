//! `dioxide probe` on the lab: it reports the known facts of each file system, and changes nothing.
//! Ignored, each test by name, where there is no lab (`scripts/with-lab`).

mod common;

use common::*;
use dioxide_testkit::lab::{Applies, Fs, TestDir};
use dioxide_testkit::loop_device::AttachedFile;
use dioxide_testkit::trials::{
    Trial, TrialResult, fuse_trial, lab_trials, lab_trials_where, volume_trial, volume_trials_where,
};
use dioxide_testkit::volume::{SIZE_MIN, Volume};
use rustix::fs::{AtFlags, StatxFlags, XattrFlags, fsetxattr, statx};
use serde_json::Value;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};
use std::time::Duration;

fn probe(path: &Path, more: &str) -> Value {
    let output = run(&format!("probe {} {more} --json -", path.display()));
    expect_code(&output, 0);
    assert_eq!(stderr(&output), "");
    serde_json::from_slice(&output.stdout).expect("stdout is JSON and nothing else")
}

/// The value of a fact; null if unknown.
fn fact<'a>(document: &'a Value, key: &str) -> &'a Value {
    let fact = &document["facts"][key];
    assert!(fact.is_object(), "no {key} in {}", document["facts"]);
    &fact["value"]
}

fn is_yes(value: &Value) -> bool {
    value.as_str().unwrap().starts_with("yes")
}

fn facts_that_are_known(dir: TestDir) -> TrialResult {
    let (document, fs) = (probe(&dir, "--quick"), dir.fs());
    assert_eq!(fact(&document, "file_system"), fs.mount_type());
    assert_eq!(
        is_yes(fact(&document, "is_direct")),
        fs.writes_directly().is_ok(),
        "{}",
        document["facts"]
    );
    for (key, applies) in
        [("grows_unwritten", fs.grows_unwritten()), ("grows_zeroed", fs.grows_zeroed())]
    {
        let told = fact(&document, key).as_str().unwrap();
        assert_eq!(told == "yes", applies.is_ok(), "{key}: {told}");
        assert!(told == "yes" || told.len() > "no: ".len(), "{key}: {told}");
    }
    let shares = fact(&document, "shares_flushes").as_str().unwrap();
    match fs {
        Fs::Ext4 | Fs::Xfs => assert_eq!(shares, "yes"),
        _ => assert!(shares.starts_with("no: ") && shares.len() > "no: ".len(), "{shares}"),
    }
    assert_eq!(fact(&document, "fallocate"), &Value::Bool(fs != Fs::Ext3));
    assert_eq!(fact(&document, "has_barriers").is_null(), fs == Fs::Tmpfs);
    for key in ["user_xattr", "tmpfile", "rwf_dsync"] {
        assert_eq!(fact(&document, key), true, "{key}");
    }
    if matches!(fs, Fs::Ext4 | Fs::Xfs) {
        let others =
            ["fallocate_collapse", "fallocate_punch_hole", "fiemap_unwritten", "nowait_overwrite"];
        others.into_iter().for_each(|key| assert_eq!(fact(&document, key), true, "{key}"));
    }
    if matches!(fs, Fs::Ext4 | Fs::Ext3) {
        assert_eq!(fact(&document, "nowait_append"), false);
        assert!(is_yes(fact(&document, "journal")));
    }
    let kinds: Vec<_> =
        document["devices"].as_array().unwrap().iter().map(|it| it["kind"].clone()).collect();
    match fs {
        Fs::Tmpfs => assert!(kinds.is_empty()),
        _ => assert!(kinds[..2] == ["loop", "file"] && kinds.len() > 2, "{kinds:?}"),
    }
    assert_eq!(fs::read_dir(&*dir)?.count(), 0, "nothing is left");
    Ok(())
}

/// Every fact has a value, or a reason.
fn every_fact_says_how_it_was_found(dir: TestDir) -> TrialResult {
    let document = probe(&dir, "--quick");
    let facts = document["facts"].as_object().unwrap();
    assert!(facts.len() > 40, "{}", facts.len());
    for (key, fact) in facts {
        assert_ne!(fact["how"], "", "{key}");
        assert_ne!(fact["name"], "", "{key}");
        assert_eq!(fact["value"].is_null(), fact["unknown"].is_string(), "{key}: {fact}");
    }
    assert_eq!(document["unmeasured"].as_array().unwrap().len(), 1);
    Ok(())
}

fn alignments_are_those_of_statx(dir: TestDir) -> TrialResult {
    const STATX_DIOALIGN: u32 = 0x2000;
    let file = File::create(dir.join("file"))?;
    let wanted = StatxFlags::from_bits_retain(STATX_DIOALIGN);
    let stat = statx(&file, c"", AtFlags::EMPTY_PATH, wanted)?;
    let known = stat.stx_mask & STATX_DIOALIGN != 0;
    let expected = |bytes: u32| if known { Value::from(bytes) } else { Value::Null };
    let document = probe(&dir, "--quick");
    assert_eq!(fact(&document, "memory_bytes"), &expected(stat.stx_dio_mem_align));
    assert_eq!(fact(&document, "offset_bytes"), &expected(stat.stx_dio_offset_align));
    if known && dir.fs().writes_directly().is_ok() {
        assert_eq!(
            fact(&document, "write_taken_offset_bytes"),
            &expected(stat.stx_dio_offset_align)
        );
    }
    Ok(())
}

const KEYS: [&str; 22] = [
    "schema_version",
    "kind",
    "dioxide_version",
    "build",
    "kernel_release",
    "cpus",
    "cpu_model",
    "target",
    "device",
    "device_write_cache",
    "command_line",
    "date",
    "facts",
    "devices",
    "flush",
    "costs",
    "concurrency",
    "sync_methods",
    "not_durable",
    "fitness",
    "unmeasured",
    "meaning",
];

/// The verdict on writers side by side.
fn verdict<'a>(document: &'a Value, target: &str) -> &'a Value {
    let all = document["concurrency"].as_array().unwrap();
    &all.iter().find(|one| one["target"] == target).unwrap()["verdict"]
}

/// On a volume of its own: the counts of requests are those of its device.
fn appends_run_one_at_a_time_and_overwrites_do_not(fs: Fs) -> TrialResult {
    const EXPECTED: [(&str, &str); 3] = [
        ("append", "one_at_a_time"),
        ("hole", "one_at_a_time"),
        ("overwrite", "runs_concurrently"),
    ];
    let volume = Volume::new(fs, 2 * SIZE_MIN)?;
    // On a busy machine threads wait for processors instead, which decides nothing.
    let is_decided =
        |it: &Value| EXPECTED.iter().all(|(target, _)| verdict(it, target) != "undecided");
    let mut document = probe(volume.path(), "");
    for _ in 1..5 {
        if is_decided(&document) {
            break;
        }
        document = probe(volume.path(), "");
    }
    let found: Vec<_> = document.as_object().unwrap().keys().map(String::as_str).collect();
    assert!(KEYS.iter().all(|key| found.contains(key)) && found.len() == KEYS.len(), "{found:?}");

    let shown = &document["concurrency"];
    for (target, expected) in EXPECTED {
        assert_eq!(verdict(&document, target), expected, "{target}: {shown}");
    }
    assert_ne!(verdict(&document, "unwritten"), "one_at_a_time", "{shown}");

    let cost = |target: &str, is_durable: bool| {
        let all = document["costs"].as_array().unwrap();
        all.iter().find(|one| one["target"] == target && one["is_durable"] == is_durable).unwrap()
    };
    assert_eq!(document["costs"].as_array().unwrap().len(), 8);
    let flushes = |target| cost(target, true)["flushes_per_op"].as_f64().unwrap();
    assert!(flushes("append") >= 2.0 && flushes("overwrite") >= 1.0, "{}", document["costs"]);
    assert!(flushes("append") >= flushes("overwrite"), "{}", document["costs"]);
    for target in ["append", "hole", "unwritten", "overwrite"] {
        let plain = cost(target, false);
        assert_eq!(plain["requests_per_op"], 1.0, "{plain}");
        assert!(plain["write_ns_p99"].as_u64() >= plain["write_ns_p50"].as_u64(), "{plain}");
    }
    assert!(document["flush"]["flush_ns_p50"].as_u64().unwrap() > 0);
    let methods = document["sync_methods"].as_array().unwrap();
    assert_eq!(methods.len(), 18);
    assert!(
        methods.iter().all(|method| method["ops_per_s"].as_f64().unwrap() > 0.0),
        "{methods:?}"
    );
    let meaning = document["meaning"].to_string();
    assert!(meaning.contains("Appends to one file run one at a time here"), "{meaning}");
    Ok(())
}

fn a_file_is_the_same_afterwards(dir: TestDir) -> TrialResult {
    let path = dir.join("precious");
    fs::write(&path, [7; 12_345])?;
    let file = File::options().write(true).open(&path)?;
    fsetxattr(&file, "user.note", b"mine", XattrFlags::CREATE)?;
    drop(file);
    let state = || -> std::io::Result<_> {
        let it = fs::metadata(&path)?;
        let times = (it.mtime(), it.mtime_nsec(), it.ctime(), it.ctime_nsec());
        let names = rustix::fs::listxattr(&path, &mut [0u8; 256][..])?;
        Ok((fs::read(&path)?, it.size(), it.blocks(), times, names))
    };
    File::open(&path)?.sync_all()?;
    let before = state()?;
    let document = probe(&path, "--quick");
    assert_eq!(state()?, before);
    assert_eq!(fact(&document, "file_bytes"), 12_345);
    assert_eq!(fact(&document, "file_is_grown"), false);
    assert_eq!(fs::read_dir(&*dir)?.count(), 1, "nothing is left");
    Ok(())
}

/// The number of writes that a device has completed, and its content.
fn content(device: &Path) -> std::io::Result<(String, Vec<u8>)> {
    let name = device.file_name().unwrap().to_string_lossy().into_owned();
    let counts = fs::read_to_string(format!("/sys/block/{name}/stat"))?;
    let writes = counts.split_whitespace().nth(4).unwrap().to_owned();
    Ok((writes, fs::read(device)?))
}

fn a_device_is_the_same_afterwards(dir: TestDir) -> TrialResult {
    let image = dir.join("image");
    let bytes: Vec<u8> = (0..8u32 << 20).map(|at| (at * 7 + at / 251) as u8).collect();
    fs::write(&image, &bytes)?;
    let device = AttachedFile::new(&image)?;
    let before = content(device.path())?;
    let document = probe(device.path(), "");
    assert_eq!(content(device.path())?, before);
    assert_eq!(before.1, bytes);
    assert_eq!(fact(&document, "read_taken_offset_bytes"), 512);
    // On a busy machine eight threads may gain nothing: undecided.
    let reads = &document["concurrency"][0];
    assert_eq!(reads["target"], "read", "{reads}");
    assert_ne!(reads["verdict"], "one_at_a_time", "{reads}");
    assert!(document["costs"].as_array().unwrap().is_empty() && document["flush"].is_null());
    assert!(document["unmeasured"].to_string().contains("a device is only read"));
    Ok(())
}

fn a_mounted_device_is_read(dir: TestDir) -> TrialResult {
    let number = rustix::fs::stat(&*dir)?.st_dev;
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let sysfs = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}"))?;
    let device: PathBuf = Path::new("/dev").join(sysfs.file_name().unwrap());
    let document = probe(&device, "--quick");
    assert_eq!(document["devices"][0]["name"], sysfs.file_name().unwrap().to_str().unwrap());
    assert!(fact(&document, "read_taken_offset_bytes").is_u64());
    Ok(())
}

fn a_read_only_mount_is_only_looked_at(fs: Fs) -> TrialResult {
    let volume = Volume::new(fs, SIZE_MIN)?;
    fs::write(volume.path().join("file"), [1; 4096])?;
    let done = Command::new("mount").args(["-o", "remount,ro"]).arg(volume.path()).status()?;
    assert!(done.success());
    let document = probe(&volume.path().join("file"), "");
    assert!(
        document["unmeasured"].to_string().contains("mounted read-only"),
        "{}",
        document["unmeasured"]
    );
    assert_eq!(fact(&document, "file_system"), fs.mount_type());
    assert!(
        fact(&document, "offset_bytes").is_u64()
            && document["costs"].as_array().unwrap().is_empty()
    );
    Ok(())
}

fn a_full_disk_is_looked_at_all_the_same(fs: Fs) -> TrialResult {
    let volume = Volume::new(fs, SIZE_MIN)?;
    let mut filler = File::create(volume.path().join("filler"))?;
    let zeros = vec![0; 1 << 20];
    // The last write is short or refused.
    while filler.write(&zeros).is_ok() {}
    let document = probe(volume.path(), "");
    assert_eq!(document["unmeasured"][0], "The rest was not tried: the file system is full.");
    assert_eq!(fact(&document, "file_system"), fs.mount_type());
    assert_eq!(fact(&document, "io_uring"), "yes");
    Ok(())
}

fn what_stores_no_files_is_refused_with_advice() -> TrialResult {
    expect_refusal(&run("probe /proc"), "name a directory on the file system that is meant");
    expect_refusal(&run("probe /dev/null"), "no directory, file or block device");
    expect_refusal(&run("probe /no/such/place"), "No such file");
    Ok(())
}

fn people_see_tables_and_sentences() -> TrialResult {
    let output = run(&format!("probe --quick {}", std::env::temp_dir().display()));
    expect_code(&output, 0);
    for words in
        ["File system\n", "Alignment\n", "io_uring", "Nothing was measured, because of --quick."]
    {
        assert!(stdout(&output).contains(words), "{words}: {}", stdout(&output));
    }
    Ok(())
}

/// The exit code and the document of `--for`.
fn fitness(path: &Path, more: &str) -> (i32, Value) {
    let output = run(&format!("probe {} {more} --json -", path.display()));
    let document = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", stderr(&output)));
    (output.status.code().unwrap(), document)
}

/// The same, with a load that is long enough for a verdict. A busy machine does few writes.
fn fitness_in_time(path: &Path, more: &str) -> (i32, Value) {
    let load = |seconds| format!("probe {} {more} --runtime {seconds}s --json -", path.display());
    let has_result = |output: &Output| !stderr(output).contains("too few");
    let output = [1, 10, 100].iter().map(|seconds| run(&load(seconds))).find(has_result);
    let output = output.expect("a verdict");
    (output.status.code().unwrap(), serde_json::from_slice(&output.stdout).expect("a document"))
}

fn failed(document: &Value) -> Vec<&str> {
    let checks = document["fitness"]["checks"].as_array().unwrap().iter();
    let failed = checks.filter(|check| check["outcome"] == "fail");
    failed.map(|check| check["name"].as_str().unwrap()).collect()
}

fn the_exit_code_is_the_verdict(dir: TestDir) -> TrialResult {
    for system in ["etcd", "kafka", "jetstream", "postgres", "raft", "rocksdb"] {
        let page = dir.with_extension("html");
        let more = format!("--for {system} --html {}", page.display());
        let (code, document) = fitness_in_time(&dir, &more);
        let fitness = &document["fitness"];
        assert_eq!(fitness["system"], system);
        assert!(fitness["latencies"]["count"].as_u64().unwrap() > 0, "{fitness}");
        let is_passed = failed(&document).is_empty();
        assert_eq!((code, fitness["verdict"] == "pass"), (i32::from(!is_passed), is_passed));
        let page_text = fs::read_to_string(&page)?;
        fs::remove_file(&page)?;
        let pattern = fitness["pattern"].as_str().unwrap();
        assert!(page_text.contains(pattern) && page_text.contains(dir.to_str().unwrap()));
        assert_eq!(document["devices"][0]["kind"], "loop");
    }
    assert_eq!(fs::read_dir(&*dir)?.count(), 0, "nothing is left");
    Ok(())
}

/// Each request of the disk waits up to a fifth of a second, twice.
fn a_slow_disk_fails() -> TrialResult {
    let volume = Volume::on_fuse_disk(Fs::Ext4, SIZE_MIN)?;
    let disk = volume.disk().expect("the disk below");
    disk.delay(Duration::from_millis(200), 1)?;
    let (code, document) = fitness_in_time(volume.path(), "--for etcd");
    disk.heal()?;
    assert_eq!(code, 1, "{}", document["fitness"]);
    assert!(failed(&document).contains(&"p99"), "{}", document["fitness"]);
    Ok(())
}

fn what_is_in_memory_fails() -> TrialResult {
    let volume = Volume::new(Fs::Tmpfs, 2 * SIZE_MIN)?;
    let (code, document) = fitness(volume.path(), "--for raft --runtime 100ms");
    assert_eq!(code, 1);
    assert!(failed(&document).contains(&"durable"), "{}", document["fitness"]);
    let document = probe(volume.path(), "");
    assert_eq!(document["not_durable"], "tmpfs keeps files in memory");
    for part in ["costs", "sync_methods"] {
        let all = document[part].as_array().unwrap();
        assert!(
            !all.is_empty() && all.iter().all(|one| one["is_durable"] == false),
            "{part}: {all:?}"
        );
    }
    Ok(())
}

fn what_cannot_be_measured_is_no_verdict() -> TrialResult {
    for path in ["/proc", "/no/such/place"] {
        let output = run(&format!("probe {path} --for etcd --runtime 1s"));
        expect_code(&output, 2);
        assert_eq!(stdout(&output), "");
    }
    expect_code(&run("probe --quick --for etcd"), 2);
    Ok(())
}

fn an_unwritable_file_was_a_fail() -> TrialResult {
    let place = std::env::temp_dir();
    let output = run(&format!("probe {} --for etcd --json /no/such/file", place.display()));
    expect_code(&output, 2);
    assert_eq!(stderr(&output), "dioxide: no result: --json /no/such/file: no such directory\n");
    Ok(())
}

fn fast_commits_were_not_warned_of() -> TrialResult {
    let mut volume = Volume::new(Fs::Ext4, SIZE_MIN)?;
    assert_eq!(fact(&probe(volume.path(), "--quick"), "fast_commit"), false);
    volume.unmount()?;
    let done = Command::new("tune2fs").args(["-O", "fast_commit"]).arg(volume.device()).output()?;
    assert!(done.status.success(), "{done:?}");
    volume.mount()?;
    let document = probe(volume.path(), "--quick");
    assert_eq!(fact(&document, "fast_commit"), true);
    assert!(document["meaning"].to_string().contains("fast commits"), "{}", document["meaning"]);
    Ok(())
}

fn devices_below_an_overlay_were_missing() -> TrialResult {
    let volume = Volume::new(Fs::Ext4, SIZE_MIN)?;
    let overlay = Overlay::on(volume.path())?;
    let output = run(&format!("probe {} --quick --json -", overlay.path().display()));
    drop(overlay);
    expect_code(&output, 0);
    let document: Value = serde_json::from_slice(&output.stdout)?;
    let devices = document["devices"].as_array().unwrap();
    let names: Vec<_> = devices.iter().map(|it| it["name"].as_str().unwrap()).collect();
    let device = volume.device().file_name().unwrap().to_str().unwrap();
    assert_eq!(names[..2], ["upper", device]);
    assert!(names[2..].contains(&"lower"), "{names:?}");
    assert_eq!(document["device"], device, "the writes go to that of the upper directory");
    Ok(())
}

/// Between the preparing write and the one that must not wait, a clock tick makes the timestamps
/// due.
fn times_that_are_due_hide_no_overwrite(dir: TestDir) -> TrialResult {
    for _ in 0..8 {
        assert_eq!(fact(&probe(&dir, "--quick"), "nowait_overwrite"), true);
    }
    Ok(())
}

fn is_xfs(fs: Fs) -> Applies {
    if fs == Fs::Xfs { Ok(()) } else { Err("only XFS waits for times") }
}

fn trials() -> Vec<Trial> {
    let anywhere = vec![
        Trial::test(
            "what_stores_no_files_is_refused_with_advice",
            what_stores_no_files_is_refused_with_advice,
        ),
        Trial::test("people_see_tables_and_sentences", people_see_tables_and_sentences),
        Trial::test("what_cannot_be_measured_is_no_verdict", what_cannot_be_measured_is_no_verdict),
        Trial::test("an_unwritable_file_was_a_fail", an_unwritable_file_was_a_fail),
        fuse_trial("a_slow_disk_fails", a_slow_disk_fails),
        volume_trial("what_is_in_memory_fails", what_is_in_memory_fails),
        volume_trial("fast_commits_were_not_warned_of", fast_commits_were_not_warned_of),
        volume_trial(
            "devices_below_an_overlay_were_missing",
            devices_below_an_overlay_were_missing,
        ),
    ];
    let on_file_systems = [
        lab_trials("facts_that_are_known", facts_that_are_known),
        lab_trials("every_fact_says_how_it_was_found", every_fact_says_how_it_was_found),
        lab_trials("alignments_are_those_of_statx", alignments_are_those_of_statx),
        lab_trials("a_file_is_the_same_afterwards", a_file_is_the_same_afterwards),
        lab_trials_where("the_exit_code_is_the_verdict", Fs::on_ext4, the_exit_code_is_the_verdict),
        volume_trials_where(
            "appends_run_one_at_a_time_and_overwrites_do_not",
            Fs::on_ext4,
            appends_run_one_at_a_time_and_overwrites_do_not,
        ),
        lab_trials_where(
            "times_that_are_due_hide_no_overwrite",
            is_xfs,
            times_that_are_due_hide_no_overwrite,
        ),
        lab_trials_where(
            "a_device_is_the_same_afterwards",
            Fs::on_ext4,
            a_device_is_the_same_afterwards,
        ),
        lab_trials_where("a_mounted_device_is_read", is_on_one_device, a_mounted_device_is_read),
        volume_trials_where(
            "a_full_disk_is_looked_at_all_the_same",
            Fs::on_ext4,
            a_full_disk_is_looked_at_all_the_same,
        ),
        volume_trials_where(
            "a_read_only_mount_is_only_looked_at",
            Fs::on_ext4,
            a_read_only_mount_is_only_looked_at,
        ),
    ];
    anywhere.into_iter().chain(on_file_systems.into_iter().flatten()).collect()
}

fn main() -> ExitCode {
    dioxide_testkit::run(&[], trials)
}
