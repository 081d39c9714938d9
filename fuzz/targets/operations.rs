//! Operations of a program on a file, in any order, on the simulated disk: with faults, a full disk
//! and power cuts.
//!
//! For every word of 8 bytes the model has the values that it may hold after a crash: the stable
//! one, and later writes.
#![no_main]

use dioxide::sim::{Call, Disk, Settings};
use dioxide::{Buffer, Durability, ErrorKind, File, Growth, OpenOptions, Result, Tail, Verdict};
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;

/// Bytes of a word. The units below are words.
const WORD: u64 = 8;
/// The alignment of positional writes.
const SECTOR: u64 = 64;
/// The unit of direct I/O for appends.
const BLOCK: u64 = 8 * SECTOR;
const DISK_BYTES: u64 = 512 << 10;
/// The longest operation and the farthest offset.
const WORDS_MAX: u64 = 40 * SECTOR;
const END_MAX: u64 = 600 * SECTOR;
const OPERATIONS_MAX: usize = 40;

#[derive(Debug, Arbitrary)]
struct Program {
    seed: u64,
    growth: u8,
    pads: bool,
    allocates: bool,
    writes_zeroes: bool,
    short_writes: bool,
    interrupted: bool,
    operations: Vec<Operation>,
}

#[derive(Clone, Copy, Debug, Arbitrary)]
enum Operation {
    Append { words: u16, durable: bool },
    Write { at: u16, sectors: u8, durable: bool },
    Read { at: u16, words: u16 },
    Sync,
    SetLen { to: u16 },
    Recycle,
    CloseAndOpen,
    Crash,
    Fail { call: u8, nth: u8, no_space: bool },
}

/// Each written word has its own number; zeros are 0.
type Stamp = u64;

struct Model {
    disk: Disk,
    growth: Growth,
    tail: Tail,
    /// One handle with durable writes, and one without.
    files: Option<[File; 2]>,
    /// The content that programs read.
    content: Vec<Stamp>,
    /// The possible values of each word below the stable end after a crash.
    stable: Vec<Vec<Stamp>>,
    next: Stamp,
    /// A fault was planned: from now on any operation may fail.
    faulty: bool,
}

fuzz_target!(|program: Program| {
    let mut settings = Settings::default();
    settings.capacity_bytes = DISK_BYTES;
    settings.allocates = program.allocates;
    settings.writes_zeroes = program.writes_zeroes;
    settings.short_one_in = if program.short_writes { 3 } else { 0 };
    settings.interrupted_one_in = if program.interrupted { 4 } else { 0 };
    let mut model = Model {
        disk: Disk::with(program.seed, settings),
        growth: [Growth::Unwritten, Growth::Zeroed, Growth::None][usize::from(program.growth % 3)],
        tail: if program.pads { Tail::Pad } else { Tail::Rewrite },
        files: None,
        content: Vec::new(),
        stable: Vec::new(),
        next: 1,
        faulty: false,
    };
    model.open().expect("nothing fails yet");
    for operation in program.operations.into_iter().take(OPERATIONS_MAX) {
        model.perform(operation);
    }
    model.crash();
});

impl Model {
    fn open(&mut self) -> Result<()> {
        let open = |durability| {
            let mut options = OpenOptions::new();
            options
                .write(true)
                .create(true)
                .growth(self.growth)
                .growth_cap(64 << 10)
                .tail(self.tail);
            options.durability(durability);
            self.disk.open(&options, "file")
        };
        self.files = Some([open(Durability::OnSync)?, open(Durability::EveryWrite)?]);
        Ok(())
    }

    fn file(&self, durable: bool) -> &File {
        &self.files.as_ref().expect("open between operations")[usize::from(durable)]
    }

    fn len(&self) -> u64 {
        self.content.len() as u64
    }

    fn perform(&mut self, operation: Operation) {
        match operation {
            Operation::Append { words, durable } => {
                self.append(u64::from(words) % WORDS_MAX, durable)
            }
            Operation::Write { at, sectors, durable } => {
                let (at, sectors) = (u64::from(at) % END_MAX, 1 + u64::from(sectors));
                self.write(at / SECTOR * SECTOR, sectors * SECTOR % WORDS_MAX, durable);
            }
            Operation::Read { at, words } => {
                self.read(u64::from(at) % END_MAX, u64::from(words) % WORDS_MAX)
            }
            Operation::Sync => match self.file(false).sync_data() {
                Ok(()) => self.all_is_stable(),
                Err(error) => self.failed(error),
            },
            Operation::SetLen { to } => self.set_len(u64::from(to) % END_MAX),
            Operation::Recycle => match self.file(false).recycle() {
                Ok(()) => {
                    self.content.clear();
                    self.stable.clear();
                }
                Err(error) if matches!(error.kind(), ErrorKind::Unsupported(_)) => {}
                Err(error) => {
                    self.stable.clear();
                    self.failed(error);
                }
            },
            Operation::CloseAndOpen => self.close_and_open(),
            Operation::Crash => self.crash(),
            Operation::Fail { call, nth, no_space } => {
                let call =
                    [Call::Write, Call::Flush, Call::Allocate, Call::Marker][usize::from(call % 4)];
                let no_space = no_space && call != Call::Flush;
                self.disk.fail(call, u64::from(nth % 8), if no_space { 28 } else { 5 });
                self.faulty = true;
            }
        }
        assert_eq!(self.file(false).len(), Ok(self.len() * WORD), "after {operation:?}");
    }

    fn append(&mut self, words: u64, durable: bool) {
        let (data, stamps) = self.fresh(words);
        match self.file(durable).append(&data) {
            Ok(offset) => {
                let (at_the_end, at_a_block) = (self.len(), self.len().next_multiple_of(BLOCK));
                let pads = self.tail == Tail::Pad && offset == at_a_block * WORD;
                assert!(pads || offset == at_the_end * WORD, "an append is not at the end");
                self.content.resize((offset / WORD) as usize, 0);
                self.content.extend(stamps);
                if durable && words > 0 {
                    self.extension_is_stable();
                }
            }
            Err(error) => self.failed(error),
        }
    }

    fn write(&mut self, at: u64, words: u64, durable: bool) {
        let (data, stamps) = self.fresh(words);
        if words == 0 {
            return;
        }
        let (old_len, end) = (self.len(), at + words);
        let overwritten = at.min(old_len) as usize..end.min(old_len) as usize;
        for n in overwritten.clone() {
            let known = self.stable.get_mut(n).into_iter();
            known.for_each(|known| known.push(stamps[n - at as usize]));
        }
        match self.file(durable).write_at(&data, at * WORD) {
            Ok(()) => {
                self.content.resize(old_len.max(end) as usize, 0);
                self.content[at as usize..end as usize].copy_from_slice(&stamps);
                if durable {
                    (at..end).for_each(|n| self.is_stable(n as usize));
                    self.extension_is_stable();
                }
            }
            Err(error) => {
                let content = self.found();
                for n in overwritten {
                    let known = [self.content[n], stamps[n - at as usize]];
                    assert!(known.contains(&content[n]), "word {n} holds {}", content[n]);
                    self.content[n] = content[n];
                }
                self.failed(error);
            }
        }
    }

    fn set_len(&mut self, to: u64) {
        let result = self.file(false).set_len(to * WORD);
        let len = self.file(false).len().expect("a writer knows") / WORD;
        match result {
            Ok(()) => {
                self.content.resize(to as usize, 0);
                self.all_is_stable();
            }
            Err(error) => {
                assert!(
                    len == to || len <= self.len(),
                    "neither the old nor the new length: {len}"
                );
                self.content.resize(len as usize, 0);
                self.stable.truncate(to.min(len) as usize);
                self.failed(error);
            }
        }
    }

    fn close_and_open(&mut self) {
        for file in self.files.take().expect("open between operations") {
            if let Err(error) = file.close() {
                assert!(self.faulty, "{error}");
                return self.crash();
            }
        }
        self.all_is_stable();
        match self.open() {
            // The end stays unknown until a truncate.
            Ok(()) => self.look(),
            Err(error) => {
                assert!(self.faulty, "{error}");
                self.crash();
            }
        }
    }

    fn read(&mut self, at: u64, words: u64) {
        let mut into = Buffer::zeroed((words * WORD) as usize);
        let read = self.file(false).read_at(&mut into, at * WORD).expect("reads do not fail")
            as u64
            / WORD;
        assert_eq!(read, words.min(self.len().saturating_sub(at)));
        let found = stamps(&into[..(read * WORD) as usize]);
        assert!(
            read == 0 || found == self.content[at as usize..(at + read) as usize],
            "{at}: {found:?}"
        );
    }

    /// Fails the power. The content after recovery becomes the model.
    fn crash(&mut self) {
        let disk = self.disk.crash();
        self.files = None;
        self.disk = disk;
        self.faulty = false;
        self.open().expect("whatever a crash left can be opened");
        self.look();
        self.all_is_stable();
    }

    /// Compares the content after an open, and truncates if the end is unknown.
    fn look(&mut self) {
        let content = self.found();
        assert!(
            content.len() >= self.stable.len(),
            "{} words of {}",
            content.len(),
            self.stable.len()
        );
        for (n, (found, known)) in content.iter().zip(&self.stable).enumerate() {
            assert!(known.contains(found), "word {n} holds {found}, not one of {known:?}");
        }
        let written_end = (self.len() * WORD).next_multiple_of(BLOCK * WORD);
        self.content = content;
        let Some(recovery) = self.file(false).recovery() else { return };
        // Data may also be stable by a flush that no operation asked for.
        let end = recovery.floor.max(self.stable.len() as u64 * WORD);
        match recovery.verdict {
            Verdict::EndKnown => {}
            Verdict::EndUnknown => {
                assert!(
                    recovery.floor <= written_end && end <= recovery.ceiling,
                    "{end}: {recovery:?}"
                );
                self.set_len(end / WORD);
            }
            _ => panic!("no other handle had the file: {recovery:?}"),
        }
    }

    fn found(&self) -> Vec<Stamp> {
        let len = self.file(false).len().expect("a writer knows");
        let mut into = Buffer::zeroed(len as usize);
        let read = self.file(false).read_at(&mut into, 0).expect("reads do not fail");
        assert_eq!(read as u64, len);
        stamps(&into)
    }

    /// Checks that the kind of an error is allowed; a file that accepts no more writes crashes.
    fn failed(&mut self, error: dioxide::Error) {
        match error.kind() {
            ErrorKind::NoSpace(_) | ErrorKind::Unsupported(_) | ErrorKind::Misaligned { .. } => {}
            ErrorKind::AppendEnded(_) => assert!(self.faulty, "{error}"),
            _ => {
                assert!(self.faulty, "{error}");
                self.crash();
            }
        }
    }

    fn fresh(&mut self, words: u64) -> (Buffer, Vec<Stamp>) {
        let mut data = Buffer::zeroed((words * WORD) as usize);
        let stamps: Vec<_> = (self.next..self.next + words).collect();
        for (word, stamp) in data.chunks_mut(WORD as usize).zip(&stamps) {
            word.copy_from_slice(&stamp.to_le_bytes());
        }
        self.next += words;
        (data, stamps)
    }

    /// Marks one word as stable, as programs read it.
    fn is_stable(&mut self, n: usize) {
        if let Some(known) = self.stable.get_mut(n) {
            *known = vec![self.content[n]];
        }
    }

    /// Marks all up to the end as stable, except for overwrites that were not durable.
    fn extension_is_stable(&mut self) {
        let known = self.stable.len();
        self.stable.extend(self.content[known..].iter().map(|stamp| vec![*stamp]));
    }

    fn all_is_stable(&mut self) {
        self.stable = self.content.iter().map(|stamp| vec![*stamp]).collect();
    }
}

fn stamps(bytes: &[u8]) -> Vec<Stamp> {
    let stamp = |word: &[u8]| Stamp::from_le_bytes(word.try_into().expect("eight bytes"));
    bytes.chunks(WORD as usize).map(stamp).collect()
}
