//! Sources that are not always on: applications that write from time to time, and UDP across a link.
//! Their random values are drawn here, from the seed, so that all engines have the same.

use crate::{
    law::{Law, Shape, SizeLaw, SpanLaw},
    random::{Purpose, stream},
};
use rand_pcg::Pcg64;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use units::{Bytes, PKT, Rate, Span};

/// An application that writes at intervals.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Offer {
    /// Size of a write.
    pub bytes: SizeLaw,
    /// Time from the beginning of one write to that of the next. The first comes when the flow starts.
    pub every: SpanLaw,
    /// How long it writes before each pause. Only this time counts towards `every`. Needs `off`;
    /// without both it never pauses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on: Option<SpanLaw>,
    /// How long each pause lasts. Needs `on`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub off: Option<SpanLaw>,
}

impl Offer {
    /// The writes of flow `id`, which begins at `start`.
    pub fn writes(&self, seed: u64, id: u32, start: Span) -> Writes {
        let random = stream(seed, Purpose::Offers, id.into());
        Writes { times: Times::new(start, self.every, self.on.zip(self.off), random), bytes: self.bytes }
    }
}

/// UDP packets of 1500 bytes across one link, in the direction of the data.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cross {
    /// Number of the link, from 1.
    pub link: usize,
    /// Mean rate while it sends, in IP bits a second.
    pub rate: Rate,
    /// Distances between its packets while it sends.
    #[serde(default, skip_serializing_if = "Arrivals::is_even")]
    #[schemars(extend("default" = "even"))]
    pub arrivals: Arrivals,
    /// When it begins to send.
    #[serde(default)]
    pub start: Span,
    /// When it ends. Absent: with the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<Span>,
    /// How long it sends before each pause. Only this time counts towards the distances between
    /// packets. Needs `off`; without both it never pauses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on: Option<SpanLaw>,
    /// How long each pause lasts. Needs `on`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub off: Option<SpanLaw>,
}

impl Cross {
    /// The times of the packets of this source, number `index` of its scenario, up to its `stop`.
    pub fn times(&self, seed: u64, index: u64) -> Times {
        let gap = self.rate.time_for(PKT);
        let shape = if self.arrivals.is_even() { Shape::Deterministic } else { Shape::Exponential };
        let random = stream(seed, Purpose::Cross, index);
        let mut times = Times::new(self.start, Law { shape, mean: gap }, self.on.zip(self.off), random);
        times.stop = self.stop.unwrap_or(times.stop);
        if !self.arrivals.is_even() {
            // A Poisson process has no arrival at its beginning.
            times.advance();
        }
        times
    }
}

/// Distances between packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Arrivals {
    /// Equal
    #[default]
    Even,
    /// Exponentially distributed: a Poisson process
    Poisson,
}

impl Arrivals {
    fn is_even(&self) -> bool {
        *self == Arrivals::Even
    }
}

/// The times at which a source acts, in order: its start, and then one after each gap. Gaps pass only
/// while it is on.
#[derive(Debug, Clone)]
pub struct Times {
    start: u64,
    stop: Span,
    gap: SpanLaw,
    spells: Option<(SpanLaw, SpanLaw)>,
    random: Pcg64,
    /// Time that it will have been on when it acts next, ns.
    active: u64,
    /// Time that it will have been on when its present spell ends, ns.
    spell_end: u64,
    /// Time that it has paused until now, ns.
    paused: u64,
}

impl Times {
    fn new(start: Span, gap: SpanLaw, spells: Option<(SpanLaw, SpanLaw)>, mut random: Pcg64) -> Self {
        let spell_end = spells.map_or(u64::MAX, |(on, _)| on.draw(&mut random).0);
        Times { start: start.0, stop: Span(u64::MAX), gap, spells, random, active: 0, spell_end, paused: 0 }
    }

    /// Draws the next gap, and the spells that it spans.
    fn advance(&mut self) {
        self.active = self.active.saturating_add(self.gap.draw(&mut self.random).0.max(1));
        let Some((on, off)) = self.spells else { return };
        while self.active >= self.spell_end && self.spell_end < u64::MAX {
            self.paused = self.paused.saturating_add(off.draw(&mut self.random).0);
            self.spell_end = self.spell_end.saturating_add(on.draw(&mut self.random).0.max(1));
        }
    }
}

impl Iterator for Times {
    type Item = Span;

    fn next(&mut self) -> Option<Span> {
        let at = Span(self.start.saturating_add(self.active).saturating_add(self.paused));
        if at >= self.stop {
            return None;
        }
        self.advance();
        Some(at)
    }
}

/// The writes of an application: time and size of each.
#[derive(Debug, Clone)]
pub struct Writes {
    times: Times,
    bytes: SizeLaw,
}

impl Iterator for Writes {
    type Item = (Span, Bytes);

    fn next(&mut self) -> Option<(Span, Bytes)> {
        let bytes = self.bytes.draw(&mut self.times.random);
        self.times.next().map(|at| (at, bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cross(more: &str) -> Cross {
        toml::from_str(&format!("link = 1\nrate = \"12Mbit\"\n{more}")).unwrap()
    }

    fn seconds(times: Times, until: f64) -> Vec<f64> {
        times.map(Span::secs).take_while(|at| *at < until).collect()
    }

    #[test]
    fn fixed_spells_take_turns_and_time_counts_only_in_them() {
        // A packet takes 1 ms.
        let milliseconds = |more: &str, count: usize| cross(more).times(1, 0).take(count).map(|at| at.0 / 1_000_000).collect::<Vec<_>>();
        assert_eq!(milliseconds("", 4), [0, 1, 2, 3]);
        assert_eq!(milliseconds("start = \"5ms\"\non = \"2ms\"\noff = \"10ms\"", 6), [5, 6, 17, 18, 29, 30]);
        assert_eq!(milliseconds("on = \"1500us\"\noff = \"10ms\"", 5), [0, 1, 12, 23, 24]);
        assert_eq!(milliseconds("stop = \"3ms\"", 9), [0, 1, 2]);
    }

    #[test]
    fn poisson_packets_have_the_rate_and_the_scatter_of_a_poisson_process() {
        let times = seconds(cross("arrivals = \"poisson\"").times(7, 0), 200.0);
        // 1000 a second: 200 000 ± 447.
        assert!((times.len() as f64 - 200_000.0).abs() < 4.0 * 447.0, "{}", times.len());
        let mut counts = vec![0.0; 2000];
        times.iter().for_each(|at| counts[(at * 10.0) as usize] += 1.0);
        let variance = counts.iter().map(|count: &f64| (count - 100.0).powi(2)).sum::<f64>() / counts.len() as f64;
        // A Poisson count's variance is its mean, and this estimate's deviation √(2/2000) of it.
        assert!((variance / 100.0 - 1.0).abs() < 4.0 * (2.0f64 / 2000.0).sqrt(), "{variance}");
    }

    #[test]
    fn random_spells_have_the_share_that_their_means_say() {
        let exponential = "on = { law = \"exponential\", mean = \"300ms\" }\noff = { law = \"exponential\", mean = \"700ms\" }";
        let pareto =
            "on = { law = \"pareto\", exponent = 2.5, mean = \"300ms\" }\noff = { law = \"pareto\", exponent = 2.5, mean = \"700ms\" }";
        for (spells, name) in [(exponential, "exponential"), (pareto, "pareto")] {
            let times = seconds(cross(spells).times(3, 0), 20_000.0);
            // On for 0.3 of the time: the deviation over some 20 000 turns is 1 %.
            assert!((times.len() as f64 / 6e6 - 1.0).abs() < 0.04, "{name}: {}", times.len());
            let pauses = times.windows(2).filter(|pair| pair[1] - pair[0] > 0.01).count();
            assert!((pauses as f64 / 20_000.0 - 1.0).abs() < 0.05, "{name}: {pauses}");
        }
    }

    #[test]
    fn an_application_writes_what_its_laws_say() {
        let offer: Offer = toml::from_str(
            "bytes = { law = \"exponential\", mean = \"5kB\" }\nevery = { law = \"exponential\", mean = \"10ms\" }\n\
             on = { law = \"exponential\", mean = \"1s\" }\noff = \"1s\"",
        )
        .unwrap();
        let writes: Vec<(Span, Bytes)> = offer.writes(5, 3, Span(2_000_000_000)).take_while(|(at, _)| at.secs() < 4002.0).collect();
        assert_eq!(writes[0].0, Span(2_000_000_000));
        // 100 a second, half of the time.
        assert!((writes.len() as f64 / 200_000.0 - 1.0).abs() < 0.06, "{}", writes.len());
        let mean = writes.iter().map(|(_, bytes)| bytes.0 as f64).sum::<f64>() / writes.len() as f64;
        assert!((mean / 5000.0 - 1.0).abs() < 4.0 / (writes.len() as f64).sqrt(), "{mean}");
        let again: Vec<_> = offer.writes(5, 3, Span(2_000_000_000)).take(100).collect();
        assert_eq!(writes[..100], again[..]);
        assert_ne!(offer.writes(5, 4, Span::ZERO).nth(1), offer.writes(5, 3, Span::ZERO).nth(1));
    }
}
