//! Arrivals other than Poisson, and inelastic streams.

use super::job_sizes::check_range;
use crate::error::{TheoryError, positive};

/// A Markov-modulated Poisson process; its mean rate is the arrival rate of the class.
#[derive(Debug, Clone, PartialEq)]
pub struct Modulation {
    /// Arrival rate in each phase over the mean rate.
    pub(super) factors: Vec<f64>,
    /// Switching rate from each phase (row) to each other, 1/s.
    pub(super) switches: Vec<Vec<f64>>,
    /// Stationary probability of each phase.
    pub(super) parts: Vec<f64>,
}

impl Modulation {
    /// A process with these arrival rates per phase, of which only the ratios count, and these
    /// switching rates (1/s) from each phase (row) to each other.
    ///
    /// # Errors
    /// When the numbers of rates do not match, a rate is negative, or some phase cannot be reached
    /// from another.
    pub fn new(rates: &[f64], switches: &[Vec<f64>]) -> Result<Self, TheoryError> {
        let phases = rates.len();
        if phases == 0 || switches.len() != phases || switches.iter().any(|row| row.len() != phases) {
            return Err(TheoryError::Outside {
                what: format!("the number of rows of {phases} switching rates, one row per phase,"),
                value: switches.len() as f64,
                bounds: "the number of phases, at least 1",
            });
        }
        for value in rates.iter().chain(switches.iter().flatten()) {
            check_range("a rate of modulated arrivals", *value, "at least 0", *value >= 0.0)?;
        }
        let parts = stationary(switches);
        let reached: f64 = parts.iter().sum();
        check_range(
            "the sum of the stationary probabilities of the phases, each of which must lead to each other,",
            reached,
            "1",
            (reached - 1.0).abs() < 1e-9,
        )?;
        let mean = positive("the mean of modulated arrivals", rates.iter().zip(&parts).map(|(rate, part)| rate * part).sum())?;
        let switches =
            switches.iter().enumerate().map(|(from, row)| (0..phases).map(|to| if to == from { 0.0 } else { row[to] }).collect());
        Ok(Modulation { factors: rates.iter().map(|rate| rate / mean).collect(), switches: switches.collect(), parts })
    }

    /// Bursts with exponential length of mean `mean_s` (s), during a fraction `part` of the time,
    /// at `factor` times the mean rate; the other arrivals come between them.
    ///
    /// # Errors
    /// When a parameter is out of range.
    pub fn bursts(factor: f64, part: f64, mean_s: f64) -> Result<Self, TheoryError> {
        check_range("the fraction of time in bursts", part, "between 0 and 1", part > 0.0 && part < 1.0)?;
        check_range("the fraction of arrivals in bursts", factor * part, "from 0 to 1", (0.0..=1.0).contains(&(factor * part)))?;
        let ends = 1.0 / positive("the mean length of bursts", mean_s)?;
        let starts = ends * part / (1.0 - part);
        Modulation::new(&[factor, (1.0 - factor * part) / (1.0 - part)], &[vec![0.0, ends], vec![starts, 0.0]])
    }
}

/// The stationary distribution of a small Markov chain, by the elimination of Grassmann, Taksar and
/// Heyman, which needs no subtraction. NaN if some phase never leads to an earlier one.
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

/// Inelastic streams in a network: Poisson arrivals, exponential holding times, a fixed rate each.
/// The elastic jobs share the remaining capacity. A stream that would exceed `max` at once is
/// blocked.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct InelasticStreams {
    pub(super) arrivals: f64,
    pub(super) mean_s: f64,
    pub(super) rate: f64,
    pub(super) max: usize,
}

impl InelasticStreams {
    /// Streams with this arrival rate (1/s), mean holding time (s), rate each (size/s), and at most
    /// `max` at once.
    ///
    /// # Errors
    /// When a parameter is not positive.
    pub fn new(arrivals: f64, mean_s: f64, rate: f64, max: usize) -> Result<Self, TheoryError> {
        positive("the arrival rate of streams", arrivals)?;
        positive("the mean holding time of streams", mean_s)?;
        positive("the rate of a stream", rate)?;
        Ok(InelasticStreams { arrivals, mean_s, rate, max })
    }

    /// Blocking probability: the Erlang B formula with `max` lines. It does not depend on the
    /// elastic jobs.
    pub fn blocked(&self) -> f64 {
        let offered = self.arrivals * self.mean_s;
        // B(n) = a B(n − 1)/(n + a B(n − 1))
        (1..=self.max).fold(1.0, |blocked, lines| offered * blocked / (lines as f64 + offered * blocked))
    }

    /// Mean number of streams.
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
        // A ring of three phases; the second lasts half as long.
        let ring = Modulation::new(&[1.0, 4.0, 0.0], &[vec![0.0, 1.0, 0.0], vec![0.0, 0.0, 2.0], vec![1.0, 0.0, 0.0]]).unwrap();
        for (part, right) in ring.parts.iter().zip([0.4, 0.2, 0.4]) {
            assert!((part - right).abs() < 1e-12, "{ring:?}");
        }
        assert!((ring.factors[1] - 4.0 / 1.2).abs() < 1e-12, "{ring:?}");
    }

    #[test]
    fn invalid_modulations_are_refused() {
        let error = |found: Result<Modulation, TheoryError>| found.unwrap_err().to_string();
        assert!(error(Modulation::bursts(6.0, 0.2, 5.0)).contains("1.2"));
        assert!(error(Modulation::new(&[1.0, 2.0], &[vec![0.0, 1.0]])).contains("rows of 2"));
        assert!(error(Modulation::new(&[1.0, 2.0], &[vec![0.0, 0.0], vec![0.0, 0.0]])).contains("must lead to each other"));
        assert!(error(Modulation::new(&[1.0, -2.0], &[vec![0.0, 1.0], vec![1.0, 0.0]])).contains("-2"));
    }

    #[test]
    fn blocking_is_the_erlang_b_formula() {
        // a = 2 on 3 lines: (8/6)/(1 + 2 + 2 + 8/6) = 4/19.
        let streams = InelasticStreams::new(1.0, 2.0, 0.1, 3).unwrap();
        assert!((streams.blocked() - 4.0 / 19.0).abs() < 1e-15);
        assert!((streams.mean() - 30.0 / 19.0).abs() < 1e-14);
    }
}
