//! The limit of open files, which many files may exceed.

use anyhow::{Context, Result, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The descriptors of a file: that of the bench, which keeps the file, and dioxide's.
const OF_A_FILE: u64 = 2;
/// More than this process needs besides: its outputs, the directory, rings, counters of the kernel.
const OF_THE_PROCESS: u64 = 64;

/// Raises the soft limit of this process to the hard one if this number of files needs it. Refuses
/// if that is not enough.
pub fn make_room_for(files: usize) -> Result<()> {
    let (needed, limit) = (needed(files), getrlimit(Resource::Nofile));
    if limit.current.is_none_or(|soft| needed <= soft) {
        return Ok(());
    }
    check(files, needed, limit.maximum)?;
    let limit = Rlimit { current: limit.maximum, ..limit };
    setrlimit(Resource::Nofile, limit).context("raise the limit of open files")
}

fn needed(files: usize) -> u64 {
    files as u64 * OF_A_FILE + OF_THE_PROCESS
}

/// `hard` is None for no limit.
fn check(files: usize, needed: u64, hard: Option<u64>) -> Result<()> {
    let Some(hard) = hard else { return Ok(()) };
    ensure!(
        needed <= hard,
        "{files} files need {needed} descriptors, and this process may have {hard}: raise the \
         hard limit of open files (`ulimit -n`), or lower --files"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_files_are_refused() {
        let refusal = |files, maximum| check(files, needed(files), maximum).unwrap_err();
        assert_eq!(
            refusal(1024, Some(1024)).to_string(),
            "1024 files need 2112 descriptors, and this process may have 1024: raise the hard \
             limit of open files (`ulimit -n`), or lower --files"
        );
        refusal(16, Some(95));
        check(16, needed(16), Some(96)).unwrap();
        check(16_384, needed(16_384), None).unwrap();
    }

    #[test]
    fn the_limit_is_raised_to_its_maximum() {
        let before = getrlimit(Resource::Nofile);
        make_room_for(1).unwrap();
        assert_eq!(getrlimit(Resource::Nofile), before, "enough");
        let Some(hard) = before.maximum else { return };
        // Other tests of this process need most of it.
        setrlimit(Resource::Nofile, Rlimit { current: Some(hard - 2), ..before }).unwrap();
        let most = ((hard - OF_THE_PROCESS) / OF_A_FILE) as usize;
        make_room_for(most).unwrap();
        assert_eq!(getrlimit(Resource::Nofile).current, before.maximum);
        assert!(make_room_for(most + 1).is_err());
        setrlimit(Resource::Nofile, before).unwrap();
    }
}
