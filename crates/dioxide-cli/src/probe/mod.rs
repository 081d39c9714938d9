//! `dioxide probe`: what direct I/O does on a path, each fact with its source. This module and its
//! children gather the facts. `document` has the results, `meaning` the consequences, `table` the
//! display.

mod abilities;
mod alignment;
mod concurrency;
mod cost;
mod direct;
pub mod document;
pub mod facts;
mod filesystem;
pub mod fitness;
pub mod layer;
mod meaning;
mod named;
mod ring;
mod site;
mod storage;
mod subject;
mod sync_methods;
pub mod table;
mod turns;
mod verdict;
mod waits;

use crate::args;
use crate::bench::place::BenchTarget;
use crate::bench::progress::Progress;
use crate::device;
use crate::exit::Unmeasured;
use crate::meter::disk::Disk;
use crate::meter::machine::Machine;
use crate::output;
use crate::report::html;
use crate::terminal::Terminal;
use crate::units;
use anyhow::{Context, Result, anyhow, bail};
use document::{ProbeDocument, SCHEMA_VERSION, WriteTarget};
use facts::{Facts, Topic};
use fitness::judge::Outcome;
use rustix::fs::OFlags;
use rustix::io::Errno;
use site::Site;
use std::fs::File;
use std::io;
use subject::{Subject, SubjectKind};

/// Looks, tries, measures, reports. With `--for`, only a verdict has the exit code 1.
pub fn run(args: &args::Probe) -> Result<()> {
    let Some(system) = args.system else {
        return report(args, || probe(&Subject::of(&args.path)?, args.quick)).map(drop);
    };
    let document = report(args, || fit(args, system)).context(Unmeasured)?;
    match &document.fitness {
        Some(fitness) if fitness.verdict == Outcome::Fail => {
            bail!("FAIL for {}: {}", fitness.system, fitness.failed().join(", "))
        }
        _ => Ok(()),
    }
}

/// Writes and prints what `measure` finds.
fn report(
    args: &args::Probe,
    measure: impl FnOnce() -> Result<ProbeDocument>,
) -> Result<ProbeDocument> {
    output::check(&args.output.wanted(), &[&args.path])?;
    let document = measure()?;
    let texts = output::texts(&args.output, &document, || html::probe::page(&document))?;
    let terminal = Terminal::of_stdout(args.output.shape.wide);
    output::deliver(&texts, terminal, |page| table::print(&document, page))?;
    Ok(document)
}

/// Facts that need no trial, and the load of a system.
fn fit(args: &args::Probe, system: args::SystemArg) -> Result<ProbeDocument> {
    let subject = Subject::of(&args.path)?;
    let mut document = begin(&subject);
    let SubjectKind::Directory { place, .. } = &subject.kind else {
        bail!("{}: a device is only read; name a directory on it", subject.path.display());
    };
    let place = place.as_ref().map_err(|why| anyhow!("{}: {why}", subject.path.display()))?;
    filesystem::look(&subject, &mut document.facts);
    storage::judge(&mut document);
    let why_not = document.not_durable.as_deref().or(storage::loses_data(&document));
    document.fitness = Some(fitness::of(place, system, args.runtime, why_not)?);
    document.meaning = meaning::of(&document);
    Ok(document)
}

/// The facts about the devices.
fn begin(subject: &Subject) -> ProbeDocument {
    let disk = subject.device.and_then(Disk::find);
    let mut document = ProbeDocument {
        schema_version: SCHEMA_VERSION,
        kind: "probe".into(),
        machine: Machine::describe(subject.path.display().to_string(), disk.as_ref()),
        facts: Facts::default(),
        devices: devices(subject),
        flush: None,
        costs: Vec::new(),
        concurrency: Vec::new(),
        sync_methods: Vec::new(),
        not_durable: None,
        fitness: None,
        unmeasured: Vec::new(),
        meaning: Vec::new(),
    };
    durability(&mut document);
    document
}

fn probe(subject: &Subject, is_quick: bool) -> Result<ProbeDocument> {
    let mut document = begin(subject);
    ring::look(&mut document.facts);
    match &subject.kind {
        SubjectKind::Directory { place, file } => {
            filesystem::look(subject, &mut document.facts);
            if let Some(file) = file {
                named::look(file, &mut document.facts);
            }
            match place {
                Ok(place) => {
                    match on_a_file_system(place, subject.directory(), is_quick, &mut document) {
                        Err(error) if is_for_want_of_space(&error) => {
                            document
                                .unmeasured
                                .push("The rest was not tried: the file system is full.".into());
                        }
                        outcome => outcome?,
                    }
                }
                Err(why) => {
                    document.unmeasured.push(format!("Nothing was tried or measured: {why}."));
                    file.iter().for_each(|file| alignment::as_stated(file, &mut document.facts));
                }
            }
        }
        SubjectKind::Device(Ok(device)) => on_a_device(device, subject, is_quick, &mut document)?,
        SubjectKind::Device(Err(why)) => {
            document.unmeasured.push(format!("The device was not read: {why}."))
        }
    }
    storage::judge(&mut document);
    document.meaning = meaning::of(&document);
    Ok(document)
}

fn devices(subject: &Subject) -> Vec<layer::Layer> {
    match &subject.mount {
        Some(mount) => layer::below(mount),
        None => subject.device.map(layer::chain).unwrap_or_default(),
    }
}

fn is_for_want_of_space(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let kinds = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded];
        let is_full = |error: &io::Error| kinds.contains(&error.kind());
        cause.downcast_ref().is_some_and(is_full)
            || matches!(cause.downcast_ref(), Some(&(Errno::NOSPC | Errno::DQUOT)))
    })
}

/// The statements of the top device.
fn durability(document: &mut ProbeDocument) {
    let Some(top) = document.devices.iter().find(|layer| !layer.is_path()) else { return };
    let queue = |attribute| format!("/sys/block/{}/queue/{attribute}", top.name);
    let silent = "the device does not say";
    let cache = top.write_cache.as_deref().map(|cache| cache == "write back").ok_or(silent);
    let (topic, facts) = (Topic::Durability, &mut document.facts);
    facts.tell(topic, "has_volatile_cache", "volatile cache", cache, queue("write_cache"));
    facts.tell(topic, "has_fua", "FUA", top.has_fua.ok_or(silent), queue("fua"));
    let discard = top.discard_max_bytes.ok_or(silent);
    facts.tell(topic, "discard_max_bytes", "discards up to", discard, queue("discard_max_bytes"));
    let zeroes = top.write_zeroes_max_bytes.ok_or(silent);
    facts.tell(
        topic,
        "write_zeroes_max_bytes",
        "writes zeroes up to",
        zeroes,
        queue("write_zeroes_max_bytes"),
    );
}

fn on_a_file_system(
    place: &BenchTarget,
    directory: &std::path::Path,
    is_quick: bool,
    document: &mut ProbeDocument,
) -> Result<()> {
    let facts = &mut document.facts;
    let why_not_direct = filesystem::ask_the_library(place, facts)?;
    abilities::look(place, directory, facts)?;
    let ground = place.prepare()?;
    let direct = match ground.open(OFlags::empty()) {
        Ok(file) => file,
        Err(why) => {
            facts.know(
                Topic::FileSystem,
                "is_direct",
                "O_DIRECT is direct",
                format!("no: {why}"),
                "open, O_DIRECT",
            );
            document.unmeasured.push(format!("Direct I/O was not measured: {why}."));
            return Ok(());
        }
    };
    alignment::as_stated(&direct, facts);
    direct::look(&ground, why_not_direct, facts)?;
    alignment::of_writes(&ground, facts)?;
    alignment::without_waiting(&ground, facts)?;
    abilities::write_flags(&ground, facts)?;
    drop(ground);
    if is_quick {
        document.unmeasured.push("Nothing was measured, because of --quick.".into());
        return Ok(());
    }
    if !takes_blocks(document) {
        return Ok(());
    }
    let (room, needed) = (place.room_bytes()?, site::ROOM_BYTES);
    if room < needed {
        let (room, needed) = (units::about_bytes(room), units::about_bytes(needed));
        document
            .unmeasured
            .push(format!("Nothing was measured: {room} are free, and {needed} are needed."));
        return Ok(());
    }
    measure(place, document)
}

/// The unit of direct I/O. A block if the kernel states none, or 0: then it is not direct.
fn unit_bytes(facts: &Facts) -> u64 {
    facts.number("offset_bytes").filter(|unit| *unit > 0).unwrap_or(site::BLOCK_BYTES)
}

/// Whether direct I/O accepts the measured block size.
fn takes_blocks(document: &mut ProbeDocument) -> bool {
    let unit = unit_bytes(&document.facts);
    if unit > site::BLOCK_BYTES {
        let unit = units::size(unit);
        document.unmeasured.push(format!(
            "Nothing was measured: 4 KiB are, and direct I/O is in multiples of {unit} here."
        ));
    }
    unit <= site::BLOCK_BYTES
}

fn measure(place: &BenchTarget, document: &mut ProbeDocument) -> Result<()> {
    let unit = unit_bytes(&document.facts);
    let site = |target| Site::new(place, target, unit).transpose();
    let sites = concurrency::TARGETS.into_iter().filter_map(site).collect::<Result<Vec<_>>>()?;
    let progress = Progress::of(
        cost::turns(&sites) + sites.len() as u64 * concurrency::TURNS + sync_methods::TURNS,
    );
    if let Some(written) = sites.iter().find(|site| site.target == WriteTarget::Overwrite) {
        document.flush = Some(cost::of_flushes(written, &progress)?);
    }
    document.costs = cost::of_writes(place, &sites, &progress)?;
    document.concurrency = concurrency::of(&sites, &progress)?;
    document.sync_methods = sync_methods::compare(place, &progress)?;
    Ok(())
}

/// A device is read, and never written.
fn on_a_device(
    device: &File,
    subject: &Subject,
    is_quick: bool,
    document: &mut ProbeDocument,
) -> Result<()> {
    alignment::as_stated(device, &mut document.facts);
    alignment::of_reads(device, &mut document.facts);
    document.unmeasured.push("Writes and flushes were not measured: a device is only read.".into());
    if is_quick {
        document.unmeasured.push("Reads were not measured, because of --quick.".into());
        return Ok(());
    }
    if !takes_blocks(document) {
        return Ok(());
    }
    let bytes = device::size_bytes(&subject.path)?;
    if bytes < site::BLOCK_BYTES {
        document.unmeasured.push("Reads were not measured: the device is empty.".into());
        return Ok(());
    }
    let sites = [Site::of_device(device.try_clone()?, bytes)];
    document.concurrency = concurrency::of(&sites, &Progress::of(concurrency::TURNS))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ext4 with data=journal states an alignment of 0. Then writes of 0 bytes were measured.
    #[test]
    fn no_write_of_0_bytes_is_measured() {
        let unit = |stated: u64| {
            let mut facts = Facts::default();
            facts.know(Topic::Alignment, "offset_bytes", "offset and length", stated, "statx");
            unit_bytes(&facts)
        };
        assert_eq!([0, 512].map(unit), [site::BLOCK_BYTES, 512]);
        assert_eq!(unit_bytes(&Facts::default()), site::BLOCK_BYTES);
    }
}
