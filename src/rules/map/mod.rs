//! Where the bytes of a file lie below: a closed set of maps, each of which turns a range of the
//! file into runs on what holds it. Values only, no I/O.

pub(crate) mod striped;
