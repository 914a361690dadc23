//! Properties of `share` on the link of Li and Yousefi'zadeh (10 Mbit/s, 800 ms), with the
//! bottleneck queue on the sender's host, and behind it.

use crate::bottleneck::{self, BottleneckPath, FlowData, RunResult, file, greedy, satellite};
use control::{CapacityEstimate, Controller};

const RATE: u64 = 1_250_000;
/// Wire bytes.
const BDP: u64 = 1_000_000;

fn share() -> Controller {
    Controller::named("share").unwrap()
}

/// Checks with the bottleneck queue on the sender's host, and behind it.
fn both(mut check: impl FnMut(BottleneckPath)) {
    for local in [true, false] {
        check(BottleneckPath { local, ..satellite() });
    }
}

/// Five endless flows that start one after the other.
fn five() -> Vec<FlowData> {
    (0..5).map(|i| greedy(i * 700_000)).collect()
}

fn run(path: &BottleneckPath, jobs: &[FlowData], seconds: f64) -> RunResult {
    bottleneck::run(share(), path, jobs, seconds)
}

#[test]
fn five_files_are_within_three_percent_of_the_fair_bound() {
    let starts = [0, 700_000, 1_900_000, 3_100_000, 4_800_000];
    let jobs: Vec<_> = starts.iter().map(|start| file(*start, 5_000_000)).collect();
    // A handshake and half a round trip; all bytes at the link's rate; idle time in the round trip
    // in which the first receiver's window is only 64 kB; and, with loss, a round trip for the last
    // retransmissions.
    let wire = 25_000_000.0 * 1514.0 / 1448.0;
    for loss in [0.0, 0.001, 0.01] {
        both(|path| {
            let seen = run(&BottleneckPath { loss, ..path.clone() }, &jobs, 100.0);
            let end = seen.ends.iter().map(|end| end.unwrap()).fold(0.0, f64::max);
            let last_round = if loss > 0.0 { 0.8 } else { 0.0 };
            let bound = 0.8 + 0.4 + 0.75 + wire / (1.0 - loss) / RATE as f64 + last_round;
            assert!(end < bound * 1.03, "end {end} of {bound}, loss {loss}, local {}", path.local);
            assert!(seen.jain(8.0, 17.0) > 0.995, "{}", seen.jain(8.0, 17.0));
            assert_eq!(seen.drops, 0);
        });
    }
}

#[test]
fn the_link_is_full_without_a_standing_queue() {
    both(|path| {
        let seen = run(&path, &five(), 60.0);
        assert!(seen.utilization(20.0, 59.0, RATE) > 0.95);
        let mut queue = seen.queue[200..590].to_vec();
        queue.sort_unstable();
        assert!(queue[queue.len() / 2] < BDP / 30, "{}", queue[queue.len() / 2]);
        // A tenth more is tried for a round trip now and then.
        assert!(seen.queue(20.0, 59.0) < BDP / 7, "{}", seen.queue(20.0, 59.0));
        assert_eq!(seen.drops, 0);
    });
}

#[test]
fn late_timers_do_not_leave_a_shaper_idle() {
    // One packet of each of the five flows takes 6 ms.
    for late_us in [0, 5_000, 10_000] {
        let seen = run(&BottleneckPath { local: true, late_us, ..satellite() }, &five(), 60.0);
        assert!(seen.utilization(20.0, 59.0, RATE) > 0.995, "{late_us}: {}", seen.utilization(20.0, 59.0, RATE));
        assert!(seen.queue(20.0, 59.0) < BDP / 50, "{late_us}: {}", seen.queue(20.0, 59.0));
    }
}

#[test]
fn excess_that_was_never_sent_is_not_taken_back() {
    // From the first receiver's first window on, including the wait for that of the second.
    let busy = |local| run(&BottleneckPath { local, ..satellite() }, &five(), 20.0).utilization(2.6, 10.0, RATE);
    let (local, remote) = (busy(true), busy(false));
    assert!(local > remote - 0.005, "{local} with the queue on this host, {remote} behind it");
}

#[test]
fn new_flows_have_their_fair_share_within_three_round_trips() {
    both(|path| {
        let jobs: Vec<_> = (0..4).map(|i| greedy(i * 20_000_000)).collect();
        let seen = run(&path, &jobs, 85.0);
        for new_flow in 1..4 {
            // The handshake and the receiver's first 64 kB take a round trip each; the next data is
            // acknowledged one round trip later.
            let at = f64::from(new_flow) * 20.0 + 0.8 + 3.0 * 0.8;
            let rates = &seen.rates(at, at + 4.0)[..=new_flow as usize];
            let jain = rates.iter().sum::<f64>().powi(2) / (rates.len() as f64 * rates.iter().map(|r| r * r).sum::<f64>());
            assert!(jain > 0.99, "{jain} for {new_flow}: {rates:?}");
        }
    });
}

#[test]
fn weights_are_kept() {
    both(|path| {
        let jobs = [greedy(0), FlowData { weight: 3, ..greedy(0) }];
        let rates = run(&path, &jobs, 41.0).rates(10.0, 40.0);
        assert!((rates[1] / rates[0] - 3.0).abs() < 0.05, "{rates:?}");
    });
}

#[test]
fn other_flows_use_what_an_application_leaves() {
    both(|path| {
        let mut jobs: Vec<_> = (0..4).map(|i| greedy(i * 700_000)).collect();
        // 1 Mbit/s, in bursts of 50 ms.
        jobs.push(FlowData { chunks: Some((4, 46_336)), ..greedy(0) });
        let seen = run(&path, &jobs, 61.0);
        let rates = seen.rates(20.0, 60.0);
        assert!((rates[4] * 8.0 / 1e6 - 1.0).abs() < 0.02, "{rates:?}");
        // Its room to grow does not cost the others anything.
        assert!(seen.utilization(20.0, 60.0, RATE) > 0.985, "{rates:?}");
    });
}

#[test]
fn a_flow_is_not_limited_to_what_it_does_not_send_itself() {
    both(|path| {
        for percent in [30, 60, 90] {
            // Its window is the limit, below the whole link, which it has to itself.
            let window = RATE * path.rtt_us / 1_000_000 * percent / 100;
            let seen = run(&path, &[FlowData { window: window as u32, ..greedy(0) }], 21.0);
            let used = seen.utilization(5.0, 20.0, RATE) * 100.0;
            assert!(used > percent as f64 * 0.93, "{percent} %: {used}");
        }
    });
}

#[test]
fn idle_flows_cost_nothing_and_resume_at_once() {
    both(|path| {
        // The second sends 2 MB every 20 seconds.
        let jobs = [greedy(0), FlowData { chunks: Some((1400, 20_000_000)), ..greedy(0) }];
        let seen = run(&path, &jobs, 61.0);
        assert!(seen.utilization(10.0, 60.0, RATE) > 0.97, "{:?}", seen.rates(10.0, 60.0));
        // It sent three times in 60 s.
        assert!(seen.delivered[1].last() >= Some(&4190), "{:?}", seen.delivered[1].last());
        assert_eq!(seen.drops, 0);
    });
}

#[test]
fn a_burst_that_is_sent_leaves_its_share_to_the_next() {
    // Every 5 s, over a DSL line: 3 kB on each of twenty connections, and 600 kB on another.
    let rate = 2_000_000;
    let path = BottleneckPath { rate: vec![(0, rate)], capacity: rate, rtt_us: 40_000, buffer: 400_000, ..satellite() };
    let mut jobs = vec![FlowData { chunks: Some((2, 5_000_000)), ..greedy(0) }; 20];
    jobs.push(FlowData { chunks: Some((414, 5_000_000)), ..greedy(0) });
    let seen = run(&path, &jobs, 8.0);
    // Until 5.3 s. If each kept its share until its acknowledgement, it would be 142.
    let delivered = seen.delivered[20][53] - seen.delivered[20][49];
    assert!(delivered > 155, "{delivered} segments");
}

#[test]
fn a_capacity_five_percent_too_high_leaves_no_standing_queue() {
    both(|path| {
        let seen = run(&BottleneckPath { capacity: RATE * 105 / 100, ..path }, &five(), 120.0);
        assert!(seen.utilization(40.0, 119.0, RATE) > 0.97);
        assert!(seen.queue(40.0, 119.0) < BDP / 10, "{}", seen.queue(40.0, 119.0));
        assert_eq!(seen.drops, 0);
    });
}

#[test]
fn a_capacity_five_percent_too_low_costs_the_difference() {
    both(|path| {
        let seen = run(&BottleneckPath { capacity: RATE * 95 / 100, ..path }, &five(), 60.0);
        assert!(seen.utilization(20.0, 59.0, RATE) > 0.94);
        assert_eq!(seen.link.estimate.enabled, CapacityEstimate::OFF);
    });
}

/// A link of 10 Mbit/s, or one that changes each second between 1 and 10 Mbit/s in an order without
/// a pattern, behind the proxy's host.
fn links() -> [(&'static str, BottleneckPath); 4] {
    let constant = |rtt_ms: u64| BottleneckPath { rtt_us: rtt_ms * 1000, buffer: RATE, ..satellite() };
    let rate: Vec<(u64, u64)> = (0..121).map(|second| (second * 1_000_000, RATE / 10 * (1 + second * 7 % 10))).collect();
    [
        ("20 ms", constant(20)),
        ("100 ms", constant(100)),
        ("600 ms", constant(600)),
        ("varying, 40 ms", BottleneckPath { rate, ..constant(40) }),
    ]
}

#[test]
fn a_capacity_that_is_wrong_is_as_good_as_an_unknown_one() {
    for (what, path) in links() {
        let unknown = run(&BottleneckPath { capacity: 0, estimated: true, ..path.clone() }, &five(), 121.0);
        let sum = |seen: &RunResult, until| seen.rates(0.0, until).iter().sum::<f64>();
        for (told, part) in [("half", RATE / 2), ("double", RATE * 2), ("an eighth", RATE / 8), ("right", RATE)] {
            let seen = run(&BottleneckPath { capacity: part, ..path.clone() }, &five(), 121.0);
            for until in [30.0, 60.0, 120.0] {
                let ratio = sum(&seen, until) / sum(&unknown, until);
                assert!(ratio > 0.9, "{what}, told {told}, {until} s: {ratio}");
            }
        }
    }
}

#[test]
fn a_configured_capacity_is_in_use_again_once_the_link_has_it() {
    let rate = vec![(0, RATE), (20_000_000, RATE / 3), (40_000_000, RATE)];
    let seen = run(&BottleneckPath { rate: rate.clone(), buffer: RATE, ..satellite() }, &five(), 39.0);
    assert_eq!((seen.link.estimate.enabled, seen.link.estimate.told), (CapacityEstimate::FALLBACK, RATE));
    let seen = run(&BottleneckPath { rate, buffer: RATE, ..satellite() }, &five(), 80.0);
    assert_eq!((seen.link.estimate.enabled, seen.link.capacity), (CapacityEstimate::OFF, RATE));
    assert!(seen.utilization(60.0, 79.0, RATE) > 0.97);
}

#[test]
fn trying_more_costs_a_short_remote_queue_little() {
    let path = BottleneckPath { buffer: 30_000, ..satellite() };
    let seen = run(&path, &five(), 120.0);
    assert!(seen.drops < 600, "{}", seen.drops);
    assert!(seen.utilization(10.0, 119.0, RATE) > 0.95);
}

#[test]
fn losses_at_a_short_remote_queue_correct_the_capacity() {
    let path = BottleneckPath { capacity: RATE * 105 / 100, buffer: 30_000, ..satellite() };
    let seen = run(&path, &five(), 120.0);
    // Sending 5 % too much for two minutes would lose 5000 packets.
    assert!(seen.drops < 1000, "{}", seen.drops);
    assert!(seen.utilization(40.0, 119.0, RATE) > 0.95);
    assert!(seen.jain(40.0, 119.0) > 0.99);
}

#[test]
fn losses_of_the_link_itself_do_not_lower_the_rate() {
    both(|path| {
        for loss in [0.01, 0.05] {
            let seen = run(&BottleneckPath { loss, ..path.clone() }, &five(), 120.0);
            assert!(seen.utilization(20.0, 119.0, RATE) > (1.0 - loss) * 0.97, "{loss}: {}", seen.utilization(20.0, 119.0, RATE));
        }
    });
}

#[test]
fn a_capacity_that_halves_and_recovers_is_tracked() {
    let rate = vec![(0, RATE), (20_000_000, RATE / 2), (60_000_000, RATE)];
    both(|path| {
        let seen = run(&BottleneckPath { rate: rate.clone(), ..path }, &five(), 121.0);
        assert!(seen.utilization(30.0, 60.0, RATE / 2) > 0.97);
        assert!(seen.queue(35.0, 60.0) < BDP / 10, "{}", seen.queue(35.0, 60.0));
        assert!(seen.utilization(80.0, 120.0, RATE) > 0.97);
    });
}

#[test]
fn cross_traffic_is_given_room() {
    both(|path| {
        let seen = run(&BottleneckPath { cross: Some((20_000_000, 40_000_000, RATE / 2)), ..path }, &five(), 61.0);
        assert_eq!(seen.drops, 0);
        assert!(seen.utilization(25.0, 40.0, RATE / 2) > 0.95);
        assert!(seen.utilization(42.0, 60.0, RATE) > 0.97);
    });
}

#[test]
fn four_hundred_flows_lose_nothing() {
    both(|path| {
        let jobs: Vec<_> = (0..400).map(|i| greedy(i * 10_000)).collect();
        let seen = run(&path, &jobs, 61.0);
        assert_eq!(seen.drops, 0);
        assert!(seen.utilization(20.0, 60.0, RATE) > 0.97);
        assert!(seen.jain(20.0, 60.0) > 0.98, "{}", seen.jain(20.0, 60.0));
    });
}

#[test]
fn a_link_that_nearly_failed_is_used_again() {
    // Meanwhile each flow sends three segments a second, and receivers delay each ACK.
    let rate = vec![(0, RATE), (20_000_000, RATE / 50), (50_000_000, RATE)];
    both(|path| {
        let seen = run(&BottleneckPath { rate: rate.clone(), ack_delay_us: 100_000, ..path }, &five(), 160.0);
        assert!(seen.utilization(100.0, 159.0, RATE) > 0.95, "{}", seen.utilization(100.0, 159.0, RATE));
    });
}

#[test]
fn late_acks_are_no_queue_to_flows_without_timestamps() {
    // From 10 s on, an upload fills the uplink: ACKs come 400 ms later. One of two flows has
    // timestamps, or none.
    for estimated in [false, true] {
        let path = BottleneckPath { later_rtt_us: Some((10_000_000, 1_200_000)), estimated, ..satellite() };
        let path = if estimated { BottleneckPath { capacity: 0, ..path } } else { path };
        let of = |timestamped| run(&BottleneckPath { timestamped, ..path.clone() }, &[greedy(0), greedy(0)], 60.0);
        let (mixed, none) = (of(1), of(0));
        let busy = |seen: &RunResult| seen.utilization(12.0, 59.0, RATE);
        let most = mixed.queue[100..590].iter().max().unwrap();
        assert!(busy(&mixed) > 0.98 && busy(&none) < 0.9, "estimated {estimated}: {} and {}", busy(&mixed), busy(&none));
        assert!(mixed.jain(20.0, 59.0) > 0.99 && *most < BDP / 2, "estimated {estimated}: {} and {most}", mixed.jain(20.0, 59.0));
    }
}
