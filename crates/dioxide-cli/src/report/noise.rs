//! Reservations about noise: rounds that disagree, or a single one. Pure.

use crate::bench::ratio::median;
use dioxide_diagnose::words::{counted, percent, rate};

/// Rounds disagree if their range is more than this part of their median.
pub const SPREAD_MAX: f64 = 0.5;

/// The rates of the rounds of a row, with its name.
pub struct Rounds {
    pub name: String,
    pub iops: Vec<f64>,
}

/// A sentence, if the rates of these rows are uncertain.
pub fn of(rows: &[Rounds]) -> Option<String> {
    if rows.iter().any(|row| row.iops.len() == 1) {
        return Some(
            "Only one round: nothing shows how much the rates vary. Measure more (--rounds)."
                .into(),
        );
    }
    let spreads: Vec<(f64, &Rounds)> =
        rows.iter().filter_map(|row| Some((spread(&row.iops)?, row))).collect();
    let noisy = spreads.iter().filter(|(spread, _)| *spread > SPREAD_MAX).count();
    let (_, most) = spreads.iter().max_by(|(one, _), (other, _)| one.total_cmp(other))?;
    let (least, highest) = range(&most.iops);
    (noisy > 0).then(|| {
        format!(
            "The rounds disagree: in {} of {} their range is over {} of the median. Most: {}, {} \
             to {}.",
            noisy,
            counted(rows.len() as u64, "row"),
            percent(SPREAD_MAX),
            most.name,
            rate(least),
            rate(highest)
        )
    })
}

/// The range as a part of the median. None without a rate above zero.
fn spread(iops: &[f64]) -> Option<f64> {
    let (least, most) = range(iops);
    median(iops.to_vec()).filter(|middle| *middle > 0.0).map(|middle| (most - least) / middle)
}

fn range(iops: &[f64]) -> (f64, f64) {
    iops.iter().fold((f64::INFINITY, 0.0), |(least, most), rate| (rate.min(least), rate.max(most)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(all: &[&[f64]]) -> Vec<Rounds> {
        let row = |(nth, iops): (usize, &&[f64])| Rounds {
            name: format!("path {nth}"),
            iops: iops.to_vec(),
        };
        all.iter().enumerate().map(row).collect()
    }

    /// The defect D13: there was no warning of noise.
    #[test]
    fn rounds_that_disagree_are_said() {
        assert_eq!(of(&rows(&[&[100.0, 110.0, 120.0], &[75.0, 100.0, 125.0]])), None, "the bound");
        assert_eq!(
            of(&rows(&[&[100.0, 110.0], &[74.0, 100.0, 126.0], &[20_000.0, 1000.0, 9000.0]])),
            Some(
                "The rounds disagree: in 2 of 3 rows their range is over 50 % of the median. Most: \
                 path 2, 1000/s to 20.0k/s."
                    .into()
            )
        );
    }

    #[test]
    fn one_round_is_said() {
        let text = of(&rows(&[&[2117.0]])).unwrap();
        assert!(text.starts_with("Only one round: "), "{text}");
    }

    #[test]
    fn rounds_without_progress_have_no_spread() {
        assert_eq!(of(&rows(&[&[0.0, 0.0], &[]])), None);
    }
}
