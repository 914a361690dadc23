//! Which lines the plots show, and their points. `chart` draws them.

use crate::group::OutcomeGroup;
use crate::number_format::{QuantityKind, Scale, short};
use outcome::{Outcome, Series};

/// The most points of a line: more would be finer than a screen.
const POINTS: usize = 600;
/// The most points of all lines of a case together, so that a page with many flows stays small.
const POINTS_OF_CASE: usize = 3600;
/// Goodput is shown as means over this many intervals: single samples show packets, not goodput.
const INTERVALS: usize = 240;

/// One plot.
#[derive(Debug)]
pub(crate) struct Figure {
    pub(crate) title: String,
    pub(crate) scale: Scale,
    /// What a reader must know about the lines.
    pub(crate) remarks: Vec<String>,
    pub(crate) lines: Vec<CurveLine>,
}

/// One line of a plot, in base units.
#[derive(Debug)]
pub(crate) struct CurveLine {
    /// Index of its group, which decides its colour.
    pub(crate) group: usize,
    pub(crate) name: String,
    /// Whether it belongs to a leg, or a network, after the first.
    pub(crate) dashed: bool,
    /// Whether it is one of many of its group.
    pub(crate) thin: bool,
    /// Time, s, and value.
    pub(crate) points: Vec<(f64, f64)>,
}

/// The known values of `Series.what`, with a title and the kind of the numbers.
const KNOWN: [(&str, &str, QuantityKind); 18] = [
    ("goodput", "Goodput, as the receivers read it", QuantityKind::Rate),
    ("flow_goodput", "Goodput of each flow", QuantityKind::Rate),
    ("cwnd", "Congestion window of the sending leg", QuantityKind::Count),
    ("rtt", "Smoothed RTT of the sending leg", QuantityKind::Delay),
    ("in_flight", "Data in flight", QuantityKind::Bytes),
    ("held", "Payload held by the proxy", QuantityKind::Bytes),
    ("queue", "Queue at the bottleneck", QuantityKind::Bytes),
    ("retransmits", "Segments retransmitted, so far", QuantityKind::Count),
    // A bond (Hoekstra et al., (7) and (8)).
    ("carried", "Payload given to each network", QuantityKind::Rate),
    ("score", "Score of each network: Q/G + sRTT/2", QuantityKind::Delay),
    ("throughput", "Smoothed throughput of each network, G", QuantityKind::Rate),
    ("unsent", "Data that waits to be sent over each network, Q", QuantityKind::Bytes),
    ("waiting", "Payload that arrived out of order", QuantityKind::Bytes),
    ("waited", "Time that payload of the other networks waited for each network, so far", QuantityKind::Delay),
    // A traced connection (Wei et al., Figure 3).
    ("sent", "Sender throughput", QuantityKind::Rate),
    ("received", "Throughput at the receiver", QuantityKind::Rate),
    ("offered", "Window offered to the sender", QuantityKind::Bytes),
    ("delay", "End-to-end delay, by when a byte was sent", QuantityKind::Delay),
];

/// A plot for each kind of series: the known ones in the order of the list above, then others.
pub(crate) fn figures(groups: &[OutcomeGroup<'_>]) -> Vec<Figure> {
    let mut whats: Vec<&str> = KNOWN.map(|(what, ..)| what).to_vec();
    for series in groups.iter().filter_map(shown).flat_map(|outcome| &outcome.series) {
        if !whats.contains(&series.what.as_str()) {
            whats.push(&series.what);
        }
    }
    whats.into_iter().filter_map(|what| figure(groups, what)).collect()
}

/// The outcome whose series represent its group: the lines of several seeds would cover each other.
pub(crate) fn shown<'a>(group: &OutcomeGroup<'a>) -> Option<&'a Outcome> {
    group.outcomes.iter().copied().find(|outcome| !outcome.series.is_empty())
}

fn figure(groups: &[OutcomeGroup<'_>], what: &str) -> Option<Figure> {
    let mut lines = Vec::new();
    let mut interval_s: f64 = 0.0;
    let mut unit = None;
    let mut seeds = Vec::new();
    for (index, group) in groups.iter().enumerate() {
        let Some(outcome) = shown(group) else { continue };
        let chosen = chosen(outcome, what);
        if chosen.is_empty() {
            continue;
        }
        if group.outcomes.len() > 1 && !seeds.contains(&outcome.seed) {
            seeds.push(outcome.seed);
        }
        let most = POINTS.min((POINTS_OF_CASE / chosen.len()).max(60));
        for series in &chosen {
            unit.get_or_insert(series.unit.as_str());
            let samples = samples(series);
            let points = match what {
                "goodput" | "flow_goodput" | "carried" => {
                    let (points, seconds) = averaged(&samples, INTERVALS.min(most));
                    interval_s = interval_s.max(seconds);
                    points
                }
                _ => thinned(&samples, most),
            };
            let name = if chosen.len() == 1 { group.label.clone() } else { format!("{}, {}", group.label, series.whose) };
            let line = CurveLine { group: index, name, dashed: is_later(&series.whose), thin: chosen.len() > 3, points };
            if !line.points.is_empty() {
                lines.push(line);
            }
        }
    }
    let unit = unit?;
    let (title, kind) = match KNOWN.iter().find(|(known, ..)| *known == what) {
        Some((_, title, kind)) => ((*title).to_string(), *kind),
        None => (what.to_string(), kind_of(unit)),
    };
    let mut scale = kind.scale([lines.iter().flat_map(|line| &line.points).fold(0.0, |most: f64, (_, v)| most.max(*v))]);
    if kind == QuantityKind::Count {
        scale.unit = if matches!(what, "cwnd" | "retransmits") || unit == "pkt" { "segments" } else { "" };
    }
    let mut remarks = Vec::new();
    if interval_s > 0.0 {
        remarks.push(format!("means over {} s", short(interval_s)));
        if what != "carried" {
            remarks.push("above the link's rate where data that had waited for a retransmission is read at once".into());
        }
    }
    if lines.iter().any(|line| line.dashed) {
        let of_networks =
            groups.iter().filter_map(shown).flat_map(|outcome| &outcome.series).any(|series| series.whose.starts_with("network"));
        remarks.push(if of_networks { "solid: first network, dashed: others" } else { "solid: first leg, dashed: later legs" }.into());
    }
    if let [seed] = seeds[..] {
        remarks.push(format!("seed {seed} only"));
    } else if !seeds.is_empty() {
        remarks.push("one seed of each case".into());
    }
    (!lines.is_empty()).then_some(Figure { title, scale, remarks, lines })
}

/// The series of `what` to draw: the sum over all if there is one; for queues that of the bottleneck;
/// otherwise every series.
fn chosen<'a>(outcome: &'a Outcome, what: &str) -> Vec<&'a Series> {
    let of: Vec<&Series> = outcome.series.iter().filter(|series| series.what == what).collect();
    let slowest = outcome.links.iter().min_by(|a, b| a.rate_bps.total_cmp(&b.rate_bps)).map(|link| format!("link {}", link.link));
    let only = |whose: &str| of.iter().copied().filter(|series| series.whose == whose).collect::<Vec<_>>();
    let total = only("all");
    if !total.is_empty() {
        return total;
    }
    match slowest.filter(|_| what == "queue").map(|link| only(&link)) {
        Some(queue) if !queue.is_empty() => queue,
        _ => of,
    }
}

/// Whether `whose` names a leg, or a network, after the first.
fn is_later(whose: &str) -> bool {
    let number = |word: &str| whose.split(word).nth(1).and_then(|rest| rest.split_whitespace().next()?.parse::<u32>().ok());
    ["leg ", "network "].into_iter().filter_map(number).any(|number| number > 1)
}

fn kind_of(unit: &str) -> QuantityKind {
    match unit {
        "bit/s" => QuantityKind::Rate,
        "s" => QuantityKind::Delay,
        "B" => QuantityKind::Bytes,
        _ => QuantityKind::Count,
    }
}

fn samples(series: &Series) -> Vec<(f64, f64)> {
    series.t.iter().copied().zip(series.v.iter().copied()).filter(|(t, v)| t.is_finite() && v.is_finite()).collect()
}

/// At most `most` points: the smallest and the largest of each section, so that no spike is lost.
fn thinned(samples: &[(f64, f64)], most: usize) -> Vec<(f64, f64)> {
    if samples.len() <= most {
        return samples.to_vec();
    }
    let section_len = samples.len().div_ceil(most / 2);
    let mut points = Vec::with_capacity(most);
    for section in samples.chunks(section_len) {
        let of = |pick: Option<(usize, &(f64, f64))>| pick.map_or(0, |(at, _)| at);
        let least = of(section.iter().enumerate().min_by(|a, b| a.1.1.total_cmp(&b.1.1)));
        let largest = of(section.iter().enumerate().max_by(|a, b| a.1.1.total_cmp(&b.1.1)));
        points.push(section[least.min(largest)]);
        if least != largest {
            points.push(section[least.max(largest)]);
        }
    }
    points
}

/// Means over at most `most` intervals, and the length of an interval, s; with fewer samples these
/// themselves, and zero.
fn averaged(samples: &[(f64, f64)], most: usize) -> (Vec<(f64, f64)>, f64) {
    if samples.len() <= most {
        return (samples.to_vec(), 0.0);
    }
    let size = samples.len().div_ceil(most);
    let mean = |interval: &[(f64, f64)]| {
        let n = interval.len() as f64;
        (interval.iter().map(|(t, _)| t).sum::<f64>() / n, interval.iter().map(|(_, v)| v).sum::<f64>() / n)
    };
    let period = (samples[samples.len() - 1].0 - samples[0].0) / (samples.len() - 1) as f64;
    (samples.chunks(size).map(mean).collect(), period * size as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use outcome::LinkOutcome;

    fn ramp(n: usize) -> Vec<(f64, f64)> {
        (0..n).map(|i| (i as f64, i as f64)).collect()
    }

    fn series(what: &str, whose: &str) -> Series {
        Series { what: what.into(), whose: whose.into(), unit: "B".into(), t: vec![0.0], v: vec![1.0] }
    }

    #[test]
    fn thinning_keeps_a_single_spike() {
        let mut samples = ramp(10_000);
        samples[4321].1 = 1e9;
        let points = thinned(&samples, 600);
        assert!(points.len() <= 600, "{}", points.len());
        assert!(points.contains(&(4321.0, 1e9)));
        assert!(points.is_sorted_by(|a, b| a.0 < b.0));
    }

    #[test]
    fn averaging_keeps_the_mean_and_returns_the_interval() {
        let (points, interval_s) = averaged(&ramp(1000), 250);
        assert_eq!((points.len(), interval_s, points[0]), (250, 4.0, (1.5, 1.5)));
        assert_eq!(averaged(&ramp(10), 250), (ramp(10), 0.0));
    }

    #[test]
    fn the_sum_of_all_and_the_bottleneck_come_first() {
        let link = |link, rate_bps| LinkOutcome { link, rate_bps, ..LinkOutcome::default() };
        let outcome = Outcome {
            links: vec![link(1, 1e9), link(2, 1e7)],
            series: vec![
                series("queue", "link 1"),
                series("queue", "link 2"),
                series("held", "flow 0"),
                series("held", "all"),
                series("cwnd", "flow 0 leg 1"),
                series("cwnd", "flow 0 leg 2"),
            ],
            ..Outcome::default()
        };
        let whose = |what| chosen(&outcome, what).iter().map(|series| series.whose.as_str()).collect::<Vec<_>>();
        assert_eq!(whose("queue"), ["link 2"]);
        assert_eq!(whose("held"), ["all"]);
        assert_eq!(whose("cwnd"), ["flow 0 leg 1", "flow 0 leg 2"]);
        let whose = ["flow 0 leg 1", "flow 0 leg 2", "flow 12 leg 10", "network 1", "network 2", "all"];
        assert_eq!(whose.map(is_later), [false, true, true, false, true, false]);
    }
}
