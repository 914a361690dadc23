//! The receiving end of a connection, as in Linux (net/ipv4/tcp_input.c, tcp_output.c): reassembly,
//! acknowledgements and the advertised window.
//!
//! Not modelled: compression of acknowledgements for out-of-order data (each is sent immediately),
//! and memory pressure.
//!
//! For a data segment the caller calls [`TcpReceiver::on_data`], then [`TcpReceiver::release`] with
//! what the application has read or the proxy has sent on, then [`TcpReceiver::ack_if_due`].

use crate::{
    event_queue::{EventKey, ScheduledEventKind, Timer},
    feedback::RouterFeedback,
    network::SimNetwork,
    packet::{CE, CWR, DSACK, ECE, FIN, HEADER_BYTES, MAX_SACK_BLOCKS, PacketKind, SimPacket, sack_option_bytes},
    receive_tuning::ReceiveTuning,
    settings::{Recovery, TcpSettings},
};
use std::collections::VecDeque;
use units::Span;

/// The window of the handshake, bytes: 16 bits without scaling (RFC 7323 §2.2). Later windows are
/// not bound by it: the receive buffer is large from the start (net.ipv4.tcp_rmem, as the lab sets
/// it), and so is the part of it that Linux offers (tcp_select_initial_window).
pub(crate) const HANDSHAKE_WINDOW: u64 = 65_535;
/// The largest window that can be advertised, bytes: 16 bits, shifted by 14 (RFC 7323 §2.3).
pub(crate) const MAX_WINDOW: u64 = 65_535 << 14;
/// The initial delay of an acknowledgement, µs (TCP_ATO_MIN).
const ATO_MIN_US: u64 = 40_000;
/// The largest delay of an acknowledgement, µs (TCP_DELACK_MAX).
const DELACK_MAX_US: u64 = 200_000;
/// Number of acknowledgements that are sent immediately at the start (TCP_MAX_QUICKACKS).
const MAX_QUICK_ACKS: u32 = 16;

/// How a receiver reports CE marks to the sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EcnEcho {
    /// From the first mark on, until the sender has set CWR (RFC 3168 §6.1.3).
    UntilCwr,
    /// For each segment, whether it was marked (DCTCP, RFC 8257 §3.2).
    EachSegment,
}

/// The receiving end of a connection.
#[derive(Debug)]
pub(crate) struct TcpReceiver {
    connection: u32,
    /// The channel into which it sends acknowledgements.
    channel: usize,
    settings: TcpSettings,
    echo: EcnEcho,
    established: bool,
    /// RCV.NXT: the first byte that has not arrived in order.
    pub(crate) rcv_nxt: u64,
    /// The end of the stream, once its FIN has arrived.
    pub(crate) stream_end: Option<u64>,
    /// Out-of-order data: disjoint ranges, sorted.
    out_of_order: VecDeque<(u64, u64)>,
    /// The ranges to report as SACK blocks, newest first.
    sack_order: Vec<(u64, u64)>,
    /// A duplicate segment that has not been reported yet (DSACK).
    dsack: Option<(u64, u64)>,

    /// Data before this byte was read by the application, or sent on by the proxy. The bytes from
    /// here to `rcv_nxt` occupy the buffer.
    released: u64,
    /// Size of the receive buffer, bytes.
    buffer: u64,
    /// The largest window, bytes (window_clamp).
    window_clamp: u64,
    /// The buffer grows as the application reads: its size, and the largest window, are those.
    tuning: Option<Box<ReceiveTuning>>,
    /// In `semi` mode: the byte up to which the far end has acknowledged, which is reported to the
    /// sender by delivery receipts.
    delivered: u64,
    /// The first byte beyond the advertised window. During the handshake this is the window that
    /// scaling would have allowed.
    right_edge: u64,
    /// The window in the last acknowledgement, bytes.
    advertised_window: u64,
    /// The acknowledgement number in the last acknowledgement.
    last_acked: u64,

    /// The timestamp that the next acknowledgement echoes, ns (TS.Recent).
    ts_recent: u64,
    /// Data has arrived that was not acknowledged.
    ack_scheduled: bool,
    /// Acknowledgements that are still to be sent immediately (quick).
    quick_acks: u32,
    /// Delay of an acknowledgement, µs (ato).
    ato_us: u64,
    last_arrival_ns: u64,
    rto_us: u64,
    srtt_us: u64,
    /// Acknowledgements carry ECE.
    ce_state: bool,
    /// Feedback of routers for the sender.
    feedback: RouterFeedback,
    timer: Timer,
    /// The timer is set for the application, which reads and thereby acknowledges.
    awaits_read: bool,
    /// Acknowledgements sent, including delivery receipts.
    pub(crate) acks_sent: u64,
    /// Bytes that arrived more than once.
    pub(crate) duplicate_bytes: u64,
}

impl TcpReceiver {
    /// A receiver before its handshake, with this receive buffer and largest window, bytes.
    pub(crate) fn new(connection: u32, channel: usize, [buffer, window_clamp]: [u64; 2], echo: EcnEcho, settings: TcpSettings) -> Self {
        let window_clamp = window_clamp.min(buffer);
        TcpReceiver {
            connection,
            channel,
            settings,
            echo,
            established: false,
            rcv_nxt: 0,
            stream_end: None,
            out_of_order: VecDeque::new(),
            sack_order: Vec::new(),
            dsack: None,
            released: 0,
            buffer,
            window_clamp,
            tuning: None,
            delivered: 0,
            right_edge: window_clamp,
            advertised_window: window_clamp,
            last_acked: 0,
            ts_recent: 0,
            ack_scheduled: false,
            quick_acks: 0,
            ato_us: 0,
            last_arrival_ns: 0,
            rto_us: settings.initial_rto.0 / 1000,
            srtt_us: 0,
            ce_state: false,
            feedback: RouterFeedback::default(),
            timer: Timer::default(),
            awaits_read: false,
            acks_sent: 0,
            duplicate_bytes: 0,
        }
    }

    /// The same with a receive buffer that grows as the application reads.
    pub(crate) fn with_tuning(mut self, tuning: ReceiveTuning) -> Self {
        self.right_edge = tuning.window().min(self.window_clamp);
        self.advertised_window = self.right_edge;
        self.tuning = Some(Box::new(tuning));
        self
    }

    /// The handshake is complete. `rtt_us` is its RTT, 0 if it was not measured.
    pub(crate) fn establish(&mut self, rtt_us: u32) {
        self.established = true;
        self.timer.stop();
        self.srtt_us = rtt_us.into();
        self.rto_us = self.srtt_us + 200_000;
    }

    /// Acknowledges a SYN-ACK that was sent at `sent_ns`.
    pub(crate) fn answer_syn_ack(&mut self, sent_ns: u64, net: &mut SimNetwork) {
        self.ts_recent = self.ts_recent.max(sent_ns);
        self.send_ack(net);
    }

    /// The RTT of the handshake, µs; 0 if it was not measured.
    pub(crate) fn srtt_us(&self) -> u32 {
        self.srtt_us as u32
    }

    fn key(&self) -> EventKey {
        EventKey { target: self.connection, kind: ScheduledEventKind::ReceiverTimer }
    }

    /// Sets the timer of the handshake, which is the timer of delayed acknowledgements later.
    pub(crate) fn arm_handshake(&mut self, after_us: u64, net: &mut SimNetwork) {
        let key = self.key();
        net.set_timer(&mut self.timer, key, after_us);
    }

    /// To be called when an event of this receiver's timer surfaces at `at`: whether the timer has
    /// expired.
    pub(crate) fn timer_expired(&mut self, at: u64, net: &mut SimNetwork) -> bool {
        let key = self.key();
        self.timer.expired(at, key, &mut net.events)
    }

    /// Whether the whole stream has arrived.
    pub(crate) fn is_complete(&self) -> bool {
        self.stream_end == Some(self.rcv_nxt)
    }

    /// Whether the last advertised window was less than two segments (the proxy's meter applies the
    /// same test to tcpi_rcv_wnd of TCP_INFO).
    pub(crate) fn window_nearly_closed(&self) -> bool {
        self.advertised_window < 2 * u64::from(self.settings.mss)
    }

    /// The window in a SYN or SYN-ACK, bytes.
    pub(crate) fn handshake_window(&self) -> u32 {
        (self.right_edge - self.rcv_nxt).min(HANDSHAKE_WINDOW) as u32
    }

    /// Accepts the payload of a SYN (RFC 7413 §4.2.2), which is the whole stream if `fin` is set.
    /// Payload that does not fit the window is ignored; the SYN-ACK tells the sender.
    pub(crate) fn accept_syn_data(&mut self, len: u64, fin: bool) {
        if len == 0 || len > self.right_edge {
            return;
        }
        self.rcv_nxt = len;
        self.last_acked = len;
        self.advertised_window = self.right_edge - len;
        self.stream_end = fin.then_some(len);
    }

    /// In `semi` mode: the far end has acknowledged up to `delivered`; sends a receipt if that is
    /// news.
    pub(crate) fn forward_receipt(&mut self, delivered: u64, net: &mut SimNetwork) {
        if delivered > self.delivered {
            self.delivered = delivered;
            self.resend_receipt(net);
        }
    }

    /// Sends the last delivery receipt again, if there was one.
    pub(crate) fn resend_receipt(&mut self, net: &mut SimNetwork) {
        if self.delivered == 0 {
            return;
        }
        let mut packet = SimPacket::without_payload(self.connection, PacketKind::DeliveryReceipt, HEADER_BYTES);
        packet.seq = self.delivered;
        self.acks_sent += 1;
        net.send(self.channel, packet);
    }

    /// A data segment has arrived. [`ack_if_due`](Self::ack_if_due) sends the acknowledgement after
    /// the caller has released what it could.
    pub(crate) fn on_data(&mut self, packet: &SimPacket, net: &mut SimNetwork) {
        let (start, end) = (packet.seq, packet.seq + u64::from(packet.len_or_window));
        if packet.has_flag(FIN) {
            self.stream_end = Some(end);
        }
        self.update_ecn(packet, net);
        self.feedback.add(packet);
        // RFC 7323 §4.3: an acknowledgement echoes the timestamp of the first segment that it
        // covers.
        if start <= self.last_acked {
            self.ts_recent = self.ts_recent.max(packet.timestamp_ns);
        }
        if end <= self.rcv_nxt || end > self.right_edge {
            self.reject(start, end);
            return;
        }
        self.update_ato(net.now);
        if start > self.rcv_nxt {
            self.store_out_of_order(start, end);
            self.quick_acks = self.quick_acks.max(1);
            self.ack_scheduled = true;
            return;
        }
        self.rcv_nxt = end;
        if let Some(tuning) = &mut self.tuning {
            tuning.on_segment(end - start);
        }
        if packet.len_or_window < self.settings.mss {
            // The application has emptied the queue with a short segment, so no more data is
            // expected soon (tcp_cleanup_rbuf).
            self.quick_acks = self.quick_acks.max(1);
        }
        if !self.out_of_order.is_empty() {
            self.merge_out_of_order();
            // RFC 5681 §4.2: acknowledge immediately when a gap is filled.
            self.quick_acks = self.quick_acks.max(1);
        }
        self.ack_scheduled = true;
    }

    /// A duplicate segment, or one beyond the window.
    fn reject(&mut self, start: u64, end: u64) {
        if end <= self.rcv_nxt {
            self.dsack = Some((start, end));
            self.duplicate_bytes += end - start;
        }
        self.quick_acks = self.quick_acks.max(1);
        self.ack_scheduled = true;
    }

    /// Adapts the delay of acknowledgements to the gaps between segments (tcp_event_data_recv).
    fn update_ato(&mut self, now: u64) {
        let gap_us = (now - self.last_arrival_ns) / 1000;
        if self.ato_us == 0 {
            self.enter_quickack();
            self.ato_us = ATO_MIN_US;
        } else if gap_us <= ATO_MIN_US / 2 {
            self.ato_us = self.ato_us / 2 + ATO_MIN_US / 2;
        } else if gap_us < self.ato_us {
            self.ato_us = (self.ato_us / 2 + gap_us).min(self.rto_us);
        } else if gap_us > self.rto_us {
            self.enter_quickack();
        }
        self.last_arrival_ns = now;
    }

    /// Makes the next acknowledgements immediate (tcp_incr_quickack).
    fn enter_quickack(&mut self) {
        let half = self.advertised_window / (2 * u64::from(self.settings.mss));
        self.quick_acks = self.quick_acks.max((half.max(2) as u32).min(MAX_QUICK_ACKS));
    }

    /// Updates the ECN echo from the flags CE and CWR of a segment.
    fn update_ecn(&mut self, packet: &SimPacket, net: &mut SimNetwork) {
        let is_marked = packet.has_flag(CE);
        match self.echo {
            EcnEcho::UntilCwr => {
                if packet.has_flag(CWR) {
                    self.ce_state = false;
                }
                self.ce_state |= is_marked;
            }
            // Acknowledge the segments with the former state first (RFC 8257 §3.2).
            EcnEcho::EachSegment if self.ce_state != is_marked => {
                if self.ack_scheduled {
                    self.send_ack(net);
                }
                self.ce_state = is_marked;
                self.quick_acks = self.quick_acks.max(1);
            }
            EcnEcho::EachSegment => {}
        }
    }

    /// Out-of-order payload that is held, bytes.
    pub(crate) fn out_of_order_bytes(&self) -> u64 {
        self.out_of_order.iter().map(|(start, end)| end - start).sum()
    }

    /// Stores an out-of-order segment.
    fn store_out_of_order(&mut self, start: u64, end: u64) {
        // `from` and `to` delimit the ranges that touch the segment. Usually it is beyond all of
        // them.
        let from = match self.out_of_order.back() {
            Some(last) if last.1 < start => self.out_of_order.len(),
            _ => self.out_of_order.partition_point(|range| range.1 < start),
        };
        let mut whole = (start, end);
        let mut to = from;
        while let Some(&range) = self.out_of_order.get(to).filter(|range| range.0 <= end) {
            if range.0 <= start && end <= range.1 {
                self.dsack = Some((start, end));
                self.duplicate_bytes += end - start;
                return;
            }
            whole = (whole.0.min(range.0), whole.1.max(range.1));
            to += 1;
        }
        if from == to {
            self.out_of_order.insert(from, whole);
        } else {
            self.out_of_order[from] = whole;
            self.out_of_order.drain(from + 1..to);
        }
        self.sack_order.retain(|block| block.0 > whole.1 || block.1 < whole.0);
        self.sack_order.insert(0, whole);
        self.sack_order.truncate(MAX_SACK_BLOCKS + 1);
    }

    /// Advances `rcv_nxt` over the out-of-order data that it has reached.
    fn merge_out_of_order(&mut self) {
        let reached = self.out_of_order.iter().take_while(|range| range.0 <= self.rcv_nxt).count();
        if reached > 0 {
            self.rcv_nxt = self.rcv_nxt.max(self.out_of_order[reached - 1].1);
            self.out_of_order.drain(..reached);
        }
        let rcv_nxt = self.rcv_nxt;
        self.sack_order.retain(|block| block.1 > rcv_nxt);
    }

    /// Acknowledges what has arrived, now or after a delay (__tcp_ack_snd_check).
    pub(crate) fn ack_if_due(&mut self, net: &mut SimNetwork) {
        if !self.ack_scheduled {
            return;
        }
        let more_than_one_segment = self.rcv_nxt - self.last_acked > self.settings.mss.into();
        if self.quick_acks > 0 || !self.settings.delayed_acks || !self.out_of_order.is_empty() {
            self.send_ack(net);
        } else if more_than_one_segment {
            self.ack_when_read(net);
        } else {
            self.delay_ack(net);
        }
    }

    /// Acknowledges when the application has read (tcp_cleanup_rbuf).
    fn ack_when_read(&mut self, net: &mut SimNetwork) {
        if self.settings.read_delay == Span::ZERO {
            self.send_ack(net);
        } else if !self.awaits_read {
            self.awaits_read = true;
            let (due, key) = (net.now + self.settings.read_delay.0, self.key());
            net.events.set_timer(&mut self.timer, key, due);
        }
    }

    /// Delays an acknowledgement (tcp_send_delayed_ack).
    fn delay_ack(&mut self, net: &mut SimNetwork) {
        let mut ato = self.ato_us;
        if ato > ATO_MIN_US {
            let max_ato = if self.srtt_us > 0 { self.srtt_us.clamp(ATO_MIN_US, 500_000) } else { 500_000 };
            ato = ato.min(max_ato);
        }
        ato = ato.min(DELACK_MAX_US);
        let (due, key) = (net.now + ato * 1000, self.key());
        if self.timer.due() <= net.now + ato * 250 {
            self.send_ack(net);
        } else if due < self.timer.due() {
            net.events.set_timer(&mut self.timer, key, due);
        }
    }

    /// The timer of a delayed acknowledgement has expired.
    pub(crate) fn on_timer(&mut self, net: &mut SimNetwork) {
        if self.ack_scheduled {
            if !self.awaits_read {
                self.ato_us = (2 * self.ato_us).min(self.rto_us);
            }
            self.send_ack(net);
        }
    }

    /// Frees the buffer up to byte `to` (tcp_cleanup_rbuf), and sends a window update if the window
    /// has become at least twice what the sender knows. Returns the bytes freed.
    pub(crate) fn release(&mut self, to: u64, net: &mut SimNetwork) -> u64 {
        let freed = to.saturating_sub(self.released);
        self.released += freed;
        if self.is_complete() || !self.established {
            return freed;
        }
        if self.tuning.is_some() {
            let ahead = self.out_of_order.back().map_or(0, |last| last.1 - self.rcv_nxt);
            let (released, srtt_us) = (self.released, self.srtt_us);
            self.tuning.iter_mut().for_each(|tuning| tuning.on_read(released, ahead, net.now, srtt_us));
        }
        let known_window = self.right_edge - self.rcv_nxt;
        if 2 * known_window <= self.largest_window() {
            let window = self.select_window();
            if window > 0 && window >= 2 * known_window {
                self.send_ack(net);
            }
        }
        freed
    }

    /// The window that the buffer allows, bytes (__tcp_select_window): zero while there is hardly
    /// any room (silly window avoidance, RFC 9293 §3.8.6.2.2).
    fn select_window(&self) -> u64 {
        let buffer = self.tuning.as_ref().map_or(self.buffer, |tuning| tuning.buffer());
        let free = buffer.saturating_sub(self.rcv_nxt - self.released);
        if free < buffer / 2 && (free < buffer / 16 || free < self.settings.mss.into()) {
            return 0;
        }
        free.min(self.largest_window())
    }

    fn largest_window(&self) -> u64 {
        self.tuning.as_ref().map_or(self.window_clamp, |tuning| tuning.window().min(self.window_clamp))
    }

    /// Sends an acknowledgement of everything that has arrived.
    pub(crate) fn send_ack(&mut self, net: &mut SimNetwork) {
        // The right edge never moves back (tcp_select_window).
        self.right_edge = self.right_edge.max(self.rcv_nxt + self.select_window());
        self.advertised_window = self.right_edge - self.rcv_nxt;
        self.quick_acks = self.quick_acks.saturating_sub(u32::from(self.ack_scheduled));
        self.ack_scheduled = false;
        self.awaits_read = false;
        self.timer.stop();
        self.last_acked = self.rcv_nxt;
        self.acks_sent += 1;
        let mut packet = SimPacket::without_payload(self.connection, PacketKind::Ack, HEADER_BYTES);
        packet.seq = self.rcv_nxt;
        packet.timestamp_ns = self.ts_recent;
        packet.sent_us = net.now_us() as u32;
        packet.len_or_window = self.advertised_window.min(u32::MAX.into()) as u32;
        packet.feedback = self.feedback.take();
        if self.ce_state {
            packet.flags |= ECE;
        }
        if self.settings.recovery == Recovery::Sack {
            self.add_sack_blocks(&mut packet);
        }
        net.send(self.channel, packet);
    }

    /// Adds the SACK blocks, a DSACK first.
    fn add_sack_blocks(&mut self, packet: &mut SimPacket) {
        let mut blocks = 0;
        if let Some((start, end)) = self.dsack.take() {
            packet.flags |= DSACK;
            blocks += u16::from(packet.add_sack_block(start, end));
        }
        for &(start, end) in &self.sack_order {
            if !packet.add_sack_block(start, end) {
                break;
            }
            blocks += 1;
        }
        packet.size += sack_option_bytes(blocks);
    }
}
