//! The layout of a file in a simulation: plain or striped.

use dioxide::sim::Disk;
use dioxide::{File, OpenOptions};

const NAMES: [&str; 4] = ["log", "log.1", "log.2", "log.3"];

/// A plain file, or a striped volume.
#[derive(Clone, Copy, Debug)]
pub enum Layout {
    File,
    Striped { members: usize, chunk_bytes: u64 },
}

/// The recoveries of a file that a crash interrupts.
pub enum Interrupted {
    None,
    /// One, after this many calls.
    After(u64),
    /// One after each number of calls.
    Each,
}

impl Layout {
    /// Draws the layout of a seed.
    pub fn of(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed ^ 0x57_21_9E);
        match random.u8(..4) {
            0 => Self::Striped {
                members: random.usize(1..=NAMES.len()),
                chunk_bytes: 4096 << random.u64(..5),
            },
            _ => Self::File,
        }
    }

    /// 1 if it is striped, for counting.
    pub fn is_striped(self) -> u64 {
        u64::from(matches!(self, Self::Striped { .. }))
    }

    pub fn open(self, disk: &Disk, options: &OpenOptions) -> dioxide::Result<File> {
        match self {
            Self::File => disk.open(options, NAMES[0]),
            Self::Striped { members, chunk_bytes } => {
                disk.open_striped(options, &NAMES[..members], chunk_bytes)
            }
        }
    }

    /// Interrupts recoveries of the file, each on a copy of the disk. `check` gets each disk after
    /// the crash, and when that came. Returns the number of recoveries.
    pub fn interrupt_recoveries(
        self,
        crashed: &Disk,
        options: &OpenOptions,
        interrupted: Interrupted,
        check: impl Fn(&Disk, &str),
    ) -> u64 {
        let (first, is_each) = match interrupted {
            Interrupted::None => return 0,
            Interrupted::After(calls) => (calls, false),
            Interrupted::Each => (0, true),
        };
        for calls in first.. {
            let dying = crashed.crash();
            if self.open_dying(&dying, options, calls) && is_each {
                return calls + 1;
            }
            check(&dying.crash(), &format!("after a crash at call {calls} of recovery"));
            if !is_each {
                break;
            }
        }
        1
    }

    /// Opens the file on a disk that dies after `calls` more calls. Returns whether the open ended
    /// before.
    fn open_dying(self, dying: &Disk, options: &OpenOptions, calls: u64) -> bool {
        let before = dying.calls();
        dying.die_after(calls);
        let opened = self.open(dying, options).is_ok();
        opened && dying.calls() - before <= calls
    }

    /// The content on the disk while the file is closed, read without the library. None if a member
    /// has more or less than its part.
    pub fn content(self, disk: &Disk) -> Option<Vec<u8>> {
        let Self::Striped { members, chunk_bytes } = self else { return disk.content(NAMES[0]) };
        let all: Option<Vec<_>> = NAMES[..members].iter().map(|name| disk.content(name)).collect();
        let mut left: Vec<_> =
            all?.iter().map(|bytes| bytes[chunk_bytes as usize..].to_vec()).collect();
        let mut content = Vec::new();
        for chunk in 0.. {
            let member = &mut left[chunk % members];
            let part: Vec<_> = member.drain(..member.len().min(chunk_bytes as usize)).collect();
            content.extend_from_slice(&part);
            if part.len() < chunk_bytes as usize {
                break;
            }
        }
        left.iter().all(Vec::is_empty).then_some(content)
    }
}
