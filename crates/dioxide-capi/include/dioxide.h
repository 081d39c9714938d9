/*
 * dioxide: concurrent, durable, safe direct I/O (O_DIRECT) for Linux. dioxide(3) is the overview.
 *
 * Generated from crates/dioxide-capi/src. Licensed under MIT or Apache-2.0, at your choice.
 */

#ifndef DIOXIDE_H
#define DIOXIDE_H

#include <stddef.h>
#include <stdint.h>

/**
 * An error that no call can return any more.
 */
#define DIOXIDE_LOG_ERROR 1

/**
 * Something does not work as it could: no growth ahead on this file system, no io_uring.
 */
#define DIOXIDE_LOG_WARNING 2

/**
 * Everything else.
 */
#define DIOXIDE_LOG_INFO 3

/**
 * Writes are stable after the next `dioxide_fdatasync` that begins after they returned.
 */
#define DIOXIDE_ON_SYNC 0

/**
 * Each write is stable when it returns, as with O_DSYNC. Writers that wait together share flushes.
 */
#define DIOXIDE_EVERY_WRITE 1

/**
 * Space ahead of the end is allocated and not written. After a crash the file system tells which blocks were written, so
 * the end is found without help. On XFS, on ext4 with extents and a journal, and on btrfs; elsewhere nothing is prepared.
 */
#define DIOXIDE_UNWRITTEN 0

/**
 * Space ahead of the end is filled with zeros, in the background: durable appends into it cost no journal commit. After a
 * crash the end is not known: `dioxide_recovery` reports a range, and the program, which knows its records, cuts with
 * `dioxide_ftruncate`. Also on ext3 and on ext4 without a journal.
 */
#define DIOXIDE_ZEROED 1

/**
 * Nothing is prepared ahead: every append moves the end of file in the kernel.
 */
#define DIOXIDE_NOT_AHEAD 2

/**
 * The next append goes on where the last one ended: a last block that is not full is written again with more in it.
 */
#define DIOXIDE_REWRITE 0

/**
 * The next append begins at the next block: no block is written twice, at the price of space. What lies between is zeros.
 */
#define DIOXIDE_PAD 1

/**
 * Plain calls, one at a time, even where there is io_uring: for tools that do not know io_uring, such as valgrind.
 */
#define DIOXIDE_QUEUE_PLAIN 1

/**
 * Only look. Nothing is changed, nothing is locked.
 */
#define DIOXIDE_INSPECT 0

/**
 * Cut where the end is certain, as opening does.
 */
#define DIOXIDE_CUT 1

/**
 * Cut even if another program changed the file since, at the end of what is written: for the owner, who knows by whom.
 */
#define DIOXIDE_FORCE 2

/**
 * The file was closed, or never grew ahead: nothing to do.
 */
#define DIOXIDE_CLEAN 0

/**
 * It carries the marker of the file that it was copied from: left alone.
 */
#define DIOXIDE_FOREIGN 1

/**
 * It was left grown; the end of what was written is known.
 */
#define DIOXIDE_KNOWN 2

/**
 * It was left with zeros, or what it held before it was recycled, behind its records. The end lies between `floor` and
 * `ceiling`, and only the program that knows the records can tell where, and cut there with `dioxide_ftruncate`.
 */
#define DIOXIDE_UNDECIDED 3

/**
 * It was left grown, and changed since by another program. Nothing is cut, except by force.
 */
#define DIOXIDE_DOUBTFUL 4

/**
 * A file that is open for direct I/O. Threads share it.
 */
struct dioxide_file;

/**
 * Operations of one thread, many in flight at a time.
 */
struct dioxide_queue;

/**
 * Takes a message: a level, a text of one line without an end of line, which is valid during the call, and what
 * `dioxide_set_log` was given.
 */
typedef void (*dioxide_log)(uint32_t level, const char *message, void *user_data);

/**
 * How a file is opened. A member that is 0 asks for the usual; so does NULL in place of the struct.
 *
 * It may get more members in later versions: initialise all of it, with `size` set to its sizeof, and a program and a library
 * of different versions understand each other. A library that does not know what a program asks for says so with E2BIG.
 */
struct dioxide_options {
    /**
     * sizeof(struct dioxide_options).
     */
    uint32_t size;
    /**
     * When writes through this handle are stable: DIOXIDE_ON_SYNC or DIOXIDE_EVERY_WRITE. Handles of one file may differ.
     */
    uint32_t durability;
    /**
     * How space ahead of the end is prepared: DIOXIDE_UNWRITTEN, DIOXIDE_ZEROED or DIOXIDE_NOT_AHEAD. The first handle of a
     * file that may write decides.
     */
    uint32_t growth;
    /**
     * What becomes of a last block that is not full: DIOXIDE_REWRITE or DIOXIDE_PAD. The first handle of a file that may write
     * decides.
     */
    uint32_t tail;
    /**
     * The largest step of growth, in bytes; 0 for 64 MiB. Larger steps are fewer, smaller ones hold up writers less.
     */
    uint64_t growth_cap_bytes;
    /**
     * The length that the file is expected to reach, in bytes, or 0: the first step of growth goes there at once. A hint,
     * never a limit.
     */
    uint64_t capacity_bytes;
};

/**
 * A finished operation. It never gets more members.
 */
struct dioxide_completion {
    /**
     * As it was given with the operation.
     */
    uint64_t user_data;
    /**
     * The offset of an append, the bytes that were written or read, 0 for a flush; or a negative errno, as the call of the same
     * name returns it.
     */
    int64_t result;
};

/**
 * What was found of a file. Set `size` before it is filled in.
 */
struct dioxide_recovery {
    /**
     * sizeof(struct dioxide_recovery).
     */
    uint32_t size;
    /**
     * DIOXIDE_CLEAN, DIOXIDE_FOREIGN, DIOXIDE_KNOWN, DIOXIDE_UNDECIDED or DIOXIDE_DOUBTFUL. Later versions may know more.
     */
    uint32_t verdict;
    /**
     * The file's size as found, in bytes.
     */
    uint64_t physical_size;
    /**
     * Everything below was certainly meant to be kept.
     */
    uint64_t floor;
    /**
     * Nothing above was written. The same as `floor` where the end is known.
     */
    uint64_t ceiling;
    /**
     * The same for people, in English. The library's, and valid until the next call by the same thread that fills such a
     * struct.
     */
    const char *text;
};

/**
 * What the memory, offsets and lengths of writes must be multiples of, in bytes. Set `size` before it is filled in.
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
     * Addresses of memory.
     */
    uint64_t memory;
    /**
     * Offsets and lengths of positional writes.
     */
    uint64_t offset;
    /**
     * Appends are packed into blocks of this. One that begins and ends at multiples of it is written without a copy.
     */
    uint64_t append;
};

/**
 * What was done on a file, through all its handles, since its first handle that may write was opened; all 0 for one that only reads.
 * Set `size` before it is filled in.
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
     * Bytes of these.
     */
    uint64_t append_bytes;
    /**
     * Requests sent to the kernel for appends, and for positional writes that are durable or extend the file.
     */
    uint64_t requests;
    /**
     * Bytes of these.
     */
    uint64_t request_bytes;
    /**
     * Requests that carried RWF_DSYNC.
     */
    uint64_t dsync_requests;
    /**
     * Operations that shared their request with another one.
     */
    uint64_t merged;
    /**
     * Bytes that were copied to be packed into blocks, with the zeros behind them.
     */
    uint64_t copied_bytes;
    /**
     * Requests that wrote the last block again, since it was not full.
     */
    uint64_t tail_rewrites;
    /**
     * Flushes sent, those behind RWF_DSYNC not included.
     */
    uint64_t flushes;
    /**
     * Growth steps done.
     */
    uint64_t growths;
    /**
     * Bytes of these.
     */
    uint64_t grown_bytes;
    /**
     * Times that an operation had to wait because the space ahead was used up.
     */
    uint64_t growth_waits;
    /**
     * Requests that wrote what a volume itself consists of, for a file inside of it.
     */
    uint64_t metadata_requests;
    /**
     * Operations that did not join a request because they were not adjacent to it.
     */
    uint64_t refused_gap;
    /**
     * Because the request would have been longer than the device's largest, or the operation is long by itself.
     */
    uint64_t refused_bytes;
    /**
     * Because the request would have had more segments than one call takes.
     */
    uint64_t refused_segments;
    /**
     * Because they lie on another member of a striped volume.
     */
    uint64_t refused_member;
    /**
     * Writes that had to wait because they share bytes, or a block, with another one.
     */
    uint64_t refused_order;
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * The message of the last error of the calling thread: what was attempted, on which file, at which offset, and what
 * stood in the way, in English and for people. Functions that succeed leave it alone.
 *
 * # Return value
 *
 * A string in UTF-8, never NULL, empty if nothing has failed in this thread yet. It is the library's, and valid until the
 * next call of any function of the library by the same thread.
 *
 * # Thread safety
 *
 * Any thread; each has its own message. The child of a fork begins with that of the thread that forked.
 */
const char *dioxide_last_error(void);

/**
 * Appends `length` bytes of `data`, any number and anywhere in memory.
 *
 * Concurrent appends get disjoint offsets without gaps, in the order in which they are taken (with DIOXIDE_PAD, gaps of zeros up
 * to the next block). They are merged into few requests, and durable ones share flushes. Many small appends by one thread
 * cost a write of a block each: from many threads, or in a queue, they share one.
 *
 * On return every byte below the end of `data` is written; with DIOXIDE_EVERY_WRITE it is stable as well, and every crash from
 * now on leaves it in the file. Without, a crash may take any part of what no `dioxide_fdatasync` covered, from some
 * point to the end. What is found after a crash may include appends that were never acknowledged, and ends where a block does,
 * in zeros or part of a record: records must tell by themselves whether they are whole. `data` is not used any more on return.
 *
 * # Return value
 *
 * The offset in bytes at which `data` stands; without any bytes, the length of the file. Or a negative errno.
 *
 * # Errors
 *
 * - ENOSPC, EDQUOT or EFBIG: no space. Nothing was written, and the same call works once there is.
 * - EIO: the device failed; or an append below this one did, so that this one is not part of the file. `dioxide_ftruncate` to
 *   `dioxide_size` gives up what lies beyond, and allows appending again. Where that fails with EIO as well, a flush has
 *   failed: mount the file system anew.
 * - EBADF: `file` is read-only, or was opened by the process that this one was forked from.
 * - EINVAL: `file` is NULL, or `data` is with a length above 0.
 * - EOPNOTSUPP: a device, which has no end to append to.
 *
 * # Thread safety
 *
 * Any number of threads at the same time, while none closes the handle.
 *
 * # Safety
 *
 * `file` is open; `data` has `length` bytes that nobody changes meanwhile.
 */
int64_t dioxide_append(struct dioxide_file *file,
                       const void *data,
                       size_t length);

/**
 * Writes `length` bytes of `data` at `offset`: all of them or an error, never short.
 *
 * `offset`, `length` and the address of `data` are multiples of what `dioxide_alignment` says; `dioxide_alloc` gives such
 * memory. Beyond the end it extends the file, and what it leaves out is a hole that reads as zeros. Concurrent writes of the
 * same bytes have no order.
 *
 * On return the bytes are written, and with DIOXIDE_EVERY_WRITE stable. After an error, or a crash before they were stable, any
 * part of the range may hold old or new bytes.
 *
 * # Return value
 *
 * `length`, or a negative errno.
 *
 * # Errors
 *
 * As `dioxide_append`, and:
 * - EINVAL: not aligned (the message says what must be a multiple of what), or `offset` is negative.
 * - ENOSPC: also beyond the end of a device.
 * - EOPNOTSUPP: a gap over recycled space, which would show what was there.
 *
 * # Thread safety
 *
 * As `dioxide_append`.
 *
 * # Safety
 *
 * As `dioxide_append`.
 */
int64_t dioxide_pwrite(struct dioxide_file *file,
                       const void *data,
                       size_t length,
                       int64_t offset);

/**
 * Reads up to `length` bytes at `offset` into `into`.
 *
 * Any memory, offset and length will do; what is aligned costs least. It sees every write that was acknowledged before the call,
 * and never space that was only grown.
 *
 * # Return value
 *
 * The number of bytes read: `length`, or fewer up to the end of the file, 0 at the end; or a negative errno. Memory behind the
 * bytes read may have been set to zero; after an error it may hold anything.
 *
 * # Errors
 *
 * - EINVAL: `file` is NULL, `into` is with a length above 0, or `offset` is negative.
 * - EBADF: the handle was opened for writing by the process that this one was forked from.
 * - EIO and others: what the device answers.
 * - EAGAIN: the process that writes the file changes it so fast that no two looks agree; only for a reader beside it.
 *
 * # Thread safety
 *
 * As `dioxide_append`.
 *
 * # Safety
 *
 * `file` is open; `into` has `length` bytes that are the caller's alone.
 */
int64_t dioxide_pread(struct dioxide_file *file,
                      void *into,
                      size_t length,
                      int64_t offset);

/**
 * Makes everything stable that was acknowledged before the call, through whatever handle of the file. Callers that wait
 * together share a flush.
 *
 * On return every crash leaves it in the file.
 *
 * # Return value
 *
 * 0, or a negative errno.
 *
 * # Errors
 *
 * - EIO: the flush failed. That is final: every file of the process on the same file system fails from now on, until the file
 *   system is mounted (or the device opened) anew, because the kernel may have dropped what it could not write.
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
 * Cuts the file to `length` bytes, or extends it by a hole. Waits for operations in flight.
 *
 * On return the length is durable, as is everything written before; space grown ahead is given back, and appending that had
 * ended with a failure is possible again.
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
 * - EIO, EFBIG, ENOSPC and others: what the kernel answers.
 *
 * # Thread safety
 *
 * As `dioxide_append`. What other threads have in a queue must be let go on: they wait for it or reap it.
 *
 * # Safety
 *
 * `file` is open.
 */
int dioxide_ftruncate(struct dioxide_file *file,
                      int64_t length);

/**
 * Makes an empty file of this one that keeps its space, as a new log: written space is the fastest to append to durably. Waits
 * for operations in flight.
 *
 * On return the length is 0, and the file never shows what it held. Nothing is erased: until the file is closed, a crash leaves
 * it undecided (see `dioxide_recovery`) with the old content behind what was appended. Old records look as valid there as
 * new ones, so each must tell in which life of the file it was written.
 *
 * # Return value
 *
 * 0, or a negative errno; the file is then as it was.
 *
 * # Errors
 *
 * - EOPNOTSUPP: the file does not grow ahead, or its blocks are not written over where they lie.
 * - EUCLEAN: another program changed the size.
 * - EBADF: `file` is read-only, or was opened by the process that this one was forked from.
 * - EINVAL: `file` is NULL.
 * - What the kernel answers.
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
 * The length in bytes: the end of what is written, without space that was only grown.
 *
 * Exact in the process that writes the file. Read-only in another process it goes by what the writer noted and what the file
 * system tells: to the block, with appends that were not yet acknowledged; with DIOXIDE_ZEROED, the last durable end noted.
 *
 * # Return value
 *
 * The length, or a negative errno.
 *
 * # Errors
 *
 * - EINVAL: `file` is NULL.
 * - For a reader beside another process: what the kernel answers, and EAGAIN if the file changes so fast that no two looks
 *   agree.
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
 * How space is really prepared ahead of the end: DIOXIDE_NOT_AHEAD where the file system could not undo it after a crash
 * (`dioxide_set_log` tells why), for a handle that only reads, and in the child of a fork.
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
 * The descriptor, to inspect the file with: fstat(2), for instance. It is the library's: closing it, or writing through it,
 * breaks what the library promises. Of a striped volume it is that of the first member.
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
 * One more handle of the file, with the same rights and options, to be closed by itself.
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
 * Gives a handle up, and waits for what is in flight. With the last one of a file that may write, the file becomes what any other
 * program would leave, durably: its size is its length, without space grown ahead and without a marker.
 *
 * Operations on the file that a queue has submitted are waited for; those that were only queued fail with EBADF.
 *
 * # Return value
 *
 * 0, or a negative errno. The handle is gone in either case, and must not be used again, not even to be closed.
 *
 * # Errors
 *
 * - EBUSY: another process has the file open for writing. The file stays grown, and the next open recovers it.
 * - EUCLEAN: another program changed the size of the file, so it was not truncated; or wrote above the end, and the file is
 *   truncated behind that.
 * - EBADF: the handle was opened for writing by the process that this one was forked from. Nothing happened to the file.
 * - EINVAL: `file` is NULL.
 * - EIO and others: what the kernel answers. The next open recovers the file.
 *
 * # Thread safety
 *
 * Any thread, while no other one is in a call with this handle.
 *
 * # Safety
 *
 * `file` is open, and nobody else uses it.
 */
int dioxide_close(struct dioxide_file *file);

/**
 * Has `log` called with what the library has to say beside its answers: why a file does not grow ahead, that there is no
 * io_uring, an error that came too late for any call. Without, nobody hears it: the library never prints.
 *
 * Once for each process, before the first file is opened. `log` may be called by any thread, also by several at the same time,
 * and while the library has locks: it must not call the library, nor throw, nor leave by longjmp(3).
 *
 * # Return value
 *
 * 0, or a negative errno.
 *
 * # Errors
 *
 * - EALREADY: it was called before; the first one stays.
 * - EINVAL: `log` is NULL.
 *
 * # Thread safety
 *
 * Any thread. The child of a fork has the same.
 *
 * # Safety
 *
 * `log` may be called as described, with `user_data`, until the process ends.
 */
int dioxide_set_log(dioxide_log log,
                    void *user_data);

/**
 * `length` bytes of zeros, at a multiple of 4096 bytes, which every device and file system takes for direct I/O.
 *
 * # Return value
 *
 * Memory that `dioxide_free` (or free(3)) gives back, never NULL for a `length` of 0; or NULL with a message in
 * `dioxide_last_error` where there is no memory.
 *
 * # Thread safety
 *
 * Any thread.
 */
void *dioxide_alloc(size_t length);

/**
 * Gives back what `dioxide_alloc` gave. NULL does nothing. Not while an operation of a queue has it.
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
 * Sets what all files of the process together may have grown ahead, in bytes; 2 GiB by default. An append that needs more
 * gets just what it needs.
 *
 * # Thread safety
 *
 * Any thread.
 */
void dioxide_set_growth_budget(uint64_t bytes);

/**
 * Opens `path`, a regular file or a block device, for direct I/O.
 *
 * `flags` and `mode` are those of open(2): O_RDONLY, or O_RDWR with O_CREAT, O_EXCL and O_TRUNC. O_WRONLY is taken as
 * O_RDWR, since recovery must read. O_DSYNC and O_SYNC are DIOXIDE_EVERY_WRITE. O_TMPFILE makes a file without a name in the
 * directory `path`. O_DIRECT and O_CLOEXEC always hold and may be left out; O_APPEND and other flags are refused.
 * `options` may be NULL for the usual.
 *
 * Opening for writing takes a lock against other writers (an OFD lock on one byte near the largest offset; one process at a
 * time holds a file so, with any number of threads and handles), recovers what a crash left behind, which
 * `dioxide_recovery` reports, and makes what it found durable. A name that was created is durable on return.
 *
 * The file grows ahead of its end while it is open: other programs see the grown size until it is closed. A process that
 * ends without `dioxide_close` leaves it so; opening it again, or dioxide_recover, brings it into order.
 *
 * # Return value
 *
 * 0 with a handle in `*file`, which `dioxide_close` gives back; or a negative errno with NULL there. A file may be opened
 * several times in one process: all handles see one length.
 *
 * # Errors
 *
 * - EAGAIN: another process has the file open for writing.
 * - EBUSY: the block device is in use; or a crash left the file grown, and another process has it open for writing.
 * - E2BIG: `options` ask for what this version of the library does not know.
 * - EINVAL: a pointer is NULL, or flags or options make no sense.
 * - EIO: a flush failed on that file system before; mount it anew.
 * - EOPNOTSUPP: no direct I/O here, or neither a file nor a device.
 * - EUCLEAN: a crash left the file grown, and another program changed it since: open it O_RDONLY to look, or recover it by
 *   force.
 * - What open(2) answers, such as ENOENT, EEXIST and EACCES.
 *
 * # Thread safety
 *
 * Any thread. Waits up to a quarter of a second for a lock or a busy device. After a fork the child opens its files anew.
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
 * Opens several files, or several block devices, as one: chunks of `chunk_bytes` bytes lie on them in turn.
 *
 * `paths` has `count` members, the same in the same order each time; `chunk_bytes` is a multiple of 4096 and of the file systems'
 * blocks, usually 65536 to 1048576. With O_CREAT, files that do not exist or are empty become a volume, and so do devices whose
 * first 4096 bytes are zeros; what holds anything else is refused. Each member begins with a chunk that holds a header, by
 * which one that is missing, in the wrong place, of another volume or of another time is found. A flush is one of all
 * members, and fails for all. Everything else is as with `dioxide_open`, but for O_TMPFILE, which is refused.
 *
 * # Return value
 *
 * As `dioxide_open`.
 *
 * # Errors
 *
 * As `dioxide_open`, and:
 * - EINVAL: also a chunk that is not such a multiple.
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
 * Opens the regular file `path` inside of `volume`, an ext2 or ext3 file system that is not mounted: an image file, or a block
 * device.
 *
 * `path` begins at the root of the volume. `flags` are as with `dioxide_open`, without O_CREAT and O_TMPFILE: files are not made
 * here. Offsets and lengths of `dioxide_pwrite` are multiples of the volume's block, and the file does not grow ahead. Files of
 * one volume may be open at the same time in one process; another process is refused while any of them is open for
 * writing. When the last one is closed, e2fsck finds nothing; after a crash `e2fsck -p` must be run before the volume is
 * opened again, and finds every durable byte.
 *
 * # Return value
 *
 * As `dioxide_open`.
 *
 * # Errors
 *
 * As `dioxide_open` for the volume, and:
 * - EOPNOTSUPP: no ext2 or ext3, a feature beyond these, a volume that must be checked first, a path that names no regular
 *   file, or O_CREAT.
 * - EUCLEAN: the volume contradicts itself.
 *
 * # Thread safety
 *
 * As `dioxide_open`.
 *
 * # Safety
 *
 * Both paths are strings; `options` has as many bytes as its size says.
 */
int dioxide_open_within(const char *volume,
                        const char *path,
                        int flags,
                        const struct dioxide_options *options,
                        struct dioxide_file **file);

/**
 * Makes a queue for up to `depth` operations that are queued, in flight, or finished and not reaped. On io_uring where there is
 * one (Linux 5.6, at its best from 6.1 on), unless `flags` has DIOXIDE_QUEUE_PLAIN; elsewhere it makes plain calls, with the same
 * results.
 *
 * A queue is of the thread that makes it, and refuses others. Free it before that thread ends: nobody else can, and whoever
 * waits for what it has in flight would wait for ever. A thread needs one only, for any number of files. Queues of other threads
 * and blocking calls may use the same files at the same time; they may wait for what this queue has in flight, so
 * come back to it (`dioxide_queue_submit`, `dioxide_queue_reap`) as long as that is so.
 *
 * Memory that an operation was given is the library's until the operation was reaped or the queue freed: it must stay where it
 * is; what is written must not change, and what is read into must not be looked at. That holds as well when the file is
 * closed meanwhile.
 *
 * # Return value
 *
 * 0 with a queue in `*queue`, which `dioxide_queue_free` gives back; or a negative errno with NULL there.
 *
 * # Errors
 *
 * - EINVAL: `queue` is NULL, `depth` is 0, or `flags` are not known.
 *
 * # Thread safety
 *
 * Any thread, which owns it then. After a fork it is the parent's: operations of the child come back with EBADF.
 *
 * # Safety
 *
 * `queue` has room for a pointer.
 */
int dioxide_queue_new(uint32_t depth,
                      uint32_t flags,
                      struct dioxide_queue **queue);

/**
 * Queues an append of `length` bytes of `data`, as `dioxide_append`. It begins when the queue is submitted or reaped. Appends of a
 * queue to one file stand there in the order in which they were queued.
 *
 * # Return value
 *
 * 0, and the operation is reaped later; or a negative errno, and it is not. What goes wrong with the operation itself comes
 * with its completion.
 *
 * # Errors
 *
 * - EAGAIN: the queue is full. Reap some.
 * - EPERM: another thread's queue.
 * - EINVAL: `queue` or `file` is NULL, or the memory is with a length above 0.
 *
 * # Thread safety
 *
 * The queue's thread only.
 *
 * # Safety
 *
 * `queue` and `file` are there; `data` has `length` bytes that nobody changes until the operation was reaped or the queue freed.
 */
int dioxide_queue_append(struct dioxide_queue *queue,
                         struct dioxide_file *file,
                         const void *data,
                         size_t length,
                         uint64_t user_data);

/**
 * Queues a write of `length` bytes of `data` at `offset`, as `dioxide_pwrite`.
 *
 * # Return value
 *
 * As `dioxide_queue_append`.
 *
 * # Errors
 *
 * As `dioxide_queue_append`; also EINVAL for a negative `offset`. That it is not aligned comes with the completion.
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
 * Queues a read of up to `length` bytes at `offset` into `into`, as `dioxide_pread`. One that is not aligned may take several
 * transfers, one after the other.
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
 * As `dioxide_queue_append`, and nobody reads `into` either.
 */
int dioxide_queue_pread(struct dioxide_queue *queue,
                        struct dioxide_file *file,
                        void *into,
                        size_t length,
                        int64_t offset,
                        uint64_t user_data);

/**
 * Queues a flush, as `dioxide_fdatasync`: it covers the writes that had finished when it was submitted, and none that are in flight
 * with it.
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
 * `queue` and `file` are there.
 */
int dioxide_queue_fdatasync(struct dioxide_queue *queue,
                            struct dioxide_file *file,
                            uint64_t user_data);

/**
 * Begins all that is queued. Does not wait, unless without io_uring. What is submitted together goes out in few requests, and
 * shares flushes.
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
 * `queue` is there.
 */
int dioxide_queue_submit(struct dioxide_queue *queue);

/**
 * Begins all that is queued, waits until at least `least` operations have finished, or all there are if those are fewer, and
 * gives up to `room` of what has finished, oldest first. It sleeps while it waits; with a `least` of 0 it does not wait.
 *
 * What holds when an operation is reaped is what holds when the call of the same name returns; its memory is the program's
 * again.
 *
 * # Return value
 *
 * How many completions were written to `completions`, 0 if nothing is outstanding; or a negative errno. If some of them have
 * failed, `dioxide_last_error` has the message of the last of those.
 *
 * # Errors
 *
 * - EPERM: another thread's queue.
 * - EINVAL: `queue` is NULL, `completions` is with a `room` above 0, or `room` is below `least` or above INT_MAX.
 *
 * # Thread safety
 *
 * The queue's thread only.
 *
 * # Safety
 *
 * `queue` is there; `completions` has room for as many as `room` says.
 */
int dioxide_queue_reap(struct dioxide_queue *queue,
                       struct dioxide_completion *completions,
                       uint32_t room,
                       uint32_t least);

/**
 * How many operations are queued, in flight, or finished and not reaped.
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
 * `queue` is there.
 */
int64_t dioxide_queue_outstanding(struct dioxide_queue *queue);

/**
 * Whether the queue works on io_uring.
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
 * `queue` is there.
 */
int dioxide_queue_uses_io_uring(struct dioxide_queue *queue);

/**
 * Waits until everything that was submitted is finished, and gives the queue up. What was only queued never happens. Memory that
 * operations were given is the program's again.
 *
 * # Return value
 *
 * 0, or a negative errno with the queue as it was.
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
 * `queue` is there, and not used again.
 */
int dioxide_queue_free(struct dioxide_queue *queue);

/**
 * What a crash had left of a file when it was opened for writing, and what was made of it.
 *
 * With DIOXIDE_UNDECIDED the length is the ceiling: read from the floor on, find the last of the records, and cut there with
 * `dioxide_ftruncate`. Until then the question comes again with each open.
 *
 * # Return value
 *
 * 1 with `recovery` filled in; 0 if the file was in order, with DIOXIDE_CLEAN there and the rest 0; or a negative errno.
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
int dioxide_recovery(struct dioxide_file *file,
                     struct dioxide_recovery *recovery);

/**
 * Looks at a file that a crash may have left open, and with DIOXIDE_CUT or DIOXIDE_FORCE in `how` brings it into order. Opening
 * for writing does the same; this is for looking, and for files that opening refuses.
 *
 * On return a file that was cut has its new length durably.
 *
 * # Return value
 *
 * 0 with `found` filled in with what was found before anything was done, or a negative errno.
 *
 * # Errors
 *
 * - EINVAL: a pointer is NULL, the member `size` was not set, or `how` is none of the three.
 * - EAGAIN: a process, this one or another, has the file open for writing; with DIOXIDE_INSPECT, it changes the file so fast
 *   that no two looks agree.
 * - EBUSY: another process has the file open for writing, so it is not truncated.
 * - EIO: a flush failed on that file system before; mount it anew.
 * - EOPNOTSUPP: a block device, which does not grow, or no direct I/O.
 * - What the kernel answers.
 *
 * # Thread safety
 *
 * Any thread. It opens and closes the file, which ends the POSIX locks that the process has on it.
 *
 * # Safety
 *
 * `path` is a string; `found` has as many bytes as its size says.
 */
int dioxide_recover(const char *path,
                    uint32_t how,
                    struct dioxide_recovery *found);

/**
 * As `dioxide_recover`, for a striped volume of files: `paths` and `chunk_bytes` as with `dioxide_open_striped`.
 *
 * # Return value
 *
 * As `dioxide_recover`.
 *
 * # Errors
 *
 * As `dioxide_recover`, and:
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
 * What `dioxide_pwrite` wants to be aligned, and to what. Appends and reads take anything, and cost least if they are aligned.
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
int dioxide_alignment(struct dioxide_file *file,
                      struct dioxide_alignment *alignment);

/**
 * What was done on the file so far.
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

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* DIOXIDE_H */
