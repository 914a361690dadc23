//! `tandem paper`: a table or figure of the papers, ours beside theirs.

use crate::{
    Failure,
    answer::{self, Manner, Question},
};
use clap::{Args, builder::NonEmptyStringValueParser};
use papers::{
    ALIKE, BOUNDED, Claim, Entry, Experiment, Judgement, Line, Mean, Model, Origin, PaperError, Part, Player, Printed, Ratio, Row, Sheet,
    Verdict,
};
use outcome::{Engine, Outcome};
use report::Quantity;
use std::{collections::BTreeSet, fs, path::PathBuf};

/// A table or figure of the papers, ours beside theirs; without a name, a list of them
#[derive(Debug, Args)]
pub(crate) struct Paper {
    /// Which: li/fig-3
    id: Option<String>,
    /// Which engines play it: theory, sim, lab (default: those that the experiment names, but not the lab, which needs root and as long as the
    /// scenarios last; the lab where it names no other). What an engine cannot answer as it is written is left out and said, with exit status
    /// 3 where one asked for answers nothing
    #[arg(long, value_name = "ENGINE", value_delimiter = ',')]
    on: Vec<Player>,
    /// With how many seeds (default: as many as the experiment asks for)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    seeds: Option<u64>,
    /// Only the cases whose names begin so; more than once: with either
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    case: Vec<String>,
    /// Prints JSON: the outcomes, one an engine and case and seed; --from reads them
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
        match papers::Paper::find(id)? {
            (paper, Entry::Experiment(experiment)) => self.experiment(id, &paper, &experiment),
            (paper, Entry::Model(model)) => self.model(id, &paper, &model),
        }
    }

    /// What equations answer by themselves.
    fn model(&self, id: &str, paper: &papers::Paper, model: &Model) -> Result<(), Failure> {
        let of_scenarios =
            [!self.on.is_empty(), self.seeds.is_some(), !self.case.is_empty(), self.series, !self.from.is_empty(), self.page.is_some()];
        if of_scenarios.contains(&true) {
            return Err(Failure::Usage(format!(
                "{id} is answered by equations, not by playing scenarios: --on, --seeds, --case, --series, --from and --page are not for it"
            )));
        }
        let sheet = model.answer()?;
        if self.json {
            outln!("{}", serde_json::to_string_pretty(&sheet_json(id, &sheet)).expect("it has only text keys"));
            return Ok(());
        }
        outln!("{id}: {}\n{}, \"{}\"\n", model.title, paper.authors, paper.title);
        out!("{}", self.drawn(sheet_table(&sheet)));
        for note in &sheet.notes {
            outln!("{note}");
        }
        Ok(())
    }

    /// Scenarios, and what their outcomes say.
    fn experiment(&self, id: &str, paper: &papers::Paper, experiment: &Experiment) -> Result<(), Failure> {
        let players = match (&self.on[..], self.from.first()) {
            ([], None) => experiment.players(),
            ([], Some(_)) => experiment.on.clone(),
            (asked, _) => asked.to_vec(),
        };
        let mut parts = paper.parts(experiment, &players)?;
        if !self.case.is_empty() {
            let names: Vec<String> = parts[0].variants.iter().map(|variant| format!("{:?}", variant.case)).collect();
            for part in &mut parts {
                part.variants.retain(|variant| self.case.iter().any(|case| variant.case.starts_with(case)));
            }
            if parts[0].variants.is_empty() {
                return Err(Failure::Usage(format!("{id} has no such case; it has {}", names.join(", "))));
            }
        }
        if let (Some(awaits), None) = (&experiment.awaits, self.from.first()) {
            return Err(Failure::CannotTell(format!("{id}: {awaits}")));
        }
        let mut notes = Vec::new();
        let (mut outcomes, failure) = if self.from.is_empty() {
            self.play(parts.clone(), &mut notes)
        } else {
            let of_asked = |outcome: &Outcome| self.on.is_empty() || self.on.iter().any(|player| player.name() == outcome.engine);
            (earlier(&self.from)?.into_iter().filter(of_asked).collect(), None)
        };
        outcome::add_ci95(&mut outcomes);
        let judged = judged(experiment, &outcomes);
        if let Some(path) = &self.page {
            let title = format!("{id}: {}", experiment.title);
            let about = parts.iter().find_map(|part| part.variants.first()).map_or("", |variant| &variant.scenario.about);
            answer::write_page(path, &report::page(&title, about, &findings(&judged), &outcomes))?;
        }
        if self.json {
            out!("{}", report::json(&outcomes, self.series));
            notes.iter().for_each(|note| eprintln!("tandem: {note}"));
        } else {
            outln!("{id}: {}\n{}, \"{}\"\n", experiment.title, paper.authors, paper.title);
            out!("{}", self.drawn(numbers(experiment, &parts, &outcomes)));
            remarks(experiment, &outcomes).iter().chain(&notes).for_each(|line| outln!("{line}"));
            if !experiment.printed.is_empty() {
                out!("\n{}", self.drawn(beside(experiment, &outcomes)));
            }
            if !judged.is_empty() {
                out!("\n{}", self.drawn(verdicts(&judged)));
            }
            if let Some(path) = &self.page {
                outln!("\nplots: {}", path.display());
            }
        }
        failure.map_or(Ok(()), Err)
    }

    /// A table: its header, and its rows.
    fn drawn(&self, (header, rows): (Vec<String>, Vec<Vec<String>>)) -> String {
        let draw = if self.markdown { report::markdown_table } else { report::words_table };
        draw(&header.iter().map(String::as_str).collect::<Vec<_>>(), &rows)
    }

    /// Plays every case with every seed, engine by engine: the lab must not be disturbed by the others. A seed's cases come one after the other, so
    /// that what disturbs the machine for a while disturbs all alike. `notes` hears what was not played.
    fn play(&self, parts: Vec<Part>, notes: &mut Vec<String>) -> (Vec<Outcome>, Option<Failure>) {
        let manner = Manner { quiet: self.manner.quiet || self.json, ..self.manner };
        let (mut outcomes, mut failure) = (Vec::new(), None);
        for part in parts {
            let player = part.player;
            let (part, left_out) = part.answerable(&*engine(player));
            let said = unanswered(player, &left_out);
            if part.variants.is_empty() && (!self.on.is_empty() || outcomes.is_empty()) {
                let why = said.first().cloned().unwrap_or_else(|| format!("{} has no case to play", part.player));
                failure.get_or_insert(Failure::CannotTell(why));
            }
            notes.extend(said);
            let mut questions = Vec::new();
            for seed in 0..self.seeds.unwrap_or(part.seeds) {
                for variant in &part.variants {
                    questions.push(Question { engine: engine(part.player), variant, seed: variant.scenario.seed + seed });
                }
            }
            let (more, failed) = answer::part(answer::ask(questions, manner));
            outcomes.extend(more);
            failure = failure.or(failed);
        }
        (outcomes, failure)
    }
}

fn engine(player: Player) -> Box<dyn Engine + Send> {
    match player {
        Player::Lab => Box::new(lab::Lab::default()),
        Player::Sim => Box::new(sim::Sim::default()),
        Player::Theory => Box::new(theory::Theory),
    }
}

/// What an engine leaves out: a line a reason.
fn unanswered(player: Player, left_out: &[(String, String)]) -> Vec<String> {
    let reasons: BTreeSet<&str> = left_out.iter().map(|(_, why)| why.as_str()).collect();
    let line = |reason: &str| {
        let cases = left_out.iter().filter(|(_, why)| why == reason).count();
        format!("{player} leaves out {cases} of the cases: {reason}")
    };
    reasons.into_iter().map(line).collect()
}

fn list(json: bool) -> Result<(), Failure> {
    let papers = papers::papers()?;
    if json {
        let of = |paper: &papers::Paper| -> Vec<serde_json::Value> {
            let one = |(id, title, awaits): (&str, &str, Option<&str>)| {
                serde_json::json!({
                    "id": format!("{}/{id}", paper.key), "title": title, "paper": paper.title, "authors": paper.authors, "awaits": awaits,
                })
            };
            paper.names().map(one).collect()
        };
        outln!("{}", serde_json::to_string_pretty(&papers.iter().flat_map(of).collect::<Vec<_>>()).expect("it has only text keys"));
        return Ok(());
    }
    for paper in papers {
        outln!("{}: \"{}\"", paper.authors, paper.title);
        let row = |(id, title, awaits): (&str, &str, Option<&str>)| {
            let awaits = awaits.map(|awaits| format!(" ({awaits})")).unwrap_or_default();
            vec![format!("{}/{id}", paper.key), format!("{title}{awaits}")]
        };
        outln!("{}", report::words_table(&["tandem paper", ""], &paper.names().map(row).collect::<Vec<_>>()));
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

/// The numbers of the experiment: a row a case, engine and variation, and how far its times are from the bound.
fn numbers(experiment: &Experiment, parts: &[Part], outcomes: &[Outcome]) -> (Vec<String>, Vec<Vec<String>>) {
    let rows = experiment.rows(parts, outcomes);
    let (mut header, cases) = report::case_columns(&rows.iter().map(|row| row.case.as_str()).collect::<Vec<_>>());
    let origins = Origins::of(rows.iter().map(|row| &row.origin));
    let quantities: Vec<Quantity> = experiment.numbers.iter().map(|number| Quantity::named(number)).collect();
    let bounded = if experiment.bound { BOUNDED.map(Quantity::named).to_vec() } else { Vec::new() };
    header.extend(origins.header());
    header.extend(quantities.iter().map(|quantity| quantity.head.to_owned()));
    header.extend(bounded.iter().map(|quantity| format!("bound: {}, ratio", quantity.head)));
    header.push("valid".into());
    let row = |(row, mut cells): (&Row, Vec<String>)| {
        cells.extend(origins.cells(&row.origin));
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

/// What of its origin a row has to tell: the engine where there are several, the variation where there is one.
#[derive(Debug, Clone, Copy)]
struct Origins {
    engines: bool,
    variations: bool,
}

impl Origins {
    fn of<'a>(origins: impl Iterator<Item = &'a Origin> + Clone) -> Self {
        let engines: BTreeSet<&str> = origins.clone().map(|origin| origin.engine.as_str()).collect();
        Origins { engines: engines.len() > 1, variations: origins.into_iter().any(|origin| !origin.variation.is_empty()) }
    }

    fn header(self) -> impl Iterator<Item = String> {
        [(self.engines, "engine"), (self.variations, "varied")].into_iter().filter(|(told, _)| *told).map(|(_, head)| head.to_owned())
    }

    fn cells(self, origin: &Origin) -> impl Iterator<Item = String> {
        [(self.engines, &origin.engine), (self.variations, &origin.variation)]
            .into_iter()
            .filter(|(told, _)| *told)
            .map(|(_, cell)| cell.clone())
    }

    /// In one cell.
    fn label(self, origin: &Origin) -> String {
        let said: Vec<String> = self.cells(origin).filter(|cell| !cell.is_empty()).collect();
        if said.is_empty() { "here".into() } else { said.join(", ") }
    }
}

fn spread(quantity: Quantity, mean: Option<Mean>) -> String {
    quantity.spread(mean.map(|mean| (mean.mean, mean.half)))
}

/// What a reader must know.
fn remarks(experiment: &Experiment, outcomes: &[Outcome]) -> Vec<String> {
    let seeds: BTreeSet<u64> = outcomes.iter().map(|outcome| outcome.seed).collect();
    let mut said = Vec::new();
    if seeds.len() > 1 {
        said.push("Means over the seeds that are valid; ± is half the width of the 95 % interval of the mean.".to_owned());
    }
    if experiment.bound {
        said.push("The bound: packets of all flows take turns, losses are known a round trip after sending, and go first.".to_owned());
    }
    if experiment.claims.iter().any(|claim| matches!(claim.ratio, Ratio::Same | Ratio::NotMore)) {
        said.push(format!("Where the paper sees no difference, or no gain, that is taken to mean less than {} %.", ALIKE * 100.0));
    }
    let played = |player: Player| outcomes.iter().any(|outcome| outcome.engine == player.name());
    said.extend(experiment.apart.iter().filter(|apart| played(apart.name)).map(|apart| format!("{}: {}", apart.name, apart.why)));
    let not_played = experiment.on.iter().filter(|player| !played(**player) && !outcomes.is_empty());
    said.extend(not_played.map(|player| format!("It names {player} as well, which plays with --on {player}.")));
    said
}

/// What the paper prints beside what is here: a column an origin.
fn beside(experiment: &Experiment, outcomes: &[Outcome]) -> (Vec<String>, Vec<Vec<String>>) {
    let origins = experiment.origins(outcomes);
    let told = Origins::of(origins.iter());
    let row = |printed: &Printed| {
        let quantity = Quantity::named(&printed.number);
        let mut cells = vec![format!("{}, {}", printed.case, quantity.head), quantity.write(printed.value)];
        cells.extend(origins.iter().map(|origin| spread(quantity, printed.here(origin, outcomes))));
        cells.push(printed.note.clone());
        cells
    };
    let header = ["number".to_owned(), "printed".to_owned()].into_iter().chain(origins.iter().map(|origin| told.label(origin)));
    (header.chain(["note".to_owned()]).collect(), experiment.printed.iter().map(row).collect())
}

/// A claim, of whom it is judged, and what came of it.
struct Judged<'a> {
    claim: &'a Claim,
    origin: Origin,
    judgement: Option<Judgement>,
}

/// Every claim by every origin; by none, where there is no outcome.
fn judged<'a>(experiment: &'a Experiment, outcomes: &[Outcome]) -> Vec<Judged<'a>> {
    let origins = experiment.origins(outcomes);
    let of = |claim: &'a Claim, origin: &Origin| Judged { claim, origin: origin.clone(), judgement: claim.judge(origin, outcomes) };
    experiment.claims.iter().flat_map(|claim| origins.iter().map(move |origin| of(claim, origin))).collect()
}

impl Judged<'_> {
    fn verdict(&self) -> String {
        match self.judgement {
            Some(Judgement { ratio: Mean { seeds: 1, .. }, verdict }) => format!("{verdict} (one seed)"),
            Some(Judgement { verdict, .. }) => verdict.to_string(),
            None => Verdict::Open.to_string(),
        }
    }

    /// Of what the ratio is.
    fn of(&self) -> String {
        let Claim { number, case, than, over, .. } = self.claim;
        let head = Quantity::named(number).head;
        match over {
            None => format!("{head}: {case} ÷ {than}"),
            Some(pair) => format!("{head}: ({case} ÷ {than}) ÷ ({} ÷ {})", pair.case, pair.than),
        }
    }

    fn ratio(&self) -> String {
        spread(Quantity::RATIO, self.judgement.map(|judgement| judgement.ratio))
    }
}

/// What the paper claims, the ratio as it came out, and the verdict: a claim's rows one below the other.
fn verdicts(judged: &[Judged<'_>]) -> (Vec<String>, Vec<Vec<String>>) {
    let told = Origins::of(judged.iter().map(|one| &one.origin));
    let row = |(at, one): (usize, &Judged<'_>)| {
        let again = at.checked_sub(1).is_some_and(|before| std::ptr::eq(judged[before].claim, one.claim));
        let mut cells = if again { vec![String::new(); 2] } else { vec![one.claim.says.clone(), one.of()] };
        cells.extend(told.cells(&one.origin));
        cells.extend([one.ratio(), one.verdict()]);
        cells
    };
    let header = ["the paper says", "of"].map(str::to_owned).into_iter().chain(told.header());
    (header.chain(["ratio here", "verdict"].map(str::to_owned)).collect(), judged.iter().enumerate().map(row).collect())
}

/// The same as sentences.
fn findings(judged: &[Judged<'_>]) -> Vec<String> {
    let told = Origins::of(judged.iter().map(|one| &one.origin));
    let line = |one: &Judged<'_>| {
        let says = if one.claim.says.is_empty() { one.of() } else { one.claim.says.clone() };
        format!("{says}: {} ({}; {})", one.verdict(), told.label(&one.origin), one.ratio())
    };
    judged.iter().map(line).collect()
}
