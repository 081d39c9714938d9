//! What a probe is about: a directory, a file's directory with the file itself, or a device. Only directories are written
//! to, and there a file without a name only.

use super::filesystem::{block_device, mount_of_path};
use crate::bench::place::Place;
use crate::exit::say;
use crate::meter::mount::Mount;
use anyhow::{Context, Result, bail};
use rustix::fs::{FileType, Mode, OFlags, open, stat};
use rustix::io::Errno;
use std::fs::File;
use std::path::{Path, PathBuf};

/// See the module.
pub struct Subject {
    /// As named, made absolute.
    pub path: PathBuf,
    pub kind: Kind,
    /// What the kernel says of where it lies; of a device, nothing.
    pub mount: Option<Mount>,
    /// The device at the top of what lies below, or that it is. None where there is none, or none is to be seen.
    pub device: Option<u64>,
}

pub enum Kind {
    /// A place to write to; or why there is none.
    Directory { place: Result<Place, String>, file: Option<File> },
    /// Open to be read directly; or why it cannot be.
    Device(Result<File, String>),
}

impl Subject {
    pub fn of(path: &Path) -> Result<Self> {
        let name = || path.display().to_string();
        let path = std::fs::canonicalize(path).with_context(name)?;
        let status = stat(&path).with_context(name)?;
        match FileType::from_raw_mode(status.st_mode) {
            FileType::BlockDevice => {
                let kind = Kind::Device(open_device(&path).map_err(|errno| errno.to_string()));
                Ok(Self { path, kind, mount: None, device: Some(status.st_rdev) })
            }
            FileType::Directory => Self::in_directory(&path, None),
            FileType::RegularFile => {
                let file = open(&path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty());
                if let Err(errno) = file {
                    say(&format!("{}: {errno}; its directory is probed, the file is not looked at", name()));
                }
                let directory = path.parent().context("a file is in a directory")?;
                Ok(Self { path: path.clone(), ..Self::in_directory(directory, file.ok().map(File::from))? })
            }
            _ => bail!("{} is no directory, file or block device; name one of these", name()),
        }
    }

    fn in_directory(path: &Path, file: Option<File>) -> Result<Self> {
        let mount = mount_of_path(path);
        let device = mount.as_ref().and_then(block_device);
        let place = match Place::directory(path) {
            Ok(place) => Ok(place),
            Err(error) => Err(why_nothing_is_written(error)?),
        };
        Ok(Self { path: path.to_owned(), kind: Kind::Directory { place, file }, mount, device })
    }

    /// The directory that it is, or is in.
    pub fn directory(&self) -> &Path {
        if self.path.is_dir() { &self.path } else { self.path.parent().unwrap_or(&self.path) }
    }
}

/// Whoever may not write here can still look.
fn why_nothing_is_written(error: anyhow::Error) -> Result<String> {
    match error.downcast_ref::<Errno>() {
        Some(&Errno::ROFS) => Ok("the file system is mounted read-only".into()),
        Some(&(Errno::ACCESS | Errno::PERM)) => Ok("this user may not write here".into()),
        Some(&(Errno::NOSPC | Errno::DQUOT)) => Ok("there is no space left".into()),
        _ => {
            Err(error.context("nothing can be tried here; name a directory on the file system that is meant"))
        }
    }
}

/// Never to be written: not even by mistake, since the kernel would refuse.
fn open_device(path: &Path) -> rustix::io::Result<File> {
    open(path, OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC, Mode::empty()).map(File::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stores_no_files_is_refused_with_advice() {
        let refusal = format!("{:#}", Subject::of(Path::new("/proc")).err().unwrap());
        assert!(refusal.contains("stores no files") && refusal.contains("name a directory"), "{refusal}");
        let refusal = format!("{:#}", Subject::of(Path::new("/dev/null")).err().unwrap());
        assert!(refusal.contains("name one of these"), "{refusal}");
        assert!(Subject::of(Path::new("/no/such/place")).is_err());
    }

    #[test]
    fn a_file_stands_for_its_directory() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let subject = Subject::of(file.path()).unwrap();
        assert_eq!(Some(subject.directory()), file.path().parent());
        assert!(matches!(subject.kind, Kind::Directory { place: Ok(_), file: Some(_) }));
    }
}
