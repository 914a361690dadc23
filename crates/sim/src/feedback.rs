//! What a receiver does with what routers told it: it gathers that until its next acknowledgement takes it back to the sender.
//!
//! Each acknowledgement answers for all packets since the one before, held back or not, those that came twice too. XCP's changes of rate add up;
//! of VCP's codes the highest counts; MPCP's levels are put together from the parts of a group, and the newest one that is whole is told until
//! there is another.

use crate::packet::{Header, Packet, Protocol};

/// What was told, and not yet passed on.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Heard {
    /// As it stands in an acknowledgement.
    word: f64,
    /// MPCP: the group that is being put together, the parts of it that are there, and their bits.
    group: u32,
    parts: u32,
    bits: u32,
    /// The word is of a state, and goes with every acknowledgement.
    stays: bool,
}

impl Heard {
    /// A data packet has come.
    pub(crate) fn note(&mut self, packet: &Packet) {
        let Some(header) = packet.header() else { return };
        let told = packet.told;
        match header.protocol {
            Protocol::Xcp => self.word += f64::from(told),
            Protocol::Vcp => self.word = self.word.max(told.into()),
            Protocol::Mpcp(packets) => self.put_together(header, packets, told as u32),
        }
    }

    /// A part of a level.
    fn put_together(&mut self, header: Header, packets: u32, bits: u32) {
        let (group, part) = (header.number / packets, header.number % packets);
        if group != self.group {
            // One that was overtaken by the next is given up.
            if group < self.group {
                return;
            }
            (self.group, self.parts, self.bits) = (group, 0, 0);
        }
        self.parts |= 1 << part;
        self.bits |= bits << (2 * (packets - 1 - part));
        if self.parts == (1 << packets) - 1 {
            self.word = f64::from(self.bits + 1);
            self.stays = true;
        }
    }

    /// What the next acknowledgement says.
    pub(crate) fn take(&mut self) -> f32 {
        let word = self.word;
        if !self.stays {
            self.word = 0.0;
        }
        word as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::router::test_packet::data;

    #[test]
    fn changes_add_up_and_codes_do_not() {
        let mut heard = Heard::default();
        for told in [100.0, -30.0, 5.0] {
            heard.note(&data(Protocol::Xcp, 0, told));
        }
        assert_eq!((heard.take(), heard.take()), (75.0, 0.0));
        for told in [1.0, 3.0, 2.0] {
            heard.note(&data(Protocol::Vcp, 0, told));
        }
        assert_eq!((heard.take(), heard.take()), (3.0, 0.0));
    }

    #[test]
    fn a_level_counts_when_it_is_whole() {
        let mut heard = Heard::default();
        let mut hear = |number: u32, bits: u32| {
            heard.note(&data(Protocol::Mpcp(3), number, bits as f32));
            heard.take()
        };
        // 01 10 11: level 27, told as 28 from then on.
        assert_eq!([hear(0, 1), hear(1, 2), hear(2, 3), hear(3, 0)], [0.0, 0.0, 28.0, 28.0]);
        // A part of group 1 is lost; group 2 comes in another order, and a late part of group 1 changes nothing.
        assert_eq!([hear(4, 0), hear(8, 1), hear(6, 0), hear(5, 3), hear(7, 0)], [28.0, 28.0, 28.0, 28.0, 2.0]);
    }
}
