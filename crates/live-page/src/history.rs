//! The last hour of a proxy's totals: by seconds, then by minutes, in bounded memory.

use intercept::LinkView;
use proxy::Totals;
use serde::Serialize;
use std::{
    collections::{BTreeMap, VecDeque},
    time::{Instant, SystemTime, UNIX_EPOCH},
};

/// Seconds that are kept.
const SECONDS: usize = 600;
/// Minutes that are kept.
const MINUTES: usize = 60;
/// Samples of a minute.
const OF_A_MINUTE: usize = 60;

/// Rates over the time before `at`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Point {
    /// Seconds since 1970.
    pub(crate) at: f64,
    /// Payload from clients that servers have acknowledged, bit/s.
    pub(crate) up: f64,
    /// Payload from servers that clients have acknowledged, bit/s.
    pub(crate) down: f64,
    /// Open flows.
    pub(crate) flows: f64,
    /// Each link: what leaves it, bit/s of IP; its capacity, bit/s; its standing queue, bytes.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) links: BTreeMap<String, [f64; 3]>,
    /// Each network of a bond: payload sent and received, bit/s; the share of the time that data of
    /// other networks waited for data of this one, summed over all streams.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) networks: BTreeMap<String, [f64; 3]>,
}

/// The points of the last hour.
#[derive(Debug, Default)]
pub(crate) struct History {
    last: Option<(Instant, Totals)>,
    pub(crate) seconds: VecDeque<Point>,
    pub(crate) minutes: VecDeque<Point>,
    /// The seconds of the present minute.
    minute: Vec<Point>,
}

impl History {
    /// Takes a sample. The first one yields no rates, and no point.
    pub(crate) fn add(&mut self, now: Instant, totals: Totals, links: &[LinkView]) {
        let Some((before, old)) = &self.last else {
            self.last = Some((now, totals));
            return;
        };
        let elapsed = (now - *before).as_secs_f64().max(0.001);
        let rate = |new: u64, old: u64| (new.saturating_sub(old) as f64 * 8.0 / elapsed).round();
        let network = |(name, new): (&String, &proxy::NetworkTotals)| {
            let old = old.networks.get(name).copied().unwrap_or_default();
            let waited = (new.waited_s - old.waited_s).max(0.0) / elapsed;
            (name.clone(), [rate(new.sent, old.sent), rate(new.received, old.received), waited])
        };
        let link = |link: &LinkView| (link.link.clone(), [link.egress_bps.round(), link.capacity_bps as f64, link.queue_bytes as f64]);
        let point = Point {
            at: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_millis() as f64 / 1000.0),
            up: rate(totals.acknowledged[0], old.acknowledged[0]),
            down: rate(totals.acknowledged[1], old.acknowledged[1]),
            flows: totals.flows as f64,
            links: links.iter().map(link).collect(),
            networks: totals.networks.iter().map(network).collect(),
        };
        self.last = Some((now, totals));
        self.push(point);
    }

    fn push(&mut self, point: Point) {
        self.minute.push(point.clone());
        if self.minute.len() == OF_A_MINUTE {
            push_bounded(&mut self.minutes, mean(&self.minute), MINUTES);
            self.minute.clear();
        }
        push_bounded(&mut self.seconds, point, SECONDS);
    }

    /// The totals as of the last sample.
    pub(crate) fn totals(&self) -> Option<&Totals> {
        self.last.as_ref().map(|(_, totals)| totals)
    }
}

fn push_bounded(points: &mut VecDeque<Point>, point: Point, most: usize) {
    if points.len() == most {
        points.pop_front();
    }
    points.push_back(point);
}

/// The mean of some points, at the time of the last one. A link or network counts while it is there.
fn mean(points: &[Point]) -> Point {
    let of = |value: fn(&Point) -> f64| (points.iter().map(value).sum::<f64>() / points.len() as f64).round();
    let of_each = |values: fn(&Point) -> &BTreeMap<String, [f64; 3]>| {
        let mut sums: BTreeMap<String, (f64, [f64; 3])> = BTreeMap::new();
        for (name, values) in points.iter().flat_map(values) {
            let (count, sum) = sums.entry(name.clone()).or_default();
            *count += 1.0;
            sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
        }
        sums.into_iter().map(|(name, (count, sum))| (name, sum.map(|sum| sum / count))).collect()
    };
    Point {
        at: points.last().map_or(0.0, |point| point.at),
        up: of(|point| point.up),
        down: of(|point| point.down),
        flows: of(|point| point.flows),
        links: of_each(|point| &point.links),
        networks: of_each(|point| &point.networks),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proxy::NetworkTotals;
    use std::time::Duration;

    fn totals(up: u64, down: u64, sent: u64) -> Totals {
        let network = NetworkTotals { connections: 1, sent, received: 0, waited_s: sent as f64 / 1000.0, up: None };
        Totals { flows: 3, up, down, acknowledged: [up, down], networks: [("wlan0".to_owned(), network)].into(), ..Totals::default() }
    }

    #[test]
    fn rates_are_those_since_the_sample_before() {
        let (mut history, start) = (History::default(), Instant::now());
        history.add(start, totals(1000, 5000, 0), &[]);
        assert!(history.seconds.is_empty());
        history.add(start + Duration::from_secs(2), totals(2000, 5000, 500), &[]);
        let point = &history.seconds[0];
        assert_eq!((point.up, point.down, point.flows), (4000.0, 0.0, 3.0));
        assert_eq!(point.networks["wlan0"], [2000.0, 0.0, 0.25]);
    }

    #[test]
    fn an_hour_is_kept_and_no_more() {
        let (mut history, start) = (History::default(), Instant::now());
        for second in 0..=5000u64 {
            history.add(start + Duration::from_secs(second), totals(second * 125, 0, 0), &[]);
        }
        assert_eq!((history.seconds.len(), history.minutes.len()), (SECONDS, MINUTES));
        assert!(history.seconds.iter().chain(&history.minutes).all(|point| point.up == 1000.0 && point.flows == 3.0));
    }

    #[test]
    fn a_link_that_was_there_for_half_a_minute_keeps_its_rate() {
        let mut with = Point::default();
        with.links.insert("sat0".into(), [100.0, 200.0, 10.0]);
        assert_eq!(mean(&[with, Point::default()]).links["sat0"], [100.0, 200.0, 10.0]);
    }
}
