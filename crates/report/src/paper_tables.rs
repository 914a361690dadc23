//! The papers' tables: what experiments and equations say, beside what the papers print and claim.

use crate::{cases::case_columns, number_format::duration, outcome_numbers::NumberFormat, plain_table::PlainTable, terminal};
use outcome::Outcome;
use papers::{
    BOUNDED_NUMBERS, BoundComparison, CaseRow, ClaimVerdict, ClaimedRatio, ComputedRow, ComputedTable, EngineKind, EnginePlan, EntryName,
    Experiment, JudgedClaim, Judgement, Paper, PaperClaim, PrintedValue, ResultSource, SAME_WITHIN, SeedMean,
};
use scenario::short_case;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// How long each engine took for an entry, seconds, by the identifier of the entry.
pub type RunTimes = BTreeMap<String, Vec<(String, f64)>>;

/// The list of what can be repeated of each paper, for a terminal of `width` characters.
pub fn paper_list(papers: &[Paper], times: &RunTimes, width: Option<usize>) -> String {
    let mut out = String::new();
    for paper in papers {
        let row = |entry: EntryName<'_>| {
            let awaits = entry.awaits.map(|awaits| format!(" ({awaits})")).unwrap_or_default();
            let id = paper.identifier(entry.id);
            let engine = |engine: &EngineKind| match time_of(times, &id, *engine) {
                Some(seconds) => format!("{engine} {}", duration(seconds)),
                None => engine.to_string(),
            };
            let engines =
                if entry.engines.is_empty() { "equations".into() } else { entry.engines.iter().map(engine).collect::<Vec<_>>().join(", ") };
            vec![id, format!("{}{awaits}", entry.title), engines]
        };
        let table = PlainTable::new(&["name", "what it shows", "engines and their time"], paper.entries().map(row).collect());
        let heading = terminal::wrap(&format!("{}: \"{}\"", paper.authors, paper.title), width);
        out += &format!("{heading}\n{}\n", table.text(width));
    }
    out
}

fn time_of(times: &RunTimes, id: &str, engine: EngineKind) -> Option<f64> {
    times.get(id)?.iter().find(|(name, _)| name == engine.name()).map(|(_, seconds)| *seconds)
}

/// The same list as JSON. Ends with a newline.
pub fn paper_list_json(papers: &[Paper], times: &RunTimes) -> String {
    let mut list = Vec::new();
    for paper in papers {
        for entry in paper.entries() {
            let id = paper.identifier(entry.id);
            let engine = |engine: &EngineKind| json!({ "engine": engine.name(), "seconds": time_of(times, &id, *engine) });
            list.push(json!({
                "id": id, "title": entry.title, "paper": paper.title, "authors": paper.authors,
                "engines": entry.engines.iter().map(engine).collect::<Vec<_>>(), "awaits": entry.awaits,
            }));
        }
    }
    format!("{:#}\n", Value::from(list))
}

/// A computed table: what is printed, what comes out here, the difference, whether it holds, notes.
/// Columns without content are left out.
pub fn computed_table(table: &ComputedTable) -> PlainTable {
    let any = |of: fn(&ComputedRow) -> bool| table.rows.iter().any(of);
    let printed = any(|row| row.printed.is_some());
    let notes = any(|row| !row.note.is_empty());
    let differs = any(|row| row.differs_percent().is_some());
    let columns = [(printed, "the paper"), (true, "here"), (differs, "differs, %"), (printed, "holds"), (notes, "note")];
    let heads = columns.iter().filter(|(there, _)| *there).map(|(_, head)| *head);
    let header: Vec<&str> = table.head.iter().map(String::as_str).chain(heads).collect();
    let row = |row: &ComputedRow| {
        let cells = [
            row.printed.clone().unwrap_or_default(),
            with_interval(row),
            row.differs_percent().map_or(String::new(), |percent| format!("{percent:+.2}")),
            row.holds.map_or("", |holds| if holds { "yes" } else { "no" }).to_owned(),
            row.note.clone(),
        ];
        let there = columns.iter().zip(cells).filter(|((there, _), _)| *there).map(|(_, cell)| cell);
        row.of.iter().cloned().chain(there).collect()
    };
    PlainTable { left_out_first: &["differs, %", "note"], ..PlainTable::new(&header, table.rows.iter().map(row).collect()) }
}

/// The number here, with its interval if that is not zero in the decimals shown.
fn with_interval(row: &ComputedRow) -> String {
    let decimals = row.decimals;
    let half = format!("{:.decimals$}", row.here.half);
    let number = format!("{:.decimals$}", row.here.mean);
    if half.bytes().all(|byte| matches!(byte, b'0' | b'.')) { number } else { format!("{number} ± {half}") }
}

/// The rows of a computed table as JSON.
pub(crate) fn computed_rows_json(table: &ComputedTable) -> Vec<Value> {
    let row = |row: &ComputedRow| {
        let of: Map<String, Value> = table.head.iter().zip(&row.of).map(|(head, of)| (head.clone(), of.as_str().into())).collect();
        // A printed number is a number; a statement is text.
        let printed =
            row.printed.as_ref().map(|printed| printed.parse::<f64>().map_or_else(|_| Value::from(printed.as_str()), Value::from));
        json!({
            "of": of, "printed": printed, "here": row.here.mean, "half_width": row.here.half,
            "differs_percent": row.differs_percent(), "holds": row.holds, "note": row.note,
        })
    };
    table.rows.iter().map(row).collect()
}

/// The numbers of an experiment: a row for each case, engine and variation, compared with the bound
/// of fair sharing where the experiment asks for it.
pub fn numbers_table(experiment: &Experiment, plans: &[EnginePlan], outcomes: &[Outcome]) -> PlainTable {
    let rows = experiment.rows(plans, outcomes);
    let (mut header, cases) = case_columns(&rows.iter().map(|row| row.case.as_str()).collect::<Vec<_>>());
    let sources = SourceColumns::of(rows.iter().map(|row| &row.source));
    let quantities: Vec<NumberFormat> = experiment.numbers.iter().map(|number| NumberFormat::named(number)).collect();
    let bounded = if experiment.bound { BOUNDED_NUMBERS.map(NumberFormat::named).to_vec() } else { Vec::new() };
    header.extend(sources.header());
    header.extend(quantities.iter().map(|quantity| quantity.head.to_owned()));
    header.extend(bounded.iter().map(|quantity| format!("bound: {}, ratio", quantity.head)));
    header.push("valid".into());
    let row = |(row, mut cells): (&CaseRow, Vec<String>)| {
        cells.extend(sources.cells(&row.source));
        cells.extend(quantities.iter().zip(&row.numbers).map(|(quantity, number)| spread(*quantity, *number)));
        cells.extend(bounded.iter().zip(&row.bounds).map(|(quantity, comparison)| bound_cell(*quantity, *comparison)));
        cells.push(format!("{} of {}", row.valid, row.seeds));
        cells
    };
    PlainTable::with_header(header, rows.iter().zip(cases).map(row).collect())
}

fn bound_cell(quantity: NumberFormat, comparison: Option<BoundComparison>) -> String {
    match comparison {
        Some(BoundComparison { least, ratio }) => format!("{}, {}", quantity.write(least.mean), spread(NumberFormat::RATIO, Some(ratio))),
        None => NumberFormat::RATIO.spread(None),
    }
}

/// Which columns tell the sources of results apart: the engine if there are several, the variation
/// if there is one.
#[derive(Debug, Clone, Copy)]
struct SourceColumns {
    engines: bool,
    variations: bool,
}

impl SourceColumns {
    fn of<'a>(sources: impl Iterator<Item = &'a ResultSource> + Clone) -> Self {
        let engines: BTreeSet<&str> = sources.clone().map(|source| source.engine.as_str()).collect();
        SourceColumns { engines: engines.len() > 1, variations: sources.into_iter().any(|source| !source.variation.is_empty()) }
    }

    fn header(self) -> impl Iterator<Item = String> {
        [(self.engines, "engine"), (self.variations, "varied")].into_iter().filter(|(shown, _)| *shown).map(|(_, head)| head.to_owned())
    }

    fn cells(self, source: &ResultSource) -> impl Iterator<Item = String> {
        [(self.engines, &source.engine), (self.variations, &source.variation)]
            .into_iter()
            .filter(|(shown, _)| *shown)
            .map(|(_, cell)| cell.clone())
    }

    /// The cells joined; "here" if there is nothing to tell apart.
    fn label(self, source: &ResultSource) -> String {
        let cells: Vec<String> = self.cells(source).filter(|cell| !cell.is_empty()).collect();
        if cells.is_empty() { "here".into() } else { cells.join(", ") }
    }
}

fn spread(quantity: NumberFormat, mean: Option<SeedMean>) -> String {
    quantity.spread(mean.map(|mean| (mean.mean, mean.half)))
}

/// What a reader must know about the numbers of an experiment: a line each.
pub fn paper_remarks(experiment: &Experiment, outcomes: &[Outcome]) -> Vec<String> {
    let seeds: BTreeSet<u64> = outcomes.iter().map(|outcome| outcome.seed).collect();
    let mut remarks = Vec::new();
    if seeds.len() > 1 {
        remarks.push("Means over the seeds that are valid; ± is half the width of the 95 % interval of the mean.".to_owned());
    }
    if experiment.bound {
        remarks.push(
            "Bound: the packets of all flows take turns, a loss is known one round trip after the packet was sent, and retransmissions go first."
                .to_owned(),
        );
    }
    if experiment.claims.iter().any(|claim| matches!(claim.ratio, ClaimedRatio::Same | ClaimedRatio::NotMore)) {
        remarks.push(format!("\"No difference\" and \"no gain\" are taken to mean less than {} %.", SAME_WITHIN * 100.0));
    }
    let played = |engine: EngineKind| outcomes.iter().any(|outcome| outcome.engine == engine.name());
    let overrides = experiment.overrides.iter().filter(|own| played(own.name));
    remarks.extend(overrides.map(|own| format!("{}: {}", own.name, own.why)));
    let not_played = experiment.on.iter().filter(|engine| !played(**engine) && !outcomes.is_empty());
    remarks.extend(not_played.map(|engine| format!("It names {engine} as well, which plays with --on {engine}.")));
    remarks
}

/// What the paper prints beside the numbers here: a column for each source.
pub fn printed_table(experiment: &Experiment, outcomes: &[Outcome]) -> PlainTable {
    let sources = experiment.sources(outcomes);
    let columns = SourceColumns::of(sources.iter());
    let row = |printed: &PrintedValue| {
        let quantity = NumberFormat::named(&printed.number);
        let mut cells = vec![format!("{}, {}", short_case(&printed.case), quantity.head), quantity.write(printed.value)];
        cells.extend(sources.iter().map(|source| spread(quantity, printed.here(source, outcomes))));
        cells.push(printed.note.clone());
        cells
    };
    let mut header = vec!["number".to_owned(), "printed".to_owned()];
    header.extend(sources.iter().map(|source| columns.label(source)));
    header.push("note".to_owned());
    PlainTable::with_header(header, experiment.printed.iter().map(row).collect())
}

/// What the paper claims, the ratio here, and the verdict. The rows of a claim follow each other.
pub fn claims_table(judged: &[JudgedClaim<'_>]) -> PlainTable {
    let columns = SourceColumns::of(judged.iter().map(|one| &one.source));
    let row = |(at, one): (usize, &JudgedClaim<'_>)| {
        let repeated = at.checked_sub(1).is_some_and(|before| std::ptr::eq(judged[before].claim, one.claim));
        let mut cells = if repeated { vec![String::new(); 2] } else { vec![one.claim.says.clone(), ratio_of(one.claim)] };
        cells.extend(columns.cells(&one.source));
        cells.extend([ratio(one), verdict(one)]);
        cells
    };
    let mut header = vec!["the paper says".to_owned(), "of".to_owned()];
    header.extend(columns.header());
    header.extend(["ratio here", "verdict"].map(str::to_owned));
    PlainTable::with_header(header, judged.iter().enumerate().map(row).collect())
}

/// The claims and verdicts as sentences.
pub fn paper_findings(judged: &[JudgedClaim<'_>]) -> Vec<String> {
    let columns = SourceColumns::of(judged.iter().map(|one| &one.source));
    let sentence = |one: &JudgedClaim<'_>| {
        let says = if one.claim.says.is_empty() { ratio_of(one.claim) } else { one.claim.says.clone() };
        format!("{says}: {} ({}; {})", verdict(one), columns.label(&one.source), ratio(one))
    };
    judged.iter().map(sentence).collect()
}

fn verdict(judged: &JudgedClaim<'_>) -> String {
    match judged.judgement {
        Some(Judgement { ratio: SeedMean { seeds: 1, .. }, verdict }) => format!("{verdict} (one seed)"),
        Some(Judgement { verdict, .. }) => verdict.to_string(),
        None => ClaimVerdict::Open.to_string(),
    }
}

/// Which ratio a claim is about.
fn ratio_of(claim: &PaperClaim) -> String {
    let PaperClaim { number, case, than, over, .. } = claim;
    let head = NumberFormat::named(number).head;
    let ratio = |case: &str, than: &str| format!("{} ÷ {}", short_case(case), short_case(than));
    match over {
        None => format!("{head}: {}", ratio(case, than)),
        Some(pair) => format!("{head}: ({}) ÷ ({})", ratio(case, than), ratio(&pair.case, &pair.than)),
    }
}

fn ratio(judged: &JudgedClaim<'_>) -> String {
    spread(NumberFormat::RATIO, judged.judgement.map(|judgement| judgement.ratio))
}
