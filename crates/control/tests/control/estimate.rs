//! The estimate of a capacity that `share` is not told (`c/estimate.h`): how close it comes on
//! constant links, how it follows a varying one, and senders that share a link.

use crate::bottleneck::{self, BottleneckPath, FlowData, RunResult, greedy, satellite};
use control::Controller;

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

/// Bytes of a queue of this length at the link's rate.
fn queue_of(ms: u64) -> u64 {
    RATE * ms / 1000
}

#[test]
fn on_a_constant_link_it_is_as_good_as_a_configured_capacity() {
    for rtt_ms in [20, 40, 600] {
        for count in [1, 5] {
            let told = BottleneckPath { capacity: RATE, estimated: false, ..unknown(rtt_ms) };
            let (told, found) = (run(&told, &flows(count), 60.0), run(&unknown(rtt_ms), &flows(count), 60.0));
            let [told, used] = [told, found].map(|seen| (seen.utilization(20.0, 59.0, RATE), seen.queue(30.0, 59.0), seen.jain(20.0, 59.0)));
            assert!(used.0 > told.0 * 0.95, "{rtt_ms} ms, {count}: used {} of {}", used.0, told.0);
            assert!(used.1 < queue_of(40 + rtt_ms / 16), "{rtt_ms} ms, {count}: queue {}", used.1);
            assert!(used.2 > 0.98, "{rtt_ms} ms, {count}: Jain {}", used.2);
        }
    }
}

#[test]
fn the_estimate_is_the_rate_of_the_link() {
    for rtt_ms in [20, 40, 600] {
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
    assert!(seen.utilization(20.0, 59.0, mean) > 0.9, "{}", seen.utilization(20.0, 59.0, mean));
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
fn a_longer_path_is_learnt_after_a_drain() {
    // The base RTT cannot change in this model, but a queue of cross traffic looks the same at first.
    let cross = Some((5_000_000, 25_000_000, RATE * 9 / 10));
    let seen = run(&BottleneckPath { cross, ..unknown(40) }, &flows(2), 60.0);
    assert!(seen.utilization(30.0, 59.0, RATE) > 0.95, "{}", seen.utilization(30.0, 59.0, RATE));
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
fn a_long_silence_begins_anew() {
    // Two bursts, a minute apart; meanwhile the link has become slower.
    let rate = vec![(0, RATE), (20_000_000, RATE / 10)];
    let jobs = [FlowData { chunks: Some((2000, 60_000_000)), ..greedy(0) }];
    let seen = run(&BottleneckPath { rate, buffer: RATE / 10, ..unknown(40) }, &jobs, 80.0);
    assert!(seen.drops < 100, "{}", seen.drops);
}
