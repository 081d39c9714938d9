//! The device stack below a file system: partitions, loop devices with their files, mappings, down
//! to the disks. From sysfs; opens no device.

use crate::meter::disk::Disk;
use crate::meter::mount::{Mount, mount_of_path};
use dioxide_diagnose::host::{ext4::block_device, overlay};
use rustix::fs::{FileType, major, makedev, minor, stat};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};

/// A limit above any real stack.
const DEPTH_MAX: usize = 16;

/// One device of the stack. Unknown attributes are null.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Layer {
    /// The kernel's name: `sda1`, `loop0`, `dm-3`.
    pub name: String,
    /// `partition`, `loop`, `dm`, `md`, `disk`; `file` for the file of a loop device; `directory`
    /// for a layer of overlayfs.
    pub kind: String,
    /// The model of a disk, the name or level of a mapping, the path of a file or directory with
    /// its file system.
    pub description: Option<String>,
    pub is_rotational: Option<bool>,
    pub scheduler: Option<String>,
    pub nr_requests: Option<u64>,
    pub hw_queues: Option<u64>,
    /// The largest request that the kernel sends.
    pub request_max_bytes: Option<u64>,
    /// The largest request of the hardware.
    pub request_hw_max_bytes: Option<u64>,
    pub logical_block_bytes: Option<u64>,
    pub physical_block_bytes: Option<u64>,
    /// `write back`: it has a volatile cache, and flushes have a cost. `write through`: it has
    /// none.
    pub write_cache: Option<String>,
    pub has_fua: Option<bool>,
    pub has_poll_queues: Option<bool>,
    pub atomic_write_unit_min_bytes: Option<u64>,
    pub atomic_write_unit_max_bytes: Option<u64>,
    /// 0: no discards.
    pub discard_max_bytes: Option<u64>,
    /// 0: zeros are written like data.
    pub write_zeroes_max_bytes: Option<u64>,
    /// 0: no support for FALLOC_FL_WRITE_ZEROES.
    pub write_zeroes_unmap_max_hw_bytes: Option<u64>,
}

impl Layer {
    /// Whether it is a file or directory, which has no queue.
    pub fn is_path(&self) -> bool {
        matches!(&*self.kind, "file" | "directory")
    }
}

/// The devices from this one down, top to bottom. Empty if sysfs knows no such block device.
pub fn chain(number: u64) -> Vec<Layer> {
    let mut layers = Vec::new();
    descend(number, &mut layers, 0);
    layers
}

/// The devices below a mount, top to bottom. Below overlayfs: its directories, the writable one
/// first, each with the devices below it.
pub fn below(mount: &Mount) -> Vec<Layer> {
    let mut layers = Vec::new();
    descend_into_mount(mount, &mut layers, 0);
    layers
}

fn descend_into_mount(mount: &Mount, layers: &mut Vec<Layer>, depth: usize) {
    if depth > DEPTH_MAX {
        return;
    }
    for directory in overlay::directories(mount) {
        // The mount may have been made with other directories in view.
        if directory.path.is_dir() {
            descend_into_path(&directory.path, "directory", directory.role, layers, depth + 1);
        }
    }
    let device = block_device(mount);
    device.into_iter().for_each(|number| descend(number, layers, depth));
}

fn descend(number: u64, layers: &mut Vec<Layer>, depth: usize) {
    let link = format!("/sys/dev/block/{}:{}", major(number), minor(number));
    let Ok(sysfs) = fs::canonicalize(link) else { return };
    let layer = describe(&sysfs, number);
    // Two partitions of one disk may be parts of one mapping.
    if depth > DEPTH_MAX || layers.iter().any(|known| known.name == layer.name) {
        return;
    }
    layers.push(layer);
    if sysfs.join("partition").exists() {
        let below = sysfs.parent().and_then(number_in);
        return below.into_iter().for_each(|below| descend(below, layers, depth + 1));
    }
    if let Some(backing) = backing_file(&sysfs) {
        return descend_into_file(&backing, layers, depth + 1);
    }
    for slave in fs::read_dir(sysfs.join("slaves")).into_iter().flatten().flatten() {
        number_in(&slave.path()).into_iter().for_each(|below| descend(below, layers, depth + 1));
    }
}

/// The backing of a loop device: another device, or a file, with the devices below its file system.
fn descend_into_file(path: &Path, layers: &mut Vec<Layer>, depth: usize) {
    let Ok(status) = stat(path) else { return };
    if FileType::from_raw_mode(status.st_mode).is_block_device() {
        return descend(status.st_rdev, layers, depth);
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    descend_into_path(path, "file", &name, layers, depth);
}

/// A file or directory, with the devices below its file system.
fn descend_into_path(path: &Path, kind: &str, name: &str, layers: &mut Vec<Layer>, depth: usize) {
    let mount = mount_of_path(path);
    let fs = mount.as_ref().map_or("an unknown file system", |mount| mount.fs.as_str());
    let description = Some(format!("{} on {fs}", path.display()));
    let (name, kind) = (name.to_owned(), kind.to_owned());
    layers.push(Layer { name, kind, description, ..Layer::default() });
    mount.iter().for_each(|mount| descend_into_mount(mount, layers, depth));
}

fn describe(sysfs: &Path, number: u64) -> Layer {
    let name = sysfs.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let queue = queue_of(sysfs);
    let text = |attribute: &str| read(&queue.join(attribute));
    let count = |attribute: &str| text(attribute)?.parse().ok();
    let kib = |attribute: &str| count(attribute).map(|kib: u64| kib << 10);
    let flag = |attribute: &str| count(attribute).map(|flag: u64| flag != 0);
    let (kind, description) = kind(sysfs);
    Layer {
        name,
        kind: kind.into(),
        description,
        is_rotational: flag("rotational"),
        scheduler: text("scheduler").map(|all| chosen(&all)),
        nr_requests: count("nr_requests"),
        hw_queues: hw_queues(&queue),
        request_max_bytes: kib("max_sectors_kb"),
        request_hw_max_bytes: kib("max_hw_sectors_kb"),
        logical_block_bytes: count("logical_block_size"),
        physical_block_bytes: count("physical_block_size"),
        write_cache: Disk::find(number).and_then(|disk| disk.write_cache()),
        has_fua: flag("fua"),
        has_poll_queues: flag("io_poll"),
        atomic_write_unit_min_bytes: count("atomic_write_unit_min_bytes"),
        atomic_write_unit_max_bytes: count("atomic_write_unit_max_bytes"),
        discard_max_bytes: count("discard_max_bytes"),
        write_zeroes_max_bytes: count("write_zeroes_max_bytes"),
        write_zeroes_unmap_max_hw_bytes: count("write_zeroes_unmap_max_hw_bytes"),
    }
}

fn kind(sysfs: &Path) -> (&'static str, Option<String>) {
    if sysfs.join("partition").exists() {
        return (
            "partition",
            read(&sysfs.join("partition")).map(|number| format!("number {number}")),
        );
    }
    if sysfs.join("loop").exists() {
        return ("loop", backing_file(sysfs).map(|file| file.display().to_string()));
    }
    if sysfs.join("dm").exists() {
        return ("dm", read(&sysfs.join("dm/name")));
    }
    if sysfs.join("md").exists() {
        return ("md", read(&sysfs.join("md/level")));
    }
    ("disk", read(&sysfs.join("device/model")))
}

/// Partitions share the queue of their disk.
fn queue_of(sysfs: &Path) -> PathBuf {
    match sysfs.parent() {
        Some(disk) if sysfs.join("partition").exists() => disk.join("queue"),
        _ => sysfs.join("queue"),
    }
}

/// One directory per queue. Devices without such queues have none.
fn hw_queues(queue: &Path) -> Option<u64> {
    Some(fs::read_dir(queue.parent()?.join("mq")).ok()?.count() as u64)
}

fn backing_file(sysfs: &Path) -> Option<PathBuf> {
    read(&sysfs.join("loop/backing_file")).map(PathBuf::from)
}

/// The value of an attribute. None if it is empty or missing.
fn read(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?.trim().to_owned();
    (!text.is_empty()).then_some(text)
}

fn number_in(sysfs: &Path) -> Option<u64> {
    let text = read(&sysfs.join("dev"))?;
    let (major, minor) = text.split_once(':')?;
    Some(makedev(major.parse().ok()?, minor.parse().ok()?))
}

/// `mq-deadline` of `none [mq-deadline] kyber`.
fn chosen(all: &str) -> String {
    let inside = all.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    inside.map_or(all, |(chosen, _)| chosen).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scheduler_in_brackets_is_the_one() {
        assert_eq!(chosen("none [mq-deadline] kyber"), "mq-deadline");
        assert_eq!(chosen("none"), "none");
    }

    #[test]
    fn no_such_device_has_no_layers() {
        assert_eq!(chain(0), []);
    }

    #[test]
    fn every_disk_is_its_own_last_layer() {
        for disk in fs::read_dir("/sys/block").into_iter().flatten().flatten() {
            let Some(number) = number_in(&disk.path()) else { continue };
            let layers = chain(number);
            assert_eq!(layers[0].name, disk.file_name().to_string_lossy().replace('/', "!"));
            let last = layers.last().unwrap();
            assert!(
                layers[0].logical_block_bytes.is_some() && last.kind != "partition",
                "{layers:?}"
            );
        }
    }
}
