//! Files as streams: the traits of std, tokio and futures-io beside a list of bytes. Copies, and
//! files that are replaced as a whole.

mod common;

use common::*;
use dioxide::{
    Durability, File, Growth, OpenOptions, Reader, Writer, copy, copy_with_progress, replace,
};
use dioxide_testkit::child::{self, Acks, Scenario};
use dioxide_testkit::lab::{Fs, TestDir};
use dioxide_testkit::trials::{Trial, TrialResult, lab_trial, lab_trials};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::fs;
use std::io::{self, BufRead, IoSlice, IoSliceMut, Read, Seek, SeekFrom, Write};
use std::ops::ControlFlow;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const PROGRAMS: u64 = 8;
const MIB: usize = 1 << 20;

/// A step of a random program.
#[derive(Debug)]
enum Step {
    Write(Vec<u8>),
    Flush,
    Seek(u64),
}

/// A random program, and the bytes of the file after it.
fn program(seed: u64) -> (Vec<Step>, Vec<u8>) {
    let mut random = Random::new(seed);
    let (mut steps, mut model, mut at) = (Vec::new(), Vec::new(), 0);
    for _ in 0..20 {
        steps.push(match random.below(8) {
            0 => Step::Flush,
            1 => {
                at = random.below(model.len() as u64 + 20_000);
                Step::Seek(at)
            }
            kind => {
                let len = if kind == 2 { 3 * MIB as u64 } else { 20_000 };
                let byte = random.below(255) as u8 + 1;
                let data = vec![byte; 1 + random.below(len) as usize];
                let end = at as usize + data.len();
                model.resize(model.len().max(end), 0);
                model[at as usize..end].copy_from_slice(&data);
                at = end as u64;
                Step::Write(data)
            }
        });
    }
    (steps, model)
}

/// Runs random programs on fresh files, and reads each file back.
fn same_as_bytes(
    dir: &TestDir,
    write: impl Fn(Writer, Vec<Step>) -> io::Result<()>,
    read: impl Fn(Reader) -> io::Result<Vec<u8>>,
) -> TrialResult {
    for seed in 0..PROGRAMS {
        let path = dir.join(seed.to_string());
        let (steps, model) = program(seed);
        write(Writer::new(File::create(&path)?), steps)?;
        assert!(read(Reader::new(File::open(&path)?))? == model, "seed {seed}");
        assert!(fs::read(&path)? == model, "seed {seed}, read by another program");
        fs::remove_file(path)?;
    }
    Ok(())
}

fn streams_of_std(dir: TestDir) -> TrialResult {
    let write = |mut writer: Writer, steps: Vec<Step>| {
        for step in steps {
            match step {
                Step::Write(data) => writer.write_all(&data)?,
                Step::Flush => writer.flush()?,
                Step::Seek(to) => assert_eq!(writer.seek(SeekFrom::Start(to))?, to),
            }
        }
        Ok(writer.finish()?.close()?)
    };
    same_as_bytes(&dir, write, |mut reader| {
        let mut all = Vec::new();
        reader.read_to_end(&mut all)?;
        Ok(all)
    })
}

/// Runs a program by the asynchronous traits in scope, whose names are the same in both crates.
macro_rules! play {
    ($writer:ident, $steps:ident) => {
        for step in $steps {
            match step {
                Step::Write(data) => AsyncWriteExt::write_all(&mut $writer, &data).await?,
                Step::Flush => AsyncWriteExt::flush(&mut $writer).await?,
                Step::Seek(to) => {
                    let sought = AsyncSeekExt::seek(&mut $writer, SeekFrom::Start(to)).await?;
                    assert_eq!(sought, to);
                }
            }
        }
    };
}

fn streams_of_tokio(dir: TestDir) -> TrialResult {
    use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let write = |mut writer: Writer, steps: Vec<Step>| {
        runtime.block_on(async {
            play!(writer, steps);
            AsyncWriteExt::shutdown(&mut writer).await
        })
    };
    same_as_bytes(&dir, write, |mut reader| {
        let mut all = Vec::new();
        runtime.block_on(AsyncReadExt::read_to_end(&mut reader, &mut all))?;
        Ok(all)
    })
}

fn streams_of_futures_io(dir: TestDir) -> TrialResult {
    use smol::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};
    let write = |mut writer: Writer, steps: Vec<Step>| {
        smol::block_on(async {
            play!(writer, steps);
            AsyncWriteExt::close(&mut writer).await
        })
    };
    same_as_bytes(&dir, write, |mut reader| {
        let mut all = Vec::new();
        smol::block_on(AsyncReadExt::read_to_end(&mut reader, &mut all))?;
        Ok(all)
    })
}

fn lines_are_read_while_a_log_grows(dir: TestDir) -> TrialResult {
    let path = dir.join("log");
    let log = OpenOptions::new().write(true).create(true).open(&path)?;
    let mut reader = Reader::new(File::open(&path)?);
    let mut line = String::new();
    for number in 0..300 {
        log.append(format!("record {number} {}\n", "x".repeat(number * 7)).as_bytes())?;
        line.clear();
        reader.read_line(&mut line)?;
        assert_eq!(line.split(' ').nth(1), Some(number.to_string().as_str()), "{line}");
        line.clear();
        assert_eq!(reader.read_line(&mut line)?, 0, "{line}");
    }
    log.close()?;
    Ok(())
}

fn slices_are_written_and_read_as_one(dir: TestDir) -> TrialResult {
    let file = File::create(dir.join("a"))?;
    let slices = [&b"one "[..], b"", b"two ", b"three"].map(IoSlice::new);
    assert_eq!(file.append_vectored(&slices)?, 0);
    assert_eq!(file.append_vectored(&[IoSlice::new(b"!")])?, 13);
    assert_eq!(file.append_vectored(&[])?, 14);
    file.write_vectored_at(&[IoSlice::new(b"T"), IoSlice::new(b"W")], 4)?;
    let (mut first, mut second, mut third) = ([0; 5], [0; 6], [7; 9]);
    let mut into = [&mut first[..], &mut second, &mut third].map(IoSliceMut::new);
    assert_eq!(file.read_vectored_at(&mut into, 0)?, 14);
    assert_eq!((&first, &second, &third), (b"one T", b"Wo thr", b"ee!\x07\x07\x07\x07\x07\x07"));
    Ok(())
}

fn generic_code_takes_a_file(dir: TestDir) -> TrialResult {
    fn overwrite(file: &impl FileExt) -> io::Result<[u8; 10]> {
        file.write_all_at(b"0123456789", 3)?;
        let mut into = [0; 10];
        file.read_exact_at(&mut into, 3)?;
        let error = file.read_exact_at(&mut [0; 10], 4).expect_err("it has 13 bytes");
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        Ok(into)
    }
    assert_eq!(&overwrite(&File::create(dir.join("a"))?)?, b"0123456789");
    Ok(())
}

// --- files that change as a whole ----------------------------------------------------------------

/// The names in a directory, in order.
fn names(dir: &Path) -> io::Result<Vec<String>> {
    let names = fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into()));
    let mut names: Vec<String> = names.collect::<io::Result<_>>()?;
    names.sort_unstable();
    Ok(names)
}

fn a_file_is_replaced_as_a_whole(dir: TestDir) -> TrialResult {
    let path = dir.join("a");
    let len = replace(&path, |writer| {
        writer.write_all(&[1; 5000])?;
        assert!(fs::metadata(dir.join("a")).is_err(), "not there before it is whole");
        Ok(writer.position())
    })?;
    assert_eq!((len, fs::read(&path)?), (5000, vec![1; 5000]));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640))?;
    let open = fs::File::open(&path)?;
    let link = dir.join("link");
    symlink("a", &link)?;
    replace(&link, |writer| writer.write_all(b"new"))?;
    assert_eq!(fs::read(&path)?, b"new");
    assert!(fs::symlink_metadata(&link)?.is_symlink());
    assert_eq!(fs::metadata(&path)?.permissions().mode() & 0o7777, 0o640);
    assert_eq!(open.metadata()?.len(), 5000, "a program that has it open keeps it");
    assert_eq!(names(&dir)?, ["a", "link"]);
    Ok(())
}

/// A container has the same process ids again. The temporary file that a kill had left was in the
/// way.
fn a_temporary_file_that_is_left_is_not_in_the_way(dir: TestDir) -> TrialResult {
    let left = |number| dir.join(format!(".a.{}-{number}.tmp", std::process::id()));
    for number in 0..200 {
        fs::write(left(number), b"left")?;
    }
    replace(dir.join("a"), |writer| writer.write_all(b"new"))?;
    assert_eq!(fs::read(dir.join("a"))?, b"new");
    assert_eq!(fs::read(left(7))?, b"left");
    Ok(())
}

/// A child. Another process has the names of its temporary files. It replaces a file with few
/// descriptors left, one more each time.
fn replace_with_few_descriptors(_: &Acks, args: &[String]) {
    let dir = Path::new(&args[0]);
    let name = |number| dir.join(format!(".a.{}-{number}.tmp", std::process::id()));
    let names: Vec<_> = (0..16).map(name).collect();
    names.iter().for_each(|path| fs::write(path, b"new").expect("there is space"));
    for left in 0..6 {
        let limit = getrlimit(Resource::Nofile);
        let next = fs::File::open("/dev/null").expect("there is a descriptor left").as_raw_fd();
        let few = Rlimit { current: Some(next as u64 + left), ..limit };
        setrlimit(Resource::Nofile, few).expect("lowering is allowed");
        let _ = replace(dir.join("a"), |_| Ok(()));
        setrlimit(Resource::Nofile, limit).expect("the maximum is the same");
        assert!(names.iter().all(|path| path.exists()), "{left}");
    }
}

/// In two containers, both may have the same id.
fn a_failed_replacement_removed_the_temporary_file_of_another(dir: TestDir) -> TrialResult {
    let child = child::spawn("replace_with_few_descriptors", &[&*dir.to_string_lossy()])?;
    assert!(child.wait(PATIENCE)?.0.success());
    Ok(())
}

/// A child with a file system that refuses O_DIRECT, in a mount namespace of its own.
fn replace_without_direct_io(_: &Acks, args: &[String]) {
    // SAFETY: no other thread of this process needs a mount.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.expect("root may");
    let dir = Path::new(&args[0]);
    for args in [&["--make-rprivate", "/"][..], &["-t", "ramfs", "none", &args[0]]] {
        assert!(Command::new("mount").args(args).status().expect("it is installed").success());
    }
    let error = replace(dir.join("a"), |_| Ok(())).expect_err("it is not direct");
    assert!(error.to_string().contains("does not take O_DIRECT"), "{error}");
    assert_eq!(names(dir).expect("it is a directory"), [""; 0]);
}

/// The kernel refuses the file after its creation.
fn a_replacement_without_direct_io_leaves_nothing(dir: TestDir) -> TrialResult {
    let child = child::spawn("replace_without_direct_io", &[&*dir.to_string_lossy()])?;
    assert!(child.wait(PATIENCE)?.0.success());
    Ok(())
}

/// It was replaced itself.
fn a_link_without_a_target_is_refused(dir: TestDir) -> TrialResult {
    symlink("missing", dir.join("link"))?;
    let error = replace(dir.join("link"), |_| Ok(())).expect_err("there is no target");
    assert!(error.kind() == io::ErrorKind::NotFound && error.to_string().contains("link"));
    assert!(fs::symlink_metadata(dir.join("link"))?.is_symlink());
    Ok(())
}

/// The copy of a user's program by root ran as root.
fn a_copy_has_no_rights_of_its_owner(dir: TestDir) -> TrialResult {
    fs::write(dir.join("from"), b"program")?;
    fs::set_permissions(dir.join("from"), fs::Permissions::from_mode(0o6755))?;
    copy(dir.join("from"), dir.join("to"))?;
    assert_eq!(fs::metadata(dir.join("to"))?.permissions().mode() & 0o7777, 0o755);
    Ok(())
}

fn a_replacement_that_fails_leaves_the_old_file(dir: TestDir) -> TrialResult {
    let path = dir.join("a");
    fs::write(&path, b"old")?;
    let error = replace(&path, |writer| {
        writer.write_all(&[1; 3 * MIB])?;
        Err::<(), _>(io::Error::other("no"))
    });
    assert_eq!(error.expect_err("it fails").to_string(), "no");
    let panicked = std::panic::catch_unwind(|| {
        replace(&path, |writer| -> io::Result<()> {
            writer.write_all(b"new").expect("it writes");
            panic!("as planned")
        })
    });
    assert!(panicked.is_err());
    let error = replace(dir.join("none/a"), |_| Ok(())).expect_err("there is no directory");
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
    let written = |_: &mut Writer| -> io::Result<()> { panic!("a whole copy was written first") };
    for name in ["none/", "none/."] {
        let error = replace(dir.join(name), written).expect_err("it names a directory");
        assert!(error.to_string().contains("not a regular file"), "{error}");
    }
    symlink("a", dir.join("link"))?;
    replace(dir.join("link/."), written).expect_err("it is not a directory");
    fs::remove_file(dir.join("link"))?;
    let error = replace(&*dir, |_| Ok(())).expect_err("it is a directory");
    assert!(error.to_string().contains("not a regular file"), "{error}");
    assert_eq!((fs::read(&path)?, names(&dir)?), (b"old".to_vec(), vec!["a".to_string()]));
    Ok(())
}

/// A file of 6 MiB with data in some places.
fn sparse_file(dir: &Path) -> io::Result<(PathBuf, Vec<u8>)> {
    let path = dir.join("sparse");
    let file = fs::File::create(&path)?;
    let mut content = vec![0; 6 * MIB];
    for (start, len) in [(0, 10), (MIB - 5, 10), (2 * MIB, MIB), (5 * MIB + 77, 5000)] {
        content[start..start + len].fill(9);
        file.write_all_at(&content[start..start + len], start as u64)?;
    }
    file.set_len(content.len() as u64)?;
    file.sync_all()?;
    Ok((path, content))
}

fn a_copy_keeps_bytes_holes_and_permissions(dir: TestDir) -> TrialResult {
    let (from, content) = sparse_file(&dir)?;
    fs::set_permissions(&from, fs::Permissions::from_mode(0o604))?;
    let to = dir.join("copy");
    assert_eq!(copy(&from, &to)?, content.len() as u64);
    assert!(fs::read(&to)? == content);
    let (old, new) = (fs::metadata(&from)?, fs::metadata(&to)?);
    assert_eq!(new.permissions().mode() & 0o7777, 0o604);
    assert!(new.blocks() <= old.blocks() + 64, "{} {}", new.blocks(), old.blocks());
    // Onto another file, and of nothing.
    fs::write(dir.join("empty"), b"")?;
    assert_eq!(copy(dir.join("empty"), &to)?, 0);
    assert_eq!(fs::metadata(&to)?.len(), 0);
    assert_eq!(names(&dir)?, ["copy", "empty", "sparse"]);
    Ok(())
}

/// It replaced the file by its copy, which other names of the file did not get.
fn a_copy_onto_the_same_file_replaced_it(dir: TestDir) -> TrialResult {
    let (from, content) = sparse_file(&dir)?;
    fs::hard_link(&from, dir.join("link"))?;
    let inode = fs::metadata(&from)?.ino();
    for to in [from.clone(), dir.join("link"), dir.join(".").join("sparse")] {
        let error = copy(&from, &to).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{error}");
    }
    assert_eq!(fs::metadata(&from)?.ino(), inode);
    assert!(fs::read(&from)? == content);
    Ok(())
}

const RECORDS: usize = 64;

/// A child whose file ends where only its records tell.
fn append_into_zeros(acks: &Acks, args: &[String]) {
    let mut options = OpenOptions::new();
    options.write(true).create(true).growth(Growth::Zeroed).durability(Durability::EveryWrite);
    let log = options.open(&args[0]).expect("it opens");
    for number in 0..RECORDS as u64 {
        acks.send([log.append(&[7; BLOCK_BYTES as usize]).expect("there is space"), number, 0]);
    }
    std::thread::sleep(PATIENCE);
}

/// The copy ended where the marker says, before acknowledged records.
fn a_copy_of_a_killed_writers_file_lacked_durable_records(dir: TestDir) -> TrialResult {
    let (from, to) = (dir.join("log"), dir.join("copy"));
    let mut child = child::spawn("append_into_zeros", &[&*from.to_string_lossy()])?;
    child.wait_for_acks(RECORDS, PATIENCE)?;
    child.kill_9()?;
    let len = RECORDS * BLOCK_BYTES as usize;
    let is_grown = fs::metadata(&from)?.len() > len as u64;
    fs::write(&to, "as it was")?;
    match copy(&from, &to) {
        Ok(copied) => {
            assert!(!is_grown && copied == len as u64 && fs::read(&to)? == [7].repeat(len))
        }
        Err(error) => {
            assert!(is_grown && error.kind() == io::ErrorKind::InvalidData, "{error}");
            assert!(error.to_string().contains("its own program must open"), "{error}");
            assert_eq!(fs::read(&to)?, b"as it was");
        }
    }
    let log = OpenOptions::new().write(true).open(&from)?;
    log.set_len(len as u64)?;
    log.close()?;
    assert_eq!(copy(&from, &to)?, len as u64);
    Ok(())
}

fn a_copy_of_a_file_that_is_grown_has_its_length(dir: TestDir) -> TrialResult {
    let log = OpenOptions::new().write(true).create(true).open(dir.join("log"))?;
    log.append(&[4; 70_000])?;
    assert_eq!(copy(dir.join("log"), dir.join("copy"))?, 70_000);
    assert!(fs::read(dir.join("copy"))? == [4; 70_000]);
    log.close()?;
    Ok(())
}

fn a_stopped_copy_leaves_nothing(dir: TestDir) -> TrialResult {
    fs::write(dir.join("from"), vec![1; 4 * MIB])?;
    fs::write(dir.join("to"), b"old")?;
    let mut seen = Vec::new();
    let error = copy_with_progress(dir.join("from"), dir.join("to"), |done, len| {
        seen.push((done, len));
        if done >= 2 * MIB as u64 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert_eq!(error.expect_err("it was stopped").kind(), io::ErrorKind::Interrupted);
    assert!(seen.is_sorted() && seen.iter().all(|(_, len)| *len == 4 * MIB as u64), "{seen:?}");
    assert_eq!((fs::read(dir.join("to"))?, names(&dir)?.len()), (b"old".to_vec(), 2));
    let stop_at_the_end = |done, len| match done == len {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    };
    let error = copy_with_progress(dir.join("from"), dir.join("to"), stop_at_the_end);
    assert_eq!(error.expect_err("it was stopped").kind(), io::ErrorKind::Interrupted);
    assert_eq!(fs::read(dir.join("to"))?, b"old");
    let error = copy(&*dir, dir.join("to")).expect_err("it is a directory");
    assert!(error.to_string().contains("not a regular file"), "{error}");
    Ok(())
}

fn trials() -> Vec<Trial> {
    let tests: &[LabTest] = named![
        streams_of_std,
        streams_of_tokio,
        streams_of_futures_io,
        lines_are_read_while_a_log_grows,
        slices_are_written_and_read_as_one,
        generic_code_takes_a_file,
        a_file_is_replaced_as_a_whole,
        a_temporary_file_that_is_left_is_not_in_the_way,
        a_failed_replacement_removed_the_temporary_file_of_another,
        a_link_without_a_target_is_refused,
        a_copy_has_no_rights_of_its_owner,
        a_replacement_that_fails_leaves_the_old_file,
        a_copy_keeps_bytes_holes_and_permissions,
        a_copy_of_a_file_that_is_grown_has_its_length,
        a_copy_of_a_killed_writers_file_lacked_durable_records,
        a_copy_onto_the_same_file_replaced_it,
        a_stopped_copy_leaves_nothing,
    ];
    let without_direct_io = lab_trial(
        "a_replacement_without_direct_io_leaves_nothing",
        Fs::Ext4,
        a_replacement_without_direct_io_leaves_nothing,
    );
    let on_all = tests.iter().flat_map(|&(name, test)| lab_trials(name, test));
    on_all.chain([without_direct_io]).collect()
}

fn main() -> ExitCode {
    let scenarios: &[Scenario] = &[
        ("append_into_zeros", append_into_zeros),
        ("replace_with_few_descriptors", replace_with_few_descriptors),
        ("replace_without_direct_io", replace_without_direct_io),
    ];
    dioxide_testkit::run(scenarios, trials)
}
