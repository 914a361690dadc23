//! Foreign-function interface: the structs of `c/intf.h` and the table of `c/native.c`.
#![allow(unsafe_code)]

use crate::{MOST_STATE_WORDS, MOST_TUNABLES};
use std::{
    ffi::{CStr, c_char},
    mem, ptr, slice,
};

/// A flow as the controller sees it (`struct td_flow`). Windows are in segments, rates in payload
/// bytes/s.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FlowState {
    /// Payload of a full segment, bytes.
    pub mss: u32,
    /// Smoothed RTT, µs; 0: not measured yet.
    pub srtt_us: u32,
    /// TCP's windowed minimum RTT, µs; 0: not measured yet.
    pub min_rtt_us: u32,
    /// Segments sent and neither acknowledged, SACKed nor marked lost.
    pub in_flight: u32,
    /// SND.UNA: the first unacknowledged sequence number.
    pub una: u32,
    /// SND.NXT: the next sequence number to send.
    pub nxt: u32,
    /// Bytes in the socket that were never sent.
    pub unsent: u32,
    /// The receiver's window, bytes.
    pub snd_wnd: u32,
    /// cwnd before the last reduction, segments.
    pub prior_cwnd: u32,
    /// Weight of its share of the capacity; 0 counts as 1.
    pub weight: u32,
    /// IP and TCP headers of a segment, bytes.
    pub header: u32,
    /// TCP's congestion state: 0 open, 1 disorder, 2 CWR, 3 recovery, 4 loss. For controllers that
    /// [want rate samples](crate::Controller::wants_rate_samples), as the next five.
    pub ca_state: u32,
    /// Segments delivered so far, modulo 2³².
    pub delivered: u32,
    /// Segments marked lost so far, modulo 2³².
    pub lost: u32,
    /// Segments so far that were delivered by ACKs with an ECN echo, modulo 2³².
    pub marked: u32,
    /// 1: within the last round trip there was no data to send.
    pub app_limited: u32,
    /// Time until pacing permits the next segment, µs.
    pub pacing_wait_us: u32,
    /// Padding.
    pub reserved: u32,
    /// Payload bytes sent so far, retransmissions included.
    pub sent: u64,
    /// Decision: congestion window, segments.
    pub cwnd: u32,
    /// Decision: slow start threshold, segments.
    pub ssthresh: u32,
    /// Decision: pacing rate, payload bytes/s; 0: TCP's own pacing. A controller that wants rate
    /// samples is told the current one.
    pub pacing_rate: u64,
}

/// Kind of an event (`enum td_event_kind`).
#[repr(u32)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum EventKind {
    /// The flow starts, or switches to this controller.
    #[default]
    Init,
    /// An ACK delivered data or measured an RTT, in any state; comes before its `Ack`.
    Sample,
    /// An ACK after which the window may grow; for controllers that own the window: every ACK.
    Ack,
    /// A loss, or an ECN echo, starts a recovery: the controller sets ssthresh.
    Loss,
    /// The retransmission timer expired: the controller sets ssthresh, TCP resets cwnd.
    Timeout,
    /// The recovery has ended.
    Recovered,
    /// The reduction was spurious: the controller restores cwnd.
    Undo,
    /// Data is sent after nothing was in flight.
    Restart,
    /// The flow ends, or switches to another controller.
    Close,
}

/// An event of a flow (`struct td_event`).
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Event {
    /// Monotonic time, µs.
    pub now_us: u64,
    /// Its kind.
    pub kind: EventKind,
    /// [`crate::CWND_LIMITED`], [`crate::ECN_ECHO`], [`crate::NO_MORE_DATA`],
    /// [`crate::DELAYED_ACK`], [`crate::APP_LIMITED`], [`crate::LONE_RUNT`], [`crate::TIMESTAMP`].
    pub flags: u32,
    /// Segments newly acknowledged or SACKed.
    pub acked: u32,
    /// Of those, segments with a CE mark, if the receiver reports it.
    pub marked: u32,
    /// RTT sample, µs; 0: none.
    pub rtt_us: u32,
    /// Segments newly marked lost.
    pub lost: u32,
    /// Rate sample: the time over which it was measured, µs; 0: none.
    pub interval_us: u32,
    /// Rate sample: segments delivered since its segment was sent; 0: the ACK delivered nothing.
    pub sampled: u32,
    /// Rate sample: [`FlowState::delivered`] when its segment was sent.
    pub prior_delivered: u32,
    /// Segments in flight before the ACK.
    pub prior_in_flight: u32,
    /// A random number, new at each event.
    pub random: u32,
    /// With [`crate::TIMESTAMP`]: when the ACK arrived, less the receiver's clock when it was sent
    /// (TSval, RFC 7323), ms modulo 2^32.
    pub return_ms: u32,
}

/// The record of one egress link, shared by its flows (`struct td_link`): its configuration, the
/// monitor's measurements, and a part for each controller. Sizes are in wire bytes, rates in wire
/// bytes/s, unless stated otherwise.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkRecord {
    /// Configured, or estimated: capacity; 0: unknown, controllers that need it then behave as
    /// NewReno.
    pub capacity: u64,
    /// Configured: link-layer overhead of a packet.
    pub overhead: u32,
    /// Configured: 1 if the bottleneck queue is on this host.
    pub local: u32,
    /// Measured: bytes that have left.
    pub egress: u64,
    /// Measured: of those, bytes of flows that do not use `share`.
    pub foreign: u64,
    /// Measured: persistent queue, the recent minimum of the backlog.
    pub queue: u64,
    /// Measured: bytes queued now.
    pub backlog: u64,
    /// Measured: packets dropped at the queue on this host.
    pub drops: u64,
    /// Measured: time of the last measurement, µs.
    pub measured_us: u64,
    /// The part of `xcp` and `xcp_known`.
    pub xcp: XcpPart,
    /// The part of `mpcp`.
    pub mpcp: MpcpPart,
    /// The part of `share`.
    pub share: SharePart,
    /// The estimate of the capacity, if it is not configured.
    pub estimate: CapacityEstimate,
}

/// XCP's part of a link record: the current control interval, and the feedback of the last one.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct XcpPart {
    /// Start of the current control interval, µs; 0: none.
    pub since_us: u64,
    egress0: u64,
    acked: u64,
    time: u64,
    time_rtt: u64,
    last_acked: u64,
    last_time: u64,
    /// F+: positive feedback of the last interval, bytes.
    pub give: u64,
    /// F-: negative feedback of the last interval, bytes.
    pub take: u64,
    give_left: u64,
    take_left: u64,
    /// d, length of the control interval, µs.
    pub interval_us: u32,
    /// Window-limited flows, thousandths.
    pub flows_milli: u32,
    granted: u64,
    owed: u64,
    freed: u64,
    /// Flows with data to send.
    pub flows: u32,
    reserved: u32,
}

/// The load-factor controllers' part of a link record.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MpcpPart {
    since_us: u64,
    egress0: u64,
    /// Load factor sigma, thousandths.
    pub load_milli: u32,
    reserved: u32,
}

/// The part of `share` in a link record.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SharePart {
    /// Sum of the weights of greedy flows.
    pub weight: u64,
    /// Sum of the demands of demand-limited flows, payload bytes/s.
    pub demand: u64,
    /// Rate of a greedy flow of weight 1, payload bytes/s.
    pub level: u64,
    /// Rate of all flows together, payload bytes/s.
    pub committed: u64,
    /// Payload bytes sent beyond the capacity.
    pub excess: u64,
    excess_us: u64,
    /// Cross traffic, wire bytes/s.
    pub cross_rate: u64,
    since_us: u64,
    measured_us: u64,
    foreign0: u64,
    delivered: u64,
    lost: u64,
    min_delay_us: u32,
    max_base_rtt_us: u32,
    /// Flows with data to send.
    pub flows: u32,
    /// Estimated over configured capacity, 2⁻¹⁶.
    pub scale: u32,
    /// Fraction of that in use while a queue drains, 2⁻¹⁶.
    pub drain: u32,
    /// Factor that keeps a small queue, 2⁻¹⁶.
    pub trim: u32,
    /// Phase of the capacity correction.
    pub phase: u32,
    epochs: u32,
    regrow_wait: u32,
    test_wait: u32,
    next_test_wait: u32,
    loss: u32,
    step: u32,
    more_wait: u32,
    next_more_wait: u32,
    /// Least queueing delay in the last epoch, µs; `u32::MAX`: none was measured.
    pub last_delay_us: u32,
    longer_us: u32,
    longer_ms: u32,
}

/// The estimate of a link's capacity (`struct td_estimate`, c/estimate.h).
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CapacityEstimate {
    since_us: u64,
    delivered: u64,
    lost: u64,
    /// Smoothed delivery rate of all flows, wire bytes/s.
    pub rate: u64,
    /// The same over a longer time.
    pub mean: u64,
    peak: u64,
    last_peak: u64,
    peak_since_us: u64,
    recent_delivered: u64,
    recent_lost: u64,
    base_since_us: u64,
    drain_until_us: u64,
    settle_until_us: u64,
    /// Whether the capacity is estimated: [`CapacityEstimate::OFF`] and the others.
    pub enabled: u32,
    min_delay_us: u32,
    new_delay_us: u32,
    /// Largest base RTT of a flow, µs.
    pub base_us: u32,
    next_base_us: u32,
    /// Target of the queueing delay, µs.
    pub target_us: u32,
    growth: u32,
    queued: u32,
    empty: u32,
    drained_us: u32,
    /// Odd during a drain; after one that met no empty queue it is another even number.
    pub base_period: u32,
    empties: u32,
    last_delay_us: u32,
    joined: u32,
    late_delay_us: u32,
    met: u32,
    /// The configured capacity while the estimate takes its place, wire bytes/s.
    pub told: u64,
    told_since_us: u64,
    told_wait_us: u64,
}

impl CapacityEstimate {
    /// The capacity is configured, or unknown.
    pub const OFF: u32 = 0;
    /// The capacity is estimated, as configured.
    pub const CONFIGURED: u32 = 1;
    /// The configured capacity has turned out to be wrong, and the estimate takes its place
    /// (`c/fallback.h`).
    pub const FALLBACK: u32 = 2;
}

type StepFunction = unsafe extern "C" fn(*mut FlowState, *mut u64, *mut LinkRecord, *const Event, *const u32);

/// `struct td_native`: an entry of the table of controllers.
#[repr(C)]
pub(crate) struct Native {
    name: *const c_char,
    text: *const c_char,
    step: StepFunction,
    tunables: *const RawTunable,
    tunable_count: u32,
    owns_window: u32,
    wants: u32,
    state_bytes: u32,
    reserved: u32,
}

/// `struct td_tunable`.
#[repr(C)]
pub(crate) struct RawTunable {
    name: *const c_char,
    pub(crate) value: u32,
    pub(crate) low: u32,
    pub(crate) high: u32,
    text: *const c_char,
}

// SAFETY: the tables are constant.
unsafe impl Sync for Native {}

unsafe extern "C" {
    static td_natives: [Native; 0];
    static td_native_count: u32;
    #[cfg(test)]
    static td_layout: [u32; 0];
    #[cfg(test)]
    static td_layout_count: u32;
}

pub(crate) fn natives() -> &'static [Native] {
    // SAFETY: the table is constant and has that many entries.
    unsafe { slice::from_raw_parts((&raw const td_natives).cast(), td_native_count as usize) }
}

impl Native {
    pub(crate) fn name(&self) -> &'static str {
        text(self.name)
    }

    pub(crate) fn description(&self) -> &'static str {
        text(self.text)
    }

    pub(crate) fn owns_window(&self) -> bool {
        self.owns_window != 0
    }

    pub(crate) fn wants(&self) -> u32 {
        self.wants
    }

    /// Size of its state, in 64-bit words.
    pub(crate) fn state_words(&self) -> usize {
        self.state_bytes.div_ceil(8) as usize
    }

    pub(crate) fn tunables(&self) -> &'static [RawTunable] {
        // SAFETY: the table is constant and has that many entries.
        unsafe { slice::from_raw_parts(self.tunables, self.tunable_count as usize) }
    }

    /// Calls the controller.
    ///
    /// # Panics
    /// If there is not one value for each tunable, or the state is too short.
    #[inline]
    pub(crate) fn step(&self, flow: &mut FlowState, words: &mut [u64], link: Option<&mut LinkRecord>, event: &Event, tunables: &[u32]) {
        assert_eq!(tunables.len(), self.tunable_count as usize, "tunables of {}", self.name());
        assert!(words.len() >= self.state_words(), "state of {}", self.name());
        let link = link.map_or(ptr::null_mut(), ptr::from_mut);
        // SAFETY: the structs have the layout of C (tested below), the state has its size,
        // and each tunable has a value.
        unsafe { (self.step)(flow, words.as_mut_ptr(), link, event, tunables.as_ptr()) }
    }
}

impl RawTunable {
    pub(crate) fn name(&self) -> &'static str {
        text(self.name)
    }

    pub(crate) fn text(&self) -> &'static str {
        text(self.text)
    }
}

/// What the program of an own controller works on (`struct td_simulated`, c/own_simulated.c). It
/// has integers only, so that whatever the program writes is valid.
#[repr(C)]
pub(crate) struct Frame {
    flow: FlowState,
    event: [u64; EVENT_WORDS],
    state: [u64; MOST_STATE_WORDS],
    link: LinkRecord,
    tunables: [u32; MOST_TUNABLES],
    has_link: u32,
    reserved: u32,
}

const EVENT_WORDS: usize = mem::size_of::<Event>() / 8;

impl Frame {
    /// # Panics
    /// When there are too many words or tunables.
    pub(crate) fn new(flow: &FlowState, words: &[u64], link: Option<&LinkRecord>, event: &Event, tunables: &[u32]) -> Frame {
        let mut frame = Frame {
            flow: *flow,
            // SAFETY: an event has this size and no padding, and its bytes are valid integers.
            event: unsafe { mem::transmute::<Event, [u64; EVENT_WORDS]>(*event) },
            state: [0; MOST_STATE_WORDS],
            link: link.copied().unwrap_or_default(),
            tunables: [0; MOST_TUNABLES],
            has_link: link.is_some().into(),
            reserved: 0,
        };
        frame.state[..words.len()].copy_from_slice(words);
        frame.tunables[..tunables.len()].copy_from_slice(tunables);
        frame
    }

    /// Its bytes, for the program.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: it has no padding (tested below), and every bit pattern of it is valid.
        unsafe { slice::from_raw_parts_mut(ptr::from_mut(self).cast(), mem::size_of::<Frame>()) }
    }

    /// Copies what the program may change.
    pub(crate) fn copy_back(&self, flow: &mut FlowState, words: &mut [u64], link: Option<&mut LinkRecord>) {
        *flow = self.flow;
        words.copy_from_slice(&self.state[..words.len()]);
        if let Some(link) = link {
            *link = self.link;
        }
    }
}

fn text(text: *const c_char) -> &'static str {
    // SAFETY: the strings of the tables are literals.
    unsafe { CStr::from_ptr(text) }.to_str().expect("the tables are ASCII")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::{offset_of, size_of};

    #[test]
    fn the_frame_of_an_own_controller_has_no_padding() {
        let (flow, event, link) = (size_of::<FlowState>(), size_of::<Event>(), size_of::<LinkRecord>());
        let parts = flow + event + 8 * MOST_STATE_WORDS + link + 4 * MOST_TUNABLES + 8;
        assert_eq!((size_of::<Frame>(), event % 8), (parts, 0));
        assert_eq!(offset_of!(Frame, state), flow + event);
    }

    #[test]
    fn structs_have_the_same_layout_as_in_c() {
        // SAFETY: the table is constant and has that many entries.
        let c: &[u32] = unsafe { slice::from_raw_parts((&raw const td_layout).cast(), td_layout_count as usize) };
        let rust = [
            size_of::<FlowState>(),
            offset_of!(FlowState, sent),
            offset_of!(FlowState, cwnd),
            offset_of!(FlowState, pacing_rate),
            size_of::<Event>(),
            offset_of!(Event, kind),
            offset_of!(Event, lost),
            offset_of!(Event, random),
            size_of::<LinkRecord>(),
            offset_of!(LinkRecord, overhead),
            offset_of!(LinkRecord, egress),
            offset_of!(LinkRecord, measured_us),
            offset_of!(LinkRecord, xcp),
            offset_of!(LinkRecord, mpcp),
            offset_of!(LinkRecord, share),
            offset_of!(LinkRecord, estimate),
            offset_of!(CapacityEstimate, enabled),
            offset_of!(CapacityEstimate, told),
        ];
        assert_eq!(c, rust.map(|n| n as u32));
    }
}
