//! Striped volumes: several files, or several devices, as one.

#[path = "../common/mod.rs"]
mod common;
mod contents;
mod volume;

use dioxide_testkit::child::Scenario;
use dioxide_testkit::trials::Trial;
use std::process::ExitCode;

fn trials() -> Vec<Trial> {
    [contents::trials()].into_iter().flatten().collect()
}

fn main() -> ExitCode {
    let scenarios: &[Scenario] = &[("append_for_ever", contents::append_for_ever)];
    dioxide_testkit::run(scenarios, trials)
}
