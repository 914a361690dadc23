//! The congestion states, and how the window is reduced and restored in them
//! (tcp_fastretrans_alert, RFC 6937, RFC 3522).

use super::{
    ack_summary::{AckSummary, Retransmit},
    segment::{EVER_RETRANS, LOST, RETRANS},
    state::{CaState, TcpSender},
};
use crate::network::SimNetwork;
use control::{Event, EventKind};

impl TcpSender {
    /// Changes the congestion state; tells the controller when a recovery ends, or when the timer
    /// has expired if it wants rate samples.
    pub(super) fn set_ca_state(&mut self, ca_state: CaState, net: &mut SimNetwork) {
        if ca_state < CaState::Cwr && self.ca_state >= CaState::Cwr && !self.owns_window {
            self.notify_controller(Event { kind: EventKind::Recovered, ..Event::default() }, net);
        }
        if ca_state == CaState::Loss && self.rate.is_some() {
            self.notify_controller(Event { kind: EventKind::Timeout, ..Event::default() }, net);
        }
        self.ca_state = ca_state;
    }

    /// Runs the congestion states for an acknowledgement that signals trouble
    /// (tcp_fastretrans_alert).
    pub(super) fn fast_retransmit_alert(&mut self, summary: &mut AckSummary, net: &mut SimNetwork) -> Retransmit {
        if summary.ece {
            self.prior_ssthresh = 0;
        }
        if self.ca_state == CaState::Open {
            self.first_retransmit_ns = 0;
        } else if self.snd_una >= self.high_seq {
            match self.ca_state {
                // Stay in CWR until something beyond `high_seq` is acknowledged, so that the CWR
                // flag is known to have arrived.
                CaState::Cwr if self.snd_una != self.high_seq => {
                    self.end_cwnd_reduction();
                    self.set_ca_state(CaState::Open, net);
                }
                CaState::Recovery => {
                    self.try_undo_recovery(summary, net);
                }
                _ => {}
            }
        }
        match self.ca_state {
            CaState::Recovery => {
                if summary.advanced && self.try_undo_partial(summary, net) {
                    return Retransmit::Nothing;
                }
                if self.try_undo_dsack(net) {
                    self.try_to_open(summary, net);
                }
                self.identify_losses(summary, net);
                if self.ca_state != CaState::Recovery {
                    return self.repair_losses(summary, net);
                }
            }
            CaState::Loss => {
                let retransmit = self.process_loss(summary, net);
                self.identify_losses(summary, net);
                if !(self.ca_state == CaState::Open || summary.lost_retransmission) {
                    return retransmit;
                }
                return self.try_enter_recovery(summary, net);
            }
            _ => {
                if self.ca_state <= CaState::Disorder {
                    self.try_undo_dsack(net);
                }
                self.identify_losses(summary, net);
                return self.try_enter_recovery(summary, net);
            }
        }
        Retransmit::LostSegments
    }

    /// Enters recovery if a segment is lost; otherwise tries to return to Open.
    fn try_enter_recovery(&mut self, summary: &AckSummary, net: &mut SimNetwork) -> Retransmit {
        if self.lost_out == 0 {
            self.try_to_open(summary, net);
            return Retransmit::Nothing;
        }
        if self.lost_by_corruption && self.ca_state <= CaState::Disorder {
            self.try_to_open(summary, net);
        }
        self.repair_losses(summary, net)
    }

    /// Retransmits what is lost, if anything is. The window is reduced unless an agent has given
    /// notice that the loss is due to corruption.
    fn repair_losses(&mut self, summary: &AckSummary, net: &mut SimNetwork) -> Retransmit {
        if self.lost_out == 0 {
            return Retransmit::Nothing;
        }
        if !self.lost_by_corruption {
            self.enter_recovery(summary.ece, net);
        }
        Retransmit::LostSegments
    }

    /// Begins to reduce the window (tcp_init_cwnd_reduction).
    pub(super) fn init_cwnd_reduction(&mut self, net: &mut SimNetwork) {
        self.high_seq = self.snd_nxt;
        self.tlp_high_seq = None;
        self.flow.prior_cwnd = self.flow.cwnd;
        self.prr_delivered = 0;
        self.prr_out = 0;
        self.query_ssthresh(net);
        self.send_cwr = true;
    }

    /// Asks the controller for the slow start threshold.
    pub(super) fn query_ssthresh(&mut self, net: &mut SimNetwork) {
        // Without a lost segment, an ECN echo alone began the reduction.
        let flags = if self.lost_out > 0 || self.owns_window { 0 } else { control::ECN_ECHO };
        (_, self.flow.ssthresh) = self.notify_controller(Event { kind: EventKind::Loss, flags, ..Event::default() }, net);
    }

    /// Remembers the state that is needed to undo the reduction if it turns out to be spurious
    /// (tcp_init_undo).
    pub(super) fn init_undo(&mut self) {
        self.undo_marker = Some(self.snd_una);
        let probe = u32::from(self.tlp_high_seq.is_some() && self.tlp_retransmitted);
        let retransmitted = i64::from(self.retrans_out + probe);
        self.undo_retrans = if retransmitted > 0 { retransmitted } else { -1 };
    }

    /// Enters recovery after a loss (tcp_enter_recovery).
    pub(super) fn enter_recovery(&mut self, ece: bool, net: &mut SimNetwork) {
        self.prior_ssthresh = 0;
        self.init_undo();
        if !self.in_cwnd_reduction() {
            if !ece {
                self.prior_ssthresh = self.current_ssthresh();
            }
            self.init_cwnd_reduction(net);
        }
        self.set_ca_state(CaState::Recovery, net);
    }

    /// Enters CWR after an ECN echo (tcp_enter_cwr).
    fn enter_cwr(&mut self, net: &mut SimNetwork) {
        self.prior_ssthresh = 0;
        if self.ca_state < CaState::Cwr {
            self.undo_marker = None;
            self.init_cwnd_reduction(net);
            self.set_ca_state(CaState::Cwr, net);
        }
    }

    /// Reduces the window in proportion to what is delivered (tcp_cwnd_reduction, RFC 6937).
    pub(super) fn cwnd_reduction(&mut self, delivered: u32, lost: u32, summary: &AckSummary) {
        if delivered == 0 || self.flow.prior_cwnd == 0 {
            return;
        }
        let in_flight = i64::from(self.in_flight());
        let ssthresh = i64::from(self.flow.ssthresh);
        let prior_cwnd = i64::from(self.flow.prior_cwnd);
        self.prr_delivered += delivered;
        let prr_delivered = i64::from(self.prr_delivered);
        let prr_out = i64::from(self.prr_out);
        let mut sendable = if in_flight > ssthresh {
            (ssthresh * prr_delivered + prior_cwnd - 1) / prior_cwnd - prr_out
        } else {
            // Slow start while nothing more is lost.
            let growth = i64::from(summary.advanced && lost == 0);
            ((prr_delivered - prr_out).max(delivered.into()) + growth).min(ssthresh - in_flight)
        };
        // The first retransmission is sent without delay.
        sendable = sendable.max(i64::from(prr_out == 0));
        self.flow.cwnd = (in_flight + sendable).clamp(1, control::INFINITE.into()) as u32;
    }

    /// Ends the reduction with the window at the threshold (tcp_end_cwnd_reduction).
    pub(super) fn end_cwnd_reduction(&mut self) {
        let is_final = self.ca_state == CaState::Cwr || self.undo_marker.is_some();
        if !self.owns_window && self.flow.ssthresh < control::INFINITE && is_final {
            self.flow.cwnd = self.flow.ssthresh.max(1);
        }
    }

    /// Returns to Open, or to Disorder while data is out of order (tcp_try_keep_open).
    pub(super) fn try_keep_open(&mut self, net: &mut SimNetwork) {
        let is_disordered = self.sacked_out + self.lost_out > 0 || self.any_retransmission_out();
        let ca_state = if is_disordered { CaState::Disorder } else { CaState::Open };
        if self.ca_state != ca_state {
            self.set_ca_state(ca_state, net);
            self.high_seq = self.snd_nxt;
        }
    }

    fn try_to_open(&mut self, summary: &AckSummary, net: &mut SimNetwork) {
        if !self.any_retransmission_out() {
            self.first_retransmit_ns = 0;
        }
        if summary.ece {
            self.enter_cwr(net);
        }
        if self.ca_state != CaState::Cwr {
            self.try_keep_open(net);
        }
    }

    /// Whether a retransmission may still be in flight (tcp_any_retrans_done).
    fn any_retransmission_out(&self) -> bool {
        self.retrans_out > 0 || self.segments.front().is_some_and(|head| head.has(EVER_RETRANS))
    }

    /// Whether the acknowledged data is from the original transmission, so that its retransmission
    /// was spurious (tcp_packet_delayed; RFC 3522).
    fn packet_delayed(&self, summary: &AckSummary) -> bool {
        if self.first_retransmit_ns > 0 {
            summary.echo_ns > 0 && summary.echo_ns < self.first_retransmit_ns
        } else {
            !self.any_retransmission_out()
        }
    }

    fn may_undo(&self, summary: &AckSummary) -> bool {
        self.undo_marker.is_some() && (self.undo_retrans == 0 || self.packet_delayed(summary))
    }

    /// Undoes the window reduction (tcp_undo_cwnd_reduction). With `unmark_losses` no segment
    /// counts as lost any more.
    fn undo_cwnd_reduction(&mut self, unmark_losses: bool, net: &mut SimNetwork) {
        if unmark_losses {
            for segment in &mut self.segments {
                segment.flags &= !LOST;
            }
            self.lost_out = 0;
            self.retransmit_queue.clear();
        }
        if self.prior_ssthresh > 0 {
            if self.owns_window && self.rate.is_none() {
                self.flow.cwnd = self.flow.cwnd.max(self.flow.prior_cwnd);
            } else {
                (self.flow.cwnd, _) = self.notify_controller(Event { kind: EventKind::Undo, ..Event::default() }, net);
            }
            if self.prior_ssthresh > self.flow.ssthresh {
                self.flow.ssthresh = self.prior_ssthresh;
                self.send_cwr = false;
            }
        }
        self.counters.undone += 1;
        self.cwnd_stamp_ns = net.now;
        self.undo_marker = None;
        self.rack.rescan();
    }

    /// Everything that was sent before recovery began is acknowledged (tcp_try_undo_recovery).
    fn try_undo_recovery(&mut self, summary: &AckSummary, net: &mut SimNetwork) {
        if self.may_undo(summary) {
            self.undo_cwnd_reduction(false, net);
        }
        self.end_cwnd_reduction();
        self.set_ca_state(CaState::Open, net);
    }

    /// A part of it is acknowledged (tcp_try_undo_partial). Returns true if nothing is to be
    /// retransmitted for now.
    fn try_undo_partial(&mut self, summary: &AckSummary, net: &mut SimNetwork) -> bool {
        if self.undo_marker.is_none() || !self.packet_delayed(summary) {
            return false;
        }
        self.note_reordering(summary.prior_snd_una, self.highest_sacked);
        // While retransmissions are in flight, the next acknowledgements will tell.
        if self.retrans_out > 0 {
            return true;
        }
        if !self.any_retransmission_out() {
            self.first_retransmit_ns = 0;
        }
        self.undo_cwnd_reduction(true, net);
        self.try_keep_open(net);
        false
    }

    /// Undoes the reduction if DSACKs have reported every retransmission as spurious
    /// (tcp_try_undo_dsack).
    fn try_undo_dsack(&mut self, net: &mut SimNetwork) -> bool {
        if self.undo_marker.is_none() || self.undo_retrans != 0 {
            return false;
        }
        self.undo_cwnd_reduction(false, net);
        true
    }

    /// Undoes the reduction if the timeout was spurious, which is certain if `is_certain`
    /// (tcp_try_undo_loss).
    fn try_undo_loss(&mut self, is_certain: bool, summary: &AckSummary, net: &mut SimNetwork) -> bool {
        if !is_certain && !self.may_undo(summary) {
            return false;
        }
        self.undo_cwnd_reduction(true, net);
        self.consecutive_timeouts = 0;
        self.set_ca_state(CaState::Open, net);
        true
    }

    /// Processes an acknowledgement in the state Loss (tcp_process_loss). F-RTO (RFC 5682) uses
    /// only what SACK reveals.
    fn process_loss(&mut self, summary: &AckSummary, net: &mut SimNetwork) -> Retransmit {
        if summary.advanced && self.try_undo_loss(false, summary, net) {
            return Retransmit::Nothing;
        }
        if self.frto {
            if summary.delivered_original && self.try_undo_loss(true, summary, net) {
                return Retransmit::Nothing;
            }
            self.frto = false;
        }
        if self.snd_una >= self.high_seq {
            self.recover_from_loss(summary, net);
            return Retransmit::Nothing;
        }
        Retransmit::LostSegments
    }

    fn recover_from_loss(&mut self, summary: &AckSummary, net: &mut SimNetwork) {
        if self.may_undo(summary) {
            self.undo_cwnd_reduction(false, net);
        }
        self.set_ca_state(CaState::Open, net);
    }

    /// Marks a segment, or its retransmission, lost (tcp_mark_skb_lost).
    pub(super) fn mark_lost(&mut self, index: usize) {
        let number = self.acked_segments + index as u64;
        let segment = &mut self.segments[index];
        if segment.has(LOST) {
            if !segment.has(RETRANS) {
                return;
            }
            segment.flags &= !RETRANS;
            self.retrans_out -= 1;
        } else {
            segment.flags |= LOST;
            self.lost_out += 1;
        }
        self.lost += 1;
        self.lost_by_corruption &= segment.end() <= self.passed_agent;
        // Usually losses are found in order.
        match self.retransmit_queue.back() {
            Some(back) if *back >= number => {
                let at = self.retransmit_queue.partition_point(|other| *other < number);
                if self.retransmit_queue.get(at) != Some(&number) {
                    self.retransmit_queue.insert(at, number);
                }
            }
            _ => self.retransmit_queue.push_back(number),
        }
    }
}
