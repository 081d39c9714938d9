//! io_uring: whether it is available, or why not, and which of its optimisations.

use super::facts::{Facts, Topic};
use io_uring::{Builder, IoUring};
use std::fs;

/// Sets the flags of a ring.
type Setup = fn(&mut Builder) -> &mut Builder;

const SETUPS: &[(&str, &str, Setup)] = &[
    ("io_uring_coop_taskrun", "IORING_SETUP_COOP_TASKRUN", |it| it.setup_coop_taskrun()),
    ("io_uring_single_issuer", "IORING_SETUP_SINGLE_ISSUER", |it| it.setup_single_issuer()),
    ("io_uring_defer_taskrun", "IORING_SETUP_DEFER_TASKRUN", |it| {
        it.setup_single_issuer().setup_defer_taskrun()
    }),
    ("io_uring_iopoll", "IORING_SETUP_IOPOLL", |it| it.setup_iopoll()),
];

/// Creates rings and drops them.
pub fn look(facts: &mut Facts) {
    let topic = Topic::IoUring;
    let ring = make(|it| it);
    let is_there = match &ring {
        Ok(_) => "yes".to_owned(),
        Err(error) => format!("no: {error}{}", why(error.raw_os_error())),
    };
    facts.know(topic, "io_uring", "io_uring", is_there, "io_uring_setup");
    let disabled = sysctl().ok_or("this kernel has no such setting");
    facts.tell(
        topic,
        "io_uring_disabled",
        "disabled by the system",
        disabled,
        "/proc/sys/kernel/io_uring_disabled",
    );
    if ring.is_ok() {
        for (key, name, setup) in SETUPS {
            facts.know(topic, key, name, make(*setup).is_ok(), "io_uring_setup");
        }
    }
}

fn make(setup: Setup) -> std::io::Result<IoUring> {
    setup(&mut IoUring::builder()).build(4)
}

fn sysctl() -> Option<u64> {
    fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok()?.trim().parse().ok()
}

/// The most likely cause.
fn why(errno: Option<i32>) -> String {
    match (errno, sysctl()) {
        (Some(libc::EPERM), Some(2)) => "; kernel.io_uring_disabled is 2".into(),
        (Some(libc::EPERM), Some(1)) => {
            "; kernel.io_uring_disabled is 1: for root and a group only".into()
        }
        (Some(libc::EPERM), _) if is_filtered() => {
            "; a seccomp filter of this process forbids it".into()
        }
        (Some(libc::ENOSYS), _) => {
            "; the kernel was built without it, or a seccomp filter hides it".into()
        }
        (Some(libc::ENOMEM), _) => "; see ulimit -l".into(),
        _ => String::new(),
    }
}

fn is_filtered() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().any(|line| line.strip_prefix("Seccomp:").is_some_and(|mode| mode.trim() == "2"))
}
