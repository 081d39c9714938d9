//! Whether the place stores data at all, from the facts and the device stack. Pure.

use super::document::ProbeDocument;

/// File systems in memory.
const IN_MEMORY: [&str; 3] = ["tmpfs", "ramfs", "hugetlbfs"];
/// Devices that keep data in memory, or nowhere: the prefixes of their names.
const DEVICES_IN_MEMORY: [(&str, &str); 3] = [
    ("zram", "keeps data in memory"),
    ("ram", "keeps data in memory"),
    ("nullb", "confirms writes without storing them"),
];

/// Notes the reason why nothing is durable here, and withdraws what is called durable.
pub fn judge(document: &mut ProbeDocument) {
    document.not_durable = why_not_durable(document);
    if document.not_durable.is_some() {
        document.costs.iter_mut().for_each(|cost| cost.is_durable = false);
        document.sync_methods.iter_mut().for_each(|method| method.is_durable = false);
    }
}

/// Why data that a flush confirmed may be lost here.
pub fn loses_data(document: &ProbeDocument) -> Option<&'static str> {
    (document.facts.is("fast_commit") == Some(true))
        .then_some("fdatasync may return early on ext4 with fast commits")
}

fn why_not_durable(document: &ProbeDocument) -> Option<String> {
    let facts = &document.facts;
    let in_memory = |fs: &str| format!("{fs} keeps files in memory");
    let fs = facts.text("file_system").filter(|fs| IN_MEMORY.contains(fs));
    // Writes go to the first layer of an overlayfs; devices below another layer store old files.
    let second = document.devices.iter().position(|layer| layer.name == "lower");
    let upper =
        &document.devices[..second.filter(|nth| *nth > 0).unwrap_or(document.devices.len())];
    let layer = || {
        upper.iter().find_map(|layer| match layer.is_path() {
            true => {
                let (_, fs) = layer.description.as_deref()?.rsplit_once(" on ")?;
                IN_MEMORY.contains(&fs).then(|| in_memory(fs))
            }
            false => {
                let (_, what) = DEVICES_IN_MEMORY.iter().find(|(prefix, _)| {
                    let number = layer.name.strip_prefix(prefix);
                    number.is_some_and(|rest| rest.starts_with(|one: char| one.is_ascii_digit()))
                })?;
                Some(format!("{} {what}", layer.name))
            }
        })
    };
    let without_barriers = || {
        let is_so = facts.is("has_barriers") == Some(false)
            && facts.is("has_volatile_cache") != Some(false);
        is_so.then(|| {
            "the mount has no barriers, so no flush reaches the cache of the device".to_owned()
        })
    };
    fs.map(in_memory).or_else(layer).or_else(without_barriers)
}

#[cfg(test)]
mod tests {
    use super::super::document::examples;
    use super::super::facts::{Facts, Topic};
    use super::super::layer::Layer;
    use super::*;

    fn place(fs: &str, layers: &[(&str, &str, Option<&str>)]) -> ProbeDocument {
        let mut facts = Facts::default();
        facts.know(Topic::FileSystem, "file_system", "kind", fs, "/proc/self/mountinfo");
        let layer = |&(name, kind, description): &(&str, &str, Option<&str>)| Layer {
            name: name.into(),
            kind: kind.into(),
            description: description.map(str::to_owned),
            ..Layer::default()
        };
        ProbeDocument { facts, devices: layers.iter().map(layer).collect(), ..examples::document() }
    }

    fn why(mut document: ProbeDocument) -> String {
        judge(&mut document);
        let is_durable = document.costs.iter().any(|cost| cost.is_durable)
            || document.sync_methods.iter().any(|method| method.is_durable);
        assert_eq!(is_durable, document.not_durable.is_none());
        document.not_durable.unwrap_or_default()
    }

    #[test]
    fn tmpfs_was_called_durable() {
        assert_eq!(why(place("tmpfs", &[])), "tmpfs keeps files in memory");
    }

    #[test]
    fn a_device_that_stores_nothing_was_called_durable() {
        let disk = ("sda", "disk", None);
        assert_eq!(why(place("ext4", &[("zram0", "disk", None)])), "zram0 keeps data in memory");
        assert!(
            why(place("xfs", &[("dm-0", "dm", None), ("nullb0", "disk", None)])).contains("nullb0")
        );
        let on = |fs| ("image", "file", Some(fs));
        let image = |fs| place("ext4", &[("loop0", "loop", None), on(fs), disk]);
        assert_eq!(why(image("/run/image on tmpfs")), "tmpfs keeps files in memory");
        assert_eq!(why(image("/data/on tmpfs/image on ext4")), "");
        assert_eq!(why(place("ext4", &[("rambo", "disk", None)])), "");
    }

    #[test]
    fn only_the_upper_layer_of_an_overlay_takes_writes() {
        let layers = |upper, lower| {
            [("upper", "directory", Some(upper)), ("lower", "directory", Some(lower))]
        };
        assert_eq!(why(place("overlay", &layers("/u on ext4", "/l on tmpfs"))), "");
        assert!(why(place("overlay", &layers("/u on tmpfs", "/l on ext4"))).contains("tmpfs"));
    }

    #[test]
    fn flushes_that_are_not_sent_make_nothing_durable() {
        let mut document = place("ext4", &[("sda", "disk", None)]);
        document.facts.know(Topic::FileSystem, "has_barriers", "barriers", false, "");
        assert!(why(document.clone()).contains("no barriers"));
        document.facts.know(Topic::Durability, "has_volatile_cache", "cache", false, "");
        assert_eq!(why(document), "", "there is no cache to flush");
    }
}
