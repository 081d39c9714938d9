/* Common code of the tests: a working directory, and checks that print the expected value. */
#ifndef CHECK_H
#define CHECK_H

#define _GNU_SOURCE

#include <dioxide.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define BLOCK 4096

/* Compares two numbers; a difference is printed with the library's last error. */
#define EXPECT(expression, value)                                                                  \
    do {                                                                                           \
        int64_t got_ = (int64_t)(expression), wanted_ = (int64_t)(value);                          \
        if (got_ != wanted_) {                                                                     \
            fprintf(stderr, "%s:%d: %s is %" PRId64 " and not %" PRId64 " (%s)\n", __FILE__, __LINE__, \
                    #expression, got_, wanted_, dioxide_last_error());                             \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#define CHECK(condition) EXPECT(!!(condition), 1)

/* A call that must fail, with these words in its message. */
#define FAILS(expression, number, words)                                                           \
    do {                                                                                           \
        EXPECT(expression, -(number));                                                             \
        if (strstr(dioxide_last_error(), words) == NULL) {                                         \
            fprintf(stderr, "%s:%d: %s: \"%s\" does not say \"%s\"\n", __FILE__, __LINE__,         \
                    #expression, dioxide_last_error(), words);                                     \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static inline struct dioxide_file *opened(const char *path, int flags, struct dioxide_options options)
{
    struct dioxide_file *file = NULL;
    options.size = sizeof options;
    EXPECT(dioxide_open(path, flags, 0644, &options, &file), 0);
    CHECK(file != NULL);
    return file;
}

/* An empty durable log. */
static inline struct dioxide_file *fresh(const char *path)
{
    struct dioxide_options options = {0};
    return opened(path, O_RDWR | O_CREAT | O_TRUNC | O_DSYNC, options);
}

/* A write-ahead log with segments of 64 KiB. */
static inline struct dioxide_log *opened_log(const char *path, struct dioxide_log_options options)
{
    struct dioxide_log *log = NULL;
    options.size = sizeof options;
    options.segment_bytes = 1 << 16;
    EXPECT(dioxide_log_open(path, &options, &log), 0);
    CHECK(log != NULL);
    return log;
}

static inline int64_t size_of(const char *path)
{
    struct stat stat_;
    CHECK(stat(path, &stat_) == 0);
    return stat_.st_size;
}

/* Waits for a child, which must end with 0. */
static inline void expect_child(pid_t child)
{
    int status = 0;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    EXPECT(status, 0);
}

/* Ends a child successfully, as a program without files. Otherwise valgrind would report the
 * library's memory, which belongs to the parent, as lost. */
static inline void leave_to_parent(void)
{
    execl("/bin/true", "true", (char *)NULL);
    _exit(127);
}

static inline void enter(int argc, char **argv)
{
    if (argc < 2 || chdir(argv[1]) != 0) {
        fprintf(stderr, "usage: %s DIRECTORY\n", argv[0]);
        exit(2);
    }
}

#endif
