//! The protocol between a test and its disk: a line each way over a socket.

use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::str::FromStr;

/// The part of its volatile cache that a disk keeps on power loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Loses all of it.
    Nothing,
    /// Keeps all of it, as if just written out.
    All,
    /// Some sectors of 512 bytes; most writes are torn. The same seed and writes give the same
    /// choice.
    Random {
        /// Any number.
        seed: u64,
    },
    /// Some whole writes. The same seed and writes give the same choice.
    Writes {
        /// Any number.
        seed: u64,
    },
}

impl fmt::Display for Keep {
    /// In the format of [`Keep::from_str`].
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Keep::Nothing => f.write_str("nothing"),
            Keep::All => f.write_str("all"),
            Keep::Random { seed } => write!(f, "sectors:{seed}"),
            Keep::Writes { seed } => write!(f, "writes:{seed}"),
        }
    }
}

impl FromStr for Keep {
    type Err = String;

    fn from_str(word: &str) -> Result<Keep, String> {
        let seed = |seed: &str| seed.parse().map_err(|_| format!("not a seed: {seed}"));
        Ok(match word.split_once(':') {
            None if word == "nothing" => Keep::Nothing,
            None if word == "all" => Keep::All,
            Some(("sectors", number)) => Keep::Random { seed: seed(number)? },
            Some(("writes", number)) => Keep::Writes { seed: seed(number)? },
            _ => return Err("not one of nothing, all, sectors:SEED, writes:SEED".to_owned()),
        })
    }
}

/// Counters of a disk since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Stats {
    pub reads: u64,
    pub writes: u64,
    pub written_bytes: u64,
    pub zeroings: u64,
    /// All that arrived while there was power, failed ones included.
    pub flushes: u64,
    pub failed_flushes: u64,
    pub failed_writes: u64,
    /// Entries of the log: writes, zeroings, flushes and marks. All of them while the disk records.
    pub logged: u64,
    /// Entries since the last replay, counted in the same way.
    pub logged_since: u64,
}

const STATS_FIELDS: usize = 9;

impl Stats {
    fn to_numbers(self) -> [u64; STATS_FIELDS] {
        [
            self.reads,
            self.writes,
            self.written_bytes,
            self.zeroings,
            self.flushes,
            self.failed_flushes,
            self.failed_writes,
            self.logged,
            self.logged_since,
        ]
    }

    fn from_numbers(numbers: [u64; STATS_FIELDS]) -> Stats {
        let [
            reads,
            writes,
            written_bytes,
            zeroings,
            flushes,
            failed_flushes,
            failed_writes,
            logged,
            logged_since,
        ] = numbers;
        Stats {
            reads,
            writes,
            written_bytes,
            zeroings,
            flushes,
            failed_flushes,
            failed_writes,
            logged,
            logged_since,
        }
    }

    pub(super) fn to_line(self) -> String {
        self.to_numbers().map(|number| number.to_string()).join(" ")
    }

    pub(super) fn from_line(line: &str) -> Option<Stats> {
        let numbers: Vec<u64> =
            line.split_whitespace().map(|word| word.parse().ok()).collect::<Option<_>>()?;
        Some(Stats::from_numbers(numbers.try_into().ok()?))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Command {
    FailFlush { times: u64, errno: i32 },
    FailWriteRange { range: Range<u64>, times: u64, errno: i32 },
    Lie,
    PowerCut(Keep),
    Stall,
    GoOn,
    Heal,
    Delay { max_us: u64, seed: u64 },
    Record,
    Replay { cut: u64, keep: Keep },
    ReplayAgain { cut: u64, keep: Keep },
    Save(PathBuf),
    Load(PathBuf),
    Stats,
}

/// The commands, for running the disk by hand.
pub(super) const USAGE: &str = "commands: fail-flush TIMES ERRNO | \
    fail-write-range START END TIMES ERRNO | lie | power-cut KEEP | stall | go-on | heal | \
    delay MAX_US SEED | record. Also: \
    replay POINT KEEP | replay-again POINT KEEP | save FILE | load FILE | stats; \
    KEEP: nothing | all | sectors:SEED | writes:SEED";

impl Command {
    pub(super) fn to_line(&self) -> String {
        match self {
            Command::FailFlush { times, errno } => format!("fail-flush {times} {errno}"),
            Command::FailWriteRange { range, times, errno } => {
                format!("fail-write-range {} {} {times} {errno}", range.start, range.end)
            }
            Command::Lie => "lie".to_owned(),
            Command::PowerCut(keep) => format!("power-cut {keep}"),
            Command::Stall => "stall".to_owned(),
            Command::GoOn => "go-on".to_owned(),
            Command::Heal => "heal".to_owned(),
            Command::Delay { max_us, seed } => format!("delay {max_us} {seed}"),
            Command::Record => "record".to_owned(),
            Command::Replay { cut, keep } => format!("replay {cut} {keep}"),
            Command::ReplayAgain { cut, keep } => format!("replay-again {cut} {keep}"),
            Command::Save(path) => format!("save {}", path.display()),
            Command::Load(path) => format!("load {}", path.display()),
            Command::Stats => "stats".to_owned(),
        }
    }

    pub(super) fn from_line(line: &str) -> Option<Command> {
        // A path may contain spaces.
        if let Some((name @ ("save" | "load"), path)) = line.split_once(' ') {
            return Some(match name {
                "save" => Command::Save(path.into()),
                _ => Command::Load(path.into()),
            });
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        Some(match words[..] {
            ["fail-flush", times, errno] => {
                Command::FailFlush { times: value(times)?, errno: value(errno)? }
            }
            ["fail-write-range", start, end, times, errno] => Command::FailWriteRange {
                range: value(start)?..value(end)?,
                times: value(times)?,
                errno: value(errno)?,
            },
            ["lie"] => Command::Lie,
            ["power-cut", keep] => Command::PowerCut(value(keep)?),
            ["stall"] => Command::Stall,
            ["go-on"] => Command::GoOn,
            ["heal"] => Command::Heal,
            ["delay", max_us, seed] => {
                Command::Delay { max_us: value(max_us)?, seed: value(seed)? }
            }
            ["record"] => Command::Record,
            ["replay", cut, keep] => Command::Replay { cut: value(cut)?, keep: value(keep)? },
            ["replay-again", cut, keep] => {
                Command::ReplayAgain { cut: value(cut)?, keep: value(keep)? }
            }
            ["stats"] => Command::Stats,
            _ => return None,
        })
    }
}

fn value<T: FromStr>(word: &str) -> Option<T> {
    word.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_survives_its_line() {
        let commands = [
            Command::FailFlush { times: 2, errno: 5 },
            Command::FailWriteRange { range: 1..9, times: 3, errno: 28 },
            Command::Lie,
            Command::PowerCut(Keep::Nothing),
            Command::PowerCut(Keep::All),
            Command::PowerCut(Keep::Random { seed: u64::MAX }),
            Command::Stall,
            Command::GoOn,
            Command::Heal,
            Command::Delay { max_us: 500, seed: 1 },
            Command::Record,
            Command::Replay { cut: 17, keep: Keep::Writes { seed: 3 } },
            Command::ReplayAgain { cut: 17, keep: Keep::Random { seed: 3 } },
            Command::Save("/a/log".into()),
            Command::Load("/a/log".into()),
            Command::Stats,
        ];
        for command in commands {
            assert_eq!(Command::from_line(&command.to_line()), Some(command));
        }
        assert_eq!(Command::from_line("power-cut some"), None);
    }

    #[test]
    fn stats_survive_their_line() {
        let stats = Stats::from_numbers([1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(Stats::from_line(&stats.to_line()), Some(stats));
        assert_eq!(Stats::from_line("1 2"), None);
    }
}
