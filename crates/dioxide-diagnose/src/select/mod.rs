//! Selects processes by name, by cgroup or by systemd unit, without D-Bus.

mod cgroup;

use crate::host::mount::{Mount, mounts};
use crate::words::{counted_es, list};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// More processes are refused: each costs time to sample.
pub const PROCESSES_MAX: usize = 256;
/// The kernel truncates names to this number of bytes.
const COMM_MAX: usize = 15;

/// The wanted processes. With several criteria, those that match any of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Process IDs.
    pub pids: Vec<u32>,
    /// Names, as in `/proc/PID/comm`.
    pub names: Vec<String>,
    /// Cgroups: directories, or paths in the hierarchy as in `/proc/PID/cgroup`.
    pub cgroups: Vec<String>,
    /// Systemd units. Without a suffix, services.
    pub units: Vec<String>,
}

/// The selected processes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Existing processes, in ascending order.
    pub pids: Vec<u32>,
    /// Directories of cgroups, whose later processes belong to it too.
    pub cgroups: Vec<PathBuf>,
    /// In words: "unit postgresql.service". None for process IDs only.
    pub described: Option<String>,
}

/// Why nothing is selected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No process has the name.
    #[error(
        "no process has the name {name}{}: `ps -e -o pid,comm` lists the names",
        in_brackets(.similar, "names that contain it")
    )]
    NoName {
        /// The wanted name.
        name: String,
        /// Names that contain it.
        similar: Vec<String>,
    },
    /// The cgroup does not exist.
    #[error("there is no cgroup {path}: `systemd-cgls` and /proc/PID/cgroup show them")]
    NoCgroup {
        /// The wanted path.
        path: String,
    },
    /// No cgroup has the name of the unit.
    #[error(
        "no unit {unit} has a cgroup{}: it does not run, or has another name (`systemctl status`)",
        in_brackets(.similar, "units that contain it")
    )]
    NoUnit {
        /// The wanted unit, with its suffix.
        unit: String,
        /// Units that contain the name.
        similar: Vec<String>,
    },
    /// Several cgroups have the name of the unit.
    #[error("{} units have the name {unit}: choose by --cgroup: {}", .places.len(), list(.places))]
    ManyUnits {
        /// The wanted unit.
        unit: String,
        /// Their cgroups.
        places: Vec<String>,
    },
    /// The cgroup has no processes.
    #[error("the cgroup {path} has no processes: its unit or container does not run")]
    Empty {
        /// Its directory.
        path: String,
    },
    /// No process but this one.
    #[error("dioxide itself is the only process that matches")]
    OnlyItself,
    /// Too many processes.
    #[error(
        "{count} processes match, and at most {PROCESSES_MAX} can be observed: choose fewer by \
         --pid, --unit or --cgroup"
    )]
    TooMany {
        /// Their number.
        count: usize,
    },
}

fn in_brackets(names: &[String], what: &str) -> String {
    match names {
        [] => String::new(),
        names => format!(" ({what}: {})", list(names)),
    }
}

/// Finds the wanted processes that exist now.
pub fn select(wanted: &Wanted) -> Result<Selection, Error> {
    let mounts = mounts().unwrap_or_default();
    let processes = if wanted.names.is_empty() { Vec::new() } else { named_processes() };
    select_from(wanted, &mounts, &processes)
}

/// A process ID with its name.
type Named = (u32, String);

fn select_from(wanted: &Wanted, mounts: &[Mount], processes: &[Named]) -> Result<Selection, Error> {
    let mut pids: BTreeSet<u32> = wanted.pids.iter().copied().collect();
    let mut described: Vec<String> = Vec::new();
    let mut cgroups = Vec::new();
    for name in &wanted.names {
        let its = by_name(name, processes)?;
        described.push(format!("name {name} ({})", counted_es(its.len() as u64, "process")));
        pids.extend(its);
    }
    for path in &wanted.cgroups {
        cgroups.push(cgroup::by_path(path, mounts)?);
        described.push(format!("cgroup {path}"));
    }
    for unit in &wanted.units {
        let unit = cgroup::unit_name(unit);
        cgroups.push(cgroup::by_unit(&unit, mounts)?);
        described.push(format!("unit {unit}"));
    }
    for directory in &cgroups {
        let its = processes_of(directory);
        if its.is_empty() {
            return Err(Error::Empty { path: directory.display().to_string() });
        }
        pids.extend(its);
    }
    if pids.remove(&std::process::id()) && pids.is_empty() {
        return Err(Error::OnlyItself);
    }
    if pids.len() > PROCESSES_MAX {
        return Err(Error::TooMany { count: pids.len() });
    }
    if !described.is_empty() {
        described.extend(wanted.pids.iter().map(|pid| format!("process {pid}")));
    }
    let described = (!described.is_empty()).then(|| described.join(", "));
    Ok(Selection { pids: pids.into_iter().collect(), cgroups, described })
}

/// The processes in a cgroup and in those below, in ascending order.
pub fn processes_of(directory: &Path) -> Vec<u32> {
    cgroup::processes(directory)
}

fn by_name(name: &str, processes: &[Named]) -> Result<Vec<u32>, Error> {
    let end = (0..=name.len().min(COMM_MAX)).rev().find(|end| name.is_char_boundary(*end));
    let comm = &name[..end.unwrap_or(0)];
    let its: Vec<u32> =
        processes.iter().filter(|(_, other)| other == comm).map(|(pid, _)| *pid).collect();
    if its.is_empty() {
        let contains = |other: &&Named| !name.is_empty() && other.1.contains(name);
        let similar: BTreeSet<_> =
            processes.iter().filter(contains).map(|(_, name)| name.clone()).collect();
        return Err(Error::NoName { name: name.into(), similar: similar.into_iter().collect() });
    }
    Ok(its)
}

/// All processes with an address space, but this one.
fn named_processes() -> Vec<Named> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let of = |pid: u32| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        // Threads of the kernel and zombies have no executable. The first thread may be a zombie.
        let has_program = |dir: &Path| fs::read(dir.join("cmdline")).is_ok_and(|it| !it.is_empty());
        let process = format!("/proc/{pid}");
        let mut threads = fs::read_dir(format!("{process}/task")).into_iter().flatten().flatten();
        let has_program =
            has_program(process.as_ref()) || threads.any(|thread| has_program(&thread.path()));
        (has_program && pid != std::process::id())
            .then(|| (pid, name.trim_end_matches('\n').to_owned()))
    };
    pids.filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn processes() -> Vec<Named> {
        [(7, "postgres"), (8, "postgres"), (9, "postgres_export"), (10, "fio")]
            .map(|(pid, name)| (pid, name.to_owned()))
            .into()
    }

    fn of(wanted: &Wanted) -> Result<Selection, Error> {
        select_from(wanted, &[], &processes())
    }

    fn names(names: &[&str]) -> Wanted {
        Wanted { names: names.iter().map(|name| (*name).into()).collect(), ..Wanted::default() }
    }

    #[test]
    fn names_match_as_a_whole() {
        assert_eq!(of(&names(&["postgres"])).unwrap().pids, [7, 8]);
        assert_eq!(of(&names(&["postgres", "fio"])).unwrap().pids, [7, 8, 10]);
        let described = of(&names(&["fio"])).unwrap().described;
        assert_eq!(described.as_deref(), Some("name fio (1 process)"));
        assert_eq!(of(&names(&["postgres_exporter"])).unwrap().pids, [9], "the kernel truncates");
    }

    #[test]
    fn a_name_without_a_process_is_refused_with_similar_ones() {
        let error = of(&names(&["post"])).unwrap_err().to_string();
        assert!(error.contains("names that contain it: postgres and postgres_export"), "{error}");
        let error = of(&names(&["mysqld"])).unwrap_err().to_string();
        assert!(error.contains("no process has the name mysqld: `ps"), "{error}");
        assert!(of(&names(&[""])).is_err());
    }

    #[test]
    fn too_many_processes_are_refused() {
        let many: Vec<Named> = (1..=300).map(|pid| (pid, "worker".to_owned())).collect();
        let error = select_from(&names(&["worker"]), &[], &many).unwrap_err();
        assert_eq!(error, Error::TooMany { count: 300 });
        assert!(error.to_string().contains("choose fewer"));
        assert!(select_from(&names(&["worker"]), &[], &many[..PROCESSES_MAX]).is_ok());
    }

    /// The defect: the error was that there is no process 0.
    #[test]
    fn a_selection_of_this_process_alone_is_refused() {
        let wanted = Wanted { pids: vec![std::process::id()], ..Wanted::default() };
        assert_eq!(of(&wanted), Err(Error::OnlyItself));
    }

    #[test]
    fn process_ids_need_no_description() {
        let wanted = Wanted { pids: vec![12, 11], ..Wanted::default() };
        let selection = of(&wanted).unwrap();
        assert_eq!((selection.pids, selection.described), (vec![11, 12], None));
        let mixed = Wanted { pids: vec![12], ..names(&["fio"]) };
        let described = of(&mixed).unwrap().described.unwrap();
        assert_eq!(described, "name fio (1 process), process 12");
    }
}
