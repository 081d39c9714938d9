//! Short tests of files inside volumes. `e2fsck` finds no fault, and `debugfs` reads the written
//! bytes.

use dioxide::sim::{self, Call, Disk};
use dioxide::{Buffer, Durability, ErrorKind, File, OpenOptions};
use dioxide_ext::{OpenInImage, OpenInSimulatedImage};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

fn run(program: &str, arguments: &[&str]) -> Vec<u8> {
    run_to(0, program, arguments)
}

/// Runs a program. Panics if its exit code is above `code_max`. Returns its output.
fn run_to(code_max: i32, program: &str, arguments: &[&str]) -> Vec<u8> {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let output = Command::new(program).args(arguments).env("PATH", path).output().expect(program);
    let said =
        String::from_utf8_lossy(&output.stdout[..output.stdout.len().min(4096)]).into_owned();
    let ended = output.status.code().is_some_and(|code| code <= code_max);
    assert!(ended, "{program} {arguments:?}: {said}{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// Returns bytes that identify their offset.
fn pattern(offset: u64, len: usize) -> Buffer {
    let mut bytes = Buffer::zeroed(len);
    for (n, word) in bytes.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&(offset + 8 * n as u64 + 1).to_le_bytes());
    }
    bytes
}

fn check(image: &Path) {
    run("e2fsck", &["-fn", image.to_str().unwrap()]);
}

fn read_by_debugfs(image: &Path, name: &str) -> Vec<u8> {
    run("debugfs", &["-R", &format!("cat {name}"), image.to_str().unwrap()])
}

/// Makes a volume with the file `/dir/data` of 48 KiB.
fn volume(dir: &Path, options: &[&str]) -> PathBuf {
    let (image, source) = (dir.join("volume.img"), dir.join("source"));
    std::fs::create_dir_all(source.join("dir")).unwrap();
    std::fs::write(source.join("dir/data"), &*pattern(0, 48 << 10)).unwrap();
    std::os::unix::fs::symlink("/dir/data", source.join("link")).unwrap();
    let _ = std::fs::remove_file(&image);
    std::fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
    let (source, image_name) = (source.to_str().unwrap(), image.to_str().unwrap());
    run("mke2fs", &[&["-q", "-F", "-d", source][..], options, &[image_name]].concat());
    image
}

#[test]
fn a_file_is_read_overwritten_extended_and_truncated() {
    for options in [
        &["-t", "ext3", "-b", "4096"][..],
        &["-t", "ext2", "-b", "1024", "-I", "128"],
        &["-t", "ext2", "-b", "2048", "-O", "none"],
        &["-t", "ext3", "-b", "1024"],
        &["-t", "ext2", "-b", "1024", "-r", "0"],
        &["-t", "ext3", "-b", "8192"],
        &["-t", "ext2", "-b", "16384"],
    ] {
        use_file_of_a_volume(options);
    }
}

/// Each read and write failed with EFBIG.
#[test]
fn volumes_with_blocks_of_32_and_64_kib_are_read_and_written() {
    for options in [
        &["-t", "ext3", "-b", "32768"][..],
        &["-t", "ext2", "-b", "65536"],
        &["-t", "ext2", "-b", "65536", "-r", "0"],
    ] {
        use_file_of_a_volume(options);
    }
}

fn use_file_of_a_volume(options: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let image = volume(dir.path(), options);
    check(&image);
    let reading = OpenOptions::new();
    let file = reading.open_in_image(&image, "/link").unwrap();
    let mut bytes = vec![0; 48 << 10];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len(), "{options:?}");
    assert_eq!(bytes, *pattern(0, 48 << 10));
    file.close().unwrap();

    let mut model = bytes;
    let mut writing = OpenOptions::new();
    writing.write(true).durability(Durability::EveryWrite);
    let file = writing.open_in_image(&image, "dir/data").unwrap();
    file.write_at(&pattern(1 << 32, 8192), 16384).unwrap();
    model[16384..24576].copy_from_slice(&pattern(1 << 32, 8192));
    file.write_at(&pattern(48 << 10, 4 << 20), 48 << 10).unwrap();
    model.extend_from_slice(&pattern(48 << 10, 4 << 20));
    let requests = file.stats().requests;
    assert!(requests <= 3, "{requests} requests for two writes, {options:?}");
    // A hole, then a record that ends within a block.
    file.write_at(&pattern(0, 8192), 12 << 20).unwrap();
    model.resize(12 << 20, 0);
    model.extend_from_slice(&pattern(0, 8192));
    assert_eq!(file.append(b"a record").unwrap(), model.len() as u64);
    model.extend_from_slice(b"a record");
    assert_eq!(file.append(&[7; 5000]).unwrap(), model.len() as u64);
    model.extend_from_slice(&[7; 5000]);
    let mut all = vec![1; model.len()];
    assert_eq!(file.read_at(&mut all, 0).unwrap(), all.len());
    assert!(all == model, "{options:?}: before it is closed");
    file.close().unwrap();
    check(&image);
    assert!(read_by_debugfs(&image, "/dir/data") == model, "{options:?}: after it is closed");

    let file = writing.open_in_image(&image, "dir/data").unwrap();
    file.set_len(5 << 20).unwrap();
    file.set_len(100_001).unwrap();
    file.set_len(200_000).unwrap();
    file.close().unwrap();
    model.truncate(100_001);
    model.resize(200_000, 0);
    check(&image);
    assert!(read_by_debugfs(&image, "/dir/data") == model, "{options:?}: after it was cut");

    writing.truncate(true).open_in_image(&image, "dir/data").unwrap().close().unwrap();
    check(&image);
    assert!(read_by_debugfs(&image, "/dir/data").is_empty());
}

/// The limit of writes refused reads of what another program made.
#[test]
fn a_file_beyond_the_limit_of_writes_is_read() {
    // The limits are just below 2 TiB, and one block below 2 GiB.
    for (options, size) in [
        (&["-t", "ext2", "-b", "4096"][..], (3 << 40) - 1000),
        (&["-t", "ext2", "-b", "4096", "-r", "0"], (3 << 30) - 1000),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let image = volume(dir.path(), options);
        let set = format!("sif /dir/data size {size}");
        run("debugfs", &["-w", "-R", &set, image.to_str().unwrap()]);
        for write in [false, true] {
            let mut opening = OpenOptions::new();
            let file = opening.write(write).open_in_image(&image, "/dir/data").unwrap();
            assert_eq!(file.len().unwrap(), size);
            let mut bytes = vec![1; 10_000];
            assert_eq!(file.read_at(&mut bytes, size - 5_000).unwrap(), 5_000, "{options:?}");
            assert!(bytes[..5_000].iter().all(|byte| *byte == 0), "a hole has other content");
            if write {
                let error = file.append(&[1]).unwrap_err();
                assert_eq!(error.errno(), libc::EFBIG, "{error}");
                file.write_at(&pattern(0, 8192), 0).unwrap();
            }
            file.close().unwrap();
        }
    }
}

/// The block of the last bytes below 2 GiB was refused, and a length within it was not.
#[test]
fn on_revision_0_the_last_block_below_2_gib_is_beyond_the_end() {
    for block in [1024, 4096] {
        let dir = tempfile::tempdir().unwrap();
        let image = volume(dir.path(), &["-t", "ext2", "-b", &block.to_string(), "-r", "0"]);
        let mut options = OpenOptions::new();
        let file = options.write(true).open_in_image(&image, "/dir/data").unwrap();
        let max = (2 << 30) - block;
        for len in [max + 1, (2 << 30) - 1] {
            let error = file.set_len(len).unwrap_err();
            assert_eq!(error.errno(), libc::EFBIG, "{len} bytes: {error}");
        }
        file.set_len(max).unwrap();
        file.write_at(&[7; 100], max - 100).unwrap();
        file.set_len(max - 1).unwrap();
        assert_eq!(file.append(&[8]).unwrap(), max - 1);
        let error = file.append(&[9]).unwrap_err();
        assert_eq!(error.errno(), libc::EFBIG, "{error}");
        let mut last = [0; 101];
        assert_eq!(file.read_at(&mut last, max - 100).unwrap(), 100);
        assert_eq!((last[98], last[99]), (7, 8));
        file.close().unwrap();
        check(&image);
    }
}

/// Random operations on two files of a small volume with fragmented free space, against a model.
#[test]
fn any_operations_come_to_what_they_should() {
    let geometries = [
        &["-t", "ext3", "-b", "1024", "-J", "size=1", "-g", "1024"][..],
        &[
            "-t",
            "ext2",
            "-b",
            "1024",
            "-I",
            "128",
            "-O",
            "^resize_inode,^sparse_super",
            "-g",
            "256",
        ],
        &["-t", "ext2", "-b", "2048", "-O", "none"],
        &["-t", "ext2", "-b", "4096"],
    ];
    for seed in 0..seeds() {
        let mut random = fastrand::Rng::with_seed(seed);
        let dir = tempfile::tempdir().unwrap();
        let options = geometries[seed as usize % geometries.len()];
        let image = small_volume(dir.path(), options, &mut random);
        let block = Block::of(options);
        let mut models = [Vec::new(), Vec::new()];
        for _ in 0..3 {
            let mut writing = OpenOptions::new();
            writing.write(true);
            if random.bool() {
                writing.durability(Durability::EveryWrite);
            }
            let files = [0, 1].map(|n| writing.open_in_image(&image, format!("/file{n}")).unwrap());
            for _ in 0..random.usize(1..40) {
                let n = random.usize(..2);
                step(&files[n], &mut models[n], block, &mut random);
            }
            for (file, model) in files.into_iter().zip(&models) {
                let mut all = vec![1; model.len() + 1];
                assert_eq!(file.read_at(&mut all, 0).unwrap(), model.len());
                assert!(all[..model.len()] == **model, "seed {seed}: before it is closed");
                file.close().unwrap();
            }
            check(&image);
            for (n, model) in models.iter().enumerate() {
                let found = read_by_debugfs(&image, &format!("/file{n}"));
                assert!(
                    found == *model,
                    "seed {seed}: {} bytes, {} expected",
                    found.len(),
                    model.len()
                );
            }
        }
    }
}

fn seeds() -> u64 {
    std::env::var("DIOXIDE_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(8)
}

#[derive(Clone, Copy)]
struct Block(usize);

impl Block {
    fn of(options: &[&str]) -> Self {
        let at = options.iter().position(|option| *option == "-b").unwrap();
        Self(options[at + 1].parse().unwrap())
    }
}

fn small_volume(dir: &Path, options: &[&str], random: &mut fastrand::Rng) -> PathBuf {
    let (image, source) = (dir.join("volume.img"), dir.join("source"));
    std::fs::create_dir(&source).unwrap();
    (0..2).for_each(|n| std::fs::write(source.join(format!("file{n}")), b"").unwrap());
    for n in 0..100 {
        std::fs::write(source.join(format!("between{n}")), vec![9; random.usize(1..60_000)])
            .unwrap();
    }
    std::fs::File::create(&image).unwrap().set_len(12 << 20).unwrap();
    let (source, image_name) = (source.to_str().unwrap(), image.to_str().unwrap());
    run("mke2fs", &[&["-q", "-F", "-d", source][..], options, &[image_name]].concat());
    for n in (0..100).filter(|_| random.bool()) {
        run("debugfs", &["-w", "-R", &format!("rm between{n}"), image_name]);
    }
    check(&image);
    image
}

fn step(file: &File, model: &mut Vec<u8>, Block(block): Block, random: &mut fastrand::Rng) {
    let len = random.usize(1..40) * block;
    let no_space = |result: dioxide::Result<()>| match result {
        Ok(()) => true,
        Err(error) if matches!(error.kind(), ErrorKind::NoSpace(_)) => false,
        Err(error) => panic!("{error}"),
    };
    let bytes = pattern(random.u64(..), len);
    match random.u8(..8) {
        0..3 => {
            let most = if random.u8(..6) == 0 { 40 << 20 } else { model.len() + len };
            let offset = random.usize(..most / block + 1) * block;
            if no_space(file.write_at(&bytes, offset as u64)) {
                let end = (offset + len).max(model.len());
                model.resize(end, 0);
                model[offset..offset + len].copy_from_slice(&bytes);
            }
        }
        3..6 => {
            let bytes = &bytes[..random.usize(1..=len)];
            if no_space(file.append(bytes).map(drop)) {
                model.extend_from_slice(bytes);
            }
        }
        6 => {
            let len = random.usize(..model.len() + len);
            if no_space(file.set_len(len as u64)) {
                model.resize(len, 0);
            }
        }
        _ => file.sync_data().unwrap(),
    }
}

/// After a power cut at any moment and `e2fsck -p`, the file has every acknowledged byte.
#[test]
fn what_was_acknowledged_survives_a_power_cut() {
    let geometries =
        [&["-t", "ext3", "-b", "1024", "-J", "size=1"][..], &["-t", "ext2", "-b", "4096"]];
    let dirs = [0, 1].map(|_| tempfile::tempdir().unwrap());
    let images = [0, 1].map(|n| {
        let image =
            small_volume(dirs[n].path(), geometries[n], &mut fastrand::Rng::with_seed(n as u64));
        std::fs::read(image).unwrap()
    });
    for seed in 0..seeds() * 4 {
        let mut random = fastrand::Rng::with_seed(seed);
        let n = seed as usize % 2;
        let block = Block::of(geometries[n]);
        let disk = Disk::new(seed);
        disk.put("volume", &images[n]);
        let dies_after = random.u64(..120);
        let ((model, doubt), _) =
            sim::run(seed, || write_until_it_dies(&disk, block, dies_after, &mut random));
        let image = dirs[n].path().join("after.img");
        std::fs::write(&image, disk.crash().content("volume").unwrap()).unwrap();
        run_to(1, "e2fsck", &["-p", image.to_str().unwrap()]);
        check(&image);
        let found = read_by_debugfs(&image, "/file0");
        for (at, byte) in model.iter().enumerate().filter(|(at, _)| !doubt.contains(at)) {
            assert_eq!(
                found.get(at),
                Some(byte),
                "seed {seed}: byte {at} of {}, {} found",
                model.len(),
                found.len()
            );
        }
    }
}

/// Returns the acknowledged content, and the range that the last operation may have changed.
fn write_until_it_dies(
    disk: &Disk,
    block: Block,
    calls: u64,
    random: &mut fastrand::Rng,
) -> (Vec<u8>, std::ops::Range<usize>) {
    let mut model = Vec::new();
    let mut options = OpenOptions::new();
    options.write(true).durability(Durability::EveryWrite);
    let file = disk.open_in_image(&options, "volume", "/file0").unwrap();
    disk.die_after(calls);
    loop {
        let len = random.usize(1..80) * block.0;
        let bytes = pattern(random.u64(..), len);
        match random.u8(..8) {
            0..3 => {
                let offset = random.usize(..model.len() / block.0 + 20) * block.0;
                match file.write_at(&bytes, offset as u64) {
                    Ok(()) => {
                        let end = (offset + len).max(model.len());
                        model.resize(end, 0);
                        model[offset..offset + len].copy_from_slice(&bytes);
                    }
                    Err(error) if matches!(error.kind(), ErrorKind::NoSpace(_)) => {}
                    Err(_) => return (model, offset..offset + len),
                }
            }
            3..7 => match file.append(&bytes[..random.usize(1..=len)]) {
                Ok(offset) => {
                    assert_eq!(offset as usize, model.len());
                    model.extend_from_slice(&bytes[..(file.len().unwrap() - offset) as usize]);
                }
                Err(error) if matches!(error.kind(), ErrorKind::NoSpace(_)) => {}
                Err(_) => return (model, 0..0),
            },
            _ => {
                let len = random.usize(..model.len() + len);
                match file.set_len(len as u64) {
                    Ok(()) => model.resize(len, 0),
                    Err(_) => return (model, len..usize::MAX),
                }
            }
        }
    }
}

/// Each of two files has a thread that appends and one that syncs. After a power cut, no file has
/// former content of the volume, and each has every acknowledged byte.
#[test]
fn files_written_side_by_side_survive_a_power_cut() {
    let options = ["-t", "ext2", "-b", "1024", "-g", "512"];
    let block = Block::of(&options);
    let dir = tempfile::tempdir().unwrap();
    let image = small_volume(dir.path(), &options, &mut fastrand::Rng::with_seed(1));
    let volume = std::fs::read(image).unwrap();
    let lives = seeds() * 6;
    let mut acknowledged = 0;
    for seed in 0..lives {
        let disk = Disk::new(seed);
        disk.put("volume", &volume);
        let dies_after = fastrand::Rng::with_seed(seed).u64(5..200);
        let (lens, _) = sim::run(seed, || append_side_by_side(&disk, block, dies_after));
        acknowledged += u64::from(lens != [0; 2]);
        let image = dir.path().join("after.img");
        std::fs::write(&image, disk.crash().content("volume").unwrap()).unwrap();
        run_to(1, "e2fsck", &["-p", image.to_str().unwrap()]);
        check(&image);
        for (n, len) in lens.into_iter().enumerate() {
            let found = read_by_debugfs(&image, &format!("/file{n}"));
            assert!(found.len() >= len, "seed {seed}: {} bytes, {len} acknowledged", found.len());
            let model = pattern(0, found.len().next_multiple_of(8));
            for at in (0..found.len()).step_by(block.0) {
                let (is, should) = (&found[at..at + block.0], &model[at..at + block.0]);
                let never_written = at >= len && is.iter().all(|byte| *byte == 0);
                assert!(
                    is == should || never_written,
                    "seed {seed}: block {at} of {len}: {:?}",
                    &is[..16]
                );
            }
        }
    }
    assert!(acknowledged > lives / 2, "{acknowledged} of {lives} lives acknowledged something");
}

/// Returns the acknowledged durable length of each file, in bytes.
fn append_side_by_side(disk: &Disk, block: Block, dies_after: u64) -> [usize; 2] {
    let mut options = OpenOptions::new();
    options.write(true);
    let files =
        [0, 1].map(|n| disk.open_in_image(&options, "volume", format!("/file{n}")).unwrap());
    disk.die_after(dies_after);
    let threads: Vec<_> = files
        .iter()
        .map(|file| {
            let (append, sync) = (file.try_clone().unwrap(), file.try_clone().unwrap());
            sim::spawn(move || while sync.sync_data().is_ok() {});
            sim::spawn(move || {
                let (mut len, mut stable) = (0, 0);
                while append.append(&pattern(len as u64, 3 * block.0)).is_ok() {
                    len += 3 * block.0;
                    if append.sync_data().is_err() {
                        break;
                    }
                    stable = len;
                }
                stable
            })
        })
        .collect();
    let stable: Vec<usize> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    [stable[0], stable[1]]
}

/// A failed sync leaves no changes for the next one, which must fail all the same.
#[test]
fn after_a_sync_that_failed_no_other_succeeds() {
    let dir = tempfile::tempdir().unwrap();
    let image = std::fs::read(volume(dir.path(), &["-t", "ext2", "-b", "4096"])).unwrap();
    let disk = Disk::new(0);
    disk.put("volume", &image);
    let mut options = OpenOptions::new();
    options.write(true).durability(Durability::EveryWrite);
    let file = disk.open_in_image(&options, "volume", "/dir/data").unwrap();
    // The first write is of data, the second of the bitmap.
    disk.fail(Call::Write, 1, libc::ENOSPC);
    let error = file.write_at(&pattern(0, 8192), 48 << 10).unwrap_err();
    // The volume refuses later writes, so a retry cannot succeed: not `NoSpace`.
    assert!(
        matches!(error.kind(), ErrorKind::Wedged(cause) if cause.errno() == libc::ENOSPC),
        "{error}"
    );
    file.sync_data().expect_err("the inode could not be written");
    file.close().expect_err("the volume must be checked");
}

/// A sync that waits for one that fails would refer to blocks whose bitmap is not written.
#[test]
fn a_sync_that_waits_for_one_that_fails_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let options = ["-t", "ext2", "-b", "4096"];
    let image = small_volume(dir.path(), &options, &mut fastrand::Rng::with_seed(0));
    let volume = std::fs::read(&image).unwrap();
    for seed in 0..seeds() {
        let disk = Disk::new(seed);
        disk.put("volume", &volume);
        sim::run(seed, || {
            let mut options = OpenOptions::new();
            options.write(true);
            let [first, second] = [0, 1].map(|n| {
                let file = disk.open_in_image(&options, "volume", format!("/file{n}")).unwrap();
                file.append(&pattern(0, 8192)).unwrap();
                file
            });
            // Of the bitmap, whose write takes longer than the sleep.
            disk.fail(Call::Write, 0, libc::EIO);
            let failing = sim::spawn(move || first.sync_data().expect_err("no bitmap"));
            sim::sleep(Duration::from_micros(1));
            second.sync_data().expect_err("the volume must be checked");
            failing.join().unwrap();
            second.close().expect_err("the volume must be checked");
        });
        std::fs::write(&image, disk.content("volume").unwrap()).unwrap();
        assert!(read_by_debugfs(&image, "/file1").is_empty(), "seed {seed}: its inode is written");
    }
}

/// A group has no more blocks than its descriptor can count. The first group has all descriptors.
#[test]
fn impossible_groups_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let image = std::fs::read(volume(dir.path(), &["-t", "ext2", "-b", "1024"])).unwrap();
    let error_with = |words: &[(usize, u32)]| {
        let mut image = image.clone();
        for (at, word) in words {
            image[1024 + at..][..4].copy_from_slice(&word.to_le_bytes());
        }
        let disk = Disk::new(0);
        disk.put("volume", &image);
        let error = disk.open_in_image(&OpenOptions::new(), "volume", "/dir/data").unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Corrupt(_)), "{error}");
        error.to_string()
    };
    let (inodes, blocks, logs, first, group, group_inodes) = (0, 4, [24, 28], 20, 32, 40);
    let error = error_with(&[(inodes, 8192), (group, 8), (group_inodes, 1)]);
    assert!(error.contains("the descriptors of 8192 groups"), "{error}");
    let of_8_kib = [(logs[0], 3), (logs[1], 3), (first, 0), (blocks, 8192), (group, 1 << 16)];
    let error = error_with(&of_8_kib);
    assert!(error.contains("groups of 65536 blocks"), "{error}");
}

/// A fault of a volume does not affect the file system that holds its image.
#[test]
fn a_corrupt_volume_does_not_wedge_what_it_lies_on() {
    let dir = tempfile::tempdir().unwrap();
    let image = volume(dir.path(), &["-t", "ext2", "-b", "4096"]);
    run("debugfs", &["-w", "-R", "sif dir/data blocks 8", image.to_str().unwrap()]);
    let disk = Disk::new(0);
    disk.put("volume", &std::fs::read(image).unwrap());
    let mut options = OpenOptions::new();
    options.write(true);
    let file = disk.open_in_image(&options, "volume", "/dir/data").unwrap();
    let other = disk.open(options.clone().create(true), "other").unwrap();
    let error = file.set_len(0).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Corrupt(_)), "{error}");
    file.sync_data().expect_err("nothing is written any more");
    file.close().expect_err("the volume must be checked");
    other.append(&pattern(0, 4096)).unwrap();
    other.sync_data().unwrap();
    other.close().unwrap();
}

/// Operations on a volume of any content succeed or fail.
#[test]
fn a_corrupt_volume_gives_an_error_or_works() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    std::fs::create_dir_all(source.join("dir")).unwrap();
    std::fs::write(source.join("dir/data"), &*pattern(0, 400 << 10)).unwrap();
    std::os::unix::fs::symlink("dir/../dir/data", source.join("link")).unwrap();
    let image = dir.path().join("volume.img");
    std::fs::File::create(&image).unwrap().set_len(1 << 20).unwrap();
    let arguments =
        ["-q", "-F", "-t", "ext2", "-b", "1024", "-N", "32", "-O", "^resize_inode", "-d"];
    run("mke2fs", &[&arguments[..], &[source.to_str().unwrap(), image.to_str().unwrap()]].concat());
    let image = std::fs::read(image).unwrap();
    let mut kinds = std::collections::BTreeMap::<String, u32>::new();
    for seed in 0..seeds() * 50 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut image = image.clone();
        for _ in 0..random.usize(1..40) {
            // The first blocks hold most of the metadata.
            let blocks = if random.u8(..8) == 0 { 600 } else { 20 };
            let at = random.usize(256..blocks * 256) * 4;
            let used = if random.bool() { Some(random.u32(..1100)) } else { None };
            let word = used.unwrap_or_else(|| {
                u32::MAX >> random.u32(..32) ^ random.u32(..) >> random.u32(..31)
            });
            image[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
        let disk = Disk::new(seed);
        disk.put("volume", &image);
        let kind = match use_file(&disk, &mut random) {
            Ok(()) => "none".to_owned(),
            Err(error) => {
                format!("{:?}", error.kind()).chars().take_while(|c| c.is_alphabetic()).collect()
            }
        };
        *kinds.entry(kind).or_default() += 1;
    }
    assert!(kinds.keys().len() > 2, "{kinds:?}");
    assert!(
        kinds
            .keys()
            .all(|kind| ["none", "Corrupt", "Unsupported", "Os", "NoSpace", "Wedged"]
                .contains(&&**kind)),
        "{kinds:?}"
    );
}

fn use_file(disk: &Disk, random: &mut fastrand::Rng) -> dioxide::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true);
    let file = disk.open_in_image(&options, "volume", "link")?;
    let mut bytes = vec![0; 64 << 10];
    for _ in 0..6 {
        let blocks = random.usize(1..40);
        let offset = random.u64(..500) * 1024;
        match random.u8(..6) {
            0 | 1 => drop(file.read_at(&mut bytes, offset)?),
            2 => file.write_at(&pattern(offset, blocks * 1024), offset)?,
            3 => drop(file.append(&bytes[..blocks * 900])?),
            4 => file.sync_data()?,
            _ => file.set_len(offset)?,
        }
    }
    file.close()
}
