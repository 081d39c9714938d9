//! Self test of the lab: its directories and disk, extents and marker, throw-away volumes.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

use dioxide_testkit::ext_volume::{ExtKind, ExtVolume, Shape};
use dioxide_testkit::files::{self, Extent};
use dioxide_testkit::lab::{self, Disk, Fs, TestDir};
use dioxide_testkit::loop_device::AttachedFile;
use dioxide_testkit::trials::{
    Failed, Trial, TrialResult, disk_trial, lab_trials, lab_trials_where, volume_trials,
    volume_trials_where,
};
use dioxide_testkit::volume::{SIZE_MIN, Volume};

const KIB: u64 = 1 << 10;

fn directories_are_fresh_and_removed(dir: TestDir) -> TrialResult {
    let path = dir.to_path_buf();
    assert_eq!(fs::read_dir(&path)?.count(), 0);
    fs::write(path.join("file"), "x")?;
    drop(dir);
    assert!(!path.exists());
    Ok(())
}

fn extents_tell_written_from_unwritten(dir: TestDir) -> TrialResult {
    let path = dir.join("file");
    let file = File::create(&path)?;
    assert_eq!(files::extents(&path)?, []);
    // SAFETY: a plain system call on an open file.
    assert_eq!(unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, 1 << 20) }, 0);
    file.write_all_at(&[1; 16 << 10], 64 * KIB)?;
    file.sync_all()?;
    let extent =
        |start, end, unwritten| Extent { start: start * KIB, len: (end - start) * KIB, unwritten };
    assert_eq!(
        files::extents(&path)?,
        [extent(0, 64, true), extent(64, 80, false), extent(80, 1024, true)]
    );
    Ok(())
}

fn many_extents_are_all_listed(dir: TestDir) -> TrialResult {
    let path = dir.join("file");
    let file = File::create(&path)?;
    for n in 0..400 {
        file.write_all_at(&[1; 4096], n * 8 * KIB)?;
    }
    file.sync_all()?;
    // XFS fills some of the holes with unwritten space.
    let written = files::extents(&path)?.into_iter().filter(|extent| !extent.unwritten);
    assert!(written.map(|extent| extent.start).eq((0..400).map(|n| n * 8 * KIB)));
    Ok(())
}

fn marker_is_set_and_removed(dir: TestDir) -> TrialResult {
    let path = dir.join("file");
    File::create(&path)?;
    assert_eq!(files::marker(&path)?, None);
    files::set_marker(&path, b"value")?;
    assert_eq!(files::marker(&path)?.as_deref(), Some(b"value".as_slice()));
    files::remove_marker(&path)?;
    assert_eq!(files::marker(&path)?, None);
    Ok(())
}

fn disk_is_a_block_device_of_one_test_at_a_time(disk: Disk) -> TrialResult {
    let device = OpenOptions::new().read(true).write(true).open(&*disk)?;
    device.write_all_at(&[7; 4096], 0)?;
    drop((device, disk));
    lab::disk()?;
    Ok(())
}

fn shutdown_loses_what_was_not_synced(fs_type: Fs) -> TrialResult {
    let mut volume = Volume::new(fs_type, SIZE_MIN)?;
    write_synced(&volume.path().join("synced"))?;
    fs::write(volume.path().join("not-synced"), "y")?;
    volume.shutdown()?;
    assert!(
        fs::write(volume.path().join("after"), "z").is_err(),
        "a file system that is shut down"
    );
    volume.remount()?;
    assert_eq!(fs::read_to_string(volume.path().join("synced"))?, "x");
    assert!(!volume.path().join("not-synced").exists());
    volume.fsck()?;
    Ok(())
}

fn write_synced(path: &Path) -> std::io::Result<()> {
    fs::write(path, "x")?;
    File::open(path)?.sync_all()?;
    File::open(path.parent().expect("a file has a directory"))?.sync_all()
}

fn dropped_volume_leaves_nothing(fs_type: Fs) -> TrialResult {
    let volume = Volume::new(fs_type, SIZE_MIN)?;
    let (mount_point, device) = (volume.path().to_owned(), volume.device().to_owned());
    drop(volume);
    assert!(!mount_point.parent().expect("the site").exists());
    assert!(
        fs::read_to_string("/proc/self/mounts")?.find(&*mount_point.to_string_lossy()).is_none()
    );
    let backing =
        Path::new("/sys/block").join(device.file_name().unwrap()).join("loop/backing_file");
    let site = mount_point.parent().unwrap().to_string_lossy().into_owned();
    assert!(!fs::read_to_string(backing).is_ok_and(|backing| backing.starts_with(&site)));
    Ok(())
}

fn unmount_waits_for_the_last_file(fs_type: Fs) -> TrialResult {
    let mut volume = Volume::new(fs_type, SIZE_MIN)?;
    let file = File::create(volume.path().join("file"))?;
    thread::spawn(move || {
        thread::sleep(Duration::from_millis(200));
        drop(file);
    });
    volume.unmount()?;
    assert!(!volume.path().join("file").exists());
    Ok(())
}

/// Keeps a copy of a mount, as another namespace does. Ends a while after the mount is gone, or
/// when `ended` says so. Sends when it has the copy, and before it drops it.
fn keep_mount(mount_point: &Path, kept: &Sender<()>, ended: &Receiver<()>) {
    let path = CString::new(mount_point.as_os_str().as_bytes()).expect("a path");
    let flags = libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC;
    // SAFETY: the kernel reads a NUL-terminated string, and returns a descriptor.
    let copy = unsafe {
        let copy = libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, path.as_ptr(), flags);
        OwnedFd::from_raw_fd(i32::try_from(copy).ok().filter(|fd| *fd >= 0).expect("root may"))
    };
    kept.send(()).expect("the trial waits");
    let mut looks_left = 50;
    while looks_left > 0 && ended.recv_timeout(Duration::from_millis(10)).is_err() {
        let mounts = fs::read_to_string("/proc/self/mounts").expect("it can be read");
        looks_left -= i32::from(!mounts.contains(&*mount_point.to_string_lossy()));
    }
    let _ = kept.send(());
    drop(copy);
}

/// Returns whether a copy of the mount has ended when `work` returns.
fn ends_a_kept_mount(
    volume: &mut Volume,
    work: impl FnOnce(&mut Volume) -> io::Result<()>,
) -> Result<bool, Failed> {
    let (kept, is_kept) = mpsc::channel();
    let (end, ended) = mpsc::channel();
    thread::scope(|scope| {
        let mount_point = volume.path().to_owned();
        scope.spawn(move || keep_mount(&mount_point, &kept, &ended));
        is_kept.recv()?;
        let worked = work(volume);
        let has_ended = is_kept.try_recv().is_ok();
        let _ = end.send(());
        worked?;
        Ok(has_ended)
    })
}

/// The next mount was of the file system that the namespace of another program kept. After a power
/// cut each of its files was an error.
fn a_remount_showed_what_another_namespace_kept(fs_type: Fs) -> TrialResult {
    let mut volume = Volume::new(fs_type, SIZE_MIN)?;
    let path = volume.path().join("file");
    write_synced(&path)?;
    ends_a_kept_mount(&mut volume, |volume| {
        volume.shutdown()?;
        volume.remount()
    })?;
    assert_eq!(fs::read(&path)?, b"x");
    Ok(())
}

/// A tool that writes the device refuses one that is in use, or harms the file system.
fn a_tool_ran_while_another_namespace_kept_the_file_system(fs_type: Fs) -> TrialResult {
    type Work = fn(&mut Volume) -> io::Result<()>;
    let mut volume = Volume::new(fs_type, SIZE_MIN)?;
    let all: [(&str, Work); 4] = [
        ("remount", Volume::remount),
        ("repair", Volume::repair),
        ("fsck", Volume::fsck),
        ("renew", Volume::renew),
    ];
    for (name, work) in all {
        assert!(ends_a_kept_mount(&mut volume, work)?, "{name}");
    }
    Ok(())
}

fn a_volume_was_made_while_another_namespace_kept_the_last_one(disk: Disk) -> TrialResult {
    let dir = lab::fresh_dir(Fs::Tmpfs, "kept")?;
    let shape = Shape::new(ExtKind::Ext2, 4096, 256, 8 << 20);
    let mounted = ExtVolume::format(&disk, &shape, &dir)?.mount("rw")?;
    let (kept, is_kept) = mpsc::channel();
    let (_end, ended) = mpsc::channel();
    thread::scope(|scope| {
        let mount_point = mounted.to_owned();
        scope.spawn(move || keep_mount(&mount_point, &kept, &ended));
        is_kept.recv()?;
        drop(mounted);
        Ok(ExtVolume::format(&disk, &shape, &dir)?.check()?)
    })
}

/// A program in another mount namespace. It ends with its standard input.
struct OtherNamespace(Child);

impl OtherNamespace {
    fn start() -> io::Result<Self> {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "cat"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        // It runs in its namespace when it answers.
        child.stdin.as_mut().expect("piped").write_all(b"\n")?;
        child.stdout.as_mut().expect("piped").read_exact(&mut [0])?;
        Ok(Self(child))
    }
}

impl Drop for OtherNamespace {
    fn drop(&mut self) {
        self.0.stdin = None;
        let _ = self.0.wait();
    }
}

/// The program of another namespace may run for minutes.
fn an_unmounted_volume_lived_on_in_another_namespace(fs_type: Fs) -> TrialResult {
    let mut volume = Volume::new(fs_type, SIZE_MIN)?;
    let _other = OtherNamespace::start()?;
    volume.unmount()?;
    OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(volume.device())?;
    volume.mount()?;
    Ok(())
}

fn trials() -> Vec<Trial> {
    [
        lab_trials("directories_are_fresh_and_removed", directories_are_fresh_and_removed),
        lab_trials_where(
            "extents_tell_written_from_unwritten",
            |fs| match fs {
                Fs::Ext3 | Fs::Tmpfs => Err("it has no unwritten extents"),
                _ => Ok(()),
            },
            extents_tell_written_from_unwritten,
        ),
        lab_trials("many_extents_are_all_listed", many_extents_are_all_listed),
        lab_trials("marker_is_set_and_removed", marker_is_set_and_removed),
        vec![disk_trial(
            "disk_is_a_block_device_of_one_test_at_a_time",
            disk_is_a_block_device_of_one_test_at_a_time,
        )],
        lab_trials_where(
            "a_device_whose_file_was_removed_is_detached",
            Fs::on_ext4,
            a_device_whose_file_was_removed_is_detached,
        ),
        volume_trials_where(
            "shutdown_loses_what_was_not_synced",
            Fs::shuts_down,
            shutdown_loses_what_was_not_synced,
        ),
        volume_trials_where(
            "a_remount_showed_what_another_namespace_kept",
            Fs::shuts_down,
            a_remount_showed_what_another_namespace_kept,
        ),
        volume_trials_where(
            "a_tool_ran_while_another_namespace_kept_the_file_system",
            Fs::has_disk,
            a_tool_ran_while_another_namespace_kept_the_file_system,
        ),
        vec![disk_trial(
            "a_volume_was_made_while_another_namespace_kept_the_last_one",
            a_volume_was_made_while_another_namespace_kept_the_last_one,
        )],
        volume_trials_where(
            "an_unmounted_volume_lived_on_in_another_namespace",
            Fs::has_disk,
            an_unmounted_volume_lived_on_in_another_namespace,
        ),
        volume_trials("dropped_volume_leaves_nothing", dropped_volume_leaves_nothing),
        volume_trials("unmount_waits_for_the_last_file", unmount_waits_for_the_last_file),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Two devices of a trial that failed stayed for ever, because its directory went first.
fn a_device_whose_file_was_removed_is_detached(dir: TestDir) -> TrialResult {
    let image = dir.join("image");
    File::create(&image)?.set_len(1 << 20)?;
    let device = AttachedFile::new(&image)?;
    let name = device.path().file_name().expect("a name").to_owned();
    fs::remove_file(&image)?;
    let backing = Path::new("/sys/block").join(name).join("loop/backing_file");
    assert!(fs::read_to_string(&backing)?.ends_with("image (deleted)\n"));
    drop(device);
    let now = fs::read_to_string(&backing).unwrap_or_default();
    assert!(!now.starts_with(&image.display().to_string()), "{now}");
    Ok(())
}

fn main() -> ExitCode {
    dioxide_testkit::run(&[], trials)
}
