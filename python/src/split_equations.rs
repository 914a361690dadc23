//! The equations of a split connection on arrays.

use crate::{
    equations::{Found, Numbers, each, each_on_all_cores, losses},
    errors::value_error,
};
use pyo3::{prelude::*, types::PyDict};
use theory::{Aimd, LossBasis, TandemModel, TheoryError};

/// The parameters of split connections that are arrays.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Paths<'py> {
    rtt_1: Numbers<'py>,
    loss_1: Numbers<'py>,
    rtt_2: Numbers<'py>,
    loss_2: Numbers<'py>,
    buffer: Numbers<'py>,
    capacity_1: Numbers<'py>,
    capacity_2: Numbers<'py>,
}

impl<'py> Paths<'py> {
    fn arrays(self) -> [Numbers<'py>; 7] {
        [self.rtt_1, self.loss_1, self.rtt_2, self.loss_2, self.buffer, self.capacity_1, self.capacity_2]
    }
}

/// What the losses of a split connection are counted by.
#[derive(Clone, Copy, FromPyObject)]
#[pyo3(from_item_all)]
struct LossKind {
    per_packet_1: bool,
    per_packet_2: bool,
    by_sending: bool,
}

impl LossKind {
    fn model(self, [rtt_1, loss_1, rtt_2, loss_2, buffer, capacity_1, capacity_2]: [f64; 7]) -> Result<TandemModel, TheoryError> {
        let first = Aimd::new(rtt_1, losses(loss_1, self.per_packet_1))?;
        let second = Aimd::new(rtt_2, losses(loss_2, self.per_packet_2))?;
        let model = TandemModel::new(first, second).with_loss_basis(if self.by_sending { LossBasis::Sending } else { LossBasis::Window });
        // Infinity stands for no bound, which is how a model begins.
        let model = if buffer == f64::INFINITY { model } else { model.with_buffer(buffer)? };
        let bound = |capacity: f64| if capacity == f64::INFINITY { f64::MAX } else { capacity };
        if capacity_1 == f64::INFINITY && capacity_2 == f64::INFINITY {
            Ok(model)
        } else {
            model.with_capacities(bound(capacity_1), bound(capacity_2))
        }
    }
}

fn named<'py, const N: usize>(py: Python<'py>, names: [&str; N], found: [Found<'py>; N]) -> PyResult<Bound<'py, PyDict>> {
    let columns = PyDict::new(py);
    for (name, array) in names.into_iter().zip(found) {
        columns.set_item(name, array)?;
    }
    Ok(columns)
}

#[pyfunction]
fn split_load<'py>(py: Python<'py>, paths: Paths<'py>, kind: LossKind) -> PyResult<Found<'py>> {
    each(py, paths.arrays(), move |row| Ok([kind.model(row)?.rho()])).map(|[found]| found)
}

/// The stationary state of each connection, from a trajectory with so many losses.
#[pyfunction]
fn split_rates<'py>(py: Python<'py>, paths: Paths<'py>, kind: LossKind, seed: u64, losses: u64) -> PyResult<Bound<'py, PyDict>> {
    if losses < 1000 {
        return Err(value_error(format!("{losses} losses are too few: at least 1000 are needed")));
    }
    let of = move |row| {
        let found = kind.model(row)?.estimate(seed, losses)?;
        let [free, starvation, backpressure] = found.phases.map(|phase| phase.mean);
        Ok([
            found.rate.mean,
            found.rate.half,
            free,
            starvation,
            backpressure,
            found.queue.mean,
            found.queue.half,
            found.delay_s.mean,
            found.delay_s.half,
        ])
    };
    let names =
        ["rate_pps", "rate_pps_ci95", "free", "starvation", "backpressure", "queue_pkt", "queue_pkt_ci95", "delay_s", "delay_s_ci95"];
    named(py, names, each_on_all_cores(py, paths.arrays(), of)?)
}

/// Throughput and buffer content of each connection, from the stationary distribution on a grid.
#[pyfunction]
fn split_means<'py>(py: Python<'py>, paths: Paths<'py>, kind: LossKind, cells: usize) -> PyResult<Bound<'py, PyDict>> {
    let of = move |row| kind.model(row)?.stationary_means(cells).map(|means| [means.rate, means.queue]);
    named(py, ["rate_pps", "queue_pkt"], each_on_all_cores(py, paths.arrays(), of)?)
}

/// The buffer that leaves this share of the throughput.
#[pyfunction]
fn sufficient_buffer<'py>(
    py: Python<'py>,
    paths: Paths<'py>,
    kind: LossKind,
    share: f64,
    seed: u64,
    losses: u64,
) -> PyResult<Bound<'py, PyDict>> {
    let of = move |row| {
        let found = kind.model(row)?.sufficient_buffer(share, seed, losses)?;
        Ok([found.packets.mean, found.packets.half, found.waits_s])
    };
    named(py, ["buffer_pkt", "buffer_pkt_ci95", "wait_s"], each_on_all_cores(py, paths.arrays(), of)?)
}

/// Adds the functions of this file to the module.
pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(split_load, module)?)?;
    module.add_function(wrap_pyfunction!(split_rates, module)?)?;
    module.add_function(wrap_pyfunction!(split_means, module)?)?;
    module.add_function(wrap_pyfunction!(sufficient_buffer, module)?)
}
