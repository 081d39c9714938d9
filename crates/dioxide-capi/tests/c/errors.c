/* Every errno that the manual names and a test can cause, and invalid arguments. */
#include "check.h"
#include <sys/resource.h>
#include <signal.h>

static void arguments_that_make_no_sense(void)
{
    struct dioxide_options options = {0};
    struct dioxide_file *file = (struct dioxide_file *)&options;
    options.size = sizeof options;
    FAILS(dioxide_open(NULL, O_RDWR, 0, NULL, &file), EINVAL, "path is NULL");
    CHECK(file == NULL);
    FAILS(dioxide_open("x", O_RDWR, 0, NULL, NULL), EINVAL, "file is NULL");
    FAILS(dioxide_open("x", O_ACCMODE, 0, NULL, &file), EINVAL, "access mode");
    FAILS(dioxide_open("x", O_RDWR | O_APPEND, 0, NULL, &file), EINVAL, "O_APPEND");
    FAILS(dioxide_open("x", O_RDWR | O_NONBLOCK, 0, NULL, &file), EINVAL, "flags 0o4000");
    FAILS(dioxide_open("x", O_RDWR | O_DIRECTORY, 0, NULL, &file), EINVAL, "flags");
    FAILS(dioxide_open("x", O_RDONLY | O_CREAT, 0644, NULL, &file), EINVAL, "O_CREAT");
    FAILS(dioxide_open("x", O_RDWR | O_EXCL, 0644, NULL, &file), EINVAL, "O_EXCL");
    FAILS(dioxide_open("x", -1, 0, NULL, &file), EINVAL, "flags");
    options.durability = 2;
    FAILS(dioxide_open("x", O_RDWR, 0, &options, &file), EINVAL, "durability");
    options.durability = 0;
    options.growth = 3;
    FAILS(dioxide_open("x", O_RDWR, 0, &options, &file), EINVAL, "growth");
    options.growth = 0;
    options.tail = 99;
    FAILS(dioxide_open("x", O_RDWR, 0, &options, &file), EINVAL, "tail");
    options.tail = 0;
    const uint32_t sizes[] = {0, 31, 5000, UINT32_MAX};
    for (unsigned number = 0; number < 4; number++) {
        options.size = sizes[number];
        FAILS(dioxide_open("x", O_RDWR, 0, &options, &file), EINVAL, "sizeof(struct dioxide_options)");
    }

    FAILS(dioxide_append(NULL, "x", 1), EINVAL, "file is NULL");
    FAILS(dioxide_pwrite(NULL, "x", 1, 0), EINVAL, "file is NULL");
    FAILS(dioxide_pread(NULL, &options, 1, 0), EINVAL, "file is NULL");
    FAILS(dioxide_fdatasync(NULL), EINVAL, "file is NULL");
    FAILS(dioxide_ftruncate(NULL, 0), EINVAL, "file is NULL");
    FAILS(dioxide_recycle(NULL), EINVAL, "file is NULL");
    FAILS(dioxide_size(NULL), EINVAL, "file is NULL");
    FAILS(dioxide_growth(NULL), EINVAL, "file is NULL");
    FAILS(dioxide_fileno(NULL), EINVAL, "file is NULL");
    FAILS(dioxide_dup(NULL, &file), EINVAL, "file is NULL");
    FAILS(dioxide_close(NULL), EINVAL, "file is NULL");

    file = fresh("sense");
    FAILS(dioxide_append(file, NULL, 1), EINVAL, "data is NULL");
    FAILS(dioxide_append(file, "x", (size_t)-1), EINVAL, "length");
    struct iovec slices[] = {{"x", PTRDIFF_MAX}, {"x", 1}, {NULL, 1}};
    FAILS(dioxide_appendv(NULL, slices, 0), EINVAL, "file is NULL");
    FAILS(dioxide_appendv(file, NULL, 1), EINVAL, "slices is NULL");
    FAILS(dioxide_appendv(file, slices, (size_t)-1), EINVAL, "count");
    FAILS(dioxide_appendv(file, slices, 2), EINVAL, "more bytes than any memory");
    FAILS(dioxide_appendv(file, slices + 1, 2), EINVAL, "iov_base is NULL");
    FAILS(dioxide_pwritev(file, slices + 1, 1, -1), EINVAL, "offset is -1");
    FAILS(dioxide_pwritev(file, slices, 2, 0), EINVAL, "more bytes than any memory");
    FAILS(dioxide_preadv(file, slices + 1, 1, -1), EINVAL, "offset is -1");
    FAILS(dioxide_preadv(file, slices, 2, 0), EINVAL, "more bytes than any memory");
    EXPECT(dioxide_size(file), 0);
    FAILS(dioxide_pwrite(file, "x", 1, -1), EINVAL, "offset is -1");
    FAILS(dioxide_pread(file, NULL, 1, 0), EINVAL, "into is NULL");
    FAILS(dioxide_pread(file, &options, 1, INT64_MIN), EINVAL, "offset");
    FAILS(dioxide_ftruncate(file, -5), EINVAL, "length is -5");
    FAILS(dioxide_dup(file, NULL), EINVAL, "another is NULL");
    FAILS(dioxide_stats(file, NULL), EINVAL, "NULL");
    FAILS(dioxide_alignment(file, NULL), EINVAL, "NULL");
    FAILS(dioxide_recovery(file, NULL), EINVAL, "NULL");
    struct dioxide_stats stats = {0};
    FAILS(dioxide_stats(file, &stats), EINVAL, "sizeof(struct dioxide_stats)");
    struct dioxide_file *files[] = {file, NULL};
    FAILS(dioxide_sync_files(files, 2), EINVAL, "files[1] is NULL");
    FAILS(dioxide_sync_files(NULL, 1), EINVAL, "files is NULL");
    FAILS(dioxide_sync_files(files, (size_t)-1), EINVAL, "count");
    EXPECT(dioxide_close(file), 0);

    struct dioxide_recovery found = {.size = sizeof found};
    FAILS(dioxide_recover("sense", 3, &found), EINVAL, "how is 3");
    FAILS(dioxide_recover(NULL, 0, &found), EINVAL, "path is NULL");
    FAILS(dioxide_recover("sense", 0, NULL), EINVAL, "NULL");
    const char *paths[] = {"sense", NULL};
    FAILS(dioxide_open_striped(paths, 2, 65536, O_RDWR, 0, NULL, &file), EINVAL, "paths[1] is NULL");
    FAILS(dioxide_open_striped(paths, 65, 65536, O_RDWR, 0, NULL, &file), EINVAL, "count is 65");
    FAILS(dioxide_open_striped(NULL, 2, 65536, O_RDWR, 0, NULL, &file), EINVAL, "paths is NULL");
    FAILS(dioxide_open_striped(paths, 1, 65536, O_RDWR | O_TMPFILE, 0, NULL, &file), EINVAL, "O_TMPFILE");
    FAILS(dioxide_open_striped(paths, 0, 65536, O_RDWR, 0, NULL, &file), EOPNOTSUPP, "open");
    FAILS(dioxide_open_in_image(NULL, "x", O_RDWR, NULL, &file), EINVAL, "volume is NULL");
    FAILS(dioxide_open_in_image("x", NULL, O_RDWR, NULL, &file), EINVAL, "path is NULL");
    FAILS(dioxide_open_in_image("sense", "x", O_RDWR, NULL, &file), EOPNOTSUPP, "sense");
    FAILS(dioxide_set_listener(NULL, NULL), EINVAL, "listener is NULL");

    CHECK(dioxide_alloc(PTRDIFF_MAX) == NULL);
    CHECK(strstr(dioxide_last_error(), "no memory") != NULL);
}

static void what_the_kernel_says(void)
{
    struct dioxide_file *file;
    FAILS(dioxide_open("", O_RDWR, 0, NULL, &file), ENOENT, "open");
    FAILS(dioxide_open("missing", O_RDONLY, 0, NULL, &file), ENOENT, "missing");
    FAILS(dioxide_open("missing/below", O_RDWR | O_CREAT, 0644, NULL, &file), ENOENT, "missing/below");
    FAILS(dioxide_open(".", O_RDWR, 0, NULL, &file), EISDIR, "open .");
    FAILS(dioxide_open("/dev/null", O_RDWR, 0, NULL, &file), EOPNOTSUPP, "open /dev/null");
    EXPECT(dioxide_close(fresh("there")), 0);
    FAILS(dioxide_open("there", O_RDWR | O_CREAT | O_EXCL, 0644, NULL, &file), EEXIST, "there");
    struct dioxide_recovery found = {.size = sizeof found};
    FAILS(dioxide_recover("missing", DIOXIDE_TRUNCATE, &found), ENOENT, "recover missing");
}

static void what_the_file_says(void)
{
    struct dioxide_file *file = fresh("said"), *reader;
    char *block = dioxide_alloc(2 * BLOCK);
    FAILS(dioxide_pwrite(file, block, BLOCK, INT64_MAX - BLOCK + 1), EFBIG, "write");
    EXPECT(dioxide_append(file, "x", 1), 0);
    EXPECT(dioxide_pwrite(file, block + 1, 100, 3), 100);
    EXPECT(dioxide_open("said", O_RDONLY, 0, NULL, &reader), 0);
    FAILS(dioxide_append(reader, "x", 1), EBADF, "read-only");
    FAILS(dioxide_pwrite(reader, block, BLOCK, 0), EBADF, "read-only");
    FAILS(dioxide_fdatasync(reader), EBADF, "read-only");
    FAILS(dioxide_ftruncate(reader, 0), EBADF, "read-only");
    FAILS(dioxide_recycle(reader), EBADF, "read-only");
    EXPECT(dioxide_growth(reader), DIOXIDE_NOT_AHEAD);
    EXPECT(dioxide_close(reader), 0);
    struct dioxide_recovery found = {.size = sizeof found};
    FAILS(dioxide_recover("said", DIOXIDE_TRUNCATE, &found), EAGAIN, "recover said");
    EXPECT(dioxide_close(file), 0);

    struct dioxide_options options = {0};
    options.growth = DIOXIDE_NOT_AHEAD;
    file = opened("alone", O_RDWR | O_CREAT, options);
    FAILS(dioxide_recycle(file), EOPNOTSUPP, "recycle");
    EXPECT(dioxide_close(file), 0);
    dioxide_free(block);
}

/* Another process has the file open; then another program changes its size. */
static void others_are_in_the_way(void)
{
    int ready[2], go[2];
    char byte = 0;
    CHECK(pipe(ready) == 0 && pipe(go) == 0);
    pid_t child = fork();
    if (child == 0) {
        struct dioxide_file *file = fresh("shared");
        CHECK(write(ready[1], &byte, 1) == 1 && read(go[0], &byte, 1) == 1);
        EXPECT(dioxide_close(file), 0);
        leave_to_parent();
    }
    struct dioxide_file *file;
    CHECK(read(ready[0], &byte, 1) == 1);
    FAILS(dioxide_open("shared", O_RDWR, 0, NULL, &file), EAGAIN, "another process");
    CHECK(write(go[1], &byte, 1) == 1);
    expect_child(child);
    for (int end = 0; end < 2; end++)
        CHECK(close(ready[end]) == 0 && close(go[end]) == 0);

    file = fresh("shared");
    EXPECT(dioxide_append(file, "x", 1), 0);
    CHECK(truncate("shared", 1 << 30) == 0);
    FAILS(dioxide_close(file), EUCLEAN, "close shared");
    FAILS(dioxide_open("shared", O_RDWR, 0, NULL, &file), EUCLEAN, "open");
    struct dioxide_recovery found = {.size = sizeof found};
    EXPECT(dioxide_recover("shared", DIOXIDE_FORCE, &found), 0);
    EXPECT(found.verdict, DIOXIDE_MODIFIED_EXTERNALLY);
    EXPECT(found.physical_size, 1 << 30);
    CHECK(strstr(found.text, "changed since") != NULL);
    file = fresh("shared");
    EXPECT(dioxide_close(file), 0);
}

/* RLIMIT_FSIZE stands for a full disk. */
static void no_space_is_no_harm(void)
{
    struct dioxide_options options = {0};
    struct rlimit limit;
    options.growth = DIOXIDE_NOT_AHEAD;
    struct dioxide_file *file = opened("full", O_RDWR | O_CREAT, options);
    CHECK(signal(SIGXFSZ, SIG_IGN) != SIG_ERR && getrlimit(RLIMIT_FSIZE, &limit) == 0);
    rlim_t before = limit.rlim_cur;
    char *blocks = dioxide_alloc(16 * BLOCK);
    EXPECT(dioxide_append(file, blocks, BLOCK), 0);
    limit.rlim_cur = 4 * BLOCK;
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    int64_t refused = dioxide_append(file, blocks, 16 * BLOCK);
    CHECK(refused == -EFBIG || refused == -EIO);
    EXPECT(dioxide_size(file), BLOCK);
    limit.rlim_cur = before;
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    EXPECT(dioxide_ftruncate(file, dioxide_size(file)), 0);
    EXPECT(dioxide_append(file, blocks, 16 * BLOCK), BLOCK);
    EXPECT(dioxide_close(file), 0);
    dioxide_free(blocks);
}

int main(int argc, char **argv)
{
    enter(argc, argv);
    arguments_that_make_no_sense();
    what_the_kernel_says();
    what_the_file_says();
    others_are_in_the_way();
    no_space_is_no_harm();
    return 0;
}
