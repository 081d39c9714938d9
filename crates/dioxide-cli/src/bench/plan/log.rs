//! The plan of the log scenario.

use super::{
    Abilities, Crews, Draft, Plan, Rows, check_ledger, check_space, distinct, memory_bytes,
    one_block_each, points, provisional, size, typed, why_not_recycled,
};
use crate::args;
use crate::args::LogSpace;
use crate::bench::descriptors;
use crate::bench::estimate::Typed;
use crate::bench::place::BenchTarget;
use crate::bench::work::{Point, Route, Scenario, Space, Work};
use crate::bench::write_ahead::{self, SEGMENT_BYTES_LIMIT};
use crate::exit::say;
use crate::sizes::Sizes;
use crate::units;
use anyhow::{Result, ensure};
use dioxide::{Durability, Growth, Tail};

/// Limit of the size of all logs, without `--size`.
pub const SIZE_DEFAULT_MAX_BYTES: u64 = 256 << 20;

/// Without a scenario: the record and the threads.
const TOUR_BYTES: u64 = 100;
const TOUR_NUMJOBS: u32 = 64;

impl Plan {
    pub(super) fn log(args: &args::Log) -> Result<Self> {
        let place = BenchTarget::directory(&args.dir)?;
        let drafts = vec![draft(&place, rows(args), typed(args.pace, args.size))?];
        Ok(Self { place, drafts })
    }
}

pub(super) fn draft(place: &BenchTarget, mut rows: Rows, typed: Typed) -> Result<Draft> {
    let most = rows.iter().filter_map(|(point, _)| point.files).max();
    descriptors::make_room_for(most.unwrap_or(1))?;
    let least = one_block_each(&rows);
    let mut size_bytes = size(place, typed.size_bytes, SIZE_DEFAULT_MAX_BYTES)?;
    if typed.size_bytes.is_none() {
        size_bytes = within(&rows, size_bytes, least, place.room_bytes()?);
    }
    ensure!(
        least <= size_bytes,
        "logs of {} in all have no room for one record of each thread or queued operation ({}); \
         see --size",
        units::about_bytes(size_bytes),
        units::about_bytes(least)
    );
    check_segments(&rows, size_bytes)?;
    check_space(place, files_bytes(&rows, size_bytes))?;
    check_ledger(&rows, size_bytes, memory_bytes())?;
    let abilities = Abilities::of(place, Growth::Unwritten)?;
    if rows.iter().any(|(point, _)| point.space == Some(Space::Recycled))
        && let Some(why) = why_not_recycled(place, Growth::Unwritten)?
    {
        say(&format!("{}: {why}; recycled space is left out", place.name()));
        rows.retain(|(point, _)| point.space != Some(Space::Recycled));
        ensure!(!rows.is_empty(), "no space is left to measure; see --space");
    }
    for (point, _) in &mut rows {
        let is_whole = point.sizes.are_whole(abilities.units.append_bytes);
        point.tail = (!is_whole).then_some(Tail::Rewrite);
    }
    let work = Work::new(rows, provisional(typed), size_bytes, abilities.units);
    Ok(Draft::new(work, typed))
}

/// The size of the segments of each log of `dioxide-log`, and their number in all.
fn segments(&(point, route): &(Point, Route), size_bytes: u64) -> Option<(u64, u64)> {
    let logs = point.files.unwrap_or(1) as u64;
    let of_one = || write_ahead::segments(size_bytes / logs, point.sizes, route.batch());
    let (segment_bytes, count) = route.is_write_ahead().then(of_one)?;
    Some((segment_bytes, logs * count as u64))
}

/// The bytes of all files of a run, at most. The records of `dioxide-log` are copied from its
/// segments to the files that are verified.
fn files_bytes(rows: &Rows, size_bytes: u64) -> u64 {
    let segments = rows.iter().filter_map(|row| segments(row, size_bytes));
    size_bytes + segments.map(|(bytes, count)| bytes * count).max().unwrap_or(0)
}

/// The same size, or a lower one whose files have room, if one is at least `least`.
fn within(rows: &Rows, mut size_bytes: u64, least: u64, room: u64) -> u64 {
    while size_bytes / 2 >= least.max(1) && files_bytes(rows, size_bytes) > room {
        size_bytes /= 2;
    }
    size_bytes
}

/// Refuses batches that are too long for `dioxide-log`.
fn check_segments(rows: &Rows, size_bytes: u64) -> Result<()> {
    let longest = rows.iter().filter_map(|row| segments(row, size_bytes)).map(|(bytes, _)| bytes);
    ensure!(
        longest.max().unwrap_or(0) <= SEGMENT_BYTES_LIMIT,
        "a segment of dioxide-log has no room for two batches of such records: lower --bs or \
         --iodepth"
    );
    Ok(())
}

/// Each point on all applicable routes.
pub fn rows(args: &args::Log) -> Rows {
    let spaces = distinct(&args.space).into_iter().map(Space::from).collect::<Vec<_>>();
    if args.files.is_empty() {
        let crews = Crews::new(&args.numjobs, &args.iodepth);
        return of_one_log(&args.bs, &spaces, &crews, args.pace.rate);
    }
    let mut rows = Rows::new();
    for files in distinct(&args.files) {
        let crews = Crews::new(&[files], &[files]);
        let points = in_each(&spaces, &points_of(&args.bs, &crews, args.pace.rate));
        let with = |point: Point| Point { files: Some(files as usize), ..point };
        rows.extend(crews.rows(points.into_iter().map(with).collect()));
    }
    rows
}

/// The rows of `dioxide bench` without a scenario.
pub(super) fn tour_rows() -> Rows {
    let crews = Crews::new(&[TOUR_NUMJOBS], &[]);
    let spaces = [Space::Unwritten, Space::Recycled];
    let rows = of_one_log(&[Sizes::one(TOUR_BYTES)], &spaces, &crews, None);
    let is_left_out = |route| matches!(route, Route::Mutex | Route::WriteAhead);
    rows.into_iter().filter(|(_, route)| !is_left_out(*route)).collect()
}

fn of_one_log(bs: &[Sizes], spaces: &[Space], crews: &Crews, rate_iops: Option<u64>) -> Rows {
    crews.rows(in_each(spaces, &points_of(bs, crews, rate_iops)))
}

fn points_of(bs: &[Sizes], crews: &Crews, rate_iops: Option<u64>) -> Vec<Point> {
    let durability = [Durability::EveryWrite];
    let points = points(bs, &crews.sizes(), &durability, Growth::None, rate_iops);
    let of_log = |point| Point { scenario: Scenario::Log, growth: None, ..point };
    points.into_iter().map(of_log).collect()
}

fn in_each(spaces: &[Space], points: &[Point]) -> Vec<Point> {
    let with = |space| points.iter().map(move |point| Point { space: Some(space), ..*point });
    spaces.iter().copied().flat_map(with).collect()
}

impl From<LogSpace> for Space {
    fn from(typed: LogSpace) -> Self {
        match typed {
            LogSpace::Unwritten => Self::Unwritten,
            LogSpace::Zeroed => Self::Zeroed,
            LogSpace::Recycled => Self::Recycled,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    const GIB: u64 = 1 << 30;

    fn rows_of(line: &str) -> Rows {
        let words = ["dioxide", "bench", "log"].into_iter().chain(line.split_whitespace());
        let args::Command::Bench(bench) = args::Cli::parse_from(words).command else {
            panic!("{line} is a bench")
        };
        let Some(args::ScenarioArgs::Log(log)) = bench.scenario else { panic!("{line} has logs") };
        rows(&log)
    }

    /// The space, the number of threads or outstanding records, and the path.
    fn named(rows: &Rows) -> Vec<(Space, usize, &'static str)> {
        let name =
            |(point, route): &(Point, Route)| (point.space.unwrap(), point.numjobs, route.name());
        rows.iter().map(name).collect()
    }

    #[test]
    fn every_path_in_every_space() {
        let rows = rows_of("--space recycled,zeroed,recycled --numjobs 1,2 --iodepth 2");
        let one = ["mutex", "buffered-group", "dioxide", "dioxide-log"].map(|path| (1, path));
        let rivals = ["mutex", "buffered-group", "buffered-batch", "gathered-tasks"];
        let files = ["dioxide", "dioxide-log", "dioxide-queue", "dioxide-tasks"];
        let ours = files.into_iter().chain(["dioxide-log-batch", "dioxide-log-tasks"]);
        let two = rivals.into_iter().chain(ours);
        let each = one.into_iter().chain(two.map(|path| (2, path)));
        let expected = [Space::Recycled, Space::Zeroed]
            .into_iter()
            .flat_map(|space| each.clone().map(move |(numjobs, path)| (space, numjobs, path)));
        assert_eq!(named(&rows), expected.collect::<Vec<_>>());
        assert!(rows.iter().all(|(point, _)| point.durability == Durability::EveryWrite));
    }

    #[test]
    fn a_thread_for_each_of_several_logs() {
        let rows = rows_of("--files 3,5 --space unwritten");
        let of = |files| {
            ["kernel", "dioxide", "dioxide-log-set", "dioxide-queue"]
                .map(|path| (Space::Unwritten, files, path))
        };
        assert_eq!(named(&rows), [of(3), of(5)].concat());
        for (point, route) in &rows {
            assert_eq!((point.files, point.lanes(*route)), (Some(point.numjobs), point.numjobs));
        }
    }

    #[test]
    fn each_record_has_room() {
        let place = BenchTarget::directory(&std::env::temp_dir()).unwrap();
        let typed = Typed { size_bytes: Some(6300), ..Typed::default() };
        let refusal = draft(&place, rows_of(""), typed).err().unwrap().to_string();
        assert!(refusal.ends_with("queued operation (6.25 KiB); see --size"), "{refusal}");
        let draft = draft(&place, rows_of("--bs 100,4k"), Typed::default()).unwrap();
        assert!(draft.work.size_bytes <= SIZE_DEFAULT_MAX_BYTES);
        let tails = draft.work.rows.iter().map(|(point, _)| point.tail.is_some());
        assert!(draft.work.rows.iter().map(|(point, _)| point.sizes.max_bytes < 4096).eq(tails));
    }

    /// The defect: the files of a run took nearly four times the size, and space ended in a round.
    #[test]
    fn segments_had_no_space() {
        let rows = rows_of("--files 3");
        assert!(files_bytes(&rows, GIB) > 3 * GIB);
        let without = rows.iter().copied().filter(|(_, route)| !route.is_write_ahead()).collect();
        assert_eq!(files_bytes(&without, GIB), GIB);
        assert_eq!(within(&without, GIB, 1, GIB), GIB);
        let chosen = within(&rows, GIB, 1, 3 * GIB);
        assert!(chosen < GIB && files_bytes(&rows, chosen) <= 3 * GIB, "{chosen}");
        assert_eq!(within(&rows, GIB, GIB, 3 * GIB), GIB);
    }

    /// The defect: `--bs 2m` ended with a record that is too long for a segment.
    #[test]
    fn long_records_have_longer_segments() {
        let rows = rows_of("--bs 16m --iodepth 16");
        let longest = rows.iter().filter_map(|row| segments(row, GIB)).map(|(bytes, _)| bytes);
        assert_eq!(longest.max(), Some(GIB));
        check_segments(&rows, GIB).unwrap();
        let refusal = check_segments(&rows_of("--bs 16m --iodepth 64"), GIB).unwrap_err();
        assert!(refusal.to_string().ends_with("lower --bs or --iodepth"), "{refusal}");
    }
}
