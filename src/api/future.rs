//! The public [`AsyncFile`]: operations as futures, for any executor.

use crate::api::file::File;
use crate::api::options::OpenOptions;
use crate::api::reactor::Reactor;
use crate::api::sync_all;
use crate::buffer::{Kept, Segment};
use crate::engine::Engine;
use crate::engine::handle::FileHandle;
use crate::engine::queue::OpKind;
use crate::engine::reactor::{Handle, Listed, Slot};
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::sync::{Mutex, spawn};
use std::borrow::Borrow;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// A [`File`] whose operations are futures, for any executor. A [`Reactor`] drives them; by default
/// the one that the process shares.
///
/// ```no_run
/// use dioxide::{AsyncFile, Buffer, Durability, OpenOptions};
/// # async fn example() -> dioxide::Result<()> {
/// let mut options = OpenOptions::new();
/// options.write(true).create(true).durability(Durability::EveryWrite);
/// let log = AsyncFile::open(&options, "records.log").await?;
///
/// // When it is ready, the append is durable, and the memory is back.
/// let (appended, block) = log.append(Buffer::zeroed(4096)).await;
/// let offset = appended?;
/// let (read, block) = log.read_at(block, offset).await;
/// assert_eq!(read?, block.len() as u64);
/// log.close().await
/// # }
/// ```
///
/// Tasks share the file in an [`Arc`]. Adjacent operations in flight, of any number of tasks, are
/// merged, and durable ones share a flush. A ready future gives the same guarantees as the call of
/// the same name of [`File`] on return. Appends get offsets in the order in which their futures
/// were first polled, if one thread polled them.
///
/// # Memory
///
/// An operation takes ownership of its memory, and returns it with the result, also with an error.
/// It accepts any owned bytes with a stable address: [`Buffer`](crate::Buffer), `Vec<u8>`,
/// `Box<[u8]>`, `bytes::BytesMut`; for writes also `bytes::Bytes`, `Arc<[u8]>` or `&'static [u8]`.
/// A read fills their length. Operations copy [unaligned](File::alignment) parts through memory of
/// the library.
///
/// # Dropping
///
/// Nothing begins before the first poll. Dropping a future later cancels its operation if that has
/// not begun. A begun operation continues, completes or fails as a whole, and reports to no caller.
/// Its memory is freed, or returns to its pool, when the kernel has released it. None of this
/// waits. A leaked future (`mem::forget`) leaks its memory and a descriptor of the file.
///
/// Dropping the file without [`close`](Self::close) closes it as dropping a [`File`] does: it waits
/// for operations in flight.
///
/// After a fork, the operations of the child fail with [`Forked`](ErrorKind::Forked). This includes
/// those in flight, whose memory may hold a part of a read. A [`Blocking`] call that was running
/// never ends in the child.
#[derive(Debug)]
pub struct AsyncFile {
    // Field order: the file closes after `target`, while the reactor can still let go of it.
    target: Arc<FileHandle>,
    file: File,
    reactor: Reactor,
}

impl AsyncFile {
    pub(crate) fn new(file: File, reactor: Reactor) -> Self {
        let target = file.inner().another();
        if let FileHandle::Writer { engine, process, .. } = &target
            && process.is_current()
        {
            // Before the reactor begins an operation, so that no close of the file misses the
            // reactor.
            engine.attach(reactor.handle());
        }
        Self { target: Arc::new(target), file, reactor }
    }

    /// Opens a file, as [`OpenOptions::open`], for futures that the [shared](Reactor::shared)
    /// reactor drives. For another reactor see [`Reactor::open`].
    pub fn open(options: &OpenOptions, path: impl AsRef<Path>) -> Blocking<'static, Result<Self>> {
        Reactor::shared().open(options, path)
    }

    /// Appends `data`, as [`File::append`]; ready with its offset in bytes.
    pub fn append<M: AsRef<[u8]> + Send + 'static>(&self, data: M) -> Transfer<'_, M> {
        let bytes = |data: &mut M| Segment::of(data.as_ref());
        Transfer(TransferOf::new(self, OpKind::Append, data, Some(bytes)))
    }

    /// Writes `data` at `offset`, as [`File::write_at`]; ready with its length in bytes.
    pub fn write_at<M: AsRef<[u8]> + Send + 'static>(
        &self,
        data: M,
        offset: u64,
    ) -> Transfer<'_, M> {
        Transfer(TransferOf::write_at(self, data, offset))
    }

    /// Reads at `offset` into `into`, as [`File::read_at`]; ready with the number of bytes read.
    pub fn read_at<M: AsMut<[u8]> + Send + 'static>(
        &self,
        into: M,
        offset: u64,
    ) -> Transfer<'_, M> {
        Transfer(TransferOf::read_at(self, into, offset))
    }

    /// Makes everything durable that finished before the first poll, as [`File::sync_data`].
    pub fn sync_data(&self) -> SyncData<'_> {
        SyncData(Transfer(TransferOf::new(self, OpKind::Sync, (), None)))
    }

    /// Makes everything durable that finished in these files before the first poll, as
    /// [`sync_all`](crate::sync_all), in a temporary thread. The files stay open until it ends.
    pub fn sync_all<'a, F: Borrow<Self>>(files: &'a [F]) -> Blocking<'a, Result<()>> {
        let files: Result<Vec<_>> =
            files.iter().map(|file| file.borrow().file.try_clone()).collect();
        Blocking::new(move || sync_all::sync_all(&files?))
    }

    /// Sets the length, as [`File::set_len`], in a temporary thread.
    pub fn set_len(&self, len: u64) -> Blocking<'_, Result<()>> {
        self.beside(Operation::SetLen, move |engine| engine.set_len(len))
    }

    /// Resets the length to 0 and keeps the space, as [`File::recycle`], in a temporary thread.
    pub fn recycle(&self) -> Blocking<'_, Result<()>> {
        self.beside(Operation::Recycle, Engine::recycle)
    }

    fn beside(
        &self,
        operation: Operation,
        work: impl FnOnce(&Engine) -> Result<()> + Send + 'static,
    ) -> Blocking<'_, Result<()>> {
        // The future may be dropped or leaked, and the file closed: the call keeps no file open.
        let target = self.target.clone();
        Blocking::new(move || match &*target {
            FileHandle::Writer { engine, .. } => work(engine),
            reader => Err(reader.error(operation, None, ErrorKind::ReadOnly)),
        })
    }

    /// Returns the length in bytes, as [`File::len`]. It blocks only for a read-only handle of a
    /// file that this process does not write.
    ///
    /// # Errors
    ///
    /// As [`File::len`].
    pub fn len(&self) -> Result<u64> {
        self.file.len()
    }

    /// Returns whether [`len`](Self::len) is 0.
    ///
    /// # Errors
    ///
    /// As [`len`](Self::len).
    pub fn is_empty(&self) -> Result<bool> {
        self.file.is_empty()
    }

    /// Returns the file, for blocking calls and queries.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Returns the file without the reactor. Operations of dropped futures continue.
    pub fn into_inner(self) -> File {
        self.file
    }

    /// Closes the file, as [`File::close`], in a temporary thread.
    pub fn close(self) -> Blocking<'static, Result<()>> {
        Blocking::new(move || {
            let Self { target, file, reactor: _reactor } = self;
            drop(target);
            file.close()
        })
    }

    pub(crate) fn handle(&self) -> &Handle {
        self.reactor.handle()
    }

    /// Whether a read in a thread is better than one by the reactor. Without a ring the reactor
    /// makes one call at a time. In the child of a fork it is the parent's, but a read-only handle
    /// still reads.
    pub(crate) fn is_read_by_calls(&self) -> bool {
        let is_reader = matches!(*self.target, FileHandle::Reader(_));
        is_reader && !(self.handle().is_current() && self.handle().has_ring())
    }
}

impl From<File> for AsyncFile {
    /// Uses the [shared](Reactor::shared) reactor.
    fn from(file: File) -> Self {
        Reactor::shared().attach(file)
    }
}

/// An append, a write or a read of an [`AsyncFile`]. Ready with the result, as in
/// [`Completion`](crate::Completion), and the memory. See [`AsyncFile`] for the effect of a drop.
#[must_use = "nothing begins before it is polled"]
pub struct Transfer<'a, M>(TransferOf<&'a AsyncFile, M>);

/// A transfer of a file that it borrows or owns.
pub(crate) struct TransferOf<F: Deref<Target = AsyncFile>, M> {
    file: F,
    what: OpKind,
    /// Returns the bytes of the memory that the operation uses.
    bytes: Option<fn(&mut M) -> Segment>,
    progress: Progress<M>,
}

enum Progress<M> {
    Unpolled(M),
    /// The file is prepared for its first write of a part of a block.
    Preparing(M, Blocking<'static, ()>),
    Listed(Arc<Slot<Kept<M>>>),
    Over,
}

impl<F: Deref<Target = AsyncFile>, M: Send + 'static> TransferOf<F, M> {
    fn new(file: F, what: OpKind, memory: M, bytes: Option<fn(&mut M) -> Segment>) -> Self {
        Self { file, what, bytes, progress: Progress::Unpolled(memory) }
    }

    pub fn write_at(file: F, data: M, offset: u64) -> Self
    where
        M: AsRef<[u8]>,
    {
        Self::new(file, OpKind::Write(offset), data, Some(|data| Segment::of(data.as_ref())))
    }

    pub fn read_at(file: F, into: M, offset: u64) -> Self
    where
        M: AsMut<[u8]>,
    {
        Self::new(file, OpKind::Read(offset), into, Some(|into| Segment::of_mut(into.as_mut())))
    }

    /// Whether it still waits for the preparation of the file.
    pub fn is_preparing(&self) -> bool {
        matches!(self.progress, Progress::Preparing(..))
    }

    /// The call that prepares the file, if the operation needs it.
    fn preparation(&self, memory: &mut M) -> Option<Blocking<'static, ()>> {
        let (OpKind::Write(offset), Some(bytes)) = (self.what, self.bytes) else { return None };
        let (target, len) = (self.file.target.clone(), bytes(memory).len());
        let must = target.must_prepare(len, offset);
        must.then(|| Blocking::new(move || target.prepare_write(len, offset)))
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

/// Takes the memory of an operation that has finished or never begins.
#[allow(unsafe_code)]
fn take_memory<M>(slot: &Slot<Kept<M>>) -> M {
    // SAFETY: each caller has such an operation, and a future calls this once.
    unsafe { slot.take_memory() }
}

// Nothing in it is pinned: lent memory lies elsewhere, and a file is only referred to.
impl<F: Deref<Target = AsyncFile>, M> Unpin for TransferOf<F, M> {}

impl<F: Deref<Target = AsyncFile>, M: Send + 'static> Future for TransferOf<F, M> {
    type Output = (Result<u64>, M);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match std::mem::replace(&mut self.progress, Progress::Over) {
            Progress::Unpolled(mut memory) => match self.preparation(&mut memory) {
                None => self.begin(memory, context.waker()),
                Some(call) => {
                    self.progress = Progress::Preparing(memory, call);
                    self.poll(context)
                }
            },
            // The call never ends in the child of a fork.
            Progress::Preparing(memory, _) if !self.file.handle().is_current() => {
                self.begin(memory, context.waker())
            }
            Progress::Preparing(memory, mut call) => match Pin::new(&mut call).poll(context) {
                Poll::Ready(()) => self.begin(memory, context.waker()),
                Poll::Pending => {
                    self.progress = Progress::Preparing(memory, call);
                    Poll::Pending
                }
            },
            // The worker is the parent's. The memory is still in the slot, whatever the worker did.
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

impl<F: Deref<Target = AsyncFile>, M> Drop for TransferOf<F, M> {
    fn drop(&mut self) {
        let Progress::Listed(slot) = &self.progress else { return };
        if self.file.handle().is_current() && slot.give_up() {
            self.file.handle().on_given_up();
            drop(take_memory(slot));
        }
    }
}

impl<M: Send + 'static> Future for Transfer<'_, M> {
    type Output = (Result<u64>, M);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context)
    }
}

impl<M> fmt::Debug for Transfer<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transfer").field("what", &self.0.what).finish_non_exhaustive()
    }
}

/// A flush of an [`AsyncFile`]. After a drop the flush may still happen.
#[derive(Debug)]
#[must_use = "nothing begins before it is polled"]
pub struct SyncData<'a>(Transfer<'a, ()>);

impl Future for SyncData<'_> {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.0).poll(context).map(|(result, ())| result.map(drop))
    }
}

/// A blocking call in its own thread, which begins with the first poll. If no thread can be
/// started, the polling thread runs it. Dropped before the first poll, it does nothing, except that
/// a file that it was to close is dropped. Dropped later, the call continues. If the file is closed
/// first, the call changes nothing, but keeps the descriptor until it ends.
#[must_use = "nothing begins before it is polled"]
pub struct Blocking<'a, T> {
    progress: Calling<T>,
    /// Keeps its file from being closed meanwhile.
    file: PhantomData<&'a ()>,
}

enum Calling<T> {
    Unpolled(BlockingWork<T>),
    Begun(Arc<BlockingCall<T>>),
    Over,
}

type BlockingWork<T> = Box<dyn FnOnce() -> T + Send>;

/// Shared by the future and the thread.
struct BlockingCall<T> {
    work: Mutex<Option<BlockingWork<T>>>,
    stage: Mutex<CallStage<T>>,
}

enum CallStage<T> {
    Running(Option<Waker>),
    Ended(std::thread::Result<T>),
}

impl<T: Send + 'static> Blocking<'_, T> {
    pub(crate) fn new(work: impl FnOnce() -> T + Send + 'static) -> Self {
        Self { progress: Calling::Unpolled(Box::new(work)), file: PhantomData }
    }
}

impl<T: Send + 'static> BlockingCall<T> {
    fn begin(work: BlockingWork<T>) -> Arc<Self> {
        let call = Arc::new(Self {
            work: Mutex::new(Some(work)),
            stage: Mutex::new(CallStage::Running(None)),
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
        let before = std::mem::replace(&mut *self.stage.lock(), CallStage::Ended(result));
        if let CallStage::Running(Some(waker)) = before {
            waker.wake();
        }
    }

    /// Returns the result, once. Before, it registers `waker`, to be woken at the end.
    fn poll(&self, waker: &Waker) -> Poll<std::thread::Result<T>> {
        let mut stage = self.stage.lock();
        let before = std::mem::replace(&mut *stage, CallStage::Running(Some(waker.clone())));
        drop(stage);
        match before {
            CallStage::Running(_) => Poll::Pending,
            CallStage::Ended(result) => Poll::Ready(result),
        }
    }
}

impl<T: Send + 'static> Future for Blocking<'_, T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let call = match std::mem::replace(&mut self.progress, Calling::Over) {
            Calling::Unpolled(work) => BlockingCall::begin(work),
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

// Nothing in it is pinned.
impl<T> Unpin for Blocking<'_, T> {}

impl<T> fmt::Debug for Blocking<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Blocking").finish_non_exhaustive()
    }
}
