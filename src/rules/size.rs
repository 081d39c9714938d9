//! The four sizes of a file that grows ahead of its writers. Values only; the engine owns them
//! under its lock.
//!
//! `physical >= reserved >= written >= durable`. They describe extension only: an overwrite in
//! flight lowers none of them. [`Sizes::truncate`] and [`Sizes::recycle`] lower them all, a failure
//! and the end of growth lower the first two.

/// The sizes of a file, in bytes from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// The kernel's i_size, including growth.
    pub physical: u64,
    /// The end of the space assigned to extending writes.
    pub reserved: u64,
    /// Below it no extending write is in flight or failed. The length for callers.
    pub written: u64,
    /// Covered by a flush that began after the writes finished.
    pub durable: u64,
}

impl Sizes {
    /// A file of `len` bytes, all of it stable.
    pub fn settled(len: u64) -> Self {
        Self { physical: len, reserved: len, written: len, durable: len }
    }

    /// Returns the space that is grown and not yet reserved.
    pub fn ahead(&self) -> u64 {
        self.physical - self.reserved
    }

    /// Records growth; other programs see the new size from now on.
    pub fn grow_to(&mut self, physical: u64) {
        self.physical = self.physical.max(physical);
    }

    /// Reserves everything up to `end`, which must have been grown. Space comes before the offset,
    /// so that a full disk can never leave a hole.
    pub fn reserve_to(&mut self, end: u64) {
        assert!(self.reserved <= end && end <= self.physical);
        self.reserved = end;
    }

    /// Records that every extending write below `end` has finished.
    pub fn written_to(&mut self, end: u64) {
        assert!(self.written <= end && end <= self.reserved);
        self.written = end;
    }

    /// Records the success of a flush that began when everything below `end` was written.
    pub fn durable_to(&mut self, end: u64) {
        assert!(end <= self.written);
        self.durable = self.durable.max(end);
    }

    /// Records that i_size was set to `len` durably, with nothing in flight.
    pub fn truncate(&mut self, len: u64) {
        *self = Self::settled(len);
    }

    /// Records a recycle: the length is 0 and the space stays, with nothing in flight.
    pub fn recycle(&mut self) {
        *self = Self { physical: self.physical, ..Self::settled(0) };
    }

    /// Records that the space ahead was freed, with nothing in flight.
    pub fn give_up_ahead(&mut self) {
        self.physical = self.reserved;
    }

    /// Records the failure of a write that was to move i_size to the end of the last unit, and was
    /// undone.
    pub fn unpad(&mut self, physical: u64) {
        assert!(self.reserved <= physical && physical <= self.physical);
        self.physical = physical;
    }

    /// Records the failure of the only write in flight, which was to move i_size, and was undone.
    pub fn take_back_to(&mut self, end: u64) {
        assert!(self.written <= end && end <= self.reserved);
        self.reserved = end;
        self.physical = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_follow_an_append() {
        let mut sizes = Sizes::settled(4096);
        sizes.grow_to(65536);
        assert_eq!(sizes.ahead(), 61440);
        sizes.reserve_to(12288);
        sizes.written_to(8192);
        sizes.durable_to(8192);
        assert_eq!(sizes, Sizes { physical: 65536, reserved: 12288, written: 8192, durable: 8192 });
        sizes.truncate(8192);
        assert_eq!(sizes, Sizes::settled(8192));
    }

    #[test]
    #[should_panic]
    fn nothing_is_reserved_above_the_physical_size() {
        Sizes::settled(4096).reserve_to(8192);
    }

    #[test]
    #[should_panic]
    fn nothing_is_durable_that_is_not_written() {
        let mut sizes = Sizes::settled(0);
        sizes.grow_to(8192);
        sizes.reserve_to(8192);
        sizes.durable_to(4096);
    }

    const BLOCKS: usize = 4;

    /// A file block by block, with the properties of each.
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Blocks {
        exists: [bool; BLOCKS],
        reserved: [bool; BLOCKS],
        written: [bool; BLOCKS],
        durable: [bool; BLOCKS],
    }

    #[derive(Clone, Copy, Debug)]
    enum Change {
        Grow(usize),
        Reserve(usize),
        Written(usize),
        Durable(usize),
        Cut(usize),
        TakeBack(usize),
        Recycle,
    }

    fn below(end: usize) -> [bool; BLOCKS] {
        std::array::from_fn(|n| n < end)
    }

    fn count(blocks: [bool; BLOCKS]) -> usize {
        let count = blocks.iter().filter(|is| **is).count();
        assert_eq!(blocks, below(count), "without a gap");
        count
    }

    impl Blocks {
        fn settled(len: usize) -> Self {
            let all = below(len);
            Self { exists: all, reserved: all, written: all, durable: all }
        }

        fn sizes(&self) -> Sizes {
            let size = |blocks| count(blocks) as u64;
            Sizes {
                physical: size(self.exists),
                reserved: size(self.reserved),
                written: size(self.written),
                durable: size(self.durable),
            }
        }

        /// Returns the file after the change, or None if the change is invalid.
        fn after(mut self, change: Change) -> Option<Self> {
            let allowed = match change {
                Change::Reserve(end) => {
                    self.exists[..end] == below(end)[..end] && !self.reserved[end..].contains(&true)
                }
                Change::Written(end) => {
                    !self.reserved[..end].contains(&false) && !self.written[end..].contains(&true)
                }
                Change::Durable(end) => !self.written[..end].contains(&false),
                Change::TakeBack(end) => {
                    !self.reserved[..end].contains(&false) && !self.written[end..].contains(&true)
                }
                Change::Grow(_) | Change::Cut(_) | Change::Recycle => true,
            };
            match change {
                Change::Grow(end) => self.exists[..end].fill(true),
                Change::Reserve(end) => self.reserved[..end].fill(true),
                Change::Written(end) => self.written[..end].fill(true),
                Change::Durable(end) => self.durable[..end].fill(true),
                Change::Cut(end) => self = Self::settled(end),
                Change::TakeBack(end) => {
                    self.reserved[end..].fill(false);
                    self.exists[end..].fill(false);
                }
                Change::Recycle => self = Self { exists: self.exists, ..Self::settled(0) },
            }
            allowed.then_some(self)
        }
    }

    fn changed(mut sizes: Sizes, change: Change) -> Sizes {
        match change {
            Change::Grow(end) => sizes.grow_to(end as u64),
            Change::Reserve(end) => sizes.reserve_to(end as u64),
            Change::Written(end) => sizes.written_to(end as u64),
            Change::Durable(end) => sizes.durable_to(end as u64),
            Change::Cut(end) => sizes.truncate(end as u64),
            Change::TakeBack(end) => sizes.take_back_to(end as u64),
            Change::Recycle => sizes.recycle(),
        }
        sizes
    }

    /// Every file of four blocks that any changes lead to, and every change of it.
    #[test]
    fn every_change_of_every_small_file_is_right_or_refused() {
        let ends = [
            Change::Grow,
            Change::Reserve,
            Change::Written,
            Change::Durable,
            Change::Cut,
            Change::TakeBack,
        ];
        let changes = ends.into_iter().flat_map(|change| (0..=BLOCKS).map(change));
        let changes: Vec<_> = changes.chain([Change::Recycle]).collect();
        let mut files: Vec<_> = (0..=BLOCKS).map(Blocks::settled).collect();
        let mut next = 0;
        while let Some(&file) = files.get(next) {
            for &change in &changes {
                let found = std::panic::catch_unwind(|| changed(file.sizes(), change)).ok();
                let after = file.after(change);
                assert_eq!(found, after.map(|after| after.sizes()), "{change:?} of {file:?}");
                files.extend(after.filter(|after| !files.contains(after)));
            }
            next += 1;
        }
        assert_eq!(files.len(), 70, "each of the four sizes not above the one before");
    }
}
