use super::*;

/// A program in which threads commit by `flush`, and the C library. The number is the index.
const NAMES: [(&str, &str); 10] = [
    ("fdatasync", "/usr/lib/libc.so.6"),
    ("sem_wait", "/usr/lib/libc.so.6"),
    ("start_thread", "/usr/lib/libc.so.6"),
    ("thread_body", "/bin/server"),
    ("serve", "/bin/server"),
    ("flush", "/bin/server"),
    ("write_log", "/bin/server"),
    ("lock", "/bin/server"),
    ("std::thread::Builder::spawn", "/bin/server"),
    ("next_job", "/bin/server"),
];

fn functions() -> Vec<Function> {
    let function = |(index, (name, file)): (usize, &(&str, &str))| Function {
        name: Some((*name).into()),
        file: (*file).into(),
        address: index as u64,
    };
    NAMES.iter().enumerate().map(function).collect()
}

fn stacks(count: u64, names: &[&str]) -> Vec<Stack> {
    let index = |name: &&str| NAMES.iter().position(|(known, _)| known == name).expect("a name");
    vec![Stack { count, functions: names.iter().map(index).collect() }]
}

/// As of PostgreSQL on a slow disk: calls of middle length, of which no end fell into a nap.
fn queue(waiting: &[&str], leading: &[&str]) -> Queue {
    Queue {
        task: "server".into(),
        file: 0,
        call: "fdatasync".into(),
        looks: 33,
        looks_of_several: 0,
        waits: 461,
        threads: 16,
        leaders: 10,
        leading_waiters: 10,
        short: Pairs { held: 395, held_woken: 0, ended: 15, ended_woken: 15, ends: 1 },
        long: Pairs { held: 121, held_woken: 3, ended: 242, ended_woken: 229, ends: 16 },
        waiting: stacks(16, waiting),
        leading: stacks(1, leading),
        idle: Vec::new(),
    }
}

const LEADER: [&str; 6] =
    ["fdatasync", "write_log", "flush", "serve", "thread_body", "start_thread"];
const FOLLOWER: [&str; 6] = ["sem_wait", "lock", "flush", "serve", "thread_body", "start_thread"];

/// The shared function, and what it called in the waiter.
fn shared_names(queue: &Queue) -> Option<(String, String)> {
    let functions = functions();
    let shared = shared(queue, &functions)?;
    assert_eq!((shared.count, shared.of), (16, 16));
    Some((shared.function.name.clone()?, shared.waits_in.name.clone()?))
}

#[test]
fn followers_wait_in_the_function_that_flushes() {
    let queue = queue(&FOLLOWER, &LEADER);
    assert_eq!(shared_names(&queue), Some(("flush".into(), "lock".into())));
    assert!(!wake_alone(&queue));
    assert!(follow(&queue, &functions()));
    assert_eq!(pairs(&queue).ends, 16);
}

#[test]
fn threads_of_a_pool_share_only_their_loop() {
    let idle = ["sem_wait", "next_job", "thread_body", "start_thread"];
    let leader = ["fdatasync", "write_log", "thread_body", "start_thread"];
    assert_eq!(shared_names(&queue(&idle, &leader)), None);
    assert!(!follow(&queue(&idle, &leader), &functions()));
    // The loop is called by the code of a library that starts threads.
    let idle = ["sem_wait", "next_job", "thread_body", "std::thread::Builder::spawn"];
    let leader = ["fdatasync", "thread_body", "std::thread::Builder::spawn", "start_thread"];
    assert_eq!(shared_names(&queue(&idle, &leader)), None);
    // The loop is called by the first function of the thread.
    let idle = ["sem_wait", "next_job", "serve", "thread_body", "start_thread"];
    let leader = ["fdatasync", "write_log", "serve", "thread_body", "start_thread"];
    let mut pool = queue(&idle, &leader);
    assert!(shared_names(&pool).is_some());
    pool.idle = stacks(1, &idle);
    assert_eq!(shared_names(&pool), None, "a thread without work is in it");
}

/// Stacks show what threads do, but not when they go on.
#[test]
fn a_shared_function_is_not_enough() {
    let changed = |change: fn(&mut Queue)| {
        let mut queue = queue(&FOLLOWER, &LEADER);
        change(&mut queue);
        follow(&queue, &functions())
    };
    assert!(changed(|_| {}));
    assert!(!changed(|queue| queue.short.held_woken = 200), "they run at any time");
    assert!(!changed(|queue| queue.long.ended_woken = 16), "one of them works at a time");
    assert!(!changed(|queue| queue.long = Pairs::default()), "no call ended");
    assert!(!changed(|queue| queue.waiting.clear()));
    assert!(!changed(|queue| queue.leading.clear()));
    let others = |queue: &mut Queue| queue.waiting.extend(stacks(17, &["sem_wait", "serve"]));
    assert!(!changed(others), "most wait elsewhere");
}

#[test]
fn unknown_functions_are_no_error() {
    let mut queue = queue(&FOLLOWER, &LEADER);
    assert_eq!(shared(&queue, &[]), None);
    queue.waiting[0].functions = vec![usize::MAX, 0];
    queue.leading[0].functions = Vec::new();
    assert_eq!(shared(&queue, &functions()), None);
}

/// The defect: where readings fell well, an idle pool of five looked like a group commit, because
/// one of its waiters ran at each end.
#[test]
fn a_pool_that_wakes_one_thread_at_a_time_is_no_queue() {
    let woken = |count: u64, leading_waiters: u64| Queue {
        looks: 100,
        waits: 467,
        threads: 5,
        leading_waiters,
        short: Pairs { held: 200, held_woken: 0, ended: 100, ended_woken: count, ends: 20 },
        long: Pairs { held: 10, held_woken: 0, ended: 100, ended_woken: count, ends: 20 },
        ..queue(&[], &[])
    };
    assert!(!wake_alone(&woken(22, 5)));
    assert!(wake_alone(&woken(40, 5)), "two of five at a time");
    assert!(wake_alone(&woken(22, 0)), "one thread writes the log");
}
