//! The ring of the kernel: io_uring.

use super::Backend;
use super::ring::{Bell, Io, Ring};
use crate::buffer::{Pool, Segment};
use io_uring::{EnterFlags, IoUring, Probe, cqueue, opcode, squeue, types};
use rustix::event::{EventfdFlags, eventfd};
use slab::Slab;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

/// Files that the kernel is told of once, and not with every request. More than these work as well.
const REGISTERED_MAX: u32 = 64;

/// The kernel moves no more in one call (MAX_RW_COUNT).
const TRANSFER_MAX_BYTES: u64 = 0x7fff_f000;

/// What the bell comes back as.
const BELL: u64 = u64::MAX;

/// See the module.
pub(crate) struct Uring {
    // Before the pool: the kernel must not have its memory any more when that goes.
    ring: IoUring,
    bell: Arc<Bell>,
    /// The kernel looks at the bell.
    listening: bool,
    files: Slab<Target>,
    registers_files: bool,
    pool: Option<Arc<Pool>>,
    /// Registered memory can be written from many places at once.
    gathers_registered: bool,
    /// Lists of segments that the kernel has not taken over yet.
    lent: Vec<Segments>,
    came_back: VecDeque<(u64, io::Result<u64>)>,
}

type Segments = SmallVec<[Segment; 1]>;

#[derive(Clone, Copy, Debug)]
enum Target {
    Registered(u32),
    Descriptor(RawFd),
}

impl std::fmt::Debug for Uring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Uring").field("files", &self.files).finish_non_exhaustive()
    }
}

impl Uring {
    /// A ring for about so many requests at a time, and the bell that wakes who waits in it. An error where the kernel
    /// has none, has no complete one, or lets nobody use it.
    pub fn new(depth: usize, pool: Option<Arc<Pool>>) -> io::Result<(Self, Arc<Bell>)> {
        let entries = u32::try_from(depth).unwrap_or(u32::MAX).clamp(8, 4096).next_power_of_two();
        let ring = set_up(entries)?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        let needed = [
            opcode::Write::CODE,
            opcode::Writev::CODE,
            opcode::Read::CODE,
            opcode::Readv::CODE,
            opcode::Fsync::CODE,
            opcode::PollAdd::CODE,
        ];
        // Lists of segments must be the kernel's own once they are submitted, and completions must not get lost.
        let complete = ring.params().is_feature_submit_stable() && ring.params().is_feature_nodrop();
        if !complete || needed.iter().any(|code| !probe.is_supported(*code)) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let bell = Arc::new(Bell::with_event(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?));
        let registers_files = ring.submitter().register_files_sparse(REGISTERED_MAX).is_ok();
        let pool = pool.filter(|pool| register(&ring, pool));
        let uring = Self {
            ring,
            bell: bell.clone(),
            listening: false,
            files: Slab::new(),
            registers_files,
            pool,
            gathers_registered: probe.is_supported(opcode::WritevFixed::CODE),
            lent: Vec::new(),
            came_back: VecDeque::new(),
        };
        Ok((uring, bell))
    }

    fn is_registered(&self, segment: &Segment) -> bool {
        let inside = |pool: &Arc<Pool>| {
            let (all, part) = (pool.memory().addresses(), segment.addresses());
            all.start <= part.start && part.end <= all.end
        };
        self.pool.as_ref().is_some_and(inside)
    }

    fn write(&mut self, file: types::Fd, segments: Segments, offset: u64, dsync: bool) -> squeue::Entry {
        let flags = if dsync { libc::RWF_DSYNC } else { 0 };
        let segments = joined(segments);
        let registered = segments.iter().all(|segment| self.is_registered(segment));
        if let [segment] = &segments[..] {
            let (start, len) = (segment.start().cast_const(), transferable(segment));
            return match registered {
                true => opcode::WriteFixed::new(file, start, len, 0).offset(offset).rw_flags(flags).build(),
                false => opcode::Write::new(file, start, len).offset(offset).rw_flags(flags).build(),
            };
        }
        let (start, len) = (Segment::as_iovecs(&segments).as_ptr(), segments.len() as u32);
        // A list of more than one lies on the heap, and stays there.
        self.lent.push(segments);
        match registered && self.gathers_registered {
            true => opcode::WritevFixed::new(file, start, len, 0).offset(offset).rw_flags(flags).build(),
            false => opcode::Writev::new(file, start, len).offset(offset).rw_flags(flags).build(),
        }
    }

    fn read(&mut self, file: types::Fd, into: Segments, offset: u64) -> squeue::Entry {
        let into = joined(into);
        if let [segment] = &into[..] {
            let (start, len) = (segment.start(), transferable(segment));
            return match self.is_registered(segment) {
                true => opcode::ReadFixed::new(file, start, len, 0).offset(offset).build(),
                false => opcode::Read::new(file, start, len).offset(offset).build(),
            };
        }
        let (start, len) = (Segment::as_iovecs(&into).as_ptr(), into.len() as u32);
        self.lent.push(into);
        opcode::Readv::new(file, start, len).offset(offset).build()
    }

    /// Makes room for an entry. Before the entry is made: lists of segments that it names are kept for what is in the ring.
    fn make_room(&mut self) {
        if self.ring.submission().is_full() {
            self.cross(0).expect("the ring takes what is submitted");
        }
    }

    fn submit(&mut self, entry: &squeue::Entry) {
        // SAFETY: what the entry names stays in place until it comes back (see `Io`); lists of segments do in `lent`,
        // until the kernel has taken the entry.
        unsafe { self.ring.submission().push(entry) }.expect("there is room");
    }

    /// Enters the kernel, and takes what came back.
    fn cross(&mut self, wanted: usize) -> io::Result<()> {
        loop {
            let pushed = self.ring.submission().len() as u32;
            let flags = EnterFlags::GETEVENTS.bits();
            // SAFETY: no argument is given, and all entries are as `submit` says.
            let entered =
                unsafe { self.ring.submitter().enter::<libc::sigset_t>(pushed, wanted as u32, flags, None) };
            self.collect();
            if self.ring.submission().is_empty() {
                self.lent.clear();
            }
            match entered {
                Ok(_) if self.ring.submission().is_empty() => return Ok(()),
                // Some of it was not taken yet: there is too much in flight, or a signal came.
                Ok(_) => {}
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) if wanted > 0 && self.ring.submission().is_empty() => return Ok(()),
                    Some(libc::EINTR | libc::EAGAIN | libc::EBUSY) => std::thread::yield_now(),
                    _ => return Err(error),
                },
            }
        }
    }

    fn collect(&mut self) {
        let mut rang = false;
        for entry in self.ring.completion() {
            match entry.user_data() {
                BELL => rang = true,
                id => self.came_back.push_back((id, outcome(&entry))),
            }
        }
        if rang {
            self.listening = false;
            // It rings anew from here on.
            let event = self.bell.event().expect("made with one");
            let _ = rustix::io::read(event, &mut [0; 8]);
        }
    }

    fn listen(&mut self) {
        if self.listening {
            return;
        }
        self.make_room();
        let event = types::Fd(self.bell.event().expect("made with one").as_raw_fd());
        let entry = opcode::PollAdd::new(event, libc::POLLIN as u32).build().user_data(BELL);
        self.submit(&entry);
        self.listening = true;
    }
}

impl Ring for Uring {
    fn attach(&mut self, backend: &dyn Backend) -> Option<u32> {
        let descriptor = backend.for_ring()?.as_raw_fd();
        let place = self.files.vacant_entry();
        let number = place.key() as u32;
        let registered = self.registers_files
            && number < REGISTERED_MAX
            && self.ring.submitter().register_files_update(number, &[descriptor]).is_ok();
        place.insert(if registered { Target::Registered(number) } else { Target::Descriptor(descriptor) });
        Some(number)
    }

    fn detach(&mut self, file: u32) {
        if let Target::Registered(number) = self.files.remove(file as usize)
            && let Err(error) = self.ring.submitter().register_files_update(number, &[-1])
        {
            log::warn!("dioxide: a queue keeps a file open until it is dropped: {error}");
        }
    }

    fn push(&mut self, file: u32, id: u64, io: Io) {
        self.make_room();
        let (file, flags) = match self.files[file as usize] {
            Target::Registered(number) => (types::Fd(number as RawFd), squeue::Flags::FIXED_FILE),
            Target::Descriptor(descriptor) => (types::Fd(descriptor), squeue::Flags::empty()),
        };
        let entry = match io {
            Io::Write { segments, offset, dsync } => self.write(file, segments, offset, dsync),
            Io::Read { into, offset } => self.read(file, into, offset),
            Io::Flush => opcode::Fsync::new(file).flags(types::FsyncFlags::DATASYNC).build(),
        };
        self.submit(&entry.flags(flags).user_data(id));
    }

    fn enter(&mut self, wanted: usize) -> io::Result<()> {
        if wanted > 0 {
            self.listen();
        }
        self.cross(wanted)
    }

    fn next(&mut self) -> Option<(u64, io::Result<u64>)> {
        self.came_back.pop_front()
    }
}

/// The newest kind of ring that the kernel has: completions in the context of their thread, which alone submits (6.1);
/// at least without interrupting it (5.19); or any.
fn set_up(entries: u32) -> io::Result<IoUring> {
    let ring = |newer: fn(&mut io_uring::Builder) -> &mut io_uring::Builder| {
        newer(IoUring::builder().dontfork()).build(entries)
    };
    let refused = |error: &io::Error| error.raw_os_error() == Some(libc::EINVAL);
    match ring(|builder| builder.setup_single_issuer().setup_defer_taskrun()) {
        Err(error) if refused(&error) => {}
        result => return result,
    }
    match ring(|builder| builder.setup_coop_taskrun()) {
        Err(error) if refused(&error) => ring(|builder| builder),
        result => result,
    }
}

/// Tells the kernel of the pool's memory. Without, it works as well.
fn register(ring: &IoUring, pool: &Arc<Pool>) -> bool {
    let memory = pool.memory();
    // SAFETY: the ring has a share of the pool, and goes before that.
    let result = unsafe { ring.submitter().register_buffers(Segment::as_iovecs(&[memory])) };
    if let Err(error) = &result {
        log::warn!("dioxide: the kernel takes no buffers of {} bytes to keep: {error}", memory.len());
    }
    result.is_ok()
}

fn outcome(entry: &cqueue::Entry) -> io::Result<u64> {
    u64::try_from(entry.result()).map_err(|_| io::Error::from_raw_os_error(-entry.result()))
}

/// What one call may move of it. The rest is a short transfer.
fn transferable(segment: &Segment) -> u32 {
    segment.len().min(TRANSFER_MAX_BYTES) as u32
}

/// The same bytes, in one view where they follow in memory.
fn joined(segments: Segments) -> Segments {
    let mut joined = Segments::with_capacity(segments.len());
    for segment in segments {
        match joined.last_mut().and_then(|last: &mut Segment| Some((last.joined(&segment)?, last))) {
            Some((both, last)) => *last = both,
            None => joined.push(segment),
        }
    }
    joined
}
