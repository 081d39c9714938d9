//! The process: the begin of this library, forks, exec and exit, and the state of each thread.

use std::cell::{Cell, UnsafeCell};
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;
use std::time::Duration;

use crate::files::{self, ForkLocks, Still};
use crate::keeper::{self, Wish};
use crate::say;
use crate::settings::Settings;
use crate::summary;
use dioxide::text::shown;

/// The process that owns this memory. The child of a vfork runs in it too, with its own
/// descriptors.
static OWNER: AtomicI32 = AtomicI32::new(0);

thread_local! {
    /// This library runs in this thread.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
    /// The thread made a child that shares its memory, and may now be the child.
    static MAY_BE_A_CHILD: Cell<bool> = const { Cell::new(false) };
    /// Forks that signal handlers began inside. They hold no locks.
    static FORKS_INSIDE: Cell<u32> = const { Cell::new(0) };
}

fn own_number() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

/// Returns the number of this thread.
pub fn own_thread() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// Whether this is the child of a vfork. The library ignores what it does to its descriptors.
#[inline]
pub fn is_elsewhere() -> bool {
    MAY_BE_A_CHILD.get() && is_child()
}

#[cold]
fn is_child() -> bool {
    let is_child = !is_own();
    MAY_BE_A_CHILD.set(is_child);
    is_child
}

/// Whether this process owns the memory.
pub fn is_own() -> bool {
    own_number() == OWNER.load(Ordering::Relaxed)
}

/// Whether this library runs in this thread.
pub fn is_inside() -> bool {
    INSIDE.get()
}

/// A guard that marks the thread as inside this library. Its calls go straight to libc, and a
/// signal handler that ends the process does not wait for a keeper.
pub struct Inside {
    before: bool,
}

impl Inside {
    pub fn begin() -> Self {
        Self { before: INSIDE.replace(true) }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.set(self.before);
    }
}

unsafe extern "C-unwind" {
    fn pthread_testcancel();
    fn pthread_setcancelstate(state: libc::c_int, before: *mut libc::c_int) -> libc::c_int;
}

const PTHREAD_CANCEL_DISABLE: libc::c_int = 1;

/// Runs `work`, which calls libc with locks held, with cancellation disabled.
pub fn uncancelled<R>(work: impl FnOnce() -> R) -> R {
    let mut before = 0;
    // SAFETY: the call changes only this thread, and `before` outlives it.
    unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &mut before) };
    let result = work();
    // SAFETY: as above. This restores the state.
    unsafe { pthread_setcancelstate(before, &mut 0) };
    result
}

/// Sleeps. The call of the program may be no cancellation point, and libc's sleep is one.
pub fn pause(time: Duration) {
    uncancelled(|| thread::sleep(time));
}

/// A cancellation point, as libc's function has one.
pub fn cancel_here() {
    // SAFETY: this thread holds no lock here, and the program called a cancellation point.
    unsafe { pthread_testcancel() };
}

/// The locks that the forking thread holds during a fork.
struct HeldLocks(UnsafeCell<Option<ForkLocks>>);

// SAFETY: only the thread with the locks of `ForkLocks` accesses it. `before_fork` has them when it
// writes, and the drop of the taken value unlocks them. A fork of a signal handler inside has no
// locks: it is counted, and takes no value. Forks of one thread end in the order of their nesting.
unsafe impl Sync for HeldLocks {}

static HELD: HeldLocks = HeldLocks(UnsafeCell::new(None));

extern "C" fn before_fork() {
    // In a signal handler: the interrupted code of this thread may hold the locks.
    if is_inside() {
        return FORKS_INSIDE.set(FORKS_INSIDE.get() + 1);
    }
    let locks = files::before_fork();
    // SAFETY: this thread has the locks, as `HeldLocks` requires.
    unsafe { *HELD.0.get() = Some(locks) };
}

fn take_held() -> Option<ForkLocks> {
    if FORKS_INSIDE.get() > 0 {
        FORKS_INSIDE.set(FORKS_INSIDE.get() - 1);
        return None;
    }
    // SAFETY: this thread has the locks, as `HeldLocks` requires.
    unsafe { (*HELD.0.get()).take() }
}

extern "C" fn in_parent() {
    drop(take_held());
}

extern "C" fn in_child() {
    OWNER.store(own_number(), Ordering::Relaxed);
    MAY_BE_A_CHILD.set(false);
    keeper::forget();
    let locks = take_held();
    let takes_files = locks.is_some();
    files::in_child(locks, takes_files);
}

/// Before a call that forks without the handlers of `pthread_atfork`. The guard prevents a
/// take-over by another thread, which the child would inherit.
pub fn before_raw_fork() -> Option<Still> {
    hand_all_back_and_hold("the process divides")
}

/// Forks by such a call, with the locks of a fork held. So in the child no lock of this library
/// stays locked, and no call waits for a keeper of the parent. The child takes no files over,
/// because locks of other libraries may stay locked there.
pub fn raw_fork(fork: impl FnOnce() -> i32) -> i32 {
    // Also if no file is known: another thread may open the first one.
    let locks = (!is_inside() && is_own()).then(files::before_fork);
    let child = fork();
    if child == 0 {
        OWNER.store(own_number(), Ordering::Relaxed);
        MAY_BE_A_CHILD.set(false);
        keeper::forget();
        files::in_child(locks, false);
    }
    child
}

/// Calls `hand_back` if a file is known. No take-over begins until the drop of the guard, also of a
/// file that another thread opens meanwhile. Does nothing in the child of a vfork.
pub fn hand_back_and_hold(hand_back: impl FnOnce()) -> Option<Still> {
    if !is_own() {
        return None;
    }
    let still = Still::begin();
    if files::any_known() {
        hand_back();
    }
    Some(still)
}

/// Hands back all files. No take-over begins until the drop of the guard.
pub fn hand_all_back_and_hold(why: &str) -> Option<Still> {
    hand_back_and_hold(|| files::hand_back_those(why, |_| true))
}

/// Before the process changes its user, groups or capabilities. Afterwards the kernel may refuse to
/// remove a marker or to end a lease, which needs ownership of the file or CAP_LEASE.
pub fn before_own_rights_change() -> Option<Still> {
    hand_all_back_and_hold("the program changes its rights")
}

/// Before the process gets another root directory. It may have no /proc, which shows whether a
/// lease lasts.
pub fn before_root_changes() -> Option<Still> {
    hand_all_back_and_hold("the program changes its root directory")
}

/// Before unshare. With a second table of descriptors, a number has two meanings in one process.
pub fn before_unshare(kinds: i32) {
    if kinds & libc::CLONE_FILES != 0 && is_own() && !is_inside() {
        files::stop("the program divides its descriptors");
    }
}

/// Before clone makes a child with these flags. The guard is as in [`before_raw_fork`].
pub fn before_clone(kinds: i32) -> Option<Still> {
    const AS_VFORK: i32 = libc::CLONE_VM | libc::CLONE_VFORK;
    if kinds & libc::CLONE_THREAD != 0 {
        return None;
    }
    // Both run at the same time, with one table of slots.
    if kinds & AS_VFORK == libc::CLONE_VM {
        before_unshare(libc::CLONE_FILES);
    }
    let still = before_raw_fork();
    // Last: this thread is no child yet, and each look at that would clear it.
    if kinds & AS_VFORK == AS_VFORK {
        MAY_BE_A_CHILD.set(true);
    }
    still
}

/// Before vfork. The child has the memory of its parent, and descriptors of its own.
pub fn before_vfork() {
    hand_all_back("the process forked");
    MAY_BE_A_CHILD.set(true);
}

fn hand_all_back(why: &str) {
    if files::any_known() && is_own() {
        files::hand_back_those(why, |_| true);
    }
}

/// Before exec. No take-over begins until it has failed: by [`after_failed_exec`] if it `returns`
/// to the library, or when the thread shows that.
pub fn before_exec(returns: bool) {
    if is_own() {
        files::exec_begins(returns);
    }
    by_the_keeper(Wish::HandBack);
}

/// After an exec that failed.
pub fn after_failed_exec() {
    if is_own() {
        files::exec_failed();
    }
}

/// Before `_exit`.
pub fn before_raw_end() {
    match files::any_taken_even_inside() {
        true => by_the_keeper(Wish::End),
        false if is_own() && !is_inside() => tell(),
        false => {}
    }
}

/// Asks a keeper, because a signal handler may make these calls. The interrupted code may have
/// locked the allocator, or may be in the engine. A file that it holds there stays grown, and the
/// next open recovers it.
fn by_the_keeper(wish: Wish) {
    if files::any_taken_even_inside() && is_own() && !keeper::ask(wish) && !is_inside() {
        grant(wish);
    }
}

/// Performs the wish.
pub fn grant(wish: Wish) {
    match wish {
        Wish::HandBack => files::hand_back_those("the process executes another program", |_| true),
        Wish::End => before_end(),
    }
}

/// Before the process ends.
pub fn before_end() {
    if !is_inside() && is_own() {
        files::stop("the process ended");
        tell();
    }
}

/// Prints the summary. Without such a setting it locks and allocates nothing, because a signal
/// handler may end the process.
fn tell() {
    let Some(settings) = files::settings() else { return };
    if settings.stats
        && let Some(text) = summary::text()
    {
        say::say(&text);
    }
    if settings.has_globs()
        && let Some(count) = summary::nothing_matched()
    {
        say::say(&format!(
            "DIOXIDE_MATCH matched none of {count} files opened O_DIRECT for writing"
        ));
    }
}

unsafe extern "C" {
    fn pthread_atfork(
        prepare: extern "C" fn(),
        parent: extern "C" fn(),
        child: extern "C" fn(),
    ) -> libc::c_int;
    fn at_quick_exit(handler: extern "C" fn()) -> libc::c_int;
}

/// The engine needs a page that a fork clears (MADV_WIPEONFORK).
const LINUX_MIN: (u32, u32) = (4, 14);

fn is_too_old(release: &str) -> bool {
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse().ok());
    (numbers.next().unwrap_or(u32::MAX), numbers.next().unwrap_or(0)) < LINUX_MIN
}

extern "C" fn begin() {
    OWNER.store(own_number(), Ordering::Relaxed);
    say::remember();
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    if is_too_old(&release) {
        let (major, minor) = LINUX_MIN;
        return say::say(&format!(
            "Linux {release} is too old ({major}.{minor} is needed); this program runs without \
             dioxide"
        ));
    }
    let settings = match Settings::from_environment() {
        Ok(settings) => settings,
        // `shown`, because it quotes the environment.
        Err(why) => {
            return say::say(&format!("{}; this program runs without dioxide", shown(&why)));
        }
    };
    // SAFETY: the handlers are functions of this library, which no program unloads.
    let registered =
        unsafe { pthread_atfork(before_fork, in_parent, in_child) == 0 && at_quick_exit(end) == 0 };
    match registered {
        true => files::begin(settings),
        false => say::say("no memory to begin with; this program runs without dioxide"),
    }
}

extern "C" fn end() {
    before_end();
}

/// Runs when the loader loads the library, before the program's own code.
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

/// Runs in `exit`, after the program's own handlers.
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fork_in_a_handler_leaves_what_the_interrupted_fork_holds() {
        before_fork();
        for _ in 0..2 {
            before_fork();
            in_parent();
            assert!(is_inside(), "what the outer fork holds is gone");
        }
        in_parent();
        assert!(!is_inside(), "it is still held");
    }

    #[test]
    fn kernels_before_4_14_are_too_old() {
        for old in ["4.13.0-generic", "3.10.0-1160.el7", "4.9"] {
            assert!(is_too_old(old), "{old}");
        }
        for fine in ["4.14.0", "5.4", "6.18.1-cloud", "10.0-rc1", "strange"] {
            assert!(!is_too_old(fine), "{fine}");
        }
    }
}
