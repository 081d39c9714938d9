//! A disk that fails on command: a file of a FUSE file system in a process of its own, with a
//! volatile cache, to be used through a loop device. The loop device passes every flush on.
//!
//! It can record all that it is given, and then be replayed to any moment ([`FuseDisk::replay`]).
//!
//! Its server is never the process under test: a process that waits for its own disk cannot even be
//! killed. All waits here are bounded; a disk that is stuck is aborted through the kernel.

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

pub use log::Mark;
pub use protocol::{Keep, Stats};

/// What an unmount gets before the disk is aborted.
const STUCK: Duration = Duration::from_secs(5);

/// A running disk. Its content, 0xA5 everywhere at first, goes with it.
pub struct FuseDisk {
    // In the order in which they must be dropped.
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

    /// Attaches a loop device to the disk, unless there is one.
    pub fn loop_device(&mut self) -> io::Result<&Path> {
        if self.loop_device.is_none() {
            self.loop_device =
                Some(LoopDevice::attach(&self.image(), &self.site.path("disk.loop"), Io::Direct)?);
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

    /// Flushes succeed from now on and make nothing stable.
    pub fn lie(&self) -> io::Result<Stats> {
        self.server.ask(&Command::Lie)
    }

    /// Cuts the power: the cache is lost but for what `keep` keeps, and everything fails with EIO
    /// until [`FuseDisk::heal`].
    pub fn power_cut(&self, keep: Keep) -> io::Result<Stats> {
        self.server.ask(&Command::PowerCut(keep))
    }

    /// Ends all faults, and brings the power back. What was lost stays lost.
    pub fn heal(&self) -> io::Result<Stats> {
        self.server.ask(&Command::Heal)
    }

    /// What the disk has done since it started.
    pub fn stats(&self) -> io::Result<Stats> {
        self.server.ask(&Command::Stats)
    }

    /// The disk stalls: nothing is answered until [`FuseDisk::go_on`], but for a minute at most.
    pub fn stall(&self) -> io::Result<Stats> {
        self.server.ask(&Command::Stall)
    }

    /// Lets a stalled or stopped disk go on.
    pub fn go_on(&self) -> io::Result<Stats> {
        self.signal(Signal::CONT)?;
        self.server.ask(&Command::GoOn)
    }

    /// From now on each write, zeroing and flush waits up to `max` before it takes effect and again before it is answered,
    /// so that those under way together overtake each other. Ends with the first replay.
    pub fn delay(&self, max: Duration, seed: u64) -> io::Result<Stats> {
        self.server.ask(&Command::Delay { max_us: max.as_micros() as u64, seed })
    }

    /// The disk, which must be as it was started, logs everything from now on, to be replayed. A power cut or a failed
    /// flush ends the recording.
    pub fn record(&self) -> io::Result<Stats> {
        self.server.ask(&Command::Record)
    }

    /// Where the workload on a recording disk leaves its marks: [`Marks::open`].
    pub fn marks_path(&self) -> PathBuf {
        self.mount.dir().join(file_system::MARKS)
    }

    /// All marks of the recording, each with its place in the log: a power cut after more entries than that comes
    /// after the mark.
    pub fn marks(&self) -> io::Result<Vec<(u64, Mark)>> {
        let bytes = fs::read(self.marks_path())?;
        let words = |bytes: &[u8]| log::numbers::<5>(bytes);
        Ok(bytes.chunks_exact(40).map(words).map(|[place, mark @ ..]| (place, mark)).collect())
    }

    /// Ends the recording, and makes the disk what a power cut after `cut` entries of the log leaves: everything before
    /// the last flush, and of the rest what `keep` keeps. What is written to it is undone by the next replay.
    pub fn replay(&self, cut: u64, keep: Keep) -> io::Result<Stats> {
        self.server.ask(&Command::Replay { cut, keep })
    }

    /// After a replay, makes the disk what one more power cut leaves, after as many entries of what came since
    /// ([`Stats::logged_since`]).
    pub fn replay_again(&self, cut: u64, keep: Keep) -> io::Result<Stats> {
        self.server.ask(&Command::ReplayAgain { cut, keep })
    }

    /// Writes the recording to a file of this path, absolute and without spaces.
    pub fn save(&self, path: &Path) -> io::Result<Stats> {
        self.server.ask(&Command::Save(path.to_owned()))
    }

    /// Takes a saved recording for its own, ready to be replayed.
    pub fn load(&self, path: &Path) -> io::Result<Stats> {
        self.server.ask(&Command::Load(path.to_owned()))
    }

    /// Stops the server's process where it stands, as SIGSTOP does, until [`FuseDisk::go_on`]. On return it has: the signal
    /// is only on its way when it was sent, and on a busy machine the server answers a few more requests.
    pub fn stop(&self) -> io::Result<()> {
        self.signal(Signal::STOP)?;
        retry(PATIENCE, || match self.server.is_stopped()? {
            true => Ok(()),
            false => Err(io::ErrorKind::TimedOut.into()),
        })
    }

    /// Kills the server: the disk is gone, everything on it fails from now on. On return it is: a killed process with many
    /// threads and much memory needs a while to end, on a busy machine seconds, and until then whoever waits for it waits.
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

    /// Makes the kernel give the disk up, which works whatever state the server is in; everything
    /// on it fails from now on.
    pub fn cut_off(&self) -> io::Result<()> {
        abort::abort(self.connection, &self.site)
    }

    /// Whoever waits for the disk gets an error, so that it can be taken down.
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

/// Where a workload marks what it does, in one order with what its disk does; shared by its threads.
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
            // Ctrl-C is for the tests, which take their disks down in order.
            .process_group(0)
            .spawn()?;
        Ok(Server { process, control: Mutex::new(BufReader::new(ours)) })
    }

    fn wait_until_ready(&self) -> io::Result<()> {
        let line = read_line(&mut *self.lock())?;
        if line == server::READY { Ok(()) } else { Err(io::Error::other(line)) }
    }

    /// Whether all of its threads have ended, and with the last its connection to the kernel. It stays to be waited for.
    fn has_ended(&self) -> io::Result<bool> {
        let how = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        Ok(waitid(WaitId::Pid(Pid::from_child(&self.process)), how)?.is_some())
    }

    /// Whether none of its threads runs.
    fn is_stopped(&self) -> io::Result<bool> {
        let threads = fs::read_dir(format!("/proc/{}/task", self.process.id()))?;
        let states = threads.map(|thread| {
            let stat = fs::read_to_string(thread?.path().join("stat"))?;
            Ok::<_, io::Error>(stat.rsplit(") ").next().is_some_and(|state| state.starts_with('T')))
        });
        states.collect::<Result<Vec<_>, _>>().map(|stopped| stopped.into_iter().all(|stopped| stopped))
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
