//! The headers of the members of a striped volume. Encoding and judgement only.
//!
//! The first sector (512 bytes) of a member, little-endian, is written once (twice on the first
//! member):
//!
//! ```text
//! magic `dioxide stripe`, version u8, unfinished u8 (0 or 1)
//! id of the volume, 16 bytes
//! number of members u32, index of this member u32
//! chunk_bytes u64
//! CRC-32 of the 48 bytes before it
//! ```
//!
//! The second sector of the first member records whether a process writes the volume:
//!
//! ```text
//! magic `dioxlen`, state u8 (0 closed, 1 open)
//! length u64
//! CRC-32 of the 16 bytes before it
//! ```
//!
//! It is written whenever a volume of files is opened for writing and closed. As a single sector it
//! is the old one or the new one after a crash.
//!
//! Creation writes the first member twice: first of all, as unfinished, and again after all others.
//! So an interrupted creation differs from a volume that lacks a member.

/// The bytes that a member's header takes: its first block. Direct I/O must take transfers of this
/// length.
pub const HEADER_BYTES: usize = 4096;

/// The largest number of members of a volume.
pub const MEMBERS_MAX: usize = 64;

/// The largest chunk, so that no offset on a member overflows.
pub const CHUNK_BYTES_MAX: u64 = 1 << 40;

const SECTOR_BYTES: usize = 512;
const MAGIC: &[u8; 14] = b"dioxide stripe";
const VERSION: u8 = 1;
const HEADER_CRC_AT: usize = 48;
const STATE_MAGIC: &[u8; 7] = b"dioxlen";
const STATE_CRC_AT: usize = 16;

/// The identity of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The same for all members of a volume, and of no other volume.
    pub volume: [u8; 16],
    /// The number of members.
    pub members: u32,
    /// The index of this member, from 0.
    pub member: u32,
    /// The chunk size, in bytes.
    pub chunk_bytes: u64,
    /// The volume was not complete when this was written, and is unused. Only set on the first
    /// member.
    pub unfinished: bool,
}

/// The state of a volume of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderState {
    /// The last writer closed it, with this length.
    Closed(u64),
    /// A writer has it open, or was interrupted. No truncate went below this length since.
    Open(u64),
}

/// The content of a path that is to be a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberContent {
    /// Nothing: a file with at most zeros in place of a header, or a device with zeros there.
    Blank,
    /// A member. The first has a state, if the members are files.
    Member(Header, Option<HeaderState>),
    /// Other content, in words.
    Other(String),
}

/// The judgement of all members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MembersFound {
    /// They are a volume.
    Volume(Header, Option<HeaderState>),
    /// They may become a volume, with this id if an earlier creation began.
    Create(Option<[u8; 16]>),
}

impl Header {
    /// Returns the first block of the member, with the state if it has one.
    pub fn encode(&self, state: Option<HeaderState>) -> [u8; HEADER_BYTES] {
        let mut block = [0; HEADER_BYTES];
        block[..14].copy_from_slice(MAGIC);
        block[14] = VERSION;
        block[15] = u8::from(self.unfinished);
        block[16..32].copy_from_slice(&self.volume);
        block[32..36].copy_from_slice(&self.members.to_le_bytes());
        block[36..40].copy_from_slice(&self.member.to_le_bytes());
        block[40..48].copy_from_slice(&self.chunk_bytes.to_le_bytes());
        let crc = crc32fast::hash(&block[..HEADER_CRC_AT]);
        block[HEADER_CRC_AT..][..4].copy_from_slice(&crc.to_le_bytes());
        if let Some(state) = state {
            state.encode(&mut block[SECTOR_BYTES..2 * SECTOR_BYTES]);
        }
        block
    }
}

impl HeaderState {
    fn encode(self, sector: &mut [u8]) {
        let (kind, len) = match self {
            Self::Closed(len) => (0, len),
            Self::Open(len) => (1, len),
        };
        sector[..7].copy_from_slice(STATE_MAGIC);
        sector[7] = kind;
        sector[8..16].copy_from_slice(&len.to_le_bytes());
        let crc = crc32fast::hash(&sector[..STATE_CRC_AT]);
        sector[STATE_CRC_AT..][..4].copy_from_slice(&crc.to_le_bytes());
    }

    fn decode(sector: &[u8]) -> Option<Self> {
        let crc = crc32fast::hash(&sector[..STATE_CRC_AT]);
        if sector[..7] != *STATE_MAGIC || u32_at(sector, STATE_CRC_AT) != crc {
            return None;
        }
        let len = u64_at(sector, 8);
        match sector[7] {
            0 => Some(Self::Closed(len)),
            1 => Some(Self::Open(len)),
            _ => None,
        }
    }
}

/// Parses the first block of a member. It is shorter if the member is.
pub fn parse(block: &[u8]) -> MemberContent {
    if block.iter().all(|byte| *byte == 0) {
        return MemberContent::Blank;
    }
    if block.len() < HEADER_BYTES || block[..14] != *MAGIC {
        return MemberContent::Other("it holds something else".into());
    }
    if u32_at(block, HEADER_CRC_AT) != crc32fast::hash(&block[..HEADER_CRC_AT]) {
        return MemberContent::Other("its header has a wrong checksum".into());
    }
    if block[14] != VERSION {
        return MemberContent::Other(format!(
            "its header is of version {}, this is version {VERSION}",
            block[14]
        ));
    }
    let header = Header {
        volume: block[16..32].try_into().expect("16 bytes"),
        members: u32_at(block, 32),
        member: u32_at(block, 36),
        chunk_bytes: u64_at(block, 40),
        unfinished: block[15] != 0,
    };
    MemberContent::Member(header, HeaderState::decode(&block[SECTOR_BYTES..2 * SECTOR_BYTES]))
}

/// Judges these members in their order. The error gives in words why they are no volume.
pub fn judge(found: &[MemberContent], chunk_bytes: u64) -> Result<MembersFound, String> {
    let count = found.len();
    for (place, found) in found.iter().enumerate() {
        if let MemberContent::Other(why) = found {
            return Err(format!("member {place}: {why}; nothing was changed"));
        }
    }
    let missing = |place| {
        Err(format!("member {place} is missing: nothing is there that belongs to the volume"))
    };
    let MemberContent::Member(volume, state) = &found[0] else {
        let all_blank = found.iter().all(|found| *found == MemberContent::Blank);
        return if all_blank { Ok(MembersFound::Create(None)) } else { missing(0) };
    };
    for (place, found) in found.iter().enumerate() {
        let MemberContent::Member(header, _) = found else {
            if volume.unfinished {
                continue;
            }
            return missing(place);
        };
        if header.volume != volume.volume {
            return Err(format!("member {place} belongs to another volume than member 0"));
        }
        if header.members as usize != count {
            return Err(format!("the volume has {} members, {count} are given", header.members));
        }
        if header.member as usize != place {
            return Err(format!(
                "member {} is given in the place of member {place}",
                header.member
            ));
        }
        if header.chunk_bytes != chunk_bytes {
            return Err(format!(
                "the volume has chunks of {} bytes, not {chunk_bytes}",
                header.chunk_bytes
            ));
        }
    }
    Ok(if volume.unfinished {
        MembersFound::Create(Some(volume.volume))
    } else {
        MembersFound::Volume(*volume, *state)
    })
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CHUNK: u64 = 65536;

    fn header(member: u32) -> Header {
        Header { volume: [7; 16], members: 3, member, chunk_bytes: CHUNK, unfinished: false }
    }

    fn members() -> Vec<MemberContent> {
        (0..3)
            .map(|member| {
                MemberContent::Member(
                    header(member),
                    (member == 0).then_some(HeaderState::Closed(9)),
                )
            })
            .collect()
    }

    fn refusal(found: &[MemberContent]) -> String {
        judge(found, CHUNK).unwrap_err()
    }

    #[test]
    fn parses_what_it_encodes() {
        for state in [None, Some(HeaderState::Closed(5)), Some(HeaderState::Open(u64::MAX))] {
            assert_eq!(parse(&header(2).encode(state)), MemberContent::Member(header(2), state));
        }
    }

    #[test]
    fn any_flipped_bit_is_noticed() {
        let good = header(1).encode(Some(HeaderState::Closed(77)));
        for bit in (0..52 * 8).chain(512 * 8..532 * 8) {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(parse(&bad), parse(&good), "bit {bit}");
        }
    }

    #[test]
    fn members_in_their_places_are_a_volume() {
        assert_eq!(
            judge(&members(), CHUNK),
            Ok(MembersFound::Volume(header(0), Some(HeaderState::Closed(9))))
        );
    }

    #[test]
    fn nothing_is_to_become_a_volume() {
        assert_eq!(
            judge(&[MemberContent::Blank, MemberContent::Blank], CHUNK),
            Ok(MembersFound::Create(None))
        );
    }

    #[test]
    fn what_is_wrong_is_named() {
        let mut swapped = members();
        swapped.swap(1, 2);
        assert_eq!(refusal(&swapped), "member 2 is given in the place of member 1");
        let mut foreign = members();
        foreign[2] = MemberContent::Member(Header { volume: [8; 16], ..header(2) }, None);
        assert_eq!(refusal(&foreign), "member 2 belongs to another volume than member 0");
        let mut lost = members();
        lost[1] = MemberContent::Blank;
        assert!(refusal(&lost).starts_with("member 1 is missing"));
        assert_eq!(refusal(&members()[..2]), "the volume has 3 members, 2 are given");
        let wrong_chunk = judge(&members(), 2 * CHUNK).unwrap_err();
        assert_eq!(wrong_chunk, "the volume has chunks of 65536 bytes, not 131072");
        let mut other = members();
        other[0] = parse(&[1; HEADER_BYTES]);
        assert!(refusal(&other).starts_with("member 0: it holds something else"));
    }

    #[test]
    fn a_creation_that_was_cut_off_is_resumed_and_a_lost_first_member_is_not() {
        let mut cut_off = members();
        cut_off[0] = MemberContent::Member(
            Header { unfinished: true, ..header(0) },
            Some(HeaderState::Closed(0)),
        );
        cut_off[2] = MemberContent::Blank;
        assert_eq!(judge(&cut_off, CHUNK), Ok(MembersFound::Create(Some([7; 16]))));
        cut_off[1] = MemberContent::Member(Header { volume: [8; 16], ..header(1) }, None);
        assert_eq!(refusal(&cut_off), "member 1 belongs to another volume than member 0");
        let mut lost = members();
        lost[0] = MemberContent::Blank;
        assert!(refusal(&lost).starts_with("member 0 is missing"));
    }

    proptest! {
        #[test]
        fn garbage_is_no_member(
            block in proptest::collection::vec(any::<u8>(), 0..HEADER_BYTES + 1)
        ) {
            prop_assert!(!matches!(parse(&block), MemberContent::Member(..)));
        }
    }
}
