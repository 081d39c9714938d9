//! Aborts the connection of a FUSE server that does not answer and cannot be killed. After a write
//! to `N/abort` in the FUSE control file system every request fails.

use std::fs;
use std::io;
use std::path::Path;

use crate::mount::Mount;
use crate::site::Site;

const USUAL_PLACE: &str = "/sys/fs/fuse/connections";

/// `connection` is the minor number of the mount's device.
pub(super) fn abort(connection: u32, site: &Site) -> io::Result<()> {
    match abort_in(Path::new(USUAL_PLACE), connection) {
        // Not mounted there in most containers.
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let mount = Mount::new("fusectl", Path::new("none"), &site.path("ctl"), "defaults")?;
            abort_in(mount.dir(), connection)
        }
        result => result,
    }
}

fn abort_in(dir: &Path, connection: u32) -> io::Result<()> {
    fs::write(dir.join(connection.to_string()).join("abort"), "1")
}
