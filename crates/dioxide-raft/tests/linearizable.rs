//! The checker of histories, on histories whose verdict is known.

mod history;

use history::{Effect, History, Operation, Value, check};

use Effect::{Got, Kept, Put, Swapped};

fn known(called: u64, returned: u64, effect: Effect) -> Operation {
    Operation { called, returned: Some(returned), effect }
}

fn unknown(called: u64, effect: Effect) -> Operation {
    Operation { called, returned: None, effect }
}

fn holds(operations: &[Operation]) -> bool {
    check(operations).is_ok()
}

#[test]
fn operations_after_each_other_have_one_order() {
    let history = [
        known(0, 1, Got(None)),
        known(2, 3, Put(1)),
        known(4, 5, Kept(None, Some(1))),
        known(6, 7, Swapped(Some(1), 2)),
        known(8, 9, Got(Some(2))),
    ];
    assert!(holds(&history));
    for at in 1..4 {
        let mut swapped = history;
        (swapped[at].effect, swapped[at + 1].effect) = (history[at + 1].effect, history[at].effect);
        assert!(!holds(&swapped), "{swapped:?}");
    }
    assert!(holds(&[]));
}

#[test]
fn a_lost_write_is_found() {
    let history = [known(0, 1, Put(1)), known(2, 3, Put(2)), known(4, 5, Got(Some(1)))];
    let error = check(&history).unwrap_err().to_string();
    assert!(error.contains("next    Operation") && error.contains("Got(Some(1))"), "{error}");
    assert!(!holds(&[known(0, 1, Put(1)), known(2, 3, Got(None))]));
    // The write returned later, so it may come later.
    assert!(holds(&[known(0, 9, Put(1)), known(2, 3, Got(None))]));
}

#[test]
fn a_stale_read_is_found() {
    // Two reads during a write: first the new value, then the old one.
    let reads = |first, second| {
        [
            known(0, 1, Put(1)),
            known(2, 9, Put(2)),
            known(3, 4, Got(first)),
            known(5, 6, Got(second)),
        ]
    };
    assert!(holds(&reads(Some(1), Some(2))) && holds(&reads(Some(1), Some(1))));
    assert!(holds(&reads(Some(2), Some(2))) && !holds(&reads(Some(2), Some(1))));
}

#[test]
fn two_swaps_of_one_value_are_found() {
    let swaps =
        |second| [known(0, 1, Put(1)), known(2, 9, Swapped(Some(1), 2)), known(3, 8, second)];
    assert!(!holds(&swaps(Swapped(Some(1), 3))));
    assert!(holds(&swaps(Swapped(Some(2), 3))) && holds(&swaps(Kept(Some(1), Some(2)))));
    assert!(!holds(&swaps(Kept(Some(1), Some(1)))));
}

#[test]
fn a_value_from_nowhere_is_found() {
    assert!(!holds(&[known(0, 1, Put(1)), known(0, 5, Got(Some(7)))]));
    // A read before the write began.
    assert!(!holds(&[known(0, 1, Got(Some(1))), known(2, 3, Put(1))]));
}

#[test]
fn an_unknown_operation_may_happen_once_and_late() {
    let put = unknown(0, Put(1));
    assert!(holds(&[put, known(1, 2, Got(None)), known(3, 4, Got(None))]));
    assert!(holds(&[put, known(1, 2, Got(None)), known(3, 4, Got(Some(1)))]));
    assert!(!holds(&[put, known(1, 2, Got(Some(1))), known(3, 4, Got(None))]));
    let twice = [known(1, 2, Got(Some(1))), known(3, 4, Put(2)), known(5, 6, Got(Some(1)))];
    assert!(!holds(&[&[put][..], &twice].concat()));
    assert!(holds(&[&[put][..], &twice[1..]].concat()));
    // It did not happen before its call.
    assert!(!holds(&[known(0, 1, Got(Some(1))), unknown(2, Put(1))]));
    let swap = unknown(2, Swapped(Some(1), 2));
    assert!(holds(&[known(0, 1, Put(1)), swap, known(3, 4, Got(Some(2)))]));
    assert!(!holds(&[known(0, 1, Put(3)), swap, known(3, 4, Got(Some(2)))]));
}

/// Tries all orders, one after the other.
fn holds_by_force(left: &[Operation], value: Value) -> bool {
    if left.iter().all(|operation| operation.returned.is_none()) {
        return true;
    }
    (0..left.len()).any(|at| {
        let next = left[at];
        let returned = left.iter().filter_map(|operation| operation.returned);
        if returned.clone().any(|returned| returned < next.called) {
            return false;
        }
        let rest: Vec<_> = [&left[..at], &left[at + 1..]].concat();
        let after = match next.effect {
            Put(put) => Some(Some(put)),
            Got(got) => (got == value).then_some(value),
            Swapped(from, to) => (from == value).then_some(Some(to)),
            Kept(from, found) => (found == value && from != found).then_some(value),
        };
        after.is_some_and(|after| holds_by_force(&rest, after))
    })
}

#[test]
fn random_histories_have_the_verdict_of_all_orders() {
    let mut rng = fastrand::Rng::with_seed(1);
    let mut verdicts = [0, 0];
    for _ in 0..10_000 {
        let count = rng.u64(1..7);
        let mut value = || rng.u64(0..=count).checked_sub(1);
        let values: Vec<_> = (0..count).map(|_| (value(), value())).collect();
        let operations: Vec<_> = (0..count)
            .map(|number| {
                let (one, other) = values[number as usize];
                let effect = match rng.u8(0..5) {
                    0 | 1 => Put(number),
                    2 => Got(one),
                    3 => Swapped(one, number),
                    _ => Kept(one, other),
                };
                let called = rng.u64(0..12);
                let returned = called + 1 + rng.u64(0..6);
                // All moments are different.
                let (called, returned) = (called * 100 + number, returned * 100 + 50 + number);
                Operation { called, returned: rng.u8(0..4).ne(&0).then_some(returned), effect }
            })
            .collect();
        let expected = holds_by_force(&operations, None);
        assert_eq!(holds(&operations), expected, "{operations:?}");
        verdicts[usize::from(expected)] += 1;
    }
    assert!(verdicts.iter().all(|&count| count > 1_000), "{verdicts:?}");
}

/// Threads on a register that is linearizable, and one whose reads may be old.
#[test]
fn a_long_history_is_checked() {
    for stale in [false, true] {
        let history = History::default();
        let register = std::sync::Mutex::new((None, None));
        std::thread::scope(|scope| {
            for thread in 0..6 {
                let (history, register) = (&history, &register);
                scope.spawn(move || {
                    let mut rng = fastrand::Rng::with_seed(thread);
                    for number in 0..500 {
                        let called = history.now();
                        let mut register = register.lock().unwrap();
                        let effect = match rng.u8(0..2) {
                            0 => {
                                let value = thread * 1_000 + number;
                                *register = (Some(value), register.0);
                                Put(value)
                            }
                            _ if stale && thread == 3 && number > 400 => Got(register.1),
                            _ => Got(register.0),
                        };
                        drop(register);
                        history.add("key", called, effect);
                    }
                });
            }
        });
        assert_eq!(holds(&history.keys()["key"]), !stale);
    }
}
