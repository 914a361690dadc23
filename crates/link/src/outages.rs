//! Times in which a link loses everything.

use crate::time::Time;
use rand_pcg::Pcg64;
use scenario::Outages;

/// The outages of a link, drawn as time passes. Both directions of a link draw the same.
#[derive(Debug)]
pub(crate) struct OutageProcess {
    outages: Outages,
    rng: Pcg64,
    /// The outage at hand: it begins and ends at these times.
    begins: Time,
    ends: Time,
}

impl OutageProcess {
    pub(crate) fn new(outages: Outages, rng: Pcg64) -> Self {
        let mut process = OutageProcess { outages, rng, begins: Time(0), ends: Time(0) };
        process.start(Time(0));
        process
    }

    /// Starts the process at `origin`.
    pub(crate) fn start(&mut self, origin: Time) {
        self.ends = origin;
        self.advance();
    }

    fn advance(&mut self) {
        self.begins = self.ends + self.outages.every.draw(&mut self.rng);
        self.ends = self.begins + self.outages.last.draw(&mut self.rng);
    }

    /// Whether `now` lies in an outage. Times never decrease.
    pub(crate) fn is_out(&mut self, now: Time) -> bool {
        while self.ends <= now && self.ends < Time(u64::MAX) {
            self.advance();
        }
        self.begins <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use scenario::{Law, Purpose, Shape, stream};
    use units::Span;

    #[test]
    fn constant_outages_come_after_each_interval() {
        let span = |ms: u64| Law::from(Span(ms * 1_000_000));
        let mut process = OutageProcess::new(Outages { every: span(100), last: span(20) }, stream(1, Purpose::Outages, 0));
        let out: Vec<u64> = (0..300).filter(|ms| process.is_out(Time(ms * 1_000_000))).collect();
        assert_eq!(out, (100..120).chain(220..240).collect::<Vec<u64>>());
        process.start(Time(1_000_000_000));
        assert!(!process.is_out(Time(1_099_999_999)) && process.is_out(Time(1_100_000_000)));
    }

    #[test]
    fn random_outages_have_their_share_of_time() {
        let law = |ms: u64| Law { shape: Shape::Exponential, mean: Span(ms * 1_000_000) };
        let mut process = OutageProcess::new(Outages { every: law(900), last: law(100) }, stream(1, Purpose::Outages, 0));
        let looks = 2_000_000u64;
        let out = (0..looks).filter(|ms| process.is_out(Time(ms * 1_000_000))).count() as f64 / looks as f64;
        // 2000 outages: their mean length has a standard deviation of 2.2 %, their distance as
        // well.
        assert!((out - 0.1).abs() < 0.01, "{out}");
    }
}
