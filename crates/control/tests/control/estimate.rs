//! The estimate of a capacity that `share` is not told (`c/estimate.h`): how close it comes on
//! constant links, how it follows a varying one, and senders that share a link.

use crate::bottleneck::{self, BottleneckPath, FlowData, RunResult, greedy, satellite};
use control::{Controller, ControllerState, Event, EventKind, FlowState, INFINITE, LinkRecord};

const RATE: u64 = 1_250_000;

/// 10 Mbit/s with an estimated capacity, and a queue of one second.
fn unknown(rtt_ms: u64) -> BottleneckPath {
    BottleneckPath { capacity: 0, estimated: true, rtt_us: rtt_ms * 1000, buffer: RATE, ..satellite() }
}

fn run(path: &BottleneckPath, jobs: &[FlowData], seconds: f64) -> RunResult {
    bottleneck::run(Controller::named("share").unwrap(), path, jobs, seconds)
}

/// Endless flows that start one after the other.
fn flows(count: u64) -> Vec<FlowData> {
    (0..count).map(|i| greedy(i * 700_000)).collect()
}

/// A flow of packets of 1500 bytes. The test determines its RTTs and ACKs. It always has unsent
/// data.
struct OneFlow {
    flow: FlowState,
    state: ControllerState,
    link: LinkRecord,
    now_us: u64,
}

impl OneFlow {
    /// After a handshake of 100 ms.
    fn begin() -> Self {
        let mut flow =
            FlowState { mss: 1448, header: 52, cwnd: 10, ssthresh: INFINITE, snd_wnd: 1 << 30, unsent: 1 << 20, ..FlowState::default() };
        flow.srtt_us = 100_000;
        let mut link = LinkRecord::default();
        link.estimate.enabled = 1;
        let state = Controller::named("share").unwrap().begin(&mut flow, Some(&mut link), 1_000_000);
        OneFlow { flow, state, link, now_us: 1_000_000 }
    }

    /// An ACK of a packet each millisecond, with these RTTs in turn.
    fn acks(&mut self, milliseconds: usize, rtts_us: &[u32]) {
        for at in 0..milliseconds {
            self.now_us += 1000;
            // Intervals are 25 ms long; each has one of the RTTs.
            let rtt_us = rtts_us[at / 25 % rtts_us.len()];
            let event = Event { now_us: self.now_us, kind: EventKind::Ack, acked: 1, rtt_us, ..Event::default() };
            self.state.step(&mut self.flow, Some(&mut self.link), &event);
        }
    }
}

#[test]
fn it_begins_with_an_initial_window_per_round_trip() {
    let one = OneFlow::begin();
    assert_eq!(one.link.capacity, 150_000);
}

#[test]
fn without_a_queue_it_grows_to_twice_what_is_in_flight() {
    let mut one = OneFlow::begin();
    // 1.5 MB/s are delivered.
    one.flow.in_flight = 100;
    one.acks(100, &[100_000]);
    let early = one.link.capacity;
    assert!(early > 150_000, "{early}");
    one.acks(3000, &[100_000]);
    assert!(one.flow.cwnd.abs_diff(200) < 10, "{}", one.flow.cwnd);
}

#[test]
fn with_a_queue_it_is_the_delivery_rate() {
    for queue_us in [60_000, 150_000] {
        let mut one = OneFlow::begin();
        one.acks(25, &[100_000]);
        one.acks(8000, &[100_000 + queue_us]);
        let (rate, target) = (one.link.estimate.rate as f64, f64::from(one.link.estimate.target_us));
        assert!((rate / 1.5e6 - 1.0).abs() < 0.01, "{rate}");
        let (queue, base) = (f64::from(queue_us), 100_000.0);
        // And a quarter of a packet of the flow in a round trip.
        let law = rate + 1500.0 / 4.0 / ((base + queue) / 1e6);
        let found = one.link.capacity as f64;
        assert!((found / law - 1.0).abs() < 0.01, "{queue_us}: {found}, by the law {law}");
        // The window is the estimate times the base RTT and the target.
        let window = found * (base + target) / 1e6 / 1500.0;
        assert!((f64::from(one.flow.cwnd) - window).abs() < 4.0, "{queue_us}: {} of {window}", one.flow.cwnd);
    }
}

#[test]
fn the_target_follows_the_time_without_a_queue() {
    let mut one = OneFlow::begin();
    one.acks(50, &[100_000, 150_000]);
    // An empty queue in a twentieth of the time: 4 s of the 3 % beyond 2 %.
    let mut some = [200_000; 20];
    some[0] = 100_000;
    one.acks(60_000, &some);
    let target = one.link.estimate.target_us;
    assert!((110_000..130_000).contains(&target), "{target}");
    // In a hundredth: down to 5 ms.
    let mut rare = [200_000; 100];
    rare[0] = 100_000;
    one.acks(60_000, &rare);
    let target = one.link.estimate.target_us;
    assert!((5_000..12_000).contains(&target), "{target}");
}

#[test]
fn a_drain_without_a_measured_rtt_ends() {
    let mut one = OneFlow::begin();
    one.acks(50, &[100_000]);
    // The queue is never empty for ten seconds.
    while one.link.estimate.base_period.is_multiple_of(2) {
        one.acks(25, &[300_000]);
    }
    let (period, window) = (one.link.estimate.base_period, one.flow.cwnd);
    // Nothing but retransmissions are acknowledged, for longer than two round trips.
    one.acks(1_000, &[0]);
    assert_eq!(one.link.estimate.base_period, period - 1);
    assert!(one.flow.cwnd > 2 * window, "{} after {window}", one.flow.cwnd);
}

/// Bytes of a queue of this length at the link's rate.
fn queue_of(ms: u64) -> u64 {
    RATE * ms / 1000
}

#[test]
fn on_a_constant_link_it_is_as_good_as_a_configured_capacity() {
    for rtt_ms in [40, 100, 600] {
        for count in [1, 5] {
            let told = BottleneckPath { capacity: RATE, estimated: false, ..unknown(rtt_ms) };
            let (told, found) = (run(&told, &flows(count), 60.0), run(&unknown(rtt_ms), &flows(count), 60.0));
            let [told, used] =
                [told, found].map(|seen| (seen.utilization(20.0, 59.0, RATE), seen.queue(30.0, 59.0), seen.jain(20.0, 59.0)));
            assert!(used.0 > told.0 * 0.95, "{rtt_ms} ms, {count}: used {} of {}", used.0, told.0);
            assert!(used.1 < queue_of(70 + rtt_ms / 16), "{rtt_ms} ms, {count}: queue {}", used.1);
            assert!(used.2 > 0.98, "{rtt_ms} ms, {count}: Jain {}", used.2);
        }
    }
}

#[test]
fn the_estimate_is_the_rate_of_the_link() {
    for rtt_ms in [40, 100, 600] {
        let estimate = run(&unknown(rtt_ms), &flows(2), 40.0).link.capacity;
        assert!(estimate.abs_diff(RATE) < RATE / 20, "{rtt_ms} ms: {estimate} of {RATE}");
    }
}

#[test]
fn random_losses_do_not_lower_it() {
    for loss in [0.01, 0.02] {
        let seen = run(&BottleneckPath { loss, ..unknown(100) }, &flows(5), 60.0);
        assert!(seen.utilization(20.0, 59.0, RATE) > (1.0 - loss) * 0.95, "{loss}: {}", seen.utilization(20.0, 59.0, RATE));
    }
}

#[test]
fn it_follows_a_rate_that_falls_and_rises() {
    let rate = vec![(0, RATE), (20_000_000, RATE / 4), (40_000_000, RATE)];
    let seen = run(&BottleneckPath { rate, ..unknown(40) }, &flows(5), 61.0);
    assert!(seen.utilization(22.0, 40.0, RATE / 4) > 0.95, "{}", seen.utilization(22.0, 40.0, RATE / 4));
    assert!(seen.queue(24.0, 40.0) < queue_of(40), "{}", seen.queue(24.0, 40.0));
    assert!(seen.utilization(43.0, 60.0, RATE) > 0.93, "{}", seen.utilization(43.0, 60.0, RATE));
    assert_eq!(seen.drops, 0);
}

#[test]
fn a_rate_that_changes_each_second_is_used() {
    // Between 1 and 10 Mbit/s, in an order without a pattern.
    let rate: Vec<(u64, u64)> = (0..60).map(|second| (second * 1_000_000, RATE / 10 * (1 + second * 7 % 10))).collect();
    let mean = rate[20..59].iter().map(|(_, rate)| rate).sum::<u64>() / 39;
    let seen = run(&BottleneckPath { rate, ..unknown(40) }, &flows(5), 60.0);
    assert!(seen.utilization(20.0, 59.0, mean) > 0.84, "{}", seen.utilization(20.0, 59.0, mean));
    assert!(seen.jain(20.0, 59.0) > 0.98, "{}", seen.jain(20.0, 59.0));
}

#[test]
fn a_new_flow_has_its_share_within_a_second() {
    let jobs: Vec<_> = (0..4).map(|i| greedy(i * 10_000_000)).collect();
    let seen = run(&unknown(40), &jobs, 40.0);
    for new_flow in 1..4 {
        let at = f64::from(new_flow) * 10.0 + 1.0;
        let rates = &seen.rates(at, at + 4.0)[..=new_flow as usize];
        let jain = rates.iter().sum::<f64>().powi(2) / (rates.len() as f64 * rates.iter().map(|r| r * r).sum::<f64>());
        assert!(jain > 0.98, "{jain} for {new_flow}: {rates:?}");
    }
}

#[test]
fn another_path_is_learnt() {
    for (first_ms, then_ms) in [(40, 100), (100, 40), (40, 45)] {
        let path = BottleneckPath { later_rtt_us: Some((20_000_000, then_ms * 1000)), ..unknown(first_ms) };
        let seen = run(&path, &flows(2), 60.0);
        let used = seen.utilization(35.0, 59.0, RATE);
        assert!(used > 0.95, "{first_ms}, then {then_ms} ms: {used}");
        assert!(seen.queue(35.0, 59.0) < queue_of(60), "{first_ms}, then {then_ms} ms: {}", seen.queue(35.0, 59.0));
    }
}

#[test]
fn a_flow_without_data_does_not_inflate_it() {
    // 1 Mbit/s of data on a link of 10 Mbit/s.
    let seen = run(&unknown(40), &[FlowData { chunks: Some((4, 46_336)), ..greedy(0) }], 60.0);
    assert!(seen.link.capacity < 2 * RATE, "{}", seen.link.capacity);
    assert_eq!(seen.drops, 0);
}

#[test]
fn two_hosts_that_estimate_one_link_share_it() {
    // The second begins after ten seconds.
    let jobs: Vec<_> = (0..4).map(|i| greedy(i % 2 * 10_000_000)).collect();
    for rtt_ms in [40, 100] {
        let seen = run(&BottleneckPath { hosts: 2, ..unknown(rtt_ms) }, &jobs, 121.0);
        let rates = seen.rates(60.0, 120.0);
        assert!(seen.utilization(60.0, 120.0, RATE) > 0.95, "{rates:?}");
        assert!(seen.jain(60.0, 120.0) > 0.9, "{rtt_ms} ms: {} {rates:?}", seen.jain(60.0, 120.0));
    }
}

#[test]
fn after_a_silence_a_link_has_half_of_its_capacity() {
    // Two bursts over 600 ms, a minute apart: the second does not begin with an initial window.
    let jobs = [FlowData { chunks: Some((4000, 60_000_000)), ..greedy(0) }];
    let seen = run(&unknown(600), &jobs, 120.0);
    let [first, second] = [0.0, 60.0].map(|from| seen.rates(from, from + 4.0)[0]);
    assert!(second > 2.0 * first, "{first} {second}");
    assert_eq!(seen.drops, 0);
}

#[test]
fn a_long_silence_begins_anew() {
    // Two bursts, a minute apart; meanwhile the link has become slower.
    let rate = vec![(0, RATE), (20_000_000, RATE / 10)];
    let jobs = [FlowData { chunks: Some((2000, 60_000_000)), ..greedy(0) }];
    let seen = run(&BottleneckPath { rate, buffer: RATE / 10, ..unknown(40) }, &jobs, 80.0);
    assert!(seen.drops < 100, "{}", seen.drops);
}

#[test]
fn the_start_doubles_each_round_trip() {
    // 50 Mbit/s over 600 ms: after a handshake, 100 kB are three windows from ten packets on, and
    // 1 MB six.
    let path = BottleneckPath { rate: vec![(0, 5 * RATE)], buffer: 4_000_000, ..unknown(600) };
    let end_of = |bytes| run(&path, &[bottleneck::file(0, bytes)], 60.0).ends[0].unwrap();
    assert!(end_of(100_000) < 2.2, "{}", end_of(100_000));
    assert!(end_of(1_000_000) < 4.4, "{}", end_of(1_000_000));
    assert!(end_of(20_000_000) < 8.5, "{}", end_of(20_000_000));
}
