//! The measured curve in words: both its ends, and the rates of other paths.

use super::case::Case;
use crate::evidence::{OtherWay, Step};
use crate::words::{factor, median, rate, threads};

/// Throughput that grows by less than this factor does not scale.
const GROWS_MIN: f64 = 1.2;

/// The effect of more threads on throughput.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    Grows,
    Flat,
    Falls,
}

/// Both ends of the curve: "7292/s with 1 thread, 3216/s with 64".
pub fn ends(case: &Case<'_>) -> Option<String> {
    let (fewest, most) = (fewest(case)?, most(case)?);
    let first = format!("{} with {}", rate(fewest.1), threads(fewest.0));
    Some(if fewest.0 == most.0 {
        first
    } else {
        format!("{first}, {} with {}", rate(most.1), most.0)
    })
}

pub fn shape(case: &Case<'_>) -> Option<Shape> {
    let (fewest, most) = (fewest(case)?, most(case)?);
    if fewest.0 == most.0 || fewest.1 <= 0.0 {
        return None;
    }
    Some(match most.1 / fewest.1 {
        ratio if ratio >= GROWS_MIN => Shape::Grows,
        ratio if ratio * GROWS_MIN > 1.0 => Shape::Flat,
        _ => Shape::Falls,
    })
}

/// The rate of another path, compared with the kernel's: " 163k/s here, 51x as much". None
/// where it was not measured.
pub fn way(case: &Case<'_>, path: &str) -> Option<String> {
    let way = case.evidence.others.iter().find(|other| other.path == path)?;
    let here = median(&way.iops)?;
    Some(match ratio(case, way) {
        Some(ratio) if ratio >= GROWS_MIN => {
            format!("{} here, {} as much", rate(here), factor(ratio))
        }
        Some(ratio) if ratio * GROWS_MIN > 1.0 => format!("{} here, which is no gain", rate(here)),
        Some(_) => format!("{} here, which is less", rate(here)),
        None => format!("{} here", rate(here)),
    })
}

/// A line of advice, with the path that measures its gain, if one does.
pub type Line = (Option<&'static str>, String);

/// Advice with the measured gains first, the larger before the smaller, and measured losses last.
pub fn ranked(case: &Case<'_>, lines: impl IntoIterator<Item = Line>) -> Vec<String> {
    let gain = |path| {
        ratio(case, case.evidence.others.iter().find(|other| Some(other.path.as_str()) == path)?)
    };
    let mut lines: Vec<(f64, String)> =
        lines.into_iter().map(|(path, line)| (gain(path).unwrap_or(1.0), line)).collect();
    lines.sort_by(|one, other| other.0.total_cmp(&one.0));
    lines.into_iter().map(|(_, line)| line).collect()
}

/// The ratio of a path's rate to the kernel's at the same number of threads.
fn ratio(case: &Case<'_>, way: &OtherWay) -> Option<f64> {
    let step = case.evidence.curve.iter().find(|step| step.numjobs == way.numjobs)?;
    let (here, kernel) = (median(&way.iops)?, median(&step.iops)?);
    (kernel > 0.0).then(|| here / kernel)
}

/// The median rate of each step, by number of threads.
fn measured(case: &Case<'_>) -> Vec<(usize, f64)> {
    let median_of = |step: &Step| Some((step.numjobs, median(&step.iops)?));
    let mut steps: Vec<_> = case.evidence.curve.iter().filter_map(median_of).collect();
    steps.sort_by_key(|(numjobs, _)| *numjobs);
    steps
}

fn fewest(case: &Case<'_>) -> Option<(usize, f64)> {
    measured(case).first().copied()
}

fn most(case: &Case<'_>) -> Option<(usize, f64)> {
    measured(case).last().copied()
}
