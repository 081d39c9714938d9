//! A set of blocks, as ranges. Values only.

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Blocks {
    /// The end of each range, by its start. No two touch.
    ranges: BTreeMap<u64, u64>,
}

impl Blocks {
    /// Returns the first block that is in the set and in the range.
    pub fn first_in(&self, range: &Range<u64>) -> Option<u64> {
        if range.is_empty() {
            return None;
        }
        let before = self.ranges.range(..=range.start).next_back();
        if before.is_some_and(|(_, end)| *end > range.start) {
            return Some(range.start);
        }
        self.ranges.range(range.clone()).next().map(|(start, _)| *start)
    }

    /// Adds a range. Fails with the first block of it that is in the set; then nothing changes.
    pub fn insert(&mut self, range: Range<u64>) -> Result<(), u64> {
        if let Some(block) = self.first_in(&range) {
            return Err(block);
        }
        if range.is_empty() {
            return Ok(());
        }
        let Range { mut start, mut end } = range;
        if let Some((before, _)) =
            self.ranges.range(..start).next_back().filter(|(_, end)| **end == start)
        {
            start = *before;
        }
        if let Some(behind) = self.ranges.remove(&end) {
            end = behind;
        }
        self.ranges.insert(start, end);
        Ok(())
    }

    /// Removes a range, as far as it is in the set.
    pub fn remove(&mut self, range: Range<u64>) {
        while let Some(block) = self.first_in(&range) {
            let (start, end) = self
                .ranges
                .range(..=block)
                .next_back()
                .map(|(s, e)| (*s, *e))
                .expect("it has the block");
            self.ranges.remove(&start);
            if start < block {
                self.ranges.insert(start, block);
            }
            if range.end < end {
                self.ranges.insert(range.end, end);
            }
        }
    }

    /// Returns the ranges, in order.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> {
        self.ranges.iter().map(|(start, end)| *start..*end)
    }

    /// Returns the number of blocks.
    pub fn len(&self) -> u64 {
        self.iter().map(|range| range.end - range.start).sum()
    }
}

/// Joins consecutive blocks into ranges, in the order given.
pub fn ranges(blocks: impl IntoIterator<Item = u64>) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for block in blocks {
        match ranges.last_mut() {
            Some(last) if last.end == block => last.end += 1,
            _ => ranges.push(block..block + 1),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn it_is_a_set(
            steps in proptest::collection::vec((any::<bool>(), 0u64..30, 0u64..6), 0..60)
        ) {
            let (mut blocks, mut model) = (Blocks::default(), BTreeSet::new());
            for (insert, start, len) in steps {
                let range = start..start + len;
                let first = range.clone().find(|block| model.contains(block));
                prop_assert_eq!(blocks.first_in(&range), first);
                if !insert {
                    model.retain(|block| !range.contains(block));
                    blocks.remove(range);
                } else {
                    prop_assert_eq!(blocks.insert(range.clone()).err(), first);
                    if first.is_none() {
                        model.extend(range);
                    }
                }
                prop_assert_eq!(
                    blocks.iter().flatten().collect::<Vec<_>>(),
                    model.iter().copied().collect::<Vec<_>>()
                );
                prop_assert_eq!(blocks.len(), model.len() as u64);
                let ends: Vec<_> = blocks.iter().collect();
                prop_assert!(ends.windows(2).all(|pair| pair[0].end < pair[1].start), "two touch: \
                    {:?}", ends);
            }
        }
    }
}
