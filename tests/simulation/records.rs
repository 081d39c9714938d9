//! What writers write: sectors that tell of themselves.

use dioxide::Buffer;

pub const BLOCK_BYTES: u64 = 4096;
pub const SECTOR_BYTES: usize = 512;
pub const SECTORS: usize = BLOCK_BYTES as usize / SECTOR_BYTES;

/// One write of a run: counted from 1.
pub type Number = u64;

/// What a sector holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sector {
    Zero,
    /// The block of a write that it is part of.
    Of {
        write: Number,
        block: u64,
    },
    /// Nothing that anybody wrote, or not at this place in a block.
    Garbage,
}

/// The blocks of a write.
pub fn record(write: Number, blocks: u64) -> Buffer {
    let mut buffer = Buffer::zeroed((blocks * BLOCK_BYTES) as usize);
    for (n, sector) in buffer.chunks_mut(SECTOR_BYTES).enumerate() {
        fill(sector, write, (n / SECTORS) as u64, (n % SECTORS) as u64);
    }
    buffer
}

fn fill(sector: &mut [u8], write: Number, block: u64, place: u64) {
    for (n, word) in sector.chunks_mut(8).enumerate() {
        let value = [write, block, place][n % 3];
        word.copy_from_slice(&value.to_le_bytes());
    }
}

/// What the sector at this place in a block holds.
pub fn parse(bytes: &[u8], place: usize) -> Sector {
    if bytes.iter().all(|byte| *byte == 0) {
        return Sector::Zero;
    }
    let word = |n: usize| u64::from_le_bytes(bytes[8 * n..][..8].try_into().expect("eight bytes"));
    let (write, block) = (word(0), word(1));
    let mut expected = [0; SECTOR_BYTES];
    fill(&mut expected, write, block, place as u64);
    if write > 0 && expected == bytes { Sector::Of { write, block } } else { Sector::Garbage }
}

/// Each sector of a file, with its block and its place in it.
pub fn sectors(content: &[u8]) -> impl Iterator<Item = (u64, Sector)> {
    content.chunks(SECTOR_BYTES).enumerate().map(|(n, bytes)| {
        let sector =
            if bytes.len() == SECTOR_BYTES { parse(bytes, n % SECTORS) } else { Sector::Garbage };
        ((n / SECTORS) as u64, sector)
    })
}
