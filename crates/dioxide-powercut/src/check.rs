//! Checks a file after a power cut: opens it as its owner would, and compares every sector with its
//! history.

mod frames;

use crate::history::{Fate, History};
use crate::mark::Name;
use crate::workload::{POISON, path_of};
use crate::{BLOCK, SECTOR};
use dioxide::{File, OpenOptions, Verdict};
use dioxide_testkit::files;
use dioxide_testkit::records::Stamp;
use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A broken promise, in words.
pub type Loss = String;

/// Losses in words: a fault that occurs once mostly occurs often.
const LOSSES_MAX: usize = 5;

/// Recovers file `number` of a workload in `dir`, checks it, and leaves it closed.
///
/// # Errors
///
/// An error of the check itself. A file that cannot be opened is a loss.
pub fn check(dir: &Path, number: u64, history: &History) -> io::Result<Vec<Loss>> {
    let Some(path) = find(dir, number)? else {
        let lost = history.kept() > 0;
        return Ok(if lost { vec![format!("lost: file {number} is gone")] } else { vec![] });
    };
    let mut losses = Losses::default();
    match recover(&path, history, &mut losses) {
        Ok(end) => check_closed(&path, end, &mut losses)?,
        Err(error) => losses.add(|| error.to_string()),
    }
    Ok(losses.first.into_iter().map(|loss| format!("file {number}: {loss}")).collect())
}

/// The first losses in words, and the number of all.
#[derive(Default)]
pub(crate) struct Losses {
    pub first: Vec<Loss>,
    pub count: usize,
}

impl Losses {
    pub fn add(&mut self, loss: impl FnOnce() -> Loss) {
        self.count += 1;
        if self.first.len() < LOSSES_MAX {
            self.first.push(loss());
        }
    }

    pub fn add_unless(&mut self, holds: bool, loss: impl FnOnce() -> Loss) {
        if !holds {
            self.add(loss);
        }
    }
}

/// The file under the name of its current life.
fn find(dir: &Path, number: u64) -> io::Result<Option<PathBuf>> {
    let life_0 = path_of(dir, number, 0);
    let stem = life_0.file_stem();
    let paths =
        fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    Ok(paths.into_iter().find(|path| path.file_stem() == stem))
}

/// Opens, checks and closes the file. Returns its end in bytes.
fn recover(path: &Path, history: &History, losses: &mut Losses) -> dioxide::Result<u64> {
    let file = OpenOptions::new().write(true).open(path)?;
    let (found_end, end_of_records) = look(&read(&file)?, file.alignment().append, history, losses);
    let mut end = file.len()?;
    losses.add_unless(found_end == end, || format!("{found_end} bytes are read, of {end}"));
    let (floor, ceiling) = (history.floor, history.ceiling);
    let within = |end| (floor..=ceiling).contains(&end);
    let undecided = file.recovery().filter(|found| found.verdict == Verdict::EndUnknown);
    losses.add_unless(undecided.is_some() || within(end), || {
        format!("ends at {end}, not between {floor} and {ceiling}; {:?}", file.recovery())
    });
    // A log of frames continues after its last whole frame.
    if undecided.is_some() || history.is_framed {
        end = end_of_records;
        losses.add_unless(within(end), || {
            format!("its records end at {end}, not between {floor} and {ceiling}")
        });
        if let Some(found) = undecided {
            let block = if history.is_framed { file.alignment().append } else { 1 };
            losses.add_unless(lies_between(end, block, found.floor, found.ceiling), || {
                format!("ends at {end}: {found}")
            });
        }
        file.set_len(end)?;
    }
    file.close()?;
    Ok(end)
}

/// Whether records that end at `end` fit a file that ends between `floor` and `ceiling`. With
/// padded blocks the file ends after the padding of the last record.
fn lies_between(end: u64, block: u64, floor: u64, ceiling: u64) -> bool {
    floor <= end.next_multiple_of(block) && end <= ceiling
}

/// Checks all bytes of a file with blocks of this size. Returns the number of bytes and the end of
/// the records.
fn look(bytes: &[u8], block: u64, history: &History, losses: &mut Losses) -> (u64, u64) {
    let end_of_records = if history.is_framed {
        frames::look(bytes, block, history, losses)
    } else {
        let content = Content::of(bytes, history, losses);
        content.check_kept(history, losses);
        content.end_of_records(history)
    };
    (bytes.len() as u64, end_of_records)
}

fn read(file: &File) -> dioxide::Result<Vec<u8>> {
    let len = file.len()? as usize;
    let mut bytes = vec![0; len];
    let read = file.read_at(&mut bytes, 0)?;
    bytes.truncate(read);
    Ok(bytes)
}

/// Any other program sees a closed file as it is.
pub(crate) fn check_closed(path: &Path, end: u64, losses: &mut Losses) -> io::Result<()> {
    let size = fs::metadata(path)?.len();
    losses.add_unless(size == end, || format!("closed at {end}, it has {size} bytes"));
    let marker = files::marker(path)?;
    losses.add_unless(marker.is_none(), || "closed, it has a marker".to_owned());
    Ok(())
}

/// The stamps of the sectors.
struct Content {
    stamps: Vec<Option<Stamp>>,
}

impl Content {
    /// Each sector must belong to a record that may be there, at one offset, or be empty where that
    /// is allowed.
    fn of(bytes: &[u8], history: &History, losses: &mut Losses) -> Content {
        let mut places = HashMap::new();
        let mut check = |(sector, at): (&[u8], u64)| {
            let stamp = Stamp::of(sector);
            let wrong = match stamp {
                Some(stamp) => wrong_with(stamp, at, history, &mut places),
                None => wrong_without_stamp(sector, at, history),
            };
            if let Some(wrong) = wrong {
                losses.add(|| format!("at {at}: {wrong}"));
            }
            stamp
        };
        let at = (0..).step_by(SECTOR);
        Content { stamps: bytes.chunks(SECTOR).zip(at).map(&mut check).collect() }
    }

    fn check_kept(&self, history: &History, losses: &mut Losses) {
        for (name, record) in history.records.iter().filter(|(_, record)| record.fate == Fate::Kept)
        {
            let offset = record.offset.expect("a durable record has an offset");
            let first = offset as usize / SECTOR;
            let lost = (0..record.bytes / SECTOR as u64).find(|&part| {
                let stamp = Stamp { writer: name.writer, number: name.number, part };
                self.stamps.get(first + part as usize) != Some(&Some(stamp))
            });
            if let Some(part) = lost {
                losses.add(|| format!("lost from sector {part} on: {name:?}, {record:?}"));
            }
        }
    }

    /// The end of the gapless records of the current life, from offset 0.
    fn end_of_records(&self, history: &History) -> u64 {
        let is_of_this_life = |stamp: &Option<Stamp>| {
            let record = stamp.and_then(|stamp| history.records.get(&name_of(stamp)));
            record.is_some_and(|record| record.life == history.life)
        };
        let sectors = self.stamps.iter().take_while(|stamp| is_of_this_life(stamp)).count();
        (sectors * SECTOR / BLOCK * BLOCK) as u64
    }
}

fn name_of(stamp: Stamp) -> Name {
    Name { writer: stamp.writer, number: stamp.number }
}

fn wrong_with(
    stamp: Stamp,
    at: u64,
    history: &History,
    places: &mut HashMap<Name, u64>,
) -> Option<Loss> {
    let name = name_of(stamp);
    let Some(record) = history.records.get(&name) else {
        return Some(format!("a record that no thread had begun: {stamp:?}"));
    };
    let before = stamp.part * SECTOR as u64;
    if before > at || before >= record.bytes {
        return Some(format!("a sector at a wrong place: {stamp:?}, {record:?}"));
    }
    let place = *places.entry(name).or_insert(record.offset.unwrap_or(at - before));
    if place != at - before {
        return Some(format!("a record of {place} once more at {}: {stamp:?}", at - before));
    }
    (record.fate == Fate::Gone).then(|| format!("a record that was truncated: {stamp:?}"))
}

fn wrong_without_stamp(sector: &[u8], at: u64, history: &History) -> Option<Loss> {
    let (first, is_even) = (sector[0], sector.iter().all(|byte| *byte == sector[0]));
    match first {
        0 if is_even && history.is_gapless && at < history.floor => {
            Some(format!("lost: a gap below the durable end, {}", history.floor))
        }
        0 if is_even => None,
        POISON if is_even => Some("a buffer as it was after its call had returned".to_owned()),
        0xA5 if is_even => Some("old content of the disk".to_owned()),
        _ => Some(format!("neither a record nor zeros, but {:02x?}…", &sector[..16])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_padding_of_the_last_block_is_no_lost_record() {
        assert!(lies_between(331_641, 4096, 331_776, 598_016));
        assert!(lies_between(331_776, 4096, 331_776, 331_776));
        assert!(!lies_between(327_680, 4096, 331_776, 598_016), "a block is missing");
        assert!(!lies_between(331_641, 1, 331_776, 598_016), "and here not even a byte may be");
        assert!(!lies_between(598_017, 4096, 331_776, 598_016));
    }
    use crate::mark::Act;

    const NAME: Name = Name { writer: 1, number: 2 };

    fn sector(number: u64, part: u64) -> [u8; SECTOR] {
        let mut sector = [0; SECTOR];
        Stamp { writer: NAME.writer, number, part }.fill(&mut sector);
        sector
    }

    /// The losses of a file with one record of two sectors, durable at 512, after an intended gap.
    fn losses(sectors: &[[u8; SECTOR]]) -> Vec<Loss> {
        let history = History::of([Act::WriteAt(NAME, 1024, 512), Act::Durable(NAME, 512)]);
        let mut losses = Losses::default();
        Content::of(&sectors.concat(), &history, &mut losses).check_kept(&history, &mut losses);
        losses.first
    }

    const HOLE: [u8; SECTOR] = [0; SECTOR];

    #[test]
    fn a_file_as_it_should_be_is_all_right() {
        assert_eq!(losses(&[HOLE, sector(2, 0), sector(2, 1)]), [""; 0]);
    }

    #[test]
    fn every_kind_of_loss_is_told() {
        let said = |sectors: &[[u8; SECTOR]]| losses(sectors).join("; ");
        let (first, second) = (sector(2, 0), sector(2, 1));
        assert!(said(&[]).contains("lost from sector 0"));
        assert!(said(&[HOLE, first]).contains("lost from sector 1"));
        assert!(said(&[HOLE, first, HOLE]).contains("lost from sector 1"));
        assert!(said(&[HOLE, first, second, first]).contains("once more at 1536"));
        assert!(said(&[HOLE, first, second, sector(3, 0)]).contains("no thread had begun"));
        assert!(said(&[HOLE, first, second, sector(2, 2)]).contains("wrong place"));
        assert!(said(&[[0xA5; SECTOR], first, second]).contains("old content"));
        assert!(said(&[[POISON; SECTOR], first, second]).contains("after its call"));
        assert!(said(&[[9; SECTOR], first, second]).contains("neither"));
    }

    #[test]
    fn a_gap_among_appends_and_what_was_cut_off_are_losses() {
        let told = |acts: &[Act], bytes: &[u8]| {
            let mut losses = Losses::default();
            Content::of(bytes, &History::of(acts.iter().copied()), &mut losses);
            losses.first.join("; ")
        };
        let mut acts = vec![Act::Append(NAME, 512), Act::Durable(NAME, 512)];
        let bytes = [HOLE, sector(2, 0)].concat();
        assert!(told(&acts, &bytes).contains("a gap below"));
        acts.extend([Act::Cut(0), Act::WasCut(0)]);
        assert!(told(&acts, &bytes).contains("was truncated"));
    }
}
