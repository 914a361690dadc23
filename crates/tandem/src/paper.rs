//! `tandem paper`: reproduces tables and figures of the papers beside the printed values.

use crate::{
    CommandError, output,
    runs::{self, EngineName, RunFlags},
};
use clap::{Args, builder::NonEmptyStringValueParser};
use outcome::Outcome;
use papers::{EngineKind, EnginePlan, EquationTable, Experiment, Paper, PaperEntry, PaperError};
use report::PlainTable;
use runner::{RunOrder, SeedRange};
use std::{fs, path::PathBuf};

/// Reproduce a table or figure of the papers beside its printed values; without ID, list them
#[derive(Debug, Args)]
pub(crate) struct PaperCommand {
    /// Table or figure: li/fig-3
    id: Option<String>,
    /// Engines that run it: theory, sim, lab [default: those that the experiment names, without the
    /// lab unless it names no other; the lab needs root and runs in real time]. Cases that an
    /// engine does not support are left out with a note. Exit status 3 if an engine given here
    /// supports no case
    #[arg(long, value_name = "ENGINE", value_delimiter = ',')]
    on: Vec<EngineKind>,
    /// Number of seeds [default: that of the experiment]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    seeds: Option<u64>,
    /// Run only the cases whose names begin with this; may be repeated
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    case: Vec<String>,
    /// Print JSON: a list with one outcome per engine, case and seed, which --from reads
    #[arg(long)]
    json: bool,
    /// Add time series to the JSON
    #[arg(long, requires = "json")]
    series: bool,
    /// Print the tables as Markdown
    #[arg(long, conflicts_with = "json")]
    markdown: bool,
    /// Run nothing, and read the outcomes of earlier runs (--json) from these files
    #[arg(long, value_name = "FILE", value_delimiter = ',')]
    from: Vec<PathBuf>,
    /// Write a self-contained web page with plots
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
    #[command(flatten)]
    flags: RunFlags,
}

impl From<PaperError> for CommandError {
    fn from(error: PaperError) -> Self {
        CommandError::Usage(error.to_string())
    }
}

impl PaperCommand {
    pub(crate) fn run(self) -> Result<(), CommandError> {
        let Some(id) = &self.id else { return self.list() };
        match Paper::find(id)? {
            (paper, PaperEntry::Experiment(experiment)) => self.experiment(id, &paper, &experiment),
            (paper, PaperEntry::Equations(table)) => self.equations(id, &paper, &table),
        }
    }

    fn list(&self) -> Result<(), CommandError> {
        let papers = papers::papers()?;
        if self.json {
            out!("{}", report::paper_list_json(&papers));
        } else {
            out!("{}", report::paper_list(&papers, output::width()));
        }
        Ok(())
    }

    /// Prints a table that equations compute.
    fn equations(&self, id: &str, paper: &Paper, table: &EquationTable) -> Result<(), CommandError> {
        let of_scenarios = [!self.on.is_empty(), !self.case.is_empty(), self.series, !self.from.is_empty()];
        if of_scenarios.contains(&true) {
            return Err(CommandError::Usage(format!(
                "{id} is computed by equations, not from scenarios: --on, --case, --series and --from do not apply"
            )));
        }
        if self.seeds.is_some() && table.default_seeds().is_none() {
            return Err(CommandError::Usage(format!("{id} is not computed over seeds: --seeds does not apply")));
        }
        let figure = table.figure(self.seeds)?;
        let computed = &figure.table;
        if let Some(path) = &self.page {
            let about = format!("{}, \"{}\"", paper.authors, paper.title);
            output::write_page(path, &report::computed_page(&format!("{id}: {}", table.title), &about, &figure))?;
        }
        if self.json {
            out!("{}", report::computed_json(id, computed));
            return Ok(());
        }
        self.print_title(id, paper, &table.title);
        out!("{}", self.drawn(&report::computed_table(computed)));
        self.print_lines(&computed.notes);
        if let Some(path) = &self.page {
            outln!("\nplots: {}", path.display());
        }
        Ok(())
    }

    /// Runs an experiment and prints its tables.
    fn experiment(&self, id: &str, paper: &Paper, experiment: &Experiment) -> Result<(), CommandError> {
        let engines = match (&self.on[..], self.from.first()) {
            ([], None) => experiment.default_engines(),
            ([], Some(_)) => experiment.on.clone(),
            (asked, _) => asked.to_vec(),
        };
        let mut plans = paper.plans(experiment, &engines)?;
        let names = runs::case_names(&plans[0].variants);
        plans.iter_mut().for_each(|plan| plan.select_cases(&self.case));
        if plans[0].variants.is_empty() {
            return Err(CommandError::Usage(format!("{id} has no such case; it has {names}")));
        }
        if let (Some(awaits), None) = (&experiment.awaits, self.from.first()) {
            return Err(CommandError::CannotTell(format!("{id}: {awaits}")));
        }
        let mut notes = Vec::new();
        let (mut outcomes, failure) = match &self.from[..] {
            [] => self.play(plans.clone(), &mut notes),
            files => (self.earlier(files)?, None),
        };
        outcome::add_ci95(&mut outcomes);
        let judged = experiment.judge(&outcomes);
        if let Some(path) = &self.page {
            let title = format!("{id}: {}", experiment.title);
            let about = plans.iter().find_map(|plan| plan.variants.first()).map_or("", |variant| &variant.scenario.about);
            output::write_page(path, &report::page(&title, about, &report::paper_findings(&judged), &outcomes))?;
        }
        if self.json {
            out!("{}", report::json(&outcomes, self.series));
            notes.iter().for_each(|note| eprintln!("tandem: {note}"));
            return failure.map_or(Ok(()), Err);
        }
        self.print_title(id, paper, &experiment.title);
        out!("{}", self.drawn(&report::numbers_table(experiment, &plans, &outcomes)));
        self.print_lines(&report::paper_remarks(experiment, &outcomes));
        self.print_lines(&notes);
        if !experiment.printed.is_empty() {
            out!("\n{}", self.drawn(&report::printed_table(experiment, &outcomes)));
        }
        if !judged.is_empty() {
            out!("\n{}", self.drawn(&report::claims_table(&judged)));
        }
        if let Some(path) = &self.page {
            outln!("\nplots: {}", path.display());
        }
        failure.map_or(Ok(()), Err)
    }

    /// Runs every case with every seed, one engine after the other, because the load of the others
    /// would disturb the lab. Adds the cases that are left out to `notes`.
    fn play(&self, plans: Vec<EnginePlan>, notes: &mut Vec<String>) -> (Vec<Outcome>, Option<CommandError>) {
        let mut outcomes = Vec::new();
        let mut failure = None;
        for plan in plans {
            let engine = engine_name(plan.engine);
            let (plan, left_out) = plan.answerable(&*engine.engine(None));
            let left_out = plan.left_out_notes(&left_out);
            if plan.variants.is_empty() && (!self.on.is_empty() || outcomes.is_empty()) {
                let why = left_out.first().cloned().unwrap_or_else(|| format!("{} has no case to run", plan.engine));
                failure.get_or_insert(CommandError::CannotTell(why));
            }
            notes.extend(left_out);
            let seeds = SeedRange { first: None, count: self.seeds.unwrap_or(plan.seeds) };
            let planned = runner::plan(&plan.variants, seeds, RunOrder::BySeed, |_, _| engine.engine(None));
            let (more, failed) = runs::run_all(planned, self.flags.options(self.json));
            outcomes.extend(more);
            failure = match (failure, failed) {
                (Some(first), Some(later)) => {
                    eprintln!("tandem: {later}");
                    Some(first)
                }
                (first, later) => first.or(later),
            };
        }
        (outcomes, failure)
    }

    /// Reads the outcomes of earlier runs, and keeps those of the engines given.
    fn earlier(&self, files: &[PathBuf]) -> Result<Vec<Outcome>, CommandError> {
        let mut all: Vec<Outcome> = Vec::new();
        for path in files {
            let wrong = |why: String| {
                CommandError::Usage(format!("cannot read outcomes from {}: {why}; expected a file that --json wrote", path.display()))
            };
            let text = fs::read_to_string(path).map_err(|why| wrong(why.to_string()))?;
            all.extend(serde_json::from_str::<Vec<Outcome>>(&text).map_err(|why| wrong(why.to_string()))?);
        }
        all.retain(|outcome| self.on.is_empty() || self.on.iter().any(|engine| engine.name() == outcome.engine));
        Ok(all)
    }

    fn drawn(&self, table: &PlainTable) -> String {
        if self.markdown { table.markdown() } else { table.text(output::width()) }
    }

    fn print_title(&self, id: &str, paper: &Paper, title: &str) {
        self.print_lines(&[format!("{id}: {title}"), format!("{}, \"{}\"", paper.authors, paper.title), String::new()]);
    }

    /// Prints lines, wrapped to the terminal except in Markdown.
    fn print_lines(&self, lines: &[String]) {
        let width = output::width().filter(|_| !self.markdown);
        lines.iter().for_each(|line| outln!("{}", report::wrap(line, width)));
    }
}

fn engine_name(engine: EngineKind) -> EngineName {
    match engine {
        EngineKind::Lab => EngineName::Lab,
        EngineKind::Sim => EngineName::Sim,
        EngineKind::Theory => EngineName::Theory,
    }
}
