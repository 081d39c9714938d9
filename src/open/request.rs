//! The options of an open: access, durability and growth. Plain values; the public builder
//! `api::options::OpenOptions` documents each.

use crate::error::ErrorKind;
use crate::rules::policy::{Durability, GROWTH_CAP_DEFAULT_BYTES, Growth, Tail};

/// The values of [`OpenOptions`](crate::OpenOptions).
#[derive(Clone, Debug)]
pub(crate) struct OpenRequest {
    pub write: bool,
    pub create: bool,
    pub create_new: bool,
    pub truncate: bool,
    /// Permission bits of a created file, before the umask.
    pub mode: u32,
    /// The name of a created file is not made stable.
    pub is_temporary: bool,
    pub durability: Durability,
    pub growth: Growth,
    pub growth_cap_bytes: u64,
    pub capacity_bytes: Option<u64>,
    pub tail: Tail,
    /// The smallest number of the file's descriptors.
    pub descriptor_min: u32,
}

impl Default for OpenRequest {
    fn default() -> Self {
        Self {
            write: false,
            create: false,
            create_new: false,
            truncate: false,
            mode: 0o666,
            is_temporary: false,
            durability: Durability::default(),
            growth: Growth::default(),
            growth_cap_bytes: GROWTH_CAP_DEFAULT_BYTES,
            capacity_bytes: None,
            tail: Tail::default(),
            descriptor_min: 0,
        }
    }
}

impl OpenRequest {
    /// Refuses a read-only open that would create or truncate.
    pub fn check_read_only(&self) -> Result<(), ErrorKind> {
        if !self.write && (self.create || self.create_new || self.truncate) {
            return Err(ErrorKind::Unsupported("create and truncate need write(true)".into()));
        }
        Ok(())
    }
}
