//! The thread that takes files over, hands them back and puts them away: when a call of the program asks for it, when
//! another opener waits for the end of a lease, at Ctrl-C and its like, and when the program ends or executes another
//! one.
//!
//! It has a large stack of its own, which the thread that calls may not have. And no thread of the program that waits
//! for an open can be in its way: a thread that waits for the keeper holds no lock of this library.
//!
//! It lives from when the first file is to be taken over. Signals that would end the program get a handler once one is
//! taken, which wakes the thread; that hands all files back and lets the signal do what it does by default. The program
//! does not see the handler. A second signal does not wait, nor does a signal handler wait longer than [`PATIENCE`]:
//! then files stay grown as after a crash.

use crate::files;
use crate::lease;
use crate::next::{Next, interpose};
use crate::process::{self, Inside};
use crate::slots;
use libc::{c_int, sighandler_t};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd};
use std::cell::Cell;
use std::collections::VecDeque;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::sync::mpsc;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

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

/// While a file is taken, leases are looked at so often, should a signal be lost.
const LOOK: Duration = Duration::from_secs(1);

/// A signal of the program's that came here is sent again, and left to the program for so long.
const LEFT_TO_THE_PROGRAM: Duration = Duration::from_millis(10);

type Job = Box<dyn FnOnce() + Send>;

/// What the thread is asked to do, in order.
#[derive(Default)]
pub struct Jobs {
    waiting: VecDeque<Job>,
    has_thread: bool,
}

static JOBS: Mutex<Jobs> = Mutex::new(Jobs { waiting: VecDeque::new(), has_thread: false });
/// How the thread is woken, and what shows it signals. -1 while there is none.
static WAKE: AtomicI32 = AtomicI32::new(-1);
static SIGNALS: AtomicI32 = AtomicI32::new(-1);
/// The handlers stand.
static GUARDING: AtomicBool = AtomicBool::new(false);
/// The program's first thread has ended.
static FIRST_ENDED: AtomicBool = AtomicBool::new(false);
/// What is asked for, in bits, until it is done.
static WISHES: AtomicU32 = AtomicU32::new(0);
/// The signal that came.
static CAME: AtomicI32 = AtomicI32::new(0);

thread_local! {
    static IS_KEEPER: Cell<bool> = const { Cell::new(false) };
}

/// The jobs that wait, which stay as they are.
pub fn jobs() -> MutexGuard<'static, Jobs> {
    JOBS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether this is the thread.
pub fn is_keeper() -> bool {
    IS_KEEPER.get()
}

/// Has the thread do something, and waits for that. The caller holds no lock. Where there is no thread to be had, and
/// in the thread itself, it is done at once.
pub fn run<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> R {
    let _inside = Inside::begin();
    // The keeper is the parent's where the process divided without a word.
    if is_keeper() || !process::is_own() {
        return work();
    }
    let (answer, answered) = mpsc::sync_channel(1);
    let mut jobs = jobs();
    if !jobs.has_thread && start().is_err() {
        drop(jobs);
        return work();
    }
    jobs.has_thread = true;
    jobs.waiting.push_back(Box::new(move || {
        let _ = answer.send(work());
    }));
    drop(jobs);
    wake();
    answered.recv().expect("the keeper does every job")
}

#[inline(never)]
fn start() -> io::Result<()> {
    let min = files::high_numbers() as c_int;
    let wake = high(eventfd(0, EventfdFlags::CLOEXEC)?, min)?;
    let signals = high(signal_descriptor()?, min)?;
    with_signals_blocked(|| thread::Builder::new().name("dioxide-keeper".into()).spawn(keep))?;
    for (number, fd) in [(&SIGNALS, signals), (&WAKE, wake)] {
        let fd = fd.into_raw_fd();
        slots::keep(fd);
        number.store(fd, Ordering::SeqCst);
    }
    Ok(())
}

/// The same by a number that the program does not close by accident.
fn high(low: OwnedFd, min: c_int) -> io::Result<OwnedFd> {
    Ok(rustix::io::fcntl_dupfd_cloexec(&low, min)?)
}

fn signal_descriptor() -> io::Result<OwnedFd> {
    // SAFETY: the set is initialised; the number is a new one, and this function's own.
    unsafe {
        match libc::signalfd(-1, &only(lease::signal()), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(std::os::fd::FromRawFd::from_raw_fd(fd)),
        }
    }
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
    IS_KEEPER.set(true);
    // The numbers are there once the first job is.
    drop(jobs());
    let [woken, signals] = [&WAKE, &SIGNALS].map(|number| files::borrowed(number.load(Ordering::SeqCst)));
    let mut nap = NAP;
    let mut looked = Instant::now();
    loop {
        // While the program's first thread lives, there is nothing to look for.
        let first_ended = FIRST_ENDED.load(Ordering::SeqCst);
        let timeout = match () {
            () if first_ended => Some(nap),
            () => files::any_taken().then_some(LOOK),
        };
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: timeout.subsec_nanos().into(),
        });
        let mut events = [PollFd::new(&woken, PollFlags::IN), PollFd::new(&signals, PollFlags::IN)];
        let _ = rustix::event::poll(&mut events, timeout.as_ref());
        let [is_awake, is_signalled] = events.map(|event| !event.revents().is_empty());
        if is_awake {
            let _ = rustix::io::read(woken, &mut [0_u8; 8]);
        }
        if is_signalled {
            take_signal();
        }
        // Another process waits for this, so it comes first.
        if is_signalled || looked.elapsed() >= LOOK {
            files::hand_back_broken();
            looked = Instant::now();
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
        if let Some(job) = next_job() {
            let _inside = Inside::begin();
            job();
            // The next one, after a look at what is more urgent.
            wake();
        }
        if first_ended {
            end_if_alone();
            nap = (nap * 2).min(NAP_MAX);
        }
    }
}

fn next_job() -> Option<Job> {
    jobs().waiting.pop_front()
}

/// Takes one signal from those that are pending. One that no lease sent was meant for the program, where all threads
/// block it just now: it is sent again.
fn take_signal() {
    const POLL_MSG: c_int = 3;
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let mut info = MaybeUninit::<libc::siginfo_t>::uninit();
    // SAFETY: what is filled is read only then; the signal is sent to this very process.
    unsafe {
        let signal = libc::sigtimedwait(&only(lease::signal()), info.as_mut_ptr(), &now);
        if signal > 0 && info.assume_init_ref().si_code != POLL_MSG {
            let sent = libc::syscall(libc::SYS_rt_sigqueueinfo, libc::getpid(), signal, info.as_ptr());
            // Only the first thread may send one again that came from `kill`.
            if sent != 0 {
                libc::kill(libc::getpid(), signal);
            }
            thread::sleep(LEFT_TO_THE_PROGRAM);
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
    let wake = WAKE.load(Ordering::SeqCst);
    wake >= 0 && rustix::io::write(files::borrowed(wake), &1_u64.to_ne_bytes()).is_ok()
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
    // SAFETY: the set outlives the call.
    unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &only(signal), ptr::null_mut()) };
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

/// In the child of a fork, which has no such thread: what it would be woken by is its parent's.
pub fn forget() {
    for number in [&WAKE, &SIGNALS] {
        let fd = number.swap(-1, Ordering::SeqCst);
        if fd >= 0 {
            // SAFETY: it is this library's, and nothing uses it any more.
            unsafe { rustix::io::close(fd) };
        }
    }
    CAME.store(0, Ordering::Relaxed);
    WISHES.store(0, Ordering::Relaxed);
    FIRST_ENDED.store(false, Ordering::Relaxed);
    if GUARDING.swap(false, Ordering::Relaxed) {
        for signal in ENDING.into_iter().filter(|signal| is_ours(handler_of(*signal))) {
            set_handler(signal, libc::SIG_DFL);
        }
    }
}

impl Jobs {
    /// In the child of a fork, whose parent does them.
    pub fn forget(&mut self) {
        std::mem::forget(std::mem::take(self));
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
