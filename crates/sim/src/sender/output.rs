//! What is sent, and when (net/ipv4/tcp_output.c): as far as the windows permit, and the pace, and what waits in the host.

use super::{
    segment::{LAST, Segment},
    state::{Pending, Phase, Sender},
};
use crate::{
    event_queue::What,
    network::Net,
    packet::{CWR, ECT, FIN, HEADER, Kind, Packet},
};

impl Sender {
    /// Whether the pace, or what waits in the shaper of its host, forbids to send now (tcp_pacing_check, tcp_small_queue_check).
    #[inline]
    pub(super) fn must_wait(&mut self, net: &mut Net) -> bool {
        (self.pace_next > net.now || self.place.shaped) && self.is_held_up(net)
    }

    fn is_held_up(&mut self, net: &mut Net) -> bool {
        if self.pace_next > net.now {
            let key = self.key(What::Pace);
            if self.pace_timer.due() != self.pace_next {
                net.timers.set(&mut self.pace_timer, key, self.pace_next);
            }
            return true;
        }
        // Two packets, or a millisecond's worth (sk_pacing_shift).
        self.place.shaped && u64::from(self.in_shaper) >= (self.rate_of_its_own() / 1024 / u64::from(HEADER + self.settings.mss)).max(2)
    }

    /// What it is believed to send, payload bytes/s: as its controller paces it, or else as tcp_update_pacing_rate would, which only bounds what
    /// waits in its host.
    fn rate_of_its_own(&self) -> u64 {
        if self.flow.pacing_rate > 0 {
            return self.flow.pacing_rate;
        }
        let percent = if self.flow.cwnd < self.flow.ssthresh / 2 { 200 } else { 120 };
        let window = u64::from(self.flow.cwnd.max(self.packets_out())) * u64::from(self.settings.mss);
        window * percent * 10_000 / u64::from(self.rtt.smoothed().max(1))
    }

    /// Sends what may be sent for the first time (tcp_write_xmit).
    pub(crate) fn push(&mut self, net: &mut Net) {
        self.write_out(net, false);
    }

    /// The same; `probe` sends one segment whatever the window of congestion says.
    pub(super) fn write_out(&mut self, net: &mut Net, probe: bool) -> u32 {
        if self.state.is_none() || self.nxt == self.end {
            return 0;
        }
        if self.segments.is_empty() && !self.whole && self.settings.validation {
            self.restart_after_idle(net);
        }
        let most = self.window_end.min(self.held_at.unwrap_or(u64::MAX));
        let (mut sent, mut limited) = (0, self.in_flight() >= self.flow.cwnd);
        while self.nxt < self.end && if probe { sent == 0 } else { !limited } {
            let len = (self.end - self.nxt).min(self.settings.mss.into()) as u32;
            if self.nxt + u64::from(len) > most || !self.has_room(len) || self.must_wait(net) {
                break;
            }
            self.send_new(len, net);
            sent += 1;
            limited = self.in_flight() >= self.flow.cwnd;
        }
        if sent > 0 || limited {
            self.validate(limited, net);
        }
        if sent > 0 {
            if self.is_reducing() {
                self.prr_out += sent;
            }
            if !probe {
                self.schedule_loss_probe(false, net);
            }
        } else if self.segments.is_empty() && self.nxt < self.end && self.pending == Pending::Nothing && self.held_at.is_none() {
            // The window is closed, and nothing under way will open it (tcp_check_probe_timer).
            if self.nxt + (self.end - self.nxt).min(self.settings.mss.into()) > self.window_end {
                self.arm(Pending::WindowProbe, self.rtt.rto(), net);
            }
        }
        sent
    }

    /// Whether the send buffer has room for so much more.
    fn has_room(&self, len: u32) -> bool {
        self.nxt + u64::from(len) - self.forgotten() <= self.place.room
    }

    /// Sends the next segment.
    fn send_new(&mut self, len: u32, net: &mut Net) {
        let was_idle = self.segments.is_empty();
        let flags = if self.last && self.nxt + u64::from(len) == self.end { LAST } else { 0 };
        let segment = Segment { start: self.nxt, sent: net.now, len, flags };
        self.transmit(segment, net);
        self.nxt += u64::from(len);
        self.tally.kept = self.tally.kept.max(self.nxt - self.forgotten());
        self.segments.push_back(segment);
        if was_idle || self.pending == Pending::LossProbe {
            self.rearm_rto(net);
        }
    }

    /// Gives a segment to the network.
    pub(super) fn transmit(&mut self, segment: Segment, net: &mut Net) {
        if self.in_flight() == 0 {
            self.tell_restart(net);
        }
        let mut packet = Packet::bare(self.place.conn, Kind::Data, HEADER + segment.len);
        packet.seq = segment.start;
        packet.sent = net.now;
        packet.amount = segment.len;
        if segment.has(LAST) {
            packet.flags |= FIN;
        }
        if self.place.ecn {
            packet.flags |= ECT;
            if self.queue_cwr && segment.start == self.nxt {
                packet.flags |= CWR;
                self.queue_cwr = false;
            }
        }
        if self.law.is_told() {
            let wants = self.delivered == 0 || self.limited() != 0;
            let said = self.state.as_mut().and_then(|state| state.say(&self.flow, self.rtt.smoothed(), wants));
            if let Some((header, asks)) = said {
                packet.set_header(header);
                packet.told = asks;
            }
        }
        self.flow.sent += u64::from(segment.len);
        self.last_sent = net.now;
        self.pace(segment.len, net.now);
        let taken = net.send(self.place.line, packet);
        self.in_shaper += u32::from(self.place.shaped && taken);
    }

    /// When the next may go (tcp_update_skb_after_send): a timer that was late is half made up for, and the first ten go as they come.
    fn pace(&mut self, len: u32, now: u64) {
        let before = self.pace_next;
        self.pace_next = before.max(now);
        let rate = self.flow.pacing_rate;
        if rate > 0 && self.paced && self.segments_sent >= 10 {
            let gap = u64::from(len) * 1_000_000_000 / rate;
            self.pace_next += gap - (self.pace_next - before).min(gap / 2);
        }
        self.segments_sent += 1;
    }

    /// A packet of its own has left the shaper of its host.
    pub(crate) fn left_shaper(&mut self, net: &mut Net) {
        self.in_shaper = self.in_shaper.saturating_sub(1);
        self.go_on(net);
    }

    /// What waited may go now: first what is lost, then what is new.
    pub(crate) fn go_on(&mut self, net: &mut Net) {
        if self.state.is_none() {
            return;
        }
        if !self.again.is_empty() {
            self.retransmit_lost(net);
        }
        self.push(net);
    }

    /// Keeps track of how much of the window is in use (tcp_cwnd_validate).
    fn validate(&mut self, limited: bool, net: &Net) {
        let packets_out = self.packets_out();
        if self.una >= self.usage_end || limited || (!self.is_cwnd_limited && packets_out > self.max_packets_out) {
            self.is_cwnd_limited = limited;
            self.max_packets_out = packets_out;
            self.usage_end = self.nxt;
        }
        if self.limited() != 0 {
            self.cwnd_used = 0;
            self.cwnd_stamp = net.now;
            return;
        }
        self.cwnd_used = self.cwnd_used.max(packets_out);
        // An application that keeps the socket full is not what limits the flow (SOCK_NOSPACE).
        let app_limited = self.nxt == self.end;
        if !self.whole && (net.now - self.cwnd_stamp) / 1000 >= self.rtt.rto() {
            if self.phase == Phase::Open && app_limited {
                let used = self.cwnd_used.max(self.settings.initial_window);
                if used < self.flow.cwnd {
                    self.flow.ssthresh = self.current_ssthresh();
                    self.flow.cwnd = u32::midpoint(self.flow.cwnd, used);
                }
                self.cwnd_used = 0;
            }
            self.cwnd_stamp = net.now;
        }
    }

    /// After idle time the window is halved once a timeout (tcp_cwnd_restart, RFC 2861).
    pub(super) fn restart_after_idle(&mut self, net: &Net) {
        let (mut idle, rto) = ((net.now - self.last_sent) / 1000, self.rtt.rto().max(1));
        if self.segments_sent == 0 || idle <= rto {
            return;
        }
        self.flow.ssthresh = self.current_ssthresh();
        let mut cwnd = self.flow.cwnd;
        let least = cwnd.min(self.settings.initial_window);
        while idle > rto && cwnd > least {
            idle -= rto;
            cwnd /= 2;
        }
        self.flow.cwnd = cwnd.max(least);
        self.cwnd_stamp = net.now;
        self.cwnd_used = 0;
    }
}
