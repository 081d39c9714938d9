/* Tells ThreadSanitizer what the locks of Rust's standard library order.
 *
 * The library of a stable toolchain is compiled without instrumentation. What is generic or inlined is compiled with
 * us, and seen: taking a lock that is free, and giving it back. What is neither is not seen: waiting for a lock, for a
 * condition, for somebody else's initialisation, and the end of a scope's threads. The linker puts these functions
 * in their place (--wrap), each around the library's own.
 *
 * The names are given by scripts/sanitize, because they differ between toolchains. Arguments are passed on as they come
 * in registers. */
#include <stdint.h>

void __tsan_acquire(void *);
void __tsan_release(void *);

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define WRAPPED(name) JOIN(__wrap_, name)
#define ORIGINAL(name) JOIN(__real_, name)

/* Mutex: the other one's unlocking is compiled with us. */
void ORIGINAL(LOCK_CONTENDED)(void *mutex);
void WRAPPED(LOCK_CONTENDED)(void *mutex) {
    ORIGINAL(LOCK_CONTENDED)(mutex);
    __tsan_acquire(mutex);
}

/* Condvar: unlocks and locks inside. */
void ORIGINAL(CONDVAR_WAIT)(void *condvar, void *mutex);
void WRAPPED(CONDVAR_WAIT)(void *condvar, void *mutex) {
    __tsan_release(mutex);
    ORIGINAL(CONDVAR_WAIT)(condvar, mutex);
    __tsan_acquire(mutex);
}

/* Once: whoever was not the first goes on with what the first one made. */
void ORIGINAL(ONCE_CALL)(void *once, uintptr_t, uintptr_t, uintptr_t, uintptr_t);
void WRAPPED(ONCE_CALL)(void *once, uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d) {
    ORIGINAL(ONCE_CALL)(once, a, b, c, d);
    __tsan_acquire(once);
    __tsan_release(once);
}

/* A scope's threads: the scope goes on when it reads, in one of these words, that the last has counted itself out. */
void ORIGINAL(SCOPE_COUNT_OUT)(uintptr_t *scope, uintptr_t panicked);
void WRAPPED(SCOPE_COUNT_OUT)(uintptr_t *scope, uintptr_t panicked) {
    for (int word = 0; word < 3; word++)
        __tsan_release(scope + word);
    ORIGINAL(SCOPE_COUNT_OUT)(scope, panicked);
}
