//! A disk that fails on command: a one-file FUSE file system in a process of its own, with a
//! volatile cache, to be used through a loop device. The loop device passes every flush on.
//!
//! Its server is never the process under test: a process that waits for its own disk cannot even be
//! killed. All waits here are bounded; a disk that is stuck is aborted through the kernel.

mod abort;
mod disk;
mod file_system;
mod protocol;
pub mod server;
mod shared;

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Mutex;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::child;
use crate::loop_device::LoopDevice;
use crate::mount::Mount;
use crate::site::Site;
use crate::wait::{PATIENCE, retry};
use protocol::Command;

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

    /// The one file, which is the disk.
    pub fn image(&self) -> PathBuf {
        self.mount.dir().join(file_system::IMAGE)
    }

    /// Attaches a loop device to the disk, unless there is one.
    pub fn loop_device(&mut self) -> io::Result<&Path> {
        if self.loop_device.is_none() {
            self.loop_device = Some(LoopDevice::attach(&self.image(), &self.site.path("disk.loop"))?);
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

    /// Lets a stalled disk go on.
    pub fn go_on(&self) -> io::Result<Stats> {
        self.server.ask(&Command::GoOn)
    }

    /// Kills the server: the disk is gone, everything on it fails from now on.
    pub fn die(&self) -> io::Result<()> {
        Ok(kill_process(Pid::from_child(&self.server.process), Signal::KILL)?)
    }

    /// Makes the kernel give the disk up, which works whatever state the server is in; everything
    /// on it fails from now on.
    pub fn cut_off(&self) -> io::Result<()> {
        abort::abort(self.connection, &self.site)
    }

    /// Whoever waits for the disk gets an error, so that it can be taken down.
    pub(crate) fn give_up(&self) {
        let _ = self.die();
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
            .spawn()?;
        Ok(Server { process, control: Mutex::new(BufReader::new(ours)) })
    }

    fn wait_until_ready(&self) -> io::Result<()> {
        let line = read_line(&mut *self.lock())?;
        if line == server::READY { Ok(()) } else { Err(io::Error::other(line)) }
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
    control.read_line(&mut line)?;
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
