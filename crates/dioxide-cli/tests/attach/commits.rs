//! Programs whose threads commit for ever, each in a process of its own: this test's executable,
//! with an argument.

use crate::program::THREADS;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// Commits to a file for ever.
type Commits = fn(&File);

/// The programs, by their argument. The next argument is the file.
const PROGRAMS: [(&str, Commits); 4] = [
    ("group-commit", own_conditions),
    ("one-condition", one_condition),
    ("idle-pool", idle_pool),
    ("one-lock", one_lock),
];

/// Runs the program of the first argument, if it is one. Does not return then.
pub fn run_if_named() {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or_default();
    if let Some((_, program)) = PROGRAMS.iter().find(|(known, _)| *known == name) {
        let path = arguments.next().expect("a file");
        program(&File::options().write(true).open(path).expect("the file"));
        unreachable!("it commits for ever");
    }
}

fn write_and_sync(file: &File) {
    file.write_all_at(&[7; 4096], 0).and_then(|()| file.sync_data()).expect("a commit");
}

fn for_ever(commit: impl Fn(usize) + Sync) {
    let commit = &commit;
    std::thread::scope(|scope| {
        for me in 0..THREADS {
            scope.spawn(move || {
                loop {
                    commit(me)
                }
            });
        }
    });
}

/// The first to come writes and syncs for all that wait by then. Each waits on a condition variable
/// of its own.
fn own_conditions(file: &File) {
    #[derive(Default)]
    struct Group {
        waiting: Vec<usize>,
        is_done: [bool; THREADS],
        is_busy: bool,
    }
    let (group, conditions) =
        (Mutex::new(Group::default()), [(); THREADS].map(|()| Condvar::new()));
    for_ever(|me| {
        let mut all = group.lock().unwrap();
        all.waiting.push(me);
        all.is_done[me] = false;
        let is_mine = |all: &mut Group| !all.is_done[me] && all.is_busy;
        all = conditions[me].wait_while(all, is_mine).unwrap();
        if all.is_done[me] {
            return;
        }
        all.is_busy = true;
        let members = std::mem::take(&mut all.waiting);
        drop(all);
        write_and_sync(file);
        let mut all = group.lock().unwrap();
        all.is_busy = false;
        for member in &members {
            all.is_done[*member] = true;
        }
        let next = all.waiting.first().copied();
        drop(all);
        members.into_iter().chain(next).for_each(|thread| conditions[thread].notify_one());
    });
}

/// The same with one condition variable: all wait for the same futex.
fn one_condition(file: &File) {
    #[derive(Default)]
    struct Group {
        written: u64,
        durable: u64,
        is_busy: bool,
    }
    let (group, condition) = (Mutex::new(Group::default()), Condvar::new());
    for_ever(|_| {
        let mut all = group.lock().unwrap();
        all.written += 1;
        let mine = all.written;
        all = condition.wait_while(all, |all| all.durable < mine && all.is_busy).unwrap();
        if all.durable >= mine {
            return;
        }
        all.is_busy = true;
        let up_to = all.written;
        drop(all);
        write_and_sync(file);
        let mut all = group.lock().unwrap();
        all.durable = up_to;
        all.is_busy = false;
        drop(all);
        condition.notify_all();
    });
}

/// A pool of threads, of which one at a time gets work, in turn: the others are idle.
fn idle_pool(file: &File) {
    let (turn, conditions) = (Mutex::new(0), [(); THREADS].map(|()| Condvar::new()));
    let next_job = |me: usize| {
        let turn = turn.lock().unwrap();
        drop(conditions[me].wait_while(turn, |turn| *turn != me).unwrap());
    };
    for_ever(|me| {
        next_job(me);
        write_and_sync(file);
        let next = (me + 1) % THREADS;
        *turn.lock().unwrap() = next;
        conditions[next].notify_one();
    });
}

/// Each thread holds one lock while it writes and syncs.
fn one_lock(file: &File) {
    let lock = Mutex::new(());
    for_ever(|_| {
        let held = lock.lock().unwrap();
        write_and_sync(file);
        drop(held);
        // Otherwise it takes the lock again before a waiter has woken.
        std::thread::sleep(Duration::from_millis(1));
    });
}
