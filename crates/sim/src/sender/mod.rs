//! The sending end of a connection, as Linux has it (net/ipv4/tcp_output.c, tcp_input.c).
//!
//! This file has what a sender is, and what its controller is told; `law` which controllers there are, `explicit` those that routers tell what to do; `output`
//! what is sent and when, `ack` what acknowledgements do, `recovery` the states and the window, `loss` how losses are found and the timers, `receipt` what is
//! known of delivery beyond a proxy, `early` what Fast Open changes. Segments keep their boundaries from their first sending on. Left out of
//! Linux: segmentation offload (each segment is sent for itself), Nagle's algorithm, F-RTO's new data in place of retransmissions, urgent data,
//! and jiffies: timers have microseconds.

mod ack;
mod early;
mod explicit;
mod law;
mod loss;
mod newreno;
mod output;
mod receipt;
mod recovery;

use crate::{
    net::Net,
    packet::HEADER,
    rtt::Rtt,
    settings::{Recovery, Settings},
    timers::{Key, Timer, What},
};
use control::{Event, FlowState as Flow};
pub(crate) use law::Law;
use law::State;
use std::collections::VecDeque;

/// [`Segment::flags`]: it was selectively acknowledged.
const SACKED: u8 = 1;
/// It counts as lost.
const LOST: u8 = 2;
/// A retransmission of it is under way.
const RETRANS: u8 = 4;
/// It was sent again at some time.
const EVER_RETRANS: u8 = 8;
/// It ends the stream.
const LAST: u8 = 16;

/// A segment that is not acknowledged.
#[derive(Debug, Clone, Copy)]
struct Segment {
    start: u64,
    /// When it was sent last, ns.
    sent: u64,
    len: u32,
    flags: u8,
}

impl Segment {
    fn end(&self) -> u64 {
        self.start + u64::from(self.len)
    }

    fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// What congestion control is doing (`enum tcp_ca_state`); the order counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// Nothing is amiss.
    Open,
    /// Something has arrived out of order.
    Disorder,
    /// The window comes down because of a mark.
    Cwr,
    /// It comes down because of a loss.
    Recovery,
    /// The retransmission timer has fired.
    Loss,
}

/// What the retransmission timer waits for (`icsk_pending`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pending {
    Nothing,
    Rto,
    LossProbe,
    Reorder,
    WindowProbe,
    Receipt,
}

/// Where a sender stands.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    /// Its connection's number.
    pub(crate) conn: u32,
    /// The line that it sends into.
    pub(crate) line: usize,
    /// The record of the link that its packets leave through, where its controller is told of one.
    pub(crate) record: Option<usize>,
    /// Packets may be marked.
    pub(crate) ecn: bool,
    /// The line is a shaper of its own host.
    pub(crate) shaped: bool,
    /// The proxy at its other end acknowledges end to end: what it says it has is not delivered yet.
    pub(crate) semi: bool,
    /// How much may be sent and not delivered: the send buffer.
    pub(crate) room: u64,
}

/// What a sender has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Segments sent again, SYNs too.
    pub(crate) retransmits: u64,
    /// Reductions that were taken back.
    pub(crate) undone: u64,
    /// Times the retransmission timer fired.
    pub(crate) timeouts: u64,
    /// Loss probes sent.
    pub(crate) probes: u64,
    /// The most payload that it had sent and could not forget yet.
    pub(crate) kept: u64,
}

/// The sending end of a connection.
#[derive(Debug)]
pub(crate) struct Sender {
    pub(crate) place: Place,
    settings: Settings,
    law: Law,
    whole: bool,
    /// Its controller sets the pace.
    paced: bool,
    wants_samples: bool,
    /// None until the connection is there.
    state: Option<State>,
    /// What controllers see; `cwnd` and `ssthresh` are the sender's own.
    flow: Flow,
    pub(crate) rtt: Rtt,
    pub(crate) tally: Tally,

    /// First byte not acknowledged, first never sent, and end of what was written so far.
    pub(crate) una: u64,
    pub(crate) nxt: u64,
    end: u64,
    /// Nothing will be written beyond `end`.
    last: bool,
    /// Its last byte was acknowledged.
    pub(crate) done: bool,
    /// What the far end is known to have, where a proxy tells of that, and how often it was asked since the last news.
    receipt: u64,
    asked: u32,
    /// The handshake that has let it begin early is not over: the timer is its own (tcp_rearm_rto).
    is_early: bool,
    /// First byte that may not go for the first time yet: the fluid proxy at the other end would have no room for it; none: it holds nobody back.
    pub(crate) held_at: Option<u64>,
    /// First byte that the receiver's window does not permit.
    window_end: u64,
    snd_wnd: u32,

    segments: VecDeque<Segment>,
    /// How many segments were acknowledged before the first of these.
    base: u64,
    sacked_out: u32,
    lost_out: u32,
    retrans_out: u32,
    /// Segments to be sent again, by number, in order.
    again: VecDeque<u64>,
    /// What the last acknowledgement's blocks were: all of it is marked already.
    known: [(u64, u64); 3],
    /// End of the highest segment SACKed.
    highest_sacked: u64,

    phase: Phase,
    high: u64,
    prior_ssthresh: u32,
    prr_delivered: u32,
    prr_out: u32,
    undo_marker: Option<u64>,
    /// Retransmissions whose duplicates would show that all of them were needless; −1: none was sent.
    undo_retrans: i64,
    /// When the first retransmission of this episode was sent, ns; 0: none was.
    retrans_stamp: u64,
    frto: bool,
    timeouts_in_row: u32,

    rack: loss::Rack,
    reordering: u32,
    probe_high: Option<u64>,
    probe_was_old: bool,
    duplicates: u32,
    /// NewReno has had a partial acknowledgement in this recovery: the timer goes on, whatever is sent again.
    is_impatient: bool,

    is_cwnd_limited: bool,
    max_packets_out: u32,
    usage_end: u64,
    cwnd_used: u32,
    cwnd_stamp: u64,
    last_sent: u64,

    delivered: u64,
    delivered_marked: u64,
    sampled: (u64, u64),
    lost: u64,
    /// A CWR is to go with the next new segment (RFC 3168 §6.1.2).
    queue_cwr: bool,

    pace_next: u64,
    segments_sent: u64,
    /// Packets of its own that wait in the shaper of its host.
    in_shaper: u32,

    pending: Pending,
    timer: Timer,
    pace_timer: Timer,
}

impl Sender {
    /// One without a connection yet.
    pub(crate) fn new(place: Place, law: Law, settings: Settings) -> Self {
        let flow =
            Flow { mss: settings.mss, cwnd: settings.initial_window, ssthresh: control::INFINITE, header: HEADER, ..Flow::default() };
        Sender {
            place,
            settings,
            law,
            whole: law.is_whole(),
            paced: law.paces(),
            wants_samples: law.own().is_some_and(|controller| controller.wants_samples() && !controller.owns_window()),
            state: None,
            flow,
            rtt: Rtt::new(settings.initial_rto.0 / 1000),
            tally: Tally::default(),
            una: 0,
            nxt: 0,
            end: 0,
            last: false,
            done: false,
            receipt: 0,
            asked: 0,
            is_early: false,
            held_at: None,
            window_end: 0,
            snd_wnd: 0,
            segments: VecDeque::new(),
            base: 0,
            sacked_out: 0,
            lost_out: 0,
            retrans_out: 0,
            again: VecDeque::new(),
            known: [(0, 0); 3],
            highest_sacked: 0,
            phase: Phase::Open,
            high: 0,
            prior_ssthresh: 0,
            prr_delivered: 0,
            prr_out: 0,
            undo_marker: None,
            undo_retrans: -1,
            retrans_stamp: 0,
            frto: false,
            timeouts_in_row: 0,
            rack: loss::Rack::default(),
            reordering: 3,
            probe_high: None,
            probe_was_old: false,
            duplicates: 0,
            is_impatient: false,
            is_cwnd_limited: false,
            max_packets_out: 0,
            usage_end: 0,
            cwnd_used: 0,
            cwnd_stamp: 0,
            last_sent: 0,
            delivered: 0,
            delivered_marked: 0,
            sampled: (0, 0),
            lost: 0,
            queue_cwr: false,
            pace_next: 0,
            segments_sent: 0,
            in_shaper: 0,
            pending: Pending::Nothing,
            timer: Timer::default(),
            pace_timer: Timer::default(),
        }
    }

    /// The handshake is over. `rtt_us` is what it measured, `initial` the window to begin with, in segments.
    pub(crate) fn establish(&mut self, rtt_us: u32, window: u32, initial: u32, net: &mut Net) {
        self.timer.stop();
        self.pending = Pending::Nothing;
        if rtt_us > 0 {
            self.rtt.sample_least(rtt_us, net.now_us());
            self.rtt.sample(rtt_us, 0, 0);
        }
        self.snd_wnd = window;
        self.window_end = self.una + u64::from(window);
        self.flow.cwnd = initial;
        self.cwnd_stamp = net.now;
        self.look();
        let link = self.place.record.map(|record| &mut net.records[record].link);
        self.state = Some(self.law.begin(&mut self.flow, link, net.now / 1000));
        self.flow.cwnd = self.flow.cwnd.max(1);
    }

    /// Whether the connection is there.
    pub(crate) fn is_up(&self) -> bool {
        self.state.is_some()
    }

    /// The window, in segments.
    pub(crate) fn cwnd(&self) -> u32 {
        self.flow.cwnd
    }

    /// What both windows let it have under way, bytes.
    pub(crate) fn window(&self) -> u64 {
        (u64::from(self.flow.cwnd) * u64::from(self.settings.mss)).min(u64::from(self.snd_wnd))
    }

    /// Payload that waits to be sent for the first time.
    pub(crate) fn unsent(&self) -> u64 {
        self.end - self.nxt
    }

    /// Whether it sends again what was lost.
    pub(crate) fn mends(&self) -> bool {
        matches!(self.phase, Phase::Recovery | Phase::Loss)
    }

    /// Whether it would send more, and the fluid proxy at the other end has no room.
    pub(crate) fn is_held(&self) -> bool {
        let len = self.unsent().min(self.settings.mss.into());
        len > 0 && self.held_at.is_some_and(|most| self.nxt + len > most) && self.in_flight() < self.flow.cwnd
    }

    /// Payload that its window lets go in so many µs.
    pub(crate) fn lets_go(&self, span_us: u32) -> u64 {
        let window = u64::from(self.flow.cwnd) * u64::from(self.settings.mss);
        (window * u64::from(span_us)).checked_div(self.rtt.smoothed().into()).unwrap_or(0)
    }

    /// Segments that are neither acknowledged nor SACKed nor counted lost.
    pub(crate) fn in_flight(&self) -> u32 {
        (self.segments.len() as u32 + self.retrans_out).saturating_sub(self.sacked_out + self.lost_out)
    }

    /// Segments that are not acknowledged.
    pub(crate) fn packets_out(&self) -> u32 {
        self.segments.len() as u32
    }

    /// Segments sent, again or for the first time.
    pub(crate) fn segments_sent(&self) -> u64 {
        self.segments_sent
    }

    /// Something was written: all up to `end`, which is the last byte if `last`.
    pub(crate) fn write(&mut self, end: u64, last: bool) {
        self.end = self.end.max(end);
        self.last |= last;
    }

    /// What there is to be sent for the first time goes up to `end`, and ends with it if `last`: less than was written, where another connection has
    /// sent it.
    pub(crate) fn rewrite(&mut self, end: u64, last: bool) {
        self.end = end.max(self.nxt);
        self.last |= last;
    }

    fn key(&self, what: What) -> Key {
        Key { who: self.place.conn, what }
    }

    /// Sets the retransmission timer.
    fn arm(&mut self, pending: Pending, after_us: u64, net: &mut Net) {
        if self.is_early && pending != Pending::Nothing {
            return;
        }
        self.pending = pending;
        let key = self.key(What::Retransmit);
        net.set(&mut self.timer, key, after_us);
    }

    fn disarm(&mut self) {
        self.pending = Pending::Nothing;
        self.timer.stop();
    }

    /// The timer of the handshake, which is the same.
    pub(crate) fn arm_handshake(&mut self, after_us: u64, net: &mut Net) {
        self.arm(Pending::Nothing, after_us, net);
    }

    /// Whether an entry of the heap at `at` is this timer's, and it is time.
    pub(crate) fn timer_fires(&mut self, at: u64, net: &mut Net) -> bool {
        let key = self.key(What::Retransmit);
        self.timer.fires(at, key, &mut net.timers)
    }

    /// The same of the pace.
    pub(crate) fn pace_fires(&mut self, at: u64, net: &mut Net) -> bool {
        let key = self.key(What::Pace);
        self.pace_timer.fires(at, key, &mut net.timers)
    }

    /// What controllers see (td_look).
    fn look(&mut self) {
        let flow = &mut self.flow;
        flow.srtt_us = self.rtt.smoothed();
        flow.min_rtt_us = self.rtt.least();
        flow.una = self.una as u32;
        flow.nxt = self.nxt as u32;
        flow.unsent = (self.end - self.nxt).min(1 << 30) as u32;
        flow.snd_wnd = self.snd_wnd;
        flow.in_flight = (self.segments.len() as u32 + self.retrans_out).saturating_sub(self.sacked_out + self.lost_out);
    }

    /// Tells the controller, and returns what window and threshold it decides on. One of the whole window has them at once; with the others
    /// it depends on the event what of that counts.
    fn tell(&mut self, mut event: Event, net: &mut Net) -> (u32, u32) {
        self.look();
        event.now_us = net.now / 1000;
        let pace = std::mem::take(&mut self.flow.pacing_rate);
        let before = (self.flow.cwnd, self.flow.ssthresh);
        let mut link = None;
        if self.whole {
            event.flags |= if self.last && self.end == self.nxt { control::NO_MORE_DATA } else { 0 };
            link = self.place.record.map(|record| &mut net.records[record].link);
        }
        if let Some(state) = &mut self.state {
            state.step(&mut self.flow, link, &event);
        }
        // A controller that says nothing of the pace keeps it.
        if self.flow.pacing_rate == 0 {
            self.flow.pacing_rate = pace;
        }
        let decided = (self.flow.cwnd.max(1), self.flow.ssthresh);
        (self.flow.cwnd, self.flow.ssthresh) = if self.whole { decided } else { before };
        decided
    }

    /// Data is sent when nothing is in flight (CA_EVENT_TX_START): the classic ones are told so, and asked nothing.
    fn tell_restart(&mut self, net: &mut Net) {
        self.tell(Event { kind: control::EventKind::Restart, ..Event::default() }, net);
    }

    /// Whether cwnd is what keeps the flow from sending more (tcp_is_cwnd_limited): in slow start half a window in use is use enough.
    fn limited(&self) -> u32 {
        let slow_start = self.flow.cwnd < self.flow.ssthresh;
        let limited = !self.settings.validation || self.is_cwnd_limited || (slow_start && self.flow.cwnd < 2 * self.max_packets_out);
        if limited { control::CWND_LIMITED } else { 0 }
    }

    /// The threshold as it would be if the window were left as it is (tcp_current_ssthresh).
    fn current_ssthresh(&self) -> u32 {
        if self.is_reducing() { self.flow.ssthresh } else { self.flow.ssthresh.max(self.flow.cwnd / 2 + self.flow.cwnd / 4) }
    }

    /// How the sender finds losses.
    fn is_newreno(&self) -> bool {
        self.settings.recovery == Recovery::NewReno
    }

    /// The number of the segment that begins at `seq`, or holds it, counted from the first that is not acknowledged.
    fn index_of(&self, seq: u64) -> usize {
        let guess = ((seq - self.una) / u64::from(self.settings.mss)) as usize;
        if self.segments.get(guess).is_some_and(|segment| segment.start == seq) {
            return guess;
        }
        self.segments.partition_point(|segment| segment.end() <= seq)
    }

    /// Whether what is counted is what the scoreboard says; of a large one nobody asks.
    fn is_consistent(&self) -> bool {
        let count = |is: &dyn Fn(&Segment) -> bool| self.segments.iter().filter(|segment| is(segment)).count() as u32;
        self.segments.len() > 100
            || (self.sacked_out == count(&|segment| segment.has(SACKED))
                && self.lost_out == count(&|segment| segment.has(LOST))
                && self.retrans_out == count(&|segment| segment.has(RETRANS))
                && count(&|segment| segment.has(SACKED) && segment.has(LOST)) == 0
                && self.segments.front().is_none_or(|head| head.start == self.una)
                && self.segments.back().is_none_or(|back| back.end() == self.nxt))
    }
}
