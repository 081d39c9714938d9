//! What is said on the standard error output, seldom: nothing that a program did not ask for.

use rustix::fs::Stat;
use std::sync::OnceLock;

/// The descriptor of the standard error output, as the program began with it. It may close it, and
/// open a file in its place.
static AT_START: OnceLock<Option<(u64, u64)>> = OnceLock::new();

fn now() -> Option<(u64, u64)> {
    let stat: Option<Stat> = rustix::fs::fstat(rustix::stdio::stderr()).ok();
    stat.map(|stat| (stat.st_dev, stat.st_ino))
}

/// Remembers where the standard error output leads.
pub fn remember() {
    AT_START.get_or_init(now);
}

/// Says a line, in one write, if the output is still what the program began with.
pub fn say(text: &str) {
    let Some(Some(place)) = AT_START.get() else { return };
    if now() == Some(*place) {
        let line = format!("dioxide: {text}\n");
        let _ = rustix::io::write(rustix::stdio::stderr(), line.as_bytes());
    }
}
