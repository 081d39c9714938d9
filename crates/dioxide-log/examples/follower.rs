//! Prints each record that another process appends to a log, from the last known one on.
//!
//! ```sh
//! cargo run --release --package dioxide-log --example follower -- DIR [LSN]
//! ```

use dioxide_log::{Error, LogReader, Lsn, Result};
use std::thread;
use std::time::Duration;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().unwrap_or_else(|| ".".into());
    let mut reader = LogReader::open(&dir)?;
    if let Some(lsn) = arguments.next().and_then(|lsn| lsn.parse().ok()) {
        reader.seek(Lsn(lsn));
    }
    loop {
        match reader.next_within(Duration::from_secs(1)) {
            Ok(Some(record)) => println!("{}: {} bytes", record.lsn, record.payload.len()),
            Ok(None) => {}
            // The writer is faster for now.
            Err(Error::Changing { .. }) => thread::sleep(Duration::from_millis(100)),
            // A replica would take a snapshot of its leader here.
            Err(Error::OutOfRange { first, .. }) => reader.seek(first),
            Err(error) => return Err(error),
        }
    }
}
