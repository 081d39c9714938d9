//! The log scenario: small records, each durable when it is acknowledged.
//!
//! There is one log for N threads, or for one thread with a queue, batches or tasks. Or there are
//! many logs, each with a thread of its own.
//!
//! The rivals use the page cache, as such logs do: that is the best for records below a block. Each
//! path begins with the same space: unwritten, or written before the clock starts. The rivals get
//! their written space with its pages in memory.

use super::backing::Ahead;
use super::blocks::Places;
use super::crew::Shift;
use super::descriptors;
use super::figures::RouteRun;
use super::group_commit::GroupCommit;
use super::ledger::{End, Ledger, Logs};
use super::locked::Locked;
use super::place::RunFile;
use super::set;
use super::target::Target;
use super::task::Task;
use super::tasks::{self, Gatherer, Tasks};
use super::tickets::Tickets;
use super::work::{Point, Route, Space};
use super::write_ahead::{self, Batch, WriteAhead, WriteAheadSet};
use anyhow::{Context, Result};
use dioxide::{AsyncFile, Durability, Growth, OpenOptions, Queue};
use dioxide_log::LogOptions;
use fastrand::Rng;
use std::fs::File;
use std::sync::Mutex;
use std::thread;

/// A lock, a mark, and segments that are written, complete or being made.
const DESCRIPTORS_OF_A_LOG: usize = 8;

/// One run. The logs are opened before the clock starts, and closed after it.
pub fn run(task: &Task<'_>) -> Result<RouteRun> {
    let count = task.point.files.unwrap_or(1);
    descriptors::make_room_for(count)?;
    let grounds = task.place.prepare_many(count)?;
    let each_bytes = task.size_bytes / count as u64;
    let one = Task { size_bytes: each_bytes, ..*task };
    let ledgers = || (0..count).map(|_| one.ledger(Places::OnceEach));
    let ledger = Ledger::Logs(Logs::new(ledgers().collect(), each_bytes));
    let logs = RunLogs { task, grounds: &grounds, each_bytes, ledger: &ledger };
    let mut run = match task.route {
        Route::BufferedGroup => logs.through_groups(),
        Route::BufferedBatch { iodepth } => logs.in_batches(iodepth),
        Route::GatheredTasks { iodepth } => logs.through_a_gatherer(iodepth),
        Route::Queue { iodepth } => logs.through_a_queue(iodepth),
        Route::Tasks { iodepth } => logs.through_tasks(iodepth),
        Route::Dioxide => logs.through_dioxide(),
        Route::WriteAheadSet => logs.ahead_in_a_set(),
        route if route.is_write_ahead() => logs.ahead(),
        _ => logs.through_locks(),
    }?;
    let Ledger::Logs(written) = &ledger else { unreachable!("just made") };
    for (ground, log) in grounds.iter().zip(written.each()) {
        log.verify(&ground.open_to_verify()?, End::AtLast)?;
    }
    run.figures.is_cut_short = run.figures.elapsed < task.runtime;
    Ok(run)
}

/// The logs of a run. Lane k writes log k, modulo their number.
struct RunLogs<'a> {
    task: &'a Task<'a>,
    grounds: &'a [RunFile],
    each_bytes: u64,
    ledger: &'a Ledger,
}

impl RunLogs<'_> {
    /// The next record of a lane, at its offset in all logs one behind the other.
    fn aim(&self) -> impl Fn(usize, &mut Rng) -> Option<Target> {
        let one = Task { size_bytes: self.each_bytes, ..*self.task };
        let Ledger::Logs(logs) = self.ledger else { unreachable!("of this scenario") };
        let tickets: Vec<Tickets<'_>> =
            logs.each().iter().map(|log| Tickets::new(&one, log)).collect();
        let each_bytes = self.each_bytes;
        move |lane, _| {
            let nth = lane % tickets.len();
            let target = tickets[nth].take()?;
            Some(Target { offset: target.offset + nth as u64 * each_bytes, ..target })
        }
    }

    /// The log of a target, by number.
    fn nth(&self, target: Target) -> usize {
        (target.offset / self.each_bytes) as usize
    }

    fn space(&self) -> Space {
        self.task.point.space.unwrap_or(Space::Unwritten)
    }

    /// The files for the rivals, and the space of each: nothing, or all of it, written.
    fn cached(&self) -> Result<(Vec<File>, Ahead)> {
        let open = |ground: &RunFile| {
            if self.space() != Space::Unwritten {
                ground.fill_cached(self.each_bytes).context("write the space beforehand")?;
            }
            ground.open_cached()
        };
        let files = self.grounds.iter().map(open).collect::<Result<Vec<_>>>()?;
        let allocated = if self.space() == Space::Unwritten { 0 } else { self.each_bytes };
        Ok((files, Ahead::within(self.each_bytes, allocated)))
    }

    fn through_groups(&self) -> Result<RouteRun> {
        let (mut files, space) = self.cached()?;
        let log = GroupCommit::new(files.remove(0), Durability::EveryWrite, space);
        let shift =
            self.task.crew(self.ledger).work(self.aim(), |_, record| Ok(log.append(record)?))?;
        let run = shift.clock_out();
        log.finish()?;
        Ok(run)
    }

    /// One write and one flush for each batch.
    fn in_batches(&self, batch: usize) -> Result<RouteRun> {
        let (mut files, space) = self.cached()?;
        let log = Locked::new(files.remove(0), space);
        let buffer = Mutex::new(Vec::new());
        let gathered = || buffer.lock().expect("no thread panics with it");
        let write = |_: Target, record: &[u8]| {
            gathered().extend_from_slice(record);
            Ok(())
        };
        let flush = || {
            let mut gathered = gathered();
            log.append(&gathered)?;
            gathered.clear();
            Ok(())
        };
        let shift = self.task.crew(self.ledger).work_in_batches(batch, self.aim(), write, flush)?;
        let run = shift.clock_out();
        log.finish()?;
        Ok(run)
    }

    /// As [`in_batches`](Self::in_batches), by a thread of its own, for tasks.
    fn through_a_gatherer(&self, iodepth: usize) -> Result<RouteRun> {
        let (mut files, space) = self.cached()?;
        let log = Locked::new(files.remove(0), space);
        thread::scope(|scope| {
            let gatherer = Gatherer::start(scope, log);
            let begin = |block, len, tag| gatherer.append(block, len, tag);
            let make = || Ok(Tasks::new(self.task.point.sizes.max_bytes, begin));
            let shift = self.task.crew(self.ledger).work_through(iodepth, self.aim(), make);
            let run = shift.map(Shift::clock_out);
            gatherer.finish()?;
            run
        })
    }

    /// A lock, a write and a flush for each record; with many logs each has its own.
    fn through_locks(&self) -> Result<RouteRun> {
        let (files, space) = self.cached()?;
        let logs: Vec<_> = files.into_iter().map(|file| Locked::new(file, space)).collect();
        let shift = self
            .task
            .crew(self.ledger)
            .work(self.aim(), |target, record| Ok(logs[self.nth(target)].append(record)?))?;
        let run = shift.clock_out();
        logs.into_iter().try_for_each(Locked::finish)?;
        Ok(run)
    }

    fn through_dioxide(&self) -> Result<RouteRun> {
        let logs = self.opened()?;
        let shift = self
            .task
            .crew(self.ledger)
            .work(self.aim(), |target, record| Ok(logs[self.nth(target)].append(record)?))?;
        end(shift, logs)
    }

    fn through_a_queue(&self, iodepth: usize) -> Result<RouteRun> {
        let logs = self.opened()?;
        let queue_it = |queue: &Queue, target: Target, record, tag| {
            queue.append(&logs[self.nth(target)], record, tag)
        };
        let shift =
            self.task.crew(self.ledger).work_through_queues(iodepth, self.aim(), queue_it)?;
        end(shift, logs)
    }

    fn through_tasks(&self, iodepth: usize) -> Result<RouteRun> {
        let log = AsyncFile::from(self.opened()?.remove(0));
        let begin = |block, _, tag| tasks::append(&log, block, tag);
        let make = || Ok(Tasks::new(self.task.point.sizes.max_bytes, begin));
        let shift = self.task.crew(self.ledger).work_through(iodepth, self.aim(), make)?;
        end(shift, vec![log.into_inner()])
    }

    /// The size of the segments of each log of `dioxide-log`, and their number.
    fn segments(&self) -> (u64, usize) {
        let Task { point, route, .. } = self.task;
        write_ahead::segments(self.each_bytes, point.sizes, route.batch())
    }

    /// Through `dioxide-log`. Its records are then copied to the file that is verified.
    fn ahead(&self) -> Result<RouteRun> {
        let Point { sizes, .. } = self.task.point;
        let (segment_bytes, count) = self.segments();
        descriptors::make_room_for(count)?;
        let files = self.task.place.prepare_many(count)?;
        let ahead = WriteAhead::open(files, segment_bytes, self.space() == Space::Recycled)?;
        let crew = self.task.crew(self.ledger);
        // Records lie where their LSNs say, so at multiples of one length. A batch has no gaps.
        let (shift, unit) = match self.task.route {
            Route::WriteAheadBatch { iodepth } => {
                let batch = Mutex::new(Batch::default());
                let gathered = || batch.lock().expect("no thread panics with it");
                let write = |_: Target, record: &[u8]| {
                    gathered().push(record);
                    Ok(())
                };
                let flush = || gathered().append_to(ahead.log());
                (crew.work_in_batches(iodepth, self.aim(), write, flush)?, 1)
            }
            Route::WriteAheadTasks { iodepth } => {
                let begin = |block, len, tag| ahead.append_async(block, len, sizes.max_bytes, tag);
                let make = || Ok(Tasks::new(sizes.max_bytes, begin));
                (crew.work_through(iodepth, self.aim(), make)?, sizes.max_bytes)
            }
            _ => {
                let append = |_: Target, record: &mut [u8]| ahead.append(record, sizes.max_bytes);
                (crew.work(self.aim(), append)?, sizes.max_bytes)
            }
        };
        let run = shift.clock_out();
        ahead.copy_to(&self.grounds[0], unit)?;
        Ok(run)
    }

    /// As [`ahead`](Self::ahead), each log in one set.
    fn ahead_in_a_set(&self) -> Result<RouteRun> {
        let unit = self.task.point.sizes.max_bytes;
        let (segment_bytes, count) = self.segments();
        let dir = self.task.place.make_dir()?;
        let logs = self.grounds.len();
        descriptors::make_room_for(DESCRIPTORS_OF_A_LOG * logs)?;
        let options = LogOptions::new().segment_bytes(segment_bytes).spare_segments(count * logs);
        let is_recycled = self.space() == Space::Recycled;
        let size = (logs, count);
        let set = WriteAheadSet::open(&options, dir.path(), size, segment_bytes, is_recycled)?;
        let append = |target: Target, record: &mut [u8]| {
            let nth = self.nth(target);
            Ok(set.append(nth, record, unit)? + nth as u64 * self.each_bytes)
        };
        let run = self.task.crew(self.ledger).work(self.aim(), append)?.clock_out();
        set.copy_to(self.grounds, unit)?;
        Ok(run)
    }

    fn opened(&self) -> Result<Vec<dioxide::File>> {
        let growth = match self.space() {
            Space::Zeroed => Growth::Zeroed,
            _ => Growth::Unwritten,
        };
        let mut options = OpenOptions::new();
        options.write(true).durability(Durability::EveryWrite).growth(growth);
        options.tail(self.task.point.tail.unwrap_or_default());
        let filled_bytes = Task { size_bytes: self.each_bytes, ..*self.task }.whole_blocks_bytes();
        let open = |ground: &RunFile| {
            if self.space() != Space::Recycled {
                return Ok(ground.open_with(&options)?);
            }
            ground.fill(filled_bytes).context("fill the file to be recycled")?;
            let file = ground.open_with(&options)?;
            file.recycle()?;
            Ok(file)
        };
        self.grounds.iter().map(open).collect()
    }
}

/// Stops the clock, and then closes dioxide's files: a log is not closed between its records.
fn end(shift: Shift<'_>, logs: Vec<dioxide::File>) -> Result<RouteRun> {
    let stats = match &*logs {
        [log] => log.stats(),
        _ => set::refusals(&logs),
    };
    let mut run = shift.clock_out();
    run.figures.stats = Some(stats);
    set::close(logs)?;
    Ok(run)
}

#[cfg(test)]
mod tests {
    use super::super::figures::examples::log_point;
    use super::super::place::BenchTarget;
    use super::super::set::examples::task;
    use super::*;
    use crate::sizes::Sizes;
    use dioxide::Tail;
    use std::time::Duration;

    const LANES: usize = 4;

    /// Recycled space needs a file that grows ahead: `bench_of_logs` has it.
    fn points(files: Option<usize>) -> impl Iterator<Item = (Point, Route)> {
        let spaces = [Space::Unwritten, Space::Zeroed];
        let points = spaces.into_iter().flat_map(move |space| {
            let point = Point { files, space: Some(space), ..log_point(LANES) };
            // Whole blocks have no tail.
            let whole = Point { sizes: Sizes::one(4096), ..point };
            [Point { tail: Some(Tail::Rewrite), ..point }, Point { tail: None, ..whole }]
        });
        points.flat_map(|point| {
            let threads = point.routes().iter().copied();
            threads.chain(point.queues(LANES)).map(move |route| (point, route))
        })
    }

    #[test]
    fn every_path_appends_durably_in_every_space() {
        let place = BenchTarget::directory(&std::env::temp_dir()).unwrap();
        for files in [None, Some(LANES)] {
            for (point, route) in points(files) {
                // The file ends the run, because a busy machine may begin nothing in a short time.
                let runtime = Duration::from_secs(60);
                let task = Task { size_bytes: 256 << 10, runtime, ..task(&place, point, route) };
                let run =
                    run(&task).unwrap_or_else(|error| panic!("{point:?}, {route:?}: {error:#}"));
                let (ops, elapsed) = (run.figures.ops, run.figures.elapsed);
                assert!(ops > 0 && ops <= task.size_bytes / point.sizes.min_bytes, "{route:?}");
                assert!(run.figures.is_cut_short && elapsed < runtime, "{route:?}");
            }
        }
    }

    /// The defect: a record, or a batch, was longer than a segment of `dioxide-log`.
    #[test]
    fn long_records_had_no_room_in_a_segment() {
        let place = BenchTarget::directory(&std::env::temp_dir()).unwrap();
        for files in [None, Some(LANES)] {
            let point = Point { files, sizes: Sizes::one(64 << 10), ..log_point(LANES) };
            let routes = point.routes().iter().copied().chain(point.queues(LANES));
            for route in routes.filter(|route| route.is_write_ahead()) {
                let runtime = Duration::from_secs(60);
                let task = Task { size_bytes: 256 << 10, runtime, ..task(&place, point, route) };
                let run = run(&task).unwrap_or_else(|error| panic!("{route:?}: {error:#}"));
                assert_eq!(run.figures.ops, LANES as u64, "{route:?}");
            }
        }
    }

    /// The defect: a part of 1000003 bytes was filled by direct writes, which take whole blocks.
    #[test]
    fn old_logs_of_an_odd_size_were_not_filled() {
        let place = BenchTarget::directory(&std::env::temp_dir()).unwrap();
        let ground = place.prepare().unwrap();
        let file = ground.open_with(OpenOptions::new().write(true)).unwrap();
        if file.recycle().is_err() {
            return;
        }
        for files in [None, Some(3)] {
            let point = Point { files, space: Some(Space::Recycled), ..log_point(3) };
            let point = Point { tail: Some(Tail::Rewrite), ..point };
            let task = Task { size_bytes: 1_000_003, ..task(&place, point, Route::Dioxide) };
            run(&task).unwrap();
        }
    }

    /// The lanes of all logs were reserved in each of them, in blocks instead of records: its
    /// first record was its last.
    #[test]
    fn a_set_of_256_logs_wrote_next_to_nothing() {
        const LOGS: usize = 256;
        const EACH_BYTES: u64 = 16 << 10;
        let place = BenchTarget::nothing();
        let point = Point { files: Some(LOGS), tail: Some(Tail::Rewrite), ..log_point(LOGS) };
        let record_bytes = point.sizes.max_bytes;
        for route in point.routes().iter().copied().chain(point.queues(LOGS)) {
            let task = task(&place, point, route);
            let one = Task { size_bytes: EACH_BYTES, ..task };
            let each = (0..LOGS).map(|_| one.ledger(Places::OnceEach)).collect();
            let ledger = Ledger::Logs(Logs::new(each, EACH_BYTES));
            let logs =
                RunLogs { task: &task, grounds: &[], each_bytes: EACH_BYTES, ledger: &ledger };
            let (aim, mut dice) = (logs.aim(), Rng::with_seed(0));
            for lane in [0, LOGS - 1] {
                let mut bytes = 0;
                while let Some(target) = aim(lane, &mut dice) {
                    assert_eq!(target.offset, lane as u64 * EACH_BYTES + bytes, "{route:?}");
                    ledger.acknowledge(target.stamp(lane, 1), target.offset).unwrap();
                    bytes += target.bytes;
                }
                assert!(bytes + record_bytes > EACH_BYTES, "{route:?} wrote {bytes} bytes");
            }
        }
    }

    /// A record that a path acknowledges and loses, in one log of several.
    #[test]
    fn a_record_that_was_lost_is_found() {
        let place = BenchTarget::directory(&std::env::temp_dir()).unwrap();
        let point = Point { files: Some(2), tail: Some(Tail::Rewrite), ..log_point(2) };
        let task = task(&place, point, Route::Kernel);
        let (grounds, each_bytes) = (place.prepare_many(2).unwrap(), 32 << 10);
        let one = Task { size_bytes: each_bytes, ..task };
        let each = (0..2).map(|_| one.ledger(Places::OnceEach)).collect();
        let ledger = Ledger::Logs(Logs::new(each, each_bytes));
        let logs = RunLogs { task: &one, grounds: &grounds, each_bytes, ledger: &ledger };
        assert!(logs.through_locks().unwrap().figures.ops > 1);
        let Ledger::Logs(written) = &ledger else { unreachable!() };
        let verify = |nth: usize| {
            written.each()[nth].verify(&grounds[nth].open_to_verify().unwrap(), End::AtLast)
        };
        verify(0).unwrap();
        verify(1).unwrap();
        let file = grounds[1].open_cached().unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &[0; 10], 120).unwrap();
        file.sync_all().unwrap();
        verify(0).unwrap();
        assert!(verify(1).unwrap_err().to_string().ends_with("is not there"));
    }
}
