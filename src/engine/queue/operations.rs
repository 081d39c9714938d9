//! The operations of a queue: queued, submitted, finished.

use super::completion::{Completion, Tag};
use super::transfers::{Purpose, Running};
use super::{Driver, OpKind, files};
use crate::backend::ring::Uses;
use crate::buffer::Memory;
use crate::engine::Course;
use crate::engine::core::{Dio, Outcome};
use crate::engine::io::RequestIo;
use crate::engine::reader::{Attempts, ReadHandle, Way};
use crate::engine::reading::Reading;
use crate::engine::token::Token;
use crate::error::{Error, ErrorKind, Result};
use crate::observe::Timestamp;
use crate::os_error;
use crate::rules::flush::SHARERS_MIN;
use crate::sync::inflight::InFlightTicket;
use slab::Slab;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

/// An operation that has not finished.
#[derive(Debug)]
pub(super) struct Pending {
    pub tag: Tag,
    pub what: OpKind,
    /// The number of its file. None for a read of a file that this process does not write.
    pub file: Option<usize>,
    pub durable: bool,
    pub buffer: Option<Memory>,
    /// When an append was queued, while events are observed.
    pub begun: Option<Timestamp>,
    /// Bytes that its transfer moves.
    pub bytes: u64,
    /// Progress of a read, and memory that the kernel may be filling for it.
    pub reading: Option<Reading>,
    /// Its entry at the gate while it is submitted and not finished.
    pub ticket: Option<InFlightTicket>,
    /// For a read of a file through a read-only handle. (A device has an engine of its own.)
    pub by_reader: Option<Box<ByReader>>,
}

/// A read through a read-only handle. As long as this process writes the file, its engine reads.
#[derive(Debug)]
pub(super) struct ByReader {
    pub reader: Arc<ReadHandle>,
    pub attempts: Attempts,
    /// The numbers of the handle's file in the ring, while it is read without an engine.
    pub slots: SmallVec<[u32; 1]>,
}

impl ByReader {
    pub fn new(reader: Arc<ReadHandle>) -> Box<Self> {
        Box::new(Self { reader, attempts: Attempts::default(), slots: SmallVec::new() })
    }
}

impl Pending {
    /// The number of the file of an operation that an engine performs.
    pub fn file(&self) -> usize {
        self.file.expect("an engine performs it")
    }

    /// The parts of a read through a read-only handle: the handle, the offset, the memory.
    fn read(&mut self) -> (&mut ByReader, u64, &mut [u8]) {
        match (&mut self.by_reader, self.what, &mut self.buffer) {
            (Some(by_reader), OpKind::Read(offset), Some(into)) => (by_reader, offset, into),
            _ => unreachable!("only reads have a reader"),
        }
    }
}

/// Operations with one completion, which comes with the last result.
#[derive(Debug)]
struct CompletionGroup {
    tag: u64,
    left: usize,
    /// The error of the first member that failed, with its number.
    failed: Option<(usize, Error)>,
}

/// The operations of a queue.
#[derive(Debug)]
pub(super) struct Operations {
    pub pending: Slab<Pending>,
    groups: Slab<CompletionGroup>,
    /// Not submitted yet, in order.
    queued: Vec<usize>,
    /// Submitted during an exclusive operation on their file.
    shut_out: Vec<usize>,
    /// Number of operations in a core, for which other threads may have news.
    with_cores: usize,
    /// Durable operations on many files begin together.
    pub begins_on_many: bool,
    finished: VecDeque<Completion>,
    /// Number of finished operations that [`next`](Self::next) has returned.
    pub taken: u64,
    spare_batch: Vec<(Token, Dio, bool)>,
}

impl Operations {
    pub fn with_capacity(capacity: usize) -> Self {
        Self {
            pending: Slab::with_capacity(capacity),
            groups: Slab::new(),
            queued: Vec::new(),
            shut_out: Vec::new(),
            with_cores: 0,
            begins_on_many: false,
            finished: VecDeque::new(),
            taken: 0,
            spare_batch: Vec::new(),
        }
    }

    /// Number of operations that were queued and not reaped.
    pub fn outstanding(&self) -> usize {
        self.pending.len() + self.finished.len()
    }

    pub fn finished(&self) -> usize {
        self.finished.len()
    }

    /// The next finished operation.
    pub fn next(&mut self) -> Option<Completion> {
        let next = self.finished.pop_front()?;
        self.taken += 1;
        Some(next)
    }

    /// Number of operations that were begun and have not finished.
    pub fn begun(&self) -> usize {
        self.pending.len() - self.queued.len() - self.shut_out.len()
    }

    /// Whether submitted operations wait for nothing but their transfers.
    pub fn wait_for_transfers(&self) -> bool {
        self.with_cores == 0 && self.shut_out.is_empty()
    }

    pub fn queue(&mut self, operation: Pending) {
        self.queued.push(self.pending.insert(operation));
    }

    /// Makes a group of so many members. One without members is finished at once.
    pub fn group(&mut self, members: usize, what: OpKind, tag: u64) -> usize {
        let group = self.groups.insert(CompletionGroup { tag, left: members, failed: None });
        self.finish_group(group, what);
        group
    }

    /// Takes the result of an operation that has ended, or that never began.
    pub fn complete(
        &mut self,
        tag: Tag,
        what: OpKind,
        memory: Option<Memory>,
        result: Result<u64>,
    ) {
        match tag {
            Tag::Own(tag) => self.finished.push_back(Completion::new(tag, what, memory, result)),
            Tag::Member { group, nth } => {
                let known = &mut self.groups[group];
                known.left -= 1;
                if let Err(error) = result
                    && known.failed.as_ref().is_none_or(|(first, _)| nth < *first)
                {
                    known.failed = Some((nth, error));
                }
                self.finish_group(group, what);
            }
        }
    }

    fn finish_group(&mut self, group: usize, what: OpKind) {
        if self.groups[group].left == 0 {
            let CompletionGroup { tag, failed, .. } = self.groups.remove(group);
            let result = failed.map_or(Ok(0), |(_, error)| Err(error));
            self.finished.push_back(Completion::new(tag, what, None, result));
        }
    }

    pub fn take_queued(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.queued)
    }

    /// Keeps the memory of a list, if nothing was queued meanwhile.
    pub fn keep_queued(&mut self, mut queued: Vec<usize>) {
        if self.queued.is_empty() {
            queued.clear();
            self.queued = queued;
        }
    }

    pub fn take_shut_out(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.shut_out)
    }

    /// Takes all unfinished operations, in the child of a fork.
    pub fn disown(&mut self) -> Vec<Pending> {
        self.queued.clear();
        self.shut_out.clear();
        self.pending.drain().collect()
    }

    /// Leaks all operations in the child of a fork: the kernel has their memory.
    pub fn forget(&mut self) {
        std::mem::forget(std::mem::take(&mut self.pending));
    }
}

impl Driver {
    /// Begins operations in order. Those of one file that need its core go there together.
    pub(super) fn begin(&mut self, numbers: &[usize]) {
        let mut batch = std::mem::take(&mut self.operations.spare_batch);
        self.operations.begins_on_many = self.are_on_many(numbers);
        let mut of = None;
        for &number in numbers {
            let Some(dio) = self.begin_one(number) else { continue };
            let operation = &self.operations.pending[number];
            let (file, durable) = (operation.file(), operation.durable);
            if let Some(of) = of.filter(|of| *of != file) {
                self.change(of, |core, out| core.submit(batch.drain(..), out));
            }
            of = Some(file);
            batch.push((self.mailbox.token(number), dio, durable));
            self.operations.with_cores += 1;
        }
        if let Some(of) = of {
            self.change(of, |core, out| core.submit(batch.drain(..), out));
        }
        self.operations.spare_batch = batch;
        self.operations.begins_on_many = false;
    }

    /// Whether the durable ones among these operations are on so many files that those share a
    /// flush.
    fn are_on_many(&self, numbers: &[usize]) -> bool {
        let mut files = SmallVec::<[usize; SHARERS_MIN]>::new();
        let pending = numbers.iter().map(|number| &self.operations.pending[*number]);
        pending.filter(|operation| operation.durable).filter_map(|it| it.file).any(|file| {
            if !files.contains(&file) {
                files.push(file);
            }
            files.len() == SHARERS_MIN
        })
    }

    /// Begins an operation. Returns it instead if it needs the core of its file.
    fn begin_one(&mut self, number: usize) -> Option<Dio> {
        let by_reader = self.operations.pending[number].by_reader.is_some();
        if by_reader && !self.route(number) {
            return None;
        }
        if !self.count_in(number) {
            self.operations.shut_out.push(number);
            return None;
        }
        let operation = &mut self.operations.pending[number];
        let engine = &self.files[operation.file()].engine;
        if let Err(error) = engine.check_usable(operation.what.operation()) {
            self.finish(number, Err(error));
            return None;
        }
        // Inside the gate: close sets this while it holds the gate shut.
        if engine.is_closed() {
            // The handle is no longer routed to this engine.
            return if by_reader { self.begin_one(number) } else { self.refuse_closed(number) };
        }
        let data = operation.buffer.as_deref();
        let course = match (operation.what, data) {
            (OpKind::Append, Some(data)) => engine.course_of_append(data),
            (OpKind::Write(offset), Some(data)) => {
                engine.course_of_write(data, offset, operation.durable)
            }
            (OpKind::Read(offset), Some(data)) => Ok(engine.course_of_read(data, offset)),
            (OpKind::Sync, _) => Ok(Course::Core(Dio::Sync)),
            (_, None) => unreachable!("only a sync has no buffer"),
        };
        match course {
            Err(error) => self.finish(number, Err(error)),
            Ok(Course::Done(result)) => self.finish(number, Ok(result)),
            Ok(Course::Core(dio)) => return Some(dio),
            Ok(Course::Direct(bytes)) => {
                operation.bytes = bytes;
                let transfer = match (operation.what, data) {
                    (OpKind::Read(offset), Some(into)) => {
                        let reading = Reading::of(into, offset, bytes, engine.alignment);
                        operation.reading.insert(reading).transfer()
                    }
                    _ => RequestIo::of_write(bytes, engine.alignment.offset)
                        .with_flush(operation.durable),
                };
                self.run(Running::new(Purpose::Operation(number), transfer));
            }
        }
        None
    }

    /// Enters the gate. False during an exclusive operation, or while earlier operations wait for
    /// its end. The bell rings then.
    fn count_in(&mut self, number: usize) -> bool {
        let operation = &mut self.operations.pending[number];
        let file = &mut self.files[operation.file()];
        let gate = &file.engine.gate;
        while !file.shuts_out {
            operation.ticket = gate.try_enter();
            if operation.ticket.is_some() {
                return true;
            }
            file.shuts_out = gate.wake_when_open(self.mailbox.waker());
        }
        false
    }

    /// Takes an operation from its engine, if it has one.
    fn leave_engine(&mut self, number: usize) {
        let operation = &mut self.operations.pending[number];
        let Some(file) = operation.file.take() else { return };
        let file = &mut self.files[file];
        file.outstanding -= 1;
        if let Some(ticket) = operation.ticket.take() {
            file.engine.gate.leave(ticket);
        }
    }

    /// Ends an operation whose file was closed after it was queued.
    fn refuse_closed(&mut self, number: usize) -> Option<Dio> {
        let error = self.error(&self.operations.pending[number], ErrorKind::Os(libc::EBADF));
        self.finish(number, Err(error));
        None
    }

    /// Routes a read through a read-only handle to the engine of this process that writes the file.
    /// Without one, begins to read the file, or ends the read, and returns false.
    fn route(&mut self, number: usize) -> bool {
        self.leave_engine(number);
        loop {
            let operation = &mut self.operations.pending[number];
            let (by_reader, offset, into) = operation.read();
            let ByReader { reader, attempts, slots } = by_reader;
            let room = into.len() as u64;
            let bytes = match attempts.begin(reader, offset.saturating_add(room)) {
                Ok(Way::Engine(engine)) => {
                    self.operations.pending[number].file = Some(self.attach(&engine));
                    return true;
                }
                Ok(Way::UpTo(len)) => len.saturating_sub(offset).min(room),
                Err(error) => {
                    self.end_attempts(number, Err(error));
                    return false;
                }
            };
            if bytes > 0 {
                if let (true, Some(ring)) = (slots.is_empty(), self.transfers.ring()) {
                    *slots = files::slots(&mut **ring, reader.backend(), Uses::One);
                }
                let reading = Reading::of(into, offset, bytes, reader.alignment());
                let transfer = operation.reading.insert(reading).transfer();
                self.run(Running::new(Purpose::Operation(number), transfer));
                return false;
            }
            if let Some(result) = attempts.on_result(reader, Ok(0)) {
                self.end_attempts(number, result);
                return false;
            }
        }
    }

    fn on_attempted(&mut self, number: usize, result: io::Result<u64>) {
        let (ByReader { reader, attempts, .. }, ..) = self.operations.pending[number].read();
        match attempts.on_result(reader, result) {
            Some(result) => self.end_attempts(number, result),
            None => self.begin(&[number]),
        }
    }

    fn end_attempts(&mut self, number: usize, result: io::Result<u64>) {
        let operation = &self.operations.pending[number];
        let result = result.map_err(|error| self.error(operation, os_error::kind(&error)));
        self.finish(number, result);
    }

    /// Takes the result of an operation's transfer. A read may need another transfer.
    pub(super) fn on_transferred(&mut self, number: usize, result: io::Result<u64>) {
        let operation = &mut self.operations.pending[number];
        let engine = operation.file.map(|file| &self.files[file].engine);
        let result = match (operation.what, engine) {
            (OpKind::Read(_), engine) => {
                let reading = operation.reading.as_mut().expect("it was begun");
                let into = operation.buffer.as_deref_mut().expect("a read has a buffer");
                let Some(result) = reading.on_result(into, result) else {
                    let transfer = reading.transfer();
                    return self.run(Running::new(Purpose::Operation(number), transfer));
                };
                if engine.is_none() {
                    return self.on_attempted(number, result);
                }
                result.map_err(|error| os_error::kind(&error))
            }
            (what, Some(engine)) => {
                let written = operation.bytes;
                let judged = engine.judge_write(result.map(drop), what.offset().unwrap_or(0));
                judged.map(|()| written).map_err(|failure| failure.kind)
            }
            (_, None) => unreachable!("only reads have no engine"),
        };
        let operation = &self.operations.pending[number];
        let result = result.map_err(|kind| self.error(operation, kind));
        self.finish(number, result);
    }

    /// Takes the core's answer to an operation.
    pub(super) fn on_answered(&mut self, number: usize, outcome: Outcome) {
        self.operations.with_cores -= 1;
        let operation = &self.operations.pending[number];
        let bytes = operation.buffer.as_ref().map_or(0, |buffer| buffer.len() as u64);
        let result = match (outcome, operation.what) {
            (Ok(offset), OpKind::Append) => {
                self.files[operation.file()].engine.on_appended(bytes, operation.begun);
                Ok(offset)
            }
            (Ok(_), _) => Ok(bytes),
            (Err(kind), _) => Err(self.error(operation, kind)),
        };
        self.finish(number, result);
    }

    /// An error of an operation.
    pub(super) fn error(&self, operation: &Pending, kind: ErrorKind) -> Error {
        let (what, offset) = (operation.what.operation(), operation.what.offset());
        match (operation.file, &operation.by_reader) {
            (Some(file), _) => self.files[file].engine.error(what, offset, kind),
            (None, Some(by_reader)) => Error::new(what, by_reader.reader.path(), offset, kind),
            (None, None) => unreachable!("an operation has an engine or a reader"),
        }
    }

    fn finish(&mut self, number: usize, result: Result<u64>) {
        self.leave_engine(number);
        let Pending { tag, what, buffer, by_reader, .. } = self.operations.pending.remove(number);
        if let (Some(by_reader), Some(ring)) = (by_reader, self.transfers.ring()) {
            by_reader.slots.iter().for_each(|slot| ring.detach(*slot));
        }
        self.operations.complete(tag, what, buffer, result);
    }
}
