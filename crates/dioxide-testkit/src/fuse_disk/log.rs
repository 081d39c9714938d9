//! The requests to a disk in the order in which they took effect, and the choice of what survives a
//! power cut.

use std::io::{self, Read, Write};
use std::ops::Range;

use super::image::{Image, SECTOR};
use super::protocol::Keep;

/// A workload's own entry in the log; its numbers have the meaning that the workload gives them.
pub type Mark = [u64; 4];

pub(super) const MARK_BYTES: usize = size_of::<Mark>();

pub(super) enum LogEntry {
    Write { offset: usize, data: Vec<u8> },
    Zeros(Range<usize>),
    Flush,
    Mark(Mark),
}

impl LogEntry {
    /// The bytes of the disk that it changes.
    fn range(&self) -> Range<usize> {
        match self {
            LogEntry::Write { offset, data } => *offset..offset + data.len(),
            LogEntry::Zeros(range) => range.clone(),
            LogEntry::Flush | LogEntry::Mark(_) => 0..0,
        }
    }

    /// Its content for the part `range` of its bytes.
    fn fill(&self, range: Range<usize>, into: &mut [u8]) {
        match self {
            LogEntry::Write { offset, data } => {
                into.copy_from_slice(&data[range.start - offset..range.end - offset])
            }
            _ => into.fill(0),
        }
    }

    /// Makes it stable.
    pub(super) fn settle(&self, image: &mut Image) {
        let range = self.range();
        self.fill(range.clone(), image.stable_mut(range));
    }

    /// Applies those of its sectors that are kept.
    pub(super) fn keep_some(&self, image: &mut Image, chooser: &mut Chooser) {
        chooser.begin_write();
        for sector in sectors(self.range()) {
            if chooser.keeps_sector() {
                self.fill(sector.clone(), image.cached_mut(sector));
            }
        }
    }
}

fn sectors(range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let first = range.start / SECTOR * SECTOR;
    let clip = move |start: usize| start.max(range.start)..(start + SECTOR).min(range.end);
    (first..range.end).step_by(SECTOR).map(clip)
}

/// Decides for each write in order, and for each of its sectors in order, whether it is kept.
pub(super) struct Chooser {
    keep: Keep,
    random: SplitMix,
    keeps_write: bool,
}

impl Chooser {
    pub(super) fn new(keep: Keep) -> Chooser {
        let seed = match keep {
            Keep::Random { seed } | Keep::Writes { seed } => seed,
            Keep::Nothing | Keep::All => 0,
        };
        Chooser { keep, random: SplitMix(seed), keeps_write: false }
    }

    fn begin_write(&mut self) {
        self.keeps_write = match self.keep {
            Keep::Nothing => false,
            Keep::All | Keep::Random { .. } => true,
            Keep::Writes { .. } => self.random.next() & 1 == 1,
        };
    }

    fn keeps_sector(&mut self) -> bool {
        match self.keep {
            Keep::Random { .. } => self.random.next() & 1 == 1,
            _ => self.keeps_write,
        }
    }
}

/// SplitMix64: small, and good from any seed.
pub(super) struct SplitMix(pub(super) u64);

impl SplitMix {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

/// The marks of a log, each with its position.
pub(super) fn marks(log: &[LogEntry]) -> Vec<u8> {
    let marks = log.iter().zip(0u64..).filter_map(|(entry, place)| match entry {
        LogEntry::Mark(mark) => Some((place, mark)),
        _ => None,
    });
    marks
        .flat_map(|(place, mark)| std::iter::once(place).chain(*mark))
        .flat_map(u64::to_le_bytes)
        .collect()
}

const WRITE: u64 = 0;
const ZEROS: u64 = 1;
const FLUSH: u64 = 2;
const MARK: u64 = 3;

/// Saves a log: for each entry its kind, offset and length as three numbers, then the data.
pub(super) fn save(log: &[LogEntry], into: &mut impl Write) -> io::Result<()> {
    for entry in log {
        let (kind, data) = match entry {
            LogEntry::Write { data, .. } => (WRITE, &data[..]),
            LogEntry::Zeros(_) => (ZEROS, &[][..]),
            LogEntry::Flush => (FLUSH, &[][..]),
            LogEntry::Mark(mark) => (MARK, &mark.map(u64::to_le_bytes).concat()[..]),
        };
        let range = entry.range();
        write_numbers(into, [kind, range.start as u64, range.len() as u64])?;
        into.write_all(data)?;
    }
    Ok(())
}

fn write_numbers(into: &mut impl Write, numbers: [u64; 3]) -> io::Result<()> {
    numbers.iter().try_for_each(|number| into.write_all(&number.to_le_bytes()))
}

/// Loads a log that [`save`] wrote, up to the end of the file.
pub(super) fn load(from: &mut impl Read) -> io::Result<Vec<LogEntry>> {
    let mut log = Vec::new();
    while let Some([kind, offset, len]) = read_numbers(from)? {
        log.push(match kind {
            WRITE => {
                let mut data = vec![0; len as usize];
                from.read_exact(&mut data)?;
                LogEntry::Write { offset: offset as usize, data }
            }
            ZEROS => LogEntry::Zeros(offset as usize..(offset + len) as usize),
            FLUSH => LogEntry::Flush,
            MARK => {
                let mut bytes = [0; MARK_BYTES];
                from.read_exact(&mut bytes)?;
                LogEntry::Mark(mark_of(&bytes))
            }
            _ => return Err(io::Error::other(format!("not a log: an entry of kind {kind}"))),
        });
    }
    Ok(log)
}

fn read_numbers(from: &mut impl Read) -> io::Result<Option<[u64; 3]>> {
    let mut bytes = [0; 24];
    match from.read_exact(&mut bytes) {
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        result => result.map(|()| Some(numbers(&bytes))),
    }
}

pub(super) fn mark_of(bytes: &[u8; MARK_BYTES]) -> Mark {
    numbers(bytes)
}

/// Decodes `N` little-endian numbers.
pub(super) fn numbers<const N: usize>(bytes: &[u8]) -> [u64; N] {
    std::array::from_fn(|i| {
        u64::from_le_bytes(bytes[i * 8..][..8].try_into().expect("eight bytes"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_survives_its_file() {
        let log = [
            LogEntry::Write { offset: 512, data: vec![7; 1024] },
            LogEntry::Zeros(0..4096),
            LogEntry::Flush,
            LogEntry::Mark([1, 2, 3, u64::MAX]),
        ];
        let mut file = Vec::new();
        save(&log, &mut file).unwrap();
        let loaded = load(&mut &file[..]).unwrap();
        assert_eq!(marks(&loaded), marks(&log));
        let mut again = Vec::new();
        save(&loaded, &mut again).unwrap();
        assert_eq!((again, loaded.len()), (file, 4));
        assert!(load(&mut &[9; 24][..]).is_err());
    }

    #[test]
    fn sectors_lie_at_their_places_on_the_disk() {
        assert!(sectors(500..1536).eq([500..512, 512..1024, 1024..1536]));
        assert_eq!(sectors(0..0).count(), 0);
    }
}
