// After a failed flush no call may acknowledge data: wedge HOW FILE BESIDE OTHER.
//
// FILE is opened O_DIRECT. BESIDE is a file of the same file system without O_DIRECT, or FILE
// itself for a device. OTHER is on another file system. The program prints "ready" and waits until
// the test has set the next flush of the disk to fail. Ends with 1 if a call returned a wrong
// result.
#define _GNU_SOURCE
#include "common.h"

#include <aio.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define BLOCKS 8

static char *memory;
static const char *path, *path_beside, *path_other;
static int fd, durable, beside, other, wrong;
static void *mapped_beside;

static int open_or_die(const char *what, int flags) {
    int opened = open(what, flags, 0644);
    if (opened < 0)
        die("open %s", what);
    return opened;
}

// Expects a failure with EIO.
static void refused(const char *when, const char *call, long result) {
    if (result == -1 && errno == EIO)
        return;
    printf("%s: %s is %ld %s, and not EIO\n", when, call, result, result < 0 ? strerror(errno) : "");
    wrong = 1;
}

static void fine(const char *call, long result) {
    if (result < 0)
        die("%s", call);
}

static long pwrite_durably(int to, int block) {
    struct iovec piece = {memory, BLOCK};
    return pwritev2(to, &piece, 1, block * BLOCK, RWF_DSYNC);
}

static void all_refused(const char *when) {
    refused(when, "pwrite", pwrite(fd, memory, BLOCK, 2 * BLOCK));
    refused(when, "pwritev2 with RWF_DSYNC", pwrite_durably(fd, 3));
    refused(when, "pwrite with O_DSYNC", pwrite(durable, memory, BLOCK, 3 * BLOCK));
    refused(when, "fdatasync", fdatasync(fd));
    refused(when, "fdatasync once more", fdatasync(fd));
    refused(when, "fsync", fsync(fd));
    refused(when, "fsync once more", fsync(fd));
    refused(when, "sync_file_range", sync_file_range(fd, 0, BLOCK, SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER));
    refused(when, "fsync by number", syscall(SYS_fsync, fd));
    refused(when, "fdatasync by number", syscall(SYS_fdatasync, fd));
    struct aiocb request = {.aio_fildes = fd};
    refused(when, "aio_fsync", aio_fsync(O_SYNC, &request));
    refused(when, "fsync of a file that is not O_DIRECT", fsync(beside));
    refused(when, "fdatasync of a file that is not O_DIRECT", fdatasync(beside));
    refused(when, "syncfs", syncfs(beside));
    refused(when, "RWF_DSYNC of a file that is not O_DIRECT", pwrite_durably(beside, 0));
    refused(when, "msync", msync(mapped_beside, BLOCK, MS_SYNC));
    fine("fsync on another file system", fsync(other));
    fine("pwritev2 on another file system", pwrite_durably(other, 0));
}

static int uses_a_number_again;

static void open_beside(void) {
    int before = uses_a_number_again ? open_or_die(path, O_RDWR | O_CREAT | O_DIRECT) : -1;
    if (before >= 0)
        close(before);
    beside = open_or_die(path_beside, O_RDWR | O_CREAT);
    if (before >= 0 && beside != before)
        die("another number");
    if (path != path_beside) {
        fine("write", write(beside, memory, BLOCK));
        fine("fsync", fsync(beside));
    }
    mapped_beside = mmap(NULL, BLOCK, PROT_READ | PROT_WRITE, MAP_SHARED, beside, 0);
    if (mapped_beside == MAP_FAILED)
        die("mmap");
}

static void wait_for_child(pid_t child) {
    int status;
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) == 2)
        die("a child");
    wrong |= WEXITSTATUS(status);
}

static void in_a_child(void) {
    pid_t child = fork();
    if (child < 0)
        die("fork");
    if (child > 0)
        return wait_for_child(child);
    wrong = 0;
    all_refused("in the child");
    if (path != path_beside) {
        // ext4 may be read-only now.
        int own = open(path, O_RDWR | O_DIRECT);
        if (own >= 0) {
            refused("in the child", "pwrite of a descriptor of its own", pwrite(own, memory, BLOCK, 0));
            refused("in the child", "fsync of a descriptor of its own", fsync(own));
            close(own);
        }
    }
    child = fork();
    if (child > 0) {
        wait_for_child(child);
    } else {
        wrong = 0;
        all_refused("in a child of the child");
    }
    fflush(stdout);
    _exit(wrong);
}

static void hand_back(const char *how) {
    if (strcmp(how, "mmap") == 0) {
        void *mapped = mmap(NULL, BLOCK, PROT_READ, MAP_SHARED, fd, 0);
        if (mapped == MAP_FAILED)
            die("mmap");
        refused("mapped", "msync", msync(mapped, BLOCK, MS_SYNC));
        munmap(mapped, BLOCK);
    } else if (strcmp(how, "lock") == 0) {
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};
        fine("lock", fcntl(fd, F_SETLK, &lock));
    } else if (strcmp(how, "ioctl") == 0) {
        // No file system knows this request.
        ioctl(fd, _IO('d', 99));
    }
    // One call reports that the engine could not close the file exactly.
    fdatasync(fd);
}

static void go_on_when_told(const char *what) {
    printf("%s\n", what);
    if (getchar() == EOF)
        die("not told to go on");
}

// A flush fails in this call. After `sync`, which reports nothing, fdatasync reports it.
static long fail(const char *how) {
    if (strcmp(how, "fsync") == 0)
        return fsync(fd);
    if (strcmp(how, "syncfs") == 0)
        return syncfs(fd);
    if (strcmp(how, "syncfs_beside") == 0)
        return syncfs(beside);
    if (strcmp(how, "number_used_before") == 0)
        return fsync(beside);
    if (strcmp(how, "dsync") == 0)
        return pwrite(durable, memory, BLOCK, BLOCK);
    if (strcmp(how, "sync") == 0)
        sync();
    return fdatasync(fd);
}

// Repeats the attempt, because a `sync` of another process may get the planned failure.
static void fail_patiently(const char *how) {
    long result = 0;
    for (int tries = 0; tries < 20 && result >= 0; tries++) {
        go_on_when_told("ready");
        result = fail(how);
    }
    // ext4 becomes read-only at once after a failed journal commit.
    if (result >= 0 || errno != EROFS)
        refused("it failed", how, result);
}

// Closes the files. After the mount of another file system on the device all calls succeed.
static void mounted_anew(void) {
    close(fd), close(durable), close(beside);
    munmap(mapped_beside, BLOCK);
    go_on_when_told("unused");
    fd = open_or_die(path, O_RDWR | O_CREAT | O_DIRECT);
    beside = open_or_die(path_beside, O_RDWR | O_CREAT);
    fine("pwrite", pwrite(fd, memory, BLOCK, BLOCK));
    fine("fsync", fsync(fd));
    fine("fdatasync", fdatasync(fd));
    fine("fsync of a file that is not O_DIRECT", fsync(beside));
    pid_t child = fork();
    if (child == 0) {
        fine("fsync in a child", fsync(fd));
        _exit(0);
    }
    wait_for_child(child);
    close(fd), close(beside);
}

int main(int argc, char **argv) {
    if (argc != 5)
        die("usage: wedge HOW FILE BESIDE OTHER");
    setvbuf(stdout, NULL, _IOLBF, 0);
    memory = aligned_alloc(BLOCK, BLOCK);
    fill(memory, BLOCK, 1);
    path = argv[2], path_beside = strcmp(argv[3], path) == 0 ? path : argv[3], path_other = argv[4];
    uses_a_number_again = strncmp(argv[1], "number_used_before", 18) == 0;
    if (path != path_beside)
        open_beside();
    other = open_or_die(path_other, O_RDWR | O_CREAT);
    fine("write", write(other, memory, BLOCK));
    fd = open_or_die(path, O_RDWR | O_CREAT | O_DIRECT);
    durable = open_or_die(path, O_RDWR | O_DIRECT | O_DSYNC);
    for (int block = 0; block < BLOCKS; block++)
        fine("pwrite", pwrite(fd, memory, BLOCK, block * BLOCK));
    fine("fsync", fsync(fd));
    fine("syncfs", syncfs(fd));
    // The failing flush loses this write.
    fine("pwrite", pwrite(fd, memory, BLOCK, BLOCK));
    fail_patiently(argv[1]);
    hand_back(argv[1]);
    // Only now for a device, because this open hands the device back.
    if (path == path_beside)
        open_beside();
    all_refused(argv[1]);
    in_a_child();
    all_refused("after a fork");
    if (path != path_beside)
        mounted_anew();
    return wrong;
}
