//! Sizes and durations in text. Sizes are binary: k, m, g are powers of 1024, as in fio.

use dioxide_diagnose::words::UNITS;
pub use dioxide_diagnose::words::{about_bytes, size};
use std::time::Duration;

/// `512`, `4k`, `1m`, `2g`; upper case as well.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is not a size such as 512, 4k, 1m or 2g");
    let lower = text.trim().to_ascii_lowercase();
    let suffix = UNITS.iter().find(|(letter, _)| lower.ends_with(*letter));
    let (digits, unit) =
        suffix.map_or((&lower[..], 1), |(_, unit)| (&lower[..lower.len() - 1], *unit));
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong());
    }
    digits.parse::<u64>().ok().and_then(|count| count.checked_mul(unit)).ok_or_else(wrong)
}

/// `2s`, `500ms`, `1m 30s`; a plain number is seconds, as in fio.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    if let Ok(seconds) = text.parse::<u64>() {
        return Ok(Duration::from_secs(seconds));
    }
    humantime::parse_duration(text)
        .map_err(|_| format!("`{text}` is not a duration such as 2s, 500ms or 1m"))
}

/// `10%`, `10`, `0.5%`.
pub fn parse_percent(text: &str) -> Result<f64, String> {
    let digits = text.strip_suffix('%').unwrap_or(text).trim();
    let is_plain = digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    digits
        .parse()
        .ok()
        .filter(|_| is_plain)
        .ok_or_else(|| format!("`{text}` is not a percentage such as 10% or 0.5%"))
}

/// The shortest exact form: `4k`, `1m`, `1536`.
pub fn bytes(count: u64) -> String {
    let exact = |(_, unit): &&(char, u64)| count >= *unit && count.is_multiple_of(*unit);
    match UNITS.iter().rev().find(exact) {
        Some((letter, unit)) => format!("{}{letter}", count / unit),
        None => count.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, count) in
            [("512", 512), ("4k", 4096), ("4K", 4096), ("1m", 1 << 20), ("2g", 2 << 30)]
        {
            assert_eq!(parse_bytes(text), Ok(count), "{text}");
        }
        for text in ["", "k", "-4k", "+4k", "4kb", "4.5k", "four", "99999999999t", "é"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_print_as_typed() {
        for text in ["512", "1536", "4k", "64k", "1m", "3g"] {
            assert_eq!(bytes(parse_bytes(text).unwrap()), text);
        }
        assert_eq!(bytes(0), "0");
    }

    #[test]
    fn durations() {
        assert_eq!(parse_duration("2s"), Ok(Duration::from_secs(2)));
        assert_eq!(parse_duration("2"), Ok(Duration::from_secs(2)));
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert!(parse_duration("soon").unwrap_err().contains("`soon` is not a duration"));
    }

    #[test]
    fn percentages() {
        for (text, percent) in
            [("10%", 10.0), ("10", 10.0), ("0.5%", 0.5), ("0", 0.0), ("250 %", 250.0)]
        {
            assert_eq!(parse_percent(text), Ok(percent), "{text}");
        }
        for text in ["", "%", "-5%", "+5", "ten", "1e1", "nan", "inf%", "5%%", "."] {
            assert!(parse_percent(text).is_err(), "{text}");
        }
    }
}
