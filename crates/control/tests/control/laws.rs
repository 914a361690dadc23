//! The laws by their numbers: what a controller does on a path without loss or queue, against the formula it comes from.

use control::{Controller, Event, Flow, INFINITE, Kind, LIMITED, State};
use proptest::prelude::*;

const MSS: u32 = 1448;

/// A flow whose every round trip delivers its window, without a queue.
struct Clean {
    flow: Flow,
    state: State,
    now_us: u64,
}

impl Clean {
    fn new(name: &str, rtt_us: u32, cwnd: u32, ssthresh: u32) -> Self {
        let mut flow = Flow { mss: MSS, cwnd, ssthresh, srtt_us: rtt_us, min_rtt_us: rtt_us, snd_wnd: 1 << 30, ..Flow::default() };
        let state = Controller::named(name).unwrap().begin(&mut flow, None, 1_000_000);
        Clean { flow, state, now_us: 1_000_000 }
    }

    fn tell(&mut self, kind: Kind, acked: u32) {
        let event = Event { now_us: self.now_us, kind, acked, rtt_us: self.flow.srtt_us, flags: LIMITED, ..Event::default() };
        self.state.step(&mut self.flow, None, &event);
    }

    fn ack(&mut self, segments: u32) {
        self.flow.una = self.flow.una.wrapping_add(segments * MSS);
        self.flow.nxt = self.flow.una.wrapping_add(self.flow.cwnd.saturating_mul(MSS));
        self.tell(Kind::Sample, segments);
        self.tell(Kind::Ack, segments);
    }

    /// A round trip, acknowledged in pieces of so many segments.
    fn round(&mut self, piece: u32) {
        let window = self.flow.cwnd;
        let pieces = window.div_ceil(piece);
        for at in 0..pieces {
            self.now_us += u64::from(self.flow.srtt_us) / u64::from(pieces);
            self.ack(piece.min(window - at * piece));
        }
    }

    fn lose(&mut self) {
        self.flow.prior_cwnd = self.flow.cwnd;
        self.tell(Kind::Loss, 0);
        self.flow.cwnd = self.flow.ssthresh;
    }
}

#[test]
fn reno_doubles_then_adds_one_and_halves() {
    let mut it = Clean::new("reno", 100_000, 10, 40);
    it.round(2);
    assert_eq!(it.flow.cwnd, 20);
    it.round(2);
    assert_eq!(it.flow.cwnd, 40);
    for more in 1..=20 {
        it.round(2);
        assert_eq!(it.flow.cwnd, 40 + more);
    }
    it.lose();
    assert_eq!(it.flow.cwnd, 30);
}

#[test]
fn a_window_that_is_not_used_does_not_grow() {
    for name in ["reno", "cubic", "hybla", "westwood", "dctcp", "vegas"] {
        let mut it = Clean::new(name, 25_000, 10, INFINITE);
        let event = Event { now_us: 2_000_000, kind: Kind::Ack, acked: 10, ..Event::default() };
        it.state.step(&mut it.flow, None, &event);
        assert_eq!(it.flow.cwnd, 10, "{name}");
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
        let mut it = Clean::new("cubic", rtt_us, w_max, w_max);
        it.lose();
        assert_eq!(it.flow.cwnd, w_max * 7 / 10);
        let begun = it.now_us;
        let k = (f64::from(w_max) * 0.3 / 0.4).cbrt();
        while ((it.now_us - begun) as f64) < k * 1.5e6 {
            it.round(2);
            let seconds = (it.now_us - begun) as f64 / 1e6;
            // The window reaches W(t + RTT) a round trip later; in the first it still gets there.
            let (asked, got) = (cubic(seconds, f64::from(w_max)), f64::from(it.flow.cwnd));
            if seconds > 0.2 * k {
                assert!((got / asked - 1.0).abs() < 0.02, "RTT {rtt_us}, {seconds} s: {got} instead of {asked}");
            }
        }
    }
}

#[test]
fn cubic_is_no_slower_than_reno_on_short_paths() {
    // 10 ms: the curve would take seconds, Reno's friend W_est rises by 0.53 a round trip. RFC 9438 §4.3
    let mut it = Clean::new("cubic", 10_000, 40, 40);
    it.lose();
    (0..20).for_each(|_| it.round(1));
    assert!((28 + 9..=28 + 12).contains(&it.flow.cwnd), "{}", it.flow.cwnd);
}

#[test]
fn cubic_gives_way_to_newcomers() {
    let mut it = Clean::new("cubic", 100_000, 1000, 1000);
    it.lose();
    it.lose();
    // W_max is 700 (1 + 0.7) / 2: the curve is flat at 595.
    (0..120).for_each(|_| it.round(2));
    let late = it.flow.cwnd;
    assert!(late > 595, "{late}");
    let mut other = Clean::new("cubic", 100_000, 1000, 1000);
    other.lose();
    other.flow.cwnd = 490;
    (0..60).for_each(|_| other.round(2));
    assert!(other.flow.cwnd > 595, "{}", other.flow.cwnd);
}

#[test]
fn hybla_grows_as_if_the_round_trip_were_25_ms() {
    // Congestion avoidance: rho^2 segments a round trip, 1 every 25 ms at 25 ms.
    for (rtt_us, rho) in [(25_000, 1), (100_000, 4), (400_000, 16), (800_000, 32)] {
        let mut it = Clean::new("hybla", rtt_us, 10_000, 10_000);
        it.round(3);
        let grown = it.flow.cwnd - 10_000;
        assert!(grown.abs_diff(rho * rho) <= 1 + rho * rho / 20, "RTT {rtt_us}: {grown} instead of {}", rho * rho);
        // However few ACKs tell of it.
        let mut stretched = Clean::new("hybla", rtt_us, 10_000, 10_000);
        stretched.round(64);
        assert!((stretched.flow.cwnd - 10_000).abs_diff(grown) <= 1 + grown / 20);
    }
}

#[test]
fn hybla_does_not_overflow_at_long_round_trips() {
    for rtt_us in [625_000, 800_000, 3_000_000, 60_000_000] {
        let mut it = Clean::new("hybla", rtt_us, 10, INFINITE);
        let mut before = it.flow.cwnd;
        assert!(before >= 10);
        for _ in 0..8 {
            it.ack(it.flow.cwnd.min(100_000));
            assert!(it.flow.cwnd >= before, "RTT {rtt_us}: {} after {before}", it.flow.cwnd);
            before = it.flow.cwnd;
        }
        assert!(before > 100_000, "RTT {rtt_us}: {before}");
        it.flow.ssthresh = 5000;
        it.flow.cwnd = 4990;
        it.ack(1000);
        assert_eq!(it.flow.cwnd, 5000, "slow start ends at ssthresh");
    }
}

#[test]
fn vegas_keeps_between_two_and_four_segments_in_the_queue() {
    let mut it = Clean::new("vegas", 100_000, 20, 20);
    // A link of 1000 segments/s: what is beyond 100 in flight is queue.
    for _ in 0..200 {
        it.flow.srtt_us = 100_000.max(it.flow.cwnd * 1000);
        it.round(1);
    }
    assert!((102..=105).contains(&it.flow.cwnd), "{}", it.flow.cwnd);
}

#[test]
fn westwood_takes_a_loss_back_to_what_the_path_carried() {
    let mut it = Clean::new("westwood", 100_000, 50, 50);
    (0..100).for_each(|_| {
        it.flow.cwnd = 50;
        it.round(1);
    });
    it.flow.cwnd = 80;
    it.lose();
    assert!((49..=51).contains(&it.flow.ssthresh), "{}", it.flow.ssthresh);
}

#[test]
fn dctcp_cuts_by_half_of_the_marked_share() {
    let mut it = Clean::new("dctcp", 1_000, 100, 100);
    // A tenth is marked, for long enough to be known: alpha is 0.1.
    for _ in 0..400 {
        it.flow.cwnd = 100;
        it.flow.una = it.flow.una.wrapping_add(100 * MSS);
        it.flow.nxt = it.flow.una.wrapping_add(100 * MSS);
        let event = Event { now_us: it.now_us, kind: Kind::Sample, acked: 100, marked: 10, ..Event::default() };
        it.state.step(&mut it.flow, None, &event);
    }
    it.flow.cwnd = 1000;
    let echo = Event { now_us: it.now_us, kind: Kind::Loss, flags: control::ECHO, ..Event::default() };
    it.state.step(&mut it.flow, None, &echo);
    assert!((949..=951).contains(&it.flow.ssthresh), "{}", it.flow.ssthresh);
    it.lose();
    assert_eq!(it.flow.ssthresh, 500);
}

proptest! {
    /// Whatever it is told, a controller leaves a window that can be used.
    #[test]
    fn no_controller_ends_without_a_window(
        at in 0..9usize,
        events in prop::collection::vec((0..9u32, 0..100u32, 0..3_000_000u32, 0..8u32, 1..500_000u64), 1..200),
        mss in 1..65_000u32,
        srtt in 0..70_000_000u32,
    ) {
        let controller = Controller::all().nth(at).unwrap();
        let mut flow = Flow { mss, cwnd: 10, ssthresh: INFINITE, srtt_us: srtt, snd_wnd: 65_535, ..Flow::default() };
        let mut link = control::Link { capacity: 1_000_000, overhead: 14, ..Default::default() };
        let mut state = controller.begin(&mut flow, Some(&mut link), 1);
        let mut now_us = 1;
        const KINDS: [Kind; 9] = [
            Kind::Init, Kind::Sample, Kind::Ack, Kind::Loss, Kind::Timeout, Kind::Recovered, Kind::Undo, Kind::Restart, Kind::Close,
        ];
        for (kind, acked, rtt_us, flags, later) in events {
            now_us += later;
            flow.una = flow.una.wrapping_add(acked.wrapping_mul(mss));
            flow.nxt = flow.una.wrapping_add(flow.cwnd.min(1000).wrapping_mul(mss));
            flow.unsent = rtt_us;
            link.egress += u64::from(acked) * u64::from(mss);
            let event = Event { now_us, kind: KINDS[kind as usize], acked, rtt_us, flags, marked: acked / 2, lost: acked / 3 };
            state.step(&mut flow, Some(&mut link), &event);
            prop_assert!(flow.cwnd >= 1, "{controller:?} after {event:?}");
            prop_assert!(flow.ssthresh >= 1, "{controller:?} after {event:?}");
        }
    }
}
