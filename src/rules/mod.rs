//! Decisions: values in, values out. No module here does I/O or waits.
//!
//! A rule imports no other rule, with these exceptions: `recovery` reads markers, and `map` uses
//! the runs of `merge` and the extents of `recovery`.

pub mod bounce;
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
