//! Results as HTML pages: each is one file, without other files, network or scripts.
//!
//! Pages take the same documents as the JSON output, so they show nothing that is not in it.

pub mod bench;
pub mod compare;
pub mod diagnose;
pub mod history;
mod page;
pub mod picture;
mod plot;
pub mod probe;
mod timeline;
