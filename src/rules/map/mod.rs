//! Maps of a file to its storage: a closed set of maps. Each turns a range of the file into runs on
//! the layer below. Values only, no I/O.

pub(crate) mod striped;
