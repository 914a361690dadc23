//! A table of outcomes before it is drawn: columns of cells. `results` decides which columns there
//! are, `terminal` and `page` draw them.

use crate::{
    group::SeedNumber,
    number_format::{NONE, QuantityKind, Scale, spread, three},
    terminal::{Alignment, TextColumn, TextStyle, TextTable},
};

/// A column: its head, and a cell for each row.
#[derive(Debug)]
pub(crate) struct Column {
    pub(crate) name: String,
    /// The unit of all cells; empty if they have none or each has its own.
    pub(crate) unit: String,
    /// Words are aligned left, numbers right.
    pub(crate) words: bool,
    /// Order in which columns are left out of a narrow terminal, the highest first; absent: never.
    drop_rank: Option<u8>,
    pub(crate) cells: Vec<String>,
}

impl Column {
    /// Makes it a column that can be left out of a narrow terminal.
    pub(crate) fn droppable(&mut self, rank: u8) {
        self.drop_rank = Some(rank);
    }
}

/// Columns with the same number of cells.
#[derive(Debug, Default)]
pub(crate) struct Grid {
    pub(crate) columns: Vec<Column>,
}

impl Grid {
    pub(crate) fn rows(&self) -> usize {
        self.columns.first().map_or(0, |column| column.cells.len())
    }

    fn add(&mut self, column: Column) -> &mut Column {
        self.columns.push(column);
        let last = self.columns.len() - 1;
        &mut self.columns[last]
    }

    /// Adds a column of words.
    pub(crate) fn words(&mut self, name: impl Into<String>, cells: Vec<String>) -> &mut Column {
        self.add(Column { name: name.into(), unit: String::new(), words: true, drop_rank: None, cells })
    }

    /// Adds a column whose cells are formatted already.
    pub(crate) fn written(&mut self, name: &str, unit: &str, cells: Vec<String>) -> &mut Column {
        self.add(Column { name: name.into(), unit: unit.into(), words: false, drop_rank: None, cells })
    }

    /// Adds a column of numbers of one kind, in the unit that suits all of them.
    pub(crate) fn numbers(&mut self, name: &str, kind: QuantityKind, numbers: &[Option<SeedNumber>]) -> &mut Column {
        let scale = kind.scale(numbers.iter().flatten().map(|number| number.mean));
        self.written(name, scale.unit, numbers.iter().map(|number| written(*number, scale)).collect())
    }

    /// Adds a column of numbers without intervals, in a unit chosen for several columns together.
    pub(crate) fn scaled(&mut self, name: &str, scale: Scale, values: &[Option<f64>]) -> &mut Column {
        let cell = |value: &Option<f64>| value.map_or(NONE.into(), |value| three(value / scale.per));
        self.written(name, scale.unit, values.iter().map(cell).collect())
    }

    /// The grid as text for a terminal of `width` characters; empty if it has no rows.
    pub(crate) fn render(&self, width: Option<usize>) -> String {
        if self.rows() == 0 {
            return String::new();
        }
        let column = |column: &Column| {
            let head = if column.unit.is_empty() { column.name.clone() } else { format!("{}\n{}", column.name, column.unit) };
            let drawn = TextColumn::new(head, if column.words { Alignment::Left } else { Alignment::Right });
            column.drop_rank.into_iter().fold(drawn, TextColumn::droppable)
        };
        let mut table = TextTable::new(TextStyle::Grid, self.columns.iter().map(column).collect());
        for row in 0..self.rows() {
            table.push(self.columns.iter().map(|column| column.cells[row].clone()).collect());
        }
        table.render(width)
    }
}

/// A number as a cell shows it.
pub(crate) fn written(number: Option<SeedNumber>, scale: Scale) -> String {
    number.map_or(NONE.into(), |number| spread(number.mean / scale.per, number.half.map(|half| half / scale.per)))
}
