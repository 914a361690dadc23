//! The extension module of the Python package `tandem`: scenarios, engines, outcomes as NumPy
//! arrays, batches of runs, tables of runs, equations, the detector, and advice.
//!
//! The package in `tandem/` is what users see; it documents everything and converts units and
//! frames. This module is private to it. Long work runs on threads of its own without the GIL, and
//! ends when a signal arrives (`interruptible`). The engine `theory`, the detector and the
//! evaluation of an equation at one point do not end early: the signal's exception is raised after
//! them. Results that are arrays go to NumPy without a copy.

mod advice;
mod batch;
mod columns;
mod controller;
mod detector;
mod engines;
mod equations;
mod errors;
mod interruptible;
mod outcome_data;
mod parallel_equations;
mod scenario_file;
mod split_equations;
mod sys;
mod table;
mod values;

use mimalloc::MiMalloc;
use pyo3::prelude::*;

/// Keeps the memory of an outcome that Python has freed for the next run. The allocator of glibc
/// returns it to the kernel, and the page faults of the next run take a tenth of its time.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// The parts of the package that are written in Rust.
#[pymodule]
fn _tandem(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("NUMBERS", outcome::NUMBERS.to_vec())?;
    module.add("CONTROLLERS", engines::controller_names())?;
    module.add("ScenarioError", py.get_type::<errors::ScenarioError>())?;
    module.add("CannotAnswerError", py.get_type::<errors::CannotAnswerError>())?;
    module.add("RunError", py.get_type::<errors::RunError>())?;
    module.add_class::<scenario_file::ScenarioFile>()?;
    module.add_class::<outcome_data::OutcomeData>()?;
    module.add_class::<batch::Cancel>()?;
    module.add_class::<controller::Flow>()?;
    module.add_class::<controller::Event>()?;
    module.add_class::<table::Points>()?;
    module.add_class::<table::TableData>()?;
    module.add_function(wrap_pyfunction!(engines::runs_in_real_time, module)?)?;
    module.add_function(wrap_pyfunction!(values::literals, module)?)?;
    module.add_function(wrap_pyfunction!(values::range_literals, module)?)?;
    module.add_function(wrap_pyfunction!(values::file_text, module)?)?;
    module.add_function(wrap_pyfunction!(values::quantity_text, module)?)?;
    module.add_function(wrap_pyfunction!(batch::run, module)?)?;
    module.add_function(wrap_pyfunction!(batch::play, module)?)?;
    module.add_function(wrap_pyfunction!(outcome_data::page, module)?)?;
    module.add_function(wrap_pyfunction!(outcome_data::table_text, module)?)?;
    module.add_function(wrap_pyfunction!(table::read_part, module)?)?;
    module.add_function(wrap_pyfunction!(detector::trace, module)?)?;
    module.add_function(wrap_pyfunction!(advice::path_advice, module)?)?;
    equations::add_to(module)?;
    split_equations::add_to(module)?;
    parallel_equations::add_to(module)
}
