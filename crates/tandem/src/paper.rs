//! `tandem paper`: a table or figure of the papers, ours beside theirs.

use crate::{
    Failure,
    answer::{self, Manner, Question},
};
use clap::{Args, builder::NonEmptyStringValueParser};
use experiments::{BOUNDED, Claim, Entry, Experiment, Judgement, Line, Mean, Model, PaperError, Player, Printed, Row, Sheet, Verdict};
use report::Quantity;
use scenario::{Engine, Outcome, Variant};
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
        match experiments::Paper::find(id)? {
            (paper, Entry::Experiment(experiment)) => self.experiment(id, &paper, &experiment),
            (paper, Entry::Model(model)) => self.model(id, &paper, &model),
        }
    }

    /// What equations answer by themselves.
    fn model(&self, id: &str, paper: &experiments::Paper, model: &Model) -> Result<(), Failure> {
        let of_scenarios = [self.seeds.is_some(), !self.case.is_empty(), self.series, !self.from.is_empty(), self.page.is_some()];
        if of_scenarios.contains(&true) {
            return Err(Failure::Usage(format!(
                "{id} is answered by equations, not by playing scenarios: --seeds, --case, --series, --from and --page are not for it"
            )));
        }
        let sheet = model.answer()?;
        if self.json {
            println!("{}", serde_json::to_string_pretty(&sheet_json(id, &sheet)).expect("it has only text keys"));
            return Ok(());
        }
        println!("{id}: {}\n{}, \"{}\"\n", model.title, paper.authors, paper.title);
        print!("{}", self.drawn(sheet_table(&sheet)));
        for note in &sheet.notes {
            println!("{note}");
        }
        Ok(())
    }

    /// Scenarios, and what their outcomes say.
    fn experiment(&self, id: &str, paper: &experiments::Paper, experiment: &Experiment) -> Result<(), Failure> {
        let mut variants = paper.variants(experiment)?;
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
        let (mut outcomes, failure) =
            if self.from.is_empty() { self.play(experiment, &variants, seeds) } else { (earlier(&self.from)?, None) };
        scenario::add_ci95(&mut outcomes);
        let judged = claims(experiment, &outcomes);
        if let Some(path) = &self.page {
            let notes: Vec<String> = judged.iter().map(|row| format!("{}: {} ({})", row[0], row[2], row[1])).collect();
            let title = format!("{id}: {}", experiment.title);
            answer::write_page(path, &report::page(&title, &variants[0].scenario.about, &notes, &outcomes))?;
        }
        if self.json {
            print!("{}", report::json(&outcomes, self.series));
        } else {
            println!("{id}: {}\n{}, \"{}\"\n", experiment.title, paper.authors, paper.title);
            print!("{}", self.drawn(numbers(experiment, &variants, &outcomes)));
            println!("{}", remarks(experiment, &outcomes));
            if !experiment.printed.is_empty() {
                print!("\n{}", self.drawn(beside(experiment, &outcomes)));
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
    fn play(&self, experiment: &Experiment, variants: &[Variant], seeds: u64) -> (Vec<Outcome>, Option<Failure>) {
        let engine = || -> Box<dyn Engine + Send> {
            match experiment.on {
                Player::Lab => Box::new(lab::Lab::default()),
                Player::Sim => Box::new(sim::Sim::default()),
                Player::Theory => Box::new(theory::Theory),
            }
        };
        let mut questions = Vec::new();
        for seed in 0..seeds {
            for variant in variants {
                let seed = variant.scenario.seed + seed;
                questions.push(Question { engine: engine(), variant, seed });
            }
        }
        answer::part(answer::ask(questions, Manner { quiet: self.manner.quiet || self.json, ..self.manner }))
    }
}

fn list(json: bool) -> Result<(), Failure> {
    let papers = experiments::papers()?;
    if json {
        let of = |paper: &experiments::Paper| -> Vec<serde_json::Value> {
            let one = |(id, title, awaits): (&str, &str, Option<&str>)| {
                serde_json::json!({
                    "id": format!("{}/{id}", paper.key), "title": title, "paper": paper.title, "authors": paper.authors, "awaits": awaits,
                })
            };
            paper.names().map(one).collect()
        };
        println!("{}", serde_json::to_string_pretty(&papers.iter().flat_map(of).collect::<Vec<_>>()).expect("it has only text keys"));
        return Ok(());
    }
    for paper in papers {
        println!("{}: \"{}\"", paper.authors, paper.title);
        let row = |(id, title, awaits): (&str, &str, Option<&str>)| {
            let awaits = awaits.map(|awaits| format!(" ({awaits})")).unwrap_or_default();
            vec![format!("{}/{id}", paper.key), format!("{title}{awaits}")]
        };
        println!("{}", report::words_table(&["tandem paper", ""], &paper.names().map(row).collect::<Vec<_>>()));
    }
    Ok(())
}

/// A sheet as a table: what was printed, what is here, by how much they differ, whether the one is the other, and why not.
fn sheet_table(sheet: &Sheet) -> (Vec<String>, Vec<Vec<String>>) {
    let any = |of: fn(&Line) -> bool| sheet.lines.iter().any(of);
    let (printed, reasons) = (any(|line| line.printed.is_some()), any(|line| !line.why.is_empty()));
    let differs = any(|line| line.differs_percent().is_some());
    let mut header: Vec<String> = sheet.head.iter().map(|head| (*head).to_owned()).collect();
    let columns = [(printed, "the paper"), (true, "here"), (differs, "differs, %"), (printed, "holds"), (reasons, "note")];
    header.extend(columns.iter().filter(|(there, _)| *there).map(|(_, head)| (*head).to_owned()));
    let row = |line: &Line| {
        let holds = line.holds.map_or("", |holds| if holds { "yes" } else { "no" });
        let cells = [
            line.printed.clone().unwrap_or_default(),
            with_interval(line),
            line.differs_percent().map_or(String::new(), |percent| format!("{percent:+.2}")),
            holds.to_owned(),
            line.why.clone(),
        ];
        let there = columns.iter().zip(cells).filter(|((there, _), _)| *there).map(|(_, cell)| cell);
        line.of.iter().cloned().chain(there).collect()
    };
    (header, sheet.lines.iter().map(row).collect())
}

/// The number with its interval, where that shows in so many decimals.
fn with_interval(line: &Line) -> String {
    let decimals = line.decimals;
    let half = format!("{:.decimals$}", line.here.half);
    let number = format!("{:.decimals$}", line.here.mean);
    if half.bytes().all(|byte| matches!(byte, b'0' | b'.')) { number } else { format!("{number} ± {half}") }
}

fn sheet_json(id: &str, sheet: &Sheet) -> serde_json::Value {
    let line = |line: &Line| {
        let of: serde_json::Map<String, serde_json::Value> =
            sheet.head.iter().zip(&line.of).map(|(head, of)| ((*head).to_owned(), of.as_str().into())).collect();
        serde_json::json!({
            "of": of, "printed": line.printed, "here": line.here.mean, "half_width": line.here.half,
            "differs_percent": line.differs_percent(), "holds": line.holds, "note": line.why,
        })
    };
    serde_json::json!({ "id": id, "lines": sheet.lines.iter().map(line).collect::<Vec<_>>(), "notes": sheet.notes })
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
