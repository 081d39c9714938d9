/* Describes the ordering of the locks of Rust's standard library to ThreadSanitizer.
 *
 * A stable toolchain has an uninstrumented standard library. Its generic and inlined code is
 * compiled with us, and visible: taking a free lock, and releasing it. The rest is invisible: waits
 * for a lock, a condition or another thread's initialisation, and the end of a scope's threads. The
 * linker replaces those functions (--wrap) by these, which call the original.
 *
 * scripts/sanitize sets the names, because they differ between toolchains. Arguments are passed on
 * unchanged in registers. */
#include <stdint.h>

void __tsan_acquire(void *);
void __tsan_release(void *);

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define WRAPPED(name) JOIN(__wrap_, name)
#define ORIGINAL(name) JOIN(__real_, name)

/* Mutex: unlocking by the other thread is compiled with us. */
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

/* Once: later threads use the value that the first one made. */
void ORIGINAL(ONCE_CALL)(void *once, uintptr_t, uintptr_t, uintptr_t, uintptr_t);
void WRAPPED(ONCE_CALL)(void *once, uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d) {
    ORIGINAL(ONCE_CALL)(once, a, b, c, d);
    __tsan_acquire(once);
    __tsan_release(once);
}

/* A scope's threads: the scope continues when one of these words shows that all have ended. */
void ORIGINAL(SCOPE_COUNT_OUT)(uintptr_t *scope, uintptr_t panicked);
void WRAPPED(SCOPE_COUNT_OUT)(uintptr_t *scope, uintptr_t panicked) {
    for (int word = 0; word < 3; word++)
        __tsan_release(scope + word);
    ORIGINAL(SCOPE_COUNT_OUT)(scope, panicked);
}
