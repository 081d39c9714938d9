//! Axes: positions of values, and tick marks. Arithmetic only.

use std::ops::RangeInclusive;

/// An axis from its lowest to its highest value.
pub struct Axis {
    pub title: String,
    is_log: bool,
    low: f64,
    high: f64,
    /// Values with a line across the plot, and their labels. In ascending order.
    pub ticks: Vec<(f64, String)>,
}

/// With a larger ratio of values, the axis is logarithmic.
const LINEAR_FACTOR_MAX: f64 = 8.0;
/// Approximate number of steps of an axis that begins at zero.
const STEPS: f64 = 5.0;
/// Above this number of decades, a logarithmic axis has ticks at powers of ten only.
const FINE_DECADES_MAX: f64 = 2.0;
const POWERS_MAX: usize = 7;

impl Axis {
    /// For rates and times: linear from zero for similar values, logarithmic otherwise.
    pub fn fitting(
        title: &str,
        values: impl Iterator<Item = f64>,
        text: impl Fn(f64) -> String,
    ) -> Self {
        let positive = values.filter(|value| *value > 0.0 && value.is_finite());
        let (low, high) = positive
            .fold((f64::INFINITY, 0.0_f64), |(low, high), value| (low.min(value), high.max(value)));
        if low > high {
            Self::from_zero(title, 1.0, text)
        } else if high / low > LINEAR_FACTOR_MAX {
            Self::magnitudes(title, low, high, text)
        } else {
            Self::from_zero(title, high, text)
        }
    }

    /// Linear from zero.
    pub fn from_zero(title: &str, high: f64, text: impl Fn(f64) -> String) -> Self {
        let step = round_up(high / STEPS);
        let steps = (high / step).ceil();
        let ticks =
            (0..=steps as u64).map(|nth| nth as f64 * step).map(|value| (value, text(value)));
        Self {
            title: title.into(),
            is_log: false,
            low: 0.0,
            high: steps * step,
            ticks: ticks.collect(),
        }
    }

    fn magnitudes(title: &str, low: f64, high: f64, text: impl Fn(f64) -> String) -> Self {
        let (low, high) = (round_down(low), round_up(high));
        let is_fine = (high / low).log10() <= FINE_DECADES_MAX;
        let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
        let digits: &[f64] = if is_fine { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let values =
            (first..=last).flat_map(|power| digits.iter().map(move |digit| digit * ten_to(power)));
        // A margin for rounding errors.
        let shown: Vec<f64> =
            values.filter(|value| (low * 0.999..=high * 1.001).contains(value)).collect();
        let every = shown.len().div_ceil(if is_fine { usize::MAX } else { POWERS_MAX });
        let ticks = shown.into_iter().step_by(every).map(|value| (value, text(value)));
        Self {
            title: format!("{title}, log scale"),
            is_log: true,
            low,
            high,
            ticks: ticks.collect(),
        }
    }

    /// For numbers of threads: doublings have equal distances, and the numbers themselves are
    /// marked.
    pub fn doublings(title: &str, values: impl Iterator<Item = usize>) -> Self {
        let mut values: Vec<usize> = values.collect();
        values.sort_unstable();
        values.dedup();
        let ticks: Vec<_> = values.iter().map(|value| (*value as f64, value.to_string())).collect();
        let (low, high) = (ticks[0].0, ticks[ticks.len() - 1].0);
        // A single value is centred.
        let (low, high) = if low < high { (low, high) } else { (low / 2.0, high * 2.0) };
        Self { title: title.into(), is_log: true, low, high, ticks }
    }

    /// With these ticks, linear.
    pub fn marked(title: &str, range: RangeInclusive<f64>, ticks: Vec<(f64, String)>) -> Self {
        Self { title: title.into(), is_log: false, low: *range.start(), high: *range.end(), ticks }
    }

    /// From 0 at the lowest value to 1 at the highest; values outside are clamped.
    pub fn position(&self, value: f64) -> f64 {
        let position = if self.is_log {
            (value.max(f64::MIN_POSITIVE) / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        position.clamp(0.0, 1.0)
    }
}

fn ten_to(power: i32) -> f64 {
    10.0_f64.powi(power)
}

/// The next of 1, 2, 5, 10, ... of any power.
fn round_up(value: f64) -> f64 {
    let unit = ten_to(value.log10().floor() as i32);
    let digit = [1.0, 2.0, 5.0].into_iter().find(|digit| value <= digit * unit * 1.000_001);
    digit.unwrap_or(10.0) * unit
}

fn round_down(value: f64) -> f64 {
    let unit = ten_to(value.log10().floor() as i32);
    let digit = [5.0, 2.0].into_iter().find(|digit| value >= digit * unit * 0.999_999);
    digit.unwrap_or(1.0) * unit
}

/// A count as on an axis: `500`, `20k`, `1.5M`.
pub fn short_count(value: f64) -> String {
    let (scaled, unit) = match value {
        value if value >= 1e9 => (value / 1e9, "G"),
        value if value >= 1e6 => (value / 1e6, "M"),
        value if value >= 1e3 => (value / 1e3, "k"),
        value => (value, ""),
    };
    format!("{}{unit}", short(scaled))
}

/// Nanoseconds as on an axis: `50 us`, `2 ms`.
pub fn short_time(ns: f64) -> String {
    let (scaled, unit) = match ns {
        ns if ns >= 1e9 => (ns / 1e9, "s"),
        ns if ns >= 1e6 => (ns / 1e6, "ms"),
        ns if ns >= 1e3 => (ns / 1e3, "us"),
        ns => (ns, "ns"),
    };
    format!("{} {unit}", short(scaled))
}

/// Three digits at most, without trailing zeros.
fn short(value: f64) -> String {
    let digits = if value >= 100.0 { 0 } else { 2 };
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').into() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marks(axis: &Axis) -> Vec<&str> {
        axis.ticks.iter().map(|(_, text)| &text[..]).collect()
    }

    #[test]
    fn from_zero_where_values_are_alike() {
        let axis = Axis::fitting("iops", [900.0, 4700.0].into_iter(), short_count);
        assert_eq!(marks(&axis), ["0", "1k", "2k", "3k", "4k", "5k"]);
        assert_eq!([0.0, 2500.0, 9000.0].map(|value| axis.position(value)), [0.0, 0.5, 1.0]);
    }

    #[test]
    fn magnitudes_where_they_are_not() {
        let axis = Axis::fitting("iops", [3000.0, 163_000.0].into_iter(), short_count);
        assert_eq!(marks(&axis), ["2k", "5k", "10k", "20k", "50k", "100k", "200k"]);
        assert_eq!(axis.title, "iops, log scale");
        let wide = Axis::fitting("ns", [1e3, 1e9].into_iter(), short_time);
        assert_eq!(marks(&wide), ["1 us", "10 us", "100 us", "1 ms", "10 ms", "100 ms", "1 s"]);
        assert!((wide.position(1e6) - 0.5).abs() < 1e-9 && wide.position(0.0) == 0.0);
    }

    #[test]
    fn an_axis_of_nothing() {
        assert_eq!(
            marks(&Axis::fitting("iops", [0.0, f64::NAN].into_iter(), short_count)).last(),
            Some(&"1")
        );
    }

    #[test]
    fn threads_double() {
        let axis = Axis::doublings("threads", [64, 1, 8, 8].into_iter());
        assert_eq!((marks(&axis), axis.position(8.0)), (vec!["1", "8", "64"], 0.5));
        assert_eq!(Axis::doublings("threads", [4].into_iter()).position(4.0), 0.5);
    }

    #[test]
    fn rounding_is_to_numbers_people_use() {
        for (value, down, up) in
            [(1.0, 1.0, 1.0), (3.0, 2.0, 5.0), (7.0, 5.0, 10.0), (0.012, 0.01, 0.02)]
        {
            let near = |one: f64, other: f64| (one - other).abs() < other * 1e-6;
            assert!(near(round_down(value), down) && near(round_up(value), up), "{value}");
        }
    }

    #[test]
    fn short_texts() {
        assert_eq!(
            [0.0, 0.5, 1500.0, 163_000.0, 2e6].map(short_count),
            ["0", "0.5", "1.5k", "163k", "2M"]
        );
        assert_eq!([200.0, 5e4, 1e10].map(short_time), ["200 ns", "50 us", "10 s"]);
    }
}
