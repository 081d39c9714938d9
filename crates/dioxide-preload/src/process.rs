//! The process as a whole: where a call comes from, and what happens when it divides or ends.

use std::cell::{Cell, UnsafeCell};
use std::sync::atomic::{AtomicI32, Ordering};

use crate::files::{self, Divided, Still};
use crate::keeper::{self, Wish};
use crate::say;
use crate::settings::Settings;
use crate::summary;
use dioxide::text::shown;

/// The process whose memory this is. The child of a vfork runs in it for a while, with descriptors
/// of its own.
static OWNER: AtomicI32 = AtomicI32::new(0);

thread_local! {
    /// This library is at work in this thread.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
    /// It called vfork, and may now be the child.
    static MAY_BE_A_CHILD: Cell<bool> = const { Cell::new(false) };
    /// Forks that it has begun inside, in signal handlers: they hold nothing.
    static FORKS_INSIDE: Cell<u32> = const { Cell::new(0) };
}

fn own_number() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

/// Whether this is the child of a vfork: what it does to its descriptors concerns nobody here.
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

/// Whether this process is the one that the memory belongs to.
pub fn is_own() -> bool {
    own_number() == OWNER.load(Ordering::Relaxed)
}

/// Whether this library is at work in this thread.
pub fn is_inside() -> bool {
    INSIDE.get()
}

/// While it lives, this thread does what this library wants: what it calls goes straight to libc,
/// and a signal handler that ends the process does not wait for it.
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

/// No cancellation ends the thread in `work`, which calls libc with locks held.
pub fn uncancelled<R>(work: impl FnOnce() -> R) -> R {
    let mut before = 0;
    // SAFETY: it changes this thread only, and gets back what it had.
    unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &mut before) };
    let result = work();
    // SAFETY: as above.
    unsafe { pthread_setcancelstate(before, &mut 0) };
    result
}

/// The calls that this library stands before are cancellation points.
pub fn cancel_here() {
    // SAFETY: nothing is held here, and the caller has called a function that may end the thread.
    unsafe { pthread_testcancel() };
}

/// What is held from before a fork until after it, by the thread that forks.
struct Held(UnsafeCell<Option<Divided>>);

// SAFETY: only the thread that has the locks of `Divided` touches it: `before_fork` has them when
// it writes, and they are given back by what is taken out. A fork that did not get them, in a
// handler inside, is counted and takes nothing: forks of one thread end in the order in which they
// are nested.
unsafe impl Sync for Held {}

static HELD: Held = Held(UnsafeCell::new(None));

extern "C" fn before_fork() {
    // In a signal handler, while this very thread has what is needed.
    if is_inside() {
        return FORKS_INSIDE.set(FORKS_INSIDE.get() + 1);
    }
    let divided = files::before_fork();
    // SAFETY: see `Held`.
    unsafe { *HELD.0.get() = Some(divided) };
}

fn take_held() -> Option<Divided> {
    if FORKS_INSIDE.get() > 0 {
        FORKS_INSIDE.set(FORKS_INSIDE.get() - 1);
        return None;
    }
    // SAFETY: see `Held`.
    unsafe { (*HELD.0.get()).take() }
}

extern "C" fn in_parent() {
    drop(take_held());
}

extern "C" fn in_child() {
    OWNER.store(own_number(), Ordering::Relaxed);
    MAY_BE_A_CHILD.set(false);
    keeper::forget();
    let divided = take_held();
    let takes_files = divided.is_some();
    files::in_child(divided, takes_files);
}

/// Before a call that divides the process without running what is registered for that. The child
/// must have no file that another thread had taken over meanwhile.
pub fn before_raw_fork() -> Option<Still> {
    hand_back_and_hold(|| files::hand_back_those("the process divides", |_| true))
}

/// Divides the process by such a call. In the child nothing is taken over: locks of other libraries
/// may stay held there. But those of this library must not, nor may the child wait for its parent's
/// keeper. So they are held meanwhile, as for a fork.
pub fn raw_fork(divide: impl FnOnce() -> i32) -> i32 {
    let divided = (files::any_known() && is_own()).then(files::before_fork);
    let child = divide();
    if child == 0 {
        OWNER.store(own_number(), Ordering::Relaxed);
        MAY_BE_A_CHILD.set(false);
        keeper::forget();
        files::in_child(divided, false);
    }
    child
}

/// Hands files back by `hand_back`. None is taken over until the answer is dropped. Where no file
/// is known, and in a handler that interrupted the engine, nothing is done.
pub fn hand_back_and_hold(hand_back: impl FnOnce()) -> Option<Still> {
    if !files::any_known() || !is_own() {
        return None;
    }
    let still = Still::begin();
    hand_back();
    Some(still)
}

/// Before the process changes who it is, or what it may do. Afterwards a marker might not come off,
/// nor a lease end: for that the process owns the file or has CAP_LEASE.
pub fn before_own_rights_change() -> Option<Still> {
    hand_back_and_hold(|| files::hand_back_those("the program changes its rights", |_| true))
}

/// Before the process gets another root directory, where there may be no /proc: it tells whether a
/// lease lasts.
pub fn before_root_changes() -> Option<Still> {
    hand_back_and_hold(|| {
        files::hand_back_those("the program changes its root directory", |_| true)
    })
}

/// Before vfork: the child has the descriptors, and the memory, of its parent.
pub fn before_vfork() {
    hand_all_back("the process forked");
    MAY_BE_A_CHILD.set(true);
}

fn hand_all_back(why: &str) {
    if files::any_known() && is_own() {
        files::hand_back_those(why, |_| true);
    }
}

/// Before the program is replaced.
pub fn before_exec() {
    by_the_keeper(Wish::HandBack);
}

/// Before the process ends at once.
pub fn before_raw_end() {
    match files::any_taken_even_inside() {
        true => by_the_keeper(Wish::End),
        false if is_own() && !is_inside() => tell(),
        false => {}
    }
}

/// These calls are made in signal handlers as well, whatever the thread was doing: memory may be
/// locked, and the thread may be in the engine. The file that it holds there stays grown, and the
/// next to open it puts it in order.
fn by_the_keeper(wish: Wish) {
    if files::any_taken_even_inside() && is_own() && !keeper::ask(wish) && !is_inside() {
        grant(wish);
    }
}

/// Does what is wished for.
pub fn grant(wish: Wish) {
    match wish {
        Wish::HandBack => files::hand_back_those("the process executes another program", |_| true),
        Wish::End => before_end(),
    }
}

/// Before the process ends.
pub fn before_end() {
    if !is_inside() && is_own() {
        files::end();
        tell();
    }
}

/// Without a wish to be told anything, nothing is locked or allocated: a signal handler may be what
/// ends the process.
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

/// What the engine cannot do without: a page that a fork clears.
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
        // It quotes the environment.
        Err(why) => {
            return say::say(&format!("{}; this program runs without dioxide", shown(&why)));
        }
    };
    // SAFETY: the handlers are functions of this library, which is never unloaded.
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

/// Run when the library is loaded: before the program's own code.
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

/// Run by `exit`, after what the program has registered.
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
