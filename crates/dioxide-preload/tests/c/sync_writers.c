// Threads overwrite 64 KiB each of a file or device by durable writes. Prints the rate.
//
//   sync_writers PATH [threads=64] [seconds=3] [size=65536] [sync|dsync|none]
//
// Thread N writes at N * size. Destroys these bytes of PATH. Extends a file if needed.
#define _GNU_SOURCE
#include "common.h"
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static unsigned threads = 64;
static double seconds = 3;
static long size = 65536;
static int durable = O_SYNC;
static int fd;
static double deadline;

static void *work(void *argument) {
    long offset = (long)(size_t)argument * size, written = 0;
    char *memory = aligned_alloc(4096, (size_t)size);
    memset(memory, 0, (size_t)size);
    while (now() < deadline) {
        long result = pwrite(fd, memory, (size_t)size, offset);
        if (result != size)
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
        else if (strncmp(argv[i], "size=", 5) == 0)
            size = atol(argv[i] + 5);
        else if (strcmp(argv[i], "sync") == 0)
            durable = O_SYNC;
        else if (strcmp(argv[i], "dsync") == 0)
            durable = O_DSYNC;
        else if (strcmp(argv[i], "none") == 0)
            durable = 0;
        else
            argc = 0;
    }
    if (argc < 2) {
        fprintf(stderr, "usage: sync_writers PATH [threads=N] [seconds=N] [size=BYTES] [sync|dsync|none]\n");
        return 2;
    }
    struct stat stat_;
    int is_device = stat(argv[1], &stat_) == 0 && S_ISBLK(stat_.st_mode);
    fd = open(argv[1], O_RDWR | O_DIRECT | durable | (is_device ? 0 : O_CREAT), 0644);
    if (fd < 0)
        die("%s", argv[1]);
    double start = now();
    deadline = start + seconds;
    long total = sum_of_threads(threads, work);
    if (close(fd) != 0)
        die("close");
    double took = now() - start;
    printf("%.0f writes/s, %.1f MB/s\n", total / took, total * size / took / 1e6);
    return 0;
}
