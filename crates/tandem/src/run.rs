//! `tandem run`: runs a scenario file on one or more engines.

use crate::{
    CommandError, output,
    runs::{self, EngineName, RunFlags},
};
use clap::Args;
use outcome::RunTable;
use runner::{RunOrder, SeedRange};
use scenario::{Assignment, Variant};
use std::{
    fs,
    path::{Path, PathBuf},
    str::FromStr,
};

/// The most runs of a command: each stays in memory until the end.
const MOST_RUNS: u64 = 1_000_000;

/// Run a scenario file, with all its cases, on one or more engines
#[derive(Debug, Args)]
pub(crate) struct RunCommand {
    /// Scenario file (TOML)
    file: PathBuf,
    /// Run only this case; may be repeated
    #[arg(long = "case", value_name = "NAME")]
    cases: Vec<String>,
    /// Engines that run the scenario
    #[arg(long, value_enum, value_delimiter = ',', default_value = "lab")]
    on: Vec<EngineName>,
    /// Override a key; with several values, sweep it: control.proxy=cubic,bbr, or
    /// link.2.rate=10Mbit..50Mbit:10Mbit
    #[arg(long = "set", value_name = "KEY=VALUE[,VALUE…]")]
    sets: Vec<Assignment>,
    /// Seed of the random numbers [default: that of the file]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Number of seeds; with several, print means with 95 % confidence intervals
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    seeds: u64,
    /// Print JSON: a list with one outcome per engine, case and seed
    #[arg(long)]
    json: bool,
    /// Add time series to the JSON
    #[arg(long, requires = "json")]
    series: bool,
    /// Write a self-contained web page with plots
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
    /// Write a table with a row for each run, the changed keys as numbers in base units: .csv or
    /// .parquet
    #[arg(long, value_name = "FILE")]
    to: Option<TableFile>,
    /// Write the packets that each host of the lab sends and receives to pcapng files in a
    /// directory
    #[arg(long, value_name = "DIR")]
    pcap: Option<PathBuf>,
    #[command(flatten)]
    flags: RunFlags,
}

impl RunCommand {
    pub(crate) fn run(self) -> Result<(), CommandError> {
        let variants = runs::read_variants(&self.file, &self.sets, &self.cases)?;
        if let Some(directory) = &self.pcap {
            fs::create_dir_all(directory)
                .map_err(|why| CommandError::Failed(format!("cannot create the directory {} for captures: {why}", directory.display())))?;
        }
        let count = (variants.len() as u64).saturating_mul(self.seeds).saturating_mul(self.on.len() as u64);
        if count > MOST_RUNS {
            return Err(CommandError::Usage(format!(
                "{} variants × {} seeds × {} engines are {count} runs, but at most {MOST_RUNS} are planned at once: give fewer seeds or \
                 values, or choose a --case",
                variants.len(),
                self.seeds,
                self.on.len()
            )));
        }
        let seeds = SeedRange { first: self.seed, count: self.seeds };
        let mut planned = Vec::new();
        for name in &self.on {
            let capture = |variant: &Variant, seed| self.pcap.as_deref().map(|directory| capture_prefix(directory, variant, seed));
            planned.extend(runner::plan(&variants, seeds, RunOrder::ByVariant, |variant, seed| name.engine(capture(variant, seed))));
        }
        let (mut outcomes, failure) = runs::run_all(planned, self.flags.options(self.json));
        outcome::add_ci95(&mut outcomes);
        if let Some(path) = &self.page
            && !outcomes.is_empty()
        {
            let scenario = &variants[0].scenario;
            output::write_page(path, &report::page(&scenario.name, &scenario.about, &[], &outcomes))?;
        }
        if let Some(to) = &self.to
            && !outcomes.is_empty()
        {
            to.write(&RunTable::new(&outcomes, false))?;
        }
        if self.json {
            out!("{}", report::json(&outcomes, self.series));
        } else if !outcomes.is_empty() {
            let width = output::width();
            let tables = [report::table(&outcomes, width), report::accounts_table(&outcomes, width), report::links_table(&outcomes, width)];
            out!("{}", tables.into_iter().filter(|table| !table.is_empty()).collect::<Vec<_>>().join("\n"));
            if let Some(path) = &self.page {
                outln!("\nplots: {}", path.display());
            }
        }
        failure.map_or(Ok(()), Err)
    }
}

/// A file for a table of runs.
#[derive(Debug, Clone)]
struct TableFile {
    path: PathBuf,
    format: TableFormat,
}

#[derive(Debug, Clone, Copy)]
enum TableFormat {
    Csv,
    Parquet,
}

impl FromStr for TableFile {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let path = PathBuf::from(text);
        let format = match path.extension().and_then(|extension| extension.to_str()) {
            Some("csv") => TableFormat::Csv,
            Some("parquet") => TableFormat::Parquet,
            _ => return Err(format!("cannot tell the format of {text}: name it FILE.csv or FILE.parquet")),
        };
        Ok(TableFile { path, format })
    }
}

impl TableFile {
    fn write(&self, table: &RunTable) -> Result<(), CommandError> {
        let content = match self.format {
            TableFormat::Csv => report::run_csv(table).into_bytes(),
            TableFormat::Parquet => report::run_parquet(table),
        };
        fs::write(&self.path, content)
            .map_err(|why| CommandError::Failed(format!("cannot write the table of runs to {}: {why}", self.path.display())))
    }
}

/// Returns the common prefix of a run's capture file names.
fn capture_prefix(directory: &Path, variant: &Variant, seed: u64) -> PathBuf {
    let case = if variant.case.is_empty() { String::new() } else { format!("-{}", variant.case) };
    let name = format!("{}{case}-seed{seed}-", variant.scenario.name);
    directory.join(name.replace(|c: char| !c.is_alphanumeric() && !"-_.=".contains(c), "_"))
}
