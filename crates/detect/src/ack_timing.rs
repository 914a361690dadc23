//! The three methods of Wei et al. (§III-A), and the condition of their Figure 2(b).

use crate::{
    clock_fit::{ClockFit, MAX_CLOCK_DRIFT, TIMESTAMP_JITTER_S, Transit, TransitPoint, fit},
    endpoints::{EndpointPair, EndpointView},
    evidence::{Evidence, Indication, Method, Strength},
    text::{bytes, seconds},
};
use serde::Serialize;

/// A receiver that delays every acknowledgement by this does so on purpose, s: delayed ACKs let every second segment through at once.
const DELAYED: f64 = 0.02;
/// Acknowledgements that must be early before what a capture failed to record is ruled out.
const SURELY: (usize, f64) = (5, 0.2);

/// What the two captures' clocks can be, if the connection is end to end.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ClockEstimate {
    /// The receiver's clock minus the sender's when the connection begins, s.
    pub offset_s: f64,
    /// It is as near to that as this.
    pub error_s: f64,
    /// How much faster the receiver's is.
    pub drift_ppm: f64,
    /// It is as near to that as this.
    pub drift_error_ppm: f64,
    /// The least way there and back, s. What a split delays less than this stays unseen (Figure 2(b)).
    pub least_round_trip_s: f64,
}

/// What is known of how the traces were taken.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct TraceConditions {
    /// The clocks are synchronised, this well, s.
    pub synchronised_s: Option<f64>,
    /// The receiver delays every acknowledgement by this, s.
    pub ack_delay_s: Option<f64>,
}

/// Acknowledgements that came before they were sent.
struct EarlyAcks {
    count: usize,
    of: usize,
    worst: (f64, i64),
}

fn early(acks: &[Transit], transit: impl Fn(&Transit) -> Option<f64>, by: impl Fn(f64, f64) -> f64) -> EarlyAcks {
    let mut early = EarlyAcks { count: 0, of: 0, worst: (f64::NEG_INFINITY, 0) };
    for ack in acks {
        let Some(transit) = transit(ack) else { continue };
        early.of += 1;
        let earlier = by(ack.arrived as f64 / 1e9, transit);
        early.count += usize::from(earlier > TIMESTAMP_JITTER_S);
        if earlier > early.worst.0 {
            early.worst = (earlier, ack.place);
        }
    }
    early
}

impl EarlyAcks {
    fn says(&self, clocks: &str) -> String {
        format!(
            "the ACK for byte {} was seen {} before the receiver sent it, {clocks}; so were {:.0} % of {} ACKs",
            bytes(self.worst.1 as f64),
            seconds(self.worst.0),
            100.0 * self.count as f64 / self.of.max(1) as f64,
            self.of
        )
    }

    /// What is not explained by ACKs that the receiver's capture failed to record.
    fn surely(&self) -> bool {
        self.count >= SURELY.0 && self.count as f64 >= SURELY.1 * self.of as f64
    }
}

const WAY: [&str; 2] = ["", " (the stream back)"];

/// Method 1: needs clocks known to be synchronised.
pub(crate) fn synchronised(ends: &EndpointPair<'_>, stream: usize, within: f64) -> Option<Evidence> {
    let acks = ends.acks(stream)?;
    // Whatever the captures failed to record, first; what they have recorded, second.
    let sure = early(&acks, |ack| ack.most, |_, transit| -transit - within);
    let plain = early(&acks, |ack| ack.plain, |_, transit| -transit - within);
    let clocks = format!("by clocks synchronised within {}{}", seconds(within), WAY[stream]);
    verdict(Method::SynchronisedClocks, &sure, &plain, &clocks)
}

fn verdict(method: Method, sure: &EarlyAcks, plain: &EarlyAcks, clocks: &str) -> Option<Evidence> {
    let (early, strength) = if sure.count > 0 {
        (sure, Strength::Strong)
    } else if plain.count > 0 {
        (plain, if plain.surely() { Strength::Strong } else { Strength::Weak })
    } else if plain.of > 0 {
        let text = format!("none of {} ACKs was seen before the receiver sent it, {clocks}", plain.of);
        return Some(Evidence::new(method, Indication::Nothing, Strength::Weak, (plain.worst.0, "s"), text));
    } else {
        return None;
    };
    Some(Evidence::new(method, Indication::Split, strength, (early.worst.0, "s"), early.says(clocks)))
}

/// Method 2: clocks at a fixed offset that is not known, and a drift that clocks can have.
pub(crate) fn fixed_offset(ends: &EndpointPair<'_>, stream: usize) -> Option<(Evidence, Option<ClockEstimate>)> {
    let (data, acks) = (ends.data(stream)?, ends.acks(stream)?);
    // Times count from the connection's begin by the clock of the stream's sender, where data depart and ACKs arrive.
    let origin = ends.ends[stream].flow.first;
    let time = |at: i64| (at - origin) as f64 / 1e9;
    let fitted = |transit: fn(&Transit) -> Option<f64>| {
        let out: Vec<TransitPoint> =
            data.iter().filter_map(|data| transit(data).map(|transit| (time(data.arrived) - transit, transit))).collect();
        let back: Vec<TransitPoint> = acks.iter().filter_map(|ack| transit(ack).map(|transit| (time(ack.arrived), transit))).collect();
        fit(&out, &back)
    };
    let look = |fit: Option<ClockFit>, transit: fn(&Transit) -> Option<f64>| match fit {
        Some(fit) => early(&acks, transit, |at, transit| -(transit + fit.out + fit.drift * (at - origin as f64 / 1e9))),
        None => EarlyAcks { count: 0, of: 0, worst: (f64::NEG_INFINITY, 0) },
    };
    let (sure, plain) = (fitted(|transit| transit.most), fitted(|transit| transit.plain));
    let clocks = format!("whatever the clocks' offset, with a drift of at most {:.0} ppm{}", MAX_CLOCK_DRIFT * 1e6, WAY[stream]);
    let (early_sure, early_plain) = (look(sure, |transit| transit.most), look(plain, |transit| transit.plain));
    let mut evidence = verdict(Method::FixedOffset, &early_sure, &early_plain, &clocks)?;
    let fit = plain.filter(|fit| fit.slack >= 0.0);
    let known = fit.map(|fit| {
        let sign = if stream == 0 { 1.0 } else { -1.0 };
        ClockEstimate {
            offset_s: sign * (fit.offset.0 + fit.offset.1) / 2.0,
            error_s: ((fit.offset.1 - fit.offset.0) / 2.0).max(0.0),
            drift_ppm: sign * fit.drift * 1e6,
            drift_error_ppm: fit.drift_error * 1e6,
            least_round_trip_s: fit.slack,
        }
    });
    if let (Indication::Nothing, Some(known)) = (evidence.says, known) {
        evidence.text += &condition(ends, stream, &known);
    }
    Some((evidence, known))
}

/// What the passive methods can't see: Figure 2(b). A splitter's ACK is early when R_sp < D_sp + T_p + D_pr + T_ack.
fn condition(ends: &EndpointPair<'_>, stream: usize, clocks: &ClockEstimate) -> String {
    let round_trip = ends.ends[stream].answers(stream).into_iter().min().map_or(0.0, |answer| answer as f64 / 1e9);
    format!(
        "; one that keeps bytes for less than about {} stays unseen (Figure 2(b): the sender's round trip takes {}, the way there and back {})",
        seconds(clocks.least_round_trip_s),
        seconds(round_trip),
        seconds(clocks.least_round_trip_s)
    )
}

/// Method 3, at the sender alone: the receiver is known to delay every ACK by `delay`, s.
pub(crate) fn delayed_acks(sender: &EndpointView<'_>, delay: f64) -> Option<Evidence> {
    let in_seconds = |answers: Vec<i64>| answers.into_iter().map(|answer| answer as f64 / 1e9).collect::<Vec<f64>>();
    let (at_most, recorded) = (in_seconds(sender.answers(0)), in_seconds(sender.answers_recorded(0)));
    let least = recorded.iter().copied().min_by(f64::total_cmp)?;
    let sooner = at_most.iter().filter(|answer| **answer < delay - TIMESTAMP_JITTER_S).count();
    let what = format!("the receiver delays each ACK by {}, as was said", seconds(delay));
    let of = |says, strength, text| Some(Evidence::new(Method::DelayedAcks, says, strength, (least, "s"), text));
    if sooner > 0 {
        return of(
            Indication::Split,
            Strength::Strong,
            format!("{what}; {sooner} of {} came sooner, the soonest after {}", at_most.len(), seconds(least)),
        );
    }
    if least < delay - TIMESTAMP_JITTER_S {
        let text = format!("{what}; one came after {}, if the trace has all that was sent", seconds(least));
        return of(Indication::Split, Strength::Weak, text);
    }
    // What acknowledges by itself does so within its own round trip, which a long delay exceeds.
    let strength = if delay >= 1.0 && recorded.len() >= 10 { Strength::Strong } else { Strength::Weak };
    of(Indication::EndToEnd, strength, format!("{what}; none of {} came sooner, the soonest after {}", recorded.len(), seconds(least)))
}

/// Method 3 with the delay that the receiver's own trace shows, byte by byte: no clock is compared with another.
pub(crate) fn delays_seen(ends: &EndpointPair<'_>, stream: usize) -> Option<Evidence> {
    let waits = ends.waits(stream)?.into_iter().map(|(waited, took)| (waited as f64 / 1e9, took as f64 / 1e9));
    let waits: Vec<(f64, f64)> = waits.filter(|(_, took)| *took >= DELAYED).collect();
    let (_, took) = waits.iter().copied().min_by(|a, b| a.1.total_cmp(&b.1))?;
    let sooner: Vec<f64> = waits.iter().filter(|(waited, took)| *waited < took - TIMESTAMP_JITTER_S).map(|(waited, _)| *waited).collect();
    let what = format!("the receiver took at least {} to send {} of its ACKs{}", seconds(took), waits.len(), WAY[stream]);
    Some(match sooner.iter().copied().min_by(f64::total_cmp) {
        Some(least) => {
            let text = format!("{what}; the sender had {} of them sooner, the soonest after {}", sooner.len(), seconds(least));
            Evidence::new(Method::DelayedAcks, Indication::Split, Strength::Strong, (least, "s"), text)
        }
        None => Evidence::new(
            Method::DelayedAcks,
            Indication::Nothing,
            Strength::Weak,
            (took, "s"),
            format!("{what}; the sender had none of them sooner"),
        ),
    })
}
