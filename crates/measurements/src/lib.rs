//! Results of measurements as samples, not as text: the files below `benchmarks/`, and the tables
//! that are made of them, for printing and for the pages of the documentation.
//!
//! A program declares a [`SampleTable`] with its columns, adds the number of each round, and leaves
//! the rest to [`measure`]: it prints the tables and writes the [`MeasurementRecord`]. [`render`]
//! fills a page.

mod document;
mod machine;
mod record;
mod table;

pub use document::render;
pub use machine::machine;
pub use record::{MeasurementRecord, measure};
pub use table::{SampleCell, SampleColumn, SampleRatio, SampleRow, SampleStatistic, SampleTable, median};
