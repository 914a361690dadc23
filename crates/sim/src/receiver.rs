//! The receiving end of a connection, as Linux has it (net/ipv4/tcp_input.c, tcp_output.c): what has arrived, when that is acknowledged,
//! and the window. Left out: the compression of acknowledgements of what is out of order (they go at once), and memory pressure.

use crate::{
    event_queue::{Key, Timer, What},
    feedback::Heard,
    network::Net,
    packet::{BLOCKS, CE, CWR, DSACK, ECE, FIN, HEADER, Kind, Packet},
    settings::{Recovery, Settings},
};
use std::collections::VecDeque;

/// The window of the handshake: 16 bits without a scale (RFC 7323 §2.2). What follows is not bound by it: the receive buffer of an end is large
/// from the start (net.ipv4.tcp_rmem, as the lab sets it), and with it what Linux lets be used of it (tcp_select_initial_window).
pub(crate) const FIRST_WINDOW: u64 = 65_535;
/// The largest window that an end can tell: 16 bits, shifted by 14 (RFC 7323 §2.3).
pub(crate) const LARGEST_WINDOW: u64 = 65_535 << 14;
/// For how long an acknowledgement is held back at first, µs (TCP_ATO_MIN), and at most (TCP_DELACK_MAX).
const ATO_MIN_US: u64 = 40_000;
const DELACK_MAX_US: u64 = 200_000;
/// Acknowledgements that go at once at the start (TCP_MAX_QUICKACKS).
const QUICK: u32 = 16;

/// How marks are told to the sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Echo {
    /// From the first mark on until the sender has answered (RFC 3168 §6.1.3).
    UntilAnswered,
    /// Of each segment whether it was marked (RFC 8257 §3.2).
    Each,
}

/// The receiving end of a connection.
#[derive(Debug)]
pub(crate) struct Receiver {
    conn: u32,
    /// The line that acknowledgements go into.
    line: usize,
    settings: Settings,
    echo: Echo,
    up: bool,
    /// All before it has arrived.
    pub(crate) next: u64,
    /// Where the stream ends, once that is known.
    pub(crate) end: Option<u64>,
    /// What has arrived beyond, in order, apart from each other.
    ranges: VecDeque<(u64, u64)>,
    /// Those of them to be told, the newest first.
    told: Vec<(u64, u64)>,
    /// What came twice, not told yet.
    twice: Option<(u64, u64)>,

    /// What was read, or sent on: what lies between it and `next` takes room.
    released: u64,
    /// How much room there is.
    room: u64,
    /// The largest window (window_clamp).
    clamp: u64,
    /// What the end beyond the proxy has acknowledged, where the sender is told of that.
    delivered: u64,
    /// First byte that the window does not permit. At first the handshake told less.
    right_edge: u64,
    /// The window told last (or in the handshake, had it been scaled), and what was acknowledged with it.
    told_window: u64,
    acked: u64,

    /// When that was sent which the next acknowledgement answers (TS.Recent).
    recent: u64,
    scheduled: bool,
    quick: u32,
    ato_us: u64,
    last_arrival: u64,
    rto_us: u64,
    srtt_us: u64,
    marked: bool,
    /// What routers told.
    heard: Heard,
    timer: Timer,
    /// Acknowledgements sent.
    pub(crate) acks: u64,
    /// Bytes that came though they were there already.
    pub(crate) duplicate_bytes: u64,
}

impl Receiver {
    /// One without a connection yet, with so much room, and windows no larger than `clamp`.
    pub(crate) fn new(conn: u32, line: usize, [room, clamp]: [u64; 2], echo: Echo, settings: Settings) -> Self {
        let clamp = clamp.min(room);
        Receiver {
            conn,
            line,
            settings,
            echo,
            up: false,
            next: 0,
            end: None,
            ranges: VecDeque::new(),
            told: Vec::new(),
            twice: None,
            released: 0,
            room,
            clamp,
            delivered: 0,
            right_edge: clamp,
            told_window: clamp,
            acked: 0,
            recent: 0,
            scheduled: false,
            quick: 0,
            ato_us: 0,
            last_arrival: 0,
            rto_us: settings.initial_rto.0 / 1000,
            srtt_us: 0,
            marked: false,
            heard: Heard::default(),
            timer: Timer::default(),
            acks: 0,
            duplicate_bytes: 0,
        }
    }

    /// The handshake is over, and has measured the round trip.
    pub(crate) fn establish(&mut self, rtt_us: u32) {
        self.up = true;
        self.timer.stop();
        self.srtt_us = rtt_us.into();
        self.rto_us = self.srtt_us + 200_000;
    }

    fn key(&self) -> Key {
        Key { who: self.conn, what: What::Acknowledge }
    }

    /// The timer of the handshake, which is the same.
    pub(crate) fn arm_handshake(&mut self, after_us: u64, net: &mut Net) {
        let key = self.key();
        net.set(&mut self.timer, key, after_us);
    }

    /// Whether an entry of the heap at `at` is this timer's, and it is time.
    pub(crate) fn timer_fires(&mut self, at: u64, net: &mut Net) -> bool {
        let key = self.key();
        self.timer.fires(at, key, &mut net.timers)
    }

    /// Whether all of the stream has arrived.
    pub(crate) fn is_complete(&self) -> bool {
        self.end == Some(self.next)
    }

    /// The sender was last told of room for less than two segments (TCP_INFO's tcpi_rcv_wnd, as the proxy's meter looks at it).
    pub(crate) fn holds_back(&self) -> bool {
        self.told_window < 2 * u64::from(self.settings.mss)
    }

    /// The window that a SYN tells.
    pub(crate) fn first_window(&self) -> u32 {
        (self.right_edge - self.next).min(FIRST_WINDOW) as u32
    }

    /// A SYN carries the first bytes of the stream (RFC 7413 §4.2.2), perhaps all: they are taken if there is room, and the SYN-ACK says so.
    pub(crate) fn take_from_syn(&mut self, len: u64, last: bool) {
        if len == 0 || len > self.right_edge {
            return;
        }
        (self.next, self.acked) = (len, len);
        self.told_window = self.right_edge - len;
        self.end = last.then_some(len);
    }

    /// So much of what it has acknowledged is with the far end, too: the sender is told what is new in that.
    pub(crate) fn pass_receipt(&mut self, delivered: u64, net: &mut Net) {
        if delivered > self.delivered {
            self.delivered = delivered;
            self.repeat_receipt(net);
        }
    }

    /// Tells again what the far end has, if there is such an end.
    pub(crate) fn repeat_receipt(&mut self, net: &mut Net) {
        if self.delivered == 0 {
            return;
        }
        let mut packet = Packet::bare(self.conn, Kind::Receipt, HEADER);
        packet.seq = self.delivered;
        self.acks += 1;
        net.send(self.line, packet);
    }

    /// A segment has arrived. What it makes the receiver say, it says in `answer`, when others have taken what they can.
    pub(crate) fn on_data(&mut self, packet: &Packet, net: &mut Net) {
        let (start, end) = (packet.seq, packet.seq + u64::from(packet.amount));
        if packet.has(FIN) {
            self.end = Some(end);
        }
        self.note_mark(packet, net);
        self.heard.note(packet);
        // RFC 7323 §4.3: the time that an acknowledgement echoes is of the first segment that it answers.
        if start <= self.acked {
            self.recent = self.recent.max(packet.sent);
        }
        if end <= self.next || end > self.right_edge {
            self.refuse(start, end);
            return;
        }
        self.note_arrival(net.now);
        if start > self.next {
            self.keep(start, end);
            self.quick = self.quick.max(1);
            self.scheduled = true;
            return;
        }
        self.next = end;
        if packet.amount < self.settings.mss {
            // Whoever reads it has emptied the queue of a short segment (tcp_cleanup_rbuf): no more will follow soon.
            self.quick = self.quick.max(1);
        }
        if !self.ranges.is_empty() {
            self.join();
            // RFC 5681 §4.2: at once when a gap is filled.
            self.quick = self.quick.max(1);
        }
        self.scheduled = true;
    }

    /// What came twice, or does not fit.
    fn refuse(&mut self, start: u64, end: u64) {
        if end <= self.next {
            self.twice = Some((start, end));
            self.duplicate_bytes += end - start;
        }
        self.quick = self.quick.max(1);
        self.scheduled = true;
    }

    /// How segments come decides how acknowledgements go (tcp_event_data_recv).
    fn note_arrival(&mut self, now: u64) {
        let gap_us = (now - self.last_arrival) / 1000;
        if self.ato_us == 0 {
            self.quicken();
            self.ato_us = ATO_MIN_US;
        } else if gap_us <= ATO_MIN_US / 2 {
            self.ato_us = self.ato_us / 2 + ATO_MIN_US / 2;
        } else if gap_us < self.ato_us {
            self.ato_us = (self.ato_us / 2 + gap_us).min(self.rto_us);
        } else if gap_us > self.rto_us {
            self.quicken();
        }
        self.last_arrival = now;
    }

    /// The next ones go at once (tcp_incr_quickack).
    fn quicken(&mut self) {
        let half = self.told_window / (2 * u64::from(self.settings.mss));
        self.quick = self.quick.max((half.max(2) as u32).min(QUICK));
    }

    /// A mark, or the sender's answer to one.
    fn note_mark(&mut self, packet: &Packet, net: &mut Net) {
        let is_marked = packet.has(CE);
        match self.echo {
            Echo::UntilAnswered => {
                if packet.has(CWR) {
                    self.marked = false;
                }
                self.marked |= is_marked;
            }
            // What is not acknowledged yet was marked otherwise: that is told first (RFC 8257 §3.2).
            Echo::Each if self.marked != is_marked => {
                if self.scheduled {
                    self.acknowledge(net);
                }
                self.marked = is_marked;
                self.quick = self.quick.max(1);
            }
            Echo::Each => {}
        }
    }

    /// Payload that has arrived out of order.
    pub(crate) fn out_of_order(&self) -> u64 {
        self.ranges.iter().map(|(start, end)| end - start).sum()
    }

    /// Keeps what is out of order.
    fn keep(&mut self, start: u64, end: u64) {
        // The first that ends at or after it begins, and the first that begins after it ends. Mostly it comes behind them all.
        let from = match self.ranges.back() {
            Some(last) if last.1 < start => self.ranges.len(),
            _ => self.ranges.partition_point(|range| range.1 < start),
        };
        let mut whole = (start, end);
        let mut to = from;
        while let Some(&range) = self.ranges.get(to).filter(|range| range.0 <= end) {
            if range.0 <= start && end <= range.1 {
                self.twice = Some((start, end));
                self.duplicate_bytes += end - start;
                return;
            }
            whole = (whole.0.min(range.0), whole.1.max(range.1));
            to += 1;
        }
        if from == to {
            self.ranges.insert(from, whole);
        } else {
            self.ranges[from] = whole;
            self.ranges.drain(from + 1..to);
        }
        self.told.retain(|told| told.0 > whole.1 || told.1 < whole.0);
        self.told.insert(0, whole);
        self.told.truncate(BLOCKS + 1);
    }

    /// A gap is filled.
    fn join(&mut self) {
        let reached = self.ranges.iter().take_while(|range| range.0 <= self.next).count();
        if reached > 0 {
            self.next = self.next.max(self.ranges[reached - 1].1);
            self.ranges.drain(..reached);
        }
        let next = self.next;
        self.told.retain(|told| told.1 > next);
    }

    /// Says what there is to say of what has arrived, now or a little later (__tcp_ack_snd_check).
    pub(crate) fn answer(&mut self, net: &mut Net) {
        if !self.scheduled {
            return;
        }
        let full = self.next - self.acked > self.settings.mss.into();
        if full || self.quick > 0 || !self.settings.delayed_acks || !self.ranges.is_empty() {
            self.acknowledge(net);
        } else {
            self.hold_back(net);
        }
    }

    /// Holds an acknowledgement back (tcp_send_delayed_ack).
    fn hold_back(&mut self, net: &mut Net) {
        let mut ato = self.ato_us;
        if ato > ATO_MIN_US {
            let most = if self.srtt_us > 0 { self.srtt_us.clamp(ATO_MIN_US, 500_000) } else { 500_000 };
            ato = ato.min(most);
        }
        ato = ato.min(DELACK_MAX_US);
        let (due, key) = (net.now + ato * 1000, self.key());
        if self.timer.due() <= net.now + ato * 250 {
            self.acknowledge(net);
        } else if due < self.timer.due() {
            net.timers.set(&mut self.timer, key, due);
        }
    }

    /// The timer of a held one has fired.
    pub(crate) fn on_timer(&mut self, net: &mut Net) {
        if self.scheduled {
            self.ato_us = (2 * self.ato_us).min(self.rto_us);
            self.acknowledge(net);
        }
    }

    /// Some of what had arrived takes no more room (tcp_cleanup_rbuf): the sender is told when the window is twice what it knows of.
    /// Returns how much of it that is.
    pub(crate) fn release(&mut self, to: u64, net: &mut Net) -> u64 {
        let more = to.saturating_sub(self.released);
        self.released += more;
        if self.is_complete() || !self.up {
            return more;
        }
        let known = self.right_edge - self.next;
        if 2 * known <= self.clamp {
            let window = self.window();
            if window > 0 && window >= 2 * known {
                self.acknowledge(net);
            }
        }
        more
    }

    /// The window that there is (__tcp_select_window): none while there is hardly any room (RFC 9293 §3.8.6.2.2).
    fn window(&self) -> u64 {
        let free = self.room.saturating_sub(self.next - self.released);
        if free < self.room / 2 && (free < self.room / 16 || free < self.settings.mss.into()) {
            return 0;
        }
        free.min(self.clamp)
    }

    /// Sends an acknowledgement of all that has arrived.
    pub(crate) fn acknowledge(&mut self, net: &mut Net) {
        // Its right edge never moves back (tcp_select_window).
        self.right_edge = self.right_edge.max(self.next + self.window());
        self.told_window = self.right_edge - self.next;
        self.quick = self.quick.saturating_sub(u32::from(self.scheduled));
        self.scheduled = false;
        self.timer.stop();
        self.acked = self.next;
        self.acks += 1;
        let mut packet = Packet::bare(self.conn, Kind::Ack, HEADER);
        packet.seq = self.next;
        packet.sent = self.recent;
        packet.amount = self.told_window.min(u32::MAX.into()) as u32;
        packet.told = self.heard.take();
        if self.marked {
            packet.flags |= ECE;
        }
        if self.settings.recovery == Recovery::Sack {
            self.add_blocks(&mut packet);
        }
        net.send(self.line, packet);
    }

    /// Tells what has arrived out of order, and what twice.
    fn add_blocks(&mut self, packet: &mut Packet) {
        let mut blocks = 0;
        if let Some((start, end)) = self.twice.take() {
            packet.flags |= DSACK;
            blocks += u16::from(packet.add_range(start, end));
        }
        for &(start, end) in &self.told {
            if !packet.add_range(start, end) {
                break;
            }
            blocks += 1;
        }
        if blocks > 0 {
            // Two bytes of option header, and padding to four.
            packet.size += 4 + 8 * blocks;
        }
    }
}
