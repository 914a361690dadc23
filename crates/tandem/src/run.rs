//! `tandem run`: plays a scenario file.

use crate::{
    Failure, output,
    runs::{self, EngineName, RunFlags},
};
use clap::Args;
use runner::{RunOrder, SeedRange};
use scenario::{Assignment, Variant};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Plays a scenario file, with all its cases, and prints the results.
#[derive(Debug, Args)]
pub(crate) struct Run {
    /// The scenario
    file: PathBuf,
    /// Plays this case alone, where the file has several; may be given several times
    #[arg(long = "case", value_name = "NAME")]
    cases: Vec<String>,
    /// Which engines answer
    #[arg(long, value_enum, value_delimiter = ',', default_value = "lab")]
    on: Vec<EngineName>,
    /// Changes a key, or sweeps it over several values: control.proxy=cubic,bbr
    #[arg(long = "set", value_name = "KEY=VALUE[,VALUE…]")]
    sets: Vec<Assignment>,
    /// Seed of all random numbers, instead of the file's
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Plays with this many seeds and gives intervals of the mean
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    seeds: u64,
    /// Prints JSON: a list, one outcome for each engine, case and seed
    #[arg(long)]
    json: bool,
    /// Adds numbers over time to the JSON
    #[arg(long, requires = "json")]
    series: bool,
    /// Writes a page with plots, which opens offline
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
    /// Writes the packets that each host sent and received, as pcapng files
    #[arg(long, value_name = "DIR")]
    pcap: Option<PathBuf>,
    #[command(flatten)]
    flags: RunFlags,
}

impl Run {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let variants = runs::select_cases(runs::read_variants(&self.file, &self.sets)?, &self.cases)?;
        if let Some(directory) = &self.pcap {
            fs::create_dir_all(directory)
                .map_err(|why| Failure::Failed(format!("cannot make the directory {} for captures: {why}", directory.display())))?;
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
        if self.json {
            out!("{}", report::json(&outcomes, self.series));
        } else if !outcomes.is_empty() {
            let width = output::width();
            out!("{}\n{}", report::table(&outcomes, width), report::links_table(&outcomes, width));
            if let Some(path) = &self.page {
                outln!("\nplots: {}", path.display());
            }
        }
        failure.map_or(Ok(()), Err)
    }
}

/// The beginning of the names of a run's captures.
fn capture_prefix(directory: &Path, variant: &Variant, seed: u64) -> PathBuf {
    let case = if variant.case.is_empty() { String::new() } else { format!("-{}", variant.case) };
    let name = format!("{}{case}-seed{seed}-", variant.scenario.name);
    directory.join(name.replace(|c: char| !c.is_alphanumeric() && !"-_.=".contains(c), "_"))
}
