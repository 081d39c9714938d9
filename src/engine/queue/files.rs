//! The files that a queue works on.

use crate::backend::Backend;
use crate::backend::journal::Journal;
use crate::backend::ring::{Ring, Uses};
use crate::engine::Engine;
use crate::engine::reactor::Reactor;
use slab::Slab;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::ops::{Index, IndexMut};
use std::sync::Arc;

/// A file that a queue works on, or worked on.
#[derive(Debug)]
pub(super) struct AttachedFile {
    pub engine: Arc<Engine>,
    /// Its number in the ring, if the ring can work on it; one for each member of a striped volume.
    pub slots: SmallVec<[u32; 1]>,
    /// Operations queued and requests begun that have not finished.
    pub outstanding: usize,
    /// Operations wait for the end of an exclusive operation, and later ones wait behind them.
    pub shuts_out: bool,
}

/// The files of a queue. They stay attached until they are closed: cloning the `Arc` of one
/// contends with other threads.
#[derive(Debug, Default)]
pub(super) struct QueueFiles {
    attached: Slab<AttachedFile>,
    /// The number of each, by the address of its engine.
    numbers: HashMap<usize, usize>,
    last: usize,
    /// The journals that shared flushes commit, with their numbers in the ring.
    journals: Vec<(Arc<dyn Journal>, Option<u32>)>,
    /// The closes of the process when no closed file was left here.
    closes: u64,
    /// Informed by a file when it is closed, since no close runs on this queue's thread.
    reactor: Option<Arc<Reactor>>,
}

impl QueueFiles {
    /// Makes these the files of a reactor.
    pub fn belong_to(&mut self, reactor: Arc<Reactor>) {
        self.reactor = Some(reactor);
    }

    /// Returns the number of a file, and attaches it first if necessary.
    pub fn attach(&mut self, engine: &Arc<Engine>, ring: &mut Option<Box<dyn Ring>>) -> usize {
        let is_it = |file: &AttachedFile| Arc::ptr_eq(&file.engine, engine);
        if self.attached.get(self.last).is_some_and(is_it) {
            return self.last;
        }
        let address = Arc::as_ptr(engine).addr();
        let known = self.numbers.get(&address).copied();
        self.last = known.unwrap_or_else(|| {
            if let Some(reactor) = &self.reactor {
                engine.attach(reactor);
            }
            let slots = ring.as_mut().map(|ring| slots(&mut **ring, &*engine.backend, Uses::Many));
            let slots = slots.unwrap_or_default();
            let file =
                AttachedFile { engine: engine.clone(), slots, outstanding: 0, shuts_out: false };
            let number = self.attached.insert(file);
            self.numbers.insert(address, number);
            number
        });
        self.last
    }

    /// Returns the number of a file's journal in the ring, if the ring can work on it.
    pub fn journal_slot(&mut self, file: usize, ring: &mut Option<Box<dyn Ring>>) -> Option<u32> {
        let journal = self.attached[file].engine.journal.as_ref().ok()?;
        let known = self.journals.iter().find(|(known, _)| Arc::ptr_eq(known, journal));
        known.map(|(_, slot)| *slot).unwrap_or_else(|| {
            let slot = ring.as_mut().and_then(|ring| ring.attach(journal.ring_file(), Uses::Many));
            self.journals.push((journal.clone(), slot));
            slot
        })
    }

    /// Releases closed files that have nothing outstanding. `closes` counts those of the process:
    /// a queue of many files looks at them only after one was closed.
    pub fn let_go_of_closed(&mut self, closes: u64, ring: &mut Option<Box<dyn Ring>>) {
        if self.closes == closes {
            return;
        }
        self.retain(ring, |file| file.outstanding > 0 || !file.engine.is_closed());
        if !self.attached.iter().any(|(_, file)| file.engine.is_closed()) {
            self.closes = closes;
        }
    }

    /// Releases all files.
    pub fn let_go_of_all(&mut self, ring: &mut Option<Box<dyn Ring>>) {
        self.retain(ring, |_| false);
    }

    fn retain(&mut self, ring: &mut Option<Box<dyn Ring>>, keeps: impl Fn(&AttachedFile) -> bool) {
        self.attached.retain(|_, file| {
            let keeps = keeps(file);
            if !keeps {
                self.numbers.remove(&Arc::as_ptr(&file.engine).addr());
                let ring = ring.iter_mut();
                ring.for_each(|ring| file.slots.iter().for_each(|slot| ring.detach(*slot)));
            }
            keeps
        });
        // A journal keeps its file system mounted.
        let files = &self.attached;
        self.journals.retain(|(journal, slot)| {
            let is_its = |file: &AttachedFile| {
                file.engine.journal.as_ref().is_ok_and(|it| Arc::ptr_eq(it, journal))
            };
            let keeps = files.iter().any(|(_, file)| is_its(file));
            if let (false, Some(slot), Some(ring)) = (keeps, slot, &mut *ring) {
                ring.detach(*slot);
            }
            keeps
        });
    }
}

/// The ring's numbers for all descriptors of a file, or none.
pub(super) fn slots(ring: &mut dyn Ring, backend: &dyn Backend, uses: Uses) -> SmallVec<[u32; 1]> {
    let mut slots = SmallVec::new();
    for file in backend.ring_files() {
        match ring.attach(file, uses) {
            Some(slot) => slots.push(slot),
            None => {
                slots.drain(..).for_each(|slot| ring.detach(slot));
                break;
            }
        }
    }
    slots
}

impl Index<usize> for QueueFiles {
    type Output = AttachedFile;

    fn index(&self, number: usize) -> &AttachedFile {
        &self.attached[number]
    }
}

impl IndexMut<usize> for QueueFiles {
    fn index_mut(&mut self, number: usize) -> &mut AttachedFile {
        &mut self.attached[number]
    }
}
