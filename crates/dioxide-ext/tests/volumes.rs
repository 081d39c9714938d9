//! Files inside volumes of ext2 and ext3, opened without mounting. After each test `e2fsck -fn`
//! finds nothing, and debugfs and the kernel read the written data. Nothing else in the volume has
//! changed.

#[path = "../../../tests/common/mod.rs"]
mod common;
mod within;

use common::*;
use dioxide::{
    AsyncFile, Buffer, Durability, ErrorKind, Growth, LocalReactor, OpenOptions, Operation, Queue,
    QueueOptions,
};
use dioxide_ext::OpenInImage;
use dioxide_testkit::child::{self, Acks, Child};
use dioxide_testkit::ext_volume::{ExtKind, ExtVolume, Shape};
use dioxide_testkit::files;
use dioxide_testkit::fork::holds_in_a_fork;
use dioxide_testkit::fuse_disk::{FuseDisk, Keep};
use dioxide_testkit::lab::{Disk, Fs, TestDir};
use dioxide_testkit::loop_device::AttachedFile;
use dioxide_testkit::trials::{
    Failed, Trial, TrialResult, disk_trial, fuse_trial, is_of_all, lab_trial,
};
use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use within::*;

/// The unit that a disk keeps or loses whole in a power cut, in bytes.
const SECTOR: usize = 512;

// --- looking up ----------------------------------------------------------------------------------

/// A path of many components, a directory large enough for an index, and symbolic links of every
/// kind.
fn plant_names(tree: &Path) -> std::io::Result<()> {
    let deep = (0..40).fold(tree.to_owned(), |path, n| path.join(format!("level-{n}")));
    fs::create_dir_all(&deep)?;
    fs::write(deep.join("file"), bytes(1, 5_000))?;
    fs::create_dir(tree.join("many"))?;
    for n in 0..2000 {
        let content = if n % 500 == 7 { bytes(n, 3_000) } else { Vec::new() };
        fs::write(tree.join(format!("many/name-{n}")), content)?;
    }
    fs::write(tree.join("n".repeat(255)), bytes(2, 100))?;
    fs::write(tree.join("name with spaces"), bytes(3, 100))?;
    symlink("level-0", tree.join("short"))?;
    symlink("/short/level-1", tree.join("absolute"))?;
    symlink("../absolute/../level-1/level-2", tree.join("level-0/through-others"))?;
    symlink(format!("{}many/name-7", "./".repeat(40)), tree.join("in-a-block-of-its-own"))?;
    symlink("name with spaces", tree.join("to-spaces"))?;
    symlink("../../../many/name-507", tree.join("above-the-root"))?;
    symlink("round", tree.join("round"))?;
    symlink("missing", tree.join("to-nothing"))
}

fn names_to_read() -> Vec<(String, Vec<u8>)> {
    let deep = |from: u64| (from..40).map(|n| format!("level-{n}/")).collect::<String>() + "file";
    let mut names = vec![
        (format!("/{}", deep(0)), bytes(1, 5_000)),
        (deep(0), bytes(1, 5_000)),
        (format!("/short/{}", deep(1)), bytes(1, 5_000)),
        (format!("/absolute/{}", deep(2)), bytes(1, 5_000)),
        (format!("/level-0/through-others/{}", deep(3)), bytes(1, 5_000)),
        ("//level-0/../level-0//./../in-a-block-of-its-own".into(), bytes(7, 3_000)),
        ("/../../name with spaces".into(), bytes(3, 100)),
        ("to-spaces".into(), bytes(3, 100)),
        ("above-the-root".into(), bytes(507, 3_000)),
        ("n".repeat(255), bytes(2, 100)),
        ("/many/name-1999".into(), Vec::new()),
    ];
    names.extend([7, 507, 1007, 1507].map(|n| (format!("/many/name-{n}"), bytes(n, 3_000))));
    names
}

fn read_all_names(volume: &Path) -> TrialResult {
    for (name, content) in names_to_read() {
        let file = OpenOptions::new().open_in_image(volume, &name)?;
        assert_eq!(file.len()?, content.len() as u64, "{name}");
        assert!(read_bytes(&file, 0, 10_000)? == content, "{name}");
        file.close()?;
    }
    for n in (0..2000).step_by(17) {
        let content = if n % 500 == 7 { 3_000 } else { 0 };
        let file = OpenOptions::new().open_in_image(volume, format!("/many/name-{n}"))?;
        assert_eq!(file.len()?, content);
    }
    for missing in ["/many/name-2000", "/many/name-", "/missing/file", "missing", "/to-nothing"] {
        let error = OpenOptions::new().open_in_image(volume, missing).expect_err(missing);
        assert_eq!((error.operation(), error.errno()), (Operation::Open, libc::ENOENT), "{error}");
        assert!(error.to_string().contains(missing), "{error}");
    }
    let error = OpenOptions::new().open_in_image(volume, "round").expect_err("a link to itself");
    assert_eq!(error.errno(), libc::ELOOP, "{error}");
    let error = OpenOptions::new()
        .open_in_image(volume, "/many/name-7/x")
        .expect_err("a file is no directory");
    assert_eq!(error.errno(), libc::ENOTDIR, "{error}");
    Ok(())
}

fn files_are_found_by_any_path(dir: TestDir, shape: Shape) -> TrialResult {
    let tree = dir.join("tree");
    fs::create_dir(&tree)?;
    plant_names(&tree)?;
    let volume = ExtVolume::make(&dir.join("linear.img"), &shape, &tree)?;
    let before = fs::read(volume.path())?;
    read_all_names(volume.path())?;
    assert!(fs::read(volume.path())? == before, "looking changes something");
    volume.index_directories()?;
    assert!(volume.ask("stat /many")?.contains("Flags: 0x1000"), "an index was made");
    read_all_names(volume.path())?;
    // The kernel builds an index as the directory grows.
    let empty = dir.join("empty");
    fs::create_dir(&empty)?;
    let volume = ExtVolume::make(&dir.join("indexed.img"), &shape, &empty)?;
    plant_names(&volume.mount("rw")?)?;
    volume.check()?;
    read_all_names(volume.path())
}

fn only_regular_files_are_opened(dir: TestDir, shape: Shape) -> TrialResult {
    let mut bed = Bed::new(&dir, shape)?;
    {
        let mounted = bed.volume.mount("rw")?;
        let node = |name: &str, kind, device| {
            rustix::fs::mknodat(rustix::fs::CWD, mounted.join(name), kind, 0o600.into(), device)
        };
        node("fifo", rustix::fs::FileType::Fifo, 0)?;
        node("device", rustix::fs::FileType::BlockDevice, rustix::fs::makedev(7, 0))?;
        node("socket", rustix::fs::FileType::Socket, 0)?;
    }
    bed = Bed::around(&dir, shape, bed.volume)?;
    for name in ["/", "", ".", "others", "/others/deeper/", "absolute", "fifo", "device", "socket"]
    {
        for write in [false, true] {
            let opened = OpenOptions::new().write(write).open_in_image(bed.volume.path(), name);
            let error = opened.expect_err(name);
            let refused =
                matches!(error.kind(), ErrorKind::Unsupported(_) | ErrorKind::Os(libc::EISDIR));
            assert!(refused, "{name:?}: {error}");
        }
    }
    let through = bed.open_with(&OpenOptions::new(), "/log")?;
    assert_eq!(OpenOptions::new().open_in_image(bed.volume.path(), "others/to-log")?.len()?, 0);
    drop(through);
    bed.verify()
}

// --- reading -------------------------------------------------------------------------------------

fn any_range_is_read(dir: TestDir, shape: Shape) -> TrialResult {
    let mut bed = Bed::new(&dir, shape)?;
    let before = fs::read(bed.volume.path())?;
    for name in ["/log", "/48k", "/odd", "/sparse", "/others/deeper/large", "/others/9"] {
        let file = bed.open_with(&OpenOptions::new(), name)?;
        assert_eq!((file.file.growth(), file.file.recovery()), (Growth::None, None));
        file.look()?;
        let len = file.model.len();
        for _ in 0..60 {
            file.read(bed.below(len + 5), bed.below(9_000))?;
        }
        for at in
            [0, 1, len.saturating_sub(1), len, len + 1, len.next_multiple_of(bed.block()), 1 << 40]
        {
            for some in [0, 1, 511, bed.block(), 3 * bed.block() + 1] {
                file.read(at, some)?;
            }
        }
        bed.close(file)?;
    }
    assert!(fs::read(bed.volume.path())? == before, "reading changes something");
    bed.verify()
}

/// Data on both sides of every border of the map, and holes between.
fn files_of_every_depth_are_read(dir: TestDir, shape: Shape) -> TrialResult {
    let tree = dir.join("tree");
    fs::create_dir(&tree)?;
    let block = shape.block;
    let pointers = block / 4;
    let double = 12 + pointers;
    let triple = double + pointers * pointers;
    let file = fs::File::create_new(tree.join("far"))?;
    for place in
        [12, double, double + pointers, triple, triple + pointers, triple + pointers * pointers]
    {
        file.write_all_at(&bytes(place, 2 * block), (place - 1) * block)?;
    }
    drop(file);
    let mut bed = Bed::of(&dir, shape, &tree)?;
    let file = bed.open_with(&OpenOptions::new(), "/far")?;
    assert_eq!(file.model.runs().len(), 6);
    file.look()?;
    file.read((triple - 40) * block, 100 * block)?;
    bed.close(file)?;
    bed.verify()
}

fn what_is_opened_read_only_is_not_written(dir: TestDir, shape: Shape) -> TrialResult {
    let mut bed = Bed::new(&dir, shape)?;
    let before = fs::read(bed.volume.path())?;
    let file = bed.open_with(&OpenOptions::new(), "/odd")?;
    let data = Buffer::zeroed(bed.block() as usize);
    for error in [
        file.file.append(&data).map(drop),
        file.file.write_at(&data, 0),
        file.file.set_len(1),
        file.file.sync_data(),
        file.file.recycle(),
    ] {
        assert_eq!(error.expect_err("read-only").kind(), &ErrorKind::ReadOnly);
    }
    bed.close(file)?;
    assert!(fs::read(bed.volume.path())? == before, "something was written");
    // An open for writing without a write changes only a timestamp.
    let file = bed.open("/odd")?;
    assert_eq!(file.file.growth(), Growth::None);
    bed.close(file)?;
    bed.verify()
}

fn a_volume_that_may_not_be_written_can_be_read(dir: TestDir, shape: Shape) -> TrialResult {
    let bed = Bed::new(&dir, shape)?;
    if dir.fs() == Fs::Tmpfs {
        return Ok(());
    }
    let status = std::process::Command::new("chattr").arg("+i").arg(bed.volume.path()).status()?;
    assert!(status.success());
    let read = bed
        .open_with(&OpenOptions::new(), "/odd")
        .map_err(Failed::from)
        .and_then(|file| file.look());
    let refused = bed.open("/odd").map(drop);
    std::process::Command::new("chattr").arg("-i").arg(bed.volume.path()).status()?;
    read?;
    assert_eq!(refused.expect_err("it is immutable").errno(), libc::EPERM);
    bed.verify()
}

// --- overwriting ---------------------------------------------------------------------------------

fn blocks_are_overwritten_where_they_lie(dir: TestDir, shape: Shape) -> TrialResult {
    let mut bed = Bed::new(&dir, shape)?;
    let (name, block) = ("/others/deeper/large", bed.block());
    let lies = bed.volume.blocks(name)?;
    let free = bed.volume.number("Free blocks")?;
    for durability in [Durability::OnSync, Durability::EveryWrite] {
        let mut file = bed.open_with(writing().durability(durability), name)?;
        assert_eq!(file.file.durability(), durability);
        let blocks = file.model.len() / block;
        for n in 0..40 {
            let (at, len) = (bed.below(blocks), 1 + bed.below(40));
            file.write(at * block, &bytes(1000 + n, len.min(blocks - at) * block))?;
            if n % 7 == 0 {
                file.look()?;
                file.file.sync_data()?;
            }
        }
        file.write(0, &bytes(2000, blocks * block))?;
        bed.close(file)?;
        bed.check()?;
    }
    assert_eq!(bed.volume.blocks(name)?, lies, "blocks were moved");
    assert_eq!(bed.volume.number("Free blocks")?, free);
    bed.verify()
}

fn parts_of_blocks_are_written(dir: TestDir, shape: Shape) -> TrialResult {
    let mut bed = Bed::new(&dir, shape)?;
    for durability in [Durability::OnSync, Durability::EveryWrite] {
        let mut file = bed.open_with(writing().durability(durability), "/odd")?;
        let unit = file.file.alignment();
        assert_eq!((unit.offset, unit.append), (bed.block(), bed.block()));
        for n in 0..40 {
            let (at, len) = (bed.below(file.model.len() + 2 * bed.block()), bed.below(9999));
            file.write(at, &bytes(n, 1 + len))?;
        }
        file.append(&bytes(99, 77))?;
        file.look()?;
        bed.close(file)?;
        bed.check()?;
    }
    bed.verify()
}

// --- appends -------------------------------------------------------------------------------------

fn appends_of_many_threads_are_gapless(dir: TestDir, shape: Shape) -> TrialResult {
    let mut bed = Bed::new(&dir, shape)?;
    for (name, durability) in [("/log", Durability::OnSync), ("/second", Durability::EveryWrite)] {
        let mut file = bed.open_with(writing().durability(durability), name)?;
        let placed = together(8, |writer| append_many(&file.file, writer, 20)).concat();
        let end = assert_gapless(&placed, 0);
        assert_eq!(file.file.len()?, end);
        for placed in &placed {
            file.model.write(placed.offset, &record(placed.writer, placed.number, placed.blocks));
        }
        let stats = file.file.stats();
        assert_eq!((stats.appends, stats.append_bytes, stats.growths), (160, end, 0));
        bed.close(file)?;
        bed.verify()?;
    }
    Ok(())
}

fn records_of_any_length_by_many_threads_are_side_by_side(
    dir: TestDir,
    shape: Shape,
) -> TrialResult {
    let mut bed = Bed::new(&dir, shape)?;
    for way in Way::ALL {
        let file = bed.open("/odd")?;
        let Inside { name, file, mut model } = file;
        let file = way.to(file);
        let start = model.len();
        let laid = together(6, |writer| append_frames(&file, writer, 12)).concat();
        let mut sorted = laid.clone();
        sorted.sort_unstable();
        for laid in sorted {
            assert_eq!(laid.offset, model.len(), "a gap or an overlap");
            model.write(laid.offset, &laid.frame.bytes());
        }
        assert!(model.len() > start);
        assert!(read_bytes(&file, 0, model.len() + 1)? == model.read(0, model.len()));
        file.close()?;
        bed.expect(&name, model);
        bed.check()?;
        let mut file = bed.open("/odd")?;
        file.set_len(1 + bed.below(50_000))?;
        bed.close(file)?;
    }
    bed.verify()
}

fn lengths_are_exact_when_it_is_closed(dir: TestDir, shape: Shape) -> TrialResult {
    let mut bed = Bed::new(&dir, shape)?;
    let block = bed.block();
    for len in
        [1, 7, 511, block - 1, block, block + 1, 12 * block - 1, 12 * block + 1, 20 * block + 3]
    {
        bed.expect("/log", Model::default());
        let mut file = bed.open_with(writing().truncate(true), "/log")?;
        file.append(&bytes(len, len))?;
        bed.close(file)?;
        bed.check()?;
    }
    let mut file = bed.open("/odd")?;
    for n in 0..5 {
        file.append(&bytes(n, 1 + bed.below(3 * block)))?;
        bed.close(file)?;
        bed.check()?;
        file = bed.open("/odd")?;
    }
    bed.close(file)?;
    bed.verify()
}

/// The steps from the mailing list: a file of 48 KiB, then one write of 4096 KiB behind it.
fn a_write_of_4096_kib_behind_48_kib_is_at_most_two_requests(
    dir: TestDir,
    shape: Shape,
) -> TrialResult {
    let mut bed = Bed::new(&dir, Shape { group_blocks: 0, ..shape })?;
    for by_append in [false, true] {
        let name = if by_append { "/second" } else { "/log" };
        let mut file = bed.open(name)?;
        file.append(&bytes(1, 48 * KIB))?;
        let before = file.file.stats().requests;
        let data = bytes(2, 4096 * KIB);
        if by_append {
            assert_eq!(file.file.append(&Buffer::from(&data[..]))?, 48 * KIB);
            file.model.write(48 * KIB, &data);
        } else {
            file.write(48 * KIB, &data)?;
        }
        let requests = file.file.stats().requests - before;
        assert!(requests <= 2, "{requests} requests for {name}");
        bed.close(file)?;
        bed.check()?;
        let lies = bed.volume.blocks(name)?;
        let mut sorted = lies.clone();
        sorted.sort_unstable();
        let pieces = sorted.chunk_by(|block, next| block + 1 == *next).count();
        assert!(pieces <= 4, "{name} is in {pieces} pieces: {lies:?}");
        // Repeated overwrites allocate and free no block.
        let mut file = bed.open(name)?;
        for n in 0..5 {
            file.write(48 * KIB, &bytes(3 + n, 4096 * KIB))?;
        }
        bed.close(file)?;
        bed.verify()?;
        assert_eq!(bed.volume.blocks(name)?, lies);
    }
    Ok(())
}

// --- holes and borders ---------------------------------------------------------------------------

fn writes_beyond_the_end_leave_holes(dir: TestDir, shape: Shape) -> TrialResult {
    let mut bed = Bed::new(&dir, shape)?;
    let block = bed.block();
    let free = bed.volume.number("Free blocks")?;
    let mut file = bed.open("/log")?;
    for place in [3, 11, 14, 30, 12 + block / 4 + 5, 2000] {
        file.write(place * block, &bytes(place, block))?;
        file.look()?;
    }
    bed.close(file)?;
    bed.check()?;
    // Six blocks of data, one indirect block, one double indirect block, and one or two below that.
    let taken = free - bed.volume.number("Free blocks")?;
    assert!((9..=10).contains(&taken), "{taken} blocks were taken");
    // From a partial last block: the gap reads as zeros, in that block as well.
    let mut file = bed.open("/odd")?;
    let end = file.model.len();
    file.write(end.next_multiple_of(block) + 7 * block, &bytes(1, 2 * block))?;
    bed.close(file)?;
    bed.verify()
}

fn holes_are_filled(dir: TestDir, shape: Shape) -> TrialResult {
    let mut bed = Bed::new(&dir, shape)?;
    let block = bed.block();
    let mut file = bed.open("/sparse")?;
    let blocks = file.model.len() / block;
    for n in 0..60 {
        let (at, len) = (bed.below(blocks), 1 + bed.below(20));
        file.write(at * block, &bytes(n, len.min(blocks - at) * block))?;
    }
    bed.close(file)?;
    bed.check()?;
    // Single blocks between the planted ones.
    let mut file = bed.open("/sparse")?;
    for place in [0, 3, 4, 6, 7, 10, 14] {
        file.write(place * block, &bytes(500 + place, block))?;
    }
    bed.close(file)?;
    bed.check()?;
    let mut file = bed.open("/sparse")?;
    file.write(0, &bytes(900, blocks * block))?;
    bed.close(file)?;
    bed.verify()
}

fn every_border_of_the_map_is_crossed(dir: TestDir, shape: Shape) -> TrialResult {
    let mut bed = Bed::new(&dir, shape)?;
    let block = bed.block();
    let free = bed.volume.number("Free blocks")?;
    let mut borders = bed.borders().to_vec();
    borders.push(borders[1] + block / 4);
    borders.push(borders[2] + block / 4);
    borders.push(borders[2] + block / 4 * (block / 4));
    for border in borders {
        // One block at a time, in one write, and inside blocks.
        let mut file = bed.open("/log")?;
        file.set_len((border - 2) * block)?;
        for n in 0..4 {
            file.append(&bytes(n, block))?;
        }
        bed.close(file)?;
        bed.check()?;
        let mut file = bed.open("/log")?;
        file.set_len((border - 2) * block)?;
        file.append(&bytes(5, 4 * block))?;
        file.set_len((border - 2) * block + 5)?;
        for n in 0..5 {
            file.append(&bytes(n, block - 1))?;
        }
        bed.close(file)?;
        bed.check()?;
        let mut file = bed.open("/second")?;
        file.set_len(0)?;
        file.write((border - 2) * block, &bytes(6, 5 * block))?;
        bed.close(file)?;
        bed.verify()?;
    }
    assert_gives_all_back(bed, free)
}

fn files_are_truncated_and_extended_at_every_border(dir: TestDir, shape: Shape) -> TrialResult {
    let mut bed = Bed::new(&dir, shape)?;
    let block = bed.block();
    let free = bed.volume.number("Free blocks")?;
    for border in bed.borders() {
        for cut in [border + 1, border, border - 1] {
            let mut file = bed.open("/log")?;
            file.set_len(0)?;
            file.write((border - 3) * block, &bytes(border, 6 * block))?;
            file.set_len(cut * block)?;
            file.look()?;
            bed.close(file)?;
            bed.check()?;
            let mut file = bed.open("/log")?;
            // Truncated data does not come back.
            file.set_len((border + 3) * block)?;
            file.look()?;
            file.set_len(cut * block - 100)?;
            file.set_len((border + 9) * block + 1)?;
            file.append(&bytes(cut, 3 * block + 5))?;
            bed.close(file)?;
            bed.check()?;
        }
        bed.verify()?;
    }
    let mut file = bed.open("/log")?;
    file.set_len(0)?;
    bed.close(file)?;
    bed.check()?;
    assert_eq!(bed.volume.number("Free blocks")?, free, "blocks are lost");
    let mut file = bed.open("/sparse")?;
    for len in [
        3099 * block,
        3000 * block + 1,
        2000 * block,
        300 * block,
        13 * block,
        12 * block,
        block,
        1,
        0,
    ] {
        file.set_len(len)?;
        bed.close(file)?;
        bed.check()?;
        file = bed.open("/sparse")?;
    }
    bed.close(file)?;
    bed.verify()
}

// --- space ---------------------------------------------------------------------------------------

/// Checks that the volume has its free blocks back once its files are empty.
fn assert_gives_all_back(mut bed: Bed, free: u64) -> TrialResult {
    for name in ["/log", "/second"] {
        let mut file = bed.open(name)?;
        file.set_len(0)?;
        bed.close(file)?;
    }
    bed.verify()?;
    assert_eq!(bed.volume.number("Free blocks")?, free, "blocks are lost");
    Ok(())
}

/// Appends until space runs out. Each failure halves the length.
fn fill(file: &mut Inside, block: u64) -> TrialResult {
    let mut blocks = 512;
    for number in 0.. {
        match file.append(&bytes(number, blocks * block)) {
            Ok(_) => {}
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::NoSpace(libc::ENOSPC)), "{error}");
                assert_eq!(file.file.len()?, file.model.len(), "the length moved");
                if blocks == 1 {
                    return Ok(());
                }
                blocks /= 2;
            }
        }
    }
    Ok(())
}

fn a_full_volume_is_an_error_and_nothing_is_lost(dir: TestDir, shape: Shape) -> TrialResult {
    let shape = Shape { size: 12 << 20, ..shape };
    let mut bed = Bed::new(&dir, shape)?;
    let block = bed.block();
    let free = bed.volume.number("Free blocks")?;
    let mut file = bed.open("/log")?;
    fill(&mut file, block)?;
    let mut other = bed.open("/second")?;
    let refused = other.append(&bytes(1, block)).expect_err("it is full");
    assert!(matches!(refused.kind(), ErrorKind::NoSpace(libc::ENOSPC)), "{refused}");
    let refused = other.write(7 * block, &bytes(1, block)).expect_err("it is full");
    assert!(matches!(refused.kind(), ErrorKind::NoSpace(libc::ENOSPC)), "{refused}");
    // Overwrites of allocated blocks still work.
    file.write(0, &bytes(77, 20 * block))?;
    file.file.sync_data()?;
    bed.close(other)?;
    bed.close(file)?;
    bed.check()?;
    assert!(bed.volume.number("Free blocks")? <= 4, "it is not full");
    // Freed space is usable, before and after a reopen.
    let mut file = bed.open("/log")?;
    file.set_len(20 * block)?;
    let mut other = bed.open("/second")?;
    other.append(&bytes(5, 100 * block))?;
    file.append(&bytes(6, 100 * block))?;
    fill(&mut file, block)?;
    bed.close(file)?;
    bed.close(other)?;
    bed.check()?;
    assert_gives_all_back(bed, free)
}

fn threads_fill_a_volume_together(dir: TestDir, shape: Shape) -> TrialResult {
    let shape = Shape { size: 12 << 20, ..shape };
    let mut bed = Bed::new(&dir, shape)?;
    let mut file = bed.open_with(writing().durability(Durability::EveryWrite), "/log")?;
    let placed = together(6, |writer| {
        let mut placed = Vec::new();
        append_while(
            &file.file,
            writer,
            |number| Some(4 + number % 9),
            |result| match result {
                Ok(record) => {
                    placed.push(record);
                    true
                }
                Err(error) => {
                    assert!(matches!(error.kind(), ErrorKind::NoSpace(libc::ENOSPC)), "{error}");
                    false
                }
            },
        );
        placed
    });
    let placed = placed.concat();
    assert!(assert_gapless(&placed, 0) > 2 << 20, "little fits");
    for placed in placed {
        file.model.write(placed.offset, &record(placed.writer, placed.number, placed.blocks));
    }
    bed.close(file)?;
    bed.verify()
}

/// A child without root's rights that fills a file. The args are the volume and the file.
fn fill_as_another_user(acks: &Acks, args: &[String]) {
    const NOBODY: u32 = 65534;
    // SAFETY: changes the ids of this process, which is a child process.
    let changed = unsafe {
        libc::setgroups(0, std::ptr::null()) == 0
            && libc::setresgid(NOBODY, NOBODY, NOBODY) == 0
            && libc::setresuid(NOBODY, NOBODY, NOBODY) == 0
    };
    assert!(changed, "root may do that");
    let file = writing().open_in_image(&args[0], &args[1]).expect("it opens");
    let mut model = Model::default();
    model.set_len(file.len().expect("a writer knows"));
    let mut inside = Inside { name: args[1].clone(), file, model };
    let block = inside.file.alignment().append;
    fill(&mut inside, block).expect("it fills");
    inside.file.close().expect("it closes");
    acks.send([inside.model.len(), 0, 0]);
}

/// Other users may lack access to the lab's parent directory, so all files are in another one.
fn reserved_blocks_are_for_root(dir: TestDir, shape: Shape) -> TrialResult {
    use std::os::unix::fs::PermissionsExt;
    let shape = Shape { size: 16 << 20, reserved_percent: 20, ..shape };
    let mut bed = Bed::new(&dir, shape)?;
    fs::set_permissions(bed.volume.path(), fs::Permissions::from_mode(0o666))?;
    let reserved = bed.volume.number("Reserved block count")?;
    let (volume, file) = (bed.volume.path().to_string_lossy().into_owned(), "/log".to_owned());
    let (status, acks) = child::spawn("fill_as_another_user", &[volume, file])?.wait(PATIENCE)?;
    if !status.success() {
        return Err(format!("the child: {status}").into());
    }
    bed.volume.check()?;
    let free = bed.volume.number("Free blocks")?;
    assert!(
        (reserved..reserved + 4).contains(&free),
        "{free} blocks are left of {reserved} reserved ones"
    );
    let file = writing().open_in_image(bed.volume.path(), "/log")?;
    assert_eq!(file.len()?, acks[0][0]);
    file.set_len(0)?;
    file.close()?;
    // Root may use the reserved blocks.
    let mut file = bed.open("/log")?;
    fill(&mut file, shape.block)?;
    bed.close(file)?;
    bed.verify()?;
    assert!(bed.volume.number("Free blocks")? <= 4, "root left some");
    Ok(())
}

/// Lets the kernel fill a volume with small files and remove every second one.
fn scatter(volume: &ExtVolume, block: u64) -> TrialResult {
    let mounted = volume.mount("rw")?;
    fs::create_dir(mounted.join("small"))?;
    let name = |n: u64| mounted.join(format!("small/{n}"));
    let mut count = 0;
    while fs::write(name(count), bytes(count, block * (1 + count % 3))).is_ok() {
        count += 1;
    }
    // The failed write may have created the file.
    let _ = fs::remove_file(name(count));
    for n in (0..count).step_by(2) {
        fs::remove_file(name(n))?;
    }
    assert!(count > 300, "only {count} files fit");
    Ok(())
}

fn scattered_free_space_is_used(dir: TestDir, shape: Shape) -> TrialResult {
    let shape = Shape { size: 12 << 20, ..shape };
    let bed = Bed::new(&dir, shape)?;
    scatter(&bed.volume, shape.block)?;
    let mut bed = Bed::around(&dir, shape, bed.volume)?;
    let mut file = bed.open("/log")?;
    file.append(&bytes(1, 60 * shape.block))?;
    let mut other = bed.open("/second")?;
    for n in 0..20 {
        file.append(&bytes(n, 3 * shape.block + 100))?;
        other.write(n * 3 * shape.block, &bytes(n, shape.block))?;
    }
    fill(&mut file, shape.block)?;
    bed.close(file)?;
    bed.close(other)?;
    bed.check()?;
    assert!(bed.volume.number("Free blocks")? <= 4, "some free blocks were not found");
    let mut file = bed.open("/log")?;
    file.set_len(shape.block * 30 + 5)?;
    bed.close(file)?;
    bed.verify()
}

// --- large files ---------------------------------------------------------------------------------

fn files_beyond_2_and_4_gib_are_sparse_and_right(dir: TestDir, shape: Shape) -> TrialResult {
    let mut bed = Bed::new(&dir, shape)?;
    let block = bed.block();
    let mut file = bed.open("/log")?;
    for gib in [2u64, 4, 9] {
        file.write((gib << 30) - 2 * block, &bytes(gib, 4 * block))?;
        file.look()?;
        bed.close(file)?;
        bed.check()?;
        file = bed.open("/log")?;
        file.append(&bytes(gib, 777))?;
    }
    file.set_len((2 << 30) - 1)?;
    bed.close(file)?;
    bed.verify()
}

/// A file of 2 GiB needs the large_file feature. The engine sets it, as the kernel does, or fails.
fn the_volume_learns_of_its_first_large_file(dir: TestDir, shape: Shape) -> TrialResult {
    let mut bed = Bed::new(&dir, Shape { features: "^large_file,^resize_inode", ..shape })?;
    assert!(!bed.volume.header("Filesystem features")?.contains("large_file"));
    let block = bed.block();
    let mut file = bed.open("/log")?;
    file.write((2 << 30) - 3 * block, &bytes(1, 2 * block))?;
    bed.close(file)?;
    bed.verify()?;
    assert!(!bed.volume.header("Filesystem features")?.contains("large_file"));
    let mut file = bed.open("/log")?;
    match file.append(&bytes(2, 3 * block)) {
        Ok(_) => {
            bed.close(file)?;
            assert!(bed.volume.header("Filesystem features")?.contains("large_file"));
        }
        Err(error) => {
            assert!(
                matches!(error.kind(), ErrorKind::Unsupported(_) | ErrorKind::NoSpace(libc::EFBIG)),
                "{error}"
            );
            bed.close(file)?;
        }
    }
    bed.verify()
}

fn no_file_is_longer_than_its_map_can_tell(dir: TestDir, shape: Shape) -> TrialResult {
    let mut bed = Bed::new(&dir, shape)?;
    let block = bed.block();
    let pointers = block / 4;
    let map_end = (12 + pointers + pointers * pointers + pointers * pointers * pointers) * block;
    // The inode counts sectors in 32 bits.
    let end = map_end.min(((1 << 32) - 1) * 512 / block * block);
    let mut file = bed.open("/log")?;
    for at in [end, end + block, 1 << 45, 1 << 62, (i64::MAX as u64 - block) / block * block] {
        let error = file.write(at, &bytes(1, block)).expect_err("too far");
        assert!(matches!(error.errno(), libc::EFBIG | libc::EINVAL), "at {at}: {error}");
    }
    for len in [map_end + 1, 1 << 45, u64::MAX / 2, u64::MAX] {
        let error = file.file.set_len(len).expect_err("too long");
        assert!(matches!(error.errno(), libc::EFBIG | libc::EINVAL), "to {len}: {error}");
        assert_eq!(file.file.len()?, 0);
    }
    file.append(&bytes(1, 100))?;
    if map_end < 1 << 40 {
        file.write(map_end - block, &bytes(2, block))?;
        let error = file.append(&bytes(1, 1)).expect_err("nothing is behind it");
        assert_eq!(error.errno(), libc::EFBIG, "{error}");
    }
    bed.close(file)?;
    bed.verify()
}

// --- many files, threads, queues, futures --------------------------------------------------------

fn files_of_one_volume_are_open_together(dir: TestDir, shape: Shape) -> TrialResult {
    let mut bed = Bed::new(&dir, shape)?;
    let names = ["/log", "/second", "/odd", "/others/5"];
    let mut files = names.map(|name| bed.open(name)).into_iter().collect::<Result<Vec<_>, _>>()?;
    let laid: Vec<Vec<Laid>> =
        together(8, |writer| append_frames(&files[writer as usize % 4].file, writer, 15));
    for (n, file) in files.iter_mut().enumerate() {
        let mut mine = [&laid[n][..], &laid[n + 4]].concat();
        mine.sort_unstable();
        for laid in mine {
            assert_eq!(laid.offset, file.model.len());
            file.model.write(laid.offset, &laid.frame.bytes());
        }
    }
    for file in files {
        bed.close(file)?;
    }
    bed.verify()
}

fn handles_of_one_file_agree(dir: TestDir, shape: Shape) -> TrialResult {
    let mut bed = Bed::new(&dir, shape)?;
    let mut first = bed.open("/log")?;
    let second = writing().open_in_image(bed.volume.path(), "others/to-log")?;
    let third = first.file.try_clone()?;
    let reader = OpenOptions::new().open_in_image(bed.volume.path(), "log")?;
    for (n, handle) in [&second, &third].into_iter().cycle().take(10).enumerate() {
        let data = bytes(n as u64, 700);
        let offset = handle.append(&data)?;
        assert_eq!(offset, first.model.len());
        first.model.write(offset, &data);
        first.look()?;
        assert_eq!((second.len()?, reader.len()?), (first.model.len(), first.model.len()));
        assert!(read_bytes(&reader, offset, 800)? == data, "the reader sees something else");
    }
    first.set_len(1000)?;
    assert_eq!((third.len()?, reader.len()?), (1000, 1000));
    drop(second);
    third.close()?;
    bed.close(first)?;
    assert_eq!(reader.len()?, 1000);
    assert!(read_bytes(&reader, 0, 1001)? == bed.model("/log").read(0, 1000));
    reader.close()?;
    bed.verify()
}

/// Each thread writes at its own offsets, most of them holes. Other threads append to another file
/// and truncate a third.
fn threads_write_side_by_side(dir: TestDir, shape: Shape) -> TrialResult {
    let mut bed = Bed::new(&dir, shape)?;
    let block = bed.block();
    let mut sparse = bed.open_with(writing().durability(Durability::EveryWrite), "/sparse")?;
    let mut log = bed.open("/log")?;
    let mut cut = bed.open("/odd")?;
    let (file, appended, shorter) = (&sparse.file, &log.file, &cut.file);
    let written = together(8, |thread| {
        let mut random = Random::new(thread);
        let mut done = Vec::new();
        for n in 0..25 {
            match thread {
                6 => done.push((
                    append_frame(appended, Frame { writer: 6, number: n, len: 3 * block + n })
                        .expect("there is space")
                        .offset,
                    n,
                )),
                7 => shorter.set_len(random.below(40 * block)).expect("it is cut"),
                _ => {
                    let place = random.below(500) * 6 + thread;
                    file.write_at(&Buffer::from(&bytes(place * 100 + n, block)[..]), place * block)
                        .expect("there is space");
                    done.push((place, n));
                    let mut into = vec![0; block as usize];
                    assert_eq!(
                        file.read_at(&mut into, place * block).expect("it reads"),
                        into.len()
                    );
                    assert!(into == bytes(place * 100 + n, block), "its own write is not there");
                }
            }
        }
        done
    });
    for (place, n) in written[..6].concat() {
        sparse.model.write(place * block, &bytes(place * 100 + n, block));
    }
    for &(offset, n) in &written[6] {
        log.model.write(offset, &Frame { writer: 6, number: n, len: 3 * block + n }.bytes());
    }
    cut.set_len(33)?;
    for file in [sparse, log, cut] {
        bed.close(file)?;
    }
    bed.verify()
}

fn queues_work_inside(dir: TestDir, shape: Shape) -> TrialResult {
    let mut bed = Bed::new(&dir, shape)?;
    let block = bed.block();
    for io_uring in [true, false] {
        let queue: Queue = QueueOptions::new().depth(32).io_uring(io_uring).open();
        let mut file = bed.open_with(writing().durability(Durability::EveryWrite), "/log")?;
        let mut sparse = bed.open("/sparse")?;
        for tag in 0..16 {
            queue.append(&file.file, Buffer::from(&bytes(tag, 500 + tag * 300)[..]), tag)?;
            let data = Buffer::from(&bytes(1000 + tag, block)[..]);
            queue.write_at(&sparse.file, data, (50 + 3 * tag) * block, 100 + tag)?;
        }
        while queue.outstanding() > 0 {
            for done in queue.reap(1) {
                let result = done.result?;
                match done.tag {
                    tag @ 0..100 => file.model.write(result, &bytes(tag, 500 + tag * 300)),
                    tag => sparse
                        .model
                        .write((50 + 3 * (tag - 100)) * block, &bytes(1000 + tag - 100, block)),
                }
            }
        }
        for (tag, place) in [(0u64, 50), (1, 40), (2, 3000)] {
            queue.read_at(&sparse.file, Buffer::zeroed(4 * block as usize), place * block, tag)?;
            for done in queue.reap(1) {
                let read = done.result? as usize;
                let found = &done.buffer.expect("it comes back")[..read];
                assert!(found == sparse.model.read(place * block, 4 * block), "{place}");
            }
        }
        queue.sync_data(&sparse.file, 7)?;
        queue.reap(1).for_each(|done| assert_eq!(done.result.expect("it syncs"), 0));
        bed.close(file)?;
        bed.close(sparse)?;
        bed.verify()?;
    }
    Ok(())
}

fn futures_work_inside(dir: TestDir, shape: Shape) -> TrialResult {
    let mut bed = Bed::new(&dir, shape)?;
    let reactor = LocalReactor::new(&QueueOptions::new());
    let Inside { name, file, mut model } =
        bed.open_with(writing().durability(Durability::EveryWrite), "/odd")?;
    let file: Arc<AsyncFile> = Arc::new(reactor.attach(file));
    let appended = reactor.block_on(async {
        let mut appended = Vec::new();
        for n in 0..20u64 {
            let (offset, data) = file.append(bytes(n, 100 + n * 333)).await;
            appended.push((offset?, data));
        }
        file.set_len(file.len()? + 5).await?;
        file.sync_data().await?;
        let (read, into) = file.read_at(vec![0; 100], 0).await;
        assert_eq!((read?, into), (100, model.read(0, 100)));
        dioxide::Result::<_>::Ok(appended)
    })?;
    for (offset, data) in appended {
        assert_eq!(offset, model.len());
        model.write(offset, &data);
    }
    model.set_len(model.len() + 5);
    let file = Arc::into_inner(file).expect("all futures are done").into_inner();
    let inside = Inside { name, file, model };
    bed.close(inside)?;
    bed.verify()?;
    // Many tasks use the shared reactor of the process.
    let Inside { name, file, mut model } = bed.open("/log")?;
    let file = Arc::new(AsyncFile::from(file));
    let tasks: Vec<_> = (0..30u64)
        .map(|n| {
            let file = file.clone();
            smol::spawn(async move { file.append(bytes(n, 900 + n)).await })
        })
        .collect();
    for task in tasks {
        let (offset, data) = smol::block_on(task);
        model.write(offset?, &data);
    }
    let file = Arc::into_inner(file).expect("all tasks are done").into_inner();
    bed.close(Inside { name, file, model })?;
    bed.verify()
}

fn create_is_refused_and_truncate_is_not(dir: TestDir, shape: Shape) -> TrialResult {
    let mut bed = Bed::new(&dir, shape)?;
    let volume = bed.volume.path().to_owned();
    for (create, create_new) in [(true, false), (false, true), (true, true)] {
        for name in ["/log", "/none-yet"] {
            let mut options = writing();
            let error = options.create(create).create_new(create_new).open_in_image(&volume, name);
            let error = error.expect_err("files are not made");
            assert!(matches!(error.kind(), ErrorKind::Unsupported(_)), "{error}");
        }
    }
    let file = writing().truncate(true).open_in_image(&volume, "/others/deeper/large")?;
    assert_eq!(file.len()?, 0);
    file.close()?;
    bed.expect("/others/deeper/large", Model::default());
    bed.verify()
}

// --- volumes of other kinds ----------------------------------------------------------------------

/// A few operations of each kind on one file.
fn work_with(bed: &mut Bed, name: &str) -> TrialResult {
    let block = bed.block();
    let mut file = bed.open_with(writing().durability(Durability::EveryWrite), name)?;
    for n in 0..5 {
        file.append(&bytes(n, 4 * block + n))?;
    }
    file.write(300 * block, &bytes(7, 9 * block))?;
    file.write(2 * block, &bytes(8, block))?;
    file.set_len(305 * block + 1)?;
    file.append(&bytes(9, 700))?;
    bed.close(file)?;
    bed.verify()?;
    let mut file = bed.open(name)?;
    file.set_len(12 * block + 13)?;
    file.append(&bytes(10, 3 * block))?;
    bed.close(file)?;
    bed.verify()
}

/// All groups have copies of the superblock, directory entries have no file type, and no blocks are
/// reserved for more groups.
fn volumes_without_any_feature_work(dir: TestDir, shape: Shape) -> TrialResult {
    let features = "^sparse_super,^filetype,^resize_inode,^dir_index,^large_file,^ext_attr";
    let mut bed = Bed::new(&dir, Shape { features, ..shape })?;
    work_with(&mut bed, "/log")?;
    work_with(&mut bed, "/others/deeper/large")
}

/// Revision 0, which has no features.
fn volumes_of_the_first_revision_work(dir: TestDir, shape: Shape) -> TrialResult {
    let features = "^sparse_super,^filetype,^resize_inode,^dir_index,^large_file,^ext_attr";
    let shape = Shape { features, inode: 128, kind: ExtKind::Ext2, ..shape };
    let bed = Bed::new(&dir, shape)?;
    bed.volume.change("set_super_value rev_level 0")?;
    let mut bed = Bed::around(&dir, shape, bed.volume)?;
    work_with(&mut bed, "/log")?;
    let mut file = bed.open("/log")?;
    let error =
        file.write((2 << 30) - shape.block, &bytes(1, shape.block)).expect_err("none is so long");
    assert_eq!(error.errno(), libc::EFBIG, "{error}");
    bed.close(file)?;
    bed.verify()
}

/// Attributes have their own block, which counts as a block of the file.
fn extended_attributes_stay(dir: TestDir, shape: Shape) -> TrialResult {
    let bed = Bed::new(&dir, shape)?;
    let value = vec![b'v'; shape.block as usize / 2];
    let names = ["log", "48k"];
    let set = |mounted: &Path| {
        let flags = rustix::fs::XattrFlags::empty();
        names.map(|name| rustix::fs::setxattr(mounted.join(name), "user.test", &value, flags))
    };
    set(&bed.volume.mount("rw")?).into_iter().collect::<Result<Vec<_>, _>>()?;
    let mut bed = Bed::around(&dir, shape, bed.volume)?;
    for name in ["/log", "/48k"] {
        work_with(&mut bed, name)?;
        let mut file = bed.open(name)?;
        file.set_len(0)?;
        bed.close(file)?;
        work_with(&mut bed, name)?;
    }
    let mounted = bed.volume.mount("ro")?;
    for name in names {
        let mut found = vec![0; 2 * value.len()];
        let len = rustix::fs::getxattr(mounted.join(name), "user.test", &mut found)?;
        assert!(found[..len] == value, "the attribute of {name} is lost");
    }
    Ok(())
}

/// The kernel wrote the file in small pieces between others, as in images of firmware and of old
/// systems.
fn files_that_the_kernel_wrote_in_pieces_are_gone_on_with(
    dir: TestDir,
    shape: Shape,
) -> TrialResult {
    let bed = Bed::new(&dir, shape)?;
    {
        let mounted = bed.volume.mount("rw")?;
        let open = |name| fs::File::options().append(true).open(mounted.join(name));
        let (mut log, mut other) = (open("log")?, open("second")?);
        for n in 0..60 {
            log.write_all(&bytes(n, 5 * shape.block))?;
            other.write_all(&bytes(n, shape.block + 1))?;
            log.sync_all()?;
        }
    }
    let mut bed = Bed::around(&dir, shape, bed.volume)?;
    let mut file = bed.open("/log")?;
    file.look()?;
    file.write(shape.block, &bytes(99, 250 * shape.block))?;
    file.append(&bytes(100, 100_000))?;
    bed.close(file)?;
    bed.verify()?;
    work_with(&mut bed, "/second")
}

// --- devices -------------------------------------------------------------------------------------

fn volumes_on_devices_work(disk: Disk) -> TrialResult {
    let dir = dioxide_testkit::lab::fresh_dir(Fs::Tmpfs, "device")?;
    let tree = dir.join("tree");
    fs::create_dir(&tree)?;
    plant(&tree, 4096)?;
    for kind in [ExtKind::Ext2, ExtKind::Ext3] {
        let shape = Shape::new(kind, 4096, 256, VOLUME_BYTES);
        let mut bed = Bed::around(&dir, shape, ExtVolume::format(&disk, &shape, &tree)?)?;
        let mut file = bed.open_with(writing().durability(Durability::EveryWrite), "/log")?;
        for n in 0..20 {
            file.append(&bytes(n, 5_000))?;
        }
        assert!(!bed.volume.can_be_mounted()?, "a device with an open file is mounted");
        bed.close(file)?;
        bed.verify()?;
        let mounted = bed.volume.mount("ro")?;
        let refused = refusal(writing().open_in_image(bed.volume.path(), "/log"));
        assert!(matches!(refused, ErrorKind::Busy(_)), "{refused:?}");
        drop(mounted);
        writing().open_in_image(bed.volume.path(), "/log")?.close()?;
        a_second_reader_of_a_device_is_refused(&bed)?;
    }
    Ok(())
}

/// Unlike an image, a device has one process at a time.
fn a_second_reader_of_a_device_is_refused(bed: &Bed) -> TrialResult {
    let child = kept_open(bed, "read")?;
    let refused = refusal(OpenOptions::new().open_in_image(bed.volume.path(), "/odd"));
    assert!(matches!(refused, ErrorKind::Busy(_)), "{refused:?}");
    child.kill_9()?;
    bed.open_with(&OpenOptions::new(), "/odd")?.look()
}

// --- refusals ------------------------------------------------------------------------------------

fn unsupported(volume: &Path, write: bool) -> String {
    match refusal(OpenOptions::new().write(write).open_in_image(volume, "/log")) {
        ErrorKind::Unsupported(why) => why,
        other => panic!("refused as {other:?}"),
    }
}

fn a_mounted_volume_is_refused(dir: TestDir, shape: Shape) -> TrialResult {
    let mut bed = Bed::new(&dir, shape)?;
    for options in ["ro", "rw"] {
        let mounted = bed.volume.mount(options)?;
        let device = mounted.loop_device().expect("it is an image").to_owned();
        for path in [bed.volume.path(), &device] {
            let refused = refusal(writing().open_in_image(path, "/log"));
            assert!(matches!(refused, ErrorKind::Busy(_)), "{}: {refused:?}", path.display());
        }
    }
    let attached = AttachedFile::new(bed.volume.path())?;
    let refused = refusal(writing().open_in_image(bed.volume.path(), "/log"));
    assert!(matches!(refused, ErrorKind::Busy(_)), "behind a loop device: {refused:?}");
    drop(attached);
    let file = bed.open("/log")?;
    bed.close(file)?;
    bed.verify()
}

/// A child that opens a file and keeps it open until it is killed. The args are the volume, the
/// file, and "write" or "read".
fn keep_open(acks: &Acks, args: &[String]) {
    let file = OpenOptions::new().write(args[2] == "write").open_in_image(&args[0], &args[1]);
    tell(acks, &file);
    std::thread::sleep(PATIENCE);
    drop(file);
}

fn kept_open(bed: &Bed, how: &str) -> Result<Child, Failed> {
    let volume = bed.volume.path().to_string_lossy();
    let mut child = child::spawn("keep_open", &[&*volume, "/odd", how])?;
    assert_eq!(child.wait_for_acks(1, PATIENCE)?, [[0, 0, 0]], "the child opens it");
    Ok(child)
}

fn another_process_is_refused(dir: TestDir, shape: Shape) -> TrialResult {
    let mut bed = Bed::new(&dir, shape)?;
    let volume = bed.volume.path().to_owned();
    let child = kept_open(&bed, "write")?;
    for (name, write) in [("/odd", true), ("/log", true), ("/odd", false), ("/log", false)] {
        let refused = refusal(OpenOptions::new().write(write).open_in_image(&volume, name));
        assert_eq!(refused, ErrorKind::Locked, "{name}, {write}");
    }
    child.kill_9()?;
    bed.volume.preen()?;
    let child = kept_open(&bed, "read")?;
    let reader = bed.open_with(&OpenOptions::new(), "/odd")?;
    reader.look()?;
    let refused = refusal(writing().open_in_image(&volume, "/log"));
    assert!(matches!(refused, ErrorKind::Busy(_)), "this process reads: {refused:?}");
    drop(reader);
    assert_eq!(refusal(writing().open_in_image(&volume, "/log")), ErrorKind::Locked);
    child.kill_9()?;
    let mut file = bed.open("/odd")?;
    file.append(b"nobody else has it")?;
    let mut child = child::spawn("keep_open", &[&*volume.to_string_lossy(), "/log", "read"])?;
    assert_eq!(child.wait_for_acks(1, PATIENCE)?[0][0], LOCKED);
    child.kill_9()?;
    bed.close(file)?;
    bed.verify()
}

/// The volume has locks, which a thread that the child lacks may hold.
fn a_forked_child_gets_ebadf(dir: TestDir, shape: Shape) -> TrialResult {
    let mut bed = Bed::new(&dir, shape)?;
    let file = bed.open_with(&OpenOptions::new(), "/odd")?;
    assert!(holds_in_a_fork(|| {
        let read = file.file.read_at(&mut [0; 10], 0).map(drop);
        let refused = [read, file.file.len().map(drop)];
        refused.iter().all(|result| matches!(result, Err(error) if error.errno() == libc::EBADF))
    }));
    bed.close(file)?;
    bed.verify()
}

fn volumes_that_must_be_checked_are_refused(dir: TestDir, shape: Shape) -> TrialResult {
    let mut bed = Bed::new(&dir, shape)?;
    // Not cleanly unmounted; with errors; both.
    for state in ["0", "3", "2"] {
        bed.volume.change(&format!("set_super_value state {state}"))?;
        let before = fs::read(bed.volume.path())?;
        let why = unsupported(bed.volume.path(), true);
        assert!(why.contains("e2fsck"), "{why}");
        assert!(fs::read(bed.volume.path())? == before, "it was changed");
    }
    bed.volume.repair()?;
    let file = bed.open("/log")?;
    bed.close(file)?;
    bed.verify()
}

fn journals_that_must_be_recovered_are_refused(dir: TestDir, shape: Shape) -> TrialResult {
    let mut bed = Bed::new(&dir, Shape { kind: ExtKind::Ext3, ..shape })?;
    // The state after a crash of the kernel.
    let crashed = dir.join("crashed.img");
    {
        let mounted = bed.volume.mount("rw")?;
        fs::write(mounted.join("by-the-kernel"), bytes(1, 10_000))?;
        files::sync_file_system(&*mounted)?;
        fs::copy(bed.volume.path(), &crashed)?;
        fs::remove_file(mounted.join("by-the-kernel"))?;
    }
    let before = fs::read(&crashed)?;
    for write in [true, false] {
        let why = unsupported(&crashed, write);
        assert!(why.contains("journal") || why.contains("needs_recovery"), "{why}");
    }
    assert!(fs::read(&crashed)? == before, "it was changed");
    let volume = ExtVolume::at(&crashed, ExtKind::Ext3);
    volume.preen()?;
    assert!(
        read_bytes(&OpenOptions::new().open_in_image(&crashed, "by-the-kernel")?, 0, 20_000)?
            == bytes(1, 10_000)
    );
    bed = Bed::around(&dir, bed.shape, bed.volume)?;
    let file = bed.open("/log")?;
    bed.close(file)?;
    bed.verify()
}

/// Features of mke2fs beyond ext2 and ext3.
const MADE: &[(&str, &str)] = &[
    ("extent", "extent"),
    ("64bit,extent", "64bit"),
    ("metadata_csum", "metadata_csum"),
    ("flex_bg", "flex_bg"),
    ("uninit_bg", "uninit_bg"),
    ("inline_data", "inline_data"),
    ("encrypt", "encrypt"),
    ("bigalloc,extent", "bigalloc"),
    ("meta_bg,^resize_inode", "meta_bg"),
    ("quota", "quota"),
    ("project,quota", "project"),
    ("casefold", "casefold"),
    ("ea_inode", "ea_inode"),
    ("mmp", "mmp"),
    ("huge_file", "huge_file"),
    ("large_dir", "large_dir"),
    ("verity,extent", "verity"),
];

fn features_beyond_are_refused_by_name(dir: TestDir, shape: Shape) -> TrialResult {
    let tree = dir.join("tree");
    fs::create_dir(&tree)?;
    plant(&tree, shape.block)?;
    for (n, &(features, name)) in MADE.iter().enumerate() {
        let path = dir.join(format!("{n}.img"));
        // Some features need larger inodes.
        let shape = Shape { features, inode: 256, size: 16 << 20, ..shape };
        ExtVolume::make(&path, &shape, &tree)?;
        let before = fs::read(&path)?;
        for write in [false, true] {
            let why = unsupported(&path, write);
            assert!(why.contains(name), "{features}: {why}");
        }
        assert!(fs::read(&path)? == before, "{features}: it was changed");
        fs::remove_file(path)?;
    }
    Ok(())
}

/// The feature words of the superblock: their offset, and the bits of ext2 and ext3.
const INCOMPATIBLE: (u64, u32) = (96, 0x2);
const READ_ONLY_COMPATIBLE: (u64, u32) = (100, 0x7);

fn every_unknown_feature_is_refused(dir: TestDir, shape: Shape) -> TrialResult {
    let bed = Bed::new(&dir, shape)?;
    let image = fs::File::options().read(true).write(true).open(bed.volume.path())?;
    for (word, known) in [INCOMPATIBLE, READ_ONLY_COMPATIBLE] {
        let mut old = [0; 4];
        image.read_exact_at(&mut old, 1024 + word)?;
        for bit in (0..32).filter(|bit| known & 1 << bit == 0) {
            let value = u32::from_le_bytes(old) | 1 << bit;
            image.write_all_at(&value.to_le_bytes(), 1024 + word)?;
            let why = unsupported(bed.volume.path(), true);
            assert!(!why.is_empty(), "{word}, bit {bit}");
        }
        image.write_all_at(&old, 1024 + word)?;
    }
    bed.open("/log")?.file.close()?;
    Ok(())
}

/// A file whose inode flags forbid writes or the block map.
fn inodes_with_flags_are_respected(dir: TestDir, shape: Shape) -> TrialResult {
    let mut bed = Bed::new(&dir, shape)?;
    // Immutable, append-only, extents, inline data, encrypted, verity.
    for (flag, may_read) in [
        (0x10, true),
        (0x20, true),
        (0x80000, false),
        (0x10000000, false),
        (0x800, false),
        (0x100000, true),
    ] {
        bed.volume.change(&format!("set_inode_field /odd flags {flag:#x}"))?;
        let refused = refusal(bed.open("/odd").map(drop));
        assert!(
            matches!(
                refused,
                ErrorKind::Unsupported(_) | ErrorKind::Corrupt(_) | ErrorKind::Os(libc::EPERM)
            ),
            "{flag:#x}: {refused:?}"
        );
        let read = OpenOptions::new().open_in_image(bed.volume.path(), "/odd");
        assert!(may_read || read.is_err(), "{flag:#x}");
    }
    bed.volume.change("set_inode_field /odd flags 0")?;
    let file = bed.open("/odd")?;
    bed.close(file)?;
    bed.verify()
}

/// The map was truncated before the inode was found to have too few sectors.
fn a_refused_truncate_changed_what_a_file_reads(dir: TestDir, shape: Shape) -> TrialResult {
    let bed = Bed::new(&dir, shape)?;
    let whole = bed.volume.dump("/48k")?;
    bed.volume.change("set_inode_field /48k blocks 2")?;
    let file = bed.open("/48k")?.file;
    for len in [0, 100] {
        let refused = refusal(file.set_len(len));
        assert!(matches!(refused, ErrorKind::Corrupt(_) | ErrorKind::Wedged(_)), "{refused:?}");
        let mut found = vec![0; whole.len()];
        file.read_at(&mut found, 0)?;
        assert!(found == whole, "a truncate to {len} was refused, and changed the content");
    }
    assert_eq!(file.len()?, whole.len() as u64);
    drop(file);
    bed.volume.repair()?;
    Ok(())
}

fn what_is_no_volume_is_refused(dir: TestDir) -> TrialResult {
    let random: Vec<u8> = bytes(1, 1 << 20);
    let contents = [
        ("empty", Vec::new()),
        ("short", vec![0; 1500]),
        ("zeros", vec![0; 1 << 20]),
        ("random", random),
        ("text", b"not a volume\n".repeat(1000)),
    ];
    for (name, content) in contents {
        let path = dir.join(name);
        fs::write(&path, content)?;
        for write in [false, true] {
            let why = unsupported(&path, write);
            assert!(why.contains("volume"), "{name}: {why}");
        }
    }
    let error = writing().open_in_image(dir.join("missing"), "/log").expect_err("there is none");
    assert_eq!(error.errno(), libc::ENOENT, "{error}");
    let error = writing().open_in_image(&*dir, "/log").expect_err("a directory");
    assert_eq!(error.operation(), Operation::Open, "{error}");
    let error = writing().open_in_image("/dev/null", "/log").expect_err("a device of characters");
    assert_eq!(error.operation(), Operation::Open, "{error}");
    Ok(())
}

/// A volume whose image is shorter than its superblock says.
fn an_image_cut_short_is_refused(dir: TestDir, shape: Shape) -> TrialResult {
    let bed = Bed::new(&dir, shape)?;
    fs::File::options().write(true).open(bed.volume.path())?.set_len(VOLUME_BYTES / 2)?;
    let refused = refusal(writing().open_in_image(bed.volume.path(), "/log"));
    assert!(matches!(refused, ErrorKind::Corrupt(_) | ErrorKind::Unsupported(_)), "{refused:?}");
    Ok(())
}

/// Block sizes below the sector size that direct I/O needs.
fn blocks_below_the_sector_are_refused_or_work(dir: TestDir) -> TrialResult {
    let host = dioxide_testkit::volume::Volume::with_large_sectors(
        Fs::Ext4,
        dioxide_testkit::volume::SIZE_MIN,
    )?;
    let shape = Shape::new(ExtKind::Ext3, 1024, 256, VOLUME_BYTES);
    let tree = dir.join("tree");
    fs::create_dir(&tree)?;
    plant(&tree, 1024)?;
    let volume = ExtVolume::make(&host.path().join("volume.img"), &shape, &tree)?;
    let mut bed = Bed::around(&dir, shape, volume)?;
    match bed.open("/log") {
        Ok(mut file) => {
            file.append(&bytes(1, 5_000))?;
            bed.close(file)?;
        }
        Err(error) => assert!(matches!(error.kind(), ErrorKind::Unsupported(_)), "{error}"),
    }
    bed.verify()
}

// --- crashes -------------------------------------------------------------------------------------

/// A child: threads append records durably. The args are the volume, the file, and a number that
/// identifies its records.
fn append_durably(acks: &Acks, args: &[String]) {
    let first = args[2].parse::<u64>().expect("a number") << 16;
    let file = writing()
        .durability(Durability::EveryWrite)
        .open_in_image(&args[0], &args[1])
        .expect("it opens");
    together(6, |thread| {
        let len = |number| {
            Some(
                any_len(&mut Random::new(number << 8 | thread), Frame::HEADER as u64) % 20_000 + 16,
            )
        };
        append_frames_while(&file, first + thread, len, |result| {
            result.map(|laid| acks.send(laid.to_ack())).is_ok()
        });
    });
}

/// A child: each thread makes durable writes at its own offsets, over and between existing data.
fn write_durably(acks: &Acks, args: &[String]) {
    let seed = args[2].parse::<u64>().expect("a number");
    let file = writing()
        .durability(Durability::EveryWrite)
        .open_in_image(&args[0], &args[1])
        .expect("it opens");
    let block = file.alignment().offset;
    together(6, |thread| {
        let mut random = Random::new(seed << 8 | thread);
        for number in 1.. {
            let place = random.below(100) * 6 + thread;
            let data = placed_bytes(seed, place, number, block);
            if file.write_at(&Buffer::from(&data[..]), place * block).is_err() {
                return;
            }
            acks.send([place, number, seed]);
        }
    });
}

/// The data of `write_durably`: a stamp in each sector, since a disk that loses power keeps whole
/// sectors, not blocks.
fn placed_bytes(seed: u64, place: u64, number: u64, block: u64) -> Vec<u8> {
    let mut data = vec![0; block as usize];
    for (sector, part) in data.chunks_exact_mut(SECTOR).zip(0..) {
        Stamp { writer: seed << 32 | place, number, part }.fill(sector);
    }
    data
}

/// Describes the first lost write. Every sector of an acknowledged block must have its own stamp,
/// not older than the acknowledged one.
fn lost_write(content: &[u8], acks: &[[u64; 3]], block: u64) -> Option<String> {
    let mut last = std::collections::BTreeMap::new();
    for &[place, number, seed] in acks {
        let newest = last.entry(place).or_insert((seed, number));
        *newest = (*newest).max((seed, number));
    }
    let mut sectors = last.into_iter().flat_map(|(place, newest)| {
        (0..block / SECTOR as u64).map(move |part| (place, newest, part))
    });
    sectors.find_map(|(place, newest, part)| {
        let at = (place * block) as usize + part as usize * SECTOR;
        let stamp = content.get(at..at + SECTOR).and_then(Stamp::of);
        let kept = stamp.is_some_and(|stamp| {
            let written = (stamp.writer >> 32, stamp.number);
            (stamp.writer & 0xFFFF_FFFF, stamp.part) == (place, part) && written >= newest
        });
        let said = || {
            format!("sector {part} of place {place} holds {stamp:?}; {newest:?} was acknowledged")
        };
        (!kept).then(said)
    })
}

fn start(scenario: &str, volume: &Path, name: &str, round: u64) -> std::io::Result<Child> {
    child::spawn(scenario, &[&*volume.to_string_lossy(), name, &round.to_string()])
}

fn refuses_until_it_is_checked(volume: &ExtVolume) -> TrialResult {
    let why = unsupported(volume.path(), true);
    assert!(why.contains("e2fsck"), "{why}");
    // As at boot: e2fsck without questions.
    volume.preen()?;
    Ok(())
}

fn a_killed_process_loses_no_record(dir: TestDir, shape: Shape) -> TrialResult {
    let bed = Bed::new(&dir, shape)?;
    let mut laid: Vec<Laid> = Vec::new();
    for round in 0..4 {
        let mut child = start("append_durably", bed.volume.path(), "/log", round)?;
        child.wait_for_acks(1 + (round as usize * 37) % 60, PATIENCE)?;
        laid.extend(child.kill_9()?.into_iter().map(Laid::from_ack));
        refuses_until_it_is_checked(&bed.volume)?;
        let content = bed.volume.dump("/log")?;
        assert_all_laid(&content, &laid);
        // The owner of the log truncates it behind the last record.
        let end = laid.iter().map(Laid::end).max().unwrap_or(0);
        let file = writing().open_in_image(bed.volume.path(), "/log")?;
        assert_eq!(file.len()?, content.len() as u64);
        file.set_len(end)?;
        file.close()?;
        bed.volume.check()?;
    }
    assert!(laid.len() > 60, "too little was acknowledged to test anything: {}", laid.len());
    others_are_untouched(bed, "/log")
}

fn a_killed_process_loses_no_positional_write(dir: TestDir, shape: Shape) -> TrialResult {
    let bed = Bed::new(&dir, shape)?;
    let mut acks = Vec::new();
    for round in 1..4 {
        let mut child = start("write_durably", bed.volume.path(), "/second", round)?;
        child.wait_for_acks(20 * round as usize, PATIENCE)?;
        acks.extend(child.kill_9()?);
        refuses_until_it_is_checked(&bed.volume)?;
        assert_eq!(lost_write(&bed.volume.dump("/second")?, &acks, shape.block), None);
    }
    assert!(acks.len() > 60, "too little was acknowledged to test anything: {}", acks.len());
    others_are_untouched(bed, "/second")
}

/// Checks that nothing else has changed, with any content of the file itself.
fn others_are_untouched(mut bed: Bed, name: &str) -> TrialResult {
    let found = bed.volume.dump(name)?;
    let mut model = Model::default();
    model.write(0, &found);
    bed.expect(name, model);
    bed.verify()
}

/// The image at any moment is a possible state after a machine crash that keeps all writes. e2fsck
/// repairs it without questions, and synced data is there.
fn an_image_copied_at_any_moment_can_be_repaired(dir: TestDir, shape: Shape) -> TrialResult {
    let mut bed = Bed::new(&dir, shape)?;
    let block = bed.block();
    let copy = dir.join("copy.img");
    let mut file = bed.open("/sparse")?;
    let mut other = bed.open("/log")?;
    for round in 0..8u64 {
        other.append(&bytes(round, 3_000 + round))?;
        match round % 4 {
            0 => file.write(bed.below(500) * block, &bytes(round, 30 * block)).map(drop)?,
            1 => file.append(&bytes(round, 20_000)).map(drop)?,
            2 => file.set_len(bed.below(3000 * block))?,
            _ => file.write(4000 * block, &bytes(round, block))?,
        }
        file.file.sync_data()?;
        other.file.sync_data()?;
        fs::copy(bed.volume.path(), &copy)?;
        let volume = ExtVolume::at(&copy, shape.kind);
        assert!(unsupported(&copy, true).contains("e2fsck"));
        volume.preen()?;
        let mut then = Bed::around(&dir, shape, volume)?;
        assert_eq!(then.planted().0.len(), bed.planted().0.len());
        for inside in [&file, &other] {
            let found = then.open_with(&OpenOptions::new(), &inside.name)?;
            // An open file may end with a whole block, padded with zeros.
            let mut wanted = inside.model.clone();
            if found.model.len() == wanted.len().next_multiple_of(block) {
                wanted.set_len(found.model.len());
            }
            assert!(found.model == wanted, "{}: {round}: not what was synced", inside.name);
            then.close(found)?;
        }
        then.verify()?;
    }
    bed.close(file)?;
    bed.close(other)?;
    bed.verify()
}

// --- power cuts ----------------------------------------------------------------------------------

/// A disk that fails on command, with an unmounted volume.
fn bed_on_a_fuse_disk(dir: &Path, shape: Shape) -> Result<(Bed, FuseDisk), Failed> {
    let mut disk = FuseDisk::start(shape.size)?;
    let tree = dir.join("tree");
    fs::create_dir(&tree)?;
    plant(&tree, shape.block)?;
    let volume = ExtVolume::format(disk.loop_device()?, &shape, &tree)?;
    fs::File::open(volume.path())?.sync_all()?;
    let bed = Bed::around(dir, shape, volume)?;
    fs::File::open(bed.volume.path())?.sync_all()?;
    Ok((bed, disk))
}

const KEEPS: [Keep; 4] =
    [Keep::Nothing, Keep::All, Keep::Random { seed: 7 }, Keep::Writes { seed: 8 }];

/// Makes a power cut under a child, which ends by itself when its operations fail. Returns its
/// acknowledgements.
fn cut_power_under(
    mut child: Child,
    disk: &FuseDisk,
    acks: usize,
    keep: Keep,
) -> Result<Vec<[u64; 3]>, Failed> {
    child.wait_for_acks(acks, PATIENCE)?;
    disk.power_cut(keep)?;
    let (_, acks) = child.wait(PATIENCE)?;
    disk.heal()?;
    // The kernel's cache of the device differs from its content.
    files::forget_cached(disk.attached().expect("it has a loop device"))?;
    Ok(acks)
}

fn power_cuts(shape: Shape, keeps: &[Keep]) -> Result<bool, Failed> {
    let dir = dioxide_testkit::lab::fresh_dir(Fs::Tmpfs, "power")?;
    let (bed, disk) = bed_on_a_fuse_disk(&dir, shape)?;
    let (mut laid, mut acks): (Vec<Laid>, Vec<[u64; 3]>) = Default::default();
    for (round, &keep) in keeps.iter().enumerate() {
        let (round, count) = (1 + round as u64, 15 + 11 * round);
        let child = start("append_durably", bed.volume.path(), "/log", round)?;
        laid.extend(cut_power_under(child, &disk, count, keep)?.into_iter().map(Laid::from_ack));
        bed.volume.repair()?;
        assert_all_laid(&bed.volume.dump("/log")?, &laid);
        let file = writing().open_in_image(bed.volume.path(), "/log")?;
        file.set_len(laid.iter().map(Laid::end).max().unwrap_or(0))?;
        file.close()?;
        let child = start("write_durably", bed.volume.path(), "/second", round)?;
        acks.extend(cut_power_under(child, &disk, count, keep)?);
        bed.volume.repair()?;
        assert_eq!(lost_write(&bed.volume.dump("/second")?, &acks, shape.block), None);
        assert_all_laid(&bed.volume.dump("/log")?, &laid);
    }
    assert!(laid.len() + acks.len() > 50, "too little was acknowledged to test anything");
    others_are_as_planted(bed, &["/log", "/second"])?;
    Ok(true)
}

fn others_are_as_planted(mut bed: Bed, names: &[&str]) -> TrialResult {
    for name in names {
        let mut model = Model::default();
        model.write(0, &bed.volume.dump(name)?);
        bed.expect(name, model);
    }
    bed.verify()
}

fn what_was_acknowledged_survives_power_cuts(shape: Shape) -> TrialResult {
    power_cuts(shape, &KEEPS).map(drop)
}

/// Control: these tests detect a loss.
fn a_disk_that_lies_loses_records() -> TrialResult {
    let shape = Shape::new(ExtKind::Ext3, 4096, 256, VOLUME_BYTES);
    let dir = dioxide_testkit::lab::fresh_dir(Fs::Tmpfs, "lies")?;
    let (bed, disk) = bed_on_a_fuse_disk(&dir, shape)?;
    disk.lie()?;
    let child = start("append_durably", bed.volume.path(), "/log", 1)?;
    let acks = cut_power_under(child, &disk, 20, Keep::Nothing)?;
    bed.volume.repair()?;
    let content = bed.volume.dump("/log")?;
    let lost = acks.into_iter().map(Laid::from_ack).filter(|laid| !laid.is_in(&content)).count();
    assert!(lost > 0, "nothing was lost");
    disk.lie()?;
    let child = start("write_durably", bed.volume.path(), "/second", 1)?;
    let acks = cut_power_under(child, &disk, 20, Keep::Nothing)?;
    bed.volume.repair()?;
    assert!(
        lost_write(&bed.volume.dump("/second")?, &acks, shape.block).is_some(),
        "nothing was lost"
    );
    Ok(())
}

/// In a power cut, a disk keeps some sectors of a block being overwritten, and not others.
fn an_overwrite_torn_by_a_power_cut_is_no_lost_write() -> TrialResult {
    const PLACES: u64 = 40;
    let shape = Shape::new(ExtKind::Ext3, 4096, 256, VOLUME_BYTES);
    let dir = dioxide_testkit::lab::fresh_dir(Fs::Tmpfs, "torn")?;
    let (bed, disk) = bed_on_a_fuse_disk(&dir, shape)?;
    let file = bed.open("/second")?.file;
    let write = |number| {
        (0..PLACES).try_for_each(|place| {
            file.write_at(
                &Buffer::from(&placed_bytes(1, place, number, shape.block)[..]),
                place * shape.block,
            )
        })
    };
    write(1)?;
    file.sync_data()?;
    write(2)?;
    disk.power_cut(Keep::Random { seed: 7 })?;
    drop(file);
    disk.heal()?;
    files::forget_cached(bed.volume.path())?;
    bed.volume.repair()?;
    let content = bed.volume.dump("/second")?;
    let numbers = |place: usize| {
        let block = &content[place * shape.block as usize..][..shape.block as usize];
        block
            .chunks_exact(SECTOR)
            .map(|sector| Stamp::of(sector).map(|stamp| stamp.number))
            .collect::<Vec<_>>()
    };
    let torn = (0..PLACES as usize)
        .filter(|&place| numbers(place).windows(2).any(|pair| pair[0] != pair[1]));
    assert!(torn.count() > 10, "too little was torn to test anything");
    let all = |number| (0..PLACES).map(|place| [place, number, 1]).collect::<Vec<_>>();
    assert_eq!(lost_write(&content, &all(1), shape.block), None);
    assert!(
        lost_write(&content, &all(2), shape.block).is_some(),
        "what was torn had not been acknowledged"
    );
    Ok(())
}

/// After a failed flush all waiters get an error, and all operations on the volume fail until a
/// reopen.
fn a_failed_flush_ends_the_volume() -> TrialResult {
    let shape = Shape::new(ExtKind::Ext2, 1024, 128, VOLUME_BYTES);
    let dir = dioxide_testkit::lab::fresh_dir(Fs::Tmpfs, "flush")?;
    let (bed, disk) = bed_on_a_fuse_disk(&dir, shape)?;
    let mut file = bed.open_with(writing().durability(Durability::EveryWrite), "/log")?;
    let other = bed.open("/second")?;
    file.append(&bytes(1, 10_000))?;
    let kept = file.model.clone();
    disk.fail_flush(1, libc::EIO)?;
    let error = file.append(&bytes(2, 10_000)).expect_err("the flush failed");
    assert_eq!(error.errno(), libc::EIO, "{error}");
    assert!(
        file.file.append(&bytes(3, 100)).is_err() && other.file.append(&bytes(3, 100)).is_err()
    );
    assert!(file.file.sync_data().is_err() && other.file.sync_data().is_err());
    drop((file, other));
    // The volume must not look cleanly closed.
    disk.heal()?;
    files::forget_cached(bed.volume.path())?;
    assert!(!bed.is_clean()?);
    bed.volume.repair()?;
    let found = bed.volume.dump("/log")?;
    assert!(
        found.len() as u64 >= kept.len()
            && found[..kept.len() as usize] == kept.read(0, kept.len())
    );
    Ok(())
}

// --- anything in any order -----------------------------------------------------------------------

/// The numbers of the sequences to try. `make test` tries few.
fn seeds() -> std::ops::Range<u64> {
    let number =
        |name: &str| std::env::var(name).ok().map(|value| value.parse().expect("a number"));
    match number("DIOXIDE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("DIOXIDE_SEEDS").unwrap_or(if is_of_all() { 16 } else { 4 }),
    }
}

/// Performs one operation on one of the files, often near the borders of the map.
fn any_operation(
    random: &mut Random,
    file: &mut Inside,
    block: u64,
    borders: &[u64; 3],
    number: u64,
) -> TrialResult {
    let place = |random: &mut Random| match random.below(4) {
        0 => borders[random.below(3) as usize] + random.below(8) - 4,
        1 => random.below(3_000),
        _ => random.below(60),
    };
    let result = match random.below(12) {
        0..=3 => {
            let len = any_len(random, 1);
            file.append(&bytes(number, len)).map(drop)
        }
        4..=6 => {
            let (at, blocks) = (place(random), 1 + random.below(30));
            file.write(at * block, &bytes(number, blocks * block))
        }
        7 => {
            let odd = [0, 0, 1, random.below(block)][random.below(4) as usize];
            let len = place(random) * block + odd;
            file.set_len(len)
        }
        8 => file.file.sync_data(),
        9 => return file.look(),
        _ => return file.read(place(random) * block + random.below(block), random.below(40_000)),
    };
    match result {
        Err(error) if matches!(error.kind(), ErrorKind::NoSpace(libc::ENOSPC)) => {
            assert_eq!(file.file.len()?, file.model.len(), "{error}, and another length");
            Ok(())
        }
        result => Ok(result?),
    }
}

fn any_sequence_is_right(dir: TestDir) -> TrialResult {
    for seed in seeds() {
        let mut random = Random::new(seed);
        let shapes = Shape::all((10 << 20) + random.below(6 << 20) / 4096 * 4096);
        let shape = shapes[random.below(shapes.len() as u64) as usize];
        let dir = dir.join(seed.to_string());
        fs::create_dir(&dir)?;
        let tried = try_sequence(&dir, shape, &mut random);
        tried.map_err(|error| {
            format!("DIOXIDE_SEED={seed}, {shape}: {}", error.message().unwrap_or_default())
        })?;
        fs::remove_dir_all(&dir)?;
    }
    Ok(())
}

fn try_sequence(dir: &Path, shape: Shape, random: &mut Random) -> TrialResult {
    let mut bed = Bed::new(dir, shape)?;
    let borders = bed.borders();
    for round in 0..3 {
        let names = &["/log", "/sparse", "/odd"][..1 + random.below(3) as usize];
        let durability = [Durability::OnSync, Durability::EveryWrite][random.below(2) as usize];
        let files = names.iter().map(|name| bed.open_with(writing().durability(durability), name));
        let mut files = files.collect::<Result<Vec<_>, _>>()?;
        for number in 0..random.below(30) {
            let chosen = random.below(files.len() as u64) as usize;
            any_operation(random, &mut files[chosen], shape.block, &borders, round << 16 | number)?;
        }
        for file in files {
            bed.close(file)?;
        }
        bed.check()?;
    }
    bed.verify()
}

// --- the list ------------------------------------------------------------------------------------

fn trials() -> Vec<Trial> {
    let tests: &[ShapeTest] = named![
        files_are_found_by_any_path,
        only_regular_files_are_opened,
        any_range_is_read,
        files_of_every_depth_are_read,
        what_is_opened_read_only_is_not_written,
        a_volume_that_may_not_be_written_can_be_read,
        blocks_are_overwritten_where_they_lie,
        parts_of_blocks_are_written,
        appends_of_many_threads_are_gapless,
        records_of_any_length_by_many_threads_are_side_by_side,
        lengths_are_exact_when_it_is_closed,
        a_write_of_4096_kib_behind_48_kib_is_at_most_two_requests,
        writes_beyond_the_end_leave_holes,
        holes_are_filled,
        every_border_of_the_map_is_crossed,
        files_are_truncated_and_extended_at_every_border,
        a_full_volume_is_an_error_and_nothing_is_lost,
        threads_fill_a_volume_together,
        reserved_blocks_are_for_root,
        scattered_free_space_is_used,
        files_beyond_2_and_4_gib_are_sparse_and_right,
        the_volume_learns_of_its_first_large_file,
        no_file_is_longer_than_its_map_can_tell,
        files_of_one_volume_are_open_together,
        handles_of_one_file_agree,
        threads_write_side_by_side,
        queues_work_inside,
        futures_work_inside,
        create_is_refused_and_truncate_is_not,
        volumes_without_any_feature_work,
        volumes_of_the_first_revision_work,
        extended_attributes_stay,
        files_that_the_kernel_wrote_in_pieces_are_gone_on_with,
        a_mounted_volume_is_refused,
        another_process_is_refused,
        a_forked_child_gets_ebadf,
        volumes_that_must_be_checked_are_refused,
        journals_that_must_be_recovered_are_refused,
        features_beyond_are_refused_by_name,
        every_unknown_feature_is_refused,
        inodes_with_flags_are_respected,
        a_refused_truncate_changed_what_a_file_reads,
        an_image_cut_short_is_refused,
        a_killed_process_loses_no_record,
        a_killed_process_loses_no_positional_write,
        an_image_copied_at_any_moment_can_be_repaired,
    ];
    let mut all = within_trials(tests);
    let here: &[LabTest] = named![
        what_is_no_volume_is_refused,
        blocks_below_the_sector_are_refused_or_work,
        any_sequence_is_right,
    ];
    all.extend(here.iter().map(|&(name, test)| lab_trial(name, Fs::Ext4, test)));
    all.push(disk_trial("volumes_on_devices_work", volumes_on_devices_work));
    let cut = [
        Shape::new(ExtKind::Ext2, 1024, 128, VOLUME_BYTES),
        Shape::new(ExtKind::Ext3, 4096, 256, VOLUME_BYTES),
    ];
    all.extend(cut.map(|shape| {
        let name = format!("{shape}::what_was_acknowledged_survives_power_cuts");
        fuse_trial(&name, move || what_was_acknowledged_survives_power_cuts(shape))
    }));
    all.push(fuse_trial("a_disk_that_lies_loses_records", a_disk_that_lies_loses_records));
    let name = "an_overwrite_torn_by_a_power_cut_is_no_lost_write";
    all.push(fuse_trial(name, an_overwrite_torn_by_a_power_cut_is_no_lost_write));
    all.push(fuse_trial("a_failed_flush_ends_the_volume", a_failed_flush_ends_the_volume));
    all
}

fn main() -> ExitCode {
    let scenarios: &[child::Scenario] = &[
        ("append_durably", append_durably),
        ("write_durably", write_durably),
        ("keep_open", keep_open),
        ("fill_as_another_user", fill_as_another_user),
    ];
    dioxide_testkit::run(scenarios, trials)
}
