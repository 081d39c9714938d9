use super::super::document::examples::{appends, document, program, slower_program};
use super::*;
use dioxide_diagnose::activity::{CallStats, CallsFrom};

fn observation() -> DiagnoseDocument {
    document(vec![program()])
}

fn slower() -> DiagnoseDocument {
    document(vec![slower_program()])
}

fn wait<'a>(change: &'a ObservationChange, name: &str) -> &'a ShareChange {
    change.waits.iter().find(|wait| wait.name == name).unwrap_or_else(|| panic!("{change:#?}"))
}

#[test]
fn an_observation_does_not_differ_from_itself() {
    let change = ObservationChange::new(&observation(), &observation());
    assert!(change.unlike.is_empty(), "{change:#?}");
    let shares = change.verdicts.iter().chain(&change.waits);
    assert!(shares.into_iter().all(|share| !share.is_marked && share.before == share.after));
    assert!(change.rates.iter().all(|rate| !rate.is_marked), "{change:#?}");
    assert!(change.calls.iter().all(|call| call.before == call.after));
    assert!(!change.calls.is_empty() && !change.waits.is_empty() && change.rates.len() == 3);
}

#[test]
fn what_differs_is_marked() {
    let change = ObservationChange::new(&observation(), &slower());
    let lock = wait(&change, "the lock of the inode");
    assert!(lock.is_marked && lock.before > lock.after, "{lock:?}");
    let rate = |name: &str| change.rates.iter().find(|rate| rate.name == name).unwrap();
    assert!(rate("calls").is_marked && !rate("syncs").is_marked, "{change:#?}");
    let writes = &change.calls[0];
    let (before, after) = (writes.before.unwrap(), writes.after.unwrap());
    assert_eq!(writes.name, "pwrite64");
    assert!((before.per_second / after.per_second - 4.0).abs() < 0.01);
    assert_eq!(after.p99.ns, before.p99.ns * 3);
}

#[test]
fn differences_within_the_noise_are_not_marked() {
    assert!(!is_beyond_noise(0.5, 0.54, (100_000, 100_000)), "too small to matter");
    assert!(!is_beyond_noise(0.5, 0.6, (50, 50)), "few samples");
    assert!(is_beyond_noise(0.5, 0.6, (1000, 1000)));
}

/// The defect: a verdict below the threshold of a finding counted as a share of 0.
#[test]
fn a_share_that_fell_below_the_threshold_of_a_finding_is_not_marked() {
    let of = |shares: &[(&str, f64)]| {
        shares.iter().map(|(name, share)| ((*name).to_owned(), *share)).collect::<BTreeMap<_, _>>()
    };
    let (before, after) = (of(&[("flush", 0.26), ("device", 0.9)]), of(&[("journal", 0.29)]));
    let marked = |before, after, absent_max| {
        let changes = shares([before, after], (1000, 1000), absent_max);
        let marked = changes.into_iter().filter(|one| one.is_marked).map(|one| one.name);
        marked.collect::<Vec<_>>()
    };
    assert_eq!(marked(&before, &after, judge::SHARE_MIN), ["device"]);
    assert_eq!(marked(&after, &before, judge::SHARE_MIN), ["device"]);
    assert_eq!(marked(&before, &after, 0.0), ["device", "journal", "flush"], "waits of any size");
}

/// A program with two to six samples in I/O was marked in each of four comparisons with itself.
#[test]
fn an_idle_program_has_no_marked_change() {
    assert!(!is_beyond_noise(0.0, 1.0, (0, 500)), "no I/O before");
    assert!(!is_beyond_noise(0.2, 1.0, (19, 500)), "hardly any");
    let idle = |diagnosis: Diagnosis| {
        let mut evidence = diagnosis.evidence;
        evidence.looks = 500;
        evidence.sightings.iter_mut().for_each(|sighting| sighting.count = sighting.count.min(6));
        document(vec![Diagnosis::of_program(evidence)])
    };
    let mut other = program();
    other.evidence.sightings.truncate(1);
    let change = ObservationChange::new(&idle(program()), &idle(other));
    assert!(change.waits.iter().any(|wait| wait.before != wait.after), "{change:#?}");
    assert!(change.waits.iter().chain(&change.verdicts).all(|share| !share.is_marked));
}

#[test]
fn few_intervals_have_no_quartiles() {
    let mut short = program();
    short.evidence.activity.timeline.as_mut().unwrap().intervals.truncate(INTERVALS_MIN - 1);
    let change = ObservationChange::new(&document(vec![short]), &slower());
    for rate in &change.rates {
        let (before, after) = (rate.before.unwrap(), rate.after.unwrap());
        assert!(before.low.is_none() && before.high.is_none() && !rate.is_marked, "{rate:?}");
        assert!(after.low.is_some() && after.high.is_some(), "{rate:?}");
    }
}

/// The calls of the rarest file replaced those of the others.
#[test]
fn calls_of_a_rotated_file_are_added_up() {
    let mut rotated = program().evidence;
    rotated.files.push(rotated.files[0].clone());
    let calls = rotated.activity.calls.as_mut().unwrap();
    let rare = CallStats { file: Some(1), count: calls[0].count / 4, ..calls[0].clone() };
    calls[0].p50.ns *= 2;
    calls.push(rare);
    let change =
        ObservationChange::new(&observation(), &document(vec![Diagnosis::of_program(rotated)]));
    let (before, after) = (change.calls[0].before.unwrap(), change.calls[0].after.unwrap());
    assert!((after.per_second / before.per_second - 1.25).abs() < 0.01, "{after:?}");
    assert_eq!(after.p50.ns, before.p50.ns * 2, "of the most frequent");
}

#[test]
fn calls_of_different_sources_are_not_compared() {
    let mut untraced = program().evidence;
    untraced.activity.calls = None;
    untraced.activity.timeline.as_mut().unwrap().calls_from = CallsFrom::Counters;
    let untraced = document(vec![Diagnosis::of_program(untraced)]);
    let change = ObservationChange::new(&observation(), &untraced);
    assert!(change.calls.is_empty());
    assert!(change.rates.iter().all(|rate| rate.name != "calls"), "{change:#?}");
    assert!(change.unlike.contains(&"calls: traced before, not traced now".into()));
}

#[test]
fn other_documents_are_refused() {
    let refusal = |text: &str| format!("{:#}", parse(text.as_bytes()).unwrap_err());
    assert!(refusal("no").contains("is no JSON"));
    assert!(refusal("{}").contains("is not of dioxide"));
    assert!(refusal(r#"{"kind": "probe"}"#).contains("is of `dioxide probe`; needed is"));
    assert!(refusal(r#"{"kind": "diagnose"}"#).contains("is not quite"));
    let later = r#"{"kind": "diagnose", "schema_version": 2}"#;
    assert!(refusal(later).contains("is of a later dioxide"));
    let path = document(vec![appends(2)]);
    assert!(refusal(&serde_json::to_string(&path).unwrap()).contains("of a path"));
    let written = serde_json::to_string(&observation()).unwrap();
    assert!(parse(written.as_bytes()).is_ok());
}

/// Observations that were written before the activity existed.
#[test]
fn documents_without_activity_are_read() {
    let mut value = serde_json::to_value(observation()).unwrap();
    value["diagnoses"][0]["evidence"].as_object_mut().unwrap().remove("activity");
    value.as_object_mut().unwrap().remove("change");
    let before = parse(value.to_string().as_bytes()).unwrap();
    let change = ObservationChange::new(&before, &observation());
    assert!(change.calls.is_empty() && !change.waits.is_empty());
    assert!(change.rates.iter().all(|rate| rate.before.is_none()));
}
