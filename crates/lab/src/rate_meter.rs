//! The rate at which an emulated link carries bytes while it is busy.

use link::Time;
use units::{PKT, Rate, Span};

/// Minimum time during which a link must be busy for the rate to count as measured.
const RATE_WINDOW: Span = Span(100_000_000);
/// Minimum number of packets, at the link's rate, in such a time, so that one packet more or less
/// makes no difference.
const RATE_PACKETS: u64 = 200;
/// By how much the time in which a link was busy may be rounded down.
const ROUNDING: Span = Span(2);

/// Measures the rate at which bytes leave a queue, over times in which the link is never idle.
#[derive(Debug, Default)]
pub(crate) struct RateMeter {
    /// The first sample of the current measurement.
    since: Option<RateSample>,
    /// Bytes that left during completed measurements.
    bytes: u64,
    /// Bytes that would have left at the configured rate.
    asked: u64,
}

/// What a [`RateMeter`] takes at one time.
#[derive(Debug, Clone, Copy)]
struct RateSample {
    now: Time,
    left_bytes: u64,
    busy: Span,
    asked: Rate,
}

impl RateMeter {
    /// Takes a sample: bytes that have left so far, for how long the link has been busy, the
    /// configured rate.
    pub(crate) fn sample(&mut self, now: Time, left_bytes: u64, busy: Span, asked: Rate) {
        let sample = RateSample { now, left_bytes, busy, asked };
        let Some(since) = self.since.filter(|since| since.asked == asked && now - since.now <= busy - since.busy + ROUNDING) else {
            self.since = Some(sample);
            return;
        };
        let elapsed = now - since.now;
        if elapsed >= RATE_WINDOW.max(asked.time_for(PKT * RATE_PACKETS)) {
            self.bytes += left_bytes - since.left_bytes;
            self.asked += asked.bytes_in(elapsed).0;
            self.since = Some(sample);
        }
    }

    /// Measured rate divided by configured rate; `None` before the first complete measurement.
    pub(crate) fn share(&self) -> Option<f64> {
        (self.asked > 0).then(|| self.bytes as f64 / self.asked as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_measured_only_while_the_link_is_busy() {
        let mut meter = RateMeter::default();
        let (asked, halved) = (Rate(100_000_000), Rate(50_000_000));
        let busy = |ms: u64| Span(ms * 1_000_000);
        meter.sample(Time(0), 0, busy(0), asked);
        meter.sample(Time(200_000_000), 1000, busy(100), asked);
        assert_eq!(meter.share(), None);
        meter.sample(Time(300_000_000), 1000, busy(150), asked);
        meter.sample(Time(350_000_000), 2000, busy(200), asked);
        assert_eq!(meter.share(), None);
        meter.sample(Time(400_000_000), 1_251_000, busy(250), asked);
        assert_eq!(meter.share(), Some(1.0));
        // A change of the rate starts a new measurement.
        meter.sample(Time(450_000_000), 1_282_000, busy(300), halved);
        meter.sample(Time(550_000_000), 1_907_000, busy(400), halved);
        assert_eq!(meter.share(), Some(1.0));
        // The time in which it was idle does not count, however short it is.
        meter.sample(Time(650_000_000), 2_500_000, Span(499_900_000), halved);
        assert_eq!(meter.share(), Some(1.0));
        meter.sample(Time(750_000_000), 3_100_000, Span(599_900_000), halved);
        assert_eq!(meter.share(), Some((1_250_000.0 + 625_000.0 + 600_000.0) / (1_250_000.0 + 625_000.0 + 625_000.0)));
    }
}
