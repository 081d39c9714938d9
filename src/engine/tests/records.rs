//! Records of any length in any order of operations: the bytes on the disk after each operation and
//! after every crash.

use super::*;
use std::ops::Range;

const BLOCK: u64 = BLOCK_BYTES;
const SECTOR: u64 = 512;

/// A way for the file to grow, and to treat its last block.
#[derive(Clone, Copy, Debug)]
struct Way {
    prepared: Option<Prepared>,
    tail: Tail,
}

fn ways() -> impl Iterator<Item = Way> {
    let prepared = [Some(Prepared::Unwritten), Some(Prepared::Zeroed), None];
    prepared
        .into_iter()
        .flat_map(|prepared| [Tail::Rewrite, Tail::Pad].map(|tail| Way { prepared, tail }))
}

impl Way {
    fn open(self, disk: Disk) -> Result<SimFile, ErrorKind> {
        open_as(disk, FileProps { tail: self.tail, ..props(self.prepared) }, FileSystems::default())
    }
}

/// The content of the file that another program sees.
fn all_bytes(file: &SimFile, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; len as usize];
    file.backend.0.device.peek(file.backend.0.inode, &mut bytes, 0);
    bytes
}

#[test]
fn a_full_disk_refuses_padded_records() {
    for prepared in [Some(Prepared::Unwritten), Some(Prepared::Zeroed), None] {
        let way = Way { prepared, tail: Tail::Pad };
        let file = way.open(Disk::new(4 * BLOCK)).unwrap();
        for n in 0..4 {
            assert_eq!(file.append(&[1; 100], true), Ok(n * BLOCK), "{prepared:?}");
        }
        let refused = file.append(&[2; 100], true).unwrap_err();
        assert_eq!(*refused.kind(), ErrorKind::NoSpace(libc::ENOSPC), "{prepared:?}");
        assert_eq!(file.len(), 3 * BLOCK + 100);
        file.set_len(100).unwrap();
        assert_eq!(file.append(&[3; 100], true), Ok(BLOCK));
    }
}

#[test]
fn a_padded_record_behind_a_hole_is_found_after_a_crash() {
    for way in ways() {
        let file = way.open(Disk::new(DISK_BYTES)).unwrap();
        file.append(&[1; 100], true).unwrap();
        file.set_len(2 * BLOCK + 5).unwrap();
        let offset = file.append(&[2; 100], true).unwrap();
        let after = way.open(file.backend.crash(|_| true)).unwrap();
        assert!(after.len() >= offset + 100, "{way:?}: {}", after.len());
        assert_eq!(all_bytes(&after, offset + 100)[offset as usize..], [2; 100], "{way:?}");
    }
}

/// Every subset of the sectors of a block that is rewritten.
#[test]
fn a_torn_rewrite_harms_no_byte_that_was_acknowledged() {
    for prepared in [Some(Prepared::Unwritten), Some(Prepared::Zeroed), None] {
        let way = Way { prepared, tail: Tail::Rewrite };
        for kept in 0..1u64 << (BLOCK / SECTOR) {
            let file = way.open(Disk::new(DISK_BYTES)).unwrap();
            file.append(&[1; 1000], true).unwrap();
            file.append(&[2; 2500], false).unwrap();
            let mut sector = 0;
            let torn = file.backend.crash(|block| {
                // The others hold zeros.
                let is_first = block == Some(0);
                sector += u64::from(is_first);
                !is_first || kept >> (sector - 1) & 1 == 1
            });
            assert_eq!(sector, BLOCK / SECTOR, "every sector is asked for");
            let after = way.open(torn).unwrap();
            assert!(after.len() >= 1000);
            let found = all_bytes(&after, BLOCK);
            for (at, found) in (0..BLOCK).zip(found) {
                let is_kept = kept >> (at / SECTOR) & 1 == 1;
                let wanted = [1, if is_kept && at < 3500 { 2 } else { 0 }][usize::from(at >= 1000)];
                assert_eq!(found, wanted, "byte {at}, sectors {kept:b}, {prepared:?}");
            }
        }
    }
}

#[test]
fn a_last_block_whose_rewrite_fails_keeps_what_it_held() {
    for way in ways() {
        let file = way.open(Disk::new(DISK_BYTES)).unwrap();
        file.append(&[1; 1000], true).unwrap();
        file.backend.fail(Call::Write, 0, libc::EIO);
        let failed = file.append(&[2; 2000], false).unwrap_err();
        assert_eq!(*failed.kind(), ErrorKind::Os(libc::EIO), "{way:?}");
        let ended = file.append(&[3; 10], false).unwrap_err();
        assert!(matches!(ended.kind(), ErrorKind::AppendEnded(_)), "{way:?}: {ended}");
        let mut first = Buffer::zeroed(1000);
        assert_eq!(file.read_at(&mut first, 0), Ok(1000));
        assert_eq!(first[..], [1; 1000], "{way:?}");
        let after = way.open(file.backend.crash(|_| true)).unwrap();
        assert_eq!(all_bytes(&after, 1000), [1; 1000], "{way:?}");
        file.set_len(1000).unwrap();
        let offset = if way.tail == Tail::Rewrite { 1000 } else { BLOCK };
        assert_eq!(file.append(&[4; 10], true), Ok(offset), "{way:?}");
        file.finish().unwrap();
        let mut wanted = [1; 1000].to_vec();
        wanted.resize(offset as usize, 0);
        wanted.extend([4; 10]);
        assert_eq!(all_bytes(&file, offset + 10), wanted, "{way:?}");
    }
}

/// The content that a file may have after a crash. Each write has a number, which its bytes hold.
#[derive(Clone, Debug, Default)]
struct Model {
    next: u8,
    /// The content that programs read.
    content: Vec<u8>,
    /// The content that survives a crash.
    stable: Vec<u8>,
    /// Writes since then, also those in flight.
    since: Vec<(u8, Range<u64>)>,
    /// A length on its way to the disk, which may survive a crash or not.
    becoming: Option<u64>,
}

impl Model {
    fn number(&mut self) -> u8 {
        self.next += 1;
        self.next
    }

    fn write(&mut self, number: u8, at: Range<u64>) {
        self.content.resize(self.content.len().max(at.end as usize), 0);
        self.content[at.start as usize..at.end as usize].fill(number);
    }

    /// Everything up to the end is there, but plain overwrites may be lost.
    fn extension_is_stable(&mut self) {
        let known = self.stable.len();
        self.stable.extend(&self.content[known..]);
    }

    fn all_is_stable(&mut self) {
        self.stable.clone_from(&self.content);
        self.since.clear();
        self.becoming = None;
    }

    fn least(&self) -> u64 {
        (self.stable.len() as u64).min(self.becoming.unwrap_or(u64::MAX))
    }

    /// The end of the block of the last record.
    fn most(&self) -> u64 {
        let since =
            self.since.iter().map(|(_, range)| range.end).chain(self.becoming).max().unwrap_or(0);
        since.max(self.stable.len() as u64).next_multiple_of(BLOCK)
    }

    fn allows(&self, at: u64, found: u8) -> bool {
        let since =
            self.since.iter().any(|(number, range)| *number == found && range.contains(&at));
        let given_up = self.becoming.is_some_and(|to| to <= at);
        match self.stable.get(at as usize) {
            Some(stable) => *stable == found || since || given_up && found == 0,
            None => since || found == 0,
        }
    }

    /// The end of the records of this life, as far as their program can find it.
    fn end_of_records(&self, found: &[u8]) -> u64 {
        let known = found.iter().zip(0..).take_while(|(found, at)| self.allows(*at, **found));
        known.filter(|(found, _)| **found != 0).last().map_or(0, |(_, at)| at + 1).max(self.least())
    }

    fn check(&self, way: Way, disk: Disk, at: &str) {
        let file = way.open(disk).unwrap_or_else(|kind| panic!("{at}: {kind}"));
        if file.recovery.verdict == Verdict::EndUnknown {
            let end = self.end_of_records(&all_bytes(&file, file.len().min(self.most())));
            let floor = file.recovery.floor;
            assert!(floor <= self.most(), "{at}: {:?}", file.recovery);
            file.set_len(end.max(floor)).unwrap_or_else(|error| panic!("{at}: {error}"));
        }
        let (len, least, most) = (file.len(), self.least(), self.most());
        assert!((least..=most).contains(&len), "{at}: {len} bytes, not {least} to {most}");
        for (found, place) in all_bytes(&file, len).into_iter().zip(0..) {
            assert!(self.allows(place, found), "{at}: byte {place} of {len} is {found}");
        }
    }
}

/// The operations of a program on the file, the same for the same seed.
struct Life {
    way: Way,
    file: Option<SimFile>,
    model: Model,
    random: fastrand::Rng,
}

const LENS: [u64; 12] =
    [0, 1, 100, 511, 512, 513, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5, 2 * BLOCK, 700];

impl Life {
    /// Runs this many steps, or fewer if one fails because the disk dies. Returns whether the disk
    /// lived.
    fn live(&mut self, steps: u64) -> bool {
        (0..steps).all(|_| self.step().is_ok())
    }

    fn step(&mut self) -> Result<(), ErrorKind> {
        let file = self.file.clone().expect("open between steps");
        let (durable, len) = (self.random.bool(), self.model.content.len() as u64);
        match self.random.u8(..17) {
            0..=8 => {
                let number = self.model.number();
                let record = vec![number; LENS[self.random.usize(..LENS.len())] as usize];
                let expected = match self.way.tail {
                    Tail::Pad if !record.is_empty() => len.next_multiple_of(BLOCK),
                    _ => len,
                };
                let range = expected..expected + record.len() as u64;
                self.model.since.push((number, range.clone()));
                assert_eq!(
                    file.append(&record, durable).map_err(|error| error.kind().clone())?,
                    expected
                );
                self.model.write(number, range);
                if durable && !record.is_empty() {
                    self.model.extension_is_stable();
                }
            }
            9..=11 if len >= SECTOR => {
                // Below the end, in the last blocks.
                let last = len / SECTOR - 1;
                let first = last - self.random.u64(..=last.min(12));
                let number = self.model.number();
                let range = first * SECTOR..(first + 1 + self.random.u64(..=last - first)) * SECTOR;
                let data = Buffer::from(&vec![number; (range.end - range.start) as usize][..]);
                self.model.since.push((number, range.clone()));
                file.write_at(&data, range.start, durable).map_err(|error| error.kind().clone())?;
                self.model.write(number, range);
                if durable {
                    // A durable write promises only its own bytes. The sync makes the others
                    // durable.
                    file.sync_data().map_err(|error| error.kind().clone())?;
                    self.model.all_is_stable();
                }
            }
            12 => {
                file.sync_data().map_err(|error| error.kind().clone())?;
                self.model.all_is_stable();
            }
            13 => {
                let to = self.random.u64(..len + 2 * BLOCK);
                self.model.becoming = Some(to);
                file.set_len(to).map_err(|error| error.kind().clone())?;
                self.model.content.resize(to as usize, 0);
                self.model.all_is_stable();
            }
            14 if self.way.prepared.is_some() => {
                self.model.becoming = Some(0);
                file.recycle().map_err(|error| error.kind().clone())?;
                self.model.content.clear();
                self.model.all_is_stable();
            }
            15 => {
                file.finish().map_err(|error| error.kind().clone())?;
                self.model.all_is_stable();
                assert_eq!(
                    file.backend.0.physical_size().unwrap(),
                    len,
                    "exact after a clean close"
                );
                self.file = Some(self.way.open(file.backend)?);
            }
            _ => {
                let mut into = vec![0xEE; 700];
                let from = len.saturating_sub(self.random.u64(..700));
                let read = file.read_at(&mut into, from).map_err(|error| error.kind().clone())?;
                assert_eq!(into[..read], self.model.content[from as usize..]);
            }
        }
        self.look(len);
        Ok(())
    }

    /// Checks that all acknowledged bytes are there, with zeros up to the end of their block.
    fn look(&self, before: u64) {
        let file = self.file.as_ref().expect("open between steps");
        let len = self.model.content.len() as u64;
        assert_eq!(file.len(), len, "{:?}", self.way);
        let mut found = all_bytes(file, len.next_multiple_of(BLOCK));
        let behind = found.split_off(len as usize);
        assert!(found == self.model.content, "{:?}, {before} bytes before", self.way);
        assert!(behind.iter().all(|byte| *byte == 0), "{:?}: behind the last record", self.way);
    }
}

const STEPS: u64 = 14;

/// Runs a life on a disk that dies after `calls` calls. Returns the life, the disk, and whether it
/// lived; `None` if it died before the file was open.
fn live_until(way: Way, seed: u64, calls: u64) -> Option<(Life, Disk, bool)> {
    let disk = Disk::new(DISK_BYTES);
    disk.die_after(calls);
    let file = way.open(disk.clone()).ok()?;
    let mut life = Life {
        way,
        file: Some(file),
        model: Model::default(),
        random: fastrand::Rng::with_seed(seed),
    };
    let lived = life.live(STEPS);
    Some((life, disk, lived))
}

/// A crash at every call, with several choices of the surviving sectors, and again in the recovery.
#[test]
fn a_crash_in_any_window_loses_no_byte_of_a_record() {
    for (way, seed) in ways().flat_map(|way| (0..2).map(move |seed| (way, seed))) {
        for calls in 0.. {
            let Some((life, disk, lived)) = live_until(way, seed, calls) else { continue };
            let mut random = fastrand::Rng::with_seed(calls);
            for choice in 0..4 {
                let mut cut = |disk: &Disk| {
                    disk.crash(|_| match choice {
                        0 => false,
                        1 => true,
                        _ => random.bool(),
                    })
                };
                let at = format!("{way:?}, seed {seed}, cut {calls}, choice {choice}");
                let crashed = cut(&disk);
                crashed.die_after(calls % 8);
                drop(way.open(crashed.clone()));
                life.model.check(way, cut(&crashed), &format!("{at}, and again in the recovery"));
                life.model.check(way, cut(&disk), &at);
            }
            if lived {
                break;
            }
        }
    }
}

/// The model must be able to fail. Another program writes the last block, so the kept copy of it is
/// out of date.
#[test]
#[should_panic(expected = "bytes before")]
fn a_last_block_that_is_written_again_as_it_was_is_found() {
    let way = Way { prepared: Some(Prepared::Unwritten), tail: Tail::Rewrite };
    let (mut life, _, _) = live_until(way, 0, u64::MAX / 2).expect("nothing fails");
    let file = life.file.clone().expect("open between steps");
    file.set_len(0).unwrap();
    file.append(&[1; 1000], true).unwrap();
    file.backend.0.write(&[Segment::of(&[2; 512])], 0, true).unwrap();
    life.model.content = [[2; 512].as_slice(), &[1; 488], &[3; 10]].concat();
    file.append(&[3; 10], true).unwrap();
    life.look(1000);
}

/// The space behind the last record must hold zeros.
#[test]
#[should_panic(expected = "byte 1200 of 4096 is 9")]
fn padding_that_is_no_zeros_is_found() {
    let way = Way { prepared: Some(Prepared::Unwritten), tail: Tail::Rewrite };
    let file = way.open(Disk::new(DISK_BYTES)).unwrap();
    file.append(&[1; 1000], true).unwrap();
    let mut block = [0; BLOCK as usize];
    block[..1000].fill(1);
    block[1200] = 9;
    file.backend.0.write(&[Segment::of(&block)], 0, true).unwrap();
    let model = Model { stable: vec![1; 1000], ..Model::default() };
    model.check(way, file.backend.crash(|_| true), "control");
}
