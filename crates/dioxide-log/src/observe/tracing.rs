//! The events as events of the crate `tracing`.

use super::Event;
use ::tracing::{debug, error};

/// Makes an observer that reports each event to the crate `tracing`, with the target `dioxide_log`:
/// at the level `debug`, and failures at the level `error`.
pub fn tracing() -> impl Fn(&Event<'_>) + Send + Sync + 'static {
    |event| match *event {
        Event::Recovery { log, report, took } => {
            debug!(target: "dioxide_log", ?log, ?report, ?took, "recovery");
        }
        Event::Append { log, records, took } => {
            debug!(target: "dioxide_log", ?log, records, ?took, "append");
        }
        Event::Batch { log, records, bytes, took, error: None } => {
            debug!(target: "dioxide_log", ?log, records, bytes, ?took, "batch");
        }
        Event::Batch { log, records, bytes, took, error: Some(error) } => {
            error!(target: "dioxide_log", ?log, %error, records, bytes, ?took, "batch failed");
        }
        Event::Sync { log, took, error: None } => {
            debug!(target: "dioxide_log", ?log, ?took, "sync");
        }
        Event::Sync { log, took, error: Some(error) } => {
            error!(target: "dioxide_log", ?log, %error, ?took, "sync failed");
        }
        Event::Rotation { log, segment } => {
            debug!(target: "dioxide_log", ?log, segment, "rotation");
        }
        Event::SegmentCreated { log, took } => {
            debug!(target: "dioxide_log", ?log, ?took, "segment created");
        }
        Event::SegmentFreed { log } => debug!(target: "dioxide_log", ?log, "segment freed"),
        Event::Failure { log, error } => error!(target: "dioxide_log", ?log, %error, "failure"),
    }
}
