//! The paths, one per file. `crew` has the common part of the libraries.

mod compio;
mod crew;
mod dioxide;
mod dioxide_queue;
mod dioxide_tokio;
mod monoio;
mod threads;
mod tokio_uring;

use crate::case::Kind;
use crate::run::{Figures, Task};
use anyhow::Result;

/// Runs one case, timed.
pub fn run(task: &Task<'_>) -> Result<Figures> {
    match task.case.kind {
        Kind::TokioUring => tokio_uring::run(task),
        Kind::Compio => compio::run(task),
        Kind::Monoio => monoio::run(task),
        Kind::Threads => threads::run(task),
        Kind::Dioxide => dioxide::run(task),
        Kind::DioxideQueue => dioxide_queue::run(task),
        Kind::DioxideTokio => dioxide_tokio::run(task),
    }
}
