//! Arrivals that are not Poisson, and streams that are not elastic.

use super::job_sizes::within;
use crate::{TheoryError, aimd::positive};

/// How a class's arrivals rise and fall: a Markov-modulated Poisson process, whose mean is the class's rate.
#[derive(Debug, Clone, PartialEq)]
pub struct Modulation {
    /// In each phase, how many times the mean rate.
    pub(super) factors: Vec<f64>,
    /// From each phase, how often a second to each other.
    pub(super) switches: Vec<Vec<f64>>,
    /// The long-run part of time in each.
    pub(super) parts: Vec<f64>,
}

impl Modulation {
    /// Of arrival rates in each phase, of which only the proportions count, and of switching rates (1/s) from each phase, a row, to each other.
    pub fn new(rates: &[f64], switches: &[Vec<f64>]) -> Result<Self, TheoryError> {
        let phases = rates.len();
        if phases == 0 || switches.len() != phases || switches.iter().any(|row| row.len() != phases) {
            return Err(TheoryError::Outside {
                what: format!("the number of rows of {phases} switching rates each, as there are phases,"),
                value: switches.len() as f64,
                bounds: "the number of phases, at least 1",
            });
        }
        for value in rates.iter().chain(switches.iter().flatten()) {
            within("a rate of modulated arrivals", *value, "at least 0", *value >= 0.0)?;
        }
        let parts = stationary(switches);
        let reached: f64 = parts.iter().sum();
        within(
            "the long-run part of time in all phases, of which each must lead to each other,",
            reached,
            "1",
            (reached - 1.0).abs() < 1e-9,
        )?;
        let mean = positive("the mean of modulated arrivals", rates.iter().zip(&parts).map(|(rate, part)| rate * part).sum())?;
        let switches =
            switches.iter().enumerate().map(|(from, row)| (0..phases).map(|to| if to == from { 0.0 } else { row[to] }).collect());
        Ok(Modulation { factors: rates.iter().map(|rate| rate / mean).collect(), switches: switches.collect(), parts })
    }

    /// Bursts of this mean length (s), exponential, which take up this part of time, with `factor` times the mean rate; the rest between them.
    pub fn bursts(factor: f64, part: f64, mean_s: f64) -> Result<Self, TheoryError> {
        within("the part of time that is bursts", part, "between 0 and 1", part > 0.0 && part < 1.0)?;
        within("the part of arrivals that come in bursts", factor * part, "from 0 to 1", (0.0..=1.0).contains(&(factor * part)))?;
        let ends = 1.0 / positive("the mean length of bursts", mean_s)?;
        let starts = ends * part / (1.0 - part);
        Modulation::new(&[factor, (1.0 - factor * part) / (1.0 - part)], &[vec![0.0, ends], vec![starts, 0.0]])
    }
}

/// The stationary distribution of a small chain, by the elimination of Grassmann, Taksar and Heyman, which subtracts nothing; NaN where some
/// phase is never left for an earlier one.
fn stationary(switches: &[Vec<f64>]) -> Vec<f64> {
    let mut rates = switches.to_vec();
    for last in (1..rates.len()).rev() {
        let out: f64 = rates[last][..last].iter().sum();
        for from in 0..last {
            rates[from][last] /= out;
            for to in 0..last {
                let through = rates[from][last] * rates[last][to];
                rates[from][to] += through;
            }
        }
    }
    let mut parts = vec![1.0];
    while parts.len() < rates.len() {
        parts.push(parts.iter().zip(&rates).map(|(part, rates)| part * rates[parts.len()]).sum());
    }
    let all: f64 = parts.iter().sum();
    parts.iter().map(|part| part / all).collect()
}

/// Inelastic streams in a network: they come as a Poisson process, stay for an exponential time, and each has a fixed rate to itself; the
/// elastic jobs share what is left. One that would be more than `most` at once is turned away.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Streams {
    pub(super) arrivals: f64,
    pub(super) mean_s: f64,
    pub(super) rate: f64,
    pub(super) most: usize,
}

impl Streams {
    /// Of arrivals a second, a mean stay (s), the rate of each (size a second), and the most at once.
    pub fn new(arrivals: f64, mean_s: f64, rate: f64, most: usize) -> Result<Self, TheoryError> {
        positive("the arrival rate of streams", arrivals)?;
        positive("the mean stay of streams", mean_s)?;
        positive("the rate of a stream", rate)?;
        Ok(Streams { arrivals, mean_s, rate, most })
    }

    /// The part of them that is turned away: Erlang's formula B, of `most` lines. The elastic jobs have no say in it.
    pub fn blocked(&self) -> f64 {
        let offered = self.arrivals * self.mean_s;
        // B(n) = a B(n − 1)/(n + a B(n − 1))
        (1..=self.most).fold(1.0, |blocked, lines| offered * blocked / (lines as f64 + offered * blocked))
    }

    /// How many there are in the mean.
    pub fn mean(&self) -> f64 {
        self.arrivals * self.mean_s * (1.0 - self.blocked())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modulation_keeps_the_mean() {
        let bursts = Modulation::bursts(3.0, 0.2, 5.0).unwrap();
        assert!((bursts.factors[0] - 3.0).abs() < 1e-12 && (bursts.factors[1] - 0.5).abs() < 1e-12, "{bursts:?}");
        assert!((bursts.parts[0] - 0.2).abs() < 1e-12);
        // A ring of three phases, of which the second lasts half as long.
        let ring = Modulation::new(&[1.0, 4.0, 0.0], &[vec![0.0, 1.0, 0.0], vec![0.0, 0.0, 2.0], vec![1.0, 0.0, 0.0]]).unwrap();
        for (part, right) in ring.parts.iter().zip([0.4, 0.2, 0.4]) {
            assert!((part - right).abs() < 1e-12, "{ring:?}");
        }
        assert!((ring.factors[1] - 4.0 / 1.2).abs() < 1e-12, "{ring:?}");
    }

    #[test]
    fn what_is_no_modulation_is_named() {
        let error = |found: Result<Modulation, TheoryError>| found.unwrap_err().to_string();
        assert!(error(Modulation::bursts(6.0, 0.2, 5.0)).contains("1.2"));
        assert!(error(Modulation::new(&[1.0, 2.0], &[vec![0.0, 1.0]])).contains("rows of 2"));
        assert!(error(Modulation::new(&[1.0, 2.0], &[vec![0.0, 0.0], vec![0.0, 0.0]])).contains("each must lead to each other"));
        assert!(error(Modulation::new(&[1.0, -2.0], &[vec![0.0, 1.0], vec![1.0, 0.0]])).contains("-2"));
    }

    #[test]
    fn erlangs_formula() {
        // a = 2 on 3 lines: (8/6)/(1 + 2 + 2 + 8/6) = 4/19.
        let streams = Streams::new(1.0, 2.0, 0.1, 3).unwrap();
        assert!((streams.blocked() - 4.0 / 19.0).abs() < 1e-15);
        assert!((streams.mean() - 30.0 / 19.0).abs() < 1e-14);
    }
}
