//! How `open` behaves: which callers may share an open file, and which kinds of files it never
//! opens.

mod common;

use common::*;
use dioxide::{Buffer, File, OpenOptions, Recover};
use dioxide_ext::OpenInImage;
use dioxide_testkit::child::{self, Acks};
use dioxide_testkit::lab::{Fs, TestDir};
use dioxide_testkit::trials::{Trial, TrialResult, lab_trial, lab_trials, lab_trials_where};
use rustix::fs::{FileType, Mode, RenameFlags};
use rustix::thread::UnshareFlags;
use std::ffi::CStr;
use std::fs;
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;

const NOBODY: u32 = 65534;
const GROUP: u32 = 4242;

/// Credentials of one thread, as in servers that work for many users.
#[derive(Clone, Copy, Debug)]
enum As {
    Root,
    Nobody,
    /// `Nobody` with one more group.
    Member,
}

impl As {
    fn take_on(self) {
        let groups: &[u32] = if let As::Member = self { &[GROUP] } else { &[] };
        if !matches!(self, As::Root) {
            // SAFETY: affects the calling thread alone; the kernel reads as many groups as there
            // are.
            unsafe {
                assert_eq!(libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()), 0);
                libc::setfsgid(NOBODY);
                libc::setfsuid(NOBODY);
            }
        }
    }
}

/// Runs `work` in a thread with these credentials and its own working directory. Only root may be
/// able to reach the lab by path.
fn run_as<R: Send>(who: As, dir: &Path, work: impl FnOnce() -> R + Send) -> R {
    let in_dir = || {
        // SAFETY: unshares neither the memory of this thread nor its descriptors.
        unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FS) }.expect("a thread may");
        rustix::process::chdir(dir).expect("root may");
        who.take_on();
        work()
    };
    thread::scope(|scope| scope.spawn(in_dir).join().expect("it ends"))
}

/// The errnos of open(2) and of this library.
fn both_opened(path: &Path) -> (Option<i32>, Option<i32>) {
    let kernel = fs::OpenOptions::new().read(true).write(true).open(path);
    let ours = OpenOptions::new().write(true).open(path).and_then(File::close);
    (kernel.err().and_then(|error| error.raw_os_error()), ours.err().map(|error| error.errno()))
}

/// Regression: a caller without write permission got a writing handle of a file that the process
/// had open.
fn a_file_is_joined_by_who_may_write_it_only(dir: TestDir) -> TrialResult {
    fs::set_permissions(&*dir, fs::Permissions::from_mode(0o755))?;
    let path = dir.join("log");
    let owner = writable().open(&path)?;
    append(&owner, 1, 0, 1)?;
    let mut refused = 0;
    for mode in [0o600, 0o660, 0o666, 0o606, 0o644, 0o602, 0o000] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        chown(&path, Some(0), Some(GROUP))?;
        for who in [As::Root, As::Nobody, As::Member] {
            let (kernel, ours) = run_as(who, &dir, || both_opened(Path::new("log")));
            assert_eq!(ours, kernel, "{mode:o}, {who:?}");
            refused += usize::from(ours == Some(libc::EACCES));
        }
    }
    assert_eq!(refused, 10);
    append(&owner, 1, 1, 1)?;
    owner.close()?;
    assert_tidy(&path, 2 * BLOCK_BYTES)?;
    Ok(())
}

fn a_striped_volume_is_joined_by_who_may_write_each_member_only(dir: TestDir) -> TrialResult {
    fs::set_permissions(&*dir, fs::Permissions::from_mode(0o755))?;
    let members = ["one", "two"];
    let paths = members.map(|name| dir.join(name));
    let owner = writable().open_striped(&paths, 64 << 10)?;
    let open =
        || OpenOptions::new().write(true).open_striped(&members, 64 << 10).and_then(File::close);
    let opened = || run_as(As::Nobody, &dir, open).err().map(|error| error.errno());
    for (one, two, errno) in [
        (0o666, 0o666, None),
        (0o600, 0o666, Some(libc::EACCES)),
        (0o666, 0o600, Some(libc::EACCES)),
    ] {
        fs::set_permissions(&paths[0], fs::Permissions::from_mode(one))?;
        fs::set_permissions(&paths[1], fs::Permissions::from_mode(two))?;
        assert_eq!(opened(), errno, "{one:o} {two:o}");
    }
    owner.close()?;
    Ok(())
}

fn a_volume_of_ext_is_joined_by_who_may_use_it_only(dir: TestDir) -> TrialResult {
    fs::set_permissions(&*dir, fs::Permissions::from_mode(0o755))?;
    let image = dir.join("image");
    image_with(&image, b"content")?;
    let owner = OpenOptions::new().write(true).open_in_image(&image, "/data")?;
    for (mode, reading, writing) in [
        (0o666, None, None),
        (0o644, None, Some(libc::EACCES)),
        (0o600, Some(libc::EACCES), Some(libc::EACCES)),
    ] {
        fs::set_permissions(&image, fs::Permissions::from_mode(mode))?;
        for (write, errno) in [(false, reading), (true, writing)] {
            let mut options = OpenOptions::new();
            options.write(write);
            let open = || options.open_in_image("image", "/data").and_then(File::close);
            let found = run_as(As::Nobody, &dir, open).err().map(|error| error.errno());
            assert_eq!(found, errno, "{mode:o}, write: {write}");
        }
    }
    owner.close()?;
    Ok(())
}

/// An ext2 volume with one file.
fn image_with(image: &Path, content: &[u8]) -> TrialResult {
    let tree = image.with_extension("tree");
    fs::create_dir(&tree)?;
    fs::write(tree.join("data"), content)?;
    fs::File::create(image)?.set_len(MIB)?;
    let made = Command::new("mkfs.ext2").args(["-q", "-d"]).arg(&tree).arg(image).status()?;
    fs::remove_dir_all(&tree)?;
    if made.success() { Ok(()) } else { Err(format!("mkfs.ext2: {made}").into()) }
}

/// For root as well: permissions do not matter here.
fn a_file_that_may_not_be_written_is_not_joined(dir: TestDir) -> TrialResult {
    let path = dir.join("log");
    let owner = writable().open(&path)?;
    for flag in ["i", "a"] {
        chattr(&format!("+{flag}"), &path)?;
        let (kernel, ours) = both_opened(&path);
        chattr(&format!("-{flag}"), &path)?;
        assert_eq!((kernel, ours), (Some(libc::EPERM), Some(libc::EPERM)), "{flag}");
    }
    // In its own mount namespace, through a read-only mount.
    let on_read_only_mount = || {
        // SAFETY: as in `run_as`.
        unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }.expect("root may");
        mount(None, c"/", libc::MS_PRIVATE | libc::MS_REC);
        mount(Some(c"."), c".", libc::MS_BIND);
        rustix::process::chdir(&*dir).expect("root may");
        mount(None, c".", libc::MS_REMOUNT | libc::MS_BIND | libc::MS_RDONLY);
        both_opened(Path::new("log"))
    };
    assert_eq!(run_as(As::Root, &dir, on_read_only_mount), (Some(libc::EROFS), Some(libc::EROFS)));
    append(&owner, 1, 0, 1)?;
    owner.close()?;
    Ok(())
}

fn mount(source: Option<&CStr>, target: &CStr, flags: libc::c_ulong) {
    let source = source.map_or(std::ptr::null(), CStr::as_ptr);
    let none = std::ptr::null();
    // SAFETY: the kernel reads NUL-terminated strings.
    let result = unsafe { libc::mount(source, target.as_ptr(), none, flags, none.cast()) };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
}

fn chattr(flag: &str, path: &Path) -> TrialResult {
    let status = Command::new("chattr").arg(flag).arg(path).status()?;
    if status.success() { Ok(()) } else { Err(format!("chattr {flag}: {status}").into()) }
}

/// The name moves between a file that the caller may write and one that it may not, between any two
/// steps.
fn a_name_that_changes_meanwhile_gives_no_handle_of_another_file(dir: TestDir) -> TrialResult {
    const OPENS_MIN: usize = 300;
    fs::set_permissions(&*dir, fs::Permissions::from_mode(0o755))?;
    let paths = ["own", "secret"].map(|name| dir.join(name));
    let owners = [writable().open(&paths[0])?, writable().open(&paths[1])?];
    append(&owners[0], 1, 0, 1)?;
    append(&owners[1], 1, 0, 2)?;
    for (path, mode) in [(&paths[0], 0o666), (&paths[1], 0o600)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    }
    let done = AtomicBool::new(false);
    let (opened, refused) = thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(SeqCst) {
                let here = rustix::fs::CWD;
                rustix::fs::renameat_with(here, &paths[0], here, &paths[1], RenameFlags::EXCHANGE)
                    .expect("both are there");
            }
        });
        let _over = Over(&done);
        let (mut opened, mut refused) = (0, 0);
        let mut wrong = None;
        while opened.min(refused) < OPENS_MIN && wrong.is_none() {
            match run_as(As::Nobody, &dir, || OpenOptions::new().write(true).open("own")) {
                Ok(file) => {
                    opened += 1;
                    wrong = (file.len() != Ok(BLOCK_BYTES))
                        .then(|| "a handle of the secret file".to_owned());
                    drop(file);
                }
                Err(error) if error.errno() == libc::EACCES => refused += 1,
                Err(error) => wrong = Some(error.to_string()),
            }
        }
        assert_eq!(wrong, None);
        (opened, refused)
    });
    assert!(opened >= OPENS_MIN && refused >= OPENS_MIN);
    owners.into_iter().try_for_each(File::close)?;
    Ok(())
}

// --- links ---------------------------------------------------------------------------------------

/// The bug: `create` failed with ENOENT, where the kernel creates the target.
fn create_through_links_to_no_file(dir: TestDir) -> TrialResult {
    fs::create_dir(dir.join("data"))?;
    symlink("data/second", dir.join("first"))?;
    symlink(dir.join("data/file"), dir.join("data/second"))?;
    let file = writable().open(dir.join("first"))?;
    append(&file, 1, 0, 1)?;
    file.close()?;
    assert_eq!(fs::read(dir.join("data/file"))?, &record(1, 0, 1)[..]);
    assert!(fs::symlink_metadata(dir.join("first"))?.is_symlink());

    symlink("nowhere/file", dir.join("lost"))?;
    let error = writable().open(dir.join("lost")).expect_err("its directory is missing");
    assert_eq!(error.errno(), libc::ENOENT);
    symlink("ring", dir.join("ring"))?;
    let error = writable().open(dir.join("ring")).expect_err("it has no end");
    assert_eq!(error.errno(), libc::ELOOP);
    symlink("other", dir.join("new"))?;
    let error = OpenOptions::new().write(true).create_new(true).open(dir.join("new"));
    assert_eq!(error.expect_err("the link is there").errno(), libc::EEXIST);
    Ok(())
}

// --- other kinds of files ------------------------------------------------------------------------

/// The file type at each name. Each also has a symbolic link.
const NO_FILES: [(&str, FileType, &str); 3] = [
    ("fifo", FileType::Fifo, "a FIFO"),
    ("device", FileType::CharacterDevice, "a character device"),
    ("socket", FileType::Socket, "a socket"),
];

fn no_files_in(dir: &Path) -> io::Result<()> {
    for (name, kind, _) in NO_FILES {
        // The device is /dev/zero.
        rustix::fs::mknodat(
            rustix::fs::CWD,
            dir.join(name),
            kind,
            Mode::RUSR | Mode::WUSR,
            rustix::fs::makedev(1, 5),
        )?;
        symlink(name, dir.join(format!("{name}-link")))?;
    }
    Ok(())
}

/// A child that opens args[0] in every way. Each open must fail at once, with args[1] in the error.
fn open_in_every_way(acks: &Acks, args: &[String]) {
    let path = &args[0];
    let other = format!("{path}-member");
    let members = [&other, path];
    let writing = || OpenOptions::new().write(true).clone();
    type Way<'a> = Box<dyn Fn() -> dioxide::Result<()> + 'a>;
    let ways: Vec<Way> = vec![
        Box::new(|| writing().open(path).map(drop)),
        Box::new(|| writable().open(path).map(drop)),
        Box::new(|| writing().create(true).truncate(true).open(path).map(drop)),
        Box::new(|| File::open(path).map(drop)),
        Box::new(|| dioxide::recover(path, Recover::Inspect).map(drop)),
        Box::new(|| dioxide::recover(path, Recover::Truncate).map(drop)),
        Box::new(|| dioxide::recover(path, Recover::Force).map(drop)),
        Box::new(|| writable().open_striped(&members, 64 << 10).map(drop)),
        Box::new(|| OpenOptions::new().open_striped(&members, 64 << 10).map(drop)),
        Box::new(|| dioxide::recover_striped(&members, 64 << 10, Recover::Truncate).map(drop)),
        Box::new(|| OpenOptions::new().open_in_image(path, "/data").map(drop)),
        Box::new(|| writing().open_in_image(path, "/data").map(drop)),
    ];
    for (number, way) in ways.iter().enumerate() {
        fs::write(&other, []).expect("it can be written");
        let error = way().expect_err("it is no file").to_string();
        assert!(error.contains(&args[1]), "way {number}: {error}");
        acks.send([number as u64, 0, 0]);
    }
}

/// Regression: a FIFO blocked forever, and a device node was opened, which may have side effects.
/// An inotify watch sees each open.
fn what_is_no_file_is_refused_and_not_opened(dir: TestDir) -> TrialResult {
    use rustix::fs::inotify;
    no_files_in(&dir)?;
    let events = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC)?;
    for (name, _, what) in NO_FILES {
        inotify::add_watch(&events, dir.join(name), inotify::WatchFlags::OPEN)?;
        for path in [dir.join(name), dir.join(format!("{name}-link"))] {
            let args = [path.to_string_lossy().into_owned(), what.to_owned()];
            let (status, acks) = child::spawn("open_in_every_way", &args)?.wait(PATIENCE)?;
            assert!(status.success() && acks.len() == 12, "{name}: {status}, {acks:?}");
        }
    }
    let mut event = [std::mem::MaybeUninit::uninit(); 4096];
    assert!(inotify::Reader::new(&events, &mut event).next().is_err(), "one of them was opened");
    // Control: the watch works.
    fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(dir.join("fifo"))?;
    assert!(inotify::Reader::new(&events, &mut event).next().is_ok());
    Ok(())
}

// --- without /proc -------------------------------------------------------------------------------

/// `open` turns the O_PATH descriptor into a usable one through /proc. Without /proc it uses the
/// name again.
fn without_proc_files_are_opened_all_the_same(dir: TestDir) -> TrialResult {
    no_files_in(&dir)?;
    let in_a_root_without_proc = || -> dioxide::Result<u64> {
        rustix::process::chroot(".").expect("root may");
        assert!(!Path::new("/proc").exists());
        let file = writable().open("/log")?;
        append(&file, 1, 0, 1)?;
        let joined = OpenOptions::new().write(true).open("/log")?;
        append(&joined, 1, 1, 1)?;
        let reader = File::open("/log")?;
        assert_eq!(reader.read_at(&mut Buffer::zeroed(2 * BLOCK), 0)?, 2 * BLOCK);
        for (name, _, what) in NO_FILES {
            let path = Path::new("/").join(name);
            let error = OpenOptions::new().write(true).open(&path).expect_err("it is no file");
            assert!(error.to_string().contains(what), "{error}");
            let error = File::open(&path).expect_err("it is no file");
            assert!(error.to_string().contains(what), "{error}");
        }
        joined.close()?;
        file.close()?;
        dioxide::recover("/log", Recover::Truncate).map(|found| found.physical_size)
    };
    assert_eq!(run_as(As::Root, &dir, in_a_root_without_proc)?, 2 * BLOCK_BYTES);
    assert_tidy(&dir.join("log"), 2 * BLOCK_BYTES)?;
    Ok(())
}

/// The volume is shared by the image that was opened. The name moves between two images meanwhile.
fn a_volume_is_known_by_the_image_that_is_used(dir: TestDir) -> TrialResult {
    let paths = ["one", "two"].map(|name| dir.join(name));
    for (path, content) in paths.iter().zip([b"1", b"2"]) {
        image_with(path, content)?;
        fs::hard_link(path, path.with_extension("known"))?;
    }
    let first_byte = |image: &Path| -> dioxide::Result<(File, u8)> {
        let file = OpenOptions::new().open_in_image(image, "/data")?;
        let mut into = Buffer::zeroed(1);
        file.read_at(&mut into, 0)?;
        Ok((file, into[0]))
    };
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(SeqCst) {
                let here = rustix::fs::CWD;
                rustix::fs::renameat_with(here, &paths[0], here, &paths[1], RenameFlags::EXCHANGE)
                    .expect("both are there");
            }
        });
        let _over = Over(&done);
        for _ in 0..300 {
            let some = first_byte(&paths[0])?;
            for (path, content) in paths.iter().zip([b'1', b'2']) {
                let (_known, byte) = first_byte(&path.with_extension("known"))?;
                assert_eq!(
                    byte, content,
                    "while a file of the other is open, or of this: {}",
                    some.1 as char
                );
            }
        }
        Ok(())
    })
}

fn trials() -> Vec<Trial> {
    let everywhere: &[LabTest] = named![
        a_file_is_joined_by_who_may_write_it_only,
        a_striped_volume_is_joined_by_who_may_write_each_member_only,
        what_is_no_file_is_refused_and_not_opened,
        without_proc_files_are_opened_all_the_same,
        create_through_links_to_no_file,
    ];
    let mut all: Vec<_> =
        everywhere.iter().flat_map(|&(name, test)| lab_trials(name, test)).collect();
    all.extend(lab_trials_where(
        "a_file_that_may_not_be_written_is_not_joined",
        Fs::has_disk,
        a_file_that_may_not_be_written_is_not_joined,
    ));
    let on_one: &[LabTest] = named![
        a_volume_of_ext_is_joined_by_who_may_use_it_only,
        a_name_that_changes_meanwhile_gives_no_handle_of_another_file,
        a_volume_is_known_by_the_image_that_is_used,
    ];
    all.extend(on_one.iter().map(|&(name, test)| lab_trial(name, Fs::Ext4, test)));
    all
}

fn main() -> ExitCode {
    dioxide_testkit::run(&[("open_in_every_way", open_in_every_way)], trials)
}
