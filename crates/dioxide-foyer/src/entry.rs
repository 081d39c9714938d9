//! Entries as bytes: a header, the key, the value.

use foyer::Result;
use std::hash::{BuildHasher, RandomState};

/// Life, number, hash, length of the content, checksum of all but itself.
pub const HEADER_BYTES: usize = 36;

const CHECKSUM: std::ops::Range<usize> = 32..36;

/// The number of one engine, so that entries of an earlier one in the same place are recognized.
#[derive(Clone, Copy, Debug)]
pub struct Life(u64);

impl Life {
    /// A number that no other engine has.
    pub fn new() -> Self {
        Self(RandomState::new().hash_one(std::process::id()))
    }

    /// Adds an entry behind `bytes`. Its content is what `encode` adds.
    pub fn add(
        self,
        bytes: &mut Vec<u8>,
        hash: u64,
        number: u64,
        encode: impl FnOnce(&mut Vec<u8>) -> Result<()>,
    ) -> Result<()> {
        let begin = bytes.len();
        bytes.resize(begin + HEADER_BYTES, 0);
        encode(bytes)?;
        let entry = &mut bytes[begin..];
        let content = (entry.len() - HEADER_BYTES) as u64;
        let fields = entry.chunks_exact_mut(8).zip([self.0, number, hash, content]);
        fields.for_each(|(field, value)| field.copy_from_slice(&value.to_le_bytes()));
        let checksum = checksum(entry).to_le_bytes();
        entry[CHECKSUM].copy_from_slice(&checksum);
        Ok(())
    }

    /// Returns the content, if the bytes are this entry.
    pub fn content(self, entry: &[u8], hash: u64, number: u64) -> Option<&[u8]> {
        let (header, content) = entry.split_at_checked(HEADER_BYTES)?;
        let fields = [self.0, number, hash, content.len() as u64];
        let is_same =
            header.chunks_exact(8).zip(fields).all(|(field, value)| field == value.to_le_bytes());
        (is_same && header[CHECKSUM] == checksum(entry).to_le_bytes()).then_some(content)
    }
}

fn checksum(entry: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&entry[..CHECKSUM.start]);
    hasher.update(&entry[CHECKSUM.end..]);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_recognized_and_any_changed_bit_is_noticed() {
        let (one, other) = (Life(7), Life(8));
        let mut bytes = b"before".to_vec();
        one.add(&mut bytes, 3, 5, |bytes| {
            bytes.extend_from_slice(b"content");
            Ok(())
        })
        .unwrap();
        let mut entry = bytes.split_off(6);
        assert_eq!(one.content(&entry, 3, 5), Some(b"content".as_slice()));
        assert_eq!(other.content(&entry, 3, 5), None);
        assert_eq!(one.content(&entry, 4, 5), None);
        assert_eq!(one.content(&entry, 3, 6), None);
        assert_eq!(one.content(&entry[..entry.len() - 1], 3, 5), None);
        assert_eq!(one.content(&entry[..5], 3, 5), None);
        for bit in 0..8 * entry.len() {
            entry[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(one.content(&entry, 3, 5), None, "bit {bit}");
            entry[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
