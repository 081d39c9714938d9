/*
 * A log of framed records, written by 64 threads: log FILE [RECORDS]
 *
 * Each record begins with its length and a checksum, so that a reader finds the last whole record
 * after a crash. After it follow zeros, or part of a record that was never acknowledged.
 *
 * Build it with
 *
 *     cc log.c $(pkg-config --cflags --libs dioxide) -pthread
 */
#include <dioxide.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define THREADS 64
#define TEXT_MAX 200
#define BLOCK 4096

struct frame {
    uint32_t length;
    uint32_t sum;
    char text[TEXT_MAX];
};

struct log_file {
    struct dioxide_file *file;
    unsigned records;
};

#define HEAD offsetof(struct frame, text)

static int failed(const char *what, int64_t result)
{
    if (result < 0)
        fprintf(stderr, "%s: %s\n", what, dioxide_last_error());
    return result < 0;
}

/* FNV-1a: enough for an example. */
static uint32_t sum_of(const char *text, uint32_t length)
{
    uint32_t sum = 2166136261u ^ length;
    for (uint32_t at = 0; at < length; at++)
        sum = (sum ^ (unsigned char)text[at]) * 16777619u;
    return sum;
}

/* Reads the records from the start, counts them, and returns the end of the last whole one. */
static int64_t end_of_records(struct dioxide_file *file, unsigned *count)
{
    struct frame frame;
    int64_t end = 0;
    for (*count = 0;; ++*count) {
        int64_t there = dioxide_pread(file, &frame, sizeof frame, end);
        if (there < 0)
            return there;
        if (there < (int64_t)HEAD || frame.length == 0 || frame.length > TEXT_MAX)
            return end;
        if (there < (int64_t)(HEAD + frame.length) || frame.sum != sum_of(frame.text, frame.length))
            return end;
        end += (int64_t)(HEAD + frame.length);
    }
}

/* Whether records that a crash does not take are missing: the file is damaged, or no log. */
static int lacks_records(struct dioxide_file *file, int64_t end)
{
    struct dioxide_recovery state = {.size = sizeof state};
    int recovered = dioxide_recovery(file, &state);
    if (failed("recovery", recovered))
        return 1;
    /* A file that was closed ends with a record. Below the floor nothing is lost. But a crash
     * leaves whole blocks, with parts of the records that were in flight, and so does the next
     * open. */
    int64_t size = recovered ? (int64_t)state.floor : dioxide_size(file);
    int is_exact = !recovered && size % BLOCK != 0;
    int64_t least = is_exact ? size : size - BLOCK - THREADS * (int64_t)sizeof(struct frame);
    if (end < least)
        fprintf(stderr, "the records end at %" PRId64 ", too early\n", end);
    return end < least;
}

static void *write_records(void *argument)
{
    const struct log_file *log = argument;
    for (unsigned number = 0; number < log->records; number++) {
        struct frame frame;
        frame.length = (uint32_t)snprintf(frame.text, TEXT_MAX, "record %u of a thread", number);
        frame.sum = sum_of(frame.text, frame.length);
        /* On return the record is on stable storage, and so is every one before it. */
        if (failed("append", dioxide_append(log->file, &frame, HEAD + frame.length)))
            return argument;
    }
    return NULL;
}

/* Runs the threads, and returns whether all of them could write. */
static int write_side_by_side(struct log_file *log)
{
    pthread_t threads[THREADS];
    int begun = 0, whole = 1;
    while (begun < THREADS && pthread_create(&threads[begun], NULL, write_records, log) == 0)
        begun++;
    for (int number = 0; number < begun; number++) {
        void *problem = NULL;
        pthread_join(threads[number], &problem);
        whole = whole && problem == NULL;
    }
    return whole && begun == THREADS;
}

int main(int argc, char **argv)
{
    struct dioxide_options options;
    struct log_file log = {NULL, argc > 2 ? (unsigned)atoi(argv[2]) : 100};
    unsigned found = 0;
    if (argc < 2) {
        fprintf(stderr, "usage: %s FILE [RECORDS]\n", argv[0]);
        return 2;
    }
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.durability = DIOXIDE_EVERY_WRITE;
    if (failed("open", dioxide_open(argv[1], O_RDWR | O_CREAT, 0644, &options, &log.file)))
        return 1;
    int64_t end = end_of_records(log.file, &found);
    if (failed("read", end) || lacks_records(log.file, end))
        return 1;
    int ok = !failed("truncate", dioxide_ftruncate(log.file, end));
    printf("%u records found, %" PRId64 " bytes\n", found, end);
    ok = ok && write_side_by_side(&log);
    end = end_of_records(log.file, &found);
    printf("%u records now, %" PRId64 " bytes\n", found, end);
    ok = ok && end == dioxide_size(log.file);
    /* Truncates the file to its exact length. */
    return failed("close", dioxide_close(log.file)) || !ok;
}
