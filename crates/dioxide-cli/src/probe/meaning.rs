//! The consequences of a probe for programs with direct I/O, in sentences. Measures nothing.

use super::document::{
    Concurrency, ConcurrencyVerdict, Cost, ProbeDocument, SyncMethod, WriteTarget,
};
use super::table::{per_op, rates};
use dioxide_diagnose::host::ext4::FAST_COMMIT_WARNING;
use dioxide_diagnose::words::nanoseconds;

/// The most important first.
pub fn of(document: &ProbeDocument) -> Vec<String> {
    let sentences = [
        not_durable(document),
        fast_commit(document),
        directness(document),
        concurrency(document, WriteTarget::Append),
        holes(document),
        concurrency(document, WriteTarget::Overwrite),
        concurrency(document, WriteTarget::PartialOverwrite),
        concurrency(document, WriteTarget::Read),
        durable_costs(document),
        cache(document),
        fastest_sync(document),
        growth(document),
        io_uring(document),
        root(document),
    ];
    sentences.into_iter().flatten().collect()
}

fn not_durable(document: &ProbeDocument) -> Option<String> {
    Some(format!("Nothing is durable here: {}.", document.not_durable.as_ref()?))
}

fn fast_commit(document: &ProbeDocument) -> Option<String> {
    document.facts.is("fast_commit")?.then(|| FAST_COMMIT_WARNING.into())
}

fn directness(document: &ProbeDocument) -> Option<String> {
    let told = document.facts.text("is_direct").filter(|told| told.starts_with("no"))?;
    Some(format!(
        "O_DIRECT is not direct here: {}.",
        told.trim_start_matches("no, ").trim_start_matches("no: ")
    ))
}

fn found(document: &ProbeDocument, target: WriteTarget) -> Option<&Concurrency> {
    document.concurrency.iter().find(|one| one.target == target)
}

fn concurrency(document: &ProbeDocument, target: WriteTarget) -> Option<String> {
    let one = found(document, target)?;
    let (who, waits) = (plural(target), waits(one));
    Some(match one.verdict {
        ConcurrencyVerdict::RunsConcurrently => format!("{who} run side by side here: {waits}."),
        ConcurrencyVerdict::OneAtATime => {
            format!("{who} run one at a time here: {waits}.{}", advice(document, target))
        }
        ConcurrencyVerdict::Undecided => {
            format!("Unknown whether {} run concurrently: {waits}.", lower(who))
        }
    })
}

/// Where threads waited, or their rates: waits are better evidence.
fn waits(one: &Concurrency) -> String {
    let times = format!("8 threads do {} times what one does", one.ratio_8);
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

fn plural(target: WriteTarget) -> &'static str {
    match target {
        WriteTarget::Overwrite => "Overwrites in one file",
        WriteTarget::PartialOverwrite => "Overwrites of parts of blocks",
        WriteTarget::Unwritten => "Writes into unwritten space",
        WriteTarget::Hole => "Writes into holes",
        WriteTarget::Append => "Appends to one file",
        WriteTarget::Read => "Reads",
    }
}

fn advice(document: &ProbeDocument, target: WriteTarget) -> &'static str {
    let is_no_better = |other| {
        found(document, other).is_none_or(|it| it.verdict == ConcurrencyVerdict::OneAtATime)
    };
    let grows = document.facts.text("grows_unwritten") == Some("yes");
    match target {
        WriteTarget::Append if is_no_better(WriteTarget::Unwritten) => "",
        WriteTarget::Append if grows => {
            " Allocate the file before it is written, or use dioxide, which does that."
        }
        WriteTarget::Append => " Allocate the file before it is written.",
        WriteTarget::PartialOverwrite if is_no_better(WriteTarget::Overwrite) => "",
        WriteTarget::PartialOverwrite => " Write whole blocks.",
        _ => "",
    }
}

/// Compared with unwritten space, the other way to leave space free.
fn holes(document: &ProbeDocument) -> Option<String> {
    let (hole, unwritten) =
        (found(document, WriteTarget::Hole)?, found(document, WriteTarget::Unwritten));
    let beside = unwritten.filter(|it| it.verdict == ConcurrencyVerdict::RunsConcurrently);
    match (hole.verdict, beside) {
        (ConcurrencyVerdict::OneAtATime, Some(unwritten)) => Some(format!(
            "Writes into holes run one at a time here ({}), into unwritten space side by side \
             ({}): use fallocate, not truncate.",
            waits(hole),
            waits(unwritten)
        )),
        _ => concurrency(document, WriteTarget::Hole),
    }
}

/// Of appends compared with overwrites.
fn durable_costs(document: &ProbeDocument) -> Option<String> {
    let durable =
        |target| document.costs.iter().find(|cost| cost.target == target && cost.is_durable);
    let words = |cost: &Cost| {
        let requests = cost.requests_per_op.map(|count| format!(" and {} requests", per_op(count)));
        let flushes = cost.flushes_per_op.map(|count| format!(", with {} flushes", per_op(count)));
        let time = nanoseconds(cost.write_ns_p50 as f64);
        format!("takes {time}{}{}", requests.unwrap_or_default(), flushes.unwrap_or_default())
    };
    let (append, overwrite) = (durable(WriteTarget::Append)?, durable(WriteTarget::Overwrite)?);
    Some(format!("A durable append of 4 KiB {}; an overwrite {}.", words(append), words(overwrite)))
}

fn cache(document: &ProbeDocument) -> Option<String> {
    match (document.facts.is("has_volatile_cache")?, document.facts.is("has_fua")) {
        (false, _) => Some("The device reports no volatile cache: flushes cost it nothing.".into()),
        (true, Some(false)) => Some(
            "The device has a volatile cache and has no FUA: every durable write needs a flush."
                .into(),
        ),
        (true, _) => None,
    }
}

/// Names the fastest method only if each of its rounds was faster than all rounds of the others.
fn fastest_sync(document: &ProbeDocument) -> Option<String> {
    let is_compared = |it: &&SyncMethod| it.is_durable && it.writes == 1 && it.ops_per_s > 0.0;
    let mut methods: Vec<_> = document.sync_methods.iter().filter(is_compared).collect();
    methods.sort_by(|one, other| other.ops_per_s.total_cmp(&one.ops_per_s));
    let (fastest, others) = methods.split_first()?;
    let overlaps: Vec<_> = others
        .iter()
        .filter(|it| it.ops_per_s_max >= fastest.ops_per_s_min)
        .map(|it| format!("{}, {}", it.method, rates(it)))
        .collect();
    let best = format!("{}, {} times per second", fastest.method, rates(fastest));
    Some(if overlaps.is_empty() {
        format!(
            "The fastest way for one thread to make 8 KiB durable on this machine now is {best}."
        )
    } else {
        format!(
            "No single way to make 8 KiB durable is the fastest on this machine now: the rounds of \
             {best}, overlap those of {}.",
            overlaps.join("; ")
        )
    })
}

fn growth(document: &ProbeDocument) -> Option<String> {
    let told = document.facts.text("grows_unwritten")?;
    let why = told.strip_prefix("no: ")?;
    Some(format!("dioxide does not grow files ahead here by default: {why}."))
}

fn io_uring(document: &ProbeDocument) -> Option<String> {
    let why = document.facts.text("io_uring")?.strip_prefix("no: ")?;
    Some(format!("io_uring cannot be used ({why}): dioxide's queues make plain calls instead."))
}

/// Facts that need root.
fn root(document: &ProbeDocument) -> Option<String> {
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
    let device = is_said("Permission denied").then_some("facts from device reads");
    let all: Vec<_> = names.into_iter().chain(tried).chain(device).collect();
    (!all.is_empty()).then(|| format!("Run as root to see also: {}.", all.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::super::document::examples;
    use super::super::facts::Topic;
    use super::*;

    fn said(document: &ProbeDocument) -> String {
        of(document).join("\n")
    }

    #[test]
    fn an_ordinary_place() {
        let text = said(&examples::document());
        for words in [
            "Appends to one file run one at a time here: of 8 threads 6.5 wait for a lock and 1.0 \
             for the device; 8 threads do 0.50 (0.50..0.50) times what one does. Allocate the file \
             before it is written, or use dioxide",
            "Writes into holes run one at a time here",
            "use fallocate, not truncate",
            "Overwrites in one file run side by side here",
            "A durable append of 4 KiB takes 1.00 ms and 3.00 requests, with 2.00 flushes; an \
             overwrite takes 200.0 us and 2.00 requests, with 1.00 flushes.",
            "has no FUA: every durable write needs a flush",
            "No single way to make 8 KiB durable is the fastest on this machine now: the rounds of \
             open_datasync, 1000 (900..1100) times per second, overlap those of fdatasync, 960 \
             (864..1056).",
        ] {
            assert!(text.contains(words), "{words} is not in\n{text}");
        }
        for words in ["not direct", "as root", "io_uring cannot", "does not grow", "fast commits"] {
            assert!(!text.contains(words), "{text}");
        }
    }

    #[test]
    fn a_winner_was_named_from_noise() {
        let with = |rates: &[(&str, f64)]| ProbeDocument {
            sync_methods: rates
                .iter()
                .map(|(name, ops_per_s)| examples::sync_method(name, true, *ops_per_s))
                .collect(),
            ..examples::document()
        };
        let noisy = said(&with(&[("open_sync", 150.0), ("fsync", 170.0)]));
        assert!(!noisy.contains("The fastest way") && noisy.contains("No single way"), "{noisy}");
        let clear = said(&with(&[("open_sync", 100.0), ("fsync", 170.0)]));
        assert!(clear.contains("now is fsync, 170 (153..187) times per second."), "{clear}");
        let nowhere = said(&ProbeDocument { not_durable: Some("tmpfs".into()), ..with(&[]) });
        assert!(nowhere.starts_with("Nothing is durable here: tmpfs."), "{nowhere}");
    }

    #[test]
    fn the_ratio_of_the_sentence_was_not_that_of_the_table() {
        let document = examples::document();
        let table = super::super::table::of_concurrency(&document.concurrency).to_string();
        let text = said(&document);
        let ratio = document.concurrency[0].ratio_8.to_string();
        assert!(table.contains(&ratio) && text.contains(&format!("8 threads do {ratio} times")));
    }

    #[test]
    fn fast_commits_were_not_warned_of() {
        let mut document = examples::document();
        document.facts.know(Topic::FileSystem, "fast_commit", "fast commits", true, "");
        assert!(said(&document).contains("may return before its data is safe"));
    }

    #[test]
    fn nothing_is_advised_that_does_not_help() {
        let mut document = examples::document();
        document.concurrency[2] =
            examples::concurrency(WriteTarget::Unwritten, ConcurrencyVerdict::OneAtATime, 1.0);
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
        document.concurrency[3].verdict = ConcurrencyVerdict::Undecided;
        document.costs[0].flushes_per_op = None;
        document
            .unmeasured
            .push("Nothing was tried or measured: this user may not write here.".into());
        let text = said(&document);
        for words in [
            "O_DIRECT is not direct here: 7 pages in the cache: with checksums.",
            "does not grow files ahead here by default: without a journal.",
            "io_uring cannot be used (Operation not permitted)",
            "Run as root to see also: journal, what is tried and measured.",
            "Unknown whether overwrites in one file run concurrently",
            "takes 1.00 ms and 3.00 requests; an overwrite",
        ] {
            assert!(text.contains(words), "{words} is not in\n{text}");
        }
    }
}
