//! The file system: its kind, its mount, and the library's view of it.

use super::facts::{Facts, Told, Topic};
use super::subject::Subject;
use crate::bench::place::{BenchTarget, RunFile};
use crate::meter::mount::Mount;
use crate::warnings;
use anyhow::Result;
use dioxide::{Growth, OpenOptions};
use dioxide_diagnose::host::ext4::fast_commit;
use rustix::fs::{major, minor, statvfs};
use std::fs;
use std::path::{Path, PathBuf};

/// Mount options that affect direct and durable writes: their prefixes.
const OPTIONS_THAT_MATTER: &[&str] = &[
    "sync",
    "dirsync",
    "dax",
    "data=",
    "data_err=",
    "barrier",
    "nobarrier",
    "journal_async_commit",
    "fc_debug_force",
    "journal_checksum",
    "norecovery",
    "noload",
    "nolog",
    "wsync",
    "logbsize=",
    "logbufs=",
    "commit=",
    "dioread_",
    "delalloc",
    "nodelalloc",
    "discard",
    "nodatacow",
    "nodatasum",
    "compress",
    "lazytime",
    "stripe=",
    "sunit=",
    "swidth=",
];

fn sysfs(number: u64) -> Option<PathBuf> {
    fs::canonicalize(format!("/sys/dev/block/{}:{}", major(number), minor(number))).ok()
}

/// The facts that need no writes.
pub fn look(subject: &Subject, facts: &mut Facts) {
    let topic = Topic::FileSystem;
    let Some(mount) = &subject.mount else {
        let nothing: Told = Err("/proc/self/mountinfo does not show it".into());
        return facts.tell(topic, "file_system", "kind", nothing, "/proc/self/mountinfo");
    };
    facts.know(topic, "file_system", "kind", mount.fs.as_str(), "/proc/self/mountinfo");
    facts.know(topic, "mount_point", "mounted at", mount.point.as_str(), "/proc/self/mountinfo");
    let (options, how) = options(mount);
    facts.know(topic, "mount_options", "options that matter", that_matter(&options), how.clone());
    facts.tell(topic, "has_barriers", "barriers", has_barriers(&mount.fs, &options), how);
    let journal = journal(mount, &options);
    let has_journal = journal.as_deref() != Ok("none");
    facts.tell(topic, "journal", "journal", journal, journal_source(mount));
    if mount.fs == "ext4" && has_journal {
        let (is_on, how) = fast_commit(mount, options.iter().map(String::as_str));
        let is_on = is_on.map_err(|error| error.to_string());
        facts.tell(topic, "fast_commit", "fast commits", is_on, how);
    }
    if let Ok(space) = statvfs(subject.directory()) {
        facts.know(topic, "block_bytes", "block", space.f_bsize, "statvfs");
        facts.know(topic, "free_bytes", "free", space.f_bavail * space.f_frsize, "statvfs");
    }
}

/// All options, with the defaults if the driver lists them, and their source.
fn options(mount: &Mount) -> (Vec<String>, String) {
    let device =
        sysfs(mount.device).and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    let listed = device.map(|device| format!("/proc/fs/ext4/{device}/options"));
    if let Some((path, text)) =
        listed.and_then(|path| Some((path.clone(), fs::read_to_string(path).ok()?)))
    {
        return (text.lines().map(str::to_owned).collect(), path);
    }
    (mount.options.split(',').map(str::to_owned).collect(), "/proc/self/mountinfo".into())
}

fn that_matter(options: &[String]) -> String {
    let matters =
        |option: &&String| OPTIONS_THAT_MATTER.iter().any(|name| option.starts_with(name));
    // Disabled options, and the number 0, which means the same.
    let idle = |option: &&String| option.ends_with("=0") && !option.starts_with("barrier");
    let found: Vec<_> =
        options.iter().filter(matters).filter(|option| !idle(option)).map(|it| &**it).collect();
    if found.is_empty() { "none".into() } else { found.join(",") }
}

fn has_barriers(fs: &str, options: &[String]) -> Result<bool, String> {
    let has = |name: &str| options.iter().any(|option| option == name);
    match fs {
        "ext2" | "ext3" | "ext4" | "xfs" | "btrfs" => Ok(!has("nobarrier") && !has("barrier=0")),
        _ => Err(format!("nothing is known of {fs}")),
    }
}

/// The protection of its metadata, in a few words.
fn journal(mount: &Mount, options: &[String]) -> Result<String, String> {
    let mode = options.iter().find_map(|option| option.strip_prefix("data="));
    match &*mount.fs {
        "ext3" | "ext4" => match fs::read_to_string(ext4_folder(mount).join("journal_task")) {
            Ok(task) if task.trim().parse::<u64>().is_ok() => {
                Ok(format!("yes, data={}", mode.unwrap_or("ordered")))
            }
            Ok(_) => Ok("none".into()),
            Err(error) => Err(error.to_string()),
        },
        "ext2" => Ok("none".into()),
        "xfs" => Ok("yes, of metadata".into()),
        "btrfs" => Ok("a log of what was synced; else copy on write".into()),
        "tmpfs" => Ok("none".into()),
        other => Err(format!("nothing is known of {other}")),
    }
}

fn journal_source(mount: &Mount) -> String {
    match &*mount.fs {
        "ext3" | "ext4" => format!("{}/journal_task", ext4_folder(mount).display()),
        _ => "by its kind".into(),
    }
}

fn ext4_folder(mount: &Mount) -> PathBuf {
    let device = sysfs(mount.device);
    let name = device.as_deref().and_then(Path::file_name).unwrap_or_default();
    Path::new("/sys/fs/ext4").join(name)
}

/// The library's messages when it opens a file here, with each kind of growth. Returns its reason
/// if direct I/O is not direct.
pub fn ask_the_library(place: &BenchTarget, facts: &mut Facts) -> Result<Option<String>> {
    let ground = place.prepare()?;
    let zeroed = grows(&ground, Growth::Zeroed);
    let (file, said) = open_with(&ground, Growth::Unwritten);
    let topic = Topic::FileSystem;
    let how = "a scratch file opened with Growth::Unwritten";
    facts.tell(
        topic,
        "grows_unwritten",
        "grows ahead, unwritten",
        growth_in(&file, &said, Growth::Unwritten),
        how,
    );
    facts.tell(
        topic,
        "grows_zeroed",
        "grows ahead, zeroed",
        zeroed,
        "a scratch file opened with Growth::Zeroed",
    );
    let shares = file.as_ref().map(|file| match file.shares_flushes() {
        Ok(()) => "yes".to_owned(),
        Err(why) => format!("no: {why}"),
    });
    facts.tell(topic, "shares_flushes", "one flush for many files", shares, "File::shares_flushes");
    let locks = file.as_ref().map(|_| true);
    facts.tell(
        Topic::Abilities,
        "ofd_locks",
        "OFD locks",
        locks,
        "an open for writing by the library takes one",
    );
    let append = file.as_ref().map(|file| file.alignment().append);
    facts.tell(
        Topic::Alignment,
        "append_bytes",
        "appends are packed into",
        append,
        "File::alignment",
    );
    if let Ok(file) = file {
        file.close()?;
    }
    Ok(said_of(&said, "O_DIRECT is not direct here: "))
}

fn grows(ground: &RunFile, growth: Growth) -> Result<String, String> {
    let (file, said) = open_with(ground, growth);
    let told = growth_in(&file, &said, growth);
    // Nothing was written, so a failed close loses nothing.
    drop(file.map(dioxide::File::close));
    told
}

/// The file, and the library's messages.
fn open_with(ground: &RunFile, growth: Growth) -> (Result<dioxide::File, String>, Vec<String>) {
    let mut options = OpenOptions::new();
    options.write(true).growth(growth);
    let (file, said) = warnings::overhear(|| ground.open_with(&options));
    (file.map_err(|error| error.to_string()), said)
}

/// `yes`, or `no: ` and the reason.
fn growth_in(
    file: &Result<dioxide::File, String>,
    said: &[String],
    wanted: Growth,
) -> Result<String, String> {
    let file = file.as_ref().map_err(Clone::clone)?;
    if file.growth() == wanted {
        return Ok("yes".into());
    }
    let why = said_of(said, "no growth ahead: ");
    Ok(format!("no: {}", why.as_deref().unwrap_or("the library does not say why")))
}

/// The reason that follows these words.
fn said_of(said: &[String], words: &str) -> Option<String> {
    said.iter().find_map(|sentence| Some(sentence.split_once(words)?.1.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(options: &str) -> Vec<String> {
        options.split(',').map(str::to_owned).collect()
    }

    #[test]
    fn options_without_consequence_are_left_out() {
        assert_eq!(
            that_matter(&words("rw,noatime,data=ordered,barrier,stripe=0")),
            "data=ordered,barrier"
        );
        assert_eq!(that_matter(&words("rw,barrier=0,sync")), "barrier=0,sync");
        assert_eq!(that_matter(&words("rw,relatime")), "none");
    }

    #[test]
    fn barriers_are_there_unless_refused() {
        assert_eq!(has_barriers("ext4", &words("rw,nobarrier")), Ok(false));
        assert_eq!(has_barriers("ext3", &words("rw,barrier=0")), Ok(false));
        assert_eq!(has_barriers("xfs", &words("rw,attr2")), Ok(true));
        assert!(has_barriers("nfs", &words("rw")).unwrap_err().contains("nfs"));
    }
}
