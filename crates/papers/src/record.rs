//! Recorded outcomes: what engines answered to an experiment, kept as data below
//! `papers/PAPER/outcomes/` with the circumstances of the run. Pages and summaries are made of
//! them, so that nothing has to be run for that.

use crate::{
    embedded,
    equations::{ComputedFigure, ComputedPlot, ComputedTable},
    error::PaperError,
};
use outcome::Outcome;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// How hard to compress. A record is written rarely and kept in every checkout.
const ZSTD_LEVEL: i32 = 19;
/// Significant digits of recorded numbers: far more than any interval supports.
const DIGITS: usize = 7;

/// The most points of a recorded curve: as many as a plot is wide.
const MAX_POINTS: usize = 600;

/// The engine of a run that computes a table by equations.
pub const EQUATIONS: &str = "equations";

/// The recorded outcomes of an experiment, or the recorded table of equations.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// The runs that the outcomes are of, one for each engine.
    pub runs: Vec<RecordedRun>,
    /// The outcomes, without time series.
    pub outcomes: Vec<Outcome>,
    /// The table of equations; none for an experiment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub computed: Option<ComputedTable>,
    /// The plots beside that table.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub plots: Vec<ComputedPlot>,
}

/// The circumstances in which an engine played an experiment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordedRun {
    /// Name of the engine.
    pub engine: String,
    /// Number of seeds; 0 for equations without seeds.
    pub seeds: u64,
    /// How long it took, seconds.
    pub seconds: f64,
    /// Version of this program.
    pub version: String,
    /// Processors, memory and kernel of the machine.
    pub machine: String,
    /// The day on which it ended (ISO 8601).
    pub date: String,
}

impl Record {
    /// The record that is embedded in the program; none if the experiment has none.
    ///
    /// # Errors
    /// The record is damaged, which the tests of this crate exclude.
    pub fn embedded(id: &str) -> Result<Option<Record>, PaperError> {
        let path = path_of(id);
        embedded::file(&path).map(|bytes| read(bytes).map_err(|why| damaged(&Path::new("papers").join(&path), &why))).transpose()
    }

    /// The record of `id` below `papers`, the folder of the papers in the sources; an empty one if
    /// there is none.
    ///
    /// # Errors
    /// The file cannot be read, or is damaged.
    pub fn load(papers: &Path, id: &str) -> Result<Record, PaperError> {
        let path = papers.join(path_of(id));
        match fs::read(&path) {
            Ok(bytes) => read(&bytes).map_err(|why| damaged(&path, &why)),
            Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(Record::default()),
            Err(why) => Err(damaged(&path, &why)),
        }
    }

    /// Writes the record of `id` below `papers`. Returns the file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn store(&self, papers: &Path, id: &str) -> Result<PathBuf, PaperError> {
        let path = papers.join(path_of(id));
        let failed = |why: io::Error| PaperError::NotRecorded { path: path.clone(), why };
        fs::create_dir_all(path.parent().unwrap_or(papers)).map_err(failed)?;
        let mut value = serde_json::to_value(self).map_err(|why| failed(why.into()))?;
        round_as_recorded(&mut value);
        let bytes = zstd::encode_all(value.to_string().as_bytes(), ZSTD_LEVEL).map_err(failed)?;
        // Renamed into place, so that an interruption leaves the old record.
        let part = path.with_extension("part");
        fs::write(&part, bytes).and_then(|()| fs::rename(&part, &path)).map_err(failed)?;
        Ok(path)
    }

    /// Adds a run and its outcomes. They replace those of the same engine, case and seed. Series
    /// are not kept.
    pub fn add(&mut self, run: RecordedRun, outcomes: &[Outcome]) {
        let same = |a: &Outcome, b: &Outcome| (&a.engine, &a.case, a.seed) == (&b.engine, &b.case, b.seed);
        self.outcomes.retain(|old| !outcomes.iter().any(|new| same(old, new)));
        self.outcomes.extend(outcomes.iter().map(|outcome| Outcome { series: Vec::new(), ci95: Default::default(), ..outcome.clone() }));
        self.runs.retain(|old| old.engine != run.engine);
        self.runs.push(run);
    }

    /// The record of a table of equations and its plots.
    pub fn of_figure(run: RecordedRun, mut figure: ComputedFigure) -> Self {
        for line in figure.plots.iter_mut().flat_map(|plot| &mut plot.lines) {
            line.thin_out(MAX_POINTS);
        }
        Record { runs: vec![run], outcomes: Vec::new(), computed: Some(figure.table), plots: figure.plots }
    }

    /// The recorded table and its plots; none for an experiment.
    pub fn figure(self) -> Option<ComputedFigure> {
        Some(ComputedFigure { table: self.computed?, plots: self.plots })
    }

    /// Drops the outcomes of this engine that are not of these cases: what an earlier state of the
    /// experiment left.
    pub fn keep_cases(&mut self, engine: &str, cases: &[String]) {
        self.outcomes.retain(|outcome| outcome.engine != engine || cases.contains(&outcome.case));
    }
}

fn path_of(id: &str) -> PathBuf {
    let (paper, entry) = id.split_once('/').unwrap_or((id, ""));
    Path::new(paper).join("outcomes").join(format!("{entry}.json.zst"))
}

fn read(bytes: &[u8]) -> io::Result<Record> {
    Ok(serde_json::from_slice(&zstd::decode_all(bytes)?)?)
}

fn damaged(path: &Path, why: &io::Error) -> PaperError {
    PaperError::Damaged { path: path.into(), why: why.to_string() }
}

/// Rounds every number that is not an integer, as a record keeps it.
pub fn round_as_recorded(value: &mut Value) {
    match value {
        Value::Number(number) if number.is_f64() => {
            let rounded = number.as_f64().and_then(|number| format!("{number:.*e}", DIGITS - 1).parse::<f64>().ok());
            if let Some(rounded) = rounded.and_then(serde_json::Number::from_f64) {
                *number = rounded;
            }
        }
        Value::Array(values) => values.iter_mut().for_each(round_as_recorded),
        Value::Object(fields) => fields.values_mut().for_each(round_as_recorded),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_outcomes::outcome;

    fn run(engine: &str, seeds: u64) -> RecordedRun {
        RecordedRun { engine: engine.into(), seeds, seconds: 1.5, version: "1".into(), machine: "m".into(), date: "2026-01-01".into() }
    }

    #[test]
    fn a_record_is_read_as_it_was_stored() {
        let folder = tempfile::tempdir().unwrap();
        let mut record = Record::load(folder.path(), "li/fig-3").unwrap();
        assert_eq!(record, Record::default());
        record.add(run("sim", 1), &[outcome("sim", "a", 1, 2.000_000_04)]);
        record.store(folder.path(), "li/fig-3").unwrap();
        let read = Record::load(folder.path(), "li/fig-3").unwrap();
        assert_eq!((read.outcomes[0].goodput_bps, &read.runs), (2.0, &record.runs));
    }

    #[test]
    fn a_later_run_replaces_the_same_seeds_and_keeps_the_others() {
        let mut record = Record::default();
        record.add(run("sim", 2), &[outcome("sim", "a", 1, 1.0), outcome("sim", "a", 2, 2.0)]);
        record.add(run("lab", 1), &[outcome("lab", "a", 1, 3.0)]);
        record.add(run("sim", 1), &[outcome("sim", "a", 1, 4.0)]);
        let kept: Vec<_> = record.outcomes.iter().map(|outcome| (outcome.engine.as_str(), outcome.seed, outcome.goodput_bps)).collect();
        assert_eq!(kept, [("sim", 2, 2.0), ("lab", 1, 3.0), ("sim", 1, 4.0)]);
        assert_eq!(record.runs.iter().map(|run| run.engine.as_str()).collect::<Vec<_>>(), ["lab", "sim"]);
        record.keep_cases("sim", &["b".into()]);
        assert_eq!(record.outcomes.len(), 1);
    }

    #[test]
    fn a_damaged_record_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = Record::default().store(folder.path(), "li/fig-3").unwrap();
        fs::write(&path, b"nonsense").unwrap();
        let error = Record::load(folder.path(), "li/fig-3").unwrap_err().to_string();
        assert!(error.contains("fig-3.json.zst") && error.contains("make papers-record"), "{error}");
    }
}
