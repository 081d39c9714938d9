//! The subject of a probe: a directory, a file with its directory, or a device. Only directories
//! are written to, and only in a nameless file.

use crate::bench::place::BenchTarget;
use crate::exit::say;
use crate::meter::mount::{Mount, mount_of_path};
use anyhow::{Context, Result, bail};
use dioxide_diagnose::host::{ext4::block_device, overlay};
use rustix::fs::{FileType, Mode, OFlags, open, stat};
use rustix::io::Errno;
use std::fs::File;
use std::path::{Path, PathBuf};

/// The subject of a probe.
pub struct Subject {
    /// The given path, made absolute.
    pub path: PathBuf,
    pub kind: SubjectKind,
    /// Its mount; None for a device.
    pub mount: Option<Mount>,
    /// The top of the device stack. None if there is none, or none is visible.
    pub device: Option<u64>,
}

pub enum SubjectKind {
    /// A target for writes, or why there is none.
    Directory { place: Result<BenchTarget, String>, file: Option<File> },
    /// Open for direct reads, or why not.
    Device(Result<File, String>),
}

impl Subject {
    pub fn of(path: &Path) -> Result<Self> {
        let name = || path.display().to_string();
        let path = std::fs::canonicalize(path).with_context(name)?;
        let status = stat(&path).with_context(name)?;
        match FileType::from_raw_mode(status.st_mode) {
            FileType::BlockDevice => {
                let kind =
                    SubjectKind::Device(open_device(&path).map_err(|errno| errno.to_string()));
                Ok(Self { path, kind, mount: None, device: Some(status.st_rdev) })
            }
            FileType::Directory => Self::in_directory(&path, None),
            FileType::RegularFile => {
                let file =
                    open(&path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty());
                if let Err(errno) = file {
                    say(&format!(
                        "{}: {errno}; its directory is probed, the file is not looked at",
                        name()
                    ));
                }
                let directory = path.parent().context("a file is in a directory")?;
                Ok(Self {
                    path: path.clone(),
                    ..Self::in_directory(directory, file.ok().map(File::from))?
                })
            }
            _ => bail!("{} is no directory, file or block device; name one of these", name()),
        }
    }

    fn in_directory(path: &Path, file: Option<File>) -> Result<Self> {
        let mount = mount_of_path(path);
        let device = mount.as_ref().and_then(|mount| block_device(&overlay::below(mount)?));
        let place = match BenchTarget::directory(path) {
            Ok(place) => Ok(place),
            Err(error) => Err(why_nothing_is_written(error)?),
        };
        Ok(Self {
            path: path.to_owned(),
            kind: SubjectKind::Directory { place, file },
            mount,
            device,
        })
    }

    /// The directory itself, or that of the file.
    pub fn directory(&self) -> &Path {
        if self.path.is_dir() { &self.path } else { self.path.parent().unwrap_or(&self.path) }
    }
}

/// A user without write permission can still inspect.
fn why_nothing_is_written(error: anyhow::Error) -> Result<String> {
    match error.downcast_ref::<Errno>() {
        Some(&Errno::ROFS) => Ok("the file system is mounted read-only".into()),
        Some(&(Errno::ACCESS | Errno::PERM)) => Ok("this user may not write here".into()),
        Some(&(Errno::NOSPC | Errno::DQUOT)) => Ok("there is no space left".into()),
        _ => Err(error.context(
            "nothing can be tried here; name a directory on the file system that is meant",
        )),
    }
}

/// Read-only, so that the kernel refuses accidental writes.
fn open_device(path: &Path) -> rustix::io::Result<File> {
    open(path, OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC, Mode::empty()).map(File::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stores_no_files_is_refused_with_advice() {
        let refusal = format!("{:#}", Subject::of(Path::new("/proc")).err().unwrap());
        assert!(
            refusal.contains("stores no files") && refusal.contains("name a directory"),
            "{refusal}"
        );
        let refusal = format!("{:#}", Subject::of(Path::new("/dev/null")).err().unwrap());
        assert!(refusal.contains("name one of these"), "{refusal}");
        assert!(Subject::of(Path::new("/no/such/place")).is_err());
    }

    #[test]
    fn a_file_stands_for_its_directory() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let subject = Subject::of(file.path()).unwrap();
        assert_eq!(Some(subject.directory()), file.path().parent());
        assert!(matches!(subject.kind, SubjectKind::Directory { place: Ok(_), file: Some(_) }));
    }
}
