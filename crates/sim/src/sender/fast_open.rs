//! Sending before the handshake is complete (TCP Fast Open, RFC 7413): in the SYN, or after a
//! SYN-ACK.

use super::state::TcpSender;
use crate::{network::SimNetwork, packet::SYN_PAYLOAD_REDUCTION};

impl TcpSender {
    /// Begins to send after a SYN with a cookie (RFC 7413 §4.2.2): there is no RTT sample yet, and
    /// the window is that of the SYN, bytes.
    pub(crate) fn establish_early(&mut self, window: u32, net: &mut SimNetwork) {
        self.establish(0, window, self.settings.initial_window, net);
        self.early_handshake_pending = true;
    }

    /// The handshake is complete; `rtt_us` is its RTT, 0 if it was not measured.
    pub(crate) fn finish_early_handshake(&mut self, rtt_us: u32, net: &mut SimNetwork) {
        self.early_handshake_pending = false;
        self.timer.stop();
        if rtt_us > 0 {
            self.rtt.sample_min(rtt_us, net.now_us());
            self.rtt.sample(rtt_us, 0, 0);
        }
        if !self.segments.is_empty() {
            self.set_xmit_timer(net);
        }
    }

    /// The payload of a SYN with a cookie in bytes, and whether it is the whole stream.
    pub(crate) fn syn_payload(&self) -> (u32, bool) {
        let len = self.write_end.min(self.settings.mss.saturating_sub(SYN_PAYLOAD_REDUCTION).into());
        (len as u32, len > 0 && self.fin_written && len == self.write_end)
    }

    /// The SYN-ACK acknowledges `accepted` bytes of the SYN, which was sent at `sent_ns`.
    pub(crate) fn account_syn_data(&mut self, accepted: u64, sent_ns: u64) {
        if accepted > 0 {
            self.snd_una = accepted;
            self.snd_nxt = accepted;
            self.flow.sent += accepted;
            self.segments_sent += 1;
            self.last_sent_ns = sent_ns;
            self.counters.max_unreleased = accepted;
        }
    }
}
