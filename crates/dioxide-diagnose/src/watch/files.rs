//! The files behind the descriptors of watched processes.

use super::process::Process;
use crate::evidence::SeenFile;
use crate::host::mount::{Mount, mounts_of};
use crate::host::{cached, ext4, overlay};
use rustix::fs::{
    AtFlags, FileType, OFlags, Statx, StatxFlags, major, makedev, minor, readlinkat, statx,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::os::fd::AsFd;

/// Further files are ignored, so that evidence stays small.
pub const FILES_MAX: usize = 4096;

/// Files and devices, and the descriptors that refer to them.
#[derive(Debug, Default)]
pub struct Files {
    seen: Vec<OpenedFile>,
    by_identity: HashMap<Identity, usize>,
    descriptors: HashMap<(u32, i32), Descriptor>,
    /// Descriptors resolved since the last call of [`Self::next_look`].
    this_look: HashMap<(u32, i32), Option<Open>>,
    looks: u64,
    /// By mount ID. None for unknown IDs.
    mounts: HashMap<u64, Option<Mount>>,
}

/// The kernel's bit, which O_SYNC includes. rustix means O_SYNC by both names.
const O_DSYNC: u32 = 0o10000;

#[derive(Debug)]
struct OpenedFile {
    file: SeenFile,
    identity: Identity,
    /// Of its file system, as tracepoints have it. Files of btrfs have other numbers.
    fs_device: u64,
    /// Of its device, or of the device that it is.
    disk: u64,
    block_bytes: u64,
    /// The pass in which its size was last read, and the sizes in that pass and in the one before.
    looked_at: u64,
    size_bytes: u64,
    size_before: u64,
}

/// The identity of a file: device and inode, or the number of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Identity {
    File { device: u64, inode: u64 },
    Device(u64),
}

impl Identity {
    fn of(status: &Statx) -> Option<Self> {
        match FileType::from_raw_mode(status.stx_mode.into()) {
            FileType::RegularFile => {
                Some(Self::File { device: fs_device(status), inode: status.stx_ino })
            }
            FileType::BlockDevice => {
                Some(Self::Device(makedev(status.stx_rdev_major, status.stx_rdev_minor)))
            }
            _ => None,
        }
    }
}

#[derive(Debug)]
struct Descriptor {
    identity: Option<Identity>,
    file: Option<usize>,
    appends: bool,
}

/// A file behind a descriptor, now.
#[derive(Clone, Copy, Debug)]
pub struct Open {
    pub file: usize,
    /// Its size in an earlier pass. Its current size if this is the first one.
    pub size_before: u64,
    /// O_APPEND.
    pub appends: bool,
}

impl Files {
    /// Begins a pass: descriptors and sizes are read again, once.
    pub fn next_look(&mut self) {
        self.this_look.clear();
        self.looks += 1;
    }

    /// The file behind a descriptor. None if it is not a file, does not exist or is not readable.
    pub fn open(&mut self, process: &Process, descriptor: i32) -> Option<Open> {
        let key = (process.pid, descriptor);
        if let Some(known) = self.this_look.get(&key) {
            return *known;
        }
        let open = self.look_up(process, descriptor);
        self.this_look.insert(key, open);
        open
    }

    /// The file behind a descriptor when it was last read: `Some(None)` is a pipe or the like.
    pub fn last_known(&self, pid: u32, descriptor: i32) -> Option<Option<usize>> {
        self.descriptors.get(&(pid, descriptor)).map(|known| known.file)
    }

    /// The descriptor's position.
    pub fn position(process: &Process, descriptor: i32) -> Option<u64> {
        field(&info_of(process, descriptor)?, "pos:")?.parse().ok()
    }

    /// Reads all descriptors of these processes again: a number may refer to another file, or have
    /// other flags.
    pub fn scan(&mut self, processes: &BTreeMap<u32, Process>) {
        self.descriptors.retain(|(pid, _), _| !processes.contains_key(pid));
        for process in processes.values() {
            for descriptor in process.descriptors() {
                self.look_up(process, descriptor);
            }
        }
    }

    fn look_up(&mut self, process: &Process, descriptor: i32) -> Option<Open> {
        let status = status(&process.dir, &process.path_of(&format!("fd/{descriptor}")))?;
        let identity = Identity::of(&status);
        let key = (process.pid, descriptor);
        if self.descriptors.get(&key).is_none_or(|known| known.identity != identity) {
            let known = self.take_in(process, descriptor, identity, &status);
            self.descriptors.insert(key, known);
        }
        let known = &self.descriptors[&key];
        let file = known.file?;
        let appends = known.appends;
        self.seen[file].update(&status, self.looks);
        Some(Open { file, size_before: self.seen[file].size_before, appends })
    }

    fn take_in(
        &mut self,
        process: &Process,
        number: i32,
        identity: Option<Identity>,
        status: &Statx,
    ) -> Descriptor {
        let nothing = Descriptor { identity, file: None, appends: false };
        let Some(file_identity) = identity else { return nothing };
        let Some(info) = info_of(process, number) else { return nothing };
        let flags = flags_of(&info).unwrap_or(OFlags::empty());
        // An O_PATH descriptor allows no I/O.
        if flags.contains(OFlags::PATH) {
            return nothing;
        }
        let link = process.path_of(&format!("fd/{number}"));
        let Ok(path) = readlinkat(&process.dir, link, Vec::new()) else { return nothing };
        let path = path.to_string_lossy().into_owned();
        let file = self.known(file_identity, &path).or_else(|| {
            let mount =
                field(&info, "mnt_id:").and_then(|id| self.mount(process, id.parse().ok()?));
            self.add(OpenedFile::new(path, file_identity, status, mount.as_ref()))
        });
        let Some(index) = file else { return nothing };
        self.seen[index].opened_with(flags);
        Descriptor { identity, file: Some(index), appends: flags.contains(OFlags::APPEND) }
    }

    /// The known file of this identity, unless its inode number was reused after a removal.
    fn known(&self, identity: Identity, path: &str) -> Option<usize> {
        let index = *self.by_identity.get(&identity)?;
        let known = &self.seen[index];
        let is_same = is_same_path(path, &known.file.path) || known.by_path().is_some();
        // Containers may have a file at different paths, which this process does not see.
        let is_it =
            |seen: &OpenedFile| seen.identity == identity && is_same_path(path, &seen.file.path);
        if is_same { Some(index) } else { self.seen.iter().rposition(is_it) }
    }

    fn add(&mut self, seen: OpenedFile) -> Option<usize> {
        if self.seen.len() == FILES_MAX {
            return None;
        }
        self.by_identity.insert(seen.identity, self.seen.len());
        self.seen.push(seen);
        Some(self.seen.len() - 1)
    }

    /// The mount with this ID. IDs are the same in all namespaces.
    fn mount(&mut self, process: &Process, id: u64) -> Option<Mount> {
        if !self.mounts.contains_key(&id) {
            let there = mounts_of(process.pid).unwrap_or_default();
            self.mounts.extend(there.into_iter().map(|mount| (mount.id, Some(mount))));
        }
        self.mounts.entry(id).or_default().clone()
    }

    /// The file that tracepoints identify by the device number of its file system and its inode.
    pub fn traced(&self, (fs_device, inode): (u64, u64)) -> Option<usize> {
        self.seen.iter().rposition(|seen| seen.fs_device == fs_device && seen.file.inode == inode)
    }

    /// The known file behind a descriptor of another process.
    pub fn identified(&self, process: &Process, descriptor: i32) -> Option<usize> {
        let status = status(&process.dir, &process.path_of(&format!("fd/{descriptor}")))?;
        self.by_identity.get(&Identity::of(&status)?).copied()
    }

    /// Whether a descriptor is open with O_DIRECT. None if that is not readable.
    pub fn is_direct(process: &Process, descriptor: i32) -> Option<bool> {
        let flags = flags_of(&info_of(process, descriptor)?)?;
        Some(flags.contains(OFlags::DIRECT))
    }

    /// What is known of a file.
    pub fn file(&self, file: usize) -> &SeenFile {
        &self.seen[file].file
    }

    /// The numbers of the devices whose ext4 makes fast commits.
    pub fn fast_commits(&self) -> Vec<(u32, u32)> {
        let mut checked = BTreeSet::new();
        let of = |mount: &Mount| {
            let is_new = mount.fs == "ext4" && checked.insert(mount.device);
            let is_on =
                is_new && ext4::fast_commit(mount, mount.options.split(',')).0.unwrap_or_default();
            is_on.then(|| (major(mount.device), minor(mount.device)))
        };
        let is_used = |mount: &&Mount| self.seen.iter().any(|seen| seen.fs_device == mount.device);
        self.mounts.values().flatten().filter(is_used).filter_map(of).collect()
    }

    /// The block size of a file's file system, in bytes.
    pub fn block_bytes(&self, file: usize) -> u64 {
        self.seen[file].block_bytes
    }

    /// Whether writes to a file may wait for the device.
    pub fn is_direct_or_durable(&self, file: usize) -> bool {
        let file = &self.seen[file].file;
        file.is_direct || file.is_durable
    }

    /// The devices of the files, each once, by number.
    pub fn disks(&self) -> BTreeSet<u64> {
        self.seen.iter().map(|seen| seen.disk).collect()
    }

    /// Whether files were ignored.
    pub fn is_full(&self) -> bool {
        self.seen.len() == FILES_MAX
    }

    /// Reads the sizes of files by path: the processes that had them open may have ended.
    pub fn take_sizes(&mut self) {
        self.next_look();
        for seen in &mut self.seen {
            if let Some(status) = seen.by_path() {
                seen.update(&status, self.looks);
            }
        }
    }

    /// All files, with their first and last sizes.
    pub fn finish(self) -> Vec<SeenFile> {
        self.seen.into_iter().map(|seen| seen.file).collect()
    }
}

impl OpenedFile {
    fn new(path: String, identity: Identity, status: &Statx, mount: Option<&Mount>) -> Self {
        // Tracepoints and devices show the file system below an overlay.
        let below = mount.and_then(overlay::below);
        let (disk, fs) = match identity {
            Identity::Device(number) => (number, Some("device".to_owned())),
            Identity::File { device, .. } => {
                let disk = below.as_ref().and_then(ext4::block_device);
                (disk.unwrap_or(device), mount.map(|mount| mount.fs.clone()))
            }
        };
        let size = matches!(identity, Identity::Device(_)).then(|| device_size(disk)).flatten();
        let file = SeenFile {
            path,
            fs,
            device: (major(disk), minor(disk)),
            inode: status.stx_ino,
            is_direct: false,
            is_buffered: false,
            is_durable: false,
            is_sync: false,
            size_bytes: size.map(|size| (size, size)),
            allocated_bytes: None,
        };
        let fs_device = below.map_or(fs_device(status), |mount| mount.device);
        // Without the size of a device, no offset is beyond it.
        let size_before = size.unwrap_or(u64::MAX);
        let block_bytes = status.stx_blksize.into();
        Self {
            file,
            identity,
            fs_device,
            disk,
            block_bytes,
            looked_at: 0,
            size_bytes: size_before,
            size_before,
        }
    }

    fn opened_with(&mut self, flags: OFlags) {
        let is_direct = flags.contains(OFlags::DIRECT);
        self.file.is_direct |= is_direct;
        self.file.is_buffered |= !is_direct;
        self.file.is_durable |= flags.bits() & O_DSYNC != 0;
        self.file.is_sync |= flags.contains(OFlags::SYNC);
    }

    /// Its status by its path, if that still leads to it.
    fn by_path(&self) -> Option<Statx> {
        let status = cached::status(self.file.path.as_ref())?;
        (Identity::of(&status) == Some(self.identity)).then_some(status)
    }

    /// Updates its size in this pass.
    fn update(&mut self, status: &Statx, look: u64) {
        let Identity::File { .. } = self.identity else { return };
        let size = status.stx_size;
        let allocated = status.stx_blocks * 512;
        let first = |both: Option<(u64, u64)>| both.map(|(first, _)| first);
        if self.file.size_bytes.is_none() {
            self.size_before = size;
        } else if self.looked_at != look {
            self.size_before = self.size_bytes;
        }
        (self.looked_at, self.size_bytes) = (look, size);
        self.file.size_bytes = Some((first(self.file.size_bytes).unwrap_or(size), size));
        self.file.allocated_bytes =
            Some((first(self.file.allocated_bytes).unwrap_or(allocated), allocated));
    }
}

/// What is known of a file, without a request to its file system, which may not answer.
fn status(dir: impl AsFd, path: &str) -> Option<Statx> {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    let wanted = StatxFlags::TYPE | StatxFlags::INO | StatxFlags::SIZE | StatxFlags::BLOCKS;
    statx(dir, path, flags, wanted).ok()
}

/// The number of its file system's device.
fn fs_device(status: &Statx) -> u64 {
    makedev(status.stx_dev_major, status.stx_dev_minor)
}

/// Whether two paths are of one file, which may have been removed in between.
fn is_same_path(one: &str, other: &str) -> bool {
    one.trim_end_matches(" (deleted)") == other.trim_end_matches(" (deleted)")
}

/// The size of a device is constant.
fn device_size(number: u64) -> Option<u64> {
    let sectors =
        fs::read_to_string(format!("/sys/dev/block/{}:{}/size", major(number), minor(number)))
            .ok()?;
    Some(sectors.trim().parse::<u64>().ok()? * 512)
}

fn info_of(process: &Process, descriptor: i32) -> Option<String> {
    process.read(&process.path_of(&format!("fdinfo/{descriptor}")))
}

/// The flags of a descriptor, by its `fdinfo`.
fn flags_of(info: &str) -> Option<OFlags> {
    let flags = u32::from_str_radix(field(info, "flags:")?, 8).ok()?;
    Some(OFlags::from_bits_retain(flags))
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::CWD;

    /// The defect: each scan added a file again that two containers have at different paths.
    #[test]
    fn a_file_at_two_unseen_paths_is_known_at_both() {
        let status = status(CWD, "/proc/self/stat").unwrap();
        let identity = Identity::of(&status).unwrap();
        let paths = ["/nowhere/a/file", "/nowhere/b/file"];
        let mut files = Files::default();
        for path in paths {
            assert_eq!(files.known(identity, path), None);
            files.add(OpenedFile::new(path.to_owned(), identity, &status, None));
        }
        assert_eq!(paths.map(|path| files.known(identity, path)), [Some(0), Some(1)]);
    }
}
