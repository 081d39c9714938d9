//! Faults planted for `scripts/sanitize`. A clean run of a sanitizer counts only if it first finds
//! these faults, and nothing in `clean`. Only that script compiles this file; it belongs to no
//! package.

use std::cell::UnsafeCell;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

const ROUNDS: u64 = 2_000;

/// Memory that two threads share without any rule.
struct Shared(UnsafeCell<u64>);

// SAFETY: there is none; that is the fault.
unsafe impl Sync for Shared {}

fn race() -> u64 {
    let shared = Arc::new(Shared(UnsafeCell::new(0)));
    let count = |shared: &Shared| {
        for _ in 0..ROUNDS {
            // SAFETY: as above.
            unsafe { *shared.0.get() += 1 }
        }
    };
    let other = shared.clone();
    let thread = thread::spawn(move || count(&other));
    count(&shared);
    thread.join().expect("it only counts");
    // SAFETY: the other thread has ended.
    unsafe { *shared.0.get() }
}

fn use_after_free() -> u64 {
    let freed = Box::into_raw(Box::new(7));
    // SAFETY: made by `into_raw` just now.
    drop(unsafe { Box::from_raw(freed) });
    // SAFETY: there is none; that is the fault.
    unsafe { freed.read_volatile() }
}

fn uninitialised() -> u64 {
    let memory = Box::<[u64; 16]>::new_uninit();
    // SAFETY: there is none; that is the fault.
    let word = unsafe { memory.as_ptr().cast::<u64>().read_volatile() };
    if word.is_multiple_of(2) { 1 } else { 2 }
}

fn leak() -> u64 {
    Box::leak(vec![7; 1000].into_boxed_slice()).len() as u64
}

/// Threads that take turns: memory ordered by the standard library's locks must not be reported.
fn clean() -> u64 {
    let turn = Arc::new((Mutex::new((0, Vec::new())), Condvar::new()));
    let threads: Vec<_> = (0..4)
        .map(|me| {
            let turn = turn.clone();
            thread::spawn(move || {
                for round in 0..ROUNDS / 4 {
                    let mut held = turn.0.lock().expect("nobody panics");
                    while held.0 % 4 != me {
                        held = turn.1.wait(held).expect("nobody panics");
                    }
                    held.0 += 1;
                    held.1.push(Box::new(round));
                    turn.1.notify_all();
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("nobody panics"));
    let held = turn.0.lock().expect("nobody panics");
    held.1.iter().map(|number| **number).sum()
}

fn main() {
    let fault = std::env::args().nth(1).unwrap_or_default();
    let result = match &*fault {
        "race" => race(),
        "use-after-free" => use_after_free(),
        "uninitialised" => uninitialised(),
        "leak" => leak(),
        "clean" => clean(),
        other => panic!("no fault is called {other:?}"),
    };
    println!("{result}");
}
