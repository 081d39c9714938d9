//! The properties of a file, its file system and its device. Read once, at open.

use super::journal;
use crate::rules::marker::{Identity, Prepared};
use crate::rules::merge::{Limits, SEGMENTS_MAX};
use rustix::fs::{AtFlags, FileType, IFlags, Mode, OFlags, StatxFlags};
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The alignments of direct I/O on a file, in bytes. Operations with these cost least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Alignment {
    /// For memory addresses.
    pub memory: u64,
    /// For offsets and lengths of positional writes, and of reads directly into the caller's
    /// memory.
    pub offset: u64,
    /// The unit of appends: `offset`, or the file system's block if that is larger. An append that
    /// begins and ends at multiples of it is written without a copy.
    pub append: u64,
}

/// The properties of an open file or device.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub identity: Identity,
    /// Names the file together with the inode number. For a device, its own number.
    pub dev: u64,
    /// The file system that holds the file, or the device itself. On btrfs, where each subvolume
    /// has its own `dev`, the number of the whole file system.
    pub fs: u64,
    pub is_device: bool,
    pub alignment: Alignment,
    pub limits: Limits,
    /// Each write is durable when it returns. The description is O_DSYNC (see
    /// `Backend::flushes_each_write`), or the device has no volatile cache.
    pub writes_through: bool,
    pub len: u64,
    pub through: Through,
    /// The part that is opened.
    pub part: Part,
}

/// The part of a file or device that is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Part {
    /// The whole file or device.
    Whole,
    /// The striped volume of which it is the first member.
    Stripe,
    /// The file with this inode number, inside the ext2 or ext3 volume.
    Within(u32),
}

/// How a file was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Through {
    /// A device, used without a file system.
    Device,
    /// The mount with this unique id, which is never reused (Linux 6.8).
    Mount(u64),
    /// A mount on an older kernel, which reuses ids.
    Unnumbered,
}

/// For kernels that do not report it (before 6.1, or btrfs): right for every device in use.
const ALIGNMENT_FALLBACK: u64 = 4096;

/// For devices that do not report it.
const REQUEST_FALLBACK_BYTES: u64 = 1 << 20;

// linux/stat.h; rustix has no names for these yet.
const STATX_DIOALIGN: u32 = 0x2000;
const STATX_MNT_ID_UNIQUE: u32 = 0x4000;

/// Reads all facts. Fails with EINVAL unless it is a regular file or a block device.
pub(crate) fn facts(fd: BorrowedFd<'_>) -> io::Result<Facts> {
    let stat = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, wanted())?;
    let is_device = match FileType::from_raw_mode(stat.stx_mode.into()) {
        FileType::RegularFile => false,
        FileType::BlockDevice => true,
        _ => return Err(io::Error::from_raw_os_error(libc::EINVAL)),
    };
    let (major, minor) = match is_device {
        true => (stat.stx_rdev_major, stat.stx_rdev_minor),
        false => (stat.stx_dev_major, stat.stx_dev_minor),
    };
    let known = |mask: u32| stat.stx_mask & mask != 0;
    let aligned = known(STATX_DIOALIGN);
    if aligned && stat.stx_dio_offset_align == 0 {
        return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
    }
    let offset = if aligned { u64::from(stat.stx_dio_offset_align) } else { ALIGNMENT_FALLBACK };
    let memory = if aligned { u64::from(stat.stx_dio_mem_align) } else { ALIGNMENT_FALLBACK };
    // Blocks lie side by side in memory, each of which must be aligned there.
    let offset = offset.max(memory);
    let block = rustix::fs::fstatvfs(fd)?.f_bsize;
    Ok(Facts {
        identity: Identity {
            inode: stat.stx_ino,
            birth_time: (stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec),
        },
        dev: rustix::fs::makedev(major, minor),
        fs: if is_device { rustix::fs::makedev(major, minor) } else { file_system_of(&stat) },
        is_device,
        alignment: Alignment {
            memory,
            offset,
            append: if is_device { offset } else { offset.max(block) },
        },
        limits: Limits { bytes_max: request_max(major, minor), segments_max: SEGMENTS_MAX },
        writes_through: rustix::fs::fcntl_getfl(fd)?.contains(OFlags::DSYNC)
            || is_device
                && queue_attribute(major, minor, "write_cache")
                    .is_some_and(|kind| kind == "write through"),
        len: super::size(fd)?,
        through: if is_device { Through::Device } else { through(&stat) },
        part: Part::Whole,
    })
}

fn through(stat: &rustix::fs::Statx) -> Through {
    let numbered = stat.stx_mask & STATX_MNT_ID_UNIQUE != 0;
    if numbered { Through::Mount(stat.stx_mnt_id) } else { Through::Unnumbered }
}

fn wanted() -> StatxFlags {
    let more = StatxFlags::from_bits_retain(STATX_DIOALIGN | STATX_MNT_ID_UNIQUE);
    StatxFlags::BASIC_STATS | StatxFlags::BTIME | more
}

/// The device number of the whole file system. On btrfs each subvolume has another number, but the
/// mount has that of the whole. Without statmount (before 6.8) it is that of the file.
fn file_system_of(stat: &rustix::fs::Statx) -> u64 {
    let of_file = rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor);
    match through(stat) {
        Through::Mount(mount) => super::statmount(mount).unwrap_or(of_file),
        Through::Device | Through::Unnumbered => of_file,
    }
}

/// The file system of the directory `dir`, and how it was reached.
pub(crate) fn place(dir: &Path) -> io::Result<(u64, Through)> {
    let stat = rustix::fs::statx(rustix::fs::CWD, dir, AtFlags::empty(), wanted())?;
    Ok((file_system_of(&stat), through(&stat)))
}

/// The file system of an open file or directory, or the device itself. Fails with EINVAL for
/// anything else.
pub(crate) fn place_of(fd: BorrowedFd<'_>) -> io::Result<(u64, Through)> {
    let stat = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, wanted())?;
    match FileType::from_raw_mode(stat.stx_mode.into()) {
        FileType::BlockDevice => {
            Ok((rustix::fs::makedev(stat.stx_rdev_major, stat.stx_rdev_minor), Through::Device))
        }
        FileType::RegularFile | FileType::Directory => Ok((file_system_of(&stat), through(&stat))),
        _ => Err(io::Error::from_raw_os_error(libc::EINVAL)),
    }
}

/// The sysfs directory of a block device; for a partition, of the whole disk.
fn disk_folder(major: u32, minor: u32) -> Option<PathBuf> {
    let folder = std::fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    if folder.join("partition").exists() { folder.parent().map(Into::into) } else { Some(folder) }
}

/// Returns whether the device completes each request within the call, as a device in memory does.
/// `fd` is the device or a file on it.
pub(crate) fn is_in_memory(fd: BorrowedFd<'_>) -> bool {
    let Ok(stat) = rustix::fs::fstat(fd) else { return false };
    let is_device = FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice;
    let number = if is_device { stat.st_rdev } else { stat.st_dev };
    let folder = disk_folder(rustix::fs::major(number), rustix::fs::minor(number));
    let name = folder
        .as_deref()
        .and_then(Path::file_name)
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    ["zram", "ram", "pmem"].iter().any(|kind| name.starts_with(kind))
}

/// The largest request of the device, in bytes.
fn request_max(major: u32, minor: u32) -> u64 {
    queue_attribute(major, minor, "max_sectors_kb")
        .and_then(|kib| kib.parse::<u64>().ok())
        .map_or(REQUEST_FALLBACK_BYTES, |kib| kib << 10)
}

/// Reads a queue attribute of the disk of a block device.
fn queue_attribute(major: u32, minor: u32, name: &str) -> Option<String> {
    let path = disk_folder(major, minor)?.join("queue").join(name);
    Some(std::fs::read_to_string(path).ok()?.trim().to_owned())
}

// linux/magic.h
const BTRFS: u64 = 0x9123_683E;
pub(super) const EXT: u64 = 0xEF53;
/// FS_EXTENT_FL: extents map the blocks of the file.
pub(super) const EXTENTS: IFlags = IFlags::from_bits_retain(0x80000);
const TMPFS: u64 = 0x0102_1994;
pub(super) const XFS: u64 = 0x5846_5342;

pub(super) fn kind_of_file_system(fd: BorrowedFd<'_>) -> io::Result<u64> {
    Ok(rustix::fs::fstatfs(fd)?.f_type as u64)
}

/// Returns the known reason why the kernel caches data of this file despite O_DIRECT.
pub(crate) fn why_not_direct(fd: BorrowedFd<'_>, facts: &Facts) -> Option<&'static str> {
    match kind_of_file_system(fd).ok().filter(|_| !facts.is_device)? {
        BTRFS
            if !overwrites_in_place(fd)
                && !mount_options(facts).is_some_and(|found| has_any(&found, &["nodatasum"])) =>
        {
            Some(
                "btrfs writes files with checksums through its cache, one write at a time, unless \
                 the directory had `chattr +C` when the file was created",
            )
        }
        TMPFS => Some("tmpfs keeps files in memory; nothing survives a crash of the machine"),
        _ => None,
    }
}

/// Returns whether btrfs overwrites the file in place (`chattr +C`), without copy-on-write.
fn overwrites_in_place(fd: BorrowedFd<'_>) -> bool {
    rustix::fs::ioctl_getflags(fd).is_ok_and(|flags| flags.contains(IFlags::NOCOW))
}

/// Checks whether growth of this kind is safe on this file, and a crash recoverable. If not,
/// returns the reason in words.
///
/// Any kind needs syncs that reach the disk, since the marker must be on disk before the space is.
/// Recovery of unwritten space also needs a file system that restores which blocks were written. No
/// truncate of zeroed space depends on extents, so zeroed space needs neither unwritten extents nor
/// a journal.
pub(crate) fn can_grow_ahead(
    fd: BorrowedFd<'_>,
    facts: &Facts,
    prepared: Prepared,
) -> Result<(), String> {
    let kind = kind_of_file_system(fd).map_err(|error| error.to_string())?;
    let Some(mut options) = mount_options(facts) else {
        return Err("unknown whether the file system is mounted with barriers".into());
    };
    if kind == EXT
        && let Ok(all) = journal::options_of_ext4(facts.fs)
    {
        options = with_defaults(&options, &all);
    }
    if has_any(&options, &["nobarrier", "barrier=0"]) {
        return Err("mounted without barriers, a sync does not reach the disk".into());
    }
    match (kind, prepared) {
        (XFS, _) | (EXT, Prepared::Zeroed) | (BTRFS, Prepared::Unwritten) => Ok(()),
        (EXT, Prepared::Unwritten) => ext_keeps_unwritten(fd, facts, &options),
        (BTRFS, Prepared::Zeroed) if overwrites_in_place(fd) => Ok(()),
        (BTRFS, Prepared::Zeroed) => {
            Err("btrfs would not write into the zeros, but elsewhere".into())
        }
        (TMPFS, _) => Err("tmpfs performs one write of a file at a time, wherever it ends".into()),
        (other, _) => Err(format!("nothing is known of file systems of type {other:#x}")),
    }
}

fn ext_keeps_unwritten(fd: BorrowedFd<'_>, facts: &Facts, options: &str) -> Result<(), String> {
    let flags = rustix::fs::ioctl_getflags(fd).map_err(|error| error.to_string())?;
    if !flags.contains(EXTENTS) {
        return Err(
            "the file is mapped by indirect blocks, which cannot be allocated unwritten".into()
        );
    }
    if has_any(options, &["data=journal"]) {
        return Err(
            "mounted with data=journal, extents do not show after a crash which data was written"
                .into(),
        );
    }
    match has_journal(rustix::fs::major(facts.fs), rustix::fs::minor(facts.fs)) {
        Some(true) => Ok(()),
        Some(false) => {
            Err("without a journal, extents do not show after a crash which data was written"
                .into())
        }
        None => Err("unknown whether the file system has a journal".into()),
    }
}

/// Returns whether it is ext4 without a journal.
pub(crate) fn is_without_journal(facts: &Facts) -> bool {
    !facts.is_device
        && has_journal(rustix::fs::major(facts.fs), rustix::fs::minor(facts.fs)) == Some(false)
}

/// ext4 shows the process id of its journal thread, or `<none>`.
fn has_journal(major: u32, minor: u32) -> Option<bool> {
    let device = device_name(rustix::fs::makedev(major, minor))?;
    let path = PathBuf::from("/sys/fs/ext4").join(device).join("journal_task");
    let task = std::fs::read_to_string(path).ok()?;
    Some(task.trim().parse::<u64>().is_ok())
}

/// The name of a block device, as file systems show it.
pub(super) fn device_name(dev: u64) -> Option<String> {
    let (major, minor) = (rustix::fs::major(dev), rustix::fs::minor(dev));
    let device = std::fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    device.file_name()?.to_str().map(Into::into)
}

/// Whether the device may lose what it has written, until a flush. True if that is unknown.
pub(super) fn has_volatile_cache(dev: u64) -> bool {
    let kind = queue_attribute(rustix::fs::major(dev), rustix::fs::minor(dev), "write_cache");
    kind.is_none_or(|kind| kind != "write through")
}

/// The mount options of the whole file system. None if no mount of it is visible (in a chroot, or a
/// subvolume of btrfs before Linux 6.8).
pub(super) fn mount_options(facts: &Facts) -> Option<String> {
    let device = format!("{}:{}", rustix::fs::major(facts.fs), rustix::fs::minor(facts.fs));
    let mounts = mountinfo().ok()?;
    let line = mounts.lines().find(|line| line.split(' ').nth(2) == Some(&*device))?;
    line.rsplit(' ').next().map(Into::into)
}

/// Mount options, with the defaults of the superblock (`tune2fs -o`), which a mount does not show.
/// `all` are those that ext4 lists itself, one a line: `barrier`, or none.
fn with_defaults(options: &str, all: &str) -> String {
    let all = all.trim_end().replace('\n', ",");
    let nobarrier = if has_any(&all, &["barrier"]) { "" } else { ",nobarrier" };
    format!("{options},{all}{nobarrier}")
}

pub(super) fn has_any(options: &str, wanted: &[&str]) -> bool {
    options.split(',').any(|option| wanted.contains(&option))
}

/// Returns whether the mount with this unique id still exists. True where the kernel cannot report
/// it.
pub(crate) fn mount_exists(mount: u64) -> bool {
    match super::statmount(mount) {
        Ok(_) => true,
        Err(error) => error.raw_os_error() != Some(libc::ENOENT),
    }
}

/// Returns the unique ids of the mounts of the file system `dev` that this process can see. Empty
/// on older kernels. It accesses no path: one might lie on a server or disk that does not respond.
pub(crate) fn mounts_of(dev: u64) -> Vec<u64> {
    let is_of_dev = |mount: &u64| super::statmount(*mount).is_ok_and(|found| found == dev);
    super::list_mounts().unwrap_or_default().into_iter().filter(is_of_dev).collect()
}

/// Returns the loop device whose image the file or device is, if there is one. Fails if the process
/// lacks the descriptors or the memory for the check.
pub(crate) fn loop_device_on(fd: BorrowedFd<'_>) -> io::Result<Option<String>> {
    let this = rustix::fs::fstat(fd)?;
    let holder = file_system_of(&rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, wanted())?);
    let Some(mounts) = if_there(mountinfo())? else { return Ok(None) };
    let mounts = parse_mounts(&mounts);
    let Some(disks) = if_there(std::fs::read_dir("/sys/block"))? else { return Ok(None) };
    for entry in disks.flatten() {
        let image = if_there(std::fs::read(entry.path().join("loop/backing_file")))?;
        let Some(image) = image else { continue };
        let image = Path::new(OsStr::from_bytes(image.strip_suffix(b"\n").unwrap_or(&image)));
        let mount = mount_of(&mounts, &image.to_string_lossy());
        let is_beside = mount.and_then(Mount::number) == Some(holder);
        // Other images may lie on a server that does not respond.
        if !is_beside && !mount.is_some_and(Mount::is_local) {
            continue;
        }
        let name = entry.file_name();
        let is_ours = match rustix::fs::stat(image) {
            // The open device keeps the path in memory.
            Ok(stat) => same_file(&stat, &this),
            // The path is of the mount namespace in which the device was set up. If it leads to
            // another file here, or through an overlay, the image is not found.
            Err(_) => image_behind(&name)?.is_some_and(|image| image.is(&this)),
        };
        if is_ours {
            return Ok(Some(name.to_string_lossy().into_owned()));
        }
    }
    Ok(None)
}

/// The image behind a loop device.
#[derive(Debug)]
struct LoopImage {
    dev: u64,
    inode: u64,
    /// The number of the device, if it is one.
    rdev: u64,
}

impl LoopImage {
    fn is(&self, this: &rustix::fs::Stat) -> bool {
        match is_block_device(this) {
            // Older kernels report `dev` for a file.
            true => self.rdev == this.st_rdev && self.rdev != self.dev,
            false => (self.dev, self.inode) == (this.st_dev, this.st_ino),
        }
    }
}

/// Returns the image behind the loop device of this name, without its path. None if the process may
/// not open the device, or it has no image.
fn image_behind(name: &OsStr) -> io::Result<Option<LoopImage>> {
    const LOOP_GET_STATUS64: libc::Ioctl = 0x4C05;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = super::open(&Path::new("/dev").join(name), flags, Mode::empty(), 0);
    let Some(device) = if_there(opened.map_err(Into::into))? else { return Ok(None) };
    // `struct loop_info64` of linux/loop.h, which begins with these three numbers.
    let mut status = [0u64; 29];
    // SAFETY: the call writes one structure of this size, which outlives it.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_GET_STATUS64, &raw mut status) };
    let [dev, inode, rdev, ..] = status;
    Ok((result == 0).then_some(LoopImage { dev, inode, rdev }))
}

/// Returns the data, or `None` if it is unreadable. Fails without free descriptors or memory.
fn if_there<T>(read: io::Result<T>) -> io::Result<Option<T>> {
    match read {
        Err(error)
            if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM)) =>
        {
            Err(error)
        }
        other => Ok(other.ok()),
    }
}

fn same_file(one: &rustix::fs::Stat, other: &rustix::fs::Stat) -> bool {
    match (is_block_device(one), is_block_device(other)) {
        (true, true) => one.st_rdev == other.st_rdev,
        (false, false) => (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino),
        _ => false,
    }
}

fn is_block_device(stat: &rustix::fs::Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice
}

/// Reads the mounts. Names that are not UTF-8 are converted, as elsewhere, so that they are
/// comparable. /proc/self shows none once the first thread has ended. A security module may allow
/// only that path.
fn mountinfo() -> io::Result<String> {
    let bytes = std::fs::read("/proc/thread-self/mountinfo")
        .or_else(|_| std::fs::read("/proc/self/mountinfo"))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// A line of mountinfo.
#[derive(Debug)]
struct Mount<'a> {
    /// The numbers of the device, as text.
    device: &'a str,
    point: String,
    /// The type of the file system.
    kind: &'a str,
}

impl Mount<'_> {
    /// The number of the device.
    fn number(&self) -> Option<u64> {
        let (major, minor) = self.device.split_once(':')?;
        Some(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?))
    }

    /// Whether it is a file system of the kernel on a disk or in memory. Those keep the attributes
    /// of an open file in memory. Others may ask a server for them, also with the device number of
    /// a disk (`fuseblk`, `gfs2`).
    fn is_local(&self) -> bool {
        LOCAL.contains(&self.kind)
    }
}

/// The file systems of the kernel that need no server and no other machine.
const LOCAL: [&str; 22] = [
    "bcachefs", "btrfs", "erofs", "exfat", "ext2", "ext3", "ext4", "f2fs", "hfsplus", "iso9660",
    "jfs", "msdos", "nilfs2", "ntfs", "ntfs3", "reiserfs", "squashfs", "tmpfs", "udf", "vfat",
    "xfs", "zfs",
];

/// Parses the mounts of mountinfo.
fn parse_mounts(mounts: &str) -> Vec<Mount<'_>> {
    let mounts = mounts.lines().filter_map(|line| {
        let (mount, source) = line.split_once(" - ")?;
        let mut fields = mount.split(' ');
        let (device, point) = (fields.nth(2)?, unescaped(fields.nth(1)?));
        Some(Mount { device, point, kind: source.split(' ').next()? })
    });
    mounts.collect()
}

/// The mount that holds `path`, by the mount points alone.
fn mount_of<'a>(mounts: &'a [Mount<'a>], path: &str) -> Option<&'a Mount<'a>> {
    let holding = mounts.iter().filter(|mount| Path::new(path).starts_with(&mount.point));
    holding.max_by_key(|mount| mount.point.len())
}

/// Decodes a path of mountinfo, where the kernel writes separators of lines and fields in octal.
fn unescaped(field: &str) -> String {
    // The backslash last: it may stand before digits of the path itself.
    let plain = field.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n");
    plain.replace("\\134", "\\")
}

/// Opens the directory that holds `path`, for a sync.
pub(crate) fn parent_directory(path: &Path) -> io::Result<std::fs::File> {
    std::fs::File::open(parent(path))
}

/// The path of that directory.
pub(crate) fn parent(path: &Path) -> &Path {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn device_of_mount(mounts: &[Mount<'_>], path: &str) -> Option<u64> {
        mount_of(mounts, path)?.number()
    }

    #[test]
    fn an_image_on_a_stalled_file_system_is_not_looked_at() {
        let table = "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:50 / /mnt/fuse rw - fuse x rw\n\
                      3 1 8:1 /a /mnt/fused rw - ext4 /dev/sda1 rw\n\
                      4 1 8:17 / /host rw - fuseblk /dev/sdb1 rw\n";
        let mounts = &parse_mounts(table);
        assert_eq!(device_of_mount(mounts, "/mnt/fuse/disk"), Some(rustix::fs::makedev(0, 50)));
        assert_eq!(device_of_mount(mounts, "/mnt/fused/disk"), Some(rustix::fs::makedev(8, 1)));
        assert_eq!(device_of_mount(mounts, "/images/disk"), Some(rustix::fs::makedev(8, 1)));
        assert!(!mount_of(mounts, "/mnt/fuse/disk").unwrap().is_local());
        assert!(mount_of(mounts, "/mnt/fused/disk").unwrap().is_local());
        assert!(!mount_of(mounts, "/host/disk").unwrap().is_local());
    }

    /// The defect: on btrfs before Linux 6.8 the file had another device number than its mount.
    #[test]
    fn an_image_on_a_subvolume_of_btrfs_is_looked_at() {
        let table = "1 0 0:30 /@ / rw shared:1 - btrfs /dev/sda1 rw,subvol=/@\n";
        assert!(mount_of(&parse_mounts(table), "/images/disk").unwrap().is_local());
    }

    /// The defect: the path of an image is of another mount namespace if the loop device was set up
    /// there. The status of the device names the file itself.
    #[test]
    fn an_image_is_known_by_its_file() {
        let file = tempfile::tempfile().expect("a file");
        let this = rustix::fs::fstat(&file).expect("its status");
        let (dev, inode) = (this.st_dev, this.st_ino);
        assert!(LoopImage { dev, inode, rdev: 0 }.is(&this));
        assert!(LoopImage { dev, inode, rdev: dev }.is(&this), "an older kernel");
        assert!(!LoopImage { dev, inode: inode + 1, rdev: 0 }.is(&this));
        assert!(!LoopImage { dev: dev + 1, inode, rdev: 0 }.is(&this));
        let mut device = this;
        (device.st_mode, device.st_rdev) = (libc::S_IFBLK, 7);
        assert!(LoopImage { dev, inode: 3, rdev: 7 }.is(&device));
        assert!(!LoopImage { dev: 7, inode: 3, rdev: 7 }.is(&device), "a file on the device");
        assert!(!LoopImage { dev, inode, rdev: 0 }.is(&device));
    }
    #[test]
    fn mount_points_with_odd_names_are_recognised() {
        let table = "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n\
                      2 1 0:50 / /mnt/a\\040b rw - fuse x rw\n\
                      3 1 0:51 / /mnt/a\\011b\\012c rw - fuse x rw\n\
                      4 1 0:52 / /mnt/a\\134040b rw - fuse x rw\n";
        let mounts = &parse_mounts(table);
        assert_eq!(device_of_mount(mounts, "/mnt/a b/disk"), Some(rustix::fs::makedev(0, 50)));
        assert_eq!(device_of_mount(mounts, "/mnt/a\tb\nc/disk"), Some(rustix::fs::makedev(0, 51)));
        assert_eq!(device_of_mount(mounts, "/mnt/a\\040b/disk"), Some(rustix::fs::makedev(0, 52)));
    }

    /// The defect: `tune2fs -o nobarrier` and `-o journal_data` do not show in the mount, so files
    /// grew.
    #[test]
    fn the_superblock_may_disable_barriers_and_journal_data() {
        let shown = |all| with_defaults("rw,relatime", all);
        let refused = ["nobarrier", "data=journal"];
        assert!(!has_any(&shown("rw\nbarrier\ndata=ordered\n"), &refused));
        assert!(has_any(&shown("rw\nnobarrier\ndata=ordered\n"), &["nobarrier"]));
        assert!(has_any(&shown("rw\ndata=ordered\n"), &["nobarrier"]), "an older kernel");
        assert!(has_any(&shown("rw\nbarrier\ndata=journal\n"), &["data=journal"]));
        assert!(has_any(&with_defaults("rw,nobarrier", "rw\nbarrier\n"), &["nobarrier"]));
    }

    /// The defect: the check for a loop device was skipped, and nothing grew.
    #[cfg(not(loom))]
    #[test]
    fn mounts_are_read_in_a_forked_child_without_its_first_thread() {
        assert!(dioxide_testkit::fork::holds_without_first_thread(|| mountinfo().is_ok()));
    }

    #[test]
    fn the_mount_of_a_directory_is_among_those_of_its_file_system() {
        let (dev, through) = place(Path::new("/")).unwrap();
        if let Through::Mount(mount) = through {
            assert!(mount_exists(mount));
            assert!(mounts_of(dev).contains(&mount));
            assert!(!mounts_of(0).contains(&mount));
        }
    }

    proptest! {
        #[test]
        fn a_mount_point_of_any_name_is_recognised(
            name in "[^/\0]{1,12}",
            below in "[^/\0]{1,12}",
        ) {
            let escaped = |c: char| match c {
                ' ' | '\t' | '\n' | '\\' => format!("\\{:03o}", c as u32),
                _ => c.to_string(),
            };
            let point: String = name.chars().map(escaped).collect();
            let mounts = format!("1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:50 / /mnt/{point} rw - \
                fuse x rw\n");
            let path = format!("/mnt/{name}/{below}");
            prop_assume!(name != "." && name != ".." && below != "..");
            prop_assert_eq!(
                device_of_mount(&parse_mounts(&mounts), &path),
                Some(rustix::fs::makedev(0, 50))
            );
        }

        #[test]
        fn any_table_of_mounts_is_read_without_a_panic(
            mounts in "(?s).{0,200}",
            path in "(?s).{0,20}",
        ) {
            let _ = device_of_mount(&parse_mounts(&mounts), &path);
        }
    }
}
