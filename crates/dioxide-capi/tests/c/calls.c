/* Every call except those of queues, in its intended use. */
#include "check.h"
#include <pthread.h>

#define THREADS 8
#define APPENDS 50

struct log_ {
    struct dioxide_file *file;
    unsigned char seen[THREADS * APPENDS];
};

static void *append_many(void *argument)
{
    struct log_ *log = argument;
    char record[100];
    memset(record, 'r', sizeof record);
    for (int number = 0; number < APPENDS; number++) {
        int64_t offset = dioxide_append(log->file, record, sizeof record);
        CHECK(offset >= 0 && offset % 100 == 0);
        log->seen[offset / 100]++;
    }
    return NULL;
}

static void threads_append_side_by_side(void)
{
    struct log_ *log = calloc(1, sizeof *log);
    CHECK(log != NULL);
    log->file = fresh("threads");
    pthread_t threads[THREADS];
    for (int number = 0; number < THREADS; number++)
        EXPECT(pthread_create(&threads[number], NULL, append_many, log), 0);
    for (int number = 0; number < THREADS; number++)
        EXPECT(pthread_join(threads[number], NULL), 0);
    for (int place = 0; place < THREADS * APPENDS; place++)
        EXPECT(log->seen[place], 1);
    EXPECT(dioxide_size(log->file), 100 * THREADS * APPENDS);
    EXPECT(dioxide_close(log->file), 0);
    EXPECT(size_of("threads"), 100 * THREADS * APPENDS);
    free(log);
}

static void bytes_come_back(void)
{
    struct dioxide_file *file = fresh("bytes");
    unsigned char *block = dioxide_alloc(BLOCK);
    CHECK(block != NULL && (uintptr_t)block % BLOCK == 0);
    for (int at = 0; at < BLOCK; at++)
        EXPECT(block[at], 0);
    memset(block, 7, BLOCK);
    EXPECT(dioxide_append(file, "hello", 5), 0);
    EXPECT(dioxide_append(file, NULL, 0), 5);
    EXPECT(dioxide_append(file, block, BLOCK), 5);
    EXPECT(dioxide_pwrite(file, block, BLOCK, 2 * BLOCK), BLOCK);
    EXPECT(dioxide_size(file), 3 * BLOCK);
    EXPECT(dioxide_fdatasync(file), 0);
    unsigned char back[20];
    EXPECT(dioxide_pread(file, back, sizeof back, 0), sizeof back);
    CHECK(memcmp(back, "hello\7\7", 7) == 0);
    EXPECT(dioxide_pread(file, back, sizeof back, 3 * BLOCK - 6), 6);
    EXPECT(dioxide_pread(file, back, sizeof back, 3 * BLOCK), 0);
    EXPECT(dioxide_pread(file, NULL, 0, 0), 0);
    EXPECT(dioxide_ftruncate(file, 1), 0);
    EXPECT(dioxide_size(file), 1);
    dioxide_free(block);
    dioxide_free(NULL);
    EXPECT(dioxide_close(file), 0);
    EXPECT(size_of("bytes"), 1);
}

static void slices_are_one_operation(void)
{
    struct dioxide_file *file = fresh("slices");
    char a[] = "one", b[] = "two", c[] = "three";
    struct iovec slices[] = {{a, 3}, {NULL, 0}, {b, 3}, {c, 5}};
    EXPECT(dioxide_appendv(file, slices, 4), 0);
    EXPECT(dioxide_appendv(file, slices, 1), 11);
    EXPECT(dioxide_appendv(file, NULL, 0), 14);
    struct dioxide_stats stats = {.size = sizeof stats};
    EXPECT(dioxide_stats(file, &stats), 0);
    EXPECT(stats.appends, 2);
    EXPECT(dioxide_pwritev(file, slices + 1, 3, BLOCK - 4), 8);
    EXPECT(dioxide_size(file), BLOCK + 4);
    char head[4], hole[6], tail[2 * BLOCK];
    struct iovec into[] = {{head, 4}, {NULL, 0}, {hole, 6}, {tail, sizeof tail}};
    EXPECT(dioxide_preadv(file, into, 4, 9), BLOCK + 4 - 9);
    CHECK(memcmp(head, "eeon", 4) == 0);
    CHECK(memcmp(hole, "e\0\0\0\0\0", 6) == 0);
    CHECK(memcmp(tail + BLOCK - 4 - 19, "twothree", 8) == 0);
    EXPECT(dioxide_preadv(file, into, 1, BLOCK), 4);
    CHECK(memcmp(head, "hree", 4) == 0);
    EXPECT(dioxide_preadv(file, into, 4, BLOCK + 4), 0);
    EXPECT(dioxide_preadv(file, NULL, 0, 0), 0);
    EXPECT(dioxide_close(file), 0);
    EXPECT(size_of("slices"), BLOCK + 4);
}

static void a_file_tells_of_itself(void)
{
    struct dioxide_options options = {0};
    options.growth_cap_bytes = 1 << 20;
    options.capacity_bytes = 1 << 16;
    options.tail = DIOXIDE_PAD;
    struct dioxide_file *file = opened("told", O_RDWR | O_CREAT | O_EXCL, options);
    struct dioxide_alignment alignment = {.size = sizeof alignment};
    EXPECT(dioxide_alignment(file, &alignment), 0);
    EXPECT(alignment.size, sizeof alignment);
    CHECK(alignment.memory > 0 && alignment.offset >= 512 && alignment.append >= alignment.offset);
    EXPECT(dioxide_append(file, "x", 1), 0);
    EXPECT(dioxide_append(file, "y", 1), alignment.append);
    struct dioxide_stats stats = {.size = sizeof stats};
    EXPECT(dioxide_stats(file, &stats), 0);
    EXPECT(stats.size, sizeof stats);
    EXPECT(stats.appends, 2);
    EXPECT(stats.append_bytes, 2);
    EXPECT(dioxide_growth(file), DIOXIDE_UNWRITTEN);
    EXPECT(size_of("told"), 1 << 16);
    struct stat stat_;
    EXPECT(fstat(dioxide_fileno(file), &stat_), 0);
    struct dioxide_recovery recovery = {.size = sizeof recovery};
    EXPECT(dioxide_recovery(file, &recovery), 0);
    EXPECT(recovery.verdict, DIOXIDE_CLEAN);
    CHECK(recovery.text[0] == '\0');
    EXPECT(dioxide_close(file), 0);
}

static void many_files_are_flushed_together(void)
{
    enum { FILES = 10 };
    struct dioxide_file *files[FILES];
    for (int number = 0; number < FILES; number++) {
        char name[16] = {0};
        snprintf(name, sizeof name, "many-%d", number);
        files[number] = fresh(name);
        EXPECT(dioxide_append(files[number], name, sizeof name), 0);
    }
    EXPECT(dioxide_sync_files(files, FILES), 0);
    EXPECT(dioxide_sync_files(files, 1), 0);
    EXPECT(dioxide_sync_files(NULL, 0), 0);
    uint64_t flushes = 0;
    for (int number = 0; number < FILES; number++) {
        struct dioxide_stats stats = {.size = sizeof stats};
        EXPECT(dioxide_stats(files[number], &stats), 0);
        flushes += stats.flushes + stats.flushes_shared;
        EXPECT(dioxide_close(files[number]), 0);
    }
    EXPECT(flushes, FILES + 1);
}

/* A program of a later version has more members than this library knows; they must be zero. */
static void structs_grow(void)
{
    struct {
        struct dioxide_stats known;
        uint64_t later[4];
    } stats;
    struct dioxide_file *file = fresh("grown");
    memset(&stats, 0x55, sizeof stats);
    stats.known.size = sizeof stats;
    EXPECT(dioxide_append(file, "x", 1), 0);
    EXPECT(dioxide_stats(file, &stats.known), 0);
    EXPECT(stats.known.size, sizeof stats);
    EXPECT(stats.known.appends, 1);
    for (int number = 0; number < 4; number++)
        EXPECT(stats.later[number], 0);
    EXPECT(dioxide_close(file), 0);

    struct {
        struct dioxide_options known;
        uint64_t later;
    } options;
    memset(&options, 0, sizeof options);
    options.known.size = sizeof options;
    EXPECT(dioxide_open("grown", O_RDWR, 0, &options.known, &file), 0);
    EXPECT(dioxide_close(file), 0);
    options.later = 1;
    FAILS(dioxide_open("grown", O_RDWR, 0, &options.known, &file), E2BIG, "dioxide_options");
    CHECK(file == NULL);
}

static void handles_see_one_file(void)
{
    struct dioxide_file *one = fresh("handles"), *two, *three;
    EXPECT(dioxide_dup(one, &two), 0);
    EXPECT(dioxide_open("handles", O_RDONLY, 0, NULL, &three), 0);
    EXPECT(dioxide_append(one, "one", 3), 0);
    EXPECT(dioxide_append(two, "two", 3), 3);
    EXPECT(dioxide_size(three), 6);
    EXPECT(dioxide_close(one), 0);
    EXPECT(dioxide_append(two, "more", 4), 6);
    EXPECT(dioxide_close(two), 0);
    char back[10];
    EXPECT(dioxide_pread(three, back, sizeof back, 0), 10);
    CHECK(memcmp(back, "onetwomore", 10) == 0);
    EXPECT(dioxide_close(three), 0);
}

static void a_file_is_recycled(void)
{
    struct dioxide_file *file = fresh("recycled");
    char *blocks = dioxide_alloc(4 * BLOCK);
    EXPECT(dioxide_append(file, blocks, 4 * BLOCK), 0);
    EXPECT(dioxide_recycle(file), 0);
    EXPECT(dioxide_size(file), 0);
    EXPECT(dioxide_append(file, "again", 5), 0);
    EXPECT(dioxide_close(file), 0);
    EXPECT(size_of("recycled"), 5);
    dioxide_free(blocks);
}

static void files_without_a_name(void)
{
    struct dioxide_file *file;
    EXPECT(dioxide_open(".", O_RDWR | O_TMPFILE, 0600, NULL, &file), 0);
    EXPECT(dioxide_append(file, "gone", 4), 0);
    EXPECT(dioxide_close(file), 0);
}

static void the_mode_is_that_of_the_caller(void)
{
    struct dioxide_file *file;
    struct stat stat_;
    umask(022);
    EXPECT(dioxide_open("mode", O_RDWR | O_CREAT, 0640, NULL, &file), 0);
    EXPECT(dioxide_close(file), 0);
    EXPECT(stat("mode", &stat_), 0);
    EXPECT(stat_.st_mode & 07777, 0640);
}

static void several_files_are_one(void)
{
    const char *paths[] = {"member0", "member1", "member2"};
    struct dioxide_file *file;
    char *data = dioxide_alloc(64 * BLOCK);
    for (int at = 0; at < 64 * BLOCK; at++)
        data[at] = (char)(at / 777);
    EXPECT(dioxide_open_striped(paths, 3, 4 * BLOCK, O_RDWR | O_CREAT, 0644, NULL, &file), 0);
    EXPECT(dioxide_append(file, data, 64 * BLOCK), 0);
    EXPECT(dioxide_close(file), 0);
    struct dioxide_recovery found = {.size = sizeof found};
    EXPECT(dioxide_recover_striped(paths, 3, 4 * BLOCK, DIOXIDE_INSPECT, &found), 0);
    EXPECT(found.verdict, DIOXIDE_CLEAN);
    char *back = malloc(64 * BLOCK);
    EXPECT(dioxide_open_striped(paths, 3, 4 * BLOCK, O_RDWR, 0, NULL, &file), 0);
    EXPECT(dioxide_pread(file, back, 64 * BLOCK, 0), 64 * BLOCK);
    CHECK(memcmp(data, back, 64 * BLOCK) == 0);
    EXPECT(dioxide_close(file), 0);
    const char *wrong[] = {"member1", "member0", "member2"};
    FAILS(dioxide_open_striped(wrong, 3, 4 * BLOCK, O_RDWR, 0, NULL, &file), EUCLEAN, "volume");
    FAILS(dioxide_open_striped(paths, 3, BLOCK + 1, O_RDWR, 0, NULL, &file), EINVAL, "chunk 0x1001");
    FAILS(dioxide_open_striped(paths, 3, UINT64_C(2) << 40, O_RDWR, 0, NULL, &file), EOPNOTSUPP, "chunk");
    free(back);
    dioxide_free(data);
}

static void *fail_here(void *argument)
{
    (void)argument;
    CHECK(dioxide_last_error()[0] == '\0');
    FAILS(dioxide_close(NULL), EINVAL, "dioxide_close: file is NULL");
    return NULL;
}

static void each_thread_has_its_own_message(void)
{
    pthread_t thread;
    struct dioxide_file *file;
    FAILS(dioxide_open("missing", O_RDWR, 0, NULL, &file), ENOENT, "open missing");
    EXPECT(pthread_create(&thread, NULL, fail_here, NULL), 0);
    EXPECT(pthread_join(thread, NULL), 0);
    CHECK(strstr(dioxide_last_error(), "open missing") != NULL);
}

static pthread_key_t at_the_end;

static void append_the_rest(void *argument)
{
    EXPECT(dioxide_append(argument, "rest", 4), 5);
    FAILS(dioxide_append(argument, NULL, 1), EINVAL, "");
    EXPECT(dioxide_size(argument), 9);
}

static void *begin(void *argument)
{
    EXPECT(pthread_setspecific(at_the_end, argument), 0);
    EXPECT(dioxide_append(argument, "begin", 5), 0);
    FAILS(dioxide_append(argument, NULL, 1), EINVAL, "data is NULL");
    return NULL;
}

/* In a destructor of thread-local data, after that of the library. */
static void a_thread_that_ends_appends(void)
{
    pthread_t thread;
    struct dioxide_file *file = fresh("ending");
    EXPECT(pthread_key_create(&at_the_end, append_the_rest), 0);
    EXPECT(pthread_create(&thread, NULL, begin, file), 0);
    EXPECT(pthread_join(thread, NULL), 0);
    EXPECT(pthread_key_delete(at_the_end), 0);
    EXPECT(dioxide_size(file), 9);
    EXPECT(dioxide_close(file), 0);
}

static void count_messages(uint32_t level, const char *message, void *user_data)
{
    CHECK(level >= DIOXIDE_MESSAGE_ERROR && level <= DIOXIDE_MESSAGE_INFO && message[0] != '\0');
    ++*(int *)user_data;
}

int main(int argc, char **argv)
{
    static int messages;
    enter(argc, argv);
    CHECK(strcmp(dioxide_last_error(), "") == 0);
    EXPECT(dioxide_set_listener(count_messages, &messages), 0);
    FAILS(dioxide_set_listener(count_messages, &messages), EALREADY, "already");
    dioxide_set_growth_budget(UINT64_C(1) << 30);
    threads_append_side_by_side();
    bytes_come_back();
    slices_are_one_operation();
    a_file_tells_of_itself();
    many_files_are_flushed_together();
    structs_grow();
    handles_see_one_file();
    a_file_is_recycled();
    files_without_a_name();
    the_mode_is_that_of_the_caller();
    several_files_are_one();
    each_thread_has_its_own_message();
    a_thread_that_ends_appends();
    return 0;
}
