//! A comparison as JSON.

use super::Comparison;
use super::change::Change;
use super::judge::{Basis, Compared, Verdict, Witness};
use super::text;
use crate::args::By;
use crate::meter::machine::Machine;
use crate::saved::{Key, SavedRow};
use serde::Serialize;

/// The kind of the document.
pub const KIND: &str = "compare";

/// The whole document.
#[derive(Serialize)]
pub struct CompareDocument<'a> {
    /// Incremented when a key changes its meaning or is removed.
    schema_version: u32,
    /// `compare`.
    kind: &'static str,
    /// The machine and time of each measurement.
    old: &'a Machine,
    new: &'a Machine,
    /// The figure by which rows are judged: `ratio` to the kernel path where there is one, or
    /// `ops`.
    by: &'static str,
    /// A loss of more percent than this is a regression. Null without a limit.
    limit_percent: Option<f64>,
    /// Further differences of the runs, if allowed.
    unlike: &'a [String],
    /// Differences that default settings may have.
    unlike_harmless: &'a [String],
    comparison: Vec<ComparedRow<'a>>,
    only_in_old: Vec<&'a Key>,
    only_in_new: Vec<&'a Key>,
    /// The sentences of the report.
    sentences: Vec<String>,
}

/// A row that both runs have.
#[derive(Serialize)]
struct ComparedRow<'a> {
    #[serde(flatten)]
    key: &'a Key,
    verdict: Verdict,
    /// The path without dioxide that changed alike, for the verdict `machine`.
    witness: Option<Witness<'a>>,
    /// The change by which it is judged.
    basis: Basis,
    /// Of operations per second. Null after a round with a rate of zero.
    iops: Option<Change>,
    /// Of the ratio to the kernel path in the same round.
    ratio_to_kernel: Option<Change>,
    /// `p` of the judged change after Benjamini and Hochberg. Null where none is tested.
    p_adjusted: Option<f64>,
    /// By round, in nanoseconds.
    rounds_p99_ns: [&'a [f64]; 2],
    /// By round: CPU time of the process per operation, in microseconds.
    rounds_cpu_us_per_op: [&'a [f64]; 2],
}

pub fn document<'a>(comparison: &'a Comparison<'a>) -> CompareDocument<'a> {
    let keys = |rows: &[&'a SavedRow]| rows.iter().map(|row| &row.key).collect();
    CompareDocument {
        schema_version: 1,
        kind: KIND,
        old: &comparison.old.machine,
        new: &comparison.new.machine,
        by: match comparison.rules.by {
            By::Ratio => "ratio",
            By::Ops => "ops",
        },
        limit_percent: comparison.rules.limit_percent,
        unlike: &comparison.unlike.serious,
        unlike_harmless: &comparison.unlike.harmless,
        comparison: comparison.rows.iter().map(outcome).collect(),
        only_in_old: keys(&comparison.only_in_old),
        only_in_new: keys(&comparison.only_in_new),
        sentences: text::sentences(comparison),
    }
}

fn outcome<'a>(row: &Compared<'a>) -> ComparedRow<'a> {
    let (old, new) = (row.old, row.new);
    ComparedRow {
        key: &old.key,
        verdict: row.verdict,
        witness: row.witness,
        basis: row.basis,
        iops: row.iops,
        ratio_to_kernel: row.ratio_to_kernel,
        p_adjusted: row.p_adjusted,
        rounds_p99_ns: [&old.rounds_p99_ns, &new.rounds_p99_ns],
        rounds_cpu_us_per_op: [&old.rounds_cpu_us_per_op, &new.rounds_cpu_us_per_op],
    }
}
