//! Plays small scenarios: all bytes arrive, and the results are physically plausible.
//!
//! A run during which the machine did not keep up is not `valid`, and is repeated. If no run is
//! valid, the test is skipped, and says so.

use crate::{ALONE, common};
use lab::{Host, HostMemory, Lab, OtherProxy, RunningProgram, SocketMemory};
use outcome::{Engine, EngineError, Outcome};
use scenario::{Scenario, ScenarioFile};
use socket2::{Domain, SockAddr, Socket, Type};
use std::{
    io::{self, BufRead, Write as _},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream},
    process::Stdio,
    sync::{Arc, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// How long to repeat runs on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A scenario with links that may follow [`TRACE`] and [`STEPS`].
fn scenario(text: &str) -> Scenario {
    let open = |name: &str| -> io::Result<Box<dyn BufRead>> {
        Ok(Box::new(io::Cursor::new(match name {
            "trace" => TRACE.iter().map(|at| format!("{at}\n")).collect(),
            _ => STEPS.to_owned(),
        })))
    };
    ScenarioFile::parse_with(text, "test", Arc::new(open)).unwrap().variants(&[]).unwrap().remove(0).scenario
}

/// Delivery opportunities, ms: bursts, a gap of 150 ms, a packet every 5 ms. 4 Mbit/s on average.
const TRACE: [u32; 40] = [
    5, 5, 5, 5, 5, 5, 20, 20, 20, 20, 20, 20, 40, 40, 40, 40, 40, 40, 40, 190, 195, 200, 205, 210, 215, 220, 225, 230, 235, 240, 245, 250,
    250, 250, 250, 250, 250, 250, 250, 250,
];
const STEPS: &str = "time,rate,delay\n0s,8Mbit,5ms\n200ms,2Mbit,\n400ms,,30ms\n";

/// Plays until a run is valid. Returns `None` and reports the test as skipped if none is.
pub(crate) fn play(test: &str, text: &str) -> Option<Outcome> {
    play_on(&Lab::default(), test, text)
}

fn play_on(lab: &Lab, test: &str, text: &str) -> Option<Outcome> {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let begun = Instant::now();
    loop {
        let outcome = lab.run(&scenario(text), 1, &()).unwrap();
        assert!(outcome.flows.iter().all(|flow| flow.error.is_none()), "{:?}", outcome.warnings);
        if outcome.valid {
            return Some(outcome);
        }
        if begun.elapsed() > PATIENCE {
            testing::skipped(test, &format!("this machine never kept up: {}", outcome.warnings.join("; ")));
            return None;
        }
    }
}

const LINKS: &str = "name = \"x\"\n[[link]]\nrate = \"50Mbit\"\ndelay = \"2ms\"\n[[link]]\nrate = \"20Mbit\"\ndelay = \"10ms\"\n";

#[test]
fn directions_share_a_medium() {
    const TEST: &str = "directions_share_a_medium";
    if common::skip(TEST) {
        return;
    }
    let text = |medium: &str| {
        let link = format!("[[link]]\nrate = \"5.47Mbit\"\ndelay = \"10us\"\nqueue = \"200pkt\"\nmedium = \"{medium}\"\n");
        format!(
            "name = \"x\"\nduration = \"8s\"\n{link}[[flow]]\nwindow = \"16KiB\"\n[[flow]]\nwindow = \"16KiB\"\ndirection = \"reverse\"\n"
        )
    };
    // Both directions together: the rate once, the rate twice, and what 802.11b leaves.
    for (medium, least, most) in [("half-duplex", 4.7e6, 5.3e6), ("full-duplex", 8.5e6, 10.6e6), ("802.11b", 4.0e6, 5.9e6)] {
        let Some(outcome) = play(TEST, &text(medium)) else { return };
        assert!((least..most).contains(&outcome.goodput_bps), "{medium}: {}", outcome.goodput_bps);
    }
}

#[test]
fn a_file_arrives_whole_end_to_end_and_split_up_and_down() {
    const TEST: &str = "a_file_arrives_whole_end_to_end_and_split_up_and_down";
    if common::skip(TEST) {
        return;
    }
    for split in ["", "[[split]]\nafter = 1\n"] {
        for opens in ["sender", "receiver"] {
            let Some(outcome) = play(TEST, &format!("{LINKS}{split}[[flow]]\ncount = 2\nbytes = \"1MB\"\nopens = \"{opens}\"\n")) else {
                return;
            };
            assert!(outcome.flows.iter().all(|flow| flow.bytes == 1_000_000 && flow.end_s.is_some()), "{split}{opens}");
            // Goodput cannot exceed the link's rate without headers.
            assert!(outcome.goodput_bps > 1e6 && outcome.goodput_bps < 20e6 * 1448.0 / 1500.0, "{}", outcome.goodput_bps);
            assert!(outcome.utilization > 0.1 && outcome.utilization <= 1.0, "{}", outcome.utilization);
            let legs = if split.is_empty() { 1 } else { 2 };
            for flow in &outcome.flows {
                assert_eq!(flow.legs.len(), legs);
                assert!(flow.legs.iter().all(|leg| leg.mean_rtt_s > 0.0), "{:?}", flow.legs);
            }
            // The far leg's round trip is 20 ms, the whole path's 24 ms.
            let last = &outcome.flows[0].legs[legs - 1];
            let base = if legs == 2 { 0.020 } else { 0.024 };
            assert!(last.min_rtt_s >= base && last.min_rtt_s < base + 0.5, "{last:?}");
            assert_eq!(outcome.proxy.is_some(), legs == 2);
        }
    }
}

/// Both directions at once: each link's reverse queue has the reverse data and the forward data's
/// acknowledgements.
#[test]
fn data_goes_both_ways_at_once_end_to_end_and_split() {
    const TEST: &str = "data_goes_both_ways_at_once_end_to_end_and_split";
    if common::skip(TEST) {
        return;
    }
    for (split, controls) in [("", vec!["reno"]), ("[[split]]\nafter = 1\n", vec!["reno", "cubic"])] {
        for opens in ["sender", "receiver"] {
            let text = format!(
                "{LINKS}{split}[control]\nsender = \"reno\"\nproxy = \"cubic\"\n\
                 [[flow]]\nbytes = \"1MB\"\nopens = \"{opens}\"\ndirection = \"both\"\n"
            );
            let Some(outcome) = play(TEST, &text) else { return };
            assert_eq!(outcome.flows.iter().map(|flow| flow.reverse).collect::<Vec<_>>(), [false, true]);
            for flow in &outcome.flows {
                assert!(flow.bytes == 1_000_000 && flow.end_s.is_some(), "{split}{opens}: {flow:?}");
                assert_eq!(flow.legs.iter().map(|leg| leg.control.as_str()).collect::<Vec<_>>(), controls);
                assert!(flow.legs.iter().all(|leg| leg.mean_rtt_s > 0.0), "{flow:?}");
            }
            if !split.is_empty() {
                // The near leg of the reverse flow is that over the second link, with 20 ms.
                let near = [0, 1].map(|flow| outcome.flows[flow].legs[0].min_rtt_s);
                assert!((0.004..0.02).contains(&near[0]) && near[1] >= 0.02, "{near:?}");
            }
            // 691 segments and at least as many acknowledgements as half of them.
            let reverse = outcome.links[1].reverse.unwrap();
            assert!(reverse.packets > 691 + 345, "{reverse:?}");
        }
    }
}

/// A cross flow enters and leaves where it is told to, and is split by the proxies on its way only.
#[test]
fn cross_flows_take_their_links_and_pass_the_proxies_between() {
    const TEST: &str = "cross_flows_take_their_links_and_pass_the_proxies_between";
    if common::skip(TEST) {
        return;
    }
    let text = format!(
        "duration = \"3s\"\n{LINKS}[[link]]\nrate = \"50Mbit\"\ndelay = \"3ms\"\n[[split]]\nafter = 2\n[control]\nsender = \"reno\"\n\
         [[flow]]\n[[cross_flow]]\nenters = 2\nleaves = 2\n[[cross_flow]]\nenters = 2\nleaves = 3\nbytes = \"500kB\"\n\
         [[cross_flow]]\nenters = 1\nleaves = 1\ndirection = \"reverse\"\nbytes = \"200kB\"\ncontrol = \"cubic\"\n"
    );
    let Some(outcome) = play(TEST, &text) else { return };
    assert_eq!((outcome.flows.len(), outcome.flows[0].legs.len()), (1, 2));
    let [endless, through, reverse] = &outcome.cross_flows[..] else { panic!("{:?}", outcome.cross_flows) };
    assert_eq!([endless, through, reverse].map(|flow| flow.legs.len()), [1, 2, 1]);
    assert!(endless.bytes > 1_000_000 && endless.end_s.is_none(), "{endless:?}");
    assert_eq!((through.bytes, reverse.bytes, reverse.reverse), (500_000, 200_000, true));
    assert_eq!(reverse.legs[0].control, "cubic");
    // Round trips of link 2, of link 2 and 3 apart, and of link 1.
    for (leg, base) in [(&endless.legs[0], 0.02), (&through.legs[0], 0.02), (&through.legs[1], 0.006), (&reverse.legs[0], 0.004)] {
        assert!(leg.min_rtt_s >= base && leg.min_rtt_s < base + 0.015, "{leg:?}");
    }
    // The flow has left some of link 2 to them.
    assert!(outcome.goodput_bps < 17e6, "{}", outcome.goodput_bps);
}

/// With an initial window of ten, ten segments of payload need one flight; with two, they need two
/// round trips more (2, 4, 4 segments). A proxy uses the same initial window on both legs.
#[test]
fn a_connection_starts_with_the_configured_initial_window() {
    const TEST: &str = "a_connection_starts_with_the_configured_initial_window";
    if common::skip(TEST) {
        return;
    }
    let seconds = |text: String| -> Option<f64> {
        let links = "name = \"x\"\n[[link]]\nrate = \"50Mbit\"\ndelay = \"50ms\"\n[[link]]\nrate = \"20Mbit\"\ndelay = \"100ms\"\n";
        play(TEST, &format!("{links}{text}[[flow]]\nbytes = \"14kB\"\n"))?.mean_flow_s()
    };
    for (split, round_trip) in [("", 0.3), ("[[split]]\nafter = 1\n", 0.2)] {
        let with_window = |window: u32| seconds(format!("{split}[tcp]\ninitial_window = {window}\n"));
        let (Some(default), Some(ten), Some(two)) = (seconds(split.into()), with_window(10), with_window(2)) else { return };
        assert!((ten - default).abs() < 0.04, "{ten} {default}");
        assert!((two - ten - 2.0 * round_trip).abs() < 0.08, "{split}{two} {ten}");
    }
}

/// A receiver's buffer of 128 KiB admits 82 kB in a round trip.
#[test]
fn the_ends_have_the_configured_receive_buffers() {
    const TEST: &str = "the_ends_have_the_configured_receive_buffers";
    if common::skip(TEST) {
        return;
    }
    // The simulator's results, which its own test checks (one_leg.rs).
    for (most, expected) in [("128KiB", 1.608), ("6MiB", 0.848)] {
        let text = format!(
            "name = \"x\"\n[tcp]\nreceive_buffers = {{ first = \"64KiB\", most = \"{most}\" }}\n\
             [[link]]\nrate = \"50Mbit\"\ndelay = \"50ms\"\n[[flow]]\nopens = \"receiver\"\nbytes = \"1MB\"\n"
        );
        let Some(seconds) = play(TEST, &text).and_then(|outcome| outcome.mean_flow_s()) else { return };
        assert!((seconds / expected - 1.0).abs() < 0.05, "{most}: {seconds}, expected {expected}");
    }
}

#[test]
fn a_chain_of_proxies_carries_a_file() {
    const TEST: &str = "a_chain_of_proxies_carries_a_file";
    if common::skip(TEST) {
        return;
    }
    let Some(outcome) = play(
        TEST,
        "name = \"chain\"\n[[link]]\nrate = \"50Mbit\"\ndelay = \"1ms\"\n[[link]]\nrate = \"20Mbit\"\ndelay = \"5ms\"\n\
         [[link]]\nrate = \"50Mbit\"\ndelay = \"1ms\"\n[[split]]\nafter = 1\n[[split]]\nafter = 2\n\
         [control]\nsender = \"reno\"\nproxy = [\"cubic\", \"bbr\"]\n[[flow]]\nbytes = \"500kB\"\n",
    ) else {
        return;
    };
    let controls: Vec<&str> = outcome.flows[0].legs.iter().map(|leg| leg.control.as_str()).collect();
    assert_eq!(controls, ["reno", "cubic", "bbr"]);
}

#[test]
fn a_duration_ends_greedy_flows_and_cross_traffic_takes_bandwidth() {
    const TEST: &str = "a_duration_ends_greedy_flows_and_cross_traffic_takes_bandwidth";
    if common::skip(TEST) {
        return;
    }
    let greedy = "duration = \"2s\"\nname = \"x\"\n[[link]]\nrate = \"10Mbit\"\ndelay = \"5ms\"\n[[flow]]\n";
    let Some(alone) = play(TEST, greedy) else { return };
    let Some(beside) = play(TEST, &format!("{greedy}[[cross]]\nlink = 1\nrate = \"6Mbit\"\n")) else { return };
    assert!(alone.goodput_bps > beside.goodput_bps * 1.3, "{} {}", alone.goodput_bps, beside.goodput_bps);
    assert!(beside.utilization > 0.6, "{}", beside.utilization);
}

#[test]
fn the_bound_holds_while_the_far_leg_is_dialled() {
    const TEST: &str = "the_bound_holds_while_the_far_leg_is_dialled";
    if common::skip(TEST) {
        return;
    }
    // Hosts of the lab have large default buffers, which the sender could fill within a second.
    let text = "name = \"x\"\nduration = \"3s\"\n[[link]]\nrate = \"100Mbit\"\ndelay = \"1ms\"\n[[link]]\nrate = \"5Mbit\"\ndelay = \"400ms\"\n\
                [[split]]\nafter = 1\nbuffer = \"1MB\"\n[[flow]]\n";
    let Some(outcome) = play(TEST, text) else { return };
    let most = outcome.proxy.unwrap().buffer_bytes.max;
    assert!(most > 250e3 && most <= 1e6 + 65536.0, "{most} bytes held");
}

#[test]
fn access_delay_lengthens_the_round_trip_of_its_flow() {
    const TEST: &str = "access_delay_lengthens_the_round_trip_of_its_flow";
    if common::skip(TEST) {
        return;
    }
    let Some(outcome) = play(TEST, &format!("{LINKS}[[flow]]\nbytes = \"100kB\"\n[[flow]]\nbytes = \"100kB\"\naccess_delay = \"50ms\"\n"))
    else {
        return;
    };
    let rtt = |flow: usize| outcome.flows[flow].legs[0].min_rtt_s;
    assert!(rtt(1) - rtt(0) > 0.09, "{} {}", rtt(0), rtt(1));
}

#[test]
fn a_window_in_the_scenario_is_a_limit() {
    const TEST: &str = "a_window_in_the_scenario_is_a_limit";
    if common::skip(TEST) {
        return;
    }
    let Some(outcome) =
        play(TEST, "name = \"x\"\n[[link]]\nrate = \"100Mbit\"\ndelay = \"50ms\"\n[[flow]]\nbytes = \"400kB\"\nwindow = \"20kB\"\n")
    else {
        return;
    };
    // 20 kB per round trip of 100 ms is 1.6 Mbit/s.
    assert!(outcome.goodput_bps < 1.7e6 && outcome.goodput_bps > 0.8e6, "{}", outcome.goodput_bps);
}

#[test]
fn the_lab_names_the_key_that_it_cannot_answer() {
    let refuse = |text: String| Lab::default().can_answer(&scenario(&text)).unwrap_err();
    let flow = "[[flow]]\nbytes = \"1MB\"\n";
    let key = |error: EngineError| match error {
        EngineError::CannotAnswer { key, .. } => key,
        other => panic!("{other}"),
    };
    assert_eq!(key(refuse(format!("{LINKS}queue = {{ kind = \"xcp\" }}\n{flow}"))), "link[2].queue.kind");
    assert_eq!(key(refuse(format!("{LINKS}[[split]]\nafter = 1\nmode = \"store\"\n{flow}"))), "split[1].mode");
    let error = refuse(format!("{LINKS}[[split]]\nafter = 1\nmode = \"semi\"\n{flow}"));
    assert!(error.to_string().contains("the kernel's sender has one acknowledgement number"), "{error}");
    assert_eq!(key(error), "split[1].mode");
    assert_eq!(key(refuse(format!("{LINKS}[[split]]\nafter = 1\nbackpressure = \"fluid\"\n{flow}"))), "split[1].backpressure");
    assert_eq!(key(refuse(format!("{LINKS}[[split]]\nafter = 1\nbuffer = \"2pkt\"\n{flow}"))), "split[1].buffer");
    assert_eq!(key(refuse(format!("{LINKS}[control]\nsender = \"xcp\"\n{flow}"))), "control.sender");
    let error = refuse(format!("{LINKS}[control]\nsender = \"mpcp3-e2e-keep\"\n{flow}"));
    assert!(error.to_string().ends_with("needs router-assisted queues, which the simulator has: --on sim"), "{error}");
    assert_eq!(key(error), "control.sender");
    let networks = "name = \"x\"\n[bond]\nscheduler = \"score\"\n[[network]]\nrate = \"9Mbit\"\ndelay = \"5ms\"\n";
    assert_eq!(key(refuse(format!("{networks}{flow}fast_open = true\n"))), "flow[1].fast_open");
    assert_eq!(key(refuse(format!("{LINKS}[tcp]\ninitial_window = 2\nsack = false\n{flow}"))), "tcp.sack");
    let error = refuse(format!("{LINKS}[control]\nsender = \"cubik\"\n{flow}"));
    assert!(matches!(&error, EngineError::WrongScenario { key, .. } if key == "control.sender"), "{error}");
}

#[test]
fn a_link_carries_less_from_then_on_and_an_application_sends_what_it_offers() {
    const TEST: &str = "a_link_carries_less_from_then_on_and_an_application_sends_what_it_offers";
    if common::skip(TEST) {
        return;
    }
    let link = "name = \"x\"\nduration = \"4s\"\n[[link]]\nrate = \"20Mbit\"\ndelay = \"5ms\"\n";
    let Some(halved) = play(TEST, &format!("{link}changes = [{{ at = \"2s\", rate = \"5Mbit\" }}]\n[[flow]]\n")) else { return };
    // 5 MB in the first half, 1.25 MB in the second, minus slow start and headers.
    assert!((3_500_000..6_100_000).contains(&halved.flows[0].bytes), "{}", halved.flows[0].bytes);
    assert!(halved.utilization > 0.8 && halved.utilization <= 1.0, "{}", halved.utilization);
    let Some(offered) = play(TEST, &format!("{link}[[flow]]\noffers = {{ bytes = \"50kB\", every = \"100ms\" }}\n[[flow]]\n")) else {
        return;
    };
    assert!((1_700_000..=2_050_000).contains(&offered.flows[0].bytes), "{}", offered.flows[0].bytes);
    assert!(offered.jain.is_some_and(|jain| jain < 0.99) && offered.queue_bytes.is_some());
}

#[test]
fn varying_links_carry_what_their_files_say() {
    const TEST: &str = "varying_links_carry_what_their_files_say";
    if common::skip(TEST) {
        return;
    }
    let run = "name = \"x\"\nduration = \"4s\"\n[[flow]]\n[[link]]\ndelay = \"5ms\"\nqueue = \"60kB\"\n";
    let saturated = "[[cross]]\nlink = 1\nrate = \"12Mbit\"\n";
    for link in ["trace = { down = \"trace\", up = \"trace\" }\n", "rate = \"1Mbit\"\nsteps = \"steps\"\nrepeat = \"600ms\"\n"] {
        let Some(outcome) = play(TEST, &format!("{run}{link}{saturated}")) else { return };
        // The bytes that left, beside those of the file from the same first to the same last
        // sample. An opportunity or a change at either end may lie on the other side of the sample.
        assert!((outcome.utilization - 1.0).abs() < 0.02, "{link}: {}", outcome.utilization);
        let Some(outcome) = play(TEST, &format!("{run}{link}")) else { return };
        assert!(outcome.utilization > 0.5 && outcome.utilization < 1.005, "{link}: {}", outcome.utilization);
    }
}

#[test]
fn managed_queues_hold_the_delay_of_the_kernels_tcp() {
    const TEST: &str = "managed_queues_hold_the_delay_of_the_kernels_tcp";
    if common::skip(TEST) {
        return;
    }
    let run = "name = \"x\"\nduration = \"6s\"\n[control]\nsender = \"cubic\"\n[[flow]]\n[[link]]\nrate = \"20Mbit\"\ndelay = \"10ms\"\n";
    let queueing_ms = |queue: &str| -> Option<(f64, Outcome)> {
        let outcome = play(TEST, &format!("{run}queue = {queue}\n"))?;
        Some((outcome.flows[0].legs[0].mean_rtt_s * 1e3 - 20.0, outcome))
    };
    let Some((droptail, _)) = queueing_ms("\"300kB\"") else { return };
    assert!(droptail > 40.0, "{droptail} ms");
    for kind in ["codel", "fq_codel", "pie", "dualpi2"] {
        let Some((managed, outcome)) = queueing_ms(&format!("{{ kind = \"{kind}\" }}")) else { return };
        assert!(managed < 30.0 && outcome.utilization > 0.85, "{kind}: {managed} ms, {}", outcome.utilization);
    }
    // The kernel answers marks, so that next to nothing is sent again.
    let Some((managed, outcome)) = queueing_ms("{ kind = \"fq_codel\", ecn = true }") else { return };
    assert!(managed < 30.0 && outcome.utilization > 0.85, "{managed} ms, {}", outcome.utilization);
    assert!(outcome.flows[0].legs[0].retransmits <= 2, "{}", outcome.flows[0].legs[0].retransmits);
}

/// The receiver tells the sender of each mark, and of no more than there are: then the window of
/// DCTCP reduces its window by little at a time, and the link stays busy with a short queue. The
/// simulator has the same numbers.
#[test]
fn dctcp_keeps_a_marking_queue_short_and_busy() {
    const TEST: &str = "dctcp_keeps_a_marking_queue_short_and_busy";
    if common::skip(TEST) {
        return;
    }
    let text = "name = \"x\"\nduration = \"8s\"\n[control]\nsender = \"dctcp\"\n[[flow]]\n[[link]]\nrate = \"20Mbit\"\ndelay = \"10ms\"\n\
                queue = { kind = \"ecn\", limit = \"300kB\", mark_above = \"12kB\" }\n";
    let Some(outcome) = play(TEST, text) else { return };
    let queueing_ms = outcome.flows[0].legs[0].mean_rtt_s * 1e3 - 20.0;
    assert!(outcome.utilization > 0.9 && queueing_ms < 10.0, "{}, {queueing_ms} ms", outcome.utilization);
    assert!(outcome.flows[0].legs[0].retransmits <= 2, "{}", outcome.flows[0].legs[0].retransmits);
}

/// The times of the simulator's test of the same name: the near leg of an upload is the sender's
/// with 20 ms, that of a download the receiver's with 80 ms.
#[test]
fn each_leg_saves_its_own_rtt_by_fast_open() {
    const TEST: &str = "each_leg_saves_its_own_rtt_by_fast_open";
    if common::skip(TEST) {
        return;
    }
    for (opens, none, near_leg, far_leg, both) in [("sender", 0.15, 0.13, 0.07, 0.05), ("receiver", 0.2, 0.12, 0.18, 0.1)] {
        for (flow, split, expected) in [(false, false, none), (true, false, near_leg), (false, true, far_leg), (true, true, both)] {
            let text = format!(
                "name = \"x\"\n[[link]]\nrate = \"100Mbit\"\ndelay = \"10ms\"\n[[link]]\nrate = \"12Mbit\"\ndelay = \"40ms\"\n\
                 [[split]]\nafter = 1\nfast_open = {split}\n[[flow]]\nbytes = \"1400B\"\nopens = \"{opens}\"\nfast_open = {flow}\n"
            );
            let mut times: Vec<f64> = Vec::new();
            while !times.last().is_some_and(|took| (took - expected).abs() < 0.009) {
                assert!(times.len() < 5, "{opens}, flow {flow}, split {split}: {times:?} s instead of {expected} s");
                let Some(outcome) = play(TEST, &text) else { return };
                times.push(outcome.mean_flow_s().unwrap());
                // The connections that got the cookies crossed no link.
                assert!(outcome.links.iter().all(|link| link.packets < 12), "{:?}", outcome.links);
            }
        }
    }
}

/// Ends its program by closing the listener.
struct Listening(Arc<Socket>);

impl Drop for Listening {
    fn drop(&mut self) {
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

/// A proxy that copies bytes, one direction in each of two threads.
fn copying_proxy(host: &Host) -> io::Result<RunningProgram> {
    let mut nft = host.command("nft").args(["-f", "-"]).stdin(Stdio::piped()).spawn()?;
    let rules = "table ip other { chain prerouting { type filter hook prerouting priority mangle;\n\
                 iifname link1 meta l4proto 6 tproxy to :5000 meta mark set 1 accept\n}\n}\n";
    nft.stdin.take().unwrap().write_all(rules.as_bytes())?;
    assert!(nft.wait()?.success());
    host.ip(&["rule add fwmark 1 lookup 100".into(), "route add local default dev lo table 100".into()]).map_err(io::Error::other)?;
    let listener = host.enter(|| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.set_ip_transparent_v4(true)?;
        socket.bind(&SockAddr::from(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 5000))))?;
        socket.listen(16)?;
        io::Result::Ok(socket)
    });
    let listener = Arc::new(listener.map_err(io::Error::other)??);
    let accepting = listener.clone();
    host.spawn("copy", move || {
        while let Ok((near, _)) = accepting.accept() {
            let near = TcpStream::from(near);
            let far = TcpStream::connect(near.local_addr().unwrap()).unwrap();
            for (mut from, mut to) in [(near.try_clone().unwrap(), far.try_clone().unwrap()), (far, near)] {
                thread::spawn(move || {
                    let _ = io::copy(&mut from, &mut to);
                    let _ = to.shutdown(Shutdown::Write);
                });
            }
        }
    })
    .map_err(io::Error::other)?;
    Ok(Box::new(Listening(listener)))
}

#[test]
fn another_program_can_split_in_place_of_the_proxy() {
    const TEST: &str = "another_program_can_split_in_place_of_the_proxy";
    if common::skip(TEST) {
        return;
    }
    let lab = Lab { other_proxy: Some(OtherProxy::new(copying_proxy)), ..Lab::default() };
    let text = format!("{LINKS}[[split]]\nafter = 1\n[[flow]]\ncount = 2\nbytes = \"1MB\"\n");
    let Some(outcome) = play_on(&lab, TEST, &text) else { return };
    assert!(outcome.flows.iter().all(|flow| flow.bytes == 1_000_000 && flow.end_s.is_some()), "{outcome:?}");
    // The sender's round trip is that of the first link, 4 ms, and not that of the path, 24 ms.
    let near = outcome.flows[0].legs[0].min_rtt_s;
    assert!((0.004..0.02).contains(&near), "{near}");
    let fast = format!("{LINKS}[[split]]\nafter = 1\nfast_open = true\n[[flow]]\nbytes = \"1MB\"\n");
    let error = lab.can_answer(&scenario(&fast)).unwrap_err();
    assert!(error.to_string().contains("only Tandem's proxy"), "{error}");
}

/// The kernel's own tuning of a send buffer ends at `net.ipv4.tcp_wmem`. Beyond it, the send buffer
/// of a leg follows its congestion window.
#[test]
fn a_long_leg_carries_more_than_the_kernels_largest_send_buffer() {
    const TEST: &str = "a_long_leg_carries_more_than_the_kernels_largest_send_buffer";
    if common::skip(TEST) {
        return;
    }
    let memory = |send: &str| SocketMemory { receive: "4096 131072 67108864".into(), send: send.into() };
    let small = HostMemory { receiver: memory("4096 16384 4194304"), others: memory("4096 16384 131072") };
    let lab = Lab { memory: Some(small), ..Lab::default() };
    let text = "name = \"x\"\n[[link]]\nrate = \"100Mbit\"\ndelay = \"1ms\"\n[[link]]\nrate = \"20Mbit\"\ndelay = \"100ms\"\n[[split]]\nafter = 1\n\
                buffer = \"adaptive\"\n[[flow]]\nbytes = \"8MB\"\n";
    let Some(outcome) = play_on(&lab, TEST, text) else { return };
    // At most 128 KiB in a round trip of 200 ms are 5.2 Mbit/s.
    assert!(outcome.goodput_bps > 8e6, "{}", outcome.goodput_bps);
}
