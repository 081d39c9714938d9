//! Curves: values over values, with the range of each as a band.

use super::axis::Axis;
use super::labels::apart;
use super::{LETTER, Style, WIDTH, figure, line, path, text};
use maud::{Markup, html};

/// A line chart.
pub struct Curves {
    pub title: String,
    pub description: String,
    pub x: Axis,
    pub y: Axis,
    pub series: Vec<Curve>,
}

/// One curve.
pub struct Curve {
    pub name: String,
    pub style: Style,
    /// From left to right; at least one.
    pub points: Vec<CurvePoint>,
    /// Whether points have markers; computed curves have none.
    pub is_marked: bool,
}

pub struct CurvePoint {
    pub x: f64,
    pub y: f64,
    /// From the smallest measured value to the largest. Both are equal without a range.
    pub range: (f64, f64),
    /// The tooltip.
    pub note: String,
}

/// Changes along the lower axis, and the levels between them.
#[derive(Default)]
pub struct Changes {
    pub marks: Vec<Mark>,
    /// From, to, and the value.
    pub levels: Vec<(f64, f64, f64)>,
}

/// A line across the plot.
pub struct Mark {
    pub x: f64,
    /// Above the line, short.
    pub text: String,
    /// The tooltip.
    pub note: String,
}

pub const HEIGHT: f64 = 270.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = HEIGHT - 40.0;
/// Vertical distance between two names.
const NAME_HEIGHT: f64 = 14.0;
/// Horizontal distance from the end of the curves to their names.
const NAME_DISTANCE: f64 = 14.0;
/// Width of bold names relative to other text.
const BOLD: f64 = 1.1;
/// Minimum distance between two ticks of the lower axis.
const TICK_DISTANCE: f64 = 8.0;
/// A name displaced by more than this is connected to its curve by a line.
const TIE_MIN: f64 = 4.0;

/// The area of the curves.
struct Field {
    left: f64,
    right: f64,
}

impl Curves {
    pub fn draw(&self) -> Markup {
        figure(&self.title, &self.description, HEIGHT, self.content())
    }

    pub fn draw_with(&self, changes: &Changes) -> Markup {
        let content = html! { (self.content()) (self.changes(changes)) };
        figure(&self.title, &self.description, HEIGHT, content)
    }

    /// Without what stands around it: [`HEIGHT`] high.
    pub fn content(&self) -> Markup {
        let field = self.field();
        html! {
            (self.grid(&field))
            @for series in &self.series { (self.band(&field, series)) }
            @for series in &self.series { (self.curve(&field, series)) }
            (self.names(&field))
        }
    }

    fn field(&self) -> Field {
        let widest = |texts: &mut dyn Iterator<Item = &String>| {
            texts.map(|text| text.chars().count()).max().unwrap_or_default() as f64 * LETTER
        };
        Field {
            left: 8.0 + widest(&mut self.y.ticks.iter().map(|(_, text)| text)),
            right: WIDTH
                - NAME_DISTANCE
                - BOLD * widest(&mut self.series.iter().map(|series| &series.name)),
        }
    }

    fn changes(&self, changes: &Changes) -> Markup {
        let field = self.field();
        html! {
            @for (from, to, value) in &changes.levels {
                (line("level", self.place(&field, *from, *value), self.place(&field, *to, *value)))
            }
            @for mark in &changes.marks {
                @let (x, _) = self.place(&field, mark.x, 0.0);
                @let half = mark.text.chars().count() as f64 * LETTER / 2.0;
                @let middle = x.clamp(half, WIDTH - half);
                g {
                    title { (mark.note) }
                    (line("change", (x, TOP), (x, BOTTOM)))
                    (text("change-name", "middle", (middle, TOP - 3.0), &mark.text))
                }
            }
        }
    }

    fn place(&self, field: &Field, x: f64, y: f64) -> (f64, f64) {
        let across = field.left + 6.0 + (field.right - field.left - 12.0) * self.x.position(x);
        (across, BOTTOM - (BOTTOM - TOP) * self.y.position(y))
    }

    fn grid(&self, field: &Field) -> Markup {
        let mut free_from = f64::NEG_INFINITY;
        let below = self.x.ticks.iter().map(|(value, words)| {
            let (x, _) = self.place(field, *value, 0.0);
            let half = words.chars().count() as f64 * LETTER / 2.0;
            let is_free = x - half >= free_from;
            if is_free {
                free_from = x + half + TICK_DISTANCE;
            }
            (x, is_free.then_some(words))
        });
        let below: Vec<_> = below.collect();
        html! {
            @for (value, words) in &self.y.ticks {
                @let (_, y) = self.place(field, 0.0, *value);
                (line("grid", (field.left, y), (field.right, y)))
                (text("tick", "end", (field.left - 5.0, y + 4.0), words))
            }
            @for (x, words) in below {
                (line("grid", (x, BOTTOM), (x, BOTTOM + if words.is_some() { 5.0 } else { 3.0 })))
                @if let Some(words) = words { (text("tick", "middle", (x, BOTTOM + 17.0), words)) }
            }
            (text("axis", "start", (0.0, 12.0), &self.y.title))
            (text("axis", "start", (field.left, HEIGHT - 5.0), &self.x.title))
        }
    }

    /// The ranges of all points: a band, or a line for a single point.
    fn band(&self, field: &Field, series: &Curve) -> Markup {
        let lows = series.points.iter().map(|point| self.place(field, point.x, point.range.0));
        let highs = series.points.iter().map(|point| self.place(field, point.x, point.range.1));
        match series.points.len() {
            1 => {
                let whisker = path(lows.chain(highs));
                html! { path class=(format!("whisker {}", series.style.class())) d=(whisker) {} }
            }
            _ => {
                let outline = path(lows.chain(highs.rev())) + "Z";
                html! { path class=(format!("band {}", series.style.class())) d=(outline) {} }
            }
        }
    }

    fn curve(&self, field: &Field, series: &Curve) -> Markup {
        let corners = || series.points.iter().map(|point| self.place(field, point.x, point.y));
        html! {
            g class=(series.style.class()) {
                path class="curve" d=(path(corners())) {}
                @if series.is_marked {
                    @for (point, (x, y)) in series.points.iter().zip(corners()) {
                        g { title { (point.note) } (series.style.marker(x, y)) }
                    }
                }
            }
        }
    }

    /// At the ends of the curves.
    fn names(&self, field: &Field) -> Markup {
        let end = |series: &Curve| {
            series
                .points
                .last()
                .map(|point| self.place(field, point.x, point.y))
                .unwrap_or_default()
        };
        let wanted: Vec<f64> = self.series.iter().map(|series| end(series).1).collect();
        let heights = apart(&wanted, NAME_HEIGHT, TOP, BOTTOM);
        html! {
            @for (series, height) in self.series.iter().zip(heights) {
                @let (x, y) = end(series);
                g class=(series.style.class()) {
                    @if (height - y).abs() > TIE_MIN || x < field.right - NAME_DISTANCE {
                        (line("tie", (x + 6.0, y), (field.right + NAME_DISTANCE - 4.0, height)))
                    }
                    @let beside = (field.right + NAME_DISTANCE, height + 4.0);
                    (text("name", "start", beside, &series.name))
                }
            }
        }
    }
}
