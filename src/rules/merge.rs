//! Decides which concurrent operations share a request, and how one operation splits into requests.
//! Values only.

use std::cmp::Ordering;
use std::time::Duration;

/// The limits of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes: the device's largest request. The kernel would split a larger one.
    pub bytes_max: u64,
    /// Segments of one vectored write.
    pub segments_max: usize,
}

/// The kernel's UIO_MAXIOV.
pub const SEGMENTS_MAX: usize = 1024;

/// The number of plain appends in flight side by side: a few writers gain nothing by waiting for
/// each other.
pub const SINGLE_APPENDS_MAX: usize = 4;

/// The number of full requests, which no operation can join, in flight side by side. They keep a
/// device busy while the next ones gather.
pub const FULL_REQUESTS_MAX: usize = 4;

/// A write of this length is a request by itself: the device would lose more by waiting for a merge
/// than the merge saves.
pub const WORTH_MERGING_BYTES: u64 = 32 << 10;

/// How often the leader of a durable group yields to the operations that it expects.
pub const GATHER_YIELDS_MAX: u32 = if cfg!(loom) { 1 } else { 64 };

/// It yields no more after this time: on a busy machine one yield may take long.
pub const GATHER_MAX: Duration = Duration::from_micros(200);

/// Whether to delay an operation so that it groups with the last cohort, the operations that
/// completed together. They may return together, and then share a request. A durable operation
/// costs a flush, so it waits for one other. A plain one costs so little that only a large cohort
/// is worth it.
pub fn gathers(cohort: usize, durable: bool) -> bool {
    cohort > if durable { 1 } else { SINGLE_APPENDS_MAX }
}

/// How sequential the durable writes of a file are: from 0 to [`SEQUENTIAL_MAX`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sequential(pub u64);

/// The highest score.
pub const SEQUENTIAL_MAX: u64 = 64;

/// An adjacent write adds so much to the score, and any other takes 1. So one in so many is enough.
const SEQUENTIAL_STEP: u64 = 8;

impl Sequential {
    /// The score after a write that begins where the last one ended, or does not.
    pub fn after(self, is_adjacent: bool) -> Self {
        Self(match is_adjacent {
            true => (self.0 + SEQUENTIAL_STEP).min(SEQUENTIAL_MAX),
            false => self.0.saturating_sub(1),
        })
    }

    /// Whether concurrent writes of `len` bytes are worth a merge. Else each is a request by
    /// itself.
    pub fn merges(self, len: u64) -> bool {
        self.0 >= SEQUENTIAL_MAX / 2 && len < WORTH_MERGING_BYTES
    }
}

impl Limits {
    /// Checks whether an operation of `len` bytes may join a request of `bytes` and `segments`; the
    /// error is the reason. A single operation is never refused, however long.
    pub fn admit(&self, bytes: u64, segments: usize, len: u64) -> Result<(), Refusal> {
        if segments >= self.segments_max {
            return Err(Refusal::Segments);
        }
        if bytes + len > self.bytes_max {
            return Err(Refusal::Bytes);
        }
        Ok(())
    }
}

/// Why an operation is its own request, although it was queued beside another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It is not adjacent on the device, or in the file.
    Gap,
    /// The request would be longer than the device's largest.
    Bytes,
    /// The request would have more segments than one call takes.
    Segments,
    /// It lies on another member.
    Member,
    /// It shares bytes with a write that is in flight or waits; requests have no order.
    Order,
}

/// The number of refusals, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refusals {
    pub gap: u64,
    pub bytes: u64,
    pub segments: u64,
    pub member: u64,
    pub order: u64,
}

impl Refusals {
    /// Counts a refusal.
    pub fn count(&mut self, refusal: Refusal) {
        *match refusal {
            Refusal::Gap => &mut self.gap,
            Refusal::Bytes => &mut self.bytes,
            Refusal::Segments => &mut self.segments,
            Refusal::Member => &mut self.member,
            Refusal::Order => &mut self.order,
        } += 1;
    }

    /// Adds the counts of another.
    pub fn add(&mut self, other: Self) {
        self.gap += other.gap;
        self.bytes += other.bytes;
        self.segments += other.segments;
        self.member += other.member;
        self.order += other.order;
    }
}

/// Bytes `start..end` of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first byte.
    pub start: u64,
    /// The byte after the last.
    pub end: u64,
}

impl Span {
    /// `len` bytes at `start`.
    pub fn at(start: u64, len: u64) -> Self {
        Self { start, end: start + len }
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> u64 {
        self.end - self.start
    }

    /// Checks whether the next span begins where this one ends; the error is the reason.
    fn is_followed_by(&self, next: &Span) -> Result<(), Refusal> {
        match next.start.cmp(&self.end) {
            Ordering::Equal => Ok(()),
            Ordering::Greater => Err(Refusal::Gap),
            Ordering::Less => Err(Refusal::Order),
        }
    }

    /// Returns the smallest span of whole units that contains this one.
    pub fn whole(&self, unit: u64) -> Self {
        Self { start: self.start / unit * unit, end: self.end.next_multiple_of(unit) }
    }

    /// Returns whether the two share a byte.
    pub fn overlaps(&self, other: &Span) -> bool {
        self.start < other.end && other.start < self.end
    }
}

/// Splits spans, sorted by start, into runs within the limits. In a run each span begins exactly
/// where the one before ends. Returns the length of each run, and why it is not part of the one
/// before. Overlapping spans never share a run: the parts of a request have no order.
pub fn runs(spans: &[Span], limits: Limits) -> Vec<(usize, Option<Refusal>)> {
    let mut runs: Vec<(usize, Option<Refusal>)> = Vec::new();
    let mut bytes = 0;
    for (index, span) in spans.iter().enumerate() {
        let refusal = runs.last_mut().and_then(|(count, _)| {
            let adjacent = spans[index - 1].is_followed_by(span);
            let joins = adjacent.and_then(|()| limits.admit(bytes, *count, span.len()));
            *count += usize::from(joins.is_ok());
            joins.err()
        });
        if index == 0 || refusal.is_some() {
            runs.push((1, refusal));
            bytes = 0;
        }
        bytes += span.len();
    }
    runs
}

/// A part of an operation that is contiguous on the device and in memory. In a list in file order,
/// each begins in the operation where the one before ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberRun {
    /// The number of the file or device.
    pub member: usize,
    /// Its offset there, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

/// One request to a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberRequest {
    /// The number of the file or device.
    pub member: usize,
    /// Its offset there, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// Its content in order: bytes of the operation, counted from its beginning.
    pub pieces: Vec<Span>,
}

/// The requests that an operation becomes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// In the order of the first byte of each in the operation.
    pub list: Vec<MemberRequest>,
    /// Why there are several: one reason for each but the first.
    pub refusals: Refusals,
}

/// Returns the fewest requests that carry runs in their order, within the limits. A run joins the
/// last request of its member if it begins exactly where that ends, whatever lies between on other
/// members. A full request splits it, so `bytes_max` must be a multiple of the members' alignment.
pub fn requests(runs: impl IntoIterator<Item = MemberRun>, limits: Limits) -> Requests {
    let mut requests = Requests::default();
    let mut start = 0;
    for mut run in runs {
        while run.len > 0 {
            let len = requests.put(run, start, limits);
            start += len;
            run.offset += len;
            run.len -= len;
        }
    }
    requests
}

impl Requests {
    /// Moves the beginning of a run into one request; the run begins at `start` in the operation.
    /// Returns the number of bytes moved.
    fn put(&mut self, run: MemberRun, start: u64, limits: Limits) -> u64 {
        let is_first = self.list.is_empty();
        let refusal = match self.list.iter_mut().rfind(|request| request.member == run.member) {
            None if is_first => None,
            None => Some(Refusal::Member),
            Some(last) => match last.room_for(run, limits) {
                Ok(room) => return last.push(start, run.len.min(room)),
                Err(refusal) => Some(refusal),
            },
        };
        refusal.into_iter().for_each(|refusal| self.refusals.count(refusal));
        let MemberRun { member, offset, len } = run;
        let mut request = MemberRequest { member, offset, len: 0, pieces: Vec::new() };
        let taken = request.push(start, len.min(limits.bytes_max));
        self.list.push(request);
        taken
    }
}

impl MemberRequest {
    /// Returns how many bytes of a run of its member may join it; the error is the reason for none.
    fn room_for(&self, run: MemberRun, limits: Limits) -> Result<u64, Refusal> {
        if self.offset + self.len != run.offset {
            return Err(Refusal::Gap);
        }
        limits.admit(self.len, self.pieces.len(), 1)?;
        Ok(limits.bytes_max - self.len)
    }

    fn push(&mut self, start: u64, len: u64) -> u64 {
        self.pieces.push(Span::at(start, len));
        self.len += len;
        len
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMITS: Limits = Limits { bytes_max: 4096 * 4, segments_max: 3 };

    /// The score after many writes, of which every `nth` is adjacent to the one before.
    fn sequential(nth: u32) -> Sequential {
        (1..1000).fold(Sequential::default(), |score, write| score.after(write % nth == 0))
    }

    /// Threads that write one after the other are often late. In a file of 16 blocks, one random
    /// write in 16 is adjacent.
    #[test]
    fn few_adjacent_writes_are_worth_a_merge_and_random_ones_are_not() {
        assert!(sequential(1).merges(4096) && sequential(4).merges(4096));
        assert!(!sequential(16).merges(4096) && !Sequential::default().merges(4096));
        assert!(!sequential(1).merges(WORTH_MERGING_BYTES));
    }

    #[test]
    fn runs_break_at_gaps_and_limits() {
        let spans: Vec<_> =
            [0, 1, 2, 3, 5, 5, 6].iter().map(|&n| Span::at(n * 4096, 4096)).collect();
        let (counts, refusals): (Vec<_>, Vec<_>) = runs(&spans, LIMITS).into_iter().unzip();
        assert_eq!(counts, [3, 1, 1, 2]);
        assert_eq!(refusals[0], None);
        assert_eq!(refusals[1..], [Refusal::Segments, Refusal::Gap, Refusal::Order].map(Some));
    }

    #[test]
    fn one_long_operation_is_not_refused() {
        assert_eq!(
            runs(&[Span::at(0, 1 << 30), Span::at(1 << 30, 1)], LIMITS),
            [(1, None), (1, Some(Refusal::Bytes))]
        );
    }

    proptest! {
        #[test]
        fn runs_are_contiguous_within_limits_and_complete(
            mut starts in proptest::collection::vec((0u64..40, 1u64..5), 0..30)
        ) {
            starts.sort();
            let spans: Vec<_> = starts.iter().map(|&(s, l)| Span::at(s * 4096, l * 4096)).collect();
            let runs = runs(&spans, LIMITS);
            prop_assert_eq!(runs.iter().map(|(count, _)| count).sum::<usize>(), spans.len());
            let mut rest = &spans[..];
            for (index, (count, refusal)) in runs.into_iter().enumerate() {
                prop_assert_eq!(index > 0, refusal.is_some());
                let (run, tail) = rest.split_at(count);
                rest = tail;
                prop_assert!(run.windows(2).all(|pair| pair[0].end == pair[1].start));
                prop_assert!(count <= LIMITS.segments_max);
                prop_assert!(
                    count == 1 || run.iter().map(Span::len).sum::<u64>() <= LIMITS.bytes_max
                );
            }
        }
    }

    /// Every list of spans in six blocks, sorted by start, one longer than `spans`.
    fn with_one_more(spans: &[Span]) -> Vec<Vec<Span>> {
        let first = spans.last().map_or(0, |span| span.start);
        let more = (first..6).flat_map(|start| (start + 1..=6).map(move |end| Span { start, end }));
        more.map(|span| [spans, &[span]].concat()).collect()
    }

    /// Returns whether one request may carry all of them.
    fn is_a_request(run: &[Span], limits: Limits) -> bool {
        let adjacent = run.windows(2).all(|pair| pair[0].end == pair[1].start);
        let bytes: u64 = run.iter().map(Span::len).sum();
        run.len() == 1 || adjacent && run.len() <= limits.segments_max && bytes <= limits.bytes_max
    }

    /// Returns the fewest requests that carry all of them in their order, by trying every way to
    /// split the list.
    fn fewest(spans: &[Span], limits: Limits) -> usize {
        let cuts = 0..1u32 << spans.len().saturating_sub(1);
        let requests = cuts.filter_map(|cuts| {
            let mut first = 0;
            let ends = (1..=spans.len()).filter(|&n| n == spans.len() || cuts >> (n - 1) & 1 == 1);
            let mut requests = ends.map(|end| {
                let run = &spans[first..end];
                first = end;
                is_a_request(run, limits)
            });
            requests.by_ref().all(|is| is).then(|| cuts.count_ones() as usize + 1)
        });
        if spans.is_empty() { 0 } else { requests.min().expect("each alone is one") }
    }

    /// Every list of up to four spans in six blocks, with every limit.
    #[test]
    fn runs_are_requests_and_as_few_as_can_be() {
        let mut lists = vec![vec![]];
        let mut next = 0;
        while let Some(spans) = lists.get(next).cloned() {
            for limits in (1..=6).flat_map(|bytes_max| {
                (1..=4).map(move |segments_max| Limits { bytes_max, segments_max })
            }) {
                let counts = runs(&spans, limits);
                let mut rest = &spans[..];
                for &(count, _) in &counts {
                    let (run, tail) = rest.split_at(count);
                    assert!(is_a_request(run, limits), "{spans:?} {limits:?}: {counts:?}");
                    rest = tail;
                }
                assert!(rest.is_empty(), "{spans:?} {limits:?}: {counts:?}");
                assert_eq!(
                    counts.len(),
                    fewest(&spans, limits),
                    "{spans:?} {limits:?}: {counts:?}"
                );
            }
            if spans.len() < 4 {
                lists.extend(with_one_more(&spans));
            }
            next += 1;
        }
    }

    #[test]
    fn spans_overlap_where_they_share_a_block() {
        let all = with_one_more(&[]);
        for (one, other) in
            all.iter().flat_map(|one| all.iter().map(move |other| (one[0], other[0])))
        {
            let shared =
                (one.start..one.end).any(|block| (other.start..other.end).contains(&block));
            assert_eq!(one.overlaps(&other), shared, "{one:?} {other:?}");
        }
    }

    const fn run(member: usize, offset: u64, len: u64) -> MemberRun {
        MemberRun { member, offset: offset * 4096, len: len * 4096 }
    }

    fn refusals(gap: u64, bytes: u64, segments: u64, member: u64) -> Refusals {
        Refusals { gap, bytes, segments, member, order: 0 }
    }

    #[test]
    fn stripes_of_a_member_are_merged() {
        let rows = [run(0, 1, 1), run(1, 1, 1), run(0, 2, 1), run(1, 2, 1)];
        let Requests { list, refusals: why } = requests(rows, LIMITS);
        let pieces = |chunks: [u64; 2]| chunks.map(|chunk| Span::at(chunk * 4096, 4096)).to_vec();
        let request = |member, chunks| MemberRequest {
            member,
            offset: 4096,
            len: 2 * 4096,
            pieces: pieces(chunks),
        };
        assert_eq!(list, [request(0, [0, 2]), request(1, [1, 3])]);
        assert_eq!(why, refusals(0, 0, 0, 1));
    }

    #[test]
    fn each_refusal_has_its_reason() {
        for (runs, why) in [
            (vec![run(0, 0, 1), run(0, 2, 1)], refusals(1, 0, 0, 0)),
            (vec![run(0, 1, 1), run(0, 0, 1)], refusals(1, 0, 0, 0)),
            (vec![run(0, 0, 3), run(0, 3, 2)], refusals(0, 1, 0, 0)),
            (vec![run(0, 0, 9)], refusals(0, 2, 0, 0)),
            (vec![run(0, 0, 1), run(0, 1, 1), run(0, 2, 1), run(0, 3, 1)], refusals(0, 0, 1, 0)),
            (vec![run(0, 0, 1), run(1, 1, 1), run(0, 1, 1)], refusals(0, 0, 0, 1)),
            (vec![], refusals(0, 0, 0, 0)),
        ] {
            assert_eq!(requests(runs.iter().copied(), LIMITS).refusals, why, "{runs:?}");
        }
    }

    /// Returns the fewest requests for the blocks of one member, by trying every first one. Each
    /// block has its offset there and the run that it belongs to.
    fn fewest_for_member(blocks: &[(u64, usize)], limits: Limits) -> usize {
        let mut fewest = vec![0; blocks.len() + 1];
        for first in (0..blocks.len()).rev() {
            let fits = |end: &usize| {
                let request = &blocks[first..*end];
                let adjacent = request.windows(2).all(|pair| pair[0].0 + 1 == pair[1].0);
                let runs: std::collections::BTreeSet<_> =
                    request.iter().map(|(_, run)| run).collect();
                adjacent
                    && request.len() as u64 * 4096 <= limits.bytes_max
                    && runs.len() <= limits.segments_max
            };
            let ends = (first + 1..=blocks.len()).filter(fits);
            fewest[first] = 1 + ends.map(|end| fewest[end]).min().expect("a block alone fits");
        }
        fewest[0]
    }

    proptest! {
        #[test]
        fn requests_cover_all_once_and_are_as_few_as_can_be(
            places in proptest::collection::vec(
                (0usize..3, 0u64..12, 1u64..5, any::<bool>()),
                0..24
            ),
            blocks_max in 1u64..6,
            segments_max in 1usize..5,
        ) {
            let limits = Limits { bytes_max: blocks_max * 4096, segments_max };
            // Most continue where their member's last run ended.
            let mut left = [0; 3];
            let runs = places.iter().map(|&(member, anywhere, len, jumps)| {
                let offset = if jumps { anywhere } else { left[member] };
                left[member] = offset + len;
                run(member, offset, len)
            });
            let runs: Vec<MemberRun> = runs.collect();

            let Requests { list, refusals } = requests(runs.iter().copied(), limits);

            let mut blocks: [Vec<(u64, usize)>; 3] = Default::default();
            let mut wanted = Vec::new();
            for (number, run) in runs.iter().enumerate() {
                for block in (run.offset..run.offset + run.len).step_by(4096) {
                    blocks[run.member].push((block / 4096, number));
                    wanted.push((run.member, block));
                }
            }
            let mut carried = vec![None; wanted.len()];
            for request in &list {
                prop_assert!(
                    request.len <= limits.bytes_max && request.pieces.len() <= segments_max
                );
                prop_assert_eq!(request.len, request.pieces.iter().map(Span::len).sum::<u64>());
                let mut offset = request.offset;
                for block in request
                    .pieces
                    .iter()
                    .flat_map(|piece| (piece.start..piece.end).step_by(4096))
                {
                    let before = carried[(block / 4096) as usize].replace((request.member, offset));
                    prop_assert_eq!(before, None);
                    offset += 4096;
                }
            }
            prop_assert_eq!(carried, wanted.into_iter().map(Some).collect::<Vec<_>>());
            let fewest: usize = blocks.iter().map(|blocks| fewest_for_member(blocks, limits)).sum();
            prop_assert_eq!(list.len(), fewest);
            let Refusals { gap, bytes, segments, member, order } = refusals;
            prop_assert_eq!(
                gap + bytes + segments + member + order,
                list.len().saturating_sub(1) as u64
            );
            prop_assert!(list.is_sorted_by_key(|request| request.pieces[0].start));
        }
    }
}
