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
    places: HashMap<Place, Seen>,
    threads: HashSet<Tid>,
    processes: HashSet<u32>,
}

/// Process and thread.
pub type Tid = (u32, u32);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// The thread's own name.
    pub task: String,
    pub state: char,
    pub call: Option<Call>,
    pub channel: Option<String>,
    pub stack: Vec<String>,
    pub ran_lately: bool,
}

#[derive(Debug, Default)]
struct Seen {
    count: u64,
    threads: HashSet<Tid>,
    over_time: Bins,
}

impl Tally {
    /// Adds a sample of this moment.
    pub fn add(&mut self, thread: Tid, mut place: Place, at_ns: u64) {
        self.processes.insert(thread.0);
        self.threads.insert(thread);
        place.task = normalised(&place.task);
        if self.places.len() >= PLACES_MAX && !self.places.contains_key(&place) {
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

    /// The most frequent first, each with its samples over time.
    pub fn finish(self) -> (Vec<Sighting>, Vec<Bins>) {
        let sighting = |(place, seen): (Place, Seen)| {
            let over_time = seen.over_time;
            let sighting = Sighting {
                count: seen.count,
                threads: seen.threads.len() as u64,
                task: place.task,
                state: place.state,
                call: place.call,
                channel: place.channel,
                stack: place.stack,
                ran_lately: place.ran_lately,
            };
            (sighting, over_time)
        };
        let mut sightings: Vec<_> = self.places.into_iter().map(sighting).collect();
        sightings.sort_by_key(|(one, _)| Reverse(one.count));
        sightings.into_iter().unzip()
    }
}
