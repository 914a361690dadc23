//! What acknowledgements do (tcp_ack): they take segments off the scoreboard, measure the round trip, and open the window.

use super::{EVER_RETRANS, LAST, LOST, Pending, Phase, RETRANS, SACKED, Segment, Sender};
use crate::{
    net::Net,
    packet::{DSACK, ECE, Packet},
};
use control::{Event, EventKind as Kind};

/// What an acknowledgement was found to say.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct News {
    /// The first byte not acknowledged, before it.
    pub(super) prior_una: u64,
    /// It found the sender in recovery.
    pub(super) in_recovery: bool,
    /// It acknowledged something.
    pub(super) advanced: bool,
    /// It SACKed something.
    pub(super) sacked: bool,
    /// It says that something came twice.
    pub(super) twice: bool,
    /// It echoes a mark.
    pub(super) ece: bool,
    /// It changed the window.
    pub(super) window: bool,
    /// It delivered a segment that was never sent again, from before the recovery.
    pub(super) original: bool,
    /// Something retransmitted is acknowledged, so that the time of its first sending says nothing.
    retransmitted: bool,
    /// Retransmissions were found lost.
    pub(super) lost_retransmission: bool,
    /// The retransmission timer is to start anew.
    pub(super) restart_timer: bool,
    /// When the first and the last segment that it delivered were sent.
    first_acked: Option<u64>,
    last_acked: u64,
    first_sacked: Option<u64>,
    last_sacked: u64,
    /// Where reordering began that it shows.
    reordered_from: Option<u64>,
    /// When that was sent which it answers.
    pub(super) echo: u64,
    /// RTT for the controller, µs; 0: none.
    rtt_us: u32,
}

/// What is to be sent because of an acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Resend {
    Nothing,
    Lost,
}

impl Sender {
    /// An acknowledgement has arrived.
    pub(crate) fn on_ack(&mut self, packet: &Packet, net: &mut Net) {
        // Older than what is known, or of something that was never sent.
        if self.state.is_none() || packet.seq < self.una || packet.seq > self.nxt {
            return;
        }
        if self.is_plain(packet) {
            self.advance(packet, net);
        } else if !self.weigh(packet, net) {
            return;
        }
        debug_assert!(self.is_consistent());
        self.push(net);
        self.end_if_done(net);
        self.wait_for_receipt(net);
    }

    /// Whether nothing is amiss, and an acknowledgement says nothing but that more has arrived in order, of what was sent once. So do nearly all: they
    /// need not be weighed.
    fn is_plain(&self, packet: &Packet) -> bool {
        let is_calm = self.phase == Phase::Open
            && self.sacked_out | self.lost_out | self.retrans_out == 0
            && self.again.is_empty()
            && self.probe_high.is_none()
            && self.highest_sacked <= self.una;
        let mut acked = self.segments.iter().take_while(|segment| segment.end() <= packet.seq).peekable();
        is_calm && packet.flags == 0 && !packet.has_ranges() && acked.peek().is_some() && acked.all(|segment| segment.flags & !LAST == 0)
    }

    /// Takes what a plain acknowledgement acknowledges off the scoreboard: what `weigh` would find of it, and no more.
    fn advance(&mut self, packet: &Packet, net: &mut Net) {
        let (now, mut acked) = (net.now, 0);
        (self.timeouts_in_row, self.duplicates) = (0, 0);
        self.update_window(packet);
        if let Some(state) = &mut self.state {
            state.hear(packet.told);
        }
        let (mut first, mut last) = (None, None);
        while let Some(&segment) = self.segments.front().filter(|segment| segment.end() <= packet.seq) {
            self.segments.pop_front();
            first.get_or_insert(segment);
            last = Some(segment);
            acked += 1;
        }
        self.base += u64::from(acked);
        self.una = packet.seq;
        self.delivered += u64::from(acked);
        let (Some(first), Some(last)) = (first, last) else { return };
        self.rack_advance(&last, now);
        let latest = self.measured(last.sent, now);
        self.rtt.sample_least(latest, now / 1000);
        self.rtt.sample(self.measured(first.sent, now), self.una, self.nxt);
        self.tell_sample(latest, net);
        if self.pending != Pending::Reorder || self.segments.is_empty() {
            self.set_timer(net);
        }
        if self.whole {
            self.tell_ack(acked, 0, latest, net);
        } else {
            self.grow(acked, net);
        }
    }

    /// What an acknowledgement is found to say has its consequences; false: it is the window alone that it tells.
    fn weigh(&mut self, packet: &Packet, net: &mut Net) -> bool {
        let (before_delivered, before_lost, had_packets) = (self.delivered, self.lost, !self.segments.is_empty());
        let (ece, in_recovery) = (self.place.ecn && packet.has(ECE), self.phase == Phase::Recovery);
        let mut news = News { prior_una: self.una, echo: packet.sent, ece, in_recovery, ..News::default() };
        let prior_highest = self.highest_sacked.max(self.una);
        if packet.seq > self.una {
            news.advanced = true;
            self.timeouts_in_row = 0;
        }
        news.window = self.update_window(packet);
        if let Some(state) = &mut self.state {
            state.hear(packet.told);
        }
        if !had_packets {
            self.answer_without_data(net);
            return false;
        }
        if packet.has_ranges() && !self.is_newreno() {
            self.mark_sacked(packet, &mut news, net.now);
        }
        self.clean(packet.seq, &mut news, prior_highest, net);
        if self.probe_high.is_some() {
            self.process_probe_ack(packet, &news, net);
        }
        let resend = if self.is_newreno() { self.newreno_ack(packet, &mut news, net) } else { self.dubious(&mut news, net) };
        if news.restart_timer && self.pending != Pending::Reorder {
            self.set_timer(net);
        }
        let (delivered, lost) = ((self.delivered - before_delivered) as u32, (self.lost - before_lost) as u32);
        self.control_window(delivered, lost, &news, net);
        if resend == Resend::Lost {
            self.retransmit_lost(net);
        }
        true
    }

    /// The controller hears when the last byte is acknowledged.
    pub(crate) fn end_if_done(&mut self, net: &mut Net) {
        if self.last && self.una == self.end && !self.done {
            self.done = true;
            self.disarm();
            self.tell(Event { kind: Kind::Close, ..Event::default() }, net);
        }
    }

    /// The handshake's last word, after data was sent: what it tells is the window. What acknowledges some of the data, too, is an
    /// acknowledgement like any other.
    pub(crate) fn on_last_word(&mut self, packet: &Packet, net: &mut Net) {
        if packet.seq > self.una {
            self.on_ack(packet, net);
        } else {
            self.update_window(packet);
            self.push(net);
        }
    }

    /// The states look at what is not plainly good news (tcp_ack_is_dubious).
    fn dubious(&mut self, news: &mut News, net: &mut Net) -> Resend {
        let is_duplicate = !news.window && !news.advanced;
        if is_duplicate || news.sacked || news.ece || news.twice || self.phase != Phase::Open {
            self.fast_retransmit(news, net)
        } else {
            Resend::Nothing
        }
    }

    /// The window that it tells; whether it is another one.
    fn update_window(&mut self, packet: &Packet) -> bool {
        let end = packet.seq + u64::from(packet.amount);
        // As RFC 9293 §3.10.7.4 asks: an acknowledgement that was overtaken has an older window.
        let is_other = packet.amount != self.snd_wnd;
        if packet.seq > self.una || end > self.window_end || is_other {
            self.snd_wnd = packet.amount;
            self.window_end = self.window_end.max(end);
        }
        is_other
    }

    /// Nothing was under way: it is the window that is told (tcp_ack_probe).
    fn answer_without_data(&mut self, net: &mut Net) {
        if self.pending == Pending::WindowProbe {
            self.disarm();
            self.timeouts_in_row = 0;
        }
        self.push(net);
    }

    /// Marks what the blocks say has arrived (tcp_sacktag_write_queue). What the last acknowledgement said already costs nothing.
    fn mark_sacked(&mut self, packet: &Packet, news: &mut News, now: u64) {
        let mut ranges = packet.ranges();
        if packet.has(DSACK)
            && let Some((start, end)) = ranges.next()
        {
            self.note_duplicate(start, end, news);
        }
        let mut known = [(0, 0); 3];
        for (slot, (start, end)) in known.iter_mut().zip(ranges) {
            *slot = (start, end);
            self.mark_range(start.max(self.una), end.min(self.nxt), news, now);
        }
        self.known = known;
    }

    /// Marks a range, but for what is known.
    fn mark_range(&mut self, start: u64, end: u64, news: &mut News, now: u64) {
        let mut at = start;
        while at < end {
            if let Some((_, known)) = self.known.into_iter().find(|(from, to)| (*from..*to).contains(&at)) {
                at = known;
                continue;
            }
            let index = self.index_of(at);
            // Up to what is known beyond it.
            let until = self.known.into_iter().map(|(from, _)| from).filter(|from| *from > at).fold(end, u64::min);
            for index in index..self.segments.len() {
                let segment = self.segments[index];
                if segment.end() > until {
                    break;
                }
                self.mark_segment(index, segment, news, now);
            }
            at = until;
        }
    }

    /// A segment has arrived out of order (tcp_sacktag_one).
    fn mark_segment(&mut self, index: usize, segment: Segment, news: &mut News, now: u64) {
        if segment.has(SACKED) {
            return;
        }
        self.rack_advance(&segment, now);
        let mut flags = segment.flags;
        if segment.has(RETRANS) {
            // Where it does not count as lost its retransmission is believed to be under way yet.
            if segment.has(LOST) {
                flags &= !(LOST | RETRANS);
                self.lost_out -= 1;
                self.retrans_out -= 1;
            }
        } else {
            if !segment.has(EVER_RETRANS) {
                if segment.start < self.highest_sacked {
                    note_least(&mut news.reordered_from, segment.start);
                }
                news.original |= segment.end() <= self.high;
                news.first_sacked.get_or_insert(segment.sent);
                news.last_sacked = segment.sent;
            }
            if segment.has(LOST) {
                flags &= !LOST;
                self.lost_out -= 1;
            }
        }
        self.segments[index].flags = flags | SACKED;
        self.sacked_out += 1;
        self.highest_sacked = self.highest_sacked.max(segment.end());
        news.sacked = true;
        self.count_delivered(1, news.ece);
    }

    /// What came twice may have been sent again needlessly (tcp_check_dsack, RFC 2883).
    fn note_duplicate(&mut self, start: u64, end: u64, news: &mut News) {
        news.twice = true;
        self.rack.note_duplicate();
        let Some(marker) = self.undo_marker else { return };
        if end <= marker {
            return;
        }
        let count = if start < self.una {
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

    pub(super) fn count_delivered(&mut self, count: u64, ece: bool) {
        self.delivered += count;
        if ece {
            self.delivered_marked += count;
        }
    }

    /// Takes what is acknowledged off the scoreboard, and measures (tcp_clean_rtx_queue).
    fn clean(&mut self, ack: u64, news: &mut News, prior_highest: u64, net: &mut Net) {
        let now = net.now;
        while let Some(&segment) = self.segments.front() {
            if segment.end() > ack {
                break;
            }
            self.segments.pop_front();
            self.base += 1;
            self.forget(&segment, news, now);
        }
        self.una = ack;
        news.restart_timer |= news.advanced;
        if self.segments.is_empty() {
            self.disarm();
        }
        self.measure(news, net);
        if news.advanced && news.reordered_from.is_some_and(|from| from < prior_highest) {
            self.note_reordering(news.reordered_from.unwrap_or(ack), prior_highest);
        } else if let (false, Some(from)) = (news.advanced, news.reordered_from) {
            self.note_reordering(from, self.highest_sacked);
        }
        // What waits to be sent again and was acknowledged in between need not be.
        while self.again.front().is_some_and(|number| *number < self.base) {
            self.again.pop_front();
        }
        self.tell_sample(news.rtt_us, net);
    }

    /// A segment is acknowledged.
    fn forget(&mut self, segment: &Segment, news: &mut News, now: u64) {
        if segment.has(RETRANS | EVER_RETRANS) {
            if segment.has(RETRANS) {
                self.retrans_out -= 1;
            }
            news.retransmitted = true;
        } else if !segment.has(SACKED) {
            news.first_acked.get_or_insert(segment.sent);
            news.last_acked = segment.sent;
            note_least(&mut news.reordered_from, segment.start);
            news.original |= segment.end() <= self.high;
        }
        if segment.has(SACKED) {
            self.sacked_out -= 1;
        } else {
            self.count_delivered(1, news.ece);
            // What an acknowledgement echoes was sent before the retransmission: that was not what arrived (tcp_skb_spurious_retrans).
            if !(segment.has(EVER_RETRANS) && news.echo < segment.sent) {
                self.rack_advance(segment, now);
            }
        }
        if segment.has(LOST) {
            self.lost_out -= 1;
        }
    }

    /// Time since something was sent, µs.
    fn measured(&self, sent: u64, now: u64) -> u32 {
        ((now - sent) / 1000).max(1) as u32
    }

    /// Measures the round trip (tcp_ack_update_rtt).
    fn measure(&mut self, news: &mut News, net: &Net) {
        let since = |sent: u64| self.measured(sent, net.now);
        let acked = news.first_acked.filter(|_| !news.retransmitted);
        let (mut smooth, mut latest) = (acked.map(since), acked.map(|_| since(news.last_acked)));
        if let Some(first) = news.first_sacked {
            smooth = smooth.or(Some(since(first)));
            latest = Some(since(news.last_sacked));
        }
        // Karn's problem is none with timestamps (RFC 7323 §4).
        if smooth.is_none() && news.advanced && news.echo > 0 {
            smooth = Some(since(news.echo));
            latest = smooth;
        }
        let (Some(smooth), Some(latest)) = (smooth, latest) else { return };
        if !news.advanced && self.segments.front().is_some_and(|head| smooth > since(head.sent)) {
            // It was sent before the head was last, so that the head's timer may go on from here.
            news.restart_timer = true;
        }
        news.rtt_us = latest;
        self.rtt.sample_least(latest, net.now / 1000);
        self.rtt.sample(smooth, self.una, self.nxt);
    }

    /// Tells the controller what was delivered since the last time, and the round trip (pkts_acked).
    fn tell_sample(&mut self, rtt_us: u32, net: &mut Net) {
        if !self.wants_samples {
            return;
        }
        let (delivered, marked) = self.sampled;
        self.sampled = (self.delivered, self.delivered_marked);
        let acked = (self.delivered - delivered) as u32;
        let marked = (self.delivered_marked - marked) as u32;
        let event = Event { kind: Kind::Sample, acked, marked, rtt_us, ..Event::default() };
        (self.flow.cwnd, self.flow.ssthresh) = self.tell(event, net);
    }

    /// Lets the window follow (tcp_cong_control).
    fn control_window(&mut self, delivered: u32, lost: u32, news: &News, net: &mut Net) {
        if self.whole {
            self.tell_ack(delivered, lost, news.rtt_us, net);
        } else if self.is_newreno() {
            if news.advanced && !news.in_recovery {
                self.grow(delivered, net);
            }
        } else if self.is_reducing() {
            self.reduce(delivered, lost, news);
        } else if news.advanced || (self.reordering > 3 && news.sacked) {
            // tcp_may_raise_cwnd
            self.grow(delivered, net);
        }
    }

    /// A controller of the whole window hears of every acknowledgement.
    fn tell_ack(&mut self, acked: u32, lost: u32, rtt_us: u32, net: &mut Net) {
        // What is out of order is acknowledged at once, and every second segment.
        let held = if acked <= 1 && self.sacked_out == 0 { control::DELAYED_ACK } else { 0 };
        let flags = self.limited() | held;
        self.tell(Event { kind: Kind::Ack, flags, acked, rtt_us, lost, ..Event::default() }, net);
    }

    /// The window may grow (tcp_cong_avoid).
    fn grow(&mut self, delivered: u32, net: &mut Net) {
        let event = Event { kind: Kind::Ack, flags: self.limited(), acked: delivered, ..Event::default() };
        (self.flow.cwnd, self.flow.ssthresh) = self.tell(event, net);
    }
}

/// Keeps the least of what is noted.
fn note_least(least: &mut Option<u64>, value: u64) {
    *least = Some(least.map_or(value, |least| least.min(value)));
}
