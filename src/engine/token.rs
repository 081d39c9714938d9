//! Names the waiter of an operation in the core, a thread or a queue. It receives tasks and the
//! outcome.

use super::core::Outcome;
use super::inbox::Inbox;
use super::waiter::{News, Task, Waiter, Wakeup};
use std::sync::Arc;

/// An operation, as the core knows it.
#[derive(Clone, Debug)]
pub(super) enum Token {
    /// The thread that waits for this operation, and for nothing else.
    Thread(Arc<Waiter>),
    /// An operation of a queue, with its number.
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
    /// Gives the waiter a task.
    pub fn assign(&self, task: Task) {
        match self {
            Self::Thread(waiter) => waiter.assign(task),
            Self::Queue(inbox, operation) => inbox.post(*operation, News::Task(task)),
        }
    }

    /// Ends the operation. The caller wakes the thread that waits for it.
    pub fn finish(&self, outcome: Outcome, wakeup: &mut Wakeup) {
        match self {
            Self::Thread(waiter) => waiter.finish(outcome, wakeup),
            Self::Queue(inbox, operation) => inbox.post(*operation, News::Done(outcome)),
        }
    }
}
