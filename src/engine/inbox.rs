//! Delivers news from other threads to the operations of a queue.

use super::waiter::News;
use crate::backend::ring::Bell;
use crate::sync::Mutex;
use std::sync::Arc;

/// The inbox of a queue. Others post, the thread of the queue takes.
#[derive(Debug)]
pub(super) struct Inbox {
    bell: Arc<Bell>,
    mail: Mutex<Vec<(usize, News)>>,
}

impl Inbox {
    pub fn new(bell: Arc<Bell>) -> Self {
        Self { bell, mail: Mutex::default() }
    }

    /// Posts news for one of the queue's operations, and rings the bell.
    pub fn post(&self, operation: usize, news: News) {
        self.mail.lock().push((operation, news));
        self.bell.ring();
    }

    /// Takes all news, and leaves `empty` in its place.
    pub fn take(&self, empty: Vec<(usize, News)>) -> Vec<(usize, News)> {
        std::mem::replace(&mut self.mail.lock(), empty)
    }
}
