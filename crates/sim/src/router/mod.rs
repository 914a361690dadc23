//! Routers that take part: each measures what comes to the queue of its link, and writes what it has to tell into what leaves.
//!
//! They stand at the lines that data go into; acknowledgements pass them by on their way back, and carry to the sender what the receiver was
//! told. What has no [`Header`](crate::packet::Header) of their kind counts as load and is told nothing: other TCP's, UDP, handshakes. Several in a row
//! agree by what each may do: XCP's lower a packet's word, VCP's and MPCP's raise it. They know what their link carries, and hear of it when
//! that changes.
//!
//! Their timers need no place among the events of a run: nothing but packets and timers changes a router, and the queue stays as it is
//! between two packets, so that whatever was due is done before the next packet is looked at.

mod load_factor;
mod mpcp;
#[cfg(test)]
pub(crate) mod test_packet;
mod vcp;
mod xcp;

use crate::packet::Packet;
use link::{QueueTap, Time};
pub(crate) use load_factor::{Code, INTERVAL_NS};
pub(crate) use mpcp::load_of;
use scenario::QueueKind;
use units::{Bytes, Rate};

/// A router at the queue of a link.
#[derive(Debug)]
pub(crate) enum Router {
    Xcp(xcp::Xcp),
    Vcp(vcp::Vcp),
    Mpcp(mpcp::Mpcp),
}

/// The one at a queue of this kind, before a link that carries so much.
pub(crate) fn of(kind: QueueKind, rate: Rate) -> Option<Box<Router>> {
    let capacity = bytes_per_s(rate);
    Some(Box::new(match kind {
        QueueKind::Droptail | QueueKind::Ecn => return None,
        QueueKind::Xcp => Router::Xcp(xcp::Xcp::new(capacity)),
        QueueKind::Vcp => Router::Vcp(vcp::Vcp::new(capacity)),
        QueueKind::Mpcp => Router::Mpcp(mpcp::Mpcp::new(capacity)),
    }))
}

fn bytes_per_s(rate: Rate) -> f64 {
    rate.bits_per_s() as f64 / 8.0
}

impl Router {
    /// Its link carries something else from `now` on.
    pub(crate) fn set_rate(&mut self, now: Time, rate: Rate) {
        let capacity = bytes_per_s(rate);
        match self {
            Router::Xcp(router) => router.set_capacity(now, capacity),
            Router::Vcp(router) => router.load.set_capacity(now, capacity),
            Router::Mpcp(router) => router.load.set_capacity(now, capacity),
        }
    }
}

/// There may be none.
impl QueueTap<Packet> for Option<Box<Router>> {
    fn is_attached(&self) -> bool {
        self.is_some()
    }

    fn packet_arrived(&mut self, now: Time, packet: &Packet) {
        let Some(router) = self else { return };
        match &mut **router {
            Router::Xcp(router) => router.comes(now, packet),
            Router::Vcp(router) => router.load.comes(now, packet),
            Router::Mpcp(router) => router.load.comes(now, packet),
        }
    }

    fn packet_departed(&mut self, at: Time, packet: &mut Packet) {
        let Some(router) = self else { return };
        match &mut **router {
            Router::Xcp(router) => router.leaves(at, packet),
            Router::Vcp(router) => router.leaves(at, packet),
            Router::Mpcp(router) => router.leaves(at, packet),
        }
    }

    fn queue_changed(&mut self, queued: Bytes) {
        let Some(router) = self else { return };
        match &mut **router {
            Router::Xcp(router) => router.holds(queued.0),
            Router::Vcp(router) => router.load.holds(queued.0),
            Router::Mpcp(router) => router.load.holds(queued.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{test_packet::data, *};
    use crate::packet::Protocol;

    #[test]
    fn words_of_others_are_left_alone() {
        for kind in [QueueKind::Xcp, QueueKind::Vcp, QueueKind::Mpcp] {
            let mut router = of(kind, Rate(1_000_000));
            for protocol in [Protocol::Xcp, Protocol::Vcp, Protocol::Mpcp(2), Protocol::Mpcp(3)] {
                let own = matches!(
                    (kind, protocol),
                    (QueueKind::Xcp, Protocol::Xcp) | (QueueKind::Vcp, Protocol::Vcp) | (QueueKind::Mpcp, Protocol::Mpcp(_))
                );
                let mut wrote = false;
                // Ten times what the link carries: they have something to tell.
                for number in 0..2000 {
                    let now = Time(u64::from(number) * 1_200_000);
                    let mut packet = data(protocol, number, 0.0);
                    router.packet_arrived(now, &packet);
                    router.packet_departed(now, &mut packet);
                    router.queue_changed(Bytes(0));
                    wrote |= packet.told != 0.0;
                }
                assert_eq!(wrote, own, "{kind:?} {protocol:?}");
            }
        }
    }
}
