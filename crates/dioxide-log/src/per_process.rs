//! A value for each process of a line of forks.

use dioxide::Owner;
use std::sync::OnceLock;

/// A value of the calling process, made at its first use. The child of a fork has the memory of its
/// parent, but not the threads, which may have held locks of the value. So it gets its own.
#[derive(Debug)]
pub struct PerProcess<T>(OnceLock<Box<Link<T>>>);

#[derive(Debug)]
struct Link<T> {
    owner: Owner,
    value: T,
    child: PerProcess<T>,
}

impl<T: Default> PerProcess<T> {
    pub const fn new() -> Self {
        Self(OnceLock::new())
    }

    /// That of the calling process.
    pub fn get(&self) -> &T {
        let mut place = self;
        loop {
            let link = place.0.get_or_init(|| Box::new(Link::new()));
            if link.owner.is_current() {
                return &link.value;
            }
            place = &link.child;
        }
    }
}

impl<T: Default> Link<T> {
    fn new() -> Self {
        Self { owner: Owner::current(), value: T::default(), child: PerProcess::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dioxide_testkit::fork::holds_in_a_fork;
    use std::sync::Mutex;

    /// The child waited for ever for a lock that a thread of its parent held.
    #[test]
    fn a_child_of_a_fork_waited_for_a_lock_of_its_parent() {
        static VALUE: PerProcess<Mutex<u32>> = PerProcess::new();
        let mut held = VALUE.get().lock().expect("no thread panics");
        *held = 7;
        assert!(holds_in_a_fork(|| VALUE.get().try_lock().is_ok_and(|value| *value == 0)));
        assert!(VALUE.get().try_lock().is_err(), "the parent has its own");
    }
}
