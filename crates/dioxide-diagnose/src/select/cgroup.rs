//! Cgroups by path, and by the name of a systemd unit.

use super::Error;
use crate::host::mount::Mount;
use std::collections::{BTreeSet, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};

/// More directories are not searched.
const DIRECTORIES_MAX: usize = 20_000;
/// The suffixes of units that have processes.
const SUFFIXES: [&str; 5] = [".service", ".scope", ".slice", ".socket", ".mount"];

/// With its suffix.
pub fn unit_name(name: &str) -> String {
    let has_one = SUFFIXES.iter().any(|suffix| name.ends_with(suffix));
    if has_one { name.to_owned() } else { format!("{name}.service") }
}

/// The directory of a cgroup, from its directory or its path in a hierarchy.
pub fn by_path(path: &str, mounts: &[Mount]) -> Result<PathBuf, Error> {
    let below = |mount: &Mount| Path::new(&mount.point).join(path.trim_start_matches('/'));
    let places = std::iter::once(PathBuf::from(path)).chain(hierarchies(mounts).map(below));
    let is_cgroup = |place: &PathBuf| place.join("cgroup.procs").is_file();
    let mut found = places.filter(is_cgroup).peekable();
    let first = found.peek().cloned();
    // With cgroup v1, a hierarchy may have the path and none of the processes.
    found
        .find(|place| !processes(place).is_empty())
        .or(first)
        .ok_or_else(|| Error::NoCgroup { path: path.into() })
}

/// The directory of a unit's cgroup.
pub fn by_unit(unit: &str, mounts: &[Mount]) -> Result<PathBuf, Error> {
    let base = unit.rsplit_once('.').map_or(unit, |(base, _)| base);
    let mut similar = BTreeSet::new();
    for mount in hierarchies(mounts) {
        let mut found = Vec::new();
        for directory in directories(Path::new(&mount.point)) {
            let Some(name) = directory.file_name().and_then(|name| name.to_str()) else { continue };
            if name == unit {
                found.push(directory);
            } else if name.contains(base) && SUFFIXES.iter().any(|suffix| name.ends_with(suffix)) {
                similar.insert(name.to_owned());
            }
        }
        let has_processes = |directory: &PathBuf| !processes(directory).is_empty();
        if found.len() > 1 && found.iter().any(has_processes) {
            found.retain(has_processes);
        }
        match &found[..] {
            [] => {}
            [one] => return Ok(one.clone()),
            several => {
                let places = several.iter().map(|place| place.display().to_string()).collect();
                return Err(Error::ManyUnits { unit: unit.into(), places });
            }
        }
    }
    Err(Error::NoUnit { unit: unit.into(), similar: similar.into_iter().collect() })
}

/// cgroup v2 first, then the hierarchy of systemd and the others of v1.
fn hierarchies(mounts: &[Mount]) -> impl Iterator<Item = &Mount> {
    let is_systemd =
        |mount: &&Mount| mount.options.split(',').any(|option| option == "name=systemd");
    let v2 = mounts.iter().filter(|mount| mount.fs == "cgroup2");
    let v1 = || mounts.iter().filter(|mount| mount.fs == "cgroup");
    v2.chain(v1().filter(is_systemd)).chain(v1().filter(move |mount| !is_systemd(mount)))
}

/// The processes in a cgroup and in those below, in ascending order.
pub fn processes(directory: &Path) -> Vec<u32> {
    let of = |directory: PathBuf| {
        let text = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect::<Vec<u32>>()
    };
    // A process of another PID namespace is 0.
    let all: BTreeSet<u32> =
        directories(directory).into_iter().flat_map(of).filter(|pid| *pid != 0).collect();
    all.into_iter().collect()
}

/// A directory and those below it, the highest first.
fn directories(top: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut left = VecDeque::from([top.to_owned()]);
    while let Some(directory) = left.pop_front() {
        let entries = fs::read_dir(&directory).into_iter().flatten().flatten();
        let is_directory = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
        left.extend(entries.filter(is_directory).map(|entry| entry.path()));
        found.push(directory);
        if found.len() == DIRECTORIES_MAX {
            break;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree of cgroups in a temporary directory.
    struct Tree(tempfile::TempDir);

    impl Tree {
        fn new(cgroups: &[(&str, &str)]) -> Self {
            let tree = Self(tempfile::tempdir().unwrap());
            fs::write(tree.0.path().join("cgroup.procs"), "1\n").unwrap();
            for (path, processes) in cgroups {
                let directory = tree.0.path().join(path);
                fs::create_dir_all(&directory).unwrap();
                fs::write(directory.join("cgroup.procs"), processes).unwrap();
            }
            tree
        }

        fn mounts(&self, fs: &str) -> Vec<Mount> {
            vec![Mount {
                id: 1,
                device: 0,
                point: self.0.path().display().to_string(),
                fs: fs.into(),
                source: "cgroup2".into(),
                options: "rw".into(),
            }]
        }
    }

    const UNITS: [(&str, &str); 4] = [
        ("system.slice/postgresql@16-main.service", "20\n21\n"),
        ("system.slice/nginx.service", ""),
        ("system.slice/nginx.service/worker", "31\n30\n0\n"),
        ("user.slice/nginx-helper.service", "40\n"),
    ];

    #[test]
    fn a_unit_has_the_processes_below_its_cgroup() {
        let tree = Tree::new(&UNITS);
        let place = by_unit("nginx.service", &tree.mounts("cgroup2")).unwrap();
        assert!(place.ends_with("system.slice/nginx.service"));
        assert_eq!(processes(&place), [30, 31]);
        let place = by_unit("postgresql@16-main.service", &tree.mounts("cgroup")).unwrap();
        assert_eq!(processes(&place), [20, 21]);
        assert!(by_unit("nginx.service", &tree.mounts("tmpfs")).is_err(), "no hierarchy");
    }

    #[test]
    fn a_unit_that_does_not_run_is_refused_with_similar_ones() {
        let tree = Tree::new(&UNITS);
        let error = by_unit("postgresql.service", &tree.mounts("cgroup2")).unwrap_err();
        let expected = "no unit postgresql.service has a cgroup (units that contain it: \
                        postgresql@16-main.service)";
        assert!(error.to_string().starts_with(expected), "{error}");
        let error = by_unit("mysql.service", &tree.mounts("cgroup2")).unwrap_err().to_string();
        assert!(
            error.starts_with("no unit mysql.service has a cgroup: it does not run"),
            "{error}"
        );
    }

    #[test]
    fn units_of_one_name_are_listed() {
        let twice = [("a.slice/x.service", "5\n"), ("b.slice/x.service", "6\n")];
        let tree = Tree::new(&twice);
        let error = by_unit("x.service", &tree.mounts("cgroup2")).unwrap_err().to_string();
        assert!(error.contains("2 units") && error.contains("--cgroup"), "{error}");
        fs::write(tree.0.path().join("a.slice/x.service/cgroup.procs"), "").unwrap();
        assert!(by_unit("x.service", &tree.mounts("cgroup2")).is_ok(), "only one runs");
    }

    #[test]
    fn paths_are_directories_or_those_of_a_hierarchy() {
        let tree = Tree::new(&UNITS);
        let mounts = tree.mounts("cgroup2");
        let expected = tree.0.path().join("user.slice/nginx-helper.service");
        assert_eq!(by_path("/user.slice/nginx-helper.service", &mounts), Ok(expected.clone()));
        assert_eq!(by_path(&expected.display().to_string(), &[]), Ok(expected));
        let error = by_path("/nothing", &mounts).unwrap_err().to_string();
        assert!(error.starts_with("there is no cgroup /nothing"), "{error}");
    }

    #[test]
    fn names_of_units_may_lack_their_suffix() {
        assert_eq!(unit_name("nginx"), "nginx.service");
        assert_eq!(unit_name("session-1.scope"), "session-1.scope");
        assert_eq!(unit_name("postgresql@16.1"), "postgresql@16.1.service");
    }
}
