//! Sending before the handshake is over (TCP Fast Open, RFC 7413): with the SYN, or behind the answer to one.

use super::state::Sender;
use crate::{network::Net, packet::SYN_PAYLOAD_LESS};

impl Sender {
    /// A SYN with the cookie of Fast Open lets it begin before the handshake is over (RFC 7413 §4.2.2): it knows no round trip yet, and the
    /// window that the SYN told.
    pub(crate) fn establish_early(&mut self, window: u32, net: &mut Net) {
        self.establish(0, window, self.settings.initial_window, net);
        self.is_early = true;
    }

    /// That handshake is over.
    pub(crate) fn end_handshake(&mut self, rtt_us: u32, net: &mut Net) {
        self.is_early = false;
        self.timer.stop();
        if rtt_us > 0 {
            self.rtt.sample_least(rtt_us, net.now_us());
            self.rtt.sample(rtt_us, 0, 0);
        }
        if !self.segments.is_empty() {
            self.set_timer(net);
        }
    }

    /// What a SYN with the cookie carries, and whether that is all there will be.
    pub(crate) fn syn_payload(&self) -> (u32, bool) {
        let len = self.end.min(self.settings.mss.saturating_sub(SYN_PAYLOAD_LESS).into());
        (len as u32, len > 0 && self.last && len == self.end)
    }

    /// The SYN-ACK says that so many bytes came with the SYN, which was sent at `sent`, ns.
    pub(crate) fn begin_after(&mut self, taken: u64, sent: u64) {
        if taken > 0 {
            (self.una, self.nxt) = (taken, taken);
            self.flow.sent += taken;
            self.segments_sent += 1;
            self.last_sent = sent;
            self.tally.kept = taken;
        }
    }
}
