//! Files that change as a whole: [`replace`] and [`copy`].

use crate::api::file::File;
use crate::api::options::OpenOptions;
use crate::api::stream::{Reader, Writer};
use crate::engine::handle::FileHandle;
use crate::error::{ErrorKind, Operation};
use crate::open::flushing;
use crate::os_error::flushed;
use crate::rules::policy::Growth;
use crate::sys::probe::parent_directory;
use crate::text::shown;
use rustix::fs::{Gid, Mode, SeekFrom as Seek, Uid};
use std::fs::{self, Metadata};
use std::io::{self, BufRead, Seek as _, SeekFrom, Write};
use std::ops::{ControlFlow, Range};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf, absolute};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

/// Replaces the content of a file as a whole, durably. After a crash the file has its old content
/// or the new one, never a mixture.
///
/// Writes a temporary file in the same directory, makes it durable, renames it over `path`, and
/// syncs the directory. The name of the temporary file begins with a dot and ends with `.tmp`. An
/// error removes it; a kill or a crash may leave it.
///
/// ```no_run
/// use std::io::Write;
///
/// dioxide::replace("config.json", |writer| writer.write_all(b"{}"))?;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// The new file keeps the permission bits of an old one (`rwxrwxrwx`), and its owner and group
/// where that is permitted. Without the group, it gives the group no rights. It does not keep
/// extended attributes and hard links. A symbolic link stays, and its target is replaced; one
/// without a target is an error. Programs that have the old file open keep it.
///
/// # Errors
///
/// The error of `write`, of the [`Writer`], or of the kernel. The old file then stays, unless the
/// sync of the directory failed: after a crash it may be either file. `write` must not keep a copy
/// of the file's handle: the file would not end with its last byte.
pub fn replace<T>(
    path: impl AsRef<Path>,
    write: impl FnOnce(&mut Writer) -> io::Result<T>,
) -> io::Result<T> {
    replace_like(path.as_ref(), None, write)
}

/// Copies a regular file, durably and by direct I/O, and returns its length in bytes. `to` is
/// [replaced](replace) as a whole.
///
/// Reads and writes overlap, in transfers of 1 MiB. The copy gets the permission bits of `from`,
/// and holes stay holes. Bytes that another program appends meanwhile are not copied. The copy
/// shares no space with `from`, also where the file system could.
///
/// # Errors
///
/// Those of [`File::open`], [`Reader`] and [`replace`].
///
/// - `InvalidInput`: both are the same file, or one is not a regular file.
/// - `InvalidData`: a program writes `from` with zeroed or recycled space, or was killed. Only that
///   program knows the end. It must open and close the file first.
/// - `UnexpectedEof`: `from` became shorter meanwhile.
pub fn copy(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<u64> {
    copy_with_progress(from, to, |_, _| ControlFlow::Continue(()))
}

/// As [`copy`]. Calls `progress` about once for each MiB, with the position and the length.
///
/// # Errors
///
/// As [`copy`]. `Interrupted`: `progress` returned [`ControlFlow::Break`]. `to` stays as it was.
pub fn copy_with_progress(
    from: impl AsRef<Path>,
    to: impl AsRef<Path>,
    mut progress: impl FnMut(u64, u64) -> ControlFlow<()>,
) -> io::Result<u64> {
    let metadata = fs::metadata(&from).map_err(|error| of(from.as_ref(), error))?;
    if !metadata.is_file() {
        return Err(not_regular(from.as_ref()));
    }
    let id = |metadata: &Metadata| (metadata.dev(), metadata.ino());
    if fs::metadata(&to).is_ok_and(|to| id(&to) == id(&metadata)) {
        let why = format!("it is the same file as {}", shown(from.as_ref()));
        return Err(of(to.as_ref(), io::Error::new(io::ErrorKind::InvalidInput, why)));
    }
    let source = File::open(&from)?;
    check_end(&source).map_err(|error| of(from.as_ref(), error))?;
    let len = source.len()?;
    let mut reader = Reader::new(source);
    replace_like(to.as_ref(), Some(&metadata), |writer| {
        // So no write moves EOF, and holes need nothing more.
        writer.get_ref().set_len(len)?;
        let mut position = 0;
        while let Some(data) = next_data(reader.get_ref(), position, len)? {
            reader.seek(SeekFrom::Start(data.start))?;
            writer.seek(SeekFrom::Start(data.start))?;
            position = data.start;
            while position < data.end {
                if progress(position, len).is_break() {
                    return Err(io::ErrorKind::Interrupted.into());
                }
                let bytes = reader.fill_buf()?;
                let count = (data.end - position).min(bytes.len() as u64) as usize;
                if count == 0 {
                    return Err(of(from.as_ref(), io::ErrorKind::UnexpectedEof.into()));
                }
                writer.write_all(&bytes[..count])?;
                reader.consume(count);
                position += count as u64;
            }
        }
        if reader.get_ref().len()? < len {
            return Err(of(from.as_ref(), io::ErrorKind::UnexpectedEof.into()));
        }
        match progress(len, len) {
            ControlFlow::Continue(()) => Ok(len),
            ControlFlow::Break(()) => Err(io::ErrorKind::Interrupted.into()),
        }
    })
}

/// Fails if only the program that wrote the file can find its end.
fn check_end(file: &File) -> io::Result<()> {
    let FileHandle::Reader(reader) = file.inner() else { return Ok(()) };
    match reader.unknown_end()? {
        None => Ok(()),
        Some(Range { start, end }) => {
            let why = format!(
                "it ends between {start} and {end} bytes; its own program must open and close it \
                 before a copy"
            );
            Err(io::Error::new(io::ErrorKind::InvalidData, why))
        }
    }
}

/// The first range of data at or behind `from`, up to `len`.
fn next_data(file: &File, from: u64, len: u64) -> io::Result<Option<Range<u64>>> {
    if from >= len {
        return Ok(None);
    }
    let start = match rustix::fs::seek(file, Seek::Data(from)) {
        Ok(start) if start < len => start,
        Ok(_) | Err(rustix::io::Errno::NXIO) => return Ok(None),
        // The file system knows no holes.
        Err(rustix::io::Errno::INVAL) => return Ok(Some(from..len)),
        Err(error) => return Err(error.into()),
    };
    match rustix::fs::seek(file, Seek::Hole(start)) {
        Ok(end) => Ok(Some(start..end.min(len))),
        // The file became shorter.
        Err(rustix::io::Errno::NXIO) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// As [`replace`]. The new file has the permission bits of `like`, or else of the old file.
fn replace_like<T>(
    path: &Path,
    like: Option<&Metadata>,
    write: impl FnOnce(&mut Writer) -> io::Result<T>,
) -> io::Result<T> {
    let path = match fs::canonicalize(path) {
        Ok(target) => target,
        // A link without a target.
        Err(error) if fs::symlink_metadata(path).is_ok() => return Err(of(path, error)),
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(of(path, error)),
        // The name of a directory that is not there.
        Err(_) if names_a_directory(path) => return Err(not_regular(path)),
        // The working directory may change.
        Err(_) => absolute(path).map_err(|error| of(path, error))?,
    };
    let old = match fs::metadata(&path) {
        Ok(old) if old.is_file() => Some(old),
        Ok(_) => return Err(not_regular(&path)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(of(&path, error)),
    };
    let mode = like.or(old.as_ref()).map(|it| it.permissions().mode() & 0o777);
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(if mode.is_some() { 0o600 } else { 0o666 });
    // Nothing recovers this file, and most are short.
    options.growth(Growth::None).temporary();
    let directory = parent_directory(&path).map_err(|error| of(&path, error))?;
    // The file is declared before the writer, so that it outlives it.
    let (mut temporary, file) = Temporary::create(&path, &options)?;
    let mut writer = Writer::new(file);
    let result = write(&mut writer)?;
    let file = writer.finish()?;
    let has_group = old.as_ref().is_none_or(|old| give(&file, old));
    if let Some(mode) = mode {
        let mode = Mode::from_raw_mode(if has_group { mode } else { mode & !0o070 });
        rustix::fs::fchmod(&file, mode).map_err(|errno| of(&temporary.path, errno.into()))?;
    }
    let FileHandle::Writer { engine, .. } = file.inner() else { unreachable!("it writes") };
    let file_systems = engine.file_systems().clone();
    file.close()?;
    fs::rename(&temporary.path, &path).map_err(|error| of(&path, error))?;
    temporary.exists = false;
    flushing(&file_systems, &path.into(), Operation::Close, || flushed(|| directory.sync_all()))?;
    Ok(result)
}

/// An error with its path.
fn of(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", shown(path)))
}

fn names_a_directory(path: &Path) -> bool {
    let path = path.as_os_str().as_bytes();
    path.ends_with(b"/") || path.ends_with(b"/.")
}

fn not_regular(path: &Path) -> io::Error {
    of(path, io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"))
}

/// Gives the file the owner and group of the old one, as far as that is permitted. Returns whether
/// it has the group.
fn give(file: &File, old: &Metadata) -> bool {
    let (owner, group) = (Some(Uid::from_raw(old.uid())), Some(Gid::from_raw(old.gid())));
    // Only root may give files away. Some file systems refuse any change.
    rustix::fs::fchown(file, owner, group).is_ok()
        || rustix::fs::fchown(file, None, group).is_ok()
        || rustix::fs::fstat(file).is_ok_and(|stat| stat.st_gid == old.gid())
}

/// A temporary file beside another one. Dropped, it is removed.
struct Temporary {
    path: PathBuf,
    exists: bool,
}

impl Temporary {
    fn create(beside: &Path, options: &OpenOptions) -> io::Result<(Self, File)> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = beside.file_name().ok_or_else(|| not_regular(beside))?;
        // The longest name has 255 bytes.
        let name = String::from_utf8_lossy(&name.as_bytes()[..name.len().min(64)]).into_owned();
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = beside.with_file_name(format!(".{name}.{}-{number}.tmp", process::id()));
            let opened = options.open(&path);
            // The kernel refuses O_DIRECT only once it has created the file. Other errors may come
            // before it looks at the name, which a process with the same id may have.
            let exists = match &opened {
                Ok(_) => true,
                Err(error) => matches!(error.kind(), ErrorKind::Unsupported(_)),
            };
            let temporary = Self { path, exists };
            match opened {
                Ok(file) => return Ok((temporary, file)),
                // A killed process with the same id has left it.
                Err(error) if error.errno() == libc::EEXIST => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if self.exists {
            let _ = fs::remove_file(&self.path);
        }
    }
}
