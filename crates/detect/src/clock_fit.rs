//! Causality between two captures whose clocks are apart by an unknown offset and drift.
//!
//! A packet that the sender sends at its time s is received at the receiver's time r = s + offset + transit; one that comes back, at s = r − offset +
//! transit. So the transits as the two clocks have them bound the offset from both sides, and if no straight line of a drift that clocks can have (RFC 5905:
//! 500 ppm) fits between the bounds, then something was received before it was sent: it was not this that was received (Wei et al., method 2,
//! with every pair i, j instead of i = 1, and a drift).

use crate::progress::{ProgressCurve, ProgressStep};

/// The largest drift that clocks are believed to have.
pub const MAX_CLOCK_DRIFT: f64 = 500e-6;
/// What time stamps of one machine may be wrong, s: they are taken where packets pass, and the first of several that are handed over together dates them all.
pub const TIMESTAMP_JITTER_S: f64 = 1e-3;

/// A place of a stream, from where it was sent to where it arrived.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Transit {
    /// At the arrival's capture, bytes.
    pub(crate) place: i64,
    /// When it arrived, ns by that capture's clock.
    pub(crate) arrived: i64,
    /// By the two clocks, s: as recorded, where that is exact.
    pub(crate) plain: Option<f64>,
    /// The most it can be, whatever the captures failed to record.
    pub(crate) most: Option<f64>,
}

/// The transits of a stream's places (or of acknowledgements for them), from one capture's curve to the other's. `shift` is added to a place at the arrival to
/// have it at the departure; `begins` says whether the departures' capture has the stream's begin.
pub(crate) fn transits(departures: &ProgressCurve, arrivals: &ProgressCurve, shift: i64, begins: bool) -> Vec<Transit> {
    let transit = |step: &ProgressStep| {
        let departure = departures.reached(step.reach + shift)?;
        // A capture that began late has its first record of what was sent before.
        let exact = departure.exact && (departure.after.is_some() || (begins && step.reach + shift == 0));
        let since = |at: i64| (step.at - at) as f64 / 1e9;
        Some(Transit { place: step.reach, arrived: step.at, plain: exact.then(|| since(departure.at)), most: departure.after.map(since) })
    };
    arrivals.steps().iter().filter_map(transit).collect()
}

/// A transit and when it was, both s.
pub(crate) type TransitPoint = (f64, f64);

/// What the offset between two clocks can be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ClockFit {
    /// The least transits there and back, together, s: below 0 no offset fits.
    pub(crate) slack: f64,
    /// The drift that leaves most of it, and how far from it those are that leave any.
    pub(crate) drift: f64,
    pub(crate) drift_error: f64,
    /// The least transit out at time 0, with that drift: offset ≤ this + drift · t.
    pub(crate) out: f64,
    /// What the offset can be at time 0, with any drift that leaves some slack.
    pub(crate) offset: (f64, f64),
}

/// The drift and the offset that fit best with transits `out` (departing by the first clock) and `back`.
pub(crate) fn fit(out: &[TransitPoint], back: &[TransitPoint]) -> Option<ClockFit> {
    if out.is_empty() || back.is_empty() {
        return None;
    }
    let (out, back) = (lowest(out), lowest(back));
    let least = |points: &[TransitPoint], drift: f64| points.iter().map(|(at, transit)| transit + drift * at).fold(f64::INFINITY, f64::min);
    let slack = |drift: f64| least(&out, -drift) + least(&back, drift);
    // It is concave in the drift, as a sum of minima of straight lines.
    let (mut low, mut high) = (-MAX_CLOCK_DRIFT, MAX_CLOCK_DRIFT);
    for _ in 0..60 {
        let (a, b) = (low + (high - low) / 3.0, high - (high - low) / 3.0);
        if slack(a) < slack(b) { low = a } else { high = b }
    }
    // Where all are as good, none is better than no drift.
    let best = if slack(0.0) >= slack((low + high) / 2.0) { 0.0 } else { (low + high) / 2.0 };
    let edge = |mut bad: f64| {
        let mut good = best;
        if slack(bad) >= 0.0 {
            return bad;
        }
        for _ in 0..60 {
            let middle = (good + bad) / 2.0;
            if slack(middle) >= 0.0 { good = middle } else { bad = middle }
        }
        good
    };
    let (mut drift_error, mut offset) = (f64::NAN, (f64::NAN, f64::NAN));
    if slack(best) >= 0.0 {
        let (low, high) = (edge(-MAX_CLOCK_DRIFT), edge(MAX_CLOCK_DRIFT));
        drift_error = (best - low).max(high - best);
        for part in 0..=DRIFTS {
            let drift = low + (high - low) * f64::from(part) / f64::from(DRIFTS);
            offset = (offset.0.min(-least(&back, drift)), offset.1.max(least(&out, -drift)));
        }
    }
    Some(ClockFit { slack: slack(best), drift: best, drift_error, out: least(&out, -best), offset })
}

/// Drifts tried for the offset's bound.
const DRIFTS: i32 = 64;

/// Those of `points` that can be the least for any drift allowed: few of many.
fn lowest(points: &[TransitPoint]) -> Vec<TransitPoint> {
    let mut sorted = points.to_vec();
    sorted.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let mut hull: Vec<TransitPoint> = Vec::new();
    for point in sorted {
        while let [.., a, b] = hull[..] {
            // Below the line from a to the new point, or gone.
            if (b.1 - a.1) * (point.0 - a.0) >= (point.1 - a.1) * (b.0 - a.0) {
                hull.pop();
            } else {
                break;
            }
        }
        hull.push(point);
    }
    hull
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Packets that did travel fit, whatever the clocks; the offset is within its bound.
        #[test]
        fn what_travelled_fits(
            offset in -2.0f64..2.0, drift in -300e-6f64..300e-6, one_way in 0.001f64..0.3,
            queues in prop::collection::vec((0.0f64..0.2, 0.0f64..0.2), 20..200),
        ) {
            let theirs = |at: f64| offset + drift * at;
            let (mut out, mut back) = (Vec::new(), Vec::new());
            for (index, (there, here)) in queues.iter().enumerate() {
                let at = index as f64 * 0.1;
                out.push((at, one_way + there + theirs(at + one_way + there)));
                back.push((at, one_way + here - theirs(at - one_way - here)));
            }
            let fit = fit(&out, &back).unwrap();
            prop_assert!(fit.slack >= 2.0 * one_way - 1e-3, "{:?}", fit);
            prop_assert!(fit.offset.0 - 1e-3 <= offset && offset <= fit.offset.1 + 1e-3, "{:?}", fit);
            prop_assert!((fit.drift - drift).abs() <= fit.drift_error + 1e-6 + 300e-6 * 0.1, "{:?}", fit);
        }

        /// Acknowledgements that run ahead more and more, as over a queue that grows, fit no drift.
        #[test]
        fn what_was_there_before_it_was_sent_does_not(offset in -2.0f64..2.0, growth in 0.01f64..1.0) {
            let points = |sign: f64| (0..100).map(|index| f64::from(index) * 0.1)
                .map(|at| (at, 0.02 + sign * (offset + growth * at))).collect::<Vec<TransitPoint>>();
            let fit = fit(&points(1.0)[..1], &points(-1.0)).unwrap();
            prop_assert!(fit.slack < 0.04 - 9.0 * (growth - MAX_CLOCK_DRIFT), "{:?}", fit);
        }
    }
}
