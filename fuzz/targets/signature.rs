//! A device with any bytes at its beginning and end.
#![no_main]

#[path = "../../crates/dioxide-cli/src/device/signature.rs"]
#[allow(dead_code)]
mod signature;

use libfuzzer_sys::fuzz_target;
use std::io;
use std::os::unix::fs::FileExt;

/// A disk of `size` bytes that begins and ends with `bytes`, with zeros between.
struct Disk<'a> {
    bytes: &'a [u8],
    size: u64,
}

impl Disk<'_> {
    fn byte(&self, offset: u64) -> u8 {
        let from_end = self.size - offset;
        let known = self.bytes.len() as u64;
        match () {
            _ if offset < known => self.bytes[offset as usize],
            _ if from_end <= known => self.bytes[(known - from_end) as usize],
            _ => 0,
        }
    }
}

impl FileExt for Disk<'_> {
    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        assert!(offset + into.len() as u64 <= self.size, "read beyond the device");
        into.iter_mut().zip(offset..).for_each(|(byte, offset)| *byte = self.byte(offset));
        Ok(into.len())
    }

    fn write_at(&self, _: &[u8], _: u64) -> io::Result<usize> {
        panic!("a device that is looked at is written");
    }
}

fuzz_target!(|input: (u64, &[u8])| {
    let (size, bytes) = input;
    let disk = Disk { bytes, size: size % (4 << 20) };
    let found = signature::find(&disk, disk.size).expect("the disk does not fail");
    if found.is_none() && disk.size >= 4096 {
        assert!(
            !bytes.starts_with(b"XFSB") && !bytes.starts_with(b"LUKS\xba\xbe"),
            "overwritten for nothing"
        );
    }
});
