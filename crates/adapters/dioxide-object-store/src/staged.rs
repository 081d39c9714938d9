//! A file on its way to be an object.

use dioxide::{File, Growth, OpenOptions, Writer};
use object_store::{Error, PutPayload, PutResult, Result};
use std::fs;
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A file `NAME#N`, which gets the name `NAME` when it is published. Dropped, it is removed.
#[derive(Debug)]
pub struct Staged {
    file: Option<File>,
    path: PathBuf,
    target: PathBuf,
    /// It still has its first name.
    is_staged: bool,
}

impl Staged {
    pub fn new(target: PathBuf) -> Result<Self> {
        for number in 1_u64.. {
            let mut path = target.clone().into_os_string();
            path.push(format!("#{number}"));
            // Not by dioxide, which would make this name stable.
            match fs::File::create_new(&path) {
                Ok(_) => {
                    let path = path.into();
                    let mut staged = Self { file: None, path, target, is_staged: true };
                    staged.file = Some(staged.open()?);
                    return Ok(staged);
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    create_stable(target.parent().unwrap_or(Path::new("/"))).map_err(failed)?;
                }
                Err(error) => return Err(failed(error)),
            }
        }
        unreachable!("a number is free")
    }

    fn open(&self) -> Result<File> {
        // Nothing recovers this file, and its size shows in listings.
        OpenOptions::new().write(true).growth(Growth::None).open(&self.path).map_err(failed)
    }

    fn file(&self) -> Result<&File> {
        self.file.as_ref().ok_or_else(aborted)
    }

    /// Writes the whole object.
    pub fn filled(mut self, payload: &PutPayload) -> Result<Self> {
        let mut writer = Writer::new(self.file.take().ok_or_else(aborted)?);
        payload.iter().try_for_each(|bytes| writer.write_all(bytes)).map_err(failed)?;
        self.file = Some(writer.finish().map_err(failed)?);
        Ok(self)
    }

    /// Writes a part of the object.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.file()?.write_at(bytes, offset).map_err(failed)
    }

    /// Makes the parts stable.
    pub fn sync(&self) -> Result<()> {
        self.file()?.sync_data().map_err(failed)
    }

    /// Gives the file, whose content is stable, its name. The name is stable on return.
    pub fn publish(mut self, replaces: bool) -> Result<PutResult> {
        let file = self.file.take().ok_or_else(aborted)?;
        file.close().map_err(failed)?;
        let e_tag = e_tag(&fs::metadata(&self.path).map_err(failed)?);
        let named = match replaces {
            true => fs::rename(&self.path, &self.target),
            // The drop removes the other name.
            false => fs::hard_link(&self.path, &self.target),
        };
        named.map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => Error::AlreadyExists {
                path: self.target.to_string_lossy().into_owned(),
                source: error.into(),
            },
            _ => failed(error),
        })?;
        // After a rename, another put may use the first name.
        self.is_staged = !replaces;
        sync_directory(self.target.parent().unwrap_or(Path::new("/"))).map_err(failed)?;
        Ok(PutResult { e_tag: Some(e_tag), version: None, extensions: Default::default() })
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        drop(self.file.take());
        if self.is_staged {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The ETag that `LocalFileSystem` gives to this file.
fn e_tag(metadata: &fs::Metadata) -> String {
    let mtime_us =
        i128::from(metadata.mtime()) * 1_000_000 + i128::from(metadata.mtime_nsec()) / 1000;
    format!("\"{:x}-{mtime_us:x}-{:x}\"", metadata.ino(), metadata.len())
}

/// Makes an absolute directory and those above it that are missing. Each name is stable before the
/// next one is made, because another put may find it. That of the lowest directory that is there
/// may not be: its put was killed, or has not come so far.
fn create_stable(directory: &Path) -> io::Result<()> {
    let mut missing: Vec<_> = directory.ancestors().take_while(|it| !it.exists()).collect();
    let there = directory.ancestors().nth(missing.len());
    match there.and_then(Path::parent).map_or(Ok(()), sync_directory) {
        // Another user made it.
        Err(error) if error.kind() != ErrorKind::PermissionDenied => return Err(error),
        _ => {}
    }
    while let Some(new) = missing.pop() {
        match fs::create_dir(new) {
            Err(error) if !new.is_dir() => return Err(error),
            _ => sync_directory(new.parent().unwrap_or(Path::new("/")))?,
        }
    }
    Ok(())
}

fn sync_directory(directory: &Path) -> io::Result<()> {
    fs::File::open(directory)?.sync_all()
}

fn failed(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::Generic { store: "DioxideStore", source: error.into() }
}

/// The upload has ended, or its last part has not.
pub fn aborted() -> Error {
    failed("the upload has ended, or a part of it is being written")
}
