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

use crate::files;
use crate::surroundings::key_of_path;
use libc::{c_char, c_int};
use std::ffi::CStr;

/// Hands back the file of a path, which is not null. An empty path may mean the descriptor itself.
fn hand_back_at(dir: c_int, path: *const c_char, flags: c_int, why: &str) {
    // SAFETY: by the contract of the call, a string that ends with a zero byte.
    let path = unsafe { CStr::from_ptr(path) };
    if path.is_empty() {
        return files::hand_back_descriptor(dir, why);
    }
    files::hand_back_path(key_of_path(dir, path, flags & libc::AT_SYMLINK_NOFOLLOW == 0), why);
}
