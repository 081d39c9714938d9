//! The functions of the program in which threads wait, from copies of their stacks.
//!
//! A stack is copied while its thread sleeps. If the thread has run meanwhile, the copy is
//! discarded. Nothing stops the program. Functions are known by their file and first address, so
//! those of several processes compare.

mod image;
mod maps;
mod unwind;

use super::process::Process;
use crate::evidence::Function;
use gimli::UnwindContext;
use image::Image;
use maps::{FileId, Mapping};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::{Duration, Instant};
use unwind::{Frame, Memory};

/// The interval of taking stacks.
const INTERVAL: Duration = Duration::from_millis(100);
/// The time for the stacks of one pass. Further ones are not taken.
const BATCH_MAX: Duration = Duration::from_millis(50);
/// A map that lacks an address is read again after this time.
const MAPS_INTERVAL: Duration = Duration::from_secs(1);
/// The innermost part of a stack that is copied.
const STACK_BYTES_MAX: u64 = 64 << 10;
/// Functions beyond this number are not told apart.
const FUNCTIONS_MAX: usize = 10_000;

/// The parser of untrusted text.
#[cfg(fuzzing)]
pub fn parse(text: &str) {
    maps::parse_maps(text);
}

#[derive(Debug, Default)]
pub struct Stacks {
    images: Images,
    maps: HashMap<u32, Maps>,
    functions: BTreeMap<Frame, usize>,
    context: Box<UnwindContext<usize>>,
    last: Option<Instant>,
}

/// The map of a process, and when it was read.
#[derive(Debug)]
struct Maps {
    mappings: Vec<Mapping>,
    read: Instant,
}

/// The files with code. None for one without unwind tables.
#[derive(Debug, Default)]
struct Images {
    numbers: HashMap<FileId, usize>,
    images: Vec<(String, Option<Image>)>,
}

impl Stacks {
    /// Returns whether stacks are due, and begins the next interval if so.
    pub fn begin_if_due(&mut self, now: Instant) -> bool {
        let is_due = cfg!(target_arch = "x86_64")
            && self.last.is_none_or(|last| now.duration_since(last) >= INTERVAL);
        if is_due {
            self.last = Some(now);
        }
        is_due
    }

    /// The functions of a thread that has run so often and sleeps in such a call, innermost first,
    /// as indices into [`Stacks::finish`]. None if it ran meanwhile, its stack cannot be read, or
    /// the stacks of this pass took too long.
    pub fn stack(
        &mut self,
        process: &Process,
        tid: u32,
        runs: u64,
        is_such: impl FnOnce(&str) -> bool,
    ) -> Option<Vec<usize>> {
        let until = self.last.map(|last| last + BATCH_MAX);
        let is_late = || until.is_some_and(|until| Instant::now() >= until);
        if is_late() {
            return None;
        }
        let thread = process.threads.get(&tid)?;
        let (call, sp, pc) = thread.registers(&process.dir)?;
        if !is_such(&call) {
            return None;
        }
        let memory = process.open(&process.path_of("mem"))?;
        let mappings = find_maps(&mut self.maps, process, [pc, sp])?;
        let end = maps::at(mappings, sp)?.end;
        let mut stack = vec![0; (end - sp).min(STACK_BYTES_MAX) as usize];
        memory.read_exact_at(&mut stack, sp).ok()?;
        if thread.runs(&process.dir) != Some(runs) {
            return None;
        }
        let images = &mut self.images;
        let mut view = View { process, memory, mappings, images, sp, stack };
        let frames = unwind::unwind(&mut view, pc, sp, &mut self.context, is_late);
        let functions = &mut self.functions;
        let mut number = |frame: Frame| match functions.len() {
            FUNCTIONS_MAX => functions.get(&frame).copied(),
            next => Some(*functions.entry(frame).or_insert(next)),
        };
        frames.into_iter().map(&mut number).collect()
    }

    /// The functions.
    pub fn finish(self) -> Vec<Function> {
        let mut functions: Vec<(usize, Frame)> =
            self.functions.into_iter().map(|(frame, index)| (index, frame)).collect();
        let mut names = Vec::new();
        for (number, (_, image)) in self.images.images.iter().enumerate() {
            let its = functions.iter().filter(|(_, (image, _))| *image == number);
            let addresses: Vec<u64> = its.map(|(_, (_, address))| *address).collect();
            names.push(image.as_ref().map(|it| it.names(&addresses)).unwrap_or_default());
        }
        functions.sort_unstable();
        let function = |(_, (image, address)): (usize, Frame)| Function {
            name: names[image].get(&address).cloned(),
            file: self.images.images[image].0.clone(),
            address,
        };
        functions.into_iter().map(function).collect()
    }
}

fn find_maps<'a>(
    maps: &'a mut HashMap<u32, Maps>,
    process: &Process,
    addresses: [u64; 2],
) -> Option<&'a [Mapping]> {
    let is_stale = maps.get(&process.pid).is_none_or(|known| {
        lacks(&known.mappings, addresses) && known.read.elapsed() >= MAPS_INTERVAL
    });
    if is_stale {
        let mappings = maps::parse_maps(&process.read(&process.path_of("maps"))?);
        maps.insert(process.pid, Maps { mappings, read: Instant::now() });
    }
    Some(&maps.get(&process.pid)?.mappings)
}

/// Whether the process has mapped code or a stack since: of a library, a thread or a new program.
fn lacks(mappings: &[Mapping], addresses: [u64; 2]) -> bool {
    addresses.into_iter().any(|address| maps::at(mappings, address).is_none())
}

/// A process, with a copy of the stack of one of its threads.
struct View<'a> {
    process: &'a Process,
    memory: File,
    mappings: &'a [Mapping],
    images: &'a mut Images,
    sp: u64,
    stack: Vec<u8>,
}

impl Memory for View<'_> {
    fn word(&self, address: u64) -> Option<u64> {
        let at = usize::try_from(address.checked_sub(self.sp)?).ok()?;
        let bytes = self.stack.get(at..at.checked_add(8)?)?;
        Some(u64::from_ne_bytes(bytes.try_into().expect("eight bytes")))
    }

    fn code(&self, address: u64, bytes: &mut [u8]) -> bool {
        maps::at(self.mappings, address).is_some_and(|mapping| mapping.is_code)
            && self.memory.read_exact_at(bytes, address).is_ok()
    }

    fn image(&mut self, address: u64) -> Option<(usize, &Image, u64)> {
        let mapping = maps::at(self.mappings, address).filter(|mapping| mapping.is_code)?;
        let (number, image) = self.images.find(mapping, self.process)?;
        let linked = image.address_of(mapping.offset)?;
        Some((number, image, mapping.start.wrapping_sub(linked)))
    }
}

impl Images {
    fn find(&mut self, mapping: &Mapping, process: &Process) -> Option<(usize, &Image)> {
        let file = mapping.file?;
        let number = *self.numbers.entry(file).or_insert_with(|| {
            let image = open(mapping, file, process).and_then(Image::load);
            self.images.push((mapping.path.clone(), image));
            self.images.len() - 1
        });
        Some((number, self.images[number].1.as_ref()?))
    }
}

/// The mapped file itself, which only root may open, or the one of the same path and inode.
fn open(mapping: &Mapping, (_, inode): FileId, process: &Process) -> Option<File> {
    let range = format!("map_files/{:x}-{:x}", mapping.start, mapping.end);
    process.open(&range).or_else(|| {
        let file = process.open(&process.path_of(&format!("root{}", mapping.path)))?;
        (file.metadata().ok()?.ino() == inode).then_some(file)
    })
}

#[cfg(test)]
#[cfg(target_arch = "x86_64")]
mod tests {
    use super::*;
    use rustix::thread::gettid;
    use std::sync::mpsc::{Receiver, channel};

    /// Waits until the sender is gone.
    #[inline(never)]
    fn waits_for_the_end(end: &Receiver<()>) -> bool {
        std::hint::black_box(end.recv()).is_err()
    }

    #[test]
    fn threads_that_start_later_have_stacks() {
        let mappings =
            maps::parse_maps("1000-2000 r-xp 0 08:01 7 /bin/server\n7000-8000 rw-p 0 00:00 0\n");
        assert!(!lacks(&mappings, [0x1500, 0x7500]));
        assert!(lacks(&mappings, [0x1500, 0x6500]), "the stack of a new thread");
        assert!(lacks(&mappings, [0x2500, 0x7500]), "the code of a new library");
    }

    #[test]
    fn a_sleeping_thread_has_a_stack() {
        let (stop, end) = channel();
        let (send_tid, tid) = channel();
        let waiter = std::thread::spawn(move || {
            send_tid.send(gettid().as_raw_nonzero().get() as u32).unwrap();
            assert!(waits_for_the_end(&end));
        });
        let tid = tid.recv().unwrap();
        let mut process = Process::find(std::process::id()).unwrap();
        assert_eq!(process.find_threads(0), Ok(true));
        let mut stacks = Stacks::default();
        // It may still run.
        let mut stack = Vec::new();
        while stack.is_empty() {
            let Some(runs) = process.threads[&tid].runs(&process.dir) else { continue };
            let past = stacks.stack(&process, tid, runs.wrapping_sub(1), |_| true);
            assert_eq!(past, None, "it has run since");
            stack = stacks.stack(&process, tid, runs, |call| call == "futex").unwrap_or_default();
        }
        drop(stop);
        waiter.join().unwrap();
        let functions = stacks.finish();
        let names: Vec<&str> =
            stack.iter().map(|index| functions[*index].name.as_deref().unwrap_or("?")).collect();
        let is_ours = |name: &&str| name.ends_with("waits_for_the_end");
        let ours = names.iter().position(is_ours).unwrap_or_else(|| panic!("{names:?}"));
        assert!(names[ours..].iter().any(|name| name.contains("thread_start")), "{names:?}");
    }
}
