//! The plan of the scenarios with several files.

use super::{
    Abilities, Crews, Draft, Plan, Rows, check_ledger, check_space, distinct, memory_bytes,
    one_block_each, points, provisional, size, typed,
};
use crate::args;
use crate::bench::descriptors;
use crate::bench::estimate::Typed;
use crate::bench::place::BenchTarget;
use crate::bench::work::{Point, Route, Scenario, Space, Work};
use crate::exit::say;
use crate::sizes::Sizes;
use crate::sync_ring::Ring;
use crate::units;
use anyhow::{Result, bail, ensure};
use dioxide::{Durability, Growth};
use std::collections::HashSet;
use std::path::Path;

/// The size of all files that are written before each run, without `--size`.
pub const WRITTEN_DEFAULT_BYTES: u64 = 64 << 20;
/// Limit of the size of all files that are only allocated, without `--size`.
const UNWRITTEN_DEFAULT_MAX_BYTES: u64 = 512 << 20;

/// Without a scenario: files, files of a checkpoint, and threads.
const TOUR_FILES: u32 = 16;
const TOUR_TOUCHED: u32 = 100;
const TOUR_NUMJOBS: u32 = 16;

impl Plan {
    pub(super) fn files(args: &args::Files) -> Result<Self> {
        Self::of_many_files(&args.dir, rows(args), typed(args.pace, args.size))
    }

    pub(super) fn checkpoint(args: &args::Checkpoint) -> Result<Self> {
        let pace = args::PaceArgs { runtime: args.runtime, rounds: args.rounds, rate: None };
        Self::of_many_files(&args.dir, checkpoint_rows(args), typed(pace, args.size))
    }

    fn of_many_files(dir: &Path, rows: Rows, typed: Typed) -> Result<Self> {
        let place = BenchTarget::directory(dir)?;
        let drafts = vec![draft(&place, rows, typed)?];
        Ok(Self { place, drafts })
    }
}

pub(super) fn draft(place: &BenchTarget, mut rows: Rows, typed: Typed) -> Result<Draft> {
    let most = rows.iter().filter_map(|(point, _)| point.files).max();
    descriptors::make_room_for(most.unwrap_or(0))?;
    let size_bytes = total_bytes(place, &rows, typed.size_bytes)?;
    check_ledger(&rows, size_bytes, memory_bytes())?;
    let abilities = Abilities::of(place, Growth::None)?;
    abilities.check_writes(&rows)?;
    check_unwritten(place, &rows)?;
    if rows.iter().any(|(_, route)| is_a_ring(*route))
        && let Err(error) = Ring::new()
    {
        say(&format!("no io_uring here ({error}), so `kernel-uring` is left out"));
        rows.retain(|(_, route)| !is_a_ring(*route));
    }
    let work = Work::new(rows, provisional(typed), size_bytes, abilities.units);
    Ok(Draft::new(work, typed))
}

fn is_a_ring(route: Route) -> bool {
    matches!(route, Route::Uring { .. })
}

/// Each point of `bench files` on all applicable routes.
pub fn rows(args: &args::Files) -> Rows {
    let crews = Crews::new(&args.numjobs, &args.iodepth);
    let files = FilesParameters { numbers: &args.files, space: args.space.into(), bs: args.bs };
    files.written_singly(&crews, args.pace.rate)
}

/// Each point of `bench checkpoint` on all routes.
pub fn checkpoint_rows(args: &args::Checkpoint) -> Rows {
    let files = FilesParameters { numbers: &args.files, space: args.space.into(), bs: args.bs };
    files.in_checkpoints(args.numjobs)
}

/// The rows of `bench files` and `bench checkpoint` for `dioxide bench` without a scenario.
pub(super) fn tour_rows() -> [Rows; 2] {
    let files = |numbers| FilesParameters { numbers, space: Space::Written, bs: Sizes::one(4096) };
    [
        files(&[TOUR_FILES]).written_singly(&Crews::new(&[TOUR_NUMJOBS], &[TOUR_NUMJOBS]), None),
        files(&[TOUR_TOUCHED]).in_checkpoints(TOUR_NUMJOBS),
    ]
}

/// Numbers of files, and their blocks.
struct FilesParameters<'a> {
    numbers: &'a [u32],
    space: Space,
    bs: Sizes,
}

impl FilesParameters<'_> {
    fn written_singly(&self, crews: &Crews, rate_iops: Option<u64>) -> Rows {
        let durability = [Durability::EveryWrite];
        let points = points(&[self.bs], &crews.sizes(), &durability, Growth::None, rate_iops);
        one_thread_once(crews.rows(self.each(Scenario::Files, &points)))
    }

    fn in_checkpoints(&self, numjobs: u32) -> Rows {
        let crews = Crews::new(&[numjobs], &[]);
        let durability = [Durability::OnSync];
        let points = points(&[self.bs], &crews.sizes(), &durability, Growth::None, None);
        crews.rows(self.each(Scenario::Checkpoint, &points))
    }

    /// These points with each number of files.
    fn each(&self, scenario: Scenario, points: &[Point]) -> Vec<Point> {
        let with = |files: u32| {
            let (files, space) = (Some(files as usize), Some(self.space));
            points.iter().map(move |point| Point { scenario, growth: None, files, space, ..*point })
        };
        distinct(self.numbers).into_iter().flat_map(with).collect()
    }
}

/// One thread does the same work beside any number of threads, so one row of each number of files
/// is enough.
fn one_thread_once(rows: Rows) -> Rows {
    let mut measured = HashSet::new();
    let is_new = |(point, route): &(Point, Route)| {
        *route != Route::OneThread || measured.insert(point.files)
    };
    rows.into_iter().filter(is_new).collect()
}

/// The size of all files together.
fn total_bytes(place: &BenchTarget, rows: &Rows, wanted: Option<u64>) -> Result<u64> {
    let least = one_block_each(rows);
    let total = match (wanted, rows.first().and_then(|(point, _)| point.space)) {
        (None, Some(Space::Written)) => {
            let total = WRITTEN_DEFAULT_BYTES.max(least);
            check_space(place, total)?;
            total
        }
        _ => size(place, wanted, UNWRITTEN_DEFAULT_MAX_BYTES)?,
    };
    ensure!(
        least <= total,
        "files of {} in all have no room for one block of each file, thread or queued operation \
         ({}); see --size",
        units::about_bytes(total),
        units::about_bytes(least)
    );
    Ok(total)
}

/// Refuses unwritten space on a file system without fallocate.
fn check_unwritten(place: &BenchTarget, rows: &Rows) -> Result<()> {
    let Some((point, _)) = rows.iter().find(|(point, _)| point.space == Some(Space::Unwritten))
    else {
        return Ok(());
    };
    if let Err(error) = place.prepare()?.preallocate(point.sizes.max_bytes) {
        bail!("{}: no fallocate ({error}), which --space unwritten needs", place.name());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn scenario(line: &str) -> args::ScenarioArgs {
        let words = ["dioxide", "bench"].into_iter().chain(line.split_whitespace());
        let args::Command::Bench(bench) = args::Cli::parse_from(words).command else {
            panic!("{line} is a bench")
        };
        bench.scenario.expect("a scenario")
    }

    fn rows_of(line: &str) -> Rows {
        match scenario(line) {
            args::ScenarioArgs::Files(files) => rows(&files),
            args::ScenarioArgs::Checkpoint(checkpoint) => checkpoint_rows(&checkpoint),
            _ => panic!("{line} has several files"),
        }
    }

    /// The number of files, the number of threads or outstanding operations, and the path.
    fn named(rows: &Rows) -> Vec<(usize, usize, &'static str)> {
        let name =
            |(point, route): &(Point, Route)| (point.files.unwrap(), point.numjobs, route.name());
        rows.iter().map(name).collect()
    }

    #[test]
    fn every_path_for_every_number_of_files() {
        let rows = rows_of("files --files 1,16,1");
        let paths = ["one-thread", "kernel", "kernel-uring", "syncfs", "dioxide", "dioxide-queue"];
        let expected = [1, 16].into_iter().flat_map(|files| paths.map(|path| (files, 64, path)));
        assert_eq!(named(&rows), expected.collect::<Vec<_>>());
        let (point, _) = rows[0];
        assert_eq!((point.sizes, point.durability), (Sizes::one(4096), Durability::EveryWrite));
        assert_eq!((point.space, point.growth), (Some(Space::Written), None));
    }

    #[test]
    fn one_thread_is_measured_once_and_rings_beside_as_many_threads() {
        let rows = rows_of("files --files 7 --numjobs 2,4 --iodepth 4,8 --space unwritten");
        let expected = [
            (7, 2, "one-thread"),
            (7, 2, "kernel"),
            (7, 2, "dioxide"),
            (7, 4, "kernel"),
            (7, 4, "kernel-uring"),
            (7, 4, "syncfs"),
            (7, 4, "dioxide"),
            (7, 4, "dioxide-queue"),
            (7, 8, "kernel-uring"),
            (7, 8, "syncfs"),
            (7, 8, "dioxide-queue"),
        ];
        assert_eq!(named(&rows), expected);
        assert!(rows.iter().all(|(point, _)| point.space == Some(Space::Unwritten)));
    }

    #[test]
    fn a_checkpoint_has_no_queue() {
        let rows = rows_of("checkpoint --files 10000 --numjobs 8");
        let paths = ["one-thread", "kernel", "syncfs", "dioxide"].map(|path| (10_000, 8, path));
        assert_eq!(named(&rows), paths);
        assert_eq!(rows[0].0.durability, Durability::OnSync);
    }

    #[test]
    fn each_file_has_a_block() {
        let place = BenchTarget::directory(&std::env::temp_dir()).unwrap();
        let total = |line, wanted| total_bytes(&place, &rows_of(line), wanted);
        assert_eq!(total("files", None).unwrap(), WRITTEN_DEFAULT_BYTES);
        assert_eq!(total("files --files 16384 --bs 8k", None).unwrap(), 128 << 20);
        assert_eq!(total("files --files 10 --numjobs 1", Some(320 << 10)).unwrap(), 320 << 10);
        let refusal = total("files --files 100", Some(399 << 10)).unwrap_err().to_string();
        assert_eq!(
            refusal,
            "files of 399 KiB in all have no room for one block of each file, thread or queued \
             operation (400 KiB); see --size"
        );
        assert!(total("files --space unwritten", None).unwrap() <= UNWRITTEN_DEFAULT_MAX_BYTES);
    }
}
