//! The command line on the lab: benches on real file systems, the bare disk, files that a crash
//! left preallocated. Ignored, each by name, where there is no lab (`scripts/with-lab`).

mod common;

use common::*;
use dioxide::{Buffer, Growth, OpenOptions};
use dioxide_testkit::child::{self, Acks};
use dioxide_testkit::files;
use dioxide_testkit::lab::{Applies, Disk, Fs, TestDir};
use dioxide_testkit::loop_device::AttachedFile;
use dioxide_testkit::trials::{
    Trial, TrialResult, disk_trial, lab_trials, lab_trials_where, volume_trials,
};
use dioxide_testkit::volume::{SIZE_MIN, Volume};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Output, Stdio};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);
const BLOCK: usize = 4096;

/// Appends for ever, with the given growth.
fn append(acks: &Acks, args: &[String]) {
    let growth = if args[1] == "zeroed" { Growth::Zeroed } else { Growth::Unwritten };
    let file = OpenOptions::new().write(true).create(true).growth(growth).open(&args[0]).unwrap();
    let block = Buffer::from(&[7; BLOCK][..]);
    loop {
        let offset = file.append(&block).unwrap();
        file.sync_data().unwrap();
        acks.send([offset, 0, 0]);
    }
}

/// A file whose appending process was killed, and the end of the acknowledged data.
fn left_by_a_crash(dir: &Path, growth: &str) -> Result<(PathBuf, u64), Box<dyn std::error::Error>> {
    let path = dir.join("log");
    let mut child = child::spawn("append", &[path.to_str().unwrap(), growth])?;
    child.wait_for_acks(10, LIMIT)?;
    let acknowledged = child.kill_9()?;
    let end = acknowledged.iter().map(|ack| ack[0] + BLOCK as u64).max().unwrap();
    assert!(fs::metadata(&path)?.len() > end, "it is grown ahead");
    Ok((path, end))
}

fn recover(path: &Path, more: &str) -> Output {
    run(&format!("recover {} {more}", path.display()))
}

fn recover_truncates_at_the_end_of_what_was_written(dir: TestDir) -> TrialResult {
    let (path, acknowledged) = left_by_a_crash(&dir, "unwritten")?;
    let grown = fs::metadata(&path)?.len();

    let output = recover(&path, "--dry-run");
    expect_code(&output, 0);
    assert!(stdout(&output).contains("left grown"), "{}", stdout(&output));
    assert_eq!(fs::metadata(&path)?.len(), grown, "a dry run changes nothing");

    let output = recover(&path, "");
    expect_code(&output, 0);
    let (report, outcome) = stdout(&output).split_once('\n').unwrap();
    assert!(report.contains("left grown") && outcome.contains("done, "), "{}", stdout(&output));
    let end = fs::metadata(&path)?.len();
    assert!(
        (acknowledged..=acknowledged + BLOCK as u64).contains(&end),
        "{end}, not {acknowledged}"
    );
    assert!(stdout(&recover(&path, "")).contains("clean"));
    Ok(())
}

fn recover_leaves_zeroed_files_to_their_owner(dir: TestDir) -> TrialResult {
    let (path, _) = left_by_a_crash(&dir, "zeroed")?;
    let grown = fs::metadata(&path)?.len();
    let output = recover(&path, "");
    expect_code(&output, 0);
    assert!(
        stdout(&output).contains("only the program that wrote the records can find it"),
        "{}",
        stdout(&output)
    );
    assert_eq!(fs::metadata(&path)?.len(), grown);
    Ok(())
}

fn recover_truncates_doubtful_files_by_force_only(dir: TestDir) -> TrialResult {
    let (path, acknowledged) = left_by_a_crash(&dir, "unwritten")?;
    let grown = fs::metadata(&path)?.len() + 8192;
    File::options().write(true).open(&path)?.set_len(grown)?;

    for more in ["", "--dry-run"] {
        let output = recover(&path, more);
        expect_code(&output, 1);
        assert!(stdout(&output).contains("changed since"), "{}", stdout(&output));
        assert!(stderr(&output).contains("`--force` truncates it"), "{}", stderr(&output));
        assert_eq!(fs::metadata(&path)?.len(), grown);
    }
    expect_code(&recover(&path, "--force"), 0);
    assert!(fs::metadata(&path)?.len() <= acknowledged + BLOCK as u64);
    assert_eq!(files::marker(&path)?, None);
    Ok(())
}

fn results(output: &Output) -> Vec<Value> {
    expect_code(output, 0);
    let document: Value =
        serde_json::from_slice(&output.stdout).expect("stdout is JSON and nothing else");
    document["results"].as_array().unwrap().clone()
}

/// Only visible on a real file system and device: its name, requests, flushes, extents.
fn bench_counts_what_reaches_the_device(dir: TestDir) -> TrialResult {
    let results = results(&short_append(&dir, "--durability every-write --json -"));
    // Three paths, where preallocation is possible, and a queue.
    assert_eq!(results.len(), if dir.fs() == Fs::Ext3 { 5 } else { 7 });
    for result in results {
        assert!(["ext4", "xfs", "ext3"].contains(&result["fs"].as_str().unwrap()));
        for count in ["requests", "flushes", "extents"] {
            assert!(result[count].as_u64().unwrap() > 0, "{count} in {result}");
        }
    }
    Ok(())
}

fn bench_says_where_direct_io_is_not_direct(dir: TestDir) -> TrialResult {
    let output = short_append(&dir, "--json -");
    expect_code(&output, 0);
    let says = stderr(&output).contains("O_DIRECT is not direct here");
    assert_eq!(says, dir.fs().writes_directly().is_err(), "{}", stderr(&output));
    Ok(())
}

fn bench_zeroed(dir: TestDir) -> TrialResult {
    let results = results(&short_append(&dir, "--growth zeroed --json -"));
    assert!(results.iter().all(|result| result["growth"] == "zeroed"));
    Ok(())
}

fn bench_by_positional_writes(dir: TestDir) -> TrialResult {
    let results = results(&short_append(&dir, "--positional --json -"));
    let positional: Vec<_> = results.iter().filter(|row| row["path"] == "positional").collect();
    assert_eq!(positional.len(), 2, "one for each number of threads");
    for row in positional {
        assert!(row["iops"].as_f64().unwrap() > 0.0 && row["ratio_to_kernel"].is_object(), "{row}");
    }
    Ok(())
}

fn bench_over_a_recycled_file(dir: TestDir) -> TrialResult {
    let json = dir.join("out.json");
    let output = short_append(&dir, &format!("--recycle --json {}", json.display()));
    expect_code(&output, 0);
    let document: Value = serde_json::from_slice(&fs::read(json)?)?;
    let rows = document["results"].as_array().unwrap();
    let recycles = dir.fs().grows_unwritten().and(dir.fs().grows_zeroed());
    let wanted = if recycles.is_ok() { 2 } else { 0 };
    let recycled: Vec<_> = rows.iter().filter(|row| row["path"] == "recycled").collect();
    assert_eq!(recycled.len(), wanted, "one for each number of threads");
    assert_eq!(
        stderr(&output).contains("`recycled` is left out"),
        wanted == 0,
        "{}",
        stderr(&output)
    );
    let words = stdout(&output).lines().filter_map(|line| line.split_whitespace().nth(1));
    assert_eq!(words.filter(|path| *path == "recycled").count(), wanted, "{}", stdout(&output));
    for row in recycled {
        assert!(row["iops"].as_f64().unwrap() > 0.0 && row["ratio_to_kernel"].is_object(), "{row}");
        assert!(row["growths"].is_null(), "{row}");
    }
    Ok(())
}

fn bench_says_that_a_disk_is_full(fs: Fs) -> TrialResult {
    let volume = Volume::new(fs, SIZE_MIN)?;
    let filler = File::create(volume.path().join("filler"))?;
    let zeros = vec![0; 1 << 20];
    let mut end = 0;
    // The last write is short or refused.
    while let Ok(written) = filler.write_at(&zeros, end) {
        end += written as u64;
    }
    let output = run(&format!("bench append --dir {}", volume.path().display()));
    // XFS has a few blocks free or none, by what it keeps for itself at the time.
    let words = ["No space left on device", "free", "has no room"];
    assert!(
        !output.status.success() && words.iter().any(|words| stderr(&output).contains(words)),
        "{output:?}"
    );
    Ok(())
}

/// Every path, with every byte of every record and the end of the file checked.
fn bench_of_records(dir: &Path, more: &str) -> Vec<Value> {
    let dir = dir.display();
    let line = format!(
        "bench append --dir {dir} --numjobs 5 --iodepth 5 --runtime 100ms --rounds 1 --size 8m"
    );
    results(&run(&format!("{line} --json - {more}")))
}

fn paths(results: &[Value]) -> Vec<&str> {
    results.iter().map(|row| row["path"].as_str().unwrap()).collect()
}

const PATHS: [&str; 5] = ["kernel", "preallocated", "buffered-group", "dioxide", "dioxide-queue"];

fn bench_of_records_of_any_length(dir: TestDir) -> TrialResult {
    for sizes in ["100", "4097", "1-9000"] {
        for more in ["", "--durability every-write", "--tail pad --durability every-write"] {
            let results = bench_of_records(&dir, &format!("--bs {sizes} {more}"));
            // ext3 cannot preallocate.
            let wanted: Vec<&str> = PATHS
                .into_iter()
                .filter(|path| *path != "preallocated" || dir.fs() != Fs::Ext3)
                .collect();
            assert_eq!(paths(&results), wanted, "{sizes} {more}");
        }
    }
    Ok(())
}

fn bench_of_sectors(dir: TestDir) -> TrialResult {
    let results = bench_of_records(&dir, "--bs 512");
    assert_eq!(paths(&results), PATHS);
    for row in results {
        assert_eq!((&row["bs_bytes"], &row["tail"]), (&512.into(), &"rewrite".into()), "{row}");
    }
    Ok(())
}

/// Threads share the blocks that direct writes take.
fn bench_of_durable_parts_of_blocks(dir: TestDir) -> TrialResult {
    let file = OpenOptions::new().open_temporary(&*dir)?;
    let unit = file.alignment().offset;
    file.close()?;
    for reads in [0, 50] {
        let output = run(&format!(
            "bench mixed --dir {} --rwmixread {reads} --bs 512 --durability every-write \
             --numjobs 16 --iodepth 4 --size 1m --runtime 100ms --rounds 1 --json -",
            dir.display()
        ));
        let results = results(&output);
        let kernel: &[&str] = if unit > 512 { &[] } else { &["kernel"] };
        assert_eq!(
            paths(&results),
            [&["buffered"], kernel, &["dioxide", "dioxide-queue"]].concat(),
            "{}",
            stderr(&output)
        );
        for result in &results {
            assert!(result["write"]["iops"].as_f64().unwrap() > 0.0, "{result}");
            assert_eq!(result["durability"], "every-write");
        }
    }
    Ok(())
}

fn bench_of_whole_blocks_beside_a_group_commit(dir: TestDir) -> TrialResult {
    let results = bench_of_records(&dir, "--bs 8k --buffered-group --durability every-write");
    assert_eq!(paths(&results), PATHS);
    assert!(results[3]["ratio_to_buffered_group"].is_object() && results[3]["tail"].is_null());
    Ok(())
}

fn bench_over_a_recycled_file_of_records(dir: TestDir) -> TrialResult {
    let results = bench_of_records(&dir, "--bs 90-700 --recycle");
    assert_eq!(paths(&results)[4], "recycled");
    Ok(())
}

/// Every path in every kind of space, with every byte checked.
fn bench_of_logs(dir: TestDir) -> TrialResult {
    let one = "--numjobs 5 --iodepth 5";
    for (more, paths_of_a_space) in [(one, 10), ("--files 3", 4)] {
        let output = run(&format!(
            "bench log --dir {} --bs 16-700,4k --space unwritten,zeroed,recycled --runtime 100ms \
             --rounds 1 --size 3m {more} --json -",
            dir.display()
        ));
        let refused = stderr(&output).contains("recycled space is left out");
        let results = results(&output);
        assert_eq!(results.len(), 2 * paths_of_a_space * if refused { 2 } else { 3 }, "{more}");
        let moves_blocks = dir.fs().grows_unwritten().is_err() || dir.fs() == Fs::Btrfs;
        assert_eq!(refused, moves_blocks, "{}", stderr(&output));
        for result in &results {
            assert!(result["iops"].as_f64().unwrap() > 0.0, "{result}");
            assert_eq!(result["durability"], "every-write");
        }
    }
    Ok(())
}

/// Every stream on every path, with every byte checked.
fn bench_of_copies(dir: TestDir) -> TrialResult {
    let output = run(&format!(
        "bench copy --dir {} --size 5m --runtime 50ms --rounds 2 --json -",
        dir.display()
    ));
    let results = results(&output);
    let (written, read) =
        (["one-thread", "kernel", "unsynced", "dioxide"], ["one-thread", "kernel", "dioxide"]);
    assert_eq!(paths(&results), [&written[..], &written, &read].concat());
    for result in &results {
        assert!(result["iops"].as_f64().unwrap() > 0.0, "{result}");
        assert_eq!(result["asked"]["size_bytes"], 5 << 20, "{result}");
    }
    Ok(())
}

fn bench_counts_growth(dir: TestDir) -> TrialResult {
    for result in results(&short_append(&dir, "--growth-cap 64k --json -")) {
        let stall = result["growing_clat_max_ns"].as_u64();
        if result["path"] == "dioxide" {
            // The first one, and an arbitrary number in the background.
            assert!(result["growths"].as_u64().unwrap() >= 2, "{result}");
            // The first append finds no space.
            assert!(stall.unwrap() > 0 && stall <= result["clat_ns"]["max"].as_u64(), "{result}");
        } else {
            assert!(stall.is_none() && result["growths"].is_null(), "{result}");
        }
    }
    Ok(())
}

fn bench_on(device: &Path, scenario: &str) -> Output {
    let device = device.display();
    let line = format!("bench {scenario} --device {device} --overwrite-device {device}");
    run(&format!("{line} --numjobs 8 --iodepth 8 --runtime 100ms --rounds 2 --json -"))
}

fn sync_on(device: &Path) -> Output {
    bench_on(device, "sync")
}

fn mixed_on_a_bare_disk(disk: Disk) -> TrialResult {
    let results = results(&bench_on(&disk, "mixed --size 5000k --bs 16k"));
    assert_eq!(results.len(), 4);
    for result in &results {
        assert!(result["fs"].is_null() && result["inflight"].as_f64().unwrap() > 0.0, "{result}");
        for way in ["read", "write"] {
            assert!(result[way]["iops"].as_f64().unwrap() > 0.0, "{result}");
        }
    }
    Ok(())
}

fn bench_on_a_bare_disk(disk: Disk) -> TrialResult {
    let results = results(&sync_on(&disk));
    assert_eq!(results.len(), 4);
    for result in &results {
        assert!(result["fs"].is_null() && result["extents"].is_null());
        assert!(
            result["requests"].as_u64().unwrap() > 0 && result["flushes"].as_u64().unwrap() > 0
        );
        assert!(
            result["inflight"].as_f64().unwrap() > 0.0 && result["blocked"].is_f64(),
            "{result}"
        );
        let cpu = result["machine_cpu"].as_object().unwrap();
        let sum: f64 = cpu.values().map(|share| share.as_f64().unwrap()).sum();
        assert!(cpu.len() == 5 && (90.0..=110.0).contains(&sum), "{result}");
    }
    // Its own stamps do not keep it from running there again.
    expect_code(&sync_on(&disk), 0);
    Ok(())
}

/// As bare as a disk of the lab.
fn three_disks(dir: &Path) -> Result<Vec<AttachedFile>, Box<dyn std::error::Error>> {
    let attach = |name: &str| {
        let image = dir.join(name);
        File::create(&image)?.set_len(32 << 20)?;
        Ok(AttachedFile::new(&image)?)
    };
    ["one", "two", "three"].into_iter().map(attach).collect()
}

fn names(disks: &[AttachedFile]) -> String {
    let names: Vec<_> = disks.iter().map(|disk| disk.path().display().to_string()).collect();
    names.join(",")
}

fn sync_on_stripe(disks: &str, confirmed: &str) -> Output {
    let line = "--numjobs 6 --iodepth 6 --runtime 100ms --rounds 2 --json -";
    run(&format!("bench sync --stripe {disks} --chunk 64k --overwrite-device {confirmed} {line}"))
}

fn bench_on_a_striped_volume_of_disks(dir: TestDir) -> TrialResult {
    let disks = three_disks(&dir)?;
    let stripe = names(&disks);
    // Its remains do not keep it from running there again.
    for _ in 0..2 {
        let results = results(&sync_on_stripe(&stripe, &stripe));
        assert_eq!(paths(&results), ["serialised", "kernel", "dioxide", "dioxide-queue"]);
        for result in &results {
            assert!(result["requests"].as_u64().unwrap() > 0 && result["fs"].is_null(), "{result}");
        }
        for disk in &disks {
            let mut header = [1; BLOCK];
            File::open(disk.path())?.read_exact_at(&mut header, 0)?;
            assert_eq!(header, [0; BLOCK], "its header is left");
        }
    }
    Ok(())
}

fn disks_are_striped_only_if_all_are_free_and_named_again(dir: TestDir) -> TrialResult {
    let disks = three_disks(&dir)?;
    let stripe = names(&disks);
    let devices: Vec<&str> = stripe.split(',').collect();
    let swapped = [devices[1], devices[0], devices[2]].join(",");
    for confirmed in [&swapped, devices[0]] {
        expect_refusal(
            &sync_on_stripe(&stripe, confirmed),
            "does not name the same ones; nothing was touched",
        );
    }
    expect_refusal(&run(&format!("bench sync --stripe {stripe}")), "does not name the same ones");
    let mixed = format!("{},{}", devices[0], dir.display());
    expect_refusal(&sync_on_stripe(&mixed, &mixed), "not both");

    let last = File::options().read(true).write(true).open(devices[2])?;
    last.write_all_at(b"dioxide stripe", 0)?;
    expect_refusal(
        &sync_on_stripe(&stripe, &stripe),
        "holds a member of a striped volume of dioxide",
    );
    last.write_all_at(&[0; 14], 0)?;
    last.write_all_at(&[0x53, 0xef], 1080)?;
    expect_refusal(&sync_on_stripe(&stripe, &stripe), "holds an ext2, ext3 or ext4 file system");
    let mut first = [1; BLOCK];
    File::open(devices[0])?.read_exact_at(&mut first, 0)?;
    assert_eq!(first, [0; BLOCK], "the others were not touched");
    Ok(())
}

/// The loop devices of images in `dir`, with their autoclear flag.
fn loops_on(dir: &Path) -> Vec<bool> {
    let devices = fs::read_dir("/sys/block").unwrap().flatten();
    let about = |entry: fs::DirEntry| {
        let about = |name| fs::read_to_string(entry.path().join("loop").join(name));
        let is_here = about("backing_file").ok()?.starts_with(dir.to_str().unwrap());
        is_here.then(|| about("autoclear").is_ok_and(|yes| yes.trim() == "1"))
    };
    devices.filter_map(about).collect()
}

fn bench_through_indirect_blocks(dir: TestDir) -> TrialResult {
    for more in ["", "--fresh"] {
        let line =
            format!("bench indirect --dir {} --count 5 --rounds 2 --json - {more}", dir.display());
        let results = results(&run(&line));
        assert_eq!(paths(&results), ["serialised", "kernel", "dioxide"]);
        let requests = |path: usize| results[path]["requests"].as_u64().unwrap();
        assert!(requests(0) >= 5 * 1024, "one for each block: {}", results[0]);
        assert!(requests(1) >= 5, "{}", results[1]);
        assert!((5..=5 * 2).contains(&requests(2)), "{}", results[2]);
        for result in &results {
            assert_eq!(
                (&result["scenario"], &result["bs_bytes"]),
                (&"indirect".into(), &(4 << 20).into())
            );
            assert_eq!(result["clat_ns"]["N"], 2 * 5, "{result}");
            for cost in ["cpu_us_per_mib", "machine_memory", "rss_bytes"] {
                assert!(result[cost].as_f64().unwrap() > 0.0, "{cost} in {result}");
            }
        }
        assert!(
            results[2]["ratio_to_serialised"].is_object()
                && results[2]["ratio_to_kernel"].is_object()
        );
    }
    assert!(fs::read_dir(&*dir)?.next().is_none() && loops_on(&dir).is_empty());
    Ok(())
}

/// The path that mounts is not the first of a round, so the paths before it must be short.
fn a_loop_mount_goes_with_its_bench(dir: TestDir) -> TrialResult {
    for signal in [Signal::INT, Signal::KILL] {
        let line = format!("bench indirect --dir {} --count 300 --rounds 999", dir.display());
        let mut bench = dioxide(&line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        wait_until("the volume is mounted", || loops_on(&dir).contains(&true));
        kill_process(Pid::from_child(&bench), signal)?;
        bench.wait()?;
        wait_until("the loop device is gone", || loops_on(&dir).is_empty());
        assert!(fs::read_dir(&*dir)?.next().is_none(), "{signal:?}");
    }
    Ok(())
}

fn a_disk_that_holds_something_is_refused(disk: Disk) -> TrialResult {
    let bytes = File::options().read(true).write(true).open(&*disk)?;
    let mut before = [0; 2];
    bytes.read_exact_at(&mut before, 1080)?;
    bytes.write_all_at(&[0x53, 0xef], 1080)?;
    let refusal = sync_on(&disk);
    let refusal_of_mixed = bench_on(&disk, "mixed");
    bytes.write_all_at(&before, 1080)?;
    for refusal in [refusal, refusal_of_mixed] {
        expect_refusal(&refusal, "holds an ext2, ext3 or ext4 file system");
    }
    Ok(())
}

fn a_disk_that_another_program_holds_is_refused(disk: Disk) -> TrialResult {
    use std::os::unix::fs::OpenOptionsExt;
    let flags = rustix::fs::OFlags::EXCL.bits() as i32;
    let _holder = File::options().write(true).custom_flags(flags).open(&*disk)?;
    expect_refusal(&sync_on(&disk), "is in use");
    Ok(())
}

/// The lab's own file systems are on loop devices, which must be refused like others.
fn a_mounted_device_is_refused(dir: TestDir) -> TrialResult {
    let device = rustix::fs::stat(&*dir)?.st_dev;
    let link =
        format!("/sys/dev/block/{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let sysfs = fs::canonicalize(link)?;
    let device = Path::new("/dev").join(sysfs.file_name().unwrap());
    expect_refusal(&sync_on(&device), "is in use: mounted at");
    Ok(())
}

/// A warning would precede the error.
fn opens_without_a_warning(fs: Fs) -> Applies {
    fs.grows_unwritten().and(fs.writes_directly())
}

fn trials() -> Vec<Trial> {
    let on_the_disk = vec![
        disk_trial("bench_on_a_bare_disk", bench_on_a_bare_disk),
        disk_trial("mixed_on_a_bare_disk", mixed_on_a_bare_disk),
        disk_trial(
            "a_disk_that_holds_something_is_refused",
            a_disk_that_holds_something_is_refused,
        ),
        disk_trial(
            "a_disk_that_another_program_holds_is_refused",
            a_disk_that_another_program_holds_is_refused,
        ),
    ];
    let on_file_systems = [
        lab_trials_where(
            "bench_counts_what_reaches_the_device",
            is_on_one_device,
            bench_counts_what_reaches_the_device,
        ),
        lab_trials(
            "bench_says_where_direct_io_is_not_direct",
            bench_says_where_direct_io_is_not_direct,
        ),
        lab_trials("bench_by_positional_writes", bench_by_positional_writes),
        lab_trials("bench_over_a_recycled_file", bench_over_a_recycled_file),
        volume_trials("bench_says_that_a_disk_is_full", bench_says_that_a_disk_is_full),
        lab_trials_where("bench_zeroed", Fs::grows_zeroed, bench_zeroed),
        lab_trials("bench_of_records_of_any_length", bench_of_records_of_any_length),
        lab_trials_where("bench_of_sectors", opens_without_a_warning, bench_of_sectors),
        lab_trials("bench_of_durable_parts_of_blocks", bench_of_durable_parts_of_blocks),
        lab_trials_where(
            "bench_of_whole_blocks_beside_a_group_commit",
            opens_without_a_warning,
            bench_of_whole_blocks_beside_a_group_commit,
        ),
        lab_trials_where(
            "bench_over_a_recycled_file_of_records",
            opens_without_a_warning,
            bench_over_a_recycled_file_of_records,
        ),
        lab_trials("bench_of_logs", bench_of_logs),
        lab_trials("bench_of_copies", bench_of_copies),
        lab_trials("bench_through_indirect_blocks", bench_through_indirect_blocks),
        lab_trials_where(
            "a_loop_mount_goes_with_its_bench",
            Fs::on_ext4,
            a_loop_mount_goes_with_its_bench,
        ),
        lab_trials_where(
            "bench_on_a_striped_volume_of_disks",
            Fs::on_ext4,
            bench_on_a_striped_volume_of_disks,
        ),
        lab_trials_where(
            "disks_are_striped_only_if_all_are_free_and_named_again",
            Fs::on_ext4,
            disks_are_striped_only_if_all_are_free_and_named_again,
        ),
        lab_trials_where("bench_counts_growth", Fs::grows_unwritten, bench_counts_growth),
        lab_trials_where(
            "a_mounted_device_is_refused",
            is_on_one_device,
            a_mounted_device_is_refused,
        ),
        lab_trials_where(
            "recover_truncates_at_the_end_of_what_was_written",
            Fs::grows_unwritten,
            recover_truncates_at_the_end_of_what_was_written,
        ),
        lab_trials_where(
            "recover_leaves_zeroed_files_to_their_owner",
            Fs::grows_zeroed,
            recover_leaves_zeroed_files_to_their_owner,
        ),
        lab_trials_where(
            "recover_truncates_doubtful_files_by_force_only",
            Fs::grows_unwritten,
            recover_truncates_doubtful_files_by_force_only,
        ),
    ];
    on_the_disk.into_iter().chain(on_file_systems.into_iter().flatten()).collect()
}

fn main() -> ExitCode {
    dioxide_testkit::run(&[("append", append)], trials)
}
