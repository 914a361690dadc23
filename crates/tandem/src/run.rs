//! `tandem run`: plays a scenario file.

use crate::{
    Failure,
    answer::{self, Manner, Question},
};
use clap::{Args, ValueEnum};
use outcome::Engine;
use scenario::{Assignment, ScenarioFile, Variant};
use std::{fs, path::PathBuf};

/// Plays a scenario file, with all its cases, and prints what came out.
#[derive(Debug, Args)]
pub(crate) struct Run {
    /// The scenario
    file: PathBuf,
    /// Plays this case alone, where the file has several; may be given several times
    #[arg(long = "case", value_name = "NAME")]
    cases: Vec<String>,
    /// Who answers
    #[arg(long, value_enum, value_delimiter = ',', default_value = "lab")]
    on: Vec<EngineName>,
    /// Changes a key, or sweeps it over several values: control.proxy=cubic,bbr
    #[arg(long = "set", value_name = "KEY=VALUE[,VALUE…]")]
    sets: Vec<Assignment>,
    /// Seed of every random number, instead of the file's
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Plays with so many seeds and gives intervals of the mean
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    seeds: u64,
    /// Prints JSON: a list, one an engine and case and seed
    #[arg(long)]
    json: bool,
    /// Adds numbers over time to the JSON
    #[arg(long, requires = "json")]
    series: bool,
    /// Writes a page with plots, which opens offline
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
    /// Writes what each host sent and received, as pcapng files
    #[arg(long, value_name = "DIR")]
    pcap: Option<PathBuf>,
    #[command(flatten)]
    manner: Manner,
}

/// The engines there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum EngineName {
    /// The real kernel, in network namespaces
    Lab,
    /// Packets in virtual time
    Sim,
    /// The equations: the steady state of one connection, split or not
    Theory,
    /// Nobody: what fair sharing of the bottleneck allows at best
    Bound,
}

/// Those variants that are of one of these cases; all where none is named.
pub(crate) fn pick(variants: Vec<Variant>, cases: &[String]) -> Result<Vec<Variant>, Failure> {
    if let Some(case) = cases.iter().find(|case| !variants.iter().any(|variant| variant.case == **case)) {
        if variants.iter().all(|variant| variant.case.is_empty()) {
            return Err(Failure::Usage(format!("there is no case {case:?}: this scenario has no cases, so leave --case out")));
        }
        let names = variants.iter().map(|variant| format!("{:?}", variant.case)).collect::<Vec<_>>().join(", ");
        return Err(Failure::Usage(format!("there is no case {case:?} in this scenario; there are {names}")));
    }
    let is_wanted = |variant: &Variant| cases.is_empty() || cases.contains(&variant.case);
    Ok(variants.into_iter().filter(is_wanted).collect())
}

/// Reads a scenario file and makes its variants.
pub(crate) fn read(path: &std::path::Path, sets: &[Assignment]) -> Result<Vec<Variant>, Failure> {
    let text = fs::read_to_string(path).map_err(|why| Failure::Usage(format!("cannot read the scenario {}: {why}", path.display())))?;
    ScenarioFile::parse(&text, &path.display().to_string())
        .and_then(|file| file.variants(sets))
        .map_err(|error| Failure::Usage(error.to_string()))
}

impl Run {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let variants = pick(read(&self.file, &self.sets)?, &self.cases)?;
        if let Some(directory) = &self.pcap {
            fs::create_dir_all(directory)
                .map_err(|why| Failure::Failed(format!("cannot make the directory {} for captures: {why}", directory.display())))?;
        }
        let mut questions = Vec::new();
        for name in &self.on {
            for variant in &variants {
                let first = self.seed.unwrap_or(variant.scenario.seed);
                for seed in first..first + self.seeds {
                    questions.push(Question { engine: self.engine(*name, variant, seed), variant, seed });
                }
            }
        }
        let (mut outcomes, failure) = answer::part(answer::ask(questions, Manner { quiet: self.manner.quiet || self.json, ..self.manner }));
        outcome::add_ci95(&mut outcomes);
        if let Some(path) = &self.page
            && !outcomes.is_empty()
        {
            let scenario = &variants[0].scenario;
            answer::write_page(path, &report::page(&scenario.name, &scenario.about, &[], &outcomes))?;
        }
        if self.json {
            out!("{}", report::json(&outcomes, self.series));
        } else if !outcomes.is_empty() {
            out!("{}\n{}", report::table(&outcomes), report::links_table(&outcomes));
            if let Some(path) = &self.page {
                outln!("\nplots: {}", path.display());
            }
        }
        failure.map_or(Ok(()), Err)
    }

    fn engine(&self, name: EngineName, variant: &Variant, seed: u64) -> Box<dyn Engine + Send> {
        match name {
            EngineName::Sim => Box::new(sim::Sim::default()),
            EngineName::Theory => Box::new(theory::Theory),
            EngineName::Bound => Box::new(experiments::Bound),
            EngineName::Lab => {
                let capture = self.pcap.as_ref().map(|directory| {
                    let case = if variant.case.is_empty() { String::new() } else { format!("-{}", variant.case) };
                    let name = format!("{}{case}-seed{seed}-", variant.scenario.name);
                    directory.join(name.replace(|c: char| !c.is_alphanumeric() && !"-_.=".contains(c), "_"))
                });
                Box::new(lab::Lab { capture })
            }
        }
    }
}
