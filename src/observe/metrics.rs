//! The events as metrics.

use super::Event;

pub use ::metrics::{Counter, Histogram, Unit};

/// A kind of metric.
pub trait Metric {
    /// Registers a metric, and describes it.
    fn new(name: &'static str, unit: Unit, text: &'static str) -> Self;
}

impl Metric for Counter {
    fn new(name: &'static str, unit: Unit, text: &'static str) -> Self {
        ::metrics::describe_counter!(name, unit, text);
        ::metrics::counter!(name)
    }
}

impl Metric for Histogram {
    fn new(name: &'static str, unit: Unit, text: &'static str) -> Self {
        ::metrics::describe_histogram!(name, unit, text);
        ::metrics::histogram!(name)
    }
}

/// Defines the metrics of a crate. Expects `Event`, and `Metrics::record` for each event.
#[doc(hidden)]
#[macro_export]
macro_rules! metrics_of_events {
    ($($field:ident: $kind:ident, $unit:ident, $name:literal, $text:literal;)*) => {
        struct Metrics {
            $($field: $crate::observe::metrics::$kind,)*
        }

        /// Makes an observer that records metrics, by the recorder of the crate `metrics` that is
        /// installed when it is made.
        ///
        /// | metric | kind | meaning |
        /// |---|---|---|
        $(#[doc = concat!("| `", $name, "` | ", stringify!($kind), " | ", $text, " |")])*
        pub fn metrics() -> impl Fn(&Event<'_>) + Send + Sync + 'static {
            use $crate::observe::metrics::{Metric, Unit};
            let metrics = Metrics {
                $($field: Metric::new($name, Unit::$unit, $text),)*
            };
            move |event| metrics.record(event)
        }
    };
}

metrics_of_events! {
    append_seconds: Histogram, Seconds, "dioxide_append_seconds",
        "from the call of an append to its acknowledgment";
    append_bytes: Counter, Bytes, "dioxide_append_bytes_total", "bytes of acknowledged appends";
    write_seconds: Histogram, Seconds, "dioxide_write_seconds", "time of a write request";
    write_bytes: Histogram, Bytes, "dioxide_write_bytes", "length of a write request";
    write_operations: Histogram, Count, "dioxide_write_operations",
        "operations that share a write request";
    write_failures: Counter, Count, "dioxide_write_failures_total", "write requests that failed";
    flush_seconds: Histogram, Seconds, "dioxide_flush_seconds", "time of a flush";
    flush_failures: Counter, Count, "dioxide_flush_failures_total", "flushes that failed";
    growth_seconds: Histogram, Seconds, "dioxide_growth_seconds", "time of a growth step";
    growth_bytes: Counter, Bytes, "dioxide_growth_bytes_total", "bytes of growth steps";
    wedges: Counter, Count, "dioxide_wedges_total", "file systems that were wedged";
}

impl Metrics {
    fn record(&self, event: &Event<'_>) {
        match *event {
            Event::Append { bytes, took, .. } => {
                self.append_seconds.record(took);
                self.append_bytes.increment(bytes);
            }
            Event::Write { operations, bytes, took, error, .. } => {
                self.write_seconds.record(took);
                self.write_bytes.record(bytes as f64);
                self.write_operations.record(operations as f64);
                self.write_failures.increment(error.is_some().into());
            }
            Event::Flush { took, error, .. } => {
                self.flush_seconds.record(took);
                self.flush_failures.increment(error.is_some().into());
            }
            Event::Growth { bytes, took, .. } => {
                self.growth_seconds.record(took);
                self.growth_bytes.increment(bytes);
            }
            Event::Wedge { .. } => self.wedges.increment(1),
        }
    }
}
