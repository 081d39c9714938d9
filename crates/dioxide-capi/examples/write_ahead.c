/*
 * A write-ahead log that 8 threads append to: write_ahead DIRECTORY [RECORDS]
 *
 * It keeps the last 10 records for the next run. Build it with
 *
 *     cc write_ahead.c $(pkg-config --cflags --libs dioxide) -pthread
 */
#include <dioxide.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define THREADS 8
#define KEPT 10

static int records = 100;

/* The result of a call; an error ends the program. */
static int64_t must(int64_t result)
{
    if (result < 0) {
        fprintf(stderr, "%s\n", dioxide_last_error());
        exit(1);
    }
    return result;
}

static void *append_records(void *log)
{
    char text[40];
    for (int number = 0; number < records; number++) {
        int length = snprintf(text, sizeof text, "record %d of a thread", number);
        /* On return the record is stable, as are all before it. */
        must(dioxide_log_append(log, text, (size_t)length));
    }
    return NULL;
}

int main(int argc, char **argv)
{
    struct dioxide_log *log;
    struct dioxide_log_iter *iter;
    pthread_t threads[THREADS];
    const void *data;
    size_t length;
    int64_t lsn, next;
    if (argc < 2) {
        fprintf(stderr, "usage: %s DIRECTORY [RECORDS]\n", argv[0]);
        return 2;
    }
    if (argc > 2)
        records = atoi(argv[2]);
    must(dioxide_log_open(argv[1], NULL, &log));
    for (int number = 0; number < THREADS; number++)
        must(-pthread_create(&threads[number], NULL, append_records, log));
    for (int number = 0; number < THREADS; number++)
        must(-pthread_join(threads[number], NULL));
    must(dioxide_log_iter_from(log, must(dioxide_log_first_lsn(log)), &iter));
    while ((lsn = must(dioxide_log_next(iter, &data, &length))) > 0)
        printf("%" PRId64 ": %.*s\n", lsn, (int)length, (const char *)data);
    must(dioxide_log_iter_close(iter));
    next = must(dioxide_log_next_lsn(log));
    if (next > KEPT)
        must(dioxide_log_truncate_front(log, next - KEPT));
    must(dioxide_log_close(log));
    return 0;
}
