//! A thread of a phase that uses one or several queues, and sometimes a call.

use crate::life::lock;
use crate::records::{BLOCK_BYTES, Number, record};
use crate::writer::{Asked, Read, Want, Writer};
use dioxide::{Buffer, Completion, Operation, Queue, QueueOptions, sim};
use std::collections::BTreeMap;
use std::time::Duration;

/// A thread with queues.
pub struct Queuer {
    writer: Writer,
    queues: Vec<Used>,
    next_tag: u64,
    /// Drops the file while operations are queued or in flight, and reaps them later.
    lingers: bool,
}

/// A queue with its pending operations.
struct Used {
    queue: Queue,
    pending: BTreeMap<u64, Pending>,
}

struct Pending {
    submitted: bool,
    what: What,
}

enum What {
    /// With `beside`, another write of the same blocks runs in parallel, so the last one is
    /// unknown.
    Write {
        asked: Asked,
        beside: bool,
    },
    Read(Read),
    /// The writes that it makes durable, known at submission.
    Sync(Vec<Number>),
}

impl Queuer {
    pub fn new(mut writer: Writer, lingers: bool) -> Self {
        let count = [1, 1, 2, 3][writer.random.usize(..4)];
        let queues = (0..count).map(|_| Used::new(&mut writer.random)).collect();
        Self { writer, queues, next_tag: 0, lingers }
    }

    pub fn work(&mut self) {
        for _ in 0..1 + self.writer.random.u64(..30) {
            let which = self.writer.random.usize(..self.queues.len());
            match self.writer.random.u8(..16) {
                0..=9 => self.ask(which),
                10 | 11 => self.submit(which),
                12..=14 => self.reap(which),
                _ => {
                    lock(&self.writer.shared.outcome).operations += 1;
                    self.writer.call();
                }
            }
        }
        if self.lingers {
            let random = &mut self.writer.random;
            if random.bool() {
                self.queues.iter_mut().for_each(|used| used.submit(&self.writer));
            }
            self.writer.handles.clear();
            sim::sleep(Duration::from_micros(self.writer.random.u64(..2000)));
        }
        while let Some(mut used) = self.queues.pop() {
            if self.writer.random.u8(..4) == 0 {
                used.end(&self.writer);
            } else {
                while !used.pending.is_empty() {
                    let min = self.writer.random.usize(1..5);
                    used.came_back(&mut self.writer, min);
                }
            }
        }
    }

    fn ask(&mut self, which: usize) {
        let Some(want) = self.writer.want() else { return };
        let writer = &mut self.writer;
        match want {
            Want::Append { blocks } => {
                let asked = writer.ask(None, blocks);
                self.queue(which, What::Write { asked, beside: false });
            }
            Want::Write { place, blocks } => {
                // Unknown until it completes.
                writer.own.remove(&place);
                let beside = writer.random.u8(..4) == 0;
                for _ in 0..1 + u8::from(beside) {
                    let asked = self.writer.ask(Some(place), blocks);
                    self.queue(which, What::Write { asked, beside });
                }
            }
            Want::Read(read) => self.queue(which, What::Read(read)),
            Want::Sync => self.queue(which, What::Sync(Vec::new())),
        }
    }

    fn queue(&mut self, which: usize, what: What) {
        lock(&self.writer.shared.outcome).queued += 1;
        self.next_tag += 1;
        // Its write is already in the model, so it must be queued once there is room.
        while self.queues[which].is_refused(&self.writer, &what, self.next_tag) {
            self.reap(which);
        }
        self.queues[which].pending.insert(self.next_tag, Pending { submitted: false, what });
    }

    fn submit(&mut self, which: usize) {
        self.queues[which].submit(&self.writer);
    }

    fn reap(&mut self, which: usize) {
        let min = self.writer.random.usize(..=self.queues[which].queue.depth());
        self.queues[which].came_back(&mut self.writer, min);
    }
}

/// Compares a completion with its operation.
fn judge(writer: &mut Writer, what: What, completion: Completion) {
    let Completion { operation, buffer, result, .. } = completion;
    match what {
        What::Write { asked, beside } => {
            let buffer = buffer.expect("a write has a buffer");
            assert!(
                buffer[..] == record(asked.number, asked.blocks)[..],
                "{}: another buffer",
                writer.at
            );
            let (expected, offset) = match asked.place {
                None => (Operation::Append, result.as_ref().map(|offset| Some(*offset))),
                Some(_) => {
                    let whole =
                        |bytes: &u64| assert_eq!(*bytes, buffer.len() as u64, "{}", writer.at);
                    (Operation::Write, result.as_ref().map(whole).map(|()| None))
                }
            };
            assert_eq!(operation, expected);
            writer.answered(&asked, offset);
            if beside {
                asked.place.map(|place| writer.own.remove(&place));
            }
        }
        What::Read(read) => {
            assert_eq!(operation, Operation::Read);
            // A write may have followed the request of the read.
            let known = |number: &Number| {
                writer.own.get(&read.place).is_some_and(|(last, _)| last == number)
            };
            if read.holds.as_ref().is_some_and(|number| !known(number)) {
                return;
            }
            let buffer = buffer.expect("a read has a buffer");
            assert_eq!(
                buffer.len() as u64,
                read.blocks * BLOCK_BYTES,
                "{}: another buffer",
                writer.at
            );
            writer.was_read(read, &buffer, result.as_ref().copied());
        }
        What::Sync(promised) => {
            assert!(operation == Operation::Flush && buffer.is_none());
            writer.synced(&promised, result.as_ref().map(|nothing| assert_eq!(*nothing, 0)));
        }
    }
}

impl Used {
    fn new(random: &mut fastrand::Rng) -> Self {
        let mut options = QueueOptions::new();
        options.depth([1, 2, 4, 8, 32][random.usize(..5)]).io_uring(random.u8(..6) > 0);
        if random.u8(..3) == 0 {
            options.buffers(random.usize(1..5), BLOCK_BYTES as usize * random.usize(1..3));
        }
        Self { queue: options.open(), pending: BTreeMap::new() }
    }

    /// A buffer of the queue's pool, if it has one that fits.
    fn buffer_for(&self, data: Buffer) -> Buffer {
        match self.queue.buffer() {
            Some(mut own) if own.len() == data.len() => {
                own.copy_from_slice(&data);
                own
            }
            _ => data,
        }
    }

    /// Queues an operation. Returns whether the queue was full.
    fn is_refused(&mut self, writer: &Writer, what: &What, tag: u64) -> bool {
        let is_full = self.queue.outstanding() == self.queue.depth();
        let (result, len) = match what {
            What::Write { asked, .. } => {
                let data = self.buffer_for(record(asked.number, asked.blocks));
                let (file, len) = (writer.handle(asked.durable), data.len());
                let result = match asked.place {
                    None => self.queue.append(file, data, tag),
                    Some(place) => self.queue.write_at(file, data, place * BLOCK_BYTES, tag),
                };
                (result, Some(len))
            }
            What::Read(read) => {
                let into = self.buffer_for(Buffer::zeroed((read.blocks * BLOCK_BYTES) as usize));
                let len = into.len();
                (
                    self.queue.read_at(writer.handle(false), into, read.place * BLOCK_BYTES, tag),
                    Some(len),
                )
            }
            What::Sync(_) => (self.queue.sync_data(writer.handle(false), tag), None),
        };
        assert_eq!(result.is_err(), is_full, "{}", writer.at);
        result.is_err_and(|full| {
            assert_eq!(
                full.buffer.map(|buffer| buffer.len()),
                len,
                "{}: another buffer",
                writer.at
            );
            true
        })
    }

    /// Marks the queued operations as begun.
    fn is_submitted(&mut self, writer: &Writer) {
        for pending in self.pending.values_mut().filter(|pending| !pending.submitted) {
            pending.submitted = true;
            if let What::Sync(promised) = &mut pending.what {
                *promised = writer.oracle().acknowledged();
            }
        }
    }

    fn submit(&mut self, writer: &Writer) {
        self.is_submitted(writer);
        self.queue.submit();
    }

    /// Reaps completions.
    fn came_back(&mut self, writer: &mut Writer, min: usize) {
        self.is_submitted(writer);
        let outstanding = self.queue.outstanding();
        // Some remain for the next time.
        let most = if writer.random.bool() { usize::MAX } else { writer.random.usize(1..4) };
        let finished: Vec<_> = self.queue.reap(min).take(most).collect();
        let at_least = min.min(outstanding).min(most);
        assert!(finished.len() >= at_least, "{}: {} of {at_least}", writer.at, finished.len());
        assert_eq!(self.queue.outstanding(), outstanding - finished.len(), "{}", writer.at);
        for completion in finished {
            let pending = self.pending.remove(&completion.tag).expect("each comes back once");
            judge(writer, pending.what, completion);
        }
    }

    /// Drops the queue with its operations.
    fn end(self, writer: &Writer) {
        let Self { queue, pending } = self;
        drop(queue);
        lock(&writer.shared.outcome).dropped += pending.len() as u64;
        for Pending { submitted, what } in pending.into_values() {
            let What::Write { asked, .. } = what else { continue };
            writer.oracle().end(asked.number, Err(()), false);
            if !submitted {
                writer.oracle().never_was(asked.number);
            }
        }
    }
}
