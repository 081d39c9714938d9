//! Pauses of tasks. One thread of the process wakes them all, and ends when no task has paused for
//! some time.

use crate::error::Result;
use crate::locked::locked;
use crate::per_process::PerProcess;
use crate::threads;
use std::collections::BTreeMap;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::pin::Pin;
use std::ptr;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, WaitTimeoutResult};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// The thread ends after this time without a pause.
const IDLE: Duration = Duration::from_secs(1);

static TIMER: PerProcess<Timer> = PerProcess::new();

#[derive(Debug, Default)]
struct Timer {
    pauses: Mutex<Pauses>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Pauses {
    /// The tasks that pause, by the end of the pause and a number.
    wakers: BTreeMap<(Instant, u64), Waker>,
    number: u64,
    has_thread: bool,
}

impl Timer {
    fn lock(&self) -> MutexGuard<'_, Pauses> {
        locked(&self.pauses)
    }

    fn wait<'a>(
        &self,
        pauses: MutexGuard<'a, Pauses>,
        time: Duration,
    ) -> (MutexGuard<'a, Pauses>, WaitTimeoutResult) {
        self.changed.wait_timeout(pauses, time).unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        // A logger may panic, and what the panic carries when it is dropped.
        while let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.serve())) {
            mem::forget(panic);
        }
    }

    fn serve(&self) {
        let mut pauses = self.lock();
        loop {
            let now = Instant::now();
            match pauses.wakers.first_entry() {
                Some(first) if first.key().0 <= now => {
                    let waker = first.remove();
                    // Without the lock: a task may do anything then.
                    drop(pauses);
                    threads::wake([waker]);
                    pauses = self.lock();
                }
                Some(first) => {
                    let time = first.key().0 - now;
                    (pauses, _) = self.wait(pauses, time);
                }
                None => {
                    let timeout;
                    (pauses, timeout) = self.wait(pauses, IDLE);
                    if timeout.timed_out() && pauses.wakers.is_empty() {
                        pauses.has_thread = false;
                        return;
                    }
                }
            }
        }
    }
}

/// Returns a future that ends after this time. `path` is that of the log, for messages.
///
/// # Errors
///
/// The system has no thread.
pub fn pause(path: &Path, time: Duration) -> Pause<'_> {
    Pause { path, end: Instant::now() + time, place: None }
}

/// The future of [`pause`].
pub struct Pause<'a> {
    path: &'a Path,
    end: Instant,
    /// Where its waker is, with a number, once it has one.
    place: Option<(&'static Timer, u64)>,
}

impl Future for Pause<'_> {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if Instant::now() >= self.end {
            return Poll::Ready(Ok(()));
        }
        // Wakers are cloned and dropped without the lock, as they may have locks and tasks.
        let waker = context.waker().clone();
        let timer = TIMER.get();
        let place = self.place.filter(|(own, _)| ptr::eq(*own, timer));
        let mut pauses = timer.lock();
        if !pauses.has_thread {
            threads::spawn("dioxide-log-timer", self.path, || timer.run())?;
            pauses.has_thread = true;
        }
        let number = place.map_or(pauses.number + 1, |(_, number)| number);
        pauses.number = pauses.number.max(number);
        self.place = Some((timer, number));
        let before = pauses.wakers.insert((self.end, number), waker);
        let is_first = pauses.wakers.keys().next() == Some(&(self.end, number));
        drop(pauses);
        if is_first {
            timer.changed.notify_one();
        }
        drop(before);
        Poll::Pending
    }
}

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        if let Some((timer, number)) = self.place
            && ptr::eq(timer, TIMER.get())
        {
            let waker = timer.lock().wakers.remove(&(self.end, number));
            drop(waker);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::task::Wake;

    const SHORT: Duration = Duration::from_millis(2);
    const LONG: Duration = Duration::from_secs(3600);
    const LIMIT: Duration = Duration::from_secs(60);

    struct Signal(Sender<()>);

    impl Wake for Signal {
        fn wake(self: Arc<Self>) {
            self.0.send(()).expect("the test runs");
        }
    }

    fn waker() -> (Waker, Receiver<()>) {
        let (send, receive) = channel();
        (Arc::new(Signal(send)).into(), receive)
    }

    #[test]
    fn a_pause_wakes_its_task_once_and_before_a_longer_one() {
        let path = Path::new("a log");
        let (waker, woken) = waker();
        let mut long = Box::pin(pause(path, LONG));
        for _ in 0..3 {
            assert!(long.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        let mut short = pin!(pause(path, SHORT));
        while short.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
            woken.recv_timeout(LIMIT).expect("a pause ends behind a longer one");
        }
        let (timer, number) = long.place.expect("it pauses");
        let count = || timer.lock().wakers.keys().filter(|(_, other)| *other == number).count();
        assert_eq!(count(), 1);
        drop(long);
        assert_eq!(count(), 0);
        assert!(woken.try_recv().is_err());
    }

    /// A panic of the thread would stop all tasks.
    #[test]
    fn a_waker_that_panics_stops_no_other_task() {
        struct Panics;
        impl Wake for Panics {
            fn wake(self: Arc<Self>) {
                panic!("a waker of a test");
            }
        }
        let path = Path::new("a log");
        let panics = Waker::from(Arc::new(Panics));
        let mut first = Box::pin(pause(path, SHORT));
        let _ = first.as_mut().poll(&mut Context::from_waker(&panics));
        let (waker, woken) = waker();
        let mut second = pin!(pause(path, 2 * SHORT));
        while second.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
            woken.recv_timeout(LIMIT).expect("the thread goes on");
        }
    }
}
