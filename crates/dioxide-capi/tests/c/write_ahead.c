/* Every call of write-ahead logs, in its intended use. */
#include "check.h"
#include <pthread.h>
#include <stdbool.h>

#define THREADS 8
#define APPENDS 50
#define IN_FLIGHT 5000

static const struct dioxide_log_options defaults = {0};

static struct dioxide_log_stats stats_of(struct dioxide_log *log)
{
    struct dioxide_log_stats stats = {.size = sizeof stats};
    EXPECT(dioxide_log_stats(log, &stats), 0);
    EXPECT(stats.size, sizeof stats);
    return stats;
}

/* Expects this text as the next record. */
static void expect_next(struct dioxide_log_iter *iter, int64_t lsn, const char *text)
{
    const void *data;
    size_t length;
    EXPECT(dioxide_log_next(iter, &data, &length), lsn);
    EXPECT(length, strlen(text));
    CHECK(memcmp(data, text, length) == 0);
}

static void expect_none(struct dioxide_log_iter *iter)
{
    const void *data = iter;
    size_t length = 1;
    EXPECT(dioxide_log_next(iter, &data, &length), 0);
    CHECK(data == NULL && length == 0);
}

static int64_t append_text(struct dioxide_log *log, const char *text)
{
    return dioxide_log_append(log, text, strlen(text));
}

struct appender {
    struct dioxide_log *log;
    int thread;
    int64_t lsns[APPENDS];
};

static void *append_many(void *argument)
{
    struct appender *appender = argument;
    for (int number = 0; number < APPENDS; number++) {
        int record[2] = {appender->thread, number};
        appender->lsns[number] = dioxide_log_append(appender->log, record, sizeof record);
        CHECK(appender->lsns[number] > 0);
        CHECK(dioxide_log_stable_lsn(appender->log) > appender->lsns[number]);
    }
    return NULL;
}

static void threads_append_side_by_side(void)
{
    struct dioxide_log *log = opened_log("threads-log", defaults);
    struct appender *appenders = calloc(THREADS, sizeof *appenders);
    pthread_t threads[THREADS];
    CHECK(appenders != NULL);
    for (int number = 0; number < THREADS; number++) {
        appenders[number].log = log;
        appenders[number].thread = number;
        EXPECT(pthread_create(&threads[number], NULL, append_many, &appenders[number]), 0);
    }
    for (int number = 0; number < THREADS; number++)
        EXPECT(pthread_join(threads[number], NULL), 0);
    EXPECT(dioxide_log_first_lsn(log), 1);
    EXPECT(dioxide_log_next_lsn(log), THREADS * APPENDS + 1);
    EXPECT(dioxide_log_stable_lsn(log), THREADS * APPENDS + 1);
    struct dioxide_log_stats stats = stats_of(log);
    EXPECT(stats.records, THREADS * APPENDS);
    CHECK(stats.batches > 0 && stats.batches <= stats.records && stats.write_ns > 0);
    CHECK(stats.bytes >= stats.records * 2 * sizeof(int));
    EXPECT(stats.segments, 1);
    EXPECT(dioxide_log_close(log), 0);

    log = opened_log("threads-log", defaults);
    struct dioxide_log_iter *iter;
    EXPECT(dioxide_log_iter_from(log, 1, &iter), 0);
    for (int64_t lsn = 1; lsn <= THREADS * APPENDS; lsn++) {
        const void *data;
        size_t length;
        int record[2];
        EXPECT(dioxide_log_next(iter, &data, &length), lsn);
        EXPECT(length, sizeof record);
        memcpy(record, data, length);
        EXPECT(appenders[record[0]].lsns[record[1]], lsn);
    }
    expect_none(iter);
    EXPECT(dioxide_log_iter_close(iter), 0);
    EXPECT(dioxide_log_close(log), 0);
    free(appenders);
}

static void a_batch_has_consecutive_records(void)
{
    struct dioxide_log *log = opened_log("batch", defaults);
    const struct iovec records[] = {{"first", 5}, {NULL, 0}, {"third", 5}};
    EXPECT(append_text(log, "before"), 1);
    EXPECT(dioxide_log_append_all(log, records, 3), 2);
    EXPECT(dioxide_log_append_all(log, NULL, 0), 5);
    EXPECT(append_text(log, "behind"), 5);
    EXPECT(stats_of(log).batches, 3);
    struct dioxide_log_iter *iter;
    EXPECT(dioxide_log_iter_from(log, 2, &iter), 0);
    expect_next(iter, 2, "first");
    expect_next(iter, 3, "");
    expect_next(iter, 4, "third");
    expect_next(iter, 5, "behind");
    EXPECT(dioxide_log_iter_close(iter), 0);
    EXPECT(dioxide_log_close(log), 0);
}

static void one_thread_has_thousands_in_flight(void)
{
    struct dioxide_log_options options = {.batch_bytes = 4096};
    struct dioxide_log *log = opened_log("submitted", options);
    for (int number = 1; number <= IN_FLIGHT; number++)
        EXPECT(dioxide_log_submit(log, &number, sizeof number), number);
    EXPECT(dioxide_log_wait(log, IN_FLIGHT), 0);
    EXPECT(dioxide_log_wait(log, 1), 0);
    FAILS(dioxide_log_wait(log, IN_FLIGHT + 1), ERANGE, "out of range");
    EXPECT(dioxide_log_stable_lsn(log), IN_FLIGHT + 1);
    CHECK(stats_of(log).batches >= IN_FLIGHT * sizeof(int) / 4096);
    for (int number = 1; number <= IN_FLIGHT; number += 999) {
        int back = 0;
        EXPECT(dioxide_log_read(log, number, &back, sizeof back), sizeof back);
        EXPECT(back, number);
    }
    EXPECT(dioxide_log_close(log), 0);
}

static void a_record_is_read_whole_or_in_part(void)
{
    struct dioxide_log *log = opened_log("read", defaults);
    char back[16] = "________";
    EXPECT(append_text(log, "a record"), 1);
    EXPECT(append_text(log, ""), 2);
    EXPECT(dioxide_log_read(log, 1, NULL, 0), 8);
    EXPECT(dioxide_log_read(log, 1, back, 3), 8);
    CHECK(memcmp(back, "a r_____", 8) == 0);
    EXPECT(dioxide_log_read(log, 1, back, sizeof back), 8);
    CHECK(strcmp(back, "a record") == 0);
    EXPECT(dioxide_log_read(log, 2, back, sizeof back), 0);
    FAILS(dioxide_log_read(log, 3, back, sizeof back), EAGAIN, "record 3");
    CHECK(strcmp(back, "a record") == 0);
    EXPECT(dioxide_log_close(log), 0);
}

static void an_iterator_goes_on_with_new_records(void)
{
    struct dioxide_log *log = opened_log("iterated", defaults);
    struct dioxide_log_iter *iter, *behind;
    EXPECT(dioxide_log_iter_from(log, 1, &iter), 0);
    expect_none(iter);
    EXPECT(append_text(log, "one"), 1);
    expect_next(iter, 1, "one");
    expect_none(iter);
    EXPECT(append_text(log, "two"), 2);
    EXPECT(append_text(log, "three"), 3);
    EXPECT(dioxide_log_iter_from(log, 1, &behind), 0);
    expect_next(iter, 2, "two");
    EXPECT(dioxide_log_close(log), 0);
    expect_next(iter, 3, "three");
    expect_none(iter);
    EXPECT(dioxide_log_iter_close(iter), 0);
    expect_next(behind, 1, "one");
    EXPECT(dioxide_log_iter_close(behind), 0);
}

/* Counts the records until the log is closed. */
static void *follow(void *iter)
{
    static int64_t last;
    const void *data;
    size_t length;
    for (int64_t lsn; (lsn = dioxide_log_next(iter, &data, &length)) != 0; last = lsn) {
        EXPECT(lsn, last + 1);
        EXPECT(length, sizeof lsn);
        CHECK(memcmp(data, &lsn, length) == 0);
    }
    EXPECT(dioxide_log_iter_close(iter), 0);
    return &last;
}

static void a_follower_gets_each_record_until_the_log_is_closed(void)
{
    struct dioxide_log *log = opened_log("followed", defaults);
    struct dioxide_log_iter *iter;
    pthread_t thread;
    void *last;
    EXPECT(dioxide_log_follow(log, 1, &iter), 0);
    EXPECT(pthread_create(&thread, NULL, follow, iter), 0);
    for (int64_t lsn = 1; lsn <= 100; lsn++)
        EXPECT(dioxide_log_append(log, &lsn, sizeof lsn), lsn);
    EXPECT(dioxide_log_close(log), 0);
    EXPECT(pthread_join(thread, &last), 0);
    EXPECT(*(int64_t *)last, 100);
}

static void both_ends_are_truncated(void)
{
    struct dioxide_log *log = opened_log("truncated", defaults);
    struct dioxide_log_iter *iter;
    char byte;
    for (int number = 1; number <= 10; number++)
        EXPECT(append_text(log, "old"), number);
    EXPECT(dioxide_log_iter_from(log, 1, &iter), 0);
    EXPECT(dioxide_log_truncate_front(log, 4), 0);
    EXPECT(dioxide_log_truncate_front(log, 2), 0);
    EXPECT(dioxide_log_first_lsn(log), 4);
    const void *data = iter;
    size_t length = 1;
    FAILS(dioxide_log_next(iter, &data, &length), ERANGE, "LSN 1 is out of range");
    CHECK(data == NULL && length == 0);
    FAILS(dioxide_log_read(log, 3, &byte, 1), ERANGE, "LSN 3 is out of range");
    EXPECT(dioxide_log_iter_close(iter), 0);

    EXPECT(dioxide_log_iter_from(log, 7, &iter), 0);
    expect_next(iter, 7, "old");
    EXPECT(dioxide_log_truncate_back(log, 8), 0);
    EXPECT(dioxide_log_next_lsn(log), 8);
    expect_none(iter);
    EXPECT(append_text(log, "new"), 8);
    expect_next(iter, 8, "new");
    EXPECT(dioxide_log_iter_close(iter), 0);
    FAILS(dioxide_log_truncate_back(log, 3), ERANGE, "LSN 3 is out of range");
    FAILS(dioxide_log_truncate_back(log, 10), ERANGE, "LSN 10 is out of range");

    EXPECT(dioxide_log_truncate_front(log, 1000), 0);
    EXPECT(dioxide_log_first_lsn(log), 1000);
    EXPECT(append_text(log, "far"), 1000);
    FAILS(dioxide_log_truncate_front(log, (INT64_C(1) << 62) + 1), ERANGE, "out of range");
    EXPECT(dioxide_log_truncate_front(log, INT64_C(1) << 62), 0);
    EXPECT(append_text(log, "farther"), INT64_C(1) << 62);
    EXPECT(dioxide_log_close(log), 0);

    log = opened_log("truncated", defaults);
    EXPECT(dioxide_log_first_lsn(log), INT64_C(1) << 62);
    EXPECT(dioxide_log_next_lsn(log), (INT64_C(1) << 62) + 1);
    EXPECT(dioxide_log_close(log), 0);
}

static void without_a_flush_for_each_record(void)
{
    struct dioxide_log_options options = {.flags = DIOXIDE_LOG_ON_SYNC};
    struct dioxide_log *log = opened_log("synced", options);
    char back[4];
    EXPECT(append_text(log, "one"), 1);
    EXPECT(dioxide_log_stable_lsn(log), 1);
    FAILS(dioxide_log_read(log, 1, back, 4), EAGAIN, "not stable");
    EXPECT(dioxide_log_sync(log), 0);
    EXPECT(dioxide_log_stable_lsn(log), 2);
    EXPECT(dioxide_log_read(log, 1, back, 4), 3);
    EXPECT(stats_of(log).syncs, 1);
    EXPECT(dioxide_log_close(log), 0);

    options.flags |= DIOXIDE_LOG_READ_UNSYNCED | DIOXIDE_LOG_NO_CREATE;
    log = opened_log("synced", options);
    EXPECT(append_text(log, "two"), 2);
    EXPECT(dioxide_log_stable_lsn(log), 2);
    EXPECT(dioxide_log_read(log, 2, back, 4), 3);
    EXPECT(dioxide_log_close(log), 0);
}

/* Appends large records until `ends`. A thread of the log frees segments in its own time. */
static void append_until(struct dioxide_log *log, bool (*ends)(struct dioxide_log *))
{
    static const char record[30000];
    while (!ends(log)) {
        CHECK(dioxide_log_append(log, record, sizeof record) > 0);
        usleep(1000);
    }
}

static bool has_freed(struct dioxide_log *log)
{
    return dioxide_log_first_lsn(log) > 1 && stats_of(log).segments_freed > 0;
}

static bool has_six_segments(struct dioxide_log *log)
{
    return stats_of(log).segments == 6;
}

static void old_segments_are_freed(void)
{
    struct dioxide_log_options options = {.retain_bytes = 1 << 17};
    struct dioxide_log *log = opened_log("retained", options);
    append_until(log, has_freed);
    EXPECT(dioxide_log_close(log), 0);

    options.retain_bytes = 0;
    options.retain_age_ms = 1;
    log = opened_log("aged", options);
    append_until(log, has_freed);
    EXPECT(dioxide_log_close(log), 0);

    options.retain_age_ms = 0;
    options.spare_segments = 1;
    log = opened_log("spare", options);
    append_until(log, has_six_segments);
    EXPECT(dioxide_log_first_lsn(log), 1);
    CHECK(stats_of(log).segments_created >= 5);
    EXPECT(dioxide_log_truncate_front(log, dioxide_log_next_lsn(log)), 0);
    while (stats_of(log).free_segments > 1)
        usleep(1000);
    EXPECT(dioxide_log_close(log), 0);
}

/* A program of a later version has more members than this library knows; they must be zero. */
static void structs_grow(void)
{
    struct {
        struct dioxide_log_options known;
        uint64_t later;
    } options;
    struct {
        struct dioxide_log_stats known;
        uint64_t later;
    } stats;
    struct dioxide_log *log;
    memset(&options, 0, sizeof options);
    memset(&stats, 0x55, sizeof stats);
    options.known.size = sizeof options;
    stats.known.size = sizeof stats;
    options.known.segment_bytes = 1 << 16;
    EXPECT(dioxide_log_open("grown-log", &options.known, &log), 0);
    EXPECT(append_text(log, "a record"), 1);
    EXPECT(dioxide_log_stats(log, &stats.known), 0);
    EXPECT(stats.known.records, 1);
    EXPECT(stats.later, 0);
    EXPECT(dioxide_log_close(log), 0);
    options.later = 1;
    FAILS(dioxide_log_open("grown-log", &options.known, &log), E2BIG, "dioxide_log_options");
    CHECK(log == NULL);
}

static void the_options_may_be_null(void)
{
    struct dioxide_log *log;
    EXPECT(dioxide_log_open("defaults/below", NULL, &log), 0);
    EXPECT(append_text(log, "a record"), 1);
    EXPECT(dioxide_log_close(log), 0);
    EXPECT(size_of("defaults/below/segment-000000"), 16 << 20);
}

int main(int argc, char **argv)
{
    enter(argc, argv);
    threads_append_side_by_side();
    a_batch_has_consecutive_records();
    one_thread_has_thousands_in_flight();
    a_record_is_read_whole_or_in_part();
    an_iterator_goes_on_with_new_records();
    a_follower_gets_each_record_until_the_log_is_closed();
    both_ends_are_truncated();
    without_a_flush_for_each_record();
    old_segments_are_freed();
    structs_grow();
    the_options_may_be_null();
    return 0;
}
