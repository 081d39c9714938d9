//! `dioxide log`: reads the logs of dioxide-log, and changes nothing.

use crate::args::{self, RecordsAction};
use crate::exit::say;
use crate::output;
use crate::terminal::Terminal;
use anyhow::{Result, bail};
use dioxide_log::{Error, LogReader, LogView, Lsn, Record, StreamReader, StreamView};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use std::fmt::Write as _;
use std::io::{self, BufWriter, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::thread;
use std::time::Duration;

/// The records before the end that `tail` begins with.
const TAIL_RECORDS: u64 = 10;
/// How long `tail` waits for a record at once.
const PATIENCE: Duration = Duration::from_secs(1);
/// The pause of `tail` after a writer was faster. The next look may read the whole log.
const PAUSE: Duration = Duration::from_millis(100);

pub fn run(args: &args::RecordsArgs) -> Result<()> {
    match &args.action {
        RecordsAction::Verify(verify) => print(&verify.path),
        RecordsAction::Stat(stat) if stat.json => {
            let text = output::json(&LogFacts::of(&stat.path)?)?;
            Ok(io::stdout().write_all(text.as_bytes())?)
        }
        RecordsAction::Stat(stat) => print(&stat.path),
        RecordsAction::Dump(dump) => write_records(dump),
        RecordsAction::Streams(streams) => write_streams(&streams.path),
        RecordsAction::Tail(tail) => tail_of(tail),
    }
}

/// The facts about a log. The names are stable.
#[derive(Serialize)]
struct LogFacts {
    id: String,
    /// The lowest LSN, and that of the next record.
    first_lsn: u64,
    next_lsn: u64,
    records: u64,
    /// Without the free ones.
    segments: usize,
    /// Of the segments, as far as they are written.
    bytes: u64,
    closed: bool,
    /// Frames of a torn write behind the end.
    remnants: u64,
    /// Bytes behind the end that look like frames, and were not all checked.
    unsearched: u64,
    /// The number of streams in use. None for a log without streams.
    streams: Option<usize>,
}

impl LogFacts {
    /// Reads and checks a log, with its streams.
    fn of(path: &Path) -> Result<Self> {
        Self::of_seen(LogView::open(path)?, path)
    }

    /// Checks the streams of a log that was looked at. If it has changed, looks at it again.
    fn of_seen(view: LogView, path: &Path) -> Result<Self> {
        if !view.has_streams() {
            return Ok(Self::of_view(&view, None));
        }
        let streams = match StreamView::of_log(view) {
            Err(Error::Changing { .. }) => StreamView::open(path)?,
            streams => streams?,
        };
        Ok(Self::of_view(streams.log(), Some(streams.ids().len())))
    }

    fn of_view(view: &LogView, streams: Option<usize>) -> Self {
        let (first_lsn, next_lsn) = (view.first_lsn().0, view.next_lsn().0);
        let report = view.report();
        Self {
            id: view.id().to_string(),
            first_lsn,
            next_lsn,
            records: next_lsn - first_lsn,
            segments: view.segments(),
            bytes: report.bytes,
            closed: report.closed,
            remnants: report.remnants,
            unsearched: report.unsearched,
            streams,
        }
    }
}

fn print(path: &Path) -> Result<()> {
    #[rustfmt::skip]
    let LogFacts {
        id, first_lsn, next_lsn, records, segments, bytes, closed, remnants, unsearched, streams
    } = LogFacts::of(path)?;
    let range = match records {
        0 => format!("none, the next is {next_lsn}"),
        _ => format!("{first_lsn}..{} ({records})", next_lsn - 1),
    };
    let closed = if closed { "yes" } else { "no" };
    output::deliver(&[], Terminal::of_stdout(false), |page| {
        writeln!(page, "id        {id}")?;
        writeln!(page, "records   {range}")?;
        writeln!(page, "segments  {segments}")?;
        writeln!(page, "bytes     {bytes}")?;
        writeln!(page, "closed    {closed}")?;
        writeln!(page, "remnants  {remnants}")?;
        if unsearched > 0 {
            writeln!(page, "unchecked {unsearched} bytes behind the end, which look like frames")?;
        }
        match streams {
            Some(streams) => Ok(writeln!(page, "streams   {streams}")?),
            None => Ok(()),
        }
    })
}

/// A record as one line. The names are stable.
#[derive(Serialize)]
struct Line {
    lsn: u64,
    bytes: usize,
    hex: String,
}

fn write_records(args: &args::LogDump) -> Result<()> {
    match args.stream {
        Some(id) => {
            let view = StreamView::open(&args.path)?;
            let from = first_of(args, view.first_lsn(id), view.next_lsn(id))?;
            write_lines(args, view.iter_from(id, from))
        }
        None => {
            let view = LogView::open(&args.path)?;
            let from = first_of(args, view.first_lsn(), view.next_lsn())?;
            write_lines(args, view.iter_from(from))
        }
    }
}

/// The LSN of the first record to print. No record has the number 0.
fn first_of(args: &args::LogDump, first: Lsn, next: Lsn) -> Result<Lsn> {
    match args.from.map(Lsn) {
        None | Some(Lsn(0)) => Ok(first),
        Some(from) if from > next => {
            bail!("no record {from} yet: the next one is {next}")
        }
        Some(from) => Ok(from),
    }
}

fn write_lines(
    args: &args::LogDump,
    records: impl Iterator<Item = dioxide_log::Result<(Lsn, Vec<u8>)>>,
) -> Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    for record in records.take(args.count.unwrap_or(usize::MAX)) {
        let (lsn, content) = record?;
        write_line(&mut out, lsn, &content)?;
    }
    Ok(out.flush()?)
}

/// A stream as one line. The names are stable.
#[derive(Serialize)]
struct StreamLine {
    stream: u64,
    /// The lowest LSN, and that of the next record.
    first_lsn: u64,
    next_lsn: u64,
    records: u64,
}

fn write_streams(path: &Path) -> Result<()> {
    let view = StreamView::open(path)?;
    let mut out = BufWriter::new(io::stdout().lock());
    for stream in view.ids() {
        let (first_lsn, next_lsn) = (view.first_lsn(stream).0, view.next_lsn(stream).0);
        let records = next_lsn - first_lsn;
        write_json(&mut out, &StreamLine { stream, first_lsn, next_lsn, records })?;
    }
    Ok(out.flush()?)
}

fn write_line(out: &mut impl Write, lsn: Lsn, content: &[u8]) -> Result<()> {
    write_json(out, &Line { lsn: lsn.0, bytes: content.len(), hex: hex(content) })
}

fn write_json(out: &mut impl Write, line: &impl Serialize) -> Result<()> {
    Ok(writeln!(out, "{}", serde_json::to_string(line)?)?)
}

/// A reader of a log, or of one stream.
trait Tailed {
    /// The lowest LSN, and the LSN behind the last stable record.
    fn range(&self) -> (Lsn, Lsn);
    /// Whether the writer has shown which is the last one.
    fn knows_end(&self) -> bool;
    fn lsn(&self) -> Lsn;
    fn seek(&mut self, lsn: Lsn);
    fn next_within(&mut self, limit: Duration) -> dioxide_log::Result<Option<Record<'_>>>;
}

macro_rules! tailed {
    ($reader:ty) => {
        impl Tailed for $reader {
            fn range(&self) -> (Lsn, Lsn) {
                (self.first_lsn(), self.stable_lsn())
            }

            fn knows_end(&self) -> bool {
                self.knows_stable()
            }

            fn lsn(&self) -> Lsn {
                self.lsn()
            }

            fn seek(&mut self, lsn: Lsn) {
                self.seek(lsn);
            }

            fn next_within(&mut self, limit: Duration) -> dioxide_log::Result<Option<Record<'_>>> {
                self.next_within(limit)
            }
        }
    };
}

tailed!(LogReader);
tailed!(StreamReader);

fn tail_of(args: &args::LogTail) -> Result<()> {
    let out = BufWriter::new(io::stdout().lock());
    match args.stream {
        Some(id) => follow(args, StreamReader::open(&args.path, id)?, out),
        None => follow(args, LogReader::open(&args.path)?, out),
    }
}

fn follow(args: &args::LogTail, mut reader: impl Tailed, mut out: impl Write) -> Result<()> {
    let mut has_begun = begin(args, &mut reader);
    let mut has_warned = false;
    let mut left = args.count.unwrap_or(u64::MAX);
    let mut patience = Duration::ZERO;
    while left > 0 {
        let lsn = reader.lsn();
        match reader.next_within(patience) {
            Ok(Some(record)) => {
                write_line(&mut out, record.lsn, record.payload)?;
                (left, patience) = (left - 1, Duration::ZERO);
            }
            Ok(None) => {
                out.flush()?;
                if is_closed_pipe(io::stdout()) {
                    return Err(io::Error::from(io::ErrorKind::BrokenPipe).into());
                }
                if !has_begun {
                    has_begun = begin(args, &mut reader);
                }
                if !reader.knows_end() && !has_warned && !patience.is_zero() {
                    say("no writer has shown what is stable; `dioxide log dump` prints all");
                    has_warned = true;
                }
                patience = PATIENCE;
            }
            Err(Error::Changing { .. }) => {
                out.flush()?;
                thread::sleep(PAUSE);
            }
            Err(Error::OutOfRange { first, .. }) if first > lsn => {
                say(&format!("the records {lsn}..{} were removed", first.0 - 1));
                reader.seek(first);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(out.flush()?)
}

/// Moves to the first record to be printed. False if that is not known yet: the writer was opened,
/// or truncated the log, while the reader looked at it.
fn begin(args: &args::LogTail, reader: &mut impl Tailed) -> bool {
    let (first, end) = reader.range();
    let from = match args.from {
        // No record has this number, so none was removed.
        Some(0) => first,
        Some(lsn) => Lsn(lsn),
        None if !reader.knows_end() => Lsn(u64::MAX),
        None => Lsn(end.0.saturating_sub(TAIL_RECORDS)).max(first),
    };
    reader.seek(from);
    from < Lsn(u64::MAX)
}

/// Whether the reader of a pipe has gone. A write would notice it, but a log may rest.
fn is_closed_pipe(out: impl AsFd) -> bool {
    let mut polled = [PollFd::new(&out, PollFlags::empty())];
    poll(&mut polled, Some(&Timespec::default())).is_ok_and(|count| count > 0)
        && polled[0].revents().contains(PollFlags::ERR)
}

fn hex(bytes: &[u8]) -> String {
    let mut hex = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        write!(hex, "{byte:02x}").expect("a string takes all");
    }
    hex
}

#[cfg(test)]
mod tests {
    use super::*;
    use dioxide_log::LogOptions;
    use std::fs;
    use std::time::Instant;

    /// A log with one record, whose writer is faster than its reader this often.
    struct Fast {
        looks: u32,
        lsn: Lsn,
    }

    impl Tailed for Fast {
        fn range(&self) -> (Lsn, Lsn) {
            (Lsn(1), Lsn(2))
        }

        fn knows_end(&self) -> bool {
            true
        }

        fn lsn(&self) -> Lsn {
            self.lsn
        }

        fn seek(&mut self, lsn: Lsn) {
            self.lsn = lsn;
        }

        fn next_within(&mut self, _: Duration) -> dioxide_log::Result<Option<Record<'_>>> {
            if self.looks > 0 {
                self.looks -= 1;
                return Err(Error::Changing { path: "a log".into() });
            }
            Ok(Some(Record { lsn: self.lsn, payload: b"a" }))
        }
    }

    /// A log of 100 records, whose end the reader finds at the second look.
    struct Late {
        looks: u32,
        lsn: Lsn,
    }

    impl Tailed for Late {
        fn range(&self) -> (Lsn, Lsn) {
            (Lsn(1), if self.knows_end() { Lsn(101) } else { Lsn(1) })
        }

        fn knows_end(&self) -> bool {
            self.looks >= 2
        }

        fn lsn(&self) -> Lsn {
            self.lsn
        }

        fn seek(&mut self, lsn: Lsn) {
            self.lsn = lsn;
        }

        fn next_within(&mut self, _: Duration) -> dioxide_log::Result<Option<Record<'_>>> {
            self.looks += 1;
            let lsn = self.lsn;
            let is_there = lsn < self.range().1;
            self.lsn.0 += u64::from(is_there);
            Ok(is_there.then_some(Record { lsn, payload: b"a" }))
        }
    }

    /// It began with the first record of the log.
    #[test]
    fn tail_began_before_the_end_was_known() {
        let args = args::LogTail { path: "a log".into(), stream: None, from: None, count: Some(1) };
        let mut out = Vec::new();
        follow(&args, Late { looks: 0, lsn: Lsn(1) }, &mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "{\"lsn\":91,\"bytes\":1,\"hex\":\"61\"}\n");
    }

    /// It read the whole log again and again.
    #[test]
    fn tail_made_no_pause_while_a_writer_was_faster() {
        let args = args::LogTail { path: "a log".into(), stream: None, from: None, count: Some(1) };
        let (begun, mut out) = (Instant::now(), Vec::new());
        follow(&args, Fast { looks: 2, lsn: Lsn(1) }, &mut out).unwrap();
        assert!(begun.elapsed() >= 2 * PAUSE, "{:?}", begun.elapsed());
        assert_eq!(String::from_utf8(out).unwrap(), "{\"lsn\":1,\"bytes\":1,\"hex\":\"61\"}\n");
    }

    /// The command said that the streams were not counted, and ended with 0.
    #[test]
    fn verify_did_not_check_the_streams_of_a_log_that_changed() {
        let dir = tempfile::tempdir_in(".").unwrap();
        let path = dir.path();
        let options = LogOptions::new().segment_bytes(64 << 10).spare_segments(1);
        let log = options.open_streams(path).unwrap();
        let stream = log.stream(1);
        for _ in 0..30 {
            stream.append(&[1; 9000]).unwrap();
        }
        let views = [(); 2].map(|()| LogView::open(path).unwrap());
        // Until the first segment of the views is removed, or used again.
        let is_changing = |view: &LogView| {
            let mut records = view.iter_from(view.first_lsn());
            records.any(|record| matches!(record, Err(Error::Changing { .. })))
        };
        let changed = (0..1000).any(|_| {
            let lsn = stream.append(&[1; 9000]).unwrap();
            stream.truncate_front(lsn).unwrap();
            views.iter().all(is_changing)
        });
        assert!(changed);
        log.close().unwrap();

        let [sound, damaged] = views;
        assert_eq!(LogFacts::of_seen(sound, path).unwrap().streams, Some(1));
        for segment in fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()) {
            let mut content = fs::read(&segment).unwrap();
            if let Some(byte) = content.get_mut(4096 + 24) {
                *byte ^= 1;
                fs::write(&segment, &content).unwrap();
            }
        }
        let error = LogFacts::of_seen(damaged, path).err().expect("the log is damaged");
        assert!(matches!(error.downcast_ref(), Some(Error::Corrupt { .. })), "{error}");
    }
}
