//! What a link does to the times and the number of its packets: jitter, reordering, duplicates.

use crate::random::LinkStreams;
use rand::RngExt as _;
use rand_pcg::Pcg64;
use scenario::{Jitter, Link, LinkReordering, Purpose};
use units::Span;

/// Jitter, reordering and duplicates of one direction, as a scenario asks for them.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct DisorderSpec {
    /// A random extra delay of each packet.
    pub jitter: Option<Jitter>,
    /// Packets that later ones overtake.
    pub reordering: Option<LinkReordering>,
    /// Probability that a packet arrives twice.
    pub duplication: f64,
}

impl DisorderSpec {
    pub(crate) fn of_link(link: &Link) -> Self {
        DisorderSpec { jitter: link.jitter, reordering: link.reordering, duplication: link.duplication.map_or(0.0, |share| share.0) }
    }

    pub(crate) fn is_none(&self) -> bool {
        *self == DisorderSpec::default()
    }
}

/// The processes behind a [`DisorderSpec`].
#[derive(Debug)]
pub(crate) struct Disorder {
    spec: DisorderSpec,
    jitter: Pcg64,
    reordering: Pcg64,
    duplication: Pcg64,
}

/// An extra delay of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExtraDelay {
    pub(crate) span: Span,
    /// Whether the packet still leaves after those before it.
    pub(crate) keeps_order: bool,
}

impl ExtraDelay {
    pub(crate) const NONE: ExtraDelay = ExtraDelay { span: Span::ZERO, keeps_order: true };
}

impl Disorder {
    pub(crate) fn new(spec: DisorderSpec, streams: LinkStreams) -> Self {
        let [jitter, reordering, duplication] = [Purpose::Jitter, Purpose::Detours, Purpose::Duplicates].map(|of| streams.of_direction(of));
        Disorder { spec, jitter, reordering, duplication }
    }

    /// Draws the extra delay of a packet.
    pub(crate) fn extra_delay(&mut self) -> ExtraDelay {
        let mut extra = ExtraDelay::NONE;
        if let Some(jitter) = self.spec.jitter {
            extra = ExtraDelay { span: jitter.delay.draw(&mut self.jitter), keeps_order: !jitter.reorders };
        }
        if let Some(LinkReordering { share, by }) = self.spec.reordering
            && self.reordering.random::<f64>() < share.0
        {
            extra = ExtraDelay { span: extra.span + by, keeps_order: false };
        }
        extra
    }

    /// Draws whether a packet arrives twice.
    pub(crate) fn is_duplicated(&mut self) -> bool {
        self.spec.duplication > 0.0 && self.duplication.random::<f64>() < self.spec.duplication
    }
}
