//! A VCP router: signals the load region of its link in two bits (Xia, Subramanian, Stoica,
//! Kalyanaraman, "One more bit is enough", SIGCOMM 2005).

use super::load_factor::{LoadFactor, LoadRegion};
use crate::packet::{RouterProtocol, SimPacket};
use link::Time;

/// A VCP router.
#[derive(Debug)]
pub(crate) struct VcpRouter {
    pub(super) load: LoadFactor,
}

impl VcpRouter {
    pub(super) fn new(capacity: f64) -> Self {
        VcpRouter { load: LoadFactor::new(capacity) }
    }

    /// Raises the code in a VCP packet to that of this router.
    pub(super) fn packet_departed(&mut self, at: Time, packet: &mut SimPacket) {
        let code = LoadRegion::of(self.load.at(at)).code();
        if packet.congestion_header().is_some_and(|header| header.protocol == RouterProtocol::Vcp) {
            packet.feedback = packet.feedback.max(code);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::test_packet::data, *};

    /// The code that a router writes over `before` when `part` of its capacity arrives and `queued`
    /// bytes wait.
    fn code(part: f64, queued: u64, before: f32) -> f32 {
        let mut router = VcpRouter::new(1.5e6);
        for number in 0..(1000.0 * part) as u64 {
            router.load.packet_arrived(Time((number as f64 * 1e6 / part) as u64), &data(RouterProtocol::Vcp, 0, 0.0));
            router.load.queue_changed(queued);
        }
        let mut packet = data(RouterProtocol::Vcp, 0, before);
        router.packet_departed(Time(1_000_000_000), &mut packet);
        packet.feedback
    }

    #[test]
    fn the_code_depends_on_input_and_queue() {
        let codes = [(0.5, 0), (0.77, 0), (0.8, 0), (0.97, 0), (1.0, 0), (1.5, 0)]
            .map(|(part, queued)| LoadRegion::from_code(code(part, queued, 0.0)));
        use LoadRegion::{High, Low, Overload};
        assert_eq!(codes, [Low, Low, High, High, Overload, Overload].map(Some));
        // Half of 60 kB is a tenth of the capacity of 200 ms.
        assert_eq!(LoadRegion::from_code(code(0.75, 60_000, 0.0)), Some(High));
    }

    #[test]
    fn a_code_is_only_raised() {
        assert_eq!([1.0, 2.0, 3.0].map(|before| code(0.9, 0, before)), [2.0, 2.0, 3.0]);
    }
}
