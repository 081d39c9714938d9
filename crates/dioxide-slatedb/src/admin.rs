//! The logs of several databases, for SlateDB's `Admin`: it deletes and clones them.

use crate::epoch::EpochFile;
use crate::error::{blocking, data, of_log};
use crate::reader::{LOOK, PATIENCE, not_shown, read_next};
use crate::{LocalWal, Medium, lock, parent_of};
use async_trait::async_trait;
use dioxide_log::{Durability, Error, Log, LogReader, Lsn, Record};
use slatedb::VersionedManifest;
use slatedb::object_store::path::Path as DbPath;
use slatedb::wal::{WalAdmin, WalError, WalFileRange, WalGc, WalReader};
use std::fs::{self, File};
use std::io;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

/// The file in the log of a clone while it is copied. dioxide-log has no file of this name.
const UNFINISHED: &str = "clone";

/// The `WalAdmin` of SlateDB, for `AdminBuilder::with_wal_admin`.
///
/// ```no_run
/// use dioxide_slatedb::{LocalWal, LocalWalAdmin};
///
/// let wals = LocalWalAdmin::new(|db| LocalWal::new(format!("/var/lib/app/{db}/wal")));
/// ```
///
/// A directory has the log of one database, and nothing else: a deletion refuses other files.
///
/// A clone has the records up to its checkpoint, with their numbers. No writer of the clone may
/// begin while it is copied, and none of a database while its log is deleted.
pub struct LocalWalAdmin {
    wal_of: Box<dyn Fn(&DbPath) -> LocalWal + Send + Sync>,
}

impl LocalWalAdmin {
    /// `wal_of` returns the log of the database at a path of the object store. The collector of a
    /// database that this process has open needs a clone of its `LocalWal`.
    pub fn new(wal_of: impl Fn(&DbPath) -> LocalWal + Send + Sync + 'static) -> Self {
        Self { wal_of: Box::new(wal_of) }
    }
}

#[async_trait]
impl WalAdmin for LocalWalAdmin {
    fn garbage_collector(&self, path: &DbPath) -> Arc<dyn WalGc> {
        Arc::new((self.wal_of)(path))
    }

    async fn delete_wal(&self, path: &DbPath, dry_run: bool) -> Result<Vec<String>, WalError> {
        let wal = (self.wal_of)(path);
        blocking(move || delete(&wal, dry_run)).await
    }

    async fn is_empty(
        &self,
        path: &DbPath,
        replay_after_wal_id: u64,
        wal_id_last_seen: u64,
    ) -> Result<bool, WalError> {
        if wal_id_last_seen <= replay_after_wal_id {
            return Ok(true);
        }
        let (first, last) =
            (Bound::Excluded(replay_after_wal_id), Bound::Included(wal_id_last_seen));
        let mut rows = (self.wal_of)(path).iterator(WalFileRange(first, last)).await?;
        let mut consumed = replay_after_wal_id;
        while let Some(next) = rows.next().await? {
            if !next.rows.is_empty() {
                return Ok(false);
            }
            consumed = next.last_consumed_wal_file_id;
        }
        match consumed < wal_id_last_seen {
            true => Err(data(format!("the log ends before record {wal_id_last_seen}"))),
            false => Ok(true),
        }
    }

    async fn clone_wal(
        &self,
        from_path: &DbPath,
        from_manifest: VersionedManifest,
        to_path: &DbPath,
    ) -> Result<(u64, u64), WalError> {
        let (from, to) = ((self.wal_of)(from_path), (self.wal_of)(to_path));
        let replay_after = from_manifest.replay_after_wal_id();
        let last = from_manifest.next_wal_sst_id().saturating_sub(1).max(replay_after);
        let epoch = from_manifest.writer_epoch();
        blocking(move || clone(&from, &to, Lsn(replay_after + 1), Lsn(last + 1), epoch)).await?;
        Ok((replay_after, last))
    }
}

fn dir_of(wal: &LocalWal) -> Result<&Path, WalError> {
    match &wal.medium {
        Medium::Dir(dir) => Ok(dir),
        Medium::Storage(_) => Err(data("the log is not in a directory".into())),
    }
}

fn of_io(path: &Path) -> impl Fn(io::Error) -> WalError {
    move |error| {
        let message = format!("{}: {error}", path.display());
        WalError::Unavailable(Arc::new(io::Error::new(error.kind(), message)))
    }
}

/// Deletes the files of a log that no writer has. Returns their paths.
fn delete(wal: &LocalWal, dry_run: bool) -> Result<Vec<String>, WalError> {
    let dir = dir_of(wal)?;
    if !dry_run {
        // It fails if there is a writer. An earlier deletion may have removed some of the files.
        match wal.open_log(&wal.options.clone().create(false)) {
            Err(Error::Missing { .. } | Error::Corrupt { .. } | Error::Version { .. }) => {}
            log => log.and_then(Log::close).map_err(of_log)?,
        }
        *lock(&wal.shared.reader) = None;
    }
    let mut paths = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        found => found
            .and_then(|files| files.map(|file| Ok(file?.path())).collect::<io::Result<Vec<_>>>())
            .map_err(of_io(dir))?,
    };
    if let Some(other) = paths.iter().find(|path| !is_of_log(path)) {
        return Err(data(format!("{} is not of the log; nothing is deleted", other.display())));
    }
    // Last of all, the file that says that the log is not complete.
    paths.sort_by_key(|path| path.ends_with(UNFINISHED));
    if !dry_run {
        paths.iter().try_for_each(fs::remove_file).map_err(of_io(dir))?;
        fs::remove_dir(dir).map_err(of_io(dir))?;
        sync(parent_of(dir))?;
    }
    Ok(paths.iter().map(|path| path.display().to_string()).collect())
}

/// Whether a file has a name of dioxide-log or of this crate.
fn is_of_log(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let is_named = name.starts_with("segment-")
        || ["unfinished", "lock", "mark", "epoch", UNFINISHED].contains(&name);
    is_named && !path.is_dir()
}

/// Copies the records from `first` on, below `end`. A copy that was not finished begins anew, and
/// one that was finished stays.
fn clone(from: &LocalWal, to: &LocalWal, first: Lsn, end: Lsn, epoch: u64) -> Result<(), WalError> {
    let dir = dir_of(to)?;
    let unfinished = dir.join(UNFINISHED);
    if unfinished.exists() {
        delete(to, false)?;
    }
    let log = to.open_log(&to.options.clone().durability(Durability::EveryWrite));
    let log = log.map_err(of_log)?;
    if log.next_lsn() > Lsn::FIRST {
        return match (log.first_lsn(), log.next_lsn()) == (first, end) {
            true => log.close().map_err(of_log),
            false => {
                Err(data(format!("{} has another log; use an empty directory", dir.display())))
            }
        };
    }
    File::create(&unfinished).and_then(|file| file.sync_all()).map_err(of_io(&unfinished))?;
    sync(dir)?;
    log.truncate_front(first).map_err(of_log)?;
    copy(from, &log, end)?;
    log.close().map_err(of_log)?;
    // The first writer of the clone has the next epoch.
    EpochFile::open(dir).and_then(|file| file.accept(epoch)).map_err(of_io(dir))?;
    fs::remove_file(&unfinished).map_err(of_io(&unfinished))?;
    sync(dir)
}

fn sync(dir: &Path) -> Result<(), WalError> {
    File::open(dir).and_then(|file| file.sync_all()).map_err(of_io(dir))
}

fn copy(from: &LocalWal, log: &Log, end: Lsn) -> Result<(), WalError> {
    if log.next_lsn() >= end {
        return Ok(());
    }
    let mut records = LogReader::open(dir_of(from)?).map_err(of_log)?;
    records.seek(log.next_lsn());
    let mut deadline = Instant::now() + PATIENCE;
    while log.next_lsn() < end {
        let submit = |record: Option<Record<'_>>| record.map(|it| log.submit(it.payload));
        match read_next(&mut records, submit).map_err(of_log)? {
            Some(submitted) => {
                submitted.map_err(of_log)?;
                deadline = Instant::now() + PATIENCE;
            }
            // The mark of the log may be old or missing.
            None if Instant::now() >= deadline => return Err(not_shown(log.next_lsn())),
            None => thread::sleep(LOOK),
        }
    }
    // The close waits for all.
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows;
    use slatedb::{RowEntry, ValueDeletable};

    /// Adds the first row of a database. Returns the mark without it, and the mark with it.
    fn write_row(dir: &Path) -> [Vec<u8>; 2] {
        let value = ValueDeletable::Value("value".into());
        let row = RowEntry { key: "key".into(), value, seq: 1, create_ts: None, expire_ts: None };
        let log = Log::open(dir).unwrap();
        log.append(&rows::epoch(1, false)).unwrap();
        let mark = || fs::read(dir.join("mark")).unwrap();
        let before = mark();
        log.append(&rows::records(&[row])[0]).unwrap();
        log.close().unwrap();
        [before, mark()]
    }

    /// The defect: a power cut left an old mark, an empty one or none. The log was taken for empty
    /// then, and a clone of the database lacked its rows.
    #[tokio::test]
    async fn a_log_with_a_lost_mark_is_not_empty() {
        let (dir, db) = (tempfile::tempdir_in(".").unwrap(), DbPath::from("db"));
        let mark = dir.path().join("mark");
        let [before, after] = write_row(dir.path());
        let wals = || {
            let dir = dir.path().to_owned();
            LocalWalAdmin::new(move |_| LocalWal::new(&dir))
        };
        assert!(wals().is_empty(&db, 0, 1).await.unwrap(), "only an epoch");
        assert!(!wals().is_empty(&db, 0, 2).await.unwrap());
        for lost in [Some(&before[..]), Some(&[]), None] {
            match lost {
                Some(mark_before) => fs::write(&mark, mark_before).unwrap(),
                None => fs::remove_file(&mark).unwrap(),
            }
            let error = wals().is_empty(&db, 0, 2).await.unwrap_err();
            assert!(matches!(error, WalError::Unavailable(_)), "{error}");
            assert!(error.to_string().contains("record"), "{error}");
        }
        fs::write(&mark, after).unwrap();
        assert!(!wals().is_empty(&db, 0, 2).await.unwrap());
    }

    /// The defects: a clone called such a log damaged, and a reader showed none of its rows.
    #[tokio::test]
    async fn a_log_with_a_lost_mark_is_unavailable() {
        let dirs = [(); 2].map(|()| tempfile::tempdir_in(".").unwrap());
        // A reader that was there before goes on with what it knows.
        let [from, to] = [0, 1].map(|nth| LocalWal::new(dirs[nth].path()));
        let dir = dirs[0].path();
        let [before, after] = write_row(dir);
        for lost in [Some(before), None] {
            match &lost {
                Some(before) => fs::write(dir.join("mark"), before).unwrap(),
                None => fs::remove_file(dir.join("mark")).unwrap(),
            }
            let error = clone(&from, &to, Lsn(1), Lsn(3), 1).unwrap_err();
            assert!(matches!(error, WalError::Unavailable(_)), "{error}");
            // An old mark shows less, until a writer opens the log.
            let last = LocalWal::new(dir).last_wal_file_id(0).await;
            let is_unavailable = matches!(last, Err(WalError::Unavailable(_)));
            assert!(if lost.is_some() { matches!(last, Ok(1)) } else { is_unavailable });
        }
        fs::write(dir.join("mark"), after).unwrap();
        assert_eq!(from.last_wal_file_id(0).await.unwrap(), 2);
        clone(&from, &to, Lsn(1), Lsn(3), 1).unwrap();
        assert_eq!(to.last_wal_file_id(7).await.unwrap(), 7);
    }

    /// The defect: a reader served the rows that an old mark showed, as if these were all.
    #[tokio::test]
    async fn an_iterator_with_an_end_does_not_end_before_it() {
        let dir = tempfile::tempdir_in(".").unwrap();
        let [before, after] = write_row(dir.path());
        fs::write(dir.path().join("mark"), before).unwrap();
        let range = || WalFileRange(Bound::Included(1), Bound::Included(2));
        let wal = LocalWal::new(dir.path());
        let mut late = wal.iterator(range()).await.unwrap();
        let mut in_time = wal.iterator(range()).await.unwrap();
        for rows in [&mut late, &mut in_time] {
            assert_eq!(rows.next().await.unwrap().unwrap().last_consumed_wal_file_id, 1);
        }
        for _ in 0..2 {
            let error = late.next().await.err().expect("record 2 is not shown");
            assert!(matches!(error, WalError::Unavailable(_)), "{error}");
        }
        fs::write(dir.path().join("mark"), after).unwrap();
        assert_eq!(in_time.next().await.unwrap().unwrap().rows.len(), 1);
        assert!(in_time.next().await.unwrap().is_none());
    }
}
