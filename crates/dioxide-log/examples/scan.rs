//! Writes a log with records of 1 KiB, opens it again, and reads all of it. Prints both rates.
//!
//! ```sh
//! cargo run --release --package dioxide-log --example scan -- DIR MIB
//! ```

use dioxide_log::Log;
use std::error::Error;
use std::time::Instant;

const RECORD_BYTES: usize = 1024;
const BATCH: usize = 1024;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [dir, mib] = &arguments[..] else { return Err("scan DIR MIB".into()) };
    let log = Log::open(dir)?;
    if let Some(last) = log.last_lsn() {
        return Err(format!("{dir} has records up to {last}; remove it to begin anew").into());
    }
    let record = [b'r'; RECORD_BYTES];
    let batch = [&record[..]; BATCH];
    for _ in 0..mib.parse::<usize>()? {
        log.append_all(&batch)?;
    }
    log.close()?;

    let begun = Instant::now();
    let log = Log::open(dir)?;
    let first = log.first_lsn();
    let records = log.next_lsn().0 - first.0;
    print("opened", records, begun);

    let begun = Instant::now();
    let mut iter = log.iter_from(first);
    let mut bytes = 0;
    while let Some(record) = iter.next()? {
        bytes += record.payload.len();
    }
    assert_eq!(bytes as u64, records * RECORD_BYTES as u64);
    print("read", records, begun);
    Ok(log.close()?)
}

fn print(what: &str, records: u64, begun: Instant) {
    let bytes = records * RECORD_BYTES as u64;
    let seconds = begun.elapsed().as_secs_f64();
    println!("{what} {records} records: {:.2} GB/s", bytes as f64 / seconds / 1e9);
}
