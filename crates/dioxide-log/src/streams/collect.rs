//! Frees the oldest segments of a log of streams.
//!
//! 1. The frames of the oldest segment that streams still need are copied to the end of the log,
//!    each under the lock of its stream. A record first, then the bounds of its stream.
//! 2. The copies become stable.
//! 3. Readers find the copies.
//! 4. The front of the log moves behind the segment, so that it is free.
//!
//! If streams need none of its frames, only the fourth step remains, and nothing is read.
//!
//! After a crash before the fourth step, a record lies in two places. Both are the same, and the
//! later one counts. A record that was truncated after its copy lies before the new bounds, so it
//! stays truncated.

use super::entry::Entry;
use super::log::Core;
use super::stream::SharedStream;
use super::table::Table;
use super::usage::Need;
use crate::batch::Purpose;
use crate::error::{Error, Result};
use crate::index::Location;
use crate::locked::locked;
use crate::lsn::Lsn;
use crate::reader::Iter;
use crate::writer::InUse;
use std::collections::BTreeMap;
use std::sync::atomic::{Ordering::Relaxed, Ordering::Release};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Wakes the collector.
#[derive(Default)]
pub(super) struct Signal {
    state: Mutex<Wanted>,
    changed: Condvar,
}

#[derive(Default, PartialEq)]
enum Wanted {
    #[default]
    Nothing,
    Look,
    End,
}

impl Signal {
    fn set(&self, wanted: Wanted) {
        let mut state = locked(&self.state);
        if *state != Wanted::End {
            *state = wanted;
        }
        drop(state);
        self.changed.notify_all();
    }

    /// There may be a segment to collect.
    pub fn wake(&self) {
        self.set(Wanted::Look);
    }

    pub fn end(&self) {
        self.set(Wanted::End);
    }

    fn has_ended(&self) -> bool {
        *locked(&self.state) == Wanted::End
    }

    /// Waits for work. False at the end.
    fn wait(&self) -> bool {
        let state = locked(&self.state);
        let waited = self.changed.wait_while(state, |wanted| *wanted == Wanted::Nothing);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        if *state == Wanted::Look {
            *state = Wanted::Nothing;
            return true;
        }
        false
    }
}

/// Works until the log is closed.
pub(super) fn run(core: &Core) {
    while core.signal.wait() {
        match collect_all(core, Need::Size) {
            // A full log is reported to the appends.
            Ok(())
            | Err(Error::Closed | Error::Full(_) | Error::NoSegment(_) | Error::DeviceFull(_)) => {}
            Err(error) => log::warn!("{error}"),
        }
    }
}

/// Collects segments of a full log.
pub(super) fn make_space(core: &Core, need: Need) {
    if let Err(error) = collect_all(core, need) {
        log::warn!("{error}");
    }
}

/// Collects segments as long as it is worth it, but each at most once.
fn collect_all(core: &Core, need: Need) -> Result<()> {
    let _alone = locked(&core.collecting);
    let last = core.writer().in_use().numbers.end;
    while !core.signal.has_ended() {
        let InUse { numbers, front, end } = core.writer().in_use();
        let oldest = numbers.start;
        let must = core.usage().must_collect(numbers, core.writer().segment_bytes, need);
        let Some(end) = end.filter(|_| must && oldest < last) else { break };
        if !collect(core, oldest, front, end)? {
            break;
        }
        debug_assert!(!core.usage().needs(oldest));
        // Looked up first: the lock of the usage is the last.
        let oldest = core.writer().in_use().numbers.start;
        core.usage().forget_before(oldest);
        core.collected.fetch_add(1, Release);
    }
    Ok(())
}

/// A record that was copied.
struct Moved {
    shared: Arc<SharedStream>,
    lsn: Lsn,
    from: Location,
    to: Location,
}

/// Collects the oldest segment, which has the records from `front` up to, not including, `end`.
/// False if it is not complete.
fn collect(core: &Core, oldest: u64, front: Lsn, end: Lsn) -> Result<bool> {
    let writer = core.writer();
    if writer.visible() < end {
        // Without a sync by the user, nothing else makes it stable, and a full log stays full.
        writer.stabilize(writer.lock())?;
    }
    if !core.usage().needs(oldest) {
        writer.truncate_front(end)?;
        return Ok(true);
    }
    writer.start_driver()?;
    let mut moved = Vec::new();
    let mut anchored = BTreeMap::new();
    let mut iter = Iter::new(writer.clone(), front);
    while iter.lsn() < end {
        let Some((from, record)) = iter.next_located()? else { return Ok(false) };
        match Entry::parse(record.payload).expect("it was parsed before") {
            Entry::Record { stream, lsn, record } | Entry::Copy { stream, lsn, record } => {
                let shared = core.shared(stream);
                let payload = Entry::Copy { stream, lsn, record }.encode();
                if let Some(to) = copy(core, &shared, lsn, from, &payload)? {
                    moved.push(Moved { shared, lsn, from, to });
                }
            }
            Entry::Bounds { stream, .. } => {
                let shared = core.shared(stream);
                if shared.lock().table.anchor() == Some(from) {
                    anchored.insert(stream, (shared, from));
                }
            }
        }
    }
    for (stream, (shared, anchor)) in anchored {
        // Newer bounds lie in a later segment.
        let same = |table: &Table| {
            let bounds = (table.front(), table.next());
            Ok((table.anchor() == Some(anchor)).then_some(bounds))
        };
        core.push_bounds(stream, &shared, Purpose::Copies, same)?;
        core.copied_bytes.fetch_add(anchor.bytes.into(), Relaxed);
    }
    writer.stabilize(writer.lock())?;
    for Moved { shared, lsn, from, to } in moved {
        let mut state = shared.lock();
        if state.table.relocate(lsn, from, to) {
            let mut usage = core.usage();
            usage.free(from.segment, from.bytes.into());
            usage.need(to);
        }
        core.copied_bytes.fetch_add(to.bytes.into(), Relaxed);
    }
    writer.truncate_front(end)?;
    Ok(true)
}

/// Copies a record to the end of the log, if its stream has it at this location. Returns where.
fn copy(
    core: &Core,
    shared: &SharedStream,
    lsn: Lsn,
    from: Location,
    payload: &[u8],
) -> Result<Option<Location>> {
    let (writer, payloads) = (core.writer(), [payload]);
    loop {
        let state = shared.lock();
        if state.table.get(lsn) != Some(from) {
            return Ok(None);
        }
        let Some((guard, pushed)) = writer.try_push(&payloads, Purpose::Copies)? else {
            drop(state);
            writer.wait_for_room(&payloads, Purpose::Copies)?;
            continue;
        };
        writer.give_away(guard);
        let to = pushed.locations(&payloads).next().expect("one");
        core.usage().write(to);
        return Ok(Some(to));
    }
}
