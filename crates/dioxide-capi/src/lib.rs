//! The C interface of dioxide, as declared in `dioxide.h`.
//!
//! The header and the manual pages are generated from the comments here, for readers who know C and
//! not Rust.
//!
//! No panic crosses into C: one in an `extern "C"` function aborts the process. That is intended. A
//! panic is a bug of the library, and the kernel may still use the caller's memory. Recovering a
//! log is better than writing on in an unknown state.
//!
//! Misuse is detected as far as possible: null pointers, lengths, flags, structs of the wrong size.
//! Not detectable are pointers to something else, and pointers used after they were released.

// C names.
#![allow(non_camel_case_types)]

mod args;
pub mod error;
pub mod file;
pub mod log;
pub mod memory;
pub mod open;
pub mod options;
pub mod queue;
pub mod recover;
pub mod report;
mod sized;
