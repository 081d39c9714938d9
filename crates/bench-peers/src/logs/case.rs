//! The cases: a log, the shape of the work, and the size of its records. Names and lists only.

use clap::ValueEnum;
use std::fmt;

/// The log.
#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub enum Kind {
    /// One `dioxide_log::Log`.
    DioxideLog,
    /// One `dioxide_log::StreamLog`, with a stream for each thread.
    DioxideLogStreams,
    /// One `dioxide_log::LogSet`, with a log for each thread.
    DioxideLogSet,
    /// One `dioxide_raft::RaftLogs`, with a group for each thread.
    DioxideRaft,
    Fsys,
    HiqliteWal,
    NodedbWal,
    Okaywal,
    OpenWal,
    RaftEngine,
    RaftLog,
    /// Needs the feature `rocksdb`.
    Rocksdb,
    WalDb,
    WalrusRust,
    Writeahead,
}

/// The shape of the work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Shape {
    /// Threads append to one log, a record at a time.
    Threads(u16),
    /// One thread appends this many records at once.
    Batch(u16),
    /// Each thread appends to a log of its own, a record at a time.
    Logs(u16),
    /// Each thread appends to the log of a raft group of its own, an entry at a time.
    Groups(u16),
}

/// One row of a table.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub kind: Kind,
    pub shape: Shape,
    pub record_bytes: u64,
}

impl Kind {
    pub const ALL: [Self; 15] = [
        Self::DioxideLog,
        Self::DioxideLogStreams,
        Self::DioxideLogSet,
        Self::DioxideRaft,
        Self::Fsys,
        Self::HiqliteWal,
        Self::NodedbWal,
        Self::Okaywal,
        Self::OpenWal,
        Self::RaftEngine,
        Self::RaftLog,
        Self::Rocksdb,
        Self::WalDb,
        Self::WalrusRust,
        Self::Writeahead,
    ];

    pub fn is_dioxide(self) -> bool {
        matches!(
            self,
            Self::DioxideLog | Self::DioxideLogStreams | Self::DioxideLogSet | Self::DioxideRaft
        )
    }

    /// Whether this build has it.
    pub fn is_built(self) -> bool {
        self != Self::Rocksdb || cfg!(feature = "rocksdb")
    }

    /// Many logs are compared among those that have many logs in one; groups, among the logs of
    /// rafts.
    pub fn takes(self, shape: Shape) -> bool {
        let has_many = matches!(self, Self::DioxideLogStreams | Self::DioxideLogSet);
        match shape {
            Shape::Threads(_) | Shape::Batch(_) => !has_many && self != Self::DioxideRaft,
            Shape::Logs(_) => {
                has_many || matches!(self, Self::RaftEngine | Self::Rocksdb | Self::WalrusRust)
            }
            Shape::Groups(_) => matches!(
                self,
                Self::DioxideRaft
                    | Self::HiqliteWal
                    | Self::RaftEngine
                    | Self::RaftLog
                    | Self::Rocksdb
            ),
        }
    }
}

impl Shape {
    pub const DEFAULT: [Self; 5] = [
        Self::Threads(1),
        Self::Threads(16),
        Self::Threads(64),
        Self::Batch(1024),
        Self::Logs(256),
    ];

    /// The number of threads.
    pub fn lanes(self) -> usize {
        match self {
            Self::Threads(count) | Self::Logs(count) | Self::Groups(count) => count.into(),
            Self::Batch(_) => 1,
        }
    }

    /// The number of records that a thread appends at once.
    pub fn at_once(self) -> usize {
        match self {
            Self::Batch(count) => count.into(),
            Self::Threads(_) | Self::Logs(_) | Self::Groups(_) => 1,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value().expect("no kind is skipped");
        f.write_str(value.get_name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_log_takes_a_shape() {
        let all = |shape| Kind::ALL.into_iter().filter(move |kind| kind.takes(shape));
        assert_eq!(all(Shape::Threads(16)).count(), 12);
        assert!(all(Shape::Batch(9)).eq(all(Shape::Threads(16))));
        let many: Vec<_> = all(Shape::Logs(4)).map(|kind| kind.to_string()).collect();
        let published = ["raft-engine", "rocksdb", "walrus-rust"];
        assert_eq!(many, [&["dioxide-log-streams", "dioxide-log-set"][..], &published].concat());
        let groups: Vec<_> = all(Shape::Groups(4)).map(|kind| kind.to_string()).collect();
        assert_eq!(groups, ["dioxide-raft", "hiqlite-wal", "raft-engine", "raft-log", "rocksdb"]);
    }
}
