//! Counts samples by state.

use super::bins::Bins;
use super::look::normalised;
use crate::evidence::{Call, Sighting};
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

/// Above this number of states, new ones lose the fields that distinguish most of them.
const PLACES_MAX: usize = 10_000;

#[derive(Debug, Default)]
pub struct Tally {
    places: HashMap<SampledPlace, PlaceCounts>,
    threads: HashSet<Tid>,
    processes: HashSet<u32>,
}

/// Process and thread.
pub type Tid = (u32, u32);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SampledPlace {
    pub process: u32,
    /// The thread's own name.
    pub task: String,
    pub state: char,
    pub call: Option<Call>,
    pub channel: Option<String>,
    pub stack: Vec<String>,
    /// The thread, if it may be in a queue of the program.
    pub waiter: Option<Tid>,
}

#[derive(Debug, Default)]
struct PlaceCounts {
    count: u64,
    threads: HashSet<Tid>,
    over_time: Bins,
}

impl Tally {
    /// Adds a sample of this moment.
    pub fn add(&mut self, thread: Tid, mut place: SampledPlace, at_ns: u64) {
        self.processes.insert(thread.0);
        self.threads.insert(thread);
        place.task = normalised(&place.task);
        if self.places.len() >= PLACES_MAX && !self.places.contains_key(&place) {
            place.process = 0;
            place.stack.clear();
            if let Some(call) = &mut place.call {
                call.futex = None;
            }
        }
        let seen = self.places.entry(place).or_default();
        seen.count += 1;
        seen.threads.insert(thread);
        seen.over_time.add(at_ns, 1.0);
    }

    pub fn threads(&self) -> u64 {
        self.threads.len() as u64
    }

    pub fn processes(&self) -> u64 {
        self.processes.len() as u64
    }

    /// The most frequent first, each with its samples over time. `queues` has the queue of each
    /// thread that is in one.
    pub fn finish(self, queues: &HashMap<Tid, usize>) -> (Vec<Sighting>, Vec<Bins>) {
        let mut places: HashMap<(SampledPlace, Option<usize>), PlaceCounts> = HashMap::new();
        for (mut place, seen) in self.places {
            let queue = place.waiter.take().and_then(|thread| queues.get(&thread).copied());
            let known = places.entry((place, queue)).or_default();
            known.count += seen.count;
            known.threads.extend(seen.threads);
            known.over_time.merge(seen.over_time);
        }
        let sighting = |((place, queue), seen): ((SampledPlace, Option<usize>), PlaceCounts)| {
            let over_time = seen.over_time;
            let sighting = Sighting {
                count: seen.count,
                threads: seen.threads.len() as u64,
                process: place.process,
                task: place.task,
                state: place.state,
                call: place.call,
                channel: place.channel,
                stack: place.stack,
                queue,
            };
            (sighting, over_time)
        };
        let mut sightings: Vec<_> = places.into_iter().map(sighting).collect();
        sightings.sort_by_key(|(one, _)| Reverse(one.count));
        sightings.into_iter().unzip()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All threads of a program may have one name. Those that follow none are not in its queue.
    #[test]
    fn a_queue_has_its_own_threads_only() {
        let mut tally = Tally::default();
        for (thread, at_ns) in [(1, 0), (2, 0), (3, 0), (1, 400_000_000)] {
            let waiter = (thread < 3).then_some((7, thread));
            let call = Some(Call::named("futex"));
            let task = "server".into();
            let place = SampledPlace {
                process: 7,
                task,
                state: 'S',
                call,
                channel: None,
                stack: Vec::new(),
                waiter,
            };
            tally.add((7, thread), place, at_ns);
        }
        let (sightings, over_time) = tally.finish(&HashMap::from([((7, 1), 4)]));
        let mut seen: Vec<_> =
            sightings.iter().map(|one| (one.queue, one.count, one.threads)).collect();
        seen.sort();
        assert_eq!(seen, [(None, 2, 2), (Some(4), 2, 1)]);
        let its = sightings.iter().position(|one| one.queue.is_some()).unwrap();
        assert_eq!(over_time[its].clone().in_intervals_of(250_000_000), [1.0, 1.0]);
    }
}
