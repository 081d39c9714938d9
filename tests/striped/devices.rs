//! Striped volumes of block devices.

use crate::common::*;
use crate::volume::{CHUNK, Paths};
use dioxide::{Buffer, Durability, ErrorKind, Growth, OpenOptions};
use dioxide_testkit::lab::{self, Fs, TestDir};
use dioxide_testkit::loop_device::AttachedFile;
use dioxide_testkit::trials::{Failed, Trial, TrialResult, volume_trial};
use dioxide_testkit::volume::{SIZE_MIN, Volume};
use std::fs;
use std::os::unix::fs::FileExt;

/// Loop devices on files of zeros.
struct Devices {
    devices: Vec<AttachedFile>,
    images: Vec<std::path::PathBuf>,
    paths: Paths,
    dir: TestDir,
}

impl Devices {
    fn new(test: &str, sizes: &[u64], chunk: u64) -> Result<Self, Failed> {
        let dir = lab::fresh_dir(Fs::Ext4, test)?;
        let images: Vec<_> =
            (0..sizes.len()).map(|number| dir.join(format!("image.{number}"))).collect();
        for (image, size) in images.iter().zip(sizes) {
            fs::File::create(image)?.set_len(*size)?;
        }
        let devices =
            images.iter().map(|image| AttachedFile::new(image)).collect::<Result<Vec<_>, _>>()?;
        let members = devices.iter().map(|device| device.path().to_owned()).collect();
        Ok(Self { devices, images, paths: Paths { members, chunk }, dir })
    }

    fn flushes(&self) -> std::io::Result<Vec<u64>> {
        self.devices.iter().map(AttachedFile::flushes).collect()
    }
}

fn a_volume_of_devices_has_a_fixed_size() -> TrialResult {
    let rig = Devices::new("fixed_size", &[3 * MIB, 2 * MIB + 5 * 4096, 4 * MIB], 65_536)?;
    // A little over 2 MiB is 32 chunks, one of which holds the header.
    let size = 31 * 3 * 65_536;
    let file = rig.paths.open(writable().growth(Growth::Zeroed))?;
    assert_eq!((file.len()?, file.growth(), file.recovery()), (size, Growth::None, None));
    assert!(file.append(&record(1, 1, 1)).is_err());
    assert!(file.set_len(0).is_err() && file.set_len(size + 4096).is_err());
    assert!(file.write_at(&record(1, 1, 2), size - 4096).is_err(), "beyond the end");
    assert!(file.write_at(&record(1, 1, 2), size).is_err(), "beyond the end");
    assert_eq!(file.len()?, size);
    let whole = record(1, 2, size / BLOCK_BYTES);
    file.write_at(&whole, 0)?;
    let mut into = vec![0; size as usize + 5000];
    assert_eq!(file.read_at(&mut into, 0)?, size as usize);
    assert!(into[..size as usize] == *whole);
    file.sync_data()?;
    file.close()?;
    let reader = rig.paths.open(&OpenOptions::new())?;
    assert_eq!(reader.len()?, size);
    assert_eq!(reader.read_at(&mut into, 0)?, size as usize);
    assert!(into[..size as usize] == *whole);
    // The content of the images, computed by the layout rule.
    let images = Paths { members: rig.images.clone(), ..rig.paths.clone() };
    rig.devices.iter().for_each(drop);
    let content = images.content()?;
    assert!(content[..size as usize] == *whole);
    Ok(())
}

fn threads_and_queues_write_a_volume_of_devices(way: Way) -> TrialResult {
    const PLACES: u64 = 16;
    let rig = Devices::new("many_writers", &[MIB, MIB, MIB], CHUNK)?;
    let file = way.to(rig.paths.open(writable().durability(Durability::EveryWrite))?);
    // Each write crosses a border.
    let place = |thread, n| (thread * PLACES + n) * 3 * BLOCK_BYTES;
    together(8, |thread| {
        for number in 0..PLACES {
            file.write_at(&record(thread, number, 3), place(thread, number))
                .expect("it is written");
        }
    });
    file.close()?;
    let file = rig.paths.open(&OpenOptions::new())?;
    for thread in 0..8 {
        for number in 0..PLACES {
            let mut into = vec![0; 3 * BLOCK];
            assert_eq!(file.read_at(&mut into, place(thread, number))?, into.len());
            assert!(into == *record(thread, number, 3));
        }
    }
    Ok(())
}

/// Any write, anywhere.
fn a_flush_is_one_of_all_members() -> TrialResult {
    let rig = Devices::new("flushes", &[MIB, MIB, MIB], CHUNK)?;
    let file = rig.paths.open(&writable())?;
    file.write_at(&record(1, 1, 1), 0)?;
    let before = rig.flushes()?;
    file.sync_data()?;
    let after = rig.flushes()?;
    assert!(
        before.iter().zip(&after).all(|(before, after)| after > before),
        "{before:?}, then {after:?}"
    );
    // So does a flush by a queue.
    let by_queue = Way::Queue.to(file);
    by_queue.sync_data()?;
    let last = rig.flushes()?;
    assert!(
        after.iter().zip(&last).all(|(before, after)| after > before),
        "{after:?}, then {last:?}"
    );
    Ok(())
}

fn only_blank_devices_become_a_volume() -> TrialResult {
    let rig = Devices::new("blank", &[MIB, MIB], CHUNK)?;
    assert!(matches!(refusal(rig.paths.reopen()), ErrorKind::Members(_)));
    assert!(matches!(refusal(rig.paths.open(&OpenOptions::new())), ErrorKind::Members(_)));
    for place in 0..2 {
        let device = fs::File::options().write(true).read(true).open(&rig.paths.members[place])?;
        for at in [0, 511, 4095] {
            device.write_all_at(&[1], at)?;
            device.sync_all()?;
            assert!(matches!(refusal(rig.paths.open(&writable())), ErrorKind::Members(_)));
            device.write_all_at(&[0], at)?;
            device.sync_all()?;
        }
    }
    for path in &rig.paths.members {
        let device = fs::File::open(path)?;
        let mut first = [1; 4096];
        device.read_exact_at(&mut first, 0)?;
        assert!(first.iter().all(|byte| *byte == 0), "what was refused was written to");
    }
    // Bytes after the header's block have no effect.
    fs::File::options().write(true).open(&rig.paths.members[1])?.write_all_at(&[1; 512], 4096)?;
    rig.paths.open(&writable())?.close()?;
    let swapped =
        Paths { members: rig.paths.members.iter().rev().cloned().collect(), ..rig.paths.clone() };
    assert!(matches!(refusal(swapped.reopen()), ErrorKind::Members(_)));
    let twice = Paths { members: vec![rig.paths.members[0].clone(); 2], ..rig.paths.clone() };
    assert!(twice.open(&writable()).is_err());
    assert_eq!(rig.paths.reopen()?.len()?, 2 * (MIB - CHUNK));
    Ok(())
}

/// Data may have any value up to the last byte: writes never touch a header.
fn headers_survive_every_write() -> TrialResult {
    let rig = Devices::new("headers", &[MIB, MIB], 4096)?;
    let file = rig.paths.open(&writable())?;
    let len = file.len()?;
    let mut all = Buffer::zeroed(len as usize);
    all.fill(0xFF);
    file.write_at(&all, 0)?;
    file.close()?;
    let file = rig.paths.reopen()?;
    all.fill(0);
    file.write_at(&all, 0)?;
    file.close()?;
    assert_eq!(rig.paths.reopen()?.len()?, len);
    Ok(())
}

fn devices_in_use_and_mixtures_are_refused() -> TrialResult {
    let rig = Devices::new("in_use", &[MIB, MIB], CHUNK)?;
    let volume = Volume::new(Fs::Ext4, SIZE_MIN)?;
    let with = |path: &std::path::Path| Paths {
        members: vec![rig.paths.members[0].clone(), path.to_owned()],
        ..rig.paths.clone()
    };
    assert!(matches!(refusal(with(volume.device()).open(&writable())), ErrorKind::Busy(_)));
    // The image of a device; a file next to a device.
    let beside =
        Paths { members: vec![rig.dir.join("file"), rig.images[1].clone()], ..rig.paths.clone() };
    std::fs::write(&beside.members[0], b"")?;
    let refused = refusal(beside.open(&writable()));
    let is_attached = rig.devices[1].is_attached();
    assert!(matches!(refused, ErrorKind::Busy(_)), "{refused:?}, attached: {is_attached}");
    assert!(matches!(
        refusal(with(&rig.dir.join("other")).open(&writable())),
        ErrorKind::Unsupported(_)
    ));
    let file = rig.paths.open(&writable())?;
    assert!(matches!(
        refusal(OpenOptions::new().write(true).open(&rig.paths.members[1])),
        ErrorKind::Busy(_)
    ));
    let child = dioxide_testkit::child::spawn("try_to_open_striped", &rig.paths.to_args())?;
    let (_, acks) = child.wait(PATIENCE)?;
    assert_eq!(acks[0][0], BUSY);
    file.close()?;
    // A refused open holds no device.
    rig.paths.reopen()?.close()?;
    Ok(())
}

pub fn trials() -> Vec<Trial> {
    type Test = (&'static str, fn() -> TrialResult);
    let tests: &[Test] = named![
        a_volume_of_devices_has_a_fixed_size,
        a_flush_is_one_of_all_members,
        only_blank_devices_become_a_volume,
        headers_survive_every_write,
        devices_in_use_and_mixtures_are_refused,
    ];
    let mut trials: Vec<_> =
        tests.iter().map(|&(name, test)| volume_trial(&format!("devices::{name}"), test)).collect();
    trials.extend(Way::ALL.iter().map(|&way| {
        let name = format!("devices::{}::threads_and_queues_write_a_volume_of_devices", way.arg());
        volume_trial(&name, move || threads_and_queues_write_a_volume_of_devices(way))
    }));
    trials
}
