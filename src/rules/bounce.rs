//! Splits reads of any range into any memory into transfers of whole blocks. A transfer goes
//! directly into the caller's memory, or into a bounce buffer, from which it is copied. Values
//! only.
//!
//! An aligned read goes directly, in one transfer. So does a long aligned middle. The rest bounces,
//! and so does a middle whose transfer would cost more than a copy.

/// The largest bounce transfer: a multiple of every block size, and all the memory that a read
/// takes, however long it is.
pub const BOUNCE_MAX_BYTES: u64 = 1 << 20;

/// A shorter middle bounces with its surroundings: copying it costs less than another transfer.
const MIDDLE_MIN_BYTES: u64 = 64 << 10;

/// The alignment of direct reads, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aligned {
    /// Memory addresses.
    pub memory: u64,
    /// Offsets and lengths.
    pub block: u64,
}

/// The rest of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// The address for the next byte.
    pub address: u64,
    /// The file offset of the next byte.
    pub offset: u64,
    /// Bytes to read, up to EOF; at least 1.
    pub bytes: u64,
    /// Bytes that fit into the memory: as many, or more.
    pub room: u64,
}

/// The next transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// File offset: the first byte of a block.
    pub start: u64,
    /// Length in bytes: whole blocks.
    pub len: u64,
    /// Unwanted bytes at the start of the first block. 0 unless it bounces.
    pub skip: u64,
    /// Wanted bytes.
    pub bytes: u64,
    /// Goes into the bounce buffer.
    pub bounces: bool,
}

/// Returns the next transfer of a read. The first one of a read that bounces is the longest.
pub fn next(left: Left, aligned: Aligned) -> Piece {
    let Left { address, offset, bytes, room } = left;
    let block = aligned.block;
    let head = offset.next_multiple_of(block) - offset;
    let middle = match address.wrapping_add(head).is_multiple_of(aligned.memory) {
        // The last block is read whole, if it fits.
        true => bytes
            .saturating_sub(head)
            .next_multiple_of(block)
            .min(whole(room.saturating_sub(head), block)),
        false => 0,
    };
    if head == 0 && (middle >= bytes || middle >= MIDDLE_MIN_BYTES) {
        return Piece {
            start: offset,
            len: middle,
            skip: 0,
            bytes: middle.min(bytes),
            bounces: false,
        };
    }
    let wanted = if head > 0 && middle >= MIDDLE_MIN_BYTES { head } else { bytes };
    let (start, skip) = (whole(offset, block), offset % block);
    let len = (skip + wanted).next_multiple_of(block).min(BOUNCE_MAX_BYTES);
    Piece { start, len, skip, bytes: wanted.min(len - skip), bounces: true }
}

fn whole(bytes: u64, block: u64) -> u64 {
    bytes / block * block
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECTORS: Aligned = Aligned { memory: 4, block: 512 };
    const BLOCKS: Aligned = Aligned { memory: 512, block: 4096 };

    /// Returns all pieces of a read, and checks each.
    fn pieces(mut left: Left, aligned: Aligned) -> Vec<Piece> {
        let mut pieces = Vec::new();
        while left.bytes > 0 {
            let piece = next(left, aligned);
            let Piece { start, len, skip, bytes, bounces } = piece;
            assert!(
                start.is_multiple_of(aligned.block) && len.is_multiple_of(aligned.block),
                "{piece:?}"
            );
            assert_eq!(start + skip, left.offset, "{piece:?} leaves something out of {left:?}");
            assert!(
                (1..=left.bytes).contains(&bytes) && skip + bytes <= len,
                "{piece:?} of {left:?}"
            );
            assert!(
                len - skip - bytes < aligned.block && skip < aligned.block,
                "{piece:?} reads too much"
            );
            if bounces {
                assert!(len <= BOUNCE_MAX_BYTES, "{piece:?}");
            } else {
                assert!(
                    skip == 0 && left.address.is_multiple_of(aligned.memory),
                    "{piece:?} of {left:?}"
                );
                assert!(len <= left.room, "{piece:?} goes beyond the memory of {left:?}");
            }
            left.address += bytes;
            left.offset += bytes;
            left.bytes -= bytes;
            left.room -= bytes;
            pieces.push(piece);
        }
        pieces
    }

    fn kinds(
        address: u64,
        offset: u64,
        bytes: u64,
        room: u64,
        aligned: Aligned,
    ) -> Vec<(bool, u64)> {
        let pieces = pieces(Left { address, offset, bytes, room }, aligned);
        pieces.iter().map(|piece| (piece.bounces, piece.len)).collect()
    }

    #[test]
    fn what_is_aligned_goes_straight_in_one_transfer() {
        for aligned in [SECTORS, BLOCKS] {
            let block = aligned.block;
            for blocks in [1, 2, 1000, 1 << 20] {
                let room = blocks * block;
                assert_eq!(kinds(aligned.memory, 3 * block, room, room, aligned), [(false, room)]);
                // The file ends in the last block.
                assert_eq!(
                    kinds(aligned.memory, 3 * block, room - 7, room, aligned),
                    [(false, room)]
                );
            }
        }
    }

    #[test]
    fn what_is_small_bounces_in_one_transfer() {
        assert_eq!(kinds(0, 5000, 90, 90, BLOCKS), [(true, 4096)]);
        assert_eq!(kinds(0, 4050, 90, 90, BLOCKS), [(true, 8192)]);
        assert_eq!(kinds(0, 0, 5000, 5000, BLOCKS), [(true, 8192)]);
        assert_eq!(kinds(1, 0, 4096, 4096, BLOCKS), [(true, 4096)]);
        assert_eq!(kinds(0, 100, 60000, 60000, BLOCKS), [(true, 61440)]);
    }

    #[test]
    fn a_long_middle_goes_straight_if_the_memory_is_aligned_there() {
        let middle = 4 << 20;
        let around = [(true, 4096), (false, middle), (true, 4096)];
        assert_eq!(kinds(512 - 96, 4000, 96 + middle + 1, 96 + middle + 1, BLOCKS), around);
        assert_eq!(kinds(512, 0, middle + 1, middle + 1, BLOCKS), around[1..]);
        assert_eq!(kinds(512 - 96, 4000, 96 + middle - 1, 96 + middle, BLOCKS), around[..2]);
    }

    #[test]
    fn memory_that_is_never_aligned_takes_no_more_than_the_largest_bounce_buffer() {
        let mib = 1 << 20;
        assert_eq!(
            kinds(1, 100, 3 * mib, 3 * mib, BLOCKS),
            [(true, mib), (true, mib), (true, mib), (true, 4096)]
        );
    }

    /// Every range in six blocks, every alignment of the memory, and every end of the file.
    #[test]
    fn every_small_read_is_made_of_whole_blocks() {
        let aligned = Aligned { memory: 2, block: 4 };
        for offset in 0..24 {
            for room in 1..=24 - offset {
                for (bytes, address) in
                    (1..=room).flat_map(|bytes| (8..12).map(move |at| (bytes, at)))
                {
                    let pieces = pieces(Left { address, offset, bytes, room }, aligned);
                    assert_eq!(pieces.len(), 1, "nothing here is worth two transfers");
                    let fits =
                        offset % 4 == 0 && address % 2 == 0 && bytes.next_multiple_of(4) <= room;
                    assert_eq!(
                        !pieces[0].bounces, fits,
                        "{bytes} at {offset} into {room} at {address}"
                    );
                }
            }
        }
    }

    proptest! {
        #[test]
        fn pieces_cover_a_read_and_bounce_only_where_they_must(
            address in (0u64..1 << 20, 0u64..1024).prop_map(|(page, off)| page * 4096 + off),
            offset in (0u64..1 << 20, prop_oneof![Just(0), 0u64..4096])
                .prop_map(|(block, off)| block * 4096 + off),
            bytes in prop_oneof![
                1u64..20000,
                1u64..8 << 20,
                (1u64..2048).prop_map(|blocks| blocks * 4096)
            ],
            more in prop_oneof![Just(0u64), 0u64..10000],
            aligned in prop_oneof![
                Just(SECTORS),
                Just(BLOCKS),
                Just(Aligned { memory: 4096, block: 4096 })
            ],
        ) {
            let pieces = pieces(Left { address, offset, bytes, room: bytes + more }, aligned);
            let bounced: Vec<_> = pieces.iter().filter(|piece| piece.bounces).collect();
            prop_assert!(pieces.len() - bounced.len() <= 1, "{pieces:?}");
            prop_assert!(bounced.windows(2).all(|pair| pair[0].len >= pair[1].len), "{pieces:?}");
            let head = offset.next_multiple_of(aligned.block) - offset;
            if (address + head).is_multiple_of(aligned.memory) {
                let most = 2 * MIDDLE_MIN_BYTES;
                prop_assert!(
                    bounced.iter().map(|piece| piece.len).sum::<u64>() <= most,
                    "{pieces:?}"
                );
            } else {
                let least = (bytes / BOUNCE_MAX_BYTES + 2) as usize;
                prop_assert!(bounced.len() == pieces.len() && pieces.len() <= least, "{pieces:?}");
            }
        }
    }
}
