//! `open` refuses invalid volumes, and leaves them as they are.

use crate::common::*;
use crate::volume::{CHUNK, Paths};
use dioxide::{ErrorKind, OpenOptions, Recover};
use dioxide_testkit::child;
use dioxide_testkit::fork::holds_in_a_fork;
use dioxide_testkit::lab::{Fs, TestDir};
use dioxide_testkit::trials::{Failed, Trial, TrialResult, lab_trials_where, volume_trial};
use dioxide_testkit::volume::Volume;
use std::fs;
use std::thread;
use std::time::Duration;

/// A closed volume of three members, with a record in each chunk of three rows.
fn volume(dir: &TestDir, name: &str) -> Result<(Paths, Vec<Placed>), Failed> {
    let paths = Paths::in_dir(dir, name, 3, CHUNK);
    let file = paths.open(&writable())?;
    let placed =
        (0..18).map(|number| append(&file, 1, number, 1)).collect::<Result<Vec<_>, _>>()?;
    file.close()?;
    Ok((paths, placed))
}

/// Checks that an open for writing, with or without creation, or for reading fails with these
/// words. It changes no byte.
#[track_caller]
fn assert_refused(paths: &Paths, words: &str) -> TrialResult {
    let before = paths.snapshot()?;
    for options in [OpenOptions::new().write(true), &mut writable(), &mut OpenOptions::new()] {
        match refusal(paths.open(options)) {
            ErrorKind::Members(why) => assert!(why.contains(words), "{why:?}, not {words:?}"),
            other => panic!("{other:?}, not {words:?}"),
        }
    }
    assert!(paths.snapshot()? == before, "something was changed: {words}");
    Ok(())
}

fn what_is_no_volume_is_refused(dir: TestDir) -> TrialResult {
    let (paths, placed) = volume(&dir, "log")?;
    let (other, _) = volume(&dir, "other")?;
    let of = |members: &[usize]| Paths {
        members: members.iter().map(|member| paths.members[*member].clone()).collect(),
        ..paths.clone()
    };
    assert_refused(&of(&[0, 2, 1]), "member 2 is given in the place of member 1")?;
    assert_refused(&of(&[1, 0, 2]), "member 1 is given in the place of member 0")?;
    assert_refused(&of(&[0, 1]), "has 3 members, 2 are given")?;
    assert_refused(&of(&[1, 2]), "has 3 members, 2 are given")?;
    assert_refused(&of(&[1]), "has 3 members, 1 are given")?;
    assert_refused(
        &Paths { chunk: 2 * CHUNK, ..paths.clone() },
        "has chunks of 8192 bytes, not 16384",
    )?;
    assert_refused(
        &Paths { chunk: CHUNK / 2, ..paths.clone() },
        "has chunks of 8192 bytes, not 4096",
    )?;
    for place in 0..3 {
        let mut foreign = paths.clone();
        foreign.members[place] = other.members[place].clone();
        assert_refused(&foreign, "belongs to another volume")?;
        let mut plain = paths.clone();
        plain.members[place] = dir.join("plain");
        for content in [
            &b"of somebody else"[..],
            &[7; 5000],
            &[0; 3 * CHUNK as usize],
            &[7; 3 * CHUNK as usize],
        ] {
            fs::write(&plain.members[place], content)?;
            assert_refused(&plain, "holds something else")?;
        }
        // Zeros in place of the header, and data behind.
        let mut content = vec![0; 6000];
        content[5000] = 1;
        fs::write(&plain.members[place], &content)?;
        assert_refused(&plain, "holds something else")?;
        fs::write(&plain.members[place], b"")?;
        assert_refused(&plain, &format!("member {place} is missing"))?;
    }
    let mut one_too_many = paths.clone();
    one_too_many.members.push(dir.join("empty"));
    fs::write(dir.join("empty"), b"")?;
    assert_refused(&one_too_many, "has 3 members, 4 are given")?;
    let file = paths.reopen()?;
    assert_eq!((file.len()?, file.recovery()), (18 * BLOCK_BYTES, None));
    file.close()?;
    assert_all_there(&paths.content()?, &placed);
    Ok(())
}

/// Even if all data lies on the first member.
fn a_wrong_first_member_makes_no_volume_of_the_others(dir: TestDir) -> TrialResult {
    let paths = Paths::in_dir(&dir, "log", 3, CHUNK);
    let file = paths.open(&writable())?;
    let placed = append(&file, 1, 0, 1)?;
    file.close()?;
    let mut wrong = paths.clone();
    wrong.members[0] = dir.join("empty");
    fs::write(&wrong.members[0], b"")?;
    assert_refused(&wrong, "member 0 is missing")?;
    let file = paths.reopen()?;
    assert_eq!(file.len()?, BLOCK_BYTES);
    file.close()?;
    assert_all_there(&paths.content()?, &[placed]);
    Ok(())
}

fn are_missing(paths: &Paths, members: &[usize]) -> bool {
    members.iter().all(|member| !paths.members[*member].exists())
}

/// Its empty file stayed, perhaps in the directory of a file system that was not mounted.
fn a_missing_member_was_created_by_a_refused_open(dir: TestDir) -> TrialResult {
    let (paths, placed) = volume(&dir, "log")?;
    for place in 0..3 {
        let member = &paths.members[place];
        fs::rename(member, dir.join("away"))?;
        let changed = fs::metadata(&*dir)?.modified()?;
        match refusal(paths.open(&writable())) {
            ErrorKind::Members(why) => {
                assert!(why.contains(&format!("member {place} is missing")), "{why}");
            }
            other => panic!("{other:?}"),
        }
        assert!(are_missing(&paths, &[place]));
        assert_eq!(fs::metadata(&*dir)?.modified()?, changed, "a file was there for a moment");
        fs::rename(dir.join("away"), member)?;
    }
    paths.open(&writable())?.close()?;
    assert_all_there(&paths.content()?, &placed);
    Ok(())
}

/// The next attempt failed as well.
fn a_new_volume_left_the_members_before_an_old_file(dir: TestDir) -> TrialResult {
    let paths = Paths::in_dir(&dir, "log", 3, CHUNK);
    let options = OpenOptions::new().write(true).create_new(true).clone();
    fs::write(&paths.members[2], b"old")?;
    assert_eq!(refusal(paths.open(&options)), ErrorKind::Os(libc::EEXIST));
    assert!(are_missing(&paths, &[0, 1]));
    assert_eq!(fs::read(&paths.members[2])?, b"old");
    fs::remove_file(&paths.members[2])?;
    paths.open(&options)?.close()?;
    Ok(())
}

fn a_locked_member_left_new_ones_beside_it(dir: TestDir) -> TrialResult {
    let paths = Paths::in_dir(&dir, "log", 3, CHUNK);
    let plain = writable().open(&paths.members[1])?;
    assert_eq!(refusal(paths.open(&writable())), ErrorKind::Locked);
    assert!(are_missing(&paths, &[0, 2]) && paths.members[1].exists());
    plain.close()?;
    paths.open(&writable())?.close()?;
    Ok(())
}

fn a_volume_without_space_left_its_members() -> TrialResult {
    let volume = Volume::new(Fs::Tmpfs, MIB)?;
    let paths = Paths::in_dir(volume.path(), "log", 3, CHUNK);
    let filler = volume.path().join("filler");
    fs::write(&filler, vec![1; 2 * MIB as usize]).expect_err("it does not fit");
    let options = OpenOptions::new().write(true).create_new(true).clone();
    let error = paths.open(&options).expect_err("there is no space");
    assert_eq!(error.errno(), libc::ENOSPC, "{error}");
    assert!(are_missing(&paths, &[0, 1, 2]));
    fs::remove_file(filler)?;
    paths.open(&options)?.close()?;
    Ok(())
}

/// The volume was lost with its last handle.
fn a_file_without_a_name_became_a_member(dir: TestDir) -> TrialResult {
    let paths = Paths::in_dir(&dir, "log", 2, CHUNK);
    let first = &paths.members[0];
    let plain = writable().open(first)?;
    let opened = thread::scope(|scope| {
        let opener = scope.spawn(|| paths.open(&writable()));
        // It waits for the lock.
        thread::sleep(Duration::from_millis(100));
        fs::remove_file(first)?;
        plain.close()?;
        Ok::<_, Failed>(opener.join().expect("no panic"))
    })?;
    match opened {
        Ok(file) => {
            file.close()?;
            assert!(paths.members.iter().all(|path| path.exists()), "it has lost a member");
        }
        Err(error) => assert!([libc::ENOENT, libc::EAGAIN].contains(&error.errno()), "{error}"),
    }
    Ok(())
}

fn no_shape_but_a_possible_one_is_taken(dir: TestDir) -> TrialResult {
    let unsupported = |paths: &Paths| {
        let kind = refusal(paths.open(&writable()));
        assert!(
            matches!(kind, ErrorKind::Unsupported(_) | ErrorKind::Misaligned { .. }),
            "{kind:?}"
        );
        assert!(paths.members.iter().all(|path| !path.exists()), "something was created: {kind:?}");
    };
    unsupported(&Paths::in_dir(&dir, "log", 65, CHUNK));
    unsupported(&Paths::in_dir(&dir, "log", 0, CHUNK));
    for chunk in [0, 1, 512, 4095, 4097, CHUNK + 512, u64::MAX] {
        unsupported(&Paths::in_dir(&dir, "log", 2, chunk));
    }
    let mut missing = Paths::in_dir(&dir, "log", 2, CHUNK);
    assert_eq!(refusal(missing.reopen()), ErrorKind::Os(libc::ENOENT));
    missing.open(&writable())?.close()?;
    assert_eq!(
        refusal(missing.open(OpenOptions::new().write(true).create_new(true))),
        ErrorKind::Os(libc::EEXIST)
    );
    // Chunks so large that the second row has no valid offset must not cause a panic.
    let huge = Paths::in_dir(&dir, "huge", 3, 1 << 62);
    let _ = huge.open(&writable());
    let twice = Paths { members: vec![dir.join("one"), dir.join("one")], chunk: CHUNK };
    fs::write(dir.join("one"), b"")?;
    match refusal(twice.open(&writable())) {
        ErrorKind::Members(why) => assert!(why.contains("given twice"), "{why}"),
        other => panic!("{other:?}"),
    }
    std::os::unix::fs::symlink(dir.join("one"), dir.join("alias"))?;
    let by_alias = Paths { members: vec![dir.join("one"), dir.join("alias")], chunk: CHUNK };
    assert!(matches!(refusal(by_alias.open(&writable())), ErrorKind::Members(_)));
    assert_eq!(fs::read(dir.join("one"))?, b"");
    missing.members.swap(0, 1);
    assert!(matches!(refusal(missing.reopen()), ErrorKind::Members(_)));
    Ok(())
}

/// A closed member has its exact size.
fn a_member_that_was_changed_while_closed_is_refused(dir: TestDir) -> TrialResult {
    let (paths, placed) = volume(&dir, "log")?;
    for member in &paths.members {
        let whole = fs::read(member)?;
        for len in [whole.len() - 4096, whole.len() - 1, CHUNK as usize, 4096, whole.len() + 1] {
            let file = fs::File::options().write(true).open(member)?;
            file.set_len(len as u64)?;
            let words = if len == 4096 { "" } else { "was changed, or is from another time" };
            assert_refused(&paths, words)?;
            fs::write(member, &whole)?;
        }
    }
    // An older copy of one of them.
    let older: Vec<_> = paths.members.iter().map(fs::read).collect::<Result<_, _>>()?;
    let file = paths.reopen()?;
    append_many(&file, 2, 20);
    file.close()?;
    for (member, older) in paths.members.iter().zip(older) {
        let newer = fs::read(member)?;
        fs::write(member, older)?;
        assert_refused(&paths, "from another time")?;
        fs::write(member, newer)?;
    }
    let file = paths.reopen()?;
    assert_eq!(file.recovery(), None);
    file.close()?;
    assert_all_there(&paths.content()?, &placed);
    Ok(())
}

/// Without a close, `open` requires the length from the last open.
fn a_member_that_lost_something_since_a_crash_is_refused(dir: TestDir) -> TrialResult {
    let (paths, placed) = volume(&dir, "log")?;
    let mut child = child::spawn("append_for_ever", &paths.to_args())?;
    child.wait_for_acks(5, PATIENCE)?;
    child.kill_9()?;
    for (place, member) in paths.members.iter().enumerate() {
        let whole = fs::metadata(member)?.len();
        for len in [paths.size_of(place, 18 * BLOCK_BYTES) - 1, 2 * CHUNK, 4096] {
            let kept = fs::read(member)?;
            fs::File::options().write(true).open(member)?.set_len(len)?;
            assert_refused(&paths, "a member was truncated, or comes from another time")?;
            assert_eq!(kept.len() as u64, whole);
            fs::write(member, &kept)?;
        }
    }
    // Members that were written back have lost their unwritten extents: only the data below those
    // is certain.
    let file = match paths.reopen() {
        // Growth was interrupted. Its space seems to be written by another program.
        Err(error) if matches!(error.kind(), ErrorKind::ModifiedExternally(_)) => {
            dioxide::recover_striped(&paths.members, paths.chunk, Recover::Force)?;
            paths.reopen()?
        }
        opened => opened?,
    };
    assert!(file.len()? >= 18 * BLOCK_BYTES);
    file.close()?;
    assert_all_there(&paths.content()?, &placed);
    Ok(())
}

fn a_header_that_was_damaged_is_refused(dir: TestDir) -> TrialResult {
    let (paths, _) = volume(&dir, "log")?;
    for member in &paths.members {
        let whole = fs::read(member)?;
        for at in [3, 14, 15, 20, 33, 37, 41, 50] {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            fs::write(member, &damaged)?;
            assert_refused(&paths, "")?;
        }
        fs::write(member, &whole)?;
    }
    // The state of the first member.
    let whole = fs::read(&paths.members[0])?;
    let mut damaged = whole.clone();
    damaged[520] ^= 1;
    fs::write(&paths.members[0], &damaged)?;
    assert_refused(&paths, "the state in the header of member 0 cannot be read")?;
    fs::write(&paths.members[0], &whole)?;
    paths.reopen()?.close()?;
    Ok(())
}

fn one_process_writes_a_volume_or_its_members(dir: TestDir) -> TrialResult {
    let (paths, _) = volume(&dir, "log")?;
    let file = paths.reopen()?;
    for member in &paths.members {
        assert_eq!(refusal(OpenOptions::new().write(true).open(member)), ErrorKind::Locked);
        assert_eq!(refusal(dioxide::recover(member, Recover::Truncate)), ErrorKind::Locked);
    }
    // Another volume with one of these members.
    let beside =
        Paths { members: vec![dir.join("beside"), paths.members[1].clone()], chunk: CHUNK };
    fs::write(&beside.members[0], b"")?;
    assert_eq!(refusal(beside.open(&writable())), ErrorKind::Locked);
    let child = child::spawn("try_to_open_striped", &paths.to_args())?;
    let (_, acks) = child.wait(PATIENCE)?;
    assert_eq!(acks[0][0], LOCKED);
    file.close()?;
    let (_, acks) = child::spawn("try_to_open_striped", &paths.to_args())?.wait(PATIENCE)?;
    assert_eq!(acks[0][0], 0);
    // A member as a file of its own.
    for member in &paths.members {
        let plain = OpenOptions::new().write(true).open(member)?;
        assert_eq!(refusal(paths.reopen()), ErrorKind::Locked);
        plain.close()?;
    }
    // A refused open keeps no lock.
    paths.reopen()?.close()?;
    Ok(())
}

/// The child of a fork has no pool threads, and must not join those of its parent.
fn a_fork_does_nothing_to_a_volume(dir: TestDir) -> TrialResult {
    let paths = Paths::in_dir(&dir, "log", 3, CHUNK);
    let file = paths.open(&writable())?;
    let mut placed = vec![append(&file, 1, 0, 12)?];
    file.sync_data()?;
    let reader = paths.open(&OpenOptions::new())?;
    let handle = file.try_clone()?;
    let held = holds_in_a_fork(|| {
        let mut into = vec![0; 12 * BLOCK];
        let refused = matches!(refusal(handle.append(&into)), ErrorKind::Forked)
            && matches!(refusal(handle.sync_data()), ErrorKind::Forked);
        let reads = reader.read_at(&mut into, 0).is_ok_and(|read| read == into.len());
        refused && reads && matches!(refusal(paths.reopen()), ErrorKind::Locked)
    });
    assert!(held, "not in the child of a fork");
    placed.push(append(&file, 1, 1, 12)?);
    file.sync_data()?;
    drop(reader);
    handle.close()?;
    file.close()?;
    paths.assert_tidy(24 * BLOCK_BYTES)?;
    assert_all_there(&paths.content()?, &placed);
    Ok(())
}

/// Decisions inside the library need one file system of each kind of growth.
fn is_one_of_three(fs: Fs) -> dioxide_testkit::lab::Applies {
    match fs {
        Fs::Ext4 | Fs::Xfs | Fs::Btrfs => Ok(()),
        _ => Err("as on those that grow in other ways"),
    }
}

pub fn trials() -> Vec<Trial> {
    let tests: &[LabTest] = named![
        what_is_no_volume_is_refused,
        a_wrong_first_member_makes_no_volume_of_the_others,
        a_missing_member_was_created_by_a_refused_open,
        a_new_volume_left_the_members_before_an_old_file,
        a_locked_member_left_new_ones_beside_it,
        a_file_without_a_name_became_a_member,
        no_shape_but_a_possible_one_is_taken,
        a_member_that_was_changed_while_closed_is_refused,
        a_member_that_lost_something_since_a_crash_is_refused,
        a_header_that_was_damaged_is_refused,
        one_process_writes_a_volume_or_its_members,
        a_fork_does_nothing_to_a_volume,
    ];
    let on_lab =
        tests.iter().flat_map(|&(name, test)| lab_trials_where(name, is_one_of_three, test));
    let full = volume_trial(
        "a_volume_without_space_left_its_members",
        a_volume_without_space_left_its_members,
    );
    on_lab.chain([full]).collect()
}
