//! The events of files on a simulated disk, and the observers of other crates.

use super::*;
use crate::sim::{self, Call, Disk};
use crate::{Buffer, Durability, ErrorKind, File, Growth, OpenOptions, Operation, Queue, Stats};
use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::{Arc, Mutex, Once};

/// The files of these tests. Other tests of the process have files as well.
const PREFIX: &str = "observed";
const BLOCK: usize = 4096;

/// An event, as far as the tests look at it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Seen {
    Append { bytes: u64, took: Duration },
    Write { operations: u64, bytes: u64, dsync: bool, took: Duration, failed: bool },
    Flush { took: Duration, failed: bool },
    Growth { bytes: u64 },
    Wedge,
}

/// The events of each file.
static SEEN: Mutex<BTreeMap<String, Vec<Seen>>> = Mutex::new(BTreeMap::new());

fn observe() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        set_observer(|event| {
            let failed = |error: Option<&Error>| error.is_some();
            let (file, seen) = match *event {
                Event::Append { file, bytes, took } => (file, Seen::Append { bytes, took }),
                Event::Write { file, operations, bytes, dsync, took, error } => {
                    let failed = failed(error);
                    (file, Seen::Write { operations, bytes, dsync, took, failed })
                }
                Event::Flush { file, took, error } => {
                    (file, Seen::Flush { took, failed: failed(error) })
                }
                Event::Growth { file, bytes, .. } => (file, Seen::Growth { bytes }),
                Event::Wedge { error } => (error.path(), Seen::Wedge),
            };
            let file = file.to_str().expect("a name in UTF-8");
            if file.starts_with(PREFIX) {
                SEEN.lock().unwrap().entry(file.into()).or_default().push(seen);
            }
        })
        .expect("only these tests set one");
    });
}

/// The events of a file since the last call.
fn take(name: &str) -> Vec<Seen> {
    SEEN.lock().unwrap().remove(name).unwrap_or_default()
}

fn durable() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create(true).durability(Durability::EveryWrite);
    options
}

/// Appends by threads and by a queue.
fn append_by_many(file: &File) {
    let writers: Vec<_> = (0..4)
        .map(|_| {
            let file = file.try_clone().unwrap();
            let append = move |n: usize| file.append(&vec![1; 100 + n * 700]).is_ok();
            sim::spawn(move || assert!((0..10).all(append)))
        })
        .collect();
    let queue = Queue::new(8);
    (0..8).for_each(|tag| queue.append(file, Buffer::zeroed(3 * BLOCK), tag).unwrap());
    assert!(queue.reap(8).all(|done| done.result.is_ok()));
    writers.into_iter().for_each(|writer| writer.join().unwrap());
}

#[test]
fn there_are_as_many_events_as_the_counters_say() {
    observe();
    let reported = |stats: &Stats| {
        let requests = [stats.requests, stats.request_bytes, stats.dsync_requests, stats.merged];
        let appends = [stats.appends, stats.append_bytes];
        (appends, requests, stats.flushes, [stats.growths, stats.grown_bytes])
    };
    let mut merged_in_all = 0;
    for seed in 0..20 {
        sim::run(seed, || {
            let name = format!("{PREFIX}-counted-{seed}");
            let file = Disk::new(seed).open(durable().growth_cap(32 << 10), &name).unwrap();
            append_by_many(&file);
            file.sync_data().unwrap();
            let (stats, events) = (file.stats(), take(&name));
            let mut counted = Stats::default();
            for event in events {
                match event {
                    Seen::Append { bytes, .. } => {
                        counted.appends += 1;
                        counted.append_bytes += bytes;
                    }
                    Seen::Write { operations, bytes, dsync, failed, .. } => {
                        assert!(!failed);
                        counted.requests += 1;
                        counted.request_bytes += bytes;
                        counted.dsync_requests += u64::from(dsync);
                        counted.merged += if operations > 1 { operations } else { 0 };
                    }
                    Seen::Flush { failed, .. } => {
                        assert!(!failed);
                        counted.flushes += 1;
                    }
                    Seen::Growth { bytes } => {
                        counted.growths += 1;
                        counted.grown_bytes += bytes;
                    }
                    Seen::Wedge => panic!("no flush fails"),
                }
            }
            merged_in_all += counted.merged;
            assert_eq!(reported(&counted), reported(&stats), "seed {seed}");
        });
    }
    assert!(merged_in_all > 0);
}

#[test]
fn an_event_has_the_time_of_its_calls() {
    const STALL: Duration = Duration::from_millis(10);
    observe();
    let name = format!("{PREFIX}-timed");
    let kinds_and_times = || {
        let time = |event: &Seen| match *event {
            Seen::Append { took, .. } => Some(("append", took)),
            Seen::Write { took, .. } => Some(("write", took)),
            Seen::Flush { took, .. } => Some(("flush", took)),
            Seen::Growth { .. } | Seen::Wedge => None,
        };
        let events = take(&name);
        events.iter().filter_map(time).unzip::<_, _, Vec<_>, Vec<_>>()
    };
    sim::run(1, || {
        let disk = Disk::new(1);
        // The budget for growth is that of the process, with all its tests. Growth stalls as well.
        let mut options = durable();
        options.durability(Durability::OnSync).growth(Growth::None);
        let file = disk.open(&options, &name).unwrap();
        for (stall, range) in [(Duration::ZERO, Duration::ZERO..STALL), (STALL, STALL..2 * STALL)] {
            disk.stall(stall);
            file.append(&[1; BLOCK]).unwrap();
            disk.stall(stall);
            file.sync_data().unwrap();
            let (kinds, times) = kinds_and_times();
            assert_eq!(kinds, ["write", "append", "flush"]);
            assert!(times.iter().all(|took| range.contains(took)), "{times:?}");
        }
    });
}

/// Two files of a disk are flushed, and one of the calls fails. So the other flush is worth nothing
/// if it runs beside that one, although its own call succeeds.
#[test]
fn a_flush_beside_a_failed_one_is_reported_as_failed() {
    observe();
    let mut beside = 0;
    for seed in sim::seeds(50) {
        sim::run(seed, || {
            let disk = Disk::new(seed);
            let names = ["a", "b"].map(|name| format!("{PREFIX}-failed-{name}-{seed}"));
            let files = names.each_ref().map(|name| {
                let file = disk.open(durable().durability(Durability::OnSync), name).unwrap();
                file.append(&[1; BLOCK]).unwrap();
                file
            });
            names.iter().for_each(|name| drop(take(name)));
            disk.fail(Call::Flush, seed % 2, libc::EIO);
            let flushes = files.map(|file| sim::spawn(move || file.sync_data().unwrap_err()));
            flushes.into_iter().for_each(|flush| drop(flush.join().unwrap()));
            let events = names.each_ref().map(|name| take(name)).concat();
            let count = |is: fn(&Seen) -> bool| events.iter().filter(|event| is(event)).count();
            let flushes = count(|event| matches!(event, Seen::Flush { .. }));
            let failed = count(|event| matches!(event, Seen::Flush { failed: true, .. }));
            assert_eq!(failed, flushes, "seed {seed}: {events:?}");
            assert_eq!(count(|event| *event == Seen::Wedge), 1, "seed {seed}: {events:?}");
            beside += u32::from(flushes == 2);
        });
    }
    assert!(beside > 0);
}

#[test]
fn a_failed_write_is_reported_as_one() {
    observe();
    let name = format!("{PREFIX}-write");
    let disk = Disk::new(1);
    let file = disk.open(&durable(), &name).unwrap();
    file.append(&[1; BLOCK]).unwrap();
    take(&name);
    disk.fail(Call::Write, 0, libc::EINVAL);
    file.append(&[1; BLOCK]).unwrap_err();
    let events = take(&name);
    let is_failed = |event: &Seen| matches!(event, Seen::Write { failed: true, .. });
    assert_eq!(events.iter().filter(|event| is_failed(event)).count(), 1, "{events:?}");
    assert!(!events.iter().any(|event| matches!(event, Seen::Append { .. })), "{events:?}");
}

#[test]
fn a_process_has_one_observer() {
    observe();
    assert_eq!(set_observer(|_| {}), Err(ObserverIsSet));
}

/// It unwound through the engine, or ended a thread that others waited for.
#[test]
fn an_observer_that_panics_ends_the_process() {
    const NAME: &str = "observe::tests::an_observer_that_panics_ends_the_process";
    const AGAIN: &str = "DIOXIDE_TEST_OF_AN_OBSERVER_THAT_PANICS";
    if std::env::var_os(AGAIN).is_some() {
        set_observer(|_| panic!("an observer")).unwrap();
        let file = Disk::new(1).open(&durable(), "log").unwrap();
        file.append(&[1; BLOCK]).unwrap();
        return;
    }
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args(["--exact", NAME, "--nocapture"]).env(AGAIN, "1");
    let output = again.output().unwrap();
    assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{output:?}");
}

/// One of each kind, with and without an error.
fn examples(report: impl Fn(&Event<'_>)) {
    let path: Arc<Path> = Path::new("lo\ng").into();
    let error = Error::new(Operation::Flush, &path, None, ErrorKind::Os(libc::EIO));
    let (file, took) = (&*path, Duration::from_millis(250));
    report(&Event::Append { file, bytes: 100, took });
    for error in [None, Some(&error)] {
        let (operations, bytes, dsync) = (3, 8192, true);
        report(&Event::Write { file, operations, bytes, dsync, took, error });
        report(&Event::Flush { file, took, error });
    }
    report(&Event::Growth { file, bytes: 65536, took });
    report(&Event::Wedge { error: &error });
}

#[cfg(feature = "metrics")]
#[test]
fn metrics_have_the_documented_names() {
    use ::metrics::with_local_recorder;
    use metrics_exporter_prometheus::PrometheusBuilder;

    let recorder = PrometheusBuilder::new().build_recorder();
    examples(with_local_recorder(&recorder, metrics));
    let text = recorder.handle().render();
    for expected in [
        "# HELP dioxide_append_seconds from the call of an append to its acknowledgment",
        "dioxide_append_seconds_sum 0.25",
        "dioxide_append_seconds_count 1",
        "dioxide_append_bytes_total 100",
        "dioxide_write_seconds_sum 0.5",
        "dioxide_write_bytes_sum 16384",
        "dioxide_write_operations_sum 6",
        "dioxide_write_failures_total 1",
        "dioxide_flush_seconds_count 2",
        "dioxide_flush_failures_total 1",
        "dioxide_growth_seconds_sum 0.25",
        "dioxide_growth_bytes_total 65536",
        "dioxide_wedges_total 1",
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
    ::tracing::subscriber::with_default(subscriber, || examples(tracing()));
    let mut text = String::new();
    written.read_to_string(&mut text).unwrap();
    let starts = [
        "DEBUG dioxide: append file=",
        "DEBUG dioxide: write file=",
        "DEBUG dioxide: flush file=",
        "ERROR dioxide: write failed error=flush ",
        "ERROR dioxide: flush failed error=flush ",
        "DEBUG dioxide: growth file=",
        "ERROR dioxide: wedge error=flush ",
    ];
    let lines: Vec<_> = text.lines().map(str::trim_start).collect();
    assert_eq!(lines.len(), starts.len(), "no name breaks a line:\n{text}");
    for (line, start) in lines.iter().zip(starts) {
        assert!(line.starts_with(start), "{start}:\n{text}");
    }
}
