//! Judges the state in which a crash left a file, and where to truncate it. Decisions only; the
//! engine does the I/O.

use crate::rules::marker::{Identity, Marker, Mode};
use std::fmt;
use std::ops::Range;

/// Allocated space of a file, as FIEMAP reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The first byte.
    pub start: u64,
    /// The byte after the last.
    pub end: u64,
    /// Holds data, and is not only allocated.
    pub written: bool,
}

/// The state in which a file was found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// It was closed, or never grew ahead: no recovery is needed.
    Clean,
    /// It is a copy that carries the marker of another file. Recovery leaves it alone.
    Foreign,
    /// A crash left it grown; the end of the written data is known.
    EndKnown,
    /// A crash left it with zeros, or content from before a recycle, behind its records. The end
    /// lies between `floor` and `ceiling`, and only the program can find it.
    EndUnknown,
    /// A crash left it grown, and it changed since. Only force truncates it. If `floor` and
    /// `ceiling` differ, force keeps the size, but makes it [`EndUnknown`](Verdict::EndUnknown).
    ModifiedExternally(String),
}

/// The state that recovery found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recovery {
    /// The size of the file before recovery, in bytes.
    pub physical_size: u64,
    /// All data below this offset is certainly part of the file.
    pub floor: u64,
    /// No data was written above this offset. Equal to `floor` when the end is known.
    pub ceiling: u64,
    /// The state of the file.
    pub verdict: Verdict,
}

impl fmt::Display for Recovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { physical_size, floor, ceiling, verdict } = self;
        match verdict {
            Verdict::Clean => write!(f, "clean, {physical_size} bytes"),
            Verdict::Foreign => {
                write!(
                    f,
                    "a copy that carries another file's marker; left alone, {physical_size} bytes"
                )
            }
            Verdict::EndKnown if ceiling == physical_size => {
                write!(f, "left open by a crash; nothing to truncate, {physical_size} bytes")
            }
            Verdict::EndKnown => write!(
                f,
                "left grown to {physical_size} bytes by a crash; written data ends at {ceiling}"
            ),
            Verdict::EndUnknown => write!(
                f,
                "left by a crash with zeros or old content behind its records. The end lies \
                 between {floor} and {ceiling}, and only the program that wrote the records can \
                 find it"
            ),
            Verdict::ModifiedExternally(why) => {
                write!(
                    f,
                    "left grown by a crash and changed since ({why}); written data ends at \
                     {ceiling}"
                )
            }
        }
    }
}

impl Recovery {
    /// Returns whether the state is worth a report.
    pub(crate) fn needs_attention(&self) -> bool {
        self.verdict != Verdict::Clean
    }

    /// Returns the range in which the file ends, if only its own program can find the end.
    pub(crate) fn unknown_end(&self) -> Option<Range<u64>> {
        (self.floor < self.ceiling).then_some(self.floor..self.ceiling)
    }

    /// The state of a file without a marker.
    pub(crate) fn clean(physical_size: u64) -> Self {
        Self {
            physical_size,
            floor: physical_size,
            ceiling: physical_size,
            verdict: Verdict::Clean,
        }
    }
}

/// Judges a file of `physical_size` bytes with this `identity` and `marker`. `extents` are those of
/// the whole file, by start, read after a sync.
pub fn judge(
    marker: &Marker,
    identity: Identity,
    physical_size: u64,
    extents: &[Extent],
) -> Recovery {
    let clean = Recovery::clean(physical_size);
    if marker.identity != identity {
        return Recovery { verdict: Verdict::Foreign, ..clean };
    }
    // Another program truncated it further than the engine ever would: no space of ours is left.
    if physical_size < marker.base {
        return Recovery { verdict: Verdict::EndKnown, ..clean };
    }
    let at = |end: u64, verdict| Recovery { physical_size, floor: end, ceiling: end, verdict };
    if let Some(why) = doubt(marker, physical_size, extents) {
        let verdict = Verdict::ModifiedExternally(why);
        return match marker.extents_tell() {
            true => at(last_written(extents).clamp(marker.base, physical_size), verdict),
            false => {
                Recovery { physical_size, floor: marker.base, ceiling: physical_size, verdict }
            }
        };
    }
    if marker.extents_tell() {
        let end = end_of_written(marker, extents);
        return at(end.clamp(marker.base, physical_size), Verdict::EndKnown);
    }
    let known = marker.base == physical_size;
    let verdict = if known { Verdict::EndKnown } else { Verdict::EndUnknown };
    Recovery { physical_size, floor: marker.base, ceiling: physical_size, verdict }
}

/// Append-only: returns the end of the contiguous written part. Positional: holes may be intended,
/// so returns the end of the last written extent.
fn end_of_written(marker: &Marker, extents: &[Extent]) -> u64 {
    match marker.mode {
        Mode::Positional => last_written(extents),
        Mode::AppendOnly => {
            extents.iter().filter(|extent| extent.written).fold(marker.base, |end, extent| {
                if extent.start <= end { end.max(extent.end) } else { end }
            })
        }
    }
}

fn last_written(extents: &[Extent]) -> u64 {
    extents.iter().filter(|extent| extent.written).map(|extent| extent.end).max().unwrap_or(0)
}

/// Returns the end of the last written extent above `from` in a file of `physical_size` bytes, if
/// there is one.
pub fn written_above(from: u64, physical_size: u64, extents: &[Extent]) -> Option<u64> {
    let end = last_written(extents).min(physical_size);
    (end > from).then_some(end)
}

/// Returns the written ranges above `from`, however the file system divides them into extents.
pub fn written_ranges(from: u64, extents: &[Extent]) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for extent in extents.iter().filter(|extent| extent.written && extent.end > from) {
        match ranges.last_mut() {
            Some(last) if last.end == extent.start => last.end = extent.end,
            _ => ranges.push(extent.start.max(from)..extent.end),
        }
    }
    ranges
}

/// Returns the end of the written range at the beginning of the file.
pub fn written_from_start(extents: &[Extent]) -> u64 {
    written_ranges(0, extents).first().filter(|range| range.start == 0).map_or(0, |range| range.end)
}

/// Returns a sign that another program changed the file after the crash.
fn doubt(marker: &Marker, physical_size: u64, extents: &[Extent]) -> Option<String> {
    let Marker { grown_from, grown_to, .. } = *marker;
    if physical_size > grown_to {
        return Some(format!("it was left with {grown_to} bytes and has {physical_size}"));
    }
    // Where extents do not tell, a durable write commits no later marker: `grown_from` may be that
    // of an earlier step, with our data above it.
    if physical_size <= grown_from || !marker.extents_tell() {
        return None;
    }
    // The crash came during the growth that the marker announces. No writer of ours had that space
    // yet, so it is allocated and unwritten.
    let above = || extents.iter().filter(|extent| extent.end > grown_from);
    if let Some(extent) = above().find(|extent| extent.written) {
        return Some(format!("something was written at {}", extent.start.max(grown_from)));
    }
    // Some file systems allocate beyond the size as well, which fills no hole.
    let inside = |extent: &Extent| {
        extent.end.min(physical_size).saturating_sub(extent.start.max(grown_from))
    };
    let allocated: u64 = above().map(inside).sum();
    let hole = allocated < physical_size - grown_from;
    (hole && marker.mode == Mode::AppendOnly)
        .then(|| format!("it was extended to {physical_size} bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::marker::Prepared;
    use proptest::prelude::*;

    const SELF: Identity = Identity { inode: 12, birth_time: (1, 2) };
    const MARKER: Marker = Marker {
        identity: SELF,
        prepared: Prepared::Unwritten,
        mode: Mode::AppendOnly,
        recycled: false,
        base: 8192,
        grown_from: 65536,
        grown_to: 131072,
        epoch: 1,
        truncations: Some(0),
    };
    const GROWING: Marker = Marker { grown_from: 16384, grown_to: 65536, ..MARKER };

    fn extent(start: u64, end: u64, written: bool) -> Extent {
        Extent { start, end, written }
    }

    #[test]
    fn appends_end_at_the_first_gap() {
        let extents = [
            extent(0, 12288, true),
            extent(12288, 16384, true),
            extent(16384, 20480, false),
            extent(20480, 24576, true),
            extent(24576, 65536, false),
        ];
        let found = judge(&MARKER, SELF, 65536, &extents);
        assert_eq!((found.verdict, found.ceiling), (Verdict::EndKnown, 16384));
    }

    /// A commit between the zeros of a step and its second marker leaves that marker behind.
    #[test]
    fn data_above_an_earlier_step_is_ours_where_extents_do_not_tell() {
        let extents = [extent(0, 65536, true)];
        let zeroed = Marker { prepared: Prepared::Zeroed, ..GROWING };
        let recycled = Marker { recycled: true, ..GROWING };
        for marker in [zeroed, recycled] {
            let found = judge(&marker, SELF, 65536, &extents);
            assert_eq!((found.verdict, found.ceiling), (Verdict::EndUnknown, 65536), "{marker:?}");
        }
        let verdict = judge(&GROWING, SELF, 65536, &extents).verdict;
        assert!(matches!(verdict, Verdict::ModifiedExternally(_)), "{verdict:?}");
    }

    #[test]
    fn what_is_written_above_ours_is_found() {
        let extents =
            [extent(0, 8192, true), extent(8192, 16384, false), extent(20480, 24576, true)];
        assert_eq!(written_above(8192, 65536, &extents[..2]), None);
        assert_eq!(written_above(4096, 65536, &extents[..2]), Some(8192));
        assert_eq!(written_above(8192, 65536, &extents), Some(24576));
        assert_eq!(
            written_above(8192, 22528, &extents),
            Some(22528),
            "as much as the file has of it"
        );
        assert_eq!(written_above(24576, 65536, &extents), None);
    }

    #[test]
    fn written_ranges_do_not_depend_on_how_extents_are_divided() {
        let whole =
            [extent(0, 16384, true), extent(16384, 20480, false), extent(20480, 24576, true)];
        let divided =
            [extent(4096, 8192, true), extent(8192, 16384, true), extent(20480, 24576, true)];
        for extents in [&whole, &divided] {
            assert_eq!(written_ranges(4096, extents), [4096..16384, 20480..24576]);
        }
        assert!(written_ranges(24576, &whole).is_empty());
    }

    #[test]
    fn positional_writes_end_at_the_last_written_extent() {
        let marker = Marker { mode: Mode::Positional, ..MARKER };
        let extents =
            [extent(0, 8192, true), extent(20480, 24576, true), extent(24576, 65536, false)];
        assert_eq!(judge(&marker, SELF, 65536, &extents).ceiling, 24576);
    }

    #[test]
    fn nothing_below_the_base_is_cut() {
        let sparse = [extent(8192, 65536, false)];
        assert_eq!(judge(&MARKER, SELF, 65536, &sparse).ceiling, 8192);
    }

    #[test]
    fn a_copy_is_left_alone() {
        let other = Identity { inode: 13, ..SELF };
        assert_eq!(judge(&MARKER, other, 65536, &[]).verdict, Verdict::Foreign);
    }

    #[test]
    fn a_file_grown_since_is_doubtful() {
        let found = judge(&MARKER, SELF, 131072 + 4096, &[]);
        assert!(matches!(found.verdict, Verdict::ModifiedExternally(_)));
    }

    #[test]
    fn writes_into_an_unfinished_growth_are_doubtful() {
        let extents = [extent(0, 8192, true), extent(16384, 20480, true)];
        let found = judge(&GROWING, SELF, 20480, &extents);
        assert!(matches!(found.verdict, Verdict::ModifiedExternally(_)));
    }

    #[test]
    fn an_unfinished_growth_alone_is_not_doubtful() {
        let extents = [extent(0, 12288, true), extent(12288, 20480, false)];
        let found = judge(&GROWING, SELF, 20480, &extents);
        assert_eq!((found.verdict, found.ceiling), (Verdict::EndKnown, 12288));
    }

    #[test]
    fn a_file_extended_since_by_a_hole_is_doubtful() {
        let extents = [extent(0, 12288, true), extent(12288, 16384, false)];
        let found = judge(&GROWING, SELF, 20480, &extents);
        assert!(matches!(found.verdict, Verdict::ModifiedExternally(_)));
    }

    #[test]
    fn space_allocated_beyond_the_size_fills_no_hole() {
        let extents =
            [extent(0, 12288, true), extent(12288, 16384, false), extent(20480, 24576, false)];
        let found = judge(&GROWING, SELF, 20480, &extents);
        assert!(matches!(found.verdict, Verdict::ModifiedExternally(_)));
    }

    #[test]
    fn only_what_a_crash_left_is_worth_a_word_and_says_what_becomes_of_it() {
        assert!(!Recovery::clean(8192).needs_attention());
        let left =
            |verdict, ceiling| Recovery { physical_size: 8192, floor: 4096, ceiling, verdict };
        for (found, words) in [
            (left(Verdict::Foreign, 8192), "left alone"),
            (left(Verdict::EndKnown, 4096), "written data ends at 4096"),
            (left(Verdict::EndKnown, 8192), "nothing to truncate"),
            (left(Verdict::EndUnknown, 8192), "The end lies between 4096 and 8192"),
            (left(Verdict::ModifiedExternally("by whom?".into()), 4096), "(by whom?)"),
        ] {
            assert!(found.needs_attention());
            assert!(found.to_string().contains(words), "{found}");
        }
    }

    #[test]
    fn a_file_filled_up_by_another_program_to_the_announced_size_is_doubtful() {
        let extents =
            [extent(0, 12288, true), extent(12288, 16384, false), extent(16384, 65536, true)];
        let found = judge(&GROWING, SELF, 65536, &extents);
        assert!(matches!(found.verdict, Verdict::ModifiedExternally(_)));
        assert_eq!(found.ceiling, 65536, "not even force cuts what was written");
    }

    #[test]
    fn a_file_whose_base_lies_inside_a_block_may_have_records_up_to_its_end() {
        let marker = Marker { base: 5000, ..MARKER };
        let ceiling = |extents: &[Extent]| judge(&marker, SELF, 65536, extents).ceiling;
        assert_eq!(ceiling(&[extent(0, 8192, true), extent(8192, 65536, false)]), 8192);
        assert_eq!(ceiling(&[extent(0, 12288, true), extent(12288, 65536, false)]), 12288);
        assert_eq!(ceiling(&[extent(0, 4096, true), extent(4096, 65536, false)]), 5000);
    }

    #[test]
    fn zeros_tell_nothing() {
        let marker = Marker { prepared: Prepared::Zeroed, ..MARKER };
        let found = judge(&marker, SELF, 65536, &[extent(0, 65536, true)]);
        assert_eq!((found.verdict, found.floor, found.ceiling), (Verdict::EndUnknown, 8192, 65536));
    }

    #[test]
    fn old_content_tells_nothing_whatever_lies_beyond_it() {
        let marker = Marker { recycled: true, ..MARKER };
        let old_then_grown = [extent(0, 32768, true), extent(32768, 65536, false)];
        let found = judge(&marker, SELF, 65536, &old_then_grown);
        assert_eq!((found.verdict, found.floor, found.ceiling), (Verdict::EndUnknown, 8192, 65536));
    }

    #[test]
    fn where_nothing_lies_above_the_base_nothing_is_asked() {
        for marker in [
            Marker { recycled: true, base: 65536, ..MARKER },
            Marker { prepared: Prepared::Zeroed, base: 65536, ..MARKER },
        ] {
            let found = judge(&marker, SELF, 65536, &[extent(0, 65536, true)]);
            assert_eq!(
                (found.verdict, found.floor, found.ceiling),
                (Verdict::EndKnown, 65536, 65536)
            );
        }
    }

    proptest! {
        #[test]
        fn an_end_is_never_below_the_base_nor_above_the_file(
            base in 0u64..20, to in 0u64..40, size in 0u64..50, positional: bool, recycled: bool,
            edges in proptest::collection::btree_set(0u64..50, 0..12), written: u16
        ) {
            let edges: Vec<_> = edges.into_iter().collect();
            let extents: Vec<_> = edges.windows(2).enumerate()
                .map(|(n, w)| extent(w[0] * 4096, w[1] * 4096, written >> n & 1 == 1)).collect();
            let marker = Marker {
                mode: if positional { Mode::Positional } else { Mode::AppendOnly },
                recycled,
                base: base * 4096,
                grown_from: to.max(base) * 4096,
                grown_to: to.max(base) * 4096,
                ..MARKER
            };
            let size = size * 4096;
            let found = judge(&marker, SELF, size, &extents);
            prop_assert!(found.floor <= found.ceiling && found.ceiling <= size);
            prop_assert!(found.floor >= marker.base.min(size));
        }
    }

    /// Blocks of two bytes, so that an end may lie inside one.
    const HALVES: u64 = 2;
    const BLOCKS: u64 = 4;

    /// The content of a block.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Block {
        Hole,
        Unwritten,
        Written,
    }

    fn maps() -> impl Iterator<Item = Vec<Block>> {
        let kinds = [Block::Hole, Block::Unwritten, Block::Written];
        (0..3usize.pow(BLOCKS as u32))
            .map(move |map| (0..BLOCKS as u32).map(|n| kinds[map / 3usize.pow(n) % 3]).collect())
    }

    /// Makes one extent for each block, or as few as possible.
    fn extents(map: &[Block], merged: bool) -> Vec<Extent> {
        let mut extents: Vec<Extent> = Vec::new();
        for (n, &block) in map.iter().enumerate().filter(|(_, block)| **block != Block::Hole) {
            let (start, written) = (n as u64 * HALVES, block == Block::Written);
            match extents.last_mut() {
                Some(last) if merged && last.end == start && last.written == written => {
                    last.end += HALVES
                }
                _ => extents.push(extent(start, start + HALVES, written)),
            }
        }
        extents
    }

    /// The specification, block by block: `found` for a file of `size` bytes that carries `marker`.
    fn is_right(marker: &Marker, size: u64, map: &[Block], found: &Recovery) -> bool {
        let Marker { base, grown_from, grown_to, .. } = *marker;
        let (floor, ceiling) = (found.floor, found.ceiling);
        let at = |end: u64| (floor, ceiling) == (end, end);
        let is = |n: u64, kind: Block| map.get(n as usize).is_some_and(|block| *block == kind);
        if size < base {
            return found.verdict == Verdict::EndKnown && at(size);
        }
        // Blocks that lie above the size at which the marker was set, and inside the file.
        let mut above = (grown_from / HALVES)..size.div_ceil(HALVES);
        let strange = size > grown_to
            || marker.extents_tell()
                && size > grown_from
                && (((grown_from / HALVES)..BLOCKS).any(|n| is(n, Block::Written))
                    || marker.mode == Mode::AppendOnly
                        && above.any(|n| is(n, Block::Hole) || n >= BLOCKS));
        if strange != matches!(found.verdict, Verdict::ModifiedExternally(_)) {
            return false;
        }
        if !marker.extents_tell() {
            let known = if base == size { Verdict::EndKnown } else { Verdict::EndUnknown };
            return (floor, ceiling) == (base, size) && (strange || found.verdict == known);
        }
        let last =
            (0..BLOCKS).rev().find(|&n| is(n, Block::Written)).map_or(0, |n| (n + 1) * HALVES);
        let end = if strange || marker.mode == Mode::Positional {
            last
        } else {
            let first_gap =
                (base / HALVES..BLOCKS).find(|&n| !is(n, Block::Written)).unwrap_or(BLOCKS);
            first_gap * HALVES
        };
        at(end.clamp(base, size)) && (strange || found.verdict == Verdict::EndKnown)
    }

    /// Every file of four blocks, and every marker on it.
    #[test]
    fn every_small_file_is_judged_right() {
        let ends = || 0..=BLOCKS * HALVES + 1;
        let kinds = [Prepared::Unwritten, Prepared::Zeroed].into_iter().flat_map(|prepared| {
            [Mode::AppendOnly, Mode::Positional].into_iter().flat_map(move |mode| {
                [false, true].map(|recycled| Marker { prepared, mode, recycled, ..MARKER })
            })
        });
        let kinds: Vec<_> = kinds.collect();
        for (map, merged) in maps().flat_map(|map| [(map.clone(), true), (map, false)]) {
            let extents = extents(&map, merged);
            for (size, base) in ends().flat_map(|size| ends().map(move |base| (size, base))) {
                for grown_from in (0..=BLOCKS).map(|n| n * HALVES) {
                    for (grown_to, kind) in
                        ends().flat_map(|to| kinds.iter().map(move |kind| (to, kind)))
                    {
                        let marker = Marker { base, grown_from, grown_to, ..*kind };
                        let found = judge(&marker, SELF, size, &extents);
                        assert!(
                            is_right(&marker, size, &map, &found),
                            "{size} {map:?} {marker:?}: {found:?}"
                        );
                    }
                }
            }
        }
    }
}
