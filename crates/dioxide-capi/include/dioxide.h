/*
 * dioxide: concurrent, durable, safe direct I/O (O_DIRECT) for Linux. dioxide(3) is the overview.
 *
 * Generated from crates/dioxide-capi/src. Licensed under MIT or Apache-2.0, at your choice.
 */

#ifndef DIOXIDE_H
#define DIOXIDE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

/**
 * An error that no call can return any more.
 */
#define DIOXIDE_MESSAGE_ERROR 1

/**
 * Something does not work optimally: no preallocation on this file system, no io_uring.
 */
#define DIOXIDE_MESSAGE_WARNING 2

/**
 * Everything else.
 */
#define DIOXIDE_MESSAGE_INFO 3

/**
 * Writes are stable after the next `dioxide_fdatasync` that begins after they returned.
 */
#define DIOXIDE_ON_SYNC 0

/**
 * Each write is stable when it returns, as with O_DSYNC. Writers that wait together share flushes.
 */
#define DIOXIDE_EVERY_WRITE 1

/**
 * Space after the end is allocated and not written. After a crash the file system knows which
 * blocks were written, and so the end. On XFS, on ext4 with extents and a journal, and on btrfs;
 * elsewhere there is no preallocation.
 */
#define DIOXIDE_UNWRITTEN 0

/**
 * Space after the end is filled with zeros, in the background: durable appends into it cost no
 * journal commit. After a crash the end is unknown. `dioxide_recovery` reports a range; the
 * program, which knows its records, truncates with `dioxide_ftruncate`. Also on ext3 and on ext4
 * without a journal.
 */
#define DIOXIDE_ZEROED 1

/**
 * No preallocation: every append moves the end of file in the kernel.
 */
#define DIOXIDE_NOT_AHEAD 2

/**
 * The next append continues where the last one ended: it rewrites a partial last block.
 */
#define DIOXIDE_REWRITE 0

/**
 * The next append begins at the next block, after zeros: no block is written twice, at the price
 * of space.
 */
#define DIOXIDE_PAD 1

/**
 * Use plain calls, one at a time, even with io_uring available: for tools that do not support
 * io_uring, such as valgrind.
 */
#define DIOXIDE_QUEUE_PLAIN 1

/**
 * Only inspect. Nothing is changed, nothing is locked.
 */
#define DIOXIDE_INSPECT 0

/**
 * Truncate where the end is certain, as opening does.
 */
#define DIOXIDE_TRUNCATE 1

/**
 * Truncate at the end of the written data even if another program changed the file since. For the
 * owner, who knows the other program.
 */
#define DIOXIDE_FORCE 2

/**
 * The file was closed, or never preallocated: nothing to do.
 */
#define DIOXIDE_CLEAN 0

/**
 * It carries the marker of the file that it was copied from: left alone.
 */
#define DIOXIDE_FOREIGN 1

/**
 * It was left preallocated; the end of the written data is known.
 */
#define DIOXIDE_END_KNOWN 2

/**
 * After its records the file has zeros, or its content before it was recycled. The end is between
 * `floor` and `ceiling`. Only the program that knows the records can find it, and truncate there
 * with `dioxide_ftruncate`.
 */
#define DIOXIDE_END_UNKNOWN 3

/**
 * It was left preallocated, and another program changed it since. Only force truncates it.
 */
#define DIOXIDE_MODIFIED_EXTERNALLY 4

/**
 * A missing log is not created.
 */
#define DIOXIDE_LOG_NO_CREATE 1

/**
 * A record is acknowledged when it is written, and stable after the next `dioxide_log_sync` that
 * begins later. Without this flag it is stable when it is acknowledged.
 */
#define DIOXIDE_LOG_ON_SYNC 2

/**
 * Readers of this process see records that are written and not yet stable. It makes a difference
 * only with DIOXIDE_LOG_ON_SYNC.
 */
#define DIOXIDE_LOG_READ_UNSYNCED 4

/**
 * A file that is open for direct I/O. Threads share it.
 */
struct dioxide_file;

/**
 * A write-ahead log that is open. Threads share it.
 */
struct dioxide_log;

/**
 * A position in a write-ahead log, or in a stream, that moves from record to record. One thread at
 * a time uses it.
 */
struct dioxide_log_iter;

/**
 * Operations of one thread, many in flight at a time.
 */
struct dioxide_queue;

/**
 * A stream of an open log: a log of its own, with numbers of its own. Threads share it.
 */
struct dioxide_stream;

/**
 * A log of streams that is open. Threads share it.
 */
struct dioxide_stream_log;

/**
 * Receives a message: a level, one line of text without an end of line, and the argument of
 * `dioxide_set_listener`. The text is valid during the call.
 */
typedef void (*dioxide_listener)(uint32_t level, const char *message, void *user_data);

/**
 * How a file is opened. A member that is 0 means the default; so does NULL instead of the struct.
 *
 * Later versions may have more members. Initialise all of it, and set `size` to its sizeof: then a
 * program and a library of different versions are compatible. A library without a member that is
 * not 0 returns E2BIG; a value that it does not know is EINVAL.
 */
struct dioxide_options {
    /**
     * sizeof(struct dioxide_options).
     */
    uint32_t size;
    /**
     * When writes through this handle are stable: DIOXIDE_ON_SYNC or DIOXIDE_EVERY_WRITE. Handles
     * of one file may differ.
     */
    uint32_t durability;
    /**
     * How space after the end is preallocated: DIOXIDE_UNWRITTEN, DIOXIDE_ZEROED or
     * DIOXIDE_NOT_AHEAD. The first handle of a file that may write decides.
     */
    uint32_t growth;
    /**
     * How a partial last block is continued: DIOXIDE_REWRITE or DIOXIDE_PAD. The first handle of a
     * file that may write decides.
     */
    uint32_t tail;
    /**
     * The largest step of growth, in bytes; 0 for 64 MiB. Larger steps are rarer, smaller ones
     * delay writers less.
     */
    uint64_t growth_cap_bytes;
    /**
     * The expected length of the file, in bytes, or 0: the first step of growth goes there at
     * once, even beyond the largest step. It has at most an eighth of the free space and a quarter
     * of the budget left. A hint, never a limit.
     */
    uint64_t capacity_bytes;
};

/**
 * A finished operation. It never gets more members.
 */
struct dioxide_completion {
    /**
     * The value given with the operation.
     */
    uint64_t user_data;
    /**
     * The result of the call of the same name. It is the offset of an append, the bytes written or
     * read, 0 for a flush; or a negative errno.
     */
    int64_t result;
};

/**
 * The state of a file. Set `size` before it is filled in.
 */
struct dioxide_recovery {
    /**
     * sizeof(struct dioxide_recovery).
     */
    uint32_t size;
    /**
     * DIOXIDE_CLEAN, DIOXIDE_FOREIGN, DIOXIDE_END_KNOWN, DIOXIDE_END_UNKNOWN or
     * DIOXIDE_MODIFIED_EXTERNALLY. Later versions may have more.
     */
    uint32_t verdict;
    /**
     * The file's size as found, in bytes.
     */
    uint64_t physical_size;
    /**
     * Everything below this offset certainly belongs to the file.
     */
    uint64_t floor;
    /**
     * Nothing was written above this offset. Equal to `floor` if the end is known.
     */
    uint64_t ceiling;
    /**
     * A description in English. It belongs to the library. It is valid until the next call by the
     * same thread that fills such a struct, and until the thread ends.
     */
    const char *text;
};

/**
 * The alignment with which operations cost least: memory, offsets and lengths, in bytes. Set
 * `size` before it is filled in.
 */
struct dioxide_alignment {
    /**
     * sizeof(struct dioxide_alignment).
     */
    uint32_t size;
    /**
     * 0.
     */
    uint32_t reserved;
    /**
     * Of memory addresses.
     */
    uint64_t memory;
    /**
     * Of offsets and lengths of positional writes.
     */
    uint64_t offset;
    /**
     * The block into which appends are packed. An append that begins and ends at multiples of it
     * is written without a copy.
     */
    uint64_t append;
};

/**
 * Counters of a file over all its handles, since its first handle that may write was opened. All 0
 * for one that only reads. Set `size` before it is filled in.
 */
struct dioxide_stats {
    /**
     * sizeof(struct dioxide_stats).
     */
    uint32_t size;
    /**
     * 0.
     */
    uint32_t reserved;
    /**
     * Appends acknowledged.
     */
    uint64_t appends;
    /**
     * Bytes of these appends.
     */
    uint64_t append_bytes;
    /**
     * Requests sent to the kernel for appends, and for positional writes that are durable or
     * extend the file. A striped volume also counts each further part of any write.
     */
    uint64_t requests;
    /**
     * Bytes of these requests.
     */
    uint64_t request_bytes;
    /**
     * Requests with RWF_DSYNC.
     */
    uint64_t dsync_requests;
    /**
     * Operations that shared their request with another one.
     */
    uint64_t merged;
    /**
     * Bytes copied to pack them into blocks, with their padding.
     */
    uint64_t copied_bytes;
    /**
     * Requests that rewrote a partial last block.
     */
    uint64_t tail_rewrites;
    /**
     * Flushes sent, without those of RWF_DSYNC.
     */
    uint64_t flushes;
    /**
     * Completed growth steps.
     */
    uint64_t growths;
    /**
     * Bytes of these steps.
     */
    uint64_t grown_bytes;
    /**
     * Number of times that an operation had to wait for growth.
     */
    uint64_t growth_waits;
    /**
     * Requests that wrote the metadata of a volume, for a file inside of it.
     */
    uint64_t metadata_requests;
    /**
     * Operations that did not join a request because they were not adjacent to it.
     */
    uint64_t refused_gap;
    /**
     * Operations that did not join because the request would have exceeded the device's largest,
     * or because they are long themselves.
     */
    uint64_t refused_bytes;
    /**
     * Operations that did not join because the request would have had more segments than one call
     * takes.
     */
    uint64_t refused_segments;
    /**
     * Operations that did not join because they are on another member of a striped volume.
     */
    uint64_t refused_member;
    /**
     * Writes that had to wait because they share bytes, or a block, with another one.
     */
    uint64_t refused_order;
    /**
     * Flushes not sent, because the flush of another file covered them.
     */
    uint64_t flushes_shared;
};

/**
 * How a write-ahead log is opened. A member that is 0 means the default; so does NULL instead of
 * the struct. Initialise all of it, as a struct dioxide_options.
 */
struct dioxide_log_options {
    /**
     * sizeof(struct dioxide_log_options).
     */
    uint32_t size;
    /**
     * DIOXIDE_LOG_NO_CREATE, DIOXIDE_LOG_ON_SYNC and DIOXIDE_LOG_READ_UNSYNCED, or 0.
     */
    uint32_t flags;
    /**
     * The size of the segments of a new log, in bytes: a power of two from 64 KiB to 1 GiB; 0 for
     * 16 MiB. A log keeps the size that it was created with. It frees its space by whole segments.
     * The largest record is 8 KiB and 24 bytes smaller than a segment; 8.25 KiB in a log of
     * streams.
     */
    uint64_t segment_bytes;
    /**
     * The number of free segments that are kept for reuse; 0 for 4. More are removed.
     */
    uint64_t spare_segments;
    /**
     * The bytes of records that one write gathers at most; 0 for 1 MiB. A longer record is one
     * write.
     */
    uint64_t batch_bytes;
    /**
     * The size of the log from which the oldest segments are freed, in bytes of segments; 0 for no
     * limit. The last segment always stays.
     */
    uint64_t retain_bytes;
    /**
     * The age from which segments are freed, in milliseconds; 0 for no limit. A segment is freed
     * when all its records are older.
     */
    uint64_t retain_age_ms;
};

/**
 * Counters of a write-ahead log since it was opened. Set `size` before it is filled in.
 */
struct dioxide_log_stats {
    /**
     * sizeof(struct dioxide_log_stats).
     */
    uint32_t size;
    /**
     * 0.
     */
    uint32_t reserved;
    /**
     * Records that were written.
     */
    uint64_t records;
    /**
     * Writes. Each is a batch of records, and one flush without DIOXIDE_LOG_ON_SYNC.
     */
    uint64_t batches;
    /**
     * Bytes of these writes.
     */
    uint64_t bytes;
    /**
     * The time of all writes, in nanoseconds.
     */
    uint64_t write_ns;
    /**
     * Flushes by `dioxide_log_sync`.
     */
    uint64_t syncs;
    /**
     * Segments that were made.
     */
    uint64_t segments_created;
    /**
     * Segments that became free for reuse.
     */
    uint64_t segments_freed;
    /**
     * Segments in use now.
     */
    uint64_t segments;
    /**
     * Free segments now.
     */
    uint64_t free_segments;
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * The message of the last error of the calling thread. It names the operation, the file, the
 * offset and the cause, in English. Functions that succeed leave it unchanged.
 *
 * # Return value
 *
 * A string in UTF-8, never NULL, empty if nothing has failed in this thread yet. It belongs to the
 * library. It is valid until the next call of any function of the library by the same thread, and
 * until the thread ends.
 *
 * # Thread safety
 *
 * Any thread; each has its own message. The child of a fork begins with that of the thread that
 * forked.
 */
const char *dioxide_last_error(void);

/**
 * Appends `length` bytes of `data`, of any length and alignment.
 *
 * Concurrent appends get disjoint offsets without gaps, in the order in which they are accepted
 * (with DIOXIDE_PAD, gaps of zeros up to the next block). They are merged into few requests, and
 * durable ones share flushes. Small appends by one thread cost a block write each. From many
 * threads, or in a queue, they share one.
 *
 * On return every byte below the end of `data` is written. With DIOXIDE_EVERY_WRITE all of it is
 * also stable, and survives every crash. Otherwise a crash may lose any part of the data that no
 * `dioxide_fdatasync` covered, from some point to the end.
 *
 * After a crash the file may include appends that were never acknowledged. It ends at a block
 * boundary, in zeros or part of a record. Records must therefore show whether they are complete.
 * The library does not use `data` after the return.
 *
 * # Return value
 *
 * The offset of `data` in bytes; for a `length` of 0, the length of the file. Or a negative errno.
 *
 * # Errors
 *
 * - ENOSPC, EDQUOT or EFBIG: no space. Nothing was written, and the same call works once there is
 *   space. On copy-on-write and thin media, ENOSPC and EDQUOT may also be a failed write or flush;
 *   the next append then fails with EIO.
 * - EIO: the device failed; or an append below this one failed, so that this one is not part of
 *   the file. `dioxide_ftruncate` to `dioxide_size` discards the rest, and allows appending again.
 *   If that fails with EIO as well, a flush has failed: mount the file system anew.
 * - EBADF: `file` is read-only, or was opened by the process that this one was forked from.
 * - EINVAL: `file` is NULL, or `data` is NULL with a length above 0.
 * - EOPNOTSUPP: a device, which has no end to append to.
 *
 * # Thread safety
 *
 * Any number of threads at the same time, while none closes the handle.
 *
 * # Safety
 *
 * `file` is open; `data` has `length` bytes that do not change during the call.
 */
int64_t dioxide_append(struct dioxide_file *file, const void *data, size_t length);

/**
 * Appends the bytes of `count` slices, one behind the other, as one `dioxide_append`: no append of
 * another thread comes between them. They are first copied together, unless there is only one.
 *
 * Everything else is as with `dioxide_append`. A crash can leave a part of them, as it can leave
 * a part of one append.
 *
 * # Return value
 *
 * The offset of the first byte; for no bytes, the length of the file. Or a negative errno.
 *
 * # Errors
 *
 * As `dioxide_append`, and EINVAL: `slices` is NULL with a `count` above 0, or a member is NULL
 * with a length above 0. Or the slices have more bytes than any memory.
 *
 * # Thread safety
 *
 * As `dioxide_append`.
 *
 * # Safety
 *
 * `file` is open; `slices` has `count` members, each with memory that does not change during the
 * call.
 */
int64_t dioxide_appendv(struct dioxide_file *file, const struct iovec *slices, size_t count);

/**
 * Writes `length` bytes of `data` at `offset`: all of them or an error, never short.
 *
 * Any memory, offset and length will do. Multiples of the values of `dioxide_alignment` cost
 * least; `dioxide_alloc` returns such memory. A write beyond the end extends the file, and leaves
 * a hole in between that reads as zeros. Concurrent writes of the same bytes have no order.
 *
 * On return the bytes are written, and with DIOXIDE_EVERY_WRITE stable. After an error, or a crash
 * before they were stable, any part of the range may hold old or new bytes.
 *
 * # Return value
 *
 * `length`, or a negative errno.
 *
 * # Errors
 *
 * As `dioxide_append`, and:
 * - EINVAL: `offset` is negative.
 * - ENOSPC: also beyond the end of a device.
 * - EOPNOTSUPP: a gap over recycled space, which would expose its old content.
 *
 * # Thread safety
 *
 * As `dioxide_append`.
 *
 * # Safety
 *
 * As `dioxide_append`.
 */
int64_t dioxide_pwrite(struct dioxide_file *file, const void *data, size_t length, int64_t offset);

/**
 * Writes the bytes of `count` slices, one behind the other, at `offset`, as one `dioxide_pwrite`.
 * They are first copied together, unless there is only one.
 *
 * # Return value
 *
 * The number of bytes of all slices, or a negative errno.
 *
 * # Errors
 *
 * As `dioxide_pwrite`, and EINVAL as `dioxide_appendv`.
 *
 * # Thread safety
 *
 * As `dioxide_append`.
 *
 * # Safety
 *
 * As `dioxide_appendv`.
 */
int64_t dioxide_pwritev(struct dioxide_file *file,
                        const struct iovec *slices,
                        size_t count,
                        int64_t offset);

/**
 * Reads up to `length` bytes at `offset` into `into`.
 *
 * Any memory, offset and length will do; aligned reads cost least. A read sees every write that
 * was acknowledged before the call, and never preallocated space.
 *
 * # Return value
 *
 * The number of bytes read: `length`, or fewer up to the end of the file, 0 at the end; or a
 * negative errno. Memory after the bytes read may have been set to zero; after an error it may
 * hold anything.
 *
 * # Errors
 *
 * - EINVAL: `file` is NULL, `into` is NULL with a length above 0, or `offset` is negative.
 * - EBADF: the handle was opened for writing by the process that this one was forked from.
 * - EIO and others: errors of the device.
 * - EAGAIN: another process writes the file so fast that a reader beside it gets no consistent
 *   view.
 *
 * # Thread safety
 *
 * As `dioxide_append`.
 *
 * # Safety
 *
 * `file` is open; `into` has `length` bytes, exclusive to the caller.
 */
int64_t dioxide_pread(struct dioxide_file *file, void *into, size_t length, int64_t offset);

/**
 * Fills `count` slices, one after the other, from `offset` on, as one `dioxide_pread`. They are
 * filled by a copy, unless there is only one.
 *
 * # Return value
 *
 * The number of bytes read: that of all slices, or fewer up to the end of the file. Or a negative
 * errno.
 *
 * # Errors
 *
 * As `dioxide_pread`, and EINVAL as `dioxide_appendv`.
 *
 * # Thread safety
 *
 * As `dioxide_append`.
 *
 * # Safety
 *
 * `file` is open; `slices` has `count` members. Their memory is exclusive to the caller, and no
 * byte is in two of them.
 */
int64_t dioxide_preadv(struct dioxide_file *file,
                       const struct iovec *slices,
                       size_t count,
                       int64_t offset);

/**
 * Makes everything stable that was acknowledged before the call, through any handle of the file.
 * Callers that wait together share a flush.
 *
 * On return it survives every crash.
 *
 * # Return value
 *
 * 0, or a negative errno.
 *
 * # Errors
 *
 * - EIO, ENOSPC or EDQUOT: the flush failed. That is final, because the kernel may have dropped
 *   data that it could not write. Every file of the process on the same file system fails from now
 *   on, until the file system is mounted (or the device opened) anew.
 * - EBADF: `file` is read-only, or was opened by the process that this one was forked from.
 * - EINVAL: `file` is NULL.
 *
 * # Thread safety
 *
 * As `dioxide_append`.
 *
 * # Safety
 *
 * `file` is open.
 */
int dioxide_fdatasync(struct dioxide_file *file);

/**
 * Makes everything stable that was acknowledged before the call in any of `count` files, as
 * `dioxide_fdatasync` of each. Files of one ext4 or XFS file system share one flush, however many
 * they are. Elsewhere each file has its own flush.
 *
 * # Return value
 *
 * 0, or a negative errno: that of the first file that failed. The others are flushed nevertheless.
 *
 * # Errors
 *
 * As `dioxide_fdatasync`. EINVAL: a file is NULL, or `files` is with a `count` above 0; then
 * nothing is flushed.
 *
 * # Thread safety
 *
 * As `dioxide_append`.
 *
 * # Safety
 *
 * `files` has `count` files, and they are open.
 */
int dioxide_sync_files(struct dioxide_file *const *files, size_t count);

/**
 * Truncates the file to `length` bytes, or extends it by a hole. Waits for operations in flight.
 *
 * On return the length is durable, as is everything written before. Preallocated space is
 * released. Appending is possible again after it had ended with a failure.
 *
 * # Return value
 *
 * 0, or a negative errno; the length is then the old or the new one.
 *
 * # Errors
 *
 * - EINVAL: `file` is NULL, or `length` is negative.
 * - EBADF: `file` is read-only, or was opened by the process that this one was forked from.
 * - EOPNOTSUPP: a device.
 * - EBUSY: another process has the file open for writing; the length is the old one.
 * - EUCLEAN: another program has written above the end; the length is the old one.
 * - EIO, EFBIG, ENOSPC and others: errors of the kernel.
 *
 * # Thread safety
 *
 * As `dioxide_append`. Other threads must keep waiting for or reaping their queues, so that
 * operations in flight can complete.
 *
 * # Safety
 *
 * `file` is open.
 */
int dioxide_ftruncate(struct dioxide_file *file, int64_t length);

/**
 * Resets the length to 0 and keeps the allocated blocks for reuse, as a new log: written space is
 * the fastest for durable appends. Waits for operations in flight.
 *
 * On return the length is 0, and the file never exposes its old content. The old content is not
 * erased. Until the file is closed, a crash leaves it undecided (see `dioxide_recovery`), with the
 * old content after the new records. Old records look as valid there as new ones, so each record
 * must identify its life of the file.
 *
 * # Return value
 *
 * 0, or a negative errno; the file is then unchanged.
 *
 * # Errors
 *
 * - EOPNOTSUPP: the file is not preallocated, or its blocks are not overwritten in place.
 * - EUCLEAN: another program changed the size.
 * - EBADF: `file` is read-only, or was opened by the process that this one was forked from.
 * - EINVAL: `file` is NULL.
 * - Others: errors of the kernel.
 *
 * # Thread safety
 *
 * As `dioxide_ftruncate`.
 *
 * # Safety
 *
 * `file` is open.
 */
int dioxide_recycle(struct dioxide_file *file);

/**
 * The length in bytes: the end of the written data, without preallocated space.
 *
 * Exact in the process that writes the file. A read-only handle in another process uses the
 * writer's marker and the file system. It then sees the end of the last block, with appends that
 * were not yet acknowledged. With DIOXIDE_ZEROED it sees the last durable end in the marker.
 *
 * # Return value
 *
 * The length, or a negative errno.
 *
 * # Errors
 *
 * - EINVAL: `file` is NULL.
 * - For a reader beside another process: errors of the kernel, and EAGAIN if the file changes so
 *   fast that there is no consistent view.
 *
 * # Thread safety
 *
 * As `dioxide_append`.
 *
 * # Safety
 *
 * `file` is open.
 */
int64_t dioxide_size(struct dioxide_file *file);

/**
 * How the file is actually preallocated. DIOXIDE_NOT_AHEAD for a handle that only reads, and in
 * the child of a fork. The same if the file system could not undo preallocation after a crash;
 * `dioxide_set_listener` reports the reason.
 *
 * # Return value
 *
 * DIOXIDE_UNWRITTEN, DIOXIDE_ZEROED or DIOXIDE_NOT_AHEAD; or a negative errno.
 *
 * # Errors
 *
 * - EINVAL: `file` is NULL.
 *
 * # Thread safety
 *
 * As `dioxide_append`.
 *
 * # Safety
 *
 * `file` is open.
 */
int dioxide_growth(struct dioxide_file *file);

/**
 * The file descriptor, for inspection with fstat(2), for instance. It belongs to the library:
 * closing it, or writing through it, breaks the library's promises. Of a striped volume it is that
 * of the first member, and of a file in an image that of the image.
 *
 * # Return value
 *
 * A descriptor that is valid until the handle is closed, or a negative errno.
 *
 * # Errors
 *
 * - EINVAL: `file` is NULL.
 *
 * # Thread safety
 *
 * As `dioxide_append`.
 *
 * # Safety
 *
 * `file` is open.
 */
int dioxide_fileno(struct dioxide_file *file);

/**
 * Duplicates a handle of the file, with the same rights and options. Each handle is closed
 * separately.
 *
 * # Return value
 *
 * 0 with a handle in `*another`, or a negative errno with NULL there.
 *
 * # Errors
 *
 * - EBADF: `file` was opened for writing by the process that this one was forked from.
 * - EINVAL: a pointer is NULL.
 *
 * # Thread safety
 *
 * As `dioxide_append`.
 *
 * # Safety
 *
 * `file` is open.
 */
int dioxide_dup(struct dioxide_file *file, struct dioxide_file **another);

/**
 * Closes a handle, and waits for operations in flight. The last handle of a file that may write
 * restores it durably to the state that any other program would leave. Its size is then its
 * length, without preallocated space and without a marker.
 *
 * Waits for operations on the file that a queue has submitted; those that were only queued fail
 * with EBADF.
 *
 * # Return value
 *
 * 0, or a negative errno. The handle is invalid in either case, and must not be used again, not
 * even to be closed.
 *
 * # Errors
 *
 * - EBUSY: another process has the file open for writing. The file stays preallocated, and the
 *   next open recovers it.
 * - EUCLEAN: another program changed the size of the file, so it was not truncated. Or it wrote
 *   above the end, and the file is truncated after that.
 * - EBADF: the handle was opened for writing by the process that this one was forked from. The
 *   file is unchanged.
 * - EINVAL: `file` is NULL.
 * - EIO and others: errors of the kernel. The next open recovers the file.
 *
 * # Thread safety
 *
 * Any thread, while no other one is in a call with this handle.
 *
 * # Safety
 *
 * `file` is open, and has no other user.
 */
int dioxide_close(struct dioxide_file *file);

/**
 * Allocates `length` bytes of zeros, aligned to 4096 bytes. Every device and file system accepts
 * that for direct I/O.
 *
 * # Return value
 *
 * Memory to be freed with `dioxide_free` (or free(3)), never NULL for a `length` of 0. NULL with a
 * message in `dioxide_last_error` if there is no memory.
 *
 * # Thread safety
 *
 * Any thread.
 */
void *dioxide_alloc(size_t length);

/**
 * Frees memory of `dioxide_alloc`. NULL does nothing. Not while an operation of a queue uses it.
 *
 * # Thread safety
 *
 * Any thread.
 *
 * # Safety
 *
 * As free(3).
 */
void dioxide_free(void *memory);

/**
 * Sets the maximum of preallocated space over all files of the process, in bytes; 2 GiB by
 * default. Above it an append allocates only what it needs.
 *
 * # Thread safety
 *
 * Any thread.
 */
void dioxide_set_growth_budget(uint64_t bytes);

/**
 * Sets `listener` as the receiver of messages that no call returns. Examples are the reason why a
 * file is not preallocated, the lack of io_uring, and errors that came too late for any call.
 * Without a receiver they are lost: the library never prints.
 *
 * Call it once for each process, before the first file is opened. Any thread may call `listener`,
 * also several at the same time, and while the library holds locks. `listener` must not call the
 * library, nor throw, nor leave by longjmp(3).
 *
 * # Return value
 *
 * 0, or a negative errno.
 *
 * # Errors
 *
 * - EALREADY: it was called before; the first one stays.
 * - EINVAL: `listener` is NULL.
 *
 * # Thread safety
 *
 * Any thread. The child of a fork has the same.
 *
 * # Safety
 *
 * `listener` may be called as described, with `user_data`, until the process ends.
 */
int dioxide_set_listener(dioxide_listener listener, void *user_data);

/**
 * Opens `path`, a regular file or a block device, for direct I/O.
 *
 * `flags` and `mode` are those of open(2): O_RDONLY, or O_RDWR with O_CREAT, O_EXCL and O_TRUNC.
 * O_WRONLY is taken as O_RDWR, because recovery must read. O_DSYNC and O_SYNC mean
 * DIOXIDE_EVERY_WRITE. O_TMPFILE makes a file without a name in the directory `path`. O_DIRECT and
 * O_CLOEXEC always apply and may be left out; O_APPEND and other flags are refused. `options` may
 * be NULL for the defaults.
 *
 * Opening for writing takes a lock against other processes: an OFD lock on one byte near the
 * largest offset. One process at a time holds a file, with any number of threads and handles. Then
 * it recovers the file after a crash, which `dioxide_recovery` reports, and makes the result
 * durable. A created name is durable on return.
 *
 * The file is preallocated while it is open: other programs see the larger size until it is
 * closed. A process that ends without `dioxide_close` leaves it so; opening it again, or
 * dioxide_recover, recovers it.
 *
 * # Return value
 *
 * 0 with a handle in `*file`, to be closed by `dioxide_close`; or a negative errno with NULL
 * there. A file may be opened several times in one process: all handles see one length.
 *
 * # Errors
 *
 * - EAGAIN: another process has the file open for writing.
 * - EBUSY: the block device is in use, or the file is the image behind a loop device. Or a crash
 *   left the file preallocated, and another process has it open for writing.
 * - E2BIG: `options` has members that this version of the library does not know.
 * - EINVAL: a pointer is NULL, or flags or options are invalid.
 * - EIO: a flush failed on that file system before; mount it anew.
 * - EOPNOTSUPP: no direct I/O here, or neither a file nor a device.
 * - EUCLEAN: a crash left the file preallocated, and another program changed it since. Open it
 *   O_RDONLY to inspect it, or recover it by force.
 * - Others: errors of open(2), such as ENOENT, EEXIST and EACCES.
 *
 * # Thread safety
 *
 * Any thread. Waits up to a quarter of a second for a lock or a busy device. After a fork the
 * child has the locks of the parent's writing handles too, until it ends or calls exec. Meanwhile
 * neither can open such a file for writing again: fork before this call.
 *
 * # Safety
 *
 * `path` is a string; `options` has as many bytes as its size says.
 */
int dioxide_open(const char *path,
                 int flags,
                 uint32_t mode,
                 const struct dioxide_options *options,
                 struct dioxide_file **file);

/**
 * Opens several files, or several block devices, as one striped volume with chunks of
 * `chunk_bytes` bytes.
 *
 * `paths` has `count` members, the same in the same order each time. `chunk_bytes` is a multiple
 * of 4096 and of the file systems' blocks, usually 65536 to 1048576.
 *
 * With O_CREAT, files that do not exist or are empty become a volume. So do devices whose first
 * 4096 bytes are zeros; other content is refused. Each member begins with a chunk that holds a
 * header. It identifies members that are missing, misplaced, of another volume or outdated.
 *
 * A flush covers all members, and fails for all. Everything else is as with `dioxide_open`, except
 * O_TMPFILE, which is refused.
 *
 * # Return value
 *
 * As `dioxide_open`.
 *
 * # Errors
 *
 * As `dioxide_open`, and:
 * - EINVAL: also a chunk that is not such a multiple, or more than 64 paths.
 * - EOPNOTSUPP: files and devices mixed, a chunk longer than 1 TiB, or no member.
 * - EUCLEAN: these are not the members of one volume, in this order.
 *
 * # Thread safety
 *
 * As `dioxide_open`.
 *
 * # Safety
 *
 * `paths` has `count` strings; `options` has as many bytes as its size says.
 */
int dioxide_open_striped(const char *const *paths,
                         size_t count,
                         uint64_t chunk_bytes,
                         int flags,
                         uint32_t mode,
                         const struct dioxide_options *options,
                         struct dioxide_file **file);

/**
 * Opens the regular file `path` inside of `volume`, an unmounted ext2 or ext3 file system: an
 * image file, or a block device.
 *
 * `path` begins at the root of the volume. `flags` are as with `dioxide_open`, without O_CREAT and
 * O_TMPFILE: files cannot be created. Offsets and lengths are arbitrary, as in other files. The
 * file is not preallocated.
 *
 * Files of one volume may be open at the same time in one process. Another process is refused
 * while any of them is open for writing. After the last close e2fsck finds nothing. After a crash,
 * run `e2fsck -p` before the volume is opened again; the volume then has every durable byte.
 *
 * # Return value
 *
 * As `dioxide_open`.
 *
 * # Errors
 *
 * As `dioxide_open` for the volume, and:
 * - EBUSY: for writing, while this process has files of the volume open only for reading.
 * - EOPNOTSUPP: no ext2 or ext3, an unsupported feature, a volume that must be checked first, a
 *   path that names no regular file, or O_CREAT.
 * - EUCLEAN: the volume is inconsistent.
 *
 * # Thread safety
 *
 * As `dioxide_open`. In the child of a fork, handles of the parent fail with EBADF, also to read.
 *
 * # Safety
 *
 * Both paths are strings; `options` has as many bytes as its size says.
 */
int dioxide_open_in_image(const char *volume,
                          const char *path,
                          int flags,
                          const struct dioxide_options *options,
                          struct dioxide_file **file);

/**
 * Makes a queue for up to `depth` operations that are queued, in flight, or finished and not
 * reaped. It uses io_uring if available (Linux 5.6, best from 6.1 on), unless `flags` has
 * DIOXIDE_QUEUE_PLAIN. Otherwise it makes plain calls, with the same results.
 *
 * A queue belongs to the thread that makes it, and refuses others. Free it before that thread
 * ends, because no other thread can. Otherwise callers that wait for its operations in flight wait
 * for ever.
 *
 * A thread needs only one queue, for any number of files. Queues of other threads and blocking
 * calls may use the same files at the same time. They may wait for operations in flight of this
 * queue, so call `dioxide_queue_submit` or `dioxide_queue_reap` regularly until those are reaped.
 *
 * The library uses the memory of an operation until the operation is reaped or the queue freed.
 * Until then the memory must stay in place. Data to write must not change, and memory to read into
 * must not be read. That also applies when the file is closed meanwhile.
 *
 * # Return value
 *
 * 0 with a queue in `*queue`, to be freed by `dioxide_queue_free`; or a negative errno with NULL
 * there.
 *
 * # Errors
 *
 * - EINVAL: `queue` is NULL, `depth` is 0, or `flags` are not known.
 *
 * # Thread safety
 *
 * Any thread, which then owns it. After a fork it belongs to the parent: operations of the child
 * complete with EBADF.
 *
 * # Safety
 *
 * `queue` has room for a pointer.
 */
int dioxide_queue_new(uint32_t depth, uint32_t flags, struct dioxide_queue **queue);

/**
 * Queues an append of `length` bytes of `data`, as `dioxide_append`. It begins when the queue is
 * submitted or reaped. Appends of a queue to one file keep their order in the file.
 *
 * # Return value
 *
 * 0, and the operation is reaped later; or a negative errno, and it is not. Errors of the
 * operation itself are in its completion.
 *
 * # Errors
 *
 * - EAGAIN: the queue is full. Reap some.
 * - EPERM: another thread's queue.
 * - EINVAL: `queue` or `file` is NULL, or the memory is NULL with a length above 0.
 *
 * # Thread safety
 *
 * The queue's thread only.
 *
 * # Safety
 *
 * `queue` and `file` are valid; `data` has `length` bytes that do not change until the operation
 * is reaped or the queue freed.
 */
int dioxide_queue_append(struct dioxide_queue *queue,
                         struct dioxide_file *file,
                         const void *data,
                         size_t length,
                         uint64_t user_data);

/**
 * Queues a write of `length` bytes of `data` at `offset`, as `dioxide_pwrite`. The first write of
 * a part of a block of a file waits here for the operations in flight, also for those of other
 * queues.
 *
 * # Return value
 *
 * As `dioxide_queue_append`.
 *
 * # Errors
 *
 * As `dioxide_queue_append`; also EINVAL for a negative `offset`.
 *
 * # Thread safety
 *
 * The queue's thread only.
 *
 * # Safety
 *
 * As `dioxide_queue_append`.
 */
int dioxide_queue_pwrite(struct dioxide_queue *queue,
                         struct dioxide_file *file,
                         const void *data,
                         size_t length,
                         int64_t offset,
                         uint64_t user_data);

/**
 * Queues a read of up to `length` bytes at `offset` into `into`, as `dioxide_pread`. An unaligned
 * read may take several transfers, one after the other.
 *
 * # Return value
 *
 * As `dioxide_queue_append`.
 *
 * # Errors
 *
 * As `dioxide_queue_pwrite`.
 *
 * # Thread safety
 *
 * The queue's thread only.
 *
 * # Safety
 *
 * As `dioxide_queue_append`, and `into` is not read either.
 */
int dioxide_queue_pread(struct dioxide_queue *queue,
                        struct dioxide_file *file,
                        void *into,
                        size_t length,
                        int64_t offset,
                        uint64_t user_data);

/**
 * Queues a flush, as `dioxide_fdatasync`: it covers the writes that had finished when it was
 * submitted, and none that are in flight with it.
 *
 * # Return value
 *
 * As `dioxide_queue_append`.
 *
 * # Errors
 *
 * As `dioxide_queue_append`.
 *
 * # Thread safety
 *
 * The queue's thread only.
 *
 * # Safety
 *
 * `queue` and `file` are valid.
 */
int dioxide_queue_fdatasync(struct dioxide_queue *queue,
                            struct dioxide_file *file,
                            uint64_t user_data);

/**
 * Begins all queued operations. Does not wait, unless without io_uring. Operations submitted
 * together are merged into few requests, and share flushes.
 *
 * # Return value
 *
 * 0, or a negative errno.
 *
 * # Errors
 *
 * - EPERM: another thread's queue.
 * - EINVAL: `queue` is NULL.
 *
 * # Thread safety
 *
 * The queue's thread only.
 *
 * # Safety
 *
 * `queue` is valid.
 */
int dioxide_queue_submit(struct dioxide_queue *queue);

/**
 * Begins all queued operations, waits until at least `least` have finished, and returns up to
 * `room` finished ones, oldest first. With fewer than `least` outstanding it waits for all of
 * them. It sleeps while it waits; with a `least` of 0 it does not wait.
 *
 * A reaped operation has the guarantees of the call of the same name on its return; its memory
 * belongs to the program again.
 *
 * # Return value
 *
 * The number of completions written to `completions`, 0 if nothing is outstanding; or a negative
 * errno. If some of them have failed, `dioxide_last_error` has the message of the last of those.
 *
 * # Errors
 *
 * - EPERM: another thread's queue.
 * - EINVAL: `queue` is NULL, `completions` is NULL with a `room` above 0, or `room` is below
 *   `least` or above INT_MAX.
 *
 * # Thread safety
 *
 * The queue's thread only.
 *
 * # Safety
 *
 * `queue` is valid; `completions` has room for `room` completions.
 */
int dioxide_queue_reap(struct dioxide_queue *queue,
                       struct dioxide_completion *completions,
                       uint32_t room,
                       uint32_t least);

/**
 * The number of operations that are queued, in flight, or finished and not reaped.
 *
 * # Return value
 *
 * Their number, or a negative errno.
 *
 * # Errors
 *
 * - EPERM: another thread's queue.
 * - EINVAL: `queue` is NULL.
 *
 * # Thread safety
 *
 * The queue's thread only.
 *
 * # Safety
 *
 * `queue` is valid.
 */
int64_t dioxide_queue_outstanding(struct dioxide_queue *queue);

/**
 * Whether the queue uses io_uring.
 *
 * # Return value
 *
 * 1 or 0, or a negative errno.
 *
 * # Errors
 *
 * - EPERM: another thread's queue.
 * - EINVAL: `queue` is NULL.
 *
 * # Thread safety
 *
 * The queue's thread only.
 *
 * # Safety
 *
 * `queue` is valid.
 */
int dioxide_queue_uses_io_uring(struct dioxide_queue *queue);

/**
 * Waits until all submitted operations have finished, and frees the queue. Operations that were
 * only queued are discarded. The memory of operations belongs to the program again.
 *
 * # Return value
 *
 * 0, or a negative errno with the queue unchanged.
 *
 * # Errors
 *
 * - EPERM: another thread's queue.
 * - EINVAL: `queue` is NULL.
 *
 * # Thread safety
 *
 * The queue's thread only.
 *
 * # Safety
 *
 * `queue` is valid, and not used again.
 */
int dioxide_queue_free(struct dioxide_queue *queue);

/**
 * Reports the state of a file after a crash, as opening it for writing found it, and its recovery.
 *
 * With DIOXIDE_END_UNKNOWN the length is the ceiling. Read from the floor on, find the last of the
 * records, and truncate there with `dioxide_ftruncate`. Until then each open reports
 * DIOXIDE_END_UNKNOWN again.
 *
 * Truncate before the first append. An append lands at the length, behind zeros or old records. A
 * later search for the end stops before it, and the next truncate destroys it.
 *
 * # Return value
 *
 * 1 with `recovery` filled in; 0 if the file needed no recovery, with DIOXIDE_CLEAN there and the
 * rest 0; or a negative errno.
 *
 * # Errors
 *
 * - EINVAL: a pointer is NULL, or the member `size` was not set.
 *
 * # Thread safety
 *
 * As `dioxide_append`.
 *
 * # Safety
 *
 * `file` is open; `recovery` has as many bytes as its size says.
 */
int dioxide_recovery(struct dioxide_file *file, struct dioxide_recovery *recovery);

/**
 * Inspects a file after a crash, and recovers it with DIOXIDE_TRUNCATE or DIOXIDE_FORCE in `how`.
 * Opening for writing does the same. This function is for inspection, and for files that opening
 * refuses.
 *
 * On return the new length of a truncated file is durable.
 *
 * # Return value
 *
 * 0 with the state before the recovery in `found`, or a negative errno.
 *
 * # Errors
 *
 * - EINVAL: a pointer is NULL, the member `size` was not set, or `how` is none of the three.
 * - EAGAIN: a process, this one or another, has the file open for writing. With DIOXIDE_INSPECT:
 *   it changes the file so fast that there is no consistent view.
 * - EBUSY: another process has the file open for writing, so it is not truncated.
 * - EIO: a flush failed on that file system before; mount it anew.
 * - EOPNOTSUPP: a block device, which does not grow, or no direct I/O.
 * - Others: errors of the kernel.
 *
 * # Thread safety
 *
 * Any thread. It opens and closes the file, which releases the POSIX locks that the process has on
 * it.
 *
 * # Safety
 *
 * `path` is a string; `found` has as many bytes as its size says.
 */
int dioxide_recover(const char *path, uint32_t how, struct dioxide_recovery *found);

/**
 * As `dioxide_recover`, for a striped volume of files: `paths` and `chunk_bytes` as with
 * `dioxide_open_striped`.
 *
 * # Return value
 *
 * As `dioxide_recover`.
 *
 * # Errors
 *
 * As `dioxide_recover`, and those of the arguments of `dioxide_open_striped`:
 * - EINVAL: an invalid chunk, or more than 64 paths.
 * - EOPNOTSUPP: files and devices mixed, a chunk longer than 1 TiB, or no member.
 * - EUCLEAN: these are not the members of one volume, in this order.
 *
 * # Thread safety
 *
 * Any thread.
 *
 * # Safety
 *
 * `paths` has `count` strings; `found` has as many bytes as its size says.
 */
int dioxide_recover_striped(const char *const *paths,
                            size_t count,
                            uint64_t chunk_bytes,
                            uint32_t how,
                            struct dioxide_recovery *found);

/**
 * Reports the alignment with which operations cost least. None needs it.
 *
 * # Return value
 *
 * 0 with `alignment` filled in, or a negative errno.
 *
 * # Errors
 *
 * - EINVAL: a pointer is NULL, or the member `size` was not set.
 *
 * # Thread safety
 *
 * As dioxide_append.
 *
 * # Safety
 *
 * `file` is open; `alignment` has as many bytes as its size says.
 */
int dioxide_alignment(struct dioxide_file *file, struct dioxide_alignment *alignment);

/**
 * Reports the counters of a file.
 *
 * # Return value
 *
 * 0 with `stats` filled in, or a negative errno.
 *
 * # Errors
 *
 * - EINVAL: a pointer is NULL, or the member `size` was not set.
 *
 * # Thread safety
 *
 * As dioxide_append.
 *
 * # Safety
 *
 * `file` is open; `stats` has as many bytes as its size says.
 */
int dioxide_stats(struct dioxide_file *file, struct dioxide_stats *stats);

/**
 * Opens the write-ahead log in the directory `path`, or on a block device, and creates it if it is
 * missing. `options` may be NULL for the defaults.
 *
 * A record has a number, its LSN: the first record of a log has 1, and each next record the next
 * number. A log has one writer: a process with one handle, which any number of threads share.
 *
 * After a crash this call finds every acknowledged record, and possibly whole records behind them
 * that were in flight. It never finds a torn record, an old one of a reused segment, or a part of
 * a batch. Damage of acknowledged records is an error, never a shorter log. docs/log.md has the
 * limits of that.
 *
 * A log on a device begins at its first block. For a new one the first MiB must be zeros, so that
 * no file system is overwritten.
 *
 * # Return value
 *
 * 0 with a handle in `*log`, to be closed by `dioxide_log_close`; or a negative errno with NULL
 * there.
 *
 * # Errors
 *
 * - EBUSY: another process, or this one, has the log open.
 * - ENOENT: there is no log, and `options` has DIOXIDE_LOG_NO_CREATE.
 * - EUCLEAN: the log is damaged: restore it from a copy. Or the device has other content: clear
 *   its first MiB. Nothing was changed; the message has path and offset.
 * - EPROTONOSUPPORT: a later version of the library wrote the log.
 * - E2BIG: `options` has members that this version of the library does not know.
 * - EINVAL: a pointer is NULL, options are invalid, or it is a log of streams.
 * - Others: errors of `dioxide_open` and of the kernel.
 *
 * # Thread safety
 *
 * Any thread. After a fork, calls of the child fail with EBADF, and it opens other logs. It keeps
 * the lock of this one until it ends or calls exec: fork before this call.
 *
 * # Safety
 *
 * `path` is a string; `options` has as many bytes as its size says.
 */
int dioxide_log_open(const char *path,
                     const struct dioxide_log_options *options,
                     struct dioxide_log **log);

/**
 * Appends `length` bytes of `data` as one record. Records of threads that append at the same time
 * share a write and a flush.
 *
 * On return the record is stable, as are all before it, and survives every crash. In a log with
 * DIOXIDE_LOG_ON_SYNC it is written, and the next `dioxide_log_sync` makes it stable.
 *
 * After an error the record may be there when the log is opened again, unless noted below.
 *
 * # Return value
 *
 * The LSN of the record, or a negative errno.
 *
 * # Errors
 *
 * - EMSGSIZE: the record does not fit into a segment. Nothing was appended.
 * - ENOSPC: there is no space for a segment. Nothing was appended, and the same call succeeds
 *   after `dioxide_log_truncate_front`, or once there is space.
 * - EIO: an earlier write or flush failed, so the log takes no more. Close it and open it again;
 *   after a failed flush, mount the file system first.
 * - EBADF: `log` was opened by the process that this one was forked from.
 * - EINVAL: `log` is NULL, or `data` is NULL with a length above 0.
 * - Others: the error of the write, after which the log takes no more. That may be ENOSPC too, on
 *   copy-on-write and thin media; the next append is EIO then. Or the reason why a segment could
 *   not be made, for example EMFILE. Nothing was appended then, and the log takes more.
 *
 * # Thread safety
 *
 * Any number of threads at the same time, while none closes the handle.
 *
 * # Safety
 *
 * `log` is open; `data` has `length` bytes that do not change during the call.
 */
int64_t dioxide_log_append(struct dioxide_log *log, const void *data, size_t length);

/**
 * Appends `count` records as one atomic batch: after a crash all of them are there, or none. Each
 * member of `records` is one record.
 *
 * Everything else is as with `dioxide_log_append`.
 *
 * # Return value
 *
 * The LSN of the first record; the others have the next numbers. For a `count` of 0, the LSN of
 * the next record. Or a negative errno.
 *
 * # Errors
 *
 * As `dioxide_log_append`, and:
 * - EMSGSIZE: the whole batch must fit into a segment.
 * - EINVAL: `records` is NULL with a `count` above 0, or a member is NULL with a length above 0.
 *
 * # Thread safety
 *
 * As `dioxide_log_append`.
 *
 * # Safety
 *
 * `log` is open; `records` has `count` members, each with memory that does not change during the
 * call.
 */
int64_t dioxide_log_append_all(struct dioxide_log *log, const struct iovec *records, size_t count);

/**
 * Adds `length` bytes of `data` to the log as one record, and does not wait until it is written.
 * A thread of the library writes it soon. So one thread keeps thousands of records in flight.
 *
 * Waits only while the batch that is being composed is full. `dioxide_log_wait` waits for the
 * record; a crash before its return may lose it. The library does not use `data` after the return.
 *
 * # Return value
 *
 * The LSN of the record, or a negative errno.
 *
 * # Errors
 *
 * As `dioxide_log_append`, without those of the write. `dioxide_log_wait` returns these.
 *
 * # Thread safety
 *
 * As `dioxide_log_append`.
 *
 * # Safety
 *
 * As `dioxide_log_append`.
 */
int64_t dioxide_log_submit(struct dioxide_log *log, const void *data, size_t length);

/**
 * Waits until the record `lsn`, and all before it, have the guarantees of `dioxide_log_append` on
 * its return. For records of `dioxide_log_submit`.
 *
 * # Return value
 *
 * 0, or a negative errno.
 *
 * # Errors
 *
 * - ERANGE: there is no such record yet.
 * - EIO: an earlier write or flush failed, so the record is not acknowledged. It may be there when
 *   the log is opened again.
 * - EBADF: `log` was opened by the process that this one was forked from.
 * - EINVAL: `log` is NULL, or `lsn` is below 1.
 * - Others: the error of the write of the record.
 *
 * # Thread safety
 *
 * As `dioxide_log_append`.
 *
 * # Safety
 *
 * `log` is open.
 */
int dioxide_log_wait(struct dioxide_log *log, int64_t lsn);

/**
 * Makes all records stable that were acknowledged before the call. For a log with
 * DIOXIDE_LOG_ON_SYNC; otherwise they are stable already.
 *
 * On return they survive every crash.
 *
 * # Return value
 *
 * 0, or a negative errno.
 *
 * # Errors
 *
 * - EIO: the flush, or an earlier write or flush, failed. That is final: the log takes no more.
 *   Close it and open it again; after a failed flush, mount the file system first.
 * - EBADF: `log` was opened by the process that this one was forked from.
 * - EINVAL: `log` is NULL.
 *
 * # Thread safety
 *
 * As `dioxide_log_append`.
 *
 * # Safety
 *
 * `log` is open.
 */
int dioxide_log_sync(struct dioxide_log *log);

/**
 * Reads the record `lsn` into `into`, up to `length` bytes of it. A `length` of 0 returns the size
 * of the record.
 *
 * Readers see a record once it is stable, or with DIOXIDE_LOG_READ_UNSYNCED once it is written.
 *
 * # Return value
 *
 * The bytes of the record. If they are more than `length`, `into` has the first `length` of them.
 * Or a negative errno, with `into` unchanged.
 *
 * # Errors
 *
 * - EAGAIN: the record is not there yet, or not yet stable.
 * - ERANGE: the record was removed by `dioxide_log_truncate_front`, or by `retain_bytes` or
 *   `retain_age_ms`.
 * - EUCLEAN: the record was damaged since it was written.
 * - EBADF: `log` was opened by the process that this one was forked from.
 * - EINVAL: `log` is NULL, `into` is NULL with a length above 0, or `lsn` is below 1.
 * - EIO and others: errors of the device.
 *
 * # Thread safety
 *
 * As `dioxide_log_append`.
 *
 * # Safety
 *
 * `log` is open; `into` has `length` bytes, exclusive to the caller.
 */
int64_t dioxide_log_read(struct dioxide_log *log, int64_t lsn, void *into, size_t length);

/**
 * Removes all records below `lsn`. Segments that have no other records are used again.
 *
 * `lsn` may be above the next record: the log is then empty, and the next record has that number.
 * An `lsn` at or below the first record removes nothing.
 *
 * On return the removal is durable. After an error, or a crash before the return, either all of
 * these records are there or none.
 *
 * # Return value
 *
 * 0, or a negative errno.
 *
 * # Errors
 *
 * As `dioxide_log_append`, and:
 * - ENOSPC: while the log is full, this works as long as it frees a segment, and some dozen times
 *   without.
 * - ERANGE: `lsn` is above 2^62.
 * - EINVAL: `lsn` is below 1.
 *
 * # Thread safety
 *
 * As `dioxide_log_append`.
 *
 * # Safety
 *
 * `log` is open.
 */
int dioxide_log_truncate_front(struct dioxide_log *log, int64_t lsn);

/**
 * Removes `lsn` and all records above it; the next record gets this number. Waits for the appends
 * in flight.
 *
 * On return the removal is durable. After an error, or a crash before the return, either all of
 * these records are there or none. Iterators that are behind `lsn` return the new records there.
 *
 * # Return value
 *
 * 0, or a negative errno.
 *
 * # Errors
 *
 * As `dioxide_log_append`, and:
 * - ERANGE: `lsn` is below the first record, or above the next one.
 * - EINVAL: `lsn` is below 1.
 *
 * # Thread safety
 *
 * As `dioxide_log_append`.
 *
 * # Safety
 *
 * `log` is open.
 */
int dioxide_log_truncate_back(struct dioxide_log *log, int64_t lsn);

/**
 * The lowest LSN that the log has: that of the next record if it is empty.
 *
 * # Return value
 *
 * The LSN, or a negative errno.
 *
 * # Errors
 *
 * - EBADF: `log` was opened by the process that this one was forked from.
 * - EINVAL: `log` is NULL.
 *
 * # Thread safety
 *
 * As `dioxide_log_append`.
 *
 * # Safety
 *
 * `log` is open.
 */
int64_t dioxide_log_first_lsn(struct dioxide_log *log);

/**
 * The LSN that the next record gets.
 *
 * # Return value
 *
 * The LSN, or a negative errno.
 *
 * # Errors
 *
 * As `dioxide_log_first_lsn`.
 *
 * # Thread safety
 *
 * As `dioxide_log_append`.
 *
 * # Safety
 *
 * `log` is open.
 */
int64_t dioxide_log_next_lsn(struct dioxide_log *log);

/**
 * The LSN behind the last stable record: all below it are stable.
 *
 * # Return value
 *
 * The LSN, or a negative errno.
 *
 * # Errors
 *
 * As `dioxide_log_first_lsn`.
 *
 * # Thread safety
 *
 * As `dioxide_log_append`.
 *
 * # Safety
 *
 * `log` is open.
 */
int64_t dioxide_log_stable_lsn(struct dioxide_log *log);

/**
 * Writes the records in flight, and closes the log. On return all of its records are stable, no
 * thread of the log runs, and another process can open it. Iterators stay, and are closed
 * separately.
 *
 * # Return value
 *
 * 0, or a negative errno. The handle is invalid in either case, and must not be used again, not
 * even to be closed.
 *
 * # Errors
 *
 * - EBADF: `log` was opened by the process that this one was forked from. The log is unchanged.
 *   Its descriptors stay open until the calling process ends or calls exec.
 * - EINVAL: `log` is NULL.
 * - EIO and others: the error of a write. The log is closed nevertheless, and the next open
 *   recovers it.
 *
 * # Thread safety
 *
 * Any thread, while no other one is in a call with this handle. Threads that wait in
 * `dioxide_log_next` return.
 *
 * # Safety
 *
 * `log` is open, and has no other user.
 */
int dioxide_log_close(struct dioxide_log *log);

/**
 * Makes an iterator over the records from `lsn` on. Where no record is stable yet,
 * `dioxide_log_next` returns 0, and later calls may return one. To begin with the first record,
 * pass `dioxide_log_first_lsn`.
 *
 * # Return value
 *
 * 0 with an iterator in `*iter`, to be closed by `dioxide_log_iter_close`; or a negative errno
 * with NULL there.
 *
 * # Errors
 *
 * - EBADF: `log` was opened by the process that this one was forked from.
 * - EINVAL: a pointer is NULL, or `lsn` is below 1.
 *
 * # Thread safety
 *
 * As `dioxide_log_append`.
 *
 * # Safety
 *
 * `log` is open; `iter` has room for a pointer.
 */
int dioxide_log_iter_from(struct dioxide_log *log, int64_t lsn, struct dioxide_log_iter **iter);

/**
 * Makes an iterator over the records from `lsn` on that waits for each next one. So
 * `dioxide_log_next` returns 0 only after the log was closed.
 *
 * # Return value
 *
 * As `dioxide_log_iter_from`.
 *
 * # Errors
 *
 * As `dioxide_log_iter_from`.
 *
 * # Thread safety
 *
 * As `dioxide_log_append`.
 *
 * # Safety
 *
 * As `dioxide_log_iter_from`.
 */
int dioxide_log_follow(struct dioxide_log *log, int64_t lsn, struct dioxide_log_iter **iter);

/**
 * Lends the next record: its first byte in `*data`, and its bytes in `*length`. They belong to the
 * library, and are valid until the next call with this iterator.
 *
 * An iterator sees a record once it is stable, or with DIOXIDE_LOG_READ_UNSYNCED once it is
 * written. It remains usable after the log was closed, until another writer opens the log.
 *
 * # Return value
 *
 * The LSN of the record. 0 if there is none, or a negative errno; then `*data` is NULL, `*length`
 * is 0, and the position is unchanged.
 *
 * # Errors
 *
 * - ERANGE: the record was removed by `dioxide_log_truncate_front`, or by `retain_bytes` or
 *   `retain_age_ms`; or by `dioxide_stream_truncate_front`.
 * - EUCLEAN: the record was damaged since it was written.
 * - EBADF: the log was opened by the process that this one was forked from. Or it was closed, and
 *   the record is not there any more.
 * - EINVAL: a pointer is NULL.
 * - EIO: an earlier write or flush failed, so an iterator that waits gets no more records.
 * - EIO and others: errors of the device.
 *
 * # Thread safety
 *
 * Any thread, one at a time for each iterator.
 *
 * # Safety
 *
 * `iter` is not closed; `data` and `length` have room for their values.
 */
int64_t dioxide_log_next(struct dioxide_log_iter *iter, const void **data, size_t *length);

/**
 * Closes an iterator. Its record is not valid any more. The log stays open.
 *
 * # Return value
 *
 * 0, or a negative errno.
 *
 * # Errors
 *
 * - EINVAL: `iter` is NULL.
 *
 * # Thread safety
 *
 * Any thread, while no other one is in a call with this iterator. The child of a fork may close
 * it, to free the memory.
 *
 * # Safety
 *
 * `iter` is not closed, and has no other user.
 */
int dioxide_log_iter_close(struct dioxide_log_iter *iter);

/**
 * Reports the counters of a write-ahead log.
 *
 * # Return value
 *
 * 0 with `stats` filled in, or a negative errno.
 *
 * # Errors
 *
 * - EBADF: `log` was opened by the process that this one was forked from.
 * - EINVAL: a pointer is NULL, or the member `size` was not set.
 *
 * # Thread safety
 *
 * As `dioxide_log_append`.
 *
 * # Safety
 *
 * `log` is open; `stats` has as many bytes as its size says.
 */
int dioxide_log_stats(struct dioxide_log *log, struct dioxide_log_stats *stats);

/**
 * Opens the log of streams in the directory `path`, or on a block device, and creates it if it is
 * missing. `options` may be NULL for the defaults.
 *
 * All streams share the segments of one log. So one write and one flush carry the records of all
 * that wait. Each stream is as a log of `dioxide_log_open`: for raft groups, shards and topics. A
 * stream that rests keeps no old segment, because a thread copies its records forward.
 *
 * After a crash each stream has every acknowledged record, as with `dioxide_log_open`.
 *
 * # Return value
 *
 * 0 with a handle in `*log`, to be closed by `dioxide_stream_log_close`; or a negative errno with
 * NULL there.
 *
 * # Errors
 *
 * As `dioxide_log_open`. EINVAL: also for a log without streams, a device with fewer than 5
 * segments, and with `retain_bytes`, `retain_age_ms` or DIOXIDE_LOG_READ_UNSYNCED.
 *
 * # Thread safety
 *
 * As `dioxide_log_open`.
 *
 * # Safety
 *
 * As `dioxide_log_open`.
 */
int dioxide_stream_log_open(const char *path,
                            const struct dioxide_log_options *options,
                            struct dioxide_stream_log **log);

/**
 * Makes a handle of the stream with the number `id`, any number. A stream begins with its first
 * record, so this writes nothing.
 *
 * # Return value
 *
 * 0 with a handle in `*stream`, to be closed by `dioxide_stream_close`; or a negative errno with
 * NULL there.
 *
 * # Errors
 *
 * - EBADF: `log` was opened by the process that this one was forked from.
 * - EINVAL: a pointer is NULL.
 *
 * # Thread safety
 *
 * As `dioxide_log_append`.
 *
 * # Safety
 *
 * `log` is open; `stream` has room for a pointer.
 */
int dioxide_stream_open(struct dioxide_stream_log *log,
                        uint64_t id,
                        struct dioxide_stream **stream);

/**
 * Writes the numbers of the streams that are in use to `ids`, in order, up to `count` of them. A
 * stream that was removed is not in use.
 *
 * # Return value
 *
 * The number of streams in use, which may be above `count`; or a negative errno.
 *
 * # Errors
 *
 * - EBADF: `log` was opened by the process that this one was forked from.
 * - EINVAL: `log` is NULL, or `ids` is NULL with a `count` above 0.
 *
 * # Thread safety
 *
 * As `dioxide_log_append`.
 *
 * # Safety
 *
 * `log` is open; `ids` has room for `count` numbers.
 */
int64_t dioxide_stream_log_ids(struct dioxide_stream_log *log, uint64_t *ids, size_t count);

/**
 * Appends `count` records to streams of the log as one atomic batch: after a crash all of them are
 * there, or none. Record `records[i]` belongs to `streams[i]`. Records of one stream have the
 * order of the list.
 *
 * Everything else is as with `dioxide_log_append`.
 *
 * # Return value
 *
 * 0, with the LSN of each record in its stream in `lsns`, unless that is NULL. Or a negative
 * errno, with `lsns` unchanged.
 *
 * # Errors
 *
 * As `dioxide_log_append_all`. EINVAL: also for a stream that is NULL or of another log, and if
 * `streams` is NULL with a `count` above 0.
 *
 * # Thread safety
 *
 * As `dioxide_log_append`.
 *
 * # Safety
 *
 * `log` and the streams are open. `streams`, `records` and, unless NULL, `lsns` have `count`
 * members. The memory of the records does not change during the call.
 */
int dioxide_stream_log_append_all(struct dioxide_stream_log *log,
                                  struct dioxide_stream *const *streams,
                                  const struct iovec *records,
                                  size_t count,
                                  int64_t *lsns);

/**
 * Makes all records of all streams stable that were acknowledged before the call. For a log with
 * DIOXIDE_LOG_ON_SYNC; otherwise they are stable already.
 *
 * # Return value
 *
 * 0, or a negative errno.
 *
 * # Errors
 *
 * As `dioxide_log_sync`.
 *
 * # Thread safety
 *
 * As `dioxide_log_append`.
 *
 * # Safety
 *
 * `log` is open.
 */
int dioxide_stream_log_sync(struct dioxide_stream_log *log);

/**
 * Writes the records in flight, and closes the log for all of its streams, as `dioxide_log_close`.
 * Streams and iterators stay, and are closed separately.
 *
 * # Return value
 *
 * 0, or a negative errno. The handle is invalid in either case, and must not be used again, not
 * even to be closed.
 *
 * # Errors
 *
 * As `dioxide_log_close`.
 *
 * # Thread safety
 *
 * As `dioxide_log_close`.
 *
 * # Safety
 *
 * `log` is open, and has no other user.
 */
int dioxide_stream_log_close(struct dioxide_stream_log *log);

/**
 * Appends `length` bytes of `data` as one record of a stream. Records of all streams that are
 * appended at the same time share a write and a flush. On return the record has the guarantees of
 * `dioxide_log_append`.
 *
 * # Return value
 *
 * The LSN of the record in its stream, or a negative errno.
 *
 * # Errors
 *
 * As `dioxide_log_append`. EBADF: also if the log was closed.
 *
 * # Thread safety
 *
 * As `dioxide_log_append`.
 *
 * # Safety
 *
 * `stream` is open; `data` has `length` bytes that do not change during the call.
 */
int64_t dioxide_stream_append(struct dioxide_stream *stream, const void *data, size_t length);

/**
 * Appends `count` records to a stream as one atomic batch, as `dioxide_log_append_all`. For
 * records of several streams see `dioxide_stream_log_append_all`.
 *
 * # Return value
 *
 * As `dioxide_log_append_all`.
 *
 * # Errors
 *
 * As `dioxide_log_append_all`. EBADF: also if the log was closed.
 *
 * # Thread safety
 *
 * As `dioxide_log_append`.
 *
 * # Safety
 *
 * `stream` is open; `records` has `count` members, each with memory that does not change during
 * the call.
 */
int64_t dioxide_stream_append_all(struct dioxide_stream *stream,
                                  const struct iovec *records,
                                  size_t count);

/**
 * Reads the record `lsn` of a stream into `into`, up to `length` bytes of it. A `length` of 0
 * returns the size of the record. Readers see a record once it is stable.
 *
 * # Return value
 *
 * As `dioxide_log_read`.
 *
 * # Errors
 *
 * As `dioxide_log_read`. ERANGE: the record was removed by `dioxide_stream_truncate_front`.
 *
 * # Thread safety
 *
 * As `dioxide_log_append`.
 *
 * # Safety
 *
 * `stream` is open; `into` has `length` bytes, exclusive to the caller.
 */
int64_t dioxide_stream_read(struct dioxide_stream *stream, int64_t lsn, void *into, size_t length);

/**
 * Removes all records of a stream below `lsn`, as `dioxide_log_truncate_front`.
 *
 * # Return value
 *
 * 0, or a negative errno.
 *
 * # Errors
 *
 * As `dioxide_log_truncate_front`. ENOSPC: two segments are in reserve for truncations, so this
 * works while the log is full.
 *
 * # Thread safety
 *
 * As `dioxide_log_append`.
 *
 * # Safety
 *
 * `stream` is open.
 */
int dioxide_stream_truncate_front(struct dioxide_stream *stream, int64_t lsn);

/**
 * Removes the record `lsn` of a stream and all above it, as `dioxide_log_truncate_back`.
 *
 * # Return value
 *
 * 0, or a negative errno.
 *
 * # Errors
 *
 * As `dioxide_log_truncate_back`.
 *
 * # Thread safety
 *
 * As `dioxide_log_append`.
 *
 * # Safety
 *
 * `stream` is open.
 */
int dioxide_stream_truncate_back(struct dioxide_stream *stream, int64_t lsn);

/**
 * Removes a stream with all of its records. Its next record has the LSN 1. On return the removal
 * is durable. After an error, or a crash before the return, the stream is as before or removed.
 *
 * # Return value
 *
 * 0, or a negative errno.
 *
 * # Errors
 *
 * As `dioxide_stream_truncate_front`.
 *
 * # Thread safety
 *
 * As `dioxide_log_append`.
 *
 * # Safety
 *
 * `stream` is open.
 */
int dioxide_stream_remove(struct dioxide_stream *stream);

/**
 * The lowest LSN that a stream has: that of the next record if it is empty.
 *
 * # Return value
 *
 * The LSN, or a negative errno.
 *
 * # Errors
 *
 * - EBADF: the log was opened by the process that this one was forked from.
 * - EINVAL: `stream` is NULL.
 *
 * # Thread safety
 *
 * As `dioxide_log_append`.
 *
 * # Safety
 *
 * `stream` is open.
 */
int64_t dioxide_stream_first_lsn(struct dioxide_stream *stream);

/**
 * The LSN that the next record of a stream gets.
 *
 * # Return value
 *
 * The LSN, or a negative errno.
 *
 * # Errors
 *
 * - EBADF: the log was opened by the process that this one was forked from.
 * - EINVAL: `stream` is NULL.
 *
 * # Thread safety
 *
 * As `dioxide_log_append`.
 *
 * # Safety
 *
 * `stream` is open.
 */
int64_t dioxide_stream_next_lsn(struct dioxide_stream *stream);

/**
 * The LSN behind the last stable record of a stream: all below it are stable.
 *
 * # Return value
 *
 * The LSN, or a negative errno.
 *
 * # Errors
 *
 * - EBADF: the log was opened by the process that this one was forked from.
 * - EINVAL: `stream` is NULL.
 *
 * # Thread safety
 *
 * As `dioxide_log_append`.
 *
 * # Safety
 *
 * `stream` is open.
 */
int64_t dioxide_stream_stable_lsn(struct dioxide_stream *stream);

/**
 * Makes an iterator over the records of a stream from `lsn` on, as `dioxide_log_iter_from`.
 * `dioxide_log_next` and `dioxide_log_iter_close` take it.
 *
 * # Return value
 *
 * As `dioxide_log_iter_from`.
 *
 * # Errors
 *
 * As `dioxide_log_iter_from`.
 *
 * # Thread safety
 *
 * As `dioxide_log_append`.
 *
 * # Safety
 *
 * `stream` is open; `iter` has room for a pointer.
 */
int dioxide_stream_iter_from(struct dioxide_stream *stream,
                             int64_t lsn,
                             struct dioxide_log_iter **iter);

/**
 * Makes an iterator over the records of a stream from `lsn` on that waits for each next one, as
 * `dioxide_log_follow`.
 *
 * # Return value
 *
 * As `dioxide_log_iter_from`.
 *
 * # Errors
 *
 * As `dioxide_log_iter_from`.
 *
 * # Thread safety
 *
 * As `dioxide_log_append`.
 *
 * # Safety
 *
 * `stream` is open; `iter` has room for a pointer.
 */
int dioxide_stream_follow(struct dioxide_stream *stream,
                          int64_t lsn,
                          struct dioxide_log_iter **iter);

/**
 * Closes a handle of a stream. The stream, its log and its iterators stay.
 *
 * # Return value
 *
 * 0, or a negative errno.
 *
 * # Errors
 *
 * - EINVAL: `stream` is NULL.
 *
 * # Thread safety
 *
 * Any thread, while no other one is in a call with this handle. The child of a fork may close it,
 * to free the memory.
 *
 * # Safety
 *
 * `stream` is not closed, and has no other user.
 */
int dioxide_stream_close(struct dioxide_stream *stream);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* DIOXIDE_H */
