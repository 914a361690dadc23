//! Delivery past a proxy that acknowledges end to end (Semi-Split TCP, `semi` mode).
//!
//! The sender's window and RTT follow the proxy's own acknowledgements. Sent data is kept in the
//! send buffer until a receipt says that the far end has it, so the send buffer covers the proxy's
//! buffer too. The last receipt tells the application that everything was delivered. Receipts are
//! packets and may be lost: a sender that waits for nothing else requests one, as it probes a
//! closed window.

use super::state::{PendingTimer, TcpSender};
use crate::{network::SimNetwork, rtt::RTO_MAX_US};

impl TcpSender {
    /// The byte up to which the send buffer is freed: what is acknowledged, or delivered according
    /// to receipts.
    pub(crate) fn released_up_to(&self) -> u64 {
        if self.config.end_to_end_acks { self.receipt } else { self.snd_una }
    }

    /// Whether the application knows that the whole stream was delivered.
    pub(crate) fn all_delivered(&self) -> bool {
        self.fin_written && self.released_up_to() == self.write_end
    }

    /// A receipt has arrived: the far end has everything up to `delivered`.
    pub(crate) fn on_receipt(&mut self, delivered: u64, net: &mut SimNetwork) {
        if !self.config.end_to_end_acks || delivered <= self.receipt || delivered > self.snd_nxt {
            return;
        }
        self.receipt = delivered;
        self.receipt_requests = 0;
        if self.pending == PendingTimer::ReceiptRequest {
            self.disarm_timer();
        }
        self.push(net);
        self.arm_receipt_timer(net);
    }

    /// Sets the timer for a receipt request if everything is acknowledged and not everything is
    /// confirmed.
    pub(crate) fn arm_receipt_timer(&mut self, net: &mut SimNetwork) {
        if self.config.end_to_end_acks && self.segments.is_empty() && self.receipt < self.snd_una && self.pending == PendingTimer::Idle {
            // The interval doubles with each request without a new receipt.
            let after = (self.rtt.rto_us() << self.receipt_requests.min(8)).min(RTO_MAX_US);
            self.arm_timer(PendingTimer::ReceiptRequest, after, net);
        }
    }

    /// Requests a receipt, because none has arrived in time.
    pub(super) fn request_receipt(&mut self, net: &mut SimNetwork) {
        if self.segments.is_empty() && self.receipt < self.snd_una {
            self.send_probe_packet(net);
            self.receipt_requests += 1;
            self.arm_receipt_timer(net);
        }
    }
}
