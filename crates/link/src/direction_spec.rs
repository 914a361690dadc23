//! What one direction of a link does to packets.

use crate::{disorder::DisorderSpec, random::LinkStreams, transmitter::Transmission};
use scenario::{Link, Loss, Medium, Outages, QueueKind, QueueParameters, Scenario};
use units::{QueueSize, Rate, Span};

/// What one direction of a link does to packets.
#[derive(Debug, Clone)]
pub struct DirectionSpec {
    /// When packets leave.
    pub transmission: Transmission,
    /// The limit of the queue.
    pub limit: QueueSize,
    /// The discipline of the queue, and its parameters.
    pub discipline: (QueueKind, QueueParameters),
    /// Whether the direction shares a medium with the opposite one. Only
    /// [`LinkDirection::pair`](crate::LinkDirection::pair) connects them.
    pub medium: Medium,
    /// Propagation delay.
    pub delay: Span,
    /// Random losses after the transmission.
    pub loss: Option<Loss>,
    /// Probability that a bit is received wrongly; a packet with a wrong bit is lost.
    pub bit_errors: f64,
    /// Times in which everything is lost.
    pub outages: Option<Outages>,
    /// Jitter, reordering and duplicates.
    pub disorder: DisorderSpec,
    /// Whether the delay changes during a run ([`set_delay`](crate::LinkDirection::set_delay)).
    pub varies_delay: bool,
    /// The random streams of all these.
    pub streams: LinkStreams,
}

impl DirectionSpec {
    /// A direction of link `index` of a scenario: that of the data, or the reverse.
    pub fn of_series(scenario: &Scenario, index: usize, seed: u64, is_reverse: bool) -> Self {
        let base_rtt = scenario.base_rtt(scenario.leg_of_link(index));
        DirectionSpec::of_link(&scenario.links[index], base_rtt, LinkStreams { seed, link: index as u64, is_reverse })
    }

    /// A direction of a link with rates in IP bits a second, on a leg of this base RTT: that of the
    /// data, or the reverse, as `streams` tells.
    pub fn of_link(link: &Link, base_rtt: Span, streams: LinkStreams) -> Self {
        let is_reverse = streams.is_reverse;
        let (rate, queue) = link.direction(is_reverse);
        let transmission = match &link.trace {
            None => Transmission::Rate(rate),
            Some(trace) => Transmission::Trace(if is_reverse { &trace.up } else { &trace.down }.trace().clone()),
        };
        DirectionSpec {
            transmission,
            limit: queue.size_for(rate, base_rtt),
            discipline: (queue.kind, queue.parameters_for(rate, base_rtt)),
            medium: link.medium,
            delay: link.delay,
            loss: if is_reverse { link.loss.reverse } else { link.loss.forward },
            bit_errors: link.bit_errors.map_or(0.0, |probability| probability.0),
            outages: link.outages,
            disorder: DisorderSpec::of_link(link),
            varies_delay: link.changes.iter().any(|change| change.delay.is_some()),
            streams,
        }
    }

    /// A link of this rate that does nothing but delay.
    pub fn lossless(rate: Rate, limit: QueueSize, delay: Span) -> Self {
        DirectionSpec {
            transmission: Transmission::Rate(rate),
            limit,
            discipline: (QueueKind::Droptail, QueueParameters::default()),
            medium: Medium::FullDuplex,
            delay,
            loss: None,
            bit_errors: 0.0,
            outages: None,
            disorder: DisorderSpec::default(),
            varies_delay: false,
            streams: LinkStreams::default(),
        }
    }
}
