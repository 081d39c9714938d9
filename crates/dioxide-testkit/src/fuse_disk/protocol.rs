//! What a test and its disk say to each other: a line each way over a socket.

use std::ops::Range;
use std::str::FromStr;

/// What a disk that loses power keeps of its volatile cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// All of it is lost.
    Nothing,
    /// It had just been written out, though nobody asked.
    All,
    /// Some sectors of 512 bytes, the same for the same seed and the same writes.
    Random {
        /// Any number.
        seed: u64,
    },
}

impl Keep {
    /// Answers for one sector after the other whether it is kept.
    pub(super) fn chooser(self) -> impl FnMut() -> bool {
        let mut state = if let Keep::Random { seed } = self { seed } else { 0 };
        move || match self {
            Keep::Nothing => false,
            Keep::All => true,
            Keep::Random { .. } => split_mix(&mut state) & 1 == 1,
        }
    }
}

/// SplitMix64: small, and good from any seed.
fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// What a disk has done since it started.
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
    /// Sectors whose cached content differed from the stable one and was lost.
    pub lost_sectors: u64,
}

const STATS_FIELDS: usize = 8;

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
            self.lost_sectors,
        ]
    }

    fn from_numbers(numbers: [u64; STATS_FIELDS]) -> Stats {
        let [reads, writes, written_bytes, zeroings, flushes, failed_flushes, failed_writes, lost_sectors] =
            numbers;
        Stats { reads, writes, written_bytes, zeroings, flushes, failed_flushes, failed_writes, lost_sectors }
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
    Stats,
}

/// The commands in words, for whoever runs the disk by hand.
pub(super) const USAGE: &str = "commands: fail-flush TIMES ERRNO | fail-write-range START END TIMES ERRNO | \
                                lie | power-cut nothing|all|SEED | stall | go-on | heal | stats";

impl Command {
    pub(super) fn to_line(&self) -> String {
        match self {
            Command::FailFlush { times, errno } => format!("fail-flush {times} {errno}"),
            Command::FailWriteRange { range, times, errno } => {
                format!("fail-write-range {} {} {times} {errno}", range.start, range.end)
            }
            Command::Lie => "lie".to_owned(),
            Command::PowerCut(Keep::Nothing) => "power-cut nothing".to_owned(),
            Command::PowerCut(Keep::All) => "power-cut all".to_owned(),
            Command::PowerCut(Keep::Random { seed }) => format!("power-cut {seed}"),
            Command::Stall => "stall".to_owned(),
            Command::GoOn => "go-on".to_owned(),
            Command::Heal => "heal".to_owned(),
            Command::Stats => "stats".to_owned(),
        }
    }

    pub(super) fn from_line(line: &str) -> Option<Command> {
        let words: Vec<&str> = line.split_whitespace().collect();
        Some(match words[..] {
            ["fail-flush", times, errno] => {
                Command::FailFlush { times: number(times)?, errno: number(errno)? }
            }
            ["fail-write-range", start, end, times, errno] => Command::FailWriteRange {
                range: number(start)?..number(end)?,
                times: number(times)?,
                errno: number(errno)?,
            },
            ["lie"] => Command::Lie,
            ["power-cut", "nothing"] => Command::PowerCut(Keep::Nothing),
            ["power-cut", "all"] => Command::PowerCut(Keep::All),
            ["power-cut", seed] => Command::PowerCut(Keep::Random { seed: number(seed)? }),
            ["stall"] => Command::Stall,
            ["go-on"] => Command::GoOn,
            ["heal"] => Command::Heal,
            ["stats"] => Command::Stats,
            _ => return None,
        })
    }
}

fn number<T: FromStr>(word: &str) -> Option<T> {
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
            Command::Stats,
        ];
        for command in commands {
            assert_eq!(Command::from_line(&command.to_line()), Some(command));
        }
        assert_eq!(Command::from_line("power-cut some"), None);
    }

    #[test]
    fn stats_survive_their_line() {
        let stats = Stats::from_numbers([1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(Stats::from_line(&stats.to_line()), Some(stats));
        assert_eq!(Stats::from_line("1 2"), None);
    }
}
