//! Watches this process's own threads and other programs, with and without root.

use dioxide_diagnose::evidence::{Evidence, Sighting, Subject};
use dioxide_diagnose::finding::Wall;
use dioxide_diagnose::judge::judge;
use dioxide_diagnose::watch::{Error, Options, Watcher, Whom};
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Gid, Pid, Signal, Uid, geteuid, kill_process};
use std::collections::HashSet;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Longer than anything here takes on a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);
const NOBODY: u32 = 65534;

fn wait_until(what: &str, is_so: impl FnMut() -> bool) {
    assert!(is_soon(is_so), "waited in vain until {what}");
}

/// Waits until it is so. For scopes whose threads do not end after a panic.
fn is_soon(mut is_so: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        if is_so() {
            return true;
        }
        thread::sleep(Duration::from_millis(5));
    }
    false
}

/// Waits until this number of sampling passes have begun and ended. Returns whether they have.
fn has_looked(watcher: &Watcher, count: u64) -> bool {
    let enough = watcher.looks() + count + 1;
    is_soon(|| watcher.looks() >= enough)
}

fn program(pid: u32) -> Subject {
    Subject::Program { pid, command: String::new(), processes: 0, selected: None }
}

/// A program that is killed when the test is over.
struct Program(Child);

impl Program {
    fn new(command: &mut Command) -> Self {
        Self(command.stdin(Stdio::null()).spawn().unwrap())
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill().and_then(|()| self.0.wait());
    }
}

fn state(pid: u32, tid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/task/{tid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Whether this number of threads with this name prefix sleep.
fn sleepers(prefix: &str) -> usize {
    let tids = fs::read_dir("/proc/self/task")
        .unwrap()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok());
    let is_one = |tid: &String| {
        fs::read_to_string(format!("/proc/self/task/{tid}/comm"))
            .is_ok_and(|name| name.starts_with(prefix))
            && state(std::process::id(), tid.parse().unwrap()).is_some_and(|state| state != 'R')
    };
    tids.filter(is_one).count()
}

fn of_task<'a>(evidence: &'a Evidence, task: &str) -> &'a Sighting {
    let first = evidence.sightings.iter().find(|sighting| sighting.task == task);
    first.unwrap_or_else(|| panic!("{task} in {:#?}", evidence.sightings))
}

#[test]
fn own_threads_are_seen_where_they_wait() {
    let held = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    flock(&held, FlockOperation::LockExclusive).unwrap();
    let lock = Mutex::new(());
    let guard = lock.lock().unwrap();
    let is_over = AtomicBool::new(false);
    let evidence = thread::scope(|scope| {
        let named = |name: &str| thread::Builder::new().name(name.into());
        let park = || {
            while !is_over.load(Ordering::Relaxed) {
                thread::park();
            }
        };
        let parked = named("own-park").spawn_scoped(scope, park).unwrap();
        named("own-sleep")
            .spawn_scoped(scope, || {
                while !is_over.load(Ordering::Relaxed) {
                    thread::sleep(Duration::from_millis(200));
                }
            })
            .unwrap();
        for name in ["own-lock-1", "own-lock-2"] {
            named(name).spawn_scoped(scope, || drop(lock.lock())).unwrap();
        }
        named("own-flock")
            .spawn_scoped(scope, || {
                flock(File::open(held.path()).unwrap(), FlockOperation::LockExclusive)
            })
            .unwrap();
        named("other").spawn_scoped(scope, || drop(lock.lock())).unwrap();
        wait_until("all are asleep", || sleepers("own-") == 5);

        let watcher =
            Watcher::start(Whom::OwnThreads { name_prefix: "own-" }, Options::default()).unwrap();
        has_looked(&watcher, 10);
        let evidence = watcher.stop(program(std::process::id()));
        drop(guard);
        flock(&held, FlockOperation::Unlock).unwrap();
        is_over.store(true, Ordering::Relaxed);
        parked.thread().unpark();
        evidence
    });

    assert!(evidence.looks >= 10, "{}", evidence.looks);
    assert_eq!(evidence.threads, 5, "{:#?}", evidence.sightings);
    let call = |task| {
        of_task(&evidence, task).call.clone().unwrap_or_else(|| panic!("{task} is in no call"))
    };
    assert_eq!((call("own-park").name.as_str(), call("own-park").is_lock), ("futex", Some(false)));
    assert_eq!((call("own-lock").name.as_str(), call("own-lock").is_lock), ("futex", Some(true)));
    assert_ne!(call("own-lock").futex, call("own-park").futex);
    assert_eq!(of_task(&evidence, "own-lock").threads, 2);
    assert!(of_task(&evidence, "own-park").channel.as_ref().unwrap().contains("futex"));
    assert_eq!(call("own-sleep").name, "clock_nanosleep");
    assert!(of_task(&evidence, "own-sleep").channel.as_ref().unwrap().contains("nanosleep"));
    assert_eq!(call("own-flock").name, "flock");
    let file = &evidence.files[call("own-flock").file.unwrap()];
    assert_eq!(Path::new(&file.path), held.path());
    assert!(file.is_buffered && !file.is_direct && file.fs.is_some(), "{file:?}");
    let is_root = geteuid().is_root();
    assert_eq!(of_task(&evidence, "own-park").stack.is_empty(), !is_root);
    assert_eq!(evidence.unseen.is_empty(), is_root, "{:?}", evidence.unseen);
    let text = serde_json::to_string(&evidence).unwrap();
    assert_eq!(serde_json::from_str::<Evidence>(&text).unwrap(), evidence);
}

/// Durable appends of several threads to a file with O_APPEND, so that some are always in the call.
#[test]
fn writes_are_seen_on_their_file() {
    let file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let is_over = AtomicBool::new(false);
    let begun = Barrier::new(5);
    let evidence = thread::scope(|scope| {
        for _ in 0..4 {
            let append = || {
                let file = File::options().append(true).open(file.path()).unwrap();
                begun.wait();
                while !is_over.load(Ordering::Relaxed) {
                    rustix::io::write(&file, &[7; 5000]).unwrap();
                    rustix::fs::fdatasync(&file).unwrap();
                }
            };
            thread::Builder::new().name("append".into()).spawn_scoped(scope, append).unwrap();
        }
        begun.wait();
        let len = || fs::metadata(file.path()).unwrap().len();
        let watcher = Watcher::start(
            Whom::OwnThreads { name_prefix: "append" },
            Options { may_trace: false },
        )
        .unwrap();
        let before = len();
        is_soon(|| len() > before);
        has_looked(&watcher, 20);
        let evidence = watcher.stop(program(0));
        is_over.store(true, Ordering::Relaxed);
        evidence
    });
    let index =
        evidence.files.iter().position(|seen| Path::new(&seen.path) == file.path()).unwrap();
    let (first, last) = evidence.files[index].size_bytes.unwrap();
    assert!(last > first, "{first} to {last}");
    assert!(evidence.direct.is_none() && evidence.locks.is_none() && evidence.punts.is_none());
    assert!(
        evidence.unseen.iter().any(|line| line.contains("not wanted")),
        "{:?}",
        evidence.unseen
    );
    let on_it: Vec<_> = evidence
        .sightings
        .iter()
        .filter_map(|sighting| sighting.call.as_ref())
        .filter(|call| call.file == Some(index))
        .collect();
    assert!(!on_it.is_empty(), "{:#?}", evidence.sightings);
    for call in on_it {
        match call.name.as_str() {
            "write" => {
                assert_eq!((call.extends, call.is_aligned), (Some(true), Some(false)), "{call:?}")
            }
            name => assert_eq!((name, call.extends), ("fdatasync", None), "{call:?}"),
        }
    }
}

#[test]
fn children_are_watched_as_they_come_and_go() {
    // Long, because a busy machine may leave the watcher without a turn for some 100 ms.
    let script = "sleep 2 & sleep 2.5 & wait; sleep 2; exit 0";
    let mut shell = Program::new(Command::new("sh").args(["-c", script]));
    let watcher = Watcher::start(Whom::Program { pid: shell.pid() }, Options::default()).unwrap();
    assert!(!watcher.is_over());
    // A zombie until it is reaped, which is over as well.
    wait_until("it is over", || watcher.is_over());
    shell.0.wait().unwrap();
    let evidence = watcher.stop(program(shell.pid()));
    let Subject::Program { command, processes, .. } = &evidence.subject else {
        panic!("{:?}", evidence.subject)
    };
    assert_eq!(command, &format!("sh -c {script}"));
    assert!(evidence.has_ended);
    assert_eq!(*processes, 4, "the shell and three others");
    let sleeps = evidence.sightings.iter().filter(|sighting| sighting.task == "sleep");
    let sleeps: HashSet<u32> = sleeps.map(|sighting| sighting.process).collect();
    assert_eq!(sleeps.len(), 3, "{:#?}", evidence.sightings);
    assert!(evidence.watched_ns < PATIENCE.as_nanos() as u64);
}

/// D4 of the review: a zombie was "no process".
#[test]
fn a_zombie_is_called_one() {
    let zombie = Program::new(&mut Command::new("true"));
    let pid = zombie.pid();
    wait_until("it is a zombie", || state(pid, pid) == Some('Z'));
    let error = Watcher::start(Whom::Program { pid }, Options::default()).unwrap_err();
    let own = std::process::id();
    assert!(matches!(error, Error::Zombie { pid: named, parent } if (named, parent) == (pid, own)));
    assert!(error.to_string().contains("is a zombie"), "{error}");
}

/// D4 of the review. Also without root, where only the state shows it.
#[test]
fn a_program_that_stops_midway_is_seen_stopped() {
    let mut sleep = Command::new("sleep");
    sleep.arg("60");
    if geteuid().is_root() {
        sleep.uid(NOBODY).gid(NOBODY);
    }
    let sleep = Program::new(&mut sleep);
    let pid = sleep.pid();
    wait_until("it sleeps", || state(pid, pid) == Some('S'));
    let watch = || {
        let watcher = Watcher::start(Whom::Program { pid }, Options::default()).unwrap();
        let process = Pid::from_raw(pid as i32).unwrap();
        kill_process(process, Signal::STOP).unwrap();
        wait_until("it stops", || state(pid, pid) == Some('T'));
        assert!(has_looked(&watcher, 3));
        kill_process(process, Signal::CONT).unwrap();
        watcher.stop(program(pid))
    };
    for evidence in [watch(), without_rights(watch)] {
        assert!(
            evidence.sightings.iter().any(|sighting| sighting.state == 'T' && sighting.count > 2),
            "{:#?}",
            evidence.sightings
        );
        assert_eq!(judge(&evidence)[0].wall, Wall::Stopped);
    }
}

#[test]
fn who_is_not_there_is_no_program() {
    // Reaped on drop.
    let gone = Program::new(&mut Command::new("true")).pid();
    for pid in [gone, u32::MAX] {
        let error = Watcher::start(Whom::Program { pid }, Options::default()).unwrap_err();
        assert!(matches!(error, Error::NoSuchProcess { pid: named } if named == pid), "{error}");
    }
}

#[test]
fn a_thread_of_the_kernel_is_no_program() {
    // In a PID namespace process 2 may not be a kernel thread.
    if !fs::read_to_string("/proc/2/comm").is_ok_and(|name| name.trim() == "kthreadd") {
        return;
    }
    let error = Watcher::start(Whom::Program { pid: 2 }, Options::default()).unwrap_err();
    assert!(matches!(error, Error::KernelThread { pid: 2 }), "{error}");
}

/// In a thread without rights, if this process has them.
fn without_rights<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let drop_rights_and_work = || {
        if geteuid().is_root() {
            let (uid, gid) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
            rustix::thread::set_thread_groups(&[]).unwrap();
            rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
            rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
        }
        work()
    };
    thread::scope(|scope| scope.spawn(drop_rights_and_work).join().unwrap())
}

#[test]
fn without_root_it_is_said_what_is_not_seen() {
    let mut sleep = Command::new("sleep");
    sleep.arg("60");
    if geteuid().is_root() {
        sleep.uid(NOBODY).gid(NOBODY);
    }
    let sleep = Program::new(&mut sleep);
    let pid = sleep.pid();
    wait_until("it sleeps", || state(pid, pid) == Some('S'));
    let evidence = without_rights(|| {
        let watcher = Watcher::start(Whom::Program { pid }, Options::default()).unwrap();
        assert!(has_looked(&watcher, 1));
        watcher.stop(program(pid))
    });
    for part in [
        "stacks: for root only",
        "lock waits, direct I/O, what rings hand to workers, latency of calls: for root only",
    ] {
        assert!(evidence.unseen.iter().any(|line| line == part), "{part} in {:?}", evidence.unseen);
    }
    let seen = of_task(&evidence, "sleep");
    assert!(
        seen.channel.as_ref().unwrap().contains("nanosleep") && seen.stack.is_empty(),
        "{seen:?}"
    );
    let is_restricted = evidence.unseen.iter().any(|line| line.contains("ptrace_scope"));
    assert_eq!(seen.call.is_none(), is_restricted, "{evidence:?}");
}

#[test]
fn programs_of_others_are_refused() {
    // Process 1 is root's, or this test's own.
    if !geteuid().is_root() && fs::read_dir("/proc/1/fd").is_ok() {
        return;
    }
    let error = without_rights(|| {
        Watcher::start(Whom::Program { pid: 1 }, Options::default()).unwrap_err()
    });
    assert!(matches!(error, Error::NotAllowed { pid: 1, .. }), "{error}");
    assert!(error.to_string().contains("do it as root"), "{error}");
}

/// The tracefs instances that this process has made.
fn instances() -> usize {
    let prefix = format!("dioxide-{}-", std::process::id());
    let names = fs::read_dir("/sys/kernel/tracing/instances").into_iter().flatten().flatten();
    names.filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix)).count()
}

/// Trace events have the IDs of the initial namespace, so those of other threads were traced.
#[test]
fn other_threads_were_traced_in_a_pid_namespace() {
    const INITIAL: &str = "pid:[4026531836]";
    if !geteuid().is_root() {
        return;
    }
    if fs::read_link("/proc/self/ns/pid").unwrap() == Path::new(INITIAL) {
        let own = std::env::current_exe().unwrap();
        let mut inside = Command::new("unshare");
        inside.args(["--pid", "--fork", "--kill-child", "--mount-proc"]).arg(own);
        inside.args(["--exact", "other_threads_were_traced_in_a_pid_namespace"]);
        let output = inside.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let sleep = Program::new(Command::new("sleep").arg("60"));
    let pid = sleep.pid();
    let watcher = Watcher::start(Whom::Program { pid }, Options::default()).unwrap();
    assert!(has_looked(&watcher, 1));
    let evidence = watcher.stop(program(pid));
    assert!(evidence.direct.is_none() && evidence.locks.is_none() && evidence.punts.is_none());
    let reason = "latency of calls: not in a PID namespace";
    assert!(
        evidence.unseen.iter().any(|line| line.contains(reason)),
        "{reason} in {:?}",
        evidence.unseen
    );
}

#[test]
fn nothing_is_left_in_tracefs() {
    if !geteuid().is_root() || !Path::new("/sys/kernel/tracing/instances").is_dir() {
        return;
    }
    // Of a PID that cannot exist.
    let stale =
        Path::new("/sys/kernel/tracing/instances").join(format!("dioxide-{}-0-0", u32::MAX));
    fs::create_dir(&stale).unwrap();
    let sleep = Program::new(Command::new("sleep").arg("60"));
    let watcher = Watcher::start(Whom::Program { pid: sleep.pid() }, Options::default()).unwrap();
    assert!(instances() > 0, "it traces");
    assert!(!stale.exists());
    drop(watcher);
    wait_until("other tests have ended theirs", || instances() == 0);
}
