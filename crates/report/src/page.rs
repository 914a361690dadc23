//! A page that opens offline: findings, table, plots, and the links as configured. It is HTML that
//! is also XML, so that a test can check that it is well formed.

use crate::{
    chart, curves,
    grid::Grid,
    group::{OutcomeGroup, differs, groups},
    headline,
    markup::escape,
    remarks, results, sweep,
};
use outcome::Outcome;
use std::collections::BTreeSet;
use std::fmt::Write;

/// The style of all pages.
pub const PAGE_STYLE: &str = include_str!("page.css");
/// The script of all pages: values under the pointer, and legends that switch curves on and off.
pub const PAGE_SCRIPT: &str = include_str!("page.js");

/// The most cases that a page shows as bars, and of a sweep over time.
const MOST_OVER_TIME: usize = 24;

/// A page with `title`, `about` (paragraphs separated by empty lines), `notes` as the findings,
/// then everything in `outcomes`. It loads nothing, and is complete without its script, which only
/// shows values in the plots.
pub fn page(title: &str, about: &str, notes: &[String], outcomes: &[Outcome]) -> String {
    let groups = groups(outcomes);
    let over = sweep::draw(&groups);
    // Curves over time of a whole sweep cannot be told apart.
    let in_time = if over.is_empty() || groups.len() <= MOST_OVER_TIME { plots(&groups) } else { String::new() };
    let body = [over, measured(&groups), accounts(&groups), in_time, links(&groups), warnings(&groups)].concat();
    whole(title, about, notes, &body)
}

/// A table of words for a page.
#[derive(Debug, Clone)]
pub struct WordsTable<'a> {
    /// Its heading.
    pub heading: String,
    /// The columns' names.
    pub header: &'a [&'a str],
    /// A cell for each column.
    pub rows: Vec<Vec<String>>,
}

/// A page of plots and tables of words: of the outcomes it shows only the series.
pub fn page_of_words(title: &str, about: &str, notes: &[String], outcomes: &[Outcome], tables: &[WordsTable<'_>]) -> String {
    let body = plots(&groups(outcomes)) + &tables.iter().map(words).collect::<String>();
    whole(title, about, notes, &body)
}

/// A table of words under a heading.
pub(crate) fn words(table: &WordsTable<'_>) -> String {
    let heading = escape(&table.heading);
    let head: String = table.header.iter().map(|name| format!("<th scope=\"col\" class=\"words\">{}</th>", escape(name))).collect();
    let mut out = format!(
        "<section>\n<h2>{heading}</h2>\n<div class=\"scroll\" role=\"region\" aria-label=\"{heading}\" tabindex=\"0\">\n\
         <table class=\"prose\">\n<thead><tr>{head}</tr></thead>\n<tbody>\n"
    );
    for row in &table.rows {
        let cells: String = row.iter().map(|cell| format!("<td class=\"words\">{}</td>", escape(cell))).collect();
        let _ = writeln!(out, "<tr>{cells}</tr>");
    }
    out + "</tbody>\n</table>\n</div>\n</section>\n"
}

/// A page with these findings and this body, which is already markup.
pub(crate) fn whole(title: &str, about: &str, notes: &[String], body: &str) -> String {
    let mut out = head(title);
    let _ = writeln!(out, "<header>\n<h1>{}</h1>", escape(title));
    for paragraph in about.split("\n\n").map(str::trim).filter(|paragraph| !paragraph.is_empty()) {
        let _ = writeln!(out, "<p>{}</p>", escape(paragraph));
    }
    out.push_str("</header>\n<main>\n");
    out.push_str(&findings(notes));
    out.push_str(body);
    let _ = write!(out, "</main>\n<footer>made by Tandem {}</footer>\n", env!("CARGO_PKG_VERSION"));
    let _ = write!(out, "<script>//<![CDATA[\n{PAGE_SCRIPT}//]]></script>\n</body>\n</html>\n");
    out
}

fn head(title: &str) -> String {
    // With this policy a browser refuses to load anything for the page.
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<meta name=\"color-scheme\" content=\"light dark\"/>\n\
         <title>{}</title>\n<style>\n{PAGE_STYLE}</style>\n</head>\n<body>\n",
        escape(title)
    )
}

fn findings(notes: &[String]) -> String {
    if notes.is_empty() {
        return String::new();
    }
    let notes: String = notes.iter().map(|note| format!("<li>{}</li>\n", escape(note))).collect();
    format!("<section class=\"findings\">\n<h2>Findings</h2>\n<ul>\n{notes}</ul>\n</section>\n")
}

fn measured(groups: &[OutcomeGroup<'_>]) -> String {
    if groups.is_empty() {
        return "<p>There are no outcomes.</p>\n".into();
    }
    let table = table("Results", &results::results(groups), groups.len() > 1);
    let headline = if groups.len() <= MOST_OVER_TIME { headline::draw(groups) } else { String::new() };
    let mut under = origin(groups);
    under.extend(results::footnote(groups));
    format!("<section>\n<h2>Results</h2>\n{headline}{table}<p class=\"under\">{}</p>\n</section>\n", escape(&under.join(" ")))
}

/// What all rows have in common, which the table leaves out.
fn origin(groups: &[OutcomeGroup<'_>]) -> Vec<String> {
    let one = groups[0].outcomes[0];
    let mut said = Vec::new();
    if !differs(groups, |outcome| &outcome.scenario) && !one.scenario.is_empty() {
        said.push(format!("Scenario {}.", one.scenario));
    }
    if !differs(groups, |outcome| &outcome.engine) && !one.engine.is_empty() {
        said.push(format!("Answered by {}.", one.engine));
    }
    let seeds: BTreeSet<u64> = groups.iter().flat_map(|group| &group.outcomes).map(|outcome| outcome.seed).collect();
    if let (1, Some(seed)) = (seeds.len(), seeds.first()) {
        said.push(format!("Seed {seed}."));
    }
    said
}

/// The plots of outcomes that have series; empty if none has.
pub(crate) fn plots(groups: &[OutcomeGroup<'_>]) -> String {
    let figures = curves::figures(groups);
    let end = figures.iter().flat_map(|figure| &figure.lines).flat_map(|line| &line.points).fold(0.0, |end: f64, (t, _)| end.max(*t));
    if end <= 0.0 {
        return String::new();
    }
    let drawn: String = figures.iter().map(|figure| chart::draw(figure, groups, end)).collect();
    format!("<section>\n<h2>Over time</h2>\n<div class=\"plots\">\n{drawn}</div>\n</section>\n")
}

fn accounts(groups: &[OutcomeGroup<'_>]) -> String {
    let grid = results::accounts(groups);
    if grid.rows() == 0 {
        return String::new();
    }
    format!(
        "<section>\n<h2>What the bottleneck allows</h2>\n{}<p class=\"under\">While a transfer was in progress: the payload that receivers \
         read, and what the rest of the link's capacity was lost to.{}</p>\n</section>\n",
        table("Used and lost", &grid, false),
        results::cures(groups).iter().map(|line| format!(" {}", escape(line))).collect::<String>()
    )
}

fn links(groups: &[OutcomeGroup<'_>]) -> String {
    let grid = results::links(groups);
    if grid.rows() == 0 {
        return String::new();
    }
    format!(
        "<section>\n<h2>Links: asked and delivered</h2>\n{}<p class=\"under\">In the direction of the data. Delivered rate: while the link \
         had a queue. Delivered delay: median, without queueing. Late: how much later than due packets were handed over.</p>\n</section>\n",
        table("Links", &grid, false)
    )
}

fn warnings(groups: &[OutcomeGroup<'_>]) -> String {
    let remarks = remarks::remarks(groups);
    if remarks.is_empty() {
        return String::new();
    }
    let mut out = String::from("<section class=\"warnings\" id=\"warnings\">\n<h2>Before you use the numbers</h2>\n<ul>\n");
    for remark in remarks {
        let class = if remark.grave { "grave" } else { "mild" };
        let grave = if remark.grave { "Not valid: " } else { "" };
        let about = escape(&remark.about.join(", "));
        let _ = writeln!(out, "<li class=\"{class}\"><strong>{about}</strong> {grave}{}</li>", escape(&remark.text));
    }
    out + "</ul>\n</section>\n"
}

/// The grid. `keyed`: its rows are the groups, and show the colours that these have in the plots.
fn table(name: &str, grid: &Grid, keyed: bool) -> String {
    let class = |words: bool| if words { " class=\"words\"" } else { "" };
    let mut out = format!("<div class=\"scroll\" role=\"region\" aria-label=\"{name}\" tabindex=\"0\">\n<table>\n<thead><tr>");
    for column in &grid.columns {
        let unit = if column.unit.is_empty() { String::new() } else { format!(" <small>{}</small>", escape(&column.unit)) };
        let _ = write!(out, "<th scope=\"col\"{}>{}{unit}</th>", class(column.words), escape(&column.name));
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    for row in 0..grid.rows() {
        out.push_str("<tr>");
        for (at, column) in grid.columns.iter().enumerate() {
            let text = escape(&column.cells[row]);
            let text = if column.name == "valid" && text.starts_with('✗') {
                format!("<a class=\"bad\" href=\"#warnings\">{text}</a>")
            } else {
                text
            };
            let key = if keyed && at == 0 { format!("<i class=\"{}\"></i>", chart::colour(row)) } else { String::new() };
            // The first cell of a row is its head if it has words.
            let (open, close) = if at == 0 && column.words { ("<th scope=\"row\"", "</th>") } else { ("<td", "</td>") };
            let _ = write!(out, "{open}{}>{key}{text}{close}", class(column.words));
        }
        out.push_str("</tr>\n");
    }
    out + "</tbody>\n</table>\n</div>\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;
    use outcome::Series;
    use roxmltree::{Document, Node, ParsingOptions};

    fn parse(page: &str) -> Document<'_> {
        Document::parse_with_options(page, ParsingOptions { allow_dtd: true, ..ParsingOptions::default() }).unwrap()
    }

    fn all<'a>(document: &'a Document<'a>, tag: &str) -> Vec<Node<'a, 'a>> {
        document.descendants().filter(|node| node.tag_name().name() == tag).collect()
    }

    #[test]
    fn the_page_is_whole_and_loads_nothing() {
        let notes = ["Splitting pays.".to_string()];
        let page = page("A satellite link", "First.\n\nSecond.", &notes, &samples::demo());
        assert!(page.starts_with("<!DOCTYPE html>"));
        for scheme in ["http://", "https://", "src=", "@import", "url("] {
            assert!(!page.contains(scheme), "{scheme}");
        }
        let document = parse(&page);
        assert_eq!(all(&document, "title")[0].text(), Some("A satellite link"));
        assert_eq!(all(&document, "p").iter().filter_map(Node::text).take(2).collect::<Vec<_>>(), ["First.", "Second."]);
        assert_eq!(all(&document, "table").len(), 2, "results and links");
        assert_eq!(all(&document, "footer")[0].text(), Some(concat!("made by Tandem ", env!("CARGO_PKG_VERSION"))));

        let titles: Vec<_> =
            all(&document, "figcaption").iter().map(|caption| caption.first_element_child().unwrap().text().unwrap()).collect();
        assert_eq!(
            titles,
            [
                "Time to the last byte",
                "Goodput, as the receivers read it",
                "Congestion window of the sending leg",
                "Smoothed RTT of the sending leg",
                "Data in flight",
                "Payload held by the proxy",
                "Queue at the bottleneck",
                "Segments retransmitted, so far"
            ]
        );
        for figure in all(&document, "figure") {
            let picture = figure.descendants().find(|node| node.attribute("role") == Some("img")).expect("a picture");
            assert!(picture.attribute("aria-label").is_some_and(|label| label.contains("split cubic/bbr")));
        }
        // The far legs of the two split cases: cwnd, RTT and data in flight.
        let dashed = |node: &Node<'_, '_>| node.attribute("class").is_some_and(|class| class.contains("dashed"));
        assert_eq!(all(&document, "polyline").into_iter().filter(dashed).count(), 6);
    }

    #[test]
    fn a_page_of_words_has_plots_and_tables_and_no_figures() {
        let of = |what: &str, unit: &str| Series {
            what: what.into(),
            whose: "all".into(),
            unit: unit.into(),
            t: vec![0.0, 1.0],
            v: vec![1.0, 2.0],
        };
        let series = vec![of("delay", "s"), of("sent", "bit/s"), of("offered", "B")];
        let outcomes = [Outcome { case: "10.0.0.1 → 10.0.0.2".into(), series, ..Outcome::default() }];
        let rows = vec![vec!["split".to_string(), "a & b".into()]];
        let tables = [WordsTable { heading: "Evidence <1>".into(), header: &["says", "what"], rows }];
        let page = page_of_words("Is it split?", "", &["yes".into()], &outcomes, &tables);
        let document = parse(&page);
        let titles: Vec<_> =
            all(&document, "figcaption").iter().map(|caption| caption.first_element_child().unwrap().text().unwrap()).collect();
        assert_eq!(titles, ["Sender throughput", "Window offered to the sender", "End-to-end delay, by when a byte was sent"]);
        assert_eq!(all(&document, "h2").iter().filter_map(Node::text).collect::<Vec<_>>(), ["Findings", "Over time", "Evidence <1>"]);
        assert_eq!(all(&document, "td").iter().filter_map(Node::text).collect::<Vec<_>>(), ["split", "a & b"]);
    }

    #[test]
    fn foreign_text_stays_text() {
        let hostile = "<script>alert('1')</script>\u{1b}[31m\"&amp;";
        let mut outcomes = samples::demo();
        for outcome in &mut outcomes {
            outcome.scenario = hostile.into();
            outcome.case = format!("{}{hostile}", outcome.case);
            outcome.engine = hostile.into();
            outcome.warnings = vec![hostile.into()];
            outcome.flows[0].error = Some(hostile.into());
            let unknown =
                Series { what: hostile.into(), whose: hostile.into(), unit: hostile.into(), t: vec![0.0, 1.0], v: vec![1.0, 2.0] };
            outcome.series.push(unknown);
        }
        let page = page(hostile, hostile, &[hostile.into()], &outcomes);
        let document = parse(&page);
        assert_eq!(all(&document, "script").len(), 1, "only our own");
        assert!(!page.contains("<script>alert") && !page.contains('\u{1b}'));
        assert!(all(&document, "h1")[0].text().unwrap().starts_with("<script>alert('1')</script>"));
    }

    #[test]
    fn no_outcomes_and_no_numbers_over_time_still_make_a_page() {
        parse(&page("Nothing", "", &[], &[]));
        let mut outcomes = samples::demo();
        for outcome in &mut outcomes {
            outcome.series.clear();
            outcome.links.clear();
            outcome.flows[0].end_s = None;
            outcome.goodput_bps = f64::NAN;
        }
        let page = page("Little", "", &[], &outcomes);
        let document = parse(&page);
        assert_eq!((all(&document, "table").len(), all(&document, "figure").len()), (1, 0));
    }

    #[test]
    fn many_flows_do_not_make_a_heavy_page() {
        let mut outcomes = samples::demo();
        for outcome in &mut outcomes {
            let legs: Vec<Series> = outcome.series.iter().filter(|series| series.whose.starts_with("flow 0")).cloned().collect();
            for flow in 1..40 {
                outcome
                    .series
                    .extend(legs.iter().map(|leg| Series { whose: leg.whose.replace("flow 0", &format!("flow {flow}")), ..leg.clone() }));
            }
        }
        let size = page("Many", "", &[], &outcomes).len();
        assert!(size < 1_500_000, "{size}");
    }
}
