//! The ways to a file: blocking calls, and queues. A test that takes a way must have the same
//! result in each.

use super::POISON;
use dioxide::{
    Buffer, Completion, File, Full, OpenOptions, Operation, Queue, QueueOptions, Result,
};
use dioxide_testkit::lab::{Applies, Disk, Fs, TestDir};
use dioxide_testkit::trials::{
    Trial, TrialResult, disk_trial, fuse_trials_where, lab_trials_where, volume_trials_where,
};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Deref;
use std::path::Path;

/// A way to submit operations to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// By blocking calls.
    Calls,
    /// By a queue per thread, on io_uring.
    Queue,
    /// By a queue per thread that makes plain calls.
    QueueOfCalls,
}

/// The appends that a thread keeps in flight in a queue.
const IN_FLIGHT: usize = 8;

thread_local!(static QUEUES: RefCell<HashMap<Way, Queue>> = RefCell::default());

impl Way {
    pub const ALL: &[Way] = &[Way::Calls, Way::Queue, Way::QueueOfCalls];
    pub const QUEUES: &[Way] = &[Way::Queue, Way::QueueOfCalls];

    /// The name of a test in this way; by calls it is the plain name.
    fn name(self, test: &str) -> String {
        match self {
            Way::Calls => test.to_owned(),
            Way::Queue => format!("queue::{test}"),
            Way::QueueOfCalls => format!("queue-of-calls::{test}"),
        }
    }

    /// Parses a way, an argument of a child.
    pub fn of_arg(arg: &str) -> Way {
        *Way::ALL.iter().find(|way| way.arg() == arg).expect("a way")
    }

    pub fn arg(self) -> String {
        format!("{self:?}")
    }

    /// A file that is used in this way.
    pub fn to(self, file: File) -> Used {
        Used { file, way: self }
    }

    pub fn open(self, options: &OpenOptions, path: impl AsRef<Path>) -> Result<Used> {
        options.open(path).map(|file| self.to(file))
    }

    /// A queue of this kind, if the way uses one.
    pub fn queue(self, options: &mut QueueOptions) -> Queue {
        let queue = options.io_uring(self == Way::Queue).open();
        assert_eq!(queue.uses_io_uring(), self == Way::Queue, "this kernel has io_uring");
        queue
    }

    /// Runs `act` with the calling thread's own queue.
    fn with_queue<R>(self, act: impl FnOnce(&Queue) -> R) -> R {
        QUEUES.with_borrow_mut(|queues| {
            let queue = queues
                .entry(self)
                .or_insert_with(|| self.queue(QueueOptions::new().depth(IN_FLIGHT)));
            act(queue)
        })
    }
}

/// Operations that work by queues and by calls.
pub trait Transfers: Sync {
    fn append(&self, data: &[u8]) -> Result<u64>;
    fn write_at(&self, data: &[u8], offset: u64) -> Result<()>;
    fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize>;
    fn sync_data(&self) -> Result<()>;

    /// Returns whether [`append_all`](Self::append_all) keeps several in flight.
    fn has_many_in_flight(&self) -> bool;

    /// Appends each buffer of `next`, in parallel if possible. Passes each result to `tell`, with
    /// the number of its buffer, counted from 0.
    fn append_all(
        &self,
        next: &mut dyn FnMut() -> Option<Buffer>,
        tell: &mut dyn FnMut(u64, Result<u64>),
    );
}

impl Transfers for File {
    fn append(&self, data: &[u8]) -> Result<u64> {
        File::append(self, data)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        File::write_at(self, data, offset)
    }

    fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        File::read_at(self, into, offset)
    }

    fn sync_data(&self) -> Result<()> {
        File::sync_data(self)
    }

    fn has_many_in_flight(&self) -> bool {
        false
    }

    fn append_all(
        &self,
        next: &mut dyn FnMut() -> Option<Buffer>,
        tell: &mut dyn FnMut(u64, Result<u64>),
    ) {
        for number in 0.. {
            let Some(mut data) = next() else { break };
            let result = File::append(self, &data);
            data.fill(POISON);
            tell(number, result);
        }
    }
}

/// A file that is used in one of the ways.
#[derive(Debug)]
pub struct Used {
    file: File,
    way: Way,
}

impl Deref for Used {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

impl Used {
    pub fn close(self) -> Result<()> {
        self.file.close()
    }

    pub fn try_clone(&self) -> Result<Used> {
        self.file.try_clone().map(|file| self.way.to(file))
    }

    /// Performs one operation by the empty queue of this thread.
    fn perform(
        &self,
        operation: Operation,
        begin: impl FnOnce(&Queue, &File) -> Result<(), Full>,
    ) -> Completion {
        self.way.with_queue(|queue| {
            begin(queue, &self.file).expect("there is room for one");
            let mut reaped = queue.reap(1);
            let done = reaped.next().expect("it was waited for");
            assert!(reaped.next().is_none(), "there was but one");
            assert_eq!(
                (done.operation, done.buffer.is_some()),
                (operation, operation != Operation::Flush)
            );
            done
        })
    }
}

impl Transfers for Used {
    fn append(&self, data: &[u8]) -> Result<u64> {
        if self.way == Way::Calls {
            return self.file.append(data);
        }
        self.perform(Operation::Append, |queue, file| queue.append(file, Buffer::from(data), 1))
            .result
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        if self.way == Way::Calls {
            return self.file.write_at(data, offset);
        }
        let begin =
            |queue: &Queue, file: &File| queue.write_at(file, Buffer::from(data), offset, 1);
        let written = self.perform(Operation::Write, begin).result?;
        assert_eq!(written, data.len() as u64, "a write is never short");
        Ok(())
    }

    fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        if self.way == Way::Calls {
            return self.file.read_at(into, offset);
        }
        let begin =
            |queue: &Queue, file: &File| queue.read_at(file, Buffer::from(&*into), offset, 1);
        let done = self.perform(Operation::Read, begin);
        into.copy_from_slice(&done.buffer.expect("checked"));
        done.result.map(|read| read as usize)
    }

    fn sync_data(&self) -> Result<()> {
        if self.way == Way::Calls {
            return self.file.sync_data();
        }
        let synced =
            self.perform(Operation::Flush, |queue, file| queue.sync_data(file, 1)).result?;
        assert_eq!(synced, 0);
        Ok(())
    }

    fn has_many_in_flight(&self) -> bool {
        self.way != Way::Calls
    }

    fn append_all(
        &self,
        next: &mut dyn FnMut() -> Option<Buffer>,
        tell: &mut dyn FnMut(u64, Result<u64>),
    ) {
        if self.way == Way::Calls {
            return self.file.append_all(next, tell);
        }
        let mut more = (0..).map_while(|number| Some((number, next()?))).fuse();
        self.way.with_queue(|queue| {
            loop {
                let room = queue.depth() - queue.outstanding();
                for (number, data) in more.by_ref().take(room) {
                    queue.append(&self.file, data, number).expect("there is room");
                }
                if queue.outstanding() == 0 {
                    break;
                }
                for mut done in queue.reap(1) {
                    assert!(done.buffer.is_some(), "the buffer of {done:?} did not come back");
                    done.buffer.iter_mut().for_each(|buffer| buffer.fill(POISON));
                    tell(done.tag, done.result);
                }
            }
        });
    }
}

/// The trials of `make` for each way, under a name that shows the way. A queue without a ring makes
/// the same calls as threads: one file system is enough for it.
fn in_each(ways: &[Way], name: &str, make: impl Fn(&str, Way) -> Vec<Trial>) -> Vec<Trial> {
    let is_worth_it =
        |way, trial: &Trial| way != Way::QueueOfCalls || trial.name().starts_with("ext4::");
    let in_a_way = |&way: &Way| {
        let trials = make(&way.name(name), way).into_iter();
        trials.filter(move |trial| is_worth_it(way, trial))
    };
    ways.iter().flat_map(in_a_way).collect()
}

/// The same test in some ways; by calls it has its own name.
pub fn lab_trials_in(
    ways: &[Way],
    name: &str,
    applies: fn(Fs) -> Applies,
    test: fn(TestDir, Way) -> TrialResult,
) -> Vec<Trial> {
    in_each(ways, name, |name, way| lab_trials_where(name, applies, move |dir| test(dir, way)))
}

/// As `lab_trials_in`, for tests that make their file systems.
pub fn volume_trials_in(
    ways: &[Way],
    name: &str,
    applies: fn(Fs) -> Applies,
    test: fn(Fs, Way) -> TrialResult,
) -> Vec<Trial> {
    in_each(ways, name, |name, way| volume_trials_where(name, applies, move |fs| test(fs, way)))
}

/// As `lab_trials_in`, for tests that make their disks.
pub fn fuse_trials_in(
    ways: &[Way],
    name: &str,
    applies: fn(Fs) -> Applies,
    test: fn(Fs, Way) -> TrialResult,
) -> Vec<Trial> {
    in_each(ways, name, |name, way| fuse_trials_where(name, applies, move |fs| test(fs, way)))
}

/// As `lab_trials_in`, for tests on the lab's disk.
pub fn disk_trials_in(ways: &[Way], name: &str, test: fn(Disk, Way) -> TrialResult) -> Vec<Trial> {
    ways.iter().map(|&way| disk_trial(&way.name(name), move |disk| test(disk, way))).collect()
}
