//! Many operations of one thread. Buffers belong to the program, which must not use them until an
//! operation is complete.

use crate::args::{bytes, bytes_mut, file_bytes, give_handle, shared, signed, take_handle};
use crate::error::{Failure, Result, answer, invalid, remember};
use crate::file::{dioxide_file, file_of};
use dioxide::{Completion, Full, Queue, QueueOptions};
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Use plain calls, one at a time, even with io_uring available: for tools that do not support
/// io_uring, such as valgrind.
pub const DIOXIDE_QUEUE_PLAIN: u32 = 1;

/// Operations of one thread, many in flight at a time.
pub struct dioxide_queue {
    queue: Queue,
    /// Only this thread may access the queue.
    owner: u64,
}

/// A finished operation. It never gets more members.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct dioxide_completion {
    /// The value given with the operation.
    pub user_data: u64,
    /// The result of the call of the same name. It is the offset of an append, the bytes written or
    /// read, 0 for a flush; or a negative errno.
    pub result: i64,
}

/// A number of the calling thread, that no other thread has or had. Not `thread::current().id()`,
/// which panics in late destructors of thread-specific data.
fn own_thread() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    thread_local!(static OWN: Cell<u64> = const { Cell::new(0) });
    if OWN.get() == 0 {
        OWN.set(LAST.fetch_add(1, Relaxed) + 1);
    }
    OWN.get()
}

/// The queue, for the thread that made it.
///
/// # Safety
///
/// It is NULL, or a queue that is not freed while it is used.
unsafe fn queue_of<'a>(queue: *const dioxide_queue) -> Result<&'a Queue> {
    // SAFETY: as the caller promises. The owner never changes, so any thread may read it.
    let dioxide_queue { queue, owner } = unsafe { shared(queue, "queue")? };
    match *owner == own_thread() {
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

/// Makes a queue for up to `depth` operations that are queued, in flight, or finished and not
/// reaped. It uses io_uring if available (Linux 5.6, best from 6.1 on), unless `flags` has
/// DIOXIDE_QUEUE_PLAIN. Otherwise it makes plain calls, with the same results.
///
/// A queue belongs to the thread that makes it, and refuses others. Free it before that thread
/// ends, because no other thread can. Otherwise callers that wait for its operations in flight wait
/// for ever.
///
/// A thread needs only one queue, for any number of files. Queues of other threads and blocking
/// calls may use the same files at the same time. They may wait for operations in flight of this
/// queue, so call `dioxide_queue_submit` or `dioxide_queue_reap` regularly until those are reaped.
///
/// The library uses the memory of an operation until the operation is reaped or the queue freed.
/// Until then the memory must stay in place. Data to write must not change, and memory to read into
/// must not be read. That also applies when the file is closed meanwhile.
///
/// # Return value
///
/// 0 with a queue in `*queue`, to be freed by `dioxide_queue_free`; or a negative errno with NULL
/// there.
///
/// # Errors
///
/// - EINVAL: `queue` is NULL, `depth` is 0, or `flags` are not known.
///
/// # Thread safety
///
/// Any thread, which then owns it. After a fork it belongs to the parent: operations of the child
/// complete with EBADF.
///
/// # Safety
///
/// `queue` has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_queue_new(
    depth: u32,
    flags: u32,
    queue: *mut *mut dioxide_queue,
) -> c_int {
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
                Ok(dioxide_queue { queue: options.open(), owner: own_thread() })
            })?;
        }
        Ok(0)
    })
}

/// Queues an append of `length` bytes of `data`, as `dioxide_append`. It begins when the queue is
/// submitted or reaped. Appends of a queue to one file keep their order in the file.
///
/// # Return value
///
/// 0, and the operation is reaped later; or a negative errno, and it is not. Errors of the
/// operation itself are in its completion.
///
/// # Errors
///
/// - EAGAIN: the queue is full. Reap some.
/// - EPERM: another thread's queue.
/// - EINVAL: `queue` or `file` is NULL, or the memory is NULL with a length above 0.
///
/// # Thread safety
///
/// The queue's thread only.
///
/// # Safety
///
/// `queue` and `file` are valid; `data` has `length` bytes that do not change until the operation
/// is reaped or the queue freed.
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

/// Queues a write of `length` bytes of `data` at `offset`, as `dioxide_pwrite`. The first write of
/// a part of a block of a file waits here for the operations in flight, also for those of other
/// queues.
///
/// # Return value
///
/// As `dioxide_queue_append`.
///
/// # Errors
///
/// As `dioxide_queue_append`; also EINVAL for a negative `offset`.
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

/// Queues a read of up to `length` bytes at `offset` into `into`, as `dioxide_pread`. An unaligned
/// read may take several transfers, one after the other.
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
/// As `dioxide_queue_append`, and `into` is not read either.
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

/// Queues a flush, as `dioxide_fdatasync`: it covers the writes that had finished when it was
/// submitted, and none that are in flight with it.
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
/// `queue` and `file` are valid.
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

/// Begins all queued operations. Does not wait, unless without io_uring. Operations submitted
/// together are merged into few requests, and share flushes.
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
/// `queue` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_queue_submit(queue: *mut dioxide_queue) -> c_int {
    answer("dioxide_queue_submit", || {
        // SAFETY: as the caller promises.
        unsafe { queue_of(queue)? }.submit();
        Ok(0)
    })
}

/// Begins all queued operations, waits until at least `least` have finished, and returns up to
/// `room` finished ones, oldest first. With fewer than `least` outstanding it waits for all of
/// them. It sleeps while it waits; with a `least` of 0 it does not wait.
///
/// A reaped operation has the guarantees of the call of the same name on its return; its memory
/// belongs to the program again.
///
/// # Return value
///
/// The number of completions written to `completions`, 0 if nothing is outstanding; or a negative
/// errno. If some of them have failed, `dioxide_last_error` has the message of the last of those.
///
/// # Errors
///
/// - EPERM: another thread's queue.
/// - EINVAL: `queue` is NULL, `completions` is NULL with a `room` above 0, or `room` is below
///   `least` or above INT_MAX.
///
/// # Thread safety
///
/// The queue's thread only.
///
/// # Safety
///
/// `queue` is valid; `completions` has room for `room` completions.
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
        let room =
            c_int::try_from(room).map_err(|_| invalid(format!("room is {room}, above INT_MAX")))?;
        if i64::from(room) < least.into() {
            return Err(invalid(format!("room is {room}, for at least {least}")));
        }
        let room = room as usize;
        if completions.is_null() && room > 0 {
            return Err(invalid("completions is NULL"));
        }
        let mut given = 0;
        for done in queue.reap(least as usize).take(room) {
            // SAFETY: as the caller promises; the memory is not read.
            unsafe { completions.add(given).write(done.into()) };
            given += 1;
        }
        Ok(given as c_int)
    })
}

impl From<Completion> for dioxide_completion {
    /// Stores the message of an error for the thread.
    fn from(done: Completion) -> Self {
        let failed = |error| -i64::from(remember("", Failure::Library(error)));
        Self { user_data: done.tag, result: done.result.map_or_else(failed, signed) }
    }
}

/// The number of operations that are queued, in flight, or finished and not reaped.
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
/// `queue` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_queue_outstanding(queue: *mut dioxide_queue) -> i64 {
    answer("dioxide_queue_outstanding", || {
        // SAFETY: as the caller promises.
        Ok(signed(unsafe { queue_of(queue)? }.outstanding() as u64))
    })
}

/// Whether the queue uses io_uring.
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
/// `queue` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_queue_uses_io_uring(queue: *mut dioxide_queue) -> c_int {
    answer("dioxide_queue_uses_io_uring", || {
        // SAFETY: as the caller promises.
        Ok(unsafe { queue_of(queue)? }.uses_io_uring().into())
    })
}

/// Waits until all submitted operations have finished, and frees the queue. Operations that were
/// only queued are discarded. The memory of operations belongs to the program again.
///
/// # Return value
///
/// 0, or a negative errno with the queue unchanged.
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
/// `queue` is valid, and not used again.
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
