//! The content of a striped volume of files, in all kinds of use.

use crate::common::*;
use crate::volume::{CHUNK, Paths};
use dioxide::{AsyncFile, Buffer, Durability, ErrorKind, Growth, OpenOptions, Queue};
use dioxide_testkit::child::{self, Acks};
use dioxide_testkit::lab::{self, Fs, TestDir};
use dioxide_testkit::trials::{
    Trial, TrialResult, lab_trial, lab_trials, lab_trials_where, volume_trial,
};
use dioxide_testkit::volume::{SIZE_MIN, Volume};
use std::cell::OnceCell;
use std::fs;

/// Numbers of members and chunk sizes.
const SHAPES: [(usize, u64); 6] =
    [(1, 4096), (2, 4096), (3, 8192), (4, 12_288), (5, 65_536), (2, MIB)];

/// A volume, and its expected content.
struct Checked {
    paths: Paths,
    file: Used,
    bytes: Vec<u8>,
    random: Random,
}

impl Checked {
    /// An offset or length near the border of a chunk or row, or anywhere.
    fn border(&mut self, step: u64) -> u64 {
        let (chunk, row) = (self.paths.chunk, self.paths.chunk * self.paths.members.len() as u64);
        let place = match self.random.below(3) {
            0 => self.random.below(9) * chunk,
            1 => self.random.below(4) * row,
            _ => self.random.below(3 * row),
        };
        (place + self.random.below(3) * step).saturating_sub(step) / step * step
    }

    fn bytes_of(&mut self, len: u64) -> Buffer {
        let first = self.random.below(250) as u8;
        let mut buffer = Buffer::zeroed(len as usize);
        buffer
            .iter_mut()
            .zip(0u64..)
            .for_each(|(byte, n)| *byte = first.wrapping_add((n / 509 * 7 + n) as u8) | 1);
        buffer
    }

    fn step(&mut self) -> TrialResult {
        match self.random.below(9) {
            0..3 => {
                let unit = if self.random.below(2) == 0 { 1 } else { BLOCK_BYTES };
                let len = (1 + self.border(unit)).min(5 << 18).next_multiple_of(unit);
                let data = self.bytes_of(len);
                assert_eq!(self.file.append(&data)?, self.bytes.len() as u64);
                self.bytes.extend_from_slice(&data);
            }
            3..5 => {
                let offset = self.border(BLOCK_BYTES) as usize;
                let len = BLOCK_BYTES * (1 + self.random.below(12));
                let data = self.bytes_of(len);
                self.file.write_at(&data, offset as u64)?;
                let end = offset + data.len();
                self.bytes.resize(self.bytes.len().max(end), 0);
                self.bytes[offset..end].copy_from_slice(&data);
            }
            5..7 => {
                let step = if self.random.below(2) == 0 { 1 } else { BLOCK_BYTES };
                let len = self.border(step);
                self.file.set_len(len)?;
                self.bytes.resize(len as usize, 0);
            }
            7 => self.file.sync_data()?,
            _ => {
                let start = self.border(1);
                let mut into = vec![0xEE; 1 + self.border(1) as usize];
                let read = self.file.read_at(&mut into, start)?;
                let expected = self.bytes.get(start as usize..).unwrap_or_default();
                let expected = &expected[..expected.len().min(into.len())];
                assert!(into[..read] == *expected, "{} bytes at {start}", into.len());
            }
        }
        assert_eq!(self.file.len()?, self.bytes.len() as u64);
        Ok(())
    }

    fn close(self) -> Result<Vec<u8>, dioxide_testkit::trials::Failed> {
        self.file.close()?;
        self.paths.assert_tidy(self.bytes.len() as u64)?;
        assert!(self.paths.content()? == self.bytes, "{:?}", self.paths);
        let reader = self.paths.open(&OpenOptions::new())?;
        let mut into = vec![0; self.bytes.len() + 1];
        assert_eq!(reader.read_at(&mut into, 0)?, self.bytes.len());
        assert!(into[..self.bytes.len()] == self.bytes);
        Ok(self.bytes)
    }
}

/// Appends of blocks and of any length, positional writes, holes, truncates and growth at all
/// borders. The volume is closed and reopened.
fn a_volume_holds_what_was_written(dir: TestDir, way: Way) -> TrialResult {
    for ((members, chunk), seed) in SHAPES.into_iter().zip(0u64..) {
        let growth = GROWTHS[(seed as usize + way as usize) % 3];
        let paths = Paths::in_dir(&dir, &format!("{way:?}-{members}-{chunk}"), members, chunk);
        let mut bytes = Vec::new();
        for life in 0..3 {
            let options = writable().growth(growth).growth_cap(MIB).clone();
            let file = way.to(paths.open(&options)?);
            assert_eq!(file.len()?, bytes.len() as u64);
            assert_eq!(file.recovery(), None);
            let mut checked = Checked {
                paths: paths.clone(),
                file,
                bytes,
                random: Random::new(seed << 8 | life),
            };
            for _ in 0..20 {
                checked.step()?;
            }
            bytes = checked.close()?;
        }
    }
    Ok(())
}

fn appends_of_many_threads_stand_side_by_side(dir: TestDir, way: Way) -> TrialResult {
    for growth in GROWTHS {
        for durability in [Durability::OnSync, Durability::EveryWrite] {
            let paths = Paths::in_dir(&dir, &format!("{growth:?}-{durability:?}"), 3, CHUNK);
            let options = writable().growth(growth).durability(durability).growth_cap(MIB).clone();
            let file = way.to(paths.open(&options)?);
            let placed = together(8, |writer| append_many(&file, writer, 24)).concat();
            let end = assert_gapless(&placed, 0);
            assert_eq!(file.len()?, end);
            file.close()?;
            paths.assert_tidy(end)?;
            assert_all_there(&paths.content()?, &placed);
        }
    }
    Ok(())
}

fn records_of_any_length_stand_side_by_side(dir: TestDir, way: Way) -> TrialResult {
    for tail in TAILS {
        let paths = Paths::in_dir(&dir, &format!("{tail:?}"), 3, 4096);
        let file = way.to(paths.open(writable().tail(tail).growth_cap(MIB))?);
        let laid = together(6, |writer| append_frames(&file, writer, 12)).concat();
        file.close()?;
        let content = paths.content()?;
        assert_laid_out(&content, 0, &laid, tail == dioxide::Tail::Pad);
        paths.assert_tidy(content.len() as u64)?;
    }
    Ok(())
}

/// Each length near each border, from both sides. Truncated data does not come back.
fn every_border_can_be_truncated_to_and_extended_from(dir: TestDir) -> TrialResult {
    for (growth, members) in [(Growth::Unwritten, 3), (Growth::None, 2)] {
        let paths = Paths::in_dir(&dir, &format!("{growth:?}"), members, CHUNK);
        let row = CHUNK * members as u64;
        let file = paths.open(writable().growth(growth).growth_cap(MIB))?;
        let full = 2 * row + CHUNK + 4096;
        let whole = record(1, 1, full / BLOCK_BYTES);
        let borders = (0..=full / CHUNK).map(|chunk| chunk * CHUNK);
        let lens = borders
            .flat_map(|border| [border.saturating_sub(1), border, border + 1, border + 4096]);
        for len in lens.filter(|len| *len <= full) {
            file.set_len(0)?;
            file.append(&whole)?;
            file.set_len(len)?;
            assert_eq!(file.len()?, len);
            let longer = len + CHUNK + 5;
            file.set_len(longer)?;
            let mut into = vec![7; full as usize + 2 * CHUNK as usize];
            assert_eq!(file.read_at(&mut into, 0)?, longer as usize);
            assert!(into[..len as usize] == whole[..len as usize], "cut to {len}");
            assert!(
                into[len as usize..longer as usize].iter().all(|byte| *byte == 0),
                "extended from {len}"
            );
            file.set_len(len)?;
        }
        file.close()?;
        for len in [row + 1, row, row - 1, CHUNK + 4096, CHUNK, 1, 0] {
            let file = paths.reopen()?;
            file.set_len(len)?;
            file.close()?;
            paths.assert_tidy(len)?;
            assert!(paths.content()? == whole[..len as usize], "cut to {len}");
        }
    }
    Ok(())
}

fn two_handles_are_one_file(dir: TestDir) -> TrialResult {
    let paths = Paths::in_dir(&dir, "log", 3, CHUNK);
    let first = paths.open(&writable())?;
    let second = paths.open(writable().durability(Durability::EveryWrite))?;
    let placed: Vec<_> =
        (0..40).flat_map(|n| [append(&first, 1, n, 1), append(&second, 2, n, 3)]).collect();
    let placed: Vec<_> = placed.into_iter().collect::<Result<_, _>>()?;
    let end = assert_gapless(&placed, 0);
    let other = Paths { chunk: 2 * CHUNK, ..paths.clone() };
    assert!(matches!(refusal(other.reopen()), ErrorKind::Members(_)));
    let mut swapped = paths.clone();
    swapped.members.swap(1, 2);
    assert!(matches!(refusal(swapped.reopen()), ErrorKind::Members(_)));
    let fewer = Paths { members: paths.members[..2].to_vec(), ..paths.clone() };
    assert!(matches!(refusal(fewer.reopen()), ErrorKind::Members(_)));
    first.close()?;
    assert_eq!(second.len()?, end);
    append(&second, 3, 0, 1)?;
    second.close()?;
    paths.assert_tidy(end + BLOCK_BYTES)?;
    assert_all_there(&paths.content()?, &placed);
    // The volume can be opened again.
    let placed = append(&paths.reopen()?, 4, 0, 1)?;
    assert_eq!(placed.offset, end + BLOCK_BYTES);
    Ok(())
}

fn a_handle_that_is_dropped_puts_the_volume_away(dir: TestDir) -> TrialResult {
    let paths = Paths::in_dir(&dir, "log", 3, CHUNK);
    let file = paths.open(&writable())?;
    let placed = append_many(&file, 1, 7);
    drop(file);
    let end = assert_gapless(&placed, 0);
    paths.assert_tidy(end)?;
    assert_eq!(paths.reopen()?.recovery(), None);
    Ok(())
}

/// Readers of this process see the end that its writers see.
fn a_reader_beside_a_writer_sees_what_is_written(dir: TestDir) -> TrialResult {
    let paths = Paths::in_dir(&dir, "log", 3, CHUNK);
    let file = paths.open(&writable())?;
    let reader = paths.open(&OpenOptions::new())?;
    let mut end = 0;
    for number in 0..30 {
        let placed = append(&file, 1, number, 1 + number % 5)?;
        end = placed.end();
        assert_eq!(reader.len()?, end);
        let mut into = vec![0; (end + 100) as usize];
        assert_eq!(reader.read_at(&mut into, 0)?, end as usize);
        assert!(placed.is_in(&into[..end as usize]));
    }
    assert!(matches!(refusal(reader.append(b"x")), ErrorKind::ReadOnly));
    file.set_len(CHUNK + 1)?;
    assert_eq!(reader.len()?, CHUNK + 1);
    file.close()?;
    assert_eq!(reader.len()?, CHUNK + 1);
    assert!(end > CHUNK + 1);
    Ok(())
}

/// A child: appends durably until it is killed.
pub fn append_for_ever(acks: &Acks, args: &[String]) {
    let paths = Paths::of_args(args);
    let file = paths
        .open(writable().durability(Durability::EveryWrite).growth_cap(MIB))
        .expect("it opens");
    for number in 0.. {
        acks.send(append(&file, 1, number, 1 + number % 3).expect("there is space").to_ack());
    }
}

/// A reader in another process sees all acknowledged records, and no grown space.
fn a_reader_beside_another_process_sees_records_only(dir: TestDir) -> TrialResult {
    let paths = Paths::in_dir(&dir, "log", 3, CHUNK);
    let mut child = child::spawn("append_for_ever", &paths.to_args())?;
    child.wait_for_acks(1, PATIENCE)?;
    let reader = paths.open(&OpenOptions::new())?;
    for round in 1..=6 {
        let acknowledged = child.wait_for_acks(round * 12, PATIENCE)?.to_vec();
        let end =
            acknowledged.into_iter().map(|ack| Placed::from_ack(ack).end()).max().unwrap_or(0);
        let content = read_bytes(&reader, 0, end + 8 * CHUNK)?;
        assert!(content.len() as u64 >= end, "{} bytes seen, {end} acknowledged", content.len());
        let records = end_of_records(&content, 0);
        assert!(
            content.len() as u64 - records <= 3 * BLOCK_BYTES,
            "space that was only grown shows: {records}"
        );
    }
    assert!(matches!(refusal(paths.reopen()), ErrorKind::Locked));
    for member in &paths.members {
        assert!(matches!(refusal(OpenOptions::new().write(true).open(member)), ErrorKind::Locked));
    }
    child.kill_9()?;
    paths.reopen()?.close()?;
    Ok(())
}

fn members_may_lie_on_different_file_systems(_: TestDir) -> TrialResult {
    let label = "striped_over";
    let dirs = [Fs::Ext4, Fs::Xfs, Fs::BtrfsNocow].map(|fs| lab::fresh_dir(fs, label));
    let [first, second, third] = dirs;
    let (first, second, third) = (first?, second?, third?);
    for growth in GROWTHS {
        let paths = Paths::in_dirs(&[&first, &second, &third], &format!("{growth:?}"), 65_536);
        let file = paths
            .open(writable().growth(growth).durability(Durability::EveryWrite).growth_cap(MIB))?;
        assert_eq!(file.growth(), growth);
        let placed = together(8, |writer| append_many(&file, writer, 12)).concat();
        let end = assert_gapless(&placed, 0);
        file.close()?;
        paths.assert_tidy(end)?;
        assert_all_there(&paths.content()?, &placed);
    }
    // If one member cannot grow ahead, none does.
    let tmpfs = lab::fresh_dir(Fs::Tmpfs, label)?;
    let paths = Paths::in_dirs(&[&first, &tmpfs], "mixed", CHUNK);
    let file = paths.open(&writable())?;
    assert_eq!(file.growth(), Growth::None);
    let placed = append_many(&file, 1, 10);
    file.close()?;
    paths.assert_tidy(assert_gapless(&placed, 0))?;
    Ok(())
}

fn many_members_lie_on_one_file_system(dir: TestDir) -> TrialResult {
    let paths = Paths::in_dir(&dir, "log", 64, 4096);
    let file = paths.open(writable().durability(Durability::EveryWrite).growth_cap(MIB))?;
    let placed = together(4, |writer| append_many(&file, writer, 20)).concat();
    let end = assert_gapless(&placed, 0);
    file.close()?;
    paths.assert_tidy(end)?;
    assert_all_there(&paths.content()?, &placed);
    Ok(())
}

fn the_capacity_is_reached_in_one_step(dir: TestDir) -> TrialResult {
    let paths = Paths::in_dir(&dir, "log", 3, CHUNK);
    let capacity = 2 * MIB + CHUNK;
    // A busy btrfs reports no free space for a moment, and then a file grows as little as possible.
    let free = || rustix::fs::statvfs(&*dir).is_ok_and(|it| it.f_bavail * it.f_frsize > 64 * MIB);
    assert!(soon(free), "the file system has no space");
    let file = paths.open(writable().capacity(capacity))?;
    append(&file, 1, 0, 1)?;
    let parts: Vec<_> = (0..3).map(|member| paths.size_of(member, capacity)).collect();
    assert_eq!(paths.sizes()?, parts);
    for number in 1..capacity / BLOCK_BYTES {
        append(&file, 1, number, 1)?;
    }
    assert_eq!((file.stats().growths, paths.sizes()?), (1, parts));
    file.close()?;
    paths.assert_tidy(capacity)?;
    Ok(())
}

/// Regression: the hole was allocated, and at 8 TiB there was no space for it. A hole takes no
/// space, as in a plain file.
fn a_hole_in_a_volume_takes_no_space(dir: TestDir) -> TrialResult {
    use std::os::unix::fs::MetadataExt;
    const FAR: [u64; 3] = [256 * MIB, 8 << 40, (8 << 40) + 5 * CHUNK];
    let paths = Paths::in_dir(&dir, "log", 3, CHUNK);
    let file = paths.open(writable().growth_cap(MIB))?;
    append(&file, 1, 0, 1)?;
    for (number, far) in FAR.into_iter().enumerate() {
        file.write_at(&record(2, number as u64, 1), far)?;
        assert_eq!(file.len()?, far + BLOCK_BYTES);
    }
    let appended = append(&file, 3, 0, 1)?;
    assert_eq!(appended.offset, FAR[2] + BLOCK_BYTES);
    file.close()?;
    let end = appended.end();
    for (member, path) in paths.members.iter().enumerate() {
        let metadata = fs::metadata(path)?;
        assert!(
            metadata.blocks() * 512 < 4 * MIB,
            "member {member} has {} blocks",
            metadata.blocks()
        );
    }
    let file = paths.reopen()?;
    assert_eq!(file.len()?, end);
    let mut into = Buffer::zeroed(BLOCK);
    for (number, far) in FAR.into_iter().enumerate() {
        file.read_at(&mut into, far - BLOCK_BYTES)?;
        assert!(into.iter().all(|byte| *byte == 0), "before {far}");
        file.read_at(&mut into, far)?;
        assert_eq!(into[..], record(2, number as u64, 1)[..], "at {far}");
    }
    file.close()?;
    Ok(())
}

fn a_volume_that_is_recycled_keeps_its_space(dir: TestDir) -> TrialResult {
    let paths = Paths::in_dir(&dir, "log", 3, CHUNK);
    let file = paths.open(&writable())?;
    let old = append_many(&file, 1, 100);
    let end = assert_gapless(&old, 0);
    file.close()?;
    let file = paths.open(writable().durability(Durability::EveryWrite))?;
    file.recycle()?;
    assert_eq!(
        (file.len()?, paths.sizes()?),
        (0, (0..3).map(|member| paths.size_of(member, end)).collect())
    );
    let placed = append_many(&file, 2, 10);
    let end = assert_gapless(&placed, 0);
    assert_eq!(file.len()?, end);
    file.close()?;
    paths.assert_tidy(end)?;
    assert_all_there(&paths.content()?, &placed);
    Ok(())
}

fn the_alignment_is_that_of_the_strictest_member(_: TestDir) -> TrialResult {
    let (large, small) =
        (Volume::with_large_sectors(Fs::Ext4, SIZE_MIN)?, lab::fresh_dir(Fs::Xfs, "small")?);
    let paths = Paths::in_dirs(&[&small, large.path()], "log", CHUNK);
    let file = paths.open(&writable())?;
    let alignment = file.alignment();
    assert_eq!((alignment.offset, alignment.append), (4096, 4096));
    let placed = append_many(&file, 1, 9);
    file.append(&[0; 100])?;
    let end = file.len()?;
    file.close()?;
    paths.assert_tidy(end)?;
    assert_all_there(&paths.content()?, &placed);
    let alone = Paths::in_dirs(&[&small], "alone", CHUNK);
    assert_eq!(alone.open(&writable())?.alignment().offset, 512);
    Ok(())
}

/// One member has less space than the other. No append is torn, and the volume goes on once space
/// is free.
fn a_full_member_fails_appends_cleanly(growth: Growth) -> TrialResult {
    let (small, large) = (Volume::new(Fs::Ext4, SIZE_MIN)?, lab::fresh_dir(Fs::Xfs, "large")?);
    let paths = Paths::in_dirs(&[&large, small.path()], "log", 65_536);
    let file = paths.open(writable().growth(growth))?;
    let filler = small.path().join("filler");
    let free = rustix::fs::statvfs(small.path())?;
    let taken = fs::File::create(&filler)?;
    let leave = 9 * MIB;
    rustix::fs::fallocate(
        &taken,
        rustix::fs::FallocateFlags::empty(),
        0,
        (free.f_bavail * free.f_frsize).saturating_sub(leave),
    )?;
    let failed = |mut number: u64, writer: u64| {
        let mut placed = Vec::new();
        loop {
            match append(&file, writer, number, 16) {
                Ok(record) => placed.push(record),
                Err(error) => break (placed, error),
            }
            number += 1;
        }
    };
    let results = together(3, |writer| failed(0, writer));
    for (_, error) in &results {
        assert!(matches!(error.kind(), ErrorKind::NoSpace(libc::ENOSPC)), "{error}");
    }
    let mut placed: Vec<_> = results.into_iter().flat_map(|(placed, _)| placed).collect();
    let end = assert_gapless(&placed, 0);
    assert!(end > 4 * MIB, "only {end} bytes fitted");
    assert_eq!(file.len()?, end, "a failed append changed the length");
    drop(taken);
    fs::remove_file(&filler)?;
    // ext4 frees the blocks of a file some time after a commit.
    let next = OnceCell::new();
    let appends = || {
        if next.get().is_none() {
            match append(&file, 9, 0, 100) {
                Ok(record) => next.set(record).expect("it is none"),
                Err(_) => small.sync().expect("it is mounted"),
            }
        }
        next.get().is_some()
    };
    assert!(soon(appends), "there is no space");
    let next = next.into_inner().expect("it was appended");
    assert_eq!(next.offset, end, "a failed append left a gap");
    placed.push(next);
    file.close()?;
    paths.assert_tidy(next.end())?;
    assert_all_there(&paths.content()?, &placed);
    Ok(())
}

fn queues_and_calls_and_futures_mix(dir: TestDir) -> TrialResult {
    let paths = Paths::in_dir(&dir, "log", 3, CHUNK);
    let file = paths.open(writable().durability(Durability::EveryWrite))?;
    let queue = Queue::new(32);
    let mut placed = Vec::new();
    for round in 0..10 {
        for tag in 0..16 {
            let (number, blocks) = (round * 16 + tag, 1 + tag % 4);
            queue.append(&file, record(1, number, blocks), number).expect("there is room");
        }
        placed.push(append(&file, 2, round, 3)?);
        while queue.outstanding() > 0 {
            for done in queue.reap(1) {
                let blocks =
                    done.buffer.as_ref().map_or(0, |buffer| buffer.len() as u64) / BLOCK_BYTES;
                placed.push(Placed { offset: done.result?, writer: 1, number: done.tag, blocks });
            }
        }
    }
    let end = assert_gapless(&placed, 0);
    // A read across all borders.
    queue.read_at(&file, Buffer::zeroed(end as usize), 0, 1).expect("there is room");
    let done = queue.reap(1).next().expect("it was waited for");
    assert_eq!(done.result?, end);
    assert_all_there(&done.buffer.expect("it comes back"), &placed);
    let future = AsyncFile::from(file.try_clone()?);
    let (appended, _) = smol::block_on(future.append(record(3, 0, 5).to_vec()));
    placed.push(Placed { offset: appended?, writer: 3, number: 0, blocks: 5 });
    let end = assert_gapless(&placed, 0);
    drop((future, queue));
    file.close()?;
    paths.assert_tidy(end)?;
    assert_all_there(&paths.content()?, &placed);
    Ok(())
}

fn is_tmpfs_or_ext4(fs: Fs) -> lab::Applies {
    if matches!(fs, Fs::Ext4 | Fs::Tmpfs) { Ok(()) } else { Err("it is about the library alone") }
}

pub fn trials() -> Vec<Trial> {
    let in_ways: &[LabTestInAWay] = named![
        a_volume_holds_what_was_written,
        appends_of_many_threads_stand_side_by_side,
        records_of_any_length_stand_side_by_side,
    ];
    let everywhere: &[LabTest] = named![
        every_border_can_be_truncated_to_and_extended_from,
        two_handles_are_one_file,
        a_handle_that_is_dropped_puts_the_volume_away,
        a_reader_beside_a_writer_sees_what_is_written,
        a_reader_beside_another_process_sees_records_only,
        queues_and_calls_and_futures_mix,
    ];
    let mut trials: Vec<_> = in_ways
        .iter()
        .flat_map(|&(name, test)| lab_trials_in(Way::ALL, name, |_| Ok(()), test))
        .collect();
    trials.extend(everywhere.iter().flat_map(|&(name, test)| lab_trials(name, test)));
    let by_itself: &[LabTest] = named![many_members_lie_on_one_file_system,];
    trials.extend(
        by_itself.iter().flat_map(|&(name, test)| lab_trials_where(name, is_tmpfs_or_ext4, test)),
    );
    let grows: &[LabTest] =
        named![the_capacity_is_reached_in_one_step, a_hole_in_a_volume_takes_no_space];
    trials.extend(
        grows.iter().flat_map(|&(name, test)| lab_trials_where(name, Fs::grows_unwritten, test)),
    );
    let recycles: &[LabTest] = named![a_volume_that_is_recycled_keeps_its_space];
    // Recycled space is overwritten in place, as zeroed space is.
    let writes_over = |fs: Fs| fs.grows_unwritten().and(fs.grows_zeroed());
    trials.extend(
        recycles.iter().flat_map(|&(name, test)| lab_trials_where(name, writes_over, test)),
    );
    for growth in GROWTHS {
        let name = format!("a_full_member_fails_appends_cleanly_{growth:?}").to_lowercase();
        trials.push(volume_trial(&name, move || a_full_member_fails_appends_cleanly(growth)));
    }
    for (name, test) in [
        (
            "members_may_lie_on_different_file_systems",
            members_may_lie_on_different_file_systems as fn(_) -> _,
        ),
        (
            "the_alignment_is_that_of_the_strictest_member",
            the_alignment_is_that_of_the_strictest_member,
        ),
    ] {
        trials.push(lab_trial(name, Fs::Ext4, test));
    }
    trials
}
