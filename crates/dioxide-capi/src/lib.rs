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
//!
//! Each function checks its arguments (`args.rs`) and calls the Rust function of the same name. It
//! turns an error into a negative errno and a message for the thread (`error.rs`). Handles are
//! boxes. Members of a struct that the program does not know are zero. Those that the library does
//! not know must be zero (`sized.rs`). Queue operations use the program's memory
//! (`Queue::append_lent`).
//!
//! cbindgen makes the header from the comments; `tests/manual` makes the manual pages from the
//! header and `docs/c.md`. Both are checked in. `tests/generated.rs` compares them, and
//! `scripts/capi write` writes them.
//!
//! rustc passes the linker a list of symbols without versions, and linkers accept one list only. So
//! `build.rs` lets the C compiler find `link/ld.bfd`, which replaces the list by `dioxide.map`.
//! That works for every build: cargo, cargo-c, `scripts/capi`.

// C names.
#![allow(non_camel_case_types)]

mod args;
pub mod error;
pub mod file;
pub mod memory;
pub mod messages;
pub mod open;
pub mod options;
pub mod queue;
pub mod recover;
pub mod report;
mod sized;
pub mod write_ahead;
