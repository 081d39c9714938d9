//! Packs records of any length into whole blocks of aligned memory, as direct I/O needs. Values
//! only.
//!
//! A request writes one range of the file. It starts with the block in which its first record
//! begins, and ends with the block in which its last one ends. The parts of a record that fill
//! blocks by themselves, and are aligned in memory, are written from where they are. The rest is
//! composed in memory of the engine. It consists of the old content of the first block, the ends
//! and beginnings of records, and zeros.

use smallvec::SmallVec;

/// The units of direct I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The block size of the file, in bytes.
    pub block: u64,
    /// The alignment of memory addresses, in bytes.
    pub memory: u64,
}

/// A part of the range, in whole blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PackedRun {
    /// This many bytes of one record, from where they are.
    Direct(u64),
    /// This many composed bytes.
    Composed(u64),
}

/// Returns whether records of these addresses and lengths, written from `offset` on, need no
/// packing.
pub fn fits(offset: u64, records: impl IntoIterator<Item = (usize, u64)>, shape: Shape) -> bool {
    let is_whole = |(address, len): (usize, u64)| {
        len.is_multiple_of(shape.block) && (address as u64).is_multiple_of(shape.memory)
    };
    offset.is_multiple_of(shape.block) && records.into_iter().all(is_whole)
}

/// Lays out records of these addresses and lengths, written from `offset` on, as consecutive runs
/// from the start of the first block. Returns at most `runs_max` runs: beyond, whole blocks are
/// composed as well.
pub fn runs(
    offset: u64,
    records: impl IntoIterator<Item = (usize, u64)>,
    shape: Shape,
    runs_max: usize,
) -> SmallVec<[PackedRun; 4]> {
    let Shape { block, memory } = shape;
    let mut runs = Runs { list: SmallVec::new(), end: offset / block * block };
    let mut start = offset;
    for (address, len) in records {
        let end = start + len;
        let first = start.next_multiple_of(block);
        let last = end / block * block;
        let is_aligned = || (address as u64 + (first - start)).is_multiple_of(memory);
        // With the composed parts before and behind it.
        if first < last && is_aligned() && runs.list.len() + 3 <= runs_max {
            runs.compose_to(first);
            runs.list.push(PackedRun::Direct(last - first));
            runs.end = last;
        }
        start = end;
    }
    runs.compose_to(start.next_multiple_of(block));
    runs.list
}

struct Runs {
    list: SmallVec<[PackedRun; 4]>,
    /// The end of the last run in the file.
    end: u64,
}

impl Runs {
    fn compose_to(&mut self, end: u64) {
        let len = end.saturating_sub(self.end);
        if len == 0 {
            return;
        }
        match self.list.last_mut() {
            Some(PackedRun::Composed(last)) => *last += len,
            _ => self.list.push(PackedRun::Composed(len)),
        }
        self.end = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn len(run: &PackedRun) -> u64 {
        let (PackedRun::Direct(len) | PackedRun::Composed(len)) = run;
        *len
    }

    const SHAPE: Shape = Shape { block: 4, memory: 2 };
    const RUNS_MAX: usize = 8;

    /// One byte of the request: the record and its index there, or its other origin.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Byte {
        /// Old content of the first block.
        Before,
        Record(usize, u64),
        Zero,
    }

    fn stretch(offset: u64, records: &[(usize, u64)]) -> Vec<Byte> {
        let mut bytes = vec![Byte::Before; (offset % SHAPE.block) as usize];
        for (n, (_, len)) in records.iter().enumerate() {
            bytes.extend((0..*len).map(|at| Byte::Record(n, at)));
        }
        bytes.resize(bytes.len().next_multiple_of(SHAPE.block as usize), Byte::Zero);
        bytes
    }

    fn check(offset: u64, records: &[(usize, u64)], runs_max: usize) {
        let runs = runs(offset, records.iter().copied(), SHAPE, runs_max);
        let bytes = stretch(offset, records);
        let shown = || format!("{offset} {records:?}: {runs:?}");
        assert!(runs.len() <= runs_max, "{}", shown());
        assert_eq!(runs.iter().map(len).sum::<u64>(), bytes.len() as u64, "{}", shown());
        let mut rest = &bytes[..];
        for (n, run) in runs.iter().enumerate() {
            let (part, behind) = rest.split_at(len(run) as usize);
            rest = behind;
            assert!(len(run) > 0 && len(run).is_multiple_of(SHAPE.block), "{}", shown());
            match run {
                PackedRun::Direct(_) => {
                    let Byte::Record(record, at) = part[0] else { panic!("{}", shown()) };
                    assert_eq!(
                        part[part.len() - 1],
                        Byte::Record(record, at + len(run) - 1),
                        "{}",
                        shown()
                    );
                    assert_eq!((records[record].0 as u64 + at) % SHAPE.memory, 0, "{}", shown());
                }
                PackedRun::Composed(_) => {
                    let follows = n > 0 && matches!(runs[n - 1], PackedRun::Composed(_));
                    assert!(!follows, "as few as can be: {}", shown());
                    // No whole aligned blocks of one record are copied, if there is room for more
                    // runs.
                    let copied_whole =
                        part.chunks(SHAPE.block as usize).any(|block| match (block[0], block[3]) {
                            (Byte::Record(one, at), Byte::Record(other, _)) => {
                                one == other
                                    && (records[one].0 as u64 + at).is_multiple_of(SHAPE.memory)
                            }
                            _ => false,
                        });
                    assert!(!copied_whole || runs.len() + 3 > runs_max, "{}", shown());
                }
            }
        }
        let fits = fits(offset, records.iter().copied(), SHAPE);
        assert!(
            !fits
                || runs.len() + 3 > runs_max
                || runs.iter().all(|run| matches!(run, PackedRun::Direct(_)))
        );
        let is_whole = |(at, len): &(usize, u64)| at.is_multiple_of(2) && len.is_multiple_of(4);
        assert_eq!(fits, offset.is_multiple_of(4) && records.iter().all(is_whole));
    }

    /// Up to three records of up to nine bytes, at every offset in a block, at even and odd
    /// addresses.
    #[test]
    fn every_small_group_is_laid_out_byte_for_byte() {
        let any_record =
            || (0..2usize).flat_map(|address| (1..10u64).map(move |len| (address, len)));
        let mut groups: Vec<Vec<_>> = any_record().map(|record| vec![record]).collect();
        for one in any_record() {
            for other in any_record() {
                groups.push(vec![one, other]);
                groups.extend(any_record().map(|third| vec![one, other, third]));
            }
        }
        for group in groups {
            (4..8).for_each(|offset| check(offset, &group, RUNS_MAX));
        }
    }

    proptest! {
        #[test]
        fn long_groups_are_laid_out_within_the_limit(
            offset in 0u64..100,
            records in proptest::collection::vec((0usize..4, 1u64..40), 1..40),
            runs_max in 2usize..20,
        ) {
            check(offset, &records, runs_max);
        }
    }

    #[test]
    fn small_records_are_put_together() {
        let records = [(1, 3), (7, 3), (10, 5)];
        assert_eq!(runs(8, records, SHAPE, RUNS_MAX)[..], [PackedRun::Composed(12)]);
        assert_eq!(runs(9, records, SHAPE, RUNS_MAX)[..], [PackedRun::Composed(12)]);
    }

    #[test]
    fn the_aligned_part_of_a_long_record_is_not_copied() {
        assert_eq!(
            runs(5, [(7, 19)], SHAPE, RUNS_MAX)[..],
            [PackedRun::Composed(4), PackedRun::Direct(16)]
        );
        assert_eq!(runs(5, [(8, 19)], SHAPE, RUNS_MAX)[..], [PackedRun::Composed(20)]);
        assert_eq!(
            runs(8, [(8, 10)], SHAPE, RUNS_MAX)[..],
            [PackedRun::Direct(8), PackedRun::Composed(4)]
        );
    }
}
