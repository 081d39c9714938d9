//! A simulated disk that reports calls to a test.
#![allow(dead_code)]

use dioxide_log::Result;
use dioxide_log::storage::memory::Memory;
use dioxide_log::storage::{Mark, Segment, Storage};
use std::fmt;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

/// A call of a log to its disk, which begins unless it says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// A read of this many bytes.
    Read(usize),
    /// A write of this many bytes.
    Write(usize),
    /// A flush.
    Sync,
    /// A flush returns.
    Synced,
    Publish(Mark),
    Release,
}

type Hook = Box<dyn Fn(Call) + Send + Sync>;

/// The disk. Clones are the same disk.
#[derive(Clone, Default)]
pub struct Hooked {
    pub disk: Memory,
    hook: Arc<OnceLock<Hook>>,
}

#[derive(Debug)]
struct HookedSegment(Hooked, Arc<dyn Segment>);

impl Hooked {
    pub fn new(disk: &Memory, hook: impl Fn(Call) + Send + Sync + 'static) -> Arc<Self> {
        let hooked = Self { disk: disk.clone(), ..Self::default() };
        hooked.hook(hook);
        Arc::new(hooked)
    }

    /// Reports all calls from now on.
    pub fn hook(&self, hook: impl Fn(Call) + Send + Sync + 'static) {
        assert!(self.hook.set(Box::new(hook)).is_ok(), "one for each disk");
    }

    fn report(&self, call: Call) {
        if let Some(hook) = self.hook.get() {
            hook(call);
        }
    }
}

impl fmt::Debug for Hooked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hooked")
    }
}

impl Storage for Hooked {
    fn path(&self) -> &Path {
        self.disk.path()
    }

    fn segments(&self) -> Result<Vec<Arc<dyn Segment>>> {
        let hooked = |segment| Arc::new(HookedSegment(self.clone(), segment)) as Arc<dyn Segment>;
        Ok(self.disk.segments()?.into_iter().map(hooked).collect())
    }

    fn create(&self, bytes: u64) -> Result<Arc<dyn Segment>> {
        Ok(Arc::new(HookedSegment(self.clone(), self.disk.create(bytes)?)))
    }

    fn remove(&self, segment: &dyn Segment) -> Result<()> {
        self.disk.remove(segment)
    }

    fn publish(&self, mark: Mark) {
        self.report(Call::Publish(mark));
        self.disk.publish(mark);
    }

    fn mark(&self) -> Result<Option<Mark>> {
        self.disk.mark()
    }

    fn release(&self) {
        self.report(Call::Release);
        self.disk.release();
    }
}

impl Segment for HookedSegment {
    fn path(&self) -> &Path {
        self.1.path()
    }

    fn bytes(&self) -> u64 {
        self.1.bytes()
    }

    fn write(&self, data: &[u8], offset: u64, durable: bool) -> Result<()> {
        self.0.report(Call::Write(data.len()));
        self.1.write(data, offset, durable)
    }

    fn sync(&self) -> Result<()> {
        self.0.report(Call::Sync);
        self.1.sync()?;
        self.0.report(Call::Synced);
        Ok(())
    }

    fn read(&self, into: &mut [u8], offset: u64) -> Result<()> {
        self.0.report(Call::Read(into.len()));
        self.1.read(into, offset)
    }
}

/// Waits for what a thread of the log does.
pub fn await_that(is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "waited in vain");
        thread::sleep(Duration::from_millis(1));
    }
}
