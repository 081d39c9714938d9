// A library for `neighbours plugin`: it opens a file O_DIRECT while it is loaded, another one when it is asked to, and
// closes both while it is unloaded. The dynamic loader holds its lock in the constructor and in the destructor.
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
