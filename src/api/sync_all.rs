//! The flush of many files.

use crate::api::file::File;
use crate::api::queue::QueueOptions;
use crate::engine::handle::FileHandle;
use crate::error::{Error, Result};
use std::borrow::Borrow;

/// Flushes in flight at a time, of files that do not share one.
const FLUSHES_BESIDE: usize = 64;

/// Makes everything durable that was acknowledged before the call in any of these files, as
/// [`File::sync_data`] of each.
///
/// For the checkpoint of a program with many files. Files of one ext4 or XFS file system share one
/// flush, however many they are. Elsewhere each file has its own flush. With io_uring, different
/// flushes are in flight together. A [`Queue`](crate::Queue::sync_all) does the same beside its
/// other operations.
///
/// ```no_run
/// # fn example(shards: &[dioxide::File]) -> dioxide::Result<()> {
/// dioxide::sync_all(shards)?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// The first error in the order of `files`, as of [`File::sync_data`]. It names its file. The
/// others are flushed nevertheless.
pub fn sync_all<F: Borrow<File>>(files: &[F]) -> Result<()> {
    let file = |nth: &usize| files[*nth].borrow();
    let (sharing, alone): (Vec<_>, Vec<_>) =
        (0..files.len()).partition(|nth| share_a_flush(file(nth), file(nth)));
    let is_one =
        alone.is_empty() && sharing.iter().all(|nth| share_a_flush(file(&sharing[0]), file(nth)));
    // All that share a flush wait at the same time. For one flush a ring costs more than it gains.
    let depth = sharing.len() + alone.len().min(FLUSHES_BESIDE);
    let options = QueueOptions::new().depth(depth).io_uring(!is_one).clone();
    flush(files, sharing.into_iter().chain(alone), &options)
}

/// Flushes the files with these numbers by a queue. Returns the error of the lowest number.
fn flush<F: Borrow<File>>(
    files: &[F],
    numbers: impl Iterator<Item = usize>,
    options: &QueueOptions,
) -> Result<()> {
    let (mut left, mut failed) = (numbers.peekable(), None::<(u64, Error)>);
    if left.peek().is_none() {
        return Ok(());
    }
    let queue = options.open();
    while left.peek().is_some() || queue.outstanding() > 0 {
        while let Some(nth) = left.next_if(|_| queue.outstanding() < queue.depth()) {
            queue.sync_data(files[nth].borrow(), nth as u64).expect("there is room");
        }
        for done in queue.reap(1) {
            if let Err(error) = done.result
                && failed.as_ref().is_none_or(|(tag, _)| done.tag < *tag)
            {
                failed = Some((done.tag, error));
            }
        }
    }
    failed.map_or(Ok(()), |(_, error)| Err(error))
}

/// Whether one flush can be that of both files.
fn share_a_flush(one: &File, other: &File) -> bool {
    match (one.inner(), other.inner()) {
        (FileHandle::Writer { engine: one, .. }, FileHandle::Writer { engine: other, .. }) => {
            one.shares_flushes_with(other)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::sim::{self, Disk, Settings};
    use crate::{AsyncFile, Buffer, ErrorKind, LocalReactor, OpenOptions, Queue, Stats};

    fn options() -> OpenOptions {
        OpenOptions::new().write(true).create(true).clone()
    }

    fn files_on(disk: &Disk, count: usize) -> Vec<File> {
        let open = |nth| disk.open(&options(), &format!("file-{nth}")).expect("it opens");
        (0..count).map(open).collect()
    }

    /// The `nth` block of each.
    fn append_to(files: &[File], nth: u64) {
        let append = |file: &File| file.append(&Buffer::zeroed(4096)).unwrap();
        files.iter().for_each(|file| assert_eq!(append(file), nth * 4096));
    }

    /// The flushes sent and not sent.
    fn flushes_of(files: &[File]) -> (u64, u64) {
        let stats = files.iter().map(File::stats);
        let count =
            |(sent, shared), stats: Stats| (sent + stats.flushes, shared + stats.flushes_shared);
        stats.fold((0, 0), count)
    }

    fn kept(disk: &Disk, count: usize) -> Vec<u64> {
        files_on(&disk.crash(), count).iter().map(|file| file.len().expect("no reader")).collect()
    }

    #[test]
    fn files_of_one_file_system_share_one_flush() {
        for count in [1, 2, 3, 40] {
            let _ = sim::run(count as u64, || {
                let disk = Disk::new(count as u64);
                let files = files_on(&disk, count);
                append_to(&files, 0);
                sync_all(&files).expect("flushed");
                assert_eq!(flushes_of(&files), (1, count as u64 - 1), "{count} files");
                assert!(kept(&disk, count).iter().all(|len| *len == 4096), "{count} files");
            });
        }
        sync_all::<File>(&[]).expect("nothing to flush");
    }

    /// The defect: files that shared no flush any more were flushed one after the other.
    #[test]
    fn files_that_ended_sharing_were_flushed_in_turn() {
        let _ = sim::run(0, || {
            let disk = Disk::with(0, Settings { commits_fast: true, ..Settings::default() });
            let files = files_on(&disk, 6);
            for nth in 0..2 {
                append_to(&files, nth);
                assert_eq!(share_a_flush(&files[0], &files[1]), nth == 0);
                sync_all(&files).expect("flushed");
                assert!(files[0].shares_flushes().is_err(), "the commit was one of one file");
            }
        });
    }

    #[test]
    fn files_of_several_disks_are_all_flushed() {
        let _ = sim::run(0, || {
            let disks = [Disk::new(0), Disk::new(1)];
            let files = disks.each_ref().map(|disk| files_on(disk, 5));
            files.iter().for_each(|files| append_to(files, 0));
            let all: Vec<&File> = files.iter().flatten().collect();
            sync_all(&all).expect("flushed");
            for disk in &disks {
                assert_eq!(kept(disk, 5), [4096; 5]);
            }
        });
    }

    #[test]
    fn the_first_error_names_its_file_and_the_others_are_flushed() {
        let _ = sim::run(0, || {
            let disk = Disk::new(0);
            let files = files_on(&disk, 6);
            append_to(&files, 0);
            let reader = |nth| disk.open(&OpenOptions::new(), &format!("file-{nth}")).unwrap();
            let (third, fifth) = (reader(3), reader(5));
            let error = sync_all(&[&files[0], &files[1], &files[2], &third, &files[4], &fifth])
                .unwrap_err();
            assert_eq!(*error.kind(), ErrorKind::ReadOnly);
            assert!(error.to_string().contains("file-3"), "{error}");
            assert_eq!(kept(&disk, 6)[..3], [4096; 3]);
            assert_eq!(kept(&disk, 6)[4], 4096);
        });
    }

    #[test]
    fn a_queue_flushes_many_files_with_one_completion() {
        for (seed, io_uring) in [(0, false), (1, true)] {
            let _ = sim::run(seed, || {
                let disk = Disk::new(seed);
                let files = files_on(&disk, 9);
                append_to(&files, 0);
                let queue = QueueOptions::new().depth(9).io_uring(io_uring).open();
                queue.sync_all(&files, 7).expect("there is room");
                queue.sync_data(&files[0], 8).expect_err("each file has a place");
                let done = queue.reap(9).map(|done| (done.tag, done.result.expect("flushed")));
                assert_eq!(done.collect::<Vec<_>>(), [(7, 0)]);
                assert_eq!(queue.outstanding(), 0);
                assert_eq!(flushes_of(&files), (1, 8));
                assert_eq!(kept(&disk, 9), [4096; 9]);
                queue.sync_all::<File>(&[], 9).expect("there is room");
                assert_eq!(queue.reap(1).map(|done| done.tag).collect::<Vec<_>>(), [9]);
            });
        }
    }

    #[test]
    fn the_completion_of_many_files_has_the_first_error() {
        let _ = sim::run(0, || {
            let disk = Disk::new(0);
            let files = files_on(&disk, 4);
            append_to(&files, 0);
            let reader = |nth| disk.open(&OpenOptions::new(), &format!("file-{nth}")).unwrap();
            let queue = Queue::new(4);
            queue.sync_all(&[&files[0], &reader(3), &files[2], &reader(1)], 1).unwrap();
            let error = queue.reap(1).next().expect("one").result.unwrap_err();
            assert!(error.to_string().contains("file-3"), "{error}");
            assert_eq!((queue.outstanding(), kept(&disk, 4)[2]), (0, 4096));
        });
    }

    #[test]
    fn futures_on_many_files_share_one_flush() {
        let _ = sim::run(0, || {
            let disk = Disk::new(0);
            let reactor = LocalReactor::new(&QueueOptions::new());
            let files = files_on(&disk, 10);
            append_to(&files, 0);
            let shared: Vec<AsyncFile> =
                files.iter().map(|file| reactor.attach(file.try_clone().unwrap())).collect();
            reactor.block_on(AsyncFile::sync_all(&shared)).expect("flushed");
            assert_eq!(flushes_of(&files), (1, 9));
            assert_eq!(kept(&disk, 10), [4096; 10]);
        });
    }
}
