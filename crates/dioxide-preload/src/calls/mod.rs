//! The interposed functions of libc.

mod descriptors;
mod foreign;
mod lengths;
mod opening;
mod processes;
mod rights;
mod syncs;
mod times;
mod transfers;
