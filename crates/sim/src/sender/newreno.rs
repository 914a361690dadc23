//! Recovery without selective acknowledgements (NewReno, RFC 6582): three duplicate
//! acknowledgements start it, each further one inflates the window, and a partial acknowledgement
//! retransmits the next hole. Only the first partial acknowledgement restarts the timer (RFC 6582
//! §3.2, step 3; the impatient variant of RFC 3782 §4). Each of the two duplicates before lets one
//! new segment go (limited transmit, RFC 3042). For comparison with simulators that do the same;
//! Linux does not.

use super::{
    ack_summary::{AckSummary, Retransmit},
    state::{CaState, PendingTimer, TcpSender},
};
use crate::{network::SimNetwork, packet::SimPacket};
use control::{Event, EventKind};

/// Duplicate acknowledgements that signal a loss (RFC 5681 §3.2).
const DUPLICATE_THRESHOLD: u32 = 3;

impl TcpSender {
    /// Updates the congestion state after an acknowledgement. Growth of the window is left to
    /// `update_cwnd`.
    pub(super) fn newreno_ack(&mut self, packet: &SimPacket, summary: &mut AckSummary, net: &mut SimNetwork) -> Retransmit {
        if summary.advanced {
            self.duplicate_acks = 0;
            self.newreno_advance(summary, net)
        } else if !summary.window_changed && packet.len_or_window == self.snd_wnd && !self.segments.is_empty() {
            self.newreno_duplicate(net)
        } else {
            Retransmit::Nothing
        }
    }

    fn newreno_advance(&mut self, summary: &mut AckSummary, net: &mut SimNetwork) -> Retransmit {
        match self.ca_state {
            CaState::Recovery if self.snd_una >= self.high_seq => {
                // Full acknowledgement (RFC 6582 §3.2, step 3): leave recovery without a burst.
                let flight = self.packets_out().max(1) + 1;
                self.flow.cwnd = self.kept_cwnd.take().unwrap_or(self.flow.ssthresh.min(flight)).max(1);
                self.had_partial_ack = false;
                self.set_ca_state(CaState::Open, net);
                Retransmit::Nothing
            }
            CaState::Recovery => {
                // Partial acknowledgement: deflate the window by what was acknowledged and
                // retransmit the next hole.
                let acked = ((self.snd_una - summary.prior_snd_una) / u64::from(self.settings.mss)).max(1) as u32;
                self.flow.cwnd = self.flow.cwnd.saturating_sub(acked).max(1) + 1;
                summary.restart_timer &= !self.had_partial_ack;
                self.retransmit_first(net);
                self.had_partial_ack = true;
                Retransmit::Nothing
            }
            CaState::Loss => {
                if self.snd_una >= self.high_seq {
                    self.set_ca_state(CaState::Open, net);
                }
                Retransmit::LostSegments
            }
            _ => Retransmit::Nothing,
        }
    }

    fn newreno_duplicate(&mut self, net: &mut SimNetwork) -> Retransmit {
        self.duplicate_acks += 1;
        match self.ca_state {
            CaState::Recovery => {
                self.flow.cwnd += 1;
                Retransmit::Nothing
            }
            // No second fast retransmit for the same flight (RFC 6582 §3.2, step 2).
            CaState::Loss => Retransmit::Nothing,
            _ if self.duplicate_acks < DUPLICATE_THRESHOLD => {
                self.write_xmit(net, true);
                Retransmit::Nothing
            }
            _ if self.duplicate_acks == DUPLICATE_THRESHOLD && (self.snd_una > self.high_seq || self.high_seq == 0) => {
                self.high_seq = self.snd_nxt;
                self.had_partial_ack = false;
                self.flow.prior_cwnd = self.flow.cwnd;
                if self.segments.front().is_some_and(|head| head.end() <= self.passed_agent) {
                    self.kept_cwnd = Some(self.flow.cwnd);
                } else {
                    (_, self.flow.ssthresh) = self.notify_controller(Event { kind: EventKind::Loss, ..Event::default() }, net);
                    self.flow.cwnd = self.flow.ssthresh;
                }
                self.set_ca_state(CaState::Recovery, net);
                self.flow.cwnd += DUPLICATE_THRESHOLD;
                self.retransmit_first(net);
                Retransmit::Nothing
            }
            _ => Retransmit::Nothing,
        }
    }

    /// Retransmits the first unacknowledged segment, whatever the window says (RFC 5681 §3.2, step
    /// 3): what is in flight beyond the window that was just halved must not delay it.
    fn retransmit_first(&mut self, net: &mut SimNetwork) {
        self.mark_lost(0);
        if self.retransmit_queue.front() == Some(&self.acked_segments) {
            self.retransmit_queue.pop_front();
        }
        self.retransmit(0, net);
        if !self.had_partial_ack {
            self.arm_timer(PendingTimer::Rto, self.rtt.rto_us(), net);
        }
    }
}
