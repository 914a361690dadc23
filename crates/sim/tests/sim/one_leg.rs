//! One connection over one link: exact times, rates, loss recovery.

use crate::common::{near, play, refused, run, scenario};
use sim::{Recovery, TcpSettings};

/// The link sends a packet of 1500 bytes in a millisecond.
const LINK: &str = "[[link]]\nrate = \"12Mbit\"\ndelay = \"20ms\"\n";
/// Transmission times of a SYN and of an acknowledgement, s.
const SYN: f64 = 60.0 * 8.0 / 12e6;
const ACK: f64 = 52.0 * 8.0 / 12e6;

#[test]
fn one_window_takes_a_handshake_and_its_transmission_time() {
    let settings = TcpSettings { initial_window: 40, ..TcpSettings::default() };
    let (outcome, counters) = play(&format!("{LINK}queue = \"100pkt\"\n[[flow]]\nbytes = \"57920B\"\n"), 1, settings);
    // The ACK of the handshake precedes the 40 packets.
    let expected = 2.0 * (SYN + 0.02) + ACK + 0.040 + 0.02;
    near(outcome.flows[0].end_s.unwrap(), expected, 1e-6);
    assert_eq!((counters.segments, outcome.flows[0].bytes, outcome.retransmits()), (40, 57_920, 0));
}

#[test]
fn slow_start_doubles_from_ten() {
    // 10, 20 and 40 packets: the last of 70 is sent after two RTTs.
    let outcome = run(&format!("{LINK}queue = \"100pkt\"\n[[flow]]\nbytes = \"101360B\"\n"));
    // The first acknowledgement of each round starts the next one; the packets of a round follow
    // each other.
    let first = 2.0 * (SYN + 0.02) + ACK + 0.001 + 0.02;
    let end = outcome.flows[0].end_s.unwrap();
    assert!(end > first + 2.0 * 0.040 + 0.039 && end < first + 2.0 * 0.043 + 0.045, "{end} from {first}");
}

#[test]
fn a_download_takes_half_an_rtt_more() {
    let text = |opens: &str| format!("{LINK}[[flow]]\nbytes = \"1448B\"\nopens = \"{opens}\"\n");
    let (up, down) = (run(&text("sender")), run(&text("receiver")));
    let data = 0.001 + 0.02;
    near(up.flows[0].end_s.unwrap(), 2.0 * (SYN + 0.02) + ACK + data, 1e-6);
    near(down.flows[0].end_s.unwrap(), 2.0 * (SYN + 0.02) + ACK + 0.02 + data, 1e-6);
}

#[test]
fn a_long_flow_fills_the_link() {
    for control in ["reno", "cubic", "vegas", "hybla", "westwood"] {
        let outcome = run(&format!("duration = \"60s\"\n[control]\nsender = \"{control}\"\n{LINK}[[flow]]\n"));
        let most = 12e6 * 1448.0 / 1500.0;
        assert!(outcome.goodput_bps > 0.97 * most && outcome.goodput_bps < most, "{control}: {}", outcome.goodput_bps);
        assert!(outcome.utilization > 0.98 && outcome.utilization <= 1.0, "{control}: {}", outcome.utilization);
        let leg = &outcome.flows[0].legs[0];
        near(leg.min_rtt_s, 0.040 + 0.001 + ACK, 0.03);
        assert!(leg.mean_rtt_s >= leg.min_rtt_s && leg.mean_rtt_s < 0.085, "{control}: {}", leg.mean_rtt_s);
        assert!(outcome.queue_bytes.unwrap().max <= 60_000.0 && leg.mean_cwnd_pkt > 35.0);
    }
}

#[test]
fn delayed_acknowledgements_are_half_as_many() {
    let text = format!("{LINK}queue = \"1000pkt\"\n[control]\nsender = \"vegas\"\n[[flow]]\nbytes = \"30MB\"\n");
    let (_, delayed) = play(&text, 1, TcpSettings::default());
    let (_, each) = play(&text, 1, TcpSettings { delayed_acks: false, ..TcpSettings::default() });
    // The first sixteen are sent immediately.
    assert!(delayed.acks.abs_diff(16 + (delayed.segments - 16) / 2) <= 4, "{delayed:?}");
    // The ACK of the handshake is the sender's.
    assert_eq!(each.acks, each.segments);
}

#[test]
fn a_single_small_segment_is_acknowledged_immediately() {
    // A short segment empties the receiver's queue, so its acknowledgement is not delayed, and
    // there is no loss probe.
    let (_, counters) = play(&format!("{LINK}[[flow]]\nbytes = \"100B\"\n"), 1, TcpSettings::default());
    assert_eq!((counters.segments, counters.probes), (1, 0));
}

#[test]
fn an_outage_is_survived() {
    let changes = "changes = [ { at = \"2s\", rate = \"10bit\" }, { at = \"9s\", rate = \"12Mbit\" } ]\n";
    // Without SACK, the hundreds of losses of the first slow start are repaired at one an RTT.
    for (recovery, most) in [(Recovery::Sack, 8.0), (Recovery::NewReno, 30.0)] {
        let settings = TcpSettings { recovery, ..TcpSettings::default() };
        let (outcome, counters) = play(&format!("{LINK}{changes}[[flow]]\nbytes = \"6MB\"\n"), 1, settings);
        let end = outcome.flows[0].end_s.unwrap();
        assert!(counters.timeouts >= 3, "{counters:?}");
        // 6 MB take 4.1 s; the timeout doubles from a quarter of a second on.
        assert!(end > 9.0 + 2.0 && end < 9.0 + most, "{recovery:?} {end} {counters:?}");
    }
}

#[test]
fn a_rate_follows_demand() {
    let file = |above: &str, bytes: &str| {
        let demand = format!("demand = {{ least = \"1200kbit\", above = \"{above}\", every = \"100ms\" }}\n");
        run(&format!("{LINK}{demand}[[flow]]\nbytes = \"{bytes}\"\n")).flows[0].end_s.unwrap()
    };
    // Less than 6 MB take 40 s at the lower rate and 4 s at the higher one.
    assert!(file("1GB", "6MB") > 40.0, "{}", file("1GB", "6MB"));
    assert!(file("6kB", "6MB") < 6.0, "{}", file("6kB", "6MB"));
    // Two packets never wait.
    assert_eq!(file("6kB", "2kB"), file("1GB", "2kB"));
}

#[test]
fn acknowledgements_take_their_part_of_a_half_duplex_link() {
    let goodput = |medium: &str| {
        let settings = format!("duration = \"60s\"\n[control]\nsender = \"vegas\"\n{LINK}medium = \"{medium}\"\n[[flow]]\n");
        run(&settings).goodput_bps
    };
    // An acknowledgement of 52 bytes for two segments of 1500.
    near(goodput("half-duplex") / goodput("full-duplex"), 3000.0 / 3052.0, 2e-3);
}

#[test]
fn stations_of_a_wireless_network_contend() {
    let text = "duration = \"60s\"\n[[link]]\nrate = \"5.47Mbit\"\ndelay = \"10us\"\nqueue = \"500pkt\"\nmedium = \"802.11b\"\n\
                [[flow]]\nwindow = \"8760B\"\n";
    let outcome = run(text);
    // Table IV of Hoekstra et al.: 5.28 Mbit/s.
    near(outcome.goodput_bps, 5.28e6, 0.02);
    assert_eq!(outcome.retransmits(), 0, "what collides is sent again by the stations");
}

#[test]
fn a_spurious_syn_retransmission_costs_nothing() {
    let text = |delay: &str| format!("[[link]]\nrate = \"12Mbit\"\ndelay = \"{delay}\"\n[[flow]]\nbytes = \"14480B\"\n");
    let outcome = run(&text("700ms"));
    assert_eq!(outcome.retransmits(), 1);
    near(outcome.flows[0].end_s.unwrap(), 2.1 + 0.010, 1e-3);
    // Three of them at an RTT of 3.2 s, and none reduces the initial window.
    let outcome = run(&text("1600ms"));
    assert_eq!(outcome.retransmits(), 3);
    near(outcome.flows[0].end_s.unwrap(), 4.8 + 0.010, 1e-3);
    // The same for SYN-ACKs: two of them are sent again, and the ACK echoes the timestamp of the
    // first. The sender has its first RTT sample from it.
    let outcome = run(&format!("{}opens = \"receiver\"\n", text("1600ms")));
    assert_eq!(outcome.retransmits(), 2);
    near(outcome.flows[0].end_s.unwrap(), 6.4 + 0.010, 1e-3);
    let leg = &outcome.flows[0].legs[0];
    assert!(leg.mean_rtt_s > 3.2 && leg.min_rtt_s > 3.2, "{leg:?}");
}

#[test]
fn losses_are_repaired_quickly() {
    let text =
        "[[link]]\nrate = \"12Mbit\"\ndelay = \"20ms\"\nqueue = \"200pkt\"\nloss = { per_packet = 0.0005 }\n[[flow]]\nbytes = \"20MB\"\n";
    let least = 20e6 / 1448.0 * 0.001;
    let (outcome, counters) = play(text, 3, TcpSettings::default());
    let losses = outcome.links[0].losses + outcome.links[0].queue_drops;
    // Each loss is retransmitted once, except for lost retransmissions, which the next
    // acknowledgement or a probe reveals.
    assert!(outcome.retransmits() >= losses && outcome.retransmits() <= losses + 2, "{counters:?} {losses}");
    assert_eq!(counters.timeouts, 0);
    assert!(outcome.flows[0].end_s.unwrap() < 1.25 * least, "{:?}", outcome.flows[0].end_s);
    // Without SACK one loss an RTT is repaired, and many at once lead to a timeout.
    let (outcome, _) = play(text, 3, TcpSettings { recovery: Recovery::NewReno, ..TcpSettings::default() });
    assert!(outcome.flows[0].end_s.unwrap() < 1.6 * least, "{:?}", outcome.flows[0].end_s);
}

#[test]
fn flows_with_extra_delays_are_independent() {
    // One segment each over an idle link takes a handshake and half an RTT, whatever else is in
    // flight.
    let text = "[[link]]\nrate = \"1Gbit\"\ndelay = \"20ms\"\n[[flow]]\ncount = 8\nbytes = \"1448B\"\n\
                access_delay = { uniform = [\"0ms\", \"200ms\"] }\n";
    let (outcome, specs) = (run(text), scenario(text).flow_specs(1));
    for (flow, spec) in outcome.flows.iter().zip(specs) {
        near(flow.end_s.unwrap(), 3.0 * (0.020 + spec.access_delay.secs()), 1e-3);
    }
}

#[test]
fn newreno_retransmits_a_single_loss_immediately() {
    // Regression: data in flight beyond the window that was just halved must not delay the
    // retransmission, or each loss leads to a timeout.
    let settings = TcpSettings { recovery: Recovery::NewReno, delayed_acks: false, ..TcpSettings::default() };
    let text = "[[link]]\nrate = \"100Mbit\"\ndelay = \"20ms\"\nqueue = \"400pkt\"\nloss = { per_second = 1 }\n\
                [[flow]]\nbytes = \"100MB\"\nwindow = \"200kB\"\n";
    let (outcome, counters) = play(text, 1, settings);
    let losses = outcome.links[0].losses;
    // A timeout needs two losses in one RTT, or a lost retransmission.
    assert!(losses > 20 && counters.timeouts <= losses / 8, "{counters:?} {losses}");
    assert!(outcome.retransmits() >= losses && outcome.retransmits() < 2 * losses + 100 * counters.timeouts, "{counters:?} {losses}");
}

#[test]
fn limited_transmit_sends_new_data_after_two_duplicates() {
    // RFC 3042. Six segments in windows of three: at most two segments follow a lost one before the
    // window moves on, so without the new segments each loss would lead to a timeout.
    let text = format!("{LINK}loss = {{ per_packet = 0.08 }}\n[[flow]]\nbytes = \"8688B\"\n");
    let settings = TcpSettings { recovery: Recovery::NewReno, delayed_acks: false, initial_window: 3, ..TcpSettings::default() };
    let is_mended = |seed: &u64| {
        let (outcome, counters) = play(&text, *seed, settings);
        // A lost SYN takes a second.
        counters.timeouts == 0 && outcome.retransmits() == 1 && outcome.completion_s().is_some_and(|done| done < 0.5)
    };
    assert!((1..=300).filter(is_mended).count() >= 10);
}

#[test]
fn a_lost_tail_is_found_by_a_loss_probe() {
    // Of ten segments often the last ones are lost, and nothing after them reveals it. A probe does
    // after two RTTs; without SACK it takes a timeout.
    let text = format!("{LINK}loss = {{ per_packet = 0.08 }}\n[[flow]]\nbytes = \"14480B\"\n");
    let mean = |recovery| {
        let runs = (1..=300).map(|seed| play(&text, seed, TcpSettings { recovery, ..TcpSettings::default() }));
        let sums = runs.fold((0.0, 0, 0), |(time, probes, timeouts), (outcome, counters)| {
            (time + outcome.completion_s().unwrap(), probes + counters.probes, timeouts + counters.timeouts)
        });
        (sums.0 / 300.0, sums.1, sums.2)
    };
    let (sack, newreno) = (mean(Recovery::Sack), mean(Recovery::NewReno));
    assert!(sack.1 > 10 && sack.2 < newreno.2 / 2 && newreno.1 == 0, "{sack:?} {newreno:?}");
    assert!(sack.0 < newreno.0, "{sack:?} {newreno:?}");
}

#[test]
fn a_spurious_timeout_is_undone() {
    // The link stalls for 0.65 s. The timer expires, and then acknowledgements of the original
    // transmissions arrive.
    let changes = "changes = [ { at = \"2s\", rate = \"10bit\" }, { at = \"2650ms\", rate = \"12Mbit\" } ]\n";
    let text = format!("[control]\nsender = \"reno\"\n{LINK}queue = \"400pkt\"\n{changes}[[flow]]\nbytes = \"6MB\"\nwindow = \"100kB\"\n");
    let (outcome, counters) = play(&text, 1, TcpSettings::default());
    assert!(counters.timeouts >= 1 && counters.undone >= 1, "{counters:?}");
    // 6 MB take 4.2 s, and the stall.
    near(outcome.flows[0].end_s.unwrap(), 6e6 / 1448.0 * 0.001 + 0.65 + 0.1, 0.02);
}

#[test]
fn the_advertised_window_is_a_limit() {
    // Eight segments an RTT, whatever the rate of the link.
    let outcome = run("duration = \"20s\"\n[[link]]\nrate = \"100Mbit\"\ndelay = \"50ms\"\n[[flow]]\nwindow = \"11584B\"\n");
    near(outcome.goodput_bps, 11_584.0 * 8.0 / 0.1, 0.02);
}

#[test]
fn an_application_limited_flow_gets_its_rate() {
    let text = format!("duration = \"20s\"\n{LINK}[[flow]]\noffers = {{ bytes = \"20kB\", every = \"200ms\" }}\n");
    let outcome = run(&text);
    near(outcome.goodput_bps, 20e3 * 8.0 / 0.2, 0.02);
    // The window does not grow beyond twice what is used.
    assert!(outcome.flows[0].legs[0].mean_cwnd_pkt < 30.0, "{:?}", outcome.flows[0].legs);
}

#[test]
fn a_scenarios_tcp_section_overrides_the_settings() {
    let lossy = "[[link]]\nrate = \"10Mbit\"\ndelay = \"40ms\"\nloss = { per_packet = 0.02 }\n[[flow]]\nbytes = \"2MB\"\n";
    let linux = TcpSettings::default();
    let plain = play(lossy, 1, linux).0;
    for (text, settings) in [
        ("initial_rto = \"50ms\"", TcpSettings { initial_rto: units::Span(50_000_000), ..linux }),
        ("initial_window = 1", TcpSettings { initial_window: 1, ..linux }),
        ("sack = false", TcpSettings { recovery: sim::Recovery::NewReno, ..linux }),
        ("delayed_acks = false", TcpSettings { delayed_acks: false, ..linux }),
    ] {
        let set = play(&format!("{lossy}[tcp]\n{text}\n"), 1, linux).0;
        assert_eq!(set, play(lossy, 1, settings).0, "{text}");
        assert_ne!(set, plain, "{text}");
    }
}

#[test]
fn an_unused_window_grows_only_without_validation() {
    let text = "duration = \"60s\"\n[control]\nsender = \"reno\"\n[[link]]\nrate = \"100Mbit\"\ndelay = \"20ms\"\n\
        [[flow]]\noffers = { bytes = \"14480B\", every = \"20ms\" }\n";
    let window = |more: &str| run(&format!("{text}{more}")).flows[0].legs[0].mean_cwnd_pkt;
    // Ten segments every half RTT: at most thirty are in flight, and slow start ends at twice that
    // plus the segments of one acknowledgement.
    assert!(window("") < 70.0, "{}", window(""));
    assert!(window("[tcp]\nvalidation = false\n") > 1000.0, "{}", window("[tcp]\nvalidation = false\n"));
}

#[test]
fn flows_share_a_link() {
    let outcome =
        run(&format!("duration = \"60s\"\n[control]\nsender = \"reno\"\n{LINK}[[flow]]\ncount = 4\nstart = {{ every = \"300ms\" }}\n"));
    assert!(outcome.jain.unwrap() > 0.9 && outcome.utilization > 0.97, "{:?} {}", outcome.jain, outcome.utilization);
}

#[test]
fn access_delays_apply_to_each_flow() {
    let text = format!("duration = \"30s\"\n{LINK}[[flow]]\nbytes = \"300kB\"\ncount = 2\naccess_delay = {{ every = \"100ms\" }}\n");
    let outcome = run(&text);
    let [near_one, far_one] = [0, 1].map(|flow| outcome.flows[flow].legs[0].min_rtt_s);
    assert!((far_one - near_one - 0.2).abs() < 0.005, "{near_one} {far_one}");
}

#[test]
fn cross_traffic_takes_its_share() {
    let cross = "[[cross]]\nlink = 1\nrate = \"6Mbit\"\n";
    let all = run(&format!("duration = \"30s\"\n{LINK}{cross}[[flow]]\n"));
    near(all.goodput_bps, 6e6 * 1448.0 / 1500.0, 0.06);
    assert!(all.utilization > 0.97);
    let half = run(&format!("duration = \"30s\"\n{LINK}{cross}on = \"500ms\"\noff = \"500ms\"\n[[flow]]\n"));
    near(half.goodput_bps, 9e6 * 1448.0 / 1500.0, 0.08);
}

#[test]
fn a_marking_queue_stays_short_and_loses_nothing() {
    for control in ["dctcp", "reno", "cubic"] {
        let text = format!(
            "duration = \"30s\"\n[control]\nsender = \"{control}\"\n[[link]]\nrate = \"12Mbit\"\ndelay = \"20ms\"\n\
             queue = {{ limit = \"4BDP\", kind = \"ecn\" }}\n[[flow]]\ncount = 2\n"
        );
        let outcome = run(&text);
        assert_eq!((outcome.retransmits(), outcome.queue_drops()), (0, 0), "{control}");
        assert!(outcome.utilization > 0.95, "{control}: {}", outcome.utilization);
        // The marking threshold is a fifth of 240 kB.
        assert!(outcome.queue_bytes.unwrap().p99 < 130_000.0, "{control}: {:?}", outcome.queue_bytes);
    }
}

#[test]
fn a_run_over_a_link_that_loses_everything_ends() {
    let outcome = run(&format!("{LINK}loss = {{ per_packet = 1.0 }}\n[[flow]]\nbytes = \"1MB\"\n"));
    assert_eq!((outcome.flows[0].end_s, outcome.flows[0].bytes, outcome.warnings.len()), (None, 0, 1));
}

#[test]
fn unsupported_controllers_are_refused_by_key() {
    assert_eq!(refused(&format!("[control]\nsender = \"share\"\n{LINK}[[flow]]\nbytes = \"1MB\"\n")), "control.sender");
    assert_eq!(refused(&format!("[control]\nsender = \"nobody\"\n{LINK}[[flow]]\nbytes = \"1MB\"\n")), "control.sender");
}

#[test]
fn a_receive_buffer_grows_as_the_application_reads() {
    // 1.612 and 0.847 s by Linux 6.18 in the lab.
    let end = |most: &str| {
        let text = format!(
            "[tcp]\nreceive_buffers = {{ first = \"64KiB\", most = \"{most}\" }}\n\
             [[link]]\nrate = \"50Mbit\"\ndelay = \"50ms\"\n[[flow]]\nopens = \"receiver\"\nbytes = \"1MB\"\n"
        );
        run(&text).flows[0].end_s.unwrap()
    };
    near(end("128KiB"), 1.608, 0.01);
    near(end("6MiB"), 0.848, 0.01);
    // Those of the proxy are its own: a short leg behind it costs nothing.
    let path = "[[link]]\nrate = \"50Mbit\"\ndelay = \"300ms\"\n[[link]]\nrate = \"1Gbit\"\ndelay = \"1ms\"\n[[split]]\nafter = 1\n";
    let buffers = "[tcp]\nreceive_buffers = { first = \"64KiB\", most = \"256KiB\" }\n";
    let end = |buffers: &str| run(&format!("{buffers}{path}[[flow]]\nbytes = \"5MB\"\n")).flows[0].end_s.unwrap();
    near(end(buffers), end(""), 0.01);
}
