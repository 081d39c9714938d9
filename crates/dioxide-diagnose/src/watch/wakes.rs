//! Pairs of readings: which waiters ran between the two, while a thread in a call slept on or
//! went on.

use super::tally::Tid;
use crate::evidence::Pairs;
use crate::followers::{CANDIDATE_MIN, WOKEN_MIN, thread_follows};
use std::collections::{HashMap, HashSet};

/// With more readings of waiters than this, new ones replace random ones.
const READINGS_MAX: usize = 1_000_000;

/// Two readings, of which a thread was in a call on the file at the first one.
#[derive(Debug)]
pub struct Pair {
    pub file: usize,
    /// Whether the two are of two passes, not of one.
    pub is_long: bool,
    /// Whether such a thread slept on.
    pub is_held: bool,
    /// The waiters, and whether each ran.
    pub waiters: Vec<(Tid, bool)>,
}

#[derive(Debug, Default)]
pub struct Wakes {
    pairs: Vec<Pair>,
    readings: usize,
}

impl Wakes {
    pub fn add(&mut self, pair: Pair) {
        self.readings += pair.waiters.len();
        while self.readings > READINGS_MAX && !self.pairs.is_empty() {
            let removed = self.pairs.swap_remove(fastrand::usize(..self.pairs.len()));
            self.readings -= removed.waiters.len();
        }
        self.pairs.push(pair);
    }

    /// The threads that follow the calls on a file. Other threads run at any time, also when a call
    /// only goes on to its next step. So the first round counts too many ends, and asks for less.
    pub fn followers(&self, file: usize) -> HashSet<Tid> {
        let pairs = self.pairs.iter().filter(|pair| pair.file == file);
        let all = pairs.flat_map(|pair| &pair.waiters).map(|(thread, _)| *thread).collect();
        [CANDIDATE_MIN, WOKEN_MIN].into_iter().fold(all, |candidates: HashSet<Tid>, woken_min| {
            let short = self.of_each(file, false, &candidates);
            let long = self.of_each(file, true, &candidates);
            let follows = |thread: &&Tid| {
                let pairs = |all: &HashMap<Tid, Pairs>| all.get(*thread).copied();
                let (short, long) = (pairs(&short), pairs(&long));
                thread_follows(short.unwrap_or_default(), long.unwrap_or_default(), woken_min)
            };
            candidates.iter().filter(follows).copied().collect()
        })
    }

    /// The counts of these waiters together.
    pub fn count(&self, file: usize, is_long: bool, among: &HashSet<Tid>) -> Pairs {
        let mut pairs = Pairs::default();
        for (is_held, waiters) in self.of(file, is_long, among) {
            pairs.ends += u64::from(!is_held);
            waiters.iter().for_each(|(_, ran)| pairs.add(is_held, *ran));
        }
        pairs
    }

    /// The counts of each of these waiters.
    fn of_each(&self, file: usize, is_long: bool, among: &HashSet<Tid>) -> HashMap<Tid, Pairs> {
        let mut of_each: HashMap<Tid, Pairs> = HashMap::new();
        for (is_held, waiters) in self.of(file, is_long, among) {
            for (thread, ran) in waiters {
                of_each.entry(thread).or_default().add(is_held, ran);
            }
        }
        of_each
    }

    /// The pairs with these waiters, and whether the call was held.
    fn of(
        &self,
        file: usize,
        is_long: bool,
        among: &HashSet<Tid>,
    ) -> impl Iterator<Item = (bool, Vec<(Tid, bool)>)> {
        let pairs =
            self.pairs.iter().filter(move |pair| (pair.file, pair.is_long) == (file, is_long));
        pairs.filter_map(|pair| {
            let is_its = |(thread, _): &&(Tid, bool)| among.contains(thread);
            let waiters: Vec<_> = pair.waiters.iter().filter(is_its).copied().collect();
            // Else the call went on to its next step: a sync writes first, and then flushes.
            let is_end = waiters.iter().any(|(_, ran)| *ran);
            (pair.is_held || is_end).then_some((pair.is_held, waiters))
        })
    }
}

impl Pairs {
    fn add(&mut self, is_held: bool, ran: bool) {
        let (count, woken) = match is_held {
            true => (&mut self.held, &mut self.held_woken),
            false => (&mut self.ended, &mut self.ended_woken),
        };
        *count += 1;
        *woken += u64::from(ran);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOLLOWERS: u32 = 4;
    const TIMERS: u32 = 40;

    /// A log thread whose flushes have two steps, with followers, and with threads that run at
    /// times of their own. The number is a pass.
    fn pass(wakes: &mut Wakes, number: u32) {
        for (is_long, timer) in [(false, 100), (true, 5)] {
            let is_end = number.is_multiple_of(3);
            let ran = |thread: u32| match thread {
                0..FOLLOWERS => is_end && !(number + thread).is_multiple_of(4),
                _ => (number * 7 + thread * 13).is_multiple_of(timer),
            };
            let waiters = (0..FOLLOWERS + TIMERS).map(|thread| ((1, thread), ran(thread)));
            let is_held = number % 3 == 1;
            wakes.add(Pair { file: 0, is_long, is_held, waiters: waiters.collect() });
        }
    }

    #[test]
    fn timers_beside_followers_do_not_follow() {
        let mut wakes = Wakes::default();
        (0..300).for_each(|number| pass(&mut wakes, number));
        let followers = wakes.followers(0);
        assert_eq!(followers, (0..FOLLOWERS).map(|thread| (1, thread)).collect());
        let expected = Pairs { held: 400, held_woken: 0, ended: 400, ended_woken: 300, ends: 100 };
        assert_eq!(wakes.count(0, false, &followers), expected, "steps are no ends");
        assert!(wakes.followers(1).is_empty());
    }

    #[test]
    fn few_readings_show_no_follower() {
        let mut wakes = Wakes::default();
        (0..10).for_each(|number| pass(&mut wakes, number));
        assert!(wakes.followers(0).is_empty());
    }

    #[test]
    fn the_number_of_readings_is_bounded() {
        let mut wakes = Wakes::default();
        let waiters: Vec<_> =
            (0..READINGS_MAX as u32 / 4).map(|thread| ((1, thread), true)).collect();
        for _ in 0..6 {
            wakes.add(Pair { file: 0, is_long: true, is_held: true, waiters: waiters.clone() });
        }
        assert_eq!((wakes.pairs.len(), wakes.readings), (4, READINGS_MAX));
    }
}
