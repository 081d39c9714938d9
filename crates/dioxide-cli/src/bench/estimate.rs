//! The expected duration of a bench, and a pace at which it takes under a minute. From short trials
//! of each path; arithmetic only.

use std::ops::RangeInclusive;
use std::time::Duration;

/// Times of a run, the best first. Few of them, so that the defaults of two benches are the same.
const RUNTIMES_MS: [u64; 6] = [2000, 1000, 500, 200, 100, 50];
/// Operations of a run, the best first, where these are counted.
const COUNTS: [u64; 10] = [1000, 500, 200, 100, 50, 20, 10, 5, 2, 1];
/// The least number of rounds, the best first: five may be stated as a fact, three have a range.
const ROUNDS_MIN: [u32; 3] = [5, 3, 1];
const ROUNDS_MAX: u32 = 9;
/// A smaller file would fit into the caches of devices.
pub const SIZE_MIN_BYTES: u64 = 32 << 20;

/// A short run of one path.
#[derive(Clone, Copy, Debug)]
pub struct Trial {
    /// The time until the clock starts: a file is made, and perhaps filled.
    pub before: Duration,
    /// The time by the clock. It includes the end of operations that had begun, and the last flush.
    pub clock: Duration,
    /// The time from the end of the clock: everything is read back and compared.
    pub after: Duration,
    pub ops: u64,
    pub runtime: Duration,
    /// The size of the file if it is filled beforehand.
    pub filled_bytes: Option<u64>,
}

/// The values that the user gave.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Typed {
    pub runtime: Option<Duration>,
    pub rounds: Option<u32>,
    pub count: Option<u64>,
    pub size_bytes: Option<u64>,
}

/// The end of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Length {
    Time(Duration),
    Count(u64),
}

/// A pace, the size of a file that is filled beforehand, and the expected duration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Chosen {
    pub length: Length,
    pub rounds: u32,
    pub size_bytes: u64,
    pub time: Duration,
}

impl Typed {
    /// Whether trials are needed: to choose, or to know the duration of counted operations.
    pub fn needs_trials(&self) -> bool {
        self.runtime.is_none() || self.rounds.is_none()
    }
}

impl Trial {
    /// The duration of one run.
    fn time(&self, length: Length, size_bytes: u64) -> Duration {
        let scale = |part: Duration| match self.filled_bytes {
            Some(bytes) => part.mul_f64(size_bytes as f64 / bytes.max(1) as f64),
            None => part,
        };
        let clock = match length {
            Length::Count(count) => self.clock.mul_f64(count as f64 / self.ops.max(1) as f64),
            Length::Time(runtime) => runtime + self.clock.saturating_sub(self.runtime),
        };
        // Reading back is sequential: it takes no longer than the writes did.
        let longer = clock.as_secs_f64() / self.clock.as_secs_f64().max(1e-6);
        let after = self.after.mul_f64(longer.max(1.0)).min(self.after + clock);
        match self.filled_bytes {
            Some(_) => scale(self.before) + clock + scale(self.after),
            None => self.before + clock + after,
        }
    }
}

/// The duration of one round: every path once.
fn round(trials: &[Trial], length: Length, size_bytes: u64) -> Duration {
    trials.iter().map(|trial| trial.time(length, size_bytes)).sum()
}

/// The best pace that fits into `budget`: first enough rounds, then long runs, then a large file.
/// If none fits, the shortest. The size is within `room`.
pub fn choose(
    trials: &[Trial],
    typed: Typed,
    is_counted: bool,
    room: RangeInclusive<u64>,
    budget: Duration,
) -> Chosen {
    let lengths: Vec<_> = match (is_counted, typed.count, typed.runtime) {
        (true, Some(count), _) => vec![Length::Count(count)],
        (true, None, _) => COUNTS.map(Length::Count).into(),
        (false, _, Some(runtime)) => vec![Length::Time(runtime)],
        (false, _, None) => RUNTIMES_MS.map(Duration::from_millis).map(Length::Time).into(),
    };
    let rounds_min = typed.rounds.map_or(ROUNDS_MIN.to_vec(), |rounds| vec![rounds]);
    let rounds_max = typed.rounds.unwrap_or(ROUNDS_MAX);
    let is_filled = trials.iter().any(|trial| trial.filled_bytes.is_some());
    let sizes = match typed.size_bytes {
        None if is_filled => halves(room),
        _ => vec![*room.end()],
    };
    let mut shortest = None;
    for &rounds in &rounds_min {
        for &length in &lengths {
            for &size_bytes in &sizes {
                let round = round(trials, length, size_bytes);
                let fit = (budget.as_secs_f64() / round.as_secs_f64().max(1e-6)) as u32;
                let rounds = fit.clamp(rounds, rounds_max);
                let chosen = Chosen { length, rounds, size_bytes, time: round * rounds };
                if chosen.time <= budget {
                    return chosen;
                }
                shortest = Some(chosen);
            }
        }
    }
    shortest.expect("there is a pace to choose from")
}

/// The largest size, its half, and so on.
fn halves(room: RangeInclusive<u64>) -> Vec<u64> {
    let least = SIZE_MIN_BYTES.max(*room.start());
    let next = |size: &u64| Some(size / 2).filter(|half| *half >= least);
    std::iter::successors(Some(*room.end()), next).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: Duration = Duration::from_secs(55);

    fn trial(before_ms: u64, clock_ms: u64, after_ms: u64) -> Trial {
        Trial {
            before: Duration::from_millis(before_ms),
            clock: Duration::from_millis(clock_ms),
            after: Duration::from_millis(after_ms),
            ops: 10,
            runtime: Duration::from_millis(100),
            filled_bytes: None,
        }
    }

    fn pace(runtime_ms: u64, rounds: u32) -> (Length, u32) {
        (Length::Time(Duration::from_millis(runtime_ms)), rounds)
    }

    fn of(trials: &[Trial], typed: Typed, size_max_bytes: u64) -> Chosen {
        choose(trials, typed, false, 0..=size_max_bytes, BUDGET)
    }

    #[test]
    fn a_run_has_parts_of_its_own_length() {
        let time = |trial: Trial, length| trial.time(length, 64);
        let open = Length::Time(Duration::from_millis(1000));
        assert_eq!(time(trial(30, 150, 10), open), Duration::from_millis(30 + 1050 + 70));
        let written_once = Trial { filled_bytes: Some(16), ..trial(30, 150, 10) };
        assert_eq!(time(written_once, open), Duration::from_millis(4 * 30 + 1050 + 4 * 10));
        let counted = Length::Count(100);
        assert_eq!(time(trial(30, 150, 10), counted), Duration::from_millis(30 + 1500 + 100));
        // The final flush of a trial without a single write is not lost.
        let stuck = Trial { ops: 0, ..trial(0, 2100, 0) };
        assert_eq!(time(stuck, open), Duration::from_millis(3000));
    }

    #[test]
    fn what_fits_is_as_good_as_possible() {
        let choose = |trials: &[Trial]| {
            let chosen = of(trials, Typed::default(), 1 << 30);
            (chosen.length, chosen.rounds)
        };
        assert_eq!(choose(&[trial(0, 100, 0); 3]), pace(2000, 9), "nothing better is known");
        assert_eq!(choose(&[trial(0, 100, 0); 4]), pace(2000, 6));
        assert_eq!(choose(&[trial(50, 120, 10); 13]), pace(500, 6));
        assert_eq!(choose(&[trial(2000, 120, 0); 3]), pace(1000, 6));
        assert_eq!(choose(&[trial(4000, 120, 0); 4]), pace(500, 3), "fewer rounds");
        assert_eq!(choose(&[trial(60_000, 120, 0); 3]), pace(50, 1), "nothing fits");
    }

    #[test]
    fn a_file_that_is_slow_to_fill_is_smaller() {
        let filled = |before_ms| Trial { filled_bytes: Some(16 << 20), ..trial(before_ms, 110, 0) };
        let size =
            |before_ms, typed| of(&[filled(before_ms); 8], typed, 256 << 20).size_bytes >> 20;
        let open = Typed::default();
        assert_eq!((size(1, open), size(20, open), size(80, open)), (256, 256, 64));
        assert_eq!(size(10_000, open), 32, "not below what a cache holds");
        assert_eq!(size(160, Typed { size_bytes: Some(256 << 20), ..open }), 256);
    }

    #[test]
    fn a_file_keeps_the_least_size() {
        let filled = Trial { filled_bytes: Some(16 << 20), ..trial(10_000, 110, 0) };
        let size = |room| choose(&[filled], Typed::default(), false, room, BUDGET).size_bytes >> 20;
        assert_eq!(size(100 << 20..=512 << 20), 128);
        assert_eq!(size(300 << 20..=512 << 20), 512);
        assert_eq!(size(1 << 20..=4 << 20), 4);
    }

    #[test]
    fn typed_values_are_kept() {
        let typed = Typed { runtime: Some(Duration::from_secs(5)), ..Typed::default() };
        let chosen = of(&[trial(0, 100, 0)], typed, 0);
        assert_eq!((chosen.length, chosen.rounds), pace(5000, 9));
        let both = Typed { rounds: Some(20), ..typed };
        assert!(!both.needs_trials() && typed.needs_trials());
        let chosen = of(&[trial(0, 100, 0)], both, 0);
        assert_eq!((chosen.length, chosen.rounds), pace(5000, 20));
        assert_eq!(chosen.time, Duration::from_secs(100));
        let counted = Typed { count: Some(1000), rounds: Some(5), ..Typed::default() };
        assert!(counted.needs_trials(), "nothing else tells the duration");
        let slow = [Trial { ops: 1, ..trial(0, 1000, 0) }];
        assert_eq!(choose(&slow, counted, true, 0..=0, BUDGET).time, Duration::from_secs(5000));
    }

    #[test]
    fn a_second_for_each_write_is_not_paid_a_thousand_times() {
        let [slow, fast] = [1000, 10].map(|clock| Trial { ops: 1, ..trial(500, clock, 0) });
        let chosen = choose(&[slow, fast, fast], Typed::default(), true, 0..=0, BUDGET);
        assert_eq!((chosen.length, chosen.rounds), (Length::Count(5), 8));
        let chosen = choose(&[fast; 3], Typed::default(), true, 0..=0, BUDGET);
        assert_eq!((chosen.length, chosen.rounds), (Length::Count(200), 7));
    }
}
