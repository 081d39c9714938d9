//! Futures without an executor: one on its thread, and several in one.

use super::PATIENCE;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Instant;

/// The simplest executor.
pub fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let began = Instant::now();
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        thread::park_timeout(PATIENCE);
        assert!(began.elapsed() < 3 * PATIENCE, "the future is never ready");
    }
}

/// One of several futures in a task.
pub enum Polled<F: Future> {
    Running(Pin<Box<F>>, Arc<Woken>),
    Ended(F::Output),
}

#[derive(Default)]
pub struct Woken {
    is_woken: AtomicBool,
    task: Mutex<Option<Waker>>,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.is_woken.store(true, SeqCst);
        let task = self.task.lock().unwrap().take();
        task.into_iter().for_each(Waker::wake);
    }
}

impl<F: Future> Polled<F> {
    pub fn new(future: F) -> Self {
        let woken = Woken { is_woken: AtomicBool::new(true), ..Woken::default() };
        Self::Running(Box::pin(future), Arc::new(woken))
    }
}

/// A join of futures, each polled when it is woken.
pub struct All<F: Future>(pub Vec<Polled<F>>);

impl<F: Future> Unpin for All<F> {}

impl<F: Future> Future for All<F> {
    type Output = Vec<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Vec<F::Output>> {
        for polled in &mut self.0 {
            let Polled::Running(future, woken) = polled else { continue };
            *woken.task.lock().unwrap() = Some(context.waker().clone());
            if woken.is_woken.swap(false, SeqCst)
                && let Poll::Ready(output) =
                    future.as_mut().poll(&mut Context::from_waker(&Waker::from(woken.clone())))
            {
                *polled = Polled::Ended(output);
            }
        }
        if self.0.iter().any(|polled| matches!(polled, Polled::Running(..))) {
            return Poll::Pending;
        }
        let ended = |polled| match polled {
            Polled::Ended(output) => output,
            Polled::Running(..) => unreachable!("none is left"),
        };
        Poll::Ready(std::mem::take(&mut self.0).into_iter().map(ended).collect())
    }
}
