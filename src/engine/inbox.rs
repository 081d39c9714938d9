//! Where a queue finds what other threads have for its operations.

use super::waiter::News;
use crate::backend::ring::Bell;
use crate::sync::Mutex;
use std::sync::Arc;

/// See the module. Others post, the thread of the queue takes.
#[derive(Debug)]
pub(super) struct Inbox {
    bell: Arc<Bell>,
    mail: Mutex<Vec<(usize, News)>>,
}

impl Inbox {
    pub fn new(bell: Arc<Bell>) -> Self {
        Self { bell, mail: Mutex::default() }
    }

    /// News for one of the queue's operations.
    pub fn post(&self, operation: usize, news: News) {
        self.mail.lock().push((operation, news));
        self.bell.ring();
    }

    /// All that was posted, in place of `empty`.
    pub fn take(&self, empty: Vec<(usize, News)>) -> Vec<(usize, News)> {
        std::mem::replace(&mut self.mail.lock(), empty)
    }
}
