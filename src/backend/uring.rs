//! The ring of the kernel: io_uring.
//!
//! The kernel may accept only a part of the submissions, and returns an error when it lacks memory
//! for any. Each accepted request completes once. The others stay in the submission queue, and the
//! ring submits them again, one at a time. If that does not help, the ring ends: it never submits
//! the rest, and reports them as interrupted. The engine then retries them by plain calls.

use super::ring::{Bell, Io, Ring, RingFile, Uses};
use crate::buffer::{Pool, Segment};
use io_uring::{EnterFlags, IoUring, Probe, cqueue, opcode, squeue, types};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use slab::Slab;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

/// The number of registered files. Others work as well, unregistered.
const REGISTERED_MAX: u32 = 64;

/// The most that the kernel moves in one call (MAX_RW_COUNT).
const TRANSFER_MAX_BYTES: u64 = 0x7fff_f000;

/// The user data of the poll on the bell.
const BELL: u64 = u64::MAX;

/// The number of attempts while the kernel accepts nothing, and the pause between them: 250 ms in
/// total.
const TRIES_MAX: u32 = 250;
const BETWEEN_TRIES: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// A ring of the kernel.
pub(crate) struct Uring {
    // Dropped before the pool: the kernel must have released its memory by then.
    ring: IoUring,
    bell: Arc<Bell>,
    /// A poll on the bell is in flight.
    listening: bool,
    files: Slab<FileRef>,
    registers_files: bool,
    pool: Option<Arc<Pool>>,
    /// The kernel has vectored writes from registered memory.
    gathers_registered: bool,
    /// Segment lists that the kernel has not copied yet.
    lent: Vec<Segments>,
    /// The entries in the submission queue, in order.
    unsubmitted: VecDeque<u64>,
    /// The number of requests that the kernel has.
    in_flight: usize,
    /// The ring submits nothing more.
    ended: bool,
    /// The error of a lost completion, until it is reported.
    lost: Option<io::Error>,
    came_back: VecDeque<(u64, io::Result<u64>)>,
}

type Segments = SmallVec<[Segment; 1]>;

#[derive(Clone, Copy, Debug)]
enum FileRef {
    Registered(u32),
    Descriptor(RawFd),
}

impl std::fmt::Debug for Uring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Uring").field("files", &self.files).finish_non_exhaustive()
    }
}

impl Uring {
    /// Creates a ring for about `depth` requests in flight, and the bell that wakes its sleeper.
    /// Returns an error if io_uring is missing, incomplete or forbidden.
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
        // Requires that the kernel copies segment lists at submission, and does not drop
        // completions.
        let complete =
            ring.params().is_feature_submit_stable() && ring.params().is_feature_nodrop();
        if !complete || needed.iter().any(|code| !probe.is_supported(*code)) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let bell =
            Arc::new(Bell::with_event(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?));
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
            unsubmitted: VecDeque::new(),
            in_flight: 0,
            ended: false,
            lost: None,
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

    fn write(
        &mut self,
        file: types::Fd,
        segments: Segments,
        offset: u64,
        dsync: bool,
    ) -> squeue::Entry {
        let flags = if dsync { libc::RWF_DSYNC } else { 0 };
        let segments = joined(segments);
        let registered = segments.iter().all(|segment| self.is_registered(segment));
        if let [segment] = &segments[..] {
            let (start, len) = (segment.start().cast_const(), transferable(segment));
            return match registered {
                true => opcode::WriteFixed::new(file, start, len, 0)
                    .offset(offset)
                    .rw_flags(flags)
                    .build(),
                false => {
                    opcode::Write::new(file, start, len).offset(offset).rw_flags(flags).build()
                }
            };
        }
        let (start, len) = (Segment::as_iovecs(&segments).as_ptr(), segments.len() as u32);
        // A list of more than one segment lies on the heap, so its address is stable.
        self.lent.push(segments);
        match registered && self.gathers_registered {
            true => {
                opcode::WritevFixed::new(file, start, len, 0).offset(offset).rw_flags(flags).build()
            }
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

    /// Makes room for an entry. Must run before the entry is made: `lent` keeps its segment lists
    /// only for entries in the ring.
    fn make_room(&mut self) {
        if !self.ended
            && self.ring.submission().is_full()
            && let Err(error) = self.cross(0)
        {
            self.end(&error);
            self.lost = Some(error);
        }
    }

    fn submit(&mut self, entry: &squeue::Entry) {
        // SAFETY: the memory that the entry names stays in place until it completes (see `Io`).
        // Segment lists stay in `lent` until the kernel has taken the entry, or the ring has ended.
        unsafe { self.ring.submission().push(entry) }.expect("there is room");
        self.unsubmitted.push_back(entry.get_user_data());
    }

    /// Submits the pushed entries and collects completions. Waits for `wanted` completions,
    /// including those that arrive meanwhile. Returns an error if a completion was lost (EBADR).
    fn cross(&mut self, wanted: usize) -> io::Result<()> {
        let (mut taken, mut tries, mut at_once) = (0, 0, usize::MAX);
        loop {
            let pushed = self.unsubmitted.len().min(at_once);
            // After a partial submission the kernel does not wait, so the next call waits for the
            // rest only.
            let is_all = pushed == self.unsubmitted.len();
            let missing = if is_all { wanted.saturating_sub(taken) } else { 0 };
            let entered = self.enter_once(pushed, missing);
            let came = self.collect();
            taken += came;
            match entered {
                Ok(_) if self.unsubmitted.is_empty() => return Ok(()),
                Ok(submitted) if submitted > 0 => tries = 0,
                Err(error) if error.raw_os_error() == Some(libc::EBADR) => return Err(error),
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {
                    if self.unsubmitted.is_empty() && wanted > 0 {
                        return Ok(());
                    }
                }
                refused => {
                    tries += 1;
                    at_once = 1;
                    let error = refused.err().unwrap_or_else(|| io::ErrorKind::WouldBlock.into());
                    if tries > TRIES_MAX || !is_for_the_moment(&error) {
                        self.end(&error);
                        return Ok(());
                    }
                    if came == 0 {
                        self.pause();
                    }
                    // A refused submission runs no deferred completions, and keeps those that
                    // overflowed.
                    if let Err(error) = self.enter_once(0, 0)
                        && error.raw_os_error() == Some(libc::EBADR)
                    {
                        return Err(error);
                    }
                    taken += self.collect();
                }
            }
        }
    }

    /// Makes one call. Counts the entries that the kernel accepted, whatever it returns.
    fn enter_once(&mut self, pushed: usize, wanted: usize) -> io::Result<usize> {
        let flags = EnterFlags::GETEVENTS.bits();
        // SAFETY: the call has no argument, and `submit` justifies all entries.
        let entered = unsafe {
            self.ring.submitter().enter::<libc::sigset_t>(pushed as u32, wanted as u32, flags, None)
        };
        let left = self.ring.submission().len();
        // A ring that has ended keeps its unsubmitted entries.
        let submitted = if self.ended { 0 } else { self.unsubmitted.len() - left };
        self.unsubmitted.drain(..submitted);
        self.in_flight += submitted;
        if left == 0 {
            self.lent.clear();
        }
        entered.map(|_| submitted)
    }

    /// Waits for a completion, or briefly: after that the kernel may have memory again.
    fn pause(&self) {
        // SAFETY: the ring keeps its descriptor open.
        let ring = unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) };
        let _ = poll(&mut [PollFd::new(&ring, PollFlags::IN)], Some(&BETWEEN_TRIES));
    }

    /// Ends the ring, because the kernel does not accept the rest. It submits nothing more.
    fn end(&mut self, why: &io::Error) {
        log::warn!(
            "dioxide: io_uring accepts no more requests ({why}); its queue makes plain calls from \
             now on"
        );
        self.ended = true;
        for id in std::mem::take(&mut self.unsubmitted) {
            self.give_back(id);
        }
    }

    fn give_back(&mut self, id: u64) {
        match id {
            BELL => self.listening = false,
            id => self.came_back.push_back((id, Err(io::ErrorKind::Interrupted.into()))),
        }
    }

    /// Waits on a ring that has ended, for a request in flight or for the bell. The wait may end
    /// without either.
    fn wait_ended(&mut self, wanted: usize) -> io::Result<()> {
        // The poll on the bell is no request of the queue, and may stay: this waits for the bell.
        let is_busy = self.in_flight > usize::from(self.listening);
        if wanted > 0 && self.came_back.is_empty() {
            // SAFETY: the ring keeps its descriptor open.
            let ring = unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) };
            let event = self.bell.event().expect("made with one");
            let mut both = [PollFd::new(&event, PollFlags::IN), PollFd::new(&ring, PollFlags::IN)];
            let _ = match is_busy {
                // A deferred completion wakes no poll: only this thread can post it, by a call.
                true => poll(&mut both, Some(&BETWEEN_TRIES)),
                // The ring may stay readable where each call is refused.
                false => poll(&mut both[..1], None),
            };
            self.hear();
        }
        if is_busy
            && let Err(error) = self.enter_once(0, 0)
            && !is_for_the_moment(&error)
        {
            // The kernel still has our memory.
            return Err(error);
        }
        self.collect();
        Ok(())
    }

    /// Collects completions. Returns their number, the bell included.
    fn collect(&mut self) -> usize {
        let mut rang = false;
        let mut came = 0;
        for entry in self.ring.completion() {
            came += 1;
            match entry.user_data() {
                BELL => rang = true,
                id => self.came_back.push_back((id, outcome(&entry))),
            }
        }
        self.in_flight -= came;
        if rang {
            self.listening = false;
            self.hear();
        }
        came
    }

    /// Resets the bell.
    fn hear(&self) {
        let _ = rustix::io::read(self.bell.event().expect("made with one"), &mut [0; 8]);
    }

    fn listen(&mut self) {
        if self.listening || self.ended {
            return;
        }
        self.make_room();
        if self.ended {
            return;
        }
        let event = types::Fd(self.bell.event().expect("made with one").as_raw_fd());
        let entry = opcode::PollAdd::new(event, libc::POLLIN as u32).build().user_data(BELL);
        self.submit(&entry);
        self.listening = true;
    }
}

impl Ring for Uring {
    fn attach(&mut self, file: RingFile<'_>, uses: Uses) -> Option<u32> {
        let descriptor = match file {
            RingFile::Descriptor(descriptor) => descriptor.as_raw_fd(),
            #[cfg(any(test, feature = "sim"))]
            RingFile::Simulated(_) => return None,
        };
        let place = self.files.vacant_entry();
        let number = place.key() as u32;
        let registered = self.registers_files
            && uses == Uses::Many
            && number < REGISTERED_MAX
            && self.ring.submitter().register_files_update(number, &[descriptor]).is_ok();
        place.insert(if registered {
            FileRef::Registered(number)
        } else {
            FileRef::Descriptor(descriptor)
        });
        Some(number)
    }

    fn detach(&mut self, file: u32) {
        if let FileRef::Registered(number) = self.files.remove(file as usize)
            && let Err(error) = self.ring.submitter().register_files_update(number, &[-1])
        {
            log::warn!("dioxide: a queue keeps a file open until it is dropped: {error}");
        }
    }

    fn is_usable(&self) -> bool {
        !self.ended
    }

    fn push(&mut self, file: u32, id: u64, io: Io) {
        self.make_room();
        if self.ended {
            return self.give_back(id);
        }
        let (file, flags) = match self.files[file as usize] {
            FileRef::Registered(number) => (types::Fd(number as RawFd), squeue::Flags::FIXED_FILE),
            FileRef::Descriptor(descriptor) => (types::Fd(descriptor), squeue::Flags::empty()),
        };
        let entry = match io {
            Io::Write { segments, offset, dsync } => self.write(file, segments, offset, dsync),
            Io::Read { into, offset } => self.read(file, into, offset),
            Io::Flush { all } => {
                let flags = match all {
                    true => types::FsyncFlags::empty(),
                    false => types::FsyncFlags::DATASYNC,
                };
                opcode::Fsync::new(file).flags(flags).build()
            }
        };
        self.submit(&entry.flags(flags).user_data(id));
    }

    fn enter(&mut self, wanted: usize) -> io::Result<()> {
        if wanted > 0 {
            self.listen();
        }
        // A call that made room in the queue may have collected the wanted completions.
        let wanted = wanted.saturating_sub(self.came_back.len());
        match self.lost.take() {
            Some(error) => Err(error),
            None if self.ended => self.wait_ended(wanted),
            None => self.cross(wanted),
        }
    }

    fn next(&mut self) -> Option<(u64, io::Result<u64>)> {
        self.came_back.pop_front()
    }
}

/// Sets up the newest kind of ring that the kernel has. Best is a single issuer with completions in
/// its own context (6.1). Next are completions without interrupts of the thread (5.19), then any
/// ring.
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

/// Registers the memory of the pool. Without that the ring works as well.
fn register(ring: &IoUring, pool: &Arc<Pool>) -> bool {
    let memory = pool.memory();
    // SAFETY: the ring holds a reference to the pool, and is dropped first.
    let result = unsafe { ring.submitter().register_buffers(Segment::as_iovecs(&[memory])) };
    if let Err(error) = &result {
        log::warn!(
            "dioxide: the kernel takes no buffers of {} bytes to keep: {error}",
            memory.len()
        );
    }
    result.is_ok()
}

/// Returns whether a retry may succeed: the kernel lacks memory, or room for completions.
fn is_for_the_moment(error: &io::Error) -> bool {
    let errno = error.raw_os_error();
    matches!(errno, None | Some(libc::EAGAIN | libc::EBUSY | libc::ENOMEM | libc::EINTR))
}

fn outcome(entry: &cqueue::Entry) -> io::Result<u64> {
    outcome_of(entry.result())
}

fn outcome_of(result: i32) -> io::Result<u64> {
    let errno = match -result {
        // The kernel cancels a request that waits for a worker when signals interrupt the start of
        // one again and again (`io_should_retry_thread`). It did not run. Nothing else cancels.
        libc::ECANCELED => libc::EINTR,
        errno => errno,
    };
    u64::try_from(result).map_err(|_| io::Error::from_raw_os_error(errno))
}

/// The length that one call may move. The rest makes it a short transfer.
fn transferable(segment: &Segment) -> u32 {
    segment.len().min(TRANSFER_MAX_BYTES) as u32
}

/// The same segments, with adjacent ones joined.
fn joined(segments: Segments) -> Segments {
    let mut joined = Segments::with_capacity(segments.len());
    for segment in segments {
        match joined.last_mut().and_then(|last: &mut Segment| Some((last.joined(&segment)?, last)))
        {
            Some((both, last)) => *last = both,
            None => joined.push(segment),
        }
    }
    joined
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::os::fd::{AsFd, OwnedFd};
    use std::sync::mpsc;
    use std::time::Duration;

    /// The timeout of a test.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// Runs a test with a ring in a thread of its own. None if the kernel has no ring.
    fn with_ring<R: Send + 'static>(
        act: impl FnOnce(&mut Uring, Arc<Bell>) -> R + Send + 'static,
    ) -> Option<R> {
        let (done, wait) = mpsc::channel();
        std::thread::spawn(move || {
            let result = Uring::new(8, None).ok().map(|(mut ring, bell)| act(&mut ring, bell));
            let _ = done.send(result);
        });
        wait.recv_timeout(PATIENCE).expect("it does not sleep for ever")
    }

    /// An entry that the kernel refuses at submission, so that the entries behind it need another
    /// call.
    fn refused() -> squeue::Entry {
        opcode::Nop::new().build().flags(squeue::Flags::BUFFER_SELECT)
    }

    fn push(ring: &mut Uring, id: u64, entry: squeue::Entry) {
        ring.make_room();
        ring.submit(&entry.user_data(id));
    }

    /// An append failed with ECANCELED in a storm of signals.
    #[test]
    fn a_request_that_got_no_worker_is_made_again() {
        let kind = |result| outcome_of(result).unwrap_err().kind();
        assert_eq!(kind(-libc::ECANCELED), io::ErrorKind::Interrupted);
        assert_eq!(kind(-libc::ENOSPC), io::ErrorKind::StorageFull);
        assert_eq!(outcome_of(4096).unwrap(), 4096);
    }

    /// The rest never completes by itself: the wait must not include it.
    #[test]
    fn what_came_back_before_a_partial_submission_went_on_is_not_waited_for_again() {
        let came = with_ring(|ring, bell| {
            push(ring, 1, opcode::Nop::new().build());
            push(ring, 2, refused());
            // Readable when the bell rings, and it does not ring.
            let event = types::Fd(bell.event().unwrap().as_fd().as_raw_fd());
            push(ring, 3, opcode::PollAdd::new(event, libc::POLLIN as u32).build());
            ring.cross(2).unwrap();
            assert_eq!((ring.in_flight, ring.unsubmitted.len()), (1, 0));
            std::iter::from_fn(|| ring.next().map(|(id, result)| (id, result.is_ok())))
                .collect::<Vec<_>>()
        });
        assert!(came.is_none_or(|came| came == [(1, true), (2, false)]));
    }

    /// The queue was full, so the ring submitted it before the bell was pushed.
    #[test]
    fn what_came_back_while_room_was_made_for_the_bell_is_not_waited_for_again() {
        let came = with_ring(|ring, _bell| {
            (0..8).for_each(|id| push(ring, id, opcode::Nop::new().build()));
            ring.enter(1).unwrap();
            std::iter::from_fn(|| ring.next()).count()
        });
        assert!(came.is_none_or(|came| came == 8));
    }

    #[test]
    fn a_ring_that_ended_gives_back_what_it_had_once_and_is_still_woken() {
        with_ring(|ring, bell| {
            push(ring, 1, opcode::Nop::new().build());
            ring.cross(1).unwrap();
            push(ring, 2, opcode::Nop::new().build());
            ring.end(&io::Error::from_raw_os_error(libc::ENOMEM));
            assert!(!ring.is_usable());
            let came: Vec<_> = std::iter::from_fn(|| ring.next()).collect();
            assert!(matches!(
                &came[..],
                [(1, Ok(0)), (2, Err(error))] if error.kind() == io::ErrorKind::Interrupted
            ));
            assert!(bell.may_sleep());
            let other = std::thread::spawn(move || bell.ring());
            ring.enter(1).unwrap();
            other.join().unwrap();
            assert!(ring.next().is_none(), "the entry was not submitted");
        });
    }

    /// Pushes and submits a request that completes when the event is written.
    fn wait_for(ring: &mut Uring, id: u64) -> OwnedFd {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let entry = opcode::PollAdd::new(types::Fd(event.as_raw_fd()), libc::POLLIN as u32);
        push(ring, id, entry.build());
        ring.cross(0).unwrap();
        event
    }

    fn fire(event: &OwnedFd) {
        rustix::io::write(event, &1u64.to_ne_bytes()).unwrap();
    }

    /// Makes the calls that submit at least `pushed_min` entries fail in this thread. Permanent.
    fn refuse_to_enter(pushed_min: u32, errno: i32) {
        let step = |code, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
        let mut steps = [
            step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
            step(libc::BPF_JMP | libc::BPF_JEQ, 0, 3, libc::SYS_io_uring_enter as u32),
            // `to_submit`: the second argument of `struct seccomp_data`.
            step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 16 + 8),
            step(libc::BPF_JMP | libc::BPF_JGE, 0, 1, pushed_min),
            step(libc::BPF_RET, 0, 0, libc::SECCOMP_RET_ERRNO | errno as u32),
            step(libc::BPF_RET, 0, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let filter = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
        rustix::thread::set_no_new_privs(true).unwrap();
        // SAFETY: the filter outlives the call, and only changes results of system calls in this
        // thread.
        let result =
            unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &filter) };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
    }

    /// The defect: the kernel wakes no poll for a completion that only the sleeping thread can
    /// post. The thread slept until its bell rang.
    #[test]
    fn a_ring_that_ended_is_woken_by_a_request_in_flight() {
        with_ring(|ring, _bell| {
            let event = wait_for(ring, 1);
            ring.end(&io::Error::from_raw_os_error(libc::ENOMEM));
            let other = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(50));
                fire(&event);
            });
            while ring.came_back.is_empty() {
                ring.enter(1).unwrap();
            }
            other.join().unwrap();
            assert!(matches!(ring.next(), Some((1, Ok(_)))));
        });
    }

    /// The defect: a refused submission runs no deferred completion, which keeps the ring readable.
    /// So the ring made all its attempts at once, and ended.
    #[test]
    fn a_refused_submission_collects_the_deferred_completions() {
        with_ring(|ring, _bell| {
            let event = wait_for(ring, 1);
            fire(&event);
            refuse_to_enter(1, libc::EAGAIN);
            push(ring, 2, opcode::Nop::new().build());
            ring.cross(0).unwrap();
            let came: Vec<_> = std::iter::from_fn(|| ring.next()).collect();
            assert!(matches!(&came[..], [(1, Ok(_)), (2, Err(_))]), "{came:?}");
        });
    }

    /// The defect: the poll on the bell counted as a request of the queue. So the process ended
    /// when a filter refused every call.
    #[test]
    fn a_ring_that_ended_sleeps_where_every_call_is_refused() {
        with_ring(|ring, bell| {
            ring.listen();
            ring.cross(0).unwrap();
            refuse_to_enter(0, libc::EPERM);
            push(ring, 1, opcode::Nop::new().build());
            ring.cross(0).unwrap();
            assert!(matches!(ring.next(), Some((1, Err(_)))));
            for _ in 0..3 {
                assert!(bell.may_sleep());
                let by_another = bell.clone();
                let other = std::thread::spawn(move || by_another.ring());
                ring.enter(1).unwrap();
                assert!(bell.has_rung(), "it slept until the bell rang");
                other.join().unwrap();
            }
        });
    }

    /// The defect: each sleep on an ended ring with a full submission queue made another call.
    #[test]
    fn an_ended_ring_makes_no_room_for_the_bell() {
        with_ring(|ring, _bell| {
            let event = wait_for(ring, 1);
            (2..10).for_each(|id| push(ring, id, opcode::Nop::new().build()));
            ring.end(&io::Error::from_raw_os_error(libc::ENOMEM));
            fire(&event);
            ring.listen();
            assert_eq!(ring.in_flight, 1, "no call collected the completion");
        });
    }
}
