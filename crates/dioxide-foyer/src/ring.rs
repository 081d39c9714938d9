//! The index of the cache: values in, values out.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

/// The place of an entry in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Distinguishes all entries of the engine.
    pub number: u64,
    /// The first byte.
    pub offset: u64,
    /// The length in bytes.
    pub len: usize,
}

/// Hashes of keys, with the places of their entries. No two entries overlap.
#[derive(Debug, Default)]
pub struct Ring {
    places: HashMap<u64, Place>,
    /// The hash of the entry at an offset. Only those in `places`.
    hashes: BTreeMap<u64, u64>,
    /// The newest entries that are not written yet.
    expected: HashMap<u64, u64>,
    last_number: u64,
}

impl Ring {
    /// Gives a new entry its number. It supersedes the others of the hash.
    pub fn expect(&mut self, hash: u64) -> u64 {
        self.remove(hash);
        self.last_number += 1;
        self.expected.insert(hash, self.last_number);
        self.last_number
    }

    /// Whether the entry is still the newest.
    pub fn is_expected(&self, hash: u64, number: u64) -> bool {
        self.expected.get(&hash) == Some(&number)
    }

    /// The entry is not written after all.
    pub fn give_up(&mut self, hash: u64, number: u64) {
        if self.is_expected(hash, number) {
            self.expected.remove(&hash);
        }
    }

    /// The entry is written. It is found if it is still the newest.
    pub fn place(&mut self, hash: u64, number: u64, offset: u64, len: usize) {
        if self.is_expected(hash, number) {
            self.expected.remove(&hash);
            self.places.insert(hash, Place { number, offset, len });
            self.hashes.insert(offset, hash);
        }
    }

    /// Removes the entries of a hash.
    pub fn remove(&mut self, hash: u64) {
        self.expected.remove(&hash);
        if let Some(place) = self.places.remove(&hash) {
            self.hashes.remove(&place.offset);
        }
    }

    /// Removes the entries that have bytes in a range, which is about to be overwritten.
    pub fn forget(&mut self, range: Range<u64>) {
        while let Some((&offset, &hash)) = self.hashes.range(..range.end).next_back() {
            let ends_below = |place: &Place| place.offset + place.len as u64 <= range.start;
            if self.places.get(&hash).is_none_or(ends_below) {
                return;
            }
            self.hashes.remove(&offset);
            self.places.remove(&hash);
        }
    }

    /// The place of the entry of a hash.
    pub fn find(&self, hash: u64) -> Option<Place> {
        self.places.get(&hash).copied()
    }

    /// Whether the hash has an entry, written or not.
    pub fn may_contain(&self, hash: u64) -> bool {
        self.places.contains_key(&hash) || self.expected.contains_key(&hash)
    }

    /// Removes all entries. Numbers are not used again.
    pub fn clear(&mut self) {
        let last_number = self.last_number;
        *self = Self { last_number, ..Self::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_newest_entry_of_a_hash_is_found() {
        let mut ring = Ring::default();
        let (one, two) = (ring.expect(9), ring.expect(9));
        assert!(!ring.is_expected(9, one) && ring.is_expected(9, two) && ring.may_contain(9));
        ring.place(9, one, 0, 10);
        assert_eq!(ring.find(9), None);
        ring.place(9, two, 10, 10);
        assert_eq!(ring.find(9), Some(Place { number: two, offset: 10, len: 10 }));
        let three = ring.expect(9);
        assert_eq!(ring.find(9), None, "it is out of date");
        ring.remove(9);
        ring.place(9, three, 20, 10);
        assert_eq!((ring.find(9), ring.may_contain(9)), (None, false), "it was deleted");
        let four = ring.expect(9);
        ring.give_up(9, three);
        assert!(ring.is_expected(9, four));
        ring.clear();
        assert!(!ring.may_contain(9) && ring.expect(9) > four);
    }

    /// Against a list of entries.
    #[test]
    fn entries_with_bytes_in_a_range_are_forgotten() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut ring = Ring::default();
        let mut model: Vec<(u64, Place)> = Vec::new();
        for hash in 0..3000 {
            let (offset, len) = (random.u64(..2000), 1 + random.usize(..60));
            let range = offset..offset + len as u64;
            ring.forget(range.clone());
            model.retain(|(_, place)| {
                place.offset + place.len as u64 <= range.start || place.offset >= range.end
            });
            let number = ring.expect(hash);
            ring.place(hash, number, offset, len);
            model.push((hash, Place { number, offset, len }));
            if random.u32(..5) == 0 {
                let (removed, _) = model.swap_remove(random.usize(..model.len()));
                ring.remove(removed);
            }
            assert!(model.iter().all(|(hash, place)| ring.find(*hash) == Some(*place)));
            assert_eq!((ring.places.len(), ring.hashes.len()), (model.len(), model.len()));
        }
    }
}
