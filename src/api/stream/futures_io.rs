//! The traits of futures-io.

use super::{Reader, Writer};
use futures_io::{AsyncBufRead, AsyncRead, AsyncSeek, AsyncWrite};
use std::io::{self, SeekFrom};
use std::pin::Pin;
use std::task::{Context, Poll};

impl AsyncRead for Reader {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        Reader::poll_read(self.get_mut(), context, into)
    }
}

impl AsyncBufRead for Reader {
    fn poll_fill_buf(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        self.get_mut().0.poll_fill(context)
    }

    fn consume(mut self: Pin<&mut Self>, count: usize) {
        self.0.consume(count);
    }
}

impl AsyncSeek for Reader {
    fn poll_seek(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        to: SeekFrom,
    ) -> Poll<io::Result<u64>> {
        Poll::Ready(self.0.seek(to))
    }
}

impl AsyncWrite for Writer {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.writing_mut().poll_write(context, data)
    }

    /// As [`flush`](std::io::Write::flush).
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.writing_mut().poll_flush(context)
    }

    /// As `poll_flush`: the file stays open.
    fn poll_close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(context)
    }
}

impl AsyncSeek for Writer {
    fn poll_seek(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        to: SeekFrom,
    ) -> Poll<io::Result<u64>> {
        let writing = self.writing_mut();
        writing.start_seek(to)?;
        writing.poll_seek(context)
    }
}
