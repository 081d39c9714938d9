//! The page of a comparison: its sentences, the table of each kind of work, and both runs.

use super::page;
use crate::compare::Comparison;
use crate::compare::text::{groups, origin, sentences, table};
use crate::meter::machine::when;
use maud::html;

pub fn page(comparison: &Comparison<'_>) -> String {
    let runs = [("Old", comparison.old), ("New", comparison.new)];
    let [old, new] = runs.map(|(_, run)| when(&run.machine.date));
    let body = html! {
        section {
            h2 { "In words" }
            (page::list(&sentences(comparison)))
            dl.facts {
                @for (name, run) in runs {
                    div { dt { (name) } dd { (origin(&run.machine)) } }
                }
            }
        }
        @for rows in groups(comparison) {
            section { h2 { (rows[0].old.key.work) } (page::table(&table(rows))) }
        }
    };
    page::page("compare", &format!("{old} and {new}"), &comparison.new.machine, body)
}
