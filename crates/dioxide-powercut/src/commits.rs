//! Commits of the journal between the steps of a growth.
//!
//! A power cut shows the order of two changes only if a commit lies between them. By itself that
//! is rare, because the steps follow each other in microseconds. So a seccomp filter stops the
//! workload at each call that changes a file. A supervisor commits the journal before some of these
//! calls, and lets them go on.

use dioxide_testkit::records::Random;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;

/// The calls of a growth: its markers, its allocation, and the look at the free space before the
/// next step.
const OF_GROWTH: [libc::c_long; 3] = [libc::SYS_fsetxattr, libc::SYS_fallocate, libc::SYS_fstatfs];

/// The first write into grown space is one of these. io_uring writes pass no filter.
const OF_WRITES: [libc::c_long; 3] = [libc::SYS_pwrite64, libc::SYS_pwritev, libc::SYS_pwritev2];

/// A commit goes before one of this many calls of a growth. More would commit all that a lost flush
/// should show.
const ONE_OF_GROWTH: u64 = 8;
/// The same for writes, which are far more.
const ONE_OF_WRITES: u64 = 64;

/// Commits before calls of the process's threads.
pub struct Commits {
    before_growth: Arc<AtomicU64>,
}

impl Commits {
    /// Starts them, for the calling thread and all threads that it starts from now on, until the
    /// process ends. `dir` is a directory of the file system.
    ///
    /// # Errors
    ///
    /// If the kernel has no filters with a supervisor (before 5.5), or the process may have none.
    pub fn start(dir: &Path, seed: u64) -> io::Result<Commits> {
        let dir = File::open(dir)?;
        let before_growth = Arc::new(AtomicU64::new(0));
        let (give, take) = mpsc::channel();
        let supervisor =
            Supervisor { dir, random: Random::new(seed), before_growth: before_growth.clone() };
        // Started before the filter, which therefore does not apply to it.
        thread::Builder::new().spawn(move || {
            if let Ok(stopped) = take.recv() {
                supervisor.run(&stopped);
            }
        })?;
        give.send(filter()?).map_err(io::Error::other)?;
        Ok(Commits { before_growth })
    }

    /// The number of commits so far between two steps of a growth.
    pub fn between_steps(&self) -> u64 {
        self.before_growth.load(Ordering::Relaxed)
    }
}

/// Stops the thread's later calls, and those of its later threads. Returns the descriptor that
/// reports them.
fn filter() -> io::Result<OwnedFd> {
    let statement = |code: u32, k| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    // The number of the call is the first field of `seccomp_data`.
    let mut program = vec![statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0)];
    let (calls, stops) = (OF_GROWTH.iter().chain(&OF_WRITES), OF_GROWTH.len() + OF_WRITES.len());
    // Equal: jumps over the rest of the comparisons and the statement that allows all other calls.
    program.extend(calls.zip((1..=stops as u8).rev()).map(|(call, jt)| libc::sock_filter {
        jt,
        ..statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, *call as u32)
    }));
    let answer = libc::BPF_RET | libc::BPF_K;
    program.push(statement(answer, libc::SECCOMP_RET_ALLOW));
    program.push(statement(answer, libc::SECCOMP_RET_USER_NOTIF));
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: sets a flag of the thread.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel copies the program, which outlives the call.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
            &program,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor of ours.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

struct Supervisor {
    dir: File,
    random: Random,
    before_growth: Arc<AtomicU64>,
}

impl Supervisor {
    /// Lets every stopped call go on, some after a commit. Ends with the last filtered thread.
    fn run(mut self, stopped: &OwnedFd) {
        loop {
            let call = match receive(stopped) {
                Ok(call) => call,
                // Its thread is gone, or the wait was interrupted.
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINTR)) => {
                    continue;
                }
                Err(_) => return,
            };
            let is_growth = OF_GROWTH.contains(&libc::c_long::from(call.data.nr));
            let one_of = if is_growth { ONE_OF_GROWTH } else { ONE_OF_WRITES };
            if self.random.below(one_of) == 0 {
                rustix::fs::syncfs(&self.dir).expect("the file system syncs");
                self.before_growth.fetch_add(u64::from(is_growth), Ordering::Relaxed);
            }
            let answer = libc::seccomp_notif_resp {
                id: call.id,
                val: 0,
                error: 0,
                flags: libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32,
            };
            // An error: the thread is gone.
            // SAFETY: the kernel reads the structure, which outlives the call.
            unsafe { libc::ioctl(stopped.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &answer) };
        }
    }
}

fn receive(stopped: &OwnedFd) -> io::Result<libc::seccomp_notif> {
    // SAFETY: zeros are a value of it, and the kernel demands them.
    let mut call: libc::seccomp_notif = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes the structure, which outlives the call.
    match unsafe { libc::ioctl(stopped.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &mut call) } {
        0 => Ok(call),
        _ => Err(io::Error::last_os_error()),
    }
}
