//! The target of plain reads and writes: a file or device, or the members of a striped volume,
//! without the library. Shared by all threads.
//!
//! Chunk c of a volume of n members is chunk c / n + 1 of member c % n; the first chunk of each is
//! the header's.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// One file, or the members of a volume. A read or write across chunk boundaries is split there;
/// the parts run one after the other.
pub struct Members {
    files: Vec<File>,
    /// None for a single file.
    chunk_bytes: Option<u64>,
}

impl Members {
    pub fn one(file: File) -> Self {
        Self { files: vec![file], chunk_bytes: None }
    }

    pub fn striped(files: Vec<File>, chunk_bytes: u64) -> Self {
        Self { files, chunk_bytes: Some(chunk_bytes) }
    }

    /// The end of the data.
    pub fn len(&self) -> io::Result<u64> {
        match self.chunk_bytes {
            None => Ok(self.files[0].metadata()?.len()),
            Some(_) => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "members do not tell where their volume ends",
            )),
        }
    }

    /// Flushes one member after the other.
    pub fn sync_data(&self) -> io::Result<()> {
        self.files.iter().try_for_each(File::sync_data)
    }

    /// The position of `offset`, and how many of `len` bytes are contiguous there.
    fn locate(&self, offset: u64, len: usize) -> (&File, u64, usize) {
        let Some(chunk_bytes) = self.chunk_bytes else { return (&self.files[0], offset, len) };
        let (chunk, within) = (offset / chunk_bytes, offset % chunk_bytes);
        let (row, member) = (chunk / self.files.len() as u64, chunk % self.files.len() as u64);
        let left = (chunk_bytes - within).min(len as u64);
        (&self.files[member as usize], (row + 1) * chunk_bytes + within, left as usize)
    }
}

impl FileExt for Members {
    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        let (file, offset, len) = self.locate(offset, into.len());
        file.read_at(&mut into[..len], offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let (file, offset, len) = self.locate(offset, bytes.len());
        file.write_at(&bytes[..len], offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(count: usize) -> Vec<File> {
        (0..count).map(|_| tempfile::tempfile().unwrap()).collect()
    }

    #[test]
    fn one_file_is_itself() {
        let members = Members::one(files(1).pop().unwrap());
        members.write_all_at(b"content", 5).unwrap();
        assert_eq!(members.len().unwrap(), 12);
        let mut back = [0; 7];
        members.read_exact_at(&mut back, 5).unwrap();
        assert_eq!(&back, b"content");
    }

    #[test]
    fn chunks_lie_on_the_members_in_turn() {
        let members = Members::striped(files(3), 4);
        members.write_all_at(b"aaaabbbbccccddddee", 0).unwrap();
        for (file, content) in members.files.iter().zip([&b"aaaadddd"[..], b"bbbbee", b"cccc"]) {
            let mut found = vec![0; 16];
            let len = file.read_at(&mut found, 0).unwrap();
            assert_eq!(&found[..len], [&[0; 4], content].concat());
        }
        let mut back = [0; 7];
        members.read_exact_at(&mut back, 6).unwrap();
        assert_eq!(&back, b"bbccccd");
        members.sync_data().unwrap();
        assert!(members.len().is_err());
    }
}
