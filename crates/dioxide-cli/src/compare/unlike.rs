//! Other differences between two runs: figures of unlike runs say nothing about dioxide. Measures
//! nothing.

use crate::bench::work::Asked;
use crate::meter::machine::Machine;
use crate::saved::{Document, Row};
use crate::units::about_bytes as size;
use std::fmt::Display;

/// Sizes depend on the free space, so they differ a little between equal runs.
const DIFFERENCE_MAX: f64 = 0.1;

/// Each difference once, in words. `pairs` are the rows of both runs.
pub fn differences(old: &Document, new: &Document, pairs: &[(&Row, &Row)]) -> Vec<String> {
    let mut all = places(&old.machine, &new.machine);
    for (old, new) in pairs {
        for difference in terms(old, new) {
            if !all.contains(&difference) {
                all.push(difference);
            }
        }
    }
    all
}

fn places(old: &Machine, new: &Machine) -> Vec<String> {
    let known = |text: &Option<String>| text.clone().unwrap_or("unknown".into());
    let has_device = old.device.is_some() || new.device.is_some();
    let facts = [
        differ("kernel", &old.kernel_release, &new.kernel_release),
        differ("number of CPUs", &old.cpus, &new.cpus),
        differ("CPU", &known(&old.cpu_model), &known(&new.cpu_model)),
        differ("device", &known(&old.device), &known(&new.device)),
        // Directories on one device may have any names. Without a device there is only the name.
        differ("target", &old.target, &new.target).filter(|_| !has_device),
        differ("build of dioxide", &old.build, &new.build),
    ];
    facts.into_iter().flatten().collect()
}

fn terms(old: &Row, new: &Row) -> Vec<String> {
    let place = |row: &Row| match (&row.fs, &row.fs_remark) {
        (Some(fs), Some(remark)) => format!("{fs} ({remark})"),
        (Some(fs), None) => fs.clone(),
        (None, _) => "none".into(),
    };
    let is_far =
        |old: u64, new: u64| old.abs_diff(new) as f64 > DIFFERENCE_MAX * old.max(new) as f64;
    let about = |name: &str, old, new| differ(name, &old, &new).filter(|_| is_far(old, new));
    let about_bytes =
        |name: &str, old, new| differ(name, &size(old), &size(new)).filter(|_| is_far(old, new));
    let (Asked { runtime_ms, count, size_bytes, growth_cap_bytes, fresh }, asked) =
        (old.asked, new.asked);
    let facts = [
        differ("file system", &place(old), &place(new)),
        about("ms in a round", runtime_ms.unwrap_or(0), asked.runtime_ms.unwrap_or(0)),
        about("operations in a round", count.unwrap_or(0), asked.count.unwrap_or(0)),
        about_bytes("size of the file (--size)", size_bytes, asked.size_bytes),
        about_bytes(
            "largest growth (--growth-cap)",
            growth_cap_bytes.unwrap_or(0),
            asked.growth_cap_bytes.unwrap_or(0),
        ),
        differ("--fresh", &fresh, &asked.fresh),
    ];
    facts.into_iter().flatten().collect()
}

fn differ<T: PartialEq + Display>(what: &str, old: &T, new: &T) -> Option<String> {
    (old != new).then(|| format!("{what}: {old} and {new}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::saved::examples::{document, row};

    fn differences_after(change: impl Fn(&mut Document)) -> Vec<String> {
        let old = document(vec![row("kernel", 1, &[1.0], None), row("dioxide", 1, &[1.0], None)]);
        let mut new = old.clone();
        change(&mut new);
        let pairs: Vec<_> = old.results.iter().zip(&new.results).collect();
        differences(&old, &new, &pairs)
    }

    #[test]
    fn each_difference_is_named_once() {
        let Machine { cpus, build, .. } = document(Vec::new()).machine;
        assert_eq!(differences_after(|_| ()), [""; 0]);
        assert_eq!(
            differences_after(|new| new.machine.kernel_release = "6.19".into()),
            ["kernel: 6.18.0 and 6.19"]
        );
        assert_eq!(
            differences_after(|new| new.machine.cpus = 0),
            [format!("number of CPUs: {cpus} and 0")]
        );
        assert_eq!(
            differences_after(|new| new.machine.device = None),
            ["device: nvme0n1 and unknown"]
        );
        assert_eq!(
            differences_after(|new| new.machine.build = "other".into()),
            [format!("build of dioxide: {build} and other")]
        );
        let on_xfs =
            |new: &mut Document| new.results.iter_mut().for_each(|row| row.fs = Some("xfs".into()));
        assert_eq!(differences_after(on_xfs), ["file system: ext4 and xfs"]);
    }

    #[test]
    fn another_dioxide_or_directory_is_no_difference() {
        let differences = differences_after(|new| {
            let Machine { dioxide_version, target, date, .. } = &mut new.machine;
            (*dioxide_version, *target, *date) =
                ("0.2.0".into(), "/elsewhere".into(), "later".into());
        });
        assert_eq!(differences, [""; 0]);
    }

    #[test]
    fn lengths_and_sizes_may_differ_a_little() {
        let asked = |runtime_ms, size_bytes| {
            differences_after(move |new: &mut Document| {
                let asked = &mut new.results[0].asked;
                (asked.runtime_ms, asked.size_bytes) = (Some(runtime_ms), size_bytes);
            })
        };
        assert_eq!(asked(2100, 4_200_000_000), [""; 0]);
        assert_eq!(asked(1000, 4 << 30), ["ms in a round: 2000 and 1000"]);
        assert_eq!(asked(2000, 1 << 30), ["size of the file (--size): 4 GiB and 1 GiB"]);
    }
}
