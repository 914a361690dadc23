//! How a connection behaved: durations, burstiness, delays, windows and teardown (Wei et al.
//! §III-C, §III-D). Descriptive only: no verdict depends on it.

use crate::{
    clock_fit::Transit,
    endpoints::{EndpointPair, EndpointView},
    series::{BehaviourPlot, Burstiness, ReceivedSeries},
};
use serde::Serialize;

/// How a connection behaved. Fields are `None` where the traces do not show them.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ConnectionBehaviour {
    /// Time from the first data byte sent to the last, s.
    pub sent_for_s: Option<f64>,
    /// Time from the first data byte received to the last, s.
    pub received_for_s: Option<f64>,
    /// Burstiness of the sender.
    pub burstiness: Option<Burstiness>,
    /// End-to-end delay of data bytes, s.
    pub delay_s: Option<DelaySummary>,
    /// Window that was advertised to the sender.
    pub window: Option<WindowSummary>,
    /// Bytes that the sender retransmitted.
    pub sent_again: Option<u64>,
    /// How the connection ended at each end.
    pub ending: Option<Teardown>,
    /// Bytes sent and window advertised over time, at the sender. Only on request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub series: Option<BehaviourPlot>,
}

/// End-to-end delays over the bytes that both ends recorded, s. They are as exact as the offset
/// between the clocks.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct DelaySummary {
    /// Minimum.
    pub min: f64,
    /// Median.
    pub median: f64,
    /// Maximum.
    pub max: f64,
}

/// An advertised window, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct WindowSummary {
    /// Minimum.
    pub least: u64,
    /// Maximum.
    pub most: u64,
    /// How often the window closed: fell below a tenth of its maximum since it last closed.
    pub shuts: u32,
}

/// How the two ends learnt that the connection was over (Wei et al. §III-D).
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Teardown {
    /// How the receiver closed, as its own trace shows it.
    pub receiver: Option<CloseKind>,
    /// How that close arrived at the sender.
    pub sender: Option<CloseKind>,
    /// Time from the receiver's close to its arrival at the sender, s.
    pub later_s: Option<f64>,
    /// How long the sender kept sending after the receiver had closed, s.
    pub went_on_s: Option<f64>,
}

/// Time after which an end must have learnt of the other's close for a graceful ending, s. Wei et
/// al. saw a few seconds where a middlebox passed the close on, and 40 s to 12 minutes where it did
/// not.
const GRACE_S: f64 = 5.0;

impl Teardown {
    /// Whether the connection ended gracefully: the sender learnt of the receiver's close within a
    /// few seconds. `None` if it neither learnt of it nor sent for longer.
    pub fn graceful(&self) -> Option<bool> {
        let in_vain = self.sender.is_none() && self.went_on_s.is_some_and(|span| span > GRACE_S);
        if in_vain { Some(false) } else { self.later_s.map(|span| span <= GRACE_S) }
    }
}

/// How one side closed the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CloseKind {
    /// With a FIN.
    Fin,
    /// With a reset.
    Reset,
}

impl ConnectionBehaviour {
    /// Removes what a capture without times does not show.
    pub(crate) fn remove_times(&mut self) {
        (self.sent_for_s, self.received_for_s, self.burstiness, self.delay_s) = (None, None, None, None);
        (self.ending, self.series) = (None, None);
    }
}

/// Summarises the behaviour. `plots` adds the series over time. `ends` holds both views and the
/// offset between their clocks, s.
pub(crate) fn character(
    sender: Option<&EndpointView<'_>>,
    receiver: Option<&EndpointView<'_>>,
    ends: Option<(&EndpointPair<'_>, Option<f64>)>,
    plots: bool,
) -> ConnectionBehaviour {
    let span = |view: &EndpointView<'_>| Some((view.half(0).last_data? - view.half(0).first_data?) as f64 / 1e9);
    let ends = ends.and_then(|(ends, offset)| Some((ends, offset?)));
    let delays = ends.and_then(|(ends, offset)| {
        let mut delays: Vec<f64> = ends.data(0)?.iter().filter(|transit| transit.place > 0).filter_map(|transit| transit.plain).collect();
        delays.iter_mut().for_each(|delay| *delay -= offset);
        delays.sort_by(f64::total_cmp);
        Some(DelaySummary { min: *delays.first()?, median: delays[delays.len() / 2], max: *delays.last()? })
    });
    let windows = sender.map(|view| view.half(1).windows).filter(|windows| windows.count > 0);
    ConnectionBehaviour {
        sent_for_s: sender.and_then(span),
        received_for_s: receiver.and_then(span),
        burstiness: sender.and_then(|view| view.half(0).series.burstiness()),
        delay_s: delays,
        window: windows.map(|windows| WindowSummary { least: windows.least, most: windows.most, shuts: windows.shuts }),
        sent_again: sender.map(|view| view.half(0).again),
        ending: ends.and_then(|(ends, offset)| ending(ends, offset)),
        series: sender.filter(|_| plots).map(|view| plot(view, ends)),
    }
}

/// Series over time. Times of the receiver are converted by the offset between the clocks.
fn plot(sender: &EndpointView<'_>, ends: Option<(&EndpointPair<'_>, f64)>) -> BehaviourPlot {
    let (sent, offered) = (&sender.half(0).series, &sender.half(1).series);
    let ((step_s, from_s), (window_step_s, window_from_s)) = (sent.grid(), offered.grid());
    let received = ends.map(|(ends, offset)| {
        let series = &ends.receiver().half(0).series;
        let (step_s, from_s) = series.grid();
        ReceivedSeries { step_s, from_s: from_s - offset, bytes: series.bytes() }
    });
    let delays = ends.map_or_else(Vec::new, |(ends, offset)| {
        let data = ends.data(0).unwrap_or_default();
        let of = |transit: &Transit| Some((transit.arrived as f64 / 1e9 - transit.plain?, transit.plain? - offset));
        data.iter().filter(|transit| transit.place > 0).filter_map(of).collect()
    });
    BehaviourPlot { step_s, from_s, bytes: sent.bytes(), window_step_s, window_from_s, window: offered.windows(), received, delays }
}

fn ending(ends: &EndpointPair<'_>, offset: f64) -> Option<Teardown> {
    let left = |view: &EndpointView<'_>| {
        let half = view.half(1);
        match (half.fin, half.reset) {
            (Some(fin), Some(reset)) if reset < fin => Some((CloseKind::Reset, reset)),
            (Some(fin), _) => Some((CloseKind::Fin, fin)),
            (None, Some(reset)) => Some((CloseKind::Reset, reset)),
            (None, None) => None,
        }
    };
    let (receiver, sender) = (left(ends.receiver()), left(ends.sender()));
    // Converted to the sender's clock.
    let since = |at: i64, then: i64| (at - then) as f64 / 1e9 + offset;
    Some(Teardown {
        receiver: receiver.map(|(how, _)| how),
        sender: sender.map(|(how, _)| how),
        later_s: receiver.zip(sender).map(|((_, there), (_, here))| since(here, there)),
        went_on_s: receiver.zip(ends.sender().half(0).last).map(|((_, there), last)| since(last, there).max(0.0)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_close_that_comes_late_or_never_is_not_graceful() {
        let ending = |sender: Option<CloseKind>, later_s: Option<f64>, went_on_s: f64| {
            Teardown { receiver: Some(CloseKind::Reset), sender, later_s, went_on_s: Some(went_on_s) }.graceful()
        };
        assert_eq!(ending(Some(CloseKind::Reset), Some(0.04), 0.0), Some(true));
        // A middlebox that holds a complete answer closes before the receiver does.
        assert_eq!(ending(Some(CloseKind::Fin), Some(-1.2), 0.0), Some(true));
        assert_eq!(ending(Some(CloseKind::Reset), Some(40.0), 38.0), Some(false));
        assert_eq!(ending(None, None, 700.0), Some(false));
        // The trace ends too early.
        assert_eq!(ending(None, None, 1.0), None);
    }
}
