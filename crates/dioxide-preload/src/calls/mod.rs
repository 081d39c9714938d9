//! The functions of libc that this library stands before, by what they do.

mod descriptors;
mod foreign;
mod lengths;
mod opening;
mod processes;
mod rights;
mod syncs;
mod transfers;
