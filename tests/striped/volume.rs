//! Shared code of the striped tests: the paths of a volume, and the content of its members, read
//! without the library.

use crate::common::*;
use dioxide::{File, OpenOptions};
use dioxide_testkit::child::Acks;
use dioxide_testkit::files;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

pub const CHUNK: u64 = 8192;

/// The paths of a volume, and its chunk in bytes.
#[derive(Clone, Debug)]
pub struct Paths {
    pub members: Vec<PathBuf>,
    pub chunk: u64,
}

impl Paths {
    /// Members of these names in one directory.
    pub fn in_dir(dir: &Path, name: &str, count: usize, chunk: u64) -> Self {
        Self {
            members: (0..count).map(|member| dir.join(format!("{name}.{member}"))).collect(),
            chunk,
        }
    }

    /// One member in each directory.
    pub fn in_dirs(dirs: &[&Path], name: &str, chunk: u64) -> Self {
        Self { members: dirs.iter().map(|dir| dir.join(name)).collect(), chunk }
    }

    pub fn open(&self, options: &OpenOptions) -> dioxide::Result<File> {
        options.open_striped(&self.members, self.chunk)
    }

    /// Opens without growth and without creation.
    pub fn reopen(&self) -> dioxide::Result<File> {
        self.open(OpenOptions::new().write(true))
    }

    /// Converts to arguments of a child, and back.
    pub fn to_args(&self) -> Vec<String> {
        let paths = self.members.iter().map(|path| path.to_string_lossy().into_owned());
        [self.chunk.to_string()].into_iter().chain(paths).collect()
    }

    pub fn of_args(args: &[String]) -> Self {
        Self {
            chunk: args[0].parse().expect("a number"),
            members: args[1..].iter().map(PathBuf::from).collect(),
        }
    }

    /// The size of a member in a file of this length, with its header's chunk, counted chunk by
    /// chunk.
    pub fn size_of(&self, member: usize, len: u64) -> u64 {
        let chunks = (0..len.div_ceil(self.chunk))
            .filter(|chunk| *chunk as usize % self.members.len() == member);
        self.chunk + chunks.map(|chunk| (len - chunk * self.chunk).min(self.chunk)).sum::<u64>()
    }

    /// The bytes of the file on the members, up to the first gap.
    pub fn content(&self) -> io::Result<Vec<u8>> {
        let members = self.members.iter().map(fs::read).collect::<io::Result<Vec<_>>>()?;
        let mut content = Vec::new();
        for chunk in 0.. {
            let member = &members[chunk % members.len()];
            let start = (chunk / members.len() + 1) * self.chunk as usize;
            let bytes = member.get(start..).unwrap_or_default();
            content.extend_from_slice(&bytes[..bytes.len().min(self.chunk as usize)]);
            if bytes.len() < self.chunk as usize {
                break;
            }
        }
        Ok(content)
    }

    pub fn sizes(&self) -> io::Result<Vec<u64>> {
        self.members.iter().map(|path| Ok(fs::metadata(path)?.len())).collect()
    }

    /// Checks that every member is as after a close at this length: not a byte more, and no marker.
    pub fn assert_tidy(&self, len: u64) -> io::Result<()> {
        let expected: Vec<_> =
            (0..self.members.len()).map(|member| self.size_of(member, len)).collect();
        assert_eq!(self.sizes()?, expected, "the sizes of the members of {len} bytes");
        for (path, size) in self.members.iter().zip(expected) {
            assert_eq!(files::marker(path)?, None, "marker");
            let end = files::extents(path)?.last().map_or(0, |extent| extent.start + extent.len);
            assert!(
                end <= size.next_multiple_of(BLOCK_BYTES),
                "space up to {end} in a member of {size}"
            );
        }
        Ok(())
    }

    /// The bytes of all members, to detect any change.
    pub fn snapshot(&self) -> io::Result<Vec<Vec<u8>>> {
        self.members.iter().map(fs::read).collect()
    }
}

/// A child: opens a volume for writing, and reports the result.
pub fn try_to_open_striped(acks: &Acks, args: &[String]) {
    tell(acks, &Paths::of_args(args).reopen());
}
