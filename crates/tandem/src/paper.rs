//! `tandem paper`: reproduces tables and figures of the papers beside the printed values.

mod documents;
mod play;

use crate::{CommandError, output, runs::RunFlags};
use clap::{Args, builder::NonEmptyStringValueParser};
use outcome::Outcome;
use papers::{EQUATIONS, EngineKind, EquationTable, Experiment, Paper, PaperEntry, PaperError, Record};
use play::Played;
use report::{PaperAnswer, PaperResult, PlainTable};
use serde::Deserialize;
use std::{collections::BTreeMap, fs, path::PathBuf, time::Instant};

/// Reproduce tables and figures of the papers beside their printed values; without ID, list them
#[derive(Debug, Args)]
pub(crate) struct PaperCommand {
    /// Table or figure: li/fig-3; or the beginning of several: joshi
    id: Option<String>,
    /// All tables and figures of all papers
    #[arg(long, conflicts_with = "id")]
    all: bool,
    /// Engines that run it: theory, sim, compose, lab [default: those that the experiment names,
    /// without the lab unless it names no other; the lab needs root and runs in real time]. Cases
    /// that an engine does not support are left out with a note. Exit status 3 if an engine given
    /// here supports no case
    #[arg(long, value_name = "ENGINE", value_delimiter = ',')]
    on: Vec<EngineKind>,
    /// Number of seeds [default: that of the experiment]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    seeds: Option<u64>,
    /// Run only the case of this name, with its variations; if there is none, the cases whose names
    /// begin with this. May be repeated
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    case: Vec<String>,
    /// Print JSON: a list with an object for each table or figure, with its claims, verdicts and
    /// outcomes; --from reads it
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
    /// Run nothing, and show the outcomes that are recorded in this program, with the machine and
    /// the date of their runs
    #[arg(long, conflicts_with_all = ["from", "seeds", "series"])]
    recorded: bool,
    /// Keep the outcomes in this directory: papers/ of the sources
    #[arg(long, value_name = "DIR", hide = true, conflicts_with_all = ["from", "recorded", "case"])]
    record: Option<PathBuf>,
    /// Make the tables of these pages of the recorded outcomes: docs/papers.md
    #[arg(long, value_name = "PAGE", hide = true, value_delimiter = ',', conflicts_with_all = ["id", "all", "recorded", "from"])]
    render: Vec<PathBuf>,
    /// Write a self-contained web page with plots
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
    #[command(flatten)]
    flags: RunFlags,
}

impl From<PaperError> for CommandError {
    fn from(error: PaperError) -> Self {
        match error {
            PaperError::Measurement(_) => CommandError::Failed(error.to_string()),
            other => CommandError::Usage(other.to_string()),
        }
    }
}

impl PaperCommand {
    pub(crate) fn run(self) -> Result<(), CommandError> {
        if !self.render.is_empty() {
            return documents::render(&self.render);
        }
        let Some(asked) = self.id.as_deref().or(self.all.then_some("")) else { return self.list() };
        let mut selected = Paper::select(asked)?;
        match selected.len() {
            1 => {
                let (paper, entry) = selected.remove(0);
                self.one(&paper, &entry)
            }
            _ => self.several(asked, selected),
        }
    }

    fn list(&self) -> Result<(), CommandError> {
        let papers = papers::papers()?;
        let mut times = BTreeMap::new();
        for (paper, entry) in Paper::select("")? {
            let id = paper.identifier(entry.id());
            if let Some(record) = Record::embedded(&id)? {
                times.insert(id, record.runs.iter().map(|run| (run.engine.clone(), run.seconds)).collect());
            }
        }
        if self.json {
            out!("{}", report::paper_list_json(&papers, &times));
        } else {
            out!("{}", report::paper_list(&papers, &times, output::width()));
        }
        Ok(())
    }

    /// Answers one entry and prints its tables.
    fn one(&self, paper: &Paper, entry: &PaperEntry) -> Result<(), CommandError> {
        let (result, failure) = self.answer(paper, entry)?;
        if let Some(path) = &self.page {
            output::write_page(path, &page(&result))?;
        }
        if self.json {
            out!("{}", report::paper_results_json(std::slice::from_ref(&result), self.series));
            result.notes.iter().for_each(|note| eprintln!("tandem: {note}"));
            return failure.map_or(Ok(()), Err);
        }
        let title = [format!("{}: {}", result.id, result.title), format!("{}, \"{}\"", paper.authors, paper.title), String::new()];
        self.print_lines(&title);
        let mut tables = result.tables().into_iter();
        if let Some((_, numbers)) = tables.next() {
            out!("{}", self.drawn(&numbers));
        }
        self.print_lines(&result.remarks());
        for (_, table) in tables {
            out!("\n{}", self.drawn(&table));
        }
        let claims = report::claims_summary(std::slice::from_ref(&result), str::to_owned);
        if claims.rows.iter().any(|row| row.last().is_some_and(|settings| !settings.is_empty())) {
            out!("\n{}", self.drawn(&claims));
        }
        if self.recorded {
            self.print_lines(&result.runs().into_iter().map(report::circumstances).collect::<Vec<_>>());
        }
        if let Some(path) = &self.page {
            outln!("\nplots: {}", path.display());
        }
        failure.map_or(Ok(()), Err)
    }

    /// Answers several entries, and prints a summary of their claims. An entry that cannot be
    /// answered is named and left out; the first such failure is the command's.
    fn several(&self, asked: &str, selected: Vec<(Paper, PaperEntry)>) -> Result<(), CommandError> {
        if !self.case.is_empty() {
            return Err(CommandError::Usage("--case needs one table or figure: cases have different names in others".into()));
        }
        let (mut results, mut failures) = (Vec::new(), Vec::new());
        for (paper, entry) in selected {
            if self.is_left_out(&entry) {
                continue;
            }
            let id = paper.identifier(entry.id());
            match self.answer(&paper, &entry) {
                Ok((mut result, failure)) => {
                    self.beside(&mut result)?;
                    results.push(result);
                    failures.extend(failure.map(|failure| (id, failure)));
                }
                Err(failure) => failures.push((id, failure)),
            }
        }
        if let Some(path) = &self.page {
            let title = if asked.is_empty() { "Six papers, repeated".to_owned() } else { format!("{asked}, repeated") };
            output::write_page(path, &report::papers_page(&title, &results))?;
        }
        if self.json {
            out!("{}", report::paper_results_json(&results, self.series));
        } else {
            out!("{}\n{}", self.drawn(&report::claims_summary(&results, str::to_owned)), self.drawn(&report::claims_counts(&results)));
            if let Some(path) = &self.page {
                outln!("\npage: {}", path.display());
            }
        }
        failures.iter().for_each(|(id, failure)| eprintln!("tandem: {id}: {failure}"));
        failures.into_iter().next().map_or(Ok(()), |(_, failure)| Err(failure))
    }

    /// Whether an entry is left out where several are answered: it cannot be answered yet, or needs
    /// root and real time, and the lab is not asked for.
    fn is_left_out(&self, entry: &PaperEntry) -> bool {
        match entry {
            PaperEntry::Experiment(experiment) => experiment.awaits.is_some(),
            PaperEntry::Equations(table) => table.is_measured() && !self.on.contains(&EngineKind::Lab),
        }
    }

    /// Adds the recorded outcomes of engines that were not run.
    fn beside(&self, result: &mut PaperResult) -> Result<(), CommandError> {
        let PaperAnswer::Played { runs, outcomes, .. } = &mut result.answer else { return Ok(()) };
        if self.recorded || !self.from.is_empty() || !self.on.is_empty() {
            return Ok(());
        }
        let record = Record::embedded(&result.id)?.unwrap_or_default();
        let played: Vec<String> = runs.iter().map(|run| run.engine.clone()).collect();
        outcomes.extend(record.outcomes.into_iter().filter(|outcome| !played.contains(&outcome.engine)));
        runs.extend(record.runs.into_iter().filter(|run| !played.contains(&run.engine)));
        Ok(())
    }

    fn answer(&self, paper: &Paper, entry: &PaperEntry) -> Result<(PaperResult, Option<CommandError>), CommandError> {
        let id = paper.identifier(entry.id());
        let (title, (answer, notes, failure)) = match entry {
            PaperEntry::Experiment(experiment) => (&experiment.title, self.experiment(&id, paper, experiment)?),
            PaperEntry::Equations(table) => (&table.title, self.equations(&id, table)?),
        };
        let result = PaperResult { id, title: title.clone(), paper: paper.title.clone(), authors: paper.authors.clone(), answer, notes };
        Ok((result, failure))
    }

    /// Computes a table.
    fn equations(&self, id: &str, table: &EquationTable) -> Result<(PaperAnswer, Vec<String>, Option<CommandError>), CommandError> {
        let is_one = self.id.as_deref() == Some(id);
        let of_scenarios = [!self.on.is_empty(), !self.case.is_empty(), self.series, !self.from.is_empty()];
        if is_one && of_scenarios.contains(&true) {
            return Err(CommandError::Usage(format!(
                "{id} is computed by equations, not from scenarios: --on, --case, --series and --from do not apply"
            )));
        }
        if is_one && self.seeds.is_some() && table.default_seeds().is_none() {
            return Err(CommandError::Usage(format!("{id} is not computed over seeds: --seeds does not apply")));
        }
        let seeds = self.seeds.filter(|_| table.default_seeds().is_some());
        let (figure, run) = if self.recorded {
            let recorded = Record::embedded(id)?.and_then(|record| {
                let run = record.runs.first().cloned();
                Some((record.figure()?, run))
            });
            recorded.ok_or_else(|| {
                CommandError::CannotTell(format!(
                    "{id} is not recorded: leave --recorded out to compute it, or give --on lab if it is measured"
                ))
            })?
        } else {
            let begun = Instant::now();
            let figure = table.figure(seeds)?;
            let engine = if table.is_measured() { EngineKind::Lab.name() } else { EQUATIONS };
            let run = play::circumstances(engine, seeds.or(table.default_seeds()).unwrap_or(0), begun);
            if let Some(papers) = &self.record {
                Record::of_figure(run.clone(), figure.clone()).store(papers, id)?;
            }
            (figure, Some(run))
        };
        Ok((PaperAnswer::Computed { figure, run }, Vec::new(), None))
    }

    /// Runs an experiment, or reads its outcomes.
    fn experiment(
        &self,
        id: &str,
        paper: &Paper,
        experiment: &Experiment,
    ) -> Result<(PaperAnswer, Vec<String>, Option<CommandError>), CommandError> {
        let reads = self.recorded || !self.from.is_empty();
        let engines = match (&self.on[..], reads) {
            ([], false) => experiment.default_engines(),
            ([], true) => experiment.on.clone(),
            // Of several entries, each is run on those that it names.
            (asked, _) if self.id.as_deref() != Some(id) => asked.iter().copied().filter(|engine| experiment.on.contains(engine)).collect(),
            (asked, _) => asked.to_vec(),
        };
        let mut plans = paper.plans(experiment, &engines)?;
        if let Some(plan) = plans.first() {
            let names = crate::runs::case_names(&plan.variants);
            plans.iter_mut().for_each(|plan| plan.select_cases(&self.case));
            if plans[0].variants.is_empty() {
                return Err(CommandError::Usage(format!("{id} has no such case; it has {names}")));
            }
        }
        if let (Some(awaits), false) = (&experiment.awaits, reads) {
            return Err(CommandError::CannotTell(format!("{id}: {awaits}")));
        }
        let mut played = match (self.recorded, &self.from[..]) {
            (true, _) => Played::of(Record::embedded(id)?.unwrap_or_default()),
            (false, []) => play::play(plans.clone(), self.seeds, !self.on.is_empty(), self.flags.options(self.json)),
            (false, files) => Played { outcomes: self.earlier(files, id)?, ..Played::default() },
        };
        let asked = |engine: &str| self.on.is_empty() || self.on.iter().any(|one| one.name() == engine);
        played.outcomes.retain(|outcome| asked(&outcome.engine));
        played.runs.retain(|run| asked(&run.engine));
        // What was interrupted, or failed in part, is no record.
        if let (Some(papers), None) = (&self.record, &played.failure) {
            play::record(papers, id, &plans, &played)?;
        }
        outcome::add_ci95(&mut played.outcomes);
        let Played { outcomes, runs, notes, failure } = played;
        Ok((PaperAnswer::Played { experiment: Box::new(experiment.clone()), plans, runs, outcomes }, notes, failure))
    }

    /// Reads the outcomes of earlier runs: of this entry where the file says of which they are.
    fn earlier(&self, files: &[PathBuf], id: &str) -> Result<Vec<Outcome>, CommandError> {
        let mut all = Vec::new();
        for path in files {
            let wrong = |why: String| {
                CommandError::Usage(format!("cannot read outcomes from {}: {why}; expected a file that --json wrote", path.display()))
            };
            let text = fs::read_to_string(path).map_err(|why| wrong(why.to_string()))?;
            let read: EarlierRuns = serde_json::from_str(&text).map_err(|why| wrong(why.to_string()))?;
            all.extend(match read {
                EarlierRuns::Entries(entries) => {
                    entries.into_iter().filter(|entry| entry.id == id).flat_map(|entry| entry.outcomes).collect()
                }
                EarlierRuns::Outcomes(outcomes) => outcomes,
            });
        }
        Ok(all)
    }

    fn drawn(&self, table: &PlainTable) -> String {
        if self.markdown { table.markdown() } else { table.text(output::width()) }
    }

    /// Prints lines, wrapped to the terminal except in Markdown.
    fn print_lines(&self, lines: &[String]) {
        let width = output::width().filter(|_| !self.markdown);
        lines.iter().for_each(|line| outln!("{}", report::wrap(line, width)));
    }
}

/// What --json of `tandem paper` or of `tandem run` wrote.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "it is not a list of outcomes, or of objects with outcomes")]
enum EarlierRuns {
    Entries(Vec<EarlierEntry>),
    Outcomes(Vec<Outcome>),
}

#[derive(Debug, Deserialize)]
struct EarlierEntry {
    id: String,
    #[serde(default)]
    outcomes: Vec<Outcome>,
}

/// The page of one entry.
fn page(result: &PaperResult) -> String {
    let title = format!("{}: {}", result.id, result.title);
    match &result.answer {
        PaperAnswer::Played { experiment, plans, outcomes, .. } => {
            let about = plans.iter().find_map(|plan| plan.variants.first()).map_or("", |variant| &variant.scenario.about);
            report::page(&title, about, &report::paper_findings(&experiment.judge(outcomes)), outcomes)
        }
        PaperAnswer::Computed { figure, .. } => report::computed_page(&title, &format!("{}, \"{}\"", result.authors, result.paper), figure),
    }
}
