//! The plots of a sweep: numbers of the outcomes over the values of a swept key.

use crate::{
    chart::legend,
    group::{OutcomeGroup, differs},
    markup::{escape, plain},
    number_format::QuantityKind,
    xy_plot::{self, XyKind, XyLine, XyPlot},
};
use scenario::{SetValue, case_parts, short_keys, short_parts};
use std::{collections::BTreeSet, fmt::Write as _};

/// A key with fewer values is not drawn as an axis.
const LEAST_VALUES: usize = 3;
/// The most plots.
const MOST_PLOTS: usize = 6;
/// An axis is logarithmic if its largest value is so many times its smallest positive one.
const LOG_FROM: [f64; 2] = [20.0, 50.0];

/// The numbers that may be drawn, with their kinds and titles.
const DRAWN: [(&str, QuantityKind, &str); 12] = [
    ("goodput_bps", QuantityKind::Rate, "Goodput"),
    ("mean_flow_s", QuantityKind::Time, "Mean flow"),
    ("completion_s", QuantityKind::Time, "Time to the last byte"),
    ("sojourn_0_s", QuantityKind::Time, "Foreground"),
    ("page_load_p50_s", QuantityKind::Time, "Page load, median"),
    ("response_p99_s", QuantityKind::Delay, "Response, 99th percentile"),
    ("jain", QuantityKind::Count, "Jain's index"),
    ("queue_delay_p95_s", QuantityKind::Delay, "Wait in the queue, 95th percentile"),
    ("delay_s", QuantityKind::Delay, "Delay from end to end"),
    ("held_bytes", QuantityKind::Bytes, "Held by the proxy"),
    ("retransmits", QuantityKind::Count, "Segments sent again"),
    ("queue_drops", QuantityKind::Count, "Drops"),
];

/// The groups of a curve, by the value of the key.
struct SweepCurve<'a> {
    name: String,
    points: Vec<(f64, &'a OutcomeGroup<'a>)>,
}

/// A section of plots over the swept key that has the most values, with one legend; empty if no key
/// has enough.
pub(crate) fn draw(groups: &[OutcomeGroup<'_>]) -> String {
    let Some(key) = parameter(groups) else { return String::new() };
    let curves = curves(groups, &key);
    let kind = kind_of(groups, &key);
    let values = || curves.iter().flat_map(|curve| curve.points.iter().map(|(value, _)| *value));
    let across = kind.scale(values());
    let name = short_keys(&[key.as_str()]).remove(0);
    let x = if across.unit.is_empty() { name.to_owned() } else { format!("{name}, {}", across.unit) };
    let mut plots = String::new();
    for (number, kind, title) in DRAWN {
        if plots.matches("<figure>").count() == MOST_PLOTS {
            break;
        }
        let of = |group: &OutcomeGroup<'_>| group.number(number, |outcome| outcome.number(number));
        let means: Vec<f64> = curves.iter().flat_map(|curve| &curve.points).filter_map(|(_, group)| of(group)).map(|n| n.mean).collect();
        // What is the same everywhere says nothing.
        if means.iter().all(|mean| *mean == means[0]) {
            continue;
        }
        let up = kind.scale(means.iter().copied());
        let log = [is_wide(values(), LOG_FROM[0]), is_wide(means.iter().copied(), LOG_FROM[1])];
        let mut lines = Vec::new();
        for (index, curve) in curves.iter().enumerate() {
            let numbers = || curve.points.iter().filter_map(|(value, group)| Some((value / across.per, of(group)?)));
            let points = numbers().map(|(x, number)| (x, number.mean / up.per)).collect();
            lines.push(XyLine { name: &curve.name, group: index, kind: XyKind::Curve, points });
            for (x, number) in numbers() {
                let Some(half) = number.half.filter(|half| half.is_finite()) else { continue };
                // A logarithmic axis ends somewhere below.
                let least = if log[1] { number.mean / 10.0 } else { f64::NEG_INFINITY };
                let points = [(number.mean - half).max(least), number.mean + half].map(|end| (x, end / up.per)).into();
                lines.push(XyLine { name: &curve.name, group: index, kind: XyKind::Whisker, points });
            }
        }
        let y = if up.unit.is_empty() { format!("over {x}") } else { format!("{} over {x}", up.unit) };
        plots += &xy_plot::draw(&XyPlot { title, x: "", y: &y, lines, log, legend: false });
    }
    let mut out = format!("<section data-together=\"\">\n<h2>Over {}</h2>\n", escape(&key));
    if curves.len() > 1 {
        out += &legend(curves.iter().enumerate().map(|(index, curve)| (index, &*curve.name)));
        out += "<p class=\"under\">A click on a name shows its curve alone, another one all; with Shift it switches the curve off.</p>\n";
    }
    let _ = write!(out, "<div class=\"plots\">\n{plots}</div>\n</section>\n");
    if plots.is_empty() { plots } else { out }
}

/// The swept key with the most different numbers, which all groups have.
fn parameter(groups: &[OutcomeGroup<'_>]) -> Option<String> {
    let keys = groups.first()?.outcomes[0].set.keys();
    let count = |key: &str| {
        let values: Option<BTreeSet<u64>> = groups.iter().map(|group| Some(value_of(group, key)?.to_bits())).collect();
        values.map_or(0, |values| values.len())
    };
    let counted = keys.map(|key| (count(key), key)).filter(|(count, _)| *count >= LEAST_VALUES);
    // Of equal ones the first.
    counted.rev().max_by_key(|(count, _)| *count).map(|(_, key)| key.clone())
}

fn value_of(group: &OutcomeGroup<'_>, key: &str) -> Option<f64> {
    match group.outcomes[0].set.get(key)? {
        SetValue::Number(value) => Some(*value),
        SetValue::Truth(_) | SetValue::Text(_) => None,
    }
}

/// What the key's values are, by how the cases write them. Zero may have no unit.
fn kind_of(groups: &[OutcomeGroup<'_>], key: &str) -> QuantityKind {
    let written = |case| case_parts(case).into_iter().find(|(name, _)| *name == key).map_or("", |(_, value)| value);
    let mut kinds = groups.iter().map(|group| kind_of_text(written(&group.outcomes[0].case)));
    kinds.find(|kind| *kind != QuantityKind::Count).unwrap_or(QuantityKind::Count)
}

fn kind_of_text(written: &str) -> QuantityKind {
    let unit = written.trim_start_matches(|c: char| c.is_ascii_digit() || "+-.eE_".contains(c));
    match unit {
        "%" => QuantityKind::Share,
        "ns" | "us" | "µs" | "ms" | "s" | "min" | "h" => QuantityKind::Delay,
        _ if unit.ends_with("bit") => QuantityKind::Rate,
        _ if unit.ends_with('B') || unit == "pkt" => QuantityKind::Bytes,
        _ => QuantityKind::Count,
    }
}

/// A curve for all that differs besides the key.
fn curves<'a>(groups: &'a [OutcomeGroup<'a>], key: &str) -> Vec<SweepCurve<'a>> {
    let mut curves: Vec<SweepCurve<'a>> = Vec::new();
    for group in groups {
        let Some(value) = value_of(group, key) else { continue };
        let name = name_without(groups, group, key);
        match curves.iter_mut().find(|curve| curve.name == name) {
            Some(curve) => curve.points.push((value, group)),
            None => curves.push(SweepCurve { name, points: vec![(value, group)] }),
        }
    }
    curves.iter_mut().for_each(|curve| curve.points.sort_by(|(a, _), (b, _)| a.total_cmp(b)));
    curves
}

/// The group's name without the key.
fn name_without(groups: &[OutcomeGroup<'_>], group: &OutcomeGroup<'_>, key: &str) -> String {
    let outcome = group.outcomes[0];
    let parts: Vec<(&str, &str)> = case_parts(&outcome.case).into_iter().filter(|(name, _)| *name != key).collect();
    let case = short_parts(&parts);
    let mut names = Vec::new();
    if differs(groups, |outcome| &outcome.scenario) {
        names.push(plain(&outcome.scenario));
    }
    if !case.is_empty() {
        names.push(plain(&case));
    }
    if differs(groups, |outcome| &outcome.engine) || names.is_empty() {
        names.push(plain(&outcome.engine));
    }
    names.join(" · ")
}

/// Whether values span so much that they need a logarithmic axis. Zero may be among them.
fn is_wide(values: impl Iterator<Item = f64>, from: f64) -> bool {
    let mut ends: Option<[f64; 2]> = None;
    for value in values {
        if value < 0.0 || !value.is_finite() {
            return false;
        }
        if value > 0.0 {
            let [least, most] = ends.unwrap_or([value; 2]);
            ends = Some([least.min(value), most.max(value)]);
        }
    }
    ends.is_some_and(|[least, most]| most >= least * from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{group::groups, samples};
    use outcome::Outcome;
    use roxmltree::{Document, Node};

    /// A sweep of loss and controller, with two seeds each.
    fn sweep() -> Vec<Outcome> {
        let mut all = Vec::new();
        for control in ["cubic", "bbr"] {
            for (index, (loss, text)) in [(0.1, "10%"), (0.0, "0%"), (0.001, "0.1%"), (0.01, "1%")].into_iter().enumerate() {
                for seed in 1..3u64 {
                    let mut outcome = samples::full();
                    outcome.case = format!("split, control.proxy={control}, link.2.loss.per_packet={text}");
                    outcome.set.insert("control.proxy".into(), SetValue::Text(control.into()));
                    outcome.set.insert("link.2.loss.per_packet".into(), SetValue::Number(loss));
                    outcome.seed = seed;
                    outcome.goodput_bps = 1e6 * (index as f64 + 1.0);
                    all.push(outcome);
                }
            }
        }
        all
    }

    #[test]
    fn a_swept_number_is_the_axis_of_plots_with_one_legend() {
        let outcomes = sweep();
        let groups = groups(&outcomes);
        assert_eq!(parameter(&groups).as_deref(), Some("link.2.loss.per_packet"));
        let drawn = draw(&groups);
        let document = Document::parse(&drawn).unwrap();
        let all = |tag: &str| document.descendants().filter(|node| node.has_tag_name(tag)).collect::<Vec<_>>();
        let names: Vec<_> = all("li").iter().filter_map(|node| node.descendants().find_map(|n| n.text())).collect();
        assert_eq!(names, ["split, proxy=cubic", "split, proxy=bbr"]);
        let figure = all("figure")[0];
        assert!(figure.descendants().any(|node| node.text().is_some_and(|text| text.contains("Mbit/s over per_packet, %"))), "{drawn}");
        let lines: Vec<Node<'_, '_>> = figure.descendants().filter(|node| node.has_tag_name("polyline")).collect();
        let curve = lines.iter().find(|line| !line.attribute("class").unwrap().contains("whisker")).unwrap();
        // Zero stands before the logarithmic axis; goodput is 2, 3, 4 and 1 Mbit/s there.
        let points: Vec<&str> = curve.attribute("points").unwrap().split(' ').collect();
        assert_eq!((points.len(), points[0].split(',').next(), points[3].split(',').next()), (4, Some("0"), Some("2000")), "{points:?}");
        assert_eq!(lines.iter().filter(|line| line.attribute("class").unwrap().contains("whisker")).count(), 8);
    }

    #[test]
    fn few_values_and_texts_are_no_axis() {
        assert_eq!(draw(&groups(&samples::demo())), "");
        let mut outcomes = sweep();
        outcomes.retain(|outcome| outcome.set["link.2.loss.per_packet"] != SetValue::Number(0.1));
        outcomes.retain(|outcome| outcome.set["link.2.loss.per_packet"] != SetValue::Number(0.0));
        assert_eq!(parameter(&groups(&outcomes)), None);
    }
}
