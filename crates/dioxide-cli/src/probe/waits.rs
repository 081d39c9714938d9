//! Samples where threads of this process wait. More often than `dioxide_diagnose::watch`, and
//! nothing else, because the slices of time are short.

use dioxide_diagnose::channels::{self, Kind, Surroundings};
use rustix::thread::Pid;
use std::collections::HashMap;
use std::fs;

const LOCK: [Kind; 2] = [Kind::InodeLock, Kind::FileSystemLock];
/// No thread flushes meanwhile, but reads of a device wait in the same function as flushes do.
const DEVICE: [Kind; 2] = [Kind::Device, Kind::Flush];

/// All samples so far.
#[derive(Default)]
pub struct Looks {
    /// Over all threads together.
    count: u64,
    /// The samples with two or more threads that waited for the device.
    overlaps: u64,
    /// Samples of single threads by kernel function; `0` for a running thread.
    channels: HashMap<String, u64>,
}

/// The number of waiting threads at a time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Waiters {
    /// For a lock of the file or file system: the mean.
    pub lock: f64,
    /// For the device: the mean.
    pub device: f64,
    /// The share of samples in which two or more waited for the device, from 0 to 1.
    pub overlap: f64,
}

impl Looks {
    /// Samples each of the threads once.
    pub fn look(&mut self, threads: &[Pid]) {
        let channel = |thread: &Pid| {
            // The thread may have ended, or the kernel lacks wchan.
            fs::read_to_string(format!("/proc/self/task/{}/wchan", thread.as_raw_nonzero())).ok()
        };
        self.note(threads.iter().filter_map(channel).collect());
    }

    /// Adds one sample of all threads.
    fn note(&mut self, channels: Vec<String>) {
        self.count += 1;
        let in_device = channels.iter().filter(|channel| DEVICE.contains(&kind(channel))).count();
        self.overlaps += u64::from(in_device > 1);
        channels.into_iter().for_each(|channel| *self.channels.entry(channel).or_default() += 1);
    }

    /// None if not visible.
    pub fn waiters(&self) -> Option<Waiters> {
        let mean = |kinds: &[Kind]| {
            let of_kinds =
                self.channels.iter().filter(|(channel, _)| kinds.contains(&kind(channel)));
            of_kinds.map(|(_, count)| count).sum::<u64>() as f64 / self.count as f64
        };
        let is_seen = !self.channels.is_empty();
        is_seen.then(|| Waiters {
            lock: mean(&LOCK),
            device: mean(&DEVICE),
            overlap: self.overlaps as f64 / self.count as f64,
        })
    }

    /// The most frequent function of waits. None if the threads did not wait.
    pub fn most_frequent(&self) -> Option<String> {
        let waits = self.channels.iter().filter(|(channel, _)| *channel != "0");
        waits
            .max_by_key(|(channel, count)| (**count, (*channel).clone()))
            .map(|(channel, _)| channel.clone())
    }
}

fn kind(channel: &str) -> Kind {
    let around = Surroundings { outer: &[], call: None, file: None };
    channels::entry(channel, around).map_or(Kind::Unknown, |entry| entry.kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_over_the_looks() {
        let mut looks = Looks::default();
        let mut note =
            |channels: &[&str]| looks.note(channels.iter().map(|&it| it.to_owned()).collect());
        note(&["ext4_file_write_iter", "ext4_file_write_iter", "__iomap_dio_rw", "0"]);
        note(&["ext4_file_write_iter", "odd_function", "__iomap_dio_rw", "__iomap_dio_rw"]);
        assert_eq!(looks.waiters(), Some(Waiters { lock: 1.5, device: 1.5, overlap: 0.5 }));
        assert_eq!(looks.most_frequent().unwrap(), "ext4_file_write_iter");
        assert_eq!(Looks::default().waiters(), None);
    }

    #[test]
    fn a_thread_that_sleeps_is_seen() {
        let mut looks = Looks::default();
        looks.look(&[rustix::thread::gettid()]);
        assert_eq!(looks.channels.values().sum::<u64>(), 1, "{:?}", looks.channels);
    }
}
