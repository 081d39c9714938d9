// A library for `neighbours plugin`. Its constructor opens a file O_DIRECT, `run` opens another
// one, and its destructor closes both. In constructor and destructor the dynamic loader holds its
// lock.
#define _GNU_SOURCE
#include "common.h"
#include <fcntl.h>
#include <unistd.h>

static int loaded, asked;

static int open_and_write(const char *path) {
    char *block = aligned_alloc(BLOCK, BLOCK);
    int fd = open(path, O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0644);
    fill(block, BLOCK, 'P');
    if (fd < 0 || write(fd, block, BLOCK) != BLOCK)
        die("%s", path);
    free(block);
    return fd;
}

__attribute__((constructor)) static void load(void) {
    loaded = open_and_write(getenv("PLUGIN_FILE"));
}

void run(const char *path) {
    asked = open_and_write(path);
}

__attribute__((destructor)) static void unload(void) {
    if (close(loaded) != 0 || close(asked) != 0)
        die("close");
}
