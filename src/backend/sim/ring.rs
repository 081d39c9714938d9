//! A ring on simulated files. A request begins when it is pushed. It ends in the first `enter`
//! after its simulated duration. Until then any part of it may survive a crash. Requests complete
//! in the order of their durations, which is random. Outside of a simulation the next `enter`
//! completes all requests in flight.
//!
//! A device may access the memory of a request while it is in flight. So the ring checks the memory
//! again when the request ends. It panics if the owner wrote to that memory meanwhile.

use super::state::Snapshot;
use super::{BegunCall, Sim, copy_of, now};
use crate::backend::ring::{Bell, Io, Ring, RingFile, Uses};
use crate::buffer::Segment;
use crate::sync::world;
use slab::Slab;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Fills the memory of a read in flight.
const NOTHING_READ: u8 = 0xDD;

/// A ring of simulated requests.
#[derive(Debug)]
pub(crate) struct SimRing {
    bell: Arc<Bell>,
    files: Slab<Sim>,
    in_flight: Vec<RingEntry>,
    back: VecDeque<(u64, io::Result<u64>)>,
}

#[derive(Debug)]
struct RingEntry {
    file: u32,
    id: u64,
    /// The simulated time of its completion.
    due: Duration,
    request: RingRequest,
}

#[derive(Debug)]
enum RingRequest {
    Write { segments: SmallVec<[Segment; 1]>, dsync: bool, begun: BegunCall<u64> },
    Read { into: SmallVec<[Segment; 1]>, offset: u64, begun: BegunCall<()> },
    Flush { begun: BegunCall<Snapshot> },
}

impl SimRing {
    /// Creates a ring that waits for a completion or for `bell`.
    pub fn new(bell: Arc<Bell>) -> Self {
        Self { bell, files: Slab::new(), in_flight: Vec::new(), back: VecDeque::new() }
    }

    /// Ends the requests that are due by `time`, in order.
    fn end_due(&mut self, time: Duration) {
        while let Some(index) = self.first_due().filter(|index| self.in_flight[*index].due <= time)
        {
            let RingEntry { file, id, request, .. } = self.in_flight.remove(index);
            let result = request.end(&self.files[file as usize]);
            self.back.push_back((id, result));
        }
    }

    /// The index of the request that completes first.
    fn first_due(&self) -> Option<usize> {
        let dues = self.in_flight.iter().map(|request| request.due);
        dues.enumerate().min_by_key(|(_, due)| *due).map(|(index, _)| index)
    }
}

impl RingRequest {
    fn begin(file: &Sim, io: Io) -> Self {
        match io {
            Io::Write { segments, offset, dsync } => {
                let begun = file.begin_write(&segments, offset);
                Self::Write { segments, dsync, begun }
            }
            Io::Read { into, offset } => {
                into.iter().for_each(|segment| segment.fill(|bytes| bytes.fill(NOTHING_READ)));
                Self::Read { into, offset, begun: file.begin_read() }
            }
            Io::Flush { all } => Self::Flush { begun: file.begin_sync(all) },
        }
    }

    /// Its duration in simulated time.
    fn time(&self) -> Duration {
        let (Self::Write { begun: BegunCall { nanos, .. }, .. }
        | Self::Read { begun: BegunCall { nanos, .. }, .. }
        | Self::Flush { begun: BegunCall { nanos, .. } }) = self;
        Duration::from_nanos(*nanos)
    }

    fn end(self, file: &Sim) -> io::Result<u64> {
        match self {
            Self::Write { segments, dsync, begun } => {
                let unchanged =
                    copy_of(&segments).starts_with(file.device.state().sent(begun.prepared));
                assert!(unchanged, "the memory of a write was changed while it was in flight");
                file.end_write(begun, dsync)
            }
            Self::Read { into, offset, begun } => {
                let unchanged = copy_of(&into).iter().all(|byte| *byte == NOTHING_READ);
                assert!(unchanged, "the memory of a read was changed while it was in flight");
                file.end_read(begun, &into, offset)
            }
            Self::Flush { begun } => file.end_sync(begun).map(|()| 0),
        }
    }
}

impl Ring for SimRing {
    fn attach(&mut self, file: RingFile<'_>, _uses: Uses) -> Option<u32> {
        match file {
            RingFile::Simulated(file) => Some(self.files.insert(file.clone()) as u32),
            RingFile::Descriptor(_) => None,
        }
    }

    fn detach(&mut self, file: u32) {
        assert!(
            self.in_flight.iter().all(|request| request.file != file),
            "something is in flight"
        );
        self.files.remove(file as usize);
    }

    fn push(&mut self, file: u32, id: u64, io: Io) {
        let request = RingRequest::begin(&self.files[file as usize], io);
        self.in_flight.push(RingEntry { file, id, due: now() + request.time(), request });
    }

    fn enter(&mut self, wanted: usize) -> io::Result<()> {
        let Some(task) = world::current() else {
            self.end_due(Duration::MAX);
            if self.back.len() < wanted {
                self.bell.sleep();
            }
            return Ok(());
        };
        task.may_be_preempted();
        loop {
            self.end_due(task.now());
            if self.back.len() >= wanted || !self.bell.is_silent() {
                return Ok(());
            }
            let bell = std::ptr::from_ref(self.bell.word()).addr();
            match self.first_due() {
                Some(first) => task.wait_until(bell, self.in_flight[first].due),
                None => task.wait(bell),
            }
        }
    }

    fn next(&mut self) -> Option<(u64, io::Result<u64>)> {
        self.back.pop_front()
    }
}

impl Drop for SimRing {
    /// Panics if requests are in flight: their memory could be freed before they end.
    fn drop(&mut self) {
        assert!(
            self.in_flight.is_empty() || std::thread::panicking(),
            "a ring was dropped before its requests"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::{BLOCK_BYTES, Call, Device, Settings};
    use super::*;
    use crate::backend::Backend;
    use crate::buffer::Buffer;
    use smallvec::smallvec;
    use std::collections::HashSet;
    use std::os::fd::AsFd;

    const BLOCK: usize = BLOCK_BYTES as usize;

    fn file_with(seed: u64, settings: Settings) -> Sim {
        let device = Device::new(seed, settings);
        let inode = device.find("file", true).expect("created");
        Sim::new(device, inode)
    }

    fn file(seed: u64) -> Sim {
        file_with(seed, Settings::default())
    }

    /// A ring with `file` as number 0.
    fn ring_on(file: &Sim) -> (SimRing, Arc<Bell>) {
        let bell = Arc::new(Bell::default());
        let mut ring = SimRing::new(bell.clone());
        assert_eq!(ring.attach(RingFile::Simulated(file), Uses::Many), Some(0));
        (ring, bell)
    }

    fn write(data: &Buffer, offset: u64, dsync: bool) -> Io {
        Io::Write { segments: SmallVec::from_elem(Segment::of(data), 1), offset, dsync }
    }

    fn block_of(byte: u8) -> Buffer {
        Buffer::from(&[byte; BLOCK][..])
    }

    fn came_back(ring: &mut SimRing) -> Vec<(u64, io::Result<u64>)> {
        std::iter::from_fn(|| ring.next()).collect()
    }

    fn ids(ring: &mut SimRing) -> Vec<u64> {
        came_back(ring).into_iter().map(|(id, _)| id).collect()
    }

    /// Waits as an idle queue does.
    fn wait(ring: &mut SimRing, bell: &Bell, wanted: usize) {
        assert!(bell.may_sleep());
        ring.enter(wanted).unwrap();
        bell.has_rung();
    }

    #[test]
    fn only_simulated_files_are_attached() {
        let (mut ring, _bell) = ring_on(&file(1));
        let real = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(ring.attach(RingFile::Descriptor(real.as_fd()), Uses::Many), None);
        ring.detach(0);
        assert_eq!(ring.attach(RingFile::Simulated(&file(2)), Uses::Many), Some(0));
    }

    #[test]
    fn requests_go_to_their_files() {
        let files = [file(1), file(2)];
        let (mut ring, _bell) = ring_on(&files[0]);
        ring.attach(RingFile::Simulated(&files[1]), Uses::Many);
        let blocks = [block_of(1), block_of(2)];
        for (number, block) in (0..2).zip(&blocks) {
            ring.push(number, 0, write(block, 0, false));
        }
        ring.enter(2).unwrap();
        assert_eq!(files.map(|file| file.device.content(file.inode)[0]), [1, 2]);
    }

    #[test]
    fn outside_of_a_simulation_all_comes_back_at_once() {
        let file = file(1);
        let (mut ring, _bell) = ring_on(&file);
        let blocks: Vec<_> = (0..8).map(block_of).collect();
        for (id, block) in blocks.iter().enumerate() {
            ring.push(0, id as u64, write(block, id as u64 * BLOCK_BYTES, false));
        }
        assert!(ring.next().is_none(), "nothing ends before the ring is entered");
        ring.enter(0).unwrap();
        let back = came_back(&mut ring);
        assert!(back.iter().all(|(_, result)| matches!(result, Ok(BLOCK_BYTES))), "{back:?}");
        assert_eq!(back.iter().map(|(id, _)| *id).collect::<HashSet<_>>(), (0..8).collect());

        let mut into = Buffer::zeroed(2 * BLOCK);
        ring.push(
            0,
            9,
            Io::Read { into: smallvec![Segment::of_mut(&mut into)], offset: 7 * BLOCK_BYTES },
        );
        ring.enter(1).unwrap();
        assert!(matches!(ring.next(), Some((9, Ok(BLOCK_BYTES)))), "the file ends");
        assert_eq!(into[..BLOCK], [7; BLOCK]);
    }

    #[test]
    fn the_bell_ends_a_wait_outside_of_a_simulation() {
        let (mut ring, bell) = ring_on(&file(1));
        assert!(bell.may_sleep());
        let ringer = std::thread::spawn({
            let bell = bell.clone();
            move || bell.ring()
        });
        ring.enter(1).unwrap();
        assert!(!bell.is_silent());
        ringer.join().unwrap();
    }

    /// The order in which eight writes completed, and when each completed.
    fn eight_writes(seed: u64) -> ((Vec<u64>, Vec<Duration>), world::WorldResult) {
        world::run(seed, || {
            let file = file(seed);
            let (mut ring, bell) = ring_on(&file);
            let block = block_of(1);
            for id in 0..8 {
                ring.push(0, id, write(&block, id * BLOCK_BYTES, false));
            }
            let (mut order, mut times) = (Vec::new(), Vec::new());
            while order.len() < 8 {
                wait(&mut ring, &bell, 1);
                order.extend(ids(&mut ring));
                times.push(now());
            }
            (order, times)
        })
    }

    #[test]
    fn requests_come_back_at_their_times_in_any_order_and_again_so() {
        let runs: Vec<_> = (0..50).map(eight_writes).collect();
        for (seed, run) in runs.iter().enumerate() {
            let ((order, times), _) = run;
            assert_eq!(order.iter().copied().collect::<HashSet<_>>(), (0..8).collect());
            // In parallel: no longer than the slowest.
            assert!(
                times[0] >= Duration::from_micros(10)
                    && times[times.len() - 1] < Duration::from_micros(250),
                "{times:?}"
            );
            assert_eq!(eight_writes(seed as u64), *run);
        }
        assert!(runs.iter().map(|((order, _), _)| order).collect::<HashSet<_>>().len() > 45);
        assert!(runs.iter().map(|(_, ended)| ended.digest).collect::<HashSet<_>>().len() == 50);
    }

    #[test]
    fn so_many_are_waited_for_as_were_wanted() {
        for seed in 0..20 {
            world::run(seed, || {
                let file = file(seed);
                let (mut ring, bell) = ring_on(&file);
                (0..8).for_each(|id| ring.push(0, id, Io::Flush { all: false }));
                wait(&mut ring, &bell, 5);
                assert!((5..8).contains(&ring.back.len()), "{}", ring.back.len());
                wait(&mut ring, &bell, 8);
                assert_eq!(ids(&mut ring).len(), 8);
            });
        }
    }

    #[test]
    fn without_a_wish_it_does_not_wait_but_lets_others_run() {
        for seed in 0..20 {
            world::run(seed, || {
                let file = file(seed);
                let (mut ring, _bell) = ring_on(&file);
                ring.push(0, 1, Io::Flush { all: false });
                ring.enter(0).unwrap();
                assert!(ring.next().is_none() && now() < Duration::from_micros(10), "{:?}", now());
                let task = world::current().unwrap();
                let other = task.spawn("other", now).unwrap();
                // The wait ends because the other thread runs, and then because time passes.
                let mut looks = 0;
                while ring.back.is_empty() {
                    ring.enter(0).unwrap();
                    looks += 1;
                }
                assert!(looks > 10 && other.join().unwrap() < now());
            });
        }
    }

    #[test]
    fn the_bell_ends_a_wait_early_and_a_rung_one_lets_no_thread_wait() {
        for seed in 0..20 {
            world::run(seed, || {
                let file = file(seed);
                file.device.stall(Duration::from_secs(5));
                let (mut ring, bell) = ring_on(&file);
                // With a request in flight, and without.
                for in_flight in [false, true] {
                    if in_flight {
                        ring.push(0, 1, Io::Flush { all: false });
                    }
                    let began = now();
                    let ringing = bell.clone();
                    let task = world::current().unwrap();
                    let ringer = task.spawn("ringer", move || {
                        world::current().unwrap().sleep(1_000_000);
                        ringing.ring();
                    });
                    wait(&mut ring, &bell, 1);
                    let waited = now() - began;
                    assert!(
                        waited >= Duration::from_millis(1) && waited < Duration::from_millis(2),
                        "{waited:?}"
                    );
                    ringer.unwrap().join().unwrap();
                    bell.ring();
                    assert!(!bell.may_sleep());
                    ring.enter(1).unwrap();
                    assert!(now() - began < Duration::from_millis(2));
                    assert!(bell.has_rung());
                }
                wait(&mut ring, &bell, 1);
                assert_eq!((ids(&mut ring), now().as_secs()), (vec![1], 5));
            });
        }
    }

    /// Returns the result of a request, as a call or through a ring.
    fn perform(
        file: &Sim,
        ring: Option<&mut SimRing>,
        n: u64,
        random: &mut fastrand::Rng,
    ) -> String {
        let (offset, dsync) = (random.u64(..8) * BLOCK_BYTES, random.bool());
        let data = Buffer::from(&vec![n as u8 + 1; random.usize(1..4) * BLOCK][..]);
        let mut into = Buffer::zeroed(2 * BLOCK);
        let kind = random.u8(..3);
        let result = match ring {
            None => match kind {
                0 => file.write(&[Segment::of(&data)], offset, dsync),
                1 => file.read(&[Segment::of_mut(&mut into)], offset),
                _ => file.flush().map(|()| 0),
            },
            Some(ring) => {
                let io = match kind {
                    0 => write(&data, offset, dsync),
                    1 => Io::Read { into: smallvec![Segment::of_mut(&mut into)], offset },
                    _ => Io::Flush { all: false },
                };
                ring.push(0, n, io);
                ring.enter(1).unwrap();
                ring.next().expect("it came back").1
            }
        };
        let read = *result.as_ref().unwrap_or(&0) as usize;
        format!("{result:?} {:?}", &into[..if kind == 1 { read } else { 0 }])
    }

    #[test]
    fn a_ring_and_a_call_come_to_the_same_also_when_things_go_wrong() {
        for seed in world::seeds(200) {
            let lives = [false, true].map(|by_ring| {
                let mut random = fastrand::Rng::with_seed(seed);
                let settings = Settings {
                    capacity_bytes: 10 * BLOCK_BYTES,
                    short_one_in: 3,
                    interrupted_one_in: 5,
                    lies_about_flushes: seed % 8 == 0,
                    ..Settings::default()
                };
                let file = file_with(seed, settings);
                file.device.fail(Call::Write, random.u64(..8), libc::EIO);
                file.device.fail(Call::Flush, random.u64(..4), libc::EIO);
                file.device.die_after(random.u64(..40));
                let (mut ring, _bell) = ring_on(&file);
                let steps = (0..30).map(|n| {
                    let result = perform(&file, by_ring.then_some(&mut ring), n, &mut random);
                    let after = file.device.crash_at_random();
                    let survives = after.find("file", false).map(|inode| after.content(inode));
                    (result, survives, file.device.content(file.inode))
                });
                steps.collect::<Vec<_>>()
            });
            assert_eq!(lives[0], lives[1], "seed {seed}");
        }
    }

    #[test]
    fn a_flush_covers_what_came_back_before_it_was_pushed() {
        let file = file(1);
        file.sync_all().unwrap();
        let (mut ring, _bell) = ring_on(&file);
        let first_after = || file.device.crash(&mut |_, _| 0).content(file.inode).first().copied();
        let block = block_of(1);
        ring.push(0, 1, write(&block, 0, false));
        ring.push(0, 2, Io::Flush { all: false });
        ring.enter(2).unwrap();
        assert_eq!(
            (ids(&mut ring).len(), first_after()),
            (2, None),
            "it was in flight beside the flush"
        );
        ring.push(0, 3, Io::Flush { all: false });
        ring.enter(1).unwrap();
        assert_eq!((ids(&mut ring), first_after()), (vec![3], Some(1)));
        let block = block_of(2);
        ring.push(0, 4, write(&block, 0, true));
        assert_eq!(first_after(), Some(1), "in flight");
        ring.enter(1).unwrap();
        assert_eq!((ids(&mut ring), first_after()), (vec![4], Some(2)));
    }

    #[test]
    fn what_is_in_flight_may_survive_a_crash() {
        let file = file(1);
        file.write(&[Segment::of(&block_of(1))], 0, true).unwrap();
        let (mut ring, _bell) = ring_on(&file);
        let block = block_of(2);
        ring.push(0, 1, write(&block, 0, false));
        let found: HashSet<_> =
            (0..50).map(|_| file.device.crash_at_random().content(file.inode)[0]).collect();
        assert_eq!(found, [1, 2].into());
        assert_eq!(file.device.content(file.inode)[0], 1, "nobody reads it yet");
        ring.enter(1).unwrap();
        assert_eq!(file.device.content(file.inode)[0], 2);
    }

    #[test]
    #[should_panic(expected = "the memory of a write was changed")]
    fn a_write_from_memory_that_is_used_meanwhile_is_found() {
        let (mut ring, _bell) = ring_on(&file(1));
        let mut block = block_of(1);
        ring.push(0, 1, write(&block, 0, false));
        block[77] = 2;
        let _ = ring.enter(1);
    }

    #[test]
    #[should_panic(expected = "the memory of a read was changed")]
    fn a_read_into_memory_that_is_used_meanwhile_is_found() {
        let (mut ring, _bell) = ring_on(&file(1));
        let mut block = block_of(1);
        ring.push(0, 1, Io::Read { into: smallvec![Segment::of_mut(&mut block)], offset: 0 });
        block[77] = 2;
        let _ = ring.enter(1);
    }

    #[test]
    #[should_panic(expected = "dropped before its requests")]
    fn a_ring_that_is_dropped_before_its_requests_is_found() {
        let (mut ring, _bell) = ring_on(&file(1));
        ring.push(0, 1, Io::Flush { all: false });
    }
}
