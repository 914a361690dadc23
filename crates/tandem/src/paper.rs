//! `tandem paper`: a table or figure of the papers, ours beside theirs.

use crate::{
    Failure,
    answer::{self, Question},
};
use clap::Args;
use experiments::{Bound, Experiment, PaperError, Verdict};
use scenario::{Engine, Outcome, Variant, half_width};
use std::{fs, path::PathBuf};

/// A table or figure of the papers, ours beside theirs; without a name, a list of them
#[derive(Debug, Args)]
pub(crate) struct Paper {
    /// Which: li/fig-3
    id: Option<String>,
    /// With how many seeds (default: as many as the experiment asks for)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    seeds: Option<u64>,
    /// Only the cases whose names begin so
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    case: Vec<String>,
    /// Prints JSON: the outcomes, one a case and seed, and what they say to the paper's claims
    #[arg(long)]
    json: bool,
    /// Adds numbers over time to the JSON
    #[arg(long, requires = "json")]
    series: bool,
    /// Plays nothing: takes the outcomes of earlier --json from these files
    #[arg(long, value_name = "FILE", value_delimiter = ',')]
    from: Vec<PathBuf>,
    /// Writes a page with plots, which opens offline
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
    /// How many runs side by side (default: what two cores carry)
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Draws no progress bars
    #[arg(long)]
    quiet: bool,
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
        let bounds = if experiment.bound { bounds_of(&variants, &outcomes) } else { Vec::new() };
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
            print!("{}", table(&experiment, &outcomes, &bounds));
            println!("{}", remarks(&outcomes, &bounds));
            print!("{}", beside(&experiment, &outcomes));
            if !judged.is_empty() {
                print!("\n{}", report::words_table(&["the paper says", "ratio here", "verdict"], &judged));
            }
            if let Some(path) = &self.page {
                println!("\nplots: {}", path.display());
            }
        }
        failure.map_or(Ok(()), Err)
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
        answer::part(answer::ask(questions, self.jobs, self.quiet || self.json))
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

/// The bound beside each outcome; none where the bound is not known.
fn bounds_of(variants: &[Variant], outcomes: &[Outcome]) -> Vec<Option<Outcome>> {
    let of = |outcome: &Outcome| {
        let variant = variants.iter().find(|variant| variant.case == outcome.case)?;
        Bound.run(&variant.scenario, outcome.seed, &()).ok()
    };
    outcomes.iter().map(of).collect()
}

/// What a number is called, and how it is written.
fn column(number: &str) -> (&'static str, fn(f64) -> String) {
    match number {
        "mean_flow_s" => ("mean, s", |value| format!("{value:.2}")),
        "completion_s" => ("end, s", |value| format!("{value:.2}")),
        "jain" => ("Jain", |value| format!("{value:.4}")),
        "utilization" => ("use, %", |value| format!("{:.1}", value * 100.0)),
        "goodput_bps" => ("goodput, Mbit/s", |value| format!("{:.3}", value / 1e6)),
        "retransmits" => ("sent again", |value| format!("{value:.0}")),
        "queue_drops" => ("drops", |value| format!("{value:.0}")),
        "queue_p50_bytes" => ("median queue, kB", |value| format!("{:.1}", value / 1e3)),
        "converge_s" => ("fair again after, s", |value| format!("{value:.1}")),
        "queue_max_bytes" => ("peak queue, kB", |value| format!("{:.0}", value / 1e3)),
        _ => ("?", |value| value.to_string()),
    }
}

/// Cases in the order in which they first come.
fn cases(outcomes: &[Outcome]) -> Vec<&str> {
    let mut cases: Vec<&str> = Vec::new();
    for outcome in outcomes {
        if !cases.contains(&outcome.case.as_str()) {
            cases.push(&outcome.case);
        }
    }
    cases
}

/// The numbers of the experiment: a row a case, means over the seeds with the half width of their intervals, and how far its times are from
/// the bound.
fn table(experiment: &Experiment, outcomes: &[Outcome], bounds: &[Option<Outcome>]) -> String {
    let bounded: &[&str] = if bounds.is_empty() { &[] } else { &["mean_flow_s", "completion_s"] };
    let (cases, swept) = (cases(outcomes), swept(outcomes));
    let mut header: Vec<String> = vec!["case".into()];
    header.extend(swept.iter().cloned());
    header.extend(experiment.numbers.iter().map(|number| column(number).0.to_owned()));
    header.extend(bounded.iter().map(|number| format!("bound: {}, ratio", column(number).0)));
    header.push("valid".into());
    let row = |case: &&str| {
        let of: Vec<usize> = (0..outcomes.len()).filter(|&at| outcomes[at].case == **case).collect();
        let mut row: Vec<String> =
            if swept.is_empty() { vec![(*case).to_string()] } else { parts(case).map(|(_, value)| value.into()).collect() };
        for number in &experiment.numbers {
            let values: Vec<f64> = of.iter().filter_map(|&at| outcomes[at].number(number)).collect();
            row.push(spread(&values, of.len(), column(number).1));
        }
        for number in bounded {
            let bound = |at: &usize| bounds[*at].as_ref()?.number(number);
            let bounds: Vec<f64> = of.iter().filter_map(bound).collect();
            let ratios: Vec<f64> = of.iter().filter_map(|at| Some(outcomes[*at].number(number)? / bound(at)?)).collect();
            let ratio = spread(&ratios, of.len(), |value| format!("{value:.3}"));
            row.push(format!("{:.2}, {ratio}", bounds.iter().sum::<f64>() / bounds.len() as f64));
        }
        row.push(format!("{} of {}", of.iter().filter(|&&at| outcomes[at].valid).count(), of.len()));
        row
    };
    let rows: Vec<Vec<String>> = cases.iter().map(row).collect();
    report::words_table(&header.iter().map(String::as_str).collect::<Vec<_>>(), &rows)
}

/// The parts of a case's name: the case of the file, then each swept key by its last word, and its value.
fn parts(case: &str) -> impl Iterator<Item = (&str, &str)> {
    let part = |part: &'_ str| -> (usize, usize) {
        let value = part.find('=').map_or(0, |at| at + 1);
        (part[..value].trim_end_matches('=').rfind('.').map_or(0, |at| at + 1), value)
    };
    case.split(", ").map(move |text| {
        let (key, value) = part(text);
        (text[key..value].trim_end_matches('='), &text[value..])
    })
}

/// The keys that are swept in every case alike, by their last words; none where cases differ in more than their values.
fn swept(outcomes: &[Outcome]) -> Vec<String> {
    let keys = |case: &str| parts(case).map(|(key, _)| key.to_owned()).collect::<Vec<_>>();
    let all: std::collections::BTreeSet<Vec<String>> = outcomes.iter().map(|outcome| keys(&outcome.case)).collect();
    match (all.len(), all.into_iter().next()) {
        (1, Some(keys)) if keys[0].is_empty() && keys[1..].iter().all(|key| !key.is_empty()) => keys[1..].to_vec(),
        _ => Vec::new(),
    }
}

/// A mean with its interval; a dash when a seed has no such number.
fn spread(values: &[f64], all: usize, write: fn(f64) -> String) -> String {
    if values.len() < all || values.is_empty() {
        return "–".into();
    }
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    if values.len() == 1 {
        return write(mean);
    }
    format!("{} ± {}", write(mean), write(half_width(values)))
}

fn remarks(outcomes: &[Outcome], bounds: &[Option<Outcome>]) -> String {
    let seeds: std::collections::BTreeSet<u64> = outcomes.iter().map(|outcome| outcome.seed).collect();
    let mut said = match seeds.len() {
        0 | 1 => String::new(),
        count => format!("Means over {count} seeds; ± is half the width of the 95 % interval of the mean."),
    };
    if !bounds.is_empty() {
        said += " The bound: packets of all flows take turns, losses are known a round trip after sending, and go first.";
    }
    said.trim().to_owned()
}

/// What the paper prints beside what is here.
fn beside(experiment: &Experiment, outcomes: &[Outcome]) -> String {
    if experiment.printed.is_empty() {
        return String::new();
    }
    let row = |printed: &experiments::Printed| {
        let values: Vec<f64> =
            outcomes.iter().filter(|outcome| outcome.case == printed.case).filter_map(|outcome| outcome.number(&printed.number)).collect();
        let (name, write) = column(&printed.number);
        vec![format!("{}, {name}", printed.case), write(printed.value), spread(&values, values.len(), write), printed.note.clone()]
    };
    let rows: Vec<Vec<String>> = experiment.printed.iter().map(row).collect();
    format!("\n{}", report::words_table(&["number", "printed", "here", "note"], &rows))
}

/// What the paper claims, the ratio as measured, and the verdict.
fn claims(experiment: &Experiment, outcomes: &[Outcome]) -> Vec<Vec<String>> {
    let row = |claim: &experiments::Claim| {
        let (ratio, verdict) = match claim.judge(outcomes) {
            Some(judgement) if judgement.seeds > 1 => {
                (format!("{:.3} ± {:.3}", judgement.ratio, judgement.half), judgement.verdict.to_string())
            }
            Some(judgement) => (format!("{:.3}", judgement.ratio), format!("{} (one seed)", Verdict::Open)),
            None => ("–".into(), Verdict::Open.to_string()),
        };
        vec![claim.says.clone(), ratio, verdict]
    };
    experiment.claims.iter().map(row).collect()
}
