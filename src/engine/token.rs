//! Who waits for an operation in the core, and is told what to do for it and what came of it: a
//! thread, or a queue.

use super::core::Outcome;
use super::inbox::Inbox;
use super::waiter::{News, Task, Waiter};
use std::sync::Arc;

/// An operation, as the core knows it.
#[derive(Clone, Debug)]
pub(super) enum Token {
    /// A thread waits for it, and for nothing else.
    Thread(Arc<Waiter>),
    /// One of the operations of a queue.
    Queue(Arc<Inbox>, usize),
}

impl PartialEq for Token {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Thread(one), Self::Thread(other)) => Arc::ptr_eq(one, other),
            (Self::Queue(one, number), Self::Queue(other, another)) => {
                number == another && Arc::ptr_eq(one, other)
            }
            _ => false,
        }
    }
}

impl Token {
    /// Gives whoever waits something to do.
    pub fn assign(&self, task: Task) {
        match self {
            Self::Thread(waiter) => waiter.assign(task),
            Self::Queue(inbox, operation) => inbox.post(*operation, News::Work(task)),
        }
    }

    /// Ends the operation.
    pub fn finish(&self, outcome: Outcome) {
        match self {
            Self::Thread(waiter) => waiter.finish(outcome),
            Self::Queue(inbox, operation) => inbox.post(*operation, News::Done(outcome)),
        }
    }
}
