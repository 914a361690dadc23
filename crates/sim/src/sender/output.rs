//! What is sent, and when (net/ipv4/tcp_output.c): limited by the congestion window, the advertised
//! window, the send buffer, pacing, and the packets in the host's shaper.

use super::{
    segment::{LAST, SentSegment},
    state::{CaState, PendingTimer, TcpSender},
};
use crate::{
    network::SimNetwork,
    packet::{CWR, ECT, FIN, HEADER_BYTES, PacketKind, SimPacket},
};

impl TcpSender {
    /// Whether pacing, or its packets in the host's shaper, forbid sending now (tcp_pacing_check,
    /// tcp_small_queue_check).
    #[inline]
    pub(super) fn must_defer(&mut self, net: &mut SimNetwork) -> bool {
        (self.pacing.forbids(net.now) || self.config.behind_shaper) && self.is_deferred(net)
    }

    fn is_deferred(&mut self, net: &mut SimNetwork) -> bool {
        if self.pacing.forbids(net.now) {
            self.arm_pacing(net);
            return true;
        }
        // TCP small queues: at most two packets, or a millisecond at the estimated rate
        // (sk_pacing_shift).
        self.config.behind_shaper
            && u64::from(self.in_shaper) >= (self.estimated_rate() / 1024 / u64::from(HEADER_BYTES + self.settings.mss)).max(2)
    }

    /// The sending rate in payload bytes/s: the pacing rate of the controller, or else the rate of
    /// tcp_update_pacing_rate, which only limits the packets in the host's shaper.
    fn estimated_rate(&self) -> u64 {
        if self.flow.pacing_rate > 0 {
            return self.flow.pacing_rate;
        }
        let percent = if self.flow.cwnd < self.flow.ssthresh / 2 { 200 } else { 120 };
        let window = u64::from(self.flow.cwnd.max(self.packets_out())) * u64::from(self.settings.mss);
        window * percent * 10_000 / u64::from(self.rtt.srtt_us().max(1))
    }

    /// Sends the new data that may be sent (tcp_write_xmit).
    pub(crate) fn push(&mut self, net: &mut SimNetwork) {
        self.write_xmit(net, false);
    }

    /// As [`push`](Self::push); with `probe` it sends one segment, whatever the congestion window
    /// says. Returns the number of segments sent.
    pub(super) fn write_xmit(&mut self, net: &mut SimNetwork, probe: bool) -> u32 {
        if self.control_state.is_none() || self.snd_nxt == self.write_end {
            return 0;
        }
        if self.segments.is_empty() && !self.owns_window && self.settings.validation {
            self.restart_after_idle(net);
        }
        let limit = self.window_end.min(self.fluid_limit.unwrap_or(u64::MAX));
        let mut sent = 0;
        let mut cwnd_limited = self.in_flight() >= self.flow.cwnd;
        while self.snd_nxt < self.write_end && if probe { sent == 0 } else { !cwnd_limited } {
            let len = (self.write_end - self.snd_nxt).min(self.settings.mss.into()) as u32;
            if self.snd_nxt + u64::from(len) > limit || !self.has_buffer_room(len) || self.must_defer(net) {
                break;
            }
            self.send_new(len, net);
            sent += 1;
            cwnd_limited = self.in_flight() >= self.flow.cwnd;
        }
        if sent > 0 || cwnd_limited {
            self.validate_cwnd(cwnd_limited, net);
        }
        if sent > 0 {
            if self.in_cwnd_reduction() {
                self.prr_out += sent;
            }
            if !probe {
                self.schedule_loss_probe(false, net);
            }
        } else if self.segments.is_empty()
            && self.snd_nxt < self.write_end
            && self.pending == PendingTimer::Idle
            && self.fluid_limit.is_none()
        {
            // The advertised window is closed, and nothing in flight will open it
            // (tcp_check_probe_timer).
            if self.snd_nxt + (self.write_end - self.snd_nxt).min(self.settings.mss.into()) > self.window_end {
                self.arm_timer(PendingTimer::WindowProbe, self.rtt.rto_us(), net);
            }
        }
        sent
    }

    /// Whether the send buffer has room for `len` bytes more.
    pub(super) fn has_buffer_room(&self, len: u32) -> bool {
        self.snd_nxt + u64::from(len) - self.released_up_to() <= self.config.send_buffer
    }

    /// Sends the next new segment.
    fn send_new(&mut self, len: u32, net: &mut SimNetwork) {
        let was_idle = self.segments.is_empty();
        let flags = if self.fin_written && self.snd_nxt + u64::from(len) == self.write_end { LAST } else { 0 };
        let segment = SentSegment { start: self.snd_nxt, sent_ns: net.now, len, flags };
        self.transmit(segment, net);
        self.sample_sent(self.segments.len(), net.now);
        self.snd_nxt += u64::from(len);
        self.counters.max_unreleased = self.counters.max_unreleased.max(self.snd_nxt - self.released_up_to());
        self.segments.push_back(segment);
        if was_idle || self.pending == PendingTimer::LossProbe {
            self.rearm_rto(net);
        }
    }

    /// Sends a segment, for the first time or again (__tcp_transmit_skb).
    pub(super) fn transmit(&mut self, segment: SentSegment, net: &mut SimNetwork) {
        if self.in_flight() == 0 {
            self.notify_restart(net);
        }
        let mut packet = SimPacket::without_payload(self.config.connection, PacketKind::Data, HEADER_BYTES + segment.len);
        packet.seq = segment.start;
        packet.timestamp_ns = net.now;
        packet.len_or_window = segment.len;
        if segment.has(LAST) {
            packet.flags |= FIN;
        }
        if self.config.ecn {
            packet.flags |= ECT;
            if self.send_cwr && segment.start == self.snd_nxt {
                packet.flags |= CWR;
                self.send_cwr = false;
            }
        }
        if self.control.is_router_assisted() {
            let wants_more = self.delivered == 0 || self.limited_flag() != 0;
            let srtt_us = self.rtt.srtt_us();
            let header = self.control_state.as_mut().and_then(|state| state.next_header(&self.flow, srtt_us, wants_more));
            if let Some((header, feedback)) = header {
                packet.set_congestion_header(header);
                packet.feedback = feedback;
            }
        }
        self.flow.sent += u64::from(segment.len);
        self.last_sent_ns = net.now;
        let rate = if self.paced { self.flow.pacing_rate } else { 0 };
        self.pacing.on_send(net.now, segment.len, self.segments_sent, rate, self.rtt.min_us(), self.settings.mss);
        self.segments_sent += 1;
        let accepted = net.send(self.config.channel, packet);
        self.in_shaper += u32::from(self.config.behind_shaper && accepted);
    }

    /// One of its packets has left the shaper of its host.
    pub(crate) fn on_shaper_departure(&mut self, net: &mut SimNetwork) {
        self.in_shaper = self.in_shaper.saturating_sub(1);
        self.resume(net);
    }

    /// Sends what was deferred: lost segments first, then new data.
    pub(crate) fn resume(&mut self, net: &mut SimNetwork) {
        if self.control_state.is_none() {
            return;
        }
        if !self.retransmit_queue.is_empty() {
            self.retransmit_lost(net);
        }
        self.push(net);
    }

    /// Keeps track of how much of the congestion window is used, and shrinks it if the application
    /// limits the flow (tcp_cwnd_validate).
    fn validate_cwnd(&mut self, cwnd_limited: bool, net: &SimNetwork) {
        let packets_out = self.packets_out();
        if self.snd_una >= self.cwnd_usage_seq || cwnd_limited || (!self.is_cwnd_limited && packets_out > self.max_packets_out) {
            self.is_cwnd_limited = cwnd_limited;
            self.max_packets_out = packets_out;
            self.cwnd_usage_seq = self.snd_nxt;
        }
        if self.limited_flag() != 0 {
            self.cwnd_used = 0;
            self.cwnd_stamp_ns = net.now;
            return;
        }
        self.cwnd_used = self.cwnd_used.max(packets_out);
        // The application is the limit only if all that it has written was sent (SOCK_NOSPACE).
        let app_limited = self.snd_nxt == self.write_end;
        if !self.owns_window && (net.now - self.cwnd_stamp_ns) / 1000 >= self.rtt.rto_us() {
            if self.ca_state == CaState::Open && app_limited {
                let used = self.cwnd_used.max(self.settings.initial_window);
                if used < self.flow.cwnd {
                    self.flow.ssthresh = self.current_ssthresh();
                    self.flow.cwnd = u32::midpoint(self.flow.cwnd, used);
                }
                self.cwnd_used = 0;
            }
            self.cwnd_stamp_ns = net.now;
        }
    }

    /// Halves the window for each RTO of idle time (tcp_cwnd_restart, RFC 2861).
    fn restart_after_idle(&mut self, net: &SimNetwork) {
        let rto = self.rtt.rto_us().max(1);
        let mut idle = (net.now - self.last_sent_ns) / 1000;
        if self.segments_sent == 0 || idle <= rto {
            return;
        }
        self.flow.ssthresh = self.current_ssthresh();
        let mut cwnd = self.flow.cwnd;
        let min_cwnd = cwnd.min(self.settings.initial_window);
        while idle > rto && cwnd > min_cwnd {
            idle -= rto;
            cwnd /= 2;
        }
        self.flow.cwnd = cwnd.max(min_cwnd);
        self.cwnd_stamp_ns = net.now;
        self.cwnd_used = 0;
    }
}
