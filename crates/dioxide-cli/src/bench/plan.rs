//! The plan: arguments checked against their target, and converted to work.

mod copy;
mod files;
mod log;

use super::estimate::{self, Length, Trial, Typed};
use super::indirect::WRITE_BYTES;
use super::ledger::Ledger;
use super::place::BenchTarget;
use super::trial::RUNTIME as TRIAL_RUNTIME;
use super::volume::{BLOCK_BYTES, VOLUME_BYTES, Volume};
use super::work::{Backend, Pace, Point, Route, Scenario, Space, Units, Work};
use crate::args;
use crate::exit::say;
use crate::output;
use crate::saved;
use crate::sizes::Sizes;
use crate::units;
use anyhow::{Context, Result, bail, ensure};
use dioxide::{Durability, ErrorKind, Growth, OpenOptions, Tail};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

/// Limit of a scratch file without `--size`.
const SIZE_DEFAULT_MAX_BYTES: u64 = 4 << 30;
/// Limit of one that is filled before each run.
const MIXED_SIZE_DEFAULT_MAX_BYTES: u64 = 256 << 20;
/// Both are also limited to this part of the free space.
const SIZE_DEFAULT_FRACTION: u64 = 4;
/// The ledger of a run may take this part of the memory.
const LEDGER_FRACTION: u64 = 4;
/// Every scenario takes under a minute by default, trials included.
const TIME_MAX: Duration = Duration::from_secs(55);
/// So does `dioxide bench` without a scenario, with these parts of it.
const TOUR_APPEND_MAX: Duration = Duration::from_secs(14);
const TOUR_SYNC_MAX: Duration = Duration::from_secs(6);
const TOUR_MIXED_MAX: Duration = Duration::from_secs(4);
const TOUR_INDIRECT_MAX: Duration = Duration::from_secs(9);
const TOUR_FILES_MAX: Duration = Duration::from_secs(6);
const TOUR_CHECKPOINT_MAX: Duration = Duration::from_secs(6);
const TOUR_LOG_MAX: Duration = Duration::from_secs(4);
const TOUR_COPY_MAX: Duration = Duration::from_secs(4);
/// Its size of the mixed file, which is filled before each run.
const TOUR_MIXED_SIZE_BYTES: u64 = 32 << 20;

/// Limit of a run whose operations are counted.
const COUNTED_MAX: Duration = Duration::from_secs(24 * 3600);

/// Each point on each applicable route.
pub type Rows = Vec<(Point, Route)>;

/// A validated bench.
pub struct Plan {
    pub place: BenchTarget,
    pub drafts: Vec<Draft>,
}

/// Work whose pace trials choose, as far as the user did not.
#[derive(Debug)]
pub struct Draft {
    pub work: Work,
    pub typed: Typed,
    /// For the trials and the runs.
    pub budget: Duration,
}

impl Draft {
    fn new(work: Work, typed: Typed) -> Self {
        Self { work, typed, budget: TIME_MAX }
    }

    /// The same work with the values of a saved run, where the user gave none.
    pub fn like(self, baseline: Option<&saved::SavedDocument>) -> Self {
        let scenario = self.work.rows.first().map_or("", |(point, _)| point.scenario.name());
        let is_same = |row: &&saved::SavedRow| row.key.work.scenario == scenario;
        let Some(row) = baseline.and_then(|saved| saved.results.iter().find(is_same)) else {
            return self;
        };
        let Self { mut work, mut typed, budget } = self;
        typed.count = typed.count.or(row.asked.count);
        typed.runtime = typed.runtime.or(row.asked.runtime_ms.map(Duration::from_millis));
        typed.rounds = typed.rounds.or(u32::try_from(row.rounds_iops.len()).ok());
        let room = least_size(&work.rows, work.units)..=work.size_bytes;
        if typed.size_bytes.is_none() && room.contains(&row.asked.size_bytes) {
            typed.size_bytes = Some(row.asked.size_bytes);
            work.size_bytes = row.asked.size_bytes;
        }
        work = match work.count {
            Some(_) => Work { rounds: provisional(typed).rounds, ..counted(work, typed) },
            None => work.at(provisional(typed)),
        };
        Self { work, typed, budget }
    }

    /// The work at the pace that its trials permit. `tried` is the time of the trials.
    pub fn settle(self, trials: &[Trial], tried: Duration) -> Work {
        let Self { work, typed, budget } = self;
        let budget = budget.saturating_sub(tried);
        let is_counted = work.count.is_some();
        let room = least_size(&work.rows, work.units)..=work.size_bytes;
        let chosen = estimate::choose(trials, typed, is_counted, room, budget);
        let (runtime, count) = match chosen.length {
            Length::Time(runtime) => (runtime, None),
            Length::Count(count) => (work.runtime, Some(count)),
        };
        Work {
            count,
            size_bytes: chosen.size_bytes,
            // The given number of rounds is kept.
            budget: typed.rounds.is_none().then_some(budget),
            estimate: Some(chosen.time),
            ..work.at(Pace { runtime, rounds: chosen.rounds })
        }
    }
}

/// The pace until trials choose another.
fn provisional(typed: Typed) -> Pace {
    let runtime = typed.runtime.unwrap_or(TRIAL_RUNTIME);
    Pace { runtime, rounds: typed.rounds.unwrap_or(1) }
}

fn typed(pace: args::PaceArgs, size_bytes: Option<u64>) -> Typed {
    Typed { runtime: pace.runtime, rounds: pace.rounds, count: None, size_bytes }
}

impl Plan {
    pub fn new(bench: &args::Bench) -> Result<Self> {
        let output = bench.output();
        output::check(&output.wanted(), output.baseline.as_deref().as_slice())?;
        match &bench.scenario {
            None => Self::tour(&bench.dir),
            Some(args::ScenarioArgs::Append(append)) => Self::append(append),
            Some(args::ScenarioArgs::Sync(sync)) => Self::sync(sync),
            Some(args::ScenarioArgs::Mixed(mixed)) => Self::mixed(mixed),
            Some(args::ScenarioArgs::Indirect(indirect)) => Self::indirect(indirect),
            Some(args::ScenarioArgs::Files(files)) => Self::files(files),
            Some(args::ScenarioArgs::Checkpoint(checkpoint)) => Self::checkpoint(checkpoint),
            Some(args::ScenarioArgs::Log(log)) => Self::log(log),
            Some(args::ScenarioArgs::Copy(copy)) => Self::copy(copy),
        }
    }

    /// All scenarios, shortened: `dioxide bench` without a scenario.
    fn tour(dir: &Path) -> Result<Self> {
        let place = BenchTarget::directory(dir)?;
        let size_bytes = size(&place, None, SIZE_DEFAULT_MAX_BYTES)?;
        let open = Typed::default();
        let pace = provisional(open);
        let [append, sync, mixed] = tour_rows();
        let append = append_work(&place, append, pace, size_bytes, false)?;
        let sync = sync_work(&place, sync, pace)?;
        let mixed = mixed_work(&place, mixed, pace, size_bytes.min(TOUR_MIXED_SIZE_BYTES))?;
        let draft = |work, budget| Draft { budget, ..Draft::new(work, open) };
        let mut drafts = vec![
            draft(append, TOUR_APPEND_MAX),
            draft(sync, TOUR_SYNC_MAX),
            draft(mixed, TOUR_MIXED_MAX),
        ];
        let indirect = indirect_work(&place, open).map(|work| Draft::new(work, open));
        let [files, checkpoint] = files::tour_rows().map(|rows| files::draft(&place, rows, open));
        let log = log::draft(&place, log::tour_rows(), open);
        let copy = copy::draft(&place, copy::tour_rows(), open);
        for (name, draft, budget) in [
            ("indirect", indirect, TOUR_INDIRECT_MAX),
            ("files", files, TOUR_FILES_MAX),
            ("checkpoint", checkpoint, TOUR_CHECKPOINT_MAX),
            ("log", log, TOUR_LOG_MAX),
            ("copy", copy, TOUR_COPY_MAX),
        ] {
            match draft {
                Ok(draft) => drafts.push(Draft { budget, ..draft }),
                Err(why) => say(&format!("{why:#}, so `bench {name}` is left out")),
            }
        }
        Ok(Self { place, drafts })
    }

    fn append(args: &args::Append) -> Result<Self> {
        let backend = args.backend.into();
        let (place, size_default_max_bytes) = match backend {
            Backend::System => (BenchTarget::directory(&args.dir)?, SIZE_DEFAULT_MAX_BYTES),
            Backend::Sim => (BenchTarget::nothing(), u64::MAX),
        };
        ensure!(
            backend == Backend::System || !args.recycle,
            "--recycle needs an old file, and --backend sim has none"
        );
        ensure!(
            backend == Backend::System || !args.buffered_group,
            "--buffered-group needs the page cache, and --backend sim has none"
        );
        let size_bytes = size(&place, args.size, size_default_max_bytes)?;
        let (durability, growth) = ([args.durability.into()], args.growth.into());
        let crews = Crews::new(&args.numjobs, &args.iodepth);
        let points = append_points(&args.bs, &crews, &durability, growth, args.pace.rate);
        let points = with_tail(args.tail.into(), on(backend, points));
        let typed = typed(args.pace, args.size);
        let (rows, pace) = (crews.rows(points), provisional(typed));
        let work = append_work(&place, rows, pace, size_bytes, args.buffered_group)?;
        let mut work = Work { growth_cap_bytes: args.growth_cap, ..work };
        if args.positional {
            work.rows = with_positional(work.rows);
        }
        if args.recycle {
            match why_not_recycled(&place, growth)? {
                Some(why) => say(&format!("{}: {why}; `recycled` is left out", place.name())),
                None => work.rows = with_recycled(work.rows),
            }
        }
        Ok(Self { place, drafts: vec![Draft::new(work, typed)] })
    }

    fn sync(args: &args::Sync) -> Result<Self> {
        let place = if args.stripe.is_empty() { place(&args.place)? } else { stripe(args)? };
        let crews = Crews::new(&args.numjobs, &args.iodepth);
        let points = sync_points(&args.bs, &crews, args.pace.rate);
        let typed = typed(args.pace, None);
        let work = sync_work(&place, crews.rows(points), provisional(typed))?;
        Ok(Self { place, drafts: vec![Draft::new(work, typed)] })
    }

    fn indirect(args: &args::Indirect) -> Result<Self> {
        let place = BenchTarget::directory(&args.dir)?;
        let &args::Indirect { count, rounds, .. } = args;
        let typed = Typed { runtime: None, rounds, count, size_bytes: None };
        let work = Work { writes_afresh: args.fresh, ..indirect_work(&place, typed)? };
        Ok(Self { place, drafts: vec![Draft::new(work, typed)] })
    }

    fn mixed(args: &args::Mixed) -> Result<Self> {
        let backend = args.backend.into();
        ensure!(
            backend == Backend::System || args.place.device.is_none(),
            "--device names a device, and --backend sim has none"
        );
        let place = match backend {
            Backend::System => place(&args.place)?,
            Backend::Sim => BenchTarget::nothing(),
        };
        let size_bytes = size(&place, args.size, MIXED_SIZE_DEFAULT_MAX_BYTES)?;
        let crews = Crews::new(&args.numjobs, &args.iodepth);
        let durability = args.durability.into();
        let points = mixed_points(&args.bs, &crews, durability, args.rwmixread, args.pace.rate);
        let (rows, typed) = (crews.rows(on(backend, points)), typed(args.pace, args.size));
        let work = mixed_work(&place, rows, provisional(typed), size_bytes)?;
        Ok(Self { place, drafts: vec![Draft::new(work, typed)] })
    }
}

/// Appends, syncs and mixed operations of `dioxide bench` without a scenario.
fn tour_rows() -> [Rows; 3] {
    let durabilities = [Durability::OnSync, Durability::EveryWrite];
    let crews = Crews::new(&[1, 64], &[64]);
    let append = append_points(&[Sizes::one(4096)], &crews, &durabilities, Growth::Unwritten, None);
    let append = crews.rows(append);
    let crews = Crews::new(&[64], &[64]);
    let sync = crews.rows(sync_points(&[Sizes::one(65536)], &crews, None));
    let crews = Crews::new(&[2], &[64]);
    let mixed = mixed_points(&[Sizes::one(4096)], &crews, Durability::OnSync, 50, None);
    [append, sync, crews.rows(mixed)]
}

/// A device, only if it is named twice.
fn place(args: &args::Place) -> Result<BenchTarget> {
    let Some(device) = &args.device else { return BenchTarget::directory(&args.dir) };
    ensure!(
        args.overwrite_device == [device.as_path()],
        "--device and --overwrite-device name different devices; nothing was touched"
    );
    BenchTarget::device(device)
}

/// Devices, only if they are named twice, in the same order.
fn stripe(args: &args::Sync) -> Result<BenchTarget> {
    ensure!(args.stripe.len() > 1, "--stripe needs two members at least");
    let place = BenchTarget::stripe(&args.stripe, args.chunk)?;
    let named_again = &args.place.overwrite_device;
    if place.is_device() {
        ensure!(
            *named_again == args.stripe,
            "--stripe names devices, and --overwrite-device does not name the same ones; nothing \
             was touched"
        );
    } else {
        ensure!(
            named_again.is_empty(),
            "--overwrite-device names devices, and --stripe directories"
        );
    }
    Ok(place)
}

/// In command line order, each once.
pub fn distinct<T: Copy + Ord>(typed: &[T]) -> Vec<T> {
    let mut seen = BTreeSet::new();
    typed.iter().copied().filter(|value| seen.insert(*value)).collect()
}

/// Numbers of threads, and of outstanding operations in queues. Each once.
pub struct Crews {
    numjobs: Vec<usize>,
    iodepth: Vec<usize>,
}

impl Crews {
    pub fn new(numjobs: &[u32], iodepth: &[u32]) -> Self {
        let numbers = |typed| distinct(typed).into_iter().map(|number| number as usize).collect();
        Self { numjobs: numbers(numjobs), iodepth: numbers(iodepth) }
    }

    /// Both kinds: a queue is compared with as many threads.
    fn sizes(&self) -> Vec<usize> {
        distinct(&[&self.numjobs[..], &self.iodepth].concat())
    }

    /// Each point on all applicable routes, baselines first.
    fn rows(&self, points: Vec<Point>) -> Vec<(Point, Route)> {
        let routes = |point: Point| {
            let has_threads = self.numjobs.contains(&point.numjobs);
            let threads = point.routes().iter().copied().filter(move |_| has_threads);
            let queues = self.iodepth.iter().flat_map(move |iodepth| point.queues(*iodepth));
            let mut routes: Vec<Route> = threads.chain(queues).collect();
            routes.sort_by_key(|route| route.is_dioxide());
            routes.into_iter().map(move |route| (point, route))
        };
        points.into_iter().flat_map(routes).collect()
    }
}

pub fn append_points(
    bs: &[Sizes],
    crews: &Crews,
    durabilities: &[Durability],
    growth: Growth,
    rate_iops: Option<u64>,
) -> Vec<Point> {
    points(bs, &crews.sizes(), durabilities, growth, rate_iops)
}

fn points(
    bs: &[Sizes],
    numjobs: &[usize],
    durabilities: &[Durability],
    growth: Growth,
    rate_iops: Option<u64>,
) -> Vec<Point> {
    let bs = distinct(bs);
    let mut points = Vec::new();
    for &durability in durabilities {
        for &sizes in &bs {
            points.extend(numjobs.iter().map(|&numjobs| Point {
                scenario: Scenario::Append,
                backend: Backend::System,
                sizes,
                numjobs,
                durability,
                growth: Some(growth),
                tail: None,
                rwmixread: None,
                rate_iops,
                files: None,
                space: None,
            }));
        }
    }
    points
}

pub fn sync_points(bs: &[Sizes], crews: &Crews, rate_iops: Option<u64>) -> Vec<Point> {
    let mut points = points(bs, &crews.sizes(), &[Durability::EveryWrite], Growth::None, rate_iops);
    for point in &mut points {
        (point.scenario, point.growth) = (Scenario::Sync, None);
    }
    points
}

pub fn mixed_points(
    bs: &[Sizes],
    crews: &Crews,
    durability: Durability,
    rwmixread: u32,
    rate_iops: Option<u64>,
) -> Vec<Point> {
    let mut points = points(bs, &crews.numjobs, &[durability], Growth::None, rate_iops);
    for point in &mut points {
        (point.scenario, point.growth, point.rwmixread) = (Scenario::Mixed, None, Some(rwmixread));
    }
    points
}

fn indirect_point() -> Point {
    let mut points =
        points(&[Sizes::one(WRITE_BYTES)], &[1], &[Durability::OnSync], Growth::None, None);
    let point = points.remove(0);
    Point { scenario: Scenario::Indirect, growth: None, ..point }
}

/// Whether the kernel can mount a volume for this process; the reason if not. An error if no volume
/// can be made at all.
fn can_mount(place: &BenchTarget) -> Result<Result<(), String>> {
    let volume = Volume::make(place)?;
    if !rustix::process::geteuid().is_root() {
        return Ok(Err("a loop mount is for root only".into()));
    }
    match volume.mount() {
        Ok(mounted) => mounted.unmount().map(Ok),
        Err(error) => Ok(Err(format!("{error:#}"))),
    }
}

fn on(backend: Backend, points: Vec<Point>) -> Vec<Point> {
    points.into_iter().map(|point| Point { backend, ..point }).collect()
}

/// Appends whose records do not fill their blocks.
fn with_tail(tail: Tail, points: Vec<Point>) -> Vec<Point> {
    points.into_iter().map(|point| Point { tail: Some(tail), ..point }).collect()
}

pub fn append_work(
    place: &BenchTarget,
    mut rows: Rows,
    pace: Pace,
    size_bytes: u64,
    buffered_group: bool,
) -> Result<Work> {
    let largest = check_room(place, &rows, size_bytes)?;
    let abilities = Abilities::of(place, rows[0].0.growth.unwrap_or(Growth::None))?;
    for (point, _) in &mut rows {
        let tail = point.tail.unwrap_or(Tail::Rewrite);
        point.tail = (!point.sizes.are_whole(abilities.units.append_bytes)).then_some(tail);
        point.growth = Some(abilities.growth);
    }
    if rows.iter().any(|(_, route)| *route == Route::Preallocated)
        && let Err(error) = place.prepare()?.preallocate(largest)
    {
        ensure!(error != Errno::NOSPC, "{}: the file system is full ({error})", place.name());
        say(&format!("{}: no fallocate ({error}), so `preallocated` is left out", place.name()));
        rows.retain(|(_, route)| *route != Route::Preallocated);
    }
    rows = with_buffered_group(rows, buffered_group);
    Ok(Work::new(rows, pace, size_bytes, abilities.units))
}

pub fn sync_work(place: &BenchTarget, rows: Rows, pace: Pace) -> Result<Work> {
    let largest = one_block_each(&rows);
    check_space(place, largest)?;
    check_ledger(&rows, largest, memory_bytes())?;
    let abilities = Abilities::of(place, Growth::None)?;
    abilities.check_writes(&rows)?;
    Ok(Work::new(rows, pace, largest, abilities.units))
}

pub fn mixed_work(
    place: &BenchTarget,
    mut rows: Rows,
    pace: Pace,
    size_bytes: u64,
) -> Result<Work> {
    check_room(place, &rows, size_bytes)?;
    let abilities = Abilities::of(place, Growth::None)?;
    abilities.check_writes(&rows)?;
    has_room(place, size_bytes, least_size(&rows, abilities.units))?;
    if rows.iter().any(|row| abilities.is_impossible(row)) {
        let unit = units::bytes(abilities.units.write_bytes);
        say(&format!("direct writes come in multiples of {unit} here, so `kernel` is left out"));
        rows.retain(|row| !abilities.is_impossible(row));
    }
    Ok(Work::new(rows, pace, size_bytes, abilities.units))
}

/// The same with each row of the kernel path, which merges no parts of blocks.
pub fn whole_mixed_work(
    place: &BenchTarget,
    rows: Rows,
    pace: Pace,
    size_bytes: u64,
) -> Result<Work> {
    Abilities::of(place, Growth::None)?.check_kernel_writes(&rows)?;
    mixed_work(place, rows, pace, size_bytes)
}

fn indirect_work(place: &BenchTarget, typed: Typed) -> Result<Work> {
    check_space(place, 2 * VOLUME_BYTES)?;
    let mut rows = indirect_rows();
    if let Err(why) = can_mount(place)? {
        say(&format!("{why}, so `kernel` is left out"));
        rows.retain(|(_, route)| *route != Route::Kernel);
    }
    let pace = provisional(typed);
    let pace = Pace { runtime: COUNTED_MAX, ..pace };
    let units = Units { write_bytes: BLOCK_BYTES, append_bytes: BLOCK_BYTES };
    Ok(counted(Work::new(rows, pace, WRITE_BYTES, units), typed))
}

/// Its runs end after a number of operations.
fn counted(work: Work, typed: Typed) -> Work {
    Work { count: Some(typed.count.unwrap_or(1)), ..work }
}

fn indirect_rows() -> Rows {
    Crews::new(&[1], &[]).rows(vec![indirect_point()])
}

fn check_space(place: &BenchTarget, needed: u64) -> Result<()> {
    let room = place.room_bytes()?;
    ensure!(
        needed <= room,
        "{} has {}, and this needs {}",
        place.name(),
        units::about_bytes(room),
        units::about_bytes(needed)
    );
    Ok(())
}

/// The least size for one block per outstanding operation, and per file if there are several.
fn one_block_each(rows: &[(Point, Route)]) -> u64 {
    rows.iter().map(|(point, route)| point.least_bytes(*route)).max().unwrap_or(0)
}

/// As [`one_block_each`], in whole units of direct writes: nothing else is filled beforehand.
fn least_size(rows: &[(Point, Route)], units: Units) -> u64 {
    one_block_each(rows).next_multiple_of(units.write_bytes)
}

/// Checks that each outstanding operation has space in a file of this size, and that the ledger
/// fits. Returns the memory for one block each.
fn check_room(place: &BenchTarget, rows: &[(Point, Route)], size_bytes: u64) -> Result<u64> {
    let largest = one_block_each(rows);
    has_room(place, size_bytes, largest)?;
    // A ledger of the simulated disk has nothing to check.
    match rows.iter().any(|(point, _)| point.backend == Backend::System) {
        true => check_ledger(rows, size_bytes, memory_bytes())?,
        false => check_blocks(rows, 0, memory_bytes())?,
    }
    Ok(largest)
}

fn has_room(place: &BenchTarget, size_bytes: u64, largest: u64) -> Result<()> {
    if largest > size_bytes {
        bail!(no_room(&place.name(), place.room_bytes()?, size_bytes, largest));
    }
    Ok(())
}

/// The reason why `largest` bytes do not fit into a file of `size_bytes`.
fn no_room(place: &str, free: u64, size_bytes: u64, largest: u64) -> String {
    let about = units::about_bytes;
    let file = format!(
        "a file of {} has no room for one block of each thread or queued operation",
        about(size_bytes)
    );
    if largest > free {
        format!("{file}: {place} has {} free, and this needs {}", about(free), about(largest))
    } else {
        format!("{file} ({}); see --size", about(largest))
    }
}

/// The blocks of each operation that may be outstanding: one to write, one to read into, and the
/// expected content.
const BLOCKS_OF_A_LANE: u64 = 3;

/// Refuses a ledger, or blocks, that would exhaust the memory of the machine.
fn check_ledger(rows: &[(Point, Route)], size_bytes: u64, memory_bytes: u64) -> Result<()> {
    let smallest = rows.iter().map(|(point, _)| point.sizes.min_bytes).min().unwrap_or(u64::MAX);
    let ledger = Ledger::memory_bytes(size_bytes / smallest);
    ensure!(
        ledger <= memory_bytes / LEDGER_FRACTION,
        "to note every write of {} in a file of {} takes {} of memory, over a quarter of it: lower \
         --size or raise --bs",
        units::size(smallest),
        units::about_bytes(size_bytes),
        units::about_bytes(ledger)
    );
    check_blocks(rows, ledger, memory_bytes)
}

/// Refuses blocks that would exhaust the memory of the machine, with so many bytes of notes.
fn check_blocks(rows: &[(Point, Route)], notes_bytes: u64, memory_bytes: u64) -> Result<()> {
    let blocks = |(point, route): &(Point, Route)| {
        BLOCKS_OF_A_LANE * point.lanes(*route) as u64 * point.sizes.max_bytes
    };
    let blocks = rows.iter().map(blocks).max().unwrap_or(0);
    ensure!(
        notes_bytes.saturating_add(blocks) <= memory_bytes / LEDGER_FRACTION,
        "the blocks of all threads or queued operations take {} of memory, with the notes over a \
         quarter of it: lower --bs, --numjobs or --iodepth",
        units::about_bytes(blocks)
    );
    Ok(())
}

fn memory_bytes() -> u64 {
    let machine = rustix::system::sysinfo();
    machine.totalram as u64 * u64::from(machine.mem_unit)
}

/// Adds positional writes to dioxide's points, where direct writes allow them.
fn with_positional(rows: Rows) -> Rows {
    let both = |(point, route): (Point, Route)| match route {
        Route::Dioxide if point.tail.is_none() => vec![(point, route), (point, Route::Positional)],
        _ => vec![(point, route)],
    };
    rows.into_iter().flat_map(both).collect()
}

/// Adds appends over an old file to dioxide's points.
fn with_recycled(rows: Rows) -> Rows {
    let both = |(point, route)| match route {
        Route::Dioxide => vec![(point, route), (point, Route::Recycled)],
        _ => vec![(point, route)],
    };
    rows.into_iter().flat_map(both).collect()
}

/// Adds a group commit to points with a tail, and to others if requested, for threads only.
fn with_buffered_group(rows: Rows, is_wanted: bool) -> Rows {
    let both = |(point, route): (Point, Route)| match route {
        Route::Dioxide
            if point.backend == Backend::System && (is_wanted || point.tail.is_some()) =>
        {
            vec![(point, Route::BufferedGroup), (point, route)]
        }
        _ => vec![(point, route)],
    };
    rows.into_iter().flat_map(both).collect()
}

/// The library's reason if it cannot recycle files here.
fn why_not_recycled(place: &BenchTarget, growth: Growth) -> Result<Option<String>> {
    let ground = place.prepare()?;
    let file = ground.open_with(OpenOptions::new().write(true).growth(growth))?;
    let why = match file.recycle() {
        Ok(()) => None,
        Err(error) => match error.kind() {
            ErrorKind::Unsupported(why) => Some(why.clone()),
            _ => return Err(error.into()),
        },
    };
    file.close()?;
    Ok(why)
}

/// The abilities of a target.
struct Abilities {
    units: Units,
    /// dioxide's actual growth.
    growth: Growth,
}

impl Abilities {
    /// From the library, and the first proof that it works here at all.
    fn of(place: &BenchTarget, growth: Growth) -> Result<Self> {
        let ground = place.prepare()?;
        // Gives a better message for a file system without O_DIRECT.
        if !place.keeps_nothing() {
            drop(ground.open_members(OFlags::empty()).with_context(|| place.name())?);
        }
        let mut options = OpenOptions::new();
        let file =
            ground.open_with(options.write(true).growth(growth)).with_context(|| place.name())?;
        let dioxide::Alignment { offset, append, .. } = file.alignment();
        let units = Units { write_bytes: offset.max(1), append_bytes: append.max(1) };
        let abilities = Self { units, growth: file.growth() };
        file.close().with_context(|| place.name())?;
        Ok(abilities)
    }

    /// Whether the blocks are parts of those that direct writes take, and all paths but `kernel`
    /// merge them with the rest.
    fn merges(&self, point: Point) -> bool {
        point.scenario == Scenario::Mixed
            && point.durability == Durability::EveryWrite
            && self.units.write_bytes.is_multiple_of(point.sizes.max_bytes)
    }

    /// Refuses block sizes that direct writes do not support.
    fn check_writes(&self, rows: &[(Point, Route)]) -> Result<()> {
        self.refuse(rows.iter().find(|(point, _)| !self.takes(*point) && !self.merges(*point)))
    }

    /// Refuses block sizes that the kernel path does not support.
    fn check_kernel_writes(&self, rows: &[(Point, Route)]) -> Result<()> {
        self.refuse(rows.iter().find(|row| self.is_impossible(row)))
    }

    /// Whether direct writes take blocks of these sizes.
    fn takes(&self, point: Point) -> bool {
        point.sizes.are_whole(self.units.write_bytes)
    }

    fn is_impossible(&self, &(point, route): &(Point, Route)) -> bool {
        route == Route::Kernel && !self.takes(point)
    }

    fn refuse(&self, row: Option<&(Point, Route)>) -> Result<()> {
        let Some((point, _)) = row else { return Ok(()) };
        let [bs, unit] = [point.sizes.max_bytes, self.units.write_bytes].map(units::bytes);
        bail!("--bs {bs}: direct writes come in multiples of {unit} here")
    }
}

/// The maximum size of a scratch file, or of the used part of a device.
pub fn size(place: &BenchTarget, wanted: Option<u64>, default_max_bytes: u64) -> Result<u64> {
    let free = place.room_bytes()?;
    match wanted {
        None => Ok(default_max_bytes.min(free / SIZE_DEFAULT_FRACTION)),
        Some(size) if size <= free => Ok(size),
        Some(size) => {
            let (size, free) = (units::bytes(size), units::about_bytes(free));
            bail!("--size {size}: {} has only {free} free", place.name())
        }
    }
}

impl From<args::Durability> for Durability {
    fn from(typed: args::Durability) -> Self {
        match typed {
            args::Durability::OnSync => Self::OnSync,
            args::Durability::EveryWrite => Self::EveryWrite,
        }
    }
}

impl From<args::SpaceArg> for Space {
    fn from(typed: args::SpaceArg) -> Self {
        match typed {
            args::SpaceArg::Written => Self::Written,
            args::SpaceArg::Unwritten => Self::Unwritten,
        }
    }
}

impl From<args::BackendArg> for Backend {
    fn from(typed: args::BackendArg) -> Self {
        match typed {
            args::BackendArg::System => Self::System,
            args::BackendArg::Sim => Self::Sim,
        }
    }
}

impl From<args::TailArg> for Tail {
    fn from(typed: args::TailArg) -> Self {
        match typed {
            args::TailArg::Rewrite => Self::Rewrite,
            args::TailArg::Pad => Self::Pad,
        }
    }
}

impl From<args::Growth> for Growth {
    fn from(typed: args::Growth) -> Self {
        match typed {
            args::Growth::Unwritten => Self::Unwritten,
            args::Growth::Zeroed => Self::Zeroed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::trial::is_filled;
    use super::*;
    use clap::Parser;

    fn simple_rows(bs: &[u64]) -> Rows {
        let crews = Crews::new(&[1], &[]);
        let bs: Vec<Sizes> = bs.iter().map(|bytes| Sizes::one(*bytes)).collect();
        crews.rows(append_points(&bs, &crews, &[Durability::OnSync], Growth::Unwritten, None))
    }

    #[test]
    fn points_by_durability_block_size_and_threads() {
        let durabilities = [Durability::OnSync, Durability::EveryWrite];
        let points =
            points(&[4096, 8192].map(Sizes::one), &[1, 64], &durabilities, Growth::Zeroed, None);
        assert_eq!(points.len(), 8);
        assert_eq!((points[1].sizes, points[1].numjobs), (Sizes::one(4096), 64));
        assert_eq!((points[2].sizes, points[2].numjobs), (Sizes::one(8192), 1));
        assert!(points[4..].iter().all(|point| point.durability == Durability::EveryWrite));
        assert!(points.iter().all(|point| point.growth == Some(Growth::Zeroed)));
    }

    #[test]
    fn a_value_typed_twice_is_one() {
        let crews = Crews::new(&[4, 1, 4, 4], &[2, 1, 2]);
        let points = append_points(
            &[8192, 4096, 8192].map(Sizes::one),
            &crews,
            &[Durability::OnSync],
            Growth::None,
            None,
        );
        let points: Vec<_> =
            points.iter().map(|point| (point.sizes.max_bytes, point.numjobs)).collect();
        assert_eq!(points, [(8192, 4), (8192, 1), (8192, 2), (4096, 4), (4096, 1), (4096, 2)]);
    }

    #[test]
    fn a_queue_stands_beside_as_many_threads() {
        let routes = |rows: Rows| {
            rows.into_iter().map(|(point, route)| (point.numjobs, route)).collect::<Vec<_>>()
        };
        let (dioxide, queue) = (Route::Dioxide, |iodepth| Route::Queue { iodepth });
        let crews = Crews::new(&[1, 4], &[4, 64]);
        let append = on(
            Backend::Sim,
            append_points(&[Sizes::one(4096)], &crews, &[Durability::OnSync], Growth::None, None),
        );
        assert_eq!(
            routes(crews.rows(append)),
            [(1, dioxide), (4, dioxide), (4, queue(4)), (64, queue(64))]
        );
        let sync = sync_points(&[Sizes::one(4096)], &Crews::new(&[4], &[4]), None);
        assert_eq!(routes(Crews::new(&[4], &[4]).rows(sync)).len(), 4);
        let mixed = on(
            Backend::Sim,
            mixed_points(&[Sizes::one(4096)], &crews, Durability::OnSync, 50, None),
        );
        assert_eq!(
            routes(crews.rows(mixed)),
            [
                (1, dioxide),
                (1, queue(4)),
                (1, queue(64)),
                (4, dioxide),
                (4, queue(4)),
                (4, queue(64))
            ]
        );
    }

    #[test]
    fn every_operation_outstanding_needs_a_block() {
        let crews = Crews::new(&[2], &[64]);
        assert_eq!(
            one_block_each(&crews.rows(mixed_points(
                &[Sizes::one(4096)],
                &crews,
                Durability::OnSync,
                50,
                None
            ))),
            128 * 4096
        );
        assert_eq!(
            one_block_each(&crews.rows(sync_points(&[Sizes::one(4096)], &crews, None))),
            64 * 4096
        );
    }

    #[test]
    fn a_full_disk_is_called_so() {
        assert_eq!(
            no_room("/full", 4096, 1024, 8192),
            "a file of 1 KiB has no room for one block of each thread or queued operation: /full \
             has 4 KiB free, and this needs 8 KiB"
        );
        assert!(
            no_room("/large", 1 << 30, 1024, 8192)
                .ends_with("or queued operation (8 KiB); see --size")
        );
    }

    #[test]
    fn a_ledger_leaves_memory_to_others() {
        let rows = simple_rows(&[4096, 512]);
        let blocks = 3 * 4096;
        check_ledger(&rows, (128 << 20) - 512 * blocks / 8, 8 << 20).unwrap();
        let refusal = check_ledger(&rows, (128 << 20) + 512, 8 << 20).unwrap_err().to_string();
        assert_eq!(
            refusal,
            "to note every write of 512 B in a file of 128 MiB takes 2 MiB of memory, over a \
             quarter of it: lower --size or raise --bs"
        );
        assert!(memory_bytes() > 64 << 20);
    }

    /// The defect: these options were accepted, and did nothing.
    #[test]
    fn simulated_files_have_no_device_and_no_page_cache() {
        for options in ["append --buffered-group", "mixed --device /x --overwrite-device /x"] {
            let line = format!("dioxide bench {options} --backend sim");
            let command = args::Cli::parse_from(line.split_whitespace()).command;
            let args::Command::Bench(bench) = command else { panic!("{line} is a bench") };
            let refusal = Plan::new(&bench).err().unwrap().to_string();
            assert!(refusal.ends_with("--backend sim has none"), "{refusal}");
        }
    }

    /// The defect: 1024 blocks of 16 MiB for 1024 queued operations exhausted the memory.
    #[test]
    fn blocks_of_the_lanes_leave_memory_to_others() {
        let crews = Crews::new(&[1], &[1024]);
        let bs = [Sizes::one(16 << 20)];
        let rows = crews.rows(sync_points(&bs, &crews, None));
        check_ledger(&rows, 16 << 30, (4 * 49) << 30).unwrap();
        let refusal = check_ledger(&rows, 16 << 30, 24 << 30).unwrap_err().to_string();
        assert_eq!(
            refusal,
            "the blocks of all threads or queued operations take 48 GiB of memory, with the notes \
             over a quarter of it: lower --bs, --numjobs or --iodepth"
        );
    }

    #[test]
    fn sync_points_do_not_grow() {
        let points = sync_points(&[Sizes::one(65536)], &Crews::new(&[64], &[64]), Some(5));
        assert_eq!(points[0].rate_iops, Some(5));
        assert_eq!(points.len(), 1);
        assert_eq!((points[0].scenario, points[0].growth), (Scenario::Sync, None));
        assert_eq!(points[0].durability, Durability::EveryWrite);
    }

    #[test]
    fn mixed_points_have_reads() {
        let crews = Crews::new(&[1, 2], &[64]);
        let points = mixed_points(&[Sizes::one(4096)], &crews, Durability::OnSync, 70, None);
        assert_eq!(points.len(), 2);
        assert_eq!(
            (points[1].scenario, points[1].rwmixread, points[1].numjobs),
            (Scenario::Mixed, Some(70), 2)
        );
        assert_eq!((points[0].durability, points[0].growth), (Durability::OnSync, None));
    }

    #[test]
    fn blocks_must_fit_the_unit() {
        let units = |write_bytes| Units { write_bytes, append_bytes: 4096 };
        let abilities = |write_unit| Abilities { units: units(write_unit), growth: Growth::None };
        let refusal =
            abilities(4096).check_writes(&simple_rows(&[4096, 512])).unwrap_err().to_string();
        assert_eq!(refusal, "--bs 512: direct writes come in multiples of 4k here");
        abilities(512).check_writes(&simple_rows(&[4096, 512])).unwrap();
    }

    #[test]
    fn durable_writes_of_parts_of_units_are_merged() {
        let units = Units { write_bytes: 4096, append_bytes: 4096 };
        let abilities = Abilities { units, growth: Growth::None };
        let check = |bs, durability| {
            let crews = Crews::new(&[16], &[]);
            let points = mixed_points(&[Sizes::one(bs)], &crews, durability, 0, None);
            abilities.check_writes(&crews.rows(points))
        };
        check(512, Durability::EveryWrite).unwrap();
        check(1536, Durability::EveryWrite).unwrap_err();
        check(512, Durability::OnSync).unwrap_err();
    }

    #[test]
    fn the_kernel_path_merges_nothing() {
        let units = Units { write_bytes: 4096, append_bytes: 4096 };
        let abilities = Abilities { units, growth: Growth::None };
        let check = |bs, route| {
            let crews = Crews::new(&[16], &[]);
            let points = mixed_points(&[Sizes::one(bs)], &crews, Durability::EveryWrite, 0, None);
            abilities.check_kernel_writes(&[(points[0], route)])
        };
        let refusal = check(512, Route::Kernel).unwrap_err().to_string();
        assert_eq!(refusal, "--bs 512: direct writes come in multiples of 4k here");
        check(512, Route::Dioxide).unwrap();
        check(4096, Route::Kernel).unwrap();
    }

    #[test]
    fn a_tail_brings_a_group_commit() {
        let routes = |rows: Rows| rows.into_iter().map(|(_, route)| route).collect::<Vec<_>>();
        let whole = simple_rows(&[4096]);
        let packed: Rows = whole
            .iter()
            .map(|&(point, route)| (Point { tail: Some(Tail::Pad), ..point }, route))
            .collect();
        let plain = [Route::Kernel, Route::Preallocated, Route::Dioxide];
        let all = [Route::Kernel, Route::Preallocated, Route::BufferedGroup, Route::Dioxide];
        assert_eq!(routes(with_buffered_group(whole.clone(), false)), plain);
        assert_eq!(
            routes(with_positional(whole.clone())),
            [&plain[..], &[Route::Positional]].concat()
        );
        assert_eq!(routes(with_buffered_group(whole, true)), all);
        assert_eq!(routes(with_buffered_group(packed.clone(), false)), all);
        assert_eq!(routes(with_positional(packed)), plain, "positional writes are of whole blocks");
    }

    #[test]
    fn size_is_capped() {
        let place = BenchTarget::directory(&std::env::temp_dir()).unwrap();
        assert_eq!(size(&place, None, 8192).unwrap(), 8192);
        assert!(size(&place, None, u64::MAX).unwrap() <= place.room_bytes().unwrap() / 2);
        assert_eq!(size(&place, Some(4096), 0).unwrap(), 4096);
        assert!(size(&place, Some(u64::MAX), 0).unwrap_err().to_string().contains("free"));
    }

    /// A device by its speeds.
    struct Speeds {
        flush_ms: f64,
        /// One write without a flush.
        write_ms: f64,
        bytes_per_s: f64,
    }

    /// A disk with a write cache and 100 flushes a second.
    const HDD: Speeds = Speeds { flush_ms: 10.0, write_ms: 0.5, bytes_per_s: 100e6 };
    const NVME: Speeds = Speeds { flush_ms: 0.02, write_ms: 0.02, bytes_per_s: 2e9 };

    impl Speeds {
        /// A trial of one path, as slow as it can be.
        fn trial(&self, point: Point, route: Route) -> Trial {
            const FILLED: f64 = (16 << 20) as f64;
            let seconds = Duration::from_secs_f64;
            let (flush_s, write_s) = (self.flush_ms / 1e3, self.write_ms / 1e3);
            let (lanes, bs) = (point.lanes(route) as f64, point.sizes.max_bytes as f64);
            let is_durable = point.durability == Durability::EveryWrite;
            let each_s = if is_durable { write_s + flush_s } else { write_s };
            let (filled, last) = match point.scenario {
                Scenario::Append => (0.0, lanes * each_s),
                Scenario::Sync => (lanes * bs, lanes * each_s),
                Scenario::Mixed => (FILLED, lanes * write_s),
                Scenario::Indirect if route == Route::Serialised => {
                    (VOLUME_BYTES as f64, 1024.0 * (write_s + 4096.0 / self.bytes_per_s))
                }
                Scenario::Indirect => (VOLUME_BYTES as f64, bs / self.bytes_per_s),
                Scenario::Files | Scenario::Log => (FILLED, lanes * each_s),
                Scenario::Copy => (FILLED, 2.0 * FILLED / self.bytes_per_s),
                Scenario::Checkpoint => {
                    let flushes = match route {
                        Route::OneThread => point.files.unwrap() as f64,
                        Route::Kernel => point.files.unwrap() as f64 / lanes,
                        _ => 1.0,
                    };
                    (FILLED, flushes * flush_s)
                }
            };
            let is_counted = point.scenario == Scenario::Indirect;
            let clock = if is_counted { last + flush_s } else { 0.1 + last + flush_s };
            let reread = if point.scenario == Scenario::Append { 0.1 } else { 0.0 };
            Trial {
                before: seconds(filled / self.bytes_per_s + 5.0 * flush_s),
                clock: seconds(clock),
                after: seconds(reread + 5.0 * flush_s),
                ops: 1,
                runtime: TRIAL_RUNTIME,
                filled_bytes: is_filled(&point, route).then_some(FILLED as u64),
            }
        }

        /// The expected duration of the draft, trials included, and its work.
        fn settle(&self, draft: Draft) -> (Duration, Work) {
            let trials: Vec<_> =
                draft.work.rows.iter().map(|(point, route)| self.trial(*point, *route)).collect();
            let tried = trials.iter().map(|it| it.before + it.clock + it.after).sum();
            let work = draft.settle(&trials, tried);
            (tried + work.time().unwrap(), work)
        }
    }

    fn draft(rows: Rows, size_bytes: u64, budget: Duration) -> Draft {
        let units = Units { write_bytes: 512, append_bytes: 4096 };
        let is_counted = rows[0].0.scenario == Scenario::Indirect;
        let work = Work::new(rows, provisional(Typed::default()), size_bytes, units);
        let work = if is_counted { counted(work, Typed::default()) } else { work };
        Draft { budget, ..Draft::new(work, Typed::default()) }
    }

    /// Each scenario as it is typed without options.
    fn default_drafts() -> Vec<Draft> {
        let scenario = |name| {
            let cli = args::Cli::parse_from(["dioxide", "bench", name]);
            let args::Command::Bench(bench) = cli.command else { panic!("{name}") };
            bench.scenario.unwrap()
        };
        let rows = |name| match scenario(name) {
            args::ScenarioArgs::Append(it) => {
                let crews = Crews::new(&it.numjobs, &it.iodepth);
                let durability = [it.durability.into()];
                let growth = it.growth.into();
                assert_eq!(typed(it.pace, it.size), Typed::default());
                crews.rows(append_points(&it.bs, &crews, &durability, growth, it.pace.rate))
            }
            args::ScenarioArgs::Sync(it) => {
                let crews = Crews::new(&it.numjobs, &it.iodepth);
                assert_eq!(typed(it.pace, None), Typed::default());
                crews.rows(sync_points(&it.bs, &crews, it.pace.rate))
            }
            args::ScenarioArgs::Mixed(it) => {
                let crews = Crews::new(&it.numjobs, &it.iodepth);
                assert_eq!(typed(it.pace, it.size), Typed::default());
                let durability = it.durability.into();
                let rate = it.pace.rate;
                crews.rows(mixed_points(&it.bs, &crews, durability, it.rwmixread, rate))
            }
            args::ScenarioArgs::Indirect(it) => {
                assert_eq!((it.count, it.rounds), (None, None));
                indirect_rows()
            }
            args::ScenarioArgs::Files(it) => {
                assert_eq!(typed(it.pace, it.size), Typed::default());
                files::rows(&it)
            }
            args::ScenarioArgs::Log(it) => {
                assert_eq!(typed(it.pace, it.size), Typed::default());
                log::rows(&it)
            }
            args::ScenarioArgs::Copy(it) => {
                assert_eq!((it.runtime, it.rounds, it.size), (None, None, None));
                copy::rows(&it.rw)
            }
            args::ScenarioArgs::Checkpoint(it) => {
                assert_eq!((it.runtime, it.rounds, it.size), (None, None, None));
                files::checkpoint_rows(&it)
            }
        };
        [
            ("append", SIZE_DEFAULT_MAX_BYTES),
            ("sync", 4 << 20),
            ("mixed", MIXED_SIZE_DEFAULT_MAX_BYTES),
            ("indirect", WRITE_BYTES),
            ("files", files::WRITTEN_DEFAULT_BYTES),
            ("checkpoint", files::WRITTEN_DEFAULT_BYTES),
            ("log", log::SIZE_DEFAULT_MAX_BYTES),
            ("copy", copy::SIZE_DEFAULT_MAX_BYTES),
        ]
        .map(|(name, size_bytes)| draft(rows(name), size_bytes, TIME_MAX))
        .into()
    }

    #[test]
    fn indirect_took_an_hour_by_default() {
        for speeds in [HDD, NVME] {
            for draft in default_drafts() {
                let (time, work) = speeds.settle(draft);
                assert!(time < Duration::from_secs(60), "{time:?}: {work:?}");
            }
        }
    }

    #[test]
    fn the_tour_took_96_seconds() {
        for speeds in [HDD, NVME] {
            let [append, sync, mixed] = tour_rows();
            let [files, checkpoint] = files::tour_rows();
            let drafts = [
                draft(append, SIZE_DEFAULT_MAX_BYTES, TOUR_APPEND_MAX),
                draft(sync, 4 << 20, TOUR_SYNC_MAX),
                draft(mixed, TOUR_MIXED_SIZE_BYTES, TOUR_MIXED_MAX),
                draft(indirect_rows(), WRITE_BYTES, TOUR_INDIRECT_MAX),
                draft(files, files::WRITTEN_DEFAULT_BYTES, TOUR_FILES_MAX),
                draft(checkpoint, files::WRITTEN_DEFAULT_BYTES, TOUR_CHECKPOINT_MAX),
                draft(log::tour_rows(), log::SIZE_DEFAULT_MAX_BYTES, TOUR_LOG_MAX),
                draft(copy::tour_rows(), copy::SIZE_DEFAULT_MAX_BYTES, TOUR_COPY_MAX),
            ];
            let settled = drafts.map(|draft| speeds.settle(draft));
            let time: Duration = settled.iter().map(|(time, _)| *time).sum();
            assert!(time < Duration::from_secs(60), "{time:?}: {settled:?}");
        }
    }

    #[test]
    fn the_tour_left_scenarios_out() {
        let drafts = Plan::tour(&std::env::temp_dir()).unwrap().drafts;
        let scenarios = drafts.iter().map(|draft| draft.work.rows[0].0.scenario.name());
        let expected =
            ["append", "sync", "mixed", "indirect", "files", "checkpoint", "log", "copy"];
        assert_eq!(scenarios.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_run_is_like_its_baseline() {
        use crate::saved::examples;
        let mut row = examples::row("kernel", 1, &[1.0; 7], None);
        row.asked.size_bytes = 1 << 20;
        let saved = examples::document(vec![row]);
        let [append, sync, _] = tour_rows();
        let open = draft(append, 4 << 20, TIME_MAX);
        let typed = Typed { rounds: Some(3), ..Typed::default() };
        let like = Draft { typed, work: open.work.clone(), ..open }.like(Some(&saved));
        assert_eq!((like.work.runtime, like.work.rounds), (Duration::from_secs(2), 3), "typed");
        let like = open.like(Some(&saved));
        assert_eq!((like.work.runtime, like.work.rounds), (Duration::from_secs(2), 7));
        assert_eq!((like.work.size_bytes, like.typed.needs_trials()), (1 << 20, false));
        let other = draft(sync, 4 << 20, TIME_MAX).like(Some(&saved));
        assert!(other.typed.needs_trials(), "of another scenario");
    }

    /// A size with less than one block for each operation outstanding was chosen.
    #[test]
    fn mixed_panicked_on_slow_devices() {
        let crews = Crews::new(&[64], &[64]);
        let bs = [Sizes::one(64 << 10)];
        let rows = crews.rows(mixed_points(&bs, &crews, Durability::OnSync, 50, None));
        let least = one_block_each(&rows);
        let (_, work) = HDD.settle(draft(rows, 4 * least - 4096, TIME_MAX));
        assert_eq!(work.size_bytes, 2 * least - 2048);
    }

    /// Nine blocks of 512 B in a file whose whole units of 4 KiB have eight.
    #[test]
    fn blocks_below_the_unit_had_no_room() {
        let crews = Crews::new(&[9], &[]);
        let bs = [Sizes::one(512)];
        let rows = crews.rows(mixed_points(&bs, &crews, Durability::EveryWrite, 0, None));
        let units = |write_bytes| Units { write_bytes, append_bytes: 4096 };
        let least = [512, 4096].map(|unit| least_size(&rows, units(unit)));
        assert_eq!(least, [9 * 512, 8192]);
        let place = BenchTarget::nothing();
        has_room(&place, 8192, 8192).unwrap();
        assert!(has_room(&place, 9 * 512, 8192).is_err());
    }

    #[test]
    fn fast_devices_get_longer_runs() {
        let paces = |speeds: Speeds| {
            let settled = default_drafts().into_iter().map(|draft| speeds.settle(draft).1);
            let run = |work: &Work| work.count.map_or(work.runtime, Duration::from_secs);
            settled.map(|work| run(&work) * work.rounds).collect::<Vec<_>>()
        };
        let both: Vec<_> = paces(NVME).into_iter().zip(paces(HDD)).collect();
        assert!(both.iter().all(|(fast, slow)| fast >= slow), "{both:?}");
        assert!(both.iter().any(|(fast, slow)| fast > slow), "{both:?}");
    }

    #[test]
    fn a_typed_pace_is_not_cut() {
        let typed = Typed { rounds: Some(9), ..Typed::default() };
        let [append, ..] = tour_rows();
        let (_, work) = HDD.settle(Draft { typed, ..draft(append, 1 << 30, TIME_MAX) });
        assert_eq!((work.rounds, work.budget), (9, None));
    }
}
