//! A key-value store whose changes are durable when they return: a map in memory, and its log.
//!
//! ```sh
//! cargo run --release --package dioxide-log --example kv -- DIR set KEY VALUE
//! cargo run --release --package dioxide-log --example kv -- DIR get KEY
//! ```

use dioxide_log::{Log, Result};
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

/// The log is rewritten when it has this many records for each key, and at least so many.
const RECORDS_PER_KEY: u64 = 4;
const RECORDS_MIN: u64 = 10_000;
/// The records of one atomic batch when the log is rewritten.
const BATCH: usize = 256;

/// A store. Threads share it.
struct Store {
    log: Log,
    map: Mutex<BTreeMap<Vec<u8>, Vec<u8>>>,
}

/// A change of one key. Without a value the key is removed.
struct Change<'a> {
    key: &'a [u8],
    value: Option<&'a [u8]>,
}

impl<'a> Change<'a> {
    fn encode(&self) -> Vec<u8> {
        let mut record = vec![u8::from(self.value.is_some())];
        record.extend((self.key.len() as u32).to_le_bytes());
        record.extend(self.key);
        record.extend(self.value.unwrap_or_default());
        record
    }

    /// None if another program wrote the record.
    fn decode(record: &'a [u8]) -> Option<Self> {
        let (kind, rest) = record.split_first()?;
        let (length, rest) = rest.split_first_chunk()?;
        let (key, value) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        Some(Self { key, value: (*kind == 1).then_some(value) })
    }
}

impl Store {
    /// Opens the store in a directory, and reads its log.
    fn open(dir: &str) -> Result<Self> {
        let log = Log::open(dir)?;
        let mut map = BTreeMap::new();
        let mut records = log.iter_from(log.first_lsn());
        while let Some(record) = dioxide_log::Iter::next(&mut records)? {
            let Some(change) = Change::decode(record.payload) else {
                eprintln!("record {} is no change of a key", record.lsn);
                continue;
            };
            match change.value {
                Some(value) => map.insert(change.key.to_vec(), value.to_vec()),
                None => map.remove(change.key),
            };
        }
        Ok(Self { log, map: Mutex::new(map) })
    }

    /// Returns the value of a key, possibly before it is durable.
    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }

    /// Sets or removes a key. Durable on return.
    fn put(&self, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        let record = Change { key, value }.encode();
        // The order of the map is that of the log. Other threads wait only for a copy to the batch.
        let lsn = {
            let mut map = self.map.lock().unwrap_or_else(PoisonError::into_inner);
            let lsn = self.log.submit(&record)?;
            match value {
                Some(value) => map.insert(key.to_vec(), value.to_vec()),
                None => map.remove(key),
            };
            lsn
        };
        self.log.wait(lsn)?;
        self.compact()
    }

    /// Rewrites the keys behind the log, and removes what is before, if the log has become long.
    /// After a crash in between, the log has both, which give the same map.
    fn compact(&self) -> Result<()> {
        let map = self.map.lock().unwrap_or_else(PoisonError::into_inner);
        let front = self.log.next_lsn();
        let count = front.0 - self.log.first_lsn().0;
        if count < RECORDS_MIN.max(RECORDS_PER_KEY * map.len() as u64) {
            return Ok(());
        }
        let records: Vec<_> =
            map.iter().map(|(key, value)| Change { key, value: Some(value) }.encode()).collect();
        for batch in records.chunks(BATCH) {
            let batch: Vec<&[u8]> = batch.iter().map(Vec::as_slice).collect();
            self.log.append_all(&batch)?;
        }
        self.log.truncate_front(front)
    }
}

fn run(arguments: &[String]) -> Result<bool> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        [dir, "set", key, value] => {
            Store::open(dir)?.put(key.as_bytes(), Some(value.as_bytes()))?;
        }
        [dir, "del", key] => Store::open(dir)?.put(key.as_bytes(), None)?,
        [dir, "get", key] => match Store::open(dir)?.get(key.as_bytes()) {
            Some(value) => println!("{}", String::from_utf8_lossy(&value)),
            None => return Ok(false),
        },
        [dir, "fill", count] => {
            let store = Store::open(dir)?;
            for number in 0..count.parse().unwrap_or(0u64) {
                store.put(format!("key {}", number % 1000).as_bytes(), Some(b"a value"))?;
            }
            println!("{} records from {}", store.log.next_lsn().0 - 1, store.log.first_lsn());
        }
        _ => eprintln!("kv DIR set KEY VALUE | get KEY | del KEY | fill COUNT"),
    }
    Ok(true)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
