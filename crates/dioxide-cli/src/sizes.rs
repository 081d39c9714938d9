//! The size of writes: fixed, or a range that each length is drawn from. Arithmetic only.

use crate::units::{parse_bytes, size};
use fastrand::Rng;
use std::fmt;

/// The maximum size of one write.
const MAX_BYTES: u64 = 16 << 20;

/// From `min_bytes` to `max_bytes`, which are equal for a fixed size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sizes {
    pub min_bytes: u64,
    pub max_bytes: u64,
}

impl Sizes {
    pub fn one(bytes: u64) -> Self {
        Self { min_bytes: bytes, max_bytes: bytes }
    }

    /// `100`, `4k`, `512-4k`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (min, max) = text.split_once('-').unwrap_or((text, text));
        let sizes = Self { min_bytes: parse_bytes(min)?, max_bytes: parse_bytes(max)? };
        if sizes.min_bytes > sizes.max_bytes {
            return Err(format!("a range begins with the smaller size: {max}-{min}"));
        }
        match sizes {
            Self { min_bytes: 0, .. } => Err("a record has at least one byte".into()),
            Self { max_bytes, .. } if max_bytes > MAX_BYTES => {
                Err("a record has at most 16m".into())
            }
            _ => Ok(sizes),
        }
    }

    /// A block of a file or device: one size, a multiple of sectors.
    pub fn parse_block(text: &str) -> Result<Self, String> {
        let sizes = Self::parse(text)?;
        match sizes.fixed() {
            None => {
                Err("a range is for `bench append` and `bench log` only; all have one size here"
                    .into())
            }
            Some(bytes) if !bytes.is_multiple_of(512) => {
                Err("a block is a multiple of 512 bytes".into())
            }
            Some(_) => Ok(sizes),
        }
    }

    /// The fixed size, if it is one.
    pub fn fixed(&self) -> Option<u64> {
        (self.min_bytes == self.max_bytes).then_some(self.min_bytes)
    }

    /// Whether all are multiples of this unit.
    pub fn are_whole(&self, unit_bytes: u64) -> bool {
        self.fixed().is_some_and(|bytes| bytes.is_multiple_of(unit_bytes))
    }

    /// The length of the record with this number: drawn uniformly, and always the same for a
    /// number.
    pub fn of(&self, record: u64) -> u64 {
        match self.fixed() {
            Some(bytes) => bytes,
            None => Rng::with_seed(record).u64(self.min_bytes..=self.max_bytes),
        }
    }
}

/// `100 B`, `4 KiB`, `512 B-4 KiB`.
impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.fixed() {
            Some(bytes) => f.write_str(&size(bytes)),
            None => write!(f, "{}-{}", size(self.min_bytes), size(self.max_bytes)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_size_or_a_range() {
        assert_eq!(Sizes::parse("100"), Ok(Sizes::one(100)));
        assert_eq!(Sizes::parse("4k-4k"), Ok(Sizes::one(4096)));
        assert_eq!(Sizes::parse("512-4k"), Ok(Sizes { min_bytes: 512, max_bytes: 4096 }));
        assert_eq!(Sizes::parse("16m"), Ok(Sizes::one(16 << 20)));
    }

    #[test]
    fn refusals_say_what_to_do() {
        let refusal = |text| Sizes::parse(text).unwrap_err();
        assert_eq!(refusal("0"), "a record has at least one byte");
        assert_eq!(refusal("0-4k"), "a record has at least one byte");
        assert_eq!(refusal("4k-512"), "a range begins with the smaller size: 512-4k");
        assert_eq!(refusal("1-17m"), "a record has at most 16m");
        for text in ["-", "4k-", "-4k", "1-2-3", "four"] {
            assert!(refusal(text).contains("is not a size such as"), "{text}");
        }
    }

    #[test]
    fn blocks_have_one_whole_size() {
        assert_eq!(Sizes::parse_block("4k"), Ok(Sizes::one(4096)));
        assert!(Sizes::parse_block("100").unwrap_err().contains("multiple of 512"));
        assert!(Sizes::parse_block("512-4k").unwrap_err().contains("`bench log` only"));
    }

    #[test]
    fn whole_units() {
        assert!(Sizes::one(8192).are_whole(4096) && !Sizes::one(8192).are_whole(3000));
        assert!(!Sizes { min_bytes: 4096, max_bytes: 8192 }.are_whole(4096));
    }

    #[test]
    fn lengths_are_uniform_and_come_again() {
        let sizes = Sizes { min_bytes: 3, max_bytes: 12 };
        let lengths = || (0..100_000).map(|record| sizes.of(record));
        assert!(lengths().eq(lengths()));
        for bytes in 3..=12 {
            let count = lengths().filter(|length| *length == bytes).count();
            assert!((9_500..10_500).contains(&count), "{count} of {bytes} bytes");
        }
        // Consecutive lengths are independent.
        let again = lengths().zip(lengths().skip(1)).filter(|(one, next)| one == next).count();
        assert!((9_500..10_500).contains(&again), "{again}");
        assert!((0..100).all(|record| Sizes::one(7).of(record) == 7));
    }

    #[test]
    fn shown_with_units() {
        let show = |text| Sizes::parse(text).unwrap().to_string();
        assert_eq!([show("100"), show("4k"), show("512-4k")], ["100 B", "4 KiB", "512 B-4 KiB"]);
    }
}
