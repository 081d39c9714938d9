//! The threads that take files over, hand them back and put them away: when a call of the program
//! asks for it, when another opener waits for the end of a lease, at Ctrl-C and its like, and when
//! the program ends or executes another one.
//!
//! Each such job has a thread of its own, a *keeper*, which ends with the job. It has a large
//! stack, which the thread that calls may not have. A file whose device or file system does not
//! answer delays only its own job. A thread that waits for a keeper holds no lock of this library,
//! so no keeper waits for it.
//!
//! The program may hold a lock of the dynamic loader while it waits: a constructor in `dlopen` may
//! open a file. A new thread needs that lock for its thread-local destructors. So a caller waits
//! only [`PATIENCE`] for its keeper to begin, and then takes the job back. A job that has begun is
//! waited for without a limit.
//!
//! One more thread, the *listener*, hears the signals of leases and the wishes of signal handlers,
//! and starts keepers for them. It does no I/O of a file itself, so that no file delays the break
//! of another one. It uses no descriptor, which the program could close by number. It lives from
//! when the first file is to be taken over.
//!
//! Signals that would end the program get a handler once a file is taken. The handler wakes the
//! listener, whose keeper hands all files back and lets the signal do what it does by default. The
//! program does not see the handler. A second signal does not wait, nor does a signal handler wait
//! longer than [`PATIENCE`]: then files stay grown as after a crash.

use crate::files;
use crate::lease;
use crate::next::{Next, interpose};
use crate::process::{self, Inside};
use libc::{c_int, sighandler_t};
use std::cell::Cell;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Those that end a program in ordinary life, where it has no handler for them. What a program does
/// wrong itself (SIGSEGV, SIGABRT) is a crash: nothing in its memory is to be trusted then.
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

const PATIENCE: Duration = Duration::from_secs(5);
/// For a keeper to begin, while another one is late.
const PATIENCE_AGAIN: Duration = Duration::from_millis(100);
const NAP: Duration = Duration::from_millis(1);
const NAP_MAX: Duration = Duration::from_millis(200);

/// What signal handlers can ask for.
#[derive(Clone, Copy)]
pub enum Wish {
    /// All files go back to the kernel.
    HandBack = 1,
    /// The same, and no file is taken over any more; what was done is told.
    End = 2,
}

/// The first, which stays until the process ends, and the listener.
const THREADS_LEFT: usize = 2;

/// Leases and wishes are looked at so often, should a signal be lost.
const LOOK: Duration = Duration::from_secs(1);

/// A signal of the program's that came here is sent again, and left to the program for so long.
const LEFT_TO_THE_PROGRAM: Duration = Duration::from_millis(10);

/// The listener was started.
static STARTED: AtomicBool = AtomicBool::new(false);
/// The number of its thread. 0 while there is none.
static LISTENER: AtomicI32 = AtomicI32::new(0);
/// How many keepers were not there in time, and have not begun since.
static LATE: AtomicUsize = AtomicUsize::new(0);
/// The handlers stand.
static GUARDING: AtomicBool = AtomicBool::new(false);
/// The program's first thread has ended.
static FIRST_ENDED: AtomicBool = AtomicBool::new(false);
/// What is asked for, in bits, until it is done.
static WISHES: AtomicU32 = AtomicU32::new(0);
/// Which of that a keeper is at work on.
static BEGUN: AtomicU32 = AtomicU32::new(0);
/// The signal that came.
static CAME: AtomicI32 = AtomicI32::new(0);

thread_local! {
    static IS_KEEPER: Cell<bool> = const { Cell::new(false) };
}

/// Whether this is a thread of ours.
pub fn is_keeper() -> bool {
    IS_KEEPER.get()
}

/// Has a keeper do something, and waits for that. The caller holds no lock. A thread of ours does
/// it at once, and so does the caller where there is no keeper to be had in time.
pub fn run<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> R {
    let _inside = Inside::begin();
    // The keeper is the parent's where the process divided without a word.
    if is_keeper() || !process::is_own() {
        return work();
    }
    // While one is late, the lock that it waits for may still be held.
    let patience = if LATE.load(Ordering::Acquire) > 0 { PATIENCE_AGAIN } else { PATIENCE };
    let (ours, theirs) = offer(work);
    let (answer, answered) = mpsc::sync_channel(1);
    let spawned = spawn(move || match take(&theirs) {
        Some(work) => {
            let _inside = Inside::begin();
            let _ = answer.send(work());
        }
        None => {
            LATE.fetch_sub(1, Ordering::Release);
        }
    });
    if spawned.is_ok()
        && let Ok(result) = answered.recv_timeout(patience)
    {
        return result;
    }
    // Before the work is gone: from then on the late keeper takes itself off.
    let late = usize::from(spawned.is_ok());
    LATE.fetch_add(late, Ordering::AcqRel);
    match take(&ours) {
        Some(work) => work(),
        None => {
            LATE.fetch_sub(late, Ordering::AcqRel);
            answered.recv().expect("a keeper that does not answer ends the process")
        }
    }
}

/// Has a keeper do something, and does not wait. The caller does it where there is no keeper to be
/// had.
pub fn run_apart(work: impl FnOnce() + Send + 'static) {
    let (ours, theirs) = offer(work);
    if spawn(move || take(&theirs).into_iter().for_each(|work| work())).is_err() {
        take(&ours).into_iter().for_each(|work| work());
    }
}

/// Work that a keeper takes, or the caller.
type Offer<W> = Arc<Mutex<Option<W>>>;

fn offer<W>(work: W) -> (Offer<W>, Offer<W>) {
    let offer = Arc::new(Mutex::new(Some(work)));
    (offer.clone(), offer)
}

fn take<W>(offer: &Offer<W>) -> Option<W> {
    offer.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Others wait for what a thread of ours has locked and for its answer. So a panic there ends the
/// process, as a crash does, instead of a wait without an end.
struct EndsOnPanic;

impl Drop for EndsOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            std::process::abort();
        }
    }
}

#[inline(never)]
fn spawn(work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let ours = move || {
        let _ends = EndsOnPanic;
        IS_KEEPER.set(true);
        work();
    };
    dioxide::with_signals_blocked(|| {
        thread::Builder::new().name("dioxide-keeper".into()).spawn(ours)
    })
    .map(drop)
}

/// The thread that gets the signals of leases, started if there is none; none if it is not there in
/// time.
pub fn listener() -> Option<c_int> {
    if !STARTED.swap(true, Ordering::SeqCst) && spawn(listen).is_err() {
        STARTED.store(false, Ordering::SeqCst);
        return None;
    }
    let number = || LISTENER.load(Ordering::SeqCst);
    wait_until(|| number() != 0);
    Some(number()).filter(|number| *number != 0)
}

fn only(signal: c_int) -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the whole set.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), signal);
        set.assume_init()
    }
}

/// Stands behind the signals that end the program, from the first file on that is taken.
pub fn guard() {
    if !GUARDING.swap(true, Ordering::SeqCst) {
        for signal in ENDING {
            if handler_of(signal) == libc::SIG_DFL {
                set_handler(signal, came as *const () as sighandler_t);
            }
        }
    }
}

fn listen() {
    LISTENER.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::SeqCst);
    let mut nap = NAP;
    let mut looked = Instant::now();
    let mut is_ending = false;
    loop {
        // While the program's first thread lives, there is nothing to look for.
        let first_ended = FIRST_ENDED.load(Ordering::SeqCst);
        let is_signalled = take_signal(if first_ended { nap } else { LOOK });
        // Another process waits for this, so it comes first.
        if is_signalled || looked.elapsed() >= LOOK {
            files::hand_back_broken();
            looked = Instant::now();
        }
        let signal = CAME.load(Ordering::Acquire);
        if signal != 0 && !is_ending {
            is_ending = true;
            run_apart(move || {
                process::before_end();
                end_by(signal);
            });
        }
        for wish in [Wish::HandBack, Wish::End] {
            let bit = wish as u32;
            let is_asked = WISHES.load(Ordering::Acquire) & bit != 0;
            if is_asked && BEGUN.fetch_or(bit, Ordering::AcqRel) & bit == 0 {
                run_apart(move || {
                    process::grant(wish);
                    WISHES.fetch_and(!bit, Ordering::Release);
                    BEGUN.fetch_and(!bit, Ordering::Release);
                    // It may have been asked for again between the two.
                    wake();
                });
            }
        }
        if first_ended {
            end_if_alone();
            nap = (nap * 2).min(NAP_MAX);
        }
    }
}

/// Waits for a signal, and takes it. Returns whether a lease may have sent it. One that the program
/// sent was meant for the program, where all threads block it just now: it is sent again.
fn take_signal(timeout: Duration) -> bool {
    const POLL_MSG: c_int = 3;
    const KERNEL_SET_BYTES: usize = 8;
    let timeout = libc::timespec {
        tv_sec: timeout.as_secs() as libc::time_t,
        tv_nsec: timeout.subsec_nanos().into(),
    };
    let mut info = MaybeUninit::<libc::siginfo_t>::uninit();
    // SAFETY: what is filled is read only then; the signal is sent to this very process.
    unsafe {
        let set = only(lease::signal());
        // By number: libc's own function reports SI_TKILL as SI_USER.
        let signal = libc::syscall(
            libc::SYS_rt_sigtimedwait,
            &raw const set,
            info.as_mut_ptr(),
            &raw const timeout,
            KERNEL_SET_BYTES,
        );
        let signal = signal as c_int;
        if signal <= 0 {
            return false;
        }
        match info.assume_init_ref().si_code {
            POLL_MSG => return true,
            // To this thread alone: by `wake`.
            libc::SI_TKILL => return false,
            _ => {}
        }
        let sent = libc::syscall(libc::SYS_rt_sigqueueinfo, libc::getpid(), signal, info.as_ptr());
        // Only the first thread may send one again that came from `kill`.
        if sent != 0 {
            libc::kill(libc::getpid(), signal);
        }
        thread::sleep(LEFT_TO_THE_PROGRAM);
    }
    false
}

/// The process ends with the last of the program's threads, or would: this one is not the
/// program's.
fn end_if_alone() {
    if fs::read_dir("/proc/self/task").is_ok_and(|tasks| tasks.count() <= THREADS_LEFT) {
        // SAFETY: as libc does when the last thread ends.
        unsafe { libc::exit(0) };
    }
}

/// Has the listener look at what is asked for. Returns whether it will. A wake needs no descriptor,
/// which the program may close. The queue of signals may be full: the listener looks once in
/// [`LOOK`] nevertheless.
fn wake() -> bool {
    let listener = LISTENER.load(Ordering::SeqCst);
    if listener != 0 {
        // SAFETY: the thread is of this process, and never ends; it takes the signal from its
        // queue.
        unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), listener, lease::signal()) };
    }
    listener != 0
}

/// Has it done by a keeper, and waits for that. Returns whether there is a listener to ask. Only
/// what may be called in a signal handler.
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
    // What the engine does in this thread must come to its end. The program must not go on behind
    // `raise`.
    if !process::is_inside() {
        let_through(signal);
        wait_until(|| false);
        end_by(signal);
    }
}

/// In the handler of a signal: the same one may come again, and end the process.
fn let_through(signal: c_int) {
    // SAFETY: the set outlives the call.
    unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &only(signal), ptr::null_mut()) };
}

/// libc's own.
fn behind_sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) {
    type Sigaction =
        unsafe extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;
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

/// In the child of a fork, which has no such thread.
pub fn forget() {
    STARTED.store(false, Ordering::Relaxed);
    LISTENER.store(0, Ordering::Relaxed);
    LATE.store(0, Ordering::Relaxed);
    BEGUN.store(0, Ordering::Relaxed);
    CAME.store(0, Ordering::Relaxed);
    WISHES.store(0, Ordering::Relaxed);
    FIRST_ENDED.store(false, Ordering::Relaxed);
    if GUARDING.swap(false, Ordering::Relaxed) {
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
    ENDING.contains(&signal) && GUARDING.load(Ordering::Acquire)
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
