//! The data of writes: sectors that identify themselves.

use dioxide::Buffer;

pub const BLOCK_BYTES: u64 = 4096;
pub const SECTOR_BYTES: usize = 512;
pub const SECTORS: usize = BLOCK_BYTES as usize / SECTOR_BYTES;

/// The number of a write in a run, from 1.
pub type Number = u64;

/// The content of a sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sector {
    Zero,
    /// The block of its write.
    Of {
        write: Number,
        block: u64,
    },
    /// Data of no write, or at the wrong position in a block.
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

/// Parses the sector at this position in a block.
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

/// Each sector of a file, with its block.
pub fn sectors(content: &[u8]) -> impl Iterator<Item = (u64, Sector)> {
    content.chunks(SECTOR_BYTES).enumerate().map(|(n, bytes)| {
        let sector =
            if bytes.len() == SECTOR_BYTES { parse(bytes, n % SECTORS) } else { Sector::Garbage };
        ((n / SECTORS) as u64, sector)
    })
}
