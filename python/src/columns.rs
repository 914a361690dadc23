//! Columns of a table, as a dict of NumPy arrays (texts: lists).

use numpy::{Element, IntoPyArray as _};
use pyo3::{prelude::*, types::PyDict};

/// Named columns with a row for each of `rows`.
pub(crate) struct Columns<'py, 'a, T> {
    rows: &'a [T],
    columns: Bound<'py, PyDict>,
}

impl<'py, 'a, T> Columns<'py, 'a, T> {
    pub(crate) fn of(py: Python<'py>, rows: &'a [T]) -> Self {
        Columns { rows, columns: PyDict::new(py) }
    }

    /// A column of numbers or truths.
    pub(crate) fn array<E: Element>(self, name: &str, of: impl Fn(&T) -> E) -> PyResult<Self> {
        let values: Vec<E> = self.rows.iter().map(of).collect();
        self.columns.set_item(name, values.into_pyarray(self.columns.py()))?;
        Ok(self)
    }

    /// A column of numbers, NaN where one is missing.
    pub(crate) fn optional(self, name: &str, of: impl Fn(&T) -> Option<f64>) -> PyResult<Self> {
        self.array(name, |row| of(row).unwrap_or(f64::NAN))
    }

    /// A column of texts, `None` where one is missing.
    pub(crate) fn texts(self, name: &str, of: impl Fn(&'a T) -> Option<&'a str>) -> PyResult<Self> {
        self.columns.set_item(name, self.rows.iter().map(of).collect::<Vec<_>>())?;
        Ok(self)
    }

    pub(crate) fn done(self) -> Bound<'py, PyDict> {
        self.columns
    }
}
