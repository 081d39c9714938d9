//! Parses the lines of `trace_pipe`.

use crate::watch::look::function;
use rustix::fs::makedev;

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub tid: u32,
    /// Since boot.
    pub at_ns: u64,
    pub what: EventKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A thread begins to wait for a lock.
    LockBegin { lock: u64, kind: String },
    /// The stack of the preceding event, innermost first.
    Stack(Vec<String>),
    /// The wait ends.
    LockEnd { lock: u64 },
    /// A direct read or write begins. The following mapping event says which.
    Direct(Direct),
    /// A part of a file is mapped.
    Mapping { is_write: bool },
    /// io_uring hands an operation to a worker.
    Punt { opcode: String, is_hashed: bool },
    /// A system call begins. The arguments are the first three.
    CallBegin { number: usize, arguments: [u64; 3] },
    /// It returns.
    CallEnd { number: usize, result: i64 },
}

/// The events of a slice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parsed {
    pub events: Vec<Event>,
    /// The number of events that full buffers lost, and the time from which none is missing. A
    /// full buffer loses its oldest events.
    pub lost: u64,
    pub whole_from_ns: u64,
}

/// A direct read or write at its begin. Offsets and lengths in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Direct {
    /// Of the file system.
    pub device: u64,
    pub inode: u64,
    pub size: u64,
    pub offset: u64,
    pub length: u64,
    pub is_durable: bool,
}

/// The task name has 16 columns, followed by a dash. The name itself may contain any byte.
const NAME_COLUMNS: usize = 16;

/// All events of a text. Other lines are skipped.
pub fn parse(text: &[u8]) -> Parsed {
    let mut parsed = Parsed::default();
    let mut is_after_loss = false;
    for line in text.split(|byte| *byte == b'\n') {
        if let Some(place) = line.strip_prefix(b" => ") {
            if let Some(Event { what: EventKind::Stack(stack), .. }) = parsed.events.last_mut() {
                stack.push(function(&String::from_utf8_lossy(place)));
            }
        } else if let Some(lost) = parse_lost(line) {
            parsed.lost = parsed.lost.saturating_add(lost);
            is_after_loss = true;
        } else if let Some(event) = parse_line(line) {
            if std::mem::take(&mut is_after_loss) {
                parsed.whole_from_ns = parsed.whole_from_ns.max(event.at_ns);
            }
            parsed.events.push(event);
        }
    }
    parsed.events.iter_mut().for_each(drop_tracing);
    parsed
}

/// `CPU:0 [LOST 12 EVENTS]`, in front of the first event that is left. The number may be missing.
fn parse_lost(line: &[u8]) -> Option<u64> {
    let line = std::str::from_utf8(line).ok()?.strip_prefix("CPU:")?;
    let count = line.split_once("[LOST ")?.1.split_whitespace().next()?;
    Some(count.parse().unwrap_or(1))
}

/// A stack begins with the functions that recorded it.
fn drop_tracing(event: &mut Event) {
    if let EventKind::Stack(stack) = &mut event.what {
        let recorded_by = stack.iter().rposition(|name| name.contains("contention_begin"));
        stack.drain(..recorded_by.map_or(0, |last| last + 1));
    }
}

/// `             fio-12345   [000]  81573.598169: contention_end: 00000000e5f822bf (ret=0)`
fn parse_line(line: &[u8]) -> Option<Event> {
    let line = String::from_utf8_lossy(line.get(NAME_COLUMNS..)?);
    let (tid, rest) = line.strip_prefix('-')?.split_once(char::is_whitespace)?;
    let (_, rest) = rest.split_once("] ")?;
    let (time, what) = rest.trim_start().split_once(": ")?;
    Some(Event { tid: tid.parse().ok()?, at_ns: parse_time(time)?, what: parse_what(what)? })
}

/// Seconds and microseconds.
fn parse_time(time: &str) -> Option<u64> {
    let (seconds, micros) = time.split_once('.')?;
    Some(seconds.parse::<u64>().ok()? * 1_000_000_000 + micros.parse::<u64>().ok()? * 1_000)
}

fn parse_what(what: &str) -> Option<EventKind> {
    if what.starts_with("<stack trace>") {
        return Some(EventKind::Stack(Vec::new()));
    }
    let (event, fields) = what.split_once(": ")?;
    let lock = || u64::from_str_radix(fields.split(' ').next()?, 16).ok();
    match event {
        "contention_begin" => {
            let kind = fields.split_once("(flags=")?.1.trim_end_matches(')').to_owned();
            Some(EventKind::LockBegin { lock: lock()?, kind })
        }
        "contention_end" => Some(EventKind::LockEnd { lock: lock()? }),
        "iomap_dio_rw_begin" => parse_direct(fields).map(EventKind::Direct),
        "iomap_iter" => Some(EventKind::Mapping { is_write: has_flag(fields, "WRITE") }),
        "io_uring_queue_async_work" => {
            let opcode = word_after(fields, "opcode ")?.trim_end_matches(',').to_owned();
            Some(EventKind::Punt { opcode, is_hashed: fields.contains(" hashed queue") })
        }
        "sys_enter" => parse_begin(fields),
        "sys_exit" => {
            let (number, result) = fields.strip_prefix("NR ")?.split_once(" = ")?;
            let result = result.trim_end().parse().ok()?;
            Some(EventKind::CallEnd { number: number.parse().ok()?, result })
        }
        _ => None,
    }
}

/// `NR 18 (3, 7ffd5c, 1000, 2000, 0, 0)`
fn parse_begin(fields: &str) -> Option<EventKind> {
    let (number, arguments) = fields.strip_prefix("NR ")?.split_once(" (")?;
    let mut arguments = arguments
        .trim_end()
        .trim_end_matches(')')
        .split(", ")
        .map(|hex| u64::from_str_radix(hex, 16));
    let mut argument = || arguments.next()?.ok();
    let arguments = [argument()?, argument()?, argument()?];
    Some(EventKind::CallBegin { number: number.parse().ok()?, arguments })
}

/// `dev 7:6 ino 0xc size 0x1400000 offset 0xc9e000 length 0x1000 done_before 0x0 flags DIRECT|DSYNC
/// dio_flags aio 0`
fn parse_direct(fields: &str) -> Option<Direct> {
    let (major, minor) = word_after(fields, "dev ")?.split_once(':')?;
    let hex = |name| u64::from_str_radix(word_after(fields, name)?.strip_prefix("0x")?, 16).ok();
    Some(Direct {
        device: makedev(major.parse().ok()?, minor.parse().ok()?),
        inode: hex("ino ")?,
        size: hex("size ")?,
        offset: hex("offset ")?,
        length: hex("length ")?,
        is_durable: has_flag(fields, "DSYNC") || has_flag(fields, "SYNC"),
    })
}

fn has_flag(fields: &str, flag: &str) -> bool {
    word_after(fields, " flags ").is_some_and(|flags| flags.split('|').any(|one| one == flag))
}

fn word_after<'a>(fields: &'a str, name: &str) -> Option<&'a str> {
    fields.split_once(name)?.1.split(' ').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = concat!(
        "     iou-wrk-2-3-2511    [001]  81441.980995: contention_begin: 000000007b77c0f7 \
         (flags=WRITE)\n",
        "     iou-wrk-2-3-2511    [001]  81441.980997: <stack trace>\n",
        " => trace_event_raw_event_contention_begin\n",
        " => rwsem_down_write_slowpath.constprop.0\n",
        " => ext4_file_write_iter\n",
        "            a [b-25      [000]  81441.981043: contention_end: 000000007b77c0f7 (ret=0)\n",
        "CPU:0 [LOST 12 EVENTS]\n",
        "             fio-30028   [000]  81573.598169: iomap_dio_rw_begin: dev 7:6 ino 0xc size \
         0x4000 offset 0x3000 ",
        "length 0x1000 done_before 0x0 flags DSYNC|DIRECT dio_flags DIO_FORCE_WAIT aio 0\n",
        "             fio-30028   [000]  81573.598171: iomap_iter: dev 7:6 ino 0xc pos 0xc9e000 \
         length 0x1000 status 0 ",
        "flags WRITE|DIRECT (0x11) ops 0xffffffff8245a750 caller __iomap_dio_rw+0x1fb/0x8d0\n",
        "             fio-30028   [000]  81573.598172: io_uring_queue_async_work: ring \
         00000000e5f822bf, request ",
        "00000000e5f822c0, user_data 0x1, opcode WRITE, flags 0x10, hashed queue, work \
         00000000e5f822c8\n",
        "             fio-30028   [000]  81573.598180: sys_enter: NR 18 (3, 7ffd5c, 1000, 2000, 0, \
         0)\n",
        "             fio-30028   [000]  81573.598190: sys_exit: NR 18 = -5\n",
    );

    #[test]
    fn every_event() {
        let event = |tid, at_us: u64, what| Event { tid, at_ns: at_us * 1000, what };
        let lock = 0x7b77_c0f7;
        let stack =
            ["rwsem_down_write_slowpath", "ext4_file_write_iter"].map(String::from).to_vec();
        let direct = Direct {
            device: makedev(7, 6),
            inode: 12,
            size: 0x4000,
            offset: 0x3000,
            length: 0x1000,
            is_durable: true,
        };
        let expected = [
            event(2511, 81_441_980_995, EventKind::LockBegin { lock, kind: "WRITE".into() }),
            event(2511, 81_441_980_997, EventKind::Stack(stack)),
            event(25, 81_441_981_043, EventKind::LockEnd { lock }),
            event(30028, 81_573_598_169, EventKind::Direct(direct)),
            event(30028, 81_573_598_171, EventKind::Mapping { is_write: true }),
            event(
                30028,
                81_573_598_172,
                EventKind::Punt { opcode: "WRITE".into(), is_hashed: true },
            ),
            event(
                30028,
                81_573_598_180,
                EventKind::CallBegin { number: 18, arguments: [3, 0x7f_fd5c, 0x1000] },
            ),
            event(30028, 81_573_598_190, EventKind::CallEnd { number: 18, result: -5 }),
        ];
        let parsed = parse(TEXT.as_bytes());
        assert_eq!(parsed.events, expected);
        assert_eq!((parsed.lost, parsed.whole_from_ns), (12, 81_573_598_169_000));
    }

    #[test]
    fn without_losses_no_event_is_missing() {
        let text = TEXT.replace("CPU:0 [LOST 12 EVENTS]\n", "");
        let parsed = parse(text.as_bytes());
        assert_eq!((parsed.events.len(), parsed.lost, parsed.whole_from_ns), (8, 0, 0));
        assert_eq!(parse_lost(b"CPU:3 [LOST EVENTS]"), Some(1));
    }

    #[test]
    fn cut_anywhere() {
        for end in 0..TEXT.len() {
            assert!(parse(&TEXT.as_bytes()[..end]).events.len() <= 8);
        }
    }
}
