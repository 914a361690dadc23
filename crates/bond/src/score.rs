//! The score of a path (Hoekstra, van der Mei and Bosman 2011, §IV) and the throughput estimate
//! that it uses.
//!
//! The paper leaves four points open, settled here:
//!
//! - By (8) G is 0 until the first interval τ has passed, and (7) is undefined. Until there is a
//!   sample, G is the window divided by the round-trip time.
//! - The first sample is taken unsmoothed. An average with G₀ = 0 would be biased.
//! - An interval in which the path had little to send is application-limited and says nothing about
//!   the network. It does not count. Otherwise the estimate of an unused path would decay, and the
//!   path would never be used again.
//! - With an empty queue the first term of (7) is 0, whatever G is.

use units::Span;

/// Lower bound of G, bytes/s: one segment a second.
const MIN_RATE: f64 = 1448.0;
/// Lower bound of τ, 1 ms. A few packets are no sample, and the round-trip time of a loopback is
/// microseconds.
const MIN_INTERVAL: Span = Span(1_000_000);
/// An interval is discarded when the path had nothing to send for more than this fraction of it.
const MAX_IDLE_FRACTION: f64 = 0.5;

/// Hoekstra (7): Q / G + sRTT / 2, the estimated time in seconds until data that is assigned to a
/// path now reaches the peer. `queued` (Q) bytes wait before it and leave at `rate` (G) bytes/s.
pub fn score(queued: u64, rate: f64, srtt: Span) -> f64 {
    let queueing_delay = if queued == 0 { 0.0 } else { queued as f64 / rate.max(MIN_RATE) };
    queueing_delay + srtt.secs() / 2.0
}

/// How throughput is smoothed, Hoekstra (8).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Smoothing {
    /// α: weight of the previous estimate, in [0, 1).
    pub alpha: f64,
    /// τ: length of a measurement interval, in round-trip times.
    pub rtts: f64,
    /// τ as a fixed time, in place of `rtts`.
    pub fixed: Option<Span>,
}

impl Default for Smoothing {
    /// The paper's values (§V-A): α = 0.4, τ = 4 round trips.
    fn default() -> Self {
        Smoothing { alpha: 0.4, rtts: 4.0, fixed: None }
    }
}

impl Smoothing {
    /// Hoekstra (8): the next G in bytes/s, from the previous one, if any, and the throughput
    /// `measured` in bytes/s.
    pub fn next(&self, last: Option<f64>, measured: f64) -> f64 {
        last.map_or(measured, |last| self.alpha * last + (1.0 - self.alpha) * measured).max(MIN_RATE)
    }

    /// τ as a time.
    fn interval(&self, srtt: Span) -> Span {
        self.fixed.unwrap_or_else(|| Span::from_secs_f64(self.rtts * srtt.secs())).max(MIN_INTERVAL)
    }
}

/// Estimates the throughput of one path.
///
/// The owner calls [`on_assigned`](ThroughputEstimator::on_assigned) for each piece that the path
/// is assigned, and [`update`](ThroughputEstimator::update) for each sample of its socket.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ThroughputEstimator {
    /// G, bytes/s; `None` until the first interval counts.
    smoothed: Option<f64>,
    /// Start of the current interval.
    interval_start: Span,
    /// Bytes delivered on the path at the start of the interval.
    delivered_at_start: u64,
    /// Time in this interval during which nothing was queued, without the current idle period.
    idle: Span,
    /// Start of the current idle period; `None` while something is queued.
    idle_since: Option<Span>,
}

impl ThroughputEstimator {
    /// Estimator of a new path, which is idle.
    pub(crate) fn new(now: Span) -> Self {
        ThroughputEstimator { interval_start: now, idle_since: Some(now), ..ThroughputEstimator::default() }
    }

    /// G in bytes/s, if there is a sample.
    pub(crate) fn rate(&self) -> Option<f64> {
        self.smoothed
    }

    /// Discards the estimate and starts a new interval.
    pub(crate) fn reset(&mut self, now: Span, delivered: u64) {
        let idle_since = self.idle_since.map(|_| now);
        *self = ThroughputEstimator { interval_start: now, delivered_at_start: delivered, idle_since, ..ThroughputEstimator::default() };
    }

    /// The path has something to send.
    pub(crate) fn on_assigned(&mut self, now: Span) {
        if let Some(since) = self.idle_since.take() {
            self.idle.0 += now.0.saturating_sub(since.max(self.interval_start).0);
        }
    }

    /// Takes a sample: the peer's TCP has acknowledged `delivered` bytes in all, and `unsent` bytes
    /// wait to be sent for the first time.
    pub(crate) fn update(&mut self, now: Span, delivered: u64, unsent: u64, srtt: Span, smoothing: &Smoothing) {
        let elapsed = now.saturating_sub(self.interval_start);
        if elapsed >= smoothing.interval(srtt) {
            let current_idle = self.idle_since.map_or(0, |since| now.0.saturating_sub(since.max(self.interval_start).0));
            let idle = self.idle + Span(current_idle);
            if idle.secs() <= MAX_IDLE_FRACTION * elapsed.secs() {
                let measured = delivered.saturating_sub(self.delivered_at_start) as f64 / elapsed.secs();
                self.smoothed = Some(smoothing.next(self.smoothed, measured));
            }
            self.interval_start = now;
            self.delivered_at_start = delivered;
            self.idle = Span::ZERO;
        }
        if unsent == 0 && self.idle_since.is_none() {
            self.idle_since = Some(now);
        } else if unsent > 0 {
            self.on_assigned(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn ms(ms: u64) -> Span {
        Span(ms * MS)
    }

    #[track_caller]
    fn assert_close(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-9 * expected.abs().max(1.0), "{found}, expected {expected}");
    }

    #[test]
    fn score_matches_values_computed_by_hand() {
        // 66 kB queued at 660 kB/s (5.28 Mbit/s), and half of 20 ms.
        assert_close(score(66_000, 660_000.0, ms(20)), 0.1 + 0.01);
        // The paper's window of 8760 bytes at half the rate of a WLAN.
        assert_close(score(8760, 330_000.0, ms(26)), 8760.0 / 330_000.0 + 0.013);
        // A slow path with an empty queue beats a fast one with a long queue.
        assert!(score(0, 10_000.0, ms(50)) < score(66_000, 660_000.0, ms(20)));
        // With empty queues the shorter round trip wins, whatever the rates are.
        assert!(score(0, 0.0, ms(20)) < score(0, 1e9, ms(700)));
        assert_close(score(0, 0.0, ms(20)), 0.01);
    }

    #[test]
    fn smoothing_matches_values_computed_by_hand() {
        let paper = Smoothing::default();
        // (8) with G = 500 and T = 1000 kB/s: 0.4 × 500 + 0.6 × 1000.
        assert_close(paper.next(Some(500e3), 1000e3), 800e3);
        assert_close(paper.next(Some(paper.next(Some(500e3), 1000e3)), 1000e3), 920e3);
        // The first sample is not smoothed.
        assert_close(paper.next(None, 1000e3), 1000e3);
        assert_close(paper.next(Some(100e3), 0.0), 40e3);
        assert!(paper.next(Some(1.0), 0.0) >= MIN_RATE);
    }

    #[test]
    fn a_measurement_interval_is_four_round_trips() {
        let smoothing = Smoothing::default();
        let mut throughput = ThroughputEstimator::new(ms(0));
        throughput.on_assigned(ms(0));
        for at in (10..80).step_by(10) {
            throughput.update(ms(at), at * 1000, 5000, ms(20), &smoothing);
            assert_eq!(throughput.rate(), None, "{at} ms");
        }
        throughput.update(ms(80), 80_000, 5000, ms(20), &smoothing);
        assert_close(throughput.rate().unwrap(), 1e6);
        // Half as much in the next interval: 0.4 × 1 + 0.6 × 0.5 MB/s.
        throughput.update(ms(160), 120_000, 5000, ms(20), &smoothing);
        assert_close(throughput.rate().unwrap(), 0.7e6);
    }

    #[test]
    fn a_fixed_interval_does_not_depend_on_the_round_trip() {
        let smoothing = Smoothing { fixed: Some(ms(100)), ..Smoothing::default() };
        let mut throughput = ThroughputEstimator::new(ms(0));
        throughput.on_assigned(ms(0));
        throughput.update(ms(90), 90_000, 5000, ms(20), &smoothing);
        assert_eq!(throughput.rate(), None);
        throughput.update(ms(100), 100_000, 5000, ms(700), &smoothing);
        assert_close(throughput.rate().unwrap(), 1e6);
    }

    #[test]
    fn idle_intervals_do_not_lower_the_estimate() {
        let smoothing = Smoothing::default();
        let mut throughput = ThroughputEstimator::new(ms(0));
        throughput.on_assigned(ms(0));
        throughput.update(ms(80), 80_000, 0, ms(20), &smoothing);
        // The path is idle in all of these intervals, and in most of the one that ends at 1080 ms.
        for at in [160, 240, 1000] {
            throughput.update(ms(at), 80_000, 0, ms(20), &smoothing);
        }
        throughput.on_assigned(ms(1060));
        throughput.update(ms(1080), 90_000, 1000, ms(20), &smoothing);
        assert_close(throughput.rate().unwrap(), 1e6);
        // This interval is not idle.
        throughput.update(ms(1160), 130_000, 1000, ms(20), &smoothing);
        assert_close(throughput.rate().unwrap(), 0.7e6);
    }
}
