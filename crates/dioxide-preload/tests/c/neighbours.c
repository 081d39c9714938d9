// A program that writes a file O_DIRECT, and another process that opens the same file, which the
// library may have taken over.
//
//   neighbours MODE FILE             runs MODE; fails if the other process lost synced data
//   neighbours close FILE [N]        closes N times while the other process writes
//   neighbours theirs FILE N         the other process: writes N synced blocks from AT on, and
//                                    counts them in FILE.acks
//   neighbours theirs-late FILE N    the same, for a file that may be grown
//   neighbours opener FILE           for each byte that it reads, opens and closes FILE and writes
//                                    a byte
//   neighbours locks FILE            locks and unlocks parts of FILE until it is killed
//   neighbours stuck FILE OTHER      waits for a byte with both open, then writes and closes FILE;
//                                    OTHER is on another file system
//   neighbours plugin FILE LIBRARY   loads LIBRARY, which opens files in its constructor and by a
//                                    call
//   neighbours check FILE            fails unless FILE has all counted blocks
//
// The other process has no environment, so no library, and inherits no descriptor.
#define _GNU_SOURCE
#include "common.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define AT (1L << 20)
#define OF_CLOSES 10
#define UNTIL_KILLED 1000000L

static const char *self, *path;
static char acks[4096];
static char *memory;
static int fd;

static void must(const char *what, long result, long wanted) {
    if (result != wanted)
        die("%s: %ld instead of %ld", what, result, wanted);
}

static void append_blocks(int count) {
    fill(memory, BLOCK, 'A');
    for (int i = 0; i < count; i++)
        must("append", write(fd, memory, BLOCK), BLOCK);
}

// Makes the file anew and writes, so that it is grown if the library takes it over at open.
static void begin(int flags) {
    unlink(path);
    unlink(acks);
    fd = open(path, O_CREAT | O_DIRECT | O_CLOEXEC | flags, 0644);
    if (fd < 0)
        die("%s", path);
    append_blocks(1);
}

// Prints a line if the description has a lease, which is the library's.
static void tell_lease(void) {
    char name[64], info[4096];
    snprintf(name, sizeof name, "/proc/self/fdinfo/%d", fd);
    int file = open(name, O_RDONLY);
    long len = read(file, info, sizeof info - 1);
    must("fdinfo", len > 0, 1);
    info[len] = 0;
    close(file);
    if (strstr(info, "LEASE") != NULL)
        puts("leased");
    fflush(stdout);
}

// --- the other process ---

static long acknowledged(void) {
    long count = 0;
    int log = open(acks, O_RDONLY);
    if (log >= 0) {
        must("acks", pread(log, &count, sizeof count, 0) >= 0, 1);
        close(log);
    }
    return count;
}

static void theirs(long count, int may_be_grown) {
    int file = open(path, O_RDWR | O_DIRECT), log = open(acks, O_RDWR | O_CREAT, 0644);
    if (file < 0 || log < 0)
        die("%s", path);
    // The other process finds the file as without the library.
    struct stat stat;
    must("fstat", fstat(file, &stat), 0);
    if (stat.st_size >= 2 * AT && !may_be_grown)
        die("it is %ld bytes long", (long)stat.st_size);
    for (long n = 0; n < count; n++) {
        fill(memory, BLOCK, 'B' + (uint64_t)n);
        must("their write", pwrite(file, memory, BLOCK, AT + n * BLOCK), BLOCK);
        must("their sync", fdatasync(file), 0);
        long done = n + 1;
        must("their count", pwrite(log, &done, sizeof done, 0), sizeof done);
    }
}

static pid_t spawn(const char *mode, const char *argument) {
    char *none[] = {NULL}, *arguments[] = {(char *)self, (char *)mode, (char *)path, (char *)argument, NULL};
    pid_t pid;
    errno = posix_spawn(&pid, self, NULL, NULL, arguments, none);
    if (errno != 0)
        die("posix_spawn");
    return pid;
}

static pid_t spawn_theirs(long count) {
    char number[32];
    snprintf(number, sizeof number, "%ld", count);
    return spawn("theirs", number);
}

static void run_theirs(long count) {
    int status;
    pid_t pid = spawn_theirs(count);
    must("waitpid", waitpid(pid, &status, 0), pid);
    must("theirs", status, 0);
}

// The opener's descriptors of two pipes.
enum { ASKS = 90, ASKED, ANSWERS, ANSWERED };

static void opener(void) {
    char byte;
    while (read(ASKED, &byte, 1) == 1) {
        int file = open(path, O_RDONLY);
        must("their open", file >= 0, 1);
        close(file);
        must("their answer", write(ANSWERS, "", 1), 1);
    }
}

static pid_t spawn_opener(void) {
    int ask[2], answer[2];
    must("pipe", pipe(ask), 0);
    must("pipe", pipe(answer), 0);
    must("dup2", dup3(ask[1], ASKS, O_CLOEXEC), ASKS);
    must("dup2", dup2(ask[0], ASKED), ASKED);
    must("dup2", dup2(answer[1], ANSWERS), ANSWERS);
    must("dup2", dup3(answer[0], ANSWERED, O_CLOEXEC), ANSWERED);
    for (int end = 0; end < 2; end++) {
        close(ask[end]);
        close(answer[end]);
    }
    return spawn("opener", NULL);
}

static void ask_opener(void) {
    must("ask", write(ASKS, "", 1), 1);
}

static void wait_for_opener(void) {
    char byte;
    must("answer", read(ANSWERED, &byte, 1), 1);
}

// Each lock is a line of /proc/locks, so the lines of other locks move.
enum { LOCKERS = 2, OF_LOCKS = 300, OF_BREAKS = 40 };

static void locks(void) {
    int file = open(path, O_RDWR | O_CREAT, 0644);
    must("prctl", prctl(PR_SET_PDEATHSIG, SIGKILL), 0);
    for (;;) {
        struct flock all = {.l_type = F_UNLCK};
        for (int i = 0; i < OF_LOCKS; i++) {
            struct flock one = {.l_type = F_RDLCK, .l_start = 2 * i, .l_len = 1};
            must("lock", fcntl(file, F_OFD_SETLK, &one), 0);
        }
        must("unlock", fcntl(file, F_OFD_SETLK, &all), 0);
        usleep(100);
    }
}

static void check(void) {
    int file = open(path, O_RDONLY);
    long lost = 0, count = acknowledged();
    for (long n = 0; n < count; n++)
        lost += pread(file, memory, BLOCK, AT + n * BLOCK) != BLOCK || !is_filled(memory, BLOCK, 'B' + (uint64_t)n);
    close(file);
    if (lost > 0 || count == 0)
        die("%ld of %ld synced blocks of the other process are lost", lost, count);
}

// --- beside the other process ---

static void truncate_to_more(void) {
    begin(O_RDWR | O_APPEND);
    run_theirs(8);
    must("ftruncate", ftruncate(fd, 8 * AT), 0);
    must("close", close(fd), 0);
    check();
}

static void append(void) {
    begin(O_WRONLY | O_APPEND);
    run_theirs(8);
    append_blocks(512);
    must("close", close(fd), 0);
    check();
}

static void crash(void) {
    begin(O_RDWR | O_APPEND);
    tell_lease();
    run_theirs(8);
    kill(getpid(), SIGKILL);
}

static void wait_for_acks(long count) {
    while (acknowledged() < count)
        usleep(500);
}

// The other process writes before, during and after the close here.
static void close_beside(int closes) {
    for (int n = 0; n < closes; n++) {
        begin(O_RDWR | O_APPEND);
        append_blocks(n % 3);
        pid_t pid = spawn_theirs(UNTIL_KILLED);
        wait_for_acks(n % 2 == 0 ? 0 : 1 + (n * 7) % 40);
        must("close", close(fd), 0);
        // The other process continues, whether or not it has opened the file yet.
        wait_for_acks(acknowledged() + 20);
        kill(pid, SIGKILL);
        must("waitpid", waitpid(pid, NULL, 0), pid);
        check();
    }
}

// The other process has the file open at the open here.
static void beside(void) {
    unlink(acks);
    close(creat(path, 0644));
    pid_t pid = spawn_theirs(UNTIL_KILLED);
    wait_for_acks(1);
    fd = open(path, O_RDWR | O_DIRECT | O_CLOEXEC);
    for (int n = 0; n < 64; n++)
        must("pwrite", pwrite(fd, memory, BLOCK, n * BLOCK), BLOCK);
    wait_for_acks(acknowledged() + 20);
    must("ftruncate", ftruncate(fd, 1024 * AT), 0);
    wait_for_acks(acknowledged() + 20);
    must("close", close(fd), 0);
    wait_for_acks(acknowledged() + 20);
    kill(pid, SIGKILL);
    must("waitpid", waitpid(pid, NULL, 0), pid);
    check();
}

// For a test that continues it at the end of the other process.
static void stopped(void) {
    begin(O_RDWR);
    tell_lease();
    raise(SIGSTOP);
    must("a write afterwards", pwrite(fd, memory, BLOCK, BLOCK), BLOCK);
    must("ftruncate", ftruncate(fd, 8 * AT), 0);
    if (fclose(fdopen(fd, "r+")) != 0)
        puts("not closed");
    check();
}

static volatile sig_atomic_t signals;

static void count_signal(int signal) {
    (void)signal;
    signals++;
}

// The program must not get the signal of the lease, but all signals that it sends itself.
static void no_signal(void) {
    begin(O_RDWR);
    for (int signal = 1; signal <= SIGRTMAX; signal++)
        if (signal != SIGCHLD && signal != SIGKILL && signal != SIGSTOP && (signal < 32 || signal >= SIGRTMIN)) {
            struct sigaction action = {.sa_handler = count_signal};
            must("sigaction", sigaction(signal, &action, NULL), 0);
        }
    run_theirs(8);
    must("signals", signals, 0);
    for (int i = 0; i < 100; i++)
        must("kill", kill(getpid(), SIGRTMAX - 3), 0);
    while (signals < 100)
        usleep(100);
    must("owner", fcntl(fd, F_GETOWN), 0);
    must("signal", fcntl(fd, F_GETSIG), 0);
    must("close", close(fd), 0);
    check();
}

// The kernel cannot queue the signal of the lease, or removes it from the queue.
static void no_queue(void) {
    struct rlimit none = {0, 0}, before;
    begin(O_RDWR);
    must("getrlimit", getrlimit(RLIMIT_SIGPENDING, &before), 0);
    none.rlim_max = before.rlim_max;
    must("setrlimit", setrlimit(RLIMIT_SIGPENDING, &none), 0);
    run_theirs(8);
    must("setrlimit", setrlimit(RLIMIT_SIGPENDING, &before), 0);
    must("close", close(fd), 0);
    check();
    begin(O_RDWR);
    signal(SIGRTMAX - 3, SIG_IGN);
    run_theirs(8);
    must("close", close(fd), 0);
    check();
}

// The program has no free descriptor number while the other process opens the file.
static void no_numbers(void) {
    struct rlimit limit, few;
    begin(O_RDWR | O_APPEND);
    int last = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    must("getrlimit", getrlimit(RLIMIT_NOFILE, &limit), 0);
    few = limit, few.rlim_cur = (rlim_t)last + 1;
    must("setrlimit", setrlimit(RLIMIT_NOFILE, &few), 0);
    must("no number", dup(fd), -1);
    run_theirs(8);
    must("setrlimit", setrlimit(RLIMIT_NOFILE, &limit), 0);
    must("close", close(last), 0);
    must("close", close(fd), 0);
    check();
}

// Another process has the file open, and holds the lock of dioxide's writers.
static void refused(void) {
    int ready[2];
    char byte;
    must("pipe", pipe(ready), 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct flock lock = {.l_type = F_WRLCK, .l_start = INT64_MAX - 1, .l_len = 1};
        int held = open(path, O_RDWR | O_CREAT, 0644);
        must("lock", fcntl(held, F_OFD_SETLK, &lock), 0);
        must("write", write(ready[1], "", 1), 1);
        pause();
    }
    must("read", read(ready[0], &byte, 1), 1);
    for (int n = 0; n < 600; n++) {
        fd = open(path, O_RDWR | O_DIRECT | O_APPEND | O_CLOEXEC);
        append_blocks(1);
        must("close", close(fd), 0);
    }
    kill(pid, SIGKILL);
    must("waitpid", waitpid(pid, NULL, 0), pid);
}

// The child needs its own keeper.
static void child(void) {
    int status;
    begin(O_RDWR | O_APPEND);
    pid_t pid = fork();
    if (pid == 0) {
        must("close", close(fd), 0);
        append();
        exit(0);
    }
    must("waitpid", waitpid(pid, &status, 0), pid);
    must("child", status, 0);
    must("close", close(fd), 0);
}

// A broken lease lasts until its release, beside any other locks of the machine.
static void among_locks(void) {
    const char *file = path;
    char other[4200];
    snprintf(other, sizeof other, "%s.locks", path);
    path = other;
    pid_t lockers[LOCKERS];
    for (int i = 0; i < LOCKERS; i++)
        lockers[i] = spawn("locks", NULL);
    path = file;
    pid_t pid = spawn_opener();
    for (int n = 0; n < OF_BREAKS; n++) {
        struct stat stat;
        begin(O_RDWR | O_APPEND);
        ask_opener();
        wait_for_opener();
        append_blocks(1);
        must("close", close(fd), 0);
        must("stat", lstat(path, &stat), 0);
        must("length", stat.st_size, 2 * BLOCK);
    }
    kill(pid, SIGKILL);
    for (int i = 0; i < LOCKERS; i++)
        kill(lockers[i], SIGKILL);
    while (wait(NULL) > 0)
        ;
    unlink(other);
}

// The other process opens the file during its take-over.
static void open_during_a_take_over(void) {
    begin(O_RDWR);
    pid_t pid = spawn_opener();
    for (unsigned n = 0; n < 1000; n++) {
        must("close", close(fd), 0);
        ask_opener();
        for (volatile uint64_t spin = scramble(n) % 20000; spin > 0; spin--)
            ;
        fd = open(path, O_RDWR | O_DIRECT | O_CLOEXEC);
        wait_for_opener();
    }
    must("close", close(fd), 0);
    kill(pid, SIGKILL);
    must("waitpid", waitpid(pid, NULL, 0), pid);
}

static volatile sig_atomic_t armed;

static void ask_and_stay(int signal) {
    (void)signal;
    if (armed) {
        armed = 0;
        ask_opener();
        // The keeper acts at any step of this thread's close.
        usleep(3000);
    }
}

// The other process opens the file at any step of a close by the program.
static void close_meanwhile(void) {
    enum { COPIES = 40 };
    pid_t pid = spawn_opener();
    struct sigaction action = {.sa_handler = ask_and_stay, .sa_flags = SA_RESTART};
    must("sigaction", sigaction(SIGALRM, &action, NULL), 0);
    for (unsigned n = 0; n < 200; n++) {
        int copies[COPIES];
        begin(O_RDWR);
        for (int i = 0; i < COPIES; i++)
            copies[i] = fcntl(fd, F_DUPFD_CLOEXEC, 100);
        struct itimerval soon = {.it_value.tv_usec = 30 + (long)(scramble(n) % 300)};
        armed = 1;
        must("setitimer", setitimer(ITIMER_REAL, &soon, NULL), 0);
        for (int i = 0; i < COPIES; i++)
            must("close", close(copies[i]), 0);
        while (armed)
            ;
        wait_for_opener();
        must("close", close(fd), 0);
    }
    kill(pid, SIGKILL);
    must("waitpid", waitpid(pid, NULL, 0), pid);
}

static void open_and_close_armed(int signal) {
    (void)signal;
    if (armed) {
        close(open(path, O_RDONLY));
        armed = 0;
    }
}

// A signal handler opens the file at any step of a dup by its thread.
static void open_in_a_handler(void) {
    struct sigaction action = {.sa_handler = open_and_close_armed, .sa_flags = SA_RESTART};
    must("sigaction", sigaction(SIGALRM, &action, NULL), 0);
    for (unsigned n = 0; n < 400; n++) {
        begin(O_RDWR);
        struct itimerval soon = {.it_value.tv_usec = 30 + (long)(scramble(n) % 300)};
        armed = 1;
        must("setitimer", setitimer(ITIMER_REAL, &soon, NULL), 0);
        while (armed) {
            int copy = fcntl(fd, F_DUPFD_CLOEXEC, 100);
            must("close", close(copy), 0);
        }
        must("close", close(fd), 0);
    }
}

// The name of a mapped file is not UTF-8.
static void strange_name(void) {
    const char *strange = "mapped\xff";
    int mapped = open(strange, O_RDWR | O_CREAT, 0644);
    must("write", write(mapped, memory, BLOCK), BLOCK);
    if (mmap(NULL, BLOCK, PROT_READ, MAP_SHARED, mapped, 0) == MAP_FAILED)
        die("mmap");
    begin(O_RDWR);
    tell_lease();
    run_theirs(8);
    must("close", close(fd), 0);
    check();
}

// Closes all descriptors, also the library's own.
static void close_range_by_number(void) {
    for (int n = 0; n < 3; n++) {
        begin(O_RDWR);
        must("close_range", syscall(SYS_close_range, 3, ~0U, 0), 0);
        begin(O_RDWR);
        run_theirs(8);
        must("close", close(fd), 0);
        check();
    }
}

enum { WRITERS = 4, OF_WRITES = 100 };
static int writes, is_over;

static void *write_on(void *place) {
    char *block = aligned_alloc(BLOCK, BLOCK);
    struct iovec part = {block, BLOCK};
    fill(block, BLOCK, 'A');
    while (!__atomic_load_n(&is_over, __ATOMIC_ACQUIRE)) {
        must("pwritev2", pwritev2(fd, &part, 1, (off_t)(size_t)place * BLOCK, RWF_DSYNC), BLOCK);
        __atomic_fetch_add(&writes, 1, __ATOMIC_RELEASE);
    }
    free(block);
    return NULL;
}

// Durable writes of threads meet, so the library takes the file over, eager or not.
static void beside_writers(void) {
    pthread_t threads[WRITERS];
    begin(O_RDWR);
    append_blocks(WRITERS);
    for (size_t n = 0; n < WRITERS; n++)
        must("thread", pthread_create(&threads[n], NULL, write_on, (void *)n), 0);
    while (__atomic_load_n(&writes, __ATOMIC_ACQUIRE) < OF_WRITES)
        usleep(100);
    run_theirs(8);
    // From here on the kernel performs the writes.
    int before = __atomic_load_n(&writes, __ATOMIC_ACQUIRE);
    while (__atomic_load_n(&writes, __ATOMIC_ACQUIRE) < before + OF_WRITES)
        usleep(100);
    __atomic_store_n(&is_over, 1, __ATOMIC_RELEASE);
    for (int n = 0; n < WRITERS; n++)
        must("join", pthread_join(threads[n], NULL), 0);
    must("close", close(fd), 0);
    check();
}

static void wait_for_test(const char *line) {
    puts(line);
    fflush(stdout);
    getchar();
}

static void stuck(const char *other) {
    const char *file = path;
    path = other;
    begin(O_RDWR | O_APPEND);
    path = file;
    begin(O_RDWR | O_APPEND);
    wait_for_test("ready");
    append_blocks(512);
    must("close", close(fd), 0);
    check();
    // The test thaws the file system of the other file, which the end of the process needs.
    wait_for_test("done");
}

static void plugin(const char *library) {
    char loaded[4200];
    snprintf(loaded, sizeof loaded, "%s.loaded", path);
    setenv("PLUGIN_FILE", loaded, 1);
    void *handle = dlopen(library, RTLD_NOW);
    if (handle == NULL)
        die("%s", dlerror());
    void (*run)(const char *) = (void (*)(const char *))dlsym(handle, "run");
    run(path);
    must("dlclose", dlclose(handle), 0);
    struct stat stat;
    must("stat", lstat(loaded, &stat), 0);
    must("length", stat.st_size, BLOCK);
    must("stat", lstat(path, &stat), 0);
    must("length", stat.st_size, BLOCK);
}

// --- alone ---

static void open_and_close(const char *what, int opened) {
    struct stat stat;
    if (opened < 0)
        die("%s", what);
    must(what, fstat(opened, &stat), 0);
    must(what, stat.st_size, BLOCK);
    must("close", close(opened), 0);
}

// The library does not interpose this call, so it waits in the kernel for the hand-back.
static int open_by_handle(void) {
    struct file_handle *handle = calloc(1, sizeof *handle + MAX_HANDLE_SZ);
    int mount, directory = open(".", O_RDONLY | O_DIRECTORY);
    handle->handle_bytes = MAX_HANDLE_SZ;
    must("name_to_handle_at", name_to_handle_at(AT_FDCWD, path, handle, &mount, 0), 0);
    int opened = open_by_handle_at(directory, handle, O_RDONLY);
    close(directory);
    free(handle);
    return opened;
}

// Without the library's care, each of these would wait for the own lease, or fail.
static void opens_again(void) {
    char link[4200];
    snprintf(link, sizeof link, "%s.link", path);
    unlink(link);
    must("symlink", symlink(path, link), 0);
    for (int way = 0; way < 10; way++) {
        begin(O_RDWR);
        FILE *stream = NULL;
        switch (way) {
        case 0: open_and_close("to read", open(path, O_RDONLY)); break;
        case 1: open_and_close("without waiting", open(path, O_RDWR | O_NONBLOCK)); break;
        case 2: open_and_close("direct", open(path, O_RDWR | O_DIRECT)); break;
        case 3: open_and_close("by a link", open(link, O_RDONLY)); break;
        case 4: open_and_close("beside a directory", openat(AT_FDCWD, path, O_RDONLY)); break;
        case 5: open_and_close("by number", (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY)); break;
        case 6: stream = fopen(path, "r"); break;
        case 7: must("truncate", truncate(path, 2 * BLOCK), 0); break;
        case 8: must("creat", close(creat(path, 0644)), 0); break;
        case 9: open_and_close("by its handle", open_by_handle()); break;
        }
        if (way == 6 && (stream == NULL || fclose(stream) != 0))
            die("fopen");
        must("close", close(fd), 0);
    }
    must("unlink", unlink(link), 0);
}

// O_APPEND, position and owner of the one description are as without the library.
static void flags(void) {
    begin(O_RDWR | O_APPEND);
    must("O_APPEND", fcntl(fd, F_GETFL) & O_APPEND, O_APPEND);
    must("F_SETFL", fcntl(fd, F_SETFL, O_DIRECT), 0);
    must("no O_APPEND", fcntl(fd, F_GETFL) & O_APPEND, 0);
    must("pwrite", pwrite(fd, memory, BLOCK, 0), BLOCK);
    must("F_SETFL", fcntl(fd, F_SETFL, O_DIRECT | O_APPEND), 0);
    must("O_APPEND", fcntl(fd, F_GETFL) & O_APPEND, O_APPEND);
    // As the kernel, which appends at any offset.
    must("pwrite", pwrite(fd, memory, BLOCK, 0), BLOCK);
    must("position", lseek(fd, 0, SEEK_CUR), BLOCK);
    struct stat stat;
    must("stat", fstat(fd, &stat), 0);
    must("length", stat.st_size, 2 * BLOCK);
    must("F_GETOWN", fcntl(fd, F_GETOWN), 0);
    must("O_APPEND, handed back", fcntl(fd, F_GETFL) & O_APPEND, O_APPEND);
    must("pwrite", pwrite(fd, memory, BLOCK, 0), BLOCK);
    must("stat", fstat(fd, &stat), 0);
    must("length", stat.st_size, 3 * BLOCK);
    must("close", close(fd), 0);
}

// A lease needs ownership of the file, or CAP_LEASE.
static void not_the_owner(void) {
    unlink(path);
    close(creat(path, 0666));
    must("chmod", chmod(path, 0666), 0);
    must("seteuid", seteuid(65534), 0);
    fd = open(path, O_RDWR | O_DIRECT | O_APPEND | O_CLOEXEC);
    if (fd < 0)
        die("%s", path);
    append_blocks(16);
    must("close", close(fd), 0);
}

// By libc's own function, to bypass the library, which would hand the file back first.
static void rights_lost(void) {
    begin(O_RDWR | O_APPEND);
    void *libc = dlopen("libc.so.6", RTLD_NOW);
    int (*drop)(uid_t, uid_t, uid_t) = libc == NULL ? NULL : (int (*)(uid_t, uid_t, uid_t))dlsym(libc, "setresuid");
    must("setresuid", drop == NULL ? -1 : drop(65534, 65534, 65534), 0);
    append_blocks(3);
    // It fails if the library cannot truncate the file or remove the marker.
    close(fd);
}

// For a write that begins in the last block the engine reads the block, which O_WRONLY forbids.
static void write_only(void) {
    unlink(path);
    fd = open(path, O_WRONLY | O_CREAT | O_DIRECT | O_APPEND | O_CLOEXEC, 0644);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 5; i++) {
            long written = write(fd, memory, 512);
            // The kernel refuses it if blocks are larger.
            if (written < 0 && errno == EINVAL)
                written = write(fd, memory, BLOCK);
            must("a write of a part of a block", written > 0, 1);
        }
        must("close", close(fd), 0);
        fd = open(path, O_WRONLY | O_DIRECT | O_APPEND | O_CLOEXEC);
    }
    must("close", close(fd), 0);
}

static const struct {
    const char *name;
    void (*run)(void);
} modes[] = {
    {"beside", beside},
    {"truncate", truncate_to_more},
    {"append", append},
    {"crash", crash},
    {"stopped", stopped},
    {"no_signal", no_signal},
    {"no_queue", no_queue},
    {"no_numbers", no_numbers},
    {"refused", refused},
    {"child", child},
    {"not_the_owner", not_the_owner},
    {"opens_again", opens_again},
    {"flags", flags},
    {"write_only", write_only},
    {"rights_lost", rights_lost},
    {"opener", opener},
    {"locks", locks},
    {"among_locks", among_locks},
    {"open_during_a_take_over", open_during_a_take_over},
    {"close_meanwhile", close_meanwhile},
    {"strange_name", strange_name},
    {"open_in_a_handler", open_in_a_handler},
    {"close_range_by_number", close_range_by_number},
    {"beside_writers", beside_writers},
};

int main(int argc, char **argv) {
    if (argc < 3)
        return 2;
    self = argv[0];
    path = argv[2];
    memory = aligned_alloc(BLOCK, BLOCK);
    fill(memory, BLOCK, 'A');
    snprintf(acks, sizeof acks, "%s.acks", path);
    if (strcmp(argv[1], "theirs") == 0) {
        theirs(atol(argv[3]), 0);
        return 0;
    }
    if (strcmp(argv[1], "theirs-late") == 0) {
        theirs(atol(argv[3]), 1);
        return 0;
    }
    if (strcmp(argv[1], "check") == 0) {
        check();
        return 0;
    }
    if (strcmp(argv[1], "stuck") == 0) {
        stuck(argv[3]);
        return 0;
    }
    if (strcmp(argv[1], "plugin") == 0) {
        plugin(argv[3]);
        return 0;
    }
    if (strcmp(argv[1], "close") == 0) {
        close_beside(argc > 3 ? atoi(argv[3]) : OF_CLOSES);
        return 0;
    }
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        if (strcmp(modes[i].name, argv[1]) == 0) {
            modes[i].run();
            return 0;
        }
    fprintf(stderr, "usage: neighbours MODE FILE [N]\n");
    return 2;
}
