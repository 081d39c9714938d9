//! Futures under several kinds of executors. Acknowledged data is there. A dropped operation has
//! its whole effect or none. Its memory is neither freed early nor lost.

mod common;

use common::*;
use dioxide::{
    AsyncFile, Buffer, Durability, ErrorKind, File, LocalReactor, OpenOptions, Queue, QueueOptions,
    Reactor,
};
use dioxide::{Result, Transfer};
use dioxide_testkit::fork::holds_in_a_fork;
use dioxide_testkit::lab::{self, Disk, Fs, TestDir};
use dioxide_testkit::trials::{Trial, TrialResult, disk_trial, lab_trials, lab_trials_where};
use std::collections::HashMap;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

/// An executor of futures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Executor {
    Tokio,
    TokioInOneThread,
    Smol,
    /// A thread and a `block_on` for each task.
    Threads,
    /// The executor of a local reactor, on the thread of the tasks.
    Local,
}

impl Executor {
    const ALL: [Self; 5] =
        [Self::Tokio, Self::TokioInOneThread, Self::Smol, Self::Threads, Self::Local];

    /// Runs `count` tasks on the file, each with its number, and closes the file.
    fn run<T, F>(
        self,
        file: File,
        count: u64,
        task: impl Fn(Arc<AsyncFile>, u64) -> F,
    ) -> Result<Vec<T>>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let local = LocalReactor::new(QueueOptions::new().depth(64));
        let file = match self {
            Self::Local => local.attach(file),
            _ => AsyncFile::from(file),
        };
        let file = Arc::new(file);
        let tasks: Vec<_> = (0..count).map(|number| task(file.clone(), number)).collect();
        let close = || Arc::into_inner(file).expect("the tasks have ended").close();
        match self {
            Self::Tokio => {
                let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(3).build();
                in_tokio(&runtime.expect("a runtime"), tasks, close)
            }
            Self::TokioInOneThread => {
                let runtime = tokio::runtime::Builder::new_current_thread().build();
                in_tokio(&runtime.expect("a runtime"), tasks, close)
            }
            Self::Smol => smol::block_on(async {
                let mut all = Vec::new();
                for task in tasks.into_iter().map(smol::spawn).collect::<Vec<_>>() {
                    all.push(task.await);
                }
                close().await.map(|()| all)
            }),
            Self::Threads => {
                let threads: Vec<_> =
                    tasks.into_iter().map(|task| thread::spawn(|| block_on(task))).collect();
                let all = threads
                    .into_iter()
                    .map(|thread| thread.join().expect("no task panics"))
                    .collect();
                block_on(close()).map(|()| all)
            }
            Self::Local => {
                let all =
                    local.block_on(All(tasks.into_iter().map(|task| Polled::new(task)).collect()));
                local.block_on(close()).map(|()| all)
            }
        }
    }
}

fn in_tokio<T, F, C>(
    runtime: &tokio::runtime::Runtime,
    tasks: Vec<F>,
    close: impl FnOnce() -> C,
) -> Result<Vec<T>>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
    C: Future<Output = Result<()>>,
{
    runtime.block_on(async {
        let mut all = Vec::new();
        for task in tasks.into_iter().map(tokio::spawn).collect::<Vec<_>>() {
            all.push(task.await.expect("no task panics"));
        }
        close().await.map(|()| all)
    })
}

/// Polls a future a limited number of times, then drops it.
struct Fickle<F> {
    future: Option<F>,
    patience: u64,
}

impl<F: Future + Unpin> Future for Fickle<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<F::Output>> {
        let future = self.future.as_mut().expect("polled until it is ready");
        if let Poll::Ready(output) = Pin::new(future).poll(context) {
            return Poll::Ready(Some(output));
        }
        let Some(patience) = self.patience.checked_sub(1) else {
            self.future = None;
            return Poll::Ready(None);
        };
        self.patience = patience;
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Counted memory, poisoned when it is dropped.
struct Counted {
    bytes: Buffer,
    _count: Arc<()>,
}

impl Counted {
    fn record(count: &Arc<()>, writer: u64, number: u64, blocks: u64) -> Self {
        Self { bytes: record(writer, number, blocks), _count: count.clone() }
    }
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsMut<[u8]> for Counted {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.bytes.fill(POISON);
    }
}

fn log(durability: Durability) -> OpenOptions {
    writable().durability(durability).growth_cap(MIB).clone()
}

/// Polls a future once, with a waker that does nothing.
fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Panics instead of a hang.
fn within_patience<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = mpsc::channel();
    let thread = thread::spawn(move || done.send(work()));
    match result.recv_timeout(PATIENCE) {
        Ok(result) => result,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("nobody answers"),
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            resume_unwind(thread.join().expect_err("it panicked"))
        }
    }
}

/// The records of a file, by writer and number, with their offsets. Checks that each is there once
/// and whole, and nothing else.
fn records_in(content: &[u8]) -> HashMap<(u64, u64), (u64, u64)> {
    let mut found: HashMap<(u64, u64), (u64, u64)> = HashMap::new();
    for (block, offset) in content.chunks(BLOCK).zip((0..).step_by(BLOCK)) {
        let stamp = Stamp::of(block).unwrap_or_else(|| panic!("no record at {offset}"));
        let (start, blocks) = found.entry((stamp.writer, stamp.number)).or_insert((offset, 0));
        assert_eq!(
            (stamp.part, *start + *blocks * BLOCK_BYTES),
            (*blocks, offset),
            "{stamp:?} at {offset}"
        );
        *blocks += 1;
    }
    found
}

// --- appends -------------------------------------------------------------------------------------

fn tasks_append_and_read(dir: TestDir, executor: Executor) -> TrialResult {
    for (durability, tasks) in [(Durability::EveryWrite, 64), (Durability::OnSync, 200)] {
        let path = dir.join(format!("{durability:?}"));
        let file = log(durability).open(&path)?;
        let all = executor.run(file, tasks, |file, writer| async move {
            let mut placed = Vec::new();
            for number in 0..6 {
                let blocks = 1 + (writer + number) % 4;
                let data = record(writer, number, blocks);
                let start = data.as_ptr() as usize;
                let (appended, data) = file.append(data).await;
                assert_eq!(data.as_ptr() as usize, start, "its own memory");
                let placed_here =
                    Placed { offset: appended.expect("there is space"), writer, number, blocks };
                assert!(file.len().unwrap() >= placed_here.end());
                let (read, data) = file.read_at(data, placed_here.offset).await;
                assert_eq!(read.expect("it is there"), data.len() as u64);
                assert!(Placed { offset: 0, ..placed_here }.is_in(&data));
                placed.push(placed_here);
            }
            let (written, _) =
                file.write_at(record(writer, 0, 1 + writer % 4), placed[0].offset).await;
            assert_eq!(written, Ok((1 + writer % 4) * BLOCK_BYTES));
            file.sync_data().await.expect("it syncs");
            assert!(placed.is_sorted());
            placed
        });
        let all = all?.concat();
        let end = assert_gapless(&all, 0);
        assert_tidy(&path, end)?;
        assert_all_there(&fs::read(&path)?, &all);
    }
    Ok(())
}

fn a_thousand_tasks_append(dir: TestDir) -> TrialResult {
    let path = dir.join("log");
    let file = log(Durability::EveryWrite).open(&path)?;
    let all = Executor::Tokio.run(file, 1024, |file, writer| async move {
        let mut placed = Vec::new();
        for number in 0..4 {
            let (appended, _) = file.append(record(writer, number, 1)).await;
            placed.push(Placed {
                offset: appended.expect("there is space"),
                writer,
                number,
                blocks: 1,
            });
        }
        placed
    })?;
    let all = all.concat();
    let end = assert_gapless(&all, 0);
    assert_tidy(&path, end)?;
    assert_all_there(&fs::read(&path)?, &all);
    Ok(())
}

/// In batches: tasks whose appends complete together share a flush.
fn tasks_share_flushes(dir: TestDir) -> TrialResult {
    let file = Arc::new(AsyncFile::from(log(Durability::EveryWrite).open(dir.join("log"))?));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build()?;
    runtime.block_on(async {
        let append = |file: Arc<AsyncFile>, writer| async move {
            for number in 0..50 {
                file.append(record(writer, number, 1)).await.0.expect("there is space");
            }
        };
        let tasks: Vec<_> =
            (0..64).map(|writer| tokio::spawn(append(file.clone(), writer))).collect();
        for task in tasks {
            task.await.expect("no task panics");
        }
    });
    let stats = file.file().stats();
    let flushes = stats.flushes + stats.dsync_requests;
    assert_eq!(stats.appends, 64 * 50);
    assert!(flushes * 8 < stats.appends, "{flushes} flushes for {} appends", stats.appends);
    Ok(())
}

// --- drops ---------------------------------------------------------------------------------------

/// What a task knows of an append.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Known {
    /// It must have no effect.
    Never,
    /// It has its whole effect or none.
    Maybe,
    At(u64),
}

/// Appends, and drops some of the futures at random.
async fn append_and_drop(
    file: Arc<AsyncFile>,
    writer: u64,
    count: Arc<()>,
) -> Vec<(u64, u64, Known)> {
    let mut random = Random::new(writer);
    let mut all = Vec::new();
    for number in 0..20 {
        let blocks = 1 + random.below(4);
        let mut append = file.append(Counted::record(&count, writer, number, blocks));
        let known = match random.below(4) {
            0 => {
                drop(append);
                Known::Never
            }
            1 => match poll_once(&mut append) {
                Poll::Pending => Known::Maybe,
                Poll::Ready(_) => panic!("nobody can be so fast"),
            },
            2 => match (Fickle { future: Some(append), patience: random.below(60).pow(3) / 10 })
                .await
            {
                None => Known::Maybe,
                Some((appended, _)) => Known::At(appended.expect("there is space")),
            },
            _ => {
                let (appended, data) = append.await;
                assert_eq!(
                    &data.bytes[..],
                    &record(writer, number, blocks)[..],
                    "its memory was touched"
                );
                Known::At(appended.expect("there is space"))
            }
        };
        all.push((number, blocks, known));
    }
    all
}

fn dropped_appends_are_wholly_there_or_not_at_all(dir: TestDir, executor: Executor) -> TrialResult {
    for durability in [Durability::OnSync, Durability::EveryWrite] {
        let path = dir.join(format!("{durability:?}"));
        let count = Arc::new(());
        let counted = count.clone();
        let file = log(durability).open(&path)?;
        let by_task = executor
            .run(file, 64, move |file, writer| append_and_drop(file, writer, counted.clone()))?;
        assert!(
            soon(|| Arc::strong_count(&count) == 1),
            "{} were not freed",
            Arc::strong_count(&count) - 1
        );
        let found = records_in(&fs::read(&path)?);
        for (writer, all) in (0..).zip(by_task) {
            for (number, blocks, known) in all {
                let there = found.get(&(writer, number));
                match known {
                    Known::Never => assert_eq!(there, None, "{writer}, {number}: it never began"),
                    Known::Maybe => {
                        assert!(there.is_none_or(|there| there.1 == blocks), "{there:?}")
                    }
                    Known::At(offset) => {
                        assert_eq!(there, Some(&(offset, blocks)), "{writer}, {number}")
                    }
                }
            }
        }
    }
    Ok(())
}

/// More appends than the reactor takes at once are polled and dropped. Those that it has not begun
/// have no effect, and take no space.
fn what_the_reactor_has_not_come_to_is_taken_back(dir: TestDir) -> TrialResult {
    let local = LocalReactor::new(QueueOptions::new().depth(4));
    let path = dir.join("log");
    let file = local.attach(log(Durability::EveryWrite).open(&path)?);
    let count = Arc::new(());
    for round in 0..100 {
        let mut appends: Vec<_> =
            (0..100).map(|n| file.append(Counted::record(&count, round, n, 1))).collect();
        assert!(appends.iter_mut().all(|append| poll_once(append).is_pending()));
        drop(appends);
        assert_eq!(Arc::strong_count(&count), 1, "its memory is free at once");
    }
    let (appended, _) = local.block_on(file.append(record(1, 1, 1)));
    assert_eq!(appended, Ok(0), "nothing of the others ever happened");
    local.block_on(file.close())?;
    assert_tidy(&path, BLOCK_BYTES)?;
    Ok(())
}

/// No dropped append wakes the reactor for those behind it.
fn given_up_appends_do_not_hold_up_the_one_behind_them(dir: TestDir) -> TrialResult {
    for depth in [1, 3] {
        let path = dir.join(format!("log{depth}"));
        let appended = within_patience(move || {
            let local = LocalReactor::new(QueueOptions::new().depth(depth));
            let file = local.attach(log(Durability::OnSync).open(path).expect("it opens"));
            let mut appends: Vec<_> =
                (0..4 * depth as u64).map(|n| file.append(record(1, n, 1))).collect();
            assert!(appends.iter_mut().all(|append| poll_once(append).is_pending()));
            let last = appends.pop().expect("there are some");
            drop(appends);
            local.block_on(last).0
        });
        assert_eq!(appended, Ok(0), "{depth} at a time");
    }
    Ok(())
}

/// The memory of dropped reads has no other use while the kernel fills it.
fn dropped_reads_leave_other_memory_alone(dir: TestDir, executor: Executor) -> TrialResult {
    let file = log(Durability::OnSync).open(dir.join("log"))?;
    append(&file, 1, 0, 256)?;
    executor.run(file, 32, |file, reader| async move {
        let mut random = Random::new(reader);
        for _ in 0..50 {
            let block = random.below(192);
            let mut read = file.read_at(Buffer::zeroed(64 * BLOCK), block * BLOCK_BYTES);
            if random.below(2) == 0 {
                drop(Fickle { future: Some(read), patience: random.below(3) }.await);
            } else {
                let _ = poll_once(&mut read);
                drop(read);
            }
            // As much as was just dropped.
            let mine = Buffer::zeroed(64 * BLOCK);
            let (read, data) = file.read_at(Buffer::zeroed(BLOCK), block * BLOCK_BYTES).await;
            assert_eq!(read, Ok(BLOCK_BYTES));
            assert_eq!(Stamp::of(&data), Some(Stamp { writer: 1, number: 0, part: block }));
            assert!(mine.iter().all(|byte| *byte == 0), "somebody else's memory was read into");
        }
    })?;
    Ok(())
}

fn a_runtime_ends_with_operations_in_flight(dir: TestDir) -> TrialResult {
    for seed in 0..10 {
        let path = dir.join(format!("log{seed}"));
        let file = Arc::new(AsyncFile::from(log(Durability::EveryWrite).open(&path)?));
        let count = Arc::new(());
        let acknowledged = Arc::new(Mutex::new(Vec::new()));
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build()?;
        for writer in 0..64 {
            let (file, count, acknowledged) = (file.clone(), count.clone(), acknowledged.clone());
            runtime.spawn(async move {
                for number in 0.. {
                    let (appended, _) =
                        file.append(Counted::record(&count, writer, number, 1)).await;
                    let offset = appended.expect("there is space");
                    acknowledged.lock().unwrap().push(((writer, number), (offset, 1)));
                }
            });
        }
        thread::sleep(Duration::from_millis(10 + seed));
        drop(runtime);
        block_on(Arc::into_inner(file).expect("the tasks are no more").close())?;
        assert!(soon(|| Arc::strong_count(&count) == 1), "memory was not freed");
        let found = records_in(&fs::read(&path)?);
        for (name, there) in acknowledged.lock().unwrap().iter() {
            assert_eq!(found.get(name), Some(there), "{name:?}");
        }
    }
    Ok(())
}

/// A close waits for operations whose futures were dropped.
fn a_file_is_closed_with_abandoned_operations_in_flight(dir: TestDir) -> TrialResult {
    for round in 0..20 {
        let path = dir.join(format!("log{round}"));
        let file = AsyncFile::from(log(Durability::EveryWrite).open(&path)?);
        let count = Arc::new(());
        let mut appends: Vec<_> =
            (0..50).map(|n| file.append(Counted::record(&count, round, n, 2))).collect();
        assert!(appends.iter_mut().all(|append| poll_once(append).is_pending()));
        thread::sleep(Duration::from_micros(50 * round));
        drop(appends);
        match round % 3 {
            0 => block_on(file.close())?,
            1 => file.into_inner().close()?,
            _ => drop(file),
        }
        // The close has also waited for the reactor.
        assert_eq!(Arc::strong_count(&count), 1, "round {round}: memory was not freed");
        let found = records_in(&fs::read(&path)?);
        assert!(found.values().all(|(_, blocks)| *blocks == 2), "{found:?}");
        assert_tidy(&path, found.len() as u64 * 2 * BLOCK_BYTES)?;
    }
    Ok(())
}

/// A forgotten future is never polled again, and never dropped.
fn a_forgotten_future_keeps_its_memory_and_no_one_waiting(dir: TestDir) -> TrialResult {
    let path = dir.join("log");
    let file = AsyncFile::from(log(Durability::EveryWrite).open(&path)?);
    let mut append = file.append(record(1, 0, 1));
    let _ = poll_once(&mut append);
    std::mem::forget(append);
    let (appended, _) = block_on(file.append(record(1, 1, 1)));
    assert_eq!(appended, Ok(BLOCK_BYTES));
    within_patience(move || block_on(file.close()))?;
    assert_tidy(&path, 2 * BLOCK_BYTES)?;
    Ok(())
}

// --- wakers --------------------------------------------------------------------------------------

/// Runs a function in its wake, on the reactor's thread.
struct OnWake<F: FnOnce() + Send>(Mutex<Option<F>>);

impl<F: FnOnce() + Send + 'static> OnWake<F> {
    fn waker(act: F) -> Waker {
        Waker::from(Arc::new(Self(Mutex::new(Some(act)))))
    }
}

impl<F: FnOnce() + Send> Wake for OnWake<F> {
    fn wake(self: Arc<Self>) {
        let act = self.0.lock().unwrap().take();
        act.into_iter().for_each(|act| act());
    }
}

/// Begins an append with this waker, and forgets the future.
fn append_and_forget(file: &AsyncFile, data: Buffer, waker: &Waker) {
    let mut append = file.append(data);
    assert!(Pin::new(&mut append).poll(&mut Context::from_waker(waker)).is_pending());
    std::mem::forget(append);
}

/// Calls in a waker must not wait for the reactor: they are on its thread.
fn a_waker_makes_blocking_calls_and_drops_files(dir: TestDir) -> TrialResult {
    let reactor = Reactor::start(&QueueOptions::new())?;
    let path = dir.join("log");
    let file = Arc::new(reactor.attach(log(Durability::EveryWrite).open(&path)?));
    let other = reactor.attach(log(Durability::EveryWrite).open(dir.join("other"))?);
    let (done, result) = mpsc::channel();
    let waker = OnWake::waker({
        let (file, path) = (file.clone(), dir.join("other"));
        move || {
            // In flight on the queue of this thread.
            for number in 1..20 {
                append_and_forget(&file, record(1, number, 1), Waker::noop());
            }
            let appended = file.file().append(&record(2, 0, 1));
            let synced = file.file().sync_data();
            drop(other);
            let again = log(Durability::EveryWrite).open(&path).and_then(File::close);
            let cut = file.file().set_len(file.len().unwrap());
            drop(file);
            done.send((appended.is_ok(), synced, again, cut)).unwrap();
        }
    });
    for number in 20..40 {
        append_and_forget(&file, record(1, number, 1), Waker::noop());
    }
    append_and_forget(&file, record(1, 0, 1), &waker);
    let (appended, synced, again, cut) = result.recv_timeout(PATIENCE)?;
    assert!(appended);
    synced.and(again).and(cut)?;
    drop(waker);
    let (appended, _) = block_on(file.append(record(3, 0, 1)));
    appended?;
    within_patience(move || block_on(Arc::into_inner(file).expect("nobody else has it").close()))?;
    assert_eq!(records_in(&fs::read(&path)?).len(), 42);
    Ok(())
}

fn the_last_file_and_its_reactor_are_dropped_in_a_waker(dir: TestDir) -> TrialResult {
    let path = dir.join("log");
    let reactor = Reactor::start(&QueueOptions::new())?;
    let file = Arc::new(reactor.attach(log(Durability::EveryWrite).open(&path)?));
    drop(reactor);
    let (done, result) = mpsc::channel();
    let last = file.clone();
    append_and_forget(
        &file,
        record(1, 0, 1),
        &OnWake::waker(move || {
            drop(last);
            done.send(()).unwrap();
        }),
    );
    drop(file);
    result.recv_timeout(PATIENCE)?;
    assert_tidy(&path, BLOCK_BYTES)?;
    Ok(())
}

fn a_waker_that_panics_takes_no_other_future_along(dir: TestDir) -> TrialResult {
    let file = AsyncFile::from(log(Durability::EveryWrite).open(dir.join("log"))?);
    for round in 0..10 {
        for number in 0..10 {
            // A panic without a message.
            let waker = OnWake::waker(|| resume_unwind(Box::new(())));
            append_and_forget(&file, record(round, number, 1), &waker);
        }
        let (appended, _) = block_on(file.append(record(round, 10, 1)));
        appended?;
    }
    within_patience(move || block_on(file.close()))?;
    Ok(())
}

/// A waker that polls its task at once lets it begin more operations from there.
fn a_task_goes_on_inside_its_waker(dir: TestDir) -> TrialResult {
    struct Inline {
        task: Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>,
        done: Mutex<Sender<()>>,
    }
    impl Wake for Inline {
        fn wake(self: Arc<Self>) {
            // No other thread polls it: one operation is in flight at a time.
            let Some(mut task) = self.task.lock().unwrap().take() else { return };
            let waker = Waker::from(self.clone());
            let mut context = Context::from_waker(&waker);
            let mut place = self.task.lock().unwrap();
            match task.as_mut().poll(&mut context) {
                Poll::Ready(()) => self.done.lock().unwrap().send(()).unwrap(),
                Poll::Pending => *place = Some(task),
            }
        }
    }
    let path = dir.join("log");
    let file = Arc::new(AsyncFile::from(log(Durability::EveryWrite).open(&path)?));
    let (done, result) = mpsc::channel();
    let tasks: Vec<_> = (0..16)
        .map(|writer| {
            let file = file.clone();
            let task = async move {
                for number in 0..20 {
                    file.append(record(writer, number, 1)).await.0.expect("there is space");
                }
            };
            let (task, done) =
                (Mutex::new(Some(Box::pin(task) as Pin<Box<_>>)), Mutex::new(done.clone()));
            Arc::new(Inline { task, done })
        })
        .collect();
    tasks.iter().for_each(|task| task.clone().wake());
    for _ in &tasks {
        result.recv_timeout(PATIENCE)?;
    }
    block_on(Arc::into_inner(file).expect("the tasks have ended").close())?;
    assert_eq!(records_in(&fs::read(&path)?).len(), 16 * 20);
    Ok(())
}

// --- reactors ------------------------------------------------------------------------------------

fn a_reactor_of_plain_calls_does_the_same(dir: TestDir) -> TrialResult {
    let path = dir.join("log");
    let reactor = Reactor::start(QueueOptions::new().depth(16).io_uring(false))?;
    let file = Arc::new(reactor.attach(log(Durability::EveryWrite).open(&path)?));
    let count = Arc::new(());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build()?;
    runtime.block_on(async {
        let tasks: Vec<_> = (0..64)
            .map(|writer| tokio::spawn(append_and_drop(file.clone(), writer, count.clone())))
            .collect();
        for task in tasks {
            task.await.expect("no task panics");
        }
    });
    let (read, data) = block_on(file.read_at(Buffer::zeroed(BLOCK), 0));
    assert!(read == Ok(BLOCK_BYTES) && Stamp::of(&data).is_some());
    block_on(Arc::into_inner(file).expect("the tasks have ended").close())?;
    assert_eq!(Arc::strong_count(&count), 1);
    records_in(&fs::read(&path)?);
    Ok(())
}

/// The reactor's thread starts with the first operation, sleeps without operations, and ends with
/// the last owner.
fn a_reactor_sleeps_and_ends(dir: TestDir) -> TrialResult {
    let reactor = Reactor::start(&QueueOptions::new())?;
    let file = reactor.attach(log(Durability::EveryWrite).open(dir.join("log"))?);
    // Wakers run on its thread. schedstat shows the CPU time of that thread.
    let (tell, told) = mpsc::channel();
    let waker = OnWake::waker(move || tell.send(fs::read_link("/proc/thread-self")).unwrap());
    append_and_forget(&file, record(1, 0, 1), &waker);
    let thread = Path::new("/proc").join(told.recv_timeout(PATIENCE)??);
    assert_eq!(fs::read_to_string(thread.join("comm"))?.trim_end(), "dioxide-reactor");
    let stat = thread.join("schedstat");
    let used = || {
        fs::read_to_string(&stat)
            .map(|stat| stat.split(' ').next().and_then(|ns| ns.parse::<u64>().ok()))
    };
    assert!(used()?.is_some());
    let sleeps = || {
        let before = used().ok();
        thread::sleep(Duration::from_millis(300));
        used().ok() == before
    };
    assert!(soon(sleeps), "it does not sleep");
    drop(reactor);
    block_on(file.append(record(1, 1, 1))).0?;
    assert!(thread.exists(), "a file is left");
    drop(file);
    assert!(soon(|| !thread.exists()), "it does not end");
    Ok(())
}

fn files_and_reactors_can_be_shown(dir: TestDir) -> TrialResult {
    let file = log(Durability::OnSync).open(dir.join("log"))?;
    let file = AsyncFile::from(file);
    let mut append = file.append(record(1, 0, 1));
    let _ = poll_once(&mut append);
    let shown = format!("{append:?} {file:?} {:?} {:?}", file.file(), Reactor::shared());
    assert!(shown.contains("Transfer") && shown.contains("Reactor"), "{shown}");
    Ok(())
}

fn what_is_left_of_a_local_reactor_is_refused(dir: TestDir) -> TrialResult {
    let path = dir.join("log");
    let local = LocalReactor::new(QueueOptions::new().depth(2));
    let file = local.attach(log(Durability::EveryWrite).open(&path)?);
    let mut appends: Vec<_> = (0..4).map(|number| file.append(record(1, number, 1))).collect();
    assert!(appends.iter_mut().all(|append| poll_once(append).is_pending()));
    local.try_turn();
    drop(local);
    let results: Vec<_> = appends.into_iter().map(|append| block_on(append).0).collect();
    assert_eq!((&results[0], &results[1]), (&Ok(0), &Ok(BLOCK_BYTES)), "these were begun");
    for result in results.into_iter().skip(2).chain([block_on(file.append(record(1, 9, 1))).0]) {
        assert_eq!(refusal(result), ErrorKind::Os(libc::ECANCELED));
    }
    file.into_inner().close()?;
    assert_tidy(&path, 2 * BLOCK_BYTES)?;
    Ok(())
}

/// Other threads poll and are woken while one drives.
fn a_local_reactor_serves_other_threads(dir: TestDir) -> TrialResult {
    let local = LocalReactor::new(&QueueOptions::new());
    let file = Arc::new(local.attach(log(Durability::EveryWrite).open(dir.join("log"))?));
    let left = Arc::new(AtomicUsize::new(4));
    let threads: Vec<_> = (0..4)
        .map(|writer| {
            let (file, left, waker) = (file.clone(), left.clone(), local.waker());
            thread::spawn(move || {
                for number in 0..20 {
                    block_on(file.append(record(writer, number, 1))).0.expect("there is space");
                }
                left.fetch_sub(1, SeqCst);
                waker.wake();
            })
        })
        .collect();
    while left.load(SeqCst) > 0 {
        local.turn();
    }
    threads.into_iter().for_each(|thread| thread.join().expect("no thread panics"));
    assert_eq!(file.len()?, 80 * BLOCK_BYTES);
    local.block_on(Arc::into_inner(file).expect("the threads have ended").close())?;
    Ok(())
}

/// Its thread may do anything between the wake and the turn.
fn a_turn_ends_when_it_was_woken_before(dir: TestDir) -> TrialResult {
    let path = dir.join("log");
    within_patience(move || {
        let local = LocalReactor::new(&QueueOptions::new());
        let file = local.attach(log(Durability::OnSync).open(path).expect("it opens"));
        for number in 0..3 {
            local.waker().wake();
            file.file().append(&record(1, number, 1)).expect("there is space");
            local.turn();
        }
    });
    Ok(())
}

/// A blocking call in another thread may wait for operations of the reactor, and the reverse.
fn tasks_and_blocking_threads_append_to_one_file(dir: TestDir) -> TrialResult {
    let path = dir.join("log");
    let file = log(Durability::EveryWrite).open(&path)?;
    let blocking = file.try_clone()?;
    let thread =
        thread::spawn(move || together(4, |writer| append_many(&blocking, 1000 + writer, 60)));
    let by_tasks = Executor::Tokio.run(file, 32, |file, writer| async move {
        let mut placed = Vec::new();
        for number in 0..30 {
            let (appended, _) = file.append(record(writer, number, 1)).await;
            placed.push(Placed {
                offset: appended.expect("there is space"),
                writer,
                number,
                blocks: 1,
            });
        }
        placed
    })?;
    let all = [by_tasks.concat(), thread.join().expect("no thread panics").concat()].concat();
    let end = assert_gapless(&all, 0);
    assert_tidy(&path, end)?;
    assert_all_there(&fs::read(&path)?, &all);
    Ok(())
}

// --- what comes back -----------------------------------------------------------------------------

fn memory_comes_back_with_errors(dir: TestDir) -> TrialResult {
    let path = dir.join("log");
    let file = AsyncFile::from(log(Durability::EveryWrite).open(&path)?);
    let comes_back = |transfer: Transfer<'_, Buffer>, address: *const u8| {
        let (result, data) = block_on(transfer);
        assert_eq!(data.as_ptr(), address);
        refusal(result)
    };
    let data = record(1, 0, 1);
    let address = data.as_ptr();
    let kind = comes_back(file.write_at(data, u64::MAX - 7), address);
    assert_eq!(kind, ErrorKind::NoSpace(libc::EFBIG));
    block_on(file.append(record(1, 0, 1))).0?;
    let reader = AsyncFile::from(File::open(&path)?);
    let data = record(1, 0, 1);
    let address = data.as_ptr();
    assert_eq!(comes_back(reader.append(data), address), ErrorKind::ReadOnly);
    let (read, data) = block_on(reader.read_at(Buffer::zeroed(2 * BLOCK), 0));
    assert!(read == Ok(BLOCK_BYTES) && Stamp::of(&data[..BLOCK]).is_some());
    block_on(reader.close())?;
    // As in another process: this process no longer writes the file.
    block_on(file.close())?;
    let reader = AsyncFile::from(File::open(&path)?);
    let (read, data) = block_on(reader.read_at(Buffer::zeroed(2 * BLOCK), 0));
    assert!(read == Ok(BLOCK_BYTES) && Stamp::of(&data[..BLOCK]).is_some());
    Ok(())
}

/// On threads of their own.
fn calls_that_wait(dir: TestDir) -> TrialResult {
    let path = dir.join("log");
    block_on(async {
        let file = AsyncFile::open(&log(Durability::EveryWrite), &path).await?;
        file.append(record(1, 0, 4)).await.0?;
        file.set_len(2 * BLOCK_BYTES).await?;
        assert_eq!((file.len()?, file.is_empty()?), (2 * BLOCK_BYTES, false));
        let never = file.set_len(0);
        drop(never);
        let mut cut = file.set_len(BLOCK_BYTES);
        let _ = poll_once(&mut cut);
        drop(cut);
        assert!(soon(|| file.len() == Ok(BLOCK_BYTES)), "it goes on without its future");
        file.append(record(1, 1, 1)).await.0?;
        file.close().await
    })?;
    let missing = block_on(AsyncFile::open(OpenOptions::new().write(true), dir.join("missing")));
    assert_eq!(refusal(missing), ErrorKind::Os(libc::ENOENT));
    assert_tidy(&path, 2 * BLOCK_BYTES)?;
    Ok(())
}

/// The defect: such a call kept the file open, and the close returned before it was closed.
fn a_close_did_not_wait_for_the_call_of_a_dropped_future(dir: TestDir) -> TrialResult {
    for round in 0..20 {
        let path = dir.join(round.to_string());
        let file = AsyncFile::from(log(Durability::EveryWrite).open(&path)?);
        block_on(file.append(record(1, 0, 4))).0?;
        let mut cut = file.set_len(2 * BLOCK_BYTES);
        let _ = poll_once(&mut cut);
        drop(cut);
        block_on(file.close())?;
        // The call came before the close, or was refused.
        let blocks = fs::metadata(&path)?.len() / BLOCK_BYTES;
        assert!([2, 4].contains(&blocks), "round {round}: {blocks}");
        assert_tidy(&path, blocks * BLOCK_BYTES)?;
    }
    Ok(())
}

fn it_panics_when_polled_again(dir: TestDir) -> TrialResult {
    let file = AsyncFile::from(log(Durability::OnSync).open(dir.join("log"))?);
    let mut append = file.append(record(1, 0, 1));
    block_on(&mut append).0?;
    assert!(catch_unwind(AssertUnwindSafe(|| poll_once(&mut append))).is_err());
    Ok(())
}

/// A device in use has no second opener.
fn a_device_is_free_when_it_is_closed(disk: Disk) -> TrialResult {
    for round in 0..6 {
        let file = AsyncFile::from(OpenOptions::new().write(true).open(&*disk)?);
        assert_eq!(block_on(file.write_at(record(1, round, 1), 0)).0, Ok(BLOCK_BYTES));
        let reader = AsyncFile::from(File::open(&*disk)?);
        let (read, _) = block_on(reader.read_at(Buffer::zeroed(BLOCK), 0));
        assert_eq!(read, Ok(BLOCK_BYTES));
        match round % 2 {
            0 => drop(reader),
            _ => drop(reader.into_inner()),
        }
        block_on(file.close())?;
        assert!(can_be_taken(&disk), "round {round}: the device is still held");
    }
    Ok(())
}

/// Even if another thread closes it, and the reactor only turns.
fn a_device_is_free_when_it_is_closed_under_a_local_reactor(disk: Disk) -> TrialResult {
    let local = LocalReactor::new(&QueueOptions::new());
    for round in 0..5 {
        let file = local.attach(OpenOptions::new().write(true).open(&*disk)?);
        assert_eq!(local.block_on(file.write_at(record(1, round, 1), 0)).0, Ok(BLOCK_BYTES));
        local.block_on(file.close())?;
        assert!(can_be_taken(&disk), "round {round}: the device is still held");
    }
    Ok(())
}

/// The drop waits for the reactor, but not while it holds its lock.
fn the_last_handle_of_a_device_goes_with_reads_that_were_given_up(disk: Disk) -> TrialResult {
    let reactor = Reactor::start(QueueOptions::new().depth(64))?;
    let other = reactor.attach(OpenOptions::new().write(true).open(&*disk)?);
    let reader = reactor.attach(File::open(&*disk)?);
    assert_eq!(block_on(reader.read_at(Buffer::zeroed(BLOCK), 0)).0, Ok(BLOCK_BYTES));
    let (is_in_waker, in_waker) = mpsc::channel();
    let waker = OnWake::waker(move || {
        is_in_waker.send(()).unwrap();
        thread::sleep(Duration::from_millis(300));
    });
    let mut busy = other.read_at(Buffer::zeroed(BLOCK), 0);
    assert!(Pin::new(&mut busy).poll(&mut Context::from_waker(&waker)).is_pending());
    in_waker.recv_timeout(PATIENCE)?;
    // A forgotten future would keep the device open.
    drop(busy);
    within_patience(move || {
        let mut read = reader.read_at(Buffer::zeroed(BLOCK), 0);
        assert!(poll_once(&mut read).is_pending());
        drop(read);
        drop(reader);
        let mut reads: Vec<_> = (0..40).map(|_| other.read_at(Buffer::zeroed(BLOCK), 0)).collect();
        assert!(reads.iter_mut().all(|read| poll_once(read).is_pending()));
    });
    Ok(())
}

/// The defect: the drop waited for the waker of the reactor, which waited for an append of a queue
/// of the dropping thread.
fn the_last_handle_of_a_device_did_not_settle_the_queues_of_its_thread(disk: Disk) -> TrialResult {
    let dir = lab::fresh_dir(Fs::Ext4, "the_last_handle_of_a_device")?;
    let file = log(Durability::OnSync).open(dir.join("log"))?;
    let reactor = Reactor::start(QueueOptions::new().depth(64))?;
    let other = reactor.attach(OpenOptions::new().write(true).open(&*disk)?);
    // The disk is kept until all handles are dropped.
    let device = disk.to_path_buf();
    within_patience(move || {
        let reader = reactor.attach(File::open(&device).expect("it opens"));
        assert_eq!(block_on(reader.read_at(Buffer::zeroed(BLOCK), 0)).0, Ok(BLOCK_BYTES));
        let queue = Queue::new(1);
        queue.append(&file, Buffer::zeroed(BLOCK), 0).expect("there is room for one");
        queue.submit();
        let (is_in_waker, in_waker) = mpsc::channel();
        let behind = file.try_clone().expect("a clone");
        let waker = OnWake::waker(move || {
            is_in_waker.send(()).unwrap();
            behind.append(&[1; BLOCK]).expect("an append behind that of the queue");
        });
        let mut busy = other.read_at(Buffer::zeroed(BLOCK), 0);
        assert!(Pin::new(&mut busy).poll(&mut Context::from_waker(&waker)).is_pending());
        in_waker.recv_timeout(PATIENCE).expect("the waker runs");
        drop(busy);
        drop(reader);
        assert_eq!(queue.reap(1).count(), 1);
    });
    Ok(())
}

// --- forks ---------------------------------------------------------------------------------------

fn is_forked<M>((result, _): (Result<u64>, M)) -> bool {
    result.is_err_and(|error| *error.kind() == ErrorKind::Forked)
}

fn a_forked_child_is_told_at_once_and_has_its_own_reactor(dir: TestDir) -> TrialResult {
    let path = dir.join("log");
    let file = AsyncFile::from(log(Durability::EveryWrite).open(&path)?);
    let told = AtomicU64::new(0);
    for round in 0..10 {
        let mut in_flight: Vec<_> =
            (0..20).map(|number| file.append(record(round, number, 1))).collect();
        assert!(in_flight.iter_mut().all(|append| poll_once(append).is_pending()));
        let (mut append, mut sync) = (file.append(record(99, 0, 1)), file.sync_data());
        assert!(holds_in_a_fork(|| {
            let begun = in_flight.iter_mut().all(|append| is_forked(block_on(append)));
            let fresh = is_forked(block_on(&mut append)) && block_on(&mut sync).is_err();
            in_flight.clear();
            let own = dir.join(format!("child{round}"));
            let file = AsyncFile::from(log(Durability::EveryWrite).open(&own).unwrap());
            let appended = block_on(file.append(record(1, 0, 1))).0;
            begun && fresh && appended == Ok(0) && block_on(file.close()).is_ok()
        }));
        drop((append, sync));
        told.fetch_add(
            in_flight.into_iter().filter_map(|append| block_on(append).0.ok()).count() as u64,
            SeqCst,
        );
    }
    block_on(file.close())?;
    assert_eq!(told.load(SeqCst), 200, "the parent goes on");
    assert_eq!(records_in(&fs::read(&path)?).len(), 200);
    Ok(())
}

/// The child's queues and reactors would wait forever for a thread that the child does not have.
fn a_forked_child_is_told_though_its_parent_has_the_file_alone(dir: TestDir) -> TrialResult {
    let local = LocalReactor::new(&QueueOptions::new());
    let file = log(Durability::EveryWrite).open(dir.join("log"))?;
    let (cut, queued) = (file.try_clone()?, file.try_clone()?);
    let file = local.attach(file);
    let mut append = file.append(record(1, 0, 1));
    assert!(poll_once(&mut append).is_pending());
    local.try_turn();
    // Waits for the append, and holds the file exclusively.
    let cutting = thread::spawn(move || cut.set_len(0));
    thread::sleep(Duration::from_millis(100));
    assert!(holds_in_a_fork(|| {
        let queue = Queue::new(1);
        queue.append(&queued, record(1, 1, 1), 0).expect("there is room for one");
        let by_queue = queue.reap(1).next().is_some_and(|done| is_forked((done.result, ())));
        by_queue && is_forked(block_on(AsyncFile::from(queued).append(record(1, 2, 1))))
    }));
    local.block_on(append).0?;
    cutting.join().expect("it does not panic")?;
    Ok(())
}

/// Counts its wakes.
#[derive(Default)]
struct Wakes(AtomicU64);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

/// The defect: in the child of a fork, a local reactor woke no task of its parent.
fn a_forked_child_woke_no_task_of_a_local_reactor(dir: TestDir) -> TrialResult {
    let local = LocalReactor::new(&QueueOptions::new());
    let file = local.attach(log(Durability::EveryWrite).open(dir.join("log"))?);
    let wakes = Arc::<Wakes>::default();
    let waker = Waker::from(wakes.clone());
    let mut appends = [0, 1].map(|number| file.append(record(1, number, 1)));
    let mut context = Context::from_waker(&waker);
    assert!(Pin::new(&mut appends[0]).poll(&mut context).is_pending());
    // Begins the first one. The second one is only listed.
    local.try_turn();
    assert!(Pin::new(&mut appends[1]).poll(&mut context).is_pending());
    for turn in [LocalReactor::turn, LocalReactor::try_turn] {
        assert!(holds_in_a_fork(|| {
            while wakes.0.load(SeqCst) < 2 {
                turn(&local);
            }
            appends.iter_mut().all(|append| match poll_once(append) {
                Poll::Ready(done) => is_forked(done),
                Poll::Pending => false,
            })
        }));
    }
    for append in appends {
        local.block_on(append).0?;
    }
    Ok(())
}

fn trials() -> Vec<Trial> {
    type ByExecutor = (&'static str, fn(TestDir, Executor) -> TrialResult);
    let by_executor: &[ByExecutor] = named![
        tasks_append_and_read,
        dropped_appends_are_wholly_there_or_not_at_all,
        dropped_reads_leave_other_memory_alone,
    ];
    let alone: &[LabTest] = named![
        a_thousand_tasks_append,
        what_the_reactor_has_not_come_to_is_taken_back,
        given_up_appends_do_not_hold_up_the_one_behind_them,
        a_runtime_ends_with_operations_in_flight,
        a_file_is_closed_with_abandoned_operations_in_flight,
        a_forgotten_future_keeps_its_memory_and_no_one_waiting,
        a_waker_makes_blocking_calls_and_drops_files,
        the_last_file_and_its_reactor_are_dropped_in_a_waker,
        a_waker_that_panics_takes_no_other_future_along,
        a_task_goes_on_inside_its_waker,
        a_reactor_of_plain_calls_does_the_same,
        what_is_left_of_a_local_reactor_is_refused,
        a_local_reactor_serves_other_threads,
        tasks_and_blocking_threads_append_to_one_file,
        memory_comes_back_with_errors,
        calls_that_wait,
        a_close_did_not_wait_for_the_call_of_a_dropped_future,
        a_forked_child_is_told_at_once_and_has_its_own_reactor,
    ];
    // These tests do not depend on the file system.
    let once: &[LabTest] = named![
        tasks_share_flushes,
        a_reactor_sleeps_and_ends,
        it_panics_when_polled_again,
        a_turn_ends_when_it_was_woken_before,
        files_and_reactors_can_be_shown,
        a_forked_child_is_told_though_its_parent_has_the_file_alone,
        a_forked_child_woke_no_task_of_a_local_reactor
    ];
    let mut all = Vec::new();
    for executor in Executor::ALL {
        for &(name, test) in by_executor {
            let name = format!("{executor:?}::{name}");
            let on_each = move |dir| test(dir, executor);
            all.extend(match executor {
                Executor::Tokio => lab_trials_where(&name, |_| Ok(()), on_each),
                _ => lab_trials_where(&name, Fs::on_ext4, on_each),
            });
        }
    }
    all.extend(alone.iter().flat_map(|&(name, test)| lab_trials(name, test)));
    all.extend(once.iter().flat_map(|&(name, test)| lab_trials_where(name, Fs::on_ext4, test)));
    let on_a_disk: &[DiskTest] = named![
        a_device_is_free_when_it_is_closed,
        a_device_is_free_when_it_is_closed_under_a_local_reactor,
        the_last_handle_of_a_device_goes_with_reads_that_were_given_up,
        the_last_handle_of_a_device_did_not_settle_the_queues_of_its_thread,
    ];
    all.extend(on_a_disk.iter().map(|&(name, test)| disk_trial(name, test)));
    all
}

fn main() -> ExitCode {
    dioxide_testkit::run(&[], trials)
}
