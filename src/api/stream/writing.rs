//! The window of transfers behind a [`Writer`](super::Writer).

use super::{Chunk, WINDOW, room_at, sought};
use crate::api::future::{AsyncFile, TransferOf};
use crate::error::{Error, Result};
use std::collections::VecDeque;
use std::fmt;
use std::io::{self, SeekFrom};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// The state of a writer.
pub(super) struct Writing {
    file: Arc<AsyncFile>,
    /// The bytes that are not sent yet, and their offset.
    chunk: Option<Chunk>,
    start: u64,
    /// The writes in flight, in the order in which they were sent.
    behind: VecDeque<TransferOf<Arc<AsyncFile>, Chunk>>,
    /// The end of the highest write that may be in flight.
    sent_to: u64,
    free: Vec<Chunk>,
    /// Where a seek in progress moves to.
    seeking: Option<u64>,
    failed: Option<Error>,
}

impl Writing {
    pub fn new(file: AsyncFile) -> Self {
        let (file, behind, free) = (Arc::new(file), VecDeque::new(), Vec::new());
        let (chunk, seeking, failed) = (None, None, None);
        Self { file, chunk, start: 0, behind, sent_to: 0, free, seeking, failed }
    }

    pub fn file(&self) -> &AsyncFile {
        &self.file
    }

    /// Whether the calling thread can wait for the writes.
    pub fn can_be_awaited(&self) -> bool {
        self.file.handle().can_be_awaited()
    }

    /// Whether nothing is unsent or in flight.
    pub fn is_flushed(&self) -> bool {
        self.chunk.is_none() && self.behind.is_empty()
    }

    /// The file. Nothing is in flight.
    pub fn into_file(self) -> AsyncFile {
        Arc::into_inner(self.file).expect("only writes in flight share it")
    }

    pub fn position(&self) -> u64 {
        let unsent = self.chunk.as_ref().map_or(0, |chunk| chunk.len as u64);
        self.start.saturating_add(unsent)
    }

    /// Ready when some of `data` is taken, with its length.
    pub fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check()?;
        if self.seeking.is_some() {
            // Its future was dropped.
            ready!(self.poll_seek(context))?;
        }
        if self.chunk.is_none() && !data.is_empty() {
            self.chunk = Some(ready!(self.poll_free(context))?);
        }
        let Some(chunk) = &mut self.chunk else { return Poll::Ready(Ok(0)) };
        let room = room_at(self.start) - chunk.len;
        let count = room.min(data.len());
        chunk.buffer[chunk.len..][..count].copy_from_slice(&data[..count]);
        chunk.len += count;
        if count == room {
            self.send(context);
        }
        Poll::Ready(Ok(count))
    }

    /// Ready with memory for a chunk: as soon as the window has room. Nothing is sent behind a
    /// write that waits for the preparation of the file: it would leave a gap.
    fn poll_free(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Chunk>> {
        while let Some(last) = self.behind.back_mut().filter(|last| last.is_preparing()) {
            if let Poll::Ready((result, chunk)) = Pin::new(&mut *last).poll(context) {
                self.behind.pop_back();
                self.on_ended(result, chunk);
                self.check()?;
            } else if last.is_preparing() {
                return Poll::Pending;
            }
        }
        while self.behind.len() >= WINDOW {
            ready!(self.poll_first(context))?;
        }
        Poll::Ready(Ok(self.free.pop().unwrap_or_else(Chunk::new)))
    }

    /// Ready when the first write in flight has ended.
    fn poll_first(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(first) = self.behind.front_mut() else { return Poll::Ready(Ok(())) };
        let (result, chunk) = ready!(Pin::new(first).poll(context));
        self.behind.pop_front();
        self.on_ended(result, chunk);
        Poll::Ready(self.check())
    }

    fn on_ended(&mut self, result: Result<u64>, mut chunk: Chunk) {
        chunk.len = 0;
        self.free.push(chunk);
        if let Err(error) = result {
            self.failed.get_or_insert(error);
        }
    }

    /// Begins the write of the bytes that are not sent yet.
    fn send(&mut self, context: &mut Context<'_>) {
        let Some(chunk) = self.chunk.take_if(|chunk| chunk.len > 0) else { return };
        let (start, end) = (self.start, self.start.saturating_add(chunk.len as u64));
        let mut transfer = TransferOf::write_at(self.file.clone(), chunk, start);
        match Pin::new(&mut transfer).poll(context) {
            Poll::Pending => self.behind.push_back(transfer),
            Poll::Ready((result, chunk)) => self.on_ended(result, chunk),
        }
        (self.start, self.sent_to) = (end, self.sent_to.max(end));
    }

    /// Ready when everything is written.
    pub fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.send(context);
        while !self.behind.is_empty() {
            // An error is kept: the others end before the caller gets it.
            let _ = ready!(self.poll_first(context));
        }
        self.sent_to = 0;
        Poll::Ready(self.check())
    }

    /// Sets the position that [`poll_seek`](Self::poll_seek) moves to.
    pub fn start_seek(&mut self, to: SeekFrom) -> io::Result<()> {
        let unsent_to = self.chunk.as_ref().map_or(0, |_| self.position());
        let end = || self.file.len().map(|len| len.max(self.sent_to).max(unsent_to));
        self.seeking = Some(sought(to, self.position(), end)?);
        Ok(())
    }

    /// Leaves the position where it is.
    pub fn cancel_seek(&mut self) {
        self.seeking = None;
    }

    /// Ready with the position after the seek. No write is in flight above it.
    pub fn poll_seek(&mut self, context: &mut Context<'_>) -> Poll<io::Result<u64>> {
        if let Some(to) = self.seeking.filter(|to| *to != self.position()) {
            self.send(context);
            if to < self.sent_to {
                ready!(self.poll_flush(context))?;
            }
            self.start = to;
        }
        self.seeking = None;
        Poll::Ready(self.check().map(|()| self.position()))
    }

    /// Fails after a failed write.
    fn check(&self) -> io::Result<()> {
        self.failed.clone().map_or(Ok(()), |error| Err(error.into()))
    }
}

impl fmt::Debug for Writing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (file, position) = (self.file.file(), self.position());
        f.debug_struct("Writing").field("file", file).field("position", &position).finish()
    }
}
