//! The engines by their names.

use crate::errors::value_error;
use control::Controller;
use outcome::Engine;
use pyo3::prelude::*;
use scenario::Explicit;
use sim::{ExternalController, Sim};
use std::{path::PathBuf, sync::Arc};

/// The engine of this name. `capture` is the prefix of the lab's capture files; `controllers` are
/// those of the simulator beside Tandem's.
///
/// # Errors
/// `ValueError`: there is no such engine.
pub(crate) fn engine(
    name: &str,
    capture: Option<PathBuf>,
    controllers: Vec<Arc<dyn ExternalController>>,
) -> PyResult<Box<dyn Engine + Send>> {
    let sim = Sim { controllers, ..Sim::default() };
    Ok(match name {
        "sim" => Box::new(sim),
        "theory" => Box::new(theory::Theory),
        "bound" => Box::new(bound::FairShareBound),
        "compose" => Box::new(compose::Compose { sim }),
        "lab" => Box::new(lab::Lab { capture, ..lab::Lab::default() }),
        _ => {
            return Err(value_error(format!(
                "there is no engine {name:?}: it can be \"sim\", \"theory\", \"lab\", \"bound\" or \"compose\""
            )));
        }
    })
}

/// Whether the engine of this name takes the time that it simulates, and needs the machine for
/// itself.
#[pyfunction]
pub(crate) fn runs_in_real_time(name: &str) -> PyResult<bool> {
    Ok(engine(name, None, Vec::new())?.runs_in_real_time())
}

/// The names of the simulator's controllers.
pub(crate) fn controller_names() -> Vec<&'static str> {
    Controller::all().map(Controller::name).chain(Explicit::NAMES).collect()
}
