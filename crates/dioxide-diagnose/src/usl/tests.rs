use super::*;
use fastrand::Rng;
use proptest::collection::vec;
use proptest::prelude::*;

const THREADS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];

fn law(lambda: f64, sigma: f64, kappa: f64) -> Law {
    Law { lambda, sigma, kappa }
}

/// A curve by a law, its rounds off by up to `noise`.
fn curve(law: Law, threads: &[usize], rounds: usize, noise: f64, seed: u64) -> Vec<Step> {
    let mut rng = Rng::with_seed(seed);
    let mut round = |n: usize| law.at(n as f64) * (1.0 + noise * (2.0 * rng.f64() - 1.0));
    let step = |n: &usize| Step { numjobs: *n, iops: (0..rounds).map(|_| round(*n)).collect() };
    threads.iter().map(step).collect()
}

fn holds(estimate: Estimate, value: f64) -> bool {
    // Rounding errors of a curve without noise.
    let slack = 1e-9 * value.abs().max(1e-9);
    (estimate.low - slack..=estimate.high + slack).contains(&value)
}

fn near(one: f64, other: f64) -> bool {
    (one - other).abs() <= 1e-6 * other.abs().max(1e-6)
}

#[test]
fn fewer_than_six_different_steps_are_refused() {
    let five = curve(law(1000.0, 0.1, 0.01), &THREADS[..5], 3, 0.0, 1);
    assert_eq!(fit(&five), Err(Refusal::TooFew { distinct: 5 }));
    let same_twice = [five.clone(), five].concat();
    assert_eq!(fit(&same_twice), Err(Refusal::TooFew { distinct: 5 }));
    assert!(fit(&curve(law(1000.0, 0.1, 0.01), &THREADS[..6], 3, 0.0, 1)).is_ok());
    assert_eq!(fit(&[]), Err(Refusal::TooFew { distinct: 0 }));
}

#[test]
fn useless_rates_are_refused() {
    let good = curve(law(1000.0, 0.1, 0.01), &THREADS, 2, 0.0, 1);
    for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let mut steps = good.clone();
        steps[3].iops[1] = bad;
        assert_eq!(fit(&steps), Err(Refusal::Useless), "{bad}");
    }
    let mut without_rounds = good.clone();
    without_rounds[0].iops.clear();
    assert_eq!(fit(&without_rounds), Err(Refusal::Useless));
    let mut without_threads = good;
    without_threads[0].numjobs = 0;
    assert_eq!(fit(&without_threads), Err(Refusal::Useless));
}

#[test]
fn a_line_is_a_line() {
    let fit = fit(&curve(law(500.0, 0.0, 0.0), &THREADS, 1, 0.0, 1)).unwrap();
    assert!(near(fit.lambda.value, 500.0), "{fit:?}");
    assert!(fit.sigma.value < 1e-9 && fit.kappa.value < 1e-9, "{fit:?}");
    assert!(near(fit.at(128.0), 64_000.0));
    assert!(near(fit.r_squared, 1.0) && !fit.is_poor);
}

#[test]
fn a_flat_curve_is_all_contention() {
    let fit = fit(&curve(law(500.0, 1.0, 0.0), &THREADS, 3, 0.05, 1)).unwrap();
    assert!((fit.sigma.value - 1.0).abs() < 0.1, "{fit:?}");
    assert!(!fit.is_poor, "scatter is no misfit: {fit:?}");
    assert!((fit.at(128.0) / 500.0 - 1.0).abs() < 0.1);
}

#[test]
fn a_curve_that_falls_has_its_peak() {
    let fit = fit(&curve(law(7292.0, 0.05, 0.002), &THREADS, 5, 0.02, 7)).unwrap();
    let peak = fit.peak.unwrap();
    assert!((peak - (0.95_f64 / 0.002).sqrt()).abs() < 2.0, "{peak}");
    let at = |numjobs| fit.predictions.iter().find(|by| by.numjobs == numjobs).unwrap();
    assert!(at(128).iops.value < at(64).iops.value && at(64).iops.value < at(16).iops.value);
    assert!(at(128).is_beyond && !at(64).is_beyond);
    let sentences = fit.sentences.join(" ");
    assert!(
        sentences.contains("highest with about 2")
            && sentences.contains("This is an extrapolation beyond 64"),
        "{sentences}"
    );
}

#[test]
fn what_falls_from_the_first_has_its_peak_there() {
    let fit = fit(&curve(law(7292.0, 1.5, 0.01), &THREADS, 3, 0.0, 7)).unwrap();
    assert_eq!(fit.peak, Some(1.0));
    assert!(
        fit.sentences.iter().any(|sentence| sentence == "Throughput is highest with one thread.")
    );
}

#[test]
fn a_curve_of_another_shape_is_poor() {
    let step = |(n, iops): (usize, f64)| Step { numjobs: n, iops: vec![iops, iops * 1.01] };
    let zigzag =
        [(1, 100.0), (2, 900.0), (4, 120.0), (8, 950.0), (16, 90.0), (32, 800.0)].map(step);
    let fit = fit(&zigzag).unwrap();
    assert!(fit.is_poor, "{fit:?}");
    let [only] = &fit.sentences[..] else { panic!("its figures mean nothing: {fit:?}") };
    assert!(only.contains("badly") && only.contains("left out"), "{only}");
}

/// Superlinear: no law with sigma and kappa of zero or more fits.
#[test]
fn more_than_a_line_is_a_line_at_most() {
    let step = |n: usize| Step { numjobs: n, iops: vec![(n * n) as f64] };
    let fit = fit(&THREADS.map(step)).unwrap();
    assert_eq!((fit.sigma.value, fit.kappa.value), (0.0, 0.0));
    assert!(fit.is_poor, "{fit:?}");
}

#[test]
fn the_same_curve_has_the_same_fit() {
    let mut steps = curve(law(1000.0, 0.1, 0.001), &THREADS, 3, 0.1, 5);
    let once = fit(&steps).unwrap();
    steps.reverse();
    let again = fit(&steps).unwrap();
    assert_eq!(once, again);
}

/// How often the intervals contain the true values: at least nine times of ten, for 95 %.
#[test]
fn ranges_hold_what_curves_are_made_of() {
    let laws =
        [(1000.0, 0.0, 0.0), (7292.0, 0.05, 0.002), (500.0, 0.3, 0.0), (40_000.0, 0.8, 0.0005)];
    let (mut held, mut all) = ([0; 4], 0);
    for (lambda, sigma, kappa) in laws {
        let law = law(lambda, sigma, kappa);
        for seed in 0..25 {
            for rounds in [1, 5] {
                let fit = fit(&curve(law, &THREADS, rounds, 0.1, seed)).unwrap();
                all += 1;
                let at_64 = fit.predictions[1].iops;
                let estimates = [
                    (fit.lambda, lambda),
                    (fit.sigma, sigma),
                    (fit.kappa, kappa),
                    (at_64, law.at(64.0)),
                ];
                for (held, (estimate, value)) in held.iter_mut().zip(estimates) {
                    *held += usize::from(holds(estimate, value));
                }
            }
        }
    }
    assert!(held.iter().all(|held| held * 10 >= all * 9), "{held:?} of {all}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_curve_without_noise_is_found_again(
        lambda in 1.0..1e7_f64,
        sigma in 0.0..1.2_f64,
        kappa in prop_oneof![Just(0.0), 1e-6..0.05_f64],
    ) {
        let fit = fit(&curve(law(lambda, sigma, kappa), &THREADS, 1, 0.0, 1)).unwrap();
        prop_assert!(near(fit.lambda.value, lambda), "{:?}", fit.lambda);
        prop_assert!((fit.sigma.value - sigma).abs() < 1e-6, "{:?}", fit.sigma);
        prop_assert!((fit.kappa.value - kappa).abs() < 1e-6, "{:?}", fit.kappa);
        prop_assert!(!fit.is_poor);
    }

    #[test]
    fn any_curve_has_a_fit_that_makes_sense(
        steps in vec((1..2000_usize, vec(1e-3..1e9_f64, 1..4)), 6..20),
    ) {
        let step = |(numjobs, iops)| Step { numjobs, iops };
        let steps: Vec<Step> = steps.into_iter().map(step).collect();
        if let Ok(fit) = fit(&steps) {
            for estimate in [fit.lambda, fit.sigma, fit.kappa] {
                prop_assert!(estimate.low >= 0.0 && estimate.low <= estimate.value);
                prop_assert!(estimate.value <= estimate.high);
                prop_assert!(estimate.high.is_finite(), "{fit:?}");
            }
            prop_assert!(fit.lambda.value > 0.0 && fit.r_squared <= 1.0);
            prop_assert!(fit.predictions.len() == 3);
        }
    }
}
