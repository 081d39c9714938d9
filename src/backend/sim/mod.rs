//! The backend of a simulated disk with a small file system. The disk has a volatile cache, a
//! stable image, a journal, faults and power cuts. It writes sectors in any order.
//!
//! A crash keeps the same as with a journaling file system:
//!
//! - of metadata (names, sizes, allocation, markers): the changes up to some point of the journal;
//! - of a block that was unwritten: nothing or one whole write, since the file system converts the
//!   block only after the write;
//! - of any other block, and of later writes to an unwritten one: for each sector, the stable
//!   content or any later one.
//!
//! fdatasync commits metadata only as far as data needs it.
//!
//! In a simulated thread each call takes simulated time, so calls end in any order. In other
//! threads it ends at once. Requests of a ring follow the same rules.

mod image;
pub(crate) mod ring;
mod state;

pub(crate) use image::{BLOCK_BYTES, SECTOR_BYTES};
pub use state::Call;
pub(crate) use state::CrashChoice;

use super::journal::Journal;
use super::ring::RingFile;
use super::{Backend, Job, Places};
use crate::buffer::Segment;
use crate::rules::recovery::Extent;
use crate::sync::{self, JoinHandle, world};
use image::{Change, FsImage};
use smallvec::{SmallVec, smallvec};
use state::{DiskState, Snapshot};
use std::fmt;
use std::io;
use std::ops::{Range, RangeInclusive};
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The properties of a simulated disk.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// The space for data, in bytes.
    pub capacity_bytes: u64,
    /// Whether the file system has unwritten extents, as ext4 and XFS have and ext3 has not.
    pub allocates: bool,
    /// The duration of a call, in simulated time.
    pub latency: RangeInclusive<Duration>,
    /// One read or write in this many is short. 0 for none.
    pub short_one_in: u64,
    /// One call in this many fails with EINTR or EAGAIN. 0 for none.
    pub interrupted_one_in: u64,
    /// Flushes succeed and do nothing. This shows that a test would notice.
    pub lies_about_flushes: bool,
    /// Each commit is one of a single file, as a fast commit of ext4.
    pub commits_fast: bool,
    /// The device writes zeros by itself, into space that can be allocated unwritten.
    pub writes_zeroes: bool,
}

impl Default for Settings {
    /// 1 GiB, unwritten extents, 10 to 200 microseconds for each call, and no faults.
    fn default() -> Self {
        Self {
            capacity_bytes: 1 << 30,
            allocates: true,
            latency: Duration::from_micros(10)..=Duration::from_micros(200),
            short_one_in: 0,
            interrupted_one_in: 0,
            lies_about_flushes: false,
            commits_fast: false,
            writes_zeroes: false,
        }
    }
}

/// Random faults and latencies.
#[derive(Clone, Debug, Default)]
struct Faults {
    random: fastrand::Rng,
    settings: Settings,
    /// Calls that begin before this simulated time wait for it.
    stalled_until: Duration,
}

/// A call in flight.
#[derive(Debug)]
struct BegunCall<P> {
    fate: io::Result<()>,
    prepared: P,
    /// The duration of the call.
    nanos: u64,
}

impl<P> BegunCall<P> {
    /// Sleeps for the duration of the call.
    fn wait(self) -> Self {
        if let Some(task) = world::current() {
            task.sleep(self.nanos);
        }
        self
    }
}

type Watcher = Box<dyn FnMut() + Send>;

/// A simulated disk.
pub(crate) struct Device {
    state: Mutex<DiskState>,
    watcher: Mutex<Option<Watcher>>,
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").finish_non_exhaustive()
    }
}

impl Device {
    pub fn new(seed: u64, settings: Settings) -> Arc<Self> {
        let capacity_blocks = settings.capacity_bytes / BLOCK_BYTES;
        let random = fastrand::Rng::with_seed(seed);
        let faults = Faults { random, settings, ..Faults::default() };
        Self::of(DiskState::with(FsImage::default(), capacity_blocks, 0, faults))
    }

    fn of(state: DiskState) -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(state), watcher: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, DiskState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the inode of a file, which it creates if `create` and there is none.
    pub fn find(&self, name: &str, create: bool) -> Option<u64> {
        let mut state = self.state();
        if let Some(inode) = state.live.names.get(name) {
            return Some(*inode);
        }
        create.then(|| {
            let inode = state.next_number();
            state.change(Change::Create { name: name.into(), inode });
            inode
        })
    }

    pub fn rename(&self, from: &str, to: &str) {
        self.state().change(Change::Rename { from: from.into(), to: to.into() });
    }

    pub fn remove(&self, name: &str) {
        self.state().change(Change::Remove { name: name.into() });
    }

    pub fn names(&self) -> Vec<String> {
        self.state().live.names.keys().cloned().collect()
    }

    /// Makes the `nth` next call of this kind (from 0) fail with `errno`.
    pub fn fail(&self, call: Call, nth: u64, errno: i32) {
        self.state().planned.push((call, nth, errno));
    }

    /// Clears the planned faults and the stall.
    pub fn heal(&self) {
        let mut state = self.state();
        state.planned.clear();
        state.faults.stalled_until = Duration::ZERO;
    }

    /// After this many more changing calls the device is dead: every call fails.
    pub fn die_after(&self, calls: u64) {
        let mut state = self.state();
        state.dies_after = Some(state.calls + calls);
    }

    /// Lets no more thread start.
    #[cfg(test)]
    pub fn refuse_threads(&self) {
        self.state().refuses_threads = true;
    }

    /// Lets no call end for this simulated time.
    pub fn stall(&self, time: Duration) {
        let until = now() + time;
        self.state().faults.stalled_until = until;
    }

    /// Counts the calls that changed something or failed.
    pub fn calls(&self) -> u64 {
        self.state().calls
    }

    /// Sets a function that runs whenever a call begins or ends.
    pub fn watch(&self, watcher: Option<Watcher>) {
        *self.watcher.lock().unwrap_or_else(PoisonError::into_inner) = watcher;
    }

    /// The disk after a power cut now. `choose` picks one of the possible outcomes, from 0 (stable)
    /// to the given number (newest).
    pub fn crash(&self, choose: &mut dyn FnMut(CrashChoice, u64) -> u64) -> Arc<Self> {
        let state = self.state();
        let faults = Faults { stalled_until: Duration::ZERO, ..state.faults.clone() };
        Self::of(DiskState::with(
            state.crash(choose),
            state.capacity_blocks,
            state.number(),
            faults,
        ))
    }

    /// The disk after a power cut now, with an outcome drawn from the seed.
    pub fn crash_at_random(&self) -> Arc<Self> {
        let mut random = self.state().faults.random.fork();
        // Some power cuts keep all or nothing of a kind, so that tests reach the extremes.
        let (whole, bias) = (random.u8(..4), random.u8(..3));
        self.crash(&mut |_, max| match (whole, bias) {
            (0, 0) => 0,
            (0, 1) => max,
            (_, 0) if random.bool() => 0,
            (_, 1) if random.bool() => max,
            _ => random.u64(..=max),
        })
    }

    /// The disk after this process is killed now.
    pub fn kill(&self) -> Arc<Self> {
        Self::of(self.state().abandoned())
    }

    /// Returns whether the file system has unwritten extents.
    pub fn allocates(&self) -> bool {
        self.state().faults.settings.allocates
    }

    /// Returns whether the file system commits changes in the order in which they are made.
    pub fn commits_in_order(&self) -> bool {
        !self.state().faults.settings.commits_fast
    }

    /// Draws a random number.
    pub fn draw(&self) -> u64 {
        self.state().faults.random.u64(..)
    }

    /// Returns the content of a file as programs read it.
    pub fn content(&self, inode: u64) -> Vec<u8> {
        let mut state = self.state();
        let inode = state.live.inode(inode);
        let mut content = vec![0; inode.size as usize];
        inode.read(&mut content, 0);
        content
    }

    /// Replaces the content of a file, and syncs it.
    pub fn put(&self, name: &str, content: &[u8]) {
        let inode = self.find(name, true).expect("created");
        let mut state = self.state();
        state.truncate(inode, 0);
        if !content.is_empty() {
            let ticket = state.send(inode, 0, content.to_vec());
            let written = state.land(ticket, false);
            assert_eq!(written.ok(), Some(content.len() as u64), "no space on the simulated disk");
        }
        let snapshot = state.snapshot(inode, true);
        state.flush(snapshot);
    }

    /// Reads a file in no simulated time.
    #[cfg(test)]
    pub fn peek(&self, inode: u64, into: &mut [u8], offset: u64) -> u64 {
        self.state().live.inode(inode).read(into, offset)
    }

    /// Begins a call. [`end`](Self::end) ends it after its duration.
    fn begin<P>(&self, call: Call, prepare: impl FnOnce(&mut DiskState) -> P) -> BegunCall<P> {
        let begun = {
            let mut state = self.state();
            let fate = state.fate(call);
            BegunCall { fate, prepared: prepare(&mut state), nanos: state.faults.latency() }
        };
        self.run_watcher();
        if let Some(task) = world::current() {
            task.note(begun.nanos);
        }
        begun
    }

    /// Ends a call and applies its effect.
    fn end<P, R>(
        &self,
        begun: BegunCall<P>,
        effect: impl FnOnce(&mut DiskState, P, io::Result<()>) -> io::Result<R>,
    ) -> io::Result<R> {
        let result = effect(&mut self.state(), begun.prepared, begun.fate);
        self.run_watcher();
        result
    }

    fn run_watcher(&self) {
        // The watcher itself makes calls, which it does not watch.
        let Ok(mut watcher) = self.watcher.try_lock() else { return };
        let Some(watch) = &mut *watcher else { return };
        let Err(panic) = catch_unwind(AssertUnwindSafe(|| world::outside(watch))) else { return };
        *watcher = None;
        match world::current() {
            Some(task) => task.found(panic),
            None => resume_unwind(panic),
        }
    }
}

fn now() -> Duration {
    world::current().map_or(Duration::ZERO, |task| task.now())
}

impl Faults {
    fn latency(&mut self) -> u64 {
        let nanos = |time: &Duration| time.as_nanos() as u64;
        let range = nanos(self.settings.latency.start())..=nanos(self.settings.latency.end());
        let stalled = self.stalled_until.saturating_sub(now());
        self.random.u64(range) + nanos(&stalled)
    }

    /// Draws how many of `len` bytes a transfer moves.
    fn moved(&mut self, len: usize) -> usize {
        let sectors = len / SECTOR_BYTES;
        let is_short = sectors > 1 && self.one_in(self.settings.short_one_in);
        if is_short { self.random.usize(1..sectors) * SECTOR_BYTES } else { len }
    }

    fn one_in(&mut self, count: u64) -> bool {
        count > 0 && self.random.u64(..count) == 0
    }
}

impl DiskState {
    /// Counts a call, and fails it if a fault is due.
    fn fate(&mut self, call: Call) -> io::Result<()> {
        self.calls += u64::from(call != Call::Read);
        let error = |errno| Err(io::Error::from_raw_os_error(errno));
        if self.is_dead() {
            return error(libc::EIO);
        }
        let mut planned = None;
        self.planned.retain_mut(|(kind, nth, errno)| {
            if *kind != call || planned.is_some() {
                return true;
            }
            let now = *nth == 0;
            *nth = nth.saturating_sub(1);
            planned = now.then_some(*errno);
            !now
        });
        if let Some(errno) = planned {
            return error(errno);
        }
        let interrupted_one_in = self.faults.settings.interrupted_one_in;
        if matches!(call, Call::Write | Call::Read) && self.faults.one_in(interrupted_one_in) {
            return error(if self.faults.random.bool() { libc::EINTR } else { libc::EAGAIN });
        }
        Ok(())
    }

    fn is_dead(&self) -> bool {
        self.dies_after.is_some_and(|last| self.calls > last)
    }
}

/// An open file of a simulated disk.
#[derive(Clone, Debug)]
pub(crate) struct Sim {
    pub device: Arc<Device>,
    pub inode: u64,
    _open: Arc<()>,
}

impl Sim {
    pub fn new(device: Arc<Device>, inode: u64) -> Self {
        let _open = device.state().open(inode);
        Self { device, inode, _open }
    }

    /// Changes metadata when the call ends.
    fn change(
        &self,
        call: Call,
        change: impl FnOnce(&mut DiskState) -> io::Result<()>,
    ) -> io::Result<()> {
        let begun = self.device.begin(call, |_| ()).wait();
        self.device.end(begun, |state, (), fate| {
            fate?;
            change(state)
        })
    }

    fn begin_write(&self, segments: &[Segment], offset: u64) -> BegunCall<u64> {
        let mut bytes = copy_of(segments);
        self.device.begin(Call::Write, |state| {
            bytes.truncate(state.faults.moved(bytes.len()));
            state.send(self.inode, offset, bytes)
        })
    }

    fn end_write(&self, begun: BegunCall<u64>, dsync: bool) -> io::Result<u64> {
        self.device.end(begun, |state, ticket, fate| match fate {
            Ok(()) => state.land(ticket, dsync && !state.faults.settings.lies_about_flushes),
            Err(error) => {
                match error.raw_os_error() {
                    Some(libc::EINTR | libc::EAGAIN) => state.recall(ticket),
                    _ if state.is_dead() => state.recall(ticket),
                    // The failure may be that of the implied flush.
                    Some(libc::EIO) if dsync && state.faults.random.bool() => {
                        let snapshot = state.snapshot(self.inode, false);
                        state.lose(snapshot);
                        state.fail(ticket);
                    }
                    _ => state.fail(ticket),
                }
                Err(error)
            }
        })
    }

    fn begin_read(&self) -> BegunCall<()> {
        self.device.begin(Call::Read, |_| ())
    }

    fn end_read(&self, begun: BegunCall<()>, into: &[Segment], offset: u64) -> io::Result<u64> {
        self.device.end(begun, |state, (), fate| {
            fate?;
            let memory = into
                .iter()
                .flat_map(|segment| [segment.addresses().start, segment.addresses().end]);
            if memory.chain([offset as usize]).any(|number| !number.is_multiple_of(SECTOR_BYTES)) {
                return Err(io::Error::from_raw_os_error(libc::EINVAL));
            }
            let len: u64 = into.iter().map(Segment::len).sum();
            let mut bytes = vec![0; state.faults.moved(len as usize)];
            let read = state.live.inode(self.inode).read(&mut bytes, offset);
            Segment::scatter(into, &bytes[..read as usize]);
            Ok(read)
        })
    }

    fn begin_sync(&self, all: bool) -> BegunCall<Snapshot> {
        self.device.begin(Call::Flush, |state| state.snapshot(self.inode, all))
    }

    fn end_sync(&self, begun: BegunCall<Snapshot>) -> io::Result<()> {
        self.device.end(begun, |state, snapshot, fate| {
            if fate.is_err() && !state.is_dead() {
                state.lose(snapshot);
            }
            fate?;
            if !state.faults.settings.lies_about_flushes {
                state.flush(snapshot);
            }
            Ok(())
        })
    }
}

/// The number of the file that takes part in the journal for others.
const JOURNAL_INODE: u64 = u64::MAX;

/// The journal of a simulated device.
#[derive(Debug)]
pub(crate) struct SimJournal(Sim);

impl SimJournal {
    pub fn of(device: Arc<Device>) -> Arc<Self> {
        Arc::new(Self(Sim::new(device, JOURNAL_INODE)))
    }
}

impl Journal for SimJournal {
    fn join(&self) -> io::Result<()> {
        self.0.change(Call::Join, |state| {
            state.change(Change::Touch { inode: JOURNAL_INODE });
            Ok(())
        })
    }

    fn commit(&self) -> io::Result<()> {
        self.0.sync_all()
    }

    fn commits_all(&self) -> io::Result<bool> {
        Ok(!self.0.device.state().faults.settings.commits_fast)
    }

    fn ring_file(&self) -> RingFile<'_> {
        RingFile::Simulated(&self.0)
    }
}

fn copy_of(segments: &[Segment]) -> Vec<u8> {
    let mut bytes = Vec::new();
    segments.iter().for_each(|segment| segment.show(|part| bytes.extend_from_slice(part)));
    bytes
}

impl Backend for Sim {
    fn write(&self, segments: &[Segment], offset: u64, dsync: bool) -> io::Result<u64> {
        self.end_write(self.begin_write(segments, offset).wait(), dsync)
    }

    fn read(&self, into: &[Segment], offset: u64) -> io::Result<u64> {
        self.end_read(self.begin_read().wait(), into, offset)
    }

    fn flush(&self) -> io::Result<()> {
        self.end_sync(self.begin_sync(false).wait())
    }

    fn sync_all(&self) -> io::Result<()> {
        self.end_sync(self.begin_sync(true).wait())
    }

    fn physical_size(&self) -> io::Result<u64> {
        Ok(self.device.state().live.inode(self.inode).size)
    }

    fn allocate(&self, start: u64, end: u64) -> io::Result<()> {
        if !self.device.allocates() {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        self.change(Call::Allocate, |state| state.allocate(self.inode, start, end))
    }

    /// As a write of zeros, which the device may do in part.
    fn write_zeroes(&self, start: u64, end: u64) -> io::Result<()> {
        if !(self.device.allocates() && self.device.state().faults.settings.writes_zeroes) {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        let zeros = vec![0; (end - start) as usize];
        let begun =
            self.device.begin(Call::Allocate, |state| state.send(self.inode, start, zeros)).wait();
        self.device.end(begun, |state, ticket, fate| {
            if fate.is_err() {
                if state.is_dead() {
                    state.recall(ticket)
                } else {
                    state.fail(ticket)
                }
                return fate;
            }
            let is_whole = state.land(ticket, false)? == end - start;
            if is_whole { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ENOSPC)) }
        })
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.change(Call::Allocate, |state| {
            state.truncate(self.inode, len);
            Ok(())
        })
    }

    fn extents(&self, _from: u64) -> io::Result<Vec<Extent>> {
        Ok(self.device.state().live.inode(self.inode).extents())
    }

    fn places(&self, range: Range<u64>) -> io::Result<Places> {
        Ok(self.device.state().live.inode(self.inode).places(range))
    }

    fn read_marker(&self) -> io::Result<Option<Vec<u8>>> {
        Ok(self.device.state().live.inode(self.inode).marker.clone())
    }

    fn write_marker(&self, bytes: &[u8]) -> io::Result<()> {
        let marker = Some(bytes.to_vec());
        self.change(Call::Marker, |state| {
            state.change(Change::Marker { inode: self.inode, marker });
            Ok(())
        })
    }

    fn remove_marker(&self) -> io::Result<()> {
        self.change(Call::Marker, |state| {
            state.change(Change::Marker { inode: self.inode, marker: None });
            Ok(())
        })
    }

    fn free_bytes(&self) -> io::Result<u64> {
        Ok(self.device.state().free_blocks() * BLOCK_BYTES)
    }

    fn size_max(&self) -> u64 {
        u64::MAX
    }

    fn spawn(&self, job: Job) -> io::Result<Option<JoinHandle>> {
        if self.device.state().refuses_threads {
            return Err(io::Error::from_raw_os_error(libc::EAGAIN));
        }
        if world::current().is_some() {
            return sync::spawn("dioxide-grow", job).map(Some);
        }
        job();
        Ok(None)
    }

    fn unlock(&self) {}

    fn descriptor(&self) -> BorrowedFd<'_> {
        super::null::descriptor()
    }

    fn ring_files(&self) -> SmallVec<[RingFile<'_>; 1]> {
        smallvec![RingFile::Simulated(self)]
    }
}
