//! What the machine says of itself, where more than one reader asks.

pub mod disk;
pub mod mount;
