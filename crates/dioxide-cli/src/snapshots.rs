//! Every table for people, from recorded and from made-up results, at three widths of the terminal.
//!
//! `DIOXIDE_SNAPSHOT_WRITE=1` writes the files again.

use crate::bench::figures::Row;
use crate::bench::figures::examples::{
    append_point, checkpoint_point, files_point, indirect_point, mixed_point, row, sync_point,
};
use crate::bench::work::{Point, Route};
use crate::compare::{self, Comparison};
use crate::diagnose::change::ObservationChange;
use crate::diagnose::{document::examples as diagnoses, people};
use crate::history;
use crate::meter::filesystem::FileSystem;
use crate::meter::machine::Machine;
use crate::output::Page;
use crate::probe::{document::examples as probes, table};
use crate::report::{Report, print_for_people};
use crate::saved::{self, examples};
use crate::sizes::Sizes;
use crate::terminal::Terminal;
use std::env;
use std::fs;
use std::io::Write;
use std::path::Path;
use textwrap::core::display_width;

const WIDTHS: [usize; 3] = [80, 120, 200];

fn in_repository(path: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn page(width: Option<usize>) -> Page {
    Page::new(Terminal { width, has_colours: false })
}

fn bench(width: Option<usize>, rows: Vec<Row>) -> String {
    printed(page(width), rows, None)
}

fn printed(mut page: Page, rows: Vec<Row>, comparison: Option<&Comparison<'_>>) -> String {
    let fs = Some(FileSystem { name: "ext4".into(), remark: None });
    let report =
        Report { label: None, machine: Machine::describe("/somewhere".into(), None), fs, rows };
    print_for_people(&report, false, comparison, &mut page).unwrap();
    page.finished()
}

fn with_baseline(page: Page, (old, new): (saved::SavedDocument, saved::SavedDocument)) -> String {
    printed(page, checkpoints(), Some(&compare::with_baseline(&old, &new).unwrap()))
}

fn queue(iodepth: usize) -> Route {
    Route::Queue { iodepth }
}

fn saved_run() -> saved::SavedDocument {
    saved::read(&in_repository("docs/results/append-on-sync.json")).unwrap()
}

/// The rates of docs/results, rounded to a whole number.
fn recorded() -> Vec<Row> {
    let document = saved_run();
    let numjobs = [1, 64];
    let of_numjobs =
        |row: &&saved::SavedRow| numjobs.contains(&(row.key.numjobs * row.key.iodepth));
    let rows = document.results.iter().filter(of_numjobs).map(|saved| {
        let route = match saved.key.path.as_str() {
            "kernel" => Route::Kernel,
            "preallocated" => Route::Preallocated,
            "dioxide" => Route::Dioxide,
            _ => queue(saved.key.iodepth),
        };
        let rates: Vec<u64> = saved.rounds_iops.iter().map(|iops| *iops as u64).collect();
        row(append_point(saved.key.numjobs * saved.key.iodepth), route, &rates)
    });
    rows.collect()
}

fn matrix() -> Vec<Row> {
    let point = |bytes, numjobs| Point { sizes: Sizes::one(bytes), ..append_point(numjobs) };
    let all = [512, 65536].into_iter().flat_map(|bytes| {
        [1, 2, 4, 8, 16, 32, 64, 128].into_iter().map(move |numjobs| point(bytes, numjobs))
    });
    let rows = |point: Point| {
        let rate = 1_000_000 * point.numjobs as u64 / (point.sizes.max_bytes + 90_000);
        [
            row(point, Route::Kernel, &[rate, rate + 2, rate + 1, rate, rate]),
            row(point, Route::Dioxide, &[rate * 9, rate * 8, rate * 9, rate * 9, rate * 10]),
        ]
    };
    all.flat_map(rows).collect()
}

fn indirect() -> Vec<Row> {
    [Route::Serialised, Route::Kernel, Route::Dioxide]
        .map(|route| row(indirect_point(), route, &[10, 11, 12, 11, 10]))
        .into()
}

/// Two numbers of files, each with every path.
fn files() -> Vec<Row> {
    let syncfs = Route::Syncfs { iodepth: 64 };
    let uring = Route::Uring { iodepth: 64 };
    let paths = [Route::OneThread, Route::Kernel, uring, syncfs, Route::Dioxide, queue(64)];
    let of = |files| {
        let rate = move |nth: usize| 400 + 5000 * nth as u64 / files as u64;
        let rates = move |nth| [rate(nth), rate(nth) + 20, rate(nth) + 9, rate(nth), rate(nth)];
        paths
            .into_iter()
            .enumerate()
            .map(move |(nth, route)| row(files_point(files, 64), route, &rates(nth)))
    };
    [1, 1024].into_iter().flat_map(of).collect()
}

fn checkpoints() -> Vec<Row> {
    let syncfs = Route::Syncfs { iodepth: 1 };
    [Route::OneThread, Route::Kernel, syncfs, Route::Dioxide]
        .map(|route| {
            let mut row = row(checkpoint_point(10_000), route, &[10, 11, 12, 11, 10]);
            row.asked.runtime_ms = Some(2000);
            row
        })
        .into()
}

fn probe(width: Option<usize>) -> String {
    let (mut page, mut document) = (page(width), probes::document());
    let long = "unknown: a file system that answers with a long sentence of its own";
    document.facts.know(crate::probe::facts::Topic::Abilities, "reflink", "reflink", long, "ioctl");
    table::print(&document, &mut page).unwrap();
    page.finished()
}

fn fit(width: Option<usize>) -> String {
    let (mut page, mut document) = (page(width), probes::fit());
    document.machine = saved_run().machine;
    table::print(&document, &mut page).unwrap();
    page.finished()
}

fn diagnose(width: Option<usize>) -> String {
    let mut page = page(width);
    let document = diagnoses::document(vec![diagnoses::appends(7), diagnoses::appends(2)]);
    people::print(&document, true, &mut page).unwrap();
    page.finished()
}

fn attached(width: Option<usize>) -> String {
    let mut page = page(width);
    people::print(&diagnoses::document(vec![diagnoses::program()]), false, &mut page).unwrap();
    page.finished()
}

fn attached_again(width: Option<usize>) -> String {
    let mut page = page(width);
    let mut document = diagnoses::document(vec![diagnoses::program()]);
    let mut before = diagnoses::document(vec![diagnoses::slower_program()]);
    before.machine.date = "2026-01-02T03:04:05Z".into();
    document.change = Some(ObservationChange::new(&before, &document));
    people::print(&document, false, &mut page).unwrap();
    page.finished()
}

fn all(width: Option<usize>) -> Vec<(&'static str, String)> {
    let both = [Route::Serialised, Route::Kernel, Route::Dioxide];
    let rates = [40_000, 45_000, 50_000, 43_210, 41_000];
    let sync = both.into_iter().chain([queue(64)]).map(|route| row(sync_point(), route, &rates));
    let mixed = [Route::Kernel, Route::Dioxide, queue(4)].into_iter();
    let mixed = mixed.map(|route| row(mixed_point(2), route, &rates));
    vec![
        ("bench append", bench(width, recorded())),
        ("bench sync", bench(width, sync.collect())),
        ("bench mixed", bench(width, mixed.collect())),
        ("bench indirect", bench(width, indirect())),
        ("bench append, as matrices", bench(width, matrix())),
        ("bench files", bench(width, files())),
        ("bench checkpoint", bench(width, checkpoints())),
        ("bench --baseline", with_baseline(page(width), slower())),
        ("probe", probe(width)),
        ("probe --for", fit(width)),
        ("diagnose", diagnose(width)),
        ("diagnose --pid", attached(width)),
        ("diagnose --compare", attached_again(width)),
        ("compare", compared(width)),
        ("history", history::tests::printed_example(page(width))),
    ]
}

/// The recorded result, and itself with slower paths of dioxide.
fn slower() -> (saved::SavedDocument, saved::SavedDocument) {
    let mut old = saved_run();
    old.results.retain(|row| [1, 64].contains(&row.key.numjobs));
    let mut new = old.clone();
    for row in new.results.iter_mut().filter(|row| row.key.path == "dioxide") {
        row.rounds_iops.iter_mut().for_each(|iops| *iops *= 0.5);
        row.rounds_ratio_to_kernel.iter_mut().flatten().for_each(|ratio| *ratio *= 0.5);
    }
    (old, new)
}

fn compared(width: Option<usize>) -> String {
    let ((old, new), mut page) = (slower(), page(width));
    compare::print(&old, &new, &mut page).unwrap();
    page.finished()
}

/// The defect D10: tables ignored the terminal, with lines of 324 characters.
#[test]
fn no_table_is_wider_than_the_terminal() {
    for width in WIDTHS {
        let mut text = Vec::new();
        for (name, table) in all(Some(width)) {
            let widest = table.lines().map(display_width).max().unwrap_or(0);
            assert!(widest <= width, "{name}: {widest} columns\n{table}");
            writeln!(text, "== {name}\n{table}").unwrap();
        }
        let file = in_repository(&format!("crates/dioxide-cli/src/snapshots/{width}.txt"));
        if env::var_os("DIOXIDE_SNAPSHOT_WRITE").is_some() {
            fs::write(&file, &text).unwrap();
        }
        let (text, expected) =
            (String::from_utf8(text).unwrap(), fs::read_to_string(file).unwrap_or_default());
        let differing = text.lines().zip(expected.lines()).find(|(one, other)| one != other);
        assert!(text == expected, "width {width}, first difference: {differing:#?}");
    }
}

/// The defect: the comparison was text before it reached the page.
#[test]
fn a_baseline_lost_its_colours() {
    let run = |factor: f64| {
        let kernel: [f64; 9] = std::array::from_fn(|nth| 100.0 + nth as f64);
        let own = kernel.map(|iops| iops * factor);
        let rows = [("kernel", kernel, None), ("dioxide", own, Some(&kernel[..]))];
        let row = |(path, iops, kernel): (_, [f64; 9], _)| examples::row(path, 64, &iops, kernel);
        examples::document(rows.map(row).into())
    };
    let page = Page::new(Terminal { width: None, has_colours: true });
    let coloured = with_baseline(page, (run(5.0), run(3.0)));
    assert!(coloured.contains("\u{1b}[33m"), "{coloured}");
}

/// Pipes, files and `--wide`.
#[test]
fn without_a_limit_every_table_has_all_columns() {
    for (name, table) in all(None) {
        assert!(!table.contains("--wide also shows"), "{name}\n{table}");
    }
    let (_, append) = all(None).swap_remove(0);
    for column in ["iodepth", "p99.9", "flushes/op", "extents", "x kernel", "x preallocated"] {
        assert!(append.contains(column), "{column} in {append}");
    }
}
