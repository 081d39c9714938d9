//! The consequences of a probe for programs with direct I/O, in sentences. Measures nothing.

use super::document::{Concurrency, Cost, Document, Target, Verdict};
use dioxide_diagnose::words::nanoseconds;

/// Sync methods that reach this part of the fastest are equally good.
const AS_GOOD: f64 = 0.95;

/// The most important first.
pub fn of(document: &Document) -> Vec<String> {
    let sentences = [
        directness(document),
        concurrency(document, Target::Append),
        holes(document),
        concurrency(document, Target::Overwrite),
        concurrency(document, Target::PartialOverwrite),
        concurrency(document, Target::Read),
        durable_costs(document),
        cache(document),
        fastest_sync(document),
        growth(document),
        io_uring(document),
        root(document),
    ];
    sentences.into_iter().flatten().collect()
}

fn directness(document: &Document) -> Option<String> {
    let told = document.facts.text("is_direct").filter(|told| told.starts_with("no"))?;
    Some(format!(
        "O_DIRECT is not direct here: {}.",
        told.trim_start_matches("no, ").trim_start_matches("no: ")
    ))
}

fn found(document: &Document, target: Target) -> Option<&Concurrency> {
    document.concurrency.iter().find(|one| one.target == target)
}

fn concurrency(document: &Document, target: Target) -> Option<String> {
    let one = found(document, target)?;
    let (who, waits) = (plural(target), waits(one));
    Some(match one.verdict {
        Verdict::RunsConcurrently => format!("{who} run side by side here: {waits}."),
        Verdict::OneAtATime => {
            format!("{who} run one at a time here: {waits}.{}", advice(document, target))
        }
        Verdict::Undecided => {
            format!("Whether {} run side by side here cannot be told: {waits}.", lower(who))
        }
    })
}

/// Where threads waited, or their rates: waits are better evidence.
fn waits(one: &Concurrency) -> String {
    let times = format!("8 threads do {:.1} times what one does", one.ratio_8.median);
    match one.lock_waiters_8.zip(one.device_waiters_8) {
        Some((lock, device)) => {
            format!(
                "of 8 threads {lock:.1} wait for a lock and {device:.1} for the device; {times}"
            )
        }
        None => times,
    }
}

fn lower(sentence: &str) -> String {
    let mut chars = sentence.chars();
    chars.next().map_or(String::new(), |first| first.to_lowercase().chain(chars).collect())
}

fn plural(target: Target) -> &'static str {
    match target {
        Target::Overwrite => "Overwrites in one file",
        Target::PartialOverwrite => "Overwrites of parts of blocks",
        Target::Unwritten => "Writes into unwritten space",
        Target::Hole => "Writes into holes",
        Target::Append => "Appends to one file",
        Target::Read => "Reads",
    }
}

fn advice(document: &Document, target: Target) -> &'static str {
    let is_no_better =
        |other| found(document, other).is_none_or(|it| it.verdict == Verdict::OneAtATime);
    let grows = document.facts.text("grows_unwritten") == Some("yes");
    match target {
        Target::Append if is_no_better(Target::Unwritten) => "",
        Target::Append if grows => {
            " Allocate the file before it is written, or use dioxide, which does that."
        }
        Target::Append => " Allocate the file before it is written.",
        Target::PartialOverwrite if is_no_better(Target::Overwrite) => "",
        Target::PartialOverwrite => " Write whole blocks.",
        _ => "",
    }
}

/// Compared with unwritten space, the other way to leave space free.
fn holes(document: &Document) -> Option<String> {
    let (hole, unwritten) = (found(document, Target::Hole)?, found(document, Target::Unwritten));
    let beside = unwritten.filter(|it| it.verdict == Verdict::RunsConcurrently);
    match (hole.verdict, beside) {
        (Verdict::OneAtATime, Some(unwritten)) => Some(format!(
            "Writes into holes run one at a time here ({}), into unwritten space side by side \
             ({}): fallocate a file, rather than truncate it, to a length.",
            waits(hole),
            waits(unwritten)
        )),
        _ => concurrency(document, Target::Hole),
    }
}

/// Of appends compared with overwrites.
fn durable_costs(document: &Document) -> Option<String> {
    let durable =
        |target| document.costs.iter().find(|cost| cost.target == target && cost.is_durable);
    let words = |cost: &Cost| {
        let requests = cost.requests_per_op.zip(cost.flushes_per_op).map(|(requests, flushes)| {
            format!(
                " and {requests:.0} requests, with {flushes:.0} {}",
                if flushes == 1.0 { "flush" } else { "flushes" }
            )
        });
        format!("takes {}{}", nanoseconds(cost.write_ns_p50 as f64), requests.unwrap_or_default())
    };
    let (append, overwrite) = (durable(Target::Append)?, durable(Target::Overwrite)?);
    Some(format!("A durable append of 4 KiB {}; an overwrite {}.", words(append), words(overwrite)))
}

fn cache(document: &Document) -> Option<String> {
    match (document.facts.is("has_volatile_cache")?, document.facts.is("has_fua")) {
        (false, _) => {
            Some("The device says that it has no volatile cache: flushes cost it nothing.".into())
        }
        (true, Some(false)) => Some(
            "The device has a volatile cache and no FUA: every durable write needs a flush.".into(),
        ),
        (true, _) => None,
    }
}

fn fastest_sync(document: &Document) -> Option<String> {
    let one = document
        .sync_methods
        .iter()
        .filter(|it| it.is_durable && it.writes == 1 && it.ops_per_s > 0.0);
    let fastest = one.clone().max_by(|one, other| one.ops_per_s.total_cmp(&other.ops_per_s))?;
    let as_good: Vec<_> = one
        .filter(|it| it.method != fastest.method && it.ops_per_s >= AS_GOOD * fastest.ops_per_s)
        .map(|it| it.method.as_str())
        .collect();
    let others = match as_good.is_empty() {
        true => String::new(),
        false => format!("; as good: {}", as_good.join(", ")),
    };
    Some(format!(
        "The fastest way for one thread to make 8 KiB durable is {}, {:.0} times a second on this \
         machine now{others}.",
        fastest.method, fastest.ops_per_s
    ))
}

fn growth(document: &Document) -> Option<String> {
    let told = document.facts.text("grows_unwritten")?;
    let why = told.strip_prefix("no: ")?;
    Some(format!("dioxide does not grow files ahead here by default: {why}."))
}

fn io_uring(document: &Document) -> Option<String> {
    let why = document.facts.text("io_uring")?.strip_prefix("no: ")?;
    Some(format!("io_uring cannot be used ({why}): dioxide's queues make plain calls instead."))
}

/// Facts that need root.
fn root(document: &Document) -> Option<String> {
    let forbidden =
        |why: &str| why.contains("Permission denied") || why.contains("Operation not permitted");
    let names: Vec<_> = document
        .facts
        .untold()
        .filter(|(_, why)| forbidden(why))
        .map(|(fact, _)| fact.name.as_str())
        .collect();
    let is_said = |words| document.unmeasured.iter().any(|why| why.contains(words));
    let tried = is_said("may not write").then_some("what is tried and measured");
    let device = is_said("Permission denied").then_some("what reads of the device tell");
    let all: Vec<_> = names.into_iter().chain(tried).chain(device).collect();
    (!all.is_empty()).then(|| format!("Root would be told as well: {}.", all.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::super::document::examples;
    use super::super::facts::Topic;
    use super::*;

    fn said(document: &Document) -> String {
        of(document).join("\n")
    }

    #[test]
    fn an_ordinary_place() {
        let text = said(&examples::document());
        for words in [
            "Appends to one file run one at a time here: of 8 threads 6.5 wait for a lock and 1.0 \
             for the device; 8 threads do 0.5 times what one does. Allocate the file before it is \
             written, or use dioxide",
            "Writes into holes run one at a time here",
            "fallocate a file, rather than truncate it",
            "Overwrites in one file run side by side here",
            "A durable append of 4 KiB takes 1.00 ms and 3 requests, with 2 flushes; an overwrite \
             takes 200.0 us and 2 requests, with 1 flush.",
            "no FUA: every durable write needs a flush",
            "is open_datasync, 1000 times a second on this machine now; as good: fdatasync.",
        ] {
            assert!(text.contains(words), "{words} is not in\n{text}");
        }
        for words in ["not direct", "Root", "io_uring cannot", "does not grow"] {
            assert!(!text.contains(words), "{text}");
        }
    }

    #[test]
    fn nothing_is_advised_that_does_not_help() {
        let mut document = examples::document();
        document.concurrency[2] =
            examples::concurrency(Target::Unwritten, Verdict::OneAtATime, 1.0);
        let text = said(&document);
        assert!(text.contains("what one does.\n") && !text.contains("Allocate"), "{text}");
    }

    #[test]
    fn an_odd_place() {
        let mut document = examples::document();
        let mut facts = super::super::facts::Facts::default();
        facts.know(
            Topic::FileSystem,
            "is_direct",
            "",
            "no, 7 pages in the cache: with checksums",
            "",
        );
        facts.know(Topic::FileSystem, "grows_unwritten", "", "no: without a journal", "");
        facts.know(Topic::IoUring, "io_uring", "", "no: Operation not permitted", "");
        facts.tell(Topic::FileSystem, "journal", "journal", Err::<u64, _>("Permission denied"), "");
        document.facts = facts;
        document.concurrency[3].verdict = Verdict::Undecided;
        document
            .unmeasured
            .push("Nothing was tried or measured: this user may not write here.".into());
        let text = said(&document);
        for words in [
            "O_DIRECT is not direct here: 7 pages in the cache: with checksums.",
            "does not grow files ahead here by default: without a journal.",
            "io_uring cannot be used (Operation not permitted)",
            "Root would be told as well: journal, what is tried and measured.",
            "Whether overwrites in one file run side by side here cannot be told",
        ] {
            assert!(text.contains(words), "{words} is not in\n{text}");
        }
    }
}
