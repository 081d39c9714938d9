//! Facts about the machine that several modules read.

pub mod cached;
pub mod disk;
pub mod ext4;
pub mod mount;
pub mod overlay;
