//! A simulated disk, and threads in simulated time, for tests of a program's own use of [`File`].
//! They show the disk after a power cut at any moment, after a failed flush, or without space.
//! Behind the feature `sim`, meant for tests.
//!
//! The whole engine runs as elsewhere; a [`Disk`] in memory answers its system calls. A disk alone
//! makes faults and power cuts repeatable for a single thread. [`run`] makes them repeatable for
//! any number of threads. They run one at a time, in an order drawn from a seed. The calls of the
//! disk take simulated time, so they end in any order. The same seed gives the same run.
//!
//! ```
//! use dioxide::sim::{self, Disk};
//! use dioxide::{Buffer, Durability, OpenOptions};
//!
//! let mut log = OpenOptions::new();
//! log.write(true).create(true).durability(Durability::EveryWrite);
//!
//! for seed in 0..10 {
//!     let disk = Disk::new(seed);
//!     let ((acknowledged, after), _) = sim::run(seed, || {
//!         let file = disk.open(&log, "log").unwrap();
//!         let writers: Vec<_> = (0..4)
//!             .map(|_| {
//!                 let file = file.try_clone().unwrap();
//!                 sim::spawn(move || file.append(&Buffer::zeroed(4096)).unwrap())
//!             })
//!             .collect();
//!         let offsets = writers.into_iter().map(|writer| writer.join().unwrap());
//!         (offsets.max().unwrap() + 4096, disk.crash())
//!     });
//!     let file = after.open(&log, "log").unwrap();
//!     assert_eq!(file.len().unwrap(), acknowledged);
//! }
//! ```

use crate::api::file::File;
use crate::api::options::OpenOptions;
use crate::backend::Backend;
use crate::backend::journal::Journal;
use crate::backend::null::Null;
use crate::backend::sim::{BLOCK_BYTES, Device, SECTOR_BYTES, Sim, SimJournal};
use crate::engine::Engine;
use crate::engine::handle::FileHandle;
use crate::engine::process::{FileSystems, Process};
use crate::engine::queue::settle_own;
use crate::engine::registry::Key;
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::open;
use crate::open::build::{self, Build, SpaceAhead};
use crate::open::image::Image;
use crate::open::request::OpenRequest;
use crate::open::striped::{self, BringUp, OpenMember};
use crate::rules::marker::{Identity, Prepared};
use crate::rules::merge::{self, Limits};
use crate::rules::policy::Growth;
#[cfg(test)]
pub(crate) use crate::sync::world::seeds;
use crate::sync::{is_simulated, world};
use crate::sys;
use crate::sys::journal::Order;
use crate::sys::probe::{Alignment, Facts, Part, Through};

use std::any::Any;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub use crate::backend::sim::{Call, Settings};

/// The largest request of a simulated disk, in bytes: small, so that merging reaches it.
const REQUEST_MAX_BYTES: u64 = 256 << 10;
const SEGMENTS_MAX: usize = 64;

/// The largest request of a file that keeps nothing, in bytes.
const NULL_REQUEST_MAX_BYTES: u64 = 1 << 20;

/// A disk with a journaling file system. Clones are the same disk.
///
/// A power cut leaves a state that such a file system can leave. Of the changes of names, sizes and
/// allocation, a prefix survives. Of data that no flush has covered, any subset of sectors (512
/// bytes) survives. In a block that was never written before, all or nothing of a write survives.
#[derive(Clone, Debug)]
pub struct Disk {
    device: Arc<Device>,
    fs: FileSystems,
    journal: Arc<dyn Journal>,
    dev: u64,
}

impl Disk {
    /// An empty disk of 1 GiB. The seed decides how long calls take, and the states after power
    /// cuts.
    pub fn new(seed: u64) -> Self {
        Self::with(seed, Settings::default())
    }

    /// An empty disk.
    pub fn with(seed: u64, settings: Settings) -> Self {
        Self::of(Device::new(seed, settings))
    }

    fn of(device: Arc<Device>) -> Self {
        let journal = SimJournal::of(device.clone());
        Self { device, fs: FileSystems::default(), journal, dev: next_dev() }
    }

    /// Opens a file of the disk, as [`OpenOptions::open`]. `name` is a flat name: there are no
    /// directories. The descriptor of the file is one of `/dev/null`.
    ///
    /// # Errors
    ///
    /// As [`OpenOptions::open`].
    pub fn open(&self, options: &OpenOptions, name: &str) -> Result<File> {
        let path: Arc<Path> = Path::new(name).into();
        let (backend, facts) = self.find(options.request(), &path, name)?;
        let (fs, allocates) = (self.fs.clone(), self.device.allocates());
        let journal = Ok(self.journal.clone());
        let order = self.device.commits_in_order().then_some(Order::ALWAYS);
        let below = Below { backend, facts, fs, allocates, journal, order };
        below.open(options, path, || self.device.draw() as u32)
    }

    /// Opens a striped volume of files of the disk, as [`OpenOptions::open_striped`].
    ///
    /// # Errors
    ///
    /// As [`OpenOptions::open_striped`].
    pub fn open_striped(
        &self,
        options: &OpenOptions,
        names: &[&str],
        chunk_bytes: u64,
    ) -> Result<File> {
        let request = options.request();
        let paths: Vec<Arc<Path>> = names.iter().map(|name| Path::new(name).into()).collect();
        let mut members = Vec::new();
        for (name, path) in names.iter().zip(&paths) {
            let (backend, facts) = self.find(request, path, name)?;
            members.push(OpenMember { backend: Arc::new(backend), facts });
        }
        let name = striped::name_of(&paths);
        let process = Process::current();
        if !request.write {
            return striped::reader(members, &name, chunk_bytes, process).map(File::of);
        }
        settle_own();
        let key = striped::key_of(Key::of(&members[0].facts));
        let make = || {
            let bring_up = BringUp {
                request,
                process,
                name: &name,
                fs: self.fs.clone(),
                prepared: prepared(request.growth, self.device.allocates()),
                overwrites_in_place: true,
                epoch: self.device.draw() as u32,
                id: u128::from(self.device.draw()).to_le_bytes(),
                // Threads outside the scheduler would make runs differ.
                threads_max: if is_simulated() { names.len() - 1 } else { 0 },
            };
            bring_up.engine(members, chunk_bytes)
        };
        let engine = process.registry.open(key, make)?;
        open::shared(request, process, key, engine).map(File::of)
    }

    fn find(&self, request: &OpenRequest, path: &Arc<Path>, name: &str) -> Result<(Sim, Facts)> {
        let fail = |kind| Error::new(Operation::Open, path, None, kind);
        self.check_usable(path)?;
        request.check_read_only().map_err(fail)?;
        let known = self.device.find(name, false).is_some();
        if known && request.create_new {
            return Err(fail(ErrorKind::Os(libc::EEXIST)));
        }
        let create = request.create || request.create_new;
        let inode =
            self.device.find(name, create).ok_or_else(|| fail(ErrorKind::Os(libc::ENOENT)))?;
        Ok(self.backend(inode))
    }

    /// The file `name` of the disk as the image of a volume.
    pub(super) fn image(&self, name: &str) -> Result<Image> {
        let path: Arc<Path> = Path::new(name).into();
        self.check_usable(&path)?;
        let inode = self.device.find(name, false);
        let inode = inode
            .ok_or_else(|| Error::new(Operation::Open, &path, None, ErrorKind::Os(libc::ENOENT)))?;
        let (backend, facts) = self.backend(inode);
        Ok(Image::new(Arc::new(backend), facts, self.fs.clone()))
    }

    fn check_usable(&self, path: &Arc<Path>) -> Result<()> {
        match self.fs.wedged() {
            Some(cause) => {
                Err(Error::new(Operation::Open, path, None, ErrorKind::Wedged(cause.clone())))
            }
            None => Ok(()),
        }
    }

    fn backend(&self, inode: u64) -> (Sim, Facts) {
        let backend = Sim::new(self.device.clone(), inode);
        let identity = Identity { inode: backend.inode, birth_time: (0, 0) };
        let limits = Limits { bytes_max: REQUEST_MAX_BYTES, segments_max: SEGMENTS_MAX };
        (backend, facts(identity, self.dev, limits))
    }

    /// Returns the disk after a power cut now, in one of all possible states. This disk continues,
    /// and open files belong to it.
    pub fn crash(&self) -> Self {
        Self::of(self.device.crash_at_random())
    }

    /// Returns the disk after a kill of the program now, with the power on. All written data is
    /// there, but no more of it is durable than before, so a power cut may still lose it. This disk
    /// continues, and open files belong to it.
    pub fn kill(&self) -> Self {
        Self::of(self.device.kill())
    }

    /// Makes the `nth` next call of a kind (from 0), on any file, fail with `errno`.
    ///
    /// A failed flush loses some of the data that it should have covered, whatever later flushes
    /// return, as in real file systems. So may a write that carries a flush and fails with EIO.
    pub fn fail(&self, call: Call, nth: u64, errno: i32) {
        self.device.fail(call, nth, errno);
    }

    /// Cancels the pending faults of [`fail`](Self::fail) and [`stall`](Self::stall).
    pub fn heal(&self) {
        self.device.heal();
    }

    /// After `calls` more calls that change something, every call fails, as if the device or the
    /// program were gone.
    pub fn die_after(&self, calls: u64) {
        self.device.die_after(calls);
    }

    /// Delays the end of every call that begins from now on by `time`, in simulated time. Only for
    /// threads of [`run`].
    pub fn stall(&self, time: Duration) {
        self.device.stall(time);
    }

    /// Lets no more thread start to grow a file.
    #[cfg(test)]
    pub(crate) fn refuse_threads(&self) {
        self.device.refuse_threads();
    }

    /// Returns the number of calls that changed something, or failed to.
    pub fn calls(&self) -> u64 {
        self.device.calls()
    }

    /// Calls `watcher` whenever a call of the disk begins or ends, for instance to
    /// [`crash`](Self::crash) a copy there. The watcher takes no simulated time. It must not wait
    /// for threads of the simulation, and so must not use a file of this disk. Its panic ends it,
    /// and becomes the panic of [`run`]. `None` ends it too, but not from within the watcher.
    pub fn watch(&self, watcher: Option<Box<dyn FnMut() + Send>>) {
        self.device.watch(watcher);
    }

    /// Returns the names of all files.
    pub fn names(&self) -> Vec<String> {
        self.device.names()
    }

    /// Renames a file. The new name is durable with the next flush of any file. Does nothing if
    /// there is no such file.
    pub fn rename(&self, from: &str, to: &str) {
        self.device.rename(from, to);
    }

    /// Removes a name, durable with the next flush of any file. Open handles continue; closing the
    /// last one frees the space.
    pub fn remove(&self, name: &str) {
        self.device.remove(name);
    }

    /// Returns the content that other programs find in a file, including space that is only grown.
    /// None if there is no such file.
    pub fn content(&self, name: &str) -> Option<Vec<u8>> {
        self.device.find(name, false).map(|inode| self.device.content(inode))
    }

    /// Sets the content of a file durably, as another program.
    pub fn put(&self, name: &str, content: &[u8]) {
        self.device.put(name, content);
    }
}

/// A regular file on its own device that takes no time and keeps nothing, to measure the overhead
/// of a program and the engine. Every call succeeds, with any number of threads, in a simulation or
/// not. Reads leave the memory as it is. The file begins empty, and vanishes with its last handle.
/// Its descriptor is one of `/dev/null`.
///
/// # Errors
///
/// [`ErrorKind::Unsupported`] without [`write(true)`](OpenOptions::write).
pub fn null(options: &OpenOptions) -> Result<File> {
    let path: Arc<Path> = Path::new("null").into();
    if !options.request().write {
        let kind = ErrorKind::Unsupported("a file that keeps nothing needs write(true)".into());
        return Err(Error::new(Operation::Open, &path, None, kind));
    }
    let limits = Limits { bytes_max: NULL_REQUEST_MAX_BYTES, segments_max: merge::SEGMENTS_MAX };
    let facts = facts(Identity { inode: 1, birth_time: (0, 0) }, next_dev(), limits);
    let (backend, fs) = (Null::default(), FileSystems::default());
    let journal = Err("it keeps nothing".into());
    let below = Below { backend, facts, fs, allocates: true, journal, order: None };
    below.open(options, path, sys::epoch)
}

/// Returns a device number that no real device has.
fn next_dev() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1 << 63);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn facts(identity: Identity, dev: u64, limits: Limits) -> Facts {
    Facts {
        identity,
        dev,
        fs: dev,
        is_device: false,
        alignment: Alignment {
            memory: SECTOR_BYTES as u64,
            offset: SECTOR_BYTES as u64,
            append: BLOCK_BYTES,
        },
        limits,
        writes_through: false,
        len: 0,
        through: Through::Unnumbered,
        part: Part::Whole,
    }
}

/// The layer below a file.
struct Below<B> {
    backend: B,
    facts: Facts,
    fs: FileSystems,
    /// Whether space can be allocated without writing it.
    allocates: bool,
    /// The journal by which files share flushes; or why they share none.
    journal: std::result::Result<Arc<dyn Journal>, String>,
    order: Option<Order>,
}

impl<B: Backend> Below<B> {
    fn open(
        self,
        options: &OpenOptions,
        path: Arc<Path>,
        epoch: impl FnOnce() -> u32,
    ) -> Result<File> {
        let (request, process) = (options.request(), Process::current());
        if !request.write {
            let key = Key::of(&self.facts);
            let reader = build::reader(Arc::new(self.backend), path, self.facts, key, process);
            return Ok(File::of(FileHandle::Reader(reader)));
        }
        settle_own();
        let key = Key::of(&self.facts);
        let engine =
            process.registry.open(key, || self.make_engine(request, process, path, epoch))?;
        open::shared(request, process, key, engine).map(File::of)
    }

    fn make_engine(
        self,
        request: &OpenRequest,
        process: &'static Process,
        path: Arc<Path>,
        epoch: impl FnOnce() -> u32,
    ) -> Result<Engine> {
        let Self { backend, facts, fs, allocates, journal, order } = self;
        // It syncs, so a name just created is stable then.
        let (recovery, held) = open::recovered(&backend, &fs, &path, &facts)?;
        let ahead =
            SpaceAhead::new(held.as_ref(), || prepared(request.growth, allocates), |_| true);
        let build = Build {
            request,
            process,
            path: &path,
            fs,
            facts: &facts,
            ahead,
            journal,
            order,
            epoch: epoch(),
            recovery,
            held,
        };
        Ok(build.engine(Arc::new(backend)))
    }
}

fn prepared(growth: Growth, allocates: bool) -> Option<Prepared> {
    match growth {
        Growth::Unwritten => allocates.then_some(Prepared::Unwritten),
        Growth::Zeroed => Some(Prepared::Zeroed),
        Growth::None => None,
    }
}

/// The outcome of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Simulated time.
    pub elapsed: Duration,
    /// Digest of all events in their order: two runs with the same digest were the same.
    pub digest: u64,
}

/// Runs `main` in simulated time, and waits for the threads it [spawned](spawn). Other threads do
/// not take part: they and the simulated ones must not wait for each other.
///
/// # Panics
///
/// With the panic of a [watcher](Disk::watch), or of `main`. If all threads wait for one another.
/// Inside another simulation. If `main` unwinds and drops a file that waits for the others, the
/// process ends.
pub fn run<R>(seed: u64, main: impl FnOnce() -> R) -> (R, Run) {
    // The first use makes it, and takes locks: the first run would differ from the later ones.
    Process::current();
    let (result, ended) = world::run(seed, main);
    (result, Run { elapsed: ended.elapsed, digest: ended.digest })
}

fn task() -> world::WorldTask {
    world::current().expect("a thread of a simulation (dioxide::sim::run)")
}

/// A thread of a simulation.
#[derive(Debug)]
pub struct JoinHandle<T>(world::WorldThread<T>);

impl<T> JoinHandle<T> {
    /// Waits until the thread has ended, and returns its result.
    ///
    /// # Errors
    ///
    /// The thread's panic.
    ///
    /// # Panics
    ///
    /// Outside the simulation.
    pub fn join(self) -> std::result::Result<T, Box<dyn Any + Send>> {
        self.0.join()
    }
}

/// Starts one more thread of the simulation.
///
/// # Panics
///
/// Outside of a simulation, and if the system has no more threads.
pub fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    JoinHandle(task().spawn("simulated", work).expect("a thread"))
}

/// Lets simulated time pass.
///
/// # Panics
///
/// Outside of a simulation.
pub fn sleep(time: Duration) {
    task().sleep(time.as_nanos() as u64);
}

/// Lets other threads of the simulation run.
///
/// # Panics
///
/// Outside of a simulation.
pub fn yield_now() {
    task().yield_now();
}

/// The simulated time since the simulation began.
///
/// # Panics
///
/// Outside of a simulation.
pub fn now() -> Duration {
    task().now()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Buffer, Durability, Queue};

    fn log() -> OpenOptions {
        let mut options = OpenOptions::new();
        options.write(true).create(true);
        options
    }

    #[test]
    fn what_a_thread_did_before_does_not_change_a_run() {
        let one = || {
            run(7, || {
                let disk = Disk::new(7);
                let file = disk.open(&log(), "log").unwrap();
                // It waits for growth.
                file.append(&Buffer::zeroed(4096)).unwrap();
                file.close().unwrap();
            })
            .1
        };
        let on_another_thread = std::thread::spawn(one).join().unwrap();
        assert_eq!(one(), on_another_thread);
        assert_eq!(one(), on_another_thread);
    }

    #[test]
    fn a_thread_that_is_not_joined_is_dropped_in_the_simulation() {
        struct Last(Arc<AtomicU64>);
        impl Drop for Last {
            fn drop(&mut self) {
                self.0.store(1 + u64::from(world::current().is_some()), Ordering::SeqCst);
            }
        }
        for seed in 0..20 {
            let dropped = Arc::new(AtomicU64::new(0));
            let last = Last(dropped.clone());
            run(seed, || drop(spawn(move || last)));
            assert_eq!(dropped.load(Ordering::SeqCst), 2, "seed {seed}");
        }
    }

    #[test]
    fn a_file_can_be_dropped_when_its_thread_ends() {
        use std::cell::RefCell;
        thread_local!(static KEPT: RefCell<Option<File>> = const { RefCell::new(None) });
        let disk = Disk::new(1);
        let same = disk.clone();
        let keep = move || {
            // So that the simulation's own thread-local is destroyed first.
            KEPT.set(None);
            KEPT.set(Some(same.open(&log(), "log").unwrap()));
        };
        std::thread::spawn(keep).join().unwrap();
        disk.open(&log(), "log").unwrap().close().unwrap();
    }

    #[test]
    fn the_space_of_a_removed_file_is_free_when_it_is_closed() {
        let settings = Settings { capacity_bytes: 16 * BLOCK_BYTES, ..Settings::default() };
        let disk = Disk::with(3, settings);
        for _ in 0..8 {
            disk.put("old", &[1; 10 * BLOCK_BYTES as usize]);
            let file = disk.open(&log(), "old").unwrap();
            disk.remove("old");
            let crashed = disk.crash();
            crashed.put("more", &[2; 5 * BLOCK_BYTES as usize]);
            assert_eq!(file.len().unwrap(), 10 * BLOCK_BYTES);
            let full = disk.open(&log(), "other").unwrap();
            full.append(&Buffer::zeroed(10 * BLOCK_BYTES as usize)).unwrap_err();
            disk.remove("other");
        }
    }

    #[test]
    fn bytes_of_a_failed_append_never_return() {
        for seed in 0..16 {
            for members in 0..4 {
                let disk = Disk::new(seed);
                let names = ["a", "b", "c"];
                let open = |disk: &Disk| match members {
                    0 => disk.open(log().growth(Growth::None), "log").unwrap(),
                    _ => disk
                        .open_striped(log().growth(Growth::None), &names[..members], 4096)
                        .unwrap(),
                };
                let file = open(&disk);
                file.append(&[1; 700]).unwrap();
                file.set_len(700).unwrap();
                disk.fail(Call::Write, 0, libc::EIO);
                file.append(&[2; 3000]).unwrap_err();
                file.set_len(700).unwrap();
                file.append(&[3; 300]).unwrap();
                for _ in 0..16 {
                    let after = open(&disk.crash());
                    let mut content = Buffer::zeroed(after.len().unwrap() as usize);
                    after.read_at(&mut content, 0).unwrap();
                    assert!(!content.contains(&2), "seed {seed}, {members} members");
                }
            }
        }
    }

    #[test]
    fn a_file_that_keeps_nothing_grows_and_ends_like_any_other() {
        const THREADS: u64 = 8;
        const EACH: u64 = 2000;
        for growth in [Growth::Unwritten, Growth::Zeroed, Growth::None] {
            for durability in [Durability::OnSync, Durability::EveryWrite] {
                let file = null(log().growth(growth).durability(durability)).unwrap();
                std::thread::scope(|scope| {
                    for _ in 0..THREADS {
                        let append = |_| file.append(&Buffer::zeroed(4096)).unwrap();
                        scope.spawn(move || (0..EACH).map(append).max());
                    }
                });
                assert_eq!(file.len().unwrap(), THREADS * EACH * 4096);
                assert_eq!(file.stats().growths > 0, growth != Growth::None);
                let mut into = Buffer::from(&[7; 8192][..]);
                assert_eq!(file.read_at(&mut into, file.len().unwrap() - 4096).unwrap(), 4096);
                assert_eq!(into[..], [7; 8192]);
                file.write_at(&Buffer::zeroed(4096), 1 << 30).unwrap();
                file.sync_data().unwrap();
                file.set_len(4096).unwrap();
                assert_eq!(file.append(&Buffer::zeroed(4096)).unwrap(), 4096);
                file.close().unwrap();
            }
        }
    }

    #[test]
    fn files_that_keep_nothing_are_not_one_another() {
        let files = [(); 2].map(|()| null(&log()).unwrap());
        files[0].append(&Buffer::zeroed(4096)).unwrap();
        assert_eq!(files.map(|file| file.len().unwrap()), [4096, 0]);
        let error = null(&OpenOptions::new()).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Unsupported(_)), "{error}");
    }

    #[test]
    #[should_panic(expected = "found at call 12")]
    fn what_a_watcher_finds_ends_the_run() {
        run(1, || {
            let disk = Disk::new(1);
            let file = disk.open(&log(), "log").unwrap();
            let calls = disk.clone();
            disk.watch(Some(Box::new(move || {
                assert!(calls.calls() < 12, "found at call {}", calls.calls())
            })));
            let writers: Vec<_> = (0..2)
                .map(|_| {
                    let file = file.try_clone().unwrap();
                    spawn(move || (0..20).for_each(|_| drop(file.append(&Buffer::zeroed(4096)))))
                })
                .collect();
            writers.into_iter().for_each(|writer| writer.join().unwrap());
        });
    }

    #[test]
    fn what_a_watcher_closes_does_not_wait_for_the_queues_of_its_thread() {
        let checked = Arc::new(AtomicU64::new(0));
        let count = checked.clone();
        run(3, move || {
            let disk = Disk::new(3);
            let file = disk.open(&log(), "log").unwrap();
            let other = disk.clone();
            disk.watch(Some(Box::new(move || {
                let found = other.crash().open(&log(), "log").unwrap();
                found.append(&Buffer::zeroed(4096)).unwrap();
                found.close().unwrap();
                count.fetch_add(1, Ordering::SeqCst);
            })));
            let queue = Queue::new(8);
            (0..8).for_each(|tag| queue.append(&file, Buffer::zeroed(4096), tag).unwrap());
            queue.submit();
            // Ends while the appends are in flight, and the watcher sees it.
            file.read_at(&mut Buffer::zeroed(4096), 0).unwrap();
            assert!(queue.reap(8).all(|done| done.result.is_ok()));
            disk.watch(None);
        });
        assert!(checked.load(Ordering::SeqCst) > 4);
    }

    #[test]
    fn a_cut_that_waited_while_a_flush_failed_changes_nothing() {
        for seed in seeds(200) {
            run(seed, || {
                // There growth flushes.
                let settings = Settings { commits_fast: true, ..Settings::default() };
                let disk = Disk::with(seed, settings);
                let file = disk.open(&log(), "log").unwrap();
                let handle = file.try_clone().unwrap();
                disk.fail(Call::Flush, 0, 5);
                let append = spawn(move || handle.append(&Buffer::zeroed(4096)).unwrap_err());
                sleep(Duration::from_micros(5));
                // It may come before the append, and then meets the failure itself.
                let error = file.set_len(4096).unwrap_err();
                assert!(matches!(error.kind(), ErrorKind::Wedged(_)), "seed {seed}: {error}");
                append.join().unwrap();
                let after = disk.crash().open(&log(), "log");
                assert!(after.is_ok(), "seed {seed}: {after:?}");
            });
        }
    }

    #[test]
    fn a_striped_volume_keeps_what_it_acknowledged() {
        const NAMES: [&str; 3] = ["log.0", "log.1", "log.2"];
        for seed in seeds(200) {
            run(seed, || {
                let disk = Disk::new(seed);
                let mut options = log();
                options.durability(Durability::EveryWrite).growth_cap(64 << 10);
                options
                    .growth([Growth::Unwritten, Growth::Zeroed, Growth::None][seed as usize % 3]);
                let file = disk.open_striped(&options, &NAMES, 8192).unwrap();
                let writers: Vec<_> = (0..3)
                    .map(|writer| {
                        let file = file.try_clone().unwrap();
                        spawn(move || {
                            let blocks = (1 + writer as usize) * 3;
                            let append = |n: u8| {
                                let block = Buffer::from(&vec![1 + n; blocks * 4096][..]);
                                (file.append(&block).unwrap(), blocks, 1 + n)
                            };
                            (0..4).map(append).collect::<Vec<_>>()
                        })
                    })
                    .collect();
                let placed: Vec<_> =
                    writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect();
                let end = file.len().unwrap();
                assert_eq!(
                    end,
                    placed.iter().map(|(_, blocks, _)| *blocks as u64 * 4096).sum::<u64>()
                );
                let crashed = disk.crash();
                for (found, is_exact) in [
                    (crashed.open_striped(&options, &NAMES, 8192).unwrap(), seed % 3 != 1),
                    (file, true),
                ] {
                    assert!(found.len().unwrap() >= end, "seed {seed}");
                    assert!(!is_exact || found.len().unwrap() == end, "seed {seed}");
                    for (offset, blocks, byte) in &placed {
                        let mut into = Buffer::zeroed(blocks * 4096);
                        assert_eq!(
                            found.read_at(&mut into, *offset).unwrap(),
                            into.len(),
                            "seed {seed}"
                        );
                        assert!(into.iter().all(|found| found == byte), "seed {seed}: {offset}");
                    }
                    found.set_len(end - 5000).unwrap();
                    found.close().unwrap();
                }
                let reopened = disk.open_striped(&options, &NAMES, 8192).unwrap();
                assert_eq!(reopened.len().unwrap(), end - 5000);
                assert_eq!(reopened.recovery(), None);
                let reader = disk.open_striped(&OpenOptions::new(), &NAMES, 8192).unwrap();
                assert_eq!(reader.len().unwrap(), end - 5000);
                let swapped =
                    disk.open_striped(&OpenOptions::new(), &["log.1", "log.0", "log.2"], 8192);
                assert!(matches!(swapped.unwrap_err().kind(), ErrorKind::Members(_)));
            });
        }
    }

    /// Space ahead begins at the next block, which lies on another member than the last byte. There
    /// is too little of it to reach that member again.
    #[test]
    fn a_striped_volume_that_ends_inside_a_block_grows_without_a_gap() {
        const NAMES: [&str; 3] = ["log.0", "log.1", "log.2"];
        const CHUNK: usize = 65536;
        for growth in [Growth::Unwritten, Growth::Zeroed, Growth::None] {
            for chunks in 1..4 {
                let disk = Disk::new(chunks as u64);
                let options = log().growth(growth).tail(crate::Tail::Pad).growth_cap(16384).clone();
                let file = disk.open_striped(&options, &NAMES, CHUNK as u64).unwrap();
                file.append(&vec![1; chunks * CHUNK]).unwrap();
                file.set_len((chunks * CHUNK - 7) as u64).unwrap();
                let offset = file.append(&Buffer::from(&[2; 4096][..])).unwrap();
                assert_eq!(offset, (chunks * CHUNK) as u64);
                file.sync_data().unwrap();
                let after = disk.crash().open_striped(&options, &NAMES, CHUNK as u64).unwrap();
                let mut into = Buffer::zeroed(4096);
                assert_eq!(after.read_at(&mut into, offset).unwrap(), 4096, "{growth:?}, {chunks}");
                assert!(into.iter().all(|byte| *byte == 2));
            }
        }
    }

    #[test]
    fn what_a_killed_program_left_is_stable_once_it_was_found() {
        for seed in seeds(50) {
            let disk = Disk::new(seed);
            let file = disk.open(&log(), "log").unwrap();
            for _ in 0..4 {
                file.append(&Buffer::zeroed(4096)).unwrap();
            }
            let killed = disk.kill();
            let found = killed.open(&log(), "log").unwrap();
            assert_eq!(found.len().unwrap(), 4 * 4096, "seed {seed}");
            let after = killed.crash().open(&log(), "log").unwrap();
            assert_eq!(after.len().unwrap(), 4 * 4096, "seed {seed}");
        }
    }
}
