//! An experiment as text: how much sooner split connections were.

use crate::text::age;
use proxy::{ExperimentRow, ExperimentView, Gain, GroupView};
use report::{Alignment, TextColumn, TextStyle, TextTable};
use serde::Serialize;

/// A comparison of fewer connections in a group is too weak to act upon.
const FEWEST: u64 = 30;
/// A comparison of fewer clients, or of clients in fewer prefixes, may be what one of them wants it
/// to be. From five prefixes on, the interval allows for one that is hostile.
const FEWEST_CLIENTS: u64 = 10;
/// The same of the prefixes of clients.
const FEWEST_CLIENT_PREFIXES: u64 = 5;

/// What a comparison says of split connections, by its interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GainVerdict {
    /// Too few connections are compared.
    TooFew,
    /// They are faster.
    Faster,
    /// They are slower.
    Slower,
    /// The difference may be chance.
    Unclear,
    /// The connections with a time are of different kinds in the groups.
    Unlike,
}

impl GainVerdict {
    /// What this comparison says.
    pub fn of(row: &ExperimentRow) -> Self {
        match row.gain {
            Some(_) if row.unlike_ends => GainVerdict::Unlike,
            Some(Gain { low, high, .. }) if row.compared_unsplit.min(row.compared_split) >= FEWEST => match () {
                () if low > 1.0 => GainVerdict::Faster,
                () if high < 1.0 => GainVerdict::Slower,
                () => GainVerdict::Unclear,
            },
            _ => GainVerdict::TooFew,
        }
    }
}

/// Why a comparison is not to be acted upon where clients are not trusted; none: so many clients
/// took part that none of them can decide it.
fn few_clients(row: &ExperimentRow) -> Option<String> {
    let is_few = row.clients < FEWEST_CLIENTS || row.client_prefixes < FEWEST_CLIENT_PREFIXES;
    let [clients, prefixes] = [counted(row.clients, "client", "clients"), counted(row.client_prefixes, "prefix", "prefixes")];
    is_few.then(|| {
        format!(
            "it compares connections of {clients} in {prefixes} (/24, /48), and with fewer than {FEWEST_CLIENTS} clients in \
             {FEWEST_CLIENT_PREFIXES} prefixes one of them can decide it"
        )
    })
}

fn counted(number: u64, one: &str, many: &str) -> String {
    if number == 1 { format!("1 {one}") } else { format!("{number} {many}") }
}

/// What an experiment shows of a path, to act upon.
#[derive(Debug, Default, PartialEq)]
pub struct ExperimentEvidence {
    /// The gain; none: there is nothing to act upon.
    pub gain: Option<Gain>,
    /// What it shows, and why it is not to be acted upon.
    pub sentences: Vec<String>,
}

impl ExperimentEvidence {
    /// The evidence of a comparison, if there is one. Unless clients are trusted, so many must have
    /// taken part that none of them can decide it.
    pub fn of(row: Option<&ExperimentRow>, trusts_clients: bool) -> Self {
        let Some((row, gain)) = row.and_then(|row| Some((row, row.gain?))) else { return ExperimentEvidence::default() };
        let cause = match GainVerdict::of(row) {
            GainVerdict::TooFew => return ExperimentEvidence::default(),
            GainVerdict::Unlike => Some("more connections of one group have a time than of the other".into()),
            _ => few_clients(row).filter(|_| !trusts_clients).map(|why| format!("{why} (--trust-clients: all clients are trusted)")),
        };
        let shown = format!(
            "In the experiment split connections were {:.2} × as fast (95 % interval {:.2} to {:.2}; at least {} in {}).",
            gain.ratio,
            gain.low,
            gain.high,
            counted(row.clients, "client", "clients"),
            counted(row.client_prefixes, "prefix", "prefixes")
        );
        let not_used = cause.as_ref().map(|why| format!("The advice does not use that: {why}."));
        ExperimentEvidence { gain: cause.is_none().then_some(gain), sentences: std::iter::once(shown).chain(not_used).collect() }
    }
}

/// The comparisons as a table and what they rest on, for a terminal of `width` characters.
pub fn experiment_text(view: &ExperimentView, width: Option<usize>) -> String {
    let mut text = String::new();
    if view.rows.iter().any(|row| row.unsplit + row.split > 0) {
        text += &(comparison_table(&view.rows).render(width) + "\n");
    }
    text += &report::wrap(&basis(view), width);
    text
}

fn comparison_table(rows: &[ExperimentRow]) -> TextTable {
    let words = |head: &str| TextColumn::new(head, Alignment::Left);
    let number = |head: &str| TextColumn::new(head, Alignment::Right);
    let columns = vec![
        words("destination"),
        words("size"),
        number("unsplit").droppable(2),
        number("split").droppable(2),
        number("clients").droppable(3),
        number("time unsplit").droppable(1),
        number("time split").droppable(1),
        words("split is"),
    ];
    let mut table = TextTable::new(TextStyle::Open, columns);
    let mut last = None;
    for row in rows.iter().filter(|row| row.unsplit + row.split > 0) {
        let prefix = row.prefix.as_deref().unwrap_or("all");
        let shown = if last == Some(prefix) { "" } else { prefix };
        last = Some(prefix);
        let time = |seconds: Option<f64>| seconds.map_or("–".into(), seconds_text);
        table.push(vec![
            shown.into(),
            row.size.clone().unwrap_or_else(|| "all".into()),
            row.unsplit.to_string(),
            row.split.to_string(),
            row.clients.to_string(),
            time(row.unsplit_s),
            time(row.split_s),
            gain_text(row),
        ]);
    }
    table
}

/// A time with three significant digits.
fn seconds_text(seconds: f64) -> String {
    match seconds {
        ..0.00995 => format!("{:.2}ms", seconds * 1e3),
        ..0.9995 => format!("{:.0}ms", seconds * 1e3),
        ..9.995 => format!("{seconds:.2}s"),
        ..99.95 => format!("{seconds:.1}s"),
        _ => age(seconds),
    }
}

/// The gain of a comparison with its interval and what it says; a dash if there is none.
fn gain_text(row: &ExperimentRow) -> String {
    let Some(Gain { ratio, low, high }) = row.gain else { return "–".into() };
    let verdict = match GainVerdict::of(row) {
        GainVerdict::TooFew => "too few",
        GainVerdict::Faster => "faster",
        GainVerdict::Slower => "slower",
        GainVerdict::Unclear => "not clearly faster",
        GainVerdict::Unlike => "not comparable",
    };
    format!("{ratio:.2} × as fast ({low:.2} to {high:.2}): {verdict}")
}

/// Sentences about what the comparisons rest on.
fn basis(view: &ExperimentView) -> String {
    let mut text = String::new();
    if let Some(why) = &view.failure {
        text += &format!("Nothing is measured: {why}.\n");
    }
    text += &format!(
        "1 in {} connections passes unsplit, as many are measured beside them, for {}. \"× as fast\" is the geometric mean time of \
         unsplit connections by that of split ones. In 95 % of experiments an interval made in this way contains the true ratio. A client has \
         at most 5 % of the weight, a prefix of clients (/24, /48) at most 10 %, or 1.5 times an equal share if they are few.\n",
        view.one_in,
        age(view.measured_s)
    );
    view.groups.iter().for_each(|group| text += &about(group));
    if view.rows.iter().any(|row| row.gain.is_some() && GainVerdict::of(row) == GainVerdict::TooFew) {
        text += &format!("Too few: less than {FEWEST} connections of a group are compared, in size classes that both groups have.\n");
    }
    if view.rows.iter().any(|row| GainVerdict::of(row) == GainVerdict::Unlike) {
        text += "Not comparable: more connections of one group have a time than of the other, and not by chance. Their clients or servers \
                 treat the groups differently.\n";
    }
    if let Some(why) = view.rows.first().filter(|row| row.gain.is_some()).and_then(few_clients) {
        text += &format!("Trust the result only if you trust the clients: {why}.\n");
    }
    text += "Decide the number of connections before you look: an interval that is watched until it leaves 1 does so by chance ever more \
             often.\n";
    if view.lost > 0 {
        text += &format!("Packets were lost before they were read, {} times: connections that were open then have no time.\n", view.lost);
    }
    if view.left_out > 0 {
        text += &format!("{} connections were not followed, because there were too many at once.\n", view.left_out);
    }
    text
}

fn about(view: &GroupView) -> String {
    let counts = &view.counts;
    let mut text = format!(
        "{}: {} connections, {} with a time, {} open, {} reset, {} unfinished, {} unanswered, {} empty",
        view.group, counts.begun, counts.complete, view.open, counts.reset, counts.unfinished, counts.unanswered, counts.empty
    );
    for (what, count) in [("suspicious", counts.suspicious), ("missed", counts.missed)] {
        if count > 0 {
            text += &format!(", {count} {what}");
        }
    }
    let rtts = [("client", view.near_rtt_s), ("server", view.far_rtt_s)];
    for (side, rtt) in rtts.into_iter().filter_map(|(side, rtt)| Some((side, rtt?))) {
        text += &format!("; round trip of the {side} {}", seconds_text(rtt));
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn view(gain: &serde_json::Value) -> ExperimentView {
        let row = |prefix: Option<&str>, size: Option<&str>, gain: &serde_json::Value| json!({ "prefix": prefix, "size": size, "unsplit": 40, "split": 41, "compared_unsplit": 40, "compared_split": 41, "clients": 12, "client_prefixes": 6, "unsplit_s": 8.214, "split_s": 3.02, "gain": gain });
        let group = |group: &str| {
            json!({ "group": group, "begun": 50, "complete": 40, "empty": 1, "reset": 4, "unfinished": 2,
            "unanswered": 1, "open": 2, "near_rtt_s": 0.602, "far_rtt_s": if group == "split" { None } else { Some(0.021) } })
        };
        let none = serde_json::Value::Null;
        serde_json::from_value(
            json!({ "one_in": 50, "measured_s": 600.0, "lost": 0, "left_out": 0, "groups": [group("unsplit"), group("split")],
            "rows": [row(None, None, gain), row(None, Some("<1MB"), &none), row(Some("192.0.2.0/24"), None, &none)] }),
        )
        .unwrap()
    }

    #[test]
    fn a_comparison_is_a_table_and_what_it_rests_on() {
        let text = experiment_text(&view(&json!({ "ratio": 2.72, "low": 2.4, "high": 3.1 })), None);
        let line = |of: &str| text.lines().find(|line| line.contains(of)).unwrap_or_else(|| panic!("{of}:\n{text}"));
        let words = |of: &str| line(of).split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(words(" <1MB "), "<1MB 40 41 12 8.21s 3.02s –", "its name is that of the row above, and it has no gain:\n{text}");
        assert_eq!(words(" all "), "all all 40 41 12 8.21s 3.02s 2.72 × as fast (2.40 to 3.10): faster");
        assert!(line("192.0.2.0/24").trim_end().ends_with('–'), "{text}");
        let group = |of: &str| text.lines().find(|line| line.starts_with(of)).unwrap_or_else(|| panic!("{of}:\n{text}"));
        assert!(group("split: ").ends_with("round trip of the client 602ms"), "{text}");
        assert!(group("unsplit: ").ends_with("round trip of the server 21ms"), "{text}");
        assert!(!text.contains("Too few") && !text.contains("Trust"), "40 connections of 12 clients are enough:\n{text}");
        assert!(!text.contains("suspicious"), "{text}");
    }

    #[test]
    fn a_gain_that_may_be_chance_is_not_called_one() {
        let row = |low: f64, high: f64, compared_split: u64| {
            let gain = json!({ "ratio": 1.1, "low": low, "high": high });
            let row = json!({ "unsplit": 90, "split": 90, "compared_unsplit": 30, "compared_split": compared_split, "gain": gain });
            gain_text(&serde_json::from_value(row).unwrap())
        };
        assert_eq!(row(1.05, 1.2, 30), "1.10 × as fast (1.05 to 1.20): faster");
        assert!(row(0.9, 1.3, 30).ends_with("not clearly faster") && row(0.5, 0.9, 30).ends_with(": slower"));
        assert!(row(1.05, 1.2, 29).ends_with(": too few"), "61 connections are of size classes that are not compared");
        let mut few = view(&json!({ "ratio": 1.1, "low": 1.05, "high": 1.2 }));
        few.rows[0].compared_split = 2;
        assert!(experiment_text(&few, None).contains("Too few: less than 30 connections"));
    }

    #[test]
    fn what_cannot_be_trusted_is_said() {
        let mut view = view(&json!({ "ratio": 0.01, "low": 0.008, "high": 0.012 }));
        view.rows[0].clients = 1;
        view.rows[0].client_prefixes = 1;
        view.groups[0].counts.suspicious = 200;
        let text = experiment_text(&view, None);
        assert!(
            text.contains("Trust the result only if you trust the clients: it compares connections of 1 client in 1 prefix (/24"),
            "{text}"
        );
        assert!(text.contains("1 empty, 200 suspicious; round trip"), "{text}");
        view.rows[0].unlike_ends = true;
        let text = experiment_text(&view, None);
        assert!(text.contains(": not comparable") && text.contains("Not comparable: more connections of one group"), "{text}");
    }

    #[test]
    fn an_experiment_is_acted_upon_if_no_client_can_decide_it() {
        let row = |clients: u64, client_prefixes: u64, unlike_ends: bool| -> ExperimentRow {
            let gain = json!({ "ratio": 0.01, "low": 0.008, "high": 0.012 });
            let row = json!({ "unsplit": 200, "split": 200, "compared_unsplit": 200, "compared_split": 200, "gain": gain, "clients": clients,
                "client_prefixes": client_prefixes, "unlike_ends": unlike_ends });
            serde_json::from_value(row).unwrap()
        };
        let evidence = |row: &ExperimentRow, trusts| ExperimentEvidence::of(Some(row), trusts);
        for few in [row(1, 1, false), row(9, 9, false), row(16, 1, false), row(10, 5, true)] {
            let found = evidence(&few, false);
            assert!(found.gain.is_none() && found.sentences[1].starts_with("The advice does not use that: "), "{found:?}");
        }
        let enough = evidence(&row(10, 5, false), false);
        assert!(enough.gain == row(10, 5, false).gain && enough.sentences.len() == 1, "{enough:?}");
        assert!(enough.sentences[0].ends_with("(95 % interval 0.01 to 0.01; at least 10 clients in 5 prefixes)."), "{enough:?}");
        assert!(evidence(&row(1, 1, false), true).gain.is_some() && evidence(&row(99, 99, true), true).gain.is_none());
        assert_eq!(ExperimentEvidence::of(None, false), ExperimentEvidence::default());
    }

    #[test]
    fn a_failure_comes_first() {
        let failed = ExperimentView { one_in: 2, failure: Some("the kernel has no packet log".into()), ..ExperimentView::default() };
        assert!(experiment_text(&failed, Some(80)).starts_with("Nothing is measured: the kernel has no packet log.\n1 in 2 "));
    }
}
