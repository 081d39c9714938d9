//! Runs many recordings with many power cuts each, on several threads. The controls come first: a
//! rig that loses nothing where it must proves nothing.

use crate::check::Loss;
use crate::recording::{Cut, Flushes, Plan, Recording};
use crate::workload::{CONTROLS, WORKLOADS, Workload};
use dioxide_testkit::lab::Fs;
use std::io;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// The file system is checked after this many power cuts, and after the last one.
const FSCK_EVERY: usize = 25;

/// Power cuts of each recording of a control.
pub const CONTROL_CUTS: u64 = 20;

/// A control is recorded again until it loses: all power cuts of a recording may be lucky.
pub const CONTROL_RECORDINGS_MAX: u64 = 8;

/// Findings kept in detail for each file system and workload.
const FINDINGS_MAX: u64 = 3;

/// The parameters of a campaign.
#[derive(Clone)]
pub struct Settings {
    /// The file systems to test.
    pub file_systems: Vec<Fs>,
    /// The workloads, where they apply. The controls run beside them.
    pub workloads: Vec<&'static Workload>,
    /// Power cuts in all, without those of the controls.
    pub cuts: u64,
    /// Power cuts of each recording.
    pub cuts_of_a_recording: u64,
    /// Seed of all random choices.
    pub seed: u64,
    /// Recordings made and replayed concurrently.
    pub jobs: usize,
    /// As in [`Plan`].
    pub records: u64,
    /// As in [`Plan`].
    pub delay_max: Duration,
    /// Directory for recordings with losses; `None` saves none.
    pub save_dir: Option<PathBuf>,
}

/// One recording and its number of power cuts.
#[derive(Clone, Copy)]
struct Task {
    plan: Plan,
    cuts: u64,
}

/// The results of one workload on one file system.
#[derive(Clone)]
pub struct Tally {
    /// The file system.
    pub fs: Fs,
    /// The workload.
    pub workload: &'static Workload,
    /// How the disk treated its flushes.
    pub flushes_were: Flushes,
    /// Number of recordings.
    pub recordings: u64,
    /// Number of power cuts.
    pub cuts: u64,
    /// Durable records looked for, over all power cuts.
    pub records: u64,
    /// Flushes that the disk received while it recorded.
    pub flushes: u64,
    /// Checks of the file system.
    pub fscks: u64,
    /// Power cuts after which something was lost, or something forbidden was found.
    pub lossy: u64,
}

impl Tally {
    fn of(plan: &Plan) -> Tally {
        let Plan { fs, workload, flushes: flushes_were, .. } = *plan;
        let (recordings, cuts, records, flushes, fscks, lossy) = (0, 0, 0, 0, 0, 0);
        Tally { fs, workload, flushes_were, recordings, cuts, records, flushes, fscks, lossy }
    }

    fn is_of(&self, plan: &Plan) -> bool {
        (self.fs, self.workload.name, self.flushes_were)
            == (plan.fs, plan.workload.name, plan.flushes)
    }

    /// Whether it is a control, which must lose.
    pub fn is_control(&self) -> bool {
        !self.workload.is_honest || self.flushes_were == Flushes::Ignored
    }

    /// Whether it lost something exactly if it is a control.
    pub fn is_as_it_should_be(&self) -> bool {
        self.cuts == 0 || self.is_control() == (self.lossy > 0)
    }
}

/// A power cut that lost something.
#[derive(Debug)]
pub struct Finding {
    /// The file system.
    pub fs: Fs,
    /// The workload's name.
    pub workload: &'static str,
    /// The recording's seed.
    pub seed: u64,
    /// The power cut.
    pub cut: Cut,
    /// The losses found.
    pub losses: Vec<Loss>,
    /// The recording, if it was saved.
    pub log: Option<PathBuf>,
}

/// The results of a campaign.
#[derive(Default)]
pub struct Results {
    /// One for each workload on each file system.
    pub tallies: Vec<Tally>,
    /// The first findings of each workload on each file system, without controls.
    pub findings: Vec<Finding>,
    /// An error of the rig, which ended the campaign.
    pub failure: Option<io::Error>,
}

impl Results {
    /// Whether only the controls lost data, and nothing failed.
    pub fn are_good(&self) -> bool {
        self.failure.is_none() && self.tallies.iter().all(Tally::is_as_it_should_be)
    }

    fn tally(&mut self, plan: &Plan) -> &mut Tally {
        let known = self.tallies.iter().position(|tally| tally.is_of(plan));
        let index = known.unwrap_or_else(|| {
            self.tallies.push(Tally::of(plan));
            self.tallies.len() - 1
        });
        &mut self.tallies[index]
    }
}

/// The number of power cuts that [`run`] makes, those of lucky controls not included.
pub fn total(settings: &Settings) -> u64 {
    tasks(settings).iter().map(|task| task.cuts).sum()
}

/// Runs the campaign until `stop` is set. Calls `advance` after each power cut.
pub fn run(settings: &Settings, stop: &AtomicBool, advance: impl Fn() + Sync) -> Results {
    let (tasks, next) = (tasks(settings), AtomicUsize::new(0));
    let results = Mutex::new(Results::default());
    let work = || {
        while let Some(task) = tasks.get(next.fetch_add(1, Ordering::Relaxed))
            && !stop.load(Ordering::Relaxed)
        {
            // The signal that sets `stop` also ends the children.
            if let Err(e) = perform(task, settings, stop, &results, &advance)
                && !stop.load(Ordering::Relaxed)
            {
                let name =
                    format!("{} {} seed {}", task.plan.fs, task.plan.workload.name, task.plan.seed);
                let failure = io::Error::new(e.kind(), format!("{name}: {e}"));
                results.lock().expect("no thread panics").failure.get_or_insert(failure);
                next.store(tasks.len(), Ordering::Relaxed);
            }
        }
    };
    thread::scope(|scope| (0..settings.jobs.max(1)).for_each(|_| drop(scope.spawn(work))));
    results.into_inner().expect("no thread panics")
}

fn tasks(settings: &Settings) -> Vec<Task> {
    let plan = |fs, workload, flushes, seed| Plan {
        fs,
        workload,
        flushes,
        seed,
        records: settings.records,
        delay_max: settings.delay_max,
    };
    let controls = settings.file_systems.iter().flat_map(|&fs| {
        let lossy = CONTROLS.iter().filter(move |control| (control.applies)(fs).is_ok());
        let lossy = lossy.map(move |control| (fs, control, Flushes::Kept));
        lossy.chain([(fs, &WORKLOADS[0], Flushes::Ignored)])
    });
    let controls = controls.map(|(fs, control, flushes)| plan(fs, control, flushes, settings.seed));
    let mut tasks: Vec<_> = controls.map(|plan| Task { plan, cuts: CONTROL_CUTS }).collect();
    let everything = settings
        .file_systems
        .iter()
        .flat_map(|&fs| settings.workloads.iter().map(move |w| (fs, *w)));
    let applicable: Vec<_> =
        everything.filter(|(fs, workload)| (workload.applies)(*fs).is_ok()).collect();
    let mut left = settings.cuts;
    for (number, &(fs, workload)) in (0..).zip(applicable.iter().cycle()) {
        if left == 0 {
            break;
        }
        let cuts = left.min(settings.cuts_of_a_recording);
        tasks.push(Task { plan: plan(fs, workload, Flushes::Kept, settings.seed + number), cuts });
        left -= cuts;
    }
    tasks
}

fn perform(
    task: &Task,
    settings: &Settings,
    stop: &AtomicBool,
    results: &Mutex<Results>,
    advance: &impl Fn(),
) -> io::Result<()> {
    let first = task.plan.seed;
    for seed in first..first + CONTROL_RECORDINGS_MAX {
        let plan = Plan { seed, ..task.plan };
        record_and_cut(&plan, task.cuts, settings, stop, results, advance)?;
        let mut results = results.lock().expect("no thread panics");
        let tally = results.tally(&plan);
        if tally.lossy > 0 || !tally.is_control() || stop.load(Ordering::Relaxed) {
            break;
        }
    }
    Ok(())
}

fn record_and_cut(
    plan: &Plan,
    cuts: u64,
    settings: &Settings,
    stop: &AtomicBool,
    results: &Mutex<Results>,
    advance: &impl Fn(),
) -> io::Result<()> {
    let lock = || results.lock().expect("no thread panics");
    let mut recording = Recording::new(plan)?;
    {
        let mut results = lock();
        let tally = results.tally(plan);
        tally.recordings += 1;
        tally.flushes += recording.flushes();
    }
    let cuts = recording.cuts(cuts as usize, plan.seed);
    for (n, &cut) in (1..).zip(&cuts) {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let mut seen = recording.replay(cut)?;
        let is_honest = !Tally::of(plan).is_control();
        let checks =
            is_honest && seen.losses.is_empty() && (n % FSCK_EVERY == 0 || n == cuts.len());
        if checks && let Err(e) = recording.fsck() {
            seen.losses.push(e.to_string());
        }
        // A control on a disk that flushes shows the loss that it is about.
        let is_lossy = match plan.flushes {
            Flushes::Kept if !is_honest => seen.is_missing_some(),
            _ => !seen.losses.is_empty(),
        };
        let mut results = lock();
        let tally = results.tally(plan);
        tally.cuts += 1;
        tally.records += seen.records;
        tally.fscks += u64::from(checks);
        if is_lossy {
            tally.lossy += 1;
            if is_honest && tally.lossy <= FINDINGS_MAX {
                let log = save(&recording, plan, settings).unwrap_or_else(|error| {
                    seen.losses.push(format!("the recording is not saved: {error}"));
                    None
                });
                let Plan { fs, workload, seed, .. } = *plan;
                let finding =
                    Finding { fs, workload: workload.name, seed, cut, losses: seen.losses, log };
                results.findings.push(finding);
            }
        }
        drop(results);
        advance();
    }
    Ok(())
}

fn save(recording: &Recording, plan: &Plan, settings: &Settings) -> io::Result<Option<PathBuf>> {
    let Some(dir) = &settings.save_dir else { return Ok(None) };
    let name = format!("{}-{}-{}.powercut", plan.fs, plan.workload.name, plan.seed);
    let path = dir.canonicalize()?.join(name);
    recording.save(&path)?;
    Ok(Some(path))
}
