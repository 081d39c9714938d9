//! The threads of a log.

use crate::error::{Error, Result};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::task::Waker;
use std::thread::{self, JoinHandle};

thread_local! {
    static SERVES: Cell<bool> = const { Cell::new(false) };
}

/// Starts a thread that serves logs. `path` is that of the log, for messages. A panic of the
/// program's logger ends the process: calls of the log would wait for the thread for ever.
pub fn spawn(
    name: &str,
    path: &Path,
    run: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>> {
    let serve = || {
        SERVES.set(true);
        if catch_unwind(AssertUnwindSafe(run)).is_err() {
            std::process::abort();
        }
    };
    // The handlers of the program run in its own threads.
    let thread = thread::Builder::new().name(name.into());
    let spawned = dioxide::with_signals_blocked(|| thread.spawn(serve));
    spawned.map_err(|error| Error::system("spawn a thread for", path, error))
}

/// Runs what waits for threads of a log. In a thread of its own if the caller is such a thread: a
/// task that it woke may have dropped the log.
pub fn run_where_it_may_wait(path: &Path, run: impl FnOnce() + Send + 'static) {
    if !serves() {
        return run();
    }
    if let Err(error) = spawn("dioxide-log-close", path, run) {
        log::error!("a log stays open: {error}");
    }
}

/// Wakes tasks. A waker that panics must not end the calling thread, which other tasks need.
///
/// Until the last is woken, the thread serves logs: it may be inside a call of the log that a task
/// drops.
pub fn wake(wakers: impl IntoIterator<Item = Waker>) {
    let served = SERVES.replace(true);
    for waker in wakers {
        if catch_unwind(AssertUnwindSafe(|| waker.wake())).is_err() {
            log::error!("a waker panicked; its task may never wake");
        }
    }
    SERVES.set(served);
}

/// Whether the calling thread serves a log. It must not wait for the threads of a log.
fn serves() -> bool {
    SERVES.get()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;
    use std::sync::Arc;
    use std::sync::mpsc::{Sender, channel};
    use std::task::Wake;
    use std::thread::ThreadId;

    /// Closes where it may wait, as a task does that drops a log.
    struct Closes(Sender<ThreadId>);

    impl Closes {
        fn close(&self) {
            let closed = self.0.clone();
            let close = move || closed.send(thread::current().id()).expect("the test runs");
            run_where_it_may_wait(Path::new("a log"), close);
        }
    }

    impl Wake for Closes {
        fn wake(self: Arc<Self>) {
            self.close();
        }
    }

    /// Handlers of the program ran in a thread that it did not make.
    #[test]
    fn a_thread_of_a_log_ran_the_handlers_of_the_program() {
        const SIGALRM: u32 = 14;
        let (send, status) = channel();
        let look = move || send.send(std::fs::read_to_string("/proc/thread-self/status")).unwrap();
        spawn("a thread", Path::new("a log"), look).unwrap().join().unwrap();
        let status = status.recv().unwrap().unwrap();
        let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:\t")).unwrap();
        let blocked = u64::from_str_radix(blocked, 16).unwrap();
        assert_ne!(blocked & (1 << (SIGALRM - 1)), 0, "{blocked:x}");
    }

    /// The thread had ended, and every call that needed it waited for ever.
    #[test]
    fn a_panic_of_the_logger_stopped_the_log() {
        const NAME: &str = "threads::tests::a_panic_of_the_logger_stopped_the_log";
        const SIGABRT: i32 = 6;
        if std::env::var_os(NAME).is_some() {
            let panics = || panic!("the logger panics");
            let _ = spawn("a thread", Path::new("a log"), panics).unwrap().join();
            return;
        }
        let mut again = Command::new(std::env::current_exe().unwrap());
        let ended = again.args(["--exact", NAME]).env(NAME, "").output().unwrap().status;
        assert_eq!(ended.signal(), Some(SIGABRT), "{ended}");
    }

    /// A task that was woken inside a call dropped the last set, whose close waited for that call.
    #[test]
    fn a_task_closes_a_log_in_another_thread() {
        let (send, closed) = channel();
        let task = Arc::new(Closes(send));
        wake([task.clone().into()]);
        assert_ne!(closed.recv(), Ok(thread::current().id()));
        task.close();
        assert_eq!(closed.recv(), Ok(thread::current().id()));
    }
}
