//! What calls from Python cost: runs of the simulator in a loop beside `tandem run`, and an
//! equation over an array beside one call for each point.

use crate::python_program::python_output;
use anyhow::{Context as _, Result, ensure};
use measurements::{MeasurementRecord, SampleColumn, SampleTable};
use serde::Deserialize;

/// Measures what runs and equations cost from Python, beside `tandem run` of the same runs and
/// beside a loop over the points
#[derive(Debug, clap::Args)]
pub(crate) struct PythonCalls {
    /// Rounds; each way is measured once in each
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Runs of the simulator in each round
    #[arg(long, default_value_t = 1000)]
    calls: u64,
    /// Points of the equation
    #[arg(long, default_value_t = 100_000)]
    points: u64,
    /// A Python interpreter with tandem-net
    #[arg(long, value_name = "PYTHON", default_value = "python3")]
    python: String,
}

/// What the script prints: how long each way took, s.
#[derive(Debug, Deserialize)]
struct CallTimes {
    program_s: f64,
    loop_s: f64,
    array_s: f64,
    each_s: f64,
}

const RUN: &str = "a run";
const PROGRAM: &str = "`tandem run`";
const POINT: &str = "a point";
const ARRAY: &str = "one call with arrays";

impl PythonCalls {
    pub(crate) fn measure(&self, record: &mut MeasurementRecord) -> Result<()> {
        ensure!(self.calls > 0 && self.points > 0, "cannot measure without calls and points: --calls and --points must be at least 1");
        record.rounds = self.runs as u64;
        let mut runs = SampleTable::new("runs", "by", vec![SampleColumn::new(RUN, "ms", 2), SampleColumn::times(RUN, PROGRAM)]);
        let mut points = SampleTable::new("points", "by", vec![SampleColumn::new(POINT, "ns", 0), SampleColumn::times(POINT, ARRAY)]);
        for round in 0..self.runs {
            let arguments = [self.calls, self.points].map(|number| number.to_string());
            let found: CallTimes =
                python_output(&self.python, include_str!("python_calls.py"), arguments).context("cannot measure calls from Python")?;
            let (a_run, a_point) = (1e3 / self.calls as f64, 1e9 / self.points as f64);
            runs.row(PROGRAM).add(RUN, round, found.program_s * a_run);
            runs.row("`scenario.run` in a loop").add(RUN, round, found.loop_s * a_run);
            points.row(ARRAY).add(POINT, round, found.array_s * a_point);
            points.row("a call for each point").add(POINT, round, found.each_s * a_point);
        }
        record.notes.push(format!("{} runs and {} points in each round.", self.calls, self.points));
        record.tables = vec![runs, points];
        Ok(())
    }
}
