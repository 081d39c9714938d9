//! A part of a segment in memory.

use crate::error::Result;
use crate::format::{BLOCK_BYTES, block_of};
use crate::storage::Segment;
use dioxide::Buffer;

/// A growing window reads this at first.
const BYTES_MIN: u64 = 16 << 10;
/// A growing window reads this at last: enough for the device to work.
const BYTES_MAX: u64 = 1 << 20;
const GROWTH: u64 = 4;

/// A view of a segment that moves forward.
#[derive(Debug)]
pub struct Window {
    buffer: Buffer,
    /// The number of bytes to read at least.
    least: u64,
    /// The highest value of `least`.
    most: u64,
    /// The offset of the first byte in its segment.
    start: u64,
    /// The number of bytes that were read.
    filled: usize,
}

impl Window {
    /// An empty window that reads at least this many bytes at once.
    pub fn new(bytes: usize) -> Self {
        Self::between(bytes as u64, bytes as u64)
    }

    /// An empty window that reads more with each read that follows the one before. So a reader of
    /// few records reads few bytes, and a reader of all reads fast.
    pub fn growing() -> Self {
        Self::between(BYTES_MIN, BYTES_MAX)
    }

    fn between(least: u64, most: u64) -> Self {
        Self { buffer: Buffer::zeroed(least as usize), least, most, start: 0, filled: 0 }
    }

    /// The bytes from an offset on, as far as they are in memory.
    pub fn from(&self, offset: u64) -> &[u8] {
        let skipped =
            offset.checked_sub(self.start).map_or(self.filled, |skipped| skipped as usize);
        &self.buffer[skipped.min(self.filled)..self.filled]
    }

    /// Reads from an offset on: at least `bytes` bytes, or up to the end of the segment.
    pub fn load(&mut self, segment: &dyn Segment, offset: u64, bytes: u64) -> Result<()> {
        let start = block_of(offset);
        if self.filled > 0 && start > self.start {
            self.least = (self.least * GROWTH).min(self.most);
        }
        let left = segment.bytes().saturating_sub(start);
        let needed = (offset - start + bytes).next_multiple_of(BLOCK_BYTES).max(self.least);
        if needed.min(left) > self.buffer.len() as u64 {
            self.buffer = Buffer::zeroed(needed as usize);
        }
        let size = left.min(needed) as usize;
        self.filled = 0;
        segment.read(&mut self.buffer[..size], start)?;
        (self.start, self.filled) = (start, size);
        Ok(())
    }

    /// Forgets the content.
    pub fn clear(&mut self) {
        self.filled = 0;
    }

    /// Forgets the content of a growing window, which reads few bytes again.
    pub fn shrink(&mut self) {
        (self.filled, self.least) = (0, self.least.min(BYTES_MIN));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use std::sync::Mutex;

    /// A segment of 8 MiB that notes each read: its offset and its length.
    #[derive(Debug, Default)]
    struct Noted(Mutex<Vec<(u64, u64)>>);

    impl Noted {
        fn lengths(&self) -> Vec<u64> {
            self.0.lock().expect("no panic").drain(..).map(|(_, length)| length).collect()
        }
    }

    impl Segment for Noted {
        fn path(&self) -> &Path {
            Path::new("noted")
        }

        fn bytes(&self) -> u64 {
            8 << 20
        }

        fn write(&self, _: &[u8], _: u64, _: bool) -> Result<()> {
            unreachable!("it is only read")
        }

        fn sync(&self) -> Result<()> {
            unreachable!("it is only read")
        }

        fn read(&self, into: &mut [u8], offset: u64) -> Result<()> {
            self.0.lock().expect("no panic").push((offset, into.len() as u64));
            Ok(())
        }
    }

    /// Passes frames of this size, as a reader does. Returns the lengths of the reads.
    fn pass(window: &mut Window, segment: &Noted, frame: u64) -> Vec<u64> {
        let mut offset = BLOCK_BYTES;
        while offset + frame <= segment.bytes() {
            if (window.from(offset).len() as u64) < frame {
                window.load(segment, offset, frame).expect("it is read");
            }
            offset += frame;
        }
        segment.lengths()
    }

    #[test]
    fn a_window_grows_with_reads_that_follow_each_other() {
        let (mut window, segment) = (Window::growing(), Noted::default());
        let lengths = pass(&mut window, &segment, 1000);
        assert_eq!(lengths[..4], [16 << 10, 64 << 10, 256 << 10, 1 << 20]);
        assert_eq!(lengths[4], 1 << 20);
        // In the next segment it goes on.
        window.clear();
        assert_eq!(pass(&mut window, &segment, 1000)[0], 1 << 20);
        let mut fixed = Window::new(32 << 10);
        let lengths = pass(&mut fixed, &segment, 1000);
        assert!(lengths[..9].iter().all(|length| *length == 32 << 10), "{lengths:?}");
    }

    #[test]
    fn a_frame_that_needs_a_longer_read_lets_no_window_grow() {
        let (mut window, segment) = (Window::growing(), Noted::default());
        window.load(&segment, 0, 64).expect("it is read");
        window.load(&segment, 0, 40_000).expect("it is read");
        window.load(&segment, 0, 64).expect("it is read");
        assert_eq!(segment.lengths(), [16 << 10, 40 << 10, 16 << 10]);
    }

    /// Each record that a follower waited for cost it a read of 256 KiB.
    #[test]
    fn a_follower_read_a_whole_window_for_each_record() {
        let (mut window, segment) = (Window::growing(), Noted::default());
        pass(&mut window, &segment, 1000);
        for offset in [5000, 6000, 7000, 8000, 9000] {
            window.shrink();
            window.load(&segment, offset, 1000).expect("it is read");
        }
        assert_eq!(segment.lengths(), [16 << 10; 5]);
    }
}
