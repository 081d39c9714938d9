//! Tasks that cores gave to a queue and that it has not performed yet.

use crate::engine::core::{LeaderTask, Request};
use crate::engine::process::EndedFlush;
use crate::engine::token::Token;
use crate::engine::waiter::Task;
use std::collections::VecDeque;

/// The tasks of a queue, each with the number of its file.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    due: VecDeque<(usize, Task)>,
    /// Calls to submit a batch wait, so that tasks that are being woken can join it.
    holds_calls: bool,
    held_calls: VecDeque<(usize, Task)>,
    /// Flushes that succeeded, while concurrent flushes are in flight.
    settling: Vec<(usize, Request<Token>, EndedFlush)>,
    /// Flushes that may be shared, and have not asked for their turn.
    to_share: Vec<(usize, Request<Token>)>,
}

impl Tasks {
    pub fn push(&mut self, file: usize, task: Task) {
        self.due.push_back((file, task));
    }

    pub fn next(&mut self) -> Option<(usize, Task)> {
        self.due.pop_front()
    }

    pub fn hold_calls(&mut self, holds: bool) {
        self.holds_calls = holds;
    }

    /// Makes held calls due, unless calls are still held.
    pub fn release_calls(&mut self) {
        if !self.holds_calls {
            self.due.append(&mut self.held_calls);
        }
    }

    /// Holds a call if calls are held and others may join it. Otherwise returns the task, to be
    /// performed now.
    pub fn hold(&mut self, file: usize, task: Task, others_may_come: bool) -> Option<Task> {
        if self.holds_calls && others_may_come && matches!(task, Task::Lead(LeaderTask::Extend)) {
            self.held_calls.push_back((file, task));
            return None;
        }
        Some(task)
    }

    /// Keeps a flush until all concurrent flushes have ended.
    pub fn settle_later(&mut self, file: usize, request: Request<Token>, ended: EndedFlush) {
        self.settling.push((file, request, ended));
    }

    pub fn take_settling(&mut self) -> Vec<(usize, Request<Token>, EndedFlush)> {
        std::mem::take(&mut self.settling)
    }

    pub fn any_settling(&self) -> bool {
        !self.settling.is_empty()
    }

    /// Keeps a flush that may be shared until there is no other task.
    pub fn share_later(&mut self, file: usize, request: Request<Token>) {
        self.to_share.push((file, request));
    }

    pub fn take_to_share(&mut self) -> Option<Vec<(usize, Request<Token>)>> {
        Some(std::mem::take(&mut self.to_share)).filter(|flushes| !flushes.is_empty())
    }
}
