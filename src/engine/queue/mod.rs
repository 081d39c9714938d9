//! The operations of a queue: what a thread does for many at once, where a blocking caller does it for one.
//!
//! An operation is queued, submitted, and finished. Once it is submitted it either waits until nobody has its file alone, or
//! has a transfer of its own, or is with the core of its file, which knows it by a [`Token`]. What the core asks of
//! the queue for it (requests, calls) is done here, when the thread comes to it: a request becomes a transfer, which
//! goes through the ring, or where there is none is performed at once by the backend's own calls.
//!
//! Nothing here waits but [`Driver::sleep`]. So a thread that is about to wait elsewhere in the library first
//! [settles](settle_own) its queues: whoever it waits for may wait for them.

mod files;
pub(super) mod inbox;
#[cfg(test)]
mod tests;

use super::core::{Call, Core, Dio, Outbox, Outcome, Request, Work};
use super::io::{self, Transfer};
use super::process::{Ended, Flushing, Process};
use super::reactor::Reactor;
use super::reading::Reading;
use super::token::Token;
use super::waiter::{News, Task};
use super::{AbortOnPanic, Course, Engine};
use crate::backend::ring::{Bell, Io, Ring};
#[cfg(any(test, feature = "sim"))]
use crate::backend::sim::ring::SimRing;
use crate::backend::striped::{Gather, Split};
use crate::backend::uring::Uring;
use crate::buffer::{Buffer, Memory, Pool, Segment};
use crate::error::{ErrorKind, Operation, Result};
use crate::file::Inner;
use crate::inflight::Stay;
use crate::os_error;
use crate::queue::Completion;
use crate::reader::Reader;
use crate::sync::{is_simulated, nap, thread_local};
use files::Files;
use inbox::Inbox;
use slab::Slab;
use smallvec::smallvec;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::rc::{Rc, Weak};
use std::sync::{Arc, Once};
use std::task::Waker;
use std::time::Duration;

/// What an operation is to do.
#[derive(Clone, Copy, Debug)]
pub(crate) enum What {
    Append,
    Write(u64),
    Read(u64),
    Sync,
}

/// See the module. Of one thread.
#[derive(Debug)]
pub(crate) struct Driver {
    process: &'static Process,
    /// Made in a simulation, and only used there.
    simulated: bool,
    depth: usize,
    ring: Option<Box<dyn Ring>>,
    bell: Arc<Bell>,
    /// It rang since the last `wait`.
    rang: bool,
    waker: Waker,
    inbox: Arc<Inbox>,
    pool: Option<Arc<Pool>>,
    files: Files,
    operations: Slab<Pending>,
    /// Not submitted yet, in their order.
    queued: Vec<usize>,
    /// Submitted while somebody had their file alone.
    shut_out: Vec<usize>,
    /// How many are with a core, which others may have news for.
    with_cores: usize,
    transfers: Slab<Running>,
    /// Transfers performed by plain calls.
    performed: VecDeque<(usize, std::io::Result<u64>)>,
    /// Pushed into the ring since it was entered.
    pushed: usize,
    /// What cores ask for.
    tasks: VecDeque<(usize, Task)>,
    /// Calls to send a group out wait until those who are told meanwhile had a chance to join it.
    holds_calls: bool,
    held_calls: VecDeque<(usize, Task)>,
    /// Flushes that succeeded, while some that ran beside them are still out.
    settling: Vec<(usize, Request<Token>, Ended)>,
    /// Files whose grower found no thread.
    to_grow: Vec<usize>,
    finished: VecDeque<Completion>,
    spare_mail: Vec<(usize, News)>,
    spare_batch: Vec<(Token, Dio, bool)>,
}

/// An operation that has not finished.
#[derive(Debug)]
struct Pending {
    tag: u64,
    what: What,
    file: usize,
    durable: bool,
    buffer: Option<Memory>,
    /// What its transfer is to move.
    bytes: u64,
    /// How far a read is, and memory that the kernel may be filling for it.
    reading: Option<Reading>,
    /// Counted in while it is submitted and not finished; operations on devices are not.
    stay: Option<Stay>,
    /// The read-only handle that it reads for beside the engine of the file.
    reader: Option<Reader>,
}

/// Bytes on their way, or a flush.
#[derive(Debug)]
struct Running {
    file: usize,
    purpose: Purpose,
    transfer: Transfer,
    /// What its requests to several members came to so far.
    gather: Option<Gather>,
}

#[derive(Debug)]
enum Purpose {
    /// An operation of which the core knows nothing.
    Operation(usize),
    /// A request of the core, with the flush that it is or carries.
    Request(Request<Token>, Option<Flushing>),
}

/// A request to a member has the number of its transfer, and above that its own.
const PART_SHIFT: u32 = 32;

/// How long a thread sleeps between turns of two queues that both wait: little against what a disk takes.
const NAP: Duration = Duration::from_micros(50);

// Never dropped: while a thread ends, and in what a program does at its exit, the queues are as they were.
thread_local!(static OWN: ManuallyDrop<RefCell<Vec<Weak<RefCell<Driver>>>>> = ManuallyDrop::default());

/// Waits until everything that the queues of this thread have begun is finished, before the thread waits for
/// others, who may wait for that. Nobody waits for what is shut out; and whoever keeps it out may wait for this
/// thread, which can be counted in already for what it is about to do.
pub(crate) fn settle_own() {
    each_own(Driver::settle);
}

/// The queues of this thread let go of files that were closed.
pub(super) fn let_go_of_closed() {
    each_own(Driver::let_go_of_closed);
}

/// Before a queue sleeps: gives the others of its thread a turn, since what it waits for may wait for them. True if it
/// is not to sleep now. While two of them wait for the disk, they take turns with naps between.
fn turn_others(driver: &mut Driver) -> bool {
    let (busy, worked) = (Cell::new(false), Cell::new(false));
    each_own(|other| {
        if other.is_busy() {
            worked.set(other.turn() || worked.get());
            busy.set(other.is_busy() || busy.get());
        }
    });
    if busy.get() && !driver.turn() && !worked.get() {
        nap(NAP);
    }
    busy.get() || worked.get()
}

fn each_own(act: impl Fn(&mut Driver)) {
    let nth = |index: usize| OWN.with(|own| own.borrow().get(index).map(Weak::upgrade));
    let mut index = 0;
    while let Some(driver) = nth(index) {
        index += 1;
        let Some(driver) = driver else { continue };
        // Not one at work: it waits for nobody. Nor one that the parent of this process goes on with; nor one of the
        // simulation that is being watched from here.
        let is_here = |driver: &Driver| driver.process.is_current() && driver.simulated == is_simulated();
        match driver.try_borrow_mut() {
            Ok(mut driver) if is_here(&driver) => act(&mut driver),
            _ => {}
        }
    }
}

impl Driver {
    pub fn new(
        process: &'static Process,
        depth: usize,
        pool: Option<Arc<Pool>>,
        may_use_io_uring: bool,
    ) -> Rc<RefCell<Self>> {
        let (ring, bell) = ring(depth, pool.as_ref(), may_use_io_uring);
        let driver = Rc::new(RefCell::new(Self {
            process,
            simulated: is_simulated(),
            depth,
            ring,
            waker: Waker::from(bell.clone()),
            inbox: Arc::new(Inbox::new(bell.clone())),
            bell,
            rang: false,
            pool,
            files: Files::default(),
            operations: Slab::with_capacity(depth.min(4096)),
            queued: Vec::new(),
            shut_out: Vec::new(),
            with_cores: 0,
            transfers: Slab::new(),
            performed: VecDeque::new(),
            pushed: 0,
            tasks: VecDeque::new(),
            holds_calls: false,
            held_calls: VecDeque::new(),
            settling: Vec::new(),
            to_grow: Vec::new(),
            finished: VecDeque::new(),
            spare_mail: Vec::new(),
            spare_batch: Vec::new(),
        }));
        OWN.with(|own| own.borrow_mut().push(Rc::downgrade(&driver)));
        driver
    }

    pub fn buffer(&self) -> Option<Buffer> {
        self.pool.as_ref()?.take()
    }

    /// How many operations were queued and not reaped.
    pub fn outstanding(&self) -> usize {
        self.operations.len() + self.finished.len()
    }

    pub fn depth(&self) -> usize {
        self.depth
    }

    pub fn uses_io_uring(&self) -> bool {
        self.ring.as_ref().is_some_and(|ring| ring.is_usable())
    }

    /// How many have finished and were not reaped.
    pub fn finished(&self) -> usize {
        self.finished.len()
    }

    /// The next finished operation.
    pub fn next(&mut self) -> Option<Completion> {
        self.finished.pop_front()
    }

    /// Takes an operation, to be submitted later. Gives the buffer back if there are too many.
    pub fn queue(
        &mut self,
        file: &Inner,
        what: What,
        buffer: Option<Memory>,
        tag: u64,
    ) -> Result<(), Option<Memory>> {
        if self.outstanding() >= self.depth {
            return Err(buffer);
        }
        let refusal = match file {
            _ if !self.process.is_current() => Some(ErrorKind::Forked),
            // Not even its gate can be asked, which the parent may have shut.
            Inner::Shared { process, .. } if !process.is_current() => Some(ErrorKind::Forked),
            Inner::Reader(_) if !matches!(what, What::Read(_)) => Some(ErrorKind::ReadOnly),
            _ => None,
        };
        if let Some(kind) = refusal {
            let error = file.error(what.operation(), what.offset(), kind);
            self.finished.push_back(Completion::new(tag, what, buffer, Err(error)));
            return Ok(());
        }
        let (file, durable, reader) = match file {
            Inner::Shared { engine, durable, .. } => (self.attach(engine), *durable, None),
            Inner::Reader(reader) => match (reader.engine_of_device(), reader.engine()) {
                (Some(engine), _) => (self.attach(&engine), false, None),
                (None, Some(engine)) => (self.attach(&engine), false, Some(reader.another())),
                (None, None) => {
                    self.read_beside(reader, what, buffer, tag);
                    return Ok(());
                }
            },
        };
        let operation =
            Pending { tag, what, file, durable, buffer, bytes: 0, reading: None, stay: None, reader };
        self.queued.push(self.operations.insert(operation));
        Ok(())
    }

    /// Reads through a read-only handle where no engine of this process is: at once, since others may cut the file
    /// meanwhile, which only looking before and after can find.
    fn read_beside(&mut self, reader: &Reader, what: What, mut buffer: Option<Memory>, tag: u64) {
        let What::Read(offset) = what else { unreachable!("only reads come here") };
        let into = buffer.as_deref_mut().expect("a read has a buffer");
        let result = reader.read_beside_others(into, offset).map(|read| read as u64);
        self.finished.push_back(Completion::new(tag, what, buffer, result));
    }

    fn attach(&mut self, engine: &Arc<Engine>) -> usize {
        let file = self.files.attach(engine, &mut self.ring);
        self.files[file].outstanding += 1;
        file
    }

    /// Begins everything that is queued.
    pub fn submit(&mut self) {
        self.start();
        self.hand_over();
    }

    /// Begins everything that is queued, and waits until so many have finished, or all.
    pub fn reap(&mut self, min: usize) {
        self.start();
        if min == 0 && self.transfers.len() > self.pushed {
            self.enter(0);
            self.work();
        }
        loop {
            let missing = min.saturating_sub(self.finished.len()).min(self.operations.len());
            if missing == 0 {
                break;
            }
            self.sleep(missing);
            self.work();
        }
        self.hand_over();
    }

    /// Begins everything that is queued, and waits until something has finished, or the bell rang since it last
    /// waited, whoever heard it meanwhile.
    pub fn wait(&mut self) {
        self.start();
        if !self.process.is_current() {
            // The ring is the parent's, and nothing of this process will ring.
            return nap(NAP);
        }
        self.holds_calls = true;
        if self.finished.is_empty() && !self.rang {
            self.sleep(1);
        } else if self.transfers.len() > self.pushed {
            self.enter(0);
        }
        self.work();
        self.hand_over();
        self.holds_calls = false;
        self.rang = false;
    }

    /// It is that of a reactor, which files tell when they are closed.
    pub fn belong_to(&mut self, reactor: Arc<Reactor>) {
        self.files.belong_to(reactor);
    }

    /// What wakes it when it [waits](Self::wait).
    pub fn bell(&self) -> &Arc<Bell> {
        &self.bell
    }

    /// Lets go of files that nobody will use any more.
    pub fn let_go_of_closed(&mut self) {
        self.files.let_go_of_closed(&mut self.ring);
    }

    /// Waits until everything that was begun is finished.
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
        self.let_go_of_closed();
        let queued = std::mem::take(&mut self.queued);
        self.begin(&queued);
        if self.queued.is_empty() {
            self.queued = queued;
            self.queued.clear();
        }
        self.work();
    }

    /// In the child of a fork: its parent goes on with what was submitted, and with what it had pushed.
    fn disown(&mut self) {
        self.pushed = 0;
        self.transfers.clear();
        for operation in self.operations.drain() {
            // The parent's operation, which ends there.
            std::mem::forget(operation.stay);
            let error =
                self.files[operation.file].engine.error(operation.what.operation(), None, ErrorKind::Forked);
            let completion = Completion::new(operation.tag, operation.what, operation.buffer, Err(error));
            self.finished.push_back(completion);
        }
        self.queued.clear();
        self.shut_out.clear();
    }

    /// Hands over what was pushed, without waiting, and takes what came of it at once.
    fn hand_over(&mut self) {
        while self.pushed > 0 {
            self.enter(0);
            self.work();
        }
    }

    fn enter(&mut self, wanted: usize) {
        if let Some(ring) = &mut self.ring {
            // The kernel would have the buffers that unwinding gives back.
            let _all_or_nothing = AbortOnPanic { unwinding: std::thread::panicking() };
            ring.enter(wanted).expect("the kernel loses no completion");
            self.pushed = 0;
        }
    }

    /// Waits for something to do: for `missing` operations if nothing else can become of them than that their
    /// transfers come back.
    fn sleep(&mut self, missing: usize) {
        let alone = self.with_cores == 0 && self.shut_out.is_empty() && missing <= self.transfers.len();
        let wanted = if alone { missing } else { 1 };
        if turn_others(self) || !self.bell.may_sleep() {
            return;
        }
        match self.ring {
            Some(_) => self.enter(wanted),
            None => self.bell.sleep(),
        }
    }

    // --- what there is to do ------------------------------------------------------------------------

    /// Does all that can be done without waiting, also in the kernel. False if that was nothing.
    fn turn(&mut self) -> bool {
        if self.pushed > 0 || !self.transfers.is_empty() {
            self.enter(0);
        }
        self.work()
    }

    /// Whether something was begun and has not finished. A wedge answers operations whose flush is still in flight.
    fn is_busy(&self) -> bool {
        let begun = self.operations.len() - self.queued.len() - self.shut_out.len();
        begun > 0 || !self.transfers.is_empty() || !self.settling.is_empty()
    }

    /// Does all that can be done without waiting. False if that was nothing.
    fn work(&mut self) -> bool {
        let mut worked = false;
        if !self.holds_calls {
            self.tasks.append(&mut self.held_calls);
        }
        let _all_or_nothing = AbortOnPanic { unwinding: std::thread::panicking() };
        loop {
            if self.bell.has_rung() {
                self.look();
            } else if let Some((id, result)) = self.next_transfer() {
                self.came_back(id, result);
            } else if let Some((file, task)) = self.tasks.pop_front() {
                self.perform(file, task);
            } else if let Some(file) = self.to_grow.pop() {
                self.grow(file);
            } else {
                return worked;
            }
            worked = true;
        }
    }

    /// A transfer that came back.
    fn next_transfer(&mut self) -> Option<(usize, std::io::Result<u64>)> {
        while let Some((id, result)) = self.ring.as_mut().and_then(|ring| ring.next()) {
            let (id, part) = (id as u32 as usize, (id >> PART_SHIFT) as usize);
            let Some(gather) = &mut self.transfers[id].gather else { return Some((id, result)) };
            if let Some(result) = gather.took(part, result) {
                self.transfers[id].gather = None;
                return Some((id, result));
            }
        }
        self.performed.pop_front()
    }

    /// The bell rang: somebody has news, or what we waited for may have happened.
    fn look(&mut self) {
        self.rang = true;
        let mut mail = self.inbox.take(std::mem::take(&mut self.spare_mail));
        for (number, news) in mail.drain(..) {
            match news {
                News::Work(task) => self.tasks.push_back((self.operations[number].file, task)),
                News::Done(outcome) => self.answered(number, outcome),
            }
        }
        self.spare_mail = mail;
        for (file, request, ended) in std::mem::take(&mut self.settling) {
            self.settle_flush(file, request, ended);
        }
        let shut_out = std::mem::take(&mut self.shut_out);
        for &number in &shut_out {
            self.files[self.operations[number].file].shuts_out = false;
        }
        self.begin(&shut_out);
    }

    fn perform(&mut self, file: usize, task: Task) {
        match task {
            Task::Request(request) => self.begin_request(file, request),
            Task::Call(Call::Extend) if self.holds_calls && !self.finished.is_empty() => {
                self.held_calls.push_back((file, task));
            }
            Task::Call(call) => self.change(file, |core, out| core.called(call, out)),
        }
    }

    /// There is no thread for it. It syncs, and would wait for flushes of this very queue.
    fn grow(&mut self, file: usize) {
        let flushes = |running: &Running| matches!(running.purpose, Purpose::Request(_, Some(_)));
        if self.transfers.iter().any(|(_, running)| flushes(running)) {
            self.to_grow.push(file);
            self.sleep(1);
        } else {
            self.files[file].engine.clone().grow();
        }
    }

    // --- operations ---------------------------------------------------------------------------------

    /// Begins operations, in their order: those of one file that its core is to know of go there together.
    fn begin(&mut self, numbers: &[usize]) {
        let mut batch = std::mem::take(&mut self.spare_batch);
        let mut of = None;
        for &number in numbers {
            let Some(dio) = self.begin_one(number) else { continue };
            let operation = &self.operations[number];
            let (file, durable) = (operation.file, operation.durable);
            if let Some(of) = of.filter(|of| *of != file) {
                self.change(of, |core, out| core.submit(batch.drain(..), out));
            }
            of = Some(file);
            batch.push((Token::Queue(self.inbox.clone(), number), dio, durable));
            self.with_cores += 1;
        }
        if let Some(of) = of {
            self.change(of, |core, out| core.submit(batch.drain(..), out));
        }
        self.spare_batch = batch;
    }

    /// Begins an operation, unless it is one for the core of its file: then it says what to ask of it.
    fn begin_one(&mut self, number: usize) -> Option<Dio> {
        if !self.find_writer(number) {
            return None;
        }
        if !self.count_in(number) {
            self.shut_out.push(number);
            return None;
        }
        let operation = &mut self.operations[number];
        let engine = &self.files[operation.file].engine;
        if let Err(error) = engine.check_usable(operation.what.operation()) {
            self.finish(number, Err(error));
            return None;
        }
        // Only now: whoever closes it has it alone.
        if engine.is_closed() {
            self.refuse_closed(number);
            return None;
        }
        let data = operation.buffer.as_deref();
        let course = match (operation.what, data) {
            (What::Append, Some(data)) => engine.course_of_append(data),
            (What::Write(offset), Some(data)) => engine.course_of_write(data, offset, operation.durable),
            (What::Read(offset), Some(data)) => Ok(engine.course_of_read(data, offset)),
            (What::Sync, _) => Ok(Course::Core(Dio::Sync)),
            (_, None) => unreachable!("only a sync has no buffer"),
        };
        match course {
            Err(error) => self.finish(number, Err(error)),
            Ok(Course::Done(result)) => self.finish(number, Ok(result)),
            Ok(Course::Core(dio)) => return Some(dio),
            Ok(Course::Direct(bytes)) => {
                operation.bytes = bytes;
                let transfer = match (operation.what, data) {
                    (What::Read(offset), Some(into)) => {
                        let reading = Reading::of(into, offset, bytes, engine.alignment);
                        operation.reading.insert(reading).transfer()
                    }
                    _ => Transfer::of_write(bytes, engine.alignment.offset).with_flush(operation.durable),
                };
                let file = operation.file;
                self.run(Running { file, purpose: Purpose::Operation(number), transfer, gather: None });
            }
        }
        None
    }

    /// Counts an operation in. False if somebody has its file alone, or others wait for that who came before: then the
    /// bell rings when it is over.
    fn count_in(&mut self, number: usize) -> bool {
        let operation = &mut self.operations[number];
        let file = &mut self.files[operation.file];
        let gate = &file.engine.gate;
        if file.engine.is_device {
            return true;
        }
        while !file.shuts_out {
            operation.stay = gate.try_enter();
            if operation.stay.is_some() {
                return true;
            }
            file.shuts_out = gate.wake_when_open(self.waker.clone());
        }
        false
    }

    /// A read through a read-only handle goes by the engine of whoever writes the file by now. False if that is nobody:
    /// then it was performed.
    fn find_writer(&mut self, number: usize) -> bool {
        let Some(reader) = &self.operations[number].reader else { return true };
        let Some(engine) = reader.engine() else {
            self.read_without_writer(number);
            return false;
        };
        let now = self.attach(&engine);
        let then = std::mem::replace(&mut self.operations[number].file, now);
        self.files[then].outstanding -= 1;
        true
    }

    /// The file was closed since the operation was queued.
    fn refuse_closed(&mut self, number: usize) {
        let operation = &self.operations[number];
        if operation.reader.is_some() {
            return self.read_without_writer(number);
        }
        let engine = &self.files[operation.file].engine;
        let what = operation.what;
        let error = engine.error(what.operation(), what.offset(), ErrorKind::Os(libc::EBADF));
        self.finish(number, Err(error));
    }

    /// Reads through a read-only handle what this process does not write, at once.
    fn read_without_writer(&mut self, number: usize) {
        let operation = &mut self.operations[number];
        let (Some(reader), What::Read(offset)) = (&operation.reader, operation.what) else {
            unreachable!("only reads have a reader")
        };
        let into = operation.buffer.as_deref_mut().expect("a read has a buffer");
        let result = reader.read_beside_others(into, offset).map(|read| read as u64);
        self.finish(number, result);
    }

    /// The transfer of an operation came to its end; a read may need another one.
    fn transferred(&mut self, number: usize, result: std::io::Result<u64>) {
        let operation = &mut self.operations[number];
        let engine = &self.files[operation.file].engine;
        let what = operation.what;
        let fail = |kind| engine.error(what.operation(), what.offset(), kind);
        let result = match (what, &operation.reader) {
            // It was closed meanwhile, so what it thought to be there may have been cut.
            (_, Some(reader)) if !reader.is_beside(engine) => return self.read_without_writer(number),
            (What::Read(_), _) => {
                let reading = operation.reading.as_mut().expect("it was begun");
                let into = operation.buffer.as_deref_mut().expect("a read has a buffer");
                let Some(result) = reading.took(into, result) else {
                    let (file, transfer) = (operation.file, reading.transfer());
                    return self.run(Running {
                        file,
                        purpose: Purpose::Operation(number),
                        transfer,
                        gather: None,
                    });
                };
                result.map_err(|error| fail(os_error::kind(&error)))
            }
            _ => {
                let written = operation.bytes;
                let judged =
                    engine.judge_write(result.map(drop), Operation::Write, what.offset().unwrap_or(0));
                judged.map(|()| written).map_err(|failure| fail(failure.kind))
            }
        };
        self.finish(number, result);
    }

    /// A core has answered an operation.
    fn answered(&mut self, number: usize, outcome: Outcome) {
        self.with_cores -= 1;
        let operation = &self.operations[number];
        let engine = &self.files[operation.file].engine;
        let bytes = operation.buffer.as_ref().map_or(0, |buffer| buffer.len() as u64);
        let result = match (outcome, operation.what) {
            (Ok(offset), What::Append) => {
                engine.count_append(bytes);
                Ok(offset)
            }
            (Ok(_), _) => Ok(bytes),
            (Err(kind), what) => Err(engine.error(what.operation(), what.offset(), kind)),
        };
        self.finish(number, result);
    }

    fn finish(&mut self, number: usize, result: Result<u64>) {
        let operation = self.operations.remove(number);
        let file = &mut self.files[operation.file];
        file.outstanding -= 1;
        if let Some(stay) = operation.stay {
            file.engine.gate.leave(stay);
        }
        self.finished.push_back(Completion::new(operation.tag, operation.what, operation.buffer, result));
    }
}

// --- transfers, and what cores make of them ---------------------------------------------------------

impl Driver {
    /// Changes the core of a file, and hands out what came of it: here, where it is for an operation of this queue.
    fn change(&mut self, file: usize, change: impl FnOnce(&mut Core<Token>, &mut Outbox<Token>)) {
        let engine = self.files[file].engine.clone();
        let ((), out) = engine.change(change);
        for request in out.requests {
            match self.is_own(&request.owner) {
                true => self.tasks.push_back((file, Task::Request(request))),
                false => request.owner.clone().assign(Task::Request(request)),
            }
        }
        for (owner, call) in out.calls {
            match self.is_own(&owner) {
                true => self.tasks.push_back((file, Task::Call(call))),
                false => owner.assign(Task::Call(call)),
            }
        }
        for (token, outcome) in out.outcomes {
            match token {
                Token::Queue(inbox, number) if Arc::ptr_eq(&inbox, &self.inbox) => {
                    self.answered(number, outcome)
                }
                token => token.finish(outcome),
            }
        }
        if out.start_grower && !engine.start_grower() {
            self.to_grow.push(file);
        }
    }

    fn is_own(&self, token: &Token) -> bool {
        matches!(token, Token::Queue(inbox, _) if Arc::ptr_eq(inbox, &self.inbox))
    }

    fn begin_request(&mut self, file: usize, mut request: Request<Token>) {
        let attached = &mut self.files[file];
        let engine = &attached.engine;
        match engine.begin_request(&mut request.work) {
            Ok(flush) => {
                attached.outstanding += 1;
                let transfer = engine.transfer_of(&request.work);
                self.run(Running { file, purpose: Purpose::Request(request, flush), transfer, gather: None });
            }
            Err(failure) => self.change(file, |core, out| core.completed(request.id, Err(failure), out)),
        }
    }

    fn run(&mut self, running: Running) {
        let id = self.transfers.insert(running);
        self.go_on(id);
    }

    /// Moves what is left to move.
    fn go_on(&mut self, id: usize) {
        let Running { file, purpose, transfer, .. } = &self.transfers[id];
        let (part, dsync) = (transfer.part(), transfer.dsync());
        let file = &self.files[*file];
        if let Purpose::Request(Request { work: Work::Write { offset, .. }, .. }, _) = purpose
            && transfer.asks_for_space()
        {
            let result = io::space_for(&*file.engine.backend, *offset, &part);
            return self.performed.push_back((id, result));
        }
        let io = match purpose {
            Purpose::Request(request, _) => io_of(&request.work, &part, dsync),
            Purpose::Operation(number) => {
                let operation = &mut self.operations[*number];
                let memory = operation.buffer.as_mut().expect("reads and writes have one");
                match &mut operation.reading {
                    Some(reading) => {
                        let (into, offset) = reading.target(memory, part.start);
                        Io::Read { into: smallvec![Segment::of_mut(into)], offset }
                    }
                    None => Io::Write {
                        segments: smallvec![Segment::of(&memory[part.start as usize..])],
                        offset: operation.what.offset().expect("writes have one") + part.start,
                        dsync,
                    },
                }
            }
        };
        let backend = &*file.engine.backend;
        let ring = self.ring.as_mut().filter(|ring| ring.is_usable());
        let unfit = match (ring, &file.slots[..], backend.striped()) {
            (None, ..) | (_, [], _) => Some(io),
            (Some(ring), slots, Some(striped)) => match striped.split(io) {
                Ok(Split { parts, gather }) => {
                    self.pushed += parts.len();
                    for (part, (member, io)) in parts.into_iter().enumerate() {
                        ring.push(slots[member], id as u64 | (part as u64) << PART_SHIFT, io);
                    }
                    self.transfers[id].gather = Some(gather);
                    None
                }
                Err(io) => Some(io),
            },
            (Some(ring), slots, None) => {
                ring.push(slots[0], id as u64, io);
                self.pushed += 1;
                None
            }
        };
        if let Some(io) = unfit {
            let result = io.perform(backend);
            self.performed.push_back((id, result));
        }
    }

    fn came_back(&mut self, id: usize, result: std::io::Result<u64>) {
        let Some(result) = self.transfers[id].transfer.took(result) else { return self.go_on(id) };
        let Running { file, purpose, .. } = self.transfers.remove(id);
        let engine = &self.files[file].engine;
        match purpose {
            Purpose::Operation(number) => self.transferred(number, result),
            Purpose::Request(request, None) => self.end_request(file, request, result.map(drop)),
            Purpose::Request(request, Some(flush)) => {
                let result = result.map(drop);
                let ended = engine.end_flush(&request.work, flush, &result);
                match result {
                    Ok(()) => self.settle_flush(file, request, ended),
                    failed => self.end_request(file, request, failed),
                }
            }
        }
    }

    /// A flush succeeded, which is to be believed once those that ran beside it have ended.
    fn settle_flush(&mut self, file: usize, request: Request<Token>, ended: Ended) {
        let fs = &self.files[file].engine.fs;
        if fs.is_settled(&ended, &self.waker) {
            let result = fs.believed(Ok(()));
            self.end_request(file, request, result);
        } else {
            self.settling.push((file, request, ended));
        }
    }

    fn end_request(&mut self, file: usize, request: Request<Token>, result: std::io::Result<()>) {
        let attached = &mut self.files[file];
        attached.outstanding -= 1;
        let result = attached.engine.end_request(request.work, result);
        self.change(file, |core, out| core.completed(request.id, result, out));
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        OWN.with(|own| {
            let mut own = own.borrow_mut();
            own.retain(|driver| driver.strong_count() > 0);
            own.shrink_to_fit();
        });
        if !self.process.is_current() {
            // The parent has the same ring, and the kernel its memory.
            std::mem::forget(self.ring.take());
            std::mem::forget(std::mem::take(&mut self.operations));
            return;
        }
        // What was not submitted never happens.
        for number in std::mem::take(&mut self.queued) {
            let operation = self.operations.remove(number);
            self.files[operation.file].outstanding -= 1;
        }
        self.settle_while(|driver| driver.is_busy() || !driver.operations.is_empty());
        // The kernel takes a ring apart later than it is closed, and devices let nobody in until their files are.
        self.files.let_go_of_all(&mut self.ring);
    }
}

impl What {
    pub fn operation(self) -> Operation {
        match self {
            Self::Append => Operation::Append,
            Self::Write(_) => Operation::Write,
            Self::Read(_) => Operation::Read,
            Self::Sync => Operation::Flush,
        }
    }

    pub fn offset(self) -> Option<u64> {
        match self {
            Self::Write(offset) | Self::Read(offset) => Some(offset),
            Self::Append | Self::Sync => None,
        }
    }
}

/// The kernel's ring if it may be used (in a simulation, a simulated one), or the reason in the log, once; and the bell to wake the queue with.
fn ring(
    depth: usize,
    pool: Option<&Arc<Pool>>,
    may_use_io_uring: bool,
) -> (Option<Box<dyn Ring>>, Arc<Bell>) {
    static SAID: Once = Once::new();
    #[cfg(any(test, feature = "sim"))]
    if may_use_io_uring && is_simulated() {
        let bell = Arc::<Bell>::default();
        return (Some(Box::new(SimRing::new(bell.clone()))), bell);
    }
    if !may_use_io_uring {
        return (None, Arc::default());
    }
    match Uring::new(depth, pool.cloned()) {
        Ok((ring, bell)) => (Some(Box::new(ring)), bell),
        Err(error) => {
            SAID.call_once(|| {
                log::warn!("dioxide: no io_uring here ({error}); queues make plain calls, one at a time")
            });
            (None, Arc::default())
        }
    }
}

/// A part of the work.
fn io_of(work: &Work, part: &Range<u64>, dsync: bool) -> Io {
    match work {
        Work::Flush => Io::Flush,
        Work::Write { segments, offset, .. } => {
            let is_all = *part == (0..work.len());
            let segments = if is_all { segments.clone() } else { io::part_of(segments, part) };
            Io::Write { segments, offset: offset + part.start, dsync }
        }
    }
}
