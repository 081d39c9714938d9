//! `dioxide log`.

use super::examples;
use clap::{Args, Subcommand, ValueHint};
use std::path::PathBuf;

#[derive(Args)]
pub struct RecordsArgs {
    #[command(subcommand)]
    pub action: RecordsAction,
}

#[derive(Subcommand)]
pub enum RecordsAction {
    /// Read and check a whole log, and print what was found.
    ///
    /// Exits with 0 if the log is sound, with 1 if it is damaged or cannot be read. A remnant is a
    /// frame of a torn write behind the end: its record was never acknowledged.
    #[command(after_long_help = examples::LOG_VERIFY)]
    Verify(LogVerify),
    /// Print the facts about a log, for people or as JSON.
    #[command(after_long_help = examples::LOG_STAT)]
    Stat(LogStat),
    /// Print records as lines of JSON: `lsn`, `bytes`, and `hex`, the content.
    ///
    /// Checks the whole log before the first record.
    #[command(after_long_help = examples::LOG_DUMP)]
    Dump(LogDump),
    /// Print the streams of a log as lines of JSON: `stream`, `first_lsn`, `next_lsn`, `records`.
    ///
    /// `dump --stream` and `tail --stream` print the records of one of them. Without it, they show
    /// the frames that carry the changes of all streams.
    #[command(after_long_help = examples::LOG_STREAMS)]
    Streams(LogStreams),
    /// Print the last records of a log or stream as `dump` does, and each new one until Ctrl-C.
    ///
    /// Shows only records that are stable, and works beside the writer. If records are removed
    /// before they were printed, it says so and goes on with the first one that is left. It prints
    /// no number again: not those that follow a truncation of the back, up to the last printed one.
    #[command(after_long_help = examples::LOG_TAIL)]
    Tail(LogTail),
}

#[derive(Args)]
pub struct LogTail {
    /// The directory of the log.
    #[arg(value_name = "PATH", value_hint = ValueHint::DirPath)]
    pub path: PathBuf,
    /// Print the records of this stream [default: those of the log].
    #[arg(long, value_name = "ID")]
    pub stream: Option<u64>,
    /// The first record [default: the tenth from the end].
    #[arg(long, value_name = "LSN")]
    pub from: Option<u64>,
    /// End after N records.
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
}

#[derive(Args)]
pub struct LogVerify {
    /// The directory of the log, or its block device.
    #[arg(value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub path: PathBuf,
}

#[derive(Args)]
pub struct LogStat {
    /// The directory of the log, or its block device.
    #[arg(value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub path: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct LogStreams {
    /// The directory of the log, or its block device.
    #[arg(value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub path: PathBuf,
}

#[derive(Args)]
pub struct LogDump {
    /// The directory of the log, or its block device.
    #[arg(value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub path: PathBuf,
    /// Print the records of this stream [default: those of the log].
    #[arg(long, value_name = "ID")]
    pub stream: Option<u64>,
    /// The first record [default: the first of the log or the stream].
    #[arg(long, value_name = "LSN")]
    pub from: Option<u64>,
    /// Print at most N records [default: all].
    #[arg(long, value_name = "N")]
    pub count: Option<usize>,
}
