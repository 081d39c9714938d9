//! Threads that read and write one file or device below EOF write no cache line that another thread
//! touches. valgrind's lackey traces all user-space accesses of two threads.

mod common;

use common::*;
use dioxide::{Buffer, File, Queue, QueueOptions};
use dioxide_testkit::child::Acks;
use dioxide_testkit::lab::Fs;
use dioxide_testkit::trials::{Failed, Trial, TrialResult, disk_trial, lab_trial};
use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

const LINE_BYTES: u64 = 64;
const THREADS: u64 = 2;

/// The blocks of a thread, and the iodepth of a queue.
const BLOCKS: u64 = 4;

/// Rounds before the trace, for all one-time initialization.
const WARM_UP_ROUNDS: usize = 4;
const ROUNDS: usize = 8;

// --- the traced work ----------------------------------------------------------------------------

/// A word on a cache line of its own.
#[repr(align(128))]
struct Word(AtomicU64);

impl Word {
    fn address(&self) -> usize {
        self.0.as_ptr().addr()
    }
}

/// The trace of a thread begins when it writes to its mark, and ends at the next write.
static MARKS: [Word; THREADS as usize] = [const { Word(AtomicU64::new(0)) }; THREADS as usize];

/// A counter that all threads share in the control.
static COUNTER: Word = Word(AtomicU64::new(0));

/// The repeated work of a thread: it writes its blocks and reads them back.
type Round<'a> = Box<dyn FnMut() + 'a>;

/// The name of a way for children, and its round on a file.
type Way = (&'static str, fn(&File, u64) -> Round<'_>);

const WAYS: &[Way] = named![blocking, queued, queued_without_a_ring, counted];

fn blocking(file: &File, thread: u64) -> Round<'_> {
    let mut block = Buffer::zeroed(BLOCK);
    Box::new(move || {
        for offset in blocks_of(thread) {
            file.write_at(&block, offset).expect("it is below the end");
            assert_eq!(file.read_at(&mut block, offset).expect("it is below the end"), BLOCK);
        }
    })
}

fn queued(file: &File, thread: u64) -> Round<'_> {
    let queue = Queue::new(BLOCKS as usize);
    assert!(queue.uses_io_uring(), "io_uring is there");
    in_queue(queue, file, thread)
}

fn queued_without_a_ring(file: &File, thread: u64) -> Round<'_> {
    in_queue(QueueOptions::new().depth(BLOCKS as usize).io_uring(false).open(), file, thread)
}

fn in_queue(queue: Queue, file: &File, thread: u64) -> Round<'_> {
    let mut free: Vec<_> = blocks_of(thread).map(|_| Buffer::zeroed(BLOCK)).collect();
    Box::new(move || {
        for operation in [Queue::write_at, Queue::read_at] {
            for offset in blocks_of(thread) {
                operation(&queue, file, free.pop().expect("free"), offset, 0)
                    .expect("there is room");
            }
            for done in queue.reap(BLOCKS as usize) {
                assert_eq!(done.result.expect("it is below the end"), BLOCK_BYTES);
                free.extend(done.buffer);
            }
        }
    })
}

/// Control: each operation updates one shared counter.
fn counted(file: &File, thread: u64) -> Round<'_> {
    let mut round = blocking(file, thread);
    Box::new(move || {
        COUNTER.0.fetch_add(1, SeqCst);
        round();
        COUNTER.0.fetch_sub(1, SeqCst);
    })
}

fn blocks_of(thread: u64) -> impl Iterator<Item = u64> {
    (thread * BLOCKS..(thread + 1) * BLOCKS).map(|block| block * BLOCK_BYTES)
}

/// A child of valgrind: threads at work on the file args[0], in the way args[1].
fn submit(_: &Acks, args: &[String]) {
    let (_, way) = WAYS.iter().find(|(name, _)| *name == args[1]).expect("a way");
    let file = writable().open(&args[0]).expect("it is there");
    let maps = std::fs::read_to_string("/proc/self/maps").expect("there is memory");
    let start = maps.split('-').next().expect("of the program");
    // In one write, since valgrind prints to standard error as well.
    let [a, b] = MARKS.each_ref().map(Word::address);
    let layout = format!("{LAYOUT}{a:x} {b:x} {:x} {start}\n", COUNTER.address());
    io::stderr().write_all(layout.as_bytes()).expect("somebody reads it");
    let all = Barrier::new(THREADS as usize);
    together(THREADS, |thread| {
        let mut round = way(&file, thread);
        (0..WARM_UP_ROUNDS).for_each(|_| round());
        all.wait();
        let mark = &MARKS[thread as usize].0;
        mark.store(1, SeqCst);
        (0..ROUNDS).for_each(|_| round());
        mark.store(2, SeqCst);
        // Keeps this thread's freed memory from other threads until their traces end.
        all.wait();
    });
}

// --- the trace ----------------------------------------------------------------------------------

/// Starts the line in which the child prints its addresses.
const LAYOUT: &str = "layout: ";

/// Addresses of touched lines, each with an instruction.
type Lines = BTreeMap<u64, u64>;

/// The lines that a thread touched between its marks.
#[derive(Default)]
struct Touched {
    loaded: Lines,
    stored: Lines,
}

impl Touched {
    fn touch(&mut self, address: u64, bytes: u64, is_store: bool, instruction: u64) {
        let lines = if is_store { &mut self.stored } else { &mut self.loaded };
        let touched = address / LINE_BYTES..=(address + bytes - 1) / LINE_BYTES;
        lines.extend(touched.map(|line| (line * LINE_BYTES, instruction)));
    }

    fn by(&self, line: u64) -> Option<u64> {
        self.stored.get(&line).or_else(|| self.loaded.get(&line)).copied()
    }
}

/// The addresses in the child.
struct Layout {
    marks: [u64; THREADS as usize],
    counter: u64,
    program: u64,
}

/// The state of the parser of valgrind's output.
#[derive(Default)]
struct Trace {
    layout: Option<Layout>,
    /// valgrind's number of the running thread. One runs at a time.
    running: u64,
    instruction: u64,
    /// The traced threads, by valgrind's number.
    traced: BTreeMap<u64, usize>,
    touched: [Touched; THREADS as usize],
    /// Output outside of traces.
    said: String,
}

impl Trace {
    fn read(&mut self, line: &str) {
        match (line.get(..3), &self.layout) {
            // No trace begins before the child has printed its addresses.
            (Some("I  " | " L " | " S " | " M "), None) => {}
            (Some(kind @ ("I  " | " L " | " S " | " M ")), Some(layout)) => {
                let (address, bytes) = line[3..].split_once(',').expect("ADDRESS,BYTES");
                let address = hex(address);
                let mark = layout.marks.iter().position(|mark| *mark == address);
                self.read_access(kind, address, bytes, mark);
            }
            _ => self.read_other(line),
        }
    }

    /// Reads an instruction (I); its loads (L) and stores (S, or M for both) follow it.
    fn read_access(&mut self, kind: &str, address: u64, bytes: &str, mark: Option<usize>) {
        let traced = self.traced.get(&self.running).copied();
        match (kind, mark, traced) {
            ("I  ", ..) => self.instruction = address,
            (" L ", Some(_), _) => {}
            (_, Some(mark), None) => drop(self.traced.insert(self.running, mark)),
            (_, Some(mark), Some(thread)) => {
                assert_eq!(mark, thread, "the mark of another thread");
                self.traced.remove(&self.running);
            }
            (_, None, Some(thread)) => {
                let bytes = bytes.parse().expect("BYTES");
                self.touched[thread].touch(address, bytes, kind != " L ", self.instruction);
            }
            (_, None, None) => {}
        }
    }

    /// `SCHED[THREAD]:  acquired lock …`: this thread runs from now on.
    fn read_other(&mut self, line: &str) {
        if let Some((thread, event)) =
            line.split_once("SCHED[").and_then(|(_, rest)| rest.split_once("]:"))
        {
            if event.trim_start().starts_with("acquired lock") {
                self.running = thread.parse().expect("a number");
            }
        } else if let Some(layout) = line.strip_prefix(LAYOUT) {
            let addresses: Vec<_> = layout.split(' ').map(hex).collect();
            let [a, b, counter, program] = addresses[..] else { panic!("{line}") };
            self.layout = Some(Layout { marks: [a, b], counter, program });
        } else {
            self.said += line;
            self.said.push('\n');
        }
    }

    /// The lines that one thread wrote and the other touched, each with an instruction of both.
    fn shared(&self) -> BTreeMap<u64, [u64; 2]> {
        let [a, b] = &self.touched;
        assert!(self.traced.is_empty(), "a thread without an end");
        assert!(!a.stored.is_empty() && !b.stored.is_empty(), "a thread that does nothing");
        let written = a.stored.keys().chain(b.stored.keys());
        written.filter_map(|line| Some((*line, [a.by(*line)?, b.by(*line)?]))).collect()
    }

    /// The source line of an instruction, if the tools for that are installed.
    fn place(&self, instruction: u64) -> String {
        let program = self.layout.as_ref().map_or(0, |layout| layout.program);
        let address = format!("{:#x}", instruction - program);
        let told = Command::new("addr2line").args(["-Cfpie", &exe(), &address]).output();
        let place =
            told.map_or(String::new(), |told| String::from_utf8_lossy(&told.stdout).into_owned());
        format!("{address} {place}")
    }
}

/// This program, by descriptor: a build may have replaced the file at its path.
fn exe() -> String {
    format!("/proc/{}/exe", std::process::id())
}

fn hex(digits: &str) -> u64 {
    u64::from_str_radix(digits, 16).expect("an address")
}

/// Traces threads at work on the file at `path`.
fn trace(path: &Path, way: &str) -> Result<Trace, Failed> {
    let mut valgrind = Command::new("valgrind")
        .args(["--tool=lackey", "--trace-mem=yes", "--trace-sched=yes"])
        .arg(exe())
        .args([path.as_os_str(), way.as_ref()])
        .env("DIOXIDE_CHILD", "submit")
        // A backtrace would be slow under valgrind.
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut printed = BufReader::new(valgrind.stderr.take().expect("it is piped"));
    let mut trace = Trace::default();
    let mut line = String::new();
    while printed.read_line(&mut line)? > 0 {
        trace.read(line.trim_end());
        line.clear();
    }
    if valgrind.wait()?.success() { Ok(trace) } else { Err(trace.said.into()) }
}

// --- the tests ----------------------------------------------------------------------------------

fn no_line_is_shared(path: &Path, way: &str) -> TrialResult {
    let trace = trace(path, way)?;
    let mut found = String::new();
    for (line, [a, b]) in trace.shared() {
        found += &format!(
            "line {line:x} is touched by one thread at\n{}and by another at\n{}",
            trace.place(a),
            trace.place(b)
        );
    }
    if found.is_empty() { Ok(()) } else { Err(found.into()) }
}

/// Control: the test must find a shared line.
fn a_shared_counter_is_found(path: &Path) -> TrialResult {
    let trace = trace(path, "counted")?;
    let shared: Vec<_> = trace.shared().into_keys().collect();
    assert_eq!(shared, Vec::from_iter(trace.layout.map(|layout| layout.counter)));
    Ok(())
}

/// A file of the lab with the blocks of all threads.
fn file_trial(name: &str, test: impl FnOnce(&Path) -> TrialResult + Send + 'static) -> Trial {
    lab_trial(name, Fs::Ext4, move |dir| {
        let path = dir.join("file");
        std::fs::write(&path, vec![1; (THREADS * BLOCKS * BLOCK_BYTES) as usize])?;
        test(&path)
    })
}

fn unless_valgrind_is_missing(trial: Trial) -> Trial {
    match Command::new("valgrind").arg("--version").output() {
        Ok(_) => trial,
        Err(why) => trial.with_kind(format!("skipped: valgrind: {why}")).with_ignored_flag(true),
    }
}

fn trials() -> Vec<Trial> {
    let mut trials = vec![file_trial("a_shared_counter_is_found", a_shared_counter_is_found)];
    for way in ["blocking", "queued", "queued_without_a_ring"] {
        trials.push(file_trial(way, move |path| no_line_is_shared(path, way)));
        trials.push(disk_trial(way, move |disk| no_line_is_shared(&disk, way)));
    }
    trials.into_iter().map(unless_valgrind_is_missing).collect()
}

fn main() -> ExitCode {
    dioxide_testkit::run(&[("submit", submit)], trials)
}
