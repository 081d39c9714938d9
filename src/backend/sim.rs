//! A small disk in memory.
