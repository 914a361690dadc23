//! A table before it is drawn: columns of cells. Which columns is up to `results`; how they look, to `terminal` and `page`.

use crate::group::Number;
use crate::human::{Kind, NONE, Scale, spread, three};

/// A column: its head, and a cell for each row.
#[derive(Debug)]
pub(crate) struct Column {
    pub(crate) name: &'static str,
    /// Of all cells; empty when they have none, or each says its own.
    pub(crate) unit: String,
    /// Words stand left, numbers right.
    pub(crate) words: bool,
    pub(crate) cells: Vec<String>,
}

/// Columns with as many cells each.
#[derive(Debug, Default)]
pub(crate) struct Grid {
    pub(crate) columns: Vec<Column>,
}

impl Grid {
    pub(crate) fn rows(&self) -> usize {
        self.columns.first().map_or(0, |column| column.cells.len())
    }

    /// Adds a column of words.
    pub(crate) fn words(&mut self, name: &'static str, cells: Vec<String>) {
        self.columns.push(Column { name, unit: String::new(), words: true, cells });
    }

    /// Adds a column whose cells are written already.
    pub(crate) fn written(&mut self, name: &'static str, unit: &str, cells: Vec<String>) {
        self.columns.push(Column { name, unit: unit.into(), words: false, cells });
    }

    /// Adds a column of numbers of one kind, in the unit that suits them all.
    pub(crate) fn numbers(&mut self, name: &'static str, kind: Kind, numbers: &[Option<Number>]) {
        let scale = kind.scale(numbers.iter().flatten().map(|number| number.mean));
        self.written(name, scale.unit, numbers.iter().map(|number| written(*number, scale)).collect());
    }

    /// The same without intervals, in a unit chosen for several columns together.
    pub(crate) fn scaled(&mut self, name: &'static str, scale: Scale, values: &[Option<f64>]) {
        let cell = |value: &Option<f64>| value.map_or(NONE.into(), |value| three(value / scale.per));
        self.written(name, scale.unit, values.iter().map(cell).collect());
    }
}

/// A number as a cell says it.
pub(crate) fn written(number: Option<Number>, scale: Scale) -> String {
    number.map_or(NONE.into(), |number| spread(number.mean / scale.per, number.half.map(|half| half / scale.per)))
}
