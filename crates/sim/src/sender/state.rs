//! The state of a sender, its timers, and what its controller sees.

use super::{
    congestion_control::{CongestionControl, ControlState},
    pacing::Pacing,
    rack::Rack,
    rate_sample::RateSampler,
    segment::{LOST, RETRANS, SACKED, SentSegment},
};
use crate::{
    event_queue::{EventKey, ScheduledEventKind, Timer},
    network::SimNetwork,
    packet::{HEADER_BYTES, MAX_SACK_BLOCKS},
    rtt::RttEstimator,
    settings::{Recovery, TcpSettings},
};
use account::SenderWait;
use control::{Event, FlowState};
use std::collections::VecDeque;

/// The congestion state (`enum tcp_ca_state`). The order matters: comparisons ask how severe the
/// state is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum CaState {
    /// No sign of trouble.
    Open,
    /// Data has arrived out of order.
    Disorder,
    /// The window is being reduced because of an ECN mark.
    Cwr,
    /// The window is being reduced because of a loss.
    Recovery,
    /// The retransmission timer has expired.
    Loss,
}

/// What the sender's timer is set for (`icsk_pending`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PendingTimer {
    /// Nothing, or the handshake.
    Idle,
    Rto,
    LossProbe,
    Reordering,
    WindowProbe,
    ReceiptRequest,
}

/// The place of a sender in the network.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SenderConfig {
    /// The number of its connection.
    pub(crate) connection: u32,
    /// The channel that it sends into.
    pub(crate) channel: usize,
    /// The monitor of the link that its packets leave through, if its controller uses one.
    pub(crate) monitor: Option<usize>,
    /// Packets are ECN-capable.
    pub(crate) ecn: bool,
    /// The channel is a shaper of its own host.
    pub(crate) behind_shaper: bool,
    /// The proxy at the other end acknowledges end to end (`semi`): data is delivered only when a
    /// receipt says so.
    pub(crate) end_to_end_acks: bool,
    /// Size of the send buffer: the most bytes sent and not delivered.
    pub(crate) send_buffer: u64,
}

/// Counters of a sender.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SenderCounters {
    /// Retransmitted segments, including SYNs.
    pub(crate) retransmits: u64,
    /// Window reductions that were undone.
    pub(crate) undone: u64,
    /// Expirations of the retransmission timer.
    pub(crate) timeouts: u64,
    /// Tail loss probes sent.
    pub(crate) probes: u64,
    /// The most payload that was sent and still had to be kept, bytes.
    pub(crate) max_unreleased: u64,
}

/// The sending end of a connection.
///
/// After [`establish`](Self::establish), the caller announces data by [`write`](Self::write) and
/// calls [`push`](Self::push). It passes acknowledgements to [`on_ack`](Self::on_ack), and timer
/// events to [`on_timer`](Self::on_timer) and [`resume`](Self::resume) if
/// [`timer_expired`](Self::timer_expired) or [`pacing_expired`](Self::pacing_expired) confirms
/// them.
#[derive(Debug)]
pub(crate) struct TcpSender {
    pub(crate) config: SenderConfig,
    pub(super) settings: TcpSettings,
    pub(super) control: CongestionControl,
    /// The controller alone sets the window, also during recovery.
    pub(super) owns_window: bool,
    /// The controller sets the pacing rate.
    pub(super) paced: bool,
    /// The controller is told what each acknowledgement delivered.
    pub(super) wants_samples: bool,
    /// Delivery rate samples, if the controller wants them.
    pub(super) rate: Option<Box<RateSampler>>,
    /// `None` until the connection is established.
    pub(super) control_state: Option<ControlState>,
    /// What controllers see; `cwnd` and `ssthresh` are the sender's own.
    pub(super) flow: FlowState,
    pub(crate) rtt: RttEstimator,
    pub(crate) counters: SenderCounters,

    /// SND.UNA: the first byte that is not acknowledged.
    pub(crate) snd_una: u64,
    /// SND.NXT: the first byte that was not sent.
    pub(crate) snd_nxt: u64,
    /// End of the data that the application has written.
    pub(super) write_end: u64,
    /// The application has closed: nothing follows `write_end`.
    pub(super) fin_written: bool,
    /// The last byte was acknowledged, and the controller was told.
    pub(super) is_done: bool,
    /// With `end_to_end_acks`: the byte up to which receipts have confirmed delivery.
    pub(super) receipt: u64,
    /// Requests for a receipt since the last new one.
    pub(super) receipt_requests: u32,
    /// Sending has begun by Fast Open before the handshake is complete. Until then the timer
    /// belongs to the handshake (tcp_rearm_rto).
    pub(super) early_handshake_pending: bool,
    /// The first byte for which the fluid proxy at the other end has no room; `None` without fluid
    /// backpressure.
    pub(crate) fluid_limit: Option<u64>,
    /// The first byte beyond the advertised window.
    pub(super) window_end: u64,
    /// The advertised window, bytes.
    pub(super) snd_wnd: u32,

    /// The scoreboard: sent segments from `snd_una` on.
    pub(super) segments: VecDeque<SentSegment>,
    /// The number of the first of them: segments acknowledged before it.
    pub(super) acked_segments: u64,
    /// Segments that are SACKed, marked lost, and retransmitted and in flight.
    pub(super) sacked_out: u32,
    pub(super) lost_out: u32,
    pub(super) retrans_out: u32,
    /// Numbers of the segments to retransmit, sorted.
    pub(super) retransmit_queue: VecDeque<u64>,
    /// The SACK blocks of the last acknowledgement, which are marked in the scoreboard already.
    pub(super) previous_sack_blocks: [(u64, u64); MAX_SACK_BLOCKS],
    /// The end of the highest SACKed segment.
    pub(super) highest_sacked: u64,

    pub(super) ca_state: CaState,
    /// SND.NXT when the current congestion state was entered.
    pub(super) high_seq: u64,
    /// The threshold to restore if the reduction is undone; 0: it cannot be.
    pub(super) prior_ssthresh: u32,
    /// Segments delivered and sent since the reduction began (RFC 6937).
    pub(super) prr_delivered: u32,
    pub(super) prr_out: u32,
    /// SND.UNA when the reduction began, while it may be undone.
    pub(super) undo_marker: Option<u64>,
    /// Retransmissions that a DSACK has not reported as spurious; when all are reported, the
    /// reduction is undone. −1: nothing was retransmitted.
    pub(super) undo_retrans: i64,
    /// When the first retransmission of this episode was sent, ns; 0 if there was none
    /// (retrans_stamp).
    pub(super) first_retransmit_ns: u64,
    /// F-RTO (RFC 5682) checks whether the timeout was spurious.
    pub(super) frto: bool,
    /// Timeouts or window probes in a row.
    pub(super) consecutive_timeouts: u32,

    pub(super) rack: Rack,
    /// The degree of reordering to tolerate, segments.
    pub(super) reordering: u32,
    /// SND.NXT at the tail loss probe that is in flight.
    pub(super) tlp_high_seq: Option<u64>,
    /// That probe was a retransmission.
    pub(super) tlp_retransmitted: bool,
    /// NewReno: duplicate acknowledgements in a row.
    pub(super) duplicate_acks: u32,
    /// NewReno: this recovery has had a partial acknowledgement, so retransmissions do not restart
    /// the timer any more.
    pub(super) had_partial_ack: bool,

    /// Usage of the window in the current round (tcp_cwnd_validate).
    pub(super) is_cwnd_limited: bool,
    pub(super) max_packets_out: u32,
    pub(super) cwnd_usage_seq: u64,
    pub(super) cwnd_used: u32,
    pub(super) cwnd_stamp_ns: u64,
    pub(super) last_sent_ns: u64,

    /// Segments delivered, and those of them whose acknowledgement echoed a mark.
    pub(super) delivered: u64,
    pub(super) delivered_marked: u64,
    /// Both counts when the controller last got a sample.
    pub(super) sampled_delivered: u64,
    pub(super) sampled_marked: u64,
    /// Segments marked lost so far.
    pub(super) lost: u64,
    /// An agent has given notice that all data before this byte has passed it: if it is lost, it is
    /// so by corruption.
    pub(super) passed_agent: u64,
    /// All segments that were last marked lost are so by corruption. They are retransmitted in the
    /// state Open or Disorder, and the window grows as without loss.
    pub(super) lost_by_corruption: bool,
    /// NewReno: the window before a recovery from such a loss, which it ends with.
    pub(super) kept_cwnd: Option<u32>,
    /// CWR is to be set on the next new segment (RFC 3168 §6.1.2).
    pub(super) send_cwr: bool,

    pub(super) pacing: Pacing,
    pub(super) segments_sent: u64,
    /// Its own packets in the shaper of its host.
    pub(super) in_shaper: u32,

    pub(super) pending: PendingTimer,
    pub(super) timer: Timer,
    pub(super) pacing_timer: Timer,
}

impl TcpSender {
    /// A sender before its handshake.
    pub(crate) fn new(config: SenderConfig, control: CongestionControl, settings: TcpSettings) -> Self {
        let flow = FlowState {
            mss: settings.mss,
            cwnd: settings.initial_window,
            ssthresh: control::INFINITE,
            header: HEADER_BYTES,
            ..FlowState::default()
        };
        TcpSender {
            config,
            settings,
            owns_window: control.owns_window(),
            paced: control.paces(),
            wants_samples: control.wants_samples(),
            rate: control.wants_rate_samples().then(Box::default),
            control,
            control_state: None,
            flow,
            rtt: RttEstimator::new(settings.initial_rto.0 / 1000),
            counters: SenderCounters::default(),
            snd_una: 0,
            snd_nxt: 0,
            write_end: 0,
            fin_written: false,
            is_done: false,
            receipt: 0,
            receipt_requests: 0,
            early_handshake_pending: false,
            fluid_limit: None,
            window_end: 0,
            snd_wnd: 0,
            segments: VecDeque::new(),
            acked_segments: 0,
            sacked_out: 0,
            lost_out: 0,
            retrans_out: 0,
            retransmit_queue: VecDeque::new(),
            previous_sack_blocks: [(0, 0); MAX_SACK_BLOCKS],
            highest_sacked: 0,
            ca_state: CaState::Open,
            high_seq: 0,
            prior_ssthresh: 0,
            prr_delivered: 0,
            prr_out: 0,
            undo_marker: None,
            undo_retrans: -1,
            first_retransmit_ns: 0,
            frto: false,
            consecutive_timeouts: 0,
            rack: Rack::default(),
            reordering: 3,
            tlp_high_seq: None,
            tlp_retransmitted: false,
            duplicate_acks: 0,
            had_partial_ack: false,
            is_cwnd_limited: false,
            max_packets_out: 0,
            cwnd_usage_seq: 0,
            cwnd_used: 0,
            cwnd_stamp_ns: 0,
            last_sent_ns: 0,
            delivered: 0,
            delivered_marked: 0,
            sampled_delivered: 0,
            sampled_marked: 0,
            lost: 0,
            passed_agent: 0,
            lost_by_corruption: false,
            kept_cwnd: None,
            send_cwr: false,
            pacing: Pacing::default(),
            segments_sent: 0,
            in_shaper: 0,
            pending: PendingTimer::Idle,
            timer: Timer::default(),
            pacing_timer: Timer::default(),
        }
    }

    /// The handshake is complete. `rtt_us` is its RTT (0 if it was not measured), `window` the
    /// advertised window in bytes, `initial_window` the initial congestion window in segments.
    pub(crate) fn establish(&mut self, rtt_us: u32, window: u32, initial_window: u32, net: &mut SimNetwork) {
        self.timer.stop();
        self.pending = PendingTimer::Idle;
        if rtt_us > 0 {
            self.rtt.sample_min(rtt_us, net.now_us());
            self.rtt.sample(rtt_us, 0, 0);
        }
        self.snd_wnd = window;
        self.window_end = self.snd_una + u64::from(window);
        self.flow.cwnd = initial_window;
        self.cwnd_stamp_ns = net.now;
        self.refresh_flow(net.now);
        let link = self.config.monitor.map(|monitor| &mut net.monitors[monitor].link);
        let begun = self.control.begin(&mut self.flow, link, net.now / 1000);
        self.control_state = Some(begun.unwrap_or_else(|why| {
            net.controller_failed(why);
            ControlState::Failed
        }));
        self.flow.cwnd = self.flow.cwnd.max(1);
    }

    /// Whether the connection is established, or sending has begun by Fast Open.
    pub(crate) fn is_established(&self) -> bool {
        self.control_state.is_some()
    }

    /// The congestion window, segments.
    pub(crate) fn cwnd(&self) -> u32 {
        self.flow.cwnd
    }

    /// The lesser of the congestion window and the advertised window, bytes.
    pub(crate) fn usable_window(&self) -> u64 {
        (u64::from(self.flow.cwnd) * u64::from(self.settings.mss)).min(u64::from(self.snd_wnd))
    }

    /// Payload that was written and not sent yet, bytes.
    pub(crate) fn unsent(&self) -> u64 {
        self.write_end - self.snd_nxt
    }

    /// Whether it is repairing a loss.
    pub(crate) fn is_retransmitting(&self) -> bool {
        matches!(self.ca_state, CaState::Recovery | CaState::Loss)
    }

    /// What it waits for before it sends more.
    pub(crate) fn waits_for(&self) -> SenderWait {
        if !self.is_established() {
            return SenderWait::Handshake;
        }
        let is_recovering = self.ca_state >= CaState::Recovery;
        let len = self.unsent().min(self.settings.mss.into()) as u32;
        if len == 0 {
            return if is_recovering { SenderWait::Recovery } else { SenderWait::Data };
        }
        if self.snd_nxt + u64::from(len) > self.window_end.min(self.fluid_limit.unwrap_or(u64::MAX)) {
            SenderWait::Receiver
        } else if !self.has_buffer_room(len) {
            SenderWait::SendBuffer
        } else if self.flow.cwnd < self.flow.ssthresh && !is_recovering {
            SenderWait::SlowStart
        } else if !self.owns_window && self.counters.retransmits > 0 {
            SenderWait::Recovery
        } else {
            SenderWait::Control
        }
    }

    /// Whether only fluid backpressure keeps it from sending.
    pub(crate) fn is_held_by_proxy(&self) -> bool {
        let len = self.unsent().min(self.settings.mss.into());
        len > 0 && self.fluid_limit.is_some_and(|limit| self.snd_nxt + len > limit) && self.in_flight() < self.flow.cwnd
    }

    /// Payload that the congestion window lets it send within `span_us` µs, bytes.
    pub(crate) fn sendable_within(&self, span_us: u32) -> u64 {
        let window = u64::from(self.flow.cwnd) * u64::from(self.settings.mss);
        (window * u64::from(span_us)).checked_div(self.rtt.srtt_us().into()).unwrap_or(0)
    }

    /// Segments in flight: not acknowledged, SACKed or marked lost (tcp_packets_in_flight).
    pub(crate) fn in_flight(&self) -> u32 {
        (self.segments.len() as u32 + self.retrans_out).saturating_sub(self.sacked_out + self.lost_out)
    }

    /// Segments that were sent and are not acknowledged.
    pub(crate) fn packets_out(&self) -> u32 {
        self.segments.len() as u32
    }

    /// Segments sent, including retransmissions.
    pub(crate) fn segments_sent(&self) -> u64 {
        self.segments_sent
    }

    /// The application has written up to byte `end`, which is the end of the stream if `fin`.
    pub(crate) fn write(&mut self, end: u64, fin: bool) {
        self.check_app_limited();
        self.write_end = self.write_end.max(end);
        self.fin_written |= fin;
    }

    /// As [`write`](Self::write), but may take back data that was not sent, because another
    /// connection has sent it.
    pub(crate) fn set_write_end(&mut self, end: u64, fin: bool) {
        self.check_app_limited();
        self.write_end = end.max(self.snd_nxt);
        self.fin_written |= fin;
    }

    fn key(&self, kind: ScheduledEventKind) -> EventKey {
        EventKey { target: self.config.connection, kind }
    }

    /// Sets the timer for a purpose, `after_us` µs from now.
    pub(super) fn arm_timer(&mut self, pending: PendingTimer, after_us: u64, net: &mut SimNetwork) {
        if self.early_handshake_pending && pending != PendingTimer::Idle {
            return;
        }
        self.pending = pending;
        let key = self.key(ScheduledEventKind::SenderTimer);
        net.set_timer(&mut self.timer, key, after_us);
    }

    pub(super) fn disarm_timer(&mut self) {
        self.pending = PendingTimer::Idle;
        self.timer.stop();
    }

    /// Sets the timer of the handshake, which is the same as the later timer.
    pub(crate) fn arm_handshake(&mut self, after_us: u64, net: &mut SimNetwork) {
        self.arm_timer(PendingTimer::Idle, after_us, net);
    }

    /// Sets the pacing timer to the time of the next permitted segment.
    pub(super) fn arm_pacing(&mut self, net: &mut SimNetwork) {
        let key = self.key(ScheduledEventKind::Pacing);
        if self.pacing_timer.due() != self.pacing.next_ns() {
            net.events.set_timer(&mut self.pacing_timer, key, self.pacing.next_ns());
        }
    }

    /// To be called when an event of this sender's timer surfaces at `at` ns: whether the timer has
    /// expired.
    pub(crate) fn timer_expired(&mut self, at: u64, net: &mut SimNetwork) -> bool {
        let key = self.key(ScheduledEventKind::SenderTimer);
        self.timer.expired(at, key, &mut net.events)
    }

    /// The same for the pacing timer.
    pub(crate) fn pacing_expired(&mut self, at: u64, net: &mut SimNetwork) -> bool {
        let key = self.key(ScheduledEventKind::Pacing);
        self.pacing_timer.expired(at, key, &mut net.events)
    }

    /// Updates what controllers see (td_read_socket).
    #[inline]
    fn refresh_flow(&mut self, now: u64) {
        let in_flight = self.in_flight();
        let flow = &mut self.flow;
        flow.srtt_us = self.rtt.srtt_us();
        flow.min_rtt_us = self.rtt.min_us();
        flow.una = self.snd_una as u32;
        flow.nxt = self.snd_nxt as u32;
        flow.unsent = (self.write_end - self.snd_nxt).min(1 << 30) as u32;
        flow.snd_wnd = self.snd_wnd;
        flow.in_flight = in_flight;
        if let Some(sampler) = &self.rate {
            flow.ca_state = self.ca_state as u32;
            flow.delivered = self.delivered as u32;
            flow.lost = self.lost as u32;
            flow.marked = self.delivered_marked as u32;
            flow.app_limited = sampler.is_app_limited().into();
            flow.pacing_wait_us = (self.pacing.next_ns().saturating_sub(now) / 1000) as u32;
        }
    }

    /// Notifies the controller of an event. Returns the window and the threshold that it decides
    /// on. They are applied here only for a controller that owns the window; for the others the
    /// caller applies what the event is meant to change.
    pub(super) fn notify_controller(&mut self, mut event: Event, net: &mut SimNetwork) -> (u32, u32) {
        self.refresh_flow(net.now);
        event.now_us = net.now / 1000;
        let pacing_rate = self.flow.pacing_rate;
        if self.rate.is_none() {
            self.flow.pacing_rate = 0;
        } else {
            event.random = net.draw_random();
        }
        let before = (self.flow.cwnd, self.flow.ssthresh);
        let mut link = None;
        if self.owns_window {
            event.flags |= if self.fin_written && self.write_end == self.snd_nxt { control::NO_MORE_DATA } else { 0 };
            link = self.config.monitor.map(|monitor| &mut net.monitors[monitor].link);
        }
        if let Some(state) = &mut self.control_state
            && let Err(why) = state.step(&mut self.flow, link, &event)
        {
            net.controller_failed(why);
        }
        // A controller that sets no pacing rate keeps the former one.
        if self.flow.pacing_rate == 0 {
            self.flow.pacing_rate = pacing_rate;
        }
        let decided = (self.flow.cwnd.max(1), self.flow.ssthresh);
        (self.flow.cwnd, self.flow.ssthresh) = if self.owns_window { decided } else { before };
        decided
    }

    /// Notifies the controller that data is sent with nothing in flight (CA_EVENT_TX_START).
    pub(super) fn notify_restart(&mut self, net: &mut SimNetwork) {
        self.notify_controller(Event { kind: control::EventKind::Restart, ..Event::default() }, net);
    }

    /// [`control::CWND_LIMITED`] if the congestion window limits the flow (tcp_is_cwnd_limited). In
    /// slow start it suffices that half of the window is used.
    pub(super) fn limited_flag(&self) -> u32 {
        let slow_start = self.flow.cwnd < self.flow.ssthresh;
        let is_limited = !self.settings.validation || self.is_cwnd_limited || (slow_start && self.flow.cwnd < 2 * self.max_packets_out);
        if is_limited { control::CWND_LIMITED } else { 0 }
    }

    /// Whether the window is being reduced (tcp_in_cwnd_reduction).
    pub(super) fn in_cwnd_reduction(&self) -> bool {
        matches!(self.ca_state, CaState::Cwr | CaState::Recovery)
    }

    /// The slow start threshold: at least 3/4 of cwnd, unless the window is being reduced
    /// (tcp_current_ssthresh).
    pub(super) fn current_ssthresh(&self) -> u32 {
        if self.in_cwnd_reduction() { self.flow.ssthresh } else { self.flow.ssthresh.max(self.flow.cwnd / 2 + self.flow.cwnd / 4) }
    }

    /// Whether recovery works without selective acknowledgements.
    pub(super) fn is_newreno(&self) -> bool {
        self.settings.recovery == Recovery::NewReno
    }

    /// The index in the scoreboard of the segment that holds byte `seq`.
    pub(super) fn index_of(&self, seq: u64) -> usize {
        let guess = ((seq - self.snd_una) / u64::from(self.settings.mss)) as usize;
        if self.segments.get(guess).is_some_and(|segment| segment.start == seq) {
            return guess;
        }
        self.segments.partition_point(|segment| segment.end() <= seq)
    }

    /// Whether the counters agree with the scoreboard. A large scoreboard is not checked, to save
    /// time.
    pub(super) fn is_consistent(&self) -> bool {
        let count = |is: &dyn Fn(&SentSegment) -> bool| self.segments.iter().filter(|segment| is(segment)).count() as u32;
        self.segments.len() > 100
            || (self.rate.as_ref().is_none_or(|sampler| sampler.is_consistent(self.segments.len()))
                && self.sacked_out == count(&|segment| segment.has(SACKED))
                && self.lost_out == count(&|segment| segment.has(LOST))
                && self.retrans_out == count(&|segment| segment.has(RETRANS))
                && count(&|segment| segment.has(SACKED) && segment.has(LOST)) == 0
                && self.segments.front().is_none_or(|head| head.start == self.snd_una)
                && self.segments.back().is_none_or(|back| back.end() == self.snd_nxt))
    }
}
