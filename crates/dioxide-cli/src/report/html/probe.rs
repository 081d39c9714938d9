//! The page of a probe: its consequences, the facts with their sources, and the measurements.

use super::page;
use super::plot::Style;
use super::plot::bars::{Bar, Bars};
use crate::probe::document::{ProbeDocument, SyncMethod};
use crate::probe::facts::{Fact, Facts, Topic};
use crate::probe::table;
use crate::report::grid::Grid;
use maud::{Markup, html};

pub fn page(document: &ProbeDocument) -> String {
    let body = html! {
        @if let Some(fitness) = &document.fitness {
            @let [verdict, pattern, numbers] = table::of_fitness(fitness);
            section {
                h2 { (verdict) }
                p { (pattern) }
                p { (numbers) }
                (page::table(&table::of_checks(fitness)))
            }
        }
        section {
            h2 { "What it means" }
            (page::list(&document.meaning))
            (page::list(&document.unmeasured))
        }
        @for topic in table::TOPICS {
            @if document.facts.about(topic).next().is_some() { (facts(&document.facts, topic)) }
        }
        @if !document.devices.is_empty() {
            section {
                h2 { "Device stack, top to bottom" }
                (page::table(&table::of_devices(&document.devices)))
                (page::list(&table::descriptions(&document.devices)))
            }
        }
        @if let Some(flush) = &document.flush {
            (measured("A flush (fdatasync)", &table::of_flush(flush)))
        }
        @if !document.costs.is_empty() {
            (measured("One write of 4 KiB by one thread", &table::of_costs(&document.costs)))
        }
        @if !document.concurrency.is_empty() {
            @let grid = table::of_concurrency(&document.concurrency);
            (measured("Operations of 4 KiB by 1, 2 and 8 threads", &grid))
        }
        @if !document.sync_methods.is_empty() { (sync_methods(document)) }
    };
    page::page("probe", &document.machine.target, &document.machine, body)
}

fn facts(facts: &Facts, topic: Topic) -> Markup {
    let row = |fact: &Fact| [fact.name.clone(), table::value(fact), fact.how.clone()];
    let rows: Vec<_> = facts.about(topic).map(row).collect();
    html! { section { h2 { (table::title(topic)) } (page::facts(&rows)) } }
}

fn measured(title: &str, grid: &Grid) -> Markup {
    html! {
        section {
            h2 { (title) }
            p.conditions { "On this machine, at that time." }
            (page::table(grid))
        }
    }
}

/// Side by side, for one write and for two.
fn sync_methods(document: &ProbeDocument) -> Markup {
    let methods = &document.sync_methods;
    let bars = |writes| {
        let those =
            methods.iter().filter(|method| method.writes == writes && method.unavailable.is_none());
        those.map(bar).collect::<Vec<Bar>>()
    };
    html! {
        section {
            h2 { (table::title_of_sync_methods(document)) }
            div.plots {
                @for writes in [1, 2] {
                    @let bars = bars(writes);
                    @if !bars.is_empty() { (draw(writes, bars)) }
                }
            }
            (page::table(&table::of_sync_methods(methods)))
        }
    }
}

fn bar(method: &SyncMethod) -> Bar {
    let remark = if method.is_durable { "" } else { " (NOT durable)" };
    Bar {
        name: format!("{}{remark}", method.method),
        style: Style(if method.is_durable { 0 } else { 4 }),
        value: method.ops_per_s,
        text: format!("{} /s", table::rates(method)),
        range: Some((method.ops_per_s_min, method.ops_per_s_max)),
    }
}

fn draw(writes: u32, bars: Vec<Bar>) -> Markup {
    let words: Vec<String> = bars.iter().map(|bar| format!("{} {}", bar.name, bar.text)).collect();
    Bars {
        title: format!("{writes} x 8 KiB synced together, times per second"),
        description: words.join(", ") + ".",
        bars,
        full: None,
    }
    .draw()
}
