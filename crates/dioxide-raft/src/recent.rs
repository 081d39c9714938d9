//! The last entries of a group, in memory. Raft reads each entry soon after it was appended, and
//! also before it is stable. A value.

use std::collections::VecDeque;

/// Encoded entries of consecutive indexes.
#[derive(Debug, Default)]
pub struct Recent {
    /// The index of the first.
    first: u64,
    entries: VecDeque<Vec<u8>>,
    bytes: usize,
}

impl Recent {
    /// The index behind the last entry.
    fn end(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    /// The index of the first entry. The largest of all if there is none.
    pub fn first(&self) -> u64 {
        if self.entries.is_empty() { u64::MAX } else { self.first }
    }

    /// Adds an entry. One that does not follow the last begins anew.
    pub fn push(&mut self, index: u64, entry: Vec<u8>) {
        if index != self.end() {
            *self = Self { first: index, ..Self::default() };
        }
        self.bytes += entry.len();
        self.entries.push_back(entry);
    }

    /// Forgets the oldest entries below `stable`, as long as there are more than this many bytes.
    pub fn shrink(&mut self, bytes_max: usize, stable: u64) {
        while self.bytes > bytes_max && self.first < stable && self.forget_first() {}
    }

    /// Forgets the oldest entry. False if there is none.
    fn forget_first(&mut self) -> bool {
        let Some(entry) = self.entries.pop_front() else { return false };
        self.bytes -= entry.len();
        self.first += 1;
        true
    }

    /// Forgets the entries below `index`.
    pub fn forget_below(&mut self, index: u64) {
        while self.first < index && self.forget_first() {}
        if self.entries.is_empty() {
            self.entries = VecDeque::new();
        }
    }

    /// Forgets `index` and the entries above.
    pub fn truncate(&mut self, index: u64) {
        while self.end() > index {
            let Some(entry) = self.entries.pop_back() else { return };
            self.bytes -= entry.len();
        }
    }

    /// An entry, if it is in memory.
    pub fn get(&self, index: u64) -> Option<&[u8]> {
        let at = index.checked_sub(self.first)?;
        self.entries.get(usize::try_from(at).ok()?).map(Vec::as_slice)
    }
}

#[cfg(test)]
impl Recent {
    /// The bytes of the entries.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_entries_are_kept_and_all_that_are_not_stable() {
        let mut recent = Recent::default();
        for index in 5..10 {
            recent.push(index, vec![index as u8; 10]);
        }
        recent.shrink(25, 7);
        assert_eq!((recent.get(6), recent.get(7)), (None, Some(&[7; 10][..])));
        recent.shrink(25, 100);
        assert_eq!((recent.get(7), recent.get(8)), (None, Some(&[8; 10][..])));
        recent.truncate(9);
        assert_eq!((recent.get(8), recent.get(9)), (Some(&[8; 10][..]), None));
        recent.push(9, vec![1]);
        assert_eq!(recent.get(9), Some(&[1][..]));
        recent.push(50, vec![2]);
        assert_eq!((recent.get(9), recent.get(50), recent.get(51)), (None, Some(&[2][..]), None));
        recent.push(51, vec![3]);
        recent.forget_below(51);
        assert_eq!((recent.get(50), recent.get(51), recent.bytes), (None, Some(&[3][..]), 1));
        recent.forget_below(90);
        assert_eq!((recent.get(51), recent.bytes), (None, 0));
        recent.push(90, vec![4]);
        assert_eq!(recent.get(90), Some(&[4][..]));
        recent.truncate(0);
        assert_eq!((recent.get(90), recent.bytes), (None, 0));
    }
}
