//! The files that a queue works on.

use crate::backend::Backend;
use crate::backend::ring::Ring;
use crate::engine::Engine;
use crate::engine::reactor::Reactor;
use slab::Slab;
use smallvec::SmallVec;
use std::ops::{Index, IndexMut};
use std::sync::Arc;

/// A file that a queue works on, or worked on.
#[derive(Debug)]
pub(super) struct Attached {
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
pub(super) struct Files {
    attached: Slab<Attached>,
    last: usize,
    /// Informed by a file when it is closed, since no close runs on this queue's thread.
    reactor: Option<Arc<Reactor>>,
}

impl Files {
    /// Makes these the files of a reactor.
    pub fn belong_to(&mut self, reactor: Arc<Reactor>) {
        self.reactor = Some(reactor);
    }

    /// Returns the number of a file, and attaches it first if necessary.
    pub fn attach(&mut self, engine: &Arc<Engine>, ring: &mut Option<Box<dyn Ring>>) -> usize {
        let is_it = |file: &Attached| Arc::ptr_eq(&file.engine, engine);
        if self.attached.get(self.last).is_some_and(is_it) {
            return self.last;
        }
        let known = self.attached.iter().find(|(_, file)| is_it(file)).map(|(number, _)| number);
        self.last = known.unwrap_or_else(|| {
            if let Some(reactor) = &self.reactor {
                engine.attach(reactor);
            }
            let slots =
                ring.as_mut().map(|ring| slots(&mut **ring, &*engine.backend)).unwrap_or_default();
            self.attached.insert(Attached {
                engine: engine.clone(),
                slots,
                outstanding: 0,
                shuts_out: false,
            })
        });
        self.last
    }

    /// Releases closed files that have nothing outstanding.
    pub fn let_go_of_closed(&mut self, ring: &mut Option<Box<dyn Ring>>) {
        self.retain(ring, |file| file.outstanding > 0 || !file.engine.is_closed());
    }

    /// Releases all files.
    pub fn let_go_of_all(&mut self, ring: &mut Option<Box<dyn Ring>>) {
        self.retain(ring, |_| false);
    }

    fn retain(&mut self, ring: &mut Option<Box<dyn Ring>>, keeps: impl Fn(&Attached) -> bool) {
        self.attached.retain(|_, file| {
            let keeps = keeps(file);
            if !keeps && let Some(ring) = ring {
                file.slots.iter().for_each(|slot| ring.detach(*slot));
            }
            keeps
        });
    }
}

/// The ring's numbers for all descriptors of a file, or none.
fn slots(ring: &mut dyn Ring, backend: &dyn Backend) -> SmallVec<[u32; 1]> {
    let mut slots = SmallVec::new();
    for file in backend.ring_files() {
        match ring.attach(file) {
            Some(slot) => slots.push(slot),
            None => {
                slots.drain(..).for_each(|slot| ring.detach(slot));
                break;
            }
        }
    }
    slots
}

impl Index<usize> for Files {
    type Output = Attached;

    fn index(&self, number: usize) -> &Attached {
        &self.attached[number]
    }
}

impl IndexMut<usize> for Files {
    fn index_mut(&mut self, number: usize) -> &mut Attached {
        &mut self.attached[number]
    }
}
