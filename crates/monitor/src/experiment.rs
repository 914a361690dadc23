//! An experiment as text: how much sooner split connections were.

use crate::text::age;
use proxy::{ExperimentRow, ExperimentView, Gain, GroupView};
use report::{Alignment, TextColumn, TextStyle, TextTable};
use serde::Serialize;

/// A comparison of fewer connections in a group is too weak to act upon.
const FEWEST: u64 = 30;

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
}

impl GainVerdict {
    /// What this comparison says.
    pub fn of(row: &ExperimentRow) -> Self {
        match row.gain {
            Some(Gain { low, high, .. }) if row.compared_unsplit.min(row.compared_split) >= FEWEST => match () {
                () if low > 1.0 => GainVerdict::Faster,
                () if high < 1.0 => GainVerdict::Slower,
                () => GainVerdict::Unclear,
            },
            _ => GainVerdict::TooFew,
        }
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
         unsplit connections by that of split ones. In 95 % of experiments an interval made in this way contains the true ratio.\n",
        view.one_in,
        age(view.measured_s)
    );
    view.groups.iter().for_each(|group| text += &about(group));
    if view.rows.iter().any(|row| row.gain.is_some() && GainVerdict::of(row) == GainVerdict::TooFew) {
        text += &format!("Too few: less than {FEWEST} connections of a group are compared, in size classes that both groups have.\n");
    }
    text += "Decide the number of connections before you look: an interval that is watched until it leaves 1 does so by chance ever more \
             often.\n";
    if view.lost > 0 {
        text += &format!("Packets were lost before they were read, {} times: some connections have no time or a wrong one.\n", view.lost);
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
        let row = |prefix: Option<&str>, size: Option<&str>, gain: &serde_json::Value| json!({ "prefix": prefix, "size": size, "unsplit": 40, "split": 41, "compared_unsplit": 40, "compared_split": 41, "unsplit_s": 8.214, "split_s": 3.02, "gain": gain });
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
        assert_eq!(words(" <1MB "), "<1MB 40 41 8.21s 3.02s –", "its name is that of the row above, and it has no gain:\n{text}");
        assert_eq!(words(" all "), "all all 40 41 8.21s 3.02s 2.72 × as fast (2.40 to 3.10): faster");
        assert!(line("192.0.2.0/24").trim_end().ends_with('–'), "{text}");
        let group = |of: &str| text.lines().find(|line| line.starts_with(of)).unwrap_or_else(|| panic!("{of}:\n{text}"));
        assert!(group("split: ").ends_with("round trip of the client 602ms"), "{text}");
        assert!(group("unsplit: ").ends_with("round trip of the server 21ms"), "{text}");
        assert!(!text.contains("Too few"), "40 connections are enough:\n{text}");
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
    fn a_failure_comes_first() {
        let failed = ExperimentView { one_in: 2, failure: Some("the kernel has no packet log".into()), ..ExperimentView::default() };
        assert!(experiment_text(&failed, Some(80)).starts_with("Nothing is measured: the kernel has no packet log.\n1 in 2 "));
    }
}
