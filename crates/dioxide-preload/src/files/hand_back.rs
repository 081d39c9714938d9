//! From the engine back to the kernel.

use super::inode::{Inode, Key, Lease, Taken};
use super::registry::{any_taken, inode_of, known, numbers, uncount_taken};
use crate::keeper;
use crate::lease::{self, Ended};
use crate::process::{Inside, is_elsewhere, is_inside, is_own};
use crate::say::say;
use crate::slots::{self, State};
use crate::summary::{self, Event};
use crate::surroundings;
use dioxide::text::shown;
use rustix::fs::OFlags;
use std::ffi::c_int;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};

/// Why a file is not taken over.
pub(super) const OTHER_OPENER: &str = "it is open elsewhere too, in this process or another one";
const OPENED_ELSEWHERE: &str = "it was opened elsewhere too";

/// How to recover a file that stays grown.
pub(super) const ADVICE: &str = "close it everywhere, then run `dioxide recover` with its path";

const LEASE_BREAK_TIME: &str = "/proc/sys/fs/lease-break-time";

/// Counts hand-backs and last closes. Each ends a lease.
static HANDED_BACK: AtomicU64 = AtomicU64::new(0);

/// Returns the number of times that a file went back to the kernel.
pub fn handed_back() -> u64 {
    HANDED_BACK.load(Ordering::Acquire)
}

/// Asks the kernel, and lets `correct` change the answer for a taken file. Asks again if a file
/// went back to the kernel meanwhile.
pub fn ask(kernel: impl Fn() -> c_int, correct: impl Fn()) -> c_int {
    loop {
        let before = handed_back();
        let result = kernel();
        if result == 0 && any_taken() {
            let _inside = Inside::begin();
            correct();
        }
        if result != 0 || is_inside() || before == handed_back() {
            return result;
        }
    }
}

/// Truncates the file to its length and lets the kernel serve it. The caller holds no lock.
pub fn hand_back(inode: &Arc<Inode>, why: &str) {
    if is_elsewhere() {
        return;
    }
    let _inside = Inside::begin();
    {
        let _changes = inode.changes();
        if !inode.is_taken() {
            return leave_to_kernel(inode);
        }
    }
    let (inode, why) = (inode.clone(), why.to_owned());
    keeper::run(move || hand_back_now(&inode, &why));
}

/// Hands back every file whose descriptor satisfies `concerns`. A file without descriptors is in
/// its last close, and may still be grown and open. So this waits for it.
pub fn hand_back_those(why: &str, concerns: impl Fn(c_int) -> bool) {
    if is_elsewhere() {
        return;
    }
    let _inside = Inside::begin();
    let inodes: Vec<_> = known().values().cloned().collect();
    for inode in inodes {
        let descriptors = inode.descriptors().clone();
        if descriptors.is_empty() || descriptors.into_iter().any(&concerns) {
            hand_back(&inode, why);
        }
    }
}

/// Hands back the file of the descriptor, if it is known.
pub fn hand_back_descriptor(fd: c_int, why: &str) {
    if let Some(inode) = inode_of(fd) {
        hand_back(&inode, why);
    }
}

/// Hands back the file of this key, if it is taken. Returns whether it is known.
pub fn hand_back_path(key: Option<Key>, why: &str) -> bool {
    if is_elsewhere() {
        return false;
    }
    let _inside = Inside::begin();
    let inode = key.and_then(|key| known().get(&key).cloned());
    let is_known = inode.is_some();
    if let Some(inode) = inode.filter(|inode| inode.is_taken_or_about_to_be()) {
        hand_back(&inode, why);
    }
    is_known
}

/// Hands back each file with a broken lease, without waiting. One file may not answer while the
/// lease-break time of another one runs.
pub fn hand_back_broken() {
    if !any_taken() {
        return;
    }
    let _inside = Inside::begin();
    let inodes: Vec<_> = known().values().cloned().collect();
    for inode in inodes {
        // The library never takes a file again after a hand-back, so one swap suffices.
        if inode.has_broken_lease() && !inode.broken.swap(true, Ordering::Relaxed) {
            keeper::run_apart(move || {
                let _inside = Inside::begin();
                hand_back_now(&inode, OPENED_ELSEWHERE);
            });
        }
    }
}

/// Hands the file back if its lease is broken. The caller is a keeper.
pub(super) fn hand_back_if_broken(inode: &Inode) {
    if inode.has_broken_lease() {
        hand_back_now(inode, OPENED_ELSEWHERE);
    }
}

/// The kernel serves the file until its last close. The summary gets a refusal that was to be tried
/// again.
pub(super) fn leave_to_kernel(inode: &Inode) {
    if !inode.kernel_only.swap(true, Ordering::AcqRel) && inode.tries.load(Ordering::Relaxed) > 0 {
        summary::note(Event::LeftAlone(OTHER_OPENER.into()));
    }
}

fn hand_back_now(inode: &Inode, why: &str) {
    let _changes = inode.changes();
    if !inode.is_taken() {
        return leave_to_kernel(inode);
    }
    let mut drained = inode.drained();
    // With the slots locked, so that a call waits for the slot before it reads this.
    inode.kernel_only.store(true, Ordering::Release);
    for (_, state) in &mut drained {
        if let State::Taken(description, _) = &**state {
            let description = description.clone();
            state.set(State::Watched(description));
        }
    }
    if put_away(inode) {
        summary::note(Event::HandedBack(why.into()));
    }
}

/// Closes the engine's file, which no slot uses any more. Returns whether there was one. The caller
/// holds `changes`.
///
/// A waiting opener depends on the order: exact length, no marker, restored flags, end of the
/// lease. If the engine cannot close the file, the lease ends nevertheless.
pub(super) fn put_away(inode: &Inode) -> bool {
    // A child of a fork unseen by the library has a copy. The file, its flags and its lease belong
    // to the parent.
    if !is_own() {
        return false;
    }
    // Until the truncate, no thread asks for the length.
    let mut taken = inode.taken.write().unwrap_or_else(PoisonError::into_inner);
    let Some(engine) = taken.take() else { return false };
    let _numbers = numbers();
    for slot in engine.descriptors().filter_map(slots::find) {
        slot.write().set_anew(State::Empty);
    }
    let Taken { plain, durable, lease, .. } =
        Arc::into_inner(engine).expect("all slots have let go of it");
    summary::add(&plain.stats());
    let results = [durable.close(), plain.close()];
    if let Some(lease) = lease {
        end_lease(lease);
    }
    // In this order: a thread that finds no taken file asks the kernel again.
    HANDED_BACK.fetch_add(1, Ordering::Release);
    uncount_taken();
    for error in results.into_iter().filter_map(Result::err) {
        inode.failed.store(true, Ordering::Relaxed);
        say(&format!("{error}; if it keeps its grown length, {ADVICE}"));
    }
    true
}

/// Restores O_APPEND and releases the lease. Reports a lease that ended before, or remains.
fn end_lease(Lease { held, description }: Lease) {
    if description.append.load(Ordering::Relaxed)
        && let Ok(flags) = rustix::fs::fcntl_getfl(&held)
    {
        let _ = rustix::fs::fcntl_setfl(&held, flags | OFlags::APPEND);
    }
    let wrong = match lease::release(held.as_raw_fd()) {
        Ended::Now => None,
        Ended::Earlier => {
            Some("another process has opened it before it was handed back, which took longer than")
        }
        Ended::NotYet => Some(
            "the process has lost the right to end its lease, so other openers wait as long as",
        ),
    };
    if let Some(wrong) = wrong {
        let name = surroundings::path_of(held.as_raw_fd()).unwrap_or_default();
        say(&format!("{}: {wrong} {LEASE_BREAK_TIME}", shown(&name)));
    }
}
