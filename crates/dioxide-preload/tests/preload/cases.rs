//! Regression tests of single bugs. `c/cases.c` runs with and without the library. Both runs must
//! print the same, end the same way, and leave files of the same lengths without markers.

use super::rig::*;
use dioxide_testkit::files;
use dioxide_testkit::lab::{Applies, Fs, TestDir};
use dioxide_testkit::loop_device::AttachedFile;
use dioxide_testkit::trials::{
    Failed, Trial, TrialResult, in_turn, lab_trials_where, volume_trial, volume_trials_where,
};
use dioxide_testkit::volume::{SIZE_MIN, Volume};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// The arguments of `c/cases.c`.
const CASES: [&str; 67] = [
    "a_rotation_in_a_handler_that_interrupts_an_append",
    "a_vfork_child_that_ends_by_a_signal",
    "a_child_with_the_parents_memory_changes_its_numbers open",
    "a_child_with_the_parents_memory_changes_its_numbers openat",
    "a_child_with_the_parents_memory_changes_its_numbers clone",
    LEAVE[0],
    LEAVE[1],
    "exit_in_a_handler_that_interrupts_malloc",
    "exit_in_a_handler_beside_another_file",
    LEAVE[2],
    LEAVE[3],
    "close_in_a_handler_that_interrupts_a_read",
    "exit_in_a_handler_on_a_small_stack",
    "a_handler_runs_in_the_programs_threads_only",
    "a_signal_ends_the_program 1",  // SIGHUP
    "a_signal_ends_the_program 2",  // SIGINT
    "a_signal_ends_the_program 3",  // SIGQUIT
    "a_signal_ends_the_program 10", // SIGUSR1
    "a_signal_ends_the_program 13", // SIGPIPE
    "a_signal_ends_the_program 14", // SIGALRM
    "a_signal_ends_the_program 15", // SIGTERM
    "a_signal_ends_the_program 24", // SIGXCPU
    "a_signal_whose_action_is_set_again sigset",
    "a_signal_whose_action_is_set_again sigaction",
    "a_handler_that_raises_the_signal_again",
    "a_signal_ends_the_program_during_reads",
    "an_absolute_path_with_no_directory",
    "an_empty_piece_at_no_address",
    "pieces_that_are_not_there",
    "a_write_in_a_destructor_of_thread_data",
    "lengths_that_libc_asks_for_itself",
    "the_position_of_appends_after_a_truncate",
    "a_number_that_a_stream_closed",
    "close_beside_mmap",
    "a_closefrom_beside_a_take_over",
    "a_closefrom_without_close_range",
    "a_loop_device_of_a_file_that_is_taken",
    "a_buffered_open_beside_a_take_over",
    "a_line_printed_to_a_descriptor",
    "a_lease",
    "times_that_the_program_sets",
    "a_thread_with_its_own_descriptors",
    "a_thread_with_its_own_descriptors number",
    "a_number_of_the_engine_is_duplicated",
    "a_number_of_the_engine_by_number",
    "a_number_of_another_file_beside_a_hand_back",
    "a_swap_of_a_file_that_is_taken",
    "a_descriptor_copied_from_the_own_process name",
    "a_descriptor_copied_from_the_own_process number",
    "a_number_replaced_beside_appends",
    "a_ring_whose_descriptor_is_closed",
    "a_take_over_beside_exec",
    "a_first_thread_that_ends pthread_exit",
    "a_first_thread_that_ends thrd_exit",
    "a_first_thread_that_ends pthread_cancel",
    "a_child_of_pidfd_spawn_appends",
    "children_by_number",
    "shells_that_append",
    "a_descriptor_in_one_of_many_messages",
    "cancelled_threads",
    "a_limit_of_the_length",
    "an_open_without_waiting_beside_a_take_over",
    "a_sync_in_a_handler_beside_a_hand_back",
    "a_sync_of_a_file_that_has_none",
    "a_raw_child_beside_threads_that_open",
    "a_child_by_number_opens_a_file",
    "a_fork_beside_the_last_close",
];

/// Cases with a signal handler that never returns to the interrupted call. The library supports
/// them only while the kernel serves the file.
const LEAVE: [&str; 4] = [
    "exit_in_a_handler_that_interrupts_a_write",
    "jump_out_of_a_write",
    "exit_in_a_handler_that_interrupts_a_durable_write",
    "jump_out_of_a_durable_write",
];

/// Cases of writes of sectors and of bytes, on disks with sectors of 512 bytes. Those with an odd
/// number have bytes, which most file systems refuse.
const OF_SECTORS: [&str; 4] =
    ["parts_of_blocks 1", "parts_of_blocks 2", "parts_of_blocks 3", "parts_of_blocks 4"];

/// The same on any disk.
const OF_PARTS: [&str; 8] = [
    "parts_of_blocks 7",
    "parts_of_blocks 8",
    "parts_of_blocks 9",
    "parts_of_blocks 10",
    "threads_write_sectors_of_blocks",
    "threads_append_sectors",
    "bytes_into_a_hole",
    "memory_that_is_not_there",
];

/// Cases of files that share extents, on XFS and btrfs.
const OF_CLONES: [&str; 9] = [
    "parts_of_blocks_of_a_clone 5",
    "parts_of_blocks_of_a_clone 6",
    "threads_write_sectors_of_blocks_of_a_clone",
    "sectors_of_a_clone 1",
    "sectors_of_a_clone 2",
    "sectors_of_a_clone 3",
    "sectors_of_a_clone 4",
    "threads_write_sectors_of_a_clone",
    "a_clone_of_a_file_that_is_taken",
];

/// Changes of the rights of the process, of its root directory, or of the rights to its file.
const RIGHTS: [&str; 26] = [
    "setuid",
    "seteuid",
    "setreuid",
    "setresuid",
    "setfsuid",
    "setgid",
    "setegid",
    "setregid",
    "setresgid",
    "setfsgid",
    "setgroups",
    "initgroups",
    "capset",
    "capset_by_number",
    "setresuid_by_number",
    "fchown",
    "fchown_by_number",
    "chown",
    "lchown",
    "fchownat",
    "fchownat_of_a_descriptor",
    "fchmod",
    "chmod",
    "fchmodat",
    "chroot",
    "chroot_by_number",
];

/// Prefixes of the cases that end by a signal.
const SIGNALS: [&str; 2] = ["a_signal", "a_handler_that_raises"];

/// A signal handler of the library waits so long in vain, and at an ordinary end not at all.
const HANDLER_WAIT_MAX: Duration = Duration::from_secs(5);
/// One end without that wait is enough. A busy machine delays some.
const TRIES: usize = 5;

fn cases(dir: &Path, case: &str, with: With) -> Command {
    let mut command = Command::new(c_program("cases", COMPILED[case.len() % 3]));
    command.args(case.split(' ')).current_dir(dir);
    with.set(&mut command);
    command
}

/// How a case ended, its output, and the lengths of its files.
#[derive(Debug, PartialEq)]
struct Outcome {
    ending: String,
    told: String,
    lengths: BTreeMap<String, u64>,
}

fn outcome(dir: &Path, case: &str, with: With) -> Result<Outcome, Failed> {
    let ends_by_signal = SIGNALS.iter().any(|begin| case.starts_with(begin));
    let mut delays = Vec::new();
    let (dir, finished) = loop {
        let dir = empty(dir, &format!("{with:?}"))?;
        // Compiles the program.
        let mut command = cases(&dir, case, with);
        let begun = Instant::now();
        let finished = run(&mut command)?;
        let elapsed = begun.elapsed();
        if !ends_by_signal || elapsed < HANDLER_WAIT_MAX {
            break (dir, finished);
        }
        delays.push(elapsed);
        if delays.len() == TRIES {
            return Err(failed(format!("{with:?}: it ended only after {delays:?}")));
        }
    };
    if finished.status.code() == Some(2) {
        finished.well()?;
        unreachable!("2 is no success");
    }
    let mut lengths = BTreeMap::new();
    for entry in fs::read_dir(&dir)? {
        let entry = entry?;
        let (name, stat) = (entry.file_name().to_string_lossy().into_owned(), entry.metadata()?);
        if stat.is_file() {
            assert_eq!(files::marker(entry.path())?, None, "{with:?}: {name}");
            lengths.insert(name, stat.len());
        }
    }
    Ok(Outcome { ending: ending(finished.status), told: finished.stdout, lengths })
}

fn tells_the_same(dir: &Path, case: &str, ways: &[With]) -> TrialResult {
    let control = outcome(dir, case, With::Nothing)?;
    for with in ways {
        assert_eq!(outcome(dir, case, *with)?, control, "{case}: {with:?}, and without");
    }
    Ok(())
}

/// The file has the acknowledged length, in the program and afterwards.
fn a_full_disk() -> TrialResult {
    for with in With::ALL {
        let volume = Volume::new(Fs::Ext4, 32 << 20)?;
        let finished = run(&mut cases(volume.path(), "a_full_disk", with))?.well()?;
        let told =
            "other errors: 0\nlength without what was acknowledged: 0\nagain: 1\nlength: 69632\n";
        assert_eq!(finished.stdout, told, "{with:?}");
        assert_eq!(fs::metadata(volume.path().join("file"))?.len(), 69632, "{with:?}");
        assert_eq!(files::marker(volume.path().join("file"))?, None, "{with:?}");
    }
    Ok(())
}

/// Runs a case on its own device. Returns its end and the content of the device.
fn on_a_device(dir: &Path, case: &str, with: With) -> Result<(Finished, Vec<u8>), Failed> {
    let backing = dir.join("backing");
    File::create(&backing)?.set_len(16 << 20)?;
    let device = AttachedFile::new(&backing)?;
    let case = format!("{case} {}", device.path().display());
    let mut command = cases(dir, &case, with);
    let finished = run(command.env("DIOXIDE_DEVICES", "1").env("DIOXIDE_STATS", "1"))?.well()?;
    drop(device);
    Ok((finished, fs::read(&backing)?))
}

fn a_block_device(dir: TestDir) -> TrialResult {
    let (control, content) = on_a_device(&dir, "a_device", With::Nothing)?;
    for with in With::LIBRARY {
        let (finished, written) = on_a_device(&dir, "a_device", with)?;
        assert_eq!(finished.stdout, control.stdout, "{with:?}");
        assert!(written == content, "{with:?}: the device has other content");
        assert!(finished.stderr.contains(" write request"), "{with:?}: {}", finished.stderr);
    }
    Ok(())
}

/// The bug: the keeper of the close found the file in use.
fn a_device_opened_beside_its_last_close(dir: TestDir) -> TrialResult {
    for with in [With::Nothing, With::Eager] {
        let (finished, _) = on_a_device(&dir, "a_device_opened_beside_its_last_close", with)?;
        assert_eq!(finished.stdout, "done\n", "{with:?}");
        let is_taken = finished.stderr.contains(" write request");
        assert!(with != With::Eager || is_taken, "{}", finished.stderr);
    }
    Ok(())
}

/// The kernel refuses the call, and the engine keeps the file.
fn misaligned_calls_by_mistake(dir: TestDir) -> TrialResult {
    let case = "misaligned_calls_by_mistake";
    tells_the_same(&dir, case, &With::LIBRARY)?;
    let mut command = cases(&empty(&dir, "told")?, case, With::Eager);
    let finished = run(command.env("DIOXIDE_STATS", "1"))?.well()?;
    let stays = finished.stderr.contains("1 of them taken over")
        && !finished.stderr.contains("handed back");
    if stays { Ok(()) } else { Err(failed(finished.stderr)) }
}

fn a_take_over_after_a_failed_exec(dir: TestDir) -> TrialResult {
    let case = "a_take_over_after_a_failed_exec";
    for case in [case, &format!("{case}_of_another_thread")] {
        let mut command = cases(&empty(&dir, "told")?, case, With::Eager);
        let finished = run(command.env("DIOXIDE_STATS", "1"))?.well()?;
        if !finished.stderr.contains("2 of them taken over") {
            return Err(failed(format!("{case}: {}", finished.stderr)));
        }
    }
    Ok(())
}

/// The bug: the growth thread used the lowest free number, which the program expected.
fn a_number_beside_growth(dir: TestDir) -> TrialResult {
    for with in [With::Nothing, With::Eager] {
        let mut command = cases(&empty(&dir, "told")?, "a_number_beside_growth", with);
        let finished = run(command.env("DIOXIDE_GROWTH_CAP", "64K"))?.well()?;
        assert_eq!(finished.stdout, "other numbers: 0\n", "{with:?}");
    }
    Ok(())
}

/// The engine serves writes and reads of sectors to the end.
fn sectors_are_carried(dir: &Path, cases_of_sectors: &[&str]) -> TrialResult {
    for case in cases_of_sectors {
        let mut command = cases(&empty(dir, "told")?, case, With::Eager);
        let finished = run(command.env("DIOXIDE_STATS", "1"))?.well()?;
        let stays = finished.stderr.contains("1 of them taken over")
            && !finished.stderr.contains("handed back");
        if !stays {
            return Err(failed(format!("{case}: {}", finished.stderr)));
        }
    }
    Ok(())
}

/// On a device with sectors of 4096 bytes.
fn parts_of_large_sectors(fs: Fs) -> TrialResult {
    let volume = Volume::with_large_sectors(fs, SIZE_MIN)?;
    for case in OF_PARTS {
        tells_the_same(volume.path(), case, &With::LIBRARY)?;
    }
    Ok(())
}

/// The hand-back comes first, because the kernel may refuse it afterwards.
fn rights_that_change_after_the_open(dir: &Path, way: &str) -> TrialResult {
    let case = format!("rights_that_change_after_the_open {way}");
    tells_the_same(dir, &case, &With::LIBRARY)?;
    let mut command = cases(&empty(dir, "told")?, &case, With::Eager);
    let finished = run(command.env("DIOXIDE_STATS", "1"))?.well()?;
    let reasons = [
        "the program changes its rights",
        "the rights to it change",
        "the program changes its root directory",
    ];
    let handed_back = reasons
        .iter()
        .any(|why| finished.stderr.contains(&format!("handed back to the kernel: {why}")));
    if handed_back { Ok(()) } else { Err(failed(finished.stderr)) }
}

/// The lengths differ, because the kernel's EOF is not the engine's. No append is lost.
fn an_append_in_a_handler_lands_over_others(dir: TestDir) -> TrialResult {
    for with in With::ALL {
        let dir = empty(&dir, &format!("{with:?}"))?;
        let case = "an_append_in_a_handler_that_interrupts_an_append";
        let finished = run(&mut cases(&dir, case, with))?.well()?;
        let told = "interrupted: 1\nlost appends: 0\nlost appends of the handler: 0\n";
        assert_eq!(finished.stdout, told, "{with:?}");
    }
    Ok(())
}

fn where_files_share_extents(fs: Fs) -> Applies {
    match fs {
        Fs::Xfs | Fs::Btrfs => Ok(()),
        _ => Err("files share no extents"),
    }
}

fn on_ext4_and_xfs(fs: Fs) -> Applies {
    if matches!(fs, Fs::Ext4 | Fs::Xfs) { Ok(()) } else { Err("tried on ext4 and XFS") }
}

fn where_the_end_matters(fs: Fs) -> Applies {
    match fs {
        Fs::Ext4 | Fs::Tmpfs => Ok(()),
        _ => Err("tried on ext4 and tmpfs"),
    }
}

pub fn trials() -> Vec<Trial> {
    let each = |case: &'static str| {
        let ways = if LEAVE.contains(&case) { &With::LIBRARY[..1] } else { &With::LIBRARY };
        let name = format!("cases {case}").replace(' ', "_");
        lab_trials_where(&name, where_the_end_matters, move |dir: TestDir| {
            tells_the_same(&dir, case, ways)
        })
    };
    let mut trials: Vec<_> = CASES.into_iter().flat_map(each).collect();
    for case in OF_CLONES {
        let name = format!("cases {case}").replace(' ', "_");
        let test = move |dir: TestDir| tells_the_same(&dir, case, &With::LIBRARY);
        trials.extend(lab_trials_where(&name, where_files_share_extents, test));
    }
    trials.extend(in_turn(RIGHTS.into_iter().map(|way| {
        let name = format!("cases_rights_that_change_after_the_open_{way}");
        let test = move |dir: TestDir| rights_that_change_after_the_open(&dir, way);
        lab_trials_where(&name, on_ext4_and_xfs, test)
    })));
    trials.extend(lab_trials_where(
        "cases_an_append_in_a_handler_lands_over_others",
        on_ext4_and_xfs,
        an_append_in_a_handler_lands_over_others,
    ));
    for case in OF_SECTORS.into_iter().chain(OF_PARTS) {
        let name = format!("cases {case}").replace(' ', "_");
        let test = move |dir: TestDir| tells_the_same(&dir, case, &With::LIBRARY);
        trials.extend(lab_trials_where(&name, |_| Ok(()), test));
    }
    let of_sectors =
        ["parts_of_blocks 2", "threads_write_sectors_of_blocks", "threads_append_sectors"];
    let test = move |dir: TestDir| sectors_are_carried(&dir, &of_sectors);
    trials.extend(lab_trials_where("cases_sectors_are_carried", |_| Ok(()), test));
    let of_sectors = ["parts_of_blocks_of_a_clone 6", "threads_write_sectors_of_blocks_of_a_clone"];
    let test = move |dir: TestDir| sectors_are_carried(&dir, &of_sectors);
    let name = "cases_sectors_of_a_clone_are_carried";
    trials.extend(lab_trials_where(name, where_files_share_extents, test));
    let name = "cases_parts_of_large_sectors";
    trials.extend(volume_trials_where(name, Fs::has_disk, parts_of_large_sectors));
    let name = "cases_a_take_over_after_a_failed_exec";
    trials.extend(lab_trials_where(name, on_ext4_and_xfs, a_take_over_after_a_failed_exec));
    let name = "cases_a_number_beside_growth";
    trials.extend(lab_trials_where(name, on_ext4_and_xfs, a_number_beside_growth));
    let name = "cases_misaligned_calls_by_mistake";
    trials.extend(lab_trials_where(name, on_ext4_and_xfs, misaligned_calls_by_mistake));
    trials.push(volume_trial("cases_a_full_disk", a_full_disk));
    trials.extend(lab_trials_where("cases_a_block_device", Fs::on_ext4, a_block_device));
    trials.extend(lab_trials_where(
        "cases_a_device_opened_beside_its_last_close",
        Fs::on_ext4,
        a_device_opened_beside_its_last_close,
    ));
    trials
}
