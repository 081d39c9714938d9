//! The meaning of a fit, in words.

use super::{Estimate, Fit};
use crate::words::{percent, rate};

/// A contention below this is indistinguishable from none.
const SIGMA_NONE: f64 = 0.005;

pub fn of(fit: &Fit) -> Vec<String> {
    if fit.is_poor {
        // Its figures mean nothing.
        return vec![format!(
            "The Universal Scalability Law describes this curve badly: the steps are off by {} on \
             average, and it explains {} of the variation. Its figures are left out.",
            percent(fit.error),
            percent(fit.r_squared.max(0.0))
        )];
    }
    vec![
        format!("One thread alone: {}.", range(fit.lambda, rate)),
        contention(fit),
        coherency(fit),
        peak(fit),
        predictions(fit),
    ]
}

fn contention(fit: &Fit) -> String {
    let sigma = range(fit.sigma, |sigma| format!("{sigma:.3}"));
    let meaning = match fit.sigma.value {
        none if none < SIGMA_NONE => "no measurable serial part".to_owned(),
        all if all >= 1.0 => "all of each operation is serial".to_owned(),
        part => format!(
            "{} of each operation is serial, so throughput is at most {:.1} times that of one \
             thread",
            percent(part),
            1.0 / part
        ),
    };
    format!("Contention (sigma) {sigma}: {meaning}.")
}

fn coherency(fit: &Fit) -> String {
    let kappa = range(fit.kappa, |kappa| format!("{:.5}", kappa + 0.0));
    let meaning = if fit.kappa.value > 0.0 && fit.kappa.low <= 0.0 {
        "indistinguishable from 0, so a later fall of throughput is unknown"
    } else if fit.kappa.value > 0.0 {
        "each further thread slows the others, so throughput falls eventually"
    } else {
        "more threads do not make throughput fall"
    };
    format!("Coherency (kappa) {kappa}: {meaning}.")
}

fn peak(fit: &Fit) -> String {
    match fit.peak {
        Some(peak) if peak < 1.5 => "Throughput is highest with one thread.".into(),
        Some(peak) if peak > fit.numjobs_max as f64 => format!(
            "Throughput is highest with about {peak:.0} threads by the law, which is more than \
             were measured."
        ),
        Some(peak) if fit.kappa.low <= 0.0 => {
            format!("Throughput is perhaps highest with about {peak:.0} threads, or has no peak.")
        }
        Some(peak) => format!("Throughput is highest with about {peak:.0} threads."),
        None => "Throughput has no peak by the law.".into(),
    }
}

fn predictions(fit: &Fit) -> String {
    let of = |numjobs: usize, iops: Estimate| format!("{} with {numjobs}", range(iops, rate));
    let predicted: Vec<String> =
        fit.predictions.iter().map(|prediction| of(prediction.numjobs, prediction.iops)).collect();
    format!(
        "By the law: {} threads. This is an extrapolation beyond {} threads; measure to verify it.",
        predicted.join(", "),
        fit.numjobs_max
    )
}

fn range(estimate: Estimate, print: impl Fn(f64) -> String) -> String {
    format!("{} ({}..{})", print(estimate.value), print(estimate.low), print(estimate.high))
}
