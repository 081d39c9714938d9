//! Striped volumes: several files, or several devices, as one.

#[path = "../common/mod.rs"]
mod common;
mod contents;
mod crash;
mod devices;
mod refusals;
mod volume;

use dioxide_testkit::child::Scenario;
use dioxide_testkit::trials::Trial;
use std::process::ExitCode;

fn trials() -> Vec<Trial> {
    [contents::trials(), refusals::trials(), devices::trials(), crash::trials()]
        .into_iter()
        .flatten()
        .collect()
}

fn main() -> ExitCode {
    let scenarios: &[Scenario] = &[
        ("append_for_ever", contents::append_for_ever),
        ("append_striped_durably", crash::append_striped_durably),
        ("try_to_open_striped", volume::try_to_open_striped),
    ];
    dioxide_testkit::run(scenarios, trials)
}
