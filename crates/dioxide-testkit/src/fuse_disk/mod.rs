//! A disk that fails on command: a file of a FUSE file system with a volatile cache, served by a
//! separate process. It is used through a loop device, which passes every flush on.
//!
//! It can record all requests, and then be replayed to any point ([`FuseDisk::replay`]).
//!
//! Its server is never the process under test: a process that waits for its own disk cannot even be
//! killed. All waits here are bounded. A disk that is stuck is aborted through the kernel.

mod abort;
mod disk;
mod file_system;
mod image;
mod log;
mod protocol;
pub mod server;
mod shared;

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Mutex;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use crate::child;
use crate::loop_device::{Io, LoopDevice};
use crate::mount::Mount;
use crate::site::Site;
use crate::wait::{PATIENCE, retry};
use protocol::Command;

pub use disk::STALL_MAX;
pub use log::Mark;
pub use protocol::{Keep, Stats};

/// Time limit of an unmount before the disk is aborted.
const STUCK: Duration = Duration::from_secs(5);

/// A running disk. Its initial content is 0xA5 everywhere. Dropping it discards the content.
pub struct FuseDisk {
    // In drop order.
    loop_device: Option<LoopDevice>,
    mount: Mount,
    server: Server,
    connection: u32,
    site: Site,
}

impl FuseDisk {
    /// Starts a disk of `size` bytes and waits until it answers.
    pub fn start(size: u64) -> io::Result<FuseDisk> {
        let site = Site::new()?;
        let dir = site.make_dir("disk")?;
        let server = Server::start(&dir, size)?;
        fs::write(site.path("server.pid"), server.process.id().to_string())?;
        let mount = Mount::adopt(&dir);
        server.wait_until_ready()?;
        let connection = rustix::fs::minor(fs::metadata(&dir)?.dev());
        Ok(FuseDisk { loop_device: None, mount, server, connection, site })
    }

    /// The file that is the disk.
    pub fn image(&self) -> PathBuf {
        self.mount.dir().join(file_system::IMAGE)
    }

    /// Attaches a loop device to the disk, unless one is attached.
    pub fn loop_device(&mut self) -> io::Result<&Path> {
        self.attach(Io::Direct)
    }

    /// The same, with sectors of 4096 bytes. A power cut tears them as others.
    pub fn loop_device_with_large_sectors(&mut self) -> io::Result<&Path> {
        self.attach(Io::DirectInPages)
    }

    fn attach(&mut self, io: Io) -> io::Result<&Path> {
        if self.loop_device.is_none() {
            self.loop_device =
                Some(LoopDevice::attach(&self.image(), &self.site.path("disk.loop"), io)?);
        }
        Ok(self.attached().expect("just attached"))
    }

    /// The loop device, if one is attached.
    pub fn attached(&self) -> Option<&Path> {
        self.loop_device.as_ref().map(LoopDevice::path)
    }

    pub(crate) fn site(&self) -> &Site {
        &self.site
    }

    /// The next `times` flushes fail, and each of them loses the whole cache.
    pub fn fail_flush(&self, times: u64, errno: i32) -> io::Result<Stats> {
        self.server.ask(&Command::FailFlush { times, errno })
    }

    /// The next `times` writes that touch these bytes of the disk fail and change nothing.
    pub fn fail_write_range(&self, range: Range<u64>, times: u64, errno: i32) -> io::Result<Stats> {
        self.server.ask(&Command::FailWriteRange { range, times, errno })
    }

    /// From now on flushes succeed and make nothing stable.
    pub fn lie(&self) -> io::Result<Stats> {
        self.server.ask(&Command::Lie)
    }

    /// Makes a power cut: the cache is lost except what `keep` keeps. Everything fails with EIO
    /// until [`FuseDisk::heal`].
    pub fn power_cut(&self, keep: Keep) -> io::Result<Stats> {
        self.server.ask(&Command::PowerCut(keep))
    }

    /// Ends all faults and restores power. Lost data stays lost.
    pub fn heal(&self) -> io::Result<Stats> {
        self.server.ask(&Command::Heal)
    }

    /// Counters since the disk started.
    pub fn stats(&self) -> io::Result<Stats> {
        self.server.ask(&Command::Stats)
    }

    /// Stalls the disk: it answers nothing until [`FuseDisk::go_on`], for at most [`STALL_MAX`].
    pub fn stall(&self) -> io::Result<Stats> {
        self.server.ask(&Command::Stall)
    }

    /// Resumes a stalled or stopped disk.
    pub fn go_on(&self) -> io::Result<Stats> {
        self.signal(Signal::CONT)?;
        self.server.ask(&Command::GoOn)
    }

    /// From now on each write, zeroing and flush waits up to `max` before it takes effect and again
    /// before it is answered. Concurrent requests are so reordered. Ends with the first replay.
    pub fn delay(&self, max: Duration, seed: u64) -> io::Result<Stats> {
        self.server.ask(&Command::Delay { max_us: max.as_micros() as u64, seed })
    }

    /// Starts logging everything for replays. The disk must be unused. A power cut or a failed
    /// flush ends the recording.
    pub fn record(&self) -> io::Result<Stats> {
        self.server.ask(&Command::Record)
    }

    /// The path where the workload on a recording disk writes its marks, see [`Marks::open`].
    pub fn marks_path(&self) -> PathBuf {
        self.mount.dir().join(file_system::MARKS)
    }

    /// All marks of the recording with their positions in the log. A power cut after more entries
    /// than that comes after the mark.
    pub fn marks(&self) -> io::Result<Vec<(u64, Mark)>> {
        let bytes = fs::read(self.marks_path())?;
        let words = |bytes: &[u8]| log::numbers::<5>(bytes);
        Ok(bytes.chunks_exact(40).map(words).map(|[place, mark @ ..]| (place, mark)).collect())
    }

    /// Ends the recording, and sets the disk to its state after a power cut after `cut` log
    /// entries. That is everything before the last flush, and the part of the rest that `keep`
    /// keeps. The next replay undoes later writes.
    pub fn replay(&self, cut: u64, keep: Keep) -> io::Result<Stats> {
        self.server.ask(&Command::Replay { cut, keep })
    }

    /// After a replay, sets the disk to its state after one more power cut, after `cut` entries
    /// since that replay ([`Stats::logged_since`]).
    pub fn replay_again(&self, cut: u64, keep: Keep) -> io::Result<Stats> {
        self.server.ask(&Command::ReplayAgain { cut, keep })
    }

    /// Saves the recording to a file at `path`, which is absolute and has no spaces.
    pub fn save(&self, path: &Path) -> io::Result<Stats> {
        self.server.ask(&Command::Save(path.to_owned()))
    }

    /// Loads a saved recording, ready for replays.
    pub fn load(&self, path: &Path) -> io::Result<Stats> {
        self.server.ask(&Command::Load(path.to_owned()))
    }

    /// Stops the server's process with SIGSTOP until [`FuseDisk::go_on`].
    ///
    /// Returns when the process has stopped. Before that the server may still answer a few requests
    /// on a busy machine.
    pub fn stop(&self) -> io::Result<()> {
        self.signal(Signal::STOP)?;
        retry(PATIENCE, || match self.server.is_stopped()? {
            true => Ok(()),
            false => Err(io::ErrorKind::TimedOut.into()),
        })
    }

    /// Kills the server: the disk is gone, and everything on it fails from now on.
    ///
    /// Returns when the process has ended. With many threads and much memory that takes seconds on
    /// a busy machine; until then requests wait.
    pub fn die(&self) -> io::Result<()> {
        self.signal(Signal::KILL)?;
        retry(PATIENCE, || match self.server.has_ended()? {
            true => Ok(()),
            false => Err(io::ErrorKind::TimedOut.into()),
        })
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        Ok(kill_process(Pid::from_child(&self.server.process), signal)?)
    }

    /// Aborts the connection in the kernel, whatever the state of the server. Everything on the
    /// disk fails from now on.
    pub fn cut_off(&self) -> io::Result<()> {
        abort::abort(self.connection, &self.site)
    }

    /// Waiting requests get an error, so that the disk can be unmounted.
    pub(crate) fn give_up(&self) {
        let _ = self.signal(Signal::KILL);
        if let Err(e) = self.cut_off() {
            eprintln!("testkit: cannot abort FUSE connection {}: {e}", self.connection);
        }
    }
}

impl Drop for FuseDisk {
    fn drop(&mut self) {
        let _ = self.go_on();
        self.loop_device = None;
        if self.mount.unmount_within(STUCK).is_err() {
            self.give_up();
        }
    }
}

/// Resumes a stalled or stopped disk when it is dropped, even when a test fails.
pub struct GoesOn<'a>(pub &'a FuseDisk);

impl Drop for GoesOn<'_> {
    fn drop(&mut self) {
        let _ = self.0.go_on();
    }
}

/// A workload's marks, in one order with the disk's requests; shared by its threads.
pub struct Marks(File);

impl Marks {
    /// `path` is that of [`FuseDisk::marks_path`].
    pub fn open(path: &Path) -> io::Result<Marks> {
        Ok(Marks(File::options().write(true).open(path)?))
    }

    /// Returns when the mark is in the log. Panics if the disk is gone.
    pub fn send(&self, mark: Mark) {
        let bytes = mark.map(u64::to_le_bytes).concat();
        let written = (&self.0).write(&bytes).expect("the disk takes marks");
        assert_eq!(written, bytes.len(), "a mark is one request");
    }
}

struct Server {
    process: Child,
    control: Mutex<BufReader<UnixStream>>,
}

impl Server {
    fn start(dir: &Path, size: u64) -> io::Result<Server> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_read_timeout(Some(PATIENCE))?;
        let theirs = OwnedFd::from(theirs);
        let process = child::reexec(server::SERVER, "1")?
            .arg(dir)
            .arg(size.to_string())
            .stdin(theirs.try_clone()?)
            .stdout(theirs)
            // Ctrl-C is for the tests, which stop their disks in order.
            .process_group(0)
            .spawn()?;
        Ok(Server { process, control: Mutex::new(BufReader::new(ours)) })
    }

    fn wait_until_ready(&self) -> io::Result<()> {
        let line = read_line(&mut *self.lock())?;
        if line == server::READY { Ok(()) } else { Err(io::Error::other(line)) }
    }

    /// Whether all of its threads have ended, and so its connection to the kernel. The process is
    /// not reaped yet.
    fn has_ended(&self) -> io::Result<bool> {
        let how = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        Ok(waitid(WaitId::Pid(Pid::from_child(&self.process)), how)?.is_some())
    }

    /// Whether all of its threads are stopped.
    fn is_stopped(&self) -> io::Result<bool> {
        let threads = fs::read_dir(format!("/proc/{}/task", self.process.id()))?;
        let states = threads.map(|thread| {
            let stat = fs::read_to_string(thread?.path().join("stat"))?;
            Ok::<_, io::Error>(stat.rsplit(") ").next().is_some_and(|state| state.starts_with('T')))
        });
        states
            .collect::<Result<Vec<_>, _>>()
            .map(|stopped| stopped.into_iter().all(|stopped| stopped))
    }

    fn ask(&self, command: &Command) -> io::Result<Stats> {
        let mut control = self.lock();
        writeln!(control.get_mut(), "{}", command.to_line())?;
        let line = read_line(&mut *control)?;
        Stats::from_line(&line).ok_or_else(|| io::Error::other(line))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BufReader<UnixStream>> {
        self.control.lock().expect("no holder of the socket panics")
    }
}

fn read_line(control: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    control.read_line(&mut line).map_err(|e| match e.kind() {
        io::ErrorKind::WouldBlock => {
            io::Error::new(io::ErrorKind::TimedOut, "the disk's server does not answer")
        }
        _ => e,
    })?;
    if line.is_empty() {
        return Err(io::Error::new(io::ErrorKind::BrokenPipe, "the disk's server has ended"));
    }
    Ok(line.trim_end().to_owned())
}

impl Drop for Server {
    /// Bounded: a server stuck in the kernel does not end even when killed.
    fn drop(&mut self) {
        let _ = self.process.kill();
        let gone = retry(PATIENCE, || match self.process.try_wait()? {
            Some(_) => Ok(()),
            None => Err(io::Error::from(io::ErrorKind::TimedOut)),
        });
        if gone.is_err() {
            eprintln!("testkit: the disk's server {} does not end", self.process.id());
        }
    }
}
