//! Appends by many tasks of one thread: futures of dioxide, or of a thread that gathers records for
//! a log in the page cache.
//!
//! A task is a lane of a [queue](super::queued): it has one append at a time.

use super::locked::Locked;
use super::queued::{AnyQueue, Finished};
use super::target::Target;
use anyhow::{Context as _, Result, anyhow};
use dioxide::{AsyncFile, Buffer};
use futures::channel::oneshot;
use futures::executor::block_on;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use std::fs::File;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::task::Poll;
use std::thread::{Scope, ScopedJoinHandle};

/// The tasks of a thread. `F` begins an append.
pub struct Tasks<'a, F> {
    begin: F,
    running: FuturesUnordered<BoxFuture<'a, Finished>>,
    buffer_bytes: usize,
}

impl<'a, F: Fn(Buffer, usize, u64) -> BoxFuture<'a, Finished>> Tasks<'a, F> {
    /// With records of up to this length. `begin` gets a record, its length, and its tag.
    pub fn new(buffer_bytes: u64, begin: F) -> Self {
        Self { begin, running: FuturesUnordered::new(), buffer_bytes: buffer_bytes as usize }
    }
}

impl<'a, F: Fn(Buffer, usize, u64) -> BoxFuture<'a, Finished>> AnyQueue for Tasks<'a, F> {
    fn buffer(&self) -> Buffer {
        Buffer::zeroed(self.buffer_bytes)
    }

    fn queue(&mut self, target: Target, block: Buffer, tag: u64) {
        self.running.push((self.begin)(block, target.bytes as usize, tag));
    }

    fn count(&self) -> usize {
        self.running.len()
    }

    fn reap(&mut self, min: usize, mut each: impl FnMut(Finished) -> Result<()>) -> Result<()> {
        for _ in 0..min.min(self.running.len()) {
            let finished = block_on(self.running.next()).context("a task runs")?;
            each(finished)?;
        }
        // All that are ready by now, and begins those that were queued.
        let running = &mut self.running;
        block_on(futures::future::poll_fn(|context| {
            loop {
                match running.poll_next_unpin(context) {
                    Poll::Ready(Some(finished)) => {
                        if let Err(error) = each(finished) {
                            return Poll::Ready(Err(error));
                        }
                    }
                    Poll::Ready(None) | Poll::Pending => return Poll::Ready(Ok(())),
                }
            }
        }))
    }
}

/// An append of dioxide as a future.
pub fn append(file: &AsyncFile, block: Buffer, tag: u64) -> BoxFuture<'_, Finished> {
    let append = file.append(block);
    Box::pin(async move {
        let (result, buffer) = append.await;
        Finished { tag, result: result.map_err(Into::into), buffer, is_append: true }
    })
}

/// A record for the gathering thread, and where its offset goes.
struct Given {
    record: Vec<u8>,
    answer: oneshot::Sender<Result<u64>>,
}

/// A thread that makes one write and one flush for all records that were given to it meanwhile.
pub struct Gatherer<'scope> {
    given: SyncSender<Given>,
    thread: ScopedJoinHandle<'scope, Result<()>>,
}

/// Records that wait for the gathering thread.
const GIVEN_MAX: usize = 1 << 14;

impl<'scope> Gatherer<'scope> {
    pub fn start(scope: &'scope Scope<'scope, '_>, log: Locked<File>) -> Self {
        let (given, taken) = sync_channel(GIVEN_MAX);
        Self { given, thread: scope.spawn(move || gather(log, &taken)) }
    }

    /// An append as a future.
    pub fn append(&self, block: Buffer, len: usize, tag: u64) -> BoxFuture<'static, Finished> {
        let (answer, answered) = oneshot::channel();
        let given = self.given.send(Given { record: block[..len].to_vec(), answer });
        Box::pin(async move {
            let result = match given {
                Ok(()) => answered.await.unwrap_or_else(|_| Err(gone())),
                Err(_) => Err(gone()),
            };
            Finished { tag, result, buffer: block, is_append: true }
        })
    }

    /// Ends the thread, which truncates the log.
    pub fn finish(self) -> Result<()> {
        drop(self.given);
        self.thread.join().map_err(|_| anyhow!("the gathering thread panicked"))?
    }
}

fn gone() -> anyhow::Error {
    anyhow!("the gathering thread has ended")
}

fn gather(log: Locked<File>, taken: &Receiver<Given>) -> Result<()> {
    let (mut bytes, mut waiting) = (Vec::new(), Vec::new());
    while let Ok(first) = taken.recv() {
        for Given { record, answer } in std::iter::once(first).chain(taken.try_iter()) {
            waiting.push((bytes.len() as u64, answer));
            bytes.extend_from_slice(&record);
        }
        let start = log.append(&bytes);
        for (offset, answer) in waiting.drain(..) {
            let result = start.as_ref().map(|start| start + offset);
            // An error: the bench has ended.
            let _ = answer.send(result.map_err(|error| anyhow!("{error}")));
        }
        bytes.clear();
    }
    Ok(log.finish()?)
}
