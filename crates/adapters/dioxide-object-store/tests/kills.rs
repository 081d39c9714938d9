//! kill -9 of a process whose threads put objects: each acknowledged object is there, whole.

use dioxide_object_store::{DIRECT_BYTES_MIN, DioxideStore};
use dioxide_testkit::child::{self, Acks};
use libtest_mimic::{Failed, Trial};
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutPayload};
use std::collections::HashMap;
use std::fs;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;
use tokio::runtime::Builder;

const THREADS: u64 = 4;
/// Each thread replaces its objects in turn.
const OBJECTS: u64 = 5;

/// The content of the `version`th put of a thread.
fn content(thread: u64, version: u64) -> Vec<u8> {
    // Every fourth put is a large one.
    let large = if version.is_multiple_of(4) { DIRECT_BYTES_MIN } else { 0 };
    let words = 1 + (version * 7919 % 5000) as usize + large / 8;
    (thread << 56 | version).to_le_bytes().repeat(words)
}

/// The thread and the version, if the content is whole.
fn versions(content_found: &[u8]) -> Option<(u64, u64)> {
    let word = u64::from_le_bytes(content_found.get(..8)?.try_into().ok()?);
    let (thread, version) = (word >> 56, word & !(0xff << 56));
    (content(thread, version) == content_found).then_some((thread, version))
}

fn name(thread: u64, version: u64) -> String {
    format!("{thread}/{}", version % OBJECTS)
}

/// Puts until it is killed: every second object in parts. With "early", acknowledges before the
/// end of the upload.
fn puts(acks: &Acks, args: &[String]) {
    let store = DioxideStore::new(&args[0]).unwrap();
    let first: u64 = args[1].parse().unwrap();
    let is_early = args[2] == "early";
    let put = async |thread: u64, version: u64| {
        let path = Path::from(name(thread, version));
        let content = content(thread, version);
        if version.is_multiple_of(2) && !is_early {
            store.put(&path, content.into()).await.unwrap();
            return acks.send([thread, version, 0]);
        }
        let mut upload = store.put_multipart(&path).await.unwrap();
        for part in content.chunks(100_000) {
            upload.put_part(PutPayload::from(part.to_vec())).await.unwrap();
        }
        if is_early {
            acks.send([thread, version, 0]);
        }
        upload.complete().await.unwrap();
        if !is_early {
            acks.send([thread, version, 0]);
        }
    };
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let put = &put;
            scope.spawn(move || {
                let runtime = Builder::new_current_thread().build().unwrap();
                for version in first.. {
                    runtime.block_on(put(thread, version));
                }
            });
        }
    });
}

/// Kills a child in each round. Returns the number of acknowledged puts that left no newer object,
/// and fails if an object is not whole.
fn lost(rounds: u64, how: &str) -> Result<usize, Failed> {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    let mut newest = HashMap::new();
    let mut lost = 0;
    for round in 0..rounds {
        let first = (round * 1_000_000).to_string();
        let args = [dir.path().to_str().ok_or("a path of text")?, &first, how];
        let mut child = child::spawn("puts", &args)?;
        child.wait_for_acks(50, Duration::from_secs(120))?;
        // At any moment of later puts.
        for [thread, version, _] in
            child.kill_after(Duration::from_micros(fastrand::u64(..20_000)))?
        {
            newest.insert(name(thread, version), version);
        }
        for (name, version) in &newest {
            let found = fs::read(dir.path().join(name)).unwrap_or_default();
            match versions(&found) {
                Some((_, found)) => lost += usize::from(found < *version),
                None if found.is_empty() => lost += 1,
                None => return Err(format!("{name} is not whole: {} bytes", found.len()).into()),
            }
        }
    }
    Ok(lost)
}

fn acknowledged_objects_are_there_after_kill_9() -> Result<(), Failed> {
    match lost(10, "whole")? {
        0 => Ok(()),
        lost => Err(format!("{lost} are lost").into()),
    }
}

/// The control.
fn kill_9_loses_uploads_that_were_not_complete() -> Result<(), Failed> {
    // A kill may hit no upload between its acknowledgement and its end.
    for _ in 0..20 {
        if lost(1, "early")? > 0 {
            return Ok(());
        }
    }
    Err("all are there".into())
}

fn main() -> ExitCode {
    dioxide_testkit::run(&[("puts", puts)], || {
        vec![
            Trial::test(
                "acknowledged_objects_are_there_after_kill_9",
                acknowledged_objects_are_there_after_kill_9,
            ),
            Trial::test(
                "kill_9_loses_uploads_that_were_not_complete",
                kill_9_loses_uploads_that_were_not_complete,
            ),
        ]
    })
}
