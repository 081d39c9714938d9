//! Opening: find out what the path is, lock it, bring it into order, and only then let it be used.

use crate::backend::syscall::Syscall;
use crate::engine::process::{FileSystem, Process};
use crate::engine::recover::{Recover, bring_into_order};
use crate::engine::registry::Key;
use crate::engine::{Engine, Ground, Parts, os_kind};
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::file::Inner;
use crate::growth::Wishes;
use crate::marker::Prepared;
use crate::options::{Durability, Growth, OpenOptions};
use crate::reader::Reader;
use crate::recovery::{Recovery, Verdict};
use crate::sys;
use crate::sys::probe::Facts;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

const DIRECT: OFlags = OFlags::DIRECT.union(OFlags::CLOEXEC).union(OFlags::NOCTTY);

/// Opens `path` as `options` say.
pub(crate) fn open(options: &OpenOptions, path: &Path) -> Result<Inner> {
    let path: Arc<Path> = path.into();
    if !options.write {
        return open_read_only(&path);
    }
    let process = Process::current();
    let inner = open_writing(options, process, &path)?;
    if let (true, Inner::Shared { engine, .. }) = (options.truncate, &inner) {
        engine.set_len(0).inspect_err(|_| drop(process.registry.leave(key_of(&inner))))?;
    }
    Ok(inner)
}

fn key_of(inner: &Inner) -> Key {
    match inner {
        Inner::Shared { key, .. } => *key,
        Inner::Reader(_) => unreachable!("readers are not registered"),
    }
}

/// Opens a file without a name in `dir`.
pub(crate) fn temporary(options: &OpenOptions, dir: &Path) -> Result<Inner> {
    let path: Arc<Path> = dir.into();
    let flags = DIRECT | OFlags::RDWR | OFlags::TMPFILE;
    let fd = rustix::fs::open(dir, flags, Mode::from_raw_mode(options.mode)).map_err(|errno| {
        let unsupported = matches!(errno, Errno::OPNOTSUPP | Errno::ISDIR);
        let kind = match unsupported {
            true => ErrorKind::Unsupported("no temporary files (O_TMPFILE) on this file system".into()),
            false => ErrorKind::Os(errno.raw_os_error()),
        };
        Error::new(Operation::Open, &path, None, kind)
    })?;
    adopt(options, Process::current(), &path, fd)
}

fn open_read_only(path: &Arc<Path>) -> Result<Inner> {
    let fail = |kind| Error::new(Operation::Open, path, None, kind);
    let fd = rustix::fs::open(&**path, DIRECT | OFlags::RDONLY, Mode::empty())
        .map_err(|errno| fail(refusal(errno)))?;
    let facts = facts(path, &fd)?;
    let process = Process::current();
    let key = key(&facts);
    match process.registry.join(key) {
        Some(engine) => Ok(Inner::Shared { engine, key, process, writable: false, durable: false }),
        None => Ok(Inner::Reader(Reader::new(Syscall::new(fd), path.clone(), facts))),
    }
}

/// Joins the handles of a file that is open already, or opens it. Looks at the path first: closing a second
/// descriptor of a file would end the POSIX locks that the program itself may hold on it.
fn open_writing(options: &OpenOptions, process: &'static Process, path: &Arc<Path>) -> Result<Inner> {
    let stat = rustix::fs::stat(&**path).ok();
    if let Some(stat) = stat.filter(|_| !options.create_new) {
        let key = key_of_stat(&stat);
        if let Some(engine) = process.registry.join(key) {
            return Ok(shared(options, process, key, engine));
        }
    }
    let is_device = stat.is_some_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice);
    let (fd, created) = open_or_create(options, path, is_device)?;
    if created {
        make_name_stable(path, &fd)?;
    }
    adopt(options, process, path, fd)
}

fn open_or_create(options: &OpenOptions, path: &Arc<Path>, is_device: bool) -> Result<(OwnedFd, bool)> {
    // O_EXCL without O_CREAT: a device that is mounted, or otherwise held, is refused.
    let plain = DIRECT | OFlags::RDWR | if is_device { OFlags::EXCL } else { OFlags::empty() };
    let new = DIRECT | OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
    let open = |flags| rustix::fs::open(&**path, flags, Mode::from_raw_mode(options.mode));
    let result = match options {
        OpenOptions { create_new: true, .. } => open(new).map(|fd| (fd, true)),
        OpenOptions { create: true, .. } => match open(new) {
            Err(Errno::EXIST) => open(plain).map(|fd| (fd, false)),
            other => other.map(|fd| (fd, true)),
        },
        _ => open(plain).map(|fd| (fd, false)),
    };
    result.map_err(|errno| {
        let kind = match errno {
            Errno::BUSY => ErrorKind::Busy("the device is mounted or held by another program".into()),
            other => refusal(other),
        };
        Error::new(Operation::Open, path, None, kind)
    })
}

fn refusal(errno: Errno) -> ErrorKind {
    match errno {
        Errno::INVAL => ErrorKind::Unsupported("this file system does not take O_DIRECT".into()),
        other => ErrorKind::Os(other.raw_os_error()),
    }
}

/// A new file survives a crash once its directory does.
fn make_name_stable(path: &Arc<Path>, fd: &OwnedFd) -> Result<()> {
    rustix::fs::fsync(fd)
        .map_err(std::io::Error::from)
        .and_then(|()| sys::probe::parent_directory(path)?.sync_all())
        .map_err(|error| Error::new(Operation::Open, path, None, os_kind(&error)))
}

fn facts(path: &Arc<Path>, fd: &OwnedFd) -> Result<Facts> {
    sys::probe::facts(fd.as_fd()).map_err(|error| {
        let kind = match error.raw_os_error() {
            Some(libc::EINVAL) => ErrorKind::Unsupported("neither a regular file nor a block device".into()),
            Some(libc::EOPNOTSUPP) => ErrorKind::Unsupported("no direct I/O on this file".into()),
            _ => os_kind(&error),
        };
        Error::new(Operation::Open, path, None, kind)
    })
}

fn key(facts: &Facts) -> Key {
    Key { dev: facts.dev, inode: (!facts.is_device).then_some(facts.identity.inode) }
}

fn key_of_stat(stat: &rustix::fs::Stat) -> Key {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::BlockDevice => Key { dev: stat.st_rdev, inode: None },
        _ => Key { dev: stat.st_dev, inode: Some(stat.st_ino) },
    }
}

fn shared(options: &OpenOptions, process: &'static Process, key: Key, engine: Arc<Engine<Syscall>>) -> Inner {
    let durable = options.durability == Durability::EveryWrite;
    Inner::Shared { engine, key, process, writable: true, durable }
}

/// Makes a file out of an open descriptor.
fn adopt(options: &OpenOptions, process: &'static Process, path: &Arc<Path>, fd: OwnedFd) -> Result<Inner> {
    let facts = facts(path, &fd)?;
    let key = key(&facts);
    let engine = process.registry.open(key, || make_engine(options, process, path, fd, facts))?;
    Ok(shared(options, process, key, engine))
}

fn make_engine(
    options: &OpenOptions,
    process: &'static Process,
    path: &Arc<Path>,
    fd: OwnedFd,
    facts: Facts,
) -> Result<Engine<Syscall>> {
    let fail = |kind| Error::new(Operation::Open, path, None, kind);
    let fs = process.file_system(facts.dev, facts.mount).map_err(|cause| fail(ErrorKind::Wedged(cause)))?;
    refuse_if_in_use(&fd, &facts).map_err(fail)?;
    let prepared = prepared(options.growth, path, &fd, &facts);
    let backend = Syscall::new(fd);
    let (recovery, held) = match facts.is_device {
        true => (Recovery::clean(facts.len), None),
        false => recovered(&backend, &fs, path, &facts)?,
    };
    Ok(Engine::new(Parts {
        backend,
        path: path.clone(),
        process,
        fs,
        ground: Ground {
            identity: facts.identity,
            limits: facts.limits,
            append_unit: facts.alignment.append,
            is_device: facts.is_device,
            prepared,
            epoch: sys::epoch(),
        },
        alignment: facts.alignment,
        wishes: wishes(options, prepared, &facts),
        recovery,
        held,
    }))
}

/// One writer process per file; and no file that the kernel itself writes.
fn refuse_if_in_use(fd: &OwnedFd, facts: &Facts) -> Result<(), ErrorKind> {
    if let Some(device) = sys::probe::loop_device_on(fd.as_fd()) {
        return Err(ErrorKind::Busy(format!("it is the image behind /dev/{device}")));
    }
    if facts.is_device {
        return Ok(());
    }
    match sys::try_lock(fd.as_fd()) {
        Ok(true) => Ok(()),
        Ok(false) => Err(ErrorKind::Locked),
        Err(error) => Err(os_kind(&error)),
    }
}

fn recovered(
    backend: &Syscall,
    fs: &FileSystem,
    path: &Arc<Path>,
    facts: &Facts,
) -> Result<(Recovery, Option<crate::marker::Marker>)> {
    let error = |error: &std::io::Error| Error::new(Operation::Recover, path, None, os_kind(error));
    let mut found = None;
    fs.flushing(
        || {
            bring_into_order(backend, facts.identity, facts.alignment.append, Recover::Cut)
                .map(|result| found = Some(result))
        },
        |failure| (failure.raw_os_error() == Some(libc::EIO)).then(|| Arc::new(error(failure))),
    )
    .map_err(|failure| error(&failure))?;
    let (recovery, held) = found.expect("set on success");
    if let Verdict::Doubtful(why) = &recovery.verdict {
        return Err(Error::new(Operation::Open, path, None, ErrorKind::Doubtful(why.clone())));
    }
    if recovery.needs_attention() {
        log::warn!("dioxide: {}: {recovery}", path.display());
    }
    Ok((recovery, held))
}

fn prepared(growth: Growth, path: &Arc<Path>, fd: &OwnedFd, facts: &Facts) -> Option<Prepared> {
    if growth == Growth::None || facts.is_device {
        return None;
    }
    if let Err(why) = sys::probe::can_grow_ahead(fd.as_fd(), facts) {
        log::warn!("dioxide: {}: no growth ahead: {why}", path.display());
        return None;
    }
    Some(if growth == Growth::Zeroed { Prepared::Zeroed } else { Prepared::Unwritten })
}

fn wishes(options: &OpenOptions, prepared: Option<Prepared>, facts: &Facts) -> Wishes {
    let zeroed = prepared == Some(Prepared::Zeroed);
    Wishes {
        cap_bytes: options.growth_cap_bytes.max(facts.alignment.append),
        capacity_bytes: options.capacity_bytes,
        unit_bytes: facts.alignment.append,
        low_water_quarters: if zeroed { 3 } else { 2 },
    }
}

/// Looks at a file that a crash may have left grown, and does what `how` allows. See [`Recovery`].
///
/// # Errors
///
/// [`ErrorKind::Locked`] when a process has it open for writing and `how` is not [`Recover::Inspect`], and what
/// the kernel answers. A doubtful file is no error: see the verdict.
pub fn recover(path: impl AsRef<Path>, how: Recover) -> Result<Recovery> {
    let path: Arc<Path> = path.as_ref().into();
    let fail = |kind| Error::new(Operation::Recover, &path, None, kind);
    let access = if how == Recover::Inspect { OFlags::RDONLY } else { OFlags::RDWR };
    let flags = access | OFlags::CLOEXEC | OFlags::NOCTTY;
    let fd = rustix::fs::open(&*path, flags, Mode::empty())
        .map_err(|errno| fail(ErrorKind::Os(errno.raw_os_error())))?;
    let facts = facts(&path, &fd)?;
    if facts.is_device {
        return Err(fail(ErrorKind::Unsupported("a block device does not grow".into())));
    }
    if how != Recover::Inspect {
        let process = Process::current();
        process.file_system(facts.dev, facts.mount).map_err(|cause| fail(ErrorKind::Wedged(cause)))?;
        refuse_if_in_use(&fd, &facts).map_err(fail)?;
    }
    let backend = Syscall::new(fd);
    let result = bring_into_order(&backend, facts.identity, facts.alignment.append, how)
        .map_err(|error| fail(os_kind(&error)));
    result.map(|(recovery, _)| recovery)
}
