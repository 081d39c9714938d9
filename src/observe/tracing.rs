//! The events as events of the crate `tracing`.

use super::Event;
use ::tracing::{debug, error};

/// Makes an observer that reports each event to the crate `tracing`, with the target `dioxide`: at
/// the level `debug`, and failures at the level `error`.
pub fn tracing() -> impl Fn(&Event<'_>) + Send + Sync + 'static {
    |event| match *event {
        Event::Append { file, bytes, took } => {
            debug!(target: "dioxide", ?file, bytes, ?took, "append");
        }
        Event::Write { file, operations, bytes, dsync, took, error: None } => {
            debug!(target: "dioxide", ?file, operations, bytes, dsync, ?took, "write");
        }
        Event::Write { operations, bytes, dsync, took, error: Some(error), .. } => {
            error!(target: "dioxide", %error, operations, bytes, dsync, ?took, "write failed");
        }
        Event::Flush { file, took, error: None } => {
            debug!(target: "dioxide", ?file, ?took, "flush");
        }
        Event::Flush { took, error: Some(error), .. } => {
            error!(target: "dioxide", %error, ?took, "flush failed");
        }
        Event::Growth { file, bytes, took } => {
            debug!(target: "dioxide", ?file, bytes, ?took, "growth");
        }
        Event::Wedge { error } => error!(target: "dioxide", %error, "wedge"),
    }
}
