// Shared by the C programs: reproducible random numbers, bytes computed from a key, a checksum, and
// an exit at an error that no test expects.
#pragma once

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BLOCK 4096

__attribute__((format(printf, 1, 2), noreturn)) static inline void die(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, ": %s\n", strerror(errno));
    exit(2);
}

static inline uint64_t scramble(uint64_t n) {
    n += 0x9E3779B97F4A7C15;
    n = (n ^ (n >> 30)) * 0xBF58476D1CE4E5B9;
    n = (n ^ (n >> 27)) * 0x94D049BB133111EB;
    return n ^ (n >> 31);
}

// Fills memory with bytes computed from `key` and their position.
static inline void fill(void *memory, size_t len, uint64_t key) {
    unsigned char *bytes = memory;
    uint64_t word = 0;
    for (size_t i = 0; i < len; i++) {
        if (i % 8 == 0)
            word = scramble(key * 1000003 + i / 8);
        bytes[i] = (unsigned char)(word >> (i % 8 * 8));
    }
}

// Whether memory has the bytes of `fill`.
static inline int is_filled(const void *memory, size_t len, uint64_t key) {
    const unsigned char *bytes = memory;
    uint64_t word = 0;
    for (size_t i = 0; i < len; i++) {
        if (i % 8 == 0)
            word = scramble(key * 1000003 + i / 8);
        if (bytes[i] != (unsigned char)(word >> (i % 8 * 8)))
            return 0;
    }
    return 1;
}

static inline uint32_t checksum(const void *memory, size_t len) {
    const unsigned char *bytes = memory;
    uint32_t sum = 2166136261u;
    for (size_t i = 0; i < len; i++)
        sum = (sum ^ bytes[i]) * 16777619u;
    return sum;
}

static inline double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

// Runs `work` in threads with their numbers as argument. Returns the sum of their results.
static inline long sum_of_threads(unsigned threads, void *(*work)(void *)) {
    pthread_t *handles = calloc(threads, sizeof *handles);
    long sum = 0;
    for (unsigned i = 0; i < threads; i++)
        if (pthread_create(&handles[i], NULL, work, (void *)(size_t)i) != 0)
            die("pthread_create");
    for (unsigned i = 0; i < threads; i++) {
        void *returned;
        pthread_join(handles[i], &returned);
        sum += (long)returned;
    }
    free(handles);
    return sum;
}
