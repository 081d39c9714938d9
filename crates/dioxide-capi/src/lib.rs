//! The C interface of dioxide: what `dioxide.h` declares.
//!
//! The header and the manual pages are made of the comments here, for readers who know C and not Rust.
//!
//! No panic crosses into C: one in an `extern "C"` function aborts the process. That is as it should be. A panic is a bug
//! of the library, memory of the caller's may be in the hands of the kernel, and a log would rather be recovered than
//! written on by a state that nobody understands.
//!
//! What C programs get wrong at the border is found as far as it can be: null pointers, lengths, flags, structs of the wrong
//! size. What cannot be found is a pointer to something else, or one that is used after it was given up.

// Names as they are in C.
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
