//! Makes the engine or the reader of a file that is open, locked and recovered.

use super::request::OpenRequest;
use crate::backend::Backend;
use crate::backend::journal::Journal;
use crate::engine::process::{FileSystems, Process};
use crate::engine::reader::ReadHandle;
use crate::engine::registry::Key;
use crate::engine::{Engine, FileProps, Parts};
use crate::rules::growth::GrowthConfig;
use crate::rules::marker::{Marker, Prepared};
use crate::rules::recovery::Recovery;
use crate::sys::journal::Order;
use crate::sys::probe::Facts;
use std::path::Path;
use std::sync::Arc;

/// How space ahead of the end is prepared.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpaceAhead {
    prepared: Option<Prepared>,
    overwrites_in_place: bool,
}

impl SpaceAhead {
    /// No growth ahead.
    pub const NONE: Self = Self { prepared: None, overwrites_in_place: false };

    /// A held marker decides, whatever the request: the file must grow only as the marker
    /// announces. Without one, `possible` returns the requested growth, if it is possible.
    /// `overwrites_in_place` receives the result.
    pub fn new(
        held: Option<&Marker>,
        possible: impl FnOnce() -> Option<Prepared>,
        overwrites_in_place: impl FnOnce(Option<Prepared>) -> bool,
    ) -> Self {
        let prepared = held.map_or_else(possible, |marker| Some(marker.prepared));
        Self { prepared, overwrites_in_place: overwrites_in_place(prepared) }
    }
}

/// The inputs of an engine.
pub(crate) struct Build<'a> {
    pub request: &'a OpenRequest,
    pub process: &'static Process,
    pub path: &'a Arc<Path>,
    pub fs: FileSystems,
    pub facts: &'a Facts,
    pub ahead: SpaceAhead,
    /// The journal by which the file shares flushes with others; or why it shares none.
    pub journal: std::result::Result<Arc<dyn Journal>, String>,
    /// The order in which the file system commits changes, if it is known.
    pub order: Option<Order>,
    /// The first epoch of markers.
    pub epoch: u32,
    pub recovery: Recovery,
    /// The marker that stays because only the program can find the end.
    pub held: Option<Marker>,
}

impl Build<'_> {
    pub fn engine(self, backend: Arc<dyn Backend>) -> Engine {
        let Self { request, facts, ahead, .. } = self;
        let SpaceAhead { prepared, overwrites_in_place } = ahead;
        let unit_bytes = facts.alignment.append;
        let is_zeroed = prepared == Some(Prepared::Zeroed);
        Engine::new(Parts {
            backend,
            journal: self.journal,
            order: self.order,
            path: self.path.clone(),
            process: self.process,
            fs: self.fs,
            props: FileProps {
                tail: request.tail,
                prepared,
                overwrites_in_place,
                epoch: self.epoch,
                ..FileProps::of(facts)
            },
            alignment: facts.alignment,
            growth_config: GrowthConfig::new(
                request.growth_cap_bytes,
                request.capacity_bytes,
                unit_bytes,
                is_zeroed,
            ),
            recovery: self.recovery,
            held: self.held,
        })
    }
}

/// The read-only handle of an open file or device.
pub(crate) fn reader(
    backend: Arc<dyn Backend>,
    path: Arc<Path>,
    facts: Facts,
    key: Key,
    process: &'static Process,
) -> Arc<ReadHandle> {
    let of_device = facts.is_device.then(|| {
        let build = Build {
            request: &OpenRequest::default(),
            process,
            path: &path,
            // It flushes nothing.
            fs: FileSystems::default(),
            facts: &facts,
            ahead: SpaceAhead::NONE,
            journal: Err("it is open for reading".into()),
            order: None,
            epoch: 0,
            recovery: Recovery::clean(facts.len),
            held: None,
        };
        Arc::new(build.engine(backend.clone()))
    });
    Arc::new(ReadHandle::new(backend, path, facts, key, of_device, process))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::backend::null::Null;
    use crate::rules::marker::Identity;
    use crate::rules::merge::Limits;
    use crate::sys::probe::{Alignment, Part, Through};

    #[test]
    fn the_engine_of_a_device_closes_with_the_last_copy_of_its_reader() {
        let facts = Facts {
            identity: Identity { inode: 0, birth_time: (0, 0) },
            dev: 1 << 62,
            fs: 1 << 62,
            is_device: true,
            alignment: Alignment { memory: 512, offset: 512, append: 4096 },
            limits: Limits { bytes_max: 1 << 20, segments_max: 1024 },
            writes_through: false,
            len: 1 << 20,
            through: Through::Device,
            part: Part::Whole,
        };
        let (key, path) = (Key::of(&facts), Path::new("device").into());
        let backend = Arc::new(Null::default());
        backend.truncate(facts.len).expect("it keeps a length");
        let reader = reader(backend, path, facts, key, Process::current());
        let copy = reader.clone();
        let engine = copy.engine_of_device().expect("a device");
        drop(reader);
        let mut into = crate::Buffer::zeroed(4096);
        assert_eq!(engine.read_at(&mut into, 0).unwrap(), into.len());
        assert!(!engine.is_closed(), "a copy is left");
        drop(copy);
        assert!(engine.is_closed());
    }
}
