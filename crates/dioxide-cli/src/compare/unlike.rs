//! Other differences between two runs: figures of unlike runs say nothing about dioxide. Measures
//! nothing.

use crate::bench::estimate::SIZE_MIN_BYTES;
use crate::bench::work::Asked;
use crate::meter::machine::Machine;
use crate::saved::{SavedDocument, SavedRow};
use crate::units::about_bytes as size;
use std::fmt::Display;

/// Sizes and lengths that differ by less are equal.
const DIFFERENCE_MAX: f64 = 0.1;
/// By default, trials choose the length of a round. Two benches on one machine may differ by two of
/// their steps.
const LENGTH_FACTOR_MAX: u64 = 5;

/// Differences in words, each once.
#[derive(Debug, Default, PartialEq)]
pub struct Differences {
    /// They explain other figures.
    pub serious: Vec<String>,
    /// Two runs with default settings have them. Ratios within a round compare nevertheless.
    pub harmless: Vec<String>,
}

impl Differences {
    fn add(&mut self, other: Self) {
        let both = [(&mut self.serious, other.serious), (&mut self.harmless, other.harmless)];
        for (all, more) in both {
            for difference in more {
                if !all.contains(&difference) {
                    all.push(difference);
                }
            }
        }
    }
}

/// `pairs` are the rows of both runs.
pub fn differences(
    old: &SavedDocument,
    new: &SavedDocument,
    pairs: &[(&SavedRow, &SavedRow)],
) -> Differences {
    let serious = of_places(&old.machine, &new.machine);
    let mut all = Differences { serious, ..Differences::default() };
    for (old, new) in pairs {
        all.add(of_terms(old, new));
    }
    all
}

/// Of the machine and the device.
pub fn of_places(old: &Machine, new: &Machine) -> Vec<String> {
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

/// Of the settings of a row.
pub fn of_terms(old: &SavedRow, new: &SavedRow) -> Differences {
    let place = |row: &SavedRow| match (&row.fs, &row.fs_remark) {
        (Some(fs), Some(remark)) => format!("{fs} ({remark})"),
        (Some(fs), None) => fs.clone(),
        (None, _) => "none".into(),
    };
    let is_far =
        |old: u64, new: u64| old.abs_diff(new) as f64 > DIFFERENCE_MAX * old.max(new) as f64;
    let about = |name: &str, old: Option<u64>, new: Option<u64>| {
        let (old, new) = (old.unwrap_or(0), new.unwrap_or(0));
        differ(name, &old, &new).filter(|_| is_far(old, new))
    };
    let about_bytes = |name: &str, old: Option<u64>, new: Option<u64>| {
        let (old, new) = (old.unwrap_or(0), new.unwrap_or(0));
        differ(name, &size(old), &size(new)).filter(|_| is_far(old, new))
    };
    let (Asked { runtime_ms, count, size_bytes, growth_cap_bytes, fresh }, asked) =
        (old.asked, new.asked);
    let is_near = |old: Option<u64>, new: Option<u64>| match (old, new) {
        (Some(old), Some(new)) => old.max(new) <= LENGTH_FACTOR_MAX * old.min(new),
        _ => old == new,
    };
    // A file of this size exceeds the caches of a device, and so does a larger one.
    let is_large = size_bytes.min(asked.size_bytes) >= SIZE_MIN_BYTES;
    let facts = [
        (false, differ("file system", &place(old), &place(new))),
        (
            is_near(runtime_ms, asked.runtime_ms),
            about("ms in a round", runtime_ms, asked.runtime_ms),
        ),
        (is_near(count, asked.count), about("operations in a round", count, asked.count)),
        (
            is_large,
            about_bytes("size of the file (--size)", Some(size_bytes), Some(asked.size_bytes)),
        ),
        (
            false,
            about_bytes("largest growth (--growth-cap)", growth_cap_bytes, asked.growth_cap_bytes),
        ),
        (false, differ("--fresh", &fresh, &asked.fresh)),
    ];
    let mut all = Differences::default();
    for (is_harmless, fact) in facts {
        (if is_harmless { &mut all.harmless } else { &mut all.serious }).extend(fact);
    }
    all
}

fn differ<T: PartialEq + Display>(what: &str, old: &T, new: &T) -> Option<String> {
    (old != new).then(|| format!("{what}: {old} and {new}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::saved::examples::{document, row};

    fn differences_after(change: impl Fn(&mut SavedDocument)) -> Vec<String> {
        all_after(change).serious
    }

    fn all_after(change: impl Fn(&mut SavedDocument)) -> Differences {
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
        let on_xfs = |new: &mut SavedDocument| {
            new.results.iter_mut().for_each(|row| row.fs = Some("xfs".into()))
        };
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
    fn lengths_and_sizes_may_differ_as_defaults_do() {
        let asked = |runtime_ms, size_bytes| {
            let Differences { serious, harmless } = all_after(move |new: &mut SavedDocument| {
                let asked = &mut new.results[0].asked;
                (asked.runtime_ms, asked.size_bytes) = (Some(runtime_ms), size_bytes);
            });
            (serious.join("; "), harmless.join("; "))
        };
        let is = |serious: &str, harmless: &str| (serious.to_owned(), harmless.to_owned());
        assert_eq!(asked(2100, 4_200_000_000), is("", ""));
        assert_eq!(asked(500, 4 << 30), is("", "ms in a round: 2000 and 500"));
        assert_eq!(asked(200, 4 << 30), is("ms in a round: 2000 and 200", ""));
        assert_eq!(asked(2000, 1 << 30), is("", "size of the file (--size): 4 GiB and 1 GiB"));
        assert_eq!(asked(2000, 8 << 20), is("size of the file (--size): 4 GiB and 8 MiB", ""));
        let counted = all_after(|new: &mut SavedDocument| {
            let asked = &mut new.results[0].asked;
            (asked.runtime_ms, asked.count) = (None, Some(10));
        });
        assert_eq!(counted.serious.len(), 2, "{counted:?}");
    }
}
