//! Which operations that wait together go out as one request. Values only.

/// What one request may carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes: the device's largest request; beyond it the kernel would split again.
    pub bytes_max: u64,
    /// Segments of one vectored write.
    pub segments_max: usize,
}

/// The kernel's UIO_MAXIOV.
pub const SEGMENTS_MAX: usize = 1024;

/// So many plain appends go out side by side: a few writers gain nothing by waiting for each other.
pub const SINGLE_APPENDS_MAX: usize = 4;

/// So many requests go out side by side whose group nobody can join any more: enough to keep a device busy while the
/// next ones gather.
pub const FULL_REQUESTS_MAX: usize = 4;

/// A write as long as this fills a request by itself: the device would lose more by waiting for others to be merged with
/// it than it saves.
pub const WORTH_MERGING_BYTES: u64 = 32 << 10;

/// Whether an operation waits for the rest of its cohort, those that were answered together: they may come back
/// together as well, and then share a request. A durable one costs a flush, so it waits for one other already; a plain
/// one costs so little that only a crowd is worth it.
pub fn gathers(cohort: usize, durable: bool) -> bool {
    cohort > if durable { 1 } else { SINGLE_APPENDS_MAX }
}

impl Limits {
    /// Whether an operation of `len` bytes may join a request of `bytes` and `segments`. One operation
    /// alone is never refused, however long.
    pub fn admit(&self, bytes: u64, segments: usize, len: u64) -> bool {
        segments < self.segments_max && bytes + len <= self.bytes_max
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

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.end - self.start
    }

    /// Whether the two share a byte.
    pub fn overlaps(&self, other: &Span) -> bool {
        self.start < other.end && other.start < self.end
    }
}

/// Splits spans, sorted by start, into runs in which each begins exactly where the one before ends, within
/// the limits. Returns the length of each run. Overlapping spans never share a run: one request has no
/// order inside.
pub fn runs(spans: &[Span], limits: Limits) -> Vec<usize> {
    let mut runs = Vec::new();
    let mut bytes = 0;
    for (index, span) in spans.iter().enumerate() {
        let joins = index > 0 && spans[index - 1].end == span.start;
        match runs.last_mut() {
            Some(count) if joins && limits.admit(bytes, *count, span.len()) => {
                *count += 1;
                bytes += span.len();
            }
            _ => {
                runs.push(1);
                bytes = span.len();
            }
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMITS: Limits = Limits { bytes_max: 4096 * 4, segments_max: 3 };

    #[test]
    fn runs_break_at_gaps_and_limits() {
        let spans: Vec<_> = [0, 1, 2, 3, 5, 5, 6].iter().map(|&n| Span::at(n * 4096, 4096)).collect();
        assert_eq!(runs(&spans, LIMITS), [3, 1, 1, 2]);
    }

    #[test]
    fn one_long_operation_is_not_refused() {
        assert_eq!(runs(&[Span::at(0, 1 << 30)], LIMITS), [1]);
    }

    proptest! {
        #[test]
        fn runs_are_contiguous_within_limits_and_complete(
            mut starts in proptest::collection::vec((0u64..40, 1u64..5), 0..30)
        ) {
            starts.sort();
            let spans: Vec<_> = starts.iter().map(|&(s, l)| Span::at(s * 4096, l * 4096)).collect();
            let runs = runs(&spans, LIMITS);
            prop_assert_eq!(runs.iter().sum::<usize>(), spans.len());
            let mut rest = &spans[..];
            for count in runs {
                let (run, tail) = rest.split_at(count);
                rest = tail;
                prop_assert!(run.windows(2).all(|pair| pair[0].end == pair[1].start));
                prop_assert!(count <= LIMITS.segments_max);
                prop_assert!(count == 1 || run.iter().map(Span::len).sum::<u64>() <= LIMITS.bytes_max);
            }
        }
    }

    /// Every list of spans in six blocks, sorted by start, one longer than `spans`.
    fn with_one_more(spans: &[Span]) -> Vec<Vec<Span>> {
        let first = spans.last().map_or(0, |span| span.start);
        let more = (first..6).flat_map(|start| (start + 1..=6).map(move |end| Span { start, end }));
        more.map(|span| [spans, &[span]].concat()).collect()
    }

    /// Whether one request may carry all of them.
    fn is_a_request(run: &[Span], limits: Limits) -> bool {
        let adjacent = run.windows(2).all(|pair| pair[0].end == pair[1].start);
        let bytes: u64 = run.iter().map(Span::len).sum();
        run.len() == 1 || adjacent && run.len() <= limits.segments_max && bytes <= limits.bytes_max
    }

    /// The fewest requests that carry all of them in their order, by trying every way to cut the list.
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
            for limits in (1..=6)
                .flat_map(|bytes_max| (1..=4).map(move |segments_max| Limits { bytes_max, segments_max }))
            {
                let counts = runs(&spans, limits);
                let mut rest = &spans[..];
                for &count in &counts {
                    let (run, tail) = rest.split_at(count);
                    assert!(is_a_request(run, limits), "{spans:?} {limits:?}: {counts:?}");
                    rest = tail;
                }
                assert!(rest.is_empty(), "{spans:?} {limits:?}: {counts:?}");
                assert_eq!(counts.len(), fewest(&spans, limits), "{spans:?} {limits:?}: {counts:?}");
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
        for (one, other) in all.iter().flat_map(|one| all.iter().map(move |other| (one[0], other[0]))) {
            let shared = (one.start..one.end).any(|block| (other.start..other.end).contains(&block));
            assert_eq!(one.overlaps(&other), shared, "{one:?} {other:?}");
        }
    }
}
