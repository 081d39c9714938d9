//! The thread that puts files away when the program cannot: at Ctrl-C and its like, and when it ends or executes another program
//! from anywhere, be it a signal handler.
//!
//! It lives from when the first file is taken over. Signals that would end the program get a handler
//! then, which wakes the thread; that hands all files back and lets the signal do what it does by default. The
//! program does not see the handler. A second signal does not wait, nor does anybody for longer than [`PATIENCE`]: then
//! files stay grown as after a crash.

use crate::next::{Next, interpose};
use crate::process;
use crate::slots;
use libc::{c_int, sighandler_t};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd};
use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

/// Those that end a program in ordinary life, where it has no handler for them. What a program does wrong itself (SIGSEGV, SIGABRT)
/// is a crash: nothing in its memory is to be trusted then.
const ENDING: [c_int; 13] = [
    libc::SIGINT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGPIPE,
    libc::SIGALRM,
    libc::SIGVTALRM,
    libc::SIGPROF,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGIO,
    libc::SIGXCPU,
    libc::SIGXFSZ,
];

/// Those that a thread brings on itself: one that is blocked then ends the process without asking its handler.
const OF_THE_THREAD: [c_int; 7] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS, libc::SIGABRT];

const PATIENCE: Duration = Duration::from_secs(5);
const NAP: Duration = Duration::from_millis(1);
const NAP_MAX: Duration = Duration::from_millis(200);

/// What the thread can be asked for.
#[derive(Clone, Copy)]
pub enum Wish {
    /// All files go back to the kernel.
    HandBack = 1,
    /// The same, and no file is taken over any more; what was done is told.
    End = 2,
}

/// The first, which stays until the process ends, and ours.
const THREADS_LEFT: usize = 2;

/// How the thread is woken.
static WAKE: OnceLock<OwnedFd> = OnceLock::new();
/// The handlers stand, and the thread listens.
static LISTENING: AtomicBool = AtomicBool::new(false);
/// The program's first thread has ended.
static FIRST_ENDED: AtomicBool = AtomicBool::new(false);
/// What is asked for, in bits, until it is done.
static WISHES: AtomicU32 = AtomicU32::new(0);
/// The signal that came.
static CAME: AtomicI32 = AtomicI32::new(0);

/// Begins to listen, if it has not begun.
pub fn listen(descriptor_min: u32) {
    if LISTENING.load(Ordering::Acquire) || WAKE.get().is_none() && !make_wake(descriptor_min) {
        return;
    }
    let spawned = with_signals_blocked(|| thread::Builder::new().name("dioxide-keeper".into()).spawn(keep));
    if spawned.is_ok() {
        LISTENING.store(true, Ordering::SeqCst);
        wake();
        for signal in ENDING {
            if handler_of(signal) == libc::SIG_DFL {
                set_handler(signal, came as *const () as sighandler_t);
            }
        }
    }
}

fn make_wake(descriptor_min: u32) -> bool {
    let Ok(low) = eventfd(0, EventfdFlags::CLOEXEC) else { return false };
    let high = rustix::io::fcntl_dupfd_cloexec(&low, descriptor_min as c_int);
    let made = high.ok().is_some_and(|high| WAKE.set(high).is_ok());
    if let (true, Some(wake)) = (made, WAKE.get()) {
        slots::keep(wake.as_raw_fd());
    }
    made
}

/// What the program's handlers do must not be done in a thread of ours.
pub fn with_signals_blocked<R>(work: impl FnOnce() -> R) -> R {
    let mut all = MaybeUninit::uninit();
    let mut before = MaybeUninit::uninit();
    // SAFETY: both are filled before they are read, and the mask of this thread is given back.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        for signal in OF_THE_THREAD {
            libc::sigdelset(all.as_mut_ptr(), signal);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        let result = work();
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut());
        result
    }
}

fn keep() {
    let Some(wake) = WAKE.get() else { return };
    let mut nap = NAP;
    loop {
        // While the program's first thread lives, there is nothing to look for.
        let first_ended = FIRST_ENDED.load(Ordering::SeqCst);
        let timeout = Timespec { tv_sec: 0, tv_nsec: nap.as_nanos() as i64 };
        let mut events = [PollFd::new(wake, PollFlags::IN)];
        if rustix::event::poll(&mut events, first_ended.then_some(&timeout)).is_ok_and(|count| count > 0) {
            let _ = rustix::io::read(wake, &mut [0_u8; 8]);
        }
        let signal = CAME.load(Ordering::Acquire);
        if signal != 0 {
            process::before_end();
            end_by(signal);
        }
        for wish in [Wish::HandBack, Wish::End] {
            if WISHES.load(Ordering::Acquire) & wish as u32 != 0 {
                process::grant(wish);
                WISHES.fetch_and(!(wish as u32), Ordering::Release);
            }
        }
        if first_ended {
            end_if_alone();
            nap = (nap * 2).min(NAP_MAX);
        }
    }
}

/// The process ends with the last of the program's threads, or would: this one is not the program's.
fn end_if_alone() {
    if fs::read_dir("/proc/self/task").is_ok_and(|tasks| tasks.count() <= THREADS_LEFT) {
        // SAFETY: as libc does when the last thread ends.
        unsafe { libc::exit(0) };
    }
}

fn wake() -> bool {
    let wake = WAKE.get().filter(|_| LISTENING.load(Ordering::SeqCst));
    wake.is_some_and(|wake| rustix::io::write(wake, &1_u64.to_ne_bytes()).is_ok())
}

/// Has it done by the thread, and waits for that. Returns whether there is a thread to ask. Only what may be called in a
/// signal handler.
pub fn ask(wish: Wish) -> bool {
    WISHES.fetch_or(wish as u32, Ordering::AcqRel);
    let is_asked = wake();
    wait_until(|| !is_asked || WISHES.load(Ordering::Acquire) & wish as u32 == 0);
    is_asked
}

fn wait_until(is_so: impl Fn() -> bool) {
    for _ in 0..PATIENCE.as_nanos() / NAP.as_nanos() {
        if is_so() {
            return;
        }
        thread::sleep(NAP);
    }
}

/// The calling thread is about to end, by its own will.
pub fn thread_ends() {
    if rustix::thread::gettid() == rustix::process::getpid() {
        FIRST_ENDED.store(true, Ordering::SeqCst);
        wake();
    }
}

/// Lets a signal do what it does by default: which is the end.
fn end_by(signal: c_int) {
    set_handler(signal, libc::SIG_DFL);
    // SAFETY: it only sends a signal to this process, and one is wanted.
    unsafe { libc::kill(libc::getpid(), signal) };
}

/// Only what may be called in a handler.
extern "C" fn came(signal: c_int) {
    let is_first = CAME.compare_exchange(0, signal, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    if !(is_first && process::is_own() && wake()) {
        return end_by(signal);
    }
    // What the engine does in this thread must come to its end. The program must not go on behind `raise`.
    if !process::is_inside() {
        let_through(signal);
        wait_until(|| false);
        end_by(signal);
    }
}

/// In the handler of a signal: the same one may come again, and end the process.
fn let_through(signal: c_int) {
    let mut set = MaybeUninit::uninit();
    // SAFETY: it is made empty before the signal is put into it.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, set.as_ptr(), ptr::null_mut());
    }
}

/// libc's own.
fn behind_sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) {
    type Sigaction = unsafe extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;
    // SAFETY: that is its type.
    static NEXT: Next<Sigaction> = unsafe { Next::new(c"sigaction") };
    if let Some(next) = NEXT.find() {
        // SAFETY: null, or actions of the caller's.
        unsafe { next(signal, new, old) };
    }
}

fn action_of(signal: c_int) -> libc::sigaction {
    // SAFETY: all zeros is an action, the default one.
    let mut action = unsafe { MaybeUninit::zeroed().assume_init() };
    behind_sigaction(signal, ptr::null(), &mut action);
    action
}

fn handler_of(signal: c_int) -> sighandler_t {
    action_of(signal).sa_sigaction
}

fn set_handler(signal: c_int, handler: sighandler_t) {
    let mut action = action_of(signal);
    action.sa_sigaction = handler;
    action.sa_flags = libc::SA_RESTART;
    behind_sigaction(signal, &action, ptr::null_mut());
}

/// In the child of a fork, where nobody listens.
pub fn forget() {
    if LISTENING.swap(false, Ordering::Relaxed) {
        CAME.store(0, Ordering::Relaxed);
        WISHES.store(0, Ordering::Relaxed);
        FIRST_ENDED.store(false, Ordering::Relaxed);
        for signal in ENDING.into_iter().filter(|signal| is_ours(handler_of(*signal))) {
            set_handler(signal, libc::SIG_DFL);
        }
    }
}

fn is_ours(handler: sighandler_t) -> bool {
    handler == came as *const () as sighandler_t
}

/// Whether the program's wish for this signal is kept behind our handler.
fn is_kept(signal: c_int) -> bool {
    ENDING.contains(&signal) && LISTENING.load(Ordering::Acquire)
}

/// What the program is told to be the handler.
fn told(handler: sighandler_t) -> sighandler_t {
    if is_ours(handler) { libc::SIG_DFL } else { handler }
}

/// What is set for what the program asks for.
fn meant(handler: sighandler_t) -> sighandler_t {
    if handler == libc::SIG_DFL { came as *const () as sighandler_t } else { handler }
}

interpose! {
    |next| fn [sigaction](signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
        if !is_kept(signal) {
            return next(signal, new, old);
        }
        // SAFETY: null, or the program says that it is an action.
        let kept = unsafe { new.as_ref() }.map(|new| {
            let is_default = new.sa_sigaction == libc::SIG_DFL;
            let flags = if is_default { libc::SA_RESTART } else { new.sa_flags };
            libc::sigaction { sa_sigaction: meant(new.sa_sigaction), sa_flags: flags, ..*new }
        });
        let result = next(signal, kept.as_ref().map_or(ptr::null(), ptr::from_ref), old);
        // SAFETY: null, or it was filled.
        if let (0, Some(old)) = (result, unsafe { old.as_mut() }) {
            old.sa_sigaction = told(old.sa_sigaction);
        }
        result
    }
    |next| fn [signal, bsd_signal, sysv_signal, __sysv_signal](signal: c_int, handler: sighandler_t) -> sighandler_t {
        if is_kept(signal) { told(next(signal, meant(handler))) } else { next(signal, handler) }
    }
}
