//! Direct I/O on one file, from the kernel's own trace events: of all processes, by system calls
//! and by io_uring. For ext4 and XFS.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

const EVENTS: [&str; 2] = ["iomap_dio_rw_begin", "iomap_dio_complete"];

/// One completed direct I/O. Does not distinguish reads from writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dio {
    /// Byte range in the file.
    pub span: Range<u64>,
    /// From begin to end, as indices of events.
    pub time: Range<usize>,
}

impl Dio {
    /// Whether both were in flight at the same time, on overlapping bytes.
    pub fn meets(&self, other: &Dio) -> bool {
        let overlap = |one: (u64, u64), other: (u64, u64)| one.0 < other.1 && other.0 < one.1;
        let time = |dio: &Dio| (dio.time.start as u64, dio.time.end as u64);
        overlap((self.span.start, self.span.end), (other.span.start, other.span.end))
            && overlap(time(self), time(other))
    }
}

/// Traces until it is finished or dropped.
pub struct DioTrace {
    /// A tracefs instance of its own.
    instance: PathBuf,
    /// The file as events name it.
    file: String,
}

impl DioTrace {
    /// Starts tracing the file at `path`. Needs root and tracefs.
    pub fn start(path: &Path) -> io::Result<DioTrace> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let metadata = fs::metadata(path)?;
        let (major, minor) = (rustix::fs::major(metadata.dev()), rustix::fs::minor(metadata.dev()));
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // dioxide-diagnose removes instances of its own prefix whose makers it does not find.
        let name = format!("testkit-{}-{number}", process::id());
        let instance = Path::new("/sys/kernel/tracing/instances").join(name);
        fs::create_dir(&instance)?;
        let trace = DioTrace {
            instance,
            file: format!(": dev {major}:{minor} ino {:#x} ", metadata.ino()),
        };
        // One order for the events of all processors.
        trace.set("trace_clock", "counter")?;
        for event in EVENTS {
            trace.set(
                &format!("events/iomap/{event}/filter"),
                &format!("ino == {}", metadata.ino()),
            )?;
            trace.set(&format!("events/iomap/{event}/enable"), "1")?;
        }
        Ok(trace)
    }

    fn set(&self, name: &str, value: &str) -> io::Result<()> {
        fs::write(self.instance.join(name), value)
    }

    /// Stops tracing and returns the I/O seen. An error if events were lost.
    pub fn finish(self) -> io::Result<Vec<Dio>> {
        let text = fs::read_to_string(self.instance.join("trace"))?;
        if is_complete(&text) {
            Ok(dios(&text, &self.file))
        } else {
            Err(io::Error::other("events were lost"))
        }
    }
}

impl Drop for DioTrace {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir(&self.instance) {
            eprintln!("testkit: {}: {error}", self.instance.display());
        }
    }
}

/// Whether the buffer holds all that was written to it.
fn is_complete(text: &str) -> bool {
    let counts =
        text.lines().find_map(|line| line.split_once("entries-in-buffer/entries-written:"));
    let counts = counts.and_then(|(_, rest)| rest.split_whitespace().next()?.split_once('/'));
    counts.is_some_and(|(there, written)| there == written)
}

/// Matches ends with begins. io_uring retries a begin without an end.
fn dios(text: &str, file: &str) -> Vec<Dio> {
    let mut begun: HashMap<u64, Vec<(usize, u64)>> = HashMap::new();
    let mut dios = Vec::new();
    for (time, line) in
        text.lines().filter(|line| !line.starts_with('#') && line.contains(file)).enumerate()
    {
        let (at, moved) = (number(line, "offset"), number(line, "ret"));
        match (line.contains(EVENTS[0]), at, moved) {
            (true, Some(at), _) => {
                let length = number(line, "length").unwrap_or(0);
                begun.entry(at).or_default().push((time, length));
            }
            (false, Some(end), Some(moved)) => {
                let start = end - moved;
                if let Some((from, length)) = begun.get_mut(&start).and_then(Vec::pop) {
                    dios.push(Dio { span: start..start + length, time: from..time });
                }
            }
            _ => {}
        }
    }
    dios.sort_by_key(|dio| dio.time.start);
    dios
}

/// The number after `word`.
fn number(line: &str, word: &str) -> Option<u64> {
    let mut words = line.split_whitespace().skip_while(|found| *found != word);
    let text = words.nth(1)?;
    text.strip_prefix("0x").map_or(text.parse().ok(), |hex| u64::from_str_radix(hex, 16).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# entries-in-buffer/entries-written: 7/7   #P:2
a-1 [001] ..... 2: iomap_dio_rw_begin: dev 7:14 ino 0xe size 0x0 offset 0x0 length 0x2000 \
done_before 0x0 flags DIRECT aio 0
a-1 [001] ..... 3: iomap_dio_rw_begin: dev 7:15 ino 0xe size 0x0 offset 0x0 length 0x1000 \
done_before 0x0 flags DIRECT aio 0
b-2 [000] ..... 4: iomap_dio_rw_begin: dev 7:14 ino 0xe size 0x0 offset 0x1000 length 0x1000 \
done_before 0x0 flags DIRECT|NOWAIT aio 1
b-2 [000] ..... 5: iomap_dio_rw_begin: dev 7:14 ino 0xe size 0x0 offset 0x1000 length 0x1000 \
done_before 0x0 flags DIRECT aio 1
a-1 [001] ..... 6: iomap_dio_complete: dev 7:14 ino 0xe size 0x2000 offset 0x2000 flags DIRECT aio \
0 error 0 ret 8192
b-2 [000] ..... 7: iomap_dio_complete: dev 7:14 ino 0xe size 0x2000 offset 0x2000 flags DIRECT aio \
1 error 0 ret 4096
a-1 [001] ..... 8: iomap_dio_rw_begin: dev 7:14 ino 0xe size 0x0 offset 0x1000 length 0x1000 \
done_before 0x0 flags DIRECT aio 0
a-1 [001] ..... 9: iomap_dio_complete: dev 7:14 ino 0xe size 0x2000 offset 0x2000 flags DIRECT aio \
0 error 0 ret 4096
";

    #[test]
    fn what_was_in_flight_together_is_told() {
        let dios = dios(TEXT, ": dev 7:14 ino 0xe ");
        let spans: Vec<_> = dios.iter().map(|dio| dio.span.clone()).collect();
        assert_eq!(spans, [0..8192, 4096..8192, 4096..8192]);
        assert!(dios[0].meets(&dios[1]) && dios[1].meets(&dios[0]));
        assert!(!dios[0].meets(&dios[2]) && !dios[1].meets(&dios[2]));
    }

    #[test]
    fn lost_events_are_noticed() {
        assert!(is_complete(TEXT));
        assert!(
            !is_complete("# entries-in-buffer/entries-written: 7/9   #P:2\n") && !is_complete("")
        );
    }
}
