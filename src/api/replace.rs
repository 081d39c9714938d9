//! Files that change as a whole: [`replace`] and [`copy`].

use crate::api::file::File;
use crate::api::options::OpenOptions;
use crate::api::stream::{Reader, Writer};
use crate::engine::handle::FileHandle;
use crate::error::Operation;
use crate::open::flushing;
use crate::os_error::flushed;
use crate::rules::policy::Growth;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sys::probe::parent_directory;
use crate::text::shown;
use rustix::fs::{Gid, SeekFrom as Seek, Uid};
use std::fs::{self, Metadata, Permissions};
use std::io::{self, BufRead, Seek as _, SeekFrom, Write};
use std::ops::{ControlFlow, Range};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process;

/// Replaces the content of a file as a whole, durably. After a crash the file has its old content
/// or the new one, never a mixture.
///
/// Writes a temporary file in the same directory, makes it stable, renames it over `path`, and
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
/// The new file keeps the permission bits of an old one, and its owner where that is permitted. It
/// does not keep extended attributes and hard links. A symbolic link stays, and its target is
/// replaced. Programs that have the old file open keep it.
///
/// # Errors
///
/// The error of `write`, of the [`Writer`], or of the kernel. The old file then stays, unless the
/// sync of the directory failed: after a crash it may be either file.
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
/// Those of [`File::open`], [`Reader`] and [`replace`]. `UnexpectedEof`: `from` became shorter
/// meanwhile.
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
    let source = File::open(&from)?;
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
                let count = bytes.len().min((data.end - position) as usize);
                if count == 0 {
                    return Err(of(from.as_ref(), io::ErrorKind::UnexpectedEof.into()));
                }
                writer.write_all(&bytes[..count])?;
                reader.consume(count);
                position += count as u64;
            }
        }
        let _ = progress(len, len);
        Ok(len)
    })
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
    let end = rustix::fs::seek(file, Seek::Hole(start))?;
    Ok(Some(start..end.min(len)))
}

/// As [`replace`]. The new file has the permission bits of `like`, or else of the old file.
fn replace_like<T>(
    path: &Path,
    like: Option<&Metadata>,
    write: impl FnOnce(&mut Writer) -> io::Result<T>,
) -> io::Result<T> {
    // A symbolic link stays. Without a file there, its name is the given one.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.into());
    let old = match fs::metadata(&path) {
        Ok(old) if old.is_file() => Some(old),
        Ok(_) => return Err(not_regular(&path)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(of(&path, error)),
    };
    let mode = like.or(old.as_ref()).map(|it| it.permissions().mode() & 0o7777);
    // Declared before the writer, so that it outlives it.
    let mut temporary = Temporary::new(&path)?;
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(if mode.is_some() { 0o600 } else { 0o666 });
    // Nothing recovers this file, and most are short.
    options.growth(Growth::None);
    let mut writer = Writer::new(options.open(&temporary.path)?);
    temporary.exists = true;
    let result = write(&mut writer)?;
    let file = writer.finish()?;
    if let Some(old) = &old {
        let owner = (Some(Uid::from_raw(old.uid())), Some(Gid::from_raw(old.gid())));
        // Only root may give files away.
        let _ = rustix::fs::fchown(&file, owner.0, owner.1);
    }
    if let Some(mode) = mode {
        let permissions = Permissions::from_mode(mode);
        fs::set_permissions(&temporary.path, permissions).map_err(|it| of(&temporary.path, it))?;
    }
    let FileHandle::Shared { engine, .. } = file.inner() else { unreachable!("it writes") };
    let file_systems = engine.file_systems().clone();
    file.close()?;
    fs::rename(&temporary.path, &path).map_err(|error| of(&path, error))?;
    temporary.exists = false;
    let directory = parent_directory(&path).map_err(|error| of(&path, error))?;
    flushing(&file_systems, &path.into(), Operation::Close, || flushed(|| directory.sync_all()))?;
    Ok(result)
}

/// An error with its path.
fn of(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", shown(path)))
}

fn not_regular(path: &Path) -> io::Error {
    of(path, io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"))
}

/// A temporary file beside `path`. Dropped, it is removed.
struct Temporary {
    path: PathBuf,
    exists: bool,
}

impl Temporary {
    fn new(beside: &Path) -> io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = beside.file_name().ok_or_else(|| not_regular(beside))?;
        // The longest name has 255 bytes.
        let name = String::from_utf8_lossy(&name.as_bytes()[..name.len().min(64)]).into_owned();
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let unique = format!(".{name}.{}-{number}.tmp", process::id());
        Ok(Self { path: beside.with_file_name(unique), exists: false })
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if self.exists {
            let _ = fs::remove_file(&self.path);
        }
    }
}
