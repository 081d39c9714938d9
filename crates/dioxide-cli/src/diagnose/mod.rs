//! `dioxide diagnose`: why direct I/O does not scale, for a path or a running process.

pub mod activity;
pub mod change;
pub mod document;
pub mod people;
mod plan;
mod program;
mod workload;

use crate::args;
use crate::bench::progress::Progress;
use crate::exit::{Stopped, say};
use crate::meter::machine::Machine;
use crate::output;
use crate::report::html;
use crate::terminal::Terminal;
use anyhow::Result;
use change::ObservationChange;
use dioxide_diagnose::watch;
use document::{DiagnoseDocument, Diagnosis};
use plan::DiagnosisPlan;
use std::path::Path;

/// Plans, measures and observes, judges, reports.
pub fn run(args: args::Diagnose) -> Result<()> {
    output::check(&args.output.wanted(), args.compare.as_deref().as_slice())?;
    let options = watch::Options { may_trace: !args.no_trace };
    let before = args.compare.as_deref().map(change::read).transpose()?;
    let mut document = match &args.path {
        Some(path) => of_place(path, &args.workload, options)?,
        None => of_program(&args.observed, args.seconds, options)?,
    };
    document.change = before.map(|before| ObservationChange::new(&before, &document));
    let texts = output::texts(&args.output, &document, || html::diagnose::page(&document))?;
    let terminal = Terminal::of_stdout(args.output.shape.wide);
    output::deliver(&texts, terminal, |page| people::print(&document, args.verbose, page))?;
    match document.stopped_pids() {
        Some(pids) => Err(Stopped(pids).into()),
        None => Ok(()),
    }
}

fn of_place(
    path: &Path,
    workload: &args::Workload,
    options: watch::Options,
) -> Result<DiagnoseDocument> {
    let DiagnosisPlan { place, inquiries } = DiagnosisPlan::new(path, workload)?;
    inquiries.iter().filter_map(plan::Inquiry::announcement).for_each(|sentence| say(&sentence));
    let machine = Machine::describe(place.name(), place.disk.as_ref());
    let progress = Progress::of(inquiries.iter().map(plan::Inquiry::runs).sum());
    let diagnose = |inquiry| workload::diagnose(&place, inquiry, options, &progress);
    let diagnoses = inquiries.iter().map(diagnose).collect::<Result<Vec<Diagnosis>>>()?;
    Ok(DiagnoseDocument::new(machine, place.fs, diagnoses))
}

fn of_program(
    observed: &args::Observed,
    time: std::time::Duration,
    options: watch::Options,
) -> Result<DiagnoseDocument> {
    let selection = program::select(observed)?;
    let machine = Machine::describe(program::name(&selection), None);
    let evidence = program::watch(&selection, time, options)?;
    Ok(DiagnoseDocument::new(machine, None, vec![Diagnosis::of_program(evidence)]))
}
