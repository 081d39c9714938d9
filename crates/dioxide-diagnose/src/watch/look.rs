//! Parsers of the files of a thread in /proc.

use super::calls::RawCall;

/// A thread at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look {
    /// `R`, `S`, `D`, ...
    pub state: char,
    pub call: Option<RawCall>,
    /// The wait channel.
    pub channel: Option<String>,
    /// Innermost first.
    pub stack: Vec<String>,
}

impl Look {
    /// A thread that is running or runnable, about which nothing else is known.
    pub fn running() -> Self {
        Self { state: 'R', call: None, channel: None, stack: Vec::new() }
    }
}

/// The thread's name and state, from `stat`: `12 (a name) S 1 ...`. The name may contain any byte.
pub fn parse_stat(text: &[u8]) -> Option<(String, char)> {
    let text = String::from_utf8_lossy(text);
    let (front, back) = text.rsplit_once(") ")?;
    let (_, name) = front.split_once(" (")?;
    Some((name.to_owned(), back.chars().next()?))
}

/// The content of `syscall`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InCall {
    /// Running or runnable.
    Running,
    /// Waiting, but not in a system call.
    None,
    Call(RawCall),
}

/// `running`, or `-1 0x.. 0x..`, or the number of the call, its six arguments, and two addresses.
pub fn parse_syscall(text: &[u8]) -> Option<InCall> {
    let text = std::str::from_utf8(text).ok()?;
    let mut words = text.split_whitespace();
    let first = words.next()?;
    if first == "running" {
        return Some(InCall::Running);
    }
    let Ok(number) = first.parse() else { return Some(InCall::None) };
    let mut arguments = [0; 6];
    for argument in &mut arguments {
        *argument = u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()?;
    }
    Some(InCall::Call(RawCall { number, arguments }))
}

/// The two addresses at the end of the same text: stack and instruction pointers.
pub fn parse_registers(text: &[u8]) -> Option<(u64, u64)> {
    let mut words = std::str::from_utf8(text).ok()?.split_whitespace().rev();
    let mut address = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
    let (pc, sp) = (address()?, address()?);
    Some((sp, pc))
}

/// `schedstat`: time on a processor, time runnable, and how often it has run.
pub fn parse_schedstat(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.split_whitespace().nth(2)?.parse().ok()
}

/// Lines like `[<0>] rwsem_down_write_slowpath+0x22/0x6f0 [module]`.
pub fn parse_stack(text: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(text);
    let functions = text.lines().filter_map(|line| line.split_whitespace().nth(1));
    functions.map(function).collect()
}

/// The function name of a kernel symbol, without its offset, and without suffixes of the compiler
/// (`.isra.0`).
pub fn function(place: &str) -> String {
    let end = place.find(['+', '.']).unwrap_or(place.len());
    place[..end].to_owned()
}

/// `wchan`. None for a thread that does not wait.
pub fn parse_wchan(text: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(text);
    let name = text.trim();
    (name != "0" && !name.is_empty()).then(|| function(name))
}

/// A name without numbers, so that the threads of a pool share one: `iou-wrk-1234` becomes
/// `iou-wrk`.
pub fn normalised(name: &str) -> String {
    let letters: String = name.chars().filter(|letter| !letter.is_ascii_digit()).collect();
    let letters =
        letters.trim_matches(|letter: char| !letter.is_alphabetic() && !"()[]".contains(letter));
    if letters.is_empty() { name.to_owned() } else { letters.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_with_any_name() {
        assert_eq!(parse_stat(b"12 (fio) S 1 2 3\n"), Some(("fio".into(), 'S')));
        assert_eq!(parse_stat(b"12 (a) (b) R) D 1 2 3\n"), Some(("a) (b) R".into(), 'D')));
        assert_eq!(parse_stat(b""), None);
    }

    #[test]
    fn syscall_in_its_three_forms() {
        assert_eq!(parse_syscall(b"running\n"), Some(InCall::Running));
        assert_eq!(parse_syscall(b"-1 0x7ffd 0x55\n"), Some(InCall::None));
        let call = RawCall { number: 18, arguments: [3, 0x7f00, 4096, 8192, 0, 0] };
        let text = b"18 0x3 0x7f00 0x1000 0x2000 0x0 0x0 0x7ffd 0x55\n";
        assert_eq!(parse_syscall(text), Some(InCall::Call(call)));
        assert_eq!(parse_syscall(b""), None);
        assert_eq!(parse_syscall(b"18 0x3"), None);
        assert_eq!(parse_registers(text), Some((0x7ffd, 0x55)));
        assert_eq!(parse_registers(b"running\n"), None);
    }

    #[test]
    fn runs_are_the_third_number() {
        assert_eq!(parse_schedstat(b"675865 1098651 18\n"), Some(18));
        assert_eq!(parse_schedstat(b"0 0\n"), None);
    }

    #[test]
    fn stacks_are_names() {
        let text = b"[<0>] xfs_ilock.isra.0+0x1/0x20 [xfs]\n[<0>] vfs_write+0x29/0x400\n";
        assert_eq!(parse_stack(text), ["xfs_ilock", "vfs_write"]);
        assert!(parse_stack(b"").is_empty());
    }

    #[test]
    fn wchan_of_one_that_waits_and_of_one_that_does_not() {
        assert_eq!(parse_wchan(b"futex_wait_queue"), Some("futex_wait_queue".into()));
        assert_eq!(parse_wchan(b"0"), None);
        assert_eq!(parse_wchan(b""), None);
    }

    #[test]
    fn numbers_are_no_names() {
        let names =
            [("iou-wrk-1234", "iou-wrk"), ("fio", "fio"), ("worker/3:1", "worker"), ("12", "12")];
        for (name, expected) in names {
            assert_eq!(normalised(name), expected);
        }
    }
}
