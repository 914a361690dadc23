//! Curves of a computed table.

use super::table::ComputedTable;
use serde::{Deserialize, Serialize};

/// A computed table and its plots.
#[derive(Debug, Clone, PartialEq)]
pub struct ComputedFigure {
    /// The table.
    pub table: ComputedTable,
    /// Its plots; empty if it has none.
    pub plots: Vec<ComputedPlot>,
}

/// A plot of curves. Both axes are linear: logarithms are taken beforehand.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ComputedPlot {
    /// What it shows.
    pub title: String,
    /// The horizontal axis.
    pub x: String,
    /// The vertical axis.
    pub y: String,
    /// The curves.
    pub lines: Vec<ComputedLine>,
}

/// A curve.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ComputedLine {
    /// Its name.
    pub name: String,
    /// The number of its colour: an interval has that of its curve.
    pub colour: usize,
    /// Whether it is an interval's end, which is drawn dashed and not listed.
    pub dashed: bool,
    /// Points (x, y), ascending in x.
    pub points: Vec<(f64, f64)>,
}

impl ComputedLine {
    /// Keeps at most `most` points, evenly chosen, and only finite ones.
    pub(crate) fn thin_out(&mut self, most: usize) {
        self.points.retain(|(x, y)| x.is_finite() && y.is_finite());
        let step = self.points.len().div_ceil(most).max(1);
        self.points = std::mem::take(&mut self.points).into_iter().step_by(step).collect();
    }
}

impl ComputedPlot {
    pub(super) fn new(title: impl Into<String>, x: &str, y: &str) -> Self {
        ComputedPlot { title: title.into(), x: x.into(), y: y.into(), lines: Vec::new() }
    }

    /// Adds a curve in the next colour.
    pub(super) fn add(&mut self, name: impl Into<String>, points: Vec<(f64, f64)>) {
        let colour = self.lines.iter().map(|line| line.colour + 1).max().unwrap_or(0);
        self.lines.push(ComputedLine { name: name.into(), colour, dashed: false, points });
    }

    /// Adds a curve with its interval: (x, mean, half width).
    pub(super) fn add_with_interval(&mut self, name: &str, points: &[(f64, f64, f64)]) {
        self.add(name, points.iter().map(|(x, mean, _)| (*x, *mean)).collect());
        let colour = self.lines[self.lines.len() - 1].colour;
        for side in [-1.0, 1.0] {
            let points = points.iter().map(|(x, mean, half)| (*x, mean + side * half)).collect();
            self.lines.push(ComputedLine { name: format!("{name}, 95 %"), colour, dashed: true, points });
        }
    }
}

impl From<ComputedTable> for ComputedFigure {
    fn from(table: ComputedTable) -> Self {
        ComputedFigure { table, plots: Vec::new() }
    }
}
