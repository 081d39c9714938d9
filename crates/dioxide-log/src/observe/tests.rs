//! The observers of other crates.

use super::*;
use std::io::Read;
use std::sync::Arc;

/// One of each kind, with and without an error.
fn examples(report: impl Fn(&Event<'_>)) {
    let (log, took) = (Path::new("records"), Duration::from_millis(250));
    let error = Error::Closed;
    report(&Event::Recovery { log, report: &Report::default(), took });
    report(&Event::Append { log, records: 2, took });
    for error in [None, Some(&error)] {
        report(&Event::Batch { log, records: 3, bytes: 8192, took, error });
        report(&Event::Sync { log, took, error });
    }
    report(&Event::Rotation { log, segment: 7 });
    report(&Event::SegmentCreated { log, took });
    report(&Event::SegmentFreed { log });
    report(&Event::Failure { log, error: &error });
}

#[cfg(feature = "metrics")]
#[test]
fn each_event_is_in_its_metrics() {
    use metrics_exporter_prometheus::PrometheusBuilder;

    let recorder = PrometheusBuilder::new().build_recorder();
    examples(::metrics::with_local_recorder(&recorder, super::metrics));
    let text = recorder.handle().render();
    for expected in [
        "# HELP dioxide_log_batch_seconds time of the write of a batch",
        "dioxide_log_recovery_seconds_sum 0.25",
        "dioxide_log_append_seconds_sum 0.25",
        "dioxide_log_batch_seconds_sum 0.5",
        "dioxide_log_batch_records_sum 6",
        "dioxide_log_batch_bytes_sum 16384",
        "dioxide_log_batch_bytes_count 2",
        "dioxide_log_sync_seconds_count 2",
        "dioxide_log_rotations_total 1",
        "dioxide_log_segment_creation_seconds_sum 0.25",
        "dioxide_log_segments_freed_total 1",
        "dioxide_log_failures_total 1",
    ] {
        assert!(text.lines().any(|line| line == expected), "{expected}:\n{text}");
    }
}

#[cfg(feature = "tracing")]
#[test]
fn a_failure_is_traced_as_an_error() {
    let (mut written, writer) = std::io::pipe().unwrap();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(::tracing::Level::DEBUG)
        .with_ansi(false)
        .without_time()
        .with_writer(Arc::new(writer))
        .finish();
    ::tracing::subscriber::with_default(subscriber, || examples(super::tracing()));
    let mut text = String::new();
    written.read_to_string(&mut text).unwrap();
    let starts = [
        "DEBUG dioxide_log: recovery log=\"records\" report=Report",
        "DEBUG dioxide_log: append log=\"records\" records=2 took=250ms",
        "DEBUG dioxide_log: batch log=",
        "DEBUG dioxide_log: sync log=",
        "ERROR dioxide_log: batch failed log=\"records\" error=the log is closed",
        "ERROR dioxide_log: sync failed log=\"records\" error=the log is closed",
        "DEBUG dioxide_log: rotation log=\"records\" segment=7",
        "DEBUG dioxide_log: segment created log=",
        "DEBUG dioxide_log: segment freed log=",
        "ERROR dioxide_log: failure log=\"records\" error=the log is closed",
    ];
    let lines: Vec<_> = text.lines().map(str::trim_start).collect();
    assert_eq!(lines.len(), starts.len(), "{text}");
    for (line, start) in lines.iter().zip(starts) {
        assert!(line.starts_with(start), "{start}:\n{text}");
    }
}
