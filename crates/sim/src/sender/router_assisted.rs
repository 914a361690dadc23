//! Congestion control that follows feedback from routers, end to end: XCP, VCP, MPCP. The window is
//! a fractional number of packets; there is no slow start.
//!
//! A loss is answered as by Reno: half of the window, reduced by TCP's own recovery, during which
//! router feedback is ignored; after a timeout slow start returns to that threshold. A controller
//! that keeps its window does not react to losses.
//!
//! **XCP**: the window changes by the granted change of rate times the RTT, and is at least one
//! packet. A sender that does not use its window requests no increase.
//!
//! **VCP** (Xia et al. 2005, and the authors' code). For each acknowledged packet, with the window
//! w, the RTT R, and r = R / t_ρ with t_ρ = 200 ms:
//!
//! | load | change | |
//! |---|---|---|
//! | low | w += (1 + ξ)^r − 1 | multiplicative increase |
//! | high | w += α / w | additive increase |
//! | overload | w × 0.875, once | multiplicative decrease |
//!
//! ξ = 0.0625, and r is at most 2.5. α = (R / 100 ms)² equalizes the rates of flows; it is linear
//! in R below 20 ms and above 500 ms. After a decrease the window does not change for t_ρ, and then
//! grows only additively for one RTT, because the feedback of that time was measured before the
//! decrease. Windows of up to 64 packets are paced.
//!
//! **MPCP**: the form of MLCP, with numbers of our own where no source was available. It does not
//! reproduce the table of MPCP. With the load σ:
//!
//! | load | change | |
//! |---|---|---|
//! | σ < 0.8 | w += min((1 + ξ)^r − 1, 1) | ξ = min(κ (1 − σ) / σ, 1), κ = 0.35 |
//! | σ < 1 | w += α / w | α as for VCP |
//! | σ ≥ 1 | w × β, once | then as for VCP |
//!
//! The window at most doubles in an RTT. β falls from 0.9375 at σ = 1 to 0.875 at 1.03 and beyond.

use crate::{
    packet::{CongestionHeader, HEADER_BYTES, RouterProtocol},
    router::{INTERVAL_NS, LoadRegion, load_of_level},
};
use control::{Event, EventKind, FlowState};
use scenario::{Explicit, QueueKind};

/// t_ρ, the measurement interval of routers, seconds.
const T_RHO: f64 = INTERVAL_NS as f64 / 1e9;
/// t_ρ, µs.
const T_RHO_US: u64 = INTERVAL_NS / 1000;
/// VCP's ξ: the increase per t_ρ at low load.
const XI: f64 = 0.0625;
/// VCP: the largest r.
const MAX_R: f64 = 2.5;
/// VCP's β: the factor of the multiplicative decrease.
const BETA: f64 = 0.875;
/// MPCP's κ: scales ξ at low load.
const KAPPA: f64 = 0.35;
/// MPCP: the largest ξ.
const MAX_XI: f64 = 1.0;
/// MPCP: β at the least overload.
const MAX_BETA: f64 = 0.9375;
/// MPCP: the load from which on β is [`BETA`].
const BETA_LOAD: f64 = 1.03;
/// The RTT at which α is 1, seconds.
const REFERENCE_RTT: f64 = 0.1;
/// The range of R / [`REFERENCE_RTT`] in which α is quadratic.
const QUADRATIC_RANGE: [f64; 2] = [0.2, 5.0];
/// The largest window that is paced, packets.
const MAX_PACED_WINDOW: f64 = 64.0;
/// A pacing rate that does not limit, bytes/s.
const UNPACED: u64 = u64::MAX;

/// The state of a controller for one flow.
#[derive(Debug)]
pub(super) struct RouterAssistedState {
    explicit: Explicit,
    /// The window, packets. Valid while its integer part is that of the flow; otherwise TCP has
    /// changed the flow's window.
    window: f64,
    /// The router feedback of the last acknowledgement.
    feedback: f32,
    /// The number of the next packet with a header.
    next_number: u32,
    /// After a decrease: until when the window does not change, µs.
    frozen_until: u64,
    /// After a decrease: until when the window only grows additively, µs.
    additive_until: u64,
    /// The retransmission timer has expired, and the window has not returned to the threshold.
    timed_out: bool,
}

/// The reaction to a load.
#[derive(Debug, Clone, Copy, PartialEq)]
enum WindowChange {
    /// Grow by this number of packets for each acknowledged packet.
    MultiplicativeIncrease(f64),
    AdditiveIncrease,
    /// Multiply the window by this factor.
    MultiplicativeDecrease(f64),
}

/// Whether the controller sets a pacing rate.
pub(super) fn paces(explicit: Explicit) -> bool {
    explicit.routers != QueueKind::Xcp
}

impl RouterAssistedState {
    /// Takes control of a flow.
    pub(super) fn begin(explicit: Explicit, flow: &mut FlowState) -> Self {
        let mut state = RouterAssistedState {
            explicit,
            window: f64::from(flow.cwnd),
            feedback: 0.0,
            next_number: 0,
            frozen_until: 0,
            additive_until: 0,
            timed_out: false,
        };
        flow.ssthresh = flow.cwnd;
        state.set_pacing_rate(flow);
        state
    }

    /// Takes the router feedback of an acknowledgement, before its event.
    pub(super) fn on_feedback(&mut self, feedback: f32) {
        self.feedback = feedback;
    }

    /// The header of the next data packet, and the initial value of its feedback field: for XCP the
    /// largest increase if `wants_more`.
    pub(super) fn next_header(&mut self, flow: &FlowState, rtt_us: u32, wants_more: bool) -> (CongestionHeader, f32) {
        let (protocol, request) = match self.explicit.routers {
            QueueKind::Vcp => (RouterProtocol::Vcp, 0.0),
            QueueKind::Mpcp => (RouterProtocol::Mpcp(self.explicit.feedback_packets), 0.0),
            _ => (RouterProtocol::Xcp, if wants_more { f32::MAX } else { 0.0 }),
        };
        let spacing = f64::from(rtt_us) / 1e6 / self.current_window(flow);
        let header = CongestionHeader { protocol, number: self.next_number, rtt_us, spacing: spacing as f32 };
        self.next_number = self.next_number.wrapping_add(1);
        (header, request)
    }

    /// The fractional window, unless TCP has changed the flow's window.
    fn current_window(&self, flow: &FlowState) -> f64 {
        if self.explicit.ignores_loss || self.window.floor() as u32 == flow.cwnd { self.window } else { f64::from(flow.cwnd) }
    }

    /// Handles an event; the decisions are in `flow` afterwards.
    pub(super) fn step(&mut self, flow: &mut FlowState, event: &Event) {
        match event.kind {
            EventKind::Ack => self.on_ack(flow, event),
            // RFC 5681 (4).
            EventKind::Loss if !self.explicit.ignores_loss => flow.ssthresh = (flow.cwnd / 2).max(2),
            EventKind::Timeout => self.timed_out = true,
            EventKind::Undo => flow.cwnd = flow.cwnd.max(flow.prior_cwnd),
            _ => {}
        }
    }

    fn on_ack(&mut self, flow: &mut FlowState, event: &Event) {
        self.window = self.current_window(flow);
        let feedback = std::mem::take(&mut self.feedback);
        let limited = event.flags & control::CWND_LIMITED != 0;
        if self.timed_out && flow.cwnd < flow.ssthresh {
            // RFC 5681 §3.1: slow start after a timeout.
            self.window = (self.window + f64::from(event.acked)).min(flow.ssthresh.into());
        } else {
            self.timed_out = false;
            if feedback != 0.0 {
                match self.explicit.routers {
                    QueueKind::Xcp => self.apply_grant(flow, feedback, limited),
                    QueueKind::Vcp => self.apply_change(flow, vcp_change(flow, feedback), event, limited),
                    _ => self.apply_change(flow, mpcp_change(flow, feedback, self.explicit.feedback_packets), event, limited),
                }
            }
        }
        self.window = self.window.clamp(1.0, control::INFINITE.into());
        flow.cwnd = self.window as u32;
        if !self.timed_out {
            flow.ssthresh = flow.ssthresh.min(flow.cwnd);
        }
        self.set_pacing_rate(flow);
    }

    /// XCP: applies a granted change of rate, bytes/s.
    fn apply_grant(&mut self, flow: &FlowState, grant: f32, limited: bool) {
        let change = f64::from(grant) * rtt_s(flow) / f64::from(flow.mss + HEADER_BYTES);
        if change < 0.0 || limited {
            self.window += change;
        }
    }

    /// VCP and MPCP: applies the reaction to a load, unless a decrease is too recent.
    fn apply_change(&mut self, flow: &FlowState, change: WindowChange, event: &Event, limited: bool) {
        let now = event.now_us;
        if now < self.frozen_until {
            return;
        }
        let change = if now < self.additive_until { WindowChange::AdditiveIncrease } else { change };
        let acked = f64::from(event.acked);
        match change {
            WindowChange::MultiplicativeDecrease(factor) => {
                self.window *= factor;
                self.frozen_until = now + T_RHO_US;
                self.additive_until = self.frozen_until + u64::from(flow.srtt_us);
            }
            WindowChange::MultiplicativeIncrease(increase) if limited => self.window += increase * acked,
            WindowChange::AdditiveIncrease if limited => self.window += alpha(rtt_s(flow)) * acked / self.window,
            WindowChange::MultiplicativeIncrease(_) | WindowChange::AdditiveIncrease => {}
        }
    }

    /// Paces small windows, at the rate of the next power of two of packets per RTT.
    fn set_pacing_rate(&mut self, flow: &mut FlowState) {
        if !paces(self.explicit) {
            return;
        }
        let is_unpaced = self.window > MAX_PACED_WINDOW || flow.srtt_us == 0;
        // The rate is above the window's, so the window is what limits the flow.
        let packets = u64::from((self.window as u32 + 1).next_power_of_two());
        flow.pacing_rate = if is_unpaced { UNPACED } else { packets * u64::from(flow.mss) * 1_000_000 / u64::from(flow.srtt_us) };
    }
}

/// VCP's reaction to the code of a load region.
fn vcp_change(flow: &FlowState, code: f32) -> WindowChange {
    match LoadRegion::from_code(code) {
        Some(LoadRegion::Low) => WindowChange::MultiplicativeIncrease(compound(XI, (rtt_s(flow) / T_RHO).min(MAX_R))),
        Some(LoadRegion::Overload) => WindowChange::MultiplicativeDecrease(BETA),
        Some(LoadRegion::High) | None => WindowChange::AdditiveIncrease,
    }
}

/// MPCP's reaction to a load level, which the feedback carries plus one.
fn mpcp_change(flow: &FlowState, feedback: f32, packets: u32) -> WindowChange {
    let load = load_of_level(feedback as u32 - 1, packets);
    match LoadRegion::of(load) {
        LoadRegion::Low => {
            let xi = (KAPPA * (1.0 - load) / load).min(MAX_XI);
            WindowChange::MultiplicativeIncrease(compound(xi, rtt_s(flow) / T_RHO).min(1.0))
        }
        LoadRegion::High => WindowChange::AdditiveIncrease,
        LoadRegion::Overload => {
            let beta = MAX_BETA - (load - 1.0) / (BETA_LOAD - 1.0) * (MAX_BETA - BETA);
            WindowChange::MultiplicativeDecrease(beta.max(BETA))
        }
    }
}

/// The smoothed RTT, seconds.
fn rtt_s(flow: &FlowState) -> f64 {
    f64::from(flow.srtt_us) / 1e6
}

/// (1 + ξ)^r − 1, rounded to nine digits because the last digit of a power differs between
/// machines.
fn compound(xi: f64, r: f64) -> f64 {
    (((1.0 + xi).powf(r) - 1.0) * 1e9).round() / 1e9
}

/// α: the additive increase, packets per RTT.
fn alpha(rtt_s: f64) -> f64 {
    let ratio = rtt_s / REFERENCE_RTT;
    ratio * ratio.clamp(QUADRATIC_RANGE[0], QUADRATIC_RANGE[1])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin(name: &str, cwnd: u32, rtt_ms: u32) -> (RouterAssistedState, FlowState) {
        let mut flow = FlowState { mss: 1448, cwnd, srtt_us: rtt_ms * 1000, ..FlowState::default() };
        let state = RouterAssistedState::begin(Explicit::named(name).unwrap(), &mut flow);
        (state, flow)
    }

    /// One RTT of acknowledgements, one for each packet, all with the same feedback.
    fn round(state: &mut RouterAssistedState, flow: &mut FlowState, from_ms: u64, feedback: f32) {
        let (cwnd, rtt_us) = (flow.cwnd, u64::from(flow.srtt_us));
        for number in 0..cwnd {
            state.on_feedback(feedback);
            let now_us = from_ms * 1000 + rtt_us * u64::from(number) / u64::from(cwnd);
            state.step(flow, &Event { now_us, kind: EventKind::Ack, acked: 1, flags: control::CWND_LIMITED, ..Event::default() });
        }
    }

    #[test]
    fn xcp_converts_a_rate_into_a_window() {
        let (mut state, mut flow) = begin("xcp-e2e", 50, 200);
        // 50 times 300 B/s for 200 ms: two packets of 1500 bytes.
        round(&mut state, &mut flow, 0, 300.0);
        assert!((state.window - 52.0).abs() < 1e-3 && flow.cwnd.abs_diff(52) <= 1, "{}", state.window);
        round(&mut state, &mut flow, 200, -9e6);
        assert_eq!((state.window, flow.cwnd), (1.0, 1));
    }

    #[test]
    fn an_unused_window_neither_requests_nor_grows() {
        let (mut state, mut flow) = begin("xcp-e2e", 50, 200);
        assert_eq!(state.next_header(&flow, 200_000, false).1, 0.0);
        let (header, asks) = state.next_header(&flow, 200_000, true);
        assert_eq!((header.number, header.spacing, asks), (1, 0.004, f32::MAX));
        state.on_feedback(1e6);
        state.step(&mut flow, &Event { kind: EventKind::Ack, acked: 1, ..Event::default() });
        assert_eq!(flow.cwnd, 50);
    }

    #[test]
    fn vcp_follows_its_table() {
        let grown = |rtt_ms: u32, feedback: f32| {
            let (mut state, mut flow) = begin("vcp-e2e", 1000, rtt_ms);
            round(&mut state, &mut flow, 0, feedback);
            state.window / 1000.0
        };
        // An RTT of t_ρ, of half, and of eight times t_ρ, which counts as 2.5.
        assert!((grown(200, 1.0) - 1.0625).abs() < 1e-6);
        assert!((grown(100, 1.0) - 1.0625f64.sqrt()).abs() < 1e-6);
        assert!((grown(1600, 1.0) - 1.0625f64.powf(2.5)).abs() < 1e-6);
        for (rtt_ms, packets) in [(100, 1.0), (200, 4.0), (10, 0.02), (800, 40.0)] {
            assert!((grown(rtt_ms, 2.0) - 1.0 - packets / 1000.0).abs() < 0.03 * packets / 1000.0, "{rtt_ms}");
        }
    }

    #[test]
    fn an_overload_decreases_once_and_then_freezes() {
        for (name, over) in [("vcp-e2e", 3.0), ("mpcp-e2e", 16.0)] {
            let (mut state, mut flow) = begin(name, 100, 200);
            round(&mut state, &mut flow, 0, over);
            assert!((state.window - 87.5).abs() < 1e-9, "{name}: frozen for 200 ms: {}", state.window);
            // For one RTT it only grows additively, whatever the feedback.
            round(&mut state, &mut flow, 200, over);
            assert!(state.window > 90.0 && state.window < 92.0, "{name}: {}", state.window);
            round(&mut state, &mut flow, 400, over);
            assert!(state.window < 82.0, "{name}: {}", state.window);
        }
    }

    #[test]
    fn mpcp_grows_faster_at_lower_load() {
        let grown = |level: u32, rtt_ms: u32| {
            let (mut state, mut flow) = begin("mpcp-e2e", 1000, rtt_ms);
            round(&mut state, &mut flow, 0, level as f32 + 1.0);
            state.window / 1000.0
        };
        // Level 6 is the load 0.65, level 9 is high load.
        assert!((grown(6, 200) - (1.0 + 0.35 * 0.35 / 0.65)).abs() < 1e-6);
        assert!((grown(9, 200) - 1.004).abs() < 2e-4);
        // At most doubles in an RTT.
        assert_eq!((grown(0, 200), grown(0, 800), grown(4, 1600)), (2.0, 2.0, 2.0));
        // Levels above a load of 1.03 have the full decrease; only the first ones have less.
        let cut = |level: f32| {
            let (mut state, mut flow) = begin("mpcp3-e2e", 1000, 200);
            state.on_feedback(level + 1.0);
            state.step(&mut flow, &Event { kind: EventKind::Ack, acked: 1, flags: control::CWND_LIMITED, ..Event::default() });
            state.window / 1000.0
        };
        assert!(cut(48.0) > cut(49.0) && cut(49.0) > 0.875 && cut(63.0) == 0.875, "{} {} {}", cut(48.0), cut(49.0), cut(63.0));
    }

    #[test]
    fn a_loss_halves_the_window_unless_it_is_kept() {
        let (mut state, mut flow) = begin("xcp-e2e", 100, 200);
        state.step(&mut flow, &Event { kind: EventKind::Loss, ..Event::default() });
        assert_eq!((flow.ssthresh, flow.cwnd), (50, 100));
        // The controller continues from the window that TCP's recovery has left.
        flow.cwnd = 50;
        round(&mut state, &mut flow, 0, 300.0);
        assert!((state.window - 52.0).abs() < 1e-3, "{}", state.window);
        let (mut state, mut flow) = begin("xcp-e2e-keep", 100, 200);
        state.step(&mut flow, &Event { kind: EventKind::Loss, ..Event::default() });
        flow.cwnd = 1;
        state.step(&mut flow, &Event { kind: EventKind::Ack, acked: 1, ..Event::default() });
        assert_eq!((flow.cwnd, flow.ssthresh), (100, 100));
    }

    #[test]
    fn slow_start_follows_a_timeout() {
        let (mut state, mut flow) = begin("vcp-e2e", 40, 200);
        state.step(&mut flow, &Event { kind: EventKind::Loss, ..Event::default() });
        state.step(&mut flow, &Event { kind: EventKind::Timeout, ..Event::default() });
        flow.cwnd = 1;
        for expected in [2, 4, 8, 16, 20] {
            round(&mut state, &mut flow, 0, 1.0);
            assert_eq!(flow.cwnd, expected);
        }
        // Then by the controller again: 32 acknowledgements since the threshold was reached.
        round(&mut state, &mut flow, 0, 1.0);
        assert_eq!(flow.cwnd, 22);
    }

    #[test]
    fn small_windows_are_paced() {
        let (mut state, mut flow) = begin("vcp-e2e", 20, 200);
        assert_eq!(flow.pacing_rate, 32 * 1448 * 5);
        flow.cwnd = 65;
        state.step(&mut flow, &Event { kind: EventKind::Ack, acked: 1, ..Event::default() });
        assert_eq!(flow.pacing_rate, UNPACED);
        assert_eq!(begin("xcp-e2e", 20, 200).1.pacing_rate, 0);
    }
}
