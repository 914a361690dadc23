//! `bbr` and `bbr3` at the simulator's sender: delivery rate samples, pacing, recovery.

use crate::common::{near, play, run};
use outcome::Outcome;
use sim::TcpSettings;

/// Payload over wire bytes.
const PAYLOAD: f64 = 1448.0 / 1500.0;

/// A flow of a minute over one link.
fn flow(control: &str, mbit: u32, delay_ms: u32, queue_bdp: f64, loss: f64) -> Outcome {
    run(&format!(
        "duration = \"60s\"\n[control]\nsender = \"{control}\"\n\
         [[link]]\nrate = \"{mbit}Mbit\"\ndelay = \"{delay_ms}ms\"\nqueue = \"{queue_bdp}BDP\"\nloss = {{ per_packet = {loss} }}\n[[flow]]\n"
    ))
}

#[test]
fn a_long_flow_fills_the_link_and_not_the_queue() {
    for control in ["bbr", "bbr3"] {
        let outcome = flow(control, 20, 20, 4.0, 0.0);
        let most = 20e6 * PAYLOAD;
        assert!(outcome.goodput_bps > 0.95 * most && outcome.goodput_bps < most, "{control}: {}", outcome.goodput_bps);
        let leg = &outcome.flows[0].legs[0];
        near(leg.min_rtt_s, 0.041, 0.03);
        // CUBIC holds three BDPs of queue here.
        assert!(leg.mean_rtt_s < 0.055, "{control}: {}", leg.mean_rtt_s);
        assert_eq!(outcome.retransmits(), 0, "{control}");
    }
    assert!(flow("cubic", 20, 20, 4.0, 0.0).flows[0].legs[0].mean_rtt_s > 0.1);
}

#[test]
fn two_percent_of_loss_costs_bbr_little_and_cubic_nearly_all() {
    let share = |control, loss| flow(control, 20, 20, 1.0, loss).goodput_bps / (20e6 * PAYLOAD * (1.0 - loss));
    let (bbr, cubic) = (share("bbr", 0.02), share("cubic", 0.02));
    assert!(bbr > 0.9 && cubic < 0.25, "{bbr} {cubic}");
    // Version 3 takes 2 % for congestion, 0.5 % not.
    let (little, much) = (share("bbr3", 0.005), share("bbr3", 0.05));
    assert!(little > 0.85 && much < 0.8 * little, "{little} {much}");
}

#[test]
fn what_is_lost_is_what_is_retransmitted() {
    for control in ["bbr", "bbr3"] {
        let outcome = run(&format!(
            "duration = \"1h\"\n[control]\nsender = \"{control}\"\n[[link]]\nrate = \"10Mbit\"\ndelay = \"50ms\"\nqueue = \"1BDP\"\n\
             loss = {{ per_packet = 0.01 }}\n[[flow]]\nbytes = \"20MB\"\n"
        ));
        let lost: u64 = outcome.links.iter().map(|link| link.queue_drops + link.losses).sum();
        assert_eq!((outcome.flows[0].bytes, outcome.retransmits()), (20_000_000, lost), "{control}");
    }
}

#[test]
fn segments_are_paced() {
    // Without pacing, a window of ten segments and more would arrive at once: the queue of 4 BDP
    // would hold half of each window.
    for control in ["bbr", "bbr3"] {
        let outcome = flow(control, 50, 50, 4.0, 0.0);
        let queue = outcome.queue_bytes.unwrap();
        let bdp = 50e6 / 8.0 * 0.1;
        assert!(queue.p50 < 0.1 * bdp, "{control}: {queue:?}");
    }
}

#[test]
fn a_window_of_few_segments_is_measured_once_in_ten_and_in_five_seconds() {
    for (control, least) in [("bbr", 5), ("bbr3", 10)] {
        let outcome = flow(control, 20, 20, 4.0, 0.0);
        let windows = outcome.series.iter().find(|series| series.what == "cwnd").unwrap();
        // A BDP is 69 packets: half of it in version 3.
        let low = |window: f64| window < if control == "bbr" { 5.0 } else { 38.0 };
        let dips = windows.v.windows(2).zip(&windows.t).filter(|(two, t)| **t > 1.0 && !low(two[0]) && low(two[1])).count();
        assert!((least..=least + 2).contains(&dips), "{control}: {dips}");
    }
}

#[test]
fn seeds_choose_the_phase_of_the_cycle() {
    let text = "duration = \"5s\"\n[control]\nsender = \"bbr\"\n[[link]]\nrate = \"20Mbit\"\ndelay = \"20ms\"\n[[flow]]\n";
    let windows = |seed| play(text, seed, TcpSettings::default()).0.series.iter().find(|one| one.what == "rtt").unwrap().v.clone();
    assert_eq!(windows(1), windows(1));
    assert!((2..8).any(|seed| windows(seed) != windows(1)));
}

#[test]
fn an_application_that_sends_little_is_not_taken_for_the_path() {
    // 2 Mbit/s of a path of 20: the rate samples are limited, and the end of the pause finds the
    // whole rate within a second.
    for control in ["bbr", "bbr3"] {
        let outcome = run(&format!(
            "duration = \"20s\"\n[control]\nsender = \"{control}\"\n[[link]]\nrate = \"20Mbit\"\ndelay = \"20ms\"\nqueue = \"2BDP\"\n\
             [[flow]]\noffers = {{ bytes = \"2500B\", every = \"10ms\" }}\n"
        ));
        near(outcome.goodput_bps, 2e6, 0.02);
        assert!(outcome.flows[0].legs[0].mean_rtt_s < 0.045, "{control}");
    }
}

#[test]
fn a_proxy_paces_too() {
    for control in ["bbr", "bbr3"] {
        let outcome = run(&format!(
            "duration = \"30s\"\n[control]\nsender = \"cubic\"\nproxy = \"{control}\"\n[[link]]\nrate = \"100Mbit\"\ndelay = \"5ms\"\n\
             [[link]]\nrate = \"10Mbit\"\ndelay = \"250ms\"\nqueue = \"1BDP\"\nloss = {{ per_packet = 0.001 }}\n\
             [[split]]\nafter = 1\nbuffer = \"4MiB\"\n[[flow]]\n"
        ));
        assert!(outcome.goodput_bps > 0.8 * 10e6 * PAYLOAD, "{control}: {}", outcome.goodput_bps);
    }
}
