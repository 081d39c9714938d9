//! The public [`AsyncFile`]: operations as futures, for any executor.

use crate::api::file::File;
use crate::api::options::OpenOptions;
use crate::api::reactor::Reactor;
use crate::buffer::{Kept, Segment};
use crate::engine::handle::FileHandle;
use crate::engine::queue::OpKind;
use crate::engine::reactor::{Handle, Listed, Slot};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::{Mutex, spawn};
use std::fmt;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// A [`File`] whose operations are futures. They need no particular executor: a [`Reactor`] drives
/// them, by default one that the process shares.
///
/// ```no_run
/// use dioxide::{AsyncFile, Buffer, Durability, OpenOptions};
/// # async fn example() -> dioxide::Result<()> {
/// let mut options = OpenOptions::new();
/// options.write(true).create(true).durability(Durability::EveryWrite);
/// let log = AsyncFile::open(&options, "records.log").await?;
///
/// let (appended, block) = log.append(Buffer::zeroed(4096)).await; // stable now, and the memory is back
/// let offset = appended?;
/// let (read, block) = log.read_at(block, offset).await;
/// assert_eq!(read?, block.len() as u64);
/// log.close().await
/// # }
/// ```
///
/// Tasks share it in an [`Arc`]. Operations that are under way together, of any number of tasks,
/// are merged as far as they are adjacent, and durable ones share a flush. What holds when a future
/// is ready is what holds when the call of the same name of [`File`] returns. Appends stand in the
/// order in which their futures were first polled, if one thread polled them.
///
/// # Memory
///
/// An operation takes what it writes from, or reads into, and gives it back with the result, also
/// with an error. Any owned bytes will do, and stay where they are while the operation is under
/// way: [`Buffer`](crate::Buffer), `Vec<u8>`, `Box<[u8]>`, `bytes::Bytes`, for writes also
/// `Arc<[u8]>` or `&'static [u8]`. A read fills the length that they have. Those of a
/// [`write_at`](Self::write_at) must be [aligned](File::alignment), as a `Buffer` is; of others,
/// what is not goes through memory of the library's.
///
/// # Dropping
///
/// Nothing begins before the first poll. A future that is dropped later takes its operation back if
/// that has not been begun, and then nothing of it ever happens; otherwise it goes on, and is
/// wholly there or failed, without anybody being told. Its memory is freed, or goes back to its
/// pool, when the kernel no longer has it. Nothing of this waits. One that is leaked
/// (`mem::forget`) leaks its memory and a descriptor of the file.
///
/// Dropping the file itself without [`close`](Self::close) closes it as dropping a [`File`] does:
/// waiting for what is under way.
///
/// After a fork the operations of the child fail with [`Forked`](ErrorKind::Forked), also those
/// that were under way, whose memory may have been read into in part. A [`Blocking`] call that was
/// under way never ends in the child.
#[derive(Debug)]
pub struct AsyncFile {
    // The file is closed last, but while there is a reactor that lets go of it.
    target: Arc<FileHandle>,
    file: File,
    reactor: Reactor,
}

impl AsyncFile {
    pub(crate) fn new(file: File, reactor: Reactor) -> Self {
        let target = file.inner().another();
        if let FileHandle::Shared { engine, process, .. } = &target
            && process.is_current()
        {
            // Before the reactor takes anything up, so that nobody closes the file behind its back.
            engine.attach(reactor.handle());
        }
        Self { target: Arc::new(target), file, reactor }
    }

    /// Opens a file, as [`OpenOptions::open`], for futures that the [shared](Reactor::shared)
    /// reactor drives. See [`Reactor::open`] for another.
    pub fn open(options: &OpenOptions, path: impl AsRef<Path>) -> Blocking<'static, Result<Self>> {
        Reactor::shared().open(options, path)
    }

    /// Appends `data`, as [`File::append`]; ready with the offset at which it stands.
    pub fn append<M: AsRef<[u8]> + Send + 'static>(&self, data: M) -> Transfer<'_, M> {
        Transfer::new(self, OpKind::Append, data, Some(|data| Segment::of(data.as_ref())))
    }

    /// Writes `data` at `offset`, as [`File::write_at`]; ready with its length.
    pub fn write_at<M: AsRef<[u8]> + Send + 'static>(
        &self,
        data: M,
        offset: u64,
    ) -> Transfer<'_, M> {
        Transfer::new(self, OpKind::Write(offset), data, Some(|data| Segment::of(data.as_ref())))
    }

    /// Reads at `offset` into `into`, as [`File::read_at`]; ready with the number of bytes read.
    /// One through a read-only handle of a file (not a device) that this process does not write
    /// holds up the reactor until it is done.
    pub fn read_at<M: AsMut<[u8]> + Send + 'static>(
        &self,
        into: M,
        offset: u64,
    ) -> Transfer<'_, M> {
        Transfer::new(self, OpKind::Read(offset), into, Some(|into| Segment::of_mut(into.as_mut())))
    }

    /// Makes everything stable that was finished before it was first polled, as
    /// [`File::sync_data`].
    pub fn sync_data(&self) -> SyncData<'_> {
        SyncData(Transfer::new(self, OpKind::Sync, (), None))
    }

    /// Sets the length, as [`File::set_len`], in a thread that ends then.
    pub fn set_len(&self, len: u64) -> Blocking<'_, Result<()>> {
        self.beside(move |file| file.set_len(len))
    }

    /// Makes an empty file of it that keeps its space, as [`File::recycle`], in a thread that ends
    /// then.
    pub fn recycle(&self) -> Blocking<'_, Result<()>> {
        self.beside(File::recycle)
    }

    fn beside<T: Send + 'static>(
        &self,
        work: impl FnOnce(&File) -> Result<T> + Send + 'static,
    ) -> Blocking<'_, Result<T>> {
        // Of its own: the future may be forgotten, and the file closed.
        let file = self.file.try_clone();
        Blocking::new(move || work(&file?))
    }

    /// The length in bytes, as [`File::len`]; it waits only for a read-only handle beside another
    /// process.
    ///
    /// # Errors
    ///
    /// As [`File::len`].
    pub fn len(&self) -> Result<u64> {
        self.file.len()
    }

    /// Whether [`len`](Self::len) is 0.
    ///
    /// # Errors
    ///
    /// As [`len`](Self::len).
    pub fn is_empty(&self) -> Result<bool> {
        self.file.is_empty()
    }

    /// The file, for blocking calls and questions.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The file alone. What was begun for futures that were dropped goes on.
    pub fn into_inner(self) -> File {
        self.file
    }

    /// Closes it, as [`File::close`], in a thread that ends then.
    pub fn close(self) -> Blocking<'static, Result<()>> {
        Blocking::new(move || {
            let Self { target, file, reactor: _reactor } = self;
            drop(target);
            file.close()
        })
    }

    fn handle(&self) -> &Handle {
        self.reactor.handle()
    }
}

impl From<File> for AsyncFile {
    /// For futures that the [shared](Reactor::shared) reactor drives.
    fn from(file: File) -> Self {
        Reactor::shared().attach(file)
    }
}

/// An append, a write or a read of an [`AsyncFile`]: ready with what came of it, as
/// [`Completion`](crate::Completion) has it, and the memory. See there for what dropping it does.
#[must_use = "nothing begins before it is polled"]
pub struct Transfer<'a, M> {
    file: &'a AsyncFile,
    what: OpKind,
    /// What of the memory it uses.
    bytes: Option<fn(&mut M) -> Segment>,
    progress: Progress<M>,
}

enum Progress<M> {
    Unpolled(M),
    Listed(Arc<Slot<Kept<M>>>),
    Over,
}

impl<'a, M: Send + 'static> Transfer<'a, M> {
    fn new(
        file: &'a AsyncFile,
        what: OpKind,
        memory: M,
        bytes: Option<fn(&mut M) -> Segment>,
    ) -> Self {
        Self { file, what, bytes, progress: Progress::Unpolled(memory) }
    }

    fn begin(&mut self, memory: M, waker: &Waker) -> Poll<(Result<u64>, M)> {
        if !self.file.handle().is_current() {
            return Poll::Ready((Err(self.error(ErrorKind::Forked)), memory));
        }
        let slot =
            Slot::new(self.file.target.clone(), self.what, memory, self.bytes, waker.clone());
        match self.file.handle().list(slot.clone() as Arc<Listed>) {
            Ok(()) => {
                self.progress = Progress::Listed(slot);
                Poll::Pending
            }
            Err(kind) => Poll::Ready((Err(self.error(kind)), take_memory(&slot))),
        }
    }

    fn error(&self, kind: ErrorKind) -> Error {
        self.file.target.error(self.what.operation(), self.what.offset(), kind)
    }
}

/// The memory of an operation that has finished or never begins.
#[allow(unsafe_code)]
fn take_memory<M>(slot: &Slot<Kept<M>>) -> M {
    // SAFETY: so it is wherever this is called, and a future calls it once.
    unsafe { slot.take_memory() }
}

impl<M: Send + 'static> Future for Transfer<'_, M> {
    type Output = (Result<u64>, M);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match std::mem::replace(&mut self.progress, Progress::Over) {
            Progress::Unpolled(memory) => self.begin(memory, context.waker()),
            // The worker is the parent's. It has left the memory in its place, whatever it was
            // doing.
            Progress::Listed(slot) if !self.file.handle().is_current() => {
                Poll::Ready((Err(self.error(ErrorKind::Forked)), take_memory(&slot)))
            }
            Progress::Listed(slot) => match slot.poll(context.waker()) {
                Poll::Ready(result) => Poll::Ready((result, take_memory(&slot))),
                Poll::Pending => {
                    self.progress = Progress::Listed(slot);
                    Poll::Pending
                }
            },
            Progress::Over => panic!("polled again after it was ready"),
        }
    }
}

// Nothing of it is pinned: memory that is lent stands elsewhere.
impl<M> Unpin for Transfer<'_, M> {}

impl<M> Drop for Transfer<'_, M> {
    fn drop(&mut self) {
        let Progress::Listed(slot) = &self.progress else { return };
        if self.file.handle().is_current() && slot.give_up() {
            self.file.handle().gave_up();
            drop(take_memory(slot));
        }
    }
}

impl<M> fmt::Debug for Transfer<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transfer").field("what", &self.what).finish_non_exhaustive()
    }
}

/// A flush of an [`AsyncFile`]. Dropped, it may still happen.
#[derive(Debug)]
#[must_use = "nothing begins before it is polled"]
pub struct SyncData<'a>(Transfer<'a, ()>);

impl Future for SyncData<'_> {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.0).poll(context).map(|(result, ())| result.map(drop))
    }
}

/// A call that waits, in a thread of its own that begins with the first poll; in the polling one if
/// there is none to be had. Dropped before that it does nothing (but a file that was to be closed
/// is dropped with it), later it goes on.
#[must_use = "nothing begins before it is polled"]
pub struct Blocking<'a, T> {
    progress: Calling<T>,
    /// The file that it works on is not closed under it.
    file: PhantomData<&'a ()>,
}

enum Calling<T> {
    Unpolled(Work<T>),
    Begun(Arc<Call<T>>),
    Over,
}

type Work<T> = Box<dyn FnOnce() -> T + Send>;

/// Shared by the future and the thread.
struct Call<T> {
    work: Mutex<Option<Work<T>>>,
    stage: Mutex<Stage<T>>,
}

enum Stage<T> {
    Running(Option<Waker>),
    Ended(std::thread::Result<T>),
}

impl<T: Send + 'static> Blocking<'_, T> {
    pub(crate) fn new(work: impl FnOnce() -> T + Send + 'static) -> Self {
        Self { progress: Calling::Unpolled(Box::new(work)), file: PhantomData }
    }
}

impl<T: Send + 'static> Call<T> {
    fn begin(work: Work<T>) -> Arc<Self> {
        let call = Arc::new(Self {
            work: Mutex::new(Some(work)),
            stage: Mutex::new(Stage::Running(None)),
        });
        let theirs = call.clone();
        if spawn("dioxide-call", move || theirs.run()).is_err() {
            call.run();
        }
        call
    }

    fn run(&self) {
        let work = self.work.lock().take().expect("run once");
        let result = catch_unwind(AssertUnwindSafe(work));
        let before = std::mem::replace(&mut *self.stage.lock(), Stage::Ended(result));
        if let Stage::Running(Some(waker)) = before {
            waker.wake();
        }
    }

    /// What came of it, once; until then `waker` is woken when it ends.
    fn poll(&self, waker: &Waker) -> Poll<std::thread::Result<T>> {
        let mut stage = self.stage.lock();
        let before = std::mem::replace(&mut *stage, Stage::Running(Some(waker.clone())));
        drop(stage);
        match before {
            Stage::Running(_) => Poll::Pending,
            Stage::Ended(result) => Poll::Ready(result),
        }
    }
}

impl<T: Send + 'static> Future for Blocking<'_, T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let call = match std::mem::replace(&mut self.progress, Calling::Over) {
            Calling::Unpolled(work) => Call::begin(work),
            Calling::Begun(call) => call,
            Calling::Over => panic!("polled again after it was ready"),
        };
        match call.poll(context.waker()) {
            Poll::Ready(result) => Poll::Ready(result.unwrap_or_else(|panic| resume_unwind(panic))),
            Poll::Pending => {
                self.progress = Calling::Begun(call);
                Poll::Pending
            }
        }
    }
}

// Nothing of it is pinned.
impl<T> Unpin for Blocking<'_, T> {}

impl<T> fmt::Debug for Blocking<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Blocking").finish_non_exhaustive()
    }
}
