//! The number of a record.

use std::fmt;

/// A log sequence number: the number of a record in its log. The first record of a log has number
/// 1, and each next record the next number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(pub u64);

impl Lsn {
    /// The number of the first record of a log.
    pub const FIRST: Self = Self(1);

    /// The largest number that [`truncate_front`](crate::Log::truncate_front) accepts. Records
    /// behind it have larger numbers, and no log lives long enough for one that is no `i64`.
    pub const MAX: Self = Self(1 << 62);

    /// The largest number that a log may name: with it, no count of records overflows.
    pub(crate) const LAST: Self = Self(i64::MAX as u64);

    /// The number of the record after this one.
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<u64> for Lsn {
    fn from(number: u64) -> Self {
        Self(number)
    }
}
