//! A VCP router.

use super::load_factor::{Code, Load};
use crate::packet::{Packet, Protocol};
use link::Time;

/// A VCP router.
#[derive(Debug)]
pub(crate) struct Vcp {
    pub(super) load: Load,
}

impl Vcp {
    pub(super) fn new(capacity: f64) -> Self {
        Vcp { load: Load::new(capacity) }
    }

    /// Writes its code over a lower one.
    pub(super) fn leaves(&mut self, at: Time, packet: &mut Packet) {
        let word = Code::of(self.load.at(at)).word();
        if packet.header().is_some_and(|header| header.protocol == Protocol::Vcp) {
            packet.told = packet.told.max(word);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::test_packet::data, *};

    /// What it tells when so much comes, in parts of what it carries, and so much waits.
    fn told(part: f64, queued: u64, before: f32) -> f32 {
        let mut router = Vcp::new(1.5e6);
        for number in 0..(1000.0 * part) as u64 {
            router.load.comes(Time((number as f64 * 1e6 / part) as u64), &data(Protocol::Vcp, 0, 0.0));
            router.load.holds(queued);
        }
        let mut packet = data(Protocol::Vcp, 0, before);
        router.leaves(Time(1_000_000_000), &mut packet);
        packet.told
    }

    #[test]
    fn the_code_is_of_what_came_and_what_waits() {
        let codes =
            [(0.5, 0), (0.77, 0), (0.8, 0), (0.97, 0), (1.0, 0), (1.5, 0)].map(|(part, queued)| Code::read(told(part, queued, 0.0)));
        use Code::{High, Low, Over};
        assert_eq!(codes, [Low, Low, High, High, Over, Over].map(Some));
        // Half of 60 kB is a tenth of what 200 ms carry.
        assert_eq!(Code::read(told(0.75, 60_000, 0.0)), Some(High));
    }

    #[test]
    fn a_code_is_only_raised() {
        assert_eq!([1.0, 2.0, 3.0].map(|before| told(0.9, 0, before)), [2.0, 2.0, 3.0]);
    }
}
