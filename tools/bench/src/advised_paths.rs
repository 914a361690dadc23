//! Compares the advice of `tandem advise` for three paths with BBR senders with lab runs.

use crate::scenario_runs::{ScenarioRuns, fill, mean_flow, note_invalid, variants};
use advise::{AdviceVerdict, Advisor, buffer_to_configure};
use anyhow::{Context as _, Result};
use measurements::{MeasurementRecord, SampleColumn, SampleStatistic, SampleTable};
use scenario::{Buffer, Variant};
use std::path::PathBuf;
use units::Bytes;

/// Takes the advice of the simulator for three paths with BBR senders, and plays each path as it is
/// and as advised on the lab
#[derive(Debug, clap::Args)]
pub(crate) struct AdvisedPaths {
    /// The paths
    #[arg(default_values = ["scenarios/geo.toml", "scenarios/starlink.toml", "scenarios/lte.toml"])]
    scenarios: Vec<PathBuf>,
    /// Runs of each variant in the simulator
    #[arg(long, default_value_t = 10)]
    sim_seeds: u64,
    #[command(flatten)]
    runs: ScenarioRuns,
}

const ADVICE: &str = "advised";
const AS_IS: [&str; 2] = ["as it is, simulator", "as it is, lab"];
const ADVISED: [&str; 2] = ["as advised, simulator", "as advised, lab"];
const CASES: [&str; 2] = ["as it is", "as advised"];

impl AdvisedPaths {
    pub(crate) fn measure(&self, record: &mut MeasurementRecord) -> Result<()> {
        record.rounds = self.runs.seeds();
        let mut columns = vec![SampleColumn::text(ADVICE)];
        for engine in 0..2 {
            columns.push(SampleColumn::new(AS_IS[engine], "s", 2).with(SampleStatistic::Median));
            columns.push(SampleColumn::new(ADVISED[engine], "s", 2).with(SampleStatistic::Median));
            columns.push(SampleColumn::quotient(["gain, simulator", "gain, lab"][engine], AS_IS[engine], ADVISED[engine], 2));
        }
        let mut table = SampleTable::new("paths", "path", columns);
        for path in &self.scenarios {
            self.advise(path, &mut table, record).with_context(|| path.display().to_string())?;
        }
        record.tables = vec![table];
        Ok(())
    }

    fn advise(&self, path: &std::path::Path, table: &mut SampleTable, record: &mut MeasurementRecord) -> Result<()> {
        let scenario = variants(path)?.remove(0).scenario;
        let advisor = Advisor::new(&scenario)?;
        let simulate = |variants: &[Variant]| self.runs.with_seeds(self.sim_seeds).sim(variants);
        let candidates = advisor.candidates();
        let advice = advisor.advice(&simulate(&candidates)?, &[])?;
        let row = table.row(&scenario.name);
        let as_is = Variant::new(CASES[0], candidates[0].scenario.clone());
        let mut variants = vec![as_is];
        if advice.verdict == AdviceVerdict::Split {
            let buffers = advisor.buffers(&advice.split.candidate);
            let bytes = buffer_to_configure(&advisor.buffer_results(advice.objective, &simulate(&buffers)?));
            let mut advised = buffers.into_iter().next().context("a split has buffers")?.scenario;
            if let Some(bytes) = bytes {
                advised.splits[0].buffer = Buffer::Bytes(Bytes(bytes));
            }
            let buffer = bytes.map_or("unlimited".into(), |bytes| Bytes(bytes).to_string());
            row.set(ADVICE, format!("split, {}, buffer {buffer}", advice.split.candidate.control));
            variants.push(Variant::new(CASES[1], advised));
        } else {
            row.set(ADVICE, "do not split");
        }
        let (lab, sim) = (self.runs.lab(&variants)?, self.runs.sim(&variants)?);
        for (engine, outcomes) in [&sim, &lab].into_iter().enumerate() {
            for (case, column) in [(CASES[0], AS_IS[engine]), (CASES[1], ADVISED[engine])] {
                fill(row, column, (outcomes, case), mean_flow)?;
            }
        }
        note_invalid(record, &lab);
        Ok(())
    }
}
