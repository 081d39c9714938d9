/* Queues: many operations in flight, full and mixed queues, closed files, other threads. */
#include "check.h"
#include <pthread.h>

#define DEPTH 64
#define ROUNDS 8

/* DIOXIDE_QUEUE_PLAIN under valgrind, which does not support io_uring. */
static uint32_t flags;

static struct dioxide_queue *made(uint32_t depth)
{
    struct dioxide_queue *queue;
    EXPECT(dioxide_queue_new(depth, flags, &queue), 0);
    return queue;
}

static void many_are_in_flight(void)
{
    struct dioxide_file *file = fresh("queued");
    struct dioxide_queue *queue = made(DEPTH);
    unsigned char *blocks = dioxide_alloc(DEPTH * BLOCK);
    struct dioxide_completion done[DEPTH];
    int seen[DEPTH * ROUNDS] = {0};
    for (unsigned round = 0; round < ROUNDS; round++) {
        for (unsigned number = 0; number < DEPTH; number++) {
            unsigned char *block = blocks + (size_t)number * BLOCK;
            memset(block, (int)(number + round), BLOCK);
            EXPECT(dioxide_queue_append(queue, file, block, BLOCK, round * DEPTH + number), 0);
        }
        FAILS(dioxide_queue_append(queue, file, blocks, BLOCK, 0), EAGAIN, "full");
        FAILS(dioxide_queue_fdatasync(queue, file, 0), EAGAIN, "full");
        EXPECT(dioxide_queue_outstanding(queue), DEPTH);
        while (dioxide_queue_outstanding(queue) > 0) {
            int count = dioxide_queue_reap(queue, done, DEPTH / 2, 1);
            CHECK(count > 0 && count <= DEPTH / 2);
            for (int number = 0; number < count; number++) {
                EXPECT(done[number].result, done[number].user_data * BLOCK);
                seen[done[number].user_data]++;
            }
        }
    }
    for (int number = 0; number < DEPTH * ROUNDS; number++)
        EXPECT(seen[number], 1);

    /* Reads of it, into unaligned memory. */
    unsigned char *into = malloc(DEPTH * 101);
    for (unsigned number = 0; number < DEPTH; number++)
        EXPECT(dioxide_queue_pread(queue, file, into + number * 101, 100, (int64_t)number * BLOCK + 7, number), 0);
    EXPECT(dioxide_queue_submit(queue), 0);
    EXPECT(dioxide_queue_reap(queue, done, DEPTH, DEPTH), DEPTH);
    for (unsigned number = 0; number < DEPTH; number++) {
        EXPECT(done[number].result, 100);
        EXPECT(into[number * 101], number);
        EXPECT(into[number * 101 + 99], number);
    }
    EXPECT(dioxide_queue_reap(queue, done, DEPTH, 1), 0);
    EXPECT(dioxide_queue_free(queue), 0);
    EXPECT(dioxide_size(file), DEPTH * ROUNDS * BLOCK);
    EXPECT(dioxide_close(file), 0);
    dioxide_free(blocks);
    free(into);
}

static void kinds_and_errors_are_mixed(void)
{
    struct dioxide_options options = {0};
    struct dioxide_file *file = opened("mixed", O_RDWR | O_CREAT | O_TRUNC, options), *reader;
    struct dioxide_queue *queue = made(8);
    struct dioxide_completion done[8];
    unsigned char *block = dioxide_alloc(BLOCK), back[10];
    memset(block, 1, BLOCK);
    EXPECT(dioxide_open("mixed", O_RDONLY, 0, NULL, &reader), 0);
    EXPECT(dioxide_queue_append(queue, file, "any length", 10, 0), 0);
    EXPECT(dioxide_queue_append(queue, file, NULL, 0, 1), 0);
    EXPECT(dioxide_queue_reap(queue, done, 8, 2), 2);
    EXPECT(dioxide_queue_pwrite(queue, file, block, BLOCK, BLOCK, 2), 0);
    EXPECT(dioxide_queue_pwrite(queue, file, block, BLOCK - 1, BLOCK, 3), 0);
    EXPECT(dioxide_queue_append(queue, reader, block, BLOCK, 4), 0);
    EXPECT(dioxide_queue_pread(queue, reader, back, 10, 0, 5), 0);
    EXPECT(dioxide_queue_fdatasync(queue, file, 6), 0);
    EXPECT(dioxide_queue_reap(queue, done, 8, 8), 5);
    for (int number = 0; number < 5; number++) {
        const int64_t expected[] = {[2] = BLOCK, [3] = BLOCK - 1, [4] = -EBADF, [5] = 10, [6] = 0};
        EXPECT(done[number].result, expected[done[number].user_data]);
    }
    CHECK(memcmp(back, "any length", 10) == 0);
    EXPECT(dioxide_queue_append(queue, reader, block, BLOCK, 7), 0);
    EXPECT(dioxide_queue_reap(queue, done, 1, 1), 1);
    EXPECT(done[0].result, -EBADF);
    CHECK(strstr(dioxide_last_error(), "append mixed: opened read-only") != NULL);
    EXPECT(dioxide_queue_free(queue), 0);
    EXPECT(dioxide_close(reader), 0);
    EXPECT(dioxide_close(file), 0);
    dioxide_free(block);
}

static void a_file_is_closed_meanwhile(void)
{
    struct dioxide_file *file = fresh("closed");
    struct dioxide_queue *queue = made(16);
    struct dioxide_completion done[16];
    char *blocks = dioxide_alloc(16 * BLOCK);
    for (unsigned number = 0; number < 8; number++)
        EXPECT(dioxide_queue_append(queue, file, blocks + (size_t)number * BLOCK, BLOCK, number), 0);
    EXPECT(dioxide_queue_submit(queue), 0);
    for (unsigned number = 8; number < 16; number++)
        EXPECT(dioxide_queue_append(queue, file, blocks + (size_t)number * BLOCK, BLOCK, number), 0);
    EXPECT(dioxide_close(file), 0);
    EXPECT(size_of("closed"), 8 * BLOCK);
    EXPECT(dioxide_queue_reap(queue, done, 16, 16), 16);
    for (int number = 0; number < 16; number++) {
        uint64_t nth = done[number].user_data;
        EXPECT(done[number].result, nth < 8 ? (int64_t)nth * BLOCK : -EBADF);
    }
    EXPECT(dioxide_queue_free(queue), 0);
    dioxide_free(blocks);
}

/* Freeing waits for submitted operations and discards the rest; the memory is free at once. */
static void a_queue_is_freed_meanwhile(void)
{
    struct dioxide_file *file = fresh("freed");
    struct dioxide_queue *queue = made(16);
    char *blocks = dioxide_alloc(16 * BLOCK);
    for (unsigned number = 0; number < 16; number++) {
        if (number == 8)
            EXPECT(dioxide_queue_submit(queue), 0);
        EXPECT(dioxide_queue_append(queue, file, blocks + (size_t)number * BLOCK, BLOCK, number), 0);
    }
    EXPECT(dioxide_queue_free(queue), 0);
    dioxide_free(blocks);
    EXPECT(dioxide_size(file), 8 * BLOCK);
    EXPECT(dioxide_close(file), 0);
}

static struct {
    struct dioxide_file *file;
    struct dioxide_queue *queue;
    char *block;
} ending;

static void begin_at_the_end(void)
{
    ending.file = fresh("ending");
    ending.queue = made(1);
    ending.block = dioxide_alloc(BLOCK);
    EXPECT(dioxide_append(ending.file, ending.block, BLOCK), 0);
    EXPECT(dioxide_queue_append(ending.queue, ending.file, ending.block, BLOCK, 0), 0);
    EXPECT(dioxide_queue_submit(ending.queue), 0);
}

/* Waits for operations in the thread's own queue. */
static void append_at_the_end(void)
{
    struct dioxide_completion done;
    struct dioxide_queue *another = made(1);
    EXPECT(dioxide_append(ending.file, ending.block, BLOCK), 2 * BLOCK);
    EXPECT(dioxide_queue_append(another, ending.file, ending.block, BLOCK, 1), 0);
    EXPECT(dioxide_queue_reap(another, &done, 1, 1), 1);
    EXPECT(done.result, 3 * BLOCK);
    EXPECT(dioxide_queue_reap(ending.queue, &done, 1, 1), 1);
    EXPECT(done.result, BLOCK);
    EXPECT(dioxide_queue_free(another), 0);
    EXPECT(dioxide_queue_free(ending.queue), 0);
    EXPECT(dioxide_close(ending.file), 0);
    dioxide_free(ending.block);
}

static void destroy(void *nothing)
{
    (void)nothing;
    append_at_the_end();
}

static void *end_with_a_queue(void *key)
{
    begin_at_the_end();
    EXPECT(pthread_setspecific(*(pthread_key_t *)key, key), 0);
    return NULL;
}

/* In a destructor of thread-local data, after that of the library: a thread waited for itself, or
 * the process was aborted. Destructors run in the order of their keys, so the first key that is
 * free must not be this one. */
static void a_thread_that_ended_forgot_its_queue(void)
{
    pthread_t thread;
    pthread_key_t spare, key;
    EXPECT(pthread_key_create(&spare, NULL), 0);
    EXPECT(pthread_key_create(&key, destroy), 0);
    EXPECT(pthread_create(&thread, NULL, end_with_a_queue, &key), 0);
    EXPECT(pthread_join(thread, NULL), 0);
    EXPECT(pthread_key_delete(key), 0);
    EXPECT(pthread_key_delete(spare), 0);
}

/* The same for the main thread, at its exit. */
static void a_program_that_ended_forgot_its_queue(void)
{
    begin_at_the_end();
    EXPECT(atexit(append_at_the_end), 0);
}

static void *use_of_another(void *argument)
{
    struct dioxide_queue *queue = argument;
    struct dioxide_completion done;
    struct dioxide_file *file = fresh("other");
    FAILS(dioxide_queue_append(queue, file, "x", 1, 0), EPERM, "another thread");
    FAILS(dioxide_queue_pwrite(queue, file, "x", 1, 0, 0), EPERM, "another thread");
    FAILS(dioxide_queue_pread(queue, file, &done, 1, 0, 0), EPERM, "another thread");
    FAILS(dioxide_queue_fdatasync(queue, file, 0), EPERM, "another thread");
    FAILS(dioxide_queue_submit(queue), EPERM, "another thread");
    FAILS(dioxide_queue_reap(queue, &done, 1, 0), EPERM, "another thread");
    FAILS(dioxide_queue_outstanding(queue), EPERM, "another thread");
    FAILS(dioxide_queue_uses_io_uring(queue), EPERM, "another thread");
    FAILS(dioxide_queue_free(queue), EPERM, "another thread");
    EXPECT(dioxide_close(file), 0);
    return NULL;
}

static void bad_use_is_told(void)
{
    struct dioxide_queue *queue = (struct dioxide_queue *)&flags;
    struct dioxide_completion done[2];
    pthread_t thread;
    FAILS(dioxide_queue_new(0, 0, &queue), EINVAL, "depth is 0");
    CHECK(queue == NULL);
    FAILS(dioxide_queue_new(1, 2, &queue), EINVAL, "flags are 0x2");
    FAILS(dioxide_queue_new(1, 0, NULL), EINVAL, "queue is NULL");
    FAILS(dioxide_queue_append(NULL, NULL, NULL, 0, 0), EINVAL, "queue is NULL");
    FAILS(dioxide_queue_submit(NULL), EINVAL, "queue is NULL");
    FAILS(dioxide_queue_free(NULL), EINVAL, "queue is NULL");
    queue = made(2);
    FAILS(dioxide_queue_append(queue, NULL, "x", 1, 0), EINVAL, "file is NULL");
    FAILS(dioxide_queue_reap(queue, NULL, 1, 0), EINVAL, "completions is NULL");
    FAILS(dioxide_queue_reap(queue, done, 1, 2), EINVAL, "room is 1");
    FAILS(dioxide_queue_reap(queue, done, UINT32_MAX, 0), EINVAL, "INT_MAX");
    EXPECT(dioxide_queue_reap(queue, NULL, 0, 0), 0);
    struct dioxide_file *file = fresh("bad");
    FAILS(dioxide_queue_append(queue, file, NULL, 1, 0), EINVAL, "data is NULL");
    FAILS(dioxide_queue_pread(queue, file, done, 1, -1, 0), EINVAL, "offset is -1");
    FAILS(dioxide_queue_pwrite(queue, file, done, (size_t)-1, 0, 0), EINVAL, "length");
    EXPECT(dioxide_queue_outstanding(queue), 0);
    EXPECT(pthread_create(&thread, NULL, use_of_another, queue), 0);
    EXPECT(pthread_join(thread, NULL), 0);
    EXPECT(dioxide_queue_free(queue), 0);
    EXPECT(dioxide_close(file), 0);
}

int main(int argc, char **argv)
{
    enter(argc, argv);
    if (argc > 2)
        flags = DIOXIDE_QUEUE_PLAIN;
    struct dioxide_queue *queue = made(1);
    if (flags & DIOXIDE_QUEUE_PLAIN)
        EXPECT(dioxide_queue_uses_io_uring(queue), 0);
    EXPECT(dioxide_queue_free(queue), 0);
    many_are_in_flight();
    kinds_and_errors_are_mixed();
    a_file_is_closed_meanwhile();
    a_queue_is_freed_meanwhile();
    bad_use_is_told();
    a_thread_that_ended_forgot_its_queue();
    a_program_that_ended_forgot_its_queue();
    return 0;
}
