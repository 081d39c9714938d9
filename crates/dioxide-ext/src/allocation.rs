//! The free blocks of a group, and the choice of blocks for a file. Values only.
//!
//! A file should be contiguous. The allocator first searches one run for all wanted blocks. It
//! starts behind the last block of the file, in that group, and continues in all others. Without
//! such a run, it searches runs of a quarter of that length, and so on.

use std::ops::Range;

/// The block bitmap of a group. Bits of used blocks are set, and bits beyond the last block.
pub struct Bitmap<'a> {
    pub bits: &'a mut [u8],
    pub blocks: usize,
}

impl Bitmap<'_> {
    pub fn is_used(&self, block: usize) -> bool {
        self.bits[block / 8] >> (block % 8) & 1 == 1
    }

    /// Returns whether all blocks are used (`used`), or all are free (not `used`).
    pub fn are_all(&self, blocks: Range<usize>, used: bool) -> bool {
        blocks.into_iter().all(|block| self.is_used(block) == used)
    }

    pub fn set(&mut self, blocks: Range<usize>, used: bool) {
        for block in blocks {
            let bit = 1 << (block % 8);
            match used {
                true => self.bits[block / 8] |= bit,
                false => self.bits[block / 8] &= !bit,
            }
        }
    }

    /// Returns the number of free blocks.
    pub fn free(&self) -> usize {
        let whole = self.blocks / 8;
        let counted: u32 = self.bits[..whole].iter().map(|byte| byte.count_zeros()).sum();
        counted as usize + (whole * 8..self.blocks).filter(|block| !self.is_used(*block)).count()
    }

    /// Returns the first free run in `within` of at least `least` blocks, shortened to `most`.
    pub fn find(&self, within: Range<usize>, least: usize, most: usize) -> Option<Range<usize>> {
        let mut start = within.start;
        while start < within.end {
            if start.is_multiple_of(8) && self.bits[start / 8] == 0xFF {
                start += 8;
                continue;
            }
            if self.is_used(start) {
                start += 1;
                continue;
            }
            let last = within.end.min(start + most);
            let end = (start..last).find(|block| self.is_used(*block)).unwrap_or(last);
            if end - start >= least {
                return Some(start..end);
            }
            start = end;
        }
        None
    }
}

/// Returns the minimum lengths of runs to search: `wanted`, then a quarter of the last, down to 1.
pub fn lengths(wanted: u64) -> impl Iterator<Item = u64> {
    std::iter::successors(Some(wanted), |length| (*length > 1).then(|| (length / 4).max(1)))
}

/// Returns the groups to search, each with the part to search. The first is the goal's group from
/// `goal` on, then come all others, and last the goal's group up to `goal`.
pub fn order(
    goal: u64,
    goal_group: u64,
    groups: u64,
    bounds: impl Fn(u64) -> Range<u64>,
) -> impl Iterator<Item = (u64, Range<u64>)> {
    let own = bounds(goal_group);
    let goal = goal.clamp(own.start, own.end);
    let others = (goal_group + 1..groups).chain(0..goal_group);
    let first = (goal_group, goal..own.end);
    let last = (goal_group, own.start..goal);
    std::iter::once(first)
        .chain(others.map(move |group| (group, bounds(group))))
        .chain(std::iter::once(last))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lengths_end_with_one() {
        assert_eq!(lengths(1025).collect::<Vec<_>>(), [1025, 256, 64, 16, 4, 1]);
        assert_eq!(lengths(1).collect::<Vec<_>>(), [1]);
        assert_eq!(lengths(3).collect::<Vec<_>>(), [3, 1]);
    }

    #[test]
    fn every_block_is_looked_at_once() {
        let bounds = |group: u64| group * 10..(group * 10 + 10).min(25);
        for goal in 0..25 {
            let parts: Vec<_> = order(goal, goal / 10, 3, bounds).collect();
            assert_eq!(parts[0].1.start, goal);
            let mut blocks: Vec<_> = parts.iter().flat_map(|(_, part)| part.clone()).collect();
            blocks.sort_unstable();
            assert_eq!(blocks, (0..25).collect::<Vec<_>>());
        }
    }

    proptest! {
        #[test]
        fn the_first_run_that_is_long_enough_is_found(
            mut bits in proptest::collection::vec(
                prop_oneof![Just(0u8), Just(255u8), any::<u8>()],
                6,
            ),
            blocks in 1usize..=48, start in 0usize..48, least in 1usize..20, more in 0usize..20
        ) {
            let start = start.min(blocks);
            let model: Vec<bool> = (0..blocks).map(|n| bits[n / 8] >> (n % 8) & 1 == 1).collect();
            let map = Bitmap { bits: &mut bits, blocks };
            prop_assert_eq!(map.free(), model.iter().filter(|used| !**used).count());
            let fits =
                |at: usize| at + least <= blocks && model[at..at + least].iter().all(|used| !used);
            let begins = |at: usize| at == start || model[at - 1];
            let first = (start..blocks).find(|&at| begins(at) && fits(at));
            let found = map.find(start..blocks, least, least + more);
            prop_assert_eq!(found.as_ref().map(|run| run.start), first);
            if let Some(run) = found {
                prop_assert!(
                    map.are_all(run.clone(), false)
                        && run.len() >= least
                        && run.len() <= least + more
                );
                let ends = run.len() == least + more || run.end == blocks || model[run.end];
                prop_assert!(ends, "it could be longer");
            }
        }

        #[test]
        fn bits_are_set_and_cleared(
            mut bits in proptest::collection::vec(any::<u8>(), 4),
            start in 0usize..32,
            len in 0usize..32,
            used: bool,
        ) {
            let end = (start + len).min(32);
            let before = bits.clone();
            let mut map = Bitmap { bits: &mut bits, blocks: 32 };
            map.set(start..end, used);
            prop_assert!(map.are_all(start..end, used));
            for n in (0..start).chain(end..32) {
                prop_assert_eq!(map.is_used(n), before[n / 8] >> (n % 8) & 1 == 1);
            }
        }
    }
}
