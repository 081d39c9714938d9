//! Kills, power cuts and failed flushes of one member. Acknowledged data is never lost, and failed
//! data is never acknowledged.

use crate::common::*;
use crate::volume::Paths;
use dioxide::{Durability, ErrorKind, Verdict};
use dioxide_testkit::child::{self, Acks};
use dioxide_testkit::fuse_disk::{FuseDisk, Keep};
use dioxide_testkit::lab::{Fs, TestDir};
use dioxide_testkit::trials::{Trial, TrialResult, fuse_trials_where, lab_trials_where};
use dioxide_testkit::volume::{SIZE_MIN, Volume};
use std::path::Path;
use std::time::Duration;

const CHUNK: u64 = 16_384;

/// A child with many threads that append durably. The args are growth, a number that identifies its
/// records, and the volume.
pub fn append_striped_durably(acks: &Acks, args: &[String]) {
    let paths = Paths::of_args(&args[2..]);
    let mut options = writable();
    options.durability(Durability::EveryWrite).growth(growth_named(&args[0])).growth_cap(MIB);
    let file = paths.open(&options).expect("it opens");
    let first = args[1].parse::<u64>().expect("a number") << 16;
    let ways = [Way::Calls, Way::Calls, Way::Queue, Way::Calls, Way::QueueOfCalls];
    together(10, |thread| {
        let file =
            ways[thread as usize % ways.len()].to(file.try_clone().expect("one more handle"));
        let blocks = |number| Some(1 + (number + thread) % 7);
        append_while(&file, first + thread, blocks, |result| {
            result.map(|placed| acks.send(placed.to_ack())).is_ok()
        });
    });
}

fn start(paths: &Paths, growth: &str, round: u64) -> std::io::Result<child::Child> {
    let args: Vec<_> =
        [growth.into(), round.to_string()].into_iter().chain(paths.to_args()).collect();
    child::spawn("append_striped_durably", &args)
}

/// Opens the volume after a crash, checks its content, and finishes the recovery as its owner does.
fn check_after_crash(paths: &Paths, acknowledged: &[Placed]) -> TrialResult {
    let file = paths.reopen()?;
    let end = acknowledged.iter().map(Placed::end).max().unwrap_or(0);
    assert!(file.len()? >= end, "cut to {}, below {end}", file.len()?);
    let content = paths.content()?;
    assert_all_there(&content, acknowledged);
    if file.recovery().is_some_and(|found| found.verdict == Verdict::EndUnknown) {
        file.set_len(end_of_records(&content[..file.len()? as usize], 0))?;
    }
    let len = file.len()?;
    file.close()?;
    paths.assert_tidy(len)?;
    assert_all_there(&paths.content()?, acknowledged);
    Ok(())
}

fn a_killed_process_loses_nothing_of_a_volume(dir: TestDir) -> TrialResult {
    let mut random = Random::new(3);
    for growth in ["unwritten", "zeroed", "none"] {
        let paths = Paths::in_dir(&dir, growth, 3, CHUNK);
        let mut acknowledged = Vec::new();
        for round in 0..4 {
            let mut child = start(&paths, growth, round)?;
            child.wait_for_acks(1 + random.below(60) as usize, PATIENCE)?;
            let acks = child.kill_after(Duration::from_micros(random.below(20_000)))?;
            acknowledged.extend(acks.into_iter().map(Placed::from_ack));
            check_after_crash(&paths, &acknowledged)?;
        }
    }
    Ok(())
}

fn disk(volume: &Volume) -> &FuseDisk {
    volume.disk().expect("on a FUSE disk")
}

/// Each member is on its own disk. The disks lose power one after the other.
fn acknowledged_records_survive_power_cuts_of_all_members(fs: Fs) -> TrialResult {
    let mut volumes = [Volume::on_fuse_disk(fs, SIZE_MIN)?, Volume::on_fuse_disk(fs, SIZE_MIN)?];
    for (round, growth) in (0..).zip(["unwritten", "zeroed", "none"]) {
        let dirs: Vec<&Path> = volumes.iter().map(Volume::path).collect();
        let paths = Paths::in_dirs(&dirs, &format!("log-{round}"), CHUNK);
        let mut child = start(&paths, growth, round)?;
        child.wait_for_acks(60, PATIENCE)?;
        let keep = [Keep::Nothing, Keep::Random { seed: round }];
        for (place, volume) in volumes.iter().enumerate() {
            disk(volume).power_cut(keep[(place + round as usize) % 2])?;
            std::thread::sleep(Duration::from_millis(round * 3));
        }
        let (_, acks) = child.wait(PATIENCE)?;
        for (place, volume) in volumes.iter_mut().enumerate() {
            volume.power_cut(keep[(place + round as usize) % 2])?;
        }
        let acknowledged: Vec<_> = acks.into_iter().map(Placed::from_ack).collect();
        check_after_crash(&paths, &acknowledged)?;
    }
    volumes.iter_mut().try_for_each(Volume::fsck)?;
    Ok(())
}

/// The flush of one member fails: no write to any member is acknowledged any more.
fn a_flush_that_fails_on_one_member_wedges_all(fs: Fs) -> TrialResult {
    for failing in 0..2 {
        let volumes = [Volume::on_fuse_disk(fs, SIZE_MIN)?, Volume::on_fuse_disk(fs, SIZE_MIN)?];
        let dirs: Vec<&Path> = volumes.iter().map(Volume::path).collect();
        let paths = Paths::in_dirs(&dirs, "log", CHUNK);
        let file = paths.open(&writable())?;
        let beside: Vec<_> =
            dirs.iter().map(|dir| writable().open(dir.join("beside"))).collect::<Result<_, _>>()?;
        append_many(&file, 1, 40);
        file.sync_data()?;
        append_many(&file, 2, 40);
        disk(&volumes[failing]).fail_flush(1, libc::EIO)?;
        assert!(file.sync_data().is_err(), "member {failing} had failed");
        assert_eq!(disk(&volumes[failing]).stats()?.failed_flushes, 1);
        assert!(matches!(refusal(file.sync_data()), ErrorKind::Wedged(_)));
        assert!(matches!(refusal(append(&file, 3, 0, 1)), ErrorKind::Wedged(_)));
        for file in &beside {
            assert!(matches!(refusal(file.sync_data()), ErrorKind::Wedged(_)));
        }
        assert!(file.close().is_err());
        assert!(paths.reopen().is_err());
    }
    Ok(())
}

fn is_ext4_or_xfs(fs: Fs) -> dioxide_testkit::lab::Applies {
    if matches!(fs, Fs::Ext4 | Fs::Xfs) {
        Ok(())
    } else {
        Err("as on those with a journal of their own")
    }
}

pub fn trials() -> Vec<Trial> {
    let mut trials = lab_trials_where(
        "a_killed_process_loses_nothing_of_a_volume",
        is_ext4_or_xfs,
        a_killed_process_loses_nothing_of_a_volume,
    );
    trials.extend(fuse_trials_where(
        "acknowledged_records_survive_power_cuts_of_all_members",
        is_ext4_or_xfs,
        acknowledged_records_survive_power_cuts_of_all_members,
    ));
    trials.extend(fuse_trials_where(
        "a_flush_that_fails_on_one_member_wedges_all",
        is_ext4_or_xfs,
        a_flush_that_fails_on_one_member_wedges_all,
    ));
    trials
}
