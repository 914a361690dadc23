//! Each controller against the formulas of its source, on a path without loss or queue.

use control::{CWND_LIMITED, Controller, ControllerState, Event, EventKind, FlowState, INFINITE, LinkRecord};
use proptest::prelude::*;

const MSS: u32 = 1448;

/// A flow on a path without queue: each round trip delivers its window.
struct IdealPath {
    flow: FlowState,
    state: ControllerState,
    now_us: u64,
}

impl IdealPath {
    fn new(name: &str, rtt_us: u32, cwnd: u32, ssthresh: u32) -> Self {
        IdealPath::tuned(name, &[], rtt_us, cwnd, ssthresh)
    }

    fn tuned(name: &str, tunables: &[(&str, u32)], rtt_us: u32, cwnd: u32, ssthresh: u32) -> Self {
        let mut flow =
            FlowState { mss: MSS, cwnd, ssthresh, srtt_us: rtt_us, min_rtt_us: rtt_us, snd_wnd: 1 << 30, ..FlowState::default() };
        let state = Controller::named(name).unwrap().tuned(tunables).unwrap().begin(&mut flow, None, 1_000_000);
        IdealPath { flow, state, now_us: 1_000_000 }
    }

    fn step(&mut self, kind: EventKind, acked: u32) {
        let event = Event { now_us: self.now_us, kind, acked, rtt_us: self.flow.srtt_us, flags: CWND_LIMITED, ..Event::default() };
        self.state.step(&mut self.flow, None, &event);
    }

    fn ack(&mut self, segments: u32) {
        self.flow.una = self.flow.una.wrapping_add(segments * MSS);
        self.flow.nxt = self.flow.una.wrapping_add(self.flow.cwnd.saturating_mul(MSS));
        self.step(EventKind::Sample, segments);
        self.step(EventKind::Ack, segments);
    }

    /// A round trip, with ACKs for `segments` segments each.
    fn round(&mut self, segments: u32) {
        let window = self.flow.cwnd;
        let acks = window.div_ceil(segments);
        for ack in 0..acks {
            self.now_us += u64::from(self.flow.srtt_us) / u64::from(acks);
            self.ack(segments.min(window - ack * segments));
        }
    }

    fn lose(&mut self) {
        self.flow.prior_cwnd = self.flow.cwnd;
        self.step(EventKind::Loss, 0);
        self.flow.cwnd = self.flow.ssthresh;
    }
}

#[test]
fn reno_doubles_then_adds_one_and_halves() {
    let mut path = IdealPath::new("reno", 100_000, 10, 40);
    path.round(2);
    assert_eq!(path.flow.cwnd, 20);
    path.round(2);
    assert_eq!(path.flow.cwnd, 40);
    for more in 1..=20 {
        path.round(2);
        assert_eq!(path.flow.cwnd, 40 + more);
    }
    path.lose();
    assert_eq!(path.flow.cwnd, 30);
}

#[test]
fn a_window_that_does_not_limit_the_flow_does_not_grow() {
    for name in ["reno", "cubic", "hybla", "westwood", "dctcp", "vegas"] {
        let mut path = IdealPath::new(name, 25_000, 10, INFINITE);
        let event = Event { now_us: 2_000_000, kind: EventKind::Ack, acked: 10, ..Event::default() };
        path.state.step(&mut path.flow, None, &event);
        assert_eq!(path.flow.cwnd, 10, "{name}");
    }
}

/// RFC 9438, figure 1, after a loss at `w_max`.
fn cubic(seconds: f64, w_max: f64) -> f64 {
    let k = (w_max * 0.3 / 0.4).cbrt();
    0.4 * (seconds - k).powi(3) + w_max
}

#[test]
fn cubic_follows_its_curve() {
    for (rtt_us, w_max) in [(100_000, 1000), (800_000, 500), (20_000, 3000)] {
        let mut path = IdealPath::new("cubic", rtt_us, w_max, w_max);
        path.lose();
        assert_eq!(path.flow.cwnd, w_max * 7 / 10);
        let begun = path.now_us;
        let k = (f64::from(w_max) * 0.3 / 0.4).cbrt();
        while ((path.now_us - begun) as f64) < k * 1.5e6 {
            path.round(2);
            let seconds = (path.now_us - begun) as f64 / 1e6;
            // The window reaches W(t + RTT) one round trip later; the first part of the curve is
            // skipped.
            let (expected, found) = (cubic(seconds, f64::from(w_max)), f64::from(path.flow.cwnd));
            if seconds > 0.2 * k {
                assert!((found / expected - 1.0).abs() < 0.02, "RTT {rtt_us}, {seconds} s: {found} instead of {expected}");
            }
        }
    }
}

#[test]
fn cubic_is_no_slower_than_reno_on_short_paths() {
    // 10 ms: the curve would take seconds; the Reno-friendly W_est rises by 0.53 per round trip.
    // RFC 9438 §4.3
    let mut path = IdealPath::new("cubic", 10_000, 40, 40);
    path.lose();
    (0..20).for_each(|_| path.round(1));
    assert!((28 + 9..=28 + 12).contains(&path.flow.cwnd), "{}", path.flow.cwnd);
}

#[test]
fn cubic_gives_way_to_new_flows() {
    let mut path = IdealPath::new("cubic", 100_000, 1000, 1000);
    path.lose();
    path.lose();
    // W_max is 700 (1 + 0.7) / 2: the plateau of the curve is at 595.
    (0..120).for_each(|_| path.round(2));
    let late = path.flow.cwnd;
    assert!(late > 595, "{late}");
    let mut other = IdealPath::new("cubic", 100_000, 1000, 1000);
    other.lose();
    other.flow.cwnd = 490;
    (0..60).for_each(|_| other.round(2));
    assert!(other.flow.cwnd > 595, "{}", other.flow.cwnd);
}

#[test]
fn hybla_grows_as_if_the_round_trip_were_25_ms() {
    // Congestion avoidance: rho^2 segments per round trip.
    for (rtt_us, rho) in [(25_000, 1), (100_000, 4), (400_000, 16), (800_000, 32)] {
        let mut path = IdealPath::new("hybla", rtt_us, 10_000, 10_000);
        path.round(3);
        let grown = path.flow.cwnd - 10_000;
        assert!(grown.abs_diff(rho * rho) <= 1 + rho * rho / 20, "RTT {rtt_us}: {grown} instead of {}", rho * rho);
        // Independent of the number of ACKs.
        let mut stretched = IdealPath::new("hybla", rtt_us, 10_000, 10_000);
        stretched.round(64);
        assert!((stretched.flow.cwnd - 10_000).abs_diff(grown) <= 1 + grown / 20);
    }
}

#[test]
fn hybla_does_not_overflow_at_long_round_trips() {
    for rtt_us in [625_000, 800_000, 3_000_000, 60_000_000] {
        let mut path = IdealPath::new("hybla", rtt_us, 10, INFINITE);
        let mut before = path.flow.cwnd;
        assert!(before >= 10);
        for _ in 0..8 {
            path.ack(path.flow.cwnd.min(100_000));
            assert!(path.flow.cwnd >= before, "RTT {rtt_us}: {} after {before}", path.flow.cwnd);
            before = path.flow.cwnd;
        }
        assert!(before > 100_000, "RTT {rtt_us}: {before}");
        path.flow.ssthresh = 5000;
        path.flow.cwnd = 4990;
        path.ack(1000);
        assert_eq!(path.flow.cwnd, 5000, "slow start ends at ssthresh");
    }
}

#[test]
fn hybla_of_2006_overflows_from_625_ms_on() {
    // The first ACK of a new connection, for ten segments: 2^rho - 1 = 15 per ACK at 100 ms.
    let first_ack = |rtt_us: u32| {
        let mut path = IdealPath::tuned("hybla", &[("per_ack", 1), ("shift32", 1)], rtt_us, 10, INFINITE);
        let before = path.flow.cwnd;
        path.ack(10);
        (before, path.flow.cwnd)
    };
    assert_eq!(first_ack(100_000), (10, 25));
    assert_eq!(first_ack(600_000), (24, 65_535), "2^24 - 1 segments, clamped");
    assert_eq!(first_ack(625_000), (25, 65_535), "2^25 * 128 is 0 in 32 bits, and 0 - 128 huge");
    // 2^32 is 2^0 on x86: at 800 ms nothing is added, at 805 ms 11/128 of a segment.
    assert_eq!(first_ack(800_000), (32, 32));
    let grown = |rtt_us: u32| {
        let mut path = IdealPath::tuned("hybla", &[("per_ack", 1), ("shift32", 1)], rtt_us, 10, INFINITE);
        (0..128).for_each(|_| path.ack(2));
        path.flow.cwnd - 32
    };
    assert_eq!((grown(800_000), grown(805_000)), (0, 11));
}

#[test]
fn hybla_grows_per_ack_as_in_linux_if_it_is_told_to() {
    // rho^2 / cwnd per ACK: with an ACK for every other segment half of rho^2 per round trip.
    let mut path = IdealPath::tuned("hybla", &[("per_ack", 1)], 400_000, 10_000, 10_000);
    path.round(2);
    assert!((path.flow.cwnd - 10_000).abs_diff(128) <= 3, "{}", path.flow.cwnd);
}

/// The growth of a window of 1000 segments in one round trip at a load, as a factor.
fn mpcp_growth(tunables: &[(&str, u32)], rtt_us: u32, load_milli: u32) -> f64 {
    let mut flow = FlowState { mss: MSS, cwnd: 1000, srtt_us: rtt_us, in_flight: 1000, ..FlowState::default() };
    // No interval ends within the round trip, so the load stays.
    let mut link = LinkRecord { capacity: 1_250_000, ..LinkRecord::default() };
    link.mpcp.load_milli = load_milli;
    let mut state = Controller::named("mpcp").unwrap().tuned(tunables).unwrap().begin(&mut flow, Some(&mut link), 1000);
    let ack = Event { now_us: 1000, kind: EventKind::Ack, acked: 1, flags: CWND_LIMITED, ..Event::default() };
    for _ in 0..1000 {
        state.step(&mut flow, Some(&mut link), &ack);
        link.mpcp.load_milli = load_milli;
    }
    // The pacing rate has the window's fraction: 125 % of a window per round trip.
    flow.pacing_rate as f64 * f64::from(rtt_us) / 1e6 / 1.25 / f64::from(MSS) / 1000.0
}

/// The growth that the law has in a round trip of 1000 segments, as a factor: `mi` for each
/// acknowledged segment, and `ai` segments for each window acknowledged. The window grows with every
/// ACK, so that AI alone gives √(1 + 2 ai/1000), which is 1 + ai/1000 only to first order.
fn mpcp_law(mi: f64, ai: f64) -> f64 {
    (0..1000).fold(1000.0, |window, _| window + mi + ai / window) / 1000.0
}

/// Asserts that a growth is that of the law. `mi_error` is the rounding of `mi` in integers; AI is
/// counted in 1/256 bytes before and after its factor, and the window is read in bytes and bytes/s.
#[track_caller]
fn assert_mpcp_law(grown: f64, mi: f64, mi_error: f64, ai: f64) {
    let (expected, error) = (mpcp_law(mi, ai), mi_error + (ai + 1.0) / (256.0 * f64::from(MSS)) + 2e-6);
    assert!((grown - expected).abs() < error, "{grown}, expected {expected} ± {error}");
}

#[test]
fn mpcp_increases_grow_with_the_round_trip_if_it_is_told_to() {
    const SCALED: (&str, u32) = ("rtt_scaling", 1);
    let xi = 0.35 * 0.35 / 0.65;
    for rtt_us in [100_000, 200_000, 400_000, 800_000] {
        let r = f64::from(rtt_us) / 200_000.0;
        // xi is rounded to 2^-16, and the power to 2^-15.
        let compound = |xi: f64, r: f64| ((1.0 + xi).powf(r) - 1.0, r * (1.0 + xi).powf(r - 1.0) / 65536.0 + 1.0 / 32768.0);
        // Unscaled, the round trip does not matter. xi is in thousandths.
        assert_mpcp_law(mpcp_growth(&[], rtt_us, 650), xi, 1e-3, 0.0);
        assert_mpcp_law(mpcp_growth(&[], rtt_us, 900), 0.0, 0.0, 1.0);
        let (mi, error) = compound(xi, r);
        assert_mpcp_law(mpcp_growth(&[SCALED], rtt_us, 650), mi.min(1.0), error, 0.0);
        let (mi, error) = compound(0.0625, r.min(2.5));
        assert_mpcp_law(mpcp_growth(&[SCALED, ("law", 1)], rtt_us, 650), mi, error, 0.0);
        let (mi, error) = compound(0.027, r.min(2.5));
        assert_mpcp_law(mpcp_growth(&[SCALED, ("law", 2)], rtt_us, 900), mi, error, mpcp_alpha(rtt_us));
        assert_mpcp_law(mpcp_growth(&[SCALED], rtt_us, 900), 0.0, 0.0, mpcp_alpha(rtt_us));
        assert_mpcp_law(mpcp_growth(&[SCALED, ("alpha_milli", 2500)], rtt_us, 900), 0.0, 0.0, 2.5 * mpcp_alpha(rtt_us));
    }
    assert_mpcp_law(mpcp_growth(&[("alpha_milli", 40_000)], 800_000, 900), 0.0, 0.0, 40.0);
    assert_eq!(mpcp_alpha(800_000), 40.0);
}

/// VCP's alpha (Xia et al. 2005 section 4.3), as the simulator has it end to end.
fn mpcp_alpha(rtt_us: u32) -> f64 {
    let ratio = f64::from(rtt_us) / 1e5;
    ratio * ratio.clamp(0.2, 5.0)
}

#[test]
fn vegas_keeps_between_two_and_four_segments_in_the_queue() {
    let mut path = IdealPath::new("vegas", 100_000, 20, 20);
    // A link of 1000 segments/s: all beyond 100 segments in flight is queued.
    for _ in 0..200 {
        path.flow.srtt_us = 100_000.max(path.flow.cwnd * 1000);
        path.round(1);
    }
    assert!((102..=105).contains(&path.flow.cwnd), "{}", path.flow.cwnd);
}

#[test]
fn westwood_reduces_the_window_to_the_bdp() {
    let mut path = IdealPath::new("westwood", 100_000, 50, 50);
    (0..100).for_each(|_| {
        path.flow.cwnd = 50;
        path.round(1);
    });
    path.flow.cwnd = 80;
    path.lose();
    assert!((49..=51).contains(&path.flow.ssthresh), "{}", path.flow.ssthresh);
}

#[test]
fn dctcp_reduces_by_half_of_the_marked_fraction() {
    let mut path = IdealPath::new("dctcp", 1_000, 100, 100);
    // A tenth is marked until alpha has converged to 0.1.
    for _ in 0..400 {
        path.flow.cwnd = 100;
        path.flow.una = path.flow.una.wrapping_add(100 * MSS);
        path.flow.nxt = path.flow.una.wrapping_add(100 * MSS);
        let event = Event { now_us: path.now_us, kind: EventKind::Sample, acked: 100, marked: 10, ..Event::default() };
        path.state.step(&mut path.flow, None, &event);
    }
    path.flow.cwnd = 1000;
    let echo = Event { now_us: path.now_us, kind: EventKind::Loss, flags: control::ECN_ECHO, ..Event::default() };
    path.state.step(&mut path.flow, None, &echo);
    assert!((949..=951).contains(&path.flow.ssthresh), "{}", path.flow.ssthresh);
    path.lose();
    assert_eq!(path.flow.ssthresh, 500);
}

proptest! {
    /// Whatever the events, a controller leaves a usable window.
    #[test]
    fn no_controller_ends_with_a_zero_window(
        at in 0..Controller::all().count(),
        events in prop::collection::vec((0..9u32, 0..100u32, 0..3_000_000u32, 0..16u32, 1..500_000u64), 1..200),
        mss in 1..65_000u32,
        srtt in 0..70_000_000u32,
    ) {
        let controller = Controller::all().nth(at).unwrap();
        let mut flow = FlowState { mss, cwnd: 10, ssthresh: INFINITE, srtt_us: srtt, snd_wnd: 65_535, ..FlowState::default() };
        let mut link = control::LinkRecord { capacity: 1_000_000, overhead: 14, ..Default::default() };
        let mut state = controller.begin(&mut flow, Some(&mut link), 1);
        let mut now_us = 1;
        const KINDS: [EventKind; 9] = [
            EventKind::Init, EventKind::Sample, EventKind::Ack, EventKind::Loss, EventKind::Timeout, EventKind::Recovered, EventKind::Undo, EventKind::Restart, EventKind::Close,
        ];
        for (kind, acked, rtt_us, flags, later) in events {
            now_us += later;
            flow.una = flow.una.wrapping_add(acked.wrapping_mul(mss));
            flow.nxt = flow.una.wrapping_add(flow.cwnd.min(1000).wrapping_mul(mss));
            flow.unsent = rtt_us;
            link.egress += u64::from(acked) * u64::from(mss);
            let event = Event { now_us, kind: KINDS[kind as usize], acked, rtt_us, flags, marked: acked / 2, lost: acked / 3, ..Event::default() };
            state.step(&mut flow, Some(&mut link), &event);
            prop_assert!(flow.cwnd >= 1, "{controller:?} after {event:?}");
            prop_assert!(flow.ssthresh >= 1, "{controller:?} after {event:?}");
        }
    }
}
