//! Closed equations on arrays: one connection, slow start, the score, a wireless network; and what
//! applies functions to arrays.

use crate::errors::value_error;
use numpy::{IntoPyArray as _, PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;
use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    thread,
};
use theory::{Aimd, BackoffModel, Downstream, LossRate, SlowStart, TheoryError, Wlan};
use units::Span;

/// An array of numbers from Python.
pub(crate) type Numbers<'py> = PyReadonlyArray1<'py, f64>;
/// An array of numbers for Python.
pub(crate) type Found<'py> = Bound<'py, PyArray1<f64>>;

/// The elements of arrays of one length.
fn slices<'a, const N: usize>(arrays: &'a [Numbers<'_>; N]) -> PyResult<[&'a [f64]; N]> {
    let mut found: [&[f64]; N] = [&[]; N];
    for (slice, array) in found.iter_mut().zip(arrays) {
        *slice = array.as_slice()?;
    }
    match found.iter().all(|slice| slice.len() == found[0].len()) {
        true => Ok(found),
        false => Err(value_error("the arrays differ in length")),
    }
}

/// The results as an array for each, from a row for each element.
fn transposed<'py, const N: usize>(py: Python<'py>, rows: &[[f64; N]]) -> [Found<'py>; N] {
    std::array::from_fn(|column| rows.iter().map(|row| row[column]).collect::<Vec<f64>>().into_pyarray(py))
}

/// Applies `of` to the elements of arrays of one length, without the GIL.
pub(crate) fn each<'py, const N: usize, const M: usize>(
    py: Python<'py>,
    arrays: [Numbers<'py>; N],
    of: impl Fn([f64; N]) -> Result<[f64; M], TheoryError> + Sync,
) -> PyResult<[Found<'py>; M]> {
    let slices = slices(&arrays)?;
    let at = |index: usize| std::array::from_fn(|array| slices[array][index]);
    let rows: Result<Vec<[f64; M]>, TheoryError> = py.detach(|| (0..slices[0].len()).map(|index| of(at(index))).collect());
    Ok(transposed(py, &rows.map_err(value_error)?))
}

/// As [`each`], for functions that take long: on all cores, and a signal ends it.
pub(crate) fn each_on_all_cores<'py, const N: usize, const M: usize>(
    py: Python<'py>,
    arrays: [Numbers<'py>; N],
    of: impl Fn([f64; N]) -> Result<[f64; M], TheoryError> + Sync,
) -> PyResult<[Found<'py>; M]> {
    let slices = slices(&arrays)?;
    let count = slices[0].len();
    let cancelled = Arc::new(AtomicBool::new(false));
    let (next, rows) = (AtomicUsize::new(0), Mutex::new(vec![None; count]));
    let work = || {
        loop {
            let index = next.fetch_add(1, Relaxed);
            if index >= count || cancelled.load(Relaxed) {
                return;
            }
            let row = of(std::array::from_fn(|array| slices[array][index]));
            cancelled.fetch_or(row.is_err(), Relaxed);
            rows.lock().unwrap_or_else(PoisonError::into_inner)[index] = Some(row);
        }
    };
    crate::interruptible::interruptible(py, &cancelled, || {
        let threads = thread::available_parallelism().map_or(1, usize::from).min(count);
        thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    })?;
    let rows: Vec<Option<Result<[f64; M], TheoryError>>> = rows.into_inner().unwrap_or_else(PoisonError::into_inner);
    // Rows are missing only after an error, and then there is no result.
    let found: Result<Vec<[f64; M]>, TheoryError> = rows.into_iter().flatten().collect();
    Ok(transposed(py, &found.map_err(value_error)?))
}

/// A parameter that is a number from 0 on.
fn from_zero(what: &str, value: f64) -> Result<f64, TheoryError> {
    let is_meant = value.is_finite() && value >= 0.0;
    if is_meant { Ok(value) } else { Err(TheoryError::Outside { what: what.into(), value, bounds: "a number from 0 on" }) }
}

/// A parameter that is a number above 0.
fn positive(what: &'static str, value: f64) -> Result<f64, TheoryError> {
    let is_meant = value.is_finite() && value > 0.0;
    if is_meant { Ok(value) } else { Err(TheoryError::NotPositive { what, value }) }
}

/// The loss process of a connection.
pub(crate) fn losses(rate: f64, per_packet: bool) -> LossRate {
    if per_packet { LossRate::PerPacket(rate) } else { LossRate::PerSecond(rate) }
}

#[pyfunction]
fn aimd_moment<'py>(py: Python<'py>, rtt: Numbers<'py>, loss: Numbers<'py>, per_packet: bool, order: u32) -> PyResult<Found<'py>> {
    let of = move |[rtt, loss]: [f64; 2]| Ok([Aimd::new(rtt, losses(loss, per_packet))?.moment(order)]);
    each(py, [rtt, loss], of).map(|[found]| found)
}

#[pyfunction]
fn aimd_loss_probability<'py>(py: Python<'py>, rtt: Numbers<'py>, loss: Numbers<'py>, per_packet: bool) -> PyResult<Found<'py>> {
    let of = move |[rtt, loss]: [f64; 2]| Ok([Aimd::new(rtt, losses(loss, per_packet))?.loss_probability()]);
    each(py, [rtt, loss], of).map(|[found]| found)
}

#[pyfunction]
fn aimd_density<'py>(py: Python<'py>, x: Numbers<'py>, rtt: Numbers<'py>, loss: Numbers<'py>, per_packet: bool) -> PyResult<Found<'py>> {
    let of = move |[x, rtt, loss]: [f64; 3]| Ok([Aimd::new(rtt, losses(loss, per_packet))?.density(from_zero("the rate", x)?)]);
    each(py, [x, rtt, loss], of).map(|[found]| found)
}

#[pyfunction]
fn aimd_survival<'py>(py: Python<'py>, x: Numbers<'py>, rtt: Numbers<'py>, loss: Numbers<'py>, per_packet: bool) -> PyResult<Found<'py>> {
    let of = move |[x, rtt, loss]: [f64; 3]| Ok([Aimd::new(rtt, losses(loss, per_packet))?.survival(from_zero("the rate", x)?)]);
    each(py, [x, rtt, loss], of).map(|[found]| found)
}

/// Times of slow start, s, by their names; `gain` has no unit, `bytes_before` is in bytes.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "called from one place")]
fn slow_start<'py>(
    py: Python<'py>,
    what: &str,
    upstream: Numbers<'py>,
    downstream: Numbers<'py>,
    rate: Numbers<'py>,
    packet: Numbers<'py>,
    growth: Numbers<'py>,
    size: Numbers<'py>,
    full: bool,
) -> PyResult<Found<'py>> {
    let state = if full { Downstream::Full } else { Downstream::SlowStart };
    let number: fn(&SlowStart, Downstream, f64) -> f64 = match what {
        "regular" => |path, _, _| path.regular_s(),
        "split" => |path, state, _| path.split_s(state),
        "bytes_before" => |path, _, _| path.bytes_before(),
        "transfer_regular" => |path, _, bytes| path.transfer_regular_s(bytes),
        "transfer_split" => |path, state, bytes| path.transfer_split_s(bytes, state),
        "gain" => |path, state, bytes| path.gain(bytes, state),
        _ => return Err(value_error(format!("slow start has no {what:?}"))),
    };
    let of = move |[upstream, downstream, rate, packet, growth, size]: [f64; 6]| {
        let path = SlowStart::new(upstream, downstream, rate, packet)?.with_growth(growth)?;
        Ok([number(&path, state, from_zero("the size of the file", size)?)])
    };
    each(py, [upstream, downstream, rate, packet, growth, size], of).map(|[found]| found)
}

#[pyfunction]
fn score<'py>(py: Python<'py>, queued: Numbers<'py>, rate: Numbers<'py>, srtt: Numbers<'py>) -> PyResult<Found<'py>> {
    let of = |[queued, rate, srtt]: [f64; 3]| {
        let queued = from_zero("the queued data", queued)? as u64;
        let srtt = Span::from_secs_f64(from_zero("the round-trip time", srtt)?);
        Ok([bond::score(queued, from_zero("the throughput", rate)?, srtt)])
    };
    each(py, [queued, rate, srtt], of).map(|[found]| found)
}

/// The next estimate of the throughput; a `last` of NaN: there is none yet.
#[pyfunction]
fn smoothed<'py>(py: Python<'py>, last: Numbers<'py>, measured: Numbers<'py>, alpha: f64) -> PyResult<Found<'py>> {
    if !(0.0..1.0).contains(&alpha) {
        return Err(value_error(format!("alpha is {alpha}, and must be at least 0 and below 1")));
    }
    let smoothing = bond::Smoothing { alpha, ..bond::Smoothing::default() };
    let of = move |[last, measured]: [f64; 2]| {
        let last = Some(last).filter(|last| !last.is_nan()).map(|last| from_zero("the estimate before", last)).transpose()?;
        Ok([smoothing.next(last, from_zero("the measured throughput", measured)?)])
    };
    each(py, [last, measured], of).map(|[found]| found)
}

#[pyfunction]
fn wlan_throughput<'py>(py: Python<'py>, segments: Numbers<'py>, rate: Numbers<'py>, all_backoffs: bool) -> PyResult<Found<'py>> {
    let model = if all_backoffs { BackoffModel::All } else { BackoffModel::Segments };
    let of = move |[segments, rate]: [f64; 2]| {
        let rate_bps = positive("the rate of the network", rate)?;
        Ok([Wlan { rate_bps, ..Wlan::table_4() }.throughput_bps(segments, model)?])
    };
    each(py, [segments, rate], of).map(|[found]| found)
}

/// Adds the functions of this file to the module.
pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(aimd_moment, module)?)?;
    module.add_function(wrap_pyfunction!(aimd_loss_probability, module)?)?;
    module.add_function(wrap_pyfunction!(aimd_density, module)?)?;
    module.add_function(wrap_pyfunction!(aimd_survival, module)?)?;
    module.add_function(wrap_pyfunction!(slow_start, module)?)?;
    module.add_function(wrap_pyfunction!(score, module)?)?;
    module.add_function(wrap_pyfunction!(smoothed, module)?)?;
    module.add_function(wrap_pyfunction!(wlan_throughput, module)?)
}
