//! A grid as text, in thin lines and without colours, so that it reads the same in a pipe, a log and a bug report.

use crate::grid::Grid;
use comfy_table::{Cell, CellAlignment, ContentArrangement, LineStyle, Table, TableStyle};

const THIN: TableStyle = TableStyle::new()
    .top_border(LineStyle::none().fill('─').junction('─'))
    .header_separator(LineStyle::none().fill('─').junction('─'))
    .bottom_border(LineStyle::none().fill('─').junction('─'));

/// The grid, with a newline at its end; empty when it has no rows.
pub(crate) fn render(grid: &Grid) -> String {
    if grid.rows() == 0 {
        return String::new();
    }
    let mut table = Table::new();
    table.load_style(THIN);
    table.set_header(grid.columns.iter().map(|column| match column.unit.as_str() {
        "" => column.name.to_string(),
        unit => format!("{}\n{unit}", column.name),
    }));
    for row in 0..grid.rows() {
        table.add_row(grid.columns.iter().map(|column| Cell::new(&column.cells[row])));
    }
    for (drawn, column) in table.column_iter_mut().zip(&grid.columns) {
        drawn.set_padding((1, 0));
        drawn.set_cell_alignment(if column.words { CellAlignment::Left } else { CellAlignment::Right });
    }
    table.lines().map(|line| line.trim_end().to_string() + "\n").collect()
}

/// Words in columns, wrapped to `width` characters.
pub(crate) fn words(header: &[&str], rows: &[Vec<String>], width: u16) -> String {
    let mut table = Table::new();
    table.load_style(THIN).set_content_arrangement(ContentArrangement::Dynamic).set_width(width).set_header(header);
    table.add_rows(rows);
    table.lines().map(|line| line.trim_end().to_string() + "\n").collect()
}
