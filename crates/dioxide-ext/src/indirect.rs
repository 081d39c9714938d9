//! The map of a file by direct and indirect blocks, as in ext2 and ext3. Values only. If it needs
//! an unknown table (an indirect block), it returns the number, and the caller reads the table.
//!
//! A file has 15 pointers: 12 to blocks, and three to tables of one, two and three levels. A
//! pointer of 0 is a hole of the whole range below it.
//!
//! No block is used twice: each known pointer names a block of its own, as data or as a table. So a
//! table that refers to itself is found when it is read, and no table is ever overwritten with
//! data.

use crate::blocks::{Blocks, ranges};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The pointers of an inode.
pub const ROOTS: usize = 15;
const DIRECT: usize = 12;
const DEPTH_MAX: u32 = (ROOTS - DIRECT) as u32;

/// Consecutive blocks of the file that are consecutive on the volume; or a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The first block on the volume. None for a hole.
    pub at: Option<u64>,
    /// The number of blocks.
    pub blocks: u64,
}

/// The known mapping of the beginning of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// It begins with this run.
    Run(Run),
    /// This table must be read first.
    Needs(u32),
}

/// The state of a table on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TableState {
    /// The same pointers.
    Stored,
    /// Other pointers: the table is already part of the file.
    Changed,
    /// Absent, and nothing on disk refers to it.
    New,
}

#[derive(Clone, Debug)]
struct Table {
    pointers: Vec<u32>,
    state: TableState,
}

/// The known part of a file's map.
#[derive(Clone, Debug)]
pub struct Map {
    roots: [u32; ROOTS],
    tables: BTreeMap<u32, Table>,
    /// The number of pointers in a table.
    fanout: u64,
    /// The blocks that known pointers name.
    owned: Blocks,
}

/// Tables to write, each with its pointers.
pub type Tables = Vec<(u32, Vec<u32>)>;

/// The path to a block: the root, the number of tables behind it, and the index of the block below
/// the root.
#[derive(Clone, Copy, Debug)]
struct Way {
    root: usize,
    depth: u32,
    index: u64,
}

impl Map {
    /// The map of a file with these pointers, and `fanout` pointers in a table (at least 2).
    /// `others` are further blocks of the file. Fails with a block that is named twice.
    pub fn new(roots: [u32; ROOTS], fanout: u64, others: &[u32]) -> Result<Self, u32> {
        let mut map = Self { roots, tables: BTreeMap::new(), fanout, owned: Blocks::default() };
        for pointers in [others, &roots] {
            map.reserve(&ranges(named(pointers))).map_err(|block| block as u32)?;
        }
        Ok(map)
    }

    /// Returns the pointers of the inode.
    pub fn roots(&self) -> &[u32; ROOTS] {
        &self.roots
    }

    /// Returns the blocks that known pointers name.
    pub fn owned(&self) -> &Blocks {
        &self.owned
    }

    /// Returns the largest number of blocks of a file.
    pub fn blocks_max(fanout: u64) -> u64 {
        DIRECT as u64 + (1..=DEPTH_MAX).map(|depth| fanout.pow(depth)).sum::<u64>()
    }

    /// Returns the number of tables of a file of `blocks` blocks without holes.
    pub fn tables_of(blocks: u64, fanout: u64) -> u64 {
        let mut left = blocks.saturating_sub(DIRECT as u64);
        let mut tables = 0;
        for depth in 1..=DEPTH_MAX {
            let below = left.min(fanout.pow(depth));
            tables += (1..=depth).map(|level| below.div_ceil(fanout.pow(level))).sum::<u64>();
            left -= below;
        }
        tables
    }

    /// Adds the content of a needed table. Fails with a block that is named twice; then nothing
    /// changes.
    pub fn learn(&mut self, table: u32, pointers: Vec<u32>) -> Result<(), u32> {
        assert_eq!(pointers.len() as u64, self.fanout);
        self.reserve(&ranges(named(&pointers))).map_err(|block| block as u32)?;
        self.tables.insert(table, Table { pointers, state: TableState::Stored });
        Ok(())
    }

    /// Reserves blocks that are about to become part of the file. Fails with one that is named
    /// twice; then nothing changes.
    pub fn reserve(&mut self, blocks: &[Range<u64>]) -> Result<(), u64> {
        for (index, range) in blocks.iter().enumerate() {
            if let Err(twice) = self.owned.insert(range.clone()) {
                self.give_back(&blocks[..index]);
                return Err(twice);
            }
        }
        Ok(())
    }

    /// Releases reserved blocks that do not become part of the file.
    pub fn give_back(&mut self, blocks: &[Range<u64>]) {
        blocks.iter().for_each(|range| self.owned.remove(range.clone()));
    }

    fn way(&self, block: u64) -> Way {
        let mut index = block;
        if index < DIRECT as u64 {
            return Way { root: index as usize, depth: 0, index: 0 };
        }
        index -= DIRECT as u64;
        for depth in 1..=DEPTH_MAX {
            let span = self.span(depth);
            if index < span {
                return Way { root: DIRECT - 1 + depth as usize, depth, index };
            }
            index -= span;
        }
        unreachable!("no file is so long")
    }

    /// Returns the number of blocks below a pointer with `depth` levels of tables behind it.
    fn span(&self, depth: u32) -> u64 {
        self.fanout.pow(depth)
    }

    /// Maps the beginning of the blocks `start..end` of the file. The range is not empty, and ends
    /// within [`blocks_max`](Self::blocks_max).
    pub fn run(&self, start: u64, end: u64) -> Found {
        let Way { root, depth, index } = self.way(start);
        let most = end - start;
        if depth == 0 {
            return Found::Run(leading(&self.roots[root..DIRECT], most));
        }
        let mut pointer = self.roots[root];
        for level in (0..depth).rev() {
            if pointer == 0 {
                let span = self.span(level + 1);
                return Found::Run(Run { at: None, blocks: (span - index % span).min(most) });
            }
            let Some(table) = self.tables.get(&pointer) else { return Found::Needs(pointer) };
            let slot = (index / self.span(level) % self.fanout) as usize;
            if level == 0 {
                return Found::Run(leading(&table.pointers[slot..], most));
            }
            pointer = table.pointers[slot];
        }
        unreachable!("the last level returns")
    }

    /// Returns how many tables are missing to map the blocks `start..end` of the file. All existing
    /// ones on the way are known.
    pub fn tables_missing(&self, start: u64, end: u64) -> u64 {
        let mut missing = BTreeSet::new();
        let mut block = start;
        while block < end {
            let Way { root, depth, index } = self.way(block);
            let mut pointer = self.roots[root];
            for level in (0..depth).rev() {
                if pointer == 0 {
                    missing.insert((root, level, index / self.span(level + 1)));
                } else {
                    let slot = index / self.span(level) % self.fanout;
                    pointer = self.tables[&pointer].pointers[slot as usize];
                }
            }
            block += if depth == 0 { 1 } else { self.fanout - index % self.fanout };
        }
        missing.len() as u64
    }

    /// Maps the holes in `start..end` of the file to `data`, in order, with `tables` as the missing
    /// tables. Both have exactly the needed number of blocks, and are reserved.
    pub fn fill(
        &mut self,
        start: u64,
        end: u64,
        mut tables: impl Iterator<Item = u32>,
        mut data: impl Iterator<Item = u32>,
    ) {
        let mut block = start;
        while block < end {
            let Way { root, depth, index } = self.way(block);
            let (first, len) = match depth {
                0 => (root as u64, DIRECT as u64),
                _ => (index % self.fanout, self.fanout),
            };
            let count = (len - first).min(end - block);
            let part = first as usize..(first + count) as usize;
            if depth == 0 {
                fill_holes(&mut self.roots[part], &mut data);
            } else {
                let leaf = self.leaf(root, depth, index, &mut tables);
                let table = self.tables.get_mut(&leaf).expect("just made sure of");
                if fill_holes(&mut table.pointers[part], &mut data) {
                    table.change();
                }
            }
            block += count;
        }
    }

    /// Returns the table that holds the pointer to a block, and makes it if it is missing.
    fn leaf(
        &mut self,
        root: usize,
        depth: u32,
        index: u64,
        tables: &mut impl Iterator<Item = u32>,
    ) -> u32 {
        let mut parent: Option<(u32, usize)> = None;
        let mut pointer = self.roots[root];
        for level in (0..depth).rev() {
            if pointer == 0 {
                pointer = self.add_table(tables.next().expect("enough tables"));
                match parent {
                    None => self.roots[root] = pointer,
                    Some((table, slot)) => {
                        let table = self.tables.get_mut(&table).expect("on the way");
                        table.pointers[slot] = pointer;
                        table.change();
                    }
                }
            }
            if level > 0 {
                let slot = (index / self.span(level) % self.fanout) as usize;
                parent = Some((pointer, slot));
                pointer = self.tables[&pointer].pointers[slot];
            }
        }
        pointer
    }

    fn add_table(&mut self, block: u32) -> u32 {
        let table = Table { pointers: vec![0; self.fanout as usize], state: TableState::New };
        self.tables.insert(block, table);
        block
    }

    /// Returns the tables that must be read before the file can be truncated to `keep` blocks.
    /// There may be more behind them.
    pub fn unknown_from(&self, keep: u64) -> Vec<u32> {
        let mut unknown = Vec::new();
        for (root, depth, kept) in self.cuts(keep) {
            self.look_behind(self.roots[root], depth, kept, &mut unknown);
        }
        unknown
    }

    fn look_behind(&self, pointer: u32, depth: u32, keep: u64, unknown: &mut Vec<u32>) {
        if pointer == 0 || depth == 0 || keep >= self.span(depth) {
            return;
        }
        let Some(table) = self.tables.get(&pointer) else { return unknown.push(pointer) };
        let below = self.span(depth - 1);
        for slot in keep / below..self.fanout {
            let kept = keep.saturating_sub(slot * below);
            self.look_behind(table.pointers[slot as usize], depth - 1, kept, unknown);
        }
    }

    /// Truncates the file to `keep` blocks. Returns the freed blocks, including tables. All of
    /// those are known.
    pub fn truncate(&mut self, keep: u64) -> Blocks {
        let mut freed = Blocks::default();
        for (root, depth, kept) in self.cuts(keep) {
            self.roots[root] = self.truncate_behind(self.roots[root], depth, kept, &mut freed);
        }
        self.give_back(&freed.iter().collect::<Vec<_>>());
        freed
    }

    /// The blocks, tables among them, that a truncate to `keep` blocks frees. All tables that lead
    /// to them are known.
    pub fn count_from(&self, keep: u64) -> u64 {
        self.cuts(keep)
            .map(|(root, depth, kept)| self.count_behind(self.roots[root], depth, kept))
            .sum()
    }

    fn count_behind(&self, pointer: u32, depth: u32, keep: u64) -> u64 {
        if pointer == 0 || keep >= self.span(depth) {
            return 0;
        }
        let mut count = u64::from(keep == 0);
        if depth > 0 {
            let (table, below) = (&self.tables[&pointer], self.span(depth - 1));
            for slot in keep / below..self.fanout {
                let kept = keep.saturating_sub(slot * below);
                count += self.count_behind(table.pointers[slot as usize], depth - 1, kept);
            }
        }
        count
    }

    fn truncate_behind(&mut self, pointer: u32, depth: u32, keep: u64, freed: &mut Blocks) -> u32 {
        if pointer == 0 || keep >= self.span(depth) {
            return pointer;
        }
        if depth > 0 {
            let mut table = self.tables.remove(&pointer).expect("known");
            let below = self.span(depth - 1);
            for slot in keep / below..self.fanout {
                let old = table.pointers[slot as usize];
                let kept = keep.saturating_sub(slot * below);
                let cut = self.truncate_behind(old, depth - 1, kept, freed);
                if cut != old {
                    table.pointers[slot as usize] = cut;
                    table.change();
                }
            }
            if keep > 0 {
                self.tables.insert(pointer, table);
                return pointer;
            }
        }
        let block = u64::from(pointer);
        freed.insert(block..block + 1).expect("no block is anything twice");
        0
    }

    /// Returns for each root its depth, and how many of its blocks a truncate to `keep` blocks
    /// leaves.
    fn cuts(&self, keep: u64) -> impl Iterator<Item = (usize, u32, u64)> + use<> {
        let fanout = self.fanout;
        let mut first = 0;
        (0..ROOTS).map(move |root| {
            let depth = (root + 1).saturating_sub(DIRECT) as u32;
            let kept = keep.saturating_sub(first);
            first += fanout.pow(depth);
            (root, depth, kept)
        })
    }

    /// Takes the tables to write: those to which nothing on disk refers yet, and those that are
    /// already part of the file. From now on they count as written.
    pub fn take_changed(&mut self) -> (Tables, Tables) {
        let (mut new, mut changed) = (Vec::new(), Vec::new());
        for (block, table) in &mut self.tables {
            let list = match std::mem::replace(&mut table.state, TableState::Stored) {
                TableState::Stored => continue,
                TableState::New => &mut new,
                TableState::Changed => &mut changed,
            };
            list.push((*block, table.pointers.clone()));
        }
        (new, changed)
    }
}

impl Table {
    fn change(&mut self) {
        if self.state == TableState::Stored {
            self.state = TableState::Changed;
        }
    }
}

/// Returns the blocks that pointers name.
pub fn named(pointers: &[u32]) -> impl Iterator<Item = u64> {
    pointers.iter().filter(|pointer| **pointer != 0).map(|pointer| u64::from(*pointer))
}

/// Fills each hole with the next block. Returns whether there was a hole.
fn fill_holes(pointers: &mut [u32], data: &mut impl Iterator<Item = u32>) -> bool {
    let mut any = false;
    for hole in pointers.iter_mut().filter(|pointer| **pointer == 0) {
        *hole = data.next().expect("enough blocks");
        any = true;
    }
    any
}

/// Returns the first run of the pointers, which are not empty: at most `most` blocks.
fn leading(pointers: &[u32], most: u64) -> Run {
    let pointers = &pointers[..pointers.len().min(usize::try_from(most).unwrap_or(usize::MAX))];
    let first = pointers[0];
    let follows = |(index, pointer): (usize, u32)| match first {
        0 => pointer == 0,
        _ => u64::from(pointer) == u64::from(first) + index as u64,
    };
    let blocks =
        pointers.iter().copied().enumerate().take_while(|next| follows(*next)).count() as u64;
    Run { at: (first != 0).then_some(first.into()), blocks }
}

/// Adds a run, and joins it to the last one if they are adjacent on the volume.
pub fn push(runs: &mut Vec<Run>, run: Run) {
    match runs.last_mut() {
        Some(last) if last.at.is_none() && run.at.is_none() => last.blocks += run.blocks,
        Some(last) if last.at.is_some_and(|at| run.at == Some(at + last.blocks)) => {
            last.blocks += run.blocks
        }
        _ => runs.push(run),
    }
}

/// Returns the runs with their holes filled by `data`, which fits exactly, in order.
pub fn filled(runs: &[Run], data: &[Range<u64>]) -> Vec<Run> {
    let mut data = data.iter().cloned();
    let mut part = 0..0;
    let mut filled = Vec::new();
    for run in runs {
        if run.at.is_some() {
            push(&mut filled, *run);
            continue;
        }
        let mut left = run.blocks;
        while left > 0 {
            if part.is_empty() {
                part = data.next().expect("enough blocks");
            }
            let blocks = left.min(part.end - part.start);
            push(&mut filled, Run { at: Some(part.start), blocks });
            part.start += blocks;
            left -= blocks;
        }
    }
    filled
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Small, so that three levels stay small.
    const FANOUT: u64 = 3;

    fn empty() -> Map {
        Map::new([0; ROOTS], FANOUT, &[]).unwrap()
    }

    /// The file block by block.
    fn blocks(map: &Map) -> Vec<Option<u64>> {
        let max = Map::blocks_max(FANOUT);
        let mut all = Vec::new();
        while (all.len() as u64) < max {
            let Found::Run(run) = map.run(all.len() as u64, max) else { panic!("all is known") };
            assert!(run.blocks > 0);
            all.extend((0..run.blocks).map(|n| run.at.map(|at| at + n)));
        }
        assert_eq!(all.len() as u64, max);
        all
    }

    /// Returns the map that is read again after all tables were written.
    fn read_again(map: &Map) -> Map {
        let mut again = Map::new(map.roots, FANOUT, &[]).unwrap();
        loop {
            let unknown = again.unknown_from(0);
            if unknown.is_empty() {
                return again;
            }
            for table in unknown {
                again.learn(table, map.tables[&table].pointers.clone()).unwrap();
            }
        }
    }

    #[test]
    fn a_table_is_asked_for_before_what_lies_behind_it() {
        let mut roots = [0; ROOTS];
        roots[13] = 7;
        let mut map = Map::new(roots, FANOUT, &[]).unwrap();
        let first = 12 + FANOUT;
        assert_eq!(map.run(0, 20), Found::Run(Run { at: None, blocks: 12 }));
        assert_eq!(map.run(12, 20), Found::Run(Run { at: None, blocks: FANOUT }));
        assert_eq!(map.run(first, 20), Found::Needs(7));
        map.learn(7, vec![8, 0, 0]).unwrap();
        assert_eq!(map.run(first, 20), Found::Needs(8));
        map.learn(8, vec![0, 9, 10]).unwrap();
        assert_eq!(map.run(first, 20), Found::Run(Run { at: None, blocks: 1 }));
        assert_eq!(map.run(first + 1, 20), Found::Run(Run { at: Some(9), blocks: 2 }));
        assert_eq!(map.run(first + 3, 40), Found::Run(Run { at: None, blocks: 3 }));
    }

    #[test]
    fn no_block_is_anything_twice() {
        let mut roots = [0; ROOTS];
        (roots[0], roots[12], roots[13]) = (5, 6, 7);
        let mut map = Map::new(roots, FANOUT, &[4]).unwrap();
        for pointers in [[6, 0, 0], [0, 5, 0], [1, 7, 2], [8, 0, 8], [0, 0, 4]] {
            let before = map.owned.clone();
            assert!(map.learn(6, pointers.to_vec()).is_err(), "{pointers:?}");
            assert_eq!(map.owned, before);
        }
        assert_eq!(Map::new([3; ROOTS], FANOUT, &[]).unwrap_err(), 3);
        assert_eq!(Map::new(roots, FANOUT, &[7]).unwrap_err(), 7);
    }

    #[test]
    fn what_is_new_is_told_from_what_is_part_of_the_file() {
        let mut map = empty();
        map.reserve(&[1..5, 100..103]).unwrap();
        map.fill(12, 13, [100].into_iter(), [1].into_iter());
        assert_eq!(map.take_changed(), (vec![(100, vec![1, 0, 0])], vec![]));
        map.fill(13, 16, [101, 102].into_iter(), 2..5);
        let new = vec![(101, vec![102, 0, 0]), (102, vec![4, 0, 0])];
        assert_eq!(map.take_changed(), (new, vec![(100, vec![1, 2, 3])]));
        assert_eq!(map.take_changed(), (vec![], vec![]));
    }

    #[test]
    fn the_tables_of_a_dense_file_are_those_that_an_empty_map_lacks() {
        for blocks in 0..=Map::blocks_max(FANOUT) {
            let missing = empty().tables_missing(0, blocks);
            assert_eq!(Map::tables_of(blocks, FANOUT), missing, "{blocks} blocks");
        }
    }

    proptest! {
        #[test]
        fn a_map_is_its_blocks(
            steps in proptest::collection::vec(
                (any::<bool>(), 0u64..Map::blocks_max(FANOUT), 1u64..12),
                1..30
            )
        ) {
            let max = Map::blocks_max(FANOUT);
            let mut map = empty();
            let mut model = vec![None; max as usize];
            let mut next = 1u32;
            for (fills, start, len) in steps {
                let end = (start + len).min(max);
                if fills {
                    let holes =
                        (start..end).filter(|n| model[*n as usize].is_none()).count() as u32;
                    let tables = map.tables_missing(start, end) as u32;
                    let (first, data) = (next, next + tables);
                    next = data + holes;
                    let mut runs = Vec::new();
                    let mut at = start;
                    while at < end {
                        let Found::Run(run) = map.run(at, end) else { panic!("all is known") };
                        push(&mut runs, run);
                        at += run.blocks;
                    }
                    let planned = filled(&runs, &ranges((data..next).map(u64::from)));
                    map.reserve(std::slice::from_ref(&(first.into()..next.into()))).unwrap();
                    map.fill(start, end, first..data, data..next);
                    let mut new = u64::from(data)..;
                    for hole in model[start as usize..end as usize]
                        .iter_mut()
                        .filter(|block| block.is_none())
                    {
                        *hole = new.next();
                    }
                    let planned: Vec<_> = planned
                        .iter()
                        .flat_map(|run| (0..run.blocks).map(|n| run.at.map(|at| at + n)))
                        .collect();
                    prop_assert_eq!(&planned[..], &model[start as usize..end as usize]);
                } else {
                    let before = map.owned.clone();
                    let counted = map.count_from(start);
                    let freed = map.truncate(start);
                    prop_assert_eq!(counted, freed.len());
                    prop_assert_eq!(map.owned.len() + freed.len(), before.len());
                    let mut cut = model[start as usize..].iter().flatten();
                    prop_assert!(cut.all(|&block| freed.first_in(&(block..block + 1)).is_some()));
                    model[start as usize..].fill(None);
                }
                prop_assert_eq!(&blocks(&map), &model);
                let again = read_again(&map);
                prop_assert_eq!(&blocks(&again), &model);
                prop_assert_eq!(&again.owned, &map.owned, "a table is lost");
                prop_assert_eq!(map.tables.len(), again.tables.len());
            }
        }
    }
}
