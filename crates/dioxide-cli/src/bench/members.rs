//! The target of plain reads and writes, without the library. It is a file or device, the members
//! of a striped volume, or several files with blocks in turn. Shared by all threads.
//!
//! Chunk c of a volume of n members is chunk c / n + 1 of member c % n; the first chunk of each is
//! the header's. Block b on n files is block b / n of file b % n.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// One file, or several. A read or write across chunk boundaries is split there; the parts run one
/// after the other.
pub struct Members {
    files: Vec<File>,
    /// None for a single file.
    chunks: Option<Chunks>,
}

/// How the data lies on several files.
#[derive(Clone, Copy)]
struct Chunks {
    bytes: u64,
    /// The chunks at the start of each file that hold no data.
    headers: u64,
}

impl Members {
    pub fn one(file: File) -> Self {
        Self { files: vec![file], chunks: None }
    }

    pub fn striped(files: Vec<File>, chunk_bytes: u64) -> Self {
        Self { files, chunks: Some(Chunks { bytes: chunk_bytes, headers: 1 }) }
    }

    /// Blocks in turn on the files.
    pub fn in_turn(files: Vec<File>, block_bytes: u64) -> Self {
        Self { files, chunks: Some(Chunks { bytes: block_bytes, headers: 0 }) }
    }

    pub fn files(&self) -> &[File] {
        &self.files
    }

    /// Whether blocks that are adjacent here are on different files, so that each costs a read.
    pub fn are_blocks_apart(&self) -> bool {
        self.chunks.is_some_and(|chunks| chunks.headers == 0)
    }

    /// The end of the data.
    pub fn len(&self) -> io::Result<u64> {
        match self.chunks {
            None => Ok(self.files[0].metadata()?.len()),
            Some(_) => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "members do not show the end of their volume",
            )),
        }
    }

    /// Flushes one member after the other.
    pub fn sync_data(&self) -> io::Result<()> {
        self.files.iter().try_for_each(File::sync_data)
    }

    /// The number of the file with the data at `offset`, and the offset in that file.
    pub fn position(&self, offset: u64) -> (usize, u64) {
        let Some(Chunks { bytes, headers }) = self.chunks else { return (0, offset) };
        let (chunk, within) = (offset / bytes, offset % bytes);
        let (row, member) = (chunk / self.files.len() as u64, chunk % self.files.len() as u64);
        (member as usize, (headers + row) * bytes + within)
    }

    /// The position of `offset`, and how many of `len` bytes are contiguous there.
    fn locate(&self, offset: u64, len: usize) -> (&File, u64, usize) {
        let (member, position) = self.position(offset);
        let left = self.chunks.map_or(len as u64, |chunks| chunks.bytes - offset % chunks.bytes);
        (&self.files[member], position, left.min(len as u64) as usize)
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
        assert!(members.len().is_err() && !members.are_blocks_apart());
    }

    #[test]
    fn blocks_in_turn_have_no_header() {
        let members = Members::in_turn(files(3), 4);
        members.write_all_at(b"aaaabbbbccccddddeeee", 0).unwrap();
        for (file, content) in members.files().iter().zip([&b"aaaadddd"[..], b"bbbbeeee", b"cccc"])
        {
            let mut found = vec![0; 16];
            let len = file.read_at(&mut found, 0).unwrap();
            assert_eq!(&found[..len], content);
        }
        let positions = [0, 4, 8, 12, 17, 20].map(|offset| members.position(offset));
        assert_eq!(positions, [(0, 0), (1, 0), (2, 0), (0, 4), (1, 5), (2, 4)]);
        assert!(members.are_blocks_apart());
    }
}
