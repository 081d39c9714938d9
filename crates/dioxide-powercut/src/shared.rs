//! Workloads that write blocks of many files, and make the writes of several files durable with one
//! flush.
//!
//! Those of a plain program show which flush is enough. Writers write blocks of random files, and
//! report each write. A flusher takes all reports, flushes once, and marks the reported blocks as
//! stable. Some writers report late. Then the write reported last need not be the last one in the
//! journal. With [`Flush::Dioxide`], dioxide decides which flush is enough.
//!
//! A loop device has one worker for each blkio cgroup, and a flush holds up the requests behind it
//! in its worker. So each thread is in a cgroup of its own ([`Cgroups`]). Else a flush that covers
//! too much would hardly ever lose.

use crate::mark::{Act, Mark};
use crate::{BLOCK, SECTOR};
use dioxide::{Buffer, Durability, Growth, OpenOptions};
use dioxide_testkit::fuse_disk::Marks;
use dioxide_testkit::records::{Random, Stamp};
use rustix::fs::{Timespec, Timestamps, UTIME_OMIT};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex};
use std::thread;
use std::time::Duration;

/// How a workload makes its writes durable.
#[derive(Clone, Copy, Debug)]
pub struct Scheme {
    /// Number of files.
    pub files: u64,
    /// The space of the files before the first write.
    pub space: Space,
    /// The flush.
    pub flush: Flush,
}

/// The space of the files before the first write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// Allocated and synced.
    Unwritten,
    /// Zeros, written and synced.
    Zeros,
    /// Zeros, written into a synced empty file, and not synced.
    NewZeros,
}

/// What a flusher does for all writes reported before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flush {
    /// Each writer calls fdatasync for its own file. There are no flushers.
    OwnFile,
    /// fdatasync of the file that was reported last.
    LastFile,
    /// fdatasync of a file that is never written.
    CleanFile,
    /// A new timestamp and fsync of a file that is never written. The timestamp joins the running
    /// transaction, which the fsync commits.
    Ticket,
    /// syncfs.
    FileSystem,
    /// Each write is a durable one of dioxide. There are no flushers.
    Dioxide,
    /// Nothing.
    None,
}

const WRITERS: u64 = 8;
const FLUSHERS: u64 = 2;
/// Blocks of each file.
const BLOCKS: u64 = 128;
/// Maximum number of writes that are reported and not flushed.
const REPORTS_MAX: usize = 64;
/// Writes of a thread for each record of a log's thread: these are short.
const WRITES_PER_RECORD: u64 = 8;
/// How long a write may stay unreported.
const LATE_MAX: Duration = Duration::from_millis(3);

/// A finished write.
#[derive(Clone, Copy)]
struct Report {
    file: u64,
    block: u64,
    version: u64,
}

#[derive(Default)]
struct Reports {
    finished: Vec<Report>,
    writers_left: u64,
}

/// A play of a scheme.
pub struct Play<'a> {
    /// The scheme.
    pub scheme: Scheme,
    /// The directory of the files.
    pub dir: &'a Path,
    /// The marks of the disk.
    pub marks: &'a Marks,
    /// The seed of all random choices.
    pub seed: u64,
    /// As in [`Plan`](crate::recording::Plan).
    pub records: u64,
    /// The directory of the [`Cgroups`], if there is one.
    pub cgroups: Option<&'a Path>,
}

/// The path of a file.
pub fn path_of(dir: &Path, file: u64) -> PathBuf {
    dir.join(format!("blocks-{file}"))
}

impl Play<'_> {
    /// Plays it to its end.
    ///
    /// # Panics
    ///
    /// If a call fails.
    pub fn run(&self) {
        let clean = File::create(self.dir.join("clean")).expect("the clean file");
        clean.sync_all().expect("it syncs");
        let files: Vec<Target> = (0..self.scheme.files).map(|file| self.make(file)).collect();
        if self.scheme.space != Space::NewZeros {
            rustix::fs::syncfs(&clean).expect("the file system syncs");
        }
        let reports = Mutex::new(Reports { writers_left: WRITERS, ..Reports::default() });
        let changed = Condvar::new();
        let (files, clean, reports, changed) = (&files, &clean, &reports, &changed);
        thread::scope(|scope| {
            for writer in 0..WRITERS {
                scope.spawn(move || {
                    enter_cgroup(self.cgroups, writer);
                    self.write(writer, files, reports, changed);
                    reports.lock().expect("no panic").writers_left -= 1;
                    changed.notify_all();
                });
            }
            for flusher in 0..FLUSHERS {
                scope.spawn(move || {
                    enter_cgroup(self.cgroups, WRITERS + flusher);
                    self.flush(files, clean, reports, changed);
                });
            }
        });
        let shared: u64 = files.iter().map(Target::flushes_shared).sum();
        // A busy machine lets few files wait at one time.
        let is_shared = self.scheme.flush != Flush::Dioxide || shared > 0;
        assert!(is_shared, "the files shared no flush, so nothing was tested");
    }

    fn make(&self, number: u64) -> Target {
        let mut options = fs::OpenOptions::new();
        let options = options.write(true).create(true).custom_flags(libc::O_DIRECT);
        let file = options.open(path_of(self.dir, number)).expect("a file");
        let len = BLOCKS * BLOCK as u64;
        let write_zeros = || {
            file.write_all_at(&Buffer::zeroed(len as usize), 0).expect("there is space");
        };
        match self.scheme.space {
            Space::Unwritten => {
                rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, len)
                    .expect("there is space");
            }
            Space::Zeros => write_zeros(),
            Space::NewZeros => {}
        }
        file.sync_all().expect("it syncs");
        if self.scheme.space == Space::NewZeros {
            write_zeros();
        }
        if self.scheme.flush != Flush::Dioxide {
            return Target::Plain(file);
        }
        let mut options = OpenOptions::new();
        options.write(true).durability(Durability::EveryWrite).growth(Growth::None);
        Target::Dioxide(Box::new(options.open(path_of(self.dir, number)).expect("it opens")))
    }

    fn mark(&self, file: u64, act: Act) {
        self.marks.send(Mark { file, act }.encode());
    }

    /// Writes blocks of random files. Each writer has its own blocks of each file.
    fn write(&self, writer: u64, files: &[Target], reports: &Mutex<Reports>, changed: &Condvar) {
        let mut random = Random::new(self.seed << 8 | writer);
        let mut versions = vec![0; (self.scheme.files * BLOCKS) as usize];
        for _ in 0..self.records * WRITES_PER_RECORD {
            let file = random.below(self.scheme.files);
            let block = random.below(BLOCKS / WRITERS) * WRITERS + writer;
            let version = &mut versions[(file * BLOCKS + block) as usize];
            *version += 1;
            let report = Report { file, block, version: *version };
            self.mark(file, Act::Begin { block, version: report.version });
            let content = content(report);
            let written = &files[file as usize];
            written.write(&content, block * BLOCK as u64).expect("it writes");
            if matches!(self.scheme.flush, Flush::OwnFile | Flush::Dioxide) {
                written.sync().expect("it syncs");
                self.mark(file, Act::Stable { block, version: report.version });
                continue;
            }
            if random.below(5) == 0 {
                thread::sleep(LATE_MAX.mul_f64(random.below(1024) as f64 / 1024.0));
            }
            let mut all = reports.lock().expect("no panic");
            all =
                changed.wait_while(all, |all| all.finished.len() >= REPORTS_MAX).expect("no panic");
            all.finished.push(report);
            changed.notify_all();
        }
    }

    /// Flushes for all that was reported before, until the writers have ended.
    fn flush(&self, files: &[Target], clean: &File, reports: &Mutex<Reports>, changed: &Condvar) {
        loop {
            let waits = |all: &mut Reports| all.finished.is_empty() && all.writers_left > 0;
            let mut all =
                changed.wait_while(reports.lock().expect("no panic"), waits).expect("no panic");
            let taken = std::mem::take(&mut all.finished);
            drop(all);
            changed.notify_all();
            let Some(last) = taken.last() else { return };
            match self.scheme.flush {
                Flush::OwnFile | Flush::Dioxide => unreachable!("its writers report nothing"),
                Flush::LastFile => files[last.file as usize].sync().expect("it syncs"),
                Flush::CleanFile => clean.sync_data().expect("it syncs"),
                Flush::Ticket => ticket(clean).expect("it syncs"),
                Flush::FileSystem => rustix::fs::syncfs(clean).expect("it syncs"),
                Flush::None => {}
            }
            for Report { file, block, version } in taken {
                self.mark(file, Act::Stable { block, version });
            }
        }
    }
}

/// A file that is written.
enum Target {
    Plain(File),
    /// Each write is durable.
    Dioxide(Box<dioxide::File>),
}

impl Target {
    fn write(&self, content: &[u8], offset: u64) -> io::Result<()> {
        match self {
            Target::Plain(file) => file.write_all_at(content, offset),
            Target::Dioxide(file) => file.write_at(content, offset).map_err(io::Error::other),
        }
    }

    fn flushes_shared(&self) -> u64 {
        match self {
            Target::Plain(_) => 0,
            Target::Dioxide(file) => file.stats().flushes_shared,
        }
    }

    fn sync(&self) -> io::Result<()> {
        match self {
            Target::Plain(file) => file.sync_data(),
            Target::Dioxide(_) => Ok(()),
        }
    }
}

/// Moves the calling thread into one of the cgroups, if there are any.
pub(crate) fn enter_cgroup(cgroups: Option<&Path>, thread: u64) {
    if let Some(dir) = cgroups {
        // 0 is the calling thread.
        fs::write(dir.join(thread.to_string()).join("tasks"), "0").expect("a cgroup");
    }
}

/// Joins the running transaction, and commits it.
fn ticket(file: &File) -> io::Result<()> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = now.expect("a time after 1970");
    let modified =
        Timespec { tv_sec: now.as_secs() as i64, tv_nsec: i64::from(now.subsec_nanos()) };
    let accessed = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
    let times = Timestamps { last_access: accessed, last_modification: modified };
    rustix::fs::futimens(file, &times)?;
    file.sync_all()
}

fn content(report: Report) -> Buffer {
    let mut buffer = Buffer::zeroed(BLOCK);
    let first = report.block * (BLOCK / SECTOR) as u64;
    for (sector, part) in buffer.chunks_exact_mut(SECTOR).zip(first..) {
        Stamp { writer: report.file, number: report.version, part }.fill(sector);
    }
    buffer
}

/// A blkio cgroup (version 1) for each thread of a play. Removed on drop.
pub struct Cgroups {
    dir: PathBuf,
}

impl Cgroups {
    /// Makes them; `None` on a machine without blkio cgroups of version 1.
    ///
    /// # Errors
    ///
    /// If a cgroup cannot be made.
    pub fn new(name: &str) -> io::Result<Option<Cgroups>> {
        let root = Path::new("/sys/fs/cgroup/blkio");
        if !root.join("tasks").exists() {
            return Ok(None);
        }
        let cgroups = Cgroups { dir: root.join(name) };
        fs::create_dir(&cgroups.dir)?;
        (0..WRITERS + FLUSHERS)
            .try_for_each(|thread| fs::create_dir(cgroups.dir.join(thread.to_string())))?;
        Ok(Some(cgroups))
    }

    /// Their directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        let all = (0..WRITERS + FLUSHERS).map(|thread| self.dir.join(thread.to_string()));
        for dir in all.chain([self.dir.clone()]) {
            // A thread that has just ended may still count.
            for _ in 0..100 {
                match fs::remove_dir(&dir) {
                    Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                        thread::sleep(Duration::from_millis(10));
                    }
                    _ => break,
                }
            }
        }
    }
}
