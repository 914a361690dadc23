//! The engines by their names.

use crate::errors::value_error;
use outcome::Engine;
use pyo3::prelude::*;
use std::path::PathBuf;

/// The engine of this name. `capture` is the prefix of the lab's capture files.
///
/// # Errors
/// `ValueError`: there is no such engine.
pub(crate) fn engine(name: &str, capture: Option<PathBuf>) -> PyResult<Box<dyn Engine + Send>> {
    Ok(match name {
        "sim" => Box::new(sim::Sim::default()),
        "theory" => Box::new(theory::Theory),
        "bound" => Box::new(bound::FairShareBound),
        "compose" => Box::new(compose::Compose::default()),
        "lab" => Box::new(lab::Lab { capture, ..lab::Lab::default() }),
        _ => {
            return Err(value_error(format!(
                "there is no engine {name:?}: it can be \"sim\", \"theory\", \"lab\", \"bound\" or \"compose\""
            )));
        }
    })
}
