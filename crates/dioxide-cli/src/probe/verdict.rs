//! Decides whether operations run in parallel, from an observation of eight threads. Pure.
//!
//! The best evidence is where threads wait, because proportions do not depend on the load of the
//! machine. If one operation runs at a time, the other threads wait for a lock, and at most one
//! waits for the device. If two wait for the device at a time, they run in parallel.
//!
//! Rates mislead. A fast device completes operations within the call and keeps one thread per
//! processor busy; eight threads then do no more than two. Rates decide only if threads wait for
//! neither, or waits are not visible.

use super::document::ConcurrencyVerdict;
use super::waits::Waiters;

/// Of eight threads that run one at a time, seven wait. Some are runnable if processors are scarce.
const LOCK_WAITERS_MIN: f64 = 3.0;
/// Parallel threads still meet now and then.
const LOCK_WAITERS_RARE_MAX: f64 = 1.0;
const LOCK_WAITERS_NONE_MAX: f64 = 0.2;
/// Without parallelism at most one thread waits for the device.
const DEVICE_WAITERS_ALONE_MAX: f64 = 1.25;
/// Threads are sampled one after the other: one may begin just after the previous one has ended.
const OVERLAP_MIN: f64 = 0.1;
/// The minimum ratio of eight threads to one.
const GAIN_MIN: f64 = 1.5;
const NO_GAIN_MAX: f64 = 1.2;

/// From the ratios of eight threads to one, round by round, and the waits of the eight, if visible.
pub fn verdict(ratios: &[f64], waiters: Option<Waiters>) -> ConcurrencyVerdict {
    let gains = most(ratios, |ratio| ratio >= GAIN_MIN);
    let Some(Waiters { lock, device, overlap }) = waiters else {
        let gains_nothing = most(ratios, |ratio| ratio <= NO_GAIN_MAX);
        return match (gains, gains_nothing) {
            (true, _) => ConcurrencyVerdict::RunsConcurrently,
            (_, true) => ConcurrencyVerdict::OneAtATime,
            _ => ConcurrencyVerdict::Undecided,
        };
    };
    if lock >= LOCK_WAITERS_MIN && device <= DEVICE_WAITERS_ALONE_MAX {
        ConcurrencyVerdict::OneAtATime
    } else if lock <= LOCK_WAITERS_RARE_MAX && overlap >= OVERLAP_MIN
        || lock <= LOCK_WAITERS_NONE_MAX && gains
    {
        ConcurrencyVerdict::RunsConcurrently
    } else {
        ConcurrencyVerdict::Undecided
    }
}

/// One round in five may be disturbed.
fn most(ratios: &[f64], is_so: impl Fn(f64) -> bool) -> bool {
    let count = ratios.iter().filter(|ratio| is_so(**ratio)).count();
    !ratios.is_empty() && 5 * count >= 4 * ratios.len()
}

#[cfg(test)]
mod tests {
    use super::ConcurrencyVerdict::*;
    use super::*;

    const SCATTERED: [f64; 5] = [0.3, 7.0, 1.0, 0.6, 2.0];
    const GAIN: [f64; 5] = [3.0, 2.8, 3.1, 0.9, 2.9];

    fn waiters(lock: f64, device: f64, overlap: f64) -> Option<Waiters> {
        Some(Waiters { lock, device, overlap })
    }

    #[test]
    fn where_threads_wait_decides_whatever_the_rates() {
        for ratios in [SCATTERED, GAIN, [1.0; 5]] {
            assert_eq!(verdict(&ratios, waiters(6.8, 1.0, 0.1)), OneAtATime);
            assert_eq!(
                verdict(&ratios, waiters(3.5, 0.4, 0.0)),
                OneAtATime,
                "others had no processor"
            );
            assert_eq!(verdict(&ratios, waiters(0.0, 7.5, 1.0)), RunsConcurrently);
            assert_eq!(verdict(&ratios, waiters(0.3, 0.9, 0.2)), RunsConcurrently);
            assert_eq!(verdict(&ratios, waiters(3.5, 3.5, 0.8)), Undecided, "some of both");
            assert_eq!(verdict(&ratios, waiters(2.0, 0.5, 0.0)), Undecided);
        }
    }

    #[test]
    fn threads_that_wait_for_nothing_must_gain() {
        assert_eq!(verdict(&GAIN, waiters(0.0, 0.2, 0.0)), RunsConcurrently);
        assert_eq!(verdict(&GAIN, waiters(0.6, 0.0, 0.0)), Undecided, "they do wait");
        assert_eq!(verdict(&SCATTERED, waiters(0.0, 0.2, 0.0)), Undecided);
        assert_eq!(
            verdict(&[1.0; 5], waiters(0.0, 0.0, 0.0)),
            Undecided,
            "it may be the processors"
        );
    }

    #[test]
    fn rates_decide_where_waits_cannot_be_seen() {
        assert_eq!(verdict(&GAIN, None), RunsConcurrently);
        assert_eq!(verdict(&[1.0, 1.1, 0.7, 1.0, 5.0], None), OneAtATime);
        assert_eq!(verdict(&SCATTERED, None), Undecided);
        assert_eq!(verdict(&[], None), Undecided);
    }
}
