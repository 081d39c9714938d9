//! Files of one device that share flushes.

use super::*;
use crate::backend::ring::RingFile;
use crate::stats::Stats;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The journal of a device. A commit covers the places that were written when a change joined.
#[derive(Debug)]
struct DeviceJournal(Device);

impl Journal for DeviceJournal {
    fn join(&self) -> io::Result<()> {
        let mut state = self.0.lock();
        let is_written = |image: &Image, n: &usize| image.blocks[*n] != Block::Empty;
        let written = |image: &Image| {
            (0..image.blocks.len()).filter(|n| is_written(image, n)).collect::<BTreeSet<_>>()
        };
        state.joined = Some(state.files.iter().map(written).collect());
        Ok(())
    }

    fn commit(&self) -> io::Result<()> {
        let flushing = {
            let mut state = self.0.lock();
            let joined = state.joined.take();
            let begin = |(file, image): (usize, &Image)| {
                let joined = joined.as_ref().map(|joined| &joined[file]);
                let blocks: Vec<_> =
                    image.placed.iter().chain(joined.into_iter().flatten()).copied().collect();
                (file, image.begin_flush(&blocks))
            };
            state.files.iter().enumerate().map(|(file, image)| begin((file, image))).collect()
        };
        self.0.lock().end_flush(flushing)
    }

    fn commits_all(&self) -> io::Result<bool> {
        Ok(true)
    }

    fn ring_file(&self) -> RingFile<'_> {
        unimplemented!("no model has a ring")
    }
}

/// Two files that share flushes, each with a durable record 1.
fn pair() -> [File; 2] {
    let (device, fs) = (Device::default(), FileSystems::default());
    let journal: Arc<dyn Journal> = Arc::new(DeviceJournal(device.clone()));
    [(); 2].map(|()| {
        let file = File::create_with(&device, &fs, Grows::Once, Ok(journal.clone()));
        assert_eq!(file.append(1, false), Ok(0));
        // A shared flush. From now on there is company.
        assert_eq!(file.engine.sync_data(), Ok(()));
        file
    })
}

impl File {
    /// Writes over the first record, durably.
    fn rewrite(&self, number: u8) -> Result<()> {
        self.engine.write_at(&[number; BLOCK as usize], 0, true)?;
        assert!(self.is_stable(number));
        Ok(())
    }

    fn stats(&self) -> Stats {
        self.engine.stats()
    }
}

/// Counts over all executions of a model: each must happen in one of them.
#[derive(Default)]
struct Seen {
    shared: AtomicU64,
    led: AtomicU64,
}

impl Seen {
    fn add(&self, files: &[File; 2]) {
        for stats in files.iter().map(File::stats) {
            self.shared.fetch_add(stats.flushes_shared, Relaxed);
            self.led.fetch_add(stats.flushes, Relaxed);
        }
    }

    fn check(&self) {
        assert!(self.shared.load(Relaxed) > 0, "no flush covered another file");
        assert!(self.led.load(Relaxed) > 0, "no flush led");
    }
}

#[test]
fn loom_two_files_share_a_flush() {
    let seen = Arc::new(Seen::default());
    let of_all = seen.clone();
    explore(2, move || {
        let files = pair();
        let other = files[1].beside(|file| file.append(2, true).unwrap());
        assert_eq!(files[0].append(3, true), Ok(BLOCK));
        assert_eq!(other.join().unwrap(), BLOCK);
        of_all.add(&files);
        files.into_iter().for_each(File::close);
    });
    seen.check();
}

/// A write in place needs a flush of the device only, and an append a commit.
#[test]
fn loom_a_write_in_place_beside_an_append_of_another_file() {
    let seen = Arc::new(Seen::default());
    let of_all = seen.clone();
    explore(2, move || {
        let files = pair();
        // The first look, the commit after it, and a write that is known to be in place.
        (2..5).for_each(|number| files[0].rewrite(number).unwrap());
        let other = files[1].beside(|file| file.append(2, true).unwrap());
        files[0].rewrite(5).unwrap();
        assert_eq!(other.join().unwrap(), BLOCK);
        of_all.add(&files);
    });
    seen.check();
}

#[test]
fn loom_a_shared_flush_that_fails_fails_both_files() {
    explore(2, || {
        let files = pair();
        files[0].disk.state().flushes_fail = 1;
        let other = files[1].beside(|file| file.append(2, true));
        let mine = files[0].append(3, true);
        let theirs = other.join().unwrap();
        assert!(is_wedged(&mine) || is_wedged(&theirs), "{mine:?}, {theirs:?}");
        assert!(files.iter().all(|file| file.append(4, false).is_err()));
    });
}

/// A queue that leads may be busy elsewhere. Its flush and that of a thread beside it both end.
#[test]
fn loom_a_queue_shares_a_flush_with_another_file() {
    explore(2, || {
        let files = pair();
        let driver = queue_with(&files[0], 2, true);
        let other = files[1].beside(|file| file.append(3, true).unwrap());
        assert_eq!(reap(driver).unwrap(), BLOCK);
        assert!(files[0].is_stable(2));
        assert_eq!(other.join().unwrap(), BLOCK);
    });
}
