//! Recovery without selective acknowledgements, as RFC 6582 has it: three duplicates, a window that each further one inflates, and partial
//! acknowledgements that send the next hole again, of which the first alone starts the timer anew (§4: the impatient variant). The two
//! duplicates before let a new segment go each (RFC 3042). For comparisons with simulators that have it; Linux does otherwise.

use super::{
    Pending, Phase, Sender,
    ack::{News, Resend},
};
use crate::{net::Net, packet::Packet};
use control::Event;

/// Duplicates that tell of a loss (RFC 5681 §3.2).
const DUPLICATES: u32 = 3;

impl Sender {
    /// What an acknowledgement does to the states; growth is left to `control_window`.
    pub(super) fn newreno_ack(&mut self, packet: &Packet, news: &mut News, net: &mut Net) -> Resend {
        if news.advanced {
            self.duplicates = 0;
            self.newreno_advance(news, net)
        } else if !news.window && packet.amount == self.snd_wnd && !self.segments.is_empty() {
            self.newreno_duplicate(net)
        } else {
            Resend::Nothing
        }
    }

    fn newreno_advance(&mut self, news: &mut News, net: &mut Net) -> Resend {
        match self.phase {
            Phase::Recovery if self.una >= self.high => {
                // Full (RFC 6582 §3.2, step 3): no burst is let go.
                let flight = self.packets_out().max(1) + 1;
                self.flow.cwnd = self.flow.ssthresh.min(flight).max(1);
                self.is_impatient = false;
                self.enter(Phase::Open, net);
                Resend::Nothing
            }
            Phase::Recovery => {
                // Partial: the next hole, and the window less what was acknowledged.
                let acked = ((self.una - news.prior_una) / u64::from(self.settings.mss)).max(1) as u32;
                self.flow.cwnd = self.flow.cwnd.saturating_sub(acked).max(1) + 1;
                news.restart_timer &= !self.is_impatient;
                self.resend_first(net);
                self.is_impatient = true;
                Resend::Nothing
            }
            Phase::Loss => {
                if self.una >= self.high {
                    self.enter(Phase::Open, net);
                }
                Resend::Lost
            }
            _ => Resend::Nothing,
        }
    }

    fn newreno_duplicate(&mut self, net: &mut Net) -> Resend {
        self.duplicates += 1;
        match self.phase {
            Phase::Recovery => {
                self.flow.cwnd += 1;
                Resend::Nothing
            }
            // Not again for the same flight (RFC 6582 §3.2, step 1).
            Phase::Loss => Resend::Nothing,
            _ if self.duplicates < DUPLICATES => {
                self.write_out(net, true);
                Resend::Nothing
            }
            _ if self.duplicates == DUPLICATES && (self.una > self.high || self.high == 0) => {
                self.high = self.nxt;
                self.is_impatient = false;
                self.flow.prior_cwnd = self.flow.cwnd;
                (_, self.flow.ssthresh) = self.tell(Event { kind: control::EventKind::Loss, ..Event::default() }, net);
                self.enter(Phase::Recovery, net);
                self.flow.cwnd = self.flow.ssthresh + DUPLICATES;
                self.resend_first(net);
                Resend::Nothing
            }
            _ => Resend::Nothing,
        }
    }

    /// Sends the first segment that is not acknowledged again, whatever the window says (RFC 5681 §3.2, steps 3 and 4): what is in flight
    /// beyond the window that was just halved must not keep it back.
    fn resend_first(&mut self, net: &mut Net) {
        self.mark_lost(0);
        if self.again.front() == Some(&self.base) {
            self.again.pop_front();
        }
        self.retransmit(0, net);
        if !self.is_impatient {
            self.arm(Pending::Rto, self.rtt.rto(), net);
        }
    }
}
