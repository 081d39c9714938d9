//! Bars from zero, each with its name above it.

use super::{Style, WIDTH, figure, line, text};
use maud::{Markup, html};

/// A bar chart.
pub struct Bars {
    pub title: String,
    pub description: String,
    pub bars: Vec<Bar>,
    /// The value of a full-width bar. None for the longest.
    pub full: Option<f64>,
}

pub struct Bar {
    pub name: String,
    pub style: Style,
    pub value: f64,
    /// The value as text beside the name.
    pub text: String,
    /// From the smallest measured value to the largest.
    pub range: Option<(f64, f64)>,
}

/// The height of a bar with its name.
const ROW: f64 = 34.0;
const NAME: f64 = 13.0;
const BAR: f64 = 10.0;
/// The minimum length, so that a measured value is visible.
const LENGTH_MIN: f64 = 1.5;

impl Bars {
    pub fn draw(&self) -> Markup {
        let longest = self.bars.iter().map(|bar| bar.range.map_or(bar.value, |range| range.1));
        let full = self.full.unwrap_or(longest.fold(0.0, f64::max)).max(f64::MIN_POSITIVE);
        let length = |value: f64| (WIDTH * value / full).clamp(LENGTH_MIN, WIDTH);
        let content = html! {
            @for (nth, bar) in self.bars.iter().enumerate() {
                @let top = nth as f64 * ROW;
                @let (upper, middle) = (top + NAME + 5.0, top + NAME + 5.0 + BAR / 2.0);
                @let end = length(bar.value);
                g class=(bar.style.class()) {
                    (text("name", "start", (0.0, top + NAME), &bar.name))
                    (text("value", "end", (WIDTH, top + NAME), &bar.text))
                    path class="track" d=(format!("M0,{upper:.1}h{WIDTH}v{BAR}h-{WIDTH}z")) {}
                    path class="bar" d=(format!("M0,{upper:.1}h{end:.1}v{BAR}h-{end:.1}z")) {}
                    @if let Some((low, high)) = bar.range {
                        (line("range", (length(low), middle), (length(high), middle)))
                    }
                }
            }
        };
        figure(&self.title, &self.description, self.bars.len() as f64 * ROW, content)
    }
}
