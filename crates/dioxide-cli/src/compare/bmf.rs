//! A run in Bencher Metric Format, for services that keep the history of many runs.

use crate::bench::ratio::median;
use crate::saved::{SavedDocument, SavedRow};
use serde::Serialize;
use std::collections::BTreeMap;

/// By the name of a row, then by measure, as Bencher names it.
type Metrics = BTreeMap<String, BTreeMap<&'static str, Metric>>;

/// The median over the rounds, and their range.
#[derive(Debug, PartialEq, Serialize)]
pub struct Metric {
    value: f64,
    lower_value: f64,
    upper_value: f64,
}

impl Metric {
    /// None without rounds.
    fn of(rounds: &[f64]) -> Option<Self> {
        let lower_value = rounds.iter().copied().reduce(f64::min)?;
        let upper_value = rounds.iter().copied().reduce(f64::max)?;
        Some(Self { value: median(rounds.to_vec())?, lower_value, upper_value })
    }
}

/// Throughput in operations per second, and the 99th percentile of latency in nanoseconds.
pub fn document(run: &SavedDocument) -> Metrics {
    let measures = |row: &SavedRow| {
        let throughput = Metric::of(&row.rounds_iops).map(|metric| ("throughput", metric));
        let latency = Metric::of(&row.rounds_p99_ns).map(|metric| ("latency", metric));
        throughput.into_iter().chain(latency).collect()
    };
    run.results.iter().map(|row| (row.key.to_string(), measures(row))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::saved::examples;
    use serde_json::json;

    #[test]
    fn each_row_has_its_measures() {
        let rows = vec![
            examples::row("kernel", 64, &[100.0, 400.0, 200.0], None),
            examples::row("dioxide", 64, &[], None),
        ];
        let metrics = serde_json::to_value(document(&examples::document(rows))).unwrap();
        let name = |path| {
            format!("append bs=4 KiB on-sync, growth unwritten: {path} numjobs=64 iodepth=1")
        };
        assert_eq!(metrics.as_object().unwrap().len(), 2);
        assert_eq!(
            metrics[name("kernel")],
            json!({
                "throughput": { "value": 200.0, "lower_value": 100.0, "upper_value": 400.0 },
                "latency": { "value": 5e6, "lower_value": 2.5e6, "upper_value": 1e7 },
            })
        );
        assert_eq!(metrics[name("dioxide")], json!({}), "no rounds, no measures");
    }
}
