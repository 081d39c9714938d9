//! The threads that take files over, hand them back and close them in the engine. Their jobs come
//! from calls of the program, from broken leases, from signals such as Ctrl-C, from exec and from
//! the end of the process.
//!
//! Each job has its own thread, a *keeper*, which ends with the job. It has a large stack, which
//! the calling thread may not have. A file whose device or file system does not answer delays only
//! its own job. A thread that waits for a keeper holds no lock of this library, so no keeper waits
//! for it.
//!
//! The program may hold a lock of the dynamic loader while it waits: a constructor in `dlopen` may
//! open a file. A new thread needs that lock for its thread-local destructors. So a caller waits
//! only [`PATIENCE`] for its keeper to begin, and then takes the job back. Its wait for a job that
//! has begun has no limit.
//!
//! One more thread, the *listener*, receives the signals of leases and the wishes of signal
//! handlers, and starts keepers for them. It does no file I/O, so no file delays the break of
//! another one. It uses no descriptor, which the program could close by number. It starts before
//! the first take-over.
//!
//! Once a file is taken, signals that would end the program get a handler. The handler wakes the
//! listener, whose keeper hands all files back and then performs the default action. The program
//! does not see the handler. A second signal does not wait, and a signal handler waits at most
//! [`PATIENCE`]. Then files stay grown, as after a crash.

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

/// Signals that end a program by default without a crash. After a fault of the program itself
/// (SIGSEGV, SIGABRT) the library trusts nothing in its memory.
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

/// The limit of a wait for a keeper to begin, and of each wait in a signal handler.
const PATIENCE: Duration = Duration::from_secs(5);
/// The limit of a wait for a keeper to begin, while another one is late.
const PATIENCE_AGAIN: Duration = Duration::from_millis(100);
const NAP: Duration = Duration::from_millis(1);
const NAP_MAX: Duration = Duration::from_millis(200);

/// A request of a signal handler.
#[derive(Clone, Copy)]
pub enum Wish {
    /// Hand all files back.
    HandBack = 1,
    /// The same at the end of the process, with the summary. No file is taken over any more.
    End = 2,
}

/// The first thread, which stays until the process ends, and the listener.
const THREADS_LEFT: usize = 2;

/// Period of the look at leases and wishes, in case a signal is lost.
const LOOK: Duration = Duration::from_secs(1);

/// The listener sends a signal of the program again, and then does not take signals for so long.
const LEFT_TO_THE_PROGRAM: Duration = Duration::from_millis(10);

/// The listener has started, or is about to.
static STARTED: AtomicBool = AtomicBool::new(false);
/// The listener's thread number, or 0.
static LISTENER: AtomicI32 = AtomicI32::new(0);
/// The number of keepers that did not begin in time, and have not begun since.
static LATE: AtomicUsize = AtomicUsize::new(0);
/// The library has installed its handlers.
static GUARDING: AtomicBool = AtomicBool::new(false);
/// The program's first thread has ended.
static FIRST_ENDED: AtomicBool = AtomicBool::new(false);
/// The pending wishes, as bits.
static WISHES: AtomicU32 = AtomicU32::new(0);
/// The wishes that a keeper performs, as bits.
static BEGUN: AtomicU32 = AtomicU32::new(0);
/// The first signal that the handler received.
static CAME: AtomicI32 = AtomicI32::new(0);

thread_local! {
    static IS_KEEPER: Cell<bool> = const { Cell::new(false) };
}

/// Whether this is a keeper or the listener.
pub fn is_keeper() -> bool {
    IS_KEEPER.get()
}

/// Runs `work` in a keeper, and waits for it. The caller holds no lock. A keeper or the listener
/// runs it itself. So does a caller whose keeper does not begin in time.
pub fn run<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> R {
    let _inside = Inside::begin();
    // In a child of a fork unseen by the library, the keepers are the parent's.
    if is_keeper() || !process::is_own() {
        return work();
    }
    // The lock that a late keeper waits for may still be locked.
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
    // Before `take`: from then on the late keeper decrements the count.
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

/// Runs `work` in a keeper, and does not wait. The caller runs it if no thread can start.
pub fn run_apart(work: impl FnOnce() + Send + 'static) {
    let (ours, theirs) = offer(work);
    if spawn(move || take(&theirs).into_iter().for_each(|work| work())).is_err() {
        take(&ours).into_iter().for_each(|work| work());
    }
}

/// Work that either a keeper or the caller takes.
type Offer<W> = Arc<Mutex<Option<W>>>;

fn offer<W>(work: W) -> (Offer<W>, Offer<W>) {
    let offer = Arc::new(Mutex::new(Some(work)));
    (offer.clone(), offer)
}

fn take<W>(offer: &Offer<W>) -> Option<W> {
    offer.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Ends the process at a panic of a keeper, as a crash does. Other threads would wait for ever for
/// its locks and its result.
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

/// Returns the listener's thread number, and starts the listener if needed. None if it does not
/// begin in time.
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
    // SAFETY: sigemptyset initializes the whole set.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), signal);
        set.assume_init()
    }
}

/// Installs the handler for the signals that end the program, unless it is installed.
pub fn guard() {
    if !GUARDING.swap(true, Ordering::SeqCst) {
        for signal in ENDING {
            if handler_of(signal) != libc::SIG_DFL {
                continue;
            }
            let replaced = set_handler(signal, came as *const () as sighandler_t);
            // The program has set a handler since the look.
            if replaced.sa_sigaction != libc::SIG_DFL {
                behind_sigaction(signal, &replaced, ptr::null_mut());
            }
        }
    }
}

fn listen() {
    LISTENER.store(process::own_thread(), Ordering::SeqCst);
    let mut nap = NAP;
    let mut looked = Instant::now();
    let mut is_ending = false;
    loop {
        // Until the first thread ends, the process cannot end with its last thread.
        let first_ended = FIRST_ENDED.load(Ordering::SeqCst);
        let is_signalled = take_signal(if first_ended { nap } else { LOOK });
        // First, because another process waits.
        if is_signalled || looked.elapsed() >= LOOK {
            files::hand_back_broken();
            looked = Instant::now();
            if !first_ended && first_has_ended() {
                FIRST_ENDED.store(true, Ordering::SeqCst);
            }
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
                    // A handler may have repeated the wish between the two.
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

/// Waits for a signal, and takes it. Returns whether a lease may have sent it. A signal that the
/// program sent comes here while all its threads block it. The listener sends it again.
fn take_signal(timeout: Duration) -> bool {
    const POLL_MSG: c_int = 3;
    const KERNEL_SET_BYTES: usize = 8;
    let timeout = libc::timespec {
        tv_sec: timeout.as_secs() as libc::time_t,
        tv_nsec: timeout.subsec_nanos().into(),
    };
    let mut info = MaybeUninit::<libc::siginfo_t>::uninit();
    // SAFETY: the call fills `info` if it returns a signal, and only then is `info` read. The
    // signals go to this process.
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
            // By `wake`, to this thread alone.
            libc::SI_TKILL => return false,
            _ => {}
        }
        let sent = libc::syscall(libc::SYS_rt_sigqueueinfo, libc::getpid(), signal, info.as_ptr());
        // The kernel lets only the first thread repeat the signal of a `kill`.
        if sent != 0 {
            libc::kill(libc::getpid(), signal);
        }
        thread::sleep(LEFT_TO_THE_PROGRAM);
    }
    false
}

/// Ends the process if the program has no thread left, as it would end without the listener. Not
/// while the first thread runs its destructors.
fn end_if_alone() {
    let is_alone =
        || fs::read_dir("/proc/self/task").is_ok_and(|tasks| tasks.count() <= THREADS_LEFT);
    if first_is_over() && is_alone() {
        // SAFETY: libc too calls exit when the last thread ends.
        unsafe { libc::exit(0) };
    }
}

/// Wakes the listener to look at the wishes. Returns whether there is a listener. A signal needs no
/// descriptor, which the program may close. If the queue of signals is full, the listener looks
/// within [`LOOK`].
fn wake() -> bool {
    let listener = LISTENER.load(Ordering::SeqCst);
    if listener != 0 {
        // SAFETY: the listener is a thread of this process, never ends, and blocks the signal.
        unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), listener, lease::signal()) };
    }
    listener != 0
}

/// Has a keeper perform the wish, and waits for it. Returns whether there is a listener.
/// Async-signal-safe.
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
        process::pause(NAP);
    }
}

/// Whether the first thread has ended unseen, such as by `pthread_cancel`. It then has no list of
/// robust mutexes, and only then this looks at its state, which needs a low descriptor number.
fn first_has_ended() -> bool {
    let first = rustix::process::getpid().as_raw_nonzero().get();
    let (mut list, mut len) = (ptr::null_mut::<libc::c_void>(), 0_usize);
    // SAFETY: the call writes the address and the length, which outlive it.
    let asked =
        unsafe { libc::syscall(libc::SYS_get_robust_list, first, &raw mut list, &raw mut len) };
    asked == 0 && list.is_null() && first_is_over()
}

/// Whether the first thread is over, and stays only until the process ends.
fn first_is_over() -> bool {
    let first = rustix::process::getpid().as_raw_nonzero();
    let stat = fs::read_to_string(format!("/proc/self/task/{first}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('Z'))
}

/// Before `pthread_exit`.
pub fn thread_ends() {
    if rustix::thread::gettid() == rustix::process::getpid() {
        FIRST_ENDED.store(true, Ordering::SeqCst);
        wake();
    }
}

/// Ends the process by the default action of the signal.
fn end_by(signal: c_int) {
    set_handler(signal, libc::SIG_DFL);
    // SAFETY: the call only sends a signal to this process.
    unsafe { libc::kill(libc::getpid(), signal) };
}

/// The handler. Async-signal-safe.
extern "C" fn came(signal: c_int) {
    // The child of a vfork has the memory of its parent.
    if !process::is_own() {
        return end_by(signal);
    }
    let is_first = CAME.compare_exchange(0, signal, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    if !(is_first && wake()) {
        return end_by(signal);
    }
    // Inside, the handler returns, because the library's work in this thread must finish. Outside,
    // the program must not continue behind `raise`.
    if !process::is_inside() {
        let_through(signal);
        wait_until(|| false);
        end_by(signal);
    }
}

/// Unblocks the signal in its handler, so that a second one ends the process.
fn let_through(signal: c_int) {
    // SAFETY: the set outlives the call, which accepts null.
    unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &only(signal), ptr::null_mut()) };
}

/// Calls the function of libc.
fn behind_sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) {
    type Sigaction =
        unsafe extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;
    // SAFETY: this is the type of libc's function.
    static NEXT: Next<Sigaction> = unsafe { Next::new(c"sigaction") };
    if let Some(next) = NEXT.find() {
        // SAFETY: null, or valid actions of the caller.
        unsafe { next(signal, new, old) };
    }
}

fn action_of(signal: c_int) -> libc::sigaction {
    // SAFETY: zeros are a valid action, the default one.
    let mut action = unsafe { MaybeUninit::zeroed().assume_init() };
    behind_sigaction(signal, ptr::null(), &mut action);
    action
}

fn handler_of(signal: c_int) -> sighandler_t {
    action_of(signal).sa_sigaction
}

/// Returns the replaced action.
fn set_handler(signal: c_int, handler: sighandler_t) -> libc::sigaction {
    let mut action = action_of(signal);
    action.sa_sigaction = handler;
    action.sa_flags = libc::SA_RESTART;
    let mut replaced = action;
    behind_sigaction(signal, &action, &mut replaced);
    replaced
}

/// In the child of a fork, which has no keeper and no listener.
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

/// Whether the library's handler stands in for the default action of this signal.
fn is_kept(signal: c_int) -> bool {
    ENDING.contains(&signal) && GUARDING.load(Ordering::Acquire) && process::is_own()
}

/// The handler that the program sees.
fn shown(handler: sighandler_t) -> sighandler_t {
    if is_ours(handler) { libc::SIG_DFL } else { handler }
}

/// The handler to install for the one that the program sets.
fn installed(handler: sighandler_t) -> sighandler_t {
    if handler == libc::SIG_DFL { came as *const () as sighandler_t } else { handler }
}

interpose! {
    |next| fn [sigaction, __sigaction](
        signal: c_int,
        new: *const libc::sigaction,
        old: *mut libc::sigaction,
    ) -> c_int {
        if !is_kept(signal) {
            return next(signal, new, old);
        }
        // SAFETY: by the contract of `sigaction`, null or a valid action.
        let kept = unsafe { new.as_ref() }.map(|new| {
            let is_default = new.sa_sigaction == libc::SIG_DFL;
            let flags = if is_default { libc::SA_RESTART } else { new.sa_flags };
            libc::sigaction { sa_sigaction: installed(new.sa_sigaction), sa_flags: flags, ..*new }
        });
        let result = next(signal, kept.as_ref().map_or(ptr::null(), ptr::from_ref), old);
        // SAFETY: null, or the call has filled it.
        if let (0, Some(old)) = (result, unsafe { old.as_mut() }) {
            old.sa_sigaction = shown(old.sa_sigaction);
        }
        result
    }
    |next| fn [signal, bsd_signal, sysv_signal, __sysv_signal, sigset](
        signal: c_int,
        handler: sighandler_t,
    ) -> sighandler_t {
        match is_kept(signal) {
            true => shown(next(signal, installed(handler))),
            false => next(signal, handler),
        }
    }
}
