//! Writes a block below the end and makes it stable: `cargo run --example write_at`.

use dioxide::{Buffer, OpenOptions};

fn main() -> dioxide::Result<()> {
    let file = OpenOptions::new().write(true).create(true).open("pages.db")?;
    let mut page = Buffer::zeroed(4096); // aligned memory
    page[..5].copy_from_slice(b"hello");
    file.write_at(&page, 8 * 4096)?; // the blocks before it are a hole
    file.sync_data()?;
    let mut start = [0; 5];
    file.read_at(&mut start, 8 * 4096)?; // reads take any range and any memory
    assert_eq!(&start, b"hello");
    file.close()
}
