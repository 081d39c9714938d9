//! Records of any length, and partial last blocks.

use super::*;

const BLOCK: usize = BLOCK_BYTES as usize;

fn open_with(disk: Disk, prepared: Option<Prepared>, tail: Tail) -> SimFile {
    open_as(disk, FileProps { tail, ..props(prepared) }, FileSystems::default()).unwrap()
}

/// The content of the file that another program sees, from `start` on.
fn bytes(file: &SimFile, start: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    file.backend.0.device.peek(file.backend.0.inode, &mut bytes, start as u64);
    bytes
}

fn physical(file: &SimFile) -> u64 {
    file.backend.0.physical_size().unwrap()
}

#[test]
fn records_stand_byte_to_byte_with_zeros_behind_the_last() {
    for prepared in [Some(Prepared::Unwritten), Some(Prepared::Zeroed), None] {
        let file = open_with(Disk::new(DISK_BYTES), prepared, Tail::Rewrite);
        let mut expected = Vec::new();
        for (n, len) in
            [1, 100, BLOCK - 101, 7, BLOCK, 3 * BLOCK + 5, 512, 1].into_iter().enumerate()
        {
            let record = vec![n as u8 + 1; len];
            assert_eq!(file.append(&record, n % 2 == 0), Ok(expected.len() as u64));
            expected.extend(record);
            assert_eq!(file.len(), expected.len() as u64);
            let mut found = bytes(&file, 0, expected.len().next_multiple_of(BLOCK));
            assert!(found.split_off(expected.len()).iter().all(|byte| *byte == 0), "record {n}");
            assert!(found == expected, "record {n}");
        }
        file.finish().unwrap();
        assert_eq!(physical(&file), expected.len() as u64, "exact after a clean close");
    }
}

#[test]
fn padded_records_begin_at_blocks_that_are_not_written_again() {
    let file = open_with(Disk::new(DISK_BYTES), Some(Prepared::Unwritten), Tail::Pad);
    assert_eq!(file.append(&[1; 100], true), Ok(0));
    assert_eq!(file.len(), 100);
    assert_eq!(file.append(&[2; BLOCK + 1], true), Ok(BLOCK_BYTES));
    assert_eq!(file.append(&[3; BLOCK], true), Ok(3 * BLOCK_BYTES));
    assert_eq!(file.append(&[4], true), Ok(4 * BLOCK_BYTES));
    assert_eq!(file.stats().tail_rewrites, 0);
    let found = bytes(&file, 0, 5 * BLOCK);
    let ones = |n| found.iter().filter(|byte| **byte == n).count();
    assert_eq!([1, 2, 3, 4].map(ones), [100, BLOCK + 1, BLOCK, 1]);
    assert_eq!(ones(0), 5 * BLOCK - 100 - (BLOCK + 1) - BLOCK - 1);
    file.finish().unwrap();
    assert_eq!(physical(&file), 4 * BLOCK_BYTES + 1);
}

#[test]
fn a_file_of_odd_length_is_appended_to_after_it_was_opened_again() {
    for tail in [Tail::Rewrite, Tail::Pad] {
        let file = open_with(Disk::new(DISK_BYTES), Some(Prepared::Unwritten), tail);
        file.append(&[1; 5000], true).unwrap();
        file.finish().unwrap();
        let again = open_with(file.backend, Some(Prepared::Unwritten), tail);
        assert_eq!(again.len(), 5000);
        let offset = again.append(&[2; 10], true).unwrap();
        assert_eq!(offset, if tail == Tail::Rewrite { 5000 } else { 2 * BLOCK_BYTES });
        assert_eq!(bytes(&again, 0, 5000), [1; 5000]);
        assert_eq!(bytes(&again, offset as usize, 11), [2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 0]);
        assert_eq!(
            bytes(&again, 5000, (offset - 5000) as usize),
            vec![0; (offset - 5000) as usize]
        );
    }
}

#[test]
fn the_last_block_changes_when_another_writes_or_truncates_it() {
    let file = open_with(Disk::new(DISK_BYTES), Some(Prepared::Unwritten), Tail::Rewrite);
    file.append(&[1; 1000], false).unwrap();
    let sector = Buffer::from(&[2; 512][..]);
    for durable in [false, true] {
        file.write_at(&sector, 0, durable).unwrap();
        file.append(&[3; 24], false).unwrap();
        assert_eq!(bytes(&file, 0, 512), [2; 512], "what was written there meanwhile stays");
    }
    file.write_at(&sector, 1024, false).unwrap();
    assert_eq!(file.append(&[4], false), Ok(1536));
    assert_eq!(bytes(&file, 1024, 513), [&[2; 512][..], &[4]].concat());
    file.set_len(1100).unwrap();
    assert_eq!(file.append(&[5], false), Ok(1100));
    assert_eq!(bytes(&file, 1024, 78), [&[2; 76][..], &[5, 0]].concat());
    file.set_len(0).unwrap();
    assert_eq!(file.append(&[6; 10], false), Ok(0));
    assert_eq!(bytes(&file, 0, 11), [&[6; 10][..], &[0]].concat());
}

#[test]
fn aligned_blocks_of_long_records_are_not_copied() {
    let file = open_with(Disk::new(DISK_BYTES), Some(Prepared::Unwritten), Tail::Rewrite);
    let record = Buffer::from(&vec![7; 64 * BLOCK][..]);
    file.append(&record, false).unwrap();
    assert_eq!(file.stats().copied_bytes, 0);
    // It ends inside a block, and that block is copied.
    file.append(&record[..10 * BLOCK + 512], false).unwrap();
    assert_eq!(file.stats().copied_bytes, BLOCK_BYTES);
    // Direct I/O requires multiples of 512, and the next whole block of the file is at one.
    file.append(&record[..10 * BLOCK], false).unwrap();
    assert_eq!(file.stats().copied_bytes, 3 * BLOCK_BYTES, "the first block and the last");
    assert_eq!(file.stats().tail_rewrites, 1);
    let odd = &record[1..10 * BLOCK + 1];
    file.append(odd, false).unwrap();
    assert_eq!(file.stats().copied_bytes, (3 + 11) * BLOCK_BYTES);
    assert_eq!(bytes(&file, 0, 94 * BLOCK + 512), vec![7; 94 * BLOCK + 512]);
}

#[test]
fn a_last_block_that_cannot_be_read_fails_the_append_and_nothing_else() {
    let file = open_with(Disk::new(DISK_BYTES), Some(Prepared::Unwritten), Tail::Rewrite);
    file.append(&[1; 100], true).unwrap();
    file.finish().unwrap();
    let again = open_with(file.backend, Some(Prepared::Unwritten), Tail::Rewrite);
    again.backend.fail(Call::Read, 0, libc::EIO);
    assert_eq!(*again.append(&[2; 10], true).unwrap_err().kind(), ErrorKind::Os(libc::EIO));
    assert_eq!(again.len(), 100);
    again.set_len(100).unwrap();
    assert_eq!(again.append(&[3; 10], true), Ok(100));
    assert_eq!(bytes(&again, 0, 111), [&[1; 100][..], &[3; 10], &[0]].concat());
}

#[test]
fn on_a_full_disk_the_last_block_still_fills_up() {
    for prepared in [Some(Prepared::Unwritten), None] {
        let file = open_with(Disk::new(2 * BLOCK_BYTES), prepared, Tail::Rewrite);
        file.append(&[1; BLOCK + 1], true).unwrap();
        assert_eq!(file.append(&[2; BLOCK - 2], true), Ok(BLOCK_BYTES + 1));
        let refused = file.append(&[3; 2], true).unwrap_err();
        assert_eq!(*refused.kind(), ErrorKind::NoSpace(libc::ENOSPC), "{prepared:?}");
        assert_eq!(file.len(), 2 * BLOCK_BYTES - 1);
        assert_eq!(file.append(&[4], true), Ok(2 * BLOCK_BYTES - 1));
        assert!(file.append(&[5], true).is_err());
        assert_eq!(bytes(&file, 2 * BLOCK - 2, 2), [2, 4]);
        file.finish().unwrap();
        assert_eq!(physical(&file), 2 * BLOCK_BYTES);
    }
}

#[test]
fn recycled_space_shows_zeros_behind_records_and_nothing_else() {
    for tail in [Tail::Rewrite, Tail::Pad] {
        let file = open_with(Disk::new(DISK_BYTES), Some(Prepared::Unwritten), tail);
        file.append(&[9; 4 * BLOCK + 100], true).unwrap();
        file.finish().unwrap();
        let file = open_with(file.backend, Some(Prepared::Unwritten), tail);
        file.recycle().unwrap();
        for _ in 0..6 {
            file.append(&[1; 1000], true).unwrap();
            let shown = bytes(&file, 0, file.len() as usize);
            assert!(!shown.contains(&9), "{tail:?}");
        }
        // A gap would show the old content beyond.
        let sector = Buffer::zeroed(512);
        let gap = file.write_at(
            &sector,
            (file.len() + 2 * BLOCK_BYTES) / BLOCK_BYTES * BLOCK_BYTES,
            false,
        );
        match tail {
            Tail::Rewrite => assert!(matches!(gap.unwrap_err().kind(), ErrorKind::Unsupported(_))),
            Tail::Pad => gap.unwrap(),
        }
    }
}

/// The defect: a group that begins inside a block went out as two writes and a flush, as if the
/// next block were unwritten.
#[test]
fn in_recycled_space_a_durable_append_is_one_request() {
    let file = open_with(Disk::new(DISK_BYTES), Some(Prepared::Unwritten), Tail::Rewrite);
    file.append(&[9; 4 * BLOCK], true).unwrap();
    file.finish().unwrap();
    let file = open_with(file.backend, Some(Prepared::Unwritten), Tail::Rewrite);
    file.recycle().unwrap();
    let append = |len| {
        let before = file.stats();
        file.append(&[1; 4 * BLOCK][..len], true).unwrap();
        let after = file.stats();
        (after.dsync_requests - before.dsync_requests, after.flushes - before.flushes)
    };
    assert_eq!([append(100), append(2 * BLOCK), append(BLOCK)], [(1, 0); 3]);
    assert_eq!(append(2 * BLOCK), (0, 1), "it ends in unwritten space");
}

#[test]
fn what_a_failed_append_left_in_the_last_block_is_never_seen() {
    for lengthen in [true, false] {
        let file = open_with(Disk::new(2 * BLOCK_BYTES), None, Tail::Rewrite);
        file.append(&[1; 100], true).unwrap();
        let refused = file.append(&[2; 2 * BLOCK], true).unwrap_err();
        assert_eq!(*refused.kind(), ErrorKind::NoSpace(libc::ENOSPC));
        assert_eq!((file.len(), physical(&file)), (100, 100), "its first block had been written");
        match lengthen {
            true => file.set_len(1024).unwrap(),
            false => file.write_at(&Buffer::zeroed(512), 512, true).unwrap(),
        }
        assert_eq!(bytes(&file, 0, 1024), [&[1; 100][..], &[0; 924]].concat());
    }
}

#[test]
fn lengthening_shows_nothing_of_an_append_that_could_not_be_taken_back() {
    let file = open_with(Disk::new(DISK_BYTES), None, Tail::Rewrite);
    file.append(&[1; 100], true).unwrap();
    file.backend.fail(Call::Write, 1, libc::EIO);
    file.backend.fail(Call::Allocate, 0, libc::EIO);
    file.append(&[2; BLOCK], true).unwrap_err();
    file.set_len(1024).unwrap();
    assert_eq!(bytes(&file, 0, 1024), [&[1; 100][..], &[0; 924]].concat());
}

#[test]
fn an_append_that_failed_before_it_began_leaves_no_padding_behind_the_end() {
    let file = open_with(Disk::new(DISK_BYTES), None, Tail::Rewrite);
    file.append(&[1; 100], true).unwrap();
    // So the content of the last block is not known any more.
    file.write_at(&Buffer::from(&[2; 512][..]), 0, true).unwrap();
    assert_eq!(physical(&file), BLOCK_BYTES);
    file.backend.fail(Call::Read, 0, libc::EIO);
    assert_eq!(*file.append(&[3; 10], true).unwrap_err().kind(), ErrorKind::Os(libc::EIO));
    file.finish().unwrap();
    assert_eq!(physical(&file), 512);
}

#[test]
fn a_write_that_fails_inside_the_last_block_leaves_no_padding_behind_the_end() {
    let file = open_with(Disk::new(DISK_BYTES), None, Tail::Rewrite);
    file.append(&[1; 100], true).unwrap();
    file.backend.fail(Call::Write, 0, libc::EIO);
    file.write_at(&Buffer::zeroed(512), 512, false).unwrap_err();
    file.finish().unwrap();
    assert_eq!(physical(&file), 100);
}

#[test]
fn nothing_is_appended_beyond_the_largest_offset() {
    for prepared in [Some(Prepared::Unwritten), None] {
        let file = open_with(Disk::new(DISK_BYTES), prepared, Tail::Rewrite);
        file.set_len(i64::MAX as u64).unwrap();
        for _ in 0..2 {
            let refused = file.append(&[1], true).unwrap_err();
            assert_eq!(*refused.kind(), ErrorKind::NoSpace(libc::EFBIG), "{prepared:?}");
        }
        file.finish().unwrap();
        assert_eq!(physical(&file), i64::MAX as u64);
    }
}

#[test]
fn padding_begins_inside_a_block_that_holds_old_content() {
    let file = open_with(Disk::new(DISK_BYTES), Some(Prepared::Unwritten), Tail::Pad);
    file.append(&[9; 4 * BLOCK], true).unwrap();
    file.finish().unwrap();
    let file = open_with(file.backend, Some(Prepared::Unwritten), Tail::Pad);
    file.recycle().unwrap();
    file.write_at(&Buffer::zeroed(512), 0, true).unwrap();
    assert_eq!(file.append(&[1; 100], true), Ok(512));
    assert_eq!(
        bytes(&file, 0, 4 * BLOCK)[..BLOCK],
        [&[0; 512][..], &[1; 100], &[0; BLOCK - 612]].concat()
    );
    assert_eq!(file.append(&[2; 100], true), Ok(BLOCK_BYTES), "what lies behind is zeros by now");
}
