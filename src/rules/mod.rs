//! Decisions: values in, values out. No module here does I/O or waits.
//!
//! A rule imports no other rule, except as `RULE_ARROWS` in `tests/tidy.rs` permits.

pub mod bounce;
pub mod committed;
pub mod flush;
pub mod growth;
pub mod map;
pub mod marker;
pub mod merge;
pub mod pack;
pub mod policy;
pub mod recovery;
pub mod size;
pub mod stripe;
