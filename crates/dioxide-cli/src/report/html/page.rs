//! The common part of all pages. maud escapes all text.

use super::plot;
use crate::meter::machine::{Machine, when};
use crate::report::grid::Grid;
use maud::{DOCTYPE, Markup, PreEscaped, html};

const STYLE: &str = include_str!("style.css");

/// A whole page, by the name of the command and its subject.
pub fn page(command: &str, about: &str, machine: &Machine, body: Markup) -> String {
    let when = when(&machine.date) + " UTC";
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "dioxide " (command) ": " (about) }
                style { (PreEscaped(plot::STYLE)) (PreEscaped(STYLE)) }
            }
            body {
                main {
                    header {
                        p.kind { "dioxide " (command) }
                        h1 { (about) }
                        p.when { time datetime=(machine.date) { (when) } }
                    }
                    (body)
                    (conditions(machine))
                }
            }
        }
    };
    page.into_string()
}

/// The conditions of a measurement.
fn conditions(machine: &Machine) -> Markup {
    let facts = [
        ("Kernel", Some(machine.kernel_release.clone())),
        ("CPUs", Some(machine.cpus.to_string())),
        ("CPU", machine.cpu_model.clone()),
        ("Target", Some(machine.target.clone())),
        ("Device", machine.device.clone()),
        ("Write cache", machine.device_write_cache.clone()),
        ("dioxide", Some(format!("{}, {} build", machine.dioxide_version, machine.build))),
    ];
    html! {
        section {
            h2 { "Measured on" }
            dl.facts {
                @for (name, value) in &facts {
                    @if let Some(value) = value { div { dt { (name) } dd { (value) } } }
                }
            }
            p.command { code { (machine.command_line) } }
        }
    }
}

/// A table that scrolls in its own box if it is too wide. The column that identifies a row comes
/// first, and stays in view.
pub fn table(grid: &Grid) -> Markup {
    let first = grid.numbers.iter().position(|is_number| !is_number).unwrap_or_default();
    let others: Vec<usize> = (0..grid.header.len()).filter(|column| *column != first).collect();
    let class = |column: usize| (!grid.numbers[column]).then_some("words");
    html! {
        div.scroll role="region" tabindex="0" aria-label="table" {
            table {
                thead {
                    tr {
                        th scope="col" { (grid.header[first]) }
                        @for column in &others {
                            th scope="col" class=[class(*column)] { (grid.header[*column]) }
                        }
                    }
                }
                tbody {
                    @for cells in &grid.rows {
                        tr {
                            th scope="row" { (cells[first]) }
                            @for column in &others {
                                td class=[class(*column)] { (cells[*column]) }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Names with values and remarks. On narrow pages one below the other.
pub fn facts(rows: &[[String; 3]]) -> Markup {
    html! {
        dl.list {
            @for [name, value, remark] in rows {
                div { dt { (name) } dd { (value) small { (remark) } } }
            }
        }
    }
}

/// A list, unless it is empty.
pub fn list(lines: &[String]) -> Markup {
    html! { @if !lines.is_empty() { ul { @for line in lines { li { (line) } } } } }
}

/// A heading like `Appends: bs=4 KiB on-sync, ...`, with the rest as a remark.
pub fn heading(title: &str) -> Markup {
    let (subject, conditions) = title.split_once(": ").unwrap_or((title, ""));
    parted_heading(subject, conditions)
}

/// The same of a subject that may contain a colon.
pub fn parted_heading(subject: &str, conditions: &str) -> Markup {
    html! { h2 { (subject) } p.conditions { (conditions) } }
}
