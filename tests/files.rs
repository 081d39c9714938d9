//! Basics on real file systems: appends, positional writes, lengths, holes, growth, handles.

mod common;
#[path = "files/shared_blocks.rs"]
mod shared_blocks;

use common::*;
use dioxide::{Buffer, Durability, ErrorKind, File, Growth, OpenOptions, Tail};
use dioxide_testkit::child::{self, Acks};
use dioxide_testkit::dio_trace::{Dio, DioTrace};
use dioxide_testkit::files;
use dioxide_testkit::lab::{Applies, Fs, TestDir};
use dioxide_testkit::trials::{
    Failed, Trial, TrialResult, lab_trials, lab_trials_where, volume_trials_where,
};
use dioxide_testkit::volume::{SIZE_MIN, Volume};
use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread::sleep;
use std::time::{Duration, Instant};

// --- appends -------------------------------------------------------------------------------------

fn appends_are_disjoint_gapless_and_kept(dir: TestDir, way: Way) -> TrialResult {
    let path = dir.join("log");
    let file = way.open(&writable(), &path)?;
    let by_writer = together(16, |writer| append_many(&file, writer, 500));
    for records in &by_writer {
        assert!(records.is_sorted(), "the appends of one thread are in its order");
    }
    let placed = by_writer.concat();
    let end = assert_gapless(&placed, 0);
    assert_eq!(file.len()?, end);
    let stats = file.stats();
    assert_eq!((stats.appends, stats.append_bytes, stats.request_bytes), (8000, end, end));
    assert!(stats.requests < 8000, "nothing was merged: {stats:?}");
    file.close()?;
    assert_tidy(&path, end)?;
    assert_all_there(&fs::read(&path)?, &placed);
    Ok(())
}

fn grown_space_is_never_seen(dir: TestDir, way: Way) -> TrialResult {
    let path = dir.join("log");
    let file = way.open(OpenOptions::new().write(true).create(true).growth_cap(2 * MIB), &path)?;
    let done = AtomicBool::new(false);
    let grown_seen = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| watch_until(&file, &path, &done));
        let over = Over(&done);
        together(8, |writer| append_many(&file, writer, 400));
        drop(over);
        watcher.join().expect("the watcher saw nothing wrong")
    });
    let grows = growth_on(dir.fs(), Growth::Unwritten) != Growth::None;
    assert!(grown_seen || !grows, "the file never grew ahead: nothing was tested");
    file.close()?;
    Ok(())
}

/// Checks the length and the last blocks below it repeatedly. Returns whether the file was ever
/// larger than its length.
fn watch_until(file: &Used, path: &Path, done: &AtomicBool) -> bool {
    let mut last = 0;
    let mut grown_seen = false;
    loop {
        // The last check comes after all writers.
        let is_last = done.load(SeqCst);
        let len = file.len().expect("a handle of the writer knows");
        assert!(len >= last, "the length went from {last} to {len}");
        last = len;
        assert_only_records_at(file, len.saturating_sub(8 * BLOCK_BYTES), len);
        grown_seen |= fs::metadata(path).expect("it exists").len() > file.len().expect("as above");
        if is_last {
            return grown_seen;
        }
    }
}

/// Reads from `offset` on, also beyond `len`, and checks that it finds only records.
fn assert_only_records_at(file: &impl Transfers, offset: u64, len: u64) {
    let mut into = Buffer::zeroed(64 * BLOCK);
    let read = file.read_at(&mut into, offset).expect("reading works");
    assert!(
        offset + read as u64 >= len.min(offset + into.len() as u64),
        "read {read} at {offset} of {len}"
    );
    for (block, n) in into[..read].chunks(BLOCK).zip(0..) {
        assert!(
            Stamp::of(block).is_some(),
            "no record at {} (length {len})",
            offset + n * BLOCK_BYTES
        );
    }
}

fn an_empty_append_returns_the_length(dir: TestDir, way: Way) -> TrialResult {
    let file = way.open(&writable(), dir.join("log"))?;
    append(&file, 1, 1, 2)?;
    assert_eq!(file.append(&[])?, 2 * BLOCK_BYTES);
    assert_eq!(file.len()?, 2 * BLOCK_BYTES);
    file.close()?;
    Ok(())
}

fn records_larger_than_a_request_are_whole(dir: TestDir, way: Way) -> TrialResult {
    let path = dir.join("log");
    let file = way.open(&writable(), &path)?;
    let placed =
        together(3, |writer| append(&file, writer, 0, 5 * MIB / BLOCK_BYTES + writer).unwrap());
    let end = assert_gapless(&placed, 0);
    file.close()?;
    assert_tidy(&path, end)?;
    assert_all_there(&fs::read(&path)?, &placed);
    Ok(())
}

// --- records of any length -----------------------------------------------------------------------

fn growths_and_tails() -> impl Iterator<Item = (Growth, Tail)> {
    GROWTHS.into_iter().flat_map(|growth| TAILS.map(move |tail| (growth, tail)))
}

/// Two rounds: the second one begins at the partial last block of the first one, with the other
/// kind of tail.
fn records_of_any_length_stand_where_they_were_said_to(dir: TestDir, way: Way) -> TrialResult {
    for (growth, tail) in GROWTHS.into_iter().zip(TAILS.into_iter().cycle()) {
        let path = dir.join(format!("{growth:?}"));
        let mut laid = Vec::new();
        let mut gaps = 0;
        for (round, tail) in [tail, other(tail)].into_iter().enumerate() {
            let start = laid.iter().map(Laid::end).max().unwrap_or(0);
            let file = way.open(writable().growth(growth).tail(tail).growth_cap(MIB), &path)?;
            assert_eq!(file.len()?, start, "the length of a closed file is exact");
            let watched = append_and_watch(&file, round as u64 * 16);
            let stats = file.stats();
            let appended = watched.laid.iter().map(|laid| laid.frame.len).sum::<u64>();
            assert_eq!((stats.appends, stats.append_bytes), (watched.laid.len() as u64, appended));
            let takes_time = dir.fs().has_disk().is_ok();
            assert!(!takes_time || stats.requests < stats.appends, "nothing was merged: {stats:?}");
            assert!(tail == Tail::Rewrite || stats.tail_rewrites == 0, "{stats:?}");
            laid.extend(watched.laid);
            let end = laid.iter().map(Laid::end).max().unwrap_or(0);
            assert_eq!(file.len()?, end);
            file.close()?;
            assert_tidy(&path, end)?;
            let content = fs::read(&path)?;
            let in_round: Vec<_> =
                laid.iter().filter(|laid| laid.offset >= start).copied().collect();
            gaps += assert_laid_out(&content, start, &in_round, tail == Tail::Pad);
            let ends: HashSet<_> = in_round.iter().map(Laid::end).chain([start]).collect();
            for seen in watched.seen {
                assert!(ends.contains(&seen.len), "no record ends at the length {}", seen.len);
                let there =
                    content.get(seen.offset as usize..seen.offset as usize + seen.bytes.len());
                assert!(there == Some(&seen.bytes), "something else was read at {}", seen.offset);
            }
        }
        assert_all_laid(&fs::read(&path)?, &laid);
        assert!(gaps > 0, "nothing was padded");
    }
    Ok(())
}

fn other(tail: Tail) -> Tail {
    if tail == Tail::Pad { Tail::Rewrite } else { Tail::Pad }
}

/// Appended records, and the observations of a concurrent reader.
struct Watched {
    laid: Vec<Laid>,
    seen: Vec<SeenTail>,
}

/// A length, and the bytes around it at that time.
struct SeenTail {
    len: u64,
    offset: u64,
    bytes: Vec<u8>,
}

/// Appends from 16 threads, half of them always by calls, and watches the end of the file.
fn append_and_watch(file: &Used, first_writer: u64) -> Watched {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut seen: Vec<SeenTail> = Vec::new();
            while !done.load(SeqCst) {
                let len = file.len().expect("a handle of the writer knows");
                assert!(seen.last().is_none_or(|last| last.len <= len), "the length fell to {len}");
                let offset = len.saturating_sub(5000);
                let bytes = read_bytes(file, offset, 20_000).expect("it reads");
                assert!(offset + bytes.len() as u64 >= len, "{} at {offset} of {len}", bytes.len());
                seen.push(SeenTail { len, offset, bytes });
                sleep(Duration::from_micros(200));
            }
            seen
        });
        let over = Over(&done);
        let laid = together(16, |thread| match thread % 2 {
            0 => append_frames(file, first_writer + thread, 12),
            _ => append_frames(&**file, first_writer + thread, 12),
        });
        drop(over);
        for laid in &laid {
            assert!(
                laid.is_sorted_by_key(|laid| laid.offset),
                "the appends of one thread are in its order"
            );
        }
        Watched {
            laid: laid.concat(),
            seen: watcher.join().expect("the watcher saw nothing wrong"),
        }
    })
}

fn a_padded_append_behind_a_part_of_a_recycled_block_goes_into_it(
    dir: TestDir,
    way: Way,
) -> TrialResult {
    let path = dir.join("log");
    fs::write(&path, &record(1, 1, 64)[..])?;
    let file = way.open(writable().growth(Growth::Zeroed).tail(Tail::Pad), &path)?;
    let align = file.alignment().offset;
    file.recycle()?;
    let part = Buffer::from(&Frame { writer: 1, number: 1, len: align }.bytes()[..]);
    file.write_at(&part, 0)?;
    let laid = append_frame(&file, Frame { writer: 1, number: 2, len: 90 })?;
    assert_eq!(laid.offset, align);
    file.close()?;
    let first = Laid { offset: 0, frame: Frame { writer: 1, number: 1, len: align } };
    assert_laid_out(&fs::read(&path)?, 0, &[first, laid], false);
    Ok(())
}

/// Random calls on a file, each also made on a list of bytes.
fn a_file_is_what_a_list_of_bytes_is(dir: TestDir, way: Way) -> TrialResult {
    for (growth, seed) in GROWTHS.into_iter().zip(1..) {
        let path = dir.join(format!("{growth:?}"));
        let mut random = Random::new(seed);
        let mut twin = Twin {
            file: None,
            bytes: Vec::new(),
            tail: Tail::Rewrite,
            number: 0,
            has_old_content: false,
        };
        for step in 0..80 {
            twin.act(&mut random, &path, growth, way)
                .map_err(|why| format!("{growth:?}, step {step}: {why:?}"))?;
            let file = twin.file.as_ref().expect("it is open again");
            assert_eq!(file.len()?, twin.bytes.len() as u64, "{growth:?}, step {step}");
        }
        twin.close(&path)?;
    }
    Ok(())
}

/// A file and its expected content.
struct Twin {
    file: Option<Used>,
    bytes: Vec<u8>,
    tail: Tail,
    number: u64,
    /// After a recycle: the engine may refuse gaps.
    has_old_content: bool,
}

impl Twin {
    fn act(&mut self, random: &mut Random, path: &Path, growth: Growth, way: Way) -> TrialResult {
        if self.file.is_none() || random.below(20) == 0 {
            self.close(path)?;
            self.tail = TAILS[random.below(2) as usize];
            let durability = [Durability::OnSync, Durability::EveryWrite][random.below(2) as usize];
            let mut options = writable();
            options.growth(growth).tail(self.tail).durability(durability).growth_cap(MIB);
            self.file = Some(way.open(&options, path)?);
        }
        let file = self.file.as_ref().expect("just opened");
        let align = file.alignment().offset;
        let (len, bytes) = (self.bytes.len() as u64, &mut self.bytes);
        self.number += 1;
        let frame = |len| Frame { writer: 1, number: self.number, len };
        match random.below(16) {
            0 => {
                let cut = random.below(len + 1);
                file.set_len(cut)?;
                bytes.truncate(cut as usize);
            }
            1 => {
                let extended = len + random.below(3 * BLOCK_BYTES);
                file.set_len(extended)?;
                bytes.resize(extended as usize, 0);
            }
            // Below EOF, across it, and somewhat beyond it.
            2..5 => {
                let unit = if random.below(2) == 0 { align } else { 1 };
                let offset = random.below(len + 20 * align) / unit * unit;
                let written = (1 + random.below(20 * align)).next_multiple_of(unit);
                let skew = if unit == 1 { random.below(64) as usize } else { 0 };
                let mut memory = Buffer::zeroed(skew + written as usize);
                memory[skew..].copy_from_slice(&frame(written).bytes()[..]);
                let data = &memory[skew..];
                match file.write_at(data, offset) {
                    Err(error) if offset > len && self.has_old_content => {
                        assert!(matches!(error.kind(), ErrorKind::Unsupported(_)), "{error}");
                    }
                    written => {
                        written?;
                        let end = offset as usize + data.len();
                        bytes.resize(bytes.len().max(end), 0);
                        bytes[offset as usize..end].copy_from_slice(data);
                    }
                }
            }
            5 => file.sync_data()?,
            6 if bytes.len() > 100_000 => match file.recycle() {
                Ok(()) => {
                    self.has_old_content = true;
                    bytes.clear();
                }
                refused => assert!(matches!(refusal(refused), ErrorKind::Unsupported(_))),
            },
            6 | 7 => {
                let offset = random.below(len + 1);
                let part = 1 + random.below(3 * BLOCK_BYTES);
                let expected = &bytes[offset as usize..bytes.len().min((offset + part) as usize)];
                assert!(read_bytes(file, offset, part)? == expected, "another content at {offset}");
            }
            _ => {
                let next = len.next_multiple_of(BLOCK_BYTES);
                let laid = append_frame(file, frame(any_len(random, 1)))?;
                let begin = laid.offset;
                // In a recycled file, a padded append may continue a block after a positional
                // write.
                let is_right = match self.tail {
                    Tail::Rewrite => begin == len,
                    Tail::Pad => begin == next || begin == len && self.has_old_content,
                };
                assert!(is_right, "{:?} at {begin}, though the file ends at {len}", self.tail);
                bytes.resize(begin as usize, 0);
                bytes.extend(laid.frame.bytes());
            }
        }
        Ok(())
    }

    /// Checks that another program finds the same bytes.
    fn close(&mut self, path: &Path) -> TrialResult {
        let Some(file) = self.file.take() else { return Ok(()) };
        self.has_old_content = false;
        file.close()?;
        assert_tidy(path, self.bytes.len() as u64)?;
        let content = fs::read(path)?;
        let differs =
            content.iter().zip(&self.bytes).position(|(found, expected)| found != expected);
        assert_eq!(differs, None, "of {} bytes", content.len());
        Ok(())
    }
}

/// Threads append short records. Each then overwrites sectors inside its own records, mostly in the
/// last block.
fn writes_of_the_last_block_and_appends_exclude_each_other(dir: TestDir, way: Way) -> TrialResult {
    for durability in [Durability::OnSync, Durability::EveryWrite] {
        let path = dir.join(format!("{durability:?}"));
        let file = way.open(writable().durability(durability), &path)?;
        let align = file.alignment().offset;
        assert!(align < file.alignment().append, "there are no parts of blocks to write");
        let laid = together(8, |writer| {
            let append = |number| {
                let laid =
                    append_frame(&file, Frame { writer, number, len: 700 + number % 7 * 100 });
                let laid = laid.expect("there is space");
                let over = write_inside(&file, &laid, align);
                (laid, over)
            };
            (0..60).map(append).collect::<Vec<_>>()
        })
        .concat();
        file.close()?;
        let mut content = fs::read(&path)?;
        for (laid, over) in &laid {
            let overwritten = over_of(laid, align);
            for at in over {
                let sector = &mut content[*at as usize..(*at + align) as usize];
                assert!(
                    *sector == overwritten[..],
                    "what was written at {at}, inside {laid:?}, is lost"
                );
                let inside = (*at - laid.offset) as usize;
                sector.copy_from_slice(&laid.frame.bytes()[inside..inside + align as usize]);
            }
        }
        let laid: Vec<_> = laid.into_iter().map(|(laid, _)| laid).collect();
        assert_laid_out(&content, 0, &laid, false);
    }
    Ok(())
}

/// The data that overwrites a part of a record.
fn over_of(laid: &Laid, len: u64) -> Buffer {
    Buffer::from(&Frame { len, number: laid.frame.number + 1_000_000, ..laid.frame }.bytes()[..])
}

/// Overwrites all aligned parts of a record. Returns their offsets.
fn write_inside(file: &Used, laid: &Laid, align: u64) -> Vec<u64> {
    let first = laid.offset.next_multiple_of(align);
    let over: Vec<_> =
        (first..).step_by(align as usize).take_while(|at| at + align <= laid.end()).collect();
    let data = over_of(laid, align);
    over.iter().for_each(|at| file.write_at(&data, *at).expect("it overwrites"));
    over
}

/// While other threads overwrite a part of it without pause.
fn appends_into_a_block_that_is_always_written_go_on(dir: TestDir) -> TrialResult {
    for durability in [Durability::OnSync, Durability::EveryWrite] {
        let path = dir.join(format!("{durability:?}"));
        let file = writable().durability(durability).open(&path)?;
        let align = file.alignment().offset;
        append_frame(&file, Frame { writer: 1, number: 0, len: align + 1 })?;
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let over = Over(&done);
            for _ in 0..4 {
                scope.spawn(|| {
                    let data = Buffer::zeroed(align as usize);
                    while !done.load(SeqCst) {
                        file.write_at(&data, 0).expect("it overwrites");
                    }
                });
            }
            let appends = scope.spawn(|| {
                sleep(Duration::from_millis(50));
                (1..20).try_for_each(|number| {
                    append_frame(&file, Frame { writer: 1, number, len: 20 }).map(drop)
                })
            });
            let went_on = soon(|| appends.is_finished());
            drop(over);
            assert!(went_on, "19 appends wait until nobody overwrites");
            appends.join().expect("it does not panic")
        })?;
        file.close()?;
    }
    Ok(())
}

/// A write from the last block across EOF moves EOF; the next record follows it.
fn a_write_across_an_odd_end_is_kept_by_the_next_append(dir: TestDir, way: Way) -> TrialResult {
    for (growth, tail) in growths_and_tails() {
        let path = dir.join(format!("{growth:?}-{tail:?}"));
        let file = way.open(writable().growth(growth).tail(tail), &path)?;
        append_frame(&file, Frame { writer: 1, number: 1, len: 5000 })?;
        file.write_at(&record(2, 1, 1), BLOCK_BYTES)?;
        assert_eq!(file.len()?, 2 * BLOCK_BYTES);
        let last = append_frame(&file, Frame { writer: 1, number: 2, len: 30 })?;
        assert_eq!(last.offset, 2 * BLOCK_BYTES);
        file.close()?;
        let content = fs::read(&path)?;
        assert!(content[..BLOCK] == Frame { writer: 1, number: 1, len: 5000 }.bytes()[..BLOCK]);
        assert!(content[BLOCK..2 * BLOCK] == record(2, 1, 1)[..]);
        assert!(last.is_in(&content) && content.len() == 2 * BLOCK + 30);
    }
    Ok(())
}

// --- kernel traces -------------------------------------------------------------------------------

/// Threads append short and long records, by calls and by queues.
fn the_last_block_is_written_by_one_request_at_a_time_and_alone(
    dir: TestDir,
    way: Way,
) -> TrialResult {
    for (growth, tail) in growths_and_tails() {
        let path = dir.join(format!("{growth:?}-{tail:?}"));
        let durability =
            if tail == Tail::Pad { Durability::OnSync } else { Durability::EveryWrite };
        let mut options = writable();
        let file = way.open(options.growth(growth).tail(tail).durability(durability), &path)?;
        append_frame(&file, Frame { writer: 99, number: 0, len: 100 })?;
        wait_until_grown(&path)?;
        let trace = DioTrace::start(&path)?;
        together(8, |writer| append_frames(&file, writer, 40));
        let end = file.len()?;
        file.close()?;
        let dios: Vec<_> = trace.finish()?.into_iter().filter(|dio| dio.span.start < end).collect();
        let rewrites = assert_in_order(&dios, growth == Growth::Zeroed);
        assert_eq!(
            rewrites > 0,
            tail == Tail::Rewrite,
            "{growth:?} {tail:?}: {rewrites} of {}",
            dios.len()
        );
    }
    Ok(())
}

/// Checks that no two writes of one block are in flight together. Also checks that none continues
/// from a written block into unwritten space. Returns how many begin in a block that was written
/// before.
fn assert_in_order(dios: &[Dio], zeros_are_written: bool) -> usize {
    assert!(dios.len() > 5, "too little was traced: {}", dios.len());
    let mut rewrites = 0;
    for (n, dio) in dios.iter().enumerate() {
        let before = &dios[..n];
        let met = before.iter().find(|other| dio.meets(other));
        assert!(met.is_none(), "in flight together: {met:?} and {dio:?}");
        if before.iter().any(|other| other.span.contains(&dio.span.start)) {
            rewrites += 1;
            let crosses = dio.span.end > dio.span.start + BLOCK_BYTES;
            assert!(!crosses || zeros_are_written, "{dio:?} goes on into unwritten space");
        }
    }
    rewrites
}

/// Control: the trace shows concurrent writes of one block.
fn writes_in_flight_together_are_seen(dir: TestDir) -> TrialResult {
    use std::os::unix::fs::{FileExt, OpenOptionsExt};
    let path = dir.join("file");
    let data = Buffer::zeroed(64 * BLOCK);
    fs::write(&path, &data[..])?;
    let file = fs::OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(&path)?;
    file.sync_all()?;
    let trace = DioTrace::start(&path)?;
    together(4, |_| (0..100).for_each(|_| file.write_all_at(&data, 0).expect("it writes")));
    let dios = trace.finish()?;
    assert!(
        dios.iter().zip(&dios[1..]).any(|(dio, next)| dio.meets(next)),
        "none of {} met",
        dios.len()
    );
    Ok(())
}

/// Whole blocks of a record are written without a copy, if their memory is aligned.
fn aligned_pieces_of_long_records_are_not_copied(dir: TestDir, way: Way) -> TrialResult {
    let file = way.open(writable().growth_cap(8 * MIB), dir.join("log"))?;
    let memory = file.alignment().memory as usize;
    let mut copied = 0;
    let mut append = |data: &[u8]| -> Result<u64, Failed> {
        file.append(data)?;
        Ok(file.stats().copied_bytes - std::mem::replace(&mut copied, file.stats().copied_bytes))
    };
    let data = Buffer::zeroed(MIB as usize + BLOCK);
    assert_eq!(append(&data[..1 << 20])?, 0, "at the start of a block");
    assert_eq!(append(&data[..100])?, BLOCK_BYTES);
    // A queue gets a copy that begins at the start of a page.
    let skew = if way == Way::Calls { (100 + memory * 8 - BLOCK % memory) % memory } else { 0 };
    let is_aligned = (BLOCK - 100 + skew).is_multiple_of(memory);
    let expected = if is_aligned { 2 * BLOCK_BYTES } else { MIB + BLOCK_BYTES };
    assert!(is_aligned || way != Way::Calls, "blocking calls take memory from anywhere");
    assert_eq!(append(&data[skew..skew + (1 << 20)])?, expected, "from offset 100 of a block");
    file.close()?;
    Ok(())
}

/// Each thread has every eighth cell. Cells share blocks. One more thread appends.
fn writers_of_one_block_lose_no_bytes(dir: TestDir, way: Way) -> TrialResult {
    const WRITERS: u64 = 8;
    const CELL: u64 = 100;
    const CELLS: u64 = 40 * WRITERS;
    for (growth, durability) in
        GROWTHS.into_iter().zip([Durability::OnSync, Durability::EveryWrite].into_iter().cycle())
    {
        let path = dir.join(format!("{growth:?}"));
        let file = way.open(writable().growth(growth).durability(durability), &path)?;
        // The first writes extend the file. The others are below its end, or at it.
        file.append(&vec![0; (CELL * CELLS / 2) as usize])?;
        let written = together(WRITERS + 1, |writer| -> Result<_, dioxide::Error> {
            let mut random = Random::new(writer);
            let mut parts = Vec::new();
            for number in 0..120_u64 {
                let byte = (writer << 5 | number & 31) as u8;
                if writer == WRITERS {
                    let data = vec![byte; 1 + random.below(CELL) as usize];
                    let offset = file.append(&data)?;
                    parts.push((offset, data));
                    continue;
                }
                let cell = random.below(CELLS / WRITERS / 2) * WRITERS + writer;
                let start = random.below(CELL);
                let data = vec![byte; 1 + random.below(CELL - start) as usize];
                let offset = cell * CELL + start;
                file.write_at(&data, offset)?;
                parts.push((offset, data));
            }
            Ok(parts)
        });
        let mut expected = vec![0; file.len()? as usize];
        for (offset, data) in written.into_iter().collect::<Result<Vec<_>, _>>()?.concat() {
            expected[offset as usize..][..data.len()].copy_from_slice(&data);
        }
        let mut found = vec![0; expected.len() + 1];
        assert_eq!(file.read_at(&mut found, 0)?, expected.len());
        let lost = found.iter().zip(&expected).position(|(found, expected)| found != expected);
        assert_eq!(lost, None, "{growth:?}");
        file.close()?;
        assert_tidy(&path, expected.len() as u64)?;
        assert!(fs::read(&path)? == expected, "{growth:?}");
    }
    Ok(())
}

/// Each even block has one thread that writes it whole. Others write parts of it and of the block
/// behind.
fn whole_blocks_and_parts_of_them_exclude_each_other(dir: TestDir, way: Way) -> TrialResult {
    const ROUNDS: u8 = 200;
    let path = dir.join("file");
    let file = way.open(&writable(), &path)?;
    file.append(&Buffer::zeroed(8 * BLOCK))?;
    let all = together(8, |writer| -> Result<(), dioxide::Error> {
        let mut random = Random::new(writer);
        for round in 1..=ROUNDS {
            if writer < 4 {
                let whole = Buffer::from(&[round; BLOCK][..]);
                file.write_at(&whole, 2 * writer * BLOCK_BYTES)?;
            } else {
                let end = (2 * random.below(4) + 1) * BLOCK_BYTES;
                file.write_at(&[writer as u8; 200], end - 100)?;
            }
        }
        Ok(())
    });
    all.into_iter().collect::<Result<(), _>>()?;
    let mut found = Buffer::zeroed(8 * BLOCK);
    file.read_at(&mut found, 0)?;
    for (number, block) in found.chunks(BLOCK).enumerate() {
        let expected = if number % 2 == 0 { ROUNDS } else { 0 };
        assert!(block[100..BLOCK - 100].iter().all(|byte| *byte == expected), "block {number}");
    }
    file.close()?;
    Ok(())
}

// --- errors --------------------------------------------------------------------------------------

fn a_file_of_odd_length_is_appended_to(dir: TestDir, way: Way) -> TrialResult {
    for (growth, tail) in growths_and_tails() {
        let path = dir.join(format!("{growth:?}-{tail:?}"));
        let first = Laid { offset: 0, frame: Frame { writer: 9, number: 9, len: 100 } };
        fs::write(&path, first.frame.bytes())?;
        let file = way.open(writable().growth(growth).tail(tail), &path)?;
        assert_eq!(file.len()?, 100);
        let second = append_frame(&file, Frame { writer: 1, number: 1, len: 5000 })?;
        assert_eq!(
            second.offset,
            if tail == Tail::Pad { BLOCK_BYTES } else { 100 },
            "{growth:?} {tail:?}"
        );
        assert_eq!(read_bytes(&file, 0, 100)?, first.frame.bytes());
        assert_eq!(read_bytes(&file, second.offset, 9000)?, second.frame.bytes());
        file.close()?;
        assert_tidy(&path, second.end())?;
        assert_laid_out(&fs::read(&path)?, 0, &[first, second], tail == Tail::Pad);
    }
    Ok(())
}

/// Growth begins at the partial last block, and keeps its content.
fn a_file_of_odd_length_takes_positional_writes(dir: TestDir, way: Way) -> TrialResult {
    for growth in [Growth::Unwritten, Growth::Zeroed, Growth::None] {
        let path = dir.join(format!("{growth:?}"));
        fs::write(&path, [7; 100])?;
        let file = way.open(writable().growth(growth).growth_cap(MIB), &path)?;
        file.write_at(&record(1, 1, 1), 2 * BLOCK_BYTES)
            .map_err(|error| format!("{growth:?}: {error}"))?;
        assert_eq!(file.len()?, 3 * BLOCK_BYTES);
        file.close()?;
        assert_tidy(&path, 3 * BLOCK_BYTES)?;
        let content = fs::read(&path)?;
        assert_eq!(content[..100], [7; 100], "{growth:?}");
        assert!(content[100..2 * BLOCK].iter().all(|byte| *byte == 0), "{growth:?}: stale data");
        assert_eq!(end_of_records(&content, 2 * BLOCK_BYTES), 3 * BLOCK_BYTES, "{growth:?}");
    }
    Ok(())
}

fn an_odd_length_can_be_set(dir: TestDir, way: Way) -> TrialResult {
    let path = dir.join("log");
    let file = way.open(&writable(), &path)?;
    append(&file, 1, 0, 2)?;
    file.set_len(5000)?;
    assert_eq!(file.len()?, 5000);
    let mut into = Buffer::zeroed(2 * BLOCK);
    assert_eq!(file.read_at(&mut into, 0)?, 5000);
    assert!(into[..5000] == record(1, 0, 2)[..5000]);
    assert_eq!(append(&file, 1, 1, 1)?.offset, 5000);
    file.set_len(5000)?;
    file.close()?;
    assert_tidy(&path, 5000)?;
    assert!(fs::read(&path)? == record(1, 0, 2)[..5000]);
    Ok(())
}

fn opening_what_cannot_be_opened_says_why(dir: TestDir) -> TrialResult {
    let missing = dir.join("missing");
    assert_eq!(refusal(OpenOptions::new().write(true).open(&missing)), ErrorKind::Os(libc::ENOENT));
    let error = File::open(&missing).expect_err("missing");
    assert_eq!(error.kind(), &ErrorKind::Os(libc::ENOENT));
    assert_eq!(error.path(), missing);
    assert_eq!(refusal(OpenOptions::new().write(true).open(&*dir)), ErrorKind::Os(libc::EISDIR));
    assert!(matches!(
        refusal(File::open(&*dir)),
        ErrorKind::Unsupported(_) | ErrorKind::Os(libc::EISDIR)
    ));
    assert!(matches!(
        refusal(OpenOptions::new().write(true).open("/dev/null")),
        ErrorKind::Unsupported(_)
    ));
    let no_disk = refusal(File::open("/proc/version"));
    assert!(
        matches!(&no_disk, ErrorKind::Unsupported(why) if why.contains("O_DIRECT")),
        "{no_disk:?}"
    );
    Ok(())
}

fn create_and_truncate_do_what_they_say(dir: TestDir) -> TrialResult {
    let path = dir.join("log");
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
    append(&file, 1, 1, 3)?;
    file.close()?;
    assert_eq!(refusal(writable().create_new(true).open(&path)), ErrorKind::Os(libc::EEXIST));
    let file = writable().open(&path)?;
    assert_eq!(file.len()?, 3 * BLOCK_BYTES, "create alone cuts nothing");
    file.close()?;
    let file = File::create(&path)?;
    assert!(file.is_empty()?);
    assert_eq!(append(&file, 2, 1, 1)?.offset, 0);
    file.close()?;
    assert_tidy(&path, BLOCK_BYTES)?;
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(fs::metadata(&path)?.permissions().mode() & 0o777, 0o600);
    Ok(())
}

fn a_temporary_file_has_no_name(dir: TestDir) -> TrialResult {
    let file = OpenOptions::new().open_temporary(&*dir)?;
    let placed = append_many(&file, 1, 50);
    let end = assert_gapless(&placed, 0);
    assert_eq!(fs::read_dir(&*dir)?.count(), 0);
    assert_only_records_at(&file, 0, end.min(BLOCK_BYTES));
    file.close()?;
    Ok(())
}

// --- positional writes ---------------------------------------------------------------------------

fn a_write_far_past_the_end_leaves_a_hole(dir: TestDir, way: Way) -> TrialResult {
    let path = dir.join("log");
    let file = way.open(writable().growth_cap(8 * MIB), &path)?;
    let first = append(&file, 1, 1, 1)?;
    file.write_at(&record(2, 1, 2), 64 * MIB)?;
    let end = 64 * MIB + 2 * BLOCK_BYTES;
    assert_eq!(file.len()?, end);
    let mut into = Buffer::from(&[0xFF; BLOCK][..]);
    for offset in [BLOCK_BYTES, 4 * MIB, 40 * MIB, 64 * MIB - BLOCK_BYTES] {
        into.fill(0xFF);
        assert_eq!(file.read_at(&mut into, offset)?, BLOCK);
        assert!(into.iter().all(|byte| *byte == 0), "no zeros at {offset}");
    }
    let after = append(&file, 3, 1, 1)?;
    assert_eq!(after.offset, end, "appends go on behind it");
    file.close()?;
    assert_tidy(&path, after.end())?;
    let content = fs::read(&path)?;
    let far = Placed { offset: 64 * MIB, writer: 2, number: 1, blocks: 2 };
    assert_all_there(&content, &[first, far, after]);
    assert!(content[BLOCK..64 << 20].iter().all(|byte| *byte == 0));
    assert_hole(&path, 16 * MIB, 64 * MIB)
}

/// Checks that the range is not allocated. (Nearer to the first record, growth may have allocated
/// space.)
fn assert_hole(path: &Path, start: u64, end: u64) -> TrialResult {
    for extent in files::extents(path)? {
        assert!(
            extent.start + extent.len <= start || extent.start >= end,
            "not a hole: {extent:?}"
        );
    }
    Ok(())
}

fn a_write_past_the_largest_offset_is_an_error(dir: TestDir, way: Way) -> TrialResult {
    let file = way.open(&writable(), dir.join("log"))?;
    let far = i64::MAX as u64 / BLOCK_BYTES * BLOCK_BYTES;
    assert_eq!(refusal(file.write_at(&record(1, 1, 2), far)), ErrorKind::NoSpace(libc::EFBIG));
    assert_eq!(file.len()?, 0);
    assert_eq!(append(&file, 1, 2, 1)?.offset, 0, "and appends still work");
    file.close()?;
    Ok(())
}

fn a_write_past_what_the_file_system_can_hold_is_an_error(dir: TestDir, way: Way) -> TrialResult {
    let file = way.open(&writable(), dir.join("log"))?;
    let first = append(&file, 1, 0, 1)?;
    let kind = refusal(file.write_at(&record(1, 1, 1), 1 << 50));
    assert!(matches!(kind, ErrorKind::NoSpace(_)), "{kind:?}");
    assert_eq!(file.len()?, first.end());
    assert_eq!(append(&file, 1, 2, 1)?.offset, first.end(), "appends still work");
    file.close()?;
    Ok(())
}

fn overwrites_and_appends_go_side_by_side(dir: TestDir, way: Way) -> TrialResult {
    let path = dir.join("log");
    let file = way.open(&writable(), &path)?;
    let placed = together(8, |writer| {
        let mut records = append_many(&file, writer, 100);
        for record in &mut records {
            rewrite(&file, record);
        }
        records
    })
    .concat();
    let end = assert_gapless(&placed, 0);
    file.close()?;
    assert_tidy(&path, end)?;
    assert_all_there(&fs::read(&path)?, &placed);
    Ok(())
}

/// Overwrites a record with another one, and reads it back.
fn rewrite(file: &Used, placed: &mut Placed) {
    placed.number += 1_000_000;
    let data = record(placed.writer, placed.number, placed.blocks);
    file.write_at(&data, placed.offset).expect("it overwrites");
    let mut into = Buffer::zeroed(data.len());
    assert_eq!(file.read_at(&mut into, placed.offset).expect("it reads"), data.len());
    assert!(into[..] == data[..], "what was just written is not read");
}

/// Half of the threads append, half write some distance beyond EOF.
fn extending_writes_of_both_kinds_mix(dir: TestDir, way: Way) -> TrialResult {
    for durability in [Durability::OnSync, Durability::EveryWrite] {
        let path = dir.join(format!("{durability:?}"));
        let file = way.open(writable().durability(durability), &path)?;
        let next = AtomicU64::new(1);
        let placed = together(8, |writer| {
            if writer % 2 == 0 {
                append_many(&file, writer, 60)
            } else {
                leap(&file, writer, 60, &next)
            }
        })
        .concat();
        let (appended, leapt): (Vec<_>, Vec<_>) =
            placed.iter().partition(|record| record.writer % 2 == 0);
        assert_disjoint(&appended);
        let end = file.len()?;
        assert_eq!(end, placed.iter().map(Placed::end).max().unwrap_or(0));
        file.close()?;
        assert_tidy(&path, end)?;
        let content = fs::read(&path)?;
        let not_overwritten = |record: &Placed| leapt.iter().all(|leap| !overlap(record, leap));
        let (kept, overwritten): (Vec<_>, Vec<_>) = appended.into_iter().partition(not_overwritten);
        assert!(overwritten.len() < kept.len(), "too little is left to be checked");
        assert_all_there(&content, &kept);
        assert_records_or_zeros(&content);
        for leap in &leapt {
            let one_of_them =
                leapt.iter().any(|other| other.offset == leap.offset && other.is_in(&content));
            assert!(one_of_them, "lost: {leap:?}");
        }
    }
    Ok(())
}

/// Writes records at increasing offsets, some beyond EOF.
fn leap(file: &Used, writer: u64, count: u64, next: &AtomicU64) -> Vec<Placed> {
    (0..count)
        .map(|number| {
            let end = file.len().expect("a handle of the writer knows");
            let offset = end + next.fetch_add(1, SeqCst) % 5 * 3 * BLOCK_BYTES + 64 * BLOCK_BYTES;
            file.write_at(&record(writer, number, 1), offset).expect("there is space");
            Placed { offset, writer, number, blocks: 1 }
        })
        .collect()
}

fn overlap(one: &Placed, other: &Placed) -> bool {
    one.offset < other.end() && other.offset < one.end()
}

fn assert_disjoint(placed: &[Placed]) {
    let mut sorted = placed.to_vec();
    sorted.sort_unstable();
    assert!(sorted.windows(2).all(|pair| pair[0].end() <= pair[1].offset), "overlapping records");
}

fn assert_records_or_zeros(content: &[u8]) {
    for (block, n) in content.chunks(BLOCK).zip(0u64..) {
        let right = Stamp::of(block).is_some() || block.iter().all(|byte| *byte == 0);
        assert!(right, "neither a record nor zeros at {}", n * BLOCK_BYTES);
    }
}

// --- set_len -------------------------------------------------------------------------------------

fn set_len_shows_zeros_where_something_was_truncated(dir: TestDir, way: Way) -> TrialResult {
    let path = dir.join("log");
    let file = way.open(&writable(), &path)?;
    append(&file, 1, 1, 8)?;
    file.set_len(2 * BLOCK_BYTES)?;
    assert_tidy(&path, 2 * BLOCK_BYTES)?;
    file.set_len(6 * BLOCK_BYTES)?;
    assert_eq!(file.len()?, 6 * BLOCK_BYTES);
    let mut into = Buffer::from(&[0xFF; 4 * BLOCK][..]);
    assert_eq!(file.read_at(&mut into, 2 * BLOCK_BYTES)?, 4 * BLOCK);
    assert!(into.iter().all(|byte| *byte == 0), "stale data");
    assert_eq!(append(&file, 1, 2, 1)?.offset, 6 * BLOCK_BYTES);
    file.close()?;
    assert_tidy(&path, 7 * BLOCK_BYTES)?;
    Ok(())
}

const CUTS: u64 = 30;

/// The shared state of the appenders to a truncated file.
struct Truncated {
    file: Used,
    /// How many truncates have returned.
    cuts: AtomicU64,
    /// How many appends have begun and returned after the last one.
    after_all: AtomicU64,
    done: AtomicBool,
}

fn appends_and_truncates_in_one_file_agree(dir: TestDir, way: Way) -> TrialResult {
    let path = dir.join("log");
    let shared = Truncated {
        file: way.open(OpenOptions::new().write(true).create(true).growth_cap(MIB), &path)?,
        cuts: AtomicU64::new(0),
        after_all: AtomicU64::new(0),
        done: AtomicBool::new(false),
    };
    let noted = std::thread::scope(|scope| {
        let appenders = scope
            .spawn(|| together(4, |writer| append_between_truncates(&shared, writer)).concat());
        for _ in 0..CUTS {
            sleep(Duration::from_millis(5));
            shared.file.set_len(0).expect("cutting works");
            shared.cuts.fetch_add(1, SeqCst);
        }
        let went_on = soon(|| shared.after_all.load(SeqCst) >= 20);
        shared.done.store(true, SeqCst);
        assert!(went_on, "nothing is appended after the last cut");
        appenders.join().expect("appending works")
    });
    let len = shared.file.len()?;
    shared.file.close()?;
    assert_tidy(&path, len)?;
    let content = fs::read(&path)?;
    let after_all: Vec<_> =
        noted.iter().filter(|(cuts, _)| *cuts == CUTS).map(|(_, placed)| *placed).collect();
    assert_all_there(&content, &after_all);
    assert_only_acknowledged(&content, &noted);
    Ok(())
}

/// Returns each record with the number of truncates that had returned before its append.
fn append_between_truncates(shared: &Truncated, writer: u64) -> Vec<(u64, Placed)> {
    let mut noted = Vec::new();
    for number in 0.. {
        if shared.done.load(SeqCst) {
            break;
        }
        let cuts = shared.cuts.load(SeqCst);
        noted.push((
            cuts,
            append(&shared.file, writer, number, 1 + number % 3).expect("appending works"),
        ));
        shared.after_all.fetch_add(u64::from(cuts == CUTS), SeqCst);
    }
    noted
}

/// Checks that the file consists of acknowledged records at their acknowledged offsets.
fn assert_only_acknowledged(content: &[u8], noted: &[(u64, Placed)]) {
    let offsets: HashMap<_, _> =
        noted.iter().map(|(_, p)| ((p.writer, p.number), p.offset)).collect();
    for (block, n) in content.chunks(BLOCK).zip(0u64..) {
        let at = n * BLOCK_BYTES;
        let stamp = Stamp::of(block).unwrap_or_else(|| panic!("no record at {at}"));
        let offset = offsets[&(stamp.writer, stamp.number)];
        assert_eq!(offset + stamp.part * BLOCK_BYTES, at, "{stamp:?} is misplaced");
    }
}

// --- handles -------------------------------------------------------------------------------------

fn handles_of_both_durabilities_share_a_file(dir: TestDir, way: Way) -> TrialResult {
    let path = dir.join("log");
    let lazy = way.open(&writable(), &path)?;
    let strict = way.open(writable().durability(Durability::EveryWrite), &path)?;
    assert_eq!(
        (lazy.durability(), strict.durability()),
        (Durability::OnSync, Durability::EveryWrite)
    );
    let placed = together(8, |writer| {
        let file = if writer % 2 == 0 { &lazy } else { &strict };
        append_many(file, writer, 100)
    })
    .concat();
    let end = assert_gapless(&placed, 0);
    lazy.sync_data()?;
    lazy.close()?;
    assert_eq!(strict.len()?, end);
    let last = append(&strict, 9, 0, 1)?;
    assert_eq!(last.offset, end);
    strict.close()?;
    assert_tidy(&path, last.end())?;
    assert_all_there(&fs::read(&path)?, &placed);
    Ok(())
}

fn a_reader_in_the_same_process_sees_the_exact_length(dir: TestDir, way: Way) -> TrialResult {
    let path = dir.join("log");
    let writer = way.open(&writable(), &path)?;
    append(&writer, 1, 0, 1)?;
    let reader = way.to(File::open(&path)?);
    for number in 1..50 {
        let end = append(&writer, 1, number, 1)?.end();
        assert_eq!(reader.len()?, end);
        assert_only_records_at(&reader, end - BLOCK_BYTES, end);
    }
    assert_eq!(refusal(reader.append(&record(1, 1, 1))), ErrorKind::ReadOnly);
    assert_eq!(refusal(reader.write_at(&record(1, 1, 1), 0)), ErrorKind::ReadOnly);
    assert_eq!(refusal(reader.set_len(0)), ErrorKind::ReadOnly);
    reader.close()?;
    writer.close()?;
    Ok(())
}

fn closing_the_last_writer_tidies_up_beside_a_reader(dir: TestDir, way: Way) -> TrialResult {
    let path = dir.join("log");
    let writer = way.open(&writable(), &path)?;
    let placed = append(&writer, 1, 0, 3)?;
    let reader = way.to(File::open(&path)?);
    writer.close()?;
    assert_tidy(&path, placed.end())?;
    assert_eq!(reader.len()?, placed.end());
    assert_only_records_at(&reader, 0, placed.end());
    Ok(())
}

/// While threads of this process append, truncate, close and reopen it.
fn a_reader_sees_only_records_while_the_file_is_closed_and_opened(
    dir: TestDir,
    way: Way,
) -> TrialResult {
    let path = dir.join("log");
    append(&way.open(&writable(), &path)?, 1, 0, 1)?;
    let reader = way.to(File::open(&path)?);
    let (rounds, done) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for number in (0..).take_while(|_| !done.load(SeqCst)) {
                let file = way.open(writable().growth_cap(MIB), &path).expect("it opens");
                append(&file, 2, number, 3).expect("there is space");
                if number % 4 == 3 {
                    file.set_len(BLOCK_BYTES).expect("it cuts");
                }
                file.close().expect("it closes");
                rounds.fetch_add(1, SeqCst);
            }
        });
        let _over = Over(&done);
        let begun = Instant::now();
        let mut into = Buffer::zeroed(64 * BLOCK);
        while is_too_early(begun, rounds.load(SeqCst)) && !writer.is_finished() {
            // The first record is acknowledged, and never truncated.
            let len = reader.len().expect("it is there");
            assert!(len >= BLOCK_BYTES, "{len} bytes: the first record is not seen");
            assert!(len <= 16 * BLOCK_BYTES, "grown space is seen");
            let read = reader.read_at(&mut into, 0).expect("a cut is no error");
            assert!(read >= BLOCK, "{read} bytes: the first record is not read");
            assert_eq!(end_of_records(&into[..read], 0), read as u64);
        }
    });
    assert!(rounds.load(SeqCst) > MET_MIN, "it was hardly ever closed and opened");
    Ok(())
}

fn creating_needs_the_right_to_write(dir: TestDir) -> TrialResult {
    let path = dir.join("log");
    fs::write(&path, &record(1, 1, 1)[..])?;
    let options: [&dyn Fn(&mut OpenOptions); 3] = [
        &|options| _ = options.create(true),
        &|options| _ = options.create_new(true),
        &|options| _ = options.truncate(true),
    ];
    for set in options {
        let mut options = OpenOptions::new();
        set(&mut options);
        assert!(matches!(refusal(options.open(&path)), ErrorKind::Unsupported(_)));
        assert!(matches!(refusal(options.open(dir.join("new"))), ErrorKind::Unsupported(_)));
    }
    assert_eq!(fs::metadata(&path)?.len(), BLOCK_BYTES);
    assert!(!dir.join("new").exists());
    Ok(())
}

fn a_reader_alone_needs_no_writer(dir: TestDir, way: Way) -> TrialResult {
    let path = dir.join("plain");
    fs::write(&path, &record(1, 1, 3)[..])?;
    let reader = way.to(File::open(&path)?);
    assert_eq!(reader.len()?, 3 * BLOCK_BYTES);
    assert_only_records_at(&reader, 0, 3 * BLOCK_BYTES);
    assert_eq!(refusal(reader.append(&record(1, 1, 1))), ErrorKind::ReadOnly);
    let twin = reader.try_clone()?;
    reader.close()?;
    assert_only_records_at(&twin, BLOCK_BYTES, 3 * BLOCK_BYTES);
    Ok(())
}

fn a_clone_is_one_more_handle(dir: TestDir, way: Way) -> TrialResult {
    let path = dir.join("log");
    let first = way.open(&writable(), &path)?;
    let second = first.try_clone()?;
    append(&first, 1, 0, 1)?;
    first.close()?;
    let last = append(&second, 1, 1, 1)?;
    assert_eq!(last.offset, BLOCK_BYTES);
    second.close()?;
    assert_tidy(&path, 2 * BLOCK_BYTES)?;
    Ok(())
}

fn a_closed_file_can_be_opened_and_appended_to(dir: TestDir, way: Way) -> TrialResult {
    let path = dir.join("log");
    let mut placed = Vec::new();
    for round in 0..5 {
        let file = way.open(&writable(), &path)?;
        assert_eq!(file.recovery(), None, "it was closed in order");
        placed.extend(append_many(&file, round, 20));
        file.close()?;
        assert_tidy(&path, assert_gapless(&placed, 0))?;
    }
    assert_all_there(&fs::read(&path)?, &placed);
    Ok(())
}

fn dropping_the_last_handle_tidies_up(dir: TestDir, way: Way) -> TrialResult {
    let path = dir.join("log");
    let file = way.open(&writable(), &path)?;
    let end = append(&file, 1, 0, 3)?.end();
    let grows = growth_on(dir.fs(), Growth::Unwritten) != Growth::None;
    assert_eq!(fs::metadata(&path)?.len() > end, grows, "whether it grew ahead");
    assert_eq!(files::marker(&path)?.is_some(), grows, "and said so");
    drop(file);
    assert_tidy(&path, end)?;
    Ok(())
}

// --- readers in other processes ------------------------------------------------------------------

/// A child that appends durably forever.
fn append_for_ever(acks: &Acks, args: &[String]) {
    let mut options = writable();
    let file = options
        .durability(Durability::EveryWrite)
        .growth_cap(MIB)
        .open(&args[0])
        .expect("it opens");
    for number in 0.. {
        acks.send(append(&file, 1, number, 1 + number % 3).expect("there is space").to_ack());
    }
}

/// A child that opens, appends and closes forever.
fn open_and_close_for_ever(acks: &Acks, args: &[String]) {
    for number in 0.. {
        let file = writable().growth_cap(MIB).open(&args[0]).expect("it opens");
        let placed = append(&file, 1, number, 1).expect("there is space");
        file.close().expect("it closes");
        acks.send(placed.to_ack());
    }
}

fn a_reader_in_another_process_follows_the_end(dir: TestDir) -> TrialResult {
    follow(dir.join("log"), "append_for_ever")
}

fn a_reader_never_sees_grown_space_while_the_file_is_opened_and_closed(
    dir: TestDir,
) -> TrialResult {
    follow(dir.join("log"), "open_and_close_for_ever")
}

/// Reads the appends of a child. Checks that all acknowledged data is visible, and nothing else.
fn follow(path: PathBuf, scenario: &str) -> TrialResult {
    let mut writer = child::spawn(scenario, &[&path.to_string_lossy()])?;
    let mut acknowledged = writer.wait_for_acks(1, PATIENCE)?.to_vec();
    let reader = File::open(&path)?;
    let mut known = 0;
    let start = Instant::now();
    // btrfs syncs files one after the other, and other tests sync there as well.
    let enough = |known| known > 20 * BLOCK_BYTES || start.elapsed() > PATIENCE;
    while start.elapsed() < Duration::from_millis(1500) || !enough(known) {
        if let Ok(acks) = writer.wait_for_acks(acknowledged.len() + 1, Duration::ZERO) {
            acknowledged = acks.to_vec();
        }
        let end = acknowledged.last().map_or(0, |ack| Placed::from_ack(*ack).end());
        let len = reader.len()?;
        assert!(len >= end, "{len}, though {end} was acknowledged");
        assert!(len >= known, "the length went from {known} to {len}");
        known = check_new_records(&reader, known, len)?;
    }
    assert!(known > 20 * BLOCK_BYTES, "too little was written to test anything: {known}");
    let acks = writer.kill_9()?;
    assert_all_there(
        &fs::read(&path)?,
        &acks.into_iter().map(Placed::from_ack).collect::<Vec<_>>(),
    );
    Ok(())
}

/// Checks that there are only records from `known` to `len`.
fn check_new_records(reader: &File, known: u64, len: u64) -> dioxide::Result<u64> {
    let mut into = Buffer::zeroed((len - known) as usize);
    let read = reader.read_at(&mut into, known)?;
    assert_eq!(read as u64, len - known, "less is read than the length says");
    let end = end_of_records(&into, 0) + known;
    assert_eq!(end, len, "space that was only grown is seen");
    Ok(len)
}

// --- growth --------------------------------------------------------------------------------------

fn a_file_grows_as_asked_or_not_at_all(dir: TestDir, way: Way) -> TrialResult {
    for growth in [Growth::Unwritten, Growth::Zeroed, Growth::None] {
        let path = dir.join(format!("{growth:?}"));
        let file = way.open(writable().growth(growth).growth_cap(MIB), &path)?;
        let expected = growth_on(dir.fs(), growth);
        assert_eq!(file.growth(), expected, "asked for {growth:?}");
        let placed = append_many(&file, 1, 50);
        assert_eq!(file.growth(), expected, "after growing, asked for {growth:?}");
        let end = assert_gapless(&placed, 0);
        assert_eq!(fs::metadata(&path)?.len() > end, expected != Growth::None, "{growth:?}");
        file.close()?;
        assert_tidy(&path, end)?;
        assert_all_there(&fs::read(&path)?, &placed);
    }
    Ok(())
}

fn without_growth_the_file_is_never_larger_than_its_length(dir: TestDir, way: Way) -> TrialResult {
    let path = dir.join("log");
    let file = way.open(writable().growth(Growth::None), &path)?;
    assert_eq!(file.growth(), Growth::None);
    let placed = together(4, |writer| append_many(&file, writer, 50)).concat();
    let end = assert_gapless(&placed, 0);
    assert_tidy(&path, end)?;
    assert_eq!(file.stats().growths, 0);
    file.close()?;
    assert_all_there(&fs::read(&path)?, &placed);
    Ok(())
}

/// Without barriers a sync proves nothing, so neither would a marker.
fn without_barriers_nothing_grows(fs: Fs) -> TrialResult {
    let volume = Volume::new(fs, SIZE_MIN)?;
    let status =
        Command::new("mount").args(["-o", "remount,nobarrier"]).arg(volume.path()).status()?;
    assert!(status.success(), "{status}");
    for growth in [Growth::Unwritten, Growth::Zeroed] {
        let path = volume.path().join(format!("{growth:?}"));
        let file = writable().growth(growth).open(&path)?;
        assert_eq!(file.growth(), Growth::None);
        let end = assert_gapless(&append_many(&file, 1, 20), 0);
        assert_tidy(&path, end)?;
        file.close()?;
    }
    Ok(())
}

fn zeroed_space_is_written_ahead(dir: TestDir, way: Way) -> TrialResult {
    let path = dir.join("log");
    let mut options = writable();
    let file = way.open(options.growth(Growth::Zeroed).growth_cap(4 * MIB), &path)?;
    assert_eq!(file.growth(), Growth::Zeroed);
    let placed = together(8, |writer| append_many(&file, writer, 100)).concat();
    let end = assert_gapless(&placed, 0);
    file.write_at(&record(50, 0, 1), end)?;
    assert!(files::extents(&path)?.iter().all(|extent| !extent.unwritten || extent.start > end));
    file.close()?;
    assert_tidy(&path, end + BLOCK_BYTES)?;
    assert_all_there(&fs::read(&path)?, &placed);
    Ok(())
}

fn the_capacity_is_reached_in_one_step(dir: TestDir, way: Way) -> TrialResult {
    let path = dir.join("log");
    let file = way.open(writable().growth_cap(4 * MIB).capacity(48 * MIB), &path)?;
    append(&file, 1, 0, 1)?;
    assert_eq!(fs::metadata(&path)?.len(), 48 * MIB);
    let placed = together(4, |writer| append_many(&file, writer, 100)).concat();
    assert_eq!((file.stats().growths, file.stats().growth_waits), (1, 1));
    let end = assert_gapless(&placed, BLOCK_BYTES);
    file.close()?;
    assert_tidy(&path, end)?;
    Ok(())
}

/// A growth step begins when less than half of the last one is left. The stream gives it the time
/// that it needs.
fn in_a_steady_stream_only_the_first_append_waits_for_growth(dir: TestDir) -> TrialResult {
    let file = writable().growth_cap(8 * MIB).open(dir.join("log"))?;
    let data = record(1, 1, 2);
    for _ in 0..1536 {
        let end = file.append(&data)? + data.len() as u64;
        assert!(
            soon(|| file.stats().grown_bytes >= end + 4 * MIB),
            "it does not grow before it is full"
        );
    }
    let stats = file.stats();
    assert!(stats.growths >= 2, "12 MiB in steps of at most 8 MiB: {stats:?}");
    assert_eq!(stats.growth_waits, 1, "{stats:?}");
    file.close()?;
    Ok(())
}

const BUDGET: u64 = 24 * MIB;

/// A child (each process has its own budget) with 100 files. Reports their total growth.
fn open_a_hundred_files(acks: &Acks, args: &[String]) {
    dioxide::set_growth_budget(BUDGET);
    let paths: Vec<_> = (0..100).map(|n| Path::new(&args[0]).join(n.to_string())).collect();
    let files: Vec<_> = paths.iter().map(|path| writable().open(path).expect("it opens")).collect();
    for file in &files {
        append(file, 1, 0, 1).expect("there is space");
    }
    sleep(Duration::from_millis(200));
    let ahead =
        paths.iter().map(|path| fs::metadata(path).expect("it exists").len() - BLOCK_BYTES).sum();
    for file in files {
        file.close().expect("it closes");
    }
    let left = paths.iter().map(|path| fs::metadata(path).expect("it exists").len()).sum();
    acks.send([ahead, left, 0]);
}

fn a_hundred_files_stay_within_the_budget(dir: TestDir) -> TrialResult {
    let child = child::spawn("open_a_hundred_files", &[&dir.to_string_lossy()])?;
    let (status, acks) = child.wait(PATIENCE)?;
    assert!(status.success(), "{status}");
    let [ahead, left, _] = acks[0];
    assert!((BUDGET / 4..=BUDGET).contains(&ahead), "{ahead} bytes were grown ahead");
    assert_eq!(left, 100 * BLOCK_BYTES);
    Ok(())
}

/// Whether direct I/O accepts parts of blocks.
fn writes_parts_of_blocks(fs: Fs) -> Applies {
    match fs {
        Fs::Ext4 | Fs::Ext4NoJournal | Fs::Ext3 | Fs::Xfs => Ok(()),
        Fs::Btrfs | Fs::BtrfsNocow | Fs::Tmpfs => Err("it takes whole blocks only"),
    }
}

/// Whether the kernel's trace events show all I/O of a file.
fn tells_of_direct_io(fs: Fs) -> Applies {
    match fs {
        Fs::Ext4 | Fs::Xfs => Ok(()),
        Fs::Ext3 => Err("it writes into holes through the cache"),
        Fs::Ext4NoJournal => Err("as ext4"),
        Fs::Btrfs | Fs::BtrfsNocow | Fs::Tmpfs => Err("its events name no disk, or there are none"),
    }
}

fn trials() -> Vec<Trial> {
    let in_every_way: &[LabTestInAWay] = named![
        a_file_of_odd_length_takes_positional_writes,
        an_odd_length_can_be_set,
        appends_are_disjoint_gapless_and_kept,
        grown_space_is_never_seen,
        an_empty_append_returns_the_length,
        records_larger_than_a_request_are_whole,
        a_file_of_odd_length_is_appended_to,
        a_write_far_past_the_end_leaves_a_hole,
        a_write_past_the_largest_offset_is_an_error,
        overwrites_and_appends_go_side_by_side,
        extending_writes_of_both_kinds_mix,
        set_len_shows_zeros_where_something_was_truncated,
        appends_and_truncates_in_one_file_agree,
        handles_of_both_durabilities_share_a_file,
        a_reader_in_the_same_process_sees_the_exact_length,
        closing_the_last_writer_tidies_up_beside_a_reader,
        a_reader_sees_only_records_while_the_file_is_closed_and_opened,
        a_clone_is_one_more_handle,
        a_closed_file_can_be_opened_and_appended_to,
        dropping_the_last_handle_tidies_up,
        without_growth_the_file_is_never_larger_than_its_length,
        a_file_grows_as_asked_or_not_at_all,
        a_reader_alone_needs_no_writer,
        records_of_any_length_stand_where_they_were_said_to,
        a_file_is_what_a_list_of_bytes_is,
        a_write_across_an_odd_end_is_kept_by_the_next_append,
        aligned_pieces_of_long_records_are_not_copied,
        writers_of_one_block_lose_no_bytes,
        whole_blocks_and_parts_of_them_exclude_each_other,
    ];
    let where_parts_of_blocks_are_written: &[LabTestInAWay] = named![
        writes_of_the_last_block_and_appends_exclude_each_other,
        a_padded_append_behind_a_part_of_a_recycled_block_goes_into_it,
    ];
    let once: &[LabTest] = named![
        opening_what_cannot_be_opened_says_why,
        create_and_truncate_do_what_they_say,
        a_temporary_file_has_no_name,
        creating_needs_the_right_to_write,
        a_reader_in_another_process_follows_the_end,
        a_reader_never_sees_grown_space_while_the_file_is_opened_and_closed,
    ];
    let where_files_grow: &[LabTest] = named![
        in_a_steady_stream_only_the_first_append_waits_for_growth,
        a_hundred_files_stay_within_the_budget
    ];
    let mut trials: Vec<_> = once.iter().flat_map(|&(name, test)| lab_trials(name, test)).collect();
    trials.extend(shared_blocks::trials());
    let ways = in_every_way.iter();
    trials.extend(ways.flat_map(|&(name, test)| lab_trials_in(Way::ALL, name, |_| Ok(()), test)));
    let parts = where_parts_of_blocks_are_written.iter();
    trials.extend(
        parts.flat_map(|&(name, test)| lab_trials_in(Way::ALL, name, writes_parts_of_blocks, test)),
    );
    trials.extend(lab_trials_where(
        "appends_into_a_block_that_is_always_written_go_on",
        writes_parts_of_blocks,
        appends_into_a_block_that_is_always_written_go_on,
    ));
    trials.extend(lab_trials_in(
        Way::ALL,
        "the_last_block_is_written_by_one_request_at_a_time_and_alone",
        tells_of_direct_io,
        the_last_block_is_written_by_one_request_at_a_time_and_alone,
    ));
    trials.extend(lab_trials_where(
        "writes_in_flight_together_are_seen",
        tells_of_direct_io,
        writes_in_flight_together_are_seen,
    ));
    let grow = where_files_grow.iter();
    trials.extend(grow.flat_map(|&(name, test)| lab_trials_where(name, Fs::grows_unwritten, test)));
    trials.extend(lab_trials_in(
        Way::ALL,
        "the_capacity_is_reached_in_one_step",
        Fs::grows_unwritten,
        the_capacity_is_reached_in_one_step,
    ));
    trials.extend(lab_trials_in(
        Way::ALL,
        "zeroed_space_is_written_ahead",
        Fs::grows_zeroed,
        zeroed_space_is_written_ahead,
    ));
    trials.extend(volume_trials_where(
        "without_barriers_nothing_grows",
        |fs| match fs {
            Fs::Xfs => Err("it has no such option"),
            other => other.has_disk(),
        },
        without_barriers_nothing_grows,
    ));
    trials.extend(lab_trials_in(
        Way::ALL,
        "a_write_past_what_the_file_system_can_hold_is_an_error",
        |fs| match fs {
            Fs::Ext4 | Fs::Ext3 | Fs::Ext4NoJournal => Ok(()),
            Fs::Xfs | Fs::Btrfs | Fs::BtrfsNocow | Fs::Tmpfs => {
                Err("it holds files up to the largest offset")
            }
        },
        a_write_past_what_the_file_system_can_hold_is_an_error,
    ));
    trials
}

fn main() -> ExitCode {
    let scenarios: &[child::Scenario] = &[
        ("append_for_ever", append_for_ever),
        ("open_and_close_for_ever", open_and_close_for_ever),
        ("open_a_hundred_files", open_a_hundred_files),
    ];
    dioxide_testkit::run(scenarios, trials)
}
