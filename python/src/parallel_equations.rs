//! The CAN chain on arrays: files over several networks.

use crate::{equations::Numbers, errors::value_error, interruptible::interruptible};
use numpy::{IntoPyArray as _, PyArray2, PyArrayMethods as _};
use pyo3::{prelude::*, types::PyDict};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};
use theory::{Can, CanMeans, TheoryError};

/// Means of each class (columns), for each element of the arrays (rows): `jobs` and `sojourn_s`,
/// each with its error. `arrivals` and `sizes` have an array for each class, the foreground's
/// first; `speeds` one for each network.
#[pyfunction]
fn can<'py>(
    py: Python<'py>,
    arrivals: Vec<Numbers<'py>>,
    sizes: Vec<Numbers<'py>>,
    speeds: Vec<Numbers<'py>>,
    weight: Numbers<'py>,
) -> PyResult<Bound<'py, PyDict>> {
    let slices =
        |arrays: &'_ [Numbers<'py>]| arrays.iter().map(|array| array.as_slice().map(<[f64]>::to_vec)).collect::<Result<Vec<_>, _>>();
    let (arrivals, sizes, speeds) = (slices(&arrivals)?, slices(&sizes)?, slices(&speeds)?);
    let weight = weight.as_slice()?.to_vec();
    if arrivals.iter().chain(&sizes).chain(&speeds).any(|values| values.len() != weight.len()) {
        return Err(value_error("the arrays differ in length"));
    }
    let classes = arrivals.len();
    let row = |arrays: &[Vec<f64>], index: usize| arrays.iter().map(|values| values[index]).collect::<Vec<f64>>();
    let solve = |index: usize| {
        let can = Can::with(&row(&arrivals, index), &row(&sizes, index), &row(&speeds, index))?;
        Ok(can.with_weight(weight[index])?.solve())
    };
    let cancelled = Arc::new(AtomicBool::new(false));
    let solved: Result<Vec<CanMeans>, TheoryError> =
        interruptible(py, &cancelled, || (0..weight.len()).take_while(|_| !cancelled.load(Relaxed)).map(solve).collect())?;
    let solved = solved.map_err(value_error)?;
    let matrix = |of: &dyn Fn(&CanMeans, usize) -> f64| -> PyResult<Bound<'py, PyArray2<f64>>> {
        let values: Vec<f64> = solved.iter().flat_map(|means| (0..classes).map(move |class| of(means, class))).collect();
        values.into_pyarray(py).reshape([solved.len(), classes])
    };
    let found = PyDict::new(py);
    found.set_item("jobs", matrix(&|means, class| means.jobs[class].value)?)?;
    found.set_item("jobs_error", matrix(&|means, class| means.jobs[class].error)?)?;
    found.set_item("sojourn_s", matrix(&|means, class| means.sojourn_s[class].map_or(f64::NAN, |sojourn| sojourn.value))?)?;
    found.set_item("sojourn_s_error", matrix(&|means, class| means.sojourn_s[class].map_or(f64::NAN, |sojourn| sojourn.error))?)?;
    Ok(found)
}

/// Adds the function of this file to the module.
pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(can, module)?)
}
