//! Tables of runs: the points of a sweep, its rows in the order of the command line, means with
//! intervals, and files.

use crate::{
    errors::value_error,
    scenario_file::{ScenarioFile, Sets, file_dict, set_dict},
    values::assignments,
};
use numpy::{IntoPyArray as _, PyArrayMethods as _, PyReadonlyArray1, PyReadonlyArray2};
use outcome::{NUMBERS, RunColumn, RunRow, RunTable, half_width};
use pyo3::{
    prelude::*,
    types::{PyBytes, PyDict},
};
use scenario::{SetValue, Variant};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// A point of a sweep: a variant of the scenario.
struct Point {
    scenario: String,
    case: String,
    set: BTreeMap<String, SetValue>,
    seed: u64,
}

/// All points of a sweep, in the order of the command line: each case with every combination of the
/// values, the last key fastest.
#[pyclass(frozen, module = "tandem._tandem")]
pub(crate) struct Points {
    points: Vec<Point>,
    /// The files that the points name.
    files: BTreeMap<String, Arc<[u8]>>,
}

/// The answers to some runs: arrays with an element for each.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Rows<'py> {
    engine: PyReadonlyArray1<'py, u32>,
    point: PyReadonlyArray1<'py, u64>,
    seed: PyReadonlyArray1<'py, u64>,
    valid: PyReadonlyArray1<'py, bool>,
    seconds: PyReadonlyArray1<'py, f64>,
    numbers: PyReadonlyArray2<'py, f64>,
}

/// The same as slices, for work without the GIL.
struct RunSlices<'a> {
    engine: &'a [u32],
    point: &'a [u64],
    seed: &'a [u64],
    valid: &'a [bool],
    seconds: &'a [f64],
    numbers: &'a [f64],
}

impl Rows<'_> {
    /// # Errors
    /// The arrays differ in length.
    fn slices(&self) -> PyResult<RunSlices<'_>> {
        let slices = RunSlices {
            engine: self.engine.as_slice()?,
            point: self.point.as_slice()?,
            seed: self.seed.as_slice()?,
            valid: self.valid.as_slice()?,
            seconds: self.seconds.as_slice()?,
            numbers: self.numbers.as_slice()?,
        };
        let RunSlices { engine, point, seed, valid, seconds, numbers } = &slices;
        let count = engine.len();
        if [point.len(), seed.len(), valid.len(), seconds.len()] != [count; 4] || numbers.len() != count * NUMBERS.len() {
            return Err(value_error("the columns differ in length"));
        }
        Ok(slices)
    }
}

#[pymethods]
impl Points {
    #[new]
    fn new(py: Python<'_>, file: &ScenarioFile, case: Option<&str>, sets: Sets) -> PyResult<Self> {
        // The scenarios themselves are made again when they are played: a study may have many.
        let (mut points, mut names) = (Vec::new(), BTreeSet::new());
        let mut add = |Variant { case, scenario, set }: Variant| {
            let unknown = scenario.file_names().into_iter().filter(|name| !names.contains(*name)).map(str::to_owned).collect::<Vec<_>>();
            names.extend(unknown);
            points.push(Point { scenario: scenario.name, case, set, seed: scenario.seed });
        };
        let sets = assignments(&sets)?;
        py.detach(|| file.each_selected(case, &sets, &mut add)).map_err(|error| error.raised(py))?;
        Ok(Points { points, files: file.files_named(&names) })
    }

    fn __len__(&self) -> usize {
        self.points.len()
    }

    /// The files that the points name, by their names in the scenario.
    #[getter]
    fn files<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        file_dict(py, &self.files)
    }

    /// The seed that each point has in the scenario.
    fn seeds(&self) -> Vec<u64> {
        self.points.iter().map(|point| point.seed).collect()
    }

    /// The case and the changed keys of a point.
    fn describe<'py>(&self, py: Python<'py>, point: usize) -> PyResult<(String, Bound<'py, PyDict>)> {
        let point = self.points.get(point).ok_or_else(|| value_error("there is no such point"))?;
        Ok((point.case.clone(), set_dict(py, &point.set)?))
    }

    /// The table of these runs, as `tandem run --to` writes it.
    fn table(&self, py: Python<'_>, engines: Vec<String>, rows: Rows<'_>) -> PyResult<TableData> {
        let rows = rows.slices()?;
        let table = py.detach(|| PyResult::Ok(RunTable::of_rows(&self.rows(&engines, &rows)?, false)))?;
        Ok(TableData { table })
    }

    /// The table of these runs with all numbers, and what resumes a sweep: the number of the point
    /// and the time of the run.
    fn part(&self, py: Python<'_>, engines: Vec<String>, rows: Rows<'_>) -> PyResult<TableData> {
        let rows = rows.slices()?;
        let mut table = py.detach(|| PyResult::Ok(RunTable::of_rows(&self.rows(&engines, &rows)?, true)))?;
        table.columns.push(("point".into(), RunColumn::Integers(rows.point.to_vec())));
        let seconds = rows.seconds.iter().map(|seconds| Some(*seconds)).collect();
        table.columns.push(("seconds".into(), RunColumn::Numbers(seconds)));
        Ok(TableData { table })
    }

    /// A row for each engine and point: the number of seeds, whether all runs are valid, the mean
    /// of each number over the seeds with half the width of its 95 % interval (Student's t).
    fn means(&self, py: Python<'_>, engines: Vec<String>, rows: Rows<'_>) -> PyResult<TableData> {
        let rows = rows.slices()?;
        let table = py.detach(|| self.means_of(&engines, &rows))?;
        Ok(TableData { table })
    }
}

impl Points {
    /// The rows of these runs.
    ///
    /// # Errors
    /// A run is of a point or an engine that there is not.
    fn rows(&self, engines: &[String], runs: &RunSlices<'_>) -> PyResult<Vec<RunRow>> {
        let row = |index: usize| {
            let at = self.points.get(runs.point[index] as usize).zip(engines.get(runs.engine[index] as usize));
            let (at, engine) = at.ok_or_else(|| value_error("a row is of a point or an engine that the sweep does not have"))?;
            Ok(RunRow {
                scenario: at.scenario.clone(),
                case: at.case.clone(),
                engine: engine.clone(),
                seed: runs.seed[index],
                valid: runs.valid[index],
                set: at.set.clone(),
                numbers: runs.numbers[index * NUMBERS.len()..][..NUMBERS.len()]
                    .iter()
                    .map(|number| Some(*number).filter(|number| !number.is_nan()))
                    .collect(),
            })
        };
        (0..runs.engine.len()).map(row).collect()
    }

    /// The table of means ([`means`](Self::means)).
    fn means_of(&self, engines: &[String], runs: &RunSlices<'_>) -> PyResult<RunTable> {
        let mut groups: BTreeMap<(u32, u64), Vec<RunRow>> = BTreeMap::new();
        let keys = runs.engine.iter().copied().zip(runs.point.iter().copied());
        for (row, key) in self.rows(engines, runs)?.into_iter().zip(keys) {
            groups.entry(key).or_default().push(row);
        }
        let values = |rows: &[RunRow], number: usize| rows.iter().map(|row| row.numbers[number]).collect::<Option<Vec<f64>>>();
        let mean = |rows: &[RunRow], number: usize| values(rows, number).map(|values| values.iter().sum::<f64>() / values.len() as f64);
        let groups: Vec<Vec<RunRow>> = groups.into_values().collect();
        let means: Vec<RunRow> = groups
            .iter()
            .map(|rows| RunRow {
                seed: rows.len() as u64,
                valid: rows.iter().all(|row| row.valid),
                numbers: (0..NUMBERS.len()).map(|number| mean(rows, number)).collect(),
                ..rows[0].clone()
            })
            .collect();
        let mut table = RunTable { columns: Vec::new(), rows: means.len() };
        for (name, column) in RunTable::of_rows(&means, false).columns {
            let number = NUMBERS.iter().position(|number| **number == name);
            let is_last_of_run = name == "valid";
            table.columns.push((if name == "seed" { "seeds".into() } else { name.clone() }, column));
            if let Some(number) = number {
                let half = |rows: &Vec<RunRow>| values(rows, number).map(|values| half_width(&values));
                table.columns.push((format!("{name}_ci95"), RunColumn::Numbers(groups.iter().map(half).collect())));
            }
            if is_last_of_run {
                table.columns.extend(first_seeds(&means));
            }
        }
        Ok(table)
    }
}

/// The first seed of each point, if it is a key that was changed. Tables of runs have no such
/// column, because they have the seed of each run.
fn first_seeds(means: &[RunRow]) -> Option<(String, RunColumn)> {
    let first = |row: &RunRow| if let Some(SetValue::Number(seed)) = row.set.get("seed") { Some(*seed) } else { None };
    let seeds: Vec<Option<f64>> = means.iter().map(first).collect();
    seeds.iter().any(Option::is_some).then(|| ("seed".into(), RunColumn::Numbers(seeds)))
}

/// A table of runs.
#[pyclass(frozen, module = "tandem._tandem")]
pub(crate) struct TableData {
    table: RunTable,
}

#[pymethods]
impl TableData {
    /// Its columns: arrays of numbers (NaN where one is missing), whole numbers and truths, lists
    /// of texts.
    fn columns<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        columns(py, &self.table)
    }

    /// The table as CSV.
    fn csv(&self, py: Python<'_>) -> String {
        py.detach(|| report::run_csv(&self.table))
    }

    /// The table as a Parquet file.
    fn parquet<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &py.detach(|| report::run_parquet(&self.table)))
    }
}

fn columns<'py>(py: Python<'py>, table: &RunTable) -> PyResult<Bound<'py, PyDict>> {
    let found = PyDict::new(py);
    for (name, column) in &table.columns {
        match column {
            RunColumn::Numbers(numbers) => {
                let numbers: Vec<f64> = numbers.iter().map(|number| number.unwrap_or(f64::NAN)).collect();
                found.set_item(name, numbers.into_pyarray(py))?;
            }
            RunColumn::Integers(integers) => found.set_item(name, integers.clone().into_pyarray(py))?,
            RunColumn::Truths(truths) => found.set_item(name, truths.clone().into_pyarray(py))?,
            RunColumn::Texts(texts) => found.set_item(name, texts)?,
        }
    }
    Ok(found)
}

/// The columns of a part of a sweep that was written before: `engine` (texts), `point`, `seed`,
/// `valid`, `seconds`, and `numbers`, with a row of all numbers for each run.
#[pyfunction]
pub(crate) fn read_part<'py>(py: Python<'py>, file: Vec<u8>) -> PyResult<Bound<'py, PyDict>> {
    let table = py.detach(|| report::read_run_parquet(file)).map_err(value_error)?;
    let found = columns(py, &table)?;
    let mut numbers = vec![f64::NAN; table.rows * NUMBERS.len()];
    for (index, name) in NUMBERS.iter().enumerate() {
        let Some(RunColumn::Numbers(column)) = table.column(name) else {
            return Err(value_error(format!("a part of a sweep has a column {name}: it is of another version")));
        };
        for (row, number) in column.iter().enumerate() {
            numbers[row * NUMBERS.len() + index] = number.unwrap_or(f64::NAN);
        }
    }
    found.set_item("numbers", numbers.into_pyarray(py).reshape([table.rows, NUMBERS.len()])?)?;
    Ok(found)
}
