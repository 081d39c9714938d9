//! Changes of rates and latencies by call and file.

use dioxide_diagnose::activity::{CallStats, Latency};
use dioxide_diagnose::evidence::Evidence;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// The calls of one name on one file in both observations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CallChange {
    /// `pwrite64`, ...
    pub name: String,
    /// The path of the file. None if it is not known.
    pub file: Option<String>,
    /// None if there were none.
    pub before: Option<CallFigures>,
    /// None if there were none.
    pub after: Option<CallFigures>,
}

/// The figures of the calls in one observation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CallFigures {
    /// Calls per second.
    pub per_second: f64,
    /// Bytes per second.
    pub bytes_per_second: f64,
    /// Half of the calls took at most this long.
    pub p50: Latency,
    /// 99 of 100 calls took at most this long.
    pub p99: Latency,
}

/// The most frequent calls first. Empty if one of the two was not traced.
pub fn changes(before: &Evidence, after: &Evidence) -> Vec<CallChange> {
    let Some((mut old, mut new)) = figures(before).zip(figures(after)) else { return Vec::new() };
    let mut keys: Vec<_> = old.keys().chain(new.keys()).cloned().collect();
    keys.sort();
    keys.dedup();
    let change = |key: (String, Option<String>)| CallChange {
        before: old.remove(&key),
        after: new.remove(&key),
        name: key.0,
        file: key.1,
    };
    let mut changes: Vec<_> = keys.into_iter().map(change).collect();
    let rate = |figures: &Option<CallFigures>| figures.map_or(0.0, |figures| figures.per_second);
    let most = |one: &CallChange| rate(&one.before).max(rate(&one.after));
    changes.sort_by(|one, other| most(other).total_cmp(&most(one)));
    changes
}

type ByCall = BTreeMap<(String, Option<String>), CallFigures>;

/// Files that had one path in turn, like those of a rotated log, have one entry. It has the sums of
/// their rates, and the latencies of the most frequent.
fn figures(evidence: &Evidence) -> Option<ByCall> {
    let per_second = |count: u64| count as f64 * 1e9 / evidence.watched_ns.max(1) as f64;
    let mut calls: Vec<&CallStats> = evidence.activity.calls.as_ref()?.iter().collect();
    calls.sort_by_key(|call| Reverse(call.count));
    let mut figures = ByCall::new();
    for call in calls {
        let file = call.file.and_then(|file| evidence.files.get(file));
        let key = (call.name.clone(), file.map(|file| file.path.clone()));
        let of_all = figures.entry(key).or_insert(CallFigures {
            per_second: 0.0,
            bytes_per_second: 0.0,
            p50: call.p50,
            p99: call.p99,
        });
        of_all.per_second += per_second(call.count);
        of_all.bytes_per_second += per_second(call.bytes);
    }
    Some(figures)
}
