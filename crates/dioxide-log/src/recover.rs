//! The state in which a log was left: which segments it has, which records, and where it ends.
//!
//! 1. The headers of all segments. The highest number is the last segment.
//! 2. The frames of the last segment, which may raise the front.
//! 3. The segments before it, down to the first that is needed, each by a thread.
//! 4. What lies behind the end: remnants of a torn write, or witnesses of damage.
//!
//! Nothing is changed. [`Recovered::clear`] is the writer's part.

use crate::error::{Error, Result};
use crate::format::frame::{self, HEADER_BYTES, Home};
use crate::format::header::{Found, Header};
use crate::format::scan::{Ending, Looked, Remnant, Scan, ScanStep, Search};
use crate::format::{BLOCK_BYTES, Content, LogId, block_of, is_segment_size};
use crate::index::Index;
use crate::locked::locked;
use crate::lsn::Lsn;
use crate::storage::{Segment, Storage};
use crate::window::Window;
use dioxide::Buffer;
use dioxide::text::shown;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::mem;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

const WINDOW_BYTES: usize = 1 << 20;
/// What one write overwrites with zeros.
const ZEROS_BYTES: usize = 256 << 10;
const THREADS_MAX: usize = 8;
/// The start of a segment without a valid header that is searched for frames. The first frame lies
/// there if the header was written once.
const WITNESS_BYTES: u64 = 16 << 10;
/// A header may be in the middle of its write. So a reader that failed looks more than once.
const HEADER_LOOKS: usize = 3;
const HEADER_PAUSE: Duration = Duration::from_millis(1);

/// A segment of a log, with its header.
#[derive(Clone, Debug)]
pub struct Member {
    pub header: Header,
    pub segment: Arc<dyn Segment>,
}

impl Member {
    /// The identity of its frames.
    pub fn home(&self) -> Home {
        Home { log: self.header.log, life: self.header.life() }
    }

    /// Returns the error of a reader without the writer. It is [`Error::Changing`] if the segment
    /// has another use by now, or is gone. `path` is that of the log.
    pub fn failure(&self, error: Error, path: &Path) -> Error {
        let changing = Error::Changing { path: path.into() };
        let mut block = Buffer::zeroed(BLOCK_BYTES as usize);
        for _ in 0..HEADER_LOOKS {
            match self.segment.read(&mut block, 0) {
                Err(read) if io::Error::from(read.clone()).kind() == io::ErrorKind::NotFound => {
                    return changing;
                }
                Err(_) => return error,
                Ok(()) => {}
            }
            match Header::parse(&block) {
                Found::Header(header) if header == self.header => {}
                Found::Invalid => {}
                _ => return changing,
            }
            thread::sleep(HEADER_PAUSE);
        }
        error
    }
}

/// The member with a number. The numbers of a chain have no gap.
pub fn member_of(chain: &VecDeque<Member>, number: u64) -> Option<&Member> {
    let first = chain.front()?.header.number;
    chain.get(number.checked_sub(first)? as usize)
}

/// What recovery found. See [`Log::report`](crate::Log::report).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// The number of valid records that were read, also of those that were truncated.
    pub records: u64,
    /// The number of segments that were read.
    pub segments: u64,
    /// The bytes of segments that were read and checked.
    pub bytes: u64,
    /// Whether the last writer closed the log.
    pub closed: bool,
    /// Valid frames of a torn write behind the end. They were never acknowledged, and the writer
    /// overwrites them with zeros.
    pub remnants: u64,
    /// Bytes behind the end with more that looks like frames than recovery checks. The writer
    /// overwrites them with zeros. If a frame before them was damaged, they may have had records.
    pub unsearched: u64,
}

/// The log as it was left.
#[derive(Debug)]
pub struct Recovered {
    pub id: LogId,
    pub segment_bytes: u64,
    pub index: Index,
    /// The segments that are needed, in order. Never empty.
    pub chain: VecDeque<Member>,
    /// For each of them, the lowest LSN that was next since it began. The segments before it have
    /// no record from there on.
    pub lowest: VecDeque<Lsn>,
    /// The first one follows the last segment. See [`clear`](Self::clear).
    pub free: Vec<Arc<dyn Segment>>,
    /// The offset behind the last frame of the last segment.
    pub end: u64,
    /// Whether the last segment is complete.
    pub ended: bool,
    torn: Torn,
    pub report: Report,
}

/// The frames of a torn write, which the writer overwrites with zeros.
#[derive(Debug, Default)]
struct Torn {
    /// The number of valid frames.
    frames: u64,
    /// From the first to the end of the last.
    range: Option<Range<u64>>,
    /// The end of the range that may have more frames, in bytes.
    unsearched: u64,
}

impl Torn {
    fn add(&mut self, part: Range<u64>) {
        let start = self.range.as_ref().map_or(part.start, |range| range.start);
        self.range = Some(start.min(part.start)..part.end);
    }
}

/// The frames of one segment.
struct Scanned {
    scan: Scan,
    ending: Ending,
}

impl Scanned {
    /// Fails if the frames end where those of this segment cannot end.
    fn check(&self, member: &Member, is_last: bool) -> Result<()> {
        let (path, scan) = (member.segment.path(), &self.scan);
        match &self.ending {
            Ending::Contradiction(reason) => {
                Err(Error::corrupt(path, scan.offset(), reason.clone()))
            }
            Ending::Unknown(reason) => {
                Err(Error::Version { path: path.into(), reason: reason.clone() })
            }
            Ending::Open if !is_last => {
                let reason = "no valid frame, but another segment follows";
                Err(Error::corrupt(path, scan.end(), reason))
            }
            // A writer leaves this space to the frame that ends the segment.
            Ending::Open if scan.end() + HEADER_BYTES > member.header.segment_bytes => {
                let reason = "no valid frame, and no space for one";
                Err(Error::corrupt(path, scan.end(), reason))
            }
            Ending::End | Ending::Open => Ok(()),
        }
    }
}

/// Looks at a log. None if there is none yet.
pub fn recover(storage: &dyn Storage) -> Result<Option<Recovered>> {
    let mut blank = Vec::new();
    let mut invalid = Vec::new();
    let mut bytes = None;
    let mut members = BTreeMap::<u64, Member>::new();
    let mut block = Buffer::zeroed(BLOCK_BYTES as usize);
    for segment in storage.segments()? {
        let path = segment.path().to_owned();
        let (size, first_size) = (segment.bytes(), *bytes.get_or_insert(segment.bytes()));
        if size != first_size || !is_segment_size(size) {
            let reason = match is_segment_size(size) {
                true => format!("{size} bytes, but another segment has {first_size}"),
                false => format!("no segment of a log has {size} bytes"),
            };
            return Err(Error::corrupt(&path, 0, reason));
        }
        segment.read(&mut block, 0)?;
        // A log may have more segments than the process may have descriptors.
        segment.rest()?;
        match Header::parse(&block) {
            Found::Blank => blank.push(segment),
            Found::Invalid => invalid.push(segment),
            Found::Version(version) => {
                let reason = format!("the log has version {version} of its format");
                return Err(Error::Version { path, reason });
            }
            Found::Content(content) => {
                let reason = format!("the log has records of kind {content}");
                return Err(Error::Version { path, reason });
            }
            Found::Header(header) => {
                check_neighbours(&members, &header, segment.as_ref())?;
                members.insert(header.number, Member { header, segment });
            }
        }
    }
    let Some((_, last)) = members.pop_last() else {
        blank.iter().chain(&invalid).try_for_each(check_unused)?;
        return Ok(None);
    };

    let scanned = scan(&last)?;
    scanned.check(&last, true)?;
    let id = last.header.log;
    let front = scanned.scan.index().front();
    let mut lowest = VecDeque::from([scanned.scan.index().lowest()]);
    let (mut chain, mut parts) = (VecDeque::from([last]), VecDeque::from([scanned]));
    while lowest[0] > front {
        let Header { number, mut first, .. } = chain[0].header;
        // A truncation of the back in one of them may show that those before it are free, and used
        // again. So the nearest come first, and the others do not count.
        let before = (1..number).rev().map_while(|number| members.get(&number));
        let may_be_needed =
            before.take_while(|member| mem::replace(&mut first, member.header.first) > front);
        let nearest: Vec<Member> = may_be_needed.take(THREADS_MAX).cloned().collect();
        if nearest.is_empty() {
            let reason = format!("segment {}, which comes before this one, is missing", number - 1);
            return Err(Error::corrupt(chain[0].segment.path(), 0, reason));
        }
        for (member, scanned) in nearest.iter().zip(scan_all(&nearest)) {
            if lowest[0] <= front {
                break;
            }
            let scanned = scanned?;
            scanned.check(member, false)?;
            lowest.push_front(lowest[0].min(scanned.scan.index().lowest()));
            parts.push_front(scanned);
            members.remove(&member.header.number);
            chain.push_front(member.clone());
        }
    }

    let mut report = Report { segments: parts.len() as u64, ..Report::default() };
    let mut index = Index::new(Lsn::FIRST, chain[0].header.first);
    let (mut end, mut ended) = (0, false);
    for (number, (part, member)) in parts.into_iter().zip(&chain).enumerate() {
        let Scanned { scan, ending } = part;
        debug_assert_eq!(scan.number(), member.header.number);
        if let Some(next) = chain.get(number + 1)
            && next.header.first != scan.index().next()
        {
            let (found, expected) = (next.header.first, scan.index().next());
            let reason = format!("it begins at {found}, but the segment before ends at {expected}");
            return Err(Error::corrupt(next.segment.path(), 0, reason));
        }
        report.records += scan.records();
        report.bytes += scan.end();
        report.closed = scan.closed();
        (end, ended) = (scan.end(), ending == Ending::End);
        index.append(scan.into_index());
    }

    let last = chain.back().expect("the last segment");
    let torn = if ended { Torn::default() } else { look_behind(last, end)? };
    for segment in blank.iter().chain(&invalid) {
        look_for_later(last, segment, (!ended).then_some(end))?;
    }
    let older = members.into_values().map(|member| member.segment);
    let free = blank.into_iter().chain(older).chain(invalid).collect();
    (report.remnants, report.unsearched) = (torn.frames, torn.unsearched);
    let segment_bytes = last.header.segment_bytes;
    #[rustfmt::skip]
    let recovered =
        Recovered { id, segment_bytes, index, chain, lowest, free, end, ended, torn, report };
    Ok(Some(recovered))
}

/// Checks that a segment belongs to the same log as the others, and is there only once.
fn check_neighbours(
    members: &BTreeMap<u64, Member>,
    header: &Header,
    segment: &dyn Segment,
) -> Result<()> {
    if segment.bytes() != header.segment_bytes {
        let (bytes, named) = (segment.bytes(), header.segment_bytes);
        let reason = format!("the segment has {bytes} bytes, but its header says {named}");
        return Err(Error::corrupt(segment.path(), 0, reason));
    }
    if let Some(other) = members.values().next() {
        let (ours, theirs) = (header.log, other.header.log);
        if ours != theirs {
            let path = shown(other.segment.path());
            let reason = format!("a segment of log {ours}, but {path} is one of log {theirs}");
            return Err(Error::corrupt(segment.path(), 0, reason));
        }
    }
    if let Some(twin) = members.get(&header.number) {
        let path = shown(twin.segment.path());
        let reason = format!("segment {}, which {path} is as well", header.number);
        return Err(Error::corrupt(segment.path(), 0, reason));
    }
    Ok(())
}

/// Checks that a segment without a valid header has no frames: the creation of the log was
/// interrupted. The header of the first segment is stable before its first frame is written.
fn check_unused(segment: &Arc<dyn Segment>) -> Result<()> {
    let mut window = Window::new(WINDOW_BYTES);
    let mut offset = BLOCK_BYTES;
    while offset < segment.bytes() {
        window.load(segment, offset, BLOCK_BYTES)?;
        let bytes = window.from(offset);
        if bytes.iter().any(|byte| *byte != 0) {
            let reason = "the header is damaged, and there is no other segment";
            return Err(Error::corrupt(segment.path(), 0, reason));
        }
        offset += bytes.len() as u64;
    }
    Ok(())
}

/// Follows the frames of a segment.
fn scan(member: &Member) -> Result<Scanned> {
    let mut scan = Scan::new(&member.header);
    let mut window = Window::new(WINDOW_BYTES);
    let ending = follow(&mut scan, &member.segment, &mut window)?;
    Ok(Scanned { scan, ending })
}

/// Follows the frames of a segment from where the scan is. The content of the window is read anew.
pub fn follow(scan: &mut Scan, segment: &Arc<dyn Segment>, window: &mut Window) -> Result<Ending> {
    let mut needed = BLOCK_BYTES;
    loop {
        window.load(segment, scan.offset(), needed)?;
        let rest = window.from(scan.offset());
        let is_last = (rest.len() as u64) < needed;
        match scan.step(rest) {
            ScanStep::More(_) if is_last => {
                let reason = "the segment is shorter than its header says";
                return Err(Error::corrupt(segment.path(), segment.bytes(), reason));
            }
            ScanStep::More(bytes) => needed = bytes,
            ScanStep::Ended(ending) => return Ok(ending),
        }
    }
}

/// Scans segments side by side.
fn scan_all(members: &[Member]) -> Vec<Result<Scanned>> {
    let threads = thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::new());
    let work = || {
        while let Some((number, member)) =
            Some(next.fetch_add(1, Relaxed)).and_then(|at| Some((at, members.get(at)?)))
        {
            let scanned = scan(member);
            let rested = member.segment.rest();
            let result = scanned.and_then(|scanned| rested.map(|()| scanned));
            locked(&results).push((number, result));
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads.min(members.len()) {
            // Without more threads, this one does all.
            let spawn = || thread::Builder::new().spawn_scoped(scope, work);
            let _ = dioxide::with_signals_blocked(spawn);
        }
        work();
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(number, _)| *number);
    results.into_iter().map(|(_, result)| result).collect()
}

/// Passes all valid frames from an offset on to `see`, until one begins at `end` or behind, or
/// `see` returns false. The payload of a frame has none.
fn search(
    search: &mut Search,
    segment: &Arc<dyn Segment>,
    Range { start: mut offset, end }: Range<u64>,
    mut see: impl FnMut(Remnant) -> Result<bool>,
) -> Result<()> {
    let mut window = Window::new(WINDOW_BYTES.min((end - block_of(offset)) as usize));
    window.load(segment, offset, BLOCK_BYTES)?;
    while offset < end {
        match search.step(window.from(offset), offset) {
            Looked::Found(remnant) => {
                if !see(remnant)? {
                    return Ok(());
                }
                offset = remnant.offset + remnant.bytes;
            }
            Looked::Longer { offset: at, bytes } => {
                window.load(segment, at, bytes)?;
                offset = at;
            }
            Looked::Nothing { below } => {
                if window.from(below).len() as u64 == segment.bytes() - below {
                    return Ok(());
                }
                window.load(segment, below, BLOCK_BYTES)?;
                offset = below;
            }
        }
    }
    Ok(())
}

/// Returns the valid frames of one life from an offset on. `see` may fail for one of them, or end
/// the search with nothing.
fn torn_from(
    (log, life): (LogId, u32),
    segment: &Arc<dyn Segment>,
    from: u64,
    mut see: impl FnMut(Remnant) -> Result<bool>,
) -> Result<Torn> {
    let (mut look, mut torn) = (Search::new(log, (life, 1), segment.bytes()), Torn::default());
    let mut has_ended = false;
    search(&mut look, segment, from..segment.bytes(), |remnant| {
        torn.frames += 1;
        torn.add(remnant.offset..remnant.offset + remnant.bytes);
        has_ended = !see(remnant)?;
        Ok(!has_ended)
    })?;
    if has_ended {
        return Ok(Torn::default());
    }
    if let Some(passed) = look.passed() {
        torn.unsearched = segment.bytes() - passed;
        torn.add(passed..segment.bytes());
    }
    Ok(torn)
}

/// Whether a writer works beside a view: frames follow where there was none before.
fn has_grown(last: &Member, end: u64) -> Result<bool> {
    Ok(scan(last)?.scan.end() > end)
}

/// Returns the valid frames behind the end of the last segment. Fails if one of them shows that the
/// frame at the end was stable once.
fn look_behind(last: &Member, end: u64) -> Result<Torn> {
    let (header, segment) = (&last.header, &last.segment);
    let home = (header.log, header.life());
    let see = |remnant: Remnant| {
        if remnant.stable <= end {
            return Ok(true);
        }
        if has_grown(last, end)? {
            return Ok(false);
        }
        let at = remnant.offset;
        let reason = format!("no valid frame, but it was stable when the one at {at} was written");
        Err(Error::corrupt(segment.path(), end, reason))
    };
    // Content that looks like frames may end the search below. So the first one begins behind the
    // frame at the end, if its length is intact.
    let mut window = Window::new(BLOCK_BYTES as usize);
    window.load(segment, end, HEADER_BYTES)?;
    let claims = |(life, bytes)| (life == header.life()).then_some(end + bytes);
    let behind = frame::claimed(window.from(end)).and_then(claims);
    if let Some(behind) = behind.filter(|behind| *behind < segment.bytes()) {
        torn_from(home, segment, behind, see)?;
    }
    torn_from(home, segment, end, see)
}

/// Looks for frames of a later segment than the last in a segment without a valid header: witnesses
/// of damage.
fn look_for_later(last: &Member, segment: &Arc<dyn Segment>, open_end: Option<u64>) -> Result<()> {
    let later = (last.header.life().wrapping_add(1), u32::MAX / 2);
    let any = || Search::new(last.header.log, later, segment.bytes());
    let mut found = false;
    search(&mut any(), segment, BLOCK_BYTES..WITNESS_BYTES, |_| {
        found = true;
        Ok(false)
    })?;
    if !found {
        return segment.rest();
    }
    if let Some(end) = open_end {
        if has_grown(last, end)? {
            return Ok(());
        }
        let path = shown(segment.path());
        let reason = format!("no valid frame, but {path} has frames of a later segment");
        return Err(Error::corrupt(last.segment.path(), end, reason));
    }
    search(&mut any(), segment, BLOCK_BYTES..segment.bytes(), |remnant| {
        if remnant.stable > BLOCK_BYTES {
            let reason = "the header of the last segment is damaged";
            return Err(Error::corrupt(segment.path(), 0, reason));
        }
        Ok(true)
    })
}

impl Recovered {
    /// A log whose first segment was just made.
    pub fn created(index: Index, first: Member, free: Vec<Arc<dyn Segment>>) -> Self {
        Self {
            id: first.header.log,
            segment_bytes: first.header.segment_bytes,
            lowest: VecDeque::from([index.next()]),
            index,
            chain: VecDeque::from([first]),
            free,
            end: BLOCK_BYTES,
            ended: false,
            torn: Torn::default(),
            report: Report::default(),
        }
    }

    /// Fails if the log has another content than the caller expects.
    pub fn check_content(&self, expected: Content) -> Result<()> {
        let Member { header, segment } = self.chain.back().expect("the last segment");
        if header.content == expected {
            return Ok(());
        }
        let path = shown(segment.path());
        Err(Error::Options(match expected {
            Content::Records => format!("{path}: a log of streams; open it with StreamLog"),
            Content::Streams => format!("{path}: a log without streams; open it with Log"),
        }))
    }

    /// Makes the log ready for a writer. The records are stable then, and no remnant of a torn
    /// write can follow a frame of this writer.
    ///
    /// A torn first write of the next segment may have left frames without their header, in any
    /// free segment. The next segment gets the same number, so the one that it will be is searched.
    /// The next segment is only written once the end of the last is stable.
    pub fn clear(&mut self) -> Result<()> {
        let last = self.chain.back().expect("the last segment");
        if self.torn.unsearched > 0 {
            let (path, bytes) = (shown(last.segment.path()), self.torn.unsearched);
            log::warn!("{path}: {bytes} bytes behind the end look like frames; they become zeros");
        }
        if let Some(range) = mem::take(&mut self.torn).range {
            write_zeros(last.segment.as_ref(), self.end..range.end)?;
        }
        if let Some(next) = self.free.first().filter(|_| self.ended) {
            let life = (last.header.number + 1) as u32;
            let torn = torn_from((self.id, life), next, BLOCK_BYTES, |_| Ok(true))?;
            if let Some(range) = torn.range {
                write_zeros(next.as_ref(), range)?;
            }
        }
        // Also after a close: the last write of a killed process may not be stable.
        last.segment.sync()?;
        last.segment.was_read();
        // The next record goes to the next segment.
        if self.ended { last.segment.rest() } else { Ok(()) }
    }
}

/// Overwrites a part of a segment, and the rest of its last block, with stable zeros. It begins at
/// the end: after a crash, recovery finds what is left.
fn write_zeros(segment: &dyn Segment, part: Range<u64>) -> Result<()> {
    let first = block_of(part.start);
    let mut end = part.end.next_multiple_of(BLOCK_BYTES);
    let mut zeros = Buffer::zeroed(ZEROS_BYTES.min((end - first) as usize));
    while end - first > zeros.len() as u64 {
        end -= zeros.len() as u64;
        segment.write(&zeros, end, true)?;
    }
    let rest = &mut zeros[..(end - first) as usize];
    let kept = (part.start - first) as usize;
    segment.read(&mut rest[..BLOCK_BYTES as usize], first)?;
    rest[kept..].fill(0);
    segment.write(rest, first, true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::frame::{Flags, Frame, Kind, checksum_of};
    use crate::storage::memory::Memory;
    use crate::{Log, LogOptions};

    fn open(disk: &Memory) -> Result<Log> {
        LogOptions::new().segment_bytes(64 << 10).open_storage(Arc::new(disk.clone()))
    }

    /// The writer read behind the end of the segment.
    #[test]
    fn a_segment_that_was_full_without_its_end_was_continued() {
        for left in [0, 8, 16, 24] {
            let disk = Memory::default();
            drop(open(&disk).unwrap());
            disk.edit(disk.names()[0], |bytes| {
                let (head, body) = bytes.split_at_mut(BLOCK_BYTES as usize);
                let Found::Header(header) = Header::parse(head) else { panic!("a header") };
                let home = Home { log: header.log, life: header.life() };
                let body = &mut body[..(60 << 10) - left];
                let payload = vec![1; body.len() - HEADER_BYTES as usize];
                let (kind, flags, lsn) = (Kind::Record, Flags::default(), Lsn::FIRST);
                let frame = Frame { kind, flags, lsn, payload: &payload };
                frame.encode(body, checksum_of(&payload), home, BLOCK_BYTES);
            });
            match open(&disk) {
                Ok(log) => {
                    assert!(left == 24 && log.next_lsn() == Lsn(2));
                    log.close().unwrap();
                }
                Err(error) => assert!(left < 24 && matches!(error, Error::Corrupt { .. })),
            }
        }
    }
}
