//! Results of the papers' entries together: a summary of all claims, one JSON shape, one page.

use crate::{
    computed_page,
    group::groups,
    json,
    markup::escape,
    number_format::duration,
    page,
    paper_tables::{claims_table, computed_rows_json, computed_table, numbers_table, paper_remarks, printed_table},
    plain_table::PlainTable,
};
use outcome::Outcome;
use papers::{ClaimSummary, ComputedFigure, EnginePlan, Experiment, JudgedClaim, RecordedRun, SummaryVerdict};
use serde_json::{Value, json};
use std::fmt::Write;

/// The result of a paper's table, figure or lemma.
#[derive(Debug, Clone)]
pub struct PaperResult {
    /// Its identifier: `li/fig-3`.
    pub id: String,
    /// What it shows.
    pub title: String,
    /// The paper's title.
    pub paper: String,
    /// The paper's authors.
    pub authors: String,
    /// The answer.
    pub answer: PaperAnswer,
    /// What a reader must know beyond the tables: cases that an engine left out.
    pub notes: Vec<String>,
}

/// How an entry was answered.
#[derive(Debug, Clone)]
pub enum PaperAnswer {
    /// By runs of scenarios.
    Played {
        /// The experiment.
        experiment: Box<Experiment>,
        /// What the engines play.
        plans: Vec<EnginePlan>,
        /// The circumstances of the runs.
        runs: Vec<RecordedRun>,
        /// The outcomes.
        outcomes: Vec<Outcome>,
    },
    /// By equations, or by a measurement without a scenario.
    Computed {
        /// The table and its plots.
        figure: ComputedFigure,
        /// The circumstances; none if it is neither recorded nor to be recorded.
        run: Option<RecordedRun>,
    },
}

impl PaperResult {
    /// The verdict on each claim.
    pub fn claims(&self) -> Vec<ClaimSummary> {
        match &self.answer {
            PaperAnswer::Played { experiment, outcomes, .. } => experiment.summarize(outcomes),
            PaperAnswer::Computed { figure, .. } => figure.table.summarize(),
        }
    }

    /// The tables with their headings: numbers, printed numbers, claims.
    pub fn tables(&self) -> Vec<(&'static str, PlainTable)> {
        match &self.answer {
            PaperAnswer::Computed { figure, .. } => vec![("Computed", computed_table(&figure.table))],
            PaperAnswer::Played { experiment, plans, outcomes, .. } => {
                let mut tables = vec![("Numbers", numbers_table(experiment, plans, outcomes))];
                if !experiment.printed.is_empty() {
                    tables.push(("Beside what the paper prints", printed_table(experiment, outcomes)));
                }
                let judged = experiment.judge(outcomes);
                if !judged.is_empty() {
                    tables.push(("Claims", claims_table(&judged)));
                }
                tables
            }
        }
    }

    /// What a reader must know about the numbers: a sentence each.
    pub fn remarks(&self) -> Vec<String> {
        let own = match &self.answer {
            PaperAnswer::Played { experiment, outcomes, .. } => paper_remarks(experiment, outcomes),
            PaperAnswer::Computed { figure, .. } => figure.table.notes.clone(),
        };
        [own, self.notes.clone()].concat()
    }

    /// The circumstances of the runs.
    pub fn runs(&self) -> Vec<&RecordedRun> {
        match &self.answer {
            PaperAnswer::Computed { run, .. } => run.iter().collect(),
            PaperAnswer::Played { runs, .. } => runs.iter().collect(),
        }
    }

    /// The same with the outcomes of one engine only.
    pub fn on_engine(&self, engine: &str) -> PaperResult {
        let mut one = self.clone();
        if let PaperAnswer::Played { runs, outcomes, .. } = &mut one.answer {
            runs.retain(|run| run.engine == engine);
            outcomes.retain(|outcome| outcome.engine == engine);
        }
        one
    }

    /// The same without the outcomes of variations.
    pub fn as_it_stands(&self) -> PaperResult {
        let mut one = self.clone();
        if let PaperAnswer::Played { experiment, outcomes, .. } = &mut one.answer {
            outcomes.retain(|outcome| !experiment.is_varied(&outcome.case));
        }
        one
    }

    fn json(&self, series: bool) -> Value {
        let claims = self.claims().into_iter().map(|claim| {
            json!({
                "says": claim.says, "about": claim.about, "verdict": claim.verdict, "holds": claim.holds, "decided": claim.decided,
                "counted": claim.counted, "settings": claim.settings, "flips": claim.flips,
            })
        });
        let mut entry = json!({
            "id": self.id, "title": self.title, "paper": self.paper, "authors": self.authors,
            "claims": claims.collect::<Vec<_>>(), "notes": self.remarks(),
        });
        let more = match &self.answer {
            PaperAnswer::Computed { figure, .. } => json!({ "runs": self.runs(), "rows": computed_rows_json(&figure.table) }),
            PaperAnswer::Played { experiment, runs, outcomes, .. } => json!({
                "runs": runs,
                "judged": experiment.judge(outcomes).iter().map(judged_json).collect::<Vec<_>>(),
                "printed": printed_json(experiment, outcomes),
                "outcomes": json::outcomes(outcomes, series),
            }),
        };
        if let (Value::Object(entry), Value::Object(more)) = (&mut entry, more) {
            entry.extend(more);
        }
        entry
    }
}

fn judged_json(one: &JudgedClaim<'_>) -> Value {
    let ratio = one.judgement.map(|judgement| judgement.ratio);
    json!({
        "says": one.claim.says, "number": one.claim.number, "case": one.claim.case, "than": one.claim.than,
        "engine": one.source.engine, "variation": one.source.variation,
        "ratio": ratio.map(|ratio| ratio.mean), "half_width": ratio.map(|ratio| ratio.half), "seeds": ratio.map_or(0, |ratio| ratio.seeds),
        "verdict": one.judgement.map(|judgement| judgement.verdict.to_string()),
    })
}

fn printed_json(experiment: &Experiment, outcomes: &[Outcome]) -> Vec<Value> {
    let sources = experiment.sources(outcomes);
    let mut all = Vec::new();
    for printed in &experiment.printed {
        for source in &sources {
            let here = printed.here(source, outcomes);
            all.push(json!({
                "case": printed.case, "number": printed.number, "printed": printed.value, "note": printed.note,
                "engine": source.engine, "variation": source.variation,
                "here": here.map(|here| here.mean), "half_width": here.map(|here| here.half),
            }));
        }
    }
    all
}

/// The results as JSON: a list with an object for each entry. Numbers that are not finite are
/// `null`. Ends with a newline.
pub fn paper_results_json(results: &[PaperResult], series: bool) -> String {
    let list: Vec<Value> = results.iter().map(|result| result.json(series)).collect();
    format!("{:#}\n", Value::from(list))
}

/// Every claim with its verdict, a row each. `link` makes the first cell of an identifier.
pub fn claims_summary(results: &[PaperResult], link: impl Fn(&str) -> String) -> PlainTable {
    let mut rows = Vec::new();
    for result in results {
        let claims = result.claims();
        for claim in &claims {
            let is_repeated = claims.iter().filter(|other| other.says == claim.says).count() > 1;
            let says =
                if is_repeated && !claim.about.is_empty() { format!("{} ({})", claim.says, claim.about) } else { claim.says.clone() };
            rows.push(vec![link(&result.id), says, claim.verdict.to_string(), claim.sensitivity()]);
        }
    }
    PlainTable::new(&["entry", "the paper says", "verdict", "settings"], rows)
}

/// The number of claims by verdict, a row for each paper.
pub fn claims_counts(results: &[PaperResult]) -> PlainTable {
    let mut header = vec!["paper".to_owned(), "claims".to_owned()];
    header.extend(SummaryVerdict::ALL.map(|verdict| verdict.to_string()));
    let mut papers: Vec<&str> = results.iter().map(|result| paper_of(&result.id)).collect();
    papers.dedup();
    let row = |name: &str, belongs: &dyn Fn(&str) -> bool| {
        let claims: Vec<ClaimSummary> =
            results.iter().filter(|result| belongs(paper_of(&result.id))).flat_map(PaperResult::claims).collect();
        let count = |verdict: SummaryVerdict| claims.iter().filter(|claim| claim.verdict == verdict).count().to_string();
        [vec![name.to_owned(), claims.len().to_string()], SummaryVerdict::ALL.map(count).to_vec()].concat()
    };
    let mut rows: Vec<Vec<String>> = papers.iter().map(|paper| row(paper, &|one| one == *paper)).collect();
    if rows.len() > 1 {
        rows.push(row("all", &|_| true));
    }
    PlainTable::with_header(header, rows)
}

fn paper_of(id: &str) -> &str {
    id.split_once('/').map_or(id, |(paper, _)| paper)
}

/// A self-contained page of several entries: the summary, then each entry with its tables, plots,
/// and the command that runs it again.
pub fn papers_page(title: &str, results: &[PaperResult]) -> String {
    let about = "What this program finds beside what the papers print and claim. A setting is an engine, with or without one of the \
                 settings that the paper leaves open; a claim that some settings support and others contradict depends on the setting.";
    let mut body = format!("<section>\n<h2>Summary</h2>\n{}", table(&claims_counts(results)));
    let _ = writeln!(body, "{}</section>", table(&claims_summary(results, str::to_owned)));
    for result in results {
        body += &section(result);
    }
    page::whole(title, about, &[], &body)
}

fn section(result: &PaperResult) -> String {
    let mut out = format!("<section id=\"{0}\">\n<h2>{0}: {1}</h2>\n", escape(&result.id), escape(&result.title));
    let _ = writeln!(out, "<p class=\"under\">{}, “{}”</p>", escape(&result.authors), escape(&result.paper));
    for (heading, content) in result.tables() {
        let _ = write!(out, "<h3>{heading}</h3>\n{}", table(&content));
    }
    for remark in result.remarks() {
        let _ = writeln!(out, "<p class=\"under\">{}</p>", escape(&remark));
    }
    match &result.answer {
        PaperAnswer::Computed { figure, .. } => out += &computed_page::plots(figure),
        PaperAnswer::Played { runs, outcomes, .. } => {
            out += &page::plots(&groups(outcomes));
            for run in runs {
                let _ = writeln!(out, "<p class=\"under\">{}</p>", escape(&circumstances(run)));
            }
        }
    }
    let _ = write!(out, "<p class=\"under\">Again: <code>tandem paper {}</code></p>\n</section>\n", escape(&result.id));
    out
}

/// The circumstances of a run as a sentence.
pub fn circumstances(run: &RecordedRun) -> String {
    let RecordedRun { engine, seeds, seconds, version, machine, date } = run;
    let seeds = if *seeds == 0 { String::new() } else { format!("{seeds} seeds in ") };
    format!("{engine}: {seeds}{}, by Tandem {version} on {machine}, {date}.", duration(*seconds))
}

fn table(table: &PlainTable) -> String {
    let cell = |tag: &str, cell: &String| format!("<{tag} class=\"words\">{}</{tag}>", escape(cell));
    let head: String = table.header.iter().map(|head| cell("th", head)).collect();
    let mut out = format!("<div class=\"scroll\" tabindex=\"0\">\n<table class=\"prose\">\n<thead><tr>{head}</tr></thead>\n<tbody>\n");
    for row in &table.rows {
        let _ = writeln!(out, "<tr>{}</tr>", row.iter().map(|text| cell("td", text)).collect::<String>());
    }
    out + "</tbody>\n</table>\n</div>\n"
}
