//! The score of a connection (Hoekstra, van der Mei and Bosman 2011, §IV), and the throughput it is from.
//!
//! What the paper leaves open is settled here. By (8) G is 0 until the first τ has passed, and (7) undefined: until there is a sample, G is what the
//! window lets through a round trip. The first sample stands for itself, since an average with G₀ = 0 would be one with nothing. What is measured
//! while there was nothing to send says nothing of the network and is left out: otherwise a connection that is not used would be
//! believed ever slower, and never be used again. With nothing waiting the first term is 0, whatever G is.

use units::Span;

/// No throughput is believed to be lower, bytes/s: a segment a second.
const LEAST_RATE: f64 = 1448.0;
/// No interval is shorter: of a few packets nobody learns anything, and a round trip may be that of a loopback.
const LEAST_INTERVAL: Span = Span(1_000_000);
/// An interval in which there was nothing to send for more than this part of it does not count.
const MOST_STARVED: f64 = 0.5;

/// (7): when what is given to a connection now comes to the other end, s. `queued` bytes wait before it, `rate` bytes/s leave.
pub fn score(queued: u64, rate: f64, srtt: Span) -> f64 {
    let waits = if queued == 0 { 0.0 } else { queued as f64 / rate.max(LEAST_RATE) };
    waits + srtt.secs() / 2.0
}

/// How throughput is smoothed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Smoothing {
    /// α of (8): how much the past counts, from 0 to below 1.
    pub alpha: f64,
    /// τ, in round trips.
    pub rtts: f64,
}

impl Default for Smoothing {
    /// The paper's (§V-A).
    fn default() -> Self {
        Smoothing { alpha: 0.4, rtts: 4.0 }
    }
}

impl Smoothing {
    /// (8): the next G, of the last one, if there is one, and of what was measured, bytes/s.
    pub fn next(&self, last: Option<f64>, measured: f64) -> f64 {
        last.map_or(measured, |last| self.alpha * last + (1.0 - self.alpha) * measured).max(LEAST_RATE)
    }

    /// τ.
    fn interval(&self, srtt: Span) -> Span {
        Span::from_secs_f64(self.rtts * srtt.secs()).max(LEAST_INTERVAL)
    }
}

/// The throughput of a connection, as it is measured.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Throughput {
    /// G, bytes/s; none: no sample counted yet.
    smoothed: Option<f64>,
    /// When this interval began, and what the other end had by then.
    began: Span,
    delivered: u64,
    /// For how long in it there was nothing to send, and since when there is not.
    starved: Span,
    idle_since: Option<Span>,
}

impl Throughput {
    /// Of a connection that begins.
    pub(crate) fn new(now: Span) -> Self {
        Throughput { began: now, idle_since: Some(now), ..Throughput::default() }
    }

    /// G, bytes/s, if it was measured.
    pub(crate) fn rate(&self) -> Option<f64> {
        self.smoothed
    }

    /// What was measured is void; it begins anew.
    pub(crate) fn forget(&mut self, now: Span, delivered: u64) {
        let idle_since = self.idle_since.map(|_| now);
        *self = Throughput { began: now, delivered, idle_since, ..Throughput::default() };
    }

    /// There is something to send.
    pub(crate) fn fed(&mut self, now: Span) {
        if let Some(since) = self.idle_since.take() {
            self.starved.0 += now.0.saturating_sub(since.max(self.began).0);
        }
    }

    /// The other end has `delivered` bytes in all, and `unsent` wait to be sent for the first time.
    pub(crate) fn look(&mut self, now: Span, delivered: u64, unsent: u64, srtt: Span, smoothing: &Smoothing) {
        let span = now.saturating_sub(self.began);
        if span >= smoothing.interval(srtt) {
            let idle = self.idle_since.map_or(0, |since| now.0.saturating_sub(since.max(self.began).0));
            let starved = self.starved + Span(idle);
            if starved.secs() <= MOST_STARVED * span.secs() {
                let measured = delivered.saturating_sub(self.delivered) as f64 / span.secs();
                self.smoothed = Some(smoothing.next(self.smoothed, measured));
            }
            (self.began, self.delivered, self.starved) = (now, delivered, Span::ZERO);
        }
        if unsent == 0 && self.idle_since.is_none() {
            self.idle_since = Some(now);
        } else if unsent > 0 {
            self.fed(now);
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
    fn near(found: f64, right: f64) {
        assert!((found - right).abs() < 1e-9 * right.abs().max(1.0), "{found}, should be {right}");
    }

    #[test]
    fn the_score_as_one_reckons_it_by_hand() {
        // 66 kB before it at 660 kB/s (5.28 Mbit/s), and half of 20 ms.
        near(score(66_000, 660_000.0, ms(20)), 0.1 + 0.01);
        // The paper's window of 8760 bytes at half the rate of a WLAN.
        near(score(8760, 330_000.0, ms(26)), 8760.0 / 330_000.0 + 0.013);
        // A slow network with nothing before it beats a fast one with a queue …
        assert!(score(0, 10_000.0, ms(50)) < score(66_000, 660_000.0, ms(20)));
        // … and a near one a far one, where nothing waits, whatever is believed of its rate.
        assert!(score(0, 0.0, ms(20)) < score(0, 1e9, ms(700)));
        near(score(0, 0.0, ms(20)), 0.01);
    }

    #[test]
    fn throughput_as_one_reckons_it_by_hand() {
        let paper = Smoothing::default();
        // (8) with G = 500 and T = 1000 kB/s: 0.4 × 500 + 0.6 × 1000.
        near(paper.next(Some(500e3), 1000e3), 800e3);
        near(paper.next(Some(paper.next(Some(500e3), 1000e3)), 1000e3), 920e3);
        // The first sample stands for itself.
        near(paper.next(None, 1000e3), 1000e3);
        near(paper.next(Some(100e3), 0.0), 40e3);
        assert!(paper.next(Some(1.0), 0.0) >= LEAST_RATE);
    }

    #[test]
    fn an_interval_is_four_round_trips() {
        let smoothing = Smoothing::default();
        let mut throughput = Throughput::new(ms(0));
        throughput.fed(ms(0));
        for at in (10..80).step_by(10) {
            throughput.look(ms(at), at * 1000, 5000, ms(20), &smoothing);
            assert_eq!(throughput.rate(), None, "{at} ms");
        }
        throughput.look(ms(80), 80_000, 5000, ms(20), &smoothing);
        near(throughput.rate().unwrap(), 1e6);
        // Half as much in the next: 0.4 × 1 + 0.6 × 0.5 MB/s.
        throughput.look(ms(160), 120_000, 5000, ms(20), &smoothing);
        near(throughput.rate().unwrap(), 0.7e6);
    }

    #[test]
    fn who_had_nothing_to_send_is_not_believed_slow() {
        let smoothing = Smoothing::default();
        let mut throughput = Throughput::new(ms(0));
        throughput.fed(ms(0));
        throughput.look(ms(80), 80_000, 0, ms(20), &smoothing);
        // Nothing was there to be sent for the whole of these, nor for most of the last.
        for at in [160, 240, 1000] {
            throughput.look(ms(at), 80_000, 0, ms(20), &smoothing);
        }
        throughput.fed(ms(1060));
        throughput.look(ms(1080), 90_000, 1000, ms(20), &smoothing);
        near(throughput.rate().unwrap(), 1e6);
        // In this there was.
        throughput.look(ms(1160), 130_000, 1000, ms(20), &smoothing);
        near(throughput.rate().unwrap(), 0.7e6);
    }
}
