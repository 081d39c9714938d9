// A random program: calls on files opened O_DIRECT, one line of output for each with its result.
//
//   posix SEED OPS          OPS: numbers and ranges of operations, as in 1-200 or 3,9,20-22
//
// Each operation depends only on the seed and its number, so that a test can omit others. In empty
// directories, with and without dioxide, it must print the same lines and leave the same files. It
// works in the current directory, and does not print its path.
#define _GNU_SOURCE
#include "common.h"
#include <aio.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define SLOTS 8
#define FILES 4
#define ARENA (1 << 20)

extern char **environ;

// In programs built with an older libc.
#ifdef __x86_64__
int old_fstat(int version, int fd, struct stat *stat);
__asm__(".symver old_fstat, __fxstat@GLIBC_2.2.5");
#else
static int old_fstat(int version, int fd, struct stat *stat) {
    (void)version;
    return fstat(fd, stat);
}
#endif

struct slot {
    int fd; // -1: nothing
    int file;
};

static struct slot slots[SLOTS];
static uint64_t seed, state;
static unsigned number;         // of the operation
static const char *who = "";    // "child " in a child of a fork
static int depth;               // of forks
static int only_existing;       // no operation that opens a file
static const char *operations_to_do = "";
static char arena[ARENA] __attribute__((aligned(BLOCK)));
static char other[ARENA] __attribute__((aligned(BLOCK)));

// --- random choices ---

static uint64_t below(uint64_t end) {
    state = scramble(state);
    return (state >> 11) % end;
}

static int one_in(unsigned n) {
    return below(n) == 0;
}

// --- output ---

__attribute__((format(printf, 1, 2))) static void say(const char *format, ...) {
    char line[1024];
    int len = snprintf(line, sizeof line, "%s%u ", who, number);
    va_list arguments;
    va_start(arguments, format);
    len += vsnprintf(line + len, sizeof line - len - 1, format, arguments);
    va_end(arguments);
    line[len++] = '\n';
    if (write(1, line, len) != len)
        _exit(2);
}

// The name of the error of a call that returned `result`.
static const char *why(long result) {
    return result < 0 ? strerrorname_np(errno) : "";
}

static const char *name_of(int file) {
    static const char *const names[FILES] = {"f0", "f1", "f2", "f3"};
    return names[file];
}

// --- slots ---

// A slot with a descriptor. Rarely, or if there is none, one without.
static struct slot *any_slot(void) {
    struct slot *slot = &slots[below(SLOTS)];
    for (int i = 0; i < SLOTS && slot->fd < 0 && !one_in(40); i++)
        slot = &slots[(slot - slots + 1) % SLOTS];
    return slot;
}

// An empty slot. Closes a descriptor if there is none.
static struct slot *free_slot(void) {
    struct slot *slot = &slots[below(SLOTS)];
    for (int i = 0; i < SLOTS && slot->fd >= 0; i++)
        slot = &slots[(slot - slots + 1) % SLOTS];
    if (slot->fd >= 0) {
        int result = close(slot->fd);
        say("close fd %d (for another) = %d %s", slot->fd, result, why(result));
        slot->fd = -1;
    }
    return slot;
}

static void forget(int fd) {
    for (int i = 0; i < SLOTS; i++)
        if (slots[i].fd == fd)
            slots[i].fd = -1;
}

static long size_of(int fd) {
    struct stat stat;
    return fstat(fd, &stat) == 0 ? (long)stat.st_size : 0;
}

// --- arguments ---

// The kernel refuses a misaligned direct transfer at any of its extents, after it has written some
// of the others or not. So such a transfer has one extent.
static size_t any_len(int fd) {
    switch (below(16)) {
    case 0:
        return 0;
    case 1:
        return 1 + below((fcntl(fd, F_GETFL) & O_DIRECT) != 0 ? 511 : 9000);
    case 2:
    case 3:
        return 512 * (1 + below(16));
    case 4:
        return BLOCK * (1 + below(32));
    default:
        return BLOCK * (1 + below(4));
    }
}

static long any_offset(int fd) {
    long size = size_of(fd), end = (size + BLOCK - 1) & -BLOCK;
    switch (below(16)) {
    case 0:
        return -1 - (long)below(2) * BLOCK;
    case 1:
        return (long)below(64 * BLOCK);
    case 2:
        return 512 * (long)below(512);
    case 3:
        return size;
    case 4:
    case 5:
    case 6:
        return end;
    case 7:
        return end + BLOCK * (1 + (long)below(8));
    case 8:
        return end < 2 * BLOCK ? 0 : end - BLOCK * (1 + (long)below(2));
    default:
        return BLOCK * (long)below(48);
    }
}

static char *any_memory(void) {
    switch (below(24)) {
    case 0:
        return arena + 1;
    case 1:
        return arena + 512;
    case 2:
        return arena + 4;
    default:
        return arena + BLOCK * below(8);
    }
}

static int any_rwf(int writes) {
    switch (below(8)) {
    case 0:
        return RWF_DSYNC;
    case 1:
        return RWF_SYNC;
    case 2:
        return writes ? RWF_APPEND : 0;
    case 3:
        return 1 << 30; // unknown to the kernel
    default:
        return 0;
    }
}

static uint64_t key(void) {
    return scramble(seed) + number;
}

// --- open and close ---

static int any_flags(void) {
    static const int access[] = {O_RDWR, O_RDWR, O_RDWR, O_WRONLY, O_WRONLY, O_RDONLY};
    int flags = access[below(6)];
    if (!one_in(8))
        flags |= O_DIRECT;
    if (one_in(4))
        flags |= O_APPEND;
    if (one_in(6))
        flags |= O_TRUNC;
    if (one_in(6))
        flags |= O_DSYNC;
    if (one_in(10))
        flags |= O_SYNC;
    if (one_in(5))
        flags |= O_CLOEXEC;
    return flags;
}

static void do_open(void) {
    struct slot *slot = free_slot();
    int file = (int)below(FILES), flags = any_flags(), more = one_in(12) ? O_EXCL : 0, fd;
    char path[4096];
    const char *name = name_of(file);
    switch (below(10)) {
    case 0:
        fd = open(name, flags); // may not exist
        say("open %s %#o = %d %s", name, flags, fd, why(fd));
        break;
    case 1:
        fd = openat(AT_FDCWD, name, flags);
        say("openat %s %#o = %d %s", name, flags, fd, why(fd));
        break;
    case 2:
        if (getcwd(path, sizeof path - 8) == NULL)
            die("getcwd");
        strcat(strcat(path, "/"), name);
        fd = open(path, flags | O_CREAT | more, 0644);
        say("open (absolute) %s %#o = %d %s", name, flags | more, fd, why(fd));
        break;
    case 3: {
        int dir = open(".", O_RDONLY | O_DIRECTORY);
        fd = openat(dir, name, flags | O_CREAT | more, 0600);
        say("openat %d %s %#o = %d %s", dir, name, flags | more, fd, why(fd));
        close(dir);
        break;
    }
    case 4: {
        struct slot *from = any_slot();
        snprintf(path, sizeof path, "/proc/self/fd/%d", from->fd);
        fd = open(path, flags);
        file = from->file;
        say("open /proc/self/fd/%d %#o = %d %s", from->fd, flags, fd, why(fd));
        break;
    }
    case 5:
        snprintf(path, sizeof path, "./%s", name);
        fd = open64(path, flags | O_CREAT | more, 0644);
        say("open64 %s %#o = %d %s", path, flags | more, fd, why(fd));
        break;
    default:
        fd = open(name, flags | O_CREAT | more, 0644);
        say("open %s %#o = %d %s", name, flags | O_CREAT | more, fd, why(fd));
    }
    slot->fd = fd;
    slot->file = file;
}

static void do_creat(void) {
    struct slot *slot = free_slot();
    slot->file = (int)below(FILES);
    slot->fd = creat(name_of(slot->file), 0644);
    say("creat %s = %d %s", name_of(slot->file), slot->fd, why(slot->fd));
}

static void do_tmpfile(void) {
    struct slot *slot = free_slot();
    int file = (int)below(FILES);
    int fd = open(".", O_TMPFILE | O_RDWR | O_DIRECT, 0600);
    say("open O_TMPFILE = %d %s", fd, why(fd));
    slot->fd = fd;
    slot->file = file;
    if (fd >= 0 && one_in(3)) {
        char path[64];
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        int result = linkat(AT_FDCWD, path, AT_FDCWD, name_of(file), AT_SYMLINK_FOLLOW);
        say("linkat %s = %d %s", name_of(file), result, why(result));
    }
}

static void do_close(void) {
    struct slot *slot = any_slot();
    int result = close(slot->fd);
    say("close %d = %d %s", slot->fd, result, why(result));
    slot->fd = -1;
}

static void do_close_many(void) {
    int first = any_slot()->fd;
    if (first < 3)
        return;
    int flags = one_in(3) ? CLOSE_RANGE_CLOEXEC : 0;
    switch (below(3)) {
    case 0: {
        int last = first + (int)below(3), result = close_range(first, last, flags);
        say("close_range %d %d %d = %d %s", first, last, flags, result, why(result));
        for (int fd = first; flags == 0 && fd <= last; fd++)
            forget(fd);
        return;
    }
    case 1: {
        int result = close_range(first, ~0U, flags);
        say("close_range %d max %d = %d %s", first, flags, result, why(result));
        break;
    }
    default:
        flags = 0;
        closefrom(first);
        say("closefrom %d", first);
    }
    for (int i = 0; flags == 0 && i < SLOTS; i++)
        if (slots[i].fd >= first)
            slots[i].fd = -1;
}

static void do_dup(void) {
    struct slot *from = any_slot(), *to = free_slot();
    int fd, wanted = 20 + (int)below(20);
    switch (below(6)) {
    case 0:
        fd = dup(from->fd);
        say("dup %d = %d %s", from->fd, fd, why(fd));
        break;
    case 1:
        fd = fcntl(from->fd, F_DUPFD, wanted);
        say("F_DUPFD %d %d = %d %s", from->fd, wanted, fd, why(fd));
        break;
    case 2:
        fd = fcntl(from->fd, F_DUPFD_CLOEXEC, wanted);
        say("F_DUPFD_CLOEXEC %d %d = %d %s", from->fd, wanted, fd, why(fd));
        break;
    case 3:
        fd = dup3(from->fd, wanted, one_in(2) ? O_CLOEXEC : 0);
        say("dup3 %d %d = %d %s", from->fd, wanted, fd, why(fd));
        break;
    default: // often onto an open one
        wanted = one_in(2) ? any_slot()->fd : wanted;
        fd = dup2(from->fd, wanted);
        say("dup2 %d %d = %d %s", from->fd, wanted, fd, why(fd));
    }
    if (fd >= 0)
        forget(fd);
    int file = from->file;
    to->fd = fd;
    to->file = file;
}

// --- read and write ---

static void do_write(void) {
    int fd = any_slot()->fd, flags = any_rwf(1);
    size_t len = any_len(fd);
    char *memory = any_memory();
    long offset = any_offset(fd), result;
    fill(memory, len, key());
    switch (below(6)) {
    case 0:
    case 1:
        result = write(fd, memory, len);
        say("write %d %zu @%zd = %ld %s", fd, len, memory - arena, result, why(result));
        break;
    case 2:
    case 3:
        result = pwrite(fd, memory, len, offset);
        say("pwrite %d %zu %ld @%zd = %ld %s", fd, len, offset, memory - arena, result, why(result));
        break;
    case 4:
        result = pwrite64(fd, memory, len, offset);
        say("pwrite64 %d %zu %ld @%zd = %ld %s", fd, len, offset, memory - arena, result, why(result));
        break;
    default: {
        struct iovec one = {memory, len};
        if (one_in(3))
            offset = -1; // at the position
        result = pwritev2(fd, &one, 1, offset, flags);
        say("pwritev2 %d %zu %ld %#x = %ld %s", fd, len, offset, flags, result, why(result));
    }
    }
    if (memset(memory, 0xDE, len) == NULL)
        abort();
}

// The checksum of the bytes read. The bytes behind them are undefined, as after a failed read.
static uint32_t seen(const void *memory, size_t len, long result) {
    return checksum(memory, result < 0 ? 0 : (size_t)result < len ? (size_t)result : len);
}

static void do_read(void) {
    int fd = any_slot()->fd, flags = any_rwf(0);
    size_t len = any_len(fd);
    char *memory = any_memory();
    long offset = any_offset(fd), result;
    memset(memory, 0xDE, len);
    switch (below(6)) {
    case 0:
    case 1:
        result = read(fd, memory, len);
        say("read %d %zu @%zd = %ld %s %08x", fd, len, memory - arena, result, why(result), seen(memory, len, result));
        break;
    case 2:
    case 3:
        result = pread(fd, memory, len, offset);
        say("pread %d %zu %ld = %ld %s %08x", fd, len, offset, result, why(result), seen(memory, len, result));
        break;
    case 4:
        result = pread64(fd, memory, len, offset);
        say("pread64 %d %zu %ld = %ld %s %08x", fd, len, offset, result, why(result), seen(memory, len, result));
        break;
    default: {
        struct iovec one = {memory, len};
        if (one_in(3))
            offset = -1;
        result = preadv2(fd, &one, 1, offset, flags);
        say("preadv2 %d %zu %ld %#x = %ld %s %08x", fd, len, offset, flags, result, why(result),
            seen(memory, len, result));
    }
    }
}

static int any_vector(struct iovec *vector, size_t *total) {
    int count = (int)below(6), odd = one_in(8);
    *total = 0;
    for (int i = 0; i < count; i++) {
        size_t len = odd ? 256 * below(3) : BLOCK * below(3);
        vector[i] = (struct iovec){arena + *total + (odd && one_in(3) ? 2 : 0), len};
        *total += len;
    }
    if (one_in(40))
        return 1100; // more than the kernel accepts
    return count;
}

static void do_vector(void) {
    static struct iovec vector[1100];
    int fd = any_slot()->fd, flags = any_rwf(1);
    size_t total;
    int count = any_vector(vector, &total);
    long offset = any_offset(fd), result;
    fill(arena, total + 4, key());
    switch (below(7)) {
    case 0:
        result = writev(fd, vector, count);
        say("writev %d %d=%zu = %ld %s", fd, count, total, result, why(result));
        return;
    case 1:
        result = pwritev(fd, vector, count, offset);
        say("pwritev %d %d=%zu %ld = %ld %s", fd, count, total, offset, result, why(result));
        return;
    case 2:
        result = pwritev64(fd, vector, count, offset);
        say("pwritev64 %d %d=%zu %ld = %ld %s", fd, count, total, offset, result, why(result));
        return;
    case 3:
        result = pwritev2(fd, vector, count, offset, flags);
        say("pwritev2 %d %d=%zu %ld %#x = %ld %s", fd, count, total, offset, flags, result, why(result));
        return;
    case 4:
        result = readv(fd, vector, count);
        say("readv %d %d=%zu = %ld %s %08x", fd, count, total, result, why(result), seen(arena, total + 4, result));
        return;
    case 5:
        result = preadv(fd, vector, count, offset);
        break;
    default:
        result = preadv64v2(fd, vector, count, offset, 0);
    }
    say("preadv %d %d=%zu %ld = %ld %s %08x", fd, count, total, offset, result, why(result),
        seen(arena, total + 4, result));
}

static void do_bad_memory(void) {
    int fd = any_slot()->fd;
    long offset = any_offset(fd);
    char *nowhere = mmap(NULL, BLOCK, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    long result = one_in(2) ? pwrite(fd, nowhere, BLOCK, offset) : pread(fd, nowhere, BLOCK, offset);
    say("memory that is not there, %d %ld = %ld %s", fd, offset, result, why(result));
    munmap(nowhere, BLOCK);
}

// The kernel accepts read-only memory for writes, and not for reads.
static void do_read_only_memory(void) {
    int fd = any_slot()->fd;
    long offset = any_offset(fd);
    char *page = mmap(NULL, BLOCK, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    long written = pwrite(fd, page, BLOCK, offset);
    say("pwrite of zeros %d %ld = %ld %s", fd, offset, written, why(written));
    long read = pread(fd, page, BLOCK, offset);
    say("pread into read-only memory %d %ld = %ld %s", fd, offset, read, why(read));
    munmap(page, BLOCK);
}

static void do_seek(void) {
    static const int whences[] = {SEEK_SET, SEEK_SET, SEEK_CUR, SEEK_CUR, SEEK_END, SEEK_END, SEEK_DATA, SEEK_HOLE, 17};
    static const char *const names[] = {"SET", "SET", "CUR", "CUR", "END", "END", "DATA", "HOLE", "17"};
    int fd = any_slot()->fd;
    int which = (int)below(9);
    long offset = which >= 6 ? BLOCK * (long)below(48) : any_offset(fd);
    if (which == 2 || which == 3 || which == 4)
        offset = one_in(2) ? 0 : BLOCK * ((long)below(8) - 4);
    long result = one_in(2) ? lseek(fd, offset, whences[which]) : lseek64(fd, offset, whences[which]);
    say("lseek %d %ld %s = %ld %s", fd, offset, names[which], result, why(result));
}

// --- threads ---

struct writer {
    pthread_t thread;
    int fd, appends, failed;
    long from;
    unsigned index, threads, each;
    uint64_t key;
};

static void *writes(void *argument) {
    struct writer *writer = argument;
    char *memory = aligned_alloc(BLOCK, 2 * BLOCK), *seen = memory + BLOCK;
    for (unsigned i = 0; i < writer->each; i++) {
        // The order of appends varies, so all have the same content.
        long offset = writer->from + BLOCK * (long)(i * writer->threads + writer->index);
        fill(memory, BLOCK, writer->appends ? writer->key : writer->key + offset);
        if (writer->appends) {
            writer->failed += write(writer->fd, memory, BLOCK) != BLOCK;
        } else {
            writer->failed += pwrite(writer->fd, memory, BLOCK, offset) != BLOCK;
            long read = pread(writer->fd, seen, BLOCK, offset);
            writer->failed += 100 * (read == BLOCK && memcmp(memory, seen, BLOCK) != 0);
        }
    }
    free(memory);
    return NULL;
}

// Several threads extend the file at the same time, at fixed offsets or by appends.
static void do_burst(void) {
    struct slot *slot = any_slot();
    int flags = fcntl(slot->fd, F_GETFL), failed = 0;
    unsigned threads = 2 + (unsigned)below(7), each = 1 + (unsigned)below(12);
    long end = (size_of(slot->fd) + BLOCK - 1) & -BLOCK, from = one_in(4) ? 0 : end;
    struct writer writers[8];
    int appends = flags >= 0 && (flags & O_APPEND) != 0;
    for (unsigned i = 0; i < threads; i++) {
        writers[i] = (struct writer){0, slot->fd, appends, 0, from, i, threads, each, key()};
        if (pthread_create(&writers[i].thread, NULL, writes, &writers[i]) != 0)
            die("pthread_create");
    }
    for (unsigned i = 0; i < threads; i++) {
        pthread_join(writers[i].thread, NULL);
        failed += writers[i].failed;
    }
    say("%u threads %s %d %u blocks each from %ld, failed %d, then %ld bytes", threads, appends ? "append to" : "write",
        slot->fd, each, from, failed, size_of(slot->fd));
}

// --- sizes and names ---

static void do_stat(void) {
    struct slot *slot = any_slot();
    const char *name = name_of(one_in(4) ? (int)below(FILES) : slot->file);
    struct stat stat_ = {0};
    struct stat64 stat64_ = {0};
    struct statx statx_ = {0};
    int result;
    switch (below(9)) {
    case 0:
        result = stat(name, &stat_);
        say("stat %s = %d %s %ld", name, result, why(result), (long)stat_.st_size);
        return;
    case 1:
        result = lstat(name, &stat_);
        say("lstat %s = %d %s %ld", name, result, why(result), (long)stat_.st_size);
        return;
    case 2:
        result = fstatat(AT_FDCWD, name, &stat_, 0);
        say("fstatat %s = %d %s %ld", name, result, why(result), (long)stat_.st_size);
        return;
    case 3:
        result = fstatat(slot->fd, "", &stat_, AT_EMPTY_PATH);
        say("fstatat %d empty = %d %s %ld", slot->fd, result, why(result), (long)stat_.st_size);
        return;
    case 4:
        result = statx(AT_FDCWD, name, 0, STATX_BASIC_STATS, &statx_);
        say("statx %s = %d %s %ld", name, result, why(result), (long)statx_.stx_size);
        return;
    case 5:
        result = statx(slot->fd, "", AT_EMPTY_PATH, STATX_SIZE, &statx_);
        say("statx %d = %d %s %ld", slot->fd, result, why(result), (long)statx_.stx_size);
        return;
    case 6:
        result = fstat64(slot->fd, &stat64_);
        say("fstat64 %d = %d %s %ld", slot->fd, result, why(result), (long)stat64_.st_size);
        return;
    case 7:
        result = old_fstat(1, slot->fd, &stat_);
        say("__fxstat %d = %d %ld", slot->fd, result, (long)stat_.st_size);
        return;
    default:
        result = fstat(slot->fd, &stat_);
        say("fstat %d = %d %s %ld, mode %o, %ld links", slot->fd, result, why(result), (long)stat_.st_size,
            stat_.st_mode, (long)stat_.st_nlink);
    }
}

static void do_truncate(void) {
    struct slot *slot = any_slot();
    long size = one_in(3) ? (long)below(40 * BLOCK) : BLOCK * (long)below(40), result;
    if (one_in(20))
        size = -1;
    if (one_in(3)) {
        result = truncate(name_of(slot->file), size);
        say("truncate %s %ld = %ld %s", name_of(slot->file), size, result, why(result));
    } else {
        result = one_in(2) ? ftruncate(slot->fd, size) : ftruncate64(slot->fd, size);
        say("ftruncate %d %ld = %ld %s", slot->fd, size, result, why(result));
    }
}

static void do_fallocate(void) {
    static const int modes[] = {0,
                                0,
                                FALLOC_FL_KEEP_SIZE,
                                FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                FALLOC_FL_ZERO_RANGE,
                                FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE,
                                FALLOC_FL_COLLAPSE_RANGE};
    int fd = any_slot()->fd, mode = modes[below(7)];
    long offset = BLOCK * (long)below(32), len = BLOCK * (long)below(16);
    long result = one_in(2) ? fallocate(fd, mode, offset, len) : fallocate64(fd, mode, offset, len);
    say("fallocate %d %#x %ld %ld = %ld %s, then %ld bytes", fd, mode, offset, len, result, why(result), size_of(fd));
}

static void do_posix_fallocate(void) {
    int fd = any_slot()->fd;
    long offset = BLOCK * (long)below(32), len = BLOCK * (1 + (long)below(16));
    int error = posix_fallocate(fd, offset, len);
    say("posix_fallocate %d %ld %ld = %d, then %ld bytes", fd, offset, len, error, size_of(fd));
}

static void do_sync(void) {
    int fd = any_slot()->fd, result;
    switch (below(4)) {
    case 0:
        result = fsync(fd);
        say("fsync %d = %d %s", fd, result, why(result));
        return;
    case 1:
        result = sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE);
        say("sync_file_range %d = %d %s", fd, result, why(result));
        return;
    default:
        result = fdatasync(fd);
        say("fdatasync %d = %d %s", fd, result, why(result));
    }
}

static void do_names(void) {
    const char *name = name_of((int)below(FILES)), *to = name_of((int)below(FILES));
    int result;
    switch (below(5)) {
    case 0:
        result = unlink(name);
        say("unlink %s = %d %s", name, result, why(result));
        return;
    case 1:
        result = rename(name, to);
        say("rename %s %s = %d %s", name, to, result, why(result));
        return;
    case 2:
        result = link(name, to);
        say("link %s %s = %d %s", name, to, result, why(result));
        return;
    case 3:
        result = renameat2(AT_FDCWD, name, AT_FDCWD, to, RENAME_EXCHANGE);
        say("exchange %s %s = %d %s", name, to, result, why(result));
        return;
    default:
        result = symlink(name, to);
        say("symlink %s %s = %d %s", name, to, result, why(result));
    }
}

// --- flags of descriptors, locks, and rare calls ---

static void do_fcntl(void) {
    int fd = any_slot()->fd, result, flags = fcntl(fd, F_GETFL);
    switch (below(7)) {
    case 0:
        result = fcntl(fd, F_SETFL, flags ^ O_APPEND);
        say("F_SETFL %d O_APPEND turned = %d %s", fd, result, why(result));
        return;
    case 1:
        result = fcntl(fd, F_SETFL, flags ^ O_DIRECT);
        say("F_SETFL %d O_DIRECT turned = %d %s", fd, result, why(result));
        return;
    case 2:
        result = fcntl(fd, F_SETFL, flags ^ O_NONBLOCK);
        say("F_SETFL %d O_NONBLOCK turned = %d %s", fd, result, why(result));
        return;
    case 3:
        result = fcntl(fd, F_GETFD);
        say("F_GETFD %d = %d %s", fd, result, why(result));
        return;
    case 4:
        result = fcntl(fd, F_SETFD, one_in(2) ? FD_CLOEXEC : 0);
        say("F_SETFD %d = %d %s", fd, result, why(result));
        return;
    case 5:
        result = posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        say("posix_fadvise %d = %d", fd, result);
        return;
    default:
        say("F_GETFL %d = %#o %s", fd, flags, why(flags));
    }
}

static void do_lock(void) {
    static const short types[] = {F_RDLCK, F_WRLCK, F_WRLCK, F_UNLCK};
    int fd = any_slot()->fd, result;
    struct flock lock = {.l_type = types[below(4)],
                         .l_whence = SEEK_SET,
                         .l_start = one_in(3) ? 0 : BLOCK * (long)below(8),
                         .l_len = one_in(2) ? 0 : BLOCK * (long)below(8)};
    switch (below(5)) {
    case 0:
        result = flock(fd, LOCK_EX | LOCK_NB);
        say("flock %d = %d %s", fd, result, why(result));
        return;
    case 1:
        result = fcntl(fd, F_GETLK, &lock);
        say("F_GETLK %d = %d %s, type %d at %ld len %ld", fd, result, why(result), lock.l_type, (long)lock.l_start,
            (long)lock.l_len);
        return;
    case 2:
        result = fcntl(fd, F_OFD_SETLK, &lock);
        say("F_OFD_SETLK %d %d = %d %s", fd, lock.l_type, result, why(result));
        return;
    case 3:
        result = lockf(fd, F_TLOCK, 0);
        say("lockf %d = %d %s", fd, result, why(result));
        return;
    default:
        result = fcntl(fd, F_SETLK, &lock);
        say("F_SETLK %d %d %ld %ld = %d %s", fd, lock.l_type, (long)lock.l_start, (long)lock.l_len, result, why(result));
    }
}

static void do_mmap(void) {
    int fd = any_slot()->fd;
    long size = size_of(fd);
    size_t len = size <= 0 ? BLOCK : (size_t)size;
    int writes = one_in(2);
    char *map = mmap(NULL, len, PROT_READ | (writes ? PROT_WRITE : 0), MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
        say("mmap %d %zu = %s", fd, len, strerrorname_np(errno));
        return;
    }
    if (size <= 0) {
        say("mmap %d of nothing", fd);
    } else {
        // The whole last page: the bytes behind EOF are zeros.
        say("mmap %d %zu %08x", fd, len, checksum(map, (len + BLOCK - 1) & -BLOCK));
        if (writes) {
            fill(map + below(len), 1, key());
            msync(map, len, MS_SYNC);
        }
    }
    munmap(map, len);
}

static void do_copy(void) {
    int from = any_slot()->fd, to = any_slot()->fd;
    loff_t in = BLOCK * (long)below(8), out = BLOCK * (long)below(32);
    long result;
    switch (below(3)) {
    case 0:
        if (from == to)
            return;
        result = copy_file_range(from, &in, to, &out, BLOCK, 0);
        say("copy_file_range %d %d = %ld %s", from, to, result, why(result));
        return;
    case 1: {
        int pipes[2];
        if (pipe(pipes) != 0)
            die("pipe");
        result = sendfile(pipes[1], from, &in, BLOCK);
        say("sendfile %d = %ld %s", from, result, why(result));
        close(pipes[0]);
        close(pipes[1]);
        return;
    }
    default: {
        int pipes[2];
        if (pipe(pipes) != 0)
            die("pipe");
        if (write(pipes[1], arena, 100) != 100)
            die("pipe");
        result = splice(pipes[0], NULL, to, &out, 100, 0);
        say("splice to %d = %ld %s", to, result, why(result));
        close(pipes[0]);
        close(pipes[1]);
    }
    }
}

static void do_bytes_left(void) {
    int fd = any_slot()->fd, left = -1;
    int result = ioctl(fd, FIONREAD, &left);
    say("FIONREAD %d = %d %s %d", fd, result, why(result), left);
}

static void do_stream(void) {
    FILE *stream;
    if (one_in(2)) {
        const char *name = name_of((int)below(FILES));
        stream = fopen(name, one_in(3) ? "a+" : "r");
        say("fopen %s = %s", name, stream == NULL ? strerrorname_np(errno) : "ok");
    } else {
        int fd = dup(any_slot()->fd);
        int flags = fcntl(fd, F_GETFL);
        stream = fd < 0 ? NULL : fdopen(fd, (flags & O_ACCMODE) == O_WRONLY ? "w" : "r");
        say("fdopen %d", fd);
        if (stream == NULL && fd >= 0)
            close(fd);
    }
    if (stream == NULL)
        return;
    int sought = fseek(stream, 0, SEEK_END);
    say("its end = %d %ld", sought, ftell(stream));
    rewind(stream);
    size_t got = fread(other, 1, sizeof other, stream);
    say("fread = %zu %08x", got, checksum(other, got));
    fclose(stream);
}

static void do_aio(void) {
    int fd = any_slot()->fd;
    struct aiocb block = {0};
    block.aio_fildes = fd;
    block.aio_buf = arena;
    block.aio_nbytes = BLOCK;
    block.aio_offset = any_offset(fd);
    fill(arena, BLOCK, key());
    if (aio_write(&block) != 0) {
        say("aio_write %d = %s", fd, strerrorname_np(errno));
        return;
    }
    const struct aiocb *list[] = {&block};
    while (aio_error(&block) == EINPROGRESS)
        aio_suspend(list, 1, NULL);
    int error = aio_error(&block);
    say("aio_write %d %ld = %ld %d, then %ld bytes", fd, (long)block.aio_offset, (long)aio_return(&block), error,
        size_of(fd));
}

// Sends a descriptor to this process.
static void do_send(void) {
    struct slot *from = any_slot(), *to = free_slot();
    if (from->fd < 0)
        return;
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) != 0)
        die("socketpair");
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control = {0};
    char byte = 1;
    struct iovec data = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control.space};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &from->fd, sizeof(int));
    long sent = sendmsg(pair[0], &message, 0);
    long received = recvmsg(pair[1], &message, 0);
    memcpy(&to->fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(int));
    to->file = from->file;
    say("sent %d = %ld %ld, received as %d", from->fd, sent, received, to->fd);
    close(pair[0]);
    close(pair[1]);
}

static void do_limit(void) {
    struct slot *slot = any_slot();
    struct rlimit before, low;
    getrlimit(RLIMIT_FSIZE, &before);
    low = before;
    low.rlim_cur = BLOCK * below(24) + (one_in(4) ? 100 : 0);
    setrlimit(RLIMIT_FSIZE, &low);
    long offset = BLOCK * (long)below(24), len = BLOCK * (1 + (long)below(3));
    fill(arena, len, key());
    long result = pwrite(slot->fd, arena, len, offset);
    // The limit must end before the output, which may go to a file.
    const char *error = why(result);
    int cut = ftruncate(slot->fd, (long)low.rlim_cur + BLOCK);
    const char *cut_error = why(cut);
    setrlimit(RLIMIT_FSIZE, &before);
    say("with a limit of %ld: pwrite %d %ld %ld = %ld %s, ftruncate beyond = %d %s, then %ld bytes", (long)low.rlim_cur,
        slot->fd, len, offset, result, error, cut, cut_error, size_of(slot->fd));
}

// --- processes ---

static void operate(void);
static void all_operations(const char *list);

static void some_operations(unsigned count) {
    for (unsigned i = 0; i < count; i++)
        operate();
}

static void await(pid_t pid, const char *what) {
    int status = -1;
    pid_t result = pid < 0 ? pid : waitpid(pid, &status, 0);
    say("%s ended: %s %d", what, result == pid && pid > 0 ? "" : strerrorname_np(errno), status);
}

// Arguments that pass the whole state to another program. It runs `count` operations, and after
// `do_exec` the remaining ones.
struct carried {
    char words[4 + SLOTS][48];
    char *list[6 + SLOTS];
};

static void carry(struct carried *carried, unsigned count) {
    snprintf(carried->words[0], 48, "posix");
    snprintf(carried->words[1], 48, "go on");
    snprintf(carried->words[2], 48, "%lu %u %u %d", (unsigned long)seed, number, count, depth);
    snprintf(carried->words[3], 48, "%s", who);
    for (int i = 0; i < SLOTS; i++)
        snprintf(carried->words[4 + i], 48, "%d %d", slots[i].fd, slots[i].file);
    for (int i = 0; i < 4 + SLOTS; i++)
        carried->list[i] = carried->words[i];
    carried->list[4 + SLOTS] = "";
    carried->list[5 + SLOTS] = NULL;
}

static int go_on(int argc, char **argv) {
    unsigned count;
    if (argc != 5 + SLOTS || sscanf(argv[2], "%lu %u %u %d", &seed, &number, &count, &depth) != 4)
        return 2;
    who = argv[3];
    for (int i = 0; i < SLOTS; i++)
        sscanf(argv[4 + i], "%d %d", &slots[i].fd, &slots[i].file);
    // Forgets the descriptors that exec closed.
    for (int i = 0; i < SLOTS; i++)
        if (slots[i].fd >= 0 && fcntl(slots[i].fd, F_GETFD) < 0)
            slots[i].fd = -1;
    say("a program that was executed goes on");
    state = scramble(seed ^ scramble(number) ^ 99);
    some_operations(count);
    all_operations(argv[4 + SLOTS]);
    exit(0);
}

static void end_child(void) {
    switch (below(3)) {
    case 0:
        exit(0);
    case 1:
        quick_exit(0);
    }
    _exit(0);
}

static void do_fork(void) {
    unsigned count = 1 + (unsigned)below(6);
    pid_t pid = fork();
    if (pid == 0) {
        who = "child ";
        depth++;
        if (one_in(3)) {
            struct carried carried;
            carry(&carried, count);
            execv("/proc/self/exe", carried.list);
            _exit(3);
        }
        some_operations(count);
        end_child();
    }
    await(pid, "a child");
}

// Parent and child operate in turn on their shared descriptions.
static void do_fork_in_turn(void) {
    unsigned count = 2 + (unsigned)below(5);
    int to_child[2], to_parent[2];
    char token = 1;
    if (pipe2(to_child, O_CLOEXEC) != 0 || pipe2(to_parent, O_CLOEXEC) != 0)
        die("pipe");
    // High numbers, which no operation prints or closes.
    int ends[4] = {fcntl(to_child[0], F_DUPFD_CLOEXEC, 900), fcntl(to_child[1], F_DUPFD_CLOEXEC, 900),
                   fcntl(to_parent[0], F_DUPFD_CLOEXEC, 900), fcntl(to_parent[1], F_DUPFD_CLOEXEC, 900)};
    close(to_child[0]), close(to_child[1]), close(to_parent[0]), close(to_parent[1]);
    int before = only_existing;
    only_existing = 1;
    depth++;
    pid_t pid = fork();
    if (pid == 0) {
        who = "child ";
        state ^= 1;
        for (unsigned i = 0; i < count && read(ends[0], &token, 1) == 1; i++) {
            operate();
            if (write(ends[3], &token, 1) != 1)
                break;
        }
        _exit(0);
    }
    for (unsigned i = 0; i < count; i++) {
        operate();
        if (write(ends[1], &token, 1) != 1 || read(ends[2], &token, 1) != 1)
            die("the child is gone");
    }
    depth--;
    only_existing = before;
    await(pid, "a child in turn");
    for (int i = 0; i < 4; i++)
        close(ends[i]);
}

static void do_vfork(void) {
    struct carried carried;
    carry(&carried, 1 + (unsigned)below(4));
    carried.list[3] = "child ";
    snprintf(carried.words[2], 48, "%lu %u %u %d", (unsigned long)seed, number, 2, depth + 1);
    pid_t pid = vfork();
    if (pid == 0) {
        execve("/proc/self/exe", carried.list, environ);
        _exit(3);
    }
    await(pid, "a vforked child");
}

static void do_spawn(void) {
    struct carried carried;
    carry(&carried, 1);
    carried.list[3] = "child ";
    snprintf(carried.words[2], 48, "%lu %u %u %d", (unsigned long)seed, number, 2, depth + 1);
    pid_t pid = -1;
    int error = one_in(2) ? posix_spawn(&pid, "/proc/self/exe", NULL, NULL, carried.list, environ)
                          : posix_spawnp(&pid, "/proc/self/exe", NULL, NULL, carried.list, environ);
    if (error != 0)
        say("posix_spawn = %d", error);
    else
        await(pid, "a spawned child");
}

// A shell writes to an inherited descriptor.
static void do_shell(void) {
    int fd = any_slot()->fd, flags = fcntl(fd, F_GETFL);
    if (fd < 3 || fd > 9)
        return;
    char command[128];
    if (flags & O_DIRECT)
        snprintf(command, sizeof command, "dd if=/dev/zero bs=4096 count=1 status=none >&%d 2>/dev/null; echo $?", fd);
    else
        snprintf(command, sizeof command, "printf hello >&%d 2>/dev/null; echo $?", fd);
    if (one_in(2)) {
        int result = system(command);
        say("system %d = %d, then %ld bytes", fd, result, size_of(fd));
        return;
    }
    FILE *pipe = popen(command, "r");
    char line[64] = "";
    if (pipe == NULL || fgets(line, sizeof line, pipe) == NULL)
        line[0] = '\n';
    int result = pipe == NULL ? -1 : pclose(pipe);
    say("popen %d = %d %.*s, then %ld bytes", fd, result, (int)strcspn(line, "\n"), line, size_of(fd));
}

static void do_exec(void) {
    struct carried carried;
    if (one_in(4)) { // a failed exec changes nothing
        carry(&carried, 0);
        int result = execv("./not-there", carried.list);
        say("execv of nothing = %d %s", result, why(result));
        return;
    }
    carry(&carried, 0);
    carried.list[4 + SLOTS] = (char *)operations_to_do;
    say("execv");
    execv("/proc/self/exe", carried.list);
    die("execv");
}

// --- the sequence ---

static const struct {
    void (*operation)(void);
    unsigned weight;
    enum { ALWAYS, OPENS, FORKS } kind;
} operations[] = {
    {do_open, 14, OPENS},       {do_creat, 1, OPENS},         {do_tmpfile, 2, OPENS},   {do_close, 6, ALWAYS},
    {do_close_many, 1, OPENS}, {do_dup, 5, ALWAYS},          {do_write, 34, ALWAYS},   {do_read, 20, ALWAYS},
    {do_vector, 14, ALWAYS},    {do_bad_memory, 1, ALWAYS},   {do_read_only_memory, 1, ALWAYS},
    {do_seek, 10, ALWAYS},      {do_burst, 10, ALWAYS},       {do_stat, 14, ALWAYS},    {do_truncate, 5, ALWAYS},
    {do_fallocate, 3, ALWAYS},  {do_posix_fallocate, 1, ALWAYS}, {do_sync, 6, ALWAYS},  {do_names, 3, OPENS},
    {do_fcntl, 6, ALWAYS},      {do_lock, 2, ALWAYS},         {do_mmap, 1, ALWAYS},     {do_copy, 2, ALWAYS},
    {do_bytes_left, 1, ALWAYS}, {do_stream, 2, OPENS},        {do_aio, 1, ALWAYS},      {do_send, 1, ALWAYS},
    {do_limit, 1, ALWAYS},      {do_fork, 2, FORKS},          {do_fork_in_turn, 1, FORKS}, {do_vfork, 1, FORKS},
    {do_spawn, 1, FORKS},       {do_shell, 1, FORKS},         {do_exec, 1, FORKS},
};

static void operate(void) {
    unsigned total = 0, which = 0, held = 0;
    for (int i = 0; i < SLOTS; i++)
        held += slots[i].fd >= 0;
    if (held < 3 && !only_existing && one_in(2))
        return do_open();
    for (unsigned i = 0; i < sizeof operations / sizeof *operations; i++)
        total += operations[i].weight;
    for (uint64_t at = below(total); at >= operations[which].weight; which++)
        at -= operations[which].weight;
    if (operations[which].kind == FORKS && depth > 0)
        return;
    if (operations[which].kind == OPENS && only_existing)
        return;
    operations[which].operation();
}

// The number after `last` in a list like 1-200 or 3,9,20-22. 0 if there is none.
static unsigned next_of(const char *list, unsigned last) {
    while (*list != 0) {
        char *end;
        unsigned from = (unsigned)strtoul(list, &end, 10), to = from;
        if (*end == '-')
            to = (unsigned)strtoul(end + 1, &end, 10);
        if (last < to)
            return last < from ? from : last + 1;
        list = *end == ',' ? end + 1 : end;
    }
    return 0;
}

static void all_operations(const char *list) {
    operations_to_do = list;
    while ((number = next_of(list, number)) != 0) {
        state = scramble(seed ^ scramble(number));
        operate();
    }
}

int main(int argc, char **argv) {
    signal(SIGXFSZ, SIG_IGN);
    if (argc > 2 && strcmp(argv[1], "go on") == 0)
        return go_on(argc, argv);
    if (argc != 3) {
        fprintf(stderr, "usage: posix SEED OPS\n");
        return 2;
    }
    seed = strtoull(argv[1], NULL, 10);
    for (int i = 0; i < SLOTS; i++)
        slots[i].fd = -1;
    all_operations(argv[2]);
    // Some descriptors stay open until the process ends.
    state = scramble(seed);
    switch (below(5)) {
    case 0:
        exit(0);
    case 1:
        _exit(0);
    case 2:
        quick_exit(0);
    case 3:
        pthread_exit(NULL);
    }
    return 0;
}
