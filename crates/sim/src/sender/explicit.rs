//! Senders that routers tell what to do, end to end: XCP, VCP, MPCP. A window of packets with its fraction; no slow start.
//!
//! A loss is answered as TCP does (half of the window, brought down by TCP's own recovery, in which what routers tell has no say; slow start
//! back to there after a timeout); one that keeps its window answers none.
//!
//! **XCP**: the window grows by what the routers granted, a change of rate, times the round trip, down to one packet. Who does not use its window
//! asks for no more.
//!
//! **VCP** (Xia et al. 2005, and their code): of the window w, for each packet acknowledged, with r the round trip over t_ρ = 200 ms,
//!
//! | load | | |
//! |---|---|---|
//! | low | w += (1 + ξ)^r − 1 | ξ = 0.0625; r counts for 2.5 at most |
//! | high | w += α / w | α = (R / 100 ms)², which makes rates alike; linear below 20 and above 500 ms |
//! | over | w × 0.875, once | then nothing for t_ρ, and only α / w for a round trip: what is told in it was measured before |
//!
//! Up to 64 packets the window is paced.
//!
//! **MPCP**: MLCP's form with numbers of our own where the source has not been had, so no reproduction of MPCP's table:
//!
//! | load σ | | |
//! |---|---|---|
//! | < 0.8 | w += min((1 + ξ)^r − 1, 1) | ξ = min(κ (1 − σ) / σ, 1), κ = 0.35; never more than twice the window a round trip |
//! | < 1 | w += α / w | α as with VCP |
//! | ≥ 1 | w × β, once | β from 0.9375 at 1 down to 0.875 at 1.03 and beyond; then as VCP |

use crate::{
    packet::{HEADER, Header, Protocol},
    router::{Code, INTERVAL_NS, load_of},
};
use control::{Event, EventKind as Kind, FlowState as Flow};
use scenario::{Explicit, QueueKind};

/// The interval of routers, seconds.
const T_RHO: f64 = INTERVAL_NS as f64 / 1e9;
const T_RHO_US: u64 = INTERVAL_NS / 1000;
/// VCP's increase a t_ρ at low load, the most that a round trip counts for there, and what overload leaves.
const XI: f64 = 0.0625;
const MOST_ROUNDS: f64 = 2.5;
const BETA: f64 = 0.875;
/// MPCP's increase at low load, as a factor and at most.
const KAPPA: f64 = 0.35;
const XI_MOST: f64 = 1.0;
/// What overload leaves where it is least, and from which load on it is [`BETA`].
const BETA_MOST: f64 = 0.9375;
const BETA_FROM: f64 = 1.03;
/// The round trip at which the additive increase is a packet, seconds, and where its square gives way to a line, in parts of that.
const REFERENCE_RTT: f64 = 0.1;
const SQUARE: [f64; 2] = [0.2, 5.0];
/// The largest window that is paced.
const PACED: f64 = 64.0;
/// Not paced, bytes/s.
const AT_ONCE: u64 = u64::MAX;

/// A law at work on a flow.
#[derive(Debug)]
pub(super) struct State {
    explicit: Explicit,
    /// Packets; as long as nobody else has moved the flow's own, which is whole.
    window: f64,
    /// What came with the last acknowledgement.
    word: f32,
    /// Packets that were given a header.
    said: u32,
    /// Until when nothing changes after a cut, and until when the window only creeps, µs.
    frozen_until: u64,
    gentle_until: u64,
    /// The retransmission timer has fired, and the window is not back yet.
    timed_out: bool,
}

/// What the routers' load asks for.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Asked {
    /// For each packet acknowledged, so much of one more.
    Grow(f64),
    Creep,
    /// To a part of it.
    Cut(f64),
}

/// Whether it sets the pace.
pub(super) fn paces(explicit: Explicit) -> bool {
    explicit.routers != QueueKind::Xcp
}

impl State {
    /// Takes charge of a flow.
    pub(super) fn begin(explicit: Explicit, flow: &mut Flow) -> Self {
        let window = f64::from(flow.cwnd);
        let mut state = State { explicit, window, word: 0.0, said: 0, frozen_until: 0, gentle_until: 0, timed_out: false };
        flow.ssthresh = flow.cwnd;
        state.pace(flow);
        state
    }

    /// What an acknowledgement brought.
    pub(super) fn hear(&mut self, word: f32) {
        self.word = word;
    }

    /// What the next data packet tells and asks for.
    pub(super) fn say(&mut self, flow: &Flow, rtt_us: u32, wants: bool) -> (Header, f32) {
        let (protocol, asks) = match self.explicit.routers {
            QueueKind::Vcp => (Protocol::Vcp, 0.0),
            QueueKind::Mpcp => (Protocol::Mpcp(self.explicit.packets), 0.0),
            _ => (Protocol::Xcp, if wants { f32::MAX } else { 0.0 }),
        };
        let spacing = f64::from(rtt_us) / 1e6 / self.window_of(flow);
        let header = Header { protocol, number: self.said, rtt_us, spacing: spacing as f32 };
        self.said = self.said.wrapping_add(1);
        (header, asks)
    }

    /// The window with its fraction, unless TCP has moved it.
    fn window_of(&self, flow: &Flow) -> f64 {
        if self.explicit.keeps || self.window.floor() as u32 == flow.cwnd { self.window } else { f64::from(flow.cwnd) }
    }

    /// Something happened.
    pub(super) fn step(&mut self, flow: &mut Flow, event: &Event) {
        match event.kind {
            Kind::Ack => self.acknowledged(flow, event),
            // RFC 5681 (4).
            Kind::Loss if !self.explicit.keeps => flow.ssthresh = (flow.cwnd / 2).max(2),
            Kind::Timeout => self.timed_out = true,
            Kind::Undo => flow.cwnd = flow.cwnd.max(flow.prior_cwnd),
            _ => {}
        }
    }

    fn acknowledged(&mut self, flow: &mut Flow, event: &Event) {
        self.window = self.window_of(flow);
        let word = std::mem::take(&mut self.word);
        let limited = event.flags & control::CWND_LIMITED != 0;
        if self.timed_out && flow.cwnd < flow.ssthresh {
            // RFC 5681 §3.1: the timer has fired.
            self.window = (self.window + f64::from(event.acked)).min(flow.ssthresh.into());
        } else {
            self.timed_out = false;
            if word != 0.0 {
                match self.explicit.routers {
                    QueueKind::Xcp => self.take_grant(flow, word, limited),
                    QueueKind::Vcp => self.follow(flow, self.asked_by_code(flow, word), event, limited),
                    _ => self.follow(flow, self.asked_by_level(flow, word), event, limited),
                }
            }
        }
        self.window = self.window.clamp(1.0, control::INFINITE.into());
        flow.cwnd = self.window as u32;
        if !self.timed_out {
            flow.ssthresh = flow.ssthresh.min(flow.cwnd);
        }
        self.pace(flow);
    }

    /// XCP: a change of rate, bytes/s.
    fn take_grant(&mut self, flow: &Flow, word: f32, limited: bool) {
        let change = f64::from(word) * rtt(flow) / f64::from(flow.mss + HEADER);
        if change < 0.0 || limited {
            self.window += change;
        }
    }

    fn asked_by_code(&self, flow: &Flow, word: f32) -> Asked {
        match Code::read(word) {
            Some(Code::Low) => Asked::Grow(compound(XI, (rtt(flow) / T_RHO).min(MOST_ROUNDS))),
            Some(Code::Over) => Asked::Cut(BETA),
            Some(Code::High) | None => Asked::Creep,
        }
    }

    fn asked_by_level(&self, flow: &Flow, word: f32) -> Asked {
        let load = load_of(word as u32 - 1, self.explicit.packets);
        match Code::of(load) {
            Code::Low => {
                let xi = (KAPPA * (1.0 - load) / load).min(XI_MOST);
                Asked::Grow(compound(xi, rtt(flow) / T_RHO).min(1.0))
            }
            Code::High => Asked::Creep,
            Code::Over => Asked::Cut((BETA_MOST - (load - 1.0) / (BETA_FROM - 1.0) * (BETA_MOST - BETA)).max(BETA)),
        }
    }

    /// VCP and MPCP: what the load asks for, unless a cut is too fresh.
    fn follow(&mut self, flow: &Flow, asked: Asked, event: &Event, limited: bool) {
        let now = event.now_us;
        if now < self.frozen_until {
            return;
        }
        let asked = if now < self.gentle_until { Asked::Creep } else { asked };
        let acked = f64::from(event.acked);
        match asked {
            Asked::Cut(to) => {
                self.window *= to;
                self.frozen_until = now + T_RHO_US;
                self.gentle_until = self.frozen_until + u64::from(flow.srtt_us);
            }
            Asked::Grow(by) if limited => self.window += by * acked,
            Asked::Creep if limited => self.window += increase(rtt(flow)) * acked / self.window,
            Asked::Grow(_) | Asked::Creep => {}
        }
    }

    /// Small windows go out evenly, at the pace of the next power of two.
    fn pace(&mut self, flow: &mut Flow) {
        if !paces(self.explicit) {
            return;
        }
        let at_once = self.window > PACED || flow.srtt_us == 0;
        // One that is above the window, so that it is the window that holds the flow.
        let packets = u64::from((self.window as u32 + 1).next_power_of_two());
        flow.pacing_rate = if at_once { AT_ONCE } else { packets * u64::from(flow.mss) * 1_000_000 / u64::from(flow.srtt_us) };
    }
}

/// Round trip, seconds.
fn rtt(flow: &Flow) -> f64 {
    f64::from(flow.srtt_us) / 1e6
}

/// What an increase comes to over so many intervals. Nine digits: the last of a power is not the same on every machine.
fn compound(xi: f64, intervals: f64) -> f64 {
    (((1.0 + xi).powf(intervals) - 1.0) * 1e9).round() / 1e9
}

/// The additive increase, in packets a round trip.
fn increase(rtt: f64) -> f64 {
    let part = rtt / REFERENCE_RTT;
    part * part.clamp(SQUARE[0], SQUARE[1])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin(name: &str, cwnd: u32, rtt_ms: u32) -> (State, Flow) {
        let mut flow = Flow { mss: 1448, cwnd, srtt_us: rtt_ms * 1000, ..Flow::default() };
        let state = State::begin(Explicit::named(name).unwrap(), &mut flow);
        (state, flow)
    }

    /// A round trip's worth of acknowledgements, one for each packet, that all say the same.
    fn round(state: &mut State, flow: &mut Flow, from_ms: u64, word: f32) {
        let (cwnd, rtt_us) = (flow.cwnd, u64::from(flow.srtt_us));
        for number in 0..cwnd {
            state.hear(word);
            let now_us = from_ms * 1000 + rtt_us * u64::from(number) / u64::from(cwnd);
            state.step(flow, &Event { now_us, kind: Kind::Ack, acked: 1, flags: control::CWND_LIMITED, ..Event::default() });
        }
    }

    #[test]
    fn xcp_turns_a_rate_into_a_window() {
        let (mut state, mut flow) = begin("xcp-e2e", 50, 200);
        // 50 times 300 B/s, of 200 ms: two packets of 1500 bytes.
        round(&mut state, &mut flow, 0, 300.0);
        assert!((state.window - 52.0).abs() < 1e-3 && flow.cwnd.abs_diff(52) <= 1, "{}", state.window);
        round(&mut state, &mut flow, 200, -9e6);
        assert_eq!((state.window, flow.cwnd), (1.0, 1));
    }

    #[test]
    fn who_does_not_use_the_window_neither_asks_nor_grows() {
        let (mut state, mut flow) = begin("xcp-e2e", 50, 200);
        assert_eq!(state.say(&flow, 200_000, false).1, 0.0);
        let (header, asks) = state.say(&flow, 200_000, true);
        assert_eq!((header.number, header.spacing, asks), (1, 0.004, f32::MAX));
        state.hear(1e6);
        state.step(&mut flow, &Event { kind: Kind::Ack, acked: 1, ..Event::default() });
        assert_eq!(flow.cwnd, 50);
    }

    #[test]
    fn vcp_follows_its_table() {
        let grown = |rtt_ms: u32, word: f32| {
            let (mut state, mut flow) = begin("vcp-e2e", 1000, rtt_ms);
            round(&mut state, &mut flow, 0, word);
            state.window / 1000.0
        };
        // One t_ρ; half of one; eight, of which two and a half count.
        assert!((grown(200, 1.0) - 1.0625).abs() < 1e-6);
        assert!((grown(100, 1.0) - 1.0625f64.sqrt()).abs() < 1e-6);
        assert!((grown(1600, 1.0) - 1.0625f64.powf(2.5)).abs() < 1e-6);
        for (rtt_ms, packets) in [(100, 1.0), (200, 4.0), (10, 0.02), (800, 40.0)] {
            assert!((grown(rtt_ms, 2.0) - 1.0 - packets / 1000.0).abs() < 0.03 * packets / 1000.0, "{rtt_ms}");
        }
    }

    #[test]
    fn an_overload_cuts_once_and_then_all_is_quiet() {
        for (name, over) in [("vcp-e2e", 3.0), ("mpcp-e2e", 16.0)] {
            let (mut state, mut flow) = begin(name, 100, 200);
            round(&mut state, &mut flow, 0, over);
            assert!((state.window - 87.5).abs() < 1e-9, "{name}: frozen for 200 ms: {}", state.window);
            // For a round trip it only creeps, whatever it is told.
            round(&mut state, &mut flow, 200, over);
            assert!(state.window > 90.0 && state.window < 92.0, "{name}: {}", state.window);
            round(&mut state, &mut flow, 400, over);
            assert!(state.window < 82.0, "{name}: {}", state.window);
        }
    }

    #[test]
    fn mpcp_grows_the_faster_the_less_the_load() {
        let grown = |level: u32, rtt_ms: u32| {
            let (mut state, mut flow) = begin("mpcp-e2e", 1000, rtt_ms);
            round(&mut state, &mut flow, 0, level as f32 + 1.0);
            state.window / 1000.0
        };
        // Level 6 is the load 0.65, level 9 is high load.
        assert!((grown(6, 200) - (1.0 + 0.35 * 0.35 / 0.65)).abs() < 1e-6);
        assert!((grown(9, 200) - 1.004).abs() < 2e-4);
        // Never more than twice a round trip.
        assert_eq!((grown(0, 200), grown(0, 800), grown(4, 1600)), (2.0, 2.0, 2.0));
        // Half of the overload's levels are beyond 1.03 of the load: only the first is not as deep.
        let cut = |level: f32| {
            let (mut state, mut flow) = begin("mpcp3-e2e", 1000, 200);
            state.hear(level + 1.0);
            state.step(&mut flow, &Event { kind: Kind::Ack, acked: 1, flags: control::CWND_LIMITED, ..Event::default() });
            state.window / 1000.0
        };
        assert!(cut(48.0) > cut(49.0) && cut(49.0) > 0.875 && cut(63.0) == 0.875, "{} {} {}", cut(48.0), cut(49.0), cut(63.0));
    }

    #[test]
    fn a_loss_halves_unless_the_window_is_kept() {
        let (mut state, mut flow) = begin("xcp-e2e", 100, 200);
        state.step(&mut flow, &Event { kind: Kind::Loss, ..Event::default() });
        assert_eq!((flow.ssthresh, flow.cwnd), (50, 100));
        // What TCP's recovery has made of it is where the law goes on.
        flow.cwnd = 50;
        round(&mut state, &mut flow, 0, 300.0);
        assert!((state.window - 52.0).abs() < 1e-3, "{}", state.window);
        let (mut state, mut flow) = begin("xcp-e2e-keep", 100, 200);
        state.step(&mut flow, &Event { kind: Kind::Loss, ..Event::default() });
        flow.cwnd = 1;
        state.step(&mut flow, &Event { kind: Kind::Ack, acked: 1, ..Event::default() });
        assert_eq!((flow.cwnd, flow.ssthresh), (100, 100));
    }

    #[test]
    fn after_a_timeout_the_window_comes_back_as_tcps_does() {
        let (mut state, mut flow) = begin("vcp-e2e", 40, 200);
        state.step(&mut flow, &Event { kind: Kind::Loss, ..Event::default() });
        state.step(&mut flow, &Event { kind: Kind::Timeout, ..Event::default() });
        flow.cwnd = 1;
        for expected in [2, 4, 8, 16, 20] {
            round(&mut state, &mut flow, 0, 1.0);
            assert_eq!(flow.cwnd, expected);
        }
        // By its own law then: 32 acknowledgements since it was back.
        round(&mut state, &mut flow, 0, 1.0);
        assert_eq!(flow.cwnd, 22);
    }

    #[test]
    fn small_windows_are_paced() {
        let (mut state, mut flow) = begin("vcp-e2e", 20, 200);
        assert_eq!(flow.pacing_rate, 32 * 1448 * 5);
        flow.cwnd = 65;
        state.step(&mut flow, &Event { kind: Kind::Ack, acked: 1, ..Event::default() });
        assert_eq!(flow.pacing_rate, AT_ONCE);
        assert_eq!(begin("xcp-e2e", 20, 200).1.pacing_rate, 0);
    }
}
