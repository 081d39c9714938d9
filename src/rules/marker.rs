//! The marker: an attribute of a grown file, by which recovery undoes growth after a crash.
//! Encoding only.
//!
//! The extended attribute `user.dioxide` holds it, from before the first growth until after the
//! truncate at close. Its 64 bytes, little-endian:
//!
//! ```text
//! magic `dioxide`, version u8
//! growth u8, mode u8, recycled u8, truncations u8 (version 2; zero in version 1),
//! birth time nanoseconds u32
//! inode u64
//! birth time seconds i64
//! base u64, grown_from u64, grown_to u64
//! epoch u32, CRC-32 of the 60 bytes before it
//! ```
//!
//! The attribute fits beside an ext4 inode of 256 bytes, and a larger one would not. So a write of
//! the marker needs no block there, even on a full disk.

/// The name of the extended attribute.
pub const NAME: &str = "user.dioxide";

const MAGIC: &[u8; 7] = b"dioxide";
/// The first version, without a count of truncations.
const VERSION_UNCOUNTED: u8 = 1;
const VERSION: u8 = 2;
const LEN: usize = 64;

/// Distinguishes a file from a copy of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Inode number.
    pub inode: u64,
    /// Birth time: seconds, then nanoseconds.
    pub birth_time: (i64, u32),
}

/// The state of space ahead before anything is written to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prepared {
    /// Allocated: the file system knows the written blocks.
    Unwritten,
    /// Filled with zeros: to the file system all blocks are written.
    Zeroed,
}

/// The kinds of write that extended the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Appends only: the written part is contiguous, and ends at the first gap.
    AppendOnly,
    /// Positional writes too: holes are intended, and the end is that of the last written extent.
    Positional,
}

/// The content of the attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marker {
    /// The file that it describes.
    pub identity: Identity,
    /// How the space ahead was prepared.
    pub prepared: Prepared,
    /// The kinds of write that extended the file.
    pub mode: Mode,
    /// Data from before the recycle may remain above `base`.
    pub recycled: bool,
    /// Recovery never truncates below this end.
    pub base: u64,
    /// The physical size before the growth that this marker announces, rounded up to a block. The
    /// engine does not write above it while this marker stands.
    pub grown_from: u64,
    /// The physical size after the growth.
    pub grown_to: u64,
    /// Different for each marker of a file, except for one that only lowers `grown_to` after a
    /// partial allocation. Successive markers of one writer in one life of the file count up.
    pub epoch: u32,
    /// A count in that life, modulo 256. A marker that announces a truncate or a recycle adds 1.
    /// The marker after a truncate adds 1 more, so that readers of either read again. Absent in
    /// markers of version 1.
    pub truncations: Option<u8>,
}

/// The count of truncations may wrap after this many epochs.
const COUNT_MODULUS: u32 = 1 << 8;

impl Marker {
    /// Returns whether the extents of the file show the data written above the base. Zeros and old
    /// content look written as well.
    pub fn extents_tell(&self) -> bool {
        self.prepared == Prepared::Unwritten && !self.recycled
    }

    /// Returns whether the file certainly only grew from this marker to a later one. Each count
    /// takes its own epoch, so the count is reliable over fewer epochs than its modulus. Another
    /// life of the file has unrelated epochs.
    pub fn only_grew_until(&self, later: &Self) -> bool {
        let is_near = later.epoch.wrapping_sub(self.epoch) < COUNT_MODULUS;
        is_near
            && self.identity == later.identity
            && self.truncations.is_some()
            && self.truncations == later.truncations
    }

    /// Returns whether this marker differs from the one before only in the growth that it
    /// announces, and in the end of the durable data. Without one before, the file has not grown.
    pub fn only_grows_after(&self, before: Option<Self>) -> bool {
        let before = before.unwrap_or(Self { recycled: false, ..*self });
        let Self { base, grown_from, grown_to, epoch, .. } = *self;
        *self == Self { base, grown_from, grown_to, epoch, ..before } && grown_to >= before.grown_to
    }

    /// Returns the next marker, which announces a truncate.
    pub fn before_truncation(self) -> Self {
        let truncations = self.truncations.map(|count| count.wrapping_add(1));
        Self { epoch: self.epoch.wrapping_add(1), truncations, ..self }
    }

    /// Returns the bytes of the attribute.
    pub fn encode(&self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[0..7].copy_from_slice(MAGIC);
        bytes[7] = if self.truncations.is_some() { VERSION } else { VERSION_UNCOUNTED };
        bytes[8] = matches!(self.prepared, Prepared::Zeroed) as u8;
        bytes[9] = matches!(self.mode, Mode::Positional) as u8;
        bytes[10] = self.recycled as u8;
        bytes[11] = self.truncations.unwrap_or(0);
        bytes[12..16].copy_from_slice(&self.identity.birth_time.1.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.identity.inode.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.identity.birth_time.0.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.base.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.grown_from.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.grown_to.to_le_bytes());
        bytes[56..60].copy_from_slice(&self.epoch.to_le_bytes());
        let crc = crc32fast::hash(&bytes[..60]);
        bytes[60..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes the bytes of an attribute. The error gives the reason in words.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        let bytes: &[u8; LEN] =
            bytes.try_into().map_err(|_| format!("marker of {} bytes, not {LEN}", bytes.len()))?;
        if &bytes[0..7] != MAGIC {
            return Err("marker without its magic".into());
        }
        if crc32fast::hash(&bytes[..60]).to_le_bytes() != bytes[60..] {
            return Err("marker with a wrong checksum".into());
        }
        let truncations = match bytes[7] {
            VERSION_UNCOUNTED => None,
            VERSION => Some(bytes[11]),
            newer => return Err(format!("marker of version {newer}, this is version {VERSION}")),
        };
        Ok(Self {
            identity: Identity {
                inode: u64::from_le_bytes(field(bytes, 16)),
                birth_time: (
                    i64::from_le_bytes(field(bytes, 24)),
                    u32::from_le_bytes(field(bytes, 12)),
                ),
            },
            prepared: if bytes[8] == 0 { Prepared::Unwritten } else { Prepared::Zeroed },
            mode: if bytes[9] == 0 { Mode::AppendOnly } else { Mode::Positional },
            recycled: bytes[10] != 0,
            base: u64::from_le_bytes(field(bytes, 32)),
            grown_from: u64::from_le_bytes(field(bytes, 40)),
            grown_to: u64::from_le_bytes(field(bytes, 48)),
            epoch: u32::from_le_bytes(field(bytes, 56)),
            truncations,
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
            identity: Identity { inode: 77, birth_time: (-5, 999_999_999) },
            prepared: Prepared::Zeroed,
            mode: Mode::Positional,
            recycled: true,
            base: 4096,
            grown_from: 8192,
            grown_to: 1 << 40,
            epoch: 7,
            truncations: Some(255),
        }
    }

    #[test]
    fn decodes_what_it_encodes() {
        assert_eq!(Marker::decode(&sample().encode()), Ok(sample()));
    }

    fn with_version(version: u8) -> [u8; LEN] {
        let mut bytes = sample().encode();
        bytes[7] = version;
        bytes[11] = 0;
        let crc = crc32fast::hash(&bytes[..60]);
        bytes[60..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    #[test]
    fn a_marker_of_the_first_version_is_read_and_a_newer_one_is_refused() {
        let uncounted = Marker { truncations: None, ..sample() };
        assert_eq!(Marker::decode(&with_version(1)), Ok(uncounted));
        assert_eq!(uncounted.encode(), with_version(1));
        let why = Marker::decode(&with_version(3)).expect_err("nothing is known of it");
        assert_eq!(why, "marker of version 3, this is version 2");
    }

    /// Every history of up to 600 markers with truncations at equal distances, and each pair of its
    /// markers.
    #[test]
    fn truncation_is_never_taken_for_growth() {
        for (distance, first_epoch) in
            [(1, 0), (2, u32::MAX - 100), (3, 7), (100, 1), (255, 0), (256, 9), (1000, 0)]
        {
            let count = |n: u32| n / distance;
            let at = |n: u32| Marker {
                epoch: first_epoch.wrapping_add(n),
                truncations: Some(count(n) as u8),
                ..sample()
            };
            for (n, later) in (0..600u32).flat_map(|n| (n..600).map(move |later| (n, later))) {
                let grew = at(n).only_grew_until(&at(later));
                assert_eq!(
                    grew,
                    count(n) == count(later) && later - n < 256,
                    "{distance}: {n}, {later}"
                );
                assert!(
                    n == later || !at(later).only_grew_until(&at(n)),
                    "back from {later} to {n}"
                );
            }
        }
    }

    #[test]
    fn a_marker_that_announces_a_truncation_is_no_growth() {
        assert!(sample().only_grew_until(&sample()));
        assert!(!sample().only_grew_until(&sample().before_truncation()));
    }

    #[test]
    fn a_marker_that_says_more_than_a_growth_is_known() {
        let before = sample();
        let grown_to = before.grown_to + 4096;
        let next = Marker { grown_from: before.grown_to, grown_to, epoch: 0, ..before };
        assert!(next.only_grows_after(Some(before)));
        let mode = match before.mode {
            Mode::AppendOnly => Mode::Positional,
            Mode::Positional => Mode::AppendOnly,
        };
        let others = [
            Marker { mode, ..next },
            Marker { recycled: !next.recycled, ..next },
            Marker { truncations: None, ..next },
            Marker { grown_to: before.grown_to - 4096, ..next },
        ];
        assert!(others.iter().all(|other| !other.only_grows_after(Some(before))));
        let first = Marker { recycled: false, ..before };
        assert!(first.only_grows_after(None));
        assert!(!Marker { recycled: true, ..first }.only_grows_after(None));
    }

    #[test]
    fn without_a_count_or_in_another_file_nothing_is_certain() {
        let uncounted = Marker { truncations: None, ..sample() };
        assert!(!uncounted.only_grew_until(&uncounted));
        let another = Marker { identity: Identity { inode: 78, ..sample().identity }, ..sample() };
        assert!(!sample().only_grew_until(&another));
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
        fn garbage_is_refused_without_a_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..100)
        ) {
            prop_assert!(Marker::decode(&bytes).is_err());
        }
    }
}
