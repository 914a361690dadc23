//! Router feedback at a receiver: collected from data packets until the next acknowledgement
//! returns it to the sender.
//!
//! Each acknowledgement covers all packets since the one before, including duplicates and those
//! whose acknowledgement was delayed. XCP's changes of rate add up. Of VCP's codes the highest
//! counts. MPCP's load levels are reassembled from the packets of a group, and the newest complete
//! level is returned until another is complete.

use crate::packet::{CongestionHeader, RouterProtocol, SimPacket};

/// Feedback that has not been returned to the sender yet.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RouterFeedback {
    /// As in the next acknowledgement.
    value: f64,
    /// MPCP: number of the group that is being reassembled.
    group: u32,
    /// The parts of the group that have arrived, as a bit mask.
    parts: u32,
    /// The bits of these parts.
    bits: u32,
    /// `value` is a state rather than a sum, and is returned with every acknowledgement.
    is_level: bool,
}

impl RouterFeedback {
    /// Takes the feedback of an arriving data packet.
    #[inline]
    pub(crate) fn add(&mut self, packet: &SimPacket) {
        let Some(header) = packet.congestion_header() else { return };
        let feedback = packet.feedback;
        match header.protocol {
            RouterProtocol::Xcp => self.value += f64::from(feedback),
            RouterProtocol::Vcp => self.value = self.value.max(feedback.into()),
            RouterProtocol::Mpcp(packets) => self.add_mpcp_part(header, packets, feedback as u32),
        }
    }

    /// Takes one part of a load level.
    fn add_mpcp_part(&mut self, header: CongestionHeader, packets: u32, bits: u32) {
        let (group, part) = (header.number / packets, header.number % packets);
        if group != self.group {
            // Parts of an older group are late and ignored. A newer group replaces the current one.
            if group < self.group {
                return;
            }
            self.group = group;
            self.parts = 0;
            self.bits = 0;
        }
        self.parts |= 1 << part;
        self.bits |= bits << (2 * (packets - 1 - part));
        if self.parts == (1 << packets) - 1 {
            self.value = f64::from(self.bits + 1);
            self.is_level = true;
        }
    }

    /// The feedback for the next acknowledgement.
    pub(crate) fn take(&mut self) -> f32 {
        let value = self.value;
        if !self.is_level {
            self.value = 0.0;
        }
        value as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::router::test_packet::data;

    #[test]
    fn xcp_feedback_adds_up_and_the_highest_vcp_code_counts() {
        let mut feedback = RouterFeedback::default();
        for change in [100.0, -30.0, 5.0] {
            feedback.add(&data(RouterProtocol::Xcp, 0, change));
        }
        assert_eq!((feedback.take(), feedback.take()), (75.0, 0.0));
        for code in [1.0, 3.0, 2.0] {
            feedback.add(&data(RouterProtocol::Vcp, 0, code));
        }
        assert_eq!((feedback.take(), feedback.take()), (3.0, 0.0));
    }

    #[test]
    fn a_level_is_returned_when_it_is_complete() {
        let mut feedback = RouterFeedback::default();
        let mut observe = |number: u32, bits: u32| {
            feedback.add(&data(RouterProtocol::Mpcp(3), number, bits as f32));
            feedback.take()
        };
        // 01 10 11: level 27, returned as 28 from then on.
        assert_eq!([observe(0, 1), observe(1, 2), observe(2, 3), observe(3, 0)], [0.0, 0.0, 28.0, 28.0]);
        // A part of group 1 is lost. Group 2 arrives reordered, and a late part of group 1 changes
        // nothing.
        assert_eq!([observe(4, 0), observe(8, 1), observe(6, 0), observe(5, 3), observe(7, 0)], [28.0, 28.0, 28.0, 28.0, 2.0]);
    }
}
