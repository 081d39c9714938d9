//! The journal of a file system: whether it commits changes in order, and whether one commit can be
//! that of all files.
//!
//! One commit makes the finished writes of all files durable if three things hold. The data is at
//! the device when a write returns, or when its file is written back. A change that joins the
//! journal later is committed later. Each commit flushes the device that holds the data. Power cuts
//! showed that for ext4 and XFS with the defaults of mount. Elsewhere each file has flushes of its
//! own.

use super::probe::{self, Facts, Part};
use rustix::fs::{IFlags, Mode, OFlags, Timespec, Timestamps, UTIME_NOW};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The reason why files of an ext4 with fast commits share no flushes.
pub(crate) const FAST_COMMITS: &str = "ext4 commits files one by one there (fast_commit)";

/// More than the statistics of fast commits have.
const STATISTICS_BYTES: usize = 4096;

/// A nameless file that takes part in the journal of its file system.
#[derive(Debug)]
pub(crate) struct JournalFile {
    file: OwnedFd,
    /// The statistics of fast commits, on an ext4 that may have them. Kept open: a process may have
    /// no descriptor left later.
    fast_commits: Option<File>,
    reports_flushes: bool,
}

impl JournalFile {
    /// Makes one in the directory of a file. Returns the reason in words if that is not possible.
    pub fn beside(fd: BorrowedFd<'_>, facts: &Facts, descriptor_min: u32) -> Result<Self, String> {
        let fast_commits = fast_commits_of(facts.fs, descriptor_min)?;
        let directory = directory_of(fd).map_err(|error| format!("its directory: {error}"))?;
        let file = make_nameless(&directory, descriptor_min)
            .map_err(|error| format!("no nameless file in {}: {error}", directory.display()))?;
        if rustix::fs::fstat(&file).map(|stat| stat.st_dev) != Ok(facts.fs) {
            return Err("its directory is on another file system".into());
        }
        let reports_flushes = reports_flushes(&file);
        Ok(Self { file, fast_commits, reports_flushes })
    }

    /// Changes the times of the file, which joins the running transaction.
    pub fn touch(&self) -> io::Result<()> {
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let times = Timestamps { last_access: now, last_modification: now };
        Ok(rustix::fs::futimens(&self.file, &times)?)
    }

    /// Whether fsync returns the error of a flush without a commit.
    pub fn reports_flushes(&self) -> bool {
        self.reports_flushes
    }

    /// Whether the file system has made fast commits. Those commit the changes of one file. Warns
    /// of them once.
    pub fn commits_fast(&self) -> io::Result<bool> {
        let is_fast = self.fast_commits.as_ref().map_or(Ok(false), shows_fast_commits)?;
        if is_fast {
            warn_of_fast_commits();
        }
        Ok(is_fast)
    }
}

impl AsFd for JournalFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// XFS drops that error before Linux 6.0.
fn reports_flushes(file: &OwnedFd) -> bool {
    let is_ext = matches!(probe::kind_of_file_system(file.as_fd()), Ok(probe::EXT));
    is_ext || is_from_6(&rustix::system::uname().release().to_string_lossy())
}

fn is_from_6(release: &str) -> bool {
    release.split('.').next().and_then(|major| major.parse::<u32>().ok()).is_some_and(|it| it >= 6)
}

/// Whether an ext4 with these statistics has made fast commits.
fn shows_fast_commits(statistics: &File) -> io::Result<bool> {
    let mut text = [0; STATISTICS_BYTES];
    let len = statistics.read_at(&mut text, 0)?;
    let count = fast_commits(&String::from_utf8_lossy(&text[..len]));
    count.map(|count| count > 0).ok_or(io::ErrorKind::InvalidData.into())
}

/// The order in which the journal of a file system commits changes: that in which they are made.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    ext4: Option<Ext4>,
}

/// An ext4, which may begin to make fast commits.
#[derive(Clone, Debug)]
struct Ext4 {
    dev: u64,
    /// The statistics of fast commits. None if each check opens them.
    statistics: Option<Arc<File>>,
}

impl Order {
    /// One that holds always.
    pub const ALWAYS: Self = Self { ext4: None };

    /// The same, with the statistics kept open, so that a check of a growth thread uses no number
    /// below `descriptor_min`. With 0 each check opens them.
    pub fn keep_open(self, descriptor_min: u32) -> Result<Self, String> {
        let Some(ext4) = self.ext4.as_ref().filter(|_| descriptor_min > 0) else {
            return Ok(self);
        };
        let dev = ext4.dev;
        let kept = fast_commits_of(dev, descriptor_min)?.map(Arc::new);
        Ok(Self { ext4: kept.map(|file| Ext4 { dev, statistics: Some(file) }) })
    }

    /// The descriptor that is kept open.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.ext4.as_ref()?.statistics.as_ref()?.as_fd())
    }

    /// Checks that no commit until now was a fast one. If not, warns once, and returns the reason
    /// in words.
    pub fn check(&self) -> Result<(), String> {
        let Some(Ext4 { dev, statistics }) = &self.ext4 else { return Ok(()) };
        let is_fast = match statistics {
            Some(kept) => shows_fast_commits(kept),
            None => match fast_commits_of(*dev, 0)? {
                Some(opened) => shows_fast_commits(&opened),
                None => return Ok(()),
            },
        };
        match is_fast {
            Ok(false) => Ok(()),
            Ok(true) => {
                warn_of_fast_commits();
                Err(FAST_COMMITS.into())
            }
            Err(error) => Err(format!("the statistics of fast commits: {error}")),
        }
    }
}

/// Logs once that fdatasync may lose data there. Not under a lock: the logger may open a file.
pub(crate) fn warn_of_fast_commits() {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Relaxed) {
        log::warn!(
            "dioxide: an ext4 has fast commits: there fdatasync may confirm what a power cut \
             loses, in every program; see docs/kernel-bugs.md (tune2fs -O ^fast_commit)"
        );
    }
}

/// The statistics of fast commits of an ext4. None on another file system, and before Linux 5.10,
/// which has no fast commits.
fn fast_commits_of(dev: u64, descriptor_min: u32) -> Result<Option<File>, String> {
    let device = probe::device_name(dev).ok_or("the name of its device is not visible")?;
    let path = format!("/proc/fs/ext4/{device}/fc_info");
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    match super::open(Path::new(&path), flags, Mode::empty(), descriptor_min) {
        Ok(file) => Ok(Some(file.into())),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(format!("the statistics of fast commits: {errno}")),
    }
}

/// The directory of a file, which may be nameless. /proc/self shows no descriptor once the first
/// thread has ended.
fn directory_of(fd: BorrowedFd<'_>) -> io::Result<PathBuf> {
    let path = std::fs::read_link(format!("/proc/thread-self/fd/{}", fd.as_raw_fd()))?;
    path.parent().map(Path::to_owned).ok_or_else(|| io::ErrorKind::NotFound.into())
}

fn make_nameless(directory: &Path, descriptor_min: u32) -> io::Result<OwnedFd> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = super::open(directory, flags, Mode::empty(), descriptor_min)?;
    // A process that changes its user later may still touch it. No other process can open it.
    rustix::fs::fchmod(&file, Mode::from_raw_mode(0o666))?;
    Ok(file)
}

/// Checks whether a commit for all files of a file system gains anything. If not, returns the
/// reason in words.
pub(crate) fn gains(facts: &Facts) -> Result<(), String> {
    if facts.writes_through || !probe::has_volatile_cache(facts.fs) {
        return Err("its device has no volatile cache, so a flush costs little".into());
    }
    Ok(())
}

/// Returns the order in which the journal of a file system commits changes, or the reason in words
/// why it is not known. It is not where ext4 makes fast commits: those contain some files only.
pub(crate) fn order(fd: BorrowedFd<'_>, facts: &Facts) -> Result<Order, String> {
    let err = |why: &str| Err(why.to_owned());
    if facts.is_device || facts.part != Part::Whole {
        return err("it is not a file of a file system of the kernel");
    }
    let Some(options) = probe::mount_options(facts) else {
        return err("the options of its mount are not visible");
    };
    const OTHERWISE: &[&str] = &[
        "nobarrier",
        "barrier=0",
        "journal_async_commit",
        "data=journal",
        "data=writeback",
        "lazytime",
    ];
    if probe::has_any(&options, OTHERWISE) {
        return err("it is mounted with options that change what a commit covers");
    }
    match probe::kind_of_file_system(fd) {
        Ok(probe::EXT) if !has_own_journal(facts.fs) => {
            err("its file system has no journal on the same device")
        }
        Ok(probe::EXT) => {
            says_ordered(&options_of_ext4(facts.fs)?)?;
            Ok(Order { ext4: Some(Ext4 { dev: facts.fs, statistics: None }) })
        }
        Ok(probe::XFS) if has_other_devices(&options) => {
            err("its file system has more than one device")
        }
        Ok(probe::XFS) => Ok(Order::ALWAYS),
        _ => err("it is not known here that one commit covers all files"),
    }
}

/// Checks whether that commit covers this file. If not, returns the reason in words.
pub(crate) fn is_covered(fd: BorrowedFd<'_>) -> Result<(), String> {
    match probe::kind_of_file_system(fd) {
        Ok(probe::EXT) => {
            let flags = rustix::fs::ioctl_getflags(fd).map_err(|error| error.to_string())?;
            if flags.contains(IFlags::JOURNALING) {
                return Err("its data goes through the journal (chattr +j)".into());
            }
            match flags.contains(probe::EXTENTS) {
                true => Ok(()),
                false => Err("its blocks are not mapped by extents (ext3)".into()),
            }
        }
        _ => match is_realtime(fd) {
            Ok(false) => Ok(()),
            Ok(true) => Err("it lies in the realtime section".into()),
            Err(error) => Err(error.to_string()),
        },
    }
}

/// The options of an ext4, with the defaults of its superblock (`tune2fs -o`), which a mount does
/// not show.
pub(super) fn options_of_ext4(dev: u64) -> Result<String, String> {
    let device = probe::device_name(dev).ok_or("the name of its device is not visible")?;
    std::fs::read_to_string(format!("/proc/fs/ext4/{device}/options"))
        .map_err(|error| format!("the options of its file system: {error}"))
}

/// Checks for barriers, ordered data and full commits. A kernel with CONFIG_EXT4_DEBUG shows the
/// feature fast_commit as `fc_debug_force`; elsewhere [`Order::check`] finds fast commits.
fn says_ordered(options: &str) -> Result<(), String> {
    let has = |wanted| options.lines().any(|option| option == wanted);
    match has("barrier") && has("data=ordered") && !has("journal_async_commit") {
        true if has("fc_debug_force") => Err(FAST_COMMITS.into()),
        true => Ok(()),
        false => Err("its superblock has options that change what a commit covers".into()),
    }
}

fn has_other_devices(options: &str) -> bool {
    let is_elsewhere = |option: &str| option.starts_with("logdev=") || option.starts_with("rtdev=");
    options.split(',').any(is_elsewhere)
}

/// Whether the journal of an ext4 lies in the file system. Its folder is named after the device and
/// the inode of the journal, that of an external journal after the other device.
fn has_own_journal(dev: u64) -> bool {
    let folders = std::fs::read_dir("/proc/fs/jbd2").into_iter().flatten().flatten();
    let names = folders.map(|entry| entry.file_name().to_string_lossy().into_owned());
    probe::device_name(dev).is_some_and(|device| {
        names.map(|name| name.strip_prefix(&*device).map(is_inode)).any(|it| it == Some(true))
    })
}

fn is_inode(suffix: &str) -> bool {
    suffix.strip_prefix('-').is_some_and(|inode| inode.parse::<u32>().is_ok())
}

/// The number of fast commits, by the second line of the statistics.
fn fast_commits(statistics: &str) -> Option<u64> {
    statistics.lines().nth(1)?.strip_suffix(" commits")?.parse().ok()
}

/// `struct fsxattr` of linux/fs.h.
#[derive(Default)]
#[repr(C)]
struct FileAttributes {
    flags: u32,
    others: [u32; 6],
}

fn is_realtime(fd: BorrowedFd<'_>) -> io::Result<bool> {
    // _IOR('X', 31, struct fsxattr)
    const FS_IOC_FSGETXATTR: libc::Ioctl = 0x801C_581F_u32 as libc::Ioctl;
    const REALTIME: u32 = 0x1;
    let mut found = FileAttributes::default();
    // SAFETY: the call writes one structure of this layout, which outlives it.
    match unsafe { libc::ioctl(fd.as_raw_fd(), FS_IOC_FSGETXATTR, &raw mut found) } {
        0 => Ok(found.flags & REALTIME != 0),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fast_commits_are_counted_by_the_statistics() {
        let statistics = "fc stats:\n12 commits\n0 ineligible\n";
        assert_eq!(fast_commits(statistics), Some(12));
        assert_eq!(fast_commits("fc stats:\n"), None);
        assert_eq!(fast_commits("something else"), None);
    }

    /// The defect: files shared no flush.
    #[cfg(not(loom))]
    #[test]
    fn a_directory_is_found_in_a_forked_child_without_its_first_thread() {
        assert!(dioxide_testkit::fork::holds_without_first_thread(|| {
            let file = tempfile::tempfile().expect("a file");
            directory_of(file.as_fd()).is_ok_and(|directory| directory.is_dir())
        }));
    }

    #[test]
    fn only_new_kernels_report_each_flush_of_xfs() {
        assert!(is_from_6("6.0.0") && is_from_6("6.18.44+") && is_from_6("10.1"));
        assert!(!is_from_6("5.19.17-generic") && !is_from_6("4.14") && !is_from_6(""));
    }

    #[test]
    fn an_ext4_says_whether_it_is_ordered() {
        let is_ordered = |options| says_ordered(options).is_ok();
        assert!(is_ordered("rw\nbarrier\ndata=ordered\n"));
        assert!(!is_ordered("rw\nnobarrier\ndata=ordered\n"), "tune2fs -o nobarrier");
        assert!(!is_ordered("rw\nbarrier\ndata=writeback\n"));
        assert!(!is_ordered("rw\nbarrier\njournal_async_commit\ndata=ordered\n"));
        let fast = says_ordered("rw\nbarrier\nfc_debug_force\ndata=ordered\n");
        assert_eq!(fast, Err(FAST_COMMITS.into()), "before the first fast commit");
    }

    #[test]
    fn the_journal_of_another_device_is_not_in_the_file_system() {
        assert!(is_inode("-8"));
        assert!(!is_inode(""), "an external journal");
        assert!(!is_inode("1-8"), "the journal of another device with a longer name");
    }
}
