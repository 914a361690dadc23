//! How losses are found: by time (RACK, RFC 8985 §6), by probes of the tail (§7) and by the retransmission timer (RFC 6298).

use super::{EVER_RETRANS, LOST, Pending, Phase, RETRANS, SACKED, Segment, Sender, ack::News};
use crate::{
    net::Net,
    packet::{HEADER, Kind, Packet},
    rtt::RTO_MIN_US,
};
use control::Event;
use std::collections::VecDeque;

/// No timer is shorter, µs (TCP_TIMEOUT_MIN: two ticks of 4 ms).
const TIMEOUT_MIN_US: u64 = 8000;
/// A probe is sent after so long where no round trip was measured, µs (TCP_TIMEOUT_INIT).
const PROBE_INIT_US: u64 = 1_000_000;
/// What reordering is believed to be at first, in segments (tcp_reordering).
const REORDERING: u32 = 3;
/// The most that reordering is believed to be (tcp_max_reordering).
const MOST_REORDERING: u64 = 300;

/// What is known of the segment that was sent last of those that arrived.
#[derive(Debug, Clone, Default)]
pub(super) struct Rack {
    /// When it was sent, ns, and where it ends.
    sent: u64,
    end: u64,
    rtt_us: u32,
    advanced: bool,
    /// First transmissions before this number have been judged.
    judged: u64,
    /// Retransmissions in the order of their sending: number, and when.
    again: VecDeque<(u64, u64)>,
    reordering_seen: bool,
    window_steps: u32,
    duplicate_seen: bool,
    last_delivered: u64,
}

impl Rack {
    /// Something came twice: the window for reordering was too small.
    pub(super) fn note_duplicate(&mut self) {
        self.duplicate_seen = true;
    }

    /// What was judged is to be judged again.
    pub(super) fn look_again(&mut self) {
        self.advanced = true;
        self.judged = 0;
    }

    /// Whether the segment was sent before the one known (tcp_rack_sent_after).
    fn is_after(&self, segment: &Segment) -> bool {
        self.sent > segment.sent || (self.sent == segment.sent && self.end > segment.end())
    }
}

impl Sender {
    /// A segment has arrived (tcp_rack_advance).
    pub(super) fn rack_advance(&mut self, segment: &Segment, now: u64) {
        let rtt_us = ((now - segment.sent) / 1000) as u32;
        // Too fast to be an answer to the retransmission.
        if rtt_us < self.rtt.least() && segment.has(RETRANS | EVER_RETRANS) {
            return;
        }
        let rack = &mut self.rack;
        rack.advanced = true;
        rack.rtt_us = rtt_us;
        if segment.sent > rack.sent || (segment.sent == rack.sent && segment.end() > rack.end) {
            rack.sent = segment.sent;
            rack.end = segment.end();
        }
    }

    /// Something arrived late that was sent before what had arrived (tcp_check_sack_reordering).
    pub(super) fn note_reordering(&mut self, from: u64, to: u64) {
        if from >= to {
            return;
        }
        let segments = (to - from).div_ceil(self.settings.mss.into());
        if segments > self.reordering.into() {
            self.reordering = segments.min(MOST_REORDERING) as u32;
        }
        self.rack.reordering_seen = true;
    }

    /// How much later than others a segment may be, µs (tcp_rack_reo_wnd).
    fn reordering_window(&self) -> u64 {
        if !self.rack.reordering_seen && (self.phase >= Phase::Recovery || self.sacked_out >= self.reordering) {
            return 0;
        }
        let steps = u64::from(self.rack.window_steps.max(1));
        (u64::from(self.rtt.least() / 4) * steps).min(self.rtt.smoothed().into())
    }

    /// Grows the window for reordering when something came twice, once a round trip (tcp_rack_update_reo_wnd). It stays: that Linux forgets it
    /// after sixteen recoveries is left out.
    fn adapt_reordering_window(&mut self) {
        if !self.rack.duplicate_seen {
            return;
        }
        self.rack.duplicate_seen = false;
        if self.delivered > self.rack.last_delivered {
            self.rack.window_steps = (self.rack.window_steps.max(1) + 1).min(255);
            self.rack.last_delivered = self.delivered + u64::from(self.packets_out());
        }
    }

    /// Looks for losses after an acknowledgement (tcp_identify_packet_loss).
    pub(super) fn find_losses(&mut self, news: &mut News, net: &mut Net) {
        self.adapt_reordering_window();
        if self.segments.is_empty() || !self.rack.advanced {
            return;
        }
        self.rack.advanced = false;
        let under_way = self.retrans_out;
        if let Some(wait) = self.detect_losses(net.now) {
            self.arm(Pending::Reorder, wait + TIMEOUT_MIN_US, net);
            news.restart_timer = false;
        }
        news.lost_retransmission |= self.retrans_out < under_way;
    }

    /// Marks what is lost by now; returns for how long the others need to be waited for, µs (tcp_rack_detect_loss).
    fn detect_losses(&mut self, now: u64) -> Option<u64> {
        let window = self.reordering_window();
        let limit = u64::from(self.rack.rtt_us) + window;
        let overdue = |segment: &Segment| (now - segment.sent) / 1000 >= limit;
        let mut waits = false;
        self.rack.judged = self.rack.judged.max(self.base);
        while let Some(segment) = self.segments.get((self.rack.judged - self.base) as usize) {
            if !segment.has(SACKED | LOST | EVER_RETRANS) {
                if !self.rack.is_after(segment) {
                    break;
                }
                if !overdue(segment) {
                    waits = true;
                    break;
                }
                self.mark_lost((self.rack.judged - self.base) as usize);
            }
            self.rack.judged += 1;
        }
        while let Some(&(number, sent)) = self.rack.again.front() {
            let index = number.wrapping_sub(self.base) as usize;
            // Those that arrived, or were sent once more, are not of interest here.
            if let Some(segment) = self.segments.get(index).filter(|_| number >= self.base)
                && segment.sent == sent
                && !segment.has(SACKED)
                && (!segment.has(LOST) || segment.has(RETRANS))
            {
                if !self.rack.is_after(segment) {
                    break;
                }
                if !overdue(segment) {
                    waits = true;
                    break;
                }
                self.mark_lost(index);
            }
            self.rack.again.pop_front();
        }
        // All that is waited for was sent before the one known, so that it is overdue when that would be.
        waits.then(|| limit.saturating_sub((now - self.rack.sent) / 1000))
    }

    /// Sends again what is lost, as far as the window permits (tcp_xmit_retransmit_queue).
    pub(super) fn retransmit_lost(&mut self, net: &mut Net) {
        while let Some(&number) = self.again.front() {
            let index = number.wrapping_sub(self.base) as usize;
            let wanted = |segment: &&Segment| number >= self.base && segment.has(LOST) && !segment.has(SACKED | RETRANS);
            if self.segments.get(index).filter(wanted).is_none() {
                self.again.pop_front();
                continue;
            }
            if self.in_flight() >= self.flow.cwnd || self.must_wait(net) {
                return;
            }
            self.again.pop_front();
            self.retransmit(index, net);
            if self.is_reducing() {
                self.prr_out += 1;
            }
            if index == 0 && self.pending != Pending::Reorder {
                self.arm(Pending::Rto, self.rtt.rto(), net);
            }
        }
    }

    /// Sends a segment again (tcp_retransmit_skb).
    pub(super) fn retransmit(&mut self, index: usize, net: &mut Net) {
        self.send_again(index, net);
        let segment = &mut self.segments[index];
        if !segment.has(RETRANS) {
            segment.flags |= RETRANS;
            self.retrans_out += 1;
        }
        if self.retrans_stamp == 0 {
            self.retrans_stamp = net.now;
        }
        self.undo_retrans = self.undo_retrans.max(0) + 1;
    }

    fn send_again(&mut self, index: usize, net: &mut Net) {
        let mut segment = self.segments[index];
        segment.sent = net.now;
        segment.flags |= EVER_RETRANS;
        self.transmit(segment, net);
        self.segments[index] = segment;
        self.rack.again.push_back((self.base + index as u64, net.now));
        self.tally.retransmits += 1;
    }

    /// Starts the timer anew after good news (tcp_set_xmit_timer).
    pub(super) fn set_timer(&mut self, net: &mut Net) {
        if !self.schedule_loss_probe(true, net) {
            self.rearm_rto(net);
        }
    }

    /// Sets the retransmission timer (tcp_rearm_rto).
    pub(super) fn rearm_rto(&mut self, net: &mut Net) {
        if self.segments.is_empty() {
            self.disarm();
            return;
        }
        let after = match self.pending {
            // The time since the head was sent counts.
            Pending::Reorder | Pending::LossProbe => self.until_rto(net).max(1),
            _ => self.rtt.rto(),
        };
        self.arm(Pending::Rto, after, net);
    }

    /// How long until the retransmission timer would fire for the head, µs; 0: it would have.
    fn until_rto(&self, net: &Net) -> u64 {
        let sent = self.segments.front().map_or(net.now, |head| head.sent);
        (sent / 1000 + self.rtt.rto()).saturating_sub(net.now / 1000)
    }

    /// Sets the timer for a probe of the tail, where there is to be one (tcp_schedule_loss_probe).
    pub(super) fn schedule_loss_probe(&mut self, advancing: bool, net: &mut Net) -> bool {
        if self.segments.is_empty() || self.is_newreno() || !matches!(self.phase, Phase::Open | Phase::Cwr) {
            return false;
        }
        let mut after = match u64::from(self.rtt.smoothed()) {
            0 => PROBE_INIT_US,
            // The acknowledgement of a single segment may be held back.
            smoothed if self.packets_out() == 1 => 2 * smoothed + u64::from(RTO_MIN_US),
            smoothed => 2 * smoothed + TIMEOUT_MIN_US,
        };
        let until_rto = if advancing { self.rtt.rto() } else { self.until_rto(net) };
        if until_rto > 0 {
            after = after.min(until_rto);
        }
        self.arm(Pending::LossProbe, after, net);
        true
    }

    /// The timer has fired.
    pub(crate) fn on_timer(&mut self, net: &mut Net) {
        match std::mem::replace(&mut self.pending, Pending::Nothing) {
            Pending::Nothing => {}
            Pending::Rto => self.time_out(net),
            Pending::LossProbe => self.send_probe(net),
            Pending::Reorder => self.reordering_over(net),
            Pending::WindowProbe => self.probe_window(net),
            Pending::Receipt => self.ask_for_receipt(net),
        }
    }

    /// What may have been late is lost (tcp_rack_reo_timeout).
    fn reordering_over(&mut self, net: &mut Net) {
        let in_flight = self.in_flight();
        let wait = self.detect_losses(net.now);
        if self.in_flight() != in_flight {
            if self.phase != Phase::Recovery {
                self.enter_recovery(false, net);
                if !self.whole {
                    self.reduce(1, 0, &News::default());
                }
            }
            self.retransmit_lost(net);
        }
        match wait {
            Some(wait) => self.arm(Pending::Reorder, wait + TIMEOUT_MIN_US, net),
            None if self.pending != Pending::Rto => {
                self.pending = Pending::Reorder;
                self.rearm_rto(net);
            }
            None => {}
        }
    }

    /// Sends the tail once more, or something new, so that there is an answer that shows what is lost (tcp_send_loss_probe).
    fn send_probe(&mut self, net: &mut Net) {
        self.pending = Pending::LossProbe;
        if self.probe_high.is_none() && !self.segments.is_empty() {
            self.probe_was_old = false;
            let mut sent = self.write_out(net, true) > 0;
            if !sent && self.nxt == self.end {
                self.probe_was_old = true;
                self.send_again(self.segments.len() - 1, net);
                sent = true;
            }
            if sent {
                self.tally.probes += 1;
                self.probe_high = Some(self.nxt);
                self.pending = Pending::Nothing;
            }
        }
        self.rearm_rto(net);
    }

    /// An acknowledgement while a probe is out (tcp_process_tlp_ack).
    pub(super) fn process_probe_ack(&mut self, packet: &Packet, news: &News, net: &mut Net) {
        let Some(high) = self.probe_high.filter(|high| packet.seq >= *high) else { return };
        if !self.probe_was_old || news.twice {
            // Nothing was lost.
            self.probe_high = None;
        } else if packet.seq > high {
            // The probe itself mended a loss, which is one all the same.
            self.begin_reduction(net);
            self.enter(Phase::Cwr, net);
            self.end_reduction();
            self.keep_open(net);
        } else if !news.advanced && !news.window && !news.sacked {
            self.probe_high = None;
        }
    }

    /// Nothing was heard for too long (tcp_retransmit_timer, tcp_enter_loss).
    fn time_out(&mut self, net: &mut Net) {
        if self.segments.is_empty() {
            return;
        }
        self.tally.timeouts += 1;
        self.enter_loss(net);
        self.timeouts_in_row += 1;
        if self.again.front() == Some(&self.base) {
            self.again.pop_front();
        }
        self.retransmit(0, net);
        self.rtt.back_off();
        self.arm(Pending::Rto, self.rtt.rto(), net);
    }

    fn enter_loss(&mut self, net: &mut Net) {
        self.mark_timed_out(net.now);
        let is_new = self.phase < Phase::Recovery;
        if self.phase <= Phase::Disorder || self.una >= self.high || (self.phase == Phase::Loss && self.timeouts_in_row == 0) {
            self.prior_ssthresh = self.current_ssthresh();
            self.flow.prior_cwnd = self.flow.cwnd;
            self.ask_threshold(net);
            if !self.whole {
                (_, self.flow.ssthresh) = self.tell(Event { kind: control::EventKind::Timeout, ..Event::default() }, net);
            }
            self.begin_undo();
        }
        self.flow.cwnd = self.in_flight() + 1;
        self.cwnd_stamp = net.now;
        if self.phase <= Phase::Disorder && self.sacked_out >= REORDERING {
            self.reordering = self.reordering.min(REORDERING);
        }
        self.duplicates = 0;
        self.is_impatient = false;
        self.enter(Phase::Loss, net);
        self.high = self.nxt;
        self.probe_high = None;
        self.queue_cwr = true;
        self.frto = is_new || self.timeouts_in_row > 0;
    }

    /// The head is lost, and all that is older than a round trip (tcp_timeout_mark_lost).
    fn mark_timed_out(&mut self, now: u64) {
        let all = self.is_newreno();
        for index in 0..self.segments.len() {
            let segment = self.segments[index];
            let fresh = (now - segment.sent) / 1000 < u64::from(self.rack.rtt_us);
            if !segment.has(SACKED) && (index == 0 || all || !fresh) {
                self.mark_lost(index);
            }
        }
    }

    /// Asks for the window while it is closed (tcp_probe_timer).
    fn probe_window(&mut self, net: &mut Net) {
        if !self.segments.is_empty() || self.nxt == self.end {
            return;
        }
        self.send_question(net);
        let after = self.rtt.rto() << self.timeouts_in_row.min(8);
        self.timeouts_in_row += 1;
        self.arm(Pending::WindowProbe, after, net);
    }

    /// Sends what has no payload and is answered.
    pub(super) fn send_question(&self, net: &mut Net) {
        let mut packet = Packet::bare(self.place.conn, Kind::Probe, HEADER);
        packet.seq = self.nxt;
        packet.sent = net.now;
        net.send(self.place.line, packet);
    }
}
