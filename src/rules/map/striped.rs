//! The map of a striped volume: the chunks of a file are distributed to its members in turn.
//!
//! Chunk `c` of the file is in row `c / members` of member `c % members`. Each member begins with a
//! chunk for its header, so row `r` of every member starts at `(r + 1) * chunk_bytes`. The part of
//! any range of the file on one member is a single run. So a request of any length becomes at most
//! one per member.

use crate::rules::merge::MemberRun;
use crate::rules::recovery::Extent;
use std::ops::Range;

/// The shape of a striped volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripeMap {
    members: usize,
    chunk_bytes: u64,
}

impl StripeMap {
    /// A volume of `members` members, with chunks of `chunk_bytes` bytes. Both above zero.
    pub fn new(members: usize, chunk_bytes: u64) -> Self {
        Self { members, chunk_bytes }
    }

    /// Returns the bytes of a row: a chunk of each member.
    pub fn row_bytes(&self) -> u64 {
        self.members as u64 * self.chunk_bytes
    }

    /// Returns the size of a member for a file of `len` bytes: the header's chunk, and its part of
    /// the file.
    pub fn size_of(&self, member: usize, len: u64) -> u64 {
        let before = member as u64 * self.chunk_bytes;
        let in_last_row = (len % self.row_bytes()).saturating_sub(before).min(self.chunk_bytes);
        (len / self.row_bytes() + 1).saturating_mul(self.chunk_bytes).saturating_add(in_last_row)
    }

    /// Returns the length of the longest file that fits completely on members of these sizes, all
    /// in bytes.
    pub fn len_of(&self, sizes: impl IntoIterator<Item = u64>) -> u64 {
        let lens =
            sizes.into_iter().enumerate().map(|(member, size)| self.first_missing(member, size));
        lens.min().unwrap_or(0)
    }

    /// Returns the first byte of the file that is missing on a member of this size.
    fn first_missing(&self, member: usize, size: u64) -> u64 {
        let part = size.saturating_sub(self.chunk_bytes);
        let row = (part / self.chunk_bytes).saturating_mul(self.row_bytes());
        row.saturating_add(member as u64 * self.chunk_bytes + part % self.chunk_bytes)
    }

    /// Returns the length of a volume on devices of these sizes, in bytes: whole rows.
    pub fn len_of_devices(&self, sizes: impl IntoIterator<Item = u64>) -> u64 {
        let rows = sizes.into_iter().map(|size| (size / self.chunk_bytes).saturating_sub(1)).min();
        rows.unwrap_or(0).saturating_mul(self.row_bytes())
    }

    /// Returns the runs of a range, in the order of the file: chunk by chunk.
    pub fn runs(&self, range: Range<u64>) -> impl Iterator<Item = MemberRun> + use<> {
        let this = *self;
        let mut start = range.start;
        std::iter::from_fn(move || {
            let left = range.end.checked_sub(start).filter(|left| *left > 0)?;
            let (chunk, inside) = (start / this.chunk_bytes, start % this.chunk_bytes);
            let len = left.min(this.chunk_bytes - inside);
            start += len;
            let (row, member) = (chunk / this.members as u64, chunk % this.members as u64);
            Some(MemberRun {
                member: member as usize,
                offset: (row + 1) * this.chunk_bytes + inside,
                len,
            })
        })
    }

    /// Returns the part of a range on a member, if it has any: one run.
    pub fn part_of(&self, member: usize, range: Range<u64>) -> Option<Range<u64>> {
        let part = self.size_of(member, range.start)..self.size_of(member, range.end);
        (part.start < part.end).then_some(part)
    }

    /// Returns the extents of the file, from those of each member in order. Adjacent extents in the
    /// same state are joined.
    pub fn extents(&self, members: &[Vec<Extent>]) -> Vec<Extent> {
        let mut extents: Vec<Extent> = Vec::new();
        let mut next = vec![0; self.members];
        let mut row_start = self.chunk_bytes;
        while let Some(rows) = self.like_rows(members, &mut next, row_start) {
            let base = (row_start / self.chunk_bytes - 1) * self.row_bytes();
            match rows {
                Rows::Alike(end, state) => {
                    let len = (end - row_start) * self.members as u64;
                    if let Some(written) = state {
                        add(&mut extents, Extent { start: base, end: base + len, written });
                    }
                    row_start = end;
                }
                Rows::Mixed => {
                    for (member, spaces) in members.iter().enumerate() {
                        let chunk = base + member as u64 * self.chunk_bytes;
                        for space in
                            within(&spaces[next[member]..], row_start..row_start + self.chunk_bytes)
                        {
                            let at = |place: u64| chunk + place - row_start;
                            add(
                                &mut extents,
                                Extent { start: at(space.start), end: at(space.end), ..space },
                            );
                        }
                    }
                    row_start += self.chunk_bytes;
                }
            }
        }
        extents
    }

    /// Classifies the rows from this one on over all members: as many as are in the same state
    /// throughout.
    fn like_rows(
        &self,
        members: &[Vec<Extent>],
        next: &mut [usize],
        row_start: u64,
    ) -> Option<Rows> {
        let mut end = u64::MAX;
        let mut states = Vec::with_capacity(self.members);
        for (spaces, next) in members.iter().zip(next) {
            *next += spaces[*next..].iter().take_while(|space| space.end <= row_start).count();
            match spaces.get(*next) {
                None => states.push(None),
                Some(space) if space.start <= row_start => {
                    end = end.min(space.end);
                    states.push(Some(space.written));
                }
                Some(space) => {
                    end = end.min(space.start);
                    states.push(None);
                }
            }
        }
        if end == u64::MAX {
            return None;
        }
        let whole = (end - row_start) / self.chunk_bytes * self.chunk_bytes;
        let alike = whole > 0 && states.iter().all(|state| *state == states[0]);
        Some(if alike { Rows::Alike(row_start + whole, states[0]) } else { Rows::Mixed })
    }
}

enum Rows {
    /// On every member, up to this offset, the same state: written, only allocated, or a hole.
    Alike(u64, Option<bool>),
    /// The members differ in this row.
    Mixed,
}

/// Returns the parts of these extents inside a range.
fn within(spaces: &[Extent], range: Range<u64>) -> impl Iterator<Item = Extent> + '_ {
    let inside = spaces.iter().take_while(move |space| space.start < range.end);
    inside.filter_map(move |space| {
        let (start, end) = (space.start.max(range.start), space.end.min(range.end));
        (start < end).then_some(Extent { start, end, ..*space })
    })
}

fn add(extents: &mut Vec<Extent>, space: Extent) {
    match extents.last_mut() {
        Some(last) if last.end == space.start && last.written == space.written => {
            last.end = space.end
        }
        _ => extents.push(space),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CHUNK: u64 = 8;

    /// Returns the member and offset of one byte of a file.
    fn place_of(map: StripeMap, byte: u64) -> (usize, u64) {
        let chunk = byte / CHUNK;
        let member = (chunk % map.members as u64) as usize;
        (member, CHUNK + chunk / map.members as u64 * CHUNK + byte % CHUNK)
    }

    #[test]
    fn three_members_take_turns() {
        let map = StripeMap::new(3, CHUNK);
        let runs: Vec<_> = map.runs(4..36).collect();
        let run = |member, offset, len| MemberRun { member, offset, len };
        assert_eq!(runs, [run(0, 12, 4), run(1, 8, 8), run(2, 8, 8), run(0, 16, 8), run(1, 16, 4)]);
    }

    /// Every length and every range of two and a half rows.
    #[test]
    fn sizes_lengths_and_runs_are_those_of_the_single_bytes() {
        for members in 1..=3 {
            let map = StripeMap::new(members, CHUNK);
            let len_max = map.row_bytes() * 5 / 2;
            for len in 0..=len_max {
                let bytes = |member| {
                    (0..len).filter(move |byte| place_of(map, *byte).0 == member).count() as u64
                };
                let sizes: Vec<_> = (0..members).map(|member| map.size_of(member, len)).collect();
                assert_eq!(
                    sizes,
                    (0..members).map(|member| CHUNK + bytes(member)).collect::<Vec<_>>()
                );
                assert_eq!(map.len_of(sizes.iter().copied()), len);
                for start in 0..=len {
                    let places = map.runs(start..len).flat_map(|run| {
                        (run.offset..run.offset + run.len).map(move |offset| (run.member, offset))
                    });
                    assert!(
                        places.eq((start..len).map(|byte| place_of(map, byte))),
                        "{start}..{len}"
                    );
                    for member in 0..members {
                        let mut here = (start..len)
                            .map(|byte| place_of(map, byte))
                            .filter(|place| place.0 == member);
                        let (first, last) = (here.next(), here.next_back());
                        let part = first.map(|first| first.1..last.unwrap_or(first).1 + 1);
                        assert_eq!(
                            map.part_of(member, start..len),
                            part,
                            "{start}..{len} of {member}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn the_length_ends_at_the_first_byte_that_is_missing() {
        let map = StripeMap::new(3, CHUNK);
        assert_eq!(map.len_of([0, 0, 0]), 0);
        assert_eq!(map.len_of([CHUNK, CHUNK, CHUNK]), 0);
        assert_eq!(map.len_of([3 * CHUNK, CHUNK + 3, 3 * CHUNK]), CHUNK + 3);
        assert_eq!(map.len_of([3 * CHUNK, 3 * CHUNK, CHUNK]), 2 * CHUNK);
        assert_eq!(map.len_of([u64::MAX; 3]), u64::MAX);
    }

    #[test]
    fn devices_are_used_by_whole_rows() {
        let map = StripeMap::new(2, CHUNK);
        assert_eq!(map.len_of_devices([5 * CHUNK + 7, 3 * CHUNK + 1]), 2 * 2 * CHUNK);
        assert_eq!(map.len_of_devices([CHUNK, 0]), 0);
    }

    proptest! {
        /// Random members, each byte a hole, allocated or written.
        #[test]
        fn extents_are_those_of_the_single_bytes(
            members in 1usize..4,
            lists in proptest::collection::vec(
                proptest::collection::vec((1u64..30, 0u8..3), 0..8), 3..4)
        ) {
            let map = StripeMap::new(members, CHUNK);
            let lists: Vec<Vec<Extent>> = lists[..members].iter().map(|list| {
                let mut at = 0;
                list.iter().filter_map(|(len, state)| {
                    let start = at;
                    at += len;
                    (*state > 0).then_some(Extent { start, end: at, written: *state == 2 })
                }).collect()
            }).collect();
            let state_at = |spaces: &[Extent], place: u64| {
                spaces
                    .iter()
                    .find(|space| (space.start..space.end).contains(&place))
                    .map(|space| space.written)
            };
            let found = map.extents(&lists);
            for pair in found.windows(2) {
                prop_assert!(pair[0].end < pair[1].start
                    || pair[0].end == pair[1].start && pair[0].written != pair[1].written);
            }
            for byte in 0..map.row_bytes() * 32 {
                let (member, place) = place_of(map, byte);
                prop_assert_eq!(state_at(&found, byte), state_at(&lists[member], place), "byte \
                    {}", byte);
            }
        }
    }
}
