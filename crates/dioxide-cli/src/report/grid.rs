//! A table before rendering, for the terminal and for HTML pages.

use comfy_table::{CellAlignment, Table, presets};
use dioxide::text::shown;
use std::fmt;

/// Rows of texts, each with the length of the header.
pub struct Grid {
    pub header: Vec<String>,
    pub rows: Vec<Vec<String>>,
    /// For each column, whether it has numbers. Others have words; the first of them identifies the
    /// row.
    pub numbers: Vec<bool>,
}

impl Grid {
    /// `is_number` gets the index of each column.
    pub fn new(
        header: Vec<String>,
        rows: Vec<Vec<String>>,
        is_number: impl Fn(usize) -> bool,
    ) -> Self {
        let numbers = (0..header.len()).map(is_number).collect();
        Self { header, rows, numbers }
    }
}

/// Words to the left, numbers to the right. Names cannot break a line.
impl fmt::Display for Grid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        if self.header.iter().any(|name| !name.is_empty()) {
            table.set_header(self.header.iter().map(shown));
        }
        for row in &self.rows {
            table.add_row(row.iter().map(shown));
        }
        for column in table.column_iter_mut() {
            let is_number = self.numbers[column.index];
            column.set_cell_alignment(if is_number {
                CellAlignment::Right
            } else {
                CellAlignment::Left
            });
        }
        f.write_str(&table.trim_fmt())
    }
}
