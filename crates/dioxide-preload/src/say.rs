//! Messages on standard error.

use rustix::fs::Stat;
use std::sync::OnceLock;

/// Device and inode of standard error at the start. The program may close it and open a file under
/// its number.
static AT_START: OnceLock<Option<(u64, u64)>> = OnceLock::new();

fn now() -> Option<(u64, u64)> {
    let stat: Option<Stat> = rustix::fs::fstat(rustix::stdio::stderr()).ok();
    stat.map(|stat| (stat.st_dev, stat.st_ino))
}

/// Remembers the file of standard error.
pub fn remember() {
    AT_START.get_or_init(now);
}

/// Prints a line, in one write, if standard error is still the file of the start.
pub fn say(text: &str) {
    let Some(Some(place)) = AT_START.get() else { return };
    if now() == Some(*place) {
        let line = format!("dioxide: {text}\n");
        let _ = rustix::io::write(rustix::stdio::stderr(), line.as_bytes());
    }
}
