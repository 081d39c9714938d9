//! The marker: what a file that grew ahead says of itself, so that a crash can be undone. Encoding only.
//!
//! It stands in the extended attribute `user.dioxide` from before the first growth until after the
//! cut at close. 64 bytes, little-endian: magic `dioxide`, version u8; growth u8, mode u8, recycled u8,
//! one byte zero, birth time nanoseconds u32; inode u64; birth time seconds i64; base u64; grown_from u64;
//! grown_to u64; epoch u32, CRC-32 of the 60 bytes before it. 64 is the most that fits beside an
//! ext4 inode of 256 bytes, so writing the marker needs no block, even on a full disk.

/// The name of the extended attribute.
pub const NAME: &str = "user.dioxide";

const MAGIC: &[u8; 7] = b"dioxide";
const VERSION: u8 = 1;
const LEN: usize = 64;

/// What tells a file from a copy of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Inode number.
    pub inode: u64,
    /// Birth time: seconds, then nanoseconds.
    pub born: (i64, u32),
}

/// What the space ahead looks like on disk before anything is written to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prepared {
    /// Allocated: the file system knows which blocks were written.
    Unwritten,
    /// Filled with zeros: the file system knows nothing.
    Zeroed,
}

/// What kinds of write have extended the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Appends only: the written part is contiguous, and ends at the first gap.
    AppendOnly,
    /// Positional writes too: holes are meant, and the last written extent is the end.
    Positional,
}

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marker {
    /// The file that it speaks of.
    pub identity: Identity,
    /// How the space ahead was prepared.
    pub prepared: Prepared,
    /// What extended the file.
    pub mode: Mode,
    /// Part of what lies above the base is what the file held before it was recycled.
    pub recycled: bool,
    /// Recovery never cuts below this end.
    pub base: u64,
    /// The physical size before the growth that this marker announces, rounded up to a block. Nobody of ours
    /// writes above it while this marker stands.
    pub grown_from: u64,
    /// The physical size after it.
    pub grown_to: u64,
    /// Different for each marker of a file, so that a reader notices that the file was cut and grown again.
    pub epoch: u32,
}

impl Marker {
    /// Whether the extents of the file tell what was written above the base. Zeros and old content look written as well.
    pub fn extents_tell(&self) -> bool {
        self.prepared == Prepared::Unwritten && !self.recycled
    }

    /// The bytes of the attribute.
    pub fn encode(&self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[0..7].copy_from_slice(MAGIC);
        bytes[7] = VERSION;
        bytes[8] = matches!(self.prepared, Prepared::Zeroed) as u8;
        bytes[9] = matches!(self.mode, Mode::Positional) as u8;
        bytes[10] = self.recycled as u8;
        bytes[12..16].copy_from_slice(&self.identity.born.1.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.identity.inode.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.identity.born.0.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.base.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.grown_from.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.grown_to.to_le_bytes());
        bytes[56..60].copy_from_slice(&self.epoch.to_le_bytes());
        let crc = crc32fast::hash(&bytes[..60]);
        bytes[60..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// What the bytes of an attribute say, or in words why they say nothing.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        let bytes: &[u8; LEN] =
            bytes.try_into().map_err(|_| format!("marker of {} bytes, not {LEN}", bytes.len()))?;
        if &bytes[0..7] != MAGIC {
            return Err("marker without its magic".into());
        }
        if crc32fast::hash(&bytes[..60]).to_le_bytes() != bytes[60..] {
            return Err("marker with a wrong checksum".into());
        }
        if bytes[7] != VERSION {
            return Err(format!("marker of version {}, this is version {VERSION}", bytes[7]));
        }
        Ok(Self {
            identity: Identity {
                inode: u64::from_le_bytes(field(bytes, 16)),
                born: (i64::from_le_bytes(field(bytes, 24)), u32::from_le_bytes(field(bytes, 12))),
            },
            prepared: if bytes[8] == 0 { Prepared::Unwritten } else { Prepared::Zeroed },
            mode: if bytes[9] == 0 { Mode::AppendOnly } else { Mode::Positional },
            recycled: bytes[10] != 0,
            base: u64::from_le_bytes(field(bytes, 32)),
            grown_from: u64::from_le_bytes(field(bytes, 40)),
            grown_to: u64::from_le_bytes(field(bytes, 48)),
            epoch: u32::from_le_bytes(field(bytes, 56)),
        })
    }
}

fn field<const N: usize>(bytes: &[u8; LEN], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("a field lies inside the marker")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> Marker {
        Marker {
            identity: Identity { inode: 77, born: (-5, 999_999_999) },
            prepared: Prepared::Zeroed,
            mode: Mode::Positional,
            recycled: true,
            base: 4096,
            grown_from: 8192,
            grown_to: 1 << 40,
            epoch: 7,
        }
    }

    #[test]
    fn decodes_what_it_encodes() {
        assert_eq!(Marker::decode(&sample().encode()), Ok(sample()));
    }

    #[test]
    fn any_flipped_bit_is_noticed() {
        let good = sample().encode();
        for bit in 0..good.len() * 8 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Marker::decode(&bad).is_err(), "bit {bit}");
        }
    }

    proptest! {
        #[test]
        fn garbage_is_refused_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            prop_assert!(Marker::decode(&bytes).is_err());
        }
    }
}
