//! What a sender knows of delivery beyond a proxy that acknowledges end to end (Semi-Split TCP).
//!
//! Its window and its round trips follow the proxy's own acknowledgements, as at any proxy. What it has sent it keeps until a receipt says that
//! the far end has it, so that the send buffer holds what the proxy does, too; and the last receipt is what tells its application that all
//! was delivered. Receipts are packets, and may be lost: a sender that has nothing else to wait for asks, as it asks for a closed window.

use super::state::{Pending, Sender};
use crate::{network::Net, rtt::RTO_MAX_US};

impl Sender {
    /// What it need not keep any more: what is acknowledged, or, past a proxy that tells so, delivered.
    pub(crate) fn forgotten(&self) -> u64 {
        if self.place.semi { self.receipt } else { self.una }
    }

    /// Whether its application knows that all was delivered.
    pub(crate) fn knows_all(&self) -> bool {
        self.last && self.forgotten() == self.end
    }

    /// The far end has all up to `delivered`.
    pub(crate) fn on_receipt(&mut self, delivered: u64, net: &mut Net) {
        if !self.place.semi || delivered <= self.receipt || delivered > self.nxt {
            return;
        }
        self.receipt = delivered;
        self.asked = 0;
        if self.pending == Pending::Receipt {
            self.disarm();
        }
        self.push(net);
        self.wait_for_receipt(net);
    }

    /// Sets the timer for a question, where all is acknowledged and not all delivered, as far as is known.
    pub(crate) fn wait_for_receipt(&mut self, net: &mut Net) {
        if self.place.semi && self.segments.is_empty() && self.receipt < self.una && self.pending == Pending::Nothing {
            // Each question without news is asked twice as late as the one before.
            let after = (self.rtt.rto() << self.asked.min(8)).min(RTO_MAX_US);
            self.arm(Pending::Receipt, after, net);
        }
    }

    /// Nothing was heard for a while.
    pub(super) fn ask_for_receipt(&mut self, net: &mut Net) {
        if self.segments.is_empty() && self.receipt < self.una {
            self.send_question(net);
            self.asked += 1;
            self.wait_for_receipt(net);
        }
    }
}
