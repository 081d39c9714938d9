//! Shows the library's messages on stderr (`log` records, warnings and errors only).

use crate::exit::say;
use log::{LevelFilter, Log, Metadata, Record};
use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

struct Stderr {
    said: Mutex<HashSet<String>>,
}

thread_local! {
    /// The messages captured in this thread.
    static OVERHEARD: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// Runs `act`, and returns the library's messages in this thread instead of showing them.
pub fn overhear<T>(act: impl FnOnce() -> T) -> (T, Vec<String>) {
    OVERHEARD.set(Some(Vec::new()));
    let outcome = act();
    (outcome, OVERHEARD.take().unwrap_or_default())
}

/// Routes the library's warnings to stderr.
pub fn to_stderr() {
    let stderr = Box::new(Stderr { said: Mutex::default() });
    // Fails only if a logger is installed already, which no other code here does.
    if log::set_boxed_logger(stderr).is_ok() {
        log::set_max_level(LevelFilter::Warn);
    }
}

impl Log for Stderr {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::Level::Warn
    }

    fn log(&self, record: &Record<'_>) {
        let message = record.args().to_string();
        let is_overheard = OVERHEARD.with_borrow_mut(|heard| {
            heard.as_mut().map(|heard| heard.push(message.clone())).is_some()
        });
        if is_overheard {
            return;
        }
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if self.enabled(record.metadata()) && said.insert(without_numbers(&message)) {
            say(&named(message.strip_prefix("dioxide: ").unwrap_or(&message)));
        }
    }

    fn flush(&self) {}
}

/// Nameless files have a path, which is meaningless to users.
fn named(message: &str) -> String {
    match message.split_once(": ") {
        Some((path, rest)) if path.starts_with("/proc/self/fd/") => format!("scratch file: {rest}"),
        _ => message.to_owned(),
    }
}

/// Scratch files differ only in numbers, and a bench would repeat the message for each run.
fn without_numbers(message: &str) -> String {
    message.chars().filter(|c| !c.is_ascii_digit()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scratch_files_are_called_so() {
        assert_eq!(named("/proc/self/fd/5: no growth: why"), "scratch file: no growth: why");
        assert_eq!(named("log: no growth: why"), "log: no growth: why");
        assert_eq!(without_numbers("/proc/self/fd/5: no"), without_numbers("/proc/self/fd/41: no"));
    }
}
