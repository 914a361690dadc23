//! Tests the order of cause and effect between two captures with unknown clock offset and drift.
//!
//! A packet sent at time s (sender's clock) is received at r = s + offset + transit (receiver's
//! clock). A packet in the opposite direction arrives at s = r − offset + transit. The transit
//! times, as the two clocks show them, therefore bound the offset from both sides.
//!
//! If no straight line with a plausible drift (RFC 5905: 500 ppm) fits between the bounds, then
//! something was received before it was sent. The packet received was therefore not the packet
//! sent. This is method 2 of Wei et al. (§III-A) with every pair i, j instead of i = 1, and with
//! drift.

use crate::progress::{ProgressCurve, ProgressStep};

/// Largest relative drift between two clocks that is considered possible (RFC 5905).
pub const MAX_CLOCK_DRIFT: f64 = 500e-6;
/// Error of timestamps within one machine, s. Packets are stamped in the network stack, where the
/// first packet of a batch dates the whole batch.
pub const TIMESTAMP_JITTER_S: f64 = 1e-3;

/// A position of a stream that both captures recorded, from departure to arrival.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Transit {
    /// Position at the arrival's capture, bytes from the stream's base.
    pub(crate) place: i64,
    /// Time of arrival, ns by that capture's clock.
    pub(crate) arrived: i64,
    /// Difference of the recorded times, s. `None` where a missing record makes it inexact.
    pub(crate) plain: Option<f64>,
    /// Upper bound of that difference that holds even if captures missed packets, s.
    pub(crate) most: Option<f64>,
}

/// Transit times of a stream's positions (or of ACKs for them) from one capture's curve to the
/// other's. `shift` converts a position at the arrival to the same position at the departure.
/// `begins` says whether the departures' capture contains the start of the stream.
pub(crate) fn transits(departures: &ProgressCurve, arrivals: &ProgressCurve, shift: i64, begins: bool) -> Vec<Transit> {
    let transit = |step: &ProgressStep| {
        let departure = departures.reached(step.reach + shift)?;
        // In a capture that began late, the first record may be later than the first transmission.
        let exact = departure.exact && (departure.after.is_some() || (begins && step.reach + shift == 0));
        let since = |at: i64| (step.at - at) as f64 / 1e9;
        Some(Transit { place: step.reach, arrived: step.at, plain: exact.then(|| since(departure.at)), most: departure.after.map(since) })
    };
    arrivals.steps().iter().filter_map(transit).collect()
}

/// Time and transit time, both s.
pub(crate) type TransitPoint = (f64, f64);

/// Offsets and drifts between two clocks that are consistent with the transit times.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ClockFit {
    /// Sum of the shortest transit times in both directions, s. Below 0 no offset fits.
    pub(crate) slack: f64,
    /// The drift that maximises `slack`, and the largest deviation from it that keeps `slack`
    /// positive.
    pub(crate) drift: f64,
    pub(crate) drift_error: f64,
    /// Shortest outbound transit at time 0 with that drift, s: offset ≤ out + drift · t.
    pub(crate) out: f64,
    /// Interval of offsets at time 0 over all drifts that keep `slack` positive, s.
    pub(crate) offset: (f64, f64),
}

/// Fits drift and offset to the transit times `out` (departing by the first clock) and `back`.
pub(crate) fn fit(out: &[TransitPoint], back: &[TransitPoint]) -> Option<ClockFit> {
    if out.is_empty() || back.is_empty() {
        return None;
    }
    let (out, back) = (lowest(out), lowest(back));
    let least = |points: &[TransitPoint], drift: f64| points.iter().map(|(at, transit)| transit + drift * at).fold(f64::INFINITY, f64::min);
    let slack = |drift: f64| least(&out, -drift) + least(&back, drift);
    // The slack is a sum of minima of straight lines, hence concave in the drift: ternary search.
    let (mut low, mut high) = (-MAX_CLOCK_DRIFT, MAX_CLOCK_DRIFT);
    for _ in 0..60 {
        let (a, b) = (low + (high - low) / 3.0, high - (high - low) / 3.0);
        if slack(a) < slack(b) { low = a } else { high = b }
    }
    // Prefer no drift when it fits as well.
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

/// Number of drifts tried for the bound on the offset.
const DRIFTS: i32 = 64;

/// The lower convex hull: the points that can be the minimum for some drift.
fn lowest(points: &[TransitPoint]) -> Vec<TransitPoint> {
    let mut sorted = points.to_vec();
    sorted.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let mut hull: Vec<TransitPoint> = Vec::new();
    for point in sorted {
        while let [.., a, b] = hull[..] {
            // Drop b if it lies on or above the line from a to the new point.
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
        /// Transit times of real packets fit, whatever the clocks, and the true offset is within
        /// the bound.
        #[test]
        fn real_transit_times_fit(
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

        /// ACKs that are more and more ahead of time, as with a growing queue, fit no drift.
        #[test]
        fn acks_ahead_of_time_fit_no_drift(offset in -2.0f64..2.0, growth in 0.01f64..1.0) {
            let points = |sign: f64| (0..100).map(|index| f64::from(index) * 0.1)
                .map(|at| (at, 0.02 + sign * (offset + growth * at))).collect::<Vec<TransitPoint>>();
            let fit = fit(&points(1.0)[..1], &points(-1.0)).unwrap();
            prop_assert!(fit.slack < 0.04 - 9.0 * (growth - MAX_CLOCK_DRIFT), "{:?}", fit);
        }
    }
}
