//! Numbers in sentences, as verdicts write them.

/// `94 %`, `0.4 %`.
pub fn percent(share: f64) -> String {
    match share * 100.0 {
        percent if percent > 0.0 && percent < 1.0 => format!("{percent:.1} %"),
        percent => format!("{percent:.0} %"),
    }
}

/// A rate: `7292/s`, `13.5k/s`, `163k/s`, `2.5M/s`.
pub fn rate(per_second: f64) -> String {
    short(per_second) + "/s"
}

/// A rate of bytes: `52.0 MiB/s`.
pub fn bytes_rate(per_second: f64) -> String {
    match per_second {
        n if n < 1024.0 => format!("{n:.0} B/s"),
        n if n < 1024.0 * 1024.0 => format!("{:.1} KiB/s", n / 1024.0),
        n => format!("{:.1} MiB/s", n / 1024.0 / 1024.0),
    }
}

/// Binary units, by their letter.
pub const UNITS: [(char, u64); 4] =
    [('k', 1 << 10), ('m', 1 << 20), ('g', 1 << 30), ('t', 1 << 40)];

/// The exact size for people, in the largest unit with at most two decimals: `100 B`, `4 KiB`,
/// `1.25 MiB`.
pub fn size(count: u64) -> String {
    let exact =
        |(_, unit): &&(char, u64)| count >= *unit && (count % unit * 100).is_multiple_of(*unit);
    match UNITS.iter().rev().find(exact) {
        Some((letter, unit)) => {
            format!("{} {}iB", count as f64 / *unit as f64, letter.to_ascii_uppercase())
        }
        None => format!("{count} B"),
    }
}

/// About three digits of a size: `5.6 GiB`, `75 MiB`.
pub fn about_bytes(count: u64) -> String {
    let (exact, unit) = (size(count), UNITS.iter().rev().find(|(_, unit)| count >= *unit));
    match unit {
        Some((letter, unit)) if !exact.ends_with(&format!("{}iB", letter.to_ascii_uppercase())) => {
            let tenths = (count as f64 / *unit as f64 * 10.0).round();
            format!("{} {}iB", tenths / 10.0, letter.to_ascii_uppercase())
        }
        _ => exact,
    }
}

/// About four digits: `1.2`, `7292`, `13.5k`, `163k`, `2.5M`.
pub fn short(number: f64) -> String {
    match number {
        n if n < 9.95 => format!("{n:.1}"),
        n if n < 9999.5 => format!("{n:.0}"),
        n if n < 99_950.0 => format!("{:.1}k", n / 1e3),
        n if n < 999_500.0 => format!("{:.0}k", n / 1e3),
        n => format!("{:.1}M", n / 1e6),
    }
}

/// `2.3x`, `50x`.
pub fn factor(ratio: f64) -> String {
    if ratio < 9.95 { format!("{ratio:.1}x") } else { format!("{ratio:.0}x") }
}

/// `1 thread`, `64 threads`.
pub fn threads(count: usize) -> String {
    counted(count as u64, "thread")
}

/// `1 process`, `2 processes`; `1 pass`, `2 passes`.
pub fn counted_es(count: u64, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}es") }
}

/// A mean number: `0.97 threads`, `14.2 threads`.
pub fn mean(count: f64, what: &str) -> String {
    if count < 9.95 { format!("{count:.2} {what}s") } else { format!("{count:.1} {what}s") }
}

/// `1 look`, `20 looks`.
pub fn counted(count: u64, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

/// A duration: `870 ns`, `52.1 us`, `4.05 ms`, `1.20 s`.
pub fn nanoseconds(count: f64) -> String {
    match count {
        n if n < 1e3 => format!("{n:.0} ns"),
        n if n < 1e6 => format!("{:.1} us", n / 1e3),
        n if n < 1e9 => format!("{:.2} ms", n / 1e6),
        n => format!("{:.2} s", n / 1e9),
    }
}

/// `a`, `a and b`, `a, b and c`: the first few names, and the number of further ones.
pub fn list(names: &[String]) -> String {
    const NAMES_MAX: usize = 3;
    match names {
        [] => String::new(),
        [one] => one.clone(),
        _ if names.len() > NAMES_MAX => {
            format!("{} and {} more", names[..NAMES_MAX].join(", "), names.len() - NAMES_MAX)
        }
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

/// The median; the mean of the middle two for an even count. None without finite values.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut values: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        len if len.is_multiple_of(2) => Some(f64::midpoint(values[middle - 1], values[middle])),
        _ => Some(values[middle]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        assert_eq!([0.94, 0.004, 0.0, 1.0].map(percent), ["94 %", "0.4 %", "0 %", "100 %"]);
        assert_eq!(
            [1.23, 9.97, 7292.4, 9999.6, 13_507.0, 99_960.0, 163_000.0, 2.5e6].map(rate),
            ["1.2/s", "10/s", "7292/s", "10.0k/s", "13.5k/s", "100k/s", "163k/s", "2.5M/s"]
        );
        assert_eq!(
            [512.0, 1536.0, 54_525_952.0].map(bytes_rate),
            ["512 B/s", "1.5 KiB/s", "52.0 MiB/s"]
        );
        assert_eq!([2.34, 9.96, 50.4].map(factor), ["2.3x", "10x", "50x"]);
        assert_eq!((threads(1), threads(2)), ("1 thread".into(), "2 threads".into()));
        assert_eq!(mean(0.97, "thread"), "0.97 threads");
        assert_eq!([1, 2].map(|n| counted_es(n, "process")), ["1 process", "2 processes"]);
    }

    #[test]
    fn sizes_for_people() {
        assert_eq!([100, 1536, 4096, 3 << 30].map(size), ["100 B", "1.5 KiB", "4 KiB", "3 GiB"]);
        assert_eq!([0, 5000, 1280 << 10].map(size), ["0 B", "5000 B", "1.25 MiB"]);
        assert_eq!(size(u64::MAX), "18446744073709551615 B", "no overflow");
        assert_eq!(
            [100, 5000, 6_012_954_214, (4 << 30) + 1].map(about_bytes),
            ["100 B", "4.9 KiB", "5.6 GiB", "4 GiB"]
        );
    }

    #[test]
    fn durations() {
        assert_eq!(
            [870.0, 52_100.0, 4_050_000.0, 1.2e9].map(nanoseconds),
            ["870 ns", "52.1 us", "4.05 ms", "1.20 s"]
        );
    }

    #[test]
    fn lists() {
        let names: Vec<String> = ["a", "b", "c", "d", "e"].map(str::to_owned).into();
        assert_eq!(list(&names[..1]), "a");
        assert_eq!(list(&names[..3]), "a, b and c");
        assert_eq!(list(&names), "a, b, c and 2 more");
    }

    #[test]
    fn medians() {
        assert_eq!(median(&[3.0, f64::NAN, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[1.0, 2.0]), Some(1.5));
        assert_eq!(median(&[]), None);
    }
}
