//! A write-ahead log in one file: many threads append records of any length durably, and recovery
//! finds them after a crash.
//!
//! ```sh
//! cargo run --release --example wal -- crash [FILE]
//! ```
//!
//! This runs six rounds. Each starts a writer process with 64 threads, kills it, opens the log and
//! looks for every acknowledged record. Ctrl-C stops after the current round. The file is removed
//! at the end.

use dioxide::{Durability, File, Growth, OpenOptions};
use std::io::{self, Read, Write};
use std::os::{fd::AsFd, unix::process::CommandExt};
use std::process::{Command, Stdio};
use std::sync::{Arc, atomic::AtomicBool, atomic::Ordering::Relaxed};
use std::{collections::HashSet, env, fs, path::Path, thread, time::Duration};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

// --- the log -------------------------------------------------------------------------------------

/// The life of the log. A file that is recycled as several logs needs another number for each, for
/// instance that of the segment.
const LIFE: u32 = 1;

/// The header of a record: its length and a checksum. The checksum includes the life of the log, so
/// that records of an old life are invalid. Records are never empty, so zeros are no record.
fn frame(record: &[u8]) -> [u8; 8] {
    let len = (record.len() as u32).to_le_bytes();
    let mut crc = crc32fast::Hasher::new_with_initial(LIFE);
    crc.update(&len);
    crc.update(record);
    [len, crc.finalize().to_le_bytes()].concat().try_into().expect("4 and 4 bytes")
}

/// Appends a record. On return the record and all records before it are stable.
fn append(log: &File, record: &[u8]) -> dioxide::Result<u64> {
    log.append(&[&frame(record), record].concat())
}

/// Passes each record from the start up to the first invalid one to `see`, and returns the end of
/// the last valid one.
fn scan(content: &[u8], mut see: impl FnMut(&[u8])) -> u64 {
    let mut rest = content;
    while let Some((head, behind)) = rest.split_first_chunk::<8>() {
        let len = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
        match behind.get(..len) {
            Some(record) if len > 0 && *head == frame(record) => see(record),
            _ => break,
        }
        rest = &behind[len..];
    }
    (content.len() - rest.len()) as u64
}

/// Opens a log, passes its records to `see`, and truncates behind the last valid one.
fn open(path: &Path, growth: Growth, see: impl FnMut(&[u8])) -> Result<File> {
    let durable = Durability::EveryWrite;
    let log = OpenOptions::new()
        .write(true)
        .create(true)
        .durability(durable)
        .growth(growth)
        .open(path)?;
    let mut content = vec![0; log.len()? as usize];
    let read = log.read_at(&mut content, 0)?;
    let end = scan(&content[..read], see);
    if end < log.len()? {
        // After a crash zeros up to the end of the block, partial records, or whole ones above a
        // gap may follow. None of them was acknowledged. With Growth::Zeroed and after
        // File::recycle, zeros or the old life follow. Then the verdict is EndUnknown: the end lies
        // from `floor` to `ceiling`, the length.
        log.set_len(end)?;
    }
    Ok(log)
}

// --- the crash -----------------------------------------------------------------------------------

const WRITERS: u64 = 64;
const ROUNDS: u64 = 6;
const GROWTH: [Growth; 2] = [Growth::Unwritten, Growth::Zeroed]; // by turns
/// The start of a record, which its writer reports: round, thread, number.
const NAME: usize = 24;

/// Appends with many threads until it is killed, and reports each record once it is stable.
fn write(path: &Path, round: u64) -> Result<()> {
    let log = open(path, GROWTH[round as usize % 2], |_| {})?;
    let told = fs::File::from(io::stdout().as_fd().try_clone_to_owned()?);
    let write = |writer: u64| -> Result<()> {
        for number in 0u64.. {
            let mut record = [round, writer, number].map(u64::to_le_bytes).concat();
            let len = if number % 50 == 49 { 10_000 } else { 50 + (writer + 7 * number) % 100 };
            record.resize(len as usize, 0xAA);
            append(&log, &record)?;
            (&told).write_all(&record[..NAME])?; // so short that it is whole, or not there
        }
        Ok(())
    };
    let write = &write;
    thread::scope(|scope| {
        let writers: Vec<_> =
            (0..WRITERS).map(|writer| scope.spawn(move || write(writer))).collect();
        writers.into_iter().try_for_each(|writer| writer.join().expect("no writer panics"))
    })
}

/// Kills a writer repeatedly. Fails if a record is missing.
pub fn crash(path: &Path, stop: &AtomicBool) -> Result<()> {
    let mut acknowledged = HashSet::new();
    for round in (0..ROUNDS).take_while(|_| !stop.load(Relaxed)) {
        let mut writer = Command::new(env::current_exe()?);
        writer.arg("write").arg(path).arg(round.to_string());
        let mut writer = writer.stdout(Stdio::piped()).process_group(0).spawn()?; // not for Ctrl-C
        let mut pipe = writer.stdout.take().expect("it is a pipe");
        let mut names = vec![0; NAME];
        pipe.read_exact(&mut names)?;
        let told = thread::spawn(move || pipe.read_to_end(&mut names).map(|_| names));
        thread::sleep(Duration::from_millis(100 + 90 * round));
        writer.kill()?; // SIGKILL
        writer.wait()?;
        acknowledged
            .extend(told.join().expect("it only reads")?.chunks_exact(NAME).map(<[u8]>::to_vec));

        let size = fs::metadata(path)?.len();
        if round % 4 > 1 {
            // The first opener after the crash closes the file without a truncate of its own.
            OpenOptions::new().write(true).open(path)?.close()?;
        }
        let mut found = HashSet::new();
        let see = |record: &[u8]| found.extend([record[..NAME].to_vec()]);
        let log = open(path, GROWTH[round as usize % 2], see)?;
        let (end, records, told) = (log.len()?, found.len(), acknowledged.len());
        let missing = acknowledged.difference(&found).count();
        println!(
            "round {round}: left {size} bytes; {records} records in {end}; of {told} told \
             {missing} missing"
        );
        if missing > 0 {
            return Err("this is not what was promised".into());
        }
        append(&log, &[round, WRITERS, 0].map(u64::to_le_bytes).concat())?;
        log.close()?;
    }
    Ok(())
}

/// Runs the writer or the test.
pub fn main() -> Result<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["write", path, round] => write(Path::new(path), round.parse()?),
        ["crash"] | ["crash", _] => {
            let path = Path::new(args.get(1).map_or("wal-example.log", String::as_str));
            let stop = Arc::new(AtomicBool::new(false));
            signal_hook::flag::register(signal_hook::consts::SIGINT, stop.clone())?;
            let result = crash(path, &stop);
            fs::remove_file(path)?;
            result
        }
        _ => Err("usage: wal crash [FILE]".into()),
    }
}
