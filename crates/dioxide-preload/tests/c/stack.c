// Measures the stack of each call on an O_DIRECT file in a thread with a painted stack. Prints
// `CALL: BYTES` for each.
//
//   stack FILE
#define _GNU_SOURCE
#include "common.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define STACK (256L << 10)
#define PAINT 0x5a
#define WRITERS 4
#define WRITES 200

static const char *path;
static char *memory;
static int fd;
static struct stat status;

static void must(const char *what, long result, long wanted) {
    if (result != wanted)
        die("%s: %ld instead of %ld", what, result, wanted);
}

static void *open_it(void *unused) {
    fd = open(path, O_RDWR | O_CREAT | O_DIRECT, 0644);
    return unused;
}

static void *write_past_the_end(void *writer) {
    for (long i = 0; i < WRITES; i++)
        must("pwrite", pwrite(fd, memory, BLOCK, (i * WRITERS + (long)writer) * BLOCK), BLOCK);
    return NULL;
}

static void *overwrite(void *unused) {
    must("pwrite", pwrite(fd, memory, BLOCK, 0), BLOCK);
    return unused;
}

static void *write_durably(void *unused) {
    struct iovec pieces[2] = {{memory, BLOCK}, {memory, BLOCK}};
    must("pwritev2", pwritev2(fd, pieces, 2, 0, RWF_DSYNC), 2 * BLOCK);
    return unused;
}

static void *append(void *unused) {
    must("fcntl", fcntl(fd, F_SETFL, O_DIRECT | O_APPEND), 0);
    for (int i = 0; i < WRITES; i++)
        must("write", write(fd, memory, BLOCK), BLOCK);
    return unused;
}

static void *read_it(void *unused) {
    must("pread", pread(fd, memory, BLOCK, BLOCK), BLOCK);
    return unused;
}

static void *sync_data(void *unused) {
    must("fdatasync", fdatasync(fd), 0);
    return unused;
}

static void *sync_all(void *unused) {
    must("fsync", fsync(fd), 0);
    return unused;
}

static void *ask(void *unused) {
    must("fstat", fstat(fd, &status), 0);
    must("lseek", lseek(fd, 0, SEEK_END), status.st_size);
    must("fcntl", fcntl(fd, F_GETFL) >= 0, 1);
    return unused;
}

static void *truncate_it(void *unused) {
    must("ftruncate", ftruncate(fd, WRITES * WRITERS * BLOCK), 0);
    return unused;
}

static void *duplicate(void *unused) {
    must("close", close(dup(fd)), 0);
    return unused;
}

static void *close_it(void *unused) {
    must("close", close(fd), 0);
    return unused;
}

static void *map_it(void *unused) {
    must("munmap", munmap(mmap(NULL, BLOCK, PROT_READ, MAP_SHARED, fd, 0), BLOCK), 0);
    return unused;
}

static void *open_again(void *unused) {
    must("close", close(open(path, O_RDONLY)), 0);
    return unused;
}

// Runs `call` in threads with painted stacks, and prints the bytes used in the deepest one.
static void measure(const char *name, void *(*call)(void *), long threads) {
    char *stacks[WRITERS];
    pthread_t handles[WRITERS];
    for (long i = 0; i < threads; i++) {
        pthread_attr_t attributes;
        stacks[i] = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        memset(stacks[i], PAINT, STACK);
        pthread_attr_init(&attributes);
        must("stack", pthread_attr_setstack(&attributes, stacks[i], STACK), 0);
        must("pthread_create", pthread_create(&handles[i], &attributes, call, (void *)i), 0);
    }
    long deepest = 0;
    for (long i = 0; i < threads; i++) {
        pthread_join(handles[i], NULL);
        long left = 0;
        while (left < STACK && stacks[i][left] == PAINT)
            left++;
        deepest = STACK - left > deepest ? STACK - left : deepest;
        munmap(stacks[i], STACK);
    }
    printf("%s: %ld\n", name, deepest);
}

int main(int argc, char **argv) {
    if (argc != 2)
        return 2;
    path = argv[1];
    memory = aligned_alloc(BLOCK, BLOCK);
    fill(memory, BLOCK, 1);
    unlink(path);
    measure("open", open_it, 1);
    must("open", fd >= 0, 1);
    measure("pwrite past the end", write_past_the_end, WRITERS);
    measure("pwrite", overwrite, 1);
    measure("pwritev2 with RWF_DSYNC", write_durably, 1);
    measure("append", append, 1);
    measure("pread", read_it, 1);
    measure("fdatasync", sync_data, 1);
    measure("fsync", sync_all, 1);
    measure("fstat, lseek, fcntl", ask, 1);
    measure("dup, close", duplicate, 1);
    measure("ftruncate", truncate_it, 1);
    measure("pwrite past the end again", write_past_the_end, WRITERS);
    measure("last close", close_it, 1);
    measure("open again", open_it, 1);
    measure("pwrite past the end", write_past_the_end, WRITERS);
    measure("open by another way", open_again, 1);
    measure("close when handed back", close_it, 1);
    measure("open again", open_it, 1);
    measure("mmap", map_it, 1);
    measure("close", close_it, 1);
    return 0;
}
