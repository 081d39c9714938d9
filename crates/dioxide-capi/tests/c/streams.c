/* Every call of streams, in its intended use and with wrong arguments. */
#include "check.h"
#include <pthread.h>

#define STREAMS 4
#define APPENDS 50

static struct dioxide_stream_log *opened_streams(const char *path)
{
    struct dioxide_log_options options = {.size = sizeof options, .segment_bytes = 1 << 16};
    struct dioxide_stream_log *log = NULL;
    EXPECT(dioxide_stream_log_open(path, &options, &log), 0);
    CHECK(log != NULL);
    return log;
}

static struct dioxide_stream *stream_of(struct dioxide_stream_log *log, uint64_t id)
{
    struct dioxide_stream *stream = NULL;
    EXPECT(dioxide_stream_open(log, id, &stream), 0);
    CHECK(stream != NULL);
    return stream;
}

static void expect_next(struct dioxide_log_iter *iter, int64_t lsn, const char *text)
{
    const void *data;
    size_t length;
    EXPECT(dioxide_log_next(iter, &data, &length), lsn);
    EXPECT(length, lsn == 0 ? 0 : strlen(text));
    CHECK(length == 0 || memcmp(data, text, length) == 0);
}

static void *append_many(void *argument)
{
    for (int64_t lsn = 1; lsn <= APPENDS; lsn++)
        EXPECT(dioxide_stream_append(argument, &lsn, sizeof lsn), lsn);
    return NULL;
}

static void threads_append_to_their_streams(void)
{
    struct dioxide_stream_log *log = opened_streams("threads");
    struct dioxide_stream *streams[STREAMS];
    pthread_t threads[STREAMS];
    for (int number = 0; number < STREAMS; number++) {
        streams[number] = stream_of(log, 10 * number);
        EXPECT(pthread_create(&threads[number], NULL, append_many, streams[number]), 0);
    }
    for (int number = 0; number < STREAMS; number++) {
        EXPECT(pthread_join(threads[number], NULL), 0);
        EXPECT(dioxide_stream_stable_lsn(streams[number]), APPENDS + 1);
        EXPECT(dioxide_stream_close(streams[number]), 0);
    }
    uint64_t ids[STREAMS] = {0};
    EXPECT(dioxide_stream_log_ids(log, NULL, 0), STREAMS);
    EXPECT(dioxide_stream_log_ids(log, ids, 2), STREAMS);
    CHECK(ids[1] == 10 && ids[2] == 0);
    EXPECT(dioxide_stream_log_ids(log, ids, STREAMS), STREAMS);
    EXPECT(ids[3], 30);
    EXPECT(dioxide_stream_log_close(log), 0);
}

static void streams_are_logs_of_their_own(void)
{
    struct dioxide_stream_log *log = opened_streams("streams");
    struct dioxide_stream *one = stream_of(log, 1), *two = stream_of(log, UINT64_MAX);
    const struct iovec texts[] = {{"a", 1}, {"bc", 2}, {"", 0}};
    struct dioxide_stream *const owners[] = {two, one, two};
    int64_t lsns[3] = {0};
    EXPECT(dioxide_stream_append_all(one, texts, 2), 1);
    EXPECT(dioxide_stream_log_append_all(log, owners, texts, 3, lsns), 0);
    CHECK(lsns[0] == 1 && lsns[1] == 3 && lsns[2] == 2);
    EXPECT(dioxide_stream_log_append_all(log, NULL, NULL, 0, NULL), 0);
    EXPECT(dioxide_stream_log_sync(log), 0);
    EXPECT(dioxide_stream_append(one, "d", 1), 4);
    EXPECT(dioxide_stream_next_lsn(one), 5);
    char back[4] = {0};
    EXPECT(dioxide_stream_read(one, 2, NULL, 0), 2);
    EXPECT(dioxide_stream_read(one, 2, back, sizeof back), 2);
    CHECK(strcmp(back, "bc") == 0);
    FAILS(dioxide_stream_read(one, 5, back, sizeof back), EAGAIN, "not stable yet");

    struct dioxide_log_iter *iter, *follower;
    EXPECT(dioxide_stream_iter_from(one, 3, &iter), 0);
    EXPECT(dioxide_stream_follow(two, 2, &follower), 0);
    expect_next(iter, 3, "bc");
    expect_next(follower, 2, "");
    EXPECT(dioxide_stream_truncate_front(one, 3), 0);
    EXPECT(dioxide_stream_first_lsn(one), 3);
    FAILS(dioxide_stream_read(one, 2, back, sizeof back), ERANGE, "LSN 2");
    EXPECT(dioxide_stream_truncate_back(one, 4), 0);
    expect_next(iter, 0, "");
    EXPECT(dioxide_stream_append(one, "e", 1), 4);
    expect_next(iter, 4, "e");
    EXPECT(dioxide_stream_remove(two), 0);
    EXPECT(dioxide_stream_next_lsn(two), 1);
    EXPECT(dioxide_stream_log_ids(log, NULL, 0), 1);
    EXPECT(dioxide_stream_log_close(log), 0);
    FAILS(dioxide_stream_append(one, "f", 1), EBADF, "closed");
    EXPECT(dioxide_log_iter_close(iter), 0);
    EXPECT(dioxide_log_iter_close(follower), 0);
    EXPECT(dioxide_stream_close(one), 0);
    EXPECT(dioxide_stream_close(two), 0);

    log = opened_streams("streams");
    one = stream_of(log, 1);
    EXPECT(dioxide_stream_first_lsn(one), 3);
    EXPECT(dioxide_stream_next_lsn(one), 5);
    EXPECT(dioxide_stream_close(one), 0);
    EXPECT(dioxide_stream_log_close(log), 0);
}

static void what_makes_no_sense(void)
{
    struct dioxide_stream_log *log = NULL, *other;
    struct dioxide_stream *stream = NULL;
    struct dioxide_log_iter *iter;
    struct dioxide_log *plain;
    struct dioxide_log_options options = {.size = sizeof options, .retain_bytes = 1 << 20};
    FAILS(dioxide_stream_log_open("x", &options, &log), EINVAL, "retains");
    CHECK(log == NULL);
    FAILS(dioxide_stream_log_open(NULL, NULL, &log), EINVAL, "path is NULL");
    FAILS(dioxide_stream_log_open("x", NULL, NULL), EINVAL, "log is NULL");
    FAILS(dioxide_stream_open(NULL, 1, &stream), EINVAL, "log is NULL");
    FAILS(dioxide_stream_log_close(NULL), EINVAL, "log is NULL");
    FAILS(dioxide_stream_close(NULL), EINVAL, "stream is NULL");
    FAILS(dioxide_stream_append(NULL, "x", 1), EINVAL, "stream is NULL");

    log = opened_streams("sense");
    other = opened_streams("other");
    stream = stream_of(log, 7);
    FAILS(dioxide_log_open("sense", NULL, &plain), EBUSY, "another writer");
    FAILS(dioxide_stream_open(log, 1, NULL), EINVAL, "stream is NULL");
    FAILS(dioxide_stream_log_ids(log, NULL, 1), EINVAL, "ids is NULL");
    FAILS(dioxide_stream_append(stream, NULL, 1), EINVAL, "data is NULL");
    FAILS(dioxide_stream_append_all(stream, NULL, 1), EINVAL, "records is NULL");
    FAILS(dioxide_stream_read(stream, 0, NULL, 0), EINVAL, "lsn is 0");
    FAILS(dioxide_stream_iter_from(stream, -1, &iter), EINVAL, "lsn is -1");
    CHECK(iter == NULL);
    FAILS(dioxide_stream_follow(stream, 1, NULL), EINVAL, "iter is NULL");
    FAILS(dioxide_stream_truncate_front(stream, 0), EINVAL, "lsn is 0");
    FAILS(dioxide_stream_truncate_back(stream, 2), ERANGE, "LSN 2");
    const struct iovec record = {"x", 1};
    FAILS(dioxide_stream_log_append_all(other, &stream, &record, 1, NULL), EINVAL, "another log");
    FAILS(dioxide_stream_log_append_all(log, NULL, &record, 1, NULL), EINVAL, "streams is NULL");
    FAILS(dioxide_stream_log_append_all(log, &stream, NULL, 1, NULL), EINVAL, "records is NULL");
    EXPECT(dioxide_stream_log_close(other), 0);
    /* They were copied before their lengths were looked at. */
    const struct iovec endless[] = {{"x", PTRDIFF_MAX}, {"x", PTRDIFF_MAX}};
    FAILS(dioxide_stream_append(stream, "x", PTRDIFF_MAX), EMSGSIZE, "at most");
    FAILS(dioxide_stream_append_all(stream, endless, 2), EMSGSIZE, "at most");
    EXPECT(dioxide_stream_append(stream, "x", 1), 1);

    pid_t child = fork();
    if (child == 0) {
        FAILS(dioxide_stream_append(stream, "x", 1), EBADF, "parent");
        FAILS(dioxide_stream_log_sync(log), EBADF, "parent");
        struct dioxide_stream_log *own = opened_streams("own");
        FAILS(dioxide_stream_log_close(log), EBADF, "parent");
        EXPECT(dioxide_stream_close(stream), 0);
        EXPECT(dioxide_stream_log_close(own), 0);
        leave_to_parent();
    }
    expect_child(child);
    EXPECT(dioxide_stream_append(stream, "y", 1), 2);
    EXPECT(dioxide_stream_close(stream), 0);
    EXPECT(dioxide_stream_log_close(log), 0);
    FAILS(dioxide_log_open("sense", NULL, &plain), EINVAL, "log of streams");
}

int main(int argc, char **argv)
{
    enter(argc, argv);
    threads_append_to_their_streams();
    streams_are_logs_of_their_own();
    what_makes_no_sense();
    return 0;
}
