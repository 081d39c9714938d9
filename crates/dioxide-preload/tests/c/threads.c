// Many threads write one file, beside other events and with different ends of the process.
//
//   threads write FILE ACKS WORD...     writes; `struct plan` has the words
//   threads check FILE ACKS WORD...     checks the file in another process, with the same words
//
// Blocks have numbers. ACKS has the last acknowledged write of each block, and survives every end
// of the first process.
#define _GNU_SOURCE
#include "common.h"
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

struct plan {
    unsigned threads, blocks; // threads=N blocks=N
    int append;               // append: O_APPEND and write, otherwise pwrite at the next block
    int regions;              // regions: every thread rewrites and reads its own 16 blocks
    int dsync;                // dsync: O_DSYNC
    int middle;               // middle: the end comes after half of the blocks
    const char *beside;       // beside=fork|spawn|system|close|look
    const char *end;          // end=return|exit|_exit|quick_exit|pthread_exit|close|exec|term|kill
};

// Shared with the forked processes and the checking process.
struct shared {
    atomic_uint next;
    atomic_uint acknowledged[1 << 20];
};

static struct plan plan = {8, 1000, 0, 0, 0, 0, "", "return"};
static struct shared *shared;
static int fd;
static atomic_uint running;
static atomic_int over;

static const char *value_of(const char *word, const char *name) {
    size_t len = strlen(name);
    return strncmp(word, name, len) == 0 && word[len] == '=' ? word + len + 1 : NULL;
}

static void read_plan(char **words) {
    for (; *words != NULL; words++) {
        const char *value;
        if ((value = value_of(*words, "threads")) != NULL)
            plan.threads = (unsigned)atoi(value);
        else if ((value = value_of(*words, "blocks")) != NULL)
            plan.blocks = (unsigned)atoi(value);
        else if ((value = value_of(*words, "beside")) != NULL)
            plan.beside = value;
        else if ((value = value_of(*words, "end")) != NULL)
            plan.end = value;
        else if (strcmp(*words, "append") == 0)
            plan.append = 1;
        else if (strcmp(*words, "regions") == 0)
            plan.regions = 1;
        else if (strcmp(*words, "dsync") == 0)
            plan.dsync = 1;
        else if (strcmp(*words, "middle") == 0)
            plan.middle = 1;
        else
            die("threads: what is %s", *words);
    }
    if (plan.regions)
        plan.blocks = plan.threads * 16;
}

static void map_shared(const char *path) {
    int acks = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (acks < 0 || ftruncate(acks, sizeof *shared) != 0)
        die("%s", path);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, acks, 0);
    if (shared == MAP_FAILED)
        die("mmap of %s", path);
    close(acks);
}

// The content of the `generation`th write of a block. Its first 8 bytes are the two numbers.
static void make(void *block, unsigned number, unsigned generation) {
    fill(block, BLOCK, (uint64_t)generation << 32 | number);
    memcpy(block, &number, sizeof number);
    memcpy((char *)block + 4, &generation, sizeof generation);
}

static int is_made(const void *block, unsigned number, unsigned generation) {
    static _Thread_local char wanted[BLOCK];
    make(wanted, number, generation);
    return memcmp(block, wanted, BLOCK) == 0;
}

// --- the writing threads ---

static void put(void *memory, unsigned number, unsigned generation) {
    make(memory, number, generation);
    long result =
        plan.append ? write(fd, memory, BLOCK) : pwrite(fd, memory, BLOCK, (long)number * BLOCK);
    if (result != BLOCK)
        die("write of block %u: %ld", number, result);
    atomic_store(&shared->acknowledged[number], generation);
    memset(memory, 0xDE, BLOCK);
}

static void expect(void *memory, unsigned number, unsigned generation) {
    long result = pread(fd, memory, BLOCK, (long)number * BLOCK);
    if (result != BLOCK || !is_made(memory, number, generation))
        die("block %u is not what was written: %ld bytes read", number, result);
}

static void work_on_regions(unsigned index, char *memory) {
    unsigned generations[16] = {0};
    uint64_t random = index;
    for (unsigned i = 0; i < 400; i++) {
        random = scramble(random);
        unsigned which = random % 16, number = index * 16 + which;
        if (random >> 32 & 1)
            put(memory, number, ++generations[which]);
        else if (generations[which] > 0)
            expect(memory, number, generations[which]);
    }
}

static void *work(void *argument) {
    unsigned index = (unsigned)(size_t)argument;
    char *memory = aligned_alloc(BLOCK, BLOCK);
    if (plan.regions) {
        work_on_regions(index, memory);
    } else {
        unsigned number;
        while ((number = atomic_fetch_add(&shared->next, 1)) < plan.blocks) {
            put(memory, number, 1);
            if (!plan.append && number % 16 == 3)
                expect(memory, number, 1);
        }
    }
    free(memory);
    atomic_fetch_sub(&running, 1);
    return NULL;
}

// --- events beside them ---

static void wait_for(pid_t pid, const char *what) {
    int status;
    if (pid <= 0 || waitpid(pid, &status, 0) != pid || status != 0)
        die("%s: status %d", what, status);
}

static void fork_once(void) {
    pid_t pid = fork();
    if (pid == 0) {
        // A child can write beside the parent's threads, and the check includes its write.
        char *memory = aligned_alloc(BLOCK, BLOCK);
        unsigned number = atomic_fetch_add(&shared->next, 1);
        if (!plan.regions && number < plan.blocks)
            put(memory, number, 1);
        _exit(0);
    }
    wait_for(pid, "the forked child");
}

static void spawn_once(void) {
    pid_t pid = -1;
    char *const arguments[] = {"true", NULL};
    if (posix_spawnp(&pid, "true", NULL, NULL, arguments, environ) != 0)
        die("posix_spawnp");
    wait_for(pid, "the spawned child");
}

static void use_another_file(const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s-beside", name);
    int beside = open(path, O_RDWR | O_CREAT | O_TRUNC | O_DIRECT, 0644);
    char *memory = aligned_alloc(BLOCK, 4 * BLOCK);
    make(memory, 7, 7);
    for (int i = 0; i < 4; i++)
        if (beside < 0 || pwrite(beside, memory, BLOCK, (long)i * BLOCK) != BLOCK)
            die("%s", path);
    struct stat stat_;
    if (pread(beside, memory + BLOCK, BLOCK, 3 * BLOCK) != BLOCK || !is_made(memory + BLOCK, 7, 7) || close(beside) != 0)
        die("%s read back", path);
    if (stat(path, &stat_) != 0 || stat_.st_size != 4 * BLOCK)
        die("%s has %ld bytes after its close", path, (long)stat_.st_size);
    free(memory);
}

static void look_at_sizes(void) {
    static long last;
    struct stat stat_;
    long end = lseek(fd, 0, SEEK_END);
    if (fstat(fd, &stat_) != 0 || end < last || stat_.st_size < end || stat_.st_size > (long)plan.blocks * BLOCK)
        die("sizes: %ld, then %ld, then %ld", last, end, (long)stat_.st_size);
    last = end;
}

static void beside(const char *file) {
    if (strcmp(plan.beside, "fork") == 0)
        fork_once();
    else if (strcmp(plan.beside, "spawn") == 0)
        spawn_once();
    else if (strcmp(plan.beside, "system") == 0) {
        if (system("true") != 0)
            die("system");
    } else if (strcmp(plan.beside, "close") == 0)
        use_another_file(file);
    else if (strcmp(plan.beside, "look") == 0)
        look_at_sizes();
}

// The same, repeatedly, in a second thread.
static void *use_other_files(void *file) {
    char name[4096];
    for (unsigned i = 0; !atomic_load(&over); i++) {
        snprintf(name, sizeof name, "%s-%u", (char *)file, i % 3);
        use_another_file(name);
    }
    return NULL;
}

// --- the end ---

static int end(void) {
    if (strcmp(plan.end, "exit") == 0)
        exit(0);
    if (strcmp(plan.end, "_exit") == 0)
        _exit(0);
    if (strcmp(plan.end, "quick_exit") == 0)
        quick_exit(0);
    if (strcmp(plan.end, "pthread_exit") == 0)
        pthread_exit(NULL);
    if (strcmp(plan.end, "close") == 0 && close(fd) != 0)
        die("close");
    if (strcmp(plan.end, "exec") == 0)
        execlp("true", "true", NULL), die("exec");
    if (strcmp(plan.end, "term") == 0)
        raise(SIGTERM);
    if (strcmp(plan.end, "kill") == 0)
        raise(SIGKILL);
    return 0;
}

static int write_all(const char *file) {
    int flags = O_RDWR | O_CREAT | O_DIRECT | (plan.append ? O_APPEND : 0) | (plan.dsync ? O_DSYNC : 0);
    fd = open(file, flags, 0644);
    if (fd < 0)
        die("%s", file);
    pthread_t *threads = calloc(plan.threads, sizeof *threads), another;
    atomic_store(&running, plan.threads);
    for (unsigned i = 0; i < plan.threads; i++)
        if (pthread_create(&threads[i], NULL, work, (void *)(size_t)i) != 0)
            die("pthread_create");
    int others = strcmp(plan.beside, "close") == 0;
    if (others && pthread_create(&another, NULL, use_other_files, (void *)file) != 0)
        die("pthread_create");
    while (atomic_load(&running) > 0) {
        if (plan.middle && atomic_load(&shared->next) >= plan.blocks / 2)
            return end();
        beside(file);
        usleep(500);
    }
    for (unsigned i = 0; i < plan.threads; i++)
        pthread_join(threads[i], NULL);
    atomic_store(&over, 1);
    if (others)
        pthread_join(another, NULL);
    return end();
}

// --- the check ---

static int is_zero(const char *block) {
    return block[0] == 0 && memcmp(block, block + 1, BLOCK - 1) == 0;
}

static int check(const char *file) {
    int in = open(file, O_RDONLY);
    struct stat stat_;
    if (in < 0 || fstat(in, &stat_) != 0)
        die("%s", file);
    long size = stat_.st_size;
    if (size % BLOCK != 0)
        die("%ld bytes are no whole blocks", size);
    char *content = mmap(NULL, size + 1, PROT_READ, MAP_PRIVATE, in, 0);
    unsigned *found = calloc(plan.blocks + 1, sizeof *found), written = 0;
    for (long at = 0; at < size; at += BLOCK) {
        unsigned number, generation;
        memcpy(&number, content + at, sizeof number);
        memcpy(&generation, content + at + 4, sizeof generation);
        if (is_zero(content + at)) {
            if (plan.append || at + BLOCK == size)
                die("zeros at %ld of %ld", at, size);
            continue;
        }
        if (number >= plan.blocks || !is_made(content + at, number, generation))
            die("no block of ours at %ld of %ld: it says %u", at, size, number);
        if (found[number] != 0 || (!plan.append && (long)number * BLOCK != at))
            die("block %u is at %ld of %ld", number, at, size);
        found[number] = generation;
        written++;
    }
    for (unsigned number = 0; number < plan.blocks; number++) {
        unsigned wanted = atomic_load(&shared->acknowledged[number]);
        if (wanted != 0 && found[number] != wanted)
            die("block %u was acknowledged, and is lost (write %u, found %u)", number, wanted, found[number]);
        if (!plan.middle && !plan.regions && wanted == 0)
            die("block %u was never written", number);
    }
    printf("%ld bytes, %u blocks\n", size, written);
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 4)
        die("usage: threads write|check FILE ACKS WORD...");
    read_plan(argv + 4);
    map_shared(argv[3]);
    return strcmp(argv[1], "check") == 0 ? check(argv[2]) : write_all(argv[2]);
}
