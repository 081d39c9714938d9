/* cc -pthread fast-commit.c && ./a.out DIRECTORY: four threads, 500 first writes each. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

static void *work(void *name) {
    void *block;
    int fd = open(name, O_RDWR | O_CREAT | O_DIRECT, 0644);
    posix_memalign(&block, 4096, 4096);
    fallocate(fd, 0, 0, 2048000);
    fsync(fd);
    for (int n = 0; n < 500; n++)
        if (pwrite(fd, block, 4096, n * 4096) != 4096 || fdatasync(fd))
            abort();
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t threads[4];
    char *names[] = {"a", "b", "c", "d"};
    if (argc < 2 || chdir(argv[1]))
        return 2;
    for (int n = 0; n < 4; n++)
        pthread_create(&threads[n], NULL, work, names[n]);
    for (int n = 0; n < 4; n++)
        pthread_join(threads[n], NULL);
}
