//! Results as HTML pages: each is one file, without other files, network or scripts.

pub mod bench;
pub mod diagnose;
mod page;
pub mod picture;
mod plot;
pub mod probe;
