//! Arrival processes of the foreground, and streams that are not elastic: topics for further
//! research of Hoekstra, van der Mei and Bosman (2011, §VII).

use rand::RngExt;
use rand_pcg::Pcg64;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use units::{Rate, Span};

/// The process by which the foreground's transfers arrive. Its mean rate follows from the load.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ForegroundArrivals {
    /// A Poisson process.
    #[default]
    Poisson,
    /// A Poisson process whose rate depends on a phase (MMPP). The phases follow each other in a
    /// ring.
    Mmpp(MmppPhases),
}

impl ForegroundArrivals {
    pub(crate) fn is_poisson(&self) -> bool {
        *self == ForegroundArrivals::Poisson
    }

    /// The phases, if there are any.
    pub fn phases(&self) -> Option<&MmppPhases> {
        match self {
            ForegroundArrivals::Poisson => None,
            ForegroundArrivals::Mmpp(phases) => Some(phases),
        }
    }
}

/// The phases of Markov-modulated arrivals.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MmppPhases {
    /// Arrival rate in each phase; only their ratios count.
    pub rates: Vec<f64>,
    /// Mean length of each phase; lengths are exponential.
    pub lasts: Vec<Span>,
}

impl MmppPhases {
    /// What is wrong with the phases, and the cure.
    pub(crate) fn fault(&self) -> Option<String> {
        let count = self.rates.len();
        if count < 2 || self.lasts.len() != count {
            let lengths = self.lasts.len();
            return Some(format!("has {count} rates and {lengths} lengths: give both for each phase, of which there are at least two"));
        }
        if let Some(rate) = self.rates.iter().find(|rate| !(**rate >= 0.0 && rate.is_finite())) {
            return Some(format!("has a rate of {rate}, but a rate is 0 or more"));
        }
        if self.rates.iter().all(|rate| *rate == 0.0) {
            return Some("has rates of 0 only: nothing would ever arrive".into());
        }
        self.lasts.contains(&Span::ZERO).then(|| "has a phase of length 0: leave it out".into())
    }

    /// Arrival rate of each phase over the mean rate.
    pub(crate) fn factors(&self) -> Vec<f64> {
        let lasts: Vec<f64> = self.lasts.iter().map(|last| last.secs()).collect();
        let mean = self.rates.iter().zip(&lasts).map(|(rate, last)| rate * last).sum::<f64>() / lasts.iter().sum::<f64>();
        self.rates.iter().map(|rate| rate / mean).collect()
    }
}

/// The phase of an arrival process over time.
#[derive(Debug, Clone)]
pub(crate) struct PhaseProcess {
    factors: Vec<f64>,
    lasts_s: Vec<f64>,
    phase: usize,
    /// End of the phase, s.
    until_s: f64,
}

impl PhaseProcess {
    /// A stationary process: its first phase is drawn by the phases' lengths.
    pub(crate) fn new(phases: &MmppPhases, random: &mut Pcg64) -> Self {
        let lasts_s: Vec<f64> = phases.lasts.iter().map(|last| last.secs()).collect();
        let mut point = random.random::<f64>() * lasts_s.iter().sum::<f64>();
        let first = lasts_s.iter().position(|last| {
            point -= last;
            point < 0.0
        });
        let phase = first.unwrap_or(0);
        let until_s = lasts_s[phase] * exponential(random);
        PhaseProcess { factors: phases.factors(), lasts_s, phase, until_s }
    }

    /// Time of the next arrival after `now_s`, s, where the mean rate is `rate` a second.
    pub(crate) fn next(&mut self, mut now_s: f64, rate: f64, random: &mut Pcg64) -> f64 {
        loop {
            let next_s = now_s + exponential(random) / (rate * self.factors[self.phase]);
            if next_s < self.until_s {
                return next_s;
            }
            now_s = self.until_s;
            self.phase = (self.phase + 1) % self.lasts_s.len();
            self.until_s += self.lasts_s[self.phase] * exponential(random);
        }
    }
}

/// An exponential draw of mean 1.
fn exponential(random: &mut Pcg64) -> f64 {
    -(1.0 - random.random::<f64>()).ln()
}

/// Streams that take a fixed rate of a network, such as calls or video. They arrive as a Poisson
/// process and last exponentially; the transfers share what they leave.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StreamLoad {
    /// Mean gap between the arrivals of streams.
    pub every: Span,
    /// Mean length of a stream.
    pub lasts: Span,
    /// Rate of a stream.
    pub rate: Rate,
    /// The most streams at once; further ones are blocked. They must fit into the network together.
    pub most: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Purpose, stream};

    #[test]
    fn modulated_arrivals_keep_the_mean_rate_and_come_in_bursts() {
        let seconds = |s: u64| Span(s * 1_000_000_000);
        let phases = MmppPhases { rates: vec![9.0, 1.0], lasts: vec![seconds(10), seconds(30)] };
        // The mean is (9 × 10 + 1 × 30)/40 = 3.
        assert_eq!(phases.factors(), [3.0, 1.0 / 3.0]);
        let mut random = stream(1, Purpose::Arrivals, 0);
        let mut process = PhaseProcess::new(&phases, &mut random);
        let (mut now, mut gaps) = (0.0, Vec::new());
        for _ in 0..200_000 {
            let next = process.next(now, 2.0, &mut random);
            gaps.push(next - now);
            now = next;
        }
        assert!((200_000.0 / now / 2.0 - 1.0).abs() < 0.03, "{now}");
        let mean = now / 200_000.0;
        let scv = gaps.iter().map(|gap| (gap / mean - 1.0).powi(2)).sum::<f64>() / 200_000.0;
        assert!(scv > 1.5, "gaps of a Poisson process have 1: {scv}");
    }

    #[test]
    fn wrong_phases_are_refused() {
        let fault = |rates: &[f64], lasts: &[u64]| {
            MmppPhases { rates: rates.into(), lasts: lasts.iter().map(|last| Span(*last)).collect() }.fault().unwrap_or_default()
        };
        assert!(fault(&[1.0], &[1]).contains("at least two") && fault(&[1.0, 2.0], &[1]).contains("1 lengths"));
        assert!(fault(&[1.0, -2.0], &[1, 1]).contains("-2") && fault(&[0.0, 0.0], &[1, 1]).contains("nothing"));
        assert!(fault(&[1.0, 2.0], &[1, 0]).contains("length 0") && fault(&[1.0, 2.0], &[1, 1]).is_empty());
    }
}
