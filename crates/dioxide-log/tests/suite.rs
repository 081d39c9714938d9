//! The conformance suite in a directory, and on media that break a rule. `power_cuts.rs` has it on
//! a simulated disk.

use dioxide_log::Result;
use dioxide_log::storage::dir::Dir;
use dioxide_log::storage::memory::Memory;
use dioxide_log::storage::{Mark, Segment, Storage};
use dioxide_log::suite::{Extent, Medium, run, run_with};
use std::path::Path;
use std::sync::{Arc, Mutex};
use tempfile::TempDir;

/// A directory. Processes are killed.
struct Directory(TempDir);

impl Medium for Directory {
    fn open(&self) -> Result<Arc<dyn Storage>> {
        Ok(Arc::new(Dir::open(self.0.path(), true)?))
    }
}

#[test]
fn a_directory_keeps_the_rules() {
    let extent = Extent { programs: 10, ..Extent::default() };
    run_with(extent, || Directory(tempfile::tempdir_in(".").unwrap())).unwrap();
}

/// What a faulty medium does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    NewSegmentsAreNotZeros,
    LosesWrites,
    ForgetsSegments,
    KeepsRemoved,
    MarksAreOld,
}

#[derive(Debug)]
struct Faulty {
    disk: Memory,
    fault: Fault,
    removed: Mutex<Vec<Arc<dyn Segment>>>,
    mark: Mutex<Option<Mark>>,
}

#[derive(Debug)]
struct FaultySegment(Arc<dyn Segment>, Fault);

impl Storage for Faulty {
    fn path(&self) -> &Path {
        self.disk.path()
    }

    fn segments(&self) -> Result<Vec<Arc<dyn Segment>>> {
        let mut segments = self.disk.segments()?;
        if self.fault == Fault::ForgetsSegments {
            segments.pop();
        }
        segments.extend(self.removed.lock().unwrap().iter().cloned());
        let faulty = |segment| Arc::new(FaultySegment(segment, self.fault)) as Arc<dyn Segment>;
        Ok(segments.into_iter().map(faulty).collect())
    }

    fn create(&self, bytes: u64) -> Result<Arc<dyn Segment>> {
        let segment = self.disk.create(bytes)?;
        if self.fault == Fault::NewSegmentsAreNotZeros {
            segment.write(&[1; 4096], 8192, true)?;
        }
        Ok(Arc::new(FaultySegment(segment, self.fault)))
    }

    fn remove(&self, segment: &dyn Segment) -> Result<()> {
        if self.fault == Fault::KeepsRemoved {
            let segments = self.disk.segments()?;
            let same = segments.into_iter().filter(|listed| listed.path() == segment.path());
            self.removed.lock().unwrap().extend(same);
        }
        self.disk.remove(segment)
    }

    fn publish(&self, mark: Mark) {
        self.mark.lock().unwrap().get_or_insert(mark);
    }

    fn mark(&self) -> Result<Option<Mark>> {
        Ok(self.mark.lock().unwrap().filter(|_| self.fault == Fault::MarksAreOld))
    }
}

impl Segment for FaultySegment {
    fn path(&self) -> &Path {
        self.0.path()
    }

    fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    fn write(&self, data: &[u8], offset: u64, durable: bool) -> Result<()> {
        let is_lost = self.1 == Fault::LosesWrites && offset > 0;
        if is_lost { Ok(()) } else { self.0.write(data, offset, durable) }
    }

    fn sync(&self) -> Result<()> {
        self.0.sync()
    }

    fn read(&self, into: &mut [u8], offset: u64) -> Result<()> {
        self.0.read(into, offset)
    }
}

struct FaultyMedium(Memory, Fault);

impl Medium for FaultyMedium {
    fn open(&self) -> Result<Arc<dyn Storage>> {
        let (removed, mark) = Default::default();
        Ok(Arc::new(Faulty { disk: self.0.clone(), fault: self.1, removed, mark }))
    }
}

#[test]
fn each_fault_of_a_medium_breaks_its_rule() {
    for (fault, rule) in [
        (Fault::NewSegmentsAreNotZeros, "a new segment is zeros, and listed"),
        (Fault::ForgetsSegments, "a new segment is zeros, and listed"),
        (Fault::LosesWrites, "bytes are read as they were written"),
        (Fault::KeepsRemoved, "a removed segment is gone"),
        (Fault::MarksAreOld, "a mark is read as it was published, or not at all"),
    ] {
        let broken = run(|| FaultyMedium(Memory::default(), fault)).unwrap_err();
        assert_eq!(broken.rule, rule, "{fault:?}: {broken}");
    }
}
