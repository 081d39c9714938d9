//! The JSON document of a diagnosis, written and read back.

use super::change::ObservationChange;
use crate::bench::work::Asked;
use crate::meter::filesystem::FileSystem;
use crate::meter::machine::Machine;
use dioxide_diagnose::evidence::{Evidence, Subject};
use dioxide_diagnose::finding::{Finding, Wall};
use dioxide_diagnose::judge::{self, judge};
use dioxide_diagnose::usl::{self, Fit};
use dioxide_diagnose::waits::{self, Wait};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The whole document.
#[derive(Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DiagnoseDocument {
    /// The version of this format.
    pub schema_version: u32,
    /// `diagnose`.
    pub kind: String,
    #[serde(flatten)]
    pub machine: Machine,
    /// The file system of the workload. Null on a device, and for a process.
    pub fs: Option<String>,
    /// A property of its files that is unusual for this file system.
    pub fs_remark: Option<String>,
    /// One for each workload, or one for the process.
    pub diagnoses: Vec<Diagnosis>,
    /// What changed since an earlier observation. Null without `--compare`.
    #[serde(default)]
    pub change: Option<ObservationChange>,
}

/// The evidence and the conclusions from it.
#[derive(Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Diagnosis {
    /// The evidence.
    pub evidence: Evidence,
    /// The verdicts, the most important first.
    pub findings: Vec<Finding>,
    /// Properties of the file systems that a program with durable writes has to know.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// The wait table.
    pub waits: Vec<Wait>,
    /// The Universal Scalability Law, fitted to the curve. Null for a process, and where
    /// `usl_refusal` gives the reason.
    pub usl: Option<Fit>,
    /// Why there is no fit. Null with a fit, and for a process.
    pub usl_refusal: Option<String>,
    /// The settings of each step. Null for a process.
    pub asked: Option<Asked>,
    /// Operations per second at the last step while it was observed; the curve is of unobserved
    /// runs. Null for a process.
    pub watched_iops: Option<f64>,
}

/// The newest supported version.
pub const SCHEMA_VERSION: u32 = 1;
const KIND: &str = "diagnose";

impl DiagnoseDocument {
    pub fn new(machine: Machine, fs: Option<FileSystem>, diagnoses: Vec<Diagnosis>) -> Self {
        let fs_remark = fs.as_ref().and_then(|fs| fs.remark).map(str::to_owned);
        let fs = fs.map(|fs| fs.name);
        Self {
            schema_version: SCHEMA_VERSION,
            kind: KIND.into(),
            machine,
            fs,
            fs_remark,
            diagnoses,
            change: None,
        }
    }

    /// Whether it is of an observed program, not of workloads.
    pub fn is_of_program(&self) -> bool {
        let is_program = |it: &Diagnosis| matches!(it.evidence.subject, Subject::Program { .. });
        self.diagnoses.iter().any(is_program)
    }

    /// The stopped processes, if the main finding is that an observed program was stopped.
    pub fn stopped_pids(&self) -> Option<Vec<u32>> {
        let diagnosis = self.diagnoses.first().filter(|_| self.is_of_program())?;
        let is_stopped = diagnosis.findings.first()?.wall == Wall::Stopped;
        is_stopped.then(|| judge::stopped_processes(&diagnosis.evidence))
    }
}

impl Diagnosis {
    /// Of a workload.
    pub fn of_work(evidence: Evidence, asked: Asked, watched_iops: f64) -> Self {
        let (usl, refusal) = match usl::fit(&evidence.curve) {
            Ok(fit) => (Some(fit), None),
            Err(refusal) => (None, Some(refusal.to_string())),
        };
        Self {
            usl,
            usl_refusal: refusal,
            asked: Some(asked),
            watched_iops: Some(watched_iops),
            ..Self::of_program(evidence)
        }
    }

    /// Of a process.
    pub fn of_program(evidence: Evidence) -> Self {
        Self {
            findings: judge(&evidence),
            warnings: judge::warnings(&evidence),
            waits: waits::table(&evidence),
            usl: None,
            usl_refusal: None,
            asked: None,
            watched_iops: None,
            evidence,
        }
    }
}

/// Documents for tests of the reports.
#[cfg(test)]
pub mod examples {
    use super::*;
    use dioxide_diagnose::activity::Activity;
    use dioxide_diagnose::evidence::{
        Call, OtherWay, Rw, SeenFile, Sighting, Step, Subject, Workload,
    };

    /// Appends of which most wait for the lock of the inode, with a curve of this number of steps.
    pub fn appends(steps: usize) -> Diagnosis {
        let curve: Vec<_> = (0..steps)
            .map(|nth| Step {
                numjobs: 1 << nth,
                iops: vec![7000.0, 8000.0 / (1.0 + nth as f64), 7500.0],
            })
            .collect();
        let numjobs = curve.last().map_or(1, |step| step.numjobs);
        let workload = Workload {
            rw: Rw::Append,
            place: "/somewhere".into(),
            bs_bytes: 4096,
            numjobs,
            is_durable: false,
        };
        let call = Call { extends: Some(true), is_aligned: Some(true), ..Call::named("pwrite64") };
        let sighting = |count, state, channel: Option<&str>| Sighting {
            count,
            threads: numjobs as u64,
            process: 0,
            task: "job".into(),
            state,
            call: Some(call.clone()),
            channel: channel.map(str::to_owned),
            stack: vec![],
            queue: None,
        };
        let others =
            vec![OtherWay { path: "preallocated".into(), numjobs, iops: vec![80_000.0, 90_000.0] }];
        let evidence = Evidence {
            subject: Subject::Workload(workload),
            has_ended: false,
            kernel_release: "6.18.0".into(),
            cpus: 2,
            watched_ns: 2_000_000_000,
            looks: 100,
            threads: numjobs as u64,
            sightings: vec![
                sighting(5900, 'D', Some("ext4_file_write_iter")),
                sighting(500, 'R', None),
            ],
            files: vec![],
            direct: None,
            locks: None,
            punts: None,
            devices: vec![],
            cgroups: vec![],
            queues: vec![],
            futexes: vec![],
            functions: vec![],
            curve,
            others,
            contenders: None,
            fast_commits: Vec::new(),
            activity: Activity::default(),
            unseen: vec!["stacks: for root only".into()],
        };
        let asked = Asked { runtime_ms: Some(200), ..Asked::default() };
        Diagnosis::of_work(evidence, asked, 3500.0)
    }

    /// A program whose threads mostly wait for the lock of the inode of one file.
    pub fn program() -> Diagnosis {
        let mut evidence = appends(1).evidence;
        let command = "server --data /data".into();
        evidence.subject = Subject::Program { pid: 4711, command, processes: 1, selected: None };
        evidence.watched_ns = 10_000_000_000;
        evidence.curve.clear();
        evidence.others.clear();
        evidence.files = vec![SeenFile {
            path: "/data/a/directory/of/the/server/with/a/long/name/log".into(),
            fs: Some("ext4".into()),
            device: (7, 0),
            inode: 12,
            is_direct: true,
            is_buffered: false,
            is_durable: false,
            is_sync: false,
            size_bytes: None,
            allocated_bytes: None,
        }];
        for sighting in &mut evidence.sightings {
            sighting.call.iter_mut().for_each(|call| call.file = Some(0));
        }
        evidence.activity = super::super::activity::examples::activity();
        Diagnosis::of_program(evidence)
    }

    /// The same with a quarter of the calls, and few waits for the lock.
    pub fn slower_program() -> Diagnosis {
        let mut evidence = program().evidence;
        evidence.sightings[0].count /= 20;
        let activity = &mut evidence.activity;
        for call in activity.calls.iter_mut().flatten() {
            call.count /= 4;
            call.p99.ns *= 3;
        }
        for interval in activity.timeline.iter_mut().flat_map(|timeline| &mut timeline.intervals) {
            interval.calls /= 4.0;
        }
        Diagnosis::of_program(evidence)
    }

    pub fn document(diagnoses: Vec<Diagnosis>) -> DiagnoseDocument {
        let fs = FileSystem { name: "ext4".into(), remark: None };
        DiagnoseDocument::new(Machine::describe("/somewhere".into(), None), Some(fs), diagnoses)
    }
}

#[cfg(test)]
mod tests {
    use super::examples::{appends, document, program};
    use super::*;
    use crate::exit::Stopped;
    use dioxide_diagnose::evidence::Sighting;

    /// The message named the first observed process.
    #[test]
    fn the_message_names_the_stopped_processes() {
        let mut evidence = program().evidence;
        evidence.sightings.truncate(1);
        (evidence.sightings[0].state, evidence.sightings[0].process) = ('T', 12);
        let message = |evidence| {
            let document = document(vec![Diagnosis::of_program(evidence)]);
            Stopped(document.stopped_pids().unwrap()).to_string()
        };
        let one = message(evidence.clone());
        assert_eq!(one, "process 12 was stopped: continue it, and repeat");
        let other = Sighting { process: 13, ..evidence.sightings[0].clone() };
        evidence.sightings.push(other);
        assert!(message(evidence).starts_with("processes 12 and 13 were stopped"));
        assert_eq!(document(vec![program()]).stopped_pids(), None);
    }

    #[test]
    fn what_is_written_can_be_read_back() {
        let written = document(vec![appends(7), appends(2)]);
        let text = serde_json::to_string(&written).unwrap();
        let read: DiagnoseDocument = serde_json::from_str(&text).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), text);
        assert_eq!((&read.machine, &*read.kind), (&written.machine, "diagnose"));
        assert!(read.diagnoses[0].usl.is_some() && read.diagnoses[0].usl_refusal.is_none());
        assert!(read.diagnoses[1].usl.is_none() && read.diagnoses[1].usl_refusal.is_some());
    }
}
