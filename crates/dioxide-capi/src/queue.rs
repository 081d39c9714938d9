//! Many operations of one thread. The memory stays the program's, which leaves it alone until an operation is complete.

use crate::args::{bytes, bytes_mut, file_bytes, give_handle, shared, signed, take_handle};
use crate::error::{Failure, Result, answer, invalid, remember};
use crate::file::{dioxide_file, file_of};
use dioxide::{Completion, Full, Queue, QueueOptions};
use std::ffi::{c_int, c_void};
use std::thread::{self, ThreadId};

/// Plain calls, one at a time, even where there is io_uring: for tools that do not know io_uring, such as valgrind.
pub const DIOXIDE_QUEUE_PLAIN: u32 = 1;

/// Operations of one thread, many in flight at a time.
pub struct dioxide_queue {
    queue: Queue,
    /// Whose it is: nothing of it may be touched by another thread.
    owner: ThreadId,
}

/// A finished operation. It never gets more members.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct dioxide_completion {
    /// As it was given with the operation.
    pub user_data: u64,
    /// The offset of an append, the bytes that were written or read, 0 for a flush; or a negative errno, as the call of the same
    /// name returns it.
    pub result: i64,
}

/// The queue, for the thread that made it.
///
/// # Safety
///
/// It is NULL, or a queue that is not freed as long as it is used.
unsafe fn queue_of<'a>(queue: *const dioxide_queue) -> Result<&'a Queue> {
    // SAFETY: as the caller promises. The owner never changes, so any thread may look at it.
    let dioxide_queue { queue, owner } = unsafe { shared(queue, "queue")? };
    match *owner == thread::current().id() {
        true => Ok(queue),
        false => Err(Failure::Here(
            libc::EPERM,
            "the queue was made by another thread, and is that thread's alone".into(),
        )),
    }
}

impl From<Full> for Failure {
    fn from(full: Full) -> Self {
        Self::Here(libc::EAGAIN, full.to_string())
    }
}

/// Makes a queue for up to `depth` operations that are queued, in flight, or finished and not reaped. On io_uring where there is
/// one (Linux 5.6, at its best from 6.1 on), unless `flags` has DIOXIDE_QUEUE_PLAIN; elsewhere it makes plain calls, with the same
/// results.
///
/// A queue is of the thread that makes it, and refuses others. Free it before that thread ends: nobody else can, and whoever
/// waits for what it has in flight would wait for ever. A thread needs one only, for any number of files. Queues of other threads
/// and blocking calls may use the same files at the same time; they may wait for what this queue has in flight, so
/// come back to it (`dioxide_queue_submit`, `dioxide_queue_reap`) as long as that is so.
///
/// Memory that an operation was given is the library's until the operation was reaped or the queue freed: it must stay where it
/// is; what is written must not change, and what is read into must not be looked at. That holds as well when the file is
/// closed meanwhile.
///
/// # Return value
///
/// 0 with a queue in `*queue`, which `dioxide_queue_free` gives back; or a negative errno with NULL there.
///
/// # Errors
///
/// - EINVAL: `queue` is NULL, `depth` is 0, or `flags` are not known.
///
/// # Thread safety
///
/// Any thread, which owns it then. After a fork it is the parent's: operations of the child come back with EBADF.
///
/// # Safety
///
/// `queue` has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_queue_new(depth: u32, flags: u32, queue: *mut *mut dioxide_queue) -> c_int {
    answer("dioxide_queue_new", || {
        // SAFETY: as the caller promises.
        unsafe {
            give_handle(queue, "queue", || {
                if depth == 0 {
                    return Err(invalid("depth is 0"));
                }
                if flags & !DIOXIDE_QUEUE_PLAIN != 0 {
                    return Err(invalid(format!("flags are {flags:#x}: 0 or DIOXIDE_QUEUE_PLAIN")));
                }
                let mut options = QueueOptions::new();
                options.depth(depth as usize).io_uring(flags & DIOXIDE_QUEUE_PLAIN == 0);
                Ok(dioxide_queue { queue: options.open(), owner: thread::current().id() })
            })?;
        }
        Ok(0)
    })
}

/// Queues an append of `length` bytes of `data`, as `dioxide_append`. It begins when the queue is submitted or reaped. Appends of a
/// queue to one file stand there in the order in which they were queued.
///
/// # Return value
///
/// 0, and the operation is reaped later; or a negative errno, and it is not. What goes wrong with the operation itself comes
/// with its completion.
///
/// # Errors
///
/// - EAGAIN: the queue is full. Reap some.
/// - EPERM: another thread's queue.
/// - EINVAL: `queue` or `file` is NULL, or the memory is with a length above 0.
///
/// # Thread safety
///
/// The queue's thread only.
///
/// # Safety
///
/// `queue` and `file` are there; `data` has `length` bytes that nobody changes until the operation was reaped or the queue freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_queue_append(
    queue: *mut dioxide_queue,
    file: *mut dioxide_file,
    data: *const c_void,
    length: usize,
    user_data: u64,
) -> c_int {
    answer("dioxide_queue_append", || {
        // SAFETY: as the caller promises.
        unsafe {
            let (queue, file) = (queue_of(queue)?, file_of(file)?);
            queue.append_lent(file, bytes(data.cast(), length)?, user_data)?;
        }
        Ok(0)
    })
}

/// Queues a write of `length` bytes of `data` at `offset`, as `dioxide_pwrite`.
///
/// # Return value
///
/// As `dioxide_queue_append`.
///
/// # Errors
///
/// As `dioxide_queue_append`; also EINVAL for a negative `offset`. That it is not aligned comes with the completion.
///
/// # Thread safety
///
/// The queue's thread only.
///
/// # Safety
///
/// As `dioxide_queue_append`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_queue_pwrite(
    queue: *mut dioxide_queue,
    file: *mut dioxide_file,
    data: *const c_void,
    length: usize,
    offset: i64,
    user_data: u64,
) -> c_int {
    answer("dioxide_queue_pwrite", || {
        // SAFETY: as the caller promises.
        unsafe {
            let (queue, file) = (queue_of(queue)?, file_of(file)?);
            let (data, offset) = (bytes(data.cast(), length)?, file_bytes(offset, "offset")?);
            queue.write_lent_at(file, data, offset, user_data)?;
        }
        Ok(0)
    })
}

/// Queues a read of up to `length` bytes at `offset` into `into`, as `dioxide_pread`. One that is not aligned may take several
/// transfers, one after the other.
///
/// # Return value
///
/// As `dioxide_queue_append`.
///
/// # Errors
///
/// As `dioxide_queue_pwrite`.
///
/// # Thread safety
///
/// The queue's thread only.
///
/// # Safety
///
/// As `dioxide_queue_append`, and nobody reads `into` either.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_queue_pread(
    queue: *mut dioxide_queue,
    file: *mut dioxide_file,
    into: *mut c_void,
    length: usize,
    offset: i64,
    user_data: u64,
) -> c_int {
    answer("dioxide_queue_pread", || {
        // SAFETY: as the caller promises.
        unsafe {
            let (queue, file) = (queue_of(queue)?, file_of(file)?);
            let (into, offset) = (bytes_mut(into.cast(), length)?, file_bytes(offset, "offset")?);
            queue.read_lent_at(file, into, offset, user_data)?;
        }
        Ok(0)
    })
}

/// Queues a flush, as `dioxide_fdatasync`: it covers the writes that had finished when it was submitted, and none that are in flight
/// with it.
///
/// # Return value
///
/// As `dioxide_queue_append`.
///
/// # Errors
///
/// As `dioxide_queue_append`.
///
/// # Thread safety
///
/// The queue's thread only.
///
/// # Safety
///
/// `queue` and `file` are there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_queue_fdatasync(
    queue: *mut dioxide_queue,
    file: *mut dioxide_file,
    user_data: u64,
) -> c_int {
    answer("dioxide_queue_fdatasync", || {
        // SAFETY: as the caller promises.
        unsafe { queue_of(queue)?.sync_data(file_of(file)?, user_data)? };
        Ok(0)
    })
}

/// Begins all that is queued. Does not wait, unless without io_uring. What is submitted together goes out in few requests, and
/// shares flushes.
///
/// # Return value
///
/// 0, or a negative errno.
///
/// # Errors
///
/// - EPERM: another thread's queue.
/// - EINVAL: `queue` is NULL.
///
/// # Thread safety
///
/// The queue's thread only.
///
/// # Safety
///
/// `queue` is there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_queue_submit(queue: *mut dioxide_queue) -> c_int {
    answer("dioxide_queue_submit", || {
        // SAFETY: as the caller promises.
        unsafe { queue_of(queue)? }.submit();
        Ok(0)
    })
}

/// Begins all that is queued, waits until at least `least` operations have finished, or all there are if those are fewer, and
/// gives up to `room` of what has finished, oldest first. It sleeps while it waits; with a `least` of 0 it does not wait.
///
/// What holds when an operation is reaped is what holds when the call of the same name returns; its memory is the program's
/// again.
///
/// # Return value
///
/// How many completions were written to `completions`, 0 if nothing is outstanding; or a negative errno. If some of them have
/// failed, `dioxide_last_error` has the message of the last of those.
///
/// # Errors
///
/// - EPERM: another thread's queue.
/// - EINVAL: `queue` is NULL, `completions` is with a `room` above 0, or `room` is below `least` or above INT_MAX.
///
/// # Thread safety
///
/// The queue's thread only.
///
/// # Safety
///
/// `queue` is there; `completions` has room for as many as `room` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_queue_reap(
    queue: *mut dioxide_queue,
    completions: *mut dioxide_completion,
    room: u32,
    least: u32,
) -> c_int {
    answer("dioxide_queue_reap", || {
        // SAFETY: as the caller promises.
        let queue = unsafe { queue_of(queue)? };
        let room = c_int::try_from(room).map_err(|_| invalid(format!("room is {room}, above INT_MAX")))?;
        if i64::from(room) < least.into() {
            return Err(invalid(format!("room is {room}, for at least {least}")));
        }
        let room = room as usize;
        if completions.is_null() && room > 0 {
            return Err(invalid("completions is NULL"));
        }
        let mut given = 0;
        for done in queue.reap(least as usize).take(room) {
            // SAFETY: as the caller promises; nothing is read there.
            unsafe { completions.add(given).write(done.into()) };
            given += 1;
        }
        Ok(given as c_int)
    })
}

impl From<Completion> for dioxide_completion {
    /// The message of an error is kept for the thread.
    fn from(done: Completion) -> Self {
        let failed = |error| -i64::from(remember("", Failure::Library(error)));
        Self { user_data: done.tag, result: done.result.map_or_else(failed, signed) }
    }
}

/// How many operations are queued, in flight, or finished and not reaped.
///
/// # Return value
///
/// Their number, or a negative errno.
///
/// # Errors
///
/// - EPERM: another thread's queue.
/// - EINVAL: `queue` is NULL.
///
/// # Thread safety
///
/// The queue's thread only.
///
/// # Safety
///
/// `queue` is there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_queue_outstanding(queue: *mut dioxide_queue) -> i64 {
    answer("dioxide_queue_outstanding", || {
        // SAFETY: as the caller promises.
        Ok(signed(unsafe { queue_of(queue)? }.outstanding() as u64))
    })
}

/// Whether the queue works on io_uring.
///
/// # Return value
///
/// 1 or 0, or a negative errno.
///
/// # Errors
///
/// - EPERM: another thread's queue.
/// - EINVAL: `queue` is NULL.
///
/// # Thread safety
///
/// The queue's thread only.
///
/// # Safety
///
/// `queue` is there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_queue_uses_io_uring(queue: *mut dioxide_queue) -> c_int {
    answer("dioxide_queue_uses_io_uring", || {
        // SAFETY: as the caller promises.
        Ok(unsafe { queue_of(queue)? }.uses_io_uring().into())
    })
}

/// Waits until everything that was submitted is finished, and gives the queue up. What was only queued never happens. Memory that
/// operations were given is the program's again.
///
/// # Return value
///
/// 0, or a negative errno with the queue as it was.
///
/// # Errors
///
/// - EPERM: another thread's queue.
/// - EINVAL: `queue` is NULL.
///
/// # Thread safety
///
/// The queue's thread only.
///
/// # Safety
///
/// `queue` is there, and not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_queue_free(queue: *mut dioxide_queue) -> c_int {
    answer("dioxide_queue_free", || {
        // SAFETY: as the caller promises.
        unsafe {
            queue_of(queue)?;
            drop(take_handle(queue, "queue")?);
        }
        Ok(0)
    })
}
