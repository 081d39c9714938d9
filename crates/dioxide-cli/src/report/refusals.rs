//! The lines below a table: how often an operation of dioxide did not share a request, and why.

use super::sentence::crew;
use crate::bench::figures::Row;
use dioxide::Stats;

/// A reason with its count.
type Reason = (&'static str, fn(&Stats) -> u64);

const REASONS: [Reason; 5] = [
    ("gap", |stats| stats.refused_gap),
    ("bytes", |stats| stats.refused_bytes),
    ("segments", |stats| stats.refused_segments),
    ("member", |stats| stats.refused_member),
    ("order", |stats| stats.refused_order),
];

/// A line for each row with such operations.
pub fn of(rows: &[Row]) -> String {
    rows.iter().filter_map(line).collect()
}

fn line(row: &Row) -> Option<String> {
    let reasons: Vec<String> = REASONS
        .iter()
        .filter_map(|(name, of)| {
            let per_op =
                row.median_per_op(|run| run.stats.as_ref().map(|stats| of(stats) as f64))?;
            (per_op > 0.0).then(|| format!("{name} {per_op:.3}"))
        })
        .collect();
    let (path, crew) = (row.route.name(), crew(row));
    (!reasons.is_empty())
        .then(|| format!("not merged/op, {path} with {crew}: {}\n", reasons.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::figures::examples::{append_point, row};
    use crate::bench::work::Route;

    #[test]
    fn only_what_was_refused_is_shown() {
        let mut rows = [
            row(append_point(64), Route::Kernel, &[100]),
            row(append_point(64), Route::Dioxide, &[100, 100, 100]),
            row(append_point(64), Route::Queue { iodepth: 64 }, &[100]),
        ];
        assert_eq!(of(&rows), "");
        for (run, gap) in rows[1].runs.iter_mut().zip([50, 200, 100]) {
            let stats = run.stats.get_or_insert_default();
            (stats.refused_gap, stats.refused_member) = (gap, 5);
        }
        rows[2].runs[0].stats.get_or_insert_default().refused_order = 1;
        assert_eq!(
            of(&rows),
            "not merged/op, dioxide with 64 threads: gap 1.000, member 0.050\n\
             not merged/op, dioxide-queue with one thread with 64 outstanding: order 0.010\n"
        );
    }
}
