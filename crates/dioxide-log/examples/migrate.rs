//! Copies the lines of a plain file into a new log, durably, a few hundred with each flush.
//!
//! ```sh
//! cargo run --release --package dioxide-log --example migrate -- FILE DIR
//! ```

use dioxide_log::Log;
use std::error::Error;
use std::fs::File;
use std::io::{BufRead, BufReader};

const BATCH: usize = 512;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [file, dir] = &arguments[..] else { return Err("migrate FILE DIR".into()) };
    let log = Log::open(dir)?;
    if let Some(last) = log.last_lsn() {
        return Err(format!("{dir} has records up to {last}; remove it to begin anew").into());
    }
    let mut lines = BufReader::new(File::open(file)?).split(b'\n');
    loop {
        let batch: Vec<Vec<u8>> = lines.by_ref().take(BATCH).collect::<Result<_, _>>()?;
        if batch.is_empty() {
            break;
        }
        let records: Vec<&[u8]> = batch.iter().map(Vec::as_slice).collect();
        log.append_all(&records)?;
    }
    println!("{} records", log.next_lsn().0 - 1);
    Ok(log.close()?)
}
