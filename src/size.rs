//! The four sizes of a file that grows ahead of its writers. Values only; the engine owns them under its lock.
//!
//! `physical >= reserved >= written >= durable`. They speak of extension only (an overwrite in
//! flight lowers none of them), and only [`Sizes::cut`] and [`Sizes::recycle`] lower them.

/// See the module. All in bytes from the start of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// The kernel's i_size after growing ahead.
    pub physical: u64,
    /// Handed out to extending writes.
    pub reserved: u64,
    /// Below it no extending write is in flight or failed. What callers see as the length.
    pub written: u64,
    /// Covered by a flush that began after the writes finished.
    pub durable: u64,
}

impl Sizes {
    /// A file of `len` bytes, all of it stable.
    pub fn settled(len: u64) -> Self {
        Self { physical: len, reserved: len, written: len, durable: len }
    }

    /// Space already grown and not yet handed out.
    pub fn ahead(&self) -> u64 {
        self.physical - self.reserved
    }

    /// The file was grown; other programs see the new size from now on.
    pub fn grow_to(&mut self, physical: u64) {
        self.physical = self.physical.max(physical);
    }

    /// Hands out everything up to `end`, which must have been grown: space before offset, so that
    /// a full disk can never leave a hole.
    pub fn reserve_to(&mut self, end: u64) {
        assert!(self.reserved <= end && end <= self.physical);
        self.reserved = end;
    }

    /// Every extending write below `end` has finished.
    pub fn written_to(&mut self, end: u64) {
        assert!(self.written <= end && end <= self.reserved);
        self.written = end;
    }

    /// A flush that began when everything below `end` was written succeeded.
    pub fn durable_to(&mut self, end: u64) {
        assert!(end <= self.written);
        self.durable = self.durable.max(end);
    }

    /// The kernel's i_size was set to `len` durably, with nothing in flight.
    pub fn cut(&mut self, len: u64) {
        *self = Self::settled(len);
    }

    /// The file begins anew over the space that it has, with nothing in flight.
    pub fn recycle(&mut self) {
        *self = Self { physical: self.physical, ..Self::settled(0) };
    }

    /// The only write in flight was to move i_size itself, failed, and was taken back.
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
        sizes.cut(8192);
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
}
