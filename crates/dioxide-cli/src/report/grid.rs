//! A table before rendering, for the terminal and for HTML pages.

use crate::output::wrapping;
use comfy_table::{CellAlignment, Table, presets};
use dioxide::text::shown;
use std::fmt;
use textwrap::core::display_width;

/// The space between two columns.
const GAP: usize = 2;
/// Words are wrapped no narrower.
const WRAPPED_MIN: usize = 20;

/// Rows of texts, each with the length of the header.
pub struct Grid {
    pub header: Vec<String>,
    pub rows: Vec<Vec<String>>,
    /// For each column, whether it has numbers. Others have words; the first of them identifies the
    /// row.
    pub numbers: Vec<bool>,
    /// Columns that a narrow page may leave out, the most important first.
    optional: Vec<usize>,
}

impl Grid {
    /// `is_number` gets the index of each column.
    pub fn new(
        header: Vec<String>,
        rows: Vec<Vec<String>>,
        is_number: impl Fn(usize) -> bool,
    ) -> Self {
        let numbers = (0..header.len()).map(is_number).collect();
        Self { header, rows, numbers, optional: Vec::new() }
    }

    /// A narrow page may leave out these columns; the first of them stay longest.
    pub fn with_optional(self, optional: Vec<usize>) -> Self {
        Self { optional, ..self }
    }

    /// The columns that fit into `width`. None if the necessary ones do not.
    fn fitting(&self, width: usize) -> Option<Vec<usize>> {
        let taken = |column: &usize| self.least_width(*column) + GAP;
        let mut columns: Vec<usize> =
            (0..self.header.len()).filter(|column| !self.optional.contains(column)).collect();
        let mut used: usize = columns.iter().map(taken).sum();
        if used > width + 1 {
            return None;
        }
        for column in &self.optional {
            if used + taken(column) <= width + 1 {
                columns.push(*column);
                used += taken(column);
            }
        }
        columns.sort_unstable();
        Some(columns)
    }

    /// As they are shown.
    fn texts(&self, column: usize) -> impl Iterator<Item = String> {
        let texts = [&self.header].into_iter().chain(&self.rows);
        texts.map(move |cells| shown(&cells[column]).to_string())
    }

    /// Of the longest text.
    fn full_width(&self, column: usize) -> usize {
        self.texts(column).map(|text| display_width(&text)).max().unwrap_or(0)
    }

    /// Texts may be wrapped between words, except in the first column.
    fn least_width(&self, column: usize) -> usize {
        if column == 0 || self.numbers[column] {
            return self.full_width(column);
        }
        let longest_word = |text: &str| {
            let words = textwrap::wrap(text, wrapping(1));
            words.iter().map(|word| display_width(word)).max().unwrap_or(0)
        };
        let word = self.texts(column).map(|text| longest_word(&text)).max().unwrap_or(0);
        self.full_width(column).min(word.max(WRAPPED_MIN))
    }

    /// Of these columns, which fit. The widest words are wrapped.
    fn widths(&self, columns: &[usize], width: usize) -> Vec<usize> {
        let mut widths: Vec<usize> = columns.iter().map(|it| self.full_width(*it)).collect();
        while widths.iter().map(|it| it + GAP).sum::<usize>() > width + 1 {
            let wider = widths.iter_mut().zip(columns);
            let wider = wider.filter(|(width, column)| **width > self.least_width(**column));
            let Some((widest, _)) = wider.max_by_key(|(width, _)| **width) else { break };
            *widest -= 1;
        }
        widths
    }

    /// These columns, in lines. `widths` limits them.
    fn lines(&self, columns: &[usize], widths: Option<&[usize]>) -> String {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        let cells = |cells: &[String]| {
            let cell = |(nth, column): (usize, &usize)| {
                let text = shown(&cells[*column]).to_string();
                widths.map_or(text.clone(), |widths| textwrap::fill(&text, wrapping(widths[nth])))
            };
            columns.iter().enumerate().map(cell).collect::<Vec<_>>()
        };
        if self.header.iter().any(|name| !name.is_empty()) {
            table.set_header(cells(&self.header));
        }
        for row in &self.rows {
            table.add_row(cells(row));
        }
        for column in table.column_iter_mut() {
            let is_number = self.numbers[columns[column.index]];
            column.set_cell_alignment(if is_number {
                CellAlignment::Right
            } else {
                CellAlignment::Left
            });
        }
        table.trim_fmt()
    }

    /// The table, and the names of the columns that are not in it.
    fn part(&self, columns: &[usize], width: usize) -> String {
        let table = self.lines(columns, Some(&self.widths(columns, width)));
        let absent = (0..self.header.len()).filter(|column| !columns.contains(column));
        let names: Vec<_> = absent.map(|column| self.header[column].as_str()).collect();
        if names.is_empty() {
            return table;
        }
        let rest = format!(" (--wide also shows: {})", names.join(", "));
        let options = wrapping(width).subsequent_indent("  ");
        format!("{table}\n{}", textwrap::fill(&rest, options))
    }

    /// A block for each row, with a line for each column.
    fn blocks(&self, width: usize) -> String {
        let names = self.header.iter().map(|name| display_width(name)).max().unwrap_or(0);
        // Long names, as of a matrix, get no column of their own.
        let names = names.min(width / 3);
        let cell = |name: &String, text: &String| {
            let indent = " ".repeat(1 + names + if names > 0 { GAP } else { 0 });
            let options = wrapping(width).initial_indent(" ").subsequent_indent(&indent);
            textwrap::fill(&format!("{name:names$}  {}", shown(text)), options)
        };
        let block = |row: &Vec<String>| {
            let cells = self.header.iter().zip(row).filter(|(_, text)| !text.is_empty());
            cells.map(|(name, text)| cell(name, text)).collect::<Vec<_>>().join("\n")
        };
        self.rows.iter().map(block).collect::<Vec<_>>().join("\n\n")
    }
}

/// Words to the left, numbers to the right. Names cannot break a line. No line is longer than the
/// width, if there is one: `{grid:width$}`.
impl fmt::Display for Grid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match f.width() {
            None | Some(0) => self.lines(&Vec::from_iter(0..self.header.len()), None),
            Some(width) => match self.fitting(width) {
                Some(columns) => self.part(&columns, width),
                None => self.blocks(width),
            },
        };
        f.write_str(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid() -> Grid {
        let texts = |texts: [&str; 4]| texts.map(str::to_owned).to_vec();
        let rows = vec![
            texts(["kernel", "100", "a long remark on the row", "7"]),
            texts(["dioxide", "1000", "-", "8"]),
        ];
        Grid::new(texts(["path", "iops", "remark", "extents"]), rows, |column| {
            [1, 3].contains(&column)
        })
    }

    #[test]
    fn columns_that_fit_are_shown() {
        let all = " path     iops  remark                    extents";
        assert_eq!(grid().to_string().lines().next(), Some(all));
        let grid = grid().with_optional(vec![2, 3]);
        assert_eq!(format!("{grid:49}").lines().next(), Some(all), "exactly its width");
        assert_eq!(
            format!("{grid:44}"),
            " path     iops  remark\n kernel    100  a long remark on the row\n dioxide  1000  -\n \
             (--wide also shows: extents)"
        );
        assert_eq!(
            format!("{grid:30}").lines().next(),
            Some(" path     iops  extents"),
            "a less important one, if it fits"
        );
        assert_eq!(format!("{grid:0}"), grid.to_string());
    }

    #[test]
    fn long_words_are_wrapped_first() {
        let grid = grid();
        assert_eq!(
            format!("{grid:46}"),
            " path     iops  remark                extents\n \
             kernel    100  a long remark on the        7\n                row\n \
             dioxide  1000  -                           8"
        );
    }

    #[test]
    fn a_row_that_does_not_fit_is_a_block() {
        let grid = grid();
        assert_eq!(
            format!("{grid:26}"),
            " path     kernel\n iops     100\n remark   a long remark on\n          the row\n \
             extents  7\n\n path     dioxide\n iops     1000\n remark   -\n extents  8"
        );
    }

    /// The defect: a narrow column truncated a path.
    #[test]
    fn a_path_was_truncated() {
        let path = "/sys/kernel/queue-of-a-device";
        let cells = |name: &str| vec![name.to_owned(), format!("it is in {path}"), "7".to_owned()];
        let header = ["name", "remark", "count"].map(String::from);
        let grid = Grid::new(header.into(), vec![cells("one"), cells("two")], |column| column == 2);
        for width in 20..60 {
            assert_eq!(format!("{grid:width$}").matches(path).count(), 2, "{grid:width$}");
        }
    }

    #[test]
    fn no_line_is_wider_than_the_page() {
        for grid in [grid(), grid().with_optional(vec![2, 3])] {
            for width in 20..60 {
                let text = format!("{grid:width$}");
                assert!(text.lines().all(|line| display_width(line) <= width), "{width}\n{text}");
                assert!(text.contains("1000") && text.contains("kernel"), "{text}");
            }
        }
    }
}
