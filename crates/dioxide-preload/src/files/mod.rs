//! The known files, and the way of each to the engine and back to the kernel.
//!
//! # The life of a file
//!
//! 1. *Watched*: the program opens it O_DIRECT. The kernel serves it, and the library counts the
//!    writes in flight.
//! 2. *Taken over*: a write that gains from the engine begins beside another one. The library takes
//!    a write lease on the program's own open file description, so a regular file has one opener.
//!    Now the engine serves all descriptors of the file, by a duplicate of one of them.
//! 3. *Handed back*: the engine cannot perform a call, or another opener comes. The engine finishes
//!    its operations and closes the file, which truncates it to its length. The lease ends. The
//!    kernel serves the file until its last close.
//!
//! So every failure here ends with the kernel's own answer.
//!
//! A [`keeper`](crate::keeper) performs each take-over, hand-back and last close, while the calling
//! thread waits. That thread holds no lock, so a keeper can always hand back a file whose next
//! opener waits in the kernel. No thread of the program opens a file with a lock held. Each job has
//! its own keeper, so a file that does not answer delays no other file.
//!
//! # Modules
//!
//! Each module imports only from those above it.
//!
//! - [`inode`]: one file: its state, its descriptions, its engine handles.
//! - [`registry`]: all files, and the descriptor numbers of the engine.
//! - [`hand_back`](mod@hand_back): from the engine to the kernel.
//! - [`fork`]: forks, exec, and the end of the process.
//! - [`take_over`](mod@take_over): from the kernel to the engine.
//! - [`descriptors`]: open, duplicate, close, flags.
//!
//! # Lock order
//!
//! 1. `Inode::changes`: held while the way changes in which a file is served. No thread changes two
//!    files at the same time.
//! 2. The slots of the file's descriptors, by ascending number.
//! 3. `Inode::taken`. A close of the engine's file holds it to its end.
//! 4. NUMBERS.
//! 5. The slots of the engine's descriptors.
//! 6. KNOWN.
//! 7. `Inode::descriptors`.
//!
//! The engine's threads call libc too, and never wait for a change.

mod descriptors;
mod fork;
mod hand_back;
mod inode;
mod registry;
mod take_over;

pub use descriptors::{close, duplicate, flags_of, forget_lost, opened, set_flags};
pub use fork::{ForkLocks, Still, before_fork, exec_begins, exec_failed, in_child, stop};
pub use hand_back::{
    ask, hand_back, hand_back_broken, hand_back_descriptor, hand_back_path, hand_back_those,
    handed_back,
};
pub use inode::{Description, Key, Taken, borrowed};
pub use registry::{
    any_known, any_taken, any_taken_even_inside, begin, is_engines, len_of,
    one_of_each_file_system, settings, while_numbers_stay,
};
pub use take_over::take_over;
