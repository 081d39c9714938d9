//! The recorded workloads, each run in a child process on files of one file system at once.
//! Every buffer is overwritten as soon as its call has returned. A disk that reads it later exposes
//! that.

mod files;
mod logs;

use crate::mark::{Act, Mark, Name};
use crate::parts;
use crate::shared::{Flush, Play, Scheme, Space};
use crate::{BLOCK, SECTOR};
use dioxide::{Buffer, Durability, File, Growth, OpenOptions, Queue, Tail};
use dioxide_testkit::child::Acks;
use dioxide_testkit::fuse_disk::Marks;
use dioxide_testkit::lab::{Applies, Fs};
use dioxide_testkit::records::{Frame, Random, Stamp};
use logs::Acknowledged::{OnReturn, OnSync, Unsynced};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;

/// The scenario that a child plays.
pub const SCENARIO: &str = "powercut_workload";

/// Files of a workload that works on each of them in the same way.
const FILES: u64 = 2;

/// Content of a buffer after its call has returned.
pub const POISON: u8 = 0xDE;

pub(crate) const THREADS_OF_A_FILE: u64 = 4;

/// A segment is recycled when it has this many blocks.
const SEGMENT_BLOCKS: u64 = 24;

/// A workload.
pub struct Workload {
    /// The name in the table of losses.
    pub name: &'static str,
    /// Whether it applies to a file system.
    pub applies: fn(Fs) -> Applies,
    run: Run,
    /// Whether it keeps its promises; the controls do not.
    pub is_honest: bool,
    /// More options of mkfs.
    pub mkfs: &'static [&'static str],
    /// Whether the disk has sectors of 4096 bytes.
    pub has_large_sectors: bool,
}

enum Run {
    /// Works on one of the files.
    OnFile(fn(&Player)),
    /// Works on this many files.
    OnAll(u64, fn(&mut [Player], Option<&Path>)),
    /// A plain program with many files.
    Shared(Scheme),
}

/// Whether the rig can make power cuts on the file system.
pub fn everywhere(fs: Fs) -> Applies {
    fs.survives_power_cuts()
}

fn where_zeros_grow(fs: Fs) -> Applies {
    everywhere(fs).and(fs.grows_zeroed())
}

fn where_both_grow(fs: Fs) -> Applies {
    fs.grows_unwritten().and(where_zeros_grow(fs))
}

const fn of(name: &'static str, applies: fn(Fs) -> Applies, run: Run) -> Workload {
    Workload { name, applies, run, is_honest: true, mkfs: &[], has_large_sectors: false }
}

const fn honest(name: &'static str, applies: fn(Fs) -> Applies, run: fn(&Player)) -> Workload {
    of(name, applies, Run::OnFile(run))
}

/// Appends to many files, which share flushes.
const fn on_all(
    name: &'static str,
    applies: fn(Fs) -> Applies,
    run: fn(&mut [Player], Option<&Path>),
) -> Workload {
    of(name, applies, Run::OnAll(files::FILES, run))
}

/// Writes blocks of 16 files, and shares flushes.
const fn shared(name: &'static str, space: Space, flush: Flush) -> Workload {
    of(name, with_an_ordered_journal, Run::Shared(Scheme { files: 16, space, flush }))
}

const fn control(workload: Workload) -> Workload {
    Workload { is_honest: false, ..workload }
}

/// On a disk with sectors of 4096 bytes.
const fn in_large_sectors(workload: Workload) -> Workload {
    Workload { has_large_sectors: true, ..workload }
}

/// Where one flush may serve many files.
fn with_an_ordered_journal(fs: Fs) -> Applies {
    match fs {
        Fs::Ext4 | Fs::Xfs => Ok(()),
        _ => Err("only ext4 and XFS share flushes"),
    }
}

fn on_ext4(fs: Fs) -> Applies {
    if fs == Fs::Ext4 { Ok(()) } else { Err("it has no fast commits") }
}

/// All workloads that keep their promises.
pub const WORKLOADS: &[Workload] = &[
    honest("append", everywhere, append),
    honest("append-sync", everywhere, append_then_sync),
    honest("positional", everywhere, write_with_holes),
    honest("zeroed", where_zeros_grow, append_over_zeros),
    honest("reopen", everywhere, open_append_close),
    honest("set-len", everywhere, append_and_truncate),
    honest("recycle", where_both_grow, recycle),
    honest("queue", everywhere, append_by_queues),
    honest("queue-sync", everywhere, append_by_queues_then_sync),
    honest("frames", everywhere, |player| append_frames(player, Growth::Unwritten)),
    honest("frames-zeroed", where_zeros_grow, |player| append_frames(player, Growth::Zeroed)),
    honest("frames-plain", everywhere, |player| append_frames(player, Growth::None)),
    on_all("files", everywhere, files::append_unwritten),
    on_all("files-zeroed", where_zeros_grow, files::append_zeroed),
    on_all("growth-steps", with_an_ordered_journal, files::append_between_commits),
    on_all("growth-steps-zeroed", with_an_ordered_journal, files::append_zeroed_between_commits),
    honest("write-ahead", everywhere, |player| logs::append(player, OnReturn)),
    honest("write-ahead-sync", everywhere, |player| logs::append(player, OnSync)),
    honest("write-ahead-retained", everywhere, logs::retain),
    honest("write-ahead-followed", everywhere, |player| logs::follow(player, false)),
    of("write-ahead-set", everywhere, Run::OnAll(logs::LOGS, logs::append_to_set)),
    of("write-ahead-streams", everywhere, Run::OnAll(logs::STREAMS, logs::append_to_streams)),
    honest("parts", everywhere, parts::write),
    in_large_sectors(honest("parts-large-sectors", everywhere, parts::write)),
    shared("blocks", Space::Unwritten, Flush::Dioxide),
    shared("blocks-zeroed", Space::Zeros, Flush::Dioxide),
    shared("plain-own-flush", Space::Unwritten, Flush::OwnFile),
    shared("plain-zeros-last-file", Space::Zeros, Flush::LastFile),
    shared("plain-zeros-clean-file", Space::Zeros, Flush::CleanFile),
    shared("plain-ticket", Space::Unwritten, Flush::Ticket),
    shared("plain-syncfs", Space::Unwritten, Flush::FileSystem),
];

/// The control: reports records as durable that were never flushed.
pub const UNSYNCED: Workload = control(honest("unsynced", everywhere, append_unsynced));

/// The same for a log.
pub const WRITE_AHEAD_UNSYNCED: Workload =
    control(honest("write-ahead-unsynced", everywhere, |player| logs::append(player, Unsynced)));

/// A follower is shown records that were never flushed.
pub const SHOWN_UNSYNCED: Workload =
    control(honest("write-ahead-shown-unsynced", everywhere, |player| logs::follow(player, true)));

/// Another control, without dioxide: each record rewrites the last block, with zeros first.
pub const ZEROS_IN_FRONT: Workload =
    control(honest("zeros-in-front", Fs::writes_directly, append_behind_zeros));

/// Without dioxide: writers of one block read it at the same time, and each writes it as a whole.
pub const PARTS_TOGETHER: Workload =
    control(honest("parts-together", everywhere, parts::write_together));

/// No flush reaches the disk, so nothing is stable.
pub const UNFLUSHED: Workload = control(shared("plain-unflushed", Space::Zeros, Flush::None));

/// The flush of a clean file does not commit that the blocks of other files are written.
pub const CLEAN_FILE: Workload =
    control(shared("plain-clean-file", Space::Unwritten, Flush::CleanFile));

/// Nor does it commit that other files have grown.
pub const CLEAN_FILE_AFTER_GROWTH: Workload =
    control(shared("plain-growth-clean-file", Space::NewZeros, Flush::CleanFile));

/// All workloads that must lose.
pub const CONTROLS: &[Workload] = &[
    UNSYNCED,
    WRITE_AHEAD_UNSYNCED,
    SHOWN_UNSYNCED,
    ZEROS_IN_FRONT,
    PARTS_TOGETHER,
    UNFLUSHED,
    CLEAN_FILE,
    CLEAN_FILE_AFTER_GROWTH,
];

/// Workloads that lose rarely, or by a fault of the kernel. They run only by their names.
pub const ON_REQUEST: &[Workload] = &[
    // The file reported last need not be the one whose block joined the journal last.
    control(shared("plain-last-file", Space::Unwritten, Flush::LastFile)),
    // ext4 loses what fdatasync confirmed.
    Workload {
        applies: on_ext4,
        mkfs: &["-O", "fast_commit"],
        ..control(shared("plain-fast-commit", Space::Unwritten, Flush::OwnFile))
    },
];

/// Every workload.
pub fn all() -> impl Iterator<Item = &'static Workload> {
    WORKLOADS.iter().chain(CONTROLS).chain(ON_REQUEST)
}

/// The workload with this name.
pub fn named(name: &str) -> Option<&'static Workload> {
    all().find(|workload| workload.name == name)
}

/// Plays a workload to its end. The arguments: its name, the directory of its files, the path of
/// the disk's marks, a seed, and the number of records per thread. The last one is the directory
/// of the [`Cgroups`](crate::shared::Cgroups), or empty.
pub fn play(_acks: &Acks, args: &[String]) {
    let [name, dir, marks, seed, records, cgroups] = args else {
        panic!("six arguments, not {args:?}")
    };
    let workload = named(name).expect("a workload");
    let marks = &Marks::open(Path::new(marks)).expect("the marks open");
    let (seed, records) = (seed.parse().expect("a seed"), records.parse().expect("a number"));
    let dir = Path::new(dir);
    let cgroups = (!cgroups.is_empty()).then_some(Path::new(cgroups));
    let player = |file| Player { dir, marks, file, seed, records, growth_cap: None };
    match workload.run {
        Run::OnFile(run) => thread::scope(|scope| {
            for player in (0..FILES).map(player) {
                scope.spawn(move || run(&player));
            }
        }),
        Run::OnAll(files, run) => run(&mut (0..files).map(player).collect::<Vec<_>>(), cgroups),
        Run::Shared(scheme) => Play { scheme, dir, marks, seed, records, cgroups }.run(),
    }
}

/// The context of a workload on one of the files.
pub(crate) struct Player<'a> {
    pub dir: &'a Path,
    marks: &'a Marks,
    pub file: u64,
    seed: u64,
    pub records: u64,
    /// The largest step of growth in bytes; `None` draws one.
    growth_cap: Option<u64>,
}

impl Player<'_> {
    pub fn path(&self) -> PathBuf {
        path_of(self.dir, self.file, 0)
    }

    /// Independent for each writer.
    pub fn random(&self, writer: u64) -> Random {
        Random::new(self.seed << 16 | self.file << 12 | writer)
    }

    /// Small steps of growth, so that power cuts hit many.
    fn options(&self, durability: Durability, growth: Growth) -> OpenOptions {
        let cap = self.growth_cap.unwrap_or((BLOCK as u64 * 16) << self.random(0).below(4));
        let mut options = OpenOptions::new();
        options.write(true).create(true).durability(durability).growth(growth).growth_cap(cap);
        options
    }

    pub fn open(&self, durability: Durability, growth: Growth) -> File {
        self.options(durability, growth).open(self.path()).expect("it opens")
    }

    pub fn mark(&self, act: Act) {
        self.marks.send(Mark { file: self.file, act }.encode());
    }

    /// Appends a record. Its offset is not promised yet.
    fn append(&self, file: &File, name: Name, blocks: u64) -> u64 {
        let mut record = record(name, blocks);
        self.mark(Act::Append(name, record.len() as u64));
        let offset = file.append(&record).expect("there is space");
        record.fill(POISON);
        offset
    }

    fn append_durably(&self, file: &File, name: Name, blocks: u64) -> u64 {
        let offset = self.append(file, name, blocks);
        self.mark(Act::Durable(name, offset));
        offset
    }

    /// Queues the append of a record, with its number as the tag.
    fn queue_append(&self, queue: &Queue, file: &File, name: Name, blocks: u64) {
        let record = record(name, blocks);
        self.mark(Act::Append(name, record.len() as u64));
        queue.append(file, record, name.number).expect("there is room");
    }

    /// Reaps `wanted` durable appends of a writer's queue, and marks them as durable.
    fn reap_durable(&self, queue: &Queue, writer: u64, wanted: usize) {
        for done in queue.reap(wanted) {
            let offset = done.result.expect("there is space");
            self.mark(Act::Durable(Name { writer, number: done.tag }, offset));
            poison(done.buffer);
        }
    }

    /// Runs `work` in some threads, each with its number.
    pub fn together(&self, work: impl Fn(u64) + Sync) {
        let work = &work;
        thread::scope(|scope| {
            (0..THREADS_OF_A_FILE).for_each(|writer| {
                scope.spawn(move || work(writer));
            });
        });
    }
}

/// The path of a file in this life.
pub fn path_of(dir: &Path, file: u64, life: u64) -> PathBuf {
    dir.join(format!("log-{file}.{life}"))
}

fn record(name: Name, blocks: u64) -> Buffer {
    let mut buffer = Buffer::zeroed(blocks as usize * BLOCK);
    for (sector, part) in buffer.chunks_exact_mut(SECTOR).zip(0..) {
        Stamp { writer: name.writer, number: name.number, part }.fill(sector);
    }
    buffer
}

fn append(player: &Player) {
    append_from_threads(player, Durability::EveryWrite, Growth::Unwritten);
}

fn append_over_zeros(player: &Player) {
    append_from_threads(player, Durability::EveryWrite, Growth::Zeroed);
}

/// Each append is marked as durable when it returns.
fn append_from_threads(player: &Player, durability: Durability, growth: Growth) {
    let file = player.open(durability, growth);
    player.together(|writer| {
        let mut random = player.random(writer);
        for number in 0..player.records {
            player.append_durably(&file, Name { writer, number }, 1 + random.below(4));
        }
    });
    file.close().expect("it closes");
}

fn append_unsynced(player: &Player) {
    append_from_threads(player, Durability::OnSync, Growth::Unwritten);
}

/// Maximum operations in flight on one queue.
pub(crate) const DEPTH: usize = 6;

/// Each append is marked as durable when it is reaped. One of the threads makes blocking calls
/// beside the queues.
fn append_by_queues(player: &Player) {
    let file = player.open(Durability::EveryWrite, Growth::Unwritten);
    player.together(|writer| {
        let (mut random, queue) = (player.random(writer), Queue::new(DEPTH));
        for number in 0..player.records {
            let (name, blocks) = (Name { writer, number }, 1 + random.below(4));
            if writer == 0 {
                player.append_durably(&file, name, blocks);
                continue;
            }
            player.queue_append(&queue, &file, name, blocks);
            let wanted =
                if queue.outstanding() == DEPTH { 1 + random.below(3) } else { random.below(2) };
            player.reap_durable(&queue, writer, wanted as usize);
        }
        player.reap_durable(&queue, writer, DEPTH);
    });
    file.close().expect("it closes");
}

/// Records reaped before a flush is queued are marked as durable when the flush is reaped, with
/// more in flight beside it.
fn append_by_queues_then_sync(player: &Player) {
    const FLUSH: u64 = u64::MAX;
    let file = player.open(Durability::OnSync, Growth::Unwritten);
    player.together(|writer| {
        let (mut random, queue) = (player.random(writer), Queue::new(DEPTH));
        let (mut written, mut number) = (Vec::new(), 0);
        while number < player.records {
            queue.sync_data(&file, FLUSH).expect("nothing is left in the queue");
            let covered = std::mem::take(&mut written);
            for number in number..player.records.min(number + DEPTH as u64 - 1) {
                player.queue_append(&queue, &file, Name { writer, number }, 1 + random.below(4));
            }
            number += DEPTH as u64 - 1;
            while queue.outstanding() > 0 {
                for done in queue.reap(1) {
                    let offset = done.result.expect("there is space, and no flush fails");
                    match done.tag {
                        FLUSH => covered
                            .iter()
                            .for_each(|&(name, at)| player.mark(Act::Durable(name, at))),
                        number => written.push((Name { writer, number }, offset)),
                    }
                    poison(done.buffer);
                }
            }
        }
        queue.sync_data(&file, FLUSH).expect("nothing is left in the queue");
        queue.reap(1).for_each(|done| assert!(done.result.is_ok()));
        written.iter().for_each(|&(name, offset)| player.mark(Act::Durable(name, offset)));
    });
    file.close().expect("it closes");
}

/// A returned buffer is free for reuse.
pub(crate) fn poison(buffer: Option<Buffer>) {
    if let Some(mut buffer) = buffer {
        buffer.fill(POISON);
    }
}

fn append_then_sync(player: &Player) {
    let file = player.open(Durability::OnSync, Growth::Unwritten);
    player.together(|writer| {
        let mut random = player.random(writer);
        let mut number = 0;
        while number < player.records {
            let batch = 1 + random.below(6);
            let names = (number..number + batch).map(|number| Name { writer, number });
            let placed: Vec<_> =
                names.map(|name| (name, player.append(&file, name, 1 + random.below(4)))).collect();
            file.sync_data().expect("it syncs");
            placed.iter().for_each(|&(name, offset)| player.mark(Act::Durable(name, offset)));
            number += batch;
        }
    });
    file.close().expect("it closes");
}

/// Each thread writes every fourth block, and skips some of them.
fn write_with_holes(player: &Player) {
    let file = player.open(Durability::EveryWrite, Growth::Unwritten);
    player.together(|writer| {
        let mut random = player.random(writer);
        let mut place = random.below(4);
        for number in 0..player.records {
            let name = Name { writer, number };
            let offset = (place * THREADS_OF_A_FILE + writer) * 2 * BLOCK as u64;
            let mut record = record(name, 1 + random.below(2));
            player.mark(Act::WriteAt(name, record.len() as u64, offset));
            file.write_at(&record, offset).expect("there is space");
            record.fill(POISON);
            player.mark(Act::Durable(name, offset));
            place += 1 + random.below(3);
        }
    });
    file.close().expect("it closes");
}

/// Appends a record or two each time the file is opened. Every other time, closing it makes them
/// durable.
fn open_append_close(player: &Player) {
    let mut random = player.random(0);
    for number in (0..player.records).step_by(2) {
        let closing_syncs = random.below(2) == 0;
        let durability = if closing_syncs { Durability::OnSync } else { Durability::EveryWrite };
        let growth = if random.below(4) == 0 { Growth::None } else { Growth::Unwritten };
        let file = player.open(durability, growth);
        let append = |number, blocks| {
            let name = Name { writer: 0, number };
            let offset = player.append(&file, name, blocks);
            let durable = Act::Durable(name, offset);
            if durability == Durability::EveryWrite {
                player.mark(durable);
            }
            durable
        };
        let appended = [append(number, 1 + random.below(4)), append(number + 1, 1)];
        file.close().expect("it closes");
        if closing_syncs {
            appended.into_iter().for_each(|durable| player.mark(durable));
        }
    }
}

/// Truncates the file every few records, at the end of one of them.
fn append_and_truncate(player: &Player) {
    let file = player.open(Durability::EveryWrite, Growth::Unwritten);
    let mut random = player.random(0);
    let mut ends = vec![0];
    for number in 0..player.records * THREADS_OF_A_FILE / 2 {
        let blocks = 1 + random.below(8);
        let offset = player.append_durably(&file, Name { writer: 0, number }, blocks);
        ends.push(offset + blocks * BLOCK as u64);
        if random.below(6) == 0 {
            ends.truncate(1 + random.below(ends.len() as u64) as usize);
            let len = *ends.last().expect("the first is never truncated");
            player.mark(Act::Cut(len));
            file.set_len(len).expect("it can be truncated");
            player.mark(Act::WasCut(len));
        }
    }
    file.close().expect("it closes");
}

/// Writes one segment after the other, each in the recycled space of the one before under another
/// name.
fn recycle(player: &Player) {
    for life in 0..=player.records / 8 {
        let path = path_of(player.dir, player.file, life);
        if life > 0 {
            std::fs::rename(path_of(player.dir, player.file, life - 1), &path)
                .expect("it can be renamed");
            std::fs::File::open(player.dir)
                .and_then(|dir| dir.sync_all())
                .expect("the name can be synced");
        }
        let mut options = player.options(Durability::EveryWrite, Growth::Unwritten);
        let file = options.capacity(SEGMENT_BLOCKS * BLOCK as u64).open(path).expect("it opens");
        if life > 0 {
            player.mark(Act::Recycle(life));
            file.recycle().expect("it is recycled");
            player.mark(Act::WasRecycled(life));
        }
        player.together(|thread| {
            let writer = life * THREADS_OF_A_FILE + thread;
            for number in 0..SEGMENT_BLOCKS / THREADS_OF_A_FILE / 2 {
                player.append_durably(&file, Name { writer, number }, 2);
            }
        });
        file.close().expect("it closes");
    }
}

/// Records of any length: unpadded in the first file, with padded blocks in the second. Some
/// threads make durable calls, one uses a queue, and one marks records after a flush. In the middle
/// the file is closed, at an odd length.
fn append_frames(player: &Player, growth: Growth) {
    let tail = if player.file == 0 { Tail::Rewrite } else { Tail::Pad };
    for part in 0..2 {
        let open = |durability| {
            player.options(durability, growth).tail(tail).open(player.path()).expect("it opens")
        };
        let (file, lazy) = (open(Durability::EveryWrite), open(Durability::OnSync));
        player.together(|thread| {
            let writer = part * THREADS_OF_A_FILE + thread;
            match thread {
                0 => player.append_frames_by_queue(&file, writer),
                1 => player.append_frames_then_sync(&lazy, writer),
                _ => player.append_frames_durably(&file, writer),
            }
        });
        lazy.close().expect("one of two handles");
        file.close().expect("it closes");
    }
}

/// Most are as short as records are; some fill blocks.
fn frame_len(random: &mut Random) -> u64 {
    let max = [60, 200, 200, 700, 3000, 9000][random.below(6) as usize];
    Frame::HEADER as u64 + random.below(max)
}

impl Player<'_> {
    /// Marks the append of a frame as begun.
    fn frame(&self, name: Name, len: u64) -> Buffer {
        self.mark(Act::AppendFrame(name, len));
        Buffer::from(&Frame { writer: name.writer, number: name.number, len }.bytes()[..])
    }

    /// From an unaligned buffer.
    fn append_frame(&self, file: &File, name: Name, len: u64) -> u64 {
        let frame = self.frame(name, len);
        let skew = name.number as usize % 9;
        let mut memory = Buffer::zeroed(skew + frame.len());
        memory[skew..].copy_from_slice(&frame);
        let offset = file.append(&memory[skew..]).expect("there is space");
        memory.fill(POISON);
        offset
    }

    fn append_frames_durably(&self, file: &File, writer: u64) {
        let mut random = self.random(writer);
        for number in 0..self.records {
            let name = Name { writer, number };
            let offset = self.append_frame(file, name, frame_len(&mut random));
            self.mark(Act::Durable(name, offset));
        }
    }

    fn append_frames_then_sync(&self, file: &File, writer: u64) {
        let mut random = self.random(writer);
        for first in (0..self.records).step_by(4) {
            let names = (first..self.records.min(first + 4)).map(|number| Name { writer, number });
            let placed: Vec<_> = names
                .map(|name| (name, self.append_frame(file, name, frame_len(&mut random))))
                .collect();
            file.sync_data().expect("it syncs");
            placed.iter().for_each(|&(name, offset)| self.mark(Act::Durable(name, offset)));
        }
    }

    fn append_frames_by_queue(&self, file: &File, writer: u64) {
        let (mut random, queue) = (self.random(writer), Queue::new(DEPTH));
        for number in 0..self.records {
            let frame = self.frame(Name { writer, number }, frame_len(&mut random));
            queue.append(file, frame, number).expect("there is room");
            let wanted =
                if queue.outstanding() == DEPTH { 1 + random.below(3) } else { random.below(2) };
            self.reap_durable(&queue, writer, wanted as usize);
        }
        self.reap_durable(&queue, writer, DEPTH);
    }
}

/// One record at a time, by plain system calls.
fn append_behind_zeros(player: &Player) {
    let mut options = std::fs::OpenOptions::new();
    let file = options
        .write(true)
        .create(true)
        .custom_flags(libc::O_DIRECT)
        .open(player.path())
        .expect("it opens");
    let (mut random, mut log) = (player.random(0), Vec::new());
    for number in 0..player.records * THREADS_OF_A_FILE {
        let (name, offset) = (Name { writer: 0, number }, log.len());
        log.extend_from_slice(&player.frame(name, frame_len(&mut random)));
        let first = offset / BLOCK * BLOCK;
        let mut blocks = Buffer::zeroed(log.len().next_multiple_of(BLOCK) - first);
        for zeros in [offset - first, 0] {
            blocks[zeros..log.len() - first].copy_from_slice(&log[first + zeros..]);
            file.write_all_at(&blocks, first as u64).expect("there is space");
        }
        file.sync_data().expect("it syncs");
        player.mark(Act::Durable(name, offset as u64));
    }
}
