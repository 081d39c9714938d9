//! Interposes libc in an unmodified program and routes its O_DIRECT files through the engine of
//! dioxide.
//!
//! `LD_PRELOAD=libdioxide_preload.so program`; see `docs/preload.md`. This is no library to link
//! with.
//!
//! - [`calls`]: the interposed functions of libc. Each looks the descriptor up, and most often goes
//!   on to libc.
//! - [`slots`]: the state of each descriptor number.
//! - [`files`]: takes a file over, and hands it back.
//! - [`lease`]: the write lease, which shows that a file has no other opener.
//! - [`accepted`]: the transfers that the kernel is known to accept.
//! - [`memory`]: the memory of the program, as the engine gets it.
//! - [`transfer`]: reads, writes, syncs and positions of known files.
//! - [`flushes`]: the kernel's flushes, in the ledger of the engine.
//! - [`process`]: fork, exec and exit, the begin and the end of this library.
//! - [`keeper`]: the threads that change how a file is served.
//!
//! # The life of a write
//!
//! The program calls `pwrite(fd, …)` on a file that it opened O_DIRECT.
//!
//! 1. The kernel has opened the file. The program owns its descriptor, the lowest free one, and the
//!    kernel keeps its position. [`files::opened`] made a `Description` and an `Inode`, and stored
//!    them in the slot of the number.
//! 2. [`transfer::write`] looks the number up: two loads from a table that never frees memory.
//!    Without an entry, and before any wedge, the call goes to libc at once.
//! 3. The file is `Watched` first: the library counts the write, and the kernel performs it. The
//!    thread holds no lock meanwhile, because a signal handler may call `_exit` or `siglongjmp`.
//!    One thread at a time gains nothing from the engine, so in most programs files stay watched.
//! 4. An extending or durable write begins beside another one. [`files::take_over()`] starts a
//!    keeper, and waits without a lock. The keeper
//!
//!    - takes the slots of all descriptors of the file for writing, then the write lease;
//!    - waits for the counted transfers, 0.5 s at most;
//!    - looks for other access by this process, such as a mapping or a ring ([`surroundings`]);
//!    - clears O_APPEND, and gives the engine a copy of the descriptor
//!      (`OpenOptions::open_descriptor`).
//!
//!    Now the slots are `Taken`, and each call of the engine holds its slot for reading.
//! 5. `transfer::serve` calls the engine: `write_at`, `append` for O_APPEND, `read_at`,
//!    `sync_data`, `set_len`. It adds the rules of POSIX: positions, access rights, errno. The
//!    kernel answers transfers that it may refuse for their alignment.
//! 6. `fstat` asks the kernel, and gets the length from the engine.
//! 7. A call that the engine cannot perform hands the file back ([`files::hand_back()`]). A keeper
//!    closes the engine's file, which truncates it to its length. It restores O_APPEND and releases
//!    the lease. The file is `Watched` again, and never taken again. Then the kernel performs the
//!    call, so the library invents no errno. Fork, exec, mmap and record locks begin with this.
//! 8. The last `close` closes the engine's file before the kernel closes the descriptor. `exit`
//!    does so for all files. `_exit`, exec and fatal signals may come from a signal handler, with
//!    memory locked and on a small stack. There a keeper does it, and the wait is limited. After
//!    `kill -9` the marker stays, and the next open under dioxide recovers.
//!
//! Three rules keep the library from waiting for itself:
//!
//! - [`process::Inside`] marks a thread while this library works. Its calls go straight to libc.
//! - The engine's threads take no lock that another thread holds during a call of the engine.
//! - A thread that waits for a keeper, or opens a file, holds no lock. The head of [`files`] has
//!   the lock order.

// The contract of each interposed function is that of libc's function.
#![allow(clippy::missing_safety_doc)]

mod accepted;
mod calls;
mod files;
mod flushes;
mod keeper;
mod lease;
mod memory;
mod next;
mod process;
mod say;
mod settings;
mod slots;
mod summary;
mod surroundings;
mod transfer;

/// Sets `errno`.
fn set_errno(errno: libc::c_int) {
    // SAFETY: the address belongs to this thread.
    unsafe { *libc::__errno_location() = errno };
}
