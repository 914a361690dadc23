//! `tandem paper`: a table or figure of the papers, ours beside theirs.

use crate::{
    Failure,
    answer::{self, Manner, Question},
};
use clap::{Args, builder::NonEmptyStringValueParser};
use experiments::{BOUNDED, Claim, Experiment, Judgement, Mean, PaperError, Printed, Row, Verdict};
use report::Quantity;
use scenario::{Outcome, Variant};
use std::{collections::BTreeSet, fs, path::PathBuf};

/// A table or figure of the papers, ours beside theirs; without a name, a list of them
#[derive(Debug, Args)]
pub(crate) struct Paper {
    /// Which: li/fig-3
    id: Option<String>,
    /// With how many seeds (default: as many as the experiment asks for)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    seeds: Option<u64>,
    /// Only the cases whose names begin so
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = NonEmptyStringValueParser::new())]
    case: Vec<String>,
    /// Prints JSON: the outcomes, one a case and seed; --from reads them
    #[arg(long)]
    json: bool,
    /// Adds numbers over time to the JSON
    #[arg(long, requires = "json")]
    series: bool,
    /// Writes the tables as Markdown
    #[arg(long, conflicts_with = "json")]
    markdown: bool,
    /// Plays nothing: takes the outcomes of earlier --json from these files
    #[arg(long, value_name = "FILE", value_delimiter = ',')]
    from: Vec<PathBuf>,
    /// Writes a page with plots, which opens offline
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
    #[command(flatten)]
    manner: Manner,
}

impl From<PaperError> for Failure {
    fn from(error: PaperError) -> Self {
        Failure::Usage(error.to_string())
    }
}

impl Paper {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let Some(id) = &self.id else { return list(self.json) };
        let (paper, experiment) = experiments::Paper::find(id)?;
        let mut variants = paper.variants(&experiment)?;
        if !self.case.is_empty() {
            let names: Vec<String> = variants.iter().map(|variant| format!("{:?}", variant.case)).collect();
            variants.retain(|variant| self.case.iter().any(|case| variant.case.starts_with(case)));
            if variants.is_empty() {
                return Err(Failure::Usage(format!("{id} has no such case; it has {}", names.join(", "))));
            }
        }
        if let (Some(awaits), None) = (&experiment.awaits, self.from.first()) {
            return Err(Failure::CannotTell(format!("{id}: {awaits}")));
        }
        let seeds = self.seeds.unwrap_or(experiment.seeds);
        let (mut outcomes, failure) = if self.from.is_empty() { self.play(&variants, seeds) } else { (earlier(&self.from)?, None) };
        scenario::add_ci95(&mut outcomes);
        let judged = claims(&experiment, &outcomes);
        if let Some(path) = &self.page {
            let notes: Vec<String> = judged.iter().map(|row| format!("{}: {} ({})", row[0], row[2], row[1])).collect();
            let title = format!("{id}: {}", experiment.title);
            answer::write_page(path, &report::page(&title, &variants[0].scenario.about, &notes, &outcomes))?;
        }
        if self.json {
            print!("{}", report::json(&outcomes, self.series));
        } else {
            println!("{id}: {}\n{}, \"{}\"\n", experiment.title, paper.authors, paper.title);
            print!("{}", self.drawn(numbers(&experiment, &variants, &outcomes)));
            println!("{}", remarks(&experiment, &outcomes));
            if !experiment.printed.is_empty() {
                print!("\n{}", self.drawn(beside(&experiment, &outcomes)));
            }
            if !judged.is_empty() {
                print!("\n{}", self.drawn((["the paper says", "ratio here", "verdict"].map(str::to_owned).to_vec(), judged)));
            }
            if let Some(path) = &self.page {
                println!("\nplots: {}", path.display());
            }
        }
        failure.map_or(Ok(()), Err)
    }

    /// A table: its header, and its rows.
    fn drawn(&self, (header, rows): (Vec<String>, Vec<Vec<String>>)) -> String {
        let draw = if self.markdown { report::markdown_table } else { report::words_table };
        draw(&header.iter().map(String::as_str).collect::<Vec<_>>(), &rows)
    }

    /// Plays every case with every seed: a seed's cases one after the other, so that what disturbs the machine for a while disturbs all alike.
    fn play(&self, variants: &[Variant], seeds: u64) -> (Vec<Outcome>, Option<Failure>) {
        let mut questions = Vec::new();
        for seed in 0..seeds {
            for variant in variants {
                let seed = variant.scenario.seed + seed;
                questions.push(Question { engine: Box::new(lab::Lab::default()), variant, seed });
            }
        }
        answer::part(answer::ask(questions, Manner { quiet: self.manner.quiet || self.json, ..self.manner }))
    }
}

fn list(json: bool) -> Result<(), Failure> {
    let papers = experiments::papers()?;
    if json {
        let one = |paper: &experiments::Paper, experiment: &Experiment| {
            serde_json::json!({
                "id": format!("{}/{}", paper.key, experiment.id), "title": experiment.title, "paper": paper.title, "authors": paper.authors,
                "awaits": experiment.awaits,
            })
        };
        let all: Vec<_> = papers.iter().flat_map(|paper| paper.experiments.iter().map(|experiment| one(paper, experiment))).collect();
        println!("{}", serde_json::to_string_pretty(&all).expect("it has only text keys"));
        return Ok(());
    }
    for paper in papers {
        println!("{}: \"{}\"", paper.authors, paper.title);
        let row = |experiment: &Experiment| {
            let awaits = experiment.awaits.as_ref().map(|awaits| format!(" ({awaits})")).unwrap_or_default();
            vec![format!("{}/{}", paper.key, experiment.id), format!("{}{awaits}", experiment.title)]
        };
        println!("{}", report::words_table(&["tandem paper", ""], &paper.experiments.iter().map(row).collect::<Vec<_>>()));
    }
    Ok(())
}

/// Outcomes that an earlier run wrote.
fn earlier(paths: &[PathBuf]) -> Result<Vec<Outcome>, Failure> {
    let mut all = Vec::new();
    for path in paths {
        let wrong = |why: String| Failure::Usage(format!("cannot read outcomes from {}: {why}; it is what --json writes", path.display()));
        let text = fs::read_to_string(path).map_err(|why| wrong(why.to_string()))?;
        all.extend(serde_json::from_str::<Vec<Outcome>>(&text).map_err(|why| wrong(why.to_string()))?);
    }
    Ok(all)
}

/// The numbers of the experiment: a row a case, and how far its times are from the bound.
fn numbers(experiment: &Experiment, variants: &[Variant], outcomes: &[Outcome]) -> (Vec<String>, Vec<Vec<String>>) {
    let rows = experiment.rows(variants, outcomes);
    let (mut header, cases) = report::case_columns(&rows.iter().map(|row| row.case.as_str()).collect::<Vec<_>>());
    let quantities: Vec<Quantity> = experiment.numbers.iter().map(|number| Quantity::named(number)).collect();
    let bounded = if experiment.bound { BOUNDED.map(Quantity::named).to_vec() } else { Vec::new() };
    header.extend(quantities.iter().map(|quantity| quantity.head.to_owned()));
    header.extend(bounded.iter().map(|quantity| format!("bound: {}, ratio", quantity.head)));
    header.push("valid".into());
    let row = |(row, mut cells): (&Row, Vec<String>)| {
        cells.extend(quantities.iter().zip(&row.numbers).map(|(quantity, number)| spread(*quantity, *number)));
        cells.extend(bounded.iter().zip(&row.bounds).map(|(quantity, bound)| match bound {
            Some((least, ratio)) => format!("{}, {}", quantity.write(least.mean), spread(Quantity::RATIO, Some(*ratio))),
            None => Quantity::RATIO.spread(None),
        }));
        cells.push(format!("{} of {}", row.valid, row.seeds));
        cells
    };
    let rows = rows.iter().zip(cases).map(row).collect();
    (header, rows)
}

fn spread(quantity: Quantity, mean: Option<Mean>) -> String {
    quantity.spread(mean.map(|mean| (mean.mean, mean.half)))
}

fn remarks(experiment: &Experiment, outcomes: &[Outcome]) -> String {
    let seeds: BTreeSet<u64> = outcomes.iter().map(|outcome| outcome.seed).collect();
    let mut said = Vec::new();
    if seeds.len() > 1 {
        said.push("Means over the seeds that are valid; ± is half the width of the 95 % interval of the mean.");
    }
    if experiment.bound {
        said.push("The bound: packets of all flows take turns, losses are known a round trip after sending, and go first.");
    }
    said.join("\n")
}

/// What the paper prints beside what is here.
fn beside(experiment: &Experiment, outcomes: &[Outcome]) -> (Vec<String>, Vec<Vec<String>>) {
    let row = |printed: &Printed| {
        let quantity = Quantity::named(&printed.number);
        let here = spread(quantity, printed.here(outcomes));
        vec![format!("{}, {}", printed.case, quantity.head), quantity.write(printed.value), here, printed.note.clone()]
    };
    (["number", "printed", "here", "note"].map(str::to_owned).to_vec(), experiment.printed.iter().map(row).collect())
}

/// What the paper claims, the ratio as measured, and the verdict.
fn claims(experiment: &Experiment, outcomes: &[Outcome]) -> Vec<Vec<String>> {
    let row = |claim: &Claim| {
        let judged = claim.judge(outcomes);
        let verdict = match judged {
            Some(Judgement { ratio: Mean { seeds: 1, .. }, verdict }) => format!("{verdict} (one seed)"),
            Some(Judgement { verdict, .. }) => verdict.to_string(),
            None => Verdict::Open.to_string(),
        };
        vec![claim.says.clone(), spread(Quantity::RATIO, judged.map(|judged| judged.ratio)), verdict]
    };
    experiment.claims.iter().map(row).collect()
}
