//! Files that raft-engine reuses keep their space, and their old records stay dead.

use dioxide_raft_engine::DioxideFileSystem;
use raft_engine::env::{FileSystem, Handle, Permission, WriteExt};
use std::fs;
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;

fn dir() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

#[test]
fn a_reused_file_is_empty_and_keeps_its_blocks() {
    let dir = dir();
    let system = DioxideFileSystem::default();
    let (old, new) = (dir.path().join("old"), dir.path().join("new"));
    {
        let file = Arc::new(system.create(&old).unwrap());
        system.new_writer(file.clone()).unwrap().write_all(&[1; 1 << 20]).unwrap();
        file.sync().unwrap();
    }
    let inode = fs::metadata(&old).unwrap().ino();
    system.reuse(&old, &new).unwrap();
    assert!(!old.exists());
    let file = Arc::new(system.open(&new, Permission::ReadWrite).unwrap());
    assert_eq!(file.file_size().unwrap(), 0);
    let metadata = fs::metadata(&new).unwrap();
    assert_eq!(metadata.ino(), inode);
    // On file systems that overwrite in place.
    assert!(metadata.blocks() * 512 >= 1 << 20, "{} blocks", metadata.blocks());

    let mut writer = system.new_writer(file.clone()).unwrap();
    writer.write_all(&[2; 5000]).unwrap();
    let mut read = Vec::new();
    system.new_reader(file.clone()).unwrap().read_to_end(&mut read).unwrap();
    assert!(read == [2; 5000], "nothing of the old content");
    file.sync().unwrap();
    drop((writer, file));
    assert!(fs::read(&new).unwrap() == [2; 5000], "an ordinary file after close");
}

/// The defect: zeros of a prefilled file waited in memory. The drop of its handle wrote them over
/// the records of the file that had reused it.
#[test]
fn zeros_of_a_prefilled_file_do_not_come_late() {
    let dir = dir();
    let system = DioxideFileSystem::default();
    let (reserved, active) = (dir.path().join("1.raftlog.reserved"), dir.path().join("1.raftlog"));
    let prefilled = Arc::new(system.create(&reserved).unwrap());
    let mut writer = system.new_writer(prefilled.clone()).unwrap();
    for _ in 0..256 {
        // Some make space ahead, in which the next ones wait.
        writer.write_all(&[0; 16 << 10]).unwrap();
    }
    drop(writer);
    system.reuse(&reserved, &active).unwrap();
    let file = Arc::new(system.open(&active, Permission::ReadWrite).unwrap());
    let mut writer = system.new_writer(file.clone()).unwrap();
    let records = vec![7; 4 << 20];
    writer.write_all(&records).unwrap();
    file.sync().unwrap();
    drop(prefilled);
    assert_eq!(file.file_size().unwrap(), records.len());
    drop((writer, file));
    assert!(fs::read(&active).unwrap() == records);
}

#[test]
fn a_cursor_seeks_writes_and_truncates_as_a_file() {
    let dir = dir();
    let system = DioxideFileSystem::default();
    let path = dir.path().join("file");
    let file = Arc::new(system.create(&path).unwrap());
    let mut cursor = system.new_writer(file.clone()).unwrap();
    cursor.allocate(0, 1 << 20).unwrap();
    assert_eq!(file.file_size().unwrap(), 0);
    cursor.write_all(b"abcdefgh").unwrap();
    assert_eq!(cursor.seek(SeekFrom::End(-6)).unwrap(), 2);
    assert_eq!(cursor.seek(SeekFrom::Current(1)).unwrap(), 3);
    assert_eq!(cursor.seek(SeekFrom::Current(-4)).unwrap_err().kind(), ErrorKind::InvalidInput);
    cursor.write_all(b"XY").unwrap();
    cursor.truncate(7).unwrap();
    cursor.write_all(b"!").unwrap();
    cursor.rewind().unwrap();
    let mut read = String::new();
    cursor.read_to_string(&mut read).unwrap();
    assert_eq!(read, "abcXYfg!");
    Handle::truncate(&*file, 4).unwrap();
    assert_eq!(file.file_size().unwrap(), 4);
    let reader = system.open(&path, Permission::ReadOnly).unwrap();
    assert_eq!(reader.file_size().unwrap(), 4);
    system.delete(&path).unwrap();
    assert_eq!(system.open(&path, Permission::ReadOnly).unwrap_err().kind(), ErrorKind::NotFound);
}

/// The bug: a new file of one engine truncated the file that another one was writing.
#[test]
fn engines_that_share_a_file_system_lose_nothing() {
    let dirs = [dir(), dir()];
    let system = DioxideFileSystem::default();
    let (active, is_over) = (dirs[0].path().join("active.raftlog"), AtomicBool::new(false));
    let file = Arc::new(system.create(&active).unwrap());
    let mut writer = system.new_writer(file.clone()).unwrap();
    let mut written = 0_u64;
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..100 {
                system.create(dirs[1].path().join(format!("{number}.raftlog"))).unwrap();
            }
            is_over.store(true, SeqCst);
        });
        while !is_over.load(SeqCst) {
            let record = (written + 1).to_le_bytes().repeat(100);
            writer.write_all(&record).unwrap();
            file.sync().unwrap();
            written += 1;
            assert_eq!(file.file_size().unwrap() as u64, written * 800);
        }
    });
    let content: Vec<_> = (1..=written).flat_map(|n| n.to_le_bytes().repeat(100)).collect();
    drop((writer, file));
    assert!(fs::read(&active).unwrap() == content);
}
