//! The operations of a queue: one thread performs many at once, where a blocking caller performs
//! one.
//!
//! An operation is queued, submitted, and finished. A submitted operation waits for the end of an
//! exclusive one, or has a transfer of its own, or is in the file's core. The core knows it by a
//! `Token`. Requests and calls from the core run here when the thread reaches them. A request
//! becomes a transfer through the ring. Without a ring, the backend performs it at once.
//!
//! Nothing here waits but [`Driver::sleep`], a flush that writes back or joins the journal, and
//! growth for which there is no thread. A thread that is about to wait elsewhere in the library
//! first [settles](settle_own) its queues. Otherwise the thread that it waits for may wait for
//! them.
//!
//! # The life of 64 appends
//!
//! A thread calls `queue.append(&log, buffer, tag)` 64 times, then `queue.reap(1)`.
//!
//! 1. [`Driver::queue`] stores buffer and tag in an operation. Nothing else happens yet. (Before
//!    the first write of a part of a block, the file is prepared by `Engine::prepare_write`.)
//! 2. [`Driver::reap`] begins the queued operations. Each is checked as a blocking one, and enters
//!    the `DrainGate` under the number of its thread until it finishes. A queue does not wait for a
//!    shut gate: `DrainGate::wake_when_open` rings its bell.
//! 3. Reads, and plain writes that need no order, become one transfer each. The others enter the
//!    core together, under one lock (`Core::submit`). So the appends become one group and one
//!    request.
//! 4. A group may contain operations of threads and of queues, and either may own the request or
//!    the flush. A thread has a `Waiter`, a queue an `Inbox`. Tasks that the queue creates for its
//!    own operations bypass the inbox.
//! 5. A request becomes a `RequestIo` (`engine/io.rs`), as in a blocking call.
//! 6. The thread sleeps in the ring, in one call that also submits. Other threads wake it by its
//!    [`Bell`].
//! 7. Results go to `Core::on_completed`. While another flush of the file system runs, the queue
//!    puts a successful flush aside (`Tasks::settle_later`) and does not wait.
//! 8. Outcomes become completions with their buffers. Until then the operation owns its buffer.
//!
//! A thread waits elsewhere in `Engine::run`, at the gate, in `Engine::exclusively`, and on
//! opening. A queue that is about to sleep gives the other queues of its thread a turn
//! (`own::turn_others`). So blocking calls and queues mix in one thread without a deadlock.

mod completion;
mod files;
mod mailbox;
mod op_kind;
mod operations;
mod own;
mod requests;
mod settings;
mod tasks;
#[cfg(test)]
mod tests;
mod transfers;

pub use completion::Completion;
pub(crate) use op_kind::OpKind;
pub(super) use own::let_go_of_closed;
pub(crate) use own::settle_own;
pub(crate) use settings::QueueSettings;

use super::Engine;
use super::abort::AbortOnPanic;
use super::handle::FileHandle;
use super::process::Process;
use super::reactor::Reactor;
use super::waiter::{News, Task};
use crate::backend::ring::Bell;
use crate::buffer::{Buffer, Memory, Pool};
use crate::error::{ErrorKind, Result};
use crate::observe;
use crate::sync::{is_simulated, nap};
use completion::Tag;
use files::QueueFiles;
use mailbox::Mailbox;
use operations::{ByReader, Operations, Pending};
use own::NAP;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use tasks::Tasks;
use transfers::Transfers;

/// A queue, used by one thread.
#[derive(Debug)]
pub(crate) struct Driver {
    process: &'static Process,
    /// Created in a simulation, and used only there.
    simulated: bool,
    depth: usize,
    // First: the ring is dropped before the memory and the files that it works on.
    transfers: Transfers,
    mailbox: Mailbox,
    pool: Option<Arc<Pool>>,
    files: QueueFiles,
    operations: Operations,
    tasks: Tasks,
}

impl Driver {
    pub fn new(
        process: &'static Process,
        settings: &QueueSettings,
        pool: Option<Arc<Pool>>,
    ) -> Rc<RefCell<Self>> {
        let depth = settings.depth;
        let (ring, bell) = transfers::ring(depth, pool.as_ref(), settings.io_uring);
        let driver = Rc::new(RefCell::new(Self {
            process,
            simulated: is_simulated(),
            depth,
            pool,
            files: QueueFiles::default(),
            operations: Operations::with_capacity(depth.min(4096)),
            transfers: Transfers::new(ring),
            tasks: Tasks::default(),
            mailbox: Mailbox::new(bell),
        }));
        own::add(&driver);
        driver
    }

    pub fn buffer(&self) -> Option<Buffer> {
        self.pool.as_ref()?.take()
    }

    /// Number of operations that were queued and not reaped.
    pub fn outstanding(&self) -> usize {
        self.operations.outstanding()
    }

    pub fn depth(&self) -> usize {
        self.depth
    }

    pub fn uses_io_uring(&self) -> bool {
        self.transfers.uses_ring()
    }

    /// Number of operations that have finished and were not reaped.
    pub fn finished(&self) -> usize {
        self.operations.finished()
    }

    /// Number of finished operations that [`next`](Self::next) has returned.
    pub fn taken(&self) -> u64 {
        self.operations.taken
    }

    /// The next finished operation.
    pub fn next(&mut self) -> Option<Completion> {
        self.operations.next()
    }

    /// Queues an operation, to be submitted later. Returns the buffer if the queue is full.
    pub fn queue(
        &mut self,
        file: &FileHandle,
        what: OpKind,
        buffer: Option<Memory>,
        tag: u64,
    ) -> Result<(), Option<Memory>> {
        if self.outstanding() >= self.depth {
            return Err(buffer);
        }
        self.accept(file, what, buffer, Tag::Own(tag));
        Ok(())
    }

    /// Queues a flush of each file, with one completion. None of them if there is no room for all.
    pub fn queue_flushes<'a>(
        &mut self,
        files: impl ExactSizeIterator<Item = &'a FileHandle>,
        tag: u64,
    ) -> Result<(), ()> {
        if self.outstanding() + files.len().max(1) > self.depth {
            return Err(());
        }
        let group = self.operations.group(files.len(), OpKind::Sync, tag);
        for (nth, file) in files.enumerate() {
            self.accept(file, OpKind::Sync, None, Tag::Member { group, nth });
        }
        Ok(())
    }

    /// Queues an operation for which there is room.
    fn accept(&mut self, file: &FileHandle, what: OpKind, buffer: Option<Memory>, tag: Tag) {
        let refusal = match file {
            _ if !self.process.is_current() => Some(ErrorKind::Forked),
            // Its gate must not be used: the parent may have shut it.
            FileHandle::Writer { process, .. } if !process.is_current() => Some(ErrorKind::Forked),
            FileHandle::Reader(_) if !matches!(what, OpKind::Read(_)) => Some(ErrorKind::ReadOnly),
            _ => None,
        };
        if let Some(kind) = refusal {
            let error = file.error(what.operation(), what.offset(), kind);
            return self.operations.complete(tag, what, buffer, Err(error));
        }
        let (file, durable, by_reader) = match file {
            FileHandle::Writer { engine, durable, .. } => {
                (Some(self.attach(engine)), *durable, None)
            }
            FileHandle::Reader(reader) => match reader.engine_of_device() {
                Some(engine) => (Some(self.attach(&engine)), false, None),
                None => (None, false, Some(ByReader::new(reader.clone()))),
            },
        };
        let begun = if let OpKind::Append = what { observe::begun() } else { None };
        let operation = Pending {
            tag,
            what,
            file,
            durable,
            buffer,
            begun,
            bytes: 0,
            reading: None,
            ticket: None,
            by_reader,
        };
        self.operations.queue(operation);
    }

    fn attach(&mut self, engine: &Arc<Engine>) -> usize {
        let file = self.files.attach(engine, self.transfers.ring());
        self.files[file].outstanding += 1;
        file
    }

    /// Submits everything that is queued, and handles results that the kernel has: other threads
    /// may wait for them.
    pub fn submit(&mut self) {
        self.start();
        self.collect();
        self.hand_over();
    }

    /// Submits everything that is queued, and waits until `min` operations have finished, or all.
    pub fn reap(&mut self, min: usize) {
        self.start();
        if min == 0 {
            self.collect();
        }
        loop {
            let missing =
                min.saturating_sub(self.operations.finished()).min(self.operations.pending.len());
            if missing == 0 {
                break;
            }
            self.sleep(missing);
            self.work();
        }
        self.hand_over();
    }

    /// Submits everything that is queued, and waits until an operation has finished or the bell
    /// rang since the last wait. A ring that was heard meanwhile counts.
    pub fn wait(&mut self) {
        self.start();
        if !self.process.is_current() {
            // The ring is the parent's, and nothing in this process rings the bell.
            return nap(NAP);
        }
        self.tasks.hold_calls(true);
        if self.operations.finished() == 0 && !self.mailbox.rang() {
            self.sleep(1);
        } else if self.transfers.any_entered() {
            self.transfers.enter(0);
        }
        self.work();
        self.hand_over();
        self.tasks.hold_calls(false);
        self.mailbox.reset_rang();
    }

    /// Makes this the queue of a reactor, which files inform when they are closed.
    pub fn belong_to(&mut self, reactor: Arc<Reactor>) {
        self.files.belong_to(reactor);
    }

    /// The bell that ends a [wait](Self::wait).
    pub fn bell(&self) -> &Arc<Bell> {
        self.mailbox.bell()
    }

    /// Releases closed files.
    pub fn let_go_of_closed(&mut self) {
        self.files.let_go_of_closed(self.process.closes(), self.transfers.ring());
    }

    /// Waits until everything that was begun has finished.
    fn settle(&mut self) {
        self.settle_while(Self::is_busy);
    }

    fn settle_while(&mut self, waits: impl Fn(&Self) -> bool) {
        self.work();
        while waits(self) {
            self.sleep(1);
            self.work();
        }
    }

    fn start(&mut self) {
        if !self.process.is_current() {
            return self.disown();
        }
        let _all_or_nothing = AbortOnPanic::armed();
        self.let_go_of_closed();
        let queued = self.operations.take_queued();
        self.begin(&queued);
        self.operations.keep_queued(queued);
        self.work();
    }

    /// Ends all operations with `Forked` in the child of a fork. The parent continues with what was
    /// submitted or pushed.
    fn disown(&mut self) {
        self.transfers.disown();
        for operation in self.operations.disown() {
            // The ticket is the parent's, and ends there.
            let error = self.error(&operation, ErrorKind::Forked);
            std::mem::forget(operation.ticket);
            let Pending { tag, what, buffer, .. } = operation;
            self.operations.complete(tag, what, buffer, Err(error));
        }
    }

    /// Handles results that the kernel has, without waiting.
    fn collect(&mut self) {
        if self.transfers.any_entered() {
            self.transfers.enter(0);
            self.work();
        }
    }

    /// Submits pushed requests without waiting, and handles results that come at once.
    fn hand_over(&mut self) {
        while self.transfers.any_pushed() {
            self.transfers.enter(0);
            self.work();
        }
    }

    /// Waits for something to do. Waits for `missing` results at once if operations wait for
    /// nothing but their transfers.
    fn sleep(&mut self, missing: usize) {
        let alone = self.operations.wait_for_transfers() && missing <= self.transfers.len();
        let wanted = if alone { missing } else { 1 };
        if own::turn_others(self) || !self.mailbox.bell().may_sleep() {
            return;
        }
        match self.transfers.has_ring() {
            true => self.transfers.enter(wanted),
            false => self.mailbox.bell().sleep(),
        }
    }

    // --- what there is to do ---------------------------------------------------------------------

    /// Does all work that needs no waiting, also in the kernel. False if there was none.
    fn turn(&mut self) -> bool {
        if self.transfers.any_pushed() || !self.transfers.is_empty() {
            self.transfers.enter(0);
        }
        self.handle_all()
    }

    /// Whether anything begun has not finished. A wedge answers operations whose flush is still in
    /// flight.
    fn is_busy(&self) -> bool {
        self.operations.begun() > 0 || !self.transfers.is_empty() || self.tasks.any_settling()
    }

    /// Does all work that needs no waiting, and grows files that have no grower thread. Waits for
    /// the flushes of this thread before, since other threads wait for the growth. False if there
    /// was nothing to do.
    fn work(&mut self) -> bool {
        let mut worked = self.handle_all();
        while own::is_to_grow() {
            if !own::grow(self) {
                self.sleep(1);
            }
            self.handle_all();
            worked = true;
        }
        worked
    }

    /// Handles everything that needs no waiting. False if there was nothing.
    fn handle_all(&mut self) -> bool {
        let mut worked = false;
        self.tasks.release_calls();
        let _all_or_nothing = AbortOnPanic::armed();
        loop {
            if self.mailbox.bell().has_rung() {
                self.on_bell();
            } else if let Some((id, result)) = self.transfers.next() {
                self.on_call_done(id, result);
            } else if let Some((file, task)) = self.tasks.next() {
                self.perform(file, task);
            } else if let Some(flushes) = self.tasks.take_to_share() {
                self.share(flushes);
            } else {
                return worked;
            }
            worked = true;
        }
    }

    /// Handles a ring of the bell: there is news, or an awaited event may have happened.
    fn on_bell(&mut self) {
        let mut mail = self.mailbox.take_mail();
        for (number, news) in mail.drain(..) {
            match news {
                News::Task(task) => self.tasks.push(self.operations.pending[number].file(), task),
                News::Done(outcome) => self.on_answered(number, outcome),
            }
        }
        self.mailbox.keep(mail);
        for (file, request, ended) in self.tasks.take_settling() {
            self.settle_flush(file, request, ended);
        }
        let shut_out = self.operations.take_shut_out();
        for &number in &shut_out {
            self.files[self.operations.pending[number].file()].shuts_out = false;
        }
        self.begin(&shut_out);
    }

    fn perform(&mut self, file: usize, task: Task) {
        match self.tasks.hold(file, task, self.operations.finished() > 0) {
            None => {}
            Some(Task::Request(request)) => self.begin_request(file, request),
            Some(Task::Flush(turn, request)) => self.begin_in_turn(file, turn, request),
            Some(Task::Lead(call)) => self.change(file, |core, out| core.on_called(call, out)),
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        own::forget_dropped();
        if !self.process.is_current() {
            self.transfers.forget_ring();
            self.operations.forget();
            return;
        }
        // Operations that were not submitted never happen.
        for number in self.operations.take_queued() {
            if let Some(file) = self.operations.pending.remove(number).file {
                self.files[file].outstanding -= 1;
            }
        }
        self.settle_while(|driver| driver.is_busy() || !driver.operations.pending.is_empty());
        // The kernel frees a ring later than it is closed, and a device refuses an open while its
        // file is in a ring.
        self.files.let_go_of_all(self.transfers.ring());
    }
}
