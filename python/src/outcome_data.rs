//! An outcome, with its parts as arrays.

use crate::{columns::Columns, errors::value_error, scenario_file::set_dict, sys::borrowed};
use numpy::PyArray1;
use outcome::{Dist, FlowOutcome, LegOutcome, Outcome};
use pyo3::{prelude::*, types::PyDict};

/// The outcome of a run.
#[pyclass(frozen, module = "tandem._tandem")]
pub(crate) struct OutcomeData {
    outcome: Outcome,
    /// What the scenario is about.
    about: String,
}

#[pymethods]
impl OutcomeData {
    /// Reads what `to_json` has written of one outcome, with every bit.
    #[staticmethod]
    fn from_json(text: &str, about: String) -> PyResult<Self> {
        let mut outcomes: Vec<Outcome> = serde_json::from_str(text).map_err(value_error)?;
        match (outcomes.pop(), outcomes.is_empty()) {
            (Some(outcome), true) => Ok(OutcomeData { outcome, about }),
            _ => Err(value_error("a list with one outcome is needed")),
        }
    }

    #[getter]
    fn scenario(&self) -> &str {
        &self.outcome.scenario
    }

    #[getter]
    fn about(&self) -> &str {
        &self.about
    }

    #[getter]
    fn case(&self) -> &str {
        &self.outcome.case
    }

    #[getter]
    fn engine(&self) -> &str {
        &self.outcome.engine
    }

    #[getter]
    fn seed(&self) -> u64 {
        self.outcome.seed
    }

    #[getter]
    fn valid(&self) -> bool {
        self.outcome.valid
    }

    #[getter]
    fn warnings(&self) -> Vec<String> {
        self.outcome.warnings.clone()
    }

    #[getter]
    fn set<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        set_dict(py, &self.outcome.set)
    }

    #[getter]
    fn ci95<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let found = PyDict::new(py);
        self.outcome.ci95.iter().try_for_each(|(name, half)| found.set_item(name, half))?;
        Ok(found)
    }

    /// A number by its name; none if this outcome lacks it.
    fn number(&self, name: &str) -> Option<f64> {
        self.outcome.number(name)
    }

    /// Mean, median, 99th percentile and maximum of `queue_bytes`, `delay_s`, `held_bytes` or
    /// `proxy_delay_s`.
    fn distribution(&self, name: &str) -> Option<(f64, f64, f64, f64)> {
        let proxy = self.outcome.proxy.as_ref();
        let found: Option<Dist> = match name {
            "queue_bytes" => self.outcome.queue_bytes,
            "delay_s" => self.outcome.delay_s,
            "held_bytes" => proxy.map(|proxy| proxy.buffer_bytes),
            "proxy_delay_s" => proxy.map(|proxy| proxy.delay_s),
            _ => None,
        };
        found.map(|dist| (dist.mean, dist.p50, dist.p99, dist.max))
    }

    /// The shares of time of the phases free, starvation and backpressure; none if nothing is
    /// split.
    fn phases(&self) -> Option<(f64, f64, f64)> {
        self.outcome.proxy.as_ref().map(|proxy| (proxy.phases.free, proxy.phases.starvation, proxy.phases.backpressure))
    }

    /// The flows, or the connections of cross traffic.
    fn flows<'py>(&self, py: Python<'py>, cross: bool) -> PyResult<Bound<'py, PyDict>> {
        let columns = Columns::of(py, self.flow_outcomes(cross)).array("flow", |flow| flow.id)?.array("reverse", |flow| flow.reverse)?;
        let columns =
            columns.optional("asked_bytes", |flow| flow.asked_bytes.map(|bytes| bytes as f64))?.array("bytes", |flow| flow.bytes)?;
        let columns = columns.array("start_s", |flow| flow.start_s)?.optional("end_s", |flow| flow.end_s)?;
        let columns = columns.optional("duration_s", |flow| Some(flow.end_s? - flow.start_s))?.optional("acked_s", |flow| flow.acked_s)?;
        let columns = columns.optional("kept_max_bytes", |flow| flow.kept_max_bytes.map(|bytes| bytes as f64))?;
        Ok(columns.array("goodput_bps", |flow| flow.goodput_bps)?.texts("error", |flow| flow.error.as_deref())?.done())
    }

    /// The legs of the flows, from the sender on.
    fn legs<'py>(&self, py: Python<'py>, cross: bool) -> PyResult<Bound<'py, PyDict>> {
        let of =
            |flow: &'_ FlowOutcome| flow.legs.iter().zip(1_u32..).map(|(leg, number)| (flow.id, number, leg.clone())).collect::<Vec<_>>();
        let legs: Vec<(u32, u32, LegOutcome)> = self.flow_outcomes(cross).iter().flat_map(of).collect();
        let columns = Columns::of(py, &legs).array("flow", |leg| leg.0)?.array("leg", |leg| leg.1)?;
        let columns = columns.texts("control", |leg| Some(&leg.2.control))?.array("mean_rtt_s", |leg| leg.2.mean_rtt_s)?;
        let columns = columns.array("min_rtt_s", |leg| leg.2.min_rtt_s)?.array("retransmits", |leg| leg.2.retransmits)?;
        let columns = columns.array("mean_cwnd_pkt", |leg| leg.2.mean_cwnd_pkt)?;
        Ok(columns.optional("timeouts", |leg| leg.2.timeouts.map(|count| count as f64))?.done())
    }

    /// The links: what was asked of each, and what it delivered.
    fn links<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        links(py, &self.outcome)
    }

    /// The goodput in each interval of the scenario.
    fn intervals<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let columns = Columns::of(py, &self.outcome.intervals).array("from_s", |interval| interval.from_s)?;
        Ok(columns.array("to_s", |interval| interval.to_s)?.array("goodput_bps", |interval| interval.goodput_bps)?.done())
    }

    /// The networks in parallel.
    fn networks<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let columns = Columns::of(py, &self.outcome.networks).array("network", |network| network.network as u64)?;
        let columns = columns.array("utilization", |network| network.utilization)?.optional("share", |network| network.share)?;
        Ok(columns.optional("queue_drops", |network| network.queue_drops.map(|drops| drops as f64))?.done())
    }

    /// Of each series: what, whose, the unit.
    fn series_names(&self) -> Vec<(&str, &str, &str)> {
        self.outcome.series.iter().map(|series| (&series.what[..], &series.whose[..], &series.unit[..])).collect()
    }

    /// Times and values of a series, without a copy.
    #[expect(clippy::type_complexity, reason = "a pair of arrays")]
    fn series_arrays<'py>(slf: &Bound<'py, Self>, index: usize) -> PyResult<(Bound<'py, PyArray1<f64>>, Bound<'py, PyArray1<f64>>)> {
        if index >= slf.get().outcome.series.len() {
            return Err(value_error("there is no such series"));
        }
        Ok((borrowed(slf, |data| &data.outcome.series[index].t)?, borrowed(slf, |data| &data.outcome.series[index].v)?))
    }

    /// A list with this outcome, as `tandem run --json` prints it.
    fn to_json(&self, series: bool) -> String {
        report::json(std::slice::from_ref(&self.outcome), series)
    }
}

impl OutcomeData {
    pub(crate) fn new(outcome: Outcome, about: String) -> Self {
        OutcomeData { outcome, about }
    }

    fn flow_outcomes(&self, cross: bool) -> &[FlowOutcome] {
        if cross { &self.outcome.cross_flows } else { &self.outcome.flows }
    }
}

fn links<'py>(py: Python<'py>, outcome: &Outcome) -> PyResult<Bound<'py, PyDict>> {
    let columns = Columns::of(py, &outcome.links).array("link", |link| link.link as u64)?.array("rate_bps", |link| link.rate_bps)?;
    let columns = columns.optional("delivered_rate_bps", |link| link.delivered_rate_bps)?.array("delay_s", |link| link.delay_s)?;
    let columns = columns.optional("delivered_delay_s", |link| link.delivered_delay_s)?.array("late_p99_s", |link| link.late_p99_s)?;
    let columns = columns.array("packets", |link| link.packets)?.array("queue_drops", |link| link.queue_drops)?;
    let columns = columns.array("losses", |link| link.losses)?.array("duplicates", |link| link.duplicates)?;
    let columns = columns.optional("loss_asked", |link| link.loss_asked)?.array("queue_max_bytes", |link| link.queue_max_bytes)?;
    let columns = columns.optional("queue_delay_p50_s", |link| link.queue_delay_p50_s)?;
    Ok(columns.optional("queue_delay_p95_s", |link| link.queue_delay_p95_s)?.done())
}

/// A page with plots of these outcomes, which opens offline.
#[pyfunction]
pub(crate) fn page(title: &str, about: &str, outcomes: Vec<Bound<'_, OutcomeData>>) -> String {
    report::page(title, about, &[], &outcomes.iter().map(|data| data.get().outcome.clone()).collect::<Vec<_>>())
}

/// The tables that `tandem run` prints of these outcomes.
#[pyfunction]
pub(crate) fn table_text(outcomes: Vec<Bound<'_, OutcomeData>>, width: Option<usize>) -> String {
    let outcomes: Vec<Outcome> = outcomes.iter().map(|data| data.get().outcome.clone()).collect();
    let tables = [report::table(&outcomes, width), report::accounts_table(&outcomes, width), report::links_table(&outcomes, width)];
    tables.into_iter().filter(|table| !table.is_empty()).collect::<Vec<_>>().join("\n")
}
