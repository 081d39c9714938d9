//! Performs the requests of the cores, and reports their results.

use super::files::AttachedFile;
use super::transfers::{Purpose, Running};
use super::{Driver, own};
use crate::backend::ring::Io;
use crate::buffer::{Buffer, Segment};
use crate::engine::core::{Core, Edge, Outbox, Request, Work};
use crate::engine::io::{RequestIo, part_of, space_for};
use crate::engine::process::{EndedFlush, FileSystems};
use crate::engine::token::Token;
use crate::engine::waiter::{Task, Wakeup};
use crate::engine::{AfterFlush, Begun};
use crate::rules::flush::{SHARERS_MIN, Turn};
use smallvec::{SmallVec, smallvec};
use std::io;
use std::ops::Range;

impl Driver {
    /// Changes the core of a file, and hands out its output. Tasks for this queue's operations stay
    /// here.
    pub(super) fn change(
        &mut self,
        file: usize,
        change: impl FnOnce(&mut Core<Token>, &mut Outbox<Token>),
    ) {
        let engine = self.files[file].engine.clone();
        let ((), out) = engine.change(self.operations.begins_on_many, change);
        for request in out.requests {
            match self.mailbox.own(&request.owner).is_some() {
                true => self.tasks.push(file, Task::Request(request)),
                false => request.owner.clone().assign(Task::Request(request)),
            }
        }
        for (owner, call) in out.calls {
            match self.mailbox.own(&owner).is_some() {
                true => self.tasks.push(file, Task::Lead(call)),
                false => owner.assign(Task::Lead(call)),
            }
        }
        let mut others = Wakeup::default();
        for (token, outcome) in out.outcomes {
            match self.mailbox.own(&token) {
                Some(number) => self.on_answered(number, outcome),
                None => token.finish(outcome, &mut others),
            }
        }
        engine.sleepers.wake(others);
        if out.start_grower && !engine.start_grower() {
            own::grow_later(engine);
        }
    }

    /// Begins a request. A flush that may be shared waits until the queue has nothing else to do,
    /// so that its files ask together.
    pub(super) fn begin_request(&mut self, file: usize, request: Request<Token>) {
        match request.work {
            Work::Flush if self.files[file].engine.journal.is_ok() => {
                self.tasks.share_later(file, request);
            }
            Work::Flush | Work::Write { .. } => self.begin_in_turn(file, Turn::Alone, request),
        }
    }

    /// Begins to read the block, before the request is packed.
    fn read_edge(&mut self, file: usize, request: Request<Token>, (start, len): (u64, u64)) {
        let attached = &mut self.files[file];
        attached.outstanding += 1;
        let edge = Edge { start, memory: Buffer::zeroed(len as usize), read: 0 };
        let transfer = RequestIo::of_read(len, attached.engine.alignment.offset);
        self.run(Running::new(Purpose::Edge(file, request, edge), transfer));
    }

    fn on_edge_read(
        &mut self,
        file: usize,
        mut request: Request<Token>,
        edge: Edge,
        result: io::Result<u64>,
    ) {
        match (result, &mut request.work) {
            (Ok(read), Work::Write { edges, .. }) => {
                self.files[file].outstanding -= 1;
                edges.push(Edge { read, ..edge });
                self.begin_in_turn(file, Turn::Alone, request);
            }
            (result, work) => {
                self.files[file].engine.on_unread_edge(work);
                self.end_request(file, request, result.map(drop));
            }
        }
    }

    /// Begins the flushes of several files of one file system, or lets them wait for a shared one.
    /// Durable writes in flight are about to need a flush as well.
    ///
    /// The thread may have to wait for a file system that does not respond. So the flushes of
    /// others come later, when these have ended if there is no ring. Else threads with files there
    /// would wait for a leader that does not begin, or for a flush whose end is not seen.
    pub(super) fn share(&mut self, flushes: Vec<(usize, Request<Token>)>) {
        let Some((first, _)) = flushes.first() else { return };
        let fs = self.files[*first].engine.fs.clone();
        let (own, others): (Vec<_>, Vec<_>) =
            flushes.into_iter().partition(|(file, _)| self.files[*file].engine.fs == fs);
        for (file, request) in others {
            self.tasks.share_later(file, request);
        }
        let mut others = own.len();
        if others < SHARERS_MIN {
            others += self.others_before_flushes(&own, &fs);
        }
        // Without a ring, two flushes take twice as long as a shared one.
        let weight = if self.transfers.has_ring() { 1 } else { SHARERS_MIN };
        let prepared = own.into_iter().map(|(file, request)| {
            let needs = self.files[file].engine.reach_of_flush();
            (file, request, needs)
        });
        let prepared: Vec<_> = prepared.collect();
        let mut turns = Vec::new();
        for (file, request, needs) in prepared {
            others -= 1;
            let turn = self.files[file].engine.share(request, needs, others * weight);
            turns.extend(turn.map(|(turn, request)| (file, turn, request)));
        }
        // After all have asked: a leader covers them. Leaders first: without a ring, the others
        // would delay all files that wait for them.
        turns.sort_by_key(|(_, turn, _)| !matches!(turn, Turn::Leads(_)));
        for (file, turn, request) in turns {
            self.begin_in_turn(file, turn, request);
        }
    }

    /// Number of other files of the file system with durable writes in flight; at most so many as
    /// share flushes.
    fn others_before_flushes(&self, own: &[(usize, Request<Token>)], fs: &FileSystems) -> usize {
        let mut others = SmallVec::<[usize; SHARERS_MIN]>::new();
        for file in self.transfers.before_flushes() {
            let engine = &self.files[file].engine;
            let is_own = own.iter().any(|(own, _)| *own == file);
            if !is_own && !others.contains(&file) && engine.journal.is_ok() && engine.fs == *fs {
                others.push(file);
            }
            if others.len() == SHARERS_MIN {
                break;
            }
        }
        others.len()
    }

    pub(super) fn begin_in_turn(&mut self, file: usize, turn: Turn, mut request: Request<Token>) {
        let attached = &mut self.files[file];
        let engine = &attached.engine;
        if let Some(edge) = engine.packer.missing_edge(&request.work) {
            return self.read_edge(file, request, edge);
        }
        match engine.begin_request(&mut request, turn) {
            Ok(Begun::Superseded) => self.tasks.share_later(file, request),
            Ok(Begun::Without) if matches!(request.work, Work::Flush) => {
                attached.outstanding += 1;
                self.end_request(file, request, Ok(()));
            }
            Ok(begun) => {
                attached.outstanding += 1;
                let transfer = engine.transfer_of(&request.work);
                self.run(Running::new(Purpose::Request(file, request, begun), transfer));
            }
            Err(failure) => {
                self.change(file, |core, out| core.on_completed(request.id, Err(failure), out))
            }
        }
    }

    pub(super) fn run(&mut self, running: Running) {
        let id = self.transfers.insert(running);
        self.go_on(id);
    }

    /// Begins the next call of a transfer.
    fn go_on(&mut self, id: usize) {
        let Running { purpose, transfer, .. } = self.transfers.get_mut(id);
        let (part, dsync) = (transfer.part(), transfer.dsync());
        if let Purpose::Request(file, Request { work: Work::Write { offset, .. }, .. }, _) = purpose
            && transfer.asks_for_space()
        {
            let result = space_for(&*self.files[*file].engine.backend, *offset, &part);
            return self.transfers.on_performed(id, result);
        }
        let io = match purpose {
            Purpose::Request(file, _, Begun::Shared(..)) => {
                let file = *file;
                return self.commit(id, file);
            }
            Purpose::Edge(_, _, Edge { start, memory, .. }) => {
                let into = Segment::of_mut(&mut memory[part.start as usize..]);
                Io::Read { into: smallvec![into], offset: *start + part.start }
            }
            Purpose::Request(_, request, _) => io_of(&request.work, &part, dsync),
            Purpose::Operation(number) => {
                let operation = &mut self.operations.pending[*number];
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
        self.begin_call(id, io);
    }

    fn begin_call(&mut self, id: usize, io: Io) {
        let file = match self.transfers.get(id).purpose {
            Purpose::Request(file, ..) | Purpose::Edge(file, ..) => file,
            Purpose::Operation(number) => {
                let operation = &self.operations.pending[number];
                let by_reader = operation.by_reader.as_ref().filter(|_| operation.file.is_none());
                match by_reader {
                    None => operation.file(),
                    Some(it) => {
                        return self.transfers.begin(id, io, it.reader.backend(), &it.slots);
                    }
                }
            }
        };
        let AttachedFile { engine, slots, .. } = &self.files[file];
        self.transfers.begin(id, io, &*engine.backend, slots);
    }

    /// Begins the commit of a shared flush.
    fn commit(&mut self, id: usize, file: usize) {
        let slot = self.files.journal_slot(file, self.transfers.ring());
        self.transfers.begin_commit(id, slot, self.files[file].engine.journal());
    }

    pub(super) fn on_call_done(&mut self, id: usize, result: io::Result<u64>) {
        let Some(result) = self.transfers.on_result(id, result) else { return self.go_on(id) };
        match self.transfers.remove(id).purpose {
            Purpose::Operation(number) => self.on_transferred(number, result),
            Purpose::Edge(file, request, edge) => self.on_edge_read(file, request, edge, result),
            Purpose::Request(file, request, begun) => {
                let engine = &self.files[file].engine;
                let result = result.map(drop);
                match (engine.end_flush(&request.work, begun, &result), result) {
                    (AfterFlush::Settles(ended), Ok(())) => self.settle_flush(file, request, ended),
                    (AfterFlush::FlushesAlone, _) => {
                        self.files[file].outstanding -= 1;
                        self.begin_in_turn(file, Turn::Alone, request);
                    }
                    (_, result) => self.end_request(file, request, result),
                }
            }
        }
    }

    /// Ends a successful flush, once all concurrent flushes have ended.
    pub(super) fn settle_flush(&mut self, file: usize, request: Request<Token>, ended: EndedFlush) {
        let fs = &self.files[file].engine.fs;
        if fs.is_settled(&ended, self.mailbox.waker()) {
            let result = fs.believed(Ok(()));
            self.end_request(file, request, result);
        } else {
            self.tasks.settle_later(file, request, ended);
        }
    }

    fn end_request(&mut self, file: usize, request: Request<Token>, result: io::Result<()>) {
        let attached = &mut self.files[file];
        attached.outstanding -= 1;
        let result = attached.engine.end_request(request.work, request.call, result);
        self.change(file, |core, out| core.on_completed(request.id, result, out));
    }
}

/// The I/O of a part of the work.
fn io_of(work: &Work, part: &Range<u64>, dsync: bool) -> Io {
    match work {
        Work::Flush => Io::Flush { all: false },
        Work::Write { segments, offset, .. } => {
            let is_all = *part == (0..work.len());
            let segments = if is_all { segments.clone() } else { part_of(segments, part) };
            Io::Write { segments, offset: offset + part.start, dsync }
        }
    }
}
