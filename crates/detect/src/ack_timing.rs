//! Evidence from the timing of ACKs: the three methods of Wei et al. (§III-A), and the limit that
//! their Figure 2(b) sets.

use crate::{
    clock_fit::{ClockFit, MAX_CLOCK_DRIFT, TIMESTAMP_JITTER_S, Transit, TransitPoint, fit},
    endpoints::{EndpointPair, EndpointView},
    evidence::{Evidence, Indication, Method, Strength},
    text::{bytes, seconds},
};
use serde::Serialize;

/// Shortest ACK delay that counts as deliberate, s. An ordinary delayed-ACK receiver still
/// acknowledges every second segment at once.
const DELAYED: f64 = 0.02;
/// Number and fraction of ACKs that must be early before packets missing from a capture are ruled
/// out as the cause.
const SURELY: (usize, f64) = (5, 0.2);

/// Bounds on the clocks of the two captures, under the assumption that the connection is end to
/// end.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ClockEstimate {
    /// The receiver's clock minus the sender's at the start of the connection, s.
    pub offset_s: f64,
    /// Half the width of the interval of possible offsets, s.
    pub error_s: f64,
    /// How much faster the receiver's clock runs, parts per million.
    pub drift_ppm: f64,
    /// Largest deviation from `drift_ppm` that the data allow, parts per million.
    pub drift_error_ppm: f64,
    /// Sum of the shortest transit times in both directions, s. A splitter that delays bytes by
    /// less than this cannot be detected (Figure 2(b)).
    pub least_round_trip_s: f64,
}

/// What the user knows about how the traces were taken.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct TraceConditions {
    /// The clocks are synchronised to within this, s.
    pub synchronised_s: Option<f64>,
    /// The receiver delays every ACK by this, s.
    pub ack_delay_s: Option<f64>,
}

/// ACKs that arrived before the receiver sent them, if the clock model holds.
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
            "the ACK for byte {} arrived {} before the receiver sent it, {clocks}; so did {:.0} % of {} ACKs",
            bytes(self.worst.1 as f64),
            seconds(self.worst.0),
            100.0 * self.count as f64 / self.of.max(1) as f64,
            self.of
        )
    }

    /// Whether too many ACKs are early to be explained by ACKs that the receiver's capture missed.
    fn surely(&self) -> bool {
        self.count >= SURELY.0 && self.count as f64 >= SURELY.1 * self.of as f64
    }
}

const WAY: [&str; 2] = ["", " (opposite direction)"];

/// Method 1 (Wei et al. §III-A): compares times directly, because the clocks are synchronised to
/// `within`, s. `stream` is 0 for data from the sender, 1 for the opposite direction.
pub(crate) fn synchronised(ends: &EndpointPair<'_>, stream: usize, within: f64) -> Option<Evidence> {
    let acks = ends.acks(stream)?;
    // First the bound that holds even if the captures missed packets, then the times as recorded.
    let sure = early(&acks, |ack| ack.most, |_, transit| -transit - within);
    let plain = early(&acks, |ack| ack.plain, |_, transit| -transit - within);
    let clocks = format!("by clocks synchronised to within {}{}", seconds(within), WAY[stream]);
    verdict(Method::SynchronisedClocks, &sure, &plain, &clocks)
}

fn verdict(method: Method, sure: &EarlyAcks, plain: &EarlyAcks, clocks: &str) -> Option<Evidence> {
    let (early, strength) = if sure.count > 0 {
        (sure, Strength::Strong)
    } else if plain.count > 0 {
        (plain, if plain.surely() { Strength::Strong } else { Strength::Weak })
    } else if plain.of > 0 {
        let text = format!("none of {} ACKs arrived before the receiver sent it, {clocks}", plain.of);
        return Some(Evidence::new(method, Indication::Nothing, Strength::Weak, (plain.worst.0, "s"), text));
    } else {
        return None;
    };
    Some(Evidence::new(method, Indication::Split, strength, (early.worst.0, "s"), early.says(clocks)))
}

/// Method 2 (Wei et al. §III-A): searches a fixed offset and a plausible drift under which no ACK
/// arrives before it was sent. Also returns the bounds on the clocks if one exists.
pub(crate) fn fixed_offset(ends: &EndpointPair<'_>, stream: usize) -> Option<(Evidence, Option<ClockEstimate>)> {
    let (data, acks) = (ends.data(stream)?, ends.acks(stream)?);
    // Times count from the start of the connection, by the clock of the stream's sender, where data
    // depart and ACKs arrive.
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
    let clocks = format!("for any clock offset and a drift of at most {:.0} ppm{}", MAX_CLOCK_DRIFT * 1e6, WAY[stream]);
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

/// The limit of the passive methods: Wei et al., Figure 2(b). A splitter's ACK is early only when
/// R_sp < D_sp + T_p + D_pr + T_ack.
fn condition(ends: &EndpointPair<'_>, stream: usize, clocks: &ClockEstimate) -> String {
    let round_trip = ends.ends[stream].answers(stream).into_iter().min().map_or(0.0, |answer| answer as f64 / 1e9);
    format!(
        "; a splitter that delays bytes by less than about {} cannot be detected (Figure 2(b): the sender's round trip takes {}, the transit times add up to {})",
        seconds(clocks.least_round_trip_s),
        seconds(round_trip),
        seconds(clocks.least_round_trip_s)
    )
}

/// Method 3 (Wei et al. §III-A) at the sender alone: the receiver delays every ACK by `delay`, s.
pub(crate) fn delayed_acks(sender: &EndpointView<'_>, delay: f64) -> Option<Evidence> {
    let in_seconds = |answers: Vec<i64>| answers.into_iter().map(|answer| answer as f64 / 1e9).collect::<Vec<f64>>();
    let (at_most, recorded) = (in_seconds(sender.answers(0)), in_seconds(sender.answers_recorded(0)));
    let least = recorded.iter().copied().min_by(f64::total_cmp)?;
    let sooner = at_most.iter().filter(|answer| **answer < delay - TIMESTAMP_JITTER_S).count();
    let what = format!("the receiver delays each ACK by {}, as given", seconds(delay));
    let of = |says, strength, text| Some(Evidence::new(Method::DelayedAcks, says, strength, (least, "s"), text));
    if sooner > 0 {
        return of(
            Indication::Split,
            Strength::Strong,
            format!("{what}; {sooner} of {} arrived earlier, the first after {}", at_most.len(), seconds(least)),
        );
    }
    if least < delay - TIMESTAMP_JITTER_S {
        let text = format!("{what}; one arrived after {}, if the trace is complete", seconds(least));
        return of(Indication::Split, Strength::Weak, text);
    }
    // A splitter acknowledges within its own round trip. A delay of a second or more exceeds that.
    let strength = if delay >= 1.0 && recorded.len() >= 10 { Strength::Strong } else { Strength::Weak };
    of(Indication::EndToEnd, strength, format!("{what}; none of {} arrived earlier, the first after {}", recorded.len(), seconds(least)))
}

/// Method 3 (Wei et al. §III-A) with the ACK delay that the receiver's own trace shows for each
/// byte. The two clocks are never compared.
pub(crate) fn delays_seen(ends: &EndpointPair<'_>, stream: usize) -> Option<Evidence> {
    let waits = ends.waits(stream)?.into_iter().map(|(waited, took)| (waited as f64 / 1e9, took as f64 / 1e9));
    let waits: Vec<(f64, f64)> = waits.filter(|(_, took)| *took >= DELAYED).collect();
    let (_, took) = waits.iter().copied().min_by(|a, b| a.1.total_cmp(&b.1))?;
    let sooner: Vec<f64> = waits.iter().filter(|(waited, took)| *waited < took - TIMESTAMP_JITTER_S).map(|(waited, _)| *waited).collect();
    let what = format!("the receiver took at least {} to send {} of its ACKs{}", seconds(took), waits.len(), WAY[stream]);
    Some(match sooner.iter().copied().min_by(f64::total_cmp) {
        Some(least) => {
            let text = format!("{what}; the sender got {} of them earlier, the first after {}", sooner.len(), seconds(least));
            Evidence::new(Method::DelayedAcks, Indication::Split, Strength::Strong, (least, "s"), text)
        }
        None => Evidence::new(
            Method::DelayedAcks,
            Indication::Nothing,
            Strength::Weak,
            (took, "s"),
            format!("{what}; the sender got none of them earlier"),
        ),
    })
}
