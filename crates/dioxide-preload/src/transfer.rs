//! Reads, writes, syncs and seeks of known descriptors, by the engine or by the kernel. In all
//! functions `kernel()` is the kernel's call.

use crate::files::{self, Description, Taken, borrowed};
use crate::flushes::{Effect, How, RWF_DURABLE};
use crate::memory::{self, NotCopied};
use crate::process::{self, Inside};
use crate::set_errno;
use crate::slots::{self, Slot, State};
use dioxide::{ErrorKind, ledger};
use libc::{c_int, iovec};
use rustix::fs::SeekFrom;
use std::slice;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

/// The kernel transfers at most so much in one call.
const CALL_MAX_BYTES: usize = 0x7fff_f000;

/// Flags of a read or write that the engine ignores. RWF_HIPRI only selects polling.
const RWF_IGNORED: c_int = libc::RWF_HIPRI;

/// The offset of a read or write.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The position of the description, which moves.
    Position,
    /// This offset.
    At(u64),
}

impl Place {
    /// For calls with an offset. None if the kernel must refuse it.
    pub fn at(offset: i64) -> Option<Self> {
        u64::try_from(offset).ok().map(Self::At)
    }
}

/// Returns a call's one segment.
pub fn piece(address: *const libc::c_void, len: usize) -> [iovec; 1] {
    [iovec { iov_base: address.cast_mut(), iov_len: len }]
}

/// Returns the segments of a call. None if the kernel must refuse them.
///
/// # Safety
///
/// As for `readv`: `pieces` points to `count` segments.
pub unsafe fn pieces<'a>(pieces: *const iovec, count: c_int) -> Option<&'a [iovec]> {
    let count = usize::try_from(count).ok().filter(|count| *count <= libc::UIO_MAXIOV as usize)?;
    // SAFETY: by the contract of this function.
    (count > 0 && !pieces.is_null()).then(|| unsafe { slice::from_raw_parts(pieces, count) })
}

/// Why the engine has not performed the call.
enum Instead {
    /// The call fails with this errno.
    Errno(c_int),
    /// The kernel performs the call, which has no effect on the engine.
    Kernel,
    /// The kernel serves the file from now on, beginning with this call.
    HandBack(&'static str),
    /// The kernel has transferred so many bytes, and serves the file from now on.
    Done(usize, &'static str),
}

impl From<dioxide::Error> for Instead {
    fn from(error: dioxide::Error) -> Self {
        match error.kind() {
            // The bad address may be that of another write of the same request.
            ErrorKind::Os(libc::EFAULT) => Self::HandBack("a transfer had a bad address"),
            // The program opened the file O_WRONLY, so the engine cannot read it.
            ErrorKind::Os(libc::EBADF) => Self::HandBack("the engine must read it"),
            // The kernel may have refused another part of the request.
            ErrorKind::Os(libc::EINVAL) => {
                Self::HandBack("the kernel refused a request of the engine")
            }
            ErrorKind::Os(errno) => Self::Errno(*errno),
            ErrorKind::NoSpace(_) => Self::HandBack("there was no space"),
            ErrorKind::AppendEnded(_) => Self::HandBack("an earlier write failed"),
            ErrorKind::ModifiedExternally(_) => Self::HandBack("another program changed it"),
            ErrorKind::Unsupported(_) => Self::HandBack("the engine cannot write so"),
            // After a failed flush, the kernel's later results are not reliable.
            _ => Self::Errno(libc::EIO),
        }
    }
}

impl From<NotCopied> for Instead {
    fn from(why: NotCopied) -> Self {
        Self::HandBack(match why {
            NotCopied::BadAddress => "a transfer had a bad address",
            NotCopied::NoMemory => "there was no memory",
        })
    }
}

type Outcome = Result<usize, Instead>;

/// Whether a write beside another one is a reason for a take-over.
type Gains<'a> = &'a dyn Fn(&Description) -> bool;

/// Serves one call: by `engine` if the file is taken, by `kernel` otherwise. A watched file counts
/// the kernel's transfers, and a take-over waits for them. They hold no lock, since a signal
/// handler may do anything meanwhile.
fn serve(
    fd: c_int,
    effect: Effect,
    write: Option<Gains<'_>>,
    engine: impl Fn(&Description, &Taken) -> Outcome,
    kernel: impl Fn() -> isize,
) -> isize {
    let Some(slot) = slots::find(fd) else { return How::of_unknown(fd, effect).perform(kernel) };
    if process::is_inside() || process::is_elsewhere() {
        return kernel();
    }
    if slot.is_lost() {
        files::forget_lost(fd);
    }
    process::cancel_here();
    let mut was_tried = false;
    let how = loop {
        let inside = Inside::begin();
        let state = slot.read();
        let mut done = None;
        let (inode, instead) = match &*state {
            State::Empty | State::Engine => {
                // `perform` comes after the drop: inside, the library ignores a call.
                drop((state, inside));
                break How::of_unknown(fd, effect);
            }
            State::Watched(description) if description.inode.is_kernel_only() => {
                break How::of_known(fd, description, effect);
            }
            State::Watched(description) => {
                let (_counted, beside) = description.inode.count(write.is_some());
                let gains = || write.is_some_and(|gains| gains(description));
                if was_tried || !(beside && gains()) {
                    let how = How::of_known(fd, description, effect);
                    drop((state, inside));
                    return how.perform(kernel);
                }
                (description.inode.clone(), None)
            }
            State::Taken(description, taken) => {
                match process::uncancelled(|| engine(description, taken)) {
                    Ok(done) => return done as isize,
                    Err(Instead::Errno(errno)) => {
                        set_errno(errno);
                        return -1;
                    }
                    Err(Instead::Kernel) => return kernel(),
                    Err(Instead::HandBack(why)) => (description.inode.clone(), Some(why)),
                    Err(Instead::Done(bytes, why)) => {
                        done = Some(bytes);
                        (description.inode.clone(), Some(why))
                    }
                }
            }
        };
        drop((state, inside));
        match instead {
            None => {
                files::take_over(&inode);
                was_tried = true;
            }
            Some(why) => files::hand_back(&inode, why),
        }
        if let Some(bytes) = done {
            return bytes as isize;
        }
    };
    how.perform(kernel)
}

/// Writes `data`, with the flags of `pwritev2`.
#[inline(always)]
pub fn write(
    fd: c_int,
    data: &[iovec],
    place: Place,
    flags: c_int,
    kernel: impl Fn() -> isize,
) -> isize {
    match slots::find(fd) {
        None if !ledger::any_was_wedged() => kernel(),
        _ => write_known(fd, data, place, flags, kernel),
    }
}

#[inline(never)]
fn write_known(
    fd: c_int,
    data: &[iovec],
    place: Place,
    flags: c_int,
    kernel: impl Fn() -> isize,
) -> isize {
    if process::is_inside() && slots::find(fd).is_some_and(Slot::hides_append) {
        return append_past_the_engine(fd, data, place, flags);
    }
    let is_durable = |description: &Description| description.durable || flags & RWF_DURABLE != 0;
    let gains = |description: &Description| {
        // The engine writes by the file's O_DSYNC too, so overwrites have no flush to share.
        let shares =
            flags & RWF_DURABLE != 0 || description.durable && description.inode.is_device();
        description.writes && (shares || extends(fd, description, place, total(data).unwrap_or(0)))
    };
    let engine = |description: &Description, taken: &Taken| {
        let Some(len) = total(data).filter(|_| description.writes) else {
            return Err(Instead::Kernel);
        };
        let append = description.append.load(Ordering::Relaxed) || flags & libc::RWF_APPEND != 0;
        if flags & !(RWF_DURABLE | libc::RWF_APPEND | RWF_IGNORED) != 0 {
            return Err(Instead::HandBack("a write had flags that only the kernel knows"));
        }
        if len > CALL_MAX_BYTES {
            return Err(Instead::HandBack("a write was longer than 2 GiB"));
        }
        if append && description.inode.is_device() {
            return Err(Instead::HandBack("a device was opened with O_APPEND"));
        }
        let file = taken.handle(is_durable(description));
        let put = |offset: u64| {
            if taken.accepted.includes(data, offset) {
                let write = |bytes: &[u8]| Ok::<_, Instead>(file.write_at(bytes, offset)?);
                return memory::lend(data, len, offset, taken.accepted, write).map(|()| len);
            }
            let how = How::of_known(fd, description, Effect::Write(flags));
            write_misaligned(taken, len, offset, || how.perform(&kernel))
        };
        match (append, place) {
            _ if len == 0 => {}
            (true, _) => {
                let truncations = description.inode.truncations.load(Ordering::Acquire);
                // XFS checks the alignment of the offset that an append ignores, ext4 does not.
                let given = if let Place::At(offset) = place { offset } else { 0 };
                let end = taken.len();
                if ![end, given].iter().all(|at| taken.accepted.includes(data, *at)) {
                    return Err(Instead::HandBack("an append was not aligned"));
                }
                let append = |bytes: &[u8]| Ok::<_, Instead>(file.append(bytes)?);
                let offset = memory::lend(data, len, end, taken.accepted, append)?;
                if place == Place::Position {
                    appended(fd, description, offset + len as u64, truncations)?;
                }
            }
            (false, Place::At(offset)) => return put(offset),
            (false, Place::Position) => return at_position(fd, description, put),
        }
        Ok(len)
    };
    serve(fd, Effect::Write(flags), Some(&gains), engine, &kernel)
}

/// Appends by the kernel, in a signal handler that interrupted the engine. While the file is taken,
/// the kernel's description lacks O_APPEND, so the write has RWF_APPEND.
#[cold]
fn append_past_the_engine(fd: c_int, data: &[iovec], place: Place, flags: c_int) -> isize {
    let offset = if let Place::At(offset) = place { offset as i64 } else { -1 };
    // SAFETY: the segments are the program's. The call is by number, since this library interposes
    // `pwritev2`.
    let written = unsafe {
        let (at, count) = (data.as_ptr(), data.len());
        libc::syscall(libc::SYS_pwritev2, fd, at, count, offset, 0_i64, flags | libc::RWF_APPEND)
    };
    written as isize
}

/// Reads into `into`, with the flags of `preadv2`.
#[inline(always)]
pub fn read(
    fd: c_int,
    into: &[iovec],
    place: Place,
    flags: c_int,
    kernel: impl Fn() -> isize,
) -> isize {
    if slots::find(fd).is_none() { kernel() } else { read_known(fd, into, place, flags, kernel) }
}

#[inline(never)]
fn read_known(
    fd: c_int,
    into: &[iovec],
    place: Place,
    flags: c_int,
    kernel: impl Fn() -> isize,
) -> isize {
    let engine = |description: &Description, taken: &Taken| {
        let Some(len) = total(into).filter(|_| description.reads) else {
            return Err(Instead::Kernel);
        };
        if flags & !RWF_IGNORED != 0 {
            return Err(Instead::HandBack("a read had flags that only the kernel knows"));
        }
        let get = |offset: u64| {
            // As the kernel: EOF comes before the alignment.
            let left = taken.len().saturating_sub(offset);
            if left == 0 {
                return Ok(0);
            }
            if !taken.accepted.includes(into, offset) {
                // The kernel may read grown space.
                let read = answered(kernel())? as u64;
                return Ok(read.min(left).min(taken.len().saturating_sub(offset)) as usize);
            }
            let mut done = 0;
            for piece in into.iter().filter(|piece| piece.iov_len > 0) {
                let wanted = piece.iov_len.min(CALL_MAX_BYTES - done);
                let piece = iovec { iov_len: wanted, ..*piece };
                let at = offset + done as u64;
                let read = memory::fill(&piece, at, taken.accepted, |bytes, at| {
                    Ok::<_, Instead>(taken.plain.read_at(bytes, at)?)
                })?;
                done += read;
                if read < wanted {
                    break;
                }
            }
            Ok(done)
        };
        match place {
            _ if len == 0 => Ok(0),
            Place::At(offset) => get(offset),
            Place::Position => at_position(fd, description, get),
        }
    };
    serve(fd, Effect::None, None, engine, &kernel)
}

/// Performs `fdatasync`, by the engine if the file is taken.
pub fn sync_data(fd: c_int, kernel: impl Fn() -> c_int) -> c_int {
    // Without the slot's lock: the kernel's flush may take long, and covers the earlier writes even
    // if a take-over begins.
    if !slots::find(fd).is_some_and(Slot::is_taken) {
        return sync_by_kernel(fd, kernel);
    }
    if failed_before(fd) {
        return -1;
    }
    let engine = |_: &Description, taken: &Taken| Ok(taken.plain.sync_data().map(|()| 0)?);
    serve(fd, Effect::Flush, None, engine, || kernel() as isize) as c_int
}

/// Performs a sync by the kernel, also of a taken file.
pub fn sync_by_kernel(fd: c_int, kernel: impl Fn() -> c_int) -> c_int {
    if failed_before(fd) {
        return -1;
    }
    if slots::find(fd).is_some() && !process::is_inside() && !process::is_elsewhere() {
        process::cancel_here();
    }
    How::of(fd, Effect::Flush).perform(|| kernel() as isize) as c_int
}

/// Whether the engine has failed to close the file exactly. Sets `errno` to EIO, once per failure.
pub fn failed_before(fd: c_int) -> bool {
    files::forget_lost(fd);
    let Some(slot) = slots::find(fd) else { return false };
    // In a signal handler the slot's lock could block: the interrupted engine may hold it, and
    // another thread may wait for it.
    if process::is_inside() || process::is_elsewhere() {
        return false;
    }
    let _inside = Inside::begin();
    let failed =
        slot.read().description().is_some_and(|description| description.inode.take_failure());
    if failed {
        set_errno(libc::EIO);
    }
    failed
}

/// Performs `ftruncate`.
pub fn set_len(fd: c_int, len: i64, kernel: impl Fn() -> c_int) -> c_int {
    let engine = |description: &Description, taken: &Taken| match u64::try_from(len) {
        Ok(len) if description.writes && !description.inode.is_device() => {
            description.inode.truncations.fetch_add(1, Ordering::AcqRel);
            let set = taken.plain.set_len(len).map(|()| 0);
            set.map_err(|_| Instead::HandBack("its length could not be set"))
        }
        _ => Err(Instead::Kernel),
    };
    serve(fd, Effect::None, None, engine, || kernel() as isize) as c_int
}

/// Performs `lseek`.
pub fn seek(fd: c_int, offset: i64, whence: c_int, kernel: impl Fn() -> i64) -> i64 {
    let engine = |description: &Description, taken: &Taken| {
        if description.inode.is_device() {
            return Err(Instead::Kernel);
        }
        let mut last_append = description.position.lock().unwrap_or_else(PoisonError::into_inner);
        *last_append = (0, 0);
        let len = taken.len();
        let set = |place: u64| match rustix::fs::seek(borrowed(fd), SeekFrom::Start(place)) {
            Ok(place) => Ok(place as usize),
            Err(errno) => Err(Instead::Errno(errno.raw_os_error())),
        };
        // The kernel's sum wraps to a negative number.
        let set_from = |base: u64| match (base as i64).checked_add(offset).map(u64::try_from) {
            Some(Ok(place)) => set(place),
            _ => Err(Instead::Errno(libc::EINVAL)),
        };
        match whence {
            libc::SEEK_SET => set_from(0),
            libc::SEEK_CUR => set_from(position(fd)?),
            libc::SEEK_END => set_from(len),
            libc::SEEK_DATA | libc::SEEK_HOLE => {
                let from = u64::try_from(offset)
                    .ok()
                    .filter(|from| *from < len)
                    .ok_or(Instead::Errno(libc::ENXIO))?;
                let before = position(fd)?;
                let found = match whence {
                    libc::SEEK_DATA => rustix::fs::seek(borrowed(fd), SeekFrom::Data(from)),
                    _ => rustix::fs::seek(borrowed(fd), SeekFrom::Hole(from)),
                };
                match found {
                    Ok(found) if found < len => Ok(found as usize),
                    // Grown space is a hole or data, depending on the file system.
                    Ok(_) if whence == libc::SEEK_HOLE => set(len),
                    Ok(_) => set(before).and(Err(Instead::Errno(libc::ENXIO))),
                    Err(errno) => Err(Instead::Errno(errno.raw_os_error())),
                }
            }
            _ => Err(Instead::Kernel),
        }
    };
    serve(fd, Effect::None, None, engine, || kernel() as isize) as i64
}

/// Returns the bytes of all segments. None if the kernel must refuse them.
fn total(pieces: &[iovec]) -> Option<usize> {
    let total = pieces.iter().try_fold(0_usize, |sum, piece| sum.checked_add(piece.iov_len))?;
    isize::try_from(total).is_ok().then_some(total)
}

/// Whether a write ends above the kernel's EOF.
fn extends(fd: c_int, description: &Description, place: Place, len: usize) -> bool {
    if description.inode.is_device() {
        return false;
    }
    let start = match place {
        _ if description.append.load(Ordering::Relaxed) => return true,
        Place::At(offset) => offset,
        Place::Position => rustix::fs::tell(borrowed(fd)).unwrap_or(0),
    };
    description.inode.ends_below(fd, start.saturating_add(len as u64))
}

/// A write that the kernel may refuse. It performs an overwrite below the last block at once. Most
/// often it refuses, and the engine keeps the file. An accepted overwrite may be in the page cache,
/// which the engine does not see, so the hand-back follows. The hand-back comes first
///
/// - at or above the last block: the kernel would see the grown EOF, and the engine may be writing
///   that block;
/// - where the engine writes parts of blocks: it may be writing the rest of the same block, as it
///   was before.
fn write_misaligned(
    taken: &Taken,
    len: usize,
    offset: u64,
    kernel: impl FnOnce() -> isize,
) -> Outcome {
    const WHY: &str = "a write was not aligned";
    let full_blocks = taken.len() / taken.plain.alignment().append * taken.plain.alignment().append;
    if taken.accepted.has_parts() || offset.saturating_add(len as u64) > full_blocks {
        return Err(Instead::HandBack(WHY));
    }
    Err(Instead::Done(answered(kernel())?, WHY))
}

/// Converts the return value of a kernel call.
fn answered(returned: isize) -> Outcome {
    usize::try_from(returned).map_err(|_| {
        Instead::Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL))
    })
}

fn position(fd: c_int) -> Result<u64, Instead> {
    rustix::fs::tell(borrowed(fd)).map_err(|errno| Instead::Errno(errno.raw_os_error()))
}

/// Reads or writes at the position, and moves it. Locks the position meanwhile, as the kernel does.
fn at_position(fd: c_int, description: &Description, transfer: impl Fn(u64) -> Outcome) -> Outcome {
    let mut last_append = description.position.lock().unwrap_or_else(PoisonError::into_inner);
    *last_append = (0, 0);
    let start = position(fd)?;
    // At an error the position stays, or the kernel has performed the call and moved it.
    let done = transfer(start)?;
    let moved = rustix::fs::seek(borrowed(fd), SeekFrom::Start(start + done as u64));
    moved.map(|_| done).map_err(|errno| Instead::Errno(errno.raw_os_error()))
}

/// Moves the position behind an append, or behind the last of several at the same time.
/// `truncations` is the count before the append.
fn appended(
    fd: c_int,
    description: &Description,
    end: u64,
    truncations: u64,
) -> Result<(), Instead> {
    let mut last_append = description.position.lock().unwrap_or_else(PoisonError::into_inner);
    let (last_end, last_truncations) = *last_append;
    if last_truncations < truncations || end > last_end {
        *last_append = (end, truncations);
        let moved = rustix::fs::seek(borrowed(fd), SeekFrom::Start(end));
        moved.map_err(|errno| Instead::Errno(errno.raw_os_error()))?;
    }
    Ok(())
}
