//! A logger that panics, wherever the engine has the memory of callers or lets others wait. It ends
//! the process, as an observer that panics does.

use crate::api::sim::{self, Call, Disk};
use crate::{Buffer, File, Growth, OpenOptions, Queue};
use std::mem::ManuallyDrop;
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, exit};

const AGAIN: &str = "DIOXIDE_TEST_OF_A_LOGGER_THAT_PANICS";

struct Panics;

impl log::Log for Panics {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, _: &log::Record<'_>) {
        panic!("a logger")
    }

    fn flush(&self) {}
}

/// Expects that `act` aborts the process, which is another one that runs only the test `name`.
fn aborts(name: &str, act: impl FnOnce()) {
    if std::env::var_os(AGAIN).is_some() {
        log::set_logger(&Panics).unwrap();
        log::set_max_level(log::LevelFilter::Warn);
        let _ = catch_unwind(AssertUnwindSafe(act));
        exit(0);
    }
    let name = format!("engine::tests::loggers::{name}");
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args(["--exact", &name, "--nocapture"]).env(AGAIN, "1");
    let output = again.output().unwrap();
    assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("a logger"), "{output:?}");
}

fn log() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create(true);
    options
}

/// A file that is never closed: after the defect, that would wait for ever.
fn open(disk: &Disk) -> ManuallyDrop<File> {
    ManuallyDrop::new(disk.open(&log(), "log").unwrap())
}

/// Another thread would write its memory, which its caller frees.
#[test]
fn an_append_unwound_that_found_no_thread_for_growth() {
    aborts("an_append_unwound_that_found_no_thread_for_growth", || {
        let disk = Disk::new(1);
        let file = open(&disk);
        disk.refuse_threads();
        let _ = file.append(&[1; 100]);
    });
}

/// The writer performs its request when it logs.
#[test]
fn an_append_unwound_that_could_not_be_taken_back() {
    aborts("an_append_unwound_that_could_not_be_taken_back", || {
        let disk = Disk::new(1);
        let file = ManuallyDrop::new(disk.open(log().growth(Growth::None), "log").unwrap());
        disk.fail(Call::Write, 1, libc::EIO);
        disk.fail(Call::Allocate, 0, libc::EIO);
        (0..2).for_each(|_| drop(file.append(&[1; 100])));
    });
}

#[test]
fn a_writer_waited_for_a_grower_that_had_panicked() {
    aborts("a_writer_waited_for_a_grower_that_had_panicked", || {
        let append = || {
            let disk = Disk::new(1);
            let file = open(&disk);
            disk.fail(Call::Marker, 0, libc::EIO);
            let _ = file.append(&[1; 100]);
        };
        sim::run(1, append);
    });
}

#[test]
fn a_queue_unwound_that_found_no_thread_for_growth() {
    aborts("a_queue_unwound_that_found_no_thread_for_growth", || {
        let disk = Disk::new(1);
        let file = open(&disk);
        let queue = ManuallyDrop::new(Queue::new(1));
        disk.refuse_threads();
        queue.append(&file, Buffer::zeroed(100), 0).unwrap();
        queue.submit();
    });
}

/// The space after the end cannot be truncated, nor the marker restored.
fn fail_to_truncate(disk: &Disk, file: &File) {
    file.append(&[1; 100]).unwrap();
    disk.fail(Call::Allocate, 0, libc::EIO);
    disk.fail(Call::Marker, 1, libc::EIO);
}

/// No append grew the file any more.
#[test]
fn growth_stayed_paused_after_a_set_len_that_panicked() {
    aborts("growth_stayed_paused_after_a_set_len_that_panicked", || {
        let disk = Disk::new(1);
        let file = open(&disk);
        fail_to_truncate(&disk, &file);
        let _ = file.set_len(0);
    });
}

/// The next open waited for it.
#[test]
fn a_file_stayed_busy_after_a_close_that_panicked() {
    aborts("a_file_stayed_busy_after_a_close_that_panicked", || {
        let disk = Disk::new(1);
        let file = open(&disk);
        fail_to_truncate(&disk, &file);
        let _ = ManuallyDrop::into_inner(file).close();
    });
}

/// The next open waited for it.
#[test]
fn a_file_stayed_busy_after_an_open_that_panicked() {
    aborts("a_file_stayed_busy_after_an_open_that_panicked", || {
        let disk = Disk::new(1);
        let file = open(&disk);
        file.append(&[1; 100]).unwrap();
        let _ = disk.kill().open(&log(), "log");
    });
}
