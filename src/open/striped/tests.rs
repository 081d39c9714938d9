//! Striped volumes on the simulated disk, one thread: what went wrong once.

use crate::sim::Disk;
use crate::{Buffer, ErrorKind, File, Growth, OpenOptions};

const NAMES: [&str; 3] = ["a", "b", "c"];
const CHUNK: u64 = 8192;

fn options(growth: Growth) -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create(true).growth(growth).growth_cap(1 << 20);
    options
}

fn open(disk: &Disk, growth: Growth) -> File {
    disk.open_striped(&options(growth), &NAMES, CHUNK).expect("a volume")
}

fn filled(byte: u8, len: u64) -> Buffer {
    let mut buffer = Buffer::zeroed(len as usize);
    buffer.fill(byte);
    buffer
}

#[test]
fn a_reader_beside_the_writer_of_a_volume_sees_what_was_appended() {
    let disk = Disk::new(1);
    let writer = open(&disk, Growth::Zeroed);
    writer.append(&filled(1, 3 * CHUNK)).unwrap();
    let reader = disk.open_striped(&OpenOptions::new(), &NAMES, CHUNK).unwrap();
    writer.append(&filled(2, CHUNK)).unwrap();
    assert_eq!(reader.len().unwrap(), 4 * CHUNK);
    let mut into = filled(0, CHUNK);
    assert_eq!(reader.read_at(&mut into, 3 * CHUNK).unwrap(), CHUNK as usize);
    assert!(into.iter().all(|byte| *byte == 2));
}

/// A row of them would be longer than the largest number.
#[test]
fn a_chunk_beyond_all_sizes_is_refused() {
    let dir = std::env::temp_dir();
    let paths = NAMES.map(|name| dir.join(format!("dioxide-huge-{name}-{}", std::process::id())));
    for chunk_bytes in [1 << 63, 1 << 41] {
        let error = options(Growth::None).open_striped(&paths, chunk_bytes).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Unsupported(_)), "{error}");
    }
    assert!(paths.iter().all(|path| !path.exists()));
}
