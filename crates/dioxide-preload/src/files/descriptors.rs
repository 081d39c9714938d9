//! The program's descriptors: opened, duplicated, closed, and their flags.

use super::fork::{is_over, not_in_exec};
use super::hand_back::{ADVICE, hand_back, leave_to_kernel, put_away};
use super::inode::{Description, Inode, Key, borrowed};
use super::registry::{any_taken, inode_of, known, known_or_new, known_to_change, settings};
use super::take_over::{recover_patiently, take_over};
use crate::keeper;
use crate::process::{Inside, is_elsewhere, is_inside};
use crate::say::say;
use crate::settings::Settings;
use crate::slots::{self, Slot, State};
use crate::summary::{self, Event};
use crate::surroundings;
use dioxide::text::shown;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Registers a descriptor that the kernel has opened with these flags.
pub fn opened(fd: c_int, flags: c_int) {
    let Some(settings) = settings().filter(|_| !is_inside() && !is_elsewhere()) else { return };
    not_in_exec();
    let is_direct = flags & libc::O_DIRECT != 0 && flags & libc::O_PATH == 0;
    let writes = flags & libc::O_ACCMODE != libc::O_RDONLY;
    if is_over() {
        if is_direct && writes && flags & libc::O_TRUNC == 0 && is_left_grown(fd) {
            tell_left_grown(fd, "the library takes no file over any more");
        }
        return;
    }
    if slots::find(fd).is_some() {
        // The number may have been closed unseen.
        let _ = close(fd, || 0);
    }
    if !is_direct && !any_taken() {
        return;
    }
    let Ok(stat) = rustix::fs::fstat(borrowed(fd)) else { return };
    let Some(key) = Key::of(&stat) else { return };
    let _inside = Inside::begin();
    if !is_direct {
        return opened_beside(key);
    }
    let is_known = known().contains_key(&key);
    let is_wanted = is_known || is_wanted(settings, key, fd);
    if writes && (key.inode.is_some() || settings.devices) {
        summary::note(if is_wanted { Event::Seen } else { Event::Unmatched });
    }
    if !is_wanted {
        return;
    }
    let inode = known_or_new(key, fd);
    let description = Description {
        inode: inode.clone(),
        reads: flags & libc::O_ACCMODE != libc::O_WRONLY,
        writes,
        durable: flags & libc::O_DSYNC != 0,
        append: AtomicBool::new(flags & libc::O_APPEND != 0),
        position: Mutex::default(),
    };
    register(fd, Arc::new(description));
    if !writes {
        return;
    }
    let is_marked = has_marker(fd);
    // After O_TRUNC the kernel's length is right, also if the marker stays.
    if is_marked && flags & libc::O_TRUNC == 0 {
        recover(&inode, fd);
    } else if is_marked || settings.eager {
        take_over(&inode);
    }
}

/// Has the engine recover a file that a crash left grown. If it cannot, the kernel serves the grown
/// length. The library then reports this, and `fsync` or `close` returns EIO. Otherwise a program
/// would append behind the grown space, where its next recovery does not look.
fn recover(inode: &Arc<Inode>, fd: c_int) {
    let refusal = recover_patiently(inode);
    // A signal handler that opens the file would wait for its lease with this lock held.
    let is_left = dioxide::with_signals_blocked(|| {
        let _changes = inode.changes();
        !inode.is_taken() && is_left_grown(fd)
    });
    if is_left {
        inode.failed.store(true, Ordering::Relaxed);
        tell_left_grown(fd, &refusal.unwrap_or_else(|| "the kernel serves it".into()));
    }
}

fn tell_left_grown(fd: c_int, why: &str) {
    let name = surroundings::path_of(fd).unwrap_or_default();
    say(&format!(
        "{}: a crash, or a running program, left it grown, so its length is wrong; not recovered: \
         {why}; {ADVICE}",
        shown(&name)
    ));
}

/// Hands back a device that the program has opened without O_DIRECT: its page cache does not see
/// the engine's writes. Such an open of a regular file waits in the kernel for the hand-back.
fn opened_beside(key: Key) {
    let inode = known().get(&key).cloned();
    if let Some(inode) =
        inode.filter(|inode| !inode.is_kernel_only() && inode.is_taken_or_about_to_be())
    {
        hand_back(&inode, "it was opened without O_DIRECT as well");
    }
}

fn is_wanted(settings: &Settings, key: Key, fd: c_int) -> bool {
    (key.inode.is_some() || settings.devices)
        && (!settings.has_globs()
            || surroundings::path_of(fd).is_ok_and(|path| settings.wants(&path)))
}

fn has_marker(fd: c_int) -> bool {
    rustix::fs::fgetxattr(borrowed(fd), dioxide::MARKER_NAME, &mut [0_u8; 0]).is_ok()
}

/// Whether the marker is that of the file, and not of one that it is a copy of.
fn is_left_grown(fd: c_int) -> bool {
    dioxide::is_left_grown(borrowed(fd)).unwrap_or_else(|_| has_marker(fd))
}

fn register(fd: c_int, description: Arc<Description>) {
    let inode = description.inode.clone();
    let Some(slot) = slots::make(fd) else {
        return hand_back(&inode, "a descriptor number of it is too high");
    };
    release(fd);
    // A signal handler that opens the file would wait for its lease with these locks held.
    let is_known = dioxide::with_signals_blocked(|| {
        {
            let mut known = known_to_change();
            let same = known.entry(inode.key).or_insert_with(|| inode.clone());
            if !Arc::ptr_eq(same, &inode) {
                // Meanwhile another thread closed the last descriptor and opened the file anew.
                return false;
            }
            inode.descriptors().insert(fd);
        }
        let _changes = inode.changes();
        let state = match &*inode.taken.read().unwrap_or_else(PoisonError::into_inner) {
            Some(taken) => State::Taken(description, taken.clone()),
            None => State::Watched(description),
        };
        slot.write().set_anew(state);
        true
    });
    if is_known && fd <= libc::STDERR_FILENO {
        // libc has streams of these numbers, and uses them without a call that the library sees.
        hand_back(&inode, "it is a standard stream");
    }
}

/// Closes a known descriptor by `close`, the kernel's call. Before the last close of a taken file,
/// closes the engine's file. Returns the result of `close`, or EIO if the engine failed.
pub fn close(fd: c_int, close: impl FnOnce() -> c_int) -> Result<c_int, c_int> {
    if is_elsewhere() {
        return Ok(close());
    }
    let _inside = Inside::begin();
    let failed = release(fd);
    match close() {
        0 if failed => Err(libc::EIO),
        result => Ok(result),
    }
}

/// Forgets a descriptor that a signal handler has closed unseen. The number may be open again.
pub fn forget_lost(fd: c_int) {
    if slots::find(fd).is_some_and(Slot::is_lost) && !is_inside() && !is_elsewhere() {
        release(fd);
    }
}

/// Forgets a descriptor. Returns whether it was the last of a file that the engine failed to close.
fn release(fd: c_int) -> bool {
    let Some(slot) = slots::find(fd) else { return false };
    let _inside = Inside::begin();
    // A signal handler that opens the file would wait for its lease with these locks held.
    let known = dioxide::with_signals_blocked(|| {
        let inode = {
            let mut state = slot.write();
            let inode = state.description().map(|description| description.inode.clone());
            // With the slot locked: it drops its `Taken` before a keeper has drained the slot.
            state.set_anew(State::Empty);
            inode?
        };
        let is_last = {
            let mut descriptors = inode.descriptors();
            descriptors.remove(&fd);
            descriptors.is_empty()
        };
        Some((inode, is_last))
    });
    let Some((inode, is_last)) = known else { return false };
    if is_last {
        if inode.is_taken_or_about_to_be() {
            let inode = inode.clone();
            keeper::run(move || {
                let _changes = inode.changes();
                // Another thread may have opened the device again, or duplicated the descriptor.
                if inode.descriptors().is_empty() {
                    put_away(&inode);
                }
            });
        } else {
            leave_to_kernel(&inode);
        }
        dioxide::with_signals_blocked(|| {
            let mut known = known_to_change();
            let is_same = known.get(&inode.key).is_some_and(|known| Arc::ptr_eq(known, &inode));
            if is_same && inode.descriptors().is_empty() {
                known.remove(&inode.key);
            }
        });
    }
    // Programs ignore the result of closing a number that they have just duplicated.
    is_last && inode.take_failure()
}

/// Duplicates the descriptor `from` by `make`, the kernel's call, and registers the new number. The
/// call closes the descriptor `over`.
pub fn duplicate(from: c_int, over: Option<c_int>, make: impl FnOnce() -> c_int) -> c_int {
    let _inside = Inside::begin();
    if let Some(over) = over {
        release(over);
    }
    let made = make();
    if made >= 0 && made != from {
        let description = || slots::find(from)?.read().description().cloned();
        // As in `register`.
        match dioxide::with_signals_blocked(description) {
            Some(description) => register(made, description),
            None => drop(release(made)),
        }
    }
    made
}

/// Sets the flags of a description by `change`, the kernel's call.
pub fn set_flags(fd: c_int, flags: c_int, change: impl FnOnce(c_int) -> c_int) -> c_int {
    let Some(inode) = inode_of(fd) else { return change(flags) };
    if flags & libc::O_DIRECT == 0 {
        hand_back(&inode, "O_DIRECT was cleared");
    }
    let _inside = Inside::begin();
    // A signal handler that opens the file would wait for its lease with these locks held.
    dioxide::with_signals_blocked(|| {
        let _changes = inode.changes();
        // All duplicates share the flags.
        let drained = inode.drained();
        let state = drained.iter().find(|(number, _)| *number == fd).map(|(_, state)| &**state);
        // With O_APPEND the engine's writes would become appends of the kernel.
        let is_cleared = matches!(state, Some(State::Taken(_, taken)) if taken.lease.is_some());
        let result = change(if is_cleared { flags & !libc::O_APPEND } else { flags });
        if let (0, Some(description)) = (result, state.and_then(State::description)) {
            description.append.store(flags & libc::O_APPEND != 0, Ordering::Relaxed);
        }
        result
    })
}

/// Returns the flags of a description as the program set them. `ask` gets them from the kernel.
pub fn flags_of(fd: c_int, ask: impl FnOnce() -> c_int) -> c_int {
    let Some(slot) = slots::find(fd) else { return ask() };
    let _inside = Inside::begin();
    let state = slot.read();
    let flags = ask();
    match &*state {
        State::Taken(description, taken)
            if flags >= 0
                && taken.lease.is_some()
                && description.append.load(Ordering::Relaxed) =>
        {
            flags | libc::O_APPEND
        }
        _ => flags,
    }
}
