//! Plots as SVG. The style sheet has colours, dark mode and print; a plot only names the style of
//! each series. A series is identifiable by colour, marker, dashes, and its name beside it.
//!
//! Plotting crates write colours, sizes and guessed widths of text into the picture. They know no
//! classes, titles or descriptions. Here dark mode and print are three rules of CSS, and a plot is
//! as wide as its column.

pub mod axis;
pub mod bars;
pub mod curves;
mod labels;

use maud::{Markup, html};

/// The colours and lines of plots, also for a separate picture.
pub const STYLE: &str = include_str!("plot.css");

/// The style of a series, by number. With more series than styles they repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style(pub usize);

/// The number of styles in the style sheet.
const STYLES: usize = 10;
/// Of all plots, in SVG units: letters are 12 high, and a phone shows it at about nine tenths.
pub const WIDTH: f64 = 360.0;
/// The approximate width of a letter. Text is never measured.
const LETTER: f64 = 7.0;

impl Style {
    pub fn class(self) -> String {
        format!("s{}", self.0 % STYLES)
    }

    /// A marker centred at this point.
    fn marker(self, x: f64, y: f64) -> Markup {
        let path = match self.0 % STYLES {
            0 | 7 => "m-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0z",
            1 | 8 => "m-3.6,-3.6h7.2v7.2h-7.2z",
            2 => "m0,-4.8l4.5,8h-9z",
            3 | 9 => "m0,-5l5,5l-5,5l-5,-5z",
            4 => "m-3.5,-3.5l7,7m0,-7l-7,7",
            5 => "m0,-4.5v9m-4.5,-4.5h9",
            _ => "m0,4.8l4.5,-8h-9z",
        };
        html! { path class="mark" d=(format!("M{x:.1},{y:.1}{path}")) {} }
    }
}

/// The common frame of plots: a heading, the picture, and a description for screen readers.
fn figure(title: &str, description: &str, height: f64, content: Markup) -> Markup {
    let view_box = format!("0 0 {WIDTH} {height:.0}");
    html! {
        figure {
            figcaption { (title) }
            svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox=(view_box) {
                title { (title) }
                desc { (description) }
                (content)
            }
        }
    }
}

fn line(class: &str, from: (f64, f64), to: (f64, f64)) -> Markup {
    let ((x1, y1), (x2, y2)) = (from, to);
    html! { path class=(class) d=(format!("M{x1:.1},{y1:.1}L{x2:.1},{y2:.1}")) {} }
}

/// `anchor` is `start`, `middle` or `end`.
fn text(class: &str, anchor: &str, (x, y): (f64, f64), words: &str) -> Markup {
    let (x, y) = (format!("{x:.1}"), format!("{y:.1}"));
    html! { text class=(class) text-anchor=(anchor) x=(x) y=(y) { (words) } }
}

/// The corners of a line, or of an outline.
fn path(corners: impl Iterator<Item = (f64, f64)>) -> String {
    let corners: Vec<String> = corners.map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    format!("M{}", corners.join("L"))
}
