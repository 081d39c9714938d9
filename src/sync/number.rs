//! Small thread numbers, as indexes of per-thread data. All threads of the process share them.
//!
//! No lock: a thread in the child of a fork also returns its number when it ends.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// One bit for each number of a live thread.
struct Numbers {
    taken: [AtomicU64; 64],
    /// The number of threads that found all bits taken.
    without: AtomicUsize,
}

static NUMBERS: Numbers = Numbers::new();

/// Returns the number of the calling thread, the smallest that was free. Below 4096 it is unique
/// among live threads. Threads get larger numbers while these are all taken.
pub(crate) fn thread_number() -> usize {
    struct Mine(usize);
    impl Drop for Mine {
        fn drop(&mut self) {
            NUMBERS.give_back(self.0);
        }
    }
    std::thread_local!(static MINE: Mine = Mine(NUMBERS.take()));
    // Other thread-locals may be dropped after the number. They share an index with another thread.
    MINE.try_with(|mine| mine.0).unwrap_or(0)
}

impl Numbers {
    const fn new() -> Self {
        Self { taken: [const { AtomicU64::new(0) }; 64], without: AtomicUsize::new(0) }
    }

    fn take(&self) -> usize {
        for (index, word) in self.taken.iter().enumerate() {
            let mut seen = word.load(Relaxed);
            while seen != u64::MAX {
                let free = seen.trailing_ones();
                seen = word.fetch_or(1 << free, Relaxed);
                if seen & (1 << free) == 0 {
                    return index * 64 + free as usize;
                }
            }
        }
        self.taken.len() * 64 + self.without.fetch_add(1, Relaxed)
    }

    fn give_back(&self, number: usize) {
        if let Some(word) = self.taken.get(number / 64) {
            word.fetch_and(!(1 << (number % 64)), Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::sync::Barrier;

    #[test]
    fn the_smallest_free_number_is_taken() {
        let numbers = Numbers::new();
        assert!((0..200).all(|number| numbers.take() == number));
        for number in [7, 130, 65] {
            numbers.give_back(number);
        }
        assert_eq!([0; 4].map(|_| numbers.take()), [7, 65, 130, 200]);
    }

    #[test]
    fn when_none_is_free_numbers_go_on() {
        let numbers = Numbers::new();
        assert!((0..5000).all(|number| numbers.take() == number));
        numbers.give_back(4500);
        assert_eq!(numbers.take(), 5000);
        numbers.give_back(4095);
        assert_eq!(numbers.take(), 4095);
    }

    #[test]
    fn numbers_of_live_threads_differ() {
        const THREADS: usize = 150;
        let all_there = Barrier::new(THREADS);
        let number = || {
            let number = thread_number();
            all_there.wait();
            assert_eq!(thread_number(), number);
            number
        };
        let numbers: HashSet<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(number)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(numbers.len(), THREADS);
    }

    #[test]
    fn a_thread_that_ends_gives_its_number_back() {
        // Other tests run threads too, but fewer.
        let largest = (0..5000).map(|_| std::thread::spawn(thread_number).join().unwrap()).max();
        assert!(largest < Some(4096), "{largest:?}");
    }

    #[test]
    fn what_a_thread_drops_at_its_end_finds_a_number() {
        struct AtTheEnd;
        impl Drop for AtTheEnd {
            fn drop(&mut self) {
                thread_number();
            }
        }
        std::thread_local!(static FIRST: AtTheEnd = const { AtTheEnd });
        let thread = std::thread::spawn(|| {
            // The drop order is unspecified: a panic in the last drop would end the process.
            FIRST.with(|_| thread_number());
        });
        thread.join().unwrap();
    }
}
