//! Search in the entries of a directory. Values only. Index blocks (dir_index) look like blocks
//! without entries, so an indexed directory needs no other search.

use crate::bytes::{u16_at, u32_at};

/// Length of the shortest entry, in bytes: inode, lengths, file type.
const ENTRY_BYTES_MIN: usize = 8;

/// Searches a name in one block of a directory, and returns its inode. Fails with a description of
/// the block's fault. `has_kinds`: the volume has the feature `filetype`.
pub fn find(block: &[u8], name: &[u8], has_kinds: bool) -> Result<Option<u32>, &'static str> {
    let mut at = 0;
    while at < block.len() {
        if block.len() - at < ENTRY_BYTES_MIN {
            return Err("an entry does not fit into its block");
        }
        let entry = &block[at..];
        let inode = u32_at(entry, 0);
        let entry_bytes = match usize::from(u16_at(entry, 4)) {
            // 65536 does not fit into the field.
            0 | 0xFFFF if block.len() == 1 << 16 => 1 << 16,
            bytes => bytes,
        };
        let name_bytes = if has_kinds { entry[6].into() } else { usize::from(u16_at(entry, 6)) };
        if entry_bytes < ENTRY_BYTES_MIN
            || !entry_bytes.is_multiple_of(4)
            || entry_bytes > entry.len()
        {
            return Err("an entry has an impossible length");
        }
        if name_bytes > entry_bytes - ENTRY_BYTES_MIN {
            return Err("a name does not fit into its entry");
        }
        if inode != 0 && &entry[ENTRY_BYTES_MIN..][..name_bytes] == name {
            return Ok(Some(inode));
        }
        at += entry_bytes;
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::{set_u16, set_u32};
    use proptest::prelude::*;

    fn block(entries: &[(u32, &str)]) -> Vec<u8> {
        let mut block = vec![0; 1024];
        let mut at = 0;
        for (index, (inode, name)) in entries.iter().enumerate() {
            let is_last = index + 1 == entries.len();
            let bytes = if is_last { 1024 - at } else { (8 + name.len()).next_multiple_of(4) };
            set_u32(&mut block, at, *inode);
            set_u16(&mut block, at + 4, bytes as u16);
            block[at + 6] = name.len() as u8;
            block[at + 7] = 1;
            block[at + 8..][..name.len()].copy_from_slice(name.as_bytes());
            at += bytes;
        }
        block
    }

    #[test]
    fn names_are_found_and_removed_ones_are_not() {
        let block = block(&[(2, "."), (2, ".."), (12, "one"), (0, "gone"), (14, "oneandmore")]);
        assert_eq!(find(&block, b"one", true), Ok(Some(12)));
        assert_eq!(find(&block, b"oneandmore", true), Ok(Some(14)));
        assert_eq!(find(&block, b"gone", true), Ok(None));
        assert_eq!(find(&block, b"on", true), Ok(None));
    }

    #[test]
    fn without_kinds_the_length_of_a_name_has_two_bytes() {
        let mut block = block(&[(12, "one")]);
        block[7] = 0;
        assert_eq!(find(&block, b"one", false), Ok(Some(12)));
        block[7] = 1;
        assert_eq!(find(&block, b"one", true), Ok(Some(12)));
        block[4..6].copy_from_slice(&12u16.to_le_bytes());
        assert!(find(&block, b"one", false).is_err(), "a name of 259 bytes");
    }

    proptest! {
        #[test]
        fn any_block_is_read(
            mut bytes in proptest::collection::vec(any::<u8>(), 64),
            lens in proptest::collection::vec(0u16..24, 8),
        ) {
            for (n, len) in lens.into_iter().enumerate() {
                set_u16(&mut bytes, 8 * n + 4, len);
            }
            let _ = find(&bytes, b"ab", true);
            let _ = find(&bytes, b"ab", false);
        }
    }
}
