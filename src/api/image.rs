//! What a crate needs that brings the format of a volume, as `dioxide-ext` does. No part of the
//! public interface: it changes without notice.

pub use crate::open::image::{Data, Image, OpenVolume, Volume, VolumeFile};
pub use crate::stats::count;
pub use crate::sync::inflight::{DrainGate, ExclusiveGuard, InFlightGuard};
pub use crate::sync::{Mutex, MutexGuard};

use crate::api::file::File;
use crate::api::options::OpenOptions;
use crate::error::Result;
use crate::{open, sync};
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Opens the file `path` of the volume in the image file or device `image`.
pub fn open(options: &OpenOptions, image: &Path, path: &Path, volume: OpenVolume) -> Result<File> {
    open::image::open(options.request(), image, path, volume).map(File::of)
}

/// Opens the file `path` of the volume in the file `image` of a simulated disk.
#[cfg(any(test, feature = "sim"))]
pub fn open_simulated(
    disk: &super::sim::Disk,
    options: &OpenOptions,
    image: &str,
    path: &Path,
    volume: OpenVolume,
) -> Result<File> {
    let name = Path::new(image);
    let image = disk.image(image)?;
    open::image::open_simulated(options.request(), name, path, image, volume).map(File::of)
}

/// The time since the epoch; in a simulation, since it began.
pub fn clock() -> Duration {
    if sync::is_simulated() {
        return sync::now();
    }
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}
