//! The public [`Reactor`] and [`LocalReactor`], which drive the operations of [`AsyncFile`]s.

use crate::api::file::File;
use crate::api::future::{AsyncFile, Blocking};
use crate::api::options::OpenOptions;
use crate::api::queue::QueueOptions;
use crate::backend::ring::Bell;
use crate::buffer::Buffer;
use crate::engine::process::Process;
use crate::engine::reactor::{Handle, Worker};
use crate::error::Result;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::is_simulated;
use std::io;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

/// Drives the operations of [`AsyncFile`]s: a [`Queue`](crate::Queue) in its own thread, which
/// sleeps while there is no work. Clones are the same reactor.
///
/// One reactor is enough for most programs: the [shared](Self::shared) one, which
/// [`AsyncFile::from`] uses. Adjacent operations in flight are merged, and durable ones share a
/// flush.
///
/// The reactor wakes tasks on its own thread. A waker may run a task, drop a file or make blocking
/// calls there. Meanwhile no operation of this reactor proceeds, except that a blocking call first
/// finishes the begun ones. So a waker must not wait for a future of the same reactor. It must not
/// wait for a lock of a thread that waits for such a future or closes a file. It must not open a
/// file whose last handle another thread may be closing.
#[derive(Clone, Debug)]
pub struct Reactor(Handle);

impl Reactor {
    /// Returns the reactor of this process, with up to 1024 operations in flight. Its thread,
    /// `dioxide-reactor`, starts with the first operation and lives as long as the process. The
    /// child of a fork has its own. In a simulation (`dioxide::sim`) each call returns another one.
    pub fn shared() -> Self {
        let process = Process::current();
        match is_simulated() {
            true => Self(Handle::of_process(process)),
            false => Self(process.reactor().clone()),
        }
    }

    /// Starts another reactor with its own thread, which ends when the last handle and the last
    /// file of the reactor are dropped. It has as many operations in flight as a queue of these
    /// options; more wait their turn.
    ///
    /// # Errors
    ///
    /// The system's error if it cannot start a thread.
    pub fn start(options: &QueueOptions) -> io::Result<Self> {
        let handle = Handle::with_thread(Process::current(), options.settings());
        handle.start()?;
        Ok(Self(handle))
    }

    /// Opens a file, as [`OpenOptions::open`], in a temporary thread.
    pub fn open(
        &self,
        options: &OpenOptions,
        path: impl AsRef<Path>,
    ) -> Blocking<'static, Result<AsyncFile>> {
        let (reactor, options, path) = (self.clone(), options.clone(), path.as_ref().to_owned());
        Blocking::new(move || options.open(path).map(|file| reactor.attach(file)))
    }

    /// Returns the file for futures that this reactor drives.
    pub fn attach(&self, file: File) -> AsyncFile {
        AsyncFile::new(file, self.clone())
    }

    /// Takes a free buffer of this reactor, as [`Queue::buffer`](crate::Queue::buffer).
    pub fn buffer(&self) -> Option<Buffer> {
        self.0.buffer()
    }

    #[cfg(all(test, loom))]
    pub(crate) fn of(handle: Handle) -> Self {
        Self(handle)
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.0
    }
}

/// A reactor without a thread: the thread that made it drives the operations, in
/// [`block_on`](Self::block_on) or [`turn`](Self::turn). For single-threaded programs, and for
/// executors.
///
/// ```no_run
/// use dioxide::{Buffer, LocalReactor, OpenOptions, QueueOptions};
///
/// let reactor = LocalReactor::new(&QueueOptions::new());
/// let log = reactor.attach(OpenOptions::new().write(true).create(true).open("records.log")?);
/// let (appended, block) = reactor.block_on(log.append(Buffer::zeroed(4096)));
/// println!("{} bytes at {}", block.len(), appended?);
/// # Ok::<(), dioxide::Error>(())
/// ```
///
/// While its thread does something else, none of its operations proceeds. Other threads that depend
/// on a begun one wait: in a `set_len`, or in a blocking append above it. A blocking call of the
/// reactor's own thread first finishes the begun operations.
///
/// Files may move to other threads, whose futures work as with any reactor. Dropping the reactor
/// waits for begun operations. Operations that have not begun, and later ones, fail with
/// `ECANCELED`. A file that another thread closes keeps its descriptor until the next turn, or the
/// end of the `block_on`. A leaked reactor (`mem::forget`) leaves its futures waiting for ever.
#[derive(Debug)]
pub struct LocalReactor {
    // First: its drop finishes begun operations before the handle is dropped.
    worker: Worker,
    reactor: Reactor,
}

impl LocalReactor {
    /// Makes a reactor for the calling thread, with as many operations in flight as a queue of
    /// these options.
    pub fn new(options: &QueueOptions) -> Self {
        let (handle, worker) = Handle::with_worker(Process::current(), options.settings());
        Self { worker, reactor: Reactor(handle) }
    }

    /// Returns the handle, to [open](Reactor::open) files with.
    pub fn reactor(&self) -> &Reactor {
        &self.reactor
    }

    /// Returns the file for futures that this reactor drives.
    pub fn attach(&self, file: File) -> AsyncFile {
        self.reactor.attach(file)
    }

    /// Runs a future to its end, and all operations of this reactor meanwhile. Sleeps while there
    /// is no work.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        let main = Arc::new(Main { is_woken: AtomicBool::new(true), bell: self.worker.bell() });
        let waker = Waker::from(main.clone());
        loop {
            // In the child of a fork an operation may end without a wake.
            let is_woken =
                main.is_woken.swap(false, Ordering::AcqRel) || !self.reactor.0.is_current();
            if is_woken
                && let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker))
            {
                // Another thread may have closed a file meanwhile.
                self.worker.let_go_of_closed();
                return output;
            }
            match main.is_woken.load(Ordering::Acquire) {
                true => self.try_turn(),
                false => self.turn(),
            }
        }
    }

    /// Begins the polled operations, and sleeps until an operation has finished or
    /// [`waker`](Self::waker) is woken; it may return earlier. Wakes the tasks of finished
    /// operations.
    pub fn turn(&self) {
        self.worker.turn();
    }

    /// As [`turn`](Self::turn), without sleeping.
    pub fn try_turn(&self) {
        self.worker.try_turn();
    }

    /// Returns a waker that ends the sleep of a [`turn`](Self::turn), or of the next one if none
    /// sleeps.
    pub fn waker(&self) -> Waker {
        Waker::from(self.worker.bell())
    }
}

/// Wakes the future of a `block_on`.
struct Main {
    is_woken: AtomicBool,
    bell: Arc<Bell>,
}

impl Wake for Main {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.is_woken.store(true, Ordering::Release);
        self.bell.ring();
    }
}
