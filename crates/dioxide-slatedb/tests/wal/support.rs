//! Databases for the tests, and child processes that write one.

use dioxide_log::LogOptions;
use dioxide_slatedb::LocalWal;
use slatedb::config::{
    CloseOptions, FlushOptions, FlushType, GarbageCollectorDirectoryOptions,
    GarbageCollectorOptions, Settings,
};
use slatedb::object_store::ObjectStore;
use slatedb::{Db, Error, GarbageCollectorBuilder};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

pub type Store = Arc<dyn ObjectStore>;

/// A log of small segments in a directory.
pub fn wal(dir: impl AsRef<Path>) -> LocalWal {
    LocalWal::new(dir.as_ref()).log_options(small())
}

pub fn small() -> LogOptions {
    LogOptions::new().segment_bytes(64 << 10)
}

/// Without work in the background, and with memtables that are flushed only when they are asked.
pub fn quiet() -> Settings {
    Settings {
        compactor_options: None,
        flush_interval: None,
        garbage_collector_options: None,
        l0_max_ssts: 10_000,
        l0_max_ssts_per_key: 10_000,
        manifest_poll_interval: Duration::from_secs(3600),
        ..Settings::default()
    }
}

pub async fn open(store: &Store, wal: LocalWal) -> Result<Db, Error> {
    Db::builder("db", store.clone())
        .with_settings(quiet())
        .with_wal_writer(Box::new(wal))
        .build()
        .await
}

/// Returns when the row is durable.
pub async fn put(db: &Db, key: &str, value: &[u8]) -> Result<(), Error> {
    db.put(key, value).await?.await_durable().await
}

pub async fn has(db: &Db, key: &str) -> bool {
    db.get(key).await.expect("it is read").is_some()
}

pub async fn flush_memtable(db: &Db) -> Result<(), Error> {
    db.flush_with_options(FlushOptions { flush_type: FlushType::MemTable }).await
}

/// Closes it so that the rows since the last flush are only in the log.
pub async fn close(db: Db) {
    db.close_with_options(CloseOptions::default().with_flush_type(None)).await.expect("it closes");
}

/// Lets SlateDB collect what its manifest does not reference, in the log only.
pub async fn collect(store: &Store, wal: &LocalWal, min_age: Duration) {
    let wal_options = GarbageCollectorDirectoryOptions { interval: None, min_age, dry_run: false };
    let options = GarbageCollectorOptions {
        manifest_options: None,
        wal_options: Some(wal_options),
        wal_fence_options: None,
        compacted_options: None,
        compactions_options: None,
        detach_options: None,
        ..GarbageCollectorOptions::default()
    };
    GarbageCollectorBuilder::new("db", store.clone())
        .with_wal_gc(Arc::new(wal.clone()))
        .with_options(options)
        .build()
        .run_gc_once()
        .await;
}

const DIR: &str = "DIOXIDE_SLATEDB_DIR";

/// A child runs a test of this executable that is ignored otherwise, in a directory.
pub fn spawn(test: &str, dir: &Path) -> Writer {
    let mut child = Command::new("/proc/self/exe")
        .args(["--exact", test, "--ignored", "--nocapture"])
        .env(DIR, dir)
        .stdout(Stdio::piped())
        .spawn()
        .expect("the child starts");
    let lines = BufReader::new(child.stdout.take().expect("it is piped"));
    Writer { child, lines }
}

/// The directory of this child.
pub fn dir_of_child() -> std::path::PathBuf {
    std::env::var_os(DIR).expect("a parent starts this").into()
}

/// A child and the lines that it prints. Dropping it kills it.
pub struct Writer {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Writer {
    /// The next line that begins with this word, without the word. None at the end.
    pub fn next(&mut self, word: &str) -> Option<String> {
        loop {
            let mut line = String::new();
            self.lines.read_line(&mut line).expect("the pipe is read");
            // A child that is killed may leave a part of a line.
            let line = line.strip_suffix('\n')?;
            // The harness prints the name of the test in front of the first line.
            if let Some(at) = line.find(word) {
                return Some(line[at + word.len()..].trim().into());
            }
        }
    }

    /// Sends SIGKILL, and returns what was printed before.
    pub fn kill(mut self, word: &str) -> Vec<String> {
        self.child.kill().expect("it is killed");
        std::iter::from_fn(|| self.next(word)).collect()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
