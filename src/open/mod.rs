//! Opening: look the path up, lock the file, recover it, and only then make its engine.

pub(crate) mod build;
pub(crate) mod found;
pub(crate) mod image;
pub(crate) mod request;
pub(crate) mod striped;

use crate::backend::Backend;
use crate::backend::journal::Journal;
use crate::backend::syscall::Syscall;
use crate::engine::Engine;
use crate::engine::handle::FileHandle;
use crate::engine::process::{FileSystems, Process};
use crate::engine::queue::settle_own;
use crate::engine::recover::{Recover, Recovering, look, recover_by};
use crate::engine::registry::{Key, Opening};
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::os_error::{self, flushed};
use crate::rules::marker::{Marker, NAME, Prepared};
use crate::rules::policy::{Durability, Growth};
use crate::rules::recovery::{Recovery, Verdict};
use crate::sync::nap;
use crate::sys;
use crate::sys::journal::{FAST_COMMITS, JournalFile, Order, warn_of_fast_commits};
use crate::sys::probe::{Facts, Through};
use crate::text::shown;
use build::{Build, SpaceAhead};
use found::{FoundInode, There};
use request::OpenRequest;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_millis(250);
const PATIENCE_NAPS: u32 = 50;

pub(crate) const DIRECT: OFlags = OFlags::DIRECT.union(OFlags::CLOEXEC).union(OFlags::NOCTTY);

/// Opens `path` with the options of `request`.
pub(crate) fn open(request: &OpenRequest, path: &Path) -> Result<FileHandle> {
    let path: Arc<Path> = path.into();
    if !request.write {
        return open_read_only(request, &path);
    }
    settle_own();
    let process = Process::current();
    let (key, engine) = open_writing(request, process, &path)?;
    shared(request, process, key, engine)
}

/// Opens a file without a name in `dir`.
pub(crate) fn temporary(request: &OpenRequest, dir: &Path) -> Result<FileHandle> {
    let path: Arc<Path> = dir.into();
    settle_own();
    let process = Process::current();
    refuse_if_wedged(process, &path, dir)?;
    let flags = DIRECT | OFlags::RDWR | OFlags::TMPFILE;
    let mode = Mode::from_raw_mode(request.mode);
    let fd = sys::open(dir, flags, mode, request.descriptor_min).map_err(|errno| {
        let unsupported = matches!(errno, Errno::OPNOTSUPP | Errno::ISDIR);
        let kind = match unsupported {
            true => {
                ErrorKind::Unsupported("no temporary files (O_TMPFILE) on this file system".into())
            }
            false => ErrorKind::Os(errno.raw_os_error()),
        };
        Error::new(Operation::Open, &path, None, kind)
    })?;
    let (key, engine) = share_or_open(request, process, &path, There::Created(fd))?;
    shared(request, process, key, engine)
}

/// Makes a file of a copy of the caller's descriptor. Unless it is a device, the caller holds a
/// write lease on the description.
pub(crate) fn descriptor(request: &OpenRequest, fd: OwnedFd, path: &Path) -> Result<FileHandle> {
    let path: Arc<Path> = path.into();
    settle_own();
    let process = Process::current();
    let facts = facts(&path, &fd)?;
    let key = Key::of(&facts);
    let file = || {
        Locked::with_lease(fd, &facts)
            .map_err(|kind| Error::new(Operation::Open, &path, None, kind))
    };
    let engine =
        process.registry.open(key, || make_engine(request, process, &path, file, facts.clone()))?;
    shared(request, process, key, engine)
}

/// Read-only handles are independent of the writing ones: the last of those truncates the file even
/// while readers have it open.
fn open_read_only(request: &OpenRequest, path: &Arc<Path>) -> Result<FileHandle> {
    let fail = |kind| Error::new(Operation::Open, path, None, kind);
    request.check_read_only().map_err(fail)?;
    let found = find(path).map_err(fail)?;
    let fd = found
        .open(DIRECT | OFlags::RDONLY, request.descriptor_min)
        .map_err(|errno| fail(refusal(errno)))?;
    let facts = facts(path, &fd)?;
    let backend = Arc::new(Syscall::new(fd));
    let key = Key::of(&facts);
    Ok(FileHandle::Reader(build::reader(backend, path.clone(), facts, key, Process::current())))
}

type Joined = (Key, Arc<Engine>);

/// Joins the handles of an open file, or opens it.
fn open_writing(
    request: &OpenRequest,
    process: &'static Process,
    path: &Arc<Path>,
) -> Result<Joined> {
    let there = match look_up(request, path)? {
        Some(found) => There::Found(found),
        None => create(request, process, path)?,
    };
    share_or_open(request, process, path, there)
}

fn share_or_open(
    request: &OpenRequest,
    process: &'static Process,
    path: &Arc<Path>,
    there: There,
) -> Result<Joined> {
    let key =
        there.key().map_err(|errno| Error::new(Operation::Open, path, None, refusal(errno)))?;
    let engine = process.registry.open(key, OpeningOne { request, process, path, there })?;
    Ok((key, engine))
}

/// Looks a path up, and refuses a file that must not be opened.
pub(crate) fn find(path: &Arc<Path>) -> Result<FoundInode, ErrorKind> {
    let found = FoundInode::at(path).map_err(refusal)?;
    found.check_kind().map(|()| found)
}

/// Whether the file has a marker of its own, and is longer than what that keeps. A copy of a file
/// may have the marker of the other one.
pub fn is_left_grown(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let facts = sys::probe::facts(fd)?;
    let marker = sys::read_xattr(fd, NAME)?;
    let own = marker.and_then(|bytes| Marker::decode(&bytes).ok());
    Ok(own.is_some_and(|it| it.identity == facts.identity && facts.len > it.base))
}

/// Looks a path up; None if the file is to be created.
fn look_up(request: &OpenRequest, path: &Arc<Path>) -> Result<Option<FoundInode>> {
    if request.create_new {
        return Ok(None);
    }
    match find(path) {
        Err(ErrorKind::Os(libc::ENOENT)) if request.create => Ok(None),
        found => found.map(Some).map_err(|kind| Error::new(Operation::Open, path, None, kind)),
    }
}

/// Creates a file, or finds the one that another opener has just created. Its name is stable on
/// return, unless it is temporary.
fn create(request: &OpenRequest, process: &Process, path: &Arc<Path>) -> Result<There> {
    let fail = |kind| Error::new(Operation::Open, path, None, kind);
    refuse_if_wedged(process, path, sys::probe::parent(path))?;
    let flags = DIRECT | OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
    match sys::open(path, flags, Mode::from_raw_mode(request.mode), request.descriptor_min) {
        Ok(fd) => {
            if !request.is_temporary {
                make_name_stable(process, path, &facts(path, &fd)?, &fd)?;
            }
            Ok(There::Created(fd))
        }
        Err(Errno::EXIST) if !request.create_new => match find(path) {
            Err(ErrorKind::Os(libc::ENOENT)) => match behind_link(path) {
                Some(target) => create(request, process, &target),
                None => Err(fail(refusal(Errno::NOENT))),
            },
            found => found.map(There::Found).map_err(fail),
        },
        Err(errno) => Err(fail(refusal(errno))),
    }
}

/// Returns the target of a symbolic link.
fn behind_link(path: &Path) -> Option<Arc<Path>> {
    let target = std::fs::read_link(path).ok()?;
    Some(path.parent().unwrap_or(Path::new("")).join(target).into())
}

/// A file that is being opened for writing.
struct OpeningOne<'a> {
    request: &'a OpenRequest,
    process: &'static Process,
    path: &'a Arc<Path>,
    there: There,
}

impl Opening for OpeningOne<'_> {
    fn admit(&self) -> Result<()> {
        admit(self.path, &self.there)
    }

    fn engine(self) -> Result<Engine> {
        let Self { request, process, path, there } = self;
        let (fd, facts) = open_there(request, process, path, there)?;
        let locked = facts.clone();
        let file = || {
            Locked::new(fd, &locked).map_err(|kind| Error::new(Operation::Open, path, None, kind))
        };
        make_engine(request, process, path, file, facts)
    }
}

fn admit(path: &Arc<Path>, there: &There) -> Result<()> {
    there.admit().map_err(|errno| Error::new(Operation::Open, path, None, refusal(errno)))
}

/// Opens an existing file for writing.
fn open_there(
    request: &OpenRequest,
    process: &'static Process,
    path: &Arc<Path>,
    there: There,
) -> Result<(OwnedFd, Facts)> {
    let found = match there {
        There::Created(fd) => {
            let facts = facts(path, &fd)?;
            return Ok((fd, facts));
        }
        There::Found(found) => found,
    };
    let fd = open_alone(&found, OFlags::RDWR, request.descriptor_min)
        .map_err(|errno| Error::new(Operation::Open, path, None, refusal(errno)))?;
    let facts = facts(path, &fd)?;
    // Another opener may have created an empty file and not yet made it stable.
    if request.create && !facts.is_device && facts.len == 0 {
        make_name_stable(process, path, &facts, &fd)?;
    }
    Ok((fd, facts))
}

/// Opens a file or device. Refuses a device that is mounted or otherwise held: O_EXCL without
/// O_CREAT.
pub(crate) fn open_alone(
    found: &FoundInode,
    access: OFlags,
    descriptor_min: u32,
) -> rustix::io::Result<OwnedFd> {
    let alone = if found.is_device() { OFlags::EXCL } else { OFlags::empty() };
    // The kernel may keep it busy for a moment after a program ended.
    let opened = patiently(|| match found.open(DIRECT | access | alone, descriptor_min) {
        Err(Errno::BUSY) => None,
        result => Some(result),
    });
    opened.unwrap_or(Err(Errno::BUSY))
}

/// Refuses to create a file in `dir` on a wedged file system. If the probe fails, creating fails as
/// well.
fn refuse_if_wedged(process: &Process, path: &Arc<Path>, dir: &Path) -> Result<()> {
    let Ok((fs, through)) = sys::probe::place(dir) else { return Ok(()) };
    file_system(process, path, Operation::Open, fs, through).map(drop)
}

pub(crate) fn file_system(
    process: &Process,
    path: &Arc<Path>,
    operation: Operation,
    number: u64,
    through: Through,
) -> Result<FileSystems> {
    let fs = process.file_system(number, through).map(FileSystems::from);
    fs.map_err(|cause| Error::new(operation, path, None, ErrorKind::Wedged(cause)))
}

pub(crate) fn refusal(errno: Errno) -> ErrorKind {
    match errno {
        Errno::INVAL => ErrorKind::Unsupported(
            "this file system does not take O_DIRECT; those that store files on a disk do (ext4, \
             XFS, btrfs)"
                .into(),
        ),
        Errno::BUSY => ErrorKind::Busy("the device is mounted or held by another program".into()),
        other => ErrorKind::Os(other.raw_os_error()),
    }
}

/// A new file survives a crash once its directory is synced.
fn make_name_stable(
    process: &Process,
    path: &Arc<Path>,
    facts: &Facts,
    fd: &OwnedFd,
) -> Result<()> {
    let fs = file_system(process, path, Operation::Open, facts.fs, facts.through)?;
    let directory = sys::probe::parent_directory(path)
        .map_err(|error| Error::new(Operation::Open, path, None, os_error::kind(&error)))?;
    flushing(&fs, path, Operation::Open, || {
        flushed(|| Ok(rustix::fs::fsync(fd)?))?;
        flushed(|| directory.sync_all())
    })
}

/// Performs steps of which some flush, and mark their errors ([`flushed`]). Fails if a step fails,
/// or a flush that ran beside it.
pub(crate) fn flushing<R>(
    fs: &FileSystems,
    path: &Arc<Path>,
    operation: Operation,
    perform: impl FnOnce() -> io::Result<R>,
) -> Result<R> {
    let error = |kind| Error::new(operation, path, None, kind);
    let mut done = None;
    let result = fs.flushing(
        || perform().map(|result| done = Some(result)),
        |failure| Arc::new(error(os_error::kind(failure))),
    );
    match (result, done, fs.wedged()) {
        (Ok(()), Some(done), _) => Ok(done),
        // Ours succeeded, a concurrent one failed.
        (Err(_), Some(_), Some(cause)) => Err(error(ErrorKind::Wedged(cause.clone()))),
        (Err(failure), _, _) => Err(error(os_error::kind(&failure))),
        (Ok(()), None, _) => unreachable!("a success has a result"),
    }
}

pub(crate) fn facts(path: &Arc<Path>, fd: &OwnedFd) -> Result<Facts> {
    sys::probe::facts(fd.as_fd()).map_err(|error| {
        let kind = match error.raw_os_error() {
            Some(libc::EINVAL) => ErrorKind::Unsupported(
                "neither a regular file nor a block \
                device"
                    .into(),
            ),
            Some(libc::EOPNOTSUPP) => ErrorKind::Unsupported(
                "no direct I/O on this file: it is encrypted, or the file system is mounted with \
                 data=journal"
                    .into(),
            ),
            _ => os_error::kind(&error),
        };
        Error::new(Operation::Open, path, None, kind)
    })
}

/// Makes a handle of a file that was opened or joined, and truncates the file to length 0 first if
/// requested.
pub(crate) fn shared(
    request: &OpenRequest,
    process: &'static Process,
    key: Key,
    engine: Arc<Engine>,
) -> Result<FileHandle> {
    if request.truncate {
        engine.set_len(0).inspect_err(|_| drop(process.registry.leave(key)))?;
    }
    let durable = request.durability == Durability::EveryWrite;
    Ok(FileHandle::Writer { engine, key, process, durable })
}

fn make_engine(
    request: &OpenRequest,
    process: &'static Process,
    path: &Arc<Path>,
    file: impl FnOnce() -> Result<Locked>,
    facts: Facts,
) -> Result<Engine> {
    // Before the lock: a child of a fork detects a wedge even while its parent has the file open.
    let fs = file_system(process, path, Operation::Open, facts.fs, facts.through)?;
    let file = file()?;
    let (recovery, held) = match facts.is_device {
        true => (Recovery::clean(facts.len), None),
        false => recovered(file.backend(), &fs, path, &facts)?,
    };
    let possible = || prepared(request.growth, path, &[(file.as_fd(), &facts)]);
    // Old content needs the same as zeros.
    let overwrites_in_place = |prepared: Option<Prepared>| {
        prepared.is_some()
            && sys::probe::can_grow_ahead(file.as_fd(), &facts, Prepared::Zeroed).is_ok()
    };
    let ahead = SpaceAhead::new(held.as_ref(), possible, overwrites_in_place);
    if let Some(why) = sys::probe::why_not_direct(file.as_fd(), &facts) {
        log::warn!("dioxide: {}: O_DIRECT is not direct here: {why}", shown(&**path));
    }
    let order = order(&fs, file.as_fd(), &facts, request.descriptor_min);
    if order.as_ref().is_err_and(|why| why == FAST_COMMITS) {
        warn_of_fast_commits();
    }
    let found = order.as_ref().map(drop).map_err(String::clone);
    let journal =
        journal(&fs, file.backend(), &facts, request.descriptor_min, found).inspect_err(|why| {
            log::debug!("dioxide: {}: shares no flushes: {why}", shown(&**path));
        });
    let build = Build {
        request,
        process,
        path,
        fs,
        facts: &facts,
        ahead,
        journal,
        order: order.ok(),
        epoch: sys::epoch(),
        recovery,
        held,
    };
    Ok(build.engine(Arc::new(file.keep())))
}

/// The order in which changes of a file are committed, or the reason in words why it is not known.
fn order(
    fs: &FileSystems,
    fd: BorrowedFd<'_>,
    facts: &Facts,
    descriptor_min: u32,
) -> Result<Order, String> {
    let order = fs.order(|| sys::journal::order(fd, facts))?;
    let order = order.keep_open(descriptor_min)?;
    order.check()?;
    sys::journal::is_covered(fd)?;
    Ok(order)
}

/// The journal by which a file shares flushes. If it does not, returns the reason in words.
fn journal(
    fs: &FileSystems,
    file: &Syscall,
    facts: &Facts,
    descriptor_min: u32,
    order: Result<(), String>,
) -> Result<Arc<dyn Journal>, String> {
    if file.has_lease_of_caller() {
        return Err("a program that does not know the library has no file of it".into());
    }
    let fd = file.as_fd();
    order?;
    let check = || sys::journal::gains(facts);
    let make = || {
        let file = JournalFile::beside(fd, facts, descriptor_min)?;
        Ok(Arc::new(file) as Arc<dyn Journal>)
    };
    fs.journal(check, make)
}

/// Excludes other writers of a file, by the lock that `try_lock` takes, and refuses a file that the
/// kernel itself writes. The opener of a device has it exclusively already.
pub(crate) fn claim(
    fd: BorrowedFd<'_>,
    is_device: bool,
    try_lock: fn(BorrowedFd<'_>) -> io::Result<bool>,
) -> Result<(), ErrorKind> {
    refuse_image(fd)?;
    if is_device {
        return Ok(());
    }
    let locked = || match try_lock(fd) {
        Ok(false) => None,
        result => Some(result.map(drop)),
    };
    patiently(locked).ok_or(ErrorKind::Locked)?.map_err(|error| os_error::kind(&error))
}

/// The kernel itself writes the image behind a loop device.
fn refuse_image(fd: BorrowedFd<'_>) -> Result<(), ErrorKind> {
    if let Some(device) = sys::probe::loop_device_on(fd).map_err(|error| os_error::kind(&error))? {
        return Err(ErrorKind::Busy(format!("it is the image behind /dev/{device}")));
    }
    Ok(())
}

/// Retries until success, for a little longer than the kernel keeps a file or device of an ended
/// program. It dismantles the rings of its queues some time after the end (measured: 30 to 60 ms).
fn patiently<T>(mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
    let began = Instant::now();
    // An attempt itself may take long.
    for _ in 0..PATIENCE_NAPS {
        if let Some(done) = attempt() {
            return Some(done);
        }
        if began.elapsed() > PATIENCE {
            break;
        }
        nap(PATIENCE / PATIENCE_NAPS);
    }
    attempt()
}

/// A file or device that we may write. A drop unlocks a file. Closing alone does not, while a
/// program that is just starting has a copy of the descriptor.
struct Locked(Option<Syscall>);

impl Locked {
    /// Allows one writer process per file, and refuses a file that the kernel itself writes.
    fn new(fd: OwnedFd, facts: &Facts) -> Result<Self, ErrorKind> {
        claim(fd.as_fd(), facts.is_device, sys::try_lock)?;
        Ok(Self(Some(Syscall::new(fd))))
    }

    /// As `new`, where the caller's lease proves that there is no other opener. It tries the lock
    /// once: only a lock of the program itself can conflict, and that one stays.
    fn with_lease(fd: OwnedFd, facts: &Facts) -> Result<Self, ErrorKind> {
        refuse_image(fd.as_fd())?;
        if facts.is_device {
            return Ok(Self(Some(Syscall::new(fd))));
        }
        match sys::try_lock(fd.as_fd()) {
            Ok(true) => Ok(Self(Some(Syscall::with_lease_of_caller(fd)))),
            Ok(false) => Err(ErrorKind::Locked),
            Err(error) => Err(os_error::kind(&error)),
        }
    }

    fn backend(&self) -> &Syscall {
        self.0.as_ref().expect("only keep and drop take it")
    }

    /// Hands the duty to unlock over to the caller.
    fn keep(mut self) -> Syscall {
        self.0.take().expect("only keep and drop take it")
    }
}

impl AsFd for Locked {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.backend().as_fd()
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        if let Some(file) = self.0.take() {
            sys::unlock(file.as_fd());
        }
    }
}

/// Recovers a file before its first use.
pub(crate) fn recovered(
    file: &dyn Backend,
    fs: &FileSystems,
    path: &Arc<Path>,
    facts: &Facts,
) -> Result<(Recovery, Option<Marker>)> {
    let (recovery, held) = in_order(file, fs, path, facts, Recover::Truncate)?;
    if let Verdict::ModifiedExternally(why) = &recovery.verdict {
        return Err(Error::new(
            Operation::Open,
            path,
            None,
            ErrorKind::ModifiedExternally(why.clone()),
        ));
    }
    if recovery.needs_attention() {
        log::warn!("dioxide: {}: {recovery}", shown(&**path));
    }
    Ok((recovery, held))
}

fn in_order(
    file: &dyn Backend,
    fs: &FileSystems,
    path: &Arc<Path>,
    facts: &Facts,
    how: Recover,
) -> Result<(Recovery, Option<Marker>)> {
    let counted = |flush: &dyn Fn() -> io::Result<()>| {
        flushing(fs, path, Operation::Recover, flush)
            .map_err(|error| io::Error::other(error.kind().clone()))
    };
    let recovering = Recovering { backend: file, identity: facts.identity, counted: &counted };
    let once = || {
        recover_by(recovering, how)
            .map_err(|error| Error::new(Operation::Recover, path, None, os_error::kind(&error)))
    };
    // A program that is being killed or executed keeps its descriptors for a moment. No flush of
    // other files waits meanwhile.
    let unless_busy =
        || Some(once()).filter(|result| !matches!(result, Err(error) if is_busy(error)));
    patiently(unless_busy).unwrap_or_else(once)
}

fn is_busy(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Busy(_))
}

/// Returns how the space ahead is prepared, if that is possible. Never another kind than requested:
/// after a crash the program would have to know that.
fn prepared(
    growth: Growth,
    path: &Arc<Path>,
    members: &[(BorrowedFd<'_>, &Facts)],
) -> Option<Prepared> {
    let are_files = members.iter().all(|(_, facts)| !facts.is_device);
    let (wanted, other) = match growth {
        Growth::Unwritten if are_files => (Prepared::Unwritten, Prepared::Zeroed),
        Growth::Zeroed if are_files => (Prepared::Zeroed, Prepared::Unwritten),
        _ => return None,
    };
    let possible = |way| {
        members.iter().try_for_each(|(fd, facts)| sys::probe::can_grow_ahead(*fd, facts, way))
    };
    let Err(why) = possible(wanted) else { return Some(wanted) };
    let advice = match possible(other) {
        Ok(()) => format!("; Growth::{other:?} is possible"),
        Err(_) => String::new(),
    };
    log::warn!("dioxide: {}: no growth ahead: {why}{advice}", shown(&**path));
    None
}

/// Inspects a file that a crash may have left grown, and recovers it as far as `how` allows. See
/// [`Recovery`].
///
/// It opens and closes the file, which ends the POSIX locks (`F_SETLK`) that this process has on
/// it, even with [`Recover::Inspect`].
///
/// # Errors
///
/// - [`ErrorKind::Locked`]: a process has the file open for writing, and `how` is not
///   [`Recover::Inspect`].
/// - [`ErrorKind::Busy`]: the image behind a loop device.
/// - [`ErrorKind::Unsupported`]: a device, FIFO or socket.
/// - [`ErrorKind::Wedged`]: a flush failed on that file system.
/// - `EAGAIN`, with [`Recover::Inspect`]: a process changes the file so fast that no two looks
///   agree.
///
/// Or the kernel's error. A file that another program changed is no error: see the verdict.
pub fn recover(path: impl AsRef<Path>, how: Recover) -> Result<Recovery> {
    let path: Arc<Path> = path.as_ref().into();
    settle_own();
    let fail = |kind| Error::new(Operation::Recover, &path, None, kind);
    let found = find(&path).map_err(fail)?;
    if found.is_device() {
        return Err(fail(ErrorKind::Unsupported("a block device does not grow".into())));
    }
    let access = if how == Recover::Inspect { OFlags::RDONLY } else { OFlags::RDWR };
    let fd = found
        .open(access | OFlags::CLOEXEC | OFlags::NOCTTY, 0)
        .map_err(|errno| fail(ErrorKind::Os(errno.raw_os_error())))?;
    let facts = facts(&path, &fd)?;
    if how == Recover::Inspect {
        look(&Syscall::new(fd), facts.identity)
            .map(|(_, recovery)| recovery)
            .map_err(|error| fail(os_error::kind(&error)))
    } else {
        let fs =
            file_system(Process::current(), &path, Operation::Recover, facts.fs, facts.through)?;
        let file = Locked::new(fd, &facts).map_err(fail)?;
        in_order(file.backend(), &fs, &path, &facts, how).map(|(recovery, _)| recovery)
    }
}
