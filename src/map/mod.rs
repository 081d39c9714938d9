//! Where the bytes of a file lie when it is not one run of one device: a closed set of maps, each of which turns a range
//! of the file into runs on its members. Values only.

pub mod striped;
