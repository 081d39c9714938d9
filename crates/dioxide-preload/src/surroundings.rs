//! What else of this process reaches a file: what cannot be seen at work must not be there when a
//! file is taken over.

use rustix::fs::{CWD, FileType};
use std::ffi::c_int;
use std::fs;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;

use crate::files::Key;

/// What stands in the way of taking a file over.
pub enum Found {
    /// Another descriptor of it.
    Descriptor,
    /// Something else, in words.
    Other(&'static str),
}

/// Looks for what stands in the way. `is_known` are the descriptors that are watched; asked for
/// those of the file only, and for rings.
pub fn look(key: Key, is_known: impl Fn(c_int) -> bool) -> io::Result<Option<Found>> {
    for entry in fs::read_dir("/proc/self/fd")? {
        let Some(fd) = entry?.file_name().to_str().and_then(|name| name.parse::<c_int>().ok())
        else {
            continue;
        };
        // SAFETY: only looked at; a number that was closed meanwhile is an error.
        let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
        let Ok(stat) = rustix::fs::fstat(borrowed) else { continue };
        if Key::of(&stat) == Some(key) && !is_known(fd) {
            return Ok(Some(Found::Descriptor));
        }
        // What is no file at all has no type.
        let is_bare = FileType::from_raw_mode(stat.st_mode) == FileType::Unknown;
        let is_ring = || link(fd).is_ok_and(|link| link.windows(8).any(|part| part == b"io_uring"));
        if is_bare && is_ring() && !is_known(fd) {
            return Ok(Some(Found::Other("the program uses io_uring")));
        }
    }
    let maps = fs::read("/proc/self/maps")?;
    Ok(mapped(key, &String::from_utf8_lossy(&maps)).map(Found::Other))
}

fn link(fd: c_int) -> io::Result<Vec<u8>> {
    Ok(rustix::fs::readlinkat(CWD, format!("/proc/self/fd/{fd}"), Vec::new())?.into_bytes())
}

/// Whether the file is mapped, or asynchronous I/O was set up, by the text of `/proc/self/maps`.
fn mapped(key: Key, maps: &str) -> Option<&'static str> {
    for line in maps.lines() {
        let mut fields = line.split_ascii_whitespace().skip(3);
        let (Some(device), Some(inode)) = (fields.next(), fields.next()) else { continue };
        if fields.next() == Some("/[aio]") {
            return Some("the program uses libaio");
        }
        let Some((major, minor)) = device.split_once(':') else { continue };
        let number = |hex| u32::from_str_radix(hex, 16).unwrap_or(0);
        let (major, minor) = (number(major), number(minor));
        // File systems without a device of their own may show another number here (btrfs).
        let same_device = major == 0 || rustix::fs::makedev(major, minor) == key.dev;
        if same_device && key.inode.is_some_and(|wanted| inode.parse() == Ok(wanted)) {
            return Some("the file is mapped");
        }
    }
    None
}

/// The paths of the files that are mapped between these addresses.
pub fn files_mapped_at(start: usize, len: usize) -> io::Result<Vec<PathBuf>> {
    let maps = fs::read("/proc/self/maps")?;
    Ok(paths_at(start..start.saturating_add(len), &String::from_utf8_lossy(&maps)))
}

/// By the text of `/proc/self/maps`.
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

/// The path by which a descriptor's file was opened.
pub fn path_of(fd: c_int) -> io::Result<PathBuf> {
    use std::os::unix::ffi::OsStringExt;
    Ok(std::ffi::OsString::from_vec(link(fd)?).into())
}

/// The file of a path, if it is one that can be known.
pub fn key_of_path(dir: c_int, path: &std::ffi::CStr, follow: bool) -> Option<Key> {
    let flags =
        if follow { rustix::fs::AtFlags::empty() } else { rustix::fs::AtFlags::SYMLINK_NOFOLLOW };
    // SAFETY: only looked at; a number that is not open is an error. What is none at all matters
    // for no absolute path.
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
}
