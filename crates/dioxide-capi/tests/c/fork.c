/* A fork with open files and outstanding operations: the child is refused, and does no harm.
 * Its own files work. */
#include "check.h"
#include <signal.h>

static void the_child_is_refused(struct dioxide_file *file, struct dioxide_file *reader, struct dioxide_queue *queue)
{
    char byte;
    struct dioxide_file *another;
    struct dioxide_completion done[4];
    FAILS(dioxide_append(file, "x", 1), EBADF, "parent");
    FAILS(dioxide_pread(file, &byte, 1, 0), EBADF, "parent");
    FAILS(dioxide_fdatasync(file), EBADF, "parent");
    FAILS(dioxide_ftruncate(file, 0), EBADF, "parent");
    FAILS(dioxide_recycle(file), EBADF, "parent");
    FAILS(dioxide_dup(file, &another), EBADF, "parent");
    EXPECT(dioxide_growth(file), DIOXIDE_NOT_AHEAD);
    EXPECT(dioxide_size(file), 6);
    EXPECT(dioxide_pread(reader, &byte, 1, 0), 1);
    FAILS(dioxide_open("forked", O_RDWR, 0, NULL, &another), EAGAIN, "another process");
    EXPECT(dioxide_queue_reap(queue, done, 4, 4), 2);
    EXPECT(done[0].result, -EBADF);
    EXPECT(done[1].result, -EBADF);
    EXPECT(dioxide_queue_free(queue), 0);
    FAILS(dioxide_close(file), EBADF, "parent");
    EXPECT(dioxide_close(reader), 0);
    file = fresh("own");
    EXPECT(dioxide_append(file, "own", 3), 0);
    EXPECT(dioxide_close(file), 0);
    EXPECT(size_of("own"), 3);
}

/* The next process recovers the file of one that died. */
static void a_crash_is_recovered_from(void)
{
    pid_t child = fork();
    if (child == 0) {
        struct dioxide_file *file = fresh("crashed");
        EXPECT(dioxide_append(file, "durable", 7), 0);
        kill(getpid(), SIGKILL);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
    CHECK(size_of("crashed") > BLOCK);
    struct dioxide_recovery found = {.size = sizeof found}, again = {.size = sizeof again};
    EXPECT(dioxide_recover("crashed", DIOXIDE_INSPECT, &found), 0);
    EXPECT(found.verdict, DIOXIDE_END_KNOWN);
    EXPECT(found.floor, BLOCK);
    EXPECT(found.ceiling, BLOCK);
    CHECK(strstr(found.text, "crash") != NULL);
    struct dioxide_options options = {0};
    struct dioxide_file *file = opened("crashed", O_RDWR, options);
    EXPECT(dioxide_recovery(file, &again), 1);
    EXPECT(again.verdict, DIOXIDE_END_KNOWN);
    EXPECT(dioxide_size(file), BLOCK);
    char back[8];
    EXPECT(dioxide_pread(file, back, 8, 0), 8);
    CHECK(memcmp(back, "durable", 8) == 0);
    EXPECT(dioxide_close(file), 0);
    EXPECT(size_of("crashed"), BLOCK);
    EXPECT(dioxide_recover("crashed", DIOXIDE_TRUNCATE, &found), 0);
    EXPECT(found.verdict, DIOXIDE_CLEAN);
}

int main(int argc, char **argv)
{
    enter(argc, argv);
    struct dioxide_queue *queue;
    struct dioxide_file *file = fresh("forked"), *reader;
    struct dioxide_completion done[2];
    char *blocks = dioxide_alloc(2 * BLOCK);
    EXPECT(dioxide_open("forked", O_RDONLY, 0, NULL, &reader), 0);
    EXPECT(dioxide_append(file, "parent", 6), 0);
    EXPECT(dioxide_queue_new(4, argc > 2 ? DIOXIDE_QUEUE_PLAIN : 0, &queue), 0);
    EXPECT(dioxide_queue_append(queue, file, blocks, BLOCK, 1), 0);
    EXPECT(dioxide_queue_append(queue, file, blocks + BLOCK, BLOCK, 2), 0);
    pid_t child = fork();
    if (child == 0) {
        the_child_is_refused(file, reader, queue);
        dioxide_free(blocks);
        leave_to_parent();
    }
    expect_child(child);
    EXPECT(dioxide_queue_reap(queue, done, 2, 2), 2);
    EXPECT(done[0].result, 6);
    EXPECT(done[1].result, 6 + BLOCK);
    EXPECT(dioxide_queue_free(queue), 0);
    EXPECT(dioxide_size(file), 6 + 2 * BLOCK);
    EXPECT(dioxide_close(reader), 0);
    EXPECT(dioxide_close(file), 0);
    dioxide_free(blocks);
    a_crash_is_recovered_from();
    return 0;
}
