//! The cases: a path (the writer), its space, the number of outstanding operations, and their
//! durability. Names and lists only.

use clap::ValueEnum;
use dioxide::{Durability, Growth};
use std::fmt;

/// More threads are unrealistic.
const THREADS_MAX: usize = 64;

/// The writer.
#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub enum Kind {
    TokioUring,
    Compio,
    Monoio,
    /// One blocking thread for each outstanding operation, with pwrite.
    Threads,
    /// The same threads, with dioxide's `File`.
    Dioxide,
    /// One thread, with dioxide's `Queue`.
    DioxideQueue,
    /// One tokio task for each outstanding operation, with dioxide's `AsyncFile`.
    DioxideTokio,
}

/// How a durable write of `threads` and the libraries becomes stable.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Flush {
    /// By the flags of the open file.
    Flags,
    /// By an fdatasync after it, shared by all that wait for one.
    Shared,
}

/// The space of a path.
#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub enum Space {
    /// Past the end of the file, at the next offset of a counter.
    Extend,
    /// The same inside a file that was allocated and synced before the clock starts.
    Falloc,
    /// Over a prewritten file, repeatedly.
    Overwrite,
    /// dioxide's choice; growth is timed.
    #[value(skip)]
    Grown(Growth),
    /// Each operation over a prewritten region of its own.
    #[value(skip)]
    Regions,
}

/// One row of a table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Case {
    pub kind: Kind,
    pub flush: Flush,
    pub space: Space,
    pub iodepth: usize,
    pub durability: Durability,
}

impl Kind {
    pub const ALL: [Self; 7] = [
        Self::TokioUring,
        Self::Compio,
        Self::Monoio,
        Self::Threads,
        Self::Dioxide,
        Self::DioxideQueue,
        Self::DioxideTokio,
    ];

    pub fn is_library(self) -> bool {
        matches!(self, Self::TokioUring | Self::Compio | Self::Monoio)
    }

    fn is_dioxide(self) -> bool {
        matches!(self, Self::Dioxide | Self::DioxideQueue | Self::DioxideTokio)
    }

    fn takes(self, iodepth: usize) -> bool {
        iodepth <= THREADS_MAX || !matches!(self, Self::Threads | Self::Dioxide)
    }

    /// A library runs with both ways of being durable.
    fn flushes(self, durability: Durability) -> &'static [Flush] {
        match durability {
            Durability::EveryWrite if self.is_library() => &[Flush::Flags, Flush::Shared],
            _ => &[Flush::Flags],
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TokioUring => "tokio-uring",
            Self::Compio => "compio",
            Self::Monoio => "monoio",
            Self::Threads => "threads",
            Self::Dioxide => "dioxide",
            Self::DioxideQueue => "dioxide-queue",
            Self::DioxideTokio => "dioxide-tokio",
        })
    }
}

impl fmt::Display for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Extend => "extend",
            Self::Falloc => "falloc",
            Self::Overwrite => "overwrite",
            Self::Grown(Growth::Unwritten) => "grown, unwritten",
            Self::Grown(Growth::Zeroed) => "grown, zeroed",
            Self::Grown(Growth::None) => "grown by the kernel",
            Self::Regions => "own regions",
        })
    }
}

impl Case {
    /// The cases of appends at one depth and durability.
    pub fn appends(
        kinds: &[Kind],
        spaces: &[Space],
        iodepth: usize,
        durability: Durability,
    ) -> Vec<Self> {
        let grown = [Space::Grown(Growth::Unwritten), Space::Grown(Growth::Zeroed)];
        Self::all(
            kinds,
            |kind| if kind.is_dioxide() { &grown } else { spaces },
            iodepth,
            durability,
        )
    }

    /// The cases of durable writers with a region each.
    pub fn syncs(kinds: &[Kind], iodepth: usize) -> Vec<Self> {
        Self::all(kinds, |_| &[Space::Regions], iodepth, Durability::EveryWrite)
    }

    fn all<'a>(
        kinds: &[Kind],
        spaces: impl Fn(Kind) -> &'a [Space],
        iodepth: usize,
        durability: Durability,
    ) -> Vec<Self> {
        let mut cases = Vec::new();
        for &kind in kinds.iter().filter(|kind| kind.takes(iodepth)) {
            for &space in spaces(kind) {
                let flushes = kind.flushes(durability).iter();
                cases.extend(flushes.map(|&flush| Self {
                    kind,
                    flush,
                    space,
                    iodepth,
                    durability,
                }));
            }
        }
        cases
    }

    /// `compio`, `compio, shared flush`.
    pub fn path(&self) -> String {
        match self.flush {
            Flush::Flags => self.kind.to_string(),
            Flush::Shared => format!("{}, shared flush", self.kind),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_end_where_queues_go_on() {
        let kinds = |iodepth| {
            let cases = Case::appends(&Kind::ALL, &[Space::Extend], iodepth, Durability::OnSync);
            cases.iter().map(|case| case.kind).collect::<Vec<_>>()
        };
        assert!(kinds(64).contains(&Kind::Threads) && kinds(64).contains(&Kind::Dioxide));
        assert!(!kinds(1024).contains(&Kind::Threads) && kinds(1024).contains(&Kind::Compio));
    }

    #[test]
    fn libraries_are_durable_in_two_ways() {
        let cases = Case::syncs(&[Kind::Monoio, Kind::Threads], 64);
        let paths: Vec<_> = cases.iter().map(Case::path).collect();
        assert_eq!(paths, ["monoio", "monoio, shared flush", "threads"]);
    }
}
