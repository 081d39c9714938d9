//! A part of a segment in memory.

use crate::ahead::{Ahead, Part};
use crate::error::Result;
use crate::format::{BLOCK_BYTES, block_of};
use crate::storage::Segment;
use dioxide::Buffer;
use std::sync::Arc;

/// A growing window reads this at first.
const BYTES_MIN: u64 = 16 << 10;
/// A growing window reads this at last: enough for the device to work.
const BYTES_MAX: u64 = 1 << 20;
const GROWTH: u64 = 4;
/// The rest of a window that fits in front of the part behind it.
const REST_MAX: usize = BYTES_MAX as usize;

/// A view of a segment that moves forward.
#[derive(Debug)]
pub struct Window {
    buffer: Buffer,
    /// Where the window begins in the buffer.
    head: usize,
    /// The number of bytes to read at least.
    least: u64,
    /// The highest value of `least`.
    most: u64,
    /// The offset of the first byte in its segment.
    start: u64,
    /// The number of bytes that were read.
    filled: usize,
    /// Reads the part behind a growing window. None if that fails or does not help.
    ahead: Option<Ahead>,
    /// Memory for that part.
    spare: Option<Buffer>,
}

impl Window {
    /// An empty window that reads at least this many bytes at once.
    pub fn new(bytes: usize) -> Self {
        Self::between(bytes as u64, bytes as u64, None)
    }

    /// An empty window that reads more with each read that follows the one before. So a reader of
    /// few records reads few bytes, and a reader of all reads fast: at last a thread reads ahead.
    pub fn growing() -> Self {
        Self::between(BYTES_MIN, BYTES_MAX, Some(Ahead::new()))
    }

    fn between(least: u64, most: u64, ahead: Option<Ahead>) -> Self {
        let buffer = Buffer::zeroed(least as usize);
        Self { buffer, head: 0, least, most, start: 0, filled: 0, ahead, spare: None }
    }

    /// The bytes from an offset on, as far as they are in memory.
    pub fn from(&self, offset: u64) -> &[u8] {
        let skipped =
            offset.checked_sub(self.start).map_or(self.filled, |skipped| skipped as usize);
        &self.buffer[self.head..][skipped.min(self.filled)..self.filled]
    }

    /// Reads from an offset on: at least `bytes` bytes, or up to the end of the segment.
    pub fn load(&mut self, segment: &Arc<dyn Segment>, offset: u64, bytes: u64) -> Result<()> {
        let start = block_of(offset);
        let follows = self.filled > 0 && start > self.start;
        let goes_on = follows && self.least == self.most && start <= self.end();
        if follows {
            self.least = (self.least * GROWTH).min(self.most);
        }
        let left = segment.bytes().saturating_sub(start);
        let needed = (offset - start + bytes).next_multiple_of(BLOCK_BYTES).max(self.least);
        let goes_on = goes_on && needed == self.most;
        let needed = needed.min(left);
        if !self.take_part(segment, start, offset + bytes) {
            if needed > self.buffer.len() as u64 {
                self.buffer = Buffer::zeroed(needed as usize);
            }
            (self.head, self.filled) = (0, 0);
            segment.read(&mut self.buffer[..needed as usize], start)?;
            (self.start, self.filled) = (start, needed as usize);
        }
        if goes_on {
            self.read_ahead(segment);
        }
        Ok(())
    }

    /// The offset behind the window.
    fn end(&self) -> u64 {
        self.start + self.filled as u64
    }

    /// Begins to read the part behind the window.
    fn read_ahead(&mut self, segment: &Arc<dyn Segment>) {
        let (start, most) = (self.end(), self.most as usize);
        let size = segment.bytes().saturating_sub(start).min(self.most) as usize;
        let Some(ahead) = self.ahead.as_mut().filter(|_| size > 0) else { return };
        let buffer = match self.spare.take() {
            Some(buffer) => buffer,
            None => Buffer::zeroed(REST_MAX + most),
        };
        let (segment, head) = (segment.clone(), REST_MAX);
        if !ahead.begin(Part { segment, start, size, buffer, head, is_read: false }) {
            self.ahead = None;
        }
    }

    /// Moves the window to the part that was read ahead, with the rest of the window before it.
    /// False if there is none, or if it does not follow, or does not reach `end`.
    fn take_part(&mut self, segment: &Arc<dyn Segment>, start: u64, end: u64) -> bool {
        let Some(part) = self.ahead.as_mut().and_then(Ahead::take) else { return false };
        let is_next = self.filled > 0
            && Arc::ptr_eq(&part.segment, segment)
            && part.start == self.end()
            && (self.start..=self.end()).contains(&start)
            && part.start - start <= REST_MAX as u64;
        let is_short = end > part.start + part.size as u64;
        if is_short || !part.is_read {
            // A frame of this length needs a read of its own.
            (self.ahead, self.spare) = (None, None);
            return false;
        }
        if !is_next {
            self.spare = Some(part.buffer);
            return false;
        }
        let Part { mut buffer, size, head, .. } = part;
        let rest = self.from(start);
        buffer[head - rest.len()..head].copy_from_slice(rest);
        (self.head, self.start, self.filled) = (head - rest.len(), start, rest.len() + size);
        let old = std::mem::replace(&mut self.buffer, buffer);
        self.spare = Some(old).filter(|old| old.len() >= REST_MAX + self.most as usize);
        true
    }

    /// Forgets the content. No read is in flight afterwards.
    pub fn clear(&mut self) {
        (self.head, self.filled) = (0, 0);
        if let Some(part) = self.ahead.as_mut().and_then(Ahead::take) {
            self.spare = Some(part.buffer);
        }
    }

    /// Forgets the content of a growing window, which reads few bytes again.
    pub fn shrink(&mut self) {
        self.clear();
        self.least = self.least.min(BYTES_MIN);
    }

    /// Whether a thread reads ahead.
    pub fn reads_ahead(&self) -> bool {
        self.ahead.as_ref().is_some_and(Ahead::has_thread)
    }

    /// Gives up the thread and the memory that long reads need: the reader waits.
    pub fn rest(&mut self) {
        if self.reads_ahead() {
            self.shrink();
            (self.ahead, self.spare) = (Some(Ahead::new()), None);
            self.buffer = Buffer::zeroed(self.least as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dioxide_testkit::fork::holds_in_a_fork;
    use std::path::Path;
    use std::sync::Mutex;
    use std::thread;

    /// A segment of 8 MiB that notes each read: its offset and its length.
    #[derive(Debug, Default)]
    struct Noted {
        reads: Mutex<Vec<(u64, u64)>>,
        /// What reads of another thread than that of the test do instead.
        aside: Option<fn() -> Result<()>>,
    }

    impl Noted {
        fn lengths(&self) -> Vec<u64> {
            self.reads.lock().expect("no panic").drain(..).map(|(_, length)| length).collect()
        }

        fn is_aside() -> bool {
            thread::current().name() == Some("dioxide-log-ahead")
        }
    }

    /// The content of the segment.
    fn byte_at(offset: u64) -> u8 {
        (offset / 8).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes()[(offset % 8) as usize]
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
            if let Some(instead) = self.aside.filter(|_| Self::is_aside()) {
                return instead();
            }
            self.reads.lock().expect("no panic").push((offset, into.len() as u64));
            (offset..).zip(into).for_each(|(at, byte)| *byte = byte_at(at));
            Ok(())
        }
    }

    /// Passes frames of these sizes up to the end of the segment, as a reader does. True if their
    /// content is right.
    fn pass_all(
        window: &mut Window,
        segment: &Arc<Noted>,
        mut next_size: impl FnMut() -> u64,
    ) -> bool {
        const HEADER_BYTES: u64 = 64;
        let shared: Arc<dyn Segment> = segment.clone();
        let (mut offset, mut frame) = (BLOCK_BYTES, next_size());
        while offset + frame <= segment.bytes() {
            for needed in [HEADER_BYTES.min(frame), frame] {
                if (window.from(offset).len() as u64) < needed {
                    window.load(&shared, offset, needed).expect("it is read");
                }
            }
            let bytes = &window.from(offset)[..frame as usize];
            if (offset..).zip(bytes).any(|(at, byte)| *byte != byte_at(at)) {
                return false;
            }
            (offset, frame) = (offset + frame, next_size());
        }
        true
    }

    /// Passes frames of one size. Returns the lengths of the reads.
    fn pass(window: &mut Window, segment: &Arc<Noted>, frame: u64) -> Vec<u64> {
        assert!(pass_all(window, segment, || frame), "frames of {frame} bytes");
        window.clear();
        segment.lengths()
    }

    #[test]
    fn a_window_grows_with_reads_that_follow_each_other() {
        let (mut window, segment) = (Window::growing(), Arc::default());
        let lengths = pass(&mut window, &segment, 1000);
        assert_eq!(lengths[..4], [16 << 10, 64 << 10, 256 << 10, 1 << 20]);
        assert_eq!(lengths[4], 1 << 20);
        // In the next segment it goes on.
        assert_eq!(pass(&mut window, &segment, 1000)[0], 1 << 20);
        let mut fixed = Window::new(32 << 10);
        let lengths = pass(&mut fixed, &segment, 1000);
        assert!(lengths[..9].iter().all(|length| *length == 32 << 10), "{lengths:?}");
    }

    #[test]
    fn a_frame_that_needs_a_longer_read_lets_no_window_grow() {
        let (mut window, segment) = (Window::growing(), Arc::<Noted>::default());
        let shared: Arc<dyn Segment> = segment.clone();
        window.load(&shared, 0, 64).expect("it is read");
        window.load(&shared, 0, 40_000).expect("it is read");
        window.load(&shared, 0, 64).expect("it is read");
        assert_eq!(segment.lengths(), [16 << 10, 40 << 10, 16 << 10]);
    }

    /// Each record that a follower waited for cost it a read of 256 KiB.
    #[test]
    fn a_follower_read_a_whole_window_for_each_record() {
        let (mut window, segment) = (Window::growing(), Arc::<Noted>::default());
        pass(&mut window, &segment, 1000);
        let shared: Arc<dyn Segment> = segment.clone();
        for offset in [5000, 6000, 7000, 8000, 9000] {
            window.shrink();
            window.load(&shared, offset, 1000).expect("it is read");
        }
        assert_eq!(segment.lengths(), [16 << 10; 5]);
    }

    #[test]
    fn a_window_that_reads_ahead_shows_each_byte_once_and_as_it_is() {
        for seed in 0..5 {
            let mut random = fastrand::Rng::with_seed(seed);
            let (mut window, segment) = (Window::growing(), Arc::<Noted>::default());
            let most = [200, 5000, 300_000, 1 << 20, 3 << 20][seed as usize];
            for _ in 0..3 {
                let is_right = pass_all(&mut window, &segment, || random.u64(1..=most));
                assert!(is_right, "seed {seed}");
                match random.bool() {
                    true => window.clear(),
                    false => window.shrink(),
                }
                let read: u64 = segment.lengths().iter().sum();
                // The first reads are short, and overlap by a frame and a block.
                let twice = 8 * (most.min(1 << 20) + BLOCK_BYTES);
                assert!(read < segment.bytes() + twice, "seed {seed}: {read}");
            }
        }
    }

    #[test]
    fn a_window_reads_ahead_in_a_thread() {
        let segment = Arc::<Noted>::default();
        let mut window = Window::growing();
        pass(&mut window, &segment, 1000);
        assert!(window.reads_ahead());
        window.rest();
        assert!(!window.reads_ahead());
        assert_eq!(window.buffer.len() as u64, BYTES_MIN);
        assert!(pass_all(&mut window, &segment, || 1000));
    }

    #[test]
    fn a_part_that_cannot_be_read_ahead_is_read_again() {
        let failing: [fn() -> Result<()>; 2] =
            [|| Err(crate::Error::Closed), || panic!("as planned")];
        for aside in failing {
            let segment = Arc::new(Noted { aside: Some(aside), ..Noted::default() });
            assert!(pass_all(&mut Window::growing(), &segment, || 70_000));
        }
    }

    /// A child has the memory of the window, but not its thread.
    #[test]
    fn a_window_goes_on_in_a_forked_child() {
        // The thread takes no lock that the child needs.
        let aside = Some((|| Err(crate::Error::Closed)) as fn() -> Result<()>);
        let segment = Arc::new(Noted { aside, ..Noted::default() });
        let (mut window, shared) = (Window::growing(), segment.clone() as Arc<dyn Segment>);
        let mut offset = 0;
        while !window.reads_ahead() {
            window.load(&shared, offset, 1000).expect("it is read");
            offset = window.end() - 500;
        }
        assert!(holds_in_a_fork(|| {
            window.load(&shared, offset, 1000).expect("it is read");
            let is_right = window.from(offset)[0] == byte_at(offset);
            window.shrink();
            is_right && pass_all(&mut window, &segment, || 1000)
        }));
        drop(window);
    }
}
