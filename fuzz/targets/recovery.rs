//! Recovery of a file with any marker and any extents.
#![no_main]

use dioxide::Verdict;
use dioxide::fuzzing::{Extent, Identity, Marker, Mode, Prepared, judge};
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;

/// No file system has larger blocks.
const BLOCK_BITS_MAX: u32 = 16;

#[derive(Debug, Arbitrary)]
struct Left {
    own: bool,
    zeroed: bool,
    positional: bool,
    recycled: bool,
    base: u64,
    grown_from: u64,
    grown_to: u64,
    size: u64,
    block_bits: u8,
    /// Skipped blocks, blocks that follow, and whether those are written.
    extents: Vec<(u16, u16, bool)>,
}

fuzz_target!(|left: Left| check(&left));

fn check(left: &Left) {
    let block = 1 << (9 + u32::from(left.block_bits) % (BLOCK_BITS_MAX - 8));
    // Numbers near each other collide more often; distant ones stay possible.
    let place = |number: u64| {
        if number.is_multiple_of(8) { number } else { (number >> 3) % 256 * block / 2 }
    };
    let this = Identity { inode: 1, birth_time: (1, 1) };
    let marker = Marker {
        identity: if left.own { this } else { Identity { inode: 2, ..this } },
        prepared: if left.zeroed { Prepared::Zeroed } else { Prepared::Unwritten },
        mode: if left.positional { Mode::Positional } else { Mode::AppendOnly },
        recycled: left.recycled,
        base: place(left.base),
        grown_from: place(left.grown_from),
        grown_to: place(left.grown_to),
        epoch: 1,
        truncations: Some(0),
    };
    let size = place(left.size);
    let extents = extents(left, block);
    let found = judge(&marker, this, size, &extents);
    assert!(found.floor <= found.ceiling && found.ceiling <= size, "{found:?}");
    assert!(found.floor >= marker.base.min(size), "truncated below the base: {found:?}");
    if !left.own {
        assert_eq!(
            (found.verdict, found.floor),
            (Verdict::Foreign, size),
            "a file of another owner stays unchanged"
        );
        return;
    }
    if found.verdict != Verdict::EndKnown {
        return;
    }
    let is_written =
        |byte: u64| extents.iter().any(|one| one.written && one.start <= byte && byte < one.end);
    let (end, tells) = (found.ceiling, marker.extents_tell());
    assert!(tells || end == size, "truncated where extents show nothing: {found:?}");
    if tells && end > marker.base && end < size {
        assert!(is_written(end - 1), "the end lies behind what is written: {found:?}");
    }
    if tells && end < size && size >= marker.base {
        assert!(!is_written(end), "written data is truncated: {found:?}");
        let last = extents.iter().rfind(|one| one.written).map_or(0, |one| one.end);
        assert!(!left.positional || last <= end, "written data is truncated: {found:?}");
    }
    // A crash after the truncate: the next recovery finds the same end.
    let extents: Vec<_> =
        extents.iter().map(|one| Extent { end: one.end.min(end), ..*one }).collect();
    let extents: Vec<_> = extents.into_iter().filter(|one| one.start < one.end).collect();
    let cut = Marker {
        base: end,
        grown_from: marker.grown_to.max(size),
        grown_to: marker.grown_to.max(size),
        ..marker
    };
    let again = judge(&cut, this, end, &extents);
    assert_eq!(
        (again.verdict, again.ceiling),
        (Verdict::EndKnown, end),
        "recovery does not come to an end"
    );
}

fn extents(left: &Left, block: u64) -> Vec<Extent> {
    let mut end = 0;
    let mut next = |&(gap, blocks, written): &(u16, u16, bool)| {
        let start = end + u64::from(gap % 8) * block;
        end = start + (1 + u64::from(blocks % 64)) * block;
        Extent { start, end, written }
    };
    left.extents.iter().map(&mut next).collect()
}
