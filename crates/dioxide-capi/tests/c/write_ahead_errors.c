/* Every errno of write-ahead logs that a test can cause, invalid arguments, forks and crashes. */
#include "check.h"
#include <signal.h>
#include <sys/resource.h>

/* The offset of the checksum in the header of a segment. */
#define SUM_AT (BLOCK - 4)

static const struct dioxide_log_options defaults = {0};

static void arguments_that_make_no_sense(void)
{
    struct dioxide_log *log = (struct dioxide_log *)&log;
    struct dioxide_log_options options = {.size = sizeof options};
    FAILS(dioxide_log_open(NULL, NULL, &log), EINVAL, "path is NULL");
    CHECK(log == NULL);
    FAILS(dioxide_log_open("x", NULL, NULL), EINVAL, "log is NULL");
    options.flags = 1 << 3;
    FAILS(dioxide_log_open("x", &options, &log), EINVAL, "flags 0x8");
    options.flags = 0;
    options.segment_bytes = 1000;
    FAILS(dioxide_log_open("x", &options, &log), EINVAL, "a segment of 1000 bytes");
    options.size = 47;
    FAILS(dioxide_log_open("x", &options, &log), EINVAL, "sizeof(struct dioxide_log_options)");

    const struct iovec records[] = {{"x", 1}, {NULL, 1}};
    struct dioxide_log_iter *iter = (struct dioxide_log_iter *)&iter;
    struct dioxide_log_stats stats = {.size = sizeof stats};
    const void *data;
    size_t length;
    char byte;
    FAILS(dioxide_log_append(NULL, "x", 1), EINVAL, "log is NULL");
    FAILS(dioxide_log_append_all(NULL, records, 1), EINVAL, "log is NULL");
    FAILS(dioxide_log_submit(NULL, "x", 1), EINVAL, "log is NULL");
    FAILS(dioxide_log_wait(NULL, 1), EINVAL, "log is NULL");
    FAILS(dioxide_log_sync(NULL), EINVAL, "log is NULL");
    FAILS(dioxide_log_read(NULL, 1, &byte, 1), EINVAL, "log is NULL");
    FAILS(dioxide_log_iter_from(NULL, 1, &iter), EINVAL, "log is NULL");
    CHECK(iter == NULL);
    FAILS(dioxide_log_follow(NULL, 1, &iter), EINVAL, "log is NULL");
    FAILS(dioxide_log_next(NULL, &data, &length), EINVAL, "iter is NULL");
    FAILS(dioxide_log_iter_close(NULL), EINVAL, "iter is NULL");
    FAILS(dioxide_log_truncate_front(NULL, 1), EINVAL, "log is NULL");
    FAILS(dioxide_log_truncate_back(NULL, 1), EINVAL, "log is NULL");
    FAILS(dioxide_log_first_lsn(NULL), EINVAL, "log is NULL");
    FAILS(dioxide_log_next_lsn(NULL), EINVAL, "log is NULL");
    FAILS(dioxide_log_stable_lsn(NULL), EINVAL, "log is NULL");
    FAILS(dioxide_log_stats(NULL, &stats), EINVAL, "log is NULL");
    FAILS(dioxide_log_close(NULL), EINVAL, "log is NULL");

    log = opened_log("sense-log", defaults);
    FAILS(dioxide_log_append(log, NULL, 1), EINVAL, "data is NULL");
    FAILS(dioxide_log_append(log, "x", (size_t)-1), EINVAL, "length");
    FAILS(dioxide_log_append_all(log, NULL, 1), EINVAL, "records is NULL");
    FAILS(dioxide_log_append_all(log, records, (size_t)-1), EINVAL, "count");
    FAILS(dioxide_log_append_all(log, records, 2), EINVAL, "iov_base is NULL");
    /* The sum of the lengths overflowed. */
    const struct iovec endless[] = {{"x", PTRDIFF_MAX}, {"x", PTRDIFF_MAX}, {"x", PTRDIFF_MAX}};
    FAILS(dioxide_log_append(log, "x", PTRDIFF_MAX), EMSGSIZE, "at most");
    FAILS(dioxide_log_append_all(log, endless, 2), EMSGSIZE, "at most");
    FAILS(dioxide_log_append_all(log, endless, 3), EMSGSIZE, "at most");
    FAILS(dioxide_log_submit(log, NULL, 1), EINVAL, "data is NULL");
    FAILS(dioxide_log_wait(log, 0), EINVAL, "lsn is 0");
    FAILS(dioxide_log_read(log, -1, &byte, 1), EINVAL, "lsn is -1");
    FAILS(dioxide_log_read(log, 1, NULL, 1), EINVAL, "into is NULL");
    FAILS(dioxide_log_iter_from(log, 0, &iter), EINVAL, "lsn is 0");
    FAILS(dioxide_log_iter_from(log, 1, NULL), EINVAL, "iter is NULL");
    FAILS(dioxide_log_follow(log, 0, &iter), EINVAL, "lsn is 0");
    FAILS(dioxide_log_follow(log, 1, NULL), EINVAL, "iter is NULL");
    FAILS(dioxide_log_truncate_front(log, 0), EINVAL, "lsn is 0");
    FAILS(dioxide_log_truncate_back(log, INT64_MIN), EINVAL, "lsn is -9223372036854775808");
    FAILS(dioxide_log_stats(log, NULL), EINVAL, "NULL");
    stats.size = 0;
    FAILS(dioxide_log_stats(log, &stats), EINVAL, "sizeof(struct dioxide_log_stats)");
    EXPECT(dioxide_log_iter_from(log, 1, &iter), 0);
    FAILS(dioxide_log_next(iter, NULL, &length), EINVAL, "data is NULL");
    FAILS(dioxide_log_next(iter, &data, NULL), EINVAL, "length is NULL");
    EXPECT(dioxide_log_iter_close(iter), 0);
    EXPECT(dioxide_log_next_lsn(log), 1);
    EXPECT(dioxide_log_close(log), 0);
}

static void logs_that_cannot_be_opened(void)
{
    struct dioxide_log_options options = {.size = sizeof options, .flags = DIOXIDE_LOG_NO_CREATE};
    struct dioxide_log *log, *another;
    FAILS(dioxide_log_open("missing-log", &options, &log), ENOENT, "missing-log: no log");
    EXPECT(dioxide_close(fresh("no-directory")), 0);
    FAILS(dioxide_log_open("no-directory", NULL, &log), ENOTDIR, "no-directory");
    log = opened_log("locked", defaults);
    FAILS(dioxide_log_open("locked", NULL, &another), EBUSY, "another writer");
    CHECK(another == NULL);
    EXPECT(dioxide_log_close(log), 0);
}

/* Writes bytes to the first segment of a log, beside the library. */
static void overwrite(const char *dir, const void *bytes, size_t length, off_t offset)
{
    char path[64];
    snprintf(path, sizeof path, "%s/segment-000000", dir);
    int segment = open(path, O_WRONLY);
    CHECK(segment >= 0);
    EXPECT(pwrite(segment, bytes, length, offset), length);
    EXPECT(fsync(segment), 0);
    EXPECT(close(segment), 0);
}

static uint32_t crc32c(const unsigned char *bytes, size_t length)
{
    uint32_t sum = UINT32_MAX;
    for (size_t at = 0; at < length; at++) {
        sum ^= bytes[at];
        for (int bit = 0; bit < 8; bit++)
            sum = sum >> 1 ^ (sum & 1 ? 0x82f63b78u : 0);
    }
    return ~sum;
}

/* Changes a byte of the header, and its checksum. */
static void change_header(const char *dir, size_t at, unsigned char value)
{
    unsigned char header[BLOCK];
    char path[64];
    snprintf(path, sizeof path, "%s/segment-000000", dir);
    int segment = open(path, O_RDONLY);
    CHECK(segment >= 0);
    EXPECT(read(segment, header, BLOCK), BLOCK);
    EXPECT(close(segment), 0);
    header[at] = value;
    uint32_t sum = crc32c(header, SUM_AT);
    for (int byte = 0; byte < 4; byte++)
        header[SUM_AT + byte] = (unsigned char)(sum >> 8 * byte);
    overwrite(dir, header, BLOCK, 0);
}

static void logs_of_a_later_version(void)
{
    struct dioxide_log *log = opened_log("later", defaults);
    EXPECT(dioxide_log_append(log, "x", 1), 1);
    EXPECT(dioxide_log_close(log), 0);
    change_header("later", 8, 2);
    FAILS(dioxide_log_open("later", NULL, &log), EPROTONOSUPPORT, "later version");
    change_header("later", 8, 1);
    change_header("later", 12, 1);
    FAILS(dioxide_log_open("later", NULL, &log), EINVAL, "a log of streams");
    change_header("later", 12, 0);
    log = opened_log("later", defaults);
    EXPECT(dioxide_log_next_lsn(log), 2);
    EXPECT(dioxide_log_close(log), 0);
}

static void damage_is_found(void)
{
    static const char zeros[BLOCK], record[3 * BLOCK] = "a record";
    struct dioxide_log *log = opened_log("damaged", defaults);
    struct dioxide_log_iter *iter;
    const void *data;
    size_t length;
    char back[8];
    EXPECT(dioxide_log_append(log, record, sizeof record), 1);
    EXPECT(dioxide_log_append(log, record, sizeof record), 2);
    EXPECT(dioxide_log_iter_from(log, 1, &iter), 0);
    EXPECT(dioxide_log_read(log, 1, back, sizeof back), sizeof record);
    overwrite("damaged", zeros, sizeof zeros, BLOCK);
    FAILS(dioxide_log_read(log, 1, back, sizeof back), EUCLEAN, "segment-000000");
    FAILS(dioxide_log_next(iter, &data, &length), EUCLEAN, "segment-000000");
    EXPECT(dioxide_log_close(log), 0);
    FAILS(dioxide_log_next(iter, &data, &length), EBADF, "closed");
    EXPECT(dioxide_log_iter_close(iter), 0);
    FAILS(dioxide_log_open("damaged", NULL, &log), EUCLEAN, "restore the log from a copy");
}

static rlim_t limited(rlim_t bytes)
{
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_FSIZE, &limit) == 0);
    rlim_t before = limit.rlim_cur;
    limit.rlim_cur = bytes;
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    return before;
}

/* RLIMIT_FSIZE stands for a full disk: no segment can be made. Two records fill a segment, without
 * its last block. */
static void a_full_log_takes_records_after_a_truncation(void)
{
    static const char record[25000], long_record[1 << 16];
    const struct iovec records[] = {{(void *)record, sizeof record}, {(void *)record, sizeof record},
                                    {(void *)record, sizeof record}};
    struct dioxide_log *log = opened_log("full-log", defaults);
    FAILS(dioxide_log_append(log, long_record, sizeof long_record), EMSGSIZE, "at most");
    FAILS(dioxide_log_submit(log, long_record, sizeof long_record), EMSGSIZE, "at most");
    FAILS(dioxide_log_append_all(log, records, 3), EMSGSIZE, "at most");
    EXPECT(dioxide_log_append_all(log, records, 2), 1);
    EXPECT(dioxide_log_append(log, record, sizeof record), 3);
    rlim_t before = limited((1 << 16) - BLOCK);
    int64_t refused, next = 4;
    while ((refused = dioxide_log_append(log, record, sizeof record)) == next)
        next++;
    EXPECT(refused, -ENOSPC);
    CHECK(strstr(dioxide_last_error(), "no free segment") != NULL);
    EXPECT(dioxide_log_next_lsn(log), next);
    EXPECT(dioxide_log_truncate_front(log, next), 0);
    EXPECT(dioxide_log_append(log, record, sizeof record), next);
    limited(before);
    EXPECT(dioxide_log_close(log), 0);
}

static void a_failed_write_ends_the_log(void)
{
    struct dioxide_log *log = opened_log("failed", defaults);
    EXPECT(dioxide_log_append(log, "x", 1), 1);
    rlim_t before = limited(BLOCK);
    int64_t failed = dioxide_log_append(log, "x", 1);
    limited(before);
    CHECK(failed == -EFBIG || failed == -EIO);
    FAILS(dioxide_log_append(log, "x", 1), EIO, "failed before");
    FAILS(dioxide_log_submit(log, "x", 1), EIO, "failed before");
    FAILS(dioxide_log_wait(log, 2), EIO, "failed before");
    EXPECT(dioxide_log_wait(log, 1), 0);
    FAILS(dioxide_log_sync(log), EIO, "failed before");
    FAILS(dioxide_log_truncate_front(log, 2), EIO, "failed before");
    FAILS(dioxide_log_truncate_back(log, 1), EIO, "failed before");
    struct dioxide_log_iter *iter;
    const void *data;
    size_t length;
    EXPECT(dioxide_log_follow(log, 1, &iter), 0);
    EXPECT(dioxide_log_next(iter, &data, &length), 1);
    FAILS(dioxide_log_next(iter, &data, &length), EIO, "failed before");
    EXPECT(dioxide_log_iter_close(iter), 0);
    FAILS(dioxide_log_close(log), EIO, "failed before");
    log = opened_log("failed", defaults);
    CHECK(dioxide_log_next_lsn(log) >= 2);
    EXPECT(dioxide_log_close(log), 0);
}

static void the_child_is_refused(struct dioxide_log *log, struct dioxide_log_iter *iter,
                                 struct dioxide_log_iter *follower)
{
    struct dioxide_log_stats stats = {.size = sizeof stats};
    struct dioxide_log *another;
    struct dioxide_log_iter *none;
    const void *data;
    size_t length;
    char byte;
    FAILS(dioxide_log_append(log, "x", 1), EBADF, "parent");
    FAILS(dioxide_log_append_all(log, NULL, 0), EBADF, "parent");
    FAILS(dioxide_log_submit(log, "x", 1), EBADF, "parent");
    FAILS(dioxide_log_wait(log, 1), EBADF, "parent");
    FAILS(dioxide_log_sync(log), EBADF, "parent");
    FAILS(dioxide_log_read(log, 1, &byte, 1), EBADF, "parent");
    FAILS(dioxide_log_iter_from(log, 1, &none), EBADF, "parent");
    FAILS(dioxide_log_follow(log, 1, &none), EBADF, "parent");
    FAILS(dioxide_log_next(iter, &data, &length), EBADF, "parent");
    FAILS(dioxide_log_next(follower, &data, &length), EBADF, "parent");
    FAILS(dioxide_log_truncate_front(log, 1), EBADF, "parent");
    FAILS(dioxide_log_truncate_back(log, 1), EBADF, "parent");
    FAILS(dioxide_log_first_lsn(log), EBADF, "parent");
    FAILS(dioxide_log_next_lsn(log), EBADF, "parent");
    FAILS(dioxide_log_stable_lsn(log), EBADF, "parent");
    FAILS(dioxide_log_stats(log, &stats), EBADF, "parent");
    FAILS(dioxide_log_open("forked-log", NULL, &another), EBUSY, "another writer");
    EXPECT(dioxide_log_iter_close(iter), 0);
    EXPECT(dioxide_log_iter_close(follower), 0);
    /* Its thread has the number that the thread of the parent's log had, and was detached. */
    struct dioxide_log *own = opened_log("own-log", defaults);
    FAILS(dioxide_log_close(log), EBADF, "parent");
    EXPECT(dioxide_log_append(own, "own", 3), 1);
    EXPECT(dioxide_log_close(own), 0);
}

static void a_child_does_no_harm(void)
{
    struct dioxide_log *log = opened_log("forked-log", defaults);
    struct dioxide_log_iter *iter, *follower;
    const void *data;
    size_t length;
    EXPECT(dioxide_log_append(log, "parent", 6), 1);
    EXPECT(dioxide_log_iter_from(log, 1, &iter), 0);
    EXPECT(dioxide_log_follow(log, 1, &follower), 0);
    EXPECT(dioxide_log_next(iter, &data, &length), 1);
    pid_t child = fork();
    if (child == 0) {
        the_child_is_refused(log, iter, follower);
        leave_to_parent();
    }
    expect_child(child);
    EXPECT(dioxide_log_append(log, "parent", 6), 2);
    EXPECT(dioxide_log_next(iter, &data, &length), 2);
    EXPECT(dioxide_log_next(follower, &data, &length), 1);
    EXPECT(dioxide_log_iter_close(follower), 0);
    EXPECT(dioxide_log_iter_close(iter), 0);
    EXPECT(dioxide_log_close(log), 0);
}

/* A process that was killed has each acknowledged record, and no part of a batch. */
static void a_crash_loses_nothing(void)
{
    pid_t child = fork();
    if (child == 0) {
        struct dioxide_log *log = opened_log("crashed-log", defaults);
        const struct iovec records[] = {{"two", 3}, {"three", 5}};
        EXPECT(dioxide_log_append(log, "one", 3), 1);
        EXPECT(dioxide_log_append_all(log, records, 2), 2);
        EXPECT(dioxide_log_submit(log, "four", 4), 4);
        EXPECT(dioxide_log_wait(log, 4), 0);
        EXPECT(dioxide_log_submit(log, "in flight", 9), 5);
        kill(getpid(), SIGKILL);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
    struct dioxide_log *log = opened_log("crashed-log", defaults);
    const char *expected[] = {"one", "two", "three", "four", "in flight"};
    int64_t next = dioxide_log_next_lsn(log);
    CHECK(next == 5 || next == 6);
    for (int64_t lsn = 1; lsn < next; lsn++) {
        char back[16] = {0};
        EXPECT(dioxide_log_read(log, lsn, back, sizeof back), strlen(expected[lsn - 1]));
        CHECK(strcmp(back, expected[lsn - 1]) == 0);
    }
    EXPECT(dioxide_log_append(log, "again", 5), next);
    EXPECT(dioxide_log_close(log), 0);
}

int main(int argc, char **argv)
{
    enter(argc, argv);
    CHECK(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
    arguments_that_make_no_sense();
    logs_that_cannot_be_opened();
    logs_of_a_later_version();
    damage_is_found();
    a_full_log_takes_records_after_a_truncation();
    a_failed_write_ends_the_log();
    a_child_does_no_harm();
    a_crash_loses_nothing();
    return 0;
}
