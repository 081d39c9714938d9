//! Stands before libc in an unmodified program, so that the files which it opens O_DIRECT for writing are served by dioxide.
//!
//! `LD_PRELOAD=libdioxide_preload.so program`; see `docs/preload.md`. Nothing here is to be called by name.
//!
//! - [`calls`]: the functions of libc that are replaced. Each looks the descriptor up, and most often goes straight on.
//! - [`slots`]: what is known of each descriptor number.
//! - [`files`]: how a file comes to the engine, and back to the kernel.
//! - [`lease`]: how it is known that a file has no other opener.
//! - [`transfer`]: reads, writes, syncs and positions of a file that the engine serves.
//! - [`flushes`]: the flushes of the kernel's calls, in the ledger of the engine's.
//! - [`process`]: fork, exec, exit, and how this library begins and ends; [`keeper`]: the thread that helps with it.

// Each function that is replaced says what it stands before; none is an interface of its own.
#![allow(clippy::missing_safety_doc)]

mod calls;
mod files;
mod flushes;
mod keeper;
mod lease;
mod next;
mod process;
mod say;
mod settings;
mod slots;
mod summary;
mod surroundings;
mod transfer;

/// Sets what the program reads as `errno`.
fn set_errno(errno: libc::c_int) {
    // SAFETY: the address is this thread's own.
    unsafe { *libc::__errno_location() = errno };
}
