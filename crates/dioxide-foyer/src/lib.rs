//! A disk cache engine for [foyer](https://docs.rs/foyer) 0.22 on dioxide.
//!
//! ```no_run
//! use dioxide_foyer::DioxideEngineConfig;
//! use foyer::{HybridCache, HybridCacheBuilder};
//!
//! # async fn example() -> foyer::Result<()> {
//! let cache: HybridCache<u64, String> = HybridCacheBuilder::new()
//!     .memory(64 << 20)
//!     .storage()
//!     .with_engine_config(DioxideEngineConfig::new("cache", 1 << 30))
//!     .build()
//!     .await?;
//! # Ok(())
//! # }
//! ```
//!
//! The cache is a ring: entries are written one behind the other, many as one request, over the
//! oldest ones. An index in memory has their places. It begins empty: nothing of an earlier process
//! is found.
//!
//! Reads and writes are direct, on io_uring. One thread of the process drives them and sleeps while
//! there is no work. An operation owns its memory until the kernel has released it, so the futures
//! of the cache may be dropped at any time.

#![forbid(unsafe_code)]

mod entry;
mod ring;

use dioxide::{AsyncFile, Buffer, Growth, OpenOptions};
use entry::Life;
use foyer::{
    Age, Device, DeviceBuilder, Engine, EngineBuildContext, EngineConfig, Error,
    HybridCacheProperties, Load, NoopDeviceBuilder, PieceRef, Result, Statistics,
    StorageFilterResult, StorageKey, StorageValue,
};
use foyer_storage::Populated;
use futures_core::future::BoxFuture;
use ring::Ring;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{mpsc, oneshot};

/// Entries wait for the disk up to this size in all. More are not cached on it.
const WAITING_BYTES_MAX: usize = 64 << 20;

/// A request has as many of the entries that wait as fit in this size, or one that is larger.
const REQUEST_BYTES: usize = 1 << 20;

/// Offsets and lengths of requests are multiples of this.
const BLOCK_BYTES: usize = 4096;

/// Makes the engine, for `with_engine_config` of foyer's builder.
#[derive(Clone, Debug)]
pub struct DioxideEngineConfig {
    path: PathBuf,
    capacity_bytes: u64,
}

impl DioxideEngineConfig {
    /// A cache of `capacity_bytes` in the file or block device `path`, whose content is lost. At
    /// least 64 KiB; rounded down to whole blocks. One cache at a time uses the path.
    pub fn new(path: impl AsRef<Path>, capacity_bytes: u64) -> Self {
        let capacity_bytes = capacity_bytes.max(64 << 10) / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
        Self { path: path.as_ref().to_owned(), capacity_bytes }
    }
}

impl<K: StorageKey, V: StorageValue> From<DioxideEngineConfig>
    for Box<dyn EngineConfig<K, V, HybridCacheProperties>>
{
    fn from(config: DioxideEngineConfig) -> Self {
        Box::new(config)
    }
}

impl<K: StorageKey, V: StorageValue> EngineConfig<K, V, HybridCacheProperties>
    for DioxideEngineConfig
{
    fn build(
        self: Box<Self>,
        context: EngineBuildContext,
    ) -> BoxFuture<'static, Result<Arc<dyn Engine<K, V, HybridCacheProperties>>>> {
        Box::pin(async move {
            let mut options = OpenOptions::new();
            options.write(true).create(true).growth(Growth::None);
            let file = AsyncFile::open(&options, &self.path).await.map_err(failed)?;
            let len = file.len().map_err(failed)?;
            if len < self.capacity_bytes {
                file.set_len(self.capacity_bytes).await.map_err(failed)?;
            }
            let device = NoopDeviceBuilder::new(self.capacity_bytes as usize).build()?;
            let (jobs, to_do) = mpsc::unbounded_channel();
            let shared = Arc::new(Shared {
                file,
                life: Life::new(),
                capacity_bytes: self.capacity_bytes,
                state: Mutex::default(),
                statistics: device.statistics().clone(),
            });
            drop(context.spawner.spawn(write_out(shared.clone(), to_do)));
            Ok(Arc::new(DioxideEngine { shared, jobs, device }) as Arc<dyn Engine<_, _, _>>)
        })
    }
}

fn failed(error: dioxide::Error) -> Error {
    Error::io_error(error.into())
}

struct Shared {
    file: AsyncFile,
    life: Life,
    capacity_bytes: u64,
    state: Mutex<State>,
    statistics: Arc<Statistics>,
}

#[derive(Default)]
struct State {
    ring: Ring,
    /// Where the next request goes, over the oldest entries.
    head: u64,
    waiting_bytes: usize,
    is_closed: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long the entry at an offset stays. One that is old is overwritten soon, so it is written
    /// again if it is still in use.
    fn age(&self, offset: u64, head: u64) -> Age {
        let ahead = (offset + self.capacity_bytes - head) % self.capacity_bytes;
        if ahead < self.capacity_bytes / 4 { Age::Old } else { Age::Young }
    }

    /// The largest entry, so that a ring has some.
    fn entry_bytes_max(&self) -> usize {
        self.capacity_bytes as usize / 4
    }
}

enum Job<K: StorageKey, V> {
    Write {
        piece: PieceRef<K, V, HybridCacheProperties>,
        number: u64,
        bytes: usize,
    },
    /// Answered when all earlier jobs are done.
    Answer(oneshot::Sender<()>),
}

struct DioxideEngine<K: StorageKey, V> {
    shared: Arc<Shared>,
    jobs: mpsc::UnboundedSender<Job<K, V>>,
    device: Arc<dyn Device>,
}

impl<K: StorageKey, V> fmt::Debug for DioxideEngine<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let capacity = &self.shared.capacity_bytes;
        f.debug_struct("DioxideEngine").field("capacity_bytes", capacity).finish_non_exhaustive()
    }
}

impl<K: StorageKey, V: StorageValue> DioxideEngine<K, V> {
    fn settle(&self) -> BoxFuture<'static, ()> {
        let (done, answer) = oneshot::channel();
        // If the runtime has ended, so has its task, and nothing is written any more.
        let _ = self.jobs.send(Job::Answer(done));
        Box::pin(async move {
            let _ = answer.await;
        })
    }

    fn settled(&self) -> BoxFuture<'static, Result<()>> {
        let settled = self.settle();
        Box::pin(async move {
            settled.await;
            Ok(())
        })
    }
}

impl<K: StorageKey, V: StorageValue> Engine<K, V, HybridCacheProperties> for DioxideEngine<K, V> {
    /// Only for its capacity and its statistics: no request passes through it.
    fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    fn filter(&self, _hash: u64, estimated_size: usize) -> StorageFilterResult {
        match entry::HEADER_BYTES + estimated_size <= self.shared.entry_bytes_max() {
            true => StorageFilterResult::Admit,
            false => StorageFilterResult::Reject,
        }
    }

    fn enqueue(&self, piece: PieceRef<K, V, HybridCacheProperties>, estimated_size: usize) {
        let bytes = entry::HEADER_BYTES + estimated_size;
        let mut state = self.shared.lock();
        // It came from the disk, and is still there, or a newer one is.
        let is_young = matches!(piece.properties().age(), Age::Young);
        if is_young && state.ring.may_contain(piece.hash()) {
            return;
        }
        // From now on an older entry of the key is wrong, also if this one is not written.
        state.ring.remove(piece.hash());
        if state.is_closed || state.waiting_bytes + bytes > WAITING_BYTES_MAX {
            return;
        }
        let number = state.ring.expect(piece.hash());
        state.waiting_bytes += bytes;
        // Under the lock: in the order of the numbers.
        let _ = self.jobs.send(Job::Write { piece, number, bytes });
    }

    fn load(&self, hash: u64) -> BoxFuture<'static, Result<Load<K, V, HybridCacheProperties>>> {
        let shared = self.shared.clone();
        Box::pin(async move {
            let (place, head) = {
                let state = shared.lock();
                (state.ring.find(hash), state.head)
            };
            let Some(place) = place else { return Ok(Load::Miss) };
            // Whole blocks go into the memory without a copy.
            let within = (place.offset % BLOCK_BYTES as u64) as usize;
            let len = (within + place.len).next_multiple_of(BLOCK_BYTES);
            let begin = place.offset - within as u64;
            let (read, blocks) = shared.file.read_at(Buffer::zeroed(len), begin).await;
            read.map_err(failed)?;
            shared.statistics.record_disk_read(len);
            // A newer entry may have been written over it meanwhile.
            let bytes = &blocks[within..within + place.len];
            let Some(mut entry) = shared.life.content(bytes, hash, place.number) else {
                return Ok(Load::Miss);
            };
            let key = K::decode(&mut entry)?;
            let value = V::decode(&mut entry)?;
            let age = shared.age(place.offset, head);
            Ok(Load::Entry { key, value, populated: Populated { age } })
        })
    }

    fn delete(&self, hash: u64) {
        self.shared.lock().ring.remove(hash);
    }

    fn may_contains(&self, hash: u64) -> bool {
        self.shared.lock().ring.may_contain(hash)
    }

    fn destroy(&self) -> BoxFuture<'static, Result<()>> {
        self.shared.lock().ring.clear();
        self.settled()
    }

    fn wait(&self) -> BoxFuture<'static, ()> {
        self.settle()
    }

    fn close(&self) -> BoxFuture<'static, Result<()>> {
        self.shared.lock().is_closed = true;
        self.settled()
    }
}

/// Entries of a request, by their offset in it.
struct Written<K: StorageKey, V> {
    piece: PieceRef<K, V, HybridCacheProperties>,
    number: u64,
    within: usize,
    len: usize,
}

/// Writes entries until the engine is dropped.
async fn write_out<K: StorageKey, V: StorageValue>(
    shared: Arc<Shared>,
    mut to_do: mpsc::UnboundedReceiver<Job<K, V>>,
) {
    let enough = REQUEST_BYTES.min(shared.entry_bytes_max());
    while let Some(first) = to_do.recv().await {
        let mut request = Vec::new();
        let (mut entries, mut answers) = (Vec::new(), Vec::new());
        let mut waited_bytes = 0;
        let mut next = Some(first);
        while let Some(job) = next {
            match job {
                Job::Answer(answer) => answers.push(answer),
                Job::Write { piece, number, bytes } => {
                    waited_bytes += bytes;
                    let within = request.len();
                    let len = add(&shared, &mut request, &piece, number);
                    entries.extend(len.map(|len| Written { piece, number, within, len }));
                }
            }
            next = if request.len() < enough { to_do.try_recv().ok() } else { None };
        }
        if !entries.is_empty() {
            request.resize(request.len().next_multiple_of(BLOCK_BYTES), 0);
            write(&shared, &request, &entries).await;
        }
        shared.lock().waiting_bytes -= waited_bytes;
        // foyer finds the entries in memory until they are in the index.
        drop(entries);
        for answer in answers {
            // The future that asked may be dropped.
            let _ = answer.send(());
        }
    }
}

/// Adds an entry to a request, unless a newer one or a deletion has superseded it. Returns its
/// length.
fn add<K: StorageKey, V: StorageValue>(
    shared: &Shared,
    request: &mut Vec<u8>,
    piece: &PieceRef<K, V, HybridCacheProperties>,
    number: u64,
) -> Option<usize> {
    if !shared.lock().ring.is_expected(piece.hash(), number) {
        return None;
    }
    let begin = request.len();
    let added = || {
        shared.life.add(request, piece.hash(), number, |request| {
            piece.key().encode(request)?;
            piece.value().encode(request)
        })
    };
    // A panic must not end the task. The entry is removed below.
    let added = catch_unwind(AssertUnwindSafe(added));
    let len = request.len() - begin;
    match added {
        Ok(Ok(())) if len <= shared.entry_bytes_max() => return Some(len),
        Ok(Ok(())) => log::warn!("dioxide: an entry of {len} bytes is too large for the cache"),
        Ok(Err(error)) => log::warn!("dioxide: an entry cannot be encoded: {error}"),
        Err(_) => log::error!("dioxide: the encoder of an entry panicked"),
    }
    request.truncate(begin);
    shared.lock().ring.give_up(piece.hash(), number);
    None
}

/// Writes a request over the oldest entries.
async fn write<K: StorageKey, V: StorageValue>(
    shared: &Shared,
    request: &[u8],
    entries: &[Written<K, V>],
) {
    let len = request.len() as u64;
    let offset = {
        let mut state = shared.lock();
        let fits = state.head + len <= shared.capacity_bytes;
        let offset = if fits { state.head } else { 0 };
        state.head = offset + len;
        state.ring.forget(offset..offset + len);
        offset
    };
    let (written, _) = shared.file.write_at(Buffer::from(request), offset).await;
    let mut state = shared.lock();
    for Written { piece, number, within, len } in entries {
        match &written {
            Ok(_) => state.ring.place(piece.hash(), *number, offset + *within as u64, *len),
            Err(_) => state.ring.give_up(piece.hash(), *number),
        }
    }
    drop(state);
    match written {
        Ok(_) => shared.statistics.record_disk_write(request.len()),
        Err(error) => log::error!(
            "dioxide: {} entries are not cached: {}",
            entries.len(),
            io::Error::from(error)
        ),
    }
}
