//! Processing of acknowledgements (tcp_ack): updates the scoreboard, the RTT estimate and the
//! congestion window.

use super::{
    ack_summary::{AckSummary, Retransmit},
    segment::{EVER_RETRANS, LAST, LOST, RETRANS, SACKED, SentSegment},
    state::{CaState, PendingTimer, TcpSender},
};
use crate::{
    network::SimNetwork,
    packet::{DSACK, ECE, MAX_SACK_BLOCKS, SimPacket},
};
use control::{Event, EventKind};

impl TcpSender {
    /// An acknowledgement has arrived.
    pub(crate) fn on_ack(&mut self, packet: &SimPacket, net: &mut SimNetwork) {
        // Ignore acknowledgements that are old, or of data that was never sent.
        if self.control_state.is_none() || packet.seq < self.snd_una || packet.seq > self.snd_nxt {
            return;
        }
        if self.rate.is_some() {
            self.sample_begins();
        }
        if self.is_fast_path(packet) {
            self.fast_path_ack(packet, net);
        } else if !self.process_ack(packet, net) {
            return;
        }
        debug_assert!(self.is_consistent());
        self.push(net);
        self.end_if_done(net);
        self.arm_receipt_timer(net);
    }

    /// Whether the fast path applies: there is no sign of trouble, and the acknowledgement only
    /// acknowledges segments in order that were sent once. That is the case for nearly all
    /// acknowledgements.
    fn is_fast_path(&self, packet: &SimPacket) -> bool {
        let is_undisturbed = self.ca_state == CaState::Open
            && self.sacked_out | self.lost_out | self.retrans_out == 0
            && self.retransmit_queue.is_empty()
            && self.tlp_high_seq.is_none()
            && self.highest_sacked <= self.snd_una;
        let mut acked = self.segments.iter().take_while(|segment| segment.end() <= packet.seq).peekable();
        is_undisturbed
            && packet.flags == 0
            && !packet.has_sack_blocks()
            && acked.peek().is_some()
            && acked.all(|segment| segment.flags & !LAST == 0)
    }

    /// The fast path: has the same effect as [`process_ack`](Self::process_ack) where it applies.
    fn fast_path_ack(&mut self, packet: &SimPacket, net: &mut SimNetwork) {
        let now = net.now;
        self.consecutive_timeouts = 0;
        self.duplicate_acks = 0;
        self.update_window(packet);
        if let Some(state) = &mut self.control_state {
            state.on_feedback(packet.feedback);
        }
        let (mut acked, mut first, mut last) = (0, None, None);
        while let Some(&segment) = self.segments.front().filter(|segment| segment.end() <= packet.seq) {
            self.segments.pop_front();
            self.sample_acked(&segment);
            first.get_or_insert(segment);
            last = Some(segment);
            acked += 1;
        }
        self.acked_segments += u64::from(acked);
        self.snd_una = packet.seq;
        self.delivered += u64::from(acked);
        let (Some(first), Some(last)) = (first, last) else { return };
        self.rack_advance(&last, now);
        let latest_rtt_us = elapsed_us(last.sent_ns, now);
        self.rtt.sample_min(latest_rtt_us, now / 1000);
        self.rtt.sample(elapsed_us(first.sent_ns, now), self.snd_una, self.snd_nxt);
        self.notify_sample(latest_rtt_us, net);
        if self.pending != PendingTimer::Reordering || self.segments.is_empty() {
            self.set_xmit_timer(net);
        }
        if self.owns_window {
            self.notify_ack([acked, 0], latest_rtt_us, packet.sent_us, net);
        } else {
            self.grow_cwnd(acked, net);
        }
    }

    /// Processes an acknowledgement in full. Returns false if nothing was in flight, so that it
    /// could only change the advertised window.
    fn process_ack(&mut self, packet: &SimPacket, net: &mut SimNetwork) -> bool {
        let (delivered_before, lost_before) = (self.delivered, self.lost);
        let had_packets = !self.segments.is_empty();
        self.passed_agent = self.passed_agent.max(packet.notice().unwrap_or(0));
        let mut summary = AckSummary {
            prior_snd_una: self.snd_una,
            echo_ns: packet.timestamp_ns,
            sent_us: packet.sent_us,
            ece: self.config.ecn && packet.has_flag(ECE),
            in_recovery: self.ca_state == CaState::Recovery,
            ..AckSummary::default()
        };
        let prior_highest = self.highest_sacked.max(self.snd_una);
        if packet.seq > self.snd_una {
            summary.advanced = true;
            self.consecutive_timeouts = 0;
        }
        summary.window_changed = self.update_window(packet);
        if let Some(state) = &mut self.control_state {
            state.on_feedback(packet.feedback);
        }
        if !had_packets {
            self.ack_without_data(net);
            return false;
        }
        if packet.has_sack_blocks() && !self.is_newreno() {
            self.mark_sacked(packet, &mut summary, net.now);
        }
        self.clean_retransmit_queue(packet.seq, &mut summary, prior_highest, net);
        if self.tlp_high_seq.is_some() {
            self.process_tlp_ack(packet, &summary, net);
        }
        let retransmit =
            if self.is_newreno() { self.newreno_ack(packet, &mut summary, net) } else { self.process_dubious_ack(&mut summary, net) };
        if summary.restart_timer && self.pending != PendingTimer::Reordering {
            self.set_xmit_timer(net);
        }
        let delivered = (self.delivered - delivered_before) as u32;
        let lost = (self.lost - lost_before) as u32;
        self.update_cwnd(delivered, lost, &summary, net);
        if retransmit == Retransmit::LostSegments {
            self.retransmit_lost(net);
        }
        true
    }

    /// Tells the controller once that the last byte was acknowledged.
    pub(crate) fn end_if_done(&mut self, net: &mut SimNetwork) {
        if self.fin_written && self.snd_una == self.write_end && !self.is_done {
            self.is_done = true;
            self.disarm_timer();
            self.notify_controller(Event { kind: EventKind::Close, ..Event::default() }, net);
        }
    }

    /// The ACK of the handshake has arrived after data was sent early. It is processed as an
    /// acknowledgement if it acknowledges data, and otherwise only updates the advertised window.
    pub(crate) fn on_handshake_ack(&mut self, packet: &SimPacket, net: &mut SimNetwork) {
        if packet.seq > self.snd_una {
            self.on_ack(packet, net);
        } else {
            self.update_window(packet);
            self.push(net);
        }
    }

    /// Passes an acknowledgement that signals trouble to the congestion states
    /// (tcp_ack_is_dubious).
    fn process_dubious_ack(&mut self, summary: &mut AckSummary, net: &mut SimNetwork) -> Retransmit {
        let is_duplicate = !summary.window_changed && !summary.advanced;
        if is_duplicate || summary.sacked || summary.ece || summary.has_dsack || self.ca_state != CaState::Open {
            self.fast_retransmit_alert(summary, net)
        } else {
            Retransmit::Nothing
        }
    }

    /// Takes the advertised window of an acknowledgement; returns whether it changed.
    fn update_window(&mut self, packet: &SimPacket) -> bool {
        let end = packet.seq + u64::from(packet.len_or_window);
        // RFC 9293 §3.10.7.4: an acknowledgement that was overtaken carries an older window.
        let has_changed = packet.len_or_window != self.snd_wnd;
        if packet.seq > self.snd_una || end > self.window_end || has_changed {
            self.snd_wnd = packet.len_or_window;
            self.window_end = self.window_end.max(end);
        }
        has_changed
    }

    /// An acknowledgement while nothing is in flight: only its window counts (tcp_ack_probe).
    fn ack_without_data(&mut self, net: &mut SimNetwork) {
        if self.pending == PendingTimer::WindowProbe {
            self.disarm_timer();
            self.consecutive_timeouts = 0;
        }
        self.push(net);
    }

    /// Marks the segments that SACK blocks report (tcp_sacktag_write_queue). Blocks that the last
    /// acknowledgement already had cost no time.
    fn mark_sacked(&mut self, packet: &SimPacket, summary: &mut AckSummary, now: u64) {
        let mut blocks = packet.sack_blocks();
        if packet.has_flag(DSACK)
            && let Some((start, end)) = blocks.next()
        {
            self.on_dsack(start, end, summary);
        }
        let mut marked = [(0, 0); MAX_SACK_BLOCKS];
        for (slot, (start, end)) in marked.iter_mut().zip(blocks) {
            *slot = (start, end);
            self.mark_range(start.max(self.snd_una), end.min(self.snd_nxt), summary, now);
        }
        self.previous_sack_blocks = marked;
    }

    /// Marks the segments of a range, except those in the previous SACK blocks.
    fn mark_range(&mut self, start: u64, end: u64, summary: &mut AckSummary, now: u64) {
        let mut at = start;
        while at < end {
            if let Some((_, block_end)) = self.previous_sack_blocks.into_iter().find(|(from, to)| (*from..*to).contains(&at)) {
                at = block_end;
                continue;
            }
            let index = self.index_of(at);
            // Up to the next of the previous blocks.
            let until = self.previous_sack_blocks.into_iter().map(|(from, _)| from).filter(|from| *from > at).fold(end, u64::min);
            for index in index..self.segments.len() {
                let segment = self.segments[index];
                if segment.end() > until {
                    break;
                }
                self.mark_segment(index, segment, summary, now);
            }
            at = until;
        }
    }

    /// Marks a segment as SACKed (tcp_sacktag_one).
    fn mark_segment(&mut self, index: usize, segment: SentSegment, summary: &mut AckSummary, now: u64) {
        if segment.has(SACKED) {
            return;
        }
        self.rack_advance(&segment, now);
        let mut flags = segment.flags;
        if segment.has(RETRANS) {
            // If it is not marked lost, its retransmission is assumed to be still in flight.
            if segment.has(LOST) {
                flags &= !(LOST | RETRANS);
                self.lost_out -= 1;
                self.retrans_out -= 1;
            }
        } else {
            if !segment.has(EVER_RETRANS) {
                if segment.start < self.highest_sacked {
                    set_minimum(&mut summary.reordered_from, segment.start);
                }
                summary.delivered_original |= segment.end() <= self.high_seq;
                summary.first_sacked_ns.get_or_insert(segment.sent_ns);
                summary.last_sacked_ns = segment.sent_ns;
            }
            if segment.has(LOST) {
                flags &= !LOST;
                self.lost_out -= 1;
            }
        }
        self.segments[index].flags = flags | SACKED;
        if let Some(sampler) = &mut self.rate {
            sampler.on_sacked(index, &segment);
        }
        self.sacked_out += 1;
        self.highest_sacked = self.highest_sacked.max(segment.end());
        summary.sacked = true;
        self.count_delivered(1, summary.ece);
    }

    /// A DSACK may report a spurious retransmission (tcp_check_dsack, RFC 2883).
    fn on_dsack(&mut self, start: u64, end: u64, summary: &mut AckSummary) {
        summary.has_dsack = true;
        self.rack.on_dsack();
        let Some(marker) = self.undo_marker else { return };
        if end <= marker {
            return;
        }
        let count = if start < self.snd_una {
            1
        } else {
            let index = self.index_of(start);
            match self.segments.get_mut(index) {
                Some(segment) if segment.has(RETRANS | EVER_RETRANS) => {
                    if segment.has(RETRANS) && segment.has(SACKED) {
                        segment.flags &= !RETRANS;
                        self.retrans_out -= 1;
                    }
                    1
                }
                _ => 0,
            }
        };
        if self.undo_retrans > 0 {
            self.undo_retrans = (self.undo_retrans - count).max(0);
        }
    }

    /// Counts delivered segments, whose acknowledgement had ECE set if `ece`.
    fn count_delivered(&mut self, count: u64, ece: bool) {
        self.delivered += count;
        if ece {
            self.delivered_marked += count;
        }
    }

    /// Removes acknowledged segments from the scoreboard, and takes RTT samples
    /// (tcp_clean_rtx_queue).
    fn clean_retransmit_queue(&mut self, ack: u64, summary: &mut AckSummary, prior_highest: u64, net: &mut SimNetwork) {
        let now = net.now;
        while let Some(&segment) = self.segments.front() {
            if segment.end() > ack {
                break;
            }
            self.segments.pop_front();
            self.sample_acked(&segment);
            self.acked_segments += 1;
            self.remove_acked(&segment, summary, now);
        }
        self.snd_una = ack;
        summary.restart_timer |= summary.advanced;
        if self.segments.is_empty() {
            self.disarm_timer();
        }
        self.update_rtt(summary, net);
        if summary.advanced && summary.reordered_from.is_some_and(|from| from < prior_highest) {
            self.note_reordering(summary.reordered_from.unwrap_or(ack), prior_highest);
        } else if let (false, Some(from)) = (summary.advanced, summary.reordered_from) {
            self.note_reordering(from, self.highest_sacked);
        }
        // Segments that were acknowledged need no retransmission.
        while self.retransmit_queue.front().is_some_and(|number| *number < self.acked_segments) {
            self.retransmit_queue.pop_front();
        }
        self.notify_sample(summary.rtt_us, net);
    }

    /// Accounts for a segment that is acknowledged.
    fn remove_acked(&mut self, segment: &SentSegment, summary: &mut AckSummary, now: u64) {
        if segment.has(RETRANS | EVER_RETRANS) {
            if segment.has(RETRANS) {
                self.retrans_out -= 1;
            }
            summary.acked_retransmission = true;
        } else if !segment.has(SACKED) {
            summary.first_acked_ns.get_or_insert(segment.sent_ns);
            summary.last_acked_ns = segment.sent_ns;
            set_minimum(&mut summary.reordered_from, segment.start);
            summary.delivered_original |= segment.end() <= self.high_seq;
        }
        if segment.has(SACKED) {
            self.sacked_out -= 1;
        } else {
            self.count_delivered(1, summary.ece);
            // The echoed timestamp is older than the retransmission, so the original was delivered
            // (tcp_skb_spurious_retrans).
            if !(segment.has(EVER_RETRANS) && summary.echo_ns < segment.sent_ns) {
                self.rack_advance(segment, now);
            }
        }
        if segment.has(LOST) {
            self.lost_out -= 1;
        }
    }

    /// Takes RTT samples (tcp_ack_update_rtt).
    fn update_rtt(&mut self, summary: &mut AckSummary, net: &SimNetwork) {
        let since = |sent_ns: u64| elapsed_us(sent_ns, net.now);
        let acked = summary.first_acked_ns.filter(|_| !summary.acked_retransmission);
        let mut smoothing_sample = acked.map(since);
        let mut latest = acked.map(|_| since(summary.last_acked_ns));
        if let Some(first) = summary.first_sacked_ns {
            smoothing_sample = smoothing_sample.or(Some(since(first)));
            latest = Some(since(summary.last_sacked_ns));
        }
        // With timestamps retransmissions are not ambiguous (RFC 7323 §4).
        if smoothing_sample.is_none() && summary.advanced && summary.echo_ns > 0 {
            smoothing_sample = Some(since(summary.echo_ns));
            latest = smoothing_sample;
        }
        let (Some(smoothing_sample), Some(latest)) = (smoothing_sample, latest) else { return };
        if !summary.advanced && self.segments.front().is_some_and(|head| smoothing_sample > since(head.sent_ns)) {
            // The segment was sent before the head was last sent, so the head's timer restarts.
            summary.restart_timer = true;
        }
        summary.rtt_us = latest;
        self.rtt.sample_min(latest, net.now / 1000);
        self.rtt.sample(smoothing_sample, self.snd_una, self.snd_nxt);
    }

    /// Tells the controller what was delivered since its last sample, and the RTT (pkts_acked).
    fn notify_sample(&mut self, rtt_us: u32, net: &mut SimNetwork) {
        if !self.wants_samples {
            return;
        }
        let acked = (self.delivered - self.sampled_delivered) as u32;
        let marked = (self.delivered_marked - self.sampled_marked) as u32;
        self.sampled_delivered = self.delivered;
        self.sampled_marked = self.delivered_marked;
        let event = Event { kind: EventKind::Sample, acked, marked, rtt_us, ..Event::default() };
        (self.flow.cwnd, self.flow.ssthresh) = self.notify_controller(event, net);
    }

    /// Updates the congestion window after an acknowledgement (tcp_cong_control).
    fn update_cwnd(&mut self, delivered: u32, lost: u32, summary: &AckSummary, net: &mut SimNetwork) {
        if self.owns_window {
            self.notify_ack([delivered, lost], summary.rtt_us, summary.sent_us, net);
        } else if self.is_newreno() {
            if summary.advanced && !summary.in_recovery {
                self.grow_cwnd(delivered, net);
            }
        } else if self.in_cwnd_reduction() {
            self.cwnd_reduction(delivered, lost, summary);
        } else if summary.advanced || ((self.reordering > 3 || self.lost_by_corruption) && summary.sacked) {
            // tcp_may_raise_cwnd; a loss by corruption does not delay growth.
            self.grow_cwnd(delivered, net);
        }
    }

    /// Tells a controller that owns the window of an acknowledgement, which the receiver sent at
    /// `sent_us`: segments that are newly acknowledged and lost, and the RTT.
    fn notify_ack(&mut self, [acked, lost]: [u32; 2], rtt_us: u32, sent_us: u32, net: &mut SimNetwork) {
        // Receivers acknowledge out-of-order data and every second segment without delay.
        let held = if acked <= 1 && self.sacked_out == 0 { control::DELAYED_ACK } else { 0 };
        let lost = if self.lost_by_corruption { 0 } else { lost };
        let limited = match self.rate {
            // Slow start is not TCP's own here.
            Some(_) if !self.is_cwnd_limited => 0,
            _ => self.limited_flag(),
        };
        let flags = limited | held | control::TIMESTAMP;
        // The hosts' clocks agree, and count milliseconds as Linux does.
        let return_ms = ((net.now_us() as u32).wrapping_sub(sent_us)) / 1000;
        let mut event = Event { kind: EventKind::Ack, flags, acked, rtt_us, lost, return_ms, ..Event::default() };
        self.complete_sample(&mut event, net);
        self.notify_controller(event, net);
    }

    /// Lets the controller grow the window (tcp_cong_avoid).
    fn grow_cwnd(&mut self, delivered: u32, net: &mut SimNetwork) {
        let event = Event { kind: EventKind::Ack, flags: self.limited_flag(), acked: delivered, ..Event::default() };
        (self.flow.cwnd, self.flow.ssthresh) = self.notify_controller(event, net);
    }
}

/// Time since `sent_ns`, µs, at least 1.
fn elapsed_us(sent_ns: u64, now: u64) -> u32 {
    ((now - sent_ns) / 1000).max(1) as u32
}

/// Sets `least` to `value` if it is less, or if there is none.
fn set_minimum(least: &mut Option<u64>, value: u64) {
    *least = Some(least.map_or(value, |least| least.min(value)));
}
