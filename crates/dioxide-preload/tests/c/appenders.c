// Threads append blocks to one file, each at the next offset. Prints the rate.
//
//   appenders FILE [threads=64] [seconds=3] [block=4096] [size=1g] [dsync] [append] [plain]
//
// append: O_APPEND and write, instead of pwrite at offsets from one counter. plain: not O_DIRECT.
// The measured time includes the close. Removes the file.
#define _GNU_SOURCE
#include "common.h"
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>

static unsigned threads = 64;
static double seconds = 3;
static long block = 4096, size = 1L << 30;
static int flags = O_RDWR | O_CREAT | O_TRUNC | O_DIRECT;
static int fd;
static double deadline;
static atomic_long next;

static void *work(void *unused) {
    (void)unused;
    char *memory = aligned_alloc(4096, (size_t)block);
    fill(memory, (size_t)block, 1);
    long written = 0;
    while (now() < deadline) {
        long offset = atomic_fetch_add(&next, block);
        if (offset + block > size)
            break;
        long result = flags & O_APPEND ? write(fd, memory, block) : pwrite(fd, memory, block, offset);
        if (result != block)
            die("write at %ld: %ld", offset, result);
        written++;
    }
    free(memory);
    return (void *)written;
}

int main(int argc, char **argv) {
    for (int i = 2; i < argc; i++) {
        if (strncmp(argv[i], "threads=", 8) == 0)
            threads = (unsigned)atoi(argv[i] + 8);
        else if (strncmp(argv[i], "seconds=", 8) == 0)
            seconds = atof(argv[i] + 8);
        else if (strncmp(argv[i], "block=", 6) == 0)
            block = atol(argv[i] + 6);
        else if (strncmp(argv[i], "size=", 5) == 0)
            size = atol(argv[i] + 5) << (strchr(argv[i], 'g') != NULL ? 30 : 20);
        else if (strcmp(argv[i], "dsync") == 0)
            flags |= O_DSYNC;
        else if (strcmp(argv[i], "append") == 0)
            flags |= O_APPEND;
        else if (strcmp(argv[i], "plain") == 0)
            flags &= ~O_DIRECT;
        else
            argc = 0;
    }
    if (argc < 2) {
        fprintf(stderr, "usage: appenders FILE [threads=N] [seconds=N] [block=BYTES] [size=Ng|Nm] [dsync] [append] [plain]\n");
        return 2;
    }
    fd = open(argv[1], flags, 0644);
    if (fd < 0)
        die("%s", argv[1]);
    double start = now();
    deadline = start + seconds;
    long total = sum_of_threads(threads, work);
    if (close(fd) != 0)
        die("close");
    double took = now() - start;
    struct stat stat_;
    if (stat(argv[1], &stat_) != 0 || stat_.st_size != total * block)
        die("%ld writes left %ld bytes", total, (long)stat_.st_size);
    unlink(argv[1]);
    printf("%.0f writes/s, %.1f MB/s\n", total / took, total * block / took / 1e6);
    return 0;
}
