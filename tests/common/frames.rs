//! Records of any length, and their acknowledged offsets.

use super::{BLOCK_BYTES, POISON, Random, Transfers};
use dioxide::Buffer;
use dioxide_testkit::records::Frame;
use std::cell::Cell;

/// A record of any length, and its acknowledged offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Laid {
    pub offset: u64,
    pub frame: Frame,
}

impl Laid {
    pub fn end(&self) -> u64 {
        self.offset + self.frame.len
    }

    pub fn to_ack(self) -> [u64; 3] {
        [self.offset, self.frame.writer << 32 | self.frame.number, self.frame.len]
    }

    pub fn from_ack([offset, name, len]: [u64; 3]) -> Self {
        Self { offset, frame: Frame { writer: name >> 32, number: name & 0xFFFF_FFFF, len } }
    }

    /// Returns whether `content`, the bytes of the file from 0, has the whole record.
    pub fn is_in(&self, content: &[u8]) -> bool {
        content.get(self.offset as usize..self.end() as usize) == Some(&self.frame.bytes())
    }
}

/// Draws a length as in a log: most are short, some span several blocks, a few are long. None is
/// below `min`.
pub fn any_len(random: &mut Random, min: u64) -> u64 {
    let max =
        [40, 200, 200, 600, 600, 5_000, 5_000, 12_000, 60_000, 200_000][random.below(10) as usize];
    min + random.below(max)
}

/// Appends a record from unaligned memory, which is overwritten after the call.
pub fn append_frame(file: &impl Transfers, frame: Frame) -> dioxide::Result<Laid> {
    let bytes = frame.bytes();
    let skew = (frame.number % 5 * 3) as usize;
    let mut memory = Buffer::zeroed(skew + bytes.len());
    memory[skew..].copy_from_slice(&bytes);
    let result = file.append(&memory[skew..]);
    memory.fill(POISON);
    Ok(Laid { offset: result?, frame })
}

/// Appends records of these lengths in order, in parallel where the way allows it. Ends after the
/// last length, or when `told` returns false. `told` also gets the results that were then in
/// flight.
pub fn append_frames_while(
    file: &impl Transfers,
    writer: u64,
    len: impl Fn(u64) -> Option<u64>,
    mut told: impl FnMut(dioxide::Result<Laid>) -> bool,
) {
    let frame = |number| Some(Frame { writer, number, len: len(number)? });
    if !file.has_many_in_flight() {
        let mut results = (0..).map_while(|number| Some(append_frame(file, frame(number)?)));
        while results.next().is_some_and(&mut told) {}
        return;
    }
    let (mut number, goes_on) = (0.., Cell::new(true));
    let mut next = || {
        let number = number.next().filter(|_| goes_on.get())?;
        Some(Buffer::from(&frame(number)?.bytes()[..]))
    };
    file.append_all(&mut next, &mut |number, result| {
        let frame = frame(number).expect("it was appended");
        if !told(result.map(|offset| Laid { offset, frame })) {
            goes_on.set(false);
        }
    });
}

/// Appends `count` records of any length.
pub fn append_frames(file: &impl Transfers, writer: u64, count: u64) -> Vec<Laid> {
    let mut random = Random::new(writer);
    let lens: Vec<_> = (0..count).map(|_| any_len(&mut random, 1)).collect();
    let mut laid = Vec::new();
    let len = |number| lens.get(number as usize).copied();
    append_frames_while(file, writer, len, |result| {
        laid.push(result.expect("there is space"));
        true
    });
    laid.sort_by_key(|laid: &Laid| laid.frame.number);
    assert_eq!(laid.len() as u64, count);
    laid
}

/// Checks that a file has only these records and zeros from `start` on, and ends with the last
/// record. Records are adjacent, or start at the next block where `gaps` are allowed. Returns the
/// number of gaps.
pub fn assert_laid_out(content: &[u8], start: u64, laid: &[Laid], gaps: bool) -> usize {
    let mut sorted = laid.to_vec();
    sorted.sort_unstable();
    let (mut end, mut seen) = (start, 0);
    for laid in &sorted {
        if laid.offset != end {
            assert!(
                gaps && laid.offset == end.next_multiple_of(BLOCK_BYTES),
                "behind {end}: {laid:?}"
            );
            let gap = content.get(end as usize..laid.offset as usize);
            assert!(
                gap.is_some_and(|gap| gap.iter().all(|byte| *byte == 0)),
                "no zeros from {end} on"
            );
            seen += 1;
        }
        assert!(laid.is_in(content), "lost: {laid:?} in a file of {} bytes", content.len());
        end = laid.end();
    }
    assert_eq!(content.len() as u64, end, "the size is not exact");
    seen
}

/// Checks that each record is at its acknowledged offset.
pub fn assert_all_laid(content: &[u8], laid: &[Laid]) {
    for laid in laid {
        assert!(laid.is_in(content), "lost: {laid:?} in a file of {} bytes", content.len());
    }
}

/// Reads up to `len` bytes, until EOF.
pub fn read_bytes(file: &impl Transfers, offset: u64, len: u64) -> dioxide::Result<Vec<u8>> {
    let mut bytes = vec![0; len as usize];
    let read = file.read_at(&mut bytes, offset)?;
    bytes.truncate(read);
    Ok(bytes)
}
