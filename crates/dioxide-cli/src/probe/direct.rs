//! Checks that O_DIRECT is direct, by looking for pages of the file in the cache during direct
//! writes.

use super::facts::{Facts, Told, Topic};
use crate::bench::place::RunFile;
use crate::sys::pages_in_cache;
use anyhow::{Context, Result};
use dioxide::Buffer;
use rustix::fs::OFlags;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

const WRITE_BYTES: usize = 4 << 20;
const WRITES: u64 = 8;

/// Samples during the writes, because the kernel drops the pages before a call returns. `why_not`
/// is the library's knowledge of such file systems.
pub fn look(ground: &RunFile, why_not: Option<String>, facts: &mut Facts) -> Result<()> {
    let how = format!("cachestat during {WRITES} direct writes of 4 MiB");
    let told: Told = match pages_seen(ground)? {
        Err(why) => Err(why),
        Ok(0) => Ok("yes".into()),
        Ok(pages) => {
            let why = why_not.map(|why| format!(": {why}")).unwrap_or_default();
            Ok(format!("no, {pages} pages in the cache{why}").into())
        }
    };
    facts.tell(Topic::FileSystem, "is_direct", "O_DIRECT is direct", told, how);
    Ok(())
}

/// The maximum number of cached pages during the writes.
fn pages_seen(ground: &RunFile) -> Result<Result<u64, String>> {
    match pages_of_a_cached_write(ground) {
        Err(error) => return Ok(Err(format!("{error} (needs Linux 6.5)"))),
        // On overlayfs the pages belong to another file.
        Ok(0) => {
            return Ok(Err("the pages of files of this file system are not to be seen".into()));
        }
        Ok(_) => {}
    }
    let file = ground.open(OFlags::empty())?;
    file.set_len(0)?;
    let is_over = AtomicBool::new(false);
    let (written, seen) = thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut most = 0;
            // Once more at the end.
            loop {
                let last = is_over.load(Relaxed);
                most = most.max(pages_in_cache(&file)?);
                if last {
                    return Ok::<u64, std::io::Error>(most);
                }
                thread::yield_now();
            }
        });
        let block = Buffer::zeroed(WRITE_BYTES);
        let written =
            (0..WRITES).try_for_each(|nth| file.write_all_at(&block, nth * WRITE_BYTES as u64));
        is_over.store(true, Relaxed);
        (written, watcher.join().expect("the watcher does not panic"))
    });
    written.context("write to the scratch file")?;
    Ok(seen.map_err(|error| error.to_string()))
}

/// Whether existing pages are visible at all.
fn pages_of_a_cached_write(ground: &RunFile) -> std::io::Result<u64> {
    let file = ground.open_cached().map_err(std::io::Error::other)?;
    file.write_all_at(&[1; 4096], 0)?;
    pages_in_cache(&file)
}
