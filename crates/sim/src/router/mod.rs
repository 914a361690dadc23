//! Routers that take part in congestion control: each measures what arrives at the queue of its
//! link and writes its feedback into departing packets.
//!
//! They stand at the channels in the direction of the data. Acknowledgements bypass them and return
//! the feedback to the sender. A packet without a
//! [`CongestionHeader`](crate::packet::CongestionHeader) of the router's protocol (other TCP, UDP,
//! handshakes) counts as load and gets no feedback. Several routers on a path cooperate by what
//! each may do to the feedback: XCP routers only lower it, VCP and MPCP routers only raise it. A
//! router knows the capacity of its link and is told when that changes.
//!
//! The timers of routers are not events of the run. Only packets and timers change a router, and
//! the queue is constant between two packets, so a router runs its due timers before it handles the
//! next packet.

mod load_factor;
mod mpcp;
#[cfg(test)]
pub(crate) mod test_packet;
mod vcp;
mod xcp;

use crate::packet::SimPacket;
use link::{QueueTap, Time};
pub(crate) use load_factor::{INTERVAL_NS, LoadRegion};
pub(crate) use mpcp::load_of_level;
use scenario::QueueKind;
use units::{Bytes, Rate};

/// A router at the queue of a link.
#[derive(Debug)]
pub(crate) enum LinkRouter {
    Xcp(xcp::XcpRouter),
    Vcp(vcp::VcpRouter),
    Mpcp(mpcp::MpcpRouter),
}

/// The router of a queue of this kind, in front of a link with this rate.
pub(crate) fn for_queue(kind: QueueKind, rate: Rate) -> Option<Box<LinkRouter>> {
    let capacity = bytes_per_s(rate);
    Some(Box::new(match kind {
        QueueKind::Xcp => LinkRouter::Xcp(xcp::XcpRouter::new(capacity)),
        QueueKind::Vcp => LinkRouter::Vcp(vcp::VcpRouter::new(capacity)),
        QueueKind::Mpcp => LinkRouter::Mpcp(mpcp::MpcpRouter::new(capacity)),
        _ => return None,
    }))
}

fn bytes_per_s(rate: Rate) -> f64 {
    rate.bits_per_s() as f64 / 8.0
}

impl LinkRouter {
    /// The capacity of its link changes at `now`.
    pub(crate) fn set_rate(&mut self, now: Time, rate: Rate) {
        let capacity = bytes_per_s(rate);
        match self {
            LinkRouter::Xcp(router) => router.set_capacity(now, capacity),
            LinkRouter::Vcp(router) => router.load.set_capacity(now, capacity),
            LinkRouter::Mpcp(router) => router.load.set_capacity(now, capacity),
        }
    }
}

/// A link may have no router.
impl QueueTap<SimPacket> for Option<Box<LinkRouter>> {
    fn is_attached(&self) -> bool {
        self.is_some()
    }

    fn packet_arrived(&mut self, now: Time, packet: &SimPacket) {
        let Some(router) = self else { return };
        match &mut **router {
            LinkRouter::Xcp(router) => router.packet_arrived(now, packet),
            LinkRouter::Vcp(router) => router.load.packet_arrived(now, packet),
            LinkRouter::Mpcp(router) => router.load.packet_arrived(now, packet),
        }
    }

    fn packet_departed(&mut self, at: Time, packet: &mut SimPacket) {
        let Some(router) = self else { return };
        match &mut **router {
            LinkRouter::Xcp(router) => router.packet_departed(at, packet),
            LinkRouter::Vcp(router) => router.packet_departed(at, packet),
            LinkRouter::Mpcp(router) => router.packet_departed(at, packet),
        }
    }

    fn queue_changed(&mut self, queued: Bytes) {
        let Some(router) = self else { return };
        match &mut **router {
            LinkRouter::Xcp(router) => router.queue_changed(queued.0),
            LinkRouter::Vcp(router) => router.load.queue_changed(queued.0),
            LinkRouter::Mpcp(router) => router.load.queue_changed(queued.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{test_packet::data, *};
    use crate::packet::RouterProtocol;

    #[test]
    fn feedback_of_other_protocols_is_unchanged() {
        for kind in [QueueKind::Xcp, QueueKind::Vcp, QueueKind::Mpcp] {
            let mut router = for_queue(kind, Rate(1_000_000));
            for protocol in [RouterProtocol::Xcp, RouterProtocol::Vcp, RouterProtocol::Mpcp(2), RouterProtocol::Mpcp(3)] {
                let own = matches!(
                    (kind, protocol),
                    (QueueKind::Xcp, RouterProtocol::Xcp)
                        | (QueueKind::Vcp, RouterProtocol::Vcp)
                        | (QueueKind::Mpcp, RouterProtocol::Mpcp(_))
                );
                let mut wrote = false;
                // Ten times the capacity, so that the routers have feedback to give.
                for number in 0..2000 {
                    let now = Time(u64::from(number) * 1_200_000);
                    let mut packet = data(protocol, number, 0.0);
                    router.packet_arrived(now, &packet);
                    router.packet_departed(now, &mut packet);
                    router.queue_changed(Bytes(0));
                    wrote |= packet.feedback != 0.0;
                }
                assert_eq!(wrote, own, "{kind:?} {protocol:?}");
            }
        }
    }
}
