//! Loss detection: by time (RACK, RFC 8985 §6), by tail loss probes (RFC 8985 §7) and by the
//! retransmission timer (RFC 6298).

use super::{
    ack_summary::AckSummary,
    segment::{EVER_RETRANS, LOST, RETRANS, SACKED, SentSegment},
    state::{CaState, PendingTimer, TcpSender},
};
use crate::{
    network::SimNetwork,
    packet::{HEADER_BYTES, PacketKind, SimPacket},
    rtt::RTO_MIN_US,
};
use control::{Event, EventKind};

/// The shortest timer, µs (TCP_TIMEOUT_MIN: two ticks of 4 ms).
const TIMEOUT_MIN_US: u64 = 8000;
/// Delay of a tail loss probe before the first RTT sample, µs (TCP_TIMEOUT_INIT).
const PROBE_INIT_US: u64 = 1_000_000;
/// The initial degree of reordering, segments (tcp_reordering).
const REORDERING: u32 = 3;
/// The largest degree of reordering, segments (tcp_max_reordering).
const MAX_REORDERING: u64 = 300;

impl TcpSender {
    /// Updates RACK for a delivered segment (tcp_rack_advance).
    pub(super) fn rack_advance(&mut self, segment: &SentSegment, now: u64) {
        let rtt_us = ((now - segment.sent_ns) / 1000) as u32;
        // Too early for an acknowledgement of the retransmission.
        if rtt_us < self.rtt.min_us() && segment.has(RETRANS | EVER_RETRANS) {
            return;
        }
        let rack = &mut self.rack;
        rack.advanced = true;
        rack.rtt_us = rtt_us;
        if segment.sent_ns > rack.sent_ns || (segment.sent_ns == rack.sent_ns && segment.end() > rack.end) {
            rack.sent_ns = segment.sent_ns;
            rack.end = segment.end();
        }
    }

    /// Data from byte `from` on was delivered after byte `to` (tcp_check_sack_reordering).
    pub(super) fn note_reordering(&mut self, from: u64, to: u64) {
        if from >= to {
            return;
        }
        let segments = (to - from).div_ceil(self.settings.mss.into());
        if segments > self.reordering.into() {
            self.reordering = segments.min(MAX_REORDERING) as u32;
        }
        self.rack.reordering_seen = true;
    }

    /// The reordering window, µs (tcp_rack_reo_wnd).
    fn reordering_window(&self) -> u64 {
        if !self.rack.reordering_seen && (self.ca_state >= CaState::Recovery || self.sacked_out >= self.reordering) {
            return 0;
        }
        let steps = u64::from(self.rack.reo_wnd_steps.max(1));
        (u64::from(self.rtt.min_us() / 4) * steps).min(self.rtt.srtt_us().into())
    }

    /// Widens the reordering window after a DSACK, at most once a round trip
    /// (tcp_rack_update_reo_wnd). It never shrinks again; that Linux resets it after 16 recoveries
    /// is not modelled.
    fn adapt_reordering_window(&mut self) {
        if !self.rack.dsack_seen {
            return;
        }
        self.rack.dsack_seen = false;
        if self.delivered > self.rack.last_delivered {
            self.rack.reo_wnd_steps = (self.rack.reo_wnd_steps.max(1) + 1).min(255);
            self.rack.last_delivered = self.delivered + u64::from(self.packets_out());
        }
    }

    /// Looks for losses after an acknowledgement (tcp_identify_packet_loss).
    pub(super) fn identify_losses(&mut self, summary: &mut AckSummary, net: &mut SimNetwork) {
        self.adapt_reordering_window();
        if self.segments.is_empty() || !self.rack.advanced {
            return;
        }
        self.rack.advanced = false;
        let retrans_out_before = self.retrans_out;
        if let Some(wait) = self.detect_losses(net.now) {
            self.arm_timer(PendingTimer::Reordering, wait + TIMEOUT_MIN_US, net);
            summary.restart_timer = false;
        }
        summary.lost_retransmission |= self.retrans_out < retrans_out_before;
    }

    /// As [`rack_detect_losses`](Self::rack_detect_losses); also notes whether all of these losses
    /// are due to corruption.
    fn detect_losses(&mut self, now: u64) -> Option<u64> {
        let (lost_before, former) = (self.lost, self.lost_by_corruption);
        // `mark_lost` clears it.
        self.lost_by_corruption = true;
        let wait = self.rack_detect_losses(now);
        if self.lost == lost_before {
            self.lost_by_corruption = former;
        }
        wait
    }

    /// Marks segments that are lost by now; returns how long the next ones may still take, µs
    /// (tcp_rack_detect_loss).
    fn rack_detect_losses(&mut self, now: u64) -> Option<u64> {
        let window = self.reordering_window();
        let limit = u64::from(self.rack.rtt_us) + window;
        let is_overdue = |segment: &SentSegment| (now - segment.sent_ns) / 1000 >= limit;
        let mut is_waiting = false;
        self.rack.scanned = self.rack.scanned.max(self.acked_segments);
        while let Some(segment) = self.segments.get((self.rack.scanned - self.acked_segments) as usize) {
            if !segment.has(SACKED | LOST | EVER_RETRANS) {
                if !self.rack.sent_after(segment) {
                    break;
                }
                if !is_overdue(segment) {
                    is_waiting = true;
                    break;
                }
                self.mark_lost((self.rack.scanned - self.acked_segments) as usize);
            }
            self.rack.scanned += 1;
        }
        while let Some(&(number, sent)) = self.rack.retransmissions.front() {
            let index = number.wrapping_sub(self.acked_segments) as usize;
            // Skip segments that were delivered, or retransmitted once more.
            if let Some(segment) = self.segments.get(index).filter(|_| number >= self.acked_segments)
                && segment.sent_ns == sent
                && !segment.has(SACKED)
                && (!segment.has(LOST) || segment.has(RETRANS))
            {
                if !self.rack.sent_after(segment) {
                    break;
                }
                if !is_overdue(segment) {
                    is_waiting = true;
                    break;
                }
                self.mark_lost(index);
            }
            self.rack.retransmissions.pop_front();
        }
        // Every segment that is waited for was sent before the delivered one, so it is overdue by
        // the time that one would be.
        is_waiting.then(|| limit.saturating_sub((now - self.rack.sent_ns) / 1000))
    }

    /// Retransmits lost segments as far as the window permits (tcp_xmit_retransmit_queue).
    pub(super) fn retransmit_lost(&mut self, net: &mut SimNetwork) {
        while let Some(&number) = self.retransmit_queue.front() {
            let index = number.wrapping_sub(self.acked_segments) as usize;
            let is_lost = |segment: &&SentSegment| number >= self.acked_segments && segment.has(LOST) && !segment.has(SACKED | RETRANS);
            if self.segments.get(index).filter(is_lost).is_none() {
                self.retransmit_queue.pop_front();
                continue;
            }
            if self.in_flight() >= self.flow.cwnd || self.must_defer(net) {
                return;
            }
            self.retransmit_queue.pop_front();
            self.retransmit(index, net);
            if self.in_cwnd_reduction() {
                self.prr_out += 1;
            }
            if index == 0 && self.pending != PendingTimer::Reordering {
                self.arm_timer(PendingTimer::Rto, self.rtt.rto_us(), net);
            }
        }
    }

    /// Retransmits a segment (tcp_retransmit_skb).
    pub(super) fn retransmit(&mut self, index: usize, net: &mut SimNetwork) {
        self.resend_segment(index, net);
        let segment = &mut self.segments[index];
        if !segment.has(RETRANS) {
            segment.flags |= RETRANS;
            self.retrans_out += 1;
        }
        if self.first_retransmit_ns == 0 {
            self.first_retransmit_ns = net.now;
        }
        self.undo_retrans = self.undo_retrans.max(0) + 1;
    }

    /// Sends a segment of the scoreboard again, without marking it as a retransmission in flight.
    fn resend_segment(&mut self, index: usize, net: &mut SimNetwork) {
        let mut segment = self.segments[index];
        segment.sent_ns = net.now;
        segment.flags |= EVER_RETRANS;
        self.transmit(segment, net);
        self.segments[index] = segment;
        self.sample_sent(index, net.now);
        self.rack.retransmissions.push_back((self.acked_segments + index as u64, net.now));
        self.counters.retransmits += 1;
    }

    /// Restarts the timer after an acknowledgement (tcp_set_xmit_timer).
    pub(super) fn set_xmit_timer(&mut self, net: &mut SimNetwork) {
        if !self.schedule_loss_probe(true, net) {
            self.rearm_rto(net);
        }
    }

    /// Sets the retransmission timer (tcp_rearm_rto).
    pub(super) fn rearm_rto(&mut self, net: &mut SimNetwork) {
        if self.segments.is_empty() {
            self.disarm_timer();
            return;
        }
        let after = match self.pending {
            // The time since the head was sent counts.
            PendingTimer::Reordering | PendingTimer::LossProbe => self.until_rto(net).max(1),
            _ => self.rtt.rto_us(),
        };
        self.arm_timer(PendingTimer::Rto, after, net);
    }

    /// Time until the retransmission timer of the head expires, µs; 0 if it would have expired.
    fn until_rto(&self, net: &SimNetwork) -> u64 {
        let sent = self.segments.front().map_or(net.now, |head| head.sent_ns);
        (sent / 1000 + self.rtt.rto_us()).saturating_sub(net.now / 1000)
    }

    /// Sets the timer for a tail loss probe, if one is allowed in the current state; returns
    /// whether it was set (tcp_schedule_loss_probe).
    pub(super) fn schedule_loss_probe(&mut self, advancing: bool, net: &mut SimNetwork) -> bool {
        if self.segments.is_empty() || self.is_newreno() || !matches!(self.ca_state, CaState::Open | CaState::Cwr) {
            return false;
        }
        let mut after = match u64::from(self.rtt.srtt_us()) {
            0 => PROBE_INIT_US,
            // The acknowledgement of a single segment may be delayed.
            smoothed if self.packets_out() == 1 => 2 * smoothed + u64::from(RTO_MIN_US),
            smoothed => 2 * smoothed + TIMEOUT_MIN_US,
        };
        let until_rto = if advancing { self.rtt.rto_us() } else { self.until_rto(net) };
        if until_rto > 0 {
            after = after.min(until_rto);
        }
        self.arm_timer(PendingTimer::LossProbe, after, net);
        true
    }

    /// The timer has expired.
    pub(crate) fn on_timer(&mut self, net: &mut SimNetwork) {
        self.check_app_limited();
        match std::mem::replace(&mut self.pending, PendingTimer::Idle) {
            PendingTimer::Idle => {}
            PendingTimer::Rto => self.on_retransmission_timeout(net),
            PendingTimer::LossProbe => self.send_loss_probe(net),
            PendingTimer::Reordering => self.on_reordering_timeout(net),
            PendingTimer::WindowProbe => self.send_window_probe(net),
            PendingTimer::ReceiptRequest => self.request_receipt(net),
        }
    }

    /// The reordering window of a segment has passed (tcp_rack_reo_timeout).
    fn on_reordering_timeout(&mut self, net: &mut SimNetwork) {
        let in_flight = self.in_flight();
        let wait = self.detect_losses(net.now);
        if self.in_flight() != in_flight {
            if self.ca_state != CaState::Recovery && !self.lost_by_corruption {
                self.enter_recovery(false, net);
                if !self.owns_window {
                    self.cwnd_reduction(1, 0, &AckSummary::default());
                }
            }
            self.retransmit_lost(net);
        }
        match wait {
            Some(wait) => self.arm_timer(PendingTimer::Reordering, wait + TIMEOUT_MIN_US, net),
            None if self.pending != PendingTimer::Rto => {
                self.pending = PendingTimer::Reordering;
                self.rearm_rto(net);
            }
            None => {}
        }
    }

    /// Sends new data, or else the last segment again, so that an acknowledgement shows what is
    /// lost (tcp_send_loss_probe).
    fn send_loss_probe(&mut self, net: &mut SimNetwork) {
        self.pending = PendingTimer::LossProbe;
        if self.tlp_high_seq.is_none() && !self.segments.is_empty() {
            self.tlp_retransmitted = false;
            let mut sent = self.write_xmit(net, true) > 0;
            if !sent && self.snd_nxt == self.write_end {
                self.tlp_retransmitted = true;
                self.resend_segment(self.segments.len() - 1, net);
                sent = true;
            }
            if sent {
                self.counters.probes += 1;
                self.tlp_high_seq = Some(self.snd_nxt);
                self.pending = PendingTimer::Idle;
            }
        }
        self.rearm_rto(net);
    }

    /// Processes an acknowledgement while a tail loss probe is in flight (tcp_process_tlp_ack).
    pub(super) fn process_tlp_ack(&mut self, packet: &SimPacket, summary: &AckSummary, net: &mut SimNetwork) {
        let Some(high_seq) = self.tlp_high_seq.filter(|high_seq| packet.seq >= *high_seq) else { return };
        if !self.tlp_retransmitted || summary.has_dsack {
            // Nothing was lost.
            self.tlp_high_seq = None;
        } else if packet.seq > high_seq {
            // The probe repaired a loss, to which the window must react.
            self.init_cwnd_reduction(net);
            self.set_ca_state(CaState::Cwr, net);
            self.end_cwnd_reduction();
            self.try_keep_open(net);
        } else if !summary.advanced && !summary.window_changed && !summary.sacked {
            self.tlp_high_seq = None;
        }
    }

    /// The retransmission timer has expired (tcp_retransmit_timer).
    fn on_retransmission_timeout(&mut self, net: &mut SimNetwork) {
        if self.segments.is_empty() {
            return;
        }
        self.counters.timeouts += 1;
        self.enter_loss(net);
        self.consecutive_timeouts += 1;
        if self.retransmit_queue.front() == Some(&self.acked_segments) {
            self.retransmit_queue.pop_front();
        }
        self.retransmit(0, net);
        self.rtt.back_off();
        self.arm_timer(PendingTimer::Rto, self.rtt.rto_us(), net);
    }

    /// Enters the state Loss (tcp_enter_loss).
    fn enter_loss(&mut self, net: &mut SimNetwork) {
        self.mark_lost_on_timeout(net.now);
        let is_first = self.ca_state < CaState::Recovery;
        if self.ca_state <= CaState::Disorder
            || self.snd_una >= self.high_seq
            || self.kept_cwnd.is_some()
            || (self.ca_state == CaState::Loss && self.consecutive_timeouts == 0)
        {
            self.prior_ssthresh = self.current_ssthresh();
            self.flow.prior_cwnd = self.flow.cwnd;
            self.query_ssthresh(net);
            if !self.owns_window {
                (_, self.flow.ssthresh) = self.notify_controller(Event { kind: EventKind::Timeout, ..Event::default() }, net);
            }
            self.init_undo();
        }
        self.lost_by_corruption = false;
        self.kept_cwnd = None;
        self.flow.cwnd = self.in_flight() + 1;
        self.cwnd_stamp_ns = net.now;
        if self.ca_state <= CaState::Disorder && self.sacked_out >= REORDERING {
            self.reordering = self.reordering.min(REORDERING);
        }
        self.duplicate_acks = 0;
        self.had_partial_ack = false;
        self.set_ca_state(CaState::Loss, net);
        self.high_seq = self.snd_nxt;
        self.tlp_high_seq = None;
        self.send_cwr = true;
        self.frto = is_first || self.consecutive_timeouts > 0;
    }

    /// Marks lost the first segment and all that were sent more than a round trip ago
    /// (tcp_timeout_mark_lost). NewReno marks all segments.
    fn mark_lost_on_timeout(&mut self, now: u64) {
        let mark_all = self.is_newreno();
        for index in 0..self.segments.len() {
            let segment = self.segments[index];
            let is_recent = (now - segment.sent_ns) / 1000 < u64::from(self.rack.rtt_us);
            if !segment.has(SACKED) && (index == 0 || mark_all || !is_recent) {
                self.mark_lost(index);
            }
        }
    }

    /// Probes the advertised window while it is closed (tcp_probe_timer).
    fn send_window_probe(&mut self, net: &mut SimNetwork) {
        if !self.segments.is_empty() || self.snd_nxt == self.write_end {
            return;
        }
        self.send_probe_packet(net);
        let after = self.rtt.rto_us() << self.consecutive_timeouts.min(8);
        self.consecutive_timeouts += 1;
        self.arm_timer(PendingTimer::WindowProbe, after, net);
    }

    /// Sends a segment without payload that the receiver answers.
    pub(super) fn send_probe_packet(&self, net: &mut SimNetwork) {
        let mut packet = SimPacket::without_payload(self.config.connection, PacketKind::Probe, HEADER_BYTES);
        packet.seq = self.snd_nxt;
        packet.timestamp_ns = net.now;
        net.send(self.config.channel, packet);
    }
}
