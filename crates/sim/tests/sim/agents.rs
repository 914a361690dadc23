//! Agents that help TCP without splitting it: Snoop, and notices of loss.

use crate::common::{near, play, refused, run};
use outcome::{AgentOutcome, Outcome};
use proptest::prelude::*;
use sim::{Recovery, TcpSettings};

const SNOOP: &str = "[[agent]]\nafter = 1\nkind = \"snoop\"\ncache = \"unlimited\"\n";
const NOTICE: &str = "[[agent]]\nafter = 1\nkind = \"loss-notice\"\n";

/// A wired link and a wireless one with these further keys, and a flow of 20 MB.
fn wireless(link: &str, more: &str) -> String {
    format!(
        "[[link]]\nrate = \"10Mbit\"\ndelay = \"40ms\"\nqueue = \"200kB\"\n\
         [[link]]\nrate = \"10Mbit\"\ndelay = \"10ms\"\nqueue = \"200kB\"\n{link}[[flow]]\nbytes = \"20MB\"\n{more}"
    )
}

const LOSSY: &str = "loss = { per_packet = 0.02 }\n";

fn agent(outcome: &Outcome) -> AgentOutcome {
    outcome.agents[0]
}

/// All of an outcome except its agents.
fn without_agents(outcome: Outcome) -> Outcome {
    Outcome { agents: Vec::new(), ..outcome }
}

#[test]
fn snoop_hides_wireless_losses_from_the_sender() {
    let plain = run(&wireless(LOSSY, ""));
    let snoop = run(&wireless(LOSSY, SNOOP));
    // The wireless link carries each segment 1/0.98 times, in packets of 1500 bytes.
    let most = 10e6 * 0.98 * 1448.0 / 1500.0;
    assert!(snoop.goodput_bps < most && snoop.goodput_bps > 0.9 * most, "{} of {most}", snoop.goodput_bps);
    assert!(plain.goodput_bps < 0.5 * snoop.goodput_bps, "{}", plain.goodput_bps);
    let did = agent(&snoop);
    near(did.local_retransmits as f64, snoop.links[1].losses as f64, 0.05);
    assert!(did.suppressed_acks > did.local_retransmits && did.loss_notices == 0, "{did:?}");
}

#[test]
fn snoop_repairs_without_sack_too() {
    let settings = TcpSettings { recovery: Recovery::NewReno, ..TcpSettings::default() };
    let goodput = |more: &str| play(&wireless(LOSSY, more), 1, settings).0;
    let (plain, snoop) = (goodput(""), goodput(SNOOP));
    assert!(snoop.goodput_bps > 2.0 * plain.goodput_bps, "{} {}", snoop.goodput_bps, plain.goodput_bps);
    assert!(agent(&snoop).local_retransmits > 0);
}

#[test]
fn a_notice_keeps_the_window_and_leaves_retransmission_to_the_sender() {
    let plain = run(&wireless(LOSSY, ""));
    for settings in [Recovery::Sack, Recovery::NewReno].map(|recovery| TcpSettings { recovery, ..TcpSettings::default() }) {
        let noticed = play(&wireless(LOSSY, NOTICE), 1, settings).0;
        let did = agent(&noticed);
        assert!(did.loss_notices > 0 && did.local_retransmits == 0 && did.suppressed_acks == 0, "{did:?}");
        assert!(noticed.goodput_bps > 2.0 * plain.goodput_bps, "{settings:?}: {}", noticed.goodput_bps);
        assert!(noticed.flows[0].legs[0].retransmits >= noticed.links[1].losses);
        assert!(noticed.goodput_bps < 10e6 * 0.98 * 1448.0 / 1500.0);
    }
}

#[test]
fn losses_before_an_agent_are_the_senders_as_ever() {
    // The wired link loses, and the queue of the wireless one overflows.
    for link in ["", "loss = { per_packet = 0.02 }\n"] {
        let text = |more: &str| wireless("", more).replacen("queue = \"200kB\"\n", &format!("queue = \"200kB\"\n{link}"), 1);
        let plain = without_agents(run(&text("")));
        assert!(plain.flows[0].legs[0].retransmits > 0);
        for more in [SNOOP, NOTICE] {
            assert!(without_agents(run(&text(more))) == plain, "{more}");
        }
    }
}

#[test]
fn agents_are_no_place_for_controllers_that_need_feedback() {
    let text = wireless("", "[control]\nsender = \"xcp-e2e\"\n").replace("queue = \"200kB\"", "queue = { kind = \"xcp\" }");
    for agent in [SNOOP, NOTICE] {
        assert_eq!(refused(&format!("{text}{agent}")), "agent[1].kind");
    }
}

#[test]
fn lost_acknowledgements_are_lost_against_the_direction_of_the_data() {
    let none = run(&wireless("", ""));
    let lost = run(&wireless("loss.reverse = { per_packet = 0.3 }\n", ""));
    // Cumulative acknowledgements hardly need each other.
    assert_eq!(lost.links[1].losses, 0);
    assert!(lost.flows[0].end_s > none.flows[0].end_s && lost.goodput_bps > 0.5 * none.goodput_bps);
}

#[test]
fn a_sender_learns_of_its_last_byte_after_a_long_loss_burst() {
    // The last acknowledgement is lost, and then ten retransmissions, which are 120 s apart in the
    // end: they are the only packets that take the link out of its lossy state.
    let text = "duration = \"24h\"\n[[link]]\nrate = \"10Mbit\"\ndelay = \"20ms\"\nqueue = \"10pkt\"\n\
                [[link]]\nrate = \"8Mbit\"\ndelay = \"1ms\"\nqueue.limit = \"10pkt\"\nqueue.kind = \"ecn\"\n\
                loss.gilbert = { good_to_bad = 0.01, bad_to_good = 0.2 }\nloss.reverse = { per_packet = 0.0191 }\n\
                [[agent]]\nafter = 1\nkind = \"loss-notice\"\n[control]\nsender = \"reno\"\n[[flow]]\nbytes = \"37649B\"\n";
    let flow = play(text, 1_707_349_420_273_949_507, TcpSettings::default()).0.flows.remove(0);
    assert!(flow.acked_s > Some(600.0) && flow.end_s < Some(1.0), "{flow:?}");
}

/// A lossy wireless link and an agent: the keys of the link, the cache in packets, the controller.
fn any_agent() -> impl Strategy<Value = (String, u64)> {
    let loss = prop_oneof![
        (0.0..0.3f64).prop_map(|p| format!("loss.per_packet = {p:.4}")),
        Just("loss.gilbert = { good_to_bad = 0.01, bad_to_good = 0.2 }".to_string()),
    ];
    let ends = (prop::sample::select(vec!["reno", "cubic", "vegas", "dctcp"]), any::<bool>(), 0.0..0.2f64);
    let sizes = (1u32..60, 2u32..80, 1u64..200, 1u32..400_000, 1u32..4);
    (loss, ends, sizes, any::<bool>()).prop_map(|(loss, (control, fast_open, acks), (delay, queue, cache, bytes, count), is_snoop)| {
        let agent = if is_snoop { format!("kind = \"snoop\"\ncache = \"{cache}pkt\"\n") } else { "kind = \"loss-notice\"\n".into() };
        let text = format!(
            "duration = \"24h\"\n[[link]]\nrate = \"10Mbit\"\ndelay = \"20ms\"\nqueue = \"{queue}pkt\"\n\
             [[link]]\nrate = \"8Mbit\"\ndelay = \"{delay}ms\"\nqueue.limit = \"{queue}pkt\"\nqueue.kind = \"ecn\"\n{loss}\n\
             loss.reverse = {{ per_packet = {acks:.4} }}\n[[agent]]\nafter = 1\n{agent}[control]\nsender = \"{control}\"\n\
             [[flow]]\ncount = {count}\nbytes = \"{bytes}B\"\nfast_open = {fast_open}\n"
        );
        (text, cache * 1500)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn every_byte_arrives_once_past_an_agent((text, cache) in any_agent(), seed: u64, newreno: bool) {
        let recovery = if newreno { Recovery::NewReno } else { Recovery::Sack };
        let (outcome, counters) = play(&text, seed, TcpSettings { recovery, ..TcpSettings::default() });
        for flow in &outcome.flows {
            prop_assert_eq!(Some(flow.bytes), flow.asked_bytes);
            // The sender knows only what the receiver has acknowledged.
            prop_assert!(flow.acked_s > flow.end_s, "{:?}", flow);
        }
        let did = agent(&outcome);
        prop_assert!(did.cache_max_bytes <= cache, "{did:?} {cache}");
        // What leaves the agent towards the sender, the receiver has sent.
        prop_assert!(did.suppressed_acks + did.loss_notices <= counters.acks, "{did:?}");
        prop_assert!(outcome.utilization <= 1.000_001, "{}", outcome.utilization);
    }

    #[test]
    fn an_agent_without_losses_behind_it_changes_nothing((text, _) in any_agent(), seed: u64) {
        let at = text.find("loss.").unwrap();
        let end = text.find("[[agent]]").unwrap();
        let text = format!("{}{}", &text[..at], &text[end..]);
        let begin = text.find("[[agent]]").unwrap();
        let plain = format!("{}{}", &text[..begin], &text[text.find("[control]").unwrap()..]);
        let [with, without] = [&text, &plain].map(|text| without_agents(play(text, seed, TcpSettings::default()).0));
        prop_assert!(with == without, "goodput {} {}", with.goodput_bps, without.goodput_bps);
    }
}
