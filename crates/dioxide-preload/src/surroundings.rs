//! Access to a file by this process that the library does not see. It prevents a take-over.

use rustix::fs::{CWD, FileType};
use std::ffi::c_int;
use std::fs;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;

use crate::files::Key;

/// An obstacle to a take-over.
pub enum Found {
    /// Another descriptor of the file.
    Descriptor,
    /// Another obstacle, as text.
    Other(&'static str),
}

const USES_RINGS: &str = "the program uses io_uring";

/// Returns the open descriptor numbers, and that of the look itself. Those of the process are
/// not to be seen once its first thread has ended.
pub fn numbers() -> io::Result<Vec<c_int>> {
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    let entries = fs::read_dir("/proc/thread-self/fd")?.collect::<io::Result<Vec<_>>>()?;
    Ok(entries.into_iter().filter_map(number).collect())
}

/// Searches for obstacles. `is_known` returns whether the library knows a descriptor. Only
/// descriptors of the file and of rings are its arguments.
pub fn look(key: Key, is_known: impl Fn(c_int) -> bool) -> io::Result<Option<Found>> {
    for fd in numbers()? {
        // SAFETY: fstat changes nothing, and fails for a number that is not open.
        let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
        let Ok(stat) = rustix::fs::fstat(borrowed) else { continue };
        if Key::of(&stat) == Some(key) && !is_known(fd) {
            return Ok(Some(Found::Descriptor));
        }
        // An anonymous inode has no type.
        let is_bare = FileType::from_raw_mode(stat.st_mode) == FileType::Unknown;
        let is_ring = || link(fd).is_ok_and(|link| link.windows(8).any(|part| part == b"io_uring"));
        if is_bare && is_ring() && !is_known(fd) {
            return Ok(Some(Found::Other(USES_RINGS)));
        }
    }
    let maps = fs::read("/proc/thread-self/maps")?;
    Ok(mapped(key, &String::from_utf8_lossy(&maps)).map(Found::Other))
}

fn link(fd: c_int) -> io::Result<Vec<u8>> {
    Ok(rustix::fs::readlinkat(CWD, format!("/proc/thread-self/fd/{fd}"), Vec::new())?.into_bytes())
}

/// Whether `/proc/self/maps`, as text, has a mapping of the file, a context of libaio or a ring. A
/// program may close the descriptor of its ring. The engine has no ring here.
fn mapped(key: Key, maps: &str) -> Option<&'static str> {
    for line in maps.lines() {
        let mut fields = line.split_ascii_whitespace().skip(3);
        let (Some(device), Some(inode)) = (fields.next(), fields.next()) else { continue };
        match fields.next() {
            Some("/[aio]") => return Some("the program uses libaio"),
            Some("anon_inode:[io_uring]") => return Some(USES_RINGS),
            _ => {}
        }
        let Some((major, minor)) = device.split_once(':') else { continue };
        let number = |hex| u32::from_str_radix(hex, 16).unwrap_or(0);
        let (major, minor) = (number(major), number(minor));
        // File systems without a device, such as btrfs, may show another number here than in fstat.
        let same_device = major == 0 || rustix::fs::makedev(major, minor) == key.dev;
        if same_device && key.inode.is_some_and(|wanted| inode.parse() == Ok(wanted)) {
            return Some("the file is mapped");
        }
    }
    None
}

/// Returns the paths of the files mapped in this range.
pub fn files_mapped_at(start: usize, len: usize) -> io::Result<Vec<PathBuf>> {
    let maps = fs::read("/proc/thread-self/maps")?;
    Ok(paths_at(start..start.saturating_add(len), &String::from_utf8_lossy(&maps)))
}

/// The same, from the text of `/proc/self/maps`.
fn paths_at(range: Range<usize>, maps: &str) -> Vec<PathBuf> {
    let path = |line: &str| {
        let (addresses, rest) = line.split_once(' ')?;
        let (first, end) = addresses.split_once('-')?;
        let address = |hex| usize::from_str_radix(hex, 16).ok();
        let overlaps = address(first)? < range.end && range.start < address(end)?;
        rest.find('/').filter(|_| overlaps).map(|path| rest[path..].into())
    };
    maps.lines().filter_map(path).collect()
}

/// Returns the path of an open file.
pub fn path_of(fd: c_int) -> io::Result<PathBuf> {
    use std::os::unix::ffi::OsStringExt;
    Ok(std::ffi::OsString::from_vec(link(fd)?).into())
}

/// Returns the key of a path, if it is a regular file or a block device.
pub fn key_of_path(dir: c_int, path: &std::ffi::CStr, follow: bool) -> Option<Key> {
    let flags =
        if follow { rustix::fs::AtFlags::empty() } else { rustix::fs::AtFlags::SYMLINK_NOFOLLOW };
    // SAFETY: statat changes nothing, and fails for a number that is not open. CWD replaces a
    // negative number, which an absolute path ignores.
    let dir = unsafe { if dir < 0 { CWD } else { BorrowedFd::borrow_raw(dir) } };
    Key::of(&rustix::fs::statat(dir, path, flags).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const MAPS: &str = "\
7f00-7f01 r--p 00000000 08:02 131 /usr/lib/libc.so
7f01-7f02 rw-s 00000000 00:2a 257 /mnt/data
7f02-7f03 rw-p 00000000 00:00 0 
";

    fn key(dev: u64, inode: u64) -> Key {
        Key { dev, inode: Some(inode) }
    }

    #[test]
    fn a_mapping_is_found_by_device_and_inode() {
        assert_eq!(mapped(key(rustix::fs::makedev(8, 2), 131), MAPS), Some("the file is mapped"));
        assert_eq!(mapped(key(rustix::fs::makedev(8, 3), 131), MAPS), None);
        assert_eq!(mapped(key(rustix::fs::makedev(0, 99), 257), MAPS), Some("the file is mapped"));
    }

    #[test]
    fn the_files_of_a_range_of_addresses_are_found() {
        assert_eq!(paths_at(0x7f01..0x7f02, MAPS), [Path::new("/mnt/data")]);
        assert_eq!(
            paths_at(0x7f00..0x7f03, MAPS),
            [Path::new("/usr/lib/libc.so"), Path::new("/mnt/data")]
        );
        assert_eq!(paths_at(0x7f02..0x7f09, MAPS), [] as [PathBuf; 0]);
    }

    #[test]
    fn an_aio_context_is_found() {
        let maps = format!("{MAPS}7f03-7f04 rw-s 00000000 00:11 12345 /[aio] (deleted)\n");
        assert_eq!(
            mapped(key(rustix::fs::makedev(8, 3), 1), &maps),
            Some("the program uses libaio")
        );
        assert_eq!(mapped(key(rustix::fs::makedev(8, 3), 1), MAPS), None);
    }

    #[test]
    fn a_ring_without_descriptor_is_found() {
        let maps = format!("{MAPS}7f03-7f04 rw-s 00000000 00:10 1063 anon_inode:[io_uring]\n");
        assert_eq!(mapped(key(rustix::fs::makedev(8, 3), 1), &maps), Some(USES_RINGS));
    }
}
