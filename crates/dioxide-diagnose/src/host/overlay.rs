//! The directories of an overlayfs, from the options of its mount.

use super::cached;
use super::mount::{Mount, mount_of};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// The kernel permits two overlays on each other.
const OVERLAYS_MAX: u32 = 4;

/// One of them.
#[derive(Debug, PartialEq)]
pub struct Directory {
    /// `upper` or `lower`.
    pub role: &'static str,
    /// Its path.
    pub path: PathBuf,
}

/// The upper directory, which takes the writes, then the lower ones from the top. None for other
/// file systems.
pub fn directories(mount: &Mount) -> Vec<Directory> {
    if mount.fs != "overlay" {
        return Vec::new();
    }
    let options = split(&mount.options, ',');
    let of = |name: &str| {
        let values = options.iter().filter_map(|option| option.strip_prefix(name));
        values.map(str::to_owned).collect::<Vec<_>>()
    };
    let directory = |role| move |text: &str| Directory { role, path: unescape(text) };
    let upper = of("upperdir=");
    let lower: Vec<_> = of("lowerdir=")
        .iter()
        .flat_map(|all| split(all, ':'))
        // Two colons precede directories for data only.
        .filter(|one| !one.is_empty())
        // Newer mounts list each of them as an option.
        .chain(of("lowerdir+="))
        .chain(of("datadir+="))
        .collect();
    let upper = upper.iter().map(|text| directory("upper")(text));
    upper.chain(lower.iter().map(|text| directory("lower")(text))).collect()
}

/// The mount below overlayfs that takes the writes, or the reads if it is read-only. Otherwise
/// `mount` itself. None if its directory is not in view: another namespace may have made the mount.
pub fn below(mount: &Mount) -> Option<Mount> {
    below_at_most(mount, OVERLAYS_MAX)
}

fn below_at_most(mount: &Mount, overlays_max: u32) -> Option<Mount> {
    if mount.fs != "overlay" {
        return Some(mount.clone());
    }
    let first = directories(mount).into_iter().next()?;
    // The kernel keeps it in its cache for the mount.
    let directory = cached::open(&first.path)?.into();
    below_at_most(&mount_of(&directory).ok()??, overlays_max.checked_sub(1)?)
}

/// Splits at separators without a backslash before them.
fn split(text: &str, separator: char) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut chars = text.chars();
    while let Some(one) = chars.next() {
        let part = parts.last_mut().expect("there is always one");
        match one {
            '\\' => part.extend([Some('\\'), chars.next()].into_iter().flatten()),
            one if one == separator => parts.push(String::new()),
            one => part.push(one),
        }
    }
    parts
}

/// A backslash precedes three octal digits, by mountinfo, or one character, by overlayfs.
fn unescape(text: &str) -> PathBuf {
    let octal = |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok();
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let (byte, after) = match after {
            [one, two, three, after @ ..] if *first == b'\\' => {
                match octal(&[*one, *two, *three]) {
                    Some(byte) => (byte, after),
                    None => (*one, &rest[2..]),
                }
            }
            [one, after @ ..] if *first == b'\\' => (*one, after),
            after => (*first, after),
        };
        bytes.push(byte);
        rest = after;
    }
    OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::mount::mount_of_path;

    fn mount(fs: &str, options: &str) -> Mount {
        Mount {
            id: 1,
            device: 0,
            point: "/".into(),
            fs: fs.into(),
            source: "overlay".into(),
            options: options.into(),
        }
    }

    fn of(fs: &str, options: &str) -> Vec<(&'static str, String)> {
        let shown = |it: Directory| (it.role, it.path.display().to_string());
        directories(&mount(fs, options)).into_iter().map(shown).collect()
    }

    fn pair(role: &'static str, path: &str) -> (&'static str, String) {
        (role, path.to_owned())
    }

    #[test]
    fn writes_go_to_the_upper_directory() {
        assert_eq!(
            of("overlay", "rw,lowerdir=/one:/two::/data,upperdir=/up,workdir=/work,uuid=on"),
            [
                pair("upper", "/up"),
                pair("lower", "/one"),
                pair("lower", "/two"),
                pair("lower", "/data")
            ]
        );
        assert_eq!(
            of("overlay", "ro,lowerdir+=/one"),
            [pair("lower", "/one")],
            "nothing is written"
        );
        assert_eq!(of("ext4", "rw,upperdir=/up"), []);
    }

    #[test]
    fn the_mount_of_the_upper_directory_is_below() {
        let proc = mount_of_path("/proc".as_ref()).unwrap();
        assert_eq!(below(&mount("overlay", "rw,lowerdir=/,upperdir=/proc")), Some(proc.clone()));
        assert_eq!(below(&mount("overlay", "rw,lowerdir=/,upperdir=/no/such/directory")), None);
        assert_eq!(below(&proc), Some(proc));
    }

    #[test]
    fn separators_in_names_are_escaped() {
        assert_eq!(
            of("overlay", r"rw,lowerdir=/a\:b:/c\054d\040e,upperdir=/f\,g\\h"),
            [pair("upper", r"/f,g\h"), pair("lower", "/a:b"), pair("lower", "/c,d e")]
        );
    }
}
