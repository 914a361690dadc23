//! Behaviour.

use crate::{
    clock_fit::Transit,
    endpoints::{EndpointPair, EndpointView},
    series::{BehaviourPlot, Burstiness, ReceivedSeries},
};
use serde::Serialize;

/// How the connection behaved.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ConnectionBehaviour {
    /// From the first byte to the last, as sent and as received, s.
    pub sent_for_s: Option<f64>,
    /// As received.
    pub received_for_s: Option<f64>,
    /// How bursty the sender was.
    pub burstiness: Option<Burstiness>,
    /// End-to-end delay of bytes.
    pub delay_s: Option<DelaySummary>,
    /// The window that the sender was offered.
    pub window: Option<WindowSummary>,
    /// Bytes that the sender sent again.
    pub sent_again: Option<u64>,
    /// How it ended at each end.
    pub ending: Option<Teardown>,
    /// Bytes sent and the window offered over time, at the sender.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub series: Option<BehaviourPlot>,
}

/// End-to-end delays, over the bytes that both ends recorded; they are as exact as the clocks' offset is known.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct DelaySummary {
    /// The least.
    pub min: f64,
    /// The middle one.
    pub median: f64,
    /// The most.
    pub max: f64,
}

/// An advertised window, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct WindowSummary {
    /// The least.
    pub least: u64,
    /// The most.
    pub most: u64,
    /// How often it went from open to shut: below a tenth of the most since it was last shut.
    pub shuts: u32,
}

/// How the two ends learnt that it was over (§III-D).
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Teardown {
    /// `fin`, `reset` or nothing that was seen, from the receiver's side, at its own end.
    pub receiver: Option<CloseKind>,
    /// What of it came to the sender.
    pub sender: Option<CloseKind>,
    /// How long after, s.
    pub later_s: Option<f64>,
    /// How long the sender's side went on sending after the receiver had left, s.
    pub went_on_s: Option<f64>,
}

/// How a side left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CloseKind {
    /// It closed.
    Fin,
    /// It aborted.
    Reset,
}

/// How the connection behaved; with `plots` its series, too. Between two ends times are compared by the clocks' `offset`.
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

/// Numbers over time; between two ends times are compared by the clocks' offset.
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
    // By the sender's clock.
    let since = |at: i64, then: i64| (at - then) as f64 / 1e9 + offset;
    Some(Teardown {
        receiver: receiver.map(|(how, _)| how),
        sender: sender.map(|(how, _)| how),
        later_s: receiver.zip(sender).map(|((_, there), (_, here))| since(here, there)),
        went_on_s: receiver.zip(ends.sender().half(0).last).map(|((_, there), last)| since(last, there).max(0.0)),
    })
}
