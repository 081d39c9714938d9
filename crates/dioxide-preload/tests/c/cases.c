// Regression tests of single bugs. The output, the end of the program and the lengths of its files
// must be the same with and without the library.
//
//   cases NAME [ARGUMENT]
//
// Makes its files in the current directory.
#define _GNU_SOURCE
#include "common.h"
#include <fcntl.h>
#include <fts.h>
#include <ftw.h>
#include <grp.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/fs.h>
#include <linux/io_uring.h>
#include <linux/loop.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/fsuid.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <threads.h>
#include <unistd.h>
#include <utime.h>
#include <wordexp.h>

#define LARGE (1 << 20)
#define BLOCKS_OF_EACH 100
#define WRITERS 4

// glibc before 2.36 has none.
extern int pidfd_getfd(int, int, unsigned) __attribute__((weak));

static char *memory;
static const char *argument;
static int fd;
static pthread_barrier_t both;

static int open_direct(const char *path, int more) {
    int opened = open(path, O_RDWR | O_CREAT | O_TRUNC | O_DIRECT | more, 0644);
    if (opened < 0)
        die("%s", path);
    return opened;
}

static void tell(const char *what, long result) {
    if (result < 0)
        printf("%s: %s\n", what, strerrorname_np(errno));
    else
        printf("%s: %ld\n", what, result);
    fflush(stdout);
}

static void tell_length(const char *what) {
    struct stat stat;
    tell(what, fstat(fd, &stat) == 0 ? (long)stat.st_size : -1);
}

static void must(const char *what, long result, long wanted) {
    if (result != wanted)
        die("%s: %ld instead of %ld", what, result, wanted);
}

static void *write_blocks(void *number) {
    for (long i = 0; i < BLOCKS_OF_EACH; i++) {
        off_t offset = ((long)number + i * WRITERS) * BLOCK;
        must("pwrite", pwrite(fd, memory, BLOCK, offset), BLOCK);
    }
    return NULL;
}

// Threads extend the file, so that the library takes it over.
static void write_together(void) {
    pthread_t threads[WRITERS];
    for (long i = 0; i < WRITERS; i++)
        pthread_create(&threads[i], NULL, write_blocks, (void *)i);
    for (int i = 0; i < WRITERS; i++)
        pthread_join(threads[i], NULL);
}

static void append_blocks(int count) {
    for (int i = 0; i < count; i++)
        must("write", write(fd, memory, BLOCK), BLOCK);
}

static void alarm_after_ms(int ms) {
    struct itimerval timer = {{0, 0}, {0, ms * 1000}};
    setitimer(ITIMER_REAL, &timer, NULL);
}

// --- signal handlers ---

static void end_at_once(int signal) {
    (void)signal;
    _exit(3);
}

static void exit_in_a_handler_that_interrupts_a_write(void) {
    fd = open_direct("file", 0);
    signal(SIGALRM, end_at_once);
    alarm_after_ms(200);
    for (;;)
        must("pwrite", pwrite(fd, memory, LARGE, 0), LARGE);
}

static void exit_in_a_handler_that_interrupts_malloc(void) {
    fd = open_direct("file", 0);
    write_together();
    signal(SIGALRM, end_at_once);
    alarm_after_ms(100);
    for (;;) {
        void *pieces[64];
        for (int i = 0; i < 64; i++)
            pieces[i] = malloc(5000 + i * 16);
        for (int i = 0; i < 64; i++)
            free(pieces[i]);
    }
}

static void close_and_exit(int signal) {
    (void)signal;
    _exit(fsync(fd) == 0 && close(fd) == 0 ? 3 : 4);
}

static void close_in_a_handler_that_interrupts_a_read(void) {
    fd = open_direct("file", 0);
    must("pwrite", pwrite(fd, memory, LARGE, 0), LARGE);
    close(fd);
    fd = open("file", O_RDONLY | O_DIRECT);
    signal(SIGALRM, close_and_exit);
    alarm_after_ms(100);
    for (;;)
        must("pread", pread(fd, memory, LARGE, 0), LARGE);
}

// The handler has a small stack, and the pages below it are protected.
static void exit_in_a_handler_on_a_small_stack(void) {
    fd = open_direct("file", 0);
    write_together();
    char *stack = mmap(NULL, 4 * BLOCK, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(stack + 2 * BLOCK, 2 * BLOCK, PROT_READ | PROT_WRITE);
    stack_t alternate = {.ss_sp = stack + 2 * BLOCK, .ss_size = 2 * BLOCK};
    must("sigaltstack", sigaltstack(&alternate, NULL), 0);
    struct sigaction action = {.sa_handler = end_at_once, .sa_flags = SA_ONSTACK};
    sigaction(SIGUSR1, &action, NULL);
    raise(SIGUSR1);
}

static ino_t inode_of(int file) {
    struct stat stat;
    must("fstat", fstat(file, &stat), 0);
    return stat.st_ino;
}

// The thread is in the engine with one file, and another file is grown. The hand-back is in the
// order of their inodes.
static void exit_in_a_handler_beside_another_file(void) {
    const char *names[] = {"file", "other"};
    int made[] = {open_direct(names[0], 0), open_direct(names[1], 0)};
    int later = inode_of(made[1]) > inode_of(made[0]);
    must("pwrite", pwrite(made[later], memory, LARGE, 0), LARGE);
    must("close", close(made[0]) + close(made[1]), 0);
    fd = open(names[!later], O_RDWR | O_DIRECT);
    write_together();
    fd = open(names[later], O_RDWR | O_DIRECT);
    signal(SIGALRM, end_at_once);
    alarm_after_ms(100);
    for (;;)
        must("pread", pread(fd, memory, LARGE, 0), LARGE);
}

static sigjmp_buf before_write;

static void jump(int signal) {
    (void)signal;
    siglongjmp(before_write, 1);
}

static void jump_out_of_a_write(void) {
    fd = open_direct("file", 0);
    signal(SIGALRM, jump);
    alarm_after_ms(100);
    if (sigsetjmp(before_write, 1) == 0)
        for (;;)
            must("pwrite", pwrite(fd, memory, LARGE, 0), LARGE);
    tell("close", close(fd));
}

__attribute__((noreturn)) static void *sync_for_ever(void *unused) {
    (void)unused;
    for (;;)
        must("fsync", fsync(fd), 0);
}

// One thread, so that the kernel serves the file.
__attribute__((noreturn)) static void write_durably_for_ever(void) {
    int durable = open_direct("durable", O_DSYNC);
    for (;;)
        must("pwrite", pwrite(durable, memory, LARGE, 0), LARGE);
}

// The exit hands other files back, although a durable write of the kernel never ends.
static void exit_in_a_handler_that_interrupts_a_durable_write(void) {
    fd = open_direct("file", 0);
    write_together();
    signal(SIGALRM, end_at_once);
    alarm_after_ms(100);
    write_durably_for_ever();
}

// Other syncs do not wait for a durable write of the kernel that never ends.
static void jump_out_of_a_durable_write(void) {
    fd = open_direct("file", 0);
    write_together();
    signal(SIGALRM, jump);
    if (sigsetjmp(before_write, 1) == 0) {
        alarm_after_ms(100);
        write_durably_for_ever();
    }
    tell("fsync", fsync(fd));
    tell("fdatasync", fdatasync(fd));
    tell("close", close(fd));
}

static atomic_int strange_threads, all_done;
static pid_t own_threads[9];

static void look_where(int signal) {
    (void)signal;
    pid_t here = gettid();
    for (int i = 0; i < 9; i++)
        if (own_threads[i] == here)
            return;
    strange_threads++;
}

static void block_all_signals(void) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
}

static void *write_without_signals(void *number) {
    long own = (long)number;
    own_threads[own] = gettid();
    pthread_barrier_wait(&both);
    for (long i = 0; !all_done; i++) {
        if (i == 100)
            block_all_signals();
        must("pwrite", pwrite(fd, memory, 65536, (i * 8 + own) % 1600 * 65536), 65536);
    }
    return NULL;
}

static void a_handler_runs_in_the_programs_threads_only(void) {
    pthread_t threads[8];
    pthread_barrier_init(&both, NULL, 9);
    signal(SIGALRM, look_where);
    own_threads[8] = gettid();
    fd = open_direct("file", 0);
    for (long i = 0; i < 8; i++)
        pthread_create(&threads[i], NULL, write_without_signals, (void *)i);
    block_all_signals();
    pthread_barrier_wait(&both);
    for (int i = 0; i < 500; i++) {
        kill(getpid(), SIGALRM);
        usleep(1000);
    }
    all_done = 1;
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
    tell("handlers in other threads", strange_threads);
    must("ftruncate", ftruncate(fd, 0), 0);
}

static void a_signal_ends_the_program(void) {
    fd = open_direct("file", 0);
    write_together();
    raise(atoi(argument));
}

extern int __sigaction(int, const struct sigaction *, struct sigaction *);
extern sighandler_t set_signal(int, sighandler_t) __asm__("sigset");

// The bug: these brought the default action back, which left the file grown.
static void a_signal_whose_action_is_set_again(void) {
    const struct sigaction action = {.sa_handler = SIG_DFL};
    fd = open_direct("file", 0);
    write_together();
    if (strcmp(argument, "sigset") == 0)
        must("sigset", set_signal(SIGTERM, SIG_DFL) == SIG_DFL, 1);
    else
        must("sigaction", __sigaction(SIGTERM, &action, NULL), 0);
    raise(SIGTERM);
}

static void default_again(int number) {
    signal(number, SIG_DFL);
    raise(number);
}

static void a_handler_that_raises_the_signal_again(void) {
    fd = open_direct("file", 0);
    write_together();
    signal(SIGTERM, default_again);
    raise(SIGTERM);
}

__attribute__((noreturn)) static void *read_for_ever(void *unused) {
    (void)unused;
    char *own = aligned_alloc(BLOCK, LARGE);
    for (;;)
        must("pread", pread(fd, own, LARGE, 0), LARGE);
}

// Another thread reads a file meanwhile.
static void a_signal_ends_the_program_during_reads(void) {
    pthread_t reader;
    fd = open_direct("file", 0);
    write_together();
    int taken = fd;
    fd = open_direct("other", 0);
    must("pwrite", pwrite(fd, memory, LARGE, 0), LARGE);
    pthread_create(&reader, NULL, read_for_ever, NULL);
    usleep(50000);
    must("pwrite", pwrite(taken, memory, BLOCK, 0), BLOCK);
    double before = now();
    if (fork() == 0) {
        kill(getppid(), SIGTERM);
        _exit(0);
    }
    while (now() - before < 30)
        usleep(1000);
}

static char *blocks[2];
static atomic_int appended[2];
static pthread_t appender;

static void append_in_a_handler(int signal) {
    (void)signal;
    int before = errno;
    if (write(fd, blocks[1], BLOCK) == BLOCK)
        appended[1]++;
    errno = before;
}

static void *append_with_interruptions(void *unused) {
    (void)unused;
    for (int i = 0; i < 2000; i++)
        if (write(fd, blocks[0], BLOCK) == BLOCK)
            appended[0]++;
    all_done = 1;
    return NULL;
}

// The file has every acknowledged append, at any offset. It grows once, before the first signal.
static void an_append_in_a_handler_that_interrupts_an_append(void) {
    long interrupted = 0, lost[2] = {0, 0};
    for (int i = 0; i < 2; i++) {
        blocks[i] = aligned_alloc(BLOCK, BLOCK);
        fill(blocks[i], BLOCK, (uint64_t)(7 + i));
    }
    struct sigaction action = {.sa_handler = append_in_a_handler, .sa_flags = SA_RESTART};
    sigaction(SIGUSR2, &action, NULL);
    for (int round = 0; round < 6; round++) {
        fd = open_direct("file", O_APPEND);
        appended[0] = appended[1] = all_done = 0;
        pthread_create(&appender, NULL, append_with_interruptions, NULL);
        while (appended[0] < 16)
            usleep(100);
        while (!all_done) {
            pthread_kill(appender, SIGUSR2);
            usleep(500);
        }
        pthread_join(appender, NULL);
        close(fd);
        fd = open("file", O_RDONLY);
        int found[2] = {0, 0};
        while (read(fd, memory, BLOCK) == BLOCK)
            for (int i = 0; i < 2; i++)
                found[i] += is_filled(memory, BLOCK, (uint64_t)(7 + i));
        close(fd);
        for (int i = 0; i < 2; i++)
            lost[i] += appended[i] - found[i];
        interrupted += appended[1];
    }
    tell("interrupted", interrupted > 0);
    tell("lost appends", lost[0]);
    tell("lost appends of the handler", lost[1]);
}

static atomic_int rotated;

static void rotate_in_a_handler(int signal) {
    (void)signal;
    if (rotated++)
        return;
    int before = errno, old = fd;
    rename("file", "file.1");
    close(old);
    fd = open("file", O_CREAT | O_DIRECT | O_APPEND | O_WRONLY, 0600);
    if (fd != old)
        _exit(3);
    errno = before;
}

// The number has another file then. Later writes went to the old one.
static void a_rotation_in_a_handler_that_interrupts_an_append(void) {
    long found = 0, others = 0;
    struct sigaction action = {.sa_handler = rotate_in_a_handler, .sa_flags = SA_RESTART};
    sigaction(SIGUSR2, &action, NULL);
    blocks[0] = aligned_alloc(BLOCK, BLOCK);
    blocks[1] = aligned_alloc(BLOCK, BLOCK);
    fill(blocks[0], BLOCK, 7);
    fill(blocks[1], BLOCK, 8);
    for (int round = 0; round < 6; round++) {
        fd = open_direct("file", O_APPEND);
        appended[0] = all_done = rotated = 0;
        pthread_create(&appender, NULL, append_with_interruptions, NULL);
        while (appended[0] < 16)
            usleep(100);
        pthread_kill(appender, SIGUSR2);
        pthread_join(appender, NULL);
        must("write", write(fd, blocks[1], BLOCK), BLOCK);
        must("fdatasync", fdatasync(fd), 0);
        close(fd);
        fd = open("file", O_RDONLY);
        while (read(fd, memory, BLOCK) == BLOCK)
            found += is_filled(memory, BLOCK, 8);
        close(fd);
        fd = open("file.1", O_RDONLY);
        while (read(fd, memory, BLOCK) == BLOCK)
            others += is_filled(memory, BLOCK, 8);
        close(fd);
        unlink("file");
        unlink("file.1");
    }
    tell("in the new file", found);
    tell("in the old file", others);
}

// The child has the memory of its parent, which ended by the signal as well.
static void a_vfork_child_that_ends_by_a_signal(void) {
    fd = open_direct("file", O_APPEND);
    write_together();
    pid_t child = vfork();
    if (child == 0) {
        kill(getpid(), SIGTERM);
        _exit(0);
    }
    int status;
    must("wait", waitpid(child, &status, 0), child);
    tell("signal", WIFSIGNALED(status) ? WTERMSIG(status) : 0);
    // The library's thread ends the program after a second.
    for (int i = 0; i < 20; i++)
        usleep(100000);
    tell("alive", 1);
}

static atomic_int is_child, is_opened;

static void *open_beside_a_child(void *unused) {
    (void)unused;
    while (!is_child)
        sched_yield();
    fd = open_direct("file", O_APPEND);
    write_together();
    is_opened = 1;
    return NULL;
}

// In the child: changes its own descriptors only. Its numbers are those of the parent.
static int change_numbers(void *unused) {
    (void)unused;
    is_child = 1;
    while (!is_opened)
        sched_yield();
    int number = open("/dev/null", O_RDONLY);
    if (number == fd && strcmp(argument, "openat") == 0)
        number = (int)syscall(SYS_openat, AT_FDCWD, "/dev/null", O_RDONLY);
    else if (number == fd)
        syscall(SYS_close, number);
    _exit(0);
}

// The bug: a child that has the memory of its parent changed the state of the parent's descriptors.
static void a_child_with_the_parents_memory_changes_its_numbers(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, open_beside_a_child, NULL);
    pid_t child;
    if (strcmp(argument, "clone") == 0) {
        char *stack = memory + LARGE;
        child = clone(change_numbers, stack, CLONE_VM | CLONE_VFORK | SIGCHLD, NULL);
    } else {
        child = vfork();
        if (child == 0)
            change_numbers(NULL);
    }
    must("wait", waitpid(child, NULL, 0), child);
    pthread_join(thread, NULL);
    tell_length("length");
    append_blocks(1);
    tell_length("length");
    must("close", close(fd), 0);
}

static void *signal_for_ever(void *unused) {
    (void)unused;
    while (!all_done) {
        pthread_kill(appender, SIGUSR2);
        usleep(100);
    }
    return NULL;
}

static void sync_in_a_handler(int signal) {
    (void)signal;
    int before = errno;
    must("fdatasync", fdatasync(fd), 0);
    must("fsync", fsync(fd), 0);
    errno = before;
}

static void *write_with_interruptions(void *unused) {
    (void)unused;
    char *own = aligned_alloc(BLOCK, LARGE);
    fill(own, LARGE, 3);
    for (int i = 0; !all_done; i++) {
        must("pwrite", pwrite(fd, own, LARGE, 0), LARGE);
        appended[0]++;
    }
    free(own);
    return NULL;
}

// One thread is in the engine, and another one waits for the hand-back of the file.
static void a_sync_in_a_handler_beside_a_hand_back(void) {
    struct sigaction action = {.sa_handler = sync_in_a_handler, .sa_flags = SA_RESTART};
    sigaction(SIGUSR2, &action, NULL);
    for (int round = 0; round < 20; round++) {
        pthread_t thread;
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};
        fd = open_direct("file", 0);
        write_together();
        appended[0] = all_done = 0;
        pthread_create(&appender, NULL, write_with_interruptions, NULL);
        while (appended[0] < 2)
            usleep(100);
        pthread_create(&thread, NULL, signal_for_ever, NULL);
        must("lock", fcntl(fd, F_SETLK, &lock), 0);
        all_done = 1;
        // The appender lives until the last signal.
        pthread_join(thread, NULL);
        pthread_join(appender, NULL);
        close(fd);
    }
    printf("done\n");
}

// --- calls with strange arguments ---

static void an_absolute_path_with_no_directory(void) {
    char path[4096];
    must("getcwd", getcwd(path, sizeof path - 8) != NULL, 1);
    strcat(path, "/other");
    fd = open_direct("file", 0);
    write_together();
    tell("opened", openat(-1, path, O_RDWR | O_CREAT | O_TRUNC, 0644) >= 0);
    tell("relative", openat(-1, "other", O_RDWR | O_TRUNC));
}

static void an_empty_piece_at_no_address(void) {
    fd = open_direct("file", 0);
    write_together();
    struct iovec pieces[3] = {{memory, BLOCK}, {NULL, 0}, {memory + BLOCK, BLOCK}};
    tell("pwritev", pwritev(fd, pieces, 3, 0));
    tell("preadv", preadv(fd, pieces, 3, 0));
    tell("pread", pread(fd, NULL, 0, 0));
    struct iovec none = {NULL, 0};
    tell("writev", writev(fd, &none, 1));
}

static void pieces_that_are_not_there(void) {
    int pipes[2];
    must("pipe", pipe(pipes), 0);
    volatile uintptr_t nowhere = 0x1000;
    tell("writev", writev(pipes[1], (struct iovec *)nowhere, 2));
    fd = open("plain", O_RDWR | O_CREAT, 0644);
    tell("pwritev", pwritev(fd, (struct iovec *)nowhere, 2, 0));
    tell("readv", readv(fd, (struct iovec *)nowhere, 2));
}

static pthread_key_t key;

static void write_late(void *round) {
    must("pwrite", pwrite(fd, memory, BLOCK, (long)round * BLOCK), BLOCK);
    if ((long)round < 3)
        pthread_setspecific(key, (char *)round + 1);
}

static void *leave_something(void *round) {
    pthread_setspecific(key, round);
    return NULL;
}

static void a_write_in_a_destructor_of_thread_data(void) {
    pthread_t thread;
    fd = open_direct("file", 0);
    write_together();
    pthread_key_create(&key, write_late);
    pthread_create(&thread, NULL, leave_something, (void *)1);
    pthread_join(thread, NULL);
    tell_length("length");
}

static int tell_entry(const char *path, const struct stat *stat, int type, struct FTW *where) {
    if (type == FTW_F)
        tell(path + where->base, (long)stat->st_size);
    return 0;
}

static void lengths_that_libc_asks_for_itself(void) {
    must("mkdir", mkdir("sub", 0755), 0);
    struct stat stat;
    const char *way[] = {"number", "nftw", "fts"};
    for (int i = 0; i < 3; i++) {
        fd = open_direct("sub/file", 0);
        write_together();
        printf("%s\n", way[i]);
        if (i == 0) {
            must("newfstatat", syscall(SYS_newfstatat, AT_FDCWD, "sub/file", &stat, 0), 0);
            tell("length", (long)stat.st_size);
        } else if (i == 1) {
            nftw("sub", tell_entry, 5, FTW_PHYS);
        } else {
            char *roots[] = {"sub", NULL};
            FTS *walk = fts_open(roots, FTS_PHYSICAL, NULL);
            for (FTSENT *entry; (entry = fts_read(walk)) != NULL;)
                if (entry->fts_info == FTS_F)
                    tell(entry->fts_name, (long)entry->fts_statp->st_size);
            fts_close(walk);
        }
        close(fd);
    }
}

static void the_position_of_appends_after_a_truncate(void) {
    fd = open_direct("file", O_APPEND);
    append_blocks(8);
    must("ftruncate", ftruncate(fd, BLOCK), 0);
    append_blocks(1);
    tell("position", lseek(fd, 0, SEEK_CUR));
    tell("read", read(fd, memory, BLOCK));
}

// --- numbers ---

static void a_number_that_a_stream_closed(void) {
    fd = open_direct("file", 0);
    write_together();
    int out = dup(1);
    dup2(fd, 1);
    close(fd);
    fclose(stdout);
    int log = open("log", O_WRONLY | O_CREAT, 0644);
    stdout = fdopen(out, "w");
    tell("number", log);
    memset(memory, 9, BLOCK);
    tell("write", write(log, memory, BLOCK));
    fd = open("file", O_RDONLY | O_DIRECT);
    must("pread", pread(fd, memory, BLOCK, 0), BLOCK);
    tell("first byte", memory[0]);
    tell_length("length");
}

static atomic_int round_fd;

enum { ROUNDS = 300 };

static void *close_in_rounds(void *rounds) {
    for (long i = 0; i < (long)rounds; i++) {
        pthread_barrier_wait(&both);
        close(round_fd);
        pthread_barrier_wait(&both);
    }
    return NULL;
}

static void close_beside_mmap(void) {
    pthread_t thread;
    pthread_barrier_init(&both, NULL, 2);
    pthread_create(&thread, NULL, close_in_rounds, (void *)ROUNDS);
    for (int i = 0; i < ROUNDS; i++) {
        fd = open_direct("file", 0);
        must("pwrite", pwrite(fd, memory, BLOCK, 0), BLOCK);
        round_fd = dup(fd);
        pthread_barrier_wait(&both);
        void *mapped = mmap(NULL, BLOCK, PROT_READ, MAP_SHARED, fd, 0);
        pthread_barrier_wait(&both);
        must("munmap", munmap(mapped, BLOCK), 0);
        must("close", close(fd), 0);
    }
    pthread_join(thread, NULL);
    printf("done\n");
}

static void *open_buffered(void *unused) {
    (void)unused;
    pthread_barrier_wait(&both);
    round_fd = open("file", O_RDWR);
    return NULL;
}

static void *write_beside_open(void *number) {
    pthread_barrier_wait(&both);
    return write_blocks(number);
}

static void refuse_call(unsigned number) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    must("prctl", prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    must("seccomp", prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

static void close_from_100(void) {
    must("dup2", dup2(1, 100) + dup2(1, 150), 250);
    closefrom(100);
    tell("first", fcntl(100, F_GETFD));
    tell("another", fcntl(150, F_GETFD));
}

// The bug: where there is no close_range, closefrom closed nothing.
static void a_closefrom_without_close_range(void) {
    refuse_call(SYS_close_range);
    close_from_100();
    fd = open_direct("file", O_APPEND);
    write_together();
    close_from_100();
    append_blocks(1);
    tell_length("length");
    must("close", close(fd), 0);
}

static atomic_int other_numbers;

static void *open_and_close_a_number(void *number) {
    while (!all_done) {
        int opened = open("/dev/null", O_RDONLY);
        other_numbers += opened != (int)(long)number;
        close(opened);
    }
    return NULL;
}

static void *append_all(void *unused) {
    (void)unused;
    append_blocks(10 * BLOCKS_OF_EACH);
    return NULL;
}

// The bug: at each growth on ext4, a thread of the engine opened and closed the lowest free number.
static void a_number_beside_growth(void) {
    pthread_t thread;
    fd = open_direct("file", O_APPEND);
    write_together();
    long number = open("/dev/null", O_RDONLY);
    close((int)number);
    pthread_create(&thread, NULL, open_and_close_a_number, (void *)number);
    sum_of_threads(WRITERS, append_all);
    all_done = 1;
    pthread_join(thread, NULL);
    tell("other numbers", other_numbers);
    must("close", close(fd), 0);
}

static void *close_all_from_100(void *unused) {
    (void)unused;
    while (!all_done) {
        closefrom(100);
        usleep(50);
    }
    return NULL;
}

// The descriptors of a take-over stay open at every step of it.
static void a_closefrom_beside_a_take_over(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, close_all_from_100, NULL);
    for (int i = 0; i < 400; i++) {
        fd = open_direct("file", O_APPEND);
        append_blocks(2);
        must("fdatasync", fdatasync(fd), 0);
        must("close", close(fd), 0);
    }
    all_done = 1;
    pthread_join(thread, NULL);
    printf("done\n");
}

static void a_buffered_open_beside_a_take_over(void) {
    int wrong = 0;
    for (int round = 0; round < 20; round++) {
        pthread_t threads[WRITERS + 1];
        pthread_barrier_init(&both, NULL, WRITERS + 1);
        fd = open_direct("file", 0);
        pthread_create(&threads[WRITERS], NULL, open_buffered, NULL);
        for (long i = 0; i < WRITERS; i++)
            pthread_create(&threads[i], NULL, write_beside_open, (void *)i);
        for (int i = 0; i <= WRITERS; i++)
            pthread_join(threads[i], NULL);
        // By number, to bypass the library: the EOF that other programs see.
        off_t end = syscall(SYS_lseek, round_fd, 0, SEEK_END);
        wrong += end != WRITERS * BLOCKS_OF_EACH * BLOCK;
        close(round_fd);
        close(fd);
    }
    tell("wrong ends", wrong);
}

static void *open_without_waiting(void *unused) {
    (void)unused;
    long refused = 0;
    while (!all_done) {
        int opened = open("file", O_RDONLY | O_NONBLOCK);
        if (opened >= 0)
            close(opened);
        else
            refused += errno == EWOULDBLOCK;
    }
    return (void *)refused;
}

static void an_open_without_waiting_beside_a_take_over(void) {
    pthread_t thread;
    void *refused;
    close(open_direct("file", 0));
    pthread_create(&thread, NULL, open_without_waiting, NULL);
    for (int i = 0; i < 400; i++) {
        fd = open("file", O_RDWR | O_DIRECT | O_CLOEXEC);
        must("write", write(fd, memory, BLOCK), BLOCK);
        close(fd);
    }
    all_done = 1;
    pthread_join(thread, &refused);
    tell("refused", (long)refused);
}

// A file that does not support the call returns EINVAL each time.
static void a_sync_of_a_file_that_has_none(void) {
    fd = open_direct("file", 0);
    write_together();
    const char *paths[] = {"/proc/self/status", "/sys/kernel", "/proc/self/status", "/sys/kernel"};
    for (int i = 0; i < 4; i++) {
        int strange = open(paths[i], O_RDONLY);
        tell("fsync", fsync(strange));
        tell("fdatasync", fdatasync(strange));
        close(strange);
    }
    tell("fsync of the file", fsync(fd));
}

static void a_line_printed_to_a_descriptor(void) {
    fd = open_direct("file", 0);
    write_together();
    tell("dprintf", dprintf(fd, "line %d\n", 7));
    tell_length("length");
}

static void a_lease(void) {
    fd = open_direct("file", 0);
    write_together();
    tell("lease", fcntl(fd, F_SETLEASE, F_WRLCK));
    tell("held", fcntl(fd, F_GETLEASE));
}

// --- times ---

static long length_of(const char *path) {
    struct stat stat_;
    must("stat", stat(path, &stat_), 0);
    return stat_.st_size;
}

// The bug: a hand-back or the close set the time again.
static void times_that_the_program_sets(void) {
    const struct timespec exact[2] = {{1000, 0}, {2000, 0}};
    const struct timeval coarse[2] = {{1000, 0}, {2000, 0}};
    const struct utimbuf old = {1000, 2000};
    for (int way = 0; way < 10; way++) {
        fd = open_direct("file", 0);
        write_together();
        long results[] = {-2, -2, -2, -2, -2, -2, -2, -2, -2, -2};
        switch (way) {
        case 0: results[way] = futimens(fd, exact); break;
        case 1: results[way] = futimes(fd, coarse); break;
        case 2: results[way] = utimensat(AT_FDCWD, "file", exact, 0); break;
        case 3: results[way] = utimensat(fd, "", exact, AT_EMPTY_PATH); break;
        case 4: results[way] = futimesat(AT_FDCWD, "file", coarse); break;
        case 5: results[way] = utimes("file", coarse); break;
        case 6: results[way] = lutimes("file", coarse); break;
        case 7: results[way] = utime("file", &old); break;
        case 8: results[way] = syscall(SYS_utimensat, fd, NULL, exact, 0); break;
        case 9: results[way] = utimensat(AT_FDCWD, "file", exact, AT_SYMLINK_NOFOLLOW); break;
        }
        tell("set", results[way]);
        must("close", close(fd), 0);
        struct stat stat_;
        must("stat", stat("file", &stat_), 0);
        tell("time", (long)stat_.st_mtime);
    }
}

// --- tables of descriptors ---

static atomic_int opened_apart;

// Opens a file under the number that the other table gives to `fd`.
static void *write_with_own_descriptors(void *unused) {
    (void)unused;
    int by_number = strcmp(argument, "number") == 0;
    must("unshare", by_number ? syscall(SYS_unshare, CLONE_FILES) : unshare(CLONE_FILES), 0);
    pthread_barrier_wait(&both);
    pthread_barrier_wait(&both); // The other thread has opened "first".
    opened_apart = open_direct("second", 0);
    must("pwrite", pwrite(opened_apart, memory, BLOCK, 0), BLOCK);
    pthread_barrier_wait(&both);
    return NULL;
}

// The bug: a number had one meaning, that of its last open.
static void a_thread_with_its_own_descriptors(void) {
    pthread_t thread;
    pthread_barrier_init(&both, NULL, 2);
    pthread_create(&thread, NULL, write_with_own_descriptors, NULL);
    pthread_barrier_wait(&both);
    fd = open_direct("first", 0);
    write_together();
    pthread_barrier_wait(&both);
    pthread_barrier_wait(&both);
    must("number", opened_apart, fd);
    append_blocks(1);
    must("pwrite", pwrite(fd, memory, BLOCK, 8 * WRITERS * BLOCKS_OF_EACH * BLOCK), BLOCK);
    pthread_join(thread, NULL);
    must("close", close(fd), 0);
    tell("first", length_of("first"));
    tell("second", length_of("second"));
}

// Without the library there are no such numbers.
static void a_number_of_the_engine_is_duplicated(void) {
    long duplicated = 0;
    fd = open_direct("file", O_APPEND);
    write_together();
    for (int number = 256; number < 32768; number++)
        duplicated += dup(number) >= 0 || fcntl(number, F_DUPFD, 0) >= 0 || fcntl(number, F_GETFD) >= 0;
    tell("duplicated", duplicated);
    append_blocks(1);
    tell_length("length");
    must("close", close(fd), 0);
}

static void a_number_of_the_engine_by_number(void) {
    long used = 0;
    struct stat stat;
    fd = open_direct("file", O_APPEND);
    write_together();
    for (int number = 256; number < 32768; number++) {
        if (syscall(SYS_fstat, number, &stat) != 0)
            continue;
        used += syscall(SYS_dup, number) >= 0 || syscall(SYS_dup3, number, 200, 0) >= 0;
        used += syscall(SYS_dup3, 0, number, 0) >= 0 || syscall(SYS_close, number) == 0;
    }
    tell("used", used);
    append_blocks(1);
    tell_length("length");
    must("close", close(fd), 0);
}

static void *write_large_blocks(void *none) {
    while (!all_done)
        must("pwrite", pwrite(fd, memory, LARGE, 0), LARGE);
    return none;
}

static void *lock_the_file(void *none) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
    pthread_barrier_wait(&both);
    must("lock", fcntl(fd, F_SETLK, &lock), 0);
    return none;
}

// The bug: a hand-back waited for a write of its file. Meanwhile another file got a number of it.
// The kernel then served that file, though the engine had it.
static void a_number_of_another_file_beside_a_hand_back(void) {
    pthread_barrier_init(&both, NULL, 2);
    for (int i = 0; i < ROUNDS / 5; i++) {
        pthread_t writer, locker;
        fd = open_direct("file", 0);
        int number = dup(fd);
        must("pwrite", pwrite(fd, memory, LARGE, 0), LARGE);
        all_done = 0;
        pthread_create(&writer, NULL, write_large_blocks, NULL);
        pthread_create(&locker, NULL, lock_the_file, NULL);
        pthread_barrier_wait(&both);
        for (volatile uint64_t spin = scramble((uint64_t)i) % 200000; spin > 0; spin--)
            ;
        must("close", close(number), 0);
        must("number", open_direct("other", 0), number);
        must("pwrite", pwrite(number, memory, BLOCK, 0), BLOCK);
        pthread_join(locker, NULL);
        all_done = 1;
        pthread_join(writer, NULL);
        struct stat stat;
        must("fstat", fstat(number, &stat), 0);
        must("length", stat.st_size, BLOCK);
        must("close", close(number) | close(fd), 0);
        must("lengths", length_of("other") + length_of("file"), BLOCK + LARGE);
        must("unlink", unlink("file") | unlink("other"), 0);
    }
    printf("done\n");
}

// The bug: the copy is no duplicate that the library sees.
static void a_descriptor_copied_from_the_own_process(void) {
    int own = (int)syscall(SYS_pidfd_open, getpid(), 0);
    fd = open_direct("file", O_APPEND);
    write_together();
    int by_number = strcmp(argument, "number") == 0 || pidfd_getfd == NULL;
    int copy = by_number ? (int)syscall(SYS_pidfd_getfd, own, fd, 0) : pidfd_getfd(own, fd, 0);
    must("write", write(copy, memory, BLOCK), BLOCK);
    append_blocks(1);
    tell_length("length");
    must("close", close(copy) + close(fd), 0);
}

static void *append_to_number(void *number) {
    pthread_barrier_wait(&both);
    for (int i = 0; i < 8; i++)
        must("write", write((int)(long)number, memory, BLOCK), BLOCK);
    return NULL;
}

// Between the steps of dup2 the kernel served a file that was taken. The window is short, and a run
// seldom meets it.
static void a_number_replaced_beside_appends(void) {
    pthread_barrier_init(&both, NULL, 2);
    for (int i = 0; i < ROUNDS / 5; i++) {
        int first = open_direct("first", O_APPEND), second = open_direct("second", O_APPEND);
        int number = dup(first);
        pthread_t thread;
        pthread_create(&thread, NULL, append_to_number, (void *)(long)number);
        pthread_barrier_wait(&both);
        must("dup2", dup2(second, number), number);
        pthread_join(thread, NULL);
        close(number), close(second), close(first);
        must("length", length_of("first") + length_of("second"), 8 * BLOCK);
        // Their shares differ from run to run.
        must("unlink", unlink("first") | unlink("second"), 0);
    }
    printf("done\n");
}

// --- a ring without a descriptor ---

enum { REGISTER_RING = 20, ENTER_REGISTERED = 1 << 4 };

// The bug: the library looked for descriptors of rings only.
static void a_ring_whose_descriptor_is_closed(void) {
    struct io_uring_params parameters = {0};
    int ring = (int)syscall(SYS_io_uring_setup, 4, &parameters);
    if (ring < 0)
        die("io_uring_setup");
    const int shared = MAP_SHARED | MAP_POPULATE, access = PROT_READ | PROT_WRITE;
    size_t submissions = parameters.sq_off.array + parameters.sq_entries * sizeof(unsigned);
    char *queue = mmap(NULL, submissions, access, shared, ring, IORING_OFF_SQ_RING);
    size_t len = parameters.sq_entries * sizeof(struct io_uring_sqe);
    struct io_uring_sqe *entry = mmap(NULL, len, access, shared, ring, IORING_OFF_SQES);
    struct io_uring_rsrc_update own = {.offset = 0, .data = (unsigned)ring};
    must("register", syscall(SYS_io_uring_register, ring, REGISTER_RING, &own, 1), 1);
    must("close", close(ring), 0);

    fd = open_direct("file", 0);
    write_together();
    memset(entry, 0, sizeof *entry);
    entry->opcode = IORING_OP_WRITE;
    entry->fd = fd;
    entry->addr = (unsigned long)memory;
    entry->len = BLOCK;
    entry->off = WRITERS * BLOCKS_OF_EACH * BLOCK;
    ((unsigned *)(queue + parameters.sq_off.array))[0] = 0;
    atomic_store((atomic_uint *)(queue + parameters.sq_off.tail), 1);
    unsigned flags = IORING_ENTER_GETEVENTS | ENTER_REGISTERED;
    must("enter", syscall(SYS_io_uring_enter, own.offset, 1, 1, flags, NULL, 0), 1);
    tell_length("length");
    must("close", close(fd), 0);
}

// --- the end of the first thread ---

static pthread_t first_thread;

static int first_has_ended(void) {
    char name[64], state = 0;
    snprintf(name, sizeof name, "/proc/self/task/%d/stat", getpid());
    FILE *stat = fopen(name, "r");
    must("stat", fscanf(stat, "%*d (%*[^)]) %c", &state), 1);
    fclose(stat);
    return state == 'Z';
}

static void *outlive_the_first_thread(void *unused) {
    (void)unused;
    fd = open_direct("file", 0);
    write_together();
    if (strcmp(argument, "pthread_cancel") == 0)
        pthread_cancel(first_thread);
    while (!first_has_ended())
        usleep(1000);
    return NULL;
}

// The bug: the library saw only pthread_exit. Its listener kept the process alive for ever.
static void a_first_thread_that_ends(void) {
    pthread_t thread;
    first_thread = pthread_self();
    pthread_create(&thread, NULL, outlive_the_first_thread, NULL);
    pthread_detach(thread);
    if (strcmp(argument, "pthread_exit") == 0)
        pthread_exit(NULL);
    if (strcmp(argument, "thrd_exit") == 0)
        thrd_exit(0);
    for (;;)
        pause();
}

// --- exec ---

static int to_writer[2], to_holder[2];

static void send_to(int *channel) {
    must("write", write(channel[1], "", 1), 1);
}

static void wait_at(int *channel) {
    char byte;
    must("read", read(channel[0], &byte, 1), 1);
}

// Has a lease on the program, so that its exec waits, until the writer is done.
static void hold_the_program(void) {
    sigset_t broken;
    sigemptyset(&broken);
    sigaddset(&broken, SIGIO);
    sigprocmask(SIG_BLOCK, &broken, NULL);
    int program = open("program", O_RDONLY), signal_;
    must("lease", fcntl(program, F_SETLEASE, F_WRLCK), 0);
    send_to(to_writer);
    sigwait(&broken, &signal_);
    send_to(to_writer);
    wait_at(to_holder);
    must("lease", fcntl(program, F_SETLEASE, F_UNLCK), 0);
    _exit(0);
}

static void *write_beside_exec(void *unused) {
    (void)unused;
    wait_at(to_writer);
    fd = open_direct("file", 0);
    write_together();
    send_to(to_holder);
    return NULL;
}

static void *fail_to_execute(void *unused) {
    (void)unused;
    char *none[] = {NULL};
    must("execv", execv("./not-there", none), -1);
    pthread_barrier_wait(&both);
    pthread_barrier_wait(&both);
    return NULL;
}

// A thread whose exec failed makes no other call.
static void a_take_over_after_a_failed_exec_of_another_thread(void) {
    pthread_t thread;
    pthread_barrier_init(&both, NULL, 2);
    fd = open_direct("earlier", 0);
    pthread_create(&thread, NULL, fail_to_execute, NULL);
    pthread_barrier_wait(&both);
    must("close", close(fd), 0);
    fd = open_direct("file", 0);
    write_together();
    pthread_barrier_wait(&both);
    pthread_join(thread, NULL);
}

// The library takes files over again.
static void a_take_over_after_a_failed_exec(void) {
    fd = open_direct("earlier", 0);
    must("execl", execl("./not-there", "program", NULL), -1);
    must("close", close(fd), 0);
    fd = open_direct("file", 0);
    write_together();
}

// The bug: a take-over began between the hand-back and the exec.
static void a_take_over_beside_exec(void) {
    must("copy", system("cp /bin/true program"), 0);
    fd = open_direct("earlier", 0);
    write_together();
    must("execl", execl("./not-there", "program", NULL), -1);
    must("pipe", pipe2(to_writer, O_CLOEXEC) | pipe2(to_holder, O_CLOEXEC), 0);
    if (fork() == 0)
        hold_the_program();
    wait_at(to_writer);
    pthread_t thread;
    pthread_create(&thread, NULL, write_beside_exec, NULL);
    execl("./program", "program", NULL);
    die("execl");
}

// --- children ---

// By number, in a child of a fork unseen by the library.
static void append_by_number(void) {
    must("write", syscall(SYS_write, fd, memory, BLOCK), BLOCK);
    syscall(SYS_exit_group, 0);
}

static void children_by_number(void) {
    for (int way = 0; way < 2; way++) {
        fd = open_direct("file", O_APPEND);
        append_blocks(4);
        pid_t child = way == 0 ? (pid_t)syscall(SYS_fork) : _Fork();
        if (child == 0)
            append_by_number();
        must("wait", waitpid(child, NULL, 0), child);
        append_blocks(1);
        tell_length("length");
        close(fd);
    }
}

static void *open_and_close_for_ever(void *name) {
    while (!all_done) {
        int opened = open_direct(name, 0);
        must("write", write(opened, memory, BLOCK), BLOCK);
        close(opened);
    }
    return NULL;
}

// The child has no other threads of the parent, whose locks it would wait for, and no keeper.
static void a_raw_child_beside_threads_that_open(void) {
    pthread_t threads[2];
    pthread_create(&threads[0], NULL, open_and_close_for_ever, "file");
    pthread_create(&threads[1], NULL, open_and_close_for_ever, "other");
    for (int i = 0; i < 300; i++) {
        pid_t child = i % 2 == 0 ? _Fork() : (pid_t)syscall(SYS_fork);
        if (child == 0) {
            // Before this call the library hands all files back.
            syscall(SYS_truncate, "nothing", 0);
            syscall(SYS_exit_group, 0);
        }
        must("wait", waitpid(child, NULL, 0), child);
    }
    all_done = 1;
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
}

// In the child, where the library knows no file.
static int is_marked_for_a_child(void) {
    int status;
    pid_t child = fork();
    if (child == 0)
        _exit(getxattr("file", "user.dioxide", NULL, 0) >= 0);
    must("wait", waitpid(child, &status, 0), child);
    return status != 0;
}

static void a_fork_beside_the_last_close(void) {
    int marked = 0;
    pthread_t thread;
    pthread_barrier_init(&both, NULL, 2);
    pthread_create(&thread, NULL, close_in_rounds, (void *)100);
    for (int i = 0; i < 100; i++) {
        fd = round_fd = open_direct("file", O_APPEND);
        append_blocks(1);
        pthread_barrier_wait(&both);
        // Varies the step of the close at the fork.
        for (volatile uint64_t spin = scramble((uint64_t)i) % 20000; spin > 0; spin--)
            ;
        marked += is_marked_for_a_child();
        pthread_barrier_wait(&both);
    }
    pthread_join(thread, NULL);
    tell("children that found it grown", marked);
}

// Only the parent has a keeper.
static void a_child_by_number_opens_a_file(void) {
    fd = open_direct("file", 0);
    write_together();
    close(fd);
    pid_t child = (pid_t)syscall(SYS_fork);
    if (child == 0) {
        fd = open_direct("other", 0);
        write_together();
        tell("close", close(fd));
        _exit(3);
    }
    int status;
    must("wait", waitpid(child, &status, 0), child);
    tell("child", WEXITSTATUS(status));
}

// --- rights ---

static int has_way(const char *name) {
    return strcmp(argument, name) == 0;
}

static void drop_capabilities(int by_number) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[2];
    extern int capset(cap_user_header_t, const cap_user_data_t);
    memset(none, 0, sizeof none);
    tell("capset", by_number ? (int)syscall(SYS_capset, &header, none) : capset(&header, none));
}

enum { OTHER = 65534 };

static void change_rights(void) {
    gid_t group = OTHER;
    if (has_way("setuid"))
        tell("setuid", setuid(OTHER));
    else if (has_way("seteuid"))
        tell("seteuid", seteuid(OTHER));
    else if (has_way("setreuid"))
        tell("setreuid", setreuid(OTHER, OTHER));
    else if (has_way("setresuid"))
        tell("setresuid", setresuid(OTHER, OTHER, OTHER));
    else if (has_way("setfsuid"))
        tell("setfsuid", setfsuid(OTHER));
    else if (has_way("setgid"))
        tell("setgid", setgid(OTHER));
    else if (has_way("setegid"))
        tell("setegid", setegid(OTHER));
    else if (has_way("setregid"))
        tell("setregid", setregid(OTHER, OTHER));
    else if (has_way("setresgid"))
        tell("setresgid", setresgid(OTHER, OTHER, OTHER));
    else if (has_way("setfsgid"))
        tell("setfsgid", setfsgid(OTHER));
    else if (has_way("setgroups"))
        tell("setgroups", setgroups(1, &group));
    else if (has_way("initgroups"))
        tell("initgroups", initgroups("root", OTHER));
    else if (has_way("capset"))
        drop_capabilities(0);
    else if (has_way("capset_by_number"))
        drop_capabilities(1);
    else if (has_way("setresuid_by_number"))
        tell("by number", syscall(SYS_setresuid, OTHER, OTHER, OTHER));
    else if (has_way("fchown"))
        tell("fchown", fchown(fd, OTHER, OTHER));
    else if (has_way("fchown_by_number"))
        tell("fchown", syscall(SYS_fchown, fd, OTHER, OTHER));
    else if (has_way("chown"))
        tell("chown", chown("file", OTHER, OTHER));
    else if (has_way("lchown"))
        tell("lchown", lchown("file", OTHER, OTHER));
    else if (has_way("fchownat"))
        tell("fchownat", fchownat(AT_FDCWD, "file", OTHER, OTHER, 0));
    else if (has_way("fchownat_of_a_descriptor"))
        tell("fchownat", fchownat(fd, "", OTHER, OTHER, AT_EMPTY_PATH));
    else if (has_way("fchmod"))
        tell("fchmod", fchmod(fd, 0400));
    else if (has_way("chmod"))
        tell("chmod", chmod("file", 0400));
    else if (has_way("fchmodat"))
        tell("fchmodat", fchmodat(AT_FDCWD, "file", 0400, 0));
    else if (has_way("chroot"))
        tell("chroot", mkdir("root", 0755) + chroot("root"));
    else if (has_way("chroot_by_number"))
        tell("chroot", mkdir("root", 0755) + syscall(SYS_chroot, "root"));
    else
        die("%s", argument);
}

// Another process opens the file afterwards, and finds the exact length.
static void rights_that_change_after_the_open(void) {
    int ready[2];
    char byte;
    must("pipe", pipe(ready), 0);
    pid_t other = fork();
    if (other == 0) {
        must("read", read(ready[0], &byte, 1), 1);
        fd = open("file", O_RDONLY);
        tell_length("length for another process");
        _exit(0);
    }
    fd = open_direct("file", O_APPEND);
    append_blocks(5);
    change_rights();
    append_blocks(1);
    must("write", write(ready[1], "", 1), 1);
    must("wait", waitpid(other, NULL, 0), other);
    append_blocks(1);
    tell_length("length");
    tell("close", close(fd));
}

static void shells_that_append(void) {
    char command[256];
    for (int way = 0; way < 3; way++) {
        fd = open_direct("file", O_APPEND);
        append_blocks(4);
        snprintf(command, sizeof command, "$(dd if=/dev/zero bs=4096 count=1 status=none >&%d)", fd);
        if (way == 0) {
            wordexp_t words;
            tell("wordexp", wordexp(command, &words, 0));
        } else if (way == 1) {
            tell("system", system(command));
        } else {
            tell("popen", pclose(popen(command, "w")));
        }
        append_blocks(1);
        tell_length("length");
        close(fd);
    }
}

extern int pidfd_spawn(int *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *,
                       char *const[], char *const[]) __attribute__((weak));

// The bug: pidfd_spawn did not hand back. glibc before 2.39 has none.
static void a_child_of_pidfd_spawn_appends(void) {
    char command[256];
    fd = open_direct("file", O_APPEND);
    append_blocks(4);
    snprintf(command, sizeof command, "dd if=/dev/zero bs=4096 count=1 status=none >&%d", fd);
    char *arguments[] = {"sh", "-c", command, NULL}, *none[] = {NULL};
    int handle, result = pidfd_spawn == NULL ? ENOSYS : pidfd_spawn(&handle, "/bin/sh", NULL, NULL, arguments, none);
    if (result == ENOSYS)
        result = posix_spawn(&handle, "/bin/sh", NULL, NULL, arguments, none);
    tell("spawn", result);
    must("wait", wait(NULL) > 0, 1);
    append_blocks(1);
    tell_length("length");
    close(fd);
}

static void a_descriptor_in_one_of_many_messages(void) {
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    int sockets[2];
    must("socketpair", socketpair(AF_UNIX, SOCK_DGRAM, 0, sockets), 0);
    memset(&control, 0, sizeof control);
    char byte = 0;
    struct iovec data = {&byte, 1};
    struct mmsghdr message = {.msg_hdr = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = &control,
                                          .msg_controllen = sizeof control}};
    pid_t child = fork();
    if (child == 0) {
        must("recvmsg", recvmsg(sockets[1], &message.msg_hdr, 0), 1);
        memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message.msg_hdr)), sizeof fd);
        append_by_number();
    }
    fd = open_direct("file", O_APPEND);
    append_blocks(4);
    struct cmsghdr *header = CMSG_FIRSTHDR(&message.msg_hdr);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    must("sendmmsg", sendmmsg(sockets[0], &message, 1, 0), 1);
    must("wait", waitpid(child, NULL, 0), child);
    append_blocks(1);
    tell_length("length");
}

// --- cancelled threads ---

static int pipe_ends[2];

static void *read_pipe(void *unused) {
    (void)unused;
    char byte;
    return read(pipe_ends[0], &byte, 1) == 1 ? "read" : "failed";
}

__attribute__((noreturn)) static void *write_for_ever(void *unused) {
    (void)unused;
    for (;;)
        must("pwrite", pwrite(fd, memory, LARGE, 0), LARGE);
}

static void cancel(const char *what, void *(*work)(void *)) {
    pthread_t thread;
    void *result;
    pthread_create(&thread, NULL, work, NULL);
    usleep(50000);
    pthread_cancel(thread);
    pthread_join(thread, &result);
    tell(what, result == PTHREAD_CANCELED);
}

static void cancelled_threads(void) {
    must("pipe", pipe(pipe_ends), 0);
    cancel("reader of a pipe, before", read_pipe);
    fd = open_direct("file", 0);
    write_together();
    cancel("reader of a pipe", read_pipe);
    cancel("writer", write_for_ever);
    cancel("syncer", sync_for_ever);
    tell("fsync", fsync(fd));
    tell_length("length");
    tell("close", close(fd));
}

// --- space ---

static atomic_long acknowledged;
static atomic_int other_errors, no_space;

static void *append_until_full(void *unused) {
    (void)unused;
    while (!no_space) {
        ssize_t result = write(fd, memory, BLOCK);
        if (result > 0)
            acknowledged += result;
        else if (errno == ENOSPC)
            no_space = 1;
        else
            other_errors++;
    }
    return NULL;
}

static void append_until_full_together(void) {
    pthread_t threads[WRITERS];
    no_space = 0;
    for (int i = 0; i < WRITERS; i++)
        pthread_create(&threads[i], NULL, append_until_full, NULL);
    for (int i = 0; i < WRITERS; i++)
        pthread_join(threads[i], NULL);
    struct stat stat;
    must("fstat", fstat(fd, &stat), 0);
    tell("other errors", other_errors);
    tell("length without what was acknowledged", (long)stat.st_size - acknowledged);
}

static void a_full_disk(void) {
    int filler = open("filler", O_RDWR | O_CREAT, 0644);
    must("fallocate", fallocate(filler, 0, 0, 8 << 20), 0);
    fd = open_direct("file", O_APPEND);
    append_until_full_together();
    // The kernel may write less than a block.
    tell("again", write(fd, memory, LARGE) < LARGE);
    must("unlink", unlink("filler"), 0);
    must("close", close(filler), 0);
    must("ftruncate", ftruncate(fd, BLOCK), 0);
    append_blocks(16);
    tell_length("length");
}

static atomic_int limit_signals;

static void count_signal(int signal) {
    (void)signal;
    limit_signals++;
}

static void a_limit_of_the_length(void) {
    struct rlimit limit = {64 * BLOCK, 64 * BLOCK};
    must("setrlimit", setrlimit(RLIMIT_FSIZE, &limit), 0);
    signal(SIGXFSZ, count_signal);
    fd = open_direct("file", O_APPEND);
    append_blocks(63);
    tell("over the limit", write(fd, memory, 4 * BLOCK));
    tell("at the limit", write(fd, memory, BLOCK));
    tell("signals", limit_signals);
    signal(SIGXFSZ, SIG_DFL);
    tell_length("length");
    tell("not ended", write(fd, memory, BLOCK));
}

// --- alignment ---

static uint64_t random_state;

static long below(long limit) {
    return (long)(scramble(random_state++) % (uint64_t)limit);
}

// Closes both files, and opens none of them O_DIRECT.
static void clone_file(const char *from, const char *to) {
    int source = open(from, O_RDONLY), target = open(to, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    must("clone", ioctl(target, FICLONE, source), 0);
    close(source), close(target);
}

static void make_clone(void) {
    int base = open("base", O_WRONLY | O_CREAT, 0644);
    must("write", write(base, memory, 64 * BLOCK), 64 * BLOCK);
    must("fsync", fsync(base), 0);
    close(base);
    clone_file("base", "file");
}

static void tell_content(const char *what, const char *path) {
    int file = open(path, O_RDONLY);
    long total = 0, len;
    uint32_t sum = 0;
    while ((len = read(file, memory, LARGE)) > 0)
        total += len, sum = sum * 31 + checksum(memory, (size_t)len);
    tell(what, len < 0 ? len : total);
    printf("%s: %08x\n", what, sum);
    close(file);
}

// A transfer of sectors, or rarely of a few bytes anywhere, which the kernel may refuse.
static void any_transfer(int number) {
    long offset = 512 * below(160), len = 512 * (1 + below(24));
    if (below(16) == 0)
        offset += 1 + below(500), len = 1 + below(11);
    char *at = memory + (below(16) == 0 ? 512 : 0);
    fill(at, (size_t)len, (uint64_t)number);
    switch (below(8)) {
    case 0:
        tell("lseek", lseek(fd, offset, SEEK_SET));
        tell("write", write(fd, at, (size_t)len));
        break;
    case 1:
        tell("lseek", lseek(fd, offset, SEEK_SET));
        tell("read", read(fd, at, (size_t)len));
        break;
    case 2:
    case 3:
        len = pread(fd, at, (size_t)len, offset);
        tell("pread", len);
        printf("read: %08x\n", checksum(at, len < 0 ? 0 : (size_t)len));
        break;
    case 4:
        tell("ftruncate", below(4) == 0 ? ftruncate(fd, offset) : 0);
        tell("fdatasync", fdatasync(fd));
        break;
    default:
        tell("pwrite", pwrite(fd, at, (size_t)len, offset));
    }
    tell("position", lseek(fd, 0, SEEK_CUR));
}

// XFS reports the block size as alignment of a file that shares extents, and accepts sectors.
static void sectors_of_a_clone(void) {
    random_state = strtoul(argument, NULL, 10) * 1000000;
    make_clone();
    for (int round = 0; round < 6; round++) {
        fd = open("file", O_RDWR | O_DIRECT);
        for (int number = 0; number < 12; number++)
            any_transfer(round * 100 + number);
        tell_length("length");
        tell("close", close(fd));
        tell_content("file", "file");
        clone_file("file", "clone");
    }
    tell_content("clone", "clone");
}

static void tell_length_of(const char *what, int file) {
    struct stat stat;
    tell(what, fstat(file, &stat) == 0 ? (long)stat.st_size : -1);
    close(file);
}

// By each ioctl with a second file.
static void a_clone_of_a_file_that_is_taken(void) {
    char buffer[sizeof(struct file_dedupe_range) + sizeof(struct file_dedupe_range_info)];
    struct file_dedupe_range *same = (struct file_dedupe_range *)buffer;
    for (int way = 0; way < 4; way++) {
        fd = open_direct("file", 0);
        write_together();
        int target = open("target", O_RDWR | O_CREAT | O_TRUNC, 0644);
        struct file_clone_range range = {.src_fd = fd};
        must("write", write(target, memory, BLOCK), BLOCK);
        memset(buffer, 0, sizeof buffer);
        // The block behind EOF.
        same->src_offset = WRITERS * BLOCKS_OF_EACH * BLOCK;
        same->src_length = BLOCK;
        same->dest_count = 1;
        same->info[0].dest_fd = way == 2 ? target : fd;
        same->info[0].dest_offset = way == 2 ? 0 : same->src_offset;
        if (way == 3)
            same->src_offset = 0;
        if (way == 0)
            tell("FICLONE", ioctl(target, FICLONE, fd));
        else if (way == 1)
            tell("FICLONERANGE", ioctl(target, FICLONERANGE, &range));
        else
            tell("FIDEDUPERANGE", ioctl(way == 2 ? fd : target, FIDEDUPERANGE, same));
        tell("status", way < 2 ? 0 : same->info[0].status == 0);
        tell_length("source");
        tell_length_of("target", target);
        tell("close", close(fd));
    }
}

// By each ioctl that moves blocks between two files and has the other one in its argument. Most are
// refused here.
static void a_swap_of_a_file_that_is_taken(void) {
    const unsigned long requests[] = {
        _IOW('X', 129, char[40]),  // XFS_IOC_EXCHANGE_RANGE
        _IOW('X', 131, char[88]),  // XFS_IOC_COMMIT_RANGE
        _IOWR('X', 109, char[192]), // XFS_IOC_SWAPEXT
        _IOWR(0xf5, 9, char[32]),  // F2FS_IOC_MOVE_RANGE
    };
    for (int way = 0; way < 4; way++) {
        int64_t argument[24] = {0};
        fd = open_direct("file", 0);
        write_together();
        int target = open("target", O_RDWR | O_CREAT | O_TRUNC, 0644);
        if (way == 2)
            argument[1] = target, argument[2] = fd;
        else
            argument[0] = fd;
        ioctl(target, requests[way], argument);
        tell("marked", getxattr("file", "user.dioxide", NULL, 0) >= 0);
        tell("close", close(target) | close(fd));
    }
}

// By each ioctl that sets the file of a loop device. Another process may take the free device
// first.
static int loop_device_of_the_file(int way) {
    char path[64];
    for (;;) {
        int control = open("/dev/loop-control", O_RDWR), number = ioctl(control, LOOP_CTL_GET_FREE);
        close(control);
        snprintf(path, sizeof path, "/dev/loop%d", number);
        int device = open(path, O_RDWR);
        if (device < 0 && errno == ENXIO)
            continue;
        if (device < 0)
            die("%s", path);
        struct loop_config config = {.fd = (uint32_t)fd};
        if (way == 0 ? ioctl(device, LOOP_SET_FD, fd) == 0 : ioctl(device, LOOP_CONFIGURE, &config) == 0)
            return device;
        if (errno != EBUSY)
            die("%s", path);
        close(device);
    }
}

static void a_loop_device_of_a_file_that_is_taken(void) {
    for (int way = 0; way < 2; way++) {
        uint64_t len = 0;
        fd = open_direct("file", 0);
        write_together();
        int device = loop_device_of_the_file(way);
        must("BLKGETSIZE64", ioctl(device, BLKGETSIZE64, &len), 0);
        tell("length of the device", (long)len);
        must("LOOP_CLR_FD", ioctl(device, LOOP_CLR_FD), 0);
        close(device);
        tell_length("length");
        tell("close", close(fd));
    }
}

static void *append_with_a_last_sector(void *number) {
    for (long i = 0; i < BLOCKS_OF_EACH; i++) {
        long len = i == BLOCKS_OF_EACH - 1 ? 512 : BLOCK;
        must("pwrite", pwrite(fd, memory, (size_t)len, 64 * BLOCK + (i * WRITERS + (long)number) * BLOCK), len);
    }
    return NULL;
}

static void threads_write_sectors_of_a_clone(void) {
    make_clone();
    fd = open("file", O_RDWR | O_DIRECT);
    sum_of_threads(WRITERS, append_with_a_last_sector);
    tell_length("length");
    tell("close", close(fd));
}

// --- parts of blocks ---

static long length(void) {
    struct stat stat;
    return fstat(fd, &stat) == 0 ? (long)stat.st_size : -1;
}

static void set_append(int appends) {
    int flags = fcntl(fd, F_GETFL);
    must("F_SETFL", fcntl(fd, F_SETFL, appends ? flags | O_APPEND : flags & ~O_APPEND), 0);
}

// A write or a read of sectors by any call, near the end or anywhere. With `bytes`, some are of any
// bytes, and some lengths of the file too. The kernel may refuse these, after it has written some
// extents or not. So what it may refuse lies in one block: with `within`, all but whole blocks.
static void any_part(int number, int bytes, int within) {
    long end = length(), len = 512 * (1 + below(24));
    long offset = below(2) == 0 ? 512 * below(WRITERS * BLOCKS_OF_EACH * 8) : (end & -512) + 512 * (below(17) - 8);
    if (within && below(3) == 0)
        offset &= -BLOCK, len = BLOCK * (1 + below(3));
    else if (within && len > BLOCK - (offset & (BLOCK - 1)))
        len = BLOCK - (offset & (BLOCK - 1));
    long first = 512 * below(len / 512 + 1);
    if (bytes && below(12) == 0)
        offset += 1 + below(500), len = 1 + below(11), first = below(len + 1);
    else if (bytes && below(24) == 0)
        first = 256, len = 512;
    struct iovec pieces[] = {{memory, (size_t)first}, {NULL, 0}, {memory + LARGE / 2, (size_t)(len - first)}};
    fill(memory, LARGE / 4, (uint64_t)number);
    fill(memory + LARGE / 2, LARGE / 4, (uint64_t)number + 1);
    switch (below(14)) {
    case 0:
        tell("lseek", lseek(fd, offset, SEEK_SET));
        tell("write", write(fd, memory, (size_t)len));
        break;
    case 1:
        tell("lseek", lseek(fd, offset, SEEK_SET));
        tell("writev", writev(fd, pieces, 3));
        break;
    case 2:
        tell("pwritev", pwritev(fd, pieces, 3, offset));
        break;
    case 3:
        tell("pwritev2", pwritev2(fd, pieces, 3, offset, RWF_DSYNC));
        break;
    case 4:
        tell("append", pwritev2(fd, pieces, 3, below(2) == 0 ? -1 : offset, RWF_APPEND));
        break;
    case 5:
    case 6:
        set_append(1);
        tell("append", below(2) == 0 ? write(fd, memory, (size_t)len) : writev(fd, pieces, 3));
        set_append(0);
        break;
    case 7:
        tell("lseek", lseek(fd, offset, SEEK_SET));
        len = below(2) == 0 ? read(fd, memory, (size_t)len) : readv(fd, pieces, 3);
        tell("read", len);
        break;
    case 8:
        len = below(2) == 0 ? pread(fd, memory, (size_t)len, offset) : preadv(fd, pieces, 3, offset);
        tell("pread", len);
        break;
    case 9:
        if (below(3) == 0)
            tell("ftruncate", ftruncate(fd, bytes && below(2) == 0 ? end - below(2000) : end & -512));
        tell("fdatasync", fdatasync(fd));
        break;
    default:
        tell("pwrite", pwrite(fd, memory, (size_t)len, offset));
    }
    // A failed read may have set any of it.
    if (len > 0)
        printf("memory: %08x %08x\n", checksum(memory, (size_t)(len < first ? len : first)),
               checksum(memory + LARGE / 2, (size_t)(len > first ? len - first : 0)));
    tell("position", lseek(fd, 0, SEEK_CUR));
    tell_length("length");
    if (below(6) == 0)
        tell("end", lseek(fd, 0, SEEK_END));
}

static void parts_of(const char *path, int more) {
    long number = atol(argument);
    random_state = (uint64_t)number * 1000000;
    // Some may not read the rest of a block.
    int access = (number - 1) / 2 % 2 == 0 ? O_RDWR : O_WRONLY;
    fd = open(path, access | O_DIRECT | more, 0644);
    write_together();
    for (int i = 0; i < 80; i++)
        any_part(i, number % 2 == 1, number > 6);
    tell("close", close(fd));
    tell_content("file", path);
}

static void parts_of_blocks(void) {
    parts_of("file", O_CREAT);
}

static void parts_of_blocks_of_a_clone(void) {
    make_clone();
    parts_of("file", 0);
    tell_content("base", "base");
}

static atomic_int refused;

// Each thread has sectors of every block.
static void *write_sectors(void *number) {
    char *sector = aligned_alloc(BLOCK, BLOCK);
    struct iovec pieces[] = {{sector, 512}, {sector + 1024, 512}};
    for (long i = 0; i < 2 * BLOCKS_OF_EACH; i++) {
        long offset = 512 * ((i + 1) % BLOCKS_OF_EACH * WRITERS + (long)number) * 2;
        fill(sector, BLOCK, (uint64_t)(offset + i));
        long written = i % 3 == 0   ? pwrite(fd, sector, 1024, offset)
                       : i % 3 == 1 ? pwritev(fd, pieces, 2, offset)
                                    : pwritev2(fd, pieces, 2, offset, RWF_DSYNC);
        if (written < 0 && errno == EINVAL)
            refused++;
        else
            must("write", written, 1024);
    }
    free(sector);
    return NULL;
}

static void threads_write_sectors(const char *path, int more) {
    fd = open(path, O_RDWR | O_DIRECT | more, 0644);
    sum_of_threads(WRITERS, write_sectors);
    tell("refused", refused);
    tell_length("length");
    tell("end", lseek(fd, 0, SEEK_END));
    tell("close", close(fd));
    tell_content("file", path);
}

static void threads_write_sectors_of_blocks(void) {
    threads_write_sectors("file", O_CREAT);
}

static void threads_write_sectors_of_blocks_of_a_clone(void) {
    make_clone();
    threads_write_sectors("file", 0);
    tell_content("base", "base");
}

static void *append_sectors(void *number) {
    char *sector = aligned_alloc(BLOCK, BLOCK);
    for (long i = 0; i < BLOCKS_OF_EACH; i++) {
        fill(sector, 512, (uint64_t)((long)number * BLOCKS_OF_EACH + i));
        long written = write(fd, sector, 512);
        if (written < 0 && errno == EINVAL)
            refused++;
        else
            must("write", written, 512);
    }
    free(sector);
    return NULL;
}

// Each sector is there once, and those of a thread are in its order.
static void threads_append_sectors(void) {
    long next[WRITERS] = {0}, misplaced = 0;
    fd = open_direct("file", O_APPEND);
    sum_of_threads(WRITERS, append_sectors);
    tell("refused", refused);
    tell_length("length");
    for (long at = 0; at < WRITERS * BLOCKS_OF_EACH - refused; at++) {
        long writer = 0;
        must("pread", pread(fd, memory, 512, 512 * at), 512);
        while (writer < WRITERS && !is_filled(memory, 512, (uint64_t)(writer * BLOCKS_OF_EACH + next[writer])))
            writer++;
        if (writer == WRITERS)
            misplaced++;
        else
            next[writer]++;
    }
    tell("misplaced", misplaced);
    tell("close", close(fd));
}

// ext4 writes into a hole of a file without extents by the page cache, and so accepts all bytes.
static void bytes_into_a_hole(void) {
    fd = open_direct("file", 0);
    write_together();
    long end = length();
    must("ftruncate", ftruncate(fd, end + 8 * BLOCK), 0);
    tell("bytes into a hole", pwrite(fd, memory, 100, end + 4 * BLOCK + 7));
    tell("pwrite", pwrite(fd, memory, BLOCK, end + 4 * BLOCK));
    tell("bytes over a block", pwrite(fd, memory, 100, end + 4 * BLOCK + 7));
    tell("close", close(fd));
    tell_content("file", "file");
}

// The library copied parts of blocks, and several pieces, itself: SIGSEGV instead of EFAULT. It
// hands a file back then, so each call has a file of its own.
static void memory_that_is_not_there(void) {
    char *readable = mmap(NULL, 2 * BLOCK, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *bad = readable + BLOCK;
    must("mprotect", mprotect(readable, BLOCK, PROT_READ), 0);
    struct iovec twice[] = {{bad, BLOCK}, {NULL, 0}, {bad, BLOCK}};
    static const long offsets[] = {0, 512, BLOCK, 7};
    for (int i = 0; i < 4 * 5; i++) {
        fd = open_direct("file", 0);
        write_together();
        long offset = offsets[i / 5];
        switch (i % 5) {
        case 0:
            tell("pread into read-only memory", pread(fd, readable, BLOCK, offset));
            break;
        case 1:
            tell("pread", pread(fd, bad, BLOCK, offset));
            break;
        case 2:
            tell("pwrite", pwrite(fd, bad, BLOCK, offset));
            break;
        case 3:
            tell("preadv", preadv(fd, twice, 3, offset));
            break;
        default:
            tell("pwritev", pwritev(fd, twice, 3, offset));
        }
        tell("pwrite after that", pwrite(fd, memory, 2 * BLOCK, 0));
        tell("position", lseek(fd, 0, SEEK_CUR));
        tell_length("length");
        tell("close", close(fd));
        must("unlink", unlink("file"), 0);
    }
}

static void misaligned_calls_by_mistake(void) {
    fd = open_direct("file", 0);
    write_together();
    tell("pwrite from an odd address", pwrite(fd, memory + 1, BLOCK, 0));
    tell("pwrite at an odd offset", pwrite(fd, memory, 100, 1));
    tell("write", lseek(fd, 100, SEEK_SET) + write(fd, memory, 100));
    tell("pread to an odd address", pread(fd, memory + 1, BLOCK, 0));
    tell("pread over the end", pread(fd, memory + LARGE / 2 + 1, LARGE / 4, (WRITERS * BLOCKS_OF_EACH - 1) * BLOCK));
    tell("position", lseek(fd, 0, SEEK_CUR));
    tell("pread", pread(fd, memory, BLOCK, 0));
    write_together();
    tell_length("length");
    tell("close", close(fd));
}

static void a_device(void) {
    fd = open(argument, O_RDWR | O_DIRECT | O_DSYNC);
    if (fd < 0)
        die("%s", argument);
    write_together();
    off_t end = lseek(fd, 0, SEEK_END);
    tell("end", end);
    tell("at the end", pwrite(fd, memory, BLOCK, end));
    tell("read at the end", pread(fd, memory, BLOCK, end));
    tell("read", pread(fd, memory, LARGE, 0));
    tell("is filled", is_filled(memory, BLOCK, 1));
    tell("sectors", pwrite(fd, memory, 1024, 512));
    tell("bytes", pwrite(fd, memory, 100, 512));
    tell("from an odd address", pwrite(fd, memory + 1, BLOCK, 0));
    tell("close", close(fd));
}

static void *open_device_in_rounds(void *unused) {
    (void)unused;
    for (int i = 0; i < ROUNDS; i++) {
        pthread_barrier_wait(&both);
        for (volatile uint64_t spin = scramble((uint64_t)i) % 20000; spin > 0; spin--)
            ;
        int opened = open(argument, O_RDWR | O_DIRECT);
        must("pwrite", pwrite(opened, memory, BLOCK, 0), BLOCK);
        pthread_barrier_wait(&both);
        must("close", close(opened), 0);
    }
    return NULL;
}

static void a_device_opened_beside_its_last_close(void) {
    pthread_t thread;
    pthread_barrier_init(&both, NULL, 2);
    pthread_create(&thread, NULL, open_device_in_rounds, NULL);
    for (int i = 0; i < ROUNDS; i++) {
        fd = open(argument, O_RDWR | O_DIRECT);
        must("pwrite", pwrite(fd, memory, BLOCK, 0), BLOCK);
        pthread_barrier_wait(&both);
        must("close", close(fd), 0);
        pthread_barrier_wait(&both);
    }
    pthread_join(thread, NULL);
    printf("done\n");
}

#define CASE(name) {#name, name}

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {
    CASE(exit_in_a_handler_that_interrupts_a_write),
    CASE(exit_in_a_handler_that_interrupts_malloc),
    CASE(exit_in_a_handler_beside_another_file),
    CASE(close_in_a_handler_that_interrupts_a_read),
    CASE(exit_in_a_handler_on_a_small_stack),
    CASE(exit_in_a_handler_that_interrupts_a_durable_write),
    CASE(jump_out_of_a_write),
    CASE(jump_out_of_a_durable_write),
    CASE(an_append_in_a_handler_that_interrupts_an_append),
    CASE(a_rotation_in_a_handler_that_interrupts_an_append),
    CASE(a_vfork_child_that_ends_by_a_signal),
    CASE(a_child_with_the_parents_memory_changes_its_numbers),
    CASE(an_open_without_waiting_beside_a_take_over),
    CASE(a_sync_in_a_handler_beside_a_hand_back),
    CASE(a_sync_of_a_file_that_has_none),
    CASE(a_raw_child_beside_threads_that_open),
    CASE(a_child_by_number_opens_a_file),
    CASE(a_fork_beside_the_last_close),
    CASE(rights_that_change_after_the_open),
    CASE(a_clone_of_a_file_that_is_taken),
    CASE(a_loop_device_of_a_file_that_is_taken),
    CASE(a_handler_runs_in_the_programs_threads_only),
    CASE(a_signal_ends_the_program),
    CASE(a_signal_whose_action_is_set_again),
    CASE(a_handler_that_raises_the_signal_again),
    CASE(a_signal_ends_the_program_during_reads),
    CASE(an_absolute_path_with_no_directory),
    CASE(an_empty_piece_at_no_address),
    CASE(pieces_that_are_not_there),
    CASE(a_write_in_a_destructor_of_thread_data),
    CASE(lengths_that_libc_asks_for_itself),
    CASE(the_position_of_appends_after_a_truncate),
    CASE(a_number_that_a_stream_closed),
    CASE(close_beside_mmap),
    CASE(a_closefrom_beside_a_take_over),
    CASE(a_closefrom_without_close_range),
    CASE(a_number_beside_growth),
    CASE(a_buffered_open_beside_a_take_over),
    CASE(a_line_printed_to_a_descriptor),
    CASE(a_lease),
    CASE(times_that_the_program_sets),
    CASE(a_thread_with_its_own_descriptors),
    CASE(a_number_of_the_engine_is_duplicated),
    CASE(a_number_of_the_engine_by_number),
    CASE(a_number_of_another_file_beside_a_hand_back),
    CASE(a_swap_of_a_file_that_is_taken),
    CASE(a_descriptor_copied_from_the_own_process),
    CASE(a_number_replaced_beside_appends),
    CASE(a_ring_whose_descriptor_is_closed),
    CASE(a_take_over_beside_exec),
    CASE(a_take_over_after_a_failed_exec),
    CASE(a_take_over_after_a_failed_exec_of_another_thread),
    CASE(a_first_thread_that_ends),
    CASE(a_child_of_pidfd_spawn_appends),
    CASE(children_by_number),
    CASE(shells_that_append),
    CASE(a_descriptor_in_one_of_many_messages),
    CASE(cancelled_threads),
    CASE(a_full_disk),
    CASE(a_limit_of_the_length),
    CASE(sectors_of_a_clone),
    CASE(threads_write_sectors_of_a_clone),
    CASE(parts_of_blocks),
    CASE(parts_of_blocks_of_a_clone),
    CASE(threads_write_sectors_of_blocks),
    CASE(threads_write_sectors_of_blocks_of_a_clone),
    CASE(threads_append_sectors),
    CASE(bytes_into_a_hole),
    CASE(memory_that_is_not_there),
    CASE(misaligned_calls_by_mistake),
    CASE(a_device),
    CASE(a_device_opened_beside_its_last_close),
};

int main(int argc, char **argv) {
    argument = argc > 2 ? argv[2] : "";
    memory = aligned_alloc(BLOCK, LARGE);
    fill(memory, BLOCK, 1);
    fill(memory + BLOCK, LARGE - BLOCK, 2);
    for (size_t i = 0; argc > 1 && i < sizeof cases / sizeof *cases; i++)
        if (strcmp(cases[i].name, argv[1]) == 0) {
            cases[i].run();
            return 0;
        }
    fprintf(stderr, "usage: cases NAME [ARGUMENT]\n");
    return 2;
}
