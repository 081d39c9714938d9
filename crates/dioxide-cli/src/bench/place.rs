//! The target of a bench: a directory or a device, or several of these as the members of a striped
//! volume. It provides the file for each run, a nameless file or the device.

use super::members::Members;
use super::stamp::fill_as_old;
use crate::device;
use crate::exit::say;
use crate::interrupt;
use crate::meter::disk::Disk;
use crate::meter::filesystem::FileSystem;
use crate::sys::count_extents;
use crate::units;
use anyhow::{Context, Result, bail, ensure};
use dioxide::{Buffer, Growth, OpenOptions};
use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, fstatvfs, open, syncfs, unlink};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Data is stable when a write returns, but timestamps need not be. The flag that rustix calls
/// `DSYNC` is O_SYNC.
pub const O_DSYNC: OFlags = OFlags::from_bits_retain(libc::O_DSYNC as _);

/// A directory or a block device, with its properties.
pub struct BenchTarget {
    path: PathBuf,
    kind: PlaceKind,
    /// None for a device.
    pub fs: Option<FileSystem>,
    /// The device below. None if there are several, or none is visible.
    pub disk: Option<Disk>,
}

enum PlaceKind {
    /// Kept open, so that it stays the same one.
    Directory(File),
    /// The one that was checked. Not kept open, because its last close flushes it.
    Device(device::Identity),
    Nothing,
    Stripe(Stripe),
}

/// Directories, with a member in each, or devices.
struct Stripe {
    members: Vec<BenchTarget>,
    chunk_bytes: u64,
}

impl BenchTarget {
    pub fn directory(path: &Path) -> Result<Self> {
        let name = || format!("{}", path.display());
        let directory = File::open(path).with_context(name)?;
        let metadata = directory.metadata().with_context(name)?;
        if !metadata.is_dir() {
            bail!("{} is not a directory", path.display());
        }
        let disk = Disk::find(metadata.dev());
        let place =
            Self { path: path.to_owned(), kind: PlaceKind::Directory(directory), fs: None, disk };
        let fs = FileSystem::of(&place.scratch()?);
        Ok(Self { fs, ..place })
    }

    /// An unused device without a recognisable content.
    pub fn device(path: &Path) -> Result<Self> {
        let identity = device::check_free(path)?;
        let disk = Disk::find(identity.number);
        Ok(Self { path: path.to_owned(), kind: PlaceKind::Device(identity), fs: None, disk })
    }

    /// A member in each directory, which may repeat; or unused devices.
    pub fn stripe(paths: &[PathBuf], chunk_bytes: u64) -> Result<Self> {
        let members = paths
            .iter()
            .map(|path| if path.is_dir() { Self::directory(path) } else { Self::device(path) });
        let members = members.collect::<Result<Vec<_>>>()?;
        let devices = members.iter().filter(|member| member.is_device()).count();
        ensure!(
            devices == 0 || devices == members.len(),
            "the members are directories, or devices, not both"
        );
        let names: Vec<_> = members.iter().map(Self::name).collect();
        let path = format!("{} in chunks of {}", names.join(","), units::size(chunk_bytes)).into();
        let disk = Disk::together(members.iter().filter_map(|member| member.disk.clone()));
        Ok(Self { path, kind: PlaceKind::Stripe(Stripe { members, chunk_bytes }), fs: None, disk })
    }

    /// Whether it writes to devices.
    pub fn is_device(&self) -> bool {
        match &self.kind {
            PlaceKind::Device(_) => true,
            PlaceKind::Stripe(stripe) => stripe.members.iter().any(Self::is_device),
            PlaceKind::Directory(_) | PlaceKind::Nothing => false,
        }
    }

    /// Whether it writes to one device.
    pub fn is_one_device(&self) -> bool {
        matches!(self.kind, PlaceKind::Device(_))
    }

    /// Simulated files, which take no time and store nothing.
    pub fn nothing() -> Self {
        Self {
            path: "a file that keeps nothing".into(),
            kind: PlaceKind::Nothing,
            fs: None,
            disk: None,
        }
    }

    pub fn keeps_nothing(&self) -> bool {
        matches!(self.kind, PlaceKind::Nothing)
    }

    pub fn name(&self) -> String {
        self.path.display().to_string()
    }

    /// Available bytes: free space, or the size of the device.
    pub fn room_bytes(&self) -> Result<u64> {
        match &self.kind {
            PlaceKind::Device(_) => device::size_bytes(&self.path),
            PlaceKind::Stripe(stripe) => stripe.room_bytes(),
            PlaceKind::Nothing => Ok(NOTHING_MAX_BYTES),
            PlaceKind::Directory(directory) => {
                let space = fstatvfs(directory).with_context(|| self.name())?;
                Ok(space.f_bavail * space.f_frsize)
            }
        }
    }

    /// Makes the file for one run. Writes back dirty data of earlier runs first, so that it does
    /// not disturb this one.
    pub fn prepare(&self) -> Result<RunFile> {
        match &self.kind {
            PlaceKind::Device(checked) => {
                let device = File::open(&self.path).with_context(|| self.name())?;
                ensure!(
                    device::Identity::of(&device)? == *checked,
                    "{} is another device than the one that was checked; nothing was written to it",
                    self.name()
                );
                let path = path_of(&device);
                Ok(RunFile { path, flags: OFlags::EXCL, below: Below::Device { _open: device } })
            }
            PlaceKind::Nothing => Ok(RunFile {
                path: self.path.clone(),
                flags: OFlags::empty(),
                below: Below::Nothing,
            }),
            PlaceKind::Directory(directory) => {
                let scratch = self.scratch()?;
                syncfs(directory).with_context(|| self.name())?;
                Ok(RunFile::of_scratch(scratch))
            }
            PlaceKind::Stripe(stripe) => stripe.prepare(&self.path),
        }
    }

    /// Makes files for one run in a directory, as [`prepare`](Self::prepare).
    pub fn prepare_many(&self, count: usize) -> Result<Vec<RunFile>> {
        let first = self.prepare()?;
        let more = (1..count).map(|_| {
            interrupt::check()?;
            Ok(RunFile::of_scratch(self.scratch()?))
        });
        std::iter::once(Ok(first)).chain(more).collect()
    }

    /// A directory for one run of a path whose files have names.
    pub fn make_dir(&self) -> Result<ScratchDir> {
        loop {
            let name = next_name();
            let (path, shown) = (self.opened().join(&name), self.path.join(&name));
            match std::fs::create_dir(&path) {
                // A killed bench of this process id left it.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => {
                    return Err(error).with_context(|| format!("make {}", shown.display()));
                }
                Ok(()) => return Ok(ScratchDir { path, shown }),
            }
        }
    }

    /// A path of the open directory. Its name may be that of another one meanwhile.
    fn opened(&self) -> PathBuf {
        match &self.kind {
            PlaceKind::Directory(directory) => path_of(directory),
            _ => self.path.clone(),
        }
    }

    /// A nameless file: it vanishes with the process, however that ends.
    ///
    /// On ext4 such a file is on the orphan list from the start. A plain append adds and removes a
    /// file there for each write. That makes no measurable difference. The median ratio to a named
    /// file was 0.98 to 1.02 over 40 interleaved rounds, with 1 and 64 threads, with and without
    /// O_DSYNC. Single rounds varied by 10 % and more.
    pub fn scratch(&self) -> Result<File> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = match open(self.opened(), flags | OFlags::TMPFILE, mode) {
            Err(Errno::OPNOTSUPP | Errno::ISDIR) => self.unlinked(flags, mode),
            outcome => outcome,
        };
        match file {
            Ok(file) => Ok(file.into()),
            // The directory exists, so the file system cannot store files (/proc).
            Err(Errno::NOENT) => bail!("{}: this file system stores no files", self.name()),
            Err(errno) => {
                Err(errno).with_context(|| format!("create a scratch file in {}", self.name()))
            }
        }
    }

    /// For file systems without O_TMPFILE: a name that exists for an instant only.
    fn unlinked(&self, flags: OFlags, mode: Mode) -> rustix::io::Result<rustix::fd::OwnedFd> {
        let (file, name) = Name::make(self, flags, mode)?;
        drop(name);
        Ok(file)
    }

    /// A file for a member of a new volume, and its temporary name.
    fn prepare_member(&self) -> Result<(RunFile, Name)> {
        match &self.kind {
            PlaceKind::Directory(_) => {
                let flags = OFlags::RDWR | OFlags::CLOEXEC;
                let (file, name) = Name::make(self, flags, Mode::RUSR | Mode::WUSR)
                    .with_context(|| format!("create a scratch file in {}", self.name()))?;
                Ok((RunFile::of_scratch(file.into()), name))
            }
            _ => {
                let ground = self.prepare()?;
                let path = ground.path.clone();
                Ok((ground, Name { shown: path.clone(), path, is_ours: false }))
            }
        }
    }
}

/// The temporary name of a scratch file; or a path of a device, which persists.
struct Name {
    path: PathBuf,
    /// For messages.
    shown: PathBuf,
    is_ours: bool,
}

impl Name {
    fn make(
        place: &BenchTarget,
        flags: OFlags,
        mode: Mode,
    ) -> rustix::io::Result<(rustix::fd::OwnedFd, Self)> {
        loop {
            let name = next_name();
            let (path, shown) = (place.opened().join(&name), place.path.join(&name));
            match open(&path, flags | OFlags::CREATE | OFlags::EXCL, mode) {
                // A killed bench of this process id left it.
                Err(Errno::EXIST) => {}
                outcome => return Ok((outcome?, Self { path, shown, is_ours: true })),
            }
        }
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        if self.is_ours
            && let Err(errno) = unlink(&self.path)
        {
            say(&format!("{} is left: {errno}", self.shown.display()));
        }
    }
}

impl Stripe {
    /// Makes a volume. The names of its files are removed on return.
    fn prepare(&self, name: &Path) -> Result<RunFile> {
        let members =
            self.members.iter().map(BenchTarget::prepare_member).collect::<Result<Vec<_>>>()?;
        let (members, names): (Vec<_>, Vec<_>) = members.into_iter().unzip();
        let below = Below::Stripe { members, chunk_bytes: self.chunk_bytes };
        let ground = RunFile { path: name.into(), flags: OFlags::empty(), below };
        ground.clear_headers()?;
        let mut options = OpenOptions::new();
        options.write(true).create(true).growth(Growth::None);
        let paths: Vec<&Path> = names.iter().map(|name| &*name.path).collect();
        options.open_striped(&paths, self.chunk_bytes)?.close()?;
        Ok(ground)
    }

    /// Members of equal length, without their headers. Directories may share free space.
    fn room_bytes(&self) -> Result<u64> {
        let rooms = self.members.iter().map(BenchTarget::room_bytes).collect::<Result<Vec<_>>>()?;
        let count = self.members.len() as u64;
        let shared = if self.members.iter().any(BenchTarget::is_device) { 1 } else { count };
        let chunks = rooms.into_iter().min().unwrap_or(0) / shared / self.chunk_bytes;
        Ok(chunks.saturating_sub(1) * self.chunk_bytes * count)
    }
}

/// One write beforehand.
const FILL_BYTES: usize = 1 << 20;
/// The header of a member of a striped volume.
const HEADER_BYTES: usize = 4096;
/// More than any run writes to a simulated file.
const NOTHING_MAX_BYTES: u64 = 1 << 60;

/// A directory that is removed with its files.
pub struct ScratchDir {
    path: PathBuf,
    /// For messages.
    shown: PathBuf,
}

impl ScratchDir {
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.path) {
            say(&format!("{} is left: {error}", self.shown.display()));
        }
    }
}

/// Prefix of the names of a bench. The process ID and a number follow.
const NAME: &str = ".dioxide-bench-";

fn next_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{NAME}{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed))
}

/// The file of one run. Each call that opens it makes a new description.
pub struct RunFile {
    path: PathBuf,
    /// Required by every writer.
    flags: OFlags,
    below: Below,
}

enum Below {
    /// Keeps the file alive.
    Scratch(File),
    /// Keeps the device the same one.
    Device {
        _open: File,
    },
    Nothing,
    Stripe {
        members: Vec<RunFile>,
        chunk_bytes: u64,
    },
}

/// XFS frees a file in the background after its last close. With many extents that is slow and
/// would disturb the next run. Truncation frees the space before it returns.
///
/// The headers of devices are erased, so that they do not look like a volume.
impl Drop for RunFile {
    fn drop(&mut self) {
        match &self.below {
            Below::Scratch(scratch) => drop(scratch.set_len(0)),
            Below::Device { .. } | Below::Nothing => {}
            Below::Stripe { .. } => {
                if let Err(error) = self.clear_headers() {
                    say(&format!("the header of a striped volume is left: {error:#}"));
                }
            }
        }
    }
}

impl RunFile {
    fn of_scratch(scratch: File) -> Self {
        Self { path: path_of(&scratch), flags: OFlags::empty(), below: Below::Scratch(scratch) }
    }

    /// Opens it with dioxide.
    pub fn open_with(&self, options: &OpenOptions) -> dioxide::Result<dioxide::File> {
        match &self.below {
            Below::Nothing => dioxide::sim::null(options),
            Below::Stripe { members, chunk_bytes } => {
                let paths: Vec<&Path> = members.iter().map(|member| &*member.path).collect();
                options.open_striped(&paths, *chunk_bytes)
            }
            Below::Scratch(_) | Below::Device { .. } => options.open(&self.path),
        }
    }

    /// Opens it for direct reads and writes, with all its members.
    pub fn open_members(&self, flags: OFlags) -> Result<Members> {
        match &self.below {
            Below::Stripe { members, chunk_bytes } => {
                let files =
                    members.iter().map(|member| member.open(flags)).collect::<Result<_>>()?;
                Ok(Members::striped(files, *chunk_bytes))
            }
            _ => Ok(Members::one(self.open(flags)?)),
        }
    }

    /// Writes zeros over the headers of devices. Files vanish anyway.
    fn clear_headers(&self) -> Result<()> {
        let Below::Stripe { members, .. } = &self.below else { return Ok(()) };
        for member in members.iter().filter(|member| matches!(member.below, Below::Device { .. })) {
            let device = member.open(O_DSYNC)?;
            device
                .write_all_at(&Buffer::zeroed(HEADER_BYTES), 0)
                .with_context(|| member.path.display().to_string())?;
        }
        Ok(())
    }

    fn scratch(&self) -> Option<&File> {
        match &self.below {
            Below::Scratch(file) => Some(file),
            _ => None,
        }
    }

    /// Opens it for direct reads and writes.
    pub fn open(&self, flags: OFlags) -> Result<File> {
        self.open_direct(OFlags::RDWR | self.flags | flags)
    }

    /// Opens it for writes through the page cache.
    pub fn open_cached(&self) -> Result<File> {
        self.open_as(OFlags::RDWR | self.flags)
    }

    /// Opens it for reading back.
    pub fn open_to_verify(&self) -> Result<Members> {
        match &self.below {
            Below::Stripe { members, chunk_bytes } => {
                let files = members.iter().map(|member| member.open_direct(OFlags::RDONLY));
                Ok(Members::striped(files.collect::<Result<_>>()?, *chunk_bytes))
            }
            _ => Ok(Members::one(self.open_direct(OFlags::RDONLY)?)),
        }
    }

    fn open_direct(&self, flags: OFlags) -> Result<File> {
        self.open_as(flags | OFlags::DIRECT)
    }

    fn open_as(&self, flags: OFlags) -> Result<File> {
        match open(&self.path, flags | OFlags::CLOEXEC, Mode::empty()) {
            Ok(file) => Ok(file.into()),
            Err(Errno::INVAL) => bail!("O_DIRECT is not supported here"),
            Err(errno) => Err(errno).with_context(|| format!("open {}", self.path.display())),
        }
    }

    /// Allocates space without writing it, as a program does that knows the final size of its file.
    pub fn preallocate(&self, bytes: u64) -> rustix::io::Result<()> {
        match self.scratch() {
            Some(file) => {
                fallocate(file, FallocateFlags::empty(), 0, bytes)?;
                rustix::fs::fsync(file)
            }
            None => Err(Errno::OPNOTSUPP),
        }
    }

    /// Extends it by a hole, as a program does that sets a size without allocating.
    pub fn lengthen(&self, bytes: u64) -> rustix::io::Result<()> {
        match self.scratch() {
            Some(file) => rustix::fs::ftruncate(file, bytes),
            None => Err(Errno::OPNOTSUPP),
        }
    }

    /// As [`fill`](Self::fill), through the page cache. The pages stay in memory.
    pub fn fill_cached(&self, bytes: u64) -> Result<()> {
        let file = self.open_cached()?;
        write_in_parts(&file, &old_bytes(bytes), bytes)?;
        Ok(file.sync_all()?)
    }

    /// Writes `bytes` bytes in whole blocks. They are stable on return.
    pub fn fill(&self, bytes: u64) -> Result<()> {
        if matches!(self.below, Below::Nothing) {
            return Ok(());
        }
        let old = old_bytes(bytes);
        let parts = (0..bytes)
            .step_by(FILL_BYTES)
            .map(|offset| (offset, (bytes - offset).min(FILL_BYTES as u64)));
        if matches!(self.below, Below::Stripe { .. }) {
            // Only the library knows the length of a volume.
            let file = self.open_with(OpenOptions::new().write(true).growth(Growth::None))?;
            for (offset, count) in parts {
                interrupt::check()?;
                file.write_at(&old[..count as usize], offset)?;
            }
            return Ok(file.close()?);
        }
        let file = self.open(OFlags::empty())?;
        write_in_parts(&file, &old, bytes)?;
        Ok(file.sync_all()?)
    }

    pub fn size_bytes(&self) -> Result<u64> {
        let size = |file: &File| Ok(file.metadata().context("fstat")?.len());
        self.scratch().map_or(Ok(0), size)
    }

    /// None on a device, and on file systems that do not report it.
    pub fn extents(&self) -> Option<u64> {
        self.scratch().and_then(|file| count_extents(file).ok())
    }
}

/// A path of an open file or device.
fn path_of(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

/// The content before a run, of a file of this many bytes: its first part, which repeats.
pub fn old_bytes(bytes: u64) -> Buffer {
    let mut old = Buffer::zeroed(bytes.min(FILL_BYTES as u64) as usize);
    fill_as_old(&mut old);
    old
}

/// Writes `bytes` bytes, which repeat `part`.
pub fn write_in_parts(file: &File, part: &[u8], bytes: u64) -> Result<()> {
    for offset in (0..bytes).step_by(FILL_BYTES) {
        interrupt::check()?;
        let count = (bytes - offset).min(FILL_BYTES as u64) as usize;
        file.write_all_at(&part[..count], offset)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn o_dsync_is_not_o_sync() {
        let directory = tempfile::tempdir().unwrap();
        let ground = BenchTarget::directory(directory.path()).unwrap().prepare().unwrap();
        let file = ground.open_as(OFlags::RDWR | O_DSYNC).unwrap();
        let flags = rustix::fs::fcntl_getfl(&file).unwrap().bits();
        assert_eq!(flags & libc::O_SYNC as u32, libc::O_DSYNC as u32);
    }

    #[test]
    fn scratch_files_have_no_name() {
        let directory = tempfile::tempdir().unwrap();
        let place = BenchTarget::directory(directory.path()).unwrap();
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let _scratch = place.prepare().unwrap();
        let _unlinked = place.unlinked(flags, Mode::RUSR | Mode::WUSR).unwrap();
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    /// A path of a device, such as a link, was that of another one in a later round.
    #[test]
    fn another_device_was_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("device");
        let link_to = |device| std::os::unix::fs::symlink(device, &path).unwrap();
        link_to("/dev/null");
        let checked = device::Identity::of(&File::open(&path).unwrap()).unwrap();
        let kind = PlaceKind::Device(checked);
        let place = BenchTarget { path: path.clone(), kind, fs: None, disk: None };
        let ground = place.prepare().unwrap();
        std::fs::remove_file(&path).unwrap();
        link_to("/dev/zero");
        let refusal = place.prepare().err().unwrap().to_string();
        assert!(refusal.contains("is another device than the one that was checked"), "{refusal}");
        let file = ground.open_as(OFlags::RDWR).unwrap();
        assert_eq!(device::Identity::of(&file).unwrap(), checked, "the run keeps its device");
    }

    /// The number of the last name.
    fn number_of(path: &Path) -> u32 {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.rsplit_once('-').unwrap().1.parse().unwrap()
    }

    /// The name after this number, and those that tests beside this one may take.
    fn later_names(number: u32) -> impl Iterator<Item = String> {
        (number + 1..number + 10).map(|left| format!("{NAME}{}-{left}", std::process::id()))
    }

    /// No later bench with its process id had a directory, as in a container.
    #[test]
    fn a_directory_of_a_killed_bench_was_in_the_way() {
        let directory = tempfile::tempdir().unwrap();
        let place = BenchTarget::directory(directory.path()).unwrap();
        let made = place.make_dir().unwrap();
        for name in later_names(number_of(made.path())) {
            std::fs::create_dir(directory.path().join(name)).unwrap();
        }
        place.make_dir().unwrap();
    }

    #[test]
    fn a_name_of_a_killed_bench_was_in_the_way() {
        let directory = tempfile::tempdir().unwrap();
        let place = BenchTarget::directory(directory.path()).unwrap();
        let make = || Name::make(&place, OFlags::RDWR, Mode::RUSR | Mode::WUSR);
        let (_, first) = make().unwrap();
        for name in later_names(number_of(&first.path)) {
            std::fs::write(directory.path().join(name), []).unwrap();
        }
        make().unwrap();
    }

    /// The defect: files of a later round were in another directory, which had got the name.
    #[test]
    fn another_directory_got_the_files() {
        let parent = tempfile::tempdir().unwrap();
        let parent = parent.path().canonicalize().unwrap();
        let [named, moved] = ["named", "moved"].map(|name| parent.join(name));
        std::fs::create_dir(&named).unwrap();
        let place = BenchTarget::directory(&named).unwrap();
        std::fs::rename(&named, &moved).unwrap();
        std::fs::create_dir(&named).unwrap();
        let scratch = std::fs::read_link(path_of(&place.scratch().unwrap())).unwrap();
        assert_eq!(scratch.parent(), Some(&*moved));
        let entries = || [&named, &moved].map(|path| std::fs::read_dir(path).unwrap().count());
        let made = place.make_dir().unwrap();
        let (_, name) = Name::make(&place, OFlags::RDWR, Mode::RUSR | Mode::WUSR).unwrap();
        assert_eq!(entries(), [0, 2]);
        drop((made, name));
        assert_eq!(entries(), [0, 0]);
    }

    #[test]
    fn only_directories() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let refusal = BenchTarget::directory(file.path()).err().unwrap().to_string();
        assert!(refusal.ends_with("is not a directory"), "{refusal}");
        assert!(BenchTarget::directory(&file.path().with_extension("missing")).is_err());
    }

    #[test]
    fn no_files_can_be_stored() {
        let refusal = BenchTarget::directory(Path::new("/proc")).err().unwrap().to_string();
        assert_eq!(refusal, "/proc: this file system stores no files");
    }

    #[test]
    fn a_place_tells_its_room_and_file_system() {
        let place = BenchTarget::directory(&std::env::temp_dir()).unwrap();
        assert!(place.fs.is_some());
        assert!(place.room_bytes().unwrap() > 0);
    }
}
