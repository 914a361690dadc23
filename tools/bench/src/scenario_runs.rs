//! Scenario files of which `docs/benchmarks.md` has tables: the same cases on the lab and in the
//! simulator, and downloads over two networks.

use anyhow::{Context as _, Result, ensure};
use measurements::{MeasurementRecord, SampleColumn, SampleRow, SampleStatistic, SampleTable};
use outcome::{Engine, Outcome};
use runner::{RunOptions, RunOrder, SeedRange};
use scenario::{ScenarioFile, Variant};
use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    sync::Arc,
};

/// Plays the same cases on the lab and in the simulator
#[derive(Debug, clap::Args)]
pub(crate) struct EngineComparison {
    /// The scenario
    #[arg(default_value = "scenarios/engines.toml")]
    scenario: PathBuf,
    #[command(flatten)]
    runs: ScenarioRuns,
}

/// Downloads over two networks: with a bond, with the kernel's Multipath TCP, and over the better
/// network alone
#[derive(Debug, clap::Args)]
pub(crate) struct BondDownloads {
    /// The scenario
    #[arg(default_value = "scenarios/two-networks.toml")]
    scenario: PathBuf,
    #[command(flatten)]
    runs: ScenarioRuns,
}

/// How the cases of a scenario are played.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct ScenarioRuns {
    /// Runs of each case, each with other losses
    #[arg(long, default_value_t = 3)]
    seeds: u64,
    /// Concurrent runs [default: in the lab as many as two cores sustain, else one per core]
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
}

impl ScenarioRuns {
    pub(crate) fn of(seeds: u64) -> Self {
        ScenarioRuns { seeds, jobs: None }
    }

    pub(crate) fn seeds(self) -> u64 {
        self.seeds
    }

    pub(crate) fn with_seeds(self, seeds: u64) -> Self {
        ScenarioRuns { seeds, ..self }
    }

    /// Plays all cases on an engine. A run is repeated while the machine cannot keep up with it.
    fn play(&self, variants: &[Variant], engine: fn() -> Box<dyn Engine + Send>) -> Result<Vec<Outcome>> {
        let seeds = SeedRange { first: None, count: self.seeds };
        let runs = runner::plan(variants, seeds, RunOrder::BySeed, |_, _| engine());
        let (outcomes, failed) = runner::sort_answers(runner::run_all(runs, RunOptions { jobs: self.jobs, tries: 3, progress: true }));
        ensure!(failed.is_empty(), "{}", failed[0]);
        Ok(outcomes)
    }

    /// Plays all cases on the lab.
    pub(crate) fn lab(&self, variants: &[Variant]) -> Result<Vec<Outcome>> {
        self.play(variants, || Box::new(lab::Lab::default()))
    }

    /// Plays all cases in the simulator.
    pub(crate) fn sim(&self, variants: &[Variant]) -> Result<Vec<Outcome>> {
        self.play(variants, || Box::new(sim::Sim::default()))
    }
}

/// The cases of a scenario file.
pub(crate) fn variants(path: &Path) -> Result<Vec<Variant>> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read the scenario {}", path.display()))?;
    let directory = path.parent().map(Path::to_path_buf).unwrap_or_default();
    let open = move |name: &str| fs::File::open(directory.join(name)).map(|file| Box::new(BufReader::new(file)) as Box<dyn BufRead>);
    Ok(ScenarioFile::parse_with(&text, &path.display().to_string(), Arc::new(open))?.variants(&[])?)
}

/// Puts a figure of each valid run of a case into a column.
pub(crate) fn fill(
    row: &mut SampleRow,
    column: &str,
    (outcomes, case): (&[Outcome], &str),
    figure: impl Fn(&Outcome) -> Result<f64>,
) -> Result<()> {
    let of_case = outcomes.iter().filter(|outcome| outcome.case == case).enumerate();
    for (round, outcome) in of_case.filter(|(_, outcome)| outcome.valid) {
        row.add(column, round, figure(outcome).with_context(|| case.to_owned())?);
    }
    Ok(())
}

/// The mean time of a run's flows, seconds.
pub(crate) fn mean_flow(outcome: &Outcome) -> Result<f64> {
    outcome.mean_flow_s().context("not all flows ended")
}

/// The goodput of a run, Mbit/s.
pub(crate) fn goodput(outcome: &Outcome) -> Result<f64> {
    Ok(outcome.goodput_bps / 1e6)
}

/// Says in the record how many runs of a scenario are left out.
pub(crate) fn note_invalid(record: &mut MeasurementRecord, outcomes: &[Outcome]) {
    let invalid = outcomes.iter().filter(|outcome| !outcome.valid).count();
    let (all, name) = (outcomes.len(), outcomes.first().map_or("", |outcome| &outcome.scenario));
    record.notes.push(if invalid == 0 {
        format!("{name}: all {all} runs of the lab are valid.")
    } else {
        format!("{name}: {invalid} of {all} runs of the lab are left out: the machine was too slow for them.")
    });
}

impl EngineComparison {
    pub(crate) fn measure(&self, record: &mut MeasurementRecord) -> Result<()> {
        record.rounds = self.runs.seeds;
        let variants = variants(&self.scenario)?;
        let (lab, sim) = (self.runs.lab(&variants)?, self.runs.sim(&variants)?);
        const TIMES: [&str; 2] = ["lab, mean flow", "simulator, mean flow"];
        const GOODPUT: [&str; 2] = ["lab, goodput", "simulator, goodput"];
        let columns = vec![
            SampleColumn::new(TIMES[0], "s", 2),
            SampleColumn::new(TIMES[1], "s", 2),
            SampleColumn::quotient("time, simulator / lab", TIMES[1], TIMES[0], 3),
            SampleColumn::new(GOODPUT[0], "Mbit/s", 2),
            SampleColumn::new(GOODPUT[1], "Mbit/s", 2),
            SampleColumn::quotient("goodput, simulator / lab", GOODPUT[1], GOODPUT[0], 3),
        ];
        let columns = columns.into_iter().map(|column| column.with(SampleStatistic::Median)).collect();
        let mut table = SampleTable::new("cases", "case", columns);
        for variant in &variants {
            let row = table.row(&variant.case);
            for (outcomes, (time, rate)) in [(&lab, (TIMES[0], GOODPUT[0])), (&sim, (TIMES[1], GOODPUT[1]))] {
                fill(row, time, (outcomes, &variant.case), mean_flow)?;
                fill(row, rate, (outcomes, &variant.case), goodput)?;
            }
        }
        note_invalid(record, &lab);
        record.tables = vec![table];
        Ok(())
    }
}

/// The endings of the names of the cases that are laid beside the bond's.
const ALONE: &str = ", one alone";
const MPTCP: &str = ", mptcp";

impl BondDownloads {
    pub(crate) fn measure(&self, record: &mut MeasurementRecord) -> Result<()> {
        record.rounds = self.runs.seeds;
        let variants = variants(&self.scenario)?;
        let lab = self.runs.lab(&variants)?;
        const HEADS: [(&str, &str); 3] = [("bond", ""), ("Multipath TCP", MPTCP), ("the better one alone", ALONE)];
        let mut columns: Vec<_> = HEADS.iter().map(|(head, _)| SampleColumn::new(head, "Mbit/s", 2)).collect();
        columns.push(SampleColumn::quotient("bond over that one", HEADS[0].0, HEADS[2].0, 2));
        let mut table = SampleTable::new("downloads", "networks", columns);
        for variant in variants.iter().filter(|variant| ![ALONE, MPTCP].iter().any(|ending| variant.case.ends_with(ending))) {
            let row = table.row(&variant.case);
            for (head, ending) in HEADS {
                let case = format!("{}{ending}", variant.case);
                fill(row, head, (&lab, &case), goodput)?;
            }
        }
        note_invalid(record, &lab);
        record.tables = vec![table];
        Ok(())
    }
}
