//! The public [`Reactor`] and [`LocalReactor`]: what drives the operations of [`AsyncFile`]s.

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

/// What drives the operations of [`AsyncFile`]s: a [`Queue`](crate::Queue) in a thread of its own,
/// asleep while there is nothing to do. Clones are the same reactor.
///
/// One for all is enough for most programs: the [shared](Self::shared) one, which is what
/// [`AsyncFile::from`] uses. Operations that are under way together are merged as far as they are
/// adjacent, and durable ones share a flush.
///
/// Tasks are woken on its thread. Wakers may do what they like there: run a task, drop a file, make
/// blocking calls. While they do, no operation of this reactor goes on, except that a blocking call
/// first finishes what was begun. So a waker must not wait for a future of the same reactor, nor
/// for a lock of somebody who waits for one or who closes a file; nor open a file whose last handle
/// another thread may be closing.
#[derive(Clone, Debug)]
pub struct Reactor(Handle);

impl Reactor {
    /// The one of this process, with up to 1024 operations in flight. Its thread,
    /// `dioxide-reactor`, begins with the first operation and lives as long as the process. The
    /// child of a fork has its own. In a simulation (`dioxide::sim`) each call gives another one.
    pub fn shared() -> Self {
        let process = Process::current();
        match is_simulated() {
            true => Self(Handle::of_process(process)),
            false => Self(process.reactor().clone()),
        }
    }

    /// Another one, with a thread of its own, which ends when its last handle and its last file are
    /// dropped. It has as many operations in flight as a queue of these options; more wait their
    /// turn.
    ///
    /// # Errors
    ///
    /// What the system answers if it has no thread.
    pub fn start(options: &QueueOptions) -> io::Result<Self> {
        let handle = Handle::with_thread(Process::current(), options.settings());
        handle.start()?;
        Ok(Self(handle))
    }

    /// Opens a file, as [`OpenOptions::open`], in a thread that ends then.
    pub fn open(
        &self,
        options: &OpenOptions,
        path: impl AsRef<Path>,
    ) -> Blocking<'static, Result<AsyncFile>> {
        let (reactor, options, path) = (self.clone(), options.clone(), path.as_ref().to_owned());
        Blocking::new(move || options.open(path).map(|file| reactor.attach(file)))
    }

    /// The file, for futures that this reactor drives.
    pub fn attach(&self, file: File) -> AsyncFile {
        AsyncFile::new(file, self.clone())
    }

    /// One of its own buffers that nobody has, as [`Queue::buffer`](crate::Queue::buffer).
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

/// A reactor without a thread of its own: the thread that made it drives the operations, in
/// [`block_on`](Self::block_on) or [`turn`](Self::turn). For programs of a single thread, and for
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
/// While its thread does something else, nothing of it goes on, and whoever waits for what it has
/// begun waits: a `set_len`, or a blocking append above one of its own. A blocking call of this
/// thread itself finishes first what was begun.
///
/// Its files may go to other threads, which poll and are woken as those of any reactor. Operations
/// that are listed when it is dropped, and later ones, fail with `ECANCELED`; what was begun is
/// waited for. A file that another thread closes keeps its descriptor until the next turn, or the
/// end of the `block_on`. One that is leaked (`mem::forget`) leaves its futures waiting for ever.
#[derive(Debug)]
pub struct LocalReactor {
    // First: what it has begun is finished before the handle goes.
    worker: Worker,
    reactor: Reactor,
}

impl LocalReactor {
    /// One for the calling thread, with as many operations in flight as a queue of these options.
    pub fn new(options: &QueueOptions) -> Self {
        let (handle, worker) = Handle::with_worker(Process::current(), options.settings());
        Self { worker, reactor: Reactor(handle) }
    }

    /// The handle, to [open](Reactor::open) files with.
    pub fn reactor(&self) -> &Reactor {
        &self.reactor
    }

    /// The file, for futures that this reactor drives.
    pub fn attach(&self, file: File) -> AsyncFile {
        self.reactor.attach(file)
    }

    /// Runs a future to its end, and all operations of this reactor meanwhile. Asleep while there
    /// is nothing to do.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        let main = Arc::new(Main { is_woken: AtomicBool::new(true), bell: self.worker.bell() });
        let waker = Waker::from(main.clone());
        loop {
            if main.is_woken.swap(false, Ordering::AcqRel)
                && let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker))
            {
                // Another thread may have closed a file for it.
                self.worker.let_go_of_closed();
                return output;
            }
            match main.is_woken.load(Ordering::Acquire) {
                true => self.try_turn(),
                false => self.turn(),
            }
        }
    }

    /// Begins what was polled, and sleeps until an operation has finished or somebody wakes
    /// [`waker`](Self::waker), or for a shorter time. Wakes the tasks of what has finished.
    pub fn turn(&self) {
        self.worker.turn();
    }

    /// The same without sleeping.
    pub fn try_turn(&self) {
        self.worker.try_turn();
    }

    /// Ends the sleep of a [`turn`](Self::turn), the next one if there is none.
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
