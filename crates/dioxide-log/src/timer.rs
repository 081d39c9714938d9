//! Pauses of tasks. One thread of the process wakes them all, and ends when no task has paused for
//! some time.

use crate::error::Result;
use crate::threads;
use dioxide::Owner;
use std::collections::BTreeMap;
use std::mem;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// The thread ends after this time without a pause.
const IDLE: Duration = Duration::from_secs(1);

static TIMER: Mutex<Timer> = Mutex::new(Timer::new());
static CHANGED: Condvar = Condvar::new();

struct Timer {
    /// The tasks that pause, by the end of the pause and a number.
    pauses: BTreeMap<(Instant, u64), Waker>,
    number: u64,
    /// The process of the thread. None without a thread.
    thread: Option<Owner>,
}

impl Timer {
    const fn new() -> Self {
        Self { pauses: BTreeMap::new(), number: 0, thread: None }
    }

    /// Starts the thread if there is none.
    fn start(&mut self, path: &Path) -> Result<()> {
        if self.thread.is_some_and(Owner::is_current) {
            return Ok(());
        }
        // A child of a fork has the memory, but neither the thread nor the tasks.
        mem::forget(mem::take(&mut self.pauses));
        threads::spawn("dioxide-log-timer", path, run)?;
        self.thread = Some(Owner::current());
        Ok(())
    }
}

fn lock() -> MutexGuard<'static, Timer> {
    TIMER.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run() {
    let mut timer = lock();
    loop {
        let later = timer.pauses.split_off(&(Instant::now(), 0));
        let ended = mem::replace(&mut timer.pauses, later);
        if !ended.is_empty() {
            drop(timer);
            threads::wake(ended.into_values());
            timer = lock();
            continue;
        }
        let next = timer.pauses.keys().next().map(|(end, _)| *end);
        let time = next.map_or(IDLE, |end| end.saturating_duration_since(Instant::now()));
        let waited = CHANGED.wait_timeout(timer, time);
        let timeout;
        (timer, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if next.is_none() && timeout.timed_out() && timer.pauses.is_empty() {
            timer.thread = None;
            return;
        }
    }
}

/// Ends after a time. `path` is that of the log, for messages.
///
/// # Errors
///
/// The system has no thread.
pub fn pause(path: &Path, time: Duration) -> Pause<'_> {
    Pause { path, end: Instant::now() + time, number: None }
}

/// The future of [`pause`].
pub struct Pause<'a> {
    path: &'a Path,
    end: Instant,
    /// Of its waker, once it has one.
    number: Option<u64>,
}

impl Future for Pause<'_> {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if Instant::now() >= self.end {
            return Poll::Ready(Ok(()));
        }
        let mut timer = lock();
        timer.start(self.path)?;
        let number = *self.number.get_or_insert_with(|| {
            timer.number += 1;
            timer.number
        });
        let before = timer.pauses.insert((self.end, number), context.waker().clone());
        let is_next = timer.pauses.keys().next() == Some(&(self.end, number));
        drop(timer);
        if is_next {
            CHANGED.notify_one();
        }
        // Without the lock: it may drop a task that pauses.
        drop(before);
        Poll::Pending
    }
}

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        // Without a wait, as in a child of a fork there may be no thread to unlock.
        let Ok(mut timer) = TIMER.try_lock() else { return };
        let waker = timer.pauses.remove(&(self.end, number));
        drop(timer);
        drop(waker);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
    use std::task::Wake;

    const SHORT: Duration = Duration::from_millis(2);
    const LONG: Duration = Duration::from_secs(3600);
    const LIMIT: Duration = Duration::from_secs(60);

    struct Signal(SyncSender<()>);

    impl Wake for Signal {
        fn wake(self: Arc<Self>) {
            self.0.try_send(()).expect("one wake");
        }
    }

    fn waker() -> (Waker, Receiver<()>) {
        let (send, receive) = sync_channel(1);
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
        let number = long.number.expect("it pauses");
        let has = |number: u64| lock().pauses.keys().filter(|(_, other)| *other == number).count();
        assert_eq!(has(number), 1);
        drop(long);
        assert!(woken.try_recv().is_err());
    }
}
