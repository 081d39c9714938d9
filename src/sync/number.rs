//! Small numbers for threads, to give each a place of its own in what they share. Shared by all
//! threads of the process.
//!
//! No lock: a child of a fork gives numbers back as well when it ends.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// A bit for each number that a live thread has.
struct Numbers {
    taken: [AtomicU64; 64],
    /// How many threads found all of them taken.
    without: AtomicUsize,
}

static NUMBERS: Numbers = Numbers::new();

/// A number for the calling thread, the smallest that was free. No other thread has it at the same
/// time, if it is below 4096; larger ones go to those who found none of these free.
pub(crate) fn thread_number() -> usize {
    struct Mine(usize);
    impl Drop for Mine {
        fn drop(&mut self) {
            NUMBERS.give_back(self.0);
        }
    }
    std::thread_local!(static MINE: Mine = Mine(NUMBERS.take()));
    // What a thread drops as it ends may come after its number: it shares the place of another
    // then.
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
        // Other tests have threads as well, but not so many.
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
            // Dropped in this order or in the other: a panic there would end the process.
            FIRST.with(|_| thread_number());
        });
        thread.join().unwrap();
    }
}
