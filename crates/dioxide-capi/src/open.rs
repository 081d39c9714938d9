//! Opens files, volumes, and files inside volumes.

use crate::args::{self, give_handle};
use crate::error::{Result, answer, invalid};
use crate::file::dioxide_file;
use crate::options::{Wanted, dioxide_options, wanted};
use dioxide::OpenOptions;
use dioxide_ext::OpenInImage;
use std::ffi::{c_char, c_int};

/// Opens `path`, a regular file or a block device, for direct I/O.
///
/// `flags` and `mode` are those of open(2): O_RDONLY, or O_RDWR with O_CREAT, O_EXCL and O_TRUNC.
/// O_WRONLY is taken as O_RDWR, because recovery must read. O_DSYNC and O_SYNC mean
/// DIOXIDE_EVERY_WRITE. O_TMPFILE makes a file without a name in the directory `path`. O_DIRECT and
/// O_CLOEXEC always apply and may be left out; O_APPEND and other flags are refused. `options` may
/// be NULL for the defaults.
///
/// Opening for writing takes a lock against other processes: an OFD lock on one byte near the
/// largest offset. One process at a time holds a file, with any number of threads and handles. Then
/// it recovers the file after a crash, which `dioxide_recovery` reports, and makes the result
/// durable. A created name is durable on return.
///
/// The file is preallocated while it is open: other programs see the larger size until it is
/// closed. A process that ends without `dioxide_close` leaves it so; opening it again, or
/// dioxide_recover, recovers it.
///
/// # Return value
///
/// 0 with a handle in `*file`, to be closed by `dioxide_close`; or a negative errno with NULL
/// there. A file may be opened several times in one process: all handles see one length.
///
/// # Errors
///
/// - EAGAIN: another process has the file open for writing.
/// - EBUSY: the block device is in use, or the file is the image behind a loop device. Or a crash
///   left the file preallocated, and another process has it open for writing.
/// - E2BIG: `options` has members that this version of the library does not know.
/// - EINVAL: a pointer is NULL, or flags or options are invalid.
/// - EIO: a flush failed on that file system before; mount it anew.
/// - EOPNOTSUPP: no direct I/O here, or neither a file nor a device.
/// - EUCLEAN: a crash left the file preallocated, and another program changed it since. Open it
///   O_RDONLY to inspect it, or recover it by force.
/// - Others: errors of open(2), such as ENOENT, EEXIST and EACCES.
///
/// # Thread safety
///
/// Any thread. Waits up to a quarter of a second for a lock or a busy device. After a fork the
/// child has the locks of the parent's writing handles too, until it ends or calls exec. Meanwhile
/// neither can open such a file for writing again: fork before this call.
///
/// # Safety
///
/// `path` is a string; `options` has as many bytes as its size says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_open(
    path: *const c_char,
    flags: c_int,
    mode: u32,
    options: *const dioxide_options,
    file: *mut *mut dioxide_file,
) -> c_int {
    answer("dioxide_open", || {
        // SAFETY: as the caller promises.
        unsafe {
            give_handle(file, "file", || {
                let Wanted { options, temporary } = wanted(flags, mode, options)?;
                let path = args::path(path, "path")?;
                let open = if temporary { OpenOptions::open_temporary } else { OpenOptions::open };
                Ok(dioxide_file(open(&options, path)?))
            })?;
        }
        Ok(0)
    })
}

/// Opens several files, or several block devices, as one striped volume with chunks of
/// `chunk_bytes` bytes.
///
/// `paths` has `count` members, the same in the same order each time. `chunk_bytes` is a multiple
/// of 4096 and of the file systems' blocks, usually 65536 to 1048576.
///
/// With O_CREAT, files that do not exist or are empty become a volume. So do devices whose first
/// 4096 bytes are zeros; other content is refused. Each member begins with a chunk that holds a
/// header. It identifies members that are missing, misplaced, of another volume or outdated.
///
/// A flush covers all members, and fails for all. Everything else is as with `dioxide_open`, except
/// O_TMPFILE, which is refused.
///
/// # Return value
///
/// As `dioxide_open`.
///
/// # Errors
///
/// As `dioxide_open`, and:
/// - EINVAL: also a chunk that is not such a multiple, or more than 64 paths.
/// - EOPNOTSUPP: files and devices mixed, a chunk longer than 1 TiB, or no member.
/// - EUCLEAN: these are not the members of one volume, in this order.
///
/// # Thread safety
///
/// As `dioxide_open`.
///
/// # Safety
///
/// `paths` has `count` strings; `options` has as many bytes as its size says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_open_striped(
    paths: *const *const c_char,
    count: usize,
    chunk_bytes: u64,
    flags: c_int,
    mode: u32,
    options: *const dioxide_options,
    file: *mut *mut dioxide_file,
) -> c_int {
    answer("dioxide_open_striped", || {
        // SAFETY: as the caller promises.
        unsafe {
            give_handle(file, "file", || {
                let options = named(wanted(flags, mode, options)?)?;
                Ok(dioxide_file(options.open_striped(&args::paths(paths, count)?, chunk_bytes)?))
            })?;
        }
        Ok(0)
    })
}

/// Opens the regular file `path` inside of `volume`, an unmounted ext2 or ext3 file system: an
/// image file, or a block device.
///
/// `path` begins at the root of the volume. `flags` are as with `dioxide_open`, without O_CREAT and
/// O_TMPFILE: files cannot be created. Offsets and lengths are arbitrary, as in other files. The
/// file is not preallocated.
///
/// Files of one volume may be open at the same time in one process. Another process is refused
/// while any of them is open for writing. After the last close e2fsck finds nothing. After a crash,
/// run `e2fsck -p` before the volume is opened again; the volume then has every durable byte.
///
/// # Return value
///
/// As `dioxide_open`.
///
/// # Errors
///
/// As `dioxide_open` for the volume, and:
/// - EBUSY: for writing, while this process has files of the volume open only for reading.
/// - EOPNOTSUPP: no ext2 or ext3, an unsupported feature, a volume that must be checked first, a
///   path that names no regular file, or O_CREAT.
/// - EUCLEAN: the volume is inconsistent.
///
/// # Thread safety
///
/// As `dioxide_open`. In the child of a fork, handles of the parent fail with EBADF, also to read.
///
/// # Safety
///
/// Both paths are strings; `options` has as many bytes as its size says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dioxide_open_in_image(
    volume: *const c_char,
    path: *const c_char,
    flags: c_int,
    options: *const dioxide_options,
    file: *mut *mut dioxide_file,
) -> c_int {
    answer("dioxide_open_in_image", || {
        // SAFETY: as the caller promises.
        unsafe {
            give_handle(file, "file", || {
                let options = named(wanted(flags, 0, options)?)?;
                let volume = args::path(volume, "volume")?;
                Ok(dioxide_file(options.open_in_image(volume, args::path(path, "path")?)?))
            })?;
        }
        Ok(0)
    })
}

fn named(wanted: Wanted) -> Result<OpenOptions> {
    match wanted.temporary {
        true => Err(invalid("O_TMPFILE is for dioxide_open")),
        false => Ok(wanted.options),
    }
}
