//! The window of transfers ahead of a [`Reader`](super::Reader).

use super::{CHUNK_BYTES, Chunk, WINDOW, room_at, sought};
use crate::api::future::{AsyncFile, Blocking, TransferOf};
use crate::engine::process::Process;
use crate::error::Result;
use std::collections::VecDeque;
use std::io::{self, SeekFrom};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::{fmt, mem};

/// A read in flight, or its result.
enum ReadAhead {
    Begun(TransferOf<Arc<AsyncFile>, Chunk>),
    /// In a thread, where the reactor would make one call at a time, or none.
    Called(Blocking<'static, (Result<u64>, Chunk)>),
    Ended(Result<u64>, Chunk),
}

impl ReadAhead {
    fn new(file: &Arc<AsyncFile>, mut chunk: Chunk, start: u64) -> Self {
        let file = file.clone();
        if !file.is_read_by_calls() {
            return Self::Begun(TransferOf::read_at(file, chunk, start));
        }
        Self::Called(Blocking::new(move || {
            let read = file.file().read_at(chunk.as_mut(), start);
            (read.map(|read| read as u64), chunk)
        }))
    }

    /// Whether it has ended. The first call begins it.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let (result, chunk) = match self {
            Self::Begun(transfer) => ready!(Pin::new(transfer).poll(context)),
            Self::Called(call) => ready!(Pin::new(call).poll(context)),
            Self::Ended(..) => return Poll::Ready(()),
        };
        *self = Self::Ended(result, chunk);
        Poll::Ready(())
    }
}

/// The state of a reader.
pub(super) struct ReaderState {
    file: Arc<AsyncFile>,
    position: u64,
    /// The bytes at hand, and their offset. They contain `position`, or end there.
    chunk: Option<(u64, Chunk)>,
    /// The reads behind them, in order, without a gap, and their offsets.
    ahead: VecDeque<(u64, ReadAhead)>,
    /// The offset behind the last read, or `u64::MAX`: nothing is read ahead of the bytes at hand.
    next: u64,
    /// The length of the file when a read reached it last. Reads show if it was truncated since.
    len: u64,
    window: usize,
    free: Vec<Chunk>,
    /// The process of the reads ahead. They never end in the child of a fork.
    process: &'static Process,
}

impl ReaderState {
    pub fn new(file: AsyncFile) -> Self {
        let (file, ahead, free) = (Arc::new(file), VecDeque::new(), Vec::new());
        let (position, chunk, next, len) = (0, None, 0, 0);
        let process = Process::current();
        Self { file, position, chunk, ahead, next, len, window: 1, free, process }
    }

    pub fn file(&self) -> &AsyncFile {
        &self.file
    }

    /// Whether the calling thread can wait for the reads.
    pub fn can_be_awaited(&self) -> bool {
        self.file.is_read_by_calls() || self.file.handle().can_be_awaited()
    }

    pub fn position(&self) -> u64 {
        self.position
    }

    #[cfg(all(test, not(loom)))]
    pub fn in_flight(&self) -> usize {
        self.ahead.len()
    }

    /// The bytes at hand from the position on.
    pub fn filled(&self) -> &[u8] {
        match &self.chunk {
            Some((start, chunk)) => &chunk.as_ref()[(self.position - start) as usize..],
            None => &[],
        }
    }

    pub fn consume(&mut self, count: usize) {
        assert!(count <= self.filled().len(), "more is consumed than there is");
        self.position += count as u64;
    }

    /// Ready with the bytes at hand: none only at the end of the file.
    pub fn poll_fill(&mut self, context: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        if !self.process.is_current() {
            self.process = Process::current();
            self.forget();
        }
        while self.filled().is_empty() {
            if let Some((_, chunk)) = self.chunk.take() {
                self.free.push(chunk);
                // It was consumed whole, and more is wanted.
                self.window = (self.window + 1).min(WINDOW);
            }
            if self.ahead.is_empty() {
                self.next = self.position / self.unit() * self.unit();
            }
            self.read_ahead(context)?;
            if !ready!(self.poll_next(context))? {
                return Poll::Ready(Ok(&[]));
            }
            if self.window > 1 {
                self.read_ahead(context)?;
            }
        }
        Poll::Ready(Ok(self.filled()))
    }

    /// Ready when the first read has ended. False if it has no byte at the position.
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let Some((start, first)) = self.ahead.front_mut() else { return Poll::Ready(Ok(false)) };
        ready!(first.poll(context));
        let start = *start;
        let Some((_, ReadAhead::Ended(result, mut chunk))) = self.ahead.pop_front() else {
            unreachable!("it has just ended");
        };
        let read = result.inspect_err(|_| self.forget())? as usize;
        if read < mem::replace(&mut chunk.len, read) {
            // The file ended there. Reads behind that may have found more since.
            self.forget();
        }
        let has_more = start + read as u64 > self.position;
        match has_more {
            true => self.chunk = Some((start, chunk)),
            false => self.free.push(chunk),
        }
        Poll::Ready(Ok(has_more))
    }

    /// Begins reads up to the window and to the end of the file.
    fn read_ahead(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        while self.ahead.len() < self.window {
            let room = room_at(self.next) as u64;
            if self.len.saturating_sub(self.next) < room {
                self.len = self.file.len()?;
            }
            let left = self.len.saturating_sub(self.next);
            if left == 0 || self.next + left <= self.position {
                break;
            }
            let mut chunk = self.free.pop().unwrap_or_else(Chunk::new);
            chunk.len = room.min(left.next_multiple_of(self.unit())) as usize;
            let (start, len) = (self.next, chunk.len as u64);
            let mut ahead = ReadAhead::new(&self.file, chunk, start);
            // Whether it has ended already shows when it is the first.
            let _ = ahead.poll(context);
            self.ahead.push_back((start, ahead));
            self.next = start + len;
        }
        Ok(())
    }

    /// The unit of aligned reads.
    fn unit(&self) -> u64 {
        self.file.file().alignment().offset.min(CHUNK_BYTES as u64)
    }

    /// Drops the reads ahead. The kernel may still fill their memory, which is theirs.
    fn forget(&mut self) {
        self.ahead.clear();
        (self.next, self.len, self.window) = (u64::MAX, 0, 1);
    }

    pub fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let to = sought(to, self.position, || self.file.len())?;
        let at_hand = self.chunk.as_ref().map(|(start, chunk)| *start..start + chunk.len as u64);
        if !at_hand.is_some_and(|at_hand| at_hand.contains(&to)) && to != self.position {
            self.forget();
            self.free.extend(self.chunk.take().map(|(_, chunk)| chunk));
        }
        self.position = to;
        Ok(to)
    }
}

impl fmt::Debug for ReaderState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (file, position) = (self.file.file(), self.position);
        f.debug_struct("Reading").field("file", file).field("position", &position).finish()
    }
}
