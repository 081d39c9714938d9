//! Results as pages for browsers: each one file, that needs no other, no network and no script.

pub mod bench;
pub mod diagnose;
mod page;
pub mod picture;
mod plot;
pub mod probe;
