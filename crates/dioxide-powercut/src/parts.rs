//! Writes of parts of blocks: sectors, and odd lengths anywhere. Threads, a queue and futures write
//! the parts of one block, each its own.
//!
//! After a power cut each part has, in each sector, the bytes of its last stable version or of a
//! later one. So no write loses bytes of its neighbours, and a torn write leaves old or new
//! sectors.

use crate::check::{Loss, Losses, check_closed};
use crate::mark::Act;
use crate::workload::{DEPTH, POISON, Player, THREADS_OF_A_FILE, path_of, poison};
use crate::{BLOCK, SECTOR};
use dioxide::{AsyncFile, Buffer, Durability, File, Growth, OpenOptions, Queue};
use dioxide_testkit::records::{Frame, Random};
use futures::executor::block_on;
use futures::future::join_all;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Barrier;

/// The lengths of the parts, repeated to the end of the file. They fill nine sectors, so the parts
/// lie differently in each block, and some of them in two.
const LENGTHS: [u64; 9] = [512, 512, 300, 212, 512, 1000, 536, 511, 513];
const PARTS: u64 = 96;
/// Writes of a thread for each record of a log's thread: these are short.
const WRITES_PER_RECORD: u64 = 2;
/// Futures that one thread drives.
const TASKS: u64 = 4;

/// The bytes of a part in the file.
fn range_of(part: u64) -> Range<u64> {
    let lengths = |parts: u64| LENGTHS.iter().take(parts as usize).sum::<u64>();
    let count = LENGTHS.len() as u64;
    let start = part / count * lengths(count) + lengths(part % count);
    start..start + LENGTHS[(part % count) as usize]
}

/// The bytes of a version of a part: zeros before the first one.
fn content(file: u64, part: u64, version: u64) -> Vec<u8> {
    let range = range_of(part);
    let len = range.end - range.start;
    match version {
        0 => vec![0; len as usize],
        _ => Frame { writer: file << 16 | part, number: version, len }.bytes(),
    }
}

/// The last version of each part that a writer has begun.
#[derive(Default)]
struct PartVersions(BTreeMap<u64, u64>);

impl PartVersions {
    /// Marks the write of the next version of a part as begun, and returns its bytes.
    fn begin(&mut self, player: &Player<'_>, part: u64) -> (u64, Vec<u8>) {
        let version = self.0.entry(part).or_default();
        *version += 1;
        player.mark(Act::BeginPart { part, version: *version });
        (*version, content(player.file, part, *version))
    }
}

/// A part of the writer. Each has every fourth.
fn any_part(random: &mut Random, writer: u64) -> u64 {
    random.below(PARTS / THREADS_OF_A_FILE) * THREADS_OF_A_FILE + writer
}

/// The first file has its length from the begin, the other one grows.
pub(crate) fn write(player: &Player<'_>) {
    if player.file == 0 {
        make_zeros(player);
    }
    let file = player.open(Durability::EveryWrite, Growth::Unwritten);
    let lazy = player.open(Durability::OnSync, Growth::Unwritten);
    player.together(|writer| match writer {
        0 => write_durably(player, &file, writer),
        1 => write_then_sync(player, &lazy, writer),
        2 => write_by_queue(player, &file, writer),
        _ => write_by_futures(player, &file, writer),
    });
    lazy.close().expect("one of two handles");
    file.close().expect("it closes");
}

fn make_zeros(player: &Player<'_>) -> fs::File {
    let mut options = fs::OpenOptions::new();
    let options = options.read(true).write(true).create(true).custom_flags(libc::O_DIRECT);
    let file = options.open(player.path()).expect("a file");
    let len = range_of(PARTS).start.next_multiple_of(BLOCK as u64);
    file.write_all_at(&Buffer::zeroed(len as usize), 0).expect("there is space");
    file.sync_all().expect("it syncs");
    file
}

fn write_durably(player: &Player<'_>, file: &File, writer: u64) {
    let (mut random, mut versions) = (player.random(writer), PartVersions::default());
    for _ in 0..player.records * WRITES_PER_RECORD {
        let part = any_part(&mut random, writer);
        let (version, mut bytes) = versions.begin(player, part);
        file.write_at(&bytes, range_of(part).start).expect("there is space");
        bytes.fill(POISON);
        player.mark(Act::StablePart { part, version });
    }
}

fn write_then_sync(player: &Player<'_>, file: &File, writer: u64) {
    let (mut random, mut versions) = (player.random(writer), PartVersions::default());
    for _ in 0..player.records * WRITES_PER_RECORD / 3 {
        let mut written = Vec::new();
        for _ in 0..3 {
            let part = any_part(&mut random, writer);
            let (version, mut bytes) = versions.begin(player, part);
            file.write_at(&bytes, range_of(part).start).expect("there is space");
            bytes.fill(POISON);
            written.push((part, version));
        }
        file.sync_data().expect("it syncs");
        for (part, version) in written {
            player.mark(Act::StablePart { part, version });
        }
    }
}

/// One write of a part at a time, because two of them have no order.
fn write_by_queue(player: &Player<'_>, file: &File, writer: u64) {
    let (mut random, mut versions) = (player.random(writer), PartVersions::default());
    let (queue, mut in_flight) = (Queue::new(DEPTH), BTreeSet::new());
    let mut left = player.records * WRITES_PER_RECORD;
    while left > 0 || !in_flight.is_empty() {
        while left > 0 && in_flight.len() < DEPTH {
            let part = any_part(&mut random, writer);
            if in_flight.insert(part) {
                let (_, bytes) = versions.begin(player, part);
                let offset = range_of(part).start;
                queue
                    .write_at(file, Buffer::from(&bytes[..]), offset, part)
                    .expect("there is room");
                left -= 1;
            }
        }
        for done in queue.reap(1) {
            done.result.expect("there is space");
            let version = versions.0[&done.tag];
            player.mark(Act::StablePart { part: done.tag, version });
            in_flight.remove(&done.tag);
            poison(done.buffer);
        }
    }
}

/// Each task has its own parts.
fn write_by_futures(player: &Player<'_>, file: &File, writer: u64) {
    let file = AsyncFile::from(file.try_clone().expect("another handle"));
    let task = async |task: u64| {
        let mut versions = PartVersions::default();
        let mut random = player.random(writer | task << 4);
        for _ in 0..player.records * WRITES_PER_RECORD / TASKS {
            let of_task = random.below(PARTS / THREADS_OF_A_FILE / TASKS) * TASKS + task;
            let part = of_task * THREADS_OF_A_FILE + writer;
            let (version, bytes) = versions.begin(player, part);
            let (written, mut bytes) = file.write_at(bytes, range_of(part).start).await;
            written.expect("there is space");
            bytes.fill(POISON);
            player.mark(Act::StablePart { part, version });
        }
    };
    block_on(join_all((0..TASKS).map(task)));
    block_on(file.close()).expect("one of the handles");
}

/// The control, by plain calls: all writers read one block, and then each writes it with its part.
pub(crate) fn write_together(player: &Player<'_>) {
    let file = make_zeros(player);
    let together = Barrier::new(THREADS_OF_A_FILE as usize);
    player.together(|writer| {
        // The same for all writers.
        let mut random = player.random(THREADS_OF_A_FILE);
        let mut versions = PartVersions::default();
        for _ in 0..player.records {
            let first = random.below(PARTS * 512 / BLOCK as u64) * BLOCK as u64;
            let part = part_in(first..first + BLOCK as u64, writer);
            let mut block = Buffer::zeroed(BLOCK);
            let (version, bytes) = versions.begin(player, part);
            file.read_exact_at(&mut block, first).expect("it reads");
            together.wait();
            let at = (range_of(part).start - first) as usize;
            block[at..at + bytes.len()].copy_from_slice(&bytes);
            file.write_all_at(&block, first).expect("it writes");
            file.sync_data().expect("it syncs");
            player.mark(Act::StablePart { part, version });
            // The next block may be the same.
            together.wait();
        }
    });
}

/// The first part of the writer that lies in the block.
fn part_in(block: Range<u64>, writer: u64) -> u64 {
    let is_in = |part: &u64| {
        let range = range_of(*part);
        part % THREADS_OF_A_FILE == writer && block.start <= range.start && range.end <= block.end
    };
    (0..PARTS).find(is_in).expect("each writer has a part in each block")
}

/// The versions of a part at a power cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Known {
    begun: u64,
    /// 0 if none is stable.
    stable: u64,
}

/// The parts of a file that were written before a power cut.
#[derive(Debug)]
pub struct Parts(Vec<Known>);

impl Parts {
    /// The parts of a file with these acts.
    pub fn of(acts: impl Iterator<Item = Act>) -> Parts {
        let mut parts = vec![Known::default(); PARTS as usize];
        for act in acts {
            match act {
                Act::BeginPart { part, version } => parts[part as usize].begun = version,
                Act::StablePart { part, version } => {
                    let known = &mut parts[part as usize];
                    known.stable = known.stable.max(version);
                }
                _ => unreachable!("of another workload: {act:?}"),
            }
        }
        Parts(parts)
    }

    /// The number of parts that must survive.
    pub fn kept(&self) -> usize {
        self.0.iter().filter(|known| known.stable > 0).count()
    }

    /// Opens, checks and closes a file.
    ///
    /// # Errors
    ///
    /// An error of the check itself. A file that cannot be opened is a loss.
    pub fn check(&self, dir: &Path, file: u64) -> io::Result<Vec<Loss>> {
        let path = path_of(dir, file, 0);
        let mut losses = Losses::default();
        if !path.exists() {
            losses.add_unless(self.kept() == 0, || "lost: it is gone".to_owned());
        } else {
            match read(&path) {
                Ok((bytes, end)) => {
                    self.compare(file, &bytes, &mut losses);
                    check_closed(&path, end, &mut losses)?;
                }
                Err(error) => losses.add(|| error.to_string()),
            }
        }
        Ok(losses.first.into_iter().map(|loss| format!("file {file}: {loss}")).collect())
    }

    fn compare(&self, file: u64, bytes: &[u8], losses: &mut Losses) {
        for (part, known) in (0..).zip(&self.0) {
            let start = range_of(part).start as usize;
            let versions: Vec<_> =
                (known.stable..=known.begun).map(|version| content(file, part, version)).collect();
            for piece in pieces_of(part) {
                let of_part = piece.start - start..piece.end - start;
                let is_there = |version: &Vec<u8>| version[of_part.clone()] == bytes[piece.clone()];
                losses.add_unless(versions.iter().any(is_there), || {
                    let found = &bytes[piece.clone()][..piece.len().min(16)];
                    format!("lost at {}: {found:02x?}… of part {part}, {known:?}", piece.start)
                });
            }
        }
    }
}

/// The bytes of a part in the file, by sectors.
fn pieces_of(part: u64) -> impl Iterator<Item = Range<usize>> {
    let (start, end) = (range_of(part).start as usize, range_of(part).end as usize);
    let sectors = start / SECTOR..end.div_ceil(SECTOR);
    sectors.map(move |at| start.max(at * SECTOR)..end.min((at + 1) * SECTOR))
}

/// Returns the bytes of all parts, zeros behind the end of the file, and that end.
fn read(path: &Path) -> dioxide::Result<(Vec<u8>, u64)> {
    let file = OpenOptions::new().write(true).open(path)?;
    let mut bytes = vec![0; range_of(PARTS).start as usize];
    file.read_at(&mut bytes, 0)?;
    let end = file.len()?;
    file.close()?;
    Ok((bytes, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_lie_side_by_side_and_share_sectors_and_blocks() {
        let ranges: Vec<_> = (0..PARTS).map(range_of).collect();
        assert_eq!(ranges[0].start, 0);
        assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
        let crosses =
            |range: &&Range<u64>| range.start / BLOCK as u64 != (range.end - 1) / BLOCK as u64;
        assert!(ranges.iter().filter(crosses).count() > 3, "too few parts lie in two blocks");
        for block in 0..PARTS * 512 / BLOCK as u64 {
            let block = block * BLOCK as u64..(block + 1) * BLOCK as u64;
            let own = (0..THREADS_OF_A_FILE).map(|writer| part_in(block.clone(), writer));
            assert_eq!(own.collect::<BTreeSet<_>>().len() as u64, THREADS_OF_A_FILE);
        }
        for part in 0..PARTS {
            let pieces: Vec<_> = pieces_of(part).collect();
            let bytes: usize = pieces.iter().map(Range::len).sum();
            assert_eq!(bytes, content(0, part, 1).len());
            assert!(pieces.iter().all(|it| it.start / SECTOR == (it.end - 1) / SECTOR));
        }
    }

    /// A file in which part 5, of 1000 bytes in three sectors, has version 2 stable and 3 begun.
    fn told(change: impl Fn(&mut [u8])) -> String {
        let parts = Parts::of(
            [
                Act::BeginPart { part: 4, version: 1 },
                Act::StablePart { part: 4, version: 1 },
                Act::BeginPart { part: 5, version: 1 },
                Act::BeginPart { part: 5, version: 2 },
                Act::StablePart { part: 5, version: 2 },
                Act::StablePart { part: 5, version: 1 },
                Act::BeginPart { part: 5, version: 3 },
            ]
            .into_iter(),
        );
        assert_eq!(parts.kept(), 2);
        let mut bytes = vec![0; range_of(PARTS).start as usize];
        put(&mut bytes, 4, 1, 0..512);
        put(&mut bytes, 5, 2, 0..1000);
        change(&mut bytes);
        let mut losses = Losses::default();
        parts.compare(1, &bytes, &mut losses);
        losses.first.join("; ")
    }

    fn put(bytes: &mut [u8], part: u64, version: u64, of_part: Range<usize>) {
        let start = range_of(part).start as usize;
        bytes[start + of_part.start..start + of_part.end]
            .copy_from_slice(&content(1, part, version)[of_part]);
    }

    #[test]
    fn each_sector_has_the_stable_version_or_a_later_one() {
        assert_eq!(told(|_| {}), "");
        assert_eq!(told(|bytes| put(bytes, 5, 3, 0..1000)), "");
        let sectors: Vec<_> = pieces_of(5).collect();
        let first = sectors[0].len();
        assert_eq!(told(|bytes| put(bytes, 5, 3, first..1000)), "", "a disk may tear it");
        assert!(told(|bytes| put(bytes, 5, 3, 100..1000)).contains("lost at"), "inside a sector");
        assert!(told(|bytes| put(bytes, 5, 1, 0..1000)).contains("of part 5"), "an old version");
        assert!(told(|bytes| put(bytes, 5, 4, 0..1000)).contains("of part 5"), "from nowhere");
        assert!(told(|bytes| put(bytes, 4, 0, 0..512)).contains("of part 4"), "a lost neighbour");
        assert!(told(|bytes| bytes[0] = POISON).contains("of part 0"), "never written");
    }
}
