//! 32 threads perform random operations on one file, beside a model of its bytes, as fsx does with
//! one thread.
//!
//! Each stripe of the file belongs to one thread. Most have 1 to 700 bytes, so most blocks belong
//! to several threads. Each thread finds its bytes in its stripes at any time, while the others
//! write theirs. Operations go by calls, by queues and by futures, and a batch of a thread has
//! several in flight. `DIOXIDE_SEED=n` repeats one program, in another order of its threads, and
//! `DIOXIDE_SEEDS=n` runs n programs.

use crate::common::*;
use dioxide::{AsyncFile, Buffer, Durability, OpenOptions, Queue, QueueOptions};
use dioxide_testkit::lab::TestDir;
use dioxide_testkit::trials::{Failed, Trial, TrialResult, lab_trials};
use std::cell::RefCell;
use std::fs;
use std::io::IoSlice;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::RwLock;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::SeqCst};

const THREADS: u64 = 32;
/// Stripes of each thread.
const STRIPES: u64 = 10;
/// Steps of each thread, most of them batches of operations.
const STEPS: u64 = 40;
const BATCH_MAX: u64 = 4;
/// No program makes its file longer.
const CAPACITY: u64 = 4 * MIB;
/// Programs of each test: one for each kind of growth.
const SEEDS: u64 = 3;

/// How the length of the file changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lengths {
    /// Threads append beside the writes. The stripes are below the end from the start.
    Appended,
    /// Threads write beyond the end, and set the length above all stripes, beside the writes.
    Set,
    /// Threads append, truncate and extend the file alone, and compare all of it.
    Alone,
}

// --- the model -----------------------------------------------------------------------------------

/// The expected bytes of the file. A thread changes only bytes of its own, unless it is alone.
struct Model {
    bytes: Vec<AtomicU8>,
    len: AtomicU64,
}

impl Model {
    fn new() -> Self {
        let bytes = (0..CAPACITY).map(|_| AtomicU8::new(0)).collect();
        Self { bytes, len: AtomicU64::new(0) }
    }

    fn len(&self) -> u64 {
        self.len.load(SeqCst)
    }

    fn put(&self, offset: u64, data: &[u8]) {
        let end = offset as usize + data.len();
        for (byte, new) in self.bytes[offset as usize..end].iter().zip(data) {
            byte.store(*new, SeqCst);
        }
        self.len.fetch_max(end as u64, SeqCst);
    }

    /// Only for a thread that is alone.
    fn set_len(&self, len: u64) {
        let lost = len.min(self.len())..self.len();
        self.bytes[lost.start as usize..lost.end as usize]
            .iter()
            .for_each(|byte| byte.store(0, SeqCst));
        self.len.store(len, SeqCst);
    }

    /// Compares `span` with the bytes that a read from `offset` on found. The bytes behind the end
    /// of the file count as zero.
    fn compare(&self, span: Range<u64>, offset: u64, found: &[u8]) -> TrialResult {
        let at = |position: u64| found.get((position - offset) as usize).copied().unwrap_or(0);
        let expected = |position: u64| self.bytes[position as usize].load(SeqCst);
        let Some(lost) = span.clone().find(|position| at(*position) != expected(*position)) else {
            return Ok(());
        };
        let (found, expected) = (at(lost), expected(lost));
        Err(format!("byte {lost} of {span:?} is {found}, and {expected} was written").into())
    }
}

// --- operations ----------------------------------------------------------------------------------

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Write,
    Append,
    Read,
    Sync,
}

#[derive(Debug)]
struct Op {
    kind: Kind,
    /// Of an append it is known afterwards.
    offset: u64,
    /// The bytes to write, or those that were read.
    bytes: Vec<u8>,
    /// The part of a read that is compared.
    own: Range<u64>,
}

/// The way of the operations of a batch.
#[derive(Clone, Copy, Debug)]
enum By {
    Calls,
    /// By the thread's queue of this number.
    Queue(usize),
    Futures,
}

/// A thread's hold on the file.
trait Hand {
    /// Performs the operations of a batch, which touch different bytes of this thread.
    fn perform(&mut self, by: By, batch: Vec<Op>) -> Result<Vec<Op>, Failed>;
    fn set_len(&mut self, len: u64) -> TrialResult;
    fn reopen(&mut self, durability: Durability) -> TrialResult;
}

/// One handle of the file, for calls, queues and futures.
struct Handle<'a> {
    options: OpenOptions,
    path: &'a Path,
    file: Option<AsyncFile>,
    queues: [Queue; 2],
}

impl<'a> Handle<'a> {
    fn open(options: &OpenOptions, path: &'a Path) -> dioxide::Result<Self> {
        let queue = |way: Way| way.queue(QueueOptions::new().depth(BATCH_MAX as usize));
        let queues = [Way::Queue, Way::QueueOfCalls].map(queue);
        let file = Some(options.open(path)?.into());
        Ok(Self { options: options.clone(), path, file, queues })
    }

    fn file(&self) -> &AsyncFile {
        self.file.as_ref().expect("only a reopen takes it")
    }

    fn call(&self, op: &mut Op) -> dioxide::Result<()> {
        let file = self.file().file();
        match op.kind {
            // In slices, or from memory that is not aligned.
            Kind::Write if op.bytes.len().is_multiple_of(3) => {
                let (one, rest) = op.bytes.split_at(op.bytes.len() / 3);
                let (two, three) = rest.split_at(rest.len() / 2);
                file.write_vectored_at(&[one, two, three].map(IoSlice::new), op.offset)
            }
            Kind::Write => file.write_at(&op.bytes, op.offset),
            Kind::Append => file.append(&op.bytes).map(|offset| op.offset = offset),
            Kind::Read => file.read_at(&mut op.bytes, op.offset).map(|len| op.bytes.truncate(len)),
            Kind::Sync => file.sync_data(),
        }
    }

    fn queue(&self, queue: &Queue, mut batch: Vec<Op>) -> dioxide::Result<Vec<Op>> {
        let file = self.file().file();
        for (tag, op) in (0..).zip(&batch) {
            let buffer = || Buffer::from(&op.bytes[..]);
            match op.kind {
                Kind::Write => queue.write_at(file, buffer(), op.offset, tag),
                Kind::Append => queue.append(file, buffer(), tag),
                Kind::Read => queue.read_at(file, buffer(), op.offset, tag),
                Kind::Sync => queue.sync_data(file, tag),
            }
            .expect("there is room for a batch");
        }
        while queue.outstanding() > 0 {
            for done in queue.reap(1) {
                batch[done.tag as usize].finish(done.result?, |bytes| {
                    bytes.copy_from_slice(&done.buffer.expect("it comes back"));
                });
            }
        }
        Ok(batch)
    }

    fn futures(&self, mut batch: Vec<Op>) -> dioxide::Result<Vec<Op>> {
        let file = self.file();
        let begin = |op: &mut Op| {
            let (kind, offset, bytes) = (op.kind, op.offset, std::mem::take(&mut op.bytes));
            Polled::new(async move {
                match kind {
                    Kind::Write => file.write_at(bytes, offset).await,
                    Kind::Append => file.append(bytes).await,
                    Kind::Read => file.read_at(bytes, offset).await,
                    Kind::Sync => (file.sync_data().await.map(|()| 0), bytes),
                }
            })
        };
        let ended = block_on(All(batch.iter_mut().map(begin).collect()));
        for (op, (result, bytes)) in batch.iter_mut().zip(ended) {
            op.bytes = bytes;
            op.finish(result?, |_| {});
        }
        Ok(batch)
    }
}

impl Op {
    fn of_read(offset: u64, len: u64, own: Range<u64>) -> Self {
        Self { kind: Kind::Read, offset, bytes: vec![0; len as usize], own }
    }

    /// Takes the result of a queue or a future. `fetch` fetches the memory of a read.
    fn finish(&mut self, result: u64, fetch: impl FnOnce(&mut [u8])) {
        match self.kind {
            Kind::Write => assert_eq!(result, self.bytes.len() as u64, "a write is never short"),
            Kind::Append => self.offset = result,
            Kind::Read => {
                fetch(&mut self.bytes);
                self.bytes.truncate(result as usize);
            }
            Kind::Sync => assert_eq!(result, 0),
        }
    }
}

impl Hand for Handle<'_> {
    fn perform(&mut self, by: By, mut batch: Vec<Op>) -> Result<Vec<Op>, Failed> {
        Ok(match by {
            By::Calls => {
                batch.iter_mut().try_for_each(|op| self.call(op))?;
                batch
            }
            By::Queue(number) => self.queue(&self.queues[number], batch)?,
            By::Futures => self.futures(batch)?,
        })
    }

    fn set_len(&mut self, len: u64) -> TrialResult {
        Ok(self.file().file().set_len(len)?)
    }

    fn reopen(&mut self, durability: Durability) -> TrialResult {
        self.file.take().expect("it is open").into_inner().close()?;
        self.file = Some(self.options.durability(durability).open(self.path)?.into());
        Ok(())
    }
}

// --- the program ---------------------------------------------------------------------------------

/// Shared by its threads.
struct Program {
    seed: u64,
    lengths: Lengths,
    /// With their threads, one behind the other.
    stripes: Vec<(u64, Range<u64>)>,
    model: Model,
    /// Shared by those that operate on their own stripes only.
    alone: RwLock<()>,
}

impl Program {
    fn new(seed: u64, lengths: Lengths, threads: u64) -> Self {
        let mut random = Random::new(seed);
        let (mut stripes, mut end) = (Vec::new(), 0);
        for _ in 0..STRIPES {
            let first = random.below(threads);
            for thread in (first..threads).chain(0..first) {
                let len = match random.below(24) {
                    0 => 2 * BLOCK_BYTES + random.below(5 * BLOCK_BYTES),
                    _ => 1 + random.below(700),
                };
                stripes.push((thread, end..end + len));
                end += len;
            }
        }
        Self { seed, lengths, stripes, model: Model::new(), alone: RwLock::new(()) }
    }

    /// The end of the last stripe.
    fn end(&self) -> u64 {
        self.stripes.last().map_or(0, |(_, stripe)| stripe.end)
    }

    fn worker<H: Hand>(&self, thread: u64, hand: H) -> Worker<'_, H> {
        let own = self.stripes.iter().filter(|(owner, _)| *owner == thread);
        let own = own.map(|(_, stripe)| stripe.clone()).collect();
        let random = Random::new(self.seed << 8 | thread);
        Worker { program: self, hand, random, own }
    }

    /// Compares the whole file as another program finds it.
    fn compare_all(&self, path: &Path) -> TrialResult {
        let content = fs::read(path)?;
        let len = content.len() as u64;
        if self.lengths != Lengths::Set {
            assert_tidy(path, self.model.len())?;
        }
        self.model.compare(0..len.max(self.model.len()), 0, &content)
    }
}

/// A thread of a program.
struct Worker<'a, H> {
    program: &'a Program,
    hand: H,
    random: Random,
    own: Vec<Range<u64>>,
}

impl<H: Hand> Worker<'_, H> {
    /// All steps, and a look at all stripes.
    fn run(&mut self) -> TrialResult {
        (0..STEPS).try_for_each(|_| self.step())?;
        let _beside = self.program.alone.read().expect("no thread panics alone");
        self.own.clone().into_iter().try_for_each(|own| {
            let read = Op::of_read(own.start, own.end - own.start, own);
            self.perform(vec![read]).map(drop)
        })
    }

    fn step(&mut self) -> TrialResult {
        let (program, random) = (self.program, &mut self.random);
        if program.lengths == Lengths::Alone && random.below(24) == 0 {
            let _alone = program.alone.write().expect("no thread panics alone");
            return self.change_alone();
        }
        let _beside = program.alone.read().expect("no thread panics alone");
        match random.below(16) {
            0 => {
                let durable = random.below(2) == 0;
                self.hand.reopen(if durable { Durability::EveryWrite } else { Durability::OnSync })
            }
            1 if program.lengths == Lengths::Set => {
                self.hand.set_len(program.end() + random.below(3 * BLOCK_BYTES))
            }
            _ => {
                let (first, count) = (random.below(STRIPES), 1 + random.below(BATCH_MAX));
                let stripes = (first..first + count).map(|n| (n % STRIPES) as usize);
                let batch = stripes.map(|n| self.draw(self.own[n].clone())).collect();
                self.perform(batch).map(drop)
            }
        }
    }

    /// An operation on a stripe, or an append.
    fn draw(&mut self, stripe: Range<u64>) -> Op {
        let random = &mut self.random;
        let (kind, span) = match random.below(16) {
            0 => (Kind::Sync, 0..0),
            1 | 2 if self.program.lengths == Lengths::Appended => {
                (Kind::Append, 0..1 + random.below(2000))
            }
            3..7 => {
                let start = stripe.start.saturating_sub(random.below(BLOCK_BYTES));
                let len = stripe.end - start + random.below(BLOCK_BYTES);
                return Op::of_read(start, len, stripe);
            }
            _ => (Kind::Write, part_of(&stripe, random)),
        };
        let bytes = span.clone().map(|_| 1 + random.below(255) as u8).collect();
        Op { kind, offset: span.start, bytes, own: 0..0 }
    }

    /// Performs a batch in one of the ways. Checks the bytes of reads and the offsets of appends.
    fn perform(&mut self, batch: Vec<Op>) -> Result<Vec<Op>, Failed> {
        let by = match self.random.below(4) {
            0 => By::Calls,
            1 => By::Futures,
            more => By::Queue(more as usize - 2),
        };
        let batch = self.hand.perform(by, batch)?;
        batch
            .iter()
            .try_for_each(|op| self.note(op))
            .map_err(|why| named_in(&format!("{by:?}"), why))?;
        Ok(batch)
    }

    fn note(&self, op: &Op) -> TrialResult {
        let Program { model, lengths, .. } = self.program;
        match op.kind {
            Kind::Write => model.put(op.offset, &op.bytes),
            Kind::Append => {
                let is_alone = *lengths == Lengths::Alone;
                let end = if is_alone { model.len() } else { self.program.end() };
                if op.offset < end {
                    return Err(format!("an append at {}, below {end}", op.offset).into());
                }
                // No other append has these bytes.
                let span = op.offset..op.offset + op.bytes.len() as u64;
                model.compare(span, op.offset, &[])?;
                model.put(op.offset, &op.bytes);
            }
            Kind::Read => model.compare(op.own.clone(), op.offset, &op.bytes)?,
            Kind::Sync => {}
        }
        Ok(())
    }

    /// Appends or sets the length, and compares the whole file, while no other thread operates.
    fn change_alone(&mut self) -> TrialResult {
        let (model, random) = (&self.program.model, &mut self.random);
        let len = model.len();
        let has_room = len < CAPACITY / 4;
        match random.below(4) {
            0 => {
                let len = random.below(len + 1);
                self.hand.set_len(len)?;
                model.set_len(len);
            }
            1 if has_room => {
                let len = len + random.below(3 * BLOCK_BYTES);
                self.hand.set_len(len)?;
                model.set_len(len);
            }
            _ if has_room => {
                let bytes = (0..any_len(random, 1)).map(|_| 1 + random.below(255) as u8).collect();
                self.perform(vec![Op { kind: Kind::Append, offset: 0, bytes, own: 0..0 }])?;
            }
            _ => {}
        }
        let whole = 0..model.len() + 1 + self.random.below(BLOCK_BYTES);
        let read = self.perform(vec![Op::of_read(0, whole.end, whole)])?;
        match read[0].bytes.len() as u64 {
            read if read == model.len() => Ok(()),
            read => Err(format!("{read} bytes were read, and {} written", model.len()).into()),
        }
    }
}

/// A random part of a stripe; often of whole blocks, if the stripe has any.
fn part_of(stripe: &Range<u64>, random: &mut Random) -> Range<u64> {
    let start = stripe.start + random.below(stripe.end - stripe.start);
    let end = start + 1 + random.below(stripe.end - start);
    let blocks = start.next_multiple_of(BLOCK_BYTES)..end / BLOCK_BYTES * BLOCK_BYTES;
    if !blocks.is_empty() && random.below(2) == 0 { blocks } else { start..end }
}

// --- the tests -----------------------------------------------------------------------------------

/// The failure with the operation or thread that met it.
fn named_in(place: &str, why: Failed) -> Failed {
    format!("{place}: {}", why.message().unwrap_or_default()).into()
}

/// The seeds of a test.
fn seeds() -> Range<u64> {
    let number = |name| std::env::var(name).ok().map(|n| n.parse().expect("a number"));
    match number("DIOXIDE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("DIOXIDE_SEEDS").unwrap_or(SEEDS),
    }
}

/// Runs programs of 32 threads. The seed of one determines its options too.
fn run(dir: &TestDir, lengths: Lengths) -> TrialResult {
    for seed in seeds() {
        let path = dir.join(seed.to_string());
        run_one(&path, seed, lengths)
            .map_err(|why| named_in(&format!("DIOXIDE_SEED={seed}, {lengths:?}"), why))?;
        fs::remove_file(&path)?;
    }
    Ok(())
}

fn run_one(path: &Path, seed: u64, lengths: Lengths) -> TrialResult {
    let program = Program::new(seed, lengths, THREADS);
    let mut options = writable();
    options.growth(GROWTHS[(seed % 3) as usize]).tail(TAILS[(seed % 2) as usize]).growth_cap(MIB);
    if lengths == Lengths::Appended {
        let zeros = vec![0; program.end() as usize];
        fs::write(path, &zeros)?;
        program.model.put(0, &zeros);
    }
    let run = |thread| Handle::open(&options, path).map(|hand| program.worker(thread, hand).run());
    let ended = together(THREADS, |thread| {
        run(thread)?.map_err(|why| named_in(&format!("thread {thread}"), why))
    });
    ended.into_iter().collect::<TrialResult>()?;
    program.compare_all(path)
}

fn threads_find_their_bytes_beside_appends(dir: TestDir) -> TrialResult {
    run(&dir, Lengths::Appended)
}

fn threads_find_their_bytes_beside_other_lengths(dir: TestDir) -> TrialResult {
    run(&dir, Lengths::Set)
}

fn threads_that_take_turns_find_the_whole_file(dir: TestDir) -> TrialResult {
    run(&dir, Lengths::Alone)
}

/// Merges a part of a block with the rest as a program does that knows no other writer.
struct Merging<'a> {
    file: &'a fs::File,
    /// What happens between the read of the rest and the write.
    between: &'a dyn Fn(),
}

impl Hand for Merging<'_> {
    fn perform(&mut self, _: By, mut batch: Vec<Op>) -> Result<Vec<Op>, Failed> {
        for Op { kind, offset, bytes, .. } in &mut batch {
            match kind {
                Kind::Write => self.write(bytes, *offset)?,
                Kind::Read => {
                    let len = self.file.read_at(bytes, *offset)?;
                    bytes.truncate(len);
                }
                Kind::Sync => self.file.sync_data()?,
                Kind::Append => return Err("it has no appends".into()),
            }
        }
        Ok(batch)
    }

    fn set_len(&mut self, len: u64) -> TrialResult {
        Ok(self.file.set_len(len)?)
    }

    fn reopen(&mut self, _: Durability) -> TrialResult {
        Ok(())
    }
}

impl Merging<'_> {
    fn write(&self, data: &[u8], offset: u64) -> TrialResult {
        let start = offset / BLOCK_BYTES * BLOCK_BYTES;
        let end = (offset + data.len() as u64).next_multiple_of(BLOCK_BYTES);
        let mut blocks = vec![0; (end - start) as usize];
        self.file.read_at(&mut blocks, start)?;
        blocks[(offset - start) as usize..][..data.len()].copy_from_slice(data);
        (self.between)();
        Ok(self.file.write_all_at(&blocks, start)?)
    }
}

/// Control: the same program of two threads, by plain calls. In the second run each write of one
/// thread has a step of the other one between its read and its write.
fn a_merge_beside_another_one_loses_bytes_and_is_found(dir: TestDir) -> TrialResult {
    for is_planted in [false, true] {
        let path = dir.join(is_planted.to_string());
        let file = fs::OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
        let program = Program::new(1, Lengths::Set, 2);
        let other = RefCell::new(program.worker(1, Merging { file: &file, between: &|| {} }));
        let found = RefCell::new(Ok(()));
        let step = || {
            let mut found = found.borrow_mut();
            if found.is_ok() && is_planted {
                *found = other.borrow_mut().step();
            }
        };
        program.worker(0, Merging { file: &file, between: &step }).run()?;
        let found = found.into_inner().and_then(|()| other.borrow_mut().run());
        assert_eq!(found.is_err(), is_planted, "{found:?}");
        if let Err(why) = found {
            assert!(why.message().is_some_and(|why| why.contains("was written")), "{why:?}");
        } else {
            program.compare_all(&path)?;
        }
    }
    Ok(())
}

pub fn trials() -> Vec<Trial> {
    let tests: &[LabTest] = named![
        threads_find_their_bytes_beside_appends,
        threads_find_their_bytes_beside_other_lengths,
        threads_that_take_turns_find_the_whole_file,
        a_merge_beside_another_one_loses_bytes_and_is_found,
    ];
    tests.iter().flat_map(|&(name, test)| lab_trials(name, test)).collect()
}
