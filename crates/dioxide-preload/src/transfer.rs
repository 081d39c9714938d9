//! Reads and writes of descriptors that are known: by the engine, or else by the kernel, which is
//! `kernel()` in all of these.

use crate::files::{self, Description, Taken, borrowed};
use crate::flushes::{Effect, How, RWF_DURABLE};
use crate::process::{self, Inside};
use crate::set_errno;
use crate::slots::{self, Slot, State};
use dioxide::{Buffer, ErrorKind, ledger};
use libc::{c_int, iovec};
use rustix::fs::SeekFrom;
use std::slice;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

/// The kernel moves no more than this in one call.
const CALL_MAX_BYTES: usize = 0x7fff_f000;

/// Flags of one read or write that change nothing here: RWF_HIPRI only says how to wait.
const RWF_IGNORED: c_int = libc::RWF_HIPRI;

/// Where to read or write.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// At the position of the descriptor, which moves.
    Position,
    /// At this offset.
    At(u64),
}

impl Place {
    /// Of calls that take an offset. Nothing if the kernel has to refuse it.
    pub fn at(offset: i64) -> Option<Self> {
        u64::try_from(offset).ok().map(Self::At)
    }
}

/// What the program's memory is, for a call with one piece of it.
pub fn piece(address: *const libc::c_void, len: usize) -> [iovec; 1] {
    [iovec { iov_base: address.cast_mut(), iov_len: len }]
}

/// The pieces that a program names.
///
/// # Safety
///
/// As for `readv`: there are `count` of them at `pieces`.
pub unsafe fn pieces<'a>(pieces: *const iovec, count: c_int) -> Option<&'a [iovec]> {
    let count = usize::try_from(count).ok().filter(|count| *count <= libc::UIO_MAXIOV as usize)?;
    // SAFETY: by the contract of this function.
    (count > 0 && !pieces.is_null()).then(|| unsafe { slice::from_raw_parts(pieces, count) })
}

/// Why the engine did not do it.
enum Instead {
    /// The program is told this errno.
    Errno(c_int),
    /// The kernel knows the answer, and it changes nothing.
    Kernel,
    /// From now on the kernel serves the file, beginning with this call.
    HandBack(&'static str),
    /// The kernel has done it, with so many bytes, and serves the file from now on.
    Done(usize, &'static str),
}

impl From<dioxide::Error> for Instead {
    fn from(error: dioxide::Error) -> Self {
        match error.kind() {
            // Another write of the same request may have had the bad address.
            ErrorKind::Os(libc::EFAULT) => Self::HandBack("a write had a bad address"),
            // The program opened it O_WRONLY, and so did the engine.
            ErrorKind::Os(libc::EBADF) => Self::HandBack("the engine must read it"),
            // It may be another part of the request that the kernel does not take.
            ErrorKind::Os(libc::EINVAL) => {
                Self::HandBack("the kernel refused a request of the engine")
            }
            ErrorKind::Os(errno) => Self::Errno(*errno),
            ErrorKind::NoSpace(_) => Self::HandBack("there was no space"),
            ErrorKind::AppendEnded(_) => Self::HandBack("an earlier write failed"),
            ErrorKind::ModifiedExternally(_) => Self::HandBack("another program changed it"),
            ErrorKind::Misaligned { .. } | ErrorKind::Unsupported(_) => {
                Self::HandBack("the engine cannot write so")
            }
            // A flush failed: what the kernel says from now on is not true.
            _ => Self::Errno(libc::EIO),
        }
    }
}

type Outcome = Result<usize, Instead>;

/// Whether a write that begins beside another one is a reason to take the file over.
type Gains<'a> = &'a dyn Fn(&Description) -> bool;

/// Serves one call: by `engine` if the file is taken, by `kernel` otherwise. While it is watched,
/// the kernel's transfers are counted, and nobody takes it over before they end; no lock is held,
/// since a signal handler may do anything meanwhile.
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
    process::cancel_here();
    let mut was_tried = false;
    let how = loop {
        let inside = Inside::begin();
        let state = slot.read();
        let mut done = None;
        let (inode, instead) = match &*state {
            State::Empty | State::Engine => {
                // In there no call of the program is looked at.
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
        // A file's O_DSYNC acts on the engine as well, so overwrites have no flush to share.
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
            if is_aligned(taken, data, len, offset) {
                return with_one_piece(data, len, |bytes| Ok(file.write_at(bytes, offset)?))
                    .map(|()| len);
            }
            let how = How::of_known(fd, description, Effect::Write(flags));
            write_misaligned(taken, len, offset, || how.perform(&kernel))
        };
        match (append, place) {
            _ if len == 0 => {}
            (true, _) => {
                let truncations = description.inode.truncations.load(Ordering::Acquire);
                // XFS looks at an offset that means nothing, ext4 does not.
                let given = if let Place::At(offset) = place { offset } else { 0 };
                if ![taken.len(), given]
                    .into_iter()
                    .all(|offset| is_aligned(taken, data, len, offset))
                {
                    return Err(Instead::HandBack("an append was not aligned"));
                }
                let offset = with_one_piece(data, len, |bytes| Ok(file.append(bytes)?))?;
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

/// A signal handler has interrupted the engine in this thread, and writes to a file with O_APPEND.
/// Its write is the kernel's, whose description has lost the flag while the file is taken: so the
/// write has it.
#[cold]
fn append_past_the_engine(fd: c_int, data: &[iovec], place: Place, flags: c_int) -> isize {
    let offset = if let Place::At(offset) = place { offset as i64 } else { -1 };
    // SAFETY: the pieces are the program's. By number, since the function of libc is this library's
    // own.
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
            // The kernel looks at the end first.
            let left = taken.len().saturating_sub(offset);
            if left == 0 {
                return Ok(0);
            }
            if !is_aligned(taken, into, len, offset) {
                // It may read what was only grown.
                let read = answered(kernel())? as u64;
                return Ok(read.min(left).min(taken.len().saturating_sub(offset)) as usize);
            }
            let mut done = 0;
            for piece in into.iter().filter(|piece| piece.iov_len > 0) {
                // SAFETY: the program gives this memory to be filled, and waits.
                let bytes = unsafe {
                    slice::from_raw_parts_mut(piece.iov_base.cast::<u8>(), piece.iov_len)
                };
                let wanted = bytes.len().min(CALL_MAX_BYTES - done);
                let read = taken.plain.read_at(&mut bytes[..wanted], offset + done as u64)?;
                done += read;
                if read < piece.iov_len {
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

/// Makes stable what was written, as `fdatasync`.
pub fn sync_data(fd: c_int, kernel: impl Fn() -> c_int) -> c_int {
    // A flush of the kernel's may take long, and covers what was written whoever has the file
    // meanwhile.
    if !slots::find(fd).is_some_and(Slot::is_taken) {
        return sync_by_kernel(fd, kernel);
    }
    if failed_before(fd) {
        return -1;
    }
    let engine = |_: &Description, taken: &Taken| Ok(taken.plain.sync_data().map(|()| 0)?);
    serve(fd, Effect::Flush, None, engine, || kernel() as isize) as c_int
}

/// The same, by the kernel, whether the engine has the file or not.
pub fn sync_by_kernel(fd: c_int, kernel: impl Fn() -> c_int) -> c_int {
    if failed_before(fd) {
        return -1;
    }
    if slots::find(fd).is_some() && !process::is_inside() && !process::is_elsewhere() {
        process::cancel_here();
    }
    How::of(fd, Effect::Flush).perform(|| kernel() as isize) as c_int
}

/// Whether the engine has failed to put the file away; the program is told so once, by `errno`.
pub fn failed_before(fd: c_int) -> bool {
    let Some(slot) = slots::find(fd) else { return false };
    // A handler may have interrupted the engine in this thread, and another thread may wait to
    // change the slot.
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

/// Sets the length.
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

/// Moves the position.
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
        match whence {
            libc::SEEK_END => match (len as i64).checked_add(offset).map(u64::try_from) {
                Some(Ok(place)) => set(place),
                Some(Err(_)) => Err(Instead::Errno(libc::EINVAL)),
                None => Err(Instead::Errno(libc::EOVERFLOW)),
            },
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
                    // What was only grown is a hole or data, as the file system likes.
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

/// The bytes of all pieces; nothing if the kernel has to refuse them.
fn total(pieces: &[iovec]) -> Option<usize> {
    let total = pieces.iter().try_fold(0_usize, |sum, piece| sum.checked_add(piece.iov_len))?;
    isize::try_from(total).is_ok().then_some(total)
}

/// Whether a write goes beyond the end that the kernel knows.
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

/// Whether the engine can transfer so. If not, the kernel decides: what it reports of the alignment
/// of a file (`statx`) is not all that it takes. XFS reports its blocks for a reflinked file, and
/// takes sectors, through its cache where it must; btrfs takes everything. So the library makes up
/// no EINVAL.
fn is_aligned(taken: &Taken, pieces: &[iovec], len: usize, offset: u64) -> bool {
    let alignment = taken.plain.alignment();
    let in_memory = |piece: &iovec| {
        (piece.iov_base as u64 | piece.iov_len as u64).is_multiple_of(alignment.memory)
    };
    (offset | len as u64).is_multiple_of(alignment.offset) && pieces.iter().all(in_memory)
}

/// An overwrite is the kernel's at once: if it is refused, as most often, the engine keeps the
/// file. One that the kernel takes may be in its cache, of which the engine knows nothing, so the
/// file is handed back. Elsewhere the kernel would find the end of what was grown, or the last
/// block, which the engine may be writing: the file is handed back before.
fn write_misaligned(
    taken: &Taken,
    len: usize,
    offset: u64,
    kernel: impl FnOnce() -> isize,
) -> Outcome {
    const WHY: &str = "a write was not aligned";
    let full_blocks = taken.len() / taken.plain.alignment().append * taken.plain.alignment().append;
    if offset.saturating_add(len as u64) > full_blocks {
        return Err(Instead::HandBack(WHY));
    }
    Err(Instead::Done(answered(kernel())?, WHY))
}

/// What a call of the kernel returned.
fn answered(returned: isize) -> Outcome {
    usize::try_from(returned).map_err(|_| {
        Instead::Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL))
    })
}

/// Several pieces are put together, so that they go out as one write.
fn with_one_piece<T>(
    pieces: &[iovec],
    len: usize,
    write: impl FnOnce(&[u8]) -> Result<T, Instead>,
) -> Result<T, Instead> {
    // SAFETY: the program gives this memory to be written, and waits.
    let bytes = |piece: &iovec| unsafe {
        slice::from_raw_parts(piece.iov_base.cast::<u8>(), piece.iov_len)
    };
    let mut filled = pieces.iter().filter(|piece| piece.iov_len > 0);
    if let (Some(piece), None) = (filled.next(), filled.next()) {
        return write(bytes(piece));
    }
    let mut together = Buffer::zeroed(len);
    let mut end = 0;
    for piece in pieces.iter().filter(|piece| piece.iov_len > 0) {
        together[end..end + piece.iov_len].copy_from_slice(bytes(piece));
        end += piece.iov_len;
    }
    write(&together)
}

fn position(fd: c_int) -> Result<u64, Instead> {
    rustix::fs::tell(borrowed(fd)).map_err(|errno| Instead::Errno(errno.raw_os_error()))
}

/// Reads or writes at the position, and moves it: nobody else uses it meanwhile, as in the kernel.
fn at_position(fd: c_int, description: &Description, transfer: impl Fn(u64) -> Outcome) -> Outcome {
    let mut last_append = description.position.lock().unwrap_or_else(PoisonError::into_inner);
    *last_append = (0, 0);
    let start = position(fd)?;
    // A transfer that is an error here moves nothing, or the kernel has done it and moved the
    // position.
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
