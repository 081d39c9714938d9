//! Regression tests of striped volumes on the simulated disk, with one thread.

use crate::api::sim::{Call, Disk};
use crate::backend::null::Null;
use crate::{Buffer, Durability, ErrorKind, File, Growth, OpenOptions, Operation, os_error};
use std::os::fd::AsFd;

const NAMES: [&str; 3] = ["a", "b", "c"];
const CHUNK: u64 = 8192;

fn options(growth: Growth) -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create(true).growth(growth).growth_cap(1 << 20);
    options
}

fn open(disk: &Disk, growth: Growth) -> File {
    disk.open_striped(&options(growth), &NAMES, CHUNK).expect("a volume")
}

fn filled(byte: u8, len: u64) -> Buffer {
    let mut buffer = Buffer::zeroed(len as usize);
    buffer.fill(byte);
    buffer
}

#[test]
fn a_reader_beside_the_writer_of_a_volume_sees_what_was_appended() {
    let disk = Disk::new(1);
    let writer = open(&disk, Growth::Zeroed);
    writer.append(&filled(1, 3 * CHUNK)).unwrap();
    let reader = disk.open_striped(&OpenOptions::new(), &NAMES, CHUNK).unwrap();
    writer.append(&filled(2, CHUNK)).unwrap();
    assert_eq!(reader.len().unwrap(), 4 * CHUNK);
    let mut into = filled(0, CHUNK);
    assert_eq!(reader.read_at(&mut into, 3 * CHUNK).unwrap(), CHUNK as usize);
    assert!(into.iter().all(|byte| *byte == 2));
}

/// Recovery completes a truncate that a crash left unrecorded, and a second crash may interrupt
/// that recovery.
#[test]
fn a_crash_while_recovery_truncates_below_what_there_was_leaves_a_volume() {
    for seed in 0..4 {
        for calls in 0..40 {
            let disk = Disk::new(seed);
            let file = open(&disk, Growth::Unwritten);
            file.set_len(10 * CHUNK).unwrap();
            file.close().unwrap();
            let file = open(&disk, Growth::Unwritten);
            file.append(&filled(1, CHUNK)).unwrap();
            disk.die_after(calls);
            let _ = file.set_len(2 * CHUNK);
            let crashed = disk.crash();
            for more in 0..40 {
                let again = crashed.crash();
                again.die_after(more);
                let _ = again.open_striped(&options(Growth::Unwritten), &NAMES, CHUNK);
                let last = again.crash();
                let found = last.open_striped(&options(Growth::Unwritten), &NAMES, CHUNK);
                assert!(found.is_ok(), "{seed} {calls} {more}: {found:?}");
            }
        }
    }
}

/// A volume whose floor is `len`.
fn with_floor(disk: &Disk, len: u64, growth: Growth) -> File {
    let file = open(disk, growth);
    file.append(&filled(1, len)).unwrap();
    file.close().unwrap();
    open(disk, growth)
}

/// Data that the failed flush should have covered is lost, whatever a later one returns.
#[test]
fn a_flush_of_the_state_that_fails_wedges() {
    let disk = Disk::new(1);
    let file = with_floor(&disk, 6 * CHUNK, Growth::None);
    file.write_at(&filled(2, CHUNK), 0).unwrap();
    disk.fail(Call::Flush, 0, libc::EIO);
    file.set_len(5 * CHUNK).unwrap_err();
    assert!(matches!(file.sync_data().unwrap_err().kind(), ErrorKind::Wedged(_)));
}

/// The defect: the first cause was a shutdown at `set_len`.
#[test]
fn a_flush_of_the_state_that_failed_was_not_the_cause() {
    let disk = Disk::new(1);
    let file = with_floor(&disk, 6 * CHUNK, Growth::None);
    disk.fail(Call::Flush, 0, libc::EIO);
    let error = file.set_len(5 * CHUNK).unwrap_err();
    let ErrorKind::Wedged(cause) = error.kind() else { panic!("{error}") };
    assert_eq!((cause.operation(), cause.kind()), (Operation::Flush, &ErrorKind::Os(libc::EIO)));
}

/// The file exceeds the largest size of the file system, or there is no space. Both errors change
/// nothing.
#[test]
fn a_length_that_a_member_cannot_have_is_an_error_and_no_more() {
    let disk = Disk::new(1);
    let file = open(&disk, Growth::None);
    file.append(&filled(1, 4 * CHUNK)).unwrap();
    for nth in 0..3 {
        disk.fail(Call::Allocate, nth, libc::EFBIG);
        let error = file.set_len(1 << 40).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::NoSpace(libc::EFBIG)), "{nth}: {error}");
        assert_eq!(file.len().unwrap(), 4 * CHUNK);
        file.sync_data().unwrap();
    }
    file.append(&filled(2, CHUNK)).unwrap();
    file.close().unwrap();
    let file = open(&disk, Growth::None);
    assert_eq!(file.len().unwrap(), 5 * CHUNK);
    file.close().unwrap();
}

/// One of several writes that carry a flush fails with ENOSPC, while another fails in its flush.
#[test]
fn a_flush_that_failed_beside_a_full_member_wedges() {
    let disk = Disk::new(1);
    let mut durable = options(Growth::None);
    durable.durability(Durability::EveryWrite);
    let file = disk.open_striped(&durable, &NAMES, CHUNK).unwrap();
    file.append(&filled(1, 6 * CHUNK)).unwrap();
    for errno in [libc::ENOSPC, libc::EIO] {
        disk.fail(Call::Write, 0, errno);
    }
    let before = file.stats().dsync_requests;
    file.write_at(&filled(2, 2 * CHUNK), 0).unwrap_err();
    assert_eq!(file.stats().dsync_requests, before + 1);
    assert!(matches!(file.sync_data().unwrap_err().kind(), ErrorKind::Wedged(_)));
}

/// A row of such chunks would overflow a u64.
#[test]
fn a_chunk_beyond_all_sizes_is_refused() {
    let dir = std::env::temp_dir();
    let paths = NAMES.map(|name| dir.join(format!("dioxide-huge-{name}-{}", std::process::id())));
    for chunk_bytes in [1 << 63, 1 << 41] {
        let error = options(Growth::None).open_striped(&paths, chunk_bytes).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Unsupported(_)), "{error}");
    }
    assert!(paths.iter().all(|path| !path.exists()));
}

/// The defect: the header of a device with larger blocks was read in vain, with EINVAL.
#[test]
fn a_member_with_blocks_beyond_its_header_is_refused_with_the_reason() {
    let file = tempfile::tempfile().unwrap();
    let Ok(mut facts) = crate::sys::probe::facts(file.as_fd()) else { return };
    for (unit, is_refused) in [(512, false), (4096, false), (16384, true)] {
        facts.alignment.offset = unit;
        let seen = super::look_at(&Null::default(), &facts);
        let refused = seen.is_err_and(|error| {
            matches!(os_error::kind(&error), ErrorKind::Unsupported(why) if why.contains("16384"))
        });
        assert_eq!(refused, is_refused, "{unit}");
    }
}

/// Data beyond on the other members stays.
#[test]
fn a_member_that_was_truncated_while_open_is_not_taken_for_the_length_by_close() {
    let disk = Disk::new(1);
    let file = open(&disk, Growth::None);
    file.append(&filled(1, 6 * CHUNK)).unwrap();
    let header = disk.content(NAMES[1]).unwrap();
    disk.put(NAMES[1], &header[..CHUNK as usize]);
    file.close().unwrap_err();
    assert_eq!(disk.content(NAMES[0]).unwrap().len() as u64, 3 * CHUNK);
}

/// Its data above the end would show behind the next hole.
#[test]
fn a_write_that_could_not_be_taken_back_ends_the_volume() {
    let disk = Disk::new(1);
    let file = open(&disk, Growth::None);
    file.append(&filled(1, 3 * CHUNK)).unwrap();
    disk.fail(Call::Write, 1, libc::EIO);
    disk.fail(Call::Allocate, 0, libc::EIO);
    file.append(&filled(2, 3 * CHUNK)).unwrap_err();
    assert!(matches!(
        file.write_at(&filled(3, CHUNK), 9 * CHUNK).unwrap_err().kind(),
        ErrorKind::Wedged(_)
    ));
    assert!(matches!(file.sync_data().unwrap_err().kind(), ErrorKind::Wedged(_)));
}
