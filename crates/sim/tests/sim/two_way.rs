//! Data in both directions, and TCP cross traffic over some of the links.

use crate::common::{near, refused, run};

/// Two links, of which the second is the slower one.
const NEAR: &str = "[[link]]\nrate = \"50Mbit\"\ndelay = \"5ms\"\nqueue = \"200kB\"\n";
const FAR: &str = "[[link]]\nrate = \"10Mbit\"\ndelay = \"30ms\"\nqueue = \"60kB\"\n";
const FILE: &str = "[[flow]]\ncount = 2\nbytes = \"3MB\"\nstart = { every = \"100ms\" }\n";

/// A reverse flow over a path is a forward flow over its mirror image, to the nanosecond.
#[test]
fn a_reverse_flow_is_a_forward_flow_over_the_mirrored_path() {
    for (split, control) in [("", ""), ("[[split]]\nafter = 1\n", "[control]\nsender = \"reno\"\nproxy = \"cubic\"\n")] {
        for opens in ["sender", "receiver"] {
            let forward = run(&format!("{control}{NEAR}{FAR}{split}{FILE}opens = \"{opens}\"\n"));
            let reverse = run(&format!("{control}{FAR}{NEAR}{split}{FILE}opens = \"{opens}\"\ndirection = \"reverse\"\n"));
            assert!(forward.retransmits() > 0, "the far queue overflows");
            for (forward, reverse) in forward.flows.iter().zip(&reverse.flows) {
                assert!(reverse.reverse && !forward.reverse);
                assert_eq!((forward.end_s, forward.bytes), (reverse.end_s, reverse.bytes), "{split}{opens}");
                assert_eq!(forward.legs, reverse.legs);
            }
            let [far, near] = [1, 0].map(|link| forward.links[link].queue_drops);
            let drops: Vec<u64> = reverse.links.iter().map(|link| link.reverse.unwrap().queue_drops).collect();
            assert_eq!(drops, [far, near]);
        }
    }
}

#[test]
fn a_chain_of_proxies_relays_both_directions() {
    let links = format!("{NEAR}{FAR}{NEAR}[[split]]\nafter = 1\nbuffer = \"64kB\"\n[[split]]\nafter = 2\nbuffer = \"256kB\"\n");
    let outcome = run(&format!(
        "{links}[control]\nsender = \"reno\"\nproxy = [\"cubic\", \"hybla\"]\n[[flow]]\nbytes = \"2MB\"\ndirection = \"both\"\n"
    ));
    let controls = |flow: usize| outcome.flows[flow].legs.iter().map(|leg| leg.control.as_str()).collect::<Vec<_>>();
    assert_eq!(outcome.flows.iter().map(|flow| flow.reverse).collect::<Vec<_>>(), [false, true]);
    assert_eq!((controls(0), controls(1)), (vec!["reno", "cubic", "hybla"], vec!["reno", "hybla", "cubic"]));
    assert!(outcome.flows.iter().all(|flow| flow.bytes == 2_000_000 && flow.end_s.is_some()), "{:?}", outcome.flows);
    // At most each proxy's buffer of each flow.
    assert!(outcome.proxy.unwrap().buffer_bytes.max <= 2.0 * 320e3);
}

/// Acknowledgements wait behind the data of the other direction, in one queue, and are lost with
/// it. Those that leave a queue together release data in bursts, so that the other direction's
/// queue overflows early (Zhang, Shenker and Clark, SIGCOMM 1991).
#[test]
fn acknowledgements_share_the_queue_of_the_other_directions_data() {
    let link = "duration = \"60s\"\n[control]\nsender = \"reno\"\n[[link]]\nrate = \"10Mbit\"\ndelay = \"20ms\"\nqueue = \"30pkt\"\n";
    let play = |flow: &str, others: &str| run(&format!("{link}[[flow]]\n{flow}{others}"));
    let uploads = "[[flow]]\ndirection = \"reverse\"\ncount = 20\nstart = { every = \"50ms\" }\n";
    let (alone, beside) = (play("", ""), play("", uploads));
    assert!(alone.utilization > 0.95 && beside.utilization < 0.85, "{} and {}", alone.utilization, beside.utilization);
    assert_eq!(alone.links[0].reverse, None);
    let again: u64 = beside.flows.iter().filter(|flow| flow.reverse).map(|flow| flow.legs[0].retransmits).sum();
    let reverse = beside.links[0].reverse.unwrap();
    assert!(reverse.queue_drops > again, "acknowledgements are dropped too: {reverse:?}, {again} retransmitted");
    // A flow whose window fills no queue: its round trip has only that of its acknowledgements.
    let small = "window = \"14480B\"\n";
    let [alone, beside] = [play(small, ""), play(small, uploads)].map(|outcome| outcome.flows[0].legs[0].mean_rtt_s);
    assert!(alone < 0.055 && beside - alone > 0.015 && beside - alone < 0.036, "{alone} s and {beside} s");
}

/// Where acknowledgements are sent at once, a flow's data stay together in runs of a whole window;
/// those that wait for the application mix with the data of the other direction.
#[test]
fn acknowledgements_that_wait_for_the_application_break_up_bursts() {
    let link = "duration = \"60s\"\n[control]\nsender = \"reno\"\n[[link]]\nrate = \"10Mbit\"\ndelay = \"20ms\"\nqueue = \"40pkt\"\n";
    let flows = "[[flow]]\n[[flow]]\ndirection = \"reverse\"\nstart = \"130ms\"\n";
    let [at_once, read] = ["", "[tcp]\nread_delay = \"100us\"\n"].map(|tcp| run(&format!("{link}{tcp}{flows}")));
    assert!(
        (0.65..0.73).contains(&at_once.utilization) && (0.82..0.91).contains(&read.utilization),
        "{} {}",
        at_once.utilization,
        read.utilization
    );
    // One flow alone does not notice.
    let [at_once, read] = ["", "[tcp]\nread_delay = \"100us\"\n"].map(|tcp| run(&format!("{link}{tcp}[[flow]]\n")).goodput_bps);
    near(read, at_once, 0.005);
}

#[test]
fn cross_flows_share_the_links_between_their_ends() {
    let path = format!("duration = \"60s\"\n{NEAR}[[link]]\nrate = \"20Mbit\"\ndelay = \"10ms\"\nqueue = \"100kB\"\n{NEAR}[[flow]]\n");
    let play = |cross: &str| run(&format!("{path}{cross}"));
    let alone = play("");
    let beside = play("[[cross_flow]]\nenters = 2\nleaves = 2\ncount = 3\n");
    assert!(alone.cross_flows.is_empty() && alone.goodput_bps > 18e6, "{}", alone.goodput_bps);
    // The cross flows have shorter round trips.
    assert!(beside.goodput_bps < 0.3 * alone.goodput_bps, "{}", beside.goodput_bps);
    let all = beside.goodput_bps + beside.cross_flows.iter().map(|flow| flow.goodput_bps).sum::<f64>();
    near(all, 20e6 * 1448.0 / 1500.0, 0.05);
    assert_eq!(beside.cross_flows.iter().map(|flow| flow.id).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(beside.flows.len(), 1);
    // Links 1 and 3 carry the flow only, in either direction.
    assert!(beside.links[0].packets < beside.links[1].packets / 3, "{:?}", beside.links);
    let rtt = |flow: &outcome::FlowOutcome| flow.legs[0].min_rtt_s;
    assert!((0.02..0.021).contains(&rtt(&beside.cross_flows[0])), "{:?}", beside.cross_flows[0]);
    // A cross flow on another link leaves the flow alone.
    let elsewhere = play("[[cross_flow]]\nenters = 3\nleaves = 3\nbytes = \"1MB\"\ndirection = \"reverse\"\n");
    assert!(elsewhere.cross_flows[0].reverse && elsewhere.cross_flows[0].bytes == 1_000_000);
    near(elsewhere.goodput_bps, alone.goodput_bps, 0.02);
}

#[test]
fn a_proxy_splits_the_cross_flows_that_pass_it() {
    let split = "[[split]]\nafter = 1\n[[split]]\nafter = 2\n[control]\nsender = \"reno\"\nproxy = [\"cubic\", \"hybla\"]\n";
    let cross = |enters: usize, leaves: usize, direction: &str| {
        let table = format!(
            "[[cross_flow]]\nenters = {enters}\nleaves = {leaves}\nbytes = \"500kB\"\ndirection = \"{direction}\"\ncontrol = \"bbr\"\n"
        );
        let outcome = run(&format!("duration = \"20s\"\n{NEAR}{FAR}{NEAR}{split}[[flow]]\nbytes = \"8MB\"\n{table}"));
        let flow = &outcome.cross_flows[0];
        assert_eq!((flow.bytes, flow.asked_bytes), (500_000, Some(500_000)));
        flow.legs.iter().map(|leg| leg.control.clone()).collect::<Vec<_>>()
    };
    assert_eq!(cross(1, 3, "forward"), ["bbr", "cubic", "hybla"]);
    assert_eq!(cross(1, 2, "forward"), ["bbr", "cubic"]);
    assert_eq!(cross(2, 3, "reverse"), ["bbr", "hybla"]);
    assert_eq!(cross(2, 2, "forward"), ["bbr"]);
}

/// Without a capacity to divide, the controller of a proxy is the sender's.
#[test]
fn a_proxy_that_divides_its_egress_link_sends_back_as_the_sender_does() {
    let outcome = run(&format!(
        "{NEAR}{FAR}[[split]]\nafter = 1\n[control]\nsender = \"reno\"\nproxy = \"share\"\n[[flow]]\nbytes = \"1MB\"\ndirection = \"both\"\n"
    ));
    let controls = |flow: usize| outcome.flows[flow].legs.iter().map(|leg| leg.control.as_str()).collect::<Vec<_>>();
    assert_eq!((controls(0), controls(1)), (vec!["reno", "share"], vec!["reno", "reno"]));
    assert!(outcome.flows.iter().all(|flow| flow.bytes == 1_000_000));
}

/// A run does not wait for cross flows, and the flow's numbers contain none of theirs.
#[test]
fn cross_flows_do_not_prolong_a_run() {
    let outcome = run(&format!("{NEAR}{FAR}[[flow]]\nbytes = \"1MB\"\n[[cross_flow]]\nenters = 1\nleaves = 2\n"));
    assert_eq!(outcome.completion_s(), outcome.flows[0].end_s);
    near(outcome.goodput_bps, outcome.flows[0].goodput_bps, 1e-9);
    assert!(outcome.cross_flows[0].end_s.is_none() && outcome.cross_flows[0].bytes > 0);
}

#[test]
fn what_assumes_forward_flows_is_refused_beside_others() {
    let path = format!("duration = \"1s\"\n{NEAR}{FAR}");
    let agent = "[[agent]]\nafter = 1\nkind = \"snoop\"\n";
    assert_eq!(refused(&format!("{path}{agent}[[flow]]\ndirection = \"both\"\n")), "flow[1].direction");
    assert_eq!(refused(&format!("{path}{agent}[[flow]]\n[[cross_flow]]\nenters = 1\nleaves = 1\n")), "cross_flow");
    let routers = "[control]\nsender = \"xcp-e2e\"\n";
    let path = path.replace("queue = \"60kB\"", "queue = { kind = \"xcp\" }");
    assert_eq!(refused(&format!("{path}{routers}[[flow]]\ndirection = \"reverse\"\n")), "flow[1].direction");
    assert_eq!(refused(&format!("{path}{routers}[[flow]]\n[[cross_flow]]\nenters = 1\nleaves = 1\n")), "control.sender");
}
