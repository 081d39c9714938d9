//! Where the bytes of a file lie below: a range of the file becomes runs on what holds it. Values only, no I/O.

pub(crate) mod blocks;
pub(crate) mod indirect;
