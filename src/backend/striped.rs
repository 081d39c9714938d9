//! A striped volume as one file: a call on it becomes calls on its members, made in parallel. All
//! users of the volume share it.
//!
//! It combines the results. A read or write has moved the bytes up to the first gap. Any error of a
//! member fails the call. A flush flushes all members.
//!
//! # Members that are files
//!
//! Their sizes give the length of the file: each member has its header's chunk and exactly its part
//! ([`Striped::size_of`](map::striped::StripeMap::size_of)). No call changes several files at once.
//! So the sizes may disagree while the volume is open for writing, and the file ends at the first
//! missing byte. The state in the header of the first member shows which case holds:
//!
//! 1. Before the first change it becomes `Open`, durably, with a length that is a floor for the
//!    file.
//! 2. Before each truncate below the floor it becomes `Open` with the new length, durably.
//! 3. At close, with the data durable and the sizes in agreement, it becomes `Closed` with the
//!    length, durably.
//!
//! So `open` detects a member that another program truncated, or that comes from an older copy. A
//! closed volume must have its length, and an open one at least its floor.
//!
//! # The life of a 1 MiB append
//!
//! A thread appends to a volume of three files with chunks of 64 KiB.
//!
//! 1. To the core, growth and recovery the volume is one file, with a size, extents, a marker and
//!    flushes. The request arrives as any other.
//! 2. The map (`rules/map/striped.rs`) lists the runs, chunk by chunk: member, offset, length.
//!    [`merge::requests`] combines adjacent runs of a member: three requests, of five or six
//!    segments each. [`Refusals`] counts why there are three.
//! 3. A blocking caller offers the requests to the threads of the volume ([`ThreadPool`]), and
//!    performs those that no thread has begun. A queue pushes all three into its ring. The id of
//!    each has the number of the transfer, and its own number in the bits above.
//! 4. [`Gather`] makes one result of three. `engine/io.rs` resumes a short one, as for one file.
//! 5. A flush goes the same way. `FileSystems` (`engine/process.rs`) registers it on the file
//!    system of each member, and wedges all of them if it fails.
//!
//! A write that moves EOF without growth changes the sizes of several members. So it runs alone
//! ([`Striped::extend`]). The headers that identify the members are in `rules/stripe.rs`.

use super::ring::{Division, Io, RingFile};
use super::thread_pool::{PoolJob, ThreadPool};
use super::{Backend, Exclusion, Job, RequestCounts, Stamps};
use crate::buffer::{Buffer, Segment};
use crate::error::ErrorKind;
use crate::os_error::{self, OfWrite, flushed, uninterrupted};
use crate::rules::map;
use crate::rules::merge::{self, Limits, MemberRun, Refusals, Requests};
use crate::rules::recovery::Extent;
use crate::rules::stripe::{HEADER_BYTES, Header, HeaderState};
use crate::stats::count;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{CachePadded, JoinHandle, Mutex};
use smallvec::{SmallVec, smallvec};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64 as Counter;

/// The number of attempts to write a header that was short or must be retried.
const TRIES_MAX: u32 = 100;

/// An open striped volume.
#[derive(Debug)]
pub(crate) struct Striped {
    members: Vec<Arc<dyn Backend>>,
    map: map::striped::StripeMap,
    header: Header,
    /// The limits of one request to a member.
    limits: Limits,
    /// The file system of each member, by number.
    file_systems: Vec<u64>,
    /// Without threads in a reader and in the child of a fork.
    pool: CachePadded<ThreadPool>,
    /// None for devices, whose size is fixed.
    files: Option<MemberFiles>,
    divided: CachePadded<SplitCounts>,
}

/// Counts the writes that became more than one request. It has no lock: the child of a fork
/// could find one held forever.
#[derive(Debug, Default)]
struct SplitCounts {
    more_requests: Counter,
    gap: Counter,
    bytes: Counter,
    segments: Counter,
    member: Counter,
}

/// The state of members that are files.
#[derive(Debug)]
struct MemberFiles {
    /// The length of the file. Our writes above it hold `extending`.
    physical: AtomicU64,
    /// Serializes changes of the sizes of several members.
    extending: Mutex<()>,
    /// The length in the header.
    floor: Mutex<Option<u64>>,
}

/// The parts of a striped volume.
#[derive(Debug)]
pub(crate) struct Members {
    /// In member order.
    pub all: Vec<Arc<dyn Backend>>,
    pub header: Header,
    pub are_devices: bool,
    /// The limits of one request to a member.
    pub limits: Limits,
    /// The file system of each member, by number.
    pub file_systems: Vec<u64>,
    /// The size of the thread pool.
    pub threads_max: usize,
}

/// A call that became requests to members.
#[derive(Debug)]
pub(crate) struct Split {
    /// The member and the request.
    pub parts: SmallVec<[(usize, Io); 4]>,
    /// Combines the results.
    pub gather: Gather,
}

/// Collects the results of the parts of a call.
#[derive(Debug)]
pub(crate) struct Gather {
    total: u64,
    /// How its requests flush, if they do.
    flushes: Option<FlushKind>,
    /// For each part, the bytes of the call that it moves, in order. Empty for flushes.
    pieces: SmallVec<[SmallVec<[merge::Span; 1]>; 4]>,
    results: SmallVec<[Option<io::Result<u64>>; 4]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FlushKind {
    /// Each part is a flush.
    Only,
    /// Each part is a write with an implied flush.
    AfterWrite,
}

impl Split {
    /// A call of `total` bytes, all on one member.
    fn of_one(member: usize, total: u64, io: Io) -> Self {
        let gather = Gather {
            total,
            flushes: flushes_of(&io),
            pieces: smallvec![smallvec![merge::Span::at(0, total)]],
            results: smallvec![None],
        };
        Self { parts: smallvec![(member, io)], gather }
    }
}

impl SplitCounts {
    fn count(&self, requests: usize, refusals: &Refusals) {
        count(&self.more_requests, requests as u64 - 1);
        count(&self.gap, refusals.gap);
        count(&self.bytes, refusals.bytes);
        count(&self.segments, refusals.segments);
        count(&self.member, refusals.member);
    }

    fn snapshot(&self) -> RequestCounts {
        let get = |counter: &Counter| counter.load(Ordering::Relaxed);
        let refused = Refusals {
            gap: get(&self.gap),
            bytes: get(&self.bytes),
            segments: get(&self.segments),
            member: get(&self.member),
            order: 0,
        };
        RequestCounts {
            more_requests: get(&self.more_requests),
            refused,
            ..RequestCounts::default()
        }
    }
}

impl Gather {
    /// Stores the result of a part. Returns the result of the call after the last part.
    pub fn on_result(&mut self, part: usize, result: io::Result<u64>) -> Option<io::Result<u64>> {
        self.results[part] = Some(result);
        self.results.iter().all(Option::is_some).then(|| self.outcome())
    }

    /// The results of the parts, each error judged by its request. The error of a durable write may
    /// leave the flush in doubt. The caller judges it, if only this part is left, by a retry
    /// without a flush.
    fn judged(&mut self) -> SmallVec<[io::Result<u64>; 4]> {
        let results: SmallVec<[_; 4]> = self.results.drain(..).flatten().collect();
        let is_complete = |(pieces, result): (&SmallVec<[merge::Span; 1]>, &io::Result<u64>)| {
            result.as_ref().is_ok_and(|moved| first_missing(pieces, *moved).is_none())
        };
        let rest = self.pieces.iter().zip(&results).filter(|part| !is_complete(*part)).count();
        let judge = |error: io::Error| match self.flushes {
            Some(FlushKind::Only) if error.kind() != io::ErrorKind::Interrupted => {
                os_error::of_flush(error)
            }
            Some(FlushKind::AfterWrite) if !is_put_off(&error) => {
                match os_error::of_durable_write(error) {
                    OfWrite::Judged(error) => error,
                    OfWrite::Unclear(error) if rest == 1 => error,
                    OfWrite::Unclear(error) => os_error::failed_flush(error),
                }
            }
            _ => error,
        };
        results.into_iter().map(|result| result.map_err(judge)).collect()
    }

    /// The result of the call: an error that is not a mere retry, a failed flush first. Otherwise
    /// the bytes moved up to the first gap.
    fn outcome(&mut self) -> io::Result<u64> {
        let mut results = self.judged();
        let find = |counts: &dyn Fn(&io::Error) -> bool| {
            results.iter().position(|result| result.as_ref().is_err_and(counts))
        };
        let fatal = |error: &io::Error| !is_put_off(error);
        let worst = find(&os_error::is_failed_flush).or_else(|| find(&fatal));
        if let Some(fatal) = worst {
            return results.swap_remove(fatal);
        }
        let missing = |(pieces, result): (&SmallVec<[merge::Span; 1]>, &io::Result<u64>)| {
            first_missing(pieces, *result.as_ref().unwrap_or(&0))
        };
        let moved =
            self.pieces.iter().zip(&results).filter_map(missing).min().unwrap_or(self.total);
        let failed = results.iter().position(Result::is_err);
        match failed {
            Some(failed) if moved == 0 => results.swap_remove(failed),
            _ => Ok(moved),
        }
    }
}

/// The first byte of these pieces beyond the first `moved` bytes.
fn first_missing(pieces: &[merge::Span], mut moved: u64) -> Option<u64> {
    for piece in pieces {
        if moved < piece.len() {
            return Some(piece.start + moved);
        }
        moved -= piece.len();
    }
    None
}

impl Striped {
    pub fn new(members: Members) -> Self {
        let Members { all, header, are_devices, limits, file_systems, threads_max } = members;
        let files = (!are_devices).then(|| MemberFiles {
            physical: AtomicU64::new(0),
            extending: Mutex::default(),
            floor: Mutex::default(),
        });
        Self {
            map: map::striped::StripeMap::new(all.len(), header.chunk_bytes),
            members: all,
            header,
            limits,
            file_systems,
            pool: CachePadded(ThreadPool::new(threads_max)),
            files,
            divided: CachePadded::default(),
        }
    }

    /// Computes the length from the sizes that a crash left, or returns why it cannot. Must run
    /// first.
    pub fn find_length(&self, state: Option<HeaderState>) -> io::Result<Result<(), String>> {
        let Some(files) = &self.files else { return Ok(Ok(())) };
        let sizes = self.sizes()?;
        let len = self.map.len_of(sizes.iter().copied());
        files.physical.store(len, Ordering::Release);
        // A truncate by recovery below this length must be recorded too: a crash may interrupt it.
        *files.floor.lock() =
            state.map(|(HeaderState::Closed(floor) | HeaderState::Open(floor))| floor);
        let odd = |len| {
            let size_of = |member| self.map.size_of(member, len);
            sizes.iter().enumerate().find(|(member, size)| **size != size_of(*member))
        };
        Ok(match state {
            None => Err("the state in the header of member 0 cannot be read".into()),
            Some(HeaderState::Closed(closed)) => match odd(closed) {
                Some((member, size)) => Err(format!(
                    "member {member} has {size} bytes, and was closed with {}: it was changed, or \
                     is from another time",
                    self.map.size_of(member, closed)
                )),
                None => Ok(()),
            },
            Some(HeaderState::Open(floor)) if len < floor => Err(format!(
                "the members hold {len} bytes without a gap, expected {floor}: a member was \
                 truncated, or comes from another time"
            )),
            Some(HeaderState::Open(_)) => Ok(()),
        })
    }

    /// Marks the volume as open for writing. Durable on return.
    pub fn begin_writing(&self) -> io::Result<()> {
        let Some(files) = &self.files else { return Ok(()) };
        let len = files.physical.load(Ordering::Acquire);
        self.correct_sizes_durably(len)?;
        self.note(HeaderState::Open(len))
    }

    /// Creates an empty volume: writes all headers. Durable on return. The first member is marked
    /// as unfinished until the last step. No member is longer than a header until that mark is
    /// stable.
    pub fn create(&self) -> io::Result<()> {
        let state = self.files.is_some().then_some(HeaderState::Closed(0));
        let unfinished = Header { unfinished: true, ..self.header };
        if self.files.is_some() {
            // A header torn by a crash then still has full length.
            for member in &self.members {
                if member.physical_size()? < HEADER_BYTES as u64 {
                    uninterrupted(|| member.truncate(HEADER_BYTES as u64))?;
                }
            }
        }
        self.write_header(unfinished, None)?;
        flushed(|| self.members[0].sync_all())?;
        self.write_header(unfinished, state)?;
        for member in 1..self.members.len() as u32 {
            self.write_header(Header { member, ..self.header }, None)?;
        }
        self.on_all(|member| flushed(|| member.sync_all()))?;
        if self.files.is_some() {
            self.correct_sizes_durably(0)?;
        }
        self.write_header(self.header, state)?;
        flushed(|| self.members[0].sync_all())
    }

    fn note(&self, state: HeaderState) -> io::Result<()> {
        self.write_header(self.header, Some(state))?;
        flushed(|| self.members[0].flush())?;
        if let (Some(files), HeaderState::Open(floor)) = (&self.files, state) {
            *files.floor.lock() = Some(floor);
        }
        Ok(())
    }

    fn write_header(&self, header: Header, state: Option<HeaderState>) -> io::Result<()> {
        let block = Buffer::from(&header.encode(state)[..]);
        let member = &self.members[header.member as usize];
        for _ in 0..TRIES_MAX {
            // A retry writes the whole block: a part of it might be unaligned.
            match member.write(&[Segment::of(&block)], 0, false) {
                Ok(written) if written < HEADER_BYTES as u64 => {}
                Err(error) if is_put_off(&error) => {}
                result => return result.map(drop),
            }
        }
        Err(io::ErrorKind::WriteZero.into())
    }

    fn sizes(&self) -> io::Result<Vec<u64>> {
        self.members.iter().map(|member| member.physical_size()).collect()
    }

    /// Truncates each member to its size in a file of `len` bytes. A member that has this size may
    /// hold data of a failed write behind EOF, so it is truncated as well.
    fn truncate_members(&self, len: u64) -> io::Result<()> {
        for (number, member) in self.members.iter().enumerate() {
            uninterrupted(|| member.truncate(self.map.size_of(number, len)))?;
        }
        Ok(())
    }

    /// Truncates only the members of another size. Returns whether there was one.
    fn correct_sizes(&self, len: u64) -> io::Result<bool> {
        let mut changed = false;
        for (number, member) in self.members.iter().enumerate() {
            let size = self.map.size_of(number, len);
            if member.physical_size()? != size {
                changed = true;
                uninterrupted(|| member.truncate(size))?;
            }
        }
        Ok(changed)
    }

    /// Truncates a member that is longer.
    fn shrink(&self, number: usize, size: u64) -> io::Result<()> {
        let member = &self.members[number];
        if member.physical_size()? > size {
            uninterrupted(|| member.truncate(size))?;
        }
        Ok(())
    }

    /// Like `correct_sizes`, and makes the changes durable.
    fn correct_sizes_durably(&self, len: u64) -> io::Result<()> {
        if self.correct_sizes(len)? {
            self.on_all(|member| flushed(|| member.sync_all()))?;
        }
        Ok(())
    }

    // --- several calls at a time -----------------------------------------------------------------

    /// Makes a call on every member in parallel. The error of a failed flush has priority over
    /// others.
    fn on_all<R: Send + 'static>(
        &self,
        call: impl Fn(&dyn Backend) -> io::Result<R> + Copy + Send + 'static,
    ) -> io::Result<Vec<R>> {
        let calls = self.members.iter().map(|member| {
            let member = member.clone();
            Box::new(move || uninterrupted(|| call(&*member))) as PoolJob<io::Result<R>>
        });
        let mut results: Vec<io::Result<R>> = self.pool.all(calls.collect());
        let failed_flush =
            |result: &io::Result<R>| result.as_ref().is_err_and(os_error::is_failed_flush);
        if let Some(worst) = results.iter().position(failed_flush) {
            results.swap(0, worst);
        }
        results.into_iter().collect()
    }

    /// Divides a call into requests to members. Returns the call itself if it moves EOF and so must
    /// run alone.
    fn split(&self, io: Io) -> Result<Split, Io> {
        match io {
            Io::Flush { all } => Ok(self.split_flush(all)),
            Io::Write { offset, ref segments, .. } if self.extends(offset, segments) => Err(io),
            Io::Write { segments, offset, dsync } => Ok(match self.alone(&segments, offset) {
                Some((member, offset)) => {
                    let total = segments.iter().map(Segment::len).sum();
                    Split::of_one(member, total, Io::Write { segments, offset, dsync })
                }
                None => self.split_transfer(&segments, offset, |segments, offset| Io::Write {
                    segments,
                    offset,
                    dsync,
                }),
            }),
            Io::Read { into, offset } => Ok(match self.alone(&into, offset) {
                Some((member, offset)) => {
                    let total = into.iter().map(Segment::len).sum();
                    Split::of_one(member, total, Io::Read { into, offset })
                }
                None => {
                    self.split_transfer(&into, offset, |into, offset| Io::Read { into, offset })
                }
            }),
        }
    }

    fn split_flush(&self, all: bool) -> Split {
        let count = self.members.len();
        Split {
            parts: (0..count).map(|member| (member, Io::Flush { all })).collect(),
            gather: Gather {
                total: 0,
                flushes: Some(FlushKind::Only),
                pieces: smallvec![smallvec![]; count],
                results: (0..count).map(|_| None).collect(),
            },
        }
    }

    /// The member and the offset on it, if the range lies in one chunk.
    fn alone(&self, segments: &[Segment], offset: u64) -> Option<(usize, u64)> {
        let len = segments.iter().map(Segment::len).sum::<u64>();
        let run = self.map.runs(offset..offset + len).next()?;
        (run.len == len && len <= self.limits.bytes_max).then_some((run.member, run.offset))
    }

    fn split_transfer(
        &self,
        segments: &[Segment],
        offset: u64,
        io: impl Fn(SmallVec<[Segment; 1]>, u64) -> Io,
    ) -> Split {
        let total = segments.iter().map(Segment::len).sum();
        let Requests { list, refusals } = self.requests(segments, offset, total);
        let mut gather = Gather {
            total,
            flushes: None,
            pieces: list.iter().map(|request| request.pieces.iter().copied().collect()).collect(),
            results: list.iter().map(|_| None).collect(),
        };
        let starts: SmallVec<[u64; 4]> = segments
            .iter()
            .scan(0, |end, segment| Some(std::mem::replace(end, *end + segment.len())))
            .collect();
        // Each piece lies in one segment.
        let segment_of = |piece: &merge::Span| {
            let nth = starts.partition_point(|start| *start <= piece.start) - 1;
            segments[nth].part(piece.start - starts[nth]..piece.end - starts[nth])
        };
        let parts = list.into_iter().map(|request| {
            (request.member, io(request.pieces.iter().map(segment_of).collect(), request.offset))
        });
        let parts: SmallVec<[(usize, Io); 4]> = parts.collect();
        gather.flushes = parts.first().and_then(|(_, io)| flushes_of(io));
        if parts.len() > 1 && matches!(parts[0].1, Io::Write { .. }) {
            self.divided.count(parts.len(), &refusals);
        }
        Split { parts, gather }
    }

    fn requests(&self, segments: &[Segment], offset: u64, total: u64) -> Requests {
        let runs = self.map.runs(offset..offset + total);
        // No piece of a request spans two segments.
        let ends = segments.iter().scan(offset, |end, segment| {
            *end += segment.len();
            Some(*end)
        });
        merge::requests(split_at_segment_ends(runs, offset, ends), self.limits)
    }

    fn perform(&self, Split { parts, mut gather }: Split) -> io::Result<u64> {
        let calls = parts.into_iter().map(|(member, io)| {
            let member = self.members[member].clone();
            Box::new(move || io.perform(&*member)) as PoolJob<io::Result<u64>>
        });
        let results = self.pool.all(calls.collect());
        let outcome = results
            .into_iter()
            .enumerate()
            .fold(None, |_, (part, result)| gather.on_result(part, result));
        outcome.unwrap_or(Ok(0))
    }

    // --- files that become longer ----------------------------------------------------------------

    fn extends(&self, offset: u64, segments: &[Segment]) -> bool {
        let end = offset + segments.iter().map(Segment::len).sum::<u64>();
        self.files.as_ref().is_some_and(|files| end > files.physical.load(Ordering::Acquire))
    }

    /// Performs a write that moves EOF. One at a time, since it changes the sizes of several
    /// members.
    fn extend(
        &self,
        files: &MemberFiles,
        segments: &[Segment],
        offset: u64,
        dsync: bool,
    ) -> io::Result<u64> {
        let _alone = files.extending.lock();
        let physical = files.physical.load(Ordering::Acquire);
        let io = |segments, offset| Io::Write { segments, offset, dsync };
        let written = self.perform(self.split_transfer(segments, offset, io)).and_then(|moved| {
            let end = offset + moved;
            self.fill_gap(physical, offset, end, dsync)?;
            files.physical.fetch_max(end, Ordering::AcqRel);
            Ok(moved)
        });
        if written.is_err() {
            // Data left above EOF would show behind the next hole.
            let left =
                |error| gone("a failed write of a striped volume could not be taken back", &error);
            self.truncate_members(physical).map_err(left)?;
        }
        written
    }

    /// Extends members that a write past EOF skips: they get a hole.
    fn fill_gap(&self, physical: u64, offset: u64, end: u64, dsync: bool) -> io::Result<()> {
        for (number, member) in self.members.iter().enumerate() {
            let size = self.map.size_of(number, end);
            let is_written = self.map.part_of(number, offset..end).is_some();
            if is_written || end <= physical || size == self.map.size_of(number, physical) {
                continue;
            }
            uninterrupted(|| member.truncate(size)).map_err(os_error::of_step)?;
            if dsync {
                flushed(|| member.flush())?;
            }
        }
        Ok(())
    }

    fn record_growth(&self, end: u64) {
        if let Some(files) = &self.files {
            files.physical.fetch_max(end, Ordering::AcqRel);
        }
    }
}

/// The error of a volume that is no longer usable.
fn gone(what: &str, error: &io::Error) -> io::Error {
    log::error!("dioxide: {what}: {error}");
    io::Error::from_raw_os_error(libc::ESHUTDOWN)
}

/// Splits runs where segments end. Both start at `offset`.
fn split_at_segment_ends(
    runs: impl Iterator<Item = MemberRun>,
    offset: u64,
    ends: impl Iterator<Item = u64>,
) -> impl Iterator<Item = MemberRun> {
    let mut ends = ends.peekable();
    let mut at = offset;
    runs.flat_map(move |run| {
        let mut pieces: SmallVec<[MemberRun; 2]> = SmallVec::new();
        let mut rest = run;
        while rest.len > 0 {
            while ends.next_if(|end| *end <= at).is_some() {}
            let len = ends.peek().map_or(rest.len, |end| rest.len.min(end - at));
            pieces.push(MemberRun { len, ..rest });
            at += len;
            rest = MemberRun { offset: rest.offset + len, len: rest.len - len, ..rest };
        }
        pieces
    })
}

fn flushes_of(io: &Io) -> Option<FlushKind> {
    match io {
        Io::Flush { .. } => Some(FlushKind::Only),
        Io::Write { dsync: true, .. } => Some(FlushKind::AfterWrite),
        Io::Write { .. } | Io::Read { .. } => None,
    }
}

/// Returns whether the call only needs a retry.
fn is_put_off(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock)
}

impl Backend for Striped {
    fn write(&self, segments: &[Segment], offset: u64, dsync: bool) -> io::Result<u64> {
        match &self.files {
            Some(files) if self.extends(offset, segments) => {
                self.extend(files, segments, offset, dsync)
            }
            _ => match self.alone(segments, offset) {
                Some((member, offset)) => self.members[member].write(segments, offset, dsync),
                None => {
                    let io = |segments, offset| Io::Write { segments, offset, dsync };
                    self.perform(self.split_transfer(segments, offset, io))
                }
            },
        }
    }

    fn flushes_each_write(&self) -> bool {
        self.members.iter().any(|member| member.flushes_each_write())
    }

    fn read(&self, into: &[Segment], offset: u64) -> io::Result<u64> {
        if let Some((member, offset)) = self.alone(into, offset) {
            return self.members[member].read(into, offset);
        }
        self.perform(self.split_transfer(into, offset, |into, offset| Io::Read { into, offset }))
    }

    fn flush(&self) -> io::Result<()> {
        self.on_all(|member| flushed(|| member.flush())).map(drop)
    }

    fn sync_all(&self) -> io::Result<()> {
        self.on_all(|member| flushed(|| member.sync_all())).map(drop)
    }

    fn physical_size(&self) -> io::Result<u64> {
        let sizes = self.sizes()?;
        Ok(match self.files {
            Some(_) => self.map.len_of(sizes),
            None => self.map.len_of_devices(sizes),
        })
    }

    fn allocate(&self, start: u64, end: u64) -> io::Result<()> {
        let _alone = self.files.as_ref().map(|files| files.extending.lock());
        if let Some(files) = &self.files {
            // A failed growth may have left space on one member. The length does not show it until
            // the members before it grow as well: then the file would be longer than its marker
            // announces.
            self.correct_sizes(files.physical.load(Ordering::Acquire))?;
        }
        let before = self.sizes()?;
        let start = self.files.as_ref().map_or(start, |files| {
            let physical = files.physical.load(Ordering::Acquire);
            // A member on which the file ends inside a block gets the rest of that block as well. A
            // range that starts further ahead leaves a hole, which takes no space.
            let is_hole = start >= physical.saturating_add(self.header.chunk_bytes);
            if is_hole { start } else { start.min(physical) }
        });
        let each = self.members.iter().enumerate().filter_map(|(number, member)| {
            let (member, size) = (member.clone(), self.map.size_of(number, end));
            let call: PoolJob<io::Result<()>> = match self.map.part_of(number, start..end) {
                Some(part) => {
                    Box::new(move || uninterrupted(|| member.allocate(part.start, part.end)))
                }
                // Its part of the new range is a hole.
                None if before[number] < size => {
                    Box::new(move || uninterrupted(|| member.truncate(size)))
                }
                None => return None,
            };
            Some(call)
        });
        let result: io::Result<()> = self.pool.all(each.collect()).into_iter().collect();
        match &result {
            Ok(()) => self.record_growth(end),
            // Space that only some members got would be missing elsewhere.
            Err(_) => {
                for (number, size) in before.into_iter().enumerate() {
                    if let Err(error) = self.shrink(number, size) {
                        log::warn!(
                            "dioxide: a failed growth leaves space on member {number} of a \
                             striped volume: {error}"
                        );
                    }
                }
            }
        }
        result
    }

    fn write_zeroes(&self, start: u64, end: u64) -> io::Result<()> {
        let _alone = self.files.as_ref().map(|files| files.extending.lock());
        for (number, member) in self.members.iter().enumerate() {
            if let Some(part) = self.map.part_of(number, start..end) {
                member.write_zeroes(part.start, part.end)?;
            }
        }
        self.record_growth(end);
        Ok(())
    }

    fn needs_lower_floor(&self, len: u64) -> bool {
        let floor = self.files.as_ref().and_then(|files| *files.floor.lock());
        floor.is_some_and(|floor| len < floor)
    }

    fn lower_floor(&self, len: u64) -> io::Result<()> {
        self.note(HeaderState::Open(len))
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        let Some(files) = self.files.as_ref().filter(|_| !self.needs_lower_floor(len)) else {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        };
        let sizes = self.sizes()?;
        if let Err(error) = self.truncate_members(len) {
            let physical = files.physical.load(Ordering::Acquire);
            // An extension can be undone, a truncate cannot.
            let as_before = match len > physical {
                true => self.truncate_members(physical).is_ok(),
                false => self.sizes().is_ok_and(|now| now == sizes),
            };
            return Err(match as_before {
                true => error,
                // The volume is unusable if only some members changed.
                false => gone("truncating the members of a striped volume", &error),
            });
        }
        files.physical.store(len, Ordering::Release);
        Ok(())
    }

    fn extents(&self, _from: u64) -> io::Result<Vec<Extent>> {
        Ok(self.map.extents(&self.on_all(|member| member.extents(0))?))
    }

    fn exclude_others(&self) -> io::Result<Exclusion<'_>> {
        excluded(self.members.iter().map(|member| member.exclude_others()))
    }

    fn stamps(&self) -> io::Result<Stamps> {
        let mut stamps = SmallVec::new();
        for member in &self.members {
            stamps.extend(member.stamps()?);
        }
        Ok(stamps)
    }

    fn read_marker(&self) -> io::Result<Option<Vec<u8>>> {
        self.members[0].read_marker()
    }

    fn write_marker(&self, bytes: &[u8]) -> io::Result<()> {
        self.members[0].write_marker(bytes)
    }

    fn remove_marker(&self) -> io::Result<()> {
        self.members[0].remove_marker()
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let count = self.members.len() as u64;
        let mut free = u64::MAX;
        for (number, member) in self.members.iter().enumerate() {
            // Members on one file system share its free space.
            let own = self.file_systems[number];
            let beside = self.file_systems.iter().filter(|&&it| it == own).count() as u64;
            free = free.min(member.free_bytes()? / beside);
        }
        Ok(free.saturating_mul(count))
    }

    fn size_max(&self) -> u64 {
        // No file is longer than the largest offset.
        let sizes = self.members.iter().map(|member| member.size_max().min(i64::MAX as u64));
        self.map.len_of_devices(sizes).min(i64::MAX as u64)
    }

    fn spawn(&self, job: Job) -> io::Result<Option<JoinHandle>> {
        self.members[0].spawn(job)
    }

    fn needs_close(&self) -> bool {
        true
    }

    fn close(&self) -> io::Result<()> {
        let Some(files) = &self.files else { return Ok(()) };
        let (len, physical) = (self.physical_size()?, files.physical.load(Ordering::Acquire));
        if len < physical {
            let why = format!("it has {physical} bytes, of which another program has left {len}");
            return Err(io::Error::other(ErrorKind::ModifiedExternally(why)));
        }
        self.correct_sizes_durably(len)?;
        *files.floor.lock() = None;
        self.note(HeaderState::Closed(len))
    }

    fn unlock(&self) {
        // A dropped file stays in the queues for a while, also in the child of a fork. The child
        // has no threads to join.
        self.pool.end();
        self.members.iter().for_each(|member| member.unlock());
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.members[0].descriptor()
    }

    fn members(&self) -> SmallVec<[BorrowedFd<'_>; 1]> {
        self.members.iter().map(|member| member.descriptor()).collect()
    }

    fn chunk_bytes(&self) -> Option<u64> {
        Some(self.header.chunk_bytes)
    }

    fn ring_files(&self) -> SmallVec<[RingFile<'_>; 1]> {
        let files: SmallVec<[RingFile<'_>; 1]> =
            self.members.iter().flat_map(|member| member.ring_files()).collect();
        // Empty unless a ring accepts all members: the parts of a call must be submitted together.
        if files.len() == self.members.len() { files } else { SmallVec::new() }
    }

    fn divide(&self, io: Io) -> Division {
        match self.split(io) {
            Ok(split) => Division::Parts(split),
            // It moves the end of the file.
            Err(io) => Division::Call(io),
        }
    }

    fn request_counts(&self) -> RequestCounts {
        self.divided.snapshot()
    }
}

/// Combines the exclusion of all members. One member with another writer is enough for a refusal.
fn excluded<'a>(
    each: impl Iterator<Item = io::Result<Exclusion<'a>>>,
) -> io::Result<Exclusion<'a>> {
    let mut held = SmallVec::new();
    let mut all_known = true;
    for exclusion in each {
        match exclusion? {
            // The last lease is dropped first: each restores the signal mask that it found.
            Exclusion::Held(leases) => held.insert_many(0, leases),
            Exclusion::Unknown => all_known = false,
            refused @ Exclusion::Refused(_) => return Ok(refused),
        }
    }
    Ok(if all_known { Exclusion::Held(held) } else { Exclusion::Unknown })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::null::Null;
    use crate::backend::sim::{Call, Device, Settings, Sim};

    const CHUNK: u64 = 65536;

    fn volume(members: Vec<Arc<dyn Backend>>, are_devices: bool) -> Striped {
        let count = members.len() as u32;
        Striped::new(Members {
            header: Header {
                volume: [7; 16],
                members: count,
                member: 0,
                chunk_bytes: CHUNK,
                unfinished: false,
            },
            file_systems: vec![1; members.len()],
            all: members,
            are_devices,
            limits: Limits { bytes_max: 1 << 20, segments_max: merge::SEGMENTS_MAX },
            threads_max: 0,
        })
    }

    /// The defect: the parts of reads counted as write requests.
    #[test]
    fn the_parts_of_a_read_are_no_write_requests() {
        let device = || Arc::new(Null::default()) as Arc<dyn Backend>;
        let volume = volume(vec![device(), device()], true);
        let mut memory = Buffer::zeroed(2 * CHUNK as usize);
        volume.read(&[Segment::of_mut(&mut memory)], 0).unwrap();
        assert_eq!(volume.request_counts(), RequestCounts::default());
        volume.write(&[Segment::of(&memory)], 0, false).unwrap();
        assert_eq!(volume.request_counts().more_requests, 1);
    }

    /// The defect: the error of the first member that could not be truncated hid ENOSPC, and the
    /// next members kept their space.
    #[test]
    fn a_failed_growth_shrinks_all_members_and_reports_its_own_error() {
        let device = Device::new(1, Settings::default());
        let member = |name: &&str| {
            let inode = device.find(name, true).unwrap();
            Arc::new(Sim::new(device.clone(), inode)) as Arc<dyn Backend>
        };
        let volume = volume(["a", "b", "c"].iter().map(member).collect(), false);
        volume.create().unwrap();
        let before = volume.sizes().unwrap();
        device.fail(Call::Allocate, 1, libc::ENOSPC);
        // The first call after the three allocations: the failed one does not count here.
        device.fail(Call::Allocate, 2, libc::EIO);
        let error = volume.allocate(0, 6 * CHUNK).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
        let after = volume.sizes().unwrap();
        assert!(after[0] > before[0], "it could not be truncated");
        assert_eq!(after[1..], before[1..]);
        volume.allocate(0, 6 * CHUNK).unwrap();
    }

    #[test]
    fn a_writer_of_any_member_refuses_whatever_is_unknown_of_others() {
        let held = || Ok(Exclusion::Held(SmallVec::new()));
        let refused = || Ok(Exclusion::Refused("another program".into()));
        let unknown = || Ok(Exclusion::Unknown);
        for each in [
            [unknown(), refused(), held()],
            [held(), unknown(), refused()],
            [refused(), unknown(), held()],
        ] {
            assert!(matches!(excluded(each.into_iter()), Ok(Exclusion::Refused(_))));
        }
        for each in [[unknown(), held()], [held(), unknown()]] {
            assert!(matches!(excluded(each.into_iter()), Ok(Exclusion::Unknown)));
        }
        assert!(matches!(excluded([held(), held()].into_iter()), Ok(Exclusion::Held(_))));
    }
}
