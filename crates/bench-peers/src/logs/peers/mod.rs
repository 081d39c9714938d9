//! The logs, one per file, each with its best durable settings.

mod dioxide_log;
mod dioxide_log_set;
mod dioxide_log_streams;
mod dioxide_raft;
mod fsys;
mod hiqlite_wal;
mod nodedb_wal;
mod okaywal;
mod open_wal;
mod openraft_group;
mod raft_engine;
mod raft_log;
#[cfg(feature = "rocksdb")]
mod rocksdb;
mod wal_db;
mod walrus_rust;
mod writeahead;

use super::case::{Kind, Shape};
use anyhow::Result;
use std::path::PathBuf;

/// Where a log is opened, and for whom.
pub struct Site {
    /// An empty directory.
    pub dir: PathBuf,
    /// The number of threads that append.
    pub lanes: usize,
    /// How much space the log may prepare.
    pub size_bytes: u64,
}

/// Takes the records of a log.
pub type Visit<'a> = &'a mut dyn FnMut(&[u8]) -> Result<()>;

/// A log that is open, shared by threads.
pub trait Peer: Send + Sync {
    /// Appends a record of a lane. It is durable on return.
    fn append(&self, lane: usize, record: &[u8]) -> Result<()>;

    /// Appends records of lane 0 at once. They are durable on return.
    fn append_batch(&self, records: &[&[u8]]) -> Result<()>;

    /// Closes the log, opens it again, and passes all records that were appended.
    fn read_back(self: Box<Self>, visit: Visit<'_>) -> Result<()>;
}

/// Opens a new log.
pub fn open(kind: Kind, shape: Shape, site: &Site) -> Result<Box<dyn Peer>> {
    let is_groups = matches!(shape, Shape::Groups(_));
    Ok(match kind {
        Kind::DioxideLog => Box::new(dioxide_log::OneLog::open(site)?),
        Kind::DioxideLogStreams => Box::new(dioxide_log_streams::Streams::open(site)?),
        Kind::DioxideLogSet => Box::new(dioxide_log_set::Set::open(site)?),
        Kind::DioxideRaft => Box::new(dioxide_raft::Groups::open(site)?),
        Kind::Fsys => Box::new(fsys::Journal::open(site)?),
        Kind::HiqliteWal if is_groups => Box::new(hiqlite_wal::Groups::open(site)?),
        Kind::HiqliteWal => Box::new(hiqlite_wal::HiqliteWal::open(site)?),
        Kind::NodedbWal => Box::new(nodedb_wal::NodedbWal::open(site)?),
        Kind::Okaywal => Box::new(okaywal::OkayWal::open(site)?),
        Kind::OpenWal => Box::new(open_wal::OpenWal::open(site)?),
        Kind::RaftEngine => Box::new(raft_engine::Regions::open(site)?),
        Kind::RaftLog if is_groups => Box::new(raft_log::Groups::open(site)?),
        Kind::RaftLog => Box::new(raft_log::Group::open(site)?),
        #[cfg(feature = "rocksdb")]
        Kind::Rocksdb => Box::new(rocksdb::Rocksdb::open(site)?),
        #[cfg(not(feature = "rocksdb"))]
        Kind::Rocksdb => anyhow::bail!("build with `--features rocksdb`"),
        Kind::WalDb => Box::new(wal_db::WalDb::open(site)?),
        Kind::WalrusRust => Box::new(walrus_rust::Topics::open(site)?),
        Kind::Writeahead => Box::new(writeahead::Writeahead::open(site)?),
    })
}

#[cfg(test)]
mod tests {
    use super::super::case::Case;
    use super::super::ledger::Ledger;
    use super::super::run::append;
    use super::*;

    fn every_record_is_there(kind: Kind) {
        let shapes = [Shape::Threads(4), Shape::Batch(40), Shape::Logs(4), Shape::Groups(4)];
        for shape in shapes.into_iter().filter(|&shape| kind.takes(shape)) {
            let dir = tempfile::tempdir().unwrap();
            let (dir_path, lanes) = (dir.path().to_owned(), shape.lanes());
            let site = Site { dir: dir_path, lanes, size_bytes: 4 << 20 };
            let peer = open(kind, shape, &site).unwrap();
            let case = Case { kind, shape, record_bytes: 100 };
            let ledger = Ledger::new(case.record_bytes);
            let lanes = append(peer.as_ref(), case, &ledger, None, |appended| appended < 80);
            let counts: Vec<_> = lanes.unwrap().iter().map(|lane| lane.records).collect();
            assert_eq!(counts, vec![80; shape.lanes()]);
            let mut check = ledger.check(counts.len());
            peer.read_back(&mut |record| check.see(record)).unwrap();
            check.finish(&counts).unwrap();
        }
    }

    macro_rules! each {
        ($($name:ident: $kind:ident,)*) => {
            $(#[test]
            fn $name() {
                every_record_is_there(Kind::$kind);
            })*
        };
    }

    each! {
        dioxide_log_has_every_record: DioxideLog,
        dioxide_log_streams_have_every_record: DioxideLogStreams,
        dioxide_log_set_has_every_record: DioxideLogSet,
        dioxide_raft_has_every_record: DioxideRaft,
        fsys_has_every_record: Fsys,
        hiqlite_wal_has_every_record: HiqliteWal,
        nodedb_wal_has_every_record: NodedbWal,
        okaywal_has_every_record: Okaywal,
        open_wal_has_every_record: OpenWal,
        raft_engine_has_every_record: RaftEngine,
        raft_log_has_every_record: RaftLog,
        wal_db_has_every_record: WalDb,
        walrus_rust_has_every_record: WalrusRust,
        writeahead_has_every_record: Writeahead,
    }

    #[cfg(feature = "rocksdb")]
    each! {
        rocksdb_has_every_record: Rocksdb,
    }
}
