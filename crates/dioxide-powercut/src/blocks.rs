//! The blocks that must survive a power cut of a [`shared`](crate::shared) workload, and their
//! check.

use crate::check::{Loss, Losses};
use crate::mark::{Act, Mark};
use crate::shared::path_of;
use crate::{BLOCK, SECTOR};
use dioxide_testkit::records::Stamp;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The versions of a block at a power cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct BlockVersions {
    begun: u64,
    /// 0 if none is stable.
    stable: u64,
}

/// The blocks that were written before a power cut, by file.
#[derive(Debug, Default)]
pub struct Blocks {
    files: BTreeMap<u64, BTreeMap<u64, BlockVersions>>,
}

impl Blocks {
    /// The blocks of these marks.
    pub fn of<'a>(marks: impl IntoIterator<Item = &'a Mark>) -> Blocks {
        let mut blocks = Blocks::default();
        for Mark { file, act } in marks {
            match act {
                Act::Begin { block, version } => blocks.versions(*file, *block).begun = *version,
                Act::Stable { block, version } => {
                    let versions = blocks.versions(*file, *block);
                    versions.stable = versions.stable.max(*version);
                }
                _ => {}
            }
        }
        blocks
    }

    fn versions(&mut self, file: u64, block: u64) -> &mut BlockVersions {
        self.files.entry(file).or_default().entry(block).or_default()
    }

    /// The number of blocks that must survive.
    pub fn kept(&self) -> usize {
        let all = self.files.values().flat_map(BTreeMap::values);
        all.filter(|versions| versions.stable > 0).count()
    }

    /// Compares the files in `dir` with them.
    ///
    /// # Errors
    ///
    /// An error of the check itself. A file that cannot be read is a loss.
    pub fn check(&self, dir: &Path) -> io::Result<Vec<Loss>> {
        let mut losses = Losses::default();
        for (number, blocks) in &self.files {
            let path = path_of(dir, *number);
            let file = match File::open(&path) {
                Ok(file) => file,
                Err(error) => {
                    losses.add(|| format!("lost: file {number}: {error}"));
                    continue;
                }
            };
            for (block, versions) in blocks.iter().filter(|(_, versions)| versions.stable > 0) {
                let mut content = [0; BLOCK];
                let loss = match file.read_exact_at(&mut content, block * BLOCK as u64) {
                    Ok(()) => wrong(*number, *block, *versions, &content),
                    Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                        Some("lost: the file ends before".to_owned())
                    }
                    Err(error) => Some(error.to_string()),
                };
                if let Some(loss) = loss {
                    losses.add(|| format!("file {number}, block {block}: {loss}"));
                }
            }
        }
        let Losses { first: mut words, count } = losses;
        if count > words.len() {
            words.push(format!("{count} losses in all, of {} blocks", self.kept()));
        }
        Ok(words)
    }
}

/// The first sector without a version from the last stable one to the last begun one.
fn wrong(file: u64, block: u64, versions: BlockVersions, content: &[u8]) -> Option<Loss> {
    let first = block * (BLOCK / SECTOR) as u64;
    content.chunks_exact(SECTOR).zip(first..).find_map(|(sector, part)| {
        let found = Stamp::of(sector).filter(|stamp| (stamp.writer, stamp.part) == (file, part));
        let found = found.map(|stamp| stamp.number);
        let fits = found.is_some_and(|found| (versions.stable..=versions.begun).contains(&found));
        (!fits).then(|| format!("lost from sector {}: {found:?}, {versions:?}", part - first))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(versions: [u64; 8]) -> Vec<u8> {
        let mut content = vec![0; BLOCK];
        for ((sector, number), part) in content.chunks_exact_mut(SECTOR).zip(versions).zip(16..) {
            Stamp { writer: 3, number, part }.fill(sector);
        }
        content
    }

    #[test]
    fn a_block_has_its_stable_version_or_a_later_one() {
        let mark = |act| Mark { file: 3, act };
        let marks = [
            mark(Act::Begin { block: 2, version: 1 }),
            mark(Act::Begin { block: 2, version: 2 }),
            mark(Act::Stable { block: 2, version: 2 }),
            mark(Act::Stable { block: 2, version: 1 }),
            mark(Act::Begin { block: 2, version: 3 }),
            mark(Act::Begin { block: 4, version: 1 }),
        ];
        let blocks = Blocks::of(&marks);
        let versions = blocks.files[&3][&2];
        assert_eq!((versions, blocks.kept()), (BlockVersions { begun: 3, stable: 2 }, 1));
        let is_lost = |content: &[u8]| wrong(3, 2, versions, content).is_some();
        assert!(!is_lost(&block([2; 8])) && !is_lost(&block([3; 8])));
        assert!(!is_lost(&block([2, 3, 2, 3, 3, 3, 3, 3])), "a disk may tear the write in flight");
        assert!(is_lost(&block([1; 8])) && is_lost(&block([4; 8])) && is_lost(&[0; BLOCK]));
        assert!(is_lost(&block([3, 3, 3, 3, 3, 3, 3, 1])));
        assert!(wrong(2, 2, versions, &block([2; 8])).is_some(), "of another file");
        assert!(wrong(3, 1, versions, &block([2; 8])).is_some(), "of another block");
    }
}
